"""The circuit breaker: when it opens, whom it lets through, when it closes, and whom it tells.

The tables named after gobreaker and Polly are those of the tests of these projects.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import inspect
import itertools
import logging
import pickle
import sys
import traceback
from datetime import timedelta
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from redouble import DeadlineExceeded, Policy, retrying
from redouble.backoff import fixed
from redouble.breaker import TRANSITIONS, Breaker, CircuitBreaker, Happening, State, says_nothing
from redouble.classify import Classifier, is_retryable
from redouble.errors import BulkheadFull, CircuitOpen, RedoubleError
from redouble.events import CircuitChanged
from redouble.testing import FakeClock, no_waits

CLOSED, OPEN, HALF_OPEN = State.closed, State.open, State.half_open


class Excluded(Exception):
    """A failure that the breakers of these tests are told to ignore."""


def make(clock, **fields):
    return CircuitBreaker(**{"clock": clock, "ignore": Excluded, "name": "shop", **fields})


def fail(breaker, times=1, text="slow"):
    for _ in range(times):
        breaker.failure(breaker.enter(), TimeoutError(text))


def succeed(breaker, times=1):
    for _ in range(times):
        breaker.success(breaker.enter())


def exclude(breaker, times=1):
    for _ in range(times):
        breaker.failure(breaker.enter(), Excluded())


def refused(breaker):
    with pytest.raises(CircuitOpen) as caught:
        breaker.enter()
    return caught.value


@pytest.fixture
def heard():
    """Changes of state, as pairs, in the order in which a listener was told of them."""
    return []


def opened(clock, **fields):
    """A breaker that has just opened after one failure."""
    breaker = make(clock, **{"failures": 1, **fields})
    fail(breaker)
    assert breaker.state is OPEN
    return breaker


def half_opened(clock, **fields):
    """A breaker that is ready for its probes."""
    breaker = opened(clock, **fields)
    clock.advance(breaker.retry_after)
    assert breaker.state is HALF_OPEN
    return breaker


# The tables of gobreaker


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


# The tables of Polly

KINDS = [{"window": 10}, {"last_calls": 100}]


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
        str(error)
        == "the circuit of shop is half-open, and no more than 1 at once may try (TimeoutError: slow)"
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
def test_a_probe_that_was_given_up_on_does_not_free_the_place_of_another(clock, end):
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


def watcher(clock, window=10):
    """A breaker that counts and never opens."""
    return make(clock, failure_rate=1.0, minimum_calls=10**6, window=window)


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


# Opening


def test_the_defaults(clock):
    breaker = CircuitBreaker(clock=clock)
    fail(breaker, 4)
    assert breaker.state is CLOSED
    fail(breaker)
    assert (breaker.state, breaker.retry_after) == (OPEN, 30.0)
    clock.advance(30)
    breaker.enter()
    refused(breaker)
    breaker.success()
    assert breaker.state is CLOSED
    assert breaker.name == "CircuitBreaker"
    assert breaker.listeners == ()


def test_the_defaults_of_a_rate(clock):
    breaker = CircuitBreaker(failure_rate=0.5, clock=clock)
    fail(breaker, 19)
    assert breaker.state is CLOSED
    clock.advance(26.9)
    assert breaker.counted == (19, 19)
    fail(breaker)
    assert breaker.state is OPEN  # 20 calls within 30 seconds
    breaker.close()
    clock.now = 302.9
    fail(breaker, 19)
    clock.now = 330.0  # a window after the tenth of it in which they failed had begun
    assert breaker.counted == (0, 0)


def test_one_success_ends_a_row_of_failures(clock):
    breaker = make(clock, failures=3)
    for _ in range(10):
        fail(breaker, 2)
        succeed(breaker)
    assert breaker.state is CLOSED


def test_only_a_failure_opens_it(clock):
    breaker = make(clock, failure_rate=0.5, minimum_calls=4, last_calls=4)
    fail(breaker, 2)
    succeed(breaker, 2)
    assert (breaker.state, breaker.counted) == (CLOSED, (4, 2))


@pytest.mark.parametrize("kind", KINDS, ids=["time", "count"])
@pytest.mark.parametrize(
    ("rate", "calls"), [(0.1, 30), (0.6, 30), (1 / 3, 30), (1.0, 30), (0.07, 100), (0.55, 100)]
)
def test_exactly_the_rate_is_enough_whatever_floats_make_of_it(clock, kind, rate, calls):
    """0.07 * 100 is a little more than 7."""
    failures = round(rate * calls)
    breaker = make(clock, failure_rate=rate, minimum_calls=calls, **kind)
    tickets = [breaker.enter() for _ in range(calls)]
    for ticket in tickets[failures:]:
        breaker.success(ticket)
    for ticket in tickets[1:failures]:
        breaker.failure(ticket)
    assert breaker.state is CLOSED
    breaker.failure(tickets[0])
    assert breaker.state is OPEN


def test_the_last_calls_are_all_that_count(clock):
    breaker = make(clock, failure_rate=0.5, minimum_calls=4, last_calls=4)
    fail(breaker)
    succeed(breaker, 3)
    fail(breaker)  # the first failure has fallen out
    assert (breaker.state, breaker.counted) == (CLOSED, (4, 1))
    clock.advance(10**6)
    assert breaker.counted == (4, 1)
    fail(breaker)
    assert breaker.state is OPEN


def test_a_minimum_of_one_opens_at_the_first_failure(clock):
    breaker = make(clock, failure_rate=1.0, minimum_calls=1)
    fail(breaker)
    assert breaker.state is OPEN


def test_a_call_is_seen_for_nine_tenths_of_the_window_and_for_no_more_than_the_whole(clock):
    for start in range(20):
        clock.now = begun = 100 + start * 0.1
        breaker = watcher(clock)
        succeed(breaker)
        clock.now = begun + 8.99
        assert breaker.counted == (1, 0)
        clock.now = begun + 10.001
        assert breaker.counted == (0, 0)


def test_time_that_goes_backwards_does_no_harm(clock):
    breaker = watcher(clock)
    clock.now = 100.0
    fail(breaker)
    clock.now = 95.0
    fail(breaker)
    succeed(breaker)
    clock.now = 100.0
    assert breaker.counted == (3, 2)
    opened_late = opened(clock)
    clock.now = 0.0
    assert opened_late.retry_after == 130.0


def test_durations_may_be_timedeltas(clock):
    breaker = make(
        clock, failure_rate=0.5, window=timedelta(seconds=10), open_for=timedelta(minutes=1), minimum_calls=1
    )
    succeed(breaker)
    clock.advance(10)
    fail(breaker)
    assert breaker.retry_after == 60.0


def test_breakers_follow_the_fake_time_of_tests():
    breaker = CircuitBreaker(failures=1)
    rated = CircuitBreaker(failure_rate=1.0, minimum_calls=1, window=1.0)
    with no_waits() as waits:
        fail(breaker)
        succeed(rated)
        waits.sleep(29)
        assert breaker.state is OPEN
        waits.sleep(1)
        assert breaker.state is HALF_OPEN
        assert rated.counted == (0, 0)


def test_a_call_that_goes_well_in_skipped_time_counts_there():
    rated = CircuitBreaker(failure_rate=1.0)
    with no_waits() as waits:
        waits.sleep(100)
        succeed(rated)
        assert rated.counted == (1, 0)


def test_a_success_without_a_ticket_counts_towards_a_rate(clock):
    breaker = watcher(clock)
    breaker.success()
    assert breaker.counted == (1, 0)


def test_a_rate_that_is_missed_by_a_billionth_of_a_call_is_reached(clock):
    breaker = make(clock, failure_rate=0.5 + 5e-10, minimum_calls=2)
    succeed(breaker)
    fail(breaker)
    assert breaker.state is OPEN


def test_the_last_call_alone_may_count(clock):
    breaker = make(clock, failure_rate=1.0, minimum_calls=1, last_calls=1)
    succeed(breaker, 5)
    fail(breaker)
    assert breaker.state is OPEN


def test_without_a_clock_of_its_own_it_takes_the_real_one():
    rated = CircuitBreaker(failure_rate=1.0, minimum_calls=1)
    succeed(rated)
    fail(rated)
    assert rated.counted == (2, 1)
    breaker = CircuitBreaker(failures=1)
    fail(breaker)
    assert 29.0 < breaker.retry_after <= 30.0


# What is not counted


class HttpError(Exception):
    def __init__(self, status):
        super().__init__(f"HTTP {status}")
        self.response = SimpleNamespace(status_code=status, headers={})


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 409, 410, 422])
def test_what_the_server_says_about_the_request_says_nothing_about_the_server(clock, status):
    breaker = CircuitBreaker(failures=1, clock=clock)
    breaker.failure(breaker.enter(), HttpError(status))
    assert says_nothing(HttpError(status))
    assert breaker.state is CLOSED


@pytest.mark.parametrize(
    "error",
    [
        *map(HttpError, [408, 429, 500, 502, 503, 504]),
        TimeoutError(),
        ConnectionRefusedError(),
        ConnectionResetError(),
        RuntimeError("nobody knows"),
        DeadlineExceeded("too slow", attempts=1, elapsed=2.0),
        None,
    ],
    ids=repr,
)
def test_what_may_be_about_the_server_counts(clock, error):
    breaker = CircuitBreaker(failures=1, clock=clock)
    breaker.failure(breaker.enter(), error)
    assert breaker.state is OPEN


def test_the_refusal_of_another_guard_is_not_a_failure_of_the_dependency(clock):
    outer, inner = CircuitBreaker(failures=1, clock=clock), opened(clock)
    with pytest.raises(CircuitOpen), outer:
        inner.enter()
    with pytest.raises(BulkheadFull), outer:
        raise BulkheadFull("full", name="reports", limit=1)
    assert outer.state is CLOSED


@pytest.mark.parametrize(
    "ignore", [KeyError, (KeyError, OSError), [KeyError, [OSError]], {KeyError, OSError}], ids=str
)
def test_types_are_ignored_besides_what_says_nothing(clock, ignore):
    breaker = CircuitBreaker(failures=1, clock=clock, ignore=ignore)
    for error in (KeyError(), HttpError(404)):
        breaker.failure(breaker.enter(), error)
    assert breaker.state is CLOSED
    breaker.failure(breaker.enter(), HttpError(500))
    assert breaker.state is OPEN


def test_a_predicate_decides_alone(clock):
    asked = []

    def only_teapots(error):
        asked.append(error)
        return error.response.status_code == 418

    breaker = CircuitBreaker(failures=1, clock=clock, ignore=only_teapots)
    teapot = HttpError(418)
    breaker.failure(breaker.enter(), teapot)
    assert (asked, breaker.state) == ([teapot], CLOSED)
    breaker.failure(breaker.enter(), HttpError(404))
    assert breaker.state is OPEN


def test_a_predicate_that_raises_is_told_of_once_and_the_failure_counts(clock, caplog):
    def broken(error):
        raise ZeroDivisionError

    breaker = make(clock, failures=3, ignore=broken)
    fail(breaker, 2)
    assert breaker.counted == (2, 2)
    (record,) = caplog.records
    assert record.getMessage() == "ignore broken of shop failed (said once)"
    assert record.exc_text.splitlines()[-1].startswith("ZeroDivisionError")


def test_a_predicate_is_not_asked_about_a_failure_without_an_error(clock):
    breaker = make(clock, failures=1, ignore=lambda error: True)
    breaker.failure(breaker.enter())
    assert breaker.state is OPEN


def test_a_failure_is_counted_without_a_word(clock, caplog):
    breaker = CircuitBreaker(failures=2, clock=clock)
    fail(breaker)
    assert (breaker.counted, caplog.records) == ((1, 1), [])


def test_an_interrupt_in_a_predicate_passes_and_frees_the_place(clock):
    def interrupted(error):
        raise KeyboardInterrupt

    breaker = half_opened(clock)
    breaker._ignore = interrupted
    with pytest.raises(KeyboardInterrupt):
        breaker.failure(breaker.enter(), TimeoutError())
    assert breaker.state is HALF_OPEN
    breaker.enter()


def test_an_error_that_cannot_print_itself_counts(clock):
    class Mute(Exception):
        def __str__(self):
            raise ZeroDivisionError

    breaker = make(clock, failures=1)
    breaker.failure(breaker.enter(), Mute())
    assert refused(breaker).last_failure == "Mute: <unprintable Mute>"


def test_an_ignored_probe_gives_its_place_to_another(clock):
    breaker = half_opened(clock)
    for _ in range(5):
        exclude(breaker)
    assert (breaker.state, breaker.retry_after) == (HALF_OPEN, 0.0)
    succeed(breaker)
    assert breaker.state is CLOSED


# Half-open


@pytest.mark.parametrize("probes", [1, 2, 5])
@pytest.mark.parametrize("successes", [1, 2, 7])
def test_as_many_successes_as_asked_for_close_it(clock, probes, successes):
    breaker = half_opened(clock, probes=probes, successes=successes)
    for _ in range(successes - 1):
        succeed(breaker)
        assert breaker.state is HALF_OPEN
    succeed(breaker)
    assert breaker.state is CLOSED


@pytest.mark.parametrize(
    ("probes", "successes", "let_in"), [(1, 1, 1), (3, 1, 3), (3, 3, 3), (3, 7, 3), (1, 7, 1)]
)
def test_no_more_probes_than_allowed_are_under_way(clock, probes, successes, let_in):
    breaker = half_opened(clock, probes=probes, successes=successes)
    tickets = [breaker.enter() for _ in range(let_in)]
    refused(breaker)
    breaker.release(tickets.pop())
    breaker.enter()
    refused(breaker)


def test_no_more_probes_set_out_than_could_be_needed(clock):
    breaker = half_opened(clock, probes=3, successes=3)
    succeed(breaker, 2)
    breaker.enter()
    refused(breaker)


def test_one_failed_probe_opens_it_again_for_the_whole_time(clock):
    breaker = half_opened(clock, probes=3, successes=3)
    succeed(breaker, 2)
    fail(breaker, text="still slow")
    assert (breaker.state, breaker.retry_after) == (OPEN, 30.0)
    assert refused(breaker).last_failure == "TimeoutError: still slow"
    clock.advance(30)
    succeed(breaker, 2)
    assert breaker.state is HALF_OPEN  # the two from before do not count


def test_other_probes_of_a_round_that_has_failed_change_nothing_any_more(clock):
    breaker = half_opened(clock, probes=3)
    first, second, third = (breaker.enter() for _ in range(3))
    breaker.failure(first)
    clock.advance(10)
    breaker.success(second)
    breaker.failure(third)
    assert (breaker.state, breaker.retry_after) == (OPEN, 20.0)


def test_a_success_without_a_ticket_is_that_of_any_probe(clock):
    breaker = half_opened(clock, successes=3)
    breaker.enter()
    breaker.success()
    breaker.success()  # nobody has set out
    assert breaker.state is HALF_OPEN
    breaker.enter()
    refused(breaker)
    breaker.success()
    assert breaker.state is CLOSED


def test_a_release_without_a_ticket_is_that_of_any_probe(clock):
    breaker = half_opened(clock)
    breaker.enter()
    breaker.release()
    breaker.release()  # nobody has set out
    breaker.enter()
    refused(breaker)


def test_looking_changes_nothing(clock, heard):
    breaker = make(clock, failures=1, listeners=[heard.append])
    fail(breaker)
    clock.advance(30)
    assert (breaker.state, breaker.retry_after, breaker.refuses()) == (HALF_OPEN, 0.0, False)
    repr(breaker), breaker.counted, breaker.at_rest, breaker.refusal()
    assert len(heard) == 1
    breaker.enter()
    assert len(heard) == 2


# By hand


def test_opened_by_hand_it_stays_open_until_it_is_closed_by_hand(clock):
    breaker = make(clock)
    breaker.open()
    clock.advance(10**9)
    error = refused(breaker)
    assert (breaker.state, breaker.retry_after, error.retry_after) == (OPEN, None, None)
    assert str(error) == "the circuit of shop is held open by hand, until close() is called"
    breaker.close()
    succeed(breaker)
    assert breaker.state is CLOSED


def test_opened_by_hand_it_names_no_failure_as_the_reason(clock):
    breaker = make(clock, failures=2)
    fail(breaker, text="long ago")
    breaker.open()
    assert refused(breaker).last_failure is None
    again = opened(clock)
    again.open()
    assert refused(again).last_failure is None


def test_an_open_circuit_can_be_held_open_by_hand(clock, heard):
    breaker = opened(clock, listeners=[heard.append])
    breaker.open()
    clock.advance(30)
    assert breaker.state is OPEN
    assert len(heard) == 1  # it was open before


def test_closing_by_hand_forgets_all_failures_and_all_probes(clock):
    breaker = half_opened(clock, failures=1, probes=1)
    probe = breaker.enter()
    breaker.close()
    assert (breaker.state, breaker.counted, breaker.at_rest) == (CLOSED, (0, 0), True)
    breaker.failure(probe)
    assert breaker.state is CLOSED
    assert breaker.refusal().last_failure is None


# The refusal


def test_a_refusal_carries_name_time_and_last_failure(clock):
    error = refused(opened(clock))
    assert (error.name, error.retry_after, error.last_failure) == ("shop", 30.0, "TimeoutError: slow")
    assert str(error) == "the circuit of shop is open for another 30.0 s (TimeoutError: slow)"
    assert isinstance(error, RedoubleError)


def test_without_an_error_the_refusal_names_none(clock):
    breaker = make(clock, failures=1)
    breaker.failure(breaker.enter())
    assert str(refused(breaker)) == "the circuit of shop is open for another 30.0 s"


def test_a_refusal_tells_of_one_moment_although_the_state_changes_in_the_middle_of_it(clock):
    breaker = opened(clock)

    def open_by_hand_in_the_middle():
        breaker._clock = clock
        breaker.open()
        return clock()

    breaker._clock = open_by_hand_in_the_middle
    refusal = breaker.refusal()
    assert str(refusal) == "the circuit of shop is open for another 30.0 s (TimeoutError: slow)"
    assert (breaker.retry_after, refusal.retry_after) == (None, 30.0)


def test_a_refusal_is_not_retried_by_itself(clock):
    assert not is_retryable(refused(opened(clock)))


def test_before_any_failure_the_refusal_names_none(clock):
    assert make(clock).refusal().last_failure is None


def test_what_has_opened_it_can_be_seen_while_it_is_open(clock):
    breaker = make(clock, failure_rate=0.5, minimum_calls=2)
    succeed(breaker)
    fail(breaker)
    assert (breaker.state, breaker.counted) == (OPEN, (2, 1))


def test_a_forked_child_finds_an_open_circuit_as_it_was(clock):
    breaker = opened(clock)
    breaker._after_fork()
    assert (breaker.state, breaker.retry_after) == (OPEN, 30.0)


def test_no_exception_is_kept_by_an_open_circuit(clock):
    import gc
    import weakref

    breaker, error = make(clock, failures=1), HttpError(503)
    seen = weakref.ref(error)
    breaker.failure(breaker.enter(), error)
    del error
    gc.collect()
    assert seen() is None


# Decorator and context manager


def test_a_decorated_function_gives_its_results_and_its_errors(clock, flavour):
    breaker = make(clock, failures=2)
    script = flavour.scripted("page", TimeoutError("slow"), TimeoutError("slower"))

    def run():
        return flavour.run(breaker(script), "/", retries=1)

    assert run() == "page"
    for _ in range(2):
        with pytest.raises(TimeoutError):
            run()
    with pytest.raises(CircuitOpen):
        run()
    assert script.calls == [(("/",), {"retries": 1})] * 3


def test_a_decorated_function_keeps_its_name_and_docs(clock):
    @make(clock)
    def fetch(url):
        """Fetches."""

    @make(clock)
    async def fetch_async(url):
        """Fetches, too."""

    assert (fetch.__name__, fetch.__doc__) == ("fetch", "Fetches.")
    assert (fetch_async.__name__, inspect.iscoroutinefunction(fetch_async)) == ("fetch_async", True)
    assert fetch.__wrapped__.__code__.co_varnames == ("url",)


def test_methods_can_be_decorated(clock):
    breaker = make(clock, failures=1)

    class Shop:
        @breaker
        def buy(self, what):
            return self, what

    shop = Shop()
    assert shop.buy("tea") == (shop, "tea")


def test_what_is_not_over_when_it_is_called_is_refused(clock):
    def items():
        yield 1

    async def async_items():
        yield 1

    for function in (items, async_items):
        with pytest.raises(TypeError, match=r"shop cannot guard .*items: an? .*generator is not over"):
            make(clock)(function)


@pytest.mark.parametrize("thing", [3, "fetch", int, None], ids=repr)
def test_only_functions_can_be_decorated(clock, thing):
    with pytest.raises(TypeError, match=r"shop cannot guard .*: decorate a function"):
        make(clock)(thing)


class Way:
    """One way to put a call through a breaker."""

    def __init__(self, name):
        self.name = name

    def __repr__(self):
        return self.name

    def run(self, breaker, body):
        if self.name == "with":
            with breaker:
                return body()
        if self.name == "decorator":
            return breaker(lambda: body())()

        async def coroutine():
            return body()

        async def block():
            async with breaker:
                return body()

        return asyncio.run(breaker(coroutine)() if self.name == "async decorator" else block())


@pytest.fixture(params=["decorator", "async decorator", "with", "async with"])
def way(request):
    return Way(request.param)


def raising(error):
    def body():
        raise error

    return body


def test_every_way_counts_successes_and_failures(clock, way):
    breaker = make(clock, failure_rate=1.0, minimum_calls=100)
    assert way.run(breaker, lambda: "page") == "page"
    with pytest.raises(TimeoutError):
        way.run(breaker, raising(TimeoutError()))
    with pytest.raises(Excluded):
        way.run(breaker, raising(Excluded()))
    assert breaker.counted == (2, 1)


def test_every_way_ends_a_row_of_failures(clock, way):
    breaker = make(clock)
    fail(breaker)
    way.run(breaker, lambda: None)
    assert breaker.counted == (0, 0)


def test_every_way_is_refused_at_once(clock, way):
    with pytest.raises(CircuitOpen):
        way.run(opened(clock), raising(AssertionError()))


def test_every_way_closes_a_half_open_circuit(clock, way):
    breaker = half_opened(clock)
    way.run(breaker, lambda: None)
    assert breaker.state is CLOSED


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError])
def test_an_interrupt_counts_as_nothing_and_frees_the_place(clock, way, interrupt):
    breaker = half_opened(clock)
    with pytest.raises(interrupt):
        way.run(breaker, raising(interrupt()))
    assert (breaker.state, breaker.retry_after) == (HALF_OPEN, 0.0)
    way.run(breaker, lambda: None)
    assert breaker.state is CLOSED
    fail(breaker)
    breaker = make(clock, failures=2)
    fail(breaker)
    with pytest.raises(interrupt):
        way.run(breaker, raising(interrupt()))
    assert (breaker.state, breaker.counted) == (CLOSED, (1, 1))


def test_a_cancelled_task_frees_its_place(clock):
    breaker = half_opened(clock)

    @breaker
    async def hang():
        await asyncio.Event().wait()

    async def main():
        task = asyncio.ensure_future(hang())
        await asyncio.sleep(0)
        refused(breaker)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()

    asyncio.run(main())
    assert (breaker.state, breaker.retry_after) == (HALF_OPEN, 0.0)


def test_a_block_that_is_left_early_went_well(clock):
    breaker = half_opened(clock, successes=2)

    def call():
        with breaker:
            return "found"

    for _ in range(2):
        with breaker:
            break
    assert (breaker.state, breaker.retry_after) == (HALF_OPEN, 0.0)
    assert call() == "found"
    assert breaker.state is CLOSED


def test_a_block_in_a_generator_that_is_closed_frees_its_place(clock):
    breaker = half_opened(clock)

    def items():
        with breaker:
            yield 1

    found = items()
    next(found)
    refused(breaker)
    found.close()
    assert (breaker.state, breaker.retry_after) == (HALF_OPEN, 0.0)


def test_blocks_of_one_breaker_can_be_nested(clock):
    breaker = half_opened(clock, probes=2, successes=2)
    with breaker as outer:
        with breaker as inner:
            refused(breaker)
        assert breaker.state is HALF_OPEN
    assert outer is inner is breaker
    assert breaker.state is CLOSED


def test_blocks_of_several_breakers_can_be_nested_and_each_gets_its_own_ticket_back(clock):
    one, other = half_opened(clock), make(clock, failures=1)
    with contextlib.suppress(TimeoutError), one:
        with contextlib.suppress(TimeoutError), other:
            raise TimeoutError
    assert (one.state, other.state) == (CLOSED, OPEN)


def test_tasks_that_share_a_breaker_hold_each_its_own_ticket(clock):
    breaker = make(clock)
    entered, go = asyncio.Event(), None

    async def call():
        async with breaker:
            entered.set()
            await go.wait()
            raise TimeoutError

    async def main():
        nonlocal go
        go = asyncio.Event()
        early = asyncio.ensure_future(call())
        await entered.wait()
        breaker.close()  # what began before counts no longer
        late = asyncio.ensure_future(call())
        await asyncio.sleep(0)
        go.set()
        await asyncio.gather(early, late, return_exceptions=True)

    asyncio.run(main())
    assert breaker.counted == (1, 1)


def test_many_tasks_at_once_take_no_more_than_the_places_there_are(clock):
    breaker = half_opened(clock, probes=3, successes=3)

    @breaker
    async def call():
        await asyncio.sleep(0)
        return "let in"

    async def main():
        return await asyncio.gather(*[call() for _ in range(50)], return_exceptions=True)

    results = asyncio.run(main())
    assert results.count("let in") == 3
    assert sum(isinstance(result, CircuitOpen) for result in results) == 47
    assert breaker.state is CLOSED


def test_a_block_that_ends_in_another_context_counts_as_well(clock):
    import contextvars

    breaker = half_opened(clock)
    contextvars.copy_context().run(breaker.__enter__)
    contextvars.copy_context().run(breaker.__exit__, None, None, None)
    assert breaker.state is CLOSED


# A breaker of one's own


class Remote(Breaker):
    """A breaker whose answers must be awaited."""

    is_async = True

    def __init__(self):
        super().__init__("remote")
        self.told = []

    async def enter(self, listeners=()):
        return "ticket"

    async def success(self, ticket=None, listeners=()):
        self.told.append(("success", ticket))

    async def failure(self, ticket=None, error=None, listeners=()):
        self.told.append(("failure", ticket, error))

    async def release(self, ticket=None):
        self.told.append(("release", ticket))


@pytest.mark.parametrize("name", ["async decorator", "async with"])
def test_a_breaker_whose_answers_are_awaited_is_told_how_each_call_ended(name):
    breaker, error = Remote(), TimeoutError()
    Way(name).run(breaker, lambda: None)
    with pytest.raises(TimeoutError):
        Way(name).run(breaker, raising(error))
    with pytest.raises(KeyboardInterrupt):
        Way(name).run(breaker, raising(KeyboardInterrupt()))
    assert breaker.told == [("success", "ticket"), ("failure", "ticket", error), ("release", "ticket")]
    breaker.clean = True
    Way(name).run(breaker, lambda: None)
    assert len(breaker.told) == 3


def test_a_breaker_whose_answers_are_awaited_refuses_sync_code():
    with pytest.raises(TypeError, match="async with"), Remote():
        pass
    with pytest.raises(TypeError, match="is sync"):
        Remote()(lambda: None)


def test_what_a_breaker_must_do_is_left_to_its_class_and_asked_with_the_same_words():
    breaker = Breaker("mine")
    for name in ("enter", "success", "failure", "release", "refuses", "refusal"):
        with pytest.raises(NotImplementedError):
            getattr(breaker, name)()
        ours, theirs = (
            inspect.signature(getattr(kind, name)).parameters for kind in (Breaker, CircuitBreaker)
        )
        assert [(part.name, part.default) for part in ours.values()] == [
            (part.name, part.default) for part in theirs.values()
        ]


def test_a_sync_breaker_of_ones_own_is_always_asked_and_told_and_its_answers_are_not_awaited():
    class Talkative(Breaker):
        told = ()

        def enter(self, listeners=()):
            return "ticket"

        def success(self, ticket=None, listeners=()):
            self.told = (*self.told, ticket)
            return "thanks"

    breaker = Talkative("mine")
    assert (breaker.ticket, breaker.clean, breaker.is_async) == (None, False, False)
    assert Way("async with").run(breaker, lambda: "page") == "page"
    assert breaker.told == ("ticket",)


# Listeners and logging


def walk(breaker, clock):
    """Closed, open, half-open, open, half-open, closed, and then open and closed by hand."""
    fail(breaker)
    clock.advance(30)
    fail(breaker, text="still slow")
    clock.advance(30)
    succeed(breaker)
    breaker.open()
    breaker.close()


def test_every_change_is_told_in_order_with_what_it_means(clock, heard):
    breaker = make(clock, failures=1, listeners=[heard.append])
    walk(breaker, clock)
    told = functools.partial(CircuitChanged, "shop")
    assert heard == [
        told(before="closed", after="open", delay=30.0, error_message="TimeoutError: slow"),
        told(before="open", after="half-open", error_message="TimeoutError: slow"),
        told(before="half-open", after="open", delay=30.0, error_message="TimeoutError: still slow"),
        told(before="open", after="half-open", error_message="TimeoutError: still slow"),
        told(before="half-open", after="closed"),
        told(before="closed", after="open"),
        told(before="open", after="closed"),
    ]
    assert all(event.attempt == 0 and event.reason is None for event in heard)


def test_what_changes_nothing_is_told_to_nobody(clock, heard):
    breaker = make(clock, failures=2, listeners=[heard.append])
    succeed(breaker)
    fail(breaker)
    exclude(breaker)
    breaker.close()
    assert heard == []


def test_the_state_has_changed_when_listeners_run(clock):
    seen = []
    breaker = make(clock, failures=1, listeners=[lambda event: seen.append((event.after, breaker.state))])
    walk(breaker, clock)
    assert len(seen) == 7
    assert all(after == state for after, state in seen)


def test_a_listener_may_use_the_breaker_itself(clock):
    breaker = make(clock, failures=1, listeners=[lambda event: event.after == "open" and breaker.close()])
    fail(breaker)
    assert breaker.state is CLOSED


def test_a_listener_that_raises_stops_neither_the_change_nor_the_others(clock, heard, caplog):
    def broken(event):
        raise ZeroDivisionError

    breaker = make(clock, failures=1, listeners=[heard.append, broken, heard.append])
    walk(breaker, clock)
    assert breaker.state is CLOSED
    assert len(heard) == 14
    assert sum("broken failed (said once)" in record.getMessage() for record in caplog.records) == 1


def test_an_interrupt_in_a_listener_frees_the_place_of_a_call_that_is_never_made(clock):
    def interrupted(event):
        if event.after == "half-open":
            raise KeyboardInterrupt

    breaker = half_opened(clock, listeners=[interrupted])
    with pytest.raises(KeyboardInterrupt):
        breaker.enter()
    assert (breaker.state, breaker.retry_after) == (HALF_OPEN, 0.0)
    breaker.enter()


def test_listeners_of_the_caller_hear_of_a_change_after_the_breakers_own_and_once(clock, heard):
    def own(event):
        heard.append("own")

    def callers(event):
        heard.append("caller's")

    breaker = make(clock, failures=1, listeners=[own])
    breaker.failure(breaker.enter(), TimeoutError(), (callers, own))
    assert heard == ["own", "caller's"]
    clock.advance(30)
    breaker.success(breaker.enter((callers,)), (callers,))
    assert heard == ["own", "caller's"] * 3


def test_changes_are_logged_as_warnings_with_their_fields(clock, caplog):
    with caplog.at_level(logging.WARNING, "redouble"):
        fail(make(clock, failures=1))
    (record,) = caplog.records
    assert (record.name, record.levelname, record.getMessage()) == (
        "redouble",
        "WARNING",
        "circuit breaker changed",
    )
    assert (record.policy, record.before, record.after, record.delay_ms) == ("shop", "closed", "open", 30_000)
    assert record.error_message == "TimeoutError: slow"


def test_a_log_that_cannot_be_written_changes_nothing(clock, way):
    class FullDisk(logging.Handler):
        def emit(self, record):
            raise OSError(28, "no space left on device")

    breaker, handler, error = make(clock, failures=1), FullDisk(), TimeoutError()
    logging.getLogger("redouble").addHandler(handler)
    try:
        with pytest.raises(TimeoutError) as caught:
            way.run(breaker, raising(error))
    finally:
        logging.getLogger("redouble").removeHandler(handler)
    assert caught.value is error
    assert breaker.state is OPEN


# In a policy


def test_an_open_circuit_before_the_first_attempt_is_the_error_that_comes_out(clock, flavour):
    breaker, script = opened(clock), flavour.scripted()
    with pytest.raises(CircuitOpen) as caught:
        flavour.call(Policy(breaker=breaker, clock=clock, sleep=clock.sleep), script)
    assert caught.value.retry_after == 30.0
    assert (script.calls, clock.waits) == ([], [])


def test_a_circuit_that_opens_ends_the_call_at_once_with_its_own_last_error(clock, flavour):
    breaker, last = make(clock, failures=2), TimeoutError("the second")
    script = flavour.scripted(TimeoutError("the first"), last)
    policy = Policy(breaker=breaker, attempts=9, backoff=fixed, clock=clock, sleep=clock.sleep)
    with pytest.raises(TimeoutError) as caught:
        flavour.call(policy, script)
    assert caught.value is last
    assert "the circuit of shop is open for another 30.0 s" in last.__notes__[0]
    assert clock.waits == [1.0]  # none after the failure that opened it


def test_inside_a_retry_every_attempt_counts(clock, flavour):
    breaker = make(clock, failures=9)
    policy = Policy(breaker=breaker, attempts=3, clock=clock, sleep=clock.sleep)
    with pytest.raises(TimeoutError):
        flavour.call(policy, flavour.scripted(*[TimeoutError()] * 3))
    assert breaker.counted == (3, 3)
    assert flavour.call(policy, flavour.scripted(TimeoutError(), "page")) == "page"
    assert breaker.counted == (0, 0)


def test_around_a_retry_whole_calls_count(clock, flavour):
    breaker = make(clock, failures=2)
    policy = Policy(attempts=3, clock=clock, sleep=clock.sleep)
    script = flavour.scripted(*[TimeoutError()] * 6)
    call = breaker(policy(script))
    for _ in range(2):
        assert breaker.state is CLOSED
        with pytest.raises(TimeoutError):
            flavour.run(call)
    with pytest.raises(CircuitOpen):
        flavour.run(call)
    assert len(script.calls) == 6


def test_between_a_retry_and_its_function_it_ends_the_retry_with_its_refusal(clock, flavour):
    breaker = make(clock, failures=2)
    script = flavour.scripted(*[TimeoutError()] * 2)
    policy = Policy(attempts=9, clock=clock, sleep=clock.sleep, backoff=fixed)
    with pytest.raises(CircuitOpen):
        flavour.call(policy, breaker(script))
    assert clock.waits == [1.0, 1.0]


def test_a_call_that_is_interrupted_in_a_policy_frees_the_place_of_its_probe(clock, flavour):
    breaker = half_opened(clock)
    policy = Policy(breaker=breaker, clock=clock, sleep=clock.sleep)
    with pytest.raises(KeyboardInterrupt):
        flavour.call(policy, flavour.scripted(KeyboardInterrupt()))
    assert (breaker.state, breaker.retry_after) == (HALF_OPEN, 0.0)
    assert flavour.call(policy, flavour.scripted("page")) == "page"
    assert breaker.state is CLOSED


def test_a_block_of_a_policy_that_is_left_early_frees_the_place_of_its_probe(clock):
    breaker = half_opened(clock, successes=2)
    for attempt in retrying(breaker=breaker, clock=clock, sleep=clock.sleep):
        with attempt:
            break
    for _ in retrying(breaker=breaker, clock=clock, sleep=clock.sleep):
        break
    assert breaker._circuit.phase.probes == 0


# A guard like others


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_breaker_refuses_to_be_pickled(clock, protocol):
    with pytest.raises(TypeError, match=r"shop \(CircuitBreaker\) .* cannot be pickled"):
        pickle.dumps(make(clock), protocol)


def test_a_copy_is_the_breaker_itself(clock):
    breaker = make(clock)
    assert copy.copy(breaker) is copy.deepcopy(breaker) is breaker
    assert breaker != make(clock)
    assert hash(breaker) == hash(copy.copy(breaker))


def test_it_prints_its_name_and_state(clock):
    breaker = opened(clock)
    assert repr(breaker) == "<shop: open>"
    clock.advance(30)
    assert repr(breaker) == "<shop: half-open>"
    assert repr(CircuitBreaker()) == "<CircuitBreaker: closed>"


def test_a_breaker_is_at_rest_when_a_new_one_would_do_as_well(clock):
    breaker = make(clock, failures=2)
    assert breaker.at_rest
    fail(breaker)
    assert not breaker.at_rest
    succeed(breaker)
    assert breaker.at_rest
    fail(breaker, 2)
    assert not breaker.at_rest
    by_hand = make(clock)
    by_hand.open()
    assert not by_hand.at_rest  # although it has no failure to remember


@pytest.mark.parametrize("fields", [{}, {"failure_rate": 0.5}, {"failure_rate": 0.5, "last_calls": 20}])
def test_what_a_thread_that_was_ended_has_hidden_is_shown_by_the_next_call(clock, fields):
    breaker = make(clock, **fields)
    shown, rated = (breaker.ticket, breaker.clean), bool(fields)
    for tell in (breaker.enter, breaker.success, breaker.failure):
        breaker._hide()
        assert (breaker.ticket, breaker.clean) == (None, False)
        tell()
        assert (breaker.ticket, breaker.clean) == (shown if tell != breaker.failure else (shown[0], False))
    assert breaker.counted == (1 + rated, 1)


def test_a_clean_breaker_says_that_successes_need_not_be_told(clock):
    breaker = make(clock, failures=2)
    assert breaker.clean
    fail(breaker)
    assert not breaker.clean
    assert breaker.ticket is not None
    succeed(breaker)
    assert breaker.clean
    breaker.open()
    assert not breaker.clean
    assert breaker.ticket is None
    assert not make(clock, failure_rate=0.5).clean


# Construction

NAN, INF = float("nan"), float("inf")
RATE = {"failure_rate": 0.5}


@pytest.mark.parametrize("value", [NAN, INF, -INF, -1, True], ids=repr)
@pytest.mark.parametrize(
    ("field", "others"),
    [("failures", {}), ("successes", {}), ("open_for", {}), ("probes", {}), ("failure_rate", {}), ("window", RATE), ("minimum_calls", {}), ("minimum_calls", RATE), ("last_calls", RATE)],
)  # fmt: skip
def test_a_wrong_number_is_refused_and_named(field, others, value):
    with pytest.raises(ValueError, match=f"^{field} must be .*got "):
        CircuitBreaker(**{field: value}, **others)


@pytest.mark.parametrize(
    "field", ["failures", "successes", "open_for", "probes", "failure_rate", "minimum_calls"]
)
def test_nothing_at_all_is_refused(field):
    with pytest.raises(ValueError, match=f"^{field} must be .*got 0"):
        CircuitBreaker(**{field: 0})


@pytest.mark.parametrize(
    "field", ["failures", "successes", "open_for", "probes", "failure_rate", "minimum_calls"]
)
def test_what_is_no_number_is_refused(field):
    with pytest.raises(TypeError, match=f"^{field} must be .*got 'many'"):
        CircuitBreaker(**{field: "many"})


@pytest.mark.parametrize("field", ["failures", "successes", "probes", "minimum_calls"])
def test_what_is_no_whole_number_is_refused(field):
    with pytest.raises(ValueError, match=f"^{field} must be a whole number, got 2.5"):
        CircuitBreaker(**{field: 2.5})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"failure_rate": 1.01}, "failure_rate must be a share above 0, at most 1, got 1.01"),
        ({"failure_rate": 50}, "failure_rate must be a share above 0, at most 1, got 50"),
        ({"window": 10.0}, "window and last_calls need a failure_rate"),
        ({"last_calls": 10}, "window and last_calls need a failure_rate"),
        ({"failures": 5, "failure_rate": 0.5}, "failures or failure_rate, not both"),
        ({"window": 10, "last_calls": 100, **RATE}, "window or last_calls, not both"),
        ({"window": 0, **RATE}, "window must be above 0"),
        ({"last_calls": 0, **RATE}, "last_calls must be at least 1, got 0"),
        ({"last_calls": 19, **RATE}, "last_calls must be at least minimum_calls, which is 20, got 19"),
        ({"minimum_calls": 0, **RATE}, "minimum_calls must be at least 1, got 0"),
        ({"open_for": timedelta(seconds=-1)}, "open_for must be finite and not negative"),
        ({"open_for": 10**400}, "open_for must be finite and not negative"),
        ({"window": 10**400, **RATE}, "window must be finite and not negative"),
    ],
    ids=lambda part: str(part)[:40],
)
def test_what_does_not_go_together_is_refused(fields, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        CircuitBreaker(**fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": 5}, "name must be a text"),
        ({"name": ""}, "name must be a text"),
        ({"clock": 5}, "clock must be a function"),
        ({"listeners": 5}, "listeners must be a list"),
        ({"listeners": print}, "listeners must be a list"),
        ({"listeners": [5]}, "listeners must be a function"),
        ({"ignore": "ValueError"}, "ignore must be"),
        ({"ignore": ValueError()}, "ignore must be"),
        ({"ignore": KeyboardInterrupt}, "ignore must not name KeyboardInterrupt"),
        ({"ignore": [int]}, "ignore must name exception types"),
        ({"ignore": Classifier()}, "ignore must be exception types or a predicate"),
        ({"failure": 5}, ".*unexpected keyword argument"),
    ],
    ids=lambda part: str(part)[:40],
)
def test_what_is_of_the_wrong_kind_is_refused(fields, message):
    with pytest.raises(TypeError, match=f"^{message}"):
        CircuitBreaker(**fields)


def test_async_functions_are_refused_where_plain_ones_are_called():
    async def later(*_):
        return 1.0

    for field, value in {"clock": later, "listeners": [later], "ignore": later}.items():
        with pytest.raises(TypeError, match=f"^{field} must be a plain function"):
            CircuitBreaker(**{field: value})


# The table of transitions


def test_the_table_has_the_ways_of_a_circuit_and_no_others():
    by_itself = {
        (before, after)
        for (before, happening), after in TRANSITIONS.items()
        if happening not in (Happening.opened, Happening.reset)
    }
    assert by_itself == {(CLOSED, OPEN), (OPEN, HALF_OPEN), (HALF_OPEN, CLOSED), (HALF_OPEN, OPEN)}
    for state in State:
        assert TRANSITIONS[state, Happening.opened] is OPEN
        assert TRANSITIONS[state, Happening.reset] is CLOSED
    assert (CLOSED, HALF_OPEN) not in {(before, after) for (before, _), after in TRANSITIONS.items()}


def drawn_from_the_table():
    """The diagram of the documentation."""
    ways = [
        f"    {before.name} --> {after.name}: {happening}"
        for (before, happening), after in TRANSITIONS.items()
    ]
    return "\n".join(["stateDiagram-v2", "    half_open: half-open", "    [*] --> closed", *ways, ""])


def test_the_diagram_in_the_documentation_is_the_table_and_shows_the_ways_that_a_breaker_takes(clock, heard):
    page = Path(__file__).resolve().parent.parent / "docs" / "reference" / "breaker.md"
    diagrams = page.read_text("utf-8").split("```mermaid\n")[1:]
    assert [diagram.partition("```")[0] for diagram in diagrams] == [drawn_from_the_table()]
    walk(make(clock, failures=1, listeners=[heard.append]), clock)
    for event in heard:
        assert f"    {State(event.before).name} --> {State(event.after).name}: " in diagrams[0]


# Every history, beside a model


class Model:
    """A breaker as one would write it who has all the time in the world: it keeps every result."""

    def __init__(self, kind, limit, probes, successes, open_for):
        self.kind, self.limit, self.probes, self.successes = kind, limit, probes, successes
        self.open_for, self.now = Fraction(open_for), Fraction(0)
        self.changes = []
        self.state, self.until = "closed", None
        self.begin()

    def begin(self):
        """A new stay in a state: results of calls from before it mean nothing."""
        self.stay, self.results, self.under_way, self.good, self.set_out = object(), [], set(), 0, None

    def go(self, state, until=None):
        if state != self.state:
            self.changes.append((self.state, state))
        self.state, self.until = state, until
        self.begin()

    def is_due(self):
        return self.state == "open" and self.until is not None and self.now >= self.until

    def enter(self, number):
        """Whether the call is let through; its ticket is the stay in which that was."""
        if self.is_due():
            self.go("half-open")
        if self.state == "half-open":
            if self.under_way and self.now - self.set_out >= self.open_for:
                self.under_way = set()
            if not self.has_room():
                return None
            self.under_way.add(number)
            self.set_out = self.now
        return None if self.state == "open" else self.stay

    def has_room(self):
        needed = max(self.probes, self.successes)
        return len(self.under_way) < min(self.probes, needed - self.good)

    def end(self, number, stay, how):
        if stay is not self.stay or self.state == "open":
            return
        self.under_way.discard(number)
        if how == "nothing":
            return
        if self.state == "closed":
            self.results.append((self.now, how))
            if how == "failure" and self.too_many():
                self.go("open", self.now + self.open_for)
        elif how == "failure":
            self.go("open", self.now + self.open_for)
        else:
            self.good += 1
            if self.good == self.successes:
                self.go("closed")

    def counted(self):
        if self.kind == "row":
            row = list(itertools.takewhile(lambda result: result[1] == "failure", reversed(self.results)))
            return len(row), len(row)
        kept = self.results[-8:] if self.kind == "count" else [
            result for result in self.results if result[0] // 1 > self.now // 1 - 10
        ]  # fmt: skip
        return len(kept), sum(how == "failure" for _, how in kept)

    def too_many(self):
        calls, failures = self.counted()
        if self.kind == "row":
            return failures >= self.limit
        return calls >= self.limit and Fraction(failures, calls) >= Fraction(1, 2)

    def retry_after(self):
        if self.state == "open":
            return None if self.until is None else max(0, self.until - self.now)
        if self.state == "closed" or self.has_room():
            return 0
        return max(0, self.set_out + self.open_for - self.now)


FIELDS = {
    "row": lambda limit: {"failures": limit},
    "count": lambda limit: {"failure_rate": 0.5, "minimum_calls": limit, "last_calls": 8},
    "time": lambda limit: {"failure_rate": 0.5, "minimum_calls": limit, "window": 10},
}


class Histories(RuleBasedStateMachine):
    """Calls that begin, end in every way or never, time that passes, hands that open and close."""

    @initialize(
        kind=st.sampled_from(sorted(FIELDS)),
        limit=st.integers(1, 4),
        probes=st.integers(1, 3),
        successes=st.integers(1, 3),
        open_for=st.sampled_from([0.5, 3.0, 8.0]),
    )
    def begin(self, kind, limit, probes, successes, open_for):
        self.clock, self.heard, self.calls, self.number = FakeClock(), [], {}, 0
        self.model = Model(kind, limit, probes, successes, open_for)
        self.breaker = make(
            self.clock,
            probes=probes,
            successes=successes,
            open_for=open_for,
            listeners=[lambda event: self.heard.append((event.before, event.after))],
            **FIELDS[kind](limit),
        )

    @rule()
    def a_call_begins(self):
        self.number += 1
        stay = self.model.enter(self.number)
        if stay is None:
            error = refused(self.breaker)
            assert error.retry_after == self.model.retry_after()
        else:
            self.calls[self.number] = self.breaker.enter(), stay

    def some_call_ends(self, data, how):
        number = data.draw(st.sampled_from(sorted(self.calls)), "of call")
        ticket, stay = self.calls.pop(number)
        self.model.end(number, stay, how)
        return ticket

    @precondition(lambda self: self.calls)
    @rule(data=st.data())
    def a_call_succeeds(self, data):
        self.breaker.success(self.some_call_ends(data, "success"))

    @precondition(lambda self: self.calls)
    @rule(data=st.data())
    def a_call_fails(self, data):
        self.breaker.failure(self.some_call_ends(data, "failure"), TimeoutError("slow"))

    @precondition(lambda self: self.calls)
    @rule(data=st.data())
    def a_call_fails_in_a_way_that_is_ignored(self, data):
        self.breaker.failure(self.some_call_ends(data, "nothing"), Excluded())

    @precondition(lambda self: self.calls)
    @rule(data=st.data())
    def a_call_is_interrupted(self, data):
        self.breaker.release(self.some_call_ends(data, "nothing"))

    @rule(seconds=st.sampled_from([0.25, 0.5, 1.0, 2.5, 8.0, 10.0]))
    def time_passes(self, seconds):
        self.clock.advance(seconds)
        self.model.now += Fraction(seconds)

    @rule(times=st.integers(1, 4), how=st.sampled_from(["success", "failure"]))
    def several_calls_are_made(self, times, how):
        for _ in range(times):
            self.number += 1
            stay = self.model.enter(self.number)
            assert self.breaker.refuses() == (stay is None)
            if stay is not None:
                self.model.end(self.number, stay, how)
                getattr(self.breaker, how)(self.breaker.enter())

    @precondition(lambda self: self.number % 3 == 0)
    @rule(by_hand=st.sampled_from(["open", "closed", "closed"]))
    def a_hand_moves_it(self, by_hand):
        getattr(self.breaker, by_hand.removesuffix("d"))()
        self.model.go(by_hand)

    @invariant()
    def it_is_as_the_model_says(self):
        expected = "half-open" if self.model.is_due() else self.model.state
        assert self.breaker.state == expected
        assert self.breaker.retry_after == self.model.retry_after()
        if expected == "closed":
            assert self.breaker.counted == self.model.counted()
            assert self.breaker.at_rest == (self.model.counted()[1] == 0)

    @invariant()
    def all_changes_were_told_and_all_were_legal(self):
        assert self.heard == self.model.changes
        legal = {(before, after) for (before, _), after in TRANSITIONS.items()}
        assert set(self.heard) <= legal


Histories.TestCase.settings = settings(stateful_step_count=50)
test_every_history_of_calls_goes_as_a_simple_model_says = Histories.TestCase
