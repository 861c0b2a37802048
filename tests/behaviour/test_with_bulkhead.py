"""Calls with a bulkhead."""

from __future__ import annotations

import asyncio
import threading

import pytest

from conftest import loop_time
from redouble import (
    BulkheadFull,
    DeadlineExceeded,
    Policy,
    retrying,
)
from redouble.backoff import fixed
from redouble.breaker import CircuitBreaker
from redouble.bulkhead import Bulkhead
from support.guarded import SLOW, SlowQueue, Turnstile, half_open, slow_page, told


def test_a_call_has_its_slot_from_its_first_attempt_to_its_end_waits_included(flavour, policy, clock):
    bulkhead = Bulkhead(1)
    seen = []

    def sleep(seconds):
        seen.append(bulkhead.under_way)

    function = flavour.scripted(SLOW, SLOW, "page")
    assert flavour.call(policy.replace(bulkhead=bulkhead, sleep=sleep), function) == "page"
    assert seen == [1, 1]
    assert bulkhead.under_way == 0


@pytest.mark.parametrize("outcome", [KeyError("k"), SLOW, "page"], ids=repr)
def test_a_slot_is_free_again_however_the_call_ends(flavour, policy, outcome):
    bulkhead = Bulkhead(1)
    try:
        flavour.call(policy.replace(bulkhead=bulkhead, attempts=1), flavour.scripted(outcome))
    except Exception:
        pass
    assert bulkhead.under_way == 0


def test_a_slot_is_free_again_after_an_interrupt(policy):
    bulkhead = Bulkhead(1)

    def fetch():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        policy.replace(bulkhead=bulkhead).call(fetch)
    assert bulkhead.under_way == 0


def test_a_full_bulkhead_refuses_a_call_before_anything_is_called(flavour, policy, heard):
    bulkhead = Bulkhead(1, name="reports")
    assert bulkhead.acquire()
    function = flavour.scripted("page")
    with pytest.raises(BulkheadFull, match="reports"):
        flavour.call(policy.replace(bulkhead=bulkhead), function)
    assert function.calls == []
    assert told(heard) == [("Refused", "bulkhead")]
    assert bulkhead.under_way == 1


def test_time_in_the_queue_counts_against_the_deadline(virtual):
    bulkhead = Bulkhead(1, queue=5)
    policy = Policy(bulkhead=bulkhead, deadline=5.0, clock=loop_time)

    async def main():
        assert await bulkhead.acquire_async()
        before = loop_time()
        with pytest.raises(DeadlineExceeded) as caught:
            await policy.call(asyncio.sleep, 1.0)
        assert loop_time() - before == pytest.approx(5.0)
        assert caught.value.attempts == 0
        bulkhead.release()
        assert bulkhead.snapshot() == (0, 0)

    virtual(main)


def test_who_waits_in_the_queue_gets_the_next_slot(virtual):
    bulkhead = Bulkhead(2, queue=2)
    policy = Policy(bulkhead=bulkhead, clock=loop_time)

    async def main():
        ends = []

        async def work(number):
            await asyncio.sleep(1.0)
            ends.append((number, loop_time()))

        calls = [policy.call(work, number) for number in range(5)]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(outcome).__name__ for outcome in outcomes] == ["NoneType"] * 4 + ["BulkheadFull"]
        assert ends == [(0, 1.0), (1, 1.0), (2, 2.0), (3, 2.0)]

    virtual(main)


def test_a_sync_call_does_not_queue_where_it_would_block_an_event_loop():
    bulkhead = Bulkhead(1, queue=5)

    async def main():
        assert bulkhead.acquire()
        with pytest.raises(BulkheadFull):
            Policy(bulkhead=bulkhead).call(lambda: "page")

    asyncio.run(main())


def test_a_sync_call_waits_in_the_queue_of_threads():
    bulkhead = Bulkhead(1, queue=1)
    assert bulkhead.acquire()
    results = []
    thread = threading.Thread(target=lambda: results.append(Policy(bulkhead=bulkhead).call(lambda: "page")))
    thread.start()
    while not bulkhead.waiting:
        pass
    bulkhead.release()
    thread.join(60)
    assert results == ["page"]


@pytest.mark.parametrize(
    "guards", [{"bulkhead": Bulkhead(1)}, {"breaker": CircuitBreaker()}], ids=["bulkhead", "breaker"]
)
def test_a_plain_function_that_gives_a_coroutine_is_guarded_while_it_is_awaited(guards, policy):
    seen = []

    async def work():
        seen.append(guards["bulkhead"].under_way if "bulkhead" in guards else None)
        if len(seen) < 2:
            raise SLOW
        return "page"

    async def main():
        coroutine = policy.replace(**guards)(lambda: work())()
        if "bulkhead" in guards:
            assert guards["bulkhead"].under_way == 0
        return await coroutine

    assert asyncio.run(main()) == "page"
    assert seen == ([1, 1] if "bulkhead" in guards else [None, None])
    if "bulkhead" in guards:
        assert guards["bulkhead"].under_way == 0


def test_a_coroutine_for_which_there_is_no_slot_any_more_is_closed_and_refused(policy):
    bulkhead = Bulkhead(1)

    async def work():
        raise AssertionError("never started")

    async def main():
        coroutine = policy.replace(bulkhead=bulkhead)(lambda: work())()
        assert bulkhead.acquire()
        with pytest.raises(BulkheadFull):
            await coroutine

    asyncio.run(main())


@pytest.mark.parametrize("library", ["asyncio", "trio"])
def test_an_async_block_that_is_cancelled_in_its_wait_gives_its_slot_back_at_once(library):
    bulkhead = Bulkhead(1)
    policy = Policy(bulkhead=bulkhead, base=5.0, backoff=fixed, on=ValueError)

    async def work():
        async for attempt in retrying(policy):
            async with attempt:
                raise ValueError

    async def on_asyncio():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await work()
        return bulkhead.under_way

    async def on_trio():
        with trio.move_on_after(0.01):
            await work()
        return bulkhead.under_way

    if library == "asyncio":
        assert asyncio.run(on_asyncio()) == 0
    else:
        trio = pytest.importorskip("trio")
        assert trio.run(on_trio) == 0


def test_a_generator_cannot_have_a_slot_in_a_bulkhead_that_it_would_leave_too_early(policy):
    with pytest.raises(
        TypeError, match="a generator, which is still in flight when it has yielded its first item"
    ):

        @policy.replace(bulkhead=Bulkhead(1))
        def items():
            yield 1


def test_a_plain_function_whose_coroutine_finds_no_slot_gives_its_probe_back(policy, clock):
    breaker, bulkhead = half_open(clock), Bulkhead(1)

    async def main():
        coroutine = policy.replace(breaker=breaker, bulkhead=bulkhead)(lambda: slow_page())()
        assert bulkhead.acquire()
        with pytest.raises(BulkheadFull):
            await coroutine
        assert not breaker.refuses()

    asyncio.run(main())


def test_a_coroutine_that_finds_no_slot_at_a_later_attempt_ends_with_one_event_and_the_story(policy, heard):
    bulkhead = Bulkhead(1)
    calls = []

    def fetch():
        calls.append(1)
        if len(calls) == 1:
            raise SLOW
        return slow_page()

    async def main():
        coroutine = policy.replace(bulkhead=bulkhead)(fetch)()
        assert bulkhead.acquire()
        with pytest.raises(BulkheadFull) as caught:
            await coroutine
        return caught.value

    error = asyncio.run(main())
    assert "attempt 1: TimeoutError: slow" in error.__notes__[0]
    assert told(heard) == [("Retrying", None), ("GaveUp", "bulkhead")]


def test_who_comes_out_of_the_queue_too_late_takes_no_turn(flavour, policy, clock):
    bulkhead, throttle, function = SlowQueue(clock), Turnstile(0.25), flavour.scripted("page")
    with pytest.raises(DeadlineExceeded):
        flavour.call(policy.replace(bulkhead=bulkhead, throttle=throttle, deadline=5.0), function)
    assert (function.calls, throttle.waits, bulkhead.under_way) == ([], [0.25], 0)
    assert bulkhead.limits == [5.0]
