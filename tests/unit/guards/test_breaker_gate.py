"""A breaker as decorator and as context manager."""

from __future__ import annotations

import asyncio
import contextlib
import inspect

import pytest

from redouble.errors import CircuitOpen
from support.breakers import (
    CLOSED,
    HALF_OPEN,
    OPEN,
    Excluded,
    fail,
    half_opened,
    make,
    opened,
    raising,
    refused,
)


def test_a_decorated_function_gives_its_results_and_its_errors(clock, flavour):
    breaker = make(clock, failures=2)
    script = flavour.scripted("page", TimeoutError("slow"), TimeoutError("slower"))

    def run():
        return flavour.run(breaker(script), "/", retries=1)

    assert run() == "page"
    for _ in range(2):
        with pytest.raises(TimeoutError):
            run()
    with pytest.raises(CircuitOpen):
        run()
    assert script.calls == [(("/",), {"retries": 1})] * 3


def test_a_decorated_function_keeps_its_name_and_docs(clock):
    @make(clock)
    def fetch(url):
        """Fetches."""

    @make(clock)
    async def fetch_async(url):
        """Fetches, too."""

    assert (fetch.__name__, fetch.__doc__) == ("fetch", "Fetches.")
    assert (fetch_async.__name__, inspect.iscoroutinefunction(fetch_async)) == ("fetch_async", True)
    assert fetch.__wrapped__.__code__.co_varnames == ("url",)


def test_methods_can_be_decorated(clock):
    breaker = make(clock, failures=1)

    class Shop:
        @breaker
        def buy(self, what):
            return self, what

    shop = Shop()
    assert shop.buy("tea") == (shop, "tea")


def test_what_is_not_over_when_it_is_called_is_refused(clock):
    def items():
        yield 1

    async def async_items():
        yield 1

    for function in (items, async_items):
        with pytest.raises(TypeError, match=r"shop cannot guard .*items: an? .*generator is not over"):
            make(clock)(function)


@pytest.mark.parametrize("thing", [3, "fetch", int, None], ids=repr)
def test_only_functions_can_be_decorated(clock, thing):
    with pytest.raises(TypeError, match=r"shop cannot guard .*: decorate a function"):
        make(clock)(thing)


def test_every_way_counts_successes_and_failures(clock, way):
    breaker = make(clock, failure_rate=1.0, minimum_calls=100)
    assert way.run(breaker, lambda: "page") == "page"
    with pytest.raises(TimeoutError):
        way.run(breaker, raising(TimeoutError()))
    with pytest.raises(Excluded):
        way.run(breaker, raising(Excluded()))
    assert breaker.counted == (2, 1)


def test_every_way_ends_a_row_of_failures(clock, way):
    breaker = make(clock)
    fail(breaker)
    way.run(breaker, lambda: None)
    assert breaker.counted == (0, 0)


def test_every_way_is_refused_at_once(clock, way):
    with pytest.raises(CircuitOpen):
        way.run(opened(clock), raising(AssertionError()))


def test_every_way_closes_a_half_open_circuit(clock, way):
    breaker = half_opened(clock)
    way.run(breaker, lambda: None)
    assert breaker.state is CLOSED


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError])
def test_an_interrupt_counts_as_nothing_and_frees_the_slot(clock, way, interrupt):
    breaker = half_opened(clock)
    with pytest.raises(interrupt):
        way.run(breaker, raising(interrupt()))
    assert (breaker.state, breaker.retry_after) == (HALF_OPEN, 0.0)
    way.run(breaker, lambda: None)
    assert breaker.state is CLOSED
    fail(breaker)
    breaker = make(clock, failures=2)
    fail(breaker)
    with pytest.raises(interrupt):
        way.run(breaker, raising(interrupt()))
    assert (breaker.state, breaker.counted) == (CLOSED, (1, 1))


def test_a_cancelled_task_frees_its_slot(clock):
    breaker = half_opened(clock)

    @breaker
    async def hang():
        await asyncio.Event().wait()

    async def main():
        task = asyncio.ensure_future(hang())
        await asyncio.sleep(0)
        refused(breaker)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()

    asyncio.run(main())
    assert (breaker.state, breaker.retry_after) == (HALF_OPEN, 0.0)


def test_a_block_that_is_left_early_went_well(clock):
    breaker = half_opened(clock, successes=2)

    def call():
        with breaker:
            return "found"

    for _ in range(2):
        with breaker:
            break
    assert (breaker.state, breaker.retry_after) == (HALF_OPEN, 0.0)
    assert call() == "found"
    assert breaker.state is CLOSED


def test_a_block_in_a_generator_that_is_closed_frees_its_slot(clock):
    breaker = half_opened(clock)

    def items():
        with breaker:
            yield 1

    found = items()
    next(found)
    refused(breaker)
    found.close()
    assert (breaker.state, breaker.retry_after) == (HALF_OPEN, 0.0)


def test_blocks_of_one_breaker_can_be_nested(clock):
    breaker = half_opened(clock, probes=2, successes=2)
    with breaker as outer:
        with breaker as inner:
            refused(breaker)
        assert breaker.state is HALF_OPEN
    assert outer is inner is breaker
    assert breaker.state is CLOSED


def test_blocks_of_several_breakers_can_be_nested_and_each_gets_its_own_ticket_back(clock):
    one, other = half_opened(clock), make(clock, failures=1)
    with contextlib.suppress(TimeoutError), one:
        with contextlib.suppress(TimeoutError), other:
            raise TimeoutError
    assert (one.state, other.state) == (CLOSED, OPEN)


def test_tasks_that_share_a_breaker_hold_each_its_own_ticket(clock):
    breaker = make(clock)
    entered, go = asyncio.Event(), None

    async def call():
        async with breaker:
            entered.set()
            await go.wait()
            raise TimeoutError

    async def main():
        nonlocal go
        go = asyncio.Event()
        early = asyncio.ensure_future(call())
        await entered.wait()
        breaker.close()  # what began before counts no longer
        late = asyncio.ensure_future(call())
        await asyncio.sleep(0)
        go.set()
        await asyncio.gather(early, late, return_exceptions=True)

    asyncio.run(main())
    assert breaker.counted == (1, 1)


def test_many_tasks_at_once_take_no_more_than_the_slots_there_are(clock):
    breaker = half_opened(clock, probes=3, successes=3)

    @breaker
    async def call():
        await asyncio.sleep(0)
        return "let in"

    async def main():
        return await asyncio.gather(*[call() for _ in range(50)], return_exceptions=True)

    results = asyncio.run(main())
    assert results.count("let in") == 3
    assert sum(isinstance(result, CircuitOpen) for result in results) == 47
    assert breaker.state is CLOSED


def test_a_block_that_ends_in_another_context_counts_as_well(clock):
    import contextvars

    breaker = half_opened(clock)
    contextvars.copy_context().run(breaker.__enter__)
    contextvars.copy_context().run(breaker.__exit__, None, None, None)
    assert breaker.state is CLOSED
