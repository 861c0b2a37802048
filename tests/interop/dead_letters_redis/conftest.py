"""Fixtures for tests of dead letters in a real Redis."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from interop.dead_letters_redis.letters_on_redis import OPTIONS
from interop.processes import Server
from redouble.dead_letters import DeadLetters
from redouble.dead_letters._redis import RedisStore
from redouble.testing import FakeClock
from support.dead_letters import NOW

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def client(redis_server: Server) -> Iterator[Any]:
    """A client of an empty Redis."""
    redis = pytest.importorskip("redis", reason="redis-py is not installed: the extra 'interop' is needed")
    with redis.Redis(port=redis_server.port, **OPTIONS) as client:
        client.flushall()
        yield client


@pytest.fixture
def store(client: Any) -> RedisStore:
    return RedisStore(client, "letters")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(NOW)


@pytest.fixture
def events() -> list[Any]:
    return []


@pytest.fixture
def letters(store: RedisStore, clock: FakeClock, events: list[Any]) -> DeadLetters:
    return DeadLetters(store, clock=clock, listeners=[events.append])
