"""`Registry.by`: a function of a call's arguments that returns the guard of their key."""

from __future__ import annotations

import copy
import pickle

import pytest

from redouble.budget import TokenBudget
from redouble.registry import Registry


@pytest.fixture
def budgets():
    return Registry(lambda tenant: TokenBudget(name=tenant), name="budgets")


def tenant_of(order, *, tenant=None):
    return tenant or order["tenant"]


def test_the_guard_is_that_of_the_key_which_the_function_makes_of_the_arguments(budgets):
    by_tenant = budgets.by(tenant_of)
    assert by_tenant({"tenant": "a"}) is budgets["a"]
    assert by_tenant({"tenant": "a"}, tenant="b") is budgets["b"]
    assert list(budgets) == ["a", "b"]


def test_no_key_is_no_guard_and_makes_none(budgets):
    assert budgets.by(lambda order: None)(1) is None
    assert list(budgets) == []


def test_an_empty_key_is_a_key():
    budgets = Registry(lambda key: TokenBudget())
    assert budgets.by(lambda order: "")(1) is budgets[""]


def test_a_key_that_cannot_be_hashed_and_an_error_of_the_function_are_raised(budgets):
    with pytest.raises(TypeError, match="unhashable type: 'list'"):
        budgets.by(list)()
    with pytest.raises(KeyError, match="tenant"):
        budgets.by(tenant_of)({})


@pytest.mark.parametrize("key", ["host", None])
def test_the_function_of_the_key_must_be_callable(budgets, key):
    with pytest.raises(TypeError, match="key must be a function, got "):
        budgets.by(key)


def test_the_function_of_the_key_must_be_sync(budgets):
    async def later(order):
        raise AssertionError

    with pytest.raises(TypeError, match="key must be a plain function, not an async one or a generator"):
        budgets.by(later)


def test_it_prints_the_registry_and_the_function(budgets):
    assert repr(budgets.by(tenant_of)) == "budgets.by(tenant_of)"


def test_two_of_one_registry_and_one_function_are_equal_and_hash_alike(budgets):
    assert budgets.by(tenant_of) == budgets.by(tenant_of)
    assert hash(budgets.by(tenant_of)) == hash(budgets.by(tenant_of))
    assert budgets.by(tenant_of) != budgets.by(len)
    assert budgets.by(tenant_of) != Registry(TokenBudget).by(tenant_of)


def test_it_does_not_pickle_and_a_copy_of_it_is_itself_as_with_a_registry(budgets):
    by_tenant = budgets.by(tenant_of)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(TypeError, match=r"budgets \(Registry\) .* cannot be pickled"):
            pickle.dumps(by_tenant, protocol)
    assert copy.copy(by_tenant) is copy.deepcopy(by_tenant) is by_tenant
