"""Plain functions that return awaitables: an async driver takes their calls over."""

from __future__ import annotations

import asyncio
import contextvars

import pytest

from redouble import CircuitOpen, Policy, current_attempt
from redouble._engine import flow
from redouble.breaker import CircuitBreaker
from redouble.budget import TokenBudget
from redouble.bulkhead import Bulkhead
from redouble.testing import scripted
from support.guarded import SLOW

VARIANTS = {
    "plain": {},
    "guarded": {"budget": TokenBudget()},
    "timed": {"deadline": 60.0},
    "full": {"bulkhead": Bulkhead(1)},
    "full and timed": {"deadline": 60.0, "bulkhead": Bulkhead(1)},
}


def number():
    attempt = current_attempt()
    return None if attempt is None else attempt.number


@pytest.mark.parametrize("fields", VARIANTS.values(), ids=VARIANTS)
def test_an_inner_call_that_was_given_up_before_the_awaitable_was_made_is_not_made_again(policy, fields):
    inner = policy.replace(name="inner", attempts=2)(scripted(then=TimeoutError("slow")))
    calls = []

    async def rest(error):
        raise error

    def fetch():
        calls.append("fetch")
        try:
            return inner()
        except TimeoutError as error:
            return rest(error)

    async def main():
        await policy.replace(**fields)(fetch)()

    with pytest.raises(TimeoutError) as caught:
        asyncio.run(main())
    assert calls == ["fetch"]
    assert "not retried by fetch: already retried by inner (2 attempts)" in caught.value.__notes__[0]


@pytest.mark.parametrize("variant", ["timed", "full and timed"])
def test_an_attempt_is_current_before_its_awaitable_is_made_and_while_that_is_awaited(policy, variant):
    copies, seen = [], []

    async def rest():
        seen.append(number())

    def fetch():
        seen.append(number())
        copies.append(contextvars.copy_context())
        return rest()

    async def main():
        waiting = policy.replace(**VARIANTS[variant])(fetch)()
        seen.append(copies[0].run(number))
        await waiting
        seen.append(copies[0].run(number))

    asyncio.run(main())
    assert seen == [1, None, 1, None]


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_waits_of_a_call_that_was_handed_over_do_not_block_the_loop(
    virtual, monkeypatch, caplog, variant
):
    monkeypatch.setattr(flow, "_warned", set())
    fetch = scripted(SLOW, "page", asynchronous=True)

    async def main():
        return await Policy(**VARIANTS[variant])(lambda: fetch())()

    assert virtual(main) == "page"
    assert [message for message in caplog.messages if "blocks all tasks" in message] == []


def test_an_awaitable_that_a_circuit_refuses_after_all_has_no_ticket_to_give_back(policy, clock):
    released = []

    class Watched(CircuitBreaker):
        def release(self, ticket=None):
            released.append(ticket)

    breaker = Watched(clock=clock)

    async def rest():
        raise AssertionError("never started")

    def fetch():
        breaker.open()
        return rest()

    async def main():
        await policy.replace(breaker=breaker, deadline=60.0)(fetch)()

    with pytest.raises(CircuitOpen):
        asyncio.run(main())
    assert released == []
