"""Replays: each dead letter that was claimed is handed to the user's function, under a policy and its key.

The handler runs under the letter's own idempotency key, by which the other side can tell that it has seen
the request before.
"""

from __future__ import annotations

import sys

from ._callables import name_of
from ._loops import in_trio
from ._record import same
from .context import KEY, RUNNING, Key, _token, current, leave, replaying
from .errors import RedoubleError
from .policy import Policy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from contextvars import Token
    from typing import Any, TypeVar

    from ._letters import DeadLetter
    from ._replay_run import Replayed, Run

    T = TypeVar("T")

ONCE = Policy(attempts=1)


# The key


class WholeKey(Key):
    """A key that was made before, and is sent as it is; one that no header can hold is encoded."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text if all("!" <= c <= "~" for c in text) else _token(text)

    def value(self) -> str:
        return self._text


class Replaying:
    """The replay of one letter: the call that it was kept for runs under its key, and is not kept twice.

    A random key stands in for one call: the first of its name, and those with the same arguments.
    """

    def __init__(self, run: Run, letter: DeadLetter, key: str | None) -> None:
        self._store, self._function, self.key = run.store, letter.function, key
        self.over = False
        """Whether it has ended: tasks and threads that were started in it may live on."""
        self._tokens: list[Token[Any]] = []
        self._call: dict[str, Any] = {}
        self.again: str | None = None
        """With what the call was given up on once more, also where the handler made up for it."""

    def is_of(self, letters: Any, function: str) -> bool:
        """Whether a call that is given up on now is the one whose letter this is."""
        # By its name: the module that is replayed may have opened the same file for itself.
        theirs = getattr(letters, "store", letters)
        return function == self._function and (theirs is self._store or theirs.name == self._store.name)

    def key_for(self, prefix: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
        """Return the letter's key, if it is a random one of this name and was made for this call."""
        if self.key is None or not self.key.startswith(prefix) or not _is_uuid(self.key[len(prefix) :]):
            return None
        # setdefault is atomic: of calls in several threads one is the first.
        first = self._call.setdefault("call", (args, kwargs))
        return self.key if same(first, (args, kwargs)) else None

    def __enter__(self) -> None:
        self._tokens.append(replaying.set(self))
        surroundings: Any = current.get()
        if self.key is not None:
            with_key: Any = [*surroundings]
            with_key[KEY] = WholeKey(self.key)
            if surroundings[RUNNING] is True:
                with_key[RUNNING] = surroundings  # both end with the call
            self._tokens.append(current.set(with_key))

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.over = True
        while self._tokens:
            leave(self._tokens.pop())
        if error is None and self.again is not None:
            raise RedoubleError(f"{self._function} was given up on again: {self.again}")


def _is_uuid(text: str) -> bool:
    return len(text) == 36 and set(text) <= set("0123456789abcdef-")


def _key_of(letter: DeadLetter, policy: Policy | None) -> str | None:
    """The letter's own; or its id, the same in every replay, unless the policy makes keys itself."""
    makes_keys = policy is not None and policy.idempotency_key
    return letter.idempotency_key or (None if makes_keys else letter.id)


def fitting(policy: Any, handler: Any) -> Policy:
    """The policy for a replay: one that cannot hide a failure from it, and lets each attempt have a key."""
    policy = ONCE if policy is None else policy
    if not isinstance(policy, Policy):
        raise TypeError(f"policy must be a redouble.Policy or None, got {policy!r}")
    if policy._falls_back:
        raise ValueError(
            "policy must have no fallback for a replay: letters that it answers for would be deleted; "
            "handle them in the handler"
        )
    fields: Any = {"name": policy.name or name_of(handler)}
    if not policy.idempotency_key:
        fields["idempotency_key"] = True
    if policy.dead_letters is not None:
        fields |= {"dead_letters": None, "payload": None}  # the letter is there already
    return policy.replace(**fields)


# Drivers


class _Awaitable(BaseException):
    """A handler gave something to be awaited. Not an ``Exception``: it is no failure of the letter."""


def replay(run: Run, handler: Callable[[DeadLetter], object], policy: Policy | None) -> Replayed:
    """Runs a sync handler on one letter after the other."""
    under = fitting(policy, handler)

    def attempt(letter: DeadLetter) -> None:
        with Replaying(run, letter, _key_of(letter, policy)):
            _insist_on_sync(handler(letter))

    try:
        while (held := run.next()) is not None:
            run.tell()
            try:
                under.call(attempt, held[0])
            except Exception as error:  # noqa: BLE001 - this is what is written down
                run.failed(*held, error)
            else:
                run.done(*held)
            run.tell()
    except _Awaitable:
        run.end()
        raise TypeError(f"{name_of(handler)} gives something to be awaited: await areplay(...)") from None
    except BaseException as error:
        run.end(error)
        raise
    run.end()
    run.tell()
    return run.summary()


def _insist_on_sync(result: Any) -> None:
    """A coroutine is not a success: nothing of it has run."""
    if _is_awaitable(result):
        if hasattr(result, "close"):
            result.close()
        raise _Awaitable


def _is_awaitable(result: object) -> bool:
    return hasattr(type(result), "__await__")


async def areplay(run: Run, handler: Callable[[DeadLetter], Any], policy: Policy | None) -> Replayed:
    """Awaits an async handler on one letter after the other; the store is asked off the loop."""
    under = fitting(policy, handler)

    async def attempt(letter: DeadLetter) -> None:
        with Replaying(run, letter, _key_of(letter, policy)):
            result = handler(letter)
            if _is_awaitable(result):
                await result

    try:
        while (held := await off_loop(run.next)) is not None:
            run.tell()
            try:
                await under.call(attempt, held[0])
            except Exception as error:  # noqa: BLE001 - this is what is written down
                await off_loop(run.failed, *held, error)
            else:
                await off_loop(run.done, *held)
            run.tell()
    except GeneratorExit:
        run.end()  # here nothing can be awaited
        raise
    except BaseException as error:
        await _shielded(run.end, None if _is_cancelled(error) else error)
        raise
    await off_loop(run.end)
    run.tell()
    return run.summary()


def _is_cancelled(error: BaseException) -> bool:
    """Whether this task is being cancelled. A handler may raise the same because a task that it awaits is."""
    if in_trio():
        return isinstance(error, sys.modules["trio"].Cancelled)
    import asyncio

    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and (task is None or task.cancelling() > 0)


async def _shielded(function: Callable[..., object], *args: Any) -> None:
    """As `off_loop`, to its end although this task is being cancelled."""
    if in_trio():
        with sys.modules["trio"].CancelScope(shield=True):
            await off_loop(function, *args)
        return
    import asyncio

    await asyncio.shield(asyncio.ensure_future(off_loop(function, *args)))


async def off_loop(function: Callable[..., T], *args: Any) -> T:
    """Calls a blocking function in a thread, in whichever library runs this task."""
    import threading

    if not threading.main_thread().is_alive():
        # The interpreter goes down, and gives no thread any more: what blocks the loop is better than a loss.
        return function(*args)
    if in_trio():
        trio: Any = sys.modules["trio"]
        outcome: T = await trio.to_thread.run_sync(function, *args)
        return outcome
    import asyncio

    return await asyncio.to_thread(function, *args)
