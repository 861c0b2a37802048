"""``@retry``: choose the wrapper for every kind of callable, once, at decoration."""

from __future__ import annotations

from functools import partial

from .._base.callables import (
    ASYNC,
    ASYNC_GENERATOR,
    GENERATOR,
    SYNC,
    claims_async,
    close,
    flavour,
    is_async,
    is_plain,
    name_of,
    require_callable,
)
from .._base.callables import decorate as decorated
from .._base.loops import awaiting, is_awaited
from ..policy import Policy, made, show_fields
from .call import Call
from .drivers import drive
from .first import start, take_over, wrap, wrap_async
from .flow import flow
from .note import written

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, Protocol, TypeVar, overload

    from typing_extensions import Unpack

    from .._policy.typed import PolicyFields

    F = TypeVar("F")
    C = TypeVar("C", bound=Callable[..., Any])

    class Decorator(Protocol):
        """The result of ``retry(...)``: takes a callable, and returns one of the same type."""

        def __call__(self, function: F, /) -> F: ...

else:

    def overload(function):
        """Replace typing's, which is slow to import and does nothing at run time."""
        return function


DEFAULT = Policy()


# ruff: noqa: F811 - it knows typing's overload only
@overload
def retry(policy: Policy, /, **fields: Unpack[PolicyFields]) -> Decorator: ...
@overload
def retry(function: C, /) -> C: ...
@overload
def retry(policy: None = None, /, **fields: Unpack[PolicyFields]) -> Decorator: ...
@show_fields
def retry(policy: Any = None, /, **fields: Any) -> Any:
    """Retry a function, sync or async, when it fails with a transient error.

    ``@retry``, ``@retry(attempts=6, deadline=20.0)``, ``@retry(policy)`` or ``@retry(policy, attempts=2)``:
    `Policy` explains the fields. The function keeps its signature. A call returns the result of the function,
    or raises its last exception with a note about all attempts.

    >>> @retry(attempts=3, base=0.01)
    ... def fetch():
    ...     return "page"
    >>> fetch()
    'page'
    """
    if policy is None or isinstance(policy, Policy):
        return chosen(policy, fields, "retry")
    refuse_value("retry", policy)
    if fields:
        close(policy)
        raise TypeError(
            f"retry() takes a Policy before keyword fields, got {policy!r}; decorate with @retry(...)"
        )
    return decorate(DEFAULT, policy)


def chosen(policy: Policy | None, fields: Mapping[str, Any], caller: str) -> Policy:
    """Return the policy for what ``retry`` or ``retrying`` was given."""
    if fields:
        return made(policy, fields, caller)
    return DEFAULT if policy is None else policy


def refuse_value(caller: str, thing: Any) -> None:
    """Raise `TypeError` for the value of a field that was given without its name, such as ``retry(3)``."""
    if isinstance(thing, type) or not callable(thing):
        from .._policy.other_names import by_keyword

        if keyword := by_keyword(thing):
            raise TypeError(f"{caller}() takes fields by keyword, got {thing!r}; write {caller}({keyword})")


def decorate(policy: Policy, function: Any) -> Any:
    """Return the function, retried under the policy. Raises `TypeError` for what cannot be retried."""
    return decorated("retry", partial(driven, policy), function)


class Rest(partial[object]):
    """The rest of a call, which is to be called: the first attempt has failed, or is still to be made."""

    __slots__ = ()


def once(policy: Policy, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call the function under the policy, once. Return its result, or the `Rest` of the call.

    The caller calls that, so that this frame is not in the traceback: the caller and the driver are two.
    """
    if not (policy._simple and is_plain(function)):
        kind, function, name = _fitted(policy, function)
        if kind != SYNC:
            return Rest(_wrap(kind, policy, function, name), *args, **kwargs)
        if not policy._simple:
            return Rest(drive, start(policy, name, args, kwargs), function, args, kwargs)
    last_note = written.latest
    try:
        result = function(*args, **kwargs)
        if not is_awaited(result):
            return result
    except Exception as error:  # noqa: BLE001 - the flow decides about it
        going = flow(Call(policy, name_of(function), args, kwargs, None, None, last_note), error)
    else:
        return take_over(policy, name_of(function), None, result, function, args, kwargs, last_note)
    return Rest(drive, going, function, args, kwargs)


def driven(policy: Policy, function: Any) -> Any:
    """Return a callable under the driver that suits it, without the name and signature of the function."""
    kind, function, name = _fitted(policy, function)
    return _wrap(kind, policy, function, name)


def _fitted(policy: Policy, function: Any) -> tuple[str, Any, str]:
    """Return the kind of a callable, the callable, and its name. Raises `TypeError` if it does not fit."""
    kind, name = SYNC, name_of(function)
    if not is_plain(function):
        require_callable("retry", function)
        kind = flavour(function)
        if kind == SYNC and claims_async(function):
            kind, function = ASYNC, awaiting(function)
    _check_fit(policy, kind, name)
    return kind, function, name


def _wrap(kind: str, policy: Policy, function: Any, name: str) -> Any:
    """Return the wrapper for a callable of this kind. Few programs retry generators, so those load late."""
    if kind == SYNC:
        return wrap(policy, function, name)
    if kind == ASYNC:
        return wrap_async(policy, function, name)
    from .generators import wrap_async_generator, wrap_generator

    return (wrap_generator if kind == GENERATOR else wrap_async_generator)(policy, function, name)


def _check_fit(policy: Policy, kind: str, name: str) -> None:
    """Raise at decoration for a policy that could not work at the first retry."""
    if kind in (SYNC, GENERATOR):
        if policy._guarded and (awaited := policy._awaited()):
            raise TypeError(
                f"{name} is sync, and the {awaited[0]} of its policy must be awaited: give it a sync client"
            )
        for field, given in policy._hooks():
            if is_async(given):
                raise TypeError(f"{name} is sync, so {field} must be sync too, got {given!r}")
    if kind in (GENERATOR, ASYNC_GENERATOR):
        if policy.until is not None:
            raise TypeError(f"{name} is a generator, which returns no result that until= could judge")
        if policy._falls_back:
            raise TypeError(f"{name} is a generator, and a fallback= cannot replace its items")
        if policy.bulkhead is not None:
            raise TypeError(
                f"{name} is a generator, which is still in flight when it has yielded its first item: "
                "put 'with bulkhead:' around the loop over its items"
            )
