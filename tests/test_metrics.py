"""Retries in figures: what is counted when, that it is exact under threads, and that it never does harm.

The adapters are tested here against small stand-ins of the packages they need, so that every line of them runs
without these; against the real ones they are tested in ``interop``.
"""

from __future__ import annotations

import copy
import gc
import json
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import redouble
from conftest import watchdog
from redouble import CircuitOpen, DeadlineExceeded, Policy, _guard, _opentelemetry, events, metrics
from redouble.backoff import exponential, fixed
from redouble.breaker import Breaker, CircuitBreaker
from redouble.budget import Budget, RatioBudget, TokenBudget
from redouble.bulkhead import Bulkhead
from redouble.deadletter import DeadLetters
from redouble.events import (
    CircuitChanged,
    DeadLettered,
    Discarded,
    Expired,
    GaveUp,
    Hedged,
    Reason,
    Recovered,
    Refused,
    Retrying,
    StoreChanged,
    Succeeded,
)
from redouble.hedging import hedge
from redouble.metrics import BUCKETS, OTHER, BudgetLevel, Counters, Counts, Distribution, Snapshot
from redouble.testing import scripted


@pytest.fixture
def counters():
    return Counters()


@pytest.fixture
def policy(clock, counters):
    return Policy(backoff=exponential, name="fetch", listeners=[counters], clock=clock, sleep=clock.sleep)


def only(counters):
    (counts,) = counters.snapshot().policies.values()
    return counts


class Unavailable(Exception):
    """Carries a status, as the errors of HTTP clients do."""

    status_code = 503


def ended(name="fetch", kind=Recovered, **fields):
    return kind(name, **{"attempt": 2, "elapsed": 1.0, **fields})


def letter(function="fetch"):
    return types.SimpleNamespace(
        function=function,
        queue="q",
        attempts=4,
        error_type="E",
        error_message="m",
        id="1",
        correlation_id=None,
    )


def run(code):
    """Runs a program in a new interpreter that finds this redouble, installed or not; gives its output."""
    found = Path(redouble.__file__).parent.parent
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)],
        env={**os.environ, "PYTHONPATH": str(found)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""
    return done.stdout


# What is counted when


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
    assert counts.refused == {"circuit": 1}
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
    counters = Counters(names=2)
    for queue, count in (("a", 2), ("b", 1), ("a", 3), ("c", 7), ("d", 1)):
        counters(Discarded(queue, count=count, why="purged"))
    assert counters.snapshot().discarded == {"a": 5, "b": 1, OTHER: 8}


def test_the_state_of_a_breaker_and_of_a_store_is_learned_from_events(counters):
    counters(CircuitChanged("payments", before="closed", after="open"))
    counters(StoreChanged("budget", available=False))
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


# Bounds


def test_beyond_the_limit_names_are_counted_together():
    counters = Counters(names=2)
    for name in ("a", "b", "c", "d", "a", "d"):
        counters(ended(name))
    assert {name: counts.recovered for name, counts in counters.snapshot().policies.items()} == {
        "a": 2,
        "b": 1,
        OTHER: 3,
    }


def test_beyond_the_limit_states_are_not_learned():
    counters = Counters(names=1)
    for name in ("a", "b"):
        counters(CircuitChanged(name, before="closed", after="open"))
    assert counters.snapshot().breakers == {"a": "open"}


def test_what_is_not_counted_yet_does_not_pile_up(counters):
    for _ in range(1000):
        counters(ended())
        assert len(counters._new) <= 257
    assert only(counters).recovered == 1000


def test_nobody_waits_while_another_counts(counters):
    held, go = threading.Event(), threading.Event()

    def hold():
        with counters._lock:
            counters._busy = True  # as in the middle of its counting
            held.set()
            go.wait(10)
            counters._busy = False

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(10)
    try:
        with watchdog(5):
            for _ in range(1000):
                counters(ended())
    finally:
        go.set()
        thread.join()
    assert only(counters).recovered == 1000


def test_an_interrupt_while_it_counts_leaves_no_lock_behind(counters):
    class Interrupt(BaseException):
        pass

    class Trap:
        def __hash__(self):
            raise Interrupt

    for _ in range(300):
        counters._new.append(Recovered(Trap(), attempt=2, elapsed=1.0))
    with pytest.raises(Interrupt):
        counters(ended())
    counters._new.clear()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(counters.snapshot).result(5)


# In a process of its own: a handler that runs within the measurement of coverage may stop that for good.
IN_A_HANDLER = """
    import signal
    from redouble import Policy
    from redouble.metrics import Counters

    calls, counters = [], Counters(successes=True)
    counted = Policy(listeners=[counters], name="fetch")

    def call(*_):
        calls.append(1)
        counted.call(str)

    signal.signal(signal.SIGALRM, call)
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    for _ in range(20_000):
        call()
    signal.setitimer(signal.ITIMER_REAL, 0)
    print(counters.snapshot().policies["fetch"].succeeded - len(calls), len(calls) > 20_000)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no such signals here")
def test_calls_of_a_signal_handler_are_counted_too():
    assert run(IN_A_HANDLER) == "0 True\n"


def test_the_figures_of_a_moment_cannot_be_changed(counters):
    counters(ended())
    taken = counters.snapshot()
    assert hash(taken) == hash(counters.snapshot())
    with pytest.raises(TypeError):
        taken.policies["fetch"] = None
    with pytest.raises(TypeError):
        taken.policies["fetch"].gave_up["attempts"] = 3


@pytest.mark.slow
def test_whoever_brings_far_too_many_waits_until_they_are_counted(counters):
    with counters._lock:
        for _ in range(20_000):
            counters._new.append(ended())
        started = threading.Event()

        def bring():
            started.set()
            counters(ended())

        thread = threading.Thread(target=bring)
        thread.start()
        started.wait(5)
        thread.join(0.02)
        assert thread.is_alive()
    thread.join(5)
    assert not counters._new
    assert only(counters).recovered == 20_001


@pytest.mark.parametrize("names", [0, -1, True, 1.5, "many"])
def test_a_wrong_limit_is_refused_by_name_and_value(names):
    with pytest.raises((TypeError, ValueError), match=rf"names must be .*, got {names!r}"):
        Counters(names=names)


@pytest.mark.parametrize("successes", [1, None, "yes"])
def test_successes_is_a_bool(successes):
    with pytest.raises(ValueError, match=f"successes must be one of True, False, got {successes!r}"):
        Counters(successes=successes)


# Distributions


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


# Guards


def test_a_policy_watches_its_budget_and_its_breaker(counters, clock):
    budget, breaker = TokenBudget(capacity=10, name="payments"), CircuitBreaker(name="payments", clock=clock)
    counters.watch(Policy(budget=budget, breaker=breaker), Policy())
    budget.acquire()
    breaker.open()
    snapshot = counters.snapshot()
    assert snapshot.budgets == {"payments": BudgetLevel(5.0, 10.0)}
    assert snapshot.breakers == {"payments": "open"}
    breaker.close()
    assert counters.snapshot().breakers == {"payments": "closed"}


def test_what_is_watched_is_read_rather_than_remembered(counters, clock):
    breaker = CircuitBreaker(failures=1, open_for=5.0, name="payments", listeners=[counters], clock=clock)
    counters.watch(breaker)
    breaker.failure(breaker.enter(), TimeoutError())
    assert counters.snapshot().breakers == {"payments": "open"}
    clock.advance(5.0)  # no event: nobody has called yet
    assert counters.snapshot().breakers == {"payments": "half-open"}


def test_a_budget_without_a_capacity_has_none(counters, clock):
    budget = RatioBudget(floor_per_second=1, clock=clock, name="ratio")
    counters.watch(budget)
    assert counters.snapshot().budgets == {"ratio": BudgetLevel(10.0, None)}


def test_two_guards_of_one_name_are_kept_apart_and_one_is_watched_once(counters):
    budgets = [TokenBudget(capacity=capacity) for capacity in (1, 2, 3)]
    counters.watch(*budgets, *budgets)
    assert {name: level.capacity for name, level in counters.snapshot().budgets.items()} == {
        "TokenBudget": 1.0,
        "TokenBudget-2": 2.0,
        "TokenBudget-3": 3.0,
    }


@pytest.mark.slow
def test_a_guard_is_not_kept_alive_by_being_watched(counters):
    budget = TokenBudget(name="brief")
    counters.watch(budget)
    del budget
    gc.collect()
    assert counters.snapshot().budgets == {}
    again = TokenBudget(name="brief")
    counters.watch(again)
    assert list(counters.snapshot().budgets) == ["brief"]


def test_no_more_guards_are_watched_than_names_are_counted(caplog):
    counters = Counters(names=1)
    budgets = [TokenBudget(name=name) for name in "abc"]
    counters.watch(*budgets)
    assert list(counters.snapshot().budgets) == ["a"]
    assert [record.getMessage() for record in caplog.records] == [
        "Counters watches 1 guards already, which is its limit: no more (said once)"
    ]


@pytest.mark.parametrize("thing", [Bulkhead(3), "payments", None, TokenBudget])
def test_only_policies_budgets_and_breakers_are_watched(counters, thing):
    with pytest.raises(TypeError, match="watch takes policies, budgets and breakers, got"):
        counters.watch(TokenBudget(), thing)
    assert counters.snapshot().budgets == {}


class Awkward(Budget):
    """A budget of the user's own."""

    def __init__(self, tokens):
        super().__init__(name="awkward")
        self._say = tokens

    @property
    def tokens(self):
        return self._say()


def raises():
    raise RuntimeError("no idea")


async def later():
    return 5.0


class Awaitable:
    def __await__(self):
        yield


@pytest.mark.slow
@pytest.mark.parametrize(
    "say", [raises, later, Awaitable, lambda: "many", lambda: float("nan"), lambda: None]
)
def test_a_budget_that_cannot_be_read_is_left_out_and_the_rest_is_not(counters, say):
    sound, awkward = TokenBudget(name="sound"), Awkward(say)
    counters.watch(awkward, sound)
    assert list(counters.snapshot().budgets) == ["sound"]
    gc.collect()  # a coroutine that nobody awaited would be said here


class OwnBreaker(Breaker):
    """A breaker of the user's own, which knows only whether it refuses."""

    def __init__(self, answer):
        super().__init__("own")
        self._answer = answer

    def refuses(self):
        return self._answer()


@pytest.mark.parametrize(
    ("answer", "state"),
    [(lambda: True, {"own": "open"}), (lambda: False, {"own": "closed"}), (raises, {}), (later, {})],
)
def test_a_breaker_of_ones_own_is_open_when_it_refuses(counters, answer, state):
    breaker = OwnBreaker(answer)
    counters.watch(breaker)
    assert counters.snapshot().breakers == state


def test_a_budget_that_knows_its_capacity_only_is_shown_so(counters):
    budget = Awkward(raises)
    budget.capacity = 7.0
    counters.watch(budget)
    snapshot = counters.snapshot()
    assert snapshot.budgets == {"awkward": BudgetLevel(None, 7.0)}
    assert snapshot.table() == "budget   tokens\nawkward  ? of 7"


def test_a_shared_guard_says_whether_its_store_answers(counters):
    budget = Awkward(lambda: 3.0)
    budget.available = True
    counters.watch(budget)
    assert counters.snapshot().stores == {"awkward": True}


# Snapshots


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
    counters(StoreChanged("payments", available=False))
    return counters.snapshot()


def test_a_snapshot_is_plain_data_that_json_can_write(clock):
    snapshot = full_snapshot(clock)
    data = json.loads(json.dumps(snapshot.as_dict(), allow_nan=False))
    fetch = data["policies"]["orders.fetch"]
    assert {key: fetch[key] for key in ("calls", "succeeded", "recovered", "gave_up", "refused")} == {
        "calls": 5,
        "succeeded": 2,
        "recovered": 1,
        "gave_up": {"circuit": 1},
        "refused": {"circuit": 1},
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
        "payments  away",
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


# Sharing


@pytest.mark.slow
def test_counters_are_exact_under_64_threads(clock):
    counters = Counters(successes=True)
    policy = Policy(base=0.0, listeners=[counters])
    barrier = threading.Barrier(64)

    def work(number):
        mine = policy.replace(name=f"worker-{number % 4}")
        barrier.wait(30)
        for _ in range(25):
            mine.call(scripted("page"))
            mine.call(scripted(TimeoutError(), "page"))
            with pytest.raises(KeyError):
                mine.call(scripted(KeyError("k")))

    with ThreadPoolExecutor(64) as pool:
        list(pool.map(work, range(64)))
    policies = counters.snapshot().policies
    assert sorted(policies) == [f"worker-{number}" for number in range(4)]
    for counts in policies.values():
        assert (counts.succeeded, counts.recovered, counts.gave_up) == (400, 400, {"not_retryable": 400})
        assert (counts.attempts, counts.retries, counts.calls) == (1600, 400, 1200)
        assert counts.wait_seconds.count == 400


def test_a_snapshot_is_consistent_while_threads_count():
    counters, done = Counters(), threading.Event()

    def work():
        while not done.is_set():
            counters(ended(attempt=3))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(10):
            for counts in counters.snapshot().policies.values():
                assert counts.attempts == 3 * counts.recovered
                assert counts.call_seconds.count == counts.recovered
    finally:
        done.set()
        for thread in threads:
            thread.join()


def test_names_are_bounded_also_when_threads_bring_them_at_once():
    kept = metrics.Bounded(8, lambda name: object())
    barrier = threading.Barrier(16)

    def work(number):
        barrier.wait(30)
        return [kept.get(f"{number}-{name}") for name in range(50)]

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(work, range(16)))
    assert len(kept.kept) == 9
    assert OTHER in kept.kept


def test_who_comes_back_in_the_middle_of_counting_is_counted_later_and_once(counters, monkeypatch):
    # As a signal handler would, or a finalizer that the collector runs: in the same thread.
    count, inside = metrics.Counting._hear, []

    def hear(self, event):
        if not inside:
            inside.append(True)
            for _ in range(300):
                self(ended("handler"))
            inside.append(self.snapshot())
        count(self, event)

    monkeypatch.setattr(metrics.Counting, "_hear", hear)
    with watchdog():
        for _ in range(257):
            counters(ended())
    policies = counters.snapshot().policies
    assert {name: counts.recovered for name, counts in policies.items()} == {"fetch": 257, "handler": 300}
    assert inside[1].policies == {}


def test_who_comes_back_in_the_middle_of_a_snapshot_does_not_change_it(counters, monkeypatch):
    counters(ended())
    before = Counts.__init__

    def interrupted(self, *args, **kwargs):
        for _ in range(300):
            counters(ended("handler"))
        before(self, *args, **kwargs)

    monkeypatch.setattr(Counts, "__init__", interrupted)
    with watchdog():
        assert {name: counts.recovered for name, counts in counters.snapshot().policies.items()} == {
            "fetch": 1
        }
    monkeypatch.undo()
    assert counters.snapshot().policies["handler"].recovered == 300


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no interval timers on this system")
def test_a_signal_handler_that_counts_and_looks_neither_hangs_nor_counts_twice(counters):
    handled = []

    def handler(*_):
        counters(ended("handler"))
        handled.append(counters.snapshot())

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    try:
        brought = 0
        while len(handled) < 20:
            counters(ended())
            brought += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    policies = counters.snapshot().policies
    assert policies["fetch"].recovered == brought
    assert policies["handler"].recovered == len(handled)


def test_an_interrupt_in_the_middle_of_counting_leaves_counters_that_count(counters, monkeypatch):
    count = metrics.Counting._hear

    def interrupted(self, event):
        raise KeyboardInterrupt

    monkeypatch.setattr(metrics.Counting, "_hear", interrupted)
    counters(ended())
    with pytest.raises(KeyboardInterrupt):
        counters.snapshot()
    monkeypatch.setattr(metrics.Counting, "_hear", count)
    counters(ended())
    assert only(counters).recovered == 1


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_counts_on_though_a_thread_was_counting_in_the_parent():
    code = """
        import os, sys, threading
        from redouble.events import Recovered
        from redouble.metrics import Counters
        counters = Counters()
        event = Recovered("fetch", attempt=2, elapsed=1.0)
        counters(event)
        held, go = threading.Event(), threading.Event()
        def hold():
            with counters._lock:
                counters._busy = True
                held.set()
                go.wait(10)
        thread = threading.Thread(target=hold)
        thread.start()
        held.wait(10)
        child = os.fork()
        if not child:
            for _ in range(300):
                counters(event)
            os._exit(0 if counters.snapshot().policies["fetch"].recovered == 301 else 1)
        go.set()
        thread.join()
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    assert run(code) == "0\n"


def test_in_a_forked_child_nobody_is_counting_any_more(counters):
    counters._busy = True
    _guard._after_fork()
    counters(ended())
    assert only(counters).recovered == 1


def test_counters_compare_by_identity_copy_to_themselves_and_say_what_they_hold(counters):
    assert copy.copy(counters) is counters is copy.deepcopy(counters)
    assert counters != Counters()
    counters(ended())
    counters.snapshot()
    assert repr(counters) == "<Counters of 1 policies>"


def test_a_policy_with_counters_refuses_to_be_pickled_and_says_what_to_do(policy):
    with pytest.raises(
        TypeError, match=r"Counters counts .* cannot be pickled: send policy.replace\(listeners=\(\)\)"
    ):
        pickle.dumps(policy)
    assert pickle.loads(pickle.dumps(policy.replace(listeners=(), clock=None, sleep=None))).name == "fetch"


# No harm


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
    assert run(code) == "[]\n"


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
    assert run(code) == "[]\n"


# Prometheus, with a stand-in


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
    assert registry.counted("redouble_refused") == {("fetch", "circuit"): [], ("fetch", "bulkhead"): []}
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


def in_eight_threads(function):
    """Runs it in each, with as many switches between them as can be."""
    threads = [threading.Thread(target=function) for _ in range(8)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)


def test_adapters_that_are_made_at_once_share_their_instruments(registry):
    made, go = [], threading.Barrier(8, timeout=10)

    def make():
        go.wait()
        made.append(metrics.Prometheus())

    in_eight_threads(make)
    assert len({id(one._instruments) for one in made}) == 1
    assert len(made) == 8


def test_threads_that_meet_new_names_at_once_lose_no_place(registry):
    listener, go = metrics.Prometheus(names=10), threading.Barrier(8, timeout=10)

    def hear():
        go.wait()
        for number in range(9):
            listener(ended(f"p{number}"))

    in_eight_threads(hear)
    assert sorted(listener._counted.kept) == [f"p{number}" for number in range(9)]


def test_prometheus_has_successes_when_asked(registry):
    metrics.Prometheus()
    listener = metrics.Prometheus(successes=True)
    Policy(listeners=[listener], name="fetch").call(scripted("page"))
    assert registry.counted("redouble_succeeded") == {("fetch",): [1]}


def test_prometheus_bounds_its_labels(registry):
    listener = metrics.Prometheus(names=1)
    for name in ("a", "b", "c"):
        listener(ended(name))
    assert registry.counted("redouble_recovered") == {("a",): [1], (OTHER,): [1, 1]}


def test_prometheus_reads_guards_when_it_is_scraped(registry, clock):
    listener = metrics.Prometheus()
    budget, breaker = TokenBudget(capacity=10, name="purse"), CircuitBreaker(name="payments", clock=clock)
    listener.watch(budget, breaker)
    listener(CircuitChanged("search", before="closed", after="half-open"))
    listener(StoreChanged("purse", available=True))
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
    listener(StoreChanged("purse", available=True))
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


# OpenTelemetry, with a stand-in


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
    listeners[0](StoreChanged("purse", available=False))
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
        (ended(kind=Refused, attempt=0, reason=Reason.circuit), "refused"),
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


def test_dead_letters_and_hedges_reach_the_adapters(telemetry, registry):
    for listener in (metrics.OpenTelemetry(), metrics.Prometheus()):
        listener(DeadLettered(letter()))
    assert telemetry.meter.found["redouble.dead_lettered"].seen == [(1, NAMED)]
    assert registry.counted("redouble_dead_lettered") == {("fetch",): [1]}
