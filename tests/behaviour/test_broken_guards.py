"""Calls with guards that raise."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from redouble import (
    Rule,
)
from redouble.breaker import Breaker
from support.guarded import (
    SLOW,
    BrokenBreaker,
    BrokenBudget,
    Flavours,
    Generous,
    Interrupt,
    Turnstile,
    broken,
)


class AsyncBrokenBudget(BrokenBudget):
    is_async = True

    async def acquire(self, *, timeout=False, priority=0):
        raise OSError("store")

    async def success(self, cost=0.0):
        raise OSError("store")

    async def failure(self):
        raise OSError("store")


def test_a_guard_that_raises_hides_neither_a_result_nor_an_error(flavour, policy):
    for guards in ({"budget": BrokenBudget()}, {"breaker": BrokenBreaker()}):
        assert flavour.call(policy.replace(**guards), flavour.scripted("page")) == "page"
        with pytest.raises(KeyError):
            flavour.call(policy.replace(**guards), flavour.scripted(KeyError("k")))
    assert flavour.call(policy.replace(breaker=BrokenBreaker()), flavour.scripted(SLOW, "page")) == "page"


def test_a_budget_that_raises_when_it_is_asked_ends_the_call_with_its_own_error(flavour, policy):
    error = TimeoutError("own")
    with pytest.raises(TimeoutError) as caught:
        flavour.call(policy.replace(budget=BrokenBudget()), flavour.scripted(error))
    assert caught.value is error
    assert "OSError: store" in error.__notes__[0]


def test_an_async_guard_that_raises_hides_neither_a_result_nor_an_error(policy):
    guarded = policy.replace(budget=AsyncBrokenBudget())
    assert asyncio.run(guarded.call(Flavours.scripted("page"))) == "page"
    error = TimeoutError("own")
    with pytest.raises(TimeoutError) as caught:
        asyncio.run(guarded.call(Flavours.scripted(error)))
    assert caught.value is error
    assert "OSError: store" in error.__notes__[0]


class Calm(Breaker):
    """A breaker of the user's own that wants to be asked and told."""

    is_async = False

    def enter(self, listeners=()):
        return 7

    def success(self, ticket=None, listeners=()):
        pass

    def refuses(self):
        return False

    failure = release = success


class Box:
    """Dead letters of the user's own."""

    def put(self, **letter):
        pass

    async def aput(self, **letter):
        self.put(**letter)


def raising(trouble):
    return broken(Box(), "put", trouble).put


USERS = {
    "fallback": (lambda e: {"fallback": raising(e), "attempts": 1}, SLOW),
    "recover": (lambda e: {"rules": {TimeoutError: Rule(recover=raising(e))}}, SLOW),
    "letters": (lambda e: {"dead_letters": broken(Box(), "put", e), "attempts": 1}, SLOW),
    "entry": (lambda e: {"breaker": broken(Calm("calm"), "enter", e)}, "page"),
    "looking on": (lambda e: {"budget": broken(Generous(name="calm"), "success", e)}, "page"),
    "watching": (lambda e: {"budget": broken(Generous(name="calm"), "success", e), "until": bool}, "page"),
}


@pytest.mark.parametrize("whose", USERS)
def test_an_interrupt_in_code_of_the_users_passes_through(flavour, policy, whose):
    fields, outcome = USERS[whose]
    with pytest.raises(Interrupt):
        flavour.call(policy.replace(**fields(Interrupt())), flavour.scripted(outcome))


@pytest.mark.parametrize(
    ("whose", "said"),
    [
        ("entry", "guard calm failed (said once)"),
        ("looking on", "a guard of f failed (said once)"),
        ("watching", "a guard of f failed (said once)"),
    ],
)
def test_a_guard_that_fails_is_named_in_the_log_and_takes_no_part(flavour, policy, caplog, whose, said):
    def f():
        return "page"

    fields, trouble = USERS[whose][0], OSError("store")
    f.__qualname__ = "f"
    assert flavour.call(policy.replace(**fields(trouble)), flavour.function(f)) == "page"
    assert [record.getMessage() for record in caplog.records] == [said]
    assert caplog.records[0].exc_text.endswith("OSError: store")


def test_a_call_without_dead_letters_says_nothing_of_them(flavour, policy, caplog):
    for fields in ({"attempts": 1}, {"deadline": 1.0}, {"attempts": 1, "fallback": "old"}):
        with contextlib.suppress(TimeoutError):
            flavour.call(policy.replace(**fields), flavour.scripted(SLOW))
    assert "dead letter" not in caplog.text


def test_a_dead_letter_that_could_not_be_stored_is_not_tried_again_with_the_fallback(flavour, policy, caplog):
    box = broken(Box(), "put", OSError("disk"))
    kept = policy.replace(dead_letters=box, fallback="old", attempts=1)
    assert flavour.call(kept, flavour.scripted(TimeoutError())) == "old"
    said = "fetch failed for good, and its dead letter could not be stored: OSError: disk"
    assert [record.getMessage() for record in caplog.records].count(said) == 1


def test_a_block_has_no_result_to_show_to_a_throttle(flavour, policy):
    throttle = Turnstile()
    flavour.block(policy.replace(throttle=throttle), lambda attempt: "page")
    assert throttle.outcomes == ["NoneType"]
