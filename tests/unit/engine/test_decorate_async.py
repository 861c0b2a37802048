"""Async functions under `@retry`, and plain functions that return coroutines."""

from __future__ import annotations

import asyncio
import functools
import inspect
import sys
from unittest import mock

import pytest

from redouble import BulkheadFull, Policy, ResultRejected, Rule, current_attempt, retry, retrying
from redouble._base import log_once
from redouble._engine import flow as _flow
from redouble.backoff import exponential, fixed
from redouble.budget import TokenBudget
from redouble.bulkhead import Bulkhead
from redouble.testing import scripted
from support.decorated import Failing, await_all


@pytest.fixture
def quick(clock):
    """Three attempts, with waits of 1 and 2 seconds that take none."""
    return Policy(attempts=3, backoff=exponential, clock=clock, sleep=clock.sleep)


@pytest.fixture
def nothing_said_yet():
    """What is said once in a process may be said in this test, and again in the next."""
    _flow._warned.clear()
    log_once._warned.clear()
    yield
    _flow._warned.clear()
    log_once._warned.clear()


def is_coroutine_function(function):
    """By the word of the standard library of this version: inspect learned to read marks in 3.12."""
    if sys.version_info >= (3, 12):
        return inspect.iscoroutinefunction(function)
    return asyncio.iscoroutinefunction(function)


# Async


def async_kinds():
    async def fetch():
        return "page"

    class Fetch:
        async def __call__(self): ...

        async def method(self): ...

    wrapped = functools.wraps(fetch)(lambda: fetch())
    return {
        "function": fetch,
        "bound method": Fetch().method,
        "callable object": Fetch(),
        "partial": functools.partial(fetch),
        "partial of a callable object": functools.partial(Fetch()),
        "partial of a bound method": functools.partial(Fetch().method),
        "wraps around it": wrapped,
        "wraps around a wraps around it": functools.wraps(wrapped)(lambda: wrapped()),
        "partial of a wraps around it": functools.partial(wrapped),
        "AsyncMock": mock.AsyncMock(),
        "retried already": retry(fetch),
    }


@pytest.mark.parametrize("kind", async_kinds())
def test_what_is_async_stays_async_to_those_who_ask(kind):
    assert is_coroutine_function(retry(async_kinds()[kind]))
    assert is_coroutine_function(retry(deadline=5.0)(async_kinds()[kind]))


def test_methods_that_are_async_are_seen_as_such():
    class Things:
        @retry
        async def method(self): ...

        @retry
        @classmethod
        async def make(cls): ...

        @retry
        @staticmethod
        async def sum(): ...

    for method in (Things.method, Things().method, Things.make, Things.sum):
        assert inspect.iscoroutinefunction(method)


def test_a_sync_function_is_not_taken_for_an_async_one():
    assert not is_coroutine_function(retry(lambda: None))
    assert not is_coroutine_function(retry(mock.MagicMock()))
    assert not is_coroutine_function(retry(functools.wraps(len)(lambda a: a)))


def test_a_mark_of_the_standard_library_makes_a_function_async():
    async def fetch():
        return "page"

    def stands_in():
        return fetch()

    if sys.version_info >= (3, 12):
        decorated = retry(inspect.markcoroutinefunction(stands_in))
        assert inspect.iscoroutinefunction(decorated)
    else:
        stands_in._is_coroutine = asyncio.coroutines._is_coroutine
        decorated = retry(stands_in)
        assert asyncio.iscoroutinefunction(decorated)
    assert await_all(decorated()) == "page"


def test_a_callable_object_with_a_mark_is_async():
    async def fetch():
        return "page"

    class Compiled:
        def __call__(self):
            return fetch()

    compiled = Compiled()
    if sys.version_info >= (3, 12):
        inspect.markcoroutinefunction(compiled)
        assert inspect.iscoroutinefunction(retry(compiled))
    assert await_all(retry(compiled)()) == "page"


def wrapped_around_async(*outcomes):
    """A plain function around an async one, as other decorators make them; it may itself raise."""
    before = scripted(*outcomes)

    async def fetch():
        return "page"

    @functools.wraps(fetch)
    def stands_in():
        before()
        return fetch()

    stands_in.before = before
    return stands_in


def test_wraps_around_async_gives_a_coroutine_before_anything_runs(quick, clock):
    stands_in = wrapped_around_async(TimeoutError("no pool"), None)

    async def main():
        # What says that it is a coroutine function neither raises nor waits when it is only called.
        coroutine = quick(stands_in)()
        assert inspect.iscoroutine(coroutine)
        assert clock.waits == []
        return await coroutine

    assert asyncio.run(main()) == "page"
    assert clock.waits == [1.0]
    assert len(stands_in.before.calls) == 2


def test_wraps_around_async_waits_without_blocking_the_event_loop(nothing_said_yet):
    stands_in = wrapped_around_async(TimeoutError("no pool"), None)

    async def main():
        return await retry(base=0.0)(stands_in)()

    assert asyncio.run(main()) == "page"
    # Warnings are errors in these tests, so that a sync wait in the loop would be logged, and remembered:
    assert _flow._warned == set()


def test_wraps_around_async_may_have_an_async_sleep_and_an_async_recover():
    waits, recovered = [], []

    async def sleep(seconds):
        waits.append(seconds)

    async def recover(error):
        recovered.append(str(error))

    policy = Policy(backoff=fixed, sleep=sleep, rules={TimeoutError: Rule(recover=recover)})
    assert await_all(policy(wrapped_around_async(TimeoutError("no pool"), None))()) == "page"
    assert waits == [1.0]
    assert recovered == ["no pool"]


def test_a_chain_of_wraps_that_leads_in_a_circle_ends():
    def fetch():
        return "page"

    fetch.__wrapped__ = fetch
    assert retry(fetch)() == "page"


# Plain functions that give coroutines


def test_a_coroutine_from_a_plain_function_is_driven_not_handed_back(quick, clock):
    failing = Failing()

    async def fetch(a):
        await asyncio.sleep(0)
        return failing(a)

    assert await_all(quick(lambda a: fetch(a))(1)) == (1,)
    assert clock.waits == [1.0, 2.0]


@pytest.mark.parametrize("fields", [{}, {"deadline": 60.0}, {"until": bool}], ids=str)
def test_a_coroutine_that_comes_only_at_a_later_attempt_is_driven_too(fields, quick, clock):
    sync, inner = scripted(TimeoutError("no pool"), None, None), scripted(TimeoutError("slow"), "page")

    async def fetch():
        return inner()

    def connect():
        sync()
        return fetch()

    assert await_all(quick.replace(**fields)(connect)()) == "page"
    assert clock.waits == [1.0, 2.0]
    assert (len(sync.calls), len(inner.calls)) == (3, 2)


def test_a_coroutine_that_comes_late_gives_up_with_the_whole_story(quick):
    outcomes = iter([TimeoutError("no pool")])

    async def fetch():
        raise TimeoutError("slow")

    def connect():
        for outcome in outcomes:
            raise outcome
        return fetch()

    with pytest.raises(TimeoutError, match="slow") as caught:
        await_all(quick(connect)())
    (note,) = caught.value.__notes__
    assert "after 3 attempts" in note
    assert "attempt 1: TimeoutError: no pool" in note
    assert "attempt 3: TimeoutError: slow" in note


def test_a_plain_function_may_give_a_coroutine_first_and_raise_or_return_later(quick):
    async def fetch():
        raise TimeoutError("slow")

    outcomes = iter([fetch, TimeoutError, "page"])

    def mixed():
        outcome = next(outcomes)
        if outcome is TimeoutError:
            raise TimeoutError("no pool")
        return outcome() if callable(outcome) else outcome

    assert await_all(quick(mixed)()) == "page"


def test_the_result_of_a_driven_coroutine_is_judged_by_until(quick, clock):
    pages = iter(["", "", "page"])

    async def fetch():
        return next(pages)

    assert await_all(quick.replace(until=bool)(lambda: fetch())()) == "page"
    assert clock.waits == [1.0, 2.0]


def test_a_driven_coroutine_that_until_never_accepts_is_a_rejected_result(quick):
    async def fetch():
        return ""

    with pytest.raises(ResultRejected) as caught:
        await_all(quick.replace(until=bool)(lambda: fetch())())
    assert caught.value.attempts == 3


def test_a_driven_coroutine_sees_its_attempt(quick):
    seen = []

    async def fetch():
        seen.append(current_attempt().number)
        raise TimeoutError("slow")

    with pytest.raises(TimeoutError):
        await_all(quick.replace(idempotency_key=True)(lambda: fetch())())
    assert seen == [1, 2, 3]


class Request:
    """Something to await that is no coroutine, as clients give it: aiohttp's ``session.get(url)``."""

    def __init__(self, outcome):
        self.outcome = outcome

    def __await__(self):
        yield from asyncio.sleep(0).__await__()
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome

    async def __aenter__(self):
        return await self


def requests(*outcomes):
    """A plain function that gives one after the other."""
    left = iter(outcomes)
    return lambda *args: Request(next(left))


def futures(*outcomes):
    left = iter(outcomes)

    def run_in_executor(*args):
        def work():
            outcome = next(left)
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        return asyncio.get_running_loop().run_in_executor(None, work)

    return run_in_executor


AWAITABLES = pytest.mark.parametrize("awaitables", [requests, futures])
NEEDS = [{}, {"deadline": 60.0}, {"until": bool}, {"budget": TokenBudget()}, {"bulkhead": Bulkhead(1)}]


@AWAITABLES
@pytest.mark.parametrize("fields", [*NEEDS, {"budget": TokenBudget(), "until": bool}])
def test_an_awaitable_from_a_plain_function_is_retried_when_it_is_awaited(quick, clock, awaitables, fields):
    async def main():
        get = awaitables(TimeoutError("slow"), "page")
        return await quick.replace(**fields)(get)("/")

    assert asyncio.run(main()) == "page"
    assert clock.waits == [1.0]


@AWAITABLES
def test_an_awaitable_called_through_a_policy_or_a_scope_is_retried(quick, clock, awaitables):
    async def main():
        first = await quick.call(awaitables(TimeoutError("slow"), "page"), "/")
        with retrying(quick.replace(deadline=60.0)) as call:
            return first, await call(awaitables(TimeoutError("slow"), "page"), "/")

    assert asyncio.run(main()) == ("page", "page")
    assert clock.waits == [1.0, 1.0]


def test_an_awaitable_that_comes_after_a_failure_is_awaited_too(quick):
    get = requests(TimeoutError("slow"), "page")
    fails = iter([True, False, False])

    def connect():
        if next(fails):
            raise ConnectionResetError("lost")
        return get()

    async def main():
        return await quick.replace(sleep=None, base=0.0)(connect)()

    with pytest.warns(RuntimeWarning, match="blocks all tasks"):
        assert asyncio.run(main()) == "page"


def test_the_result_of_an_awaitable_is_judged_by_until(quick, clock):
    async def main():
        return await quick.replace(until=bool)(requests("", "page"))()

    assert asyncio.run(main()) == "page"
    assert clock.waits == [1.0]


def test_a_function_that_claims_to_be_async_may_give_a_future(quick, clock):
    run = futures(TimeoutError("slow"), "page")

    async def fetch(): ...

    async def main():
        return await quick(functools.wraps(fetch)(lambda: run()))()

    assert asyncio.run(main()) == "page"
    assert clock.waits == [1.0]


def test_an_awaitable_that_gives_itself_is_not_closed(quick):
    class Pool:
        closed = False

        def __await__(self):
            yield from asyncio.sleep(0).__await__()
            return self

        def close(self):
            self.closed = True

    pool = Pool()

    async def main():
        return await quick(lambda: pool)()

    assert asyncio.run(main()) is pool
    assert not pool.closed


def test_an_awaitable_whose_call_is_refused_by_a_guard_does_not_run(quick):
    async def main():
        guarded = quick.replace(bulkhead=Bulkhead(1))
        started, coroutine = asyncio.get_running_loop().create_future(), asyncio.sleep(0)
        for unawaited in (started, coroutine, Request("page")):
            function = guarded(lambda unawaited=unawaited: unawaited)
            given = function()
            with guarded.bulkhead:
                with pytest.raises(BulkheadFull):
                    await given
        assert started.cancelled()

    asyncio.run(main())


def test_where_no_event_loop_runs_an_awaitable_is_a_result(quick):
    request = Request("page")
    assert quick(lambda: request)() is request


def test_a_handle_of_work_elsewhere_is_a_result(quick):
    handle = type("Future", (Request,), {"__module__": "distributed.client"})("page")

    async def main():
        return quick(lambda: handle)()

    assert asyncio.run(main()) is handle


class Answering(type):
    """Makes classes that have every attribute one may ask for."""

    def __getattr__(cls, name):
        return lambda *args: None


@pytest.mark.parametrize(
    "odd",
    [mock.Mock(), mock.MagicMock(), mock.AsyncMock(), Answering("Odd", (), {})(), Answering("Odd", (), {})],
)
def test_an_object_with_every_attribute_is_a_result(quick, odd):
    async def main():
        return quick(lambda: odd)()

    assert asyncio.run(main()) is odd


def test_a_function_may_give_results_of_many_types(quick):
    class Page: ...

    results = [None, "page", Page(), 1, Page(), {}, Request("page"), Page()]
    given = iter(results)
    function = quick(lambda: next(given))
    assert [function() for _ in results] == results


# What is refused, and what the message says
