"""Hedging: start another attempt while the first is still running, against slow responses.

::

    @hedge(after=0.2)
    async def fetch(url): ...

Only for calls that may be made twice at once. No policy hedges by itself.
"""

from __future__ import annotations

import math
from functools import partial
from itertools import count

from .._base import checks as check
from .._base.callables import ASYNC, decorate, is_async, name_of, require_callable, sync_or_async
from .._base.loops import awaiting
from .._base.record import Record, assign
from . import _tasks, _threads
from ._race import Plan

__all__ = [
    "hedge",
    "quantile",
]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from dataclasses import KW_ONLY
    from datetime import timedelta
    from typing import Any

    from .._engine.decorate import Decorator
    from ..budget import Budget
    from ..events import Listener


def hedge(
    *,
    after: float | timedelta | quantile,
    attempts: int = 2,
    budget: Budget | None = None,
    priority: int = 0,
    listeners: Iterable[Listener] = (),
    name: str | None = None,
    max_retry_after: float | timedelta = 120.0,
    grace: float | timedelta = 1.0,
) -> Decorator:
    """Decorate a function that must be idempotent: it may run twice at once.

    If an attempt has not finished ``after`` seconds (or a `quantile` of recent latencies), another is started
    beside it, up to ``attempts`` in all. The first success is the result; the other attempts are cancelled
    and awaited. A transient failure starts the next attempt at once; any other failure is raised. If all
    fail, the exception of the first attempt is raised, with a note about the others.

    A sync function runs in daemon threads, its first attempt too. A thread cannot be cancelled: a loser
    runs to its end, and the call does not wait for it.

    Each hedge is paid for by the ``budget``, at this ``priority``; first attempts are free.
    ``max_retry_after`` is the longest wait that a failing server may ask for; ``grace`` is how long tasks
    that ignore their cancellation are waited for.

    >>> @hedge(after=0.5)
    ... def read(key):
    ...     return f"value of {key}"
    >>> read("a")
    'value of a'

    A `retry` goes above it: a hedged call that fails is one failed attempt.

    >>> from redouble import retry
    >>> from redouble.testing import no_waits, scripted
    >>> server = scripted(TimeoutError("first"), TimeoutError("second"), "page")
    >>> with no_waits():
    ...     retry(hedge(after=0.5)(server))()
    'page'
    """
    fixed = 0.0 if isinstance(after, quantile) else check.seconds("after", after)
    make = partial(
        Plan,
        attempts=check.attempts("attempts", attempts),
        budget=check.optional(check.guard)("budget", budget),
        priority=check.integer("priority", priority),
        listeners=check.listeners("listeners", listeners),
        max_retry_after=check.seconds("max_retry_after", max_retry_after),
        grace=check.seconds("grace", grace),
    )
    checked_name: str | None = check.optional(check.text)("name", name)

    def wrap(function: Any) -> Any:
        require_callable("hedge", function)
        latencies = Latencies(after) if isinstance(after, quantile) else None
        plan = make(checked_name or name_of(function), fixed, latencies)
        if sync_or_async(f"cannot hedge {plan.name}", function) == ASYNC:
            return _tasks.wrap(plan, function if is_async(function) else awaiting(function))
        if plan.budget is not None and plan.budget.is_async:
            budget_name = f"the budget {plan.budget.name}"
            raise TypeError(f"{budget_name} must be awaited, and {plan.name} is sync: make it async")
        return _threads.wrap(plan, function)

    return partial(decorate, "hedge", wrap)


# Recent latencies

# A clock that ticks in hundredths shows fast attempts as 0 s. Below this, waiting costs less than hedging.
_SHORTEST = 0.001
_FEWEST = 10


class quantile(Record):  # noqa: N801 - used like a function
    """For ``hedge(after=...)``: as long as the share ``q`` of the last attempts took.

    ``initial`` seconds hold until 1 / (1 - ``q``) latencies are known (20 for 0.95, and 10 at least, but
    no more than ``of_last``). The delay is never below a millisecond. Every function that is decorated with
    it has its own window, which all calls of that function share.

    >>> quantile(0.95, initial=0.5)
    quantile(q=0.95, initial=0.5, of_last=100)
    """

    q: float
    _: KW_ONLY
    initial: float | timedelta
    of_last: int = 100

    def _check(self) -> None:
        if not 0.0 < check.number("q", self.q) < 1.0:
            raise ValueError(f"q must be above 0 and below 1, got {self.q!r}")
        assign(self, "initial", check.seconds("initial", self.initial))
        check.whole("of_last", self.of_last, at_least=1)


class Latencies:
    """The last latencies of one function. Safe to share between threads and tasks: it takes no lock.

    >>> latencies = Latencies(quantile(0.5, initial=2.0))
    >>> latencies.delay()
    2.0
    >>> for latency in range(10):
    ...     latencies.add(latency / 10)
    >>> latencies.delay()
    0.4
    """

    __slots__ = ("_last", "_needed", "_next", "_quantile")

    def __init__(self, wanted: quantile) -> None:
        self._quantile = wanted
        self._needed = min(wanted.of_last, max(_FEWEST, _up(1 / (1 - wanted.q))))
        # Writing a slice of it and copying it are each atomic. That is not so of a deque in a free-threaded
        # interpreter.
        self._last: list[float] = []
        self._next = count().__next__

    def add(self, latency: float) -> None:
        """Add a latency, and drop the oldest."""
        index = self._next() % self._quantile.of_last
        self._last[index : index + 1] = [latency]

    def delay(self) -> float:
        """Return the quantile in seconds; the initial delay while too few latencies are known."""
        known = self._last.copy()
        if len(known) < self._needed:
            return float(self._quantile.initial)  # type: ignore[arg-type]  # seconds, by its check
        return max(_SHORTEST, sorted(known)[_up(self._quantile.q * len(known)) - 1])


def _up(value: float) -> int:
    """Round up, with a tolerance for rounding errors.

    >>> 1 / (1 - 0.9), _up(1 / (1 - 0.9))
    (10.000000000000002, 10)
    """
    return max(1, math.ceil(value - 1e-9))
