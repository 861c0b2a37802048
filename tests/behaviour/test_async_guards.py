"""Calls with guards that must be awaited."""

from __future__ import annotations

import asyncio

import pytest

from redouble import (
    CircuitOpen,
    Policy,
    retrying,
)
from support.guarded import SLOW, AsyncBreaker, AsyncBudget, Flavours, told


def test_guards_that_must_be_awaited_are_awaited_in_an_async_call(policy):
    budget, breaker = AsyncBudget(), AsyncBreaker()
    fetch = Flavours.scripted(SLOW, "page")
    assert asyncio.run(policy.replace(budget=budget, breaker=breaker).call(fetch)) == "page"
    assert budget.outcomes == ["failure", ("success", 1.0)]
    assert breaker.told == [("failure", 7), ("success", 7)]


def test_a_budget_that_must_be_awaited_may_refuse(policy, heard):
    budget = AsyncBudget(grants=0)
    with pytest.raises(TimeoutError):
        asyncio.run(policy.replace(budget=budget).call(Flavours.scripted(SLOW)))
    assert told(heard) == [("GaveUp", "budget")]


def test_a_budget_that_must_be_awaited_is_not_asked_where_there_is_no_retry(policy, heard):
    budget = AsyncBudget()
    with pytest.raises(KeyError):
        asyncio.run(policy.replace(budget=budget).call(Flavours.scripted(KeyError("k"))))
    assert budget.grants == 1
    assert told(heard) == [("GaveUp", "not_retryable")]


def test_a_breaker_that_must_be_awaited_may_refuse(policy, heard):
    breaker = AsyncBreaker()
    breaker.told.append("open")
    with pytest.raises(CircuitOpen):
        asyncio.run(policy.replace(breaker=breaker).call(Flavours.scripted("page")))
    assert told(heard) == [("Refused", "breaker")]


def test_guards_that_must_be_awaited_work_in_an_async_block_with_async_with(policy):
    budget, breaker = AsyncBudget(), AsyncBreaker()

    async def main():
        async for attempt in retrying(policy, budget=budget, breaker=breaker):
            async with attempt:
                if attempt.number == 1:
                    raise SLOW
        return attempt.number

    assert asyncio.run(main()) == 2
    assert budget.outcomes == ["failure", ("success", 1.0)]

    async def plain():
        async for attempt in retrying(policy, budget=budget):
            with attempt:
                raise AssertionError

    with pytest.raises(
        TypeError, match="the budget of this policy must be awaited: write 'async with attempt:'"
    ):
        asyncio.run(plain())


def test_guards_that_must_be_awaited_are_refused_in_sync_calls(policy):
    guarded = policy.replace(budget=AsyncBudget())
    with pytest.raises(TypeError, match="is sync, and the budget of its policy must be awaited"):
        guarded(lambda: "page")
    with pytest.raises(TypeError, match="the budget of this policy must be awaited: use 'async for'"):
        for _ in retrying(guarded):
            raise AssertionError


def test_a_cancelled_call_does_not_wait_for_a_guard():
    breaker = AsyncBreaker()

    async def main():
        task = asyncio.ensure_future(Policy(breaker=breaker).call(asyncio.sleep, 60))
        for _ in range(4):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert breaker.told == []
