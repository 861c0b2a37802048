"""Services that call services, each with retries: how many calls reach the one at the bottom.

Each layer is a function under a real policy, on fake time. A call to the next layer carries only headers, and
runs in a context of its own, as in another process; its error is raised as it is, as in the same process.
"""

from __future__ import annotations

from contextlib import suppress
from contextvars import Context

from .._base.checks import whole
from .._base.clock import fake_here
from .._base.record import Data
from ..budget import RatioBudget
from ..context import incoming, outgoing_headers
from ..policy import Policy
from ._fleet import Strategy, by_name, checked_rate, run_model, strategy_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from ..testing import FakeClock
    from ._fleet import Progress

    Service = Callable[[], None]

# Seconds between two calls of the user.
_PAUSE = 1.0


def _budget(clock: FakeClock) -> RatioBudget:
    """Return the budget of a layer: retries may be a tenth of the calls of the last minute."""
    # No floor: there is only one user, with one call at a time, and a floor would hide the ratio.
    return RatioBudget(0.1, floor_per_second=0, window=60.0, clock=clock)


LAYER_STRATEGIES = by_name(
    Strategy("independent", Policy(nested="independent")),
    Strategy("stop", Policy()),
    Strategy("defer", Policy(nested="defer")),
    Strategy("budget", Policy(nested="independent"), budget=_budget),
    Strategy("defer+budget", Policy(nested="defer"), budget=_budget),
)


class Layers(Data):
    """The result of `layers`: its parameters, and the calls that reached each layer.

    >>> healthy = layers(failure_rate=0.0, calls=3)
    >>> healthy.reached, healthy.succeeded, healthy.amplification
    ((3, 3, 3), 3, 1.0)
    """

    strategy: str
    depth: int
    calls: int
    failure_rate: float
    seed: int
    reached: tuple[int, ...]
    """Calls of each layer to the one below it, from the top; the last are those to the failing service."""
    succeeded: int
    """Calls of the user that succeeded."""
    amplification: float
    """Calls at the bottom per call of the user."""
    seconds: float
    """Mean virtual seconds of a call of the user."""


def layers(
    strategy: str | Strategy = "independent",
    *,
    depth: int = 3,
    calls: int = 1,
    failure_rate: float = 1.0,
    seed: int = 1,
    progress: Progress | None = None,
) -> Layers:
    """Let a user call a service that calls another one, and so on; return how many calls reach each layer.

    ``depth`` layers retry under the same ``strategy``, a `Strategy` or one of `LAYER_STRATEGIES`. The service
    below them fails with the probability ``failure_rate``. Each layer has one set of guards for all ``calls``
    of the user, which follow each other.

    >>> layers("independent").reached, layers("stop").reached, layers("defer").reached
    ((4, 16, 64), (1, 1, 4), (4, 7, 10))
    """
    chosen = strategy_of(strategy, LAYER_STRATEGIES)
    depth, calls = whole("depth", depth, at_least=1), whole("calls", calls, at_least=1)
    share = checked_rate(failure_rate, chosen)

    def run(clock: FakeClock, rng: Random, report: Progress) -> Layers:
        """Stack the layers, and make the calls of the user, one after the other."""
        reached, succeeded, seconds = [0] * depth, 0, 0.0

        def bottom() -> None:
            if rng.random() < share:
                raise ConnectionResetError("Connection reset by peer")

        service: Service = bottom
        for layer, policy in reversed([*enumerate(chosen.policies(depth, clock, rng))]):
            service = policy.replace(sleep=clock.sleep)(_remote(service, clock, reached, layer))
        for call in range(calls):
            began = clock.now
            with suppress(Exception):  # of the service, a deadline or a guard: the call has failed
                service()
                succeeded += 1
            seconds += clock.now - began
            clock.advance(_PAUSE)
            report((call + 1) / calls)
        given = chosen.name, depth, calls, share, seed
        return Layers(*given, tuple(reached), succeeded, reached[-1] / calls, seconds / calls)

    return run_model(run, seed, progress)


def _remote(service: Service, clock: FakeClock, reached: list[int], layer: int) -> Service:
    """Return a function that calls a service as another process would, and counts that in ``reached``.

    Only headers are passed on: the service runs in an empty context.
    """

    def serve(headers: dict[str, str]) -> None:
        fake_here.set(clock)
        with incoming(headers):
            service()

    def request() -> None:
        reached[layer] += 1
        Context().run(serve, outgoing_headers())

    return request
