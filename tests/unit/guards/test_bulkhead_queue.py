"""Waiting for a slot, in threads and in tasks of asyncio and trio."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import time

import pytest

from conftest import loop_time, watchdog
from redouble import bulkhead as module
from redouble.bulkhead import Bulkhead
from support.bulkheads import Meter, assert_sound, eventually, started, taken


@pytest.fixture(autouse=True)
def an_end():
    """Whoever waits for ever fails."""
    with watchdog():
        yield


def test_a_wait_without_success_ends_in_time_and_leaves_the_queue():
    bulkhead = taken()
    began = time.monotonic()
    assert bulkhead.acquire(0.02) is False
    assert 0.01 < time.monotonic() - began < 5
    assert bulkhead.snapshot() == (1, 0)
    bulkhead.release()
    assert_sound(bulkhead)


def test_a_task_waits_no_longer_than_it_may(virtual):
    bulkhead = taken()

    async def main():
        assert await bulkhead.acquire_async(3) is False
        assert loop_time() == 3.0

    virtual(main)
    assert bulkhead.snapshot() == (1, 0)


@pytest.mark.parametrize("timeout", [None, float("inf"), 5, 1e300])
def test_a_thread_that_waits_is_handed_the_slot(timeout):
    bulkhead, results = taken(), []
    thread = started(lambda: results.append(bulkhead.acquire(timeout)))
    eventually(lambda: bulkhead.waiting == 1)
    bulkhead.release()
    assert bulkhead.snapshot() == (1, 0)
    thread.join()
    assert results == [True]
    bulkhead.release()
    assert_sound(bulkhead)


@pytest.mark.parametrize("timeout", [None, float("inf"), 5])
def test_a_task_that_waits_is_handed_the_slot(virtual, timeout):
    bulkhead = taken()

    async def main():
        task = asyncio.create_task(bulkhead.acquire_async(timeout))
        await asyncio.sleep(1)
        assert bulkhead.waiting == 1
        bulkhead.release()
        assert await task is True
        assert loop_time() == 1.0

    virtual(main)
    assert bulkhead.snapshot() == (1, 0)


def test_no_more_wait_than_the_queue_takes(virtual):
    bulkhead = taken(queue=2)

    async def main():
        tasks = [asyncio.create_task(bulkhead.acquire_async(9)) for _ in range(4)]
        await asyncio.sleep(1)
        assert bulkhead.snapshot() == (1, 2)
        assert [task.done() and task.result() for task in tasks] == [False] * 4
        assert [task.done() for task in tasks] == [False, False, True, True]
        await asyncio.wait(tasks)

    virtual(main)
    assert bulkhead.snapshot() == (1, 0)


def test_nobody_is_overtaken_while_the_slot_is_on_its_way(virtual):
    bulkhead = taken(queue=5)

    async def main():
        task = asyncio.create_task(bulkhead.acquire_async())
        await asyncio.sleep(1)
        bulkhead.release()
        # The task has not run since then; the place is its own all the same.
        assert bulkhead.acquire(0) is False
        assert await task is True

    virtual(main)


def test_a_slot_that_comes_free_before_the_queue_is_reached_is_taken(monkeypatch, flavour):
    bulkhead = taken()
    monkeypatch.setattr(bulkhead, "_take", lambda: bool(bulkhead.release()))
    acquire = bulkhead.acquire_async if flavour.is_async else bulkhead.acquire
    assert flavour.run(acquire, 5) is True
    assert bulkhead.snapshot() == (1, 0)


def test_threads_and_tasks_are_served_in_the_order_in_which_they_came():
    bulkhead, order, line = taken(queue=6), [], []

    def in_thread(number):
        assert bulkhead.acquire()
        order.append(number)

    async def in_task(number):
        assert await bulkhead.acquire_async()
        order.append(number)

    ways = [in_thread, in_task, in_task, in_thread, in_task, in_thread]
    for number, way in enumerate(ways):
        # Each task in a loop of its own, in a thread of its own.
        body = way if way is in_thread else lambda number: asyncio.run(in_task(number))
        line.append(started(body, number))
        eventually(lambda: bulkhead.waiting == len(line))
    for number in range(len(ways)):
        bulkhead.release()
        eventually(lambda: len(order) == number + 1)  # noqa: B023
    for thread in line:
        thread.join()
    assert order == [0, 1, 2, 3, 4, 5]
    bulkhead.release()
    assert_sound(bulkhead)


def test_nobody_waits_with_the_lock_held():
    bulkhead = taken()
    thread = started(bulkhead.acquire)
    eventually(lambda: bulkhead.waiting == 1)
    assert bulkhead._lock.acquire(blocking=False)
    bulkhead._lock.release()
    bulkhead.release()
    thread.join()


def test_nobody_is_woken_with_the_lock_held(monkeypatch):
    class Watched:
        def __init__(self, lock):
            self.lock, self.depth = lock, 0

        def __enter__(self):
            self.lock.acquire()
            self.depth += 1

        def __exit__(self, *_):
            self.depth -= 1
            self.lock.release()

    bulkhead, depths = taken(), []
    bulkhead._lock = Watched(bulkhead._lock)
    wake = module.ThreadWaiter.wake
    monkeypatch.setattr(
        module.ThreadWaiter, "wake", lambda turn: depths.append(bulkhead._lock.depth) or wake(turn)
    )
    thread = started(bulkhead.acquire)
    eventually(lambda: bulkhead.waiting == 1)
    bulkhead.release()
    thread.join()
    assert depths == [0]


def test_a_sync_wait_in_an_event_loop_is_told_once(caplog):
    bulkhead = taken()

    async def main():
        for _ in range(2):
            assert bulkhead.acquire(0.001) is False

    asyncio.run(main())
    assert caplog.messages == [
        "reports blocks all tasks of an event loop by a sync wait: use it async (said once)"
    ]


def test_a_task_cancelled_while_it_waits_leaves_the_queue(virtual):
    bulkhead = taken(queue=2)

    async def main():
        tasks = [asyncio.create_task(bulkhead.acquire_async()) for _ in range(2)]
        await asyncio.sleep(1)
        tasks[0].cancel()
        await asyncio.wait(tasks[:1])
        assert tasks[0].cancelled()
        assert bulkhead.snapshot() == (1, 1)
        bulkhead.release()
        assert await tasks[1] is True
        bulkhead.release()

    virtual(main)
    assert_sound(bulkhead)


@pytest.mark.parametrize("timeout", [None, 60])
def test_a_task_cancelled_as_it_is_handed_a_slot_passes_it_on(virtual, caplog, timeout):
    bulkhead = taken(queue=3)

    async def main():
        tasks = [asyncio.create_task(bulkhead.acquire_async(timeout)) for _ in range(3)]
        await asyncio.sleep(1)
        bulkhead.release()
        tasks[0].cancel()
        tasks[1].cancel()
        assert await tasks[2] is True
        assert tasks[0].cancelled()
        assert tasks[1].cancelled()
        assert bulkhead.snapshot() == (1, 0)
        bulkhead.release()

    virtual(main)
    assert_sound(bulkhead)
    assert caplog.messages == []  # the loop has nothing to complain of


def test_a_slot_handed_over_at_the_last_instant_of_a_wait_is_taken(virtual):
    bulkhead = taken()

    async def main():
        asyncio.get_running_loop().call_at(3.0, bulkhead.release)
        # The release is due first, and the timeout strikes before the task has run.
        assert await bulkhead.acquire_async(3.0) is True
        assert bulkhead.snapshot() == (1, 0)

    virtual(main)


def test_a_thread_handed_a_slot_at_the_last_instant_of_its_wait_takes_it(monkeypatch):
    bulkhead = taken()
    monkeypatch.setattr(module.ThreadWaiter, "wait", lambda turn, seconds: bulkhead.release())
    assert bulkhead.acquire(1) is True
    assert bulkhead.snapshot() == (1, 0)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs signals")
def test_an_interrupt_ends_a_wait_and_leaves_the_queue():
    bulkhead, interrupts = taken(), []

    def interrupt(*_):
        interrupts.append(1)
        if len(interrupts) == 1:
            raise KeyboardInterrupt

    def again_and_again():
        # A signal that comes just before the wait does not end it, of whatever lock that is.
        eventually(lambda: bulkhead.waiting == 1)
        while not interrupts:
            os.kill(os.getpid(), signal.SIGUSR1)
            time.sleep(0.01)

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        thread = started(again_and_again)
        with pytest.raises(KeyboardInterrupt):
            bulkhead.acquire()
        thread.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert bulkhead.snapshot() == (1, 0)
    bulkhead.release()
    assert_sound(bulkhead)


def test_an_interrupt_that_comes_with_the_slot_passes_it_on(monkeypatch):
    bulkhead = taken()

    def wait(turn, seconds):
        bulkhead.release()
        raise KeyboardInterrupt

    monkeypatch.setattr(module.ThreadWaiter, "wait", wait)
    with pytest.raises(KeyboardInterrupt):
        bulkhead.acquire()
    assert_sound(bulkhead)


def abandoned(bulkhead, count):
    """Tasks that wait in a loop which is closed under them."""
    loop = asyncio.new_event_loop()
    tasks = [loop.create_task(bulkhead.acquire_async()) for _ in range(count)]
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    return tasks


@pytest.mark.slow
def test_a_slot_is_not_left_with_a_task_whose_loop_is_closed():
    count = 3000  # more than Python would recurse
    bulkhead, results = taken(queue=count + 1), []
    tasks = abandoned(bulkhead, count)
    thread = started(lambda: results.append(bulkhead.acquire()))
    eventually(lambda: bulkhead.waiting == count + 1)
    bulkhead.release()
    thread.join()
    assert results == [True]
    for task in tasks:
        task.get_coro().close()
    assert bulkhead.snapshot() == (1, 0)
    bulkhead.release()
    assert_sound(bulkhead)


def test_a_slot_nobody_can_hear_of_is_free():
    bulkhead = taken()
    (task,) = abandoned(bulkhead, 1)
    bulkhead.release()
    assert bulkhead.snapshot() == (0, 0)
    task.get_coro().close()
    assert_sound(bulkhead)


@pytest.mark.slow
def test_a_task_that_is_thrown_away_with_its_slot_gives_it_back():
    bulkhead = taken()
    loop = asyncio.new_event_loop()
    task = loop.create_task(bulkhead.acquire_async())
    loop.run_until_complete(asyncio.sleep(0))
    bulkhead.release()  # its loop is there, but does not run
    assert bulkhead.under_way == 1
    loop.close()
    del loop, task
    gc.collect()
    assert_sound(bulkhead)


def test_a_bulkhead_keeps_nothing_of_those_who_are_gone():
    bulkhead = taken()

    async def main():
        task = asyncio.create_task(bulkhead.acquire_async())
        await asyncio.sleep(0)
        bulkhead.release()
        await task

    asyncio.run(main())
    assert len(bulkhead._queue) == 0


def test_a_trio_task_waits_its_turn_and_is_handed_the_slot_by_a_thread():
    trio = pytest.importorskip("trio")
    bulkhead = taken()

    async def main():
        thread = started(lambda: (eventually(lambda: bulkhead.waiting == 1), bulkhead.release()))
        async with bulkhead:
            assert bulkhead.snapshot() == (1, 0)
        await trio.to_thread.run_sync(thread.join)

    trio.run(main)
    assert_sound(bulkhead)


def test_a_trio_task_that_gives_up_leaves_the_queue():
    trio = pytest.importorskip("trio")
    testing = pytest.importorskip("trio.testing")
    bulkhead = taken()

    async def main():
        with trio.move_on_after(1):
            await bulkhead.acquire_async()
        assert trio.current_time() - began == 1
        assert await bulkhead.acquire_async(2) is False
        assert trio.current_time() - began == 3

    clock = testing.MockClock(autojump_threshold=0)
    began = clock.current_time()
    trio.run(main, clock=clock)
    assert bulkhead.snapshot() == (1, 0)
    bulkhead.release()
    assert_sound(bulkhead)


def test_a_trio_task_cancelled_as_it_is_handed_a_slot_passes_it_on():
    trio = pytest.importorskip("trio")
    testing = pytest.importorskip("trio.testing")
    bulkhead = taken(queue=2)

    async def main():
        async with trio.open_nursery() as nursery:
            scope = trio.CancelScope()

            async def first():
                with scope:
                    await bulkhead.acquire_async()

            async def second():
                assert await bulkhead.acquire_async() is True

            for way in (first, second):
                nursery.start_soon(way)
                await testing.wait_all_tasks_blocked()
            assert bulkhead.waiting == 2
            bulkhead.release()
            scope.cancel()
        assert scope.cancelled_caught
        bulkhead.release()

    trio.run(main)
    assert_sound(bulkhead)


def test_trio_asyncio_and_threads_share_one_bulkhead():
    trio = pytest.importorskip("trio")
    bulkhead, meter = Bulkhead(2, queue=50), Meter()

    async def use(pause):
        for _ in range(10):
            async with bulkhead:
                with meter:
                    await pause(0)

    async def in_trio():
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(use, trio.sleep)

    async def in_asyncio():
        await asyncio.gather(*[use(asyncio.sleep) for _ in range(5)])

    def in_thread():
        for _ in range(10):
            with bulkhead, meter:
                time.sleep(0)

    threads = [started(trio.run, in_trio), started(lambda: asyncio.run(in_asyncio())), started(in_thread)]
    for thread in threads:
        thread.join()
    assert 1 <= meter.most <= 2
    assert meter.entered == 110
    assert_sound(bulkhead)
