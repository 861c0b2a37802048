"""Hedged calls leave no references behind, and do not hold up the end of a process."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import time
import weakref

import pytest

from redouble.hedging import hedge
from support.hedging import Failure, Payload, failure, without_collector
from support.programs import run_program


class Refusal(ValueError):
    """The same, for good."""


@pytest.mark.slow
@pytest.mark.usefixtures("nobody_logs")
@pytest.mark.parametrize(
    "outcomes", [["fail", "fail"], ["fail", "give"], ["give"], ["refuse"], ["fail", "refuse"]]
)
@pytest.mark.parametrize("kind", ["sync", "asyncio"])
def test_arguments_and_exceptions_die_by_reference_count(outcomes, kind, virtual):
    watched = []

    def body(script, payload):
        outcome = script.pop(0)
        if outcome == "give":
            return "page"
        raise failure(watched, Failure if outcome == "fail" else Refusal)

    async def coroutine(script, payload):
        await asyncio.sleep(0.5)
        return body(script, payload)

    def watch():
        payload = Payload()
        watched.append(weakref.ref(payload))
        return payload

    def sync():
        with contextlib.suppress(Failure, Refusal):
            hedge(after=60.0)(body)(list(outcomes), watch())

    async def main():
        with contextlib.suppress(Failure, Refusal):
            await hedge(after=60.0)(coroutine)(list(outcomes), watch())
        await asyncio.sleep(0)
        assert [ref() for ref in watched if ref() is not None] == []

    with without_collector():
        sync() if kind == "sync" else virtual(main)
        assert len(watched) >= 1
        assert [ref() for ref in watched if ref() is not None] == []


@pytest.mark.slow
@pytest.mark.usefixtures("nobody_logs")
def test_what_a_late_loser_held_dies_by_reference_count_when_it_ends():
    go, watched, calls = threading.Event(), [], []

    @hedge(after=0.01)
    def fetch(payload):
        calls.append(1)
        if len(calls) == 2:
            return "page"
        assert go.wait(60)
        raise failure(watched)

    with without_collector():
        before = threading.enumerate()
        payload = Payload()
        watched.append(weakref.ref(payload))
        assert fetch(payload) == "page"
        del payload
        (loser,) = [thread for thread in threading.enumerate() if thread not in before]
        go.set()
        loser.join()
        del loser
        assert len(watched) == 2
        assert [ref() for ref in watched if ref() is not None] == []


@pytest.mark.slow
@pytest.mark.usefixtures("nobody_logs")
def test_what_a_cancelled_call_held_dies_by_reference_count(virtual):
    async def main():
        watched = []

        @hedge(after=60.0)
        async def fetch(payload):
            if not watched:
                watched.append(weakref.ref(payload))
                raise failure(watched)
            await asyncio.sleep(60.0)

        task = asyncio.create_task(fetch(Payload()))
        await asyncio.sleep(0.5)
        task.cancel()
        await asyncio.wait([task])
        del task
        await asyncio.sleep(0)
        assert [ref() for ref in watched if ref() is not None] == []

    with without_collector():
        virtual(main)


@pytest.mark.slow
def test_a_decorated_function_can_be_collected():
    def fetch():
        return "page"

    async def coroutine():
        return "page"

    decorated, decorated_coroutine = hedge(after=1.0)(fetch), hedge(after=1.0)(coroutine)
    decorated()
    refs = [weakref.ref(thing) for thing in (fetch, decorated, coroutine, decorated_coroutine)]
    del fetch, decorated, coroutine, decorated_coroutine
    gc.collect()
    assert [ref() for ref in refs if ref() is not None] == []


@pytest.mark.slow
def test_losers_that_still_run_at_shutdown_are_silent_and_hold_nothing_up():
    code = """
        import time
        from redouble.hedging import hedge

        calls = []

        @hedge(after=0.0, attempts=4)
        def fetch():
            calls.append(1)
            if len(calls) == 4:
                return "page"
            while True:
                time.sleep(0.001)

        print(fetch())
    """
    start = time.monotonic()
    assert run_program(code, "-W", "error").split() == ["page"]
    assert time.monotonic() - start < 30


@pytest.mark.slow
def test_a_hedged_function_works_in_atexit_and_while_modules_are_torn_down():
    code = """
        import atexit
        from redouble.hedging import hedge

        @hedge(after=0.0)
        def fetch(page):
            return page

        class Last:
            def __init__(self):
                self.fetch, self.print = fetch, print

            def __del__(self):
                self.print(self.fetch("del"))

        last = Last()
        atexit.register(lambda: print(fetch("atexit")))
        print(fetch("main"))
    """
    assert run_program(code, "-W", "error").split() == ["main", "atexit", "del"]


@pytest.mark.slow
def test_a_loser_that_still_runs_when_its_loop_ends_is_silent():
    code = """
        import asyncio, logging
        from redouble.hedging import hedge

        logging.disable()  # that it is left behind is said there
        calls = []

        @hedge(after=0.0, grace=0.0)
        async def fetch():
            calls.append(1)
            if len(calls) == 2:
                return "page"
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                await asyncio.sleep(60)

        print(asyncio.run(fetch()))
    """
    assert run_program(code, "-W", "error").split() == ["page"]
