"""Helpers for tests of code that retries: fake time, scripted functions, recorded events.

::

    with testing.no_waits() as waits: ...       every wait is skipped and recorded
    with testing.fake_time() as clock: ...      time passes only by waits, and when you advance the clock
    with testing.retries_disabled(): ...        every failure is raised at once
    with testing.capped(2): ...                 no call makes more than two attempts
    with testing.recorded() as story: ...       the events, for assert_retried and the like
    fetch = testing.scripted(TimeoutError(), testing.after(0.5, "page"))
    testing.response(503, {"Retry-After": "2"}).error()

The switches hold for the current context, which is that of this thread or task and of the tasks it starts;
with ``everywhere=True`` they hold for the whole process, other threads included. They override a policy's own
``clock`` and ``sleep``. Each may also be used as a decorator.

``redouble.testing.plugin`` has fixtures for pytest; nothing else here needs it.
"""

from __future__ import annotations

from ._clock import FakeClock
from ._recording import Recording, assert_gave_up, assert_not_retried, assert_retried, recorded
from ._scripted import ScriptEnded, after, response, scripted
from ._switches import capped, fake_time, no_waits, retries_disabled

__all__ = [
    "FakeClock",
    "Recording",
    "ScriptEnded",
    "after",
    "assert_gave_up",
    "assert_not_retried",
    "assert_retried",
    "capped",
    "fake_time",
    "no_waits",
    "recorded",
    "response",
    "retries_disabled",
    "scripted",
]
