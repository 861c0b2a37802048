"""First attempts: how much of a call there is before anything has failed.

One way for each need, chosen once, at decoration. The hot path is the first of them: a success under a
policy that asks for nothing special is one ``try``. Their twins with awaits are in ``_async_first``.

cloudpickle sends the wrappers of local functions by value, with the globals that they name. So they name
modules, functions and classes, and reach a context variable or a dict of ours through its module.
"""

from __future__ import annotations

import time

from . import _time, context
from ._async_first import onlookers, take_over, tell_onlookers
from ._awaitables import Usual, is_awaited
from ._call import Call
from ._callables import truth
from ._decide import Refused
from ._guarding import no_ticket
from ._sync import failed, resume, start, within
from ._trouble import report
from .context import NUMBER, RUNNING, first_attempt

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .context import Surroundings
    from .policy import Policy

    Function = Callable[..., Any]


def wrap(policy: Policy, function: Function, name: str) -> Function:
    """The function under the policy: which way its first attempt goes is chosen here, once."""
    return _WAYS[policy._way](policy, function, name)


def _wrap_bare(policy: Policy, function: Function, name: str) -> Function:
    """For a policy that asks for nothing before the first failure."""
    usual = Usual()

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            result = function(*args, **kwargs)
            if type(result) is usual.kind or not is_awaited(result, usual):
                return result
        except Exception as error:
            call = Call(policy, name, (args, kwargs))
            if not failed(call, error):
                raise
        else:
            return take_over(policy, name, None, result, function, args, kwargs)
        # Outside the except block: an interrupt during the wait must not be reported as caused by the
        # failure, whose frames are free by now.
        return resume(call, function, args, kwargs)

    return wrapper


def _wrap_judged(policy: Policy, function: Function, name: str) -> Function:
    """For a policy that asks for a look at the result, and nothing else."""
    until: Any = policy.until
    usual = Usual()

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            result = function(*args, **kwargs)
        except Exception as error:
            call = Call(policy, name, (args, kwargs))
            if not failed(call, error):
                raise
        else:
            if type(result) is not usual.kind and is_awaited(result, usual):
                return take_over(policy, name, None, result, function, args, kwargs)
            answer = until(result)
            if answer is True or truth("until", answer):
                return result
            call = Call(policy, name, (args, kwargs))
            if not failed(call, Refused(result)):
                return result
        return resume(call, function, args, kwargs)

    return wrapper


def _wrap_guarded(policy: Policy, function: Function, name: str) -> Function:  # noqa: C901 - spelled out, for speed
    """For a policy whose budget and breaker look on, and that asks for nothing else.

    While the circuit is closed and nothing is amiss, they are looked at and not spoken to.
    """
    budget, breaker = onlookers(policy)
    usual = Usual()

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            ticket = breaker.ticket
        except Exception as trouble:  # noqa: BLE001 - it may be a property of the user's own
            ticket = no_ticket(breaker, trouble)
        if ticket is None:
            return start(policy, name, None, function, args, kwargs)
        try:
            result = function(*args, **kwargs)
        except Exception as error:
            call = Call(policy, name, (args, kwargs), None, ticket)
            if not failed(call, error):
                raise
        else:
            if type(result) is not usual.kind and is_awaited(result, usual):
                return take_over(policy, name, None, result, function, args, kwargs)
            try:
                if not breaker.clean:
                    breaker.success(ticket)
                if not budget.full:
                    budget.success()
            except Exception as trouble:  # noqa: BLE001 - a guard may be the user's own
                report(policy, f"a guard of {name} failed", trouble)
            return result
        return resume(call, function, args, kwargs)

    return wrapper


def _wrap_watched(policy: Policy, function: Function, name: str) -> Function:  # noqa: C901 - as below
    """The same for a first attempt that has to know of itself or the time, or whose result is looked at."""
    _, breaker = onlookers(policy)
    usual = Usual()

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        first = first_attempt(policy, name, args, kwargs) if policy._in_context else None
        try:
            ticket = breaker.ticket
        except Exception as trouble:  # noqa: BLE001 - it may be a property of the user's own
            ticket = no_ticket(breaker, trouble)
        if ticket is None or (first is not None and not first[NUMBER]):
            return start(policy, name, first, function, args, kwargs)
        try:
            try:
                result = within(first, function, args, kwargs)
            except Exception as error:
                call = Call(policy, name, (args, kwargs), first, ticket)
                if not failed(call, error):
                    raise
            else:
                if type(result) is not usual.kind and is_awaited(result, usual):
                    return take_over(policy, name, first, result, function, args, kwargs)
                if policy.until is None or truth("until", policy.until(result)):
                    tell_onlookers(policy, name, ticket, first)
                    return result
                call = Call(policy, name, (args, kwargs), first, ticket)
                if not failed(call, Refused(result)):
                    return result
            return resume(call, function, args, kwargs)
        finally:
            if first is not None:
                first[RUNNING] = False

    return wrapper


def _wrap_known(policy: Policy, function: Function, name: str) -> Function:  # noqa: C901 - spelled out, for speed
    """For a policy whose first attempt has to know of itself, or of the time."""
    until = policy.until
    usual = Usual()
    # Where a deadline is all that is asked for, and nothing is set further out, the surroundings are made
    # on the spot: what `first_attempt` would give, without the call, is a seventh off the whole.
    seconds = policy.deadline if policy.idempotency_key is False and policy.clock is None else None

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        current = context.current
        outer = current.get()
        if seconds is not None and outer is None and not _time.fakes:
            started = time.monotonic()
            ends = started + seconds
            first: Surroundings = [policy, time.monotonic, started, ends, 1, 1, None, None, None, True]
        else:
            first = first_attempt(policy, name, args, kwargs)
            if not first[NUMBER]:
                return start(policy, name, first, function, args, kwargs)
        token = None
        try:
            try:
                try:
                    token = current.set(first)
                    result = function(*args, **kwargs)
                finally:
                    if token is None:  # an interrupt came with it
                        current.set(outer)
                    else:
                        current.reset(token)
            except Exception as error:
                call = Call(policy, name, (args, kwargs), first)
                if not failed(call, error):
                    raise
            else:
                if type(result) is not usual.kind and is_awaited(result, usual):
                    return take_over(policy, name, first, result, function, args, kwargs)
                if until is None or truth("until", until(result)):
                    return result
                call = Call(policy, name, (args, kwargs), first)
                if not failed(call, Refused(result)):
                    return result
            return resume(call, function, args, kwargs)
        finally:
            first[RUNNING] = False

    return wrapper


def _wrap_full(policy: Policy, function: Function, name: str) -> Function:
    """For a policy with guards that asks for more besides, or whose guards may make a call wait."""

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        first = first_attempt(policy, name, args, kwargs) if policy._in_context else None
        return start(policy, name, first, function, args, kwargs)

    return wrapper


_WAYS = {
    "bare": _wrap_bare,
    "judged": _wrap_judged,
    "guarded": _wrap_guarded,
    "watched": _wrap_watched,
    "known": _wrap_known,
    "full": _wrap_full,
}
