"""Shared objects on a free-threaded CPython, whose threads run in parallel.

.ci/interpreters runs this on a free-threaded build, together with the suite's tests of threads.
"""

from __future__ import annotations

import sys
import threading
import time

import pytest

from conftest import watchdog
from redouble import Policy, current_attempt, retry
from redouble.backoff import fixed
from redouble.breaker import CircuitBreaker
from redouble.budget import RatioBudget, TokenBudget
from redouble.bulkhead import Bulkhead
from redouble.events import Recovered
from redouble.hedging import Latencies, hedge, quantile
from redouble.metrics import Counters
from redouble.registry import Registry
from redouble.testing import scripted
from redouble.throttle import AdaptiveThrottle

THREADS = 8


def repeat_in_threads(*bodies, seconds=0.3):
    """Call each body repeatedly in its own thread for some time; raise the first error."""
    began, errors = threading.Barrier(len(bodies)), []

    def run(body):
        began.wait()
        ends = time.monotonic() + seconds
        try:
            while time.monotonic() < ends and not errors:
                body()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(body,)) for body in bodies]
    with watchdog():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if errors:
        raise errors[0]


def test_there_is_no_lock_around_this_interpreter():
    assert not sys._is_gil_enabled()


def test_latencies_are_read_while_others_are_added():
    latencies = Latencies(quantile(0.5, initial=9.0, of_last=100))
    for _ in range(100):
        latencies.add(2.0)

    def read():
        assert latencies.delay() == 2.0

    repeat_in_threads(*[lambda: latencies.add(2.0)] * 4, *[read] * 4)
    assert len(latencies._last) == 100


def test_calls_are_counted_while_others_are_added():
    breaker = CircuitBreaker(failure_rate=1.0, last_calls=1000, minimum_calls=1000)

    def read():
        calls, failures = breaker.counted
        assert 0 <= failures <= calls <= 1000

    repeat_in_threads(*[breaker.success] * 4, breaker.failure, *[read] * 3)


@pytest.mark.parametrize("fields", [{"window": 1e6}, {"last_calls": 10**6}], ids=["time", "count"])
def test_no_call_is_lost_or_counted_twice(fields):
    breaker = CircuitBreaker(failure_rate=1.0, minimum_calls=10**6, **fields)
    calls = [0] * THREADS

    def call(number):
        with breaker:
            calls[number] += 1

    repeat_in_threads(*[lambda number=number: call(number) for number in range(THREADS)])
    assert breaker.counted == (sum(calls), 0)


def test_tokens_are_neither_made_nor_lost():
    budget = TokenBudget(capacity=1000, cost=1, earn=1)

    def take_and_give_back():
        if budget.acquire():
            budget.success()

    repeat_in_threads(*[take_and_give_back] * THREADS)
    assert budget.tokens == 1000


def test_a_ratio_counts_while_it_turns():
    budget = RatioBudget(ratio=0.1, floor_per_second=1, window=0.01)
    repeat_in_threads(*[budget.success] * 4, *[budget.acquire] * 4)


def test_a_bulkhead_is_never_fuller_than_it_may_be():
    bulkhead, inside = Bulkhead(2, queue=4), []

    def enter():
        if bulkhead.acquire(0.01):
            inside.append(1)
            assert len(inside) <= 2
            inside.pop()
            bulkhead.release()

    repeat_in_threads(*[enter] * THREADS)
    assert bulkhead.at_rest


def test_one_key_has_one_guard():
    registry = Registry(lambda key: CircuitBreaker(name=str(key)), limit=50)
    turns = iter(range(10**9))
    guards = {}

    def look():
        key = next(turns) % 40
        assert guards.setdefault(key, registry[key]) is registry[key]

    repeat_in_threads(*[look] * THREADS)


def test_a_throttle_counts_every_answer():
    throttle = AdaptiveThrottle()
    repeat_in_threads(
        *[throttle.success] * 3, *[throttle.throttled] * 3, throttle.acquire, lambda: repr(throttle)
    )


def test_one_policy_is_shared_and_each_call_has_its_own_attempts():
    counters, policy = Counters(), Policy(attempts=3, base=0.0, on=OSError)
    made = [0] * THREADS

    def call(number):
        assert policy.replace(listeners=[counters]).call(scripted(OSError("lost"), OSError("lost"), 7)) == 7
        made[number] += 1

    repeat_in_threads(*[lambda number=number: call(number) for number in range(THREADS)])
    assert sum(made) > THREADS


def test_events_of_all_threads_arrive():
    told = []
    policy = Policy(attempts=2, base=0.0, on=OSError, listeners=[told.append])
    made = [0] * THREADS

    @policy
    def fetch(number, seen):
        seen.append(1)
        if len(seen) == 1:
            raise OSError("lost")
        assert current_attempt().number == 2
        made[number] += 1

    repeat_in_threads(*[lambda number=number: fetch(number, []) for number in range(THREADS)])
    assert sum(isinstance(event, Recovered) for event in told) == sum(made)


def test_hedged_calls_of_many_threads_share_what_they_learn():
    fetch = hedge(after=quantile(0.9, initial=0.001, of_last=20), attempts=2)(lambda: "page")

    def call():
        assert fetch() == "page"

    repeat_in_threads(*[call] * THREADS)


def test_functions_are_decorated_while_others_are_called():
    def decorate():
        assert retry(base=0.0, backoff=fixed)(scripted(TimeoutError(), 1))() == 1

    repeat_in_threads(*[decorate] * THREADS)
