"""The runs of a block: what ``attempt`` is in ``for attempt in retrying(...): with attempt: ...``.

A run tells its call how the block ended, and leaves the waiting to the loop around it.
"""

from __future__ import annotations

import sys

from . import _async, _sync
from ._call import NO_ARGUMENTS, Call
from ._cancelling import cancelled
from ._checks import seconds as checked_seconds
from ._decide import Refused
from ._loops import time_limit
from .context import NUMBER, PREVIOUS, RUNNING, Attempt, current, leave

TYPE_CHECKING = False
if TYPE_CHECKING:
    from contextvars import Token
    from datetime import timedelta
    from types import TracebackType
    from typing import Self

    from ._loops import AsyncioLimit, TrioLimit
    from .context import Surroundings
    from .policy import Policy

# What a block is called in notes and logs, if its policy has no name.
NAME = "block"

# How far a run has come. One that is never entered would loop for ever, so that is an error.
_NEW, _RUNNING, _AGAIN, _DONE = "new", "running", "again", "done"


class BlockAttempt(Attempt):
    """One run of a block: ``for attempt in retrying(...): with attempt: ...``."""

    # Class-level defaults keep the making of a first run short.
    _state = _NEW
    _refused: Refused | None = None
    _error: Exception | None = None
    _token: Token[Surroundings | None]
    _outer: Surroundings | None = None
    # The exception that was being handled outside, by its id: the object would hold its frames.
    _outside = 0
    number = 1

    def __init__(self, policy: Policy, surroundings: Surroundings | None, call: Call | None = None) -> None:
        self._policy = policy
        self._surroundings = surroundings
        self._call = call
        if call is not None and surroundings is not None:
            self.number, self._failure = surroundings[NUMBER], surroundings[PREVIOUS]

    def again(self, reason: str = "asked to run again", after: float | timedelta | None = None) -> None:
        """Asks for another run without an exception; the block still runs to its end.

        ``after`` is the wait in seconds, instead of the backoff's. When there is no attempt left,
        `ResultRejected` comes out with the reason.
        """
        wait = None if after is None else checked_seconds("after", after)
        self._refused = Refused(None, str(reason), wait)

    def _ending_with(self, error: Exception) -> Self:
        """Makes this run raise an error when it is entered. Raised by the loop, it would just end that."""
        self._error = error
        return self

    def __enter__(self) -> Self:
        if self._error is not None:
            error, self._error = self._error, None
            self._ended(False)
            try:
                raise error
            finally:
                del error  # which would hold itself in this frame
        if self._state is not _NEW:
            raise RuntimeError(f"attempt {self.number} was entered already: each runs its block once")
        self._state = _RUNNING
        self._outside = id(sys.exception())
        if self._surroundings is not None:
            self._outer = current.get()
            self._token = current.set(self._surroundings)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is None and self._call is None and self._refused is None:
            # A success at the first try, of which nobody has to know.
            if self._surroundings is not None:
                self._surroundings[RUNNING] = False
                leave(self._token)
            self._state = _DONE
            return False
        failure = self._step_out(error)
        if failure is None:
            if self._call is not None and error is None:
                _sync.succeeded(self._call)
            return self._ended(False)
        call = self._begun()
        more = _sync.failed(call, failure)
        self._ended(more and call.ending is None)
        if call.ending is not None:
            _sync.conclude(call)
        return more

    def _step_out(self, error: BaseException | None) -> Exception | Refused | None:
        """Leaves the attempt's context; gives what it has failed with."""
        if self._surroundings is not None:
            leave(self._token)
        if isinstance(error, Exception):
            return error
        if error is None:
            return self._refused
        if self._call is not None:
            self._call.abandon()
        return None

    def _ended(self, more: bool) -> bool:
        self._state = _AGAIN if more else _DONE
        if not more and self._surroundings is not None:
            self._surroundings[RUNNING] = False
        if not more and self._call is not None:
            self._call.leave()
        return more

    def _begun(self) -> Call:
        """The call that this run belongs to, which begins with its first failure."""
        self._call = self._call or Call(self._policy, NAME, NO_ARGUMENTS, self._surroundings)
        self._call.outside = self._outside
        return self._call

    def _forget(self) -> None:
        """The loop was left: what was held for another run is not needed any more."""
        if self._surroundings is not None and current.get() is self._surroundings:
            current.set(self._outer)  # an interrupt came on the way in or out
            self._surroundings[RUNNING] = False
        if self._call is not None:
            self._call.held = None
            self._call.abandon()
            self._call.leave()

    def _to_go_on(self) -> Call | None:
        """The call, if the block is to be run again."""
        if self._state is _DONE:
            return None
        if self._state is not _AGAIN:
            raise RuntimeError(
                "the block of a retrying() loop must stand in 'with attempt:', or no failure can be seen: "
                "for attempt in retrying(...): with attempt: ..."
            )
        return self._call


class AsyncBlockAttempt(BlockAttempt):
    """As `BlockAttempt`, in an ``async for``: timeout and deadline cut the block off."""

    _limit: AsyncioLimit | TrioLimit | None = None
    _seconds = 0.0

    def __enter__(self) -> Self:
        if awaited := self._policy._awaited():
            raise TypeError(f"the {awaited[0]} of this policy must be awaited: write 'async with attempt:'")
        return self._started()

    def _started(self) -> Self:
        super().__enter__()
        seconds = None if self._surroundings is None else _async.time_limit_of(self._surroundings)
        if seconds is not None:
            self._seconds = seconds
            self._limit = time_limit(seconds)
            self._limit.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        try:
            self._lift_limit(kind, error, trace)
        except BaseException as instead:  # the limit's own, or what a cancelled nursery made of it
            if super().__exit__(type(instead), instead, instead.__traceback__):
                return True
            raise
        return super().__exit__(kind, error, trace)

    def _lift_limit(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        limit, self._limit = self._limit, None
        if limit is not None and self._surroundings is not None and limit.__exit__(kind, error, trace):
            raise _async.timed_out(self._surroundings, self._seconds) from limit.cut_off()

    def _step_out(self, error: BaseException | None) -> Exception | Refused | None:
        failure = super()._step_out(error)
        try:
            return None if failure is None or cancelled(self._begun(), failure) else failure
        except BaseException:  # the block has asked to be run again, in a task that was cancelled
            self._ended(False)
            raise

    async def __aenter__(self) -> Self:
        return self._started()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        try:
            self._lift_limit(kind, error, trace)
        except BaseException as instead:  # as above
            if await self._conclude(instead):
                return True
            raise
        return await self._conclude(error)

    async def _conclude(self, error: BaseException | None) -> bool:
        """The end of a run, as in ``__exit__``, with awaits."""
        failure = self._step_out(error)
        if failure is None:
            if self._call is not None and error is None:
                await _async.succeeded(self._call)
            return self._ended(False)
        call = self._begun()
        more = await _async.failed(call, failure)
        self._ended(more and call.ending is None)
        if call.ending is not None:
            await _async.conclude(call)
        return more
