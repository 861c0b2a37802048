"""Faults around a call: threads, memory, hedging, dead letters, processes and environments."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import functools
import gc
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
import types
from pathlib import Path

import pytest

import redouble
from conftest import loop_time
from redouble import Policy, current_attempt, retry
from redouble.backoff import exponential, fixed
from redouble.breaker import CircuitBreaker, State
from redouble.budget import RatioBudget
from redouble.context import incoming
from redouble.dead_letters import DeadLetters
from redouble.errors import CircuitOpen, DeadlineExceeded
from redouble.hedging import hedge
from redouble.metrics import Counters
from redouble.testing import FakeClock, scripted
from redouble.throttle import AdaptiveThrottle

PACKAGE = Path(redouble.__file__).parent
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def policy(clock):
    """Waits of 1, 2, 4 s on fake time."""
    return Policy(backoff=exponential, clock=clock, sleep=clock.sleep)


def run(code, *arguments, ends_with=0):
    """Runs a program in a new interpreter; gives what it printed. Anything on stderr is a failure."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code), *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(PACKAGE.parent)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stderr) == (ends_with, "")
    return done.stdout.split()


# Threads

STRESS = """
    import sys, threading
    from redouble import Policy
    from redouble.breaker import CircuitBreaker
    from redouble.budget import RatioBudget, TokenBudget
    from redouble.bulkhead import Bulkhead
    from redouble.metrics import Counters
    from redouble.registry import Registry
    from redouble.testing import FakeClock

    THREADS, TURNS = 64, 12
    sys.setswitchinterval(1e-6)
    clock = FakeClock()
    purse = TokenBudget(capacity=500, cost=1, timeout_cost=1)
    ratio = RatioBudget(ratio=1.0, floor_per_second=0, clock=clock)
    breaker = CircuitBreaker(failure_rate=1.0, minimum_calls=10**6, window=10.0, clock=clock)
    bulkhead, counters = Bulkhead(THREADS), Counters()
    registry = Registry(lambda key: TokenBudget(capacity=1))
    policy = Policy(attempts=2, sleep=lambda seconds: None, breaker=breaker, bulkhead=bulkhead,
                    listeners=[counters], name="fetch")
    together, granted, found, wrong = threading.Barrier(THREADS), [], [], []

    def fetch(seen):
        seen.append(1)
        if len(seen) == 1:
            raise TimeoutError
        return len(seen)

    def work():
        together.wait()
        try:
            for turn in range(TURNS):
                if policy.call(fetch, []) != 2:
                    wrong.append("a call that was not its own")
                ratio.success()
                granted.append(purse.acquire())
                found.append((turn, id(registry[turn])))
        except Exception as error:
            wrong.append(repr(error))

    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    calls, told = THREADS * TURNS, counters.snapshot().policies["fetch"]
    print(wrong, sum(granted), purse.tokens, ratio.tokens == calls, breaker.counted == (2 * calls, calls),
          bulkhead.snapshot() == (0, 0), len(set(found)), told.recovered == told.retries == calls,
          sep=";", end=";")
    print(getattr(sys, "_is_gil_enabled", lambda: True)())
"""


@pytest.mark.slow
def test_64_threads_lose_nothing_on_whatever_build_of_python_this_is():
    """On a free-threaded build this runs without the lock of the interpreter, which must stay off."""
    import sysconfig

    locked = not sysconfig.get_config_var("Py_GIL_DISABLED")
    (line,) = run(STRESS)
    assert line == f"[];500.0;0.0;True;True;True;12;True;{locked}"


# Memory


@pytest.mark.slow
@pytest.mark.skipif(sys.gettrace() is not None, reason="a tracer takes memory of its own, and its time")
def test_a_hundred_thousand_calls_leave_counts_and_no_history(monkeypatch):
    monkeypatch.setattr(
        "redouble.events.logger_for", lambda *given: None
    )  # a test runner keeps what is logged
    counters = Counters()
    policy = Policy(attempts=2, base=0, listeners=[counters], clock=FakeClock(), sleep=lambda seconds: None)

    @policy
    def fetch():
        raise TimeoutError("slow")

    def calls(count):
        for _ in range(count):
            with contextlib.suppress(TimeoutError):
                fetch()
        counters.snapshot()
        gc.collect()
        return sys.getallocatedblocks()

    before = calls(10**4)
    assert calls(10**5) - before < 1000
    (counted,) = counters.snapshot().policies.values()
    assert counted.gave_up == {"attempts": 11 * 10**4}


# Hedging


def test_a_breaker_within_a_hedge_counts_the_winner_and_no_loser(virtual):
    async def main():
        breaker = CircuitBreaker(failure_rate=0.5, minimum_calls=100, window=600.0, clock=loop_time)
        durations = iter([9.0, 9.0, 0.5])

        @hedge(after=1.0, attempts=3)
        @breaker
        async def fetch():
            await asyncio.sleep(next(durations))
            return "page"

        assert await fetch() == "page"
        assert loop_time() == 2.5
        assert breaker.counted == (1, 0)

    virtual(main)


def test_a_cancelled_hedge_gives_its_probe_back(virtual):
    async def main():
        breaker = CircuitBreaker(failures=1, open_for=60.0, probes=2, successes=2, clock=loop_time)
        breaker.failure()
        await asyncio.sleep(60.0)
        durations = iter([9.0, 0.5])

        @hedge(after=1.0)
        @breaker
        async def fetch():
            await asyncio.sleep(next(durations))
            return "page"

        assert await fetch() == "page"
        # The winner is one success of two; the place of the loser is free for the other.
        assert breaker.state is State.half_open
        breaker.success(breaker.enter())
        assert breaker.state is State.closed

    virtual(main)


def pushed_back(milliseconds):
    """A failure as gRPC raises it, with the word of the server on when to come back."""
    unavailable = types.SimpleNamespace(name="UNAVAILABLE", value=(14, "unavailable"))
    body = {
        "__module__": "grpc._channel",
        "code": lambda self: unavailable,
        "details": lambda self: "busy",
        "trailing_metadata": lambda self: (("grpc-retry-pushback-ms", milliseconds),),
    }
    return type("_InactiveRpcError", (Exception,), body)()


@pytest.mark.parametrize(
    ("milliseconds", "starts"),
    [("-1", [0.0]), ("soon", [0.0]), ("2500", [0.0, 3.0]), ("0", [0.0, 0.5])],
)
def test_pushback_of_a_server_ends_hedging_or_says_when_the_next_may_come(virtual, milliseconds, starts):
    async def main():
        seen = []

        @hedge(after=60.0, attempts=2)
        async def fetch():
            seen.append(loop_time())
            await asyncio.sleep(0.5)
            if len(seen) == 1:
                raise pushed_back(milliseconds)
            return "page"

        with contextlib.suppress(Exception):
            await fetch()
        assert seen == starts

    virtual(main)


# Dead letters

DIES_AFTER_ITS_COMMIT = """
    import os, signal, sys
    from redouble.dead_letters._sqlite import SqliteStore
    from redouble.dead_letters import DeadLetters

    class Deadly(SqliteStore):
        def add(self, letter, **fields):
            super().add(letter, **fields)
            os.kill(os.getpid(), signal.SIGKILL)

    DeadLetters(Deadly(sys.argv[1])).put(payload=7, idempotency_key=sys.argv[2] or None)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no kill -9 here")
@pytest.mark.parametrize(("key", "kept"), [("order-7", 1), ("", 2)], ids=["with a key", "without a key"])
def test_a_writer_killed_before_it_knew_of_its_success_writes_once_where_there_is_a_key(tmp_path, key, kept):
    path = tmp_path / "letters.db"
    run(DIES_AFTER_ITS_COMMIT, path, key, ends_with=-signal.SIGKILL)
    with DeadLetters(path) as letters:
        # It cannot know that the first is there, so it does the same again.
        letters.put(payload=7, idempotency_key=key or None)
        assert [letter.payload for letter in letters] == [7] * kept
        assert sum(letter.puts for letter in letters) == 2


def test_the_default_limits_of_a_file_are_finite(tmp_path):
    with DeadLetters(tmp_path / "letters.db") as letters:
        assert (letters.max_rows, letters.max_bytes, letters.ttl) == (100_000, 2**30, 14 * 86_400.0)


@pytest.mark.slow
def test_letters_without_end_take_the_room_of_those_that_are_kept(tmp_path):
    """A few thousand, with REDOUBLE_LONG a hundred thousand: each is on the disk before `put` gives it."""
    many = 10**5 if os.environ.get("REDOUBLE_LONG") == "1" else 3000
    sizes = {}
    with DeadLetters(tmp_path / "letters.db", max_rows=200) as letters:
        for number in range(1, many + 1):
            letters.put(payload=number)
            if number in (many // 5, many):
                assert letters.depth() == 200
                sizes[number] = sum(file.stat().st_size for file in tmp_path.iterdir())
        assert [letter.payload for letter in letters.list(limit=1)] == [many - 199]
    assert sizes[many] < 1.2 * sizes[many // 5]


# Processes, interpreters, environments

TIMED = """
import sys, time
before = time.process_time()
import redouble
between = time.process_time()
import asyncio
print(between - before, time.process_time() - between)
"""


@pytest.mark.slow
def test_importing_redouble_takes_less_than_20_milliseconds_or_half_of_asyncio(tmp_path):
    """Of the time of a processor, with byte code at hand; on a machine that is slow or busy, the latter."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment |= {"PYTHONPATH": str(PACKAGE.parent), "PYTHONPYCACHEPREFIX": str(tmp_path)}
    took = []
    for _ in range(4):
        done = subprocess.run(
            [sys.executable, "-c", TIMED],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        took.append(tuple(map(float, done.stdout.split())))
    took = took[1:]  # the first has compiled
    assert min(ours for ours, _ in took) < max(0.020, min(theirs for _, theirs in took) / 2)


@functools.cache
def nodes():
    """What stands in each module of the package, read as the oldest Python that is supported would."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_text("utf-8"), feature_version=(3, 11))
        found[path.relative_to(PACKAGE).as_posix()] = list(ast.walk(tree))
    return found


@pytest.mark.slow
def test_every_module_keeps_to_the_syntax_of_the_oldest_python():
    assert len(nodes()) > 100
    assert ">=3.11" in (ROOT / "pyproject.toml").read_text("utf-8")


@pytest.mark.slow
def test_no_module_asserts_anything_so_that_nothing_is_lost_under_optimization():
    assert [
        f"{name}:{node.lineno}"
        for name, found in nodes().items()
        for node in found
        if isinstance(node, ast.Assert) or (isinstance(node, ast.Name) and node.id == "__debug__")
    ] == []


# Where monotonic time is read. Guards and the success path look for fake time themselves: a call less.
ONE_PLACE = {"_base/clock.py"}
SHORT_CUTS = {
    "_guards/base.py",
    "context.py",
    "_engine/first.py",
    "_engine/call.py",
    "breaker.py",
    "budget.py",
}
# Real threads, processes, files and terminals, whose time nobody fakes; and the fake time of tests itself.
REAL = {
    "_cli/demo.py",
    "_cli/process.py",
    "_cli/replay.py",
    "hedging/_threads.py",
    "testing/_clock.py",
}


@pytest.mark.slow
def test_monotonic_time_is_read_in_one_place_but_for_short_cuts_that_look_for_fake_time():
    reading = set()
    for name, found in nodes().items():
        for node in found:
            # A function that was taken out of the module could not be patched there.
            assert not (isinstance(node, ast.ImportFrom) and node.module == "time"), name
            if isinstance(node, ast.Attribute) and node.attr == "monotonic":
                reading.add(name)
    assert reading == ONE_PLACE | SHORT_CUTS | REAL
    for name in SHORT_CUTS:
        assert re.search(r"\bfakes\b", (PACKAGE / name).read_text("utf-8")), name


def test_a_library_that_freezes_time_freezes_calls_and_guards_alike(monkeypatch):
    """As freezegun and time-machine do: another function stands in for ``time.monotonic``."""
    frozen = FakeClock(50.0)
    breaker, budget = CircuitBreaker(failures=1, open_for=10.0), RatioBudget(ratio=1.0, floor_per_second=0)
    fetch = retry(deadline=5.0, attempts=None, backoff=fixed)(scripted(*[TimeoutError()] * 4, "page"))
    monkeypatch.setattr(time, "monotonic", frozen)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    assert fetch() == "page"  # four waits of a second each count, though no time has passed
    breaker.failure(breaker.enter(), TimeoutError())
    budget.success()
    assert (breaker.state, breaker.retry_after, budget.tokens) == (State.open, 10.0, 1.0)
    frozen.advance(10.0)
    assert (breaker.state, budget.tokens) == (State.half_open, 0.0)
    monkeypatch.setattr(time, "sleep", frozen.sleep)
    with pytest.raises(DeadlineExceeded):
        retry(deadline=5.0, attempts=None, backoff=fixed)(scripted(then=TimeoutError()))()
    assert frozen.waits == [1.0] * 4


def test_a_clock_that_is_injected_is_the_only_one_that_is_read(monkeypatch, clock):
    def forbidden():
        raise AssertionError("the real clock was read")

    monkeypatch.setattr(time, "monotonic", forbidden)
    breaker = CircuitBreaker(failures=1, open_for=10.0, clock=clock)
    budget, throttle = RatioBudget(clock=clock), AdaptiveThrottle(clock=clock, sleep=clock.sleep)
    policy = Policy(
        deadline=60.0, budget=budget, breaker=breaker, throttle=throttle, clock=clock, sleep=clock.sleep
    )
    assert Policy(deadline=60.0, clock=clock).call(lambda: current_attempt().remaining) == 60.0
    with incoming({"x-request-timeout-ms": "30000"}, clock=clock):
        assert policy.call(lambda: current_attempt().remaining) == 30.0
    with pytest.raises(TimeoutError):
        policy.call(scripted(TimeoutError()))
    with pytest.raises(CircuitOpen):
        policy.call(scripted())
    clock.advance(10.0)
    assert policy.call(scripted("page")) == "page"
