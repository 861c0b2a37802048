"""asyncio and trio: which of them runs here, what is to be awaited, sleep, time limits, cancellation.

The library is found at run time and never imported before it is needed; anyio runs on one of the two.

- `in_trio`, `in_event_loop`, `sleep`: what the drivers of async calls ask and do.
- `is_awaited` and its neighbours: plain functions that turn out to be async.
- `time_limit`: a deadline or a timeout around a block, with one interface for both libraries.
- `cancel_requests` and its neighbours: whether a cancellation of this task came before or during an attempt.
"""

from __future__ import annotations

import sys
from types import CoroutineType

from .checks import INF

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any, Self

# Handles of work that runs elsewhere. They can be awaited, but notebooks use them without.
_HANDLES = frozenset({"distributed", "ray"})
_PLAIN = frozenset({bool, bytes, dict, float, int, list, str, tuple, type(None)})


def in_trio() -> Any:
    """Return the module trio if this code runs in one of its tasks, else ``None``."""
    trio: Any = sys.modules.get("trio")
    try:
        return trio if trio and trio.lowlevel.current_task() else None
    except RuntimeError:
        return None


def in_event_loop() -> bool:
    """Return whether an event loop runs in this thread, which a sync wait would block."""
    asyncio: Any = sys.modules.get("asyncio")
    if asyncio is not None and asyncio._get_running_loop() is not None:
        return True
    return in_trio() is not None


def sleep(seconds: float) -> Any:
    """Return a coroutine that sleeps in the library that runs this task; also 0 s lets others run."""
    if trio := in_trio():
        return trio.sleep(seconds)
    import asyncio

    return asyncio.sleep(seconds)


async def limited(seconds: float, function: Callable[..., Any], *args: Any) -> Any:
    """Call a sync or async function, and cancel it after that many seconds. Returns ``None`` then."""
    with time_limit(seconds):
        answer = function(*args)
        return (await answer) if hasattr(answer, "__await__") else answer
    return None


# Awaitables


class Usual:
    """The type of a function's last plain result: the next one of that type needs no examination.

    The wrapper of a first attempt compares the type itself, and calls `is_awaited` only if it differs.
    """

    __slots__ = ("kind",)

    def __init__(self) -> None:
        self.kind: type = str

    def __reduce__(self) -> tuple[type[Usual], tuple[()]]:
        return Usual, ()  # the type may not pickle, and is soon known again


def is_awaited(result: object, usual: Usual | None = None) -> bool:
    """Return whether a result is to be awaited. ``usual`` takes note of the type of a plain one.

    Coroutines always are. Futures, and the objects of clients that can be awaited (aiohttp's
    ``session.get(url)``), are where an event loop runs: elsewhere nobody could await them.
    """
    kind = type(result)
    if kind is CoroutineType:
        return True
    if kind in _PLAIN or not _has(result, "__await__"):
        if usual is not None:
            usual.kind = kind
        return False
    return in_event_loop() and str(kind.__module__).partition(".")[0] not in _HANDLES


def drop(unawaited: list[Any]) -> None:
    """Close coroutines and cancel futures that were never awaited, since a guard refused the call."""
    for awaitable in unawaited:
        if _has(awaitable, "throw"):
            awaitable.close()
        elif _has(awaitable, "_asyncio_future_blocking"):
            awaitable.cancel()


def awaiting(function: Callable[..., Any], pending: list[Any] | None = None) -> Callable[..., Any]:
    """Return an async function for a plain one that returns awaitables; one may be pending already."""

    async def call(*args: Any, **kwargs: Any) -> Any:
        result: Any = pending.pop() if pending else function(*args, **kwargs)
        return (await result) if is_awaited(result) else result

    return call


def _has(thing: object, name: str) -> bool:
    """Return whether the type has an attribute: mocks and proxies have every one."""
    return any(name in base.__dict__ for base in type(thing).__mro__)


# Time limits


def time_limit(seconds: float | None) -> NoLimit:
    """Return a plain context manager that cancels the block after that many seconds; ``None`` for never.

    When it strikes, the block's cancellation ends there and ``struck`` is true; a cancellation that
    comes from outside passes through, also at the same instant. ``cut_off()`` gives the cancellation, once:
    its traceback shows where the block was.
    """
    if seconds is None:
        return _NO_LIMIT
    return TrioLimit(seconds) if in_trio() else AsyncioLimit(seconds)


class NoLimit:
    """No time limit, and the interface of those below."""

    struck = False
    _cut: BaseException | None = None

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> bool:
        return self.struck

    def lift(self) -> None:
        """Let the rest of the block take as long as it needs, unless the limit has struck already."""

    def cut_off(self) -> BaseException | None:
        """Return the cancellation that ended the block, and forget it: its frames hold this object."""
        cut, self._cut = self._cut, None
        return cut


_NO_LIMIT = NoLimit(INF)


class AsyncioLimit(NoLimit):
    """`asyncio.timeout` for a plain ``with``: its coroutines never suspend, so they can be stepped."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        import asyncio

        self._timeout: Any = asyncio.timeout(seconds)

    def __enter__(self) -> Self:
        run_now(self._timeout.__aenter__())
        return self

    def __exit__(self, *error: Any) -> bool:
        try:
            run_now(self._timeout.__aexit__(*error))
        except TimeoutError:
            self.struck, self._cut = True, error[1]
        return self.struck

    def lift(self) -> None:
        if not self._timeout.expired():
            self._timeout.reschedule(None)


class TrioLimit(NoLimit):
    """A trio cancel scope with the same interface."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        trio = in_trio()
        self._scope: Any = trio.CancelScope(deadline=trio.current_time() + seconds)

    def __enter__(self) -> Self:
        self._scope.__enter__()
        return self

    def __exit__(self, *error: Any) -> bool:
        self._scope.__exit__(*error)
        # Not by what __exit__ gives, which is true of a block without an error too.
        self.struck = bool(self._scope.cancelled_caught)
        self._cut = error[1] if self.struck else None
        return self.struck

    def lift(self) -> None:
        self._scope.deadline = INF


def run_now(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine that never suspends, and return its result."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value


# Cancellation of asyncio tasks, which count the requests to cancel them (`asyncio.Task.cancelling`). A call
# that fails while its task is being cancelled is not retried: the task is to end. A request that was there
# before the attempt does not count, since cleanups run in cancelled tasks, too.

# The requests that a task had when it was last looked at in doubt. A WeakKeyDictionary, once it is needed.
_requests_seen: Any = None

# As Python itself keeps them, whatever an exception's own attributes do.
_trace: Any = BaseException.__dict__["__traceback__"]
_context: Any = BaseException.__dict__["__context__"]


def cancel_requests() -> int:
    """Return how many requests to cancel it the running asyncio task has; 0 elsewhere."""
    asyncio: Any = sys.modules.get("asyncio")
    try:
        requests: int = asyncio.current_task().cancelling()
    except (AttributeError, RuntimeError):
        return 0  # no asyncio, no loop, no task, or a task of another library that does not count
    return requests


def requests_before(error: BaseException | None) -> int:
    """Return how many there were before an attempt that has failed with this error, as far as can be told.

    For attempts that did not look before, so that a success costs nothing. A cancellation that a caller is
    handling was there before: cleanups are retried. One that was handled within the attempt was not. If there
    is no sign of either, somebody has swallowed one: it was there before if an earlier call has met it.
    """
    import asyncio
    from weakref import WeakKeyDictionary

    # By the class: isinstance would ask an exception for attributes, which may raise.
    signs = [each for each in _chain(error) if issubclass(type(each), asyncio.CancelledError)]
    if signs:
        return int(any(map(is_being_handled, signs)))
    global _requests_seen
    seen: WeakKeyDictionary[Any, int] = WeakKeyDictionary() if _requests_seen is None else _requests_seen
    _requests_seen, task = seen, asyncio.current_task()
    before = seen.get(task, 0)
    seen[task] = cancel_requests()
    return before


def requests_of_groups(error: BaseException) -> int:
    """Return how many requests task groups have made and not taken back, in which the attempt failed.

    Before Python 3.13 a group that is already waiting for its tasks, when one of them fails, cancels the task
    it is in and never calls ``uncancel``.
    """
    left = 0
    for each in _chain(error) if sys.version_info < (3, 13) else ():
        trace = _trace.__get__(each)
        while trace is not None:
            frame, trace = trace.tb_frame, trace.tb_next
            module = frame.f_globals.get("__name__")
            if frame.f_code.co_name == "__aexit__" and module == "asyncio.taskgroups":
                left += bool(frame.f_locals["self"]._parent_cancel_requested)
    return left


def is_being_handled(error: BaseException) -> bool:
    """Return whether a caller is in an ``except`` block that handles this error.

    The first frame of a traceback is the one in which the exception is being handled.
    """
    trace = _trace.__get__(error)
    handler = None if trace is None else trace.tb_frame
    frame: Any = sys._getframe(1)
    while frame is not None and frame is not handler:
        frame = frame.f_back
    return frame is not None


def _chain(error: BaseException | None) -> list[BaseException]:
    """Return the error, and those that were being handled when it was raised."""
    chain: dict[int, BaseException] = {}
    while error is not None and id(error) not in chain:
        chain[id(error)] = error
        error = _context.__get__(error)
    return list(chain.values())
