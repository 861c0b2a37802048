"""`Bulkhead`: limit the calls in flight, with a queue.

A retried call holds its connection longer, so in an outage calls pile up. A bulkhead admits ``limit`` calls
at a time, has ``queue`` more wait, and rejects the others. Threads and tasks of any event loop share one::

    with bulkhead: ...              async with bulkhead: ...            @bulkhead

Slots are handed over in FIFO order. Each waiter waits on its own event, never while holding the lock, and
is woken after the slot is its own. Interrupts are raised in calls and at the end of an iteration, never
between two plain assignments; the order of the lines below relies on that.
"""

from __future__ import annotations

import _thread
from collections import deque
from functools import partial
from weakref import ref

from ._base.checks import INF, seconds_or_inf, whole
from ._base.log_once import warn_once
from ._base.loops import in_event_loop, time_limit
from ._guards.base import Gate
from ._guards.waiters import Permit, TaskWaiter, ThreadWaiter
from .errors import BulkheadFull

__all__ = ["Bulkhead"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CoroutineType
    from typing import Any, Self, TypeAlias

    Waiter: TypeAlias = "ThreadWaiter | TaskWaiter"


class _BlockPermit(Permit):
    """The permit of one ``with`` block.

    An exception from outside, raised by a signal handler or by another thread, may come when ``__exit__``
    begins, before its first line. So each block gets an exit function of its own in the place of
    ``__exit__``, which only the block refers to. If that function is destroyed without having been called,
    the slot is released.
    """

    __slots__ = ("_bulkhead", "_exit", "_is_async")

    def __init__(self, bulkhead: Bulkhead, *, is_async: bool) -> None:
        super().__init__()
        self._bulkhead = bulkhead
        self._is_async = is_async
        self._exit: ref[Any] | None = None

    def exit_function(self) -> Any:
        """Return the function to be called at the end of the block."""
        # A partial: the frame of `_leave`, in the traceback of an interrupt, refers to the permit but not
        # to it.
        function = partial(self._leave)
        self._exit = ref(function, self._destroyed)
        return function

    def is_open(self) -> bool:
        """Return whether a block has the exit function and has not called it yet."""
        return self._exit is not None and self._exit() is not None

    def _leave(self, *_: object) -> Any:
        """Release the slot at the end of the block."""
        if self.granted:
            self._bulkhead._release(self)
        else:
            self._bulkhead.release()  # entered by other means: an ExitStack, or by hand
        self._exit = None  # no weakref callback: an interrupt during it would be lost
        return _nothing() if self._is_async else None

    def _destroyed(self, _: object) -> None:
        """Release the slot of a block whose exit function was never called."""
        self._exit = None
        if self.granted:
            self._bulkhead._release(self)


class _Exit:
    """Descriptor for ``__exit__``: ``with`` looks it up before it enters, and gets its own exit function."""

    def __init__(self, *, is_async: bool) -> None:
        self._is_async = is_async

    def __get__(self, bulkhead: Bulkhead | None, owner: object) -> Any:
        if bulkhead is None:  # looked up on the class, as contextlib.ExitStack does
            return self._leave
        permit = bulkhead._entering[_thread.get_ident()] = _BlockPermit(bulkhead, is_async=self._is_async)
        return permit.exit_function()

    def _leave(self, bulkhead: Bulkhead, *error: object) -> Any:
        """Release a slot, for callers that pass the bulkhead."""
        return self.__get__(bulkhead, type(bulkhead))(*error)


async def _nothing() -> None:
    """Do nothing: what ``__aexit__`` returns when the slot is released already."""


class Bulkhead(Gate):
    """Admits at most ``limit`` calls at a time; ``queue`` more may wait for a slot.

    As decorator and in ``with`` it raises `BulkheadFull` if there is no room. It is not reentrant: a call
    inside a call takes a second slot. A forked child starts with all slots free and an empty queue.

    In a policy one slot is held for the whole call. Below ``@retry``, as a decorator, each attempt takes one.

    >>> reports = Bulkhead(limit=1, name="reports")
    >>> with reports:
    ...     reports.acquire()
    False
    >>> reports.acquire(), reports
    (True, <reports: 1 of 1 in flight, 0 waiting>)
    """

    def __init__(self, limit: int, queue: int = 0, *, name: str | None = None) -> None:
        super().__init__(name)
        self.limit = whole("limit", limit, at_least=1)
        """The largest number of calls in flight."""
        self.queue = whole("queue", queue, at_least=0)
        """How many more calls may wait for a slot."""
        # A waiter that was handed a slot counts as in flight, so while there are waiters no slot is free.
        self._under_way = 0
        self._queue: deque[Waiter] = deque()
        # Slots that were taken before a fork.
        self._inherited = 0
        # The permit of the ``with`` that is about to enter, by thread.
        self._entering: dict[int, _BlockPermit] = {}

    @property
    def under_way(self) -> int:
        """The number of slots taken."""
        return self._under_way

    @property
    def waiting(self) -> int:
        """The number of waiters."""
        return self.snapshot()[1]

    @property
    def at_rest(self) -> bool:
        """Whether no slot is taken, so that a registry may evict it."""
        return not self._under_way

    def snapshot(self) -> tuple[int, int]:
        """Return the number of slots taken and of waiters, both at one moment.

        >>> bulkhead = Bulkhead(limit=2, queue=5)
        >>> with bulkhead:
        ...     bulkhead.snapshot()
        (1, 0)
        """
        with self._lock:
            waiting = self._count_waiters()
            return self._under_way, waiting

    def refusal(self) -> BulkheadFull:
        """Return the error for a call that found no slot."""
        return BulkheadFull(
            f"{self.name} is full: at most {self.limit} in flight and {self.queue} waiting "
            f"(limit={self.limit}, queue={self.queue}); call again later, or raise the limits",
            name=self.name,
            limit=self.limit,
        )

    def acquire(self, timeout: float | None = None) -> bool:
        """Take a slot; wait for one if there is room in the queue. Call `release` to give it back.

        Return false, with nothing taken, if the queue is full or no slot became free within ``timeout``
        seconds (``None``: no limit; 0: do not wait).
        """
        patience = INF if timeout is None else seconds_or_inf("timeout", timeout)
        if self._take():
            return True
        if not self.queue or not patience:
            return False
        waiter = ThreadWaiter()
        try:
            if self._enqueue(waiter):
                if in_event_loop():
                    warn_once(
                        self, f"{self.name} blocks all tasks of an event loop by a sync wait: use it async"
                    )
                waiter.wait(patience)
            return self._dequeue(waiter)
        except BaseException:
            self._abandon(waiter)
            raise

    async def acquire_async(self, timeout: float | None = None) -> bool:
        """Like `acquire`, in a task of asyncio or trio. `release` is the same for both.

        A waiter that is cancelled leaves the queue. If it was handed a slot at that moment, it passes it on.
        """
        patience = INF if timeout is None else seconds_or_inf("timeout", timeout)
        if self._take():
            return True
        if not self.queue or not patience:
            return False
        waiter = TaskWaiter()
        try:
            if self._enqueue(waiter):
                with time_limit(None if patience == INF else patience):
                    await waiter.wait()
            return self._dequeue(waiter)
        except BaseException:
            self._abandon(waiter)
            raise

    def release(self) -> None:
        """Give a slot back, from any thread. The waiter that has waited longest gets it."""
        permit: Permit | None = None
        try:
            permit = Permit(granted=True)
            self._release(permit)
        except BaseException:
            # Perhaps an interrupt before the slot was released. If it came later, this does nothing.
            self._release(permit or Permit(granted=True))
            raise

    def _permit(self) -> Permit:
        """Return a permit for a slot that the caller is about to take."""
        return Permit(granted=True)

    def _release(self, permit: Permit) -> None:
        """Release the slot of a permit, once, however often this is called."""
        with self._lock:
            # Without waiters it is done here, not deeper: a call whose stack is nearly full must be able to
            # release what it could take.
            if permit.granted and self._under_way and not self._queue:
                permit.granted, self._under_way = False, self._under_way - 1
        if permit.granted:
            self._hand_over(permit)

    def _take(self) -> bool:
        """Take a slot if one is free. None is while there are waiters, so no waiter is overtaken."""
        taken = False
        try:
            with self._lock:
                if self._under_way < self.limit:
                    self._under_way, taken = self._under_way + 1, True
        except BaseException:
            if taken:
                self.release()
            raise
        return taken

    def _enqueue(self, waiter: Waiter) -> bool:
        """Grant a slot, or append the waiter to the queue if there is room; return whether it must wait."""
        with self._lock:
            # First: nothing may be called between the look at the slots and taking one.
            waiting = self._count_waiters()
            if self._under_way < self.limit:
                self._under_way, waiter.granted = self._under_way + 1, True
            elif waiting < self.queue:
                self._queue.append(waiter)
                return True
        return False

    def _dequeue(self, waiter: Waiter) -> bool:
        """Remove a waiter from the queue. Return whether it has a slot."""
        with self._lock:
            if waiter in self._queue:
                self._queue.remove(waiter)
            return waiter.granted

    def _abandon(self, waiter: Waiter) -> None:
        """Remove a waiter that cannot use a slot any more, and pass on the slot that it was handed."""
        if self._dequeue(waiter):
            self._hand_over(waiter)

    def _hand_over(self, permit: Permit) -> None:
        """Give the slot of a permit to the next waiter that can be woken, or free it."""
        holder: Permit | None = permit
        while holder is not None:
            heir: Waiter | None = None
            try:
                with self._lock:
                    self._count_waiters()
                    heir = self._move(holder)
                    self._count_waiters()
                holder = None if heir is None or heir.wake() else heir
            except BaseException:
                if heir is not None:
                    heir.wake()
                raise

    def _move(self, permit: Permit) -> Waiter | None:
        """Move a slot from a permit to the first waiter and return that, or free the slot. Under the lock.

        An interrupt finds this done or not begun.
        """
        if not permit.granted:
            return None  # passed on before, when the event loop of its task was closed
        permit.granted = False
        if self._queue:
            heir = self._queue[0]
            heir.granted = True
            return heir
        if self._under_way:
            self._under_way -= 1
        elif self._inherited:
            self._inherited -= 1
        else:
            raise RuntimeError(
                f"{self.name} was released more often than acquired: no call is in flight; "
                "call release() once for each acquire() that returned true"
            )
        return None

    def _count_waiters(self) -> int:
        """Drop waiters in front that were handed a slot, and return how many are left. Under the lock."""
        while self._queue and self._queue[0].granted:
            self._queue.popleft()
        return len(self._queue)

    def _after_fork(self) -> None:
        """Free all slots in a forked child, and forget the waiters.

        No other thread is there, neither in flight nor waiting. This thread may hold slots, and must be able
        to release them.
        """
        super()._after_fork()
        self._inherited, self._under_way = self._inherited + self._under_way, 0
        self._queue = deque()

    def __enter__(self) -> Self:
        permit = self._entering_permit()
        if not self.acquire():
            raise self.refusal()
        permit.granted = True
        return self

    def __aenter__(self) -> CoroutineType[Any, Any, Self]:
        entering: Any = self._enter_async(self._entering_permit())  # now, before another task enters
        made: CoroutineType[Any, Any, Self] = entering
        return made

    async def _enter_async(self, permit: Permit) -> Any:
        """Take a slot for an ``async with`` block, or raise `BulkheadFull`."""
        if not await self.acquire_async():
            raise self.refusal()
        permit.granted = True
        return self

    __exit__: Any = _Exit(is_async=False)
    __aexit__: Any = _Exit(is_async=True)

    def _entering_permit(self) -> Permit:
        """Return the permit made for the ``with`` that enters now, or another for a block entered by hand."""
        permit = self._entering.pop(_thread.get_ident(), None)
        return permit if permit is not None and permit.is_open() else Permit()

    def _around(self, function: Any) -> Any:
        """Return a wrapper of a sync function, by ``with``: interrupts lose no slot."""

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return wrapper

    def _around_async(self, function: Any) -> Any:
        """Return a wrapper of an async function, by ``async with``."""

        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            async with self:
                return await function(*args, **kwargs)

        return wrapper

    def __repr__(self) -> str:
        under_way, waiting = self.snapshot()
        return f"<{self.name}: {under_way} of {self.limit} in flight, {waiting} waiting>"
