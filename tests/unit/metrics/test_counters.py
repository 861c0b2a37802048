"""`Counters`: what is counted when, the limit on names, and that counting does no harm."""

from __future__ import annotations

import threading

import pytest

from conftest import watchdog
from redouble import CircuitOpen, DeadlineExceeded, events
from redouble.breaker import CircuitBreaker
from redouble.dead_letters import DeadLetters
from redouble.events import (
    BackendChanged,
    CircuitChanged,
    Discarded,
    Hedged,
    Reason,
    Refused,
    Succeeded,
)
from redouble.hedging import hedge
from redouble.metrics import Counters, Snapshot
from redouble.metrics._counts import OTHER
from redouble.testing import scripted
from support.events import ended, only
from support.programs import run_program


def test_a_call_that_recovers_counts_its_attempts_retries_waits_and_time(flavour, policy, counters):
    assert flavour.call(policy, flavour.scripted(TimeoutError(), TimeoutError(), "page")) == "page"
    counts = only(counters)
    assert (counts.calls, counts.attempts, counts.retries, counts.recovered, counts.failed) == (1, 3, 2, 1, 0)
    assert (counts.wait_seconds.count, counts.wait_seconds.total) == (2, 3.0)
    assert (counts.call_seconds.count, counts.call_seconds.total) == (1, 3.0)


def test_a_call_that_is_given_up_on_counts_by_its_reason(flavour, policy, counters):
    for failure, kind in ((TimeoutError(), TimeoutError), (KeyError("k"), KeyError)):
        with pytest.raises(kind):
            flavour.call(policy, flavour.scripted(*[failure] * 4))
    counts = only(counters)
    assert counts.gave_up == {"attempts": 1, "not_retryable": 1}
    assert (counts.calls, counts.attempts, counts.retries, counts.failed) == (2, 5, 3, 2)


def test_a_call_whose_time_is_up_counts_as_given_up_on_because_of_the_deadline(flavour, policy, counters):
    with pytest.raises(DeadlineExceeded):
        flavour.call(policy.replace(deadline=2.0), flavour.scripted(TimeoutError(), TimeoutError()))
    assert only(counters).gave_up == {"deadline": 1}
    assert only(counters).attempts == 2


def test_a_call_that_is_not_let_through_counts_as_refused_and_took_no_time(flavour, policy, counters, clock):
    breaker = CircuitBreaker(name="payments", clock=clock)
    breaker.open()
    with pytest.raises(CircuitOpen):
        flavour.call(policy.replace(breaker=breaker), flavour.scripted("page"))
    counts = only(counters)
    assert counts.refused == {"breaker": 1}
    assert (counts.calls, counts.attempts, counts.call_seconds.count) == (1, 0, 0)


def test_time_that_a_refused_call_spent_in_a_queue_is_not_the_time_of_a_call(counters):
    counters(ended(kind=Refused, attempt=0, elapsed=3.0, reason=Reason.bulkhead))
    assert only(counters).call_seconds.count == 0


def test_a_failure_before_which_nobody_read_the_clock_has_no_time(policy, counters):
    with pytest.raises(KeyError):
        policy.call(scripted(KeyError("k")))
    assert only(counters).call_seconds.count == 0


def test_a_success_at_the_first_try_is_counted_only_where_that_is_asked_for(flavour, policy, counters, clock):
    asked = Counters(successes=True)

    def body():
        clock.advance(0.2)
        return "page"

    for one in (counters, asked):
        flavour.call(policy.replace(listeners=[one]), flavour.function(body))
    assert counters.snapshot().policies == {}
    counts = only(asked)
    assert (counts.calls, counts.succeeded, counts.attempts) == (1, 1, 1)
    assert counts.call_seconds.total == pytest.approx(0.2)
    assert counts.success_rate == 1.0


def test_a_success_that_takes_no_time_is_a_call_all_the_same(policy):
    counters = Counters(successes=True)
    policy.replace(listeners=[counters]).call(scripted("page"))
    assert only(counters).call_seconds.counts[0] == 1


def test_a_success_that_was_not_asked_for_is_ignored(counters):
    counters(Succeeded("fetch", attempt=1, elapsed=0.1))
    assert counters.snapshot().policies == {}


def test_rates_need_the_successes(policy):
    counters = Counters(successes=True)
    policy = policy.replace(listeners=[counters])
    for script in (["page"], ["page"], [TimeoutError(), "page"], [KeyError("k")]):
        try:
            policy.call(scripted(*script))
        except KeyError:
            pass
    counts = only(counters)
    assert (counts.succeeded, counts.recovered, counts.calls) == (2, 1, 4)
    assert (counts.success_rate, counts.retries_per_call) == (0.75, 0.25)


def test_without_successes_there_is_no_rate_rather_than_a_wrong_one(policy, counters):
    policy.call(scripted(TimeoutError(), "page"))
    counts = only(counters)
    assert (counts.succeeded, counts.success_rate, counts.retries_per_call) == (None, None, None)


def test_with_successes_but_no_calls_there_is_no_rate():
    counters = Counters(successes=True)
    counters(Hedged("fetch", attempt=2, elapsed=0.1))
    assert (only(counters).success_rate, only(counters).retries_per_call) == (None, None)


def test_hedges_are_counted():
    counters = Counters()
    calls = iter([0.05, 0.0])
    pause = threading.Event()

    @hedge(after=0.005, listeners=[counters], name="search")
    def search():
        pause.wait(next(calls))
        return "found"

    assert search() == "found"
    assert counters.snapshot().policies["search"].hedged == 1


def test_dead_letters_are_counted_under_the_name_of_the_call(policy, counters, tmp_path):
    with pytest.raises(TimeoutError):
        policy.replace(dead_letters=DeadLetters(tmp_path / "letters"), attempts=1).call(
            scripted(TimeoutError())
        )
    counts = only(counters)
    assert (counts.dead_lettered, counts.gave_up) == (1, {"attempts": 1})


def test_dead_letters_that_are_thrown_away_are_counted_by_queue():
    counters = Counters(max_names=2)
    for queue, count in (("a", 2), ("b", 1), ("a", 3), ("c", 7), ("d", 1)):
        counters(Discarded(queue, count=count, why="purged"))
    assert counters.snapshot().discarded == {"a": 5, "b": 1, OTHER: 8}


def test_the_state_of_a_breaker_and_of_a_store_is_learned_from_events(counters):
    counters(CircuitChanged("payments", before="closed", after="open"))
    counters(BackendChanged("budget", available=False))
    counters(CircuitChanged("payments", before="open", after="half-open"))
    snapshot = counters.snapshot()
    assert snapshot.breakers == {"payments": "half-open"}
    assert snapshot.stores == {"budget": False}


def test_an_event_of_another_kind_is_ignored(counters):
    class Mine(events.Event):
        __slots__ = ()

    counters(Mine("fetch", attempt=1, elapsed=0.0))
    assert counters.snapshot() == Snapshot({}, {}, {}, {}, {})


def test_counters_that_subscribe_hear_of_every_policy_and_once(policy, counters, clock):
    unsubscribe = events.subscribe(counters)
    try:
        policy.call(scripted(TimeoutError(), "page"))
        policy.replace(listeners=(), name="other").call(scripted(TimeoutError(), "page"))
    finally:
        unsubscribe()
    policies = counters.snapshot().policies
    assert {name: counts.recovered for name, counts in policies.items()} == {"fetch": 1, "other": 1}


def test_beyond_the_limit_names_are_counted_together():
    counters = Counters(max_names=2)
    for name in ("a", "b", "c", "d", "a", "d"):
        counters(ended(name))
    assert {name: counts.recovered for name, counts in counters.snapshot().policies.items()} == {
        "a": 2,
        "b": 1,
        OTHER: 3,
    }


def test_beyond_the_limit_states_are_not_learned():
    counters = Counters(max_names=1)
    for name in ("a", "b"):
        counters(CircuitChanged(name, before="closed", after="open"))
    assert counters.snapshot().breakers == {"a": "open"}


@pytest.mark.parametrize("names", [0, -1, True, 1.5, "many"])
def test_a_wrong_limit_is_refused_by_name_and_value(names):
    with pytest.raises((TypeError, ValueError), match=rf"names must be .*, got {names!r}"):
        Counters(max_names=names)


@pytest.mark.parametrize("successes", [1, None, "yes"])
def test_successes_is_a_bool(successes):
    with pytest.raises(ValueError, match=f"successes must be one of True, False, got {successes!r}"):
        Counters(successes=successes)


def test_a_listener_that_raises_beside_counters_does_no_harm(policy, counters, caplog):
    def broken(event):
        raise RuntimeError("no")

    assert policy.replace(listeners=[broken, counters]).call(scripted(TimeoutError(), "page")) == "page"
    assert only(counters).recovered == 1
    assert "listener broken failed" in caplog.text


def test_a_listener_that_calls_the_decorated_function_again_is_counted_too(policy, counters):
    again = []

    @policy.replace(listeners=[lambda event: again or (again.append(event), fetch()), counters])
    def fetch():
        if len(again) < 1:
            raise TimeoutError
        return "page"

    with watchdog():
        assert fetch() == "page"
    assert only(counters).recovered == 1


def test_import_redouble_loads_no_metrics():
    code = (
        "import redouble, sys; print([name for name in sys.modules if 'metrics' in name or '_tally' in name])"
    )
    assert run_program(code) == "[]"


@pytest.mark.slow
def test_metrics_load_no_package_of_others_and_little_of_the_standard_library():
    code = """
        import sys
        sys.modules["prometheus_client"] = sys.modules["opentelemetry"] = None
        before = set(sys.modules)
        from redouble.metrics import Counters
        Counters().table()
        new = set(sys.modules) - before
        print([name for name in ("logging", "threading", "typing", "json", "re", "dataclasses") if name in new])
    """
    assert run_program(code) == "[]"
