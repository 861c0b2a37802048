"""The same figures as instruments of OpenTelemetry, and what became of a call on the current span.

Only the API package is needed, which is imported when the first adapter is made. Names follow the naming
rules of OpenTelemetry: dots between what contains and what is contained, underscores within a word.

No message of an error goes on a span: it may hold secrets, and is without bounds. Its type does.
"""

from __future__ import annotations

from functools import partial
from weakref import WeakKeyDictionary

from ._checks import one_of
from ._gauges import GAUGES, MAKING, Counting, Sources
from ._tally import BUCKETS, COUNTERS, ENDS, TIMES
from .events import Hedged, Retrying, Succeeded

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from .events import Event, Reason

POLICY, REASON = "redouble.policy.name", "redouble.reason"
# What a label of a gauge is called here.
_LABELS = {
    "budget": "redouble.budget.name",
    "breaker": "redouble.breaker.name",
    "store": "redouble.store.name",
    "state": "redouble.state",
}


class OpenTelemetry(Counting):
    """Counts into instruments of OpenTelemetry, and marks the current span. A listener, safe to share.

    ``meter_provider`` is the global one unless given, which may also be set later. With ``spans``, every
    retry is an event of the span that is current, if it is recorded, and the outcome is in its attributes.
    ``successes`` and ``names`` are as for `Counters`.

    >>> policy = Policy(listeners=[OpenTelemetry()])  # doctest: +SKIP
    """

    def __init__(
        self, *, meter_provider: Any = None, spans: bool = True, successes: bool = False, names: int = 200
    ) -> None:
        super().__init__(self._series, successes, names)
        self.spans: bool = one_of(True, False)("spans", spans)
        """Whether it marks the current span."""
        api = _api()
        self._trace = api.trace
        self._instruments = _instruments(api.metrics, meter_provider)
        self._instruments.sources.add(self)

    def __call__(self, event: Event) -> None:
        """Counts an event, and marks the current span."""
        self._hear(event)
        if self.spans and type(event) is not Succeeded:
            span = self._trace.get_current_span()
            if span.is_recording():
                _mark(span, event)

    def _series(self, policy: str) -> _Series:
        return _Series(self._instruments.made, policy)


OpenTelemetry.__module__ = "redouble.metrics"


def _api() -> Any:
    try:
        import opentelemetry.metrics  # type: ignore[import-not-found, unused-ignore]
        import opentelemetry.trace  # type: ignore[import-not-found, unused-ignore]
    except ImportError as error:
        raise ImportError(
            "metrics.OpenTelemetry needs the package opentelemetry-api: "
            "install it with 'python -m pip install opentelemetry-api'",
            name="opentelemetry",
        ) from error
    api: Any = opentelemetry
    return api


# Spans


def _mark(span: Any, event: Event) -> None:
    kind = type(event)
    if kind is Retrying:
        span.add_event("redouble.retry", {**_failure(event), "redouble.wait": event.delay or 0.0})
    elif kind is Hedged:
        span.add_event("redouble.hedge", {POLICY: event.name, "redouble.attempt": event.attempt})
    elif kind in ENDS:
        span.set_attributes(_outcome(event, ENDS[kind]))
        if event.reason is not None:
            # On an event, not on the span: the span is the caller's, and may yet end well.
            span.add_event("redouble.give_up", {**_failure(event), REASON: str(event.reason)})


def _failure(event: Event) -> dict[str, Any]:
    said = {
        POLICY: event.name,
        "redouble.attempt": event.attempt,
        "redouble.cause": None if event.cause is None else str(event.cause),
        "error.type": event.error_type,
        "http.response.status_code": event.status,
    }
    return {name: value for name, value in said.items() if value is not None}


def _outcome(event: Event, outcome: str) -> dict[str, Any]:
    said: dict[str, Any] = {
        POLICY: event.name,
        "redouble.outcome": outcome,
        "redouble.attempts": event.attempt,
    }
    if event.reason is not None:
        said[REASON] = str(event.reason)
    if event.status is not None and event.attempt > 1:
        said["http.request.resend_count"] = event.attempt - 1
    return said


# Metrics


class _Instruments:
    """The instruments of one meter provider. The gauges are asked for when they are collected."""

    def __init__(self, metrics: Any, meter: Any) -> None:
        self._observation = metrics.Observation
        self.sources = Sources()
        self.made: dict[str, Any] = {
            what: meter.create_counter(f"redouble.{what}", f"{{{unit}}}", text)
            for what, (unit, text) in COUNTERS.items()
        }
        for what, text in TIMES.items():
            name = f"redouble.{what.removesuffix('_seconds')}.duration"
            self.made[what] = meter.create_histogram(
                name, "s", text, explicit_bucket_boundaries_advisory=list(BUCKETS)
            )
        for what, (_, text) in GAUGES.items():
            read = [partial(self._read, what)]
            meter.create_observable_gauge(f"redouble.{what.replace('_', '.')}", read, "", text)

    def _read(self, wanted: str, _: Any) -> Iterator[Any]:
        for what, labels, value in self.sources.readings():
            if what == wanted:
                yield self._observation(value, {_LABELS[name]: text for name, text in labels.items()})


class _Default:
    """Stands for the global meter provider, which may be set after the instruments were made."""


_default = _Default()
_made: WeakKeyDictionary[Any, _Instruments] = WeakKeyDictionary()


def _instruments(metrics: Any, provider: Any) -> _Instruments:
    """Those of this provider, which knows each by its name and takes it once."""
    key = _default if provider is None else provider
    with MAKING._lock:
        found = _made.get(key)
        if found is None:
            found = _made[key] = _Instruments(metrics, metrics.get_meter("redouble", meter_provider=provider))
    return found


class _Series:
    """The instruments, with the attributes of one policy."""

    def __init__(self, instruments: dict[str, Any], policy: str) -> None:
        self._instruments = instruments
        self._attributes = {POLICY: policy}

    def add(self, what: str, amount: int = 1, reason: Reason | None = None) -> None:
        attributes = self._attributes if reason is None else {**self._attributes, REASON: str(reason)}
        self._instruments[what].add(amount, attributes)

    def observe(self, what: str, seconds: float) -> None:
        self._instruments[what].record(seconds, self._attributes)
