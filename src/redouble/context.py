"""The context of a running attempt, which nested calls read and headers carry to other services.

One context variable holds the innermost context. It is set on a first attempt only if the policy needs it (a
limit in time, an idempotency key), and on every retry. A context is a plain list, which costs a fifth of an
object: every success under a deadline makes one. `current_attempt` makes the `Attempt` that users see.

Tasks, threads and callbacks that were started during a call keep its context, and may outlive the call. So
each call marks its context when it ends, and `here` returns the innermost context that still runs. A context
holds its own limits and refers to the outer one, which may end first.
"""

from __future__ import annotations

import time
from contextvars import ContextVar, copy_context

from ._base.callables import SYNC, flavour, look_like, name_of, sync_result
from ._base.checks import INF
from ._base.clock import clock_of, fakes, real_now
from ._base.headers import header
from ._base.text import mask_line, one_line

__all__ = [
    "Attempt",
    "carried",
    "current_attempt",
    "incoming",
    "outgoing_headers",
]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextvars import Token
    from typing import Any, ParamSpec, TypeVar

    from .policy import Policy

    Clock = Callable[[], float]
    AttemptContext = list[Any]

    P = ParamSpec("P")
    R = TypeVar("R")

# The indexes of a context, which is a list.
POLICY = 0  # None for a scope, False for an incoming request: neither is an attempt
CLOCK = 1
STARTED = 2  # by that clock; None if nothing had to read it
ENDS = 3  # its own deadline, by that clock
NUMBER = 4  # of the attempt, from 1; 0 if the time was up before the first
RETRIED = 5  # the same; for an incoming request, that of the client
KEY = 6
PREVIOUS = 7  # the last failure: its type and its message
OUTER = 8  # the context around this one, when this one was made
RUNNING = 9  # whether the call still runs; in a retry, the context of the first attempt, which has it

current: ContextVar[AttemptContext | None] = ContextVar("redouble attempt", default=None)

# Retries switched off by redouble.testing: for a context, or for the whole process.
switched_off: ContextVar[object] = ContextVar("redouble switched off", default=None)
switched_off_everywhere: dict[object, object] = {}
# Those of contexts that are still active: a task may outlive the block that it was started in.
switches_off: dict[object, object] = {}

# The limits of `testing.capped`: of a context, of the process, and all of them (empty: nothing to check).
cap_here: ContextVar[int | None] = ContextVar("redouble cap", default=None)
caps_everywhere: dict[object, int] = {}
caps: dict[object, int] = {}

# The replay of a dead letter that was started here: `replay_here` returns it while it runs.
replaying: ContextVar[Any] = ContextVar("redouble replay", default=None)

# When to stop storing a dead letter, by the monotonic clock, and the call that failed.
storing: ContextVar[tuple[float, Any] | None] = ContextVar("redouble storing", default=None)
BEYOND = 1.0  # seconds that storing may take after a call's deadline

# The seconds that a call has left, for guards that may have to wait.
time_given: ContextVar[float | None] = ContextVar("redouble time for guards", default=None)

IDEMPOTENCY_KEY, RETRY_ATTEMPT, REQUEST_TIMEOUT = "Idempotency-Key", "X-Retry-Attempt", "X-Request-Timeout-Ms"


class Attempt:
    """The running attempt of a call, returned by `current_attempt`.

    >>> from redouble import retry, current_attempt
    >>> @retry(deadline=5.0)
    ... def fetch():
    ...     attempt = current_attempt()
    ...     return attempt.number, attempt.is_last, attempt.remaining <= 5.0
    >>> fetch()
    (1, False, True)
    """

    number: int
    """From 1; the first call counts."""
    _failure: tuple[str, str] | None = None

    def __init__(self, policy: Policy, context: AttemptContext) -> None:
        self._policy = policy
        # None in the first run of a block whose policy asks for nothing.
        self._context: AttemptContext | None = context
        self.number = context[NUMBER]
        self._failure = context[PREVIOUS]

    @property
    def previous(self) -> str | None:
        """The last attempt's failure as text, without secrets; ``None`` in the first attempt."""
        if self._failure is None:
            return None
        kind, message = self._failure
        return one_line(kind, mask_line(message))

    @property
    def is_last(self) -> bool:
        """Whether the policy, or `testing.capped`, allows no attempt after this one."""
        limits = (self._policy.attempts, capped_at())
        return any(limit is not None and self.number >= limit for limit in limits)

    @property
    def remaining(self) -> float | None:
        """Seconds until the deadline, never below 0; ``None`` without one."""
        context = self._context or here()
        return None if context is None else time_left(context)

    @property
    def timeout(self) -> float | None:
        """Seconds this attempt may take: the policy's ``timeout``, or ``remaining`` if that is less."""
        return shorter(self._policy.timeout, self.remaining)

    @property
    def idempotency_key(self) -> str | None:
        """One key for all attempts of this call; ``None`` unless its policy has ``idempotency_key``."""
        if self._context is None or self._policy.idempotency_key is False:
            return None
        key: str = self._context[KEY].value()
        return key

    def __repr__(self) -> str:
        most = self._policy.attempts
        return f"<attempt {self.number} of {'any number' if most in (None, INF) else most}>"


class Key:
    """The idempotency key of one logical call, made on first use."""

    __slots__ = ("_made", "_make", "_prefix")

    def __init__(self, policy: Policy, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        make: Any = policy.idempotency_key
        self._prefix = f"{policy.name or name}:"
        self._make = _uuid if make is True else lambda: sync_result("idempotency_key", make(*args, **kwargs))
        self._made: dict[str, str] = {}
        replay = replay_here()
        # A key that is computed from arguments is computed again; a random one only the replay knows.
        if replay is not None and make is True:
            replayed = replay.key_for(_token(self._prefix), args, kwargs)
            if replayed is not None:
                self._made["key"] = replayed

    def value(self) -> str:
        # setdefault is atomic: threads that ask at once get the same key.
        return self._made.get("key") or self._made.setdefault("key", _token(f"{self._prefix}{self._make()}"))


def first_attempt(policy: Policy, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> AttemptContext:
    """Return the context of a first attempt. Read the clock if the call has a limit in time."""
    outer = here()
    # Without a key of its own, a call sends that of the enclosing call.
    running = None if policy.idempotency_key else running_in(outer)
    key = Key(policy, name, args, kwargs) if policy.idempotency_key else running and running[KEY]
    clock = time.monotonic if policy.clock is None and not fakes else clock_of(policy.clock)
    own, left = policy.deadline, None if outer is None else time_left(outer)
    if own is None and left is None and policy.give_up_after is None:
        return [policy, clock, None, None, 1, 1, key, None, outer, True]
    started = clock()
    ends = None if own is None else started + own
    return [policy, clock, started, ends, 0 if left == 0.0 else 1, 1, key, None, outer, True]


def boundary(kind: bool | None, clock: Clock, seconds: float | None, retried: int) -> AttemptContext:
    """Return a context that is not an attempt: a scope, or an incoming request with a deadline."""
    ends = None if seconds is None else clock() + seconds
    return [kind, clock, None, ends, 0, retried, None, None, here(), True]


def living(context: AttemptContext | None) -> AttemptContext | None:
    """Return the innermost of a context and its outer ones whose call has not ended."""
    while context is not None:
        running = context[RUNNING]
        if running is True or (running is not False and running[RUNNING]):
            return context
        context = context[OUTER]
    return None


def here() -> AttemptContext | None:
    """Return the innermost context of the running code whose call has not ended."""
    return living(current.get())


def _with_outer(context: AttemptContext | None) -> Iterator[AttemptContext]:
    """Yield a context and its outer ones that still run, from the inside out."""
    while context is not None:
        yield context
        context = living(context[OUTER])


def time_left(context: AttemptContext) -> float | None:
    """Return the seconds until the first deadline of a context, never below 0; ``None`` without one."""
    ends = context[ENDS]
    if context[OUTER] is None:  # the usual case, and every async attempt calls this
        return None if ends is None else max(0.0, ends - context[CLOCK]())
    ends = earliest_end(context, None, 0.0)
    return None if ends is None else max(0.0, ends)


def time_limit_of(attempt: AttemptContext) -> float | None:
    """Return the seconds after which an async attempt is cancelled: its timeout, or less if less is left."""
    return shorter(attempt[POLICY].timeout, time_left(attempt))


def earliest_end(context: AttemptContext | None, clock: Clock | None, now: float) -> float | None:
    """Return the first deadline of a context, by a clock that shows ``now``; ``None`` without one."""
    first: float | None = None
    for each in _with_outer(context):
        if each[ENDS] is not None:
            # The clocks of two calls may count from different points. A sum would be off by the last bit.
            ends: float = each[ENDS] if each[CLOCK] is clock else now + (each[ENDS] - each[CLOCK]())
            first = shorter(first, ends)
    return first


def retried_in(context: AttemptContext | None) -> int:
    """Return the highest attempt number of a context: above 1, one of its calls is retrying."""
    return max((each[RETRIED] for each in _with_outer(context)), default=1)


def storing_until(patience: float) -> float:
    """Return when to stop storing a dead letter here, by the monotonic clock.

    ``patience`` is how many seconds it may take if no call sets a limit.
    """
    limit = storing.get()
    if limit is not None:
        return limit[0]
    around = here()
    left = None if around is None else time_left(around)
    return real_now() + (patience if left is None else min(left + BEYOND, patience))


def in_time(left: float | None, method: Callable[..., Any], *args: Any) -> Any:
    """Call a method of a guard, with ``left`` as the time that it may take."""
    if left is None:
        return method(*args)
    outer = time_given.get()
    try:
        time_given.set(left)
        return method(*args)
    finally:
        time_given.set(outer)


def running_in(context: AttemptContext | None) -> AttemptContext | None:
    """Return the context of the innermost attempt: inside a scope, that of the enclosing attempt."""
    for each in _with_outer(context):
        if each[POLICY] is not None:
            return each if each[POLICY] else None
    return None


def replay_here() -> Any:
    """Return the replay of a dead letter that is running here; ``None`` without one."""
    replay = replaying.get()
    return None if replay is None or replay.over else replay


def leave(token: Token[Any]) -> None:
    """Reset a context variable; do nothing in another context than that of the token, as in a fixture."""
    try:
        token.var.reset(token)
    except ValueError:
        pass


def disabled_here() -> bool:
    """Return whether ``redouble.testing`` has switched retries off, here or everywhere."""
    marked = switched_off.get()
    return bool(switched_off_everywhere) or any(mark is marked for mark in tuple(switches_off.values()))


def capped_at() -> int | None:
    """Return the most attempts that ``redouble.testing`` allows, here or everywhere; ``None`` without one."""
    if not caps:
        return None
    here, limits = cap_here.get(), list(caps_everywhere.values())
    return min(limits if here is None else [here, *limits], default=None)


def current_attempt() -> Attempt | None:
    """Return the running attempt of the innermost decorated call; ``None`` outside of one.

    A first attempt is visible only if its policy has a ``deadline``, a ``give_up_after``, a ``timeout`` or an
    ``idempotency_key``; retries always are.

    >>> current_attempt() is None
    True
    """
    context = running_in(here())
    return None if context is None else Attempt(context[POLICY], context)


def carried(function: Callable[P, R], /) -> Callable[P, R]:
    """Return a function that runs in the context in which it was made, in any thread.

    Threads of a ``ThreadPoolExecutor`` do not copy the context of their caller. A carried function has it:
    the deadline, the idempotency key and `nested` apply there, too, until the enclosing call ends. All
    context variables are carried. The function may be called from many threads at once.

    >>> from concurrent.futures import ThreadPoolExecutor
    >>> from redouble import retry
    >>> @retry(name="orders", idempotency_key=lambda: 17)
    ... def place():
    ...     with ThreadPoolExecutor() as pool:
    ...         return pool.submit(carried(outgoing_headers)).result()
    >>> place()["Idempotency-Key"]
    'orders:17'
    """
    if flavour(function) != SYNC:
        raise TypeError(
            f"cannot carry a context to {name_of(function)}: it runs later, in the context of the code "
            "that awaits or iterates it; start a task instead, which copies this context"
        )
    context = copy_context()

    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        # A copy for each: a context can be entered once at a time.
        return context.copy().run(function, *args, **kwargs)

    given: Callable[P, R] = look_like(run, function)
    return given


def outgoing_headers() -> dict[str, str]:
    """Return the headers that carry the deadline, the attempt and the idempotency key to a service.

    ``Idempotency-Key`` if the call's policy has one, ``X-Retry-Attempt`` (the number of this attempt),
    ``X-Request-Timeout-Ms`` (the time left). Empty outside of a call.

    >>> outgoing_headers()
    {}
    """
    context = here()
    if context is None:
        return {}
    headers: dict[str, str] = {}
    attempt, retried = running_in(context), retried_in(context)
    key = None if attempt is None else attempt[KEY]
    if key is not None:
        headers[IDEMPOTENCY_KEY] = key.value()
    if attempt is not None or retried > 1:
        headers[RETRY_ATTEMPT] = str(retried)
    remaining = time_left(context)
    if remaining is not None:
        headers[REQUEST_TIMEOUT] = str(int(remaining * 1000))
    return headers


class incoming:  # noqa: N801 - used like a function
    """Apply on the server the headers that a client sent with `outgoing_headers`.

    Inside the block, calls are bound by the client's deadline, and policies with ``nested="defer"`` try once
    while the client is retrying. Values that are not whole numbers, and a longer time than is left already,
    are ignored. Use it only for clients that you trust: the headers shorten your deadlines.

    >>> with incoming({"x-request-timeout-ms": "2500", "x-retry-attempt": "2"}):
    ...     outgoing_headers()["X-Retry-Attempt"]
    '2'
    """

    __slots__ = ("_clock", "_entered", "_retried", "_seconds")

    def __init__(self, headers: object, *, clock: Clock | None = None) -> None:
        milliseconds = _digits(header(headers, REQUEST_TIMEOUT))
        self._seconds = None if milliseconds is None else milliseconds / 1000
        self._retried = max(1, _digits(header(headers, RETRY_ATTEMPT)) or 1)
        self._clock = clock
        self._entered: list[tuple[AttemptContext, Token[AttemptContext | None]]] = []

    def __enter__(self) -> None:
        around = boundary(False, clock_of(self._clock), self._seconds, self._retried)
        self._entered.append((around, current.set(around)))

    def __exit__(self, *_: object) -> None:
        around, token = self._entered.pop()
        around[RUNNING] = False
        leave(token)


def shorter(one: float | None, other: float | None) -> float | None:
    """Return the smaller of two limits; ``None`` is no limit."""
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


def _digits(text: str | None) -> int | None:
    """Parse a whole number in ASCII digits; return ``None`` for anything else."""
    if text is None:
        return None
    text = text.strip(" \t")
    # Twelve digits of milliseconds are thirty years; longer numbers are slow to convert.
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 12 else None


def _token(text: str) -> str:
    """Percent-encode a key for a header: the percent sign, and everything but printable ASCII."""
    return "".join(
        c if "!" <= c <= "~" and c != "%" else "".join(f"%{b:02X}" for b in c.encode("utf-8", "replace"))
        for c in text
    )


def _uuid() -> str:
    import uuid

    return str(uuid.uuid4())
