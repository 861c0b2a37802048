"""A budget in a file, for the processes of one machine: SQLite, from the standard library.

Every operation is one transaction on a connection of its own. It takes a fraction of a millisecond, and
no connection is there to be used by a second thread or after a fork. What was committed survives the end
of the process, also by ``kill -9``; it is not forced to the disk, which a budget is not worth.
"""

from __future__ import annotations

import os
import time

from ._guard import Lock
from ._numbers import INF

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sqlite3 import Connection
    from typing import Any

    from ._store import Words

# What the file says of itself: whose it is, and how it is laid out.
APPLICATION, VERSION = 0x72646274, 1

# SQLite must not be in the middle of something when a process forks: the child would inherit its locks
# and nobody to let go of them. So one operation at a time, and no fork meanwhile.
_one_at_a_time = Lock()

# Where there is no fork there is nothing to register, and any function will do.
_at_fork: Any = getattr(os, "register_at_fork", dict)
_at_fork(
    before=_one_at_a_time.acquire,
    after_in_parent=_one_at_a_time.release,
    after_in_child=_one_at_a_time.release,
)


class BudgetFile:
    """What is left of a budget, in a file. The table has one row, or none while the budget is full."""

    is_async = False

    def __init__(self, path: str, patience: float) -> None:
        self.path = path
        self._patience = patience

    def run(self, words: Words) -> tuple[float, float]:
        """Adds what was earned, takes the cost if there is enough; gives what was taken and what is left."""
        import sqlite3

        with _one_at_a_time:
            connection = sqlite3.connect(self.path, timeout=self._patience, isolation_level=None)
            try:
                connection.execute("PRAGMA synchronous = OFF")
                connection.execute("BEGIN IMMEDIATE")
                _make_sure(connection, self.path)
                answer = _spend(connection, *words)
                connection.execute("COMMIT")
            finally:
                connection.close()
        return answer


def _make_sure(connection: Connection, path: str) -> None:
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
    connection: Connection, capacity: float, gain: float, cost: float, needed: float, ttl: float
) -> tuple[float, float]:
    # The wall clock: no other one goes on when a machine is started again.
    now = time.time()
    row: tuple[Any, Any] | None = connection.execute("SELECT tokens, used FROM budget").fetchone()
    held = capacity if row is None or _is_old(row[1], now, ttl) else _tokens(row[0])
    tokens = min(capacity, held + gain)
    taken = cost if cost > 0 and tokens >= needed else 0.0
    tokens -= taken
    if row is not None:
        connection.execute("DELETE FROM budget")
    if tokens < capacity:
        connection.execute("INSERT INTO budget VALUES (?, ?)", (tokens, now))
    return taken, tokens


def _is_old(used: Any, now: float, ttl: float) -> bool:
    return isinstance(used, float) and now - used >= ttl


def _tokens(held: Any) -> float:
    """A column may hold anything, and SQLite keeps NaN as nothing."""
    return held if isinstance(held, float) and 0.0 <= held < INF else 0.0
