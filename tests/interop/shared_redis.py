"""Helpers for tests of guards on a Redis server."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from interop.processes import Server, free_port, home, listening, program, serving
from redouble.events import BackendChanged

if TYPE_CHECKING:
    from collections.abc import Iterator

redis = pytest.importorskip("redis", reason="redis-py is not installed: the extra 'interop' is needed")
redis_asyncio = pytest.importorskip("redis.asyncio")

OPTIONS: dict[str, Any] = {
    "host": "127.0.0.1",
    "retry": None,
    "socket_timeout": 2,
    "socket_connect_timeout": 2,
}


class Own:
    """A server of one test, which may be killed and started again on the same port."""

    def __init__(self) -> None:
        self.port = free_port()
        self._program = program("redis-server", "Redis")

    @contextmanager
    def running(self) -> Iterator[Server]:
        command = [self._program, *f"--bind 127.0.0.1 --port {self.port} --save --appendonly no".split()]
        with home() as (_, account):
            with serving(
                lambda _: command, account, lambda _: listening(self.port), signal.SIGKILL
            ) as server:
                yield server


def availability(events: list[Any]) -> list[bool]:
    """Return whether the store was available, for each change of that."""
    return [event.available for event in events if isinstance(event, BackendChanged)]
