"""A plugin of pytest for interpreters without sockets, threads and processes: Python in WebAssembly.

asyncio gets a loop that only knows timers, and a test that starts a thread or a process is skipped.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator


class NoSelector:
    """Nothing can be ready but timers: waits as long as it is told."""

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("the loop waits for ever: nothing is scheduled, and nobody can wake it")
        if timeout > 0:
            time.sleep(timeout)
        return []

    def close(self) -> None:
        """There is nothing to close."""


class SocketlessLoop(asyncio.BaseEventLoop):
    """An event loop with timers and callbacks, and nothing to be woken by."""

    def __init__(self) -> None:
        super().__init__()
        self._selector = NoSelector()

    def _process_events(self, event_list: list[Any]) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        """There is only one thread."""


# Now, before a conftest asks for a loop to build on. The one of the browser says that it runs, all the time.
asyncio._set_running_loop(None)
asyncio.events.new_event_loop = asyncio.new_event_loop = SocketlessLoop
asyncio.SelectorEventLoop = SocketlessLoop  # type: ignore[misc]

MISSING = {
    "can't start new thread": "there are no threads here",
    "emscripten does not support processes.": "there are no processes here",
}


def reason_to_skip(error: BaseException) -> str | None:
    """What this interpreter has none of, where a test has asked for it."""
    text = error.strerror if isinstance(error, OSError) else str(error)
    return MISSING.get(text or "")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, Any, Any]:
    try:
        return (yield)
    except (RuntimeError, OSError) as error:
        if reason := reason_to_skip(error):
            pytest.skip(reason)
        raise
