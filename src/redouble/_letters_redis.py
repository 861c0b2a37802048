"""Dead letters in a Redis, for workers on any number of machines: the user's own client, and scripts.

Three keys hold them, all there or none, and in one slot of a cluster. ``{key}:letters`` is a hash: of each
letter its content and its life, both JSON, and the id that a queue has under an idempotency key.
``{key}:index`` is a sorted set of texts: the letters of a queue by id, and by age. ``{key}:tallies`` is a
hash of numbers. A script runs as a whole or not at all, and touches no other key.

What a script answers is ASCII, which passes through a client of any encoding. A command that the client
sends again, because the answer was lost, is recognized: no letter is put twice, no claim is lost.
"""

from __future__ import annotations

from . import _checks as check
from . import _letters_scripts as scripts
from ._callables import is_async
from ._letters import ORIGIN, Added, Store, prepare, read, written
from ._numbers import INF
from ._redis import _is_unknown_script, packed, unpacked
from ._text import brief, kind_of, shown
from ._time import real_now
from .context import storing_until
from .errors import StoreTrouble

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from threading import Thread
    from typing import Any

    from ._letters import DeadLetter, Letters, Limits, State

# How many letters a script looks at, or discards, at most: nobody else is served meanwhile.
AT_ONCE = 1000

# How many threads may be left waiting for a server that does not answer.
_LATE = 8


class RedisLetters(Store):
    """Letters in a Redis, shared by any number of machines: ``DeadLetters(RedisLetters(client, "letters"))``.

    ``client`` is your own `redis.Redis`, or the client of a cluster; not an async one, since `DeadLetters`
    asks its stores in threads. It may try again by itself: a put that reaches the server twice counts once.
    ``key`` is what the names of the keys begin with.

    A letter is as safe as the server keeps it. For one that survives the loss of power, ``appendonly yes``
    and ``appendfsync always``; and no eviction of keys without expiry (``maxmemory-policy noeviction``).

    A purge, and a list that must look at more than 1000 letters, go in steps, each of which is atomic.

    >>> class Nowhere:  # a client that has no server
    ...     def execute_command(self, *words): raise ConnectionError("refused")
    ...     eval = evalsha = execute_command
    >>> RedisLetters(Nowhere(), "letters").depths()  # doctest: +NORMALIZE_WHITESPACE
    Traceback (most recent call last):
    redouble.errors.StoreTrouble: dead letters in Redis under 'letters' cannot be used
        (ConnectionError: refused): see that the server runs and can be reached
    """

    def __init__(self, client: Any, key: str) -> None:
        self.client = _sync_client(client)
        self.key = check.text("key", key)
        if "{" in key or "}" in key:
            # Within another pair of braces they would spread the parts over a cluster.
            raise ValueError(f"key must be without braces, since it is put into a pair of them, got {key!r}")
        self.name = f"Redis under {key!r}"
        self._keys = [f"{{{key}}}:{part}" for part in ("letters", "index", "tallies")]
        self._trouble_told = _TroubleTold(self.name)
        self._late: list[Thread] = []

    def add(self, letter: DeadLetter, *, now: float, limits: Limits) -> Added:
        with self._trouble_told:
            text = written(letter)
            content, fresh = _content(text), _fresh(letter, now, len(text.encode()))
            held = ["" if limit is None else limit for limit in (limits.rows, limits.size)]
            oldest = "" if limits.oldest is None else _sortable(limits.oldest)
            life, *numbers = self._run(scripts.ADD, letter.id, fresh, content, now, *held, oldest, AT_ONCE)
            before, depth, expired, crowded_out = map(int, numbers)
            kept = _letter((life, content), now)
        return Added(kept, before=before, depth=depth, expired=expired, crowded_out=crowded_out)

    def get(self, id: str, *, now: float) -> DeadLetter | None:  # noqa: A002
        with self._trouble_told:
            found = self._run(scripts.GET, id)
            return None if found is None else _letter(found, now)

    def list(self, queue: str, *, now: float, state: State | None, limit: int, after: str) -> Letters:
        letters: Letters = []
        with self._trouble_told:
            while len(letters) < limit:
                wanted = limit - len(letters)
                words = packed(queue), after, state or "", now, wanted, AT_ONCE
                last, *found = self._run(scripts.LIST, *words)
                letters += [_letter(pair, now) for pair in zip(found[::2], found[1::2], strict=True)]
                after = unpacked(last)
                if not after:
                    break
        return letters

    def claim(self, id: str, *, owner: str, now: float, until: float) -> DeadLetter | None:  # noqa: A002
        with self._trouble_told:
            found = self._run(scripts.CLAIM, id, packed(owner), now, until)
            return None if found is None else _letter(found, now)

    def renew(self, id: str, *, owner: str, until: float) -> bool:  # noqa: A002
        return self._changes(scripts.RENEW, id, packed(owner), until)

    def settle(self, letter: DeadLetter, *, owner: str) -> bool:
        return self._changes(scripts.SETTLE, letter.id, packed(owner), letter.puts)

    def release(
        self,
        id: str,  # noqa: A002
        *,
        owner: str,
        error: str | None = None,
        park: bool = False,
        count: bool = True,
    ) -> bool:
        words = int(error is not None), packed(error or ""), int(park), int(count)
        return self._changes(scripts.RELEASE, id, packed(owner), *words)

    def unpark(self, id: str) -> bool:  # noqa: A002
        return self._changes(scripts.UNPARK, id)

    def discard(self, id: str) -> str | None:  # noqa: A002
        with self._trouble_told:
            queue = self._run(scripts.DISCARD, id)
            return None if queue is None else unpacked(queue)

    def purge(self, queue: str, *, before: float, now: float) -> int:
        gone = 0
        with self._trouble_told:
            while True:
                count = int(self._run(scripts.PURGE, packed(queue), _sortable(before), now, AT_ONCE))
                gone += count
                if count < AT_ONCE:
                    break
        return gone

    def depths(self) -> dict[str, tuple[int, int]]:
        with self._trouble_told:
            flat = [unpacked(word) for word in self._run(scripts.DEPTHS)]
            counts = dict(zip(flat[::2], map(int, flat[1::2]), strict=True))
            queues = sorted([name.removeprefix("depth ") for name in counts if name.startswith("depth ")])
            return {queue: (counts[f"depth {queue}"], counts[f"parked {queue}"]) for queue in queues}

    def close(self) -> None:
        """Nothing: the client is yours, and others may use it."""

    def _changes(self, script: str, *words: Any) -> bool:
        with self._trouble_told:
            return int(self._run(script, *words)) > 0

    def _run(self, script: str, *words: Any) -> Any:
        prepare()
        sent = [len(self._keys), *self._keys, *map(_word, words)]
        try:
            return self._ask(self.client.evalsha, _digest(script), *sent)
        except Exception as error:
            if not _is_unknown_script(error):
                raise
        return self._ask(self.client.eval, scripts.COMMON + script, *sent)

    def _ask(self, command: Callable[..., Any], *words: Any) -> Any:
        """Ask the server, in a thread where a call limits the time: the client may wait longer than that."""
        left = storing_until(INF) - real_now()
        if left == INF:
            return command(*words)
        import threading

        self._late = [thread for thread in self._late if thread.is_alive()]
        if len(self._late) >= _LATE:
            raise TimeoutError(f"{len(self._late)} earlier requests have no answer yet")
        answers: list[tuple[Any, BaseException | None]] = []

        def ask() -> None:
            try:
                answers.append((command(*words), None))
            except BaseException as error:  # noqa: BLE001 - is raised where it was asked
                answers.append((None, error))

        thread = threading.Thread(target=ask, name="redouble letters", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no more threads, or the interpreter goes down: a letter is worth the wait
            return command(*words)
        thread.join(max(0.0, left))
        if not answers:
            self._late.append(thread)
            raise TimeoutError("no answer in the time that the call has")
        answer, error = answers.pop()
        if error is not None:
            raise error
        return answer


def _sync_client(client: Any) -> Any:
    needed = ("execute_command", "evalsha", "eval")
    if isinstance(client, type) or not all(callable(getattr(client, name, None)) for name in needed):
        raise TypeError(f"client must be a redis.Redis, got {client!r}")
    if is_async(client.execute_command):
        raise TypeError(
            "client must be a sync one, such as redis.Redis: dead letters ask their store in threads, "
            f"from an event loop too; got {client!r}"
        )
    return client


_digests: dict[str, str] = {}


def _digest(script: str) -> str:
    if script not in _digests:
        import hashlib

        _digests[script] = hashlib.sha1((scripts.COMMON + script).encode(), usedforsecurity=False).hexdigest()
    return _digests[script]


# Words


def _word(value: Any) -> str | bytes:
    # Bytes are the same for clients of every encoding, and sort as texts do.
    return value.encode() if isinstance(value, str) else repr(value)


def _sortable(seconds: float) -> str:
    """A number as 16 digits that sort as the numbers do: its bits, negative ones the other way round."""
    import struct

    # Both zeros are one.
    (bits,) = struct.unpack(">Q", struct.pack(">d", seconds + 0.0))
    return f"{bits ^ ((1 << 64) - 1 if bits >> 63 else 1 << 63):016x}"


def _content(text: str) -> str:
    """The same JSON, in ASCII."""
    import json

    return json.dumps(json.loads(text), separators=(",", ":"))


_TEXTS = (*ORIGIN, "leased_by", "last_replay_error")


def _fresh(letter: DeadLetter, now: float, size: int) -> str:
    """The life of a new letter. Its texts are packed: what a script reads and writes again is not escaped."""
    import json

    origin = {name: _packed(getattr(letter, name)) for name in ORIGIN}
    life = {"put": origin["id"], "puts": 1, "at": _sortable(now), "size": size, "replays": 0, "parked": False}
    lease = {"leased_by": None, "leased_until": "0", "last_replay_error": None}
    return json.dumps({**origin, **life, **lease})


def _packed(text: str | None) -> str | None:
    return None if text is None else packed(text)


def _letter(parts: Any, now: float) -> DeadLetter:
    import json

    life, content = parts
    known = json.loads(life)
    if "put" not in known:
        # Its life is damaged. So is the letter, then, whatever its content.
        return read("", now=now, parked=False, until=0.0, id=unpacked(known["id"]))
    texts = {name: None if known[name] is None else unpacked(known[name]) for name in _TEXTS}
    counts = {name: int(known[name]) for name in ("puts", "replays")}
    until = float(known["leased_until"])
    return read(content, now=now, parked=known["parked"], until=until, **texts, **counts)


# Trouble

# By what is in the name of an error, or in its text, in small letters; the first that is found counts.
_ADVICE = {
    "a later redouble": "install that one, or use another key",
    "something else is there": "use another key, and see that the server evicts nothing",
    "wrongtype": "something else is there: use another key",
    "maxmemory": "the server's memory is full: replay or purge letters, or raise maxmemory",
    "readonly": "this server is a replica: connect to the primary",
    "misconf": "the server cannot write to its disk: see to that",
    "noreplicas": "the server has lost its replicas: see to them",
    "authentication": "see to the client's user and password",
    "noperm": "let the client's user run scripts on these keys",
    "loading": "the server is starting: wait for it",
    "timeout": "it may have been done or not: see that the server runs and is not overloaded",
    "connection": "see that the server runs and can be reached",
}


class _TroubleTold:
    """A block in which whatever goes wrong is a `StoreTrouble`."""

    def __init__(self, where: str) -> None:
        self._where = where

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, Exception):
            return
        said = f"{kind_of(error)} {shown(error)}".lower()
        advice = next((found for words, found in _ADVICE.items() if words in said), "see to the cause")
        message = f"dead letters in {self._where} cannot be used ({brief(error)}): {advice}"
        raise StoreTrouble(message, where=self._where) from error
