"""Inspect callables at decoration: sync, async or generator, and by which name; check what they return.

- `flavour` and its neighbours tell which driver a function needs, seen through partials and bound methods.
- `decorate`, `require_callable` and `look_like` are shared by all decorators: `retry`, guards, `hedge`.
- `sync_result` and its neighbours refuse a coroutine from a function of the user that must be plain.

Functions are told apart by the flags of their code objects, since importing ``inspect`` is slow. Callables
may be proxies, whose attributes run foreign code: they are read with `_peek`.
"""

from __future__ import annotations

import functools
import sys
from types import CoroutineType, FunctionType, MethodType

from .text import safe_str

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

# Flags of a code object, as in the inspect module.
_GENERATOR, _COROUTINE, _ITERABLE_COROUTINE, _ASYNC_GENERATOR = 0x20, 0x80, 0x100, 0x200
_NOT_SYNC = _GENERATOR | _COROUTINE | _ITERABLE_COROUTINE | _ASYNC_GENERATOR

SYNC, ASYNC, GENERATOR, ASYNC_GENERATOR = "sync", "async", "generator", "async generator"


def flavour(function: Any) -> str:
    """Return ``SYNC``, ``ASYNC``, ``GENERATOR`` or ``ASYNC_GENERATOR``.

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
        instance: object = inner
        inner = _core(getattr(type(instance), "__call__", None))  # noqa: B004 - the method itself is wanted
    return _by_flags(inner)


def is_plain(function: Any) -> bool:
    """Return whether this is a function, a method or a partial of one that is sync at first sight.

    ``False`` says nothing: a function with attributes may be marked as async, or wrap an async one.
    """
    while type(function) is functools.partial:
        function = function.func
    if type(function) is MethodType:
        function = function.__func__
    return type(function) is FunctionType and not (
        function.__code__.co_flags & _NOT_SYNC or function.__dict__
    )


def is_async(function: Any) -> bool:
    """Return whether a call returns a coroutine, as far as is known without calling it."""
    return flavour(function) == ASYNC


def claims_async(function: Any) -> bool:
    """Return whether a sync function wraps an async one, as ``functools.wraps`` says."""
    function = _core(function)
    for _ in range(20):  # a chain may be circular, or a proxy have any attribute
        function = _core(_peek(function, "__wrapped__"))
        if function is None or is_async(function):
            return function is not None
    return False


def sync_or_async(refusal: str, function: Any) -> str:
    """Return ``SYNC`` or ``ASYNC``, also by what `claims_async` finds; raise `TypeError` for a generator."""
    kind = ASYNC if claims_async(function) else flavour(function)
    if kind not in (SYNC, ASYNC):
        advice = "take a function that returns all at once"
        raise TypeError(f"{refusal}: a {kind} is not over when it is called; {advice}")
    return kind


def look_like(wrapper: Any, function: Any) -> Any:
    """Copy name, docstring and attributes to a wrapper, also from proxies whose attributes raise."""
    try:
        functools.update_wrapper(wrapper, function)
    except Exception:  # noqa: BLE001 - it has fewer of them, then
        wrapper.__wrapped__ = function
    return wrapper


def name_of(function: Any, *, short: bool = False) -> str:
    """Return the name of a callable, seen through ``functools.partial``: qualified, or short for messages.

    An object without a name goes by that of its class, and in messages by its ``repr``.

    >>> name_of(functools.partial(int, base=2))
    'int'
    """
    while isinstance(function, functools.partial):
        function = function.func
    for attribute in ("__name__",) if short else ("__qualname__", "__name__"):
        found = _peek(function, attribute)
        if isinstance(found, str):
            return found
    return safe_str(function, repr) if short else type(function).__qualname__


def sync_result(what: str, answer: object) -> Any:
    """Return the result of a sync function of the user; raise `TypeError` if it is awaitable."""
    if hasattr(type(answer), "__await__"):
        close(answer)
        raise TypeError(f"{what} returned an awaitable: it must be a plain function")
    return answer


def reject_coroutine(answer: object) -> None:
    """Raise `TypeError` if a listener returned a coroutine, which nobody would await. Tasks are fine."""
    if issubclass(type(answer), CoroutineType):
        sync_result("it", answer)


def truth(what: str, answer: Any) -> bool:
    """Return the truth of the result of a sync function; a coroutine would always be true."""
    return answer is True or bool(sync_result(what, answer))


def close(thing: Any) -> None:
    """Close a coroutine that nobody will await, so that Python does not warn; ignore anything else."""
    if type(thing) is CoroutineType:
        thing.close()


def takes_second(what: str, function: Any, name: str) -> bool:
    """Return whether a function of the user is called with a second argument.

    It is if a second positional parameter is required, or is called ``name``. A builtin without a signature
    gets one argument. Raise `TypeError` for a function that can be called with neither one nor two.

    >>> takes_second("it", lambda error, call: None, "call"), takes_second("it", print, "call")
    (True, False)
    """
    import inspect

    try:
        signature = inspect.signature(function)
    except Exception:  # noqa: BLE001 - proxies run foreign code
        return False
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    second = [parameter for parameter in signature.parameters.values() if parameter.kind in kinds][1:2]
    takes = any(one.default is one.empty or one.name == name for one in second)
    try:
        signature.bind(*range(1 + takes))
    except TypeError:
        message = f"{what} must take the error, or the error and the {name}, got {function!r}"
        raise TypeError(message) from None
    return takes


def decorate(verb: str, wrap: Callable[[Any], Any], function: Any, /) -> Any:
    """Return ``wrap(function)`` with the name and signature of the function, whatever kind of method it is.

    ``verb`` is the name of the decorator. Raise `TypeError` for a class.
    """
    made: Any = function
    if isinstance(function, (staticmethod, classmethod)):
        return made.__class__(decorate(verb, wrap, made.__func__))
    if isinstance(function, functools.partialmethod):
        return functools.partialmethod(
            decorate(verb, wrap, function.func), *function.args, **function.keywords
        )
    if isinstance(function, type):
        raise TypeError(
            f"cannot {verb} the class {function.__name__}: decorate the method itself, "
            "or a function that makes the object"
        )
    return look_like(wrap(function), function)


def require_callable(verb: str, thing: Any) -> None:
    """Raise `TypeError` for a property, or an object that cannot be called. ``verb`` is the decorator's."""
    if isinstance(thing, property):
        raise TypeError(f"cannot {verb} a property: put @{verb} below @property, on the function")
    if callable(thing):
        return
    advice = "it is not callable; decorate a function"
    if type(thing) is CoroutineType:
        close(thing)
        advice = "the function was called already; give the function itself, and then its arguments"
    raise TypeError(f"cannot {verb} {thing!r}: {advice}")


def _peek(thing: Any, name: str) -> Any:
    """Return an attribute, or ``None``: those of proxies run foreign code, which may raise."""
    try:
        return getattr(thing, name, None)
    except Exception:  # noqa: BLE001
        return None


def _core(function: Any) -> Any:
    """Return the function inside partials and bound methods."""
    while True:
        if isinstance(function, functools.partial):
            function = function.func
        elif isinstance(function, MethodType):
            function = function.__func__
        else:
            return function


def _by_flags(function: Any) -> str:
    """Return the flavour of a function by the flags of its code object; ``SYNC`` if it has none."""
    flags = _peek(_peek(function, "__code__"), "co_flags")
    if not isinstance(flags, int):
        return SYNC
    if flags & (_COROUTINE | _ITERABLE_COROUTINE) or _marked_async(function):
        return ASYNC
    if flags & _GENERATOR:
        return GENERATOR
    return ASYNC_GENERATOR if flags & _ASYNC_GENERATOR else SYNC


def _marked_async(function: Any) -> bool:
    """Return whether a callable is marked as a coroutine function, as `AsyncMock` is."""
    # Only `inspect` marks functions, and mocks import it.
    inspect = sys.modules.get("inspect")
    try:
        return inspect is not None and bool(inspect.iscoroutinefunction(function))
    except Exception:  # noqa: BLE001 - attributes are the user's code
        return False
