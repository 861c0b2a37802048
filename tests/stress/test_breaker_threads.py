"""Breakers under threads: probes, and random outcomes."""

from __future__ import annotations

import random
import threading

import pytest

from conftest import not_under_coverage, watchdog
from redouble import events
from redouble.breaker import TRANSITIONS, State
from redouble.errors import CircuitOpen
from redouble.testing import FakeClock
from support.breakers import CLOSED, EVERY_WAY, HALF_OPEN, OPEN, Excluded, check_invariants, half_opened, make
from support.threads import in_threads

THREADS = 64
LEGAL = {(before, after) for (before, _), after in TRANSITIONS.items()}


@pytest.fixture(autouse=True)
def no_log(monkeypatch):
    """The locks of logging are not what is tested; one of them stays held by a thread that is ended in it."""
    monkeypatch.setattr(events, "logger_for", lambda *given: None)


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

    with watchdog(120 + rounds):
        results = in_threads(body)
    return [sum(passed[turn] is not None for passed in results) for turn in range(rounds)]


@pytest.mark.slow
@pytest.mark.usefixtures("frequent_switches")
@pytest.mark.parametrize(("probes", "successes"), [(1, 1), (3, 3), (5, 2), (2, 40)])
def test_of_64_callers_at_one_instant_exactly_as_many_pass_as_may(probes, successes):
    assert let_in(100, probes, successes) == [probes] * 100


@pytest.mark.slow
@not_under_coverage
@pytest.mark.usefixtures("frequent_switches")
@pytest.mark.parametrize(("probes", "successes"), [(1, 1), (3, 3)])
def test_of_64_callers_at_one_instant_exactly_as_many_pass_in_a_thousand_rounds(probes, successes):
    assert let_in(1000, probes, successes) == [probes] * 1000


@pytest.mark.usefixtures("frequent_switches")
def test_the_slots_of_probes_go_round_and_never_more_are_under_way_than_there_are():
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

    with watchdog():
        results = in_threads(body, 16)
    assert sum(results) >= 4
    assert highest[0] <= 4
    assert (breaker.state, breaker._circuit.phase.probes) == (HALF_OPEN, 0)


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

    with watchdog():
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
@not_under_coverage
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

    with watchdog():
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

    with watchdog():
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

    with watchdog():
        results = in_threads(lambda number: write() if number == 0 else read(), 4)
    assert results == ["written", "read", "read", "read"]
    assert len(seen) >= 2
