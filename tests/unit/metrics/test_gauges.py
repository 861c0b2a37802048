"""The state of guards that are watched."""

from __future__ import annotations

import gc

import pytest

from redouble import Policy
from redouble.breaker import Breaker, CircuitBreaker
from redouble.budget import Budget, RatioBudget, TokenBudget
from redouble.bulkhead import Bulkhead
from redouble.metrics import (
    BudgetLevel,
    Counters,
)


def test_a_policy_watches_its_budget_and_its_breaker(counters, clock):
    budget, breaker = TokenBudget(capacity=10, name="payments"), CircuitBreaker(name="payments", clock=clock)
    counters.watch(Policy(budget=budget, breaker=breaker), Policy())
    budget.acquire()
    breaker.open()
    snapshot = counters.snapshot()
    assert snapshot.budgets == {"payments": BudgetLevel(5.0, 10.0)}
    assert snapshot.breakers == {"payments": "open"}
    breaker.close()
    assert counters.snapshot().breakers == {"payments": "closed"}


def test_what_is_watched_is_read_rather_than_remembered(counters, clock):
    breaker = CircuitBreaker(failures=1, open_for=5.0, name="payments", listeners=[counters], clock=clock)
    counters.watch(breaker)
    breaker.failure(breaker.enter(), TimeoutError())
    assert counters.snapshot().breakers == {"payments": "open"}
    clock.advance(5.0)  # no event: nobody has called yet
    assert counters.snapshot().breakers == {"payments": "half-open"}


def test_a_budget_without_a_capacity_has_none(counters, clock):
    budget = RatioBudget(floor_per_second=1, clock=clock, name="ratio")
    counters.watch(budget)
    assert counters.snapshot().budgets == {"ratio": BudgetLevel(10.0, None)}


def test_two_guards_of_one_name_are_kept_apart_and_one_is_watched_once(counters):
    budgets = [TokenBudget(capacity=capacity) for capacity in (1, 2, 3)]
    counters.watch(*budgets, *budgets)
    assert {name: level.capacity for name, level in counters.snapshot().budgets.items()} == {
        "TokenBudget": 1.0,
        "TokenBudget-2": 2.0,
        "TokenBudget-3": 3.0,
    }


@pytest.mark.slow
def test_a_guard_is_not_kept_alive_by_being_watched(counters):
    budget = TokenBudget(name="brief")
    counters.watch(budget)
    del budget
    gc.collect()
    assert counters.snapshot().budgets == {}
    again = TokenBudget(name="brief")
    counters.watch(again)
    assert list(counters.snapshot().budgets) == ["brief"]


def test_no_more_guards_are_watched_than_names_are_counted(caplog):
    counters = Counters(max_names=1)
    budgets = [TokenBudget(name=name) for name in "abc"]
    counters.watch(*budgets)
    assert list(counters.snapshot().budgets) == ["a"]
    assert [record.getMessage() for record in caplog.records] == [
        "Counters watches 1 guards already, which is its limit: no more (said once)"
    ]


@pytest.mark.parametrize("thing", [Bulkhead(3), "payments", None, TokenBudget])
def test_only_policies_budgets_and_breakers_are_watched(counters, thing):
    with pytest.raises(TypeError, match="watch takes policies, budgets and breakers, got"):
        counters.watch(TokenBudget(), thing)
    assert counters.snapshot().budgets == {}


class Awkward(Budget):
    """A budget of the user's own."""

    def __init__(self, tokens):
        super().__init__(name="awkward")
        self._say = tokens

    @property
    def tokens(self):
        return self._say()


def raises():
    raise RuntimeError("no idea")


async def later():
    return 5.0


class Awaitable:
    def __await__(self):
        yield


@pytest.mark.slow
@pytest.mark.parametrize(
    "say", [raises, later, Awaitable, lambda: "many", lambda: float("nan"), lambda: None]
)
def test_a_budget_that_cannot_be_read_is_left_out_and_the_rest_is_not(counters, say):
    sound, awkward = TokenBudget(name="sound"), Awkward(say)
    counters.watch(awkward, sound)
    assert list(counters.snapshot().budgets) == ["sound"]
    gc.collect()  # a coroutine that nobody awaited would be said here


class OwnBreaker(Breaker):
    """A breaker of the user's own, which knows only whether it refuses."""

    def __init__(self, answer):
        super().__init__("own")
        self._answer = answer

    def refuses(self):
        return self._answer()


@pytest.mark.parametrize(
    ("answer", "state"),
    [(lambda: True, {"own": "open"}), (lambda: False, {"own": "closed"}), (raises, {}), (later, {})],
)
def test_a_breaker_of_ones_own_is_open_when_it_refuses(counters, answer, state):
    breaker = OwnBreaker(answer)
    counters.watch(breaker)
    assert counters.snapshot().breakers == state


def test_a_budget_that_knows_its_capacity_only_is_shown_so(counters):
    budget = Awkward(raises)
    budget.capacity = 7.0
    counters.watch(budget)
    snapshot = counters.snapshot()
    assert snapshot.budgets == {"awkward": BudgetLevel(None, 7.0)}
    assert snapshot.table() == "budget   tokens\nawkward  ? of 7"


def test_a_shared_guard_says_whether_its_store_answers(counters):
    budget = Awkward(lambda: 3.0)
    budget.available = True
    counters.watch(budget)
    assert counters.snapshot().stores == {"awkward": True}
