"""Export to ``prometheus_client``, which is imported when the first exporter is made."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from weakref import WeakKeyDictionary

from .._base.checks import above_zero
from ._counts import BUCKETS, COUNTERS, REASONED, TIMES
from ._gauges import GAUGES, MAKING, Counting, Instruments, missing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from ..events import Reason


class Prometheus(Counting):
    """Export to ``prometheus_client``, by the label ``policy``. A listener, safe to share.

    ``registry`` defaults to the default one of ``prometheus_client``. The instruments are made once for each
    registry, however many exporters it has; these must agree on ``buckets``, in seconds. ``successes`` and
    ``max_names`` are as for `Counters`.

    >>> policy = Policy(listeners=[Prometheus()])  # doctest: +SKIP
    """

    def __init__(
        self,
        registry: Any = None,
        *,
        successes: bool = False,
        max_names: int = 200,
        buckets: Iterable[float] = BUCKETS,
    ) -> None:
        super().__init__(successes, max_names)
        bounds = _bounds(buckets)
        try:
            import prometheus_client  # type: ignore[import-not-found, unused-ignore]
            import prometheus_client.core  # type: ignore[import-not-found, unused-ignore]
        except ImportError as error:
            raise missing("Prometheus", "prometheus_client", "prometheus-client") from error
        client: Any = prometheus_client
        where = client.REGISTRY if registry is None else registry
        self._instruments = _instruments(client, where, bounds, successes=self.wants_successes)
        self._instruments.add(self)
        self._new_numbers = partial(_Series, self._instruments.made)


Prometheus.__module__ = "redouble.metrics"


def _bounds(buckets: Iterable[Any]) -> tuple[float, ...]:
    """Check the upper bounds in seconds: each above the one before it."""
    try:
        bounds = tuple([above_zero("buckets", bound) for bound in buckets])
    except TypeError:
        raise TypeError(f"buckets must be seconds, such as (0.1, 1.0, 10.0), got {buckets!r}") from None
    if not bounds or any(low >= high for low, high in pairwise(bounds)):
        raise ValueError(f"buckets must be at least one bound, each above the one before it, got {buckets!r}")
    return bounds


class _Instruments(Instruments):
    """The instruments of one registry. As a collector, it returns the gauges when they are scraped."""

    def __init__(self, client: Any, bounds: tuple[float, ...]) -> None:
        super().__init__()
        self._client = client
        self.bounds = bounds

    def make(self, what: str, registry: Any) -> None:
        """Make one of the `COUNTERS` or the `TIMES`, and register it."""
        name, labels = f"redouble_{what}", ["policy", "reason"] if what in REASONED else ["policy"]
        if what in COUNTERS:
            made = self._client.Counter(name, COUNTERS[what][1], labels, registry=registry)
        else:
            made = self._client.Histogram(name, TIMES[what], labels, registry=registry, buckets=self.bounds)
        self.made[what] = made

    def describe(self) -> list[Any]:
        """Return the gauges without values, for the registry."""
        return list(self._families().values())

    def collect(self) -> list[Any]:
        """Return the gauges of all exporters as of now."""
        families = self._families()
        for what, labels, value in self.readings():
            families[what].add_metric(labels, value)
        return list(families.values())

    def _families(self) -> dict[str, Any]:
        """Return the gauges without values, by name."""
        family = self._client.core.GaugeMetricFamily
        return {
            what: family(f"redouble_{what}", text, labels=labels) for what, (labels, text) in GAUGES.items()
        }


# A registry that is collected takes its instruments with it.
_made: WeakKeyDictionary[Any, _Instruments] = WeakKeyDictionary()


def _instruments(client: Any, registry: Any, bounds: tuple[float, ...], *, successes: bool) -> _Instruments:
    """Return the instruments of a registry; make those that are missing."""
    with MAKING._lock:
        found = _made.get(registry) or _Instruments(client, bounds)
        if found.bounds != bounds:
            others = f"those of the other exporters of this registry, {found.bounds}"
            raise ValueError(f"buckets must be {others}, got {bounds}")
        needed = [what for what in (*COUNTERS, *TIMES) if successes or what != "succeeded"]
        new = [what for what in needed if what not in found.made]
        try:
            for what in new:
                found.make(what, registry)
            if registry not in _made:
                registry.register(found)
                _made[registry] = found
        except BaseException:
            # A name that is taken, or an interrupt: what was made so far would be in the way next time.
            for what in new:
                if what in found.made:
                    registry.unregister(found.made.pop(what))
            raise
    return found


class _Series:
    """The series of one policy."""

    def __init__(self, instruments: dict[str, Any], policy: str) -> None:
        # All are there from the start, at 0: a series that begins at 1 has no increase.
        self._children: dict[tuple[str, Reason | None], Any] = {
            (what, reason): made.labels(policy, *([] if reason is None else [str(reason)]))
            for what, made in instruments.items()
            for reason in REASONED.get(what, (None,))
        }

    def add(self, what: str, amount: int = 1, reason: Reason | None = None) -> None:
        self._children[what, reason].inc(amount)

    def observe(self, what: str, seconds: float) -> None:
        self._children[what, None].observe(seconds)
