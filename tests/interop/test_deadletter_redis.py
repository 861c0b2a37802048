"""Dead letters in a real Redis: what they do in a file they do here too, for many processes, and without losing any."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import redouble
import test_deadletter as in_a_file
from interop.processes import Server, free_port, home, listening, program, serving, until
from redouble import Policy, _keeping, _letters_redis, _letters_sqlite, context
from redouble._letters import DeadLetter, Limits, Store, UnreadableLetter, iso, written
from redouble._letters_redis import RedisLetters
from redouble._letters_sqlite import SqliteStore
from redouble.deadletter import DeadLetters, Replayed, StoreTrouble
from redouble.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

redis = pytest.importorskip("redis", reason="redis-py is not installed: the extra 'interop' is needed")
redis_asyncio = pytest.importorskip("redis.asyncio")

ROOT = str(Path(redouble.__file__).parent.parent)
NOW = in_a_file.NOW
OPTIONS: dict[str, Any] = {
    "host": "127.0.0.1",
    "retry": None,
    "socket_timeout": 5,
    "socket_connect_timeout": 5,
}


@pytest.fixture
def client(redis_server: Server) -> Iterator[Any]:
    """A client of an empty Redis."""
    with redis.Redis(port=redis_server.port, **OPTIONS) as client:
        client.flushall()
        yield client


@pytest.fixture
def store(client: Any) -> RedisLetters:
    return RedisLetters(client, "letters")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(NOW)


@pytest.fixture
def events() -> list[Any]:
    return []


@pytest.fixture
def letters(store: RedisLetters, clock: FakeClock, events: list[Any]) -> DeadLetters:
    return DeadLetters(store, clock=clock, listeners=[events.append])


# What holds for a file


def names_in(code: Any) -> set[str]:
    inner = [names_in(constant) for constant in code.co_consts if hasattr(constant, "co_names")]
    return set(code.co_names).union(*inner)


def rules_of_any_store() -> dict[str, Callable[..., None]]:
    """The tests of letters in a file that ask for letters, or for a store, and know nothing of files."""
    of_files = {"_letters_sqlite", "_letters_file", "SqliteStore", "sqlite3", "tmp_path", "_connection"}
    of_files |= {"without_room", "locked"}
    return {
        name: test
        for name, test in vars(in_a_file).items()
        if name.startswith("test_")
        and {"letters", "store"} & set(test.__code__.co_varnames[: test.__code__.co_argcount])
        and not of_files & (names_in(test.__code__) | set(test.__code__.co_varnames))
    }


globals().update(rules_of_any_store())


def test_most_rules_of_letters_in_a_file_are_tested_here_too() -> None:
    assert len(rules_of_any_store()) >= 40


# Step by step beside the SQLite store

QUEUES = st.sampled_from(["default", "default", "bulk", "é;\x00"])
KEYS = st.sampled_from([None, None, "", "a", "b\n\\é"])
TEXTS = st.sampled_from(["", "x" * 300, "é😀\\u00e9", "\x00\n"])
STEPS = st.one_of(
    st.tuples(
        st.just("add"),
        QUEUES,
        KEYS,
        TEXTS,
        st.builds(
            Limits,
            rows=st.none() | st.integers(1, 5),
            size=st.none() | st.integers(1, 3000),
            oldest=st.none() | st.integers(-9, 9),
        ),
    ),
    st.tuples(
        st.just("look"), QUEUES, st.sampled_from([None, "waiting", "leased", "parked"]), st.integers(0, 4)
    ),
    st.tuples(st.just("claim"), st.integers(0, 9), st.integers(1, 9)),
    st.tuples(st.just("renew"), st.integers(0, 9), st.integers(1, 9)),
    st.tuples(st.just("settle"), st.integers(0, 9)),
    st.tuples(st.just("release"), st.integers(0, 9), st.none() | TEXTS, st.booleans(), st.booleans()),
    st.tuples(st.just("unpark"), st.integers(0, 9)),
    st.tuples(st.just("discard"), st.integers(0, 9)),
    st.tuples(st.just("purge"), QUEUES, st.integers(-9, 3)),
    st.tuples(st.just("pass_time"), st.sampled_from([-1, 0.1, 1, 5])),
)


class Both:
    """Two stores to which the same happens."""

    def __init__(self, one: Store, other: Store) -> None:
        self.stores, self.now, self.made = (one, other), 100.0, 0
        self.ids: list[str] = ["nothing"]
        self.leases: list[tuple[DeadLetter, str]] = [(DeadLetter(id="nothing"), "nobody")]

    def same(self, method: str, *args: Any, **fields: Any) -> Any:
        here, there = (getattr(store, method)(*args, **fields) for store in self.stores)
        assert here == there, method
        assert repr(here) == repr(there)
        return here

    def id(self, number: int) -> str:
        return self.ids[-1 - number % len(self.ids)]

    def lease(self, number: int) -> tuple[DeadLetter, str]:
        return self.leases[-1 - number % len(self.leases)]

    def add(self, queue: str, key: str | None, payload: str, limits: Limits) -> None:
        self.made += 1
        # Their order is not that of time.
        letter = DeadLetter(
            id=f"{self.made * 7 % 10}-{self.made:05}",
            queue=queue,
            idempotency_key=key,
            payload=payload,
            enqueued_at=iso(self.now),
            first_attempt_at=None if self.made % 2 else iso(0.0),
            error_message=payload,
        )
        oldest = None if limits.oldest is None else self.now + limits.oldest
        limits = Limits(limits.rows, limits.size, oldest)
        self.ids.append(self.same("add", letter, now=self.now, limits=limits).letter.id)

    def look(self, queue: str, state: Any, limit: int) -> None:
        found = self.same("list", queue, now=self.now, state=state, limit=limit, after="")
        after = found[-1].id if found else "3"
        self.same("list", queue, now=self.now, state=state, limit=limit, after=after)

    def claim(self, number: int, lease: float) -> None:
        owner = f"é {len(self.leases)}"
        claimed = self.same("claim", self.id(number), owner=owner, now=self.now, until=self.now + lease)
        if claimed is not None:
            self.leases.append((claimed, owner))

    def renew(self, number: int, lease: float) -> None:
        letter, owner = self.lease(number)
        self.same("renew", letter.id, owner=owner, until=self.now + lease)

    def settle(self, number: int) -> None:
        letter, owner = self.lease(number)
        self.same("settle", letter, owner=owner)

    def release(self, number: int, error: str | None, park: bool, count: bool) -> None:
        letter, owner = self.lease(number)
        self.same("release", letter.id, owner=owner, error=error, park=park, count=count)

    def unpark(self, number: int) -> None:
        self.same("unpark", self.id(number))

    def discard(self, number: int) -> None:
        self.same("discard", self.id(number))

    def purge(self, queue: str, age: float) -> None:
        self.same("purge", queue, before=self.now + age, now=self.now)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    def compare(self) -> None:
        for queue in self.same("depths"):
            for letter in self.same("list", queue, now=self.now, state=None, limit=99, after=""):
                assert self.same("get", letter.id, now=self.now) == letter


@pytest.mark.parametrize(
    "kind", [{}, {"decode_responses": True}, {"decode_responses": True, "encoding": "latin-1"}]
)
def test_what_the_sqlite_store_does_the_redis_store_does(
    client: Any, redis_server: Server, tmp_path: Path, kind: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_letters_redis, "AT_ONCE", 3)
    monkeypatch.setattr(_letters_sqlite, "AT_ONCE", 3)
    connect = _letters_sqlite.connect

    def quick(*args: Any) -> Any:
        connection = connect(*args)
        connection.execute("PRAGMA synchronous = OFF")
        return connection

    monkeypatch.setattr(_letters_sqlite, "connect", quick)
    rounds = 0

    @settings(max_examples=100, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(STEPS, min_size=20, max_size=50))
    def follow(steps: list[Any]) -> None:
        nonlocal rounds
        rounds += 1
        client.flushall()
        sqlite = SqliteStore(str(tmp_path / f"{rounds}.db"))
        both = Both(sqlite, RedisLetters(mine, "letters"))
        try:
            for name, *args in steps:
                getattr(both, name)(*args)
            both.compare()
            check_parts(client)
        finally:
            sqlite.close()

    with redis.Redis(port=redis_server.port, **OPTIONS, **kind) as mine:
        follow()


def check_parts(client: Any) -> None:
    """What is kept twice agrees, and nothing is left of letters that are gone."""
    fields = client.hgetall("{letters}:letters")
    of = {kind: {f for f in fields if f.startswith(kind)} for kind in (b"life ", b"content ", b"key ")}
    letters = len(of[b"life "])
    assert len(of[b"content "]) == letters
    assert len(of[b"key "]) == sum(b'"idempotency_key":null' not in fields[life] for life in of[b"life "])
    assert client.zcard("{letters}:index") == 2 * letters
    tallies = client.hgetall("{letters}:tallies")
    assert sum(int(n) for name, n in tallies.items() if not name.startswith(b"size")) == letters
    sizes = [json.loads(fields[life])["size"] for life in of[b"life "]]
    assert sum(int(n) for name, n in tallies.items() if name.startswith(b"size")) == sum(sizes)
    assert client.exists("{letters}:letters", "{letters}:index", "{letters}:tallies") == (3 if letters else 0)
    assert client.dbsize() <= 3


# Bounded steps


def put_many(store: Store, count: int, now: float = NOW) -> list[DeadLetter]:
    return [
        store.add(DeadLetter(id=f"{n:05}", payload=n), now=now + n, limits=Limits()).letter
        for n in range(count)
    ]


def test_a_purge_and_a_list_go_in_steps_until_all_is_done(store: RedisLetters, client: Any) -> None:
    put_many(store, 2500)
    store.claim("00007", owner="me", now=NOW, until=NOW + 9e9)
    client.config_resetstat()
    assert [x.id for x in store.list("default", now=NOW, state="leased", limit=9, after="")] == ["00007"]
    assert store.purge("default", before=NOW + 2400, now=NOW) == 2399
    calls = client.info("commandstats")["cmdstat_evalsha"]["calls"]
    assert calls == 3 + 3
    assert store.depths() == {"default": (101, 0)}
    everything = store.list("default", now=NOW, state=None, limit=9999, after="")
    assert [x.payload for x in everything] == [7, *range(2400, 2500)]


def test_a_lease_is_over_at_the_very_moment_until_which_it_was_taken(store: RedisLetters) -> None:
    put_many(store, 3)
    for letter, owner in (("00000", "a"), ("00001", "b"), ("00002", "c")):
        assert store.claim(letter, owner=owner, now=NOW, until=NOW + 9)
    assert store.list("default", now=NOW + 9, state="leased", limit=9, after="") == []
    assert store.purge("default", before=NOW + 1, now=NOW + 8.9) == 0
    assert store.purge("default", before=NOW + 1, now=NOW + 9) == 1
    assert store.claim("00001", owner="d", now=NOW + 9, until=NOW + 20)
    newest = store.add(DeadLetter(id="9"), now=NOW + 9, limits=Limits(rows=1))
    assert (newest.crowded_out, newest.depth) == (1, 2)


def test_at_most_so_many_are_discarded_for_one_that_comes(
    store: RedisLetters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_letters_redis, "AT_ONCE", 3)
    put_many(store, 20)
    added = store.add(DeadLetter(id="9"), now=NOW + 20, limits=Limits(rows=1, oldest=NOW + 20))
    assert (added.expired, added.crowded_out, added.depth) == (3, 3, 15)


def test_the_bytes_that_are_allowed_may_all_be_used(store: RedisLetters) -> None:
    size = sum(len(written(letter).encode()) for letter in put_many(store, 3))
    again = DeadLetter(id="00003", payload="é")
    size += len(written(again).encode())
    assert store.add(again, now=NOW + 3, limits=Limits(size=size)).crowded_out == 0
    assert store.add(again.replace(id="00004"), now=NOW + 4, limits=Limits(size=size)).crowded_out == 2


def test_nothing_is_left_when_the_last_letter_is_gone(store: RedisLetters, client: Any) -> None:
    store.add(DeadLetter(id="1", idempotency_key="k"), now=NOW, limits=Limits())
    assert client.dbsize() == 3
    store.discard("1")
    assert client.dbsize() == 0


# Sent twice


class Stuttering:
    """A client that sends every command twice, and hears the second answer only."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def execute_command(self, *words: Any) -> Any:
        raise AssertionError("not called")

    def evalsha(self, *words: Any) -> Any:
        self._client.evalsha(*words)
        return self._client.evalsha(*words)

    def eval(self, *words: Any) -> Any:
        self._client.eval(*words)
        return self._client.eval(*words)


def test_a_command_that_is_sent_again_is_done_once(client: Any, clock: FakeClock) -> None:
    told: list[int] = []
    letters = DeadLetters(RedisLetters(Stuttering(client), "letters"), clock=clock)
    letters.on_depth(2, lambda depth, queue: told.append(depth))
    letters.put(payload=1)
    letters.put(payload=2, idempotency_key="k")
    again = letters.put(payload=3, idempotency_key="k")
    assert (letters.depth(), again.puts, told) == (2, 2, [2])
    assert sorted(letter.payload for letter in letters) == [1, 3]
    assert letters.replay(in_a_file.fail()) == Replayed(failed=2)
    assert [letter.replays for letter in letters] == [1, 1]
    assert letters.replay(lambda letter: None) == Replayed(replayed=2)
    assert letters.depth() == 0


# Many processes


@contextmanager
def processes(code: str, count: int, *args: Any) -> Iterator[list[Any]]:
    """Runs a program in several processes, which wait for a line after they have said that they are ready."""
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, args)]
    env = {**os.environ, "PYTHONPATH": ROOT}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    running = [subprocess.Popen(command, env=env, **pipes) for _ in range(count)]
    try:
        assert [process.stdout.readline() for process in running if process.stdout] == ["ready\n"] * count
        for process in running:
            assert process.stdin
            process.stdin.write("go\n")
            process.stdin.flush()
        yield running
    finally:
        for process in running:
            process.kill()
            process.communicate(timeout=60)


BEGIN = """
    import sys, redis
    from redouble.deadletter import DeadLetters
    from redouble._letters_redis import RedisLetters
    client = redis.Redis(port=int(sys.argv[1]), retry=None, socket_timeout=20)
    letters = DeadLetters(RedisLetters(client, "letters"))
    client.ping()
    print("ready", flush=True)
    sys.stdin.readline()
"""


def test_eight_processes_put_200_each_and_all_are_there(
    client: Any, redis_server: Server, store: RedisLetters
) -> None:
    code = (
        BEGIN
        + """
    told = []
    letters.on_depth(1000, lambda depth, queue: told.append(depth))
    for number in range(200):
        letters.put(payload=number)
        letters.put(payload=number, idempotency_key=number, queue="keyed")
    print(len(told))
    """
    )
    with processes(code, 8, redis_server.port) as running:
        # The depth of 1000 was reached in one of them.
        assert sum(int(process.stdout.readline()) for process in running) == 1
    assert store.depths() == {"default": (1600, 0), "keyed": (200, 0)}
    kept = DeadLetters(store)
    assert sorted(letter.payload for letter in kept) == sorted([*range(200)] * 8)
    assert {letter.puts for letter in kept.queue("keyed")} == {8}
    check_parts(client)


def test_replayers_in_processes_share_the_letters_out(
    client: Any, redis_server: Server, store: RedisLetters
) -> None:
    letters = DeadLetters(store)
    for number in range(300):
        letters.put(payload=number)
    # Each handler notes that it is in: never two with one letter.
    code = (
        BEGIN
        + """
    def handler(letter):
        assert client.incr(f"in:{letter.id}") == 1
        client.rpush("seen", letter.payload)
        client.decr(f"in:{letter.id}")
        if letter.payload % 3 == 0 and letter.replays == 1:
            raise TimeoutError("no")
    done = letters.replay(handler)
    print(done.replayed, done.failed, flush=True)
    """
    )
    with processes(code, 4, redis_server.port) as running:
        counts = [tuple(map(int, process.stdout.readline().split())) for process in running]
    seen = sorted(map(int, client.lrange("seen", 0, -1)))
    left = [letter.payload for letter in letters]
    replayed, failed = map(sum, zip(*counts, strict=True))
    assert len(seen) == replayed + failed
    assert set(seen) == set(range(300))
    # A letter that failed in one process may be taken up by another that has not come to it yet.
    assert replayed + len(left) == 300
    assert all(letter.state == "waiting" and letter.replays == 1 for letter in letters)
    assert sum(process > (0, 0) for process in counts) >= 2


def test_a_process_killed_in_the_handler_leaves_the_letter_for_when_the_lease_is_over(
    client: Any, redis_server: Server, store: RedisLetters
) -> None:
    DeadLetters(store).put(payload=1)
    code = (
        BEGIN
        + """
    def handler(letter):
        print(letter.leased_by, flush=True)
        sys.stdin.readline()
    letters.replay(handler, lease=60.0)
    """
    )
    with processes(code, 1, redis_server.port) as (process,):
        owner = process.stdout.readline().strip()
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    (letter,) = DeadLetters(store)
    assert (letter.state, letter.leased_by) == ("leased", owner)
    assert DeadLetters(store).replay(in_a_file.print_nothing) == Replayed()
    later = DeadLetters(store, clock=lambda: in_a_file.time.time() + 61)
    assert later.replay(in_a_file.print_nothing) == Replayed(replayed=1)


DEADLY = (
    BEGIN
    + """
    import asyncio, os, signal
    def handler(letter):
        if letter.payload == "deadly":
            {"kill": lambda: os.kill(os.getpid(), signal.SIGKILL), "exit": sys.exit}[sys.argv[2]]()
        print(letter.payload, flush=True)
    if sys.argv[3] == "sync":
        letters.replay(handler, lease=0.02, park_after=3)
    else:
        asyncio.run(letters.areplay(handler, lease=0.02, park_after=3))
    """
)


@pytest.mark.parametrize("flavour", ["sync", "async"])
@pytest.mark.parametrize("way", ["kill", "exit"])
def test_a_letter_that_kills_its_process_is_parked_and_blocks_no_other(
    redis_server: Server, store: RedisLetters, way: str, flavour: str
) -> None:
    letters = DeadLetters(store)
    letters.put(payload="deadly")
    letters.put(payload="behind")
    for number in range(4):
        until(lambda: not letters.list(state="leased"), "end of the lease")
        with processes(DEADLY, 1, redis_server.port, way, flavour) as (process,):
            assert process.stdout.readline() == ("behind\n" if number == 3 else "")
    (letter,) = letters.list(state="parked")
    assert (letter.payload, letter.replays) == ("deadly", 3)


def test_of_a_stopped_replayer_and_the_one_that_took_over_only_the_holder_of_the_claim_counts(
    redis_server: Server, store: RedisLetters
) -> None:
    letters = DeadLetters(store)
    letters.put()
    code = (
        BEGIN
        + """
    def handler(letter):
        print("in", flush=True)
        sys.stdin.readline()
    print(letters.replay(handler, lease=0.3), flush=True)
    """
    )
    with processes(code, 1, redis_server.port) as (process,):
        assert process.stdout.readline() == "in\n"
        os.kill(process.pid, signal.SIGSTOP)
        until(lambda: not letters.list(state="leased"), "end of the lease")
        assert letters.replay(in_a_file.print_nothing) == Replayed(replayed=1)
        os.kill(process.pid, signal.SIGCONT)
        process.stdin.write("go\n")
        process.stdin.flush()
        assert process.stdout.readline() == "Replayed(replayed=0, failed=0, parked=0, skipped=1)\n"


def stalls_in_threads(policy: Policy, count: int) -> list[float]:
    """How long so many calls take that fail at once."""
    took: list[float] = []

    def fail() -> None:
        raise TimeoutError("slow")

    def work() -> None:
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            policy.call(fail)
        took.append(time.monotonic() - began)

    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return took


def stalls_in_tasks(policy: Policy, count: int) -> list[float]:
    async def fail() -> None:
        raise TimeoutError("slow")

    async def work() -> float:
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            await policy.call(fail)
        return time.monotonic() - began

    async def main() -> list[float]:
        return await asyncio.gather(*[work() for _ in range(count)])

    return asyncio.run(main())


@pytest.mark.parametrize("count", [1, 64])
@pytest.mark.parametrize("stalls", [stalls_in_threads, stalls_in_tasks])
def test_a_stopped_server_costs_failing_calls_no_more_time_than_they_have_and_a_little(
    redis_server: Server,
    client: Any,
    monkeypatch: pytest.MonkeyPatch,
    stalls: Callable[[Policy, int], list[float]],
    count: int,
) -> None:
    for module in (context, _keeping):
        monkeypatch.setattr(module, "BEYOND", 0.1)
    # As the client is by default: it would wait for ever.
    with redis.Redis(port=redis_server.port) as patient:
        store = RedisLetters(patient, "letters")
        policy = Policy(attempts=1, deadline=0.1, dead_letters=DeadLetters(store))
        store.depths()
        os.kill(redis_server.pid, signal.SIGSTOP)
        try:
            took = stalls(policy, count)
        finally:
            os.kill(redis_server.pid, signal.SIGCONT)
        for late in store._late:
            late.join(10)
    print(f"longest stall of {count} calls: {max(took):.2f} s")
    assert len(took) == count
    assert max(took) < 2.0  # a loaded machine is slow


# A server that dies and comes back


@contextmanager
def durable(folder_and_account: tuple[Path, dict[str, Any]], port: int) -> Iterator[Server]:
    """A server that has written to the disk what it says it has done."""
    _, account = folder_and_account
    options = f"--bind 127.0.0.1 --port {port} --save --appendonly yes --appendfsync always"
    command = [program("redis-server", "Redis"), *options.split()]
    with serving(lambda _: command, account, lambda _: listening(port), signal.SIGKILL) as server:
        yield server


def test_a_server_killed_in_the_middle_loses_no_letter_whose_put_has_returned() -> None:
    port, stored, errors = free_port(), [], []
    with home() as place, redis.Redis(port=port, **OPTIONS) as client:
        store = RedisLetters(client, "letters")
        letters = DeadLetters(store)

        def work(number: int) -> None:
            try:
                for turn in range(100_000):
                    letter = letters.put(payload="x" * 1000, idempotency_key=f"{number}-{turn % 50}")
                    stored.append((letter.id, letter.puts))
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        with durable(place, port) as server:
            for thread in threads:
                thread.start()
            until(lambda: len(stored) > 300, "puts")
            os.kill(server.pid, signal.SIGKILL)
            for thread in threads:
                thread.join()
        assert [type(error) for error in errors] == [StoreTrouble] * 4
        for error in errors:
            assert error.where == store.name
            assert isinstance(error.__cause__, (redis.ConnectionError, redis.TimeoutError))
        with pytest.raises(
            StoreTrouble, match=r"under 'letters' .* see that the server runs and can be reached"
        ):
            letters.put()
        with durable(place, port):
            until(lambda: answers(client), "start")
            kept = {letter.id: letter.puts for letter in letters}
            for letter_id, puts in stored:
                assert kept[letter_id] >= puts
            assert sum(kept.values()) <= len(stored) + 4  # those whose answer was lost
            check_parts(client)


def answers(client: Any) -> bool:
    try:
        return bool(client.ping())
    except redis.RedisError:
        return False


def test_a_server_that_hangs_is_told_of_in_time(client: Any, redis_server: Server) -> None:
    with redis.Redis(port=redis_server.port, **{**OPTIONS, "socket_timeout": 0.05}) as impatient:
        store = RedisLetters(impatient, "letters")
        store.depths()
        os.kill(redis_server.pid, signal.SIGSTOP)
        try:
            with pytest.raises(StoreTrouble, match="it may have been done or not"):
                DeadLetters(store).put()
        finally:
            os.kill(redis_server.pid, signal.SIGCONT)


def test_a_server_that_forgot_the_scripts_is_given_them_again(store: RedisLetters, client: Any) -> None:
    put_many(store, 1)
    client.script_flush()
    put_many(store, 2)
    assert store.depths() == {"default": (2, 0)}


# Trouble


@pytest.fixture
def full(client: Any) -> Iterator[Callable[[], None]]:
    """Fills the server's memory, until the test is over."""

    def fill() -> None:
        client.config_set("maxmemory", 1_000_000)

    yield fill
    client.config_set("maxmemory", 0)


def test_a_full_server_refuses_letters_and_lets_those_that_are_there_be_replayed(
    store: RedisLetters, client: Any, full: Callable[[], None]
) -> None:
    letters = DeadLetters(store)
    made = [letters.put(payload=number, idempotency_key=number) for number in range(5)]
    before = client.hgetall("{letters}:letters")
    full()
    for key in (None, 3):
        with pytest.raises(StoreTrouble, match="the server's memory is full: replay or purge letters"):
            letters.put(idempotency_key=key)
    assert client.hgetall("{letters}:letters") == before
    assert letters.replay(in_a_file.fail(), limit=1, park_after=1) == Replayed(parked=1)
    assert letters.unpark(made[0].id)
    assert letters.replay(in_a_file.print_nothing, limit=2) == Replayed(replayed=2)
    assert letters.discard(made[2].id)
    assert letters.purge(older_than=0) == 2
    assert client.dbsize() == 0


@pytest.mark.parametrize("part", ["letters", "index", "tallies"])
def test_a_part_that_was_lost_is_told_rather_than_passed_over(
    store: RedisLetters, client: Any, part: str
) -> None:
    letters = DeadLetters(store)
    letter = letters.put()
    client.delete(f"{{letters}}:{part}")
    for use in (letters.put, letters.list, letters.depths, letters.purge, lambda: letters.get(letter.id)):
        with pytest.raises(StoreTrouble, match=r"a part of the letters was lost.*: use another key"):
            use()  # type: ignore[operator]
    assert client.dbsize() == 2


@pytest.mark.parametrize("part", ["letters", "index", "tallies"])
def test_what_is_somebody_elses_is_left_as_it_is(store: RedisLetters, client: Any, part: str) -> None:
    client.set(f"{{letters}}:{part}", "mine")
    with pytest.raises(StoreTrouble, match=r"something else is there.*use another key"):
        DeadLetters(store).put()
    assert client.get(f"{{letters}}:{part}") == b"mine"
    assert client.dbsize() == 1


def test_a_later_layout_is_refused(store: RedisLetters, client: Any) -> None:
    put_many(store, 1)
    client.hset("{letters}:letters", "layout", "2")
    with pytest.raises(StoreTrouble, match=r"a later redouble \(layout 2\)\): install that one"):
        store.depths()


def test_a_replica_and_a_user_without_rights_are_told(client: Any, redis_server: Server) -> None:
    client.acl_setuser("reader", enabled=True, nopass=True, keys=["*"], commands=["+@read"])
    with redis.Redis(port=redis_server.port, username="reader", password="x", **OPTIONS) as reader:
        with pytest.raises(StoreTrouble, match="let the client's user run scripts on these keys"):
            RedisLetters(reader, "letters").depths()
    with redis.Redis(port=redis_server.port, username="nobody", password="x", **OPTIONS) as nobody:
        with pytest.raises(StoreTrouble, match="see to the client's user and password"):
            RedisLetters(nobody, "letters").depths()
    client.replicaof("127.0.0.1", "1")
    try:
        with pytest.raises(StoreTrouble, match="this server is a replica: connect to the primary"):
            DeadLetters(RedisLetters(client, "letters")).put()
    finally:
        client.replicaof("no", "one")
        client.acl_deluser("reader")


@pytest.mark.parametrize("part", ["content", "life", "no content"])
def test_a_letter_that_cannot_be_read_is_skipped_and_named(
    store: RedisLetters, client: Any, part: str, caplog: pytest.LogCaptureFixture
) -> None:
    put_many(store, 3)
    if part == "no content":
        client.hdel("{letters}:letters", "content 00001")
    else:
        client.hset("{letters}:letters", f"{part} 00001", "{")
    letters = DeadLetters(store, ttl=None, clock=FakeClock(NOW))
    assert [letter.id for letter in letters] == ["00000", "00001", "00002"]
    broken = letters.get("00001")
    assert isinstance(broken, UnreadableLetter)
    assert str(broken.replay_instructions).startswith("dead letter 00001 cannot be read (")
    assert "dead letter 00001 cannot be read" in caplog.text
    done = letters.replay(in_a_file.print_nothing, include_unreplayable=True)
    assert done == Replayed(replayed=2, skipped=1)
    letters.put()
    assert letters.purge(older_than=0) >= 0


def test_an_async_client_is_refused() -> None:
    with pytest.raises(TypeError, match=r"client must be a sync one, such as redis\.Redis"):
        RedisLetters(redis_asyncio.Redis(), "letters")
    with pytest.raises(TypeError, match=r"client must be a sync one"):
        RedisLetters(redis_asyncio.RedisCluster(host="127.0.0.1", port=1), "letters")


# Clusters


def test_letters_live_in_one_slot_of_a_cluster() -> None:
    port = free_port()
    with home() as (_, account):
        options = f"--bind 127.0.0.1 --port {port} --save --appendonly no --cluster-enabled yes"
        command = [program("redis-server", "Redis"), *options.split(), "--cluster-port", str(free_port())]
        with serving(lambda _: command, account, lambda _: listening(port)):
            with redis.Redis(port=port, **OPTIONS) as node:
                node.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
                until(lambda: node.cluster("info")["cluster_state"] == "ok", "state of the cluster")
            with redis.RedisCluster(host="127.0.0.1", port=port, socket_timeout=5) as cluster:
                letters = DeadLetters(RedisLetters(cluster, "letters"))
                for number in range(20):
                    letters.put(payload=number, idempotency_key=number)
                assert letters.replay(in_a_file.print_nothing, limit=15) == Replayed(replayed=15)
                assert [letter.payload for letter in letters] == list(range(15, 20))
                assert letters.purge(older_than=0) == 5
