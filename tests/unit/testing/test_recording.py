"""`recorded`, and the assertions about a recording."""

from __future__ import annotations

import asyncio
import contextlib
import threading

import pytest

from redouble import (
    BulkheadFull,
    CircuitOpen,
    DeadlineExceeded,
    Policy,
    events,
    hedging,
    retry,
    retrying,
    testing,
)
from redouble.backoff import exponential, fixed
from redouble.breaker import CircuitBreaker
from redouble.bulkhead import Bulkhead
from redouble.events import Expired, GaveUp, Reason, Recovered, Refused, Retrying
from redouble.testing import (
    Recording,
    after,
    assert_gave_up,
    assert_not_retried,
    assert_retried,
    fake_time,
    no_waits,
    recorded,
    scripted,
)
from support.threads import in_a_thread


def test_a_recording_tells_retries_waits_and_the_outcome(flavour):
    policy = Policy(backoff=exponential, name="fetch")
    with no_waits(), recorded() as story:
        flavour.call(policy, flavour.scripted(TimeoutError("slow"), TimeoutError("slow"), "page"))
    assert (story.retries, story.waits) == (2, (1.0, 2.0))
    assert [type(event) for event in story.events] == [Retrying, Retrying, Recovered]
    assert story.outcome is story.events[-1]
    assert story.endings == (story.outcome,)


def test_a_call_that_succeeds_at_once_leaves_no_trace(flavour):
    with recorded() as story:
        flavour.call(Policy(), flavour.scripted("page"))
    assert (story.events, story.retries, story.waits, story.outcome) == ((), 0, (), None)
    assert str(story) == ""


def test_a_recording_ends_with_its_block(flavour):
    with recorded() as story:
        pass
    with no_waits():
        flavour.call(Policy(), flavour.scripted(TimeoutError(), "page"))
    assert story.events == ()


def test_the_events_of_a_recording_cannot_be_changed_through_it():
    with recorded() as story:
        pass
    assert isinstance(story.events, tuple)
    with pytest.raises(AttributeError):
        story.events = ()


def test_a_part_of_a_recording_is_about_one_name():
    with no_waits(), recorded() as story:
        retry(name="one")(scripted(TimeoutError(), "page"))()
        with pytest.raises(KeyError):
            retry(name="two")(scripted(KeyError("id")))()
    assert (story.of("one").retries, type(story.of("one").outcome)) == (1, Recovered)
    assert (story.of("two").retries, type(story.of("two").outcome)) == (0, GaveUp)
    assert story.of("three").events == ()
    assert len(story.endings) == 2


def test_recordings_within_each_other_all_hear_what_happens_inside():
    with no_waits(), recorded() as outer:
        with recorded() as inner, recorded(everywhere=True) as both:
            retry(scripted(TimeoutError(), "page"))()
        retry(scripted(TimeoutError(), "page"))()
    assert (outer.retries, inner.retries, both.retries) == (2, 1, 1)


@pytest.mark.parametrize("everywhere", [False, True])
def test_a_recording_hears_of_other_threads_only_where_that_is_asked_for(everywhere):
    policy = Policy(sleep=lambda seconds: None)
    with recorded(everywhere=everywhere) as story:
        assert in_a_thread(lambda: policy.call(scripted(TimeoutError(), "page"))) == "page"
    assert story.retries == (1 if everywhere else 0)


def test_a_recording_hears_of_tasks_that_were_started_in_its_block():
    async def main():
        policy = Policy(sleep=lambda seconds: None)
        with recorded() as story:
            calls = [policy(scripted(TimeoutError(), n, asynchronous=True))() for n in range(3)]
            await asyncio.gather(*calls)
        return story

    assert asyncio.run(main()).retries == 3


def test_a_recording_tells_in_words_what_happened():
    breaker = CircuitBreaker(failures=2, name="stock breaker")
    policy = Policy(attempts=2, backoff=fixed, name="stock", breaker=breaker)
    with fake_time(), recorded() as story:
        with pytest.raises(TimeoutError):
            policy.call(scripted(TimeoutError("slow"), TimeoutError("slow")))
        with pytest.raises(CircuitOpen):
            policy.call(scripted("page"))
        with pytest.raises(DeadlineExceeded):
            retry(deadline=1.0, backoff=fixed, name="price")(scripted(TimeoutError()))()
        assert retry(until=bool, backoff=fixed, name="poll")(scripted(0, 1))() == 1
        with retrying(deadline=1.0) as call:
            testing.scripted(after(2.0))()
            with pytest.raises(DeadlineExceeded):
                call(scripted("page"))
    lines = str(story).splitlines()
    assert lines[0] == "stock, attempt 1: TimeoutError: slow; retried after 1.00 s"
    assert lines[1] == "stock breaker: CircuitChanged before=closed after=open"
    assert lines[2] == "stock, attempt 2: TimeoutError: slow; gave up (attempts)"
    assert lines[3].startswith("stock: CircuitOpen: ")
    assert lines[3].endswith("; rejected (breaker)")
    assert lines[4:7] == [
        "price, attempt 1: TimeoutError; gave up (deadline)",
        "poll, attempt 1: the result was refused; retried after 1.00 s",
        "poll, attempt 2: succeeded",
    ]
    assert lines[7] == "Scripted: gave up (deadline)"
    assert repr(story) == "<recording of 8 events>"


def test_a_recording_tells_of_hedges():
    event = events.Hedged("fetch", attempt=2, elapsed=0.1, delay=0.1)
    assert str(Recording([event])) == "fetch, attempt 2: started beside a slow one"


def test_a_hedge_is_recorded_where_it_was_called():
    quick, slow = threading.Event(), threading.Event()

    @hedging.hedge(after=0.001)
    def fetch():
        if not quick.is_set():
            quick.set()
            slow.wait(60)
        return "page"

    with recorded() as story:
        assert fetch() == "page"
        slow.set()
    assert [type(event).__name__ for event in story.events] == ["Hedged"]


@pytest.fixture
def story():
    with no_waits(), recorded() as told:
        retry(backoff=fixed, name="fetch")(scripted(TimeoutError("slow"), TimeoutError("slow"), "page"))()
    return told


def failure_of(assertion, *args, **kwargs):
    with pytest.raises(AssertionError) as caught:
        assertion(*args, **kwargs)
    return str(caught.value)


WHAT_HAPPENED = """
  fetch, attempt 1: TimeoutError: slow; retried after 1.00 s
  fetch, attempt 2: TimeoutError: slow; retried after 1.00 s
  fetch, attempt 3: succeeded"""


def test_what_was_retried_is_counted(story):
    assert_retried(story)
    assert_retried(story, 2)
    assert_retried(story.of("nothing"), times=0)
    for times, told in ((0, "no retries"), (1, "1 retry"), (3, "3 retries")):
        expected = f"expected {told}, there were 2:{WHAT_HAPPENED}"
        assert failure_of(assert_retried, story, times) == expected


def test_what_was_not_retried_tells_that_nothing_failed():
    with recorded() as story:
        retry(scripted("page"))()
    assert_not_retried(story)
    why = "no call failed here (calls in other threads are heard with recorded(everywhere=True))"
    assert failure_of(assert_retried, story) == f"expected at least 1 retry, there were none:\n  {why}"


def test_a_retry_that_was_not_wanted_is_told(story):
    assert failure_of(assert_not_retried, story) == f"expected no retries, there were 2:{WHAT_HAPPENED}"
    one = Recording(story.events[:1])
    assert failure_of(assert_not_retried, one).startswith(
        "expected no retries, there was 1:\n  fetch, attempt 1"
    )


def test_a_call_that_recovered_was_not_given_up_on(story):
    assert failure_of(assert_gave_up, story) == f"expected a call to give up, none did:{WHAT_HAPPENED}"


@pytest.mark.parametrize(
    ("reason", "kind", "fields", "outcome"),
    [
        ("attempts", GaveUp, {"attempts": 1}, TimeoutError),
        ("not_retryable", GaveUp, {}, KeyError),
        ("deadline", Expired, {"deadline": 0.5, "backoff": fixed}, TimeoutError),
        ("bulkhead", Refused, {"bulkhead": True}, "page"),
    ],
)
def test_every_way_to_be_given_up_on_counts(reason, kind, fields, outcome):
    with contextlib.ExitStack() as stack:
        if "bulkhead" in fields:
            full = fields["bulkhead"] = Bulkhead(1)
            stack.enter_context(full)
        told = stack.enter_context(recorded())
        stack.enter_context(no_waits())
        with pytest.raises((TimeoutError, KeyError, BulkheadFull)):
            Policy(**fields).call(scripted(outcome))
    assert type(told.outcome) is kind
    assert_gave_up(told)
    assert_gave_up(told, reason=reason)
    assert_gave_up(told, reason=Reason(reason))
    assert failure_of(assert_gave_up, told, reason="retry_after").startswith(
        "expected a call to give up (retry_after), none did:\n  Scripted"
    )


def test_a_reason_that_does_not_exist_is_no_failed_assertion(story):
    with pytest.raises(ValueError, match=r"reason must be one of disabled, .*, callback, got 'atempts'"):
        assert_gave_up(story, reason="atempts")
    with pytest.raises(ValueError, match="times must be at least 0, got -1"):
        assert_retried(story, times=-1)
