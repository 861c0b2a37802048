"""Measure the memory of an async call that waits for its next attempt.

Each library, and a task that only sleeps, is measured in a new process, by what the process takes from the system
(`resident`) or by what Python allocates (`traced`). `soak.py` and `bench.py` print the tables.
"""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    Waiting = Callable[[], Coroutine[Any, Any, Any]]

LONG = 3600.0  # seconds that a call in backoff waits: it is still waiting when it is measured
REDOUBLE, TENACITY, BARE = "redouble", "tenacity", "bare task"
NOT_INSTALLED = 3  # exit status


def _fails() -> Waiting:
    async def fetch() -> None:
        raise TimeoutError("slow")

    return fetch


def _bare() -> Waiting:
    async def fetch() -> None:
        await asyncio.sleep(LONG)

    return fetch


def _redouble() -> Waiting:
    from redouble import retry
    from redouble.backoff import fixed

    return retry(attempts=4, backoff=fixed, base=LONG, cap=LONG)(_fails())


def _tenacity() -> Waiting:
    from tenacity import retry, stop_after_attempt, wait_fixed

    return retry(stop=stop_after_attempt(4), wait=wait_fixed(LONG))(_fails())


def _backoff() -> Waiting:
    from backoff import constant, on_exception

    return on_exception(constant, TimeoutError, max_tries=4, interval=LONG, jitter=None)(_fails())


CONTESTANTS = {BARE: _bare, REDOUBLE: _redouble, TENACITY: _tenacity, "backoff": _backoff}


def resident() -> int:
    """Return the bytes that this process has from the system; where that cannot be read, the most it ever had."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        import resource

        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024


def traced() -> int:
    """Return the bytes that Python has allocated since tracing began."""
    return tracemalloc.get_traced_memory()[0]


async def bytes_per_call(function: Waiting, calls: int, measure: Callable[[], int]) -> float:
    """Return the bytes of one call, from `calls` of them that all wait at the same time."""

    async def waiting(count: int) -> list[asyncio.Task[Any]]:
        tasks = [asyncio.create_task(function()) for _ in range(count)]
        for _ in range(3):
            await asyncio.sleep(0)
        if any(task.done() for task in tasks):
            raise AssertionError("a call that should wait is over")
        return tasks

    first = await waiting(10)  # so that what is made once is made before
    gc.collect()
    before = measure()
    tasks = await waiting(calls)
    gc.collect()
    each = (measure() - before) / calls
    for task in (*first, *tasks):
        task.cancel()
    await asyncio.gather(*first, *tasks, return_exceptions=True)
    return each


def measure_here(name: str, calls: int, how: str) -> float:
    """Return the bytes of a waiting call of a library, measured in this process."""
    function = CONTESTANTS[name]()
    if how == "resident":
        return asyncio.run(bytes_per_call(function, calls, resident))
    tracemalloc.start()
    try:
        return asyncio.run(bytes_per_call(function, calls, traced))
    finally:
        tracemalloc.stop()


def measure_apart(name: str, calls: int, how: str) -> float | None:
    """Return the bytes of a waiting call, measured in a new process; ``None`` if the library is not installed."""
    command = [sys.executable, __file__, name, how, str(calls)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment)
    if done.returncode not in (0, NOT_INSTALLED):
        raise RuntimeError(f"{name} could not be measured")
    return None if done.returncode == NOT_INSTALLED else float(done.stdout)


def main(argv: Sequence[str]) -> int:
    name, how, calls = argv
    try:
        print(measure_here(name, int(calls), how))
    except ImportError:
        return NOT_INSTALLED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
