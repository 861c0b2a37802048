"""A `TokenBudget` whose tokens are in a store.

The local twin is a `TokenBudget` that is set to what the store last said. So it is what is known here, and
goes on from there when the store is away.

What calls earn at the first try is collected here, and sent with the next question, or once in
``refresh`` seconds. While the budget is believed full nothing is collected; the belief lasts as long.
"""

from __future__ import annotations

from . import _checks as check
from ._numbers import INF
from ._store import Shared, nothing
from .budget import Budget, TokenBudget

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import timedelta
    from typing import Any

    from ._store import Link, Listener


class SharedBudget(Shared, Budget):
    """What the shared budgets have in common: all but the way to the store."""

    def __init__(
        self,
        twin: TokenBudget,
        link: Link,
        *,
        ttl: float | timedelta,
        refresh: float | timedelta,
        slow: float | timedelta,
        retry_in: float | timedelta,
        listeners: Iterable[Listener],
        clock: Callable[[], float] | None,
    ) -> None:
        super().__init__(reserves=twin.reserves, name=twin.name, clock=clock)
        self._use(link, _amounts, slow, retry_in, listeners)
        self._twin = twin
        self.capacity = twin.capacity
        self.cost = twin.cost
        self.timeout_cost = twin.timeout_cost
        self.refund = twin.refund
        self.earn = twin.earn
        self.ttl = check.some_seconds("ttl", ttl)
        self.refresh = check.some_seconds("refresh", refresh)
        self._earned = 0.0
        self._ask_at = -INF
        self._asked = self._heard = 0

    @property
    def full(self) -> bool:  # type: ignore[override]
        """Whether it was full when it was last looked at, at most ``refresh`` seconds ago."""
        return self._twin.full and self._now() < self._ask_at

    @property
    def tokens(self) -> float:
        """What was left when the store was last asked; `look` asks it."""
        return self._twin.tokens

    @property
    def at_rest(self) -> bool:
        """Whether there is nothing to remember here: the rest is in the store."""
        return self.available and not self._earned

    def look(self) -> Any:
        """Asks the store what is left, and sends along what was earned here."""
        return self._exchange(0.0, 0.0, lambda _: self._twin.tokens, lambda: self._twin.tokens)

    def acquire(self, *, timeout: bool = False, priority: int = 0) -> Any:
        """Takes the cost of one retry and gives it; 0.0, with nothing taken, if there is not enough."""
        cost = self.timeout_cost if timeout else self.cost
        needed = max(cost, self._reserve(priority) * self.capacity)
        return self._exchange(
            cost, needed, lambda taken: taken, lambda: self._twin.acquire(timeout=timeout, priority=priority)
        )

    def success(self, cost: float = 0.0) -> Any:
        """Gives back the last cost of a call that has succeeded; earns a little if it had none."""
        gain = self.earn if not cost else cost if self.refund is None else self.refund
        now = self._now()
        with self._lock:
            fresh = now < self._ask_at
            if cost or not (fresh and self._twin.full):
                self._earned = min(self._earned + gain, self.capacity)
        if fresh and not cost:
            return self._at_once(nothing)
        return self._exchange(0.0, 0.0, lambda _: None, nothing)

    def failure(self) -> Any:
        """A first attempt that failed costs nothing."""
        return self._at_once(nothing)

    def give_back(self, cost: float) -> None:
        """Takes back what a retry cost that was not made; the store hears of it with the next question."""
        with self._lock:
            self._earned = min(self._earned + cost, self.capacity)

    def _exchange(
        self, cost: float, needed: float, answered: Callable[[float], Any], otherwise: Callable[[], Any]
    ) -> Any:
        """Sends what was earned, takes the cost, and learns what is left."""
        now = self._now()
        with self._lock:
            # An answer that gets lost takes this along: too little is on the safe side, twice is not.
            gain, self._earned = self._earned, 0.0
            self._ask_at = now + self.refresh
            self._asked = number = self._asked + 1

        def learn(answer: tuple[float, float]) -> Any:
            taken, tokens = answer
            with self._twin._lock:
                if number > self._heard:
                    self._heard = number
                    self._twin._keep(0.0, tokens)
            return answered(taken)

        def go_on_here() -> Any:
            with self._twin._lock:
                # Whatever the store says to questions that were asked before this, the twin has spent since.
                self._heard = self._asked
                self._twin._keep(gain)
            return otherwise()

        return self._ask((self.capacity, gain, cost, needed, self.ttl), learn, go_on_here)

    def _after_fork(self) -> None:
        super()._after_fork()
        self._earned = 0.0  # the parent sends it

    def __repr__(self) -> str:
        return f"<{self.name}: {self.tokens:g} of {self.capacity:g} tokens>"


def _amounts(answer: Any) -> tuple[float, float]:
    taken, tokens = answer
    return float(taken), float(tokens)
