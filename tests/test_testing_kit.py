"""The kit for users' tests: fake time, functions that fail by script, switches, and what was retried."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import copy
import inspect
import os
import pickle
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest

from interleaving import explore
from redouble import (
    BulkheadFull,
    Cause,
    CircuitOpen,
    DeadlineExceeded,
    Policy,
    ResultRejected,
    Rule,
    _time,
    context,
    current_attempt,
    events,
    hedging,
    retry,
    retrying,
    testing,
)
from redouble.backoff import exponential, fixed
from redouble.breaker import CircuitBreaker
from redouble.bulkhead import Bulkhead
from redouble.classify import accepted, is_retryable, verdict
from redouble.events import Expired, GaveUp, Reason, Recovered, Refused, Retrying
from redouble.testing import (
    AsyncScripted,
    FakeClock,
    HTTPError,
    Recording,
    Scripted,
    ScriptEnded,
    Waits,
    _script,
    _switches,
    after,
    assert_gave_up,
    assert_not_retried,
    assert_retried,
    capped,
    fake_time,
    no_waits,
    recorded,
    response,
    retries_disabled,
    scripted,
)

# As users do it; here it is in reach of the measurement of coverage.
pytest_plugins = ["redouble.testing.plugin"]


@pytest.fixture(autouse=True)
def nothing_left_on():
    """Whatever a test has switched on is off after it."""
    yield
    assert (_time.fakes, _time.fake_everywhere, _time.fake_here.get()) == ({}, {}, None)
    assert (context.caps, context.caps_everywhere, context.cap_here.get()) == ({}, {}, None)
    assert (context.switched_off_everywhere, context.switches_off, context.switched_off.get()) == (
        {},
        {},
        None,
    )
    assert events._subscribers == {}


@pytest.fixture(autouse=True)
def no_real_sleep(monkeypatch):
    """A wait that is not skipped is a failure here, not a delay."""

    def refused(seconds):
        raise AssertionError(f"slept {seconds} s for real")

    monkeypatch.setattr(time, "sleep", refused)


def in_a_thread(function):
    """What a function gives in a thread of its own, with a context of its own."""
    outcome = []

    def body():
        try:
            outcome.append(function())
        except Exception as error:
            outcome.append(error)

    # Where threads inherit the context of their maker (free-threaded builds), this is as good as none.
    thread = threading.Thread(target=contextvars.Context().run, args=[body])
    thread.start()
    thread.join(10)
    (found,) = outcome
    return found


def script_of(flavour, *outcomes, then):
    """A script without an end, sync or async."""
    return scripted(*outcomes, then=then, asynchronous=flavour.is_async)


class Recorder:
    """A sleep of the policy's own."""

    def __init__(self):
        self.waits = []

    def __call__(self, seconds):
        self.waits.append(seconds)


# FakeClock


def test_a_fake_clock_stands_still_until_somebody_sleeps():
    clock = FakeClock(100.0)
    assert (clock(), clock(), clock.now, clock.waits) == (100.0, 100.0, 100.0, [])
    clock.sleep(2.5)
    clock.advance(1.0)
    assert (clock(), clock.now, clock.waits) == (103.5, 103.5, [2.5])


def test_a_fake_clock_starts_at_zero():
    assert FakeClock()() == 0.0


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), True])
def test_a_fake_clock_never_goes_back_nor_beyond_all_time(seconds):
    clock = FakeClock()
    for move in (clock.sleep, clock.advance):
        with pytest.raises(ValueError, match="seconds must be "):
            move(seconds)
    assert clock.now == 0.0


def test_a_refused_wait_is_not_written_down():
    clock = FakeClock()
    with pytest.raises(ValueError, match="seconds must be finite and not negative, got -1"):
        clock.sleep(-1)
    assert clock.waits == []


def test_a_fake_clock_serves_a_whole_policy(flavour, clock):
    policy = Policy(backoff=exponential, deadline=9.0, clock=clock, sleep=clock.sleep)
    assert flavour.call(policy, flavour.scripted(TimeoutError(), TimeoutError(), "page")) == "page"
    assert (clock.waits, clock.now) == ([1.0, 2.0], 3.0)


@pytest.mark.parametrize("kind", [FakeClock, Waits])
def test_time_that_passes_elsewhere_meanwhile_is_not_lost(kind):
    clock = kind()

    class Slow:
        """Seconds that take time to be read: as good as a thread that comes between."""

        def __float__(self):
            clock.advance(1.0)
            return 10.0

    before = clock()
    clock.sleep(Slow())
    assert clock() - before == pytest.approx(11.0, abs=0.5)


def test_a_fake_clock_can_be_copied_and_pickled():
    clock = FakeClock(5.0)
    clock.sleep(1.0)
    for other in (copy.deepcopy(clock), pickle.loads(pickle.dumps(clock))):
        assert (other.now, other.waits) == (6.0, [1.0])


# fake_time


def test_fake_time_is_the_clock_and_the_sleep_of_every_policy(flavour):
    policy = Policy(backoff=exponential, deadline=9.0)
    with fake_time() as clock:
        assert flavour.call(policy, flavour.scripted(TimeoutError(), TimeoutError(), "page")) == "page"
    assert (clock.waits, clock.now) == ([1.0, 2.0], 3.0)


def test_fake_time_begins_at_zero_unless_a_clock_is_given():
    own = FakeClock(100.0)
    with fake_time() as clock, fake_time(own) as given:
        assert (clock.now, given) == (0.0, own)
        Policy(backoff=exponential).call(scripted(TimeoutError(), "page"))
    assert (own.now, clock.now) == (101.0, 0.0)


@pytest.mark.parametrize("everywhere", [False, True])
def test_one_clock_may_be_put_in_force_twice(everywhere):
    switch = fake_time(FakeClock(), everywhere=everywhere)
    policy = Policy(backoff=exponential)
    with switch as clock:
        with switch as same:
            assert same is clock
        policy.call(scripted(TimeoutError(), "page"))
    assert clock.waits == [1.0]


def test_fake_time_wins_over_a_policys_own(flavour, clock):
    policy = Policy(backoff=exponential, clock=clock, sleep=clock.sleep)
    with fake_time() as other:
        flavour.call(policy, flavour.scripted(TimeoutError(), "page"))
    assert (other.waits, clock.waits) == ([1.0], [])


def test_guards_go_by_fake_time_too():
    breaker = CircuitBreaker(failures=1, open_for=30.0)
    policy = Policy(breaker=breaker, attempts=1)
    with fake_time() as clock:
        with pytest.raises(TimeoutError):
            policy.call(scripted(TimeoutError()))
        clock.advance(29.0)
        with pytest.raises(CircuitOpen):
            policy.call(scripted("page"))
        clock.advance(1.0)
        assert policy.call(scripted("page")) == "page"


@pytest.mark.parametrize("everywhere", [False, True])
def test_fake_time_reaches_other_threads_only_where_that_is_asked_for(everywhere):
    own = Recorder()
    policy = Policy(backoff=exponential, sleep=own)
    with fake_time(everywhere=everywhere) as clock:
        assert in_a_thread(lambda: policy.call(scripted(TimeoutError(), "page"))) == "page"
    assert (clock.waits, own.waits) == (([1.0], []) if everywhere else ([], [1.0]))


def test_threads_that_come_and_go_leave_the_time_of_the_others_alone():
    inside, out = threading.Event(), threading.Event()
    policy = Policy(backoff=exponential)

    def first():
        with fake_time(everywhere=True) as clock:
            inside.set()
            out.wait(10)
        return clock

    outcome = []
    thread = threading.Thread(target=lambda: outcome.append(first()))
    thread.start()
    inside.wait(10)
    with fake_time(everywhere=True) as clock:
        out.set()
        thread.join(10)
        policy.call(scripted(TimeoutError(), "page"))
    assert (clock.waits, outcome[0].waits) == ([1.0], [])


def test_a_fake_that_is_just_being_taken_away_is_not_asked():
    class Leaving(dict):
        def values(self):
            return []

    leaving = Leaving(one=FakeClock())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_time, "fake_everywhere", leaving)
        assert _time.fake_in_force() is None


# scripted


def test_a_script_gives_its_lines_one_a_call(flavour):
    script = flavour.scripted("one", None, 3)
    assert [flavour.run(script) for _ in range(3)] == ["one", None, 3]


def test_a_script_raises_the_exceptions_and_the_exception_types_of_its_lines(flavour):
    error = KeyError("own")
    script = flavour.scripted(error, TimeoutError, "page")
    with pytest.raises(KeyError) as caught:
        flavour.run(script)
    assert caught.value is error
    with pytest.raises(TimeoutError):
        flavour.run(script)
    assert flavour.run(script) == "page"


def test_a_script_raises_interrupts_too():
    with pytest.raises(KeyboardInterrupt):
        scripted(KeyboardInterrupt)()
    with pytest.raises(SystemExit):
        scripted(SystemExit(3))()


def test_a_type_that_is_no_exception_is_a_result(flavour):
    assert flavour.run(flavour.scripted(int)) is int


def test_a_call_past_the_end_of_a_script_fails_the_test(flavour):
    script = flavour.scripted("page")
    flavour.run(script)
    for call in (2, 3):
        with pytest.raises(ScriptEnded) as caught:
            flavour.run(script)
        assert isinstance(caught.value, AssertionError)
        assert str(caught.value) == f"call {call} of a script of 1"
    with pytest.raises(ScriptEnded, match="call 1 of a script of 0"):
        flavour.run(flavour.scripted())


def test_a_script_that_has_ended_is_not_retried(flavour, clock):
    script = flavour.scripted(TimeoutError())
    with pytest.raises(ScriptEnded):
        flavour.call(Policy(clock=clock, sleep=clock.sleep), script)
    assert len(script.calls) == 2


def test_a_script_keeps_the_arguments_of_each_call(flavour):
    script = flavour.scripted(TimeoutError(), "page")
    with pytest.raises(TimeoutError):
        flavour.run(script, "/", verify=False)
    flavour.run(script)
    assert script.calls == [(("/",), {"verify": False}), ((), {})]


def test_an_async_script_runs_when_it_is_awaited():
    script = scripted("page", asynchronous=True)
    assert isinstance(script, Scripted)

    async def main():
        coroutine = script()
        assert script.calls == []
        return await coroutine

    assert asyncio.run(main()) == "page"
    assert len(script.calls) == 1


def test_a_script_is_retried_by_the_driver_that_suits_it(flavour):
    script = flavour.scripted(TimeoutError(), "page")
    assert type(script) is (AsyncScripted if flavour.is_async else Scripted)
    assert inspect.iscoroutinefunction(retry(script)) is flavour.is_async


def test_a_script_asks_nothing_of_its_exceptions(flavour):
    class Closed(Exception):
        def __getattribute__(self, name):
            raise RuntimeError(name)

    script = flavour.scripted(Closed())
    with pytest.raises(Exception) as caught:
        # By hand: an event loop would ask it, and hang.
        script().send(None) if flavour.is_async else script()
    assert type(caught.value) is Closed


def test_then_is_what_every_call_past_the_end_comes_to(flavour):
    script = script_of(flavour, "one", then=None)
    assert [flavour.run(script) for _ in range(4)] == ["one", None, None, None]
    script = script_of(flavour, then=TimeoutError)
    for _ in range(3):
        with pytest.raises(TimeoutError):
            flavour.run(script)
    assert len(script.calls) == 3


@pytest.mark.slow
def test_threads_that_share_a_script_get_each_line_once():
    def check(script, results):
        assert sorted(results) == ["one", "two"]
        assert len(script.calls) == 2

    explore(lambda: scripted("one", "two"), [Scripted.__call__] * 2, check, modules=[_script], preemptions=2)


# after


def test_an_attempt_that_takes_time_advances_the_fake_clock(flavour):
    script = flavour.scripted(after(0.5, TimeoutError()), after(timedelta(seconds=2), "page"))
    with fake_time() as clock:
        assert flavour.call(Policy(backoff=fixed), script) == "page"
    assert (clock.now, clock.waits) == (3.5, [1.0])


def test_an_attempt_that_takes_time_moves_the_clock_of_skipped_waits(flavour):
    policy = Policy(attempts=9, deadline=5.0, backoff=fixed)
    script = script_of(flavour, then=after(1.0, TimeoutError()))
    with no_waits() as waits, pytest.raises(DeadlineExceeded) as caught:
        flavour.call(policy, script)
    assert (len(script.calls), waits) == (2, [1.0]) or (len(script.calls), waits) == (3, [1.0, 1.0])
    assert caught.value.elapsed >= 3.0


def test_time_without_an_outcome_gives_nothing(flavour):
    with fake_time() as clock:
        assert flavour.run(flavour.scripted(after(1.0))) is None
        assert flavour.run(flavour.scripted(after(1.0, after(2.0, "page")))) == "page"
    assert clock.now == 4.0


def test_in_sync_code_under_real_time_it_is_a_sleep(monkeypatch):
    slept = []
    monkeypatch.setattr(time, "sleep", slept.append)
    assert scripted(after(0.5, "page"))() == "page"
    assert slept == [0.5]


def test_in_async_code_under_real_time_the_event_loop_waits():
    async def main():
        task = asyncio.create_task(scripted(after(0.005, "page"), asynchronous=True)())
        await asyncio.sleep(0)
        assert not task.done()
        return await task

    assert asyncio.run(main()) == "page"


def test_in_async_code_under_real_time_a_timeout_cuts_it_off():
    script = scripted(after(5.0, "late"), "page", asynchronous=True)
    policy = Policy(timeout=0.01, sleep=lambda seconds: None)
    assert asyncio.run(policy(script)()) == "page"


def test_in_async_code_under_fake_time_a_timeout_cuts_it_off():
    script = scripted(after(5.0, "late"), after(1.9, "page"), asynchronous=True)
    with fake_time() as clock, recorded() as story:
        assert asyncio.run(retry(timeout=2.0, backoff=fixed)(script)()) == "page"
    assert clock.now == 2.0 + 1.0 + 1.9
    assert story.events[0].error_message == "attempt 1 took longer than its timeout of 2 s"


def test_in_async_code_under_fake_time_the_deadline_cuts_it_off():
    script = scripted(after(1.0, TimeoutError()), after(9.0, "late"), asynchronous=True)
    with fake_time() as clock, pytest.raises(DeadlineExceeded) as caught:
        asyncio.run(retry(deadline=5.0, backoff=fixed)(script)())
    assert (clock.now, caught.value.attempts, caught.value.elapsed) == (5.0, 2, 5.0)
    assert "the deadline of 5 s came during the attempt" in str(caught.value)


def test_in_a_scope_that_is_no_attempt_nothing_is_cut_off():
    async def main():
        async with retrying(deadline=1.0):
            return await scripted(after(9.0, "late"), asynchronous=True)()

    with fake_time() as clock:
        assert asyncio.run(main()) == "late"
    assert clock.now == 9.0


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), True])
def test_an_attempt_takes_a_finite_time(seconds):
    with pytest.raises(ValueError, match="seconds must be "):
        after(seconds, "page")


# response


def test_a_response_has_the_shape_that_classify_looks_for():
    found = verdict(response(429, {"Retry-After": "7"}))
    assert (found.retryable, found.cause, found.status, found.retry_after) == (
        True,
        Cause.rate_limited,
        429,
        7.0,
    )
    assert [accepted(response(status)) for status in (200, 404, 503)] == [True, True, False]


def test_the_error_of_a_response_is_judged_by_its_status_and_method():
    assert is_retryable(response(503).error())
    assert not is_retryable(response(404).error())
    policy = Policy()
    with recorded() as story, pytest.raises(HTTPError):
        policy.call(scripted(response(500, method="POST").error()))
    assert_gave_up(story, "not_idempotent")


def test_the_wait_that_a_response_asks_for_is_waited(flavour):
    script = flavour.scripted(response(503, {"Retry-After": "20"}).error(), "page")
    with fake_time() as clock:
        assert flavour.call(Policy(base=0.0), script) == "page"
    assert clock.waits == [20.0]


def test_a_response_that_is_returned_is_retried_by_until(flavour):
    script = flavour.scripted(response(503, {"Retry-After": "2"}), response(200, body=b"page"))
    with fake_time() as clock:
        assert flavour.call(Policy(until=accepted, base=0.0), script).body == b"page"
    assert clock.waits == [2.0]


def test_each_error_of_a_response_is_a_new_one_that_tells_what_was_asked():
    answer = response(502, {"Via": "proxy"}, b"bad", method="PUT", url="https://api.example/x")
    error = answer.error()
    assert error is not answer.error()
    assert (error.response, error.request) == (answer, answer.request)
    assert str(error) == "502 for PUT https://api.example/x"
    copied = pickle.loads(pickle.dumps(error))
    assert (copied.response, str(copied)) == (answer, str(error))


def test_raise_for_status_raises_for_errors_alone():
    for status in (200, 304, 399):
        assert response(status).raise_for_status() is None
    for status in (400, 503):
        with pytest.raises(HTTPError, match=f"^{status} for GET "):
            response(status).raise_for_status()


def test_a_response_keeps_its_headers_whatever_becomes_of_those_it_was_given():
    given = {"Retry-After": "2"}
    answer = response(503, given)
    given.clear()
    assert answer.headers == {"Retry-After": "2"}


@pytest.mark.parametrize("status", [99, 600, True, 2.5])
def test_a_status_is_a_whole_number_of_three_digits(status):
    with pytest.raises(ValueError, match=r"^status must be "):
        response(status)


# no_waits


def test_waits_are_skipped_and_written_down(flavour):
    policy = Policy(backoff=exponential)
    with no_waits() as waits:
        assert waits == []
        assert flavour.call(policy, flavour.scripted(TimeoutError(), TimeoutError(), "page")) == "page"
    assert waits == [1.0, 2.0]


def test_waits_of_blocks_are_skipped_too(flavour):
    failures = iter([TimeoutError(), None])

    def body(attempt):
        if error := next(failures):
            raise error
        return "page"

    with no_waits() as waits:
        assert flavour.block(Policy(backoff=exponential), body) == "page"
    assert waits == [1.0]


def test_waits_of_what_was_decorated_before_are_skipped():
    script = scripted(TimeoutError(), "page")
    decorated = retry(backoff=exponential)(script)
    with no_waits() as waits:
        assert decorated() == "page"
    assert waits == [1.0]


def test_a_policys_own_sleep_and_clock_are_stood_in_for(flavour, clock):
    policy = Policy(backoff=exponential, clock=clock, sleep=clock.sleep)
    with no_waits() as waits:
        flavour.call(policy, flavour.scripted(TimeoutError(), "page"))
    assert (waits, clock.waits) == ([1.0], [])


def test_after_the_block_waits_are_real_again(flavour, clock):
    policy = Policy(backoff=exponential, clock=clock, sleep=clock.sleep)
    with no_waits() as waits:
        pass
    flavour.call(policy, flavour.scripted(TimeoutError(), "page"))
    assert (waits, clock.waits) == ([], [1.0])
    assert _time.sleep_of(None) is None
    assert _time.clock_of(None) is time.monotonic


def test_without_a_sleep_of_its_own_a_policy_sleeps_as_time_does(monkeypatch):
    slept = []
    monkeypatch.setattr(time, "sleep", slept.append)
    assert Policy(backoff=exponential).call(scripted(TimeoutError(), "page")) == "page"
    assert slept == [1.0]


def test_a_failure_in_the_block_passes_through_and_waits_are_real_again():
    with pytest.raises(KeyError), no_waits():
        raise KeyError
    assert _time.sleep_of(None) is None


def test_a_deadline_sees_the_time_that_was_skipped(flavour):
    policy = Policy(attempts=None, deadline=5.0, backoff=fixed, on=KeyError)
    script = flavour.scripted(*[KeyError("no")] * 20)
    with no_waits() as waits, pytest.raises(DeadlineExceeded) as caught:
        flavour.call(policy, script)
    assert waits == [1.0] * 4  # the fifth would end at the deadline, or after it by what the calls took
    assert caught.value.attempts == 5
    assert 4.0 <= caught.value.elapsed < 5.0


def test_the_waits_of_another_context_are_its_own():
    own = Recorder()
    policy = Policy(backoff=exponential, sleep=own)
    with no_waits() as waits:
        assert in_a_thread(lambda: policy.call(scripted(TimeoutError(), "page"))) == "page"
    assert (waits, own.waits) == ([], [1.0])


def test_everywhere_means_the_waits_of_other_threads_too():
    own = Recorder()
    policy = Policy(backoff=exponential, sleep=own)
    with no_waits(everywhere=True) as waits:
        assert in_a_thread(lambda: policy.call(scripted(TimeoutError(), "page"))) == "page"
        assert policy.call(scripted(TimeoutError(), "page")) == "page"
    assert (waits, own.waits) == ([1.0, 1.0], [])
    assert policy.call(scripted(TimeoutError(), "page")) == "page"
    assert own.waits == [1.0]


def test_tasks_started_in_the_block_belong_to_it():
    async def main():
        with no_waits() as waits:
            policy = Policy(backoff=exponential)
            calls = [policy(scripted(TimeoutError(), n, asynchronous=True))() for n in range(3)]
            assert await asyncio.gather(*calls) == [0, 1, 2]
        return waits

    assert asyncio.run(main()) == [1.0] * 3


def test_blocks_of_one_task_do_not_reach_another():
    own = Recorder()
    policy = Policy(backoff=exponential, sleep=own)

    async def skipping(entered, leave):
        with no_waits() as waits:
            entered.set()
            await leave.wait()
        return waits

    async def main():
        entered, leave = asyncio.Event(), asyncio.Event()
        task = asyncio.create_task(skipping(entered, leave))
        await entered.wait()
        assert await policy(scripted(TimeoutError(), "page", asynchronous=True))() == "page"
        leave.set()
        return await task

    assert asyncio.run(main()) == []
    assert own.waits == [1.0]


@pytest.mark.parametrize("outer", [False, True])
@pytest.mark.parametrize("inner", [False, True])
def test_nested_blocks_write_down_what_is_theirs(outer, inner):
    policy = Policy(backoff=exponential)

    def one_wait():
        assert policy.call(scripted(TimeoutError(), "page")) == "page"

    with no_waits(everywhere=outer) as outside:
        one_wait()
        with no_waits(everywhere=inner) as inside:
            one_wait()
        one_wait()
    # A block of this context stands in for one of the whole process, also when it was there first.
    nearer_is_inside = inner is False or outer is True
    assert (len(outside), len(inside)) == ((2, 1) if nearer_is_inside else (3, 0))


# retries_disabled


def test_with_retries_disabled_the_first_failure_passes_through_as_it_is(flavour, clock):
    error = TimeoutError("slow")
    script = flavour.scripted(error, "page")
    with retries_disabled(), pytest.raises(TimeoutError) as caught:
        flavour.call(Policy(clock=clock, sleep=clock.sleep), script)
    assert caught.value is error
    assert not hasattr(error, "__notes__")
    assert (len(script.calls), clock.waits) == (1, [])


def test_with_retries_disabled_a_refused_result_passes_as_it_is(flavour, clock):
    policy = Policy(until=bool, clock=clock, sleep=clock.sleep)
    script = flavour.scripted("", "page")
    with retries_disabled():
        assert flavour.call(policy, script) == ""
    assert len(script.calls) == 1
    with pytest.raises(ResultRejected):
        flavour.call(policy.replace(attempts=1), flavour.scripted(""))


def test_with_retries_disabled_listeners_hear_why(flavour):
    heard = []
    with retries_disabled(), pytest.raises(TimeoutError):
        flavour.call(Policy(listeners=[heard.append]), flavour.scripted(TimeoutError()))
    assert [(type(event), event.reason) for event in heard] == [(GaveUp, Reason.disabled)]


def test_with_retries_disabled_a_block_runs_once(flavour):
    runs = []

    def body(attempt):
        runs.append(attempt.number)
        raise TimeoutError("slow")

    with retries_disabled(), pytest.raises(TimeoutError):
        flavour.block(Policy(), body)
    assert runs == [1]


def test_with_retries_disabled_a_block_that_asks_to_run_again_runs_once():
    runs = []
    with retries_disabled():
        for attempt in retrying():
            with attempt:
                runs.append(attempt.number)
                attempt.again("not yet")
    assert runs == [1]


def test_after_the_block_failures_are_retried_again(flavour, clock):
    policy = Policy(clock=clock, sleep=clock.sleep)
    with pytest.raises(KeyError), retries_disabled():
        raise KeyError
    assert flavour.call(policy, flavour.scripted(TimeoutError(), "page")) == "page"


@pytest.mark.parametrize("everywhere", [False, True])
def test_nested_blocks_stay_off_until_the_outer_one_ends(everywhere, clock):
    policy = Policy(clock=clock, sleep=clock.sleep)
    with retries_disabled(everywhere=everywhere):
        with retries_disabled(everywhere=everywhere):
            pass
        with pytest.raises(TimeoutError):
            policy.call(scripted(TimeoutError(), "page"))
    assert policy.call(scripted(TimeoutError(), "page")) == "page"


@pytest.mark.parametrize("everywhere", [False, True])
def test_retries_disabled_reach_other_threads_only_where_that_is_asked_for(everywhere):
    own = Recorder()
    policy = Policy(sleep=own)
    with retries_disabled(everywhere=everywhere):
        outcome = in_a_thread(lambda: policy.call(scripted(TimeoutError("slow"), "page")))
        with pytest.raises(TimeoutError):
            policy.call(scripted(TimeoutError("slow"), "page"))
    assert isinstance(outcome, TimeoutError) if everywhere else outcome == "page"
    assert len(own.waits) == (0 if everywhere else 1)
    assert in_a_thread(lambda: policy.call(scripted(TimeoutError(), "page"))) == "page"


@pytest.mark.parametrize("everywhere", [False, True])
def test_one_switch_may_be_entered_within_itself(everywhere):
    off, quick = retries_disabled(everywhere=everywhere), no_waits(everywhere=everywhere)
    with off, off:
        pass
    with quick as outer:
        with quick as inner:
            retry(scripted(TimeoutError(), "page"))()
        retry(scripted(TimeoutError(), "page"))()
    assert (len(outer), len(inner)) == (1, 1)
    assert Policy(attempts=2, sleep=lambda seconds: None).call(scripted(TimeoutError(), "page")) == "page"


# capped


def test_a_hedged_call_is_capped_too():
    calls = []

    @hedging.hedge(after=0.0, attempts=3)
    def fetch():
        calls.append(1)
        raise TimeoutError("slow")

    with capped(1), pytest.raises(TimeoutError):
        fetch()
    assert len(calls) == 1


def test_no_call_makes_more_attempts_than_its_test_allows(flavour):
    script = script_of(flavour, then=TimeoutError("slow"))
    with no_waits() as waits, capped(2), pytest.raises(TimeoutError) as caught:
        flavour.call(Policy(attempts=None, deadline=60.0), script)
    assert (len(script.calls), len(waits)) == (2, 1)
    assert "capped at 2 attempts by testing.capped" in caught.value.__notes__[0]


def test_a_cap_of_one_is_told_as_the_reason_attempts(flavour):
    with capped(1), recorded() as story, pytest.raises(TimeoutError) as caught:
        flavour.call(Policy(), flavour.scripted(TimeoutError()))
    assert [(type(event), event.reason) for event in story.events] == [(GaveUp, Reason.attempts)]
    assert caught.value.__notes__[0].splitlines()[0].endswith("capped at 1 attempt by testing.capped")


def test_a_policy_that_allows_less_than_the_cap_is_the_one_that_ends_it(flavour):
    script = script_of(flavour, then=TimeoutError())
    with no_waits(), capped(3), pytest.raises(TimeoutError) as caught:
        flavour.call(Policy(attempts=2), script)
    assert len(script.calls) == 2
    assert "no attempts left" in caught.value.__notes__[0]


def test_a_cap_holds_for_rules_and_refused_results_too(flavour):
    policy = Policy(rules={KeyError: Rule(attempts=9)}, attempts=9, until=bool)
    script = script_of(flavour, KeyError("id"), then=None)
    with (
        no_waits(),
        capped(2),
        pytest.raises(ResultRejected, match=r"capped at 2 attempts by testing\.capped"),
    ):
        flavour.call(policy, script)
    assert len(script.calls) == 2


def test_a_failure_that_is_not_retryable_stays_so_under_a_cap(flavour):
    with capped(1), recorded() as story, pytest.raises(KeyError):
        flavour.call(Policy(), flavour.scripted(KeyError("id")))
    assert_gave_up(story, Reason.not_retryable)


def test_the_last_attempt_under_a_cap_knows_that_it_is(flavour):
    seen = []

    def body(attempt):
        seen.append((attempt.is_last, current_attempt() is None or current_attempt().is_last))
        raise TimeoutError

    with no_waits(), capped(2), pytest.raises(TimeoutError):
        flavour.block(Policy(attempts=None, deadline=60.0), body)
    assert seen == [(False, False), (True, True)]
    seen.clear()
    with no_waits(), capped(9), pytest.raises(TimeoutError):
        flavour.block(Policy(attempts=2), body)
    assert [last for last, _ in seen] == [False, True]


@pytest.mark.parametrize("outer", [False, True])
@pytest.mark.parametrize("inner", [False, True])
@pytest.mark.parametrize("limits", [(2, 3), (3, 2)])
def test_of_several_caps_the_lowest_holds(outer, inner, limits):
    script = scripted(then=TimeoutError())
    with no_waits(), capped(limits[0], everywhere=outer):
        with capped(limits[1], everywhere=inner), pytest.raises(TimeoutError):
            retry(script)()
        assert len(script.calls) == 2
        with pytest.raises(TimeoutError):
            retry(script)()
    assert len(script.calls) == 2 + limits[0]


@pytest.mark.parametrize("everywhere", [False, True])
def test_caps_reach_other_threads_only_where_that_is_asked_for(everywhere):
    script = scripted(then=TimeoutError())
    policy = Policy(attempts=4, sleep=lambda seconds: None)
    with capped(2, everywhere=everywhere):
        assert isinstance(in_a_thread(lambda: policy.call(script)), TimeoutError)
    assert len(script.calls) == (2 if everywhere else 4)


@pytest.mark.parametrize("attempts", [0, -1, True, 1.5])
def test_a_cap_is_a_whole_number_of_attempts(attempts):
    with pytest.raises(ValueError, match="attempts must be "):
        capped(attempts)


# recorded


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
    assert lines[2] == "stock, attempt 2: TimeoutError: slow; given up on (attempts)"
    assert lines[3].startswith("stock: CircuitOpen: ")
    assert lines[3].endswith("; not let through (circuit)")
    assert lines[4:7] == [
        "price, attempt 1: TimeoutError; given up on (deadline)",
        "poll, attempt 1: the result was refused; retried after 1.00 s",
        "poll, attempt 2: succeeded",
    ]
    assert lines[7] == "Scripted: given up on (deadline)"
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
            slow.wait(10)
        return "page"

    with recorded() as story:
        assert fetch() == "page"
        slow.set()
    assert [type(event).__name__ for event in story.events] == ["Hedged"]


# Assertions


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
    for times, told in ((0, "0 retries"), (1, "1 retry"), (3, "3 retries")):
        expected = f"expected {told}, there were 2:{WHAT_HAPPENED}"
        assert failure_of(assert_retried, story, times) == expected


def test_what_was_not_retried_tells_that_nothing_failed():
    with recorded() as story:
        retry(scripted("page"))()
    assert_not_retried(story)
    why = "no call failed here (calls in other threads are heard with recorded(everywhere=True))"
    assert failure_of(assert_retried, story) == f"expected at least 1 retry, there were none:\n  {why}"


def test_a_retry_that_was_not_wanted_is_told(story):
    assert failure_of(assert_not_retried, story) == f"expected no retry, there were 2:{WHAT_HAPPENED}"
    one = Recording(story.events[:1])
    assert failure_of(assert_not_retried, one).startswith(
        "expected no retry, there was 1:\n  fetch, attempt 1"
    )


def test_a_call_that_recovered_was_not_given_up_on(story):
    assert failure_of(assert_gave_up, story) == f"expected a call to be given up on, none was:{WHAT_HAPPENED}"


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
    assert failure_of(assert_gave_up, told, reason="patience").startswith(
        "expected a call to be given up on (patience), none was:\n  Scripted"
    )


def test_a_reason_that_does_not_exist_is_no_failed_assertion(story):
    with pytest.raises(ValueError, match=r"reason must be one of disabled, .*, callback, got 'atempts'"):
        assert_gave_up(story, reason="atempts")
    with pytest.raises(ValueError, match="times must be at least 0, got -1"):
        assert_retried(story, times=-1)


# Switches as decorators


SWITCHES = {
    "no_waits": no_waits,
    "fake_time": fake_time,
    "retries_disabled": retries_disabled,
    "capped": lambda **given: capped(2, **given),
    "recorded": recorded,
}
every_switch = pytest.mark.parametrize("switch", SWITCHES.values(), ids=SWITCHES)


def what_is_on():
    return (
        _time.fake_in_force() is not None,
        context.disabled_here(),
        context.capped_at(),
        len(events._subscribers),
    )


OFF = (False, False, None, 0)


@every_switch
@pytest.mark.parametrize("everywhere", [False, True])
def test_a_decorated_function_runs_with_the_switch_on(flavour, switch, everywhere):
    @switch(everywhere=everywhere)
    @flavour.function
    def body(one, *, two):
        """What it does."""
        return one, two, what_is_on()

    for _ in range(2):
        one, two, on = flavour.run(body, 1, two=2)
        assert (one, two) == (1, 2)
        assert on != OFF
        assert what_is_on() == OFF
    assert inspect.iscoroutinefunction(body) is flavour.is_async


@every_switch
def test_a_decorated_function_keeps_its_name_and_its_parameters(switch):
    @switch()
    def test_something(tmp_path, capsys):
        """What it does."""

    assert (test_something.__name__, test_something.__doc__) == ("test_something", "What it does.")
    assert list(inspect.signature(test_something).parameters) == ["tmp_path", "capsys"]


def test_a_decorated_async_function_is_on_for_as_long_as_it_runs():
    @capped(2)
    async def body(steps):
        await asyncio.sleep(0)
        steps.append(context.capped_at())

    async def main():
        steps = []
        one, other = asyncio.create_task(body(steps)), asyncio.create_task(body(steps))
        await asyncio.sleep(0)
        steps.append(context.capped_at())
        await asyncio.gather(one, other)
        return [*steps, context.capped_at()]

    assert asyncio.run(main()) == [None, 2, 2, None]


def test_a_plain_function_that_gives_a_coroutine_is_on_until_that_is_done():
    async def body():
        await asyncio.sleep(0)
        return context.capped_at()

    decorated = capped(3)(lambda: body())
    assert asyncio.run(decorated()) == 3


def test_a_failure_of_a_decorated_function_switches_off(flavour):
    decorated = retries_disabled(everywhere=True)(flavour.scripted(KeyError("id")))
    with pytest.raises(KeyError):
        flavour.run(decorated)
    assert what_is_on() == OFF


def test_a_decorated_method_gets_its_object():
    class Tests:
        @no_waits()
        def test_something(self):
            return self, what_is_on()

    tests = Tests()
    assert tests.test_something() == (tests, (True, False, None, 0))


def test_what_cannot_be_run_from_outside_is_not_decorated():
    def fixture():
        yield

    async def async_fixture():
        yield

    class Tests:
        pass

    for what, kind in ((fixture, "generator"), (async_fixture, "async generator"), (Tests, "class")):
        with pytest.raises(TypeError) as caught:
            no_waits()(what)
        told = f"no_waits cannot decorate the {kind} {what.__qualname__}: use 'with no_waits(...):' inside"
        assert str(caught.value) == told


# Switches that are shared, or left elsewhere


def test_tasks_may_share_one_switch_and_leave_it_in_any_order():
    switch = capped(2)

    async def body(inside, out):
        with switch:
            inside.set()
            await out.wait()
            on = context.capped_at()
        return on, context.capped_at()

    async def main():
        gates = [(asyncio.Event(), asyncio.Event()) for _ in range(2)]
        tasks = [asyncio.create_task(body(*gate)) for gate in gates]
        told = []
        for inside, _ in gates:
            await inside.wait()
        for task, (_, out) in zip(tasks, gates, strict=True):  # first in, first out
            out.set()
            told.append(await task)
        return told

    assert asyncio.run(main()) == [(2, None), (2, None)]


def test_threads_may_share_one_switch_and_leave_it_in_any_order():
    switch = no_waits(everywhere=True)
    policy = Policy(backoff=exponential)
    inside, out = threading.Event(), threading.Event()
    told = []

    def first():
        with switch as waits:
            inside.set()
            out.wait(10)
        told.append(waits)

    thread = threading.Thread(target=first)
    thread.start()
    inside.wait(10)
    with switch as waits:
        out.set()
        thread.join(10)
        policy.call(scripted(TimeoutError(), "page"))
    assert (waits, told) == ([1.0], [[]])


@pytest.mark.slow
def test_threads_may_share_one_switch_in_every_order():
    def use(switch):
        with switch:
            return context.capped_at()

    def check(switch, results):
        assert (results, what_is_on(), switch._entries) == ([2, 2], OFF, [])

    explore(lambda: capped(2, everywhere=True), [use, use], check, modules=[_switches], preemptions=1)


@every_switch
@pytest.mark.parametrize("everywhere", [False, True])
def test_a_switch_may_be_left_in_another_context_or_thread_than_it_was_entered_in(switch, everywhere):
    # As fixtures are: set up in one context, taken down in another.
    on = switch(everywhere=everywhere)
    contextvars.copy_context().run(on.__enter__)
    assert in_a_thread(lambda: on.__exit__(None, None, None)) is None
    assert what_is_on() == OFF


# The plugin


def test_the_clock_of_the_plugin_is_that_of_the_whole_process(redouble_clock, flavour):
    policy = Policy(backoff=exponential)
    assert isinstance(redouble_clock, FakeClock)
    flavour.call(policy, flavour.scripted(TimeoutError(), "page"))
    in_a_thread(lambda: policy.call(scripted(TimeoutError(), "page")))
    assert (redouble_clock.waits, redouble_clock.now) == ([1.0, 1.0], 2.0)


def test_the_waits_of_the_plugin_are_those_of_the_whole_process(request, flavour):
    waits = request.getfixturevalue("no_waits")
    policy = Policy(backoff=exponential)
    flavour.call(policy, flavour.scripted(TimeoutError(), "page"))
    in_a_thread(lambda: policy.call(scripted(TimeoutError(), "page")))
    assert waits == [1.0, 1.0]


TESTS = """
import time
import pytest
from redouble import retry
from redouble.testing import scripted

def test_the_clock(redouble_clock):
    before = time.monotonic()
    assert retry(scripted(TimeoutError(), TimeoutError(), "page"))() == "page"
    assert len(redouble_clock.waits) == 2
    assert time.monotonic() - before < 0.5

def test_the_waits(no_waits):
    assert retry(scripted(TimeoutError(), "page"))() == "page"
    assert len(no_waits) == 1

def test_neither(monkeypatch):
    slept = []
    monkeypatch.setattr(time, "sleep", slept.append)
    assert retry(scripted(TimeoutError(), "page"))() == "page"
    assert len(slept) == 1
"""


@pytest.mark.slow
@pytest.mark.parametrize("asked_for", [True, False])
def test_the_plugin_is_there_where_it_is_asked_for_and_nowhere_else(asked_for, tmp_path, monkeypatch):
    monkeypatch.undo()  # waiting for a process is a sleep
    plugins = ["redouble.testing.plugin"] if asked_for else []
    (tmp_path / "conftest.py").write_text(f"pytest_plugins = {plugins!r}\n")
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": str(Path(testing.__file__).parents[2]),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ("3 passed" if asked_for else "1 passed, 2 errors") in done.stdout, done.stdout + done.stderr


# The package


@pytest.mark.slow
def test_the_kit_itself_needs_no_test_framework(monkeypatch):
    monkeypatch.undo()
    code = (
        "import sys, redouble.testing; print({'pytest', 'typing', 'asyncio', 'unittest'} & set(sys.modules))"
    )
    path = str(Path(testing.__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {path!r}); {code}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.strip() == "set()"


def test_every_name_that_is_exported_is_there():
    assert testing.__all__ == sorted(testing.__all__)
    assert all(hasattr(testing, name) for name in testing.__all__)


@pytest.mark.parametrize("kind", [staticmethod, classmethod])
def test_a_switch_stands_below_what_makes_a_method_special(kind):
    with pytest.raises(TypeError, match=f"no_waits must stand below @{kind.__name__}"):
        no_waits()(kind(print))


def test_a_task_that_outlives_its_block_goes_by_real_time_and_retries_again():
    async def main():
        go, calls = asyncio.Event(), []

        @retry(attempts=2, base=0.0)
        async def fetch():
            calls.append(1)
            raise TimeoutError("slow")

        async def later():
            await go.wait()
            with pytest.raises(TimeoutError):
                await fetch()
            return _time.fake_in_force()

        with retries_disabled(), capped(1), fake_time():
            task = asyncio.ensure_future(later())
            await asyncio.sleep(0)
        with no_waits(everywhere=True) as waits:
            go.set()
            assert await task is waits
        return len(calls)

    assert asyncio.run(main()) == 2
