"""Listeners that ask for successes, and subscribers of every policy."""

from __future__ import annotations

import asyncio
import functools
import logging
import pickle

import pytest

from redouble import CircuitOpen, Policy, retry, retrying
from redouble.backoff import exponential
from redouble.breaker import CircuitBreaker
from redouble.budget import TokenBudget
from redouble.bulkhead import Bulkhead
from redouble.dead_letters import DeadLetters
from redouble.events import (
    GaveUp,
    Recovered,
    Retrying,
    Succeeded,
    subscribe,
    with_successes,
)


@pytest.fixture
def heard():
    return []


@pytest.fixture
def subscribed(heard):
    unsubscribe = subscribe(heard.append)
    yield heard
    unsubscribe()


def kinds(events):
    return [type(event).__name__ for event in events]


def counting(clock, heard, **fields):
    fields = {"backoff": exponential, "name": "fetch", "clock": clock, "sleep": clock.sleep, **fields}
    return Policy(listeners=[with_successes(heard.append)], **fields)


WAYS = {
    "bare": {},
    "deadline": {"deadline": 60.0},
    "timeout": {"timeout": 5.0},
    "until": {"until": bool},
    "key": {"idempotency_key": True},
    "budget": {"budget": TokenBudget()},
    "breaker": {"breaker": CircuitBreaker()},
    "bulkhead": {"bulkhead": Bulkhead(3)},
    "all": {"deadline": 60.0, "until": bool, "budget": TokenBudget(), "breaker": CircuitBreaker()},
}


@pytest.mark.parametrize("fields", WAYS.values(), ids=WAYS)
def test_a_success_at_the_first_try_is_told_to_those_who_ask(flavour, clock, heard, fields):
    def work():
        clock.advance(0.25)
        return "page"

    assert flavour.call(counting(clock, heard, **fields), flavour.function(work)) == "page"
    assert heard == [Succeeded("fetch", attempt=1, elapsed=0.25)]


def test_a_success_is_told_only_to_the_listener_that_asks(flavour, clock):
    one, other = [], []
    policy = counting(clock, one).replace(listeners=[with_successes(one.append), other.append])
    flavour.call(policy, flavour.scripted("page"))
    flavour.call(policy, flavour.scripted(TimeoutError(), "page"))
    assert kinds(one) == ["Succeeded", "Retrying", "Recovered"]
    assert kinds(other) == ["Retrying", "Recovered"]


def test_a_subscriber_is_not_told_of_a_success_at_the_first_try(flavour, clock):
    every = with_successes((heard := []).append)
    unsubscribe = subscribe(every)
    try:
        flavour.call(counting(clock, []), flavour.scripted("page"))
    finally:
        unsubscribe()
    assert heard == []


def test_a_call_ends_with_one_of_succeeded_and_recovered(flavour, clock, heard):
    policy = counting(clock, heard)
    flavour.call(policy, flavour.scripted(TimeoutError(), TimeoutError(), "page"))
    assert kinds(heard) == ["Retrying", "Retrying", "Recovered"]


def test_where_successes_are_asked_for_elapsed_counts_from_the_beginning(flavour, clock, heard):
    outcomes = iter([TimeoutError("slow"), "page"])

    def work():
        clock.advance(0.5)
        outcome = next(outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    flavour.call(counting(clock, heard), flavour.function(work))
    assert [(type(event), event.elapsed) for event in heard] == [(Retrying, 0.5), (Recovered, 2.0)]


def test_a_block_that_succeeds_at_once_is_told(flavour, clock, heard):
    flavour.block(counting(clock, heard), lambda attempt: None)
    assert kinds(heard) == ["Succeeded"]
    assert heard[0].name == "fetch"


def test_a_block_that_recovers_is_no_success_at_the_first_try(flavour, clock, heard):
    outcomes = iter([TimeoutError("slow"), None])

    def body(attempt):
        if (outcome := next(outcomes)) is not None:
            raise outcome

    flavour.block(counting(clock, heard), body)
    assert kinds(heard) == ["Retrying", "Recovered"]


def test_a_generator_succeeds_with_its_first_item(clock, heard):
    @counting(clock, heard)
    def numbers():
        yield 1
        assert kinds(heard) == ["Succeeded"]
        yield 2

    assert list(numbers()) == [1, 2]
    assert kinds(heard) == ["Succeeded"]


def test_a_plain_function_that_gives_a_coroutine_is_told_of_when_that_has_ended(clock, heard):
    async def page():
        clock.advance(1.0)
        return "page"

    async def main():
        running = counting(clock, heard)(lambda: page())()
        assert heard == []
        return await running

    assert asyncio.run(main()) == "page"
    assert heard == [Succeeded("fetch", attempt=1, elapsed=1.0)]


def test_an_interrupt_is_no_success(flavour, clock, heard):
    with pytest.raises(KeyboardInterrupt):
        flavour.call(counting(clock, heard), flavour.scripted(KeyboardInterrupt()))
    assert heard == []


def test_a_call_that_is_not_let_through_is_no_success(flavour, clock, heard):
    breaker = CircuitBreaker(clock=clock)
    breaker.open()
    with pytest.raises(CircuitOpen):
        flavour.call(counting(clock, heard, breaker=breaker), flavour.scripted("page"))
    assert kinds(heard) == ["Refused"]


def test_a_success_is_not_logged(clock, heard, caplog):
    with caplog.at_level(logging.DEBUG, "redouble"):
        counting(clock, heard).call(str)
    assert kinds(heard) == ["Succeeded"]
    assert caplog.records == []


def test_what_counts_successes_is_a_listener_like_any_other(clock):
    def listener(event):
        """Heard."""

    wrapped = with_successes(listener)
    assert wrapped == with_successes(listener) != with_successes(print)
    assert hash(wrapped) == hash(with_successes(listener))
    assert wrapped != listener
    assert repr(wrapped) == "with_successes(listener)"
    assert Policy(listeners=[wrapped]) == Policy(listeners=[with_successes(listener)])
    with pytest.raises(TypeError, match="listener must be a plain function, not an async one"):
        with_successes(asyncio.sleep)
    with pytest.raises(TypeError, match="listener must be a function, got 3"):
        with_successes(3)


@pytest.mark.parametrize("answer", [None, 1, "yes", False])
def test_only_true_asks_for_successes(answer, clock, heard):
    class Listener:
        wants_successes = answer

        def __call__(self, event):
            heard.append(event)

    Policy(listeners=[Listener()]).call(str)
    assert heard == []


def test_a_policy_whose_listeners_hear_of_successes_pickles(clock):
    policy = Policy(listeners=[with_successes(print)])
    again = pickle.loads(pickle.dumps(policy))
    assert again == policy
    assert again._variant == policy._variant == "full"


def test_a_subscriber_hears_of_every_policy(flavour, clock, subscribed):
    for name in ("one", "two"):
        policy = Policy(name=name, clock=clock, sleep=clock.sleep)
        flavour.call(policy, flavour.scripted(TimeoutError(), "page"))
    assert [(type(event), event.name) for event in subscribed] == [
        (Retrying, "one"), (Recovered, "one"), (Retrying, "two"), (Recovered, "two"),
    ]  # fmt: skip


def test_a_subscriber_hears_of_guards_and_of_dead_letters_once(flavour, clock, subscribed, tmp_path):
    letters = DeadLetters(tmp_path / "letters.db")
    breaker = CircuitBreaker(failures=1, clock=clock)
    policy = Policy(
        attempts=1, breaker=breaker, dead_letters=letters, clock=clock, sleep=clock.sleep, listeners=[print]
    )
    with pytest.raises(TimeoutError):
        flavour.call(policy, flavour.scripted(TimeoutError()))
    letters.close()
    assert sorted(kinds(subscribed)) == ["CircuitChanged", "DeadLettered", "GaveUp"]


def test_after_unsubscribing_nothing_is_heard(clock, heard):
    unsubscribe = subscribe(heard.append)
    unsubscribe()
    unsubscribe()
    with pytest.raises(ValueError, match="no"):
        Policy().call(int, "no")
    assert heard == []


def test_unsubscribing_ends_one_subscription_of_a_listener(heard):
    def listener(event):
        heard.append(event)

    first, second = subscribe(listener), subscribe(listener)
    first()
    with pytest.raises(ValueError, match="no"):
        Policy().call(int, "no")
    second()
    assert kinds(heard) == ["GaveUp"]


def test_a_listener_that_is_also_subscribed_is_told_once(clock, heard):
    listener = heard.append
    unsubscribe = subscribe(listener)
    with pytest.raises(ValueError, match="no"):
        Policy(listeners=[listener]).call(int, "no")
    unsubscribe()
    assert kinds(heard) == ["GaveUp"]


@pytest.mark.parametrize("wrong", [None, 3, asyncio.sleep])
def test_what_cannot_hear_cannot_be_subscribed(wrong):
    with pytest.raises(TypeError, match="listener must be a"):
        subscribe(wrong)


def test_a_success_at_the_first_try_costs_a_default_policy_nothing_whoever_is_subscribed(subscribed):
    fetch = retry(lambda: "page")
    before = fetch.__code__
    assert fetch() == "page"
    assert fetch.__code__ is before
    assert subscribed == []


def _times_out():
    raise TimeoutError("slow")


def test_a_listener_in_two_places_is_told_once_whatever_it_is_wrapped_in(clock, tmp_path):
    class Listener:
        def __init__(self):
            self.heard = []

        def hear(self, event):
            self.heard.append(type(event).__name__)

    one = Listener()
    unsubscribe = subscribe(one.hear)
    letters = DeadLetters(tmp_path / "letters.db", listeners=[one.hear])
    try:
        policy = Policy(
            attempts=2,
            listeners=[with_successes(one.hear)],
            dead_letters=letters,
            clock=clock,
            sleep=clock.sleep,
        )
        with pytest.raises(TimeoutError):
            policy.call(_times_out)
    finally:
        unsubscribe()
        letters.close()
    assert one.heard == ["Retrying", "GaveUp", "DeadLettered"]


def test_whoever_subscribes_what_asks_for_successes_is_told_that_it_will_hear_of_none(heard, caplog):
    subscribe(with_successes(heard.append))()
    assert "asks for successes, which subscribers do not receive" in caplog.text


def test_an_until_that_raises_at_the_first_attempt_ends_a_counted_call_with_an_event(flavour, clock, heard):
    policy = counting(clock, heard, until=lambda result: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        flavour.call(policy, flavour.scripted("page"))
    assert [(type(event), event.reason) for event in heard] == [(GaveUp, "callback")]


def test_partials_and_methods_hear_as_well_as_functions(clock):
    class Listener:
        def __init__(self):
            self.heard = []

        def hear(self, prefix, event=None):
            self.heard.append((prefix, event))

    listener = Listener()
    policy = Policy(
        listeners=[with_successes(functools.partial(listener.hear, "p")), with_successes(listener.hear)]
    )
    policy.call(str)
    assert [type(one).__name__ for pair in listener.heard for one in pair] == [
        "str",
        "Succeeded",
        "Succeeded",
        "NoneType",
    ]


def test_a_scope_tells_of_its_calls(heard, clock):
    with retrying(counting(clock, heard)) as call:
        call(str)
        call(str)
    assert kinds(heard) == ["Succeeded", "Succeeded"]
