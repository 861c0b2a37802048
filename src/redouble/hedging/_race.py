"""One hedged call: when each attempt is due, and how the call ends.

A `Race` reads no clock, waits for nothing and starts nothing: ``_tasks`` and ``_threads`` do, and pass it
the outcome of each attempt. The rules:

- The next attempt is due ``after`` seconds after the last was started, or at once if one has failed; but not
  before the time that a failing server asked for, nor after the deadline of the enclosing call.
- The first success ends the race. So does a failure that is not transient, and an interrupt.
- If all attempts have failed, the exception of the first is raised.
"""

from __future__ import annotations

from .._base.callables import sync_result
from .._base.log_once import shielded, warn_once
from .._base.record import Record
from .._base.text import brief, cut, safe_str, type_name
from .._engine.note import put_lines, written
from ..classify import verdict
from ..context import capped_at, here, time_left
from ..events import Hedged, emit, wanted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from ..budget import Budget
    from ..context import AttemptContext
    from ..events import Listener
    from . import Latencies

# How many characters of an error's message an event has.
_LONGEST = 1000


class Plan(Record):
    """The arguments of `hedge` for one decorated function, and the latencies that its calls share.

    ``after`` holds where there are no ``latencies``: with `quantile` these say how long to wait.
    """

    name: str
    after: float
    latencies: Latencies | None
    attempts: int
    budget: Budget | None
    priority: int
    listeners: tuple[Listener, ...]
    max_retry_after: float
    grace: float


class Race:
    """The state of one hedged call. Belongs to one thread, or to the tasks of one event loop.

    A driver iterates over `waits`, which starts the attempts. Each attempt calls `afford` unless it is the
    first, then `begin` and `announce`, or `refused`; when it ends, one of `succeeded`, `failed` and
    `interrupted`. At the end the driver calls `settle`, `outcome` and, whatever happened, `forget`.

    >>> plan = Plan("read", 0.5, None, 2, None, 0, (), max_retry_after=120.0, grace=1.0)
    >>> race = Race(plan, 0.0, (), {}, sync=True)
    >>> race.wait(0.0), race.take(0.0), race.begin(0.0)
    (0.0, None, 1)
    >>> race.wait(0.25), race.wait(0.5)  # the second attempt is due 0.5 s after the first
    (0.25, 0.0)
    >>> race.succeeded(1, "page", 0.25)
    >>> race.over, race.outcome()
    (True, 'page')
    """

    # What events read of a call, as `args`, `kwargs`, `most` and `counted` are.
    logged = True
    masking = None

    def __init__(
        self, plan: Plan, now: float, args: tuple[Any, ...], kwargs: dict[str, Any], *, sync: bool
    ) -> None:
        self.plan = plan
        self.args, self.kwargs = args, kwargs
        self.most = plan.attempts
        self.begun = 0
        """How many attempts were begun so far."""
        self.over = False
        self.error: BaseException | None = None
        self.result: Any = None
        self._sync = sync
        self._notes = written.latest  # the last note before: later ones are of calls inside the attempts
        self._after = plan.after if plan.latencies is None else plan.latencies.delay()
        self._outer: AttemptContext | None = here()
        self._began = self._ended = self._not_before = now
        self._due: float | None = now
        self._slots = min(plan.attempts, capped_at() or plan.attempts)  # attempts that may still be started
        self._open = 0  # started, and neither finished nor refused
        self._since: dict[int, float] = {}  # the running attempts, and when they began
        self._costs: dict[int, float] = {}
        self._failures: dict[int, str] = {}
        self._first: Exception | None = None  # the failure of the first attempt
        self._first_failed = False  # and the budget does not know it yet
        self._due_to: Exception | None = None  # the failure that makes the next attempt due, for its event
        self._cause: dict[str, Any] = {}  # and the fields of the event that are about it
        self._elapsed = 0.0  # seconds until the last hedge
        self._winner = 0

    # Starting

    def waits(self, clock: Callable[[], float], start: Callable[[], object]) -> Iterator[float | None]:
        """Call ``start`` for each attempt that is due, until the race is over.

        Yield the seconds for which to wait for an outcome meanwhile, ``None`` for as long as it takes.
        """
        while True:
            seconds = self.wait(clock())
            if self.over:
                return
            if seconds == 0.0:
                self.take(clock())
                start()
            else:
                yield seconds

    def wait(self, now: float) -> float | None:
        """Return the seconds until the next attempt is due: 0.0 if it is, ``None`` if there will be none.

        If there will be none and none is running, this ends the race.
        """
        if self._due is not None and self.begun:
            left = self.time_left()
            if left is not None and max(0.0, self._due - now) >= left:
                self._due = None
        if self._due is not None:
            return max(0.0, self._due - now)
        if not self._open and not self.over and self._first is not None:
            self._end(1, self._first)
        return None

    def time_left(self) -> float | None:
        """Return the seconds until the deadline of the enclosing call; ``None`` without one."""
        return None if self._outer is None else time_left(self._outer)

    def take(self, now: float) -> None:
        """Start the attempt that is due."""
        self._slots -= 1
        self._open += 1
        self._due = now + self._after if self._slots else None

    def begin(self, now: float, cost: float = 0.0) -> int:
        """Begin the attempt that was started, and return its number, from 1.

        ``cost`` is what the budget took for it, which is given back if this attempt wins.
        """
        self.begun += 1
        self._since[self.begun] = now
        self._costs[self.begun] = cost
        return self.begun

    def announce(self, number: int, now: float) -> None:
        """Send the event of a hedge that has begun."""
        cause, error = self._cause, self._due_to
        self._cause, self._due_to = {}, None
        if wanted(self.plan.listeners):
            elapsed = self._elapsed = now - self._began
            event = Hedged(self.plan.name, attempt=number, elapsed=elapsed, delay=self._after, **cause)
            emit(event, self.plan.listeners, during=(error, self, ""))

    def counted(self) -> str:
        """Return how many attempts were begun, and in which time, in words."""
        return f"{self.begun} attempts in {self._elapsed:.1f} s"

    def refused(self, cost: float = 0.0, *, for_good: bool = False) -> None:
        """Drop the attempt that was started, and give its cost back.

        The next may still be made, at its own time, while another is running.
        """
        budget = self.plan.budget
        if cost and budget is not None:
            shielded(budget, f"the budget {budget.name} failed", budget.give_back, cost)
        self._open -= 1
        self._cause, self._due_to = {}, None
        if for_good or not self._open:
            self._slots = 0
            self._due = None

    # Ending

    def succeeded(self, number: int, result: Any, now: float) -> None:
        """End the race with a result. Later successes are ignored."""
        if not self.over:
            self.over = True
            self._winner = number
            self._ended = now
            self.result = result

    def failed(self, number: int, error: Exception, now: float) -> None:
        """Make the next attempt due if the failure is transient; otherwise end the race."""
        if self.over:
            return
        self._open -= 1
        self._since.pop(number, None)
        self._failures[number] = brief(error)
        if number == 1:
            self._first = error
            self._first_failed = True
        found = verdict(error)
        if not found.retryable:
            self._end(number, error)
            return
        hint = found.retry_after or 0.0
        if hint > self.plan.max_retry_after:
            self._slots = 0
        self._not_before = max(self._not_before, now + hint)
        self._due = self._not_before if self._slots else None
        self._due_to = error
        self._cause = {
            "cause": found.cause,
            "status": found.status,
            "error_type": type_name(error),
            "error_message": cut(safe_str(error), _LONGEST),
        }

    def interrupted(self, error: BaseException) -> None:
        """End the race with an interrupt, a cancellation or the deadline."""
        if not self.over:
            self.over = True
            self.error = error

    def _end(self, number: int, error: Exception) -> None:
        """End the race with the failure of an attempt, and a note about the others."""
        self.interrupted(error)
        failures = sorted(self._failures.items())
        others = [f"  attempt {n}: {text}" for n, text in failures if n != number]
        if others:
            headline = f"{len(others) + 1} attempts of {self.plan.name} failed; this was attempt {number}"
            put_lines(error, headline, others, self._notes)

    def outcome(self) -> Any:
        """Return the result, or raise the error, and keep neither."""
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
        """End the race and drop its errors: they hold frames that hold this race."""
        self.over = True
        self.error = self._first = self._due_to = self.result = None

    # Latencies and the budget. Coroutines, for async budgets; in a sync call they never suspend.

    async def afford(self) -> float:
        """Return the cost of the next hedge; 0.0 if the budget does not allow it."""
        budget = self.plan.budget
        if budget is None:
            return 1.0
        await self._report_failure(budget)
        cost: float = await self._ask(budget, lambda: budget.acquire(priority=self.plan.priority))
        return cost

    async def settle(self) -> None:
        """Report the outcome to the latencies and the budget.

        A hedge that won gives its cost back, as a retry that succeeds does. One that was overtaken is paid
        for: if all attempts are equally slow, hedges do not help, and the budget ends them.
        """
        self._add_latencies()
        budget = self.plan.budget
        if budget is None:
            return
        # A first attempt that is still running was overtaken, by a failure or by a hedge that won.
        overtaken = 1 in self._since and self._winner != 1
        if overtaken and not self._winner and isinstance(self.error, Exception):
            self._first_failed = True
        await self._report_failure(budget)
        cost = self._costs.get(self._winner, 0.0)
        if self._winner and (overtaken or cost or not budget._full):
            report = budget._hedged if overtaken else budget.success
            await self._ask(budget, lambda: report(cost))

    def _add_latencies(self) -> None:
        """Add the latency of the winner, and of attempts that were overtaken after ``after`` seconds."""
        latencies = self.plan.latencies
        if latencies is None or not self._winner:
            return
        for number, began in self._since.items():
            latency = self._ended - began
            # An attempt that was overtaken took at least this long. If only winners counted, slow attempts
            # would drop out of the quantile, and each call would hedge a little sooner than the last.
            if number == self._winner or latency > self._after:
                latencies.add(latency)

    async def _report_failure(self, budget: Budget) -> None:
        """Tell the budget that the first attempt failed, once."""
        if self._first_failed:
            self._first_failed = False
            await self._ask(budget, budget.failure)

    async def _ask(self, budget: Budget, question: Callable[[], Any]) -> Any:
        """Return the answer of a budget; 0.0 if it fails, since its errors are not the call's."""
        try:
            answer = question()
            if self._sync:
                return sync_result("it", answer)
            return (await answer) if hasattr(answer, "__await__") else answer
        except Exception as error:  # noqa: BLE001 - a budget may be anybody's code
            warn_once(budget, f"the budget {budget.name} failed; there is no hedge without it", error)
            return 0.0
