"""Shared parts of the models: strategies, results, calls, events and virtual time.

A simulated call meets the guards and `decide` as a real one does. Only the attempt itself, and the passing of
time, belong to the model.
"""

from __future__ import annotations

import heapq
import random
import time
from contextvars import Context
from types import MappingProxyType

from .._base.checks import INF, guard, number, optional, whole
from .._base.clock import fake_here, fakes
from .._base.record import Record
from .._engine.decide import Progress as CallProgress
from .._engine.decide import Stop, decide
from .._engine.guarding import GuardPass
from ..errors import CircuitOpen
from ..policy import Policy
from ..testing import FakeClock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from dataclasses import KW_ONLY
    from typing import Any, TypeVar

    from ..breaker import Breaker
    from ..budget import Budget

    Progress = Callable[[float], object]
    R = TypeVar("R")

# Policy fields that no model implements, with what to do; they are refused.
_NOT_SIMULATED = {
    "until": "leave it out",
    "throttle": "leave it out",
    "bulkhead": "leave it out",
    "dead_letters": "leave it out",
    "fallback": "leave it out",
    "budget": "give Strategy(budget=...) a function of a clock",
    "breaker": "give Strategy(breaker=...) a function of a clock",
}

_DEFAULTS = Policy()

# A guard of a simulated client. Its calls have no arguments by which a function could choose one.
_made = optional(guard)

# Seconds of real time between two reports of progress.
_REPORT_INTERVAL = 0.05


class Strategy(Record):
    """How the clients of a simulated fleet retry: a policy, and functions that make their guards.

    ``budget`` and ``breaker`` take a clock and return a new guard: a guard has state, and each client (or
    process of clients) of a fleet has its own, on virtual time.

    >>> from redouble.budget import RatioBudget
    >>> Strategy("mine", Policy(attempts=6), budget=lambda clock: RatioBudget(0.2, clock=clock)).name
    'mine'
    """

    name: str
    policy: Policy
    _: KW_ONLY
    budget: Callable[[FakeClock], Budget] | None = None
    breaker: Callable[[FakeClock], Breaker] | None = None

    def _check(self) -> None:
        """Raise ``ValueError`` for a policy with fields that no model implements."""
        for field, advice in _NOT_SIMULATED.items():
            if getattr(self.policy, field) is not getattr(_DEFAULTS, field):
                raise ValueError(f"policy must not have {field} in a simulation: {advice}")

    def policies(self, count: int, clock: FakeClock, rng: random.Random) -> list[Policy]:
        """Return a policy for each client or process, each with its own guards, on this clock."""
        policy = self.policy.replace(clock=clock, rng=rng)
        budget, breaker = self.budget, self.breaker
        if budget is None and breaker is None:
            return [policy] * count
        return [
            policy.replace(
                budget=budget and _made("budget", budget(clock)),
                breaker=breaker and _made("breaker", breaker(clock)),
            )
            for _ in range(count)
        ]


def by_name(*strategies: Strategy) -> Mapping[str, Strategy]:
    """Return a read-only table of strategies."""
    return MappingProxyType({strategy.name: strategy for strategy in strategies})


def strategy_of(given: Any, table: Mapping[str, Strategy]) -> Strategy:
    """Return a strategy as it is, or look it up by its name."""
    if isinstance(given, Strategy):
        return given
    if not isinstance(given, str) or given not in table:
        raise ValueError(f"strategy must be a Strategy or one of {', '.join(table)}, got {given!r}")
    return table[given]


def checked_rate(failure_rate: float, strategy: Strategy) -> float:
    """Return a failure rate from 0 to 1, at which the calls of this strategy end.

    Raise `ValueError` for any other: at 1.0, a call that nothing limits would retry for ever.
    """
    if number("failure_rate", failure_rate) > 1:
        raise ValueError(f"failure_rate must be a share from 0 to 1, got {failure_rate!r}")
    policy = strategy.policy
    limits = (policy.deadline, policy.give_up_after, strategy.budget, strategy.breaker)
    if policy.attempts == INF and failure_rate == 1.0 and not any(limit is not None for limit in limits):
        raise ValueError(
            "policy must not have attempts=inf where every attempt fails: give it a deadline or give_up_after"
        )
    return float(failure_rate)


# Calls


class SimulatedCall(CallProgress):
    """One call on virtual time. It asks and informs the guards of its policy, as a real call does.

    A model calls `admitted` before an attempt, and `succeed` or `wait_after` when it knows the outcome.
    """

    attempt: int

    def __init__(self, policy: Policy, now: float) -> None:
        self.policy = policy
        if policy.deadline is not None:
            self.ends = now + policy.deadline
        if policy.give_up_after is not None:
            self.give_up_at = now + policy.give_up_after
        self.guards = GuardPass(policy) if policy._guarded else None

    def admitted(self) -> bool:
        """Ask the breaker of the policy; return whether it admits the next attempt."""
        try:
            if self.guards is not None and self.guards.breaker is not None:
                self.guards.enter(None)
        except CircuitOpen:
            return False
        return True

    def succeed(self) -> None:
        """Report to the guards that the attempt has succeeded."""
        if self.guards is not None:
            self.guards.report_success(None)

    def wait_after(self, error: Exception, now: float) -> float | None:
        """Report a failed attempt; return the wait before the next one, or ``None`` to give the call up."""
        if self.guards is not None:
            self.guards.report_failure(error, self.attempt)
        outcome = decide(self.policy, self, error, now)
        if isinstance(outcome, Stop):
            return None
        self.attempt += 1
        self.previous = outcome.previous
        if self.guards is not None:
            self.guards.cost = outcome.cost
        if outcome.rule is not None:
            counts = self.rule_failures = self.rule_failures or {}
            counts[outcome.rule_key] = counts.get(outcome.rule_key, 0) + 1
        return outcome.delay


# Time


class EventQueue:
    """Future events. Iterating sets the clock to each event in turn; new ones may be pushed meanwhile.

    >>> clock = FakeClock()
    >>> queue = EventQueue(clock)
    >>> queue.push(2.0, "b"), queue.push(1.0, "a")
    (1, 2)
    >>> [(who, clock.now) for _, _, who, _ in queue]
    [('a', 1.0), ('b', 2.0)]

    ``report`` is called now and then with the fraction of ``end`` that has passed, and with 1.0 at last.
    """

    def __init__(self, clock: FakeClock, report: Progress | None = None, end: float = INF) -> None:
        self._clock, self._report, self._end = clock, report, end
        self._heap: list[tuple[float, int, Any, Any]] = []
        self._count = 0

    def push(self, moment: float, who: Any, what: Any = None) -> int:
        """Schedule an event and return its number. Events of one moment keep their order."""
        self._count = number = self._count + 1
        heapq.heappush(self._heap, (moment, number, who, what))
        return number

    def __iter__(self) -> Iterator[tuple[float, int, Any, Any]]:
        """Return the events in the order of time: moment, number, who and what, as they were pushed."""
        while self._heap:
            event = heapq.heappop(self._heap)
            self._clock.now = event[0]
            if self._report is not None and not event[1] & 255:
                self._report(min(event[0] / self._end, 1.0))
            yield event
        if self._report is not None:
            self._report(1.0)


def run_model(
    model: Callable[[FakeClock, random.Random, Progress], R], seed: int, progress: Progress | None
) -> R:
    """Run a model with its own clock and random numbers, and return its result.

    The model calls its third argument with the fraction that is done. Test switches around the call, such as
    `no_waits`, do not reach it.
    """
    clock, rng = FakeClock(), random.Random(whole("seed", seed, at_least=0))

    def run() -> R:
        # A fake clock set here takes precedence over `no_waits`. The global table is used only if such a
        # switch is on: as long as it is empty, no guard has to search it.
        fake_here.set(clock)
        mark = object()
        if fakes:
            fakes[mark] = clock
        try:
            return model(clock, rng, _limited(progress))
        finally:
            fakes.pop(mark, None)

    return Context().run(run)


def _limited(progress: Progress | None) -> Progress:
    """Return a function that passes on about 20 reports a second, and always the last one."""
    due = 0.0

    def report(fraction: float) -> None:
        nonlocal due
        now = time.perf_counter()
        if progress is not None and (now >= due or fraction >= 1.0):
            due = now + _REPORT_INTERVAL
            progress(fraction)

    return report
