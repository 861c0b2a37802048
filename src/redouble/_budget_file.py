"""A budget in a file, for the processes of one machine: SQLite, from the standard library.

Every operation is one transaction on a connection of its own. It takes a fraction of a millisecond, and
no connection is there to be used by a second thread or after a fork. What was committed survives the end
of the process, also by ``kill -9``; it is not forced to the disk, which a budget is not worth.
"""

from __future__ import annotations

import _thread
import os
import time
from weakref import WeakValueDictionary

from ._guard import Lock
from ._numbers import INF
from ._time import real_now

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3
    from typing import Any

    from ._store import Words

# Seconds between two looks at a file that another process has locked.
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.001, 0.016

# What the file says of itself: whose it is, and how it is laid out.
APPLICATION, VERSION = 0x72646274, 1

# SQLite must not be in the middle of something when a process forks: the child would inherit its locks
# and nobody to let go of them. So one operation at a time on each file, and no fork meanwhile. Nobody waits
# for another process while holding one of these: a file that is locked must hold up neither a fork nor the
# other threads.
_locks: WeakValueDictionary[str, Any] = WeakValueDictionary()
_making = Lock()
_held: list[Any] = []


def _before_fork() -> None:
    for lock in (_making, *_locks.values()):
        lock.acquire()
        _held.append(lock)


def _after_fork() -> None:
    while _held:
        _held.pop().release()


# Where there is no fork there is nothing to register, and any function will do.
_at_fork: Any = getattr(os, "register_at_fork", dict)
_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)


class BudgetFile:
    """What is left of a budget, in a file. The table has one row, or none while the budget is full."""

    is_async = False
    cuts_off = True

    def __init__(self, path: str) -> None:
        # Now, and not in `run`: a child that is forked during an import may find it locked for ever.
        import sqlite3  # noqa: F401  # pyright: ignore[reportUnusedImport]

        self.path = path
        with _making:
            self._one_at_a_time = _locks.setdefault(path, Lock())

    def run(self, words: Words, patience: float) -> tuple[float, float]:
        """Add what was earned and take the cost if there is enough; return what was taken and what is left.

        Waits ``patience`` seconds for a file that is in use, in this process or in another.
        """
        import sqlite3

        ends, pause = real_now() + patience, _SHORTEST_PAUSE
        while True:
            try:
                return self._run_alone(words, max(0.0, ends - real_now()))
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or real_now() >= ends:
                    raise
            time.sleep(min(pause, max(0.0, ends - real_now())))
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _run_alone(self, words: Words, patience: float) -> tuple[float, float]:
        import sqlite3

        held = False
        try:
            # By unpacking: no interrupt comes between a lock that is taken and the note of it.
            [held] = map(self._one_at_a_time.acquire, (True,), (min(patience, _thread.TIMEOUT_MAX),))
            if not held:
                raise TimeoutError(f"{self.path} is in use by another thread")
            return _exchange(sqlite3.connect(self.path, timeout=0.0, isolation_level=None), self.path, words)
        finally:
            if held:
                self._one_at_a_time.release()


def _exchange(connection: sqlite3.Connection, path: str, words: Words) -> tuple[float, float]:
    """Carry out one operation, all of it or nothing, and close the connection."""
    try:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("BEGIN IMMEDIATE")
        _make_sure(connection, path)
        answer = _spend(connection, *words)
        connection.execute("COMMIT")
    finally:
        connection.close()
    return answer


def _make_sure(connection: sqlite3.Connection, path: str) -> None:
    """The file is new, or one of ours."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if (application, version) == (APPLICATION, VERSION):
        return
    if application == APPLICATION:
        raise ValueError(f"{path} has layout {version}, this redouble knows {VERSION}: use another file")
    if application or version or connection.execute("SELECT 1 FROM sqlite_master").fetchone():
        raise ValueError(f"{path} is a database, but not a budget: use another file")
    connection.execute("CREATE TABLE budget (tokens REAL, used REAL)")
    connection.execute(f"PRAGMA application_id = {APPLICATION}")
    connection.execute(f"PRAGMA user_version = {VERSION}")


def _spend(
    connection: sqlite3.Connection,
    capacity: float,
    gain: float,
    cost: float,
    needed: float,
    ttl: float,
    proving: bool,
) -> tuple[float, float]:
    # The wall clock: no other one goes on when a machine is started again.
    now = time.time()
    row: tuple[Any, Any] | None = connection.execute("SELECT tokens, used FROM budget").fetchone()
    held = capacity if row is None or _is_old(row[1], now, ttl) else _tokens(row[0])
    tokens = min(capacity, held + gain)
    taken = cost if cost > 0 and tokens >= needed else 0.0
    tokens -= taken
    if row is not None or proving:
        connection.execute("DELETE FROM budget")
    if tokens < capacity or proving:
        # Written in any case if the file must prove that it can be: one without a row is only read.
        connection.execute("INSERT INTO budget VALUES (?, ?)", (tokens, now))
    return taken, tokens


def _is_old(used: Any, now: float, ttl: float) -> bool:
    return isinstance(used, float) and now - used >= ttl


def _tokens(held: Any) -> float:
    """A column may hold anything, and SQLite keeps NaN as nothing."""
    return held if isinstance(held, float) and 0.0 <= held < INF else 0.0
