"""Throttles on clocks that are set back, stand still or show nonsense."""

from __future__ import annotations

import math

import pytest

from conftest import loop_time
from redouble.throttle import AdaptiveThrottle, cubic
from support.throttles import BETA, SCALE, at_rate


@pytest.fixture
def throttle(clock):
    return AdaptiveThrottle(clock=clock, sleep=clock.sleep)


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
