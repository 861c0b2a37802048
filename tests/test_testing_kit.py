"""The kit for users' tests: fake time, scripted functions, waits skipped, retries switched off."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time

import pytest

from redouble import DeadlineExceeded, Policy, ResultRejected, _time, retry, retrying
from redouble.backoff import exponential, fixed
from redouble.events import GaveUp, Reason
from redouble.testing import FakeClock, Scripted, ScriptEnded, no_waits, retries_disabled, scripted


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
    assert _time.fakes == []
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
    assert _time.fakes == []
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
    assert _time.fake_everywhere == []
    assert _time.fake_here.get() is None


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
