"""The user's error is raised, whatever the sleep, the clock, a predicate or a listener does."""

from __future__ import annotations

import asyncio
import logging
import math
import signal
import threading
import time
from random import Random

import pytest

from conftest import StillRunning, watchdog
from redouble import DeadlineExceeded, Policy, ResultRejected, Rule, hedging, history, retrying
from redouble._leases import Renewal
from redouble._time import DAY, real_sleep
from redouble.backoff import fixed
from redouble.events import GaveUp, Reason
from redouble.testing import scripted
from redouble.throttle import AdaptiveThrottle


def note(error):
    [text] = [line for line in error.__notes__ if line.startswith("redouble: ")]
    return text


# Huge waits


@pytest.mark.parametrize(
    "fields", [{"on": lambda error: 1e12}, {"cap": math.inf, "base": 1e300, "backoff": fixed}]
)
def test_a_wait_longer_than_the_platform_can_sleep_is_waited_and_interrupts_end_it(flavour, fields):
    policy, began = Policy(**fields), time.monotonic()
    fetch = flavour.scripted(TimeoutError("slow"), "page")
    if flavour.is_async:

        async def main():
            await asyncio.wait_for(policy(fetch)(), 0.02)

        with pytest.raises(TimeoutError) as caught:
            asyncio.run(main())
        assert str(caught.value) == ""
    else:
        before = signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(StillRunning))
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        try:
            with pytest.raises(StillRunning):
                policy(fetch)()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
    assert len(fetch.calls) == 1
    assert time.monotonic() - began < 10


def test_a_long_sleep_is_made_in_pieces_of_a_day(monkeypatch):
    slept = []
    monkeypatch.setattr(time, "sleep", slept.append)
    real_sleep(2.5 * DAY)
    assert slept == [DAY, DAY, 0.5 * DAY]


def test_a_hedge_with_a_grace_beyond_all_timers_gives_its_result():
    with watchdog():
        assert hedging.hedge(after=60.0, grace=1e12)(lambda: "page")() == "page"


def test_a_lease_beyond_all_timers_is_kept_without_trouble(monkeypatch):
    failed = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    renewal = Renewal(object(), 1e12, time.time)
    renewal.hold("letter", "owner")
    renewal.stop()
    assert failed == []


# A sleep that raises


def broken_sleep(seconds):
    raise ValueError("no such wait")


async def broken_async_sleep(seconds):
    raise ValueError("no such wait")


@pytest.fixture
def sleep(flavour):
    return broken_async_sleep if flavour.is_async else broken_sleep


def test_a_sleep_that_raises_does_not_replace_the_error_and_is_noted(flavour, clock, sleep):
    heard = []
    policy = Policy(sleep=sleep, clock=clock, listeners=[heard.append], name="fetch")
    error = TimeoutError("slow")
    with pytest.raises(TimeoutError) as caught:
        flavour.call(policy, flavour.scripted(error, "page"))
    assert caught.value is error
    assert "sleep raised ValueError: no such wait" in note(error)
    assert error.__context__ is None
    assert [(type(event), event.reason) for event in heard][1:] == [(GaveUp, Reason.callback)]
    assert [failure.delay for failure in history(error).failures] == [None]


def test_a_sleep_that_raises_does_not_replace_the_error_of_a_block(flavour, clock, sleep):
    error = TimeoutError("slow")

    def block(attempt):
        raise error

    with pytest.raises(TimeoutError) as caught:
        flavour.block(Policy(sleep=sleep, clock=clock), block)
    assert caught.value is error
    assert "sleep raised ValueError" in note(error)


def test_a_sleep_that_raises_after_a_refused_result_is_noted_on_its_rejection(flavour, clock, sleep):
    policy = Policy(sleep=sleep, clock=clock, until=bool)
    with pytest.raises(ResultRejected) as caught:
        flavour.call(policy, flavour.scripted("", "page"))
    assert "sleep raised ValueError" in note(caught.value)


def test_a_plain_sleep_that_raises_in_an_async_call_does_not_replace_the_error(clock):
    error = TimeoutError("slow")
    fetch = Policy(sleep=broken_sleep, clock=clock)(scripted(error, "page", asynchronous=True))
    with pytest.raises(TimeoutError) as caught:
        asyncio.run(fetch())
    assert caught.value is error
    assert "sleep raised ValueError" in note(error)


def test_an_interrupt_in_a_sleep_passes(flavour, clock):
    def sleep(seconds):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        flavour.call(Policy(sleep=sleep, clock=clock), flavour.scripted(TimeoutError(), "page"))


def held_back(clock):
    throttle = AdaptiveThrottle(clock=clock)
    throttle.throttled()
    return throttle


def test_a_sleep_that_raises_before_there_is_an_error_is_raised_itself(flavour, clock, sleep):
    fetch = flavour.scripted("page")
    with pytest.raises(ValueError, match="no such wait"):
        flavour.call(Policy(sleep=sleep, clock=clock, throttle=held_back(clock)), fetch)
    assert fetch.calls == []


def test_a_sleep_that_raises_while_a_throttle_holds_a_retry_back_does_not_replace_the_error(flavour, clock):
    waits = []

    def sleep(seconds):
        waits.append(seconds)
        if len(waits) > 1:
            raise ValueError("no such wait")

    error = TimeoutError("slow")
    throttle = AdaptiveThrottle(clock=clock)

    def fetch():
        throttle.throttled()
        raise error

    with pytest.raises(TimeoutError) as caught:
        flavour.call(Policy(sleep=sleep, clock=clock, throttle=throttle), flavour.function(fetch))
    assert caught.value is error
    assert "sleep raised ValueError" in note(error)


# A clock that raises, gives nonsense or goes back


def after(readings, then):
    """A clock that gives these readings, and then what ``then`` does."""
    readings = iter(readings)

    def clock():
        for reading in readings:
            return reading
        return then()

    return clock


def raises():
    raise ValueError("no clock")


NONSENSE = {
    "raises": raises, "nan": lambda: math.nan, "inf": lambda: math.inf, "none": lambda: None, "text": lambda: "noon",
}  # fmt: skip


@pytest.mark.parametrize("good", [0, 1, 2, 3])
@pytest.mark.parametrize("then", NONSENSE)
def test_a_clock_that_fails_at_any_reading_does_not_replace_the_error(flavour, caplog, good, then):
    caplog.set_level(logging.WARNING, "redouble")
    policy = Policy(
        attempts=3, deadline=60.0, clock=after([7.0] * good, NONSENSE[then]), sleep=lambda seconds: None
    )
    error = TimeoutError("slow")
    with pytest.raises(TimeoutError) as caught:
        flavour.call(policy, flavour.scripted(*[error] * 3))
    assert caught.value is error
    assert 0.0 <= history(error).elapsed < 30.0
    [said] = [message for message in caplog.messages if "clock" in message]
    assert said.endswith("time.monotonic stands in (said once)")


def test_a_clock_that_fails_at_once_leaves_a_success_alone(flavour):
    policy = Policy(deadline=60.0, clock=raises)
    assert flavour.call(policy, flavour.scripted("page")) == "page"
    with retrying(policy) as call:
        assert call(lambda: "page") == "page"


def test_where_a_clock_fails_the_real_one_goes_on_from_its_last_reading(flavour):
    policy = Policy(deadline=60.0, clock=after([1e9], raises), sleep=lambda seconds: None)
    assert flavour.call(policy, flavour.scripted(TimeoutError(), "page")) == "page"


def test_an_interrupt_in_a_clock_passes(flavour):
    def clock():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        flavour.call(Policy(deadline=60.0, clock=clock), flavour.scripted("page"))


def test_a_clock_that_goes_back_makes_no_time_negative(flavour):
    heard = []
    policy = Policy(
        attempts=2, clock=after([100.0], lambda: 40.0), sleep=lambda seconds: None, listeners=[heard.append]
    )
    with pytest.raises(TimeoutError) as caught:
        flavour.call(policy, flavour.scripted(*[TimeoutError("slow")] * 2))
    assert [event.elapsed for event in heard] == [0.0, 0.0]
    assert history(caught.value).elapsed == 0.0
    assert "2 attempts, 0.0 s after the first failure" in note(caught.value)


def test_a_clock_that_goes_back_makes_the_time_of_an_expired_call_not_negative(flavour):
    policy = Policy(deadline=5.0, base=9.0, backoff=fixed, clock=after([100.0], lambda: 98.0))
    with pytest.raises(DeadlineExceeded) as caught:
        flavour.call(policy, flavour.scripted(TimeoutError("slow")))
    assert caught.value.elapsed == 0.0


# Hints


class Busy(Exception):
    retry_after = 0.001


def test_a_tiny_hint_does_not_switch_the_backoff_off(flavour, clock):
    fetch = flavour.scripted(*[Busy()] * 2000)
    policy = Policy(attempts=None, deadline=600.0, clock=clock, sleep=clock.sleep, rng=Random(1))
    with pytest.raises(DeadlineExceeded):
        flavour.call(policy, fetch)
    assert 30 < len(fetch.calls) < 80


# Groups


def test_a_type_in_on_and_in_rules_reaches_into_groups(flavour, clock):
    recovered = []
    error = ExceptionGroup("both", [KeyError(1), ExceptionGroup("inner", [KeyError(2)])])
    for fields in ({"on": KeyError}, {"rules": {KeyError: Rule(recover=recovered.append)}}):
        policy = Policy(clock=clock, sleep=clock.sleep, **fields)
        assert flavour.call(policy, flavour.scripted(error, "page")) == "page"
    assert recovered == [error]
