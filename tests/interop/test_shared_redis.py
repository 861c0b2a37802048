"""Budgets and breakers on a Redis server: the scripts, the keys, clients, many processes."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import textwrap
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import redouble
from interop.processes import Server, free_port, home, listening, program, serving, until
from redouble import CircuitOpen
from redouble.breaker import CircuitBreaker, State
from redouble.budget import TokenBudget
from redouble.events import CircuitChanged
from redouble.shared import RedisBreaker, RedisBudget
from redouble.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
from interop.shared_redis import OPTIONS, redis, redis_asyncio

# The timeouts of these clients are for slow machines.
pytestmark = pytest.mark.filterwarnings("ignore:the client of .* waits:RuntimeWarning")


ROOT = str(Path(redouble.__file__).parent.parent)


class Flavour:
    """A sync or an async client of a server, and a way to run what it gives."""

    def __init__(self, port: int, kind: str) -> None:
        self.is_async, self._runner = "asyncio" in kind, asyncio.Runner()
        maker = redis_asyncio.Redis if self.is_async else redis.Redis
        self.client: Any = maker(port=port, decode_responses="decoded" in kind, **OPTIONS)

    def run(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if not self.is_async:
            return method(*args, **kwargs)

        async def main() -> Any:
            return await method(*args, **kwargs)

        return self._runner.run(main())

    def close(self) -> None:
        self.run(self.client.aclose if self.is_async else self.client.close)
        self._runner.close()


@pytest.fixture(params=["sync", "sync-decoded", "asyncio", "asyncio-decoded"])
def flavour(request: pytest.FixtureRequest, redis_server: Server) -> Iterator[Flavour]:
    """Each kind of client."""
    flavour = Flavour(redis_server.port, request.param)
    yield flavour
    flavour.close()


@pytest.fixture
def client(redis_server: Server) -> Iterator[Any]:
    """A client that looks into an empty Redis."""
    with redis.Redis(port=redis_server.port, **OPTIONS) as client:
        client.flushall()
        yield client


def test_a_shared_budget_does_what_a_token_budget_does(flavour: Flavour, client: Any) -> None:
    draw = random.Random(20)
    for refund, earn, capacity in [(None, 1, 40), (3, 2, 33.3), (0, 0, 20), (None, 0.1, 12.7)]:
        client.delete("budget")
        model = TokenBudget(capacity, refund=refund, earn=earn)
        budgets = [
            RedisBudget(flavour.client, "budget", capacity, refund=refund, earn=earn, timeout=5.0)
            for _ in "ab"
        ]
        for _ in range(60):
            budget = draw.choice(budgets)
            if draw.random() < 0.5:
                how: Any = {"timeout": draw.random() < 0.3, "priority": draw.choice([0, -1])}
                assert flavour.run(budget.acquire, **how) == model.acquire(**how)
            else:
                cost = draw.choice([0.0, 5.0, 10.0])
                model.success(cost)
                flavour.run(budget.refresh)  # or it may believe that it is full,
                flavour.run(budget.success, cost)
                flavour.run(budget.refresh)  # and what was earned is sent a while later
            assert budget.tokens == model.tokens
            assert budget.available
            # No key: it is full.
            assert float(client.get("budget") or capacity) == model.tokens


class Circuits:
    """A breaker of one process, and one in Redis, to which the same happens."""

    def __init__(self, flavour: Flavour, client: Any, **rules: Any) -> None:
        self.flavour, self._store, self.clock = flavour, client, FakeClock(1000.0)
        self.heard: list[Any] = []
        self.told: list[Any] = []
        self.model = CircuitBreaker(**rules, clock=self.clock, listeners=[self.heard.append])
        # Two processes' worth of them, that believe nothing for long.
        self.shared = [
            RedisBreaker(flavour.client, "circuit", **rules, clock=self.clock, refresh_interval=1e-9,
                         listeners=[self.told.append], timeout=5.0) for _ in range(2)
        ]  # fmt: skip
        self.tickets: list[tuple[Any, Any]] = []

    def enter(self, breaker: RedisBreaker) -> None:
        self.tickets.append((ticket_of(self.model.enter), ticket_of(self.flavour.run, breaker.enter)))
        mine, theirs = self.tickets[-1]
        assert (mine is None) == (theirs is None)
        if mine is None:
            self.tickets.pop()

    def end(self, how: str, breaker: RedisBreaker, draw: random.Random) -> None:
        mine, theirs = self.tickets.pop(draw.randrange(len(self.tickets))) if self.tickets else (None, None)
        args = [OSError("off")] if how == "failure" else []
        getattr(self.model, how)(mine, *args)
        self.flavour.run(getattr(breaker, how), theirs, *args)

    def by_hand(self, how: str, breaker: RedisBreaker) -> None:
        getattr(self.model, how)()
        self.flavour.run(getattr(breaker, how))

    def pass_time(self, seconds: float) -> None:
        """The server's clock cannot be set; so what it remembers is moved into the past."""
        self.clock.advance(seconds)
        for field in ("ends", "since"):
            if held := self._store.hget("circuit", field):
                self._store.hset("circuit", field, float(held) - seconds * 1000)

    def compare(self, breaker: RedisBreaker) -> None:
        self.flavour.run(breaker.refresh)
        assert breaker.available
        assert breaker.state is self.model.state
        assert breaker.refuses() == self.model.refuses()
        if self.model.state is State.closed:
            assert breaker.counted == self.model.counted
        assert breaker.retry_after == pytest.approx(self.model.retry_after, abs=5.0)
        assert changes(self.told) == changes(self.heard)


def ticket_of(enter: Callable[..., Any], *args: Any) -> Any:
    try:
        return enter(*args)
    except CircuitOpen:
        return None


def changes(events: list[Any]) -> list[Any]:
    return [(e.before, e.after, e.delay, e.error_message) for e in events if isinstance(e, CircuitChanged)]


@pytest.mark.parametrize(
    "rules",
    [
        {"failures": 2, "open_for": 60.0},
        {"failures": 1, "successes": 2, "probes": 1, "open_for": 60.0},
        {"failures": 3, "successes": 3, "probes": 2, "open_for": 60.0},
        {"failures": 1, "successes": 1, "probes": 3, "open_for": 60.0},
    ],
    ids=str,
)
def test_a_shared_breaker_does_what_a_circuit_breaker_does(
    flavour: Flavour, client: Any, rules: dict[str, Any]
) -> None:
    draw, both = random.Random(20), Circuits(flavour, client, **rules)
    for _ in range(200):
        breaker = draw.choice(both.shared)
        both.clock.advance(0.001)
        step = draw.choices(
            ["enter", "success", "failure", "release", "time", "open", "close"], [9, 3, 4, 2, 3, 0.2, 0.4]
        )[0]
        if step == "enter":
            both.enter(breaker)
        elif step == "time":
            both.pass_time(draw.choice([20.0, 61.0]))
        elif step in ("open", "close"):
            both.by_hand(step, breaker)
        else:
            both.end(step, breaker, draw)
        both.compare(breaker)
    assert {after for _, after, _, _ in changes(both.heard)} == set(State)


def test_a_script_that_the_server_forgot_is_sent_again(flavour: Flavour, client: Any) -> None:
    budget = RedisBudget(flavour.client, "budget", capacity=10)
    assert flavour.run(budget.acquire) == 5.0
    client.script_flush()
    assert flavour.run(budget.acquire) == 5.0
    assert budget.available
    assert client.get("budget") == b"0"


def test_a_key_that_nobody_uses_is_forgotten(client: Any) -> None:
    budget = RedisBudget(client, "budget", ttl=60.0)
    budget.acquire()
    assert 50_000 < client.pttl("budget") <= 60_000
    client.pexpire("budget", 1)
    until(lambda: not client.exists("budget"), "the end of the key")
    assert budget.refresh() == 500.0
    breaker = RedisBreaker(client, "circuit", ttl=60.0, open_for=45.0)
    breaker.failure(None, OSError())
    assert 80_000 < client.pttl("circuit") <= 90_000  # at least until it has been open and half-open
    breaker.open()
    assert client.pttl("circuit") == -1  # by hand: until somebody closes it
    breaker.close()
    assert client.pttl("circuit") > 0


def test_a_full_budget_leaves_no_key(client: Any) -> None:
    budget = RedisBudget(client, "budget")
    cost = budget.acquire()
    assert client.exists("budget")
    budget.success(cost)
    assert not client.exists("budget")
    assert budget._full


@pytest.mark.parametrize("held", ["nan", "inf", "-inf", "-5", "1e400"])
def test_what_is_no_amount_counts_as_nothing(client: Any, held: str) -> None:
    client.set("budget", held)
    budget = RedisBudget(client, "budget")
    assert (budget.acquire(), budget.refresh(), budget.available) == (0.0, 0.0, True)
    budget.success(5.0)
    assert client.get("budget") == b"5"


def fill(client: Any, what: str) -> None:
    client.delete("key")
    if what == "text":
        client.set("key", "somebody's")
    elif what == "list":
        client.rpush("key", "somebody's")
    else:
        client.hset("key", "owner", "somebody")


@pytest.mark.parametrize("what", ["text", "list", "hash"])
@pytest.mark.parametrize("kind", [RedisBudget, RedisBreaker])
def test_a_key_that_holds_something_else_is_left_as_it_is(client: Any, kind: Any, what: str) -> None:
    fill(client, what)
    before = client.dump("key")
    events: list[Any] = []
    guard = kind(client, "key", listeners=[events.append])
    guard.refresh()
    assert not guard.available
    assert events[0].error_message
    assert client.dump("key") == before


def test_a_budget_and_a_breaker_cannot_share_a_key(client: Any) -> None:
    budget, breaker = RedisBudget(client, "key"), RedisBreaker(client, "key")
    budget.acquire()
    breaker.failure(None, OSError())
    assert (budget.available, breaker.available) == (True, False)


def test_capacities_may_differ_while_a_new_version_is_rolled_out(client: Any) -> None:
    old, new = RedisBudget(client, "budget", capacity=500), RedisBudget(client, "budget", capacity=20)
    old.acquire()
    assert new.acquire() == 5.0
    assert old.refresh() == 15.0


def test_sync_and_async_clients_share_one_budget(client: Any, redis_server: Server) -> None:
    other = Flavour(redis_server.port, "asyncio")
    try:
        budget = RedisBudget(client, "budget", capacity=20)
        asynchronous = RedisBudget(other.client, "budget", capacity=20)
        assert [budget.acquire(), other.run(asynchronous.acquire), budget.acquire()] == [5.0] * 3
        assert [other.run(asynchronous.acquire), budget.acquire()] == [5.0, 0.0]
        other.run(asynchronous.success, 5.0)
        assert budget.refresh() == 5.0
    finally:
        other.close()


@pytest.fixture(scope="module")
def cluster() -> Iterator[int]:
    """A cluster of one; gives its port."""
    server, port = program("redis-server", "Redis"), free_port()
    options = f"--port {port} --bind 127.0.0.1 --save --cluster-enabled yes --cluster-port {free_port()}"
    with home() as (_, account), serving(lambda _: [server, *options.split()], account, lambda _: listening(port)):  # fmt: skip
        with redis.Redis(port=port, **OPTIONS) as client:
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
            until(lambda: client.cluster("INFO")["cluster_state"] == "ok", "a cluster")
        yield port


def test_guards_work_on_a_cluster(cluster: int) -> None:
    client = redis.RedisCluster(host="127.0.0.1", port=cluster)
    try:
        budget, breaker = (
            RedisBudget(client, "budget", capacity=10),
            RedisBreaker(client, "circuit", failures=1),
        )
        assert [budget.acquire() for _ in range(3)] == [5.0, 5.0, 0.0]
        breaker.failure(breaker.enter(), OSError())
        assert breaker.state is State.open
        assert (budget.is_async, budget.available, breaker.available) == (False, True, True)
    finally:
        client.close()


def test_guards_work_on_a_cluster_with_asyncio(cluster: int) -> None:
    async def main() -> None:
        client = redis_asyncio.RedisCluster(host="127.0.0.1", port=cluster)
        budget = RedisBudget(client, "budget-of-tasks", capacity=10, timeout=5.0)
        granted = [await budget.acquire() for _ in range(3)]
        await client.aclose()
        assert (granted, budget.is_async, budget.available) == ([5.0, 5.0, 0.0], True, True)

    asyncio.run(main())


@contextmanager
def together(code: str, count: int, *args: Any) -> Iterator[Callable[[], list[int]]]:
    """Runs a program in several processes; gives a function that lets all of them begin at once.

    The program says that it is ready, and then answers each line with a number.
    """
    processes: list[Any] = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code), *map(str, args)],
            env={**os.environ, "PYTHONPATH": ROOT},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(count)
    ]

    def begin() -> list[int]:
        for process in processes:
            process.stdin.write("go\n")
            process.stdin.flush()
        return [int(process.stdout.readline()) for process in processes]

    try:
        assert [process.stdout.readline() for process in processes] == ["ready\n"] * count
        yield begin
    finally:
        for process in processes:
            process.communicate(timeout=60)


def test_eight_processes_never_overspend(client: Any, redis_server: Server) -> None:
    code = """
        import sys, redis
        from redouble.shared import RedisBudget
        client = redis.Redis(port=int(sys.argv[1]), retry=None, socket_timeout=10)
        budget = RedisBudget(client, "budget", capacity=4001, timeout=10.0)
        client.ping()
        print("ready", flush=True)
        sys.stdin.readline()
        granted = lowest = 0
        while budget.acquire():
            granted += 1
            lowest = min(lowest, budget.tokens)
        assert budget.available and lowest == 0
        print(granted)
    """
    with together(code, 8, redis_server.port) as begin:
        assert sum(begin()) == 800
    assert client.get("budget") == b"1"


@pytest.mark.parametrize("probes", [1, 3])
def test_half_open_exactly_so_many_probes_get_through_over_all_processes(
    client: Any, redis_server: Server, probes: int
) -> None:
    code = """
        import sys, threading, redis
        from redouble import CircuitOpen
        from redouble.shared import RedisBreaker
        client = redis.Redis(port=int(sys.argv[1]), retry=None, socket_timeout=10)
        client.ping()

        def call(breaker, start, tickets):
            start.wait()
            try:
                tickets.append(breaker.enter())
            except CircuitOpen as error:
                assert 0 < error.retry_after <= 60.0

        print("ready", flush=True)
        for _ in sys.stdin:
            breaker = RedisBreaker(client, "circuit", open_for=60.0, probes=int(sys.argv[2]), timeout=10.0)
            tickets, start = [], threading.Barrier(8)
            threads = [threading.Thread(target=call, args=(breaker, start, tickets)) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert breaker.available
            print(len(tickets), flush=True)
    """
    breaker = RedisBreaker(client, "circuit", failures=1, open_for=60.0)
    with together(code, 4, redis_server.port, probes) as begin:
        for _ in range(30):
            breaker.close()
            breaker.failure(None, OSError())
            client.hset("circuit", "ends", 1)  # long over
            assert sum(begin()) == probes


def test_other_processes_see_an_open_circuit_soon(client: Any) -> None:
    here, there = (RedisBreaker(client, "circuit", failures=2, refresh_interval=0.1) for _ in range(2))
    ticket = there.enter()
    for _ in range(2):
        here.failure(here.enter(), TimeoutError("slow"))
    assert there.enter() == ticket  # not yet: it looked a moment ago
    time.sleep(0.1)
    with pytest.raises(CircuitOpen, match="TimeoutError: slow"):
        there.enter()
    here.close()
    assert there.refuses()
    time.sleep(0.1)
    there.enter()
