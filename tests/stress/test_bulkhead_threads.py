"""Bulkheads under threads, tasks and forks."""

from __future__ import annotations

import asyncio
import random
import threading
import time

import pytest

from conftest import watchdog
from redouble.bulkhead import Bulkhead
from redouble.errors import BulkheadFull
from support.bulkheads import Meter, assert_sound, eventually, needs_fork, run, started, taken


@pytest.fixture(autouse=True)
def an_end():
    """Whoever waits for ever fails."""
    with watchdog():
        yield


@pytest.mark.slow
@pytest.mark.parametrize("queue", [0, 3, 64])
def test_64_threads_are_never_more_inside_than_the_limit_says(frequent_switches, queue):
    bulkhead, meter, refused = Bulkhead(3, queue), Meter(), []

    def work():
        for _ in range(20):
            try:
                with bulkhead, meter:
                    pass
            except BulkheadFull:
                refused.append(1)

    for thread in [started(work) for _ in range(64)]:
        thread.join()
    assert 1 <= meter.most <= 3
    assert meter.entered + len(refused) == 64 * 20
    assert queue < 64 or not refused
    assert_sound(bulkhead)


@pytest.mark.slow
def test_a_reader_never_sees_a_torn_pair(frequent_switches):
    bulkhead, stop, torn = Bulkhead(2, 3), threading.Event(), []

    def work():
        while not stop.is_set():
            if bulkhead.acquire(0.0005):
                bulkhead.release()

    threads = [started(work) for _ in range(8)]
    for _ in range(2000):
        under_way, waiting = bulkhead.snapshot()
        if not (0 <= under_way <= 2 and 0 <= waiting <= 3) or (waiting and under_way < 2):
            torn.append((under_way, waiting))
    stop.set()
    for thread in threads:
        thread.join()
    assert torn == []
    assert_sound(bulkhead)


@pytest.mark.slow
def test_threads_and_tasks_of_several_loops_share_one_bulkhead(frequent_switches):
    bulkhead, meter = Bulkhead(3, queue=100), Meter()

    def in_thread():
        for _ in range(20):
            with bulkhead, meter:
                time.sleep(0)

    async def in_task():
        for turn in range(10):
            async with bulkhead:
                with meter:
                    await asyncio.sleep(0)
            # Now and then some of them lose patience.
            if turn % 3 == 0 and await bulkhead.acquire_async(0.0001):
                bulkhead.release()

    async def tasks():
        await asyncio.gather(*[in_task() for _ in range(10)])

    threads = [started(in_thread) for _ in range(6)]
    threads += [started(lambda: asyncio.run(tasks())) for _ in range(3)]
    for thread in threads:
        thread.join()
    assert 1 <= meter.most <= 3
    assert meter.entered == 6 * 20 + 3 * 10 * 10
    assert_sound(bulkhead)


def test_tasks_cancelled_at_random_lose_no_slot():
    bulkhead, meter, rng = Bulkhead(2, queue=20), Meter(), random.Random(5)

    async def work():
        while True:
            async with bulkhead:
                with meter:
                    await asyncio.sleep(0)

    async def main():
        tasks = []
        for _ in range(500):
            tasks = [task for task in tasks if not task.done()]
            while len(tasks) < 10:
                tasks.append(asyncio.create_task(work()))
            await asyncio.sleep(0)
            rng.choice(tasks).cancel()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(main())
    assert 1 <= meter.most <= 2
    assert_sound(bulkhead)


@pytest.mark.slow
@needs_fork
def test_what_the_forking_thread_held_is_given_back_in_the_child_without_an_error():
    code = """
        import os
        from redouble.bulkhead import Bulkhead

        bulkhead = Bulkhead(2)
        with bulkhead:
            with bulkhead:
                child = os.fork()
                if not child:
                    grandchild = os.fork()
        if child:
            os.waitpid(child, 0)
        elif grandchild:
            os.waitpid(grandchild, 0)
        if not child:
            try:
                bulkhead.release()
            except RuntimeError:
                print("one too many", flush=True)
        print(bulkhead.snapshot(), flush=True)
        os._exit(0)
    """
    assert " ".join(run(code)) == "one too many (0, 0) one too many (0, 0) (0, 0)"


def test_after_a_fork_nobody_is_there_and_what_was_held_may_be_given_back_once():
    bulkhead = taken(2)
    thread = threading.Thread(target=bulkhead.acquire, daemon=True)
    thread.start()
    eventually(lambda: bulkhead.waiting == 1)
    lock, (turn,) = bulkhead._lock, bulkhead._queue
    bulkhead._after_fork()
    assert bulkhead._lock is not lock
    assert bulkhead.snapshot() == (0, 0)
    bulkhead.release()
    bulkhead.release()
    with pytest.raises(RuntimeError, match="released more often"):
        bulkhead.release()
    assert_sound(bulkhead)
    turn.wake()  # this was no fork: the thread is there
    thread.join()
