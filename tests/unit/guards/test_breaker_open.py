"""An open breaker: opening and closing by hand, and the error of a rejected call."""

from __future__ import annotations

from typing import Any, ClassVar

from redouble.breaker import CircuitBreaker, Consecutive
from redouble.classify import is_retryable
from redouble.errors import RedoubleError
from support.breakers import CLOSED, OPEN, HttpError, fail, half_opened, make, opened, refused, succeed


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


def test_a_circuit_that_a_signal_handler_opens_while_a_failure_is_counted_stays_open():
    breaker = CircuitBreaker(failures=5)

    class Interrupted(Consecutive):
        """A count in whose reading a signal handler runs, once."""

        handlers: ClassVar[list[Any]] = [breaker.open]

        @property
        def window(self):
            if self.handlers:
                self.handlers.pop()()

    breaker._circuit.count = Interrupted(5)
    breaker.failure(breaker.enter(), TimeoutError("slow"))
    assert breaker.state is OPEN
    refused(breaker)
