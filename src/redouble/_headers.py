"""Reading headers, whatever a client library keeps them in: names in, texts out.

The rules of this file:

- Nothing found is trusted, and nothing but ``get`` and ``items`` is ever called. Neither is called on a mock.
- At most 200 headers are passed over; of what has more, headers are asked for by name.
- Most answers carry no header that matters. The names are passed over once, which is cheap for the usual
  mappings, and nothing else is asked where none is of interest.
"""

from __future__ import annotations

from itertools import islice

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    Ask = Callable[[str], str | None]
    Names = tuple[frozenset[str], frozenset[bytes]]

_MOST_HEADERS = 200
_LIST: type[Any] = list
_MANY: tuple[type[Any], ...] = (list, tuple)


def silent(name: str) -> None:
    """What headers answer in which nothing is of interest."""


def reader(headers: object, interesting: Names) -> Ask:
    """Looks up headers by lower-case name; ``silent`` if none of the interesting ones is there.

    The interesting names are given twice, as texts and as bytes.
    """
    if headers is None:
        return silent
    kind = type(headers)
    try:
        if kind is not dict:
            raw: Any = getattr(headers, "raw", None)
            if type(raw) is _LIST:  # httpx: pairs of bytes, which it would decode anew for each question
                return _raw_reader(raw, interesting[1])
        if hasattr(kind, "items"):
            return _mapping_reader(headers, interesting[0])
    except Exception:  # noqa: BLE001, S110 - walking is anybody's code; there are other ways in
        pass
    return _passed_over(headers)


def _raw_reader(raw: Any, interesting: frozenset[bytes]) -> Ask:
    values: dict[str, str] = {}
    date = None
    for name, value in raw[:_MOST_HEADERS]:
        # Through bytes itself: whatever is of another type raises, and is left to the slow way.
        lower = bytes.lower(name)
        if lower in interesting:
            _add(values, lower.decode("latin-1"), bytes.decode(value, "latin-1"))
        elif lower == b"date":
            date = value
    if values and date is not None:
        values["date"] = bytes.decode(date, "latin-1")
    return values.get if values else silent


def _mapping_reader(headers: Any, interesting: frozenset[str]) -> Ask:
    walk: Iterator[Any] = iter(headers)
    if walk is headers:  # would be used up
        return _passed_over(headers)
    # Through str itself, as above.
    names = list(map(str.lower, islice(walk, _MOST_HEADERS)))
    if len(names) == _MOST_HEADERS:
        return _passed_over(headers)
    if interesting.isdisjoint(names):
        return silent
    values: dict[str, str | None] = {}
    dated = False
    for name in names:
        if name not in interesting:
            continue
        if name in values:  # several lines of one header
            return _passed_over(headers)
        value = headers.get(name)
        if value is None:
            value = headers.get(name.title())  # a plain dict, spelled as usual
        if type(value) is not str:
            value = header(headers, name)
        values[name] = value
        dated = dated or value is None or len(value) > 9 or not value.isdigit()
    # A moment is measured from the answer's own; for a number of seconds that need not be looked up.
    if dated and "date" in names:
        values["date"] = header(headers, "date")
    return values.get


def _add(values: dict[str, str], name: str, value: str) -> None:
    before = values.setdefault(name, value)
    if before != value:
        values[name] = f"{before}, {value}"


def _passed_over(headers: object) -> Ask:
    """Looks up headers after one pass over names and values, where ``header`` would make one per name."""
    items = _items(headers)
    folded: dict[str, str] = {}
    for pair in map(_pair, items):
        if pair:
            _add(folded, *pair)
    if folded and len(items) < _MOST_HEADERS:
        return folded.get

    def ask(name: str) -> str | None:  # by name, as they cannot be passed over, or not to the end
        values = [plain_text(_call(headers, "get", spelling)) for spelling in (name, name.title())]
        return values[0] or values[1] or folded.get(name)

    return ask


def header(headers: object, name: str, /) -> str | None:
    """The value of one header, from anything that looks like headers; None if it is not there.

    Takes mappings with ``get`` or ``items`` and iterables of pairs (not iterators, which would be used up),
    with names in any case. Of a list of values the first counts. Never raises, never calls a mock.

    >>> header({"RETRY-AFTER": b"7"}, "Retry-After"), header([("retry-after", 7)], "Retry-After")
    ('7', '7')
    """
    if headers is None:
        return None
    lower = name.lower()
    value = plain_text(_call(headers, "get", lower))
    if value is not None:  # as nearly always
        return value
    for spelling in (name.title(), name):
        value = plain_text(_call(headers, "get", spelling))
        if value is not None:
            return value
    for pair in map(_pair, _items(headers)):
        if pair and pair[0] == lower:
            return pair[1]
    return None


def plain_text(value: Any) -> str | None:
    """A header's value or name as plain text; None for what no HTTP client would put there."""
    if type(value) is str:
        return value
    try:
        if isinstance(value, _MANY):
            value = value[0]
        # Through the base types: a subclass may print itself in any way (numpy: np.float64(1.5)).
        if isinstance(value, str):
            return str.__str__(value)
        if isinstance(value, bytes):
            return bytes.decode(value, "latin-1")
        if isinstance(value, float):
            text = float.__repr__(value)
            return float.__format__(value, "f") if "e" in text else text
        if isinstance(value, int) and not isinstance(value, bool):
            return int.__repr__(value)
    except Exception:  # noqa: BLE001 - __class__, [0] and the rest may be anybody's code
        return None
    return None


def _call(headers: object, method: str, *args: str) -> Any:
    try:
        # Asked of the class: a mock has every attribute, its class has not, so no mock is ever called.
        return getattr(headers, method)(*args) if hasattr(type(headers), method) else None
    except Exception:  # noqa: BLE001 - as above
        return None


def _items(headers: Any) -> list[Any]:
    """The first 200 headers as they are kept; nothing if reading them raises."""
    try:
        items = _call(headers, "items")
        source: Iterator[Any] = iter(headers if items is None else items)
        # Reading an iterator would use up what belongs to the caller.
        return [] if source is headers else list(islice(source, _MOST_HEADERS))
    except Exception:  # noqa: BLE001 - as above
        return []


def _pair(item: Any) -> tuple[str, str] | None:
    """Name, in lower case, and value of one header."""
    try:
        name, value = [plain_text(part) for part in item] if isinstance(item, _MANY) else (None, None)
    except Exception:  # noqa: BLE001 - as above
        return None
    return None if name is None or value is None else (name.lower(), value)
