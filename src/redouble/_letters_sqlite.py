"""Dead letters in a file: SQLite, from the standard library.

The file is written ahead of itself (WAL), so that readers never wait, and forced to the disk with every
commit (``synchronous = FULL``): what was put survives the end of the process, also by ``kill -9``, and the
loss of power. A letter is worth one wait for the disk; it is written when all retries are over.

Every transaction that writes says so when it begins (``BEGIN IMMEDIATE``): one that reads first and writes
later may find that it cannot, and no waiting helps it. How the file is opened and laid out is told in
``_letters_file``.
"""

from __future__ import annotations

import os
from _weakrefset import WeakSet

from ._guard import Lock
from ._letters import Added, Store, read, written
from ._letters_file import connect, identity, trouble_with
from .errors import StoreTrouble

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from sqlite3 import Connection
    from typing import Any, ClassVar, TypeVar

    from ._letters import DeadLetter, Letters, Limits, State

    T = TypeVar("T")

# How long other processes may keep the file to themselves, in seconds; and how many letters are discarded
# at most for one that is put.
PATIENCE, AT_ONCE = 30.0, 1000

_COLUMNS = (
    "id", "queue", "idempotency_key", "first_attempt_at", "enqueued_at", "content", "puts", "replays",
    "parked", "leased_by", "leased_until", "last_replay_error",
)  # fmt: skip
_SELECT = f"SELECT {', '.join(_COLUMNS)} FROM letters "  # noqa: S608 - nothing in it comes from outside

_WHERE = {
    None: "", "parked": " AND parked", "leased": " AND NOT parked AND leased_until > :now",
    "waiting": " AND NOT parked AND leased_until <= :now",
}  # fmt: skip

# SQLite must not be in the middle of something when a process forks, and no connection may be there after:
# the child would share its locks and its place in the file with the parent. So one operation at a time,
# and before a fork all connections are closed; they are opened again when needed.
_one_at_a_time = Lock()
_stores: WeakSet[SqliteStore] = WeakSet()


def _before_fork() -> None:
    _one_at_a_time.acquire()
    for store in list(_stores):
        store._disconnect()


# Where there is no fork there is nothing to register, and any function will do.
_at_fork: Any = getattr(os, "register_at_fork", dict)
_at_fork(
    before=_before_fork,
    after_in_parent=_one_at_a_time.release,
    after_in_child=_one_at_a_time.release,
)


class SqliteStore(Store):
    """Letters in one file, shared by any number of threads and processes of one machine."""

    # Every open connection. The collector finalizes the objects of a cycle in any order: a connection that
    # only its store holds may come first, and Python 3.13 warns that it was left open. Those that came along
    # in a fork of which Python was not told stay here: to close them would disturb the parent.
    _open: ClassVar[set[Connection]] = set()

    def __init__(self, path: str, patience: float = PATIENCE) -> None:
        self.name = path
        self._patience = patience
        self._connection: Connection | None = None
        self._file: tuple[int, int] | None = None
        self._process = 0
        _stores.add(self)

    def add(self, letter: DeadLetter, *, now: float, limits: Limits) -> Added:
        content = written(letter)
        origin = letter.id, letter.queue, letter.idempotency_key, letter.first_attempt_at, letter.enqueued_at

        def work(connection: Connection) -> Added:
            before, _, _ = _tally(connection, letter.queue)
            connection.execute(_UPSERT, (*origin, now, content, len(content.encode())))
            kept = _kept(connection, letter, now)
            expired = _drop_old(connection, kept, now, limits)
            crowded_out = _drop_oldest(connection, kept, now, limits)
            depth, _, _ = _tally(connection, letter.queue)
            return Added(kept, before=before, depth=depth, expired=expired, crowded_out=crowded_out)

        return self._write(work)

    def get(self, id: str, *, now: float) -> DeadLetter | None:  # noqa: A002
        return self._read(lambda connection: _one(connection, now, "WHERE id = ?", id))

    def list(self, queue: str, *, now: float, state: State | None, limit: int, after: str) -> Letters:
        order = f"WHERE queue = :queue AND id > :after{_WHERE[state]} ORDER BY id LIMIT :limit"
        values = {"queue": queue, "after": after, "limit": limit, "now": now}
        return self._read(
            lambda connection: [_letter(row, now) for row in connection.execute(_SELECT + order, values)]
        )

    def claim(self, id: str, *, owner: str, now: float, until: float) -> DeadLetter | None:  # noqa: A002
        lease = (
            "UPDATE letters SET leased_by = ?, leased_until = ? "
            "WHERE id = ? AND NOT parked AND leased_until <= ?"
        )

        def work(connection: Connection) -> DeadLetter | None:
            if not connection.execute(lease, (owner, until, id, now)).rowcount:
                return None
            return _one(connection, now, "WHERE id = ?", id)

        return self._write(work)

    def renew(self, id: str, *, owner: str, until: float) -> bool:  # noqa: A002
        return self._changes(
            "UPDATE letters SET leased_until = ? WHERE id = ? AND leased_by = ?", (until, id, owner)
        )

    def settle(self, letter: DeadLetter, *, owner: str) -> bool:
        values = letter.id, owner, letter.puts

        def work(connection: Connection) -> bool:
            done = "DELETE FROM letters WHERE id = ? AND leased_by = ? AND puts = ?"
            if connection.execute(done, values).rowcount:
                return True
            connection.execute(_GIVE_BACK, (0, None, False, letter.id, owner))
            return False

        return self._write(work)

    def release(self, id: str, *, owner: str, error: str | None = None, park: bool = False) -> bool:  # noqa: A002
        return self._changes(_GIVE_BACK, (int(error is not None), error, park, id, owner))

    def unpark(self, id: str) -> bool:  # noqa: A002
        return self._changes("UPDATE letters SET parked = 0, replays = 0 WHERE id = ? AND parked", (id,))

    def discard(self, id: str) -> str | None:  # noqa: A002
        def work(connection: Connection) -> str | None:
            row = connection.execute("SELECT queue FROM letters WHERE id = ?", (id,)).fetchone()
            connection.execute("DELETE FROM letters WHERE id = ?", (id,))
            return None if row is None else row[0]

        return self._write(work)

    def purge(self, queue: str, *, before: float, now: float) -> int:
        old = "DELETE FROM letters WHERE queue = ? AND at < ? AND leased_until <= ?"
        return self._write(lambda connection: connection.execute(old, (queue, before, now)).rowcount)

    def depths(self) -> dict[str, tuple[int, int]]:
        tallies = "SELECT queue, depth, parked FROM tallies WHERE depth + parked > 0 ORDER BY queue"
        return self._read(
            lambda connection: {
                queue: (depth, parked) for queue, depth, parked in connection.execute(tallies)
            }
        )

    def close(self) -> None:
        with _one_at_a_time:
            self._disconnect()

    def __del__(self) -> None:
        self._disconnect()

    # Transactions

    def _changes(self, statement: str, values: tuple[Any, ...]) -> bool:
        return self._write(lambda connection: connection.execute(statement, values).rowcount > 0)

    def _read(self, work: Callable[[Connection], T]) -> T:
        return self._run(work, "BEGIN")

    def _write(self, work: Callable[[Connection], T]) -> T:
        return self._run(work, "BEGIN IMMEDIATE")

    def _run(self, work: Callable[[Connection], T], begin: str) -> T:
        lock: Any = _one_at_a_time
        if lock._is_owned():
            raise StoreTrouble(
                f"{self.name} is being written in this very thread, further out: dead letters cannot be used "
                "in a signal handler or a finalizer",
                where=self.name,
            )
        try:
            with lock:
                return self._transact(work, begin)
        except StoreTrouble:
            raise
        except Exception as error:
            raise trouble_with(self.name, error) from error

    def _transact(self, work: Callable[[Connection], T], begin: str) -> T:
        try:
            connection = self._connected()
            connection.execute(begin)
            result = work(connection)
            connection.execute("COMMIT")
        except BaseException:
            # Rolls back, whatever state it was in; an interrupt may have come at any point.
            self._disconnect()
            raise
        return result

    def _connected(self) -> Connection:
        if self._connection is not None and self._process != os.getpid():
            self._connection = None
        # Letters must not go to a file that was deleted, or moved, under this connection.
        if self._connection is not None and self._file != identity(self.name):
            self._disconnect()
        if self._connection is None:
            self._connection = connect(self.name, self._patience)
            self._open.add(self._connection)
            self._file, self._process = identity(self.name), os.getpid()
        return self._connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
            self._open.discard(connection)


# Of one transaction

_UPSERT = """INSERT INTO letters
    (id, queue, idempotency_key, first_attempt_at, enqueued_at, at, content, size)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (queue, idempotency_key)
    DO UPDATE SET at = excluded.at, content = excluded.content, size = excluded.size, puts = puts + 1"""

_GIVE_BACK = """UPDATE letters SET leased_by = NULL, leased_until = 0, replays = replays + ?,
    last_replay_error = coalesce(?, last_replay_error), parked = parked OR ? WHERE id = ? AND leased_by = ?"""

_OTHERS = "FROM letters WHERE queue = ? AND id != ? AND leased_until <= ? "


def _letter(row: tuple[Any, ...], now: float) -> DeadLetter:
    fields = dict(zip(_COLUMNS, row, strict=True))
    parked, until = bool(fields.pop("parked")), fields.pop("leased_until")
    return read(fields.pop("content"), now=now, parked=parked, until=until, **fields)


def _one(connection: Connection, now: float, where: str, *values: Any) -> DeadLetter | None:
    row = connection.execute(_SELECT + where, values).fetchone()
    return None if row is None else _letter(row, now)


def _kept(connection: Connection, letter: DeadLetter, now: float) -> DeadLetter:
    """The letter as it is in the file: the one that has its key, where it was put before."""
    if letter.idempotency_key is None:
        return letter
    where = "WHERE queue = ? AND idempotency_key = ?"
    return _one(connection, now, where, letter.queue, letter.idempotency_key) or letter


def _tally(connection: Connection, queue: str) -> tuple[int, int, int]:
    """The depth of a queue, how many are parked, and the bytes of all."""
    tally = "SELECT depth, parked, size FROM tallies WHERE queue = ?"
    found: tuple[int, int, int] | None = connection.execute(tally, (queue,)).fetchone()
    return found or (0, 0, 0)


def _drop_old(connection: Connection, kept: DeadLetter, now: float, limits: Limits) -> int:
    if limits.oldest is None:
        return 0
    old = f"DELETE FROM letters WHERE id IN (SELECT id {_OTHERS}AND at < ? ORDER BY at LIMIT ?)"  # noqa: S608
    return connection.execute(old, (kept.queue, kept.id, now, limits.oldest, AT_ONCE)).rowcount


def _drop_oldest(connection: Connection, kept: DeadLetter, now: float, limits: Limits) -> int:
    depth, parked, size = _tally(connection, kept.queue)
    rows_over = 0 if limits.rows is None else depth + parked - limits.rows
    size_over = 0 if limits.size is None else size - limits.size
    if rows_over <= 0 and size_over <= 0:
        return 0
    doomed: list[tuple[str]] = []
    oldest = f"SELECT id, size {_OTHERS}ORDER BY at, id LIMIT ?"
    for found, bytes_of_it in connection.execute(oldest, (kept.queue, kept.id, now, AT_ONCE)):
        if len(doomed) >= rows_over and size_over <= 0:
            break
        doomed.append((found,))
        size_over -= bytes_of_it
    connection.executemany("DELETE FROM letters WHERE id = ?", doomed)
    return len(doomed)
