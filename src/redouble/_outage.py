"""A service goes away for a while and comes back: what its clients make of that.

The service works off one request after the other at a fixed rate, out of a queue of bounded length; it does
not know which clients have given up. Each of many clients thinks, calls, and thinks again; it waits only so
long for an answer. While the service is away it refuses, or does not answer. When it comes back its queue is
empty, and it is as strong as before: what it then has to bear is the doing of its clients.
"""

from __future__ import annotations

import math
from types import MappingProxyType

from . import backoff
from ._crowd import FULL, REFUSED, RESET, SLOW, Crowd, Terms
from ._numbers import above_zero, whole
from ._virtual import Result, Strategy, on_virtual_time, pace, strategy_of
from .breaker import CircuitBreaker
from .budget import RatioBudget
from .policy import Policy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from random import Random
    from typing import Any

    from ._virtual import Progress
    from .testing import FakeClock

_POLICIES = {
    "no_retries": Policy(attempts=1),
    "fixed": Policy(backoff=backoff.fixed),
    "no_jitter": Policy(backoff=backoff.exponential),
    "full_jitter": Policy(),
    "equal_jitter": Policy(backoff=backoff.equal_jitter),
    "decorrelated_jitter": Policy(backoff=backoff.decorrelated_jitter),
    "proportional_jitter": Policy(backoff=backoff.proportional_jitter),
}


def _budget(clock: FakeClock) -> RatioBudget:
    return RatioBudget(clock=clock)


def _breaker(clock: FakeClock) -> CircuitBreaker:
    return CircuitBreaker(failure_rate=0.5, window=10.0, open_for=5.0, clock=clock)


OUTAGE_STRATEGIES: Mapping[str, Strategy] = MappingProxyType(
    {
        name + guards: Strategy(
            name + guards,
            policy,
            budget=_budget if "budget" in guards else None,
            breaker=_breaker if "breaker" in guards else None,
        )
        for name, policy in _POLICIES.items()
        for guards in ("", "+budget", "+breaker", "+budget+breaker")
    }
)

# At rest the service is busy for five sixths of the time.
_HEADROOM = 1.2

# Recovered is who serves that share of what was served before, over so many seconds, and from then on.
_ENOUGH, _OVER = 0.8, 5.0


class Outage(Result):
    """What a service and its clients went through, in bins of virtual time."""

    __slots__ = (
        *("strategy", "seed", *Terms._fields),
        *("arrivals", "served", "wasted", "peak", "peak_at", "peak_after", "recovered_after"),
        *("calls", "retries", "succeeded", "gave_up", "barred", "refused", "reset", "rejected", "timed_out"),
        *("goodput_before", "goodput_after", "wasted_after"),
    )
    strategy: str
    seed: int
    clients: int
    processes: int
    think: float
    capacity: float
    queue: int
    timeout: float
    before: float
    away: float
    after: float
    hangs: bool
    together: bool
    bin_seconds: float
    arrivals: tuple[int, ...]
    """Requests that came to the service's door in each bin, away or not."""
    served: tuple[int, ...]
    """Answers that clients had waited for, in each bin."""
    wasted: tuple[int, ...]
    """Requests worked off for clients who had given up on them, in each bin."""
    peak: int
    """The most arrivals in one bin since the service went away."""
    peak_at: float
    """When that was, in seconds since the service went away."""
    peak_after: int
    """The most arrivals in one bin since it was back."""
    recovered_after: float | None
    """Seconds from its return until it served four fifths of what it had, for good; ``None``: never."""
    calls: int
    retries: int
    succeeded: int
    gave_up: int
    """Calls that failed in the end."""
    barred: int
    """Calls that a breaker turned away before their first attempt."""
    refused: int
    """Attempts refused while the service was away."""
    reset: int
    """Attempts, and connections, that broke when it went away."""
    rejected: int
    """Attempts turned away because the queue was full."""
    timed_out: int
    """Attempts whose client did not wait any longer."""
    goodput_before: float
    """Answers a second that clients had waited for, before the service went away."""
    goodput_after: float
    """The same since it was back."""
    wasted_after: float
    """The share of the work since its return that was done for clients who had given up."""

    @property
    def metastable(self) -> bool:
        """Whether the failure has outlived its cause: the service did not recover while one looked."""
        return self.recovered_after is None


def outage(
    strategy: str | Strategy = "full_jitter",
    *,
    clients: int = 1000,
    processes: int | None = None,
    think: float = 10.0,
    capacity: float | None = None,
    queue: int | None = None,
    timeout: float = 1.0,
    before: float = 20.0,
    away: float = 30.0,
    after: float = 60.0,
    hangs: bool = True,
    together: bool = True,
    bin_seconds: float = 0.1,
    seed: int = 1,
    progress: Progress | None = None,
) -> Outage:
    """A service is there for ``before`` seconds, ``away`` for some, and back ``after`` that.

    ``strategy`` is a `Strategy` or one of `OUTAGE_STRATEGIES`. Each of ``clients`` thinks for ``think``
    seconds on average and then calls; ``processes`` of them (one for every hundred clients) have guards of
    their own. ``capacity`` is requests a second (a fifth more than the clients make), ``queue`` how
    many may wait (10 s of work); ``timeout`` how long a client waits for an answer, where the policy does
    not say. ``together``: connections of all clients break when the service goes away. ``hangs``: it does
    not even refuse. Alike for the same ``seed``.

    >>> herd, spread = outage("no_jitter", away=5.0, after=5.0), outage("full_jitter", away=5.0, after=5.0)
    >>> herd.peak > 990, spread.peak < herd.peak / 5
    (True, True)
    """
    chosen = strategy_of(strategy, OUTAGE_STRATEGIES)
    given = {"think": think, "timeout": timeout, "before": before, "away": away, "after": after}
    figures: dict[str, Any] = {name: above_zero(name, value) for name, value in given.items()}
    clients = whole("clients", clients, at_least=1)
    rate = _HEADROOM * clients / figures["think"] if capacity is None else above_zero("capacity", capacity)
    terms = Terms(
        clients=clients,
        processes=-(-clients // 100) if processes is None else whole("processes", processes, at_least=1),
        capacity=rate,
        queue=math.ceil(10 * rate) if queue is None else whole("queue", queue, at_least=1),
        hangs=bool(hangs),
        together=bool(together),
        bin_seconds=above_zero("bin_seconds", bin_seconds),
        **figures,
    )
    seed, tell = whole("seed", seed, at_least=0), pace(progress)

    def run(clock: FakeClock, rng: Random) -> Outage:
        crowd = Crowd(terms, chosen, clock, rng)
        crowd.run(tell)
        return _summed_up(crowd, chosen.name, seed)

    return on_virtual_time(run, seed)


def _summed_up(crowd: Crowd, strategy: str, seed: int) -> Outage:
    terms, size = crowd.terms, crowd.terms.bin_seconds
    # The bins in which it went away and came back, also where they are wide; the rest is the error of floats.
    gone, back = int(terms.before / size + 1e-9), int(terms.back / size + 1e-9)
    arrivals, served, wasted = crowd.arrivals, crowd.served, crowd.wasted
    peak = max(arrivals[gone:])
    good, bad = sum(served[back:]), sum(wasted[back:])
    before = sum(served[:gone]) / terms.before
    return Outage(
        strategy=strategy,
        seed=seed,
        **{field: getattr(terms, field) for field in Terms._fields},
        arrivals=tuple(arrivals),
        served=tuple(served),
        wasted=tuple(wasted),
        peak=peak,
        peak_at=round((arrivals.index(peak, gone) - gone) * size, 9),
        peak_after=max(arrivals[back:], default=0),
        recovered_after=_recovery(served[back:], before, size),
        calls=crowd.calls,
        retries=crowd.retries,
        succeeded=sum(served),
        gave_up=crowd.gave_up,
        barred=crowd.barred,
        refused=crowd.errors[REFUSED],
        reset=crowd.errors[RESET],
        rejected=crowd.errors[FULL],
        timed_out=crowd.errors[SLOW],
        goodput_before=before,
        goodput_after=good / terms.after,
        wasted_after=bad / (good + bad) if good + bad else 0.0,
    )


def _recovery(served: Sequence[int], before: float, size: float) -> float | None:
    """Seconds until the first span of time that, like all after it, sees enough served."""
    width = max(1, round(_OVER / size))
    enough = _ENOUGH * before * width * size
    first = None
    for start in range(len(served) - width, -1, -1):
        if sum(served[start : start + width]) < enough:
            break
        first = start
    return None if first is None else round(first * size, 9)
