"""What redouble does beside other retry libraries: every cell of the comparison is run, none is an opinion.

    pip install -e ".[bench,loops]"
    python tests/benchmarks/compare.py            # writes docs/explanation/comparison.md, prints the short table
    python tests/benchmarks/compare.py --print    # prints both, writes nothing
    python tests/benchmarks/compare.py --quick    # fewer rounds: rougher figures

A `Library` says how each thing is written with one library; where there are several ways, all are given, and the best
one counts. A probe takes a library, runs it, and says what it saw as a `Cell`: a few words, and a note on what comes
nearest where the answer is "no". Waits are skipped, attempts that take time take 0.15 s. Only what stands between the
two markers of the page is written; the prose around it is kept.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import inspect
import logging
import platform
import re
import sys
import tempfile
import threading
import time
import traceback
import types
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from importlib.metadata import requires
from pathlib import Path
from typing import Any, NamedTuple

if not __package__:  # run as a script: make the package findable, as pytest does
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import bench, cases
from benchmarks.timing import best_of, coldest_of

PAGE = Path(__file__).resolve().parents[2] / "docs" / "explanation" / "comparison.md"
MARK = "\\*"  # on a cell that has a note
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
SHORT = ("redouble", "tenacity", "stamina", "backoff")

# Longer than any first wait of anybody, and short enough to be waited for by all.
HINT = 41

Decorator = Callable[[Any], Any]
Settings = dict[str, Decorator]  # how it is written -> what that makes


class Cell(NamedTuple):
    """What a probe saw, and what else a reader should know."""

    text: str
    note: str = ""


# ---------------------------------------------------------------------------------------------------------------
# What the probes are made of


class Answer(Exception):
    """A failed HTTP request, with what the errors of the common clients carry."""

    def __init__(self, status: int, method: str = "GET", **headers: str) -> None:
        super().__init__(f"HTTP {status}")
        self.status, self.headers = status, {name.replace("_", "-"): text for name, text in headers.items()}
        self.request = types.SimpleNamespace(method=method)
        self.response = types.SimpleNamespace(status_code=status, headers=self.headers, request=self.request)


def asked_for(error: Any, *_: object) -> float:
    """What a user would write to read the header."""
    return float(error.response.headers["Retry-After"])


def flaky(*errors: BaseException) -> tuple[Any, list[int]]:
    """A function that raises these, one for each call, and then answers; and the list of its calls."""
    calls: list[int] = []

    def fetch() -> str:
        calls.append(len(calls))
        if len(calls) <= len(errors):
            raise errors[len(calls) - 1]
        return "page"

    return fetch, calls


def slowly(function: Any) -> Any:
    def fetch() -> Any:
        threading.Event().wait(0.05)  # time.sleep is skipped
        return function()

    return fetch


def awaited(function: Any) -> Any:
    async def fetch() -> Any:
        return function()

    return fetch


@contextlib.contextmanager
def unhurried() -> Iterator[list[float]]:
    """Waits are written down and skipped; what other packages warn of is left to them."""
    waits: list[float] = []
    trio = sys.modules.get("trio")
    real = time.sleep, asyncio.sleep, trio and trio.sleep

    async def skipped(seconds: float, result: object = None) -> object:
        waits.append(seconds)
        return await real[1](0, result)

    async def skipped_by_trio(seconds: float) -> None:
        waits.append(seconds)

    time.sleep, asyncio.sleep = waits.append, skipped  # type: ignore[assignment]
    if trio is not None:
        trio.sleep = skipped_by_trio
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield waits
    finally:
        time.sleep, asyncio.sleep = real[:2]
        if trio is not None:
            trio.sleep = real[2]


def outcome(call: Callable[[], Any]) -> Any:
    """The result of a call, or what came out of it instead."""
    try:
        return call()
    except BaseException as error:
        return error


def really_wait(seconds: float) -> asyncio.Future[None]:
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    loop.call_later(seconds, lambda: done.done() or done.set_result(None))
    return done


# ---------------------------------------------------------------------------------------------------------------
# How each thing is written with each library


class Library:
    """How things are written with one library. What a library lacks is left as it is here."""

    name = ""
    most_seconds = ""  # the parameter that limits the time of a call, where it has a default

    def __init__(self) -> None:
        self.it: Any = importlib.import_module(self.name)

    def bare(self, function: Any) -> Any:
        """With nothing said at all."""
        return self.it.retry(function)

    def least(self, function: Any) -> Any:
        """With as little said as it takes to have every error, or every one it finds worth it, retried."""
        return self.bare(function)

    def limited(self, attempts: int, **more: Any) -> Decorator:
        raise NotImplementedError

    def same_error(self) -> Settings:
        return {"": self.limited(2)}

    def broadest(self) -> Settings:
        """Each way to say that everything is retried, three times at most."""
        raise NotImplementedError

    def deadlines(self) -> Settings:
        """A deadline of 1 s, and waits of 5 s."""
        return {}

    def cuts(self) -> Settings:
        """A limit of 0.03 s for the call, or for an attempt."""
        return {}

    def hints(self) -> dict[tuple[str, int], Decorator]:
        """Ways to wait as long as the answer with this status says."""
        return {}

    def careful(self) -> Settings:
        """Ways not to repeat a POST."""
        return {}

    def chosen(self, wanted: Any) -> Settings:
        """Ways to retry what a function of the user says yes to."""
        return {}

    def under_trio(self, trio: Any) -> Settings:
        return {"": self.limited(2)}

    def listening(self, listener: Any) -> Settings:
        return {}

    def checks(self) -> dict[str, Callable[[], bool]]:
        """Features, each with a run that shows it."""
        return {}

    def strengths(self) -> dict[str, Callable[[], bool]]:
        """What it does well, each with a run that shows it."""
        return {}


def yes(*_: object, **__: object) -> bool:
    return True


class Redouble(Library):
    name = "redouble"

    def limited(self, attempts: int, **more: Any) -> Decorator:
        return self.it.retry(attempts=attempts, **more)

    def broadest(self) -> Settings:
        return {
            "on=lambda error: True": self.it.retry(on=yes, attempts=3),
            "on=Exception": self.it.retry(on=Exception, attempts=3),
            "on=BaseException": lambda function: self.it.retry(on=BaseException, attempts=3)(function),
        }

    def deadlines(self) -> Settings:
        return {"deadline=1": self.it.retry(deadline=1, base=5, backoff=self._part("backoff").fixed)}

    def cuts(self) -> Settings:
        return {"deadline": self.it.retry(deadline=0.03, attempts=2)}

    def hints(self) -> dict[tuple[str, int], Decorator]:
        return {("", 503): self.it.retry}

    def listening(self, listener: Any) -> Settings:
        return {"listeners": self.limited(2, listeners=[listener])}

    def _part(self, name: str) -> Any:
        return importlib.import_module(f"redouble.{name}")

    def checks(self) -> dict[str, Callable[[], bool]]:
        budget, breaker, bulkhead = self._part("budget"), self._part("breaker"), self._part("bulkhead")
        return {
            "retry on a result": lambda: polls(self.it.retry(until=bool)),
            "fallback value": lambda: falls_back(self.limited(2, fallback="old")),
            "block form": lambda: blocks(lambda: self.it.retrying(attempts=2)),
            "retry budget": lambda: is_frugal(
                self.it.retry(budget=budget.TokenBudget(capacity=5, cost=5, timeout_cost=5))
            ),
            "circuit breaker": lambda: trips(self.limited(1, breaker=breaker.CircuitBreaker(failures=2))),
            "bulkhead": lambda: is_full(self.it.retry(bulkhead=bulkhead.Bulkhead(1))),
            "rate limit": self._slows_down,
            "hedging": lambda: hedges(self._part("hedging").hedge(after=0.01)),
            "dead letters": self._keeps,
            "switch for tests": self._switch,
        }

    def _keeps(self) -> bool:
        with tempfile.TemporaryDirectory() as folder:
            with self._part("deadletter").DeadLetters(Path(folder) / "letters.db") as letters:
                outcome(self.limited(1, dead_letters=letters)(always()))
                return letters.depth() == 1

    def _slows_down(self) -> bool:
        throttle = self._part("throttle").AdaptiveThrottle()
        before = throttle.active
        outcome(throttle(always(error=Answer(429))))
        return throttle.active and not before

    def _switch(self) -> bool:
        with self._part("testing").retries_disabled():
            return calls_made(self.it.retry) == 1


class Tenacity(Library):
    name = "tenacity"

    def limited(self, attempts: int, **more: Any) -> Decorator:
        return self.it.retry(stop=self.it.stop_after_attempt(attempts), **more)

    def same_error(self) -> Settings:
        return {"": self.limited(2), "reraise=True": self.limited(2, reraise=True)}

    def broadest(self) -> Settings:
        it = self.it
        return {
            "retry_if_exception(lambda error: True)": self.limited(3, retry=it.retry_if_exception(yes)),
            "retry_if_exception_type()": self.limited(3, retry=it.retry_if_exception_type()),
            "retry_if_exception_type(BaseException)": self.limited(
                3, retry=it.retry_if_exception_type(BaseException)
            ),
            "retry_if_not_exception_type(ValueError)": self.limited(
                3, retry=it.retry_if_not_exception_type(ValueError)
            ),
        }

    def deadlines(self) -> Settings:
        it = self.it
        wait, twice = it.wait_fixed(5), it.stop_after_attempt(2)
        return {
            "stop_before_delay(1)": it.retry(stop=it.stop_before_delay(1) | twice, wait=wait),
            "stop_after_delay(1)": it.retry(stop=it.stop_after_delay(1) | twice, wait=wait),
        }

    def cuts(self) -> Settings:
        return {"stop_after_delay": self.it.retry(stop=self.it.stop_after_delay(0.03))}

    def hints(self) -> dict[tuple[str, int], Decorator]:
        label = "`wait_exception`, with a function of yours that reads the header"
        return {(label, 503): self.limited(2, wait=self.it.wait_exception(asked_for))}

    def chosen(self, wanted: Any) -> Settings:
        return {"`retry_if_exception`": self.limited(2, retry=self.it.retry_if_exception(wanted))}

    def listening(self, listener: Any) -> Settings:
        return {
            "before_sleep": self.limited(2, reraise=True, before_sleep=listener),
            "after": self.limited(2, reraise=True, after=listener),
        }

    def checks(self) -> dict[str, Callable[[], bool]]:
        it = self.it
        return {
            "retry on a result": lambda: polls(it.retry(retry=it.retry_if_result(lambda r: not r))),
            "fallback value": lambda: falls_back(self.limited(2, retry_error_callback=lambda state: "old")),
            "block form": lambda: blocks(lambda: it.Retrying(stop=it.stop_after_attempt(2))),
            "conditions joined by operators": self._joined,
            "async hooks": lambda: hooks_awaited(lambda hook: self.limited(2, before_sleep=hook)),
        }

    def _joined(self) -> bool:
        it = self.it
        either = it.retry_if_exception_type(KeyError) | it.retry_if_exception_type(OSError)
        stop = it.stop_after_attempt(9) | it.stop_after_delay(60)
        wait = it.wait_fixed(3) + it.wait_fixed(2)
        fetch, calls = flaky(KeyError(), OSError(), ValueError())
        with unhurried() as waits:
            outcome(it.retry(retry=either, stop=stop, wait=wait)(fetch))
        return len(calls) == 3 and waits == [5, 5]

    def strengths(self) -> dict[str, Callable[[], bool]]:
        return {
            "Conditions, stops and waits are objects that combine: `|` and `&` for when to retry and when to stop, `+` "
            "for waits. redouble has functions instead.": self._joined,
            "Predicates may be awaited (`tenacity.asyncio.retry_if_exception`), and so may hooks. redouble's are "
            "plain functions.": self._asks_async,
            "A hook gets the whole state of the call: function, arguments, outcome, attempt number, times. redouble's "
            "events hold texts and numbers.": self._state,
            "A decorated function can be given other settings for one call, with `fetch.retry_with(...)`. redouble "
            "has `policy.replace(...).call(fetch)`.": self._retry_with,
        }

    def _asks_async(self) -> bool:
        from tenacity.asyncio import retry_if_exception

        async def is_timeout(error: BaseException) -> bool:
            return isinstance(error, TimeoutError)

        fetch, calls = flaky(TimeoutError())
        with unhurried():
            asyncio.run(self.limited(2, retry=retry_if_exception(is_timeout))(awaited(fetch))())
        return len(calls) == 2

    def _state(self) -> bool:
        seen: list[Any] = []
        fetch, _ = flaky(TimeoutError())
        with unhurried():
            hook = lambda state: seen.extend([state.args, type(state.outcome.exception())])  # noqa: E731
            self.limited(2, before_sleep=hook)(lambda url: fetch())("/news")
        return seen == [("/news",), TimeoutError]

    def _retry_with(self) -> bool:
        fetch, calls = flaky(*[TimeoutError()] * 9)
        with unhurried():
            outcome(self.limited(4)(fetch).retry_with(stop=self.it.stop_after_attempt(2)))
        return len(calls) == 2


class Stamina(Library):
    name, most_seconds = "stamina", "timeout"

    def bare(self, function: Any) -> Any:
        return self.it.retry()(function)

    def least(self, function: Any) -> Any:
        return self.it.retry(on=Exception)(function)

    def limited(self, attempts: int, **more: Any) -> Decorator:
        return self.it.retry(**{"on": Exception, "attempts": attempts, **more})

    def broadest(self) -> Settings:
        return {
            "on=lambda error: True": self.limited(3, on=yes),
            "on=Exception": self.limited(3),
            "on=BaseException": self.limited(3, on=BaseException),
        }

    def deadlines(self) -> Settings:
        return {"timeout=1": self.limited(2, timeout=1, wait_initial=5, wait_max=5)}

    def cuts(self) -> Settings:
        return {"timeout": self.limited(2, timeout=0.03)}

    def hints(self) -> dict[tuple[str, int], Decorator]:
        return {("`on`, with a function of yours that reads the header", 503): self.limited(2, on=asked_for)}

    def chosen(self, wanted: Any) -> Settings:
        return {"`on`": self.limited(2, on=wanted)}

    @contextlib.contextmanager
    def hooked(self, *hooks: Any) -> Iterator[None]:
        before = self.it.instrumentation.get_on_retry_hooks()
        self.it.instrumentation.set_on_retry_hooks(hooks)
        try:
            yield
        finally:
            self.it.instrumentation.set_on_retry_hooks(before)

    def listening(self, listener: Any) -> Settings:
        def decorator(function: Any) -> Any:
            def fetch() -> Any:
                with self.hooked(listener):
                    return self.limited(2)(function)()

            return fetch

        return {"set_on_retry_hooks": decorator}

    def checks(self) -> dict[str, Callable[[], bool]]:
        return {
            "block form": lambda: blocks(lambda: self.it.retry_context(on=Exception, attempts=2)),
            "switch for tests": self._switch,
            "Prometheus with no set-up": self._prometheus,
        }

    def _switch(self) -> bool:
        with self.it.set_testing(True, attempts=1):
            return calls_made(self.least) == 1

    def _inactive(self) -> bool:
        self.it.set_active(False)
        try:
            return calls_made(self.least) == 1
        finally:
            self.it.set_active(True)

    def _prometheus(self) -> bool:
        """With a stand-in where the real one is not installed: what counts is that nobody has to ask for it."""
        hooks = importlib.import_module("stamina.instrumentation._hooks")
        real = sys.modules.get("prometheus_client")
        sys.modules["prometheus_client"] = types.ModuleType("prometheus_client")
        try:
            return hooks.PrometheusOnRetryHook in hooks.get_default_hooks()
        finally:
            del sys.modules["prometheus_client"]
            if real is not None:
                sys.modules["prometheus_client"] = real

    def strengths(self) -> dict[str, Callable[[], bool]]:
        return {
            "It asks what is to be retried, so that nobody retries a bug by accident; attempts, time and jitter are "
            "bounded without a word.": lambda: isinstance(outcome(lambda: self.bare(len)), TypeError),
            "Retries are counted for Prometheus and logged by structlog if these are installed, with no set-up. With "
            "redouble Prometheus takes a line.": self._prometheus,
            "One switch for a whole test suite, `set_testing`, and one for a whole program, `set_active`. redouble "
            "has `redouble.testing` for the first and `enabled`, policy by policy, for the second.": lambda: (
                self._switch() and self._inactive()
            ),
            "A hook may give a context manager, which is left when the wait is over: a span for each wait.": (
                self._entered
            ),
        }

    def _entered(self) -> bool:
        seen: list[str] = []

        @contextlib.contextmanager
        def span() -> Iterator[None]:
            seen.append("entered")
            yield
            seen.append("left")

        with self.hooked(lambda details: span()), unhurried():
            self.limited(2)(flaky(TimeoutError())[0])()
        return seen == ["entered", "left"]


class Backoff(Library):
    name = "backoff"

    def bare(self, function: Any) -> Any:
        return self.it.on_exception()(function)

    def least(self, function: Any) -> Any:
        return self.limited(None)(function)

    def limited(self, attempts: int | None, **more: Any) -> Decorator:
        given = {"wait_gen": self.it.expo, "exception": Exception, "max_tries": attempts, **more}
        return self.it.on_exception(**given)

    def broadest(self) -> Settings:
        return {
            "exception=Exception": self.limited(3),
            "exception=BaseException": self.limited(3, exception=BaseException),
        }

    def deadlines(self) -> Settings:
        return {
            "max_time=1": self.limited(2, wait_gen=self.it.constant, interval=5, jitter=None, max_time=1),
        }

    def cuts(self) -> Settings:
        return {"max_time": self.limited(2, max_time=0.03)}

    def hints(self) -> dict[tuple[str, int], Decorator]:
        label = "`runtime`, with a function of yours that reads the header"
        return {(label, 503): self.limited(2, wait_gen=self.it.runtime, value=asked_for, jitter=None)}

    def chosen(self, wanted: Any) -> Settings:
        return {"`giveup`": self.limited(2, giveup=lambda error: not wanted(error))}

    def listening(self, listener: Any) -> Settings:
        return {
            "on_backoff": self.limited(2, on_backoff=listener),
            "on_success": self.limited(2, on_success=listener, on_giveup=listener),
        }

    def checks(self) -> dict[str, Callable[[], bool]]:
        return {
            "retry on a result": lambda: polls(self.it.on_predicate(self.it.expo, lambda r: not r)),
            "fallback value": lambda: falls_back(self.limited(2, raise_on_giveup=False), None),
            "async hooks": lambda: hooks_awaited(lambda hook: self.limited(2, on_backoff=hook)),
        }

    def strengths(self) -> dict[str, Callable[[], bool]]:
        return {
            "Small enough to be read in an hour, with no dependencies.": lambda: (
                lines_of(self) < 1000 and not dependencies(self)
            ),
            "Waits are plain generators, which get the error or the result of each attempt: `runtime` waits as long "
            "as either says.": lambda: (
                set(waits_of(next(iter(self.hints().values())), answer(503))) == {HINT}
            ),
            "Limits may be functions, asked at each call: `max_tries=lambda: settings.tries`.": lambda: (
                calls_made(self.limited(3, max_tries=lambda: 2)) == 2
            ),
            "Polling has a decorator of its own, `on_predicate`, which needs no exception.": (
                self.checks()["retry on a result"]
            ),
        }


class Opnieuw(Library):
    name, most_seconds = "opnieuw", "retry_window_after_first_call_in_seconds"

    def bare(self, function: Any) -> Any:
        return self.it.retry()(function)

    def least(self, function: Any) -> Any:
        return self.it.retry(retry_on_exceptions=Exception)(function)

    def limited(self, attempts: int, **more: Any) -> Decorator:
        return self.it.retry(**{"retry_on_exceptions": Exception, "max_calls_total": attempts, **more})

    def broadest(self) -> Settings:
        return {
            "Exception": self.limited(3),
            "BaseException": self.limited(3, retry_on_exceptions=BaseException),
        }

    def deadlines(self) -> Settings:
        """Its waits are fitted to the window, so the attempt has to take more time than there is."""
        window = self.limited(2, retry_window_after_first_call_in_seconds=0.03)
        return {"a window of 0.03 s, after an attempt of 0.05 s": lambda function: window(slowly(function))}

    def cuts(self) -> Settings:
        return {"a window of 0.03 s": self.limited(2, retry_window_after_first_call_in_seconds=0.03)}

    def checks(self) -> dict[str, Callable[[], bool]]:
        return {"switch for tests": self._immediate}

    def _immediate(self) -> bool:
        from opnieuw.test_util import retry_immediately

        with retry_immediately():
            return set(waits_of(self.limited(3), TimeoutError())) == {0}

    def strengths(self) -> dict[str, Callable[[], bool]]:
        return {
            "You say how many calls and how many seconds; the waits are fitted to them. With redouble you say the "
            "first wait and a deadline.": self._fits,
            "The smallest of all.": lambda: lines_of(self) < 500,
            "Waits are switched off for one context, by namespace, in tests.": self._immediate,
        }

    def _fits(self) -> bool:
        waits = waits_of(self.limited(4, retry_window_after_first_call_in_seconds=70), TimeoutError())
        return len(waits) == 3 and all(wait <= limit for wait, limit in zip(waits, (10, 20, 40), strict=True))


class Redress(Library):
    name, most_seconds = "redress", "deadline_s"

    def limited(self, attempts: int, **more: Any) -> Decorator:
        return self.it.retry(max_attempts=attempts, **more)

    def broadest(self) -> Settings:
        transient = self.it.ErrorClass.TRANSIENT
        return {"classifier=lambda error: TRANSIENT": self.limited(3, classifier=lambda error: transient)}

    def deadlines(self) -> Settings:
        return {"deadline_s=1": self.limited(2, deadline_s=1, strategy=lambda context: 5.0)}

    def cuts(self) -> Settings:
        return {
            "deadline_s": self.limited(2, deadline_s=0.03),
            "attempt_timeout_s": self.limited(2, attempt_timeout_s=0.03),
        }

    def hints(self) -> dict[tuple[str, int], Decorator]:
        given = {
            "classifier": self.it.http_retry_after_classifier,
            "strategy": self.it.retry_after_or(self.it.equal_jitter()),
        }
        label = "`http_retry_after_classifier` and `retry_after_or`"
        return {(label, 503): self.limited(2, **given), (label, 429): self.limited(2, **given)}

    def careful(self) -> Settings:
        return {"`request_with_retry(..., skip_if=...)` of its HTTP adapters": self._adapted}

    def _adapted(self, function: Any) -> Any:
        adapter = importlib.import_module("redress.contrib.httpx")
        client = types.SimpleNamespace(request=lambda method, url, **more: function())
        policy = self.it.RetryPolicy(
            classifier=self.it.default_classifier, strategy=self.it.equal_jitter(), max_attempts=2
        )
        skip = lambda method, url: not adapter.is_idempotent_method(method)  # noqa: E731
        return lambda: adapter.request_with_retry(client, policy, "POST", "/", skip_if=skip)

    def under_trio(self, trio: Any) -> Settings:
        return super().under_trio(trio) | {"sleeper=trio.sleep": self.limited(2, sleeper=trio.sleep)}

    def listening(self, listener: Any) -> Settings:
        return {"on_metric": self.limited(2, on_metric=listener)}

    def checks(self) -> dict[str, Callable[[], bool]]:
        it = self.it
        rejected = lambda result: None if result else it.ErrorClass.TRANSIENT  # noqa: E731
        return {
            "retry on a result": lambda: polls(it.retry(result_classifier=rejected)),
            "retry budget": lambda: is_frugal(it.retry(budget=it.Budget(max_retries=1, window_s=60))),
            "circuit breaker": self._trips,
            "async hooks": self._awaits,
        }

    def _policy(self, **more: Any) -> Any:
        given = {
            "classifier": self.it.default_classifier,
            "strategy": self.it.equal_jitter(),
            "max_attempts": 1,
        }
        return self.it.Policy(retry=self.it.Retry(**given), **more)

    def _trips(self) -> bool:
        policy = self._policy(circuit_breaker=self.it.CircuitBreaker(failure_threshold=2))
        return trips(lambda function: partial(policy.call, function))

    def _awaits(self) -> bool:
        def taking_two(hook: Any) -> Decorator:
            async def before(context: object, seconds: float) -> None:
                await hook(seconds)

            return self.limited(2, before_sleep=before)

        return hooks_awaited(taking_two)

    def strengths(self) -> dict[str, Callable[[], bool]]:
        return {
            "Errors have classes (rate limit, server error, concurrency, ...), each with a limit and a strategy of its "
            "own. redouble has `rules`.": self._per_class,
            "`execute` gives an outcome with a timeline of the attempts, as a value, also where all went well in the "
            "end. redouble has `history`, for the error that came out.": self._timeline,
            "Adapters for HTTP clients, LLM clients, Celery, FastAPI and more come with it; redouble knows their errors "
            "and leaves their calls alone.": lambda: (
                {"celery", "fastapi", "httpx", "openai"} <= {path.stem for path in self._contrib()}
            ),
        }

    def _contrib(self) -> list[Path]:
        return list((package(self) / "contrib").glob("*.py"))

    def _per_class(self) -> bool:
        limit = {self.it.ErrorClass.RATE_LIMIT: 1}
        return calls_made(self.limited(4, per_class_max_attempts=limit), answer(429)) == 2

    def _timeline(self) -> bool:
        retry = self.it.Retry(classifier=self.it.default_classifier, strategy=self.it.equal_jitter())
        with unhurried():
            found = retry.execute(flaky(TimeoutError())[0], capture_timeline=True)
        return found.ok and found.attempts == 2 and len(found.timeline.events) == 2


class Pyresilience(Library):
    name = "pyresilience"

    def bare(self, function: Any) -> Any:
        return self.it.resilient(function)

    def least(self, function: Any) -> Any:
        return self.it.resilient(retry=self.it.RetryConfig())(function)

    def limited(self, attempts: int, **more: Any) -> Decorator:
        beside = {key: more.pop(key) for key in list(more) if key not in self.it.RetryConfig.__annotations__}
        return self.it.resilient(retry=self.it.RetryConfig(max_attempts=attempts, **more), **beside)

    def broadest(self) -> Settings:
        return {
            "retry_on=(Exception,)": self.limited(3),
            "retry_on=(BaseException,)": self.limited(3, retry_on=(BaseException,)),
        }

    def _timeout(self, seconds: float, *, each: bool) -> Any:
        return self.it.TimeoutConfig(seconds=seconds, per_attempt=each)

    def deadlines(self) -> Settings:
        given = {"delay": 5, "jitter": False, "timeout": self._timeout(1, each=False)}
        return {"TimeoutConfig(seconds=1, per_attempt=False)": self.limited(2, **given)}

    def cuts(self) -> Settings:
        return {"TimeoutConfig": self.limited(1, timeout=self._timeout(0.03, each=False))}

    def hints(self) -> dict[tuple[str, int], Decorator]:
        delay = importlib.import_module("pyresilience.contrib.http").retry_after_delay()
        return {("`delay_func=retry_after_delay()`", 503): self.limited(2, delay_func=delay)}

    def listening(self, listener: Any) -> Settings:
        return {"listeners": self.limited(2, listeners=[listener])}

    def checks(self) -> dict[str, Callable[[], bool]]:
        it = self.it
        old = it.FallbackConfig(handler=lambda error: "old")
        budget = it.RetryBudgetConfig(max_retries=1, refill_rate=0.001)
        breaker = it.CircuitBreakerConfig(failure_threshold=2)
        return {
            "retry on a result": lambda: polls(self.limited(3, retry_on_result=lambda result: not result)),
            "fallback value": lambda: falls_back(self.limited(2, fallback=old)),
            "retry budget": lambda: is_frugal(self.limited(3, retry_budget=budget)),
            "circuit breaker": lambda: trips(it.resilient(circuit_breaker=breaker)),
            "bulkhead": lambda: is_full(it.resilient(bulkhead=it.BulkheadConfig(max_concurrent=1))),
            "rate limit": self._limits,
            "result cache": self._caches,
            "cuts off a sync attempt": self._cuts,
        }

    def _limits(self) -> bool:
        limited = self.it.resilient(rate_limiter=self.it.RateLimiterConfig(max_calls=1, period=60))(
            always("page")
        )
        return limited() == "page" and isinstance(outcome(limited), self.it.RateLimitExceededError)

    def _caches(self) -> bool:
        fetch, calls = flaky()
        cached = self.it.resilient(cache=self.it.CacheConfig())(fetch)
        return [cached(), cached()] == ["page", "page"] and len(calls) == 1

    def _cuts(self) -> bool:
        slow = self.it.resilient(timeout=self._timeout(0.03, each=True))(lambda: time.sleep(0.6))
        return isinstance(outcome(slow), self.it.ResilienceTimeoutError)

    def strengths(self) -> dict[str, Callable[[], bool]]:
        return {
            "A sync function is cut off, too: it runs on a thread, which is interrupted as well as Python can. redouble "
            "offers the time left to sync code and interrupts nothing.": self._cuts,
            "A cache of results and a plain rate limit stand beside retries in one decorator. redouble has no cache; "
            "its throttle follows the server.": lambda: self._caches() and self._limits(),
            "A health check gives the state of all breakers of a registry.": lambda: isinstance(
                self.it.health_check(self.it.ResilienceRegistry()), dict
            ),
        }


LIBRARIES: list[type[Library]] = [Redouble, Tenacity, Stamina, Backoff, Opnieuw, Redress, Pyresilience]


# ---------------------------------------------------------------------------------------------------------------
# What features are recognised by


def not_a_post(error: Any) -> bool:
    return error.request.method != "POST"


def answer(status: int) -> Answer:
    return Answer(status, Retry_After=str(HINT))


def always(result: Any = None, error: BaseException | None = None) -> Any:
    def fetch() -> Any:
        if result is None:
            raise error or TimeoutError("slow")
        return result

    return fetch


def calls_made(decorator: Decorator, error: BaseException | None = None, most: int = 30) -> int:
    """How often a function that keeps failing is called, unless it is called more often than `most`."""
    fetch, calls = flaky(*[error or TimeoutError("slow")] * most)
    with unhurried():
        outcome(decorator(fetch))
    return len(calls)


def waits_of(decorator: Decorator, error: BaseException) -> list[float]:
    with unhurried() as waits:
        outcome(decorator(flaky(*[error] * 5)[0]))
    return waits


def polls(decorator: Decorator) -> bool:
    answers = ["", "page"]

    def fetch() -> str:
        return answers.pop(0)

    with unhurried():
        return outcome(decorator(fetch)) == "page"


def falls_back(decorator: Decorator, value: Any = "old") -> bool:
    with unhurried():
        return outcome(decorator(always())) == value


def blocks(make: Callable[[], Any]) -> bool:
    fetch, calls = flaky(TimeoutError("slow"))
    with unhurried():
        for attempt in make():
            with attempt:
                fetch()
    return len(calls) == 2


def is_frugal(decorator: Decorator) -> bool:
    """One retry is paid for, the next is not."""
    return calls_made(decorator) == 2


def trips(decorator: Decorator) -> bool:
    """After two failures the function is not called any more."""
    fetch, calls = flaky(*[TimeoutError("slow")] * 9)
    decorated = decorator(fetch)
    with unhurried():
        for _ in range(4):
            outcome(decorated)
    return len(calls) == 2


def is_full(decorator: Decorator) -> bool:
    """While the function is under way it cannot be called once more."""
    inner: list[Any] = []

    def fetch() -> str:
        if not inner:
            inner.append(None)
            inner[0] = outcome(decorated)
        return "page"

    decorated = decorator(fetch)
    return decorated() == "page" and isinstance(inner[0], Exception)


def hedges(decorator: Decorator) -> bool:
    calls: list[int] = []

    async def fetch() -> str:
        calls.append(1)
        if len(calls) == 1:
            await really_wait(0.15)
        return "page"

    return asyncio.run(decorator(fetch)()) == "page" and len(calls) == 2


def hooks_awaited(decorator_with: Callable[[Any], Decorator]) -> bool:
    seen: list[int] = []

    async def hook(_: object) -> None:
        seen.append(1)

    with unhurried():
        asyncio.run(decorator_with(hook)(awaited(flaky(TimeoutError())[0]))())
    return seen == [1]


# What a library that has a feature cannot do without in its source: where a feature is not run, it must be missing.
FEATURES = {
    "block form": r"def __iter__",
    "retry on a result": r"retry_if_result|on_predicate|result_classifier|retry_on_result",
    "fallback value": r"retry_error_callback|raise_on_giveup|FallbackConfig",
    "retry budget": r"[Bb]udget",
    "circuit breaker": r"[Cc]ircuit",
    "bulkhead": r"[Bb]ulkhead",
    "rate limit": r"[Tt]hrottle\b|[Rr]ate_?[Ll]imiter",
    "hedging": r"[Hh]edg(e|ing)",
    "dead letters": r"[Dd]ead.?[Ll]etter",
    "switch for tests": r"def (set_testing|retries_disabled|retry_immediately)",
    "conditions joined by operators": r"def __r?or__",
    "async hooks": r"await \w*(hook|before_sleep|callback|listener)",
    "Prometheus with no set-up": r"get_default_hooks",
    "result cache": r"ResultCache",
    "cuts off a sync attempt": r"SetAsyncExc",
}

NEAREST = {
    ("story", "tenacity"): "`before_sleep_log`, in the log",
    ("story", "stamina"): "its log, which has a line for each retry without being asked",
    ("story", "backoff"): "its log, which has a line for each retry without being asked",
    ("story", "redress"): "`execute(..., capture_timeline=True)`, in the outcome",
    ("story", "pyresilience"): "listeners, which are told of each retry",
    ("fallback value", "redress"): "`execute`, which gives an outcome and does not raise",
    ("conditions joined by operators", "stamina"): "`on`, one function",
    ("conditions joined by operators", "backoff"): "`giveup`, one function",
    ("conditions joined by operators", "redress"): "`classifier`, one function",
    ("Prometheus with no set-up", "tenacity"): "`before_sleep` and `after`, with functions of yours",
    (
        "Prometheus with no set-up",
        "backoff",
    ): "`on_backoff`, `on_success` and `on_giveup`, with functions of yours",
    ("block form", "redress"): "`policy.context()`, a block in which several calls share hooks",
    ("retry on a result", "stamina"): "raise an exception for the result yourself",
    ("retry on a result", "opnieuw"): "raise an exception for the result yourself",
    ("fallback value", "backoff"): "`raise_on_giveup=False` gives `None`, and nothing else",
    (
        "rate limit",
        "redouble",
    ): "a throttle that follows the server's answers; there is no fixed number for a period",
    ("switch for tests", "tenacity"): "`fetch.retry.wait = wait_none()`, function by function",
    ("switch for tests", "backoff"): "patch `time.sleep`",
    ("switch for tests", "redress"): "`redress.testing.instant_retries`, a strategy to be passed in",
    ("switch for tests", "pyresilience"): "patch `time.sleep`",
    ("conditions joined by operators", "redouble"): "functions: `on=lambda error: a(error) or b(error)`",
    ("async hooks", "redouble"): "listeners are plain functions; `recover` and `fallback` may be async",
    ("Prometheus with no set-up", "redouble"): "`redouble.metrics`, one line",
    ("Prometheus with no set-up", "redress"): "`redress.contrib.prometheus`, passed as a hook",
    ("Prometheus with no set-up", "pyresilience"): "`pyresilience.contrib.prometheus`, passed as a listener",
    ("cuts off a sync attempt", "redouble"): "`current_attempt().timeout` says how long the attempt may take",
    ("cuts off a sync attempt", "redress"): "`attempt_timeout_s`, for async attempts",
}


def feature(name: str, library: Library) -> Cell:
    check = library.checks().get(name)
    note = NEAREST.get((name, library.name), "")
    if check is None:
        if re.search(FEATURES[name], source(library)):
            raise AssertionError(f"{library.name}: {name} may be there: its source has /{FEATURES[name]}/")
        return Cell("no", f"Nearest: {note}." if note else "")
    if not check():
        raise AssertionError(f"{library.name}: {name} was not seen")
    return (
        Cell("in part", f"{note[0].upper() if note[0].isalpha() else note[0]}{note[1:]}.")
        if note
        else Cell("yes")
    )


# ---------------------------------------------------------------------------------------------------------------
# The probes of behaviour


def code(label: str) -> str:
    """What is written in code is shown as code."""
    return label if label.startswith("a ") else f"`{label}`"


def said(settings: Any) -> str:
    return ", ".join(map(code, settings))


def retried_by_default(library: Library) -> Cell:
    errors = [
        ValueError("bug"),
        KeyError("bug"),
        FileNotFoundError(2, "gone"),
        TimeoutError("slow"),
        ConnectionResetError(),
    ]
    kinds = [type(error).__name__ for error in errors]
    if isinstance(refusal := outcome(lambda: library.bare(len)), TypeError):
        missing = re.findall(r"'(\w+)'", str(refusal))
        return Cell("asks you", f"It must be told {' and '.join(f'`{name}`' for name in missing)}.")
    with unhurried():
        retried = [kind for kind, error in zip(kinds, errors, strict=True) if tries(library.bare, error) > 1]
    if len(retried) in (0, len(errors)):
        return Cell(
            "nothing" if not retried else "every error", f"Tried: {', '.join(f'`{kind}`' for kind in kinds)}."
        )
    return Cell("transient errors", f"Retried: {', '.join(f'`{kind}`' for kind in retried)}; not the others.")


def tries(decorator: Decorator, error: BaseException) -> int:
    fetch, calls = flaky(error)
    outcome(lambda: decorator(fetch)())
    return len(calls)


def attempts_by_default(library: Library) -> Cell:
    number = calls_made(library.least)
    unknown = calls_made(library.least, RuntimeError("unheard of"))
    if number > 30:
        return Cell("no limit of attempts")
    notes = [f"{unknown} for an error of unknown kind."] if unknown not in (1, number) else []
    if library.most_seconds:
        seconds = inspect.signature(library.it.retry).parameters[library.most_seconds].default
        notes.append(f"No more after {seconds:.0f} s.")
    return Cell(f"{number} attempts", " ".join(notes))


def waits_by_default(library: Library) -> Cell:
    first = {waits_of(library.least, TimeoutError())[0] for _ in range(8)}
    if first == {0}:
        return Cell("no wait")
    return Cell("jitter" if len(first) > 1 else "no jitter")


def what_comes_out(library: Library) -> Cell:
    found = {}
    for label, decorator in library.same_error().items():
        errors = [TimeoutError("first"), TimeoutError("second")]
        with unhurried():
            error = outcome(decorator(flaky(*errors)[0]))
        found[label] = "your exception" if error is errors[1] else f"`{type(error).__name__}`"
    better = [label for label, text in found.items() if label and text == "your exception"]
    return Cell(found[""], f"`{better[0]}`: your exception, the same object." if better else "")


def story(library: Library) -> Cell:
    with unhurried():
        fetch = list(library.same_error().values())[-1](
            flaky(TimeoutError("first"), TimeoutError("second"))[0]
        )
        error = outcome(fetch)
    text = "".join(traceback.format_exception(error))
    if "first" not in text:
        return Cell("no", f"Nearest: {NEAREST['story', library.name]}.")
    noted = "first" in "".join(getattr(error, "__notes__", ()))
    return Cell("yes", "In a note, with the waits." if noted else "As the cause of your exception.")


def cause_kept(library: Library) -> Cell:
    cause, last = KeyError("why"), TimeoutError("second")
    last.__cause__ = cause
    with unhurried():
        error = outcome(list(library.same_error().values())[-1](flaky(TimeoutError("first"), last)[0]))
    kept = error is last and error.__cause__ is cause
    return Cell("yes") if kept else Cell("no", "It becomes the error of the attempt before.")


def passing(library: Library, run: Callable[[Decorator], int]) -> Cell:
    """By how often a function is called that is interrupted once: not at all where the setting is refused."""
    calls = {label: run(decorator) for label, decorator in library.broadest().items()}
    retried = [label for label, number in calls.items() if number > 1]
    if not retried:
        refused = [label for label, number in calls.items() if not number]
        tried = said(label for label in calls if label not in refused)
        return Cell("passes through", f"Tried: {tried}{f'; refused: {said(refused)}' if refused else ''}.")
    on_purpose = all("BaseException" in label for label in retried)
    return Cell("if `BaseException` is named" if on_purpose else "retried", f"With {said(retried)}.")


def keyboard_interrupt(library: Library) -> Cell:
    with unhurried():
        return passing(library, lambda decorator: tries(decorator, KeyboardInterrupt()))


def cancellation(library: Library) -> Cell:
    def run(decorator: Decorator) -> int:
        calls: list[int] = []

        async def fetch() -> str:
            calls.append(1)
            if len(calls) == 1:
                await asyncio.Event().wait()
            return "page"

        async def main() -> None:
            task = asyncio.ensure_future(decorator(fetch)())
            await really_wait(0)
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():
                task.exception()

        outcome(lambda: asyncio.run(main()))
        return len(calls)

    with unhurried():
        return Cell(passing(library, run).text)  # the settings are those of Ctrl-C


def sleeps_past_the_deadline(library: Library) -> Cell:
    ways = library.deadlines().items()
    slept = {label: sum(waits_of(decorator, ConnectionResetError())) for label, decorator in ways}
    least = min(slept.values())
    text = "gives up" if least == 0 else "sleeps past it" if least > 1 else "sleeps up to it"
    return Cell(
        text, "; ".join(f"{code(label)}: sleeps {seconds:.0f} s" for label, seconds in slept.items()) + "."
    )


def cut_off(library: Library) -> Cell:
    """Whether an async attempt of 0.15 s is still let finish where 0.03 s are allowed."""
    cutting = []
    for label, decorator in library.cuts().items():
        finished: list[int] = []

        async def fetch(finished: list[int] = finished) -> str:
            await really_wait(0.15)
            finished.append(1)
            return "page"

        with unhurried():
            outcome(lambda fetch=fetch, decorator=decorator: asyncio.run(decorator(fetch)()))
        if not finished:
            cutting.append(label)
    if not cutting:
        return Cell("no", f"Tried: {said(library.cuts())}. Nearest: `asyncio.timeout` around the call.")
    return Cell("yes", f"With {said(cutting)}.")


def retry_after(library: Library) -> Cell:
    if waits_of(library.least, answer(503))[0] >= HINT:
        return Cell("yes")
    for (label, status), decorator in library.hints().items():
        if waits_of(decorator, answer(status))[0] >= HINT:
            if "of yours" not in label and status == 503:
                return Cell("if asked", f"With {label}.")
            return Cell("no", f"Nearest: {label}{'' if status == 503 else f', for a {status} alone'}.")
    return Cell("no", "Its waits cannot depend on the error.")


def post(library: Library) -> Cell:
    if calls_made(library.least, Answer(500, "POST"), most=2) == 1:
        return Cell("sent once")
    ways = library.careful() or yours(library, not_a_post, "method")
    for label, way in ways.items():
        if calls_made(way, Answer(500, "POST"), most=2) == 1:
            return Cell("repeated", f"Nearest: {label}.")
    return Cell("repeated", BY_TYPE)


def status(library: Library) -> Cell:
    if tells_apart(library.least):
        return Cell("yes")
    ways = yours(library, lambda error: error.status == 503, "status")
    return Cell(
        "no", next((f"Nearest: {label}." for label, way in ways.items() if tells_apart(way)), BY_TYPE)
    )


def tells_apart(decorator: Decorator) -> bool:
    return calls_made(decorator, answer(503)) > 1 and calls_made(decorator, Answer(404)) == 1


BY_TYPE = "Nearest: errors of different types."


def yours(library: Library, wanted: Any, read: str) -> Settings:
    ways = library.chosen(wanted).items()
    return {f"{label}, with a function of yours that reads the {read}": way for label, way in ways}


def raising_listener(library: Library) -> Cell:
    heard: list[int] = []

    def listener(*_: object, **__: object) -> None:
        heard.append(1)
        raise RuntimeError("trouble in the listener")

    ways = library.listening(listener)
    if not ways:
        return Cell("no listeners", "Nearest: its log, at level `DEBUG`.")
    hidden = []
    for label, decorator in ways.items():
        error = TimeoutError("slow")
        with unhurried(), muted():
            results = outcome(decorator(flaky(error)[0])), outcome(decorator(flaky(error, error)[0]))
        if not heard:
            raise AssertionError(f"{library.name}: {label} was not called")
        if results != ("page", error):
            hidden.append(label)
    return (
        Cell("hides it", f"With {said(hidden)}.") if hidden else Cell("does no harm", f"With {said(ways)}.")
    )


@contextlib.contextmanager
def muted() -> Iterator[None]:
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def sync_and_async(library: Library) -> Cell:
    one, other = flaky(TimeoutError())[0], awaited(flaky(TimeoutError())[0])
    with unhurried():
        both = outcome(library.least(one)), outcome(lambda: asyncio.run(library.least(other)()))
    return Cell("yes" if both == ("page", "page") else "no")


def under_trio(library: Library) -> Cell:
    import trio

    for label, decorator in library.under_trio(trio).items():
        with unhurried():
            result = outcome(
                lambda decorator=decorator: trio.run(decorator(awaited(flaky(TimeoutError())[0])))
            )
        if result == "page":
            return Cell("yes", f"With `{label}`." if label else "")
    return Cell("no")


def generator(library: Library, drain: Any = None) -> Cell:
    before, after = items(library, 0, drain), items(library, 1, drain)
    if before != ["a", "b"]:
        return Cell("not retried")
    return (
        Cell("until the first item")
        if after == ["a"]
        else Cell("started over", f"A consumer saw {', '.join(after)}.")
    )


def async_generator(library: Library) -> Cell:
    async def taken(pages: Any, seen: list[str]) -> None:
        async for page in pages:
            seen.append(page)  # noqa: PERF401 - what was seen before an error counts

    return generator(library, lambda pages, seen: asyncio.run(taken(pages, seen)))


def items(library: Library, good: int, drain: Any) -> list[str]:
    """What a consumer sees of a generator whose first run fails after so many items."""
    runs: list[int] = []

    def pages() -> Iterator[str]:
        runs.append(1)
        for number, page in enumerate("ab"):
            if len(runs) == 1 and number == good:
                raise TimeoutError("slow")
            yield page

    async def pages_async() -> AsyncIterator[str]:
        for page in pages():
            yield page

    seen: list[str] = []
    with unhurried():
        if drain is None:
            outcome(lambda: [seen.append(page) for page in library.limited(2)(pages)()])
        else:
            outcome(lambda: drain(library.limited(2)(pages_async)(), seen))
    return seen


PROBES: dict[str, Callable[[Library], Cell]] = {
    "with nothing configured, retries": retried_by_default,
    "at most, by default": attempts_by_default,
    "waits by default": waits_by_default,
    "at the end comes": what_comes_out,
    "the traceback tells of every attempt": story,
    "`__cause__` of your exception is kept": cause_kept,
    "Ctrl-C under the broadest setting": keyboard_interrupt,
    "a cancelled task, likewise": cancellation,
    "deadline in 1 s, next wait 5 s": sleeps_past_the_deadline,
    "a running async attempt is cut off": cut_off,
    "`Retry-After` of a 503 is waited for": retry_after,
    "by itself, retries a 503 and not a 404": status,
    "a POST that failed with a 500 is": post,
    "a listener that raises": raising_listener,
    "sync and async by one decorator": sync_and_async,
    "trio": under_trio,
    "generators": generator,
    "async generators": async_generator,
} | {name: partial(feature, name) for name in FEATURES}


# ---------------------------------------------------------------------------------------------------------------
# Figures


def package(library: Library) -> Path:
    return Path(library.it.__file__).parent


def source(library: Library) -> str:
    return "\n".join(path.read_text("utf-8") for path in sorted(package(library).rglob("*.py")))


def lines_of(library: Library) -> int:
    return sum(len(path.read_text("utf-8").splitlines()) for path in package(library).rglob("*.py"))


def dependencies(library: Library) -> list[str]:
    if library.name == "redouble":  # may run from a checkout, which has no metadata
        return []
    return [
        re.split(r"[^\w.-]", entry)[0] for entry in requires(library.name) or [] if "extra ==" not in entry
    ]


def version(library: Library) -> str:
    return library.it.__version__ if library.name == "redouble" else bench.version_of(library.name)


def timings(libraries: list[Library], rounds: int, import_rounds: int) -> dict[str, dict[str, str]]:
    contest = bench.assemble()
    names = [library.name for library in libraries]
    rows: dict[str, dict[str, str]] = {}
    imports = coldest_of({name: f"import {name}" for name in names}, import_rounds)
    rows["import, ms"] = {name: rounded(ns / 1e6) for name, ns in imports.items()}
    shown = {
        "a sync success, ns": (cases.SYNC, 1),
        "an async success, ns": (cases.ASYNC, 1),
        "three failures, then a success, µs": (cases.FAILING, 1000),
    }
    for row, (path, unit) in shown.items():
        here = {name: case for name, case in contest.on(path).items() if name in names}
        with contextlib.ExitStack() as stack:
            if path == cases.FAILING:
                stack.enter_context(cases.time_sleep_skipped())
            found = best_of(bench.samplers_for(path, here, stack), rounds)
        rows[row] = {name: rounded(ns / unit) for name, ns in found.items()}
    return rows


def rounded(number: float) -> str:
    """Two digits that count: the third is noise."""
    return f"{float(f'{number:.2g}'):,.0f}"


def sizes(libraries: list[Library]) -> dict[str, dict[str, str]]:
    return {
        "version": {library.name: version(library) for library in libraries},
        "depends on": {library.name: ", ".join(dependencies(library)) or "nothing" for library in libraries},
        "lines of Python": {library.name: rounded(lines_of(library)) for library in libraries},
    }


# ---------------------------------------------------------------------------------------------------------------
# The page


def installed() -> list[Library]:
    found = []
    for kind in LIBRARIES:
        try:
            found.append(kind())
        except ImportError as error:
            print(f"missing, so not compared: {kind.name} ({error})", file=sys.stderr)
    return found


def table(head: str, names: list[str], rows: dict[str, list[str]]) -> str:
    lines = [[head, *names], ["---"] * (len(names) + 1), *([row, *cells] for row, cells in rows.items())]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def with_notes(probes: list[str], libraries: list[Library], cells: dict[tuple[str, str], Cell]) -> str:
    """A table, and below it what its cells have to add: by row, and said once where it is said of several."""
    names = [library.name for library in libraries]
    lines: list[str] = []
    rows: dict[str, list[str]] = {}
    for probe in probes:
        found = {name: cells[probe, name] for name in names}
        rows[probe] = [f"{cell.text} {MARK}" if cell.note else cell.text for cell in found.values()]
        notes = dict.fromkeys(cell.note for cell in found.values() if cell.note)
        lines += [f"- {probe}:"] if notes else []
        for note in notes:
            about = ", ".join(name for name, cell in found.items() if cell.note == note)
            lines.append(f"  - {about}: {note}")
    return "\n\n".join([table("", names, rows), "\n".join(lines)])


def strengths(libraries: list[Library]) -> str:
    text = []
    for library in libraries:
        found = library.strengths()
        for sentence, check in found.items():
            if not check():
                raise AssertionError(f"{library.name}: not so: {sentence}")
        if found:
            text.append(f"### {library.name}\n\n" + "\n".join(f"- {sentence}" for sentence in found))
    return "\n\n".join(text)


def measured(libraries: list[Library], rounds: int, import_rounds: int) -> tuple[str, str]:
    """What stands between the markers, and the short table."""
    with muted():
        cells = {
            (name, library.name): probe(library) for name, probe in PROBES.items() for library in libraries
        }
        praise = strengths(libraries)
    figures = sizes(libraries) | timings(libraries, rounds, import_rounds)
    names = [library.name for library in libraries]
    behaviour = [name for name in PROBES if name not in FEATURES]
    text = "\n\n".join(
        [
            "## What they do",
            with_notes(behaviour, libraries, cells),
            "## What they have",
            with_notes(list(FEATURES), libraries, cells),
            "## What they weigh and cost",
            f"{platform.python_implementation()} {platform.python_version()}, one machine; the best of {rounds} short "
            f"rounds, and of {import_rounds} new processes for the import.",
            table("", names, {row: [found[name] for name in names] for row, found in figures.items()}),
            "## What the others do well",
            praise,
        ]
    )
    return text, short(libraries, cells, figures)


def short(
    libraries: list[Library], cells: dict[tuple[str, str], Cell], figures: dict[str, dict[str, str]]
) -> str:
    names = [library.name for library in libraries if library.name in SHORT]
    probes = {
        "at the end comes": "at the end comes",
        "Ctrl-C under a catch-all": "Ctrl-C under the broadest setting",
        "`Retry-After` waited for": "`Retry-After` of a 503 is waited for",
        "conditions joined by operators": "conditions joined by operators",
        "Prometheus with no set-up": "Prometheus with no set-up",
    }
    by_default = ("with nothing configured, retries", "at most, by default")
    rows = {
        "by default, retries": [", ".join(cells[probe, name].text for probe in by_default) for name in names]
    }
    rows |= {row: [cells[probe, name].text for name in names] for row, probe in probes.items()}
    for row in ("a sync success, ns", "three failures, then a success, µs", "lines of Python"):
        rows[row] = [figures[row][name] for name in names]
    return table("", names, rows)


def told(page: str) -> dict[tuple[str, str], Cell]:
    """What the page says, read back from its tables and notes."""
    inside = page.partition(BEGIN)[2].partition(END)[0].partition("## What they weigh")[0]
    found: dict[tuple[str, str], Cell] = {}
    for section in inside.split("\n## "):
        notes = noted(section)
        rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("|")]
        for probe, *texts in rows[2:]:
            for name, text in zip(rows[0], texts, strict=True):
                words = text.removesuffix(f" {MARK}")
                found[probe, name] = Cell(words, notes[probe, name] if words != text else "")
    return found


def noted(section: str) -> dict[tuple[str, str], str]:
    notes, probe = {}, ""
    for line in section.splitlines():
        if line.startswith("- "):
            probe = line[2:-1]
        elif line.startswith("  - "):
            names, _, note = line[4:].partition(": ")
            notes |= {(probe, name): note for name in names.split(", ")}
    return notes


def replaced(page: str, text: str) -> str:
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise SystemExit(f"{PAGE.name} has no place for the tables: put {BEGIN} and {END} into it")
    return f"{before}{begin}\n\n{text}\n\n{end}{after}"


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--print", action="store_true", help="print the tables, write nothing")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    arguments = parser.parse_args(argv)
    rounds = (
        (bench.QUICK_ROUNDS, bench.QUICK_IMPORT_ROUNDS)
        if arguments.quick
        else (bench.ROUNDS, bench.IMPORT_ROUNDS)
    )
    libraries = installed()
    text, readme = measured(libraries, *rounds)
    if arguments.print:
        print(text)
    elif len(libraries) < len(LIBRARIES):
        raise SystemExit("the page is written only where all libraries are installed")
    else:
        PAGE.write_text(replaced(PAGE.read_text("utf-8"), text), encoding="utf-8")
    print(readme)


if __name__ == "__main__":
    main()
