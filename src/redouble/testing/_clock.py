"""`FakeClock`, and the list of waits that `no_waits` returns."""

from __future__ import annotations

import time
from _thread import RLock

from .._base.checks import number

# One for all clocks, so that a clock can be copied and pickled. Reentrant, for signal handlers.
_moving = RLock()


class FakeClock:
    """A clock that moves only when it is advanced, or by a sleep. Safe to share between threads.

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
        """Every wait so far, in seconds."""

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        """Record the wait, and advance the clock by it."""
        self.advance(seconds)
        self.waits.append(seconds)

    def advance(self, seconds: float) -> None:
        """Let time pass without a wait, as an attempt does."""
        seconds = number("seconds", seconds)
        with _moving:
            self.now += seconds


class Waits(list[float]):
    """The waits that were skipped; also the clock that they have advanced."""

    def __init__(self) -> None:
        super().__init__()
        self._skipped = FakeClock()

    def __call__(self) -> float:
        # A deadline must see the time that was skipped, or a call limited by nothing else would spin.
        return time.monotonic() + self._skipped.now

    def sleep(self, seconds: float) -> None:
        """Skip a wait, and record it."""
        self.advance(seconds)
        self.append(seconds)

    def advance(self, seconds: float) -> None:
        """Let time pass without a wait, as an attempt does."""
        self._skipped.advance(seconds)
