"""Slots of a bulkhead: by hand, in a block, around a function."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import gc
import pickle

import pytest

from conftest import watchdog
from redouble import bulkhead as module
from redouble.bulkhead import Bulkhead
from redouble.errors import BulkheadFull
from support.bulkheads import assert_sound, needs_fork, run, started, taken


@pytest.fixture(autouse=True)
def an_end():
    """Whoever waits for ever fails."""
    with watchdog():
        yield


def test_as_many_calls_as_the_limit_says_are_let_in():
    bulkhead = Bulkhead(2)
    assert (bulkhead.limit, bulkhead.queue, bulkhead.name) == (2, 0, "Bulkhead")
    assert [bulkhead.acquire() for _ in range(3)] == [True, True, False]
    assert (bulkhead.under_way, bulkhead.waiting) == (2, 0)
    bulkhead.release()
    assert bulkhead.acquire()


def test_a_refused_acquire_takes_nothing():
    bulkhead = taken()
    assert bulkhead.acquire(0) is False
    assert asyncio.run(bulkhead.acquire_async(0)) is False
    bulkhead.release()
    assert_sound(bulkhead)


def test_without_a_queue_nobody_waits():
    bulkhead = taken(queue=0)
    assert bulkhead.acquire() is False
    assert asyncio.run(bulkhead.acquire_async()) is False


def test_a_bulkhead_is_at_rest_while_nobody_is_under_way():
    bulkhead = Bulkhead(1)
    assert bulkhead.at_rest
    bulkhead.acquire()
    assert not bulkhead.at_rest


def test_a_bulkhead_says_what_it_holds():
    assert repr(taken(2)) == "<reports: 2 of 2 in flight, 0 waiting>"


def test_releasing_more_often_than_acquired_is_an_error_that_harms_nothing():
    bulkhead = taken()
    bulkhead.release()
    with pytest.raises(RuntimeError, match="reports was released more often than acquired") as caught:
        bulkhead.release()
    assert caught.value.__context__ is None
    assert_sound(bulkhead)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"limit": 0}, "limit must be at least 1, got 0"),
        ({"limit": True}, "limit must be a whole number, not a bool, got True"),
        ({"limit": float("nan")}, "limit must be a whole number, got nan"),
        ({"limit": 1, "queue": -1}, "queue must be at least 0, got -1"),
        ({"limit": 1, "queue": 1.5}, "queue must be a whole number, got 1.5"),
    ],
)
def test_a_wrong_size_is_refused_when_the_bulkhead_is_made(arguments, message):
    with pytest.raises(ValueError, match=message):
        Bulkhead(**arguments)


@pytest.mark.parametrize("timeout", [-1, float("nan"), True])
def test_a_wrong_timeout_is_refused_before_a_slot_is_taken(timeout):
    bulkhead = Bulkhead(1)
    with pytest.raises(ValueError, match="timeout must be"):
        bulkhead.acquire(timeout)
    with pytest.raises(ValueError, match="timeout must be"):
        asyncio.run(bulkhead.acquire_async(timeout))
    assert bulkhead.under_way == 0


def test_a_bulkhead_is_one_thing_and_does_not_travel():
    bulkhead = Bulkhead(1, name="reports")
    assert copy.copy(bulkhead) is copy.deepcopy(bulkhead) is bulkhead
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(TypeError, match=r"reports \(Bulkhead\) .* cannot be pickled"):
            pickle.dumps(bulkhead, protocol)


def test_the_error_says_which_bulkhead_is_full_and_what_to_do():
    bulkhead = taken(3, queue=0)
    with pytest.raises(BulkheadFull) as caught:
        bulkhead.__enter__()
    assert str(caught.value) == (
        "reports is full: at most 3 in flight and 0 waiting (limit=3, queue=0); "
        "call again later, or raise the limits"
    )
    assert (caught.value.name, caught.value.limit) == ("reports", 3)
    assert str(bulkhead.refusal()) == str(caught.value)


def test_a_slot_is_held_for_as_long_as_the_call_takes(flavour):
    bulkhead = Bulkhead(1)

    @bulkhead
    @flavour.function
    def fetch(url):
        return url, bulkhead.under_way

    assert flavour.run(fetch, "/") == ("/", 1)
    assert bulkhead.under_way == 0


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError])
def test_a_slot_is_given_back_however_the_call_ends(flavour, error):
    bulkhead = Bulkhead(1)

    @bulkhead
    @flavour.function
    def fetch():
        raise error

    with pytest.raises(error):
        flavour.run(fetch)
    assert_sound(bulkhead)


def test_a_full_bulkhead_does_not_call_the_function(flavour):
    bulkhead, calls = taken(queue=0), []
    with pytest.raises(BulkheadFull):
        flavour.run(bulkhead(flavour.function(lambda: calls.append(1))))
    assert calls == []
    assert bulkhead.under_way == 1


def test_a_block_holds_a_slot():
    bulkhead = Bulkhead(2)
    with bulkhead as entered:
        assert entered is bulkhead
        with bulkhead:
            assert bulkhead.under_way == 2
        assert bulkhead.under_way == 1
    with pytest.raises(OSError), bulkhead:
        raise OSError
    assert_sound(bulkhead)


def test_an_async_block_holds_a_slot():
    bulkhead = Bulkhead(1)

    async def main():
        async with bulkhead as entered:
            assert entered is bulkhead
            assert bulkhead.under_way == 1
            with pytest.raises(BulkheadFull):
                async with bulkhead:
                    raise AssertionError("let in")

    asyncio.run(main())
    assert_sound(bulkhead)


def test_a_block_may_be_left_in_another_thread():
    bulkhead = Bulkhead(1)
    bulkhead.__enter__()
    started(bulkhead.__exit__, None, None, None).join()
    assert_sound(bulkhead)


def test_a_bulkhead_may_be_entered_on_a_stack_or_by_hand(flavour):
    bulkhead = Bulkhead(2)

    async def use_async():
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(bulkhead)
            assert bulkhead.under_way == 1
        await bulkhead.__aenter__()
        assert bulkhead.under_way == 1
        await bulkhead.__aexit__(None, None, None)

    def use():
        with contextlib.ExitStack() as stack:
            assert stack.enter_context(bulkhead) is bulkhead
            assert bulkhead.under_way == 1
        bulkhead.__enter__()
        assert bulkhead.under_way == 1
        bulkhead.__exit__(None, None, None)

    flavour.run(use_async if flavour.is_async else use)
    assert bulkhead.under_way == 0


def test_a_way_out_that_nobody_enters_gives_nothing_back():
    bulkhead = Bulkhead(1)
    assert bulkhead.acquire()
    assert bulkhead.__exit__ is not None
    gc.collect()
    assert bulkhead.under_way == 1


@pytest.mark.slow
@needs_fork
def test_a_forked_child_works_whoever_held_the_lock_and_the_slots():
    code = """
        import os, signal, threading
        from redouble.bulkhead import Bulkhead

        bulkhead = Bulkhead(2, queue=3)
        assert bulkhead.acquire() and bulkhead.acquire()
        threading.Thread(target=bulkhead.acquire, daemon=True).start()
        while not bulkhead.waiting:
            pass
        held, done = threading.Event(), threading.Event()

        def hold():
            with bulkhead._lock:
                held.set()
                done.wait()

        threading.Thread(target=hold, daemon=True).start()
        held.wait()
        child = os.fork()
        if not child:
            signal.alarm(5)
            print(bulkhead.snapshot(), bulkhead.acquire(), bulkhead.acquire(), bulkhead.acquire(0), flush=True)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        done.set()
        print(bulkhead.snapshot())
    """
    assert " ".join(run(code)) == "(0, 0) True True False (2, 1)"


def test_neither_asyncio_nor_trio_is_imported_before_a_task_waits():
    code = """
        import sys
        from redouble.bulkhead import Bulkhead

        bulkhead = Bulkhead(1, queue=1)
        try:
            bulkhead.acquire_async().send(None)
        except StopIteration as end:
            print(end.value)
        print(bulkhead.acquire(0.001), {"asyncio", "trio", "typing", "threading"} & set(sys.modules))
    """
    assert run(code) == ["True", "False", "set()"]


def test_a_waiter_that_is_woken_twice_is_woken_once():
    turn = module.ThreadWaiter()
    assert turn.wake()
    assert turn.wake()
    turn.wait(0.0)
    assert not turn._event.acquire(blocking=False)
