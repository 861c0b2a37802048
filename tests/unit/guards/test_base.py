"""What all guards have in common: identity, clocks, forks, and gates around calls."""

from __future__ import annotations

import asyncio
import contextvars
import copy
import gc
import importlib.util
import inspect
import multiprocessing
import os
import pickle
import signal
import threading
import time
import warnings
import weakref

import pytest

from conftest import watchdog
from redouble import Policy
from redouble._guards import base as _guard
from redouble._guards.base import Gate, Guard, _after_fork, _entered, _guards
from redouble.breaker import CircuitBreaker
from redouble.budget import RatioBudget, TokenBudget
from redouble.bulkhead import Bulkhead
from redouble.errors import CircuitOpen
from redouble.testing import no_waits
from support.guards import Door

EVERY = {
    "budget of tokens": TokenBudget,
    "budget by ratio": RatioBudget,
    "breaker": CircuitBreaker,
    "bulkhead": lambda **options: Bulkhead(3, **options),
}


every_guard = pytest.mark.parametrize("make", EVERY.values(), ids=EVERY)


PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)


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
    with pytest.raises(TypeError, match=f"cannot pickle a policy whose {field} exists only in this process"):
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


def test_a_guard_reads_its_own_clock_or_the_real_one(monkeypatch):
    assert Guard(None, lambda: 5.0)._now() == 5.0
    monkeypatch.setattr(time, "monotonic", lambda: 7.0)
    assert Guard(None)._now() == 7.0


def test_fake_time_of_tests_wins_over_a_clock_of_the_guard():
    guard = Guard(None, lambda: 5.0)
    with no_waits() as waits:
        waits.sleep(1000.0)
        assert guard._now() >= 1000.0
    assert guard._now() == 5.0


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
    ends = time.monotonic() + 60.0
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
    spec = importlib.util.spec_from_file_location("redouble._guards.elsewhere", _guard.__file__)
    elsewhere = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(elsewhere)
    assert elsewhere.Guard("payments").name == "payments"


@needs_fork
def test_a_fork_leaves_the_parents_locks_alone():
    guard = TokenBudget()
    lock = guard._lock
    assert in_a_fork(lambda: 2 if guard._lock is lock else 0) == 0
    assert guard._lock is lock


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
