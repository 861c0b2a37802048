"""The loop. Its twin with awaits is ``_async``; a test holds the two together.

attempt -> outcome -> classify -> decide -> wait -> next attempt

The hot path is the first function: a success under a policy that asks for nothing special is one ``try``.
"""

from __future__ import annotations

import sys
import time
from types import CoroutineType

from . import _async
from ._call import Call
from ._decide import Refused
from ._loops import in_event_loop
from ._text import brief
from ._time import fakes, real_sleep, sleep_of
from ._trouble import report, say
from .context import NUMBER, current, first_attempt

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .context import Surroundings
    from .policy import Policy

    Function = Callable[..., Any]
    Args = tuple[Any, ...]
    Kwargs = dict[str, Any]

MORE = _async.MORE


def wrap(policy: Policy, function: Function, name: str) -> Function:
    """The function under the policy: which way its first attempt goes is chosen here, once."""
    if policy._bare:
        return _wrap_bare(policy, function, name)
    return (_wrap_full if policy._in_context else _wrap_judged)(policy, function, name)


def _wrap_bare(policy: Policy, function: Function, name: str) -> Function:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            result = function(*args, **kwargs)
            if type(result) is not CoroutineType:
                return result
        except Exception as error:
            call = Call(policy, name)
            if not call.failed(error):
                raise
        else:
            return _async.take_over(policy, name, None, result, function, args, kwargs)
        # Outside the except block: an interrupt during the wait must not be reported as caused by the
        # failure, whose frames are free by now.
        return resume(call, function, args, kwargs)

    return wrapper


def _wrap_judged(policy: Policy, function: Function, name: str) -> Function:
    """For a policy that asks for a look at the result, and nothing else."""
    until: Any = policy.until

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            result = function(*args, **kwargs)
        except Exception as error:
            call = Call(policy, name)
            if not call.failed(error):
                raise
        else:
            if type(result) is CoroutineType:
                return _async.take_over(policy, name, None, result, function, args, kwargs)
            if until(result):
                return result
            call = Call(policy, name)
            if not call.refused(Refused(result)):
                return result
        return resume(call, function, args, kwargs)

    return wrapper


def _wrap_full(policy: Policy, function: Function, name: str) -> Function:
    """For a policy that asks for more than a try: a context, a deadline, a look at the result."""
    until = policy.until
    # Where a deadline is all that is asked for, and nothing is set further out, the surroundings are made
    # on the spot: what `first_attempt` would give, without the call, is a seventh off the whole.
    seconds = policy.deadline if policy.idempotency_key is False else None

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if seconds is not None and current.get() is None and not fakes:
            clock = policy.clock or time.monotonic
            started = clock()
            first: Surroundings = policy, clock, started, started + seconds, 1, 1, None, None, None
        else:
            first = first_attempt(policy, name, args, kwargs)
            if not first[NUMBER]:
                raise Call(policy, name, first).never_began()
        token = current.set(first)
        try:
            try:
                result = function(*args, **kwargs)
            finally:
                current.reset(token)
        except Exception as error:
            call = Call(policy, name, first)
            if not call.failed(error):
                raise
        else:
            if type(result) is CoroutineType:
                return _async.take_over(policy, name, first, result, function, args, kwargs)
            if until is None or until(result):
                return result
            call = Call(policy, name, first)
            if not call.refused(Refused(result)):
                return result
        return resume(call, function, args, kwargs)

    return wrapper


def resume(call: Call, function: Function, args: Args, kwargs: Kwargs) -> Any:
    """The way of a call after its first failure: wait, try again, until there is an end."""
    while True:
        pause(call)
        outcome = again(call, call.next_attempt(), function, args, kwargs)
        if outcome is not MORE:
            return outcome


def again(call: Call, attempt: Surroundings, function: Function, args: Args, kwargs: Kwargs) -> Any:
    """One further attempt: its result, its error, or ``MORE``."""
    try:
        result = within(attempt, function, args, kwargs)
    except Exception as error:
        if not call.failed(error):
            raise
        return MORE
    if type(result) is CoroutineType:
        return _async.carry_on(call, attempt, result, function, args, kwargs)
    if call.accepts(result):
        call.succeeded()
        return result
    return MORE if call.refused(Refused(result)) else result


def within(attempt: Surroundings, function: Function, args: Args, kwargs: Kwargs) -> Any:
    """One attempt, with its context set."""
    token = current.set(attempt)
    try:
        return function(*args, **kwargs)
    finally:
        current.reset(token)


def pause(call: Call) -> None:
    """Waits, lets ``recover`` do its work, and makes sure that there is still time."""
    try:
        call.check_time(call.delay)
        sleep = sleep_of(call.policy.sleep)
        if sleep is None:
            if in_event_loop():
                warn_blocking(call.name)
            sleep = real_sleep
        _really(sleep, sleep(call.delay), call.delay)
        if call.recover is not None and (trouble := _recover(call, call.recover)):
            raise call.unrecovered(trouble)
        call.check_time()
        call.let_go()
    finally:
        call.held = None


def _really(sleep: Function, outcome: Any, seconds: float) -> None:
    """Makes sure that the wait was one: a coroutine is none in a sync call."""
    if type(outcome) is CoroutineType:
        outcome.close()
        report(sleep, "sleep is async, which a sync call cannot await; time.sleep stands in")
        real_sleep(seconds)


def _recover(call: Call, recover: Function) -> str | None:
    """Runs a rule's ``recover``; gives what went wrong, to be raised outside of any except block."""
    try:
        outcome = recover(call.held)
    except Exception as trouble:  # noqa: BLE001 - the call's own error comes out, with this one noted
        return f"recover raised {brief(trouble)}"
    if type(outcome) is CoroutineType:
        outcome.close()
        return "recover is async, which a sync call cannot await"
    return None


# Emptied when full: a program that makes up names without end hears of them again.
_warned: set[str] = set()
_WARNED_AT_MOST = 1000


def warn_blocking(name: str) -> None:
    """Once for each function: its wait blocks every other task of the event loop."""
    if name in _warned:
        return
    if len(_warned) >= _WARNED_AT_MOST:
        _warned.clear()
    _warned.add(name)
    import warnings

    text = (
        f"{name} waits for its retry with a sync sleep inside a running event loop, which blocks all tasks; "
        "make it async, or run it in a thread"
    )
    try:
        warnings.warn(text, RuntimeWarning, stacklevel=_level_of_caller())
    except Exception as error:  # noqa: BLE001 - where warnings are errors, this one must not hide the call's
        say(text, error)


def _level_of_caller() -> int:
    """How far up the stack, as ``warnings`` counts, the code is that called into this package."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith("redouble."):
        level, frame = level + 1, frame.f_back
    return level
