"""What the shared guards have in common.

A guard is the state of a dependency, shared on purpose by any number of threads and tasks. It compares
by identity, is never copied, and does not pickle. Its lock is held for a few lines, never while code of
the user runs, and no two at once; a forked child gets new ones, whoever held them.

A `Gate` stands around a call: as decorator and as context manager, sync and async.
"""

from __future__ import annotations

import _thread
import os
import sys
import time
from _weakrefset import WeakSet
from contextvars import ContextVar

from ._callables import ASYNC, SYNC, claims_async, close, flavour, look_like, name_of
from ._checks import optional, text
from ._time import clock_of, fakes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Any, NoReturn, Self, TypeVar

    F = TypeVar("F")


class InterruptSafeLock(_thread.RLock):  # type: ignore[misc]  # pyright: ignore[reportGeneralTypeIssues]
    """A lock that no interrupt leaves held, for a Python whose ``with`` does.

    Python 3.14 looks for signals after it has called ``__enter__`` and before it is in the block: what a
    handler raises there comes out of a ``with`` that never lets go. 3.15 does not, but lets a profiler in
    there. Unpacking calls without either.
    """

    __slots__ = ()

    def __enter__(self) -> bool:  # type: ignore[override]
        [held] = map(self.acquire, (True,))
        return held


# Reentrant: a signal handler, or a finalizer that the collector runs in the middle of a section, may come
# back here in the same thread.
Lock = InterruptSafeLock if sys.version_info >= (3, 14) else _thread.RLock


class Guard:
    """State of a dependency, shared on purpose. Safe to share between threads and tasks."""

    is_async = False
    """Whether its answers must be awaited: a guard on an asyncio client."""

    def __init__(self, name: str | None, clock: Callable[[], float] | None = None) -> None:
        self.name: str = optional(text)("name", name) or type(self).__name__
        """What it is called in messages, events and logs."""
        self._clock = clock
        self._new_lock()
        _guards.add(self)

    def _new_lock(self) -> None:
        self._lock = Lock()

    def _now(self) -> float:
        """Monotonic seconds, by its own clock or the real one."""
        if fakes:
            return clock_of(self._clock)()
        return self._clock() if self._clock is not None else time.monotonic()

    def _after_fork(self) -> None:
        """In a forked child: the threads that held the lock are not there to let go of it."""
        self._new_lock()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(
            f"{self.name} ({type(self).__name__}) is shared within one process and cannot be pickled: "
            "make one in each process, or share the state with redouble.shared"
        )

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self


_guards: WeakSet[Guard] = WeakSet()


def _after_fork() -> None:
    for guard in list(_guards):
        guard._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class Gate(Guard):
    """A guard around a call. Subclasses say what it takes to get in, and what happens on the way out.

    ``_enter`` gives a ticket or raises; ``_leave`` takes it back, with what the call ended with: ``None``,
    an error, or an interrupt. The two in front with an ``a`` are the same for async calls.
    """

    def _enter(self) -> Any:
        raise NotImplementedError

    def _leave(self, ticket: Any, error: BaseException | None) -> Any:
        raise NotImplementedError

    async def _aenter(self) -> Any:
        return self._enter()

    async def _aleave(self, ticket: Any, error: BaseException | None) -> None:
        self._leave(ticket, error)

    def __call__(self, function: F, /) -> F:
        """Decorates a function, sync or async: every call of it passes this guard."""
        decorated: F = look_like(_guarded(self, function), function)
        return decorated

    def __enter__(self) -> Self:
        if self.is_async:
            raise TypeError(f"{self.name} must be awaited: write 'async with'")
        ticket = self._enter()
        try:
            _push(self, ticket)
        except BaseException as error:  # an interrupt, in between
            self._leave(ticket, error)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave(_pop(self), error)

    async def __aenter__(self) -> Self:
        ticket = await self._aenter()
        try:
            _push(self, ticket)
        except BaseException as error:
            await self._aleave(ticket, error)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._aleave(_pop(self), error)

    def _around(self, function: Any) -> Any:
        """The function, every call of which passes this guard."""

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            ticket = self._enter()
            try:
                result = function(*args, **kwargs)
            except BaseException as error:
                self._leave(ticket, error)
                raise
            self._leave(ticket, None)
            return result

        return wrapper

    def _around_async(self, function: Any) -> Any:
        """The same for an async function."""

        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            ticket = await self._aenter()
            try:
                result = await function(*args, **kwargs)
            except BaseException as error:
                await self._aleave(ticket, error)
                raise
            await self._aleave(ticket, None)
            return result

        return wrapper


# The gates that were entered with ``with`` here, innermost last: one gate may be open in many contexts.
_entered: ContextVar[tuple[tuple[Gate, Any], ...]] = ContextVar("redouble gates", default=())


def _push(gate: Gate, ticket: Any) -> None:
    _entered.set((*_entered.get(), (gate, ticket)))


def _pop(gate: Gate) -> Any:
    """The ticket with which this gate was entered last here; ``None`` in another context."""
    entered = list(_entered.get())
    for place in range(len(entered) - 1, -1, -1):
        if entered[place][0] is gate:
            ticket = entered.pop(place)[1]
            _entered.set(tuple(entered))
            return ticket
    return None


def _guarded(gate: Gate, function: Any) -> Any:
    if isinstance(function, type) or not callable(function):
        close(function)
        raise TypeError(f"{gate.name} cannot guard {function!r}: decorate a function")
    kind = ASYNC if claims_async(function) else flavour(function)
    if kind not in (SYNC, ASYNC):
        raise TypeError(
            f"{gate.name} cannot guard {name_of(function)}: a {kind} is not over when it is called"
        )
    if kind == SYNC and gate.is_async:
        raise TypeError(f"{gate.name} must be awaited, and {name_of(function)} is sync")
    return gate._around_async(function) if kind == ASYNC else gate._around(function)
