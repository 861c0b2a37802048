"""Every order of the steps of three threads at a breaker; forks."""

from __future__ import annotations

import itertools
import os
import threading
import time

import pytest

from redouble import breaker as breaker_module
from redouble import events
from redouble.errors import CircuitOpen
from redouble.testing import FakeClock
from support.breakers import CLOSED, HALF_OPEN, OPEN, Excluded, check_invariants, half_opened, make
from support.interleaving import explore


@pytest.fixture(autouse=True)
def no_log(monkeypatch):
    """The locks of logging are not what is tested; one of them stays held by a thread that is ended in it."""
    monkeypatch.setattr(events, "logger_for", lambda *given: None)


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
    assert breaker._ticket is None or phase.state is CLOSED
    assert not (breaker._clean and phase.state is not CLOSED)


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
        assert breaker._clean == (breaker.counted == (0, 0))

    def setup():
        breaker = make(FakeClock(), failures=5)
        breaker.failure(breaker.enter(), TimeoutError())
        return breaker

    explore(setup, [fails, succeeds], check, modules=[breaker_module], preemptions=1)


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
def test_a_fork_while_probes_are_under_way_leaves_the_child_all_slots():
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
def test_a_probe_that_forks_counts_in_the_child_and_frees_no_slot_of_others():
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
def test_what_is_done_in_a_child_frees_the_lock_and_the_slots_and_nothing_else(under_way):
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
