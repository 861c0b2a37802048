"""Run a function in many threads at once, with frequent switches between them."""

from __future__ import annotations

import contextlib
import contextvars
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def in_threads(
    body: Callable[[int], Any], count: int = 64, *, fail: bool = False, timeout: float = 60.0
) -> list[Any]:
    """Call ``body(number)`` in `count` threads that start together; return the results by number.

    The result of a body that raised is its exception. With ``fail=True`` the first such exception is raised instead.
    The test fails if a thread still runs after `timeout` seconds.
    """
    barrier, results = threading.Barrier(count), [None] * count

    def run(number: int) -> None:
        barrier.wait()
        try:
            results[number] = body(number)
        except BaseException as error:
            results[number] = error  # type: ignore[call-overload]

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    end = time.monotonic() + timeout
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    running = sum(thread.is_alive() for thread in threads)
    assert not running, f"{running} of {count} threads still run after {timeout:g} s"
    errors = [result for result in results if isinstance(result, BaseException)]
    if fail and errors:
        raise errors[0]
    return results


def in_a_thread(function: Callable[[], Any]) -> Any:
    """Call a function in another thread, with an empty context; return its result, or the exception it raised."""
    outcome: list[Any] = []

    def body() -> None:
        try:
            outcome.append(function())
        except Exception as error:
            outcome.append(error)

    # Threads of free-threaded builds inherit the context of their maker.
    thread = threading.Thread(target=contextvars.Context().run, args=[body])
    thread.start()
    thread.join(60)
    (found,) = outcome
    return found


@contextlib.contextmanager
def switching_every(seconds: float) -> Iterator[None]:
    """Set how long the interpreter lets a thread run before it switches to another."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(seconds)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


@pytest.fixture
def frequent_switches() -> Iterator[None]:
    """Switch threads every microsecond, to provoke races. `conftest.py` makes this fixture available to all tests."""
    with switching_every(1e-6):
        yield
