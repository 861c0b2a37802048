"""A locked file is waited for as long as the call has, and stalls nothing else."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
import time

import pytest

from conftest import watchdog
from redouble import Policy, context, dead_letters
from redouble._base import sqlite as _base_sqlite
from redouble.dead_letters import DeadLetters, StoreError
from redouble.dead_letters._sqlite import SqliteStore
from support.dead_letters import add, raises


def seconds(function):
    began = time.monotonic()
    function()
    return time.monotonic() - began


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_locked_file_stalls_no_other_file_and_no_fork(locked, letters):
    """A lock for the whole process was held meanwhile: another file and os.fork() waited for 30 s."""
    letters.put()
    store = SqliteStore(locked.store.name, patience=1.5)
    errors = []

    def put():
        try:
            add(store)
        except StoreError as error:
            errors.append(error)

    waiting = [threading.Thread(target=put) for _ in range(4)]
    took = seconds(lambda: run_beside(waiting, lambda: (letters.put(), forked(letters.put))))
    assert len(errors) == 4
    assert took < 1.5 * 3  # and not one after the other
    assert letters.depth() == 3


def run_beside(threads, work):
    for thread in threads:
        thread.start()
    work()
    assert all(thread.is_alive() for thread in threads)  # it was done while they waited
    for thread in threads:
        thread.join()


def forked(work):
    child = os.fork()
    if not child:
        work()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def test_where_a_test_has_stopped_the_clock_a_locked_file_is_not_waited_for_for_ever(locked, monkeypatch):
    store = SqliteStore(locked.store.name, patience=0.03)
    monkeypatch.setattr(time, "monotonic", lambda: 50.0)
    with watchdog(), pytest.raises(StoreError, match="another process has kept it locked"):
        add(store)


def test_reading_does_not_wait_for_a_writer(locked):
    assert seconds(lambda: list(locked)) < 1.0


def test_a_put_by_hand_within_a_call_takes_no_more_time_than_the_call_has(locked, monkeypatch):
    monkeypatch.setattr(context, "BEYOND", 0.01)

    def put():
        with pytest.raises(StoreError, match="another process has kept it locked"):
            locked.put()

    assert 0.04 < seconds(lambda: Policy(deadline=0.05).call(put)) < 1.0


def test_many_async_puts_wait_together_and_not_one_after_the_other(locked, monkeypatch):
    """There are fewer threads than puts: those that wait for a thread wait for the file meanwhile."""
    monkeypatch.setattr(dead_letters, "PATIENCE", 0.1)
    ticks = []

    async def tick():
        while True:
            ticks.append(time.monotonic())
            await asyncio.sleep(0.005)

    async def main():
        ticker = asyncio.create_task(tick())
        outcomes = await asyncio.gather(*[locked.aput() for _ in range(64)], return_exceptions=True)
        ticker.cancel()
        return outcomes

    began = time.monotonic()
    outcomes = asyncio.run(main())
    assert [type(outcome) for outcome in outcomes] == [StoreError] * 64
    assert 0.1 <= time.monotonic() - began < 5.0  # one after the other, 6.4 s
    assert len(ticks) > 5


def test_a_file_that_stays_locked_is_told(tmp_path):
    store = SqliteStore(str(tmp_path / "x.db"), patience=0.01)
    add(store)
    other = sqlite3.connect(store.name, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match="another process has kept it locked for too long"):
        add(store)
    other.close()
    add(store)
    assert store.depths() == {"default": (2, 0)}
    store.close()


def test_a_file_that_is_locked_while_it_is_opened_is_waited_for(tmp_path, monkeypatch):
    path = str(tmp_path / "x.db")
    busy = [BlockingIOError("the folder is locked")] * 2
    real = _base_sqlite._lock_folder
    monkeypatch.setattr(
        _base_sqlite, "_lock_folder", lambda folder: raises(busy.pop()) if busy else real(folder)
    )
    with DeadLetters(path) as letters:
        letters.put()
        assert letters.depth() == 1


# Threads


@pytest.mark.slow
def test_64_threads_share_one_file(letters):
    errors = []

    def work(number):
        try:
            for turn in range(5):
                letters.put(payload=[number, turn], idempotency_key=f"{number}-{turn}")
            letters.list(limit=3)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert letters.depth() == 320


@pytest.mark.slow
def test_threads_that_replay_at_once_share_the_letters_out(letters):
    for _ in range(40):
        letters.put()
    seen, outcomes = [], []

    def work():
        outcomes.append(letters.replay(lambda letter: seen.append(letter.id)))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == len(set(seen)) == sum(outcome.replayed for outcome in outcomes) == 40
    assert letters.depth() == 0
