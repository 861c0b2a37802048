"""Interrupts are not failures: cancellation passes straight through, in the attempt and in the wait."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest

from conftest import loop_time
from redouble import Policy, retry, retrying
from redouble.backoff import fixed
from redouble.testing import scripted


def test_a_task_cancelled_in_its_attempt_is_cancelled(virtual: Any) -> None:
    async def main() -> None:
        calls: list[int] = []

        @retry(on=lambda error: True, clock=loop_time)
        async def fetch() -> None:
            calls.append(1)
            await asyncio.sleep(60)

        task = asyncio.create_task(fetch())
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()
        assert calls == [1]

    virtual(main)


def test_a_task_cancelled_during_its_wait_ends_within_one_turn_of_the_loop(virtual: Any) -> None:
    async def main() -> None:
        fetch = scripted(TimeoutError(), "page", asynchronous=True)
        task = asyncio.create_task(retry(base=50.0, cap=50.0, backoff=fixed)(fetch)())
        await asyncio.sleep(1)
        assert len(fetch.calls) == 1
        task.cancel()
        await asyncio.sleep(0)
        assert task.cancelled()
        with pytest.raises(asyncio.CancelledError) as caught:
            await task
        assert not isinstance(caught.value.__context__, TimeoutError)

    virtual(main)


def test_a_task_group_whose_other_member_fails_ends_our_wait(virtual: Any) -> None:
    async def main() -> None:
        fetch = scripted(TimeoutError(), "page", asynchronous=True)

        async def sibling() -> None:
            await asyncio.sleep(1)
            raise ValueError("sibling")

        with pytest.raises(ExceptionGroup) as caught:
            async with asyncio.TaskGroup() as group:
                group.create_task(retry(base=50.0, backoff=fixed)(fetch)())
                group.create_task(sibling())
        assert caught.group_contains(ValueError, match="sibling")
        assert len(fetch.calls) == 1
        assert loop_time() == 1.0

    virtual(main)


def test_the_event_loop_runs_on_during_an_async_wait(virtual: Any) -> None:
    async def main() -> None:
        ticks: list[float] = []

        async def ticker() -> None:
            while True:
                ticks.append(loop_time())
                await asyncio.sleep(1)

        task = asyncio.create_task(ticker())
        await retry(base=5.0, backoff=fixed)(scripted(TimeoutError(), "page", asynchronous=True))()
        task.cancel()
        assert ticks == [0.0, 1.0, 2.0, 3.0, 4.0]

    virtual(main)


def test_a_block_cancelled_in_its_body_is_not_run_again(virtual: Any) -> None:
    async def main() -> None:
        numbers: list[int] = []

        async def block() -> None:
            async for attempt in retrying(on=lambda error: True, deadline=100.0, clock=loop_time):
                with attempt:
                    numbers.append(attempt.number)
                    await asyncio.sleep(60)

        task = asyncio.create_task(block())
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert numbers == [1]

    virtual(main)


def test_an_async_for_left_early_leaves_nothing_to_close(virtual: Any) -> None:
    async def main() -> None:
        async for attempt in retrying(Policy(deadline=5.0, clock=loop_time)):
            with attempt:
                break
        async for attempt in retrying(attempts=2):
            async with attempt:
                return

    virtual(main)


def test_a_process_without_trio_waits_with_asyncio(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "trio", raising=False)
    fetch = retry(base=0.0)(scripted(TimeoutError(), "page", asynchronous=True))
    assert asyncio.run(fetch()) == "page"
