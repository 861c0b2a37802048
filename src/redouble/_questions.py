"""The questions about one exception or one HTTP status: the evidence, in the order in which it counts.

Each question is a function that gives a verdict, or None to pass on to the next; ``QUESTIONS`` is the order.
What is known is in ``_catalogue``, ``_codebook`` and ``_classes``, codes are read in ``_codes`` and
``_database_codes``, strangers' objects in ``_shapes``.
"""

from __future__ import annotations

import errno

from ._catalogue import (
    ALL_ADDRESSES_FAILED,
    ASKED_TO_WAIT,
    CLAIM_ATTRIBUTES,
    DELAY_ATTRIBUTES,
    ERRNOS,
    EVIDENCE,
    EVIDENCE_NAMES,
    MADE_UP_STATUSES,
    MAYBE_THROTTLED,
    NETWORK_ERRNOS,
    PERMANENT,
    RESPONSE_ATTRIBUTES,
    RETRYABLE_STATUSES,
    RETRYABLE_WHEN_HINTED,
    SAID_BY_CLASS,
    SAID_SO,
    STATUS_CAUSES,
    THROTTLED,
    THROTTLING_TEXTS,
    UNPROCESSED_STATUSES,
    UNPROCESSED_WHEN_HINTED,
    UNREACHED,
    WINERRORS,
    Cause,
    Row,
)
from ._codebook import AWS
from ._codes import grpc_enum
from ._database_codes import sqlstate
from ._doubts import LIMITS, doubt, hopeless, untrusted
from ._exchange import error_exchange
from ._headers import reader, silent
from ._hints import INTERESTING, hint, shows_limit, word
from ._record import Record
from ._shapes import (
    arguments,
    carries,
    cause,
    class_name,
    delay,
    entry,
    lacks,
    message,
    probe,
    real,
    status_code,
    text,
    whole,
)
from .errors import BulkheadFull, CircuitOpen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ._headers import Ask
    from ._kinds import Kind


class Verdict(Record):
    """What a failure means for the call that failed.

    ``unprocessed`` says that the request certainly had no effect, so that even a call that is not idempotent
    may be repeated. ``retry_after`` is the server's own wish in seconds. ``reason`` names the evidence.

    >>> Verdict(True, Cause.timeout, reason="TimeoutError")
    Verdict(retryable=True, cause=<Cause.timeout: 'timeout'>, status=None, retry_after=None,
            reason='TimeoutError', unprocessed=False)
    """

    __slots__ = ("retryable", "cause", "status", "retry_after", "reason", "unprocessed")  # noqa: RUF023

    retryable: bool
    cause: Cause
    status: int | None
    retry_after: float | None
    reason: str
    unprocessed: bool

    def __init__(
        self,
        retryable: bool,
        cause: Cause = Cause.unknown,
        status: int | None = None,
        retry_after: float | None = None,
        reason: str = "",
        unprocessed: bool = False,
    ) -> None:
        # By the slots themselves, since there is one verdict for each failure.
        _set_retryable(self, retryable)
        _set_cause(self, cause)
        _set_status(self, status)
        _set_retry_after(self, retry_after)
        _set_reason(self, reason)
        _set_unprocessed(self, unprocessed)


_set_retryable, _set_cause, _set_status, _set_retry_after, _set_reason, _set_unprocessed = [
    Verdict.__dict__[field].__set__ for field in Verdict._fields
]
NOTHING = Verdict(False, reason="nothing is known about it")


class Case:
    """What the questions share about one exception."""

    __slots__ = (
        "ask",
        "bare",
        "deep",
        "delay",
        "empty",
        "exc",
        "headers",
        "hint",
        "kind",
        "row",
        "status",
        "statuses",
    )

    def __init__(self, exc: BaseException, kind: Kind, statuses: frozenset[int], now: float | None) -> None:
        self.exc = exc
        self.kind = kind
        self.statuses = statuses
        self.row = kind.row
        self.deep = kind.deep
        self.status: int | None = None
        self.headers: object = None
        self.delay: float | None = None
        self.hint: float | None = None
        self.ask: Ask = silent
        self.empty = kind.blank and not carries(exc, EVIDENCE_NAMES)
        self.bare = lacks(exc, SAID_BY_CLASS) if self.empty else kind.warns or lacks(exc, EVIDENCE)
        if not self.bare:
            self._look(now)

    def _look(self, now: float | None) -> None:
        exc = self.exc
        self.status, self.headers = error_exchange(exc)
        if self.status is None and self.kind.coded:
            code = whole(probe(exc, "code"))
            self.status = code if code is not None and 400 <= code <= 599 else None
        if self.empty or not self.kind.blank or carries(exc, _DELAYS):
            wait = delay(exc, now)
            if wait or self.kind.own:  # zero is what some libraries set where the server said nothing
                self.delay = self.hint = wait
        if self.headers is not None:
            self.ask = reader(self.headers, INTERESTING)
            if self.ask is not silent:
                found = hint(self.ask, self.status, now)
                self.hint = self.delay if found is None else found

    def verdict(self, row: Row, reason: str) -> Verdict:
        """A row of the catalogue, with the status and the hint of this exception."""
        return Verdict(row.retryable, row.cause, self.status, self.hint, reason, row.unprocessed)


# Names among an exception's own attributes: where its class has none of them, the rest need not be asked.
_DELAYS = frozenset(DELAY_ATTRIBUTES)


def _own(case: Case) -> Verdict | None:
    """Is it redouble's own? Then there was a decision already."""
    if not case.kind.own:
        return None
    # For those who retry it all the same: when a circuit lets calls through, and that nothing was called.
    refused = isinstance(case.exc, (BulkheadFull, CircuitOpen))
    reason = f"redouble's own {class_name(case.exc)}"
    return Verdict(False, Cause.permanent, None, case.delay, reason, refused)


def _code(case: Case) -> Verdict | None:
    """Does it carry a code of its package, or an SQLSTATE?"""
    answer = None
    for read in case.kind.readers:
        answer = read(case.exc)
        if answer is not None:
            break
    else:
        # Of all packages; but what has the headers of an HTTP answer comes from no database.
        if not case.bare and case.headers is None:
            answer = sqlstate(case.exc) or grpc_enum(case.exc)
    if answer is None:
        return None
    row, reason, *waits = answer
    if waits and case.hint is None:
        case.hint = waits[0]
    if row.inside:  # not an answer yet: what to think of it if nothing better is found inside
        case.row, case.deep = row, True
        return None
    return case.verdict(row, reason)


def _status(case: Case) -> Verdict | None:
    """Does it report an HTTP status that is a failure?"""
    status = case.status
    if status is None or (status < 400 and status not in case.statuses):
        return None
    if case.headers is None and any((package, status) in MADE_UP_STATUSES for package, _ in case.kind.names):
        case.status = None
        return None
    if status == 429 and (not case.kind.blank or carries(case.exc, LIMITS)):
        limit = hopeless(case.exc)
        if limit is not None:
            return Verdict(False, Cause.rate_limited, status, None, f"HTTP 429, {limit}", True)
    if case.hint is None and case.ask is silent and case.statuses is RETRYABLE_STATUSES:
        # Nothing but the status tells, so each is judged only once.
        if status not in _judged:
            _judged[status] = http_verdict(status, silent, None, None, RETRYABLE_STATUSES)
        found = _judged[status]
    else:
        found = http_verdict(status, case.ask, case.hint, case.delay, case.statuses)
    if status in MAYBE_THROTTLED and not found.retryable:
        words = _throttled(case)
        if words is not None:
            return case.verdict(THROTTLED, f"HTTP {status}, which says {words}")
    headers = case.headers
    if status < 500 or not (headers is None or (type(headers) is dict and not headers)):
        return found
    return (_made_up(case, status) if found.retryable else None) or found


def _made_up(case: Case, status: int) -> Verdict | None:
    """Is the status a library's word for something else? Some have a 500 for whatever they caught."""
    ruled_out = doubt(case.exc) if status == 500 else untrusted(case.exc)
    if ruled_out is None or not lacks(case.exc, RESPONSE_ATTRIBUTES):
        return None
    words, row = ruled_out
    return case.verdict(row, f"{words} {class_name(case.exc)} with HTTP {status}")


_judged: dict[int, Verdict] = {}


def _throttled(case: Case) -> str | None:
    """The words by which an answer that may mean anything says that it was asked too often."""
    name = case.kind.word
    if name is not None and name[1].cause in (Cause.rate_limited, Cause.unavailable):
        return name[0]
    body = probe(case.exc, "body")
    found = [probe(case.exc, field) for field in _SAYING]
    found += [entry(part, field) for part in (body, entry(body, "error")) for field in _SAYING]
    found += arguments(case.exc)[:2]
    for part in found:
        said = (text(part) or "")[:_LONGEST_BODY]
        if AWS.get(said.rpartition("#")[2]) is ASKED_TO_WAIT:
            return said
        lower = said.lower()
        words = next((words for words in THROTTLING_TEXTS if words in lower), None)
        if words is not None:
            return f'"{words}"'
    return None


_SAYING = ("code", "error_code", "__type", "type", "error", "body", "message", "msg", "detail")
_LONGEST_BODY = 2000


def _class(case: Case) -> Verdict | None:
    """Is its class in the table?"""
    if case.row is None or case.row.inside:
        return None
    if case.kind.open and (case.kind.word is not None or real(cause(case.exc), Exception)):
        return None  # the row of a base class, which its own cause or name outranks
    return case.verdict(case.row, class_name(case.exc))


def _word(case: Case) -> Verdict | None:
    """Does it say itself that it may be retried?"""
    if case.delay is not None:
        return case.verdict(ASKED_TO_WAIT, f"{class_name(case.exc)} that asks to wait {case.delay:g} s")
    if case.bare or (case.row is not None and case.row.retryable):
        return None  # the latter is a wrapper that is retried anyway, but may hold better evidence
    for name in CLAIM_ATTRIBUTES:
        if probe(case.exc, name) is True:
            ruled_out = doubt(case.exc)
            if ruled_out is not None:
                words, row = ruled_out
                return case.verdict(row, f"{words} {class_name(case.exc)} with {name}=True")
            return case.verdict(SAID_SO, f"{class_name(case.exc)} with {name}=True")
    return None


def _system(case: Case) -> Verdict | None:
    """Does the operating system's class or number tell?"""
    exc, kind = case.exc, case.kind
    if case.row is not None:
        return None
    if not kind.system:
        return _foreign(case)
    number = whole(probe(exc, "errno"))
    name = errno.errorcode.get(number) if number is not None else None
    row = kind.builtin or WINERRORS.get(whole(probe(exc, "winerror")) or 0) or ERRNOS.get(number or 0)
    status = status_code(number) if row is None and kind.installed else None
    if status is not None:  # some clients raise an OSError(404, "Not Found")
        case.status = status
        return http_verdict(status, silent, None, None, case.statuses)
    if row is None:
        if kind.vague is not None and kind.veto is not None:
            word, row = kind.veto
            return case.verdict(row, f"{class_name(exc)}, whose name says {word}")
        case.row = kind.vague
        return _every_address(case) if number is None else None
    return case.verdict(row, class_name(exc) + (f" ({name or number})" if number is not None else ""))


def _foreign(case: Case) -> Verdict | None:
    """An errno on what is not an OSError: believed if it means the network, and nothing more."""
    if not case.kind.foreign or case.empty:
        return None
    number = whole(probe(case.exc, "errno"))
    row = NETWORK_ERRNOS.get(number or 0)
    if row is None:
        return None
    named = errno.errorcode.get(number or 0, number)
    return Verdict(True, row.cause, case.status, case.hint, f"{class_name(case.exc)} with errno {named}")


def _every_address(case: Case) -> Verdict | None:
    """asyncio's error for a host all of whose addresses failed: one that may work later is enough."""
    said = message(case.exc)
    if not said.startswith(ALL_ADDRESSES_FAILED):
        return None
    numbers = [part.partition("]")[0] for part in said.replace("[WinError ", "[Errno ").split("[Errno ")[1:]]
    rows = [
        ERRNOS.get(int(number), PERMANENT) for number in numbers if number.isdecimal() and len(number) < 6
    ]
    transient = [row for row in rows if row.retryable]
    if not transient:
        return None
    row = UNREACHED if all(row.unprocessed for row in transient) else transient[0]
    return case.verdict(row, f"{class_name(case.exc)}: every address failed, errno {', '.join(numbers)}")


# With what each looks at, for those who ask why.
QUESTIONS: tuple[tuple[str, Callable[[Case], Verdict | None]], ...] = (
    ("own error", _own),
    ("code", _code),
    ("HTTP status", _status),
    ("class", _class),
    ("own word", _word),
    ("operating system", _system),
)


def first_answer(case: Case) -> Verdict | None:
    """The verdict of the first question that has one."""
    if case.kind.mute and case.empty and case.bare:
        return None
    for _, question in QUESTIONS:
        found = question(case)
        if found is not None:
            return found
    return None


def http_verdict(
    status: int, ask: Ask, hint: float | None, own: float | None, statuses: frozenset[int]
) -> Verdict:
    """What a status means beside its headers; ``own`` is a delay that the exception itself hands on."""
    # A 403 needs more than a reset header, which rides on every answer.
    hinted = hint is not None if status != 403 else own is not None or shows_limit(ask)
    said = None if ask is silent else word(ask)
    if statuses is not RETRYABLE_STATUSES:
        retryable, cause, unprocessed = _outcome(status, hinted, said, statuses)
    else:
        evidence = status, hinted, said
        outcome = _outcomes.get(evidence)
        if outcome is None:
            outcome = _outcomes[evidence] = _outcome(status, hinted, said, statuses)
        retryable, cause, unprocessed = outcome
    reason = http_reason(status, ask, hint, said)
    if hint is None and cause is Cause.rate_limited:
        reason += " (rate limited)"
    return Verdict(retryable, cause, status, hint, reason, unprocessed)


# What a status means to the default classifier, by hint and should-retry header: 3,000 entries at most.
_outcomes: dict[tuple[int, bool, bool | None], tuple[bool, Cause, bool]] = {}


def _outcome(
    status: int, hinted: bool, said: bool | None, statuses: frozenset[int]
) -> tuple[bool, Cause, bool]:
    retryable = said
    if retryable is None:
        as_500 = status >= 500 and status not in STATUS_CAUSES and 500 in statuses
        retryable = status in statuses or as_500 or (hinted and status in RETRYABLE_WHEN_HINTED)
    unprocessed = status in UNPROCESSED_STATUSES or (hinted and status in UNPROCESSED_WHEN_HINTED)
    cause = Cause.rate_limited if status == 403 and hinted else _status_cause(status)
    if retryable and cause is Cause.permanent:
        cause = Cause.unavailable  # whoever knows better says that it passes
    return retryable, cause, unprocessed


def _status_cause(status: int) -> Cause:
    found = STATUS_CAUSES.get(status)
    if found is not None:
        return found
    return Cause.unknown if status < 400 else Cause.permanent if status < 500 else Cause.server_error


def http_reason(status: int, ask: Ask, hint: float | None, said: bool | None) -> str:
    """The evidence in words: the status, the delay, and the server's own verdict."""
    reason = f"HTTP {status}"
    if hint is not None:
        given = "Retry-After:" if ask("retry-after") is not None else "a delay of"
        reason += f" with {given} {hint:g}"
    if said is not None:
        reason += ", which the server says to retry" if said else ", which the server says not to retry"
    return reason
