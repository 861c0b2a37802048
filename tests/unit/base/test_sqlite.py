"""A SQLite file runs one transaction at a time, belongs to one program, and is left as it is by others."""

from __future__ import annotations

import sqlite3

import pytest

from redouble._base.clock import real_now
from redouble._base.sqlite import SQLiteFile, SQLiteFileError, is_busy, is_full, migrate, open_file

OURS = 0x1234
STEPS = (("CREATE TABLE things (name TEXT)",), ("ALTER TABLE things ADD COLUMN size INTEGER DEFAULT 7",))


class Things(SQLiteFile):
    def connect(self, file):
        return open_file(self.path, lambda connection: None)

    def run(self, work, *args):
        return self.transact(work, *args, until=real_now() + 0.05)


def prepared(connection, steps=STEPS):
    migrate(connection, "things.db", OURS, steps, "a list of things")
    connection.execute("INSERT INTO things (name) VALUES ('a')")
    return connection.execute("SELECT count(*) FROM things").fetchone()[0]


@pytest.fixture
def things(tmp_path):
    things = Things(str(tmp_path / "things.db"))
    yield things
    things.close()


def test_a_subclass_must_say_how_to_connect(tmp_path):
    with pytest.raises(NotImplementedError):
        SQLiteFile(str(tmp_path / "x.db")).transact(len, until=real_now())


def test_a_transaction_that_fails_leaves_nothing(things):
    assert things.run(prepared) == 1

    def fail(connection):
        prepared(connection)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        things.run(fail)
    assert things.run(prepared) == 2


def test_an_older_layout_gets_the_steps_it_lacks(things):
    assert things.run(prepared, STEPS[:1]) == 1
    assert things.run(prepared) == 2
    rows = things.run(lambda connection: connection.execute("SELECT * FROM things").fetchall())
    assert rows == [("a", 7), ("a", 7)]


def test_a_newer_layout_and_a_file_of_another_program_are_refused(things, tmp_path):
    things.run(prepared)
    with pytest.raises(SQLiteFileError, match=r"a later redouble \(layout 2, this one knows 1\)"):
        things.run(prepared, STEPS[:1])
    other = Things(str(tmp_path / "other.db"))
    other.run(lambda connection: connection.execute("CREATE TABLE notes (text TEXT)"))
    with pytest.raises(SQLiteFileError, match="is a database, but not a list of things"):
        other.run(prepared)
    other.close()


def test_a_locked_file_is_waited_for_until_the_time_is_up(things):
    things.run(prepared)
    holder = sqlite3.connect(things.path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(sqlite3.OperationalError) as caught:
        things.run(prepared)
    assert is_busy(caught.value)
    assert not is_full(caught.value)
    holder.close()
    assert things.run(prepared) == 2
