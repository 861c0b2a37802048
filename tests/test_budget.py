"""Budgets: what a retry costs, what a success gives back, and what never happens under any number of threads."""

from __future__ import annotations

import contextlib
import ctypes
import inspect
import itertools
import math
import random
import sys
import threading
import time
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from conftest import watchdog
from interleaving import explore
from redouble import Policy, _window, budget
from redouble._window import SLOTS, Tally, Window
from redouble.backoff import exponential, fixed
from redouble.budget import Budget, RatioBudget, TokenBudget
from redouble.events import GaveUp
from redouble.testing import FakeClock, no_waits, scripted

THREADS = 64
NAN, INF = math.nan, math.inf


# What a purse does


def test_the_defaults_are_those_of_the_aws_sdks():
    purse = TokenBudget()
    assert (purse.capacity, purse.cost, purse.timeout_cost, purse.refund, purse.earn) == (500, 5, 10, None, 1)
    assert purse.tokens == 500


def test_a_retry_takes_its_cost_and_gives_it():
    purse = TokenBudget(capacity=500)
    assert purse.acquire() == 5.0
    assert purse.acquire(timeout=True) == 10.0
    assert purse.tokens == 485.0


def test_a_refused_acquire_takes_nothing():
    purse = TokenBudget(capacity=50, cost=49, timeout_cost=10)
    assert purse.acquire() == 49.0
    assert purse.acquire(timeout=True) == 0.0
    assert purse.tokens == 1.0


def test_a_retry_is_allowed_as_long_as_there_is_exactly_enough():
    purse = TokenBudget(capacity=10)
    assert [purse.acquire() for _ in range(3)] == [5.0, 5.0, 0.0]


def test_a_success_after_retries_gives_back_the_last_cost_only():
    purse = TokenBudget(capacity=100)
    purse.acquire()
    purse.success(purse.acquire(timeout=True))
    assert purse.tokens == 95.0


def test_a_refund_of_ones_own_is_given_back_instead_of_the_last_cost():
    purse = TokenBudget(capacity=100, refund=2)
    purse.success(purse.acquire())
    assert purse.tokens == 97.0


def test_a_refund_of_zero_gives_nothing_back():
    purse = TokenBudget(capacity=100, refund=0)
    purse.success(purse.acquire())
    assert purse.tokens == 95.0


def test_a_success_at_the_first_try_earns_a_little():
    purse = TokenBudget(capacity=100, earn=3)
    purse.acquire()
    purse.success()
    assert purse.tokens == 98.0


def test_a_first_attempt_that_fails_changes_nothing_in_a_purse():
    purse = TokenBudget(capacity=100)
    purse.acquire()
    purse.failure()
    assert purse.tokens == 95.0


def test_a_purse_never_holds_more_than_its_capacity():
    purse = TokenBudget(capacity=10)
    purse.success()
    assert purse.tokens == 10.0
    purse.acquire()
    purse.success(1_000_000.0)
    assert purse.tokens == 10.0


def test_a_purse_of_nothing_allows_no_retry_ever():
    purse = TokenBudget(capacity=0)
    purse.success()
    assert (purse.acquire(), purse.tokens, purse.full) == (0.0, 0.0, True)


def test_a_full_purse_says_so_and_need_not_be_told_of_a_clean_success():
    purse = TokenBudget(capacity=10)
    assert purse.full
    assert purse.at_rest
    purse.acquire()
    assert not purse.full
    assert not purse.at_rest
    purse.success(5.0)
    assert purse.full
    assert purse.at_rest


def test_a_refused_acquire_leaves_the_word_on_whether_it_is_full_true():
    purse = TokenBudget(capacity=2)
    assert purse.acquire() == 0.0
    assert purse.full
    other = TokenBudget(capacity=8)
    other.acquire()
    assert other.acquire() == 0.0
    assert not other.full


def test_at_every_step_a_purse_that_says_it_is_full_is_full():
    class Watched(TokenBudget):
        def __setattr__(self, name, value):
            super().__setattr__(name, value)
            assert not self.full or self.tokens == self.capacity

    purse = Watched(capacity=10)
    purse.success(purse.acquire())
    assert purse.full


@pytest.mark.parametrize("stored", [NAN, INF, -INF, -1.0])
def test_what_is_no_amount_is_reset_to_zero_and_not_spread(stored):
    purse = TokenBudget(capacity=10)
    purse._tokens = stored
    assert purse.acquire() == 0.0
    assert (purse.tokens, purse.full) == (0.0, False)
    purse.success()
    assert purse.tokens == 1.0


@pytest.mark.parametrize("stored", [NAN, INF, -INF])
def test_a_success_resets_what_is_no_amount_as_well(stored):
    purse = TokenBudget(capacity=10)
    purse._tokens = stored
    purse.success()
    assert purse.tokens == 0.0


@pytest.mark.parametrize("given_back", [NAN, INF, -INF, -1e308])
def test_a_cost_that_is_no_amount_never_gets_into_the_purse(given_back):
    purse = TokenBudget(capacity=10)
    purse.acquire()
    purse.success(given_back)
    assert purse.tokens == 0.0


def test_a_purse_shows_what_is_left():
    purse = TokenBudget(capacity=10, name="payments")
    purse.acquire()
    assert repr(purse) == "<payments: 5 of 10 tokens>"


# Vectors of the AWS SDKs, standard retry mode 2.0 (smithy-kotlin, aws-sdk-java-v2, smithy-rs).
# Per case: attempts, tokens, cap, calls; per call: for each answer its status and the tokens after it,
# then the waits.

AWS = {
    "a retry eventually succeeds": (3, 500, 20, [([(500, 495), (500, 490), (200, 495)], [1, 2])]),
    "attempts run out": (3, 500, 20, [([(502, 495), (502, 490), (502, 490)], [1, 2])]),
    "the quota is reached after one retry": (3, 5, 20, [([(500, 0), (502, 0)], [1])]),
    "no quota, no retry": (3, 0, 20, [([(500, 0)], [])]),
    "waits grow": (5, 500, 20, [([(500, 495), (500, 490), (500, 485), (500, 480), (500, 480)], [1, 2, 4, 8])]),
    "waits are capped": (5, 500, 3, [([(500, 495), (500, 490), (500, 485), (500, 480), (500, 480)], [1, 2, 3, 3])]),
    "the quota runs out": (5, 10, 20, [([(500, 5), (502, 0), (503, 0)], [1, 2])]),
    "the quota recovers": (
        5, 15, 20,
        [([(500, 10), (502, 5), (200, 10)], [1, 2]), ([(500, 5), (200, 10)], [1])],
    ),
}  # fmt: skip


class Answered(Exception):
    """A server has answered with an error."""

    def __init__(self, status):
        super().__init__(status)
        self.status_code = status


@pytest.mark.parametrize("case", AWS, ids=str)
def test_a_policy_with_a_purse_does_what_the_aws_sdks_do(case, flavour):
    attempts, tokens, cap, calls = AWS[case]
    purse = TokenBudget(capacity=tokens)
    for answers, waits in calls:
        clock, seen, statuses = FakeClock(), [], iter(answers)

        def answer(statuses=statuses, seen=seen):
            seen.append(purse.tokens)
            status = next(statuses)[0]
            if status != 200:
                raise Answered(status)

        policy = Policy(
            attempts=attempts, cap=cap, backoff=exponential, budget=purse, clock=clock, sleep=clock.sleep
        )
        if answers[-1][0] == 200:
            flavour.call(policy, flavour.function(answer))
        else:
            with pytest.raises(Answered):
                flavour.call(policy, flavour.function(answer))
        assert [*seen[1:], purse.tokens] == [tokens for _, tokens in answers]
        assert clock.waits == waits


def test_two_retries_after_timeouts_and_a_success_cost_one_of_them():
    purse, after = TokenBudget(capacity=100), []
    for _ in range(2):
        cost = purse.acquire(timeout=True)
        after.append(purse.tokens)
    purse.success(cost)
    assert [*after, purse.tokens] == [90, 80, 90]


def test_twenty_clean_successes_fill_what_two_timeouts_have_emptied():
    purse = TokenBudget(capacity=20)
    assert [purse.acquire(timeout=True) for _ in range(2)] == [10.0, 10.0]
    filled = [purse.success() or purse.tokens for _ in range(20)]
    assert filled == list(range(1, 21))
    assert purse.full


# In a policy


def test_a_first_attempt_is_never_held_against_a_budget(flavour):
    empty = TokenBudget(capacity=0)
    fetch = flavour.scripted("page", TimeoutError("slow"))
    policy = Policy(budget=empty)
    assert flavour.call(policy, fetch) == "page"
    with pytest.raises(TimeoutError):
        flavour.call(policy, fetch)
    assert len(fetch.calls) == 2


def test_a_call_that_the_budget_ends_does_not_wait_and_says_why(flavour, clock):
    events = []
    policy = Policy(
        budget=TokenBudget(capacity=0, name="payments"),
        clock=clock,
        sleep=clock.sleep,
        listeners=[events.append],
    )
    with pytest.raises(TimeoutError) as raised:
        flavour.call(policy, flavour.scripted(TimeoutError("slow")))
    assert clock.waits == []
    assert [(type(event), event.reason) for event in events] == [(GaveUp, "budget")]
    assert "payments" in raised.value.__notes__[0]


def test_a_timeout_costs_more_than_another_failure(flavour, clock):
    purse = TokenBudget(capacity=100)
    policy = Policy(attempts=2, budget=purse, clock=clock, sleep=clock.sleep)
    with pytest.raises(TimeoutError):
        flavour.call(policy, flavour.scripted(TimeoutError(), TimeoutError()))
    assert purse.tokens == 90.0
    with pytest.raises(ConnectionResetError):
        flavour.call(policy, flavour.scripted(ConnectionResetError(), ConnectionResetError()))
    assert purse.tokens == 85.0


def test_a_call_that_cannot_be_retried_costs_nothing(flavour):
    purse = TokenBudget(capacity=100)
    for policy, error in [
        (Policy(budget=purse), ValueError()),
        (Policy(budget=purse, attempts=1), TimeoutError()),
        (Policy(budget=purse, enabled=False), TimeoutError()),
        (Policy(budget=purse, deadline=1.0, base=5.0, backoff=fixed), TimeoutError()),
    ]:
        with pytest.raises((type(error), TimeoutError)):
            flavour.call(policy, flavour.scripted(error))
    assert purse.tokens == 100.0


def test_a_ratio_counts_each_call_of_a_policy_once(flavour, clock):
    budget = RatioBudget(ratio=1.0, floor_per_second=0, clock=clock)
    policy = Policy(attempts=3, backoff=fixed, base=0, budget=budget, clock=clock, sleep=clock.sleep)
    flavour.call(policy, flavour.scripted("page"))
    flavour.call(policy, flavour.scripted(TimeoutError(), TimeoutError(), "page"))
    assert budget._reckon(clock.now) == (2.0, 2)


def test_a_policy_gives_its_priority_to_the_budget(flavour, clock):
    purse = TokenBudget(capacity=100)
    for _ in range(11):
        purse.acquire()
    for priority, calls in [(0, 2), (-1, 1)]:
        fetch = flavour.scripted(TimeoutError(), TimeoutError())
        policy = Policy(attempts=2, budget=purse, priority=priority, clock=clock, sleep=clock.sleep)
        with pytest.raises(TimeoutError):
            flavour.call(policy, fetch)
        assert len(fetch.calls) == calls


def test_a_spent_budget_leaves_the_users_own_error(flavour):
    error = TimeoutError("slow")
    with pytest.raises(TimeoutError) as raised:
        flavour.call(Policy(budget=TokenBudget(capacity=0)), flavour.scripted(error))
    assert raised.value is error


def test_a_budget_ends_many_calls_of_one_policy_together(clock):
    purse = TokenBudget(capacity=100)
    policy = Policy(attempts=4, budget=purse, clock=clock, sleep=clock.sleep)
    calls = 0
    for _ in range(50):
        fetch = scripted(*[TimeoutError()] * 4)
        with pytest.raises(TimeoutError):
            policy.call(fetch)
        calls += len(fetch.calls)
    assert calls == 50 + 10  # ten retries of 10 tokens each, whoever asked first


# Priorities


def test_a_low_priority_is_refused_while_less_than_half_is_left():
    purse = TokenBudget(capacity=20)
    assert [purse.acquire(priority=-1) for _ in range(4)] == [5.0, 5.0, 5.0, 0.0]
    assert purse.tokens == 5.0
    assert purse.acquire() == 5.0


def test_a_reserve_counts_for_its_priority_and_all_below_it():
    purse = TokenBudget(capacity=100, reserves={5: 0.2, 0: 0.5, -5: 0.9})
    for priority, share in [(6, 0.0), (5, 0.2), (1, 0.2), (0, 0.5), (-4, 0.5), (-5, 0.9), (-99, 0.9)]:
        assert purse._reserve(priority) == share


def test_the_largest_reserve_that_applies_is_the_one_that_holds():
    assert TokenBudget(reserves={5: 0.9, 0: 0.1})._reserve(-1) == 0.9


def test_a_reserve_of_everything_allows_a_retry_only_while_nothing_was_taken():
    purse = TokenBudget(capacity=100, reserves={0: 1.0})
    assert [purse.acquire(), purse.acquire()] == [5.0, 0.0]
    assert purse.acquire(priority=1) == 5.0


def test_a_ratio_keeps_a_share_of_what_is_allowed_for_the_others(clock):
    budget = RatioBudget(ratio=0.0, floor_per_second=1, window=10.0, clock=clock)
    assert sum(budget.acquire(priority=-1) for _ in range(10)) == 6.0  # the sixth finds exactly half
    assert budget.tokens == 4.0
    assert sum(budget.acquire() for _ in range(10)) == 4.0


def test_no_reserves_treat_all_priorities_alike():
    purse = TokenBudget(capacity=10, reserves={})
    assert [purse.acquire(priority=-9) for _ in range(3)] == [5.0, 5.0, 0.0]


def test_reserves_cannot_be_changed_from_outside():
    mine = {-1: 0.5}
    purse = TokenBudget(reserves=mine)
    mine[-1] = 0.0
    assert purse.reserves == {-1: 0.5}
    with pytest.raises(TypeError):
        purse.reserves[-1] = 0.0


# A share of recent calls. The vectors are those of finagle's RetryBudget, whose ``ttl`` is the window here,
# ``percentCanRetry`` the ratio and ``minRetriesPerSec * ttl`` the floor. Three things differ, on purpose:
# here a retry is charged for a whole window, there a deposit that it took is simply gone; here what expires
# goes by tenths of the window; and the default ratio is 10 %, there 20 %.


def test_the_defaults_are_a_tenth_of_the_calls_and_three_more_over_ten_seconds(clock):
    budget = RatioBudget(clock=clock)
    assert (budget.ratio, budget.floor_per_second, budget.window) == (0.1, 0.3, 10.0)
    for _ in range(4):  # one call every ten seconds may be retried three times, each time
        budget.failure()
        assert [budget.acquire() for _ in range(4)] == [1.0, 1.0, 1.0, 0.0]
        clock.advance(10.0)


@pytest.mark.parametrize(("rate", "expected"), [(1, 1.4), (10, 1.13), (100, 1.103)])
def test_when_everything_fails_the_load_is_what_the_budget_says(rate, expected):
    clock, requests = FakeClock(), []
    budget = RatioBudget(clock=clock)

    def fail():
        requests.append(1)
        raise TimeoutError("slow")

    policy = Policy(budget=budget, clock=clock, sleep=lambda seconds: None)
    for _ in range(rate * 1000):
        clock.advance(1 / rate)
        with contextlib.suppress(TimeoutError):
            policy.call(fail)
    assert budget.load(rate) == pytest.approx(expected, abs=0.001)
    # What was counted falls out after nine to ten tenths of the window, so it may be a little more.
    assert len(requests) / (rate * 1000) == pytest.approx(expected, rel=0.04)


def test_nothing_is_allowed_where_neither_calls_nor_a_floor_allow_it(clock):
    budget = RatioBudget(ratio=0.5, floor_per_second=0, clock=clock)
    assert (budget.acquire(), budget.tokens) == (0.0, 0.0)


@pytest.mark.parametrize("ratio", [0.01, 0.1, 0.2, 0.25, 0.29, 0.5, 0.58, 1.0, 2.0, 10.0])
def test_calls_allow_their_share_of_retries_exactly(ratio, clock):
    budget = RatioBudget(ratio=ratio, floor_per_second=0, clock=clock)
    for _ in range(100):
        budget.success()
    assert sum(budget.acquire() for _ in range(2000)) == round(100 * ratio)


@pytest.mark.slow
def test_ten_calls_at_a_tenth_allow_one_retry_whatever_floats_make_of_it(clock):
    for calls in range(10, 1000, 10):
        budget = RatioBudget(ratio=0.1, floor_per_second=0, clock=clock)
        for _ in range(calls):
            budget.failure()
        assert sum(budget.acquire() for _ in range(calls)) == calls // 10


def test_fewer_calls_than_a_retry_needs_allow_none(clock):
    budget = RatioBudget(ratio=0.1, floor_per_second=0, clock=clock)
    for _ in range(9):
        budget.success()
    assert budget.acquire() == 0.0
    budget.success()
    assert budget.acquire() == 1.0


@pytest.mark.parametrize(("per_second", "window"), [(1, 1.0), (10, 10.0), (5, 60.0), (0.5, 10.0)])
def test_the_floor_allows_so_many_retries_without_any_call(per_second, window, clock):
    budget = RatioBudget(ratio=0.0, floor_per_second=per_second, window=window, clock=clock)
    assert sum(budget.acquire() for _ in range(1000)) == per_second * window
    clock.advance(window)
    assert sum(budget.acquire() for _ in range(1000)) == per_second * window


def test_share_and_floor_add_up(clock):
    budget = RatioBudget(ratio=0.5, floor_per_second=2, window=10.0, clock=clock)
    for _ in range(20):
        budget.success()
    assert budget.tokens == 30.0
    assert sum(budget.acquire() for _ in range(100)) == 30.0


def test_calls_are_forgotten_after_the_window(clock):
    budget = RatioBudget(ratio=0.5, floor_per_second=0, window=10.0, clock=clock)
    for _ in range(10):
        budget.success()
    clock.advance(9.0)
    assert budget.tokens == 5.0
    clock.advance(1.0)
    assert (budget.tokens, budget.acquire()) == (0.0, 0.0)


def test_silence_for_three_windows_leaves_the_floor_and_nothing_more(clock):
    budget = RatioBudget(ratio=10.0, floor_per_second=0.1, window=10.0, clock=clock)
    for _ in range(100):
        budget.success()
    clock.advance(30.0)
    assert [budget.acquire(), budget.acquire()] == [1.0, 0.0]


def test_retries_are_forgotten_after_the_window_too(clock):
    budget = RatioBudget(ratio=0.0, floor_per_second=0.1, window=10.0, clock=clock)
    assert budget.acquire() == 1.0
    assert not budget.at_rest
    clock.advance(9.5)
    assert budget.acquire() == 0.0
    clock.advance(0.5)
    assert budget.at_rest
    assert budget.acquire() == 1.0


def test_a_retry_that_was_paid_by_calls_is_charged_for_longer_than_they_count(clock):
    budget = RatioBudget(ratio=0.1, floor_per_second=0, window=10.0, clock=clock)
    for _ in range(10):
        budget.success()
    clock.advance(9.0)
    assert budget.acquire() == 1.0
    clock.advance(9.0)
    for _ in range(10):
        budget.success()
    assert budget.acquire() == 0.0  # finagle would allow this one


def test_a_success_after_retries_is_not_counted_a_second_time(clock):
    budget = RatioBudget(ratio=1.0, floor_per_second=0, clock=clock)
    budget.failure()
    budget.success(budget.acquire())
    assert budget.tokens == 0.0


def test_the_timeout_of_an_attempt_makes_no_difference_to_a_ratio(clock):
    budget = RatioBudget(ratio=0.0, floor_per_second=0.2, clock=clock)
    assert [budget.acquire(timeout=True), budget.acquire(), budget.acquire()] == [1.0, 1.0, 0.0]


def test_tokens_are_never_negative_when_calls_expire_before_retries_do(clock):
    budget = RatioBudget(ratio=1.0, floor_per_second=0, window=10.0, clock=clock)
    for _ in range(5):
        budget.failure()
    clock.advance(5.0)
    assert sum(budget.acquire() for _ in range(5)) == 5.0
    clock.advance(5.0)
    assert (budget.tokens, budget.acquire()) == (0.0, 0.0)


def test_a_ratio_must_always_be_told_of_successes():
    assert RatioBudget().full is False


def test_a_ratio_shows_its_terms():
    assert repr(RatioBudget(ratio=0.2, name="search")) == "<search: 20% of calls and 0.3/s>"


def test_a_ratio_runs_on_the_real_clock_if_it_has_none_of_its_own(monkeypatch):
    budget = RatioBudget(ratio=0.0, floor_per_second=0.1)
    assert [budget.acquire(), budget.acquire()] == [1.0, 0.0]
    later = time.monotonic() + 10.0
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert budget.acquire() == 1.0


def test_time_that_tests_skip_passes_for_a_ratio_too():
    budget = RatioBudget(ratio=0.0, floor_per_second=0.1)
    with no_waits() as waits:
        assert [budget.acquire(), budget.acquire()] == [1.0, 0.0]
        waits.sleep(10.0)
        assert budget.acquire() == 1.0


def test_a_call_that_goes_well_in_skipped_time_counts_there():
    budget = RatioBudget(ratio=1.0, floor_per_second=0)
    with no_waits() as waits:
        waits.sleep(100.0)
        budget.success()
        assert [budget.acquire(), budget.acquire()] == [1.0, 0.0]


@pytest.mark.parametrize("back", [990.0, 5.0])
def test_a_clock_that_is_set_back_by_a_window_or_more_leaves_nothing_behind(back, clock):
    budget = RatioBudget(ratio=0.0, floor_per_second=0.1, clock=clock)
    clock.now = 1000.0
    budget.failure()
    assert [budget.acquire(), budget.acquire()] == [1.0, 0.0]
    clock.now = back
    assert budget.acquire() == 1.0
    assert budget._reckon(clock.now) == (1.0, 1)


def test_a_thread_with_a_reading_of_a_moment_ago_drops_nothing(clock):
    counts = Window(10.0)
    counts.mark(10.01)
    counts.mark(9.99)
    counts.add(9.99)
    assert counts.read(10.01) == (1, 2)


@pytest.mark.parametrize("window", [5e-324, 1e-308, 1e-9, 1e-3, 86400.0, 1e308])
def test_no_window_is_too_short_or_too_long_to_count_in(window, clock):
    clock.now = 1e9
    budget = RatioBudget(ratio=1.0, floor_per_second=0, window=window, clock=clock)
    budget.success()
    assert [budget.acquire(), budget.acquire()] == [1.0, 0.0]


def test_more_than_any_float_allows_everything(clock):
    budget = RatioBudget(ratio=1e308, floor_per_second=1e308, window=1e308, clock=clock)
    budget.success()
    assert budget.acquire() == budget.acquire(priority=-1) == 1.0


# A budget of one's own


def test_a_budget_of_ones_own_answers_two_questions(flavour, clock):
    class Three(Budget):
        left = 3.0

        def acquire(self, *, timeout=False, priority=0):
            if self.left:
                self.left -= 1.0
                return 1.0
            return 0.0

        @property
        def tokens(self):
            return self.left

    budget = Three()
    policy = Policy(attempts=9, budget=budget, clock=clock, sleep=clock.sleep)
    with pytest.raises(TimeoutError):
        flavour.call(policy, flavour.scripted(*[TimeoutError()] * 9))
    assert (len(clock.waits), budget.tokens, budget.at_rest, budget.name) == (3, 0.0, False, "Three")
    assert budget.success() is budget.failure() is None


def test_the_base_of_all_budgets_has_no_answers_of_its_own():
    with pytest.raises(NotImplementedError):
        Budget().acquire()
    with pytest.raises(NotImplementedError):
        _ = Budget().tokens


@pytest.mark.parametrize("kind", [Budget, TokenBudget, RatioBudget])
def test_every_budget_is_asked_and_told_in_the_same_way(kind):
    def defaults(question):
        return {name: part.default for name, part in inspect.signature(question).parameters.items()}

    nothing = inspect.Parameter.empty
    assert defaults(kind.acquire) == {"self": nothing, "timeout": False, "priority": 0}
    assert defaults(kind.success) == {"self": nothing, "cost": 0.0}
    assert defaults(kind.failure) == {"self": nothing}
    budget = kind()
    assert budget.success() is budget.failure() is None
    with contextlib.nullcontext() if kind is not Budget else pytest.raises(NotImplementedError):
        assert budget.acquire() == budget.acquire(timeout=False, priority=0) > 0.0


# What is refused at construction

TOKEN_NUMBERS = ["capacity", "cost", "timeout_cost", "refund", "earn"]
RATIO_NUMBERS = ["ratio", "floor_per_second", "window"]
NUMBERS = [*((TokenBudget, name) for name in TOKEN_NUMBERS), *((RatioBudget, name) for name in RATIO_NUMBERS)]


@pytest.mark.parametrize(("kind", "name"), NUMBERS)
@pytest.mark.parametrize("value", [NAN, INF, -INF, -1, -0.001, True, False, 10**400])
def test_what_is_no_finite_amount_is_refused_by_name(kind, name, value):
    with pytest.raises(ValueError, match=rf"^{name} must be .*, got "):
        kind(**{name: value})


@pytest.mark.parametrize(("kind", "name"), NUMBERS)
@pytest.mark.parametrize("value", ["5", [], object(), float])
def test_what_is_no_number_is_refused_by_name(kind, name, value):
    with pytest.raises(TypeError, match=rf"^{name} must be a number, got "):
        kind(**{name: value})


@pytest.mark.parametrize(
    ("kind", "name"), [(TokenBudget, "cost"), (TokenBudget, "timeout_cost"), (RatioBudget, "window")]
)
def test_what_must_be_something_cannot_be_zero(kind, name):
    with pytest.raises(ValueError, match=rf"^{name} must be above 0"):
        kind(**{name: 0})


@pytest.mark.parametrize(
    ("kind", "name"), [item for item in NUMBERS if item[1] not in ("cost", "timeout_cost", "window")]
)
def test_zero_is_an_amount_elsewhere(kind, name):
    assert getattr(kind(**{name: 0}), name) == 0.0


@pytest.mark.parametrize("value", [3, 3.0, Decimal(3), Fraction(3)])
@pytest.mark.parametrize(("kind", "name"), NUMBERS)
def test_any_kind_of_number_is_stored_as_a_float(kind, name, value):
    stored = getattr(kind(**{name: value}), name)
    assert stored == 3.0
    assert type(stored) is float


def test_a_window_may_be_a_timedelta():
    assert RatioBudget(window=timedelta(minutes=1)).window == 60.0


@pytest.mark.parametrize("kind", [TokenBudget, RatioBudget])
@pytest.mark.parametrize(
    ("share", "rule"),
    [
        (NAN, "finite and not negative"),
        (INF, "finite and not negative"),
        (-0.1, "finite and not negative"),
        (1.01, "a share from 0 to 1"),
        (True, "a number, not a bool"),
    ],
)
def test_a_reserve_that_is_no_share_is_refused_by_its_priority(kind, share, rule):
    with pytest.raises(ValueError) as caught:
        kind(reserves={-1: share})
    assert str(caught.value) == f"reserves[-1] must be {rule}, got {share!r}"


@pytest.mark.parametrize("priority", [True, 0.5, NAN])
def test_a_priority_in_reserves_must_be_a_whole_number(priority):
    with pytest.raises(ValueError, match=r"^a priority in reserves must be a whole number"):
        TokenBudget(reserves={priority: 0.5})


@pytest.mark.parametrize("reserves", [None, 0.5, [(-1, 0.5)], "low"])
def test_reserves_must_be_a_mapping(reserves):
    with pytest.raises(TypeError) as caught:
        TokenBudget(reserves=reserves)
    assert str(caught.value) == f"reserves must map priorities to shares from 0 to 1, got {reserves!r}"


@pytest.mark.parametrize("clock", [5.0, "now", True])
def test_a_clock_must_be_a_function(clock):
    with pytest.raises(TypeError, match=r"^clock must be a function"):
        RatioBudget(clock=clock)


def test_a_clock_cannot_be_async():
    async def clock():
        return 0.0

    with pytest.raises(TypeError, match=r"^clock must be a plain function"):
        RatioBudget(clock=clock)


def test_an_unknown_keyword_is_refused():
    with pytest.raises(TypeError, match="capcity"):
        TokenBudget(capcity=5)
    with pytest.raises(TypeError, match="ratoi"):
        RatioBudget(ratoi=0.1)


# Against a model


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
            assert self.purse.full == self.purse.at_rest == (self.purse.tokens == self.purse.capacity)


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


# Threads


@pytest.fixture
def frequent_switches():
    """Threads take turns every microsecond, so that whatever is not safe shows."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def in_threads(body, count=THREADS):
    """Runs ``body(number)`` in many threads that start at one instant; gives what each returned."""
    barrier, results = threading.Barrier(count), [None] * count

    def run(number):
        barrier.wait()
        try:
            results[number] = body(number)
        except BaseException as error:
            results[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    with watchdog(60):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    broken = [result for result in results if isinstance(result, BaseException)]
    assert not broken, broken[0]
    return results


@pytest.mark.usefixtures("frequent_switches")
def test_threads_are_granted_exactly_as_many_retries_as_there_are_tokens_for():
    purse = TokenBudget(capacity=1000)
    granted = in_threads(lambda _: sum(purse.acquire() for _ in range(10)))
    assert sum(granted) == 1000.0
    assert purse.tokens == 0.0


@pytest.mark.usefixtures("frequent_switches")
def test_threads_lose_no_token_between_them():
    purse = TokenBudget(capacity=10_000)
    assert [purse.acquire() for _ in range(2000)] == [5.0] * 2000

    def earn(_):
        for _ in range(50):
            purse.success()

    in_threads(earn)
    assert purse.tokens == THREADS * 50


@pytest.mark.slow
@pytest.mark.usefixtures("frequent_switches")
def test_whoever_looks_sees_bounds_that_hold_while_others_write():
    purse, stop, seen = TokenBudget(capacity=40), threading.Event(), []

    def look():
        while not stop.is_set():
            tokens = purse.tokens
            seen.append(0.0 <= tokens <= purse.capacity)

    def work(number):
        rng, balance = random.Random(number), 0.0
        for _ in range(100):
            if rng.random() < 0.5:
                balance += purse.acquire(timeout=rng.random() < 0.2)
            elif balance >= 5.0:
                purse.success(5.0)
                balance -= 5.0
        return balance

    reader = threading.Thread(target=look)
    reader.start()
    held = in_threads(work)
    stop.set()
    reader.join()
    assert all(seen)
    assert purse.tokens + sum(held) == 40.0  # what was granted and not given back is exactly what is missing


@pytest.mark.usefixtures("frequent_switches")
def test_a_tally_counts_every_step_of_every_thread():
    tally, looks = Tally(), []

    def step(number):
        for _ in range(200):
            tally.add()
            if number == 0:  # only one may look at a time
                looks.append(tally.read())

    in_threads(step)
    assert tally.read() == THREADS * 200
    assert looks == sorted(looks)
    assert tally.read() == THREADS * 200


@pytest.mark.slow
@pytest.mark.usefixtures("frequent_switches")
def test_threads_count_calls_exactly_while_slots_turn_under_them():
    ticks = itertools.count()
    budget = RatioBudget(ratio=1.0, floor_per_second=0, clock=lambda: next(ticks) * 1e-4)

    def work(number):
        for _ in range(100):
            budget.success() if number % 2 else budget.failure()
            budget.tokens  # noqa: B018 - looking is what is tried
        return True

    in_threads(work)
    assert next(ticks) * 1e-4 < 9.0  # slots have turned, nothing has expired
    assert budget._reckon(next(ticks) * 1e-4) == (THREADS * 100, 0)


@pytest.mark.slow
@pytest.mark.usefixtures("frequent_switches")
def test_threads_are_granted_exactly_the_share_of_their_calls(clock):
    budget = RatioBudget(ratio=0.25, floor_per_second=1, clock=clock)

    def work(_):
        granted = 0.0
        for _ in range(100):
            budget.failure()
            granted += budget.acquire()
        return granted

    granted = sum(in_threads(work))
    while budget.acquire():
        granted += 1.0
    assert granted == THREADS * 100 * 0.25 + 10


def test_counting_a_call_takes_no_lock(clock):
    class Forbidden:
        def __enter__(self):
            raise AssertionError("a lock was taken")

        def __exit__(self, *_):
            raise AssertionError("a lock was taken")

    budget = RatioBudget(clock=clock)
    lock, budget._lock = budget._lock, Forbidden()
    for _ in range(30):  # also when a slot turns
        budget.success()
        budget.failure()
        budget.success(1.0)
        clock.advance(0.5)
    with pytest.raises(AssertionError):
        budget.acquire()
    budget._lock = lock
    assert budget._reckon(clock.now)[0] == pytest.approx(
        0.1 * 2 * 18 + 3
    )  # nine slots, two half seconds in each


def test_a_clean_success_on_a_full_purse_takes_no_lock_in_a_policy(flavour):
    purse = TokenBudget()
    purse._lock = None
    assert flavour.call(Policy(budget=purse), flavour.scripted("page")) == "page"


def test_no_clock_runs_while_the_lock_is_held():
    free = []

    def try_the_lock():
        free.append(shared._lock.acquire(blocking=False))
        if free[-1]:
            shared._lock.release()

    def clock():
        other = threading.Thread(target=try_the_lock)
        other.start()
        other.join()
        raise KeyError("a clock that fails")

    shared = RatioBudget(clock=clock)
    for ask in (
        shared.acquire,
        shared.success,
        shared.failure,
        lambda: shared.tokens,
        lambda: shared.at_rest,
    ):
        with pytest.raises(KeyError):
            ask()
    assert free == [True] * 5


# Threads that are ended in the middle


class Killed(BaseException):
    """Thrown into a thread from outside."""


def kill_in_the_middle(work, moment):
    """Ends a thread that does nothing but this work, wherever it happens to be."""
    began = threading.Event()

    def victim():
        sys.settrace(None)  # who measures coverage has a lock, too, and would be left with it
        try:
            began.set()
            while True:
                work()
        except Killed:
            pass

    thread = threading.Thread(target=victim)
    thread.start()
    began.wait()
    for _ in range(moment):
        pass
    assert (
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(Killed))
        == 1
    )
    thread.join()


@pytest.mark.slow
@pytest.mark.usefixtures("frequent_switches")
def test_a_thousand_threads_that_die_in_the_middle_leave_a_purse_in_order():
    purse, rng = TokenBudget(capacity=20), random.Random(1)

    def work():
        cost = purse.acquire(timeout=rng.random() < 0.3)
        purse.success(cost)

    with watchdog(60):
        for _ in range(1000):
            kill_in_the_middle(work, rng.randrange(50))
            assert purse._lock.acquire(blocking=False)
            purse._lock.release()
            assert 0.0 <= purse.tokens <= purse.capacity
            assert not purse.full or purse.tokens == purse.capacity
    for _ in range(20):
        purse.success()
    assert purse.full
    assert purse.tokens == 20.0


@pytest.mark.slow
@pytest.mark.usefixtures("frequent_switches")
def test_threads_that_die_in_the_middle_leave_a_ratio_in_order():
    ticks, rng = itertools.count(), random.Random(2)
    budget = RatioBudget(ratio=0.5, floor_per_second=1, clock=lambda: next(ticks) * 0.01)

    def work():
        budget.failure()
        budget.acquire()
        budget.success()
        budget.tokens  # noqa: B018 - looking is what is tried

    with watchdog(60):
        for _ in range(300):
            kill_in_the_middle(work, rng.randrange(50))
            assert budget._lock.acquire(blocking=False)
            budget._lock.release()
            allowed, used = budget._reckon(next(ticks) * 0.01)
            assert allowed >= 10.0
            assert used >= 0
    before = next(ticks) * 0.01
    budget._clock = lambda: before + 20.0
    assert sum(budget.acquire() for _ in range(100)) == 10.0


# Every order of three threads


def bounds(purse):
    assert 0.0 <= purse._tokens <= purse.capacity
    assert not purse.full or purse._tokens == purse.capacity


@pytest.mark.slow
def test_in_every_order_the_last_token_goes_to_one_of_three():
    def check(purse, results):
        assert sorted(results) == [0.0, 0.0, 5.0]
        assert purse.tokens == 0.0

    orders = explore(
        lambda: TokenBudget(capacity=5), [TokenBudget.acquire] * 3, check, always=bounds, preemptions=3
    )
    assert orders > 500


def empty_but(tokens, capacity=10.0, **terms):
    purse = TokenBudget(capacity=capacity, **terms)
    with purse._lock:
        purse._keep(0.0, tokens)
    return purse


@pytest.mark.slow
def test_in_every_order_two_retries_and_a_success_near_nothing_add_up():
    def give(purse):
        return purse.success(5.0)

    def check(purse, results):
        granted = sum(results[:2])
        assert granted in (5.0, 10.0)  # the second one is granted if the success came before it
        assert purse.tokens == 5.0 + 5.0 - granted

    explore(
        lambda: empty_but(5.0), [TokenBudget.acquire, TokenBudget.acquire, give], check,
        always=bounds, preemptions=3,
    )  # fmt: skip


@pytest.mark.slow
def test_in_every_order_two_successes_and_a_retry_near_the_top_stay_within_it():
    def give(purse):
        return purse.success()

    def check(purse, results):
        assert results[2] == 5.0
        assert purse.tokens in (5.0, 6.0, 7.0)  # what came before the retry found the purse full

    explore(
        lambda: TokenBudget(capacity=10),
        [give, give, TokenBudget.acquire],
        check,
        always=bounds,
        preemptions=3,
    )


@pytest.mark.slow
def test_at_every_line_a_purse_that_says_it_is_full_is_full():
    explore(
        lambda: empty_but(10.0), [TokenBudget.acquire, lambda purse: purse.success(5.0)],
        always=bounds, modules=[budget], preemptions=2,
    )  # fmt: skip


def test_in_every_order_a_ratio_grants_one_retry_to_one_of_three(clock):
    def make():
        shared = RatioBudget(ratio=0.1, floor_per_second=0, clock=clock)
        for _ in range(9):
            shared.success()
        return shared

    def check(shared, results):
        assert sum(results[:2]) <= 1.0
        assert shared.tokens == 1.0 - sum(results[:2])

    explore(make, [RatioBudget.acquire, RatioBudget.acquire, RatioBudget.failure], check, preemptions=3)


@pytest.mark.slow
def test_at_every_line_threads_that_turn_the_same_slot_lose_no_call():
    class Counts(Window):
        __slots__ = ("_lock",)

    def make():
        counts = Counts(10.0)
        counts.add(0.0)
        return counts

    def check(counts, results):
        assert counts.read(1.0)[0] == 4

    bodies = [lambda counts: counts.add(1.0), lambda counts: counts.add(1.5), lambda counts: counts.add(0.9)]
    assert explore(make, bodies, check, modules=[_window], preemptions=1) > 100


def test_at_every_line_a_read_beside_a_call_sees_it_or_does_not():
    class Counts(Window):
        __slots__ = ("_lock",)

    def look(counts):
        with counts._lock:
            return counts.read(11.0)[0]

    def make():
        counts = Counts(10.0)
        counts.add(0.0)
        counts.add(5.0)
        return counts

    def check(counts, results):
        assert results[1] in (1, 2)  # the first call has expired
        assert counts.read(11.0)[0] == 2

    explore(make, [lambda counts: counts.add(11.0), look], check, modules=[_window], preemptions=1)
