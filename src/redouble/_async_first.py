"""First attempts with awaits: how much of a call there is before anything has failed.

One way for each need, chosen once, at decoration. Their twins without awaits are in ``_sync_first``.
"""

from __future__ import annotations

from ._async import awaiting, failed, resume, start, within
from ._awaitables import drop
from ._call import Call
from ._callables import truth
from ._decide import Refused
from ._guarding import no_ticket
from ._trouble import report
from .context import NUMBER, RUNNING, first_attempt, in_time, time_left

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .context import Surroundings
    from .policy import Policy

    Function = Callable[..., Any]
    Args = tuple[Any, ...]
    Kwargs = dict[str, Any]


class _Content:
    """Stands in for a guard that a policy does not have: it is looked at, and nothing is amiss."""

    ticket, clean, full = 0, True, True


_CONTENT = _Content()


def onlookers(policy: Policy) -> tuple[Any, Any]:
    """The budget and the breaker of a policy, or what stands in for them."""
    budget, breaker = policy.budget, policy.breaker
    return _CONTENT if budget is None else budget, _CONTENT if breaker is None else breaker


def wrap(policy: Policy, function: Function, name: str) -> Function:
    """The function under the policy: which way its first attempt goes is chosen here, once."""
    return _WAYS[policy._way](policy, function, name)


def _wrap_bare(policy: Policy, function: Function, name: str) -> Function:
    """For a policy that asks for nothing before the first failure."""

    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            return await function(*args, **kwargs)
        except Exception as error:
            call = Call(policy, name, (args, kwargs))
            if not await failed(call, error):
                raise
        # Outside the except block: a cancellation during the wait must not be reported as caused by the
        # failure, whose frames are free by now.
        return await resume(call, function, args, kwargs)

    return wrapper


def _wrap_judged(policy: Policy, function: Function, name: str) -> Function:
    """For a policy that asks for a look at the result, and nothing else."""
    until: Any = policy.until

    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            result = await function(*args, **kwargs)
        except Exception as error:
            call = Call(policy, name, (args, kwargs))
            if not await failed(call, error):
                raise
        else:
            answer = until(result)
            if answer is True or truth("until", answer):
                return result
            call = Call(policy, name, (args, kwargs))
            if not await failed(call, Refused(result)):
                return result
        return await resume(call, function, args, kwargs)

    return wrapper


def _wrap_guarded(policy: Policy, function: Function, name: str) -> Function:
    """For a policy whose budget and breaker look on, and that asks for nothing else.

    While the circuit is closed and nothing is amiss, they are looked at and not spoken to.
    """
    budget, breaker = onlookers(policy)

    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            ticket = breaker.ticket
        except Exception as trouble:  # noqa: BLE001 - it may be a property of the user's own
            ticket = no_ticket(breaker, trouble)
        if ticket is None:
            return await start(policy, name, None, function, args, kwargs)
        try:
            result = await function(*args, **kwargs)
        except Exception as error:
            call = Call(policy, name, (args, kwargs), None, ticket)
            if not await failed(call, error):
                raise
        else:
            try:
                if not breaker.clean:
                    breaker.success(ticket)
                if not budget.full:
                    budget.success()
            except Exception as trouble:  # noqa: BLE001 - a guard may be the user's own
                report(policy, f"a guard of {name} failed", trouble)
            return result
        return await resume(call, function, args, kwargs)

    return wrapper


def _wrap_watched(policy: Policy, function: Function, name: str) -> Function:
    """The same for a first attempt that has to know of itself or the time, or whose result is looked at."""
    _, breaker = onlookers(policy)

    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        first = first_attempt(policy, name, args, kwargs) if policy._in_context else None
        try:
            ticket = breaker.ticket
        except Exception as trouble:  # noqa: BLE001 - it may be a property of the user's own
            ticket = no_ticket(breaker, trouble)
        if ticket is None or (first is not None and not first[NUMBER]):
            return await start(policy, name, first, function, args, kwargs)
        try:
            try:
                result = await within(first, function, args, kwargs)
            except Exception as error:
                call = Call(policy, name, (args, kwargs), first, ticket)
                if not await failed(call, error):
                    raise
            else:
                if policy.until is None or truth("until", policy.until(result)):
                    tell_onlookers(policy, name, ticket, first)
                    return result
                call = Call(policy, name, (args, kwargs), first, ticket)
                if not await failed(call, Refused(result)):
                    return result
            return await resume(call, function, args, kwargs)
        finally:
            if first is not None:
                first[RUNNING] = False

    return wrapper


def tell_onlookers(policy: Policy, name: str, ticket: Any, first: Surroundings | None) -> None:
    """Tells a budget and a breaker of a success at the first try."""
    budget, breaker = onlookers(policy)
    try:
        if not breaker.clean:
            in_time(None if first is None else time_left(first), breaker.success, ticket)
        if not budget.full:
            in_time(None if first is None else time_left(first), budget.success)
    except Exception as trouble:  # noqa: BLE001 - a guard may be the user's own
        report(policy, f"a guard of {name} failed", trouble)


def _wrap_known(policy: Policy, function: Function, name: str) -> Function:
    """For a policy whose first attempt has to know of itself, or of the time."""

    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        return await known(policy, name, first_attempt(policy, name, args, kwargs), function, args, kwargs)

    return wrapper


async def known(
    policy: Policy, name: str, first: Surroundings, function: Function, args: Args, kwargs: Kwargs
) -> Any:
    """A call from its first attempt on, in the surroundings made for it."""
    if not first[NUMBER]:
        return await start(policy, name, first, function, args, kwargs)
    try:
        try:
            result = await within(first, function, args, kwargs)
        except Exception as error:
            call = Call(policy, name, (args, kwargs), first)
            if not await failed(call, error):
                raise
        else:
            if policy.until is None or truth("until", policy.until(result)):
                return result
            call = Call(policy, name, (args, kwargs), first)
            if not await failed(call, Refused(result)):
                return result
        return await resume(call, function, args, kwargs)
    finally:
        first[RUNNING] = False


def _wrap_full(policy: Policy, function: Function, name: str) -> Function:
    """For a policy with guards that asks for more besides, or whose guards may make a call wait."""

    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        first = first_attempt(policy, name, args, kwargs) if policy._in_context else None
        return await start(policy, name, first, function, args, kwargs)

    return wrapper


_WAYS = {
    "bare": _wrap_bare,
    "judged": _wrap_judged,
    "guarded": _wrap_guarded,
    "watched": _wrap_watched,
    "known": _wrap_known,
    "full": _wrap_full,
}


async def take_over(
    policy: Policy,
    name: str,
    first: Surroundings | None,
    coroutine: Any,
    function: Function,
    args: Args,
    kwargs: Kwargs,
) -> Any:
    """The rest of a call whose first attempt gave a coroutine, to be awaited in its stead."""
    anew = awaiting(function, pending := [coroutine])
    try:
        if first is None:
            return await wrap(policy, anew, name)(*args, **kwargs)
        first[RUNNING] = True  # the sync driver has left it
        go = start if policy._guarded else known
        return await go(policy, name, first, anew, args, kwargs)
    finally:
        drop(pending)
