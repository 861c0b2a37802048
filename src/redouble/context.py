"""What a running attempt knows, and what travels with it: downwards to nested calls, and in headers.

One context variable holds the innermost surroundings. It is set on a first attempt only if the policy
needs it (deadline, timeout, idempotency key), and on every retry. What it holds is a plain list: making
one costs a fifth of making an object, and a success under a deadline pays for it each time. The object
that users see, `Attempt`, is made from it when asked for.

Tasks, threads and callbacks that were started during a call keep its context, and may outlive the call. So
each call marks its surroundings when it ends, and what has ended counts as none: `here` gives the innermost
that still run. Surroundings hold their own limits and refer to the outer ones, which may end before them.
"""

from __future__ import annotations

from contextvars import ContextVar, copy_context

from ._callables import SYNC, flavour, look_like, name_of, plain
from ._headers import header
from ._text import masked_line, one_line
from ._time import clock_of, real_now

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
    from types import TracebackType
    from typing import Any, ParamSpec, TypeVar

    from .policy import Policy

    Clock = Callable[[], float]
    Surroundings = list[Any]

    P = ParamSpec("P")
    R = TypeVar("R")

# The places in a list of surroundings.
POLICY = 0  # None where this is a scope, False where it is a request that came in: neither is an attempt
CLOCK = 1
STARTED = 2  # by that clock; None where nothing had to read it
ENDS = 3  # its own deadline, by that clock
NUMBER = 4  # of the attempt, from 1; 0 where time was up before there could be one
RETRIED = 5  # the same; of a request that came in, the client's
KEY = 6
PREVIOUS = 7  # the last failure: its type and its message
OUTER = 8  # the surroundings around these, when these were made
RUNNING = 9  # whether the call still runs; in its later attempts, the surroundings of it that know

current: ContextVar[Surroundings | None] = ContextVar("redouble attempt", default=None)

# Retries switched off by redouble.testing: for a context, or for the whole process.
switched_off: ContextVar[object] = ContextVar("redouble switched off", default=None)
switched_off_everywhere: dict[object, object] = {}
# Those of a context that are still in force: a task may outlive the block that it was started in.
switches_off: dict[object, object] = {}

# The most attempts that a test allows each call: likewise, and all of them, without which nobody looks.
cap_here: ContextVar[int | None] = ContextVar("redouble cap", default=None)
caps_everywhere: dict[object, int] = {}
caps: dict[object, int] = {}

# The replay of a dead letter that was begun here: `replay_here` gives it while it runs.
replaying: ContextVar[Any] = ContextVar("redouble replay", default=None)

# When to give up on storing a dead letter, by the monotonic clock: set by the call that it is of.
store_until: ContextVar[float | None] = ContextVar("redouble store until", default=None)
BEYOND = 1.0  # seconds that storing may take after a call's deadline

# Seconds that the call which asks or tells a guard has left, for guards that may have to wait.
time_given: ContextVar[float | None] = ContextVar("redouble time for guards", default=None)

IDEMPOTENCY_KEY, RETRY_ATTEMPT, REQUEST_TIMEOUT = "Idempotency-Key", "X-Retry-Attempt", "X-Request-Timeout-Ms"


class Attempt:
    """One attempt of one call, as seen by the code that runs in it.

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

    def __init__(self, policy: Policy, surroundings: Surroundings) -> None:
        self._policy = policy
        # None in the first run of a block whose policy asks for nothing.
        self._surroundings: Surroundings | None = surroundings
        self.number = surroundings[NUMBER]
        self._failure = surroundings[PREVIOUS]

    @property
    def previous(self) -> str | None:
        """The last attempt's failure as text, without secrets; ``None`` in the first attempt."""
        if self._failure is None:
            return None
        kind, message = self._failure
        return one_line(kind, masked_line(message))

    @property
    def is_last(self) -> bool:
        """Whether the policy, or `testing.capped`, allows no attempt after this one."""
        limits = (self._policy.attempts, capped_at())
        return any(limit is not None and self.number >= limit for limit in limits)

    @property
    def remaining(self) -> float | None:
        """Seconds until the deadline, never below 0; ``None`` without one."""
        surroundings = self._surroundings or here()
        return None if surroundings is None else time_left(surroundings)

    @property
    def timeout(self) -> float | None:
        """Seconds this attempt may take: the policy's ``timeout``, or what is left if that is less."""
        return shorter(self._policy.timeout, self.remaining)

    @property
    def idempotency_key(self) -> str | None:
        """One key for all attempts of this call; ``None`` unless its policy has ``idempotency_key``."""
        if self._surroundings is None or self._policy.idempotency_key is False:
            return None
        key: str = self._surroundings[KEY].value()
        return key

    def __repr__(self) -> str:
        return f"<attempt {self.number} of {self._policy.attempts or 'any number'}>"


class Key:
    """One idempotency key for one logical call, made when first asked for."""

    __slots__ = ("_made", "_make", "_prefix")

    def __init__(self, policy: Policy, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        make: Any = policy.idempotency_key
        self._prefix = f"{policy.name or name}:"
        self._make = _uuid if make is True else lambda: plain("idempotency_key", make(*args, **kwargs))
        self._made: dict[str, str] = {}
        replay = replay_here()
        # A key made from arguments is made from them once more; a random one is known by the replay alone.
        if replay is not None and make is True:
            replayed = replay.key_for(_token(self._prefix), args, kwargs)
            if replayed is not None:
                self._made["key"] = replayed

    def value(self) -> str:
        # setdefault is atomic: threads that ask at once get the same key.
        return self._made.get("key") or self._made.setdefault("key", _token(f"{self._prefix}{self._make()}"))


def first_attempt(policy: Policy, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Surroundings:
    """The surroundings of a first attempt whose policy needs them; reads the clock if there is a deadline."""
    outer = here()
    # Without a key of its own, a call sends that of the enclosing call.
    running = None if policy.idempotency_key else running_in(outer)
    key = Key(policy, name, args, kwargs) if policy.idempotency_key else running and running[KEY]
    clock = clock_of(policy.clock)
    own, left = policy.deadline, None if outer is None else time_left(outer)
    if own is None and left is None:
        return [policy, clock, None, None, 1, 1, key, None, outer, True]
    started = clock()
    ends = None if own is None else started + own
    return [policy, clock, started, ends, 0 if left == 0.0 else 1, 1, key, None, outer, True]


def boundary(kind: bool | None, clock: Clock, seconds: float | None, retried: int) -> Surroundings:
    """Surroundings that are not an attempt: a scope, or a request that came in with a deadline."""
    ends = None if seconds is None else clock() + seconds
    return [kind, clock, None, ends, 0, retried, None, None, here(), True]


def living(surroundings: Surroundings | None) -> Surroundings | None:
    """The innermost of these surroundings and those around them whose call has not ended."""
    while surroundings is not None:
        running = surroundings[RUNNING]
        if running is True or (running is not False and running[RUNNING]):
            return surroundings
        surroundings = surroundings[OUTER]
    return None


def here() -> Surroundings | None:
    """The innermost surroundings of the running code whose call has not ended."""
    return living(current.get())


def _with_outer(surroundings: Surroundings | None) -> Iterator[Surroundings]:
    """The surroundings, and all around them that still run, from the inside out."""
    while surroundings is not None:
        yield surroundings
        surroundings = living(surroundings[OUTER])


def time_left(surroundings: Surroundings) -> float | None:
    """Seconds until the first deadline of these surroundings, never below 0; ``None`` without one."""
    ends = surroundings[ENDS]
    if surroundings[OUTER] is None:  # as most are, and each async attempt asks
        return None if ends is None else max(0.0, ends - surroundings[CLOCK]())
    ends = earliest_end(surroundings, None, 0.0)
    return None if ends is None else max(0.0, ends)


def earliest_end(surroundings: Surroundings | None, clock: Clock | None, now: float) -> float | None:
    """The first deadline of these surroundings, by a clock that shows ``now``; ``None`` without one."""
    first: float | None = None
    for each in _with_outer(surroundings):
        if each[ENDS] is not None:
            # The clocks of two calls may count from different points. A sum would be off by the last bit.
            ends: float = each[ENDS] if each[CLOCK] is clock else now + (each[ENDS] - each[CLOCK]())
            first = shorter(first, ends)
    return first


def retried_in(surroundings: Surroundings | None) -> int:
    """The highest attempt number of these surroundings: above 1, one of their calls is retrying."""
    return max((each[RETRIED] for each in _with_outer(surroundings)), default=1)


def storing_until(patience: float) -> float:
    """When to give up on storing a dead letter here, by the monotonic clock.

    ``patience`` is how many seconds it may take where no call sets a limit.
    """
    until = store_until.get()
    if until is not None:
        return until
    around = here()
    left = None if around is None else time_left(around)
    return real_now() + (patience if left is None else min(left + BEYOND, patience))


def in_time(left: float | None, method: Callable[..., Any], *args: Any) -> Any:
    """Ask or tell a guard, which may take no more than a part of the time that is left."""
    if left is None:
        return method(*args)
    outer = time_given.get()
    try:
        time_given.set(left)
        return method(*args)
    finally:
        time_given.set(outer)


def running_in(surroundings: Surroundings | None) -> Surroundings | None:
    """The surroundings of the innermost attempt: inside a scope, those of the attempt around it."""
    for each in _with_outer(surroundings):
        if each[POLICY] is not None:
            return each if each[POLICY] else None
    return None


def replay_here() -> Any:
    """The replay of a dead letter that is running here; ``None`` without one, and where it is over."""
    replay = replaying.get()
    return None if replay is None or replay.over else replay


def leave(token: Token[Any]) -> None:
    """Takes back what was set; nothing, in another context than it was set in, as fixtures are left."""
    try:
        token.var.reset(token)
    except ValueError:
        pass


def disabled_here() -> bool:
    """Whether ``redouble.testing`` has switched retries off, here or everywhere."""
    marked = switched_off.get()
    return bool(switched_off_everywhere) or any(mark is marked for mark in tuple(switches_off.values()))


def capped_at() -> int | None:
    """The most attempts that ``redouble.testing`` allows a call, here or everywhere; ``None`` without one."""
    if not caps:
        return None
    here, limits = cap_here.get(), list(caps_everywhere.values())
    return min(limits if here is None else [here, *limits], default=None)


def current_attempt() -> Attempt | None:
    """The running attempt of the innermost decorated call; ``None`` outside of one.

    A first attempt is visible only if its policy has a ``deadline``, a ``timeout`` or an
    ``idempotency_key``; retries always are.

    >>> current_attempt() is None
    True
    """
    surroundings = running_in(here())
    return None if surroundings is None else Attempt(surroundings[POLICY], surroundings)


def carried(function: Callable[P, R], /) -> Callable[P, R]:
    """Gives a function that runs in the context of the place where it was made, in whatever thread.

    For threads that do not take over the context of their caller, as those of a ``ThreadPoolExecutor``: the
    deadline, the idempotency key and `nested` hold there, too, until the call around this place ends. All
    context variables are carried. May be called from many threads at once.

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
            f"cannot carry a context to {name_of(function)}: it runs when it is awaited or iterated, in the "
            "context of that place; start a task, which has a copy of this context"
        )
    context = copy_context()

    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        # A copy for each: a context can be entered once at a time.
        return context.copy().run(function, *args, **kwargs)

    given: Callable[P, R] = look_like(run, function)
    return given


def outgoing_headers() -> dict[str, str]:
    """What to send downstream so that the deadline, the retry and the key are known there.

    ``Idempotency-Key`` if the call's policy has one, ``X-Retry-Attempt`` (the number of this attempt),
    ``X-Request-Timeout-Ms`` (the time left). Empty where there is nothing to say.

    >>> outgoing_headers()
    {}
    """
    surroundings = here()
    if surroundings is None:
        return {}
    headers: dict[str, str] = {}
    attempt, retried = running_in(surroundings), retried_in(surroundings)
    key = None if attempt is None else attempt[KEY]
    if key is not None:
        headers[IDEMPOTENCY_KEY] = key.value()
    if attempt is not None or retried > 1:
        headers[RETRY_ATTEMPT] = str(retried)
    remaining = time_left(surroundings)
    if remaining is not None:
        headers[REQUEST_TIMEOUT] = str(int(remaining * 1000))
    return headers


class incoming:  # noqa: N801 - used like a function
    """Takes up on the server's side what a client sent with `outgoing_headers`.

    Inside the block, calls are bound by the client's deadline, and know that the client is retrying.
    Garbage, and a longer time than is left already, are ignored.

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
        self._entered: list[tuple[Surroundings, Token[Surroundings | None]]] = []

    def __enter__(self) -> None:
        around = boundary(False, clock_of(self._clock), self._seconds, self._retried)
        self._entered.append((around, current.set(around)))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        around, token = self._entered.pop()
        around[RUNNING] = False
        leave(token)


def shorter(one: float | None, other: float | None) -> float | None:
    """The smaller of two limits, where ``None`` is no limit."""
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


def _digits(text: str | None) -> int | None:
    """A whole number in ASCII digits, as these headers are defined; anything else is garbage."""
    if text is None:
        return None
    text = text.strip(" \t")
    # Twelve digits of milliseconds are thirty years; more is garbage, and slow to convert.
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
