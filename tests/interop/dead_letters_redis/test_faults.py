"""Dead letters in a real Redis: many processes, killed servers, full and foreign ones; none is lost."""

from __future__ import annotations

import asyncio
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

from interop.dead_letters_redis.letters_on_redis import OPTIONS, check_parts, put_many
from interop.processes import Server, free_port, home, listening, program, serving, until
from redouble import Policy, context
from redouble._engine import call as _call
from redouble.dead_letters import DeadLetters, Replayed, StoreError
from redouble.dead_letters._letter import UnreadableLetter
from redouble.dead_letters._redis import RedisStore
from redouble.testing import FakeClock
from support.dead_letters import NOW, fail, print_nothing
from support.programs import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

redis = pytest.importorskip("redis", reason="redis-py is not installed: the extra 'interop' is needed")
redis_asyncio = pytest.importorskip("redis.asyncio")


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
    from redouble.dead_letters import DeadLetters
    from redouble.dead_letters._redis import RedisStore
    client = redis.Redis(port=int(sys.argv[1]), retry=None, socket_timeout=20)
    letters = DeadLetters(RedisStore(client, "letters"))
    client.ping()
    print("ready", flush=True)
    sys.stdin.readline()
"""


def test_eight_processes_put_200_each_and_all_are_there(
    client: Any, redis_server: Server, store: RedisStore
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
    client: Any, redis_server: Server, store: RedisStore
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
    client: Any, redis_server: Server, store: RedisStore
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
    assert DeadLetters(store).replay(print_nothing) == Replayed()
    later = DeadLetters(store, clock=lambda: time.time() + 61)
    assert later.replay(print_nothing) == Replayed(replayed=1)


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
    redis_server: Server, store: RedisStore, way: str, flavour: str
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
    redis_server: Server, store: RedisStore
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
        assert letters.replay(print_nothing) == Replayed(replayed=1)
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
    for module in (context, _call):
        monkeypatch.setattr(module, "BEYOND", 0.1)
    # As the client is by default: it would wait for ever.
    with redis.Redis(port=redis_server.port) as patient:
        store = RedisStore(patient, "letters")
        policy = Policy(attempts=1, deadline=0.1, dead_letters=DeadLetters(store))
        store.depths()
        os.kill(redis_server.pid, signal.SIGSTOP)
        try:
            took = stalls(policy, count)
        finally:
            os.kill(redis_server.pid, signal.SIGCONT)
        for late in store._late:
            late.join(60)
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
        store = RedisStore(client, "letters")
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
        assert [type(error) for error in errors] == [StoreError] * 4
        for error in errors:
            assert error.location == store.name
            assert isinstance(error.__cause__, (redis.ConnectionError, redis.TimeoutError))
        with pytest.raises(
            StoreError, match=r"under 'letters' .* check that the server runs and can be reached"
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
        store = RedisStore(impatient, "letters")
        store.depths()
        os.kill(redis_server.pid, signal.SIGSTOP)
        try:
            with pytest.raises(StoreError, match="it may have been done or not"):
                DeadLetters(store).put()
        finally:
            os.kill(redis_server.pid, signal.SIGCONT)


def test_a_server_that_forgot_the_scripts_is_given_them_again(store: RedisStore, client: Any) -> None:
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
    store: RedisStore, client: Any, full: Callable[[], None]
) -> None:
    letters = DeadLetters(store)
    made = [letters.put(payload=number, idempotency_key=number) for number in range(5)]
    before = client.hgetall("{letters}:letters")
    full()
    for key in (None, 3):
        with pytest.raises(StoreError, match="the server's memory is full: replay or purge letters"):
            letters.put(idempotency_key=key)
    assert client.hgetall("{letters}:letters") == before
    assert letters.replay(fail(), limit=1, park_after=1) == Replayed(parked=1)
    assert letters.unpark(made[0].id)
    assert letters.replay(print_nothing, limit=2) == Replayed(replayed=2)
    assert letters.discard(made[2].id)
    assert letters.purge(older_than=0) == 2
    assert client.dbsize() == 0


@pytest.mark.parametrize("part", ["letters", "index", "tallies"])
def test_a_part_that_was_lost_is_told_rather_than_passed_over(
    store: RedisStore, client: Any, part: str
) -> None:
    letters = DeadLetters(store)
    letter = letters.put()
    client.delete(f"{{letters}}:{part}")
    for use in (letters.put, letters.list, letters.depths, letters.purge, lambda: letters.get(letter.id)):
        with pytest.raises(StoreError, match=r"a part of the letters was lost.*: use another key"):
            use()  # type: ignore[operator]
    assert client.dbsize() == 2


@pytest.mark.parametrize("part", ["letters", "index", "tallies"])
def test_what_is_somebody_elses_is_left_as_it_is(store: RedisStore, client: Any, part: str) -> None:
    client.set(f"{{letters}}:{part}", "mine")
    with pytest.raises(StoreError, match=r"something else is there.*use another key"):
        DeadLetters(store).put()
    assert client.get(f"{{letters}}:{part}") == b"mine"
    assert client.dbsize() == 1


def test_a_later_layout_is_refused(store: RedisStore, client: Any) -> None:
    put_many(store, 1)
    client.hset("{letters}:letters", "layout", "2")
    with pytest.raises(StoreError, match=r"a later redouble \(layout 2\)\): install that one"):
        store.depths()


def test_a_replica_and_a_user_without_rights_are_told(client: Any, redis_server: Server) -> None:
    client.acl_setuser("reader", enabled=True, nopass=True, keys=["*"], commands=["+@read"])
    with redis.Redis(port=redis_server.port, username="reader", password="x", **OPTIONS) as reader:
        with pytest.raises(StoreError, match="let the client's user run scripts on these keys"):
            RedisStore(reader, "letters").depths()
    with redis.Redis(port=redis_server.port, username="nobody", password="x", **OPTIONS) as nobody:
        with pytest.raises(StoreError, match="check the client's user and password"):
            RedisStore(nobody, "letters").depths()
    client.replicaof("127.0.0.1", "1")
    try:
        with pytest.raises(StoreError, match="this server is a replica: connect to the primary"):
            DeadLetters(RedisStore(client, "letters")).put()
    finally:
        client.replicaof("no", "one")
        client.acl_deluser("reader")


@pytest.mark.parametrize("part", ["content", "life", "no content"])
def test_a_letter_that_cannot_be_read_is_skipped_and_named(
    store: RedisStore, client: Any, part: str, caplog: pytest.LogCaptureFixture
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
    done = letters.replay(print_nothing, include_unreplayable=True)
    assert done == Replayed(replayed=2, skipped=1)
    letters.put()
    assert letters.purge(older_than=0) >= 0


def test_an_async_client_is_refused() -> None:
    with pytest.raises(TypeError, match=r"client must be a sync one, such as redis\.Redis"):
        RedisStore(redis_asyncio.Redis(), "letters")
    with pytest.raises(TypeError, match=r"client must be a sync one"):
        RedisStore(redis_asyncio.RedisCluster(host="127.0.0.1", port=1), "letters")
