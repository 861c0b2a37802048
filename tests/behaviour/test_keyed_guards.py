"""Calls whose guards a function of the call's arguments chooses."""

from __future__ import annotations

import asyncio
import logging
from urllib.parse import urlsplit

import pytest

from redouble import CircuitOpen, Policy, retry, retrying
from redouble._engine.guarding import GuardPass
from redouble.breaker import Breaker, CircuitBreaker
from redouble.budget import Budget, TokenBudget
from redouble.bulkhead import Bulkhead
from redouble.errors import BulkheadFull
from redouble.registry import Registry
from redouble.testing import retries_disabled
from support.guarded import SLOW, Interrupt, Turnstile, told


def host(url, **_):
    return urlsplit(url).hostname


class Hosts:
    """A service for each host, and the function that calls them: those that are down fail."""

    def __init__(self, flavour, *down):
        self.down, self.urls = {*down}, []
        self.fetch = flavour.function(self.get)

    def get(self, url):
        self.urls.append(url)
        if host(url) in self.down:
            raise TimeoutError(f"{host(url)} is slow")
        return "page"


@pytest.fixture
def breakers(clock):
    return Registry(lambda key: CircuitBreaker(failures=2, name=key, clock=clock), name="breakers")


def test_the_open_circuit_of_one_host_does_not_refuse_another(flavour, policy, breakers):
    hosts = Hosts(flavour, "a.example")
    fetch = policy.replace(breaker=breakers.by(host), attempts=2)(hosts.fetch)
    with pytest.raises(TimeoutError):
        flavour.run(fetch, "https://a.example/1")
    with pytest.raises(CircuitOpen, match=r"the circuit of a\.example is open"):
        flavour.run(fetch, "https://a.example/2")
    assert flavour.run(fetch, "https://b.example/") == "page"
    assert [str(breakers[key].state) for key in ("a.example", "b.example")] == ["open", "closed"]
    assert hosts.urls == ["https://a.example/1", "https://a.example/1", "https://b.example/"]


def test_a_guard_is_chosen_once_for_all_attempts_of_a_call_by_its_arguments(flavour, policy):
    asked, budget = [], TokenBudget(capacity=100, cost=5)

    def choose(*args, **kwargs):
        asked.append((args, kwargs))
        return budget

    function = flavour.scripted(SLOW, SLOW, "page")
    assert flavour.call(policy.replace(budget=choose), function, 1, two=2) == "page"
    assert asked == [((1,), {"two": 2})]
    assert len(function.calls) == 3


def test_a_function_may_give_another_guard_for_each_call_and_it_stays_that_of_the_call(
    flavour, policy, clock
):
    made = []

    def choose():
        made.append(CircuitBreaker(failure_rate=1.0, last_calls=10, minimum_calls=10, clock=clock))
        return made[-1]

    guarded = policy.replace(breaker=choose)
    flavour.call(guarded, flavour.scripted(SLOW, "page"))
    flavour.call(guarded, flavour.scripted("page"))
    assert [breaker.counted for breaker in made] == [(2, 1), (1, 0)]


def test_the_retries_of_one_tenant_do_not_spend_the_budget_of_another(flavour, policy):
    budgets = Registry(lambda tenant: TokenBudget(capacity=10, name=tenant))
    guarded = policy.replace(budget=budgets.by(lambda tenant: tenant))
    with pytest.raises(TimeoutError) as caught:
        flavour.call(guarded, flavour.scripted(SLOW, SLOW), "acme")
    assert "the retry budget is spent (acme)" in caught.value.__notes__[0]
    assert flavour.call(guarded, flavour.scripted(TimeoutError(), "page"), "other") == "page"
    assert (budgets["acme"].tokens, budgets["other"].tokens) == (0.0, 10.0)  # and the other's cost is back


def test_a_slot_is_taken_in_the_bulkhead_of_the_key_and_given_back(flavour, policy):
    bulkheads = Registry(lambda key: Bulkhead(1, name=key))
    guarded = policy.replace(bulkhead=bulkheads.by(lambda key: key))
    with bulkheads["a"]:
        with pytest.raises(BulkheadFull, match="a"):
            flavour.call(guarded, flavour.scripted("page"), "a")
        assert flavour.call(guarded, flavour.scripted("page"), "b") == "page"
    assert flavour.call(guarded, flavour.scripted(SLOW, "page"), "a") == "page"
    assert (bulkheads["a"].at_rest, bulkheads["b"].at_rest) == (True, True)


def test_the_throttle_of_the_key_makes_the_first_attempt_wait_and_sees_its_outcome(flavour, policy, clock):
    slow, fast = Turnstile(0.5), Turnstile()
    guarded = policy.replace(throttle=lambda key: {"slow": slow, "fast": fast}[key])
    assert flavour.call(guarded, flavour.scripted("page"), "fast") == "page"
    assert clock.waits == []
    assert flavour.call(guarded, flavour.scripted(SLOW, "page"), "slow") == "page"
    assert clock.waits == [0.5, 1.0]
    assert (fast.outcomes, slow.outcomes) == (["str"], ["TimeoutError", "str"])


def test_none_is_no_guard_for_this_call(flavour, policy, caplog):
    none = dict.fromkeys(("budget", "breaker", "throttle", "bulkhead"), lambda *args: None)
    assert flavour.call(policy.replace(**none), flavour.scripted(SLOW, "page"), 1) == "page"
    with caplog.at_level(logging.WARNING, "redouble"):
        assert not [text for text in caplog.messages if "without" in text]


def test_a_key_of_none_is_no_key(flavour, policy, breakers):
    guarded = policy.replace(breaker=breakers.by(host))
    assert flavour.call(guarded, flavour.scripted("page"), "/relative") == "page"
    assert list(breakers) == []


@pytest.mark.parametrize("field", ["budget", "breaker", "throttle", "bulkhead"])
@pytest.mark.parametrize(
    ("choose", "trouble"),
    [
        (lambda: 1 / 0, "ZeroDivisionError: division by zero"),
        (lambda: 3, "must be a "),
        (lambda: TokenBudget, "got <class 'redouble.budget.TokenBudget'>"),
        (lambda: asyncio.sleep(0), "it returned an awaitable: it must be a plain function"),
        (Registry(str, name="keys").by(list), "unhashable type: 'list'"),
    ],
    ids=["raises", "no guard", "a class", "a coroutine", "a key that cannot be hashed"],
)
def test_a_function_without_an_answer_is_logged_once_and_the_call_goes_on_without_that_guard(
    flavour, caplog, field, choose, trouble
):
    policy = Policy(name="fetch", **{field: choose})
    for _ in range(2):
        assert flavour.call(policy, flavour.scripted("page")) == "page"
    [record] = caplog.records
    assert record.getMessage().startswith(f"fetch is called without a {field}: ")
    assert record.getMessage().endswith(" gave none (said once)")
    assert trouble in record.exc_text


def test_an_interrupt_in_the_function_passes_through(flavour, policy):
    def choose():
        raise Interrupt

    function = flavour.scripted("page")
    with pytest.raises(Interrupt):
        flavour.call(policy.replace(breaker=choose), function)
    assert function.calls == []


class AsyncBreaker(Breaker):
    is_async = True

    def __init__(self):
        super().__init__("remote")
        self.seen = []

    async def enter(self, listeners=()):
        self.seen.append("enter")
        return 7

    async def success(self, ticket=None, listeners=()):
        self.seen.append("success")

    async def failure(self, ticket=None, error=None, listeners=()):
        self.seen.append("failure")


class AsyncBudget(Budget):
    is_async = True

    async def acquire(self, *, timeout=False, priority=0):
        return 0.0

    async def failure(self):
        pass


def test_a_guard_that_must_be_awaited_guards_async_calls_and_is_left_out_of_sync_ones(
    flavour, policy, caplog
):
    remote = AsyncBreaker()
    assert flavour.call(policy.replace(breaker=lambda: remote), flavour.scripted(SLOW, "page")) == "page"
    if flavour.is_async:
        assert remote.seen == ["enter", "failure", "enter", "success"]
    else:
        assert remote.seen == []
        assert "remote must be awaited, and fetch is sync" in caplog.records[0].exc_text


def test_a_budget_that_must_be_awaited_is_asked_for_the_retry(policy):
    async def fetch():
        raise SLOW

    with pytest.raises(TimeoutError) as caught:
        asyncio.run(policy.replace(budget=lambda: AsyncBudget(name="remote")).call(fetch))
    assert "the retry budget is spent (remote)" in caught.value.__notes__[0]


def test_a_plain_function_that_returns_a_coroutine_keeps_the_guard_that_was_chosen(policy, clock):
    asked, bulkhead = [], Bulkhead(1)
    outcomes = [SLOW, "page"]

    async def page(key):
        assert not bulkhead.at_rest
        if isinstance(outcome := outcomes.pop(0), Exception):
            raise outcome
        return outcome

    async def main():
        guarded = policy.replace(bulkhead=lambda key: asked.append(key) or bulkhead)
        return await guarded(lambda key: page(key))("a")

    assert asyncio.run(main()) == "page"
    assert asked == ["a"]
    assert bulkhead.at_rest


def test_generators_are_guarded_by_key_too(policy, breakers):
    asked = []

    def by_host(url):
        asked.append(url)
        return breakers[host(url)]

    guarded = policy.replace(breaker=by_host, attempts=2)

    @guarded
    def lines(url):
        if url.startswith("https://a."):
            raise TimeoutError
        yield from "xy"

    @guarded
    async def later(url):
        if url.startswith("https://a."):
            raise TimeoutError
        yield "x"

    async def collect(url):
        return [item async for item in later(url)]

    with pytest.raises(TimeoutError):
        list(lines("https://a.example/"))
    with pytest.raises(CircuitOpen):
        list(lines("https://a.example/"))
    with pytest.raises(CircuitOpen):
        asyncio.run(collect("https://a.example/"))
    assert list(lines("https://b.example/")) == ["x", "y"]
    assert asyncio.run(collect("https://b.example/")) == ["x"]
    assert len(asked) == 5


def test_a_generator_refuses_a_function_that_gives_bulkheads_as_it_refuses_a_bulkhead():
    with pytest.raises(TypeError, match="put 'with bulkhead:' around the loop"):

        @retry(bulkhead=lambda: None)
        def lines():
            yield


@pytest.mark.parametrize("field", ["budget", "breaker", "throttle", "bulkhead"])
def test_blocks_and_scopes_refuse_a_function_that_chooses_a_guard(field):
    policy = Policy(**{field: lambda url: None})
    expected = (
        f"retrying() has no arguments by which a function could choose its {field}: "
        f"write retrying(..., {field}=registry[key]), or decorate a function with @retry"
    )
    for refused in (lambda: retrying(policy), lambda: retrying(**{field: lambda url: None})):
        with pytest.raises(TypeError) as caught:
            refused()
        assert str(caught.value) == expected


def test_call_and_a_deadline_and_disabled_retries_work_with_a_chosen_guard(flavour, clock, breakers):
    guarded = Policy(breaker=breakers.by(host), deadline=9.0, clock=clock, sleep=clock.sleep)
    function = flavour.scripted(SLOW, "page", SLOW)
    assert flavour.run(lambda: guarded.call(function, "https://a.example/")) == "page"
    with retries_disabled(), pytest.raises(TimeoutError):
        flavour.run(lambda: guarded.call(function, "https://a.example/"))
    assert breakers["a.example"].counted == (1, 1)


def test_methods_are_guarded_by_their_arguments_and_their_object(breakers, clock):
    class Client:
        host = "c.example"

        @retry(breaker=breakers.by(lambda self, path: self.host), clock=clock, sleep=clock.sleep, attempts=2)
        def get(self, path):
            raise TimeoutError(path)

    with pytest.raises(TimeoutError):
        Client().get("/")
    assert breakers["c.example"].state == "open"


def test_a_call_without_functions_reads_the_guards_of_its_policy():
    guards = [TokenBudget(), CircuitBreaker(), Turnstile(), Bulkhead(1)]
    fields = dict(zip(("budget", "breaker", "throttle", "bulkhead"), guards, strict=True))
    given = GuardPass(Policy(**fields))
    assert [getattr(given, field) for field in fields] == guards


def test_a_refused_call_says_so_to_listeners(flavour, policy, breakers, heard):
    breakers["a.example"].failure()
    breakers["a.example"].failure()
    with pytest.raises(CircuitOpen):
        flavour.call(policy.replace(breaker=breakers.by(host)), flavour.scripted("page"), "https://a.example")
    assert told(heard) == [("Refused", "breaker")]
