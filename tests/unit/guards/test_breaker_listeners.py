"""Events and log records of a breaker."""

from __future__ import annotations

import functools
import logging

import pytest

from redouble.events import CircuitChanged
from support.breakers import CLOSED, HALF_OPEN, OPEN, exclude, fail, half_opened, make, raising, succeed, walk


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


def test_an_interrupt_in_a_listener_frees_the_slot_of_a_call_that_is_never_made(clock):
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
        "circuit shop went from closed to open: TimeoutError: slow",
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


def test_the_log_says_that_a_function_for_ignore_must_not_be_async(clock, caplog):
    async def later(): ...

    breaker = make(clock, failures=1, ignore=lambda error: later())
    with caplog.at_level(logging.WARNING, "redouble"):
        fail(breaker)
    assert breaker.state is OPEN
    assert "TypeError: it returned an awaitable: it must be a plain function" in caplog.text
