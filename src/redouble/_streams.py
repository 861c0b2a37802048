"""Generators, sync and async: retried until the first item is out.

After that the consumer has seen items, so an error passes through: a new start would repeat them.
``send``, ``throw`` and ``close`` reach the generator as if there were nothing in between.
"""

from __future__ import annotations

from . import _async_first, _sync_first

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator
    from typing import Any

    from .policy import Policy


class _Ended:
    """A generator that ended before its first item; ``value`` is what it returned."""

    def __init__(self, value: Any) -> None:
        self.value = value


class _Begun:
    """A generator whose first item is out already and is still to be handed on."""

    returned: Any = None
    """What the generator gave when it was closed, where Python hands that on (3.13)."""

    def __init__(self, generator: Generator[Any, Any, Any], first: Any) -> None:
        self.send, self.throw = generator.send, generator.throw
        self._generator = generator
        self._first = [first]

    def __iter__(self) -> _Begun:
        return self

    def __next__(self) -> Any:
        return self._first.pop() if self._first else next(self._generator)

    def close(self) -> None:
        closing: Any = self._generator.close
        self.returned = closing()


def wrap_generator(policy: Policy, function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """A generator function under a policy."""

    def begin(*args: Any, **kwargs: Any) -> _Begun | _Ended:
        generator = function(*args, **kwargs)
        try:
            return _Begun(generator, next(generator))
        except StopIteration as end:
            return _Ended(end.value)

    start = _sync_first.wrap(policy, begin, name)

    def wrapper(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        begun: Any = start(*args, **kwargs)
        if begun.__class__ is _Ended:
            return begun.value
        try:
            return (yield from begun)  # pyright: ignore[reportUnknownVariableType]
        except GeneratorExit:
            if begun.returned is None:
                raise
            return begun.returned

    return wrapper


def wrap_async_generator(policy: Policy, function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """An async generator function under a policy."""

    async def begin(*args: Any, **kwargs: Any) -> tuple[AsyncGenerator[Any, Any], Any] | None:
        generator = function(*args, **kwargs)
        try:
            return generator, await anext(generator)
        except StopAsyncIteration:
            return None

    start = _async_first.wrap(policy, begin, name)

    async def wrapper(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        begun = await start(*args, **kwargs)
        if begun is None:
            return
        generator, item = begun
        try:
            while True:
                try:
                    sent = yield item
                except GeneratorExit:
                    raise
                except BaseException as error:  # noqa: BLE001 - what the consumer throws in goes on in
                    item = await generator.athrow(error)
                else:
                    item = await generator.asend(sent)
        except StopAsyncIteration:
            return
        finally:
            await generator.aclose()

    return wrapper
