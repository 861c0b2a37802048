"""What kind of callable is this, and what is it called? Asked once, at decoration.

The flags of a code object answer for plain functions; ``inspect``, which is slow to import, is asked
only about stranger things.
"""

from __future__ import annotations

import functools
import sys
from types import CoroutineType, FunctionType, MethodType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

# Flags of a code object, as in the inspect module.
_GENERATOR, _COROUTINE, _ITERABLE_COROUTINE, _ASYNC_GENERATOR = 0x20, 0x80, 0x100, 0x200

SYNC, ASYNC, GENERATOR, ASYNC_GENERATOR = "sync", "async", "generator", "async generator"


def flavour(function: Any) -> str:
    """``SYNC``, ``ASYNC``, ``GENERATOR`` or ``ASYNC_GENERATOR``.

    >>> async def fetch(): ...
    >>> flavour(fetch), flavour(functools.partial(fetch)), flavour(len)
    ('async', 'async', 'sync')
    """
    inner = _core(function)
    if isinstance(inner, type):
        return SYNC
    if not isinstance(inner, FunctionType):
        if _marked_async(inner):
            return ASYNC
        inner = _core(_call_method(inner))
    return _by_flags(inner)


def is_async(function: Any) -> bool:
    """Whether calling it gives a coroutine, as far as can be told without calling it."""
    return flavour(function) == ASYNC


def claims_async(function: Any) -> bool:
    """Whether a plain function stands in for an async one: ``functools.wraps`` around it."""
    function = _core(function)
    for _ in range(20):  # a chain may lead in a circle, or a proxy answer for ever
        function = _core(_peek(function, "__wrapped__"))
        if function is None or is_async(function):
            return function is not None
    return False


def look_like(wrapper: Any, function: Any) -> Any:
    """As ``functools.update_wrapper``, for proxies too whose attributes are not what they should be."""
    for name in functools.WRAPPER_ASSIGNMENTS:
        try:
            setattr(wrapper, name, getattr(function, name))
        except Exception:  # noqa: BLE001, S110 - it looks a little less like it, then
            pass
    own = _peek(function, "__dict__")
    if isinstance(own, dict):
        wrapper.__dict__.update(own)
    wrapper.__wrapped__ = function
    return wrapper


def name_of(function: Any) -> str:
    """The qualified name of a callable; of the class where an object has no name of its own.

    >>> name_of(functools.partial(int, base=2))
    'int'
    """
    while isinstance(function, functools.partial):
        function = function.func
    for found in (_peek(function, "__qualname__"), _peek(function, "__name__")):
        if isinstance(found, str):
            return found
    return type(function).__qualname__


def plain(what: str, answer: object) -> Any:
    """The answer of a plain function of the user's; refused if it is to be awaited, which nobody does."""
    if hasattr(type(answer), "__await__"):
        close(answer)
        raise TypeError(f"{what} gave something to be awaited: it must be a plain function")
    return answer


def told(answer: object) -> None:
    """Refuses the coroutine of a listener, which nobody awaits. A task that it started is its own affair."""
    if issubclass(type(answer), CoroutineType):
        plain("it", answer)


def truth(what: str, answer: Any) -> bool:
    """The truth of such an answer. Of a coroutine, it would always be true."""
    return bool(plain(what, answer))


def close(thing: Any) -> None:
    """Closes a coroutine that nobody will await, of which Python would warn; anything else is left alone."""
    if type(thing) is CoroutineType:
        thing.close()


def refuse(verb: str, thing: Any) -> NoReturn:
    """Raises that something cannot be retried or hedged, since it is not callable."""
    advice = "it is not callable; decorate a function"
    if type(thing) is CoroutineType:
        close(thing)
        advice = "the function was called already; give the function itself, and then its arguments"
    raise TypeError(f"cannot {verb} {thing!r}: {advice}")


def _peek(thing: Any, name: str) -> Any:
    """An attribute, or ``None``: those of a proxy are somebody's code, and may raise."""
    try:
        return getattr(thing, name, None)
    except Exception:  # noqa: BLE001
        return None


def _core(function: Any) -> Any:
    """The function inside partials and bound methods."""
    while True:
        if isinstance(function, functools.partial):
            function = function.func
        elif isinstance(function, MethodType):
            function = function.__func__
        else:
            return function


def _call_method(instance: object) -> Any:
    return getattr(type(instance), "__call__", None)  # noqa: B004 - the method itself is wanted


def _by_flags(function: Any) -> str:
    flags = _peek(_peek(function, "__code__"), "co_flags")
    if not isinstance(flags, int):
        return SYNC
    if flags & (_COROUTINE | _ITERABLE_COROUTINE) or _marked_async(function):
        return ASYNC
    if flags & _GENERATOR:
        return GENERATOR
    return ASYNC_GENERATOR if flags & _ASYNC_GENERATOR else SYNC


def _marked_async(function: Any) -> bool:
    # Nothing can have been marked, or be a mock, in a process that has not imported inspect.
    inspect = sys.modules.get("inspect")
    try:
        return inspect is not None and bool(inspect.iscoroutinefunction(function))
    except Exception:  # noqa: BLE001 - attributes are the user's code
        return False
