"""Budgets under threads: exact counts, killed threads, every order of steps."""

from __future__ import annotations

import ctypes
import itertools
import random
import sys
import threading
from functools import partial

import pytest

from conftest import watchdog
from redouble import Policy, budget
from redouble._guards import window as _window
from redouble._guards.window import Tally, Window
from redouble.budget import RatioBudget, TokenBudget
from support import threads
from support.interleaving import explore

THREADS = 64
in_threads = partial(threads.in_threads, fail=True)


@pytest.mark.usefixtures("frequent_switches")
def test_threads_are_granted_exactly_as_many_retries_as_there_are_tokens_for():
    purse = TokenBudget(capacity=1000)
    granted = in_threads(lambda _: sum(purse.acquire() for _ in range(10)))
    assert sum(granted) == 1000.0
    assert purse.tokens == 0.0


@pytest.mark.usefixtures("frequent_switches")
def test_threads_lose_no_token_between_them():
    purse = TokenBudget(capacity=10_000)
    assert [purse.acquire() for _ in range(2000)] == [5.0] * 2000

    def earn(_):
        for _ in range(50):
            purse.success()

    in_threads(earn)
    assert purse.tokens == THREADS * 50


@pytest.mark.slow
@pytest.mark.usefixtures("frequent_switches")
def test_whoever_looks_sees_bounds_that_hold_while_others_write():
    purse, stop, seen = TokenBudget(capacity=40), threading.Event(), []

    def look():
        while not stop.is_set():
            tokens = purse.tokens
            seen.append(0.0 <= tokens <= purse.capacity)

    def work(number):
        rng, balance = random.Random(number), 0.0
        for _ in range(100):
            if rng.random() < 0.5:
                balance += purse.acquire(timeout=rng.random() < 0.2)
            elif balance >= 5.0:
                purse.success(5.0)
                balance -= 5.0
        return balance

    reader = threading.Thread(target=look)
    reader.start()
    held = in_threads(work)
    stop.set()
    reader.join()
    assert all(seen)
    assert purse.tokens + sum(held) == 40.0  # what was granted and not given back is exactly what is missing


@pytest.mark.usefixtures("frequent_switches")
def test_a_tally_counts_every_step_of_every_thread():
    tally, looks = Tally(), []

    def step(number):
        for _ in range(200):
            tally.add()
            if number == 0:  # only one may look at a time
                looks.append(tally.read())

    in_threads(step)
    assert tally.read() == THREADS * 200
    assert looks == sorted(looks)
    assert tally.read() == THREADS * 200


@pytest.mark.slow
@pytest.mark.usefixtures("frequent_switches")
def test_threads_count_calls_exactly_while_slots_turn_under_them():
    ticks = itertools.count()
    budget = RatioBudget(ratio=1.0, floor_per_second=0, clock=lambda: next(ticks) * 1e-4)

    def work(number):
        for _ in range(100):
            budget.success() if number % 2 else budget.failure()
            budget.tokens  # noqa: B018 - looking is what is tried
        return True

    in_threads(work)
    assert next(ticks) * 1e-4 < 9.0  # slots have turned, nothing has expired
    assert budget._reckon(next(ticks) * 1e-4) == (THREADS * 100, 0)


@pytest.mark.slow
@pytest.mark.usefixtures("frequent_switches")
def test_threads_are_granted_exactly_the_share_of_their_calls(clock):
    budget = RatioBudget(ratio=0.25, floor_per_second=1, clock=clock)

    def work(_):
        granted = 0.0
        for _ in range(100):
            budget.failure()
            granted += budget.acquire()
        return granted

    granted = sum(in_threads(work))
    while budget.acquire():
        granted += 1.0
    assert granted == THREADS * 100 * 0.25 + 10


def test_counting_a_call_takes_no_lock(clock):
    class Forbidden:
        def __enter__(self):
            raise AssertionError("a lock was taken")

        def __exit__(self, *_):
            raise AssertionError("a lock was taken")

    budget = RatioBudget(clock=clock)
    lock, budget._lock = budget._lock, Forbidden()
    for _ in range(30):  # also when a slot turns
        budget.success()
        budget.failure()
        budget.success(1.0)
        clock.advance(0.5)
    with pytest.raises(AssertionError):
        budget.acquire()
    budget._lock = lock
    assert budget._reckon(clock.now)[0] == pytest.approx(
        0.1 * 2 * 18 + 3
    )  # nine slots, two half seconds in each


def test_a_clean_success_on_a_full_token_budget_takes_no_lock_in_a_policy(flavour):
    purse = TokenBudget()
    purse._lock = None
    assert flavour.call(Policy(budget=purse), flavour.scripted("page")) == "page"


def test_no_clock_runs_while_the_lock_is_held():
    free = []

    def try_the_lock():
        free.append(shared._lock.acquire(blocking=False))
        if free[-1]:
            shared._lock.release()

    def clock():
        other = threading.Thread(target=try_the_lock)
        other.start()
        other.join()
        raise KeyError("a clock that fails")

    shared = RatioBudget(clock=clock)
    for ask in (
        shared.acquire,
        shared.success,
        shared.failure,
        lambda: shared.tokens,
        lambda: shared.at_rest,
    ):
        with pytest.raises(KeyError):
            ask()
    assert free == [True] * 5


class Killed(BaseException):
    """Thrown into a thread from outside."""


def kill_in_the_middle(work, moment):
    """Ends a thread that does nothing but this work, wherever it happens to be."""
    began = threading.Event()

    def victim():
        sys.settrace(None)  # who measures coverage has a lock, too, and would be left with it
        try:
            began.set()
            while True:
                work()
        except Killed:
            pass

    thread = threading.Thread(target=victim)
    thread.start()
    began.wait()
    for _ in range(moment):
        pass
    while (
        thread.is_alive()
    ):  # again, if it was raised in a callback that swallows it, such as one of the collector
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(Killed))
        thread.join(0.1)


@pytest.mark.slow
@pytest.mark.usefixtures("frequent_switches")
def test_a_thousand_threads_that_die_in_the_middle_leave_a_token_budget_in_order():
    purse, rng = TokenBudget(capacity=20), random.Random(1)

    def work():
        cost = purse.acquire(timeout=rng.random() < 0.3)
        purse.success(cost)

    with watchdog():
        for _ in range(1000):
            kill_in_the_middle(work, rng.randrange(50))
            assert purse._lock.acquire(blocking=False)
            purse._lock.release()
            assert 0.0 <= purse.tokens <= purse.capacity
            assert not purse._full or purse.tokens == purse.capacity
    for _ in range(20):
        purse.success()
    assert purse._full
    assert purse.tokens == 20.0


@pytest.mark.slow
@pytest.mark.usefixtures("frequent_switches")
def test_threads_that_die_in_the_middle_leave_a_ratio_in_order():
    ticks, rng = itertools.count(), random.Random(2)
    budget = RatioBudget(ratio=0.5, floor_per_second=1, clock=lambda: next(ticks) * 0.01)

    def work():
        budget.failure()
        budget.acquire()
        budget.success()
        budget.tokens  # noqa: B018 - looking is what is tried

    with watchdog():
        for _ in range(300):
            kill_in_the_middle(work, rng.randrange(50))
            assert budget._lock.acquire(blocking=False)
            budget._lock.release()
            allowed, used = budget._reckon(next(ticks) * 0.01)
            assert allowed >= 10.0
            assert used >= 0
    before = next(ticks) * 0.01
    budget._clock = lambda: before + 20.0
    assert sum(budget.acquire() for _ in range(100)) == 10.0


def bounds(purse):
    assert 0.0 <= purse._tokens <= purse.capacity
    assert not purse._full or purse._tokens == purse.capacity


@pytest.mark.slow
def test_in_every_order_the_last_token_goes_to_one_of_three():
    def check(purse, results):
        assert sorted(results) == [0.0, 0.0, 5.0]
        assert purse.tokens == 0.0

    orders = explore(
        lambda: TokenBudget(capacity=5), [TokenBudget.acquire] * 3, check, always=bounds, preemptions=3
    )
    assert orders > 500


def empty_but(tokens, capacity=10.0, **terms):
    purse = TokenBudget(capacity=capacity, **terms)
    with purse._lock:
        purse._keep(0.0, tokens)
    return purse


@pytest.mark.slow
def test_in_every_order_two_retries_and_a_success_near_nothing_add_up():
    def give(purse):
        return purse.success(5.0)

    def check(purse, results):
        granted = sum(results[:2])
        assert granted in (5.0, 10.0)  # the second one is granted if the success came before it
        assert purse.tokens == 5.0 + 5.0 - granted

    explore(
        lambda: empty_but(5.0), [TokenBudget.acquire, TokenBudget.acquire, give], check,
        always=bounds, preemptions=3,
    )  # fmt: skip


@pytest.mark.slow
def test_in_every_order_two_successes_and_a_retry_near_the_top_stay_within_it():
    def give(purse):
        return purse.success()

    def check(purse, results):
        assert results[2] == 5.0
        assert purse.tokens in (5.0, 6.0, 7.0)  # what came before the retry found the purse full

    explore(
        lambda: TokenBudget(capacity=10),
        [give, give, TokenBudget.acquire],
        check,
        always=bounds,
        preemptions=3,
    )


@pytest.mark.slow
def test_at_every_line_a_token_budget_that_says_it_is_full_is_full():
    explore(
        lambda: empty_but(10.0), [TokenBudget.acquire, lambda purse: purse.success(5.0)],
        always=bounds, modules=[budget], preemptions=2,
    )  # fmt: skip


def test_in_every_order_a_ratio_grants_one_retry_to_one_of_three(clock):
    def make():
        shared = RatioBudget(ratio=0.1, floor_per_second=0, clock=clock)
        for _ in range(9):
            shared.success()
        return shared

    def check(shared, results):
        assert sum(results[:2]) <= 1.0
        assert shared.tokens == 1.0 - sum(results[:2])

    explore(make, [RatioBudget.acquire, RatioBudget.acquire, RatioBudget.failure], check, preemptions=3)


@pytest.mark.slow
def test_at_every_line_threads_that_turn_the_same_slot_lose_no_call():
    class Counts(Window):
        __slots__ = ("_lock",)

    def make():
        counts = Counts(10.0)
        counts.add(0.0)
        return counts

    def check(counts, results):
        assert counts.read(1.0)[0] == 4

    bodies = [lambda counts: counts.add(1.0), lambda counts: counts.add(1.5), lambda counts: counts.add(0.9)]
    assert explore(make, bodies, check, modules=[_window], preemptions=1) > 100


def test_at_every_line_a_read_beside_a_call_sees_it_or_does_not():
    class Counts(Window):
        __slots__ = ("_lock",)

    def look(counts):
        with counts._lock:
            return counts.read(11.0)[0]

    def make():
        counts = Counts(10.0)
        counts.add(0.0)
        counts.add(5.0)
        return counts

    def check(counts, results):
        assert results[1] in (1, 2)  # the first call has expired
        assert counts.read(11.0)[0] == 2

    explore(make, [lambda counts: counts.add(11.0), look], check, modules=[_window], preemptions=1)
