"""Letters are discarded by age, number and size, and by hand."""

from __future__ import annotations

import asyncio
import datetime
import sqlite3

import pytest

from redouble.dead_letters import DeadLettered, DeadLetters, Discarded, Replayed
from redouble.dead_letters import _sqlite as _letters_sqlite
from redouble.dead_letters._letter import Added, Limits
from support.dead_letters import NOW, add

# Growth


def test_beyond_the_limit_the_oldest_of_the_queue_go_and_it_is_told(tmp_path, clock, events):
    with DeadLetters(tmp_path / "x.db", max_rows=3, clock=clock, listeners=[events.append]) as letters:
        letters.put(queue="critical")
        for number in range(10):
            letters.put(payload=number)
            clock.advance(1)
        assert [letter.payload for letter in letters] == [7, 8, 9]
        assert letters.depths() == {"critical": 1, "default": 3}
    discarded = [event for event in events if isinstance(event, Discarded)]
    assert discarded == [Discarded("default", count=1, why="limit")] * 7


def test_beyond_the_bytes_the_oldest_go_but_never_the_one_just_put(tmp_path, clock):
    with DeadLetters(tmp_path / "x.db", max_bytes=10_000, clock=clock) as letters:
        for number in range(20):
            letters.put(payload=[number, "x" * 2000])
            clock.advance(1)
        assert [letter.payload[0] for letter in letters] == [16, 17, 18, 19]
        letters.put(payload="x" * 50_000)
        assert letters.depth() == 1


def test_a_letter_that_is_put_again_is_young_again(tmp_path, clock):
    with DeadLetters(tmp_path / "x.db", max_rows=2, clock=clock) as letters:
        for key in "abac":
            letters.put(idempotency_key=key)
            clock.advance(1)
        assert [letter.idempotency_key for letter in letters] == ["a", "c"]


def test_letters_past_their_time_go_when_others_come(tmp_path, clock, events):
    ttl = datetime.timedelta(days=14)
    with DeadLetters(tmp_path / "x.db", ttl=ttl, clock=clock, listeners=[events.append]) as letters:
        for payload in (1, 2):
            letters.put(payload=payload)
        clock.advance(ttl.total_seconds())
        letters.put(payload=3)
        assert letters.depth() == 3
        clock.advance(1)
        events.clear()
        letter = letters.put(payload=4)
        assert [letter.payload for letter in letters] == [3, 4]
        assert events == [DeadLettered(letter), Discarded("default", count=2, why="purged")]


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_letters_past_their_time_are_not_replayed(letters, clock, asynchronous):
    letters.put(payload="old")
    clock.advance(letters.ttl - 1)
    letters.put(payload="new")
    letters.put(payload="of age while the one before it is replayed")
    clock.advance(1)

    def handler(letter):
        seen.append(letter.payload)
        clock.advance(5)

    seen = []
    first = letters.replay(handler, limit=1)
    assert (first, seen) == (Replayed(replayed=1), ["old"])  # to the very second
    letters.put(payload="newest")
    clock.advance(letters.ttl - 8)
    done = asyncio.run(letters.areplay(handler)) if asynchronous else letters.replay(handler)
    assert (done, seen) == (Replayed(replayed=2, skipped=1), ["old", "new", "newest"])
    assert letters.depth() == 1
    endless = DeadLetters(letters.store, ttl=None, clock=clock)
    assert endless.replay(handler) == Replayed(replayed=1)


def test_without_limits_everything_stays(tmp_path, clock):
    with DeadLetters(tmp_path / "x.db", ttl=None, max_rows=None, max_bytes=None, clock=clock) as letters:
        letters.put()
        clock.advance(1e9)
        letters.put()
        assert letters.depth() == 2
        with pytest.raises(ValueError, match="older_than must be given: these dead letters have no ttl"):
            letters.purge()
        assert letters.purge(older_than=1e8) == 1


def test_a_purge_is_told_once_with_the_number(letters, clock, events):
    for number in range(3):
        letters.put(payload=number)
        clock.advance(3600)
    letters.put(queue="bulk")
    events.clear()
    assert letters.purge(older_than=datetime.timedelta(hours=1)) == 2
    assert letters.purge(older_than=datetime.timedelta(hours=1)) == 0
    assert letters.purge() == 0
    assert events == [Discarded("default", count=2, why="purged")]
    assert letters.depths() == {"default": 1, "bulk": 1}
    clock.advance(1)
    assert letters.purge(older_than=0, queue="bulk") == 1


def test_a_discarded_letter_is_gone_and_told(letters, events):
    letter = letters.put(queue="bulk")
    events.clear()
    assert letters.discard(letter.id)
    assert not letters.discard(letter.id)
    assert events == [Discarded("bulk", count=1, why="discarded")]
    assert letters.depths() == {}


def test_leased_letters_are_never_thrown_away_by_age_or_number(tmp_path, clock):
    with DeadLetters(tmp_path / "x.db", max_rows=1, ttl=100, clock=clock) as letters:
        letters.put(payload="old")

        def handler(letter):
            clock.advance(50)
            letters.put(payload="new")
            letters.put(payload="newer")
            assert letters.purge(older_than=0) == 0
            assert [letter.payload for letter in letters.list(state="leased")] == ["old"]

        assert letters.replay(handler, lease=1000).replayed == 1


def test_an_addition_says_what_became_of_the_queue(store):
    limits = Limits(rows=2)
    first = add(store, limits=limits)
    assert (first.before, first.depth, first.crowded_out) == (0, 1, 0)
    add(store, NOW + 1, limits)
    third = add(store, NOW + 2, limits)
    assert third == Added(third.letter, before=2, depth=2, crowded_out=1)


def test_at_most_so_many_are_discarded_for_one_that_comes(store, monkeypatch):
    monkeypatch.setattr(_letters_sqlite, "AT_ONCE", 3)
    for number in range(10):
        add(store, NOW + number)
    added = add(store, NOW + 20, Limits(rows=1, oldest=NOW + 20))
    assert (added.expired, added.crowded_out, added.depth) == (3, 3, 5)


def test_the_tallies_are_true_whatever_happens(store):
    letters = [
        add(store, NOW + number, payload="x" * number, idempotency_key=f"k{number % 7}").letter
        for number in range(20)
    ]
    claimed = store.claim(letters[0].id, owner="a", now=NOW, until=NOW + 9)
    store.release(claimed.id, owner="a", error="x", park=True)
    store.claim(letters[1].id, owner="a", now=NOW, until=NOW + 9)
    store.settle(letters[1], owner="nobody")
    store.discard(letters[2].id)
    connection = sqlite3.connect(store.name)
    counted = connection.execute(
        "SELECT queue, sum(1 - parked), sum(parked), sum(size), sum(length(CAST(content AS BLOB))) FROM letters GROUP BY queue"
    ).fetchall()
    kept = connection.execute("SELECT queue, depth, parked, size FROM tallies").fetchall()
    connection.close()
    assert [row[:4] for row in counted] == kept == [("default", 5, 1, kept[0][3])]
    assert counted[0][4] == kept[0][3]
