"""The same loop with awaits. Its twin without is ``_sync``; a test holds the two together.

attempt -> outcome -> classify -> decide -> wait -> next attempt
"""

from __future__ import annotations

from ._awaitables import drop, is_awaited
from ._call import Call, CutOff
from ._cancelling import cancelled, heed
from ._decide import Refused, Stop, Wait, afford, ask, broke
from ._loops import sleep as loop_sleep
from ._loops import time_limit
from ._text import brief
from ._time import sleep_of
from ._trouble import report
from .context import NUMBER, POLICY, RUNNING, current, leave, shorter, time_left
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

# What `again` gives while there is another attempt to come.
MORE: Any = object()


async def start(
    policy: Policy, name: str, first: Surroundings | None, function: Function, args: Args, kwargs: Kwargs
) -> Any:
    """A call from its first attempt on, past every guard that its policy has."""
    call = Call(policy, name, (args, kwargs), first)
    try:
        if not await begin(call, first):
            return await conclude(call)
        outcome = await again(call, first, function, args, kwargs)
        if outcome is MORE:
            outcome = await resume(call, function, args, kwargs)
        return outcome
    finally:
        try:
            call.leave()
        except BaseException:  # an interrupt, perhaps before anything was done
            call.leave()
            raise


async def begin(call: Call, first: Surroundings | None) -> bool:
    """Whether there is a first attempt: there is time, and a place, and no guard against it."""
    if first is not None and not first[NUMBER]:
        call.never_began()
        return False
    # Asked first as well: who is going to be refused need not wait in a queue before that.
    return not call.circuit_is_open() and await take_place(call) and call.in_time() and await admit(call)


async def take_place(call: Call) -> bool:
    """Takes the place of the call in its bulkhead, and waits for one if it may."""
    bulkhead = call.policy.bulkhead
    if bulkhead is None:
        return True
    place = bulkhead, bulkhead._claim()  # before there is one: no interrupt may come between the two
    if not await bulkhead.acquire_async(call.time_left()):
        call.turned_away(bulkhead.refusal())
        return False
    call.place = place
    return True


async def admit(call: Call) -> bool:
    """Lets the next attempt past the throttle, which may make it wait, and past the breaker."""
    while seconds := call.turn():
        if call.circuit_is_open() or not call.in_time(seconds):
            return False
        if await wait(call, seconds):
            return False
        call.story.waited_longer(seconds)
        if not call.in_time():
            return False
    refusal = None if call.policy.breaker is None else await _enter(call, call.policy.breaker)
    if refusal is not None:
        call.barred(refusal, Reason.circuit)
        return False
    if not call.in_time():  # a store, or a listener, has taken its time
        call.abandon()
        return False
    return True


async def _enter(call: Call, breaker: Breaker) -> CircuitOpen | None:
    """Asks the breaker for a ticket; gives its refusal, to be raised outside of any except block."""
    try:
        call.ticket = await _finished(call.ask(breaker.enter, call.policy.listeners))
    except CircuitOpen as refusal:
        return refusal.with_traceback(None)  # whose frames would hold it, and the call
    except Exception as trouble:  # noqa: BLE001 - a breaker may be the user's own; the call goes on
        report(breaker, f"guard {breaker.name} failed", trouble)
    return None


async def resume(call: Call, function: Function, args: Args, kwargs: Kwargs) -> Any:
    """The way of a call after its first failure: wait, try again, until there is an end."""
    try:
        while await pause(call):
            outcome = await again(call, call.next_attempt(), function, args, kwargs)
            if outcome is not MORE:
                return outcome
        return await conclude(call)
    finally:
        call.leave()


async def again(
    call: Call, attempt: Surroundings | None, function: Function, args: Args, kwargs: Kwargs
) -> Any:
    """One attempt: its result, its error, or ``MORE``."""
    try:
        result = await within(attempt, function, args, kwargs)
    except Exception as error:
        if not await failed(call, error):
            raise
        return MORE
    except BaseException:
        call.abandon()
        raise
    if call.accepts(result):
        await succeeded(call, result)
        return result
    return MORE if await failed(call, Refused(result)) else result


async def within(attempt: Surroundings | None, function: Function, args: Args, kwargs: Kwargs) -> Any:
    """One attempt, with its context set and its time limited."""
    if attempt is None:
        return await function(*args, **kwargs)
    outer, token = current.get(), None
    try:
        # Within, since an interrupt that comes with the token would leave its deadline to all that follows.
        token = current.set(attempt)
        seconds = time_limit_of(attempt)
        if seconds is None:
            return await function(*args, **kwargs)
        with time_limit(seconds) as limit:
            return await function(*args, **kwargs)
        # From the cancellation: its frames show where the attempt was, and which request it had sent.
        raise timed_out(attempt, seconds) from limit.cut_off()
    finally:
        if token is None:
            current.set(outer)
        else:
            current.reset(token)


async def failed(call: Call, failure: Exception | Refused) -> bool:
    """Whether the call goes on after this failure; if not, the driver raises it."""
    if cancelled(call, failure):
        return False
    if call.policy._guarded:
        for told in call.failing(failure):
            await _heard(call, told)
    outcome = call.decide(failure)
    if isinstance(outcome, Wait) and call.policy.budget is not None and call.policy.budget.is_async:
        outcome = await _afford(call, outcome)
    more = call.settle(outcome, failure)
    if call.lost is not None:
        await keep(call)
    return more


async def keep(call: Call) -> None:
    """Writes a dead letter of a call that was given up on; trouble with that is not the call's."""
    letters: Any = call.policy.dead_letters
    token = call.limit_storing()
    try:
        call.kept(await letters.aput(**call.letter()))
    except Exception as trouble:  # noqa: BLE001 - the store, or payload, which is the user's code
        call.unkept(trouble)
    finally:
        call.lost = None  # also where this was cancelled
        leave(token)


async def _afford(call: Call, wait: Wait) -> Wait | Stop:
    """Asks a budget that must be awaited, which `decide` has left out."""
    policy = call.policy
    try:
        return afford(policy, wait, await call.ask(ask, policy, wait))
    except Exception as error:  # noqa: BLE001 - a budget may be the user's own; the call's error comes out
        return broke(error, wait)


async def succeeded(call: Call, result: Any = None) -> None:
    """Tells the guards and the listeners that an attempt went well."""
    if call.policy._guarded:
        for told in call.succeeding(result):
            await _heard(call, told)
    call.succeeded()


async def _heard(call: Call, told: Any) -> None:
    """Awaits what a guard was told, if it is to be awaited; its trouble is not the call's."""
    try:
        await _finished(told)
    except Exception as trouble:  # noqa: BLE001 - a guard may be the user's own
        report(call.policy, f"a guard of {call.name} failed", trouble)


def time_limit_of(attempt: Surroundings) -> float | None:
    """Seconds after which an attempt is cut off: its own timeout, or what is left if that is less."""
    policy: Any = attempt[POLICY]
    return shorter(policy.timeout, time_left(attempt))


def timed_out(attempt: Surroundings, seconds: float) -> TimeoutError:
    """What an attempt that was cut off has failed with, by the limit that cut it off."""
    policy: Any = attempt[POLICY]
    own = policy.timeout
    if own is None or seconds < own:
        return CutOff(f"attempt {attempt[NUMBER]} was cut off by the deadline after {seconds:.3g} s")
    return TimeoutError(f"attempt {attempt[NUMBER]} took longer than its timeout of {own:g} s")


async def pause(call: Call) -> bool:
    """Waits, lets ``recover`` do its work, and makes sure that there may be another attempt."""
    try:
        # Without a deadline there is nothing to ask for.
        timed = call.ends is not None
        if call.ending is not None or (timed and not call.in_time(call.delay, of_backoff=True)):
            return False
        if await wait(call, call.delay):
            return False
        if call.recover is not None and (trouble := await _recover(call, call.recover)):
            call.unrecovered(trouble)
            return False
        if (timed and not call.in_time()) or (call.policy._guarded and not await admit(call)):
            return False
        if call.recover is not None or call.policy.sleep is not None:
            heed(call)
        call.let_go()
        return True
    finally:
        call.held = None
        if call.unspent:  # an interrupt, an open circuit, no time left: the retry was not made
            call.give_back_price()


def wait(call: Call, seconds: float) -> Any:
    """What to await for a wait, as the policy says or as the event loop does it; true if that has failed."""
    call.waited += seconds
    # No coroutine of its own: there may be a hundred thousand calls in backoff, and each would hold one.
    sleep = sleep_of(call.policy.sleep)
    return loop_sleep(seconds) if sleep is None else _slept(call, sleep, seconds)


async def _slept(call: Call, sleep: Function, seconds: float) -> bool:
    """Waits as the policy says. True if its ``sleep`` failed, which ends the call."""
    try:
        await _finished(sleep(seconds))
    except Exception as trouble:  # noqa: BLE001 - the call's own error comes out, with this one noted
        call.unslept(trouble)
        return True
    return False


async def conclude(call: Call) -> Any:
    """The end of a call that is over: its fallback answers for the error, or the error is raised."""
    if call.lost is not None:
        await keep(call)
    if call.answered:
        fallback: Any = call.policy.fallback
        error = call.conclude()
        trouble, value = await _answer(fallback, error) if callable(fallback) else (None, fallback)
        if trouble is None:
            return value
        call.unanswered(trouble, error)
        del error  # which would hold itself in this frame
    return call.come_out()


async def _answer(fallback: Function, error: Exception) -> tuple[str | None, Any]:
    """What went wrong with a fallback, and what it gave."""
    try:
        return None, await _finished(fallback(error))
    except Exception as trouble:  # noqa: BLE001 - the call's own error comes out, with this one noted
        return f"fallback raised {brief(trouble)}", None


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


async def _finished(outcome: Any) -> Any:
    """What a sync or async function of the user's gave, awaited if it is to be awaited."""
    return (await outcome) if hasattr(outcome, "__await__") else outcome


async def under(around: Surroundings, coroutine: Any) -> Any:
    """Awaits a coroutine in surroundings that are not those of the task it runs in."""
    token = current.set(around)
    try:
        return await coroutine
    finally:
        around[RUNNING] = False
        current.reset(token)


# A plain function turned out to give a coroutine, or something else to await: the call goes on from there.


async def carry_on(
    call: Call, attempt: Surroundings | None, coroutine: Any, function: Function, args: Args, kwargs: Kwargs
) -> Any:
    """The rest of a call one of whose attempts gave a coroutine; its place is its own while it is awaited."""
    anew = awaiting(function, pending := [coroutine])
    if call.mark is not None:
        call.mark[RUNNING] = True  # the sync driver has left it
    try:
        if not await take_place(call):
            return await conclude(call)
        outcome = await again(call, attempt, anew, args, kwargs)
        return await resume(call, anew, args, kwargs) if outcome is MORE else outcome
    finally:
        drop(pending)
        call.abandon()
        call.leave()


def awaiting(function: Function, pending: list[Any] | None = None) -> Function:
    """An async function out of a plain one that gives awaitables, of which one may be pending already."""

    async def call(*args: Any, **kwargs: Any) -> Any:
        result: Any = pending.pop() if pending else function(*args, **kwargs)
        return (await result) if is_awaited(result) else result

    return call
