"""SQLite files that threads and processes share: create, identify, lock and keep safe from forks.

A subclass of `SQLiteFile` says how to connect; `SQLiteFile.transact` runs its transactions. `migrate` creates
the tables, and refuses files of other programs. Errors are those of ``sqlite3`` and the operating system, and
`SQLiteFileError`; the caller wraps them.
"""

from __future__ import annotations

import os
from _thread import TIMEOUT_MAX, RLock
from _weakrefset import WeakSet
from contextlib import suppress

from .clock import real_now, real_sleep
from .log_once import warn

# Imported now: a child that is forked in the middle of an import waits for it for ever. Where one of them is
# missing, folders are not locked, and `open_file` raises.
with suppress(ImportError):
    import sqlite3  # noqa: F401  # pyright: ignore[reportUnusedImport]
with suppress(ImportError):
    import fcntl  # noqa: F401  # pyright: ignore[reportUnusedImport]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from sqlite3 import Connection
    from typing import Any, ClassVar, TypeVar

    T = TypeVar("T")
    Identity = tuple[int, int] | None

# Seconds between two tries while another process has the file locked: the first wait, and the longest.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.001, 0.01

# How often the log of a file that was moved is copied into it while others are writing.
_CHECKPOINTS = 10

# SQLite must not be at work when a process forks, and no connection may be open: the child would share its
# locks and its position in the file with the parent. So a fork waits for the transactions that are running,
# though not for a file that another process has locked, and closes all connections. They are opened again
# when needed.
_files: WeakSet[SQLiteFile] = WeakSet()
_adding = RLock()
_stopped: list[SQLiteFile] = []


def _before_fork() -> None:
    """Wait for the transactions that are running, close all connections, and let none begin."""
    _adding.acquire()
    _stopped[:] = _files
    for file in _stopped:
        file._lock.acquire()
        file._disconnect()


def _after_fork() -> None:
    """Let transactions begin again."""
    for file in _stopped:
        file._lock.release()
    _stopped.clear()
    _adding.release()


def _after_fork_in_child() -> None:
    """Let transactions begin in the child, for which no thread is waiting."""
    for file in _stopped:
        file._turn = RLock()  # the thread that held it does not exist here
    _after_fork()


# Where there is no fork there is nothing to register, and any function will do.
_at_fork: Any = getattr(os, "register_at_fork", dict)
_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)


class SQLiteFileError(Exception):
    """A file cannot be used, and no ``sqlite3`` error says so. The message names the file and what to do."""


class SQLiteFile:
    """Run transactions on a SQLite file: one at a time in this process, none during a fork.

    A subclass defines `connect`, and `create` if SQLite is not to create the file itself. ``keeps_open`` says
    whether the connection is kept for the next transaction.
    """

    keeps_open = True
    # Every open connection. The collector finalizes the objects of a cycle in any order: a connection that
    # only its file holds may come first, and Python 3.13 warns that it was left open. Connections inherited
    # by a fork that Python did not notice stay here: closing them would disturb the parent.
    _open: ClassVar[set[Connection]] = set()

    def __init__(self, path: str) -> None:
        self.path = path
        self._connection: Connection | None = None
        self._identity: Identity = None
        self._process = 0
        # Held while waiting for other processes, so that only one thread of this process does.
        self._turn = RLock()
        # Held while SQLite is at work.
        self._lock = RLock()
        with _adding:
            _files.add(self)

    def create(self) -> None:
        """Create the file if it is missing. By default SQLite does, with the first write."""

    def connect(self, file: Identity) -> Connection:
        """Return a new connection to the file whose `identity` was ``file`` just before. Must not wait."""
        raise NotImplementedError

    def transact(
        self, work: Callable[..., T], *args: Any, until: float, begin: str | None = "BEGIN IMMEDIATE"
    ) -> T:
        """Return ``work(connection, *args)``, run in one transaction.

        Waits for a file that is locked until `real_now` is ``until``, then raises an error for which
        `is_busy` is true. Writers need ``BEGIN IMMEDIATE``: upgrading a read transaction fails with
        SQLITE_BUSY whatever the timeout. With ``begin=None``, ``work`` runs outside of a transaction.
        """
        turn: Any = self._turn
        if turn._is_owned():
            raise SQLiteFileError(
                f"{self.path} is in use further up in this thread: it cannot be used in a signal handler or "
                "a finalizer that runs meanwhile"
            )
        # By unpacking: no interrupt comes between the acquired lock and the block that releases it.
        [mine] = map(turn.acquire, (True,), (min(max(0.0, until - real_now()), TIMEOUT_MAX),))
        try:
            if not mine:
                raise BlockingIOError("another thread of this process is waiting for it")
            return self._retry_while_busy(lambda connection: work(connection, *args), begin, until)
        finally:
            if mine:
                turn.release()

    def close(self) -> None:
        """Close the connection. The next transaction opens it again."""
        with self._lock:
            self._disconnect()

    def __del__(self) -> None:
        self._disconnect()

    def _retry_while_busy(self, work: Callable[[Connection], T], begin: str | None, until: float) -> T:
        """Try a transaction until the file is not locked, with a short sleep between two tries.

        SQLite's own waiting is not used: it would hold the lock that a fork waits for.
        """
        pause, left = _FIRST_PAUSE, until - real_now()
        while True:
            [_] = map(self._lock.acquire, (True,))  # by unpacking, as above
            try:
                return self._run(work, begin)
            except Exception as error:
                # Waits are counted, too: a test may have stopped the clock.
                if not is_busy(error) or left <= 0.0 or real_now() >= until:
                    raise
            finally:
                self._lock.release()
            real_sleep(min(pause, max(0.0, until - real_now())))
            left -= pause
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _run(self, work: Callable[[Connection], T], begin: str | None) -> T:
        """Try a transaction once: return what ``work`` returns, after a commit.

        Any error, an interrupt too, closes the connection, which rolls back. If the file was moved or deleted
        meanwhile, raises `BlockingIOError`, so that the transaction is tried again on the file that is there.
        """
        try:
            connection = self._connected()
            if begin is None:
                return work(connection)
            connection.execute(begin)
            result = work(connection)
            connection.execute("COMMIT")
        except BaseException as error:
            # Closing rolls back, also after an interrupt at any point. A transaction that could not begin
            # leaves nothing behind, and the next try may use the connection.
            moved = hasattr(error, "sqlite_errorname") and self._identity != identity(self.path)
            if not is_busy(error) or self._connection is None or self._connection.in_transaction:
                self._disconnect()
            if moved:
                raise BlockingIOError(f"{self.path} was moved or deleted in this moment") from error
            raise
        if not self.keeps_open:
            self._disconnect()
        return result

    def _connected(self) -> Connection:
        """Return the connection, opened if there is none to the file that is at the path now."""
        if self._connection is not None and self._process != os.getpid():
            self._connection = None
        # Nothing may be written to a file that was moved or deleted under this connection.
        if self._connection is not None and self._identity != identity(self.path):
            self._disconnect()
        if self._connection is None:
            self.create()
            self._identity, self._process = identity(self.path), os.getpid()
            self._connection = self.connect(self._identity)
            self._open.add(self._connection)
        return self._connection

    def _disconnect(self) -> None:
        """Close the connection, if there is one. The caller holds the lock."""
        connection, self._connection = self._connection, None
        if connection is not None:
            close(connection, self.path, self._identity)
            self._open.discard(connection)


# Opening and closing


def file_path(name: str, value: Any, kinds: str = "the path of a file") -> str:
    """Return the absolute path of a file that others can open: the process may change its directory."""
    try:
        path = os.fsdecode(value)
    except TypeError:
        raise TypeError(f"{name} must be {kinds}, got {value!r}") from None
    if path in ("", ":memory:"):
        raise ValueError(f"{name} must be the path of a file: others cannot open {value!r}")
    return os.path.abspath(path)  # noqa: PTH100 - pathlib is slow to import


def open_file(path: str, prepare: Callable[[Connection], object]) -> Connection:
    """Return a connection that any thread may use, one at a time, and that never waits.

    ``prepare`` is called with it first; if it raises, the connection is closed.
    """
    import sqlite3

    connection = sqlite3.connect(path, timeout=0.0, isolation_level=None, check_same_thread=False)
    try:
        prepare(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def identity(path: str) -> Identity:
    """Return the device and inode of the file that is at this path now; ``None`` if there is none."""
    try:
        found = os.stat(path)  # noqa: PTH116
    except OSError:
        return None
    return found.st_dev, found.st_ino


def close(connection: Connection, path: str, file: Identity) -> None:
    """Close a connection to the file that had this `identity` when it was opened.

    SQLite copies the write-ahead log into the file when its last connection is closed, but not into a file
    that was moved: what is in the log would be lost.
    """
    if file != identity(path):
        # Other connections, too, end their transactions and leave.
        for _ in range(_CHECKPOINTS):
            if checkpoint(connection, "TRUNCATE"):
                break
            real_sleep(0.005)
    connection.close()


def checkpoint(connection: Connection, mode: str) -> bool:
    """Copy the write-ahead log into the file, as far as possible now; return whether all of it was."""
    try:
        connection.rollback()  # it cannot be done in a transaction
        (busy, _, _) = connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()
    except connection.Error:
        return False
    return not busy


# Creating


def create_file(path: str, lay_out: Callable[[str, Identity], Connection]) -> None:
    """Create a private file, if there is none; ``lay_out`` opens one, creates its tables and returns it.

    Processes that create it at the same time wait for each other. Raises ``BlockingIOError`` meanwhile.
    """
    # SQLite follows links, so the file is created where a dangling one leads. A file that exists is not
    # opened, even to look at it: closing it would release the locks of other connections of this process.
    path = os.path.realpath(path)
    if os.path.exists(path):  # noqa: PTH110 - pathlib is slow to import
        return
    folder = _lock_folder(os.path.dirname(path))  # noqa: PTH120
    try:
        if not os.path.exists(path):  # noqa: PTH110
            _clear_away_log(path)
            _create_whole(path, lay_out)
    finally:
        if folder is not None:
            os.close(folder)


def _create_whole(path: str, lay_out: Callable[[str, Identity], Connection]) -> None:
    """Create the file under another name, then rename it: a journal moved half done harms the next file."""
    new = f"{path}-new-{os.urandom(4).hex()}"
    os.close(os.open(new, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    try:
        lay_out(new, identity(new)).close()
        os.rename(new, path)  # noqa: PTH104
    except BaseException:
        os.unlink(new)  # noqa: PTH108
        raise


def _lock_folder(folder: str) -> int | None:
    """Lock a folder against other processes that create the file; ``None`` where folders cannot be locked."""
    try:
        import fcntl

        handle = os.open(folder, os.O_RDONLY)
    except (ImportError, OSError):
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        if isinstance(error, BlockingIOError):
            raise
        return None
    return handle


def _clear_away_log(path: str) -> None:
    """Move away the log of a file that was moved or deleted: a new file cannot be used beside it.

    A process that has the old file open goes on with the log that it has open.
    """
    log = f"{path}-wal"
    with suppress(FileNotFoundError):
        os.unlink(f"{path}-shm")  # noqa: PTH108
    with suppress(FileNotFoundError):
        if os.stat(log).st_size:  # noqa: PTH116
            kept = f"{log}-{os.urandom(4).hex()}"
            os.rename(log, kept)  # noqa: PTH104
            warn(
                f"{path} was moved or deleted while it was in use. Its log is kept as {kept}: if that is not "
                "empty, rename it to the name of the moved file with -wal behind it"
            )
        else:
            os.unlink(log)  # noqa: PTH108


# Layouts

# Each step leads from one layout to the next; the first from an empty file. Steps are added, never changed.
Steps = tuple[tuple[str, ...], ...]


def layout_of(connection: Connection, path: str, application: int, newest: int, content: str) -> int:
    """Return the layout of a file of this application, 0 for an empty one.

    Raises `SQLiteFileError` for a file of another program, and for one with a layout above ``newest``.
    """
    (owner,) = connection.execute("PRAGMA application_id").fetchone()
    (layout,) = connection.execute("PRAGMA user_version").fetchone()
    is_empty = not (owner or layout or connection.execute("SELECT 1 FROM sqlite_master").fetchone())
    if owner != application and not is_empty:
        raise SQLiteFileError(f"{path} is a database, but not {content}: use another file")
    if layout > newest:
        raise SQLiteFileError(
            f"{path} was written by a later redouble (layout {layout}, this one knows {newest}): install "
            "that one, or use another file"
        )
    return int(layout)


def migrate(connection: Connection, path: str, application: int, steps: Steps, content: str) -> None:
    """Create the tables, or bring them up to date. Runs in a transaction that writes.

    ``application`` marks the file as ours, ``content`` says in errors what such a file holds.
    """
    layout = layout_of(connection, path, application, len(steps), content)
    if layout == len(steps):
        return
    for step in steps[layout:]:
        for statement in step:
            connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {application}")
    connection.execute(f"PRAGMA user_version = {len(steps)}")


# Errors


def is_busy(error: object) -> bool:
    """Return whether an error means that the file is locked, so that another try may help.

    >>> is_busy(BlockingIOError()), is_busy(OSError())
    (True, False)
    """
    is_locked = error_code(error).startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))
    return is_locked or isinstance(error, BlockingIOError)


def is_full(error: object) -> bool:
    """Return whether an error may mean that the disk is full: opening a file needs room, too."""
    return error_code(error).startswith(("SQLITE_FULL", "SQLITE_IOERR", "SQLITE_CANTOPEN"))


def error_code(error: object) -> str:
    """Return SQLite's name for an error, such as ``"SQLITE_FULL"``; empty for other errors."""
    return str(getattr(error, "sqlite_errorname", ""))
