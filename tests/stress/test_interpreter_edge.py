"""At the edge of an interpreter: where it ends, where it is one of several, where it is interrupted or runs out.

What is interrupted for real, or ends, does so in a process of its own. The programs share `guarded` and `unsound`
with the tests in this file. The longer ones are marked ``slow``.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading

import pytest

from redouble.dead_letters import DeadLetters
from support.interrupted_calls import SHARED, TIMERS, guarded, run, unsound

FORKS = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")


# The end of an interpreter


@pytest.mark.slow
def test_at_exit_async_calls_are_retried_and_dead_letters_are_kept_sync_and_async(tmp_path):
    code = """
        from redouble.dead_letters import DeadLetters

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
