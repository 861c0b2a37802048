"""Many clients write one row at once.

The model of the AWS architecture blog ("Exponential backoff and jitter") and its program,
aws-arch-backoff-simulator. A row has a version number. A client reads the version and writes with it; the
write succeeds if no other client has written in between. Each client needs one success, and never gives up.
A message takes ``|Normal(10 ms, 2 ms)|``; the server takes no time.
"""

from __future__ import annotations

from .._base.checks import INF, whole
from .._base.record import Data
from ..backoff import decorrelated_jitter, equal_jitter, exponential, fixed, full_jitter
from ..policy import Policy
from ._fleet import EventQueue, SimulatedCall, Strategy, by_name, run_model, strategy_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from random import Random

    from ..backoff import Backoff
    from ..testing import FakeClock
    from ._fleet import Progress

# Seconds that a message takes: mean and standard deviation.
_HOP, _SPREAD = 0.010, 0.002
_READ = -1


class StaleVersion(Exception):  # noqa: N818 - says what happened
    """Another client has written since the version was read: a serialization failure."""

    sqlstate = "40001"


_STALE = StaleVersion("the row has another version by now")


def _endless(name: str, backoff: Backoff, base: float = 0.010) -> Strategy:
    """Return a strategy without a limit of attempts."""
    return Strategy(name, Policy(attempts=INF, backoff=backoff, base=base, cap=2.0))


# The program starts to count at attempt 1, so its first wait is two bases of 5 ms; here attempts start at 0.
CONTENTION_STRATEGIES = by_name(
    _endless("no_backoff", fixed, 0.0),
    _endless("no_jitter", exponential),
    _endless("equal_jitter", equal_jitter),
    _endless("full_jitter", full_jitter),
    _endless("decorrelated_jitter", decorrelated_jitter, 0.005),
)


class Contention(Data):
    """The result of `contention`: its parameters, and means over the runs.

    >>> alone = contention(clients=1, runs=2)
    >>> alone.calls, alone.gave_up, 0 < alone.seconds < 0.1
    (1.0, 0.0, True)
    """

    strategy: str
    clients: int
    runs: int
    seed: int
    calls: float
    """Writes of all clients in a run; the minimum is one for each client."""
    seconds: float
    """Virtual seconds until the last client of a run has finished."""
    gave_up: float
    """Clients that gave up in a run: zero for the named strategies, which have no limit of attempts."""


def contention(
    strategy: str | Strategy = "full_jitter",
    *,
    clients: int = 100,
    runs: int = 100,
    seed: int = 1,
    progress: Progress | None = None,
) -> Contention:
    """Let clients write one versioned row at once; return the number of writes and the time.

    ``strategy`` is a `Strategy` or one of `CONTENTION_STRATEGIES`. The same ``seed`` gives the same result.

    >>> full, none = contention("full_jitter", runs=5), contention("no_jitter", runs=5)
    >>> full.calls < none.calls / 2 and full.seconds < none.seconds / 10
    True
    """
    chosen = strategy_of(strategy, CONTENTION_STRATEGIES)
    if chosen.breaker is not None:
        raise ValueError("strategy must have no breaker here: a breaker does not count conflicts")
    clients, runs = whole("clients", clients, at_least=1), whole("runs", runs, at_least=1)

    def run(clock: FakeClock, rng: Random, report: Progress) -> Contention:
        """Make all runs, one after the other: each starts all clients at 0, until none sends any more."""

        def hop() -> float:
            return abs(rng.gauss(_HOP, _SPREAD))

        writes, seconds, gave_up = 0, 0.0, 0
        for number in range(runs):
            current, ended, messages = 0, 0.0, EventQueue(clock)
            for policy in chosen.policies(clients, clock, rng):
                messages.push(hop(), SimulatedCall(policy, 0.0), _READ)
            for now, _, call, version in messages:
                answered = now + hop()
                if version == _READ:
                    messages.push(answered + hop(), call, current)
                    continue
                writes += 1
                ended = max(ended, answered)
                if version == current:
                    current += 1
                    call.succeed()
                elif (wait := call.wait_after(_STALE, answered)) is None:
                    gave_up += 1
                else:
                    messages.push(answered + wait + hop(), call, _READ)
            seconds += ended
            report((number + 1) / runs)
        return Contention(chosen.name, clients, runs, seed, writes / runs, seconds / runs, gave_up / runs)

    return run_model(run, seed, progress)
