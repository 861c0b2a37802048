"""`AdaptiveThrottle`: limit the rate of calls to what the server accepts.

All callers of a dependency share the rate. It falls on every throttling response and recovers along a cubic
curve: steep at first, flat around the rate at which the server throttled, steep again beyond it. Before the
first throttling response nothing is limited.

A throttle is used in ``Policy(throttle=...)``, as decorator or context manager, or by hand::

    wait = throttle.acquire()       # 0.0: call now; otherwise ask again after that many seconds
    throttle.success()              # report the response, or one of the other two
    throttle.throttled()
    throttle.failure(error)
"""

from __future__ import annotations

from math import cbrt
from types import CoroutineType

from ._base import loops as _loops
from ._base.checks import INF, above_zero, number, optional, seconds
from ._base.checks import function as some_function
from ._base.clock import real_sleep, sleep_of
from ._base.log_once import warn_once
from ._guards.base import Gate
from .backoff import LONGEST
from .classify import Cause, verdict

__all__ = ["AdaptiveThrottle"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta
    from typing import Any

    from ._base.checks import Check

    # Each is replaced as a whole, so that readers without the lock never see half of a change.
    Meter = tuple[float, int, float]  # the current slot of time, responses in it, smoothed rate before it
    Curve = tuple[float, float]  # the rate at the last throttling response, and its time
    Bucket = tuple[float, float, float]  # rate, tokens, and the time of this count

# Seconds. A shorter wait counts as none: added to a large clock it would round to nothing.
NOTHING = 1e-9
# Seconds. Readings of several threads may come out of order by this much; more may be a clock that was set
# back.
DISORDER = 1.0
# Types of results that are not responses, and need not be classified.
_PLAIN = frozenset({bool, bytes, float, int, list, set, str, type(None)})
# Calls per second: more than any process sends, so that no sum becomes infinite.
HIGHEST = 1e9


# Arithmetic without clock and lock.


def plateau(peak: float, beta: float, scale: float) -> float:
    """Return the seconds after a decrease at which the curve is back at ``peak``, the rate before it."""
    return cbrt(peak * (1.0 - beta) / scale)


def cubic(elapsed: float, peak: float, beta: float, scale: float) -> float:
    """Return the rate ``elapsed`` seconds after it fell from ``peak``.

    >>> [round(cubic(second, peak=10.0, beta=0.7, scale=0.4), 1) for second in range(6)]
    [7.0, 9.6, 10.0, 10.5, 13.4, 21.3]
    """
    past = elapsed - plateau(peak, beta, scale)
    # Not by **, which raises if the result is infinite.
    return scale * past * past * past + peak


def measure(meter: Meter, now: float, every: float, smooth: float) -> Meter:
    """Count one more response. A slot of time that is over moves the smoothed rate."""
    slot, count, rate = meter
    latest_slot = now // every
    if not latest_slot > slot:
        return slot, count + 1, rate
    latest = (count + 1) / ((latest_slot - slot) * every)
    return latest_slot, 0, smooth * latest + (1.0 - smooth) * rate


def _checked(
    name: str, value: Any, valid: Callable[[float], bool], rule: str, check: Check = number
) -> float:
    """Return the value as a number, or raise an error that names the rule."""
    result: float = check(name, value)
    if not valid(result):
        raise ValueError(f"{name} must be {rule}, got {value!r}")
    return result


class AdaptiveThrottle(Gate):
    """A rate limit that falls on throttling responses and recovers along a cubic curve.

    Each throttling response lowers the rate to ``beta`` times its value; ``scale`` says how fast it grows
    again. The rate stays above ``min_rate`` and below ``headroom`` times the measured rate. That is
    measured in slots of ``measure_every`` seconds, of which the latest has the weight ``smooth``. Unused
    calls of at most one second are saved for a burst, or ``burst`` calls if that is more. Give ``clock``
    and ``sleep`` together.

    >>> from redouble.testing import FakeClock
    >>> clock = FakeClock()
    >>> throttle = AdaptiveThrottle(clock=clock, sleep=clock.sleep)
    >>> throttle.acquire(), throttle.active
    (0.0, False)
    >>> throttle.throttled()
    >>> throttle.acquire(), throttle.rate
    (2.0, 0.5)
    """

    ask_again = 5.0
    """The longest sleep in seconds before a waiting call asks again: the rate may have risen meanwhile."""

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
        self.beta = _checked(
            "beta", beta, lambda it: 0 < it < 1, "above 0 and below 1, or no rate would fall"
        )
        self.scale = above_zero("scale", scale)
        self.smooth = _checked("smooth", smooth, lambda it: 0 < it <= 1, "above 0 and at most 1")
        self.min_rate = above_zero("min_rate", min_rate)
        self.burst = _checked("burst", burst, lambda it: it >= 1, "at least 1, or no call would get through")
        self.measure_every = _checked(
            "measure_every", measure_every, lambda it: it >= 0.001, "at least 0.001 seconds", seconds
        )
        self.headroom = _checked("headroom", headroom, lambda it: it > 1, "above 1, or no rate would grow")
        self._sleep = optional(some_function)("sleep", sleep)
        self.active = False
        """Whether the rate is limited: since the first throttling response."""
        self._seen: float | None = None
        self._doubt: float | None = None
        self._meter: Meter = 0.0, 0, 0.0
        self._curve: Curve = 0.0, 0.0
        self._bucket: Bucket = self.min_rate, 0.0, 0.0

    @property
    def rate(self) -> float | None:
        """The allowed calls per second; ``None`` while not active."""
        return self._bucket[0] if self.active else None

    @property
    def measured_rate(self) -> float:
        """The smoothed number of responses per second."""
        return self._meter[2]

    @property
    def at_rest(self) -> bool:
        """Whether there was no throttling response yet, so that a registry may evict it."""
        return not self.active

    @property
    def retry_after(self) -> float:
        """What `acquire` would return now. Takes nothing."""
        now = self._now()
        with self._lock:
            return self._missing(self._steady(now))[0]

    def acquire(self) -> float:
        """Take a token and return 0.0, or return the seconds to wait before asking again.

        Never sleeps. If it returns a wait, nothing was taken. Callers who ask at the same moment get the
        same wait; the first one to ask after it goes first.
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

    def success(self) -> None:
        """Report a response that does not throttle: the rate moves on along its curve."""
        self._report(False)

    def throttled(self) -> None:
        """Report a throttling response: the rate falls."""
        self._report(True)

    def failure(self, error: object) -> None:
        """Report an error or a response: `throttled` if it says that calls come too fast, else `success`.

        >>> throttle = AdaptiveThrottle()
        >>> throttle.failure(TimeoutError()), throttle.active
        (None, False)
        >>> throttle.failure((429, {}, b"")), throttle.active
        (None, True)
        """
        self._report(type(error) not in _PLAIN and verdict(error).cause is Cause.rate_limited)

    def _report(self, throttled: bool) -> None:
        """Count a response, and set the rate."""
        now = self._now()
        with self._lock:
            now = self._steady(now)
            self._meter = measure(self._meter, now, self.measure_every, self.smooth)
            measured = self._meter[2]
            if throttled:
                # The rate before it falls is the one to come back to.
                peak = min(measured, self._bucket[0]) if self.active else measured
                self._curve = peak, now
            peak, since = self._curve
            wanted = peak * self.beta if throttled else cubic(now - since, peak, self.beta, self.scale)
            # In this order, so that a curve that is NaN is above the others.
            rate = max(self.min_rate, min(HIGHEST, self.headroom * measured, wanted))
            self._bucket = rate, min(self._saved(now), max(self.burst, rate)), now
            self.active = self.active or throttled

    # The caller of these holds the lock.

    def _missing(self, now: float) -> tuple[float, float]:
        """Return the seconds until there is a token, and the tokens that there are."""
        if not self.active:
            return 0.0, 0.0
        tokens = self._saved(now)
        wait = (1.0 - tokens) / self._bucket[0]
        # A wait that the clock is too coarse to show the end of counts as none, too.
        if wait < NOTHING or now + wait <= now:
            return 0.0, tokens
        return min(wait, LONGEST), tokens

    def _saved(self, now: float) -> float:
        """Return the tokens by now: at most those of one second, or ``burst`` if that is more."""
        if not self.active:
            return 0.0  # or the first throttling response would be followed by a burst
        rate, tokens, at = self._bucket
        return min(max(self.burst, rate), tokens + (now - at) * rate)

    def _steady(self, now: float) -> float:
        """Return a time that may stand still, and goes back only if the clock was set back."""
        seen = self._seen
        if not -INF < now < INF:
            now = 0.0 if seen is None else seen
        if seen is None:
            seen = self._begin(now, now, 0.0)
        elif seen - now <= DISORDER:
            self._doubt = None
        elif self._doubt is None:
            # Perhaps a thread was suspended after it had read the clock: the next reading will tell.
            self._doubt = now
        else:
            seen = self._begin(self._doubt, seen, seen - self._curve[1])
        self._seen = now = max(seen, now)
        return now

    def _begin(self, now: float, before: float, elapsed: float) -> float:
        """Go on at ``now`` of a clock that was set back, as at ``before`` of the old time."""
        self._bucket = self._bucket[0], self._saved(before), now
        self._curve = self._curve[0], now - elapsed
        self._meter = now // self.measure_every, 0, self._meter[2]
        self._doubt = None
        return now

    # As a gate

    def _enter(self) -> None:
        """Wait for a token. In sync code this blocks the thread."""
        while wait := self.acquire():
            self._pause(min(wait, self.ask_again))

    async def _aenter(self) -> None:
        """Wait for a token in a task."""
        while wait := self.acquire():
            outcome = (sleep_of(self._sleep) or _loops.sleep)(min(wait, self.ask_again))
            if hasattr(outcome, "__await__"):
                await outcome

    def _leave(self, ticket: Any, error: BaseException | None, result: Any = None) -> None:
        """Report the result or the error of a call."""
        if error is None:
            self.failure(result)  # many clients return a 429 and raise nothing
        elif isinstance(error, Exception):  # an interrupt says nothing about the server
            self.failure(error)

    def _pause(self, wait: float) -> None:
        """Sleep, by the ``sleep`` of the throttle, of a test, or of the platform."""
        sleep = sleep_of(self._sleep)
        if sleep is None:
            if _loops.in_event_loop():
                warn_once(self, f"{self.name} blocks all tasks of an event loop by a sync wait: use it async")
            sleep = real_sleep
        outcome = sleep(wait)
        if type(outcome) is CoroutineType:
            outcome.close()
            warn_once(sleep, "sleep is async, which a sync call cannot await; time.sleep is used instead")
            real_sleep(wait)

    def __repr__(self) -> str:
        rate = self.rate
        return f"<{self.name}: {'not active' if rate is None else f'{rate:.3g} calls/s'}>"
