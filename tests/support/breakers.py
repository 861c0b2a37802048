"""Breakers in a given state, and calls that succeed, fail or are ignored."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from redouble.breaker import CircuitBreaker, State
from redouble.errors import CircuitOpen

CLOSED, OPEN, HALF_OPEN = State.closed, State.open, State.half_open

# Arguments of one breaker of each kind.
EVERY_WAY = [
    pytest.param({"failures": 3}, id="row"),
    pytest.param({"failure_rate": 0.5, "minimum_calls": 4, "last_calls": 16}, id="count"),
    pytest.param({"failure_rate": 0.5, "minimum_calls": 4, "window": 10.0}, id="time"),
]


class Excluded(Exception):
    """A failure that the breakers of these tests are told to ignore."""


def make(clock=None, **fields):
    return CircuitBreaker(**{"clock": clock, "ignore": Excluded, "name": "shop", **fields})


def fail(breaker, times=1, text="slow"):
    for _ in range(times):
        breaker.failure(breaker.enter(), TimeoutError(text))


def succeed(breaker, times=1):
    for _ in range(times):
        breaker.success(breaker.enter())


def exclude(breaker, times=1):
    for _ in range(times):
        breaker.failure(breaker.enter(), Excluded())


def refused(breaker):
    with pytest.raises(CircuitOpen) as caught:
        breaker.enter()
    return caught.value


def opened(clock, **fields):
    """A breaker that has just opened after one failure."""
    breaker = make(clock, **{"failures": 1, **fields})
    fail(breaker)
    assert breaker.state is OPEN
    return breaker


def half_opened(clock, **fields):
    """A breaker that is ready for its probes."""
    breaker = opened(clock, **fields)
    clock.advance(breaker.retry_after)
    assert breaker.state is HALF_OPEN
    return breaker


# The kinds of failure rates.
KINDS = [{"window": 10}, {"last_calls": 100}]


def watcher(clock, window=10):
    """A breaker that counts and never opens."""
    return make(clock, failure_rate=1.0, minimum_calls=10**6, window=window)


class HttpError(Exception):
    def __init__(self, status):
        super().__init__(f"HTTP {status}")
        self.response = SimpleNamespace(status_code=status, headers={})


class Way:
    """One way to put a call through a breaker."""

    def __init__(self, name):
        self.name = name

    def __repr__(self):
        return self.name

    def run(self, breaker, body):
        if self.name == "with":
            with breaker:
                return body()
        if self.name == "decorator":
            return breaker(lambda: body())()

        async def coroutine():
            return body()

        async def block():
            async with breaker:
                return body()

        return asyncio.run(breaker(coroutine)() if self.name == "async decorator" else block())


def raising(error):
    def body():
        raise error

    return body


def walk(breaker, clock):
    """Closed, open, half-open, open, half-open, closed, and then open and closed by hand."""
    fail(breaker)
    clock.advance(30)
    fail(breaker, text="still slow")
    clock.advance(30)
    succeed(breaker)
    breaker.open()
    breaker.close()


def check_invariants(breaker):
    """What must hold whenever nobody is in the middle of a change."""
    phase = breaker._circuit.phase
    assert 0 <= phase.probes <= breaker._circuit.probes
    assert 0 <= phase.successes < max(2, breaker._circuit.successes)
    assert phase.probes == 0 or phase.state is HALF_OPEN
    assert breaker._ticket in (None, phase.generation)
    if phase.state is not CLOSED:
        assert (breaker._ticket, breaker._clean) == (None, False)
    if breaker._clean:
        assert breaker.counted == (0, 0)
    calls, failures = breaker.counted
    assert 0 <= failures <= calls
