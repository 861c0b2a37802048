"""Services that call services, each with retries: how many calls reach the one at the bottom.

No rig stands in for the library here. Each layer is a function under a real policy, on fake time; what one
layer tells the next travels as headers do, into a context of its own, as in another process.
"""

from __future__ import annotations

from contextvars import Context
from types import MappingProxyType

from ._numbers import number, whole
from ._time import fake_here
from ._virtual import Result, Strategy, on_virtual_time, pace, strategy_of
from .budget import RatioBudget
from .context import incoming, outgoing_headers
from .policy import Policy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from random import Random

    from ._virtual import Progress
    from .testing import FakeClock

    Service = Callable[[], None]

# Between two calls of the user at the top: a second.
_PAUSE = 1.0


def _budget(clock: FakeClock) -> RatioBudget:
    # No floor: there is one user, whose next call waits for the last, and the share is to be seen, as in a
    # service that many users call. What a floor adds to few calls is `RatioBudget.load`.
    return RatioBudget(0.1, floor_per_second=0, window=60.0, clock=clock)


LAYER_STRATEGIES: Mapping[str, Strategy] = MappingProxyType(
    {
        strategy.name: strategy
        for strategy in (
            Strategy("independent", Policy()),
            Strategy("defer", Policy(nested="defer")),
            Strategy("budget", Policy(), budget=_budget),
            Strategy("defer+budget", Policy(nested="defer"), budget=_budget),
        )
    }
)


class Layers(Result):
    """What reached each layer."""

    __slots__ = (
        *("strategy", "depth", "calls", "failure_rate", "seed"),
        *("reached", "succeeded", "amplification", "seconds"),
    )
    strategy: str
    depth: int
    calls: int
    failure_rate: float
    seed: int
    reached: tuple[int, ...]
    """What each layer sent to the one below it, from the top; the last is what came to the one that fails."""
    succeeded: int
    """Calls of the user that succeeded."""
    amplification: float
    """Calls that came to the bottom for each call of the user."""
    seconds: float
    """Virtual seconds that a call took on average."""


def layers(
    strategy: str | Strategy = "independent",
    *,
    depth: int = 3,
    calls: int = 1,
    failure_rate: float = 1.0,
    seed: int = 1,
    progress: Progress | None = None,
) -> Layers:
    """A user calls A, which calls B, which calls C, which calls what fails: gives how many calls that makes.

    ``depth`` layers retry under the same ``strategy``, a `Strategy` or one of `LAYER_STRATEGIES`; what they
    stand on fails with the probability ``failure_rate``. Guards are one set for each layer, and see all of
    the user's ``calls``, one after the other.

    >>> layers("independent").reached, layers("defer").reached
    ((4, 16, 64), (4, 7, 10))
    """
    chosen = strategy_of(strategy, LAYER_STRATEGIES)
    depth, calls = whole("depth", depth, at_least=1), whole("calls", calls, at_least=1)
    seed, tell = whole("seed", seed, at_least=0), pace(progress)
    if number("failure_rate", failure_rate) > 1:
        raise ValueError(f"failure_rate must be a share from 0 to 1, got {failure_rate!r}")

    def run(clock: FakeClock, rng: Random) -> Layers:
        stack = _Stack(chosen, depth, float(failure_rate), clock, rng)
        waited = 0.0
        for call in range(calls):
            began = clock.now
            stack.call()
            waited += clock.now - began
            clock.advance(_PAUSE)
            tell((call + 1) / calls)
        return Layers(
            strategy=chosen.name,
            depth=depth,
            calls=calls,
            failure_rate=float(failure_rate),
            seed=seed,
            reached=tuple(stack.reached),
            succeeded=stack.succeeded,
            amplification=stack.reached[-1] / calls,
            seconds=waited / calls,
        )

    return on_virtual_time(run, seed)


class _Stack:
    """Layers of services, the failing one at the bottom."""

    def __init__(
        self, strategy: Strategy, depth: int, failure_rate: float, clock: FakeClock, rng: Random
    ) -> None:
        self.failure_rate, self.clock, self.rng = failure_rate, clock, rng
        self.reached, self.succeeded = [0] * depth, 0
        policies = strategy.policies(depth, clock, rng)
        service: Service = self._fail_or_not
        for layer in reversed(range(depth)):
            policy = policies[layer].replace(sleep=clock.sleep)
            service = policy(self._over_the_network(layer, service))
        self._top = service

    def call(self) -> None:
        """One call of the user."""
        try:
            self._top()
        except Exception:  # noqa: BLE001 - or a deadline's, or a guard's: a policy has its own ways to end a call
            return
        self.succeeded += 1

    def _over_the_network(self, layer: int, service: Service) -> Service:
        """The service as those above it see it: all that comes with a call is headers."""

        def serve(headers: dict[str, str]) -> None:
            fake_here.set(self.clock)
            with incoming(headers):
                service()

        def request() -> None:
            self.reached[layer] += 1
            Context().run(serve, outgoing_headers())

        return request

    def _fail_or_not(self) -> None:
        if self.rng.random() < self.failure_rate:
            raise ConnectionResetError("Connection reset by peer")
