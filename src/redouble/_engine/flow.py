"""One call, from its first attempt or from the failure of it: a generator without I/O.

attempt -> outcome -> classify -> decide -> wait -> next attempt

`flow` yields what to do next, and a driver does it and sends what came of it:

- a context (a list), or ``None``: run the attempt, in that context or in none; send ``(error, result)``
- a float: wait for that many seconds; send ``None``
- a tuple ``(function, *args)``: call the function, and await its answer if the driver awaits; send
  ``(error, answer)``
- a dict: use these keywords for the attempts to come; send the function that is called
- ``SETTLED``, for blocks and generators: the failure is dealt with, the driver must forget it now

It returns the result of the call, or `GivenUp` with the error to raise. A driver that an
exception ends closes it. No closures here: Python 3.13 crashes where it has no memory for one.
"""

from __future__ import annotations

import sys
from types import CoroutineType

from .._base import clock as _clock
from .._base.callables import truth
from .._base.checks import INF
from .._base.log_once import level_of_caller, warn, warn_once
from .._base.loops import cancel_requests, in_trio, limited
from .._base.text import brief
from ..context import NUMBER, RUNNING, in_time, leave
from ..errors import CircuitOpen
from ..events import GaveUp, Reason
from ..policy import RetriedCall
from .decide import RejectedResult, Wait, afford, ask, broke, decide
from .note import written

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import Any

    from ..context import AttemptContext
    from .call import Call
    from .guarding import Report

    Flow = Generator[Any, Any, Any]

SETTLED = "settled"

# As Python itself keeps them, whatever an exception's own attributes do.
_trace: Any = BaseException.__dict__["__traceback__"]
_cause: Any = BaseException.__dict__["__cause__"]
_context: Any = BaseException.__dict__["__context__"]
_explicit: Any = BaseException.__dict__["__suppress_context__"]

# A chain of causes may be circular.
_LONGEST_CHAIN = 20

# Sent in the place of an error: the attempt returned an awaitable, and an async driver takes over.
AWAITED: Any = "awaited"

# What is sent after a function that returned nothing and raised nothing.
NOTHING: Any = (None, None)


class GivenUp:
    """The end of a call that failed: the driver raises the error."""

    __slots__ = ("error",)

    def __init__(self, error: Any) -> None:
        self.error = error


def flow(call: Call, failure: Any = None, attempt: AttemptContext | None = None) -> Flow:  # noqa: C901
    """Yield the steps of a call: from its first attempt on, or from the failure of that.

    ``attempt`` is the context of a first attempt that is still to be made. A `RejectedResult` is a failure.

    One turn of the loop is one attempt: run it, report to the guards, decide, record, wait, prepare the
    next. The end is `_conclude`. An interrupt closes the generator wherever it is; `Call.release` then gives
    back what the call holds.
    """
    # No other generator during the wait, few locals, and few calls within calls: there may be a hundred
    # thousand calls in backoff, and each keeps this frame. So `result` is in turn the result, the time, the
    # decision, the wait and the answer of the sleep, and `attempt` the context and the step that waits.
    try:
        if failure is None:
            if not (yield from _admit_first(call, attempt)):
                return (yield from _conclude(call))
            if call.last_note == INF:  # no wrapper has read it before the attempt
                call.last_note = written.latest
        while True:
            if failure is None:
                failure, result = yield attempt
                if failure is AWAITED:
                    failure, result = yield from _hand_over(call, attempt)
                    if failure is AWAITED:
                        break
                if failure is None:
                    if call.policy.until is None or call.stepwise or (yield from _accepts(call, result)):
                        if call.owed is not None:  # `reset` has announced the success
                            yield from _report(call, call.owed)
                            return result
                        if call.guards is not None:
                            yield from _report_success(call, result)
                        call.succeed()
                        return result
                    if call.ending is not None:
                        break
                    failure = RejectedResult(result)
            if type(failure) is RejectedResult and call.policy._client is not None:
                failure = RejectedResult(failure.result, call.policy._client.reason(failure.result))
            if call.in_task and (cancel_requests() or call.cancels) and call.end_if_cancelled(failure):
                break
            if call.guards is None:
                result = call.read_clock()
                result = decide(call.policy, call, failure, result)
                result = call.settle(result, failure)
            else:
                result = yield from _settle_guarded(call, failure)
            if result is None:
                if call.ending is None:  # retries are disabled
                    if type(failure) is RejectedResult:
                        return failure.result
                    call.ending = failure  # pyright: ignore[reportAttributeAccessIssue]
                break
            if type(failure) is RejectedResult and call.policy._client is not None:
                yield from _discard(call, failure.result)
            # Nothing of the attempt may live on during the wait: its frames would.
            failure = None
            if call.stepwise:
                yield SETTLED
            if (call.ends is not None or call.policy.give_up_after is not None) and call.end_if_late(
                result, of_backoff=True
            ):
                break
            attempt = wait_step(call, result)
            result = yield attempt
            # Here and below: the usual cases come without the cost of another generator.
            if (
                result is not None
                and result is not NOTHING
                and not (yield from _slept(call, attempt, result))
            ):
                break
            if call.held is not None or call.guards is not None:
                if (
                    call.guards is None
                    and call.recover is None
                    and not call.in_task
                    and call.ends is None
                    and call.policy.give_up_after is None
                ):
                    call.let_go()
                elif not (yield from _ready(call)):
                    break
            result, attempt = None, call.next_attempt()
        failure = result = None
        return (yield from _conclude(call))
    finally:
        try:
            call.release()
        except BaseException:  # an interrupt, perhaps before anything was done
            call.release()
            raise


def _admit_first(call: Call, first: AttemptContext | None) -> Flow:
    """Return whether the first attempt may be made: there is time, a slot, and no guard that refuses it."""
    if first is not None and not first[NUMBER]:
        call.expire()
        return False
    guards = call.guards
    if guards is None:
        return True
    if call.policy._variant == "guarded" and (guards.breaker is None or guards.take_ticket()):
        return True  # as the wrapper of such a first attempt does: no clock is read
    # The breaker is asked here too: a call that it refuses need not queue for a slot.
    return (
        not call.end_if_refused()
        and (yield from _take_slot(call))
        and not call.end_if_late()
        and (yield from _admit(call))
    )


def _take_slot(call: Call) -> Flow:
    """Return whether the call has a slot in its bulkhead, after a wait if there may be one."""
    guards = call.guards
    if guards is None or guards.bulkhead is None or guards.slot is not None:
        return True
    error, taken = yield (guards.take_slot_async if call.awaits else guards.take_slot), call.time_left()
    if error is not None:
        call.fail_callback(error, f"guard {guards.bulkhead.name} failed with {brief(error)}")
        return False
    if not taken:
        call.refuse(guards.bulkhead.refusal(), Reason.bulkhead)
    return taken


def _admit(call: Call) -> Flow:
    """Return whether the throttle, after a wait if need be, and the breaker let the attempt through.

    The wait of a throttle counts as a part of the last wait in the note. If it would pass a limit, or the
    circuit opens meanwhile, the call ends.
    """
    guards: Any = call.guards
    while guards.throttle is not None and (seconds := guards.throttle_wait()):
        if call.end_if_refused() or call.end_if_late(seconds):
            return False
        step = wait_step(call, seconds)
        outcome = yield step
        if outcome is not None and not (yield from _slept(call, step, outcome)):
            return False
        call.log_delay(seconds, more=True)
        if call.end_if_late():
            return False
    breaker = guards.breaker
    if breaker is None or guards.take_ticket():
        return not call.end_if_late()
    error, _ = yield (guards.enter_async if call.awaits else guards.enter), call.time_left()
    if isinstance(error, CircuitOpen):
        call.refuse(error.with_traceback(None), Reason.breaker)  # whose frames would hold it, and the call
        return False
    if error is not None:  # a breaker may be the user's own; the attempt is made
        warn_once(breaker, f"guard {breaker.name} failed", error)
    return not call.end_if_late()  # a store, or a listener, may have taken long


def _settle_guarded(call: Call, failure: Any) -> Flow:
    """Report a failure to the guards, and decide about it. Return the wait, or ``None``, as `Call.settle`."""
    guards: Any = call.guards
    if call.owed:
        yield from _report(call, call.owed)
    reports = guards.report_failure(failure, call.attempt, call.time_left)
    if reports:
        yield from _report(call, reports)
    decision = decide(call.policy, call, failure, call.read_clock())
    if guards.budget is not None and guards.budget.is_async and type(decision) is Wait:
        error, cost = yield in_time, call.time_left(), ask, guards, decision
        decision = broke(error, decision) if error is not None else afford(guards, decision, cost)
    return call.settle(decision, failure)


def _report_success(call: Call, result: Any) -> Flow:
    """Report an attempt that returned to the guards."""
    guards: Any = call.guards
    yield from _report(call, guards.report_success(result, call.time_left))


def _report(call: Call, reports: list[Report]) -> Flow:
    """Make the reports that must be awaited. Their errors are logged, and are not the call's."""
    for guard, method, *args in reports:
        error, _ = yield in_time, call.time_left(), method, *args
        if error is not None:
            warn_once(guard, f"guard {guard.name} failed", error)


def _discard(call: Call, result: Any) -> Flow:
    """Close a response that is retried. An error of that is logged, and is not the call's."""
    client: Any = call.policy._client
    error, _ = yield client.discard, result, call.time_left()
    if error is not None:
        warn_once(client, f"closing a response of {call.name} failed", error)


def _accepts(call: Call, result: Any) -> Flow:
    """Return whether ``until`` accepts a result. Its error ends the call."""
    error, answer = yield _until, call.policy.until, result
    if error is not None:
        if call.attempt > 1 or call.policy._successes:
            call.read_clock()
            call.announce(GaveUp, reason=Reason.callback, why=f"until raised {brief(error)}")
        call.ending = error
        return False
    return answer


def _until(until: Any, result: Any) -> bool:
    """Return whether ``until`` accepts a result. Raise `TypeError` if it is async."""
    return truth("until", until(result))


def wait_step(call: Call, seconds: float) -> Any:
    """Return the step that waits: a float, or a call of the policy's ``sleep``."""
    call.waited += seconds
    sleep = _clock.sleep_of(call.policy.sleep) if _clock.fakes else call.policy.sleep
    if sleep is not None:
        return sleep, seconds
    asyncio: Any = sys.modules.get("asyncio")
    if not call.in_task and (
        (asyncio is not None and asyncio._get_running_loop() is not None)
        or ("trio" in sys.modules and in_trio())
    ):
        warn_blocking(call.name)
    return float(seconds)


def _slept(call: Call, step: Any, outcome: Any) -> Flow:
    """Return whether a wait by ``sleep`` went well: its error ends the call."""
    error, answer = outcome
    if error is not None:
        call.log_delay(None)
        call.fail_callback(error, f"sleep raised {brief(error)}")
        return False
    if type(answer) is CoroutineType:
        answer.close()
        warn_once(step[0], "sleep is async, which a sync call cannot await; time.sleep stands in")
        yield float(step[1])
    return True


def _ready(call: Call) -> Flow:
    """Run ``recover``, and ask the guards. Return whether the next attempt may be made."""
    if call.recover is not None and not (yield from _recover(call)):
        return False
    if (call.ends is not None or call.policy.give_up_after is not None) and call.end_if_late():
        return False
    # After a `reset` the call has no slot.
    if call.guards is not None and not ((yield from _take_slot(call)) and (yield from _admit(call))):
        return False
    if call.in_task and (call.recover is not None or call.policy.sleep is not None):
        call.heed_cancellation()
    call.let_go()
    return True


def _recover(call: Call) -> Flow:
    """Run ``recover``. Return whether that went well: its error ends the call."""
    holder: Any = call.recover
    step: Any = holder.recover, call.held
    if holder._recover_takes_call:
        # The originals stay as they are, for the dead letter and the idempotency key.
        keywords = call.keywords = dict(call.kwargs) if call.keywords is None else call.keywords
        # `outside` is of blocks, which have no function.
        function = (yield keywords) if call.outside is None else None
        step = *step, RetriedCall(function, call.args, keywords, call.attempt)
    left = call.time_left() if call.awaits else None
    # With a time limit: what is cancelled is past the deadline, as the clock will show.
    error, answer = yield step if left is None else (limited, left, *step)
    trouble = "" if error is None else f"recover raised {brief(error)}"
    if type(answer) is CoroutineType:
        answer.close()
        trouble = "recover is async, which a sync call cannot await"
    if trouble:
        call.fail_callback(error, trouble)
    return not trouble


def _conclude(call: Call) -> Flow:
    """End the call: store its dead letter, and return the answer of its fallback, or `GivenUp`.

    A retry that was paid for and not made is given back to the budget first. The dead letter comes before
    the fallback: an error of that must not lose it.
    """
    if call.guards is not None and call.guards.unspent:
        call.guards.refund(call.time_left())
    if call.lost is not None:
        yield from _store(call)
    if call.answered:
        fallback: Any = call.policy.fallback
        if not callable(fallback):
            return fallback
        chain = _chain(call.ending)
        error, value = yield fallback, call.ending
        if error is not None:
            call.ending = _translated(error, chain)
        elif type(value) is not CoroutineType:
            return value
        else:
            value.close()
            trouble = "fallback is async, which a sync call cannot await"
            call.add_note(call.ending, f"{call.why}; {trouble}" if call.why else trouble)
    ended, call.ending = GivenUp(call.ending), None
    return ended


def _chain(error: Any) -> list[tuple[Any, Any]]:
    """Return an error and those that it was raised from, each with its traceback."""
    chain: list[tuple[Any, Any]] = []
    while error is not None and len(chain) < _LONGEST_CHAIN:
        chain.append((error, _trace.__get__(error)))
        cause = _cause.__get__(error)
        error = _context.__get__(error) if cause is None else cause
    return chain


def _translated(error: Any, chain: list[tuple[Any, Any]]) -> Any:
    """Return the error of a fallback, raised from the call's own unless it was raised ``from`` something.

    A fallback that raises an error which it was given declines: that error is raised as it was.
    """
    for own, trace in chain:
        if own is error:
            _trace.__set__(error, trace)
            return error
    if not _explicit.__get__(error):
        _cause.__set__(error, chain[0][0])
    return error


def _store(call: Call) -> Flow:
    """Store the dead letter of the call. An error of that is noted and logged, and is not the call's."""
    token = call.limit_storing()
    try:
        error, letter = yield (call.store,)
        if error is None:
            call.stored(letter)
        else:
            call.store_failed(error)
    finally:
        call.lost = None  # also if this was interrupted
        leave(token)


def _hand_over(call: Call, attempt: AttemptContext | None) -> Flow:
    """Hand an attempt that returned an awaitable to an async driver, and return its outcome.

    The slot of the call is free until that driver begins. Without a new one the outcome is ``AWAITED`` again.
    """
    if call.guards is not None:
        call.guards.release_slot()
    if call.mark is not None:
        call.mark[RUNNING] = False
    yield AWAITED
    call.in_task = True
    if call.mark is not None:
        call.mark[RUNNING] = True
    return (yield attempt) if (yield from _take_slot(call)) else (AWAITED, None)


# Names of functions that were warned about. Cleared when full: a program that makes names without end sees a
# warning again, and the set stays small.
_warned: set[str] = set()
_MOST_WARNED = 1000


def warn_blocking(name: str) -> None:
    """Warn, once for each function, that its wait blocks all other tasks of the event loop."""
    if name in _warned:
        return
    if len(_warned) >= _MOST_WARNED:
        _warned.clear()
    _warned.add(name)
    import warnings

    text = (
        f"{name} waits for its retry with a sync sleep inside a running event loop, which blocks all tasks; "
        "make it async, or run it in a thread"
    )
    try:
        warnings.warn(text, RuntimeWarning, stacklevel=level_of_caller())
    except Exception as error:  # noqa: BLE001 - where warnings are errors, this one must not hide the call's
        warn(text, error)
