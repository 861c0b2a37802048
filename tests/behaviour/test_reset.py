"""`attempt.reset()` in a block: a connection is up, and everything begins anew but the deadline."""

from __future__ import annotations

import asyncio
import math

import pytest

from redouble import BulkheadFull, DeadlineExceeded, Rule, current_attempt, history, retrying
from redouble.breaker import CircuitBreaker, State
from redouble.budget import TokenBudget
from redouble.bulkhead import Bulkhead
from redouble.context import outgoing_headers
from redouble.events import with_successes
from support.guarded import SLOW, AsyncBreaker, AsyncBudget, Interrupt, Turnstile, told

LOST = ConnectionResetError("lost")


class Line:
    """A connection that fails so many times to open, stays up, is lost, and so on."""

    def __init__(self, *refusals):
        self.refusals = [*refusals]
        self.runs = []

    def __call__(self, attempt):
        self.runs.append(attempt.number)
        if self.refusals[0]:
            self.refusals[0] -= 1
            raise TimeoutError("refused")
        attempt.reset()
        assert (attempt.number, attempt.previous) == (1, None)
        self.refusals.pop(0)
        if self.refusals:
            raise ConnectionResetError("lost")
        return "done"


def test_attempts_and_waits_begin_anew(flavour, policy, clock):
    line = Line(2, 2, 1)
    assert flavour.block(policy, line) == "done"
    assert line.runs == [1, 2, 3, 2, 3, 4, 2, 3]
    assert clock.waits == [1.0, 2.0, 1.0, 2.0, 4.0, 1.0, 2.0]


def test_a_block_that_is_reset_goes_on_for_longer_than_its_attempts(flavour, policy, clock):
    assert flavour.block(policy.replace(attempts=2), Line(*[0] * 50)) == "done"
    assert clock.waits == [1.0] * 49


def test_the_previous_wait_of_the_backoff_is_forgotten(flavour, policy, clock):
    given = []

    def backoff(attempt, base, cap, *, previous=None, rng=None):
        given.append((attempt, previous))
        return 3.0

    assert flavour.block(policy.replace(backoff=backoff), Line(2, 1)) == "done"
    assert given == [(0, None), (1, 3.0), (0, None), (1, 3.0)]


def test_the_history_begins_anew(flavour, policy, clock):
    def body(attempt):
        if attempt.number < 3:
            raise TimeoutError("refused")
        attempt.reset()
        clock.advance(7.0)
        raise KeyError("bug")

    with pytest.raises(KeyError) as caught:
        flavour.block(policy.replace(rules={KeyError: Rule(attempts=1)}), body)
    assert caught.value.__notes__[0].splitlines()[1:] == ["  attempt 1: KeyError: 'bug'"]
    assert "after 1 attempt in 7.0 s" in caught.value.__notes__[0]
    assert history(caught.value).attempts == 1


def test_the_counts_of_rules_begin_anew(flavour, policy):
    rules = {TimeoutError: Rule(attempts=2), ConnectionResetError: Rule(attempts=2)}
    assert flavour.block(policy.replace(rules=rules), Line(1, 1, 1)) == "done"


def test_the_deadline_does_not_begin_anew(flavour, policy, clock):
    line = Line(1, 1, 1, 1)
    with pytest.raises(DeadlineExceeded) as caught:
        flavour.block(policy.replace(deadline=5.5), line)
    assert clock.now == 5.0
    assert caught.value.attempts == 2


@pytest.mark.parametrize("fields", [{}, {"budget": TokenBudget()}], ids=["deadline", "budget"])
def test_the_time_of_a_call_begins_anew(flavour, policy, clock, heard, fields):
    def body(attempt):
        clock.advance(5.0)
        attempt.reset()
        clock.advance(2.0)
        if clock.now < 10.0:
            raise LOST

    flavour.block(policy.replace(deadline=60.0, **fields), body)
    assert [(type(event).__name__, event.elapsed) for event in heard] == [
        ("Retrying", 2.0),
        ("Recovered", 8.0),
    ]


@pytest.mark.parametrize("fields", [{}, {"budget": TokenBudget()}], ids=["plain", "budget"])
def test_give_up_after_begins_anew(flavour, policy, clock, fields):
    line = Line(1, 1, 1, 2)
    with pytest.raises(TimeoutError, match="refused"):
        flavour.block(policy.replace(give_up_after=5.0, attempts=math.inf, **fields), line)
    # The third loss is followed by waits of 1 and 2 s; the next, of 4 s, would end 7 s after the last reset.
    assert clock.waits == [1.0, 1.0, 2.0, 1.0, 2.0, 1.0, 2.0]


def test_a_connection_is_held_for_ever(flavour, policy, clock):
    line = Line(*[9] * 30)
    assert flavour.block(policy.replace(attempts=math.inf, base=0.5, cap=60.0), line) == "done"
    assert max(clock.waits) == 60.0
    assert clock.waits.count(0.5) == 30


def test_recovered_is_sent_once_and_only_after_a_failure(flavour, policy, heard):
    def body(attempt):
        if attempt.number == 1 and not heard:
            attempt.reset()
            assert not heard
            raise SLOW
        attempt.reset()
        assert told(heard) == [("Retrying", None), ("Recovered", None)]
        attempt.reset()

    flavour.block(policy, body)
    assert told(heard) == [("Retrying", None), ("Recovered", None)]
    assert heard[-1].attempt == 2


def test_a_listener_of_successes_receives_one_event_for_each_success(flavour, policy, heard):
    counted = policy.replace(listeners=[with_successes(heard.append)])
    flavour.block(counted, Line(0, 1))
    assert [name for name, _ in told(heard)] == ["Succeeded", "Retrying", "Retrying", "Recovered"]


def test_the_code_in_the_block_sees_a_first_attempt(flavour, policy):
    def body(attempt):
        if attempt.number == 1:
            raise SLOW
        assert outgoing_headers()["X-Retry-Attempt"] == "2"
        attempt.reset()
        assert outgoing_headers()["X-Retry-Attempt"] == "1"
        assert (current_attempt().number, current_attempt().previous) == (1, None)
        assert not attempt.is_last

    flavour.block(policy.replace(attempts=2), body)


def test_the_recover_of_a_rule_does_not_run_for_another_failure_after_a_reset(flavour, policy):
    seen, runs = [], []
    error = KeyError("of the rule")

    def body(attempt):
        runs.append(attempt.number)
        if len(runs) == 1:
            raise error
        if len(runs) == 2:
            attempt.reset()
            raise ConnectionError

    flavour.block(policy.replace(rules={KeyError: Rule(recover=seen.append)}), body)
    assert (seen, runs) == ([error], [1, 2, 2])


@pytest.mark.parametrize(
    "fields", [{}, {"deadline": 9.0}, {"timeout": 9.0}], ids=["plain", "deadline", "timeout"]
)
def test_without_a_failure_nothing_is_changed(flavour, policy, heard, fields):
    def body(attempt):
        attempt.reset()
        attempt.reset()
        assert attempt.number == 1

    flavour.block(policy.replace(**fields), body)
    assert heard == []


@pytest.mark.parametrize("method", ["again", "reset"])
def test_asking_again_and_reset_belong_into_the_block(policy, method):
    def refused(attempt):
        with pytest.raises(RuntimeError, match=rf"attempt.{method}\(\) belongs into the block"):
            getattr(attempt, method)()

    runs = []
    for attempt in retrying(policy):
        refused(attempt)
        with attempt:
            runs.append(attempt)
            if len(runs) == 1:
                raise SLOW
        refused(attempt)
    refused(runs[0])
    assert len(runs) == 2


def test_a_block_in_a_scope_may_be_reset(policy, clock):
    line = Line(2, 1)
    with retrying(policy) as call:
        for attempt in call:
            with attempt:
                line(attempt)
    assert clock.waits == [1.0, 2.0, 1.0, 2.0]


def test_again_after_a_reset_counts_from_the_first_attempt(flavour, policy, clock):
    runs = []

    def body(attempt):
        runs.append(attempt.number)
        attempt.reset()
        if len(runs) < 9:
            attempt.again("polled")

    flavour.block(policy.replace(attempts=2), body)
    assert clock.waits == [1.0] * 8


# Guards


def test_a_probe_is_released_and_closes_the_circuit(flavour, policy, clock):
    breaker = CircuitBreaker(failures=1, open_for=10.0, clock=clock)
    breaker.failure()
    clock.advance(11.0)

    def body(attempt):
        assert breaker.state is State.half_open
        attempt.reset()
        assert breaker.state is State.closed

    flavour.block(policy.replace(breaker=breaker), body)
    assert breaker.counted == (0, 0)


def test_a_loss_after_the_reset_counts_in_a_closed_circuit(flavour, policy, clock):
    breaker = CircuitBreaker(failures=9, clock=clock)
    counted = []

    def body(attempt):
        counted.append(breaker.counted[1])
        attempt.reset()
        counted.append(breaker.counted[1])
        if len(counted) < 4:
            raise LOST

    flavour.block(policy.replace(breaker=breaker), body)
    assert counted == [0, 0, 1, 0]


def test_a_loss_after_the_reset_does_not_free_the_probe_of_another_call(flavour, policy, clock):
    breaker = CircuitBreaker(failures=1, open_for=10.0, clock=clock)

    def body(attempt):
        attempt.reset()
        breaker.failure()
        clock.advance(11.0)
        breaker.enter()  # the probe of another call
        raise KeyError("says nothing about health")

    with pytest.raises(KeyError):
        flavour.block(policy.replace(breaker=breaker), body)
    assert (breaker.state, breaker.retry_after) == (State.half_open, 10.0)


def test_a_block_that_fails_after_the_reset_asks_the_breaker_again(flavour, policy, clock):
    breaker = CircuitBreaker(failures=1, open_for=10.0, clock=clock)

    def body(attempt):
        attempt.reset()
        breaker.open()
        raise LOST

    with pytest.raises(ConnectionResetError) as caught:
        flavour.block(policy.replace(breaker=breaker), body)
    assert caught.value is LOST
    assert "the circuit of CircuitBreaker is held open by hand" in LOST.__notes__[0]
    del LOST.__notes__


def test_the_budget_receives_a_success_and_then_a_new_call(flavour, policy):
    budget = TokenBudget(capacity=100, cost=5, timeout_cost=10)
    tokens = []

    def body(attempt):
        if len(tokens) in (0, 3):
            tokens.append(budget.tokens)
            raise TimeoutError("refused")
        tokens.append(budget.tokens)
        attempt.reset()
        tokens.append(budget.tokens)
        if len(tokens) == 3:
            raise TimeoutError("lost")

    flavour.block(policy.replace(budget=budget), body)
    # refused (-10), up (+10), lost (-10), refused (-10), up (+10)
    assert tokens == [100, 90, 100, 90, 80, 90]


def test_the_throttle_receives_each_outcome_once(flavour, policy):
    throttle = Turnstile()
    flavour.block(policy.replace(throttle=throttle), Line(1, 0))
    assert throttle.outcomes == ["TimeoutError", "NoneType", "ConnectionResetError", "NoneType"]


def test_the_slot_is_released_and_the_next_attempt_takes_one_again(flavour, policy):
    slots = Bulkhead(1)
    used = []

    def body(attempt):
        used.append(slots.snapshot()[0])
        attempt.reset()
        used.append(slots.snapshot()[0])
        if len(used) < 4:
            raise LOST

    flavour.block(policy.replace(bulkhead=slots), body)
    assert used == [1, 0, 1, 0]
    assert slots.snapshot() == (0, 0)


def test_a_slot_that_is_taken_by_another_ends_the_call_with_its_own_error(flavour, policy, heard):
    slots = Bulkhead(1)

    def body(attempt):
        attempt.reset()
        assert slots.acquire()
        raise LOST

    with pytest.raises(ConnectionResetError) as caught:
        flavour.block(policy.replace(bulkhead=slots, sleep=None, base=0.0), body)
    assert caught.value is LOST
    assert "Bulkhead" in LOST.__notes__[0].splitlines()[0]
    assert told(heard) == [("Retrying", None), ("GaveUp", "bulkhead")]
    del LOST.__notes__
    with pytest.raises(BulkheadFull):
        flavour.block(policy.replace(bulkhead=slots), body)


def test_a_bulkhead_that_breaks_after_the_reset_ends_the_call_with_its_own_error(flavour, policy):
    class Broken(Bulkhead):
        broken = False

        def acquire(self, timeout=None):
            if self.broken:
                raise OSError("store")
            return super().acquire(timeout)

        async def acquire_async(self, timeout=None):
            return self.acquire(timeout)

    slots = Broken(1)

    def body(attempt):
        attempt.reset()
        slots.broken = True
        raise LOST

    with pytest.raises(ConnectionResetError):
        flavour.block(policy.replace(bulkhead=slots), body)
    assert ": guard Broken failed with OSError: store\n" in LOST.__notes__[0]
    del LOST.__notes__


def test_an_interrupt_after_the_reset_leaves_nothing_behind(flavour, policy, clock):
    slots, breaker = Bulkhead(1), CircuitBreaker(failures=1, clock=clock)

    def body(attempt):
        attempt.reset()
        raise Interrupt

    with pytest.raises(Interrupt):
        flavour.block(policy.replace(bulkhead=slots, breaker=breaker), body)
    assert slots.snapshot() == (0, 0)
    assert breaker.state is State.closed


def test_async_guards_receive_the_success_when_the_block_is_left(policy):
    budget, breaker = AsyncBudget(grants=9), AsyncBreaker()

    async def main():
        runs = []
        async for attempt in retrying(policy, budget=budget, breaker=breaker):
            async with attempt:
                runs.append(attempt.number)
                attempt.reset()
                assert [*breaker.told, *budget.outcomes] == []
                raise KeyError("bug")

    with pytest.raises(KeyError):
        asyncio.run(main())
    assert breaker.told == [("success", 7)]
    assert budget.outcomes == [("success", 0.0), "failure"]


def test_async_guards_receive_the_success_of_a_block_that_ends_well_once(policy):
    budget, breaker = AsyncBudget(grants=9), AsyncBreaker()

    async def main():
        async for attempt in retrying(policy, budget=budget, breaker=breaker):
            async with attempt:
                if attempt.number == 1:
                    raise SLOW
                attempt.reset()

    asyncio.run(main())
    assert breaker.told == [("failure", 7), ("success", 7)]
    assert budget.outcomes == ["failure", ("success", 1.0)]


def test_one_error_object_raised_after_every_reset_keeps_a_short_traceback(flavour, policy):
    error = ConnectionResetError("the same")
    runs = []

    def body(attempt):
        attempt.reset()
        runs.append(1)
        if len(runs) < 200:
            raise error

    flavour.block(policy, body)
    depth, trace = 0, error.__traceback__
    while trace is not None:
        depth, trace = depth + 1, trace.tb_next
    assert depth < 50


def test_a_block_without_a_policy_may_be_reset():
    for attempt in retrying():
        with attempt:
            attempt.reset()
    assert attempt.number == 1
