"""Time calls and imports on a noisy machine.

Four decisions:

- *The minimum counts.* The interpreter does the same work in every round; other processes and interrupts can only add to
  it. So the minimum is the best estimate, and more rounds only improve it. A mean or a median would say how busy the
  machine was. For the same reason two measurements are merged by taking the minimum again.
- *Cases take turns.* Each round runs every case of a path once, briefly, so that all of them share quiet and noisy moments.
- *Each case has its own loop.* CPython specialises bytecode in place; one shared loop would be specialised for one case
  and slow for the next.
- *Each case has its own context.* A library that leaves a context variable set makes setting another one slower in the
  same context: by a tenth, or by a third if the hashes of the two collide.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import Context
from functools import partial
from itertools import repeat
from tempfile import TemporaryDirectory
from time import perf_counter
from types import FunctionType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio

# Makes 10 * n calls and returns the seconds that they took.
Sampler = Callable[[int], float]
CALLS_PER_TURN = 10
SAMPLE_SECONDS = 0.002  # short, so that some samples fall between two interrupts
NANO = 1e9


def _ten_calls(call: Callable[[int], Any], turns: int) -> float:
    # Written out ten times, so that the loop itself is a small part of what is measured.
    each = repeat(None, turns)
    start = perf_counter()
    for _ in each:
        call(1)
        call(1)
        call(1)
        call(1)
        call(1)
        call(1)
        call(1)
        call(1)
        call(1)
        call(1)
    return perf_counter() - start


async def _ten_awaits(call: Callable[[int], Any], turns: int) -> float:
    each = repeat(None, turns)
    start = perf_counter()
    for _ in each:
        await call(1)
        await call(1)
        await call(1)
        await call(1)
        await call(1)
        await call(1)
        await call(1)
        await call(1)
        await call(1)
        await call(1)
    return perf_counter() - start


def _own_copy(function: Callable[..., Any]) -> FunctionType:
    """Return the same function with a new code object, which is specialised for one case only."""
    return FunctionType(function.__code__.replace(), function.__globals__)


def sync_sampler(call: Callable[[int], Any]) -> Sampler:
    return partial(Context().run, _own_copy(_ten_calls), call)


def async_sampler(call: Callable[[int], Any], runner: asyncio.Runner) -> Sampler:
    """Time inside one coroutine that never suspends, so that the cost of the event loop is not counted."""
    awaits, context = _own_copy(_ten_awaits), Context()
    return lambda turns: runner.run(awaits(call, turns), context=context)


def turns_for(sampler: Sampler) -> int:
    """Return how many turns fill a sample. This is the warm-up, too."""
    turns = 1
    while (seconds := sampler(turns)) < SAMPLE_SECONDS / 2:
        turns *= 2
    return max(1, round(turns * SAMPLE_SECONDS / seconds))


@contextmanager
def garbage_collector_off() -> Iterator[None]:
    """Collect no garbage inside a sample, and ignore existing objects in collections between rounds."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


def best_of(samplers: Mapping[str, Sampler], rounds: int) -> dict[str, float]:
    """Return nanoseconds per call for each case: the minimum of `rounds` interleaved samples."""
    turns = {name: turns_for(sampler) for name, sampler in samplers.items()}
    best = dict.fromkeys(samplers, float("inf"))
    with garbage_collector_off():
        for _ in range(rounds):
            for name, sampler in samplers.items():
                seconds = sampler(turns[name])
                best[name] = min(best[name], seconds / turns[name] / CALLS_PER_TURN * NANO)
            gc.collect()  # failed attempts leave cycles behind; without this they would pile up
    return best


def merged(first: Mapping[str, float], second: Mapping[str, float]) -> dict[str, float]:
    """Return the minima of two measurements."""
    return {name: min(ns, second.get(name, ns)) for name, ns in first.items()}


# The clock starts when the interpreter has started, so its start is not in the figure. `sys` and `time` are built in:
# importing them loads nothing.
_CHILD = """
import sys, time
before = set(sys.modules)
start = time.perf_counter_ns()
{statement}
took = time.perf_counter_ns() - start
print(took, *(set(sys.modules) - before))
"""


def cold(statement: str, compiled: str | None = None) -> tuple[float, frozenset[str]]:
    """Run `statement` in a new process; return nanoseconds and the modules that it loaded."""
    # -P keeps the working directory out of the path, so that the library found is the one installed.
    command = [sys.executable, "-P", "-c", _CHILD.format(statement=statement)]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    if compiled is not None:
        environment["PYTHONPYCACHEPREFIX"] = compiled
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    nanoseconds, *modules = done.stdout.split()
    return float(nanoseconds), frozenset(modules)


def coldest_of(statements: Mapping[str, str], rounds: int) -> dict[str, float]:
    """Return nanoseconds for each statement: the minimum of `rounds` processes, in turns."""
    best = dict.fromkeys(statements, float("inf"))
    # A bytecode cache for this measurement alone, so that it does not matter whether an installer compiled a library.
    with TemporaryDirectory() as compiled:
        for statement in statements.values():
            cold(statement, compiled)  # fills the cache
        for _ in range(rounds):
            for name, statement in statements.items():
                best[name] = min(best[name], cold(statement, compiled)[0])
    return best
