"""A shared budget: what successes cost, and what is sent."""

from __future__ import annotations

import pytest

from support.stores import REFUSED, left


def test_a_success_asks_nobody_while_the_budget_is_believed_full(store, clock):
    here = store(left(500.0))
    budget = here.budget()
    assert not budget._full  # nothing is known yet
    here.run(budget.success)
    assert len(here.client.asked) == 1
    assert budget._full
    for _ in range(100):
        here.run(budget.success)
    assert len(here.client.asked) == 1
    clock.advance(0.99)
    assert budget._full
    clock.advance(0.01)
    assert not budget._full
    here.run(budget.success)
    assert budget._full
    assert [words[1] for words in here.client.asked] == ["1.0", "1.0"]


def test_what_successes_earn_is_sent_once_in_a_while(store, clock):
    here = store(left(100.0))
    budget = here.budget(earn=2)
    here.run(budget.refresh)
    for _ in range(10):
        here.run(budget.success)
        clock.advance(0.09)
    assert len(here.client.asked) == 1
    clock.advance(0.2)
    here.run(budget.success)
    assert [words[1:3] for words in here.client.asked] == [("0.0", "0.0"), ("22.0", "0.0")]


def test_what_successes_earned_goes_along_with_the_next_retry(store):
    here = store(left(100.0))
    budget = here.budget()
    here.run(budget.refresh)
    for _ in range(3):
        here.run(budget.success)
    assert not budget.at_rest
    here.run(budget.acquire)
    here.run(budget.acquire)
    assert [words[1:3] for words in here.client.asked] == [("0.0", "0.0"), ("3.0", "5.0"), ("0.0", "5.0")]
    assert budget.at_rest


@pytest.mark.parametrize(("refund", "given_back"), [(None, "10.0"), (3, "3.0"), (0, "0.0")])
def test_a_success_after_retries_gives_back_the_last_cost_at_once(store, refund, given_back):
    here = store(left(100.0))
    budget = here.budget(refund=refund)
    here.run(budget.refresh)
    here.run(budget.success, 10.0)
    assert [words[1] for words in here.client.asked] == ["0.0", given_back]


def test_a_cost_is_given_back_even_if_the_budget_is_believed_full(store):
    here = store(left(500.0))
    budget = here.budget()
    here.run(budget.refresh)
    assert budget._full
    here.run(budget.success, 5.0)
    assert here.client.asked[1][1] == "5.0"


def test_what_is_collected_is_never_more_than_the_capacity(store):
    here = store(left(2.0))
    budget = here.budget(capacity=3)
    here.run(budget.refresh)
    for _ in range(10):
        here.run(budget.success)
    here.run(budget.refresh)
    assert here.client.asked[1][1] == "3.0"


def test_a_first_attempt_that_failed_costs_nothing(store):
    here = store(left(2.0))
    assert here.run(here.budget().failure) is None
    assert here.client.asked == []


def test_what_successes_earn_while_the_store_is_away_the_local_guard_has(store, clock):
    here = store(left(5.0, 5.0), REFUSED)
    budget = here.budget()
    here.run(budget.acquire)
    here.run(budget.success)
    assert here.run(budget.refresh) == 6.0  # the twin's
    here.run(budget.success, 5.0)
    assert budget.tokens == 11.0
    clock.advance(1.0)
    here.run(budget.success)
    assert budget.tokens == 12.0
    assert not budget.at_rest


def test_a_budget_prints_what_was_last_seen(store):
    here = store(left(12.5))
    budget = here.budget(name="payments")
    here.run(budget.refresh)
    assert repr(budget) == "<payments: 12.5 of 500 tokens>"
