"""What a call leaves behind: nothing. Long calls do not grow, failures die by reference count."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import time
import tracemalloc
import warnings
import weakref
from contextlib import contextmanager
from unittest import mock

import pytest

from redouble import Policy, ResultRejected, Rule, retry, retrying
from redouble._base import log_once
from redouble._engine import flow as _flow
from redouble.testing import FakeClock
from support.memory import Failure, Payload, Watch, fails, no_collector, stepped, watch_raised


@pytest.fixture(autouse=True)
def nobody_logs(monkeypatch):
    """pytest keeps every record that is logged, which would be all that these tests could see."""
    monkeypatch.setattr(logging.getLogger("redouble"), "disabled", True)


@pytest.fixture(autouse=True, scope="module")
def only_what_is_new():
    """The collector need not look at all that pytest has made: that is most of the time it takes."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def no_wait(seconds):
    pass


# Long calls


def peak_of(call, attempts):
    gc.collect()
    tracemalloc.start()
    try:
        call(attempts)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def failing_function():
    def fail():
        raise Failure("slow")

    return fail


def one_object():
    error = Failure("always the same")

    def fail():
        raise error

    return fail


def two_objects_in_turn():
    errors = [Failure("one"), Failure("other")]

    def fail():
        errors.reverse()
        raise errors[0]

    return fail


def chained():
    def fail():
        try:
            raise Failure("inner")
        except Failure as error:
            raise Failure("outer") from error

    return fail


def by_decorator(policy, fail):
    with pytest.raises(Failure):
        policy(fail)()


def by_async_decorator(policy, fail):
    async def fetch():
        fail()

    with pytest.raises(Failure):
        stepped(policy(fetch)())


def by_block(policy, fail):
    with pytest.raises(Failure):
        for attempt in retrying(policy):
            with attempt:
                fail()


def by_async_block(policy, fail):
    async def main():
        async for attempt in retrying(policy):
            async with attempt:
                fail()

    with pytest.raises(Failure):
        stepped(main())


def by_generator(policy, fail):
    def items():
        yield fail()

    with pytest.raises(Failure):
        next(policy(items)())


WAYS = [by_decorator, by_async_decorator, by_block, by_async_block, by_generator]


def growth(way, make, few, many, **fields):
    """How many more objects are there after many retries of one call than after few of the same call."""
    blocks = []

    def sleep(seconds):
        counted[0] += 1
        if counted[0] in (few, many):
            blocks.append(sys.getallocatedblocks())

    counted = [0]
    gc.collect()
    way(Policy(attempts=many + 1, sleep=sleep, clock=FakeClock(), **fields), make())
    after_few, after_many = blocks
    return after_many - after_few


@pytest.mark.slow
def test_the_memory_of_a_call_is_the_same_after_20_000_retries():
    assert growth(by_decorator, failing_function, 2_000, 20_000) < 500


@pytest.mark.slow
def test_a_long_call_takes_less_than_64_kilobytes_more_than_a_short_one():
    def call(attempts):
        by_decorator(Policy(attempts=attempts, sleep=no_wait), failing_function())

    call(50)  # whatever is made once is made now
    assert peak_of(call, 6_500) - peak_of(call, 500) < 64_000


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "make", [failing_function, one_object, two_objects_in_turn, chained], ids=lambda make: make.__name__
)
def test_the_memory_of_a_long_call_is_flat(way, make):
    assert growth(way, make, 100, 1_600) < 500


@pytest.mark.slow
def test_the_memory_of_a_long_call_is_flat_where_recover_is_given_each_failure():
    rules = {Failure: Rule(recover=lambda error: None)}
    for make in (failing_function, one_object, two_objects_in_turn):
        assert growth(by_decorator, make, 100, 1_600, rules=rules) < 500


@pytest.mark.slow
def test_the_memory_of_a_long_call_is_flat_under_a_deadline():
    for make in (failing_function, one_object, two_objects_in_turn):
        assert growth(by_decorator, make, 100, 1_600, deadline=1e6) < 500


@pytest.mark.slow
def test_the_memory_of_a_long_poll_is_flat():
    def by_poll(policy, fail):
        with pytest.raises(ResultRejected):
            policy(lambda: [])()  # noqa: PIE807 - a class would be refused

    assert growth(by_poll, failing_function, 100, 1_600, until=bool) < 500


def traceback_length(error):
    length, trace = 0, error.__traceback__
    while trace is not None:
        length, trace = length + 1, trace.tb_next
    return length


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("errors", [[Failure("one")], [Failure("one"), Failure("other")]], ids=["one", "two"])
def test_the_traceback_of_an_exception_that_is_raised_again_and_again_does_not_grow(way, errors):
    lengths = {}
    for attempts in (10, 200):
        for error in errors:
            error.__traceback__ = None

        def fail():
            errors.reverse()
            raise errors[0]

        way(Policy(attempts=attempts, sleep=no_wait), fail)
        lengths[attempts] = sum(traceback_length(error) for error in errors)
    assert lengths[200] < lengths[10] + 10


@pytest.mark.parametrize("way", WAYS)
def test_the_last_of_many_failures_is_not_chained_to_those_before_it(way):
    errors = []

    def fail():
        errors.append(Failure(str(len(errors))))
        raise errors[-1]

    way(Policy(attempts=5, sleep=no_wait), fail)
    assert [(error.__cause__, error.__context__) for error in errors] == [(None, None)] * 5


# What is left after a call


# During the wait


def dead_in_the_wait(way, **fields):
    """Whether the failure and what its frames held are gone while the call waits for its retry."""
    watch, seen = Watch(), []

    def fail():
        local = watch(Payload())
        error = watch_raised(watch)
        try:
            raise error
        finally:
            del error, local

    with no_collector(), looking_on(lambda: seen.append(watch.alive())):
        way(Policy(attempts=3, clock=FakeClock(), **fields), fail)
    return seen


@contextmanager
def looking_on(look):
    """Calls ``look`` in each wait, which lasts no time. Not the policy's own sleep, which keeps the failure."""

    def wait(seconds):
        look()

    async def sleep(seconds):
        look()

    with mock.patch("time.sleep", wait), mock.patch("asyncio.sleep", sleep):
        yield


@pytest.mark.parametrize("way", WAYS)
def test_the_frames_of_a_failed_attempt_are_free_during_the_wait(way):
    assert dead_in_the_wait(way) == [[], []]


@pytest.mark.parametrize("way", [by_decorator, by_block, by_generator])
def test_a_failure_is_kept_over_the_wait_only_where_it_may_be_the_cause_of_what_comes_out(way):
    assert dead_in_the_wait(way, deadline=600.0) == [["Failure"], ["Failure"]]


@pytest.mark.parametrize("way", WAYS)
def test_a_failure_is_kept_over_a_sleep_of_the_policy_which_may_raise(way):
    assert dead_in_the_wait(way, sleep=lambda seconds: time.sleep(seconds)) == [["Failure"], ["Failure"]]


@pytest.mark.parametrize("way", WAYS)
def test_a_failure_is_kept_over_the_wait_for_recover_and_not_longer(way):
    rules = {Failure: Rule(recover=lambda error: None)}
    assert dead_in_the_wait(way, rules=rules) == [["Failure"], ["Failure"]]


def test_a_local_of_the_failed_function_is_dead_in_the_wait():
    watch, seen = Watch(), []

    @retry(attempts=2)
    def fetch():
        local = watch(Payload())
        if seen:
            return local
        raise TimeoutError("slow")

    with no_collector(), looking_on(lambda: seen.append(watch.alive())):
        fetch()
    assert seen == [[]]


# What is remembered in the process


def test_a_decorated_function_dies_by_reference_count():
    async def coroutine(): ...

    def generator():
        yield

    async def async_generator():
        yield

    def function(): ...

    class Callable:
        def __call__(self): ...

    with no_collector():
        for made in (function, coroutine, generator, async_generator, Callable()):
            for policy in (Policy(), Policy(deadline=5.0), Policy(until=bool)):
                if policy.until and "generator" in getattr(made, "__name__", ""):
                    continue
                decorated = policy(made)
                reference = weakref.ref(decorated)
                del decorated
                assert reference() is None


def test_a_decorated_function_that_has_failed_and_waited_dies_by_reference_count():
    def make():
        @retry(attempts=2, sleep=no_wait, deadline=60.0, listeners=[fails])
        def fetch():
            raise Failure("slow")

        with pytest.raises(Failure):
            fetch()
        return weakref.ref(fetch), weakref.ref(fetch.__wrapped__)

    with no_collector():
        reference, inner = make()
        assert reference() is None
        assert inner() is None


def test_a_method_does_not_keep_its_instance_nor_a_class_its_decorated_methods():
    class Things:
        @retry(attempts=2, sleep=no_wait)
        def fetch(self):
            raise Failure("slow")

    with no_collector():
        things = Things()
        with pytest.raises(Failure):
            things.fetch()
        reference = weakref.ref(things)
        del things
        assert reference() is None
    reference = weakref.ref(Things)
    del Things
    gc.collect()  # a class is a cycle of its own
    assert reference() is None


def test_a_policy_dies_with_its_last_user():
    class Watched(Policy):
        __slots__ = ("__weakref__",)

    with no_collector():
        policy = Watched(attempts=2, sleep=no_wait)
        with pytest.raises(Failure):
            policy.call(failing_function())
        reference = weakref.ref(policy)
        del policy
        assert reference() is None


def test_the_story_of_a_long_call_is_bounded():
    with pytest.raises(Failure) as caught:
        Policy(attempts=1_000, sleep=no_wait).call(failing_function())
    (note,) = caught.value.__notes__
    lines = note.splitlines()
    assert len(lines) == 1 + 3 + 1 + 7
    assert "(990 more)" in lines[4]
    assert "attempt 1000:" in lines[-1]


def test_the_story_of_a_failure_with_a_huge_message_is_bounded():
    def fail():
        raise Failure("x" * 1_000_000)

    with pytest.raises(Failure) as caught:
        Policy(attempts=4, sleep=no_wait).call(fail)
    assert len(caught.value.__notes__[0]) < 2_000


@pytest.mark.slow
def test_many_calls_leave_no_history():
    @retry(attempts=2, sleep=no_wait)
    def fetch():
        raise Failure("slow")

    def calls(count):
        for _ in range(count):
            try:
                fetch()
            except Failure:
                pass
        gc.collect()
        return sys.getallocatedblocks()

    before = calls(500)
    assert calls(4_000) - before < 1_000


@pytest.mark.slow
def test_listeners_without_end_that_fail_are_not_all_remembered():
    for number in range(1_500):

        def listener(event):
            raise OSError

        listener.__qualname__ = f"listener {number}"
        with pytest.raises(Failure):
            Policy(attempts=1, listeners=[listener]).call(failing_function())
    assert len(log_once._warned) <= 1_000
    log_once._warned.clear()


@pytest.mark.slow
def test_names_without_end_that_wait_in_an_event_loop_are_not_all_remembered():
    _flow._warned.clear()
    decorated = retry(attempts=2, base=0.0, idempotent=True)

    async def main():
        for number in range(1_500):
            fetch = failing_function()
            fetch.__qualname__ = f"fetch {number}"
            try:
                decorated(fetch)()
            except Failure:
                pass

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        asyncio.run(main())
    remembered = len(_flow._warned)
    _flow._warned.clear()
    assert remembered < 1_500


def test_no_frame_of_a_finished_call_is_reachable_from_what_it_raised_but_its_own():
    @retry(attempts=3, sleep=no_wait)
    def fetch():
        raise Failure("slow")

    with pytest.raises(Failure) as caught:
        fetch()
    frames, trace = [], caught.value.__traceback__
    while trace is not None:
        frames.append(trace.tb_frame.f_code.co_name)
        trace = trace.tb_next
    # This function, the wrapper, its loop, the last attempt, and the function itself: once each.
    assert frames[0] == sys._getframe().f_code.co_name
    assert frames[-1] == "fetch"
    assert frames.count("fetch") == 1
    assert len(frames) <= 6
