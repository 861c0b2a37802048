"""How many calls may be under way at once: places are counted exactly, whoever waits, leaves or is killed."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import gc
import os
import pickle
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

import redouble
from conftest import loop_time, watchdog
from redouble import bulkhead as module
from redouble.bulkhead import Bulkhead
from redouble.errors import BulkheadFull

HERE = module.__file__
ROOT = str(Path(redouble.__file__).parent.parent)


class Interrupt(BaseException):
    """Not an Exception, as KeyboardInterrupt, but ends no test run."""


@pytest.fixture(autouse=True)
def an_end():
    """Whoever waits for ever fails."""
    with watchdog(60):
        yield


@pytest.fixture
def frequent_switches():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def eventually(condition):
    """Waits until something is so that another thread brings about."""
    until = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < until, "it never came about"
        time.sleep(0.0005)


def started(function, *args):
    thread = threading.Thread(target=function, args=args)
    thread.start()
    return thread


def taken(limit=1, queue=1):
    """A bulkhead whose places are all taken."""
    bulkhead = Bulkhead(limit, queue, name="reports")
    assert all(bulkhead.acquire() for _ in range(limit))
    return bulkhead


def assert_sound(bulkhead):
    """All places are free, and there are neither more nor fewer than the limit says."""
    assert bulkhead.snapshot() == (0, 0)
    assert [bulkhead.acquire(0) for _ in range(bulkhead.limit + 1)] == [True] * bulkhead.limit + [False]
    for _ in range(bulkhead.limit):
        bulkhead.release()
    assert bulkhead.snapshot() == (0, 0)


# Places


def test_as_many_calls_as_the_limit_says_are_let_in():
    bulkhead = Bulkhead(2)
    assert (bulkhead.limit, bulkhead.queue, bulkhead.name) == (2, 0, "Bulkhead")
    assert [bulkhead.acquire() for _ in range(3)] == [True, True, False]
    assert (bulkhead.under_way, bulkhead.waiting) == (2, 0)
    bulkhead.release()
    assert bulkhead.acquire()


def test_a_refused_acquire_takes_nothing():
    bulkhead = taken()
    assert bulkhead.acquire(0) is False
    assert asyncio.run(bulkhead.acquire_async(0)) is False
    bulkhead.release()
    assert_sound(bulkhead)


def test_without_a_queue_nobody_waits():
    bulkhead = taken(queue=0)
    assert bulkhead.acquire() is False
    assert asyncio.run(bulkhead.acquire_async()) is False


def test_a_bulkhead_is_at_rest_while_nobody_is_under_way():
    bulkhead = Bulkhead(1)
    assert bulkhead.at_rest
    bulkhead.acquire()
    assert not bulkhead.at_rest


def test_a_bulkhead_says_what_it_holds():
    assert repr(taken(2)) == "<reports: 2 of 2 under way, 0 waiting>"


def test_releasing_more_often_than_acquired_is_an_error_that_harms_nothing():
    bulkhead = taken()
    bulkhead.release()
    with pytest.raises(RuntimeError, match="reports was released more often than acquired") as caught:
        bulkhead.release()
    assert caught.value.__context__ is None
    assert_sound(bulkhead)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"limit": 0}, "limit must be at least 1, got 0"),
        ({"limit": True}, "limit must be a whole number, not a bool, got True"),
        ({"limit": float("nan")}, "limit must be a whole number, got nan"),
        ({"limit": 1, "queue": -1}, "queue must be at least 0, got -1"),
        ({"limit": 1, "queue": 1.5}, "queue must be a whole number, got 1.5"),
    ],
)
def test_a_wrong_size_is_refused_when_the_bulkhead_is_made(arguments, message):
    with pytest.raises(ValueError, match=message):
        Bulkhead(**arguments)


@pytest.mark.parametrize("timeout", [-1, float("nan"), True])
def test_a_wrong_timeout_is_refused_before_a_place_is_taken(timeout):
    bulkhead = Bulkhead(1)
    with pytest.raises(ValueError, match="timeout must be"):
        bulkhead.acquire(timeout)
    with pytest.raises(ValueError, match="timeout must be"):
        asyncio.run(bulkhead.acquire_async(timeout))
    assert bulkhead.under_way == 0


def test_a_bulkhead_is_one_thing_and_does_not_travel():
    bulkhead = Bulkhead(1, name="reports")
    assert copy.copy(bulkhead) is copy.deepcopy(bulkhead) is bulkhead
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(TypeError, match=r"reports \(Bulkhead\) .* cannot be pickled"):
            pickle.dumps(bulkhead, protocol)


# Around a call


def test_the_error_says_which_bulkhead_is_full_and_what_to_do():
    bulkhead = taken(3, queue=0)
    with pytest.raises(BulkheadFull) as caught:
        bulkhead.__enter__()
    assert str(caught.value) == (
        "reports is full: at most 3 may be under way at once and 0 may wait (limit=3, queue=0); "
        "call again later, or allow more"
    )
    assert (caught.value.name, caught.value.limit) == ("reports", 3)
    assert str(bulkhead.refusal()) == str(caught.value)


def test_a_place_is_held_for_as_long_as_the_call_takes(flavour):
    bulkhead = Bulkhead(1)

    @bulkhead
    @flavour.function
    def fetch(url):
        return url, bulkhead.under_way

    assert flavour.run(fetch, "/") == ("/", 1)
    assert bulkhead.under_way == 0


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError])
def test_a_place_is_given_back_however_the_call_ends(flavour, error):
    bulkhead = Bulkhead(1)

    @bulkhead
    @flavour.function
    def fetch():
        raise error

    with pytest.raises(error):
        flavour.run(fetch)
    assert_sound(bulkhead)


def test_a_full_bulkhead_does_not_call_the_function(flavour):
    bulkhead, calls = taken(queue=0), []
    with pytest.raises(BulkheadFull):
        flavour.run(bulkhead(flavour.function(lambda: calls.append(1))))
    assert calls == []
    assert bulkhead.under_way == 1


def test_a_block_holds_a_place():
    bulkhead = Bulkhead(2)
    with bulkhead as entered:
        assert entered is bulkhead
        with bulkhead:
            assert bulkhead.under_way == 2
        assert bulkhead.under_way == 1
    with pytest.raises(OSError), bulkhead:
        raise OSError
    assert_sound(bulkhead)


def test_an_async_block_holds_a_place():
    bulkhead = Bulkhead(1)

    async def main():
        async with bulkhead as entered:
            assert entered is bulkhead
            assert bulkhead.under_way == 1
            with pytest.raises(BulkheadFull):
                async with bulkhead:
                    raise AssertionError("let in")

    asyncio.run(main())
    assert_sound(bulkhead)


def test_a_block_may_be_left_in_another_thread():
    bulkhead = Bulkhead(1)
    bulkhead.__enter__()
    started(bulkhead.__exit__, None, None, None).join()
    assert_sound(bulkhead)


# Waiting


def test_a_wait_without_success_ends_in_time_and_leaves_the_line():
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
def test_a_thread_that_waits_is_handed_the_place(timeout):
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
def test_a_task_that_waits_is_handed_the_place(virtual, timeout):
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


def test_nobody_is_overtaken_while_the_place_is_on_its_way(virtual):
    bulkhead = taken(queue=5)

    async def main():
        task = asyncio.create_task(bulkhead.acquire_async())
        await asyncio.sleep(1)
        bulkhead.release()
        # The task has not run since then; the place is its own all the same.
        assert bulkhead.acquire(0) is False
        assert await task is True

    virtual(main)


def test_a_place_that_comes_free_before_the_line_is_reached_is_taken(monkeypatch, flavour):
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
    wake = module.ThreadTurn.wake
    monkeypatch.setattr(
        module.ThreadTurn, "wake", lambda turn: depths.append(bulkhead._lock.depth) or wake(turn)
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


# Giving up


def test_a_task_cancelled_while_it_waits_leaves_the_line(virtual):
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
def test_a_task_cancelled_as_it_is_handed_a_place_passes_it_on(virtual, caplog, timeout):
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


def test_a_place_handed_over_at_the_last_instant_of_a_wait_is_taken(virtual):
    bulkhead = taken()

    async def main():
        asyncio.get_running_loop().call_at(3.0, bulkhead.release)
        # The release is due first, and the timeout strikes before the task has run.
        assert await bulkhead.acquire_async(3.0) is True
        assert bulkhead.snapshot() == (1, 0)

    virtual(main)


def test_a_thread_handed_a_place_at_the_last_instant_of_its_wait_takes_it(monkeypatch):
    bulkhead = taken()
    monkeypatch.setattr(module.ThreadTurn, "wait", lambda turn, seconds: bulkhead.release())
    assert bulkhead.acquire(1) is True
    assert bulkhead.snapshot() == (1, 0)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs signals")
def test_an_interrupt_ends_a_wait_and_leaves_the_line():
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


def test_an_interrupt_that_comes_with_the_place_passes_it_on(monkeypatch):
    bulkhead = taken()

    def wait(turn, seconds):
        bulkhead.release()
        raise KeyboardInterrupt

    monkeypatch.setattr(module.ThreadTurn, "wait", wait)
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
def test_a_place_is_not_left_with_a_task_whose_loop_is_closed():
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


def test_a_place_nobody_can_hear_of_is_free():
    bulkhead = taken()
    (task,) = abandoned(bulkhead, 1)
    bulkhead.release()
    assert bulkhead.snapshot() == (0, 0)
    task.get_coro().close()
    assert_sound(bulkhead)


@pytest.mark.slow
def test_a_task_that_is_thrown_away_with_its_place_gives_it_back():
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
    assert len(bulkhead._line) == 0


# Interrupts at every point at which one may come


POINTS = ("call", "c_return")  # at the start of a function, and after a call of something built in


@contextlib.contextmanager
def at_point(number, action):
    """Runs the action at the point of that number inside the bulkhead; says whether it was reached."""
    reached = []

    def profile(frame, event, _):
        if frame.f_code.co_filename == HERE and event in POINTS:
            reached.append((frame.f_code.co_name, event))
            if len(reached) == number:
                sys.setprofile(None)
                action()

    sys.setprofile(profile)
    try:
        yield reached
    finally:
        sys.setprofile(None)


def interrupt():
    raise KeyboardInterrupt


def interrupted_everywhere(body):
    """Runs the body with an interrupt at its first point, its second, and so on: ``body(spoil)``."""
    number = 0
    while True:
        number += 1
        spoiled = []

        def spoil(function, *args, number=number, spoiled=spoiled):
            """Calls it with an interrupt in it; gives where that was, ``None`` when all points are through."""
            with at_point(number, interrupt) as reached:
                try:
                    function(*args)
                except KeyboardInterrupt:
                    spoiled.append(reached[-1])
            return spoiled[-1] if spoiled else None

        body(spoil)
        if not spoiled:
            assert number > 3
            return


def test_an_acquire_that_is_interrupted_takes_no_place():
    def body(spoil):
        bulkhead = Bulkhead(1)
        if spoil(bulkhead.acquire) is None:
            bulkhead.release()
        assert_sound(bulkhead)

    interrupted_everywhere(body)


def test_an_acquire_that_is_interrupted_around_its_wait_leaves_the_line():
    def body(spoil):
        bulkhead = taken()
        spoil(bulkhead.acquire, 0.001)
        assert bulkhead.snapshot() == (1, 0)
        bulkhead.release()
        assert_sound(bulkhead)

    interrupted_everywhere(body)


def undisturbed(function):
    """Calls it without an interrupt in it."""
    profile = sys.getprofile()
    sys.setprofile(None)
    function()
    sys.setprofile(profile)


def test_an_acquire_that_is_interrupted_when_it_was_handed_a_place_passes_it_on(monkeypatch):
    def body(spoil):
        bulkhead, given = taken(), []
        monkeypatch.setattr(
            module.ThreadTurn,
            "wait",
            lambda turn, seconds: undisturbed(lambda: given.append(bulkhead.release())),
        )
        if spoil(bulkhead.acquire) is None or not given:
            bulkhead.release()
        assert_sound(bulkhead)

    interrupted_everywhere(body)


@pytest.mark.parametrize("timeout", [None, 60])
def test_a_task_that_is_interrupted_at_any_point_keeps_no_place(timeout):
    def body(spoil):
        bulkhead, given = taken(), []

        async def main():
            give = undisturbed, lambda: given.append(bulkhead.release())
            asyncio.get_running_loop().call_soon(*give)
            await bulkhead.acquire_async(timeout)

        if spoil(lambda: asyncio.run(main())) is None or not given:
            bulkhead.release()
        assert_sound(bulkhead)

    interrupted_everywhere(body)


def test_a_release_that_is_interrupted_once_it_has_begun_is_made():
    def body(spoil):
        bulkhead = taken()
        if spoil(bulkhead.release) == ("release", "call"):
            assert bulkhead.snapshot() == (1, 0)
            bulkhead.release()
        assert_sound(bulkhead)

    interrupted_everywhere(body)


def test_a_release_that_is_interrupted_wakes_the_one_it_was_for():
    def body(spoil):
        bulkhead, results = taken(), []
        thread = started(lambda: results.append(bulkhead.acquire()))
        eventually(lambda: bulkhead.waiting == 1)
        if spoil(bulkhead.release) == ("release", "call"):
            bulkhead.release()
        thread.join(5)
        assert results == [True]
        bulkhead.release()
        assert_sound(bulkhead)

    interrupted_everywhere(body)


@pytest.mark.slow
def test_a_signal_handler_may_give_a_place_back_in_the_middle_of_an_acquire():
    number, waited = 0, 0
    while True:
        number += 1
        bulkhead = taken()
        with at_point(number, bulkhead.release) as reached:
            assert bulkhead.acquire(0.02) or len(reached) != number or reached[-1][0] in ("_withdraw", "wait")
        if len(reached) < number:
            break
        waited += 1
        assert bulkhead.snapshot() in [(0, 0), (1, 0)]
        while bulkhead.under_way:
            bulkhead.release()
        assert_sound(bulkhead)
    assert waited > 10


# Many at once


class Meter:
    """Counts those inside, by itself."""

    def __init__(self):
        self.lock, self.inside, self.most, self.entered = threading.Lock(), 0, 0, 0

    def __enter__(self):
        with self.lock:
            self.inside += 1
            self.entered += 1
            self.most = max(self.most, self.inside)

    def __exit__(self, *_):
        with self.lock:
            self.inside -= 1


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


def test_tasks_cancelled_at_random_lose_no_place():
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


# trio


def test_a_trio_task_waits_its_turn_and_is_handed_the_place_by_a_thread():
    trio = pytest.importorskip("trio")
    bulkhead = taken()

    async def main():
        thread = started(lambda: (eventually(lambda: bulkhead.waiting == 1), bulkhead.release()))
        async with bulkhead:
            assert bulkhead.snapshot() == (1, 0)
        await trio.to_thread.run_sync(thread.join)

    trio.run(main)
    assert_sound(bulkhead)


def test_a_trio_task_that_gives_up_leaves_the_line():
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


def test_a_trio_task_cancelled_as_it_is_handed_a_place_passes_it_on():
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


# Processes


def run(code, *args):
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", textwrap.dedent(code), *args],
        env={**os.environ, "PYTHONPATH": ROOT},
        capture_output=True,
        text=True,
        timeout=25,
        check=False,
    )
    assert (done.stderr, done.returncode) == ("", 0)
    return done.stdout.split()


KILLS = """
import ctypes, sys, threading, time
from redouble.bulkhead import Bulkhead

class Killed(BaseException):
    pass

def on_the_doorstep(error):
    # At the first instruction of a release, of which nothing was done then.
    trace = error.__traceback__
    while trace.tb_next is not None:
        trace = trace.tb_next
    code = trace.tb_frame.f_code
    return code is Bulkhead.release.__code__ and trace.tb_lineno == code.co_firstlineno

def use(number):
    alive.add(number)
    while not stop:
        if bulkhead.acquire(0.001):
            try:
                most.add(bulkhead.under_way)
            finally:
                bulkhead.release()

def work(number):
    while not stop:
        try:
            use(number)
        except Killed as error:
            alive.discard(number)
            if on_the_doorstep(error):
                bulkhead.release()
            deaths[number] += 1

def kill(number):
    before = deaths[number]
    while number not in alive:
        time.sleep(0.0001)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(threads[number].ident), ctypes.py_object(Killed))
    while deaths[number] == before:
        time.sleep(0.0001)

bulkhead, deaths, most, alive, stop = Bulkhead(2, queue=4), [0] * 4, set(), set(), []
sys.setswitchinterval(1e-5)
threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(4)]
for thread in threads:
    thread.start()
for _ in range(250):
    for number in range(4):
        kill(number)
stop.append(1)
for thread in threads:
    thread.join()
print(deaths, max(most), bulkhead.snapshot())
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.implementation.name != "cpython", reason="needs the C API")
def test_threads_that_are_killed_anywhere_lose_no_place_and_double_none():
    # In an interpreter of its own, in which nothing else is killed by mistake, and no tracer slows it down.
    assert " ".join(run(KILLS)) == "[250, 250, 250, 250] 2 (0, 0)"


KILLED_USERS = """
import ctypes, random, sys, threading, time
from redouble.bulkhead import Bulkhead

class Killed(Exception):
    pass

bulkhead = Bulkhead(1000)

def block():
    with bulkhead:
        pass

use = block if sys.argv[1] == "block" else bulkhead(lambda: None)

def once():
    global deaths
    while not stop:
        try:
            use()
        except Killed:
            deaths += 1

def twice():
    while not stop:
        try:
            once()
        except Killed:
            pass

def work():
    while not stop:
        try:
            twice()
        except Killed:
            pass

stop, deaths = [], 0
sys.setswitchinterval(1e-4)
thread = threading.Thread(target=work, daemon=True)
thread.start()
while deaths < 500:
    time.sleep(random.uniform(0.0, 0.001))
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(Killed))
stop.append(1)
thread.join()
print(bulkhead)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.implementation.name != "cpython", reason="needs the C API")
@pytest.mark.parametrize("how", ["block", "decorator"])
def test_exceptions_from_other_threads_lose_no_place_of_a_block_or_of_a_decorated_function(how):
    assert " ".join(run(KILLED_USERS, how)) == "<Bulkhead: 0 of 1000 under way, 0 waiting>"


def interrupted_on_the_way_out():
    """Raises what a signal handler may raise: before the first line of the way out."""
    frame_of_exit = module._Claim._leave.__code__

    def tracer(frame, event, _):
        if event == "call" and frame.f_code is frame_of_exit:
            sys.settrace(None)
            raise Interrupt

    sys.settrace(tracer)


@pytest.mark.skipif(sys.implementation.name != "cpython", reason="relies on reference counts")
def test_an_interrupt_before_the_first_line_of_the_way_out_loses_no_place(flavour):
    bulkhead, before = Bulkhead(1), sys.gettrace()

    def use():
        with bulkhead:
            interrupted_on_the_way_out()

    async def use_async():
        async with bulkhead:
            interrupted_on_the_way_out()

    try:
        with pytest.raises(Interrupt) as caught:
            flavour.run(use_async if flavour.is_async else use)
    finally:
        sys.settrace(before)
    assert bulkhead.under_way == 0, caught  # although somebody still holds the interrupt and its frames
    assert bulkhead.acquire()


def test_whoever_waits_gets_the_place_that_an_interrupt_would_have_lost():
    bulkhead, waiting = Bulkhead(1, queue=1), []

    def wait():
        waiting.append(bulkhead.acquire())

    way = bulkhead.__exit__
    bulkhead.__enter__()
    thread = threading.Thread(target=wait)
    thread.start()
    while not bulkhead.waiting:
        time.sleep(0.001)
    del way  # gone, and never called
    gc.collect()
    thread.join(10)
    assert waiting == [True]


def test_a_bulkhead_may_be_entered_on_a_stack_or_by_hand(flavour):
    bulkhead = Bulkhead(2)

    async def use_async():
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(bulkhead)
            assert bulkhead.under_way == 1
        await bulkhead.__aenter__()
        assert bulkhead.under_way == 1
        await bulkhead.__aexit__(None, None, None)

    def use():
        with contextlib.ExitStack() as stack:
            assert stack.enter_context(bulkhead) is bulkhead
            assert bulkhead.under_way == 1
        bulkhead.__enter__()
        assert bulkhead.under_way == 1
        bulkhead.__exit__(None, None, None)

    flavour.run(use_async if flavour.is_async else use)
    assert bulkhead.under_way == 0


def test_a_way_out_that_nobody_enters_gives_nothing_back():
    bulkhead = Bulkhead(1)
    assert bulkhead.acquire()
    assert bulkhead.__exit__ is not None
    gc.collect()
    assert bulkhead.under_way == 1


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@pytest.mark.slow
@needs_fork
def test_a_forked_child_works_whoever_held_the_lock_and_the_places():
    code = """
        import os, signal, threading
        from redouble.bulkhead import Bulkhead

        bulkhead = Bulkhead(2, queue=3)
        assert bulkhead.acquire() and bulkhead.acquire()
        threading.Thread(target=bulkhead.acquire, daemon=True).start()
        while not bulkhead.waiting:
            pass
        held, done = threading.Event(), threading.Event()

        def hold():
            with bulkhead._lock:
                held.set()
                done.wait()

        threading.Thread(target=hold, daemon=True).start()
        held.wait()
        child = os.fork()
        if not child:
            signal.alarm(5)
            print(bulkhead.snapshot(), bulkhead.acquire(), bulkhead.acquire(), bulkhead.acquire(0), flush=True)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        done.set()
        print(bulkhead.snapshot())
    """
    assert " ".join(run(code)) == "(0, 0) True True False (2, 1)"


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
    lock, (turn,) = bulkhead._lock, bulkhead._line
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


def test_neither_asyncio_nor_trio_is_imported_before_a_task_waits():
    code = """
        import sys
        from redouble.bulkhead import Bulkhead

        bulkhead = Bulkhead(1, queue=1)
        try:
            bulkhead.acquire_async().send(None)
        except StopIteration as end:
            print(end.value)
        print(bulkhead.acquire(0.001), {"asyncio", "trio", "typing", "threading"} & set(sys.modules))
    """
    assert run(code) == ["True", "False", "set()"]


def test_a_bell_that_is_rung_twice_rings_once():
    turn = module.ThreadTurn()
    assert turn.wake()
    assert turn.wake()
    turn.wait(0.0)
    assert not turn._bell.acquire(blocking=False)
