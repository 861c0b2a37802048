"""``@retry``: picks the driver once, at decoration, for every kind of callable."""

from __future__ import annotations

from functools import partialmethod

from . import _async, _async_first, _sync_first
from ._callables import (
    ASYNC,
    ASYNC_GENERATOR,
    GENERATOR,
    SYNC,
    claims_async,
    close,
    flavour,
    is_async,
    look_like,
    name_of,
    refuse,
)
from ._streams import wrap_async_generator, wrap_generator
from .policy import Policy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Protocol, TypeVar, overload

    from typing_extensions import Unpack

    from .policy import PolicyFields

    F = TypeVar("F")
    C = TypeVar("C", bound=Callable[..., Any])

    class Decorator(Protocol):
        """What ``retry(...)`` gives: takes a callable, gives one of the same type."""

        def __call__(self, function: F, /) -> F: ...

else:

    def overload(function):
        """Stands in for typing's, which is slow to import and says nothing at run time."""
        return function


DEFAULT = Policy()


# ruff: noqa: F811 - it knows typing's overload only
@overload
def retry(policy: Policy, /, **fields: Unpack[PolicyFields]) -> Decorator: ...
@overload
def retry(function: C, /) -> C: ...
@overload
def retry(policy: None = None, /, **fields: Unpack[PolicyFields]) -> Decorator: ...
def retry(policy: Any = None, /, **fields: Any) -> Any:
    """Retries a function, sync or async, when it fails in a way that may pass.

    ``@retry``, ``@retry(attempts=6, deadline=20.0)``, ``@retry(policy)`` or ``@retry(policy, attempts=2)``.
    The signature stays as it is. What comes out in the end is the function's own result, or its own
    last exception with a note that tells the story.

    >>> @retry(attempts=3, base=0.01)
    ... def fetch():
    ...     return "page"
    >>> fetch()
    'page'
    """
    if policy is None:
        return Policy(**fields) if fields else DEFAULT
    if isinstance(policy, Policy):
        return policy.replace(**fields)
    if fields:
        close(policy)
        raise TypeError(
            f"retry() takes a Policy before keyword fields, got {policy!r}; decorate with @retry(...)"
        )
    return decorate(DEFAULT, policy)


def decorate(policy: Policy, function: Any) -> Any:
    """The function, retried under the policy. Understands every kind of callable, refuses the rest."""
    if isinstance(function, (staticmethod, classmethod, partialmethod)):
        return _descriptor(policy, function)
    if isinstance(function, type):
        raise TypeError(
            f"cannot retry the class {function.__name__}: decorate the method that fails, "
            "or a function that makes the object"
        )
    return look_like(driven(policy, function), function)


def driven(policy: Policy, function: Any) -> Any:
    """A callable under the driver that suits it, without the looks of the function."""
    if isinstance(function, property):
        raise TypeError("cannot retry a property: put @retry below @property, on the function")
    if not callable(function):
        refuse("retry", function)
    kind, name = flavour(function), name_of(function)
    if kind == SYNC and claims_async(function):
        kind, function = ASYNC, _async.awaiting(function)
    _check_fit(policy, kind, name)
    return _WRAPPERS[kind](policy, function, name)


def _descriptor(policy: Policy, made: Any) -> Any:
    """A method of another kind, around the retried function."""
    if hasattr(made, "__func__"):
        return made.__class__(decorate(policy, made.__func__))
    return partialmethod(decorate(policy, made.func), *made.args, **made.keywords)


_WRAPPERS = {
    SYNC: _sync_first.wrap,
    ASYNC: _async_first.wrap,
    GENERATOR: wrap_generator,
    ASYNC_GENERATOR: wrap_async_generator,
}


def _check_fit(policy: Policy, kind: str, name: str) -> None:
    """Refuses at decoration what could not work at the first retry."""
    if kind in (SYNC, GENERATOR):
        if awaited := policy._awaited():
            raise TypeError(
                f"{name} is sync, and the {awaited[0]} of its policy must be awaited: give it a sync client"
            )
        functions = [("recover", rule.recover) for rule in policy.rules.values()]
        for field, given in (*functions, ("sleep", policy.sleep), ("fallback", policy.fallback)):
            if callable(given) and is_async(given):
                raise TypeError(f"{name} is sync, so {field} must be sync too, got {given!r}")
    if kind in (GENERATOR, ASYNC_GENERATOR):
        if policy.until is not None:
            raise TypeError(f"{name} is a generator, which returns no result that until= could judge")
        if policy._falls_back:
            raise TypeError(f"{name} is a generator, whose items a fallback= cannot stand in for")
        if policy.bulkhead is not None:
            raise TypeError(
                f"{name} is a generator, which is still under way when its first item is out: "
                "put 'with bulkhead:' around the loop over its items"
            )
