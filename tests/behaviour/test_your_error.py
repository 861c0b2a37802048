"""The user's error is raised, whatever the sleep, the clock, a predicate or a listener does."""

from __future__ import annotations

import asyncio
import gc
import inspect
import logging
import math
import signal
import threading
import time
from random import Random

import pytest

from conftest import StillRunning, watchdog
from redouble import DeadlineExceeded, Policy, ResultRejected, Rule, hedging, history, retry, retrying
from redouble._base.clock import DAY, real_sleep
from redouble._base.text import brief
from redouble._engine.call import Call
from redouble.backoff import fixed
from redouble.breaker import CircuitBreaker
from redouble.budget import TokenBudget
from redouble.bulkhead import Bulkhead
from redouble.context import outgoing_headers
from redouble.dead_letters import DeadLetters
from redouble.dead_letters._replay import Renewal
from redouble.events import GaveUp, Reason, correlate
from redouble.testing import scripted
from redouble.throttle import AdaptiveThrottle


def note(error):
    [text] = [line for line in error.__notes__ if line.startswith("redouble: ")]
    return text


# Huge waits


@pytest.mark.parametrize(
    "fields", [{"on": lambda error: 1e12}, {"cap": math.inf, "base": 1e300, "backoff": fixed}]
)
def test_a_wait_longer_than_the_platform_can_sleep_is_waited_and_interrupts_end_it(flavour, fields):
    policy, began = Policy(**fields), time.monotonic()
    fetch = flavour.scripted(TimeoutError("slow"), "page")
    if flavour.is_async:

        async def main():
            await asyncio.wait_for(policy(fetch)(), 0.02)

        with pytest.raises(TimeoutError) as caught:
            asyncio.run(main())
        assert str(caught.value) == ""
    else:
        before = signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(StillRunning))
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        try:
            with pytest.raises(StillRunning):
                policy(fetch)()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
    assert len(fetch.calls) == 1
    assert time.monotonic() - began < 10


def test_a_long_sleep_is_made_in_pieces_of_a_day(monkeypatch):
    slept = []
    monkeypatch.setattr(time, "sleep", slept.append)
    real_sleep(2.5 * DAY)
    assert slept == [DAY, DAY, 0.5 * DAY]


def test_a_hedge_with_a_grace_beyond_all_timers_gives_its_result():
    with watchdog():
        assert hedging.hedge(after=60.0, grace=1e12)(lambda: "page")() == "page"


def test_a_lease_beyond_all_timers_is_kept_without_trouble(monkeypatch):
    failed = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    renewal = Renewal(object(), 1e12, time.time)
    renewal.hold("letter", "owner", time.time() + 1e12)
    renewal.stop()
    assert failed == []


# A sleep that raises


def broken_sleep(seconds):
    raise ValueError("no such wait")


async def broken_async_sleep(seconds):
    raise ValueError("no such wait")


@pytest.fixture
def sleep(flavour):
    return broken_async_sleep if flavour.is_async else broken_sleep


def test_a_sleep_that_raises_does_not_replace_the_error_and_is_noted(flavour, clock, sleep):
    heard = []
    policy = Policy(sleep=sleep, clock=clock, listeners=[heard.append], name="fetch")
    error = TimeoutError("slow")
    with pytest.raises(TimeoutError) as caught:
        flavour.call(policy, flavour.scripted(error, "page"))
    assert caught.value is error
    assert ": sleep raised ValueError: no such wait\n" in note(error)
    assert error.__context__ is None
    assert [(type(event), event.reason) for event in heard][1:] == [(GaveUp, Reason.callback)]
    assert [failure.delay for failure in history(error).failures] == [None]


def test_a_sleep_that_raises_does_not_replace_the_error_of_a_block(flavour, clock, sleep):
    error = TimeoutError("slow")

    def block(attempt):
        raise error

    with pytest.raises(TimeoutError) as caught:
        flavour.block(Policy(sleep=sleep, clock=clock), block)
    assert caught.value is error
    assert "sleep raised ValueError" in note(error)


def test_a_sleep_that_raises_after_a_refused_result_is_noted_on_its_rejection(flavour, clock, sleep):
    policy = Policy(sleep=sleep, clock=clock, until=bool)
    with pytest.raises(ResultRejected) as caught:
        flavour.call(policy, flavour.scripted("", "page"))
    assert "sleep raised ValueError" in note(caught.value)


def test_a_plain_sleep_that_raises_in_an_async_call_does_not_replace_the_error(clock):
    error = TimeoutError("slow")
    fetch = Policy(sleep=broken_sleep, clock=clock)(scripted(error, "page", asynchronous=True))
    with pytest.raises(TimeoutError) as caught:
        asyncio.run(fetch())
    assert caught.value is error
    assert "sleep raised ValueError" in note(error)


def test_an_interrupt_in_a_sleep_passes(flavour, clock):
    def sleep(seconds):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        flavour.call(Policy(sleep=sleep, clock=clock), flavour.scripted(TimeoutError(), "page"))


def held_back(clock):
    throttle = AdaptiveThrottle(clock=clock)
    throttle.throttled()
    return throttle


def test_a_sleep_that_raises_before_there_is_an_error_is_raised_itself(flavour, clock, sleep):
    fetch = flavour.scripted("page")
    with pytest.raises(ValueError, match="no such wait"):
        flavour.call(Policy(sleep=sleep, clock=clock, throttle=held_back(clock)), fetch)
    assert fetch.calls == []


def test_a_sleep_that_raises_while_a_throttle_holds_a_retry_back_does_not_replace_the_error(flavour, clock):
    waits = []

    def sleep(seconds):
        waits.append(seconds)
        if len(waits) > 1:
            raise ValueError("no such wait")

    error = TimeoutError("slow")
    throttle = AdaptiveThrottle(clock=clock)

    def fetch():
        throttle.throttled()
        raise error

    with pytest.raises(TimeoutError) as caught:
        flavour.call(Policy(sleep=sleep, clock=clock, throttle=throttle), flavour.function(fetch))
    assert caught.value is error
    assert "sleep raised ValueError" in note(error)


# A clock that raises, gives nonsense or goes back


def after(readings, then):
    """A clock that gives these readings, and then what ``then`` does."""
    readings = iter(readings)

    def clock():
        for reading in readings:
            return reading
        return then()

    return clock


def raises():
    raise ValueError("no clock")


NONSENSE = {
    "raises": raises, "nan": lambda: math.nan, "inf": lambda: math.inf, "none": lambda: None, "text": lambda: "noon",
}  # fmt: skip


@pytest.mark.parametrize("good", [0, 1, 2, 3])
@pytest.mark.parametrize("then", NONSENSE)
def test_a_clock_that_fails_at_any_reading_does_not_replace_the_error(flavour, caplog, good, then):
    caplog.set_level(logging.WARNING, "redouble")
    policy = Policy(
        attempts=3, deadline=60.0, clock=after([7.0] * good, NONSENSE[then]), sleep=lambda seconds: None
    )
    error = TimeoutError("slow")
    with pytest.raises(TimeoutError) as caught:
        flavour.call(policy, flavour.scripted(*[error] * 3))
    assert caught.value is error
    assert 0.0 <= history(error).elapsed < 30.0
    [said] = [message for message in caplog.messages if "clock" in message]
    assert said.endswith("time.monotonic stands in (said once)")


def test_a_clock_that_fails_at_once_leaves_a_success_alone(flavour):
    policy = Policy(deadline=60.0, clock=raises)
    assert flavour.call(policy, flavour.scripted("page")) == "page"
    with retrying(policy) as call:
        assert call(lambda: "page") == "page"


def test_where_a_clock_fails_the_real_one_goes_on_from_its_last_reading(flavour):
    policy = Policy(deadline=60.0, clock=after([1e9], raises), sleep=lambda seconds: None)
    assert flavour.call(policy, flavour.scripted(TimeoutError(), "page")) == "page"


def test_an_interrupt_in_a_clock_passes(flavour):
    def clock():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        flavour.call(Policy(deadline=60.0, clock=clock), flavour.scripted("page"))


def test_a_clock_that_goes_back_makes_no_time_negative(flavour):
    heard = []
    clock = after([100.0], lambda: 40.0)
    policy = Policy(
        attempts=2, backoff=fixed, clock=clock, sleep=lambda seconds: None, listeners=[heard.append]
    )
    with pytest.raises(TimeoutError) as caught:
        flavour.call(policy, flavour.scripted(*[TimeoutError("slow")] * 2))
    # The waits count, whatever the clock shows.
    assert [event.elapsed for event in heard] == [0.0, 1.0]
    assert history(caught.value).elapsed == 1.0
    assert "2 attempts, 1.0 s after the first failure" in note(caught.value)


def test_a_clock_that_goes_back_makes_the_time_of_an_expired_call_not_negative(flavour):
    policy = Policy(deadline=5.0, base=9.0, backoff=fixed, clock=after([100.0], lambda: 98.0))
    with pytest.raises(DeadlineExceeded) as caught:
        flavour.call(policy, flavour.scripted(TimeoutError("slow")))
    assert caught.value.elapsed == 0.0


# Hints


class Busy(Exception):
    retry_after = 0.001


def test_a_tiny_hint_does_not_switch_the_backoff_off(flavour, clock):
    fetch = flavour.scripted(*[Busy()] * 2000)
    policy = Policy(attempts=None, deadline=600.0, clock=clock, sleep=clock.sleep, rng=Random(1))
    with pytest.raises(DeadlineExceeded):
        flavour.call(policy, fetch)
    assert 30 < len(fetch.calls) < 80


# Groups


def test_a_type_in_on_and_in_rules_reaches_into_groups(flavour, clock):
    recovered = []
    error = ExceptionGroup("both", [KeyError(1), ExceptionGroup("inner", [KeyError(2)])])
    for fields in ({"on": KeyError}, {"rules": {KeyError: Rule(recover=recovered.append)}}):
        policy = Policy(clock=clock, sleep=clock.sleep, **fields)
        assert flavour.call(policy, flavour.scripted(error, "page")) == "page"
    assert recovered == [error]


# A block that fails with what ends loops


@pytest.mark.parametrize("end", [StopIteration, StopAsyncIteration])
def test_an_error_that_ends_loops_is_raised_by_a_block_whose_recover_fails(flavour, clock, end):
    def recover(error):
        raise ValueError("no token")

    def block(attempt):
        raise error

    error = end("empty")
    policy = Policy(rules={end: Rule(recover=recover)}, clock=clock, sleep=clock.sleep)
    if flavour.is_async and end is StopIteration:
        with pytest.raises(RuntimeError) as caught:  # so does Python itself with any coroutine
            flavour.block(policy, block)
        assert caught.value.__cause__ is error
    else:
        with pytest.raises(end) as caught:
            flavour.block(policy, block)
        assert caught.value is error
    assert "recover raised ValueError: no token" in note(error)


def test_a_block_left_with_an_error_that_ends_loops_is_over(clock):
    places = Bulkhead(1)
    policy = Policy(
        rules={StopIteration: Rule(recover=lambda error: raises())},
        clock=clock,
        sleep=clock.sleep,
        bulkhead=places,
    )
    runs = 0
    for attempt in retrying(policy):
        try:
            with attempt:
                runs += 1
                raise StopIteration
        except StopIteration:
            pass
    assert runs == 1
    assert places.snapshot() == (0, 0)


def test_the_last_run_of_a_block_that_has_raised_its_error_cannot_be_entered_again(clock):
    policy = Policy(
        rules={StopIteration: Rule(recover=lambda error: raises())}, clock=clock, sleep=clock.sleep
    )
    runs = []
    with pytest.raises(StopIteration):
        for attempt in retrying(policy):
            runs.append(attempt)
            with attempt:
                raise StopIteration
    with pytest.raises(RuntimeError, match="was entered already"):
        runs[-1].__enter__()


# Plain functions that turn out to be async


@pytest.fixture(autouse=True)
def _no_coroutine_is_left():
    yield
    gc.collect()  # a coroutine that was never awaited is told of when it goes


async def answer(*_, **__):
    return False


def refuses(*args, **kwargs):
    return answer()


@pytest.mark.parametrize("fields", [{"on": refuses}, {"enabled": refuses}])
def test_a_predicate_that_gives_a_coroutine_is_refused_and_noted(flavour, clock, fields):
    error = KeyError("stock")
    fetch = flavour.scripted(error, "page")
    with pytest.raises(KeyError) as caught:
        flavour.call(Policy(clock=clock, sleep=clock.sleep, **fields), fetch)
    assert caught.value is error
    assert "returned an awaitable: it must be a plain function" in note(error)
    assert len(fetch.calls) == 1


@pytest.mark.parametrize(
    "more", [{}, {"deadline": 60.0}, {"budget": TokenBudget()}, {"bulkhead": Bulkhead(1)}]
)
def test_an_until_that_gives_a_coroutine_is_refused(flavour, clock, more):
    if "budget" in more:
        more = {**more, "deadline": 60.0}
    policy = Policy(clock=clock, sleep=clock.sleep, until=refuses, **more)
    with pytest.raises(TypeError, match=r"^until returned an awaitable"):
        flavour.call(policy, flavour.scripted("page"))


def test_what_until_says_counts_by_its_truth(flavour, clock):
    answers = iter([0, None, "yes"])
    policy = Policy(clock=clock, sleep=clock.sleep, until=lambda result: next(answers))
    assert flavour.call(policy, flavour.scripted(1, 2, 3)) == 3


def test_a_future_is_no_answer_either():
    async def main():
        answers = []

        def on(error):
            answers.append(asyncio.get_running_loop().create_future())
            return answers[-1]

        with pytest.raises(KeyError) as caught:
            await Policy(on=on)(scripted(KeyError("stock"), asynchronous=True))()
        assert "on returned an awaitable" in note(caught.value)

    asyncio.run(main())


def reported(caplog):
    [record] = [record for record in caplog.records if record.message.endswith("(said once)")]
    return f"{record.message}: {record.exc_text.splitlines()[-1].partition(': ')[2]}"


def test_a_listener_that_gives_a_coroutine_is_reported_once(flavour, clock, caplog):
    policy = Policy(clock=clock, sleep=clock.sleep, listeners=[refuses])
    assert flavour.call(policy, flavour.scripted(TimeoutError(), TimeoutError(), "page")) == "page"
    assert reported(caplog) == (
        "listener refuses failed (said once): it returned an awaitable: it must be a plain function"
    )


def test_a_listener_may_start_a_task():
    heard = []

    async def tell(event):
        heard.append(event)

    async def main():
        tasks = []
        listener = lambda event: tasks.append(asyncio.create_task(tell(event))) or tasks[-1]  # noqa: E731
        await Policy(listeners=[listener], base=0)(scripted(TimeoutError(), "page", asynchronous=True))()
        await asyncio.gather(*tasks)

    asyncio.run(main())
    assert len(heard) == 2


@pytest.mark.parametrize("field", ["backoff", "clock"])
def test_a_backoff_or_clock_that_gives_a_coroutine_is_reported_once_and_replaced(flavour, caplog, field):
    policy = Policy(sleep=lambda seconds: None, **{field: refuses})
    assert flavour.call(policy, flavour.scripted(TimeoutError(), TimeoutError(), "page")) == "page"
    assert "it returned an awaitable" in reported(caplog)


def test_a_hook_that_gives_a_coroutine_correlates_nothing(clock, caplog):
    heard = []
    correlate(refuses)
    try:
        Policy(clock=clock, sleep=clock.sleep, listeners=[heard.append]).call(
            scripted(TimeoutError(), "page")
        )
    finally:
        correlate(None)
    assert [dict(event.correlation) for event in heard] == [{}, {}]
    assert "it returned an awaitable" in reported(caplog)


def test_a_breaker_whose_ignore_gives_a_coroutine_counts_the_failure(clock, caplog):
    breaker = CircuitBreaker(1, ignore=refuses, clock=clock)
    breaker.failure(breaker.enter(), TimeoutError())
    assert breaker.refuses()
    assert "it returned an awaitable" in reported(caplog)


def test_an_idempotency_key_that_is_a_coroutine_is_refused(flavour):
    policy = Policy(idempotency_key=refuses)
    with pytest.raises(TypeError, match="idempotency_key returned an awaitable"):
        flavour.call(policy, flavour.function(outgoing_headers))


def test_a_payload_that_is_a_coroutine_is_not_kept(flavour, clock, tmp_path):
    with DeadLetters(tmp_path / "letters.db") as letters:
        policy = Policy(attempts=1, dead_letters=letters, payload=refuses, clock=clock)
        with pytest.raises(TimeoutError):
            flavour.call(policy, flavour.scripted(TimeoutError()))
        [letter] = letters.list()
    assert letter.payload is None
    assert "it returned an awaitable" in letter.replay_instructions


def test_functions_of_dead_letters_that_give_coroutines_are_reported(tmp_path, caplog):
    with DeadLetters(tmp_path / "letters.db") as letters:
        letters.on_depth(1, refuses)
        letters.put()
        assert "on_depth() failed" in reported(caplog)
        caplog.clear()
        assert letters.replay(lambda letter: None, progress=refuses).replayed == 1
        assert "progress= failed" in reported(caplog)


def scope():
    with retrying() as call:
        return call


@pytest.mark.parametrize(
    "use",
    [
        Policy().call,
        Policy(),
        retry,
        lambda coroutine: retry(coroutine, attempts=2),
        retrying,
        lambda coroutine: scope()(coroutine),
        hedging.hedge(after=1.0),
        Bulkhead(1),
    ],
)
def test_a_coroutine_in_the_place_of_a_function_is_refused_and_closed(use):
    coroutine = answer()
    with pytest.raises(TypeError, match="coroutine"):
        use(coroutine)
    assert inspect.getcoroutinestate(coroutine) == inspect.CORO_CLOSED


# The end of a call, and of an interpreter


def test_an_interrupt_as_a_call_gives_its_slot_back_is_raised_and_the_slot_is_free(flavour, monkeypatch):
    left, bulkhead = [], Bulkhead(1)
    release = Call.release

    def interrupted(call):
        left.append(call)
        if len(left) == 1:
            raise KeyboardInterrupt
        release(call)

    monkeypatch.setattr(Call, "release", interrupted)
    with pytest.raises(KeyboardInterrupt):
        flavour.call(Policy(bulkhead=bulkhead), flavour.scripted("page"))
    assert bulkhead.under_way == 0


def test_a_text_that_cannot_be_masked_for_want_of_imports_is_left_out(monkeypatch):
    def torn_down(text):
        raise ImportError("sys.meta_path is None, Python is likely shutting down")

    monkeypatch.setattr("redouble._base.text.masked_text", torn_down)
    assert brief(TimeoutError("password=hunter2")) == "TimeoutError"
