"""Hedging with trio tasks, and with anyio on both libraries."""

from __future__ import annotations

import contextlib
import warnings
import weakref
from contextvars import ContextVar

import pytest

from redouble import DeadlineExceeded, Policy
from redouble.hedging import hedge
from support.hedging import Failure, Payload, Told, failure, hedged, without_collector

where = ContextVar("where", default="nowhere")


@pytest.fixture
def in_trio():
    """Runs an async function on trio's own virtual time."""
    trio = pytest.importorskip("trio", reason="the extra 'loops' is not installed")
    testing = pytest.importorskip("trio.testing")

    def run(main):
        return trio.run(main, clock=testing.MockClock(autojump_threshold=0))

    return run


class TrioScript:
    """As `Script`, on trio."""

    def __init__(self, *lines):
        self.lines = lines
        self.starts = []
        self.cancelled = []

    async def __call__(self):
        import trio

        number = len(self.starts) + 1
        seconds, outcome = self.lines[number - 1]
        self.starts.append(trio.current_time())
        try:
            await trio.sleep(seconds)
        except trio.Cancelled:
            self.cancelled.append(number)
            raise
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome


def test_trio_tasks_are_hedged_alike(in_trio):
    import trio

    async def main():
        start = trio.current_time()
        script = TrioScript(*[(60.0, "late")] * 3, (0.25, "page"))
        assert await hedged(script, after=0.5, attempts=4)() == "page"
        assert [at - start for at in script.starts] == pytest.approx([0.0, 0.5, 1.0, 1.5])
        assert sorted(script.cancelled) == [1, 2, 3]
        assert trio.current_time() - start == pytest.approx(1.75)
        start = trio.current_time()
        script = TrioScript((0.25, TimeoutError("slow")), (60.0, "late"), (0.25, "page"))
        assert await hedged(script, attempts=3)() == "page"
        assert [at - start for at in script.starts] == pytest.approx([0.0, 0.25, 1.25])
        assert await hedged(TrioScript((0.5, "page")))() == "page"

    in_trio(main)


def test_on_trio_the_exception_that_comes_out_is_the_one_of_the_function(in_trio):
    async def main():
        first = TimeoutError("first")
        with pytest.raises(TimeoutError) as caught:
            await hedged(TrioScript((3.0, first), (0.5, TimeoutError("second"))), name="fetch")()
        assert caught.value is first
        assert caught.value.__context__ is None
        assert first.__notes__ == [
            "redouble: 2 attempts of fetch failed; this was attempt 1\n  attempt 2: TimeoutError: second"
        ]
        for error in (
            ExceptionGroup("many", [ValueError("no")]),
            StopAsyncIteration("end"),
            SystemExit("stop"),
        ):
            with pytest.raises(type(error)) as other:
                await hedged(TrioScript((9.0, "late"), (0.5, error)))()
            assert other.value is error

    in_trio(main)


def test_a_trio_cancellation_from_outside_ends_all_attempts_and_is_never_caught(in_trio):
    import trio

    async def main():
        script = TrioScript(*[(60.0, "late")] * 3)
        with trio.move_on_after(1.5) as scope:
            try:
                await hedged(script, attempts=3)()
            except trio.Cancelled as cancelled:
                assert cancelled.__context__ is None
                raise
        assert scope.cancelled_caught
        assert sorted(script.cancelled) == [1, 2]

    in_trio(main)


def test_an_interrupt_in_the_waiting_trio_task_comes_out_alone(in_trio, monkeypatch):
    import trio

    class Broken:
        async def wait(self):
            await trio.sleep(0.5)
            raise KeyboardInterrupt

    async def main():
        script = TrioScript((60.0, "late"))
        monkeypatch.setattr(trio, "Event", Broken)
        with pytest.raises(KeyboardInterrupt):
            await hedged(script)()
        assert script.cancelled == [1]

    in_trio(main)


def test_trio_tasks_wait_for_a_server_that_says_when(in_trio):
    import trio

    async def main():
        start = trio.current_time()
        script = TrioScript((0.5, Told(Retry_After="7")), (0.5, "page"))
        assert await hedged(script)() == "page"
        assert [at - start for at in script.starts] == pytest.approx([0.0, 7.5])

    in_trio(main)


def test_on_trio_each_attempt_has_a_copy_of_the_context_and_ends_at_the_deadline(in_trio):
    import trio

    async def main():
        seen = []

        @hedge(after=1.0, attempts=9)
        async def fetch():
            seen.append(where.get())
            where.set("in an attempt")
            await trio.sleep(60.0)

        where.set("at the caller")
        start = trio.current_time()
        with pytest.raises(DeadlineExceeded):
            await Policy(deadline=2.5, clock=trio.current_time)(fetch)()
        assert seen == ["at the caller"] * 3
        assert trio.current_time() - start == pytest.approx(2.5)

    in_trio(main)


@pytest.mark.usefixtures("nobody_logs")
def test_on_trio_arguments_and_exceptions_die_by_reference_count(in_trio):
    import trio

    async def main():
        watched = []

        @hedge(after=60.0)
        async def fetch(payload):
            await trio.sleep(0.5)
            raise failure(watched)

        payload = Payload()
        watched.append(weakref.ref(payload))
        with contextlib.suppress(Failure):
            await fetch(payload)
        del payload
        await trio.sleep(0.5)
        assert len(watched) == 3
        assert [ref() for ref in watched if ref() is not None] == []

        @hedge(after=0.5)
        async def slow(payload):
            await trio.sleep(60.0)

        payload = Payload()
        watched.append(weakref.ref(payload))
        with trio.move_on_after(1.5):
            await slow(payload)
        del payload
        await trio.sleep(0.5)
        assert watched[-1]() is None

    with without_collector():
        in_trio(main)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_an_anyio_cancel_scope_ends_a_hedge_on_either_loop(backend):
    pytest.importorskip(backend)
    anyio = pytest.importorskip("anyio", reason="the extra 'loops' is not installed")
    cleaned = []

    @hedge(after=0.01)
    async def fetch():
        try:
            await anyio.sleep(60)
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0.01)
            cleaned.append(1)

    async def main():
        with anyio.move_on_after(0.1) as scope:
            await fetch()
        assert scope.cancelled_caught
        assert cleaned == [1, 1]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        anyio.run(main, backend=backend)
