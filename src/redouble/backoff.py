"""How long to wait: the number of a retry in, seconds out. Pure.

Rules of this file:

- ``attempt`` is zero-based: 0 is the wait before the second call.
- ``0 <= delay <= cap``, for any finite input. With ``cap=inf`` a delay saturates at
  ``LONGEST`` (``threading.TIMEOUT_MAX``), the longest wait the platform can sleep.
- A function here remembers nothing. What decorrelated jitter needs to know, the last
  delay, is an argument.
- Arguments are checked: negative, NaN, infinite (except ``cap``) and boolean ones are a ``ValueError``.

Any callable of the same signature is a backoff for ``Policy(backoff=...)``.
"""

from __future__ import annotations

from _thread import TIMEOUT_MAX
from functools import partial

from ._callables import plain
from ._numbers import INF, number, whole
from ._record import same
from ._text import shown
from ._trouble import report

__all__ = [
    "additive_jitter",
    "decorrelated_jitter",
    "delays",
    "equal_jitter",
    "exponential",
    "fixed",
    "full_jitter",
    "immediately_once",
    "linear",
    "proportional_jitter",
]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random
    from typing import Any, Protocol

    class Backoff(Protocol):
        """A delay function: any callable with this signature plugs into a policy."""

        def __call__(
            self,
            attempt: int,
            base: float = ...,
            cap: float = ...,
            *,
            previous: float | None = ...,
            rng: Random | None = ...,
        ) -> float: ...


LONGEST: float = TIMEOUT_MAX


def fixed(
    attempt: int,
    base: float = 1.0,
    cap: float = 30.0,
    *,
    previous: float | None = None,
    rng: Random | None = None,
) -> float:
    """The same wait every time: ``min(cap, base)``.

    >>> fixed(7, base=2.0)
    2.0
    """
    _, base, ceiling = _checked(attempt, base, cap)
    return min(ceiling, base)


def linear(
    attempt: int,
    base: float = 1.0,
    cap: float = 30.0,
    *,
    previous: float | None = None,
    rng: Random | None = None,
) -> float:
    """One ``base`` more each time: ``min(cap, base * (attempt + 1))``.

    >>> [linear(n, base=2.0, cap=5.0) for n in range(4)]
    [2.0, 4.0, 5.0, 5.0]
    """
    attempt, base, ceiling = _checked(attempt, base, cap)
    try:
        return min(ceiling, base * (attempt + 1))
    except OverflowError:  # attempt is past the largest float
        return ceiling if base else 0.0


def exponential(
    attempt: int,
    base: float = 1.0,
    cap: float = 30.0,
    *,
    factor: float = 2.0,
    previous: float | None = None,
    rng: Random | None = None,
) -> float:
    """``factor`` times more each time, without jitter: ``min(cap, base * factor ** attempt)``.

    Clients that fail together come back together under this one: prefer a jitter.

    >>> [exponential(n, base=0.5, cap=3.0) for n in range(5)]
    [0.5, 1.0, 2.0, 3.0, 3.0]
    """
    attempt, base, ceiling = _checked(attempt, base, cap)
    growth = 2.0 if factor.__class__ is float and factor == 2.0 else number("factor", factor)
    if growth < 1.0:
        raise ValueError(f"factor must be at least 1 (1 is a fixed wait), got {factor!r}")
    if growth == 1.0 or not base:
        return min(ceiling, base)
    try:
        return min(ceiling, base * growth**attempt)
    except OverflowError:
        return min(ceiling, _in_two_steps(base, growth, attempt))


def _in_two_steps(base: float, growth: float, attempt: int) -> float:
    """The same where the power alone is past the largest float, but a tiny base may bring it back."""
    half = attempt // 2
    try:
        return base * growth**half * growth ** (attempt - half)
    except OverflowError:
        return INF


def full_jitter(
    attempt: int,
    base: float = 1.0,
    cap: float = 30.0,
    *,
    factor: float = 2.0,
    previous: float | None = None,
    rng: Random | None = None,
) -> float:
    """Anything up to the exponential wait: ``uniform(0, exponential)``. The default.

    Spreads a crowd of clients best and does the least work in total.

    >>> 0.0 <= full_jitter(3, base=0.5, cap=30.0) <= 4.0
    True
    """
    return _draw(rng, 0.0, exponential(attempt, base, cap, factor=factor))


def equal_jitter(
    attempt: int,
    base: float = 1.0,
    cap: float = 30.0,
    *,
    factor: float = 2.0,
    previous: float | None = None,
    rng: Random | None = None,
) -> float:
    """Half of the exponential wait for sure, the other half at random.

    >>> 2.0 <= equal_jitter(3, base=0.5, cap=30.0) <= 4.0
    True
    """
    half = exponential(attempt, base, cap, factor=factor) / 2
    return half + _draw(rng, 0.0, half)


def decorrelated_jitter(
    attempt: int,
    base: float = 1.0,
    cap: float = 30.0,
    *,
    previous: float | None = None,
    rng: Random | None = None,
) -> float:
    """Between ``base`` and three times the last delay: ``min(cap, uniform(base, 3 * previous))``.

    ``previous=None``, as before the first retry, means ``base``. ``delays()`` and policies pass
    the delay of the wait before; it belongs to one call and is never shared.

    >>> 1.0 <= decorrelated_jitter(0) <= 3.0
    True
    """
    _, base, ceiling = _checked(attempt, base, cap)
    last = base if previous is None else number("previous", previous)
    # Thrice a float may be infinite, and uniform() of that NaN.
    return min(ceiling, _draw(rng, base, min(3.0 * last, 1e300)))


def proportional_jitter(
    attempt: int,
    base: float = 1.0,
    cap: float = 30.0,
    *,
    factor: float = 2.0,
    spread: float = 0.25,
    previous: float | None = None,
    rng: Random | None = None,
) -> float:
    """The exponential wait, ``spread`` more or less.

    ``min(cap, exponential * uniform(1 - spread, 1 + spread))``.

    >>> 3.0 <= proportional_jitter(2, spread=0.25) <= 5.0
    True
    """
    _, _, ceiling = _checked(attempt, base, cap)
    width = number("spread", spread)
    if width > 1.0:
        raise ValueError(f"spread must be at most 1 (a delay cannot be negative), got {spread!r}")
    return min(ceiling, exponential(attempt, base, cap, factor=factor) * _draw(rng, 1.0 - width, 1.0 + width))


def additive_jitter(
    attempt: int,
    base: float = 1.0,
    cap: float = 30.0,
    *,
    factor: float = 2.0,
    spread: float = 1.0,
    previous: float | None = None,
    rng: Random | None = None,
) -> float:
    """The exponential wait plus up to ``spread`` seconds.

    ``min(cap, exponential + uniform(0, spread))``.

    >>> 4.0 <= additive_jitter(2, spread=1.0) <= 5.0
    True
    """
    _, _, ceiling = _checked(attempt, base, cap)
    extra = _draw(rng, 0.0, number("spread", spread))
    return min(ceiling, exponential(attempt, base, cap, factor=factor) + extra)


class immediately_once:  # noqa: N801 - used like a function, a class so that it pickles and compares
    """A backoff whose first retry comes at once; then ``backoff`` from its attempt 0.

    For failures that a new connection cures, such as a stale one from a pool.

    >>> patient = immediately_once(exponential)
    >>> [patient(n) for n in range(4)]
    [0.0, 1.0, 2.0, 4.0]
    """

    __slots__ = ("backoff",)

    def __init__(self, backoff: Backoff) -> None:
        if not callable(backoff):
            raise TypeError(f"backoff must be a delay function, got {backoff!r}")
        self.backoff = backoff

    def __call__(
        self,
        attempt: int,
        base: float = 1.0,
        cap: float = 30.0,
        *,
        previous: float | None = None,
        rng: Random | None = None,
    ) -> float:
        attempt, _, _ = _checked(attempt, base, cap)
        if attempt == 0:
            return 0.0
        before = None if attempt == 1 else previous
        return self.backoff(attempt - 1, base, cap, previous=before, rng=rng)

    def __reduce__(self) -> tuple[Any, ...]:
        return immediately_once, (self.backoff,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, immediately_once) and same(self.backoff, other.backoff)

    def __hash__(self) -> int:
        return hash((immediately_once, shown_name(self.backoff)))

    def __repr__(self) -> str:
        return f"immediately_once({shown_name(self.backoff)})"


def delays(
    backoff: Backoff = full_jitter,
    *,
    attempts: int | None = None,
    base: float = 1.0,
    cap: float = 30.0,
    rng: Random | None = None,
) -> Iterator[float]:
    """The waits of one call, one after the other: ``attempts=n`` gives ``n - 1`` of them.

    ``previous`` is threaded through, so decorrelated jitter works as in a policy. With
    ``attempts=None`` the iterator does not end.

    >>> list(delays(exponential, attempts=5, base=0.5, cap=3.0))
    [0.5, 1.0, 2.0, 3.0]
    """
    if not callable(backoff):
        raise TypeError(f"backoff must be a delay function, got {backoff!r}")
    limit = None if attempts is None else whole("attempts", attempts, at_least=1) - 1
    _, start, _ = _checked(0, base, cap)
    return _delays(backoff, limit, start, float(cap), rng)


def _delays(
    backoff: Backoff, limit: int | None, base: float, cap: float, rng: Random | None
) -> Iterator[float]:
    attempt, previous = 0, None
    while limit is None or attempt < limit:
        delay = next_delay(backoff, attempt, base, cap, previous, rng)
        yield delay
        previous = max(delay, base)
        attempt += 1


def next_delay(
    backoff: Backoff, attempt: int, base: float, cap: float, previous: float | None, rng: Random | None
) -> float:
    """The answer of any backoff, made safe to sleep on.

    A user's function may raise or answer nonsense; a retry must not die of that. Full jitter's delay
    stands in, and the trouble is logged once.
    """
    if backoff is full_jitter and rng is None and attempt < 64:
        # The default, without the checks that base and cap have passed already.
        return _draw(None, 0.0, min(cap, LONGEST, base * 2.0**attempt))
    try:
        delay = backoff(attempt, base, cap, previous=previous, rng=rng)
        if delay.__class__ is float and 0.0 <= delay <= cap and delay <= LONGEST:
            return delay
        return min(number("the delay", plain("it", delay)), cap, LONGEST)
    except Exception as error:  # noqa: BLE001 - the user's function may raise anything
        report(backoff, f"backoff {shown_name(backoff)} failed, full jitter stands in", error)
    try:
        return number("the delay", full_jitter(attempt, base, cap, rng=rng))
    except Exception as error:  # noqa: BLE001 - then it is the user's random source that is broken
        report(rng, "the random source failed, the random module stands in", error)
        return full_jitter(attempt, base, cap)


def shown_name(function: object) -> str:
    """What to call a callable in a message: its name, seen through ``functools.partial``."""
    while isinstance(function, partial):
        function = function.func
    try:
        name = getattr(function, "__name__", None)
    except Exception:  # noqa: BLE001 - attributes are the user's code
        name = None
    return name if isinstance(name, str) else shown(function, repr)


def _checked(attempt: Any, base: Any, cap: Any) -> tuple[int, float, float]:
    """What every delay function takes, checked: the attempt, the base, and the longest delay allowed."""
    if attempt.__class__ is not int or attempt < 0:
        attempt = whole("attempt", attempt, at_least=0)
    # What a policy gives is checked already, and looked at in passing only.
    if base.__class__ is not float or not 0.0 <= base < INF:
        base = number("base", base)
    if cap.__class__ is not float or not 0.0 <= cap <= LONGEST:
        cap = LONGEST if cap.__class__ is float and cap == INF else min(number("cap", cap), LONGEST)
    return attempt, base, cap


def _draw(rng: Random | None, low: float, high: float) -> float:
    if rng is not None:
        return rng.uniform(low, high)
    # Not at the top: a process that never has to wait never pays for this import.
    import random

    return random.uniform(low, high)
