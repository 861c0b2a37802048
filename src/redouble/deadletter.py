"""What was given up on is kept, and can be replayed.

    letters = DeadLetters("letters.db")                  a file, shared by the processes of one machine
    letters.put(payload=order, error=error)              durable when it returns
    letters.replay(send_again, Policy(attempts=3))       one letter after the other, each under a lease

What is stored holds no secrets and is of bounded length. It is JSON: nothing is ever unpickled.
"""

from __future__ import annotations

from . import _checks as check
from ._callables import ASYNC_GENERATOR, GENERATOR, flavour, told
from ._compose import composed
from ._letter_box import LetterBox
from ._letters import DeadLetter, Limits, Store, UnreadableLetter, prepare
from ._letters_redis import RedisLetters
from ._letters_sqlite import PATIENCE
from ._numbers import whole
from ._plain import masked
from ._replay import areplay, off_loop, replay
from ._replay_run import Replayed, Run
from ._sanitize import is_secret, masked_text
from ._trouble import report
from .context import leave, store_until, storing_until
from .errors import StoreTrouble
from .events import DeadLettered, Discarded, emit, wanted

__all__ = [
    "DeadLetter",
    "DeadLetters",
    "RedisLetters",
    "Replayed",
    "Store",
    "StoreTrouble",
    "UnreadableLetter",
    "is_secret",
    "masked",
    "masked_text",
]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType
    from typing import Any, Literal, Self, TypedDict

    from typing_extensions import Unpack

    from ._compose import Fields, Moment
    from ._letter_box import Seconds
    from ._letters import Added, Letters, State
    from ._replay_run import Progress
    from .policy import Policy

    class ReplayFields(TypedDict, total=False):
        """The keywords of `DeadLetters.replay`."""

        queue: str | None
        limit: int | None
        lease: Seconds
        park_after: int | None
        include_unreplayable: bool
        progress: Progress | None


class DeadLetters(LetterBox):
    """A place for what was given up on. Safe to share between threads, tasks and processes.

    ``path_or_store`` is the path of a file, which is made when first needed, or a `Store`. Letters wait in
    queues, such as ``"critical"``, ``"default"`` and ``"bulk"``; `queue` gives a view on another one. Of each
    queue the oldest are discarded beyond ``max_rows`` letters, ``max_bytes`` of content, and the age
    ``ttl`` (seconds or ``timedelta``; ``None``: for ever).

    ``mask`` adds to what is masked: names, or a function of name and value that gives what to store;
    ``False`` masks nothing. ``clock`` gives seconds since 1970.

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

    # In

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
        """Keeps what was given up on; when this returns it is on the disk. Gives it as it was stored.

        Type, message and traceback are taken from ``error``, and ``failure_code`` too (the HTTP status, or
        the cause) unless it is given. A second put under an ``idempotency_key`` that the queue has changes
        the letter that is there. Raises `StoreTrouble` if it cannot be stored.
        """
        return self._put({
            "payload": payload, "function": function, "error": error, "failure_code": failure_code,
            "attempts": attempts, "first_attempt_at": first_attempt_at, "last_attempt_at": last_attempt_at,
            "message_id": message_id, "correlation_id": correlation_id, "idempotency_key": idempotency_key,
            "replayable": replayable, "replay_instructions": replay_instructions, "queue": queue,
        })  # fmt: skip

    async def aput(self, **fields: Unpack[Fields]) -> DeadLetter:
        """As `put`, in a thread, so that the event loop goes on meanwhile."""
        # From now on, and not from when there is a thread for it.
        token = store_until.set(storing_until(PATIENCE))
        try:
            added = await off_loop(self._add, fields)
        finally:
            leave(token)
        self._tell(added)
        return added.letter

    def _put(self, fields: Fields) -> DeadLetter:
        added = self._add(fields)
        self._tell(added)
        return added.letter

    def _add(self, fields: Fields) -> Added:
        prepare()
        now = self._now()
        letter = composed(
            fields,
            queue=self._queue(fields.get("queue")),
            now=now,
            payload_limit=self.payload_limit,
            masking=self._masking,
        )
        oldest = None if self.ttl is None else now - self.ttl
        return self.store.add(letter, now=now, limits=Limits(self.max_rows, self.max_bytes, oldest))

    def _tell(self, added: Added) -> None:
        letter = added.letter
        if wanted(self.listeners):
            emit(DeadLettered(letter), self.listeners, logged=True)
        self._tell_discarded(letter.queue, added.expired, "purged")
        self._tell_discarded(letter.queue, added.crowded_out, "limit")
        for queue, threshold, callback in tuple(self._watchers):
            # Of all processes exactly one has made this step, and needs no memory to know.
            if queue == letter.queue and added.before < threshold <= added.depth:
                try:
                    told(callback(added.depth, queue))
                except Exception as error:  # noqa: BLE001 - as for listeners
                    report(callback, "the function given to on_depth() failed", error)

    def _tell_discarded(self, queue: str, count: int, why: Literal["purged", "limit", "discarded"]) -> None:
        if count and wanted(self.listeners):
            emit(Discarded(queue, count=count, why=why), self.listeners, logged=True)

    def on_depth(
        self, threshold: int, callback: Callable[[int, str], object], queue: str | None = None
    ) -> None:
        """Calls ``callback(depth, queue)`` when a put through here makes the depth reach the threshold.

        Again only after the depth has fallen below it. It is called in the thread of the put, or on the
        event loop for `aput`; its errors are logged once and swallowed.
        """
        least = whole("threshold", threshold, at_least=1)
        self._watchers.append((self._queue(queue), least, check.sync_function("callback", callback)))

    # Looking

    def list(
        self,
        *,
        queue: str | None = None,
        state: State | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> Letters:
        """Letters of a queue in the order in which they came, those after the id ``after``.

        ``state`` is ``"waiting"``, ``"leased"`` (being replayed) or ``"parked"`` (failed too often).
        """
        state = check.optional(check.one_of("waiting", "leased", "parked"))("state", state)
        limit = whole("limit", limit, at_least=0)
        return self.store.list(
            self._queue(queue), now=self._now(), state=state, limit=limit, after=after or ""
        )

    def __iter__(self) -> Iterator[DeadLetter]:
        """All letters of this queue, read a few at a time."""
        after = ""
        while page := self.list(after=after):
            yield from page
            after = page[-1].id

    def get(self, id: str) -> DeadLetter | None:  # noqa: A002 - the word for it
        """The letter with this id, of whatever queue; ``None`` if there is none."""
        return self.store.get(id, now=self._now())

    def depth(self, queue: str | None = None) -> int:
        """How many letters of a queue wait or are being replayed. Parked ones do not count."""
        return self.store.depths().get(self._queue(queue), (0, 0))[0]

    def depths(self) -> dict[str, int]:
        """The depth of every queue that has letters."""
        return {queue: depth for queue, (depth, _) in self.store.depths().items()}

    def parked(self, queue: str | None = None) -> int:
        """How many letters of a queue are parked."""
        return self.store.depths().get(self._queue(queue), (0, 0))[1]

    # Out

    def replay(
        self,
        handler: Callable[[DeadLetter], object],
        policy: Policy | None = None,
        **fields: Unpack[ReplayFields],
    ) -> Replayed:
        """Hands the letters of a queue to ``handler``, one after the other, each at most once.

        A letter is deleted when the handler returns. If it raises, after all attempts that ``policy`` allows
        (``None``: one), the letter stays. After ``park_after=5`` replays that failed, or never ended because
        the process died or the lease was over, it is parked. It runs under the letter's idempotency key, or
        the letter's id where there is none: `outgoing_headers` sends it.

        Each letter is claimed first, for ``lease=60.0`` seconds, and renewed while the handler runs. Others
        leave it alone meanwhile; if this process dies, they may have it when the lease is over. So a handler
        may see a letter twice, but never two at once.

        ``limit`` is how many letters are handed out at most; ``queue`` another queue; letters put with
        ``replayable=False`` are skipped unless ``include_unreplayable``, and so are those past their ``ttl``
        or whose content is damaged; ``progress(letter, outcome)`` is
        called with ``"replayed"``, ``"failed"``, ``"parked"`` or ``"skipped"``.
        """
        return replay(self._run(**fields), _handler(handler), policy)

    async def areplay(
        self,
        handler: Callable[[DeadLetter], Any],
        policy: Policy | None = None,
        **fields: Unpack[ReplayFields],
    ) -> Replayed:
        """As `replay`, for an async handler; the store is asked in threads."""
        return await areplay(self._run(**fields), _handler(handler), policy)

    def _run(
        self,
        *,
        queue: str | None = None,
        limit: int | None = None,
        lease: Seconds = 60.0,
        park_after: int | None = 5,
        include_unreplayable: bool = False,
        progress: Progress | None = None,
    ) -> Run:
        return Run(
            self.store,
            self._queue(queue),
            now=self._now,
            owner=self.owner,
            masking=self._masking,
            limit=None if limit is None else whole("limit", limit, at_least=0),
            lease=check.some_seconds("lease", lease),
            ttl=self.ttl,
            park_after=None if park_after is None else whole("park_after", park_after, at_least=1),
            include_unreplayable=bool(include_unreplayable),
            progress=check.optional(check.sync_function)("progress", progress),
        )

    def unpark(self, id: str) -> bool:  # noqa: A002
        """Lets a parked letter be replayed again; ``False`` if it is not there or not parked."""
        return self.store.unpark(id)

    def discard(self, id: str) -> bool:  # noqa: A002
        """Throws a letter away, of whatever queue; ``False`` if there is none with this id."""
        queue = self.store.discard(id)
        if queue is None:
            return False
        self._tell_discarded(queue, 1, "discarded")
        return True

    def purge(self, older_than: Seconds | None = None, queue: str | None = None) -> int:
        """Throws away the letters of a queue that are older than that (default: ``ttl``); says how many.

        The age counts from the last put. Letters that are being replayed stay.
        """
        age = check.optional(check.seconds)("older_than", self.ttl if older_than is None else older_than)
        if age is None:
            raise ValueError("older_than must be given where there is no ttl")
        now, name = self._now(), self._queue(queue)
        count = self.store.purge(name, before=now - age, now=now)
        self._tell_discarded(name, count, "purged")
        return count

    def close(self) -> None:
        """Closes the store. What is asked later opens it again."""
        self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _handler(handler: Any) -> Any:
    """A function that has done its work when it returns, or was awaited."""
    if flavour(check.function("handler", handler)) in (GENERATOR, ASYNC_GENERATOR):
        raise TypeError(f"handler must be a function, not a generator, whose call runs nothing: {handler!r}")
    return handler
