"""Helpers for tests of dead letters in a real Redis."""

from __future__ import annotations

import json
from typing import Any

from redouble.dead_letters import DeadLetter, Limits, Store
from support.dead_letters import NOW

OPTIONS: dict[str, Any] = {
    "host": "127.0.0.1",
    "retry": None,
    "socket_timeout": 5,
    "socket_connect_timeout": 5,
}


def put_many(store: Store, count: int, now: float = NOW) -> list[DeadLetter]:
    return [
        store.add(DeadLetter(id=f"{n:05}", payload=n), now=now + n, limits=Limits()).letter
        for n in range(count)
    ]


def check_parts(client: Any) -> None:
    """What is kept twice agrees, and nothing is left of letters that are gone."""
    fields = client.hgetall("{letters}:letters")
    of = {kind: {f for f in fields if f.startswith(kind)} for kind in (b"life ", b"content ", b"key ")}
    letters = len(of[b"life "])
    assert len(of[b"content "]) == letters
    assert len(of[b"key "]) == sum(b'"idempotency_key":null' not in fields[life] for life in of[b"life "])
    assert client.zcard("{letters}:index") == 2 * letters
    tallies = client.hgetall("{letters}:tallies")
    assert sum(int(n) for name, n in tallies.items() if not name.startswith(b"size")) == letters
    sizes = [json.loads(fields[life])["size"] for life in of[b"life "]]
    assert sum(int(n) for name, n in tallies.items() if name.startswith(b"size")) == sum(sizes)
    assert client.exists("{letters}:letters", "{letters}:index", "{letters}:tallies") == (3 if letters else 0)
    assert client.dbsize() <= 3
