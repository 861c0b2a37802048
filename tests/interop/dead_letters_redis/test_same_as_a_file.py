"""Dead letters in a real Redis do what they do in a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from interop.dead_letters_redis.letters_on_redis import OPTIONS, check_parts, put_many
from interop.processes import Server, free_port, home, listening, program, serving, until
from redouble.dead_letters import DeadLetters, Replayed
from redouble.dead_letters import _redis as _letters_redis
from redouble.dead_letters import _sqlite as _letters_sqlite
from redouble.dead_letters._letter import DeadLetter, Limits, Store, iso, to_json
from redouble.dead_letters._redis import RedisStore
from redouble.dead_letters._sqlite import SqliteStore
from redouble.testing import FakeClock
from support.dead_letters import NOW, fail, print_nothing
from unit.dead_letters import (
    test_dead_letters,
    test_leases,
    test_limits,
    test_put,
    test_replay,
    test_sqlite,
    test_where,
)

if TYPE_CHECKING:
    from collections.abc import Callable

redis = pytest.importorskip("redis", reason="redis-py is not installed: the extra 'interop' is needed")
redis_asyncio = pytest.importorskip("redis.asyncio")


RULES = (test_dead_letters, test_leases, test_limits, test_put, test_replay, test_sqlite, test_where)


def names_in(code: Any) -> set[str]:
    inner = [names_in(constant) for constant in code.co_consts if hasattr(constant, "co_names")]
    return set(code.co_names).union(*inner)


def rules_of_any_store() -> dict[str, Callable[..., None]]:
    """The tests of letters in a file that ask for letters, or for a store, and know nothing of files."""
    of_files = {"_letters_sqlite", "_base_sqlite", "SqliteStore", "sqlite3", "tmp_path", "_connection"}
    of_files |= {"without_room", "locked"}
    return {
        name: test
        for module in RULES
        for name, test in vars(module).items()
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
    connect = _letters_sqlite.LetterFile.connect

    def quick(*args: Any) -> Any:
        connection = connect(*args)
        connection.execute("PRAGMA synchronous = OFF")
        return connection

    monkeypatch.setattr(_letters_sqlite.LetterFile, "connect", quick)
    rounds = 0

    @settings(max_examples=100, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(STEPS, min_size=20, max_size=50))
    def follow(steps: list[Any]) -> None:
        nonlocal rounds
        rounds += 1
        client.flushall()
        sqlite = SqliteStore(str(tmp_path / f"{rounds}.db"))
        both = Both(sqlite, RedisStore(mine, "letters"))
        try:
            for name, *args in steps:
                getattr(both, name)(*args)
            both.compare()
            check_parts(client)
        finally:
            sqlite.close()

    with redis.Redis(port=redis_server.port, **OPTIONS, **kind) as mine:
        follow()


# Bounded steps


def test_a_purge_and_a_list_go_in_steps_until_all_is_done(store: RedisStore, client: Any) -> None:
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


def test_a_lease_is_over_at_the_very_moment_until_which_it_was_taken(store: RedisStore) -> None:
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
    store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_letters_redis, "AT_ONCE", 3)
    put_many(store, 20)
    added = store.add(DeadLetter(id="9"), now=NOW + 20, limits=Limits(rows=1, oldest=NOW + 20))
    assert (added.expired, added.crowded_out, added.depth) == (3, 3, 15)


def test_the_bytes_that_are_allowed_may_all_be_used(store: RedisStore) -> None:
    size = sum(len(to_json(letter).encode()) for letter in put_many(store, 3))
    again = DeadLetter(id="00003", payload="é")
    size += len(to_json(again).encode())
    assert store.add(again, now=NOW + 3, limits=Limits(size=size)).crowded_out == 0
    assert store.add(again.replace(id="00004"), now=NOW + 4, limits=Limits(size=size)).crowded_out == 2


def test_nothing_is_left_when_the_last_letter_is_gone(store: RedisStore, client: Any) -> None:
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
    letters = DeadLetters(RedisStore(Stuttering(client), "letters"), clock=clock)
    letters.on_depth(2, lambda depth, queue: told.append(depth))
    letters.put(payload=1)
    letters.put(payload=2, idempotency_key="k")
    again = letters.put(payload=3, idempotency_key="k")
    assert (letters.depth(), again.puts, told) == (2, 2, [2])
    assert sorted(letter.payload for letter in letters) == [1, 3]
    assert letters.replay(fail()) == Replayed(failed=2)
    assert [letter.replays for letter in letters] == [1, 1]
    assert letters.replay(lambda letter: None) == Replayed(replayed=2)
    assert letters.depth() == 0


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
                letters = DeadLetters(RedisStore(cluster, "letters"))
                for number in range(20):
                    letters.put(payload=number, idempotency_key=number)
                assert letters.replay(print_nothing, limit=15) == Replayed(replayed=15)
                assert [letter.payload for letter in letters] == list(range(15, 20))
                assert letters.purge(older_than=0) == 5
