"""Clocks and sleeps that are patched, frozen or go back; trio that is imported after the decorator ran."""

from __future__ import annotations

import asyncio
import sys
import time

import pytest

from redouble import DeadlineExceeded, Policy, retry, retrying
from redouble.backoff import fixed
from redouble.testing import scripted


def test_the_monotonic_clock_is_looked_up_late(monkeypatch):
    decorated = retry(deadline=10.0, attempts=9, backoff=fixed, base=1.0, sleep=lambda seconds: None)
    fetch = decorated(scripted(TimeoutError("1"), TimeoutError("2"), "page"))
    now = iter([100.0, 105.0, 105.0, *[120.0] * 9])
    # As freezegun does: the attribute of the time module is another function from here on.
    monkeypatch.setattr(time, "monotonic", lambda: next(now))
    with pytest.raises(DeadlineExceeded) as caught:
        fetch()
    assert caught.value.elapsed == 20.0


def test_under_a_frozen_clock_the_waits_count_against_a_deadline(flavour, monkeypatch):
    waits = []
    policy = Policy(attempts=None, deadline=31.0, backoff=fixed, sleep=waits.append)
    if not flavour.is_async:
        monkeypatch.setattr(time, "monotonic", lambda: 1_000.0)
    else:
        # An event loop reads time.monotonic itself, so the clock that stands still is the policy's.
        policy = policy.replace(clock=lambda: 1_000.0)
    with pytest.raises(DeadlineExceeded) as caught:
        flavour.call(policy, flavour.scripted(*[TimeoutError("slow")] * 40))
    assert waits == [1.0] * 30
    assert caught.value.elapsed == 30.0


def test_under_a_frozen_clock_a_block_and_a_scope_end_too(flavour):
    waits = []
    policy = Policy(attempts=None, deadline=5.0, backoff=fixed, clock=lambda: 1_000.0, sleep=waits.append)
    with pytest.raises(DeadlineExceeded):
        flavour.block(policy, lambda attempt: scripted(then=TimeoutError("slow"))())
    with pytest.raises(DeadlineExceeded), retrying(policy) as call:
        flavour.run(call, flavour.scripted(*[TimeoutError("slow")] * 40))
    assert waits == [1.0] * 8


def test_a_clock_that_goes_back_makes_no_time_negative(flavour):
    times = iter(range(1_000, 0, -100))
    policy = Policy(attempts=2, backoff=fixed, clock=lambda: next(times), sleep=lambda seconds: None)
    seen = []
    with pytest.raises(TimeoutError):
        flavour.call(policy.replace(listeners=[seen.append]), flavour.scripted(*[TimeoutError("slow")] * 2))
    assert [event.elapsed for event in seen] == [0.0, 1.0]


def test_sleep_is_looked_up_late(monkeypatch):
    fetch = retry(backoff=fixed)(scripted(TimeoutError("1"), TimeoutError("2"), "page"))
    waits = []
    # As gevent does, possibly after the function was decorated.
    monkeypatch.setattr(time, "sleep", waits.append)
    assert fetch() == "page"
    assert waits == [1.0, 1.0]


def test_the_sleep_of_asyncio_is_looked_up_late(monkeypatch):
    waits = []

    async def sleep(seconds):
        waits.append(seconds)

    fetch = retry(backoff=fixed)(scripted(TimeoutError("1"), "page", asynchronous=True))
    monkeypatch.setattr(asyncio, "sleep", sleep)
    assert asyncio.run(fetch()) == "page"
    assert waits == [1.0]


def test_the_wall_clock_is_never_asked_by_a_call(flavour, monkeypatch, clock):
    def forbidden(*_args):
        raise AssertionError("the wall clock was read")

    for name in ("time", "time_ns", "localtime", "gmtime"):
        monkeypatch.setattr(time, name, forbidden)
    policy = Policy(attempts=2, deadline=60.0, clock=clock, sleep=lambda seconds: None)
    if flavour.is_async:
        assert flavour.call(policy, flavour.scripted(TimeoutError("slow"), "page")) == "page"
    else:
        # Not through pytest's log capture, whose records carry a date.
        monkeypatch.setattr("redouble.events.logger_for", lambda chosen: None)
        assert policy.call(scripted(TimeoutError("slow"), "page")) == "page"


def test_trio_is_taken_from_where_it_was_imported_already(monkeypatch):
    waits = []

    class Lowlevel:
        @staticmethod
        def current_task():
            return "a task"

    class Trio:
        lowlevel = Lowlevel

        @staticmethod
        async def sleep(seconds):
            waits.append(seconds)

    fetch = retry(backoff=fixed)(scripted(TimeoutError("1"), "page", asynchronous=True))
    monkeypatch.setitem(sys.modules, "trio", Trio)
    with pytest.raises(StopIteration) as end:
        fetch().send(None)
    assert end.value.value == "page"
    assert waits == [1.0]
