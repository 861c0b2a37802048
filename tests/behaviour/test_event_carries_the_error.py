"""The exception and the arguments of a call, on its events while listeners run."""

from __future__ import annotations

import copy
import pickle
import threading
from contextvars import copy_context

import pytest

from redouble import CircuitOpen, DeadlineExceeded, ResultRejected, Rule
from redouble.breaker import CircuitBreaker
from redouble.dead_letters import DeadLetters
from redouble.events import (
    DeadLettered,
    Expired,
    GaveUp,
    Recovered,
    Refused,
    Retrying,
    Succeeded,
    subscribe,
    with_successes,
)


@pytest.fixture
def seen():
    """The class of each event, and what it carried."""
    return []


@pytest.fixture
def look(seen):
    def look(event):
        seen.append((type(event), event.error, event.args, event.kwargs))

    return look


@pytest.fixture
def policy(policy, look, heard):
    return policy.replace(listeners=[look, heard.append])


def test_the_exception_and_the_arguments_are_there_while_listeners_run(flavour, policy, seen):
    slow, slower = TimeoutError("slow"), TimeoutError("slower")
    decorated = policy.replace(attempts=2)(flavour.scripted(slow, slower))
    with pytest.raises(TimeoutError):
        flavour.run(decorated, "page", user=7)
    assert seen == [
        (Retrying, slow, ("page",), {"user": 7}),
        (GaveUp, slower, ("page",), {"user": 7}),
    ]


def test_a_recovered_call_has_no_error_any_more(flavour, policy, seen):
    flavour.run(policy(flavour.scripted(TimeoutError("slow"), "page")), "a")
    assert seen[-1] == (Recovered, None, ("a",), {})


def test_a_success_carries_the_arguments(flavour, policy, look, seen):
    decorated = policy.replace(listeners=[with_successes(look)])(flavour.scripted("page"))
    flavour.run(decorated, "a")
    assert seen == [(Succeeded, None, ("a",), {})]


def test_subscribers_see_the_exception_too(flavour, policy, look, seen):
    slow = TimeoutError("slow")
    unsubscribe = subscribe(look)
    try:
        flavour.call(policy.replace(listeners=()), flavour.scripted(slow, "page"))
    finally:
        unsubscribe()
    assert seen[0] == (Retrying, slow, (), {})


def test_a_rejected_result_is_no_exception(flavour, policy, seen):
    with pytest.raises(ResultRejected):
        flavour.call(policy.replace(until=bool, attempts=2), flavour.scripted(0, 0))
    assert [(kind, error) for kind, error, *_ in seen] == [(Retrying, None), (GaveUp, None)]


def test_a_rejected_result_is_no_exception_at_the_deadline_either(flavour, policy, clock, seen):
    late = policy.replace(until=bool, deadline=60.0, sleep=lambda seconds: clock.advance(100.0))
    with pytest.raises(DeadlineExceeded):
        flavour.call(late, flavour.scripted(0, 0))
    assert [(kind, error) for kind, error, *_ in seen] == [(Retrying, None), (Expired, None)]


@pytest.mark.parametrize("late", [False, True])
def test_a_call_that_is_out_of_time_carries_its_last_failure(flavour, policy, clock, seen, late):
    slow = TimeoutError("slow")
    fields = {"deadline": 60.0, "sleep": lambda seconds: clock.advance(100.0)} if late else {"deadline": 0.5}
    with pytest.raises(DeadlineExceeded):
        flavour.call(policy.replace(**fields), flavour.scripted(slow, "page"))
    assert seen[-1][:2] == (Expired, slow)


def test_a_callback_that_fails_leaves_the_failure_on_the_event(flavour, policy, seen):
    def recover(error):
        raise LookupError("no token")

    slow = TimeoutError("slow")
    rules = {TimeoutError: Rule(recover=recover)}
    with pytest.raises(TimeoutError):
        flavour.call(policy.replace(rules=rules), flavour.scripted(slow, "page"))
    assert seen[-1][:2] == (GaveUp, slow)


def test_a_refused_call_carries_the_error_of_the_guard(flavour, policy, clock, seen):
    breaker = CircuitBreaker(clock=clock)
    breaker.open()
    with pytest.raises(CircuitOpen) as caught:
        flavour.run(policy.replace(breaker=breaker)(flavour.scripted("page")), "a")
    assert seen == [(Refused, caught.value, ("a",), {})]


def test_a_circuit_that_opens_during_the_wait_leaves_the_failure_on_the_event(flavour, policy, clock, seen):
    breaker, slow = CircuitBreaker(clock=clock), TimeoutError("slow")

    def sleep(seconds):
        breaker.open()

    with pytest.raises(TimeoutError):
        flavour.call(policy.replace(breaker=breaker, sleep=sleep), flavour.scripted(slow, "page"))
    assert [one for one in seen if one[0] is GaveUp] == [(GaveUp, slow, (), {})]


def test_a_dead_letter_carries_the_exception_that_it_was_made_of(flavour, policy, tmp_path, look, seen):
    slow = TimeoutError("slow")
    letters = DeadLetters(tmp_path / "letters.db")
    with pytest.raises(TimeoutError):
        flavour.run(policy.replace(attempts=1, dead_letters=letters)(flavour.scripted(slow)), "a")
    assert seen[-1] == (DeadLettered, slow, ("a",), {})
    letters.listeners = (look,)
    letters.put(error=slow)
    letters.put(error="in words")
    assert seen[-2:] == [(DeadLettered, slow, None, None), (DeadLettered, None, None, None)]


def test_listeners_of_the_store_and_subscribers_see_the_arguments_of_the_call(
    flavour, policy, tmp_path, look, seen
):
    slow = TimeoutError("slow")
    letters = DeadLetters(tmp_path / "letters.db", listeners=[look])
    unsubscribe = subscribe(look)
    try:
        with pytest.raises(TimeoutError):
            flavour.run(policy.replace(attempts=1, dead_letters=letters)(flavour.scripted(slow)), "a", user=7)
    finally:
        unsubscribe()
    assert [one for one in seen if one[0] is DeadLettered] == [(DeadLettered, slow, ("a",), {"user": 7})]


def test_a_letter_that_a_listener_puts_has_no_arguments_of_the_call(flavour, policy, tmp_path, look, seen):
    others = DeadLetters(tmp_path / "others.db", listeners=[look])
    letters = DeadLetters(tmp_path / "letters.db", listeners=[lambda event: others.put(error="in words")])
    quiet = policy.replace(attempts=1, dead_letters=letters, listeners=())
    with pytest.raises(TimeoutError):
        flavour.run(quiet(flavour.scripted(TimeoutError("slow"))), "a")
    assert seen == [(DeadLettered, None, None, None)]


def test_a_letter_that_is_put_after_the_call_has_no_arguments_of_it(flavour, policy, tmp_path, look, seen):
    contexts = []
    letters = DeadLetters(tmp_path / "letters.db", listeners=[lambda event: contexts.append(copy_context())])
    quiet = policy.replace(attempts=1, dead_letters=letters, listeners=())
    with pytest.raises(TimeoutError):
        flavour.run(quiet(flavour.scripted(TimeoutError("slow"))), "a")
    others = DeadLetters(tmp_path / "others.db", listeners=[look])
    contexts[0].run(others.put, error="in words")
    assert seen == [(DeadLettered, None, None, None)]


def test_a_block_has_no_arguments(flavour, policy, seen):
    slow, script = TimeoutError("slow"), iter([0, 1])

    def body(attempt):
        if not next(script):
            raise slow

    flavour.block(policy, body)
    assert seen[0] == (Retrying, slow, (), {})


def test_a_listener_cannot_change_the_arguments_of_the_next_attempt(flavour, policy, heard, caplog):
    def meddle(event):
        event.kwargs["user"] = 8

    script = flavour.scripted(TimeoutError("slow"), "page")
    flavour.run(policy.replace(listeners=[meddle])(script), user=7)
    assert [kwargs for _, kwargs in script.calls] == [{"user": 7}, {"user": 7}]
    assert "TypeError" in caplog.text


def test_an_event_that_was_kept_has_let_go_of_the_call(flavour, policy, heard):
    with pytest.raises(TimeoutError):
        flavour.run(policy(flavour.scripted(*[TimeoutError("slow")] * 4)), "page", user=7)
    assert len(heard) == 4
    assert {(event.error, event.args, event.kwargs) for event in heard} == {(None, None, None)}
    assert {event.error_message for event in heard} == {"slow"}


@pytest.mark.parametrize("interrupt", [LookupError, KeyboardInterrupt])
def test_an_event_lets_go_of_the_call_also_if_a_listener_is_interrupted(policy, heard, interrupt):
    def broken(event):
        raise interrupt

    def times_out():
        raise TimeoutError

    with pytest.raises((TimeoutError, KeyboardInterrupt)):
        policy.replace(listeners=[heard.append, broken]).call(times_out)
    assert heard
    assert all(event.error is None and event.args is None for event in heard)


def test_another_thread_that_looks_later_finds_nothing(flavour, policy):
    handed, go, found = [], threading.Event(), []

    def later():
        go.wait(60)
        found.extend([handed[0].error, handed[0].args, handed[0].kwargs, handed[0].error_type])

    def hand_over(event):
        handed.append(event)

    thread = threading.Thread(target=later)
    thread.start()
    flavour.call(policy.replace(listeners=[hand_over]), flavour.scripted(TimeoutError("slow"), "page"))
    go.set()
    thread.join(60)
    assert found == [None, None, None, "TimeoutError"]


def test_the_events_of_a_call_that_a_listener_makes_carry_their_own_error(flavour, policy, seen, look):
    inner = TimeoutError("inner")

    def fail():
        raise inner

    def calls(event):
        with pytest.raises(TimeoutError):
            policy.replace(listeners=[look], attempts=1).call(fail)

    outer = TimeoutError("outer")
    flavour.call(policy.replace(listeners=[calls, look]), flavour.scripted(outer, "page"))
    assert [(kind, error) for kind, error, *_ in seen] == [
        (GaveUp, inner),
        (Retrying, outer),
        (GaveUp, inner),
        (Recovered, None),
    ]


def test_what_an_event_carries_is_in_no_copy_text_or_comparison_of_it(flavour, policy, heard):
    def look(event):
        told.append((repr(event), hash(event), event.as_dict(), pickle.loads(pickle.dumps(event))))
        copied = copy.copy(event)
        told.append((copied.error, copied.args, copied == event))

    told = []
    decorated = policy.replace(listeners=[look, heard.append])(flavour.scripted(TimeoutError("slow"), "page"))
    flavour.run(decorated, "s3cret")
    (shown, hashed, data, pickled), copied = told[:2]
    kept = heard[0]
    assert (shown, hashed, data, pickled) == (repr(kept), hash(kept), kept.as_dict(), kept)
    assert copied == (None, None, True)
    assert "s3cret" not in shown + str(data)
    assert {"error", "args", "kwargs"}.isdisjoint(data)
