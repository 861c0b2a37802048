"""What must hold when a call of the fuzzer is over."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from fuzzing_faults import LOST, STAND_IN, TERMINAL, Mute
from fuzzing_world import Caller, World

from redouble import (
    BulkheadFull,
    CircuitOpen,
    DeadlineExceeded,
    Policy,
    RedoubleError,
    ResultRejected,
    history,
)
from redouble.breaker import CircuitBreaker
from redouble.budget import RatioBudget, TokenBudget
from redouble.context import current
from redouble.events import Event, Reason, Recovered, Retrying, Succeeded

if TYPE_CHECKING:
    pass


# What must hold when a call is over


def check(caller: Caller, kind: str, value: Any) -> None:
    world = caller.world
    world.trace.append((kind, *described(value)))
    told: list[Event] = [event for event in caller.events if type(event) in (Retrying, *TERMINAL)]
    terminal = [event for event in told if type(event) is not Retrying]
    reason = terminal[0].reason if terminal else None
    if not right_outcome(caller, kind, value, reason):
        world.fault(f"{kind} {described(value)} came out, after {caller.last[0]} {described(caller.last[1])}")
    if caller.interrupted is None and not (caller.left or caller.cancelled or is_cancelled(value)):
        check_events(caller, kind, value, told)
        check_lost(caller, value, reason)
    elif len(terminal) > 1 or caller.letters > 1:
        world.fault(f"an interrupted call ended {len(terminal)} times and left {caller.letters} letters")
    check_waits(caller, value, [event.delay for event in told if type(event) is Retrying])
    if current.get() is not None and world.around is None:
        world.fault("the context of the call is still there")
    if not world.crowd:
        check_guards(world, caller.policy)
    ending = type(terminal[0]).__name__ if terminal else "succeeded" if kind == "value" else "passed"
    world.tally[f"{ending} ({reason})" if reason else ending] += 1
    world.tally[f"{kind} {type(value).__name__}" if kind == "error" else "value"] += 1


def right_outcome(caller: Caller, kind: str, value: Any, reason: Reason | None) -> bool:
    """Whether what came out is what the last attempt gave, or one of our own errors about it."""
    what, last, _ = caller.last
    if caller.cancelled:
        return is_cancelled(value)
    if caller.interrupted is not None:
        return value is caller.interrupted
    if caller.late is not None:
        return value is caller.late
    if caller.left:
        return kind == "value"
    if kind == "error":
        return right_error(caller, value, reason)
    if value is STAND_IN:
        return is_lost(caller, reason)
    return value is last and (what == "result" or (what == "again" and reason is Reason.disabled))


def right_error(caller: Caller, value: BaseException, reason: Reason | None) -> bool:
    what, last, _ = caller.last
    if value is last and what == "error":
        return True
    if type(value) is DeadlineExceeded:
        return reason is Reason.deadline and right_cause(caller, value.__cause__)
    if type(value) is ResultRejected:
        return what == "again" or (what == "result" and value.result is last)
    if type(value) in (CircuitOpen, BulkheadFull):
        return not caller.starts
    if type(value) is RuntimeError and str(value) == "trouble in fallback":
        own = value.__cause__  # a fallback that raises translates
        return own is not None and is_lost(caller, reason) and right_error(caller, own, reason)
    if type(value) is RuntimeError and str(value) == "trouble in until":
        caller.until_error = True
        return what == "result" and caller.judging
    if type(value) is RuntimeError and value.__cause__ is last and type(last) is StopAsyncIteration:
        caller.world.cuts += 1  # an error in an async loop must not end it
        return "block" in caller.world.form
    # By its own timeout, or by a limit further out.
    return what == "cut" and type(value) in (TimeoutError, asyncio.CancelledError)


def right_cause(caller: Caller, cause: BaseException | None) -> bool:
    what, last, _ = caller.last
    if not caller.starts or what == "error":
        return cause is last
    return isinstance(cause, TimeoutError if what == "cut" else ResultRejected)


def is_cancelled(value: Any) -> bool:
    return type(value) is asyncio.CancelledError


def is_lost(caller: Caller, reason: Reason | None) -> bool:
    """Whether a call is given up on; our own errors are, though they are not retried."""
    return reason in LOST or (
        reason is Reason.not_retryable and issubclass(type(caller.last[1]), RedoubleError)
    )


def check_events(caller: Caller, kind: str, value: Any, told: list[Event]) -> None:
    """One ending, and one retry before each further attempt."""
    count = len(caller.starts)
    retries = [event.attempt for event in told if type(event) is Retrying]
    last = told[-1] if told and type(told[-1]) is not Retrying else None
    successes = sum([type(event) is Succeeded for event in caller.events])
    reason = None if last is None else last.reason
    succeeded = (kind == "value" and value is not STAND_IN and reason is None) or caller.late is not None
    if count == 1 and not retries and (succeeded or (caller.until_error and not caller.successes)):
        right = not told and successes == (succeeded and caller.successes)
    else:
        right = last is not None and len(told) == len(retries) + 1 and last.attempt == count and not successes
        right = right and (type(last) is Recovered) is succeeded
    # What ends a call between two attempts: too late, refused, not recovered.
    soft = Reason.give_up_after
    between = reason in (Reason.deadline, soft, Reason.breaker, Reason.callback) and len(retries) == count
    if not right or retries != [*range(1, count + between)]:
        shown = [(type(event).__name__, event.attempt, event.reason) for event in caller.events]
        caller.world.fault(f"{count} attempts ended with {kind}, and were told as {shown}")


def check_lost(caller: Caller, value: Any, reason: Reason | None) -> None:
    """A dead letter for each call that was given up on, and a fallback that answers for it."""
    world, policy = caller.world, caller.policy
    lost = is_lost(caller, reason)
    # A recover that fails is the end of a call, a predicate that fails is none of its business. And what has
    # no key cannot be kept under it.
    unsure = reason is Reason.callback or "key" in world.hazards
    if caller.letters != (lost and policy.dead_letters is not None) and not (unsure and caller.letters < 2):
        world.fault(f"{caller.letters} dead letters after {reason}")
    answers = policy._falls_back and lost
    if (value is STAND_IN) != answers and not (answers and "fallback" in world.hazards):
        world.fault(f"{described(value)} came out after {reason}, with the fallback {policy.fallback}")
    world.tally["letters"] += caller.letters
    world.tally["fallbacks"] += value is STAND_IN


def check_waits(caller: Caller, value: Any, told: list[float]) -> None:
    """Every wait that was told was made, and all time is accounted for."""
    world = caller.world
    if caller.policy.throttle is None and caller.waits not in (told, told[:-1]):
        world.fault(f"waits of {told} s were told, and of {caller.waits} s made")
    world.tally["waits of a throttle"] += len(caller.waits) > len(told)
    made = sum(caller.waits)
    passed = world.clock.now - caller.began
    exact = not (world.crowd or caller.cancelled or is_cancelled(value) or caller.interrupted)
    if exact and abs(passed - made - caller.spent) > 1e-6 * max(1.0, passed) + 1e-14 * world.clock.now:
        world.fault(f"{passed} s have passed, {made} s of them waiting and {caller.spent} s in attempts")
    story = history(value) if isinstance(value, Exception) and type(value) is not Mute else None
    if story is not None and exact and caller.starts and not (story.left_out or caller.late):
        waited = sum([failure.delay or 0.0 for failure in story.failures])
        if abs(waited + caller.before - made) > 1e-6 * max(1.0, made):
            world.fault(f"the story tells of {waited} s of waits, and they were {caller.waits}")


def check_guards(world: World, policy: Policy) -> None:
    """While no call is under way, all places are free, and all numbers within bounds."""
    breaker, budget, throttle, bulkhead = policy.breaker, policy.budget, policy.throttle, policy.bulkhead
    if isinstance(breaker, CircuitBreaker):
        phase = breaker._circuit.phase
        world.trace.append(("circuit", phase.state, breaker.counted))
        if phase.probes or phase.state is not world.circuit:
            world.fault(f"{phase} after the call, where {world.circuit} was told")
    if isinstance(budget, TokenBudget):
        tokens = budget.tokens
        world.trace.append(("tokens", tokens))
        if not 0.0 <= tokens <= budget.capacity or budget._full is not (tokens == budget.capacity):
            world.fault(f"{budget}, full={budget._full}")
    if isinstance(budget, RatioBudget):
        most = budget.floor_per_second * budget.window + budget.ratio * world.steps
        if not 0.0 <= budget.tokens <= most + 1e-6:
            world.fault(f"{budget.tokens} retries allowed by {budget}")
    if throttle is not None and not throttle.min_rate <= (throttle.rate or 1e9) <= 1e9:
        world.fault(f"{throttle}")
    if bulkhead is not None and bulkhead.snapshot() != (world.held, 0):
        world.fault(f"{bulkhead} after the call, where {world.held} should be")


def described(value: Any) -> tuple[Any, ...]:
    """A result or an error as text, whatever it does when it is asked."""
    name = type(value).__name__
    if not issubclass(type(value), BaseException):
        return (name,)
    try:
        return name, str(value), *getattr(value, "__notes__", ())
    except Exception:
        return (name,)
