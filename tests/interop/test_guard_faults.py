"""Faults of the stores that guards share: each is injected for real, and the longest stall of a call is measured.

The table at the end of the run shows the stalls. A server is stopped, killed, made a read-only replica, or has
no memory left; a file is locked by another process.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from interop.processes import until
from interop.shared_redis import Own, availability, redis, redis_asyncio
from redouble import CircuitOpen, Policy
from redouble.breaker import State
from redouble.events import BackendChanged
from redouble.shared import FileBudget, RedisBreaker, RedisBudget

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SLOW = 0.25
# What a sync client is to be made with.
GOOD: dict[str, Any] = {
    "host": "127.0.0.1", "retry": None, "socket_timeout": SLOW, "socket_connect_timeout": SLOW,
}  # fmt: skip
# A machine that is busy stalls by itself.
AIR = 1.0


class Calls:
    """Calls of a dependency that is down: how many reach it, and the longest that one takes."""

    def __init__(self, policy: Policy, client: Any) -> None:
        self._policy, self._client = policy, client
        self.reached = self.refused = 0
        self.longest = 0.0

    def make(self, count: int, pause: float = 0.2) -> None:
        if isinstance(self._client, redis_asyncio.Redis):
            asyncio.run(self._make(count, pause))
            return
        for _ in range(count):
            began = time.monotonic()
            try:
                self._policy.call(self._down)
            except (CircuitOpen, TimeoutError) as error:
                self._count(began, error)
            time.sleep(pause)
        self._client.close()

    async def _make(self, count: int, pause: float) -> None:
        async def down() -> None:
            self._down()

        for _ in range(count):
            began = time.monotonic()
            try:
                await self._policy.call(down)
            except (CircuitOpen, TimeoutError) as error:
                self._count(began, error)
            await asyncio.sleep(pause)
        await self._client.aclose()

    def _count(self, began: float, error: Exception) -> None:
        self.longest = max(self.longest, time.monotonic() - began)
        self.refused += isinstance(error, CircuitOpen)

    def _down(self) -> None:
        self.reached += 1
        raise TimeoutError("down")


@pytest.fixture(params=["sync", "asyncio"])
def is_async(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "asyncio")


def client_of(port: int, is_async: bool) -> Any:
    return (redis_asyncio.Redis if is_async else redis.Redis)(port=port, **GOOD)


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


# What others did


def test_a_policy_sees_within_refresh_and_slow_that_an_operator_has_closed_the_circuit(
    is_async: bool,
) -> None:
    own = Own()
    with own.running(), redis.Redis(port=own.port, **GOOD) as control:
        operator = RedisBreaker(control, "circuit", open_for=60.0)
        operator.open()

        async def main() -> float:
            client = client_of(own.port, is_async)
            breaker = RedisBreaker(client, "circuit", open_for=60.0, refresh_interval=0.2)
            policy = Policy(breaker=breaker)

            async def fetch() -> str:
                return "page"

            async def call() -> Any:
                return (await policy.call(fetch)) if is_async else policy.call(lambda: "page")

            with pytest.raises(CircuitOpen):
                await call()
            operator.close()
            closed = time.monotonic()
            while True:
                try:
                    assert await call() == "page"
                    break
                except CircuitOpen:
                    await asyncio.sleep(0.01)
            seen = time.monotonic() - closed
            await client.aclose() if is_async else client.close()
            return seen

        assert asyncio.run(main()) < 0.2 + SLOW + AIR


# A server that can be read and not written


def full(client: Any) -> None:
    client.config_set("maxmemory-policy", "noeviction")
    client.config_set("maxmemory", 1)


def read_only(client: Any) -> None:
    # The replica of a server that is not there; it answers with what it has.
    client.config_set("replica-serve-stale-data", "yes")
    client.config_set("replica-read-only", "yes")
    client.replicaof("127.0.0.1", "1")


@pytest.mark.parametrize("spoil", [full, read_only])
def test_a_store_that_cannot_be_written_does_not_reopen_the_dependency(
    spoil: Callable[[Any], None], is_async: bool, stalls: dict[str, float]
) -> None:
    own, events = Own(), []
    with own.running(), redis.Redis(port=own.port, **GOOD) as control:
        spoil(control)
        client = client_of(own.port, is_async)
        breaker = RedisBreaker(
            client, "circuit", failures=5, retry_interval=0.2, refresh_interval=0.1, listeners=[events.append]
        )
        calls = Calls(Policy(attempts=1, breaker=breaker), client)
        calls.make(40, 0.05)
    assert (calls.reached, calls.refused) == (5, 35)
    assert breaker.state is State.open
    assert availability(events) == [False]
    stalls[f"{spoil.__name__.replace('_', '-')} server, {'asyncio' if is_async else 'sync'} client"] = (
        calls.longest
    )
    assert calls.longest < SLOW + AIR


@pytest.mark.parametrize("spoil", [full, read_only])
def test_a_budget_in_a_store_that_cannot_be_written_is_spent_once(
    spoil: Callable[[Any], None], is_async: bool
) -> None:
    own, events = Own(), []

    async def main() -> list[float]:
        client, granted = client_of(own.port, is_async), []
        budget = RedisBudget(client, "budget", capacity=20, retry_interval=0.05, listeners=[events.append])
        for _ in range(12):
            for ask in (budget.acquire, budget.refresh):
                answer = (await ask()) if is_async else ask()
                granted += [answer] if ask == budget.acquire else []
            await asyncio.sleep(0.03)
        await client.aclose() if is_async else client.close()
        return granted

    with own.running(), redis.Redis(port=own.port, **GOOD) as control:
        spoil(control)
        assert asyncio.run(main()) == [5.0] * 4 + [0.0] * 8
    assert availability(events) == [False]


# A server that stops, or is killed


def test_a_stopped_server_does_not_keep_a_call_from_being_made(
    is_async: bool, stalls: dict[str, float]
) -> None:
    own = Own()
    with own.running() as server:
        made, longest = [], 0.0

        async def main() -> None:
            nonlocal longest
            client = client_of(own.port, is_async)
            policy = Policy(
                attempts=2, base=0.001, deadline=0.2 if is_async else 1.0,
                breaker=RedisBreaker(client, "circuit"), budget=RedisBudget(client, "budget"),
            )  # fmt: skip

            def page() -> str:
                made.append(1)
                if len(made) % 2:
                    raise TimeoutError("slow")
                return "page"

            async def fetch() -> str:
                return page()

            for number in range(21):
                began = time.monotonic()
                assert ((await policy.call(fetch)) if is_async else policy.call(page)) == "page"
                if not number:
                    os.kill(server.pid, signal.SIGSTOP)
                    await asyncio.sleep(0.6)  # so that what was heard is old
                else:
                    longest = max(longest, time.monotonic() - began)
                await asyncio.sleep(0.02)
            await client.aclose() if is_async else client.close()

        try:
            asyncio.run(main())
        finally:
            os.kill(server.pid, signal.SIGCONT)
        assert len(made) == 42
        name = "asyncio client, deadline 0.2 s" if is_async else "sync client, deadline 1 s"
        stalls[f"stopped server (SIGSTOP), {name}"] = longest


def test_the_defaults_of_the_client_are_warned_about_and_the_documented_settings_are_not() -> None:
    with pytest.warns(RuntimeWarning, match="repeats a command") as caught:
        RedisBudget(redis.Redis(port=1), "budget")
    assert "socket_timeout=0.25, socket_connect_timeout=0.25 and retry=None" in str(caught[0].message)
    RedisBudget(redis.Redis(port=1, **GOOD), "budget")
    RedisBudget(redis_asyncio.Redis(port=1), "budget")  # is cut off


def test_one_acquire_does_not_stall_on_a_stopped_server(is_async: bool, stalls: dict[str, float]) -> None:
    own = Own()

    async def main() -> float:
        client = client_of(own.port, is_async)
        budget = RedisBudget(client, "budget")
        assert ((await budget.acquire()) if is_async else budget.acquire()) == 5.0
        with stopped(server.pid):
            began = time.monotonic()
            assert ((await budget.acquire()) if is_async else budget.acquire()) == 5.0
            took = time.monotonic() - began
        await client.aclose() if is_async else client.close()
        return took

    with own.running() as server:
        took = asyncio.run(main())
    stalls[f"stopped server (SIGSTOP), one acquire, {'asyncio' if is_async else 'sync'} client"] = took
    assert took < 2 * SLOW + AIR


def test_a_server_that_is_killed_and_started_again_makes_two_events(stalls: dict[str, float]) -> None:
    own, events, longest = Own(), [], [0.0]
    stop = threading.Event()
    with redis.Redis(port=own.port, **GOOD) as client:
        budget = RedisBudget(
            client, "budget", capacity=1e9, retry_interval=0.2, timeout=2.0, listeners=[events.append]
        )

        def work() -> None:
            while not stop.is_set():
                began = time.monotonic()
                budget.acquire()
                longest[0] = max(longest[0], time.monotonic() - began)

        threads = [threading.Thread(target=work) for _ in range(16)]
        with own.running() as server:
            for thread in threads:
                thread.start()
            time.sleep(0.3)
            os.kill(server.pid, signal.SIGKILL)
            until(lambda: not budget.available, "notice that it is gone")
        with own.running():
            until(lambda: budget.available, "notice that it is back")
            time.sleep(0.5)
            stop.set()
            for thread in threads:
                thread.join()
    told = [(event.available, event.error_type) for event in events if isinstance(event, BackendChanged)]
    assert [available for available, _ in told] == [False, True], told
    stalls["killed server (SIGKILL), 16 threads"] = longest[0]


def test_a_probe_that_never_returns_does_not_hold_the_circuit_half_open(is_async: bool) -> None:
    own = Own()

    async def main() -> None:
        client = client_of(own.port, is_async)
        breakers = [
            RedisBreaker(client, "circuit", failures=1, open_for=0.3, refresh_interval=0.05) for _ in "ab"
        ]

        async def run(answer: Any) -> Any:
            return (await answer) if is_async else answer

        await run(breakers[0].failure(None, OSError("down")))
        await asyncio.sleep(0.35)
        await run(breakers[0].enter())  # and is never heard of again

        async def up() -> str:
            return "page"

        policy, began = Policy(breaker=breakers[1]), time.monotonic()
        while True:
            try:
                assert ((await policy.call(up)) if is_async else policy.call(lambda: "page")) == "page"
                break
            except CircuitOpen:
                await asyncio.sleep(0.01)
        assert 0.2 < time.monotonic() - began < 0.3 + SLOW + AIR
        assert breakers[1].state is State.closed
        await client.aclose() if is_async else client.close()

    with own.running():
        asyncio.run(main())


# A locked file


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Another process holds the file locked."""
    code = (
        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1], isolation_level=None); "
        "c.execute('BEGIN EXCLUSIVE'); print('locked', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        yield
    finally:
        holder.communicate()


@pytest.mark.parametrize("count", [4, 64])
def test_stalls_on_a_locked_file_do_not_add_up_over_threads(
    tmp_path: Path, count: int, stalls: dict[str, float]
) -> None:
    path, events = tmp_path / "locked", []
    budget = FileBudget(path, timeout=SLOW, listeners=[events.append])
    healthy = FileBudget(tmp_path / "healthy", timeout=30.0)
    budget.acquire()
    healthy.acquire()
    took: dict[str, list[float]] = {"locked": [], "healthy": []}
    start = threading.Barrier(count + 1)

    def work(name: str, guard: FileBudget) -> None:
        start.wait()
        began = time.monotonic()
        guard.acquire()
        took[name].append(time.monotonic() - began)

    with locked(path):
        threads = [threading.Thread(target=work, args=("locked", budget)) for _ in range(count)]
        threads.append(threading.Thread(target=work, args=("healthy", healthy)))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert availability(events) == [False]
    stalls[f"locked file, {count} threads"] = max(took["locked"])
    stalls[f"healthy file beside it, {count} threads"] = max(took["healthy"])
    assert max(took["locked"]) < SLOW + AIR
    assert max(took["healthy"]) < AIR
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT tokens FROM budget").fetchone() == (495.0,)
