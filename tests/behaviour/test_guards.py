"""Calls with several guards, and what they leave behind."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref

import pytest

from conftest import loop_time
from redouble import (
    Cause,
    CircuitOpen,
    DeadlineExceeded,
    Policy,
    Rule,
    current_attempt,
    retrying,
)
from redouble.backoff import fixed
from redouble.breaker import CircuitBreaker
from redouble.budget import TokenBudget
from redouble.bulkhead import Bulkhead
from redouble.testing import FakeClock, no_waits, retries_disabled
from redouble.throttle import AdaptiveThrottle
from support.guarded import SLOW, WATCHED, Flavours, Generous, Interrupt, SlowQueue, Turnstile, broken, told


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
    assert breaker._clean
    assert clock.waits == [0.25, 1.0, 2.0]
    assert told(heard)[-1] == ("Recovered", None)


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
        with pytest.raises(
            TypeError, match=f"cannot pickle a policy whose {field} exists only in this process"
        ):
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
        "Retries only while the budget purse is not spent.",
        "Calls only while the circuit of payments is not open, and ends when it opens.",
        "Sends no faster than pace allows.",
        "Runs at most 7 calls at once in hall.",
        "Returns a fallback instead of raising a retryable error.",
    ):
        assert part in words.splitlines()


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
                # Caught in the task: asyncio's own frames hold an error that one raises.
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


def test_a_clock_of_tests_is_heard_by_guards(clock):
    assert isinstance(clock, FakeClock)
    breaker = CircuitBreaker(failures=1, open_for=5.0, clock=clock)
    breaker.failure()
    clock.advance(5.0)
    assert breaker.state == "half-open"


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


def test_a_turn_that_does_not_fit_is_said_to_be_too_late_and_not_to_have_passed(policy):
    with pytest.raises(DeadlineExceeded, match=r"before its first attempt: .* would pass during the wait"):
        policy.replace(throttle=Turnstile(9.0), deadline=3.0).call(lambda: "page")


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
                with pytest.raises((TimeoutError, LookupError)) as caught:
                    decorated()
            return caught.value

        async def async_main(decorated=decorated):
            try:
                raise KeyError
            except KeyError:
                with pytest.raises((TimeoutError, LookupError)) as caught:
                    await decorated()
            return caught.value

        error = asyncio.run(async_main()) if flavour.is_async else sync_main()
        own = error if isinstance(error, TimeoutError) else error.__cause__  # a fallback translates
        assert type(own.__context__) is Inner


def test_our_own_errors_have_the_context_in_which_they_are_raised(policy, clock):
    breaker = CircuitBreaker(clock=clock)
    breaker.open()
    try:
        raise KeyError
    except KeyError as outer:
        with pytest.raises(CircuitOpen) as caught:
            policy.replace(breaker=breaker).call(lambda: "page")
        assert caught.value.__context__ is outer


class Moody(TokenBudget):
    @property
    def _full(self):
        raise OSError("store")

    @_full.setter
    def _full(self, value):
        pass


@pytest.mark.parametrize(
    "fields", [{}, {"deadline": 9.0}, {"until": bool}, {"bulkhead": Bulkhead(1)}], ids=str
)
def test_a_guard_that_raises_when_it_is_looked_at_hides_no_result(flavour, policy, fields):
    assert flavour.call(policy.replace(budget=Moody(), **fields), flavour.scripted("page")) == "page"


def test_errors_of_ours_out_of_a_scope_are_not_taken_for_its_body(policy, clock):
    breaker = CircuitBreaker(clock=clock)
    breaker.open()
    with pytest.raises(CircuitOpen) as caught:
        with retrying(policy, breaker=breaker, on=Exception) as call:
            call(lambda: "page")
    assert not hasattr(caught.value, "__notes__")


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


def test_a_priority_in_the_environment_names_its_field_when_it_is_wrong():
    assert Policy.from_env("X", {"X_PRIORITY": "-3"}).priority == -3
    for wrong in ("-none", "none", "low", "-"):
        with pytest.raises(ValueError, match="priority must be a whole number"):
            Policy.from_env("X", {"X_PRIORITY": wrong})


@pytest.mark.parametrize("fields", WATCHED, ids=str)
def test_guards_that_look_on_see_every_outcome_whatever_else_a_policy_asks_for(
    flavour, policy, clock, fields
):
    budget, breaker = TokenBudget(capacity=100), CircuitBreaker(failures=3, clock=clock)
    guarded = policy.replace(budget=budget, breaker=breaker, attempts=2, **fields)
    assert flavour.call(guarded, flavour.scripted("page")) == "page"
    assert (budget.tokens, breaker._clean) == (100, True)
    assert flavour.call(guarded, flavour.scripted(SLOW, "page")) == "page"
    with pytest.raises(KeyError):
        flavour.call(guarded, flavour.scripted(KeyError("k")))
    assert breaker.counted == (1, 1)
    assert flavour.call(guarded, flavour.scripted("page")) == "page"
    assert (budget.tokens, breaker._clean) == (100, True)
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


def test_a_call_without_any_time_left_is_over_before_a_guard_is_asked(flavour, policy, clock):
    shut, closed = CircuitBreaker(clock=clock), CircuitBreaker(clock=clock)
    shut.open()
    for breaker in (shut, closed):
        function = flavour.scripted("page")
        with retrying(deadline=1.0, clock=clock), pytest.raises(DeadlineExceeded):
            clock.advance(2.0)
            flavour.call(policy.replace(breaker=breaker, deadline=5.0), function)
        assert function.calls == []


def test_a_sync_call_waits_no_time_at_all_where_it_would_block_an_event_loop(policy, clock):
    bulkhead = SlowQueue(clock, queue=5)

    async def main():
        return policy.replace(bulkhead=bulkhead).call(lambda: "page")

    assert asyncio.run(main()) == "page"
    assert bulkhead.limits == [0.0]


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
    assert said == ["guard Awaited failed (said once)"]
