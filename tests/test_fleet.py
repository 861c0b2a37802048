"""Fleets of clients on virtual time: what budgets make of the load when a dependency fails.

The model and its figures are those of Marc Brooker's simulation ("Fixing retries with token buckets and
circuit breakers", simulator_example/retry_sim): 100 clients, each with 10 calls a second (Poisson) for 20 s,
against a server that fails every request independently with the same probability. Load is requests per call.
"""

from __future__ import annotations

import random

import pytest

from redouble import Policy
from redouble.backoff import fixed
from redouble.budget import RatioBudget, TokenBudget
from redouble.testing import FakeClock

CLIENTS, RATE, SECONDS = 100, 10.0, 20.0

# Failure rate: share of calls that succeed, load. Means of three runs of the original.
BUCKET = {
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
}
THREE_RETRIES = {0.0: (1.0, 1.0), 0.1: (0.9999, 1.1111), 0.3: (0.9924, 1.416), 0.5: (0.9352, 1.8756)}


class Fleet:
    """Clients, one after the other, each with its own way to make a call; all draws are seeded."""

    def __init__(self, failure_rate, seed=1):
        self.failure_rate, self.rng, self.clock = failure_rate, random.Random(seed), FakeClock()
        self.calls = self.requests = self.good = 0

    def request(self):
        """What a call does: one request to the server, which fails or does not."""
        self.requests += 1
        if self.rng.random() < self.failure_rate:
            raise ConnectionResetError

    def run(self, client, clients=CLIENTS):
        """``client()`` gives, for each client, a function that makes one call and may raise."""
        for _ in range(clients):
            call, self.clock.now = client(), self.rng.expovariate(RATE)
            while self.clock.now < SECONDS:
                self.calls += 1
                try:
                    call()
                    self.good += 1
                except ConnectionResetError:
                    pass
                self.clock.now += self.rng.expovariate(RATE)
        return self.good / self.calls, self.load

    @property
    def load(self):
        return self.requests / self.calls

    def policy(self, **fields):
        """A client under a policy, without waits, as in the model."""
        return Policy(backoff=fixed, base=0, clock=self.clock, sleep=self.clock.sleep, **fields)(self.request)

    def brookers_bucket(self):
        """A client with a purse that is told of every call at its beginning, as the model's bucket is.

        A purse of 5 tokens from which a retry takes 1; what it earns by a clean success is what the bucket
        earns by a call. There is no other limit. The bucket needs more than 1 token, a purse needs 1.
        """
        purse = TokenBudget(capacity=5, cost=1, timeout_cost=1, refund=0, earn=0.1)

        def call():
            purse.success()
            while True:
                try:
                    return self.request()
                except ConnectionResetError:
                    if not purse.acquire():
                        raise

        return call


@pytest.mark.parametrize("failure_rate", BUCKET)
def test_a_purse_that_earns_by_calls_gives_the_published_figures_of_the_token_bucket(failure_rate):
    runs = [Fleet(failure_rate, seed) for seed in (1, 2)]
    found = [fleet.run(fleet.brookers_bucket) for fleet in runs]
    success, load = BUCKET[failure_rate]
    assert sum(run[0] for run in found) / 2 == pytest.approx(success, rel=0.02)
    assert sum(run[1] for run in found) / 2 == pytest.approx(load, rel=0.02)


@pytest.mark.parametrize("failure_rate", THREE_RETRIES)
def test_three_plain_retries_multiply_the_load_by_up_to_1_88_as_published(failure_rate):
    fleet = Fleet(failure_rate)
    success, load = fleet.run(lambda: fleet.policy(attempts=4), clients=50)
    assert (success, load) == pytest.approx(THREE_RETRIES[failure_rate], rel=0.02)
    p = failure_rate
    assert (success, load) == pytest.approx((1 - p**4, 1 + p + p**2 + p**3), rel=0.02)


def test_in_a_policy_only_successes_earn_so_that_a_purse_allows_less_than_the_bucket():
    fleet = Fleet(0.5)
    terms = {"capacity": 5, "cost": 1, "timeout_cost": 1, "refund": 0, "earn": 0.1}
    fleet.run(lambda: fleet.policy(attempts=1000, budget=TokenBudget(**terms)), clients=20)
    assert 1.05 < fleet.load < 1.09 < BUCKET[0.5][1]


def test_the_last_cost_given_back_lets_a_purse_pay_for_retries_that_do_some_good():
    good, bad = Fleet(0.2), Fleet(0.75)
    terms = {"capacity": 5, "cost": 1, "timeout_cost": 1, "earn": 0.1}
    for fleet in (good, bad):
        fleet.run(lambda fleet=fleet: fleet.policy(attempts=1000, budget=TokenBudget(**terms)), clients=20)
    assert good.load > BUCKET[0.2][1]  # most retries succeed, and are allowed
    assert bad.load < BUCKET[0.75][1]  # most do not, and are not


@pytest.mark.parametrize("failure_rate", [0.1, 0.5, 1.0])
def test_a_ratio_of_a_tenth_keeps_each_client_to_a_tenth_more(failure_rate):
    fleet = Fleet(failure_rate)
    terms = {"ratio": 0.1, "floor_per_second": 0, "clock": fleet.clock}
    fleet.run(lambda: fleet.policy(attempts=4, budget=RatioBudget(**terms)), clients=10)
    assert 1.07 < fleet.load <= 1.1 < 1.13


@pytest.mark.parametrize("failure_rate", [0.0, 0.001, 0.01])
def test_a_ratio_lets_rare_failures_be_retried(failure_rate):
    fleet = Fleet(failure_rate)
    shared = RatioBudget(0.1, floor_per_second=1, clock=fleet.clock)
    success, _ = fleet.run(lambda: fleet.policy(attempts=4, budget=shared), clients=20)
    assert success == 1.0


@pytest.mark.parametrize("floor", [0.0, 0.5, 3.0])
@pytest.mark.parametrize("window", [1.0, 3.0, 10.0])
def test_when_everything_fails_the_load_is_at_most_the_ratio_and_the_floor_above_one(window, floor):
    fleet = Fleet(1.0)
    budget = RatioBudget(0.1, floor_per_second=floor, window=window, clock=fleet.clock)
    fleet.run(lambda: fleet.policy(attempts=4, budget=budget), clients=1)
    # As many windows as there may be, one that has just begun among them, each with its floor.
    assert fleet.requests <= 1.1 * fleet.calls + floor * (SECONDS + window)
    assert fleet.good == 0
    if floor:
        assert fleet.requests >= fleet.calls + floor * (SECONDS - window)


def test_a_fleet_that_shares_one_ratio_stays_within_it_together():
    """Calls of all clients in the order of time, as they come in one process."""
    fleet = Fleet(1.0)
    budget = RatioBudget(0.1, floor_per_second=10, clock=fleet.clock)
    call = fleet.policy(attempts=4, budget=budget)
    while fleet.clock.now < SECONDS:
        fleet.calls += 1
        with pytest.raises(ConnectionResetError):
            call()
        fleet.clock.now += fleet.rng.expovariate(RATE * 30)
    assert fleet.calls > 5_000
    assert fleet.requests <= 1.1 * fleet.calls + 10 * (SECONDS + 10)


def test_in_an_outage_a_purse_runs_dry_and_fills_again_when_it_is_over():
    fleet = Fleet(1.0)
    purse = TokenBudget(capacity=500)
    call = fleet.policy(attempts=4, budget=purse)
    for _ in range(1000):
        with pytest.raises(ConnectionResetError):
            call()
    assert (fleet.requests, purse.tokens) == (1000 + 500 / 5, 0.0)  # one more request for every 5 tokens
    fleet.failure_rate = 0.0
    for _ in range(500):
        call()
    assert purse.full
    assert fleet.requests == 1000 + 100 + 500
