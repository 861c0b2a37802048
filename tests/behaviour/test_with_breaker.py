"""Calls with a circuit breaker."""

from __future__ import annotations

import asyncio

import pytest

from redouble import (
    CircuitOpen,
    DeadlineExceeded,
    Policy,
    ResultRejected,
    classify,
    retry,
    retrying,
)
from redouble.breaker import CircuitBreaker
from redouble.budget import RatioBudget
from redouble.bulkhead import Bulkhead
from redouble.shared import RedisBreaker
from redouble.testing import retries_disabled
from support.guarded import (
    SLOW,
    BrokenBreaker,
    HTTPError,
    Interrupt,
    Response,
    Turnstile,
    half_open,
    slow_page,
    told,
)
from support.stores import AsyncClient, Client


def test_an_open_circuit_is_not_called_and_says_so(flavour, policy, heard):
    breaker = CircuitBreaker(failures=1, open_for=30.0, name="payments", clock=policy.clock)
    breaker.failure(error=SLOW)
    function = flavour.scripted("page")
    with pytest.raises(CircuitOpen) as caught:
        flavour.call(policy.replace(breaker=breaker), function)
    assert function.calls == []
    assert str(caught.value) == "the circuit of payments is open for another 30.0 s (TimeoutError: slow)"
    assert (caught.value.name, caught.value.retry_after) == ("payments", 30.0)
    assert caught.value.last_failure == "TimeoutError: slow"
    assert told(heard) == [("Refused", "breaker")]
    assert (heard[0].attempt, heard[0].error_type) == (0, "CircuitOpen")


def test_a_circuit_that_opens_stops_a_running_retry_at_once_and_the_own_error_comes_out(
    flavour, policy, clock, heard
):
    breaker = CircuitBreaker(failures=2, name="payments", clock=clock)
    error = TimeoutError("second")
    with pytest.raises(TimeoutError) as caught:
        flavour.call(policy.replace(breaker=breaker, attempts=9), flavour.scripted(SLOW, error))
    assert caught.value is error
    assert clock.waits == [1.0]
    assert "the circuit of payments is open for another 30.0 s" in error.__notes__[0]
    assert told(heard) == [("Retrying", None), ("CircuitChanged", None), ("GaveUp", "breaker")]
    assert (heard[1].name, heard[1].before, heard[1].after, heard[1].delay) == (
        "payments",
        "closed",
        "open",
        30.0,
    )


def test_a_circuit_that_others_open_during_the_wait_ends_the_call_with_its_own_last_error(
    flavour, policy, clock, heard
):
    breaker = CircuitBreaker(failures=1, name="payments", clock=clock, ignore=lambda error: error is first)
    first = TimeoutError("first")

    def sleep(seconds):
        clock.sleep(seconds)
        breaker.failure(error=ConnectionResetError("elsewhere"))

    with pytest.raises(TimeoutError) as caught:
        flavour.call(policy.replace(breaker=breaker, sleep=sleep), flavour.scripted(first))
    assert caught.value is first
    assert caught.value.__context__ is None
    assert (
        first.__notes__[0]
        .splitlines()[0]
        .endswith("is open for another 30.0 s (ConnectionResetError: elsewhere)")
    )
    assert told(heard) == [("Retrying", None), ("GaveUp", "breaker")]


def test_every_attempt_is_told_to_the_breaker(flavour, policy, clock):
    breaker = CircuitBreaker(failure_rate=1.0, last_calls=10, minimum_calls=10, clock=clock)
    flavour.call(policy.replace(breaker=breaker), flavour.scripted(SLOW, SLOW, "page"))
    assert breaker.counted == (3, 2)
    flavour.call(policy.replace(breaker=breaker), flavour.scripted("page"))
    assert breaker.counted == (4, 2)


def test_a_success_resets_the_failures_in_a_row(flavour, policy, clock):
    breaker = CircuitBreaker(failures=3, clock=clock)
    guarded = policy.replace(breaker=breaker, attempts=3)
    flavour.call(guarded, flavour.scripted(SLOW, SLOW, "page"))
    assert breaker._clean
    assert breaker.counted == (0, 0)


def test_a_probe_closes_the_circuit_or_opens_it_again(flavour, policy, clock, heard):
    breaker = CircuitBreaker(failures=1, open_for=10.0, clock=clock, name="payments")
    guarded = policy.replace(breaker=breaker)
    breaker.failure()
    clock.advance(10.0)
    with pytest.raises(TimeoutError):
        flavour.call(guarded, flavour.scripted(SLOW))
    assert breaker.state == "open"
    clock.advance(10.0)
    assert flavour.call(guarded, flavour.scripted("page")) == "page"
    assert breaker.state == "closed"
    changes = [(event.before, event.after) for event in heard if type(event).__name__ == "CircuitChanged"]
    assert changes == [
        ("open", "half-open"),
        ("half-open", "open"),
        ("open", "half-open"),
        ("half-open", "closed"),
    ]


def test_an_answer_that_is_about_the_request_says_nothing_to_the_breaker(flavour, policy, clock):
    breaker = CircuitBreaker(failures=1, clock=clock)
    with pytest.raises(HTTPError):
        flavour.call(policy.replace(breaker=breaker), flavour.scripted(HTTPError(400)))
    assert breaker.state == "closed"


def test_a_refused_result_is_a_failure_to_the_breaker_only_if_it_is_one(flavour, policy, clock):
    breaker = CircuitBreaker(failures=2, clock=clock)
    poll = policy.replace(breaker=breaker, until=lambda result: result == "done", attempts=3)
    assert flavour.call(poll, flavour.scripted("pending", "pending", "done")) == "done"
    assert breaker.state == "closed"
    bad = policy.replace(breaker=breaker, until=classify.accepted, attempts=2)
    with pytest.raises(ResultRejected):
        flavour.call(bad, flavour.scripted(Response(503), Response(503)))
    assert breaker.state == "open"


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit, Interrupt])
def test_an_interrupt_is_no_outcome_and_gives_the_probe_back(policy, clock, interrupt):
    breaker = CircuitBreaker(failures=1, open_for=10.0, clock=clock)
    breaker.failure()
    clock.advance(10.0)

    def fetch():
        raise interrupt

    with pytest.raises(interrupt):
        policy.replace(breaker=breaker).call(fetch)
    assert breaker.state == "half-open"
    assert policy.replace(breaker=breaker).call(lambda: "page") == "page"


def test_a_cancelled_probe_gives_its_slot_back(clock):
    breaker = CircuitBreaker(failures=1, open_for=10.0, clock=clock)
    breaker.failure()
    clock.advance(10.0)

    async def main():
        fetch = retry(breaker=breaker)(lambda: asyncio.sleep(60))
        task = asyncio.ensure_future(fetch())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert breaker.refuses()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not breaker.refuses()

    asyncio.run(main())


def test_an_error_in_until_gives_the_probe_back(flavour, policy, clock):
    breaker = CircuitBreaker(failures=1, open_for=10.0, clock=clock)
    breaker.failure()
    clock.advance(10.0)
    broken = policy.replace(breaker=breaker, until=lambda result: result.missing)
    with pytest.raises(AttributeError):
        flavour.call(broken, flavour.scripted("page"))
    assert not breaker.refuses()


def test_retries_switched_off_leave_the_breaker_in_charge(flavour, policy, clock):
    breaker = CircuitBreaker(failures=1, clock=clock)
    guarded = policy.replace(breaker=breaker)
    with retries_disabled():
        with pytest.raises(TimeoutError):
            flavour.call(guarded, flavour.scripted(SLOW))
        with pytest.raises(CircuitOpen):
            flavour.call(guarded, flavour.scripted("page"))


def test_breaker_below_retry_and_breaker_in_the_policy_end_alike_but_for_what_comes_out(
    flavour, policy, clock
):
    inside = CircuitBreaker(failures=2, clock=clock)
    function = flavour.scripted(SLOW, SLOW, "page")
    with pytest.raises(CircuitOpen):  # the third attempt is refused, and that is not retried
        flavour.call(policy, inside(flavour.function(function) if not flavour.is_async else function))
    assert len(function.calls) == 2


def test_a_breaker_above_retry_counts_whole_calls(flavour, policy, clock):
    breaker = CircuitBreaker(failures=2, clock=clock)
    function = flavour.scripted(SLOW, SLOW, SLOW, SLOW, "page")
    whole = breaker(policy(function))
    with pytest.raises(TimeoutError):
        flavour.run(whole)
    assert breaker.counted == (1, 1)


def test_who_would_rather_wait_than_be_refused_waits_as_long_as_the_circuit_says(flavour, policy, clock):
    breaker = CircuitBreaker(failures=1, open_for=30.0, clock=clock)
    breaker.failure()
    patient = policy.replace(on=CircuitOpen, idempotent=False, base=0.5)
    assert flavour.call(patient, breaker(flavour.scripted("page"))) == "page"
    assert 30.0 <= clock.waits[0] <= 30.5


def test_a_block_is_refused_by_an_open_circuit(flavour, policy, clock):
    breaker = CircuitBreaker(clock=clock)
    breaker.open()
    bulkhead = Bulkhead(1)
    with pytest.raises(CircuitOpen):
        flavour.block(policy.replace(breaker=breaker, bulkhead=bulkhead), lambda attempt: None)
    assert bulkhead.under_way == 0


def test_a_forgotten_with_in_an_async_block_gives_the_probe_back(policy, clock):
    breaker = half_open(clock)

    async def main():
        with pytest.raises(RuntimeError) as caught:
            async for _ in retrying(policy, breaker=breaker):
                pass
        assert not breaker.refuses()
        return caught

    asyncio.run(main())


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_in_until_gives_the_probe_back(flavour, policy, clock, interrupt):
    breaker = half_open(clock)

    def until(result):
        raise interrupt

    with pytest.raises(interrupt):
        flavour.call(policy.replace(breaker=breaker, until=until), flavour.scripted("page"))
    assert not breaker.refuses()


class Refusing(BrokenBreaker):
    def refuses(self):
        raise OSError("store")


def test_a_breaker_that_cannot_say_whether_it_refuses_is_taken_not_to(flavour, policy):
    assert flavour.call(policy.replace(breaker=Refusing()), flavour.scripted(SLOW, "page")) == "page"


def test_a_coroutine_that_an_open_circuit_refuses_is_closed(policy, clock):
    breaker = CircuitBreaker(clock=clock)

    async def main():
        for fields in ({}, {"deadline": 9.0}):
            coroutine = policy.replace(breaker=breaker, **fields)(lambda: slow_page())()
            breaker.open()
            with pytest.raises(CircuitOpen):
                await coroutine
            breaker.close()

    asyncio.run(main())


def test_a_circuit_that_opens_while_a_call_waits_for_its_turn_ends_that_wait(flavour, policy, clock):
    breaker, throttle = CircuitBreaker(clock=clock), Turnstile(1.0, 2.0)

    def sleep(seconds):
        clock.sleep(seconds)
        breaker.open()

    with pytest.raises(CircuitOpen):
        flavour.call(
            policy.replace(breaker=breaker, throttle=throttle, sleep=sleep), flavour.scripted("page")
        )
    assert clock.waits == [1.0]


def test_a_probe_that_is_let_through_too_late_is_not_made_and_given_back(flavour, policy, clock):
    breaker, function = half_open(clock), flavour.scripted("page")
    slow = policy.replace(breaker=breaker, deadline=1.0, listeners=[lambda event: clock.advance(2.0)])
    with pytest.raises(DeadlineExceeded):
        flavour.call(slow, function)
    assert function.calls == []
    assert not breaker.refuses()


def test_a_first_attempt_that_fails_past_the_deadline_is_one_attempt(policy, clock):
    def late():
        clock.advance(2.0)
        raise SLOW

    with pytest.raises(DeadlineExceeded) as caught:
        policy.replace(breaker=CircuitBreaker(clock=clock), deadline=1.0).call(late)
    assert (caught.value.attempts, caught.value.last_error) == (1, SLOW)


@pytest.mark.parametrize("fields", [{}, {"deadline": 60.0}], ids=str)
def test_a_clock_of_a_shared_breaker_that_raises_does_not_break_the_call(flavour, policy, fields, caplog):
    def broken():
        raise RuntimeError("no time today")

    client = AsyncClient() if flavour.is_async else Client()
    breaker = RedisBreaker(client, "circuit", name="torn", clock=broken)
    call = policy.replace(breaker=breaker, **fields)
    assert flavour.call(call, flavour.scripted("page")) == "page"
    assert "the clock of torn failed" in caplog.text
    assert "no time today" in caplog.text


@pytest.mark.parametrize(
    ("fields", "load"),
    [
        ({"budget": RatioBudget(name="purse")}, "1.4 x the load at 1 call/s, 1.13 x the load at 10 calls/s, 1.1 x the load at 100 calls/s"),
        ({"budget": RatioBudget(0.2, 10, name="purse"), "attempts": 3}, "3 x the load at 1 call/s, 2.2 x the load at 10 calls/s, 1.3 x the load at 100 calls/s"),
        ({"budget": RatioBudget(0.0, 9, name="purse"), "attempts": None, "deadline": 9.0}, "10 x the load at 1 call/s, 1.9 x the load at 10 calls/s, 1.09 x the load at 100 calls/s"),
    ],
    ids=["default", "attempts", "no attempts"],
)  # fmt: skip
def test_a_policy_says_what_load_its_budget_allows(fields, load):
    line = f"Retries only while the budget purse is not spent: {load} when everything fails."
    assert line in Policy(**fields).describe().splitlines()
