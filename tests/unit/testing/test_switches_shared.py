"""Switches as decorators, shared by threads and tasks, and left elsewhere."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading

import pytest

from redouble import (
    Policy,
    context,
    events,
    retry,
)
from redouble._base import clock as _time
from redouble.backoff import exponential
from redouble.testing import (
    _switches,
    capped,
    fake_time,
    no_waits,
    recorded,
    retries_disabled,
    scripted,
)
from support.interleaving import explore
from support.threads import in_a_thread

SWITCHES = {
    "no_waits": no_waits,
    "fake_time": fake_time,
    "retries_disabled": retries_disabled,
    "capped": lambda **given: capped(2, **given),
    "recorded": recorded,
}


every_switch = pytest.mark.parametrize("switch", SWITCHES.values(), ids=SWITCHES)


def what_is_on():
    return (
        _time.fake_in_force() is not None,
        context.disabled_here(),
        context.capped_at(),
        len(events.subscribers),
    )


OFF = (False, False, None, 0)


@every_switch
@pytest.mark.parametrize("everywhere", [False, True])
def test_a_decorated_function_runs_with_the_switch_on(flavour, switch, everywhere):
    @switch(everywhere=everywhere)
    @flavour.function
    def body(one, *, two):
        """What it does."""
        return one, two, what_is_on()

    for _ in range(2):
        one, two, on = flavour.run(body, 1, two=2)
        assert (one, two) == (1, 2)
        assert on != OFF
        assert what_is_on() == OFF
    assert inspect.iscoroutinefunction(body) is flavour.is_async


@every_switch
def test_a_decorated_function_keeps_its_name_and_its_parameters(switch):
    @switch()
    def test_something(tmp_path, capsys):
        """What it does."""

    assert (test_something.__name__, test_something.__doc__) == ("test_something", "What it does.")
    assert list(inspect.signature(test_something).parameters) == ["tmp_path", "capsys"]


def test_a_decorated_async_function_is_on_for_as_long_as_it_runs():
    @capped(2)
    async def body(steps):
        await asyncio.sleep(0)
        steps.append(context.capped_at())

    async def main():
        steps = []
        one, other = asyncio.create_task(body(steps)), asyncio.create_task(body(steps))
        await asyncio.sleep(0)
        steps.append(context.capped_at())
        await asyncio.gather(one, other)
        return [*steps, context.capped_at()]

    assert asyncio.run(main()) == [None, 2, 2, None]


def test_a_plain_function_that_gives_a_coroutine_is_on_until_that_is_done():
    async def body():
        await asyncio.sleep(0)
        return context.capped_at()

    decorated = capped(3)(lambda: body())
    assert asyncio.run(decorated()) == 3


def test_a_failure_of_a_decorated_function_switches_off(flavour):
    decorated = retries_disabled(everywhere=True)(flavour.scripted(KeyError("id")))
    with pytest.raises(KeyError):
        flavour.run(decorated)
    assert what_is_on() == OFF


def test_a_decorated_method_gets_its_object():
    class Tests:
        @no_waits()
        def test_something(self):
            return self, what_is_on()

    tests = Tests()
    assert tests.test_something() == (tests, (True, False, None, 0))


def test_what_cannot_be_run_from_outside_is_not_decorated():
    def fixture():
        yield

    async def async_fixture():
        yield

    for what, kind in ((fixture, "generator"), (async_fixture, "async generator")):
        with pytest.raises(TypeError) as caught:
            no_waits()(what)
        told = f"no_waits cannot decorate the {kind} {what.__qualname__}: use 'with no_waits(...):' inside"
        assert str(caught.value) == told

    class Tests:
        pass

    with pytest.raises(TypeError, match=r"^cannot decorate the class Tests: decorate the method itself"):
        no_waits()(Tests)


def test_tasks_may_share_one_switch_and_leave_it_in_any_order():
    switch = capped(2)

    async def body(inside, out):
        with switch:
            inside.set()
            await out.wait()
            on = context.capped_at()
        return on, context.capped_at()

    async def main():
        gates = [(asyncio.Event(), asyncio.Event()) for _ in range(2)]
        tasks = [asyncio.create_task(body(*gate)) for gate in gates]
        told = []
        for inside, _ in gates:
            await inside.wait()
        for task, (_, out) in zip(tasks, gates, strict=True):  # first in, first out
            out.set()
            told.append(await task)
        return told

    assert asyncio.run(main()) == [(2, None), (2, None)]


def test_threads_may_share_one_switch_and_leave_it_in_any_order():
    switch = no_waits(everywhere=True)
    policy = Policy(backoff=exponential)
    inside, out = threading.Event(), threading.Event()
    told = []

    def first():
        with switch as waits:
            inside.set()
            out.wait(60)
        told.append(waits)

    thread = threading.Thread(target=first)
    thread.start()
    inside.wait(60)
    with switch as waits:
        out.set()
        thread.join(60)
        policy.call(scripted(TimeoutError(), "page"))
    assert (waits, told) == ([1.0], [[]])


@pytest.mark.slow
def test_threads_may_share_one_switch_in_every_order():
    def use(switch):
        with switch:
            return context.capped_at()

    def check(switch, results):
        assert (results, what_is_on(), switch._entries) == ([2, 2], OFF, [])

    explore(lambda: capped(2, everywhere=True), [use, use], check, modules=[_switches], preemptions=1)


@every_switch
@pytest.mark.parametrize("everywhere", [False, True])
def test_a_switch_may_be_left_in_another_context_or_thread_than_it_was_entered_in(switch, everywhere):
    # As fixtures are: set up in one context, taken down in another.
    on = switch(everywhere=everywhere)
    contextvars.copy_context().run(on.__enter__)
    assert in_a_thread(lambda: on.__exit__(None, None, None)) is None
    assert what_is_on() == OFF


@pytest.mark.parametrize("kind", [staticmethod, classmethod])
def test_a_switch_may_stand_above_what_makes_a_method_special(kind):
    class Tests:
        with_two = capped(2)(kind(lambda *args: what_is_on()))

    assert Tests.with_two() == Tests().with_two() == (False, False, 2, 0)
    assert what_is_on() == OFF


def test_a_task_that_outlives_its_block_goes_by_real_time_and_retries_again():
    async def main():
        go, calls = asyncio.Event(), []

        @retry(attempts=2, base=0.0)
        async def fetch():
            calls.append(1)
            raise TimeoutError("slow")

        async def later():
            await go.wait()
            with pytest.raises(TimeoutError):
                await fetch()
            return _time.fake_in_force()

        with retries_disabled(), capped(1), fake_time():
            task = asyncio.ensure_future(later())
            await asyncio.sleep(0)
        with no_waits(everywhere=True) as waits:
            go.set()
            assert await task is waits
        return len(calls)

    assert asyncio.run(main()) == 2
