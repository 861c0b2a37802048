"""What a call tells the guards of its policy, and holds of them, whichever driver it runs on.

A guard on an asyncio client gives something to await. So the guards are told one by one, by a generator
that hands their answers on: the sync driver runs through it, the async one awaits what it gets.
"""

from __future__ import annotations

from ._decide import Progress, Refused
from ._trouble import report
from .classify import verdict
from .context import RUNNING, in_time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from ._guard import Guard
    from ._turns import Turn
    from .breaker import Breaker
    from .budget import Budget
    from .bulkhead import Bulkhead
    from .context import Surroundings
    from .policy import Policy


class Passage(Progress):
    """A call on its way past the guards."""

    policy: Policy
    clock: Callable[[], float]
    ticket: Any = None
    """What the breaker gave for the running attempt."""
    place: tuple[Bulkhead, Turn] | None = None
    """The bulkhead in which the call has a place, and its claim to that."""
    cost = 0.0
    """What the budget took for the last retry."""
    mark: Surroundings | None = None
    """The surroundings by which all its attempts know whether it still runs."""
    unspent = 0.0
    """The same, until that retry is made."""

    def failing(self, failure: Exception | Refused) -> Iterator[Any]:
        """Tells the guards of a failed attempt."""
        policy, about, ticket = self.policy, failure, self._give_back()
        # An answer that is not there yet is an answer: what says nothing of a failure is none to a breaker.
        healthy = type(failure) is Refused and not verdict(failure.result).reason
        if type(failure) is Refused:
            about = failure.result
        if policy.throttle is not None:
            yield from self._tell_guard(policy.throttle, policy.throttle.failure, about)
        if policy.breaker is not None and healthy:
            yield from self._tell_guard(policy.breaker, policy.breaker.success, ticket, policy.listeners)
        elif policy.breaker is not None:
            yield from self._tell_guard(
                policy.breaker, policy.breaker.failure, ticket, about, policy.listeners
            )
        if policy.budget is not None and self.attempt == 1:
            yield from self._tell_guard(policy.budget, policy.budget.failure)

    def succeeding(self, result: Any) -> Iterator[Any]:
        """Tells the guards of an attempt that went well, or at least came back."""
        policy, ticket = self.policy, self._give_back()
        if policy.throttle is not None:  # to which a 429 is one, also where it is returned and not raised
            yield from self._tell_guard(policy.throttle, policy.throttle.failure, result)
        if policy.breaker is not None:
            yield from self._tell_guard(policy.breaker, _reset, policy.breaker, ticket, policy.listeners)
        if policy.budget is not None:
            yield from self._tell_guard(policy.budget, _refill, policy.budget, self.cost)

    def turn(self) -> float:
        """Seconds until the throttle lets an attempt through, or is to be asked again; 0.0 if it may go."""
        throttle = self.policy.throttle
        if throttle is None:
            return 0.0
        try:
            return min(throttle.acquire(), throttle.ask_again)
        except Exception as error:  # noqa: BLE001 - its clock may be the user's own; the attempt goes
            report(throttle, f"guard {throttle.name} failed", error)
            return 0.0

    def abandon(self) -> None:
        """An attempt has ended with nothing to learn from it: interrupted, or never made."""
        ticket, breaker = self._give_back(), self.policy.breaker
        if ticket is not None and breaker is not None:
            for told in self._tell_guard(breaker, breaker.release, ticket):
                if hasattr(told, "close"):
                    told.close()  # an interrupt cannot wait for it; a probe that is lost is replaced in time

    def give_back_price(self) -> None:
        """Give back what the budget took for a retry that was not made."""
        cost, self.unspent = self.unspent, 0.0
        budget: Any = self.policy.budget
        for _ in self._tell_guard(budget, budget.give_back, cost):
            pass

    def leave(self) -> None:
        """The call is over: its place is free. Once more does what an interrupt has kept it from."""
        if self.mark is not None:
            self.mark[RUNNING] = False
        if self.place is not None:
            bulkhead, claim = self.place
            bulkhead._give_back(claim)
            self.place = None

    def time_left(self) -> float | None:
        """Seconds until the deadline, never below 0; ``None`` without one."""
        return None if self.ends is None else max(0.0, self.ends - self.clock())

    def ask(self, method: Callable[..., Any], *args: Any) -> Any:
        """Ask or tell a guard, which may take no more than a part of the time that the call has left."""
        return in_time(self.time_left(), method, *args)

    def _tell_guard(self, guard: Guard, method: Callable[..., Any], *args: Any) -> Iterator[Any]:
        """What a guard answers; its trouble is reported, and is not the call's."""
        try:
            yield self.ask(method, *args)
        except Exception as error:  # noqa: BLE001 - a guard may be the user's own
            report(guard, f"guard {guard.name} failed", error)

    def _give_back(self) -> Any:
        ticket, self.ticket = self.ticket, None
        return ticket


def no_ticket(breaker: Breaker, trouble: Exception) -> Any:
    """Report that a breaker cannot say whether it is closed. It must be asked, so there is no ticket."""
    report(breaker, f"guard {breaker.name} failed", trouble)
    return None


def _reset(breaker: Breaker, ticket: Any, listeners: Any) -> Any:
    return None if breaker.clean else breaker.success(ticket, listeners)


def _refill(budget: Budget, cost: float) -> Any:
    return None if budget.full else budget.success(cost)
