"""The cases of the benchmark: paths, libraries and goals.

Each library, and some lines of plain Python, is set up the same way as far as it allows: 4 calls in all, exponential
backoff with jitter from 1 s to 30 s, on `ConnectionError` and `TimeoutError`, logging and instrumentation off where there
is a switch. Each builder imports its library itself, so that a library that is not installed only loses its own rows.
"""

from __future__ import annotations

import functools
import itertools
import random
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import client_cases
from benchmarks.client_cases import AIOHTTP, ASYNC_HTTPX, CLIENT_PATHS, HTTPX, URLLIB3_POOL

Call = Callable[[int], Any]
AsyncCall = Callable[[int], Coroutine[Any, Any, int]]

SYNC = "success, default policy, sync"
ASYNC = "success, default policy, async"
DEADLINE = "success with a deadline, sync"
GUARDED = "success, full budget and clean breaker, sync"
COUNTED = "success, budget and breaker that count, sync"
FAILING = "three failures, then success, no sleeping"
BLOCK = "for attempt in ...: with attempt: success"
MADE = "a policy of three settings made"
ONCE = "one call under a policy that is there, success"
ANEW = "a policy made for one call, success"
VERDICT = "one failure judged"
PUT = "a dead letter put, safe on the disk"
IMPORT = "import in a cold process"
MEMORY = "memory of a waiting async call"
PATHS = (
    SYNC,
    ASYNC,
    DEADLINE,
    GUARDED,
    COUNTED,
    FAILING,
    BLOCK,
    MADE,
    ONCE,
    ANEW,
    VERDICT,
    PUT,
    *CLIENT_PATHS,
)
ASYNC_PATHS = frozenset({ASYNC, ASYNC_HTTPX, AIOHTTP})

REDOUBLE = "redouble"
BARE = "bare try/except"
LOOP = "hand-written loop"
ISINSTANCE = "isinstance"
TENACITY = "tenacity"
TRANSPORT = "bare transport"
HTTPX_RETRIES = "httpx_retries"
AIOHTTP_RETRY = "aiohttp_retry"
URLLIB3_RETRY = "urllib3"
FASTEST_PEER = "fastest peer"

TRANSIENT = (ConnectionError, TimeoutError)
ATTEMPTS = 4
BASE = 1.0
CAP = 30.0
BUDGET = 20.0  # seconds, for the path with a deadline


@dataclass(frozen=True)
class Case:
    """One thing that is timed: a callable of one argument on one path."""

    path: str
    call: Call
    variant: str = ""


@dataclass(frozen=True)
class Goal:
    """redouble's figure on `path` is at most `limit` times that of the case named `against`.

    With `above`, it is at most `limit` nanoseconds above that of the case.
    """

    path: str
    against: str
    limit: float
    above: bool = False


# Where a goal is not met yet, the limit is the figure of today, and a comment has the goal.
GOALS = (
    Goal(SYNC, BARE, 1.16),
    Goal(SYNC, LOOP, 0.8),
    Goal(SYNC, TENACITY, 1 / 60),
    Goal(SYNC, FASTEST_PEER, 1 / 4),
    Goal(ASYNC, BARE, 1.05),
    Goal(ASYNC, TENACITY, 1 / 40),
    Goal(DEADLINE, LOOP, 3.0),
    Goal(GUARDED, LOOP, 1.5),
    Goal(COUNTED, LOOP, 2.5),
    Goal(FAILING, TENACITY, 0.35),
    Goal(BLOCK, TENACITY, 1 / 12),
    # A policy checks its values and is immutable, tenacity's object is neither. What counts is 6 us; it takes 4.8 to 5.2.
    Goal(MADE, TENACITY, 2.1),
    Goal(MADE, f"{TENACITY}, replaced", 2.2),
    Goal(ONCE, TENACITY, 1 / 10),
    Goal(ANEW, TENACITY, 1 / 2),
    Goal(VERDICT, ISINSTANCE, 8.0),
    Goal(VERDICT, f"{ISINSTANCE}, HTTP 503", 35.0),
    Goal(VERDICT, f"{ISINSTANCE}, HTTP 503 with Retry-After", 70.0),
    Goal(VERDICT, f"{ISINSTANCE}, wrapped three times", 200.0),
    Goal(VERDICT, TENACITY, 1 / 6),
    # Not for the pool of urllib3: it takes ten times the limit by itself, and varies as much.
    *(Goal(path, TRANSPORT, 3_000, above=True) for path in CLIENT_PATHS if path != URLLIB3_POOL),
    Goal(HTTPX, HTTPX_RETRIES, 1.4),
    Goal(ASYNC_HTTPX, HTTPX_RETRIES, 1.4),
    Goal(AIOHTTP, AIOHTTP_RETRY, 0.4),
    Goal(URLLIB3_POOL, URLLIB3_RETRY, 1.25),
    Goal(IMPORT, TENACITY, 0.50),  # goal 0.42
    Goal(MEMORY, TENACITY, 0.45),
)

# Modules of the standard library that are slow to import and that a first call does not need.
UNWANTED_MODULES = frozenset({"asyncio", "ssl", "_ssl", "sqlite3", "_sqlite3", "email", "http"})


def work(x: int) -> int:
    """Do as little as possible, so that the time is that of the wrapper."""
    return x


async def work_async(x: int) -> int:
    """Do the same as a coroutine function; it never suspends."""
    return x


def three_failures() -> Call:
    """Return a function that fails three times, succeeds once, and starts over. Each library gets its own."""
    failing = itertools.cycle((True, True, True, False))

    def flaky(x: int) -> int:
        if next(failing):
            raise ConnectionError("reset by peer")
        return x

    return flaky


def no_sleep(_seconds: object) -> None:
    """Replace the sleep of libraries that take one as an argument."""


@contextmanager
def time_sleep_skipped() -> Iterator[None]:
    """Replace `time.sleep`, for libraries that always call it.

    A wait of 0 s would not do: `time.sleep(0)` is a system call that can take longer than the retry. This way all
    libraries compute the same jittered waits, and none of them waits.
    """
    real = time.sleep
    time.sleep = no_sleep
    try:
        yield
    finally:
        time.sleep = real


class AnswerError(Exception):
    """An exception of a client library, with its response."""

    def __init__(self, **headers: str) -> None:
        usual = {"server": "x", "date": "Mon, 03 Jun 2019 11:00:00 GMT", "content-length": "0"}
        self.response = Answer(usual | headers)


class Answer:
    """A response with a status and headers."""

    status_code = 503

    def __init__(self, headers: dict[str, str]) -> None:
        self.headers = headers


def wrapped(error: Exception) -> Exception:
    for _ in range(3):
        outer = RuntimeError("wrapped")
        outer.__cause__ = error
        error = outer
    return error


# The failures of the path VERDICT, by variant.
FAILURES: dict[str, Exception] = {
    "": ConnectionResetError("reset by peer"),
    "HTTP 503": AnswerError(),
    "HTTP 503 with Retry-After": AnswerError(**{"retry-after": "7"}),
    "wrapped three times": wrapped(ConnectionResetError("reset by peer")),
}


def judging(judge: Callable[[Exception], Any]) -> list[Case]:
    """Return a case for each failure; `judge` and one call around it are timed."""

    def case(error: Exception) -> Call:
        def call(x: int) -> int:
            judge(error)
            return x

        return call

    return [Case(VERDICT, case(error), variant) for variant, error in FAILURES.items()]


def isinstance_cases() -> list[Case]:
    """The least that can be checked of an error."""
    return judging(lambda error: isinstance(error, TRANSIENT))


def redouble_cases() -> list[Case]:
    from redouble import Policy, retry, retrying
    from redouble.breaker import CircuitBreaker
    from redouble.budget import RatioBudget, TokenBudget
    from redouble.classify import verdict
    from redouble.metrics import Counters

    policy = Policy()
    reused = retrying(policy)

    def block(x: int) -> None:
        for attempt in retrying(policy):
            with attempt:
                work(x)

    def block_reused(x: int) -> None:
        for attempt in reused:
            with attempt:
                work(x)

    def made(x: int) -> int:
        Policy(attempts=ATTEMPTS, base=BASE, cap=CAP)
        return x

    def replaced(x: int) -> int:
        policy.replace(attempts=ATTEMPTS)
        return x

    return [
        Case(MADE, made),
        Case(MADE, replaced, "replaced"),
        Case(ONCE, lambda x: policy.call(work, x)),
        Case(ANEW, lambda x: Policy(attempts=ATTEMPTS, base=BASE, cap=CAP).call(work, x)),
        Case(SYNC, retry(work)),
        Case(SYNC, retry(listeners=[Counters()])(work), "Counters listening"),
        Case(SYNC, retry(listeners=[Counters(successes=True)])(work), "successes counted"),
        Case(ASYNC, retry(work_async)),
        Case(DEADLINE, retry(deadline=BUDGET)(work)),
        Case(GUARDED, retry(budget=TokenBudget(), breaker=CircuitBreaker())(work)),
        Case(COUNTED, retry(budget=RatioBudget(), breaker=CircuitBreaker(failure_rate=0.5))(work)),
        Case(FAILING, retry(Policy(sleep=no_sleep))(three_failures())),
        Case(
            FAILING,
            retry(Policy(sleep=no_sleep, listeners=[Counters()]))(three_failures()),
            "Counters listening",
        ),
        Case(BLOCK, block),
        Case(BLOCK, block_reused, "object reused"),
        *judging(verdict),
        Case(PUT, putting()),
        *client_rows(client_cases.redouble()),
    ]


def putting() -> Call:
    """Return a function that stores a dead letter. It has no goal and no other library to compare with."""
    from redouble.dead_letters import DeadLetters

    folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    letters = DeadLetters(Path(folder.name) / "letters.db")

    def put(x: int) -> int:
        letters.put(payload={"order": x}, error=ERROR, function="benchmark")
        return x if folder else 0  # keeps the folder alive

    return put


ERROR = ConnectionResetError("reset by peer")


def client_rows(timed: Iterator[client_cases.Timed]) -> list[Case]:
    return [Case(*each) for each in timed]


def bare_cases() -> list[Case]:
    """A decorator that only catches and raises again: the lower bound."""
    return [Case(SYNC, bare(work)), Case(ASYNC, bare_async(work_async))]


def bare(fn: Call) -> Call:
    @functools.wraps(fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            return fn(*args, **kwargs)
        except Exception:
            raise

    return wrapper


def bare_async(fn: AsyncCall) -> AsyncCall:
    @functools.wraps(fn)
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            return await fn(*args, **kwargs)
        except Exception:
            raise

    return wrapper


def loop_cases() -> list[Case]:
    """A loop written by hand, without the deadline or the guards that redouble has on the same path."""
    return [
        Case(SYNC, hand_written(work, time.sleep)),
        Case(DEADLINE, hand_written(work, time.sleep)),
        Case(GUARDED, hand_written(work, time.sleep)),
        Case(COUNTED, hand_written(work, time.sleep)),
        Case(FAILING, hand_written(three_failures(), no_sleep)),
    ]


def hand_written(fn: Call, sleep: Callable[[float], None]) -> Call:
    """Retry `fn` without a library."""

    @functools.wraps(fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        for attempt in range(4):
            try:
                return fn(*args, **kwargs)
            except (ConnectionError, TimeoutError):
                if attempt == 3:
                    raise
                sleep(random.uniform(0, min(30.0, 1.0 * 2**attempt)))
        return None

    return wrapper


def tenacity_cases() -> list[Case]:
    import tenacity

    # Built once: what a block pays for each time is the Retrying object, as redouble pays for its own.
    settings: dict[str, Any] = {
        "stop": tenacity.stop_after_attempt(ATTEMPTS),
        "wait": tenacity.wait_random_exponential(multiplier=BASE, max=CAP),
        "retry": tenacity.retry_if_exception_type(TRANSIENT),
        "reraise": True,
    }
    timed = settings | {"stop": settings["stop"] | tenacity.stop_after_delay(BUDGET)}
    reused = tenacity.Retrying(**settings)

    failure = FAILURES[""]

    def judged(x: int) -> int:
        """What it does about one failure: its record, then its predicate."""
        state = tenacity.RetryCallState(reused, None, (), {})
        state.set_exception((type(failure), failure, None))
        settings["retry"](state)
        return x

    def block(x: int) -> None:
        for attempt in tenacity.Retrying(**settings):
            with attempt:
                work(x)

    def block_reused(x: int) -> None:
        for attempt in reused:
            with attempt:
                work(x)

    def new() -> Any:
        return tenacity.Retrying(
            stop=tenacity.stop_after_attempt(ATTEMPTS),
            wait=tenacity.wait_random_exponential(multiplier=BASE, max=CAP),
            reraise=True,
        )

    def made(x: int) -> int:
        new()
        return x

    def replaced(x: int) -> int:
        reused.copy(stop=tenacity.stop_after_attempt(ATTEMPTS))
        return x

    return [
        Case(MADE, made),
        Case(MADE, replaced, "replaced"),
        Case(ONCE, lambda x: reused(work, x)),
        Case(ANEW, lambda x: new()(work, x)),
        Case(SYNC, tenacity.retry(**settings)(work)),
        Case(ASYNC, tenacity.retry(**settings)(work_async)),
        Case(DEADLINE, tenacity.retry(**timed)(work)),
        Case(FAILING, tenacity.retry(**settings, sleep=no_sleep)(three_failures())),
        Case(BLOCK, block),
        Case(BLOCK, block_reused, "object reused"),
        Case(VERDICT, judged),
    ]


def stamina_cases() -> list[Case]:
    import stamina

    # Its own switch for "no logging, no metrics"; hooks run only when something is retried.
    stamina.instrumentation.set_on_retry_hooks([])
    settings: dict[str, Any] = {
        "on": TRANSIENT,
        "attempts": ATTEMPTS,
        "timeout": None,
        "wait_initial": BASE,
        "wait_max": CAP,
        "wait_jitter": BASE,
    }

    def block(x: int) -> None:
        for attempt in stamina.retry_context(**settings):
            with attempt:
                work(x)

    return [
        Case(SYNC, stamina.retry(**settings)(work)),
        Case(ASYNC, stamina.retry(**settings)(work_async)),
        Case(DEADLINE, stamina.retry(**(settings | {"timeout": BUDGET}))(work)),
        Case(FAILING, stamina.retry(**settings)(three_failures())),
        Case(BLOCK, block),
    ]


def backoff_cases() -> list[Case]:
    import backoff

    # logger=None is its switch for logging; jitter is full jitter unless told otherwise.
    settings: dict[str, Any] = {
        "wait_gen": backoff.expo,
        "exception": TRANSIENT,
        "max_tries": ATTEMPTS,
        "factor": BASE,
        "max_value": CAP,
        "logger": None,
    }
    return [
        Case(SYNC, backoff.on_exception(**settings)(work)),
        Case(ASYNC, backoff.on_exception(**settings)(work_async)),
        Case(DEADLINE, backoff.on_exception(**settings, max_time=BUDGET)(work)),
        Case(FAILING, backoff.on_exception(**settings)(three_failures())),
    ]


def opnieuw_cases() -> list[Case]:
    import opnieuw

    settings: dict[str, Any] = {
        "retry_on_exceptions": TRANSIENT,
        "max_calls_total": ATTEMPTS,
        # It spreads the waits over a window: 1 + 2 + 4 seconds are waits from a base of 1 s.
        "retry_window_after_first_call_in_seconds": 7,
    }
    return [
        Case(SYNC, opnieuw.retry(**settings)(work)),
        Case(ASYNC, opnieuw.retry(**settings)(work_async)),
        Case(FAILING, opnieuw.retry(**settings)(three_failures())),
    ]


def redress_cases() -> list[Case]:
    import redress

    settings: dict[str, Any] = {
        # Its classifier finds ConnectionError and TimeoutError transient by itself.
        "classifier": redress.default_classifier,
        "strategy": redress.equal_jitter(base_s=BASE, max_s=CAP),
        "max_attempts": ATTEMPTS,
    }
    return [
        Case(SYNC, redress.retry(**settings)(work)),
        Case(ASYNC, redress.retry(**settings)(work_async)),
        Case(DEADLINE, redress.retry(**settings, deadline_s=BUDGET)(work)),
        Case(FAILING, redress.retry(**settings, sleeper=no_sleep)(three_failures())),
    ]


def pyresilience_cases() -> list[Case]:
    from pyresilience import RetryConfig, resilient

    config = RetryConfig(max_attempts=ATTEMPTS, delay=BASE, max_delay=CAP, retry_on=TRANSIENT)
    # No case with a deadline: its timeout runs the function on another thread, which is another thing.
    return [
        Case(SYNC, resilient(retry=config)(work)),
        Case(ASYNC, resilient(retry=config)(work_async)),
        Case(FAILING, resilient(retry=config)(three_failures())),
    ]


PLAIN: dict[str, Callable[[], list[Case]]] = {
    BARE: bare_cases,
    LOOP: loop_cases,
    ISINSTANCE: isinstance_cases,
    TRANSPORT: lambda: client_rows(client_cases.bare()),
}
# They belong to one client, which their import loads.
CLIENT_PEERS: dict[str, Callable[[], list[Case]]] = {
    HTTPX_RETRIES: lambda: client_rows(client_cases.httpx_retries(ATTEMPTS)),
    AIOHTTP_RETRY: lambda: client_rows(client_cases.aiohttp_retry(ATTEMPTS)),
    URLLIB3_RETRY: lambda: client_rows(client_cases.urllib3(ATTEMPTS)),
}
PEERS = {
    TENACITY: tenacity_cases,
    "stamina": stamina_cases,
    "backoff": backoff_cases,
    "opnieuw": opnieuw_cases,
    "redress": redress_cases,
    "pyresilience": pyresilience_cases,
    **CLIENT_PEERS,
}
CONTESTANTS = {REDOUBLE: redouble_cases} | PLAIN | PEERS
