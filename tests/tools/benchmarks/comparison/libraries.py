"""How each thing is written with redouble, tenacity, stamina and backoff."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import sys
import tempfile
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from .base import (
    HINT,
    Answer,
    Decorator,
    Library,
    Settings,
    asked_for,
    awaited,
    flaky,
    outcome,
    waits_skipped,
    yes,
)
from .checks import (
    always,
    answer,
    blocks,
    calls_made,
    falls_back,
    hedges,
    hooks_awaited,
    is_frugal,
    is_full,
    polls,
    trips,
    waits_of,
)
from .figures import dependencies, lines_of


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
            with self._part("dead_letters").DeadLetters(Path(folder) / "letters.db") as letters:
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
        label = "`wait_exception`, with a custom function that reads the header"
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
        with waits_skipped() as waits:
            outcome(it.retry(retry=either, stop=stop, wait=wait)(fetch))
        return len(calls) == 3 and waits == [5, 5]

    def strengths(self) -> dict[str, Callable[[], bool]]:
        return {
            "Conditions, stops and waits are objects that combine: `|` and `&` for when to retry and when to stop, `+` "
            "for waits. redouble has functions instead.": self._joined,
            "Predicates may be awaited (`tenacity.asyncio.retry_if_exception`), and so may hooks. redouble's are "
            "plain functions.": self._asks_async,
            "A hook gets the whole state of the call: function, arguments, outcome, attempt number, times. redouble's "
            "events hold texts and numbers, and the exception and the arguments while listeners run.": self._state,
            "A decorated function can be given other settings for one call, with `fetch.retry_with(...)`. redouble "
            "has `policy.replace(...).call(fetch)`.": self._retry_with,
        }

    def _asks_async(self) -> bool:
        from tenacity.asyncio import retry_if_exception

        async def is_timeout(error: BaseException) -> bool:
            return isinstance(error, TimeoutError)

        fetch, calls = flaky(TimeoutError())
        with waits_skipped():
            asyncio.run(self.limited(2, retry=retry_if_exception(is_timeout))(awaited(fetch))())
        return len(calls) == 2

    def _state(self) -> bool:
        seen: list[Any] = []
        fetch, _ = flaky(TimeoutError())
        with waits_skipped():
            hook = lambda state: seen.extend([state.args, type(state.outcome.exception())])  # noqa: E731
            self.limited(2, before_sleep=hook)(lambda url: fetch())("/news")
        return seen == [("/news",), TimeoutError]

    def _retry_with(self) -> bool:
        fetch, calls = flaky(*[TimeoutError()] * 9)
        with waits_skipped():
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
        return {("`on`, with a custom function that reads the header", 503): self.limited(2, on=asked_for)}

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
        """Return whether metrics are exported without set-up, with a stand-in if prometheus_client is not installed."""
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
            "It requires the errors to retry, so nobody retries a bug by accident; attempts, time and jitter are "
            "bounded by default.": lambda: isinstance(outcome(lambda: self.bare(len)), TypeError),
            "Retries are counted for Prometheus and logged by structlog if these are installed, with no set-up. With "
            "redouble Prometheus takes a line.": self._prometheus,
            "One switch for a whole test suite, `set_testing`, and one for a whole program, `set_active`. redouble "
            "has `redouble.testing` for the first and `enabled`, policy by policy, for the second.": lambda: (
                self._switch() and self._inactive()
            ),
            "A hook may return a context manager, which is left after the wait: a span for each wait.": (
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

        with self.hooked(lambda details: span()), waits_skipped():
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
        label = "`runtime`, with a custom function that reads the header"
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
            "Small enough to read in an hour, without dependencies.": lambda: (
                lines_of(self) < 1000 and not dependencies(self)
            ),
            "Waits are plain generators, which get the error or the result of each attempt: `runtime` waits as long "
            "as either says.": lambda: (
                set(waits_of(next(iter(self.hints().values())), answer(503))) == {HINT}
            ),
            "Limits may be functions, called for each call: `max_tries=lambda: settings.tries`.": lambda: (
                calls_made(self.limited(3, max_tries=lambda: 2)) == 2
            ),
            "Polling has its own decorator, `on_predicate`, which needs no exception.": (
                self.checks()["retry on a result"]
            ),
        }
