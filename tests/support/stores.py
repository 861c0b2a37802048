"""Clients that answer from a script, and guards on them."""

from __future__ import annotations

import sqlite3

from redouble.events import BackendChanged, CircuitChanged
from redouble.shared import RedisBreaker, RedisBudget
from support.fake_redis import AsyncFakeRedis, FakeRedis

REFUSED = ConnectionError("Error 111 connecting to localhost:6379. Connection refused.")


class Interrupt(BaseException):
    """Not an Exception, as KeyboardInterrupt, but ends no test run."""


class Client(FakeRedis):
    """A stand-in for `redis.Redis`. `asked` has the arguments of the scripts, `proving` the last one of each."""

    def __init__(self, *answers):
        super().__init__(*answers, repeat=True)
        self.scripts, self.proving = [], []

    def answer(self, command, script, keys, key, *words):
        *words, proving = words
        self.scripts.append((script, keys, key))
        self.proving.append(proving == "True")
        return super().answer(*words)


class AsyncClient(AsyncFakeRedis, Client):
    """A stand-in for `redis.asyncio.Redis`."""


class Store:
    """A flavour's client and clock, and what listeners heard."""

    def __init__(self, flavour, clock, *answers):
        self.flavour, self.clock, self.events = flavour, clock, []
        self.client = (AsyncClient if flavour.is_async else Client)(*answers)

    def budget(self, **fields):
        return RedisBudget(self.client, "retries", clock=self.clock, listeners=[self.events.append], **fields)

    def breaker(self, **fields):
        return RedisBreaker(
            self.client, "circuit", clock=self.clock, listeners=[self.events.append], **fields
        )

    def run(self, method, *args, **kwargs):
        return self.flavour.run(method, *args, **kwargs)


def left(tokens, taken=0):
    """What the script of a budget answers."""
    return [b"%r" % taken, b"%r" % tokens]


def said(state="closed", before=None, admitted=1, generation=7, oldest=None, failures=0, successes=0,
         probes=0, ends_in=b"", age=0, last=b""):  # fmt: skip
    """What the script of a circuit answers."""
    oldest = generation if oldest is None else oldest
    numbers = [b"%d" % generation, b"%d" % oldest, failures, successes, probes]
    return [admitted, (before or state).encode(), state.encode(), *numbers, ends_in, b"%r" % age, last]


def changes(events):
    return [event.available for event in events if isinstance(event, BackendChanged)]


def transitions(events):
    return [(event.before, event.after) for event in events if isinstance(event, CircuitChanged)]


def raw(path, statement="SELECT tokens FROM budget"):
    connection = sqlite3.connect(path)
    try:
        with connection:
            return connection.execute(statement).fetchall()
    finally:
        connection.close()
