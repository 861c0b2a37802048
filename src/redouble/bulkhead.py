"""How many calls may be under way at once?

A retry holds its connection for longer, so in an outage calls pile up. A bulkhead lets so many in and
turns the others away, or has some of them wait in line. Threads and tasks of any event loop share one:

    with bulkhead: ...              async with bulkhead: ...            @bulkhead

Whoever leaves hands the place straight to the one who waits longest. Nobody waits with a lock held: each
has a bell of its own, rung after the place is theirs. Interrupts come in calls and at the end of a loop's
turn, never between two plain assignments; the order of the lines below relies on that.
"""

from __future__ import annotations

import _thread
from collections import deque
from functools import partial
from weakref import ref

from ._checks import seconds_or_inf
from ._guard import Gate
from ._loops import in_event_loop, in_trio, time_limit
from ._numbers import INF, whole
from ._trouble import report
from ._turns import AsyncioTurn, ThreadTurn, TrioTurn, Turn
from .errors import BulkheadFull

__all__ = [
    "Bulkhead",
]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CoroutineType, TracebackType
    from typing import Any, Self, TypeAlias

    Waiter: TypeAlias = "ThreadTurn | AsyncioTurn | TrioTurn"


class _Claim(Turn):
    """The place of one ``with`` block.

    An exception that is raised from outside, by a signal handler or by another thread, may come when
    ``__exit__`` begins, before it can do anything. So each block has a way out of its own in the place of
    that method, which nobody else holds. Where that goes without having been taken, the place goes back.
    """

    __slots__ = ("_bulkhead", "_is_async", "_way")

    def __init__(self, bulkhead: Bulkhead, *, is_async: bool) -> None:
        super().__init__()
        self._bulkhead = bulkhead
        self._is_async = is_async
        self._way: ref[Any] | None = None

    def way_out(self) -> Any:
        """Return what is to be called at the end of the block."""
        way = partial(
            self._leave
        )  # whose frame, in the traceback of an interrupt, holds the claim but not this
        self._way = ref(way, self._gone)
        return way

    def is_open(self) -> bool:
        """Return whether a block has the way out, and has not taken it yet."""
        return self._way is not None and self._way() is not None

    def _leave(self, *_: object) -> Any:
        if self.granted:
            self._bulkhead._give_back(self)
        else:
            self._bulkhead.release()  # entered by other means: an ExitStack, or by hand
        self._way = None  # nobody is to see it go: an interrupt that came during that would be lost
        return _nothing() if self._is_async else None

    def _gone(self, _: object) -> None:
        self._way = None
        if self.granted:
            self._bulkhead._give_back(self)


class _Exit:
    """In the place of ``__exit__``: ``with`` looks it up before it enters, and gets a way out of its own."""

    def __init__(self, *, is_async: bool) -> None:
        self._is_async = is_async

    def __get__(self, bulkhead: Bulkhead | None, owner: object) -> Any:
        if bulkhead is None:  # of the class, as contextlib.ExitStack asks for it
            return self._leave
        claim = bulkhead._entering[_thread.get_ident()] = _Claim(bulkhead, is_async=self._is_async)
        return claim.way_out()

    def _leave(self, bulkhead: Bulkhead, *error: object) -> Any:
        return self.__get__(bulkhead, type(bulkhead))(*error)


async def _nothing() -> None:
    """What there is to await where all is done."""


class Bulkhead(Gate):
    """Lets at most ``limit`` calls be under way at once, and ``queue`` more wait for a place.

    As decorator and in ``with`` it raises `BulkheadFull` where there is no room. It is not reentrant: a call
    inside a call takes a second place. A forked child begins with all places free and nobody in line.

    >>> reports = Bulkhead(limit=1, name="reports")
    >>> with reports:
    ...     reports.acquire()
    False
    >>> reports.acquire(), reports
    (True, <reports: 1 of 1 under way, 0 waiting>)
    """

    def __init__(self, limit: int, queue: int = 0, *, name: str | None = None) -> None:
        super().__init__(name)
        self.limit = whole("limit", limit, at_least=1)
        """How many calls may be under way at once."""
        self.queue = whole("queue", queue, at_least=0)
        """How many more may wait for a place."""
        # Those who were handed a place count as under way, so while anybody waits, all places are taken.
        self._under_way = 0
        self._line: deque[Waiter] = deque()
        self._inherited = 0
        # Of each thread the claim of the ``with`` that is about to enter.
        self._entering: dict[int, _Claim] = {}

    @property
    def under_way(self) -> int:
        """How many places are taken."""
        return self._under_way

    @property
    def waiting(self) -> int:
        """How many wait for a place."""
        return self.snapshot()[1]

    @property
    def at_rest(self) -> bool:
        """Whether nobody is under way: a new bulkhead would do the same."""
        return not self._under_way

    def snapshot(self) -> tuple[int, int]:
        """How many are under way and how many wait, both of one instant."""
        with self._lock:
            waiting = len(self._swept())
            return self._under_way, waiting

    def refusal(self) -> BulkheadFull:
        """The error for a call that found no place."""
        return BulkheadFull(
            f"{self.name} is full: at most {self.limit} may be under way at once and {self.queue} may wait "
            f"(limit={self.limit}, queue={self.queue}); call again later, or allow more",
            name=self.name,
            limit=self.limit,
        )

    def acquire(self, timeout: float | None = None) -> bool:
        """Takes a place, and waits for one if there is room in the queue.

        False, with nothing taken, if there is none, or if none became free within ``timeout`` seconds
        (``None``: however long it takes; 0: no wait). What was taken must be given back by ``release``.
        """
        patience = INF if timeout is None else seconds_or_inf("timeout", timeout)
        if self._take():
            return True
        if not self.queue or not patience:
            return False
        turn = ThreadTurn()
        try:
            if self._line_up(turn) and not turn.granted:
                if in_event_loop():
                    report(
                        self, f"{self.name} blocks all tasks of an event loop by a sync wait: use it async"
                    )
                turn.wait(patience)
            return self._withdraw(turn)
        except BaseException:
            self._give_up(turn)
            raise

    async def acquire_async(self, timeout: float | None = None) -> bool:
        """As ``acquire``, in a task of asyncio or trio. ``release`` is the same for both."""
        patience = INF if timeout is None else seconds_or_inf("timeout", timeout)
        if self._take():
            return True
        if not self.queue or not patience:
            return False
        turn = TrioTurn() if in_trio() else AsyncioTurn()
        try:
            if self._line_up(turn) and not turn.granted:
                if patience == INF:
                    await turn.wait()
                else:
                    with time_limit(patience):
                        await turn.wait()
            return self._withdraw(turn)
        except BaseException:
            self._give_up(turn)
            raise

    def release(self) -> None:
        """Gives a place back, from any thread: to the one who waits longest, if somebody does."""
        holder: Turn | None = None
        try:
            holder = Turn(granted=True)
            self._give_back(holder)
        except BaseException:
            # Perhaps an interrupt that came before the place was given back. If not, this does nothing.
            self._give_back(holder or Turn(granted=True))
            raise

    def _claim(self) -> Turn:
        """One who has a place, or is about to."""
        return Turn(granted=True)

    def _give_back(self, holder: Turn) -> None:
        """Gives the holder's place back; once, however often it is called."""
        with self._lock:
            # Where nobody waits it is done here, not deeper: a call whose stack is nearly full must be able
            # to give back what it could take.
            if holder.granted and self._under_way and not self._line:
                holder.granted, self._under_way = False, self._under_way - 1
        if holder.granted:
            self._pass_on(holder)

    def _take(self) -> bool:
        """Takes a place if one is free. None is, while others wait, so nobody is overtaken."""
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

    def _line_up(self, turn: Waiter) -> bool:
        """Whether there was a place, or room to wait for one."""
        with self._lock:
            # Asked first: from the look at the places on, nothing may be called before one is taken.
            waiting = len(self._swept())
            if self._under_way < self.limit:
                self._under_way, turn.granted = self._under_way + 1, True
            elif waiting < self.queue:
                self._line.append(turn)
            else:
                return False
        return True

    def _withdraw(self, turn: Waiter) -> bool:
        """Takes somebody out of the line. Whether they have a place."""
        with self._lock:
            if turn in self._line:
                self._line.remove(turn)
            return turn.granted

    def _give_up(self, turn: Waiter) -> None:
        """For somebody who can use no place any more: out of the line, and on with what they were handed."""
        if self._withdraw(turn):
            self._pass_on(turn)

    def _pass_on(self, holder: Turn) -> None:
        lost = self._hand_over(holder)
        while lost is not None:
            lost = self._hand_over(lost)

    def _hand_over(self, holder: Turn) -> Waiter | None:
        """Gives the holder's place to the next in line and wakes them; gives them if they cannot be woken."""
        heir: Waiter | None = None
        try:
            with self._lock:
                self._swept()
                heir = self._move(holder)
                self._swept()
            return None if heir is None or heir.wake() else heir
        except BaseException:
            if heir is not None:
                heir.wake()
            raise

    def _move(self, holder: Turn) -> Waiter | None:
        """The one place where places change hands; an interrupt finds it done or not begun."""
        if not holder.granted:
            return None  # moved on before: the loop of its task was gone, and now the task is
        holder.granted = False
        if self._line:
            heir = self._line[0]
            heir.granted = True
            return heir
        if self._under_way:
            self._under_way -= 1
        elif self._inherited:
            self._inherited -= 1
        else:
            raise RuntimeError(f"{self.name} was released more often than acquired: nobody is under way")
        return None

    def _swept(self) -> deque[Waiter]:
        """The line, without those in front who were handed a place."""
        while self._line and self._line[0].granted:
            self._line.popleft()
        return self._line

    def _after_fork(self) -> None:
        # The other threads are not there, neither those under way nor those in line. This one may be inside,
        # though, and must be able to give back what it took before.
        super()._after_fork()
        self._inherited, self._under_way = self._inherited + self._under_way, 0
        self._line = deque()

    def _enter(self) -> None:
        if not self.acquire():
            raise self.refusal()

    async def _aenter(self) -> None:
        if not await self.acquire_async():
            raise self.refusal()

    def __enter__(self) -> Self:
        claim = self._coming()
        self._enter()
        claim.granted = True
        return self

    def __aenter__(self) -> CoroutineType[Any, Any, Self]:
        entering: Any = self._enter_async(self._coming())  # now, before another task looks for its own
        made: CoroutineType[Any, Any, Self] = entering
        return made

    async def _enter_async(self, claim: Turn) -> Any:
        await self._aenter()
        claim.granted = True
        return self

    if TYPE_CHECKING:

        def __exit__(
            self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
        ) -> None: ...

        async def __aexit__(
            self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
        ) -> None: ...

    else:
        __exit__, __aexit__ = _Exit(is_async=False), _Exit(is_async=True)

    def _coming(self) -> Turn:
        """Return the claim that was made for the ``with`` which enters now, or one that nobody watches."""
        claim = self._entering.pop(_thread.get_ident(), None)
        return claim if claim is not None and claim.is_open() else Turn()

    def _around(self, function: Any) -> Any:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return wrapper

    def _around_async(self, function: Any) -> Any:
        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            async with self:
                return await function(*args, **kwargs)

        return wrapper

    def __repr__(self) -> str:
        under_way, waiting = self.snapshot()
        return f"<{self.name}: {under_way} of {self.limit} under way, {waiting} waiting>"
