"""`Prometheus`, with a stand-in for its package; the real one is tested in ``interop``."""

from __future__ import annotations

import gc
import sys
import types

import pytest

from redouble import Policy, metrics
from redouble.breaker import CircuitBreaker
from redouble.budget import TokenBudget
from redouble.events import BackendChanged, CircuitChanged, DeadLettered, Reason
from redouble.metrics import Counters
from redouble.metrics._counts import BUCKETS, OTHER
from redouble.testing import scripted
from support.events import ended, letter
from support.threads import in_threads


class Child:
    def __init__(self):
        self.seen = []

    def inc(self, amount):
        self.seen.append(amount)

    observe = inc


class Family:
    def __init__(self, name, text, labels=(), **options):
        self.name, self.names, self.children, self.samples = name, tuple(labels), {}, {}
        self.options = options
        if "registry" in options:
            options["registry"].register(self)

    def labels(self, *values):
        assert len(values) == len(self.names)
        return self.children.setdefault(values, Child())

    def add_metric(self, labels, value):
        assert tuple(labels) not in self.samples
        self.samples[tuple(labels)] = value


class Registry:
    def __init__(self):
        self.found = []

    def register(self, collector):
        names = (
            {one.name for one in collector.describe()} if hasattr(collector, "describe") else {collector.name}
        )
        if taken := names & {name for name, _ in self.found}:
            raise ValueError(f"Duplicated timeseries: {taken}")
        self.found += [(name, collector) for name in names]

    def unregister(self, collector):
        self.found = [(name, one) for name, one in self.found if one is not collector]

    def __getitem__(self, name):
        return dict(self.found)[name]

    def counted(self, name):
        return {labels: child.seen for labels, child in self[name].children.items()}

    def gauges(self):
        (collector,) = {id(one): one for _, one in self.found if hasattr(one, "collect")}.values()
        return {family.name: family.samples for family in collector.collect()}


@pytest.fixture
def registry(monkeypatch):
    client = types.ModuleType("prometheus_client")
    client.core = types.ModuleType("prometheus_client.core")
    client.core.GaugeMetricFamily = Family
    client.Counter = client.Histogram = Family
    client.REGISTRY = Registry()
    monkeypatch.setitem(sys.modules, "prometheus_client", client)
    monkeypatch.setitem(sys.modules, "prometheus_client.core", client.core)
    return client.REGISTRY


def test_prometheus_counts_what_counters_count(registry, policy):
    policy = policy.replace(listeners=[metrics.Prometheus()])
    policy.call(scripted(TimeoutError(), TimeoutError(), "page"))
    with pytest.raises(KeyError):
        policy.call(scripted(KeyError("k")))
    assert registry.counted("redouble_attempts") == {("fetch",): [3, 1]}
    assert registry.counted("redouble_retries") == {("fetch",): [1, 1]}
    assert registry.counted("redouble_recovered") == {("fetch",): [1]}
    gave_up = {("fetch", str(reason)): [] for reason in Reason}
    assert registry.counted("redouble_gave_up") == {**gave_up, ("fetch", "not_retryable"): [1]}
    assert registry.counted("redouble_refused") == {("fetch", "breaker"): [], ("fetch", "bulkhead"): []}
    assert registry.counted("redouble_hedged") == {("fetch",): []}
    assert registry.counted("redouble_wait_seconds") == {("fetch",): [1.0, 2.0]}
    assert registry.counted("redouble_call_seconds") == {("fetch",): [3.0]}
    assert registry["redouble_call_seconds"].options["buckets"] == BUCKETS
    assert "redouble_succeeded" not in dict(registry.found)


def test_prometheus_can_be_made_again_after_a_name_was_taken(registry):
    taken = sys.modules["prometheus_client"].Counter(
        "redouble_recovered", "somebody else's", [], registry=registry
    )
    with pytest.raises(ValueError, match="redouble_recovered"):
        metrics.Prometheus()
    registry.unregister(taken)
    metrics.Prometheus()(ended())
    assert registry.counted("redouble_recovered") == {("fetch",): [1]}


def test_exporters_that_are_made_at_once_share_their_instruments(registry, frequent_switches):
    made = in_threads(lambda _: metrics.Prometheus(), 8, fail=True)
    assert len({id(one._instruments) for one in made}) == 1


def test_threads_that_bring_new_names_at_once_use_up_one_slot_each(registry, frequent_switches):
    listener = metrics.Prometheus(max_names=10)
    in_threads(lambda _: [listener(ended(f"p{number}")) for number in range(9)], 8, fail=True)
    assert sorted(listener._numbers) == [f"p{number}" for number in range(9)]


def test_prometheus_has_successes_when_asked(registry):
    metrics.Prometheus()
    listener = metrics.Prometheus(successes=True)
    Policy(listeners=[listener], name="fetch").call(scripted("page"))
    assert registry.counted("redouble_succeeded") == {("fetch",): [1]}


def test_prometheus_bounds_its_labels(registry):
    listener = metrics.Prometheus(max_names=1)
    for name in ("a", "b", "c"):
        listener(ended(name))
    assert registry.counted("redouble_recovered") == {("a",): [1], (OTHER,): [1, 1]}


def test_prometheus_reads_guards_when_it_is_scraped(registry, clock):
    listener = metrics.Prometheus()
    budget, breaker = TokenBudget(capacity=10, name="purse"), CircuitBreaker(name="payments", clock=clock)
    listener.watch(budget, breaker)
    listener(CircuitChanged("search", before="closed", after="half-open"))
    listener(BackendChanged("purse", available=True))
    budget.acquire()
    assert registry.gauges() == {
        "redouble_budget_tokens": {("purse",): 5.0},
        "redouble_budget_capacity": {("purse",): 10.0},
        "redouble_breaker_state": {
            ("search", "closed"): 0.0,
            ("search", "open"): 0.0,
            ("search", "half-open"): 1.0,
            ("payments", "closed"): 1.0,
            ("payments", "open"): 0.0,
            ("payments", "half-open"): 0.0,
        },
        "redouble_store_available": {("purse",): 1.0},
    }


def test_two_adapters_of_one_registry_share_its_instruments(registry):
    one, other = metrics.Prometheus(), metrics.Prometheus(registry)
    budget = TokenBudget(name="purse")
    for listener in (one, other):
        listener.watch(budget)
        listener(ended())
    assert registry.counted("redouble_recovered") == {("fetch",): [1, 1]}
    assert registry.gauges()["redouble_budget_tokens"] == {("purse",): 500.0}
    elsewhere = Registry()
    metrics.Prometheus(elsewhere, buckets=[1, 2])(ended())
    assert elsewhere.counted("redouble_recovered") == {("fetch",): [1]}
    assert elsewhere["redouble_wait_seconds"].options["buckets"] == (1.0, 2.0)


@pytest.mark.slow
def test_an_adapter_that_is_gone_is_asked_no_more(registry):
    listener = metrics.Prometheus()
    listener(BackendChanged("purse", available=True))
    del listener
    gc.collect()
    assert registry.gauges()["redouble_store_available"] == {}


def test_adapters_of_one_registry_must_agree_on_buckets(registry):
    metrics.Prometheus()
    with pytest.raises(ValueError, match=r"buckets must be those .* got \(1.0,\)"):
        metrics.Prometheus(buckets=[1.0])


@pytest.mark.parametrize(
    "buckets", [[], [1.0, 1.0], [2, 1], [0.0], [float("inf")], [float("nan")], [True], "abc", 5]
)
def test_wrong_buckets_are_refused_before_anything_is_registered(registry, buckets):
    with pytest.raises((TypeError, ValueError), match="buckets must be"):
        metrics.Prometheus(buckets=buckets)
    assert registry.found == []


@pytest.mark.parametrize("adapter", [metrics.Prometheus, metrics.OpenTelemetry])
def test_a_missing_package_is_named_with_what_to_install(monkeypatch, adapter):
    for name in ("prometheus_client", "opentelemetry", "opentelemetry.metrics"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=f"metrics.{adapter.__name__} needs the package .* pip install"):
        adapter()


@pytest.mark.parametrize("adapter", [metrics.Prometheus, metrics.OpenTelemetry, Counters])
def test_every_listener_says_which_module_it_comes_from(adapter):
    assert adapter.__module__ == "redouble.metrics"


def test_prometheus_counts_dead_letters(registry):
    metrics.Prometheus()(DeadLettered(letter()))
    assert registry.counted("redouble_dead_lettered") == {("fetch",): [1]}
