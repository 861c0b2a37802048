"""A pytest plugin for Python in WebAssembly, which has no sockets, threads or processes.

asyncio gets an event loop with timers only, and tests that start a thread or a process are skipped.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator


class NoSelector:
    """A selector without sockets, which waits for the given time."""

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("the loop waits for ever: nothing is scheduled, and nobody can wake it")
        if timeout > 0:
            time.sleep(timeout)
        return []

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


class SocketlessLoop(asyncio.BaseEventLoop):
    """An event loop with timers and callbacks only."""

    def __init__(self) -> None:
        super().__init__()
        self._selector = NoSelector()

    def _process_events(self, event_list: list[Any]) -> None:
        """Do nothing: there are no events."""

    def _write_to_self(self) -> None:
        """Do nothing: there is only one thread."""


# Now, before a conftest asks for a loop to build on. The one of the browser says that it runs, all the time.
asyncio._set_running_loop(None)
asyncio.events.new_event_loop = asyncio.new_event_loop = SocketlessLoop
asyncio.SelectorEventLoop = SocketlessLoop  # type: ignore[misc]

MISSING = {
    "can't start new thread": "there are no threads here",
    "emscripten does not support processes.": "there are no processes here",
}


def reason_to_skip(error: BaseException) -> str | None:
    """Return why a test that failed with this error is skipped, or ``None``."""
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
