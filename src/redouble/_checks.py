"""Checks of a policy's fields: each takes a field's name and a value, and gives what is stored.

What is refused is refused when the policy is built, in a message that names the field, the rule and
the value.
"""

from __future__ import annotations

from ._callables import SYNC, flavour
from ._numbers import INF, number, whole
from .classify import Cause, Classifier

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Check = Callable[[str, Any], Any]


def optional(check: Check) -> Check:
    """``None``, or what passes the check."""

    def checked(name: str, value: Any) -> Any:
        return None if value is None else check(name, value)

    return checked


def one_of(*choices: Any) -> Check:
    """One of these very values (``1`` is not ``True``)."""

    def checked(name: str, value: Any) -> Any:
        for choice in choices:
            if type(value) is type(choice) and value == choice:
                return choice
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")

    return checked


def anything(name: str, value: Any) -> Any:
    return value


def attempts(name: str, value: Any) -> int:
    return whole(name, value, at_least=1)


def seconds(name: str, value: Any) -> float:
    """Finite seconds, not negative, from a number or a ``timedelta``."""
    if hasattr(value, "total_seconds"):
        value = value.total_seconds()
    return number(name, value)


def seconds_or_inf(name: str, value: Any) -> float:
    return INF if isinstance(value, float) and value == INF else seconds(name, value)


def some_seconds(name: str, value: Any) -> float:
    """Seconds above 0: a limit of nothing allows nothing."""
    result = seconds(name, value)
    if result == 0.0:
        raise ValueError(f"{name} must be above 0 seconds (None for no limit), got {value!r}")
    return result


def text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError(f"{name} must be a text that is not empty, got {value!r}")
    return value


def function(name: str, value: Any) -> Any:
    if not callable(value):
        raise TypeError(f"{name} must be a function, got {value!r}")
    return value


def sync_function(name: str, value: Any) -> Any:
    """A plain function: it is asked in sync and async calls alike, so it cannot be awaited."""
    if flavour(function(name, value)) != SYNC:
        raise TypeError(f"{name} must be a plain function, not an async one or a generator, got {value!r}")
    return value


def switch(name: str, value: Any) -> Any:
    """A bool, or a plain function."""
    if isinstance(value, bool):
        return value
    if not callable(value):
        raise TypeError(f"{name} must be True, False or a function, got {value!r}")
    return sync_function(name, value)


def listeners(name: str, value: Any) -> tuple[Any, ...]:
    if callable(value):
        raise TypeError(f"{name} must be a list of functions: write [{value!r}]")
    try:
        found = tuple(value)
    except TypeError:
        raise TypeError(f"{name} must be a list of functions, got {value!r}") from None
    return tuple(sync_function(name, listener) for listener in found)


def generator(name: str, value: Any) -> Any:
    drawn = (getattr(value, "uniform", None), getattr(value, "random", None))
    if isinstance(value, type) or not all(map(callable, drawn)):
        raise TypeError(f"{name} must be a random.Random, got {value!r}")
    return value


def retryable(name: str, value: Any) -> Any:
    """Exception types as a flat tuple; a classifier or a predicate as it is."""
    if isinstance(value, Classifier):
        return value
    if isinstance(value, (type, tuple, list, set, frozenset)):
        return tuple(_types(name, value))
    if isinstance(value, (str, BaseException)) or not callable(value):
        raise TypeError(f"{name} must be exception types, a Classifier or a predicate, got {value!r}")
    return sync_function(name, value)


def _types(name: str, value: Any) -> list[type[Exception]]:
    if hasattr(value, "__iter__") and not isinstance(value, (type, str)):
        return [found for member in value for found in _types(name, member)]
    return [exception_type(name, value)]


def exception_type(name: str, value: Any) -> type[Exception]:
    if isinstance(value, type) and issubclass(value, Exception):
        return value
    if isinstance(value, type) and issubclass(value, BaseException):
        raise TypeError(
            f"{name} must not name {value.__name__}: interrupts and cancellation are never retried; "
            "Exception is the widest that may be"
        )
    raise TypeError(f"{name} must name exception types, got {value!r}")


def rule_key(name: str, key: Any) -> Any:
    """A cause, an HTTP status or an exception type."""
    if isinstance(key, type):
        return exception_type(name, key)
    if isinstance(key, str):
        try:
            return Cause(key)
        except ValueError:
            known = ", ".join(Cause)
            raise ValueError(f"{name} must name causes out of {known}, got {key!r}") from None
    if isinstance(key, int) and not isinstance(key, bool) and 100 <= key <= 599:
        return int(key)
    raise ValueError(f"{name} must be keyed by a Cause, a status from 100 to 599 or a type, got {key!r}")
