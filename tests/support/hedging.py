"""For tests of hedging: async functions with a script, a budget that keeps a log, and watched references."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref

from conftest import loop_time
from redouble.budget import Budget
from redouble.hedging import hedge


class Told(ConnectionError):
    """A failure with an answer of the server."""

    def __init__(self, message="busy", **headers):
        super().__init__(message)
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}
        self.status_code = 503


class Script:
    """An async function whose attempts take and give what the script says; knows when each began and ended."""

    def __init__(self, *lines):
        self.lines = lines
        self.starts = []
        self.ends = []
        self.cancelled = []

    async def __call__(self, *args):
        number = len(self.starts) + 1
        seconds, outcome = self.lines[number - 1]
        self.starts.append(loop_time())
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            self.cancelled.append(number)
            raise
        finally:
            self.ends.append(loop_time())
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome


def hedged(script, **fields):
    async def fetch(*args):
        return await script(*args)

    return hedge(**{"after": 1.0, **fields})(fetch)


async def ours():
    """The tasks that are left, but for the one of the test."""
    return asyncio.all_tasks() - {asyncio.current_task()}


class Ledger(Budget):
    """A budget that writes down what it is told, and allows so many hedges."""

    def __init__(self, allowed=9, *, is_async=False, trouble=None):
        super().__init__(name="ledger")
        self.allowed = allowed
        self.is_async = is_async
        self.trouble = trouble
        self.log = []

    def _answer(self, entry, value=None):
        self.log.append(entry)
        if self.trouble is not None:
            raise self.trouble
        if not self.is_async:
            return value

        async def later():
            await asyncio.sleep(0.25)
            return value

        return later()

    def acquire(self, *, timeout=False, priority=0):
        self.allowed -= 1
        return self._answer(("acquire", priority), 5.0 if self.allowed >= 0 else 0.0)

    def success(self, cost=0.0):
        return self._answer(("success", cost))

    def failure(self):
        return self._answer("failure")


class Payload:
    """An argument that can be watched."""


class Failure(TimeoutError):
    """An exception that can be watched."""


def failure(watched, kind=Failure):
    """An exception that is watched, and that no frame holds by a name."""
    error = kind("slow")
    watched.append(weakref.ref(error))
    return error


@contextlib.contextmanager
def without_collector():
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
