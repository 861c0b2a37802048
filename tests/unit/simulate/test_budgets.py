"""Budgets and the load on a server that fails: the published figures, and the library's own budgets.

Load is requests per call. With ``REDOUBLE_LONG=1`` in the environment all published figures are compared.
"""

from __future__ import annotations

import math
import os

import pytest

from redouble import Policy
from redouble.backoff import fixed
from redouble.breaker import CircuitBreaker
from redouble.budget import RatioBudget, TokenBudget
from redouble.simulate import Strategy, budgets
from redouble.testing import FakeClock

LONG = bool(os.environ.get("REDOUBLE_LONG"))

# fmt: off
# Strategy: failure rate: share of calls that succeed, requests per call. Means of three runs of Marc Brooker's
# simulation (mbrooker/simulator_example, retry_sim).
PUBLISHED = {
    "no_retries": {
        0.0: (1.0, 1.0),
        0.0001: (0.9999, 1.0),
        0.0002: (0.9998, 1.0),
        0.0005: (0.9996, 1.0),
        0.001: (0.999, 1.0),
        0.002: (0.9978, 1.0),
        0.005: (0.995, 1.0),
        0.01: (0.9901, 1.0),
        0.02: (0.9811, 1.0),
        0.0325: (0.967, 1.0),
        0.05: (0.9516, 1.0),
        0.1: (0.9006, 1.0),
        0.2: (0.803, 1.0),
        0.3: (0.7012, 1.0),
        0.4: (0.6007, 1.0),
        0.5: (0.4973, 1.0),
        0.75: (0.2483, 1.0),
    },
    "three_retries": {
        0.0: (1.0, 1.0),
        0.0001: (1.0, 1.0),
        0.0002: (1.0, 1.0002),
        0.0005: (1.0, 1.0006),
        0.001: (1.0, 1.0008),
        0.002: (1.0, 1.0019),
        0.005: (1.0, 1.0047),
        0.01: (1.0, 1.0108),
        0.02: (1.0, 1.0211),
        0.0325: (1.0, 1.0336),
        0.05: (1.0, 1.0516),
        0.1: (0.9999, 1.1111),
        0.2: (0.9988, 1.2464),
        0.3: (0.9924, 1.416),
        0.4: (0.9734, 1.6241),
        0.5: (0.9352, 1.8756),
        0.75: (0.6851, 2.7346),
    },
    "adaptive_10pct": {
        0.0: (1.0, 1.0),
        0.0001: (1.0, 1.0),
        0.0002: (1.0, 1.0002),
        0.0005: (1.0, 1.0005),
        0.001: (1.0, 1.0008),
        0.002: (1.0, 1.0019),
        0.005: (1.0, 1.0047),
        0.01: (1.0, 1.0099),
        0.02: (1.0, 1.0205),
        0.0325: (1.0, 1.0335),
        0.05: (0.9998, 1.0522),
        0.1: (0.9883, 1.0971),
        0.2: (0.8915, 1.1173),
        0.3: (0.782, 1.1194),
        0.4: (0.6714, 1.1204),
        0.5: (0.5614, 1.1209),
        0.75: (0.281, 1.1217),
    },
    "breaker_10pct": {
        0.0: (1.0, 1.0),
        0.0001: (1.0, 1.0001),
        0.0002: (1.0, 1.0002),
        0.0005: (1.0, 1.0005),
        0.001: (0.9999, 1.0009),
        0.002: (0.9999, 1.0021),
        0.005: (0.9998, 1.0054),
        0.01: (0.9994, 1.0097),
        0.02: (0.9988, 1.0199),
        0.0325: (0.9973, 1.031),
        0.05: (0.993, 1.0453),
        0.1: (0.9348, 1.0363),
        0.2: (0.8031, 1.0019),
        0.3: (0.7002, 1.0004),
        0.4: (0.6002, 1.0),
        0.5: (0.4954, 1.0),
        0.75: (0.2515, 1.0),
    },
}
# fmt: on

RATES = (0.01, 0.1, 0.2, 0.5, 0.75)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", PUBLISHED)
def test_budgets_give_the_published_success_and_load(strategy):
    for failure_rate, published in PUBLISHED[strategy].items():
        if LONG or failure_rate in RATES:
            found = budgets(strategy, failure_rate=failure_rate)
            assert (found.success_rate, found.load) == pytest.approx(published, rel=0.02), failure_rate


@pytest.mark.parametrize("failure_rate", [0.1, 0.5])
def test_three_plain_retries_give_what_arithmetic_says(failure_rate):
    found = budgets("three_retries", failure_rate=failure_rate, clients=50)
    p = failure_rate
    assert (found.success_rate, found.load) == pytest.approx((1 - p**4, 1 + p + p**2 + p**3), rel=0.02)


def test_a_breaker_turns_calls_away_before_their_first_attempt_and_those_count():
    breaker = Strategy(
        "breaker",
        Policy(attempts=4, backoff=fixed, base=0.1),
        breaker=lambda clock: CircuitBreaker(failures=3, open_for=5.0, clock=clock),
    )
    found = budgets(breaker, failure_rate=1.0, clients=5)
    assert found.refused > 0.8 * found.calls
    assert found.load < 0.2
    assert found.success_rate == 0


def test_a_fleet_that_makes_no_call_has_lost_none():
    found = budgets(clients=1, rate=0.001, seconds=0.001)
    assert (found.calls, found.success_rate, found.load) == (0, 1.0, 1.0)


# The library's own budgets

SECONDS = 20.0
PURSE = {"capacity": 5, "cost": 1, "timeout_cost": 1, "earn": 0.1}
# What the published bucket allows, which earns by calls, however they end.
BUCKET = {0.2: 1.1173, 0.5: 1.1209, 0.75: 1.1217}


def fleet(budget, failure_rate, *, attempts=4, clients=20):
    """Clients under a policy with a budget each, without waits."""
    policy = Policy(attempts=attempts, backoff=fixed, base=0)
    return budgets(
        Strategy("fleet", policy, budget=budget), failure_rate=failure_rate, clients=clients, seconds=SECONDS
    )


@pytest.mark.slow
def test_in_a_policy_only_successes_earn_so_that_a_purse_allows_less_than_the_bucket():
    found = fleet(lambda clock: TokenBudget(**PURSE, refund=0), 0.5, attempts=1000)
    assert 1.05 < found.load < 1.09 < BUCKET[0.5]


@pytest.mark.slow
def test_the_last_cost_given_back_lets_a_purse_pay_for_retries_that_do_some_good():
    good, bad = (fleet(lambda clock: TokenBudget(**PURSE), rate, attempts=1000) for rate in (0.2, 0.75))
    assert good.load > BUCKET[0.2]  # most retries succeed, and are allowed
    assert bad.load < BUCKET[0.75]  # most do not, and are not


@pytest.mark.parametrize("failure_rate", [0.1, 0.5, 1.0])
def test_a_ratio_of_a_tenth_keeps_each_client_to_a_tenth_more(failure_rate):
    found = fleet(lambda clock: RatioBudget(0.1, floor_per_second=0, clock=clock), failure_rate, clients=10)
    assert 1.06 < found.load <= 1.1


def shared(**terms):
    """One budget for all clients of a fleet."""
    made = []

    def budget(clock):
        if not made:
            made.append(RatioBudget(0.1, clock=clock, **terms))
        return made[0]

    return budget


@pytest.mark.parametrize("failure_rate", [0.0, 0.001, 0.01])
def test_a_ratio_lets_rare_failures_be_retried(failure_rate):
    assert fleet(shared(floor_per_second=1), failure_rate).success_rate == 1.0


@pytest.mark.parametrize("floor", [0.0, 0.5, 3.0])
@pytest.mark.parametrize("window", [1.0, 3.0, 10.0])
def test_when_everything_fails_the_load_is_at_most_the_ratio_and_the_floor_above_one(window, floor):
    found = fleet(shared(floor_per_second=floor, window=window), 1.0, clients=1)
    # As many windows as there may be, one that has just begun among them, each with its floor.
    assert found.requests <= 1.1 * found.calls + floor * (SECONDS + window)
    assert found.success_rate == 0
    if floor:
        assert found.requests >= found.calls + floor * (SECONDS - window)


@pytest.mark.slow
def test_a_fleet_that_shares_one_ratio_stays_within_it_together():
    found = fleet(shared(floor_per_second=10), 1.0, clients=30)
    assert found.calls > 5_000
    assert found.requests <= 1.1 * found.calls + 10 * (SECONDS + 10)


@pytest.mark.slow
def test_in_an_outage_a_purse_runs_dry_and_fills_again_when_it_is_over():
    clock, purse, requests, down = FakeClock(), TokenBudget(capacity=500), [], [True]

    @Policy(attempts=4, backoff=fixed, base=0, clock=clock, sleep=clock.sleep, budget=purse)
    def call():
        requests.append(1)
        if down:
            raise ConnectionResetError

    for _ in range(1000):
        with pytest.raises(ConnectionResetError):
            call()
    assert (len(requests), purse.tokens) == (1000 + 500 / 5, 0.0)  # one more request for every 5 tokens
    down.clear()
    for _ in range(500):
        call()
    assert purse._full
    assert len(requests) == 1000 + 100 + 500


def test_a_strategy_for_ever_ends_if_a_budget_or_a_limit_in_time_ends_it_and_is_refused_otherwise():
    endless = Policy(attempts=math.inf, backoff=fixed, base=0.1)
    always = {"clients": 2, "seconds": 2.0, "failure_rate": 1.0}
    with pytest.raises(ValueError, match="give it a deadline or give_up_after"):
        budgets(Strategy("endless", endless), **always)
    limited = budgets(Strategy("limited", endless.replace(give_up_after=1.0)), **always)
    hurried = budgets(Strategy("hurried", endless.replace(deadline=1.0)), **always)
    assert 2.0 < limited.load < 10.0
    assert limited.load == hurried.load
    budgeted = Strategy("budgeted", endless, budget=lambda clock: RatioBudget(clock=clock))
    assert budgets(budgeted, **always).load < 2.0
    assert budgets(Strategy("lucky", endless), **{**always, "failure_rate": 0.5}).success_rate == 1.0
