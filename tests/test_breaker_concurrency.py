"""One circuit breaker, many threads: bounded probes, exact counts, no lock where none is needed."""

from __future__ import annotations

import _thread
import contextlib
import ctypes
import itertools
import linecache
import os
import random
import sys
import threading
import time

import pytest

from conftest import watchdog, where_nothing_is_traced
from interleaving import explore
from redouble import _circuit, _tripping, events
from redouble import breaker as breaker_module
from redouble.breaker import TRANSITIONS, CircuitBreaker, State
from redouble.errors import CircuitOpen
from redouble.testing import FakeClock

THREADS = 64
CLOSED, OPEN, HALF_OPEN = State.closed, State.open, State.half_open
LEGAL = {(before, after) for (before, _), after in TRANSITIONS.items()}
EVERY_WAY = [
    pytest.param({"failures": 3}, id="row"),
    pytest.param({"failure_rate": 0.5, "minimum_calls": 4, "last_calls": 16}, id="count"),
    pytest.param({"failure_rate": 0.5, "minimum_calls": 4, "window": 10.0}, id="time"),
]


@contextlib.contextmanager
def switching_every(seconds):
    before = sys.getswitchinterval()
    sys.setswitchinterval(seconds)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


@pytest.fixture
def frequent_switches():
    """Threads take turns every microsecond, so that whatever is not safe shows."""
    with switching_every(1e-6):
        yield


@pytest.fixture(autouse=True)
def no_log(monkeypatch):
    """The locks of logging are not what is tested; one of them stays held by a thread that is ended in it."""
    monkeypatch.setattr(events, "_logger", lambda: None)


class Excluded(Exception):
    pass


def make(clock=None, **fields):
    return CircuitBreaker(**{"clock": clock, "ignore": Excluded, "name": "shop", **fields})


def half_opened(clock, **fields):
    breaker = make(clock, failures=1, **fields)
    breaker.failure(breaker.enter(), TimeoutError("slow"))
    clock.advance(breaker.retry_after)
    return breaker


def in_threads(body, count=THREADS):
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


# Probes


def let_in(rounds, probes, successes):
    """How many of 64 callers at one instant pass a half-open circuit, round by round."""
    clocks = [FakeClock() for _ in range(rounds)]
    breakers = [half_opened(clock, probes=probes, successes=successes) for clock in clocks]
    start = threading.Barrier(THREADS)

    def body(_):
        passed = []
        for breaker in breakers:
            start.wait()
            try:
                passed.append(breaker.enter())
            except CircuitOpen:
                passed.append(None)
        return passed

    with watchdog(20 + rounds // 2):
        results = in_threads(body)
    return [sum(passed[turn] is not None for passed in results) for turn in range(rounds)]


@pytest.mark.slow
@pytest.mark.usefixtures("frequent_switches")
@pytest.mark.parametrize(("probes", "successes"), [(1, 1), (3, 3), (5, 2), (2, 40)])
def test_of_64_callers_at_one_instant_exactly_as_many_pass_as_may(probes, successes):
    assert let_in(100, probes, successes) == [probes] * 100


@pytest.mark.slow
@where_nothing_is_traced
@pytest.mark.usefixtures("frequent_switches")
@pytest.mark.parametrize(("probes", "successes"), [(1, 1), (3, 3)])
def test_of_64_callers_at_one_instant_exactly_as_many_pass_in_a_thousand_rounds(probes, successes):
    assert let_in(1000, probes, successes) == [probes] * 1000


@pytest.mark.usefixtures("frequent_switches")
def test_the_places_of_probes_go_round_and_never_more_are_under_way_than_there_are():
    breaker = half_opened(FakeClock(), probes=4, successes=10**9)
    under_way, highest, lock = [0], [0], threading.Lock()

    def body(_):
        passed = 0
        for _ in range(60):
            try:
                ticket = breaker.enter()
            except CircuitOpen:
                continue
            passed += 1
            with lock:
                under_way[0] += 1
                highest[0] = max(highest[0], under_way[0])
            with lock:
                under_way[0] -= 1
            breaker.failure(ticket, Excluded()) if passed % 2 else breaker.release(ticket)
        return passed

    with watchdog(60):
        results = in_threads(body, 16)
    assert sum(results) >= 4
    assert highest[0] <= 4
    assert (breaker.state, breaker._circuit.phase.probes) == (HALF_OPEN, 0)


# Random outcomes


def check_invariants(breaker):
    """What must hold whenever nobody is in the middle of a change."""
    phase = breaker._circuit.phase
    assert 0 <= phase.probes <= breaker._circuit.probes
    assert 0 <= phase.successes < max(2, breaker._circuit.successes)
    assert phase.probes == 0 or phase.state is HALF_OPEN
    assert breaker.ticket in (None, phase.generation)
    if phase.state is not CLOSED:
        assert (breaker.ticket, breaker.clean) == (None, False)
    if breaker.clean:
        assert breaker.counted == (0, 0)
    calls, failures = breaker.counted
    assert 0 <= failures <= calls


@pytest.mark.slow
@pytest.mark.usefixtures("frequent_switches")
@pytest.mark.parametrize("fields", EVERY_WAY)
def test_64_threads_with_random_outcomes_leave_a_sound_breaker(fields):
    changes, clock = [], FakeClock()
    breaker = make(
        clock, probes=2, successes=2, open_for=1.0, listeners=[lambda event: changes.append(event)], **fields
    )

    def body(number):
        draw = random.Random(number)
        for _ in range(60):
            clock.now += 0.01  # torn now and then, as clocks of tests are: it never goes far back
            try:
                ticket = breaker.enter()
            except CircuitOpen as error:
                assert error.name == "shop"
                continue
            how = draw.random()
            if how < 0.5:
                breaker.success(ticket)
            elif how < 0.8:
                breaker.failure(ticket, TimeoutError())
            elif how < 0.9:
                breaker.failure(ticket, Excluded())
            elif how < 0.98:
                breaker.release(ticket)
            # Else it is lost, and must be replaced.
        return "done"

    with watchdog(60):
        assert in_threads(body) == ["done"] * THREADS
    check_invariants(breaker)
    assert {(event.before, event.after) for event in changes} <= LEGAL
    # Told from many threads, so in no particular order; but every way out of a state has one into it.
    into = [event.after for event in changes]
    out_of = [event.before for event in changes]
    for state in State:
        balance = into.count(state) - out_of.count(state) + (state is CLOSED)
        assert balance == (breaker._circuit.phase.state is state)
    clock.advance(1.0)
    while breaker.state is not CLOSED:  # and it works as ever
        breaker.success(breaker.enter())
        clock.advance(1.0)


@pytest.mark.slow
@where_nothing_is_traced
@pytest.mark.usefixtures("frequent_switches")
@pytest.mark.parametrize("fields", [{"window": 1e6}, {"last_calls": 10**6}], ids=["time", "count"])
def test_no_update_is_lost_in_100_000_calls(fields):
    breaker = make(failure_rate=1.0, minimum_calls=10**6, **fields)
    ok = breaker(lambda: None)

    @breaker
    def excluded():
        raise Excluded

    def body(_):
        for _ in range(5_000):
            ok()
            try:
                excluded()
            except Excluded:
                pass

    with watchdog(60):
        in_threads(body, 10)
    assert breaker.counted == (50_000, 0)


@pytest.mark.usefixtures("frequent_switches")
@pytest.mark.parametrize("fields", [{"window": 1e6}, {"last_calls": 10**6}], ids=["time", "count"])
def test_successes_and_failures_of_many_threads_are_counted_exactly(fields):
    breaker = make(failure_rate=1.0, minimum_calls=10**6, **fields)

    def body(number):
        for turn in range(200):
            ticket = breaker.enter()
            if (number + turn) % 10:
                breaker.success(ticket)
            else:
                breaker.failure(ticket)

    with watchdog(60):
        in_threads(body, 16)
    assert breaker.counted == (3_200, 320)


@pytest.mark.usefixtures("frequent_switches")
def test_failures_in_a_row_from_many_threads_are_counted_exactly():
    breaker = make(failures=10**6)
    in_threads(lambda _: [breaker.failure(breaker.enter()) for _ in range(50)])
    assert breaker.counted == (50 * THREADS, 50 * THREADS)


@pytest.mark.usefixtures("frequent_switches")
def test_of_many_failures_at_one_instant_one_opens_the_circuit():
    heard = []
    breaker = make(failures=1, listeners=[heard.append])
    tickets = [breaker.enter() for _ in range(THREADS)]
    in_threads(lambda number: breaker.failure(tickets[number], TimeoutError(f"of {number}")))
    (event,) = heard
    assert breaker.refusal().last_failure == event.error_message


@pytest.mark.slow
@pytest.mark.usefixtures("frequent_switches")
@pytest.mark.parametrize("fields", EVERY_WAY)
def test_a_reader_never_sees_half_of_a_change(fields):
    clock = FakeClock()
    breaker, over = make(clock, open_for=1.0, **fields), threading.Event()
    seen = set()

    def read():
        while not over.is_set():
            calls, failures = breaker.counted
            assert 0 <= failures <= calls
            refusal = breaker.refusal()
            by_hand = "by hand" in str(refusal)
            assert (refusal.retry_after is None) == by_hand
            phase = breaker._circuit.phase
            assert (phase.until is None) or phase.state is OPEN
            assert phase.probes <= 1
            seen.add(breaker.state)
            repr(breaker)
        return "read"

    def write():
        draw, turn = random.Random(1), 0
        # Until the readers have had their turns as well.
        while turn < 1_500 or (len(seen) < 2 and turn < 200_000):
            turn += 1
            clock.now += 0.05
            try:
                (breaker.failure if draw.random() < 0.6 else breaker.success)(breaker.enter())
            except CircuitOpen:
                pass
            if draw.random() < 0.01:
                breaker.open()
                breaker.close()
        over.set()
        return "written"

    with watchdog(60):
        results = in_threads(lambda number: write() if number == 0 else read(), 4)
    assert results == ["written", "read", "read", "read"]
    assert len(seen) >= 2


# Threads that are ended in the middle


class Ended(BaseException):
    """What is thrown into a thread from outside."""


FILES = {breaker_module.__file__, _circuit.__file__, _tripping.__file__}


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
    assert breaker.ticket == ticket
    assert breaker.counted == ((0, 0) if breaker.clean else (counted[0] + 1, 1))


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

    with untraced(), switching_every(1e-4), watchdog(60):
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


# Locks


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


# Every order of three threads


def enter(breaker):
    return breaker.enter()


def fails(breaker):
    breaker.failure(breaker.enter(), TimeoutError("slow"))
    return "failed"


def succeeds(breaker):
    breaker.success(breaker.enter())
    return "succeeded"


def is_excluded(breaker):
    breaker.failure(breaker.enter(), Excluded())
    return "excluded"


def is_interrupted(breaker):
    breaker.release(breaker.enter())
    return "interrupted"


def always_sound(breaker):
    """What holds at every boundary of the lock, for whoever looks without one."""
    phase = breaker._circuit.phase
    assert 0 <= phase.probes <= breaker._circuit.probes
    assert breaker.ticket is None or phase.state is CLOSED
    assert not (breaker.clean and phase.state is not CLOSED)


@pytest.mark.slow
@pytest.mark.parametrize("probes", [1, 2])
def test_in_every_order_of_three_callers_exactly_as_many_pass_as_may(probes):
    def check(breaker, results):
        assert sum(type(result) is int for result in results) == probes
        assert sum(type(result) is CircuitOpen for result in results) == 3 - probes
        assert breaker._circuit.phase.probes == probes

    runs = explore(
        lambda: half_opened(FakeClock(), probes=probes),
        [enter] * 3,
        check,
        always=always_sound,
        preemptions=2 if probes == 1 else None,
    )
    assert runs == (192 if probes == 1 else 1680)  # three steps each: before the section, in it, after it


ENDS = [fails, succeeds, is_excluded, is_interrupted]


@pytest.mark.slow
@pytest.mark.parametrize(
    "bodies",
    list(itertools.combinations_with_replacement(ENDS, 3)),
    ids=lambda bodies: " ".join(body.__name__ for body in bodies),
)
def test_in_every_order_three_probes_leave_a_circuit_that_fits_what_became_of_them(bodies):
    def check(breaker, results):
        check_invariants(breaker)
        assert breaker._circuit.phase.probes == 0  # all have ended
        told = [result for result in results if type(result) is str]
        assert all(type(result) is CircuitOpen for result in results if type(result) is not str)
        state = breaker._circuit.phase.state
        assert len(told) >= 1
        if "failed" in told and "succeeded" not in told:
            assert state is OPEN
        if "succeeded" in told and "failed" not in told:
            assert state is CLOSED
        if "failed" not in told and "succeeded" not in told:
            assert state is HALF_OPEN
        assert state is not HALF_OPEN or not {"failed", "succeeded"} & set(told)

    all_differ = len(set(bodies)) == 3
    runs = explore(
        lambda: half_opened(FakeClock(), probes=2),
        bodies,
        check,
        always=always_sound,
        preemptions=2 if all_differ else 1,
    )
    assert runs > 40


@pytest.mark.slow
def test_in_every_order_two_successes_are_needed_where_two_are_asked_for():
    def check(breaker, results):
        check_invariants(breaker)
        assert (breaker.state is CLOSED) == (results.count("succeeded") >= 2)

    explore(
        lambda: half_opened(FakeClock(), probes=2, successes=2),
        [succeeds, succeeds, is_excluded],
        check,
        always=always_sound,
        preemptions=2,
    )


@pytest.mark.slow
def test_in_every_order_a_hand_that_closes_wins_or_comes_before():
    def closes(breaker):
        breaker.close()
        return "closed"

    def check(breaker, results):
        check_invariants(breaker)
        assert results[2] == "closed"
        assert breaker.state in (CLOSED, OPEN)
        if breaker.state is OPEN:
            assert "failed" in results

    explore(
        lambda: half_opened(FakeClock()), [fails, succeeds, closes], check, always=always_sound, preemptions=2
    )


def test_in_every_order_of_lines_exactly_one_of_two_callers_passes():
    """At the grain of lines: what `enter` reads before it takes the lock is covered, too."""

    def check(breaker, results):
        assert sorted(type(result).__name__ for result in results) == ["CircuitOpen", "int"]

    runs = explore(
        lambda: half_opened(FakeClock()),
        [enter, enter],
        check,
        modules=[breaker_module],
        preemptions=1,
    )
    assert runs > 20


def test_in_every_order_of_lines_a_success_and_a_failure_in_a_row_are_both_counted():
    def check(breaker, results):
        check_invariants(breaker)
        assert breaker.counted in [(1, 1), (0, 0)]
        assert breaker.clean == (breaker.counted == (0, 0))

    def setup():
        breaker = make(FakeClock(), failures=5)
        breaker.failure(breaker.enter(), TimeoutError())
        return breaker

    explore(setup, [fails, succeeds], check, modules=[breaker_module], preemptions=1)


# Forks


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")


def in_a_child(question):
    """What the question gives in a forked child, as its exit code; a child that hangs is ended."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # this process has threads: that is the point
        child = os.fork()
    if child == 0:
        code = 99
        try:
            code = int(question())
        finally:
            os._exit(code)
    for _ in range(500):
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return "hangs"


@needs_fork
def test_a_fork_while_another_thread_holds_the_lock_leaves_the_child_a_lock_of_its_own():
    breaker = half_opened(FakeClock())
    held, done = threading.Event(), threading.Event()

    def hold():
        with breaker._lock:
            held.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    try:
        assert in_a_child(lambda: breaker.success(breaker.enter()) or breaker.state is CLOSED) == 1
    finally:
        done.set()
        thread.join()
    assert breaker.state is HALF_OPEN


@needs_fork
def test_a_fork_while_probes_are_under_way_leaves_the_child_all_places():
    breaker = half_opened(FakeClock(), probes=2, successes=3)
    tickets = [breaker.enter(), breaker.enter()]

    def in_the_child():
        places = 0
        try:
            while True:
                breaker.enter()
                places += 1
        except CircuitOpen:
            return places

    assert in_a_child(in_the_child) == 2
    with pytest.raises(CircuitOpen):
        breaker.enter()  # here they are still taken
    for ticket in tickets:
        breaker.success(ticket)
    breaker.success(breaker.enter())
    assert breaker.state is CLOSED


@needs_fork
def test_a_probe_that_forks_counts_in_the_child_and_frees_no_place_of_others():
    breaker = half_opened(FakeClock(), probes=1, successes=2)
    ticket = breaker.enter()

    def in_the_child():
        breaker.enter()
        breaker.success(ticket)
        try:
            breaker.enter()
        except CircuitOpen:
            return breaker._circuit.phase.successes
        return 50

    assert in_a_child(in_the_child) == 1


@needs_fork
def test_the_counts_of_a_closed_circuit_are_taken_over_by_a_child():
    breaker = make(failure_rate=1.0, minimum_calls=100, last_calls=100)
    for _ in range(7):
        breaker.failure(breaker.enter())
    assert in_a_child(lambda: breaker.counted[1]) == 7


@pytest.mark.parametrize("under_way", [0, 1])
def test_what_is_done_in_a_child_frees_the_lock_and_the_places_and_nothing_else(under_way):
    breaker = half_opened(FakeClock(), probes=1, successes=2)
    breaker.success(breaker.enter())
    tickets = [breaker.enter() for _ in range(under_way)]
    lock = breaker._lock
    breaker._after_fork()
    assert breaker._lock is not lock
    assert (breaker.state, breaker._circuit.phase.successes) == (HALF_OPEN, 1)
    breaker.enter()
    for ticket in tickets:
        breaker.success(ticket)
        assert breaker.state is CLOSED
