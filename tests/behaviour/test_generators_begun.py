"""Generators after their first item, and what they leave behind."""

from __future__ import annotations

import asyncio
import functools
import gc
import inspect
import sys

import pytest

from redouble import Policy, retry
from redouble._engine.generators import wrap_generator
from redouble.backoff import exponential
from redouble.testing import scripted
from support.streams import Stream, Streams


@pytest.fixture
def quick(clock):
    """Three attempts, with waits of 1 and 2 seconds that take none."""
    return Policy(attempts=3, backoff=exponential, clock=clock, sleep=clock.sleep)


@pytest.fixture(params=["sync", "async"])
def streams(request):
    with asyncio.Runner() as runner:
        yield Streams(request.param == "async", runner)


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
