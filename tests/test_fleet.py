"""What the library's own budgets make of the load when a dependency fails, on virtual time.

The published figures of token bucket and breaker are in ``test_simulate``; here are the budgets as a policy has
them. Clients, their pace and the server are those of ``simulate.budgets``. Load is requests per call.
"""

from __future__ import annotations

import pytest

from redouble import Policy
from redouble.backoff import fixed
from redouble.budget import RatioBudget, TokenBudget
from redouble.simulate import Strategy, budgets
from redouble.testing import FakeClock

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
    assert purse.full
    assert len(requests) == 1000 + 100 + 500
