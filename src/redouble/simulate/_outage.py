"""A service is down for a while and comes back.

The service handles one request after the other at a fixed rate, from a queue of bounded length; it does not
know which clients have given up. Each client thinks, calls, and thinks again; it waits for a response until
its timeout. During the outage the service refuses connections, or does not answer. Afterwards its queue is
empty and its capacity is as before: the load that it then has comes from its clients.
"""

from __future__ import annotations

import errno
import math

from .. import backoff
from .._base.checks import above_zero, whole
from .._base.record import Data
from ..breaker import CircuitBreaker
from ..budget import RatioBudget
from ..policy import Policy
from ._fleet import EventQueue, SimulatedCall, Strategy, by_name, run_model, strategy_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random
    from typing import Any

    from ..testing import FakeClock
    from ._fleet import Progress

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
    """Return the budget of a process: retries may be a tenth of its calls."""
    return RatioBudget(clock=clock)


def _breaker(clock: FakeClock) -> CircuitBreaker:
    """Return the breaker of a process: it opens for 5 s when half of the calls of 10 s have failed."""
    return CircuitBreaker(failure_rate=0.5, window=10.0, open_for=5.0, clock=clock)


OUTAGE_STRATEGIES = by_name(
    *[
        Strategy(
            name + guards,
            policy,
            budget=_budget if "budget" in guards else None,
            breaker=_breaker if "breaker" in guards else None,
        )
        for name, policy in _POLICIES.items()
        for guards in ("", "+budget", "+breaker", "+budget+breaker")
    ]
)

# Capacity by default, as a multiple of the demand: the service is busy for five sixths of the time.
_HEADROOM = 1.2

# Recovered: this share of the earlier goodput, over this many seconds, and from then on.
_ENOUGH, _OVER = 0.8, 5.0

# Errors of attempts, by the field of the result that counts them.
_ERRORS = {
    "refused": ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"),
    "reset": ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"),
    "rejected": ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused: the queue is full"),
    "timed_out": TimeoutError("no answer in time"),
}

# Events of a client: make the first attempt of a call, or another one; receive a response, or an error.
_ATTEMPT, _RESPONSE = "attempt", "response"

# Seconds that a message takes. The same for all, so that only the waits spread the clients.
_HOP = 0.005


class Parameters(Data):
    """The checked parameters of `outage`."""

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


class Outage(Parameters):
    """The result of `outage`: its parameters, and counts in bins of virtual time.

    >>> found = outage("full_jitter+budget", clients=100, away=5.0, after=10.0)
    >>> found.metastable, len(found.arrivals), found.calls > found.succeeded
    (False, 350, True)
    """

    arrivals: tuple[int, ...]
    """Requests that arrived in each bin, during the outage too."""
    served: tuple[int, ...]
    """Responses before the timeout of the client, in each bin."""
    wasted: tuple[int, ...]
    """Requests handled for clients that had given up, in each bin."""
    peak: int
    """Most arrivals in a bin since the outage began."""
    peak_at: float
    """When that was, in seconds since the outage began."""
    peak_after: int
    """Most arrivals in a bin since the outage ended."""
    recovered_after: float | None
    """Seconds after the outage until the goodput was four fifths of before, for good; ``None``: never."""
    calls: int
    retries: int
    succeeded: int
    gave_up: int
    """Calls that failed in the end."""
    rejected_by_breaker: int
    """Calls that a breaker rejected before their first attempt."""
    refused: int
    """Attempts refused during the outage."""
    reset: int
    """Attempts and idle connections lost when the outage began."""
    rejected: int
    """Attempts rejected because the queue was full."""
    timed_out: int
    """Attempts without a response before the timeout."""
    goodput_before: float
    """Responses in time, per second, before the outage."""
    goodput_after: float
    """Responses in time, per second, after the outage."""
    wasted_after: float
    """Share of the work after the outage that was for clients that had given up."""

    @property
    def metastable(self) -> bool:
        """True if the failure outlasted its cause: the service did not recover within the simulated time."""
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
    """Simulate a service that is up for ``before`` seconds, down for ``away``, and up again for ``after``.

    ``strategy`` is a `Strategy` or one of `OUTAGE_STRATEGIES`. Each of ``clients`` thinks for ``think``
    seconds on average and then calls; they run in ``processes`` (one per hundred clients), each with its own
    guards. ``capacity`` is requests per second (1.2 times the demand), ``queue`` the requests that may wait
    (10 s of work), ``timeout`` how long a client waits for a response if the policy does not say.
    ``together``: the connections of all clients break when the outage begins. ``hangs``: the service does not
    answer during the outage; otherwise it refuses connections. The same ``seed`` gives the same result.

    >>> herd, spread = outage("no_jitter", away=5.0, after=5.0), outage("full_jitter", away=5.0, after=5.0)
    >>> herd.peak > 990, spread.peak < herd.peak / 5
    (True, True)
    """
    chosen = strategy_of(strategy, OUTAGE_STRATEGIES)
    clients, think = whole("clients", clients, at_least=1), above_zero("think", think)
    capacity = _HEADROOM * clients / think if capacity is None else above_zero("capacity", capacity)
    parameters = Parameters(
        strategy=chosen.name,
        seed=seed,
        clients=clients,
        processes=-(-clients // 100) if processes is None else whole("processes", processes, at_least=1),
        think=think,
        capacity=capacity,
        queue=math.ceil(10 * capacity) if queue is None else whole("queue", queue, at_least=1),
        timeout=above_zero("timeout", timeout),
        before=above_zero("before", before),
        away=above_zero("away", away),
        after=above_zero("after", after),
        hangs=bool(hangs),
        together=bool(together),
        bin_seconds=above_zero("bin_seconds", bin_seconds),
    )

    def run(clock: FakeClock, rng: Random, report: Progress) -> Outage:
        return OutageModel(parameters, chosen, clock, rng, report).run()

    return run_model(run, seed, progress)


class OutageModel:
    """The clients and the service.

    Each client has one event at any time. The service needs none: it handles its queue at a fixed rate, so
    the moment at which it has finished a request is known when the request arrives.
    """

    def __init__(
        self,
        parameters: Parameters,
        strategy: Strategy,
        clock: FakeClock,
        rng: Random,
        report: Progress,
    ) -> None:
        self.parameters, self.rng = parameters, rng
        self._back = parameters.before + parameters.away
        self._end = self._back + parameters.after
        bins = math.ceil(self._end / parameters.bin_seconds - 1e-9)
        self.arrivals, self.served, self.wasted = [0] * bins, [0] * bins, [0] * bins
        # By the field of the result.
        fields = ("calls", "retries", "gave_up", "rejected_by_breaker", *_ERRORS)
        self.counts: dict[str, Any] = dict.fromkeys(fields, 0)
        self._policies = strategy.policies(parameters.processes, clock, rng)
        self._timeout = strategy.policy.timeout or parameters.timeout
        self._calls: list[SimulatedCall | None] = [None] * parameters.clients
        # The number of the next event of each client: earlier ones were cancelled by the outage.
        self._due = [0] * parameters.clients
        self._events = EventQueue(clock, report, self._end)
        # When the service has handled its queue: that before the outage, which is lost, and that after it.
        self._free_at = [0.0, 0.0]

    def run(self) -> Outage:
        """Let all clients think, and handle events until the end of the simulated time."""
        if self.parameters.together:
            self._events.push(self.parameters.before, None)
        for client in range(self.parameters.clients):
            self._think(client, 0.0)
        for now, number, client, what in self._events:
            if client is None:
                self._break_connections(now)
            elif self._due[client] == number:
                self._handle(client, now, what)
        return self._result()

    def _schedule(self, client: int, moment: float, what: str) -> None:
        """Set the next event of a client, unless it is after the end."""
        self._due[client] = self._events.push(moment, client, what) if moment < self._end else 0

    def _count(self, bins: list[int], moment: float) -> None:
        """Count in the bin of a moment, unless that is after the end."""
        if moment < self._end:
            bins[min(int(moment / self.parameters.bin_seconds), len(bins) - 1)] += 1

    # Clients

    def _handle(self, client: int, now: float, what: str) -> None:
        """Handle an event of a client: a call or an attempt to make, a response, or an error."""
        call = self._calls[client] or self._begin(client, now)
        if what is _RESPONSE:
            self._count(self.served, now)
            call.succeed()
            self._think(client, now)
        elif what is not _ATTEMPT:
            self._fail(client, call, now, what)
        elif call.admitted():
            self._send(client, call, now)
        else:
            self.counts["gave_up" if call.attempt > 1 else "rejected_by_breaker"] += 1
            self._think(client, now)

    def _think(self, client: int, now: float) -> None:
        """End the call of a client, and schedule the next one."""
        self._calls[client] = None
        self._schedule(client, now + self.rng.expovariate(1.0 / self.parameters.think), _ATTEMPT)

    def _begin(self, client: int, now: float) -> SimulatedCall:
        """Begin a call, under the policy of the client's process."""
        self.counts["calls"] += 1
        policy = self._policies[client % self.parameters.processes]
        call = self._calls[client] = SimulatedCall(policy, now)
        return call

    def _fail(self, client: int, call: SimulatedCall, now: float, error: str) -> None:
        """Take a failed attempt: schedule a retry, or give the call up."""
        self.counts[error] += 1
        wait = call.wait_after(_ERRORS[error], now)
        if wait is None:
            self.counts["gave_up"] += 1
            self._think(client, now)
        else:
            self._schedule(client, now + wait, _ATTEMPT)

    def _break_connections(self, now: float) -> None:
        """Let each idle client begin a call that fails at once: its connection was lost."""
        for client, call in enumerate(self._calls):
            if call is None:
                self._fail(client, self._begin(client, now), now, "reset")

    # The service

    def _send(self, client: int, call: SimulatedCall, now: float) -> None:
        """Send a request, and schedule what the client receives: a response or an error."""
        arrives, gives_up = now + _HOP, now + self._timeout
        self._count(self.arrivals, arrives)
        self.counts["retries"] += call.attempt > 1
        done, what = self._serve(arrives)
        answered = done + _HOP
        if answered > gives_up:
            if what is _RESPONSE:
                self._count(self.wasted, done)
            answered, what = gives_up, "timed_out"
        self._schedule(client, answered, what)

    def _serve(self, arrives: float) -> tuple[float, str]:
        """Return when the service has finished a request, and with what outcome."""
        parameters = self.parameters
        if parameters.before <= arrives < self._back:
            return (self._end if parameters.hangs else arrives), "refused"
        back = arrives >= self._back
        begins = max(self._free_at[back], arrives)
        if (begins - arrives) * parameters.capacity >= parameters.queue:
            return arrives, "rejected"
        self._free_at[back] = done = begins + 1.0 / parameters.capacity
        if arrives < parameters.before < done:
            return parameters.before, "reset"
        return done, _RESPONSE

    # The result

    def _result(self) -> Outage:
        """Return the figures of the whole simulation."""
        parameters, size = self.parameters, self.parameters.bin_seconds
        # The bins in which the outage began and ended; the small term corrects rounding errors.
        gone, back = int(parameters.before / size + 1e-9), int(self._back / size + 1e-9)
        peak = max(self.arrivals[gone:])
        good, bad = sum(self.served[back:]), sum(self.wasted[back:])
        goodput = sum(self.served[:gone]) / parameters.before
        return Outage(
            **parameters.as_dict(),
            **self.counts,
            arrivals=tuple(self.arrivals),
            served=tuple(self.served),
            wasted=tuple(self.wasted),
            peak=peak,
            peak_at=round((self.arrivals.index(peak, gone) - gone) * size, 9),
            peak_after=max(self.arrivals[back:], default=0),
            recovered_after=_recovery(self.served[back:], goodput, size),
            succeeded=sum(self.served),
            goodput_before=goodput,
            goodput_after=good / parameters.after,
            wasted_after=bad / (good + bad) if good + bad else 0.0,
        )


def _recovery(served: Sequence[int], goodput: float, size: float) -> float | None:
    """Return the seconds until the first window that, like all after it, has enough responses."""
    width = max(1, round(_OVER / size))
    enough = _ENOUGH * goodput * width * size
    first = None
    for start in range(len(served) - width, -1, -1):
        if sum(served[start : start + width]) < enough:
            break
        first = start
    return None if first is None else round(first * size, 9)
