"""What a call leaves behind when it has ended: nothing for the collector."""

from __future__ import annotations

import asyncio
import gc
import logging

import pytest

from redouble import DeadlineExceeded, Policy, ResultRejected, Rule, retrying
from redouble.backoff import fixed
from redouble.events import Event
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


# What is left after a call


def clocked(**fields):
    clock = FakeClock()
    return Policy(attempts=3, backoff=fixed, clock=clock, sleep=clock.sleep, **fields)


def late_clock(**fields):
    """A clock on which the wait takes longer than it should."""
    clock = FakeClock()

    def sleep(seconds):
        clock.advance(100.0)

    return Policy(attempts=3, backoff=fixed, clock=clock, sleep=sleep, **fields)


# Events that a listener has kept.
KEPT: list[Event] = []


@pytest.fixture(autouse=True)
def nothing_kept():
    KEPT.clear()


# name -> (policy, the error that is raised, whether the function returns something that is refused)
ENDS = {
    "no attempts left": (lambda: clocked(), Failure, False),
    "under a deadline": (lambda: clocked(deadline=60.0), Failure, False),
    "not retryable": (lambda: clocked(on=OverflowError), Failure, False),
    "predicate raises": (lambda: clocked(on=fails), Failure, False),
    "the next wait would pass the deadline": (lambda: clocked(deadline=1.5), DeadlineExceeded, False),
    "the deadline passed in the wait": (lambda: late_clock(deadline=60.0), DeadlineExceeded, False),
    "recover": (lambda: clocked(rules={Failure: Rule(recover=lambda error: None)}), Failure, False),
    "recover raises": (lambda: clocked(rules={Failure: Rule(recover=fails)}), Failure, False),
    "a listener": (lambda: clocked(listeners=[lambda event: None]), Failure, False),
    "a listener that keeps its events": (lambda: clocked(listeners=[KEPT.append]), Failure, False),
    "a listener that raises": (lambda: clocked(listeners=[fails]), Failure, False),
    "a listener that looks at the error": (
        lambda: clocked(listeners=[lambda event: (event.error, event.args, event.kwargs)]),
        Failure,
        False,
    ),
    "an idempotency key": (lambda: clocked(idempotency_key=lambda *args: "key"), Failure, False),
    "result rejected": (lambda: clocked(until=lambda result: False), ResultRejected, True),
    "result rejected under a deadline": (
        lambda: clocked(until=lambda result: False, deadline=60.0),
        ResultRejected,
        True,
    ),
    "result rejected at the deadline": (
        lambda: clocked(until=lambda result: False, deadline=1.5),
        DeadlineExceeded,
        True,
    ),
    "result rejected, late": (
        lambda: late_clock(until=lambda result: False, deadline=60.0),
        DeadlineExceeded,
        True,
    ),
}


def fetch_of(watch, returns):
    def fetch(argument):
        local = watch(Payload())
        if returns:
            return local
        raise watch_raised(watch)

    return fetch


def run_decorated(policy, fetch, payload):
    policy(fetch)(payload)


def run_call(policy, fetch, payload):
    policy.call(fetch, argument=payload)


def run_async(policy, fetch, payload):
    async def async_fetch(argument):
        return fetch(argument)

    stepped(policy(async_fetch)(payload))


def run_take_over(policy, fetch, payload):
    async def async_fetch(argument):
        return fetch(argument)

    stepped(policy(lambda argument: async_fetch(argument))(payload))


def run_block(policy, fetch, payload):
    for attempt in retrying(policy):
        with attempt:
            if fetch(payload) is not None:
                attempt.again("refused")


def run_async_block(policy, fetch, payload):
    async def main():
        async for attempt in retrying(policy):
            async with attempt:
                if fetch(payload) is not None:
                    attempt.again("refused")

    stepped(main())


def run_scope(policy, fetch, payload):
    with retrying(policy) as call:
        call(fetch, payload)


def run_generator(policy, fetch, payload):
    def items(argument):
        yield fetch(argument)

    list(policy(items)(payload))


RUNS = {
    "decorator": run_decorated,
    "call": run_call,
    "async": run_async,
    "plain function of a coroutine": run_take_over,
    "block": run_block,
    "async block": run_async_block,
    "scope": run_scope,
    "generator": run_generator,
}

# The limits of async code need a running event loop, and generators and blocks take no until.
CASES = [
    pytest.param(run, end, id=f"{run}, {end}")
    for run in RUNS
    for end, (policy, _, returns) in ENDS.items()
    if not (policy().deadline and run in ("async", "plain function of a coroutine", "async block"))
    if not (returns and run == "generator")
]


def ended(run, end, watch):
    """Makes the call and throws away what came out; gives its type."""
    make, _, returns = ENDS[end]
    policy = make()
    if returns and "block" in run:
        policy = policy.replace(until=None)
    payload = watch(Payload())
    try:
        RUNS[run](policy, fetch_of(watch, returns), payload)
    except Exception as error:
        watch(error)
        return type(error)
    raise AssertionError("nothing came out")


@pytest.mark.parametrize(("run", "end"), CASES)
def test_arguments_and_exceptions_die_by_reference_count_when_a_call_has_failed(run, end):
    watch = Watch()
    with no_collector():
        assert ended(run, end, watch) is ENDS[end][1]
        assert len(watch.references) > 2
        assert watch.alive() == []


@pytest.mark.parametrize(("run", "end"), CASES)
def test_a_call_that_failed_leaves_nothing_to_the_collector(run, end):
    ended(run, end, Watch())  # whatever is made once is made now
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        for _ in range(3):
            ended(run, end, Watch())
        gc.collect()
        left = [type(thing).__name__ for thing in gc.garbage]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert left == []


@pytest.mark.parametrize("run", RUNS)
def test_arguments_and_exceptions_die_by_reference_count_when_a_call_has_recovered(run):
    watch = Watch()

    def fetch(argument):
        local = watch(Payload())
        if len(watch.references) < 5:
            raise watch_raised(watch)
        del local

    with no_collector():
        RUNS[run](clocked(), fetch, watch(Payload()))
        assert len(watch.references) >= 5
        assert watch.alive() == []


@pytest.mark.parametrize("end", ["deadline in the attempt", "timeout", "deadline before a wait"])
@pytest.mark.parametrize("form", ["function", "block"])
def test_what_an_async_limit_ended_dies_by_reference_count(end, form):
    watch = Watch()
    fields = {
        "deadline in the attempt": {"deadline": 0.02},
        "timeout": {"timeout": 0.01, "attempts": 2, "base": 0.0},
        "deadline before a wait": {"deadline": 5.0, "backoff": fixed, "base": 10.0},
    }[end]
    policy = Policy(**fields)

    async def fetch(argument):
        local = watch(Payload())
        if "before" in end:
            raise watch_raised(watch)
        await asyncio.sleep(60)
        return local

    async def block(payload):
        async for attempt in retrying(policy):
            async with attempt:
                await fetch(payload)

    async def one():
        try:
            await (policy(fetch) if form == "function" else block)(watch(Payload()))
        except TimeoutError as error:
            if type(error) is not TimeoutError:  # of which there are no weak references
                watch(error)
            return type(error)

    async def main():
        kind = await one()
        await asyncio.sleep(0)
        return kind, watch.alive()

    with no_collector():
        kind, alive = asyncio.run(main())
    assert kind is (TimeoutError if end == "timeout" else DeadlineExceeded)
    assert alive == []


def test_a_block_left_after_a_failure_that_would_be_retried_keeps_nothing():
    watch = Watch()

    def run(payload):
        for attempt in retrying(clocked(deadline=60.0)):
            with attempt:
                raise watch_raised(watch)
            break

    with no_collector():
        run(watch(Payload()))
        assert watch.alive() == []
