"""`OpenTelemetry`, with a stand-in for its package; the real one is tested in ``interop``."""

from __future__ import annotations

import sys
import types

import pytest

from redouble import metrics
from redouble.breaker import CircuitBreaker
from redouble.budget import TokenBudget
from redouble.events import (
    BackendChanged,
    CircuitChanged,
    DeadLettered,
    Expired,
    Hedged,
    Reason,
    Refused,
    Succeeded,
)
from redouble.metrics import _opentelemetry
from redouble.metrics._counts import BUCKETS
from redouble.testing import scripted
from support.errors import Unavailable
from support.events import ended, letter


class Instrument:
    def __init__(self, name, unit, text, **options):
        self.name, self.unit, self.options, self.seen = name, unit, options, []

    def add(self, amount, attributes):
        self.seen.append((amount, dict(attributes)))

    record = add


class Meter:
    def __init__(self):
        self.found = {}

    def create_counter(self, name, unit, text, **options):
        assert name not in self.found
        self.found[name] = Instrument(name, unit, text, **options)
        return self.found[name]

    create_histogram = create_counter

    def create_observable_gauge(self, name, callbacks, unit, text):
        assert name not in self.found
        (self.found[name],) = callbacks

    def gauge(self, name):
        return list(self.found[name](None))


class Provider:
    def __init__(self):
        self.meter = Meter()


class Span:
    recording = True

    def __init__(self):
        self.events, self.attributes = [], {}

    def is_recording(self):
        return self.recording

    def add_event(self, name, attributes):
        self.events.append((name, attributes))

    def set_attributes(self, attributes):
        self.attributes.update(attributes)


@pytest.fixture
def telemetry(monkeypatch):
    package = types.ModuleType("opentelemetry")
    package.metrics = types.ModuleType("opentelemetry.metrics")
    package.trace = types.ModuleType("opentelemetry.trace")
    default, span = Provider(), Span()
    package.metrics.get_meter = lambda name, meter_provider: (meter_provider or default).meter
    package.metrics.Observation = lambda value, attributes: (value, attributes)
    package.trace.get_current_span = lambda: span
    for name in ("opentelemetry", "opentelemetry.metrics", "opentelemetry.trace"):
        monkeypatch.setitem(
            sys.modules, name, package if name == "opentelemetry" else getattr(package, name[14:])
        )
    monkeypatch.setattr(_opentelemetry, "_made", type(_opentelemetry._made)())
    return types.SimpleNamespace(meter=default.meter, span=span)


NAMED = {"redouble.policy.name": "fetch"}


def test_opentelemetry_counts_what_counters_count(telemetry, policy):
    policy = policy.replace(listeners=[metrics.OpenTelemetry()])
    policy.call(scripted(TimeoutError(), "page"))
    with pytest.raises(KeyError):
        policy.call(scripted(KeyError("k")))
    found = telemetry.meter.found
    assert found["redouble.attempts"].seen == [(2, NAMED), (1, NAMED)]
    assert found["redouble.retries"].seen == [(1, NAMED)]
    assert found["redouble.recovered"].seen == [(1, NAMED)]
    assert found["redouble.gave_up"].seen == [(1, {**NAMED, "redouble.reason": "not_retryable"})]
    assert found["redouble.wait.duration"].seen == [(1.0, NAMED)]
    assert found["redouble.call.duration"].seen == [(1.0, NAMED)]
    assert (found["redouble.call.duration"].unit, found["redouble.retries"].unit) == ("s", "{retry}")
    assert found["redouble.call.duration"].options == {"explicit_bucket_boundaries_advisory": list(BUCKETS)}


def test_opentelemetry_reads_guards_when_it_is_collected(telemetry, clock):
    listeners = [metrics.OpenTelemetry(), metrics.OpenTelemetry()]
    budget, breaker = TokenBudget(capacity=10, name="purse"), CircuitBreaker(name="payments", clock=clock)
    for listener in listeners:
        listener.watch(budget, breaker)
    breaker.open()
    meter = telemetry.meter
    assert meter.gauge("redouble.budget.tokens") == [(10.0, {"redouble.budget.name": "purse"})]
    assert meter.gauge("redouble.budget.capacity") == [(10.0, {"redouble.budget.name": "purse"})]
    assert meter.gauge("redouble.breaker.state") == [
        (0.0, {"redouble.breaker.name": "payments", "redouble.state": "closed"}),
        (1.0, {"redouble.breaker.name": "payments", "redouble.state": "open"}),
        (0.0, {"redouble.breaker.name": "payments", "redouble.state": "half-open"}),
    ]
    listeners[0](BackendChanged("purse", available=False))
    assert meter.gauge("redouble.store.available") == [(0.0, {"redouble.store.name": "purse"})]


def test_each_meter_provider_has_instruments_of_its_own(telemetry):
    provider = Provider()
    metrics.OpenTelemetry(meter_provider=provider)(ended())
    metrics.OpenTelemetry()(ended(elapsed=2.0))
    assert provider.meter.found["redouble.call.duration"].seen == [(1.0, NAMED)]
    assert telemetry.meter.found["redouble.call.duration"].seen == [(2.0, NAMED)]


def test_a_retry_is_an_event_of_the_span_without_the_message(telemetry, policy):
    policy = policy.replace(listeners=[metrics.OpenTelemetry()])
    policy.call(scripted(Unavailable("password=hunter2"), TimeoutError("token=abc"), "page"))
    first, second = telemetry.span.events
    assert first == (
        "redouble.retry",
        {
            **NAMED,
            "redouble.attempt": 1,
            "redouble.cause": "unavailable",
            "error.type": "Unavailable",
            "http.response.status_code": 503,
            "redouble.wait": 1.0,
        },
    )
    assert "http.response.status_code" not in second[1]
    assert "hunter2" not in repr(telemetry.span.events)


@pytest.mark.parametrize(
    ("script", "resends"),
    [
        ([Unavailable(), "page"], 1),
        ([TimeoutError(), Unavailable(), "page"], 2),
        ([TimeoutError(), "page"], None),
    ],
)
def test_resends_are_told_only_where_there_was_a_status_and_another_attempt(
    telemetry, policy, script, resends
):
    policy.replace(listeners=[metrics.OpenTelemetry()]).call(scripted(*script))
    said = {**NAMED, "redouble.outcome": "recovered", "redouble.attempts": len(script)}
    assert telemetry.span.attributes == (
        said if resends is None else {**said, "http.request.resend_count": resends}
    )


def test_giving_up_is_told_on_an_event_and_does_not_make_the_span_an_error(telemetry, policy):
    with pytest.raises(Unavailable):
        policy.replace(listeners=[metrics.OpenTelemetry()], attempts=1).call(scripted(Unavailable()))
    said = {**NAMED, "redouble.outcome": "gave_up", "redouble.attempts": 1, "redouble.reason": "attempts"}
    assert telemetry.span.attributes == said
    ((name, attributes),) = telemetry.span.events
    assert name == "redouble.give_up"
    assert (attributes["error.type"], attributes["redouble.reason"]) == ("Unavailable", "attempts")


@pytest.mark.parametrize(
    ("event", "outcome"),
    [
        (ended(kind=Expired, reason=Reason.deadline), "gave_up"),
        (ended(kind=Refused, attempt=0, reason=Reason.breaker), "refused"),
    ],
)
def test_every_end_is_an_outcome(telemetry, event, outcome):
    metrics.OpenTelemetry()(event)
    assert telemetry.span.attributes["redouble.outcome"] == outcome


def test_a_hedge_is_an_event_of_the_span(telemetry):
    metrics.OpenTelemetry()(Hedged("search", attempt=2, elapsed=0.1))
    hedged = {"redouble.policy.name": "search", "redouble.attempt": 2}
    assert telemetry.span.events == [("redouble.hedge", hedged)]


@pytest.mark.parametrize(
    "event", [Succeeded("fetch", attempt=1, elapsed=0.1), CircuitChanged("p", before="open", after="closed")]
)
def test_a_first_success_and_a_guard_leave_no_mark_on_the_span(telemetry, event):
    metrics.OpenTelemetry(successes=True)(event)
    assert (telemetry.span.events, telemetry.span.attributes) == ([], {})


def test_a_span_that_is_not_recorded_and_one_that_is_not_wanted_are_left_alone(telemetry):
    metrics.OpenTelemetry(spans=False)(ended())
    telemetry.span.recording = False
    metrics.OpenTelemetry()(ended())
    assert telemetry.span.attributes == {}
    assert len(telemetry.meter.found["redouble.recovered"].seen) == 2


def test_spans_is_a_bool(telemetry):
    with pytest.raises(ValueError, match="spans must be one of True, False, got 1"):
        metrics.OpenTelemetry(spans=1)


def test_opentelemetry_counts_dead_letters(telemetry):
    metrics.OpenTelemetry()(DeadLettered(letter()))
    assert telemetry.meter.found["redouble.dead_lettered"].seen == [(1, NAMED)]
