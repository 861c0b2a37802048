"""Random operations on budgets, compared with a model."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from redouble._guards.window import SLOTS, Window
from redouble.budget import RatioBudget, TokenBudget
from redouble.testing import FakeClock


class PurseMachine(RuleBasedStateMachine):
    """A purse beside a list of all that ever went in and out. Amounts are eighths, so sums are exact."""

    eighths = st.integers(1, 80).map(lambda n: n / 8)

    @initialize(capacity=st.integers(0, 400).map(lambda n: n / 8), costs=st.tuples(eighths, eighths),
                refund=st.none() | eighths, earn=eighths, share=st.integers(0, 8).map(lambda n: n / 8))  # fmt: skip
    def begin(self, capacity, costs, refund, earn, share):
        self.capacity, self.costs, self.refund, self.earn, self.share = capacity, costs, refund, earn, share
        self.purse = TokenBudget(capacity, *costs, refund, earn, reserves={-1: share})
        self.moves = [capacity]

    def left(self):
        tokens = 0.0
        for move in self.moves:
            tokens = min(self.capacity, tokens + move)
        return tokens

    @rule(timeout=st.booleans(), priority=st.integers(-2, 1))
    def retry(self, timeout, priority):
        cost, left = self.costs[timeout], self.left()
        needed = max(cost, self.share * self.capacity if priority < 0 else 0.0)
        expected = cost if left >= needed else 0.0
        assert self.purse.acquire(timeout=timeout, priority=priority) == expected
        self.moves.append(-expected)

    @rule()
    def succeed_at_once(self):
        self.purse.success()
        self.moves.append(self.earn)

    @rule(timeout=st.booleans())
    def succeed_after_retries(self, timeout):
        self.purse.success(self.costs[timeout])
        self.moves.append(self.costs[timeout] if self.refund is None else self.refund)

    @rule()
    def fail(self):
        self.purse.failure()

    @invariant()
    def holds(self):
        if hasattr(self, "purse"):
            assert self.purse.tokens == self.left()
            assert 0.0 <= self.purse.tokens <= self.purse.capacity
            assert self.purse._full == self.purse.at_rest == (self.purse.tokens == self.purse.capacity)


class RatioMachine(RuleBasedStateMachine):
    """A ratio beside the times of all calls and retries. Slots are a second wide; ratios are eighths."""

    @initialize(ratio=st.integers(0, 16).map(lambda n: n / 8), floor=st.sampled_from([0.0, 0.1, 0.5, 2.0]),
                share=st.integers(0, 8).map(lambda n: n / 8), start=st.integers(-50, 10**6))  # fmt: skip
    def begin(self, ratio, floor, share, start):
        self.clock = FakeClock(float(start))
        self.ratio, self.floor, self.share = ratio, floor * 10, share
        self.budget = RatioBudget(ratio, floor, 10.0, reserves={-1: share}, clock=self.clock)
        self.calls, self.retries = [], []

    def recent(self, times):
        return sum(math.floor(self.clock.now) - math.floor(time) < 10 for time in times)

    def allowed(self):
        return self.ratio * self.recent(self.calls) + self.floor

    @rule(quarters=st.integers(0, 60))
    def pass_time(self, quarters):
        self.clock.advance(quarters / 4)

    @rule(count=st.integers(1, 9))
    def succeed(self, count):
        for _ in range(count):
            self.budget.success()
            self.calls.append(self.clock.now)

    @rule()
    def fail(self):
        self.budget.failure()
        self.calls.append(self.clock.now)

    @rule(priority=st.integers(-2, 1), timeout=st.booleans())
    def retry(self, priority, timeout):
        allowed = self.allowed()
        needed = max(1.0, self.share * allowed if priority < 0 else 0.0)
        expected = 1.0 if allowed - self.recent(self.retries) >= needed else 0.0
        assert self.budget.acquire(priority=priority, timeout=timeout) == expected
        if expected:
            self.retries.append(self.clock.now)

    @precondition(lambda self: getattr(self, "retries", None))
    @rule()
    def succeed_after_retries(self):
        self.budget.success(1.0)

    @invariant()
    def holds(self):
        if hasattr(self, "budget"):
            assert self.budget.tokens == max(0.0, self.allowed() - self.recent(self.retries))
            assert self.budget.at_rest == (self.recent(self.retries) == 0)


PurseMachine.TestCase.settings = settings(stateful_step_count=40)


RatioMachine.TestCase.settings = settings(stateful_step_count=40)


test_a_purse_agrees_with_a_list_of_all_its_moves = PurseMachine.TestCase


test_a_ratio_agrees_with_the_times_of_all_calls_and_retries = RatioMachine.TestCase


@given(
    st.floats(0.001, 1e6),
    st.floats(0.0, 1e6),
    st.floats(0.0, 2.0),
)
def test_a_count_is_seen_for_nine_tenths_of_the_window_at_least_and_the_whole_at_most(
    seconds, start, windows
):
    counts, later = Window(seconds), start + windows * seconds
    counts.add(start)
    counts.mark(start)
    seen = counts.read(later)
    assert seen in ((1, 1), (0, 0))
    age, dust = (later - start) / seconds, 1e-6 + 1e-9 * start / seconds
    if age < 0.9 - dust:
        assert seen == (1, 1)
    if age > 1.0 + dust:
        assert seen == (0, 0)


@pytest.mark.parametrize("seconds", [0.01, 1.0, 10.0, 3600.0])
def test_a_call_counts_in_the_tenth_in_which_it_was_made(seconds):
    counts = Window(seconds)
    for tenth in (0.5, 9.5):
        counts.add(tenth * seconds / 10)
    assert counts.read(10.5 * seconds / 10) == (1, 0)  # the first is out, the second is not


def test_only_the_first_call_of_a_tenth_has_to_look_for_its_slot():
    counts = Window(10.0)
    counts.add(3.25)
    found = counts.current
    assert found[0] == 4.0
    counts.add(3.75)
    assert counts.current is found
    counts.add(4.0)
    assert counts.current[0] == 5.0


def test_a_window_keeps_no_more_slots_than_it_shows():
    counts = Window(10.0)
    for second in range(1000):
        counts.add(float(second))
        counts.mark(float(second))
    assert len(counts._slots) <= SLOTS
    assert counts.read(999.0) == (10, 10)
