"""`SharedBudget`: a `TokenBudget` whose tokens are in a store; `BudgetFile`: the SQLite file of `FileBudget`.

The local guard is a `TokenBudget` that is set to every answer of the store. It is what is known here, and
goes on from there while the store is down.

Tokens that first-try successes earn are collected here, and sent with the next request or once per
``refresh_interval``. While the budget is known to be full nothing is collected; that knowledge expires
after the same time.
"""

from __future__ import annotations

import time

from .._base.checks import INF
from .._base.clock import real_now
from .._base.sqlite import SQLiteFile, migrate, open_file
from ..budget import Budget
from ._failover import Shared, nothing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from sqlite3 import Connection
    from typing import Any

    from .._base.sqlite import Identity
    from ..budget import TokenBudget
    from ._failover import Request


class SharedBudget(Shared, Budget):
    """A token budget in any store. Subclasses add the link to it.

    A request is the capacity, what was earned, the cost and the tokens needed, and the ``ttl``. The answer is
    what was taken, and the tokens left.
    """

    def __init__(self, local: TokenBudget, clock: Callable[[], float] | None) -> None:
        super().__init__(reserves=local.reserves, name=local.name, clock=clock)
        self._local = local
        self.capacity = local.capacity
        self.cost = local.cost
        self.timeout_cost = local.timeout_cost
        self.refund = local.refund
        self.earn = local.earn
        self._earned = 0.0

    @property
    def _full(self) -> bool:  # type: ignore[override]
        """Whether the budget was full at the last answer, and that is recent."""
        return self._local._full and self._now() < self._ask_at

    @property
    def tokens(self) -> float:
        """Tokens left as of the last answer of the store; `refresh` asks it."""
        return self._local.tokens

    @property
    def at_rest(self) -> bool:
        """Whether there is nothing to remember here: the rest is in the store."""
        return self.available and not self._earned

    def refresh(self) -> Any:
        """Send what was earned here, and return the tokens left in the store."""
        return self._exchange(lambda _: self._local.tokens)

    def acquire(self, *, timeout: bool = False, priority: int = 0) -> Any:
        """Take the cost of one retry and return it; return 0.0, and take nothing, if there is not enough."""
        cost = self.timeout_cost if timeout else self.cost
        needed = max(cost, self._reserve(priority) * self.capacity)

        def result(taken: float | None) -> float:
            return self._local.acquire(timeout=timeout, priority=priority) if taken is None else taken

        return self._exchange(result, cost, needed)

    def success(self, cost: float = 0.0) -> Any:
        """Return the cost of the last retry of a call that succeeded; earn a little if it had none."""
        fresh = self._now() < self._ask_at
        if cost or not (fresh and self._local._full):
            self.give_back(self._local._gain(cost))
        if fresh and not cost:
            return self._at_once(nothing)
        return self._exchange(nothing)

    def failure(self) -> Any:
        """Do nothing: a first attempt that fails costs nothing."""
        return self._at_once(nothing)

    def give_back(self, cost: float) -> None:
        """Return the cost of a retry that was not made. It is sent with the next request."""
        with self._lock:
            self._earned = min(self._earned + cost, self.capacity)

    def _exchange(self, result: Callable[[float | None], Any], cost: float = 0.0, needed: float = 0.0) -> Any:
        """Send what was earned, take the cost, and copy what is left to the local budget.

        Return ``result(taken)``; while the store is down, ``result(None)``.
        """
        now = self._now()
        with self._lock:
            # A request that is lost takes this along: earning too little is safe, earning twice is not.
            gain, self._earned = self._earned, 0.0
            self._ask_at = now + self.refresh_interval
            self._asked = number = self._asked + 1

        def learn(answer: tuple[float, float]) -> Any:
            """Copy an answer to the local budget, unless a later one is known."""
            taken, tokens = answer
            with self._local._lock:
                if number > self._heard:
                    self._heard = number
                    self._local._keep(0.0, tokens)
            return result(taken)

        def go_on_here() -> Any:
            """Add the earnings to the local budget, which decides while the store is down."""
            with self._local._lock:
                # Answers to earlier requests do not know what the local budget has spent since.
                self._heard = self._asked
                self._local._keep(gain)
            return result(None)

        request = self.capacity, gain, cost, needed, self.ttl
        return self._result_of(self._ask(request, self._patience(), learn, go_on_here))

    def _read(self, answer: Any) -> tuple[float, float]:
        """Return what was taken and what is left, as numbers."""
        taken, tokens = answer
        return float(taken), float(tokens)

    def _after_fork(self) -> None:
        """Forget what was earned before the fork: the parent sends it."""
        super()._after_fork()
        self._earned = 0.0  # the parent sends it

    def __repr__(self) -> str:
        return f"<{self.name}: {self.tokens:g} of {self.capacity:g} tokens>"


# The identity and the layout of the file. The table has one row, or none while the budget is full.
APPLICATION = 0x72646274
STEPS = (("CREATE TABLE budget (tokens REAL, used REAL)",),)


class BudgetFile(SQLiteFile):
    """The tokens of a budget, in a SQLite file.

    Every request is one transaction on a connection of its own, which takes a fraction of a millisecond.
    Committed changes survive ``kill -9``; they are not synced to the disk, which a budget is not worth.
    """

    is_async = False
    can_cancel = True
    keeps_open = False

    def connect(self, file: Identity) -> Connection:
        """Open the file without waiting for the disk on each commit."""
        return open_file(self.path, lambda connection: connection.execute("PRAGMA synchronous = OFF"))

    async def run(self, request: Request, patience: float) -> tuple[float, float]:
        """Add what was earned and take the cost if there is enough; return what was taken and what is left.

        Waits ``patience`` seconds for a file that is in use, in this process or in another.
        """
        return self.transact(_spend, self.path, request, until=real_now() + patience)


def _spend(connection: Connection, path: str, request: Request) -> tuple[float, float]:
    """Run a request in a transaction: add the gain, take the cost if there is enough."""
    capacity, gain, cost, needed, ttl, proving = request
    migrate(connection, path, APPLICATION, STEPS, "a budget")
    # The wall clock: no other one continues after a reboot.
    now = time.time()
    row = connection.execute("SELECT tokens, used FROM budget").fetchone()
    held, used = row or (capacity, None)
    if isinstance(used, float) and now - used >= ttl:
        held = capacity
    elif not (isinstance(held, float) and 0.0 <= held < INF):
        held = 0.0  # a column may hold anything, and SQLite stores NaN as NULL
    tokens = min(capacity, held + gain)
    taken = cost if cost > 0 and tokens >= needed else 0.0
    tokens -= taken
    if row is not None or proving:
        connection.execute("DELETE FROM budget")
    if tokens < capacity or proving:
        # Written in any case if the file must prove that it can be: one without a row is only read.
        connection.execute("INSERT INTO budget VALUES (?, ?)", (tokens, now))
    return taken, tokens
