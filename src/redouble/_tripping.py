"""When is it too much? The three ways in which a closed circuit counts.

``success`` counts a call that went well and ``failure`` one that failed, and says whether the circuit is
to be opened. A failure is counted under the breaker's lock; a success under a rate takes none.
"""

from __future__ import annotations

from collections import deque
from functools import partial

from . import _checks as check
from ._numbers import INF, above_zero, whole
from ._window import Window

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta
    from typing import Any


class Consecutive:
    """So many failures in a row."""

    __slots__ = ("_limit", "failures")
    counts_successes = False
    window: Any = None

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.failures = 0

    def success(self, now: float) -> None:
        self.failures = 0

    def failure(self, now: float) -> bool:
        self.failures += 1
        return self.failures >= self._limit

    def counted(self, now: float) -> tuple[int, int]:
        return self.failures, self.failures


class _Rate:
    """So large a share of failures, once there were enough calls."""

    __slots__ = ("_minimum", "_rate")
    counts_successes = True
    failures: Any = None  # not looked at: a success always counts

    def __init__(self, rate: float, minimum: int) -> None:
        self._rate = rate
        self._minimum = minimum

    def _too_many(self, calls: int, failures: int) -> bool:
        # Not by division, which would make 3 of 10 a little more or less than 0.3.
        return calls >= self._minimum and failures >= self._rate * calls - 1e-9


class RateOfLastCalls(_Rate):
    """The share of failures among the last so many calls."""

    __slots__ = ("_outcomes", "current")

    def __init__(self, rate: float, minimum: int, calls: int) -> None:
        super().__init__(rate, minimum)
        self._outcomes: deque[bool] = deque(maxlen=calls)
        # As in a `Window`, of which there is one slot without end.
        self.current = INF, partial(self._outcomes.append, True)

    @property
    def window(self) -> RateOfLastCalls:
        return self

    def success(self, now: float) -> None:
        self._outcomes.append(True)

    add = success

    def failure(self, now: float) -> bool:
        self._outcomes.append(False)
        return self._too_many(*self.counted(now))

    def counted(self, now: float) -> tuple[int, int]:
        # In this order, since others count successes meanwhile. No copy: where there is no lock around the
        # interpreter, a deque cannot be copied while somebody appends to it.
        failures = self._outcomes.count(False)
        return len(self._outcomes), failures


class RateOfLastSeconds(_Rate):
    """The share of failures among the calls of the last seconds, which fall out by tenths of them."""

    __slots__ = ("window",)

    def __init__(self, rate: float, minimum: int, seconds: float) -> None:
        super().__init__(rate, minimum)
        self.window = Window(seconds)

    def success(self, now: float) -> None:
        self.window.add(now)

    def failure(self, now: float) -> bool:
        self.window.add(now)
        self.window.mark(now)
        return self._too_many(*self.window.read(now))

    def counted(self, now: float) -> tuple[int, int]:
        return self.window.read(now)


Count = Consecutive | RateOfLastCalls | RateOfLastSeconds


def counting(
    failures: int | None,
    failure_rate: float | None,
    window: float | timedelta | None,
    minimum_calls: int,
    last_calls: int | None,
) -> Callable[[], Count]:
    """How failures are counted while the circuit is closed: checks the arguments, gives a maker."""
    minimum = whole("minimum_calls", minimum_calls, at_least=1)
    if failure_rate is None:
        if window is not None or last_calls is not None:
            raise ValueError("window and last_calls need a failure_rate: failures in a row have no window")
        limit = 5 if failures is None else whole("failures", failures, at_least=1)
        return lambda: Consecutive(limit)
    rate = above_zero("failure_rate", failure_rate)
    if rate > 1:
        raise ValueError(f"failure_rate must be a share above 0, at most 1, got {failure_rate!r}")
    if failures is not None:
        raise ValueError("failures or failure_rate, not both: one breaker opens for one reason")
    if last_calls is None:
        seconds = check.some_seconds("window", 30.0 if window is None else window)
        return lambda: RateOfLastSeconds(rate, minimum, seconds)
    if window is not None:
        raise ValueError("window or last_calls, not both: the rate is over one of them")
    calls = whole("last_calls", last_calls, at_least=1)
    if calls < minimum:
        raise ValueError(f"last_calls must be at least minimum_calls, which is {minimum}, got {last_calls!r}")
    return lambda: RateOfLastCalls(rate, minimum, calls)
