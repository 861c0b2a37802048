"""Parts of the probes: errors, functions that fail, skipped waits, and the base class of libraries."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import sys
import threading
import time
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

# Longer than any first wait of a library by default, and short enough for all of them to accept.
HINT = 41

Decorator = Callable[[Any], Any]
Settings = dict[str, Decorator]  # how it is written -> the decorator


class Cell(NamedTuple):
    """What a probe saw, in a few words, and a note for the reader."""

    text: str
    note: str = ""


class Answer(Exception):
    """A failed HTTP request, with the attributes that errors of common clients have."""

    def __init__(self, status: int, method: str = "GET", **headers: str) -> None:
        super().__init__(f"HTTP {status}")
        self.status, self.headers = status, {name.replace("_", "-"): text for name, text in headers.items()}
        self.request = types.SimpleNamespace(method=method)
        self.response = types.SimpleNamespace(status_code=status, headers=self.headers, request=self.request)


def asked_for(error: Any, *_: object) -> float:
    """Read the header as a user would write it."""
    return float(error.response.headers["Retry-After"])


def flaky(*errors: BaseException) -> tuple[Any, list[int]]:
    """Return a function that raises these errors, one per call, and then returns; and the list of its calls."""
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
def waits_skipped() -> Iterator[list[float]]:
    """Record waits and skip them; ignore warnings of other packages."""
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
    """Return the result of a call, or the exception that it raised."""
    try:
        return call()
    except BaseException as error:
        return error


def really_wait(seconds: float) -> asyncio.Future[None]:
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    loop.call_later(seconds, lambda: done.done() or done.set_result(None))
    return done


class Library:
    """How each task is written with one library. Methods for features that it does not have are not overridden."""

    name = ""
    most_seconds = ""  # the parameter that limits the time of a call, where it has a default

    def __init__(self) -> None:
        self.it: Any = importlib.import_module(self.name)

    def bare(self, function: Any) -> Any:
        """Decorate with no arguments."""
        return self.it.retry(function)

    def least(self, function: Any) -> Any:
        """Decorate with only the required arguments."""
        return self.bare(function)

    def limited(self, attempts: int, **more: Any) -> Decorator:
        raise NotImplementedError

    def same_error(self) -> Settings:
        return {"": self.limited(2)}

    def broadest(self) -> Settings:
        """Return each way to retry every exception, three attempts at most."""
        raise NotImplementedError

    def deadlines(self) -> Settings:
        """Return ways to set a deadline of 1 s, with waits of 5 s."""
        return {}

    def cuts(self) -> Settings:
        """Return ways to set a limit of 0.03 s for the call or an attempt."""
        return {}

    def hints(self) -> dict[tuple[str, int], Decorator]:
        """Return ways to wait as long as the response with this status asks for."""
        return {}

    def careful(self) -> Settings:
        """Return ways not to repeat a POST."""
        return {}

    def chosen(self, wanted: Any) -> Settings:
        """Return ways to retry if a function of the user returns true."""
        return {}

    def under_trio(self, trio: Any) -> Settings:
        return {"": self.limited(2)}

    def listening(self, listener: Any) -> Settings:
        return {}

    def checks(self) -> dict[str, Callable[[], bool]]:
        """Return the features that it has, each with a function that shows it."""
        return {}

    def strengths(self) -> dict[str, Callable[[], bool]]:
        """Return sentences on what it does well, each with a function that shows it."""
        return {}


def yes(*_: object, **__: object) -> bool:
    return True
