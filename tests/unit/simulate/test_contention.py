"""Contention for one row: the published figures, and limits of the model.

With ``REDOUBLE_LONG=1`` in the environment all published figures are compared.
"""

from __future__ import annotations

import os

import pytest

from conftest import not_under_coverage
from redouble import Policy
from redouble.breaker import CircuitBreaker
from redouble.budget import TokenBudget
from redouble.simulate import Strategy, contention

LONG = bool(os.environ.get("REDOUBLE_LONG"))

# Strategy: clients: writes tried, milliseconds until the last is done. Means of 5 x 100 runs of the program of
# the AWS architecture blog (aws-samples/aws-arch-backoff-simulator).
# fmt: off
WRITES_AND_MILLISECONDS = {
    "no_backoff": {
        10: (50.9, 379.9),
        20: (152.3, 603.8),
        50: (691.1, 1140.7),
        100: (2424.4, 2029.4),
        150: (5138.6, 2874.0),
        200: (8817.5, 3700.5),
    },
    "no_jitter": {
        10: (51.0, 3537.5),
        20: (150.2, 14461.6),
        50: (622.2, 36257.6),
        100: (1855.4, 63489.9),
        150: (3542.4, 85816.6),
        200: (5614.3, 105183.2),
    },
    "equal_jitter": {
        10: (42.6, 740.9),
        20: (107.9, 1615.3),
        50: (347.2, 4289.4),
        100: (812.3, 6627.0),
        150: (1324.4, 8292.0),
        200: (1872.8, 9700.5),
    },
    "full_jitter": {
        10: (39.1, 470.1),
        20: (99.9, 981.7),
        50: (332.8, 2887.5),
        100: (795.7, 4849.2),
        150: (1318.4, 6411.3),
        200: (1889.9, 7673.5),
    },
    "decorrelated_jitter": {
        10: (37.7, 440.4),
        20: (100.9, 818.7),
        50: (373.0, 2222.6),
        100: (1001.7, 4611.0),
        150: (1757.3, 6542.1),
        200: (2606.2, 8180.3),
    },
}
# fmt: on

RUNS = {10: 300, 20: 100, 50: 60, 100: 30, 150: 20, 200: 12}
USUAL = [(name, clients) for name in WRITES_AND_MILLISECONDS for clients in (10, 50)]
USUAL += [("full_jitter", 100), ("full_jitter", 200), ("equal_jitter", 100), ("no_jitter", 100)]
ALL = [(name, clients) for name, rows in WRITES_AND_MILLISECONDS.items() for clients in rows]


@pytest.mark.slow
@not_under_coverage
@pytest.mark.parametrize(("strategy", "clients"), ALL if LONG else USUAL)
def test_contention_takes_the_published_number_of_writes_and_time(strategy, clients):
    usual = RUNS[clients] // (3 if strategy in ("no_backoff", "no_jitter") else 1)
    runs = max(150, usual) if LONG else usual
    found = contention(strategy, clients=clients, runs=runs)
    writes, milliseconds = WRITES_AND_MILLISECONDS[strategy][clients]
    assert found.calls == pytest.approx(writes, rel=0.05)
    assert 1000 * found.seconds == pytest.approx(milliseconds, rel=0.05)
    assert found.gave_up == 0


def test_one_client_alone_writes_once_in_four_ways_of_a_message():
    found = contention(clients=1, runs=200)
    assert found.calls == 1
    assert found.seconds == pytest.approx(0.040, rel=0.02)


@pytest.mark.slow
@not_under_coverage
def test_with_100_clients_full_jitter_needs_less_than_half_the_writes_and_a_tenth_of_the_time():
    full, none = contention("full_jitter", runs=10), contention("no_jitter", runs=10)
    assert full.calls < 0.45 * none.calls
    assert full.seconds < 0.1 * none.seconds


def test_a_limit_of_attempts_leaves_clients_that_gave_up():
    found = contention(Strategy("two", Policy(attempts=2, base=0.01)), clients=50, runs=4)
    assert found.strategy == "two"
    assert 0 < found.gave_up < 50
    assert found.calls <= 100


def test_a_budget_in_contention_is_each_clients_own():
    purse = Strategy("purse", Policy(attempts=9, base=0.01), budget=lambda clock: TokenBudget(10))
    found = contention(purse, clients=20, runs=2)
    # Two retries for each client, and no more.
    assert 20 < found.calls <= 60


def test_a_breaker_in_contention_is_refused_since_it_would_count_nothing():
    guarded = Strategy("guarded", Policy(), breaker=lambda clock: CircuitBreaker(clock=clock))
    with pytest.raises(ValueError, match="strategy must have no breaker here"):
        contention(guarded)
