"""What happened, as records; told to listeners and to ``logging``.

Every call that fails at least once ends with exactly one of `Recovered`, `GaveUp` or `Expired`, and has
one `Retrying` before each further attempt. A call that was not let through has one `Refused` and nothing
else. What becomes of a guard (`CircuitChanged`, `StoreChanged`) is told as well. Nothing is built while
nobody listens.
"""

from __future__ import annotations

import sys
from enum import StrEnum

from ._record import Record, assign
from ._trouble import report
from .backoff import shown_name

__all__ = [
    "CircuitChanged",
    "DeadLettered",
    "Discarded",
    "Event",
    "Expired",
    "GaveUp",
    "Hedged",
    "Reason",
    "Recovered",
    "Refused",
    "Retrying",
    "StoreChanged",
    "correlate",
]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, Literal

    from ._letters import DeadLetter
    from .classify import Cause

    Listener = Callable[["Event"], object]


class Reason(StrEnum):
    """Why a call was given up on; few and fixed, so that they make good metric labels."""

    disabled = "disabled"
    not_retryable = "not_retryable"
    not_idempotent = "not_idempotent"
    attempts = "attempts"
    patience = "patience"
    deadline = "deadline"
    nested = "nested"
    circuit = "circuit"
    budget = "budget"
    bulkhead = "bulkhead"
    callback = "callback"


class Event(Record):
    """One thing that happened to one call. Frozen; holds text and numbers, never the exception itself.

    ``name`` is the policy's name or the function's; ``attempt`` the number, from 1, of the attempt
    that failed (of the one that succeeded, in `Recovered`; 0 where there was none); ``delay`` the seconds
    of the coming wait; ``elapsed`` the seconds since the call began, or since its first failure where the
    policy has no deadline; ``reason`` why the call was given up on.

    >>> Retrying("fetch", attempt=1, delay=0.5, elapsed=0.0, error_type="TimeoutError").delay
    0.5
    """

    __slots__ = (  # noqa: RUF023 - in the order in which it reads
        "name", "attempt", "delay", "elapsed", "cause", "status", "error_type", "error_message", "reason",
    )  # fmt: skip
    name: str
    attempt: int
    delay: float | None
    elapsed: float
    cause: Cause | None
    status: int | None
    error_type: str | None
    error_message: str | None
    reason: Reason | None

    def __init__(
        self,
        name: str,
        *,
        attempt: int,
        elapsed: float,
        delay: float | None = None,
        cause: Cause | None = None,
        status: int | None = None,
        error_type: str | None = None,
        error_message: str | None = None,
        reason: Reason | None = None,
    ) -> None:
        assign(self, "name", name)
        assign(self, "attempt", attempt)
        assign(self, "delay", delay)
        assign(self, "elapsed", elapsed)
        assign(self, "cause", cause)
        assign(self, "status", status)
        assign(self, "error_type", error_type)
        assign(self, "error_message", error_message)
        assign(self, "reason", reason)


class Retrying(Event):
    """An attempt failed, and there will be another after ``delay`` seconds."""

    __slots__ = ()


class Recovered(Event):
    """An attempt succeeded after others had failed."""

    __slots__ = ()


class GaveUp(Event):
    """An attempt failed and there will be no other; ``reason`` says why. The last error comes out."""

    __slots__ = ()


class Expired(Event):
    """As `GaveUp`, because of the deadline: `DeadlineExceeded` comes out."""

    __slots__ = ()


class Refused(Event):
    """A guard did not let the call through: `CircuitOpen` or `BulkheadFull` comes out; nothing was called."""

    __slots__ = ()


class Hedged(Event):
    """An attempt was slow, so another was started beside it; ``attempt`` is the number of the new one."""

    __slots__ = ()


class CircuitChanged(Event):
    """A circuit breaker has gone from one state to another. ``name`` is the breaker's.

    ``delay`` is how long it stays open; ``error_message`` the failure that opened it, as text.
    """

    __slots__ = ("before", "after")  # noqa: RUF023 - in the order in which it reads
    before: str
    after: str

    def __init__(
        self,
        name: str,
        *,
        before: str,
        after: str,
        delay: float | None = None,
        error_message: str | None = None,
    ) -> None:
        super().__init__(name, attempt=0, elapsed=0.0, delay=delay, error_message=error_message)
        assign(self, "before", before)
        assign(self, "after", after)


class StoreChanged(Event):
    """The store behind a shared guard is away, or back. ``name`` is the guard's.

    While it is away the guard's local twin answers; ``error_type`` and ``error_message`` say what the
    store failed with.
    """

    __slots__ = ("available",)
    available: bool

    def __init__(
        self, name: str, *, available: bool, error_type: str | None = None, error_message: str | None = None
    ) -> None:
        super().__init__(name, attempt=0, elapsed=0.0, error_type=error_type, error_message=error_message)
        assign(self, "available", available)


class DeadLettered(Event):
    """A call that was given up on was kept. ``name`` is the function's, ``letter`` the id of the record."""

    __slots__ = ("queue", "letter")  # noqa: RUF023 - in the order in which it reads
    queue: str
    letter: str

    def __init__(self, letter: DeadLetter) -> None:
        super().__init__(
            letter.function or letter.queue,
            attempt=letter.attempts,
            elapsed=0.0,
            error_type=letter.error_type,
            error_message=letter.error_message,
        )
        assign(self, "queue", letter.queue)
        assign(self, "letter", letter.id)


class Discarded(Event):
    """Dead letters of a queue were thrown away. ``name`` is the queue's too.

    ``why`` is ``"purged"`` (too old), ``"limit"`` (too many, or too large) or ``"discarded"`` (on request).
    """

    __slots__ = ("queue", "count", "why")  # noqa: RUF023 - in the order in which it reads
    queue: str
    count: int
    why: str

    def __init__(self, queue: str, *, count: int, why: Literal["purged", "limit", "discarded"]) -> None:
        super().__init__(queue, attempt=0, elapsed=0.0)
        assign(self, "queue", queue)
        assign(self, "count", count)
        assign(self, "why", why)


# Constant texts, so that logs can be grouped by them; what varies is in the record's extra fields.
_MESSAGES: dict[type[Event], tuple[str, str]] = {
    Retrying: ("WARNING", "retrying after a failed attempt"),
    Recovered: ("INFO", "recovered after retries"),
    GaveUp: ("ERROR", "gave up after retries"),
    Expired: ("ERROR", "gave up because of the deadline"),
    Refused: ("WARNING", "not let through by a guard"),
    Hedged: ("INFO", "started another attempt beside a slow one"),
    CircuitChanged: ("WARNING", "circuit breaker changed"),
    StoreChanged: ("WARNING", "store of a shared guard changed"),
    DeadLettered: ("ERROR", "kept as a dead letter"),
    Discarded: ("WARNING", "dead letters discarded"),
}


# What the user adds to what is kept and told, for the whole process.
_correlators: list[Callable[[], Mapping[str, object]]] = []


def correlate(hook: Callable[[], Mapping[str, object]] | None) -> Callable[[], Mapping[str, object]] | None:
    """Sets the function that says what belongs together: ``trace_id``, ``correlation_id``, ``service``.

    It is asked when there is something to keep or to tell, in the thread or task of the call; ``None`` takes
    it away. May be used as a decorator. A dead letter keeps ``correlation_id``, or ``trace_id``.

    >>> @correlate
    ... def trace():
    ...     return {"trace_id": "4bf92f35"}
    >>> correlated(), correlate(None)
    ({'trace_id': '4bf92f35'}, None)
    """
    _correlators[:] = [] if hook is None else [hook]
    return hook


def correlated() -> dict[str, Any]:
    """What the user's function says now; nothing, if it fails."""
    for hook in _correlators:
        try:
            return dict(hook())
        except Exception as error:  # noqa: BLE001 - the user's code; what is told is told without it
            report(hook, f"correlate {shown_name(hook)} failed", error)
    return {}


def wanted(listeners: tuple[Listener, ...]) -> bool:
    """Whether anybody would hear of an event: otherwise it need not be made."""
    return bool(listeners) or _logger() is not None


def emit(event: Event, listeners: tuple[Listener, ...], *, logged: bool) -> None:
    """Tells every listener in order, then ``logging``; what they raise is reported once and swallowed."""
    for listener in listeners:
        try:
            listener(event)
        except Exception as error:  # noqa: BLE001 - a listener's failure is not the call's
            report(listener, f"listener {shown_name(listener)} failed", error)
    logger = _logger() if logged else None
    if logger is not None:
        try:
            _log(logger, event)
        except Exception:  # noqa: BLE001, S110 - a handler's full disk is not the call's failure
            pass


def _log(logger: Any, event: Event) -> None:
    level_name, message = _MESSAGES[type(event)]
    level = getattr(sys.modules["logging"], level_name)
    if logger.isEnabledFor(level):
        logger.log(
            level,
            message,
            extra={
                "policy": event.name,
                "attempt": event.attempt,
                "delay_ms": None if event.delay is None else round(event.delay * 1000),
                "elapsed_ms": round(event.elapsed * 1000),
                "error_type": event.error_type,
                "error_message": event.error_message,
                "cause": None if event.cause is None else str(event.cause),
                "status": event.status,
                "reason": None if event.reason is None else str(event.reason),
                **{field: getattr(event, field) for field in event._fields[len(Event._fields) :]},
            },
        )


# The logger, once there is one: asking logging for it takes a lock.
_loggers: list[Any] = []


def _logger() -> Any:
    """The ``redouble`` logger, if it leads to a handler.

    In a process that never imported logging, or set up no handler, there is nobody to write to:
    the import, and the record, are saved.
    """
    if not _loggers:
        logging = sys.modules.get("logging")
        if logging is None:
            return None
        _loggers.append(logging.getLogger("redouble"))
    logger = _loggers[0]
    return logger if logger.hasHandlers() else None
