"""`Counters` between threads, signal handlers, interrupts and forks."""

from __future__ import annotations

import copy
import os
import pickle
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from conftest import watchdog
from redouble import Policy, metrics
from redouble._guards import base as _guard
from redouble.events import (
    Recovered,
)
from redouble.metrics import (
    Counters,
    Counts,
)
from redouble.testing import scripted
from support.events import ended, only
from support.programs import run_program


def test_an_interrupt_while_it_counts_leaves_no_lock_behind(counters):
    class Interrupt(BaseException):
        pass

    class Trap:
        def __hash__(self):
            raise Interrupt

    for _ in range(300):
        counters._pending.append(Recovered(Trap(), attempt=2, elapsed=1.0))
    with pytest.raises(Interrupt):
        counters(ended())
    counters._pending.clear()
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
    assert run_program(IN_A_HANDLER, "-W", "ignore") == "0 True"


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


def test_who_comes_back_in_the_middle_of_counting_is_counted_later_and_once(counters, monkeypatch):
    # As a signal handler would, or a finalizer that the collector runs: in the same thread.
    count, inside = metrics.Counting._count, []

    def hear(self, event):
        if not inside:
            inside.append(True)
            for _ in range(300):
                self(ended("handler"))
            inside.append(self.snapshot())
        count(self, event)

    monkeypatch.setattr(metrics.Counting, "_count", hear)
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
    count = metrics.Counting._count

    def interrupted(self, event):
        raise KeyboardInterrupt

    monkeypatch.setattr(metrics.Counting, "_count", interrupted)
    with pytest.raises(KeyboardInterrupt):
        counters(ended())
    monkeypatch.setattr(metrics.Counting, "_count", count)
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
                counters._counting = True
                held.set()
                go.wait(60)
        thread = threading.Thread(target=hold)
        thread.start()
        held.wait(60)
        child = os.fork()
        if not child:
            for _ in range(300):
                counters(event)
            os._exit(0 if counters.snapshot().policies["fetch"].recovered == 301 else 1)
        go.set()
        thread.join()
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    assert run_program(code, "-W", "ignore") == "0"


def test_in_a_forked_child_nobody_is_counting_any_more(counters):
    counters._counting = True
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
