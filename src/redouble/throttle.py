"""How fast may this dependency be called?

The sending rate of all callers of one dependency: it falls when the server says that they are too fast,
and recovers along a cubic curve. That is steep at first, flat around the rate at which the server
complained, and steep again once that has gone well. Until the first complaint nothing is held back.

A throttle stands around a call, in ``Policy(throttle=...)``, or is asked by hand:

    wait = throttle.acquire()       # 0.0: send now; else: ask again in so many seconds
    throttle.success()              # what came back, or one of the other two
    throttle.throttled()
    throttle.failure(error)
"""

from __future__ import annotations

from math import cbrt
from types import CoroutineType

from . import _loops
from ._callables import is_async, look_like
from ._checks import function as some_function
from ._checks import optional, seconds
from ._guard import Gate
from ._numbers import INF, above_zero, number
from ._time import real_sleep, sleep_of
from ._trouble import report
from .backoff import LONGEST
from .classify import Cause, verdict

__all__ = [
    "AdaptiveThrottle",
]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta
    from typing import Any, TypeVar

    from ._checks import Check

    F = TypeVar("F")
    # Numbers that belong together are replaced together, so that nobody sees half of a change.
    Meter = tuple[float, int, float]  # the slot of time that is counted, answers in it, rate before it
    Curve = tuple[float, float]  # the rate at the last complaint, when that was
    Bucket = tuple[float, float, float]  # rate, tokens, when there were so many

# Seconds. A shorter wait is none: it would round to nothing, and the caller would ask again for ever.
NOTHING = 1e-9
# Seconds. Threads may come a little out of order; time that goes back further may have been set back.
DISORDER = 1.0
# Seconds. Whoever waits longer asks in between: the answers of others may have raised the rate.
ASK_AGAIN = 5.0
# Results that are no responses, and need not be examined.
_PLAIN = frozenset({bool, bytes, float, int, list, set, str, type(None)})
# Calls per second: more than any process sends, so that no sum of it is infinite.
HIGHEST = 1e9


# The arithmetic: no clock, no lock.


def plateau(peak: float, beta: float, scale: float) -> float:
    """Seconds after a decrease at which the curve is back at ``peak``, the rate before it."""
    return cbrt(peak * (1.0 - beta) / scale)


def cubic(elapsed: float, peak: float, beta: float, scale: float) -> float:
    """The rate so many seconds after it was brought down from ``peak``.

    >>> [round(cubic(second, peak=10.0, beta=0.7, scale=0.4), 1) for second in range(6)]
    [7.0, 9.6, 10.0, 10.5, 13.4, 21.3]
    """
    past = elapsed - plateau(peak, beta, scale)
    # Not by **, which raises where this is infinite.
    return scale * past * past * past + peak


def measure(meter: Meter, now: float, every: float, smooth: float) -> Meter:
    """One more answer: it is counted, and a slot that is over by now moves the smoothed rate."""
    slot, count, rate = meter
    place = now // every
    if not place > slot:
        return slot, count + 1, rate
    latest = (count + 1) / ((place - slot) * every)
    return place, 0, smooth * latest + (1.0 - smooth) * rate


def filled(bucket: Bucket, now: float, burst: float) -> float:
    """The tokens there are by now: at most those of one second, but ``burst`` where that is more."""
    rate, tokens, at = bucket
    return min(max(burst, rate), tokens + (now - at) * rate)


def _such(name: str, value: Any, fits: Callable[[float], bool], rule: str, check: Check = number) -> float:
    """A number that follows the rule, or an error that names both."""
    result: float = check(name, value)
    if not fits(result):
        raise ValueError(f"{name} must be {rule}, got {value!r}")
    return result


class AdaptiveThrottle(Gate):
    """A sending rate that falls on throttling responses and recovers along a cubic curve.

    Every throttling response brings the rate down to ``beta`` of what it was; ``scale`` is how fast it
    grows again. It stays above ``min_rate`` and below ``headroom`` times the rate that is measured, in
    slots of ``measure_every`` seconds of which the latest counts for ``smooth``. At most one second's
    calls are saved up for a burst, or ``burst`` if that is more. Give ``clock`` and ``sleep`` together.

    >>> from redouble.testing import FakeClock
    >>> clock = FakeClock()
    >>> throttle = AdaptiveThrottle(clock=clock, sleep=clock.sleep)
    >>> throttle.acquire(), throttle.active
    (0.0, False)
    >>> throttle.throttled()
    >>> throttle.acquire(), throttle.rate
    (2.0, 0.5)
    """

    ask_again = ASK_AGAIN
    """Who waits asks again after so many seconds at the latest: the rate may have risen."""

    def __init__(
        self,
        *,
        beta: float = 0.7,
        scale: float = 0.4,
        smooth: float = 0.8,
        min_rate: float = 0.5,
        burst: float = 1.0,
        measure_every: float | timedelta = 0.5,
        headroom: float = 2.0,
        name: str | None = None,
        clock: Callable[[], float] | None = None,
        sleep: Callable[[float], Any] | None = None,
    ) -> None:
        super().__init__(name, optional(some_function)("clock", clock))
        self.beta = _such("beta", beta, lambda it: 0 < it < 1, "above 0 and below 1, or no rate would fall")
        self.scale = above_zero("scale", scale)
        self.smooth = _such("smooth", smooth, lambda it: 0 < it <= 1, "above 0 and at most 1")
        self.min_rate = above_zero("min_rate", min_rate)
        self.burst = _such("burst", burst, lambda it: it >= 1, "at least 1, or no call would get through")
        self.measure_every = _such(
            "measure_every", measure_every, lambda it: it >= 0.001, "at least 0.001 seconds", check=seconds
        )
        self.headroom = _such("headroom", headroom, lambda it: it > 1, "above 1, or no rate would grow")
        self._sleep = optional(some_function)("sleep", sleep)
        self.active = False
        """Whether calls are held back: since the first throttling response."""
        self._seen: float | None = None
        self._doubt: float | None = None
        self._meter: Meter = 0.0, 0, 0.0
        self._curve: Curve = 0.0, 0.0
        self._bucket: Bucket = self.min_rate, 0.0, 0.0

    # What it can be asked

    @property
    def rate(self) -> float | None:
        """Calls per second that are allowed now; ``None`` while not active."""
        return self._bucket[0] if self.active else None

    @property
    def measured_rate(self) -> float:
        """Answers per second that have come lately."""
        return self._meter[2]

    @property
    def retry_after(self) -> float:
        """What `acquire` would give now. Nothing is taken."""
        now = self._now()
        with self._lock:
            return self._missing(self._steady(now))[0]

    def acquire(self) -> float:
        """0.0 if a call may be sent now; otherwise the seconds to wait before asking again.

        Never waits. What it allows is taken, what it refuses takes nothing; all who are refused at one
        instant are given the same wait, and whoever asks first after it goes first.
        """
        if not self.active and self._seen is not None:
            return 0.0
        now = self._now()
        with self._lock:
            now = self._steady(now)
            wait, tokens = self._missing(now)
            if self.active and not wait:
                self._bucket = self._bucket[0], max(0.0, tokens - 1.0), now
        return wait

    # What came back

    @property
    def at_rest(self) -> bool:
        """Whether it was never told to slow down."""
        return not self.active

    def success(self) -> None:
        """An answer that was no complaint: the rate moves on along its curve."""
        self._answered(False)

    def throttled(self) -> None:
        """The server says that calls come too fast: the rate falls."""
        self._answered(True)

    def failure(self, error: object) -> None:
        """An error, or a response: `throttled` if it says so, otherwise as a success.

        A server that is down, or says that the request is wrong, does not say that calls come too fast.

        >>> throttle = AdaptiveThrottle()
        >>> throttle.failure(TimeoutError()), throttle.active
        (None, False)
        >>> throttle.failure((429, {}, b"")), throttle.active
        (None, True)
        """
        self._answered(type(error) not in _PLAIN and verdict(error).cause is Cause.rate_limited)

    # The state. Time is an argument, and the caller holds the lock.

    def _answered(self, complaint: bool) -> None:
        now = self._now()
        with self._lock:
            self._move(self._steady(now), complaint)

    def _move(self, now: float, complaint: bool) -> None:
        self._meter = measure(self._meter, now, self.measure_every, self.smooth)
        measured = self._meter[2]
        if complaint:
            # The rate before it falls is the one to come back to.
            peak = min(measured, self._bucket[0]) if self.active else measured
            self._curve = peak, now
        peak, since = self._curve
        wanted = peak * self.beta if complaint else cubic(now - since, peak, self.beta, self.scale)
        # In this order, so that a curve that is no number is above the others.
        rate = max(self.min_rate, min(HIGHEST, self.headroom * measured, wanted))
        self._bucket = rate, min(self._saved(now), max(self.burst, rate)), now
        self.active = self.active or complaint

    def _missing(self, now: float) -> tuple[float, float]:
        """Seconds until there is a token, and the tokens that there are."""
        if not self.active:
            return 0.0, 0.0
        tokens = self._saved(now)
        wait = (1.0 - tokens) / self._bucket[0]
        # Also a wait that the clock is too coarse to see the end of is none.
        if wait < NOTHING or now + wait <= now:
            return 0.0, tokens
        return min(wait, LONGEST), tokens

    def _saved(self, now: float) -> float:
        # Nothing before the first complaint, which would else be answered by a burst.
        return filled(self._bucket, now, self.burst) if self.active else 0.0

    def _steady(self, now: float) -> float:
        """Time as it passes here: it may stand still, but goes back only where the clock was set back."""
        seen = self._seen
        if not -INF < now < INF:
            now = 0.0 if seen is None else seen
        if seen is None:
            seen = self._begin(now, now, 0.0)
        elif seen - now <= DISORDER:
            self._doubt = None
        elif self._doubt is None:
            # Perhaps of a thread that was held up with this reading in its hand: the next one will tell.
            self._doubt = now
        else:
            seen = self._begin(self._doubt, seen, seen - self._curve[1])
        self._seen = now = max(seen, now)
        return now

    def _begin(self, now: float, before: float, elapsed: float) -> float:
        """Goes on by a clock that shows ``now``, as it would have at ``before``."""
        self._bucket = self._bucket[0], self._saved(before), now
        self._curve = self._curve[0], now - elapsed
        self._meter = now // self.measure_every, 0, self._meter[2]
        self._doubt = None
        return now

    # As a gate

    def __call__(self, function: F, /) -> F:
        """Decorates a function, sync or async: a call waits for its turn, and its result is looked at."""
        guarded: Any = super().__call__(function)  # refuses what cannot be guarded
        decorated: F = look_like((_async_way if is_async(guarded) else _sync_way)(self, function), function)
        return decorated

    def _enter(self) -> None:
        while wait := self.acquire():
            self._pause(min(wait, ASK_AGAIN))

    async def _aenter(self) -> None:
        while wait := self.acquire():
            outcome = (sleep_of(self._sleep) or _loops.sleep)(min(wait, ASK_AGAIN))
            if hasattr(outcome, "__await__"):
                await outcome

    def _leave(self, ticket: Any, error: BaseException | None) -> None:
        if error is None:
            self.success()
        elif isinstance(error, Exception):  # an interrupt says nothing about the server
            self.failure(error)

    def _pause(self, wait: float) -> None:
        sleep = sleep_of(self._sleep)
        if sleep is None:
            if _loops.in_event_loop():
                report(self, f"{self.name} blocks all tasks of an event loop by a sync wait: use it async")
            sleep = real_sleep
        outcome = sleep(wait)
        if type(outcome) is CoroutineType:
            outcome.close()
            report(sleep, "sleep is async, which a sync call cannot await; time.sleep stands in")
            real_sleep(wait)

    def __repr__(self) -> str:
        rate = self.rate
        return f"<{self.name}: {'not active' if rate is None else f'{rate:.3g} calls/s'}>"


# The wrappers of a gate, with a look at the result: many clients return a 429 and raise nothing.


def _sync_way(throttle: AdaptiveThrottle, function: Any) -> Any:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        throttle._enter()
        try:
            result = function(*args, **kwargs)
        except Exception as error:
            throttle.failure(error)
            raise
        throttle.failure(result)
        return result

    return wrapper


def _async_way(throttle: AdaptiveThrottle, function: Any) -> Any:
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        await throttle._aenter()
        try:
            result = await function(*args, **kwargs)
        except Exception as error:
            throttle.failure(error)
            raise
        throttle.failure(result)
        return result

    return wrapper
