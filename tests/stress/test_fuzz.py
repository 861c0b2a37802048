"""Random policies against random faults: see ``fuzzing`` for how they are drawn and what is checked.

With ``REDOUBLE_LONG=1`` in the environment there are a million steps, and it is told what they reached.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections import Counter
from types import SimpleNamespace
from typing import Any

import fuzzing
import fuzzing_faults
import pytest

from redouble import DeadlineExceeded, Policy, Rule, retrying
from redouble._engine import decide as _decide
from redouble._engine import decorate as _decorate
from redouble._engine import drivers as _drivers
from redouble._engine import first as _first
from redouble._engine import flow as _flow
from redouble._engine.call import Call
from redouble._engine.decide import Stop, Wait
from redouble.breaker import TRANSITIONS, Circuit, CircuitBreaker, State, _says_nothing, _Trigger
from redouble.budget import TokenBudget
from redouble.bulkhead import Bulkhead
from redouble.context import current
from redouble.events import CircuitChanged, Expired, GaveUp, Reason, Recovered
from redouble.testing import FakeClock

LONG = os.environ.get("REDOUBLE_LONG") == "1"
# Coverage makes it many times slower.
TRACED = sys.gettrace() is not None
STEPS = 1_000 if TRACED else 1_000_000 if LONG else 10_000

# What ten thousand steps come to in any case, and a million do not miss.
REACHED = [
    *["succeeded", "Recovered", "Expired (deadline)", "Refused (breaker)", "Refused (bulkhead)", "passed"],
    *[f"GaveUp ({reason})" for reason in Reason if reason not in (Reason.deadline, Reason.bulkhead)],
    *[f"as {form}" for form in ("decorated", "called", "block", "scope", "scope block", "generator")],
    *[f"way {way}" for way in ("plain", "guarded", "timed", "full")],
    *["circuit closed -> open", "circuit open -> half-open", "circuit half-open -> open"],
    *["circuit half-open -> closed", "compared", "crowds", "cancelled from outside", "cut off", "letters"],
    *["fallbacks", "waits of a throttle", *fuzzing_faults.KINDS],
]
REACHED_IN_TIME = [
    f"{what} in {place}" for what in ("trouble", "interrupt") for place in fuzzing_faults.PLACES
]
REACHED_IN_TIME.remove("trouble in sleep")  # which comes out, as it should


def test_every_call_keeps_its_promises_whatever_is_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    began = time.process_time()
    tally = fuzzing.fuzz(0, STEPS)
    if LONG:
        with capsys.disabled():
            print(f"\n{tally['steps'] / (time.process_time() - began):,.0f} steps per second")
            print(*[f"{often:11,}  {what}" for what, often in sorted(tally.items())], sep="\n")
    if not TRACED:
        assert [what for what in REACHED + REACHED_IN_TIME * LONG if not tally[what]] == []


def test_a_seed_tells_it_all() -> None:
    def traces(seed: int) -> list[Any]:
        loop = fuzzing_faults.Loop()
        try:
            with fuzzing.quiet():
                return [world.trace for world in fuzzing.run(seed, loop, Counter())]
        finally:
            loop.close()

    assert traces(7) == traces(7) != traces(8)


# That the fuzzer can fail: bugs, each of which it must find.


def one_attempt_too_many(patch: pytest.MonkeyPatch) -> str:
    real = _flow.decide

    def decide(policy: Any, progress: Any, failure: Any, now: float) -> Any:
        more = policy.attempts and progress.attempt == policy.attempts
        return real(policy.replace(attempts=policy.attempts + 1) if more else policy, progress, failure, now)

    patch.setattr(_flow, "decide", decide)
    return "are allowed"


def a_retry_of_a_rule_too_many(patch: pytest.MonkeyPatch) -> str:
    patch.setattr(_decide, "_failures", lambda progress, key: (progress.rule_failures or {}).get(key, 0))
    return "a retry too many"


def a_wait_past_the_deadline(patch: pytest.MonkeyPatch) -> str:
    real = _flow.decide

    def decide(policy: Any, progress: Any, failure: Any, now: float) -> Any:
        outcome = real(policy, progress, failure, now)
        late = isinstance(outcome, Stop) and outcome.reason is Reason.deadline
        if late and outcome.verdict and outcome.verdict.retry_after is None:
            wait = Wait()
            wait.delay = wait.previous = 0.5
            wait.verdict, wait.cost, wait.rule, wait.rule_key = outcome.verdict, 0.0, None, None
            return wait
        return outcome

    patch.setattr(_flow, "decide", decide)
    patch.setattr(Call, "end_if_late", lambda *_, **__: False)
    return "past the deadline"


def an_attempt_after_the_deadline(patch: pytest.MonkeyPatch) -> str:
    real = Call.end_if_late
    patch.setattr(
        Call, "end_if_late", lambda self, ahead=0.0, **given: bool(ahead) and real(self, ahead, **given)
    )
    return "the deadline was at"


def a_wait_without_end(patch: pytest.MonkeyPatch) -> str:
    real = _decide.next_delay
    patch.setattr(_decide, "next_delay", lambda *given: real(*given) or float("inf"))
    return "a wait of inf s"


def a_hint_undercut(patch: pytest.MonkeyPatch) -> str:
    patch.setattr(_decide, "_after_hint", lambda policy, progress, hint, base, own, now: hint / 2)
    return "the server asked for"


def an_ending_not_told(patch: pytest.MonkeyPatch) -> str:
    real = Call.announce

    def announce(self: Any, kind: Any, **given: Any) -> None:
        if kind is not GaveUp or self.attempt != 3:
            real(self, kind, **given)

    patch.setattr(Call, "announce", announce)
    return "were told as"


def an_ending_told_twice(patch: pytest.MonkeyPatch) -> str:
    real = Call.announce

    def announce(self: Any, kind: Any, **given: Any) -> None:
        for _ in range(2 if kind is Recovered else 1):
            real(self, kind, **given)

    patch.setattr(Call, "announce", announce)
    return "were told as"


def another_error(patch: pytest.MonkeyPatch) -> str:
    real = Call.give_up
    patch.setattr(
        Call,
        "give_up",
        lambda self, error, *args, **given: real(self, type(error)(*error.args), *args, **given),
    )
    patch.setattr(Call, "_expired", lambda self, why: DeadlineExceeded(why, attempts=1, elapsed=0.0))
    return ""


def another_cause(patch: pytest.MonkeyPatch) -> str:
    real = Call.give_up
    patch.setattr(Call, "give_up", lambda self, *args, **given: real(self, *args, **{**given, "cause": None}))
    return "DeadlineExceeded"


def an_interrupt_retried(patch: pytest.MonkeyPatch) -> str:
    real = _drivers.drive

    def drive(flow: Any, function: Any, args: Any, kwargs: Any) -> Any:
        def uninterrupted(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            except KeyboardInterrupt:
                raise TimeoutError from None

        return real(flow, uninterrupted, args, kwargs)

    for module in (_first, _decorate):
        patch.setattr(module, "drive", drive)
    return ""


def a_place_never_given_back(patch: pytest.MonkeyPatch) -> str:
    patch.setattr(Bulkhead, "_release", lambda self, claim: None)
    return ""


def a_place_too_many(patch: pytest.MonkeyPatch) -> str:
    def take(self: Any) -> bool:
        self._under_way += 1
        return True

    patch.setattr(Bulkhead, "_take", take)
    return ""


def a_probe_never_given_back(patch: pytest.MonkeyPatch) -> str:
    patch.setattr(Circuit, "release", lambda self, ticket: None)
    return "after the call"


def a_probe_too_many(patch: pytest.MonkeyPatch) -> str:
    patch.setattr(Circuit, "_has_room", lambda self, phase: True)
    return "was let through by"


def an_attempt_at_an_open_circuit(patch: pytest.MonkeyPatch) -> str:
    patch.setattr(CircuitBreaker, "enter", lambda self, listeners=(): self._circuit.phase.generation)
    patch.setattr(CircuitBreaker, "refuses", lambda self: False)
    return "was let through by"


def from_closed_to_half_open(patch: pytest.MonkeyPatch) -> str:
    patch.setitem(TRANSITIONS, (State.closed, _Trigger.tripped), State.half_open)
    return "the circuit went from closed to half-open"


def tokens_above_the_capacity(patch: pytest.MonkeyPatch) -> str:
    patch.setattr(TokenBudget, "_keep", lambda self, gain: setattr(self, "_tokens", self._tokens + gain))
    return "tokens"


def a_dead_letter_lost(patch: pytest.MonkeyPatch) -> str:
    def store(call: Any) -> Any:
        call.lost = None
        yield from ()

    patch.setattr(_flow, "_store", store)
    return "0 dead letters"


def a_context_left_behind(patch: pytest.MonkeyPatch) -> str:
    left = SimpleNamespace(get=current.get, set=current.set, reset=lambda token: None)
    patch.setattr(_drivers, "current", left)
    return ""


def async_that_goes_its_own_way(patch: pytest.MonkeyPatch) -> str:
    real = Call.settle

    def settle(self: Any, outcome: Any, failure: Any) -> bool:
        more = real(self, outcome, failure)
        if self.in_task and self.guards is not None:
            self.guards.cost = 0.0  # so that the budget is not given back what it was
        return more

    patch.setattr(Call, "settle", settle)
    return "and async"


QUICKLY_FOUND = [
    one_attempt_too_many, a_wait_past_the_deadline, an_ending_not_told, an_ending_told_twice, another_error,
    from_closed_to_half_open, tokens_above_the_capacity, a_context_left_behind,
]  # fmt: skip
FOUND = [
    a_retry_of_a_rule_too_many, an_attempt_after_the_deadline, a_wait_without_end, a_hint_undercut, another_cause,
    an_interrupt_retried, a_place_never_given_back, a_place_too_many, a_probe_never_given_back, a_probe_too_many,
    an_attempt_at_an_open_circuit, a_dead_letter_lost, async_that_goes_its_own_way,
]  # fmt: skip
BUGS = [*QUICKLY_FOUND, *[pytest.param(bug, marks=pytest.mark.slow) for bug in FOUND]]


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_the_fuzzer_finds_a_bug(bug: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    words = bug(monkeypatch)
    token = current.set(None)
    try:
        with pytest.raises(fuzzing_faults.Found, match=r"again: python tests/tools/fuzzing.py \d+$") as found:
            fuzzing.fuzz(0, 20_000)
    finally:
        current.reset(token)
    assert words in str(found.value).partition("\n")[0]


# What it has found


def test_an_error_that_refuses_every_attribute_comes_out_of_a_scope_as_it_is() -> None:
    error = fuzzing_faults.Mute()
    try:
        with retrying(on=Exception):
            raise error
    except Exception as raised:
        came_out = raised
    itself = came_out is error  # and not in the assertion, which would ask it for its looks
    assert itself


def test_an_error_that_refuses_every_attribute_is_a_failure_to_a_breaker() -> None:
    assert not _says_nothing(fuzzing_faults.Mute())


def test_no_attempt_begins_after_the_way_past_the_breaker_took_all_the_time(
    flavour: Any, clock: FakeClock
) -> None:
    def slow(event: Any) -> None:
        if isinstance(event, CircuitChanged) and event.after == "half-open":
            clock.advance(5.0)

    breaker = CircuitBreaker(failures=1, open_for=1.0, clock=clock)
    heard: list[Any] = []
    policy = Policy(
        breaker=breaker, deadline=5.0, listeners=[slow, heard.append], clock=clock, sleep=clock.sleep
    )
    function = flavour.scripted(TimeoutError(), "page")
    with pytest.raises(TimeoutError):
        flavour.call(policy, function)
    clock.advance(1.0)
    with pytest.raises(DeadlineExceeded) as raised:
        flavour.call(policy, function)
    assert (raised.value.attempts, len(function.calls), type(heard[-1])) == (0, 1, Expired)
    assert flavour.call(policy, function) == "page"  # the probe was given back


def test_a_block_that_fails_with_stop_async_iteration_does_not_pass_for_a_success(clock: FakeClock) -> None:
    def recover(error: Exception) -> None:
        raise ValueError("cannot")

    rules = {StopAsyncIteration: Rule(recover=recover)}
    error = StopAsyncIteration("no more pages")

    async def main() -> None:
        async for attempt in retrying(rules=rules, clock=clock, sleep=clock.sleep):
            async with attempt:
                raise error

    with pytest.raises(StopAsyncIteration) as raised:
        asyncio.run(main())
    assert raised.value is error
