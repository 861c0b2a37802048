"""Permits and waiters of `Bulkhead`: threads, and tasks of asyncio or trio."""

from __future__ import annotations

import _thread

from .._base.checks import INF
from .._base.loops import in_trio

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Permit:
    """The right to one slot of a bulkhead, held while ``granted`` is true.

    The bulkhead changes ``granted`` under its lock, together with its count of slots.
    """

    __slots__ = ("granted",)

    def __init__(self, *, granted: bool = False) -> None:
        self.granted = granted


class ThreadWaiter(Permit):
    """A thread that waits for a slot."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        super().__init__()
        # A lock as an event, looked up late, so that gevent can patch it.
        self._event = _thread.allocate_lock()
        self._event.acquire()

    def wait(self, seconds: float) -> None:
        """Block until `wake` is called, or the time is up."""
        self._event.acquire(True, -1 if seconds == INF else min(seconds, _thread.TIMEOUT_MAX))

    def wake(self) -> bool:
        """Wake the waiter, once or more often. Return false if it can no longer be woken."""
        try:
            self._event.release()
        except RuntimeError:  # it was woken before
            pass
        return True


class TaskWaiter(Permit):
    """A task that waits for a slot. Any thread may wake it."""

    __slots__ = ("_event", "_post")

    def __init__(self) -> None:
        super().__init__()
        if trio := in_trio():
            self._post: Any = trio.lowlevel.current_trio_token().run_sync_soon
            self._event: Any = trio.Event()
        else:
            import asyncio

            self._post = asyncio.get_running_loop().call_soon_threadsafe
            self._event = asyncio.Event()

    async def wait(self) -> None:
        """Suspend until `wake` is called."""
        await self._event.wait()

    def wake(self) -> bool:
        """Wake the waiter, once or more often. Return false if its event loop is closed."""
        try:
            self._post(self._event.set)
        except RuntimeError:
            return False
        return True
