"""Guards in a policy: who is asked when, what is told to whom, and what comes out, on both drivers."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import weakref

import pytest

from conftest import loop_time
from redouble import (
    BulkheadFull,
    Cause,
    CircuitOpen,
    DeadlineExceeded,
    Policy,
    ResultRejected,
    Rule,
    classify,
    current_attempt,
    retry,
    retrying,
)
from redouble.backoff import exponential, fixed
from redouble.breaker import Breaker, CircuitBreaker
from redouble.budget import Budget, RatioBudget, TokenBudget
from redouble.bulkhead import Bulkhead
from redouble.policy import UNSET
from redouble.testing import FakeClock, no_waits, retries_disabled
from redouble.throttle import AdaptiveThrottle

SLOW = TimeoutError("slow")


class Response:
    def __init__(self, status, **headers):
        self.status_code = status
        self.headers = headers


class HTTPError(Exception):
    def __init__(self, status, **headers):
        super().__init__(f"status {status}")
        self.response = Response(status, **headers)


@pytest.fixture
def heard():
    return []


@pytest.fixture
def policy(clock, heard):
    """A policy on fake time with waits of 1, 2, 4 seconds; guards are added to it."""
    return Policy(clock=clock, sleep=clock.sleep, backoff=exponential, listeners=[heard.append], name="fetch")


def told(heard):
    return [(type(event).__name__, event.reason) for event in heard]


# Budgets


def test_a_first_attempt_is_never_charged(flavour, policy):
    empty = TokenBudget(capacity=0)
    assert flavour.call(policy.replace(budget=empty), flavour.scripted("page")) == "page"


def test_a_retry_that_the_budget_refuses_is_not_waited_for_and_the_own_error_comes_out(
    flavour, policy, clock, heard
):
    budget = TokenBudget(capacity=5, name="upstream")
    error = ConnectionResetError("gone")
    with pytest.raises(ConnectionResetError) as caught:
        flavour.call(policy.replace(budget=budget), flavour.scripted(ConnectionResetError(), error))
    assert caught.value is error
    assert clock.waits == [1.0]
    assert budget.tokens == 0.0
    assert error.__notes__[0].startswith(
        "redouble: gave up on fetch after 2 attempts, 1.0 s after the first failure: "
        "the retry budget is spent (upstream)\n"
    )
    assert told(heard) == [("Retrying", None), ("GaveUp", "budget")]


def test_a_timeout_costs_more(flavour, policy):
    budget = TokenBudget(capacity=100)
    flavour.call(policy.replace(budget=budget, attempts=3), flavour.scripted(SLOW, ConnectionResetError(), 1))
    assert budget.tokens == 100 - 10 - 5 + 5


def test_a_success_after_retries_gives_the_last_cost_back_and_a_clean_one_earns_a_little(flavour, policy):
    budget = TokenBudget(capacity=100)
    guarded = policy.replace(budget=budget)
    assert flavour.call(guarded, flavour.scripted(SLOW, SLOW, "page")) == "page"
    assert budget.tokens == 90.0
    assert flavour.call(guarded, flavour.scripted("page")) == "page"
    assert budget.tokens == 91.0


@pytest.mark.parametrize("failure", [KeyError("k"), HTTPError(404)], ids=repr)
def test_a_failure_that_is_not_retried_costs_nothing(flavour, policy, failure):
    budget = TokenBudget(capacity=100)
    with pytest.raises(type(failure)):
        flavour.call(policy.replace(budget=budget), flavour.scripted(failure))
    assert budget.tokens == 100


@pytest.mark.parametrize(
    "fields",
    [{"attempts": 1}, {"deadline": 0.5}, {"enabled": False}, {"patience": 0.0, "on": lambda e: 0}],
    ids=str,
)
def test_a_budget_is_asked_last(flavour, policy, fields):
    budget = TokenBudget(capacity=100)
    failure = HTTPError(503, **{"retry-after": "7"}) if "patience" in fields else SLOW
    with pytest.raises(Exception):
        flavour.call(policy.replace(budget=budget, **{**fields, "on": None}), flavour.scripted(failure))
    assert budget.tokens == 100


def test_a_budget_is_not_asked_while_the_circuit_is_open(flavour, policy):
    budget, breaker = TokenBudget(), CircuitBreaker(failures=1)
    with pytest.raises(TimeoutError):
        flavour.call(policy.replace(budget=budget, breaker=breaker), flavour.scripted(SLOW))
    assert budget.tokens == 500


def test_a_low_priority_leaves_the_rest_to_the_others(flavour, policy):
    budget = TokenBudget(capacity=10, timeout_cost=6)
    batch = policy.replace(budget=budget, priority=-1)
    with pytest.raises(TimeoutError):
        flavour.call(batch, flavour.scripted(SLOW, SLOW))
    assert budget.tokens == 4.0
    with pytest.raises(TimeoutError):
        flavour.call(batch, flavour.scripted(SLOW))
    assert budget.tokens == 4.0
    reset = ConnectionResetError("gone")
    cheap = policy.replace(budget=TokenBudget(capacity=10, cost=4, reserves={-1: 0.5}))
    assert (
        flavour.call(cheap, flavour.scripted(reset, reset, "page")) == "page"
    )  # down to 2, below the reserve


def test_a_ratio_budget_counts_every_call_once(flavour, policy, clock):
    budget = RatioBudget(ratio=0.5, floor_per_second=0, clock=clock)
    guarded = policy.replace(budget=budget, backoff=fixed, base=0.0)
    for outcome in ("page", "page"):
        flavour.call(guarded, flavour.scripted(outcome))
    assert budget.tokens == 1.0
    flavour.call(guarded, flavour.scripted(SLOW, "page"))
    assert budget.tokens == 0.5
    with pytest.raises(KeyError):
        flavour.call(guarded, flavour.scripted(KeyError("k")))
    assert budget.tokens == 1.0


def test_the_standard_retry_tables_hold(flavour, clock):
    """As published for the standard mode of the AWS SDKs, version 2.0: quota and delay after each response."""
    tables = [
        (3, 500, 20, [(500, 495, 1), (500, 490, 2), (200, 495, None)]),
        (3, 500, 20, [(502, 495, 1), (502, 490, 2), (502, 490, None)]),
        (3, 5, 20, [(500, 0, 1), (502, 0, None)]),
        (3, 0, 20, [(500, 0, None)]),
        (5, 500, 20, [(500, 495, 1), (500, 490, 2), (500, 485, 4), (500, 480, 8), (500, 480, None)]),
        (5, 500, 3, [(500, 495, 1), (500, 490, 2), (500, 485, 3), (500, 480, 3), (500, 480, None)]),
        (5, 10, 20, [(500, 5, 1), (502, 0, 2), (503, 0, None)]),
        (5, 15, 20, [(500, 10, 1), (502, 5, 2), (200, 10, None), (500, 5, 1), (200, 10, None)]),
    ]
    for attempts, tokens, cap, rows in tables:
        budget = TokenBudget(capacity=tokens)
        waits = []
        seen = []

        def sleep(seconds, waits=waits, seen=seen, budget=budget):
            waits.append(seconds)
            seen.append(budget.tokens)

        policy = Policy(attempts=attempts, cap=cap, backoff=exponential, budget=budget, sleep=sleep)
        outcomes = [HTTPError(status) if status != 200 else "page" for status, _, _ in rows]
        fetch = flavour.scripted(*outcomes)
        while len(fetch.calls) < len(rows):
            try:
                flavour.call(policy, fetch)
            except HTTPError:
                pass
            seen.append(budget.tokens)
        assert seen == [quota for _, quota, _ in rows]
        assert waits == [delay for _, _, delay in rows if delay is not None]


# Breakers


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
    assert told(heard) == [("Refused", "circuit")]
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
    assert told(heard) == [("Retrying", None), ("CircuitChanged", None), ("GaveUp", "circuit")]
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
    assert told(heard) == [("Retrying", None), ("GaveUp", "circuit")]


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
    assert breaker.clean
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


class Interrupt(BaseException):
    pass


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


def test_a_cancelled_probe_gives_its_place_back(clock):
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


# Throttles


class Turnstile(AdaptiveThrottle):
    """A throttle whose waits are a script."""

    def __init__(self, *waits):
        super().__init__()
        self.waits = [*waits]
        self.outcomes = []

    def acquire(self):
        return self.waits.pop(0) if self.waits else 0.0

    def failure(self, error):
        self.outcomes.append(type(error).__name__)


def test_every_attempt_waits_for_its_turn_at_the_throttle(flavour, policy, clock):
    throttle = Turnstile(0.25, 0.5, 0.0, 0.125)
    assert flavour.call(policy.replace(throttle=throttle), flavour.scripted(SLOW, "page")) == "page"
    assert clock.waits == [0.25, 0.5, 1.0, 0.125]
    assert throttle.outcomes == ["TimeoutError", "str"]


def test_a_turn_that_would_come_after_the_deadline_is_not_waited_for(flavour, policy, clock, heard):
    throttle = Turnstile(9.0)
    function = flavour.scripted("page")
    with pytest.raises(DeadlineExceeded) as caught:
        flavour.call(policy.replace(throttle=throttle, deadline=5.0), function)
    assert function.calls == []
    assert clock.waits == []
    assert caught.value.attempts == 0
    assert told(heard) == [("Expired", "deadline")]


def test_a_later_turn_that_would_come_after_the_deadline_ends_the_call_because_of_its_error(
    flavour, policy, clock
):
    throttle = Turnstile(0.0, 9.0)
    with pytest.raises(DeadlineExceeded) as caught:
        flavour.call(policy.replace(throttle=throttle, deadline=5.0), flavour.scripted(SLOW))
    assert caught.value.__cause__ is SLOW
    assert "waited 1.00 s" in caught.value.__notes__[0]
    assert clock.waits == [1.0]


def test_a_throttling_answer_slows_the_next_call_down(flavour, clock):
    throttle = AdaptiveThrottle(clock=clock)
    policy = Policy(clock=clock, sleep=clock.sleep, throttle=throttle, attempts=1)
    for _ in range(20):
        flavour.call(policy, flavour.scripted("page"))
        clock.advance(0.1)
    assert clock.waits == []
    with pytest.raises(HTTPError):
        flavour.call(policy, flavour.scripted(HTTPError(429)))
    assert throttle.active
    other = AdaptiveThrottle(clock=clock)
    flavour.call(policy.replace(throttle=other), flavour.scripted(Response(429)))  # returned, not raised
    assert other.active
    for _ in range(20):
        flavour.call(policy, flavour.scripted("page"))
    assert clock.waits != []


# Bulkheads


def test_a_call_has_its_place_from_its_first_attempt_to_its_end_waits_included(flavour, policy, clock):
    bulkhead = Bulkhead(1)
    seen = []

    def sleep(seconds):
        seen.append(bulkhead.under_way)

    function = flavour.scripted(SLOW, SLOW, "page")
    assert flavour.call(policy.replace(bulkhead=bulkhead, sleep=sleep), function) == "page"
    assert seen == [1, 1]
    assert bulkhead.under_way == 0


@pytest.mark.parametrize("outcome", [KeyError("k"), SLOW, "page"], ids=repr)
def test_a_place_is_free_again_however_the_call_ends(flavour, policy, outcome):
    bulkhead = Bulkhead(1)
    try:
        flavour.call(policy.replace(bulkhead=bulkhead, attempts=1), flavour.scripted(outcome))
    except Exception:
        pass
    assert bulkhead.under_way == 0


def test_a_place_is_free_again_after_an_interrupt(policy):
    bulkhead = Bulkhead(1)

    def fetch():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        policy.replace(bulkhead=bulkhead).call(fetch)
    assert bulkhead.under_way == 0


def test_a_full_bulkhead_refuses_a_call_before_anything_is_called(flavour, policy, heard):
    bulkhead = Bulkhead(1, name="reports")
    assert bulkhead.acquire()
    function = flavour.scripted("page")
    with pytest.raises(BulkheadFull, match="reports"):
        flavour.call(policy.replace(bulkhead=bulkhead), function)
    assert function.calls == []
    assert told(heard) == [("Refused", "bulkhead")]
    assert bulkhead.under_way == 1


def test_time_in_the_queue_counts_against_the_deadline(virtual):
    bulkhead = Bulkhead(1, queue=5)
    policy = Policy(bulkhead=bulkhead, deadline=5.0, clock=loop_time)

    async def main():
        assert await bulkhead.acquire_async()
        before = loop_time()
        with pytest.raises(DeadlineExceeded) as caught:
            await policy.call(asyncio.sleep, 1.0)
        assert loop_time() - before == pytest.approx(5.0)
        assert caught.value.attempts == 0
        bulkhead.release()
        assert bulkhead.snapshot() == (0, 0)

    virtual(main)


def test_who_waits_in_the_queue_gets_the_next_place(virtual):
    bulkhead = Bulkhead(2, queue=2)
    policy = Policy(bulkhead=bulkhead, clock=loop_time)

    async def main():
        ends = []

        async def work(number):
            await asyncio.sleep(1.0)
            ends.append((number, loop_time()))

        calls = [policy.call(work, number) for number in range(5)]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(outcome).__name__ for outcome in outcomes] == ["NoneType"] * 4 + ["BulkheadFull"]
        assert ends == [(0, 1.0), (1, 1.0), (2, 2.0), (3, 2.0)]

    virtual(main)


def test_a_sync_call_does_not_queue_where_it_would_block_an_event_loop():
    bulkhead = Bulkhead(1, queue=5)

    async def main():
        assert bulkhead.acquire()
        with pytest.raises(BulkheadFull):
            Policy(bulkhead=bulkhead).call(lambda: "page")

    asyncio.run(main())


def test_a_sync_call_waits_in_the_queue_of_threads():
    bulkhead = Bulkhead(1, queue=1)
    assert bulkhead.acquire()
    results = []
    thread = threading.Thread(target=lambda: results.append(Policy(bulkhead=bulkhead).call(lambda: "page")))
    thread.start()
    while not bulkhead.waiting:
        pass
    bulkhead.release()
    thread.join(5)
    assert results == ["page"]


@pytest.mark.parametrize(
    "guards", [{"bulkhead": Bulkhead(1)}, {"breaker": CircuitBreaker()}], ids=["bulkhead", "breaker"]
)
def test_a_plain_function_that_gives_a_coroutine_is_guarded_while_it_is_awaited(guards, policy):
    seen = []

    async def work():
        seen.append(guards["bulkhead"].under_way if "bulkhead" in guards else None)
        if len(seen) < 2:
            raise SLOW
        return "page"

    async def main():
        coroutine = policy.replace(**guards)(lambda: work())()
        if "bulkhead" in guards:
            assert guards["bulkhead"].under_way == 0
        return await coroutine

    assert asyncio.run(main()) == "page"
    assert seen == ([1, 1] if "bulkhead" in guards else [None, None])
    if "bulkhead" in guards:
        assert guards["bulkhead"].under_way == 0


def test_a_coroutine_for_which_there_is_no_place_any_more_is_closed_and_refused(policy):
    bulkhead = Bulkhead(1)

    async def work():
        raise AssertionError("never started")

    async def main():
        coroutine = policy.replace(bulkhead=bulkhead)(lambda: work())()
        assert bulkhead.acquire()
        with pytest.raises(BulkheadFull):
            await coroutine

    asyncio.run(main())


# Fallbacks


def test_a_fallback_stands_in_for_a_call_that_was_given_up_on(flavour, policy, heard):
    assert (
        flavour.call(policy.replace(fallback="old page", attempts=2), flavour.scripted(SLOW, SLOW))
        == "old page"
    )
    assert told(heard) == [("Retrying", None), ("GaveUp", "attempts")]


@pytest.mark.parametrize("value", [None, 0, "", False])
def test_any_value_may_be_a_fallback(flavour, policy, value):
    assert flavour.call(policy.replace(fallback=value, attempts=1), flavour.scripted(SLOW)) is value


def test_a_function_as_fallback_is_given_the_last_error_with_its_story(flavour, policy):
    last = ConnectionResetError("gone")
    given = []

    def fallback(error):
        given.append(error)
        return "old page"

    assert (
        flavour.call(policy.replace(fallback=fallback, attempts=2), flavour.scripted(SLOW, last))
        == "old page"
    )
    assert given == [last]
    assert "gave up on fetch after 2 attempts" in last.__notes__[0]


def test_a_fallback_may_be_async_in_an_async_call(policy):
    async def fallback(error):
        await asyncio.sleep(0)
        return f"instead of {error}"

    async def fetch():
        raise SLOW

    guarded = policy.replace(fallback=fallback, attempts=1)
    assert asyncio.run(guarded.call(fetch)) == "instead of slow"
    with pytest.raises(TypeError, match=r"is sync, so fallback must be sync too"):
        guarded(lambda: "page")


def test_a_failure_that_was_never_retryable_has_no_fallback(flavour, policy):
    with pytest.raises(KeyError):
        flavour.call(policy.replace(fallback="old page"), flavour.scripted(KeyError("k")))


def test_a_fallback_stands_in_for_our_own_errors(flavour, policy, clock):
    guarded = policy.replace(fallback=lambda error: type(error).__name__)
    breaker = CircuitBreaker(clock=clock)
    breaker.open()
    assert flavour.call(guarded.replace(breaker=breaker), flavour.scripted("page")) == "CircuitOpen"
    full = Bulkhead(1)
    assert full.acquire()
    assert flavour.call(guarded.replace(bulkhead=full), flavour.scripted("page")) == "BulkheadFull"
    assert flavour.call(guarded.replace(deadline=0.5), flavour.scripted(SLOW)) == "DeadlineExceeded"
    assert flavour.call(guarded.replace(until=bool, attempts=1), flavour.scripted(0)) == "ResultRejected"
    assert (
        flavour.call(guarded, flavour.scripted(CircuitOpen("inner", name="x", retry_after=None)))
        == "CircuitOpen"
    )


def test_a_fallback_stands_in_where_time_was_up_before_the_first_attempt(flavour, policy, clock):
    with retrying(deadline=1.0, clock=clock, sleep=clock.sleep) as call:
        clock.advance(2.0)
        guarded = policy.replace(fallback=lambda error: type(error).__name__, deadline=9.0)
        assert call is not None
        if not flavour.is_async:
            assert guarded.call(flavour.scripted("page")) == "DeadlineExceeded"
        else:
            assert asyncio.run(guarded.call(flavour.scripted("page"))) == "DeadlineExceeded"


def test_a_fallback_stands_in_where_a_wait_takes_longer_than_it_said(flavour, policy, clock):
    def sleep(seconds):
        clock.advance(60.0)

    guarded = policy.replace(fallback=lambda error: type(error).__name__, deadline=9.0, sleep=sleep)
    assert flavour.call(guarded, flavour.scripted(SLOW)) == "DeadlineExceeded"


def test_a_fallback_stands_in_when_the_circuit_opens_during_the_wait(flavour, policy, clock):
    breaker = CircuitBreaker(clock=clock)

    def sleep(seconds):
        breaker.open()

    guarded = policy.replace(fallback=lambda error: type(error).__name__, breaker=breaker, sleep=sleep)
    assert flavour.call(guarded, flavour.scripted(SLOW)) == "TimeoutError"


@pytest.mark.parametrize(
    "fields", [{"enabled": False}, {"on": lambda error: 1 / 0}], ids=["switched off", "predicate"]
)
def test_what_passes_through_undecided_has_no_fallback(flavour, policy, fields):
    with pytest.raises(TimeoutError):
        flavour.call(policy.replace(fallback="old page", **fields), flavour.scripted(SLOW))


def test_what_is_left_to_the_call_further_out_has_no_fallback(policy):
    inner = policy.replace(fallback="old page", nested="defer", name="inner")
    calls = []

    def fail():
        raise SLOW

    @policy.replace(attempts=2)
    def outer():
        calls.append(1)
        return fail() if len(calls) == 1 else inner.call(fail)

    with pytest.raises(TimeoutError):
        outer()
    assert len(calls) == 2


def test_a_fallback_that_raises_does_not_hide_the_own_error(flavour, policy):
    def fallback(error):
        raise KeyError("cache")

    with pytest.raises(TimeoutError) as caught:
        flavour.call(policy.replace(fallback=fallback, attempts=1), flavour.scripted(SLOW))
    assert caught.value is SLOW
    assert caught.value.__context__ is None
    assert "fallback raised KeyError: 'cache'" in SLOW.__notes__[0]
    del SLOW.__notes__


def test_a_sync_fallback_that_turns_out_to_be_async_is_trouble_that_is_noted(policy):
    async def later():
        return "page"

    with pytest.raises(TimeoutError) as caught:
        policy.replace(fallback=lambda error: later(), attempts=1).call(
            lambda: (_ for _ in ()).throw(TimeoutError())
        )
    assert caught.value.__notes__[0].splitlines()[0] == (
        "redouble: gave up on fetch after 1 attempt: no attempts left; "
        "fallback is async, which a sync call cannot await"
    )


def test_a_generator_and_a_block_cannot_have_a_fallback(policy):
    guarded = policy.replace(fallback="old page")
    with pytest.raises(TypeError, match="a generator, whose items a fallback= cannot stand in for"):

        @guarded
        def items():
            yield 1

    with pytest.raises(TypeError, match="a block has no result that a fallback could stand in for"):
        for _ in retrying(guarded):
            raise AssertionError
    with retrying(guarded, attempts=1) as call:
        assert call(lambda: (_ for _ in ()).throw(TimeoutError())) == "old page"


# Blocks


def test_a_block_passes_the_guards_like_a_call(flavour, policy, clock, heard):
    budget, breaker, bulkhead = (
        TokenBudget(capacity=100),
        CircuitBreaker(failures=3, clock=clock),
        Bulkhead(1),
    )
    guarded = policy.replace(budget=budget, breaker=breaker, bulkhead=bulkhead, throttle=Turnstile(0.25))
    runs = []

    def body(attempt):
        runs.append((attempt.number, bulkhead.under_way))
        if attempt.number < 3:
            raise SLOW

    flavour.block(guarded, body)
    assert runs == [(1, 1), (2, 1), (3, 1)]
    assert budget.tokens == 90.0
    assert bulkhead.under_way == 0
    assert breaker.clean
    assert clock.waits == [0.25, 1.0, 2.0]
    assert told(heard)[-1] == ("Recovered", None)


def test_a_block_is_refused_by_an_open_circuit(flavour, policy, clock):
    breaker = CircuitBreaker(clock=clock)
    breaker.open()
    bulkhead = Bulkhead(1)
    with pytest.raises(CircuitOpen):
        flavour.block(policy.replace(breaker=breaker, bulkhead=bulkhead), lambda attempt: None)
    assert bulkhead.under_way == 0


def test_a_block_that_is_left_early_gives_back_what_it_holds(policy, clock):
    breaker, bulkhead = CircuitBreaker(failures=1, open_for=1.0, clock=clock), Bulkhead(1)
    breaker.failure()
    clock.advance(1.0)
    guarded = policy.replace(breaker=breaker, bulkhead=bulkhead)
    for _ in retrying(guarded):
        assert (breaker.refuses(), bulkhead.under_way) == (True, 1)
        break
    assert (breaker.refuses(), bulkhead.under_way) == (False, 0)

    async def main():
        async for _ in retrying(guarded):
            assert (breaker.refuses(), bulkhead.under_way) == (True, 1)
            break
        assert (breaker.refuses(), bulkhead.under_way) == (False, 0)

    asyncio.run(main())


def test_an_interrupt_in_a_block_gives_back_what_it_holds(flavour, policy, clock):
    breaker, bulkhead = CircuitBreaker(failures=1, open_for=1.0, clock=clock), Bulkhead(1)
    breaker.failure()
    clock.advance(1.0)

    def body(attempt):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        flavour.block(policy.replace(breaker=breaker, bulkhead=bulkhead), body)
    assert (breaker.refuses(), bulkhead.under_way) == (False, 0)


def test_a_scope_passes_the_guards_in_each_call_and_spends_nothing_on_its_body(policy, clock):
    budget = TokenBudget(capacity=100)
    with pytest.raises(TimeoutError) as caught:
        with retrying(policy, budget=budget) as call:
            assert call(lambda: "page") == "page"
            raise TimeoutError("body")
    assert budget.tokens == 100
    assert "runs once" in caught.value.__notes__[0]


# Guards that must be awaited


class AsyncBudget(Budget):
    is_async = True

    def __init__(self, grants=1):
        super().__init__()
        self.grants = grants
        self.outcomes = []

    async def acquire(self, *, timeout=False, priority=0):
        await asyncio.sleep(0)
        self.grants -= 1
        return 1.0 if self.grants >= 0 else 0.0

    async def success(self, cost=0.0):
        self.outcomes.append(("success", cost))

    async def failure(self):
        self.outcomes.append("failure")


class AsyncBreaker(Breaker):
    is_async = True

    def __init__(self):
        super().__init__("remote")
        self.told = []

    async def enter(self, listeners=()):
        await asyncio.sleep(0)
        if "open" in self.told:
            raise self.refusal()
        return 7

    async def success(self, ticket=None, listeners=()):
        self.told.append(("success", ticket))

    async def failure(self, ticket=None, error=None, listeners=()):
        self.told.append(("failure", ticket))

    async def release(self, ticket=None):
        raise AssertionError("nobody awaits this")

    def refuses(self):
        return False

    def refusal(self):
        return CircuitOpen("the circuit of remote is open", name="remote", retry_after=1.0)


def test_guards_that_must_be_awaited_are_awaited_in_an_async_call(policy):
    budget, breaker = AsyncBudget(), AsyncBreaker()
    fetch = Flavours.scripted(SLOW, "page")
    assert asyncio.run(policy.replace(budget=budget, breaker=breaker).call(fetch)) == "page"
    assert budget.outcomes == ["failure", ("success", 1.0)]
    assert breaker.told == [("failure", 7), ("success", 7)]


def test_a_budget_that_must_be_awaited_may_refuse(policy, heard):
    budget = AsyncBudget(grants=0)
    with pytest.raises(TimeoutError):
        asyncio.run(policy.replace(budget=budget).call(Flavours.scripted(SLOW)))
    assert told(heard) == [("GaveUp", "budget")]


def test_a_budget_that_must_be_awaited_is_not_asked_where_there_is_no_retry(policy, heard):
    budget = AsyncBudget()
    with pytest.raises(KeyError):
        asyncio.run(policy.replace(budget=budget).call(Flavours.scripted(KeyError("k"))))
    assert budget.grants == 1
    assert told(heard) == [("GaveUp", "not_retryable")]


def test_a_breaker_that_must_be_awaited_may_refuse(policy, heard):
    breaker = AsyncBreaker()
    breaker.told.append("open")
    with pytest.raises(CircuitOpen):
        asyncio.run(policy.replace(breaker=breaker).call(Flavours.scripted("page")))
    assert told(heard) == [("Refused", "circuit")]


def test_guards_that_must_be_awaited_work_in_an_async_block_with_async_with(policy):
    budget, breaker = AsyncBudget(), AsyncBreaker()

    async def main():
        async for attempt in retrying(policy, budget=budget, breaker=breaker):
            async with attempt:
                if attempt.number == 1:
                    raise SLOW
        return attempt.number

    assert asyncio.run(main()) == 2
    assert budget.outcomes == ["failure", ("success", 1.0)]

    async def plain():
        async for attempt in retrying(policy, budget=budget):
            with attempt:
                raise AssertionError

    with pytest.raises(
        TypeError, match="the budget of this policy must be awaited: write 'async with attempt:'"
    ):
        asyncio.run(plain())


def test_guards_that_must_be_awaited_are_refused_in_sync_calls(policy):
    guarded = policy.replace(budget=AsyncBudget())
    with pytest.raises(TypeError, match="is sync, and the budget of its policy must be awaited"):
        guarded(lambda: "page")
    with pytest.raises(TypeError, match="the budget of this policy must be awaited: use 'async for'"):
        for _ in retrying(guarded):
            raise AssertionError


def test_a_cancelled_call_does_not_wait_for_a_guard():
    breaker = AsyncBreaker()

    async def main():
        task = asyncio.ensure_future(Policy(breaker=breaker).call(asyncio.sleep, 60))
        for _ in range(4):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert breaker.told == []


# Guards that misbehave


class BrokenBudget(Budget):
    def acquire(self, *, timeout=False, priority=0):
        raise OSError("store")

    def success(self, cost=0.0):
        raise OSError("store")

    def failure(self):
        raise OSError("store")


class BrokenBreaker(Breaker):
    def __init__(self):
        super().__init__("broken")

    def enter(self, listeners=()):
        raise OSError("store")

    success = failure = release = enter

    def refuses(self):
        return False


class AsyncBrokenBudget(BrokenBudget):
    is_async = True

    async def acquire(self, *, timeout=False, priority=0):
        raise OSError("store")

    async def success(self, cost=0.0):
        raise OSError("store")

    async def failure(self):
        raise OSError("store")


def test_a_guard_that_raises_hides_neither_a_result_nor_an_error(flavour, policy):
    for guards in ({"budget": BrokenBudget()}, {"breaker": BrokenBreaker()}):
        assert flavour.call(policy.replace(**guards), flavour.scripted("page")) == "page"
        with pytest.raises(KeyError):
            flavour.call(policy.replace(**guards), flavour.scripted(KeyError("k")))
    assert flavour.call(policy.replace(breaker=BrokenBreaker()), flavour.scripted(SLOW, "page")) == "page"


def test_a_budget_that_raises_when_it_is_asked_ends_the_call_with_its_own_error(flavour, policy):
    error = TimeoutError("own")
    with pytest.raises(TimeoutError) as caught:
        flavour.call(policy.replace(budget=BrokenBudget()), flavour.scripted(error))
    assert caught.value is error
    assert "OSError: store" in error.__notes__[0]


def test_an_async_guard_that_raises_hides_neither_a_result_nor_an_error(policy):
    guarded = policy.replace(budget=AsyncBrokenBudget())
    assert asyncio.run(guarded.call(Flavours.scripted("page"))) == "page"
    error = TimeoutError("own")
    with pytest.raises(TimeoutError) as caught:
        asyncio.run(guarded.call(Flavours.scripted(error)))
    assert caught.value is error
    assert "OSError: store" in error.__notes__[0]


# The policy as a value


@pytest.mark.parametrize("field", ["budget", "breaker", "throttle", "bulkhead"])
@pytest.mark.parametrize("value", [3, "full", object(), TokenBudget, CircuitBreaker], ids=repr)
def test_what_is_no_guard_is_refused_naming_field_and_value(field, value):
    with pytest.raises(TypeError, match=f"{field} must be a "):
        Policy(**{field: value})


@pytest.mark.parametrize(
    "guards",
    [
        {"budget": TokenBudget()},
        {"breaker": CircuitBreaker()},
        {"throttle": AdaptiveThrottle()},
        {"bulkhead": Bulkhead(1)},
    ],
    ids=lambda guards: next(iter(guards)),
)
def test_a_policy_with_a_guard_of_this_process_refuses_to_pickle_and_names_it(guards):
    import copy
    import pickle

    (field,) = guards
    policy = Policy(**guards)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(TypeError, match=f"a policy whose {field} is of this process cannot be pickled"):
            pickle.dumps(policy, protocol)
    assert copy.copy(policy) == policy == copy.deepcopy(policy)
    assert copy.deepcopy(policy).__getattribute__(field) is guards[field]
    assert policy != Policy()
    assert policy == Policy(**guards)


@pytest.mark.parametrize("value", [2.5, "low", None, True])
def test_a_priority_is_a_whole_number(value):
    with pytest.raises((TypeError, ValueError), match="priority must be a whole number"):
        Policy(priority=value)


def test_a_policy_says_what_its_guards_do():
    words = Policy(
        budget=TokenBudget(name="purse"),
        breaker=CircuitBreaker(name="payments"),
        throttle=AdaptiveThrottle(name="pace"),
        bulkhead=Bulkhead(7, name="hall"),
        fallback=None,
    ).describe()
    for part in (
        "Retries only while purse has something left.",
        "Calls only while the circuit of payments is not open, and ends when it opens.",
        "Sends no faster than pace allows.",
        "Runs at most 7 calls at once in hall.",
        "Gives a fallback where it would give up on what may be retried.",
    ):
        assert part in words.splitlines()


# Nothing is left behind


class Argument:
    """Something whose end can be watched."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "fields",
    [
        {"fallback": "old page"},
        {"fallback": lambda error: "old page"},
        {"breaker": "opens", "fallback": "old page"},
        {"deadline": 1.5, "fallback": lambda error: str(error)},
        {"deadline": 1.5},
        {"breaker": "opens"},
        {"breaker": "open"},
        {"bulkhead": "full"},
    ],
    ids=str,
)
def test_nothing_of_a_guarded_call_outlives_it(flavour, policy, clock, fields):
    opens, opened = CircuitBreaker(failures=2, clock=clock), CircuitBreaker(clock=clock)
    opened.open()
    full = Bulkhead(1)
    full.acquire()
    guards = {"opens": opens, "open": opened, "full": full}
    guarded = policy.replace(**{field: guards.get(str(value), value) for field, value in fields.items()})

    def fail(argument):
        raise TimeoutError("slow")

    gc.collect()
    gc.disable()
    try:
        argument = Argument()
        watch = weakref.ref(argument)
        decorated = guarded.replace(attempts=2)(flavour.function(fail))
        if flavour.is_async:

            async def main(argument):
                # Caught in the task: asyncio's own frames hold what comes out of one.
                with contextlib.suppress(Exception):
                    await decorated(argument)

            asyncio.run(main(argument))
        else:
            with contextlib.suppress(Exception):
                decorated(argument)
        del argument
        assert watch() is None
    finally:
        gc.enable()


def test_rules_and_guards_work_together(flavour, policy, clock):
    budget = TokenBudget(capacity=100)
    guarded = policy.replace(budget=budget, rules={Cause.timeout: Rule(attempts=2, base=0.5)})
    with pytest.raises(TimeoutError):
        flavour.call(guarded, flavour.scripted(SLOW, SLOW))
    assert budget.tokens == 90.0
    assert clock.waits == [0.5]


def test_no_waits_moves_the_clock_of_a_guard_too():
    breaker = CircuitBreaker(failures=1, open_for=0.5)
    with no_waits():
        breaker.failure()
        assert breaker.state == "open"
        with pytest.raises(TimeoutError):
            Policy(backoff=fixed, base=1.0, attempts=2).call(lambda: (_ for _ in ()).throw(TimeoutError()))
        assert breaker.state == "half-open"


class Flavours:
    """Scripts for async tests that need no fixture."""

    @staticmethod
    def scripted(*outcomes):
        from redouble.testing import scripted

        return scripted(*outcomes, asynchronous=True)


def test_a_clock_of_tests_is_heard_by_guards(clock):
    assert isinstance(clock, FakeClock)
    breaker = CircuitBreaker(failures=1, open_for=5.0, clock=clock)
    breaker.failure()
    clock.advance(5.0)
    assert breaker.state == "half-open"


# What broke once


def half_open(clock, **settings):
    breaker = CircuitBreaker(failures=1, open_for=10.0, clock=clock, **settings)
    breaker.failure()
    clock.advance(10.0)
    return breaker


@pytest.mark.parametrize("library", ["asyncio", "trio"])
def test_an_async_block_that_is_cancelled_in_its_wait_gives_its_place_back_at_once(library):
    bulkhead = Bulkhead(1)
    policy = Policy(bulkhead=bulkhead, base=5.0, backoff=fixed, on=ValueError)

    async def work():
        async for attempt in retrying(policy):
            async with attempt:
                raise ValueError

    async def on_asyncio():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await work()
        return bulkhead.under_way

    async def on_trio():
        with trio.move_on_after(0.01):
            await work()
        return bulkhead.under_way

    if library == "asyncio":
        assert asyncio.run(on_asyncio()) == 0
    else:
        trio = pytest.importorskip("trio")
        assert trio.run(on_trio) == 0


def test_an_async_block_that_is_barred_gives_everything_back_while_its_error_lives(policy, clock):
    breaker, bulkhead = CircuitBreaker(clock=clock), Bulkhead(1)
    guarded = policy.replace(breaker=breaker, bulkhead=bulkhead, sleep=lambda seconds: breaker.open())

    async def main():
        with pytest.raises(TimeoutError) as caught:
            async for attempt in retrying(guarded):
                async with attempt:
                    raise SLOW
        assert bulkhead.under_way == 0
        return caught.value

    assert asyncio.run(main()) is SLOW


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


def test_no_attempt_starts_after_a_throttle_that_kept_it_past_the_deadline(flavour, policy, clock):
    function = flavour.scripted("page")
    throttle = Turnstile(1.0, 0.5)
    late = policy.replace(throttle=throttle, deadline=3.0, sleep=lambda seconds: clock.advance(seconds + 5))
    with pytest.raises(DeadlineExceeded, match="before its first attempt: the deadline of 3 s has passed"):
        flavour.call(late, function)
    assert (function.calls, throttle.waits) == ([], [0.5])


def test_a_turn_that_does_not_fit_is_said_to_be_too_late_and_not_to_have_passed(policy):
    with pytest.raises(DeadlineExceeded, match=r"before its first attempt: .* would pass during the wait"):
        policy.replace(throttle=Turnstile(9.0), deadline=3.0).call(lambda: "page")


def test_an_open_circuit_is_noticed_before_the_throttle_and_the_queue(flavour, policy, clock):
    breaker, throttle, bulkhead = CircuitBreaker(clock=clock), Turnstile(2.0), Bulkhead(1, queue=9)
    breaker.open()
    assert bulkhead.acquire()
    with pytest.raises(CircuitOpen):
        flavour.call(
            policy.replace(breaker=breaker, throttle=throttle, bulkhead=bulkhead), flavour.scripted("page")
        )
    assert clock.waits == []
    assert throttle.waits == [2.0]


def test_the_context_of_the_own_error_stays_what_it_was(flavour, policy, clock):
    class Inner(Exception):
        pass

    def fail():
        try:
            raise Inner
        except Inner:
            raise TimeoutError("slow")  # noqa: B904

    def broken(error):
        raise LookupError

    breaker = CircuitBreaker(clock=clock)
    ways = {
        "barred": policy.replace(breaker=breaker, sleep=lambda seconds: breaker.open()),
        "fallback": policy.replace(fallback=broken, attempts=1),
        "recover": policy.replace(rules={TimeoutError: Rule(recover=broken)}),
        "attempts": policy.replace(attempts=1),
    }
    for guarded in ways.values():
        decorated = guarded(flavour.function(fail))

        def sync_main(decorated=decorated):
            try:
                raise KeyError
            except KeyError:
                with pytest.raises(TimeoutError) as caught:
                    decorated()
            return caught.value

        async def async_main(decorated=decorated):
            try:
                raise KeyError
            except KeyError:
                with pytest.raises(TimeoutError) as caught:
                    await decorated()
            return caught.value

        error = asyncio.run(async_main()) if flavour.is_async else sync_main()
        assert type(error.__context__) is Inner


def test_our_own_errors_have_the_context_in_which_they_are_raised(policy, clock):
    breaker = CircuitBreaker(clock=clock)
    breaker.open()
    try:
        raise KeyError
    except KeyError as outer:
        with pytest.raises(CircuitOpen) as caught:
            policy.replace(breaker=breaker).call(lambda: "page")
        assert caught.value.__context__ is outer


def test_a_generator_cannot_have_a_place_in_a_bulkhead_that_it_would_leave_too_early(policy):
    with pytest.raises(TypeError, match="a generator, which is still under way when its first item is out"):

        @policy.replace(bulkhead=Bulkhead(1))
        def items():
            yield 1


class Odd:
    """Like an array: comparing it gives something that has no truth."""

    def __eq__(self, other):
        return self

    def __bool__(self):
        raise ValueError("ambiguous")

    __hash__ = None


def test_policies_with_a_fallback_that_cannot_be_compared_compare_by_its_identity():
    odd, nan = Odd(), float("nan")
    for value in (odd, nan):
        assert Policy(fallback=value) == Policy(fallback=value)
        assert Policy(fallback=value) != Policy()
    assert Policy(fallback=odd) != Policy(fallback=Odd())
    assert Policy(fallback=odd).replace(fallback=UNSET) == Policy()


class Moody(TokenBudget):
    @property
    def full(self):
        raise OSError("store")

    @full.setter
    def full(self, value):
        pass


@pytest.mark.parametrize(
    "fields", [{}, {"deadline": 9.0}, {"until": bool}, {"bulkhead": Bulkhead(1)}], ids=str
)
def test_a_guard_that_raises_when_it_is_looked_at_hides_no_result(flavour, policy, fields):
    assert flavour.call(policy.replace(budget=Moody(), **fields), flavour.scripted("page")) == "page"


def test_a_throttle_whose_clock_raises_lets_the_attempt_go(flavour, policy):
    def clock():
        raise OSError("clock")

    throttle = AdaptiveThrottle(clock=clock)
    assert flavour.call(policy.replace(throttle=throttle), flavour.scripted(SLOW, "page")) == "page"


def test_a_broken_budget_does_not_take_the_fallback_away(flavour, policy):
    assert (
        flavour.call(policy.replace(budget=BrokenBudget(), fallback="old"), flavour.scripted(SLOW)) == "old"
    )


class Refusing(BrokenBreaker):
    def refuses(self):
        raise OSError("store")


def test_a_breaker_that_cannot_say_whether_it_refuses_is_taken_not_to(flavour, policy):
    assert flavour.call(policy.replace(breaker=Refusing()), flavour.scripted(SLOW, "page")) == "page"


class Empty(TokenBudget):
    def __len__(self):
        return 0


def test_a_budget_that_is_false_is_one_all_the_same(flavour, policy):
    budget = Empty(capacity=10)
    budget.acquire()
    for _ in range(3):
        flavour.call(policy.replace(budget=budget), flavour.scripted("page"))
    assert budget.tokens == 8.0


def test_errors_of_ours_out_of_a_scope_are_not_taken_for_its_body(policy, clock):
    breaker = CircuitBreaker(clock=clock)
    breaker.open()
    with pytest.raises(CircuitOpen) as caught:
        with retrying(policy, breaker=breaker, on=Exception) as call:
            call(lambda: "page")
    assert not hasattr(caught.value, "__notes__")


def test_the_story_tells_why_also_where_the_fallback_has_failed(flavour, policy, clock):
    def broken(error):
        raise LookupError("cache")

    error = TimeoutError("slow")
    with pytest.raises(TimeoutError):
        flavour.call(policy.replace(fallback=broken, attempts=1), flavour.scripted(error))
    assert "after 1 attempt: no attempts left; fallback raised LookupError: cache" in error.__notes__[0]
    breaker = CircuitBreaker(clock=clock, name="payments")
    breaker.open()
    with pytest.raises(CircuitOpen) as caught:
        flavour.call(policy.replace(fallback=broken, breaker=breaker), flavour.scripted("page"))
    assert "fetch before its first attempt: fallback raised LookupError: cache" in caught.value.__notes__[0]


def test_the_story_counts_what_a_throttle_added_to_a_wait(flavour, policy):
    error = TimeoutError("slow")
    with pytest.raises(TimeoutError):
        flavour.call(policy.replace(throttle=Turnstile(0.0, 0.5), attempts=2), flavour.scripted(SLOW, error))
    assert "attempt 1: TimeoutError: slow; waited 1.50 s" in error.__notes__[0]


def test_a_throttle_is_asked_again_after_five_seconds_at_the_latest(policy, clock):
    policy.replace(throttle=Turnstile(100.0, 0.0)).call(lambda: "page")
    assert clock.waits == [5.0]


async def slow_page():
    return "page"


def test_a_plain_function_whose_coroutine_finds_no_place_gives_its_probe_back(policy, clock):
    breaker, bulkhead = half_open(clock), Bulkhead(1)

    async def main():
        coroutine = policy.replace(breaker=breaker, bulkhead=bulkhead)(lambda: slow_page())()
        assert bulkhead.acquire()
        with pytest.raises(BulkheadFull):
            await coroutine
        assert not breaker.refuses()

    asyncio.run(main())


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


def test_a_coroutine_that_finds_no_place_at_a_later_attempt_ends_with_one_event_and_the_story(policy, heard):
    bulkhead = Bulkhead(1)
    calls = []

    def fetch():
        calls.append(1)
        if len(calls) == 1:
            raise SLOW
        return slow_page()

    async def main():
        coroutine = policy.replace(bulkhead=bulkhead)(fetch)()
        assert bulkhead.acquire()
        with pytest.raises(BulkheadFull) as caught:
            await coroutine
        return caught.value

    error = asyncio.run(main())
    assert "attempt 1: TimeoutError: slow" in error.__notes__[0]
    assert told(heard) == [("Retrying", None), ("GaveUp", "bulkhead")]


def test_the_deadline_of_a_plain_function_counts_from_its_call_and_not_from_the_await(policy, clock):
    async def fail():
        raise SLOW

    async def main():
        for fields in ({}, {"budget": TokenBudget()}):
            coroutine = policy.replace(deadline=5.0, **fields)(lambda: fail())()
            clock.advance(4.5)
            with pytest.raises(DeadlineExceeded):
                await coroutine

    asyncio.run(main())
    assert clock.waits == []


def test_a_fallback_is_not_promised_where_retries_are_switched_off():
    assert "fallback" not in Policy(fallback=None, enabled=False).describe()
    assert "without server hints and guards" in Policy(bulkhead=Bulkhead(1)).describe()


def test_a_priority_in_the_environment_names_its_field_when_it_is_wrong():
    assert Policy.from_env("X", {"X_PRIORITY": "-3"}).priority == -3
    for wrong in ("-none", "none", "low", "-"):
        with pytest.raises(ValueError, match="priority must be a whole number"):
            Policy.from_env("X", {"X_PRIORITY": wrong})


WATCHED = [{"deadline": 60.0}, {"until": bool}, {"idempotency_key": True}]


@pytest.mark.parametrize("fields", WATCHED, ids=str)
def test_guards_that_look_on_see_every_outcome_whatever_else_a_policy_asks_for(
    flavour, policy, clock, fields
):
    budget, breaker = TokenBudget(capacity=100), CircuitBreaker(failures=3, clock=clock)
    guarded = policy.replace(budget=budget, breaker=breaker, attempts=2, **fields)
    assert flavour.call(guarded, flavour.scripted("page")) == "page"
    assert (budget.tokens, breaker.clean) == (100, True)
    assert flavour.call(guarded, flavour.scripted(SLOW, "page")) == "page"
    with pytest.raises(KeyError):
        flavour.call(guarded, flavour.scripted(KeyError("k")))
    assert breaker.counted == (1, 1)
    assert flavour.call(guarded, flavour.scripted("page")) == "page"
    assert (budget.tokens, breaker.clean) == (100, True)
    with pytest.raises(TimeoutError):
        flavour.call(guarded, flavour.scripted(SLOW, SLOW))
    with pytest.raises(TimeoutError):
        flavour.call(guarded, flavour.scripted(SLOW))
    with pytest.raises(CircuitOpen):
        flavour.call(guarded, flavour.scripted("page"))
    if "until" in fields:
        breaker.close()
        with retries_disabled():
            assert flavour.call(guarded, flavour.scripted(0)) == 0


def test_a_counting_budget_counts_whatever_else_a_policy_asks_for(flavour, policy, clock):
    budget = RatioBudget(0.5, floor_per_second=0, clock=clock)
    rate = CircuitBreaker(failure_rate=0.5, minimum_calls=50, clock=clock)
    for fields in ({}, *WATCHED):
        flavour.call(policy.replace(budget=budget, breaker=rate, **fields), flavour.scripted("page"))
    assert budget.tokens == 2.0
    assert rate.counted == (4, 0)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_an_async_block_with_a_deadline_and_guards_ends_alike_with_both_kinds_of_with(virtual, asynchronous):
    async def main():
        ends = []
        for attempts in (1, 2):
            bulkhead = Bulkhead(1)
            policy = Policy(attempts=attempts, timeout=1.0, clock=loop_time, bulkhead=bulkhead, backoff=fixed)
            try:
                async for attempt in retrying(policy):
                    if asynchronous:
                        async with attempt:
                            await asyncio.sleep(60 if attempt.number == 1 else 0)
                    else:
                        with attempt:
                            await asyncio.sleep(60 if attempt.number == 1 else 0)
                ends.append(attempt.number)
            except TimeoutError as error:
                ends.append(str(error))
            assert bulkhead.under_way == 0
        return ends

    assert virtual(main) == ["attempt 1 took longer than its timeout of 1 s", 2]


def test_an_async_block_cannot_have_a_fallback_either(policy):
    async def main():
        async for _ in retrying(policy, fallback="old page"):
            raise AssertionError

    with pytest.raises(TypeError, match="a block has no result that a fallback could stand in for"):
        asyncio.run(main())


# In the nick of time


def test_a_call_without_any_time_left_is_over_before_a_guard_is_asked(flavour, policy, clock):
    shut, closed = CircuitBreaker(clock=clock), CircuitBreaker(clock=clock)
    shut.open()
    for breaker in (shut, closed):
        function = flavour.scripted("page")
        with retrying(deadline=1.0, clock=clock), pytest.raises(DeadlineExceeded):
            clock.advance(2.0)
            flavour.call(policy.replace(breaker=breaker, deadline=5.0), function)
        assert function.calls == []


class SlowQueue(Bulkhead):
    """A bulkhead in whose queue time goes by; it notes how long it may take."""

    def __init__(self, clock, **settings):
        super().__init__(1, **settings)
        self.clock, self.limits = clock, []

    def acquire(self, timeout=None):
        self.clock.advance(9.0)
        self.limits.append(timeout)
        return super().acquire(timeout)

    async def acquire_async(self, timeout=None):
        return self.acquire(timeout)


def test_who_comes_out_of_the_queue_too_late_takes_no_turn(flavour, policy, clock):
    bulkhead, throttle, function = SlowQueue(clock), Turnstile(0.25), flavour.scripted("page")
    with pytest.raises(DeadlineExceeded):
        flavour.call(policy.replace(bulkhead=bulkhead, throttle=throttle, deadline=5.0), function)
    assert (function.calls, throttle.waits, bulkhead.under_way) == ([], [0.25], 0)
    assert bulkhead.limits == [5.0]


def test_a_sync_call_waits_no_time_at_all_where_it_would_block_an_event_loop(policy, clock):
    bulkhead = SlowQueue(clock, queue=5)

    async def main():
        return policy.replace(bulkhead=bulkhead).call(lambda: "page")

    assert asyncio.run(main()) == "page"
    assert bulkhead.limits == [0.0]


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


# Code of the users that raises


class Calm(Breaker):
    """A breaker of the user's own that wants to be asked and told."""

    is_async = False

    def enter(self, listeners=()):
        return 7

    def success(self, ticket=None, listeners=()):
        pass

    def refuses(self):
        return False

    failure = release = success


class Generous(Budget):
    """A budget of the user's own that grants everything."""

    def acquire(self, *, timeout=False, priority=0):
        return 1.0


class Box:
    """Dead letters of the user's own."""

    def put(self, **letter):
        pass

    async def aput(self, **letter):
        self.put(**letter)


def broken(thing, method, trouble):
    """The thing, with one method that raises."""

    def raises(*args, **kwargs):
        raise trouble

    async def raises_later(*args, **kwargs):
        raise trouble

    setattr(thing, method, raises_later if getattr(thing, "is_async", False) else raises)
    return thing


def raising(trouble):
    return broken(Box(), "put", trouble).put


USERS = {
    "fallback": (lambda e: {"fallback": raising(e), "attempts": 1}, SLOW),
    "recover": (lambda e: {"rules": {TimeoutError: Rule(recover=raising(e))}}, SLOW),
    "letters": (lambda e: {"dead_letters": broken(Box(), "put", e), "attempts": 1}, SLOW),
    "entry": (lambda e: {"breaker": broken(Calm("calm"), "enter", e)}, "page"),
    "looking on": (lambda e: {"budget": broken(Generous(name="calm"), "success", e)}, "page"),
    "watching": (lambda e: {"budget": broken(Generous(name="calm"), "success", e), "until": bool}, "page"),
}


@pytest.mark.parametrize("whose", USERS)
def test_an_interrupt_in_code_of_the_users_passes_through(flavour, policy, whose):
    fields, outcome = USERS[whose]
    with pytest.raises(Interrupt):
        flavour.call(policy.replace(**fields(Interrupt())), flavour.scripted(outcome))


@pytest.mark.parametrize(
    ("whose", "said"),
    [
        ("entry", "guard calm failed (said once)"),
        ("looking on", "a guard of f failed (said once)"),
        ("watching", "a guard of f failed (said once)"),
    ],
)
def test_a_guard_that_fails_is_named_in_the_log_and_takes_no_part(flavour, policy, caplog, whose, said):
    def f():
        return "page"

    fields, trouble = USERS[whose][0], OSError("store")
    f.__qualname__ = "f"
    assert flavour.call(policy.replace(**fields(trouble)), flavour.function(f)) == "page"
    assert [record.getMessage() for record in caplog.records] == [said]
    assert caplog.records[0].exc_text.endswith("OSError: store")


def test_a_call_without_dead_letters_says_nothing_of_them(flavour, policy, caplog):
    for fields in ({"attempts": 1}, {"deadline": 1.0}, {"attempts": 1, "fallback": "old"}):
        with contextlib.suppress(TimeoutError):
            flavour.call(policy.replace(**fields), flavour.scripted(SLOW))
    assert "dead letter" not in caplog.text


def test_a_dead_letter_that_could_not_be_stored_is_not_tried_again_with_the_fallback(flavour, policy, caplog):
    box = broken(Box(), "put", OSError("disk"))
    kept = policy.replace(dead_letters=box, fallback="old", attempts=1)
    assert flavour.call(kept, flavour.scripted(TimeoutError())) == "old"
    said = "fetch was given up on, and its dead letter could not be stored: OSError: disk"
    assert [record.getMessage() for record in caplog.records].count(said) == 1


def test_a_block_has_no_result_to_show_to_a_throttle(flavour, policy):
    throttle = Turnstile()
    flavour.block(policy.replace(throttle=throttle), lambda attempt: "page")
    assert throttle.outcomes == ["NoneType"]


# Whichever way the first attempt goes

WAYS = {
    "bare": dict,
    "judged": lambda: {"until": bool},
    "guarded": lambda: {"budget": TokenBudget()},
    "guarded by a breaker": lambda: {"breaker": CircuitBreaker()},
    "watched": lambda: {"budget": TokenBudget(), "until": bool},
    "watched by a breaker": lambda: {"breaker": CircuitBreaker(), "until": bool},
    "known": lambda: {"deadline": 99.0},
    "known and judged": lambda: {"deadline": 99.0, "until": bool},
    "full": lambda: {"bulkhead": Bulkhead(1)},
}


@pytest.mark.parametrize("way", WAYS)
def test_an_interrupt_is_no_failure_whichever_way_the_first_attempt_goes(flavour, policy, clock, way):
    function = flavour.scripted(Interrupt(), "page")
    with pytest.raises(Interrupt):
        flavour.call(policy.replace(on=lambda error: True, **WAYS[way]()), function)
    assert (len(function.calls), clock.waits) == (1, [])


@pytest.mark.parametrize("way", WAYS)
def test_a_first_attempt_is_visible_only_where_it_has_to_be(flavour, policy, way):
    seen = flavour.call(policy.replace(**WAYS[way]()), flavour.function(lambda: [current_attempt()]))
    assert (seen[0] is not None) == way.startswith("known")


@pytest.mark.parametrize("way", WAYS)
def test_a_call_that_goes_well_is_made_once_and_says_nothing(flavour, policy, caplog, way):
    function = flavour.scripted("page", "another")
    assert flavour.call(policy.replace(**WAYS[way]()), function) == "page"
    assert (len(function.calls), caplog.text) == (1, "")


@pytest.mark.parametrize("way", WAYS)
def test_a_coroutine_out_of_a_plain_function_that_goes_well_is_made_once(policy, caplog, way):
    calls = []

    async def fetch():
        return "page"

    def plain():
        calls.append(1)
        return fetch()

    async def main():
        return await policy.replace(**WAYS[way]())(plain)()

    assert asyncio.run(main()) == "page"
    assert (calls, caplog.text) == ([1], "")


class Told(Generous):
    """A budget that notes what it is told."""

    def __init__(self, full):
        super().__init__()
        self.full, self.told = full, []

    def success(self, cost=0.0):
        self.told.append(cost)


@pytest.mark.parametrize("fields", [{}, {"until": bool}, {"bulkhead": Bulkhead(1)}], ids=str)
def test_a_budget_that_is_full_need_not_be_told_of_a_success(flavour, policy, fields):
    for budget in (full := Told(full=True), lacking := Told(full=False)):
        flavour.call(policy.replace(budget=budget, **fields), flavour.scripted("page"))
    assert (full.told, lacking.told) == ([], [0.0])


class Awaited(Generous):
    is_async = True

    async def acquire(self, *, timeout=False, priority=0):
        return 1.0


@pytest.mark.parametrize("method", ["acquire", "failure", "success"])
def test_an_interrupt_in_a_guard_that_is_awaited_passes_through(policy, method):
    budget = broken(Awaited(), method, Interrupt())
    with pytest.raises(Interrupt):
        asyncio.run(policy.replace(budget=budget).call(Flavours.scripted(SLOW, "page")))


@pytest.mark.parametrize("method", ["failure", "success"])
def test_a_guard_that_fails_while_it_is_awaited_is_reported(policy, caplog, method):
    budget = broken(Awaited(), method, OSError("store"))
    assert asyncio.run(policy.replace(budget=budget).call(Flavours.scripted(SLOW, "page"))) == "page"
    said = [record.getMessage() for record in caplog.records if record.exc_text]
    assert said == ["a guard of fetch failed (said once)"]


# A retry that was paid for and is not made


def opens_meanwhile(breaker, clock):
    def sleep(seconds):
        clock.advance(seconds)
        breaker.open()

    return sleep


@pytest.mark.parametrize(
    "budget", [TokenBudget(capacity=100), RatioBudget(ratio=0.0, floor_per_second=5)], ids=repr
)
def test_a_circuit_that_opens_during_the_wait_gives_the_price_of_the_retry_back(
    flavour, policy, clock, budget
):
    breaker, before = CircuitBreaker(clock=clock), budget.tokens
    guarded = policy.replace(breaker=breaker, budget=budget, sleep=opens_meanwhile(breaker, clock))
    with pytest.raises(TimeoutError):
        flavour.call(guarded, flavour.scripted(SLOW))
    assert budget.tokens == before


def test_a_deadline_that_passes_during_the_wait_gives_the_price_of_the_retry_back(flavour, policy, clock):
    budget = TokenBudget(capacity=100)
    late = policy.replace(budget=budget, deadline=5.0, sleep=lambda seconds: clock.advance(10.0))
    with pytest.raises(DeadlineExceeded):
        flavour.call(late, flavour.scripted(SLOW))
    assert budget.tokens == 100


def test_a_recover_that_fails_gives_the_price_of_the_retry_back(flavour, policy):
    def recover(error):
        raise ValueError("no token")

    budget = TokenBudget(capacity=100)
    with pytest.raises(TimeoutError):
        flavour.call(
            policy.replace(budget=budget, rules={TimeoutError: Rule(recover=recover)}), flavour.scripted(SLOW)
        )
    assert budget.tokens == 100


def test_an_interrupted_wait_gives_the_price_of_the_retry_back(flavour, policy):
    def sleep(seconds):
        raise KeyboardInterrupt

    budget = TokenBudget(capacity=100)
    with pytest.raises(KeyboardInterrupt):
        flavour.call(policy.replace(budget=budget, sleep=sleep), flavour.scripted(SLOW))
    assert budget.tokens == 100


def test_a_retry_that_was_made_is_paid_for(flavour, policy):
    budget = TokenBudget(capacity=100)
    with pytest.raises(TimeoutError):
        flavour.call(policy.replace(budget=budget, attempts=2), flavour.scripted(SLOW, SLOW))
    assert budget.tokens == 90


def test_a_budget_that_cannot_take_a_price_back_does_not_break_the_call(flavour, policy, clock, caplog):
    class Stubborn(TokenBudget):
        def give_back(self, cost):
            raise RuntimeError("no refunds")

    breaker = CircuitBreaker(clock=clock)
    guarded = policy.replace(breaker=breaker, budget=Stubborn(), sleep=opens_meanwhile(breaker, clock))
    with pytest.raises(TimeoutError):
        flavour.call(guarded, flavour.scripted(SLOW))
    assert "no refunds" in caplog.text


# A breaker of the user's own


class Torn(Breaker):
    """Cannot say whether it is closed."""

    def __init__(self):
        super().__init__("torn")
        self.entered = 0

    @property
    def ticket(self):
        raise RuntimeError("no ticket today")

    def enter(self, listeners=()):
        self.entered += 1
        return 1

    def success(self, ticket=None, listeners=()):
        pass

    def refuses(self):
        return False


@pytest.mark.parametrize("fields", [{}, {"deadline": 60.0}], ids=str)
def test_a_ticket_property_that_raises_does_not_break_the_call(flavour, policy, fields, caplog):
    breaker = Torn()
    call = policy.replace(breaker=breaker, **fields)
    assert flavour.call(call, flavour.scripted("page")) == "page"
    assert breaker.entered == 1  # so it was asked
    assert "no ticket today" in caplog.text


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
    line = f"Retries only while purse has something left: {load} when everything fails."
    assert line in Policy(**fields).describe().splitlines()
