"""Drivers: errors of a flow, interrupts, and what they await."""

import asyncio

import pytest

from redouble import retry
from redouble._engine import drivers
from redouble.bulkhead import Bulkhead
from support.guarded import SLOW
from support.interrupted_calls import interrupt_as_a_context_is_set


@pytest.fixture
def interrupted(monkeypatch):
    return interrupt_as_a_context_is_set(monkeypatch, drivers)


def test_an_interrupt_that_comes_with_the_context_of_a_sync_attempt_takes_it_away(interrupted):
    with pytest.raises(KeyboardInterrupt):
        retry(deadline=5.0, bulkhead=Bulkhead(1))(lambda: None)()
    assert interrupted == ["interrupted", None]


def test_an_interrupt_that_comes_with_the_context_of_an_async_attempt_takes_it_away(interrupted):
    @retry(deadline=5.0, bulkhead=Bulkhead(1))
    async def fetch():
        raise AssertionError("the attempt was not to be made")

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(fetch())
    assert interrupted == ["interrupted", None]


async def awaited(driver, *args):
    return await driver(*args)


DRIVERS = {
    "drive": lambda flow: drivers.drive(flow, print, (), {}),
    "drive_async": lambda flow: asyncio.run(awaited(drivers.drive_async, flow, print, (), {})),
    "advance": drivers.advance,
    "advance_async": lambda flow: asyncio.run(awaited(drivers.advance_async, flow)),
}


@pytest.mark.parametrize("driver", DRIVERS.values(), ids=DRIVERS)
def test_an_error_of_the_flow_itself_passes_through(driver):
    def flow():
        yield 0.0
        raise RecursionError("a nearly full stack")

    with pytest.raises(RecursionError):
        driver(flow())


class Promise:
    """Can be awaited, and is no coroutine."""

    def __await__(self):
        yield from asyncio.sleep(0).__await__()
        return "old page"


def test_a_hook_of_an_async_call_may_return_anything_that_can_be_awaited():
    @retry(attempts=1, fallback=lambda error: Promise())
    async def fetch():
        raise SLOW

    assert asyncio.run(fetch()) == "old page"


def test_a_traceback_has_the_two_frames_of_the_layer_and_all_of_the_function():
    def load():
        raise KeyError("stock")

    with pytest.raises(KeyError) as caught:
        retry(load)()
    frames = [(entry.frame.code.path.parent.name, entry.name) for entry in caught.traceback[1:]]
    assert frames == [("_engine", "wrapper"), ("_engine", "drive"), ("engine", "load")]
