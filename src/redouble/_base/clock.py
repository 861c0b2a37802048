"""Clock and sleep: the real ones, those of a policy, and fake time of tests.

A policy's ``clock`` and ``sleep`` replace the real ones; fake time of ``redouble.testing`` replaces both. The
real ones are looked up at each use, so that patches of ``time`` (gevent, freezegun, time-machine) work.

Calls ask `clock_of` and `sleep_of`. ``redouble.testing`` adds a fake to `fakes`, and to `fake_here` (one
context) or `fake_everywhere` (the process); `fake_in_force` says which of them holds. Code that waits for
files and servers asks `real_now` and `real_sleep`, since those do not know of fake time.
"""

from __future__ import annotations

import time
from contextvars import ContextVar

from .callables import sync_result
from .checks import INF
from .log_once import warn_once

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random
    from typing import Any, Protocol

    class FakeTime(Protocol):
        """The fake time of a test."""

        def __call__(self) -> float: ...

        def sleep(self, seconds: float, /) -> Any: ...

        def advance(self, seconds: float, /) -> Any: ...


# Seconds. A longer wait is made in pieces: no platform sleeps for as long as threading.TIMEOUT_MAX.
DAY = 86_400.0

# Fake time in force: in a context, and for the whole process (the last one holds). The keys are unique
# objects: one fake may be there twice, and threads that come and go need no lock.
fake_here: ContextVar[FakeTime | None] = ContextVar("redouble fake time", default=None)
fake_everywhere: dict[object, FakeTime] = {}

# All of them. While there are none nobody pays for looking.
fakes: dict[object, FakeTime] = {}


class SeededTime:
    """Fake time with the random source of a test, for waits whose policy has none.

    A test that gives a seed gets the same waits in each run.
    """

    __slots__ = ("advance", "now", "rng", "sleep")

    def __init__(self, fake: FakeTime, rng: Random) -> None:
        self.now, self.sleep, self.advance = fake, fake.sleep, fake.advance
        self.rng = rng

    def __call__(self) -> float:
        return self.now()


def clock_of(own: Callable[[], float] | None) -> Callable[[], float]:
    """Return the clock for a policy whose own clock is ``own``."""
    if fakes and (fake := fake_in_force()) is not None:
        return fake
    return time.monotonic if own is None else SafeClock(own)


class SafeClock:
    """A user's clock for one call. If it fails, the real clock goes on from its last reading."""

    __slots__ = ("_behind", "_last", "_own")

    def __init__(self, own: Callable[[], float]) -> None:
        self._own = own
        self._last = 0.0
        self._behind: float | None = None

    def __call__(self) -> float:
        if self._behind is None:
            try:
                now = float(sync_result("it", self._own()))
                if -INF < now < INF:
                    self._last = now
                    return now
                warn_once(self._own, f"clock gave {now}, time.monotonic stands in")
            except Exception as error:  # noqa: BLE001 - the user's code; a call must not die of it
                warn_once(self._own, "clock failed, time.monotonic stands in", error)
            self._behind = time.monotonic() - self._last
        return time.monotonic() - self._behind


def sleep_of(own: Callable[[float], Any] | None) -> Callable[[float], Any] | None:
    """Return the sleep function for a policy whose own is ``own``; ``None`` for the real one."""
    if fakes and (fake := fake_in_force()) is not None:
        return fake.sleep
    return own


def real_sleep(seconds: float) -> None:
    """Sleep, in pieces of a day."""
    while seconds > DAY:
        time.sleep(DAY)
        seconds -= DAY
    time.sleep(seconds)


def real_now() -> float:
    """Return monotonic seconds, also where calls run on fake time: for waits on files and servers."""
    return time.monotonic()


def fake_in_force() -> FakeTime | None:
    """Return the fake time in force: that of this context, or the last one of the process."""
    # By identity, and not by truth: the fake may be a list of waits that is still empty. And a task may
    # outlive the block that it was started in: what is over there is over here.
    here = fake_here.get()
    if here is not None and any(fake is here for fake in tuple(fakes.values())):
        return here
    last = list(fake_everywhere.values())[-1:]  # at once: another thread may be leaving
    return last[0] if last else None


def seeded_rng() -> Random | None:
    """Return the random source of the fake time in force, if it has one."""
    fake = fake_in_force()
    return fake.rng if type(fake) is SeededTime else None
