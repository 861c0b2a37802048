"""The fields of a policy, for type checkers and editors; not imported at run time.

Written by ``python tests/tools/write_policy_fields.py`` from the table in `redouble.policy`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

from .._base.record import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from logging import Logger, LoggerAdapter
    from random import Random
    from typing import Any, Literal

    from ..backoff import Backoff
    from ..breaker import Breaker
    from ..budget import Budget
    from ..bulkhead import Bulkhead
    from ..classify import Cause, Classifier
    from ..dead_letters import DeadLetters
    from ..events import Event
    from ..policy import Recover, Retryable, Rule, Seconds
    from ..throttle import AdaptiveThrottle


class PolicyFields(TypedDict, total=False):
    """Keywords of `Policy`, `retry` and `retrying`, with the types that they accept."""

    attempts: float | None
    """Calls in total, the first included; ``None`` for as many as ``deadline`` or ``give_up_after``
    allow, ``math.inf`` for ever.
    """
    on: Retryable | None
    """Failures to retry: exception types, a `Classifier`, or a function of the error. ``None`` for those
    known to be transient.
    """
    until: Callable[[Any], object] | None
    """Function of the result; a result for which it returns false is retried."""
    idempotent: bool | Literal["by_method"]
    """Whether a call that may have taken effect may be repeated. ``'by_method'`` decides by the HTTP
    method and the ``Idempotency-Key`` header.
    """
    rules: Mapping[Cause | int | type[Exception] | str, Rule]
    """Other settings by cause, status or exception type: see `Rule`."""
    nested: Literal["stop", "independent", "defer"]
    """Errors that an inner call has retried: ``'stop'`` does not retry them, ``'independent'`` does.
    ``'defer'``: one attempt while an enclosing call retries.
    """
    enabled: bool | Callable[[], object]
    """``False``, or a function that returns false, switches retries off."""
    base: Seconds
    """The size of the first wait."""
    cap: Seconds
    """The longest wait of the backoff; ``inf`` for no limit."""
    floor: Seconds
    """The shortest wait of the backoff, at most ``cap``."""
    backoff: Backoff
    """Delay function: one of `redouble.backoff`, or your own."""
    deadline: Seconds | None
    """Hard limit for the whole call, waits and nested calls included: `DeadlineExceeded` is raised."""
    give_up_after: Seconds | None
    """Soft limit: no attempt starts that long after the call began. A running one is not cut off, and
    its own error is raised.
    """
    timeout: Seconds | None
    """Limit for each attempt. Async attempts are cut off; sync ones must pass
    ``current_attempt().timeout`` to their client.
    """
    max_retry_after: Seconds
    """The longest wait that a server may ask for; the call fails at once if it asks for more."""
    budget: Budget | Callable[..., Budget | None] | None
    """Limits the retries of all calls together."""
    priority: int
    """Passed to the budget, which refuses a retry below 0 while less than half of it is left."""
    breaker: Breaker | Callable[..., Breaker | None] | None
    """Rejects calls to a dependency that keeps failing."""
    throttle: AdaptiveThrottle | Callable[..., AdaptiveThrottle | None] | None
    """Limits the rate of attempts."""
    bulkhead: Bulkhead | Callable[..., Bulkhead | None] | None
    """Limits the calls in flight."""
    recover: Recover | None
    """Function of the error, or of the error and the `RetriedCall`, that runs before each retry:
    reconnect, roll back, change an argument.
    """
    fallback: object
    """Value, or function of the last error, to return instead of raising a retryable error. A function
    may raise another error.
    """
    dead_letters: DeadLetters | None
    """Stores calls that failed for good though their error was retryable."""
    payload: Callable[..., object] | None
    """Function of the call's arguments; a dead letter stores its result."""
    listeners: Iterable[Callable[[Event], object]]
    """Functions that receive each event of the policy."""
    logger: Logger | LoggerAdapter[Any] | str | Literal[False] | None
    """Logger, or the name of one, for the events of the policy; ``None`` for ``redouble``, ``False`` for
    none.
    """
    name: str | None
    """Name in notes, logs and events; the function's qualified name by default."""
    idempotency_key: bool | Callable[..., object]
    """``True``, or a function of the call's arguments: one key for all attempts of a call."""
    rng: Random | None
    """A ``random.Random`` for reproducible waits."""
    clock: Callable[[], float] | None
    """Function that returns monotonic seconds."""
    sleep: Callable[[float], Any] | None
    """Function that waits; it may be async for async calls."""


class StoredFields(Record):
    """Attributes of a `Policy`, with the types that they have."""

    __slots__ = ()
    attempts: float | None
    on: tuple[type[Exception], ...] | Classifier | Callable[[Exception], object] | None
    until: Callable[[Any], object] | None
    idempotent: bool | Literal["by_method"]
    rules: Mapping[Cause | int | type[Exception], Rule]
    nested: Literal["stop", "independent", "defer"]
    enabled: bool | Callable[[], object]
    base: float
    cap: float
    floor: float
    backoff: Backoff
    deadline: float | None
    give_up_after: float | None
    timeout: float | None
    max_retry_after: float
    budget: Budget | Callable[..., Budget | None] | None
    priority: int
    breaker: Breaker | Callable[..., Breaker | None] | None
    throttle: AdaptiveThrottle | Callable[..., AdaptiveThrottle | None] | None
    bulkhead: Bulkhead | Callable[..., Bulkhead | None] | None
    recover: Recover | None
    fallback: object
    dead_letters: DeadLetters | None
    payload: Callable[..., object] | None
    listeners: tuple[Callable[[Event], object], ...]
    logger: Logger | LoggerAdapter[Any] | str | Literal[False] | None
    name: str | None
    idempotency_key: bool | Callable[..., object]
    rng: Random | None
    clock: Callable[[], float] | None
    sleep: Callable[[float], Any] | None
