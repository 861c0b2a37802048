"""Services that call services: how many calls reach the bottom."""

from __future__ import annotations

import math
import time

import pytest

from redouble import Policy
from redouble.backoff import fixed
from redouble.simulate import Strategy, layers


def test_four_attempts_in_each_of_three_layers_are_64_calls_at_the_bottom():
    found = layers("independent")
    assert found.reached == (4, 16, 64)
    assert found.amplification == 64


def test_layers_that_stop_leave_retrying_to_the_one_next_to_the_failure():
    assert layers("stop").reached == (1, 1, 4)


def test_layers_that_defer_add_up_instead_though_only_headers_go_from_one_to_the_next():
    assert layers("defer").reached == (4, 4 + 3, 4 + 3 + 3)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["budget", "defer+budget"])
def test_budgets_of_a_tenth_in_three_layers_let_through_a_third_more_at_most(strategy):
    found = layers(strategy, calls=300)
    assert 1.2 < found.amplification <= 1.1**3
    assert found.succeeded == 0


def test_rare_failures_are_cured_in_the_layer_next_to_them():
    for strategy in ("independent", "stop", "defer"):
        found = layers(strategy, calls=300, failure_rate=0.1)
        assert found.succeeded == 300
        assert found.reached[:2] == (300, 300)
        assert 1.05 < found.amplification < 1.2


def test_layers_take_virtual_time_only():
    began = time.perf_counter()
    assert layers("independent").seconds > 20
    assert time.perf_counter() - began < 5


def test_a_policy_that_ends_calls_in_its_own_way_is_one_more_call_that_failed():
    found = layers(Strategy("hurried", Policy(deadline=2.0, backoff=fixed)), calls=3)
    assert found.succeeded == 0
    assert found.reached[0] <= 6


def test_layers_that_would_retry_for_ever_where_every_attempt_fails_are_refused():
    with pytest.raises(ValueError, match=r"policy must not have attempts=inf where every attempt fails"):
        layers(Strategy("endless", Policy(attempts=math.inf)))
    assert layers(Strategy("endless", Policy(attempts=math.inf)), failure_rate=0.5).succeeded == 1
    bounded = Policy(attempts=math.inf, backoff=fixed, give_up_after=3.0)
    assert layers(Strategy("bounded", bounded), depth=1).reached == (3,)
