"""Calls with a throttle."""

from __future__ import annotations

import pytest

from redouble import (
    CircuitOpen,
    DeadlineExceeded,
    Policy,
)
from redouble.breaker import CircuitBreaker
from redouble.bulkhead import Bulkhead
from redouble.throttle import AdaptiveThrottle
from support.guarded import SLOW, HTTPError, Response, Turnstile, told


def test_every_attempt_waits_for_its_turn_at_the_throttle(flavour, policy, clock):
    throttle = Turnstile(0.25, 0.5, 0.0, 0.125)
    assert flavour.call(policy.replace(throttle=throttle), flavour.scripted(SLOW, "page")) == "page"
    assert clock.waits == [0.25, 0.5, 1.0, 0.125]
    assert throttle.outcomes == ["TimeoutError", "str"]


def test_a_turn_that_would_come_after_the_deadline_is_not_waited_for(flavour, policy, clock, heard):
    throttle = Turnstile(9.0)
    function = flavour.scripted("page")
    with pytest.raises(DeadlineExceeded) as caught:
        flavour.call(policy.replace(throttle=throttle, deadline=5.0), function)
    assert function.calls == []
    assert clock.waits == []
    assert caught.value.attempts == 0
    assert told(heard) == [("Expired", "deadline")]


def test_a_later_turn_that_would_come_after_the_deadline_ends_the_call_because_of_its_error(
    flavour, policy, clock
):
    throttle = Turnstile(0.0, 9.0)
    with pytest.raises(DeadlineExceeded) as caught:
        flavour.call(policy.replace(throttle=throttle, deadline=5.0), flavour.scripted(SLOW))
    assert caught.value.__cause__ is SLOW
    assert "waited 1.00 s" in caught.value.__notes__[0]
    assert clock.waits == [1.0]


def test_a_throttling_answer_slows_the_next_call_down(flavour, clock):
    throttle = AdaptiveThrottle(clock=clock)
    policy = Policy(clock=clock, sleep=clock.sleep, throttle=throttle, attempts=1)
    for _ in range(20):
        flavour.call(policy, flavour.scripted("page"))
        clock.advance(0.1)
    assert clock.waits == []
    with pytest.raises(HTTPError):
        flavour.call(policy, flavour.scripted(HTTPError(429)))
    assert throttle.active
    other = AdaptiveThrottle(clock=clock)
    flavour.call(policy.replace(throttle=other), flavour.scripted(Response(429)))  # returned, not raised
    assert other.active
    for _ in range(20):
        flavour.call(policy, flavour.scripted("page"))
    assert clock.waits != []


def test_no_attempt_starts_after_a_throttle_that_kept_it_past_the_deadline(flavour, policy, clock):
    function = flavour.scripted("page")
    throttle = Turnstile(1.0, 0.5)
    late = policy.replace(throttle=throttle, deadline=3.0, sleep=lambda seconds: clock.advance(seconds + 5))
    with pytest.raises(DeadlineExceeded, match="before its first attempt: the deadline of 3 s has passed"):
        flavour.call(late, function)
    assert (function.calls, throttle.waits) == ([], [0.5])


def test_an_open_circuit_is_noticed_before_the_throttle_and_the_queue(flavour, policy, clock):
    breaker, throttle, bulkhead = CircuitBreaker(clock=clock), Turnstile(2.0), Bulkhead(1, queue=9)
    breaker.open()
    assert bulkhead.acquire()
    with pytest.raises(CircuitOpen):
        flavour.call(
            policy.replace(breaker=breaker, throttle=throttle, bulkhead=bulkhead), flavour.scripted("page")
        )
    assert clock.waits == []
    assert throttle.waits == [2.0]


def test_a_throttle_whose_clock_raises_lets_the_attempt_go(flavour, policy):
    def clock():
        raise OSError("clock")

    throttle = AdaptiveThrottle(clock=clock)
    assert flavour.call(policy.replace(throttle=throttle), flavour.scripted(SLOW, "page")) == "page"


def test_the_story_counts_what_a_throttle_added_to_a_wait(flavour, policy):
    error = TimeoutError("slow")
    with pytest.raises(TimeoutError):
        policy = policy.replace(throttle=Turnstile(0.0, 0.5), attempts=2)
        flavour.call(policy, flavour.scripted(TimeoutError("slow"), error))
    assert "attempt 1: TimeoutError: slow; waited 1.50 s" in error.__notes__[0]


def test_a_throttle_is_asked_again_after_five_seconds_at_the_latest(policy, clock):
    policy.replace(throttle=Turnstile(100.0, 0.0)).call(lambda: "page")
    assert clock.waits == [5.0]
