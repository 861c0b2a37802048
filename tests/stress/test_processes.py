"""redouble in child processes, at the end of an interpreter, in subinterpreters and under interpreter switches."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from support.programs import ROOT, run_program

# Processes


PROCESSES = """
import multiprocessing, os, sys

from redouble import Policy, retry


def no_wait(seconds):
    pass


POLICY = Policy(attempts=3, on=OSError, sleep=no_wait, name="in the child")


@POLICY
def work(path):
    if path is None:
        return os.getpid()
    return os.stat(path)


def child(policy, pipe):
    try:
        policy.call(os.stat, "/nowhere/at all")
    except OSError as error:
        pipe.send((policy, error.__notes__[0].splitlines()[0]))


def main():
    for method in ("fork", "spawn", "forkserver"):
        context = multiprocessing.get_context(method)
        here, there = context.Pipe()
        process = context.Process(target=child, args=(POLICY, there))
        process.start()
        policy, note = here.recv()
        process.join()
        assert process.exitcode == 0
        assert policy == POLICY
        assert "gave up on in the child after 3 attempts" in note, note
        with context.Pool(1) as pool:
            assert pool.apply(work, (None,)) != os.getpid()
            try:
                pool.apply(work, ("/nowhere/at all",))
            except FileNotFoundError as error:
                assert "after 3 attempts" in error.__notes__[0]
            else:
                raise SystemExit("no error came back")
            pool.close()
            pool.join()
    print("done")


if __name__ == "__main__":
    main()
"""


@pytest.mark.slow
def test_policies_and_decorated_functions_work_in_forked_and_spawned_processes(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(PROCESSES)
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        env={**os.environ, "PYTHONPATH": ROOT},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout.strip(), done.stderr) == ("done", "")


def test_a_call_may_be_retried_in_a_child_that_was_forked_during_its_wait():
    code = """
        import os
        from redouble import retry

        calls, parent = [], os.getpid()

        def sleep(seconds):
            if os.fork():
                os.wait()

        @retry(attempts=2, sleep=sleep, deadline=60.0)
        def fetch():
            calls.append(1)
            if len(calls) < 2:
                raise TimeoutError
            return "page"

        print(fetch(), "child" if os.getpid() != parent else "parent", flush=True)
        os._exit(0)
    """
    assert run_program(code).split("\n") == ["page child", "page parent"]


# The end of an interpreter


@pytest.mark.slow
def test_a_decorated_function_works_in_atexit():
    code = """
        import atexit
        from redouble import retry

        calls = []

        @atexit.register
        @retry(base=0.01, deadline=60.0)
        def flush():
            calls.append(1)
            if len(calls) < 3:
                raise TimeoutError("slow")
            print("flushed after", len(calls))
    """
    assert run_program(code) == "flushed after 3"


@pytest.mark.slow
def test_a_daemon_thread_that_waits_at_shutdown_is_silent():
    code = """
        import threading
        from redouble import retry, retrying

        started = threading.Barrier(3)

        @retry(attempts=9, base=30.0, backoff=lambda *args, **kwargs: 30.0)
        def fetch(calls=[]):
            if not calls:
                calls.append(1)
                started.wait()
            raise TimeoutError("slow")

        def block():
            for attempt in retrying(attempts=9, backoff=lambda *args, **kwargs: 30.0):
                with attempt:
                    if attempt.number == 1:
                        started.wait()
                    raise TimeoutError("slow")

        threading.Thread(target=fetch, daemon=True).start()
        threading.Thread(target=block, daemon=True).start()
        started.wait()
        print("main ends")
    """
    began = time.monotonic()
    assert run_program(code) == "main ends"
    assert time.monotonic() - began < 20


@pytest.mark.slow
def test_what_comes_out_while_modules_are_torn_down_is_the_result_or_the_error_of_the_function():
    code = """
        from redouble import retry

        @retry(base=0.0)
        def fetch(calls=[]):
            calls.append(1)
            if len(calls) < 3:
                raise TimeoutError("slow")
            return "page"

        class Late:
            def __del__(self, fetch=fetch, print=print, TimeoutError=TimeoutError):
                try:
                    print(fetch())
                except TimeoutError as error:
                    print(error)

        import builtins
        builtins.late = Late()  # outlives every module
    """
    # Nothing can be imported by then, random not either: how far such a call comes is Python's to say.
    assert run_program(code) in ("page", "slow")


# Interpreters within a process

INTERPRETERS = "_interpreters" if sys.version_info >= (3, 13) else "_xxsubinterpreters"


def test_redouble_works_in_subinterpreters():
    inner = """
from redouble import retry, retrying, current_attempt
calls = []

@retry(attempts=3, base=0.0, deadline=60.0)
def fetch():
    calls.append(current_attempt().number)
    if len(calls) < 3:
        raise TimeoutError("slow")
    return "page"

assert fetch() == "page"
assert calls == [1, 2, 3]
for attempt in retrying(base=0.0):
    with attempt:
        if attempt.number == 1:
            raise TimeoutError("slow")
assert attempt.number == 2
print("worked", flush=True)
"""
    code = f"""
import {INTERPRETERS} as interpreters
import redouble
for _ in range(2):
    made = interpreters.create()
    trouble = interpreters.run_string(made, {inner!r})
    assert trouble is None, trouble
    interpreters.destroy(made)
assert redouble.retry(lambda: 1)() == 1
"""
    assert run_program(code).split() == ["worked"] * 2


# Odd switches

SMOKE = """
import asyncio
from redouble import DeadlineExceeded, Policy, ResultRejected, current_attempt, retry, retrying
from redouble.testing import FakeClock, no_waits, scripted


def check(condition, what):
    if not condition:
        raise SystemExit(what)  # not an assert: -O takes those away


clock = FakeClock()
policy = Policy(attempts=3, clock=clock, sleep=clock.sleep, name="caf\\xe9")

check(policy.call(scripted(TimeoutError(), "page")) == "page", "retry")

try:
    policy.call(scripted(*[TimeoutError("slow \\u20ac")] * 3))
except TimeoutError as error:
    check("gave up on caf\\xe9 after 3 attempts" in error.__notes__[0], "note")
else:
    raise SystemExit("no error")

try:
    policy.replace(deadline=0.5, backoff=lambda *args, **kwargs: 1.0).call(scripted(TimeoutError()))
except DeadlineExceeded as error:
    check(error.attempts == 1 and isinstance(error.last_error, TimeoutError), "deadline")
else:
    raise SystemExit("no deadline")

try:
    policy.replace(until=bool).call(scripted(0, 0, 0))
except ResultRejected as error:
    check(error.result == 0, "result")
else:
    raise SystemExit("no rejection")

runs = []
for attempt in retrying(policy):
    with attempt:
        runs.append(attempt.number)
        if attempt.number < 3:
            raise TimeoutError
check(runs == [1, 2, 3], "block")


@retry(attempts=3, base=0.0, timeout=60.0)
async def fetch(seen):
    seen.append(current_attempt().number)
    await asyncio.sleep(0)
    if len(seen) < 3:
        raise ConnectionResetError("peer")
    return seen


check(asyncio.run(fetch([])) == [1, 2, 3], "async")


@policy
async def items(outcome):
    outcome()
    yield 1


async def main():
    return [item async for item in items(scripted(TimeoutError(), None))]


check(asyncio.run(main()) == [1], "stream")

header = {"Retry-After": "Fri, 31 Dec 1999 23:59:59 GMT"}
from redouble.classify import parse_retry_after

check(parse_retry_after(header["Retry-After"], now=946684739.0) == 60.0, "date in any zone")
with no_waits() as waits:
    retry(scripted(TimeoutError(), 1))()
check(len(waits) == 1, "no_waits")
check("Calls up to 4 times" in Policy().describe(), "describe")
try:
    Policy(attempts=0)
except ValueError:
    print("fine")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("switches", "environment"),
    [
        (["-O"], {}),
        (["-OO"], {}),
        (["-W", "error"], {}),
        (["-X", "dev", "-W", "error"], {}),
        (["-bb", "-W", "error"], {}),
        ([], {"PYTHONHASHSEED": "1"}),
        ([], {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}),
        ([], {"TZ": "America/St_Johns"}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "-".join(value),
)
def test_it_works_under_odd_switches(switches, environment):
    assert run_program(SMOKE, *switches, **environment) == "fine"
