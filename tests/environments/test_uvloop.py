"""Waits, limits, cancellation and races on uvloop, in real time. The suite runs on uvloop as well.

.ci/environments runs this with the plugin ``on_uvloop``.
"""

from __future__ import annotations

import asyncio
import time

import pytest

from redouble import DeadlineExceeded, Policy, retry
from redouble.backoff import fixed
from redouble.bulkhead import Bulkhead
from redouble.hedging import hedge
from redouble.testing import scripted


def test_the_loops_of_this_run_are_those_of_uvloop(flavour):
    async def main():
        return type(asyncio.get_running_loop()).__module__

    assert asyncio.run(main()) == "uvloop"


def test_a_wait_lets_other_tasks_run():
    fetch = retry(base=0.02, backoff=fixed)(scripted(TimeoutError(), "page", asynchronous=True))
    ticks = []

    async def tick():
        while True:
            ticks.append(1)
            await asyncio.sleep(0.001)

    async def main():
        ticking = asyncio.create_task(tick())
        page = await fetch()
        ticking.cancel()
        return page

    assert asyncio.run(main()) == "page"
    assert len(ticks) > 3


def test_a_timeout_ends_an_attempt_and_is_retried():
    calls = []

    @retry(attempts=3, base=0.0, timeout=0.02)
    async def fetch():
        calls.append(1)
        if len(calls) < 3:
            await asyncio.sleep(60)
        return "page"

    assert asyncio.run(fetch()) == "page"
    assert len(calls) == 3


def test_a_deadline_ends_a_call_in_the_middle_of_an_attempt():
    async def main():
        await Policy(deadline=0.03).call(asyncio.sleep, 60)

    began = time.monotonic()
    with pytest.raises(DeadlineExceeded):
        asyncio.run(main())
    assert time.monotonic() - began < 10.0


def test_a_task_cancelled_in_its_wait_is_cancelled():
    async def main():
        call = Policy(base=60.0, cap=60.0, backoff=fixed, on=OSError).call
        task = asyncio.create_task(call(scripted(OSError("lost"), asynchronous=True)))
        await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait([task])
        return task.cancelled()

    assert asyncio.run(main())


def test_a_thread_hands_its_place_to_a_task():
    bulkhead = Bulkhead(1, queue=1)

    async def main():
        assert bulkhead.acquire()
        asyncio.get_running_loop().call_later(
            0.01, lambda: asyncio.create_task(asyncio.to_thread(bulkhead.release))
        )
        async with bulkhead:
            return bulkhead.under_way

    assert asyncio.run(main()) == 1
    assert bulkhead.at_rest


def test_the_loser_of_a_race_is_cancelled_and_awaited():
    began, ended = [], []

    @hedge(after=0.01, attempts=2)
    async def fetch():
        number = len(began)
        began.append(number)
        try:
            await asyncio.sleep(60 if number == 0 else 0)
        finally:
            ended.append(number)
        return number

    async def main():
        winner = await fetch()
        return winner, len(asyncio.all_tasks())

    assert asyncio.run(main()) == (1, 1)
    assert sorted(ended) == [0, 1]
