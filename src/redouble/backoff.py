"""Delay functions: the number of a retry in, seconds out. Pure.

Rules of this file:

- ``attempt`` is zero-based: 0 is the wait before the second call.
- ``floor <= delay <= cap``, for any finite input. With ``cap=inf`` a delay saturates at
  ``LONGEST`` (``threading.TIMEOUT_MAX``), the longest wait the platform can sleep.
- A jitter is drawn from ``uniform(max(floor, low), max(floor, high))``, with the ends of its formula. If it
  were raised to the floor afterwards, many clients would wait for exactly the floor, and come back together.
- The functions keep no state. The last delay, which decorrelated jitter needs, is an argument.
- Arguments are checked: negative, NaN, infinite (except ``cap``) and boolean ones are a ``ValueError``.

Any callable of the same signature is a backoff for ``Policy(backoff=...)``. It needs no ``floor``: only the
functions of this module receive it, and the delays of others are raised to it.
"""

from __future__ import annotations

from _thread import TIMEOUT_MAX
from functools import cache, partial

from ._base.callables import name_of, sync_result
from ._base.checks import INF, attempts_or_inf, floor_below_cap, number, whole
from ._base.clock import fakes, seeded_rng
from ._base.log_once import warn_once
from ._base.record import same

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
    floor: float = 0.0,
    previous: float | None = None,
    rng: Random | None = None,
) -> float:
    """Return the same wait every time: ``min(cap, base)``.

    >>> fixed(7, base=2.0)
    2.0
    """
    _, base, ceiling, floor = _checked(attempt, base, cap, floor)
    return max(floor, min(ceiling, base))


def linear(
    attempt: int,
    base: float = 1.0,
    cap: float = 30.0,
    *,
    floor: float = 0.0,
    previous: float | None = None,
    rng: Random | None = None,
) -> float:
    """Return one ``base`` more each time: ``min(cap, base * (attempt + 1))``.

    >>> [linear(n, base=2.0, cap=5.0) for n in range(4)]
    [2.0, 4.0, 5.0, 5.0]
    """
    attempt, base, ceiling, floor = _checked(attempt, base, cap, floor)
    try:
        return max(floor, min(ceiling, base * (attempt + 1)))
    except OverflowError:  # attempt is past the largest float
        return ceiling if base else floor


def exponential(
    attempt: int,
    base: float = 1.0,
    cap: float = 30.0,
    *,
    floor: float = 0.0,
    factor: float = 2.0,
    previous: float | None = None,
    rng: Random | None = None,
) -> float:
    """Return ``factor`` times more each time, without jitter: ``min(cap, base * factor ** attempt)``.

    Clients that fail together come back together: prefer a jitter.

    >>> [exponential(n, base=0.5, cap=3.0) for n in range(5)]
    [0.5, 1.0, 2.0, 3.0, 3.0]
    """
    attempt, base, ceiling, floor = _checked(attempt, base, cap, floor)
    return max(floor, _growing(attempt, base, ceiling, factor))


def _growing(attempt: int, base: float, ceiling: float, factor: float) -> float:
    """Return the exponential wait; all arguments but the factor are checked already."""
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
    """Return the exponential wait if the power overflows, but its product with the base need not."""
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
    floor: float = 0.0,
    factor: float = 2.0,
    previous: float | None = None,
    rng: Random | None = None,
) -> float:
    """Return a random wait up to the exponential one: ``uniform(0, exponential)``. The default.

    Spreads clients over the whole range, so that they do not come back together.

    >>> 0.0 <= full_jitter(3, base=0.5, cap=30.0) <= 4.0
    True
    """
    attempt, base, ceiling, floor = _checked(attempt, base, cap, floor)
    return _between(rng, 0.0, _growing(attempt, base, ceiling, factor), floor, ceiling)


def equal_jitter(
    attempt: int,
    base: float = 1.0,
    cap: float = 30.0,
    *,
    floor: float = 0.0,
    factor: float = 2.0,
    previous: float | None = None,
    rng: Random | None = None,
) -> float:
    """Return half of the exponential wait, and a random part of the other half.

    ``exponential / 2 + uniform(0, exponential / 2)``, so no wait is shorter than half of the exponential one.

    >>> 2.0 <= equal_jitter(3, base=0.5, cap=30.0) <= 4.0
    True
    """
    attempt, base, ceiling, floor = _checked(attempt, base, cap, floor)
    longest = _growing(attempt, base, ceiling, factor)
    return _between(rng, longest / 2, longest, floor, ceiling)


def decorrelated_jitter(
    attempt: int,
    base: float = 1.0,
    cap: float = 30.0,
    *,
    floor: float = 0.0,
    previous: float | None = None,
    rng: Random | None = None,
) -> float:
    """Return between ``base`` and three times the last delay: ``min(cap, uniform(base, 3 * previous))``.

    ``previous=None``, as before the first retry, means ``base``. ``delays()`` and policies pass
    the delay of the wait before; it belongs to one call and is never shared.

    >>> 1.0 <= decorrelated_jitter(0) <= 3.0
    True
    """
    _, base, ceiling, floor = _checked(attempt, base, cap, floor)
    last = base if previous is None else number("previous", previous)
    # Thrice a float may be infinite, and uniform() of that NaN.
    return _between(rng, base, min(3.0 * last, 1e300), floor, ceiling)


def proportional_jitter(
    attempt: int,
    base: float = 1.0,
    cap: float = 30.0,
    *,
    floor: float = 0.0,
    factor: float = 2.0,
    spread: float = 0.25,
    previous: float | None = None,
    rng: Random | None = None,
) -> float:
    """Return the exponential wait, ``spread`` more or less.

    ``min(cap, exponential * uniform(1 - spread, 1 + spread))``.

    >>> 3.0 <= proportional_jitter(2, spread=0.25) <= 5.0
    True
    """
    attempt, base, ceiling, floor = _checked(attempt, base, cap, floor)
    width = number("spread", spread)
    if width > 1.0:
        raise ValueError(f"spread must be at most 1 (a delay cannot be negative), got {spread!r}")
    middle = _growing(attempt, base, ceiling, factor)
    return _between(rng, middle * (1.0 - width), middle * (1.0 + width), floor, ceiling)


def additive_jitter(
    attempt: int,
    base: float = 1.0,
    cap: float = 30.0,
    *,
    floor: float = 0.0,
    factor: float = 2.0,
    spread: float = 1.0,
    previous: float | None = None,
    rng: Random | None = None,
) -> float:
    """Return the exponential wait plus up to ``spread`` seconds.

    ``min(cap, exponential + uniform(0, spread))``.

    >>> 4.0 <= additive_jitter(2, spread=1.0) <= 5.0
    True
    """
    attempt, base, ceiling, floor = _checked(attempt, base, cap, floor)
    least = _growing(attempt, base, ceiling, factor)
    return _between(rng, least, least + number("spread", spread), floor, ceiling)


class immediately_once:  # noqa: N801 - used like a function, a class so that it pickles and compares
    """A backoff whose first delay is 0; the others are those of ``backoff``, from its attempt 0.

    For failures that a new connection avoids, such as a stale one from a pool. A ``floor`` also delays the
    first retry.

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
        floor: float = 0.0,
        previous: float | None = None,
        rng: Random | None = None,
    ) -> float:
        attempt, _, _, least = _checked(attempt, base, cap, floor)
        if attempt == 0:
            return least
        before = None if attempt == 1 else previous
        delay: float = _answer(self.backoff, attempt - 1, base, cap, before, rng, least)
        return delay

    def __reduce__(self) -> tuple[Any, ...]:
        return immediately_once, (self.backoff,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, immediately_once) and same(self.backoff, other.backoff)

    def __hash__(self) -> int:
        return hash((immediately_once, name_of(self.backoff)))

    def __repr__(self) -> str:
        return f"immediately_once({name_of(self.backoff, short=True)})"


_FUNCTIONS = (
    fixed,
    linear,
    exponential,
    full_jitter,
    equal_jitter,
    decorrelated_jitter,
    proportional_jitter,
    additive_jitter,
)


def is_ours(backoff: Any) -> bool:
    """Return whether a backoff is one of this module, also in a ``partial`` or in `immediately_once`."""
    while isinstance(backoff, (partial, immediately_once)):
        backoff = backoff.func if isinstance(backoff, partial) else backoff.backoff
    # By identity: a function made with functools.wraps looks like the one that it wraps.
    return any(backoff is function for function in _FUNCTIONS)


def _takes_floor(backoff: Any) -> bool:
    """Return whether a backoff takes ``floor``: it is of this module, and no ``partial`` has set one."""
    if isinstance(backoff, partial):
        return "floor" not in backoff.keywords and _takes_floor(backoff.func)
    return is_ours(backoff)


def _answer(
    backoff: Any,
    attempt: int,
    base: float,
    cap: float,
    previous: float | None,
    rng: Random | None,
    floor: float,
) -> Any:
    """Return the delay of any backoff, raised to the floor if that cannot be passed."""
    if not floor:
        return backoff(attempt, base, cap, previous=previous, rng=rng)
    if _takes_floor(backoff):
        return backoff(attempt, base, cap, floor=floor, previous=previous, rng=rng)
    delay = backoff(attempt, base, cap, previous=previous, rng=rng)
    return max(floor, number("the delay", sync_result("it", delay)))


def delays(
    backoff: Backoff = full_jitter,
    *,
    attempts: float | None = None,
    base: float = 1.0,
    cap: float = 30.0,
    floor: float = 0.0,
    rng: Random | None = None,
) -> Iterator[float]:
    """Return an iterator over the waits of one call: ``attempts=n`` gives ``n - 1`` of them.

    Each delay is passed as ``previous`` to the next, as in a policy. With ``attempts=None`` or ``math.inf``
    the iterator does not end.

    >>> list(delays(exponential, attempts=5, base=0.5, cap=3.0))
    [0.5, 1.0, 2.0, 3.0]
    """
    if not callable(backoff):
        raise TypeError(f"backoff must be a delay function, got {backoff!r}")
    limit = INF if attempts is None else attempts_or_inf("attempts", attempts) - 1
    _, start, _, least = _checked(0, base, cap, floor)
    return _delays(backoff, limit, start, float(cap), rng, least)


def _delays(
    backoff: Backoff, limit: float, base: float, cap: float, rng: Random | None, floor: float
) -> Iterator[float]:
    attempt, previous = 0, None
    while attempt < limit:
        delay = next_delay(backoff, attempt, base, cap, previous, rng, floor)
        yield delay
        previous = max(delay, base)
        attempt += 1


def next_delay(
    backoff: Backoff,
    attempt: int,
    base: float,
    cap: float,
    previous: float | None,
    rng: Random | None,
    floor: float = 0.0,
) -> float:
    """Return the delay of any backoff, made safe to sleep on.

    A user's function may raise or return something else. Then full jitter's delay is used, and the error is
    logged once.
    """
    if backoff is full_jitter and rng is None and not (floor or fakes) and attempt < 64:
        # The default, without the checks that base and cap have passed already.
        drawn: float = _random().uniform(0.0, min(cap, LONGEST, base * 2.0**attempt))
        return drawn
    if rng is None and fakes:
        rng = seeded_rng()
    try:
        delay = _answer(backoff, attempt, base, cap, previous, rng, floor)
        if delay.__class__ is float and 0.0 <= delay <= cap and delay <= LONGEST:
            return delay
        return min(number("the delay", sync_result("it", delay)), cap, LONGEST)
    except Exception as error:  # noqa: BLE001 - the user's function may raise anything
        warn_once(backoff, f"backoff {name_of(backoff, short=True)} failed; using full_jitter instead", error)
    try:
        return number("the delay", full_jitter(attempt, base, cap, floor=floor, rng=rng))
    except Exception as error:  # noqa: BLE001 - then it is the user's random source that is broken
        warn_once(rng, "rng failed; using the random module instead", error)
        return full_jitter(attempt, base, cap, floor=floor)


def _checked(attempt: Any, base: Any, cap: Any, floor: Any) -> tuple[int, float, float, float]:
    """Check the arguments of a delay function. Return them, with the cap as the longest delay."""
    if attempt.__class__ is not int or attempt < 0:
        attempt = whole("attempt", attempt, at_least=0)
    # The arguments of a policy are checked already: the fast path only looks at them.
    if base.__class__ is not float or not 0.0 <= base < INF:
        base = number("base", base)
    if cap.__class__ is not float or not 0.0 <= cap <= LONGEST:
        cap = LONGEST if cap.__class__ is float and cap == INF else min(number("cap", cap), LONGEST)
    if floor.__class__ is not float or floor != 0.0:
        floor = min(number("floor", floor), LONGEST)
        floor_below_cap(floor, cap)
    return attempt, base, cap, floor


def _between(rng: Random | None, low: float, high: float, floor: float, ceiling: float) -> float:
    """Draw between the ends of a formula, neither of them below the floor."""
    drawn: float = (_random() if rng is None else rng).uniform(max(floor, low), max(floor, high))
    return min(drawn, ceiling)  # a NaN stays NaN, and `next_delay` rejects it


@cache
def _random() -> Any:
    """Return the module `random`. A process that never has to wait never pays for the import."""
    import random

    return random
