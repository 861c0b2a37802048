"""The published test cases of gobreaker and Polly."""

from __future__ import annotations

import sys
import traceback

import pytest

from redouble.errors import CircuitOpen
from redouble.testing import FakeClock
from support.breakers import (
    CLOSED,
    HALF_OPEN,
    KINDS,
    OPEN,
    exclude,
    fail,
    half_opened,
    make,
    opened,
    refused,
    succeed,
    watcher,
)


def test_the_default_flow_of_gobreaker(clock):
    """It trips on more than 5 failures in a row, so on 6. Its counts are told here as far as we keep them."""
    breaker = make(clock, failures=6, open_for=60)
    fail(breaker, 5)
    assert (breaker.state, breaker.counted) == (CLOSED, (5, 5))
    succeed(breaker)
    assert (breaker.state, breaker.counted) == (CLOSED, (0, 0))
    fail(breaker)
    assert (breaker.state, breaker.counted) == (CLOSED, (1, 1))
    fail(breaker, 5)
    assert breaker.state is OPEN
    refused(breaker)
    refused(breaker)
    assert breaker.state is OPEN
    clock.advance(60 - 0.001)
    assert breaker.state is OPEN
    refused(breaker)
    clock.advance(1)
    assert breaker.state is HALF_OPEN
    fail(breaker)
    assert breaker.state is OPEN
    clock.advance(60 + 1e-9)
    assert breaker.state is HALF_OPEN
    succeed(breaker)
    assert (breaker.state, breaker.counted) == (CLOSED, (0, 0))


def test_the_custom_flow_of_gobreaker(clock):
    """At the end of its interval gobreaker forgets all counts; here the window slides, by tenths of it.

    So the success of second 29.999 is still there when gobreaker begins anew at second 30, and it takes one
    failure more to come to a rate of 0.6. Everything else is the same.
    """
    breaker = make(clock, failure_rate=0.6, window=30, minimum_calls=3, open_for=90, probes=3, successes=3)
    for _ in range(5):
        succeed(breaker)
        fail(breaker)
        exclude(breaker)
    assert (breaker.state, breaker.counted) == (CLOSED, (10, 5))
    clock.advance(30 - 0.001)
    succeed(breaker)
    assert (breaker.state, breaker.counted) == (CLOSED, (11, 5))
    clock.advance(1)
    fail(breaker)
    assert (breaker.state, breaker.counted) == (CLOSED, (2, 1))
    succeed(breaker)
    fail(breaker)
    assert (breaker.state, breaker.counted) == (CLOSED, (4, 2))
    fail(breaker)  # 3 of 5
    assert breaker.state is OPEN
    clock.advance(90 + 1e-9)
    assert breaker.state is HALF_OPEN
    exclude(breaker, 4)
    assert breaker.state is HALF_OPEN
    fail(breaker)
    assert breaker.state is OPEN
    clock.advance(90 + 1e-9)
    succeed(breaker, 2)
    assert breaker.state is HALF_OPEN
    slow = breaker.enter()
    refused(breaker)
    breaker.success(slow)
    assert (breaker.state, breaker.counted) == (CLOSED, (0, 0))


@pytest.mark.parametrize("fields", [{}, {"failure_rate": 0.5, "minimum_calls": 2}, {"failure_rate": 0.5, "minimum_calls": 2, "last_calls": 9}])  # fmt: skip
def test_an_excluded_error_is_neutral(clock, fields):
    breaker = make(clock, **fields)
    fail(breaker)
    exclude(breaker, 100)
    assert (breaker.state, breaker.counted) == (CLOSED, (1, 1))


def test_an_excluded_error_between_failures_does_not_break_the_row(clock):
    breaker = make(clock, failures=2)
    fail(breaker)
    exclude(breaker)
    fail(breaker)
    assert breaker.state is OPEN


@pytest.mark.parametrize("end", ["success", "failure"])
@pytest.mark.parametrize("fields", [{"failures": 2}, {"failure_rate": 0.5, "minimum_calls": 2}], ids=str)
def test_a_result_from_before_the_counts_were_reset_is_dropped(clock, fields, end):
    breaker = make(clock, **fields)
    before = breaker.enter()
    breaker.close()
    fail(breaker)
    getattr(breaker, end)(before)
    assert (breaker.state, breaker.counted) == (CLOSED, (1, 1))


@pytest.mark.parametrize("end", ["success", "failure", "release"])
def test_a_result_from_before_the_circuit_opened_is_dropped_in_every_later_state(clock, end):
    breaker = make(clock, failures=1)
    late = [breaker.enter() for _ in range(3)]
    fail(breaker)
    getattr(breaker, end)(late.pop())
    assert (breaker.state, breaker.retry_after) == (OPEN, 30.0)
    clock.advance(30)
    probe = breaker.enter()
    getattr(breaker, end)(late.pop())
    assert breaker.state is HALF_OPEN
    refused(breaker)  # the place of the probe is taken as before
    breaker.success(probe)
    getattr(breaker, end)(late.pop())
    assert (breaker.state, breaker.counted) == (CLOSED, (0, 0))


def test_a_panic_counts_as_a_failure_and_goes_on_up(clock):
    """What Go calls a panic is here an exception that nobody has heard of."""
    breaker, panic = make(clock, failures=1), RuntimeError("oops")

    @breaker
    def call():
        raise panic

    with pytest.raises(RuntimeError) as caught:
        call()
    assert caught.value is panic
    assert (panic.__cause__, panic.__context__, getattr(panic, "__notes__", [])) == (None, None, [])
    assert breaker.state is OPEN


@pytest.mark.parametrize("kind", KINDS, ids=["time", "count"])
@pytest.mark.parametrize(
    ("throughput", "minimum", "rate", "threshold", "breaks"),
    [(10, 10, 0.0, 0.1, False), (10, 10, 0.1, 0.1, True), (10, 10, 0.2, 0.1, True), (11, 10, 0.2, 0.1, True), (9, 10, 0.1, 0.1, False)],
)  # fmt: skip
def test_it_opens_at_the_rate_once_there_were_enough_calls(
    clock, kind, throughput, minimum, rate, threshold, breaks
):
    breaker = make(clock, failure_rate=threshold, minimum_calls=minimum, **kind)
    tickets = [breaker.enter() for _ in range(throughput)]
    failures = round(throughput * rate)
    for ticket in tickets[failures:]:
        breaker.success(ticket)
    assert breaker.state is CLOSED
    for ticket in tickets[:failures]:
        breaker.failure(ticket)
    assert (breaker.state is OPEN) == breaks


def in_state(name, clock, **fields):
    breaker = make(clock, **{"failures": 1, **fields})
    if name == "isolated":
        breaker.open()
    elif name != "closed":
        breaker = {"open": opened, "half-open": half_opened}[name](clock)
    return breaker


@pytest.mark.parametrize(
    ("before", "after"), [("half-open", "closed"), ("isolated", "isolated"), ("closed", "closed")]
)
def test_what_a_success_does_in_each_state(clock, before, after):
    breaker = in_state(before, clock)
    if before == "half-open":
        breaker.enter()
    breaker.success()
    if after == "isolated":
        assert (breaker.state, breaker.retry_after) == (OPEN, None)
    else:
        assert breaker.state == after


@pytest.mark.parametrize(
    ("before", "after", "reached"),
    [
        ("half-open", "open", True),
        ("closed", "open", True),
        ("closed", "closed", False),
        ("open", "open", False),
        ("isolated", "isolated", False),
    ],
)
def test_what_a_failure_does_in_each_state(clock, before, after, reached):
    breaker = in_state(before, clock, failures=1 if reached else 2)
    if before == "half-open":
        breaker.enter()
    breaker.failure()
    if after == "isolated":
        assert (breaker.state, breaker.retry_after) == (OPEN, None)
    else:
        assert breaker.state == after


def test_half_open_lets_exactly_one_through_and_refuses_the_second_while_it_runs(clock):
    breaker = half_opened(clock)
    breaker.enter()
    error = refused(breaker)
    assert error.retry_after == 30.0  # when the first would be given up on
    assert (
        str(error) == "the circuit of shop is half-open and admits at most 1 at a time (TimeoutError: slow)"
    )
    assert breaker.refuses()


def test_a_lost_probe_is_replaced_after_open_for(clock):
    breaker = half_opened(clock, open_for=10)
    breaker.enter()
    clock.advance(9.5)
    assert refused(breaker).retry_after == 0.5
    clock.advance(0.5)
    assert not breaker.refuses()
    breaker.success(breaker.enter())
    assert breaker.state is CLOSED


def test_many_lost_probes_are_replaced_by_no_more_than_as_many(clock):
    breaker = half_opened(clock, probes=3)
    for _ in range(5):
        for _ in range(3):
            breaker.enter()
        refused(breaker)
        clock.advance(30)


@pytest.mark.parametrize(("end", "after"), [("success", CLOSED), ("failure", OPEN), ("release", HALF_OPEN)])
def test_a_probe_that_was_given_up_on_counts_if_it_comes_back_after_all(clock, end, after):
    breaker = half_opened(clock)
    slow = breaker.enter()
    clock.advance(30)
    breaker.enter()
    getattr(breaker, end)(slow)
    assert breaker.state is after


def test_calls_that_take_longer_than_open_for_close_the_circuit_under_steady_traffic(clock):
    breaker = half_opened(clock, open_for=1)
    first = breaker.enter()
    for _ in range(5):
        clock.advance(1)
        breaker.enter()
    breaker.success(first)
    assert breaker.state is CLOSED


@pytest.mark.parametrize("end", ["success", "release"])
def test_a_probe_that_was_given_up_on_does_not_free_the_slot_of_another(clock, end):
    breaker = half_opened(clock, successes=2)
    slow = breaker.enter()
    clock.advance(30)
    breaker.enter()
    getattr(breaker, end)(slow)
    assert breaker.state is HALF_OPEN
    refused(breaker)


def test_a_probe_of_an_earlier_round_does_not_count_when_those_of_a_later_one_are_replaced(clock):
    breaker = half_opened(clock)
    lost = breaker.enter()
    clock.advance(30)
    fail(breaker)
    clock.advance(30)
    breaker.enter()
    clock.advance(30)
    breaker.enter()
    breaker.success(lost)
    assert breaker.state is HALF_OPEN


def test_late_results_neither_close_nor_prolong(clock):
    breaker = make(clock, failures=1)
    late = [breaker.enter(), breaker.enter()]
    fail(breaker, text="the first")
    clock.advance(20)
    breaker.success(late[0])
    breaker.failure(late[1], TimeoutError("the second"))
    error = refused(breaker)
    assert (error.retry_after, error.last_failure) == (10.0, "TimeoutError: the first")


def test_it_stays_open_as_long_every_time_however_often_a_probe_has_failed(clock):
    """Polly can be told how many probes have failed (0 to 4, then from 0 after closing); open_for is one figure."""
    breaker = opened(clock)
    for _ in range(5):
        assert breaker.retry_after == 30.0
        clock.advance(30)
        fail(breaker)
    clock.advance(30)
    succeed(breaker)
    for _ in range(3):
        fail(breaker)
        assert breaker.retry_after == 30.0
        clock.advance(30)


@pytest.mark.parametrize("now", [1e308, sys.float_info.max])
@pytest.mark.parametrize("open_for", [30.0, sys.float_info.max])
def test_a_time_beyond_all_clocks_is_clipped(now, open_for):
    clock = FakeClock(now)
    breaker = make(clock, failures=1, open_for=open_for)
    fail(breaker)
    assert breaker.retry_after == min(now + open_for, sys.float_info.max) - now
    clock.now = sys.float_info.max
    assert breaker.state is HALF_OPEN


def test_a_rate_is_kept_at_a_time_beyond_all_clocks():
    breaker = make(FakeClock(sys.float_info.max), failure_rate=0.5, minimum_calls=2)
    fail(breaker, 3)
    succeed(breaker)


def test_a_refusal_says_what_is_left(clock):
    breaker = opened(clock)
    clock.advance(0.001)
    assert refused(breaker).retry_after == pytest.approx(29.999, abs=1e-12)


def test_100_refusals_give_one_and_the_same_traceback(clock):
    breaker = opened(clock)

    @breaker
    def call():
        raise AssertionError

    seen = set()
    for _ in range(100):
        try:
            call()
        except CircuitOpen as error:
            assert error.__context__ is error.__cause__ is None
            seen.add("".join(traceback.format_exception(error)))
    assert len(seen) == 1


def test_the_rolling_window_of_polly(clock):
    breaker = watcher(clock)
    seen = []
    for failures, successes in [(1, 1), (1, 1), (0, 2), (0, 2), (0, 2), (0, 0)]:
        fail(breaker, failures)
        succeed(breaker, successes)
        clock.advance(2)
        seen.append(breaker.counted if len(seen) != 2 else None)
    assert seen == [(2, 1), (4, 2), None, (8, 2), (8, 1), (6, 0)]


def test_the_window_holds_what_its_tenths_hold(clock):
    breaker = watcher(clock)
    for _ in range(10):
        succeed(breaker)
        clock.advance(1)
    assert breaker.counted == (9, 0)
    clock.advance(1)
    assert breaker.counted == (8, 0)


@pytest.mark.parametrize("seconds", [10, 10.001])
def test_what_is_older_than_the_window_is_gone(clock, seconds):
    breaker = watcher(clock)
    succeed(breaker)
    fail(breaker)
    clock.advance(seconds)
    assert breaker.counted == (0, 0)
