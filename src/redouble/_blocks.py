"""``retrying(...)``: blocks that are run again, and scopes of one policy and one deadline.

Python cannot run the body of a ``with`` twice, so there are two forms: a loop whose body is the block,
and a scope that gives a function to call others through.
"""

from __future__ import annotations

from contextvars import ContextVar
from types import CoroutineType

from . import _async, _decorate, _sync
from ._call import NO_ARGUMENTS, Call
from ._callables import close, is_async
from ._decide import Progress, Wait, decide
from ._runs import NAME, AsyncBlockAttempt, BlockAttempt
from ._story import is_told, put_note
from ._time import clock_of
from .context import NUMBER, RUNNING, boundary, current, first_attempt, here, time_left
from .errors import RedoubleError
from .policy import Policy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType
    from typing import Any, NoReturn, ParamSpec, Self, TypeVar

    from typing_extensions import Unpack

    from .policy import PolicyFields

    P = ParamSpec("P")
    R = TypeVar("R")

    B = TypeVar("B", bound="BlockAttempt")


def _first(policy: Policy, kind: type[B]) -> B:
    """The first run of a block, with the limits its policy asks for."""
    if policy._falls_back:
        raise TypeError(
            "a block has no result that a fallback could stand in for: "
            "catch the error, or call a function: with retrying(...) as call: call(function, ...)"
        )
    accounted = policy._guarded or policy._successes
    if not (policy._in_context or accounted):
        return kind(policy, None)
    surroundings = first_attempt(policy, NAME, (), {}) if policy._in_context else None
    if not accounted and (surroundings is None or surroundings[NUMBER]):
        return kind(policy, surroundings)
    return kind(policy, surroundings, Call(policy, NAME, NO_ARGUMENTS, surroundings))


def _runs(policy: Policy) -> Iterator[BlockAttempt]:
    """The runs of one block, one after the other."""
    if policy.sleep is not None and is_async(policy.sleep):
        raise TypeError(f"a sync block needs a sync sleep, got {policy.sleep!r}; use 'async for'")
    if policy._guarded and (awaited := policy._awaited()):
        raise TypeError(f"the {awaited[0]} of this policy must be awaited: use 'async for'")
    attempt = _first(policy, BlockAttempt)
    try:
        if attempt._call is not None and not _sync.begin(attempt._call, attempt._surroundings):
            _sync.conclude(attempt._call)
        yield attempt
        while (call := attempt._to_go_on()) is not None:
            attempt = _sync_next(policy, call)
            yield attempt
    finally:
        attempt._forget()


def _sync_next(policy: Policy, call: Call) -> BlockAttempt:
    if not _sync.pause(call):
        try:
            _sync.conclude(call)
        except StopIteration as error:
            return BlockAttempt(policy, None, call)._ending_with(error)
    return BlockAttempt(policy, call.next_attempt(), call)


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
        try:
            attempt = self._last = await (self._begin() if last is None else self._go_on(last))
        except BaseException:
            # Now, and not when this object goes: the error that comes out holds on to it.
            if self._last is not None:
                self._last._forget()
            raise
        return attempt

    async def _begin(self) -> AsyncBlockAttempt:
        attempt = self._last = _first(self._policy, AsyncBlockAttempt)
        if attempt._call is not None and not await _async.begin(attempt._call, attempt._surroundings):
            await _async.conclude(attempt._call)
        return attempt

    async def _go_on(self, last: AsyncBlockAttempt) -> AsyncBlockAttempt:
        call = last._to_go_on()
        if call is None:
            raise StopAsyncIteration
        if not await _async.pause(call):
            try:
                await _async.conclude(call)
            except StopAsyncIteration as error:
                return AsyncBlockAttempt(self._policy, None, call)._ending_with(error)
        return AsyncBlockAttempt(self._policy, call.next_attempt(), call)

    def __del__(self) -> None:
        last = getattr(self, "_last", None)  # which is not there after an interrupt at the very beginning
        if last is not None:
            last._forget()


class Scope:
    """What ``with retrying(...) as call`` gives: calls functions under the policy, within its deadline."""

    __slots__ = ("_around", "_closed", "_outer", "_owner", "_policy")

    def __init__(self, owner: retrying) -> None:
        policy = owner._policy
        self._owner = owner
        self._policy = policy
        self._outer = current.get()
        self._around = boundary(None, clock_of(policy.clock), policy.deadline, 1)
        self._closed = False

    def __call__(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Calls ``function`` under the policy; gives an awaitable if it is async.

        Also in other threads, and after the scope: its deadline holds there, too.
        """
        if self._holds_here():
            return self._policy.call(function, *args, **kwargs)
        outer, token, around = current.get(), None, [*self._around]
        around[RUNNING] = True  # until this call ends, be the scope closed or not
        try:
            token = current.set(around)
            result: Any = self._policy.call(function, *args, **kwargs)
        finally:
            around[RUNNING] = False
            if token is None:  # an interrupt came with it
                current.set(outer)
            else:
                current.reset(token)
        if result.__class__ is CoroutineType:
            around[RUNNING] = True
            result = _async.under(around, result)
        given: R = result
        return given

    def _holds_here(self) -> bool:
        """Whether the deadline of the scope binds this context already."""
        mine = time_left(self._around)
        around = here()
        theirs = None if around is None else time_left(around)
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
        if isinstance(error, Exception) and not _from_a_call(error) and _would_retry(self._policy, error):
            put_note(error, _ONCE)

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
            scope._around[RUNNING] = False
            break
    while opened and opened[-1]._closed:
        scope = opened.pop()
        if current.get() is scope._around:
            current.set(scope._outer)
    _open.set(tuple(opened))


def _from_a_call(error: Exception) -> bool:
    """Whether an error came out of a call in the scope: it has its story, or is one of ours."""
    # By its class: isinstance would ask the error for attributes, which may raise.
    return is_told(error) or issubclass(type(error), RedoubleError)


def _would_retry(policy: Policy, error: Exception) -> bool:
    # Without its guards: nothing is to be paid for a retry that will not be made.
    return isinstance(decide(policy.replace(budget=None, breaker=None), Progress(), error, 0.0), Wait)


def _made(policy: Any, fields: PolicyFields) -> Policy:
    if policy is None:
        return Policy(**fields) if fields else _decorate.DEFAULT
    if not isinstance(policy, Policy):
        close(policy)
        raise TypeError(f"retrying() takes a Policy or fields, got {policy!r}; @retry decorates functions")
    return policy.replace(**fields)
