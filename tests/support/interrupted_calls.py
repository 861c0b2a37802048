"""Guarded calls of each kind, and what they must not leave behind when they are interrupted."""

from __future__ import annotations

import inspect
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace

import pytest

import redouble
from redouble import Policy, context, current_attempt
from redouble.breaker import CircuitBreaker
from redouble.budget import TokenBudget
from redouble.bulkhead import Bulkhead
from redouble.testing import FakeClock
from redouble.throttle import AdaptiveThrottle

PACKAGE = str(Path(redouble.__file__).parent)
TIMERS = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no interval timers on this system")


def guarded(**fields):
    """A policy with every guard, on a clock of its own."""
    clock = FakeClock()
    settings = {
        "attempts": 4,
        "base": 0.01,
        "cap": 0.02,
        "deadline": 600.0,
        "clock": clock,
        "sleep": clock.sleep,
        "budget": TokenBudget(capacity=100),
        "breaker": CircuitBreaker(failures=3, open_for=5.0, clock=clock),
        "throttle": AdaptiveThrottle(clock=clock),
        "bulkhead": Bulkhead(1, queue=1),
        "idempotency_key": True,
        "listeners": [lambda event: None],
        "name": "fetch",
    }
    return Policy(**{**settings, **fields})


def unsound(policy):
    """What an interrupted call has left behind: nothing, if all is well."""
    places, tokens = policy.bulkhead.snapshot(), policy.budget.tokens
    if places != (0, 0):
        return [f"places: {places}"]  # the next call would wait for one without end
    found = [] if 0.0 <= tokens <= policy.budget.capacity else [f"tokens: {tokens}"]
    found += [] if current_attempt() is None else [f"context: {current_attempt()}"]
    # A probe that was lost is replaced when the circuit has been open for as long again; a deadline that was
    # left behind has passed by now.
    if hasattr(policy.clock, "advance"):
        policy.clock.advance(1000.0)
    try:
        pages = [policy.call(lambda: "page") for _ in range(2)]
    except Exception as error:
        return [*found, f"the next call: {error!r}"]
    return found if pages == ["page", "page"] else [*found, f"the next calls gave {pages}"]


SHARED = "\n".join(
    [
        "import asyncio, atexit, os, random, signal, sys, threading, time",
        "from redouble import Policy, current_attempt, retry, retrying",
        "from redouble.breaker import CircuitBreaker",
        "from redouble.budget import TokenBudget",
        "from redouble.bulkhead import Bulkhead",
        "from redouble.testing import FakeClock, scripted",
        "from redouble.throttle import AdaptiveThrottle",
        inspect.getsource(guarded),
        inspect.getsource(unsound),
    ]
)


def run(code, *arguments, timeout=60):
    """What a program printed, in a new interpreter; whatever it writes to stderr is a failure."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SHARED + textwrap.dedent(code), *arguments],
        env={**os.environ, "PYTHONPATH": str(Path(PACKAGE).parent)},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert (done.stderr, done.returncode) == ("", 0)
    return done.stdout.split("\n")[:-1]


async def page():
    return "page"


def interrupt_as_a_context_is_set(monkeypatch, module):
    """Let an interrupt come when the module sets the context of an attempt; return what is set after that."""
    later, real = [], context.current

    def set_(value):
        if value is not None and not later:
            later.append("interrupted")
            raise KeyboardInterrupt
        later.append(value)

    monkeypatch.setattr(module, "current", SimpleNamespace(get=real.get, set=set_, reset=real.reset))
    return later
