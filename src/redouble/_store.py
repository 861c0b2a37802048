"""A guard whose state is in a store that others share, and whose local twin stands in when the store is away.

A store that fails, or that takes longer than ``slow`` seconds, is away: the twin answers instead, and the
call that is guarded never notices. Once in ``retry_in`` seconds one caller tries the store again. Every
answer of the store is copied to the twin, which so begins with what was seen last.

The same words are spoken to a sync and to an async store. What to do with the answer is given along.
"""

from __future__ import annotations

from . import _checks as check
from ._guard import Guard
from ._loops import in_trio, time_limit
from ._text import kind_of, masked_line, shown
from .events import StoreChanged, emit, wanted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable
    from datetime import timedelta
    from typing import Any, Protocol

    from .events import Event

    Listener = Callable[[Event], object]
    Words = tuple[Any, ...]
    # The type of an error and its message: the error itself would keep frames alive.
    Trouble = tuple[str, str]

    class Link(Protocol):
        """A way to a store."""

        is_async: bool

        def run(self, words: Words, /) -> Any:
            """Asks the store; what comes back is awaited where the link is async."""


class Later:
    """Something to await that has nothing to wait for."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._make()
        yield


def nothing() -> None:
    """What is done where nothing is to be done."""


class Shared(Guard):
    """A guard in front of a store. Subclasses know the words and have the twin."""

    _link: Link
    listeners: tuple[Listener, ...]
    """Called when the store is away, and when it is back."""
    slow: float
    """A store that takes longer than so many seconds counts as away."""
    retry_in: float
    """A store that is away is tried again after so many seconds."""

    def _use(
        self,
        link: Link,
        read: Callable[[Any], Any],
        slow: float | timedelta,
        retry_in: float | timedelta,
        listeners: Iterable[Listener],
    ) -> None:
        self._link = link
        self._read = read  # an answer that makes no sense is an error, and the store as good as away
        self.is_async = link.is_async
        self.slow = check.some_seconds("slow", slow)
        self.retry_in = check.some_seconds("retry_in", retry_in)
        self.listeners = check.listeners("listeners", listeners)
        self._retry_at: float | None = None
        self._trying = False

    @property
    def available(self) -> bool:
        """Whether the store answered when it was last asked; if not, the local twin is in charge."""
        return self._retry_at is None

    def _at_once(self, make: Callable[[], Any]) -> Any:
        """What needs no store, in the flavour of the store."""
        return Later(make) if self.is_async else make()

    def _ask(
        self,
        words: Words,
        answered: Callable[[Any], Any],
        otherwise: Callable[[], Any],
        lost: Callable[[], None] = nothing,
    ) -> Any:
        """Asks the store and gives ``answered(answer)``; while it is away, ``otherwise()``.

        ``lost`` is called where the store was asked and nobody knows what it did: it failed, took too
        long, or the caller was interrupted.
        """
        ask = self._ask_and_await if self.is_async else self._ask_and_wait
        return ask(words, answered, otherwise, lost)

    def _ask_and_wait(
        self,
        words: Words,
        answered: Callable[[Any], Any],
        otherwise: Callable[[], Any],
        lost: Callable[[], None],
    ) -> Any:
        if not self._may_ask():
            return otherwise()
        try:
            began = self._now()
            answer = self._read(self._link.run(words))
            took = self._now() - began
        except Exception as error:  # noqa: BLE001 - whatever a store fails with is not the call's failure
            trouble = _trouble_of(error)
        except BaseException:
            self._give_up_asking(lost)
            raise
        else:
            # It is late, but it is the answer; those who come next need not wait as long.
            self._settle(self._slowness(took) if took > self.slow else None)
            return answered(answer)
        lost()
        self._settle(trouble)
        return otherwise()

    async def _ask_and_await(
        self,
        words: Words,
        answered: Callable[[Any], Any],
        otherwise: Callable[[], Any],
        lost: Callable[[], None],
    ) -> Any:
        if not self._may_ask():
            return otherwise()
        try:
            answer, trouble = await self._within_time(words)
        except BaseException:
            self._give_up_asking(lost)
            raise
        if trouble is None:
            self._settle(None)
            return answered(answer)
        lost()
        self._settle(trouble)
        return otherwise()

    async def _within_time(self, words: Words) -> tuple[Any, Trouble | None]:
        """The answer; or none, and why."""
        answer, trouble, cancelled_before = None, None, _cancellations()
        try:
            with time_limit(self.slow) as limit:
                answer = self._read(await self._link.run(words))
            if limit.struck:
                trouble = self._slowness(self.slow)
        except Exception as error:  # noqa: BLE001 - whatever a store fails with is not the call's failure
            trouble = _trouble_of(error)
        if _cancellations() > cancelled_before:
            # A client that waits with asyncio.wait_for swallows a cancellation now and then, before
            # Python 3.12. The task is to end all the same.
            import asyncio

            raise asyncio.CancelledError
        return answer, trouble

    def _may_ask(self) -> bool:
        """Whether to ask the store: while it is away, one caller at a time may, and not too soon."""
        if self.available:
            return True
        now = self._now()
        with self._lock:
            if self._retry_at is None:
                return True
            if self._trying or now < self._retry_at:
                return False
            self._trying = True
        return True

    def _give_up_asking(self, lost: Callable[[], None]) -> None:
        """The caller was interrupted, which says nothing about the store: another may try."""
        self._trying = False
        lost()

    def _settle(self, trouble: Trouble | None) -> None:
        """The store has answered, or not: a change is told once, when it is made and the lock is free."""
        if trouble is None and self._retry_at is None:
            return
        retry_at = None if trouble is None else self._now() + self.retry_in
        with self._lock:
            changed = (self._retry_at is None) is not (retry_at is None)
            self._retry_at = retry_at
            self._trying = False
        if changed and wanted(self.listeners):
            kind, message = trouble or (None, None)
            event = StoreChanged(self.name, available=trouble is None, error_type=kind, error_message=message)
            emit(event, self.listeners, logged=True)

    def _slowness(self, took: float) -> Trouble:
        return "TimeoutError", f"no answer within {self.slow:g} s" + (
            f": it took {took:.3g} s" if took > self.slow else ""
        )

    def _after_fork(self) -> None:
        super()._after_fork()
        self._trying = False  # whoever tries is in the parent


def _cancellations() -> int:
    """How often the running task was asked to end; trio does not let anybody swallow that."""
    if in_trio():
        return 0
    import asyncio

    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


def _trouble_of(error: Exception) -> Trouble:
    return kind_of(error), masked_line(shown(error))
