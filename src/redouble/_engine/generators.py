"""Generators, sync and async: retried until the first item is yielded.

After that the consumer has seen items, so an error is raised as it is: a new start would repeat them.
``send``, ``throw`` and ``close`` reach the generator as if there were nothing in between. Each wrapper is a
driver of its own, since the first item is taken in its frame.
"""

from __future__ import annotations

from .. import context
from .._base.loops import time_limit
from ..context import time_limit_of
from .call import Call
from .drivers import DONE, advance, advance_async, late_error, unchanged
from .first import start
from .flow import SETTLED, GivenUp, flow
from .note import written

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator
    from typing import Any

    from ..policy import Policy
    from .flow import Flow


class _Begun:
    """A generator whose first item was taken already and is still to be yielded."""

    # What the generator returned when it was closed, if Python hands that on (3.13).
    returned: Any = None

    def __init__(self, generator: Generator[Any, Any, Any], first: Any) -> None:
        """Keep the first item; ``yield from`` reaches ``send`` and ``throw`` of the generator itself."""
        self.send, self.throw = generator.send, generator.throw
        self._generator = generator
        self._first = [first]

    def __iter__(self) -> _Begun:
        """Return itself: ``yield from`` needs an iterator."""
        return self

    def __next__(self) -> Any:
        """Return the first item once, then those of the generator."""
        return self._first.pop() if self._first else next(self._generator)

    def close(self) -> None:
        """Close the generator, and keep what it returns."""
        closing: Any = self._generator.close
        self.returned = closing()


def wrap_generator(  # noqa: C901 - one frame, for short tracebacks
    policy: Policy, function: Callable[..., Any], name: str
) -> Callable[..., Any]:
    """Return a generator function under a policy.

    The function is called at the first ``next``, as generators are. A generator that ends without an item
    is a success.
    """

    def wrapper(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:  # noqa: C901 - as above
        begun: Any = None
        value: Any = None
        step: Any = None
        sent: Any = None
        going: Flow | None = None
        if policy._variant != "plain":
            going = start(policy, name, args, kwargs, stepwise=True)
        try:
            while True:
                if going is not None:
                    step = advance(going, sent)
                    if step is SETTLED:
                        sent = None
                        step = advance(going)
                        if type(step) is dict:
                            kwargs = step  # pyright: ignore[reportUnknownVariableType]
                            step = advance(going, function)
                    if step is DONE:
                        break
                    if type(step) is GivenUp:
                        with unchanged(step):
                            raise step.error
                outer, token, last_note = context.current.get(), None, written.latest
                sent = None, None
                try:
                    if step is not None:
                        token = context.current.set(step)
                    generator = function(*args, **kwargs)
                    begun = _Begun(generator, next(generator))
                except StopIteration as end:
                    value = end.value
                except Exception as error:  # noqa: BLE001 - the flow decides about it
                    sent = error, None
                finally:
                    if token is not None:
                        context.current.reset(token)
                    elif step is not None:
                        context.current.set(outer)
                if going is None:
                    if sent[0] is None:
                        break
                    call = Call(policy, name, args, kwargs, None, None, last_note, stepwise=True)
                    going, sent = flow(call, sent[0]), None
        finally:
            if going is not None:
                going.close()
            del step, sent
        if begun is None:
            return value
        try:
            return (yield from begun)  # pyright: ignore[reportUnknownVariableType]
        except GeneratorExit:
            if begun.returned is None:
                raise
            return begun.returned

    return wrapper


def wrap_async_generator(  # noqa: C901 - as above
    policy: Policy, function: Callable[..., Any], name: str
) -> Callable[..., Any]:
    """Return an async generator function under a policy.

    As `wrap_generator`. Timeout and deadline cancel an attempt until its first item is there, not later.
    """

    async def wrapper(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:  # noqa: C901 - as above
        generator: Any = None
        item: Any = None
        step: Any = None
        sent: Any = None
        ended = False
        going: Flow | None = None
        if policy._variant != "plain":
            going = start(policy, name, args, kwargs, awaits=True, stepwise=True)
        try:
            while True:
                if going is not None:
                    step = await advance_async(going, sent)
                    if step is SETTLED:
                        sent = None
                        step = await advance_async(going)
                        if type(step) is dict:
                            kwargs = step  # pyright: ignore[reportUnknownVariableType]
                            step = await advance_async(going, function)
                    if step is DONE:
                        break
                    if type(step) is GivenUp:
                        with unchanged(step):
                            raise step.error
                outer, token, last_note = context.current.get(), None, written.latest
                sent = None, None
                try:
                    if step is not None:
                        token = context.current.set(step)
                    with time_limit(None if step is None else time_limit_of(step)) as limit:
                        generator = function(*args, **kwargs)
                        item = await anext(generator)
                    if limit.struck:
                        sent = late_error(step, limit), None
                except StopAsyncIteration:
                    ended = True
                except Exception as error:  # noqa: BLE001 - the flow decides about it
                    sent = error, None
                finally:
                    if token is not None:
                        context.current.reset(token)
                    elif step is not None:
                        context.current.set(outer)
                if going is None:
                    if sent[0] is None:
                        break
                    call = Call(policy, name, args, kwargs, None, None, last_note, awaits=True, stepwise=True)
                    going, sent = flow(call, sent[0]), None
        finally:
            if going is not None:
                going.close()
            del step, sent
        if ended:
            return
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
