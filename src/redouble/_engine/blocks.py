"""``retrying(...)``: blocks that are retried, and scopes in which calls share a policy and a deadline.

Python cannot run the body of a ``with`` twice, so there are two forms::

    for attempt in retrying(...):         # a loop whose body is the block
        with attempt:
            ...

    with retrying(...) as call:           # a scope that gives a function to call others through
        call(function, ...)

A loop carries out the same `flow` as a decorated function, in turns: the iterator runs it up to the next
attempt, waits included, and ``with attempt:`` sends the outcome of the body to it. So a failure is settled
when the ``with`` is left, and the wait is made by the ``for``. A first run without guards and limits has no
flow: one is made when it fails.
"""

from __future__ import annotations

import sys
from contextvars import ContextVar
from types import CoroutineType

from .._base.callables import close, is_async
from .._base.checks import seconds as checked_seconds
from .._base.clock import clock_of
from .._base.loops import time_limit
from ..context import (
    CLOCK,
    NUMBER,
    PREVIOUS,
    RETRIED,
    RUNNING,
    STARTED,
    Attempt,
    boundary,
    current,
    first_attempt,
    here,
    leave,
    time_left,
    time_limit_of,
)
from ..errors import RedoubleError
from ..policy import Policy, show_fields
from . import decorate as _decorate
from .call import Call
from .decide import Progress, RejectedResult, Wait, decide
from .drivers import advance, advance_async, late_error, unchanged
from .flow import SETTLED, GivenUp, flow
from .note import has_note, put_note, written

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextvars import Token
    from datetime import timedelta
    from types import TracebackType
    from typing import Any, NoReturn, ParamSpec, Self, TypeVar

    from typing_extensions import Unpack

    from .._policy.typed import PolicyFields
    from ..context import AttemptContext
    from .flow import Flow

    P = ParamSpec("P")
    R = TypeVar("R")
    B = TypeVar("B", bound="BlockAttempt")
    # What a block has ended with, as ``with`` tells it.
    Kind = type[BaseException] | None
    Error = BaseException | None
    Trace = TracebackType | None


# What a block is called in notes and logs, if its policy has no name.
NAME = "block"

# How far a run has come. One that is never entered would loop for ever, so that is an error.
_NEW, _RUNNING, _AGAIN, _DONE = "new", "running", "again", "done"


class BlockAttempt(Attempt):
    """One run of a block: ``for attempt in retrying(...): with attempt: ...``.

    It sends the outcome of the block to the flow, and leaves the wait to the loop around it.
    """

    # Class-level defaults keep the making of a first run short.
    _state = _NEW
    _rejected: RejectedResult | None = None
    _ended: GivenUp | None = None
    _token: Token[AttemptContext | None]
    _outer: AttemptContext | None = None
    # The exception that was being handled outside, by its id: the object would hold its frames.
    _outside = 0
    # What `written.latest` was when the block was entered.
    _last_note = 0
    _awaits = False
    _limit: Any = None
    number = 1

    def __init__(
        self,
        policy: Policy,
        context: AttemptContext | None,
        flow: Flow | None = None,
        call: Call | None = None,
    ) -> None:
        """Make a run in this context, or in none. A first run may have neither flow nor call."""
        self._policy = policy
        self._context = context
        self._flow = flow
        self._call = call
        if flow is not None and context is not None:
            self.number, self._failure = context[NUMBER], context[PREVIOUS]

    def again(self, reason: str = "asked to run again", after: float | timedelta | None = None) -> None:
        """Ask for another run without an exception; the block still runs to its end.

        ``after`` is the wait in seconds, instead of the backoff's. When there is no attempt left,
        `ResultRejected` is raised with the reason. Raises `RuntimeError` outside of the block.
        """
        self._check_inside("again")
        wait = None if after is None else checked_seconds("after", after)
        self._rejected = RejectedResult(None, str(reason), wait)

    def reset(self) -> None:
        """Begin anew: the running attempt becomes number 1, as if the call had just begun.

        For connections that are held for ever: call it when one is up. Attempts, waits, history and the
        counts of rules begin anew, ``deadline`` does not. Guards receive a success, slots and probes are
        released, and `Recovered` is sent if an attempt had failed. Async guards receive it when the block is
        left. Calling it again in the same run changes nothing. Raises `RuntimeError` outside of the block.
        """
        self._check_inside("reset")
        context, call = self._context, self._call
        if call is not None:
            call.reset()
        elif context is not None and context[STARTED] is not None:
            context[STARTED] = context[CLOCK]()
        self.number, self._failure = 1, None
        if context is not None:
            context[NUMBER] = context[RETRIED] = 1
            context[PREVIOUS] = None

    def _check_inside(self, method: str) -> None:
        """Raise `RuntimeError` unless the block is running."""
        if self._state is not _RUNNING:
            raise RuntimeError(f"attempt.{method}() belongs into the block: inside of 'with attempt:'")

    def __enter__(self) -> Self:
        """Enter the block: set the context of the attempt. Raise what the call has ended with, if it has."""
        if self._state is not _NEW:
            raise RuntimeError(f"attempt {self.number} was entered already: each runs its block once")
        if self._ended is not None:
            self._state = _DONE
            with unchanged(self._ended):
                raise self._ended.error
        self._state = _RUNNING
        self._outside = id(sys.exception())
        self._last_note = written.latest
        if self._context is not None:
            self._outer = current.get()
            self._token = current.set(self._context)
        return self

    def __exit__(self, kind: Kind, error: Error, trace: Trace) -> bool:
        """Send the outcome to the flow. Return true to run the block again: its error is settled.

        Interrupts and cancellation pass through, and end the call.
        """
        if error is None and self._flow is None and self._rejected is None:
            # A success at the first attempt, of which nobody has to know.
            if self._context is not None:
                self._context[RUNNING] = False
                leave(self._token)
            self._state = _DONE
            return False
        sent = self._outcome(error)
        if sent is None or self._call is None:
            return False
        self._call.blocked = True
        step = advance(*sent)
        self._call.blocked = False
        return self._settled(step, error)

    def _outcome(self, error: BaseException | None) -> tuple[Flow, Any] | None:
        """Leave the context of the run. Return the flow and what to send to it; ``None`` for an interrupt."""
        self._state = _DONE
        if self._context is not None:
            leave(self._token)
        failure: Any = self._rejected if error is None else error
        if failure is not None and not isinstance(failure, (Exception, RejectedResult)):
            self._end()
            return None
        if self._flow is not None and self._call is not None:
            self._call.outside, self._call.last_note = self._outside, self._last_note
            return self._flow, (failure, None)
        call = self._call = Call(
            self._policy, NAME, (), {}, self._context, awaits=self._awaits, stepwise=True
        )
        call.outside, call.last_note = self._outside, self._last_note
        self._flow = flow(call, failure)
        return self._flow, None

    def _settled(self, step: Any, error: BaseException | None) -> bool:
        """Return whether the block is to be run again; raise the error of the call, if it is another one."""
        if step is SETTLED:
            self._state = _AGAIN
            return True
        self._end()
        if type(step) is not GivenUp or step.error is error:
            return False
        with unchanged(step):
            raise step.error

    def _end(self) -> None:
        """End the call: what its contexts left in tasks and threads is over as well."""
        if self._context is not None:
            self._context[RUNNING] = False
        self._forget()

    def _forget(self) -> None:
        """End the call: the loop was left, and what was held for another run is not needed any more."""
        context, call = self._context, self._call
        if context is not None and current.get() is context:
            current.set(self._outer)  # an interrupt came on the way in or out
            context[RUNNING] = False
        if self._flow is not None:
            self._flow.close()
        if call is not None:  # of a flow that was interrupted before it began
            call.release()

    def _going_on(self) -> Flow | None:
        """Return the flow, if the block is to be run again."""
        if self._state is _DONE:
            return None
        if self._state is not _AGAIN:
            raise RuntimeError(
                "put the body of a retrying() loop inside 'with attempt:', or no failure is seen: "
                "for attempt in retrying(...): with attempt: ..."
            )
        return self._flow

    def _followed_by(self, step: Any, end: type[Exception]) -> Self:
        """Return the next run, after a wait; raise what the call ends with.

        An error that would just end the loop is raised by the next run, when that is entered.
        """
        if type(step) is not GivenUp:
            return type(self)(self._policy, step, self._flow, self._call)
        self._forget()
        if isinstance(step.error, end):
            last = type(self)(self._policy, None)
            last._ended = step
            return last
        with unchanged(step):
            raise step.error


class AsyncBlockAttempt(BlockAttempt):
    """As `BlockAttempt`, in an ``async for``: timeout and deadline cancel the block."""

    _awaits = True

    def __enter__(self) -> Self:
        """Enter a block by a plain ``with``, which cannot await guards with an async client."""
        if awaited := self._policy._awaited():
            raise TypeError(f"the {awaited[0]} of this policy must be awaited: write 'async with attempt:'")
        return self._started()

    async def __aenter__(self) -> Self:
        return self._started()

    def _started(self) -> Self:
        """Enter the block, and start its time limit: the first of timeout and deadline."""
        super().__enter__()
        seconds = None if self._context is None else time_limit_of(self._context)
        if seconds is not None:
            self._limit = time_limit(seconds)
            self._limit.__enter__()
        return self

    def __exit__(self, kind: Kind, error: Error, trace: Trace) -> bool:
        """Send the outcome to the flow, without awaits: the loop makes the wait.

        The error of the time limit replaces the cancellation that it has caused.
        """
        instead = self._lift_limit(kind, error, trace)
        if super().__exit__(None if instead is None else type(instead), instead, None):
            return True
        if instead is not None and instead is not error:
            try:
                raise instead
            finally:
                del instead
        return False

    async def __aexit__(self, kind: Kind, error: Error, trace: Trace) -> bool:
        """As `__exit__`; guards with an async client are awaited."""
        instead = self._lift_limit(kind, error, trace)
        sent = self._outcome(instead)
        if sent is not None and self._settled(await advance_async(*sent), instead):
            return True
        if instead is not None and instead is not error:
            try:
                raise instead
            finally:
                del instead, sent
        return False

    def _lift_limit(self, kind: Kind, error: Error, trace: Trace) -> Error:
        """Return what the block has ended with: its own error, or that of the limit."""
        limit, self._limit = self._limit, None
        if limit is None or self._context is None:
            return error
        try:
            if not limit.__exit__(kind, error, trace):
                return error
        except BaseException as instead:  # noqa: BLE001 - what a cancelled nursery made of it
            return instead
        return late_error(self._context, limit)


def _first_run(policy: Policy, kind: type[B]) -> B:
    """Return the first run of a block. It has a flow if its guards, a listener or a deadline need one."""
    if policy._falls_back:
        raise TypeError(
            "a block has no result that a fallback could replace: "
            "catch the error, or call a function: with retrying(...) as call: call(function, ...)"
        )
    needed = policy._guarded or policy._successes
    context = first_attempt(policy, NAME, (), {}) if policy._in_context else None
    if not needed and (context is None or context[NUMBER]):
        return kind(policy, context)
    call = Call(policy, NAME, (), {}, context, awaits=kind._awaits, stepwise=True)
    return kind(policy, context, flow(call, None, context), call)


def _check_sync(policy: Policy) -> None:
    """Raise `TypeError` for functions of a policy that a sync block cannot await."""
    for field, given in policy._hooks():
        if field != "fallback" and is_async(given):
            raise TypeError(f"a sync block needs a sync {field}, got {given!r}; use 'async for'")


def _runs(policy: Policy) -> Iterator[BlockAttempt]:
    """Yield the runs of one block, one after the other."""
    if policy.sleep is not None or policy.recover is not None or policy.rules:
        _check_sync(policy)
    if policy._guarded and (awaited := policy._awaited()):
        raise TypeError(f"the {awaited[0]} of this policy must be awaited: use 'async for'")
    attempt = _first_run(policy, BlockAttempt)
    try:
        if attempt._flow is not None:
            attempt = attempt._followed_by(advance(attempt._flow), StopIteration)
        yield attempt
        while (going := attempt._going_on()) is not None:
            attempt = attempt._followed_by(advance(going), StopIteration)
            yield attempt
    finally:
        attempt._forget()


class AsyncBlocks:
    """The runs of one block for ``async for``. Not a generator, which would have to be closed."""

    __slots__ = ("_last", "_policy")

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._last: AsyncBlockAttempt | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AsyncBlockAttempt:
        """Return the next run, after the wait; end the loop if the last run has succeeded."""
        last = self._last
        begins = last is None
        if last is None:
            last = self._last = _first_run(self._policy, AsyncBlockAttempt)
            if last._flow is None:
                return last
        try:
            going = last._flow if begins else last._going_on()
            if going is None:
                raise StopAsyncIteration
            attempt = self._last = last._followed_by(await advance_async(going), StopAsyncIteration)
        except BaseException:
            # Now, and not when this object goes: the error that is raised holds it.
            last._forget()
            raise
        return attempt

    def __del__(self) -> None:
        """End a call whose loop was left by ``break`` or ``return``: nothing else tells."""
        last = getattr(self, "_last", None)  # which is not there after an interrupt at the very beginning
        if last is not None:
            last._forget()


class Scope:
    """The target of ``with retrying(...) as call``: calls functions under the policy, within its deadline."""

    __slots__ = ("_around", "_closed", "_outer", "_owner", "_policy")

    def __init__(self, owner: retrying) -> None:
        """Open a scope: its deadline starts now. Keep the context that it is opened in."""
        policy = owner._policy
        self._owner = owner
        self._policy = policy
        self._outer = current.get()
        self._around = boundary(None, clock_of(policy.clock), policy.deadline, 1)
        self._closed = False

    def __call__(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call ``function`` under the policy; return an awaitable if it is async.

        Also in other threads, and after the scope: its deadline holds there, too.
        """
        if self._holds_here():
            done: Any = _decorate.once(self._policy, function, args, kwargs)
            if type(done) is _decorate.Rest:
                done = done()
            answer: R = done
            return answer
        outer, token, around = current.get(), None, [*self._around]
        around[RUNNING] = True  # until this call ends, be the scope closed or not
        try:
            token = current.set(around)
            # With a deadline, which this scope has, no first attempt is made by `once`.
            result: Any = _decorate.once(self._policy, function, args, kwargs)()
        finally:
            around[RUNNING] = False
            if token is None:  # an interrupt came with it
                current.set(outer)
            else:
                current.reset(token)
        if result.__class__ is CoroutineType:
            around[RUNNING] = True
            result = _under(around, result)
        given: R = result
        return given

    def _holds_here(self) -> bool:
        """Return whether the deadline of the scope applies to this context already."""
        mine = time_left(self._around)
        around = here()
        theirs = None if around is None else time_left(around)
        return mine is None or (theirs is not None and theirs <= mine)

    def __iter__(self) -> Iterator[BlockAttempt]:
        return _runs(self._policy)

    def __aiter__(self) -> AsyncBlocks:
        return AsyncBlocks(self._policy)


async def _under(around: AttemptContext, coroutine: Any) -> Any:
    """Await a coroutine in a context that is not that of the task it runs in."""
    token = current.set(around)
    try:
        return await coroutine
    finally:
        around[RUNNING] = False
        current.reset(token)


# The scopes that are open here, innermost last: one `retrying` object may be open in many contexts.
_open: ContextVar[tuple[Scope, ...]] = ContextVar("redouble scopes", default=())

_ONCE = (
    "redouble: the body of 'with retrying(...)' runs once, it cannot be run again. To retry it, write\n"
    "  for attempt in retrying(...):\n      with attempt: ...\n"
    "or call through the scope: with retrying(...) as call: call(function, ...)"
)


@show_fields
class retrying:  # noqa: N801 - used like a function
    """Retry a block, or open a scope in which calls are retried.

    ``for attempt in retrying(...): with attempt: ...`` runs the block again after a retryable failure;
    ``with retrying(...) as call: call(function, ...)`` retries each call, all within one deadline.
    Both have an ``async`` form. Give it a policy, fields, or both: `Policy` explains the fields. The object
    may be kept and shared.

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
        """Take a policy, fields, or both. Raise for guards by key: a block has no arguments to choose by."""
        given: Any = policy
        self._policy = given if given.__class__ is Policy and not fields else _made(given, fields)
        if self._policy._keyed:
            field = self._policy._keyed[0]
            raise TypeError(
                f"retrying() has no arguments by which a function could choose its {field}: "
                f"write retrying(..., {field}=registry[key]), or decorate a function with @retry"
            )

    def __call__(self, *args: object, **kwargs: object) -> NoReturn:
        """Raise `TypeError`: decorators are made by ``retry``."""
        raise TypeError("retrying(...) cannot be called: use @retry(...) to decorate a function")

    def __iter__(self) -> Iterator[BlockAttempt]:
        """Begin a new call, and return its runs."""
        return _runs(self._policy)

    def __aiter__(self) -> AsyncBlocks:
        """Begin a new call, and return its runs for ``async for``."""
        return AsyncBlocks(self._policy)

    def __enter__(self) -> Scope:
        """Open a scope, and return the function to call others through."""
        scope = Scope(self)
        current.set(scope._around)
        _open.set((*_open.get(), scope))
        return scope

    def __exit__(self, kind: Kind, error: Error, trace: Trace) -> None:
        """Close the scope. Add a note to an error of the body itself that the policy would have retried."""
        _close(self)
        if isinstance(error, Exception) and not _from_a_call(error) and _would_retry(self._policy, error):
            put_note(error, _ONCE)

    async def __aenter__(self) -> Scope:
        return self.__enter__()

    async def __aexit__(self, kind: Kind, error: Error, trace: Trace) -> None:
        self.__exit__(kind, error, trace)


def _close(owner: retrying) -> None:
    """Close the scope that this object opened last here; none in another context than that of entering.

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
    """Return whether a call in the scope has raised this error: it has a note, or is one of ours.

    Or the error that it was raised from, by a fallback perhaps.
    """
    # By their class: isinstance would ask an error for attributes, which may raise.
    cause = BaseException.__dict__["__cause__"].__get__(error)
    return any(has_note(one) or issubclass(type(one), RedoubleError) for one in (error, cause))


def _would_retry(policy: Policy, error: Exception) -> bool:
    """Return whether a policy retries an error, by all but its guards: nothing is paid for a note."""
    return isinstance(decide(policy, Progress(), error, 0.0), Wait)


def _made(policy: Any, fields: PolicyFields) -> Policy:
    """Return the policy for the arguments of ``retrying``. Raise `TypeError` for a function or a value."""
    if policy is not None and not isinstance(policy, Policy):
        _decorate.refuse_value("retrying", policy)
        close(policy)
        raise TypeError(f"retrying() takes a Policy or fields, got {policy!r}; @retry decorates functions")
    return _decorate.chosen(policy, fields, "retrying")
