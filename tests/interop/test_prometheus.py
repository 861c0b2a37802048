"""`metrics.Prometheus` with the real ``prometheus_client``: the page ``/metrics``."""

from __future__ import annotations

import subprocess
import sys
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest

from redouble import CircuitOpen, Policy
from redouble.backoff import exponential
from redouble.breaker import CircuitBreaker
from redouble.budget import TokenBudget
from redouble.metrics import Prometheus
from redouble.metrics._counts import BUCKETS
from redouble.testing import FakeClock, scripted

pytest.importorskip(
    "prometheus_client", reason="prometheus_client is not installed; the extra 'interop' is needed"
)

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.parser import text_string_to_metric_families

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Page = dict[tuple[str, frozenset[tuple[str, str]]], float]


class Scraped:
    """A page of metrics, parsed."""

    def __init__(self, text: str) -> None:
        self.families = {family.name: family for family in text_string_to_metric_families(text)}
        samples = [sample for family in self.families.values() for sample in family.samples]
        self._values = {(sample.name, *sorted(sample.labels.items())): sample.value for sample in samples}
        assert len(self._values) == len(samples), "a series that is there twice"

    def __call__(self, name: str, **labels: str) -> float | None:
        return self._values.get((name, *sorted(labels.items())))

    def names(self) -> set[str]:
        return {name for name, *_ in self._values}


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def scrape(registry: CollectorRegistry) -> Iterator[Callable[[], Scraped]]:
    """Read the page of the registry over HTTP."""
    server, thread = start_http_server(0, addr="127.0.0.1", registry=registry)

    def read() -> Scraped:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/metrics", timeout=10) as page:
            return Scraped(page.read().decode())

    try:
        yield read
    finally:
        server.shutdown()
        server.server_close()
        thread.join(60)


def policy_with(listener: Any, clock: FakeClock, **fields: Any) -> Policy:
    return Policy(
        **{
            "backoff": exponential,
            "name": "fetch",
            "listeners": [listener],
            "clock": clock,
            "sleep": clock.sleep,
            **fields,
        }
    )


def test_a_scrape_shows_what_policies_have_done(
    registry: CollectorRegistry, scrape: Any, clock: FakeClock
) -> None:
    policy = policy_with(Prometheus(registry, successes=True), clock)
    policy.call(scripted("page"))
    policy.call(scripted(TimeoutError(), TimeoutError(), "page"))
    with pytest.raises(TimeoutError):
        policy.call(scripted(*[TimeoutError("password=hunter2")] * 4))
    page = scrape()
    assert page("redouble_attempts_total", policy="fetch") == 8
    assert page("redouble_retries_total", policy="fetch") == 5
    assert page("redouble_succeeded_total", policy="fetch") == 1
    assert page("redouble_recovered_total", policy="fetch") == 1
    assert page("redouble_gave_up_total", policy="fetch", reason="attempts") == 1
    assert page("redouble_hedged_total", policy="fetch") == 0
    assert page("redouble_wait_seconds_sum", policy="fetch") == 3.0 + 7.0
    assert page("redouble_wait_seconds_bucket", policy="fetch", le="1.0") == 2
    assert page("redouble_wait_seconds_bucket", policy="fetch", le="2.5") == 4
    assert page("redouble_call_seconds_count", policy="fetch") == 3
    assert page("redouble_call_seconds_bucket", policy="fetch", le="+Inf") == 3
    bounds = [
        sample.labels["le"]
        for sample in page.families["redouble_call_seconds"].samples
        if "le" in sample.labels
    ]
    assert [float(bound) for bound in bounds] == [*BUCKETS, float("inf")]
    assert {family.type for family in page.families.values()} >= {"counter", "histogram", "gauge"}
    assert all(
        family.documentation for name, family in page.families.items() if not name.endswith("_created")
    )


def test_the_gauges_are_those_of_the_moment_of_the_scrape(
    registry: CollectorRegistry, scrape: Any, clock: FakeClock
) -> None:
    listener = Prometheus(registry)
    budget = TokenBudget(capacity=100, cost=5, name="purse")
    breaker = CircuitBreaker(failures=1, open_for=30.0, name="payments", clock=clock)
    policy = policy_with(listener, clock, budget=budget, breaker=breaker)
    listener.watch(policy)
    page = scrape()
    assert page("redouble_budget_tokens", budget="purse") == 100
    assert page("redouble_breaker_state", breaker="payments", state="closed") == 1
    with pytest.raises(TimeoutError):
        policy.call(scripted(TimeoutError()))
    with pytest.raises(CircuitOpen):
        policy.call(scripted("page"))
    page = scrape()
    states = [
        page("redouble_breaker_state", breaker="payments", state=state)
        for state in ("closed", "open", "half-open")
    ]
    assert states == [0, 1, 0]
    assert page("redouble_refused_total", policy="fetch", reason="breaker") == 1
    clock.advance(30.0)
    assert scrape()("redouble_breaker_state", breaker="payments", state="half-open") == 1
    budget.acquire()
    assert scrape()("redouble_budget_tokens", budget="purse") == 95


def test_two_adapters_on_one_registry_are_one_page(
    registry: CollectorRegistry, scrape: Any, clock: FakeClock
) -> None:
    listeners = [Prometheus(registry), Prometheus(registry, successes=True)]
    budget = TokenBudget(name="purse")
    for listener in listeners:
        listener.watch(budget)
        policy_with(listener, clock).call(scripted(TimeoutError(), "page"))
    page = scrape()
    assert page("redouble_recovered_total", policy="fetch") == 2
    assert page("redouble_budget_tokens", budget="purse") == 500


def test_names_beyond_the_limit_share_a_label(
    registry: CollectorRegistry, scrape: Any, clock: FakeClock
) -> None:
    listener = Prometheus(registry, max_names=2)
    for number in range(5):
        policy_with(listener, clock, name=f"tenant-{number}").call(scripted(TimeoutError(), "page"))
    page = scrape()
    assert page("redouble_recovered_total", policy="(other)") == 3
    assert page("redouble_recovered_total", policy="tenant-1") == 1
    assert page("redouble_recovered_total", policy="tenant-2") is None


def test_a_name_with_quotes_and_line_ends_comes_back_as_it_was(
    registry: CollectorRegistry, scrape: Any, clock: FakeClock
) -> None:
    name = 'a "name"\\with\nall'
    policy_with(Prometheus(registry), clock, name=name).call(scripted(TimeoutError(), "page"))
    assert scrape()("redouble_recovered_total", policy=name) == 1


def test_without_a_registry_it_is_the_default_one(clock: FakeClock) -> None:
    from prometheus_client import REGISTRY

    policy_with(Prometheus(), clock, name="default").call(scripted(TimeoutError(), "page"))
    assert REGISTRY.get_sample_value("redouble_recovered_total", {"policy": "default"}) == 1


PROCESSES = """
import multiprocessing, os, sys
from prometheus_client import CollectorRegistry, generate_latest, multiprocess
from redouble import Policy
from redouble.breaker import CircuitBreaker
from redouble.metrics import Prometheus
from redouble.testing import scripted

listener = Prometheus(successes=True)
policy = Policy(base=0.0, name="fetch", listeners=[listener])

def work(calls):
    for _ in range(calls):
        policy.call(scripted("page"))
        policy.call(scripted(TimeoutError(), "page"))

if __name__ == "__main__":
    work(1)  # before the fork: what a child inherits must not be counted twice
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=work, args=(number,)) for number in (2, 3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(30)
    registry = CollectorRegistry()
    multiprocess.MultiProcessCollector(registry)
    sys.stdout.write(generate_latest(registry).decode())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="processes are not forked there")
def test_processes_are_added_up_in_multi_process_mode(tmp_path: Any) -> None:
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROCESSES],
        env={"PROMETHEUS_MULTIPROC_DIR": str(tmp_path), "PYTHONPATH": ":".join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.stderr == ""
    page = Scraped(run.stdout)
    assert page("redouble_succeeded_total", policy="fetch") == 6
    assert page("redouble_recovered_total", policy="fetch") == 6
    assert page("redouble_attempts_total", policy="fetch") == 18
    assert page("redouble_call_seconds_count", policy="fetch") == 12
    assert page("redouble_wait_seconds_bucket", policy="fetch", le="0.001") == 6
