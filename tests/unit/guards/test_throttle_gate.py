"""A throttle around a call: decorator and context manager, sync and async."""

from __future__ import annotations

import asyncio
import inspect
import time

import pytest

from conftest import loop_time, watchdog
from redouble.testing import FakeClock, no_waits
from redouble.throttle import AdaptiveThrottle
from support.throttles import Response, TooManyRequests


@pytest.fixture
def throttle(clock):
    return AdaptiveThrottle(clock=clock, sleep=clock.sleep)


def test_a_block_waits_for_its_turn(clock, throttle):
    throttle.throttled()
    with throttle as entered:
        assert entered is throttle
        assert clock.waits == [2.0]
    with throttle:
        pass
    # Two answers in two seconds: 0.8 per second by the smoothed measure, and twice that may be sent.
    assert clock.waits == [2.0, pytest.approx(1 / 1.6)]


def test_an_async_block_waits_for_its_turn(virtual):
    throttle = AdaptiveThrottle(clock=loop_time)

    async def main():
        throttle.throttled()
        async with throttle as entered:
            assert entered is throttle
            return loop_time()

    assert virtual(main) == pytest.approx(2.0)


def test_a_block_reports_how_it_ended(clock, throttle):
    with throttle:
        clock.now = 1.0
    assert throttle.measured_rate == pytest.approx(0.8)
    assert not throttle.active
    error = TooManyRequests()
    with pytest.raises(TooManyRequests) as caught:
        with throttle:
            raise error
    assert caught.value is error
    assert throttle.active


def test_a_decorated_function_waits_and_reports(flavour, clock, throttle):
    error = TooManyRequests()
    fetch = throttle(flavour.scripted(error, "page"))
    with pytest.raises(TooManyRequests) as caught:
        flavour.run(fetch, "/")
    assert caught.value is error
    assert throttle.active
    assert flavour.run(fetch, "/") == "page"
    assert clock.waits == [2.0]
    assert throttle.measured_rate == pytest.approx(0.8 * 2 / 2.0)  # each answer counted once


def test_a_429_that_is_returned_counts_like_one_that_is_raised(flavour, clock, throttle):
    fetch = throttle(flavour.scripted(Response(200), Response(429), Response(200)))
    assert flavour.run(fetch).status_code == 200
    assert not throttle.active
    assert flavour.run(fetch).status_code == 429
    assert throttle.active
    assert flavour.run(fetch).status_code == 200
    assert clock.waits == [2.0]
    assert throttle.measured_rate == pytest.approx(0.8 * 3 / 2.0)


def test_complaining_by_hand_in_a_block_is_not_undone_by_its_end(clock, throttle):
    clock.now = 10.0
    throttle._meter = 0.0, 0, 10.0
    with throttle:
        throttle.throttled()
        rate = throttle.rate
    assert throttle.rate == pytest.approx(rate)


def test_a_decorated_function_keeps_its_name_and_its_flavour(throttle):
    @throttle
    async def fetch(url):
        """Gets it."""

    assert (fetch.__name__, fetch.__doc__) == ("fetch", "Gets it.")
    assert inspect.iscoroutinefunction(fetch)


@pytest.mark.parametrize("thing", [Response, 42, lambda: (yield)], ids=["class", "number", "generator"])
def test_what_is_no_function_cannot_be_decorated(throttle, thing):
    with pytest.raises(TypeError, match="cannot guard"):
        throttle(thing)


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError])
def test_an_interrupt_in_the_call_passes_and_reports_nothing(throttle, interrupt):
    throttle.acquire()
    before = throttle._meter, throttle._bucket, throttle.active

    @throttle
    def decorated():
        raise interrupt

    with pytest.raises(interrupt):
        decorated()
    with pytest.raises(interrupt), throttle:
        raise interrupt
    assert (throttle._meter, throttle._bucket, throttle.active) == before


def test_an_interrupt_in_the_wait_passes_and_takes_nothing(clock):
    def interrupted(seconds):
        clock.advance(seconds)
        raise KeyboardInterrupt

    throttle = AdaptiveThrottle(clock=clock, sleep=interrupted)
    throttle.throttled()
    with pytest.raises(KeyboardInterrupt), throttle:
        raise AssertionError("must not be reached")
    assert throttle.acquire() == 0.0  # the token is there for the next


def test_a_cancelled_wait_ends_at_once_and_takes_nothing(virtual):
    throttle = AdaptiveThrottle(clock=loop_time)
    called = []

    @throttle
    async def fetch():
        called.append(1)

    async def main():
        throttle.throttled()
        task = asyncio.ensure_future(fetch())
        await asyncio.sleep(0.5)
        task.cancel()
        await asyncio.sleep(0)
        assert task.cancelled()
        assert loop_time() == pytest.approx(0.5)
        await asyncio.sleep(1.5)
        return throttle.acquire()

    assert virtual(main) == 0.0
    assert called == []


def test_a_cancelled_call_reports_nothing(virtual):
    throttle = AdaptiveThrottle(clock=loop_time)

    @throttle
    async def decorated():
        await asyncio.sleep(60)

    async def block():
        async with throttle:
            await asyncio.sleep(60)

    async def main():
        for function in (decorated, block):
            task = asyncio.ensure_future(function())
            await asyncio.sleep(1)
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()

    virtual(main)
    assert throttle._meter == (0.0, 0, 0.0)


def test_tasks_that_wait_together_keep_to_the_rate(virtual):
    throttle = AdaptiveThrottle(clock=loop_time, headroom=1e6)

    async def main():
        throttle.throttled()
        throttle._bucket = 10.0, 0.0, loop_time()
        throttle._report = lambda throttled: None  # the rate stays
        sent = []

        async def call():
            async with throttle:
                sent.append(loop_time())

        await asyncio.gather(*[call() for _ in range(20)])
        return sent

    assert virtual(main) == pytest.approx([0.1 * n for n in range(1, 21)])


def test_a_sleep_of_ones_own_may_be_async(virtual):
    waits = []

    async def sleep(seconds):
        waits.append(seconds)
        await asyncio.sleep(seconds)

    throttle = AdaptiveThrottle(clock=loop_time, sleep=sleep)

    async def main():
        throttle.throttled()
        async with throttle:
            return loop_time()

    assert virtual(main) == pytest.approx(2.0)
    assert waits == [2.0]


def test_an_async_sleep_in_a_sync_call_is_replaced_by_a_real_one(clock, caplog, monkeypatch):
    async def sleep(seconds):
        raise AssertionError("is never awaited")

    monkeypatch.setattr(time, "sleep", clock.sleep)
    throttle = AdaptiveThrottle(clock=clock, sleep=sleep)
    throttle.throttled()
    with throttle:
        pass
    assert clock.waits == [2.0]
    assert "sleep is async" in caplog.text


def test_a_sync_wait_in_an_event_loop_is_told_once(clock, caplog, monkeypatch):
    monkeypatch.setattr(time, "sleep", clock.sleep)
    throttle = AdaptiveThrottle(clock=clock, name="search")

    async def main():
        for _ in range(3):
            throttle.throttled()
            with throttle:
                pass

    asyncio.run(main())
    assert clock.waits
    assert caplog.text.count("search blocks all tasks") == 1


def test_a_real_wait_outside_of_an_event_loop_is_nobodys_business(clock, caplog, monkeypatch):
    monkeypatch.setattr(time, "sleep", clock.sleep)
    throttle = AdaptiveThrottle(clock=clock)
    throttle.throttled()
    with throttle:
        pass
    assert (clock.waits, caplog.text) == ([2.0], "")


def test_it_waits_in_trio_too():
    trio = pytest.importorskip("trio")
    testing = pytest.importorskip("trio.testing")
    throttle = AdaptiveThrottle(clock=lambda: trio.current_time())

    async def main():
        throttle.throttled()
        with trio.move_on_after(1.0) as scope:
            async with throttle:
                raise AssertionError("must not be reached")
        assert scope.cancelled_caught
        began = trio.current_time()
        async with throttle:
            return trio.current_time() - began

    assert trio.run(main, clock=testing.MockClock(autojump_threshold=0)) == pytest.approx(1.0)


def test_a_long_wait_asks_in_between_since_others_may_have_raised_the_rate(flavour):
    clock = FakeClock()

    def sleep(seconds):
        clock.sleep(seconds)
        if clock.now == 10.0:
            throttle._bucket = 1.0, 0.0, clock.now

    throttle = AdaptiveThrottle(min_rate=0.01, clock=clock, sleep=sleep)
    throttle.throttled()
    flavour.run(throttle(flavour.scripted("page")))
    assert clock.waits == [5.0, 5.0, 1.0]


def test_waits_can_be_skipped_in_tests(flavour):
    throttle = AdaptiveThrottle()
    fetch = throttle(flavour.scripted(Response(429), Response(200)))
    with no_waits() as waits, watchdog():
        flavour.run(fetch)
        flavour.run(fetch)
    # 2 s at half a call a second, less what has passed for real meanwhile.
    assert sum(waits) <= 2.1
    assert throttle.active


def test_one_throttle_may_be_entered_many_times_at_once(virtual):
    throttle = AdaptiveThrottle(clock=loop_time)

    async def main():
        async def call(seconds):
            async with throttle:
                await asyncio.sleep(seconds)

        await asyncio.gather(*[call(0.1 * n) for n in range(10)])

    virtual(main)
    assert throttle._meter[1] == 4  # after the six of the first half second
    assert throttle.measured_rate == pytest.approx(9.6)
