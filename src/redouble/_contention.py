"""Many clients write one row at once: what each way to wait makes of that.

The model is that of the AWS architecture blog ("Exponential backoff and jitter") and its program,
aws-arch-backoff-simulator. One row has one version number. A client reads the version and writes with it;
the write succeeds if nobody else has written in between. It wants one success, and never gives up. Each way
of a message takes ``|Normal(10 ms, 2 ms)|``; the server takes no time.
"""

from __future__ import annotations

import heapq
from types import MappingProxyType

from ._guarding import Passage
from ._numbers import whole
from ._virtual import Result, Strategy, on_virtual_time, pace, strategy_of, succeeded, wait_after
from .backoff import decorrelated_jitter, equal_jitter, exponential, fixed, full_jitter
from .policy import Policy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from random import Random

    from ._virtual import Progress
    from .backoff import Backoff
    from .testing import FakeClock

_HOP, _SPREAD = 0.010, 0.002
_READ = -1


class StaleVersion(Exception):  # noqa: N818 - says what happened
    """Somebody else has written since the version was read: what databases call a serialization failure."""

    sqlstate = "40001"


_STALE = StaleVersion("the row has another version by now")


def _forever(name: str, backoff: Backoff, base: float) -> Strategy:
    return Strategy(name, Policy(attempts=10**9, backoff=backoff, base=base, cap=2.0))


# The program counts its first wait as attempt 1, which makes it two bases of 5 ms long; here it is attempt 0.
CONTENTION_STRATEGIES: Mapping[str, Strategy] = MappingProxyType(
    {
        strategy.name: strategy
        for strategy in (
            _forever("no_backoff", fixed, 0.0),
            _forever("no_jitter", exponential, 0.010),
            _forever("equal_jitter", equal_jitter, 0.010),
            _forever("full_jitter", full_jitter, 0.010),
            _forever("decorrelated_jitter", decorrelated_jitter, 0.005),
        )
    }
)


class Contention(Result):
    """What contention for one row came to, on average over the runs."""

    __slots__ = ("calls", "clients", "gave_up", "runs", "seconds", "seed", "strategy")
    strategy: str
    clients: int
    runs: int
    seed: int
    calls: float
    """Writes tried in a run, by all clients together; at best one for each."""
    seconds: float
    """Virtual seconds until the last client of a run was done."""
    gave_up: float
    """Clients of a run that gave up: none under the named strategies, which have no limit of attempts."""


def contention(
    strategy: str | Strategy = "full_jitter",
    *,
    clients: int = 100,
    runs: int = 100,
    seed: int = 1,
    progress: Progress | None = None,
) -> Contention:
    """So many clients write one versioned row at once; gives the writes it took, and the time.

    ``strategy`` is a `Strategy` or one of `CONTENTION_STRATEGIES`. Alike for the same ``seed``.

    >>> full, none = contention("full_jitter", runs=5), contention("no_jitter", runs=5)
    >>> full.calls < none.calls / 2 and full.seconds < none.seconds / 10
    True
    """
    chosen = strategy_of(strategy, CONTENTION_STRATEGIES)
    if chosen.breaker is not None:
        raise ValueError(
            "strategy must have no breaker here: a conflict says nothing about health, none counts it"
        )
    clients, runs = whole("clients", clients, at_least=1), whole("runs", runs, at_least=1)
    seed, tell = whole("seed", seed, at_least=0), pace(progress)

    def run(clock: FakeClock, rng: Random) -> Contention:
        calls, seconds, gave_up = 0, 0.0, 0
        for number in range(runs):
            row = _Row(chosen, clients, clock, rng)
            row.run()
            calls, seconds, gave_up = calls + row.writes, seconds + row.ended, gave_up + row.gave_up
            tell((number + 1) / runs)
        return Contention(
            strategy=chosen.name,
            clients=clients,
            runs=runs,
            seed=seed,
            calls=calls / runs,
            seconds=seconds / runs,
            gave_up=gave_up / runs,
        )

    return on_virtual_time(run, seed)


class _Row:
    """One row, the messages on their way to it, and the clients who send them."""

    def __init__(self, strategy: Strategy, clients: int, clock: FakeClock, rng: Random) -> None:
        self.clock, self.rng = clock, rng
        self.version = self.writes = self.gave_up = self._sent = 0
        self.ended = 0.0
        self._messages: list[tuple[float, int, int, int]] = []
        policies = strategy.policies(clients, clock, rng)
        self._calls = [Passage(policy=policy) for policy in policies]

    def run(self) -> None:
        """All clients begin at 0; ends when none has anything left to send."""
        messages, pop = self._messages, heapq.heappop
        self.clock.now = 0.0
        for client in range(len(self._calls)):
            self._send(client, 0.0, _READ)
        while messages:
            now, _, client, version = pop(messages)
            if version == _READ:
                self._send(client, now + self._hop(), self.version)
            else:
                self._write(client, now, version)

    def _send(self, client: int, now: float, version: int) -> None:
        self._sent += 1
        heapq.heappush(self._messages, (now + self._hop(), self._sent, client, version))

    def _write(self, client: int, now: float, version: int) -> None:
        self.writes += 1
        call, answered = self._calls[client], now + self._hop()
        self.ended = max(self.ended, answered)
        self.clock.now = now
        if version == self.version:
            self.version += 1
            succeeded(call)
            return
        wait = wait_after(call, _STALE, answered)
        if wait is None:
            self.gave_up += 1
        else:
            self._send(client, answered + wait, _READ)

    def _hop(self) -> float:
        return abs(self.rng.gauss(_HOP, _SPREAD))
