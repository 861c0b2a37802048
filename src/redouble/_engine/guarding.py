"""The guards of a policy in one call: ask for admission, report outcomes, give back what is held.

The order of a call: a slot of the bulkhead, a turn of the throttle, a ticket of the breaker; the attempt;
its outcome to throttle, breaker and budget; before a retry, the budget. Guards may be the user's own: an
error of one is logged once, and never becomes the call's. Guards with an async client answer with
awaitables: those are collected as reports, which the flow has awaited by its driver.
"""

from __future__ import annotations

from .._base import checks as check
from .._base.callables import name_of, sync_result
from .._base.log_once import warn_once
from .._base.loops import in_event_loop
from ..classify import verdict
from ..context import in_time
from .decide import RejectedResult

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .._guards.waiters import Permit
    from ..bulkhead import Bulkhead
    from ..policy import Policy

    Report = tuple[Any, ...]
    TimeLeft = Callable[[], float | None] | None


class NoGuard:
    """Stands in for a budget or breaker that a policy does not have: closed, nothing to report."""

    _ticket, _clean, _full = 0, True, True


NO_GUARD: Any = NoGuard()


def fast_guards(policy: Policy) -> tuple[Any, Any]:
    """Return the budget and the breaker of a policy for a first attempt, which reads their state only."""
    budget: Any = policy.budget
    breaker: Any = policy.breaker
    return NO_GUARD if budget is None else budget, NO_GUARD if breaker is None else breaker


def report_success(policy: Policy, name: str, ticket: Any, left: float | None = None) -> None:
    """Report a success at the first attempt to the budget and the breaker."""
    budget, breaker = fast_guards(policy)
    try:
        if not breaker._clean:
            in_time(left, breaker.success, ticket)
        if not budget._full:
            in_time(left, budget.success)
    except Exception as error:  # noqa: BLE001 - a guard may be the user's own
        warn_once(policy, f"a guard of {name} failed", error)


class GuardPass:
    """The guards of one call, what it holds of them, and what it tells them.

    Those of its policy, or those that functions of the policy choose for it: once, before the first attempt,
    and for the whole call. ``left`` is the time that the call has left, in seconds: a guard with a remote
    store takes a part of it at most.
    """

    # What the breaker gave for the running attempt.
    ticket: Any = None
    # The bulkhead in which the call has a slot, and its permit.
    slot: tuple[Bulkhead, Permit] | None = None
    # What the budget took for the last retry.
    cost = 0.0
    # The same, until that retry is made.
    unspent = 0.0
    # Whether the running attempt holds nothing any more, since the block was reset.
    given_back = False

    def __init__(self, policy: Policy, ticket: Any = None) -> None:
        """Take the guards of the policy, and the ticket of a first attempt that was made already."""
        self.policy = policy
        self.budget: Any = policy.budget
        self.breaker: Any = policy.breaker
        self.throttle: Any = policy.throttle
        self.bulkhead: Any = policy.bulkhead
        if ticket is not None:
            self.ticket = ticket

    def choose(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], *, awaits: bool) -> None:
        """Ask the functions of the policy for the guards of this call. Without an answer there is none."""
        for field in self.policy._keyed:
            function: Any = getattr(self.policy, field)
            guard: Any = None
            try:
                answer = sync_result("it", function(*args, **kwargs))
                if answer is not None and check.guard(field, answer).is_async and not awaits:
                    raise TypeError(f"{answer.name} must be awaited, and {name} is sync")
                guard = answer
            except Exception as error:  # noqa: BLE001 - the user's code, which is not the call's
                text = f"{name} is called without a {field}: {name_of(function, short=True)} gave none"
                warn_once(function, text, error)
            setattr(self, field, guard)

    def report_failure(self, failure: Any, attempt: int, time_left: TimeLeft = None) -> list[Report]:
        """Report a failed attempt. Return the reports that must be awaited, and are still to be made.

        The throttle and the breaker see every attempt, the budget the first failure of a call. A rejected
        result is a success to the breaker, unless it looks like a failed response: the service has
        answered.
        """
        listeners, ticket = self.policy.listeners, self._take_ticket()
        throttle, breaker, budget = self.throttle, self.breaker, self.budget
        reports: list[Report] = []
        healthy = False
        if self.given_back:
            self.given_back = False
            # Without a ticket it must not free the probe of another call: it counts in a closed circuit only.
            breaker = breaker if breaker is not None and self.take_ticket() else None
            ticket = self._take_ticket()
        if type(failure) is RejectedResult:
            failure = failure.result
            # A success to the breaker, unless it looks like a failed response.
            healthy = not verdict(failure).reason
        if throttle is not None:
            reports.append((throttle, throttle.failure, failure))
        if breaker is not None and healthy:
            reports.append((breaker, breaker.success, ticket, listeners))
        elif breaker is not None:
            reports.append((breaker, breaker.failure, ticket, failure, listeners))
        if budget is not None and attempt == 1:
            reports.append((budget, budget.failure))
        return self._make(reports, time_left)

    def report_success(self, result: Any, time_left: TimeLeft = None) -> list[Report]:
        """Report an attempt that returned, in the same way."""
        listeners, ticket = self.policy.listeners, self._take_ticket()
        throttle, breaker, budget = self.throttle, self.breaker, self.budget
        reports: list[Report] = []
        if throttle is not None:  # a 429 counts as throttled, also if it is returned and not raised
            reports.append((throttle, throttle.failure, result))
        if breaker is not None:
            reports.append((breaker, _reset, breaker, ticket, listeners))
        if budget is not None:
            reports.append((budget, _refill, budget, self.cost))
        return self._make(reports, time_left)

    def give_back(self, time_left: TimeLeft = None) -> list[Report]:
        """Report the running attempt as a success, and hold nothing from here on."""
        reports = self.report_success(None, time_left)
        self.release_slot()
        self.cost, self.given_back = 0.0, True
        return reports

    def _make(self, reports: list[Report], time_left: TimeLeft) -> list[Report]:
        """Make the reports to sync guards. Return those to async ones."""
        for report in reports:
            if not report[0].is_async:
                self.tell(time_left() if report[0]._remote and time_left is not None else None, *report)
        return [report for report in reports if report[0].is_async]

    def tell(self, left: float | None, guard: Any, method: Callable[..., Any], *args: Any) -> Any:
        """Return what a guard answers. Its errors are logged, and are not the call's."""
        try:
            return method(*args) if left is None else in_time(left, method, *args)
        except Exception as error:  # noqa: BLE001 - a guard may be the user's own
            warn_once(guard, f"guard {guard.name} failed", error)
            return None

    def take_ticket(self) -> bool:
        """Return whether the circuit is closed, so that there is a ticket without asking."""
        self.ticket = self.breaker._ticket
        return self.ticket is not None

    def throttle_wait(self) -> float:
        """Return the seconds to wait before the throttle is asked again; 0.0 if the attempt may be made."""
        throttle = self.throttle
        try:
            seconds: float = min(throttle.acquire(), throttle.ask_again)
            return seconds
        except Exception as error:  # noqa: BLE001 - its clock may be the user's own; the attempt is made
            warn_once(throttle, f"guard {throttle.name} failed", error)
            return 0.0

    # An interrupt must not come between what is taken and where that is noted: these do both.

    def take_slot(self, left: float | None) -> bool:
        """Take a slot of the bulkhead; wait for one, if there may be a wait."""
        bulkhead = self.bulkhead
        slot = bulkhead, bulkhead._permit()
        # A call that blocks an event loop in a queue may wait for a task of that loop, and so for ever.
        if not bulkhead.acquire(0.0 if in_event_loop() else left):
            return False
        self.slot = slot
        return True

    def release_slot(self) -> None:
        """Give back the slot of the bulkhead, if there is one."""
        if self.slot is not None:
            bulkhead, permit = self.slot
            bulkhead._release(permit)
            self.slot = None

    async def take_slot_async(self, left: float | None) -> bool:
        """As `take_slot`, in a task."""
        bulkhead = self.bulkhead
        slot = bulkhead, bulkhead._permit()
        if not await bulkhead.acquire_async(left):
            return False
        self.slot = slot
        return True

    def enter(self, left: float | None) -> None:
        """Ask the breaker for a ticket. Raises `CircuitOpen` if it gives none."""
        self.ticket = in_time(left, self.breaker.enter, self.policy.listeners)

    async def enter_async(self, left: float | None) -> None:
        """As `enter`, for a breaker that may have to be awaited."""
        ticket = in_time(left, self.breaker.enter, self.policy.listeners)
        self.ticket = (await ticket) if hasattr(ticket, "__await__") else ticket

    def release_ticket(self, left: float | None) -> None:
        """Give the ticket back: the attempt was interrupted, or not made, and has no outcome to report."""
        ticket, breaker = self._take_ticket(), self.breaker
        if ticket is not None and breaker is not None:
            answer = self.tell(left, breaker, breaker.release, ticket)
            if hasattr(answer, "close"):
                answer.close()  # an interrupt cannot wait for it; a probe that is lost is replaced in time

    def refund(self, left: float | None) -> None:
        """Give back what the budget took for a retry that was not made."""
        cost, self.unspent = self.unspent, 0.0
        self.tell(left, self.budget, self.budget.give_back, cost)

    def _take_ticket(self) -> Any:
        """Return the ticket of the running attempt, and hold it no longer: it is used once."""
        ticket, self.ticket = self.ticket, None
        return ticket


# Within `tell`: the attributes may be properties of the user's own, and raise.


def _reset(breaker: Any, ticket: Any, listeners: Any) -> Any:
    """Report a success to a breaker, unless it is clean."""
    return None if breaker._clean else breaker.success(ticket, listeners)


def _refill(budget: Any, cost: float) -> Any:
    """Report a success to a budget, unless it is full."""
    return None if budget._full else budget.success(cost)
