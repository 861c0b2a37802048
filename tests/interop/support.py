"""Helpers of the interoperability tests: expected verdicts, and the error of a call."""

from __future__ import annotations

import asyncio
import importlib.util
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from redouble.classify import Cause, verdict

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator

# Left out unless REDOUBLE_LONG=1 is set, as in .ci/run long; see conftest.py.
in_long_mode = pytest.mark.long


class Judged(NamedTuple):
    """A verdict without its reason, whose text may change."""

    retryable: bool
    unprocessed: bool
    cause: Cause
    status: int | None
    retry_after: Any


def judged(failure: object) -> Judged:
    """Return redouble's verdict on a failure."""
    found = verdict(failure)
    return Judged(found.retryable, found.unprocessed, found.cause, found.status, found.retry_after)


def permanent(cause: str = "permanent", status: int | None = None) -> Judged:
    """Expect: not retryable."""
    return Judged(False, False, Cause(cause), status, None)


def transient(cause: str, status: int | None = None, retry_after: Any = None) -> Judged:
    """Expect: retryable, and the request may have been processed."""
    return Judged(True, False, Cause(cause), status, retry_after)


def unprocessed(cause: str, status: int | None = None, retry_after: Any = None) -> Judged:
    """Expect: retryable, and the request was certainly not processed."""
    return Judged(True, True, Cause(cause), status, retry_after)


def error_of(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Exception:
    """Return the error that a call raises."""
    with pytest.raises(Exception) as caught:
        function(*args, **kwargs)
    return caught.value


def error_in(coroutine: Awaitable[Any]) -> Exception:
    """Return the error that a coroutine raises on a new event loop."""

    async def main() -> Any:
        return await coroutine

    return error_of(asyncio.run, main())


@contextmanager
def running(function: Callable[[], Any]) -> Iterator[list[Exception]]:
    """Run a function in a thread beside the block; yield the list of its errors, complete after the block."""
    errors: list[Exception] = []

    def body() -> None:
        try:
            function()
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    try:
        yield errors
    finally:
        thread.join(30)
        assert not thread.is_alive()


def installed(names: Iterable[str]) -> list[str]:
    """Return the clients whose library is installed; ``httpx-async`` is a client of httpx."""
    return [name for name in names if importlib.util.find_spec(name.partition("-")[0]) is not None]


def each(fixture: str, *names: str) -> Any:
    """Parametrize a test with the clients that are installed."""
    found: list[Any] = list(installed(names))
    if not found:
        reason = f"not installed: {', '.join(names)}; the extra 'interop' is needed"
        found = [pytest.param(None, marks=pytest.mark.skip(reason=reason))]
    return pytest.mark.parametrize(fixture, found, indirect=True)


def left_out(name: str) -> None:
    """Skip the test if the library of a client is not installed."""
    if not installed([name]):
        pytest.skip(f"{name} is not installed: its tests were left out, the extra 'interop' is needed")
