"""`scripted`, `after` and `response`."""

from __future__ import annotations

import asyncio
import inspect
import pickle
import time
from datetime import timedelta

import pytest

from redouble import (
    Cause,
    DeadlineExceeded,
    Policy,
    retry,
    retrying,
)
from redouble.backoff import fixed
from redouble.classify import accepted, is_retryable, verdict
from redouble.testing import (
    ScriptEnded,
    after,
    assert_gave_up,
    fake_time,
    no_waits,
    recorded,
    response,
    scripted,
)
from redouble.testing import _scripted as _script
from redouble.testing._scripted import AsyncScripted, HTTPError, Scripted
from support.interleaving import explore


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
        assert str(caught.value) == f"call {call} of a script of 1: add outcomes, or then="
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
    script = scripted("one", then=None, asynchronous=flavour.is_async)
    assert [flavour.run(script) for _ in range(4)] == ["one", None, None, None]
    script = scripted(then=TimeoutError, asynchronous=flavour.is_async)
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


def test_an_attempt_that_takes_time_advances_the_fake_clock(flavour):
    script = flavour.scripted(after(0.5, TimeoutError()), after(timedelta(seconds=2), "page"))
    with fake_time() as clock:
        assert flavour.call(Policy(backoff=fixed), script) == "page"
    assert (clock.now, clock.waits) == (3.5, [1.0])


def test_an_attempt_that_takes_time_moves_the_clock_of_skipped_waits(flavour):
    policy = Policy(attempts=9, deadline=5.0, backoff=fixed)
    script = scripted(then=after(1.0, TimeoutError()), asynchronous=flavour.is_async)
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
