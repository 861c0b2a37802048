"""Run a decorator on a small function and report whether it shows a feature."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from .base import HINT, Answer, Decorator, awaited, flaky, outcome, really_wait, waits_skipped


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
    """Return how often a function that keeps failing is called; it fails `most` times."""
    fetch, calls = flaky(*[error or TimeoutError("slow")] * most)
    with waits_skipped():
        outcome(decorator(fetch))
    return len(calls)


def waits_of(decorator: Decorator, error: BaseException) -> list[float]:
    with waits_skipped() as waits:
        outcome(decorator(flaky(*[error] * 5)[0]))
    return waits


def polls(decorator: Decorator) -> bool:
    answers = ["", "page"]

    def fetch() -> str:
        return answers.pop(0)

    with waits_skipped():
        return outcome(decorator(fetch)) == "page"


def falls_back(decorator: Decorator, value: Any = "old") -> bool:
    with waits_skipped():
        return outcome(decorator(always())) == value


def blocks(make: Callable[[], Any]) -> bool:
    fetch, calls = flaky(TimeoutError("slow"))
    with waits_skipped():
        for attempt in make():
            with attempt:
                fetch()
    return len(calls) == 2


def is_frugal(decorator: Decorator) -> bool:
    """Return whether a budget allows one retry and refuses the next."""
    return calls_made(decorator) == 2


def trips(decorator: Decorator) -> bool:
    """Return whether the function is not called any more after two failures."""
    fetch, calls = flaky(*[TimeoutError("slow")] * 9)
    decorated = decorator(fetch)
    with waits_skipped():
        for _ in range(4):
            outcome(decorated)
    return len(calls) == 2


def is_full(decorator: Decorator) -> bool:
    """Return whether the function cannot be called while a call is in flight."""
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

    with waits_skipped():
        asyncio.run(decorator_with(hook)(awaited(flaky(TimeoutError())[0]))())
    return seen == [1]
