"""Waiting for a place: each waiter with a bell of its own, in a thread or in a task of any event loop."""

from __future__ import annotations

import _thread
import sys

from ._numbers import INF

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from typing import Any


class Turn:
    """Somebody with a claim to a place. It is theirs from the moment that ``granted`` is set.

    Those who wait have a bell: ``wake`` rings it, and does no harm if it was rung before. It is false if
    nobody can hear it any more.
    """

    __slots__ = ("granted",)

    def __init__(self, *, granted: bool = False) -> None:
        self.granted = granted


class ThreadTurn(Turn):
    __slots__ = ("_bell",)

    def __init__(self) -> None:
        super().__init__()
        # Looked up late, so that whoever patches threads (gevent) is heard.
        self._bell = _thread.allocate_lock()
        self._bell.acquire()

    def wait(self, seconds: float) -> None:
        self._bell.acquire(True, -1 if seconds == INF else min(seconds, _thread.TIMEOUT_MAX))

    def wake(self) -> bool:
        try:
            self._bell.release()
        except RuntimeError:  # was rung before
            pass
        return True


class AsyncioTurn(Turn):
    __slots__ = ("_bell", "_loop")

    def __init__(self) -> None:
        import asyncio

        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._bell: asyncio.Future[None] = self._loop.create_future()

    async def wait(self) -> None:
        await self._bell

    def wake(self) -> bool:
        return _posted(self._loop.call_soon_threadsafe, self._ring)

    def _ring(self) -> None:
        if not self._bell.done():
            self._bell.set_result(None)


class TrioTurn(Turn):
    __slots__ = ("_bell", "_token")

    def __init__(self) -> None:
        super().__init__()
        trio: Any = sys.modules["trio"]
        self._token = trio.lowlevel.current_trio_token()
        self._bell = trio.Event()

    async def wait(self) -> None:
        await self._bell.wait()

    def wake(self) -> bool:
        return _posted(self._token.run_sync_soon, self._bell.set)


def _posted(post: Callable[[Callable[[], None]], object], ring: Callable[[], None]) -> bool:
    """Whether an event loop, perhaps of another thread, took it up."""
    try:
        post(ring)
    except RuntimeError:  # it is closed
        return False
    return True
