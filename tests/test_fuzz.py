"""Random policies against random faults: see ``fuzzing`` for how they are drawn and what is checked.

With ``REDOUBLE_LONG=1`` in the environment there are a million steps, and it is told what they reached.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections import Counter
from typing import Any

import pytest

import fuzzing
from redouble import DeadlineExceeded, Policy, Rule, _async, _call, _decide, _sync, retrying
from redouble._account import Account
from redouble._call import Call
from redouble._circuit import TRANSITIONS, Circuit, Happening, State
from redouble._decide import Stop, Wait
from redouble._guarding import Passage
from redouble.breaker import CircuitBreaker, says_nothing
from redouble.budget import TokenBudget
from redouble.bulkhead import Bulkhead
from redouble.events import CircuitChanged, Expired, GaveUp, Reason, Recovered
from redouble.testing import FakeClock

LONG = os.environ.get("REDOUBLE_LONG") == "1"
# Coverage makes it many times slower.
TRACED = sys.gettrace() is not None
STEPS = 1_000 if TRACED else 1_000_000 if LONG else 10_000

# What ten thousand steps come to in any case, and a million do not miss.
REACHED = [
    *["succeeded", "Recovered", "Expired (deadline)", "Refused (circuit)", "Refused (bulkhead)", "passed"],
    *[f"GaveUp ({reason})" for reason in Reason if reason not in (Reason.deadline, Reason.bulkhead)],
    *[f"as {form}" for form in ("decorated", "called", "block", "scope", "scope block", "generator")],
    *[f"way {way}" for way in ("bare", "judged", "guarded", "watched", "known", "full")],
    *["circuit closed -> open", "circuit open -> half-open", "circuit half-open -> open"],
    *["circuit half-open -> closed", "compared", "crowds", "cancelled from outside", "cut off", "letters"],
    *["fallbacks", "waits of a throttle", *fuzzing.KINDS],
]
REACHED_IN_TIME = [f"{what} in {place}" for what in ("trouble", "interrupt") for place in fuzzing.PLACES]
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
        loop = fuzzing.Loop()
        try:
            with fuzzing.quiet():
                return [world.trace for world in fuzzing.run(seed, loop, Counter())]
        finally:
            loop.close()

    assert traces(7) == traces(7) != traces(8)


# That the fuzzer can fail: bugs, each of which it must find.


def one_attempt_too_many(patch: pytest.MonkeyPatch) -> str:
    real = _decide._used_up

    def used_up(policy: Any, progress: Any, rule: Any, key: Any) -> Any:
        return None if progress.attempt == policy.attempts else real(policy, progress, rule, key)

    patch.setattr(_decide, "_used_up", used_up)
    return "are allowed"


def a_retry_of_a_rule_too_many(patch: pytest.MonkeyPatch) -> str:
    patch.setattr(_decide, "_failures", lambda progress, key: (progress.rule_failures or {}).get(key, 0))
    return "a retry too many"


def a_wait_past_the_deadline(patch: pytest.MonkeyPatch) -> str:
    real = _call.decide

    def decide(policy: Any, progress: Any, failure: Any, now: float) -> Any:
        outcome = real(policy, progress, failure, now)
        late = isinstance(outcome, Stop) and outcome.reason is Reason.deadline
        if late and outcome.verdict.retry_after is None:
            return Wait(0.5, 0.5, outcome.verdict, None, None)
        return outcome

    patch.setattr(_call, "decide", decide)
    patch.setattr(Call, "in_time", lambda *_, **__: True)
    return "past the deadline"


def an_attempt_after_the_deadline(patch: pytest.MonkeyPatch) -> str:
    real = Call.in_time
    patch.setattr(Call, "in_time", lambda self, ahead=0.0, **given: not ahead or real(self, ahead, **given))
    return "the deadline was at"


def a_wait_without_end(patch: pytest.MonkeyPatch) -> str:
    real = _decide.next_delay
    patch.setattr(_decide, "next_delay", lambda *given: real(*given) or float("inf"))
    return "a wait of inf s"


def a_hint_undercut(patch: pytest.MonkeyPatch) -> str:
    patch.setattr(_decide, "_after_hint", lambda policy, progress, hint, base, own, now: hint / 2)
    return "the server asked for"


def an_ending_not_told(patch: pytest.MonkeyPatch) -> str:
    real = Account.announce

    def announce(self: Any, kind: Any, **given: Any) -> None:
        if kind is not GaveUp or self.attempt != 3:
            real(self, kind, **given)

    patch.setattr(Account, "announce", announce)
    return "were told as"


def an_ending_told_twice(patch: pytest.MonkeyPatch) -> str:
    real = Account.announce

    def announce(self: Any, kind: Any, **given: Any) -> None:
        for _ in range(2 if kind is Recovered else 1):
            real(self, kind, **given)

    patch.setattr(Account, "announce", announce)
    return "were told as"


def another_error(patch: pytest.MonkeyPatch) -> str:
    real = Call._end_with
    patch.setattr(
        Call, "_end_with", lambda self, error, cause=None: real(self, type(error)(*error.args), cause)
    )
    patch.setattr(Call, "expired", lambda self, why: DeadlineExceeded(why, attempts=1, elapsed=0.0))
    return ""


def another_cause(patch: pytest.MonkeyPatch) -> str:
    real = Call._end_with
    patch.setattr(Call, "_end_with", lambda self, error, cause=None: real(self, error, None))
    return "DeadlineExceeded"


def an_interrupt_retried(patch: pytest.MonkeyPatch) -> str:
    real = _sync.again

    def again(call: Any, *given: Any) -> Any:
        try:
            return real(call, *given)
        except KeyboardInterrupt:
            return _sync.MORE if _sync.failed(call, TimeoutError()) else None

    patch.setattr(_sync, "again", again)
    return ""


def a_place_never_given_back(patch: pytest.MonkeyPatch) -> str:
    patch.setattr(Passage, "leave", lambda self: None)
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
    patch.setitem(TRANSITIONS, (State.closed, Happening.tripped), State.half_open)
    return "the circuit went from closed to half-open"


def tokens_above_the_capacity(patch: pytest.MonkeyPatch) -> str:
    patch.setattr(TokenBudget, "_keep", lambda self, gain: setattr(self, "_tokens", self._tokens + gain))
    return "tokens"


def a_dead_letter_lost(patch: pytest.MonkeyPatch) -> str:
    patch.setattr(_sync, "keep", lambda call: setattr(call, "lost", None))
    return "0 dead letters"


def a_context_left_behind(patch: pytest.MonkeyPatch) -> str:
    def within(attempt: Any, function: Any, args: Any, kwargs: Any) -> Any:
        fuzzing.current.set(attempt)
        return function(*args, **kwargs)

    patch.setattr(_sync, "within", within)
    return ""


def async_that_goes_its_own_way(patch: pytest.MonkeyPatch) -> str:
    real = _async.succeeded

    async def succeeded(call: Any, result: Any = None) -> None:
        call.cost = 0.0  # so that the budget is not given back what it was
        await real(call, result)

    patch.setattr(_async, "succeeded", succeeded)
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
    token = fuzzing.current.set(None)
    try:
        with pytest.raises(fuzzing.Found, match=r"again: python tests/fuzzing.py \d+$") as found:
            fuzzing.fuzz(0, 5_000)
    finally:
        fuzzing.current.reset(token)
    assert words in str(found.value).partition("\n")[0]


# What it has found


def test_an_error_that_refuses_every_attribute_comes_out_of_a_scope_as_it_is() -> None:
    error = fuzzing.Mute()
    try:
        with retrying(on=Exception):
            raise error
    except Exception as raised:
        came_out = raised
    itself = came_out is error  # and not in the assertion, which would ask it for its looks
    assert itself


def test_an_error_that_refuses_every_attribute_is_a_failure_to_a_breaker() -> None:
    assert not says_nothing(fuzzing.Mute())


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
