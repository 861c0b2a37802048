"""A store that can only be read, that comes back, or that takes longer than the call has time."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import threading
import time

import pytest

from conftest import loop_time
from redouble import Policy, retrying
from redouble.shared import FileBudget, RedisBreaker, RedisBudget
from redouble.testing import scripted
from support.stores import REFUSED, AsyncClient, Client, changes, left, raw


def test_a_store_that_is_tried_again_must_prove_that_it_can_be_written_to(store, clock):
    here = store(REFUSED, left(100.0, 5.0))
    budget = here.budget()
    here.run(budget.acquire)
    clock.advance(1.0)
    here.run(budget.acquire)
    here.run(budget.acquire)
    assert here.client.proving == [False, True, False]


def test_a_file_that_is_read_only_is_not_taken_for_one_that_is_back(tmp_path, clock):
    # Full, so that nothing would be written; with a table that refuses whatever is.
    path, events = tmp_path / "retries", []
    budget = FileBudget(path, capacity=10, clock=clock, listeners=[events.append])
    budget.refresh()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(
            "CREATE TRIGGER full BEFORE INSERT ON budget BEGIN SELECT RAISE(ABORT, 'no room'); END"
        )
        connection.commit()
    granted = []
    for _ in range(8):
        granted.append(budget.acquire())
        clock.advance(1.0)
        budget.refresh()
    assert granted == [5.0, 5.0, *[0.0] * 6]
    assert changes(events) == [False]
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("DROP TRIGGER full")
    clock.advance(1.0)
    assert (budget.refresh(), changes(events), raw(path)) == (10.0, [False, True], [(10.0,)])


def test_a_connection_that_was_lost_before_the_store_came_back_does_not_count_again(store, clock):
    here = store(REFUSED, left(95.0, 5.0), ConnectionResetError("closed by server"), left(90.0, 5.0))
    budget = here.budget(capacity=100)
    here.run(budget.acquire)
    clock.advance(1.0)
    assert here.run(budget.acquire) == 5.0  # it is back
    assert here.run(budget.acquire) == 5.0  # by the twin, for this once
    assert here.run(budget.acquire) == 5.0
    assert (changes(here.events), budget.available, budget.tokens) == ([False, True], True, 90.0)


def test_a_store_that_goes_on_failing_after_it_came_back_is_away_again(store, clock):
    here = store(REFUSED, left(95.0, 5.0), REFUSED)
    budget = here.budget(capacity=100)
    here.run(budget.acquire)
    clock.advance(1.0)
    here.run(budget.acquire)
    clock.advance(1.0)
    here.run(budget.acquire)
    assert changes(here.events) == [False, True, False]


def test_a_failure_of_a_question_from_before_the_store_came_back_does_not_count(virtual):
    async def main():
        async def at_last():
            await asyncio.sleep(0.2)
            raise ValueError("what was that")

        events = []
        client = AsyncClient(left(90.0, 5.0), at_last, REFUSED, left(90.0, 5.0))
        budget = RedisBudget(client, "key", clock=loop_time, retry_interval=0.1, listeners=[events.append])
        await budget.acquire()
        early = asyncio.ensure_future(budget.refresh())
        await asyncio.sleep(0)
        await budget.acquire()
        await asyncio.sleep(0.1)
        await budget.acquire()
        await early
        assert changes(events) == [False, True]

    virtual(main)


@pytest.mark.parametrize("guard", ["breaker", "budget", "both"])
def test_a_store_that_hangs_leaves_a_call_the_time_to_be_made(virtual, guard):
    async def main():
        async def never():
            await asyncio.sleep(3600)

        client, events, made = AsyncClient(never), [], []
        fields = {
            "breaker": RedisBreaker(client, "circuit", clock=loop_time, listeners=[events.append]),
            "budget": RedisBudget(client, "retries", clock=loop_time),
        }
        policy = Policy(
            deadline=0.1, clock=loop_time, base=0.001,
            **(fields if guard == "both" else {guard: fields[guard]}),
        )  # fmt: skip

        async def fetch():
            made.append(loop_time())
            if len(made) % 2:
                raise TimeoutError("slow")
            return "page"

        for _ in range(20):
            began = loop_time()
            assert await policy.call(fetch) == "page"
            assert loop_time() - began < 0.1
        assert len(made) == 40
        # No answer for ``slow`` seconds: now it is away, however little each call has waited.
        assert [fields[name].available for name in fields if guard in (name, "both")] in (
            [False],
            [False] * 2,
        )
        assert changes(events) in ([], [False])

    virtual(main)


def test_a_store_that_is_cut_short_by_one_call_is_not_away_for_all(virtual):
    async def main():
        async def late():
            await asyncio.sleep(0.05)
            return left(95.0, 5.0)

        budget = RedisBudget(AsyncClient(late), "key", clock=loop_time)
        with retrying(deadline=0.1, clock=loop_time):
            assert await budget.acquire() == 5.0  # by the twin
        assert budget.available
        assert (await budget.acquire(), budget.tokens) == (5.0, 95.0)
        await asyncio.sleep(1.0)
        with retrying(deadline=0.1, clock=loop_time):
            await budget.acquire()
        assert budget.available

    virtual(main)


def test_a_caller_with_little_time_leaves_it_to_others_to_try_a_sync_client(clock):
    client = Client(REFUSED)
    budget = RedisBudget(client, "key", clock=clock)
    budget.acquire()
    clock.advance(1.0)
    with retrying(deadline=0.2, clock=clock):
        budget.acquire()
    assert len(client.asked) == 1
    budget.acquire()
    assert len(client.asked) == 2
    clock.advance(10.0)  # nobody else came
    with retrying(deadline=0.2, clock=clock):
        budget.acquire()
    assert len(client.asked) == 3


@pytest.fixture
def locked(tmp_path):
    """A file that another connection holds locked."""
    path = tmp_path / "locked"
    FileBudget(path).acquire()
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    yield path
    holder.close()


def longest(count, function):
    """The longest of so many calls at once, in threads."""
    took, start = [], threading.Barrier(count)

    def work():
        start.wait()
        began = time.monotonic()
        function()
        took.append(time.monotonic() - began)

    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return max(took)


def test_threads_wait_for_a_locked_file_side_by_side(locked, tmp_path):
    budget, healthy = FileBudget(locked, timeout=0.1), FileBudget(tmp_path / "healthy", timeout=30.0)
    others = []
    thread = threading.Thread(target=lambda: others.append(longest(4, healthy.acquire)))
    thread.start()
    assert longest(32, budget.acquire) < 1.0  # and not 3.2
    thread.join()
    assert (others[0] < 1.0, healthy.available, budget.available) == (True, True, False)


def test_a_locked_file_takes_no_more_time_than_the_call_has(locked):
    budget = FileBudget(locked, timeout=30.0)
    policy = Policy(attempts=2, deadline=0.2, base=0.001, budget=budget)
    assert policy.call(scripted(TimeoutError("slow"), "page")) == "page"
    assert budget.available  # which one impatient call cannot say


def test_a_file_in_use_by_another_thread_is_not_waited_for_long(tmp_path):
    budget, done = FileBudget(tmp_path / "retries", timeout=0.05), threading.Event()
    held = threading.Event()

    def hold():
        with budget._link._turn:
            held.set()
            done.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(60)
    try:
        assert (budget.acquire(), budget.available) == (5.0, False)
    finally:
        done.set()
        thread.join()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_does_not_wait_for_a_locked_file(locked):
    budget = FileBudget(locked, timeout=30.0)
    thread = threading.Thread(target=budget.acquire, daemon=True)
    thread.start()
    time.sleep(0.02)
    began = time.monotonic()
    child = os.fork()
    if not child:
        os._exit(0)
    assert time.monotonic() - began < 5.0
    assert os.waitpid(child, 0)[1] == 0
