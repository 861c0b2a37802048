"""Throttles under random operations, threads and forks."""

from __future__ import annotations

import ctypes
import itertools
import math
import os
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import redouble
from conftest import watchdog
from redouble.backoff import LONGEST
from redouble.testing import FakeClock
from redouble.throttle import AdaptiveThrottle
from support.threads import in_threads
from support.throttles import at_rate


@pytest.fixture
def throttle(clock):
    return AdaptiveThrottle(clock=clock, sleep=clock.sleep)


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
    with watchdog():
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
