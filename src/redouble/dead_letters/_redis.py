"""Store dead letters in Redis, for workers on any number of machines: the user's own client, and scripts.

Three keys hold them, all there or none, and in one slot of a cluster. ``{key}:letters`` is a hash: of each
letter its content and its state, both JSON, and the id that a queue has under an idempotency key.
``{key}:index`` is a sorted set of texts: the letters of a queue by id, and by age. ``{key}:tallies`` is a
hash of numbers. A script is atomic, and touches no other key.

Scripts answer in ASCII, which any encoding of the client leaves as it is. They recognise a command that the
client sends again because the answer was lost: no letter is put twice, no claim is lost.
"""

from __future__ import annotations

import json
import struct
import threading
from functools import partial

from .._base import checks as check
from .._base.callables import is_async
from .._base.checks import INF
from .._base.clock import real_now
from .._base.loops import run_now
from .._base.redis import checked_client, packed, run_script, unpacked
from .._base.text import safe_str, type_name
from ..context import storing_until
from . import _redis_scripts as scripts
from ._letter import AT_ONCE, ORIGIN, Added, Store, from_json, store_error, to_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    from ._letter import DeadLetter, Letters, Limits, State

    T = TypeVar("T")

# How many threads may be left waiting for a server that does not answer.
_LATE = 8


class RedisStore(Store):
    """Dead letters in Redis, for any number of machines: ``DeadLetters(RedisStore(client, "letters"))``.

    ``client`` is your own `redis.Redis`, or the client of a cluster; not an async one, since `DeadLetters`
    calls its stores in threads. It may retry by itself: a put that reaches the server twice counts once.
    ``key`` is the prefix of the keys.

    A letter is as durable as the server makes it. To survive the loss of power it needs ``appendonly yes``
    and ``appendfsync always``, and no eviction of keys without expiry (``maxmemory-policy noeviction``).

    A purge, and a list that must read more than 1000 letters, go in steps, each of which is atomic.

    >>> class Nowhere:  # a client that has no server
    ...     def execute_command(self, *words): raise ConnectionError("refused")
    ...     eval = evalsha = execute_command
    >>> RedisStore(Nowhere(), "letters").depths()  # doctest: +NORMALIZE_WHITESPACE
    Traceback (most recent call last):
    redouble.errors.StoreError: dead letters in Redis under 'letters' cannot be used
        (ConnectionError: refused): check that the server runs and can be reached
    """

    def __init__(self, client: Any, key: str) -> None:
        self.client = checked_client(client, "a redis.Redis")
        if is_async(client.execute_command):
            raise TypeError(
                "client must be a sync one, such as redis.Redis: dead letters call their store in threads, "
                f"from an event loop too; got {client!r}"
            )
        self.key = check.text("key", key)
        if "{" in key or "}" in key:
            # Within another pair of braces they would spread the parts over a cluster.
            raise ValueError(f"key must be without braces, since it is put into a pair of them, got {key!r}")
        self.name = f"Redis under {key!r}"
        self._keys = [f"{{{key}}}:{part}" for part in ("letters", "index", "tallies")]
        self._late: list[threading.Thread] = []

    def add(self, letter: DeadLetter, *, now: float, limits: Limits) -> Added:
        text = to_json(letter)
        content = json.dumps(json.loads(text), separators=(",", ":"))  # in ASCII
        held = ["" if limit is None else limit for limit in (limits.rows, limits.size)]
        oldest = "" if limits.oldest is None else _sortable(limits.oldest)

        def read(answer: Any) -> Added:
            life, *numbers = answer
            before, depth, expired, crowded_out = map(int, numbers)
            stored = _letter((life, content), now)
            return Added(stored, before=before, depth=depth, expired=expired, crowded_out=crowded_out)

        life = _new_life(letter, now, len(text.encode(errors="surrogatepass")))
        return self._run(read, scripts.ADD, letter.id, life, content, now, *held, oldest, AT_ONCE)

    def get(self, id: str, *, now: float) -> DeadLetter | None:
        return self._run(partial(_found, now=now), scripts.GET, id)

    def list(self, queue: str, *, now: float, state: State | None, limit: int, after: str) -> Letters:
        letters: Letters = []

        def read(answer: Any) -> str:
            last, *found = answer
            letters.extend([_letter(pair, now) for pair in zip(found[::2], found[1::2], strict=True)])
            return unpacked(last)

        while len(letters) < limit:
            words = packed(queue), after, state or "", now, limit - len(letters), AT_ONCE
            after = self._run(read, scripts.LIST, *words)
            if not after:
                break
        return letters

    def claim(self, id: str, *, owner: str, now: float, until: float) -> DeadLetter | None:
        return self._run(partial(_found, now=now), scripts.CLAIM, id, packed(owner), now, until)

    def renew(self, id: str, *, owner: str, until: float) -> bool:
        return self._run(_is_done, scripts.RENEW, id, packed(owner), until)

    def settle(self, letter: DeadLetter, *, owner: str) -> bool:
        return self._run(_is_done, scripts.SETTLE, letter.id, packed(owner), letter.puts)

    def release(
        self, id: str, *, owner: str, error: str | None = None, park: bool = False, count: bool = True
    ) -> bool:
        words = int(error is not None), packed(error or ""), int(park), int(count)
        return self._run(_is_done, scripts.RELEASE, id, packed(owner), *words)

    def unpark(self, id: str) -> bool:
        return self._run(_is_done, scripts.UNPARK, id)

    def discard(self, id: str) -> str | None:
        return self._run(_unpacked, scripts.DISCARD, id)

    def purge(self, queue: str, *, before: float, now: float) -> int:
        gone = 0
        while True:
            count = self._run(int, scripts.PURGE, packed(queue), _sortable(before), now, AT_ONCE)
            gone += count
            if count < AT_ONCE:
                return gone

    def depths(self) -> dict[str, tuple[int, int]]:
        return self._run(_depths, scripts.DEPTHS)

    def close(self) -> None:
        """Do nothing: the client is yours, and others may use it."""

    def _run(self, read: Callable[[Any], T], script: str, *words: Any) -> T:
        """Run a script and return ``read(answer)``. Errors of both are raised as a `StoreError`."""
        try:
            # Bytes are the same for clients of every encoding, and sort as texts do.
            sent = [word.encode() if isinstance(word, str) else repr(word) for word in words]
            asking = partial(run_script, self.client, script, self._keys, sent, is_async=False)
            return read(self._ask(lambda: run_now(asking())))
        except Exception as error:
            said = f"{type_name(error)} {safe_str(error)}".lower()
            advice = next((found for words, found in _ADVICE.items() if words in said), "")
            raise store_error(self.name, error, advice) from error

    def _ask(self, command: Callable[[], Any]) -> Any:
        """Send a command; in a thread, if a call limits the time: the client may wait longer than that."""
        left = storing_until(INF) - real_now()
        if left == INF:
            return command()
        self._late = [thread for thread in self._late if thread.is_alive()]
        if len(self._late) >= _LATE:
            raise TimeoutError(f"{len(self._late)} earlier requests have no answer yet")
        answers: list[tuple[Any, BaseException | None]] = []

        def ask() -> None:
            try:
                answers.append((command(), None))
            except BaseException as error:  # noqa: BLE001 - is raised where it was asked
                answers.append((None, error))

        thread = threading.Thread(target=ask, name="redouble letters", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no more threads, or the interpreter goes down: a letter is worth the wait
            return command()
        thread.join(max(0.0, left))
        if not answers:
            self._late.append(thread)
            raise TimeoutError("no answer in the time that the call has")
        answer, error = answers.pop()
        if error is not None:
            raise error
        return answer


# By words in the name of an error or in its text, in lower case; the first that is found counts.
_ADVICE = {
    "a later redouble": "install that one, or use another key",
    "something else is there": "use another key, and check that the server evicts nothing",
    "wrongtype": "something else is there: use another key",
    "maxmemory": "the server's memory is full: replay or purge letters, or raise maxmemory",
    "readonly": "this server is a replica: connect to the primary",
    "misconf": "the server cannot write to its disk: check its log",
    "noreplicas": "the server has too few replicas: check them",
    "authentication": "check the client's user and password",
    "noperm": "let the client's user run scripts on these keys",
    "loading": "the server is starting: wait for it",
    "timeout": "it may have been done or not: check that the server runs and is not overloaded",
    "connection": "check that the server runs and can be reached",
}


# Words and answers


def _sortable(seconds: float) -> str:
    """Return a number as 16 digits that sort as numbers do: its bits, inverted if it is negative.

    >>> _sortable(-2.0) < _sortable(-1.5) < _sortable(0.0) < _sortable(1e9)
    True
    """
    # Both zeros are one.
    (bits,) = struct.unpack(">Q", struct.pack(">d", seconds + 0.0))
    return f"{bits ^ ((1 << 64) - 1 if bits >> 63 else 1 << 63):016x}"


def _new_life(letter: DeadLetter, now: float, size: int) -> str:
    """Return the state of a new letter as JSON. Texts are packed, since scripts do not escape them."""
    texts = {name: getattr(letter, name) for name in ORIGIN}
    origin = {name: None if text is None else packed(text) for name, text in texts.items()}
    life = {"put": origin["id"], "puts": 1, "at": _sortable(now), "size": size, "replays": 0, "parked": False}
    lease = {"leased_by": None, "leased_until": "0", "last_replay_error": None}
    return json.dumps({**origin, **life, **lease})


def _unpacked(text: str | bytes | None) -> str | None:
    """Return a text unpacked, and ``None`` as it is."""
    return None if text is None else unpacked(text)


def _is_done(answer: Any) -> bool:
    """Return whether a script has changed something."""
    return int(answer) > 0


def _found(parts: Any, now: float) -> DeadLetter | None:
    """Return the letter that a script has found, if it has."""
    return None if parts is None else _letter(parts, now)


def _letter(parts: Any, now: float) -> DeadLetter:
    """Return the letter of a state and a content."""
    life, content = parts
    known = json.loads(life)
    if "put" not in known:
        # Its state is damaged, so the letter is, whatever its content.
        return from_json("", now=now, parked=False, until=0.0, id=unpacked(known["id"]))
    texts = {name: _unpacked(known[name]) for name in (*ORIGIN, "leased_by", "last_replay_error")}
    counts = {name: int(known[name]) for name in ("puts", "replays")}
    until = float(known["leased_until"])
    return from_json(content, now=now, parked=known["parked"], until=until, **texts, **counts)


def _depths(answer: Any) -> dict[str, tuple[int, int]]:
    """Return the tallies that a script has read, by queue."""
    flat = [unpacked(word) for word in answer]
    counts = dict(zip(flat[::2], map(int, flat[1::2]), strict=True))
    queues = sorted([name.removeprefix("depth ") for name in counts if name.startswith("depth ")])
    return {queue: (counts[f"depth {queue}"], counts[f"parked {queue}"]) for queue in queues}
