"""`Guard` and `Gate`: base classes of budgets, breakers, throttles and bulkheads.

A guard is the state of one dependency, shared by any number of threads and tasks. It compares by identity, is
never copied, and cannot be pickled. Its lock is held for a few lines, never while user code runs, and never
together with another one. A forked child gets new locks.

A `Gate` is a guard around a call: decorator and context manager, sync and async.
"""

from __future__ import annotations

import _thread
import os
import sys
import time
from _weakrefset import WeakSet
from contextvars import ContextVar

from .._base.callables import ASYNC, SYNC, close, look_like, name_of, sync_or_async
from .._base.checks import optional, text
from .._base.clock import clock_of, fakes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn, Self, TypeVar

    F = TypeVar("F")


class InterruptSafeLock(_thread.RLock):  # type: ignore[misc]  # pyright: ignore[reportGeneralTypeIssues]
    """A reentrant lock that an interrupt in ``with`` cannot leave held, for Python 3.14 and later.

    Python 3.14 runs signal handlers after ``__enter__`` returns and before the block begins; if a handler
    raises there, ``__exit__`` is never called. 3.15 calls profilers there. Unpacking does neither.
    """

    __slots__ = ()

    def __enter__(self) -> bool:  # type: ignore[override]
        [held] = map(self.acquire, (True,))
        return held


# Reentrant: a signal handler, or a finalizer run by the garbage collector, may use a guard in the middle of a
# section of the same thread.
Lock = InterruptSafeLock if sys.version_info >= (3, 14) else _thread.RLock


class Guard:
    """Base class of all guards: name, clock and lock.

    >>> from redouble.budget import TokenBudget
    >>> import copy, pickle
    >>> budget = TokenBudget(name="payments")
    >>> copy.deepcopy(budget) is budget
    True
    >>> pickle.dumps(budget)  # doctest: +NORMALIZE_WHITESPACE
    Traceback (most recent call last):
    TypeError: payments (TokenBudget) belongs to one process and cannot be pickled: make one in each process,
        or share the state with redouble.shared
    """

    is_async = False
    """Whether its methods return awaitables, as those of a guard on an asyncio client do."""
    # Whether its methods may wait for a store, so that a call tells how much time it has left.
    _remote = False

    def __init__(self, name: str | None, clock: Callable[[], float] | None = None) -> None:
        self.name: str = optional(text)("name", name) or type(self).__name__
        """The name in messages, events and logs."""
        self._clock = clock
        self._lock = Lock()
        _guards.add(self)

    def _now(self) -> float:
        """Return monotonic seconds, by its own clock or the real one."""
        if fakes:
            return clock_of(self._clock)()
        return self._clock() if self._clock is not None else time.monotonic()

    def _after_fork(self) -> None:
        """Replace the lock in a forked child: the thread that held it is not there to release it."""
        self._lock = Lock()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        shared = "" if self._remote else ", or share the state with redouble.shared"
        raise TypeError(
            f"{self.name} ({type(self).__name__}) belongs to one process and cannot be pickled: "
            f"make one in each process{shared}"
        )

    def __copy__(self, memo: object = None) -> Self:
        return self

    __deepcopy__ = __copy__


_guards: WeakSet[Guard] = WeakSet()


def _after_fork() -> None:
    """Replace the locks of all guards in a forked child."""
    for guard in list(_guards):
        guard._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class Gate(Guard):
    """A guard around a call.

    Subclasses implement ``_enter``, which returns a ticket or raises, and ``_leave``, which takes the
    ticket and how the call ended: an error (or interrupt), or ``None`` and the result. A ``with`` block has
    no result. ``_aenter`` and ``_aleave`` are the same for async calls; if ``is_async`` is
    true, they await what ``_enter`` and ``_leave`` return.
    """

    def _enter(self) -> Any:
        """Admit a call and return its ticket, or raise."""
        raise NotImplementedError

    def _leave(self, ticket: Any, error: BaseException | None, result: Any = None) -> Any:
        """Take back the ticket of a call that has ended."""
        raise NotImplementedError

    async def _aenter(self) -> Any:
        """Admit an async call and return its ticket, or raise."""
        ticket = self._enter()
        return (await ticket) if self.is_async else ticket

    async def _aleave(self, ticket: Any, error: BaseException | None, result: Any = None) -> None:
        """Take back the ticket of an async call that has ended."""
        left = self._leave(ticket, error, result)
        if left is not None and self.is_async:
            await left

    def __call__(self, function: F, /) -> F:
        """Decorate a function, sync or async: each call of it passes this guard."""
        if isinstance(function, type) or not callable(function):
            close(function)
            raise TypeError(f"{self.name} cannot guard {function!r}: decorate a function")
        kind = sync_or_async(f"{self.name} cannot guard {name_of(function)}", function)
        if kind == SYNC and self.is_async:
            name = name_of(function)
            raise TypeError(f"{self.name} must be awaited, and {name} is sync: make it async")
        wrapper = self._around_async(function) if kind == ASYNC else self._around(function)
        decorated: F = look_like(wrapper, function)
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

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._leave(_pop(self), error)

    async def __aenter__(self) -> Self:
        ticket = await self._aenter()
        try:
            _push(self, ticket)
        except BaseException as error:
            await self._aleave(ticket, error)
            raise
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        await self._aleave(_pop(self), error)

    def _around(self, function: Any) -> Any:
        """Return a wrapper of a sync function."""

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            ticket = self._enter()
            try:
                result = function(*args, **kwargs)
            except BaseException as error:
                self._leave(ticket, error)
                raise
            self._leave(ticket, None, result)
            return result

        return wrapper

    def _around_async(self, function: Any) -> Any:
        """Return a wrapper of an async function."""

        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            ticket = await self._aenter()
            try:
                result = await function(*args, **kwargs)
            except BaseException as error:
                await self._aleave(ticket, error)
                raise
            await self._aleave(ticket, None, result)
            return result

        return wrapper


# The gates that were entered with ``with`` in this context and their tickets, innermost last.
_entered: ContextVar[tuple[tuple[Gate, Any], ...]] = ContextVar("redouble gates", default=())


def _push(gate: Gate, ticket: Any) -> None:
    """Remember the ticket with which a gate was entered in this context."""
    _entered.set((*_entered.get(), (gate, ticket)))


def _pop(gate: Gate) -> Any:
    """Return the ticket with which this gate was entered last; ``None`` if that was in another context."""
    entered = _entered.get()
    for index in range(len(entered) - 1, -1, -1):
        if entered[index][0] is gate:
            _entered.set((*entered[:index], *entered[index + 1 :]))
            return entered[index][1]
    return None
