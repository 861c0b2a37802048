"""``retrying(...)``: blocks that are run again, and scopes of one policy and one deadline.

Python cannot run the body of a ``with`` twice, so there are two forms: a loop whose body is the block,
and a scope that gives a function to call others through.
"""

from __future__ import annotations

from contextvars import ContextVar
from types import CoroutineType

from . import _async, _decorate, _sync
from ._call import Call
from ._callables import is_async
from ._checks import seconds as checked_seconds
from ._decide import Progress, Refused, Wait, decide
from ._loops import time_limit
from ._story import is_told, tell
from ._time import clock_of
from .context import (
    NUMBER,
    PREVIOUS,
    Attempt,
    boundary,
    current,
    first_attempt,
    leave,
    running_in,
    time_left,
)
from .policy import Policy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextvars import Token
    from datetime import timedelta
    from types import TracebackType
    from typing import Any, NoReturn, ParamSpec, Self, TypeVar

    from typing_extensions import Unpack

    from ._loops import AsyncioLimit, TrioLimit
    from .context import Surroundings
    from .policy import PolicyFields

    P = ParamSpec("P")
    R = TypeVar("R")

    B = TypeVar("B", bound="BlockAttempt")

# What a block is called in notes and logs, if its policy has no name.
_NAME = "block"

# How far a run has come. One that is never entered would loop for ever, so that is an error.
_NEW, _RUNNING, _AGAIN, _DONE = "new", "running", "again", "done"


class BlockAttempt(Attempt):
    """One run of a block: ``for attempt in retrying(...): with attempt: ...``."""

    # Class-level defaults keep the making of a first run short.
    _state = _NEW
    _refused: Refused | None = None
    _token: Token[Surroundings | None]
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

    def __enter__(self) -> Self:
        if self._state is not _NEW:
            raise RuntimeError(f"attempt {self.number} was entered already: each runs its block once")
        self._state = _RUNNING
        if self._surroundings is not None:
            self._token = current.set(self._surroundings)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if self._surroundings is not None:
            leave(self._token)
        self._state = _DONE
        if error is not None:
            more = isinstance(error, Exception) and self._begun().failed(error)
        elif self._refused is not None:
            more = self._begun().refused(self._refused)
        else:
            more = False
            if self._call is not None:
                self._call.succeeded()
        if more:
            self._state = _AGAIN
        return more

    def _begun(self) -> Call:
        """The call that this run belongs to, which begins with its first failure."""
        self._call = self._call or Call(self._policy, _NAME, self._surroundings)
        return self._call

    def _forget(self) -> None:
        """The loop was left: a failure that was held for another run is not needed any more."""
        if self._call is not None:
            self._call.held = None

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
        limit, self._limit = self._limit, None
        try:
            if limit is not None and self._surroundings is not None and limit.__exit__(kind, error, trace):
                raise _async.timed_out(self._surroundings, self._seconds)
        except BaseException as instead:  # the limit's own, or what a cancelled nursery made of it
            if super().__exit__(type(instead), instead, instead.__traceback__):
                return True
            raise
        return super().__exit__(kind, error, trace)

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        return self.__exit__(kind, error, trace)


def _first(policy: Policy, kind: type[B]) -> B:
    """The first run of a block, with the limits its policy asks for."""
    if not policy._in_context:
        return kind(policy, None)
    surroundings = first_attempt(policy, _NAME, (), {})
    if not surroundings[NUMBER]:
        raise Call(policy, _NAME, surroundings).never_began()
    return kind(policy, surroundings)


def _runs(policy: Policy) -> Iterator[BlockAttempt]:
    """The runs of one block, one after the other."""
    if policy.sleep is not None and is_async(policy.sleep):
        raise TypeError(f"a sync block needs a sync sleep, got {policy.sleep!r}; use 'async for'")
    attempt = _first(policy, BlockAttempt)
    try:
        yield attempt
        while (call := attempt._to_go_on()) is not None:
            _sync.pause(call)
            attempt = BlockAttempt(policy, call.next_attempt(), call)
            yield attempt
    finally:
        attempt._forget()


class AsyncBlocks:
    """The same for ``async for``. Not a generator, so there is nothing to close when it is left early."""

    __slots__ = ("_last", "_policy")

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._last: AsyncBlockAttempt | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AsyncBlockAttempt:
        last = self._last
        if last is None:
            attempt = _first(self._policy, AsyncBlockAttempt)
        elif (call := last._to_go_on()) is None:
            raise StopAsyncIteration
        else:
            await _async.pause(call)
            attempt = AsyncBlockAttempt(self._policy, call.next_attempt(), call)
        self._last = attempt
        return attempt

    def __del__(self) -> None:
        if self._last is not None:
            self._last._forget()


class Scope:
    """What ``with retrying(...) as call`` gives: calls functions under the policy, within its deadline."""

    __slots__ = ("_around", "_closed", "_outer", "_owner", "_policy")

    def __init__(self, owner: retrying) -> None:
        policy, outer = owner._policy, current.get()
        self._owner = owner
        self._policy = policy
        self._outer = outer
        self._around = boundary(clock_of(policy.clock), policy.deadline, 1, running_in(outer))
        self._closed = False

    def __call__(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Calls ``function`` under the policy; gives an awaitable if it is async.

        Also in other threads, and after the scope: its deadline holds there, too.
        """
        if self._holds_here():
            return self._policy.call(function, *args, **kwargs)
        token = current.set(self._around)
        try:
            result: Any = self._policy.call(function, *args, **kwargs)
        finally:
            leave(token)
        if result.__class__ is CoroutineType:
            result = _async.under(self._around, result)
        given: R = result
        return given

    def _holds_here(self) -> bool:
        """Whether the deadline of the scope binds this context already."""
        mine = time_left(self._around)
        here = current.get()
        theirs = None if here is None else time_left(here)
        return mine is None or (theirs is not None and theirs <= mine)

    def __iter__(self) -> Iterator[BlockAttempt]:
        return _runs(self._policy)

    def __aiter__(self) -> AsyncBlocks:
        return AsyncBlocks(self._policy)


# The scopes that are open here, innermost last: one `retrying` object may be open in many contexts.
_open: ContextVar[tuple[Scope, ...]] = ContextVar("redouble scopes", default=())

_ONCE = (
    "redouble: the body of 'with retrying(...)' runs once, it cannot be run again. To retry it, write\n"
    "  for attempt in retrying(...):\n      with attempt: ...\n"
    "or call through the scope: with retrying(...) as call: call(function, ...)"
)


class retrying:  # noqa: N801 - used like a function
    """Retries a block, or opens a scope in which calls are retried.

    ``for attempt in retrying(...): with attempt: ...`` runs the block again after a retryable failure;
    ``with retrying(...) as call: call(function, ...)`` retries each call, all within one deadline.
    Both have an ``async`` form. Takes a policy, fields, or both; may be kept and shared.

    >>> for attempt in retrying(attempts=3):
    ...     with attempt:
    ...         page = "page"
    >>> with retrying(deadline=5.0) as call:
    ...     number = call(int, "42")
    >>> page, number
    ('page', 42)
    """

    __slots__ = ("_policy",)
    _policy: Policy

    def __init__(self, policy: Policy | None = None, /, **fields: Unpack[PolicyFields]) -> None:
        given: Any = policy
        self._policy = given if given.__class__ is Policy and not fields else _made(given, fields)

    def __call__(self, *args: object, **kwargs: object) -> NoReturn:
        raise TypeError("retrying(...) cannot be called: use @retry(...) to decorate a function")

    def __iter__(self) -> Iterator[BlockAttempt]:
        return _runs(self._policy)

    def __aiter__(self) -> AsyncBlocks:
        return AsyncBlocks(self._policy)

    def __enter__(self) -> Scope:
        scope = Scope(self)
        current.set(scope._around)
        _open.set((*_open.get(), scope))
        return scope

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _close(self)
        if isinstance(error, Exception) and not is_told(error) and _would_retry(self._policy, error):
            tell(error, _ONCE)

    async def __aenter__(self) -> Scope:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)


def _close(owner: retrying) -> None:
    """Closes the scope that this object opened last here; none, in another context than it was entered in.

    One that is left before those inside of it stays until they are left, too.
    """
    opened = list(_open.get())
    for scope in reversed(opened):
        if scope._owner is owner and not scope._closed:
            scope._closed = True
            break
    while opened and opened[-1]._closed:
        scope = opened.pop()
        if current.get() is scope._around:
            current.set(scope._outer)
    _open.set(tuple(opened))


def _would_retry(policy: Policy, error: Exception) -> bool:
    return isinstance(decide(policy, Progress(), error, 0.0), Wait)


def _made(policy: Any, fields: PolicyFields) -> Policy:
    if policy is None:
        return Policy(**fields) if fields else _decorate.DEFAULT
    if not isinstance(policy, Policy):
        raise TypeError(f"retrying() takes a Policy or fields, got {policy!r}; @retry decorates functions")
    return policy.replace(**fields)
