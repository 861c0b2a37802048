"""The one place where the monotonic clock is read and a sync wait is made.

A policy's own ``clock`` and ``sleep`` stand in for the real ones; what ``redouble.testing`` puts in
place stands in for both. The real ones are looked up when they are needed, so that whoever patches
``time`` (gevent, freezegun, time-machine) is heard.
"""

from __future__ import annotations

import time
from contextvars import ContextVar

from ._callables import plain
from ._numbers import INF
from ._trouble import report

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Protocol

    class FakeTime(Protocol):
        """What tests put in the place of time."""

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


def clock_of(own: Callable[[], float] | None) -> Callable[[], float]:
    """Where to read monotonic seconds, for a policy with this clock of its own."""
    if fakes and (fake := fake_in_force()) is not None:
        return fake
    return time.monotonic if own is None else SafeClock(own)


class SafeClock:
    """A user's clock for one call. If it raises or gives no finite number, the real one goes on from it."""

    __slots__ = ("_behind", "_last", "_own")

    def __init__(self, own: Callable[[], float]) -> None:
        self._own = own
        self._last = 0.0
        self._behind: float | None = None

    def __call__(self) -> float:
        if self._behind is None:
            try:
                now = float(plain("it", self._own()))
                if -INF < now < INF:
                    self._last = now
                    return now
                report(self._own, f"clock gave {now}, time.monotonic stands in")
            except Exception as error:  # noqa: BLE001 - the user's code; a call must not die of it
                report(self._own, "clock failed, time.monotonic stands in", error)
            self._behind = time.monotonic() - self._last
        return time.monotonic() - self._behind


def sleep_of(own: Callable[[float], Any] | None) -> Callable[[float], Any] | None:
    """How to wait, for a policy with this sleep of its own; ``None`` for the driver's real way."""
    if fakes and (fake := fake_in_force()) is not None:
        return fake.sleep
    return own


def real_sleep(seconds: float) -> None:
    """``time.sleep``, looked up late."""
    while seconds > DAY:
        time.sleep(DAY)
        seconds -= DAY
    time.sleep(seconds)


def real_now() -> float:
    """Return monotonic seconds, also where calls run on fake time: for waits on files and servers."""
    return time.monotonic()


def fake_in_force() -> FakeTime | None:
    """What stands in for time here: that of this context, or the last one of the whole process."""
    # By identity, and not by truth: the fake may be a list of waits that is still empty. And a task may
    # outlive the block that it was started in: what is over there is over here.
    here = fake_here.get()
    if here is not None and any(fake is here for fake in tuple(fakes.values())):
        return here
    last = list(fake_everywhere.values())[-1:]  # at once: another thread may be leaving
    return last[0] if last else None
