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
from functools import partial

from ._guard import Lock
from ._letters import Added, Store, prepare, read, written
from ._letters_file import (
    checkpoint,
    connect,
    give_up_reserve,
    identity,
    is_busy,
    is_full,
    is_scarce,
    leave,
    make,
    trouble_with,
)
from ._time import real_now, real_sleep
from .context import storing_until
from .errors import StoreTrouble

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from sqlite3 import Connection
    from typing import Any, ClassVar, TypeVar

    from ._letters import DeadLetter, Letters, Limits, State

    T = TypeVar("T")

# How long other processes may keep the file to themselves, in seconds; and how many letters are discarded
# at most in one step.
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

# Bytes of letters that one step of a purge deletes, about: usually, and where there is little room.
_MUCH, _LITTLE = 1 << 20, 1 << 16

# Seconds between two tries while another process has the file locked: at first, and at most.
_SOON, _LATER = 0.001, 0.01

# SQLite must not be in the middle of something when a process forks, and no connection may be there after:
# the child would share its locks and its place in the file with the parent. So a fork waits for what each
# store is doing, though not for a file that is locked, and closes all connections; they are opened again
# when needed.
_stores: WeakSet[SqliteStore] = WeakSet()
_enrolling = Lock()
_stopped: list[SqliteStore] = []


def _before_fork() -> None:
    _enrolling.acquire()
    _stopped[:] = _stores
    for store in _stopped:
        store._lock.acquire()
        store._disconnect()


def _after_fork() -> None:
    for store in _stopped:
        store._lock.release()
    _stopped.clear()
    _enrolling.release()


def _after_fork_in_child() -> None:
    for store in _stopped:
        store._turn = Lock()  # the thread whose turn it was is not there
    _after_fork()


# Where there is no fork there is nothing to register, and any function will do.
_at_fork: Any = getattr(os, "register_at_fork", dict)
_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)


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
        # Whose turn it is: held while waiting for other processes, so that one thread of this one does.
        self._turn = Lock()
        # Held while SQLite is at work, which a fork waits for.
        self._lock = Lock()
        with _enrolling:
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
            "UPDATE letters SET leased_by = ?, leased_until = ?, replays = replays + 1 "
            "WHERE id = ? AND NOT parked AND leased_until <= ?"
        )

        def work(connection: Connection) -> DeadLetter | None:
            if not connection.execute(lease, (owner, until, id, now)).rowcount:
                return None
            return _one(connection, now, "WHERE id = ?", id)

        return self._relieve(work)

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
            return connection.execute(_GIVE_BACK, (1, None, False, letter.id, owner)).rowcount > 0

        return self._relieve(work)

    def release(
        self,
        id: str,  # noqa: A002
        *,
        owner: str,
        error: str | None = None,
        park: bool = False,
        count: bool = True,
    ) -> bool:
        return self._changes(_GIVE_BACK, (int(not count), error, park, id, owner))

    def unpark(self, id: str) -> bool:  # noqa: A002
        return self._changes("UPDATE letters SET parked = 0, replays = 0 WHERE id = ? AND parked", (id,))

    def discard(self, id: str) -> str | None:  # noqa: A002
        def work(connection: Connection) -> str | None:
            row = connection.execute("SELECT queue FROM letters WHERE id = ?", (id,)).fetchone()
            connection.execute("DELETE FROM letters WHERE id = ?", (id,))
            return None if row is None else row[0]

        return self._relieve(work)

    def purge(self, queue: str, *, before: float, now: float) -> int:
        # In steps: others may write in between, and on a full disk each finds room in the log of the last.
        gone, scarce = 0, False
        while True:
            scarce = scarce or is_scarce(self.name)
            size = _LITTLE if scarce else _MUCH
            try:
                count = self._relieve(partial(_drop_some, queue=queue, before=before, now=now, size=size))
            except StoreTrouble as trouble:
                if scarce or not is_full(trouble.__cause__):
                    raise
                scarce = True
                continue
            if not count:
                return gone
            gone += count
            if scarce:
                self._run(_recycle, None)

    def depths(self) -> dict[str, tuple[int, int]]:
        tallies = "SELECT queue, depth, parked FROM tallies WHERE depth + parked > 0 ORDER BY queue"
        return self._read(
            lambda connection: {
                queue: (depth, parked) for queue, depth, parked in connection.execute(tallies)
            }
        )

    def close(self) -> None:
        with self._lock:
            self._disconnect()

    def __del__(self) -> None:
        self._disconnect()

    # Transactions

    def _changes(self, statement: str, values: tuple[Any, ...]) -> bool:
        return self._relieve(lambda connection: connection.execute(statement, values).rowcount > 0)

    def _read(self, work: Callable[[Connection], T]) -> T:
        return self._run(work, "BEGIN")

    def _write(self, work: Callable[[Connection], T]) -> T:
        return self._run(work, "BEGIN IMMEDIATE")

    def _relieve(self, work: Callable[[Connection], T]) -> T:
        """Write something that leads to fewer letters: where the disk is full, in the room kept for that."""
        try:
            return self._write(work)
        except StoreTrouble as trouble:
            if not is_full(trouble.__cause__):
                raise
        give_up_reserve(self.name)
        self._run(_recycle, None)
        return self._write(work)

    def _run(self, work: Callable[[Connection], T], begin: str | None) -> T:
        turn: Any = self._turn
        if turn._is_owned():
            raise StoreTrouble(
                f"{self.name} is being written in this very thread, further out: dead letters cannot be used "
                "in a signal handler or a finalizer",
                where=self.name,
            )
        prepare()
        now = real_now()
        end = min(storing_until(self._patience), now + self._patience)
        # Not a plain call: an interrupt may come between that and the block that lets go.
        [mine] = map(turn.acquire, (True,), (max(0.0, end - now),))
        try:
            if not mine:
                raise BlockingIOError("another thread of this process waits for it already")
            return self._insist(work, begin, end)
        except StoreTrouble:
            raise
        except Exception as error:
            raise trouble_with(self.name, error) from error
        finally:
            if mine:
                turn.release()

    def _insist(self, work: Callable[[Connection], T], begin: str | None, end: float) -> T:
        """Try until the file is not locked any more, or time is up."""
        wait, left = _SOON, end - real_now()
        while True:
            try:
                with self._lock:
                    return self._transact(work, begin)
            except Exception as error:
                # Where a test has stopped the clock, the waits count.
                if not is_busy(error) or left <= 0.0 or real_now() >= end:
                    raise
            real_sleep(wait)
            left -= wait
            wait = min(2 * wait, _LATER)

    def _transact(self, work: Callable[[Connection], T], begin: str | None) -> T:
        try:
            connection = self._connected()
            if begin is None:
                return work(connection)
            connection.execute(begin)
            result = work(connection)
            connection.execute("COMMIT")
        except BaseException as error:
            # Rolls back, whatever state it was in; an interrupt may have come at any point. A transaction
            # that could not begin leaves nothing behind.
            moved = hasattr(error, "sqlite_errorname") and self._file != identity(self.name)
            if not is_busy(error) or self._connection is None or self._connection.in_transaction:
                self._disconnect()
            if moved:
                raise BlockingIOError(f"{self.name} was moved or deleted in this moment") from error
            raise
        return result

    def _connected(self) -> Connection:
        if self._connection is not None and self._process != os.getpid():
            self._connection = None
        # Letters must not go to a file that was deleted, or moved, under this connection.
        if self._connection is not None and self._file != identity(self.name):
            self._disconnect()
        if self._connection is None:
            make(self.name)
            self._file, self._process = identity(self.name), os.getpid()
            self._connection = connect(self.name, self._file)
            self._open.add(self._connection)
        return self._connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            leave(connection, self.name, self._file)
            self._open.discard(connection)


def _recycle(connection: Connection) -> None:
    """Let the log begin anew, in the room that it has."""
    checkpoint(connection, "RESTART")


# Of one transaction

_UPSERT = """INSERT INTO letters
    (id, queue, idempotency_key, first_attempt_at, enqueued_at, at, content, size)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (queue, idempotency_key)
    DO UPDATE SET at = excluded.at, content = excluded.content, size = excluded.size, puts = puts + 1"""

_GIVE_BACK = """UPDATE letters SET leased_by = NULL, leased_until = 0, replays = replays - ?,
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
    oldest = f"SELECT id, size {_OTHERS}ORDER BY at, id LIMIT ?"
    found = connection.execute(oldest, (kept.queue, kept.id, now, AT_ONCE))
    return _drop(connection, found, rows_over, size_over)


def _drop_some(connection: Connection, *, queue: str, before: float, now: float, size: int) -> int:
    """Delete some letters of a queue that are older than that and not leased; say how many."""
    old = "SELECT id, size FROM letters WHERE queue = ? AND at < ? AND leased_until <= ? ORDER BY at LIMIT ?"
    return _drop(connection, connection.execute(old, (queue, before, now, AT_ONCE)), 1, size)


def _drop(connection: Connection, found: Iterable[tuple[str, int]], rows: int, size: int) -> int:
    """Delete letters, one after the other, until there were so many and they had so many bytes."""
    doomed: list[tuple[str]] = []
    for letter, bytes_of_it in found:
        if len(doomed) >= rows and size <= 0:
            break
        doomed.append((letter,))
        size -= bytes_of_it
    connection.executemany("DELETE FROM letters WHERE id = ?", doomed)
    return len(doomed)
