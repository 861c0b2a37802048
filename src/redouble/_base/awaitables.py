"""Tell results from awaitables, for plain functions that turn out to be async.

Coroutines always are to be awaited. Futures, and the objects of clients that can be awaited (aiohttp's
``session.get(url)``), are where an event loop runs: elsewhere nobody could.
"""

from __future__ import annotations

from types import CoroutineType

from .loops import in_event_loop

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

# Handles of work that runs elsewhere. They can be awaited, but notebooks use them without.
_HANDLES = frozenset({"distributed", "ray"})

_PLAIN = frozenset({bool, bytes, dict, float, int, list, str, tuple, type(None)})


class Usual:
    """The type of a function's last plain result: the next one of that type needs no examination."""

    __slots__ = ("kind",)

    def __init__(self) -> None:
        self.kind: type = str

    def __reduce__(self) -> tuple[type[Usual], tuple[()]]:
        return Usual, ()  # the type may not pickle, and is soon known again


def is_awaited(result: object, usual: Usual | None = None) -> bool:
    """Return whether a result is to be awaited."""
    kind = type(result)
    if kind is CoroutineType:
        return True
    if kind in _PLAIN or not _has(result, "__await__"):
        if usual is not None:
            usual.kind = kind
        return False
    return in_event_loop() and str(kind.__module__).partition(".")[0] not in _HANDLES


def drop(unawaited: list[Any]) -> None:
    """Close coroutines and cancel futures that were never awaited, since a guard refused the call."""
    for awaitable in unawaited:
        if _has(awaitable, "throw"):
            awaitable.close()
        elif _has(awaitable, "_asyncio_future_blocking"):
            awaitable.cancel()


def awaiting(function: Callable[..., Any], pending: list[Any] | None = None) -> Callable[..., Any]:
    """Return an async function for a plain one that returns awaitables; one may be pending already."""

    async def call(*args: Any, **kwargs: Any) -> Any:
        result: Any = pending.pop() if pending else function(*args, **kwargs)
        return (await result) if is_awaited(result) else result

    return call


def _has(thing: object, name: str) -> bool:
    """Return whether the type has an attribute: mocks and proxies have every one."""
    return any(name in base.__dict__ for base in type(thing).__mro__)
