"""Replay dead letters: claim one, pass it to the handler under a policy and its key, delete it or release it.

A letter is claimed before its handler runs and deleted after it has succeeded, so a crash in between leaves
it to be replayed when the lease is over. The handler runs under the letter's own idempotency key, by which
the other side can tell that it has seen the request before.
"""

from __future__ import annotations

import os
import threading

from .._base import checks as check
from .._base.callables import ASYNC_GENERATOR, GENERATOR, close, flavour, name_of
from .._base.clock import DAY
from .._base.log_once import call_back, warn, warn_once
from .._base.loops import cancel_requests, in_trio, run_now
from .._base.record import Record, same
from .._base.text import one_line, safe_str, type_name
from ..context import KEY, RUNNING, Key, _token, current, leave, replaying
from ..errors import RedoubleError
from ..policy import Policy
from ._letter import UnreadableLetter, iso

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextvars import Token
    from typing import Any, TypeVar

    from . import DeadLetters, Seconds
    from ._letter import DeadLetter, Store

    T = TypeVar("T")
    Progress = Callable[[DeadLetter, str], object]

# How many letters are read ahead, and how long the text of an error may be.
_AHEAD, _ERROR = 50, 1000

# Seconds for which a letter is claimed, usually.
_LEASE = 60.0

_NEVER_ENDED = "its last replay never ended: the process was killed, or the handler outlived its lease"

_HOST = os.uname().nodename if hasattr(os, "uname") else os.environ.get("COMPUTERNAME", "localhost")


class Replayed(Record):
    """The result of a replay: how many letters had which outcome.

    ``replayed`` letters succeeded and were deleted; ``failed`` ones wait for another replay; ``parked`` ones
    have failed too often to be tried again; ``skipped`` ones were not replayable, too old or unreadable, or
    were leased to another replay, perhaps when the lease of this one was over.

    >>> Replayed(replayed=3, failed=1)
    Replayed(replayed=3, failed=1, parked=0, skipped=0)
    """

    replayed: int = 0
    failed: int = 0
    parked: int = 0
    skipped: int = 0


# Drivers


def replay(run: Replay, handler: Callable[[DeadLetter], object], policy: Policy | None) -> Replayed:
    """Call a sync handler with one letter after the other."""
    under = _policy_for(policy, handler)

    def attempt(letter: DeadLetter) -> None:
        with ReplayContext(run, letter, policy):
            result: Any = handler(letter)
            if _is_awaitable(result):  # not a success: nothing of it has run
                close(result)
                raise _NotAwaited

    try:
        result: Replayed = run_now(_replay(run, under(attempt), is_async=False))
    except _NotAwaited:
        raise TypeError(f"{name_of(handler)} returns an awaitable: use await areplay(...)") from None
    return result


async def areplay(run: Replay, handler: Callable[[DeadLetter], Any], policy: Policy | None) -> Replayed:
    """Await an async handler with one letter after the other. The store is called in threads."""
    under = _policy_for(policy, handler)

    async def attempt(letter: DeadLetter) -> None:
        with ReplayContext(run, letter, policy):
            result = handler(letter)
            if _is_awaitable(result):
                await result

    return await _replay(run, under(attempt), is_async=True)


class _NotAwaited(BaseException):
    """A sync handler returned an awaitable. Not an ``Exception``: the letter has not failed."""


def _is_awaitable(result: object) -> bool:
    """Return whether a handler has returned something to await."""
    return hasattr(type(result), "__await__")


async def _replay(run: Replay, call: Callable[[DeadLetter], Any], *, is_async: bool) -> Replayed:
    """Replay all letters. Suspends only if ``is_async``."""
    do = off_loop if is_async else _at_once
    try:
        while (letter := await do(run.next)) is not None:
            run.notify()
            failure = None
            try:
                running = call(letter)
                if is_async:
                    await running
            except Exception as error:  # noqa: BLE001 - it is stored with the letter
                failure = error
            await do(run.done, letter, failure)
            run.notify()
    except BaseException as error:
        if not is_async:
            run.end(error)
        elif isinstance(error, GeneratorExit):
            run.end()  # nothing can be awaited here
        else:
            await _shielded(run.end, None if _is_cancelled(error) else error)
        raise
    await do(run.end)
    run.notify()
    return Replayed(**run.counts)


async def _at_once(function: Callable[..., T], *args: Any) -> T:
    """As `off_loop`, in this thread: for sync handlers."""
    return function(*args)


async def off_loop(function: Callable[..., T], *args: Any) -> T:
    """Call a blocking function in a thread, in the library that runs this task."""
    if not threading.main_thread().is_alive():
        # The interpreter shuts down and starts no more threads: blocking the loop is better than a lost
        # letter.
        return function(*args)
    if trio := in_trio():
        outcome: T = await trio.to_thread.run_sync(function, *args)
        return outcome
    import asyncio

    return await asyncio.to_thread(function, *args)


async def _shielded(function: Callable[..., object], *args: Any) -> None:
    """As `off_loop`, to its end although this task is being cancelled."""
    if trio := in_trio():
        with trio.CancelScope(shield=True):
            await off_loop(function, *args)
        return
    import asyncio

    await asyncio.shield(asyncio.ensure_future(off_loop(function, *args)))


def _is_cancelled(error: BaseException) -> bool:
    """Return whether this task is being cancelled. The handler may await another task that is cancelled."""
    if trio := in_trio():
        return isinstance(error, trio.Cancelled)
    import asyncio

    return isinstance(error, asyncio.CancelledError) and cancel_requests() > 0


# State


class Replay:
    """The state of one replay: the letters ahead, the current one, the outcomes. For one thread or task."""

    def __init__(
        self,
        letters: DeadLetters,
        *,
        queue: str | None = None,
        id: str | None = None,
        where: Callable[[DeadLetter], object] | None = None,
        limit: int | None = None,
        lease: Seconds = _LEASE,
        park_after: int | None = 5,
        include_unreplayable: bool = False,
        progress: Progress | None = None,
    ) -> None:
        self.store = letters.store
        self.counts = {"replayed": 0, "failed": 0, "parked": 0, "skipped": 0}
        self._letters, self._queue, self._only = letters, letters._queue(queue), id
        self._where = where if where is None else check.sync_function("where", where)
        self._limit = None if limit is None else check.whole("limit", limit, at_least=0)
        self._lease = check.some_seconds("lease", lease)
        self._park_after = None if park_after is None else check.whole("park_after", park_after, at_least=1)
        self._everything = bool(include_unreplayable)
        self._progress: Progress | None = check.optional(check.sync_function)("progress", progress)
        self._unreported: list[tuple[DeadLetter, str]] = []
        self._waiting = self._read_waiting()
        self._held: DeadLetter | None = None
        self._owner = ""
        self._renewal = Renewal(self.store, self._lease, letters._now)
        self._warned = False

    def next(self) -> DeadLetter | None:
        """Claim the next letter and return it; ``None`` if there is none."""
        while self._limit != 0 and (letter := next(self._waiting, None)) is not None:
            if self._where is not None and not self._where(letter):
                continue
            if not self._is_due(letter):
                self._count(letter, "skipped")
            elif (claimed := self._claim(letter)) is not None:
                self._limit = None if self._limit is None else self._limit - 1
                return claimed
        return None

    def _read_waiting(self) -> Iterator[DeadLetter]:
        """Yield the letters that wait when the replay begins, or the only one to replay.

        Those that are put meanwhile are for the next replay: a handler may put one for each that it is given.
        """
        now = self._letters._now
        if self._only is not None:
            only = self.store.get(self._only, now=now())
            yield from () if only is None else (only,)
            return
        left, after = self.store.depths().get(self._queue, (0, 0))[0], ""
        while left > 0:
            most = min(left, _AHEAD)
            page = self.store.list(self._queue, now=now(), state="waiting", limit=most, after=after)
            if not page:
                return
            yield from page
            left, after = left - len(page), page[-1].id

    def _is_due(self, letter: DeadLetter) -> bool:
        """Return whether a letter may be replayed: readable, replayable and not too old."""
        if isinstance(letter, UnreadableLetter) or not (letter.replayable or self._everything):
            return False
        ttl = self._letters.ttl
        # ISO times compare as texts.
        return ttl is None or letter.dead_lettered_at >= iso(self._letters._now() - ttl)

    def _claim(self, letter: DeadLetter) -> DeadLetter | None:
        """Lease a letter and return it; ``None``, and an outcome is counted, if it is not to be replayed."""
        owner = _new_owner(self._letters)
        now = self._letters._now()
        claimed = self.store.claim(letter.id, owner=owner, now=now, until=now + self._lease)
        if claimed is None:
            self._count(letter, "skipped")
            return None
        if self._park_after is not None and claimed.replays > self._park_after:
            # As many replays as are allowed have begun, and the last of them has not ended.
            self.store.release(claimed.id, owner=owner, error=_NEVER_ENDED, park=True, count=False)
            self._count(claimed, "parked")
            return None
        self._held, self._owner = claimed, owner
        # Put again since it was read, it may be about another failure.
        if self._where is not None and claimed.puts != letter.puts and not self._where(claimed):
            self._held = None
            self.store.release(claimed.id, owner=owner, count=False)
            return None
        self._renewal.hold(claimed.id, owner, now + self._lease)
        if claimed.payload_masked and not self._warned:
            self._warned = True
            warn(
                f"the payload of dead letter {claimed.id} was masked when it was stored: "
                "the handler must look up the secrets itself"
            )
        return claimed

    def done(self, letter: DeadLetter, error: BaseException | None = None) -> None:
        """Delete the current letter if its handler has succeeded; release or park it if there is an error.

        It is counted, unless another replay has claimed it since: that one reports the outcome. No other can
        have while the lease lasts. A store that was asked twice, because its first answer was lost, may say
        otherwise.
        """
        if error is None:
            outcome, held = "replayed", self.store.settle(letter, owner=self._owner)
        else:
            message = self._letters._masking.mask_field("last_replay_error", safe_str(error), _ERROR)
            park = self._park_after is not None and letter.replays >= self._park_after
            text = one_line(type_name(error), message)
            held = self.store.release(letter.id, owner=self._owner, error=text, park=park)
            outcome = "parked" if park else "failed"
        self._held = None
        self._renewal.let_go()
        lasts = self._letters._now() < self._renewal.until
        self._count(letter, outcome if held or lasts else "skipped")

    def _count(self, letter: DeadLetter, outcome: str) -> None:
        """Count an outcome, and keep it for `notify`."""
        self.counts[outcome] += 1
        self._unreported.append((letter, outcome))

    def notify(self) -> None:
        """Call ``progress``, if there is one, with the outcomes since the last time."""
        unreported, self._unreported = self._unreported, []
        for letter, outcome in unreported:
            if self._progress is not None:
                call_back("the function given as progress= failed", self._progress, letter, outcome)

    def end(self, error: BaseException | None = None) -> None:
        """Release the current letter, if there is one: the replay is over, or was interrupted.

        The replay of that letter counts if the handler ended it itself, as by `sys.exit`. It does not if it
        was interrupted, or if the store failed.
        """
        self._renewal.stop()
        letter, self._held = self._held, None
        if letter is None:
            return
        try:
            if error is None or isinstance(error, (Exception, KeyboardInterrupt, _NotAwaited)):
                self.store.release(letter.id, owner=self._owner, count=False)
            else:
                self.done(letter, error)
        except Exception as failure:  # noqa: BLE001 - the error under way is worth more, and the lease ends
            warn_once(self.store, "the lease of a dead letter could not be released", failure)


def _new_owner(letters: DeadLetters) -> str:
    """Return a name for one claim, which no other claim has."""
    return f"{letters.owner or f'{_HOST}:{os.getpid()}'}/{os.urandom(6).hex()}"


def purge_where(
    letters: DeadLetters, before: float, where: Callable[[DeadLetter], object]
) -> Iterator[DeadLetter]:
    """Delete the letters of a queue that are older than ``before`` and selected; yield each.

    Each is claimed first, so that none is deleted while it is replayed or after it was put again. A parked
    letter cannot be claimed: it is read again, since ``where`` may have taken long.
    """
    store = letters.store
    for letter in letters:
        # ISO times compare as texts.
        if letter.state == "leased" or letter.dead_lettered_at >= iso(before) or not where(letter):
            continue
        if letter.state == "parked":
            if letters.get(letter.id) == letter and store.discard(letter.id) is not None:
                yield letter
            continue
        owner, now = _new_owner(letters), letters._now()
        claimed = store.claim(letter.id, owner=owner, now=now, until=now + _LEASE)
        if claimed is not None and store.settle(letter, owner=owner) and claimed.puts == letter.puts:
            yield letter


class Renewal:
    """Renews the lease of the current letter while its handler runs, in a thread.

    The thread is started with the first lease and serves all letters of one replay. If it cannot be started,
    a handler must finish within its lease, or another replay may claim the letter.
    """

    def __init__(self, store: Store, lease: float, now: Callable[[], float]) -> None:
        self._store, self._lease, self._now = store, lease, now
        self._held: tuple[str, str] | None = None
        self._thread: threading.Thread | None = None
        self._over = threading.Event()
        self.until = 0.0
        """When the lease that was taken or renewed last is over."""

    def hold(self, letter: str, owner: str, until: float) -> None:
        """Renew this lease from now on."""
        self.until = until
        self._held = letter, owner
        if self._thread is None:  # made late: one that is never started keeps the store
            thread = threading.Thread(target=self._renew, name="redouble lease", daemon=True)
            try:
                thread.start()
                self._thread = thread
            except RuntimeError as error:
                warn_once(self._store, "leases are not renewed: no thread can be started", error)

    def let_go(self) -> None:
        """Renew no lease for now."""
        self._held = None

    def _renew(self) -> None:
        """Renew the current lease three times per lease, until `stop`."""
        while not self._over.wait(min(self._lease / 3, DAY)):
            held = self._held
            if held is None:
                continue
            letter, owner = held
            try:
                until = self._now() + self._lease
                if self._store.renew(letter, owner=owner, until=until) and self._held is held:
                    self.until = until
            except Exception as error:  # noqa: BLE001 - the next time may be better
                warn_once(self._store, "the lease of a dead letter could not be renewed", error)

    def stop(self) -> None:
        """End the thread."""
        self._held = None
        if self._thread is not None and self._thread.is_alive():
            self._over.set()
            # So that it does not open the store again when that is closed now; it is quick.
            self._thread.join(1.0)


# The key


class WholeKey(Key):
    """A key that is sent as it is; one that no header can hold is encoded."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text if all("!" <= c <= "~" for c in text) else _token(text)

    def value(self) -> str:
        return self._text


class ReplayContext:
    """The context of one handler call: the call that failed runs under its key, and is not stored twice.

    A random key stands for one call: the first of its name, and those with the same arguments.
    """

    def __init__(self, run: Replay, letter: DeadLetter, policy: Policy | None) -> None:
        self._store, self._function = run.store, letter.function
        # The letter's own key; or its id, the same in every replay, unless the policy makes keys itself.
        makes_keys = policy is not None and policy.idempotency_key
        self.key: str | None = letter.idempotency_key or (None if makes_keys else letter.id)
        self.over = False
        """Whether it has ended: tasks and threads that were started in it may live on."""
        self._tokens: list[Token[Any]] = []
        self._call: dict[str, Any] = {}
        self.again: str | None = None
        """The error with which the call failed once more, also if the handler made up for it."""

    def is_of(self, letters: Any, function: str) -> bool:
        """Return whether a call that fails for good now is the one whose letter this is."""
        # By the store's name: the module that is replayed may have opened the same file for itself.
        theirs = getattr(letters, "store", letters)
        return function == self._function and (theirs is self._store or theirs.name == self._store.name)

    def key_for(self, prefix: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
        """Return the letter's key, if it is a random one of this name and was made for this call."""
        key = self.key or ""
        uuid = key[len(prefix) :]
        if not key.startswith(prefix) or len(uuid) != 36 or not set(uuid) <= set("0123456789abcdef-"):
            return None
        # setdefault is atomic: of calls in several threads one is the first.
        first = self._call.setdefault("call", (args, kwargs))
        return self.key if same(first, (args, kwargs)) else None

    def __enter__(self) -> None:
        self._tokens.append(replaying.set(self))
        context: Any = current.get()
        if self.key is not None:
            with_key: Any = [*context]
            with_key[KEY] = WholeKey(self.key)
            if context[RUNNING] is True:
                with_key[RUNNING] = context  # both end with the call
            self._tokens.append(current.set(with_key))

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.over = True
        while self._tokens:
            leave(self._tokens.pop())
        if error is None and self.again is not None:
            raise RedoubleError(f"{self._function} failed for good again: {self.again}")


def _policy_for(policy: Any, handler: Any) -> Policy:
    """Return the policy for a replay: one that hides no failure, and lets each attempt have a key.

    Raise an error for a policy or a handler that does not fit.
    """
    if flavour(check.function("handler", handler)) in (GENERATOR, ASYNC_GENERATOR):
        raise TypeError(f"handler must be a function, not a generator, whose call runs nothing: {handler!r}")
    policy = Policy(attempts=1) if policy is None else policy
    if not isinstance(policy, Policy):
        raise TypeError(f"policy must be a redouble.Policy or None, got {policy!r}")
    if policy._falls_back:
        raise ValueError(
            "policy must have no fallback for a replay: letters that it answers for would be deleted; "
            "handle them in the handler"
        )
    name, key = policy.name or name_of(handler), policy.idempotency_key or True
    # The letter is stored already.
    return policy.replace(name=name, idempotency_key=key, dead_letters=None, payload=None)
