"""The loop. Its twin with awaits is ``_async``; a test holds the two together.

attempt -> outcome -> classify -> decide -> wait -> next attempt
"""

from __future__ import annotations

import sys
from types import CoroutineType

from . import _async
from ._awaitables import is_awaited
from ._call import Call
from ._decide import Refused
from ._loops import in_event_loop
from ._text import brief
from ._time import real_sleep, sleep_of
from ._trouble import report, say
from .context import NUMBER, current, leave
from .errors import CircuitOpen
from .events import Reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .breaker import Breaker
    from .context import Surroundings
    from .policy import Policy

    Function = Callable[..., Any]
    Args = tuple[Any, ...]
    Kwargs = dict[str, Any]

MORE = _async.MORE


def start(
    policy: Policy, name: str, first: Surroundings | None, function: Function, args: Args, kwargs: Kwargs
) -> Any:
    """A call from its first attempt on, past every guard that its policy has."""
    call = Call(policy, name, (args, kwargs), first)
    try:
        if not begin(call, first):
            return conclude(call)
        outcome = again(call, first, function, args, kwargs)
        if outcome is MORE:
            outcome = resume(call, function, args, kwargs)
        return outcome
    finally:
        try:
            call.leave()
        except BaseException:  # an interrupt, perhaps before anything was done
            call.leave()
            raise


def begin(call: Call, first: Surroundings | None) -> bool:
    """Whether there is a first attempt: there is time, and a place, and no guard against it."""
    if first is not None and not first[NUMBER]:
        call.never_began()
        return False
    # Asked first as well: who is going to be refused need not wait in a queue before that.
    return not call.circuit_is_open() and take_place(call) and call.in_time() and admit(call)


def take_place(call: Call) -> bool:
    """Takes the place of the call in its bulkhead, and waits for one if it may."""
    bulkhead = call.policy.bulkhead
    if bulkhead is None:
        return True
    place = bulkhead, bulkhead._claim()  # before there is one: no interrupt may come between the two
    # Who blocks an event loop in a queue may wait for a task of that loop, and so for ever.
    if not bulkhead.acquire(0.0 if in_event_loop() else call.time_left()):
        call.turned_away(bulkhead.refusal())
        return False
    call.place = place
    return True


def admit(call: Call) -> bool:
    """Lets the next attempt past the throttle, which may make it wait, and past the breaker."""
    while seconds := call.turn():
        if call.circuit_is_open() or not call.in_time(seconds):
            return False
        if wait(call, seconds):
            return False
        call.story.waited_longer(seconds)
        if not call.in_time():
            return False
    refusal = None if call.policy.breaker is None else _enter(call, call.policy.breaker)
    if refusal is not None:
        call.barred(refusal, Reason.circuit)
        return False
    if not call.in_time():  # a store, or a listener, has taken its time
        call.abandon()
        return False
    return True


def _enter(call: Call, breaker: Breaker) -> CircuitOpen | None:
    """Asks the breaker for a ticket; gives its refusal, to be raised outside of any except block."""
    try:
        call.ticket = call.ask(breaker.enter, call.policy.listeners)
    except CircuitOpen as refusal:
        return refusal.with_traceback(None)  # whose frames would hold it, and the call
    except Exception as trouble:  # noqa: BLE001 - a breaker may be the user's own; the call goes on
        report(breaker, f"guard {breaker.name} failed", trouble)
    return None


def resume(call: Call, function: Function, args: Args, kwargs: Kwargs) -> Any:
    """The way of a call after its first failure: wait, try again, until there is an end."""
    try:
        while pause(call):
            outcome = again(call, call.next_attempt(), function, args, kwargs)
            if outcome is not MORE:
                return outcome
        return conclude(call)
    finally:
        call.leave()


def again(call: Call, attempt: Surroundings | None, function: Function, args: Args, kwargs: Kwargs) -> Any:
    """One attempt: its result, its error, or ``MORE``."""
    try:
        result = within(attempt, function, args, kwargs)
    except Exception as error:
        if not failed(call, error):
            raise
        return MORE
    except BaseException:
        call.abandon()
        raise
    if is_awaited(result):
        return _async.carry_on(call, attempt, result, function, args, kwargs)
    if call.accepts(result):
        succeeded(call, result)
        return result
    return MORE if failed(call, Refused(result)) else result


def within(attempt: Surroundings | None, function: Function, args: Args, kwargs: Kwargs) -> Any:
    """One attempt, with its context set."""
    if attempt is None:
        return function(*args, **kwargs)
    outer, token = current.get(), None
    try:
        # Within, since an interrupt that comes with the token would leave its deadline to all that follows.
        token = current.set(attempt)
        return function(*args, **kwargs)
    finally:
        if token is None:
            current.set(outer)
        else:
            current.reset(token)


def failed(call: Call, failure: Exception | Refused) -> bool:
    """Whether the call goes on after this failure; if not, the driver raises it."""
    if call.policy._guarded:
        for _ in call.failing(failure):
            pass
    more = call.settle(call.decide(failure), failure)
    if call.lost is not None:
        keep(call)
    return more


def keep(call: Call) -> None:
    """Writes a dead letter of a call that was given up on; trouble with that is not the call's."""
    letters: Any = call.policy.dead_letters
    token = call.limit_storing()
    try:
        call.kept(letters.put(**call.letter()))
    except Exception as trouble:  # noqa: BLE001 - the store, or payload, which is the user's code
        call.unkept(trouble)
    finally:
        call.lost = None  # also where this was interrupted
        leave(token)


def succeeded(call: Call, result: Any = None) -> None:
    """Tells the guards and the listeners that an attempt went well."""
    if call.policy._guarded:
        for _ in call.succeeding(result):
            pass
    call.succeeded()


def pause(call: Call) -> bool:
    """Waits, lets ``recover`` do its work, and makes sure that there may be another attempt."""
    try:
        # Without a deadline there is nothing to ask for.
        timed = call.ends is not None
        if call.ending is not None or (timed and not call.in_time(call.delay, of_backoff=True)):
            return False
        if wait(call, call.delay):
            return False
        if call.recover is not None and (trouble := _recover(call, call.recover)):
            call.unrecovered(trouble)
            return False
        if (timed and not call.in_time()) or (call.policy._guarded and not admit(call)):
            return False
        call.let_go()
        return True
    finally:
        call.held = None
        if call.unspent:  # an interrupt, an open circuit, no time left: the retry was not made
            call.give_back_price()


def wait(call: Call, seconds: float) -> bool:
    """Waits, as the policy says or for real. True if the policy's ``sleep`` failed, which ends the call."""
    call.waited += seconds
    sleep = sleep_of(call.policy.sleep)
    if sleep is None:
        if in_event_loop():
            warn_blocking(call.name)
        real_sleep(seconds)  # what a signal handler raises in here is not the sleep's
        return False
    try:
        outcome = sleep(seconds)
    except Exception as trouble:  # noqa: BLE001 - the call's own error comes out, with this one noted
        call.unslept(trouble)
        return True
    if type(outcome) is CoroutineType:
        _really(sleep, outcome, seconds)
    return False


def conclude(call: Call) -> Any:
    """The end of a call that is over: its fallback answers for the error, or the error is raised."""
    if call.lost is not None:
        keep(call)
    if call.answered:
        fallback: Any = call.policy.fallback
        error = call.conclude()
        trouble, value = _answer(fallback, error) if callable(fallback) else (None, fallback)
        if trouble is None:
            return value
        call.unanswered(trouble, error)
        del error  # which would hold itself in this frame
    return call.come_out()


def _answer(fallback: Function, error: Exception) -> tuple[str | None, Any]:
    """What went wrong with a fallback, and what it gave."""
    try:
        value = fallback(error)
    except Exception as trouble:  # noqa: BLE001 - the call's own error comes out, with this one noted
        return f"fallback raised {brief(trouble)}", None
    if type(value) is CoroutineType:
        value.close()
        return "fallback is async, which a sync call cannot await", None
    return None, value


def _really(sleep: Function, coroutine: Any, seconds: float) -> None:
    """Makes a wait that was none: a coroutine cannot be awaited in a sync call."""
    coroutine.close()
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
