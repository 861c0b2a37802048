"""The file that dead letters are kept in: whose it is, how it is laid out, how it is opened.

A file of somebody else's is never touched, nor one of a later redouble; one of an earlier is brought up to
date. Whatever goes wrong is a `StoreTrouble` that names the file and says what to do.
"""

from __future__ import annotations

import os

from ._text import brief
from ._time import real_sleep
from ._trouble import say
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


# Bytes kept aside beside the file: on a full disk this room is given up, so that letters can be deleted. And
# how many must be free for that.
_RESERVE, _PLENTY = 1 << 20, 8 << 20

# After so many pages the write-ahead log is copied into the file. On a full disk a long one could not be.
_LOG_PAGES = 100

# How often the log of a file that was moved is copied while others are writing it.
_TRIES = 10


def connect(path: str, file: tuple[int, int] | None) -> Connection:
    """Connect to ``file``, which `make` has made, and bring its layout up to date.

    Nothing waits here: a file that is locked, or is moved meanwhile, is an error for which `is_busy` is true.
    """
    connection = _open(path, file)
    _keep_reserve(path)
    return connection


def _open(path: str, file: tuple[int, int] | None) -> Connection:
    import sqlite3

    # Any thread may use it; that it is one at a time is the store's business.
    connection = sqlite3.connect(path, timeout=0.0, isolation_level=None, check_same_thread=False)
    try:
        connection.text_factory = _text
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA wal_autocheckpoint = {_LOG_PAGES}")
        # In one look: between two, another process may make the file.
        connection.execute("BEGIN")
        layout = _layout(connection, path)
        connection.execute("COMMIT")
        # SQLite opens the log by its name, some time after the file: it may be the log of another by now.
        _insist_on(file, path)
        if layout < len(STEPS):
            _bring_up_to_date(connection, path)
        # Where the file system cannot do it the answer is another mode, which is as safe but slower.
        connection.execute("PRAGMA journal_mode = WAL").fetchone()
        _insist_on(file, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _insist_on(file: tuple[int, int] | None, path: str) -> None:
    if file != identity(path):
        raise BlockingIOError(f"{path} was moved or deleted in this moment")


def _text(stored: bytes) -> str:
    """Decode a text of the file; one that is damaged must not hide the rows after it."""
    return stored.decode("utf-8", "backslashreplace")


def identity(path: str) -> tuple[int, int] | None:
    """Which file is at this path now."""
    try:
        found = os.stat(path)  # noqa: PTH116
    except OSError:
        return None
    return found.st_dev, found.st_ino


def leave(connection: Connection, path: str, file: tuple[int, int] | None) -> None:
    """Close a connection to what was ``file`` when it was opened.

    SQLite copies the write-ahead log into the file when the last connection is closed, but not into a file
    that was moved: its letters would be left in a log that nobody finds.
    """
    if file != identity(path):
        # Others, too, end what they are doing and leave.
        for _ in range(_TRIES):
            if checkpoint(connection, "TRUNCATE"):
                break
            real_sleep(0.005)
    connection.close()


def checkpoint(connection: Connection, mode: str) -> bool:
    """Copy the write-ahead log into the file, as far as that is possible now; say whether all of it was."""
    import sqlite3

    try:
        connection.rollback()  # in a transaction it cannot be done
        (busy, _, _) = connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()
    except sqlite3.Error:
        return False
    return not busy


# Making it


def make(path: str) -> None:
    """Make a file for its owner alone: payloads may be private even where they hold no secrets."""
    # SQLite follows links, so the file is made where a dangling one leads. A file that is there is not
    # opened, even to look at it: closing it would release the locks of other connections of this process.
    path = os.path.realpath(path)
    if os.path.exists(path):  # noqa: PTH110 - pathlib is slow to import
        return
    folder = _locked_folder(os.path.dirname(path))  # noqa: PTH120
    try:
        if not os.path.exists(path):  # noqa: PTH110
            _clear_away_log(path)
            _make_whole(path)
    finally:
        if folder is not None:
            os.close(folder)


def _make_whole(path: str) -> None:
    """Make a file that is laid out. Under another name: moved half done, its journal would harm the next."""
    new = f"{path}-new-{os.urandom(4).hex()}"
    os.close(os.open(new, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    try:
        _open(new, identity(new)).close()
        os.rename(new, path)  # noqa: PTH104
    except BaseException:
        os.unlink(new)  # noqa: PTH108
        raise


def _locked_folder(folder: str) -> int | None:
    """Lock a folder against other processes that make the file; ``None`` where folders cannot be locked."""
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
    try:
        os.unlink(f"{path}-shm")  # noqa: PTH108
    except FileNotFoundError:
        pass
    try:
        if os.stat(log).st_size:  # noqa: PTH116
            kept = f"{log}-{os.urandom(4).hex()}"
            os.rename(log, kept)  # noqa: PTH104
            say(
                f"{path} was moved or deleted while it was in use. Its log is kept as {kept}: if that is not "
                "empty, rename it to the name of the moved file with -wal behind it"
            )
        else:
            os.unlink(log)  # noqa: PTH108
    except FileNotFoundError:
        pass


def _keep_reserve(path: str) -> None:
    """Keep some room of the disk aside, where there is plenty: random bytes, which do not compress."""
    name = f"{os.path.realpath(path)}-reserve"
    if is_scarce(path):
        return  # or it would take the room that it has just made
    try:
        handle = os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    except OSError:  # it is there already
        return
    try:
        written = os.write(handle, os.urandom(_RESERVE))
    except OSError:
        written = 0
    finally:
        os.close(handle)
    if written < _RESERVE:
        give_up_reserve(path)


def is_scarce(path: str) -> bool:
    """Whether there is little room left on the disk, as far as is known."""
    try:
        disk = os.statvfs(path)
    except (OSError, AttributeError):  # Windows has no such thing
        return False
    return disk.f_bavail * disk.f_frsize < _PLENTY


def give_up_reserve(path: str) -> None:
    """Give the room kept aside back to the disk."""
    try:
        os.unlink(f"{os.path.realpath(path)}-reserve")  # noqa: PTH108
    except OSError:
        pass


# Its layout


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


def is_busy(error: object) -> bool:
    """Whether an error means that another process has the file locked."""
    return isinstance(error, BlockingIOError) or _code(error).startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))


def is_full(error: object) -> bool:
    """Whether an error may mean that the disk is full: opening a file needs room, too."""
    return _code(error).startswith(("SQLITE_FULL", "SQLITE_IOERR", "SQLITE_CANTOPEN"))


def _code(error: object) -> str:
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
    if isinstance(error, BlockingIOError):
        advice = _ADVICE["SQLITE_BUSY"]
    elif isinstance(error, OSError):
        advice = "see to its directory and the permissions"
    for code, found in _ADVICE.items():
        if _code(error).startswith(code):
            advice = found
    return StoreTrouble(f"dead letters in {path} cannot be used ({brief(error)}): {advice}", where=path)
