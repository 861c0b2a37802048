"""The events of one call, from its first failure to its end."""

from __future__ import annotations

from unittest import mock

import pytest

from redouble import Cause, DeadlineExceeded, Policy, ResultRejected, Rule
from redouble.backoff import exponential
from redouble.events import Expired, GaveUp, Reason, Recovered, Retrying
from redouble.testing import retries_disabled
from support.errors import Unavailable

TERMINAL = (Recovered, GaveUp, Expired)


@pytest.fixture
def heard():
    return []


@pytest.fixture
def policy(clock, heard):
    return Policy(backoff=exponential, name="fetch", listeners=[heard.append], clock=clock, sleep=clock.sleep)


def test_a_clean_success_is_no_event(flavour, policy, heard):
    assert flavour.call(policy, flavour.scripted("page")) == "page"
    assert heard == []


def test_a_call_that_recovers_tells_each_retry_and_the_end(flavour, policy, heard):
    assert (
        flavour.call(policy, flavour.scripted(TimeoutError("slow"), Unavailable("try later"), "page"))
        == "page"
    )
    assert heard == [
        Retrying(
            "fetch",
            attempt=1,
            delay=1.0,
            elapsed=0.0,
            cause=Cause.timeout,
            error_type="TimeoutError",
            error_message="slow",
        ),
        Retrying(
            "fetch",
            attempt=2,
            delay=2.0,
            elapsed=1.0,
            cause=Cause.unavailable,
            status=503,
            error_type="Unavailable",
            error_message="try later",
        ),
        Recovered(
            "fetch",
            attempt=3,
            elapsed=3.0,
            cause=Cause.unavailable,
            status=503,
            error_type="Unavailable",
            error_message="try later",
        ),
    ]


def test_a_call_that_is_given_up_on_ends_with_the_reason(flavour, policy, heard):
    with pytest.raises(TimeoutError):
        flavour.call(policy.replace(attempts=2), flavour.scripted(TimeoutError("a"), TimeoutError("b")))
    assert [type(event) for event in heard] == [Retrying, GaveUp]
    assert heard[1] == GaveUp(
        "fetch",
        attempt=2,
        elapsed=1.0,
        cause=Cause.timeout,
        error_type="TimeoutError",
        error_message="b",
        reason=Reason.attempts,
    )


def test_elapsed_counts_from_the_beginning_where_there_is_a_deadline(flavour, policy, heard, clock):
    def slow():
        clock.advance(2.0)
        raise TimeoutError("slow")

    with pytest.raises(DeadlineExceeded):
        flavour.call(policy.replace(deadline=9.0), flavour.function(slow))
    assert [(type(event), event.attempt, event.delay, event.elapsed, event.reason) for event in heard] == [
        (Retrying, 1, 1.0, 2.0, None),
        (Retrying, 2, 2.0, 5.0, None),
        (Expired, 3, None, 9.0, Reason.deadline),
    ]


def test_the_name_is_the_functions_own_where_the_policy_has_none(flavour, policy, heard):
    def fetch_page():
        raise KeyError

    with pytest.raises(KeyError):
        flavour.call(policy.replace(name=None), flavour.function(fetch_page))
    assert heard[0].name.endswith("fetch_page")


def test_a_block_tells_what_a_function_tells(flavour, policy, heard):
    script = iter([TimeoutError("slow"), None])

    def body(attempt):
        error = next(script)
        if error:
            raise error

    flavour.block(policy.replace(name=None), body)
    assert [(type(event), event.name, event.attempt) for event in heard] == [
        (Retrying, "block", 1),
        (Recovered, "block", 2),
    ]


def test_a_refused_result_is_told_without_an_error_type(flavour, policy, heard):
    with pytest.raises(ResultRejected):
        flavour.call(policy.replace(until=bool, attempts=2), flavour.scripted(0, 0))
    assert [(type(event), event.error_type, event.error_message) for event in heard] == [
        (Retrying, None, "the result was refused"),
        (GaveUp, None, "the result was refused"),
    ]


class Post(Unavailable):
    def __init__(self):
        super().__init__()
        self.status_code = 500
        self.request = mock.NonCallableMock(spec=["method", "headers"], method="POST", headers={})


class Patient(Unavailable):
    retry_after = 999.0


def failing(error):
    raise error


ENDINGS = [
    pytest.param({"attempts": 1}, TimeoutError("slow"), GaveUp, Reason.attempts, id="attempts"),
    pytest.param({}, KeyError("no"), GaveUp, Reason.not_retryable, id="not_retryable"),
    pytest.param({"enabled": False}, TimeoutError("slow"), GaveUp, Reason.disabled, id="disabled"),
    pytest.param(
        {"idempotent": False}, TimeoutError("slow"), GaveUp, Reason.not_idempotent, id="not_idempotent"
    ),
    pytest.param({}, Patient(), GaveUp, Reason.retry_after, id="max_retry_after"),
    pytest.param({"deadline": 0.5}, TimeoutError("slow"), Expired, Reason.deadline, id="deadline"),
    pytest.param({"on": failing}, TimeoutError("slow"), GaveUp, Reason.callback, id="callback"),
]


@pytest.mark.parametrize(("fields", "error", "kind", "reason"), ENDINGS)
def test_a_first_failure_that_is_not_retried_is_one_event_with_its_reason(
    flavour, policy, heard, clock, fields, error, kind, reason
):
    if reason is Reason.callback:
        fields = {"on": lambda failure: failing(LookupError("predicate"))}
    with pytest.raises((type(error), DeadlineExceeded)):
        flavour.call(policy.replace(**fields), flavour.scripted(error))
    (event,) = heard
    assert (type(event), event.reason, event.attempt, event.delay) == (kind, reason, 1, None)
    assert (event.error_type, event.error_message) == (type(error).__name__, str(error))
    assert clock.waits == []


@pytest.mark.parametrize(("fields", "error", "kind", "reason"), ENDINGS)
def test_a_later_failure_ends_the_call_with_exactly_one_terminal_event(
    flavour, policy, heard, fields, error, kind, reason
):
    # The first failure is retried; the second meets what ends the call.
    said = iter([True, False])
    changed = {
        Reason.attempts: {"attempts": 2},
        Reason.disabled: {"enabled": lambda: next(said)},
        Reason.not_idempotent: {},
        Reason.deadline: {"deadline": 2.5},
        Reason.callback: {"on": lambda failure: next(said) or failing(LookupError("predicate"))},
    }.get(reason, fields)
    if reason is Reason.not_idempotent:
        error = Post()
    with pytest.raises((type(error), DeadlineExceeded)):
        flavour.call(policy.replace(**changed), flavour.scripted(TimeoutError("first"), error))
    assert [type(event) for event in heard] == [Retrying, kind]
    assert heard[1].reason == reason
    assert heard[1].attempt == 2


def test_a_failing_recover_ends_the_call_with_exactly_one_terminal_event(flavour, policy, heard):
    rules = {TimeoutError: Rule(recover=lambda error: failing(LookupError("no token")))}
    with pytest.raises(TimeoutError):
        flavour.call(policy.replace(rules=rules), flavour.scripted(TimeoutError("slow"), "page"))
    assert [(type(event), event.reason) for event in heard] == [(Retrying, None), (GaveUp, Reason.callback)]


def test_a_deadline_that_comes_during_the_wait_ends_the_call_with_one_terminal_event(flavour, clock, heard):
    policy = Policy(
        deadline=5.0,
        backoff=exponential,
        listeners=[heard.append],
        clock=clock,
        sleep=lambda seconds: clock.sleep(10.0),
    )
    with pytest.raises(DeadlineExceeded):
        flavour.call(policy, flavour.scripted(TimeoutError("slow"), "page"))
    assert [(type(event), event.attempt) for event in heard] == [(Retrying, 1), (Expired, 1)]
    assert heard[1].elapsed == 10.0


def test_an_until_that_raises_in_a_later_attempt_still_ends_the_call_with_one_terminal_event(
    flavour, policy, heard
):
    def until(result):
        raise LookupError("cannot tell")

    with pytest.raises(LookupError, match="cannot tell"):
        flavour.call(policy.replace(until=until), flavour.scripted(TimeoutError("slow"), "page"))
    assert sum(isinstance(event, TERMINAL) for event in heard) == 1


def test_a_call_that_never_began_says_so_with_attempt_0(flavour, policy, heard, clock):
    outer = Policy(deadline=1.0, clock=clock, sleep=clock.sleep)
    inner = policy.replace(deadline=5.0)
    script = flavour.scripted("page")
    if flavour.is_async:

        async def late():
            clock.advance(2.0)
            return await inner(script)()
    else:

        def late():
            clock.advance(2.0)
            return inner(script)()

    with pytest.raises(DeadlineExceeded) as caught:
        flavour.call(outer, late)
    assert caught.value.attempts == 0 or caught.value.last_error.attempts == 0
    assert [(type(event), event.attempt, event.reason) for event in heard] == [(Expired, 0, Reason.deadline)]
    assert (heard[0].error_type, heard[0].error_message) == (None, None)
    assert script.calls == []


def test_switched_off_retries_are_told_as_such(flavour, policy, heard):
    with retries_disabled(), pytest.raises(TimeoutError):
        flavour.call(policy, flavour.scripted(TimeoutError("slow"), "page"))
    assert [(type(event), event.reason) for event in heard] == [(GaveUp, Reason.disabled)]


def test_an_interrupt_is_no_failure_and_no_event(flavour, policy, heard):
    with pytest.raises(SystemExit):
        flavour.call(policy, flavour.scripted(SystemExit(3)))
    assert heard == []
