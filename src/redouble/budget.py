"""Retry budgets: limit the retries of all callers of a dependency.

Without a budget, an outage turns every call into several. First attempts are never charged. `TokenBudget`
pays retries from what successes have earned; `RatioBudget` allows them as a share of recent calls.

A budget is used in ``Policy(budget=...)``, or by hand::

    cost = budget.acquire()         # before a retry; 0.0 if it must not be made
    budget.success(cost)            # after a success; without a cost if there was no retry
    budget.failure()                # after a first attempt that failed
"""

from __future__ import annotations

import time
from types import MappingProxyType

from ._base import checks as check
from ._base.checks import INF, above_zero, number, whole
from ._base.clock import fakes
from ._guards.base import Guard
from ._guards.window import Window

__all__ = [
    "Budget",
    "RatioBudget",
    "TokenBudget",
]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import timedelta
    from typing import Any

# Retries below the default priority leave half of the budget to the others.
RESERVES: Mapping[int, float] = MappingProxyType({-1: 0.5})


class Budget(Guard):
    """Base class of budgets. Subclass it for a custom budget.

    A subclass implements `acquire` and `tokens`; `success` and `failure` do nothing by default.

    >>> class Never(Budget):
    ...     tokens = 0.0
    ...     def acquire(self, *, timeout=False, priority=0):
    ...         return 0.0
    >>> Never(name="maintenance").acquire()
    0.0
    """

    # Read by the engine on every success: whether a first-try success would change nothing.
    _full: bool = False

    def __init__(
        self,
        *,
        reserves: Mapping[int, float] = RESERVES,
        name: str | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        super().__init__(name, check.optional(check.sync_function)("clock", clock))
        self.reserves: Mapping[int, float] = MappingProxyType(_reserves(reserves))
        """By priority: the share of the budget that its retries, and those of lower ones, must leave."""

    def acquire(self, *, timeout: bool = False, priority: int = 0) -> Any:
        """Take the cost of one retry and return it; return 0.0, and take nothing, if it must not be made.

        ``timeout`` says that the previous attempt timed out, which may cost more. ``priority`` is compared
        with the ``reserves``.
        """
        raise NotImplementedError

    def success(self, cost: float = 0.0) -> Any:
        """Record that a call succeeded. ``cost`` is the cost of its last retry, 0.0 if there was none."""

    def failure(self) -> Any:
        """Record that the first attempt of a call failed."""

    def give_back(self, cost: float) -> None:
        """Return the cost of a retry that was not made: the circuit opened, or the time was up."""

    def _hedged(self, cost: float) -> Any:
        """Record that a hedge won, whose cost this was, while the first attempt was still running."""
        return self.success(cost)

    @property
    def tokens(self) -> float:
        """The tokens left, in the unit of the costs."""
        raise NotImplementedError

    @property
    def at_rest(self) -> bool:
        """Whether the budget is in its initial state, so that a registry may evict it."""
        return self._full

    def _reserve(self, priority: int) -> float:
        """Return the share that a retry of this priority must leave."""
        most = 0.0
        # Not by items(): Python 3.13 crashes where it has no memory for the pairs.
        for limit in self.reserves:
            if priority <= limit:
                most = max(most, self.reserves[limit])
        return most


def _reserves(given: Any) -> dict[int, float]:
    """Return the shares by priority, or raise an error that names the wrong one."""
    if not hasattr(given, "items"):
        raise TypeError(f"reserves must map priorities to shares from 0 to 1, got {given!r}")
    for priority, share in given.items():
        if number(f"reserves[{priority!r}]", share) > 1:
            raise ValueError(f"reserves[{priority!r}] must be a share from 0 to 1, got {share!r}")
    return {whole("a priority in reserves", key, at_least=None): float(given[key]) for key in given}


class TokenBudget(Budget):
    """A bucket of tokens that retries are paid from and successes fill.

    A retry costs ``cost``, after a timeout ``timeout_cost``. A success after retries returns the last cost
    (or ``refund``); a first-try success earns ``earn``. The tokens stay between 0 and ``capacity``. While
    the dependency is healthy every retry is allowed; in an outage the bucket becomes empty.

    >>> budget = TokenBudget(capacity=10)
    >>> budget.acquire(), budget.acquire(), budget.acquire()
    (5.0, 5.0, 0.0)
    >>> budget.success(5.0), budget.tokens
    (None, 5.0)
    """

    def __init__(
        self,
        capacity: float = 500,
        cost: float = 5,
        timeout_cost: float = 10,
        refund: float | None = None,
        earn: float = 1,
        *,
        reserves: Mapping[int, float] = RESERVES,
        name: str | None = None,
    ) -> None:
        super().__init__(reserves=reserves, name=name)
        self.capacity = number("capacity", capacity)
        self.cost = above_zero("cost", cost)
        self.timeout_cost = above_zero("timeout_cost", timeout_cost)
        self.refund = None if refund is None else number("refund", refund)
        self.earn = number("earn", earn)
        self._tokens = self.capacity
        self._full = True

    @property
    def tokens(self) -> float:
        """The tokens left: a retry is allowed while there are at least its cost."""
        return self._tokens

    def acquire(self, *, timeout: bool = False, priority: int = 0) -> float:
        """Take the cost of one retry and return it; return 0.0, and take nothing, if there is not enough."""
        cost = self.timeout_cost if timeout else self.cost
        needed = max(cost, self._reserve(priority) * self.capacity)
        with self._lock:
            # No call between the comparison and the change: a signal handler could take tokens there, too.
            if needed <= self._tokens < INF:
                self._full = False
                self._tokens -= cost
                return cost
            self._keep(0.0)
        return 0.0

    def success(self, cost: float = 0.0) -> None:
        """Return the cost of the last retry of a call that succeeded; earn a little if it had none."""
        gain = self._gain(cost)
        with self._lock:
            self._keep(gain)

    def _gain(self, cost: float) -> float:
        """Return the tokens for a success: ``earn`` at the first try, else ``refund`` or the last cost."""
        return self.earn if not cost else cost if self.refund is None else self.refund

    def give_back(self, cost: float) -> None:
        """Return the cost of a retry that was not made."""
        with self._lock:
            self._keep(cost)

    def _keep(self, gain: float, tokens: float | None = None) -> None:
        """Add to the tokens, or set them, within bounds; NaN becomes 0. Under the lock."""
        capacity = self.capacity
        # Nothing is called from here on, so that a signal handler runs before all of it, or after.
        tokens = (self._tokens if tokens is None else tokens) + gain
        if not 0.0 <= tokens < INF:
            tokens = 0.0
        elif tokens > capacity:
            tokens = capacity
        # In this order, a thread that is killed in between leaves a budget that counts every success.
        self._full = False
        self._tokens = tokens
        self._full = tokens == capacity

    def __repr__(self) -> str:
        return f"<{self.name}: {self._tokens:g} of {self.capacity:g} tokens>"


class RatioBudget(Budget):
    """Allows retries as a share of recent calls, plus a few per second.

    In the last ``window`` seconds there may be ``ratio`` retries for each call, plus ``floor_per_second``
    for each second, so that a client with few calls can retry, too. The default floor pays for the three
    retries of one call every ten seconds; `load` computes what it adds when everything fails. Calls and
    retries leave the window in tenths of it.

    >>> budget = RatioBudget(ratio=0.1, floor_per_second=0)
    >>> for _ in range(20):
    ...     budget.success()
    >>> budget.acquire(), budget.acquire(), budget.acquire()
    (1.0, 1.0, 0.0)
    """

    def __init__(
        self,
        ratio: float = 0.1,
        floor_per_second: float = 0.3,
        window: float | timedelta = 10.0,
        *,
        reserves: Mapping[int, float] = RESERVES,
        name: str | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        super().__init__(reserves=reserves, name=name, clock=clock)
        self.ratio = number("ratio", ratio)
        self.floor_per_second = number("floor_per_second", floor_per_second)
        self.window = check.some_seconds("window", window)
        self._floor = self.floor_per_second * self.window
        self._counts = Window(self.window)

    @property
    def tokens(self) -> float:
        """The number of retries allowed now."""
        allowed, used = self._reckon(self._now())
        return max(0.0, allowed - used)

    def acquire(self, *, timeout: bool = False, priority: int = 0) -> float:
        """Count one retry and return 1.0; return 0.0, and count nothing, if there were too many lately."""
        share = self._reserve(priority)
        now = self._now()
        with self._lock:
            # Counted first, and uncounted if it is too much: a signal handler may run at any line.
            self._counts.mark(now)
            allowed, used = self._reckon(now)
            left = allowed - used + 1
            # With a tolerance: ten times a tenth is not quite one.
            if left + 1e-9 < max(1.0, share * allowed):
                self._counts.unmark()
                return 0.0
        return 1.0

    def success(self, cost: float = 0.0) -> None:
        """Count a call, unless it was counted when its first attempt failed."""
        if not cost:
            # `_now` and `Window.add` inlined: every successful call comes here.
            now = time.monotonic() if self._clock is None and not fakes else self._now()
            ends, step = self._counts.current
            if now < ends:
                step()
            else:
                self._counts.add(now)

    def failure(self) -> None:
        """Count a call whose first attempt failed."""
        self._counts.add(self._now())

    def give_back(self, cost: float) -> None:
        """Uncount a retry that was not made."""
        with self._lock:
            self._counts.unmark()

    def _hedged(self, cost: float) -> None:
        self.success()  # without the cost: the first attempt has not failed, so the call was not counted

    @property
    def at_rest(self) -> bool:
        """Whether there were no retries in the window."""
        return self._reckon(self._now())[1] == 0

    def load(self, calls_per_second: float) -> float:
        """Return the requests for each call when everything fails, at this many calls per second.

        For one process, and for policies with enough attempts.

        >>> [round(RatioBudget().load(rate), 2) for rate in (1, 10, 100)]
        [1.4, 1.13, 1.1]
        """
        return 1.0 + self.ratio + self.floor_per_second / calls_per_second

    def _reckon(self, now: float) -> tuple[float, int]:
        """Return the retries allowed in the window that ends now, and the retries made in it."""
        with self._lock:
            calls, retries = self._counts.read(now)
        return self.ratio * calls + self._floor, retries

    def __repr__(self) -> str:
        return f"<{self.name}: {self.ratio:.0%} of calls and {self.floor_per_second:g}/s>"
