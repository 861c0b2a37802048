"""Policies whose guards are functions of the call's arguments."""

from __future__ import annotations

import pickle
from unittest import mock

import pytest

from redouble import Policy, presets
from redouble.breaker import CircuitBreaker
from redouble.budget import TokenBudget
from redouble.bulkhead import Bulkhead
from redouble.hedging import hedge
from redouble.metrics import Counters
from redouble.registry import Registry
from redouble.simulate import Strategy
from redouble.testing import FakeClock
from redouble.throttle import AdaptiveThrottle

GUARDS = {
    "budget": TokenBudget,
    "breaker": CircuitBreaker,
    "throttle": AdaptiveThrottle,
    "bulkhead": lambda: Bulkhead(2),
}


def by_host(url):
    raise AssertionError  # asked in calls only


@pytest.mark.parametrize("field", GUARDS)
def test_a_guard_is_recognised_first_and_any_other_function_is_asked_in_each_call(field):
    guard = GUARDS[field]()
    assert Policy(**{field: guard})._keyed == ()
    made = Policy(**{field: by_host})
    assert getattr(made, field) is by_host
    assert (made._keyed, made._guarded, made._variant) == ((field,), True, "full")
    assert made.replace(**{field: guard})._keyed == ()
    assert made.replace(**{field: None}) == Policy()


@pytest.mark.parametrize("field", GUARDS)
def test_a_guard_of_another_field_a_class_and_a_registry_are_refused(field):
    other = CircuitBreaker() if field == "budget" else TokenBudget()
    for wrong in (other, CircuitBreaker, Registry(str), 3):
        with pytest.raises(TypeError, match=rf"^{field} must be a .*, or a function of the call's arguments"):
            Policy(**{field: wrong})


def test_an_async_function_cannot_choose_a_guard():
    async def later(url):
        raise AssertionError

    with pytest.raises(
        TypeError, match=r"^breaker must be a plain function, not an async one or a generator"
    ):
        Policy(breaker=later)


def test_a_description_names_the_function_that_is_asked():
    budgets = Registry(TokenBudget, name="budgets")
    made = Policy(budget=budgets.by(by_host), breaker=by_host, throttle=by_host, bulkhead=by_host)
    lines = made.describe().splitlines()
    assert [line for line in lines if line.startswith("Asks")] == [
        "Asks budgets.by(by_host) for the budget of each call.",
        "Asks by_host for the breaker of each call.",
        "Asks by_host for the throttle of each call.",
        "Asks by_host for the bulkhead of each call.",
    ]
    assert "server hints and guards" in lines[-1]
    assert "budget" not in made.replace(attempts=1).describe()


def test_lint_takes_a_function_for_the_guard_that_it_gives():
    assert Policy(attempts=50, budget=by_host, deadline=60.0).lint() == ()
    assert Policy(budget=by_host).lint() == ()


def test_a_policy_prints_and_compares_the_functions():
    breakers = Registry(CircuitBreaker, name="breakers")
    assert repr(Policy(breaker=breakers.by(by_host))) == "Policy(breaker=breakers.by(by_host))"
    assert Policy(breaker=breakers.by(by_host)) == Policy(breaker=breakers.by(by_host))
    assert Policy(breaker=by_host) != Policy(breaker=len)


@pytest.mark.parametrize("field", GUARDS)
def test_a_policy_with_a_plain_function_pickles_and_one_with_a_registry_names_the_field(field):
    made = Policy(**{field: by_host})
    assert pickle.loads(pickle.dumps(made)) == made
    with pytest.raises(TypeError, match=rf"cannot pickle a policy whose {field} exists only in this process"):
        pickle.dumps(Policy(**{field: Registry(str).by(by_host)}))


def test_a_function_is_none_of_the_guards_that_must_be_awaited():
    assert Policy(breaker=mock.Mock(is_async=True), budget=by_host)._awaited() == []


def test_presets_and_mappings_take_a_function():
    assert presets.standard(budget=by_host).budget is by_host
    assert Policy.from_mapping({"attempts": 3}).replace(breaker=by_host).breaker is by_host


def test_only_guards_are_watched_and_not_the_functions_that_choose_them():
    counters = Counters()
    made = Policy(budget=by_host, breaker=CircuitBreaker(name="payments"))
    counters.watch(made)
    assert counters.snapshot().breakers == {"payments": "closed"}
    assert counters.snapshot().budgets == {}


def test_a_hedge_takes_a_budget_only():
    with pytest.raises(TypeError, match=r"^budget must be a Budget \(from redouble\.budget\), got <function"):
        hedge(after=1.0, budget=by_host)


@pytest.mark.parametrize("field", ["budget", "breaker"])
def test_a_simulated_call_has_no_arguments_to_choose_a_guard_by(field):
    with pytest.raises(ValueError, match=rf"policy must not have {field} in a simulation"):
        Strategy("mine", Policy(**{field: by_host}))
    strategy = Strategy("mine", Policy(), **{field: lambda clock: by_host})
    with pytest.raises(TypeError, match=rf"^{field} must be a "):
        strategy.policies(1, FakeClock(), mock.Mock(spec=["uniform", "random"]))
