"""Generators, sync and async: retried until the first item is out, untouched afterwards."""

from __future__ import annotations

import asyncio
import sys

import pytest

from redouble import DeadlineExceeded, Policy, Rule, current_attempt, retry
from redouble.backoff import exponential, fixed
from redouble.testing import scripted
from support.streams import Streams


@pytest.fixture
def quick(clock):
    """Three attempts, with waits of 1 and 2 seconds that take none."""
    return Policy(attempts=3, backoff=exponential, clock=clock, sleep=clock.sleep)


@pytest.fixture(params=["sync", "async"])
def streams(request):
    with asyncio.Runner() as runner:
        yield Streams(request.param == "async", runner)


# Until the first item


def test_a_generator_that_fails_before_its_first_item_is_started_again(streams, quick, clock):
    begin = scripted(TimeoutError("1"), TimeoutError("2"), "page")
    seen = []

    def items(start, *, step):
        seen.append((start, step))
        begin()
        yield from range(start, start + 3 * step, step)

    assert streams.open(quick, items, 5, step=2).rest() == [5, 7, 9]
    assert seen == [(5, 2)] * 3
    assert clock.waits == [1.0, 2.0]


def test_a_generator_that_never_begins_is_given_up_on_with_its_own_error_and_the_story(streams, quick, clock):
    failures = [TimeoutError(str(number)) for number in range(3)]
    begin = scripted(*failures)

    def items():
        yield begin()

    stream = streams.open(quick.replace(name="rows"), items)
    with pytest.raises(TimeoutError) as caught:
        stream.next()
    assert caught.value is failures[-1]
    assert "gave up on rows after 3 attempts" in caught.value.__notes__[0]
    assert stream.rest() == []
    assert len(begin.calls) == 3


def test_nothing_runs_before_the_first_item_is_asked_for(streams, quick):
    begin = scripted(TimeoutError(), "page")

    def items():
        yield begin()

    stream = streams.open(quick, items)
    assert begin.calls == []
    assert stream.next() == "page"


def test_a_failure_that_is_not_retryable_passes_at_once(streams, quick, clock):
    begin = scripted(ValueError("no"))

    def items():
        yield begin()

    with pytest.raises(ValueError, match="no"):
        streams.open(quick, items).next()
    assert clock.waits == []


def test_an_empty_generator_is_a_success_and_stays_empty(streams, quick):
    begin = scripted(TimeoutError(), None)

    def items():
        begin()
        yield from ()

    assert streams.open(quick, items).rest() == []
    assert len(begin.calls) == 2


def test_none_and_other_falsy_items_are_items(streams, quick, clock):
    begin = scripted(None, TimeoutError("late"))

    def items():
        begin()
        yield None
        yield 0
        begin()

    stream = streams.open(quick, items)
    assert [stream.next(), stream.next()] == [None, 0]
    with pytest.raises(TimeoutError, match="late"):
        stream.next()
    assert clock.waits == []


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError])
def test_an_interrupt_before_the_first_item_is_not_a_failure(kind, quick, clock):
    begin = scripted(kind("stop"))

    @quick.replace(on=lambda error: True)
    def items():
        yield begin()

    with pytest.raises(kind):
        next(items())
    assert len(begin.calls) == 1
    assert clock.waits == []


def test_recover_runs_before_a_generator_is_started_again(streams, clock):
    recovered, begin = [], scripted(TimeoutError("token"), "page")
    policy = Policy(
        clock=clock, sleep=clock.sleep, rules={TimeoutError: Rule(recover=lambda e: recovered.append(str(e)))}
    )

    def items():
        yield begin()

    assert streams.open(policy, items).rest() == ["page"]
    assert recovered == ["token"]


def test_a_failed_start_is_finished_before_the_next_one(streams, quick):
    told, begin = [], scripted(TimeoutError(), "page")

    def items():
        told.append("opened")
        try:
            yield begin()
        finally:
            told.append("closed")

    assert streams.open(quick, items).rest() == ["page"]
    assert told == ["opened", "closed"] * 2


# Return values, which only sync generators have


def returned(generator):
    with pytest.raises(StopIteration) as caught:
        while True:
            next(generator)
    return caught.value.value


@pytest.mark.parametrize("count", [0, 1, 3])
def test_the_return_value_of_a_generator_comes_out(count, quick):
    begin = scripted(TimeoutError(), None)

    @quick
    def items():
        begin()
        yield from range(count)
        return "total"

    assert returned(items()) == "total"


def test_a_return_value_after_a_throw_comes_out(quick):
    @quick
    def items():
        try:
            yield 1
        except LookupError:
            return "recovered"

    generator = items()
    next(generator)
    with pytest.raises(StopIteration) as caught:
        generator.throw(LookupError())
    assert caught.value.value == "recovered"


def test_yield_from_a_retried_generator_gets_items_and_return_value(quick):
    begin = scripted(TimeoutError(), None)

    @quick
    def items():
        begin()
        received = yield 1
        return received

    def outer():
        result = yield from items()
        yield ("returned", result)

    generator = outer()
    assert next(generator) == 1
    assert generator.send("sent") == ("returned", "sent")


def test_close_gives_what_the_generator_returns_where_python_has_that(quick):
    def items():
        try:
            yield 1
        except GeneratorExit:
            return "closed"

    plain, retried = items(), quick(items)()
    next(plain)
    next(retried)
    # From 3.13 on the return value; None before. Either way it is as if nothing stood in between.
    assert retried.close() == plain.close() == ("closed" if sys.version_info >= (3, 13) else None)


# Deadlines and context


def test_the_first_attempt_of_a_generator_sees_its_context(streams, quick):
    begin, seen = scripted(TimeoutError(), "page"), []

    def items():
        attempt = current_attempt()
        seen.append((attempt.number, attempt.idempotency_key))
        yield begin()

    assert streams.open(quick.replace(idempotency_key=True), items).rest() == ["page"]
    (first, key), (second, same_key) = seen
    assert (first, second) == (1, 2)
    assert key == same_key is not None


def test_the_context_of_an_attempt_does_not_leak_to_the_consumer(streams, quick):
    begin = scripted(TimeoutError(), "page")

    def items():
        yield begin()
        yield current_attempt()

    stream = streams.open(quick.replace(idempotency_key=True), items)
    assert stream.next() == "page"
    assert current_attempt() is None
    assert stream.next() is None


def test_a_deadline_holds_for_getting_the_first_item(streams, clock):
    policy = Policy(attempts=None, backoff=fixed, deadline=2.5, clock=clock, sleep=clock.sleep)

    def items():
        raise TimeoutError("slow")
        yield

    with pytest.raises(DeadlineExceeded) as caught:
        streams.open(policy, items).next()
    assert caught.value.attempts == 3
    assert clock.waits == [1.0, 1.0]
    assert str(caught.value.last_error) == "slow"


def test_a_deadline_does_not_count_the_time_after_the_first_item(streams, clock):
    policy = Policy(deadline=2.0, clock=clock, sleep=clock.sleep)

    def items():
        for item in range(3):
            yield item
            clock.advance(10.0)

    assert streams.open(policy, items).rest() == [0, 1, 2]


def test_a_deadline_is_counted_from_the_first_request_not_from_the_making(streams, clock):
    policy = Policy(deadline=2.0, clock=clock, sleep=clock.sleep)

    def items():
        yield current_attempt().remaining

    stream = streams.open(policy, items)
    clock.advance(10.0)
    assert stream.next() == 2.0
    stream.close()


def test_a_deadline_cuts_off_an_async_generator_that_does_not_begin():
    told = []

    @retry(deadline=0.02)
    async def items():
        try:
            await asyncio.sleep(60)
            yield 1
        finally:
            told.append("closed")

    async def main():
        with pytest.raises(DeadlineExceeded):
            await anext(items())
        assert asyncio.current_task().cancelling() == 0

    asyncio.run(main())
    assert told == ["closed"]


@pytest.mark.slow
def test_a_timeout_holds_for_the_first_item_and_not_for_the_next(clock):
    begin = scripted(60, 0)

    @retry(attempts=2, timeout=0.02, clock=clock, sleep=clock.sleep)
    async def items():
        await asyncio.sleep(begin())
        yield "first"
        await asyncio.sleep(0.04)
        yield "second"

    async def main():
        return [item async for item in items()]

    assert asyncio.run(main()) == ["first", "second"]
    assert len(begin.calls) == 2
