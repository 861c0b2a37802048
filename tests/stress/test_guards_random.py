"""Locks of guards: never two at once, never around user code, never left held; random operations of threads."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from redouble import Policy
from redouble._guards import base as _guard
from redouble.breaker import CircuitBreaker
from redouble.budget import RatioBudget, TokenBudget
from redouble.bulkhead import Bulkhead
from redouble.errors import BulkheadFull, CircuitOpen
from redouble.registry import Registry
from support.guards import Door

held = threading.local()


broken = []


class Watched:
    """A lock that knows what else its thread holds."""

    def __init__(self, lock, name):
        self._lock, self._name = lock, name

    def acquire(self, *args, **kwargs):
        mine = held.__dict__.setdefault("locks", [])
        if mine and self not in mine:
            broken.append(f"{self._name} taken while {mine[-1]._name} was held")
        taken = self._lock.acquire(*args, **kwargs)
        if taken:
            mine.append(self)
        return taken

    def release(self):
        held.locks.remove(self)
        self._lock.release()

    def __enter__(self):
        return self.acquire()

    def __exit__(self, *_):
        self.release()


def nothing_held(*_):
    """Code of the user, such as a listener, which never runs under a lock."""
    if getattr(held, "locks", None):
        broken.append("code of the user ran while a lock was held")


@pytest.fixture
def watched():
    """One guard of each kind, with locks that are watched."""
    shared = {"open_for": 0.001, "listeners": [nothing_held]}
    guards = {
        "purse": TokenBudget(capacity=50),
        "ratio": RatioBudget(floor_per_second=2, window=0.05),
        "counting": CircuitBreaker(failures=3, **shared),
        "rated": CircuitBreaker(failure_rate=0.5, minimum_calls=5, window=0.05, **shared),
        "bulkhead": Bulkhead(4, queue=2),
        "registry": Registry(small_purse, limit=5),
    }
    for name, guard in guards.items():
        guard._lock = Watched(guard._lock, name)
    broken.clear()
    return guards


def small_purse(tenant):
    """What a registry makes for a key: also code of the user."""
    nothing_held()
    purse = TokenBudget(capacity=5, name=f"purse of {tenant}")
    purse._lock = Watched(purse._lock, purse.name)
    return purse


class Caller:
    """Does at random what callers of the library do, with one guard or with several in a policy."""

    def __init__(self, guards, seed):
        self.guards, self.rng = guards, random.Random(seed)

    def act(self):
        self.budget = self.guards[self.rng.choice(["purse", "ratio"])]
        self.breaker = self.guards[self.rng.choice(["counting", "rated"])]
        self.bulkhead = self.guards["bulkhead"]
        ways = [
            self.pay, self.pay_by_key, self.look, self.switch, self.pass_breaker, self.pass_two, self.wait, self.policy,
        ]  # fmt: skip
        with contextlib.suppress(TimeoutError, CircuitOpen, BulkheadFull):
            self.rng.choice(ways)()

    def call(self):
        nothing_held()
        if self.rng.random() < 0.5:
            raise TimeoutError("slow")

    def pay(self):
        self.budget.failure()
        cost = self.budget.acquire(timeout=self.rng.random() < 0.5, priority=self.rng.randrange(-1, 2))
        self.budget.success(cost)

    def pay_by_key(self):
        purse = self.guards["registry"][self.rng.randrange(8)]
        purse.success(purse.acquire() if self.rng.random() < 0.5 else 0.0)

    def look(self):
        breaker = self.breaker
        for guard in (self.budget, breaker, self.bulkhead):
            assert repr(guard)
            assert guard.at_rest in (True, False)
        assert self.budget.tokens >= 0.0
        assert breaker.counted >= (0, 0)
        assert breaker.state
        assert (breaker.retry_after or 0.0) >= 0.0

    def switch(self):
        self.rng.choice([self.breaker.open, self.breaker.close, self.breaker.close])()

    def pass_breaker(self):
        self.breaker(self.call)()

    def pass_two(self):
        with self.breaker, self.bulkhead:
            self.call()

    def wait(self):
        if self.bulkhead.acquire(timeout=0.001):
            self.bulkhead.release()

    def policy(self):
        guards = {"budget": self.budget, "breaker": self.breaker, "bulkhead": self.bulkhead}
        Policy(attempts=3, base=0, listeners=[nothing_held], sleep=nothing_held, **guards).call(self.call)


@pytest.mark.slow
def test_random_operations_of_many_threads_never_hold_two_locks_and_never_stop(watched):
    """Runs for a second; with ``REDOUBLE_LONG=1`` in the environment, for a minute."""
    long = os.environ.get("REDOUBLE_LONG") == "1"
    seconds, surprises, done = 60.0 if long else 1.0, [], []
    # On a busy machine the first thread may be done before the last has begun.
    together = threading.Barrier(8)

    def work(number):
        caller, count = Caller(watched, number), 0
        together.wait()
        ends = time.monotonic() + seconds
        try:
            while time.monotonic() < ends:
                caller.act()
                count += 1
        except Exception as error:
            surprises.append(error)
        done.append(count)

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds + 60.0)
    assert not surprises, surprises[0]
    assert not any(thread.is_alive() for thread in threads), "a thread waits for a lock"
    assert broken == []
    assert min(done) > 0
    assert watched["bulkhead"].snapshot() == (0, 0)
    assert 0.0 <= watched["purse"].tokens <= 50.0


def test_the_watched_lock_does_notice_two_at_once(watched):
    with watched["purse"]._lock, watched["ratio"]._lock:
        nothing_held()
    assert broken == ["ratio taken while purse was held", "code of the user ran while a lock was held"]


def test_an_interrupt_between_the_ticket_and_the_block_gives_the_ticket_back(flavour, monkeypatch):
    gate = Door()

    def interrupted(gate, ticket):
        raise KeyboardInterrupt

    monkeypatch.setattr(_guard, "_push", interrupted)

    def sync_block():
        with gate:
            raise AssertionError

    async def async_block():
        async with gate:
            raise AssertionError

    with pytest.raises(KeyboardInterrupt):
        flavour.run(async_block if flavour.is_async else sync_block)
    assert gate.log == ["in 1", "out 1 KeyboardInterrupt"]


ENDED = """
import ctypes, sys, threading
from redouble._guards import base as _guard

class Ended(BaseException):
    pass

def work(lock, ready):
    try:
        ready.set()
        while True:
            with lock:
                pass
    except Ended:
        pass

sys.setswitchinterval(1e-5)
left_held = 0
for _ in range(200):
    lock, ready = getattr(_guard, sys.argv[1])(), threading.Event()
    thread = threading.Thread(target=work, args=(lock, ready))
    thread.start()
    ready.wait()
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(Ended))
    thread.join()
    left_held += not lock.acquire(blocking=False)
print(left_held)
"""


@pytest.mark.slow
@pytest.mark.parametrize("lock", ["Lock", "InterruptSafeLock"])
def test_no_interrupt_leaves_the_lock_of_a_guard_held(lock):
    root = str(Path(_guard.__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", ENDED, lock],
        env={**os.environ, "PYTHONPATH": root},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout.strip(), done.stderr) == ("0", "")


def test_the_lock_that_is_safe_from_interrupts_is_a_lock():
    lock = _guard.InterruptSafeLock()
    with lock as taken, lock:
        other = threading.Thread(target=lambda: results.append(lock.acquire(blocking=False)))
        results = [taken]
        other.start()
        other.join()
    assert results == [True, False]
    assert not lock._is_owned()
