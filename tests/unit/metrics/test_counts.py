"""Records of a snapshot: distributions, tables and plain data."""

from __future__ import annotations

import json
import pickle

import pytest

from redouble import CircuitOpen, Policy
from redouble.backoff import fixed
from redouble.breaker import CircuitBreaker
from redouble.budget import TokenBudget
from redouble.events import (
    BackendChanged,
    Discarded,
    GaveUp,
    Reason,
    Retrying,
)
from redouble.metrics import Counters, Counts, Distribution
from redouble.metrics._counts import BUCKETS
from redouble.testing import scripted
from support.events import ended, only


def test_the_figures_of_a_moment_cannot_be_changed(counters):
    counters(ended())
    taken = counters.snapshot()
    assert hash(taken) == hash(counters.snapshot())
    with pytest.raises(TypeError):
        taken.policies["fetch"] = None
    with pytest.raises(TypeError):
        taken.policies["fetch"].gave_up["attempts"] = 3


def test_a_quantile_is_spread_evenly_within_its_bucket():
    took = Distribution((1.0, 2.0, 4.0), (0, 10, 10, 0), total=45.0, largest=4.0)
    assert [took.quantile(q) for q in (0.25, 0.5, 0.75, 1.0)] == [1.5, 2.0, 3.0, 4.0]
    assert (took.count, took.mean) == (20, 2.25)


def test_a_quantile_is_never_above_the_largest():
    took = Distribution((1.0, 10.0), (0, 4, 0), total=8.0, largest=2.0)
    assert took.quantile(1.0) == 2.0
    assert took.quantile(0.5) == 1.5


def test_a_quantile_beyond_all_buckets_lies_between_the_last_bound_and_the_largest():
    took = Distribution((1.0,), (0, 2), total=20.0, largest=11.0)
    assert took.quantile(0.5) == 6.0


def test_a_quantile_of_nothing_is_none():
    took = Distribution((1.0,), (0, 0), total=0.0, largest=0.0)
    assert (took.quantile(0.5), took.mean, took.count) == (None, None, 0)


def test_a_rank_that_falls_short_by_rounding_is_the_largest():
    took = Distribution((1.0, 2.0), (1, 2, 0), total=5.0, largest=2.0)
    took_more = Distribution((1.0,), (3, 0), total=1.0, largest=0.5)
    assert took.quantile(1.0) == 2.0
    assert took_more.quantile(1.0) == 0.5


@pytest.mark.parametrize("q", [0, -0.5, 1.5, float("nan"), True])
def test_a_share_that_is_none_is_refused(q):
    with pytest.raises(ValueError, match="q must be"):
        Distribution((1.0,), (1, 0), total=1.0, largest=1.0).quantile(q)


def test_a_time_falls_into_the_bucket_whose_bound_it_does_not_pass(counters):
    for delay in (0.0, 0.001, 121.0, 0.0011, 120.0):
        counters(Retrying("fetch", attempt=1, elapsed=0.0, delay=delay))
    waits = only(counters).wait_seconds
    assert waits.counts == (2, 1, *[0] * 13, 1, 1)
    assert (waits.bounds, waits.largest) == (BUCKETS, 121.0)


def test_a_retry_without_a_delay_waits_no_time(counters):
    counters(Retrying("fetch", attempt=1, elapsed=0.0))
    assert only(counters).wait_seconds.counts[0] == 1


def full_snapshot(clock):
    counters = Counters(successes=True)
    budget, breaker = TokenBudget(name="payments"), CircuitBreaker(failures=2, name="payments", clock=clock)
    policy = Policy(
        name="orders.fetch", backoff=fixed, listeners=[counters], budget=budget, breaker=breaker,
        clock=clock, sleep=clock.sleep,
    )  # fmt: skip
    for script in (["page"], ["page"], [TimeoutError(), "page"], [TimeoutError(), TimeoutError()], ["page"]):
        try:
            policy.call(scripted(*script))
        except (TimeoutError, CircuitOpen):
            pass
    counters.watch(policy)
    counters(ended("orders.store", elapsed=0.03))
    counters(Discarded("critical", count=2, why="limit"))
    counters(BackendChanged("payments", available=False))
    return counters.snapshot()


def test_a_snapshot_is_plain_data_that_json_can_write(clock):
    snapshot = full_snapshot(clock)
    data = json.loads(json.dumps(snapshot.as_dict(), allow_nan=False))
    fetch = data["policies"]["orders.fetch"]
    assert {key: fetch[key] for key in ("calls", "succeeded", "recovered", "gave_up", "refused")} == {
        "calls": 5,
        "succeeded": 2,
        "recovered": 1,
        "gave_up": {"breaker": 1},
        "refused": {"breaker": 1},
    }
    assert fetch["success_rate"] == pytest.approx(0.6)
    assert fetch["wait_seconds"]["sum"] == 2.0
    assert set(fetch["call_seconds"]) == {"count", "sum", "max", "p50", "p95", "p99", "bounds", "counts"}
    assert data["budgets"] == {"payments": {"tokens": 490.0, "capacity": 500.0}}
    assert (data["breakers"], data["stores"]) == ({"payments": "open"}, {"payments": False})
    assert data["discarded"] == {"critical": 2}


def test_a_snapshot_changes_no_more(counters):
    counters(ended(kind=GaveUp, reason=Reason.attempts))
    counters(Discarded("q", count=1, why="limit"))
    before = counters.snapshot()
    kept = before.as_dict()
    counters(ended(kind=GaveUp, reason=Reason.attempts))
    counters(Discarded("q", count=1, why="limit"))
    assert counters.snapshot() != before
    assert before.as_dict() == kept
    with pytest.raises(AttributeError, match="Snapshot is immutable"):
        before.policies = {}


def test_a_snapshot_pickles_and_compares(clock):
    snapshot = full_snapshot(clock)
    again = pickle.loads(pickle.dumps(snapshot))
    assert again == snapshot
    assert {type(part).__module__ for part in (again, *again.policies.values(), *again.budgets.values())} == {
        "redouble.metrics"
    }
    assert isinstance(again.policies["orders.fetch"], Counts)


def test_the_table_is_for_people(clock):
    assert full_snapshot(clock).table().splitlines() == [
        "policy        calls  first try  recovered  gave up  refused  success  retries/call      p50      p99  waited",
        "orders.fetch      5          2          1        1        1   60.0 %          0.40     1 ms   990 ms     2 s",
        "orders.store      1          0          1        0        0  100.0 %          0.00  27.5 ms  29.9 ms       -",
        "",
        "budget        tokens",
        "payments  490 of 500",
        "",
        "breaker   state",
        "payments   open",
        "",
        "store       is",
        "payments  down",
    ]


def test_long_times_are_shown_in_whole_seconds_and_unknown_ones_as_a_dash(counters):
    counters(ended(elapsed=250.4))
    counters(ended("unknown", elapsed=0.0))
    assert counters.table().splitlines() == [
        "policy   calls  recovered  gave up  refused    p50    p99  waited",
        "fetch        1          1        0        0  185 s  249 s       -",
        "unknown      1          1        0        0      -      -       -",
    ]


def test_without_successes_the_table_has_no_columns_for_them(counters, policy):
    policy.call(scripted(TimeoutError(), "page"))
    assert counters.table().splitlines() == [
        "policy  calls  recovered  gave up  refused     p50     p99  waited",
        "fetch       1          1        0        0  750 ms  995 ms     1 s",
    ]


def test_an_empty_table_says_so(counters):
    assert counters.table() == "nothing counted yet"


def test_names_play_no_tricks_on_a_terminal_and_wide_letters_count_twice(counters):
    counters(ended("\x1b[31m"))
    counters(ended("東京"))
    lines = counters.table().splitlines()
    assert lines[1].startswith("\\x1b[31m      1")
    assert lines[2].startswith("東京          1")


def test_reset_begins_again_at_0_and_still_watches(counters):
    budget = TokenBudget(name="payments")
    counters.watch(budget)
    for _ in range(2):
        counters(ended())
        counters(Discarded("q", count=1, why="limit"))
        counters.snapshot()
    counters(ended())
    counters(Discarded("q", count=1, why="limit"))
    counters.reset()
    snapshot = counters.snapshot()
    assert (snapshot.policies, snapshot.discarded) == ({}, {})
    assert list(snapshot.budgets) == ["payments"]
    counters(ended())
    assert only(counters).recovered == 1
