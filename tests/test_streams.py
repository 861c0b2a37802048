"""Generators, sync and async: retried until the first item is out, untouched afterwards."""

from __future__ import annotations

import asyncio
import functools
import gc
import inspect
import sys

import pytest

from redouble import DeadlineExceeded, Policy, Rule, current_attempt, retry
from redouble._streams import wrap_generator
from redouble.backoff import exponential, fixed
from redouble.testing import scripted


@pytest.fixture
def quick(clock):
    """Three attempts, with waits of 1 and 2 seconds that take none."""
    return Policy(attempts=3, backoff=exponential, clock=clock, sleep=clock.sleep)


class Stream:
    """A generator of either flavour, with one face for the tests."""

    def __init__(self, runner, generator, is_async):
        self._runner = runner
        self._generator = generator
        self._is_async = is_async

    def _do(self, sync, asynchronous, *args):
        method = getattr(self._generator, asynchronous if self._is_async else sync)
        if not self._is_async:
            return method(*args)

        async def step():
            return await method(*args)

        return self._runner.run(step())

    def next(self):
        return self._do("__next__", "__anext__")

    def send(self, value):
        return self._do("send", "asend", value)

    def throw(self, error):
        return self._do("throw", "athrow", error)

    def close(self):
        return self._do("close", "aclose")

    def rest(self):
        items = []
        while True:
            try:
                items.append(self.next())
            except self.end:
                return items

    @property
    def end(self):
        return StopAsyncIteration if self._is_async else StopIteration


class Streams:
    """Writes and opens generators of one flavour; their body is given as a sync generator."""

    def __init__(self, is_async, runner):
        self.is_async = is_async
        self._runner = runner

    def function(self, body):
        """A generator function, made async in the async flavour."""
        if not self.is_async:
            return body

        async def items(*args, **kwargs):
            inner = body(*args, **kwargs)
            send, value = inner.send, None
            while True:
                await asyncio.sleep(0)
                try:
                    item = send(value)
                except StopIteration:
                    return
                try:
                    send, value = inner.send, (yield item)
                except BaseException as error:
                    send, value = inner.throw, error

        return items

    def open(self, policy, body, *args, **kwargs):
        return Stream(self._runner, policy(self.function(body))(*args, **kwargs), self.is_async)


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


# After the first item


def test_an_error_after_the_first_item_passes_through_and_there_is_no_second_start(streams, quick, clock):
    starts, late = [], TimeoutError("late")

    def items():
        starts.append(1)
        yield "first"
        raise late

    stream = streams.open(quick, items)
    assert stream.next() == "first"
    with pytest.raises(TimeoutError) as caught:
        stream.next()
    assert caught.value is late
    assert not hasattr(late, "__notes__")
    assert late.__context__ is None
    assert stream.rest() == []
    assert starts == [1]
    assert clock.waits == []


def test_an_error_right_after_a_start_that_was_retried_passes_through(streams, quick):
    begin = scripted(TimeoutError(), "first", TimeoutError("late"))

    def items():
        yield begin()
        yield begin()

    stream = streams.open(quick, items)
    assert stream.next() == "first"
    with pytest.raises(TimeoutError, match="late"):
        stream.next()
    assert len(begin.calls) == 3


def test_what_is_sent_in_reaches_the_generator(streams, quick):
    begin = scripted(TimeoutError(), None)

    def echo():
        begin()
        received = yield "ready"
        while True:
            received = yield f"got {received}"

    stream = streams.open(quick, echo)
    assert stream.next() == "ready"
    assert [stream.send(1), stream.send(None), stream.next()] == ["got 1", "got None", "got None"]
    stream.close()


def test_a_value_sent_to_a_generator_that_has_not_begun_is_refused_as_usual(streams, quick):
    def items():
        yield 1

    stream = streams.open(quick, items)
    with pytest.raises(TypeError, match="just-started"):
        stream.send("too early")
    assert stream.next() == 1
    stream.close()


def test_an_error_thrown_in_by_the_consumer_reaches_the_generator_and_is_never_retried(streams, quick, clock):
    starts, told = [], []

    def items():
        starts.append(1)
        try:
            yield 1
        except TimeoutError as error:
            told.append(error)
            raise

    stream = streams.open(quick, items)
    stream.next()
    thrown = TimeoutError("from the consumer")
    with pytest.raises(TimeoutError) as caught:
        stream.throw(thrown)
    assert caught.value is thrown
    assert told == [thrown]
    assert starts == [1]
    assert clock.waits == []


def test_an_error_thrown_in_before_the_start_is_never_retried(streams, quick, clock):
    starts = []

    def items():
        starts.append(1)
        yield 1

    stream = streams.open(quick, items)
    with pytest.raises(TimeoutError, match="early"):
        stream.throw(TimeoutError("early"))
    assert stream.rest() == []
    assert starts == []
    assert clock.waits == []


def test_a_generator_may_catch_what_is_thrown_in_and_give_another_item(streams, quick):
    def items():
        caught = 0
        while caught < 2:
            try:
                yield caught
            except LookupError:
                caught += 1
        yield "end"

    stream = streams.open(quick, items)
    assert stream.next() == 0
    assert stream.throw(LookupError()) == 1
    assert stream.next() == 1
    assert stream.throw(KeyError()) == "end"
    assert stream.rest() == []


def test_a_generator_may_catch_what_is_thrown_in_and_end(streams, quick):
    def items():
        try:
            yield 1
        except LookupError:
            return

    stream = streams.open(quick, items)
    stream.next()
    with pytest.raises(stream.end):
        stream.throw(LookupError())


def test_a_generator_may_answer_what_is_thrown_in_with_an_error_of_its_own(streams, quick):
    def items():
        try:
            yield 1
        except LookupError as error:
            raise OSError("translated") from error

    stream = streams.open(quick, items)
    stream.next()
    thrown = LookupError()
    with pytest.raises(OSError, match="translated") as caught:
        stream.throw(thrown)
    assert caught.value.__cause__ is thrown


def test_the_end_thrown_in_by_a_consumer_is_an_error_as_in_any_generator(streams, quick):
    def items():
        yield 1

    stream = streams.open(quick, items)
    stream.next()
    with pytest.raises(RuntimeError, match=r"raised Stop(Async)?Iteration"):
        stream.throw(stream.end())


def test_closing_runs_the_generators_finally(streams, quick):
    told = []

    def items():
        try:
            yield 1
            yield 2
        except GeneratorExit:
            told.append("exit")
            raise
        finally:
            told.append("closed")

    stream = streams.open(quick, items)
    stream.next()
    stream.close()
    assert told == ["exit", "closed"]
    assert stream.rest() == []


def test_closing_before_the_start_starts_nothing(streams, quick):
    starts = []

    def items():
        starts.append(1)
        yield 1

    stream = streams.open(quick, items)
    stream.close()
    assert stream.rest() == []
    assert starts == []


def test_closing_twice_and_after_the_end_does_nothing(streams, quick):
    told = []

    def items():
        try:
            yield 1
        finally:
            told.append("closed")

    stream = streams.open(quick, items)
    assert stream.rest() == [1]
    stream.close()
    stream.close()
    assert told == ["closed"]


def test_a_generator_that_goes_on_after_it_was_closed_is_an_error_as_usual(quick):
    @quick
    def stubborn():
        for item in (1, 2):
            try:
                yield item
            except GeneratorExit:
                pass

    generator = stubborn()
    next(generator)
    with pytest.raises(RuntimeError, match="ignored GeneratorExit"):
        generator.close()


def test_an_error_while_closing_passes_through_and_is_never_retried(streams, quick, clock):
    def items():
        try:
            yield 1
        finally:
            raise TimeoutError("while closing")

    stream = streams.open(quick, items)
    stream.next()
    with pytest.raises(TimeoutError, match="while closing"):
        stream.close()
    assert clock.waits == []


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


# What they look like, and what they leave behind


def test_a_retried_generator_function_is_still_one():
    def items(a, b=2):
        """Gives items."""
        yield a

    async def async_items(a, b=2):
        """Gives items."""
        yield a

    sync, asynchronous = retry(items), retry(async_items)
    assert inspect.isgeneratorfunction(sync)
    assert inspect.isgenerator(sync(1))
    assert not inspect.isasyncgenfunction(sync)
    assert inspect.isasyncgenfunction(asynchronous)
    assert inspect.isasyncgen(asynchronous(1))
    for made in (sync, asynchronous):
        assert not inspect.iscoroutinefunction(made)
        assert not inspect.iscoroutine(made(1))
        assert str(inspect.signature(made)) == "(a, b=2)"
        assert made.__doc__ == "Gives items."


def test_generators_are_found_behind_methods_partials_and_callable_objects(streams, quick):
    begin = scripted(*[TimeoutError(), None] * 4)

    def items(*args):
        begin()
        yield args[-1]

    function = streams.function(items)

    class Things:
        method = quick(function)
        make = quick(classmethod(function))
        sum = quick(staticmethod(function))

    made = [Things().method(1), Things.make(1), Things.sum(1), quick(functools.partial(function, 1))()]
    for generator in made:
        assert Stream(streams._runner, generator, streams.is_async).rest() == [1]
    assert len(begin.calls) == 8


def test_a_callable_object_that_is_a_generator_function_is_retried(quick):
    begin = scripted(TimeoutError(), "page")

    class Rows:
        def __call__(self):
            yield begin()

    assert list(quick(Rows())()) == ["page"]


def test_policy_call_gives_a_retried_generator(streams, quick):
    begin = scripted(TimeoutError(), "page")

    def items(a):
        begin()
        yield a

    generator = quick.call(streams.function(items), 1)
    assert Stream(streams._runner, generator, streams.is_async).rest() == [1]


def test_a_generator_object_from_a_plain_function_is_a_result(quick, clock):
    def items():
        raise TimeoutError("slow")
        yield

    generator = quick(lambda: items())()
    with pytest.raises(TimeoutError):
        next(generator)
    assert clock.waits == []


def test_a_sync_generator_left_early_is_closed_at_once(quick):
    told = []

    @quick
    def items():
        try:
            yield 1
            yield 2
        finally:
            told.append("closed")

    for _ in items():
        break
    assert told == ["closed"]


def test_an_async_generator_left_early_is_closed_by_aclose(quick):
    told = []

    @quick
    async def items():
        try:
            yield 1
            yield 2
        finally:
            await asyncio.sleep(0)
            told.append("closed")

    async def main():
        generator = items()
        async for _ in generator:
            break
        assert told == []
        await generator.aclose()
        assert told == ["closed"]

    asyncio.run(main())


@pytest.mark.slow
def test_an_async_generator_left_to_the_event_loop_is_closed_by_it_without_a_warning(quick, recwarn):
    told = []

    @quick
    async def items():
        try:
            yield 1
            yield 2
        finally:
            await asyncio.sleep(0)
            told.append("closed")

    async def main():
        async for _ in items():
            break
        for _ in range(9):  # the loop closes what it was left with in a task of its own
            await asyncio.sleep(0)

    asyncio.run(main())
    gc.collect()
    assert told == ["closed"]
    assert [str(warning.message) for warning in recwarn] == []


def test_an_async_generator_cancelled_in_the_middle_is_closed():
    told = []

    @retry
    async def items():
        try:
            yield 1
            await asyncio.sleep(60)
        finally:
            told.append("closed")

    async def main():
        async def consume():
            async for _ in items():
                pass

        task = asyncio.create_task(consume())
        for _ in range(5):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert told == ["closed"]


def test_an_async_generator_that_fails_in_the_middle_is_not_kept(quick):
    told = []

    @quick
    async def items():
        try:
            yield 1
            raise TimeoutError("late")
        finally:
            told.append("closed")

    async def main():
        with pytest.raises(TimeoutError):
            async for _ in items():
                pass
        assert told == ["closed"]

    asyncio.run(main())


def test_a_generator_exit_of_the_generators_own_passes_through():
    @retry
    def items():
        yield 1
        raise GeneratorExit

    with pytest.raises(GeneratorExit):
        list(items())
    plain = retry(lambda: (yield 1))()
    next(plain)
    with pytest.raises(GeneratorExit):
        plain.throw(GeneratorExit)


def test_what_closing_gives_is_handed_on():
    class Stream:
        """As a generator of Python 3.13, whose close() gives what it returned."""

        send = throw = None

        def __next__(self):
            return 1

        def close(self):
            return "closed"

    wrapped = wrap_generator(Policy(), Stream, "Stream")()
    assert next(wrapped) == 1
    assert wrapped.close() == ("closed" if sys.version_info >= (3, 13) else None)
