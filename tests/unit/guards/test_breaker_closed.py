"""A closed breaker: when it opens, and which failures it does not count."""

from __future__ import annotations

from datetime import timedelta

import pytest

from redouble import DeadlineExceeded
from redouble.breaker import CircuitBreaker, _says_nothing
from redouble.errors import BulkheadFull, CircuitOpen
from redouble.testing import no_waits
from support.breakers import (
    CLOSED,
    HALF_OPEN,
    KINDS,
    OPEN,
    HttpError,
    exclude,
    fail,
    half_opened,
    make,
    opened,
    refused,
    succeed,
    watcher,
)


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


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 409, 410, 422])
def test_what_the_server_says_about_the_request_says_nothing_about_the_server(clock, status):
    breaker = CircuitBreaker(failures=1, clock=clock)
    breaker.failure(breaker.enter(), HttpError(status))
    assert _says_nothing(HttpError(status))
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


def test_an_interrupt_in_a_predicate_passes_and_frees_the_slot(clock):
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


def test_an_ignored_probe_gives_its_slot_to_another(clock):
    breaker = half_opened(clock)
    for _ in range(5):
        exclude(breaker)
    assert (breaker.state, breaker.retry_after) == (HALF_OPEN, 0.0)
    succeed(breaker)
    assert breaker.state is CLOSED
