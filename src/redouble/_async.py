"""The same loop with awaits. Its twin without is ``_sync``; a test holds the two together.

attempt -> outcome -> classify -> decide -> wait -> next attempt
"""

from __future__ import annotations

from types import CoroutineType

from ._call import Call, CutOff
from ._decide import Refused
from ._loops import sleep as loop_sleep
from ._loops import time_limit
from ._text import brief
from ._time import sleep_of
from .context import NUMBER, POLICY, current, first_attempt, shorter, time_left

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .context import Surroundings
    from .policy import Policy

    Function = Callable[..., Any]
    Args = tuple[Any, ...]
    Kwargs = dict[str, Any]

# What `again` gives while there is another attempt to come.
MORE: Any = object()


def wrap(policy: Policy, function: Function, name: str) -> Function:
    """The function under the policy: which way its first attempt goes is chosen here, once."""
    if policy._bare:
        return _wrap_bare(policy, function, name)
    return (_wrap_full if policy._in_context else _wrap_judged)(policy, function, name)


def _wrap_bare(policy: Policy, function: Function, name: str) -> Function:
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            return await function(*args, **kwargs)
        except Exception as error:
            call = Call(policy, name)
            if not call.failed(error):
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
            call = Call(policy, name)
            if not call.failed(error):
                raise
        else:
            if until(result):
                return result
            call = Call(policy, name)
            if not call.refused(Refused(result)):
                return result
        return await resume(call, function, args, kwargs)

    return wrapper


def _wrap_full(policy: Policy, function: Function, name: str) -> Function:
    """For a policy that asks for more than a try: a context, a deadline, a look at the result."""

    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        return await start(policy, name, first_attempt(policy, name, args, kwargs), function, args, kwargs)

    return wrapper


async def start(
    policy: Policy, name: str, first: Surroundings, function: Function, args: Args, kwargs: Kwargs
) -> Any:
    """A call from its first attempt on, in the surroundings made for it."""
    if not first[NUMBER]:
        raise Call(policy, name, first).never_began()
    try:
        result = await within(first, function, args, kwargs)
    except Exception as error:
        call = Call(policy, name, first)
        if not call.failed(error):
            raise
    else:
        if policy.until is None or policy.until(result):
            return result
        call = Call(policy, name, first)
        if not call.refused(Refused(result)):
            return result
    return await resume(call, function, args, kwargs)


async def resume(call: Call, function: Function, args: Args, kwargs: Kwargs) -> Any:
    """The way of a call after its first failure: wait, try again, until there is an end."""
    while True:
        await pause(call)
        outcome = await again(call, call.next_attempt(), function, args, kwargs)
        if outcome is not MORE:
            return outcome


async def again(call: Call, attempt: Surroundings, function: Function, args: Args, kwargs: Kwargs) -> Any:
    """One further attempt: its result, its error, or ``MORE``."""
    try:
        result = await within(attempt, function, args, kwargs)
    except Exception as error:
        if not call.failed(error):
            raise
        return MORE
    if call.accepts(result):
        call.succeeded()
        return result
    return MORE if call.refused(Refused(result)) else result


async def within(attempt: Surroundings, function: Function, args: Args, kwargs: Kwargs) -> Any:
    """One attempt, with its context set and its time limited."""
    token = current.set(attempt)
    try:
        seconds = time_limit_of(attempt)
        if seconds is None:
            return await function(*args, **kwargs)
        with time_limit(seconds):
            return await function(*args, **kwargs)
        raise timed_out(attempt, seconds)
    finally:
        current.reset(token)


def time_limit_of(attempt: Surroundings) -> float | None:
    """Seconds after which an attempt is cut off: its own timeout, or what is left if that is less."""
    policy = attempt[POLICY]
    return shorter(None if policy is None else policy.timeout, time_left(attempt))


def timed_out(attempt: Surroundings, seconds: float) -> TimeoutError:
    """What an attempt that was cut off has failed with, by the limit that cut it off."""
    policy = attempt[POLICY]
    own = None if policy is None else policy.timeout
    if own is None or seconds < own:
        return CutOff(f"attempt {attempt[NUMBER]} was cut off by the deadline after {seconds:.3g} s")
    return TimeoutError(f"attempt {attempt[NUMBER]} took longer than its timeout of {own:g} s")


async def pause(call: Call) -> None:
    """Waits, lets ``recover`` do its work, and makes sure that there is still time."""
    try:
        call.check_time(call.delay)
        sleep = sleep_of(call.policy.sleep) or loop_sleep
        await _finished(sleep(call.delay))
        if call.recover is not None and (trouble := await _recover(call, call.recover)):
            raise call.unrecovered(trouble)
        call.check_time()
        call.let_go()
    finally:
        call.held = None


async def _recover(call: Call, recover: Function) -> str | None:
    """Runs a rule's ``recover``; gives what went wrong, to be raised outside of any except block."""
    seconds = call.time_left()
    try:
        if seconds is None:
            await _finished(recover(call.held))
        else:
            with time_limit(seconds):  # what it cuts off is past the deadline, as the clock will tell
                await _finished(recover(call.held))
    except Exception as trouble:  # noqa: BLE001 - the call's own error comes out, with this one noted
        return f"recover raised {brief(trouble)}"
    return None


async def _finished(outcome: Any) -> None:
    """Awaits what a sync or async function of the user's gave, if it is to be awaited."""
    if hasattr(outcome, "__await__"):
        await outcome


async def under(around: Surroundings, coroutine: Any) -> Any:
    """Awaits a coroutine in surroundings that are not those of the task it runs in."""
    token = current.set(around)
    try:
        return await coroutine
    finally:
        current.reset(token)


# A plain function turned out to give a coroutine: the call goes on here, from that coroutine on.


def take_over(
    policy: Policy,
    name: str,
    first: Surroundings | None,
    coroutine: Any,
    function: Function,
    args: Args,
    kwargs: Kwargs,
) -> Any:
    """The rest of a call whose first attempt gave a coroutine, to be awaited in its stead."""
    anew = awaiting(function, coroutine)
    if first is None:
        return wrap(policy, anew, name)(*args, **kwargs)
    return start(policy, name, first, anew, args, kwargs)


async def carry_on(
    call: Call, attempt: Surroundings, coroutine: Any, function: Function, args: Args, kwargs: Kwargs
) -> Any:
    """The same from a later attempt on."""
    anew = awaiting(function, coroutine)
    outcome = await again(call, attempt, anew, args, kwargs)
    return await resume(call, anew, args, kwargs) if outcome is MORE else outcome


def awaiting(function: Function, first: Any = None) -> Function:
    """An async function out of a plain one that gives coroutines; ``first`` is one that is there already."""
    pending = [] if first is None else [first]

    async def call(*args: Any, **kwargs: Any) -> Any:
        result: Any = pending.pop() if pending else function(*args, **kwargs)
        return (await result) if result.__class__ is CoroutineType else result

    return call
