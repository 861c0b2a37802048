"""One hedged call: which attempt is due when, and how the call ends.

A `Race` reads no clock, waits for nothing and starts nothing: ``_tasks`` and ``_threads`` do, and tell it
what became of each attempt. The rules:

- The next attempt is due ``after`` seconds after the last was started, at once if one has failed, but not
  before a server that has failed said it may be asked again, nor after the deadline that is set further out.
- The first success ends the race. So does a failure that another attempt could not change, and an interrupt.
- Where all have failed, the failure of the first attempt comes out.
"""

from __future__ import annotations

from ._latencies import Latencies, quantile
from ._story import put_note
from ._text import brief, cut, kind_of, shown
from ._trouble import report
from .classify import verdict
from .context import capped_at, here, time_left
from .events import Hedged, emit, wanted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .budget import Budget
    from .classify import Verdict
    from .context import Surroundings
    from .events import Listener

# How much of a failure's message an event tells.
_LONGEST = 1000


class Plan:
    """What was asked for, for one decorated function, and the latencies that its calls share."""

    def __init__(
        self,
        name: str,
        *,
        after: float | quantile,
        attempts: int,
        budget: Budget | None,
        priority: int,
        listeners: tuple[Listener, ...],
        patience: float,
        grace: float,
    ) -> None:
        self.name = name
        self.latencies = Latencies(after) if isinstance(after, quantile) else None
        self._after = 0.0 if isinstance(after, quantile) else after
        self.attempts = attempts
        self.budget = budget
        self.priority = priority
        self.listeners = listeners
        self.patience = patience
        self.grace = grace

    def after(self) -> float:
        """How long the next call waits before each hedge."""
        return self._after if self.latencies is None else self.latencies.delay()


class Race:
    """The state of one hedged call. Belongs to one thread, or to the tasks of one event loop."""

    __slots__ = (
        "_after", "_around", "_began", "_cause", "_costs", "_due", "_ended", "_failures", "_first",
        "_not_before", "_open", "_since", "_slots", "_untold", "_winner", "begun", "error", "over", "plan",
        "result",
    )  # fmt: skip

    def __init__(self, plan: Plan, now: float) -> None:
        self.plan = plan
        self.begun = 0
        """How many attempts were made so far."""
        self.over = False
        self.error: BaseException | None = None
        self._after = plan.after()
        self._around: Surroundings | None = here()
        self._began = now
        self._slots = min(plan.attempts, capped_at() or plan.attempts)  # not taken yet
        self._open = 0  # taken, and neither finished nor refused
        self._due: float | None = now
        self._not_before = now
        self._since: dict[int, float] = {}  # the running attempts, and when they began
        self._costs: dict[int, float] = {}
        self._failures: dict[int, str] = {}
        self._first: Exception | None = None  # the failure of the first attempt
        self._untold = False  # the budget has not heard of it
        self._cause: tuple[Verdict, str, str] | None = None  # the failure that makes the next one due
        self._winner = 0
        self._ended = now
        self.result: Any = None

    # Starting

    def wait(self, now: float) -> float | None:
        """Seconds until the next attempt is due: 0.0 if it is, ``None`` if there will be none.

        Where none is running either, the race is over with that.
        """
        if self._due is not None and self.begun and not self._in_time(self._due - now):
            self._due = None
        if self._due is not None:
            return max(0.0, self._due - now)
        if not self._open and not self.over and self._first is not None:
            self._end(1, self._first)
        return None

    def time_left(self) -> float | None:
        """Seconds until the deadline that is set further out; ``None`` without one."""
        return None if self._around is None else time_left(self._around)

    def _in_time(self, ahead: float) -> bool:
        left = self.time_left()
        return left is None or max(0.0, ahead) < left

    def take(self, now: float) -> None:
        """The attempt that is due is being started."""
        self._slots -= 1
        self._open += 1
        self._due = now + self._after if self._slots else None

    def begin(self, now: float, cost: float = 0.0) -> int:
        """It begins: gives its number, from 1."""
        self.begun += 1
        self._since[self.begun] = now
        if cost:
            self._costs[self.begun] = cost
        return self.begun

    def announce(self, number: int, now: float) -> None:
        """Tells the listeners of a hedge that has begun."""
        found, kind, message = self._cause or (None, None, None)
        self._cause = None
        if wanted(self.plan.listeners):
            event = Hedged(
                self.plan.name,
                attempt=number,
                elapsed=now - self._began,
                delay=self._after,
                cause=None if found is None else found.cause,
                status=None if found is None else found.status,
                error_type=kind,
                error_message=message,
            )
            emit(event, self.plan.listeners, logged=True)

    def refused(self, cost: float = 0.0, *, for_good: bool = False) -> None:
        """It cannot be made, and what it cost is given back.

        The next may be, at its own time, while there is one to wait for till then.
        """
        budget = self.plan.budget
        if cost and budget is not None:
            try:
                budget.give_back(cost)
            except Exception as error:  # noqa: BLE001 - a budget may be anybody's code
                report(budget, f"the budget {budget.name} failed", error)
        self._open -= 1
        self._cause = None
        if for_good or not self._open:
            self._slots = 0
            self._due = None

    # Ending

    def succeeded(self, number: int, result: Any, now: float) -> None:
        """The first success is the result; all later ones are nothing."""
        if self.over:
            return
        self.over = True
        self._winner = number
        self._ended = now
        self.result = result

    def failed(self, number: int, error: Exception, now: float) -> None:
        """Another attempt may fare better, and starts sooner for it; or this is the end."""
        if self.over:
            return
        self._open -= 1
        self._since.pop(number, None)
        self._failures[number] = brief(error)
        if number == 1:
            self._first = error
            self._untold = True
        found = verdict(error)
        if not found.retryable:
            self._end(number, error)
            return
        hint = found.retry_after or 0.0
        if hint > self.plan.patience:
            self._slots = 0
        self._not_before = max(self._not_before, now + hint)
        self._due = self._not_before if self._slots else None
        self._cause = found, kind_of(error), cut(shown(error), _LONGEST)

    def interrupted(self, error: BaseException) -> None:
        """An interrupt, a cancellation or the deadline ends it all."""
        if not self.over:
            self.over = True
            self.error = error

    def _end(self, number: int, error: Exception) -> None:
        self.over = True
        self.error = error
        failures = sorted(self._failures.items())
        others = [f"  attempt {n}: {text}" for n, text in failures if n != number]
        if others:
            headline = f"{len(others) + 1} attempts of {self.plan.name} failed; this was attempt {number}"
            put_note(error, "\n".join([f"redouble: {headline}", *others]))

    def outcome(self) -> Any:
        """Gives the result, or raises the error, and keeps neither."""
        error, result = self.error, self.result
        self.forget()
        if error is None:
            return result
        try:
            raise error
        finally:
            # The error holds this frame now; the frame must not hold the error.
            del error

    def forget(self) -> None:
        """It is over, and holds nothing: an error would hold frames that hold this race."""
        self.over = True
        self.error = self._first = self.result = None

    # What others learn from it. Written once, for both flavours: nothing here suspends but an async budget.

    async def afford(self) -> float:
        """What the next hedge has cost; 0.0 if the budget does not allow it."""
        budget = self.plan.budget
        if budget is None:
            return 1.0
        await self._tell_failure(budget)
        cost: float = await _answer(budget, lambda: budget.acquire(priority=self.plan.priority))
        return cost

    async def settle(self) -> None:
        """Tells the latencies and the budget how the call went.

        A hedge that won gives its cost back, as a retry that succeeds does. One that was overtaken is paid
        for: where all is equally slow, hedges help nobody, and the budget ends them.
        """
        self._learn()
        budget = self.plan.budget
        if budget is None:
            return
        # A first attempt that is still running was overtaken, by a failure or by a hedge that won.
        overtaken = 1 in self._since and self._winner != 1
        if overtaken and not self._winner and isinstance(self.error, Exception):
            self._untold = True
        await self._tell_failure(budget)
        cost = self._costs.get(self._winner, 0.0)
        if self._winner:
            await _answer(budget, lambda: _told_of_success(budget, cost, overtaken))

    def _learn(self) -> None:
        latencies = self.plan.latencies
        if latencies is None or not self._winner:
            return
        for number, began in self._since.items():
            latency = self._ended - began
            # One that was overtaken has taken at least this long. If only winners counted, the slow ones
            # would drop out of the quantile, and each call would hedge a little sooner than the last.
            if number == self._winner or latency > self._after:
                latencies.add(latency)

    async def _tell_failure(self, budget: Budget) -> None:
        if self._untold:
            self._untold = False
            await _answer(budget, budget.failure)


def _told_of_success(budget: Budget, cost: float, overtaken: bool) -> Any:
    if overtaken:
        return budget._hedged(cost)
    return None if budget.full and not cost else budget.success(cost)


async def _answer(budget: Budget, question: Callable[[], Any]) -> Any:
    """What a budget says; 0.0 if it fails, since its trouble is not the call's."""
    try:
        answer = question()
        return (await answer) if hasattr(answer, "__await__") else answer
    except Exception as error:  # noqa: BLE001 - a budget may be anybody's code
        report(budget, f"the budget {budget.name} failed; there is no hedge without it", error)
        return 0.0
