"""First attempts and what comes right after them, whichever way a policy makes them."""

from __future__ import annotations

import asyncio
import sys
import time

import pytest

from redouble import Policy, current_attempt, retry, retrying
from redouble._engine import flow
from redouble.backoff import fixed
from redouble.breaker import Breaker, CircuitBreaker
from redouble.budget import TokenBudget
from redouble.bulkhead import Bulkhead
from redouble.context import outgoing_headers
from redouble.events import GaveUp
from redouble.testing import scripted
from support.guarded import SLOW, Turnstile, half_open


class Asked(Breaker):
    """A breaker of the user's own, which every attempt asks, and which grants it."""

    def __init__(self):
        super().__init__("asked")

    def enter(self, listeners=()):
        return 7

    def success(self, ticket=None, listeners=()):
        pass

    def failure(self, ticket=None, error=None, listeners=()):
        pass

    def release(self, ticket=None):
        pass

    def refuses(self):
        return False


@pytest.fixture
def waits(monkeypatch):
    """Waits that a policy without a `sleep` has made, which take no time."""
    made = []

    async def sleep(seconds):
        made.append(seconds)

    monkeypatch.setattr(time, "sleep", made.append)
    monkeypatch.setattr(asyncio, "sleep", sleep)
    return made


# Guards


@pytest.mark.parametrize("fields", [{}, {"deadline": 60.0}, {"bulkhead": Bulkhead(1)}], ids=str)
def test_a_closed_circuit_is_not_asked_since_there_is_a_ticket(flavour, policy, clock, fields):
    entered = []

    class Watched(CircuitBreaker):
        def enter(self, listeners=()):
            entered.append("entered")
            return super().enter(listeners)

    guarded = policy.replace(breaker=Watched(clock=clock), **fields)
    assert flavour.call(guarded, flavour.scripted(SLOW, "page")) == "page"
    assert entered == []


@pytest.mark.parametrize(
    "fields",
    [{}, {"breaker": CircuitBreaker()}, {"budget": TokenBudget()}],
    ids=["none", "breaker", "budget"],
)
def test_a_first_attempt_without_a_limit_of_its_own_is_made_after_the_deadline_around_it(
    flavour, policy, clock, fields
):
    runs, guarded = [], policy.replace(**fields)
    with retrying(deadline=1.0, clock=clock, sleep=clock.sleep):
        clock.advance(2.0)
        flavour.block(guarded, lambda attempt: runs.append("block"))
        assert flavour.call(guarded, flavour.scripted("page")) == "page"
    assert runs == ["block"]


@pytest.mark.parametrize("breaker", [Asked(), "half-open"], ids=["own", "half-open"])
@pytest.mark.parametrize("fields", [{}, {"deadline": 60.0}, {"bulkhead": Bulkhead(1)}], ids=str)
def test_nothing_is_said_of_a_breaker_that_was_asked_and_has_let_the_attempts_through(
    flavour, policy, clock, caplog, breaker, fields
):
    guard = half_open(clock) if breaker == "half-open" else breaker
    assert flavour.call(policy.replace(breaker=guard, **fields), flavour.scripted("page")) == "page"
    assert [message for message in caplog.messages if "failed" in message] == []


@pytest.mark.parametrize("fields", [{}, {"deadline": 60.0}, {"bulkhead": Bulkhead(1)}], ids=str)
def test_an_async_call_that_asks_its_breaker_first_waits_without_blocking_the_loop(
    virtual, monkeypatch, caplog, fields
):
    monkeypatch.setattr(flow, "_warned", set())
    fetch = scripted(SLOW, "page", asynchronous=True)

    async def main():
        return await Policy(breaker=Asked(), **fields).call(fetch)

    assert virtual(main) == "page"
    assert [message for message in caplog.messages if "blocks all tasks" in message] == []


def test_a_throttle_is_asked_before_each_attempt_in_real_time_too(flavour, waits):
    throttle = Turnstile(0.25, 0.0, 0.5, 0.0)
    policy = Policy(throttle=throttle, backoff=fixed)
    assert flavour.call(policy, flavour.scripted(SLOW, "page")) == "page"
    assert waits == [0.25, 1.0, 0.5]


def test_a_cancellation_that_comes_from_a_guard_meets_the_attempt_that_the_guard_lets_through(virtual):
    class Cancelling(Asked):
        asked = 0

        def enter(self, listeners=()):
            self.asked += 1
            if self.asked == 2:
                asyncio.current_task().cancel()

    calls = []

    async def fetch():
        calls.append("fetch")
        if len(calls) == 1:
            raise TimeoutError("slow")
        try:
            await asyncio.sleep(60)
        finally:
            calls.append("cleaned up")

    async def main():
        await Policy(breaker=Cancelling()).call(fetch)

    with pytest.raises(asyncio.CancelledError):
        virtual(main)
    assert calls == ["fetch", "fetch", "cleaned up"]


# Sync calls and event loops


@pytest.mark.parametrize("fields", [{}, {"deadline": 60.0}], ids=str)
def test_a_sync_call_goes_on_in_a_task_that_is_to_be_cancelled(quick, fields):
    calls = []

    def fetch():
        calls.append("fetch")
        if len(calls) == 1:
            asyncio.current_task().cancel()
            raise TimeoutError("slow")
        return "page"

    async def main():
        calls.append(quick.replace(**fields).call(fetch))
        await asyncio.sleep(0)

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(main())
    assert calls == ["fetch", "fetch", "page"]


def test_a_process_without_asyncio_waits_for_its_retries(monkeypatch, waits):
    fetch = retry(backoff=fixed)(scripted(SLOW, "page"))
    monkeypatch.delitem(sys.modules, "asyncio")
    assert fetch() == "page"
    assert waits == [1.0]


# Contexts


def test_a_first_attempt_in_real_time_knows_what_one_on_another_clock_knows(flavour):
    def look():
        attempt = current_attempt()
        return attempt.number, attempt.previous, attempt.idempotency_key, outgoing_headers()

    number, previous, key, headers = flavour.call(Policy(deadline=60.0), flavour.function(look))
    assert (number, previous, key) == (1, None, None)
    assert 59_000 < int(headers.pop("X-Request-Timeout-Ms")) <= 60_000
    assert headers == {"X-Retry-Attempt": "1"}


def test_a_first_attempt_in_real_time_sends_its_key(flavour):
    orders = Policy(deadline=60.0, idempotency_key=lambda: "17", name="orders")
    assert flavour.call(orders, flavour.function(outgoing_headers))["Idempotency-Key"] == "orders:17"


def test_a_first_attempt_in_real_time_ends_with_the_deadline_around_it(flavour):
    def remaining():
        return current_attempt().remaining

    with retrying(deadline=5.0):
        assert flavour.call(Policy(deadline=60.0), flavour.function(remaining)) <= 5.0


def test_a_success_within_a_deadline_reads_the_clock_no_more_often_than_it_must(flavour):
    readings = []

    def clock():
        readings.append(5.0)
        return 5.0

    assert flavour.call(Policy(deadline=60.0, clock=clock), flavour.scripted("page")) == "page"
    # An async attempt is also cut off when the time is up.
    assert len(readings) == (2 if flavour.is_async else 1)


def test_a_first_attempt_without_a_context_leaves_a_scope_open_that_it_has_opened(flavour, policy):
    scopes = []

    def opens():
        scopes.append(retrying(deadline=60.0))
        scopes[0].__enter__()

    decorated = policy.replace(bulkhead=Bulkhead(1))(flavour.function(opens))

    def look():
        headers = outgoing_headers()
        scopes[0].__exit__(None, None, None)
        return headers

    async def main():
        await decorated()
        return look()

    def plain():
        decorated()
        return look()

    assert "X-Request-Timeout-Ms" in flavour.run(main if flavour.is_async else plain)
    assert outgoing_headers() == {}


# `until`


@pytest.mark.parametrize("fields", [{}, {"deadline": 60.0}, {"bulkhead": Bulkhead(1)}], ids=str)
def test_an_until_that_raises_at_the_first_attempt_ends_the_call_without_an_event(
    flavour, policy, heard, fields
):
    def until(result):
        raise LookupError("cannot tell")

    with pytest.raises(LookupError):
        flavour.call(policy.replace(until=until, **fields), flavour.scripted("page"))
    assert heard == []


def test_the_event_of_an_until_that_raises_counts_the_time_of_the_last_attempt(flavour, policy, clock, heard):
    def fetch():
        clock.advance(3.0)
        return len(heard)

    def until(result):
        if result:
            raise LookupError("cannot tell")
        return False

    with pytest.raises(LookupError):
        flavour.call(policy.replace(until=until), flavour.function(fetch))
    assert type(heard[-1]) is GaveUp
    assert heard[-1].elapsed == 4.0
