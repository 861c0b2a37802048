"""What happened, as records: one class for each kind of happening.

Frozen; they hold text and numbers, never the exception itself. Who is told of them, and how, is in
``events``.
"""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType

from ._record import Record, assign

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Literal

    from ._letters import DeadLetter
    from .classify import Cause

# What the user adds to an event, while nothing is added.
NOTHING: Mapping[str, object] = MappingProxyType({})


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
    policy has no deadline and no listener that hears of successes; ``reason`` why the call was given up on;
    ``correlation`` what the function set with `correlate` said when the event was told.

    >>> Retrying("fetch", attempt=1, delay=0.5, elapsed=0.0, error_type="TimeoutError").delay
    0.5
    """

    name: str
    attempt: int
    delay: float | None
    elapsed: float
    cause: Cause | None
    status: int | None
    error_type: str | None
    error_message: str | None
    reason: Reason | None
    correlation: Mapping[str, object]

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
        correlation: Mapping[str, object] = NOTHING,
    ) -> None:
        assign(
            self,
            "__dict__",
            {
                "name": name,
                "attempt": attempt,
                "delay": delay,
                "elapsed": elapsed,
                "cause": cause,
                "status": status,
                "error_type": error_type,
                "error_message": error_message,
                "reason": reason,
                "correlation": correlation if correlation is NOTHING else MappingProxyType(dict(correlation)),
            },
        )


# The fields of every event, in the order in which it reads; subclasses add their slots.
Event._fields = tuple(Event.__annotations__)


def happening(kind: type[Event], fields: dict[str, Any]) -> Event:
    """An event of all its fields, made in half the time: while somebody listens, every retry makes one."""
    event = kind.__new__(kind)
    assign(event, "__dict__", fields)
    return event


class Succeeded(Event):
    """The first attempt succeeded. Told only to listeners that ask for it: see `with_successes`."""

    __slots__ = ()


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
