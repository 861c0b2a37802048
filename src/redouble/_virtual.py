"""What the models of ``simulate`` stand on: strategies, calls on virtual time, and results as plain data.

A call here is what it is in the drivers: a `Passage` past the policy's guards, and `decide` after each of
its failures. Only the attempt itself, and the passing of time, are the model's.
"""

from __future__ import annotations

import random
import time
from contextvars import Context

from ._decide import Stop, decide
from ._record import Record, assign
from ._time import fake_here, fakes
from .errors import CircuitOpen
from .policy import UNSET, Policy
from .testing import FakeClock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, TypeVar

    from ._guarding import Passage
    from .breaker import Breaker
    from .budget import Budget

    T = TypeVar("T")
    Progress = Callable[[float], object]

# Fields of a policy that no model acts on: better refused than left out without a word.
_NOT_SIMULATED = ("until", "throttle", "bulkhead", "dead_letters", "budget", "breaker")

# Seconds of real time between two words on progress.
_EVERY = 0.05


class Strategy(Record):
    """How the clients of a simulated fleet retry: a policy, and how their guards are made.

    ``budget`` and ``breaker`` are functions of a clock that make a new guard, since a guard is state, and
    each client (or process of clients) of a fleet has its own, on virtual time.

    >>> from redouble.budget import RatioBudget
    >>> Strategy("mine", Policy(attempts=6), budget=lambda clock: RatioBudget(0.2, clock=clock)).name
    'mine'
    """

    __slots__ = ("breaker", "budget", "name", "policy")
    name: str
    policy: Policy
    budget: Callable[[FakeClock], Budget] | None
    breaker: Callable[[FakeClock], Breaker] | None

    def __init__(
        self,
        name: str,
        policy: Policy,
        *,
        budget: Callable[[FakeClock], Budget] | None = None,
        breaker: Callable[[FakeClock], Breaker] | None = None,
    ) -> None:
        for field in _NOT_SIMULATED:
            if getattr(policy, field) is not None:
                how = (
                    f"give Strategy({field}=...) a function of a clock" if field[0] == "b" else "leave it out"
                )
                raise ValueError(f"policy must not have {field} in a simulation: {how}")
        if policy.fallback is not UNSET:
            raise ValueError("policy must not have fallback in a simulation: leave it out")
        assign(self, "name", name)
        assign(self, "policy", policy)
        assign(self, "budget", budget)
        assign(self, "breaker", breaker)

    def policies(self, count: int, clock: FakeClock, rng: random.Random) -> list[Policy]:
        """A policy for each of so many clients or processes, with guards of its own, on this clock."""
        policy = self.policy.replace(clock=clock, rng=rng)
        if self.budget is None and self.breaker is None:
            return [policy] * count
        return [self._guarded(policy, clock) for _ in range(count)]

    def _guarded(self, policy: Policy, clock: FakeClock) -> Policy:
        budget = None if self.budget is None else self.budget(clock)
        breaker = None if self.breaker is None else self.breaker(clock)
        return policy.replace(budget=budget, breaker=breaker)


def strategy_of(given: Any, table: Mapping[str, Strategy]) -> Strategy:
    """A strategy as it is, or out of a table by its name."""
    if isinstance(given, Strategy):
        return given
    if not isinstance(given, str) or given not in table:
        raise ValueError(f"strategy must be a Strategy or one of {', '.join(table)}, got {given!r}")
    return table[given]


class Result(Record):
    """What a simulation has found: a frozen record of plain data."""

    __slots__ = ()

    def __init__(self, **values: Any) -> None:
        for field in self._fields:
            assign(self, field, values[field])

    def as_dict(self) -> dict[str, Any]:
        """All fields as plain data, ready for JSON."""
        values = {field: getattr(self, field) for field in self._fields}
        return {name: [*value] if value.__class__ is tuple else value for name, value in values.items()}


# Calls


def admitted(call: Passage) -> bool:
    """Whether the breaker of its policy lets the next attempt through."""
    breaker = call.policy.breaker
    if breaker is None:
        return True
    try:
        call.ticket = breaker.enter()
    except CircuitOpen:
        return False
    return True


def succeeded(call: Passage) -> None:
    """Tells the guards that the call went well."""
    if call.policy._guarded:
        for _ in call.succeeding(None):
            pass


def wait_after(call: Passage, error: Exception, now: float) -> float | None:
    """How long the call waits after this failure, as a driver would have it; ``None`` if it is given up."""
    if call.policy._guarded:
        for _ in call.failing(error):
            pass
    outcome = decide(call.policy, call, error, now)
    if isinstance(outcome, Stop):
        return None
    call.attempt += 1
    call.previous, call.cost = outcome.previous, outcome.cost
    if outcome.rule is not None:
        counts = call.rule_failures = call.rule_failures or {}
        counts[outcome.rule_key] = counts.get(outcome.rule_key, 0) + 1
    return outcome.delay


# Running


def on_virtual_time(run: Callable[[FakeClock, random.Random], T], seed: int) -> T:
    """Runs a model with a clock and a generator of its own, whatever time and switches hold around it."""
    clock = FakeClock()

    def alone() -> T:
        # `no_waits` wins over the clock of a guard; in here this clock wins over `no_waits`. Without such a
        # switch nobody has to look for fakes, which takes time.
        fake_here.set(clock)
        mark = object()
        if fakes:
            fakes[mark] = clock
        try:
            return run(clock, random.Random(seed))
        finally:
            fakes.pop(mark, None)

    return Context().run(alone)


def pace(progress: Progress | None) -> Progress:
    """Tells of progress at most some 20 times a second of real time, and always of the end."""
    if progress is None:
        return _silent
    due = 0.0

    def told(fraction: float) -> None:
        nonlocal due
        now = time.perf_counter()
        if now >= due or fraction >= 1.0:
            due = now + _EVERY
            progress(fraction)

    return told


def _silent(fraction: float) -> None:
    """Nobody wants to know."""
