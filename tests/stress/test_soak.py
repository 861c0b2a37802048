"""redouble at scale: many calls in backoff, many retries of one call, many threads on one policy.

Small by default. With ``REDOUBLE_LONG=1`` in the environment, the sizes are those of `tests/tools/benchmarks/soak.py`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import tracemalloc

import pytest
from benchmarks import memory, soak

LONG = os.environ.get("REDOUBLE_LONG") == "1"
CALLS = soak.CALLS if LONG else 1_000
RETRIES = soak.RETRIES if LONG else 2_500
THREADS, SECONDS = (soak.THREADS, soak.MINUTES * 60.0) if LONG else (8, 60.0)

traced = pytest.mark.skipif(sys.gettrace() is not None, reason="tracing every line allocates memory")


@pytest.fixture(autouse=True)
def no_logging(monkeypatch):
    """Disable logging: pytest keeps every record, and its memory would be measured."""
    monkeypatch.setattr(logging.getLogger("redouble"), "disabled", True)


@pytest.mark.slow
def test_a_call_in_backoff_takes_no_more_than_a_task_and_its_frames():
    # In new processes: once a process has used more of redouble, Python makes each call a little larger.
    bare, own = (memory.measure_apart(name, CALLS, "traced") for name in (memory.BARE, memory.REDOUBLE))
    # Three coroutines, one failure as text, and the account of the call: 1,480 bytes on 3.11 to 3.13.
    assert 0 < own - bare < 1_700
    assert own < 2.4 * bare


@pytest.mark.slow
@pytest.mark.parametrize("how", ["resident", "traced"])
def test_a_call_in_backoff_takes_at_most_about_half_of_the_memory_that_tenacity_takes(how):
    own, other = (
        memory.measure_apart(name, max(10_000, CALLS), how) for name in (memory.REDOUBLE, memory.TENACITY)
    )
    if other is None:
        pytest.skip("the bench extra is not installed")
    assert own <= other * soak.SHARE * 1.02  # pages of the system are larger than a call


@pytest.mark.slow
@traced
def test_the_measure_sees_what_a_waiting_call_holds():
    async def waits():
        held = bytearray(10_000)
        await asyncio.sleep(memory.LONG)
        return held

    tracemalloc.start()
    try:
        assert 10_000 < asyncio.run(memory.bytes_per_call(waits, 100, memory.traced)) < 15_000
    finally:
        tracemalloc.stop()


@pytest.mark.slow
@traced
@pytest.mark.parametrize("full", [False, True], ids=["default policy", "every field"])
@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_a_long_call_grows_by_nothing_and_its_error_is_chained_to_nothing(asynchronous, full):
    retries = RETRIES // 5 if full else RETRIES
    found = soak.lasting(retries, since=retries // 10, asynchronous=asynchronous, full=full)
    assert found.problems() == []
    assert found.grown < 4_000  # far below the goal: short calls show little of what long ones do


@pytest.mark.slow
def test_threads_that_share_a_policy_for_long_lose_no_call_no_attempt_and_no_permit():
    workers, _, found = soak.run_workers(THREADS, SECONDS, parts=10 if LONG else 3)
    assert found == []
    # All of it happened.
    assert all(
        workers.told[kind] for kind in ("Succeeded", "Recovered", "GaveUp", "Refused", "CircuitChanged")
    )
    assert workers.throttle.active
    assert workers.made["interrupted"] or not LONG
    assert workers.made["calls"] > THREADS * SECONDS / 10


def test_threads_that_lose_a_permit_are_noticed():
    workers = soak.Workers(2)
    workers.run(10.0)
    assert list(workers.problems()) == []
    workers.bulkhead.acquire()
    workers.made["calls"] += 1
    assert len(list(workers.problems())) == 2
