"""Breakers whose threads are killed, and their lock."""

from __future__ import annotations

import _thread
import contextlib
import ctypes
import itertools
import linecache
import random
import sys
import threading

import pytest

from conftest import watchdog
from redouble import breaker as breaker_module
from redouble import events
from redouble.errors import CircuitOpen
from redouble.testing import FakeClock
from support.breakers import CLOSED, EVERY_WAY, OPEN, check_invariants, make
from support.threads import switching_every


@pytest.fixture(autouse=True)
def no_log(monkeypatch):
    """The locks of logging are not what is tested; one of them stays held by a thread that is ended in it."""
    monkeypatch.setattr(events, "logger_for", lambda *given: None)


class Ended(BaseException):
    """What is thrown into a thread from outside."""


FILES = {breaker_module.__file__}


def ended_after(lines, function):
    """Calls it, and ends it after so many lines of ours; whether it had so many."""
    steps = itertools.count()

    def watch(frame, event, _):
        if frame.f_code.co_filename not in FILES:
            return None
        # The way out of a with block has the line of its beginning: no exception from outside comes there.
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
        if event == "line" and "with self._lock" not in line and next(steps) == lines:
            raise Ended
        return watch

    before = sys.gettrace()
    try:
        sys.settrace(watch)
        function()
    except Ended:
        return True
    finally:
        sys.settrace(before)
    return False


@pytest.mark.slow
@pytest.mark.parametrize("fields", EVERY_WAY)
def test_a_thread_that_is_ended_anywhere_leaves_a_sound_breaker(fields):
    """Every line of the sections is a place to end at: told by tracing, so each is really met."""

    def history():
        with contextlib.suppress(CircuitOpen):
            for _ in range(4):
                breaker.failure(breaker.enter(), TimeoutError("slow"))
        clock.advance(1.0)
        breaker.release(breaker.enter())
        breaker.success(breaker.enter())
        breaker.failure(breaker.enter(), TimeoutError("slow"))
        breaker.success(breaker.enter())
        breaker.open()
        breaker.close()

    for lines in itertools.count():
        clock = FakeClock()
        breaker = make(clock, open_for=1.0, **fields)
        if not ended_after(lines, history):
            break
        check_invariants(breaker)
        assert not is_held(breaker)
        # Whatever was left behind, an open circuit refuses, and time and a success close it.
        if breaker.state is OPEN:
            with pytest.raises(CircuitOpen):
                breaker.enter()
        if breaker.retry_after is None:
            breaker.close()
        clock.advance(1.0)
        breaker.success(breaker.enter())
        assert breaker.state is CLOSED
    assert lines > 200


@pytest.mark.parametrize("fields", EVERY_WAY)
def test_while_another_thread_is_in_the_middle_of_a_change_results_are_counted_under_the_lock(fields):
    breaker = make(**fields)
    breaker.failure(breaker.enter())
    ticket, counted = breaker.enter(), breaker.counted
    breaker._hide()  # as far as a thread came that was ended
    breaker.success(ticket)
    assert breaker._ticket == ticket
    assert breaker.counted == ((0, 0) if breaker._clean else (counted[0] + 1, 1))


def is_held(breaker):
    """Whether a thread holds the lock; asked from another, since it is reentrant."""
    answer = []

    def ask():
        got = breaker._lock.acquire(blocking=False)
        if got:
            breaker._lock.release()
        answer.append(not got)

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    return answer[0]


@pytest.mark.slow
@pytest.mark.parametrize("fields", EVERY_WAY)
def test_threads_that_are_ended_from_outside_leave_a_sound_breaker(fields):
    breaker, ended = make(open_for=1e-4, probes=2, **fields), []

    def work(ready):
        draw = random.Random()
        try:
            ready.set()
            while True:
                try:
                    with breaker:
                        if draw.random() < 0.5:
                            raise TimeoutError
                except (CircuitOpen, TimeoutError):
                    pass
        except Ended:
            ended.append(1)

    with untraced(), switching_every(1e-4), watchdog():
        for _ in range(40):
            ready = [threading.Event() for _ in range(3)]
            threads = [threading.Thread(target=work, args=(event,)) for event in ready]
            for thread, event in zip(threads, ready, strict=True):
                thread.start()
                event.wait()
            for thread in threads:
                throw_into(thread)
            for thread in threads:
                thread.join()
            assert not is_held(breaker)
            check_invariants(breaker)
        breaker.close()
        with breaker:
            pass
    assert len(ended) == 120


@contextlib.contextmanager
def untraced():
    """Python 3.11 under a tracer does not enter a function while an exception from outside waits in any thread."""
    here, in_threads = sys.gettrace(), threading.gettrace()
    sys.settrace(None)
    threading.settrace(None)
    try:
        yield
    finally:
        threading.settrace(in_threads)
        sys.settrace(here)


def throw_into(thread):
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(Ended))


class Forbidden:
    """A lock that nobody may take."""

    def __enter__(self):
        raise AssertionError("took the lock")

    def __exit__(self, *_):
        raise AssertionError

    acquire = release = __enter__


@pytest.mark.parametrize(
    "fields",
    [{}, {"failure_rate": 0.5}, {"failure_rate": 0.5, "last_calls": 100}],
    ids=["row", "time", "count"],
)
@pytest.mark.parametrize("clock", [None, FakeClock()], ids=["real", "fake"])
def test_a_success_through_a_clean_breaker_takes_no_lock(fields, clock):
    breaker = make(clock, **fields)
    call = breaker(lambda: "page")
    breaker._lock = Forbidden()
    for _ in range(3):
        assert call() == "page"
        with breaker:
            pass
        breaker.release(breaker.enter())
        assert not breaker.refuses()
        assert breaker.state is CLOSED


def test_a_success_through_a_rate_with_failures_takes_no_lock():
    breaker = make(failure_rate=0.5)
    breaker.failure(breaker.enter())
    lock, breaker._lock = breaker._lock, Forbidden()
    breaker.success(breaker.enter())
    breaker._lock = lock
    assert breaker.counted == (2, 1)


def test_a_success_after_failures_in_a_row_does_take_it():
    breaker = make()
    breaker.failure(breaker.enter())
    breaker._lock = Forbidden()
    with pytest.raises(AssertionError, match="took the lock"):
        breaker.success(breaker.enter())


class Watched:
    """A lock that knows whether it is held."""

    def __init__(self):
        self.held, self._lock, self.taken = 0, _thread.RLock(), 0

    def __enter__(self):
        self._lock.acquire()
        self.held += 1
        self.taken += 1

    def __exit__(self, *_):
        self.held -= 1
        self._lock.release()


def test_nothing_of_the_user_runs_under_the_lock():
    lock, seen = Watched(), []

    def look(what):
        seen.append((what, lock.held))

    class Loud(Exception):
        def __str__(self):
            look("error")
            return "loud"

    def ignore(error):
        look("ignore")
        return False

    clock = FakeClock()

    def reading():
        look("clock")
        return clock()

    breaker = make(reading, failures=1, ignore=ignore, listeners=[lambda event: look("listener")])
    breaker._lock = lock

    @breaker
    def call(error=None):
        look("function")
        if error is not None:
            raise error

    for _ in range(2):
        with pytest.raises(Loud):
            call(Loud())
        with pytest.raises(CircuitOpen):
            call()
        clock.advance(30)
        call()
        clock.advance(30)
    breaker.open()
    breaker.close()
    assert (breaker.state, breaker.retry_after, breaker.counted) == (CLOSED, 0.0, (0, 0))
    assert lock.taken > 8
    assert {what for what, _ in seen} == {"clock", "error", "function", "ignore", "listener"}
    assert [what for what, held in seen if held] == []


def test_no_breaker_holds_its_lock_while_it_asks_another():
    order = []

    class Ordered(Watched):
        def __init__(self, name):
            super().__init__()
            self.name = name

        def __enter__(self):
            order.append((self.name, [other.name for other in locks if other.held and other is not self]))
            super().__enter__()

    locks = [Ordered("one"), Ordered("other")]
    clock = FakeClock()
    one = make(clock, failures=1, listeners=[lambda event: other.failure()])
    other = make(clock, failures=1, listeners=[lambda event: one.failure()])
    one._lock, other._lock = locks
    with pytest.raises(TimeoutError), one, other:
        raise TimeoutError
    assert {name for name, _ in order} == {"one", "other"}
    assert all(held == [] for _, held in order)
