"""Clients that call at their own pace, and a server that fails: the effect of budgets on the load.

The model of Marc Brooker's simulation ("Fixing retries with token buckets and circuit breakers",
simulator_example/retry_sim). Each client starts calls at random moments, 10 a second on average, whatever the
outcome of earlier calls. The server fails every request with the same probability, whatever its load. Retries
follow at once.
"""

from __future__ import annotations

from .._base.checks import INF, above_zero, whole
from .._base.record import Data
from ..backoff import fixed
from ..breaker import Breaker
from ..budget import RatioBudget, TokenBudget
from ..errors import CircuitOpen
from ..policy import Policy
from ._fleet import EventQueue, SimulatedCall, Strategy, by_name, checked_rate, run_model, strategy_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from random import Random
    from typing import Any

    from ..testing import FakeClock
    from ._fleet import Progress

# Mean seconds that a message takes, exponentially distributed.
_HOP = 0.010
_RESET = ConnectionResetError("Connection reset by peer")


class _CallBudget(TokenBudget):
    """The published bucket: each call earns a tenth of a token, whatever its outcome."""

    def started(self) -> None:
        """Earn what other budgets earn by a success."""
        super().success()

    def success(self, cost: float = 0.0) -> None:
        """Earn nothing: the call has earned when it started."""


class _FailureShare(Breaker):
    """The published breaker: it refuses only retries, while more than a tenth of all calls have failed."""

    _calls = _failures = 0

    def started(self) -> None:
        """Count a call."""
        self._calls += 1

    def enter(self, listeners: Any = ()) -> None:
        """Admit everything: retries are refused before their wait."""

    def success(self, ticket: Any = None, listeners: Any = ()) -> None:
        """Count nothing: the call was counted when it started."""

    def failure(self, ticket: Any = None, error: Any = None, listeners: Any = ()) -> None:
        """Count a failed attempt, whatever the error."""
        self._failures += 1

    def refuses(self) -> bool:
        """Return whether retries are refused now."""
        return self._failures > 0.1 * self._calls

    def refusal(self) -> CircuitOpen:
        """Return the error for a retry that is refused; it has no time at which to ask again."""
        return CircuitOpen("more than a tenth of calls have failed", name=self.name, retry_after=None)


_UNBOUNDED = Policy(attempts=INF, backoff=fixed, base=0.0)
_THREE = Policy(attempts=4, backoff=fixed, base=0.0)

BUDGET_STRATEGIES = by_name(
    Strategy("no_retries", Policy(attempts=1)),
    Strategy("three_retries", _THREE),
    Strategy(
        "adaptive_10pct", _UNBOUNDED, budget=lambda clock: _CallBudget(5, cost=1, timeout_cost=1, earn=0.1)
    ),
    Strategy("breaker_10pct", _THREE, breaker=lambda clock: _FailureShare(None)),
    Strategy("token_budget", _THREE, budget=lambda clock: TokenBudget(capacity=50)),
    Strategy("ratio_budget", _THREE, budget=lambda clock: RatioBudget(clock=clock)),
)


class Budgets(Data):
    """The result of `budgets`: its parameters, the outcome of the calls, and the load.

    >>> found = budgets("no_retries", failure_rate=0.0, seconds=1)
    >>> found.success_rate, found.load, found.calls == found.requests
    (1.0, 1.0, True)
    """

    strategy: str
    failure_rate: float
    clients: int
    rate: float
    seconds: float
    seed: int
    calls: int
    """Calls that the clients have started."""
    requests: int
    """Requests to the server: first attempts and retries."""
    refused: int
    """Calls that a breaker rejected before their first attempt."""
    success_rate: float
    """Share of calls that succeeded in the end."""
    load: float
    """Requests per call: 1.0 for a fleet that does not retry."""


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
    """Let clients call a server that fails with a probability; return the success rate and the load.

    ``strategy`` is a `Strategy` or one of `BUDGET_STRATEGIES`; each client has its own guards. Each client
    starts ``rate`` calls a second, for ``seconds`` of virtual time. The same ``seed`` gives the same result.

    >>> plain, bounded = budgets("three_retries", seconds=2), budgets("ratio_budget", seconds=2)
    >>> plain.load > 1.8, bounded.load < 1.3
    (True, True)
    """
    chosen = strategy_of(strategy, BUDGET_STRATEGIES)
    failure_rate, clients = checked_rate(failure_rate, chosen), whole("clients", clients, at_least=1)
    rate, seconds = above_zero("rate", rate), above_zero("seconds", seconds)

    def run(clock: FakeClock, rng: Random, report: Progress) -> Budgets:
        """Start calls until the seconds have passed, and follow all of them to their end."""
        calls = requests = refused = succeeded = 0
        # The policy of a client that starts a call; or a call, with whether its attempt failed, or None if it
        # is to make one.
        events = EventQueue(clock, report, seconds)
        for policy in chosen.policies(clients, clock, rng):
            events.push(rng.expovariate(rate), policy)
        for now, _, call, failed in events:
            if isinstance(call, Policy):
                if now >= seconds:
                    continue
                events.push(now + rng.expovariate(rate), call)
                calls += 1
                call = _start(call, now)
            if failed:
                if (wait := call.wait_after(_RESET, now)) is not None:
                    events.push(now + wait, call)
            elif failed is False:
                succeeded += 1
                call.succeed()
            elif call.admitted():
                requests += 1
                answered = now + rng.expovariate(1 / _HOP) + rng.expovariate(1 / _HOP)
                events.push(answered, call, rng.random() < failure_rate)
            else:
                refused += call.attempt == 1
        given = chosen.name, failure_rate, clients, rate, seconds, seed
        rates = _per_call(succeeded, calls), _per_call(requests, calls)
        return Budgets(*given, calls, requests, refused, *rates)

    return run_model(run, seed, progress)


def _start(policy: Policy, now: float) -> SimulatedCall:
    """Start a call; the published guards count it here."""
    for guard in (policy.budget, policy.breaker):
        if isinstance(guard, (_CallBudget, _FailureShare)):
            guard.started()
    return SimulatedCall(policy, now)


def _per_call(count: int, calls: int) -> float:
    """Return a count for each call; 1.0 if there were no calls."""
    return count / calls if calls else 1.0
