"""On a full disk letters are refused, and those that are there can be replayed and deleted."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from pathlib import Path

import pytest

from redouble._base import sqlite as _base_sqlite
from redouble.dead_letters import DeadLetters, Replayed, StoreError
from redouble.dead_letters import _sqlite as _letters_sqlite
from redouble.dead_letters._sqlite import SqliteStore
from support.dead_letters import print_nothing

# A full disk


def full():
    error = sqlite3.OperationalError("database or disk is full")
    error.sqlite_errorname = "SQLITE_FULL"
    return error


@pytest.fixture
def without_room(letters, monkeypatch):
    """A disk on which a write finds no room until the reserve is given up; counts what happened."""
    happened = []
    run = _base_sqlite.SQLiteFile._run
    reserve = Path(letters.store.name + "-reserve")

    def limited(self, work, begin):
        if begin == "BEGIN IMMEDIATE" and reserve.exists():
            happened.append("full")
            raise full()
        return run(self, work, begin)

    for payload in "abc":
        letters.put(payload=payload)
    monkeypatch.setattr(_base_sqlite.SQLiteFile, "_run", limited)
    return happened


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_on_a_full_disk_letters_are_refused_and_those_that_are_there_can_be_replayed(
    letters, without_room, asynchronous
):
    with pytest.raises(StoreError, match="the disk is full: make room"):
        asyncio.run(letters.aput()) if asynchronous else letters.put()
    if asynchronous:
        assert asyncio.run(letters.areplay(print_nothing)) == Replayed(replayed=3)
    else:
        assert letters.replay(print_nothing) == Replayed(replayed=3)
    assert without_room == ["full", "full"]


def test_on_a_full_disk_letters_can_be_discarded_and_purged(letters, without_room, clock):
    (first, *_) = letters
    assert letters.discard(first.id)
    clock.advance(1)
    assert letters.purge(older_than=0) == 2
    assert without_room == ["full"]
    letters.put()


def test_a_purge_on_a_full_disk_goes_in_small_steps(letters, clock, monkeypatch):
    for _ in range(20):
        letters.put(payload="x" * 10_000)
    clock.advance(1)
    drop, steps = _letters_sqlite._purge_some, []

    def limited(connection, *args):
        size = args[-1]
        steps.append(size)
        if size > 1 << 16:
            raise full()
        return drop(connection, *args)

    monkeypatch.setattr(_letters_sqlite, "_purge_some", limited)
    assert letters.purge(older_than=0) == 20
    assert steps == [1 << 20] * 2 + [1 << 16] * 4  # twice, with the reserve given up in between
    assert letters.depth() == 0

    def failing(*args):
        raise full()

    letters.put()
    clock.advance(1)
    monkeypatch.setattr(_letters_sqlite, "_purge_some", failing)
    with pytest.raises(StoreError, match="the disk is full"):
        letters.purge(older_than=0)

    def broken(*args):
        raise sqlite3.OperationalError("other")

    monkeypatch.setattr(_letters_sqlite, "_purge_some", broken)
    with pytest.raises(StoreError, match="other"):
        letters.purge(older_than=0)


def test_a_purge_of_many_lets_others_write_in_between(letters, clock):
    for _ in range(40):
        letters.put(payload="x" * 60_000)
    clock.advance(1)
    drop, depths = _letters_sqlite._purge_some, []

    def watched(connection, *args):
        depths.append(connection.execute("SELECT depth FROM tallies").fetchone()[0])
        return drop(connection, *args)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(_letters_sqlite, "_purge_some", watched)
        assert letters.purge(older_than=0) == 40
    assert len(depths) == 4
    assert depths == sorted(depths, reverse=True)


def test_a_full_disk_whose_reserve_was_used_up_is_told(letters, monkeypatch):
    letter = letters.put()
    Path(letters.store.name + "-reserve").unlink()

    def run(self, work, *args, begin=None):
        raise StoreError("full", location="x") from full()

    monkeypatch.setattr(SqliteStore, "_run", run)
    with pytest.raises(StoreError, match="full"):
        letters.discard(letter.id)


@pytest.mark.parametrize("trouble", ["little room", "no room", "short of room"])
def test_a_reserve_is_kept_only_where_there_is_room(tmp_path, monkeypatch, trouble):
    def write(handle, content):
        if trouble == "no room":
            raise OSError(28, "No space left on device")
        return len(content) - 1

    if trouble == "little room":
        monkeypatch.setattr(_letters_sqlite, "_PLENTY", 1 << 60)
    else:
        monkeypatch.setattr(os, "write", write)
    with DeadLetters(tmp_path / "x.db") as letters:
        letters.put()
    assert not (tmp_path / "x.db-reserve").exists()


def test_where_the_room_on_a_disk_is_not_known_it_is_not_scarce(tmp_path, monkeypatch):
    assert not _letters_sqlite.is_scarce(str(tmp_path / "nowhere"))
    monkeypatch.delattr(os, "statvfs")
    assert not _letters_sqlite.is_scarce(str(tmp_path))
