"""The adaptive throttle: its arithmetic against published figures, its turns, its clocks, its threads."""

from __future__ import annotations

import asyncio
import copy
import ctypes
import inspect
import itertools
import math
import os
import pickle
import subprocess
import sys
import textwrap
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import redouble
from conftest import loop_time, watchdog
from redouble import throttle as module
from redouble.backoff import LONGEST
from redouble.testing import FakeClock, no_waits
from redouble.throttle import AdaptiveThrottle, cubic, measure, plateau

BETA, SCALE = 0.7, 0.4


class Response:
    """As HTTP clients return it."""

    def __init__(self, status_code):
        self.status_code = status_code
        self.headers = {}


class TooManyRequests(Exception):
    """As HTTP clients raise it."""

    response = Response(429)


@pytest.fixture
def throttle(clock):
    return AdaptiveThrottle(clock=clock, sleep=clock.sleep)


def at_rate(rate, clock, **settings):
    """An active throttle with this rate and no token, and the time of the last complaint now."""
    throttle = AdaptiveThrottle(clock=clock, **{"sleep": getattr(clock, "sleep", None), **settings})
    throttle.throttled()
    throttle._bucket = rate, 0.0, throttle._seen
    throttle._curve = rate / throttle.beta, throttle._seen
    return throttle


# The curve, against the figures of the AWS SDKs' tests


@pytest.mark.parametrize(
    ("t", "rate"),
    [
        (5, 7.0),
        (6, 9.64893600966),
        (7, 10.000030849917364),
        (8, 10.453284520772092),
        (9, 13.408697022224185),
        (10, 21.26626835427364),
        (11, 36.425998516920465),
    ],
)
def test_the_rate_recovers_along_the_published_curve(t, rate):
    assert cubic(t - 5, 10, BETA, SCALE) == pytest.approx(rate, rel=1e-9)


MIXED = [
    ("success", 5, 7.0),
    ("success", 6, 9.64893600966),
    ("throttle", 7, 6.754255206761999),
    ("throttle", 8, 4.727978644733399),
    ("success", 9, 6.606547753887045),
    ("success", 10, 6.763279816944947),
    ("success", 11, 7.598174833907107),
    ("success", 12, 11.511232804773524),
]
MIXED_GO_RUST = [*MIXED[:4], *zip(["success"] * 4, [9, 10, 11, 12], [4.670125557970046, 4.770870456867401, 6.011819748005445, 10.792973431384178], strict=True)]  # fmt: skip


def mixed(clock, monkeypatch, answers):
    """The rates of a throttle that was brought down from 10 at second 5, if it sends as fast as it may."""
    monkeypatch.setattr(module, "measure", lambda *_: (0.0, 0, 1e6))
    throttle = AdaptiveThrottle(clock=clock)
    clock.now = 5.0
    throttle.throttled()
    throttle._curve, throttle._bucket = (10.0, 5.0), (7.0, 0.0, 5.0)
    rates = []
    for answer, t, _ in answers:
        clock.now = float(t)
        throttle.success() if answer == "success" else throttle.throttled()
        rates.append(throttle.rate)
    return rates


def test_the_rate_to_come_back_to_is_the_one_before_the_decrease(clock, monkeypatch):
    """As in smithy-kotlin and botocore."""
    assert mixed(clock, monkeypatch, MIXED) == pytest.approx([rate for *_, rate in MIXED], rel=1e-9)


def test_the_rate_to_come_back_to_is_not_the_one_after_the_decrease(clock, monkeypatch):
    """The tests of aws-sdk-go-v2 and smithy-rs have it so, and differ from the first success after a decrease.

    We follow the other two: the peak of the curve is the rate at which the server complained, before the
    decrease, as in the formula that all of them state. Coming back to the lowered rate, and lowering that,
    would make each decrease count twice.
    """
    rates = mixed(clock, monkeypatch, MIXED_GO_RUST)
    theirs = [rate for *_, rate in MIXED_GO_RUST]
    assert rates[:4] == pytest.approx(theirs[:4], rel=1e-9)
    assert all(ours > other for ours, other in zip(rates[4:], theirs[4:], strict=True))
    # What they have is the same curve around the lowered rate.
    lowered = [cubic(second, MIXED[3][2], BETA, SCALE) for second in (1, 2, 3, 4)]
    assert lowered == pytest.approx(theirs[4:], rel=1e-9)


@pytest.mark.parametrize(("peak", "seconds"), [(10, 1.9574338205844317), (8, 1.8171205928321397)])
def test_the_curve_is_flat_where_the_server_last_complained(peak, seconds):
    assert plateau(peak, BETA, SCALE) == pytest.approx(seconds, rel=1e-12)
    assert cubic(seconds, peak, BETA, SCALE) == pytest.approx(peak)


def test_a_complaint_at_8_per_second_brings_the_rate_to_5_6(clock):
    throttle = at_rate(8.0, clock)
    throttle._meter = 0.0, 0, 100.0
    throttle.throttled()
    assert throttle.rate == pytest.approx(5.6)


def test_with_another_beta_the_curve_begins_at_that_share(clock):
    throttle = at_rate(10.0, clock, beta=0.6)
    throttle._meter = 2.0, 0, 100.0
    clock.now = 1.0
    throttle.throttled()
    assert throttle.rate == pytest.approx(6.0)
    throttle.success()  # at the same instant: the curve begins where the rate fell to
    assert throttle.rate == pytest.approx(6.0)


# What is measured


@pytest.mark.parametrize(
    ("timestamps", "measured"),
    [([1], 0.8), (range(1, 21), 1.0), ([0.1, 0.2, 0.3, 0.4, 0.49, 0.5], 9.6)],
)
def test_the_sending_rate_is_measured_in_slots_of_half_a_second(timestamps, measured):
    meter = 0.0, 0, 0.0
    for t in timestamps:
        meter = measure(meter, t, 0.5, 0.8)
    assert meter[2] == pytest.approx(measured, abs=1e-7)


END_TO_END = [
    ("success", 0.2, 0, 0.5),
    ("success", 0.4, 0, 0.5),
    ("success", 0.6, 4.8, 0.5),
    ("success", 0.8, 4.8, 0.5),
    ("success", 1.0, 4.16, 0.5),
    ("success", 1.2, 4.16, 0.6912),
    ("success", 1.4, 4.16, 1.0976),
    ("success", 1.6, 5.632, 1.6384),
    ("success", 1.8, 5.632, 2.3328),
    ("throttle", 2.0, 4.3264, 3.02848),
    ("success", 2.2, 4.3264, 3.486639),
    ("success", 2.4, 4.3264, 3.821874),
    ("success", 2.6, 5.66528, 4.053386),
    ("success", 2.8, 5.66528, 4.200373),
    ("success", 3.0, 4.333056, 4.282037),
    ("throttle", 3.2, 4.333056, 2.997426),
    ("success", 3.4, 4.333056, 3.452226),
]


def test_measured_and_allowed_rates_are_those_of_the_aws_sdks_end_to_end(clock, throttle):
    assert throttle.acquire() == 0.0
    seen_active = False
    for answer, t, measured, rate in END_TO_END:
        clock.now = t
        throttle.success() if answer == "success" else throttle.throttled()
        seen_active = seen_active or answer == "throttle"
        assert throttle.measured_rate == pytest.approx(measured, abs=1e-6)
        assert throttle._bucket[0] == pytest.approx(rate, abs=1e-6)
        assert throttle.active is seen_active
        assert throttle.rate == (throttle._bucket[0] if seen_active else None)


def test_the_rate_grows_to_no_more_than_twice_what_is_sent(clock, throttle):
    throttle.throttled()
    for second in range(1, 60):
        clock.now = float(second)
        throttle.success()
    assert throttle.measured_rate == pytest.approx(1.0)
    assert throttle.rate == pytest.approx(2.0)


def test_without_headroom_to_grow_into_the_curve_is_not_followed(clock):
    throttle = at_rate(10.0, clock, headroom=1.5)
    clock.now = 60.0
    throttle._meter = 120.0, 0, 4.0
    throttle.success()
    assert throttle.rate == pytest.approx(6.0)


def test_the_rate_is_finite_whatever_it_may_grow_to(clock):
    throttle = at_rate(10.0, clock, headroom=1e308, scale=1e308)
    clock.now = 1e6
    throttle._meter = 2e6, 0, 100.0
    throttle.success()
    assert throttle.rate == 1e9


def test_many_complaints_bring_the_rate_to_the_least_and_not_below(clock, throttle):
    for _ in range(1000):
        throttle.throttled()
    assert throttle.rate == 0.5


# Asking


def test_nothing_is_held_back_before_the_first_complaint(clock, throttle):
    assert not throttle.active
    assert [throttle.acquire() for _ in range(1000)] == [0.0] * 1000
    throttle.success()
    throttle.failure(TimeoutError())
    assert [throttle.acquire() for _ in range(1000)] == [0.0] * 1000
    assert throttle.rate is None
    assert throttle.retry_after == 0.0


def test_the_first_complaint_is_not_answered_by_a_burst(clock, throttle):
    throttle.acquire()
    clock.now = 1000.0
    throttle.throttled()
    assert throttle.acquire() == 2.0


def test_a_call_is_granted_when_the_wait_is_over(clock, throttle):
    throttle.throttled()
    clock.advance(throttle.acquire())
    assert throttle.acquire() == 0.0
    assert throttle.acquire() == 2.0  # its token was taken


def test_a_refused_acquire_takes_nothing(clock, throttle):
    throttle.throttled()
    clock.advance(1.9)
    for _ in range(100):
        assert throttle.acquire() == pytest.approx(0.1)
        assert throttle._bucket[1] >= 0.0
    clock.advance(0.1)
    assert throttle.acquire() == 0.0


def test_ten_who_are_refused_at_one_instant_are_given_the_same_wait(clock, throttle):
    throttle.throttled()
    clock.advance(0.5)
    assert [throttle.acquire() for _ in range(10)] == [1.5] * 10


def test_retry_after_is_what_acquire_would_give_and_takes_nothing(clock, throttle):
    throttle.throttled()
    assert throttle.retry_after == 2.0
    clock.advance(2.0)
    assert [throttle.retry_after] * 5 == [0.0] * 5
    assert throttle.acquire() == 0.0


def test_a_shortfall_that_rounds_to_a_zero_wait_is_granted_and_leaves_no_debt(clock, throttle):
    throttle.throttled()
    throttle._bucket = 0.5, 1.0 - 2e-10, 0.0  # 0.4 ns too early
    assert throttle.acquire() == 0.0
    assert throttle._bucket[1] == 0.0


def test_a_wait_too_short_for_the_clock_to_show_is_granted():
    clock = FakeClock(1e12)  # on which a step is 0.12 ms
    throttle = at_rate(0.5, clock)
    throttle._bucket = 0.5, 1.0 - 1e-5, 1e12  # 20 us too early
    assert throttle.acquire() == 0.0
    assert throttle._bucket[1] == 0.0


@pytest.mark.parametrize("start", [0.0, 0.1, 12345.678, 987654.321, 1e9])
def test_whoever_waits_as_told_is_granted_the_call_after_a_wait_or_two(start):
    clock = FakeClock(start)
    throttle = at_rate(0.7, clock)
    for _ in range(100):
        asked = 0
        while wait := throttle.acquire():
            clock.sleep(wait)
            asked += 1
        assert asked <= 2


def test_at_most_one_seconds_calls_are_saved_up(clock):
    throttle = at_rate(5.0, clock)
    clock.advance(1000.0)
    assert [throttle.acquire() for _ in range(6)] == [0.0] * 5 + [pytest.approx(0.2)]


def test_at_a_slow_rate_one_call_is_saved_up_or_burst(clock):
    slow, bursty = at_rate(0.5, clock), at_rate(0.5, clock, burst=3)
    clock.advance(1000.0)
    assert [slow.acquire() for _ in range(2)] == [0.0, 2.0]
    assert [bursty.acquire() for _ in range(4)] == [0.0, 0.0, 0.0, 2.0]


def test_what_was_saved_up_is_cut_to_what_the_lower_rate_allows(clock):
    throttle = at_rate(10.0, clock)
    clock.advance(10.0)
    assert throttle._saved(clock.now) == 10.0
    throttle._meter = 20.0, 0, 100.0
    throttle.throttled()
    assert throttle._bucket[1] == pytest.approx(7.0)


def test_tokens_up_to_a_change_are_counted_at_the_rate_before_it(clock):
    throttle = at_rate(2.0, clock)
    throttle._meter = 0.0, 0, 100.0
    clock.advance(0.25)
    throttle.throttled()
    assert throttle._bucket[1] == pytest.approx(0.5)


def test_a_wait_is_never_longer_than_the_platform_can_sleep(clock):
    throttle = AdaptiveThrottle(min_rate=5e-324, clock=clock)
    throttle.throttled()
    assert throttle.acquire() == LONGEST


# What came back


def aws_error(code, status):
    error = type("ClientError", (Exception,), {"__module__": "botocore.exceptions"})(code)
    error.response = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return error


@pytest.mark.parametrize(
    "error",
    [TooManyRequests(), aws_error("ThrottlingException", 400), aws_error("SlowDown", 503), Response(429)],
    ids=["429", "ThrottlingException", "SlowDown", "response"],
)
def test_a_failure_that_says_too_fast_brings_the_rate_down(throttle, error):
    throttle.failure(error)
    assert throttle.active


class Nasty(Exception):
    @property
    def response(self):
        raise RuntimeError("of the user's code")


@pytest.mark.parametrize(
    "error",
    [TimeoutError(), ConnectionResetError(), ValueError("a bug"), Response(503), Response(500), Nasty()],
    ids=["timeout", "reset", "bug", "503", "500", "nasty"],
)
def test_any_other_failure_counts_as_an_answer(clock, throttle, error):
    throttle.acquire()
    clock.now = 1.0
    throttle.failure(error)
    assert not throttle.active
    assert throttle.measured_rate == pytest.approx(0.8)


# Around a call


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
        throttle.success = lambda: None  # the rate stays
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


# What it is made of


def test_the_defaults_are_the_published_constants():
    throttle = AdaptiveThrottle()
    assert (throttle.beta, throttle.scale, throttle.smooth) == (0.7, 0.4, 0.8)
    assert (throttle.min_rate, throttle.burst) == (0.5, 1.0)
    assert (throttle.measure_every, throttle.headroom) == (0.5, 2.0)


NUMBERS = ["beta", "scale", "smooth", "min_rate", "burst", "measure_every", "headroom"]


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1.0, 0, True], ids=repr)
def test_what_is_no_useful_number_is_refused_by_name(name, value):
    with pytest.raises(ValueError, match=f"^{name} must .*got {value}$"):
        AdaptiveThrottle(**{name: value})


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", ["1", None, [1]], ids=repr)
def test_what_is_no_number_at_all_is_refused_by_name(name, value):
    with pytest.raises(TypeError, match=f"^{name} must be a number, got"):
        AdaptiveThrottle(**{name: value})


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("beta", 1.0, "below 1, or no rate would fall"),
        ("smooth", 1.01, "at most 1"),
        ("burst", 0.99, "at least 1, or no call would get through"),
        ("measure_every", 0.0009, "at least 0.001 seconds"),
        ("headroom", 1.0, "above 1, or no rate would grow"),
    ],
)
def test_a_setting_that_could_not_work_is_refused_with_the_reason(name, value, rule):
    with pytest.raises(ValueError, match=f"^{name} must be .*{rule}, got {value}$"):
        AdaptiveThrottle(**{name: value})


def test_the_edges_of_the_rules_are_allowed():
    throttle = AdaptiveThrottle(smooth=1, burst=1, measure_every=timedelta(milliseconds=1))
    assert throttle.measure_every == 0.001
    assert type(throttle.smooth) is type(throttle.burst) is float


@pytest.mark.parametrize("name", ["clock", "sleep"])
def test_clock_and_sleep_must_be_functions(name):
    with pytest.raises(TypeError, match=f"^{name} must be a function, got 3"):
        AdaptiveThrottle(**{name: 3})


def test_an_unknown_or_positional_setting_is_refused():
    with pytest.raises(TypeError):
        AdaptiveThrottle(betta=0.5)
    with pytest.raises(TypeError):
        AdaptiveThrottle(0.7)


def test_it_says_what_it_is_and_how_it_is(clock):
    throttle = AdaptiveThrottle(name="search", clock=clock)
    assert repr(throttle) == "<search: not active>"
    throttle.throttled()
    assert repr(throttle) == "<search: 0.5 calls/s>"
    assert repr(AdaptiveThrottle()) == "<AdaptiveThrottle: not active>"


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_it_refuses_to_pickle_and_says_why(throttle, protocol):
    with pytest.raises(TypeError, match=r"AdaptiveThrottle.*cannot be pickled"):
        pickle.dumps(throttle, protocol)


def test_a_copy_is_the_same_throttle(throttle):
    assert copy.copy(throttle) is copy.deepcopy(throttle) is throttle


# Clocks


def test_the_clock_is_not_read_before_it_is_needed():
    AdaptiveThrottle(clock=loop_time)  # there is no loop yet


def test_a_long_time_before_the_first_use_is_not_measured_as_a_slow_one(clock, throttle):
    clock.now = 3600.0
    throttle.acquire()
    clock.now = 3600.5
    throttle.success()
    assert throttle.measured_rate == pytest.approx(1.6)


def test_a_clock_that_is_set_back_holds_nobody_up(throttle, clock):
    clock.now = 1e6
    throttle.throttled()
    clock.advance(1.0)
    assert throttle.acquire() == pytest.approx(1.0)
    clock.now = 0.0
    assert throttle.acquire() == pytest.approx(1.0)  # what was saved up is kept
    clock.advance(1.0)
    assert throttle.acquire() == 0.0


def test_a_clock_that_is_set_back_does_not_move_the_curve(clock):
    throttle = at_rate(7.0, clock)
    clock.now = 4.0
    throttle._meter = 8.0, 0, 1000.0
    throttle.success()
    there = throttle.rate
    assert there == pytest.approx(cubic(4.0, 10.0, BETA, SCALE))
    clock.now = -50.0
    throttle.success()
    assert throttle.rate == pytest.approx(there)
    clock.now = -49.5
    throttle.success()
    assert throttle.rate == pytest.approx(cubic(4.5, 10.0, BETA, SCALE))
    assert throttle._meter[:2] == (-99.0, 0)  # and the slots go on


def test_threads_that_come_a_little_out_of_order_gain_no_time(clock):
    throttle = at_rate(10.0, clock)
    granted = 0
    for step in range(100):  # to and fro, and after all 10 seconds
        for now in (step / 10, step / 10 - 0.9, step / 10):
            clock.now = max(0.0, now)
            granted += throttle.acquire() == 0.0
    assert granted == 99


def test_a_thread_that_was_held_up_for_long_gains_no_time(clock):
    throttle = at_rate(10.0, clock)
    granted = 0
    for step in range(100):
        for now in (step / 10, step / 10 - 5.0, step / 10):  # the one in the middle read the clock 5 s ago
            clock.now = max(0.0, now)
            granted += throttle.acquire() == 0.0
    assert granted == 99


@pytest.mark.parametrize("nonsense", [math.nan, math.inf, -math.inf])
def test_a_clock_that_shows_no_time_is_a_clock_that_stands_still(clock, nonsense):
    throttle = AdaptiveThrottle(clock=clock)
    for now in (nonsense, 5.0, nonsense, 6.0):
        clock.now = now
        throttle.throttled()
        throttle.success()
    assert throttle.rate == pytest.approx(0.5, rel=0.3)
    assert throttle.acquire() == 0.0
    clock.now = nonsense
    wait = throttle.acquire()
    assert 0.0 < wait <= 2.0
    clock.now = 6.0 + wait
    assert throttle.acquire() == 0.0


@pytest.mark.parametrize("huge", [1e18, 1e300, 1.7e308, -1.7e308])
def test_a_huge_clock_is_no_crash_and_no_hang(clock, huge):
    throttle = at_rate(0.5, clock)
    for now in (1.0, huge, 2.0, -huge, huge, 3.0):
        clock.now = now
        throttle.success()
        throttle.throttled()
        assert 0.0 <= throttle.acquire() <= 2.0
        assert 0.5 <= throttle.rate < 2.0
    clock.now = 5.0
    assert throttle.acquire() == 0.0


times = st.floats(allow_nan=False, allow_infinity=False) | st.floats(0, 100)
steps = st.lists(
    st.sampled_from(["success", "throttled", "acquire", "retry_after"])
    | st.floats(0, 5)  # time passes
    | st.tuples(st.just("set"), times),  # the clock is set
    max_size=60,
)
positive = st.floats(0, exclude_min=True, allow_infinity=False)
# How long an example takes says only how busy the machine is.
unhurried = settings(suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.slow
@unhurried
@given(steps=steps, start=times)
def test_no_sequence_of_events_brings_the_rate_below_its_least_or_tokens_below_zero(steps, start):
    clock = FakeClock(start)
    held(AdaptiveThrottle(clock=clock), clock, steps)


@pytest.mark.slow
@unhurried
@given(
    steps=steps,
    beta=st.floats(0, 1, exclude_min=True, exclude_max=True),
    scale=positive,
    smooth=st.floats(0, 1, exclude_min=True),
    min_rate=positive,
    burst=st.floats(1, allow_infinity=False),
    measure_every=st.floats(0.001, allow_infinity=False),
    headroom=st.floats(1, allow_infinity=False, exclude_min=True),
)
def test_that_holds_for_any_settings(steps, **given_settings):
    clock = FakeClock()
    held(AdaptiveThrottle(clock=clock, **given_settings), clock, steps)


def held(throttle, clock, steps):
    for step in steps:
        if isinstance(step, float):
            clock.now += step
        elif isinstance(step, tuple):
            clock.now = step[1]
        elif step == "retry_after":
            assert 0.0 <= throttle.retry_after <= LONGEST
        else:
            assert 0.0 <= (getattr(throttle, step)() or 0.0) <= LONGEST
        rate, tokens, at = throttle._bucket
        assert throttle.min_rate <= rate < math.inf
        assert 0.0 <= tokens <= max(throttle.burst, rate)
        assert math.isfinite(at)
        assert 0.0 <= throttle.measured_rate < math.inf
        assert throttle.rate == (rate if throttle.active else None)


@pytest.mark.slow
@unhurried
@given(gaps=st.lists(st.floats(0, 2), max_size=200), rate=st.floats(0.5, 50))
def test_no_more_is_granted_than_the_rate_allows_in_the_time(gaps, rate):
    clock = FakeClock()
    throttle = at_rate(rate, clock)
    granted = 0
    for gap in gaps:
        clock.advance(gap)
        while not throttle.acquire():
            granted += 1
    assert granted <= rate * clock.now + 1e-6


# Threads


@pytest.fixture
def frequent_switches():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def in_threads(body, count):
    """Runs ``body(number)`` in many threads that start at one instant; gives what each returned or raised."""
    barrier, results = threading.Barrier(count), [None] * count

    def run(number):
        barrier.wait()
        try:
            results[number] = body(number)
        except BaseException as error:
            results[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


class TickingClock:
    """Moves on by a tick with every look, whoever looks."""

    def __init__(self, tick):
        self._ticks = itertools.count(1)
        self.tick = tick

    def __call__(self):
        return next(self._ticks) * self.tick


@pytest.mark.slow
@pytest.mark.usefixtures("frequent_switches")
@pytest.mark.parametrize("threads", [8, 64])
def test_threads_together_send_no_more_than_the_rate_allows(threads):
    clock = TickingClock(0.0001)
    throttle = at_rate(5000.0, clock)  # a token for every second look
    began, looks = clock(), 4000 // threads
    results = in_threads(lambda _: sum(not throttle.acquire() for _ in range(looks)), threads)
    seconds = clock() - began
    assert 0.9 * 5000.0 * seconds - 1 <= sum(results) <= 5000.0 * seconds + 1


@pytest.mark.slow
@pytest.mark.usefixtures("frequent_switches")
def test_every_answer_of_every_thread_is_counted():
    throttle = AdaptiveThrottle(clock=lambda: 0.25)
    in_threads(lambda _: [throttle.success() for _ in range(100)], 64)
    assert throttle._meter == (0.0, 6400, 0.0)


@pytest.mark.slow
@pytest.mark.usefixtures("frequent_switches")
def test_whoever_looks_while_others_write_sees_nothing_torn():
    clock = TickingClock(0.001)
    throttle = AdaptiveThrottle(clock=clock)
    stop = threading.Event()

    def look(number):
        seen = 0
        while not stop.is_set():
            active, rate = throttle.active, throttle.rate
            assert not active or (rate is not None and 0.5 <= rate < 1e9)
            assert 0.0 <= throttle.retry_after <= 2.0
            assert throttle._bucket[1] >= 0.0
            assert throttle.measured_rate >= 0.0
            seen += 1
        return seen

    def write(number):
        for turn in range(200):
            throttle.acquire()
            throttle.throttled() if turn % 20 == number else throttle.success()

    def body(number):
        if number < 2:
            return look(number)
        try:
            return write(number)
        finally:
            if next(done) == 5:
                stop.set()

    done = itertools.count()
    with watchdog(60):
        results = in_threads(body, 8)
    assert [result for result in results if isinstance(result, BaseException)] == []
    assert min(results[:2]) > 0


@pytest.mark.slow
@pytest.mark.skipif(sys.implementation.name != "cpython", reason="needs a way to end a thread from outside")
def test_a_thread_that_is_ended_in_the_middle_leaves_the_throttle_sound(monkeypatch):
    if sys.gettrace() is not None:
        pytest.skip("it would strike in the tracer of coverage, and leave its lock held")

    class Ended(BaseException):
        pass

    # It may strike outside of the try, too.
    monkeypatch.setattr(threading, "excepthook", lambda args: None)
    throttle = AdaptiveThrottle(clock=TickingClock(0.01))
    over = threading.Event()

    def work():
        try:
            while not over.is_set():
                throttle.acquire()
                throttle.success()
                throttle.throttled()
        except Ended:
            pass

    try:
        for _ in range(100):
            thread = threading.Thread(target=work)
            thread.start()
            time.sleep(0.0002)
            end = ctypes.c_ulong(thread.ident), ctypes.py_object(Ended)
            while thread.is_alive():  # again, where it struck in what swallows it, as a finalizer does
                ctypes.pythonapi.PyThreadState_SetAsyncExc(*end)
                thread.join(0.01)
            held(throttle, FakeClock(), ["success", "throttled", "acquire"])
    finally:
        over.set()


class WatchedLock:
    """A lock that knows whether it is held, and does not suffer being taken twice."""

    def __init__(self):
        self.held = False
        self.taken = 0

    def __enter__(self):
        assert not self.held
        self.held = True
        self.taken += 1

    def __exit__(self, *_):
        self.held = False


def test_the_lock_is_never_held_while_code_of_the_user_runs():
    lock = WatchedLock()
    looks = []

    def watched(kind):
        assert not lock.held, kind
        looks.append(kind)

    class Clock(FakeClock):
        def __call__(self):
            watched("clock")
            return self.now

        def sleep(self, seconds):
            watched("sleep")
            super().sleep(seconds)

    class Busy(Exception):
        @property
        def status_code(self):
            watched("error")
            return 429

    clock = Clock()
    throttle = AdaptiveThrottle(clock=clock, sleep=clock.sleep)
    throttle._lock = lock

    @throttle
    def fetch():
        watched("function")
        raise Busy

    for _ in range(2):
        with pytest.raises(Busy):
            fetch()
    assert throttle.retry_after > 0.0
    assert {"clock", "sleep", "error", "function"} <= set(looks)
    assert lock.taken
    assert not lock.held


def test_before_the_first_complaint_asking_takes_no_lock(throttle):
    throttle.acquire()
    throttle._lock = None
    assert throttle.acquire() == 0.0


# Processes


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_child_that_was_forked_while_the_lock_was_held_can_use_the_throttle():
    code = """
        import os, signal, threading, warnings
        from redouble.throttle import AdaptiveThrottle

        warnings.simplefilter("ignore")  # of threads and fork, which is the point
        throttle = AdaptiveThrottle()
        throttle.throttled()
        held, done = threading.Event(), threading.Event()

        def hold():
            with throttle._lock:
                held.set()
                done.wait()

        thread = threading.Thread(target=hold)
        thread.start()
        held.wait()
        child = os.fork()
        if not child:
            signal.alarm(5)
            throttle.success()
            os._exit(0 if 0 < throttle.acquire() <= 2 and throttle.rate == 0.5 else 1)
        _, status = os.waitpid(child, 0)
        done.set()
        thread.join()
        print(status)
    """
    root = str(Path(redouble.__file__).parent.parent)
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, "PYTHONPATH": root},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout.strip(), done.stderr) == ("0", "")


def test_a_throttle_is_at_rest_until_it_is_told_to_slow_down():
    throttle = AdaptiveThrottle()
    assert throttle.at_rest
    throttle.throttled()
    assert not throttle.at_rest
