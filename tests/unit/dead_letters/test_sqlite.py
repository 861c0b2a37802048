"""Letters in a file: moved, deleted, forked, damaged and foreign files."""

from __future__ import annotations

import gc
import os
import pickle
import sqlite3
import sys
import threading
import warnings
from pathlib import Path

import pytest

from conftest import watchdog
from redouble._base import sqlite as _base_sqlite
from redouble.dead_letters import DeadLetters, Replayed, StoreError
from redouble.dead_letters import _sqlite as _letters_sqlite
from redouble.dead_letters._letter import UnreadableLetter
from redouble.dead_letters._sqlite import SqliteStore
from support.dead_letters import add, print_nothing


def test_a_file_that_is_deleted_or_replaced_is_made_anew_rather_than_written_in_the_void(letters, tmp_path):
    letters.put(payload=1)
    for file in tmp_path.iterdir():
        file.unlink()
    letters.put(payload=2)
    assert [letter.payload for letter in letters] == [2]
    (tmp_path / "letters.db").rename(tmp_path / "old.db")
    assert letters.depth() == 0


@pytest.mark.parametrize("how", ["moved", "deleted"])
def test_a_file_that_is_moved_or_deleted_under_others_fails_nobody_and_loses_nothing(tmp_path, how, caplog):
    """Every put failed until the others had acted, and the letters of a moved file were lost with its log."""
    path, moved = tmp_path / "x.db", tmp_path / "old.db"
    with DeadLetters(path) as one, DeadLetters(path) as other, DeadLetters(path) as third:
        one.put(payload=1)
        other.put(payload=2)
        third.put(payload=3)
        path.rename(moved)
        if how == "deleted":
            moved.unlink()
        one.put(payload=4)
        one.put(payload=5)
        other.put(payload=6)
        assert [letter.payload for letter in third] == [4, 5, 6]
    with DeadLetters(path) as again:
        assert [letter.payload for letter in again] == [4, 5, 6]
    if how == "moved":
        with DeadLetters(moved) as old:
            assert [letter.payload for letter in old] == [1, 2, 3]
    assert [file.name for file in tmp_path.iterdir() if "-wal" in file.name] == []


def test_a_file_that_is_moved_is_complete_when_its_store_is_closed(tmp_path):
    with DeadLetters(tmp_path / "x.db") as letters:
        letters.put(payload=1)
        (tmp_path / "x.db").rename(tmp_path / "old.db")
    with DeadLetters(tmp_path / "old.db") as old:
        assert [letter.payload for letter in old] == [1]


def test_a_log_that_nobody_can_copy_is_kept_beside_the_new_file(tmp_path, caplog):
    path = tmp_path / "x.db"
    log = tmp_path / "x.db-wal"
    log.write_bytes(b"letters of a file that was moved")
    (tmp_path / "x.db-shm").touch()
    with DeadLetters(path) as letters:
        letters.put()
    (kept,) = [file for file in tmp_path.iterdir() if file.name.startswith("x.db-wal-")]
    assert kept.read_bytes() == b"letters of a file that was moved"
    assert f"Its log is kept as {kept}: if that is not empty, rename it" in caplog.text


def test_a_log_in_trouble_does_not_keep_a_store_from_closing(letters, tmp_path, monkeypatch):
    letters.put()

    class Failing:
        Error = sqlite3.Error
        closed = False

        def rollback(self):
            raise sqlite3.OperationalError("disk I/O error")

        def close(self):
            self.closed = True

    connection = Failing()
    monkeypatch.setattr(_base_sqlite, "_CHECKPOINTS", 2)
    _base_sqlite.close(connection, str(tmp_path / "letters.db"), (0, 0))
    assert connection.closed


@pytest.mark.skipif(os.name != "posix", reason="there are no modes here")
def test_a_file_at_the_end_of_a_dangling_link_is_readable_by_its_owner_alone(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link.db").symlink_to(tmp_path / "further.db")
    (tmp_path / "further.db").symlink_to(tmp_path / "folder" / "x.db")
    before = os.umask(0)
    try:
        with DeadLetters(tmp_path / "link.db") as letters:
            letters.put(payload=1)
            modes = {file.name: file.stat().st_mode & 0o777 for file in (tmp_path / "folder").iterdir()}
            assert modes == {f"x.db{ending}": 0o600 for ending in ("", "-shm", "-wal", "-reserve")}
            assert letters.depth() == 1
    finally:
        os.umask(before)


@pytest.mark.skipif(os.name != "posix", reason="folders cannot be locked here")
def test_one_process_makes_the_file_while_others_wait(tmp_path):
    import fcntl

    handle = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    store = SqliteStore(str(tmp_path / "x.db"), patience=0.01)
    with pytest.raises(StoreError, match="another process has kept it locked for too long"):
        add(store)
    os.close(handle)
    add(store)
    assert store.depths() == {"default": (1, 0)}
    store.close()


def test_a_file_that_another_process_makes_in_the_last_moment_is_taken(tmp_path, monkeypatch):
    path = str(tmp_path / "x.db")
    real = _base_sqlite._lock_folder

    def locked(folder):
        handle = real(folder)
        (tmp_path / "x.db").touch()
        (tmp_path / "x.db-wal").write_bytes(b"live")
        return handle

    monkeypatch.setattr(_base_sqlite, "_lock_folder", locked)
    _base_sqlite.create_file(path, pytest.fail)
    assert (tmp_path / "x.db-wal").read_bytes() == b"live"


def test_a_file_that_cannot_be_laid_out_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(_letters_sqlite, "STEPS", (("CREATE NONSENSE",),))
    with pytest.raises(StoreError, match="syntax error"):
        DeadLetters(tmp_path / "x.db").put()
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_moved_in_the_middle_of_a_put_is_made_anew_and_the_letter_is_in_it(letters, tmp_path):
    """The log that is opened by its name may be that of another file by then."""
    file, moves = tmp_path / "letters.db", []
    tally = _letters_sqlite._tally

    def moved(connection, *args):
        if not moves:
            moves.append(file.rename(tmp_path / "old.db"))
            connection.execute("SELECT nonsense FROM nowhere")
        return tally(connection, *args)

    letters.put(payload="before")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(_letters_sqlite, "_tally", moved)
        letters.put(payload="new")
    assert [letter.payload for letter in letters] == ["new"]
    with DeadLetters(tmp_path / "old.db") as old:
        assert [letter.payload for letter in old] == ["before"]


def test_a_file_that_is_moved_while_it_is_opened_is_not_used(letters, tmp_path, monkeypatch):
    letters.put(payload="before")
    letters.close()
    layout, moves = _base_sqlite.layout_of, []

    def moved(*args):
        if not moves:
            moves.append((tmp_path / "letters.db").rename(tmp_path / "old.db"))
        return layout(*args)

    monkeypatch.setattr(_base_sqlite, "layout_of", moved)
    letters.put(payload="new")
    assert [letter.payload for letter in letters] == ["new"]


def test_where_folders_cannot_be_locked_the_file_is_made_without(tmp_path, monkeypatch):
    fcntl = pytest.importorskip("fcntl")

    def refuse(handle, operation):
        raise OSError(95, "Operation not supported")

    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "flock", refuse)
        with DeadLetters(tmp_path / "x.db") as letters:
            letters.put()
    monkeypatch.setitem(sys.modules, "fcntl", None)
    with DeadLetters(tmp_path / "y.db") as letters:
        letters.put()


def test_a_closed_store_opens_again_when_it_is_asked(letters):
    letters.put()
    letters.close()
    letters.close()
    assert letters.depth() == 1


def test_a_put_from_within_a_put_is_refused_rather_than_waiting_for_itself(letters):
    assert isinstance(letters.store, SqliteStore)
    with letters.store._file._turn, pytest.raises(StoreError, match="in use further up in this thread"):
        letters.put()
    letters.put()


def test_an_interrupt_in_the_middle_leaves_nothing_half_done(letters, monkeypatch):
    letters.put()

    def interrupted(*args, **fields):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(_letters_sqlite, "_drop", interrupted)
        with pytest.raises(KeyboardInterrupt):
            letters.put()
    assert letters.depth() == 1
    assert letters.put()


def test_before_a_fork_every_connection_is_closed(letters):
    letters.put()
    connection = letters.store._file._connection
    _base_sqlite._before_fork()
    _base_sqlite._after_fork()
    with pytest.raises(sqlite3.ProgrammingError):
        connection.execute("SELECT 1")
    assert letters.depth() == 1


def test_a_forked_child_waits_for_no_thread_of_its_parent(letters):
    assert isinstance(letters.store, SqliteStore)
    turn = letters.store._file._turn
    holding, over = threading.Event(), threading.Event()

    def wait_for_the_file():
        with turn:
            holding.set()
            over.wait(60)

    thread = threading.Thread(target=wait_for_the_file)
    thread.start()
    holding.wait(60)
    _base_sqlite._before_fork()
    _base_sqlite._after_fork_in_child()
    with watchdog():
        letters.put()
    over.set()
    thread.join()


def test_a_connection_that_came_with_a_fork_nobody_told_of_is_left_alone(letters, monkeypatch):
    letters.put()
    inherited = letters.store._file._connection
    monkeypatch.setattr(os, "getpid", lambda: -1)
    letters.put()
    assert {inherited, letters.store._file._connection} <= _base_sqlite.SQLiteFile._open
    assert letters.depth() == 2
    _base_sqlite.SQLiteFile._open.remove(inherited)
    inherited.close()


def test_a_store_that_goes_in_a_cycle_leaves_no_connection_open(tmp_path):
    def leave_behind():
        store = SqliteStore(str(tmp_path / "letters.db"))
        store.depths()
        connection, cycle = store._file._connection, [store]
        store.cycle = cycle
        del store
        # Puts the store behind the connection, where the collector comes to it last.
        gc.collect()
        return id(connection)

    gc.collect()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        connection = leave_behind()
        gc.collect()
    assert [str(warning.message) for warning in caught] == []
    assert connection not in map(id, _base_sqlite.SQLiteFile._open)


def test_a_store_that_is_dropped_closes_its_file(tmp_path):
    store = SqliteStore(str(tmp_path / "x.db"))
    add(store)
    connection = store._file._connection
    del store
    gc.collect()
    with pytest.raises(sqlite3.ProgrammingError):
        connection.execute("SELECT 1")


# Trouble


def trouble(path, use=lambda letters: letters.put()):
    with DeadLetters(path) as letters, pytest.raises(StoreError) as caught:
        use(letters)
    assert caught.value.location == str(path)
    assert str(path) in str(caught.value)
    assert isinstance(pickle.loads(pickle.dumps(caught.value)), StoreError)
    return caught.value


def test_a_file_that_is_no_database_is_refused_and_left_as_it_is(tmp_path):
    path = tmp_path / "x.db"
    noise = os.urandom(5000)
    path.write_bytes(noise)
    error = trouble(path)
    assert "it is not a database: use another file" in str(error)
    assert isinstance(error.__cause__, sqlite3.DatabaseError)
    assert path.read_bytes() == noise
    trouble(path, lambda letters: letters.depth())


def test_a_damaged_file_is_told(tmp_path):
    path = tmp_path / "x.db"
    with DeadLetters(path) as letters:
        for _ in range(50):
            letters.put(payload="x" * 2000)
    content = bytearray(path.read_bytes())
    content[4096:] = os.urandom(len(content) - 4096)
    path.write_bytes(content)
    assert "it is damaged" in str(trouble(path))


@pytest.mark.parametrize(
    "damage",
    [
        "content = '{'",
        "content = '[]'",
        "content = 7",
        "content = CAST(x'7bff' AS TEXT)",
        "leased_until = -1e999",
    ],
)
def test_a_letter_that_cannot_be_read_is_skipped_and_named(letters, damage, caplog):
    """One damaged letter used to fail every list and every replay of its queue."""
    first, broken, last = (letters.put(payload=payload, idempotency_key=payload) for payload in "abc")
    damage = damage.replace("-1e999", "1e300")
    letters.store._file._connection.execute(f"UPDATE letters SET {damage} WHERE id = ?", (broken.id,))
    assert [letter.id for letter in letters] == [first.id, broken.id, last.id]
    stand_in = letters.get(broken.id)
    assert isinstance(stand_in, UnreadableLetter)
    assert (stand_in.idempotency_key, stand_in.payload, stand_in.replayable) == ("b", None, False)
    assert stand_in.replay_instructions.startswith(f"dead letter {broken.id} cannot be read (")
    assert f"dead letter {broken.id} cannot be read" in caplog.text
    letters.store._file._connection.execute("UPDATE letters SET leased_until = 0")
    if "content" in damage:
        assert letters.replay(print_nothing, include_unreplayable=True) == Replayed(replayed=2, skipped=1)
        assert [letter.state for letter in letters] == ["waiting"]
    assert letters.discard(broken.id)


def test_a_damaged_name_of_an_owner_hides_no_letter(letters):
    letters.put()
    letters.store._file._connection.execute("UPDATE letters SET last_replay_error = CAST(x'ff41' AS TEXT)")
    assert [letter.last_replay_error for letter in letters] == ["\\xffA"]


@pytest.mark.parametrize(
    "made", ["CREATE TABLE users (id)", "PRAGMA user_version = 3", "PRAGMA application_id = 7"]
)
def test_the_database_of_somebody_else_is_refused_and_left_as_it_is(tmp_path, made):
    path = tmp_path / "x.db"
    connection = sqlite3.connect(path)
    connection.execute(made)
    connection.commit()
    connection.close()
    before = path.read_bytes()
    assert "is a database, but not one of dead letters" in str(trouble(path))
    assert path.read_bytes() == before


def test_a_later_layout_is_refused_and_an_earlier_one_brought_up_to_date(tmp_path, monkeypatch):
    path = tmp_path / "x.db"
    with DeadLetters(path) as letters:
        letter = letters.put()
    with monkeypatch.context() as patched:
        step = ("ALTER TABLE letters ADD COLUMN colour TEXT DEFAULT 'red'",)
        patched.setattr(_letters_sqlite, "STEPS", (*_letters_sqlite.STEPS, step))
        with DeadLetters(path) as letters:
            assert letters.get(letter.id).id == letter.id
            assert letters.store._file._connection.execute("SELECT colour FROM letters").fetchall() == [
                ("red",)
            ]
    error = trouble(path)
    assert "was written by a later redouble (layout 2, this one knows 1)" in str(error)


def test_another_process_may_have_brought_the_file_up_to_date_meanwhile(tmp_path, monkeypatch):
    path = str(tmp_path / "x.db")
    DeadLetters(path).put()
    answers = [0]
    real = _base_sqlite.layout_of
    monkeypatch.setattr(_base_sqlite, "layout_of", lambda *args: answers.pop() if answers else real(*args))
    with DeadLetters(path) as letters:
        assert letters.depth() == 1


def test_an_empty_file_is_taken(tmp_path):
    (tmp_path / "x.db").touch()
    with DeadLetters(tmp_path / "x.db") as letters:
        letters.put()


@pytest.mark.parametrize("path", ["nowhere/x.db", "."])
def test_a_place_that_cannot_be_written_is_told(tmp_path, path):
    assert "check its directory and the permissions" in str(trouble(tmp_path / path))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs a directory that nobody may write to")
def test_a_directory_that_nobody_may_write_to_is_told():
    assert "check its directory and the permissions" in str(trouble(Path("/proc/letters.db")))


def test_a_full_disk_is_told_and_what_was_there_stays(tmp_path):
    with DeadLetters(tmp_path / "x.db") as letters:
        letters.put()
        letters.store._file._connection.execute("PRAGMA max_page_count = 20")
        with pytest.raises(StoreError, match="the disk is full: make room"):
            for _ in range(100):
                letters.put(payload="x" * 4000)
        count = letters.depth()
        assert count >= 1
        assert len(list(letters)) == count


def test_a_python_without_sqlite_is_told(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sqlite3", None)
    with pytest.raises(StoreError, match="ModuleNotFoundError: import of sqlite3 halted"):
        DeadLetters(tmp_path / "x.db").put()
