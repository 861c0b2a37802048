"""A guard whose state is in a store that others share, and whose local twin stands in when the store is away.

A store that fails, or that takes longer than ``slow`` seconds, is away: the twin answers instead, and the
call that is guarded never notices. Once in ``retry_in`` seconds one caller tries the store again, by a
question that writes: a read-only replica or a full server answers questions that only read, and would be
believed. Every answer of the store is copied to the twin, which so begins with what was seen last.

The same words are spoken to a sync and to an async store. What to do with the answer is given along.
"""

from __future__ import annotations

from . import _checks as check
from ._guard import Guard
from ._loops import in_trio, time_limit
from ._numbers import INF
from ._text import kind_of, masked_line, shown
from .classify import Cause, verdict
from .context import here, shorter, time_given, time_left
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
        cuts_off: bool  # whether it ends a question that takes longer than it may

        def run(self, words: Words, patience: float, /) -> Any:
            """Asks the store; what comes back is awaited where the link is async.

            The last word is true where the store must prove that it can be written to.
            """


# How much of the time that a call has left one question may take: the function is to be called, too.
_PART = 0.25
# For so many times ``retry_in`` a caller with too little time leaves it to others to try a sync client.
_LEFT_TO_OTHERS = 9


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
        self._back_at = -INF
        self._silent_since: float | None = None

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
        return ask(words, self._patience(), answered, otherwise, lost)

    def _patience(self) -> float:
        """Return how long the store may take: ``slow``, but never more than a part of the call's own time."""
        around = here()
        left = shorter(time_given.get(), None if around is None else time_left(around))
        return self.slow if left is None else min(self.slow, left * _PART)

    def _ask_and_wait(
        self,
        words: Words,
        patience: float,
        answered: Callable[[Any], Any],
        otherwise: Callable[[], Any],
        lost: Callable[[], None],
    ) -> Any:
        proving = self._may_ask(patience)
        if proving is None:
            return otherwise()
        began = self._now()
        try:
            answer = self._read(self._link.run((*words, proving), patience))
            took = self._now() - began
        except Exception as failure:  # noqa: BLE001 - whatever a store fails with is not the call's failure
            trouble, dropped = _trouble_of(failure), _was_dropped(failure)
        except BaseException:
            self._give_up_asking(proving, lost)
            raise
        else:
            # It is late, but it is the answer; those who come next need not wait as long.
            self._settle(proving, began, self._slowness(took) if took > self.slow else None)
            return answered(answer)
        lost()
        cut = patience <= self._now() - began < self.slow
        self._settle(proving, began, trouble, cut=cut, dropped=dropped)
        return otherwise()

    async def _ask_and_await(
        self,
        words: Words,
        patience: float,
        answered: Callable[[Any], Any],
        otherwise: Callable[[], Any],
        lost: Callable[[], None],
    ) -> Any:
        proving = self._may_ask(self.slow)
        if proving is None:
            return otherwise()
        began, answer, trouble, cut, dropped = self._now(), None, None, False, False
        cancelled_before = _cancellations()
        try:
            try:
                with time_limit(patience) as limit:
                    answer = self._read(await self._link.run((*words, proving), patience))
                if limit.struck:
                    trouble, cut = self._slowness(patience), patience < self.slow
            except Exception as failure:  # noqa: BLE001 - whatever a store fails with is not the call's failure
                trouble, dropped = _trouble_of(failure), _was_dropped(failure)
            if _cancellations() > cancelled_before:
                # A client that waits with asyncio.wait_for swallows a cancellation now and then, before
                # Python 3.12. The task is to end all the same.
                import asyncio

                raise asyncio.CancelledError
        except BaseException:
            self._give_up_asking(proving, lost)
            raise
        if trouble is None:
            self._settle(proving, began, None)
            return answered(answer)
        lost()
        self._settle(proving, began, trouble, cut=cut, dropped=dropped)
        return otherwise()

    def _may_ask(self, patience: float) -> bool | None:
        """Whether to ask the store, and whether the question must prove that it is back; ``None``: not now.

        While it is away one caller at a time tries it, and not too soon. A sync client cannot be cut off, so
        a caller with little time leaves that to others for a while.
        """
        if self.available:
            return False
        now = self._now()
        longer = 0.0 if patience >= self.slow or self._link.cuts_off else _LEFT_TO_OTHERS * self.retry_in
        with self._lock:
            if self._retry_at is None:
                return False
            if self._trying or now < self._retry_at + longer:
                return None
            self._trying = True
        return True

    def _give_up_asking(self, proving: bool, lost: Callable[[], None]) -> None:
        """The caller was interrupted, which says nothing about the store: another may try."""
        if proving:
            self._trying = False
        lost()

    def _settle(
        self,
        proving: bool,
        began: float,
        trouble: Trouble | None,
        *,
        cut: bool = False,
        dropped: bool = False,
    ) -> None:
        """Note that the store has answered, or not. A change is told once, when the lock is free."""
        if trouble is None and not proving and self._silent_since is None:
            return
        now = self._now()
        with self._lock:
            was_away = self._retry_at is not None
            if proving:
                self._trying = False
            if trouble is None:
                self._silent_since = None
                if proving:
                    self._retry_at, self._back_at = None, now
            elif proving or not self._passes(now, began, cut, dropped):
                self._retry_at = now + self.retry_in
            is_away = self._retry_at is not None
        if was_away is not is_away and wanted(self.listeners):
            kind, message = trouble or (None, None)
            event = StoreChanged(self.name, available=not is_away, error_type=kind, error_message=message)
            emit(event, self.listeners, logged=True)

    def _passes(self, now: float, began: float, cut: bool, dropped: bool) -> bool:
        """Whether a failed question says nothing about the store as it is now. Under the lock.

        The store has come back since the question was asked; or so short a while ago that a connection from
        before was dropped only now; or the call had no time to wait, and others were answered lately.
        """
        if cut:
            if self._silent_since is None:
                self._silent_since = began
            return now - self._silent_since < self.slow
        return began < self._back_at or (dropped and now < self._back_at + self.retry_in)

    def _slowness(self, took: float) -> Trouble:
        limit = min(took, self.slow)
        return "TimeoutError", f"no answer within {limit:.3g} s" + (
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


def _was_dropped(error: Exception) -> bool:
    """Whether a connection was lost: a client keeps several, and finds each of them dead by itself."""
    return verdict(error).cause in (Cause.connection, Cause.disconnected)
