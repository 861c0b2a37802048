"""What all guards have in common: identity, no pickling, forks, gates, and that no two locks are held at once."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import copy
import functools
import gc
import importlib.util
import inspect
import multiprocessing
import os
import pickle
import random
import signal
import subprocess
import sys
import threading
import time
import warnings
import weakref
from pathlib import Path

import pytest

from conftest import watchdog
from redouble import Policy, _guard
from redouble._circuit import Phase
from redouble._guard import Gate, Guard, _after_fork, _entered, _guards
from redouble.breaker import CircuitBreaker, State
from redouble.budget import RatioBudget, TokenBudget
from redouble.bulkhead import Bulkhead
from redouble.errors import BulkheadFull, CircuitOpen
from redouble.registry import Registry
from redouble.testing import FakeClock, no_waits

EVERY = {
    "budget of tokens": TokenBudget,
    "budget by ratio": RatioBudget,
    "breaker": CircuitBreaker,
    "bulkhead": lambda **options: Bulkhead(3, **options),
}

every_guard = pytest.mark.parametrize("make", EVERY.values(), ids=EVERY)
PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)


# Identity


@every_guard
def test_a_guard_is_equal_to_itself_and_to_nothing_else(make):
    one, other = make(), make()
    assert one == one
    assert one != other
    assert len({one, other, one}) == 2


@every_guard
def test_a_copy_of_a_guard_is_the_guard(make):
    guard = make()
    assert copy.copy(guard) is guard
    assert copy.deepcopy(guard) is guard
    assert copy.deepcopy({"guards": [guard]})["guards"][0] is guard


@every_guard
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_guard_refuses_to_be_pickled_and_says_what_to_do(make, protocol):
    guard = make(name="payments")
    with pytest.raises(TypeError, match=r"payments .* cannot be pickled: make one in each process"):
        pickle.dumps(guard, protocol)


@pytest.mark.parametrize(
    ("field", "kind"), [("budget", TokenBudget), ("budget", RatioBudget), ("breaker", CircuitBreaker)]
)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_policy_with_a_guard_refuses_to_be_pickled(field, kind, protocol):
    with pytest.raises(TypeError, match=f"a policy whose {field} is of this process cannot be pickled"):
        pickle.dumps(Policy(**{field: kind(name="payments")}), protocol)


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_guard_cannot_be_sent_to_another_process(method):
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"no {method} here")
    process = multiprocessing.get_context(method).Process(target=print, args=(TokenBudget(),))
    with pytest.raises(TypeError, match="cannot be pickled"):
        process.start()


def test_a_policy_that_is_copied_shares_its_guards():
    policy = Policy(budget=TokenBudget())
    assert copy.deepcopy(policy).budget is policy.budget
    assert policy.replace(attempts=2).budget is policy.budget


@every_guard
def test_a_guard_has_a_name_of_its_own_or_that_of_its_class(make):
    assert make(name="payments").name == "payments"
    assert make().name == type(make()).__name__


@pytest.mark.slow
@every_guard
def test_a_guard_that_nobody_holds_is_gone(make):
    gone = weakref.ref(make())
    gc.collect()
    assert gone() is None


@every_guard
def test_a_guard_may_be_asked_again_by_a_handler_in_the_middle_of_its_section(make):
    guard = make()
    with guard._lock, watchdog():
        assert guard.at_rest


# Time


def test_a_guard_reads_its_own_clock_or_the_real_one(monkeypatch):
    assert Guard(None, lambda: 5.0)._now() == 5.0
    monkeypatch.setattr(time, "monotonic", lambda: 7.0)
    assert Guard(None)._now() == 7.0


def test_time_that_tests_put_in_place_wins_over_a_guards_own():
    guard = Guard(None, lambda: 5.0)
    with no_waits() as waits:
        waits.sleep(1000.0)
        assert guard._now() >= 1000.0
    assert guard._now() == 5.0


# Forks


def in_a_fork(body):
    """Runs ``body`` in a forked child; gives its exit status, 1 if it raised, and ends it after 5 s."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that other threads are under way is the point
        child = os.fork()
    if child == 0:
        status = 1
        try:
            status = body()
        finally:
            os._exit(status)
    ends = time.monotonic() + 5.0
    while time.monotonic() < ends:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise AssertionError("the child waits for a lock that nobody will let go of")


class HeldElsewhere:
    """A guard whose lock another thread holds."""

    def __init__(self, guard):
        self._guard, self._held, self._done = guard, threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._hold)

    def _hold(self):
        with self._guard._lock:
            self._held.set()
            self._done.wait()

    def __enter__(self):
        self._thread.start()
        self._held.wait()

    def __exit__(self, *_):
        self._done.set()
        self._thread.join()


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")


@needs_fork
@pytest.mark.parametrize("kind", [TokenBudget, RatioBudget])
def test_a_forked_child_can_use_a_budget_whose_lock_was_held(kind):
    budget = kind()

    def child():
        cost = budget.acquire()
        budget.success(cost)
        budget.failure()
        return 0 if cost and budget.tokens else 2

    with HeldElsewhere(budget):
        assert in_a_fork(child) == 0


@needs_fork
@every_guard
def test_a_forked_child_can_take_the_lock_of_every_guard(make):
    guard = make()

    def child():
        with guard._lock:
            return 0

    with HeldElsewhere(guard):
        assert in_a_fork(child) == 0


@needs_fork
def test_a_forked_child_can_use_a_breaker_whose_lock_was_held():
    breaker = CircuitBreaker(failures=1)

    def child():
        breaker.failure(breaker.enter())
        return 0 if breaker.refuses() else 2

    with HeldElsewhere(breaker):
        assert in_a_fork(child) == 0
    assert not breaker.refuses()


@needs_fork
def test_a_forked_child_begins_with_what_was_counted_and_goes_its_own_way():
    purse = TokenBudget(capacity=10)
    purse.acquire()

    def child():
        return int(purse.acquire()) if purse.tokens == 5.0 else 99

    assert in_a_fork(child) == 5
    assert purse.tokens == 5.0


@every_guard
def test_what_a_forked_child_does_first_is_to_make_every_lock_anew(make):
    guard = make()
    with HeldElsewhere(guard):
        before = guard._lock
        _after_fork()
        assert guard._lock is not before
        assert guard._lock.acquire(blocking=False)
        guard._lock.release()
        guard._lock = before


def test_where_there_is_no_fork_guards_are_made_all_the_same(monkeypatch):
    monkeypatch.delattr(os, "register_at_fork", raising=False)
    spec = importlib.util.spec_from_file_location("redouble._guard_elsewhere", _guard.__file__)
    elsewhere = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(elsewhere)
    assert elsewhere.Guard("payments").name == "payments"


@needs_fork
def test_a_fork_leaves_the_parents_locks_alone():
    guard = TokenBudget()
    lock = guard._lock
    assert in_a_fork(lambda: 2 if guard._lock is lock else 0) == 0
    assert guard._lock is lock


# Gates


class Door(Gate):
    """A gate that writes down who came and how they left."""

    def __init__(self, *, shut=False):
        super().__init__("door")
        self.log, self.shut, self.count = [], shut, 0

    def _enter(self):
        if self.shut:
            raise CircuitOpen("shut", name="door", retry_after=None)
        self.count += 1
        self.log.append(f"in {self.count}")
        return self.count

    def _leave(self, ticket, error):
        self.log.append(f"out {ticket} {type(error).__name__}")


class AsyncDoor(Door):
    is_async = True


OUTCOMES = [None, ValueError("wrong"), KeyboardInterrupt(), asyncio.CancelledError()]


def failing_with(error):
    def body(*args, **kwargs):
        if error is not None:
            raise error
        return args, kwargs

    return body


def outcome(flavour, function, *args, **kwargs):
    """What came out, returned or raised."""
    try:
        return flavour.run(function, *args, **kwargs)
    except BaseException as error:
        return error


@pytest.mark.parametrize("error", OUTCOMES, ids=repr)
def test_a_decorated_function_enters_and_leaves_however_it_ends(flavour, error):
    door = Door()
    guarded = door(flavour.function(failing_with(error)))
    assert outcome(flavour, guarded, 1, two=2) in ([error] if error else [((1,), {"two": 2})])
    assert door.log == ["in 1", f"out 1 {type(error).__name__}"]


@pytest.mark.parametrize("error", OUTCOMES, ids=repr)
def test_a_with_block_enters_and_leaves_however_it_ends(flavour, error):
    door = Door()

    def sync():
        with door as entered:
            assert entered is door
            failing_with(error)()

    async def asynchronous():
        async with door as entered:
            assert entered is door
            failing_with(error)()

    assert outcome(flavour, asynchronous if flavour.is_async else sync) is error
    assert door.log == ["in 1", f"out 1 {type(error).__name__}"]


def test_a_gate_that_is_shut_calls_nothing(flavour):
    door, called = Door(shut=True), []
    guarded = door(flavour.function(lambda: called.append(1)))
    assert isinstance(outcome(flavour, guarded), CircuitOpen)
    assert called == door.log == []


def test_a_guarded_function_keeps_its_name_its_doc_and_what_it_wraps(flavour):
    def fetch(url: str) -> str:
        """Fetches."""
        return url

    function = flavour.function(fetch)
    guarded = Door()(function)
    assert guarded.__wrapped__ is function
    assert (guarded.__name__, guarded.__doc__) == (function.__name__, function.__doc__)
    assert inspect.iscoroutinefunction(guarded) is flavour.is_async


def test_blocks_of_one_gate_nest_and_each_leaves_with_its_own_ticket():
    door = Door()
    with door, door:
        door.log.append("inside")
    assert door.log == ["in 1", "in 2", "inside", "out 2 NoneType", "out 1 NoneType"]


def test_blocks_of_two_gates_may_end_in_any_order():
    one, other = Door(), Door()
    one.__enter__()
    other.__enter__()
    one.__exit__(None, None, None)
    other.__exit__(None, None, None)
    assert one.log == other.log == ["in 1", "out 1 NoneType"]


def test_a_gate_that_is_open_in_many_tasks_keeps_their_tickets_apart(virtual):
    door = Door()

    async def task(number):
        await asyncio.sleep(number)
        async with door:
            await asyncio.sleep(10 - 2 * number)

    async def main():
        await asyncio.gather(*[task(number) for number in range(4)])

    virtual(main)
    assert door.log == ["in 1", "in 2", "in 3", "in 4",
                        "out 4 NoneType", "out 3 NoneType", "out 2 NoneType", "out 1 NoneType"]  # fmt: skip


def test_a_gate_that_is_left_in_another_context_has_no_ticket_there():
    door = Door()
    contextvars.copy_context().run(door.__enter__)
    door.__exit__(None, None, None)
    assert door.log == ["in 1", "out None NoneType"]


def test_a_block_leaves_no_ticket_behind():
    with Door():
        assert len(_entered.get()) == 1
    assert _entered.get() == ()


def test_a_gate_that_must_be_awaited_says_so():
    door = AsyncDoor()
    with pytest.raises(TypeError, match="door must be awaited: write 'async with'"):
        door.__enter__()
    with pytest.raises(TypeError, match=r"door must be awaited, and .*fetch is sync"):
        door(fetch)


def fetch():
    """A plain function."""


def numbers():
    yield 1


async def pages():
    yield "page"


@pytest.mark.parametrize("wrong", [int, Door, None, 5, "fetch", [fetch]], ids=repr)
def test_a_gate_guards_functions_and_nothing_else(wrong):
    with pytest.raises(TypeError, match=r"door cannot guard .*: decorate a function"):
        Door()(wrong)


@pytest.mark.parametrize(("function", "kind"), [(numbers, "generator"), (pages, "async generator")])
def test_a_gate_does_not_guard_what_is_not_over_when_it_is_called(function, kind):
    with pytest.raises(
        TypeError, match=f"door cannot guard {function.__name__}: a.? {kind} is not over when it is called"
    ):
        Door()(function)


def test_a_gate_without_answers_of_its_own_says_so():
    with pytest.raises(NotImplementedError):
        Gate("empty").__enter__()
    with pytest.raises(NotImplementedError):
        Gate("empty")._leave(None, None)


@pytest.mark.slow
def test_guards_are_kept_in_mind_only_while_somebody_else_keeps_them():
    guard = TokenBudget(name="kept in mind")
    assert guard in _guards
    del guard
    gc.collect()
    assert "kept in mind" not in [guard.name for guard in _guards]


# Locks


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
from redouble import _guard

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
    root = str(Path(_guard.__file__).parent.parent)
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


# A signal handler that uses the same guard


def at_each_step(make, use, handler):
    """Runs ``use(guard)`` again and again; each time the handler comes in one function call later."""
    package, before, due = str(Path(_guard.__file__).parent), sys.gettrace(), 0
    while True:
        guard, left = make(), [due]

        def tracer(frame, event, _, guard=guard, left=left):
            if event == "call" and frame.f_code.co_filename.startswith(package):
                left[0] -= 1
                if left[0] == -1:
                    handler(guard)

        sys.settrace(tracer)
        try:
            use(guard)
        finally:
            sys.settrace(before)
        if left[0] >= 0:
            break
        yield guard
        due += 1
    assert due > 1  # it did come in


def half_open(**fields):
    clock = FakeClock()
    breaker = CircuitBreaker(failures=1, open_for=10.0, clock=clock, **fields)
    breaker.failure(None, OSError())
    clock.advance(10.0)
    breaker.ticket_of_a_probe = breaker.enter()
    return breaker


def test_a_signal_handler_that_opens_the_circuit_meanwhile_does_no_harm():
    def fail_twice(breaker):
        for _ in range(2):
            breaker.failure(None, OSError("in the handler"))

    for breaker in at_each_step(
        lambda: CircuitBreaker(failures=2), lambda breaker: breaker.failure(None, OSError()), fail_twice
    ):
        assert (breaker.state, breaker.refuses(), breaker.ticket) == (State.open, True, None)


@pytest.mark.parametrize("step", ["enter", "success", "failure", "release"])
def test_what_a_probe_is_in_the_middle_of_does_not_undo_what_a_signal_handler_did(step):
    def use(breaker):
        if step != "enter":
            getattr(breaker, step)(breaker.ticket_of_a_probe)
            return
        with contextlib.suppress(CircuitOpen):
            breaker.enter()

    for breaker in at_each_step(lambda: half_open(successes=3, probes=2), use, CircuitBreaker.open):
        assert (breaker.state, breaker.refuses(), breaker.ticket) == (State.open, True, None)
        assert breaker.retry_after is None


def test_what_a_signal_handler_takes_from_a_budget_is_not_given_out_twice():
    def use(budget):
        budget.granted.append(budget.acquire())

    def handler(budget):
        budget.granted += [budget.acquire(), budget.acquire()]

    def make(budget):
        budget.granted = []
        return budget

    for budget in at_each_step(lambda: make(TokenBudget(capacity=12)), use, handler):
        assert (sum(budget.granted), budget.tokens, budget.full) == (10.0, 2.0, False)
    for budget in at_each_step(lambda: make(RatioBudget(floor_per_second=0.2)), use, handler):
        # Where both look at the same moment each may see the other's, and leave one.
        assert sum(budget.granted) + budget.tokens == 2.0
        assert sum(budget.granted) >= 1.0


@pytest.mark.parametrize("gain", ["success", "give_back"])
def test_what_is_given_back_is_not_lost_to_a_signal_handler(gain):
    def make():
        budget = TokenBudget(capacity=20)
        for _ in range(4):
            budget.acquire()
        return budget

    for budget in at_each_step(make, lambda budget: getattr(budget, gain)(5.0), lambda b: b.success(10.0)):
        assert budget.tokens == 15.0


class Meanwhile:
    """In the place of a function of a guard: before it runs for the first time, somebody else is there."""

    def __init__(self, function, happens):
        self._function, self._happens = function, [happens]

    def __call__(self, *args):
        if self._happens:
            self._happens.pop()()
        return self._function(*args)

    def __get__(self, instance, owner):
        return functools.partial(self, instance)


@pytest.mark.parametrize(
    ("step", "looked_at", "happens", "state"),
    [
        ("enter", "with_one_more", "open", State.open),
        ("enter", "with_one_more", "enter", State.half_open),
        ("success", "with_one_less", "open", State.open),
        ("release", "with_one_less", "enter", State.half_open),
    ],
)
def test_a_phase_that_was_replaced_meanwhile_is_looked_at_again(monkeypatch, step, looked_at, happens, state):
    breaker = half_open(successes=4, probes=4)
    monkeypatch.setattr(Phase, looked_at, Meanwhile(getattr(Phase, looked_at), getattr(breaker, happens)))
    with contextlib.suppress(CircuitOpen):
        getattr(breaker, step)(*([] if step == "enter" else [breaker.ticket_of_a_probe]))
    assert breaker.state is state
    expected = {"enter": 3, "release": 1}.get(step, 0) if state is State.half_open else 0
    assert breaker._circuit.phase.probes == expected


def test_places_that_are_taken_while_others_are_freed_are_freed_too(monkeypatch):
    breaker = half_open(probes=4, successes=4)
    monkeypatch.setattr(Phase, "with_others", Meanwhile(Phase.with_others, breaker.enter))
    breaker._circuit.forget_probes()
    assert breaker._circuit.phase.probes == 0


def test_a_circuit_that_others_opened_meanwhile_neither_trips_nor_closes():
    breaker = CircuitBreaker(failures=1)
    count = breaker._circuit.count

    class Count:
        failures, window = 0, None
        failure = Meanwhile(lambda _, now: count.failure(now), breaker.open)

    breaker._circuit.count = Count()
    breaker.failure(None, OSError())
    assert (breaker.state, breaker.retry_after) == (State.open, None)  # by hand
    breaker = half_open()
    breaker._circuit._counting = Meanwhile(breaker._circuit._counting, breaker.open)
    breaker.success(breaker.ticket_of_a_probe)
    assert (breaker.state, breaker.retry_after, breaker.ticket) == (State.open, None, None)


def test_a_retry_that_has_left_the_window_cannot_be_given_back():
    clock = FakeClock()
    budget = RatioBudget(ratio=0.0, floor_per_second=0.2, clock=clock)
    budget.acquire()
    clock.advance(5.0)
    budget.failure()  # a slot in which nothing was granted
    budget.give_back(1.0)
    assert budget.tokens == 2.0
    budget.give_back(1.0)
    assert budget.tokens == 2.0
