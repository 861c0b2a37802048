"""What was given up on, as a record; how it is written as text; and what a store of such records can do.

A store keeps a letter in two parts. Its *content* (`CONTENT`) is what happened, and a further put under the
same key replaces it. The rest is kept from the first put (`ORIGIN`), or is its life since: how often it was
put and replayed, whether it is parked, who has a lease on it and until when.
"""

from __future__ import annotations

import os
from itertools import count

from ._guard import Lock
from ._record import Record, assign
from ._text import brief
from ._trouble import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType
    from typing import Any, Literal

    State = Literal["waiting", "leased", "parked"]
    Letters = list["DeadLetter"]

# A child that is forked in the middle of an import waits for ever for the thread that was importing: it is
# not there. So what is imported late is imported under a lock that a fork waits for.
importing = Lock()
_at_fork: Any = getattr(os, "register_at_fork", dict)
_at_fork(before=importing.acquire, after_in_parent=importing.release, after_in_child=importing.release)
_prepared: list[ModuleType] = []


def prepare() -> None:
    """Import, once, what letters need and what would slow down the import of redouble."""
    if _prepared:
        return
    with importing:
        import datetime
        import hashlib
        import json
        import struct
        import threading
        import tokenize
        import traceback

        found = [datetime, hashlib, json, struct, threading, tokenize, traceback]
        try:
            import sqlite3

            found.append(sqlite3)
            import fcntl

            found.append(fcntl)
        except ImportError:  # is told when a file is opened
            pass
        _prepared.extend(found)


STATES = ("waiting", "leased", "parked")

CONTENT = (
    "payload", "payload_masked", "function", "error_type", "error_message", "traceback", "failure_code",
    "attempts", "last_attempt_at", "dead_lettered_at", "message_id", "correlation_id", "replayable",
    "replay_instructions",
)  # fmt: skip
ORIGIN = ("id", "queue", "idempotency_key", "first_attempt_at", "enqueued_at")
LIFE = ("state", "puts", "replays", "leased_by", "leased_until", "last_replay_error")


class DeadLetter(Record):
    """What was given up on: frozen, equal by its fields, made of text, numbers and JSON.

    Times are ISO 8601 texts in UTC. ``payload`` is JSON with secrets masked and its length bounded, so it
    may be less than what was put; ``payload_masked`` says whether anything was masked. ``puts`` counts how
    often its key was put; ``replays`` the replays that began and did not succeed, the running one included;
    ``last_replay_error`` says with what one failed.

    >>> letter = DeadLetter(id="01J8ZQ4T3M0000000000000000", queue="bulk", payload={"order": 7}, attempts=4)
    >>> letter.payload, letter.state, letter.replayable
    ({'order': 7}, 'waiting', True)
    """

    __slots__ = (*ORIGIN, *CONTENT, *LIFE)
    id: str
    queue: str
    idempotency_key: str | None
    first_attempt_at: str | None
    enqueued_at: str
    payload: Any
    payload_masked: bool
    function: str | None
    error_type: str | None
    error_message: str | None
    traceback: str | None
    failure_code: str | None
    attempts: int
    last_attempt_at: str
    dead_lettered_at: str
    message_id: str | None
    correlation_id: str | None
    replayable: bool
    replay_instructions: str | None
    state: State
    puts: int
    replays: int
    leased_by: str | None
    leased_until: str | None
    last_replay_error: str | None

    def __init__(self, **fields: Any) -> None:
        for field in self._fields:
            assign(self, field, fields.pop(field, _DEFAULTS.get(field)))
        if fields:
            raise TypeError(f"a dead letter has no {next(iter(fields))!r}")

    def as_dict(self) -> dict[str, Any]:
        """All fields by name, ready for JSON."""
        return {field: getattr(self, field) for field in self._fields}

    def replace(self, **fields: Any) -> DeadLetter:
        """Another letter with these fields changed."""
        return DeadLetter(**{**self.as_dict(), **fields})

    def __hash__(self) -> int:
        # A payload need not hash.
        return hash((self.id, self.puts))


class UnreadableLetter(DeadLetter):
    """Stand in for a letter that is damaged. ``replay_instructions`` say how; it is never replayed."""

    __slots__ = ()


_DEFAULTS: dict[str, Any] = {
    "id": "", "queue": "default", "enqueued_at": "", "payload_masked": False, "attempts": 1,
    "last_attempt_at": "", "dead_lettered_at": "", "replayable": True, "state": "waiting", "puts": 1,
    "replays": 0,
}  # fmt: skip


# As text


def written(letter: DeadLetter) -> str:
    """The content of a letter as JSON: what a store keeps of it besides the columns of its own."""
    import json

    content = {field: getattr(letter, field) for field in CONTENT}
    return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def read(content: str | bytes, *, now: float, parked: bool, until: float, **fields: Any) -> DeadLetter:
    """A letter from its content and the rest of its fields, in the state that it is in at ``now``.

    ``until`` is when its lease ends or ended, 0 if it has none; ``fields`` are those of `ORIGIN`, and
    ``puts``, ``replays``, ``leased_by``, ``last_replay_error``.
    """
    import json

    leased_by = fields.pop("leased_by", None)
    try:
        known: Mapping[str, Any] = json.loads(content)
        content_of_it = {field: known.get(field, _DEFAULTS.get(field)) for field in CONTENT}
        leased = until > now
        leased_until = iso(until) if leased else None
    except Exception as error:  # noqa: BLE001 - whatever is wrong with it, the letters behind it are not
        return _stand_in(error, parked=parked, fields=fields)
    life = {
        "state": "parked" if parked else "leased" if leased else "waiting",
        "leased_by": leased_by if leased else None,
        "leased_until": leased_until,
    }
    return DeadLetter(**content_of_it, **fields, **life)


def _stand_in(error: Exception, *, parked: bool, fields: Mapping[str, Any]) -> UnreadableLetter:
    text = (
        f"dead letter {fields.get('id')} cannot be read ({brief(error)}): mend it in the store, or discard it"
    )
    say(text)
    state = "parked" if parked else "waiting"
    return UnreadableLetter(**fields, state=state, attempts=0, replayable=False, replay_instructions=text)


def iso(seconds: float) -> str:
    """Seconds since 1970 as ISO 8601 in UTC, to the microsecond.

    >>> iso(0.25)
    '1970-01-01T00:00:00.250000+00:00'
    """
    from datetime import UTC, datetime, timedelta

    # Not fromtimestamp, which refuses years that a clock of a test may show.
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
    return moment.isoformat(timespec="microseconds")


_DIGITS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


# One after the other also where a clock stands still. Without a lock, which a fork could leave held.
_numbers = count()


def new_id(now: float) -> str:
    """Return an id that is unique everywhere and sorts by time, and then in the order in which ids are made.

    It has the form of a ULID: 48 bits of milliseconds, 10 of microseconds, 32 that count the ids of this
    process, and 38 at random.

    >>> len(new_id(0.0)), new_id(1.0) < new_id(1.0) < new_id(1.000002) < new_id(2.0)
    (26, True)
    """
    milliseconds, microseconds = divmod(int(now * 1e6), 1000)
    value = (milliseconds & (1 << 48) - 1) << 10 | microseconds
    value = value << 32 | next(_numbers) & (1 << 32) - 1
    value = value << 38 | int.from_bytes(os.urandom(5)) >> 2
    return "".join([_DIGITS[value >> shift & 31] for shift in range(125, -1, -5)])


# Stores


class Limits(Record):
    """How much of a queue is kept: letters, bytes of content, and from when on. ``None`` is no limit."""

    __slots__ = ("rows", "size", "oldest")  # noqa: RUF023 - in the order in which it reads
    rows: int | None
    size: int | None
    oldest: float | None

    def __init__(self, rows: int | None = None, size: int | None = None, oldest: float | None = None) -> None:
        assign(self, "rows", rows)
        assign(self, "size", size)
        assign(self, "oldest", oldest)


class Added(Record):
    """What `Store.add` has done: the letter as it is kept, and what became of its queue.

    ``before`` and ``depth`` are the depths of the queue before and after, as seen by this very addition, so
    that of many processes exactly one sees a depth being reached. ``expired`` and ``crowded_out`` say how
    many letters were discarded because they were too old, and because there were too many.
    """

    __slots__ = ("letter", "before", "depth", "expired", "crowded_out")  # noqa: RUF023 - as it reads
    letter: DeadLetter
    before: int
    depth: int
    expired: int
    crowded_out: int

    def __init__(
        self, letter: DeadLetter, *, before: int, depth: int, expired: int = 0, crowded_out: int = 0
    ) -> None:
        assign(self, "letter", letter)
        assign(self, "before", before)
        assign(self, "depth", depth)
        assign(self, "expired", expired)
        assign(self, "crowded_out", crowded_out)


class Store:
    """Where dead letters are kept. A store of your own is a subclass of this.

    Rules for all of them:

    - Each method is one atomic step, for all processes that share the store. When it returns, what it did
      is as durable as the store can make it.
    - Time is an argument: seconds since 1970. A store reads no clock.
    - A letter is *leased* while ``leased_until > now``, unless it is parked; a lease that is over is as none.
    - Letters are in the order of their ids. An age is that of the last put (``at``).
    - Whatever goes wrong is a `StoreTrouble`, raised from its cause, that says where and what to do. It is
      called from any thread, and from several at once; never from within an event loop.
    """

    name: str = "the store"
    """What it is called in messages."""

    def add(self, letter: DeadLetter, *, now: float, limits: Limits) -> Added:
        """Keeps a new letter, whose age counts from ``now``.

        If its ``idempotency_key`` is not ``None`` and its queue has a letter with that key already, there
        is no second one: that one gets the `CONTENT` of this, its age counts from ``now``, ``puts`` grows by
        one. Its `ORIGIN` stays, as do replays, the last replay's error, parking and lease.

        Then the limits of that queue are held. Letters of an age before ``limits.oldest`` are discarded; so
        are the oldest while there are more than ``limits.rows``, or while their contents (`written`) have
        more than ``limits.size`` bytes together. Parked ones count and go like the others. Never discarded
        are the letter itself and those that are leased at ``now``. A store may discard a bounded number at
        a time.
        """
        raise NotImplementedError

    def get(self, id: str, *, now: float) -> DeadLetter | None:  # noqa: A002 - the word for it
        """The letter with this id, of whatever queue."""
        raise NotImplementedError

    def list(self, queue: str, *, now: float, state: State | None, limit: int, after: str) -> Letters:
        """The first ``limit`` letters of a queue with an id above ``after`` (``""``: from the beginning).

        With a ``state``, only those that are in it at ``now``.
        """
        raise NotImplementedError

    def claim(self, id: str, *, owner: str, now: float, until: float) -> DeadLetter | None:  # noqa: A002
        """Takes a lease on a letter that is waiting at ``now``, and gives it; ``None`` if it is not waiting.

        ``owner`` is another for each claim, so nobody mistakes a later lease for their own. ``replays`` grows
        by one with each claim, so that a replay which never ends is counted, too.
        """
        raise NotImplementedError

    def renew(self, id: str, *, owner: str, until: float) -> bool:  # noqa: A002
        """Makes a lease last until then; ``False`` if the letter is gone or was leased to another since."""
        raise NotImplementedError

    def settle(self, letter: DeadLetter, *, owner: str) -> bool:
        """Deletes a letter that was replayed; ``False`` if the last lease is not ``owner``'s.

        If the letter was put again since it was claimed (its ``puts`` are not those of ``letter``), it is not
        deleted: it has failed anew. The lease is given back, and the claim is not counted.
        """
        raise NotImplementedError

    def release(
        self,
        id: str,  # noqa: A002
        *,
        owner: str,
        error: str | None = None,
        park: bool = False,
        count: bool = True,
    ) -> bool:
        """Gives a lease back; ``False``, with nothing changed, if the last lease is not ``owner``'s.

        With an ``error``, a replay has failed: ``last_replay_error`` is set. With ``park`` the letter is
        parked, so that it is not claimed any more. Without ``count``, ``replays`` is what it was before the
        claim: the letter was not replayed.
        """
        raise NotImplementedError

    def unpark(self, id: str) -> bool:  # noqa: A002
        """Lets a parked letter wait again, with 0 replays; ``False`` if it is not there or not parked."""
        raise NotImplementedError

    def discard(self, id: str) -> str | None:  # noqa: A002
        """Deletes a letter, leased or not; gives the name of its queue, ``None`` if it was not there."""
        raise NotImplementedError

    def purge(self, queue: str, *, before: float, now: float) -> int:
        """Deletes all letters of a queue with an age before ``before`` that are not leased; says how many."""
        raise NotImplementedError

    def depths(self) -> dict[str, tuple[int, int]]:
        """Of each queue that has letters: how many wait or are leased, and how many are parked."""
        raise NotImplementedError

    def close(self) -> None:
        """Lets go of files and connections. What is asked later opens them again."""
