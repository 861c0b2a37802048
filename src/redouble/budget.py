"""May this process afford one more retry?

A budget is shared by all callers of a dependency, so that an outage does not turn every call into many.
First attempts are never charged. `TokenBudget` pays retries out of what successes have earned;
`RatioBudget` allows them as a share of recent calls.

Both are used alike, in ``Policy(budget=...)`` or by hand:

    cost = budget.acquire()         # before a retry; 0.0 if it may not be made
    budget.success(cost)            # after a success; without a cost, if it came at the first try
    budget.failure()                # after a first attempt that failed
"""

from __future__ import annotations

import time
from types import MappingProxyType

from . import _checks as check
from ._guard import Guard
from ._numbers import INF, above_zero, number, whole
from ._time import fakes
from ._window import Window

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

# Below the default priority a retry leaves half of the budget to the others.
RESERVES: Mapping[int, float] = MappingProxyType({-1: 0.5})


class Budget(Guard):
    """What every budget can be asked. A budget of your own is a subclass of this."""

    full: bool = False
    """Whether a success at the first try would change nothing, and so need not be told."""

    def __init__(
        self,
        *,
        reserves: Mapping[int, float] = RESERVES,
        name: str | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        super().__init__(name, check.optional(check.sync_function)("clock", clock))
        self.reserves: Mapping[int, float] = MappingProxyType(_reserves(reserves))
        """For a priority, and those below it: the share that must be left for its retries to be allowed."""

    def acquire(self, *, timeout: bool = False, priority: int = 0) -> Any:
        """Takes what one retry costs, and gives that; 0.0, with nothing taken, if it may not be made.

        ``timeout`` says that the attempt before it failed by a timeout, which costs more where the
        dependency is slow; ``priority`` is held against the reserves.
        """
        raise NotImplementedError

    def success(self, cost: float = 0.0) -> Any:
        """A call has succeeded; ``cost`` is what its last retry cost, 0.0 if there was none."""

    def failure(self) -> Any:
        """The first attempt of a call has failed."""

    def give_back(self, cost: float) -> None:
        """Takes back what a retry cost that was not made after all: a circuit has opened, time was up."""

    def _hedged(self, cost: float) -> Any:
        """A hedge has won, for which this was paid, while the first attempt was still running."""
        return self.success(cost)

    @property
    def tokens(self) -> float:
        """What is left, in the unit of the costs."""
        raise NotImplementedError

    @property
    def at_rest(self) -> bool:
        """Whether there is nothing to remember, so that a new one would do as well."""
        return self.full

    def _reserve(self, priority: int) -> float:
        """The share that must be left for a retry of this priority."""
        return max([share for limit, share in self.reserves.items() if priority <= limit], default=0.0)


def _reserves(given: Any) -> dict[int, float]:
    if not hasattr(given, "items"):
        raise TypeError(f"reserves must map priorities to shares from 0 to 1, got {given!r}")
    for priority, share in given.items():
        if number(f"reserves[{priority!r}]", share) > 1:
            raise ValueError(f"reserves[{priority!r}] must be a share from 0 to 1, got {share!r}")
    return {whole("a priority in reserves", key, at_least=None): float(given[key]) for key in given}


class TokenBudget(Budget):
    """A purse that retries are paid from and successes fill.

    A retry takes ``cost``, one after a timeout ``timeout_cost``. A success after retries gives back the
    last cost (or ``refund``); a success at the first try earns ``earn``. Never above ``capacity``, never
    below 0. While the dependency is well this allows every retry; in an outage it runs dry.

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
        self.full = True

    @property
    def tokens(self) -> float:
        """What is left: a retry is allowed while this is at least its cost."""
        return self._tokens

    def acquire(self, *, timeout: bool = False, priority: int = 0) -> float:
        """Takes the cost of one retry and gives it; 0.0, with nothing taken, if there is not enough."""
        cost = self.timeout_cost if timeout else self.cost
        reserve = self._reserve(priority) * self.capacity
        needed = max(cost, reserve)
        with self._lock:
            # No call between the look and the change: a signal handler may come in there, and take some, too.
            if needed <= self._tokens < INF:
                self.full = False
                self._tokens -= cost
                return cost
            self._keep(0.0)
        return 0.0

    def success(self, cost: float = 0.0) -> None:
        """Gives back the last cost of a call that has succeeded; earns a little if it had none."""
        gain = self.earn if not cost else cost if self.refund is None else self.refund
        with self._lock:
            self._keep(gain)

    def give_back(self, cost: float) -> None:
        """Puts back what a retry cost that was not made."""
        with self._lock:
            self._keep(cost)

    def _keep(self, gain: float, tokens: float | None = None) -> None:
        """Add to the tokens, or set them: within bounds, and nothing that is no number gets in."""
        capacity = self.capacity
        # From here on nothing is called, so that a signal handler comes before all of it, or after.
        tokens = (self._tokens if tokens is None else tokens) + gain
        if not 0.0 <= tokens < INF:
            tokens = 0.0
        elif tokens > capacity:
            tokens = capacity
        # In this order, a thread that is ended between the two leaves a budget that is told too much.
        self.full = False
        self._tokens = tokens
        self.full = tokens == capacity

    def __repr__(self) -> str:
        return f"<{self.name}: {self._tokens:g} of {self.capacity:g} tokens>"


class RatioBudget(Budget):
    """Retries may be a share of recent calls, plus a few in every second.

    In the last ``window`` seconds there may be ``ratio`` retries for each call, plus ``floor_per_second``
    for each second of it, so that a client with few calls may retry, too. The default floor pays for the
    three retries of one call every ten seconds; `load` says what it adds when everything fails. Calls and
    retries fall out of the window by tenths of it.

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
        """How many retries are allowed now."""
        now = self._now()
        with self._lock:
            allowed, used = self._reckon(now)
        return max(0.0, allowed - used)

    def acquire(self, *, timeout: bool = False, priority: int = 0) -> float:
        """Counts one retry and gives 1.0; 0.0, with nothing counted, if there were too many lately."""
        share = self._reserve(priority)
        now = self._now()
        with self._lock:
            # Counted first, and taken back if it was too much: a signal handler may come in at any line.
            self._counts.mark(now)
            allowed, used = self._reckon(now)
            left = allowed - used + 1
            # A little air: ten times a tenth is not quite one.
            if left + 1e-9 < max(1.0, share * allowed):
                self._counts.unmark()
                return 0.0
        return 1.0

    def success(self, cost: float = 0.0) -> None:
        """Counts a call, unless it is one that was counted when it first failed."""
        if not cost:
            # `_now` and `Window.add`, in place: this is on the way of every call that goes well.
            now = time.monotonic() if self._clock is None and not fakes else self._now()
            ends, step = self._counts.current
            if now < ends:
                step()
            else:
                self._counts.add(now)

    def failure(self) -> None:
        """Counts a call whose first attempt has failed."""
        self._counts.add(self._now())

    def give_back(self, cost: float) -> None:
        """Counts a retry no longer that was not made."""
        with self._lock:
            self._counts.unmark()

    def _hedged(self, cost: float) -> None:
        self.success()  # its first attempt has not failed, so the call was not counted

    @property
    def at_rest(self) -> bool:
        """Whether there were no retries lately."""
        now = self._now()
        with self._lock:
            return self._reckon(now)[1] == 0

    def load(self, calls_per_second: float) -> float:
        """Return the requests for each call when everything fails, at this many calls per second.

        For one process, and for policies with enough attempts.

        >>> [round(RatioBudget().load(rate), 2) for rate in (1, 10, 100)]
        [1.4, 1.13, 1.1]
        """
        return 1.0 + self.ratio + self.floor_per_second / calls_per_second

    def _reckon(self, now: float) -> tuple[float, int]:
        """Retries allowed in the window that ends now, and those that were made in it."""
        calls, retries = self._counts.read(now)
        return self.ratio * calls + self._floor, retries

    def __repr__(self) -> str:
        return f"<{self.name}: {self.ratio:.0%} of calls and {self.floor_per_second:g}/s>"
