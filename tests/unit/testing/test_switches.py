"""`fake_time`, `no_waits`, `retries_disabled` and `capped`."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from redouble import (
    CircuitOpen,
    DeadlineExceeded,
    Policy,
    ResultRejected,
    Rule,
    current_attempt,
    hedging,
    retry,
    retrying,
)
from redouble._base import clock as _time
from redouble.backoff import exponential, fixed
from redouble.breaker import CircuitBreaker
from redouble.events import GaveUp, Reason
from redouble.testing import (
    FakeClock,
    assert_gave_up,
    capped,
    fake_time,
    no_waits,
    recorded,
    retries_disabled,
    scripted,
)
from support.threads import in_a_thread


class Recorder:
    """A sleep of the policy's own."""

    def __init__(self):
        self.waits = []

    def __call__(self, seconds):
        self.waits.append(seconds)


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
            out.wait(60)
        return clock

    outcome = []
    thread = threading.Thread(target=lambda: outcome.append(first()))
    thread.start()
    inside.wait(60)
    with fake_time(everywhere=True) as clock:
        out.set()
        thread.join(60)
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
    script = scripted(then=TimeoutError("slow"), asynchronous=flavour.is_async)
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
    script = scripted(then=TimeoutError(), asynchronous=flavour.is_async)
    with no_waits(), capped(3), pytest.raises(TimeoutError) as caught:
        flavour.call(Policy(attempts=2), script)
    assert len(script.calls) == 2
    assert "no attempts left" in caught.value.__notes__[0]


def test_a_cap_holds_for_rules_and_refused_results_too(flavour):
    policy = Policy(rules={KeyError: Rule(attempts=9)}, attempts=9, until=bool)
    script = scripted(KeyError("id"), then=None, asynchronous=flavour.is_async)
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
