"""Fixtures for tests of dead letters: a file with a clock and a listener, a store, a file that is locked."""

from __future__ import annotations

import sqlite3

import pytest

from redouble.dead_letters import DeadLetters
from redouble.dead_letters._sqlite import SqliteStore
from redouble.testing import FakeClock
from support.dead_letters import NOW


@pytest.fixture
def clock():
    return FakeClock(NOW)


@pytest.fixture
def events():
    return []


@pytest.fixture
def letters(tmp_path, clock, events):
    with DeadLetters(tmp_path / "letters.db", clock=clock, listeners=[events.append]) as letters:
        yield letters


@pytest.fixture
def store(tmp_path):
    store = SqliteStore(str(tmp_path / "store.db"))
    yield store
    store.close()


@pytest.fixture
def locked(tmp_path):
    """A file that another connection keeps locked."""
    path = tmp_path / "locked.db"
    with DeadLetters(path) as letters:
        letters.put(payload="first")
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        yield letters
        other.close()
