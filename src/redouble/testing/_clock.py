"""Time that passes only when it is told to."""

from __future__ import annotations

import time
from _thread import RLock

from redouble._numbers import number

# One for all clocks, so that a clock can be copied and pickled. Reentrant, for signal handlers.
_moving = RLock()


class FakeClock:
    """A clock that stands still until somebody sleeps or advances it. Safe to share between threads.

    >>> from redouble import Policy
    >>> from redouble.backoff import exponential
    >>> from redouble.testing import scripted
    >>> clock = FakeClock()
    >>> policy = Policy(backoff=exponential, clock=clock, sleep=clock.sleep)
    >>> policy.call(scripted(TimeoutError(), TimeoutError(), "page"))
    'page'
    >>> clock.waits, clock.now
    ([1.0, 2.0], 3.0)
    """

    def __init__(self, start: float = 0.0) -> None:
        self.now = start
        """The time it shows, in seconds."""
        self.waits: list[float] = []
        """Every wait so far."""

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        """Writes the wait down and moves on by as much."""
        self.advance(seconds)
        self.waits.append(seconds)

    def advance(self, seconds: float) -> None:
        """Lets time pass without a wait: what an attempt costs."""
        seconds = number("seconds", seconds)
        with _moving:
            self.now += seconds


class Waits(list[float]):
    """The waits that were skipped; also the clock that they have moved on."""

    _skipped = 0.0

    def __call__(self) -> float:
        # A deadline must see the time that was skipped, or a call bound by nothing else would spin.
        return time.monotonic() + self._skipped

    def sleep(self, seconds: float) -> None:
        """Skips a wait, and writes it down."""
        self.advance(seconds)
        self.append(seconds)

    def advance(self, seconds: float) -> None:
        """Lets time pass without a wait: what an attempt costs."""
        seconds = number("seconds", seconds)
        with _moving:
            self._skipped += seconds
