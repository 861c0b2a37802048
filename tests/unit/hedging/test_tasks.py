"""Hedging with asyncio tasks: context, deadlines, cancellation."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from contextvars import ContextVar

import pytest

from conftest import loop_time
from redouble import DeadlineExceeded, Policy
from redouble.context import incoming
from redouble.hedging import _tasks, hedge
from redouble.testing import FakeClock, retries_disabled
from support.hedging import Script, Told, hedged, ours

where = ContextVar("where", default="nowhere")


def test_each_attempt_has_a_copy_of_the_context_of_the_call(virtual):
    async def main():
        seen = []

        @hedge(after=1.0)
        async def fetch():
            seen.append(where.get())
            where.set("in an attempt")
            await asyncio.sleep(9.0)

        where.set("at the caller")
        await fetch()
        assert seen == ["at the caller", "at the caller"]
        assert where.get() == "at the caller"

    virtual(main)


def test_all_attempts_end_at_the_deadline_of_the_enclosing_call(virtual):
    async def main():
        script = Script(*[(60.0, "late")] * 9)
        fetch = Policy(deadline=2.5, clock=loop_time)(hedged(script, attempts=9))
        with pytest.raises(DeadlineExceeded):
            await fetch()
        assert script.starts == [0.0, 1.0, 2.0]
        assert script.ends == [2.5, 2.5, 2.5]
        assert await ours() == set()

    virtual(main)


def test_no_hedge_is_started_at_the_deadline_or_after_it(virtual):
    async def main():
        script = Script((60.0, "late"), (60.0, "later"))
        with incoming({"x-request-timeout-ms": "1000"}, clock=loop_time):
            assert await hedged(script)() == "late"
        assert script.starts == [0.0]

    virtual(main)


def test_a_wait_that_would_pass_the_deadline_is_never_begun(virtual):
    async def main():
        script = Script((0.5, Told(Retry_After="9")), (0.5, "page"))
        with incoming({"x-request-timeout-ms": "5000"}, clock=loop_time):
            with pytest.raises(Told):
                await hedged(script)()
        assert loop_time() == 0.5

    virtual(main)


def test_the_deadline_is_asked_again_when_the_hedge_is_due(virtual):
    async def main():
        clock = FakeClock()
        script = Script((60.0, "late"))
        with incoming({"x-request-timeout-ms": "5000"}, clock=clock):
            call = asyncio.create_task(hedged(script, attempts=3)())
            await asyncio.sleep(0.5)
            clock.advance(6.0)
            assert await call == "late"
        assert script.starts == [0.0]

    virtual(main)


def test_where_retries_are_switched_off_nothing_is_hedged(virtual):
    async def main():
        script = Script((60.0, "page"))
        with retries_disabled():
            assert await hedged(script)() == "page"
        assert script.starts == [0.0]

    virtual(main)
    names = []
    with retries_disabled():
        hedge(after=0.0)(lambda: names.append(threading.current_thread().name))()
    assert names == [threading.current_thread().name]


def test_a_cancellation_from_outside_cancels_and_awaits_all_attempts_and_is_raised(virtual):
    async def main():
        script = Script(*[(60.0, "late")] * 3)
        task = asyncio.create_task(hedged(script, attempts=3)())
        await asyncio.sleep(1.5)
        task.cancel("enough")
        with pytest.raises(asyncio.CancelledError, match="enough"):
            await task
        assert task.cancelled()
        assert script.cancelled == [1, 2]
        assert loop_time() == 1.5
        assert await ours() == set()

    virtual(main)


def test_a_timeout_around_a_hedge_is_a_timeout(virtual):
    async def main():
        script = Script(*[(60.0, "late")] * 2)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.5):
                await hedged(script)()
        assert asyncio.current_task().cancelling() == 0
        assert await ours() == set()

    virtual(main)


def test_a_task_group_whose_other_member_fails_ends_the_hedge(virtual):
    async def main():
        async def sibling():
            await asyncio.sleep(1.5)
            raise ValueError("sibling")

        script = Script(*[(60.0, "late")] * 2)
        with pytest.raises(ExceptionGroup) as caught:
            async with asyncio.TaskGroup() as group:
                group.create_task(hedged(script)())
                group.create_task(sibling())
        assert [str(error) for error in caught.value.exceptions] == ["sibling"]
        assert script.cancelled == [1, 2]
        assert await ours() == set()

    virtual(main)


def test_a_cancellation_in_an_attempt_comes_out_and_ends_the_others(virtual):
    async def main():
        script = Script((9.0, "late"), (0.5, asyncio.CancelledError("inside")))
        task = asyncio.create_task(hedged(script, attempts=3)())
        with pytest.raises(asyncio.CancelledError, match="inside"):
            await task
        assert task.cancelled()
        assert len(script.starts) == 2
        assert script.cancelled == [1]
        assert await ours() == set()

    virtual(main)


def test_a_cancellation_during_the_wait_for_a_server_comes_out(virtual):
    async def main():
        script = Script((0.5, Told(Retry_After="60")), (0.5, "page"))
        task = asyncio.create_task(hedged(script)())
        await asyncio.sleep(1.0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len(script.starts) == 1

    virtual(main)


def test_a_cancellation_while_the_losers_end_comes_out_though_there_is_a_result(virtual):
    async def main():
        ended = []

        @hedge(after=1.0)
        async def fetch():
            try:
                await asyncio.sleep(1.5)
            except asyncio.CancelledError:
                await asyncio.sleep(0.5)
                ended.append(loop_time())
                raise

        task = asyncio.create_task(fetch())
        await asyncio.sleep(1.75)
        task.cancel("too late")
        with pytest.raises(asyncio.CancelledError, match="too late"):
            await task
        assert ended == [2.0]
        assert await ours() == set()

    virtual(main)


def test_an_attempt_that_somebody_else_cancels_before_it_begins_is_a_cancellation(virtual):
    async def main():
        script = Script((9.0, "late"))
        task = asyncio.create_task(hedged(script)())
        await asyncio.sleep(0)
        (attempt,) = asyncio.all_tasks() - {asyncio.current_task(), task}
        attempt.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert script.starts == []

    virtual(main)


async def stubborn(log, seconds, raises=None):
    """Ignores its cancellation for so long."""
    ends = loop_time() + seconds
    while (left := ends - loop_time()) > 0:
        try:
            await asyncio.sleep(left)
        except asyncio.CancelledError:
            log.append("ignored")
    log.append("ended")
    if raises is not None:
        raise raises


@pytest.mark.slow
def test_a_loser_that_ignores_its_cancellation_is_left_behind_after_the_grace(virtual, caplog):
    async def main():
        log, calls = [], []

        @hedge(after=1.0, grace=0.5, name="fetch")
        async def fetch():
            calls.append(1)
            if len(calls) == 2:
                return "page"
            return await stubborn(log, 9.0, ValueError("nobody asks for this any more"))

        noise = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: noise.append(context))
        assert await fetch() == "page"
        assert loop_time() == 1.5
        assert log == ["ignored"]
        gc.collect()
        assert len(_tasks._stragglers) == 1
        await asyncio.sleep(9.0)
        assert log == ["ignored", "ended"]
        assert _tasks._stragglers == set()
        assert await ours() == set()
        gc.collect()
        assert noise == []

    virtual(main)
    assert "a cancelled attempt of fetch still runs after 0.5 s" in caplog.text


def test_a_cancellation_that_is_repeated_does_not_cut_the_grace_short_nor_make_it_longer(virtual):
    async def main():
        log = []

        @hedge(after=9.0, grace=1.0)
        async def fetch():
            await stubborn(log, 30.0)

        task = asyncio.create_task(fetch())
        for _ in range(9):
            await asyncio.sleep(0.25)
            if not task.done():
                task.cancel()
        assert task.cancelled()
        assert log == ["ignored"]  # the attempt itself hears of it once
        (straggler,) = await ours()
        await straggler

    virtual(main)


def test_a_cancellation_that_is_repeated_without_end_does_not_hold_a_call_up(virtual):
    # As anyio does: at every turn of the loop, until the task has ended.
    async def main():
        log = []

        @hedge(after=9.0, grace=1.0)
        async def fetch():
            await stubborn(log, 30.0)

        task = asyncio.create_task(fetch())
        await asyncio.sleep(0.5)
        task.cancel()
        await asyncio.sleep(1.0)
        for _ in range(10):
            task.cancel()
            await asyncio.sleep(0)
        assert task.cancelled()
        (straggler,) = await ours()
        await straggler

    virtual(main)


def test_a_hedged_call_that_is_closed_and_not_awaited_cancels_its_attempts(virtual):
    async def main():
        script = Script((60.0, "late"))
        coroutine = hedged(script)()
        coroutine.send(None)
        (attempt,) = await ours()
        await asyncio.sleep(0.5)
        coroutine.close()
        await asyncio.wait([attempt])
        assert script.cancelled == [1]

    virtual(main)


def test_a_hedged_call_may_be_closed_after_its_loop():
    script = Script((60.0, "late"))
    calls = []

    async def main():
        calls.append(hedged(script)())
        calls[0].send(None)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(main())
    pending = asyncio.all_tasks(loop)
    loop.close()
    calls[0].close()
    for task in pending:
        task._log_destroy_pending = False
        task.get_coro().close()


@pytest.mark.skipif(sys.version_info < (3, 12), reason="there are no eager tasks")
def test_tasks_that_start_eagerly_are_hedged_alike(virtual):
    async def main():
        asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
        script = Script((9.0, "late"), (0.5, "page"))
        assert await hedged(script)() == "page"
        assert script.starts == [0.0, 1.0]

        @hedge(after=0.0)
        async def at_once():
            return "at once"

        assert await at_once() == "at once"
        assert await ours() == set()

    virtual(main)


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_interrupt_in_an_attempt_passes_out_and_ends_the_others(interrupt, virtual):
    async def main():
        script = Script((9.0, "late"), (0.5, interrupt("stop")))
        with pytest.raises(interrupt, match="stop"):
            await hedged(script, attempts=3)()
        assert script.cancelled == [1]
        assert await ours() == set()

    virtual(main)


def test_the_end_of_an_iterator_comes_out_as_it_is(virtual):
    async def main():
        async def end():
            raise StopAsyncIteration("no more")

        with pytest.raises(StopAsyncIteration, match="no more"):
            await hedge(after=1.0)(end)()

    virtual(main)

    def stop():
        raise StopIteration("no more")

    with pytest.raises(StopIteration, match="no more"):
        hedge(after=1.0)(stop)()
