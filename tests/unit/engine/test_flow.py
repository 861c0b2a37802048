"""The flow of a call: what it does not ask again, and how far it looks."""

import itertools

import pytest

from redouble import Policy
from redouble.backoff import fixed
from redouble.breaker import CircuitBreaker
from redouble.bulkhead import Bulkhead


@pytest.mark.parametrize("fields", [{}, {"deadline": 60.0}, {"bulkhead": Bulkhead(1)}], ids=str)
def test_a_circuit_that_opens_during_the_first_attempt_does_not_replace_its_error(flavour, clock, fields):
    breaker = CircuitBreaker(clock=clock)

    def fetch():
        breaker.open()
        raise TimeoutError("slow")

    policy = Policy(clock=clock, sleep=clock.sleep, breaker=breaker, **fields)
    with pytest.raises(TimeoutError):
        flavour.call(policy, flavour.function(fetch))


@pytest.mark.parametrize("depth", [19, 20])
def test_a_fallback_declines_by_one_of_the_twenty_errors_nearest_to_the_last_one(flavour, depth):
    chain = [TimeoutError("slow"), *(LookupError(str(number)) for number in range(1, 21))]
    for error, cause in itertools.pairwise(chain):
        error.__cause__ = cause

    def fallback(error):
        raise chain[depth]

    with pytest.raises(LookupError) as caught:
        flavour.call(Policy(attempts=1, fallback=fallback), flavour.scripted(chain[0]))
    assert caught.value is chain[depth]
    assert caught.value.__cause__ is chain[20 if depth == 19 else 0]


def test_a_block_that_succeeds_at_once_has_its_result(flavour):
    assert flavour.block(Policy(), lambda attempt: attempt.number) == 1


def test_a_wait_is_not_begun_if_a_listener_has_used_up_the_time_for_retries(flavour, clock):
    policy = Policy(
        clock=clock,
        sleep=clock.sleep,
        backoff=fixed,
        give_up_after=5.0,
        listeners=[lambda event: clock.advance(4.5)],
    )
    with pytest.raises(TimeoutError):
        flavour.call(policy, flavour.scripted(TimeoutError("slow")))
    assert clock.waits == []


def test_a_fallback_that_returns_none_answers_none(flavour):
    policy = Policy(attempts=1, fallback=lambda error: None)
    assert flavour.call(policy, flavour.scripted(TimeoutError("slow"))) is None
