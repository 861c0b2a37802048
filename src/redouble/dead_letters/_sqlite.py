"""Store dead letters in a SQLite file.

The file is in WAL mode, so that readers never wait, and every commit is synced to the disk (``synchronous =
FULL``): a letter that was put survives ``kill -9`` and the loss of power. It is written when all retries are
over, so one wait for the disk does no harm.
"""

from __future__ import annotations

import os
from contextlib import suppress

from .._base import sqlite
from .._base.checks import INF
from .._base.clock import real_now
from ..context import storing_until
from ..errors import StoreError
from ._letter import AT_ONCE, Added, Store, from_json, store_error, to_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from sqlite3 import Connection
    from typing import Any, TypeVar

    from .._base.sqlite import Identity
    from ._letter import DeadLetter, Letters, Limits, State

    T = TypeVar("T")

# Seconds to wait for a file that other processes keep locked.
PATIENCE = 30.0

# Bytes of letters that one step of a purge deletes, about: usually, and where there is little room.
_MUCH, _LITTLE = 1 << 20, 1 << 16

# Bytes reserved beside the file: on a full disk this room is released, so that letters can be deleted. And
# how many bytes must be free for a reserve to be made.
_RESERVE, _PLENTY = 1 << 20, 8 << 20

# After this many pages the write-ahead log is copied into the file. On a full disk a long one could not be.
_LOG_PAGES = 100

_COLUMNS = (
    "id", "queue", "idempotency_key", "first_attempt_at", "enqueued_at", "content", "puts", "replays",
    "parked", "leased_by", "leased_until", "last_replay_error",
)  # fmt: skip
_SELECT = f"SELECT {', '.join(_COLUMNS)} FROM letters "  # noqa: S608 - nothing in it comes from outside

_WHERE = {
    None: "", "parked": " AND parked", "leased": " AND NOT parked AND leased_until > :now",
    "waiting": " AND NOT parked AND leased_until <= :now",
}  # fmt: skip

_UPSERT = """INSERT INTO letters
    (id, queue, idempotency_key, first_attempt_at, enqueued_at, at, content, size)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (queue, idempotency_key)
    DO UPDATE SET at = excluded.at, content = excluded.content, size = excluded.size, puts = puts + 1"""

_CLAIM = """UPDATE letters SET leased_by = ?, leased_until = ?, replays = replays + 1
    WHERE id = ? AND NOT parked AND leased_until <= ?"""

_RELEASE = """UPDATE letters SET leased_by = NULL, leased_until = 0, replays = replays - ?,
    last_replay_error = coalesce(?, last_replay_error), parked = parked OR ? WHERE id = ? AND leased_by = ?"""

# Deletes the oldest letters until `rows` of them, with `size` bytes together, are gone.
_DROP = """DELETE FROM letters WHERE id IN (
    SELECT id FROM (
        SELECT id, row_number() OVER oldest AS number, sum(size) OVER oldest - size AS gone FROM (
            SELECT id, at, size FROM letters
            WHERE queue = :queue AND id != :kept AND leased_until <= :now AND at < :before
            ORDER BY at, id LIMIT :most
        ) WINDOW oldest AS (ORDER BY at, id)
    ) WHERE number <= :rows OR gone < :size
)"""

# The layout of the file. The tallies are kept by triggers, so that no statement can forget them.
APPLICATION, CONTENT = 0x72646C74, "one of dead letters"
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


class SqliteStore(Store):
    """Dead letters in one file, shared by any number of threads and processes of one machine.

    Every method is one transaction; only `purge` needs several. Writers use ``BEGIN IMMEDIATE``: a read
    transaction that wants to write fails with ``SQLITE_BUSY``, whatever the timeout. Methods wait up to
    ``patience`` seconds for a locked file, less in a call that has little time left.
    """

    def __init__(self, path: str, patience: float = PATIENCE) -> None:
        self.name = path
        self._patience = patience
        self._file = LetterFile(path)

    def add(self, letter: DeadLetter, *, now: float, limits: Limits) -> Added:
        return self._run(_add, letter, to_json(letter), now, limits)

    def get(self, id: str, *, now: float) -> DeadLetter | None:
        return self._run(_one, now, "WHERE id = ?", id, begin="BEGIN")

    def list(self, queue: str, *, now: float, state: State | None, limit: int, after: str) -> Letters:
        where = f"WHERE queue = :queue AND id > :after{_WHERE[state]} ORDER BY id LIMIT :limit"
        values = {"queue": queue, "after": after, "limit": limit, "now": now}
        return [_letter(row, now) for row in self._run(_rows, _SELECT + where, values, begin="BEGIN")]

    def claim(self, id: str, *, owner: str, now: float, until: float) -> DeadLetter | None:
        def work(connection: Connection) -> DeadLetter | None:
            claimed = _changes(connection, _CLAIM, owner, until, id, now)
            return _one(connection, now, "WHERE id = ?", id) if claimed else None

        return self._relieve(work)

    def renew(self, id: str, *, owner: str, until: float) -> bool:
        renewal = "UPDATE letters SET leased_until = ? WHERE id = ? AND leased_by = ?"
        return self._relieve(_changes, renewal, until, id, owner)

    def settle(self, letter: DeadLetter, *, owner: str) -> bool:
        done = "DELETE FROM letters WHERE id = ? AND leased_by = ? AND puts = ?"

        def work(connection: Connection) -> bool:
            deleted = _changes(connection, done, letter.id, owner, letter.puts)
            return deleted or _changes(connection, _RELEASE, 1, None, False, letter.id, owner)

        return self._relieve(work)

    def release(
        self, id: str, *, owner: str, error: str | None = None, park: bool = False, count: bool = True
    ) -> bool:
        return self._relieve(_changes, _RELEASE, int(not count), error, park, id, owner)

    def unpark(self, id: str) -> bool:
        statement = "UPDATE letters SET parked = 0, replays = 0 WHERE id = ? AND parked"
        return self._relieve(_changes, statement, id)

    def discard(self, id: str) -> str | None:
        def work(connection: Connection) -> str | None:
            found = _rows(connection, "SELECT queue FROM letters WHERE id = ?", (id,))
            connection.execute("DELETE FROM letters WHERE id = ?", (id,))
            return found[0][0] if found else None

        return self._relieve(work)

    def purge(self, queue: str, *, before: float, now: float) -> int:
        # In steps: others may write in between, and on a full disk each finds room in the log of the last.
        gone, scarce = 0, False
        while True:
            scarce = scarce or is_scarce(self.name)
            try:
                count = self._relieve(_purge_some, queue, before, now, _LITTLE if scarce else _MUCH)
            except StoreError as error:
                if scarce or not sqlite.is_full(error.__cause__):
                    raise
                scarce = True
                continue
            if not count:
                return gone
            gone += count
            if scarce:
                self._run(sqlite.checkpoint, "RESTART", begin=None)

    def depths(self) -> dict[str, tuple[int, int]]:
        tallies = "SELECT queue, depth, parked FROM tallies WHERE depth + parked > 0 ORDER BY queue"
        rows = self._run(_rows, tallies, begin="BEGIN")
        return {queue: (depth, parked) for queue, depth, parked in rows}

    def close(self) -> None:
        self._file.close()

    def _relieve(self, work: Callable[..., T], *args: Any) -> T:
        """Run a transaction that leads to fewer letters; on a full disk, in the room reserved for that."""
        try:
            return self._run(work, *args)
        except StoreError as error:
            if not sqlite.is_full(error.__cause__):
                raise
        release_reserve(self.name)
        # So that the log begins anew, in the room that it has.
        self._run(sqlite.checkpoint, "RESTART", begin=None)
        return self._run(work, *args)

    def _run(self, work: Callable[..., T], *args: Any, begin: str | None = "BEGIN IMMEDIATE") -> T:
        """Return ``work(connection, *args)``, run in a transaction; wrap its errors."""
        until = min(storing_until(self._patience), real_now() + self._patience)
        try:
            return self._file.transact(work, *args, until=until, begin=begin)
        except sqlite.SQLiteFileError as error:
            raise StoreError(str(error), location=self.name) from error
        except Exception as error:
            raise store_error(self.name, error, _advice(error)) from error


# By how SQLite's name for an error begins.
_ADVICE = {
    "SQLITE_NOTADB": "it is not a database: use another file, or move this one away",
    "SQLITE_CORRUPT": "it is damaged: move it away, and try 'sqlite3 FILE .recover' on the copy",
    "SQLITE_FULL": "the disk is full: make room",
    "SQLITE_IOERR": "disk I/O error or disk full: check the disk",
    "SQLITE_READONLY": "it cannot be written: check the permissions of the file and its directory",
    "SQLITE_CANTOPEN": "it cannot be opened: check its directory and the permissions",
    "SQLITE_PERM": "it cannot be opened: check the permissions",
    "SQLITE_BUSY": "another process has kept it locked for too long: stop that process",
}


def _advice(error: Exception) -> str:
    """Return what to do about an error of SQLite or of the operating system."""
    code = "SQLITE_BUSY" if isinstance(error, BlockingIOError) else sqlite.error_code(error)
    otherwise = "check its directory and the permissions" if isinstance(error, OSError) else ""
    return next((advice for name, advice in _ADVICE.items() if code.startswith(name)), otherwise)


# Opening


class LetterFile(sqlite.SQLiteFile):
    """A file of dead letters: created whole, identified, in WAL mode, with a reserve beside it."""

    def create(self) -> None:
        sqlite.create_file(self.path, _open)

    def connect(self, file: Identity) -> Connection:
        connection = _open(self.path, file)
        _make_reserve(self.path)
        return connection


def _open(path: str, file: Identity) -> Connection:
    """Connect to a file and update its layout. Raises ``BlockingIOError`` if it is moved meanwhile."""

    def prepare(connection: Connection) -> None:
        connection.text_factory = _decode
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA wal_autocheckpoint = {_LOG_PAGES}")
        # In one transaction: between two statements, another process may create the tables.
        connection.execute("BEGIN")
        layout = sqlite.layout_of(connection, path, APPLICATION, len(STEPS), CONTENT)
        connection.execute("COMMIT")
        # SQLite opens the log by its name, some time after the file: it may be the log of another by now.
        _check_identity(file, path)
        if layout < len(STEPS):
            connection.execute("BEGIN IMMEDIATE")
            sqlite.migrate(connection, path, APPLICATION, STEPS, CONTENT)
            connection.execute("COMMIT")
        # Where the file system cannot do it SQLite uses another mode, which is as safe but slower.
        connection.execute("PRAGMA journal_mode = WAL").fetchone()
        _check_identity(file, path)

    return sqlite.open_file(path, prepare)


def _check_identity(file: Identity, path: str) -> None:
    """Raise ``BlockingIOError`` if another file is at the path by now."""
    if file != sqlite.identity(path):
        raise BlockingIOError(f"{path} was moved or deleted in this moment")


def _decode(stored: bytes) -> str:
    """Decode a text of the file; a damaged one must not hide the rows after it."""
    return stored.decode("utf-8", "backslashreplace")


def _make_reserve(path: str) -> None:
    """Reserve some room on the disk, where there is plenty: random bytes, which do not compress."""
    name = f"{os.path.realpath(path)}-reserve"
    if is_scarce(path):
        return  # or it would take the room that it has just released
    try:
        handle = os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    except OSError:  # it exists already
        return
    with os.fdopen(handle, "wb"), suppress(OSError):
        if os.write(handle, os.urandom(_RESERVE)) == _RESERVE:
            return
    release_reserve(path)


def is_scarce(path: str) -> bool:
    """Return whether there is little room left on the disk, as far as is known."""
    try:
        disk = os.statvfs(path)
    except (OSError, AttributeError):  # Windows has no statvfs
        return False
    return disk.f_bavail * disk.f_frsize < _PLENTY


def release_reserve(path: str) -> None:
    """Give the reserved room back to the disk."""
    with suppress(OSError):
        os.unlink(f"{os.path.realpath(path)}-reserve")  # noqa: PTH108


# Parts of a transaction


def _add(connection: Connection, letter: DeadLetter, content: str, now: float, limits: Limits) -> Added:
    """Insert a letter, or update the one that has its key, and discard what is beyond the limits."""
    queue, key = letter.queue, letter.idempotency_key
    before, _, _ = _tally(connection, queue)
    row = letter.id, queue, key, letter.first_attempt_at, letter.enqueued_at, now, content
    connection.execute(_UPSERT, (*row, len(content.encode())))
    if key is not None:  # the letter that had this key already, if there was one
        letter = _one(connection, now, "WHERE queue = ? AND idempotency_key = ?", queue, key) or letter
    others: dict[str, Any] = {"queue": queue, "kept": letter.id, "now": now}
    expired = 0
    if limits.oldest is not None:
        expired = _drop(connection, **others, before=limits.oldest, rows=AT_ONCE)
    depth, parked, size = _tally(connection, queue)
    rows_over = 0 if limits.rows is None else depth + parked - limits.rows
    size_over = 0 if limits.size is None else size - limits.size
    crowded_out = _drop(connection, **others, before=INF, rows=rows_over, size=size_over)
    depth, _, _ = _tally(connection, queue)
    return Added(letter, before=before, depth=depth, expired=expired, crowded_out=crowded_out)


def _changes(connection: Connection, statement: str, *values: Any) -> bool:
    """Run a statement, and return whether it has changed a row."""
    return connection.execute(statement, values).rowcount > 0


def _letter(row: tuple[Any, ...], now: float) -> DeadLetter:
    """Return the letter of a row."""
    fields = dict(zip(_COLUMNS, row, strict=True))
    parked, until = bool(fields.pop("parked")), fields.pop("leased_until")
    return from_json(fields.pop("content"), now=now, parked=parked, until=until, **fields)


def _one(connection: Connection, now: float, where: str, *values: Any) -> DeadLetter | None:
    """Return the only letter for which a condition holds."""
    found = _rows(connection, _SELECT + where, values)
    return _letter(found[0], now) if found else None


def _rows(connection: Connection, statement: str, values: Any = ()) -> list[Any]:
    """Return all rows of a query."""
    return connection.execute(statement, values).fetchall()


def _tally(connection: Connection, queue: str) -> tuple[int, int, int]:
    """Return the depth of a queue, how many letters are parked, and the bytes of all."""
    tally = "SELECT depth, parked, size FROM tallies WHERE queue = ?"
    found: tuple[int, int, int] | None = connection.execute(tally, (queue,)).fetchone()
    return found or (0, 0, 0)


def _purge_some(connection: Connection, queue: str, before: float, now: float, size: int) -> int:
    """Delete some of the letters that are older than ``before``, and return how many."""
    return _drop(connection, queue=queue, kept="", now=now, before=before, rows=1, size=size)


def _drop(connection: Connection, *, rows: int, size: int = 0, **which: Any) -> int:
    """Delete letters, at most `AT_ONCE`, and return how many."""
    if rows <= 0 and size <= 0:
        return 0
    most = AT_ONCE if size > 0 else min(rows, AT_ONCE)
    return connection.execute(_DROP, {"rows": rows, "size": size, "most": most, **which}).rowcount
