"""A half-open breaker: probes, and what their results change."""

from __future__ import annotations

import pytest

from support.breakers import CLOSED, HALF_OPEN, OPEN, fail, half_opened, make, refused, succeed


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
