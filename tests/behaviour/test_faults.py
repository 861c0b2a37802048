"""Faults that no other file of tests holds, or not as a whole. In the order of docs/development/faults.md.

What takes long is marked as slow.
"""

from __future__ import annotations

import abc
import ast
import asyncio
import functools
import importlib.util
import inspect
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
import typing
import weakref
from collections import Counter
from pathlib import Path

import pytest

import redouble
from conftest import loop_time
from redouble import Policy, Rule, retry
from redouble.backoff import exponential
from redouble.breaker import CircuitBreaker, State
from redouble.budget import RatioBudget, TokenBudget
from redouble.bulkhead import Bulkhead
from redouble.classify import retry_after
from redouble.dead_letters import DeadLetters
from redouble.errors import CircuitOpen
from redouble.hedging import hedge, quantile
from redouble.metrics import Counters
from redouble.registry import Registry
from redouble.shared import FileBudget
from redouble.testing import FakeClock, scripted
from redouble.throttle import AdaptiveThrottle

PACKAGE = Path(redouble.__file__).parent
ROOT = Path(__file__).resolve().parents[2]
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
    *[(Policy, {}, name) for name in ("attempts", "base", "cap", "floor", "deadline", "give_up_after")],
    *[(Policy, {}, name) for name in ("timeout", "max_retry_after", "priority")],
    *[(Rule, {}, name) for name in ("attempts", "base", "cap", "floor")],
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
def test_no_number_of_anything_may_be_undefined_or_infinite_but_for_limits_of_a_policy(build, needs, name):
    for value in (NAN, -INF):
        assert refusal(build, needs, name, value).startswith(f"{name} must be ")
    if build in (Policy, Rule) and name in ("attempts", "cap", "max_retry_after"):
        assert getattr(build(**{name: INF}), name) == INF
    elif build is Policy and name in ("deadline", "give_up_after", "timeout"):
        assert getattr(Policy(**{name: INF}), name) is None
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
        "Policy": 9, "Rule": 4, "RatioBudget": 3, "TokenBudget": 5, "FileBudget": 9, "CircuitBreaker": 8,
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


# Values of the headers that do not take plain seconds.
IN_SECONDS = {
    "retry-after-ms": "{}000",
    "x-ms-retry-after-ms": "{}000",
    "x-amz-retry-after": "{}000",
    "RateLimit": '"a";r=0;t={}',
    "x-ratelimit-reset-requests": "{}s",
}


def test_headers_are_asked_in_the_order_that_the_documentation_gives():
    page = (ROOT / "docs" / "reference" / "classify.md").read_text("utf-8").partition("## Hints")[2]
    order = re.findall(r"^\| `([\w-]+)`", page.partition("\n- ")[0], flags=re.MULTILINE)
    # That there is a row for each header is held by unit/classify/test_retry_after.py.
    assert len(order) >= 11
    headers = {name: IN_SECONDS.get(name, "{}").format(row) for row, name in enumerate(order, start=1)}
    for row, name in enumerate(order, start=1):
        assert retry_after(Answered(429, **headers)) == row, f"{name}: does IN_SECONDS need a value for it?"
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


def test_a_group_of_transient_failures_is_waited_for_as_its_slowest_server_asks(flavour, policy, clock):
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
