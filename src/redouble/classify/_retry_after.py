"""Parse Retry-After and rate-limit headers to seconds.

The rules of this file:

- An unreadable value is not a hint. Nothing here raises, whatever a server or a test double puts into
  headers, and every length is limited before anything is read.
- Zero is a hint; a date in the past is zero. Nothing is capped here: the policy decides how long is too long.
- Numbers are ASCII digits with at most one decimal point, at either end too (``.5``, ``5.``). Of several
  numbers joined by commas, as clients join repeated lines, the longest wait counts.
- Dates are measured from the response's own ``Date`` when it has one, so that a client whose clock is wrong
  waits as long as one whose clock is right; else from ``now``.
- ``RateLimit`` and headers named *reset* are sent with every response, so they count only on 403, 429 and 503
  (or where no status is known), and only if the matching *remaining* header is zero, unreadable or absent.

``_ROWS`` has the headers in the order of precedence, each with its parser: the first row that gives a delay
wins, and within a row the longest delay. To add a header, add it to a row, or add a row with its parser.
"""

from __future__ import annotations

import time

from .._base.headers import plain_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    # Takes a stripped text and the time to measure from; raises one of _UNREADABLE if it cannot parse it.
    Parser = Callable[[str, float], float]

_UNREADABLE = (ValueError, LookupError, OverflowError, OSError)
_LONGEST_TEXT = 256  # characters of a header value; the longest real one is a RateLimit of many policies
_LONGEST_NUMBER = 32  # characters; keeps float() finite and fast
_EPOCH_DIGITS = 10  # seconds since 1970 have as many since 2001; fewer digits are a delay

_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_UNITS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_ANTHROPIC = ("requests", "tokens", "input-tokens", "output-tokens")
_TRUTH = {"true": True, "false": False}


# Numbers and durations


def _number(text: str) -> float:
    """Parse digits with at most one decimal point."""
    text = text.strip(" \t")
    whole, _, fraction = text.partition(".")
    digits = whole + fraction
    if len(text) <= _LONGEST_NUMBER and digits.isdigit():  # float alone takes 1e3, 1_0, inf and nan
        return float(text)
    raise ValueError(text)


def _seconds(text: str, now: float) -> float:
    """Parse seconds; of several numbers, the largest."""
    if len(text) <= _LONGEST_NUMBER and text.isdigit():
        return float(text)
    return max([_number(part) for part in text.split(",")])


def _milliseconds(text: str, now: float) -> float:
    """Parse milliseconds; return seconds."""
    return _seconds(text, now) / 1000


def _duration(text: str, now: float) -> float:
    """Parse a duration such as ``6m0s``; a bare number is seconds."""
    if not text[-1:].isalpha():
        return _seconds(text, now)
    total = 0.0
    while text:
        tail = text.lstrip("0123456789.")
        unit = tail[:2] if tail[:2] in _UNITS else tail[:1]
        total += _number(text[: len(text) - len(tail)]) * _UNITS[unit]
        text = tail[len(unit) :]
    return total


# Moments


def _whole(text: str, *lengths: int) -> int:
    """Parse a number of exactly this many digits."""
    if len(text) in lengths and text.isdigit():
        return int(text)
    raise ValueError(text)


def _epoch(year: int, month: str, day: str, clock: str) -> float:
    """Return seconds since 1970 UTC."""
    from datetime import UTC, datetime  # an expensive import, only for dates

    hour, minute, second = [_whole(part, 2) for part in clock.split(":")]
    if second > 60:  # which is a leap second, and the grammar allows it in any minute
        raise ValueError(clock)
    date = datetime(year, _MONTHS.index(month) + 1, _whole(day, 1, 2), hour, minute, tzinfo=UTC)
    return date.timestamp() + second


def _full_year(digits: str, now: float) -> int:
    """Return the latest year with these two digits that is at most 50 years ahead (RFC 9110 5.6.7)."""
    latest = time.gmtime(now).tm_year + 50
    return latest - (latest - _whole(digits, 2)) % 100


def _http_date(text: str, now: float) -> float:
    """Return seconds since 1970 of a date in any of the three forms; any case, one-digit days, UTC."""
    weekdays = [f"{day[:3]}," for day in _WEEKDAYS]
    match [word for word in text.lower().split(" ") if word]:
        case [weekday, day, month, year, clock, "gmt" | "utc"] if weekday in weekdays:
            return _epoch(_whole(year, 4), month, day, clock)
        case [weekday, date, clock, "gmt" | "utc"] if weekday[:-1] in _WEEKDAYS and weekday[-1] == ",":
            day, month, year = date.split("-")
            return _epoch(_full_year(year, now), month, day, clock)
        case [weekday, month, day, clock, year] if weekday + "," in weekdays:
            return _epoch(_whole(year, 4), month, day, clock)
        case _:
            raise ValueError(text)


def _timestamp(text: str) -> float:
    """Parse an RFC 3339 time with its zone; return seconds since 1970."""
    from datetime import datetime  # as above

    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:  # would be read in the local zone
        raise ValueError(text)
    return moment.timestamp()


def _after(text: str, now: float) -> float:
    """Parse the value of ``Retry-After``: an HTTP-date or seconds."""
    return _http_date(text, now) - now if text[0].isalpha() else _seconds(text, now)


def _reset(text: str, now: float) -> float:
    """Parse seconds, an epoch in seconds or milliseconds, an HTTP-date or an RFC 3339 time."""
    if text[0].isalpha():
        return _http_date(text, now) - now
    if ":" in text:
        return _timestamp(text) - now
    number = _seconds(text, now)
    # No standard says which. 1e9 seconds are 30 years as a delay, and the year 2001 as a time.
    if number >= 1e11:
        return number / 1000 - now
    return number - now if number >= 1e9 else number


# The RateLimit header: a list of policies, each with r (remaining) and t (seconds to reset)


def _policies(text: str) -> list[tuple[float | None, float | None]]:
    """Parse a ``RateLimit`` header; return (remaining, seconds to reset) of each policy."""
    pieces = text.replace('\\"', "").split('"')
    if len(pieces) % 2 == 0:
        raise ValueError(text)  # a quote that never ends
    bare = "".join(pieces[::2])  # quoted names may hold any separator
    # Draft 7 had one policy, written limit=10, remaining=0, reset=5: here that is three, which add up to it.
    return [_policy(member) for member in bare.split(",")]


def _policy(member: str) -> tuple[float | None, float | None]:
    """Parse one member of a ``RateLimit`` header."""
    left = reset = None
    for field in member.split(";"):
        key, _, value = field.partition("=")
        match key.strip(" \t").lower():
            case "r" | "remaining":
                left = _number(value)
            case "t" | "reset":
                reset = _number(value)
            case _:
                pass  # the policy's name, or a parameter of a later draft
    return left, reset


def _ratelimit(text: str, now: float) -> float:
    """Return the longest ``t`` of the policies whose ``r`` is zero (draft 7: ``reset`` and ``remaining``)."""
    return max([reset for left, reset in _policies(text) if not left and reset is not None])


def _left(text: str, now: float) -> float:
    """Parse how much of a limit remains; of several policies, the least."""
    if "=" not in text:
        return _seconds(text, now)
    return min([left for left, _ in _policies(text) if left is not None])


# Parser, whether it is a reset header, and the headers that it parses.
_ROWS: tuple[tuple[Parser, bool, tuple[str, ...]], ...] = (
    (_milliseconds, False, ("retry-after-ms",)),
    (_milliseconds, False, ("x-ms-retry-after-ms",)),
    (_milliseconds, False, ("x-amz-retry-after",)),
    (_after, False, ("retry-after",)),
    (_seconds, True, ("x-ratelimit-reset-after",)),
    (_ratelimit, True, ("ratelimit",)),
    (_reset, True, ("ratelimit-reset",)),
    (_reset, True, ("x-ratelimit-reset",)),
    (_reset, True, ("x-rate-limit-reset",)),
    (_duration, True, ("x-ratelimit-reset-requests", "x-ratelimit-reset-tokens")),
    (_reset, True, tuple([f"anthropic-ratelimit-{kind}-reset" for kind in _ANTHROPIC])),
)
_RESET_STATUSES = (None, 403, 429, 503)
_SHOULD_RETRY = ("x-should-retry", "stripe-should-retry")


def _remaining(name: str) -> str:
    """Return the name of the header with the rest of a limit; ``RateLimit`` itself says it."""
    return name.removesuffix("-after").replace("reset", "remaining")


# The same by name: the rank of its row, the parser, and for a reset header the name of its remaining header.
_BY_NAME: dict[str, tuple[int, Parser, str | None]] = {
    name: (rank, parser, _remaining(name) if reset else None)
    for rank, (parser, reset, names) in enumerate(_ROWS)
    for name in names
}
# The last is what dates are measured from.
INTERESTING = frozenset([*_BY_NAME, *map(_remaining, _BY_NAME), *_SHOULD_RETRY, "date"])


def _parse(parser: Parser, text: str | None, now: float) -> float | None:
    """Return what a parser reads in a text, at least zero; None if it cannot read it."""
    # Checked once, here: isdigit accepts superscripts and the digits of every script.
    if text is None or len(text) > _LONGEST_TEXT or not text.isascii():
        return None
    try:
        return max(0.0, parser(text.strip(" \t"), now))
    except _UNREADABLE:
        return None


def parse_retry_after(value: object, /, *, now: float | None = None) -> float | None:
    """Return the seconds that one ``Retry-After`` value asks for; None if it cannot be read.

    Takes text, bytes, a number, or a list of those (the first counts). A date is measured from ``now``,
    in seconds since 1970 (default: the wall clock); in the past it is 0.0.

    >>> parse_retry_after("120"), parse_retry_after("1.5"), parse_retry_after("soon")
    (120.0, 1.5, None)
    >>> parse_retry_after("Fri, 31 Dec 1999 23:59:59 GMT", now=946684769)
    30.0
    """
    return _parse(_after, plain_text(value), time.time() if now is None else now)


def hint(headers: Mapping[str, str], status: int | None, now: float | None) -> float | None:
    """Return the seconds that a response asks to wait, by the order of precedence of this file; or None.

    The names of ``headers`` are in lower case. Reset headers count on ``status`` 403, 429 and 503 while
    nothing remains. Without a status they count unless something remains.

    >>> hint({"retry-after": "7", "retry-after-ms": "250"}, None, None)
    0.25
    """
    delays: dict[int, float] = {}  # the longest of each rank
    for name, text in headers.items():
        if name not in _BY_NAME:
            continue
        rank, parser, remaining = _BY_NAME[name]
        if remaining is None or (
            status in _RESET_STATUSES and not _parse(_left, headers.get(remaining), 0.0)
        ):
            delay = _delay(parser, text, headers, now)
            if delay is not None and delay >= delays.get(rank, 0.0):
                delays[rank] = delay
    return delays[min(delays)] if delays else None


def _delay(parser: Parser, text: str, headers: Mapping[str, str], now: float | None) -> float | None:
    """Return the delay in one header, measured from the response's ``Date`` or from ``now``."""
    if len(text) < _EPOCH_DIGITS and text.isdigit():  # not a date, so nothing to measure from
        return float(text) if parser is _after and text.isascii() else _parse(parser, text, 0.0)
    clock = time.time() if now is None else now
    date = _parse(_http_date, headers.get("date"), clock)
    return _parse(parser, text, clock if date is None else date)


def shows_limit(headers: Mapping[str, str]) -> bool:
    """Return whether headers show a rate limit: a delay of the ``Retry-After`` kind, or nothing remaining.

    >>> shows_limit({"x-ratelimit-remaining": "0"}), shows_limit({"x-ratelimit-remaining": "7"})
    (True, False)
    """
    for name, (_, parser, remaining) in _BY_NAME.items():
        if remaining is None:
            limited = _parse(parser, headers.get(name), 0.0) is not None
        else:
            limited = _parse(_left, headers.get(remaining), 0.0) == 0
        if limited:
            return True
    return False


def should_retry(headers: Mapping[str, str]) -> bool | None:
    """Return the server's own answer in ``x-should-retry`` or ``Stripe-Should-Retry``; None if it gives none.

    >>> should_retry({"x-should-retry": "false"}), should_retry({"stripe-should-retry": "true"})
    (False, True)
    """
    for name in _SHOULD_RETRY:
        said = headers.get(name)
        if said is not None and len(said) <= _LONGEST_TEXT:
            verdict = _TRUTH.get(said.strip(" \t").lower())
            if verdict is not None:
                return verdict
    return None
