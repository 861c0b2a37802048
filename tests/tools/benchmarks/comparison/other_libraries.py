"""How each thing is written with opnieuw, redress and pyresilience."""

from __future__ import annotations

import importlib
import time
import types
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from .base import Decorator, Library, Settings, flaky, outcome, slowly, waits_skipped
from .checks import (
    always,
    answer,
    calls_made,
    falls_back,
    hooks_awaited,
    is_frugal,
    is_full,
    polls,
    trips,
    waits_of,
)
from .figures import lines_of, package


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
            "end. redouble has `history`, for the error that is raised.": self._timeline,
            "Adapters for HTTP clients, LLM clients, Celery, FastAPI and more come with it; redouble has fewer, and "
            "recognises the errors of the rest.": lambda: (
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
        with waits_skipped():
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
            "A sync function is cut off too: it runs on a thread, which is interrupted as well as Python can. redouble "
            "offers the time left to sync code and interrupts nothing.": self._cuts,
            "A cache of results and a plain rate limit are in the same decorator as retries. redouble has no cache; "
            "its throttle follows the server.": lambda: self._caches() and self._limits(),
            "A health check gives the state of all breakers of a registry.": lambda: isinstance(
                self.it.health_check(self.it.ResilienceRegistry()), dict
            ),
        }
