"""Clients that call at their own pace, whatever becomes of their calls: what budgets make of the load.

The model is that of Marc Brooker's simulation ("Fixing retries with token buckets and circuit breakers",
simulator_example/retry_sim). Each client starts calls at random moments, 10 a second on average. The server
fails every request with the same probability, whatever its load. Retries come at once.
"""

from __future__ import annotations

import heapq
from types import MappingProxyType

from ._guarding import Passage
from ._numbers import above_zero, number, whole
from ._virtual import Result, Strategy, admitted, on_virtual_time, pace, strategy_of, succeeded, wait_after
from .backoff import fixed
from .breaker import Breaker
from .budget import RatioBudget, TokenBudget
from .errors import CircuitOpen
from .policy import Policy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from random import Random
    from typing import Any

    from ._virtual import Progress
    from .testing import FakeClock

# One way of a message takes that long on average, exponentially distributed.
_HOP = 0.010
_RESET = ConnectionResetError("Connection reset by peer")


class _CallBudget(TokenBudget):
    """Earns by calls, however they end: the published bucket of 5 that each call fills by a tenth."""

    def __init__(self) -> None:
        super().__init__(capacity=5, cost=1, timeout_cost=1, earn=0.1)

    def started(self) -> None:
        super().success()

    def success(self, cost: float = 0.0) -> None:
        """A success is worth nothing here: the call was paid for when it started."""


class _FailureShare(Breaker):
    """The published breaker: only retries are refused, while failures are above a tenth of calls, ever."""

    def __init__(self) -> None:
        super().__init__(None)
        self._calls = self._failures = 0

    def started(self) -> None:
        self._calls += 1

    def enter(self, listeners: Any = ()) -> None:
        """Everything gets in: a retry was refused before its wait, if at all."""

    def success(self, ticket: Any = None, listeners: Any = ()) -> None:
        """A success was counted when its call started."""

    def failure(self, ticket: Any = None, error: Any = None, listeners: Any = ()) -> None:
        self._failures += 1

    def refuses(self) -> bool:
        return self._failures > 0.1 * self._calls

    def refusal(self) -> CircuitOpen:
        return CircuitOpen("more than a tenth of calls have failed", name=self.name, retry_after=None)


_UNBOUNDED = Policy(attempts=10**9, backoff=fixed, base=0.0)
_THREE = Policy(attempts=4, backoff=fixed, base=0.0)

BUDGET_STRATEGIES: Mapping[str, Strategy] = MappingProxyType(
    {
        strategy.name: strategy
        for strategy in (
            Strategy("no_retries", Policy(attempts=1)),
            Strategy("three_retries", _THREE),
            Strategy("adaptive_10pct", _UNBOUNDED, budget=lambda clock: _CallBudget()),
            Strategy("breaker_10pct", _THREE, breaker=lambda clock: _FailureShare()),
            Strategy("token_budget", _THREE, budget=lambda clock: TokenBudget(capacity=50)),
            Strategy("ratio_budget", _THREE, budget=lambda clock: RatioBudget(clock=clock)),
        )
    }
)


class Budgets(Result):
    """What became of the calls, and of the load."""

    __slots__ = (
        "calls",
        "clients",
        "failure_rate",
        "load",
        "rate",
        "refused",
        "requests",
        "seconds",
        "seed",
        "strategy",
        "success_rate",
    )
    strategy: str
    failure_rate: float
    clients: int
    rate: float
    seconds: float
    seed: int
    calls: int
    requests: int
    """What reached the server: first attempts and retries."""
    refused: int
    """Calls that a breaker turned away before their first attempt."""
    success_rate: float
    """The share of calls that succeeded in the end."""
    load: float
    """Requests for each call: 1.0 is a fleet that does not retry."""


def budgets(
    strategy: str | Strategy = "ratio_budget",
    *,
    failure_rate: float = 0.5,
    clients: int = 100,
    rate: float = 10.0,
    seconds: float = 20.0,
    seed: int = 1,
    progress: Progress | None = None,
) -> Budgets:
    """Clients call a server that fails with a probability; gives how many succeed, and the load.

    ``strategy`` is a `Strategy` or one of `BUDGET_STRATEGIES`; each client has guards of its own. ``rate``
    is calls a second of each client, for so many virtual ``seconds``. Alike for the same ``seed``.

    >>> plain, bounded = budgets("three_retries", seconds=2), budgets("ratio_budget", seconds=2)
    >>> plain.load > 1.8, bounded.load < 1.3
    (True, True)
    """
    chosen = strategy_of(strategy, BUDGET_STRATEGIES)
    if number("failure_rate", failure_rate) > 1:
        raise ValueError(f"failure_rate must be a share from 0 to 1, got {failure_rate!r}")
    clients, seed = whole("clients", clients, at_least=1), whole("seed", seed, at_least=0)
    rate, seconds = above_zero("rate", rate), above_zero("seconds", seconds)
    tell = pace(progress)

    def run(clock: FakeClock, rng: Random) -> Budgets:
        fleet = _Fleet(chosen, float(failure_rate), clients, rate, clock, rng)
        fleet.run(seconds, tell)
        return Budgets(
            strategy=chosen.name,
            failure_rate=float(failure_rate),
            clients=clients,
            rate=rate,
            seconds=seconds,
            seed=seed,
            calls=fleet.calls,
            requests=fleet.requests,
            refused=fleet.refused,
            success_rate=fleet.good / fleet.calls if fleet.calls else 1.0,
            load=fleet.requests / fleet.calls if fleet.calls else 1.0,
        )

    return on_virtual_time(run, seed)


class _Fleet:
    """Clients, and what is on its way between them and the server."""

    def __init__(
        self,
        strategy: Strategy,
        failure_rate: float,
        clients: int,
        rate: float,
        clock: FakeClock,
        rng: Random,
    ) -> None:
        self.failure_rate, self.rate, self.clock, self.rng = failure_rate, rate, clock, rng
        self.calls = self.requests = self.refused = self.good = self._sent = 0
        self._policies = strategy.policies(clients, clock, rng)
        # When, in which order, and what: a client that calls; a call that tries, or hears whether it failed.
        self._events: list[tuple[float, int, int | Passage, bool | None]] = []

    def run(self, seconds: float, tell: Progress) -> None:
        """Calls are started for so long, and then all are seen to their ends."""
        events = self._events
        for client in range(len(self._policies)):
            self._push(self.rng.expovariate(self.rate), client)
        while events:
            now, number, what, failed = heapq.heappop(events)
            self.clock.now = now
            if isinstance(what, Passage):
                self._go_on(what, failed, now)
            elif now < seconds:
                self._push(now + self.rng.expovariate(self.rate), what)
                self._start(what, now)
            if not number & 255:
                tell(min(now / seconds, 1.0))
        tell(1.0)

    def _push(self, moment: float, what: int | Passage, failed: bool | None = None) -> None:
        self._sent += 1
        heapq.heappush(self._events, (moment, self._sent, what, failed))

    def _start(self, client: int, now: float) -> None:
        policy = self._policies[client]
        self.calls += 1
        for guard in (policy.budget, policy.breaker):
            if isinstance(guard, (_CallBudget, _FailureShare)):
                guard.started()
        self._attempt(Passage(policy=policy), now)

    def _attempt(self, call: Passage, now: float) -> None:
        """One request, which fails or does not; the call hears of it after a way there and back."""
        if not admitted(call):
            self.refused += call.attempt == 1
            return
        self.requests += 1
        back = now + self.rng.expovariate(1 / _HOP) + self.rng.expovariate(1 / _HOP)
        self._push(back, call, self.rng.random() < self.failure_rate)

    def _go_on(self, call: Passage, failed: bool | None, now: float) -> None:
        if failed is None:
            self._attempt(call, now)
        elif not failed:
            self.good += 1
            succeeded(call)
        elif (wait := wait_after(call, _RESET, now)) is not None:
            self._push(now + wait, call)
