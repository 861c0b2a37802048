"""Wrappers for the first attempt, one per feature set, so that a success pays only for what its policy uses.

The variant is chosen once, at decoration: ``plain`` for a policy that needs nothing before the first failure,
``guarded`` for one with a budget, a breaker or ``until``, ``timed`` for one whose first attempt has a context
(a limit in time, an idempotency key), ``full`` for the rest. After a failure all go on as a `flow`.

cloudpickle sends the wrappers of local functions by value, with the globals that they name. So they name
modules, functions and classes, and reach a context variable or a dict of ours through its module.
"""

from __future__ import annotations

import time

from .. import context
from .._base import clock as _clock
from .._base.callables import truth
from .._base.log_once import warn_once
from .._base.loops import Usual, is_awaited, time_limit
from ..context import NUMBER, RUNNING, first_attempt, time_left, time_limit_of
from .call import Call
from .decide import RejectedResult
from .drivers import drive, drive_async, late_error
from .flow import flow
from .guarding import fast_guards, report_success
from .note import written

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..context import AttemptContext
    from ..policy import Policy
    from .flow import Flow

    Function = Callable[..., Any]
    Args = tuple[Any, ...]
    Kwargs = dict[str, Any]


def wrap(policy: Policy, function: Function, name: str) -> Function:
    """Return a function under the policy."""
    return _VARIANTS[policy._variant](policy, function, name)


def wrap_async(policy: Policy, function: Function, name: str) -> Function:
    """Return an async function under the policy."""
    return _ASYNC_VARIANTS[policy._variant](policy, function, name)


def _plain(policy: Policy, function: Function, name: str) -> Function:
    """Wrap a function whose policy needs nothing before the first failure: a success costs one ``try``.

    A call that fails has no context in its first attempt. If the result is an awaitable, an async driver
    takes over: a plain function may return coroutines.
    """
    known = Known(policy, name)

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        # Few names, inside and outside, and one of them for two things: a larger frame takes longer to make.
        last_note = written.latest
        try:
            result = function(*args, **kwargs)
            if type(result) is known.kind or not is_awaited(result, known):
                return result
        except Exception as error:  # noqa: BLE001 - the flow decides about it
            result = flow(Call(known.policy, known.name, args, kwargs, None, None, last_note), error)
        else:
            return take_over(known.policy, known.name, None, result, function, args, kwargs, last_note)
        # Outside the except block: an interrupt during the wait must not be reported as caused by the
        # failure, whose frames are free by then.
        return drive(result, function, args, kwargs)

    return wrapper


class Known(Usual):
    """All that the wrapper of a plain first attempt knows besides its function."""

    __slots__ = ("name", "policy")

    def __init__(self, policy: Policy, name: str) -> None:
        super().__init__()
        self.policy, self.name = policy, name

    def __reduce__(self) -> Any:
        """Send policy and name to another process; the type of results is soon known again there."""
        return Known, (self.policy, self.name)


def _plain_async(policy: Policy, function: Function, name: str) -> Function:
    """Wrap an async function whose policy needs nothing before the first failure."""
    # One empty dict for all calls: there may be a hundred thousand in backoff.
    known: tuple[Policy, str, Kwargs] = (policy, name, {})

    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        # One name for three things, one for policy and name, and no call with many arguments: a larger frame
        # takes longer to make, and there may be a hundred thousand calls in backoff.
        going: Any = written.latest
        try:
            return await function(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - the flow decides about it
            going = [error, going]
        kwargs = kwargs or known[2]
        going = _failed_async(known, args, kwargs, going)
        return await drive_async(going, function, args, kwargs)

    return wrapper


def _failed_async(known: tuple[Policy, str, Kwargs], args: Args, kwargs: Kwargs, failed: list[Any]) -> Flow:
    """Return the flow after a first failure. Not in the wrapper, as above.

    ``failed`` is emptied: after an interrupt the error would hold itself, in a frame of its traceback.
    """
    (policy, name, _), last_note, error = known, failed.pop(), failed.pop()
    return flow(Call(policy, name, args, kwargs, None, None, last_note, awaits=True), error)


def _guarded(policy: Policy, function: Function, name: str) -> Function:
    """Wrap a function whose guards are read, and called only if there is something to change.

    A closed breaker has a ticket, and a clean one needs no report of a success; nor does a full budget. So
    a success reads three attributes. A call without a ticket goes on as a flow, which asks the breaker.
    """
    until = policy.until
    budget, breaker = fast_guards(policy)
    usual = Usual()

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        ticket = breaker._ticket
        if ticket is None:
            return drive(start(policy, name, args, kwargs), function, args, kwargs)
        failure: Any = None
        last_note = written.latest
        try:
            result = function(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - the flow decides about it
            failure = error
        else:
            if type(result) is not usual.kind and is_awaited(result, usual):
                return take_over(policy, name, None, result, function, args, kwargs, last_note)
            if until is None or truth("until", until(result)):
                try:
                    if not breaker._clean:
                        breaker.success(ticket)
                    if not budget._full:
                        budget.success()
                except Exception as error:  # noqa: BLE001 - a guard may be the user's own
                    warn_once(policy, f"a guard of {name} failed", error)
                return result
            failure = RejectedResult(result)
        try:
            going = flow(Call(policy, name, args, kwargs, None, ticket, last_note), failure)
        finally:
            del failure
        return drive(going, function, args, kwargs)

    return wrapper


def _guarded_async(policy: Policy, function: Function, name: str) -> Function:
    """As `_guarded`, for an async function."""
    until = policy.until
    budget, breaker = fast_guards(policy)

    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        ticket = breaker._ticket
        if ticket is None:
            going = start(policy, name, args, kwargs, awaits=True)
            return await drive_async(going, function, args, kwargs)
        failure: Any = None
        last_note = written.latest
        try:
            result = await function(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - the flow decides about it
            failure = error
        else:
            if until is None or truth("until", until(result)):
                try:
                    if not breaker._clean:
                        breaker.success(ticket)
                    if not budget._full:
                        budget.success()
                except Exception as error:  # noqa: BLE001 - a guard may be the user's own
                    warn_once(policy, f"a guard of {name} failed", error)
                return result
            failure = RejectedResult(result)
        try:
            going = flow(Call(policy, name, args, kwargs, None, ticket, last_note, awaits=True), failure)
        finally:
            del failure
        return await drive_async(going, function, args, kwargs)

    return wrapper


def _timed(policy: Policy, function: Function, name: str) -> Function:
    """Wrap a function whose first attempt has a context; with or without guards and ``until``.

    The context is set around the function alone. It ends with the call, so that tasks and threads which
    outlive it see none: that is the outer ``finally``.
    """
    until, guarded = policy.until, policy._guarded
    _, breaker = fast_guards(policy)
    usual = Usual()
    # Without a key, a clock of its own and an enclosing call, the context is made here: a success takes a
    # seventh less time than by `first_attempt`.
    seconds = policy.deadline if policy.idempotency_key is False and policy.clock is None else None

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        current = context.current
        outer = current.get()
        if seconds is not None and outer is None and not _clock.fakes:
            started = time.monotonic()
            first: AttemptContext = [
                policy, time.monotonic, started, started + seconds, 1, 1, None, None, None, True,
            ]  # fmt: skip
        else:
            first = first_attempt(policy, name, args, kwargs)
        ticket = breaker._ticket
        if ticket is None or not first[NUMBER]:
            return drive(flow(Call(policy, name, args, kwargs, first), None, first), function, args, kwargs)
        failure: Any = None
        result: Any = None
        token = None
        last_note = written.latest
        try:
            try:
                token = current.set(first)
                result = function(*args, **kwargs)
            except Exception as error:  # noqa: BLE001 - the flow decides about it
                failure = error
            finally:
                if token is None:  # an interrupt came between `set` and the assignment
                    current.set(outer)
                else:
                    current.reset(token)
            if failure is None:
                if type(result) is not usual.kind and is_awaited(result, usual):
                    return take_over(policy, name, first, result, function, args, kwargs, last_note)
                if until is None or truth("until", until(result)):
                    if guarded:
                        report_success(policy, name, ticket, time_left(first))
                    return result
                failure = RejectedResult(result)
            going = flow(Call(policy, name, args, kwargs, first, ticket, last_note), failure)
            failure = result = None
            return drive(going, function, args, kwargs)
        finally:
            first[RUNNING] = False
            del failure

    return wrapper


def _timed_async(policy: Policy, function: Function, name: str) -> Function:
    """Wrap an async function whose first attempt has a context; with or without guards and ``until``."""
    until, guarded = policy.until, policy._guarded
    _, breaker = fast_guards(policy)

    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        first = first_attempt(policy, name, args, kwargs)
        ticket = breaker._ticket
        if ticket is None or not first[NUMBER]:
            going = flow(Call(policy, name, args, kwargs, first, awaits=True), None, first)
            return await drive_async(going, function, args, kwargs)
        failure: Any = None
        result: Any = None
        token = None
        last_note = written.latest
        outer = context.current.get()
        try:
            try:
                token = context.current.set(first)
                with time_limit(time_limit_of(first)) as limit:
                    result = await function(*args, **kwargs)
                if limit.struck:
                    failure = late_error(first, limit)
            except Exception as error:  # noqa: BLE001 - the flow decides about it
                failure = error
            finally:
                if token is None:  # an interrupt came between `set` and the assignment
                    context.current.set(outer)
                else:
                    context.current.reset(token)
            if failure is None:
                if until is None or truth("until", until(result)):
                    if guarded:
                        report_success(policy, name, ticket, time_left(first))
                    return result
                failure = RejectedResult(result)
            going = flow(Call(policy, name, args, kwargs, first, ticket, last_note, awaits=True), failure)
            failure = result = None
            return await drive_async(going, function, args, kwargs)
        finally:
            first[RUNNING] = False
            del failure

    return wrapper


def _full(policy: Policy, function: Function, name: str) -> Function:
    """Wrap a function whose guards may wait or are chosen for each call, or whose successes are announced."""

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return drive(start(policy, name, args, kwargs), function, args, kwargs)

    return wrapper


def _full_async(policy: Policy, function: Function, name: str) -> Function:
    """As `_full`, for an async function."""

    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        return await drive_async(start(policy, name, args, kwargs, awaits=True), function, args, kwargs)

    return wrapper


_VARIANTS = {"plain": _plain, "guarded": _guarded, "timed": _timed, "full": _full}
_ASYNC_VARIANTS = {
    "plain": _plain_async,
    "guarded": _guarded_async,
    "timed": _timed_async,
    "full": _full_async,
}


def start(
    policy: Policy, name: str, args: Args, kwargs: Kwargs, *, awaits: bool = False, stepwise: bool = False
) -> Flow:
    """Return the flow of a call whose first attempt is still to be made.

    ``stepwise`` is for blocks and generators: the flow yields ``SETTLED`` before each wait.
    """
    first = first_attempt(policy, name, args, kwargs) if policy._in_context else None
    return flow(Call(policy, name, args, kwargs, first, awaits=awaits, stepwise=stepwise), None, first)


async def take_over(
    policy: Policy,
    name: str,
    first: AttemptContext | None,
    awaitable: Any,
    function: Function,
    args: Args,
    kwargs: Kwargs,
    last_note: int,
) -> Any:
    """Go on with a call whose first attempt returned an awaitable.

    The awaitable is the first attempt: it is awaited under the time limits of the call, and the function is
    called again for the next one.
    """
    if first is not None:
        first[RUNNING] = True  # the sync wrapper has ended it
    going = flow(Call(policy, name, args, kwargs, first, None, last_note, awaits=True), None, first)
    return await drive_async(going, function, args, kwargs, [awaitable])
