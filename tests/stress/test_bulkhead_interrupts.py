"""Interrupts and killed threads lose no slot of a bulkhead."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import threading
import time

import pytest

from conftest import watchdog
from redouble import bulkhead as module
from redouble.bulkhead import Bulkhead
from support.bulkheads import assert_sound, eventually, interrupt, run, started, taken

HERE = module.__file__


class Interrupt(BaseException):
    """Not an Exception, as KeyboardInterrupt, but ends no test run."""


@pytest.fixture(autouse=True)
def an_end():
    """Whoever waits for ever fails."""
    with watchdog():
        yield


POINTS = ("call", "c_return")  # at the start of a function, and after a call of something built in


@contextlib.contextmanager
def at_point(number, action):
    """Runs the action at the point of that number inside the bulkhead; says whether it was reached."""
    reached = []

    def profile(frame, event, _):
        if frame.f_code.co_filename == HERE and event in POINTS:
            reached.append((frame.f_code.co_name, event))
            if len(reached) == number:
                sys.setprofile(None)
                action()

    sys.setprofile(profile)
    try:
        yield reached
    finally:
        sys.setprofile(None)


def interrupted_everywhere(body):
    """Runs the body with an interrupt at its first point, its second, and so on: ``body(spoil)``."""
    number = 0
    while True:
        number += 1
        spoiled = []

        def spoil(function, *args, number=number, spoiled=spoiled):
            """Calls it with an interrupt in it; gives where that was, ``None`` when all points are through."""
            with at_point(number, interrupt) as reached:
                try:
                    function(*args)
                except KeyboardInterrupt:
                    spoiled.append(reached[-1])
            return spoiled[-1] if spoiled else None

        body(spoil)
        if not spoiled:
            assert number > 3
            return


def test_an_acquire_that_is_interrupted_takes_no_slot():
    def body(spoil):
        bulkhead = Bulkhead(1)
        if spoil(bulkhead.acquire) is None:
            bulkhead.release()
        assert_sound(bulkhead)

    interrupted_everywhere(body)


def test_an_acquire_that_is_interrupted_around_its_wait_leaves_the_queue():
    def body(spoil):
        bulkhead = taken()
        spoil(bulkhead.acquire, 0.001)
        assert bulkhead.snapshot() == (1, 0)
        bulkhead.release()
        assert_sound(bulkhead)

    interrupted_everywhere(body)


def undisturbed(function):
    """Calls it without an interrupt in it."""
    profile = sys.getprofile()
    sys.setprofile(None)
    function()
    sys.setprofile(profile)


def test_an_acquire_that_is_interrupted_when_it_was_handed_a_slot_passes_it_on(monkeypatch):
    def body(spoil):
        bulkhead, given = taken(), []
        monkeypatch.setattr(
            module.ThreadWaiter,
            "wait",
            lambda turn, seconds: undisturbed(lambda: given.append(bulkhead.release())),
        )
        if spoil(bulkhead.acquire) is None or not given:
            bulkhead.release()
        assert_sound(bulkhead)

    interrupted_everywhere(body)


@pytest.mark.parametrize("timeout", [None, 60])
def test_a_task_that_is_interrupted_at_any_point_keeps_no_slot(timeout):
    def body(spoil):
        bulkhead, given = taken(), []

        async def main():
            give = undisturbed, lambda: given.append(bulkhead.release())
            asyncio.get_running_loop().call_soon(*give)
            await bulkhead.acquire_async(timeout)

        if spoil(lambda: asyncio.run(main())) is None or not given:
            bulkhead.release()
        assert_sound(bulkhead)

    interrupted_everywhere(body)


def test_a_release_that_is_interrupted_once_it_has_begun_is_made():
    def body(spoil):
        bulkhead = taken()
        if spoil(bulkhead.release) == ("release", "call"):
            assert bulkhead.snapshot() == (1, 0)
            bulkhead.release()
        assert_sound(bulkhead)

    interrupted_everywhere(body)


def test_a_release_that_is_interrupted_wakes_the_one_it_was_for():
    def body(spoil):
        bulkhead, results = taken(), []
        thread = started(lambda: results.append(bulkhead.acquire()))
        eventually(lambda: bulkhead.waiting == 1)
        if spoil(bulkhead.release) == ("release", "call"):
            bulkhead.release()
        thread.join(60)
        assert results == [True]
        bulkhead.release()
        assert_sound(bulkhead)

    interrupted_everywhere(body)


@pytest.mark.slow
def test_a_signal_handler_may_give_a_slot_back_in_the_middle_of_an_acquire():
    number, waited = 0, 0
    while True:
        number += 1
        bulkhead = taken()
        with at_point(number, bulkhead.release) as reached:
            assert bulkhead.acquire(0.02) or len(reached) != number or reached[-1][0] in ("_dequeue", "wait")
        if len(reached) < number:
            break
        waited += 1
        assert bulkhead.snapshot() in [(0, 0), (1, 0)]
        while bulkhead.under_way:
            bulkhead.release()
        assert_sound(bulkhead)
    assert waited > 10


KILLS = """
import ctypes, sys, threading, time
from redouble.bulkhead import Bulkhead

class Killed(BaseException):
    pass

def on_the_doorstep(error):
    # At the first instruction of a release, of which nothing was done then.
    trace = error.__traceback__
    while trace.tb_next is not None:
        trace = trace.tb_next
    code = trace.tb_frame.f_code
    return code is Bulkhead.release.__code__ and trace.tb_lineno == code.co_firstlineno

def use(number):
    alive.add(number)
    while not stop:
        if bulkhead.acquire(0.001):
            try:
                most.add(bulkhead.under_way)
            finally:
                bulkhead.release()

def work(number):
    while not stop:
        try:
            use(number)
        except Killed as error:
            alive.discard(number)
            if on_the_doorstep(error):
                bulkhead.release()
            deaths[number] += 1

def kill(number):
    before = deaths[number]
    while number not in alive:
        time.sleep(0.0001)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(threads[number].ident), ctypes.py_object(Killed))
    while deaths[number] == before:
        time.sleep(0.0001)

bulkhead, deaths, most, alive, stop = Bulkhead(2, queue=4), [0] * 4, set(), set(), []
sys.setswitchinterval(1e-5)
threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(4)]
for thread in threads:
    thread.start()
for _ in range(250):
    for number in range(4):
        kill(number)
stop.append(1)
for thread in threads:
    thread.join()
print(deaths, max(most), bulkhead.snapshot())
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.implementation.name != "cpython", reason="needs the C API")
def test_threads_that_are_killed_anywhere_lose_no_slot_and_double_none():
    # In an interpreter of its own, in which nothing else is killed by mistake, and no tracer slows it down.
    assert " ".join(run(KILLS)) == "[250, 250, 250, 250] 2 (0, 0)"


KILLED_USERS = """
import ctypes, random, sys, threading, time
from redouble.bulkhead import Bulkhead

class Killed(Exception):
    pass

bulkhead = Bulkhead(1000)

def block():
    with bulkhead:
        pass

use = block if sys.argv[1] == "block" else bulkhead(lambda: None)

def once():
    global deaths
    while not stop:
        try:
            use()
        except Killed:
            deaths += 1

def twice():
    while not stop:
        try:
            once()
        except Killed:
            pass

def work():
    while not stop:
        try:
            twice()
        except Killed:
            pass

stop, deaths = [], 0
sys.setswitchinterval(1e-4)
thread = threading.Thread(target=work, daemon=True)
thread.start()
while deaths < 500:
    time.sleep(random.uniform(0.0, 0.001))
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(Killed))
# Take back what was not raised yet: it would be raised in the end of the thread.
ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), None)
stop.append(1)
thread.join()
print(bulkhead)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.implementation.name != "cpython", reason="needs the C API")
@pytest.mark.parametrize("how", ["block", "decorator"])
def test_exceptions_from_other_threads_lose_no_slot_of_a_block_or_of_a_decorated_function(how):
    assert " ".join(run(KILLED_USERS, how)) == "<Bulkhead: 0 of 1000 in flight, 0 waiting>"


def interrupted_on_the_way_out():
    """Raises what a signal handler may raise: before the first line of the way out."""
    frame_of_exit = module._BlockPermit._leave.__code__

    def tracer(frame, event, _):
        if event == "call" and frame.f_code is frame_of_exit:
            sys.settrace(None)
            raise Interrupt

    sys.settrace(tracer)


@pytest.mark.skipif(sys.implementation.name != "cpython", reason="relies on reference counts")
def test_an_interrupt_before_the_first_line_of_the_way_out_loses_no_slot(flavour):
    bulkhead, before = Bulkhead(1), sys.gettrace()

    def use():
        with bulkhead:
            interrupted_on_the_way_out()

    async def use_async():
        async with bulkhead:
            interrupted_on_the_way_out()

    try:
        with pytest.raises(Interrupt) as caught:
            flavour.run(use_async if flavour.is_async else use)
    finally:
        sys.settrace(before)
    assert bulkhead.under_way == 0, caught  # although somebody still holds the interrupt and its frames
    assert bulkhead.acquire()


def test_whoever_waits_gets_the_slot_that_an_interrupt_would_have_lost():
    bulkhead, waiting = Bulkhead(1, queue=1), []

    def wait():
        waiting.append(bulkhead.acquire())

    way = bulkhead.__exit__
    bulkhead.__enter__()
    thread = threading.Thread(target=wait)
    thread.start()
    while not bulkhead.waiting:
        time.sleep(0.001)
    del way  # gone, and never called
    gc.collect()
    thread.join(60)
    assert waiting == [True]
