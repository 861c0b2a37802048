"""Faults that no other file of tests holds, or not as a whole. In the order of docs/explanation/faults.md.

What takes long is marked as slow.
"""

from __future__ import annotations

import abc
import ast
import asyncio
import contextlib
import functools
import gc
import importlib.util
import inspect
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
import types
import typing
import weakref
from collections import Counter
from pathlib import Path

import pytest

import redouble
from conftest import loop_time
from redouble import Policy, Rule, current_attempt, retry
from redouble.backoff import exponential, fixed
from redouble.breaker import CircuitBreaker, State
from redouble.budget import RatioBudget, TokenBudget
from redouble.bulkhead import Bulkhead
from redouble.classify import retry_after
from redouble.context import incoming
from redouble.deadletter import DeadLetters
from redouble.errors import CircuitOpen, DeadlineExceeded
from redouble.hedging import hedge, quantile
from redouble.metrics import Counters
from redouble.registry import Registry
from redouble.shared import FileBudget
from redouble.testing import FakeClock, scripted
from redouble.throttle import AdaptiveThrottle

PACKAGE = Path(redouble.__file__).parent
ROOT = Path(__file__).resolve().parent.parent
NAN, INF = float("nan"), float("inf")


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


# Arithmetic and configuration


def is_number(annotation):
    return bool({"int", "float", "Seconds"} & {part.strip() for part in str(annotation).split("|")})


def numbers_of(build):
    """The parameters that are declared as numbers, so that a new one is checked from its first day."""
    return [
        name for name, given in inspect.signature(build).parameters.items() if is_number(given.annotation)
    ]


RATED = {"failure_rate": 0.5}
# What makes each, with what it needs; the parameters that are numbers.
SIGNED = [
    (RatioBudget, {}),
    (TokenBudget, {}),
    (functools.partial(FileBudget, "budget.db"), {}),
    (CircuitBreaker, {}),
    (AdaptiveThrottle, {}),
    (Bulkhead, {"limit": 1}),
    (hedge, {"after": 1.0}),
    (quantile, {"q": 0.9, "initial": 1.0}),
    (Registry, {"make": len}),
    (functools.partial(DeadLetters, "letters.db"), {}),
    (Counters, {}),
]
NUMBERS = [
    *[
        (Policy, {}, name)
        for name in ("attempts", "base", "cap", "deadline", "timeout", "patience", "priority")
    ],
    *[(Rule, {}, name) for name in ("attempts", "base", "cap")],
    *[(build, needs, name) for build, needs in SIGNED for name in numbers_of(build)],
]


def called(build):
    return getattr(build, "func", build).__name__


def refusal(build, needs, name, value):
    """The message with which a value is refused when the thing is built."""
    if build is CircuitBreaker and name in ("window", "last_calls"):
        needs = RATED
    with pytest.raises(ValueError) as caught:
        build(**{**needs, name: value})
    return str(caught.value)


every_number = pytest.mark.parametrize(
    ("build", "needs", "name"), NUMBERS, ids=[f"{called(build)}-{name}" for build, _, name in NUMBERS]
)


@every_number
def test_no_number_of_anything_may_be_undefined_or_infinite_but_for_a_cap(build, needs, name):
    for value in (NAN, -INF):
        assert refusal(build, needs, name, value).startswith(f"{name} must be ")
    if name == "cap":
        assert build(cap=INF).cap == INF
    else:
        assert refusal(build, needs, name, INF).startswith(f"{name} must be ")


@every_number
def test_no_number_of_anything_may_be_negative_but_for_a_priority(build, needs, name):
    if name == "priority":
        build(**{**needs, name: -1})
    else:
        assert refusal(build, needs, name, -1).startswith(f"{name} must be ")


def test_the_numbers_that_are_checked_are_all_there_are():
    found = Counter(called(build) for build, _, _ in NUMBERS)
    assert found == {
        "Policy": 7, "Rule": 3, "RatioBudget": 3, "TokenBudget": 5, "FileBudget": 9, "CircuitBreaker": 8,
        "AdaptiveThrottle": 7, "Bulkhead": 2, "hedge": 5, "quantile": 3, "Registry": 1, "DeadLetters": 4,
        "Counters": 1,
    }  # fmt: skip


def test_a_single_attempt_costs_no_token_and_its_error_is_not_wrapped(flavour, policy, clock):
    budget, error = TokenBudget(capacity=10), TimeoutError("slow")
    with pytest.raises(TimeoutError) as caught:
        flavour.call(policy.replace(attempts=1, budget=budget), flavour.scripted(error))
    assert caught.value is error
    assert (error.__cause__, error.__context__) == (None, None)
    assert (budget.tokens, clock.waits) == (10.0, [])


# Server hints and HTTP


class Answered(Exception):
    """A server has answered with an error."""

    def __init__(self, status=503, **headers):
        super().__init__(status)
        self.status_code = status
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


NONSENSE = ["-1", "+1", "1e3", "0x10", "", " ", "1_0", "\u0663", "\u00b2", "NaN", "inf", "1.2.3", "soon",
            "Sun, 31 Feb 2030 00:00:00 GMT", "Fri, 01 Jan 99999 00:00:00 GMT"]  # fmt: skip


@pytest.mark.parametrize("value", NONSENSE, ids=ascii)
def test_a_hint_that_makes_no_sense_leaves_the_ordinary_wait(flavour, policy, clock, value):
    script = flavour.scripted(Answered(Retry_After=value), Answered(Retry_After=value), "page")
    assert flavour.call(policy, script) == "page"
    assert clock.waits == [1.0, 2.0]


@pytest.mark.parametrize("value", ["0", "Fri, 31 Dec 1999 23:59:59 GMT"])
def test_a_hint_of_nothing_is_not_an_invitation_to_hammer(flavour, policy, clock, value):
    script = flavour.scripted(*[Answered(Retry_After=value)] * 3, "page")
    assert flavour.call(policy, script) == "page"
    assert clock.waits == [1.0, 2.0, 4.0]


# A value of each header of the table, by which its row is known.
IN_SECONDS = {
    "retry-after-ms": "{}000",
    "x-ms-retry-after-ms": "{}000",
    "x-amz-retry-after": "{}000",
    "RateLimit": '"a";r=0;t={}',
    "x-ratelimit-reset-requests": "{}s",
}


def test_headers_are_asked_in_the_order_that_the_documentation_gives():
    page = (ROOT / "docs" / "reference" / "classify.md").read_text("utf-8").partition("## Hints")[2]
    order = re.findall(r"^\| \d+ \| `([\w-]+)`", page, flags=re.MULTILINE)
    assert len(order) >= 11
    headers = {name: IN_SECONDS.get(name, "{}").format(row) for row, name in enumerate(order, start=1)}
    for row, name in enumerate(order, start=1):
        assert retry_after(Answered(429, **headers)) == row
        del headers[name]


# Clocks and deadlines


def observed(clock):
    """What guards without a clock of their own say while fake seconds pass."""
    breaker = CircuitBreaker(failures=1, open_for=10.0)
    budget = RatioBudget(ratio=0.5, floor_per_second=0, window=10.0)
    throttle = AdaptiveThrottle()
    breaker.failure(breaker.enter(), TimeoutError())
    for _ in range(10):
        budget.success()
    throttle.throttled()
    seen = []
    for _ in range(12):
        clock.advance(1.0)
        seen.append((breaker.state, breaker.retry_after, budget.tokens, throttle.rate, throttle.acquire()))
    return seen


@pytest.mark.parametrize("step", [-3600.0, 3600.0, 0.001], ids=["back", "forward", "slewed"])
def test_a_wall_clock_that_jumps_moves_no_guard(monkeypatch, step):
    def with_a_wall_clock(step):
        steady, wall = FakeClock(1000.0), FakeClock(1.7e9)
        monkeypatch.setattr(time, "monotonic", steady)
        monkeypatch.setattr(time, "time", lambda: setattr(wall, "now", wall.now + step) or wall.now)
        return observed(steady)

    assert with_a_wall_clock(step) == with_a_wall_clock(0.0)


def test_a_wall_clock_that_jumps_moves_the_meaning_of_a_date_and_nothing_else(monkeypatch):
    date = {"Retry-After": "Mon, 03 Jun 2019 11:30:00 GMT"}
    monkeypatch.setattr(time, "time", lambda: 1559559600.0)  # 11:00:00
    assert (retry_after(date), retry_after({"Retry-After": "7"})) == (1800.0, 7.0)
    monkeypatch.setattr(time, "time", lambda: 1559559600.0 + 3600.0)
    assert (retry_after(date), retry_after({"Retry-After": "7"})) == (0.0, 7.0)


# Control flow and cancellation

INTERRUPTED = """
    import asyncio, os, signal, sys, threading
    from redouble import Policy, current_attempt
    from redouble.backoff import fixed
    from redouble.breaker import CircuitBreaker
    from redouble.budget import TokenBudget
    from redouble.bulkhead import Bulkhead

    signal.signal(signal.SIGINT, signal.default_int_handler)
    budget, bulkhead = TokenBudget(capacity=100), Bulkhead(1)
    breaker = CircuitBreaker(failures=1, open_for=1e-9, ignore=ConnectionResetError)
    policy = Policy(backoff=fixed, base=30.0, budget=budget, breaker=breaker, bulkhead=bulkhead)
    calls = []

    def fetch():
        calls.append(1)
        if len(calls) % 2:
            # By the time it comes, the call waits for its second attempt.
            threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
            raise ConnectionResetError("peer")
        return "page"

    async def fetch_async():
        return fetch()

    def both(call):
        breaker.failure(breaker.enter())  # from here on a probe at a time, and this call is one
        try:
            call()
        except KeyboardInterrupt as interrupt:
            print(len(calls), budget.tokens, breaker.refuses(), bulkhead.under_way, current_attempt())
        print(call(), breaker.state)

    if sys.argv[1] == "sync":
        both(lambda: policy.call(fetch))
    else:
        both(lambda: asyncio.run(policy.call(fetch_async)))
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="a signal to a process is a thing of POSIX")
def test_an_interrupt_of_the_wait_leaves_neither_a_place_nor_a_probe_taken(flavour):
    # All is as if the call had not been: the price of the retry that was never made is given back.
    assert run(INTERRUPTED, flavour) == ["1", "100.0", "False", "0", "None", "page", "closed"]


def test_a_call_cancelled_in_the_queue_leaves_its_probe_and_its_turn_to_the_next(virtual):
    breaker = CircuitBreaker(failures=1, open_for=1.0, clock=loop_time)
    bulkhead = Bulkhead(1, queue=1)
    fetch = Policy(breaker=breaker, bulkhead=bulkhead, clock=loop_time)(scripted("page", asynchronous=True))

    async def main():
        breaker.failure()
        await asyncio.sleep(1.0)
        assert bulkhead.acquire(0)
        waiting = asyncio.create_task(fetch())
        await asyncio.sleep(1.0)
        assert bulkhead.snapshot() == (1, 1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert bulkhead.snapshot() == (1, 0)
        bulkhead.release()
        assert (breaker.state, breaker.refuses()) == (State.half_open, False)
        assert await fetch() == "page"
        assert (breaker.state, bulkhead.snapshot()) == (State.closed, (0, 0))

    virtual(main)


def within_groups(interrupt, depth):
    error = BaseExceptionGroup("g", [TimeoutError(), interrupt])
    for _ in range(depth - 1):
        error = BaseExceptionGroup("g", [ConnectionResetError(), error])
    return error


@pytest.mark.parametrize("depth", [1, 4])
@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit, asyncio.CancelledError, GeneratorExit])
@pytest.mark.parametrize("on", [lambda error: True, Exception], ids=["predicate", "type"])
def test_a_group_with_an_interrupt_at_any_depth_passes_unretried(
    flavour, policy, clock, on, interrupt, depth
):
    error = within_groups(interrupt(), depth)
    script = flavour.scripted(error, "page")
    with pytest.raises(BaseExceptionGroup) as caught:
        flavour.call(policy.replace(on=on), script)
    assert caught.value is error
    assert (len(script.calls), clock.waits) == (1, [])


def test_a_group_of_failures_that_may_pass_is_waited_for_as_its_slowest_server_asks(flavour, policy, clock):
    inner = ExceptionGroup("inner", [Answered(Retry_After="9"), TimeoutError()])
    group = ExceptionGroup("outer", [Answered(429, Retry_After="2"), inner])
    assert flavour.call(policy, flavour.scripted(group, "page")) == "page"
    assert 9.0 <= clock.waits[0] <= 10.0
    mixed = ExceptionGroup("outer", [Answered(429), ExceptionGroup("inner", [KeyError("no such page")])])
    with pytest.raises(ExceptionGroup):
        flavour.call(policy, flavour.scripted(mixed, "page"))


# Classification and exception objects


def test_a_type_that_cannot_be_asked_lets_the_own_error_out_and_is_named(flavour, policy, clock):
    class Refuses(abc.ABCMeta):
        def __instancecheck__(cls, instance):
            raise RuntimeError("no questions")

    class Strange(Exception, metaclass=Refuses):
        pass

    error = TimeoutError("slow")
    with pytest.raises(TimeoutError) as caught:
        flavour.call(policy.replace(on=Strange), flavour.scripted(error, "page"))
    assert caught.value is error
    assert "deciding failed with RuntimeError: no questions" in error.__notes__[0]
    assert clock.waits == []


def test_a_type_that_is_registered_with_another_is_retried_as_that_one(flavour, policy, clock):
    class Flaky(Exception, metaclass=abc.ABCMeta):
        pass

    @Flaky.register
    class Other(Exception):
        pass

    assert flavour.call(policy.replace(on=Flaky), flavour.scripted(Other(), "page")) == "page"
    assert clock.waits == [1.0]


# The user's callbacks


def test_what_a_listener_gives_back_is_neither_entered_nor_kept(flavour, policy):
    given = []

    class Span:
        def __enter__(self):
            raise AssertionError("entered")

        def __exit__(self, *_):
            raise AssertionError("left")

    def listener(event):
        span = Span()
        given.append(weakref.ref(span))
        return span

    listening = policy.replace(listeners=[listener])
    assert flavour.call(listening, flavour.scripted(TimeoutError(), "page")) == "page"
    assert [reference() for reference in given] == [None, None]


@pytest.mark.parametrize(
    "trouble", [OSError(28, "no space left"), BrokenPipeError("gone"), ValueError()], ids=repr
)
def test_a_circuit_has_opened_before_a_handler_of_logs_can_fail(trouble, clock):
    import logging

    class Broken(logging.Handler):
        def emit(self, record):
            states.append(breaker.state)
            raise trouble

    states, handler = [], Broken()
    breaker = CircuitBreaker(failures=1, clock=clock)
    logging.getLogger("redouble").addHandler(handler)
    try:
        breaker.failure(breaker.enter(), TimeoutError())
    finally:
        logging.getLogger("redouble").removeHandler(handler)
    assert states == [State.open]
    with pytest.raises(CircuitOpen):
        breaker.enter()


# What can be decorated


def test_overloads_of_a_decorated_function_are_found():
    @typing.overload
    def fetch(key: int) -> int: ...
    @typing.overload
    def fetch(key: str) -> str: ...
    @retry
    def fetch(key):
        return key

    assert [found.__annotations__["key"] for found in typing.get_overloads(fetch)] == ["int", "str"]
    assert fetch("k") == "k"


CHECKERS = {"mypy": [], "pyright": ["--pythonpath", sys.executable]}


@pytest.mark.slow
@pytest.mark.parametrize("checker", CHECKERS)
def test_both_type_checkers_see_the_same_types_through_the_decorator(checker):
    """The file asserts a type at each use, and that what must not pass does not."""
    if importlib.util.find_spec(checker) is None:
        pytest.skip(f"{checker} is not installed")
    done = subprocess.run(
        [sys.executable, "-m", checker, *CHECKERS[checker], "tests/typing/api.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_file_for_the_type_checkers_asserts_sync_and_async_uses_of_the_decorator():
    source = (ROOT / "tests" / "typing" / "api.py").read_text("utf-8")
    tree = ast.parse(source)
    asserted = [
        call
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "assert_type"
    ]
    assert len(asserted) > 50
    decorated = [
        type(function)
        for function in ast.walk(tree)
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
        and any("retry" in ast.unparse(decorator) for decorator in function.decorator_list)
    ]
    assert {ast.FunctionDef, ast.AsyncFunctionDef} <= set(decorated)
    assert "# type: ignore[arg-type]" in source


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
    monkeypatch.setattr("redouble.events._logger", lambda: None)  # a test runner keeps what is logged
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
    from redouble._letters_sqlite import SqliteStore
    from redouble.deadletter import DeadLetters

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
ONE_PLACE = {"_time.py"}
SHORT_CUTS = {"_guard.py", "_sync_first.py", "breaker.py", "budget.py"}
# Real threads, processes, files and terminals, whose time nobody fakes; and the fake time of tests itself.
REAL = {
    "_threads.py",
    "_child.py",
    "_demo.py",
    "_letters_replaying.py",
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
