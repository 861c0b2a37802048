"""The questions about one exception or one HTTP status: the evidence, in the order in which it counts.

Each question is a function that gives a verdict, or None to pass on to the next; ``QUESTIONS`` is the order.
What is known is in ``_catalogue``, codes are read in ``_codes``, strangers' objects in ``_shapes``.
"""

from __future__ import annotations

import errno

from ._catalogue import (
    ASKED_TO_WAIT,
    BUILTINS,
    CLAIM_ATTRIBUTES,
    CLASSES,
    ERRNOS,
    LOST_OR_WRAPPER,
    MADE_UP_STATUSES,
    RETRYABLE_WHEN_HINTED,
    SAID_SO,
    STATUS_CAUSES,
    UNPROCESSED_STATUSES,
    UNPROCESSED_WHEN_HINTED,
    WINERRORS,
    WRAPPING_PACKAGES,
    Cause,
    Row,
)
from ._codes import coded
from ._hints import header, headers_hint, limited, should_retry
from ._record import Record, assign
from ._shapes import class_name, delay, error_exchange, lineage, probe, real, whole
from .errors import RedoubleError


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
        assign(self, "retryable", retryable)
        assign(self, "cause", cause)
        assign(self, "status", status)
        assign(self, "retry_after", retry_after)
        assign(self, "reason", reason)
        assign(self, "unprocessed", unprocessed)


NOTHING = Verdict(False, reason="nothing is known about it")


class Case:
    """What the questions share about one exception."""

    __slots__ = ("deep", "delay", "exc", "headers", "hint", "names", "row", "status", "statuses")

    def __init__(self, exc: BaseException, statuses: frozenset[int], now: float | None) -> None:
        self.exc = exc
        self.statuses = statuses
        self.names = lineage(type(exc))
        self.row = table_row(self.names)
        self.deep = wraps(self.names, self.row)
        self.status, self.headers = error_exchange(exc)
        self.delay = delay(exc, now)
        hint = None if self.headers is None else headers_hint(self.headers, status=self.status, now=now)
        self.hint = self.delay if hint is None else hint

    def verdict(self, row: Row, reason: str) -> Verdict:
        """A row of the catalogue, with the status and the hint of this exception."""
        return Verdict(row.retryable, row.cause, self.status, self.hint, reason, row.unprocessed)


def table_row(names: list[tuple[str, str]]) -> Row | None:
    """The row of a class in the table, or that of its nearest base."""
    for package, name in names:
        row = CLASSES.get(f"{package}.{name}")
        if row is not None:
            return row
    return None


def wraps(names: list[tuple[str, str]], row: Row | None) -> bool:
    """Whether a class is known to wrap others, so that any place where they may hide is searched."""
    return row.inside if row is not None else any(package in WRAPPING_PACKAGES for package, _ in names)


def _own(case: Case) -> Verdict | None:
    """Is it redouble's own? Then there was a decision already."""
    if not real(case.exc, RedoubleError):
        return None
    return Verdict(False, Cause.permanent, reason=f"redouble's own {class_name(case.exc)}")


def _code(case: Case) -> Verdict | None:
    """Does it carry a code of its package?"""
    answer = coded(case.exc, case.names)
    return None if answer is None else case.verdict(*answer)


def _status(case: Case) -> Verdict | None:
    """Does it report an HTTP status that is a failure?"""
    if case.status is None or (case.status < 400 and case.status not in case.statuses):
        return None
    if case.headers is None and any((package, case.status) in MADE_UP_STATUSES for package, _ in case.names):
        case.status = None
        return None
    return http_verdict(case.status, case.headers, case.hint, case.delay, case.statuses)


def _class(case: Case) -> Verdict | None:
    """Is its class in the table?"""
    if case.row is None or case.row.inside:
        return None
    return case.verdict(case.row, class_name(case.exc))


def _word(case: Case) -> Verdict | None:
    """Does it say itself that it may be retried?"""
    if case.delay is not None:
        return case.verdict(ASKED_TO_WAIT, f"{class_name(case.exc)} that asks to wait {case.delay:g} s")
    for name in CLAIM_ATTRIBUTES:
        if probe(case.exc, name) is True:
            return case.verdict(SAID_SO, f"{class_name(case.exc)} with {name}=True")
    return None


def _system(case: Case) -> Verdict | None:
    """Does the operating system's class or number tell?"""
    exc = case.exc
    if case.row is not None or not real(exc, OSError):
        return None
    number = whole(probe(exc, "errno"))
    name = errno.errorcode.get(number) if number is not None else None
    row = next((row for kind, row in BUILTINS if real(exc, kind)), None)
    if row is None:
        row = WINERRORS.get(whole(probe(exc, "winerror")) or 0) or ERRNOS.get(number or 0)
    if row is None and real(exc, ConnectionError):
        case.row = LOST_OR_WRAPPER
    if row is None:
        return None
    return case.verdict(row, class_name(exc) + (f" ({name or number})" if number is not None else ""))


QUESTIONS = (_own, _code, _status, _class, _word, _system)


def http_verdict(
    status: int, headers: object, hint: float | None, own: float | None, statuses: frozenset[int]
) -> Verdict:
    """What a status means beside its headers; ``own`` is a delay that the exception itself hands on."""
    # A 403 needs more than a reset header, which rides on every answer.
    hinted = hint is not None if status != 403 else own is not None or limited(headers)
    word = should_retry(headers)
    retryable = word
    if retryable is None:
        as_500 = status >= 500 and status not in STATUS_CAUSES and 500 in statuses
        retryable = status in statuses or as_500 or (hinted and status in RETRYABLE_WHEN_HINTED)
    unprocessed = status in UNPROCESSED_STATUSES or (hinted and status in UNPROCESSED_WHEN_HINTED)
    cause = Cause.rate_limited if status == 403 and hinted else _status_cause(status)
    if retryable and cause is Cause.permanent:
        cause = Cause.unavailable  # whoever knows better says that it passes
    reason = http_reason(status, headers, hint, word)
    if cause is Cause.rate_limited and hint is None:
        reason += " (rate limited)"
    return Verdict(retryable, cause, status, hint, reason, unprocessed)


def _status_cause(status: int) -> Cause:
    if status < 400:
        return Cause.unknown
    return STATUS_CAUSES.get(status, Cause.permanent if status < 500 else Cause.server_error)


def http_reason(status: int, headers: object, hint: float | None, word: bool | None) -> str:
    """The evidence in words: the status, the delay, and the server's own verdict."""
    reason = f"HTTP {status}"
    if hint is not None:
        given = "Retry-After:" if header(headers, "Retry-After") is not None else "a delay of"
        reason += f" with {given} {hint:g}"
    if word is not None:
        reason += ", which the server says to retry" if word else ", which the server says not to retry"
    return reason
