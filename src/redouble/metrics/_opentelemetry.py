"""Export to OpenTelemetry: instruments, and events and attributes on the current span.

Only the API package is needed, which is imported when the first exporter is made. Names follow the naming
rules of OpenTelemetry: dots between namespaces, underscores between words.

Error messages are not put on spans: they may hold secrets and have any length. Error types are.
"""

from __future__ import annotations

from functools import partial
from weakref import WeakKeyDictionary

from .._base.checks import one_of
from ..events import Hedged, Retrying, Succeeded
from ._counts import BUCKETS, COUNTERS, ENDS, TIMES
from ._gauges import GAUGES, MAKING, Counting, Instruments, missing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from ..events import Event, Reason

_POLICY, _REASON = "redouble.policy.name", "redouble.reason"
# label of a gauge -> attribute
_LABELS = {
    "budget": "redouble.budget.name",
    "breaker": "redouble.breaker.name",
    "store": "redouble.store.name",
    "state": "redouble.state",
}


class OpenTelemetry(Counting):
    """Export to OpenTelemetry, and mark the current span. A listener, safe to share.

    ``meter_provider`` defaults to the global one, which may also be set later. With ``spans``, every retry is
    an event of the current span, if it is recorded, and the outcome is in its attributes. ``successes`` and
    ``max_names`` are as for `Counters`.

    >>> policy = Policy(listeners=[OpenTelemetry()])  # doctest: +SKIP
    """

    def __init__(
        self, *, meter_provider: Any = None, spans: bool = True, successes: bool = False, max_names: int = 200
    ) -> None:
        super().__init__(successes, max_names)
        self.spans: bool = one_of(True, False)("spans", spans)
        """Whether it marks the current span."""
        try:
            from opentelemetry import metrics, trace  # type: ignore[import-not-found, unused-ignore]
        except ImportError as error:
            raise missing("OpenTelemetry", "opentelemetry", "opentelemetry-api") from error
        self._trace: Any = trace
        self._instruments = _instruments(metrics, meter_provider)
        self._instruments.add(self)
        self._new_numbers = partial(_Series, self._instruments.made)

    def __call__(self, event: Event) -> None:
        """Count an event, and mark the current span."""
        self._count(event)
        if self.spans and type(event) is not Succeeded:
            span = self._trace.get_current_span()
            if span.is_recording():
                _mark(span, event)


OpenTelemetry.__module__ = "redouble.metrics"


# Spans


def _mark(span: Any, event: Event) -> None:
    """Put an event of a call on a span: retries and hedges as events, the outcome as attributes."""
    kind = type(event)
    if kind is Retrying:
        span.add_event("redouble.retry", {**_failure(event), "redouble.wait": event.delay or 0.0})
    elif kind is Hedged:
        span.add_event("redouble.hedge", {_POLICY: event.name, "redouble.attempt": event.attempt})
    elif kind in ENDS:
        outcome = {_POLICY: event.name, "redouble.outcome": ENDS[kind], "redouble.attempts": event.attempt}
        if event.status is not None and event.attempt > 1:
            outcome["http.request.resend_count"] = event.attempt - 1
        if event.reason is not None:
            outcome[_REASON] = str(event.reason)
            # The failure is an event, not a status: the span is the caller's, and may yet end well.
            span.add_event("redouble.give_up", {**_failure(event), _REASON: str(event.reason)})
        span.set_attributes(outcome)


def _failure(event: Event) -> dict[str, Any]:
    """Return the attributes of a failure. The error message is left out."""
    found = {
        _POLICY: event.name,
        "redouble.attempt": event.attempt,
        "redouble.cause": None if event.cause is None else str(event.cause),
        "error.type": event.error_type,
        "http.response.status_code": event.status,
    }
    return {name: value for name, value in found.items() if value is not None}


# Metrics


class _Instruments(Instruments):
    """The instruments of one meter provider. The gauges are read when they are collected."""

    def __init__(self, metrics: Any, meter: Any) -> None:
        super().__init__()
        self._observation = metrics.Observation
        for what, (unit, text) in COUNTERS.items():
            self.made[what] = meter.create_counter(f"redouble.{what}", f"{{{unit}}}", text)
        for what, text in TIMES.items():
            name = f"redouble.{what.removesuffix('_seconds')}.duration"
            self.made[what] = meter.create_histogram(
                name, "s", text, explicit_bucket_boundaries_advisory=list(BUCKETS)
            )
        for what, (_, text) in GAUGES.items():
            read = [partial(self._read, what)]
            meter.create_observable_gauge(f"redouble.{what.replace('_', '.')}", read, "", text)

    def _read(self, wanted: str, _: Any) -> Iterator[Any]:
        """Return the observations of one gauge. OpenTelemetry calls it at each collection."""
        names = [_LABELS[label] for label in GAUGES[wanted][0]]
        for what, labels, value in self.readings():
            if what == wanted:
                yield self._observation(value, dict(zip(names, labels, strict=True)))


_made: WeakKeyDictionary[Any, _Instruments] = WeakKeyDictionary()


def _instruments(metrics: Any, provider: Any) -> _Instruments:
    """Return the instruments of a meter provider, which takes each name once."""
    # The global provider may be set after the instruments were made: the module stands for it.
    key = metrics if provider is None else provider
    with MAKING._lock:
        found = _made.get(key)
        if found is None:
            found = _made[key] = _Instruments(metrics, metrics.get_meter("redouble", meter_provider=provider))
    return found


class _Series:
    """The instruments, with the attributes of one policy."""

    def __init__(self, instruments: dict[str, Any], policy: str) -> None:
        self._instruments = instruments
        self._attributes = {_POLICY: policy}

    def add(self, what: str, amount: int = 1, reason: Reason | None = None) -> None:
        attributes = self._attributes if reason is None else {**self._attributes, _REASON: str(reason)}
        self._instruments[what].add(amount, attributes)

    def observe(self, what: str, seconds: float) -> None:
        self._instruments[what].record(seconds, self._attributes)
