"""asyncio and trio: which of them runs here, how it waits, how it cuts an attempt off.

Found at run time and never imported before they are needed; anyio runs on one of the two.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Coroutine
    from types import TracebackType
    from typing import Any


def in_trio() -> bool:
    """Whether this code runs in a trio task."""
    trio: Any = sys.modules.get("trio")
    if trio is None:
        return False
    try:
        trio.lowlevel.current_task()
    except RuntimeError:
        return False
    return True


def in_event_loop() -> bool:
    """Whether an event loop runs in this thread, so that a sync wait would block it."""
    asyncio: Any = sys.modules.get("asyncio")
    if asyncio is not None and asyncio._get_running_loop() is not None:
        return True
    return in_trio()


def sleep(seconds: float) -> Coroutine[Any, Any, None]:
    """What to await for a wait in whichever library runs this task; also 0 s lets others run."""
    if in_trio():
        trio: Any = sys.modules["trio"]
        waiting: Coroutine[Any, Any, None] = trio.sleep(seconds)
        return waiting
    import asyncio

    return asyncio.sleep(seconds)


def time_limit(seconds: float) -> AsyncioLimit | TrioLimit:
    """A plain context manager that cancels the block after so many seconds.

    When it strikes, the block's cancellation ends there and ``struck`` is true; a cancellation that
    comes from outside passes through, also at the same instant. ``cut_off()`` gives the cancellation, once:
    its traceback shows where the block was.
    """
    return TrioLimit(seconds) if in_trio() else AsyncioLimit(seconds)


class _Limit:
    """What both limits share: whether they struck, and what they cut off."""

    struck = False
    _cut: BaseException | None = None

    def cut_off(self) -> BaseException | None:
        """Return the cancellation that ended the block, and forget it: its frames hold this object."""
        cut, self._cut = self._cut, None
        return cut


class AsyncioLimit(_Limit):
    """`asyncio.timeout` for a plain ``with``: its coroutines never suspend, so they can be stepped."""

    def __init__(self, seconds: float) -> None:
        import asyncio

        self._timeout: Any = asyncio.timeout(seconds)

    def __enter__(self) -> AsyncioLimit:
        _step(self._timeout.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        try:
            _step(self._timeout.__aexit__(kind, error, trace))
        except TimeoutError:
            self.struck, self._cut = True, error
        return self.struck


class TrioLimit(_Limit):
    """A trio cancel scope with the same face."""

    def __init__(self, seconds: float) -> None:
        trio: Any = sys.modules["trio"]
        self._scope: Any = trio.CancelScope(deadline=trio.current_time() + seconds)

    def __enter__(self) -> TrioLimit:
        self._scope.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self._scope.__exit__(kind, error, trace)
        # Not by what __exit__ gives, which is true of a block without an error too.
        self.struck = bool(self._scope.cancelled_caught)
        self._cut = error if self.struck else None
        return self.struck


def _step(coroutine: Any) -> None:
    try:
        coroutine.send(None)
    except StopIteration:
        pass
