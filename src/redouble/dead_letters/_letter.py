"""`DeadLetter`, its JSON form, and `Store`, the interface of stores.

A store keeps a letter in two parts. Its *content* (`CONTENT`) describes the failure, and another put under
the same key replaces it. The rest is kept from the first put (`ORIGIN`), or is its state since: how often it
was put and replayed, whether it is parked, who has a lease on it and until when.
"""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from itertools import count

from .._base.log_once import warn
from .._base.record import Data, Record
from .._base.text import brief
from ..errors import StoreError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dataclasses import KW_ONLY
    from typing import Any, Literal

    State = Literal["waiting", "leased", "parked"]
    Letters = list["DeadLetter"]

STATES = ("waiting", "leased", "parked")

CONTENT = (
    "payload", "payload_masked", "function", "error_type", "error_message", "traceback", "failure_code",
    "attempts", "last_attempt_at", "dead_lettered_at", "message_id", "correlation_id", "replayable",
    "replay_instructions",
)  # fmt: skip
ORIGIN = ("id", "queue", "idempotency_key", "first_attempt_at", "enqueued_at")

# How many letters a store looks at, or discards, in one step: others must not wait for long.
AT_ONCE = 1000


class DeadLetter(Data):
    """A call that failed for good: frozen, equal by its fields, made of text, numbers and JSON.

    Times are ISO 8601 texts in UTC. ``payload`` is JSON with secrets masked and its length bounded, so it may
    be less than what was put; ``payload_masked`` tells whether anything was masked. ``puts`` counts how often
    its key was put; ``replays`` counts replays that began and did not succeed, the running one included;
    ``last_replay_error`` is the error of the last one that failed.

    >>> letter = DeadLetter(id="01J8ZQ4T3M0000000000000000", queue="bulk", payload={"order": 7}, attempts=4)
    >>> letter.payload, letter.state, letter.replayable
    ({'order': 7}, 'waiting', True)
    """

    _: KW_ONLY
    id: str = ""
    queue: str = "default"
    idempotency_key: str | None = None
    first_attempt_at: str | None = None
    enqueued_at: str = ""
    payload: Any = None
    payload_masked: bool = False
    function: str | None = None
    error_type: str | None = None
    error_message: str | None = None
    traceback: str | None = None
    failure_code: str | None = None
    attempts: int = 1
    last_attempt_at: str = ""
    dead_lettered_at: str = ""
    message_id: str | None = None
    correlation_id: str | None = None
    replayable: bool = True
    replay_instructions: str | None = None
    state: State = "waiting"
    puts: int = 1
    replays: int = 0
    leased_by: str | None = None
    leased_until: str | None = None
    last_replay_error: str | None = None

    def replace(self, **fields: Any) -> DeadLetter:
        """Return another letter with these fields changed."""
        return DeadLetter(**{**{field: getattr(self, field) for field in self._fields}, **fields})

    def __hash__(self) -> int:
        # A payload need not be hashable.
        return hash((self.id, self.puts))


class UnreadableLetter(DeadLetter):
    """Stand in for a damaged letter. ``replay_instructions`` say what is wrong; it is never replayed.

    >>> from_json("damaged", now=0.0, parked=False, until=0.0, id="01J8").replay_instructions
    'dead letter 01J8 cannot be read (JSONDecodeError: ...): mend it, or discard it'
    """


def to_json(letter: DeadLetter) -> str:
    """Return the content of a letter as JSON, for stores to keep.

    >>> letter = DeadLetter(id="01J8", payload={"order": 7})
    >>> from_json(to_json(letter), now=0.0, parked=False, until=0.0, id="01J8") == letter
    True
    """
    content = {field: getattr(letter, field) for field in CONTENT}
    return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def from_json(content: str | bytes, *, now: float, parked: bool, until: float, **fields: Any) -> DeadLetter:
    """Return a letter made of its content and the rest of its fields, in its state at ``now``.

    ``until`` is when its lease ends or ended, 0 if it has none; ``fields`` are those of `ORIGIN`, and
    ``puts``, ``replays``, ``leased_by``, ``last_replay_error``.
    """
    leased_by = fields.pop("leased_by", None)
    state: State = "parked" if parked else "waiting"
    try:
        known: dict[str, Any] = {**json.loads(content)}  # not a list
        content_of_it = {field: known[field] for field in CONTENT if field in known}
        lease: dict[str, Any] = {"leased_by": leased_by, "leased_until": iso(until)} if until > now else {}
    except Exception as error:  # noqa: BLE001 - whatever is wrong with it, the letters behind it are not
        text = f"dead letter {fields.get('id')} cannot be read ({brief(error)}): mend it, or discard it"
        warn(text)
        return UnreadableLetter(**fields, state=state, attempts=0, replayable=False, replay_instructions=text)
    state = "leased" if lease and not parked else state
    return DeadLetter(**content_of_it, **fields, **lease, state=state)


def iso(seconds: float) -> str:
    """Return seconds since 1970 as ISO 8601 in UTC, to the microsecond.

    >>> iso(0.25)
    '1970-01-01T00:00:00.250000+00:00'
    """
    # Not fromtimestamp, which refuses years that the clock of a test may show.
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
    return moment.isoformat(timespec="microseconds")


_DIGITS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"

# Keeps ids in order while a clock stands still. Not a lock, which a fork could leave held.
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
    """How much of a queue is kept: letters, bytes of content, and since when. ``None`` is no limit.

    ``oldest`` is in seconds since 1970: letters whose last put was before it are discarded.

    >>> Limits(rows=100)
    Limits(rows=100, size=None, oldest=None)
    """

    rows: int | None = None
    size: int | None = None
    oldest: float | None = None


class Added(Record):
    """The result of `Store.add`: the letter as it is stored, and what became of its queue.

    ``before`` and ``depth`` are the depths of the queue before and after, as seen by this very addition, so
    that of many processes exactly one sees a depth being reached. ``expired`` and ``crowded_out`` count the
    letters discarded because they were too old, and because there were too many.
    """

    letter: DeadLetter
    _: KW_ONLY
    before: int
    depth: int
    expired: int = 0
    crowded_out: int = 0


def store_error(location: str, error: Exception, advice: str) -> StoreError:
    """Return a `StoreError` that names the store, the error and what to do about it."""
    text = f"dead letters in {location} cannot be used ({brief(error)})"
    return StoreError(f"{text}: {advice}" if advice else text, location=location)


class Store:
    """Base class of stores of dead letters: subclass it to keep letters elsewhere.

    Rules for all methods:

    - Each method is one atomic step, for all processes that share the store. When it returns, its effect is
      as durable as the store can make it.
    - Time is an argument: seconds since 1970. A store reads no clock.
    - A letter is *leased* while ``leased_until > now``, unless it is parked; a lease that is over is as none.
    - Letters are in the order of their ids. The age of a letter counts from its last put.
    - Every error is a `StoreError`, raised from its cause, that names the store and what to do.
    - Methods are called from any thread, from several at once, and never in an event loop.
    """

    name: str = "the store"
    """Its name in messages."""

    def add(self, letter: DeadLetter, *, now: float, limits: Limits) -> Added:
        """Store a new letter, whose age counts from ``now``, and hold the limits of its queue.

        If its ``idempotency_key`` is not ``None`` and its queue has a letter with that key already, there is
        no second one: that letter gets the content of this one, its age counts from ``now``, and ``puts``
        grows by one. Its id, ``first_attempt_at``, ``enqueued_at``, replays, last replay error, parking and
        lease stay.

        Then letters older than ``limits.oldest`` are discarded, and the oldest while there are more than
        ``limits.rows`` or while their contents have more than ``limits.size`` bytes together. Parked letters
        count and are discarded like the others; this letter, and letters leased at ``now``, never are. A
        store may discard a bounded number at a time.
        """
        raise NotImplementedError

    def get(self, id: str, *, now: float) -> DeadLetter | None:
        """Return the letter with this id, of any queue."""
        raise NotImplementedError

    def list(self, queue: str, *, now: float, state: State | None, limit: int, after: str) -> Letters:
        """Return the first ``limit`` letters of a queue with an id above ``after`` (``""``: all).

        With a ``state``, only those that are in it at ``now``.
        """
        raise NotImplementedError

    def claim(self, id: str, *, owner: str, now: float, until: float) -> DeadLetter | None:
        """Lease a letter that is waiting at ``now``, and return it; ``None`` if it is not waiting.

        ``owner`` is unique to each claim, so no later lease is mistaken for this one. ``replays`` grows by
        one with each claim, so that a replay that never ends is counted, too.
        """
        raise NotImplementedError

    def renew(self, id: str, *, owner: str, until: float) -> bool:
        """Extend a lease until then; return ``False`` if the letter is gone or leased to another."""
        raise NotImplementedError

    def settle(self, letter: DeadLetter, *, owner: str) -> bool:
        """Delete a letter that was replayed; return ``False`` if the last lease is not ``owner``'s.

        If the letter was put again since it was claimed (its ``puts`` are not those of ``letter``), it has
        failed anew and is not deleted: the lease is released, and the claim is not counted.
        """
        raise NotImplementedError

    def release(
        self, id: str, *, owner: str, error: str | None = None, park: bool = False, count: bool = True
    ) -> bool:
        """Release a lease; return ``False``, with nothing changed, if the last lease is not ``owner``'s.

        With an ``error``, a replay has failed: ``last_replay_error`` is set. With ``park`` the letter is
        parked, so that it cannot be claimed. Without ``count``, ``replays`` is what it was before the claim:
        the letter was not replayed.
        """
        raise NotImplementedError

    def unpark(self, id: str) -> bool:
        """Let a parked letter wait again, with 0 replays; return ``False`` if it is missing or not parked."""
        raise NotImplementedError

    def discard(self, id: str) -> str | None:
        """Delete a letter, leased or not; return the name of its queue, ``None`` if it is missing."""
        raise NotImplementedError

    def purge(self, queue: str, *, before: float, now: float) -> int:
        """Delete all letters of a queue that are older than ``before`` and not leased; return how many."""
        raise NotImplementedError

    def depths(self) -> dict[str, tuple[int, int]]:
        """Return for each queue with letters how many wait or are leased, and how many are parked."""
        raise NotImplementedError

    def close(self) -> None:
        """Close files and connections. The next call of a method opens them again."""
