"""Calls with a retry budget."""

from __future__ import annotations

import pytest

from redouble import (
    DeadlineExceeded,
    Policy,
    Rule,
)
from redouble.backoff import exponential, fixed
from redouble.breaker import CircuitBreaker
from redouble.budget import RatioBudget, TokenBudget
from redouble.bulkhead import Bulkhead
from redouble.context import time_given
from support.guarded import SLOW, WATCHED, Generous, HTTPError, told


def test_a_first_attempt_is_never_charged(flavour, policy):
    empty = TokenBudget(capacity=0)
    assert flavour.call(policy.replace(budget=empty), flavour.scripted("page")) == "page"


def test_a_retry_that_the_budget_refuses_is_not_waited_for_and_the_own_error_comes_out(
    flavour, policy, clock, heard
):
    budget = TokenBudget(capacity=5, name="upstream")
    error = ConnectionResetError("gone")
    with pytest.raises(ConnectionResetError) as caught:
        flavour.call(policy.replace(budget=budget), flavour.scripted(ConnectionResetError(), error))
    assert caught.value is error
    assert clock.waits == [1.0]
    assert budget.tokens == 0.0
    assert error.__notes__[0].startswith(
        "redouble: gave up on fetch after 2 attempts, 1.0 s after the first failure: "
        "the retry budget is spent (upstream)\n"
    )
    assert told(heard) == [("Retrying", None), ("GaveUp", "budget")]


def test_a_timeout_costs_more(flavour, policy):
    budget = TokenBudget(capacity=100)
    flavour.call(policy.replace(budget=budget, attempts=3), flavour.scripted(SLOW, ConnectionResetError(), 1))
    assert budget.tokens == 100 - 10 - 5 + 5


def test_a_success_after_retries_gives_the_last_cost_back_and_a_clean_one_earns_a_little(flavour, policy):
    budget = TokenBudget(capacity=100)
    guarded = policy.replace(budget=budget)
    assert flavour.call(guarded, flavour.scripted(SLOW, SLOW, "page")) == "page"
    assert budget.tokens == 90.0
    assert flavour.call(guarded, flavour.scripted("page")) == "page"
    assert budget.tokens == 91.0


@pytest.mark.parametrize("failure", [KeyError("k"), HTTPError(404)], ids=repr)
def test_a_failure_that_is_not_retried_costs_nothing(flavour, policy, failure):
    budget = TokenBudget(capacity=100)
    with pytest.raises(type(failure)):
        flavour.call(policy.replace(budget=budget), flavour.scripted(failure))
    assert budget.tokens == 100


@pytest.mark.parametrize(
    "fields",
    [{"attempts": 1}, {"deadline": 0.5}, {"enabled": False}, {"max_retry_after": 0.0, "on": lambda e: 0}],
    ids=str,
)
def test_a_budget_is_asked_last(flavour, policy, fields):
    budget = TokenBudget(capacity=100)
    failure = HTTPError(503, **{"retry-after": "7"}) if "max_retry_after" in fields else SLOW
    with pytest.raises(Exception):
        flavour.call(policy.replace(budget=budget, **{**fields, "on": None}), flavour.scripted(failure))
    assert budget.tokens == 100


def test_a_budget_is_not_asked_while_the_circuit_is_open(flavour, policy):
    budget, breaker = TokenBudget(), CircuitBreaker(failures=1)
    with pytest.raises(TimeoutError):
        flavour.call(policy.replace(budget=budget, breaker=breaker), flavour.scripted(SLOW))
    assert budget.tokens == 500


def test_a_low_priority_leaves_the_rest_to_the_others(flavour, policy):
    budget = TokenBudget(capacity=10, timeout_cost=6)
    batch = policy.replace(budget=budget, priority=-1)
    with pytest.raises(TimeoutError):
        flavour.call(batch, flavour.scripted(SLOW, SLOW))
    assert budget.tokens == 4.0
    with pytest.raises(TimeoutError):
        flavour.call(batch, flavour.scripted(SLOW))
    assert budget.tokens == 4.0
    reset = ConnectionResetError("gone")
    cheap = policy.replace(budget=TokenBudget(capacity=10, cost=4, reserves={-1: 0.5}))
    assert (
        flavour.call(cheap, flavour.scripted(reset, reset, "page")) == "page"
    )  # down to 2, below the reserve


def test_a_ratio_budget_counts_every_call_once(flavour, policy, clock):
    budget = RatioBudget(ratio=0.5, floor_per_second=0, clock=clock)
    guarded = policy.replace(budget=budget, backoff=fixed, base=0.0)
    for outcome in ("page", "page"):
        flavour.call(guarded, flavour.scripted(outcome))
    assert budget.tokens == 1.0
    flavour.call(guarded, flavour.scripted(SLOW, "page"))
    assert budget.tokens == 0.5
    with pytest.raises(KeyError):
        flavour.call(guarded, flavour.scripted(KeyError("k")))
    assert budget.tokens == 1.0


def test_the_standard_retry_tables_hold(flavour, clock):
    """As published for the standard mode of the AWS SDKs, version 2.0: quota and delay after each response."""
    tables = [
        (3, 500, 20, [(500, 495, 1), (500, 490, 2), (200, 495, None)]),
        (3, 500, 20, [(502, 495, 1), (502, 490, 2), (502, 490, None)]),
        (3, 5, 20, [(500, 0, 1), (502, 0, None)]),
        (3, 0, 20, [(500, 0, None)]),
        (5, 500, 20, [(500, 495, 1), (500, 490, 2), (500, 485, 4), (500, 480, 8), (500, 480, None)]),
        (5, 500, 3, [(500, 495, 1), (500, 490, 2), (500, 485, 3), (500, 480, 3), (500, 480, None)]),
        (5, 10, 20, [(500, 5, 1), (502, 0, 2), (503, 0, None)]),
        (5, 15, 20, [(500, 10, 1), (502, 5, 2), (200, 10, None), (500, 5, 1), (200, 10, None)]),
    ]
    for attempts, tokens, cap, rows in tables:
        budget = TokenBudget(capacity=tokens)
        waits = []
        seen = []

        def sleep(seconds, waits=waits, seen=seen, budget=budget):
            waits.append(seconds)
            seen.append(budget.tokens)

        policy = Policy(attempts=attempts, cap=cap, backoff=exponential, budget=budget, sleep=sleep)
        outcomes = [HTTPError(status) if status != 200 else "page" for status, _, _ in rows]
        fetch = flavour.scripted(*outcomes)
        while len(fetch.calls) < len(rows):
            try:
                flavour.call(policy, fetch)
            except HTTPError:
                pass
            seen.append(budget.tokens)
        assert seen == [quota for _, quota, _ in rows]
        assert waits == [delay for _, _, delay in rows if delay is not None]


class Empty(TokenBudget):
    def __len__(self):
        return 0


def test_a_budget_that_is_false_is_one_all_the_same(flavour, policy):
    budget = Empty(capacity=10)
    budget.acquire()
    for _ in range(3):
        flavour.call(policy.replace(budget=budget), flavour.scripted("page"))
    assert budget.tokens == 8.0


def test_a_counting_budget_counts_whatever_else_a_policy_asks_for(flavour, policy, clock):
    budget = RatioBudget(0.5, floor_per_second=0, clock=clock)
    rate = CircuitBreaker(failure_rate=0.5, minimum_calls=50, clock=clock)
    for fields in ({}, *WATCHED):
        flavour.call(policy.replace(budget=budget, breaker=rate, **fields), flavour.scripted("page"))
    assert budget.tokens == 2.0
    assert rate.counted == (4, 0)


class Told(Generous):
    """A budget that notes what it is told."""

    def __init__(self, full):
        super().__init__()
        self._full, self.told = full, []

    def success(self, cost=0.0):
        self.told.append(cost)


@pytest.mark.parametrize("fields", [{}, {"until": bool}, {"bulkhead": Bulkhead(1)}], ids=str)
def test_a_budget_that_is_full_need_not_be_told_of_a_success(flavour, policy, fields):
    for budget in (full := Told(full=True), lacking := Told(full=False)):
        flavour.call(policy.replace(budget=budget, **fields), flavour.scripted("page"))
    assert (full.told, lacking.told) == ([], [0.0])


def opens_meanwhile(breaker, clock):
    def sleep(seconds):
        clock.advance(seconds)
        breaker.open()

    return sleep


@pytest.mark.parametrize(
    "budget", [TokenBudget(capacity=100), RatioBudget(ratio=0.0, floor_per_second=5)], ids=repr
)
def test_a_circuit_that_opens_during_the_wait_gives_the_price_of_the_retry_back(
    flavour, policy, clock, budget
):
    breaker, before = CircuitBreaker(clock=clock), budget.tokens
    guarded = policy.replace(breaker=breaker, budget=budget, sleep=opens_meanwhile(breaker, clock))
    with pytest.raises(TimeoutError):
        flavour.call(guarded, flavour.scripted(SLOW))
    assert budget.tokens == before


def test_a_fallback_finds_the_price_of_a_retry_that_was_not_made_given_back(flavour, policy, clock):
    breaker, budget = CircuitBreaker(clock=clock), TokenBudget(capacity=100)
    guarded = policy.replace(breaker=breaker, budget=budget, sleep=opens_meanwhile(breaker, clock))
    function = flavour.scripted(TimeoutError("slow"))
    assert flavour.call(guarded.replace(fallback=lambda error: budget.tokens), function) == 100


def test_a_deadline_that_passes_during_the_wait_gives_the_price_of_the_retry_back(flavour, policy, clock):
    budget = TokenBudget(capacity=100)
    late = policy.replace(budget=budget, deadline=5.0, sleep=lambda seconds: clock.advance(10.0))
    with pytest.raises(DeadlineExceeded):
        flavour.call(late, flavour.scripted(SLOW))
    assert budget.tokens == 100


def test_a_recover_that_fails_gives_the_price_of_the_retry_back(flavour, policy):
    def recover(error):
        raise ValueError("no token")

    budget = TokenBudget(capacity=100)
    with pytest.raises(TimeoutError):
        flavour.call(
            policy.replace(budget=budget, rules={TimeoutError: Rule(recover=recover)}), flavour.scripted(SLOW)
        )
    assert budget.tokens == 100


def test_an_interrupted_wait_gives_the_price_of_the_retry_back(flavour, policy):
    def sleep(seconds):
        raise KeyboardInterrupt

    budget = TokenBudget(capacity=100)
    with pytest.raises(KeyboardInterrupt):
        flavour.call(policy.replace(budget=budget, sleep=sleep), flavour.scripted(SLOW))
    assert budget.tokens == 100


def test_a_retry_that_was_made_is_paid_for(flavour, policy):
    budget = TokenBudget(capacity=100)
    with pytest.raises(TimeoutError):
        flavour.call(policy.replace(budget=budget, attempts=2), flavour.scripted(SLOW, SLOW))
    assert budget.tokens == 90


def test_a_budget_that_cannot_take_a_price_back_does_not_break_the_call(flavour, policy, clock, caplog):
    class Stubborn(TokenBudget):
        def give_back(self, cost):
            raise RuntimeError("no refunds")

    breaker = CircuitBreaker(clock=clock)
    guarded = policy.replace(breaker=breaker, budget=Stubborn(), sleep=opens_meanwhile(breaker, clock))
    with pytest.raises(TimeoutError):
        flavour.call(guarded, flavour.scripted(SLOW))
    assert "no refunds" in caplog.text


@pytest.mark.parametrize(("fields", "left"), [({}, None), ({"deadline": 10.0}, 10.0)])
def test_a_budget_is_told_the_time_left_if_there_is_a_limit(flavour, policy, fields, left):
    told_time = []

    class Shared(TokenBudget):
        def acquire(self, **how):
            told_time.append(time_given.get())
            return super().acquire(**how)

    flavour.call(policy.replace(budget=Shared(), **fields), flavour.scripted(SLOW, "page"))
    assert told_time == [left]
