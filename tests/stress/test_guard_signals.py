"""Signal handlers that use a guard in the middle of its own operations."""

from __future__ import annotations

import contextlib
import functools
import sys
from pathlib import Path

import pytest

from redouble._guards import base as _guard
from redouble.breaker import CircuitBreaker, Phase, State
from redouble.budget import RatioBudget, TokenBudget
from redouble.errors import CircuitOpen
from redouble.testing import FakeClock


def at_each_step(make, use, handler):
    """Runs ``use(guard)`` again and again; each time the handler comes in one function call later."""
    package, before, due = str(Path(_guard.__file__).parents[1]), sys.gettrace(), 0
    while True:
        guard, left = make(), [due]

        def tracer(frame, event, _, guard=guard, left=left):
            if event == "call" and frame.f_code.co_filename.startswith(package):
                left[0] -= 1
                if left[0] == -1:
                    handler(guard)

        sys.settrace(tracer)
        try:
            use(guard)
        finally:
            sys.settrace(before)
        if left[0] >= 0:
            break
        yield guard
        due += 1
    assert due > 1  # it did come in


def half_open(**fields):
    clock = FakeClock()
    breaker = CircuitBreaker(failures=1, open_for=10.0, clock=clock, **fields)
    breaker.failure(None, OSError())
    clock.advance(10.0)
    breaker.ticket_of_a_probe = breaker.enter()
    return breaker


def test_a_signal_handler_that_opens_the_circuit_meanwhile_does_no_harm():
    def fail_twice(breaker):
        for _ in range(2):
            breaker.failure(None, OSError("in the handler"))

    for breaker in at_each_step(
        lambda: CircuitBreaker(failures=2), lambda breaker: breaker.failure(None, OSError()), fail_twice
    ):
        assert (breaker.state, breaker.refuses(), breaker._ticket) == (State.open, True, None)


@pytest.mark.parametrize("step", ["enter", "success", "failure", "release"])
def test_what_a_probe_is_in_the_middle_of_does_not_undo_what_a_signal_handler_did(step):
    def use(breaker):
        if step != "enter":
            getattr(breaker, step)(breaker.ticket_of_a_probe)
            return
        with contextlib.suppress(CircuitOpen):
            breaker.enter()

    for breaker in at_each_step(lambda: half_open(successes=3, probes=2), use, CircuitBreaker.open):
        assert (breaker.state, breaker.refuses(), breaker._ticket) == (State.open, True, None)
        assert breaker.retry_after is None


def test_what_a_signal_handler_takes_from_a_budget_is_not_given_out_twice():
    def use(budget):
        budget.granted.append(budget.acquire())

    def handler(budget):
        budget.granted += [budget.acquire(), budget.acquire()]

    def make(budget):
        budget.granted = []
        return budget

    for budget in at_each_step(lambda: make(TokenBudget(capacity=12)), use, handler):
        assert (sum(budget.granted), budget.tokens, budget._full) == (10.0, 2.0, False)
    for budget in at_each_step(lambda: make(RatioBudget(floor_per_second=0.2)), use, handler):
        # Where both look at the same moment each may see the other's, and leave one.
        assert sum(budget.granted) + budget.tokens == 2.0
        assert sum(budget.granted) >= 1.0


@pytest.mark.parametrize("gain", ["success", "give_back"])
def test_what_is_given_back_is_not_lost_to_a_signal_handler(gain):
    def make():
        budget = TokenBudget(capacity=20)
        for _ in range(4):
            budget.acquire()
        return budget

    for budget in at_each_step(make, lambda budget: getattr(budget, gain)(5.0), lambda b: b.success(10.0)):
        assert budget.tokens == 15.0


class Meanwhile:
    """In the place of a function of a guard: before it runs for the first time, somebody else is there."""

    def __init__(self, function, happens):
        self._function, self._happens = function, [happens]

    def __call__(self, *args):
        if self._happens:
            self._happens.pop()()
        return self._function(*args)

    def __get__(self, instance, owner):
        return functools.partial(self, instance)


@pytest.mark.parametrize(
    ("step", "looked_at", "happens", "state"),
    [
        ("enter", "with_probe", "open", State.open),
        ("enter", "with_probe", "enter", State.half_open),
        ("success", "without_probe", "open", State.open),
        ("release", "without_probe", "enter", State.half_open),
    ],
)
def test_a_phase_that_was_replaced_meanwhile_is_looked_at_again(monkeypatch, step, looked_at, happens, state):
    breaker = half_open(successes=4, probes=4)
    monkeypatch.setattr(Phase, looked_at, Meanwhile(getattr(Phase, looked_at), getattr(breaker, happens)))
    with contextlib.suppress(CircuitOpen):
        getattr(breaker, step)(*([] if step == "enter" else [breaker.ticket_of_a_probe]))
    assert breaker.state is state
    expected = {"enter": 3, "release": 1}.get(step, 0) if state is State.half_open else 0
    assert breaker._circuit.phase.probes == expected


def test_slots_that_are_taken_while_others_are_freed_are_freed_too(monkeypatch):
    breaker = half_open(probes=4, successes=4)
    monkeypatch.setattr(Phase, "with_free_slots", Meanwhile(Phase.with_free_slots, breaker.enter))
    breaker._circuit.free_slots()
    assert breaker._circuit.phase.probes == 0


def test_a_circuit_that_others_opened_meanwhile_neither_trips_nor_closes():
    breaker = CircuitBreaker(failures=1)
    count = breaker._circuit.count

    class Count:
        failures, window = 0, None
        failure = Meanwhile(lambda _, now: count.failure(now), breaker.open)

    breaker._circuit.count = Count()
    breaker.failure(None, OSError())
    assert (breaker.state, breaker.retry_after) == (State.open, None)  # by hand
    breaker = half_open()
    breaker._circuit._counting = Meanwhile(breaker._circuit._counting, breaker.open)
    breaker.success(breaker.ticket_of_a_probe)
    assert (breaker.state, breaker.retry_after, breaker._ticket) == (State.open, None, None)


def test_a_retry_that_has_left_the_window_cannot_be_given_back():
    clock = FakeClock()
    budget = RatioBudget(ratio=0.0, floor_per_second=0.2, clock=clock)
    budget.acquire()
    clock.advance(5.0)
    budget.failure()  # a slot in which nothing was granted
    budget.give_back(1.0)
    assert budget.tokens == 2.0
    budget.give_back(1.0)
    assert budget.tokens == 2.0
