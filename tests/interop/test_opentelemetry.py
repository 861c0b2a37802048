"""`metrics.OpenTelemetry` with the real SDK: exported spans and metrics."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

from redouble import CircuitOpen, Policy
from redouble.backoff import exponential
from redouble.breaker import CircuitBreaker
from redouble.budget import TokenBudget
from redouble.events import correlate
from redouble.metrics import OpenTelemetry
from redouble.metrics._counts import BUCKETS
from redouble.testing import FakeClock, scripted
from support.errors import Unavailable

pytest.importorskip(
    "opentelemetry.sdk", reason="opentelemetry-sdk is not installed; the extra 'interop' is needed"
)

from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv.attributes import error_attributes, http_attributes

if TYPE_CHECKING:
    from collections.abc import Iterator

NAMED = {"redouble.policy.name": "fetch"}


class Exported:
    """The spans and metrics exported so far."""

    def __init__(self) -> None:
        self._reader = InMemoryMetricReader()
        self.meters = MeterProvider([self._reader])
        self._spans = InMemorySpanExporter()
        self.traces = TracerProvider()
        self.traces.add_span_processor(SimpleSpanProcessor(self._spans))
        self.tracer = self.traces.get_tracer("tests")

    def metrics(self) -> dict[str, Any]:
        data = self._reader.get_metrics_data()
        (resource,) = data.resource_metrics
        (scope,) = resource.scope_metrics
        assert scope.scope.name == "redouble"
        return {metric.name: metric for metric in scope.metrics}

    def values(self, name: str) -> dict[frozenset[tuple[str, Any]], Any]:
        points = self.metrics()[name].data.data_points
        return {frozenset(point.attributes.items()): getattr(point, "value", None) for point in points}

    def spans(self) -> dict[str, Any]:
        return {span.name: span for span in self._spans.get_finished_spans()}


@pytest.fixture
def exported() -> Iterator[Exported]:
    exported = Exported()
    yield exported
    exported.meters.shutdown()
    exported.traces.shutdown()


@pytest.fixture
def policy(exported: Exported, clock: FakeClock) -> Policy:
    listener = OpenTelemetry(meter_provider=exported.meters, successes=True)
    return Policy(backoff=exponential, name="fetch", listeners=[listener], clock=clock, sleep=clock.sleep)


def key(**attributes: Any) -> frozenset[tuple[str, Any]]:
    return frozenset({"redouble.policy.name": "fetch", **attributes}.items())


def test_the_metrics_say_what_policies_have_done(exported: Exported, policy: Policy) -> None:
    policy.call(scripted("page"))
    policy.call(scripted(Unavailable(), TimeoutError(), "page"))
    with pytest.raises(KeyError):
        policy.call(scripted(KeyError("k")))
    metrics = exported.metrics()
    counted = {
        name: [point.value for point in metric.data.data_points]
        for name, metric in metrics.items()
        if "duration" not in name
    }
    assert counted == {
        "redouble.attempts": [5],
        "redouble.retries": [2],
        "redouble.succeeded": [1],
        "redouble.recovered": [1],
        "redouble.gave_up": [1],
    }
    assert exported.values("redouble.gave_up") == {key(**{"redouble.reason": "not_retryable"}): 1}
    (waits,) = metrics["redouble.wait.duration"].data.data_points
    assert (waits.count, waits.sum, tuple(waits.explicit_bounds)) == (2, 3.0, BUCKETS)
    (calls,) = metrics["redouble.call.duration"].data.data_points
    assert (calls.count, calls.sum, dict(calls.attributes)) == (2, 3.0, NAMED)
    assert (metrics["redouble.call.duration"].unit, metrics["redouble.attempts"].unit) == ("s", "{attempt}")


def test_a_retry_is_an_event_of_the_span_and_the_outcome_its_attributes(
    exported: Exported, policy: Policy
) -> None:
    with exported.tracer.start_as_current_span("order"):
        policy.call(scripted(Unavailable("password=hunter2"), "page"))
    span = exported.spans()["order"]
    assert dict(span.attributes) == {
        **NAMED,
        "redouble.outcome": "recovered",
        "redouble.attempts": 2,
        http_attributes.HTTP_REQUEST_RESEND_COUNT: 1,
    }
    (event,) = span.events
    assert event.name == "redouble.retry"
    assert dict(event.attributes) == {
        **NAMED,
        "redouble.attempt": 1,
        "redouble.cause": "unavailable",
        "redouble.wait": 1.0,
        error_attributes.ERROR_TYPE: "Unavailable",
        http_attributes.HTTP_RESPONSE_STATUS_CODE: 503,
    }
    assert "hunter2" not in span.to_json()


def test_a_call_that_is_given_up_on_leaves_the_status_of_the_span_to_its_owner(
    exported: Exported, policy: Policy
) -> None:
    with exported.tracer.start_as_current_span("order"):
        with pytest.raises(TimeoutError):
            policy.replace(attempts=2).call(scripted(TimeoutError(), TimeoutError()))
    span = exported.spans()["order"]
    assert span.status.is_unset
    assert [event.name for event in span.events] == ["redouble.retry", "redouble.give_up"]
    assert span.attributes["redouble.reason"] == "attempts"
    assert error_attributes.ERROR_TYPE not in span.attributes
    assert http_attributes.HTTP_REQUEST_RESEND_COUNT not in span.attributes


def test_the_span_is_that_of_the_call_in_async_code_too(exported: Exported, policy: Policy) -> None:
    import asyncio

    async def order(name: str, *outcomes: Any) -> None:
        with exported.tracer.start_as_current_span(name):
            await policy.replace(sleep=None, clock=None, base=0.0, name=name).call(
                scripted(*outcomes, asynchronous=True)
            )

    async def main() -> None:
        await asyncio.gather(
            order("a", TimeoutError(), "page"), order("b", TimeoutError(), TimeoutError(), "page")
        )

    asyncio.run(main())
    spans = exported.spans()
    assert [len(spans[name].events) for name in "ab"] == [1, 2]
    assert all(
        {event.attributes["redouble.policy.name"] for event in spans[name].events} == {name} for name in "ab"
    )


def test_without_a_span_nothing_is_marked(policy: Policy) -> None:
    assert not trace.get_current_span().is_recording()
    assert policy.call(scripted(TimeoutError(), "page")) == "page"


def test_the_gauges_are_those_of_the_moment_of_the_collection(exported: Exported, clock: FakeClock) -> None:
    listeners = [OpenTelemetry(meter_provider=exported.meters) for _ in range(2)]
    budget = TokenBudget(capacity=100, name="purse")
    breaker = CircuitBreaker(name="payments", clock=clock)
    listeners[0].watch(budget)
    listeners[1].watch(breaker)  # the second one is heard, too
    budget.acquire()
    breaker.open()
    with pytest.raises(CircuitOpen):
        Policy(breaker=breaker, listeners=listeners[:1], name="fetch", clock=clock).call(scripted("page"))
    assert exported.values("redouble.budget.tokens") == {frozenset({("redouble.budget.name", "purse")}): 95.0}
    states = {
        dict(labels)["redouble.state"]: value
        for labels, value in exported.values("redouble.breaker.state").items()
    }
    assert states == {"closed": 0.0, "open": 1.0, "half-open": 0.0}
    assert exported.values("redouble.refused") == {key(**{"redouble.reason": "breaker"}): 1}


def test_nothing_is_complained_of_by_the_sdk(
    exported: Exported, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "opentelemetry"):
        for _ in range(2):
            listener = OpenTelemetry(meter_provider=exported.meters)
            policy = Policy(listeners=[listener], name="fetch", clock=clock, sleep=clock.sleep)
            with exported.tracer.start_as_current_span("order"):
                policy.call(scripted(Unavailable(), "page"))
        exported.metrics()
    assert [record.getMessage() for record in caplog.records if record.name.startswith("opentelemetry")] == []


def test_correlate_puts_the_trace_on_every_log_record(
    exported: Exported, policy: Policy, caplog: pytest.LogCaptureFixture
) -> None:
    @correlate
    def trace_of_the_call() -> dict[str, object]:
        context = trace.get_current_span().get_span_context()
        return {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}

    try:
        with exported.tracer.start_as_current_span("order") as span:
            policy.call(scripted(TimeoutError(), "page"))
    finally:
        correlate(None)
    expected = f"{span.get_span_context().trace_id:032x}"
    assert {getattr(record, "trace_id", None) for record in caplog.records if record.name == "redouble"} == {
        expected
    }
