"""For tests of code that retries: time that does not pass, functions that fail by script, what was retried.

    with testing.no_waits() as waits: ...       every wait is skipped and written down
    with testing.fake_time() as clock: ...      time stands still but for what is waited, and what you say
    with testing.retries_disabled(): ...        every failure passes through at once
    with testing.capped(2): ...                 no call makes more than two attempts
    with testing.recorded() as story: ...       what happened, for assert_retried and the like
    fetch = testing.scripted(TimeoutError(), testing.after(0.5, "page"))
    testing.response(503, {"Retry-After": "2"}).error()

The switches hold for the current context, which is that of this thread or task and of the tasks it starts;
with ``everywhere=True`` they hold for the whole process, other threads included. They win over a policy's
own ``clock`` and ``sleep``. Each may also be used as a decorator.

``redouble.testing.plugin`` has fixtures for pytest; nothing else here needs it.
"""

from __future__ import annotations

from ._assertions import assert_gave_up, assert_not_retried, assert_retried
from ._clock import FakeClock, Waits
from ._recording import Recording, recorded
from ._response import HTTPError, Request, Response, response
from ._script import After, AsyncScripted, Scripted, ScriptEnded, after, scripted
from ._switches import capped, fake_time, no_waits, retries_disabled

__all__ = [
    "After",
    "AsyncScripted",
    "FakeClock",
    "HTTPError",
    "Recording",
    "Request",
    "Response",
    "ScriptEnded",
    "Scripted",
    "Waits",
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
