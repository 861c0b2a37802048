"""Ratio budgets, with the test cases of finagle."""

from __future__ import annotations

import contextlib
import time

import pytest

from redouble import Policy
from redouble._guards.window import Window
from redouble.budget import RatioBudget
from redouble.testing import FakeClock, no_waits


def test_the_defaults_are_a_tenth_of_the_calls_and_three_more_over_ten_seconds(clock):
    budget = RatioBudget(clock=clock)
    assert (budget.ratio, budget.floor_per_second, budget.window) == (0.1, 0.3, 10.0)
    for _ in range(4):  # one call every ten seconds may be retried three times, each time
        budget.failure()
        assert [budget.acquire() for _ in range(4)] == [1.0, 1.0, 1.0, 0.0]
        clock.advance(10.0)


@pytest.mark.parametrize(
    ("rate", "calls", "expected"), [(1, 1_000, 1.4), (10, 2_000, 1.13), (100, 4_000, 1.103)]
)
def test_when_everything_fails_the_load_is_what_the_budget_says(rate, calls, expected):
    clock, requests = FakeClock(), []
    budget = RatioBudget(clock=clock)

    def fail():
        requests.append(1)
        raise TimeoutError("slow")

    policy = Policy(budget=budget, clock=clock, sleep=lambda seconds: None)
    for _ in range(calls):
        clock.advance(1 / rate)
        with contextlib.suppress(TimeoutError):
            policy.call(fail)
    assert budget.load(rate) == pytest.approx(expected, abs=0.001)
    # What was counted falls out after nine to ten tenths of the window, so it may be a little more.
    assert len(requests) / calls == pytest.approx(expected, rel=0.04)


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
    assert RatioBudget()._full is False


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
