"""One guard for each key: always the same object, never too many, and what is busy is not forgotten."""

from __future__ import annotations

import copy
import gc
import logging
import os
import pickle
import random
import subprocess
import sys
import textwrap
import threading
import weakref
from collections import OrderedDict
from pathlib import Path

import pytest

import redouble
from conftest import watchdog
from redouble import registry as module
from redouble.breaker import CircuitBreaker
from redouble.budget import TokenBudget
from redouble.bulkhead import Bulkhead
from redouble.registry import Registry
from support.threads import in_threads

ROOT = str(Path(redouble.__file__).parent.parent)


@pytest.fixture(autouse=True)
def an_end():
    """What waits for ever fails."""
    with watchdog():
        yield


class Plain:
    """A guard that knows nothing of rest."""

    def __init__(self, key):
        self.key = key


class Fake(Plain):
    """A guard that is at rest when the test says so."""

    at_rest = True


def busy(key):
    guard = Fake(key)
    guard.at_rest = False
    return guard


# One guard for each key


def test_a_key_always_has_the_same_guard():
    registry = Registry(Plain)
    assert registry["a"] is registry["a"] is registry.get("a")
    assert registry["a"].key == "a"
    assert registry["b"] is not registry["a"]


def test_make_is_called_once_for_each_key():
    made = []
    registry = Registry(lambda key: made.append(key) or Plain(key))
    for key in "aabab":
        registry[key]
    assert made == ["a", "b"]


def test_a_registry_can_be_looked_at():
    registry = Registry(Plain, name="hosts", limit=10)
    assert len(registry) == 0
    assert registry, "an empty registry is still a registry"
    first, second = registry["a"], registry["b"]
    assert len(registry) == 2
    assert "a" in registry
    assert "c" not in registry, "asking whether it is there makes none"
    assert list(registry) == ["a", "b"]
    assert registry.items() == [("a", first), ("b", second)]
    assert repr(registry) == "<hosts: 2 of at most 10 keys>"


def test_a_registry_may_grow_while_somebody_goes_through_it():
    registry = Registry(Plain, limit=10)
    registry["a"]
    for key in registry:
        registry[key + "b"]
    for key, guard in registry.items():
        assert guard.key == key
        registry[key + "c"]
    assert list(registry) == ["a", "ab", "ac", "abc"]


@pytest.mark.slow
def test_64_threads_that_ask_for_a_new_key_at_once_get_one_object(frequent_switches):
    registry = Registry(Plain)
    for turn in range(10):
        guards = in_threads(lambda _, turn=turn: registry[turn])
        assert set(guards) == {registry[turn]}
    assert len(registry) == 10


def test_make_is_called_without_a_lock():
    registry = Registry(lambda key: Plain(key))
    inside = []

    def make(key):
        # Another thread can use the registry while this runs.
        thread = threading.Thread(target=lambda: inside.append(registry["other"]))
        if key == "key":
            thread.start()
            thread.join(60)
        return Plain(key)

    registry._make = make
    registry["key"]
    assert [guard.key for guard in inside] == ["other"]


def test_make_may_ask_the_registry_for_another_key():
    registry = Registry(lambda key: Plain(registry[key - 1] if key else None))
    assert registry[3].key.key.key.key is None
    assert sorted(registry) == [0, 1, 2, 3]


def test_a_make_that_raises_leaves_nothing_behind():
    answers = [OSError("no"), Plain("a")]

    def make(key):
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    registry = Registry(make)
    with pytest.raises(OSError, match="no"):
        registry["a"]
    assert len(registry) == 0
    assert registry["a"].key == "a"


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"make": 5}, TypeError, "make must be a function, got 5"),
        ({"make": Plain, "limit": 0}, ValueError, "limit must be at least 1, got 0"),
        ({"make": Plain, "limit": True}, ValueError, "limit must be a whole number, not a bool"),
        ({"make": Plain, "limit": float("inf")}, ValueError, "limit must be a whole number, got inf"),
    ],
)
def test_what_makes_no_sense_is_refused_when_the_registry_is_made(arguments, error, message):
    with pytest.raises(error, match=message):
        Registry(**arguments)


def test_an_async_make_is_refused():
    async def make(key):
        raise AssertionError("called")

    with pytest.raises(TypeError, match="make must be a plain function"):
        Registry(make)


def test_a_registry_is_one_thing_and_does_not_travel():
    registry = Registry(Plain, name="hosts")
    assert copy.copy(registry) is copy.deepcopy(registry) is registry
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(TypeError, match=r"hosts \(Registry\) .* cannot be pickled"):
            pickle.dumps(registry, protocol)


def test_a_registry_takes_its_types_in_square_brackets():
    registry = Registry[str, Plain](Plain)
    assert registry["a"].key == "a"


# Forgetting


def test_the_guard_used_longest_ago_is_forgotten():
    registry = Registry(Plain, limit=3)
    for key in "abcabd":
        registry[key]
    assert sorted(registry) == ["a", "b", "d"]
    registry["a"]
    registry["e"]
    registry["f"]
    assert sorted(registry) == ["a", "e", "f"]


@pytest.mark.slow
def test_a_forgotten_guard_is_collected_and_made_anew():
    registry = Registry(Plain, limit=1)
    gone = weakref.ref(registry["a"])
    registry["b"]
    gc.collect()
    assert gone() is None
    assert registry["a"].key == "a"


def test_what_is_not_at_rest_is_never_forgotten():
    registry = Registry(Fake, limit=3)
    for key in "abc":
        registry[key]
    kept = registry["a"]
    kept.at_rest = False
    for number in range(100):
        registry[number]
    assert registry["a"] is kept
    assert len(registry) == 3


def test_a_guard_that_comes_to_rest_can_be_forgotten():
    registry = Registry(Fake, limit=2)
    registry["a"].at_rest = registry["b"].at_rest = False
    assert registry["c"].key == "others"
    registry["a"].at_rest = True
    assert registry["c"].key == "c"
    assert sorted(registry) == ["b", "c"]


def test_an_open_breaker_is_kept_and_a_closed_one_forgotten():
    registry = Registry(lambda host: CircuitBreaker(failures=1, name=host), limit=2)
    with pytest.raises(OSError), registry["bad"]:
        raise OSError
    for host in ("good", "better", "best"):
        with registry[host]:
            pass
    assert sorted(registry) == ["bad", "best"]


def test_a_budget_in_debt_is_kept_and_a_full_one_forgotten():
    registry = Registry(lambda tenant: TokenBudget(name=tenant), limit=2)
    cost = registry["a"].acquire()
    registry["b"]
    registry["c"]
    assert list(registry) == ["a", "c"]
    registry["a"].success(cost)
    registry["c"]
    registry["d"]
    assert list(registry) == ["c", "d"]


def test_a_bulkhead_in_use_is_kept_and_an_empty_one_forgotten():
    registry = Registry(lambda host: Bulkhead(1, name=host), limit=2)
    with registry["a"] as held:
        registry["b"]
        registry["c"]
        assert registry["a"] is held
    assert list(registry) == ["c", "a"]


# All busy


def test_while_all_are_busy_new_keys_share_one_guard():
    registry = Registry(busy, limit=2)
    registry["a"], registry["b"]
    assert registry["c"] is registry["d"]
    assert registry["c"].key == "others"
    assert sorted(registry) == ["a", "b"]
    assert "c" not in registry


def test_the_shared_guard_can_be_asked_for_by_its_key():
    made = []
    registry = Registry(lambda key: made.append(key) or busy(key), limit=1, overflow_key=("", 0))
    shared = registry["", 0]
    registry["host", 80]
    assert registry["other", 80] is registry[registry.overflow_key] is shared
    assert made == [("", 0), ("host", 80)]
    assert list(registry) == [("host", 80)]


def test_a_shared_guard_that_was_made_meanwhile_is_the_one():
    inner = []

    def make(key):
        if key == "others" and not inner:
            inner.append(None)
            inner[0] = registry["others"]
        return busy(key)

    registry = Registry(make)
    assert registry["others"] is registry["others"] is inner[0]


def test_64_threads_share_one_guard_for_the_others(frequent_switches):
    registry = Registry(busy, limit=1)
    registry["a"]
    assert len(set(in_threads(lambda number: registry[number]))) == 1


def test_a_guard_that_cannot_say_whether_it_is_at_rest_is_kept(caplog):
    class Broken(Plain):
        @property
        def at_rest(self):
            raise OSError("store is away")

    registry = Registry(Broken, limit=1, name="hosts")
    kept = registry["a"]
    with caplog.at_level(logging.WARNING):
        assert registry["b"].key == "others"
        assert registry["c"].key == "others"
    assert registry["a"] is kept
    assert caplog.messages == ["hosts keeps a guard that cannot say whether it is at rest (said once)"]


def test_a_new_key_asks_few_guards_even_in_a_large_registry():
    asked = []

    class Asked(Plain):
        @property
        def at_rest(self):
            asked.append(self.key)
            return self.key == 199

    registry = Registry(Asked, limit=200)
    for key in range(200):
        registry[key]
    turns = []
    while "new" not in registry:
        asked.clear()
        registry["new"]
        turns.append(len(asked))
    # Each goes on where the last one stopped.
    assert turns == [module.LOOKS] * 3 + [200 - 3 * module.LOOKS]
    assert 199 not in registry


def test_a_guard_is_asked_whether_it_is_at_rest_without_a_lock():
    held = []

    def look():
        held.append(registry._lock.acquire(timeout=1))
        registry._lock.release()

    class Asked(Plain):
        @property
        def at_rest(self):
            thread = threading.Thread(target=look)
            thread.start()
            thread.join()
            return True

    registry = Registry(Asked, limit=1)
    registry["a"]
    registry["b"]
    assert held == [True]


# Races


def test_a_guard_that_is_asked_for_as_it_is_being_forgotten_stays():
    class Wanted(Plain):
        @property
        def at_rest(self):
            if wanted:
                wanted.pop()
                got.append(registry[self.key])
            return True

    wanted, got = [1], []
    registry = Registry(Wanted, limit=2)
    registry["a"], registry["b"]
    registry["c"]
    assert got == [registry["a"]]
    assert "b" not in registry


def test_a_guard_that_is_asked_for_over_and_over_as_it_is_forgotten_goes_in_the_end():
    class Wanted(Plain):
        @property
        def at_rest(self):
            if wanted:
                wanted.pop()
                registry[self.key]
            return True

    wanted = [1, 2, 3]
    registry = Registry(Wanted, limit=1)
    registry["a"]
    assert registry["b"].key == "b"
    assert list(registry) == ["b"]
    assert wanted == []


def test_a_signal_handler_may_add_a_key_while_the_oldest_is_looked_up():
    class Interrupted(OrderedDict):
        def items(self):
            found = iter(super().items())
            if signals:
                registry[signals.pop()]
            return found

    signals, registry = [], Registry(Plain, limit=2)
    registry["a"], registry["b"]
    registry._entries = Interrupted(registry._entries)
    signals.append("handler")
    assert registry["c"].key == "c"
    assert list(registry) == ["handler", "c"]


def test_a_signal_handler_may_evict_the_guard_that_is_being_examined():
    class Interrupted(OrderedDict):
        def get(self, key):
            found = super().get(key)
            if signals:
                found.guard.at_rest = True
                registry[signals.pop()]
            return found

    signals, registry = [], Registry(busy, limit=1)
    registry["a"]
    registry._entries = Interrupted(registry._entries)
    signals.append("handler")
    assert registry["b"].key == "others"
    assert list(registry) == ["handler"]


@pytest.mark.parametrize("limit", [1, 3, 20])
def test_no_two_guards_of_a_key_are_in_use_at_once(frequent_switches, limit):
    made, lock, doubled, most = {}, threading.Lock(), [], []

    class Used(Plain):
        """Is busy while somebody has it."""

        def __init__(self, key):
            super().__init__(key)
            self.users = 0

        @property
        def at_rest(self):
            return not self.users

    registry = Registry(Used, limit=limit)

    def body(number):
        rng = random.Random(number)
        for _ in range(40):
            key = rng.randrange(limit + 3)
            with lock:  # one at a time asks and marks, as one use would
                guard = registry[key]
                guard.users += 1
                if guard.key == key and made.setdefault(key, guard) is not guard:
                    if made[key].users:
                        doubled.append(key)
                    made[key] = guard
            most.append(len(registry))
            registry[rng.randrange(limit + 3)]
            with lock:
                guard.users -= 1

    assert [error for error in in_threads(body, 16) if error] == []
    assert max(most) <= limit
    assert doubled == []


@pytest.mark.slow
def test_keys_that_many_threads_want_are_never_given_the_shared_guard_while_some_are_at_rest(
    frequent_switches,
):
    registry = Registry(Plain, limit=2)

    def body(number):
        rng = random.Random(number)
        return {registry[rng.randrange(9)].key for _ in range(50)}

    keys = set().union(*in_threads(body, 16))
    assert keys == set(range(9))
    assert len(registry) <= 2


@pytest.mark.slow
@pytest.mark.parametrize(("make", "keys"), [(Fake, 10**5), (busy, 10**4)], ids=["at rest", "busy"])
def test_a_hundred_thousand_keys_take_no_more_memory_than_the_limit_allows(make, keys):
    alive = weakref.WeakSet()

    def kept(key):
        guard = make(key)
        alive.add(guard)
        return guard

    registry = Registry(kept, limit=100)
    for key in range(keys):
        registry[key]
    assert len(registry) == 100
    gc.collect()
    assert len(alive) <= 101


@pytest.mark.slow
def test_a_registry_keeps_nobody_alive():
    registry = Registry(lambda key: Bulkhead(1))
    registry["a"]
    gone = weakref.ref(registry)
    del registry
    gc.collect()
    assert gone() is None


# Processes


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_works_whoever_held_the_lock():
    code = """
        import os, signal, threading
        from redouble.registry import Registry

        registry = Registry(lambda key: [key], limit=1)
        registry["a"]
        held, done = threading.Event(), threading.Event()

        def hold():
            with registry._lock:
                held.set()
                done.wait()

        threading.Thread(target=hold, daemon=True).start()
        held.wait()
        child = os.fork()
        if not child:
            signal.alarm(5)
            print(registry["a"], registry["b"], len(registry), flush=True)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        done.set()
        print(list(registry))
    """
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", textwrap.dedent(code)],
        env={**os.environ, "PYTHONPATH": ROOT},
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("['a'] ['b'] 1\n['a']\n", "")
