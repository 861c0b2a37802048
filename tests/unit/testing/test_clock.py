"""`FakeClock` and the clock of skipped waits."""

from __future__ import annotations

import copy
import pickle

import pytest

from redouble import (
    Policy,
)
from redouble.backoff import exponential
from redouble.testing import (
    FakeClock,
)
from redouble.testing._clock import Waits


def test_a_fake_clock_stands_still_until_somebody_sleeps():
    clock = FakeClock(100.0)
    assert (clock(), clock(), clock.now, clock.waits) == (100.0, 100.0, 100.0, [])
    clock.sleep(2.5)
    clock.advance(1.0)
    assert (clock(), clock.now, clock.waits) == (103.5, 103.5, [2.5])


def test_a_fake_clock_starts_at_zero():
    assert FakeClock()() == 0.0


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), True])
def test_a_fake_clock_never_goes_back_nor_beyond_all_time(seconds):
    clock = FakeClock()
    for move in (clock.sleep, clock.advance):
        with pytest.raises(ValueError, match="seconds must be "):
            move(seconds)
    assert clock.now == 0.0


def test_a_refused_wait_is_not_written_down():
    clock = FakeClock()
    with pytest.raises(ValueError, match="seconds must be finite and not negative, got -1"):
        clock.sleep(-1)
    assert clock.waits == []


def test_a_fake_clock_serves_a_whole_policy(flavour, clock):
    policy = Policy(backoff=exponential, deadline=9.0, clock=clock, sleep=clock.sleep)
    assert flavour.call(policy, flavour.scripted(TimeoutError(), TimeoutError(), "page")) == "page"
    assert (clock.waits, clock.now) == ([1.0, 2.0], 3.0)


@pytest.mark.parametrize("kind", [FakeClock, Waits])
def test_time_that_passes_elsewhere_meanwhile_is_not_lost(kind):
    clock = kind()

    class Slow:
        """Seconds that take time to be read: as good as a thread that comes between."""

        def __float__(self):
            clock.advance(1.0)
            return 10.0

    before = clock()
    clock.sleep(Slow())
    assert clock() - before == pytest.approx(11.0, abs=0.5)


def test_a_fake_clock_can_be_copied_and_pickled():
    clock = FakeClock(5.0)
    clock.sleep(1.0)
    for other in (copy.deepcopy(clock), pickle.loads(pickle.dumps(clock))):
        assert (other.now, other.waits) == (6.0, [1.0])
