"""`hedge` on functions of every kind, and its arguments."""

from __future__ import annotations

from functools import partial, partialmethod, wraps

import pytest

import redouble
from redouble import Policy
from redouble.hedging import hedge, quantile
from support.hedging import Ledger, Script


def test_a_plain_function_that_stands_in_for_an_async_one_is_hedged_as_async(virtual):
    async def main():
        script = Script((9.0, "late"), (0.5, "page"))

        async def fetch():
            return await script()

        @hedge(after=1.0)
        @wraps(fetch)
        def passing():
            return fetch()

        assert await passing() == "page"

    virtual(main)


def test_a_plain_function_that_turns_out_to_be_async_is_hedged_from_there_on(virtual):
    async def main():
        script = Script((9.0, "late"), (0.5, "page"))
        budget = Ledger()

        @hedge(after=1.0, budget=budget)
        def fetch():
            return script()

        assert await fetch() == "page"
        assert script.starts == [0.0, 1.0]
        assert budget.log == [("acquire", 0), ("success", 5.0)]

    virtual(main)


def test_a_plain_function_that_gives_another_awaitable_is_hedged_from_there_on(virtual):
    class Request:
        def __init__(self, coroutine):
            self.coroutine = coroutine

        def __await__(self):
            return self.coroutine.__await__()

    async def main():
        script = Script((9.0, "late"), (0.5, "page"))
        assert await hedge(after=1.0)(lambda: Request(script()))() == "page"
        assert script.starts == [0.0, 1.0]

    virtual(main)


def test_methods_of_every_kind_are_hedged():
    class Client:
        @hedge(after=60.0)
        def method(self, page):
            return "method", type(self).__name__, page

        @hedge(after=60.0)
        @classmethod
        def of_class(cls, page):
            return "class", cls.__name__, page

        @staticmethod
        @hedge(after=60.0)
        def below(page):
            return "below", page

        @hedge(after=60.0)
        @staticmethod
        def above(page):
            return "above", page

        @property
        @hedge(after=60.0)
        def name(self):
            return "property"

        home = hedge(after=60.0)(partialmethod(method, "home"))

    client = Client()
    assert client.method("a") == ("method", "Client", "a")
    assert client.of_class("a") == Client.of_class("a") == ("class", "Client", "a")
    assert client.below("a") == ("below", "a")
    assert client.above("a") == ("above", "a")
    assert client.name == "property"
    assert client.home() == ("method", "Client", "home")
    assert hedge(after=60.0)(partial(client.method, "b"))() == ("method", "Client", "b")


def test_the_decorated_function_looks_like_the_function():
    def fetch(url: str) -> str:
        """Fetches."""
        return url

    decorated = hedge(after=1.0)(fetch)
    assert (decorated.__name__, decorated.__doc__, decorated.__wrapped__) == ("fetch", "Fetches.", fetch)
    assert decorated("a") == decorated(url="a") == "a"


def generator():
    yield 1


async def async_generator():
    yield 1


@pytest.mark.parametrize(
    ("thing", "advice"),
    [
        (generator, "cannot hedge generator: a generator is not over when it is called; take a function"),
        (async_generator, "cannot hedge async_generator: a async generator is not over"),
        (Script, "cannot hedge the class Script: decorate the method itself, or"),
        (property(lambda self: 1), "put @hedge below @property"),
        (5, "cannot hedge 5: it is not callable; decorate a function"),
        (None, "cannot hedge None: it is not callable"),
    ],
)
def test_what_cannot_be_hedged_is_refused_with_what_to_do(thing, advice):
    with pytest.raises(TypeError) as caught:
        hedge(after=1.0)(thing)
    assert advice in str(caught.value)


def test_a_sync_function_cannot_have_an_async_budget():
    with pytest.raises(TypeError, match="the budget ledger must be awaited, and <lambda> is sync"):
        hedge(after=1.0, budget=Ledger(is_async=True), name="<lambda>")(lambda: None)


def test_hedging_must_be_asked_for_by_name_and_with_a_delay():
    with pytest.raises(TypeError, match="after"):
        hedge()
    with pytest.raises(TypeError):
        hedge(lambda: None)
    assert not [field for field in Policy._fields if "hedg" in field]
    assert not hasattr(redouble, "hedge")
    assert "idempotent" in hedge.__doc__.splitlines()[0]


WRONG = [
    ({"after": -1}, ValueError, "after must be finite and not negative, got -1"),
    ({"after": float("nan")}, ValueError, "after must be finite"),
    ({"after": float("inf")}, ValueError, "after must be finite"),
    ({"after": True}, ValueError, "after must be a number, not a bool"),
    ({"after": "1"}, TypeError, "after must be a number, got '1'"),
    ({"after": 1, "attempts": 0}, ValueError, "attempts must be at least 1 (the first call counts), got 0"),
    ({"after": 1, "attempts": True}, ValueError, "attempts must be a whole number"),
    ({"after": 1, "budget": 5}, TypeError, "budget must be a Budget (from redouble.budget), got 5"),
    ({"after": 1, "priority": 0.5}, ValueError, "priority must be a whole number"),
    ({"after": 1, "listeners": print}, TypeError, "listeners must be a list of functions"),
    ({"after": 1, "name": ""}, TypeError, "name must be a text"),
    ({"after": 1, "grace": -1}, ValueError, "grace must be finite"),
    ({"after": 1, "max_retry_after": float("nan")}, ValueError, "max_retry_after must be finite"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "kind", "message"), WRONG)
def test_a_wrong_value_is_refused_with_its_name_the_rule_and_the_value(fields, kind, message):
    with pytest.raises(kind) as caught:
        hedge(**fields)
    assert message in str(caught.value)


@pytest.mark.parametrize("q", [0, 1, 1.5, -0.5, float("nan"), True, "0.9"])
def test_a_quantile_takes_a_share_between_0_and_1(q):
    with pytest.raises((ValueError, TypeError), match="q must be"):
        quantile(q, initial=1.0)


@pytest.mark.parametrize(
    "fields",
    [
        {"initial": -1},
        {"initial": float("inf")},
        {"initial": 1, "of_last": 0},
        {"initial": 1, "of_last": 2.5},
    ],
)
def test_a_quantile_refuses_a_window_or_a_delay_that_cannot_be(fields):
    with pytest.raises(ValueError, match="must be"):
        quantile(0.9, **fields)
