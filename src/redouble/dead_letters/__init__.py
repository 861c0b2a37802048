"""Store calls that failed for good, and replay them.

::

    letters = DeadLetters("letters.db")                  a file, shared by the processes of one machine
    letters.put(payload=order, error=error)              durable when it returns
    letters.replay(send_again, Policy(attempts=3))       one letter after the other, each under a lease

Letters are JSON, with secrets masked and bounded in length. Nothing is ever unpickled.
"""

from __future__ import annotations

import time
from functools import partial

from .._base import checks as check
from .._base.json_safe import Masking, escape_surrogates, masked
from .._base.log_once import call_back
from .._base.masking import is_secret, masked_text
from .._base.sqlite import file_path
from ..context import leave, storing, storing_until
from ..errors import StoreError
from ..events import DeadLettered, Discarded, emit, wanted
from ._compose import compose
from ._letter import STATES, Added, DeadLetter, Limits, Store, UnreadableLetter
from ._redis import RedisStore
from ._replay import Replay, Replayed, areplay, off_loop, purge_where, replay
from ._sqlite import PATIENCE, SqliteStore

__all__ = [
    "Added",
    "DeadLetter",
    "DeadLetters",
    "Limits",
    "RedisStore",
    "Replayed",
    "Store",
    "StoreError",
    "UnreadableLetter",
    "is_secret",
    "masked",
    "masked_text",
]

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator
    from datetime import timedelta
    from typing import Any, Literal, Self, TypedDict

    from typing_extensions import Unpack

    from ..events import Event
    from ..policy import Policy
    from ._compose import Fields, Moment
    from ._letter import Letters, State
    from ._replay import Progress

    Seconds = float | timedelta
    Mask = Literal[False] | Iterable[str] | Callable[[str, Any], Any] | None

    class ReplayFields(TypedDict, total=False):
        """The keywords of `DeadLetters.replay`."""

        queue: str | None
        id: str | None
        where: Callable[[DeadLetter], object] | None
        limit: int | None
        lease: Seconds
        park_after: int | None
        include_unreplayable: bool
        progress: Progress | None


class DeadLetters:
    """Dead letters in a file or another store. Safe to share between threads, tasks and processes.

    ``path_or_store`` is the path of a file, which is created when first needed, or a `Store`. Letters wait in
    queues, such as ``"critical"``, ``"default"`` and ``"bulk"``; `queue` returns a view of another one. Of
    each queue the oldest are discarded beyond ``max_rows`` letters, ``max_bytes`` of content, and the age
    ``ttl`` (seconds or ``timedelta``; ``None``: no limit).

    ``mask`` adds to what is masked: names, or a function of name and value that returns what to store;
    ``False`` masks nothing. ``clock`` returns seconds since 1970.

    On a file it is a value: it compares by its path and settings, and pickles, so a policy that has one does.

    >>> import tempfile, os
    >>> letters = DeadLetters(os.path.join(tempfile.mkdtemp(), "letters.db"))
    >>> letter = letters.put(payload={"order": 7, "token": "abc"}, error=TimeoutError("slow"), attempts=4)
    >>> letter.payload, letter.error_type, letter.failure_code, letters.depth()
    ({'order': 7, 'token': '***'}, 'TimeoutError', 'timeout', 1)
    >>> letters.replay(lambda letter: print("again:", letter.payload["order"]))
    again: 7
    Replayed(replayed=1, failed=0, parked=0, skipped=0)
    >>> letters.depth(), letters.close()
    (0, None)
    """

    def __init__(
        self,
        path_or_store: str | os.PathLike[str] | Store,
        *,
        queue: str = "default",
        ttl: Seconds | None = 14 * 86400.0,
        max_rows: int | None = 100_000,
        max_bytes: int | None = 1 << 30,
        payload_limit: int = 1 << 16,
        mask: Mask = None,
        owner: str | None = None,
        clock: Callable[[], float] | None = None,
        listeners: Iterable[Callable[[Event], object]] = (),
    ) -> None:
        self.name = _queue_name("queue", queue)
        """The queue that is used where none is named."""
        self.ttl: float | None = check.optional(check.some_seconds)("ttl", ttl)
        self.max_rows = _whole_or_none("max_rows", max_rows)
        self.max_bytes = _whole_or_none("max_bytes", max_bytes)
        self.payload_limit = check.whole("payload_limit", payload_limit, at_least=0)
        self.owner: str | None = check.optional(check.text)("owner", owner)
        self.listeners = check.listeners("listeners", listeners)
        self._mask, self._masking = mask, _masking(mask)
        self._clock: Callable[[], float] | None = check.optional(check.sync_function)("clock", clock)
        self._path: str | None = None
        if not isinstance(path_or_store, Store):
            self._path = file_path("path_or_store", path_or_store, "a path or a redouble.dead_letters.Store")
            path_or_store = SqliteStore(self._path)
        self.store: Store = path_or_store
        """The store of the letters."""
        self._watchers: list[tuple[str, int, Callable[[int, str], object]]] = []

    def queue(self, name: str) -> Self:
        """Return a view of another queue of the same store, with the same settings.

        Limits are per queue, so use queues for severity: many letters in one discard none of another.

        >>> from tempfile import mkdtemp
        >>> with DeadLetters(mkdtemp() + "/letters.db") as letters:
        ...     letter = letters.queue("critical").put(payload="no backup")
        ...     letters.depth(), letters.depth("critical")
        (0, 1)
        """
        view = object.__new__(type(self))
        view.__dict__.update(self.__dict__, name=_queue_name("name", name))
        return view

    def _queue(self, name: str | None) -> str:
        """Return the name of a queue; that of this object for ``None``."""
        return self.name if name is None else _queue_name("queue", name)

    def _now(self) -> float:
        """Return seconds since 1970, by the clock that was given."""
        return time.time() if self._clock is None else self._clock()

    # Adding

    def put(
        self,
        *,
        payload: object = None,
        function: Callable[..., Any] | str | None = None,
        error: BaseException | str | None = None,
        failure_code: object = None,
        attempts: int = 1,
        first_attempt_at: Moment | None = None,
        last_attempt_at: Moment | None = None,
        message_id: object = None,
        correlation_id: object = None,
        idempotency_key: object = None,
        replayable: bool = True,
        replay_instructions: str | None = None,
        queue: str | None = None,
    ) -> DeadLetter:
        """Store a letter and return it as it was stored. It is on the disk when this returns.

        Type, message and traceback are taken from ``error``, and ``failure_code`` too (the HTTP status, or
        the cause) unless it is given. A second put under an ``idempotency_key`` that the queue has updates
        that letter: it gets the new error, payload, attempts and times, and ``puts`` grows. Raises
        `StoreError` if it cannot be stored.

        >>> from tempfile import mkdtemp
        >>> with DeadLetters(mkdtemp() + "/letters.db") as letters:
        ...     first = letters.put(payload=1, idempotency_key="order-7")
        ...     again = letters.put(payload=2, idempotency_key="order-7", error=TimeoutError("slow"))
        >>> first.id == again.id, again.payload, again.puts, again.failure_code
        (True, 2, 2, 'timeout')
        """
        added = self._add({**locals()})
        self._notify(added, error)
        return added.letter

    async def aput(self, **fields: Unpack[Fields]) -> DeadLetter:
        """As `put`, in a thread, so that the event loop is not blocked."""
        defaults: Any = DeadLetters.put.__kwdefaults__
        if unknown := fields.keys() - defaults:
            raise TypeError(f"aput() got an unexpected keyword argument {min(unknown)!r}")
        # The time counts from now, not from when a thread is free.
        token = storing.set((storing_until(PATIENCE), None))
        try:
            added = await off_loop(self._add, defaults | fields)
        finally:
            leave(token)
        self._notify(added, fields.get("error"))
        return added.letter

    def _add(self, fields: dict[str, Any]) -> Added:
        """Compose a letter of all the fields of `put`, and store it."""
        now = self._now()
        letter = compose(fields, self._queue(fields["queue"]), now, self.payload_limit, self._masking)
        oldest = None if self.ttl is None else now - self.ttl
        return self.store.add(letter, now=now, limits=Limits(self.max_rows, self.max_bytes, oldest))

    def _notify(self, added: Added, error: object) -> None:
        """Emit the events of an addition, and call the functions whose depth is reached."""
        letter = added.letter
        if wanted(self.listeners):
            raised = error if isinstance(error, BaseException) else None
            call = None if (limit := storing.get()) is None else limit[1]
            if call is not None and (call.lost is None or call.lost is not raised):
                call = None  # a letter that is put while that call stores its own, or after that
            emit(DeadLettered(letter), self.listeners, during=(raised, call, ""))
        self._notify_discarded(letter.queue, added.expired, "purged")
        self._notify_discarded(letter.queue, added.crowded_out, "limit")
        for queue, threshold, callback in tuple(self._watchers):
            # Of all processes exactly one has made this step, and needs no memory to know.
            if queue == letter.queue and added.before < threshold <= added.depth:
                call_back("the function given to on_depth() failed", callback, added.depth, queue)

    def _notify_discarded(self, queue: str, count: int, why: Literal["purged", "limit", "discarded"]) -> None:
        """Emit an event about letters that were discarded, if there were any."""
        if count and wanted(self.listeners):
            emit(Discarded(queue, count=count, why=why), self.listeners)

    def on_depth(
        self, threshold: int, callback: Callable[[int, str], object], queue: str | None = None
    ) -> None:
        """Call ``callback(depth, queue)`` when a put through this object makes the depth reach the threshold.

        It is called again only after the depth has fallen below it; in the thread of the put, or on the event
        loop for `aput`. Its errors are logged once and swallowed.

        >>> from tempfile import mkdtemp
        >>> with DeadLetters(mkdtemp() + "/letters.db") as letters:
        ...     letters.on_depth(2, lambda depth, queue: print(queue, "has", depth))
        ...     ids = [letters.put(payload=number).id for number in range(3)]
        default has 2
        """
        least = check.whole("threshold", threshold, at_least=1)
        self._watchers.append((self._queue(queue), least, check.sync_function("callback", callback)))

    # Reading

    def list(
        self,
        *,
        queue: str | None = None,
        state: State | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> Letters:
        """Return letters of a queue in the order in which they came, those after the id ``after``.

        ``state`` is ``"waiting"``, ``"leased"`` (being replayed) or ``"parked"`` (failed too often). To read
        page by page, pass the id of the last letter as ``after``.

        >>> from tempfile import mkdtemp
        >>> with DeadLetters(mkdtemp() + "/letters.db") as letters:
        ...     ids = [letters.put(payload=number).id for number in range(3)]
        ...     [letter.payload for letter in letters.list(limit=1, after=ids[0])]
        [1]
        """
        state = check.optional(check.one_of(*STATES))("state", state)
        limit = check.whole("limit", limit, at_least=0)
        name = self._queue(queue)
        return self.store.list(name, now=self._now(), state=state, limit=limit, after=after or "")

    def __iter__(self) -> Iterator[DeadLetter]:
        """Yield all letters of this queue, read a few at a time."""
        after = ""
        while page := self.list(after=after):
            yield from page
            after = page[-1].id

    def get(self, id: str) -> DeadLetter | None:
        """Return the letter with this id, of any queue; ``None`` if there is none."""
        return self.store.get(id, now=self._now())

    def depth(self, queue: str | None = None) -> int:
        """Return how many letters of a queue wait or are being replayed. Parked ones do not count."""
        return self.depths().get(self._queue(queue), 0)

    def depths(self) -> dict[str, int]:
        """Return the depth of every queue that has letters."""
        return {queue: depth for queue, (depth, _) in self.store.depths().items()}

    def parked(self, queue: str | None = None) -> int:
        """Return how many letters of a queue are parked."""
        return self.store.depths().get(self._queue(queue), (0, 0))[1]

    # Replaying

    def replay(
        self,
        handler: Callable[[DeadLetter], object],
        policy: Policy | None = None,
        **fields: Unpack[ReplayFields],
    ) -> Replayed:
        """Pass the letters of a queue to ``handler``, one after the other, each at most once.

        A letter is deleted when the handler returns. If it raises, after all attempts that ``policy`` allows
        (``None``: one), the letter stays. After ``park_after=5`` replays that failed, or never ended because
        the process died or the lease was over, it is parked. The handler runs under the letter's idempotency
        key, or the letter's id if it has none: `outgoing_headers` sends it.

        Each letter is claimed first, for ``lease=60.0`` seconds, and the lease is renewed while the handler
        runs. Other replays skip it meanwhile; if this process dies, they may claim it when the lease is over.
        So a handler may see a letter twice, but never two at once.

        ``queue`` names another queue; ``id`` is the only letter to replay, of any queue. ``where(letter)``
        selects: letters for which it returns false are not touched or counted. ``limit`` is how many letters
        are passed at most. Letters put with ``replayable=False`` are skipped unless
        ``include_unreplayable``, and so are those past their ``ttl`` or whose content is damaged.
        ``progress(letter, outcome)`` is called with ``"replayed"``, ``"failed"``, ``"parked"`` or
        ``"skipped"``.

        >>> def send(letter):
        ...     if letter.payload == 2:
        ...         raise TimeoutError("slow")
        >>> from tempfile import mkdtemp
        >>> with DeadLetters(mkdtemp() + "/letters.db") as letters:
        ...     ids = [letters.put(payload=number).id for number in (1, 2)]
        ...     letters.replay(send)
        ...     letters.get(ids[1]).last_replay_error
        Replayed(replayed=1, failed=1, parked=0, skipped=0)
        'TimeoutError: slow'
        """
        return replay(Replay(self, **fields), handler, policy)

    async def areplay(
        self,
        handler: Callable[[DeadLetter], Any],
        policy: Policy | None = None,
        **fields: Unpack[ReplayFields],
    ) -> Replayed:
        """As `replay`, for an async handler; the store is called in threads."""
        return await areplay(Replay(self, **fields), handler, policy)

    # Discarding

    def unpark(self, id: str) -> bool:
        """Let a parked letter be replayed again; return ``False`` if it is missing or not parked."""
        return self.store.unpark(id)

    def discard(self, id: str) -> bool:
        """Delete a letter, of any queue; return ``False`` if there is none with this id."""
        if (queue := self.store.discard(id)) is not None:
            self._notify_discarded(queue, 1, "discarded")
        return queue is not None

    def purge(
        self,
        older_than: Seconds | None = None,
        queue: str | None = None,
        *,
        where: Callable[[DeadLetter], object] | None = None,
    ) -> int:
        """Delete the letters of a queue that are older than that (default: ``ttl``); return how many.

        The age counts from the last put. Letters that are being replayed stay. With ``where``, only letters
        for which ``where(letter)`` returns true are deleted, one by one.

        >>> from tempfile import mkdtemp
        >>> with DeadLetters(mkdtemp() + "/letters.db") as letters:
        ...     ids = [letters.put(payload=number).id for number in range(3)]
        ...     letters.purge(older_than=0, where=lambda letter: letter.payload > 0), letters.depth()
        (2, 1)
        """
        age = check.optional(check.seconds)("older_than", self.ttl if older_than is None else older_than)
        if age is None:
            raise ValueError("older_than must be given: these dead letters have no ttl")
        now, name = self._now(), self._queue(queue)
        count = 0
        try:
            if where is None:
                count = self.store.purge(name, before=now - age, now=now)
            else:
                check.sync_function("where", where)
                for _ in purge_where(self.queue(name), now - age, where):
                    count += 1
        finally:  # also of those that were deleted before ``where`` raised
            self._notify_discarded(name, count, "purged")
        return count

    def close(self) -> None:
        """Close the store. The next use opens it again."""
        self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # As a value

    def _settings(self) -> dict[str, Any]:
        """Return the arguments that make an equal object."""
        return {
            "queue": self.name, "ttl": self.ttl, "max_rows": self.max_rows, "max_bytes": self.max_bytes,
            "payload_limit": self.payload_limit, "mask": self._mask, "owner": self.owner,
            "clock": self._clock, "listeners": self.listeners,
        }  # fmt: skip

    def __reduce__(self) -> tuple[Any, ...]:
        if self._path is None:
            raise TypeError(f"dead letters in {self.store.name} cannot be pickled: use a path, not a store")
        return partial(type(self), self._path, **self._settings()), ()

    def __copy__(self, memo: object = None) -> Self:
        return self

    __deepcopy__ = __copy__

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DeadLetters):
            return NotImplemented
        same_store = self.store is other.store or (self._path is not None and self._path == other._path)
        return same_store and self._settings() == other._settings()

    def __hash__(self) -> int:
        return hash((self._path or id(self.store), self.name))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} in {self.store.name}>"


# Arguments


def _queue_name(field: str, value: Any) -> str:
    """Return the name of a queue as it is stored."""
    return escape_surrogates(check.text(field, value))


def _whole_or_none(name: str, value: Any) -> int | None:
    """Return a whole number of at least 1, or ``None`` for no limit."""
    return None if value is None else check.whole(name, value, at_least=1)


def _masking(mask: Any) -> Masking:
    """Return the masking rules for the argument ``mask``."""
    if mask is None or mask is False:
        return Masking(off=mask is False)
    if type(mask) in (list, tuple, set, frozenset):
        return Masking([check.text("a name in mask", name) for name in mask])
    if not callable(mask):
        raise TypeError(f"mask must be a list of names, a function of name and value, or False, got {mask!r}")
    return Masking(hook=check.sync_function("mask", mask))
