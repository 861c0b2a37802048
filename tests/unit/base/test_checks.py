"""Argument validation: what each check returns, and that errors name the argument, the rule and the value."""

from __future__ import annotations

import sys
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from random import Random

import pytest

from redouble._base import checks
from redouble.breaker import CircuitBreaker
from redouble.budget import TokenBudget
from redouble.registry import Registry

INF = float("inf")


class Indexed:
    def __index__(self):
        return 3


def sync(*args):
    return args


async def coroutine():
    pass


@pytest.mark.parametrize(
    ("check", "value", "stored"),
    [
        (checks.number, 2, 2.0),
        (checks.number, Fraction(1, 2), 0.5),
        (checks.number, Decimal("0.25"), 0.25),
        (checks.above_zero, 0.5, 0.5),
        (checks.attempts, Indexed(), 3),
        (checks.integer, -3, -3),
        (checks.seconds, timedelta(minutes=1), 60.0),
        (checks.seconds, 0, 0.0),
        (checks.seconds_or_inf, INF, INF),
        (checks.seconds_or_inf, 3, 3.0),
        (checks.some_seconds, 1, 1.0),
        (checks.text, "a", "a"),
        (checks.function, coroutine, coroutine),
        (checks.sync_function, sync, sync),
        (checks.switch, False, False),
        (checks.switch, sync, sync),
        (checks.listeners, iter([sync]), (sync,)),
        (checks.anything, None, None),
        (checks.optional(checks.text), None, None),
        (checks.optional(checks.text), "a", "a"),
        (checks.one_of(True, "x"), "x", "x"),
    ],
)
def test_a_check_returns_what_is_stored(check, value, stored):
    found = check("field", value)
    assert found == stored
    assert type(found) is type(stored)


def test_a_guard_is_checked_without_importing_its_module(monkeypatch):
    budget = TokenBudget()
    assert checks.guard("budget", budget) is budget
    with pytest.raises(TypeError, match=r"^budget must be a Budget \(from redouble\.budget\), got 3$"):
        checks.guard("budget", 3)
    monkeypatch.delitem(sys.modules, "redouble.bulkhead", raising=False)
    with pytest.raises(TypeError, match=r"^bulkhead must be a Bulkhead \(from redouble\.bulkhead\), got 3$"):
        checks.guard("bulkhead", 3)
    assert "redouble.bulkhead" not in sys.modules


@pytest.mark.parametrize("wrong", [3, object(), TokenBudget, TokenBudget(), Registry(str)])
def test_a_wrong_guard_a_class_and_what_cannot_be_called_are_refused_in_place_of_a_function(wrong):
    expected = (
        "breaker must be a Breaker (from redouble.breaker), or a function of the call's arguments that "
        f"returns one, got {wrong!r}"
    )
    with pytest.raises(TypeError) as caught:
        checks.guard_or_function("breaker", wrong)
    assert str(caught.value) == expected


def test_a_guard_is_recognised_before_a_function_since_guards_are_callable():
    breaker = CircuitBreaker()
    assert callable(breaker)
    assert checks.guard_or_function("breaker", breaker) is breaker
    assert checks.guard_or_function("breaker", len) is len
    assert (checks.is_guard(breaker), checks.is_guard(len)) == (True, False)


def test_an_async_function_is_refused_in_place_of_a_guard():
    async def choose():
        raise AssertionError

    with pytest.raises(
        TypeError, match=r"^breaker must be a plain function, not an async one or a generator"
    ):
        checks.guard_or_function("breaker", choose)


def test_a_random_source_is_stored_as_it_is():
    source = Random()
    assert checks.generator("rng", source) is source


@pytest.mark.parametrize(
    ("check", "value", "error", "rule"),
    [
        (checks.number, True, ValueError, "a number, not a bool"),
        (checks.number, "1", TypeError, "a number"),
        (checks.number, float, TypeError, "a number"),
        (checks.number, -1, ValueError, "finite and not negative"),
        (checks.number, float("nan"), ValueError, "finite and not negative"),
        (checks.number, 10**400, ValueError, "finite and not negative"),
        (checks.above_zero, 0, ValueError, "above 0"),
        (checks.attempts, 0, ValueError, "at least 1"),
        (checks.attempts, 2.5, ValueError, "a whole number"),
        (checks.attempts, INF, ValueError, "a whole number"),
        (checks.attempts_or_inf, -INF, ValueError, "a whole number"),
        (checks.limit, -INF, ValueError, "finite and not negative"),
        (checks.attempts, "2", TypeError, "a whole number"),
        (checks.attempts, True, ValueError, "a whole number, not a bool"),
        (checks.seconds, INF, ValueError, "finite and not negative"),
        (checks.some_seconds, 0, ValueError, "above 0 seconds (None for no limit)"),
        (checks.text, "", TypeError, "a text that is not empty"),
        (checks.function, 3, TypeError, "a function"),
        (checks.sync_function, coroutine, TypeError, "a plain function, not an async one or a generator"),
        (checks.switch, 1, TypeError, "True, False or a function"),
        (checks.listeners, 3, TypeError, "a list of functions"),
        (checks.generator, Random, TypeError, "a random.Random"),
        (checks.one_of(True, False), 1, ValueError, "one of True, False"),
    ],
)
def test_an_error_names_the_argument_the_rule_and_the_value(check, value, error, rule):
    with pytest.raises(error) as caught:
        check("field", value)
    assert str(caught.value) == f"field must be {rule}, got {value!r}"


def test_a_single_listener_is_an_error_that_says_what_to_write():
    with pytest.raises(TypeError, match=r"^listeners must be a list of functions: write \[<function sync"):
        checks.listeners("listeners", sync)


def test_too_few_attempts_are_an_error_that_says_how_they_are_counted():
    with pytest.raises(ValueError, match=r"^attempts must be at least 1 \(the first call counts\), got 0$"):
        checks.attempts("attempts", 0)
