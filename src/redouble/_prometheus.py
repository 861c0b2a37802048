"""The same figures as instruments of ``prometheus_client``, imported when the first adapter is made."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from ._gauges import GAUGES, MAKING, Counting, Sources
from ._tally import BUCKETS, COUNTERS, REASONED, TIMES, bucket_bounds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from .events import Event, Reason


class Prometheus(Counting):
    """Counts into instruments of ``prometheus_client``, by the label ``policy``. A listener, safe to share.

    ``registry`` is the default one of ``prometheus_client`` unless given. The instruments are made once for
    each registry, however many adapters it has; these must agree on ``buckets``, in seconds. ``successes``
    and ``names`` are as for `Counters`.

    >>> policy = Policy(listeners=[Prometheus()])  # doctest: +SKIP
    """

    def __init__(
        self,
        registry: Any = None,
        *,
        successes: bool = False,
        names: int = 200,
        buckets: Iterable[float] = BUCKETS,
    ) -> None:
        super().__init__(self._series, successes, names)
        client, bounds = _client(), bucket_bounds(buckets)
        where = client.REGISTRY if registry is None else registry
        self._instruments = _instruments(client, where, bounds, successes=self.wants_successes)
        self._instruments.sources.add(self)

    def __call__(self, event: Event) -> None:
        """Counts an event."""
        self._hear(event)

    def _series(self, policy: str) -> _Series:
        return _Series(self._instruments.made, policy)


Prometheus.__module__ = "redouble.metrics"


def _client() -> Any:
    try:
        import prometheus_client  # type: ignore[import-not-found, unused-ignore]
        import prometheus_client.core  # type: ignore[import-not-found, unused-ignore]
    except ImportError as error:
        raise ImportError(
            "metrics.Prometheus needs the package prometheus_client: "
            "install it with 'python -m pip install prometheus-client'",
            name="prometheus_client",
        ) from error
    client: Any = prometheus_client
    return client


class _Instruments:
    """The instruments of one registry. As a collector, it gives the gauges when they are scraped."""

    def __init__(self, client: Any, bounds: tuple[float, ...]) -> None:
        self._client = client
        self.bounds = bounds
        self.made: dict[str, Any] = {}
        self.sources = Sources()

    def add_counters(self, registry: Any, *, successes: bool) -> None:
        for what, (_, text) in COUNTERS.items():
            if what not in self.made and (successes or what != "succeeded"):
                labels = ["policy", "reason"] if what in REASONED else ["policy"]
                self.made[what] = self._client.Counter(f"redouble_{what}", text, labels, registry=registry)

    def add_times(self, registry: Any) -> None:
        for what, text in TIMES.items():
            name = f"redouble_{what}"
            self.made[what] = self._client.Histogram(
                name, text, ["policy"], registry=registry, buckets=self.bounds
            )

    def describe(self) -> list[Any]:
        """The gauges without values: what the registry must know of them."""
        return list(self._families().values())

    def collect(self) -> list[Any]:
        """The gauges of now, of all adapters."""
        families = self._families()
        for what, labels, value in self.sources.readings():
            families[what].add_metric(list(labels.values()), value)
        return list(families.values())

    def _families(self) -> dict[str, Any]:
        family = self._client.core.GaugeMetricFamily
        return {
            what: family(f"redouble_{what}", text, labels=list(labels))
            for what, (labels, text) in GAUGES.items()
        }


# A registry that is forgotten takes its instruments with it.
_made: WeakKeyDictionary[Any, _Instruments] = WeakKeyDictionary()


def _instruments(client: Any, registry: Any, bounds: tuple[float, ...], *, successes: bool) -> _Instruments:
    """Those of this registry, made where they are missing."""
    with MAKING._lock:
        known = _made.get(registry)
        found = _Instruments(client, bounds) if known is None else known
        if found.bounds != bounds:
            raise ValueError(
                f"buckets must be those of the other adapters of this registry, {found.bounds}, got {bounds}"
            )
        before = set(found.made)
        try:
            found.add_counters(registry, successes=successes)
            if known is None:
                found.add_times(registry)
                registry.register(found)
                _made[registry] = found
        except BaseException:
            # A name that is taken, or an interrupt: what was made so far would be in the way next time.
            for what in set(found.made) - before:
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
