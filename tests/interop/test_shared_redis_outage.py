"""Budgets and breakers on a Redis server that dies, hangs and comes back."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from interop.processes import Server, until
from interop.shared_redis import OPTIONS, Own, availability, redis, redis_asyncio
from redouble import Policy
from redouble.breaker import State
from redouble.shared import RedisBreaker, RedisBudget

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# The timeouts of these clients are for slow machines.
pytestmark = pytest.mark.filterwarnings("ignore:the client of .* waits:RuntimeWarning")


@pytest.fixture
def client(redis_server: Server) -> Iterator[Any]:
    """A client that looks into an empty Redis."""
    with redis.Redis(port=redis_server.port, **OPTIONS) as client:
        client.flushall()
        yield client


def guards(client: Any, events: list[Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {"retry_interval": 0.1, "listeners": [events.append]}
    return {
        "budget": RedisBudget(client, "budget", refresh_interval=0.01, **fields),
        "breaker": RedisBreaker(client, "circuit", failures=1000, refresh_interval=0.01, **fields),
    }


def available(made: dict[str, Any]) -> set[bool]:
    return {guard.available for guard in made.values()}


def tells_of_both(events: list[Any]) -> bool:
    """Whether the events of each guard say in turn that the store is away and that it is back."""
    told = [availability([e for e in events if e.name == name]) for name in ("budget", "circuit")]
    return all(seen == [False, True] * (len(seen) // 2) and seen for seen in told)


def flaky(calls: list[int]) -> str:
    calls.append(1)
    if len(calls) % 2:
        raise TimeoutError("slow")
    return "page"


def test_no_thread_loses_a_call_when_the_server_is_killed() -> None:
    own, events, results = Own(), [], []
    stop = threading.Event()
    with redis.Redis(port=own.port, **OPTIONS) as client:
        made = guards(client, events)
        policy = Policy(attempts=9, **made, sleep=lambda _: None)

        def work() -> None:
            calls: list[int] = []
            while not stop.is_set():
                try:
                    results.append(policy.call(flaky, calls))
                except Exception as error:
                    results.append(error)

        threads = [threading.Thread(target=work) for _ in range(4)]
        with own.running() as server:
            for thread in threads:
                thread.start()
            until(lambda: len(results) > 50, "calls")
            os.kill(server.pid, signal.SIGKILL)
            until(lambda: available(made) == {False}, "notice that it is gone")
        seen = len(results)
        until(lambda: len(results) > seen + 50, "calls without the server")
        with own.running():
            until(lambda: available(made) == {True}, "notice that it is back")
            until(lambda: client.dbsize() > 0, "use of the server")
            stop.set()
            for thread in threads:
                thread.join()
    assert set(results) == {"page"}
    assert tells_of_both(events)


def test_no_task_loses_a_call_when_the_server_is_killed() -> None:
    own, events, results = Own(), [], []

    async def soon(ready: Callable[[], Any]) -> None:
        async with asyncio.timeout(20):
            while not ready():
                await asyncio.sleep(0.01)

    async def main() -> None:
        client = redis_asyncio.Redis(port=own.port, **OPTIONS)
        made = guards(client, events)
        policy = Policy(attempts=9, **made, sleep=lambda _: asyncio.sleep(0))

        async def work() -> None:
            calls: list[int] = []

            async def fetch() -> str:
                return flaky(calls)

            while True:
                results.append(await policy.call(fetch))
                await asyncio.sleep(0)

        async with asyncio.TaskGroup() as group:
            with own.running() as server:
                tasks = [group.create_task(work()) for _ in range(4)]
                await soon(lambda: len(results) > 50)
                os.kill(server.pid, signal.SIGKILL)
                await soon(lambda: available(made) == {False})
            seen = len(results)
            await soon(lambda: len(results) > seen + 50)
            with own.running():
                await soon(lambda: available(made) == {True})
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
                assert all(task.cancelled() for task in tasks)
        await client.aclose()

    asyncio.run(main())
    assert set(results) == {"page"}
    assert tells_of_both(events)


def test_a_server_that_hangs_is_slow_and_the_local_guard_answers() -> None:
    own, events = Own(), []
    with own.running() as server, redis.Redis(port=own.port, **{**OPTIONS, "socket_timeout": 0.1}) as client:
        budget = RedisBudget(client, "budget", capacity=20, retry_interval=0.05, listeners=[events.append])
        assert budget.acquire() == 5.0
        os.kill(server.pid, signal.SIGSTOP)
        try:
            began = time.monotonic()
            assert [budget.acquire() for _ in range(4)] == [5.0, 5.0, 5.0, 0.0]
            assert time.monotonic() - began < 5.0
            assert availability(events) == [False]
            assert events[0].error_type == "TimeoutError"
        finally:
            os.kill(server.pid, signal.SIGCONT)
        until(lambda: budget.refresh() is not None and budget.available, "notice that it goes on")
        assert availability(events) == [False, True]


def test_a_task_does_not_wait_long_for_a_server_that_hangs() -> None:
    own, events = Own(), []

    async def main() -> None:
        client = redis_asyncio.Redis(port=own.port, **{**OPTIONS, "socket_timeout": None})
        budget = RedisBudget(client, "budget", timeout=0.2, retry_interval=0.05, listeners=[events.append])
        breaker = RedisBreaker(client, "circuit", failures=1, timeout=0.2, retry_interval=0.05)
        await budget.acquire()
        await breaker.enter()
        os.kill(server.pid, signal.SIGSTOP)
        try:
            began = time.monotonic()
            assert await budget.acquire() == 5.0
            await breaker.failure(None, OSError("off"))
            assert 0.3 < time.monotonic() - began < 5.0
            assert breaker.state is State.open
            # Somebody else's limit is not mistaken for the store's.
            task = asyncio.ensure_future(budget.refresh())
            await asyncio.sleep(0.06)
            task.cancel()
            await asyncio.wait([task])
        finally:
            os.kill(server.pid, signal.SIGCONT)
        await asyncio.sleep(0.1)
        await budget.refresh()
        assert availability(events) == [False, True]
        await client.aclose()

    with own.running() as server:
        asyncio.run(main())


def test_a_probe_that_was_cancelled_while_the_server_hung_is_not_lost() -> None:
    own = Own()

    async def main() -> None:
        client = redis_asyncio.Redis(port=own.port, **OPTIONS)
        breaker = RedisBreaker(client, "circuit", failures=1, open_for=60.0, timeout=5.0)
        await breaker.failure(None, OSError("off"))
        await client.hset("circuit", "ends", 1)
        await breaker.refresh()
        os.kill(server.pid, signal.SIGSTOP)
        task = asyncio.ensure_future(breaker.enter())
        await asyncio.sleep(0.1)
        task.cancel()
        await asyncio.wait([task])
        os.kill(server.pid, signal.SIGCONT)
        assert task.cancelled()
        while not await client.hget("circuit", "probes"):  # the server did let it through
            await asyncio.sleep(0.01)
        await breaker.success(await breaker.enter())
        assert breaker.state is State.closed
        await client.aclose()

    with own.running() as server:
        asyncio.run(main())
