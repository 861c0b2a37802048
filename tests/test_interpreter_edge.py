"""At the edge of an interpreter: where it ends, where it is one of several, where it is interrupted or runs out.

What is interrupted for real, or ends, does so in a process of its own. The programs share `guarded` and `unsound`
with the tests in this file. The longer ones are marked ``slow``.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import inspect
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

import redouble
from conftest import where_nothing_is_traced
from redouble import Policy, current_attempt, retry, retrying
from redouble.breaker import CircuitBreaker
from redouble.budget import TokenBudget
from redouble.bulkhead import Bulkhead
from redouble.deadletter import DeadLetters
from redouble.testing import FakeClock, scripted
from redouble.throttle import AdaptiveThrottle

PACKAGE = str(Path(redouble.__file__).parent)
LONG = os.environ.get("REDOUBLE_LONG") == "1"
FORKS = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
TIMERS = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no interval timers on this system")


def guarded(**fields):
    """A policy with every guard, on a clock of its own."""
    clock = FakeClock()
    settings = {
        "attempts": 4,
        "base": 0.01,
        "cap": 0.02,
        "deadline": 600.0,
        "clock": clock,
        "sleep": clock.sleep,
        "budget": TokenBudget(capacity=100),
        "breaker": CircuitBreaker(failures=3, open_for=5.0, clock=clock),
        "throttle": AdaptiveThrottle(clock=clock),
        "bulkhead": Bulkhead(1, queue=1),
        "idempotency_key": True,
        "listeners": [lambda event: None],
        "name": "fetch",
    }
    return Policy(**{**settings, **fields})


def unsound(policy):
    """What an interrupted call has left behind: nothing, if all is well."""
    places, tokens = policy.bulkhead.snapshot(), policy.budget.tokens
    if places != (0, 0):
        return [f"places: {places}"]  # the next call would wait for one without end
    found = [] if 0.0 <= tokens <= policy.budget.capacity else [f"tokens: {tokens}"]
    found += [] if current_attempt() is None else [f"context: {current_attempt()}"]
    # A probe that was lost is replaced when the circuit has been open for as long again; a deadline that was
    # left behind has passed by now.
    if hasattr(policy.clock, "advance"):
        policy.clock.advance(1000.0)
    try:
        pages = [policy.call(lambda: "page") for _ in range(2)]
    except Exception as error:
        return [*found, f"the next call: {error!r}"]
    return found if pages == ["page", "page"] else [*found, f"the next calls gave {pages}"]


SHARED = "\n".join(
    [
        "import asyncio, atexit, os, random, signal, sys, threading, time",
        "from redouble import Policy, current_attempt, retry, retrying",
        "from redouble.breaker import CircuitBreaker",
        "from redouble.budget import TokenBudget",
        "from redouble.bulkhead import Bulkhead",
        "from redouble.testing import FakeClock, scripted",
        "from redouble.throttle import AdaptiveThrottle",
        inspect.getsource(guarded),
        inspect.getsource(unsound),
    ]
)


def run(code, *arguments, timeout=60):
    """What a program printed, in a new interpreter; whatever it writes to stderr is a failure."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SHARED + textwrap.dedent(code), *arguments],
        env={**os.environ, "PYTHONPATH": str(Path(PACKAGE).parent)},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert (done.stderr, done.returncode) == ("", 0)
    return done.stdout.split("\n")[:-1]


# The end of an interpreter


@pytest.mark.slow
def test_at_exit_async_calls_are_retried_and_dead_letters_are_kept_sync_and_async(tmp_path):
    code = """
        from redouble.deadletter import DeadLetters

        letters = DeadLetters(sys.argv[1])
        policy = Policy(attempts=2, base=0.0, timeout=5.0, dead_letters=letters, payload=lambda when: when)

        @policy
        def lost(when):
            raise TimeoutError("slow")

        @policy
        async def lost_async(when):
            raise TimeoutError("slow")

        def given_up(call):
            try:
                call()
            except TimeoutError as error:
                assert "could not be stored" not in error.__notes__[0], error.__notes__

        @atexit.register
        def last():
            given_up(lambda: lost("sync, at exit"))
            given_up(lambda: asyncio.run(lost_async("async, at exit")))
            print(asyncio.run(retry(base=0.0)(scripted(TimeoutError(), "page", asynchronous=True))()))

        given_up(lambda: lost("before"))
    """
    path = tmp_path / "letters.db"
    assert run(code, str(path)) == ["page"]
    with DeadLetters(path) as letters:
        assert sorted(letter.payload for letter in letters.list()) == [
            "async, at exit",
            "before",
            "sync, at exit",
        ]


def test_where_no_thread_is_to_be_had_at_the_end_a_dead_letter_is_put_on_the_loop(tmp_path, monkeypatch):
    threads = []

    class Over(threading.Thread):
        def is_alive(self):
            return False

    async def put(letters):
        with monkeypatch.context() as patched:
            patched.setattr(threading, "main_thread", Over)
            return await letters.aput(payload=1, error=TimeoutError("slow"))

    with DeadLetters(tmp_path / "letters.db") as letters:
        monkeypatch.setattr(asyncio, "to_thread", lambda *args: threads.append(args))
        asyncio.run(put(letters))
        assert letters.depth() == 1
    assert threads == []


@pytest.mark.slow
def test_daemon_threads_that_retry_without_a_pause_are_silent_when_the_interpreter_ends():
    code = """
        policy = Policy(
            attempts=3, base=0.0001, cap=0.0002, deadline=5.0, budget=TokenBudget(capacity=1e9),
            breaker=CircuitBreaker(failures=10**9), throttle=AdaptiveThrottle(), bulkhead=Bulkhead(2, queue=50),
            listeners=[lambda event: None],
        )

        @policy
        def fetch():
            raise TimeoutError("slow")

        @policy
        async def fetch_async():
            raise TimeoutError("slow")

        def block():
            for attempt in retrying(policy):
                with attempt:
                    raise TimeoutError("slow")

        started = threading.Barrier(9)

        def work(call):
            started.wait()
            while True:
                try:
                    call()
                except Exception:
                    pass

        for call in (fetch, block, lambda: asyncio.run(fetch_async()), fetch) * 2:
            threading.Thread(target=work, args=(call,), daemon=True).start()
        started.wait()
        time.sleep(0.05)
        print("main ends")
    """
    for _ in range(3):
        assert run(code) == ["main ends"]


@pytest.mark.slow
def test_a_finalizer_that_outlives_all_modules_gets_the_error_of_the_function_and_keeps_no_permit():
    code = """
        policy = guarded(idempotency_key=False)

        @policy
        def fetch():
            raise TimeoutError("slow")

        class Late:
            def __del__(self, fetch=fetch, bulkhead=policy.bulkhead, print=print, TimeoutError=TimeoutError):
                try:
                    fetch()
                except TimeoutError as error:
                    print(error, bulkhead.under_way)

        import builtins
        builtins.late = Late()
    """
    assert run(code) == ["slow 0"]


# Interpreters within a process

INTERPRETERS = "_interpreters" if sys.version_info >= (3, 13) else "_xxsubinterpreters"

IN_EACH = """
policy = guarded(attempts=3, budget=TokenBudget(capacity=1e6), breaker=CircuitBreaker(failures=50))
for _ in range(50):
    calls = []

    @policy
    def fetch():
        calls.append(current_attempt().number)
        if len(calls) < 3:
            raise TimeoutError("slow")
        return "page"

    assert (fetch(), calls) == ("page", [1, 2, 3])
assert unsound(policy) == []
"""

# Two of them bring down 3.12.1 with nothing but asyncio.run in each.
IN_EACH_ASYNC = """
from redouble.hedging import hedge

async def main():
    fetch = retry(base=0.0)(scripted(TimeoutError(), "page", asynchronous=True))
    return await fetch()

assert asyncio.run(main()) == "page"
assert hedge(after=0.0)(lambda: "page")() == "page"
"""

AT_ONCE = f"""
import {INTERPRETERS} as interpreters

results = []

def one():
    made = interpreters.create()
    try:
        results.append(interpreters.run_string(made, sys.argv[1]))
    finally:
        interpreters.destroy(made)

threads = [threading.Thread(target=one) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(results)
"""


def in_two_at_once(code):
    pytest.importorskip(INTERPRETERS, reason="this Python has no interpreters within a process")
    # Without asyncio, unless the program is about it.
    shared = SHARED if "asyncio." in code else SHARED.replace("import asyncio, ", "import ")
    return run(AT_ONCE, shared + code)


@pytest.mark.slow
def test_two_interpreters_at_once_each_retry_with_guards_of_their_own():
    # From 3.12 on each has a lock of its own, and they run side by side.
    assert in_two_at_once(IN_EACH) == ["[None, None]"]


@pytest.mark.slow
@pytest.mark.skipif(sys.version_info[:2] == (3, 12), reason="asyncio alone crashes interpreters of 3.12.1")
def test_two_interpreters_at_once_each_await_and_hedge():
    assert in_two_at_once(IN_EACH_ASYNC) == ["[None, None]"]


# Signals in waits


@pytest.mark.slow
@TIMERS
def test_a_storm_of_signals_shortens_no_wait_and_what_a_handler_raises_ends_it_at_once():
    code = """
        from redouble.backoff import fixed

        class Rude(TimeoutError):
            pass  # which would be retried, if it came out of an attempt

        def rude(*_):
            raise Rude

        def quiet(*_):
            strikes.append(1)

        def waited(seconds, asynchronous):
            calls = []

            @retry(attempts=2, backoff=fixed, base=seconds, cap=seconds)
            def fetch():
                calls.append(time.monotonic())
                raise TimeoutError("slow")

            @retry(attempts=2, backoff=fixed, base=seconds, cap=seconds)
            async def fetch_async():
                calls.append(time.monotonic())
                raise TimeoutError("slow")

            try:
                asyncio.run(fetch_async()) if asynchronous else fetch()
            except TimeoutError as error:
                signal.setitimer(signal.ITIMER_REAL, 0)
                return type(error), len(calls), calls[-1] - calls[0]

        for asynchronous in (False, True):
            strikes = []
            signal.signal(signal.SIGALRM, quiet)
            signal.setitimer(signal.ITIMER_REAL, 0.001, 0.0005)
            kind, calls, seconds = waited(0.08, asynchronous)
            assert (kind, calls) == (TimeoutError, 2), (kind, calls)
            assert seconds >= 0.079 and len(strikes) > 5, (seconds, len(strikes))

            signal.signal(signal.SIGALRM, rude)
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            began = time.monotonic()
            assert waited(30.0, asynchronous) == (Rude, 1, 0.0)
            assert time.monotonic() - began < 10
        print("done")
    """
    assert run(code) == ["done"]


# Interrupts wherever Python lets one in: at the start of a function, and when one written in C returns.


class Moment(KeyboardInterrupt):
    pass


class Interrupting:
    """Raises at one such moment within redouble: at the so-many-th, or at the first of a kind."""

    def __init__(self, number=0, kind=None):
        self.number, self.kind, self.count, self.raised = number, kind, 0, None

    def __call__(self, frame, event, arg):
        if event not in ("call", "c_return") or not frame.f_code.co_filename.startswith(PACKAGE):
            return
        if frame.f_code.co_flags & inspect.CO_GENERATOR or in_finalizer(frame):
            return
        self.count += 1
        moment = event, frame.f_code.co_qualname, getattr(arg, "__qualname__", None)
        if self.count == self.number or moment == self.kind:
            sys.setprofile(None)
            self.raised = moment
            raise Moment


def in_finalizer(frame):
    """Whether an object goes: what is raised then is printed and lost, whoever raises it."""
    while frame is not None and frame.f_code.co_name != "__del__":
        frame = frame.f_back
    return frame is not None


def third_time():
    return scripted(TimeoutError("slow"), TimeoutError("slow"), "page")


def stepped(coroutine):
    """Runs a coroutine that never suspends."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    finally:
        coroutine.close()
    raise AssertionError("it waits for something")


def by_call(policy):
    return policy(third_time())()


def by_known_call(policy):
    """A first attempt in its own surroundings, with nothing else to do."""
    return policy.replace(breaker=None, budget=None, throttle=None, bulkhead=None)(third_time())()


def by_deadline(policy):
    """Under a policy that asks for a deadline and nothing else, which has a way of its own."""
    return Policy(deadline=policy.deadline, clock=policy.clock, sleep=policy.sleep)(third_time())()


def by_async_call(policy):
    fetch = third_time()

    async def fetch_async():
        return fetch()

    return stepped(policy.replace(deadline=None)(fetch_async)())


def by_block(policy):
    fetch = third_time()
    for attempt in retrying(policy):
        with attempt:
            page = fetch()
    return page


def by_async_block(policy):
    fetch = third_time()

    async def main():
        async for attempt in retrying(policy.replace(deadline=None)):
            async with attempt:
                page = fetch()
        return page

    return stepped(main())


def by_scope(policy):
    # Not while it opens and closes: what comes between a with and its __exit__ is beyond any library.
    interrupting = sys.getprofile()
    sys.setprofile(None)
    with retrying(policy) as call:
        pass
    sys.setprofile(interrupting)
    return call(third_time())  # after the scope its deadline is set for the call alone


def by_probe(policy):
    for _ in range(3):
        policy.breaker.failure(None, TimeoutError())
    policy.clock.advance(6.0)
    return policy(lambda: "page")()


WAYS = [by_call, by_deadline, by_async_call, by_block, by_async_block, by_scope, by_probe]


def interrupted(way, interrupting):
    """What came out of a call with such an interrupt, and what it has left behind."""
    policy, context = guarded(), contextvars.Context()

    def watched():
        sys.setprofile(interrupting)
        try:
            return way(policy)
        finally:
            sys.setprofile(None)

    try:
        outcome = context.run(watched)
    except Moment:
        outcome = "interrupted"
    gc.collect()
    return outcome, context.run(unsound, policy)


@pytest.mark.parametrize(
    ("way", "kind"),
    [
        (by_call, ("c_return", "within", "ContextVar.set")),
        (by_known_call, ("c_return", "_wrap_known.<locals>.wrapper", "ContextVar.set")),
        (by_deadline, ("c_return", "_wrap_known.<locals>.wrapper", "ContextVar.set")),
        (by_async_call, ("c_return", "within", "ContextVar.set")),
        (by_scope, ("c_return", "Scope.__call__", "ContextVar.set")),
        (by_block, ("c_return", "BlockAttempt.__enter__", "ContextVar.set")),
        (by_block, ("call", "BlockAttempt.__exit__", None)),
        (by_block, ("call", "leave", None)),
    ],
    ids=lambda value: value.__name__ if callable(value) else value[1],
)
def test_an_interrupt_on_the_way_into_or_out_of_an_attempt_leaves_no_deadline_behind(way, kind):
    interrupting = Interrupting(kind=kind)
    assert interrupted(way, interrupting) == ("interrupted", [])
    assert interrupting.raised == kind


@pytest.mark.parametrize("way", [by_call, by_async_call, by_block], ids=lambda way: way.__name__)
@pytest.mark.parametrize("where", ["Passage.leave", "Bulkhead._give_back"])
def test_an_interrupt_before_a_place_is_given_back_does_not_keep_it(way, where):
    interrupting = Interrupting(kind=("call", where, None))
    assert interrupted(way, interrupting) == ("interrupted", [])
    assert interrupting.raised


def test_a_place_is_given_back_once_however_often_that_is_tried():
    bulkhead = Bulkhead(2)
    assert bulkhead.acquire()
    assert bulkhead.acquire()
    claim = bulkhead._claim()
    for give_back in (bulkhead._give_back, bulkhead._give_back, bulkhead._pass_on):
        give_back(claim)
        assert bulkhead.snapshot() == (1, 0)


def test_an_interrupt_when_an_async_loop_is_made_leaves_nothing_to_complain_about(recwarn):
    interrupting = Interrupting(kind=("call", "AsyncBlocks.__init__", None))
    unraisable, before = [], sys.unraisablehook
    sys.unraisablehook = unraisable.append
    try:
        assert interrupted(by_async_block, interrupting) == ("interrupted", [])
    finally:
        sys.unraisablehook = before
    assert interrupting.raised
    assert unraisable == []


@pytest.mark.slow
@where_nothing_is_traced
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_an_interrupt_at_any_moment_leaves_nothing_behind(way):
    assert interrupted(way, Interrupting()) == ("page", [])
    number, found = 0, {}
    while True:
        number += 1
        interrupting = Interrupting(number)
        outcome, left = interrupted(way, interrupting)
        if interrupting.raised is None:
            break
        if outcome != "interrupted" or left:
            found[number, *interrupting.raised] = outcome, left
    assert found == {}
    assert number > 250


@TIMERS
@pytest.mark.slow
def test_real_interrupts_at_random_moments_leave_nothing_behind():
    code = """
        import gc

        gc.freeze()
        gc.disable()  # what is raised while the collector is at work is printed and lost
        interrupts, found, rng = 0, [], random.Random(1)
        while interrupts < int(sys.argv[1]):
            gc.collect()
            policy = guarded()
            try:
                try:
                    signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-5, 8e-4))
                    policy(scripted(TimeoutError("slow"), TimeoutError("slow"), "page"))()
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                interrupts += 1
            found += unsound(policy)
        print(found)
    """
    handler = "signal.signal(signal.SIGALRM, signal.default_int_handler)\n"
    assert run(handler + textwrap.dedent(code), "5000" if LONG else "200", timeout=600) == ["[]"]


@pytest.mark.slow
def test_threads_that_are_ended_at_random_moments_keep_no_permit_of_a_policy():
    code = """
        import ctypes

        class Killed(BaseException):
            pass

        policy = guarded(
            clock=None, sleep=None, base=0.0, budget=TokenBudget(capacity=1e9), bulkhead=Bulkhead(3, queue=20),
            breaker=CircuitBreaker(failures=10**9), throttle=AdaptiveThrottle(),
        )
        over, inside = False, [False] * 4

        def work(number):
            rng = random.Random(number)

            def fetch():
                if rng.random() < 0.5:
                    raise TimeoutError("slow")

            decorated, inside[number] = policy(fetch), True
            while not over:
                try:
                    decorated()
                except TimeoutError:
                    pass

        def begun(number):
            thread = threading.Thread(target=work, args=(number,), daemon=True)
            thread.start()
            return thread

        threading.excepthook = lambda told: None if told.exc_type is Killed else sys.__excepthook__(*told[:3])
        sys.setswitchinterval(1e-6)
        threads, rng, kills = [begun(number) for number in range(4)], random.Random(7), 0
        while kills < int(sys.argv[1]):
            number = rng.randrange(4)
            if not inside[number]:
                time.sleep(0)
                continue
            ident = ctypes.c_ulong(threads[number].ident)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(Killed))
            threads[number].join(20)  # only then the next: not two at once in one thread
            assert not threads[number].is_alive()
            inside[number] = False
            threads[number] = begun(number)
            kills += 1
        over = True
        for thread in threads:
            thread.join(20)
        assert not any(thread.is_alive() for thread in threads)
        print(unsound(policy))
    """
    assert run(code, "5000" if LONG else "200", timeout=600) == ["[]"]


# A stack that is nearly full


def depth():
    frame, count = sys._getframe(1), 0
    while frame is not None:
        frame, count = frame.f_back, count + 1
    return count


def sunk(frames, function):
    """Calls a function with so many frames more on the stack."""
    return function() if frames <= 0 else sunk(frames - 1, function)


def with_room_for(frames, function):
    """What a function gives that may go no deeper than so many frames."""
    try:
        return sunk(sys.getrecursionlimit() - depth() - frames - 3, function)
    except RecursionError:
        return "too deep"
    except TimeoutError:
        return "not retried"  # it was too deep to decide about it


untraced = pytest.mark.skipif(sys.gettrace() is not None, reason="a tracer takes part of the stack")


@untraced
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_call_whose_stack_is_nearly_full_gives_its_result_or_a_recursion_error_and_keeps_nothing(way):
    assert way(guarded()) == "page"  # whatever is imported late is there
    outcomes = []
    for frames in range(2, 40):
        policy, context = guarded(), contextvars.Context()
        outcomes.append(with_room_for(frames, lambda: context.run(way, policy)))  # noqa: B023 - called at once
        assert context.run(unsound, policy) == []
    assert {"page", "too deep"} <= set(outcomes) <= {"page", "too deep", "not retried"}


async def page():
    return "page"


def by_hand(bulkhead):
    bulkhead.acquire()
    try:
        return "page"
    finally:
        bulkhead.release()


def by_with(bulkhead):
    with bulkhead:
        return "page"


async def by_async_with(bulkhead):
    async with bulkhead:
        return "page"


@untraced
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")  # where there was no room to await it
@pytest.mark.parametrize(
    "way",
    [
        by_hand,
        by_with,
        lambda bulkhead: stepped(by_async_with(bulkhead)),
        lambda bulkhead: bulkhead(lambda: "page")(),
        lambda bulkhead: stepped(bulkhead(page)()),
        lambda bulkhead: Policy(bulkhead=bulkhead)(lambda: "page")(),
        lambda bulkhead: stepped(Policy(bulkhead=bulkhead)(page)()),
    ],
    ids=["by hand", "with", "async with", "decorator", "async decorator", "policy", "async policy"],
)
def test_a_place_that_could_be_taken_on_a_nearly_full_stack_can_be_given_back(way):
    outcomes = []
    for frames in range(1, 30):
        bulkhead = Bulkhead(1)
        outcomes.append(with_room_for(frames, lambda: way(bulkhead)))  # noqa: B023 - called at once
        assert bulkhead.snapshot() == (0, 0)
    assert "page" in outcomes


def test_a_predicate_without_end_is_asked_once_and_the_error_of_the_function_comes_out(flavour):
    asked, error = [], TimeoutError("slow")

    def endless():
        return endless()

    def predicate(failure):
        asked.append(failure)
        return endless()

    fetch = flavour.scripted(error, "page")
    with pytest.raises(TimeoutError) as caught:
        flavour.call(Policy(on=predicate, base=0.0), fetch)
    assert caught.value is error
    assert len(asked) == 1
    assert "RecursionError" in error.__notes__[0]


def test_a_listener_without_end_takes_no_part_in_the_call(flavour, clock):
    def listener(event):
        return listener(event)

    policy = Policy(listeners=[listener], clock=clock, sleep=clock.sleep)
    assert flavour.call(policy, flavour.scripted(TimeoutError(), "page")) == "page"


def test_a_decorated_function_that_calls_itself_without_end_is_not_retried_at_every_level():
    calls = []

    @retry(base=0.0)
    def endless():
        calls.append(1)
        return endless()

    began = time.monotonic()
    with pytest.raises(RecursionError):
        endless()
    assert len(calls) < sys.getrecursionlimit()
    assert time.monotonic() - began < 10


# Memory that is not to be had


def test_a_memory_error_of_the_function_comes_out_at_once_and_frees_what_the_call_held(flavour):
    error, policy = MemoryError("no room"), guarded()
    with pytest.raises(MemoryError) as caught:
        flavour.call(policy, flavour.scripted(error, "page"))
    assert caught.value is error
    assert not hasattr(error, "__notes__")
    assert unsound(policy) == []


@pytest.mark.slow
@pytest.mark.parametrize("form", ["call", "async", "block"])
def test_an_allocation_that_fails_anywhere_gives_no_wrong_result_and_keeps_no_permit(form):
    pytest.importorskip("_testcapi", reason="this Python cannot fail on purpose")
    code = """
        import _testcapi, contextvars, gc, logging

        logging.getLogger("redouble").disabled = True

        def fetch(calls):
            calls[0] += 1
            if calls[0] < 3:
                raise TimeoutError("slow")
            return "page"

        async def fetch_async(calls):
            return fetch(calls)

        # Decorated beforehand: Python itself crashes where it has no memory for a closure.
        def by_call(policy):
            return policy(fetch)

        def by_async(policy):
            decorated = policy(fetch_async)

            def stepped(calls):
                try:
                    decorated(calls).send(None)
                except StopIteration as end:
                    return end.value

            return stepped

        def by_block(policy):
            def block(calls):
                for attempt in retrying(policy):
                    with attempt:
                        page = fetch(calls)
                return page

            return block

        way = {"call": by_call, "async": by_async, "block": by_block}[sys.argv[1]]
        fields = {"deadline": None} if way is by_async else {}
        way(guarded(**fields))([0])
        gc.freeze()
        gc.disable()

        def at(number, call):
            _testcapi.set_nomemory(number, number + 1)
            try:
                return call([0])
            finally:
                _testcapi.remove_mem_hooks()

        outcomes, found, number, quiet = {}, [], 0, 0
        while quiet < 100:
            number += 1
            policy, context = guarded(**fields), contextvars.Context()
            call = way(policy)
            try:
                outcome = context.run(at, number, call)
            except BaseException as error:
                outcome = type(error).__name__
            _testcapi.remove_mem_hooks()
            gc.collect()
            quiet = quiet + 1 if outcome == "page" else 0
            outcomes[outcome] = outcomes.get(outcome, 0) + 1
            # Looked at in another context: Python cannot even leave one where it has no memory for that.
            found += [(number, outcome, left) for left in contextvars.Context().run(unsound, policy)]
        # Python itself says SystemError where its own C code fails without an error.
        assert set(outcomes) <= {"page", "MemoryError", "TimeoutError", "SystemError"}, outcomes
        assert outcomes["MemoryError"] > 50, outcomes
        print(found)
    """
    assert run(code, form) == ["[]"]


# A fork in the middle of a wait


@pytest.mark.slow
@FORKS
def test_a_fork_in_the_middle_of_a_wait_leaves_both_sides_sound():
    code = """
        parent, clock = os.getpid(), FakeClock()

        def sleep(seconds):
            clock.sleep(seconds)
            if not forked:
                forked.append(os.fork())

        forked = []
        policy = guarded(clock=clock, sleep=sleep)
        page = policy(scripted(TimeoutError("slow"), "page"))()
        where = "parent" if os.getpid() == parent else "child"
        if where == "parent":
            os.waitpid(forked[0], 0)
        print(where, page, unsound(policy), flush=True)
        os._exit(0)
    """
    assert run(code) == ["child page []", "parent page []"]
