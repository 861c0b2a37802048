"""`Shared`: a guard whose state is in a store, with a local guard that takes over while the store is down.

A store that fails, or that takes longer than ``timeout`` seconds, is down: the local guard answers, and the
guarded call does not notice. Every ``retry_interval`` seconds one caller tries the store again, with a
request that writes: a read-only replica or a full server still answers requests that only read. Every
answer of the store is copied to the local guard, which therefore starts with the state that was seen last.

The same request works with sync and async clients: it is a coroutine, which never suspends with a sync
client.
"""

from __future__ import annotations

from .._base import checks as check
from .._base.checks import INF
from .._base.loops import cancel_requests, run_now, time_limit
from .._base.text import mask_line, safe_str, type_name
from .._guards.base import Guard
from ..classify import Cause, verdict
from ..context import here, shorter, time_given, time_left
from ..events import BackendChanged, emit, wanted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator, Iterable
    from datetime import timedelta
    from typing import Any

    from .._base.redis import RedisLink
    from ..events import Listener
    from ._budget import BudgetFile

    Request = tuple[Any, ...]
    # Type and message of an error, and whether a connection was lost. The error itself would keep frames
    # alive.
    Failure = tuple[str, str, bool]


# The part of the time left to a call that one request may take, so that there is time for the call itself.
_PART = 0.25
# A sync client cannot be cancelled, so callers with little time leave a store that is down to other
# callers, for this many retry intervals.
_LEFT_TO_OTHERS = 9


class Ready:
    """An awaitable that returns the result of a function without suspending.

    Unlike a coroutine it may be dropped: Python does not warn that it was never awaited.
    """

    __slots__ = ("_function",)

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._function()
        yield


def nothing(*_: object) -> None:
    """Do nothing."""


class Shared(Guard):
    """A guard in front of a store. Subclasses know the requests and have the local guard."""

    _remote = True
    # Parses an answer of the store. If it raises, the store counts as down.
    _read: Callable[[Any], Any]

    def _connect(
        self, link: RedisLink | BudgetFile, listeners: Iterable[Listener], *times: float | timedelta
    ) -> None:
        """Check and keep the settings. The second half of ``__init__``.

        ``times`` are ``ttl``, ``refresh_interval``, ``timeout`` and ``retry_interval``.
        ``link.run(request, patience)`` sends a request; its last item is true if the store must prove that it
        can be written to. ``link.can_cancel`` says whether a request ends when its time is up.
        """
        self._link = link
        self.is_async = link.is_async
        names = "ttl", "refresh_interval", "timeout", "retry_interval"
        checked = map(check.some_seconds, names, times)
        self.ttl, self.refresh_interval, self.timeout, self.retry_interval = checked
        self.listeners: tuple[Listener, ...] = check.listeners("listeners", listeners)
        # While the store is down: when to try it again. While it is up: None.
        self._retry_at: float | None = None
        self._trying = False
        self._back_at = -INF
        self._silent_since: float | None = None
        # When what is known here is too old to be used without a request.
        self._ask_at = -INF
        # The numbers of the last request, and of the one whose answer is known here.
        self._asked = self._heard = 0

    @property
    def available(self) -> bool:
        """Whether the store answered the last request; if not, the local guard decides."""
        return self._retry_at is None

    def _at_once(self, function: Callable[[], Any]) -> Any:
        """Return what needs no store: as an awaitable if the client is async."""
        return Ready(function) if self.is_async else function()

    def _result_of(self, asking: Coroutine[Any, Any, Any]) -> Any:
        """Return what a request returns: as an awaitable if the client is async."""
        return asking if self.is_async else run_now(asking)

    def _patience(self) -> float:
        """Return how long a request may take: ``timeout``, but only a part of the time left to the call."""
        around = here()
        left = shorter(time_given.get(), None if around is None else time_left(around))
        return self.timeout if left is None else min(self.timeout, left * _PART)

    async def _ask(
        self,
        request: Request,
        patience: float,
        answered: Callable[[Any], Any],
        otherwise: Callable[[], Any],
        lost: Callable[[], None] = nothing,
    ) -> Any:
        """Send a request and return ``answered(answer)``; while the store is down, ``otherwise()``.

        ``patience`` is what `_patience` returned when the request was made, which may be awaited elsewhere.
        ``lost`` is called if the request was sent and its effect is unknown: it failed, took too long, or the
        caller was interrupted.
        """
        proving = self._may_ask(patience)
        if proving is None:
            return otherwise()
        began, answer = self._now(), None
        failure: Failure | None = None
        cancelled_before = cancel_requests()
        try:
            try:
                # A sync client cannot be cancelled.
                with time_limit(patience if self.is_async else None) as limit:
                    answer = self._read(await self._link.run((*request, proving), patience))
                took = patience if limit.struck else self._now() - began
                if limit.struck or (took > self.timeout and not self.is_async):
                    late = f": it took {took:.3g} s" if took > self.timeout else ""
                    failure = "TimeoutError", f"no answer within {min(took, self.timeout):.3g} s{late}", False
            except Exception as error:  # noqa: BLE001 - an error of the store must not fail the call
                failure, took = _failure(error), self._now() - began
            if self.is_async and cancel_requests() > cancelled_before:
                # Before Python 3.12 a client that waits with asyncio.wait_for may swallow a cancellation.
                import asyncio

                raise asyncio.CancelledError
        except BaseException:
            if proving:
                self._trying = False  # an interrupt says nothing about the store: another caller may try
            lost()
            raise
        if answer is None:
            lost()
        # A late answer is used all the same; the callers after this one need not wait as long.
        cut = answer is None and patience <= took < self.timeout
        self._settle(proving, began, failure, cut)
        return otherwise() if answer is None else answered(answer)

    def _may_ask(self, patience: float) -> bool | None:
        """Return whether the request must prove that the store is back; ``None`` if it must not be sent.

        While the store is down, one caller at a time tries it, once per ``retry_interval``.
        """
        now = self._now()
        hurried = patience < self.timeout and not self._link.can_cancel
        longer = _LEFT_TO_OTHERS * self.retry_interval if hurried else 0.0
        with self._lock:
            if self._retry_at is None:
                return False
            if self._trying or now < self._retry_at + longer:
                return None
            self._trying = True
        return True

    def _settle(self, proving: bool, began: float, failure: Failure | None, cut: bool) -> None:
        """Note whether the store has answered. Emit an event on a change, without the lock."""
        now = self._now()
        kind, message, dropped = failure or (None, None, False)
        with self._lock:
            was_down = self._retry_at is not None
            if proving:
                self._trying = False
            if failure is None:
                self._silent_since = None
                if proving:
                    self._retry_at, self._back_at = None, now
            elif proving or not self._says_nothing(now, began, cut, dropped):
                self._retry_at = now + self.retry_interval
            is_down = self._retry_at is not None
        if was_down is not is_down and wanted(self.listeners):
            event = BackendChanged(self.name, available=not is_down, error_type=kind, error_message=message)
            emit(event, self.listeners)

    def _says_nothing(self, now: float, began: float, cut: bool, dropped: bool) -> bool:
        """Return whether a failed request says nothing about the store as it is now. Under the lock.

        Either the store has come back since the request was sent; or it came back so recently that an old
        connection was dropped only now; or the call had no time to wait, and others had an answer lately.
        """
        if cut:
            if self._silent_since is None:
                self._silent_since = began
            return now - self._silent_since < self.timeout
        return began < self._back_at or (dropped and now < self._back_at + self.retry_interval)

    def _after_fork(self) -> None:
        """Let another caller try the store: the one that does is in the parent."""
        super()._after_fork()
        self._trying = False  # the caller that tries the store is in the parent


def _failure(error: Exception) -> Failure:
    """Return what is kept of an error of the store or its client."""
    # A client keeps several connections, and notices for each one separately that it was dropped.
    dropped = verdict(error).cause in (Cause.connection, Cause.disconnected)
    return type_name(error), mask_line(safe_str(error)), dropped
