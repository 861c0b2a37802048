"""What a running attempt knows, and what travels with it: downwards to nested calls, and in headers.

One context variable holds the innermost surroundings. It is set on a first attempt only if the policy
needs it (deadline, timeout, idempotency key), and on every retry. What it holds is a plain tuple: making
one costs a fifth of making an object, and a success under a deadline pays for it each time. The object
that users see, `Attempt`, is made from it when asked for.
"""

from __future__ import annotations

from contextvars import ContextVar

from ._headers import header
from ._text import one_line
from ._time import clock_of, real_now

__all__ = [
    "Attempt",
    "current_attempt",
    "incoming",
    "outgoing_headers",
]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from contextvars import Token
    from types import TracebackType
    from typing import Any, Literal

    from .policy import Policy

    Clock = Callable[[], float]
    Surroundings = tuple[
        Policy | None, Clock, float | None, float | None, int, int, "Key | None", tuple[str, str] | None, Any
    ]

# The places in a tuple of surroundings.
POLICY: Literal[0] = 0  # None where this is a boundary, not an attempt
CLOCK: Literal[1] = 1
STARTED: Literal[2] = 2  # by that clock; None where nothing had to read it
ENDS: Literal[3] = 3  # the deadline, by that clock
NUMBER: Literal[4] = 4  # of the attempt, from 1; 0 where time was up before there could be one
RETRIED: Literal[5] = 5  # the highest number of this call and those further out: above 1, one is retrying
KEY: Literal[6] = 6
PREVIOUS: Literal[7] = 7  # the last failure: its type and its message
RUNNING: Literal[8] = 8  # of a boundary: the surroundings of the attempt around it

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

# The replay of a dead letter that is running here.
replaying: ContextVar[Any] = ContextVar("redouble replay", default=None)

# When to give up on storing a dead letter, by the monotonic clock: set by the call that it is of.
store_until: ContextVar[float | None] = ContextVar("redouble store until", default=None)
BEYOND = 1.0  # seconds that storing may take after a call's deadline

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
        """The last attempt's failure as text; ``None`` in the first attempt."""
        return None if self._failure is None else one_line(*self._failure)

    @property
    def is_last(self) -> bool:
        """Whether the policy, or `testing.capped`, allows no attempt after this one."""
        limits = (self._policy.attempts, capped_at())
        return any(limit is not None and self.number >= limit for limit in limits)

    @property
    def remaining(self) -> float | None:
        """Seconds until the deadline, never below 0; ``None`` without one."""
        surroundings = self._surroundings or current.get()
        return None if surroundings is None else time_left(surroundings)

    @property
    def timeout(self) -> float | None:
        """Seconds this attempt may take: the policy's ``timeout``, or what is left if that is less."""
        return shorter(self._policy.timeout, self.remaining)

    @property
    def idempotency_key(self) -> str | None:
        """One key for all attempts of this call; ``None`` unless its policy has ``idempotency_key``."""
        key = None if self._surroundings is None else self._surroundings[KEY]
        return None if key is None else key.value()

    def __repr__(self) -> str:
        return f"<attempt {self.number} of {self._policy.attempts or 'any number'}>"


class Key:
    """One idempotency key for one logical call, made when first asked for."""

    __slots__ = ("_made", "_make", "_prefix")

    def __init__(self, policy: Policy, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        make: Any = policy.idempotency_key
        self._prefix = f"{policy.name or name}:"
        self._make = _uuid if make is True else lambda: make(*args, **kwargs)
        self._made: dict[str, str] = {}
        replay = replaying.get()
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
    seconds = policy.deadline
    outer = current.get()
    retried = 1
    if outer is not None:
        seconds, retried = shorter(seconds, time_left(outer)), outer[RETRIED]
    key = Key(policy, name, args, kwargs) if policy.idempotency_key else None
    clock = clock_of(policy.clock)
    if seconds is None:
        return policy, clock, None, None, 1, retried, key, None, None
    started = clock()
    return policy, clock, started, started + seconds, 1 if seconds else 0, retried, key, None, None


def boundary(clock: Clock, seconds: float | None, retried: int, running: Surroundings | None) -> Surroundings:
    """Surroundings that are not an attempt: a scope, or a request that came in with a deadline."""
    outer = current.get()
    if outer is not None:
        seconds, retried = shorter(seconds, time_left(outer)), max(retried, outer[RETRIED])
    ends = None if seconds is None else clock() + seconds
    return None, clock, None, ends, 0, retried, None, None, running


def time_left(surroundings: Surroundings) -> float | None:
    """Seconds until the deadline, never below 0; ``None`` without one."""
    ends = surroundings[ENDS]
    return None if ends is None else max(0.0, ends - surroundings[CLOCK]())


def storing_until(patience: float) -> float:
    """When to give up on storing a dead letter here, by the monotonic clock.

    ``patience`` is how many seconds it may take where no call sets a limit.
    """
    until = store_until.get()
    if until is not None:
        return until
    here = current.get()
    left = None if here is None else time_left(here)
    return real_now() + (patience if left is None else min(left + BEYOND, patience))


def running_in(surroundings: Surroundings | None) -> Surroundings | None:
    """The surroundings of the innermost attempt: inside a scope, those of the attempt around it."""
    if surroundings is None or surroundings[POLICY] is not None:
        return surroundings
    inner: Surroundings | None = surroundings[RUNNING]
    return inner


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
    surroundings = running_in(current.get())
    policy = None if surroundings is None else surroundings[POLICY]
    return None if surroundings is None or policy is None else Attempt(policy, surroundings)


def outgoing_headers() -> dict[str, str]:
    """What to send downstream so that the deadline, the retry and the key are known there.

    ``Idempotency-Key`` if the call's policy has one, ``X-Retry-Attempt`` (the number of this attempt),
    ``X-Request-Timeout-Ms`` (the time left). Empty where there is nothing to say.

    >>> outgoing_headers()
    {}
    """
    surroundings = current.get()
    if surroundings is None:
        return {}
    headers: dict[str, str] = {}
    attempt, retried = running_in(surroundings), surroundings[RETRIED]
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

    __slots__ = ("_clock", "_retried", "_seconds", "_tokens")

    def __init__(self, headers: object, *, clock: Clock | None = None) -> None:
        milliseconds = _digits(header(headers, REQUEST_TIMEOUT))
        self._seconds = None if milliseconds is None else milliseconds / 1000
        self._retried = max(1, _digits(header(headers, RETRY_ATTEMPT)) or 1)
        self._clock = clock
        self._tokens: list[Token[Surroundings | None]] = []

    def __enter__(self) -> None:
        self._tokens.append(current.set(boundary(clock_of(self._clock), self._seconds, self._retried, None)))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        leave(self._tokens.pop())


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
