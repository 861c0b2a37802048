"""The file that dead letters are kept in: whose it is, how it is laid out, how it is opened.

A file of somebody else's is never touched, nor one of a later redouble; one of an earlier is brought up to
date. Whatever goes wrong is a `StoreTrouble` that names the file and says what to do.
"""

from __future__ import annotations

import os

from ._text import brief
from .errors import StoreTrouble

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sqlite3 import Connection

# Whose file it is. Its layout is the number of steps that were taken.
APPLICATION = 0x72646C74

# Each step leads from one layout to the next; the first from an empty file. They are never changed, only
# added to. The tallies are kept by triggers, so that no way of changing letters can forget them.
STEPS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE letters (
            id TEXT PRIMARY KEY, queue TEXT NOT NULL, idempotency_key TEXT,
            first_attempt_at TEXT, enqueued_at TEXT NOT NULL,
            at REAL NOT NULL, content TEXT NOT NULL, size INTEGER NOT NULL, puts INTEGER NOT NULL DEFAULT 1,
            replays INTEGER NOT NULL DEFAULT 0, parked INTEGER NOT NULL DEFAULT 0,
            leased_by TEXT, leased_until REAL NOT NULL DEFAULT 0, last_replay_error TEXT,
            UNIQUE (queue, idempotency_key)
        )""",
        "CREATE INDEX letters_in_order ON letters (queue, id)",
        "CREATE INDEX letters_by_age ON letters (queue, at, id)",
        """CREATE TABLE tallies (
            queue TEXT PRIMARY KEY, depth INTEGER NOT NULL, parked INTEGER NOT NULL, size INTEGER NOT NULL
        )""",
        """CREATE TRIGGER letter_came AFTER INSERT ON letters BEGIN
            INSERT INTO tallies VALUES (new.queue, 1 - new.parked, new.parked, new.size) ON CONFLICT (queue)
            DO UPDATE SET depth = depth + 1 - new.parked, parked = parked + new.parked,
            size = size + new.size;
        END""",
        """CREATE TRIGGER letter_changed AFTER UPDATE OF parked, size ON letters BEGIN
            UPDATE tallies SET depth = depth + old.parked - new.parked,
            parked = parked + new.parked - old.parked, size = size + new.size - old.size
            WHERE queue = new.queue;
        END""",
        """CREATE TRIGGER letter_went AFTER DELETE ON letters BEGIN
            UPDATE tallies SET depth = depth - 1 + old.parked, parked = parked - old.parked,
            size = size - old.size WHERE queue = old.queue;
        END""",
    ),
)  # fmt: skip


def connect(path: str, patience: float) -> Connection:
    """A connection to the file, which is made, or brought up to date, where need be."""
    import sqlite3

    _make(path)
    # Any thread may use it; that it is one at a time is the store's business.
    connection = sqlite3.connect(path, timeout=patience, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA synchronous = FULL")
        # In one look: between two, another process may make the file.
        connection.execute("BEGIN")
        layout = _layout(connection, path)
        connection.execute("COMMIT")
        if layout < len(STEPS):
            _bring_up_to_date(connection, path)
        _write_ahead(connection, patience)
    except BaseException:
        connection.close()
        raise
    return connection


def identity(path: str) -> tuple[int, int] | None:
    """Which file is at this path now."""
    try:
        found = os.stat(path)  # noqa: PTH116
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _make(path: str) -> None:
    """An empty file that is the user's alone: payloads may be private even where they hold no secrets."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        # Not opened, even to look at it: to close it again would give up the locks that other
        # connections of this process have on it.
        pass


def _layout(connection: Connection, path: str) -> int:
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application == APPLICATION:
        if version > len(STEPS):
            raise StoreTrouble(
                f"{path} was written by a later redouble (layout {version}, this one knows {len(STEPS)}): "
                "install that one, or use another file",
                where=path,
            )
        return int(version)
    if application or version or connection.execute("SELECT 1 FROM sqlite_master").fetchone():
        raise StoreTrouble(f"{path} is a database, but not one of dead letters: use another file", where=path)
    return 0


def _bring_up_to_date(connection: Connection, path: str) -> None:
    connection.execute("BEGIN IMMEDIATE")
    # Asked again: another process may have done it while this one waited.
    for step in STEPS[_layout(connection, path) :]:
        for statement in step:
            connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {APPLICATION}")
    connection.execute(f"PRAGMA user_version = {len(STEPS)}")
    connection.execute("COMMIT")


def _write_ahead(connection: Connection, patience: float) -> None:
    """Switches to write-ahead logging, for which nobody else may be reading: SQLite itself does not wait."""
    import sqlite3
    import time

    end = time.monotonic() + patience
    while True:
        try:
            # Where the file system cannot do it the answer is another mode, which is as safe but slower.
            connection.execute("PRAGMA journal_mode = WAL").fetchone()
            return
        except sqlite3.OperationalError as error:
            if not _is_busy(error) or time.monotonic() >= end:
                raise
        time.sleep(0.01)


def _is_busy(error: Exception) -> bool:
    return _code(error).startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))


def _code(error: Exception) -> str:
    return str(getattr(error, "sqlite_errorname", ""))


# By how SQLite's name for an error begins.
_ADVICE = {
    "SQLITE_NOTADB": "it is not a database: use another file, or move this one away",
    "SQLITE_CORRUPT": "it is damaged: move it away, and try 'sqlite3 FILE .recover' on the copy",
    "SQLITE_FULL": "the disk is full: make room",
    "SQLITE_IOERR": "the disk failed, or is full: look after it",
    "SQLITE_READONLY": "it cannot be written: see to the permissions of the file and its directory",
    "SQLITE_CANTOPEN": "it cannot be opened: see to its directory and the permissions",
    "SQLITE_PERM": "it cannot be opened: see to the permissions",
    "SQLITE_BUSY": "another process has kept it locked for too long: end that one",
}


def trouble_with(path: str, error: Exception) -> StoreTrouble:
    """What is wrong with the file, and what to do."""
    advice = "see to the cause"
    if isinstance(error, OSError):
        advice = "see to its directory and the permissions"
    for code, found in _ADVICE.items():
        if _code(error).startswith(code):
            advice = found
    return StoreTrouble(f"dead letters in {path} cannot be used ({brief(error)}): {advice}", where=path)
