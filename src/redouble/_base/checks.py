"""Argument validation: each check takes a name and a value, and returns the value to store, or raises.

Errors name the argument, the rule and the value: ``attempts must be at least 1 (the first call counts), got
0``. A value of the wrong type is a `TypeError`; one that is out of range, or a bool where a number is wanted,
a `ValueError`. Fields of a policy name their check by function; guards and backoffs call checks themselves.

- numbers: `number`, `above_zero`, `whole`, `integer`, `attempts`, `attempts_or_inf`
- times: `seconds`, `seconds_or_inf`, `some_seconds`, `limit`
- callables: `function`, `sync_function`, `switch`, `listeners`
- objects: `guard`, `guard_or_function`, `generator`, `logger`
- makers of checks: `optional`, `one_of`
"""

from __future__ import annotations

import sys

from .callables import SYNC, flavour

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Check = Callable[[str, Any], Any]

INF = float("inf")


def number(name: str, value: Any) -> float:
    """Return a finite, non-negative float, from anything that ``float`` takes but a bool or a text.

    >>> number("base", 2), number("base", -1)
    Traceback (most recent call last):
    ValueError: base must be finite and not negative, got -1
    """
    if value.__class__ is float and 0.0 <= value < INF:
        return value
    if isinstance(value, bool):
        raise ValueError(f"{name} must be a number, not a bool, got {value!r}")
    if not (_has(value, "__float__") or _has(value, "__index__")):
        raise TypeError(f"{name} must be a number, got {value!r}")
    try:
        result = float(value)
    except (OverflowError, ValueError):  # an int beyond the range of floats, a signalling NaN of decimal
        result = INF
    if not 0.0 <= result < INF:
        raise ValueError(f"{name} must be finite and not negative, got {value!r}")
    return result


def above_zero(name: str, value: Any) -> float:
    """Return a finite float above 0."""
    result = number(name, value)
    if result == 0.0:
        raise ValueError(f"{name} must be above 0, got {value!r}")
    return result


def whole(name: str, value: Any, *, at_least: int | None) -> int:
    """Return an int of at least that much, from anything with ``__index__`` but a bool.

    >>> whole("attempts", 2.5, at_least=1)
    Traceback (most recent call last):
    ValueError: attempts must be a whole number, got 2.5
    """
    if value.__class__ is int and at_least is not None and value >= at_least:
        return value
    if isinstance(value, bool):
        raise ValueError(f"{name} must be a whole number, not a bool, got {value!r}")
    if not _has(value, "__index__"):
        kind = ValueError if _has(value, "__float__") else TypeError
        raise kind(f"{name} must be a whole number, got {value!r}")
    result: int = value.__index__()
    if at_least is not None and result < at_least:
        hint = " (the first call counts)" if name == "attempts" else ""
        raise ValueError(f"{name} must be at least {at_least}{hint}, got {value!r}")
    return result


def _has(value: object, method: str) -> bool:
    """Return whether a value has a special method. The class is asked: ``float`` itself is not a number."""
    return hasattr(type(value), method)


def optional(check: Check) -> Check:
    """Return a check that also accepts ``None``."""

    def checked(name: str, value: Any) -> Any:
        return None if value is None else check(name, value)

    return checked


def one_of(*choices: Any) -> Check:
    """Return a check for one of these values, by type and equality: ``1`` is not ``True``."""

    def checked(name: str, value: Any) -> Any:
        for choice in choices:
            if type(value) is type(choice) and value == choice:
                return choice
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")

    return checked


# The classes of guards, by the fields that hold them, which are the names of their modules as well.
_GUARDS = {"budget": "Budget", "breaker": "Breaker", "throttle": "AdaptiveThrottle", "bulkhead": "Bulkhead"}
_PACKAGE = __name__.rpartition("._base")[0]


def is_guard(value: Any, module: str = "_guards.base", kind: str = "Guard") -> bool:
    """Return whether a value is a guard, of any class or of this one.

    The module is looked up and not imported: if it is not loaded, no value can be of its class.
    """
    return isinstance(value, getattr(sys.modules.get(f"{_PACKAGE}.{module}"), kind, ()))


def guard(name: str, value: Any, others: str = "") -> Any:
    """Return a guard that fits the field."""
    if not is_guard(value, name, _GUARDS[name]):
        kind = f"{_GUARDS[name]} (from {_PACKAGE}.{name})"
        raise TypeError(f"{name} must be a {kind}{others}, got {value!r}")
    return value


def guard_or_function(name: str, value: Any) -> Any:
    """Return a guard, or a sync function of a call's arguments that returns one. Guards are callable, too."""
    if isinstance(value, type) or is_guard(value) or not callable(value):
        return guard(name, value, ", or a function of the call's arguments that returns one")
    return sync_function(name, value)


def anything(name: str, value: Any) -> Any:
    """Return any value as it is."""
    return value


def attempts(name: str, value: Any) -> int:
    """Return a number of attempts, at least 1. A float without a fraction is one: 5.0 is 5."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return whole(name, value, at_least=1)


def attempts_or_inf(name: str, value: Any) -> float:
    """Return a number of attempts; ``inf`` is allowed."""
    return INF if isinstance(value, float) and value == INF else attempts(name, value)


def integer(name: str, value: Any) -> int:
    """Return an int of any sign."""
    return whole(name, value, at_least=None)


def seconds(name: str, value: Any) -> float:
    """Return finite, non-negative seconds from a number or a ``timedelta``."""
    if value.__class__ is not float and hasattr(value, "total_seconds"):
        value = value.total_seconds()
    return number(name, value)


def seconds_or_inf(name: str, value: Any) -> float:
    """Return seconds; ``inf`` is allowed."""
    return INF if isinstance(value, float) and value == INF else seconds(name, value)


def some_seconds(name: str, value: Any) -> float:
    """Return seconds above 0, for a limit: no time at all would allow nothing."""
    result = seconds(name, value)
    if result == 0.0:
        raise ValueError(f"{name} must be above 0 seconds (None for no limit), got {value!r}")
    return result


def floor_below_cap(floor: float, cap: float, where: str = "") -> None:
    """Raise `ValueError` for a floor above the cap; ``where`` begins the message."""
    if floor > cap:
        raise ValueError(f"{where}floor must be at most cap, got floor={floor:g} and cap={cap:g}")


def limit(name: str, value: Any) -> float | None:
    """Return seconds above 0, for a limit; ``None`` for ``inf``, which is no limit."""
    return None if isinstance(value, float) and value == INF else some_seconds(name, value)


def text(name: str, value: Any) -> str:
    """Return a text that is not empty."""
    if not isinstance(value, str) or not value:
        raise TypeError(f"{name} must be a text that is not empty, got {value!r}")
    return value


def function(name: str, value: Any) -> Any:
    """Return a callable of any kind."""
    if not callable(value):
        raise TypeError(f"{name} must be a function, got {value!r}")
    return value


def sync_function(name: str, value: Any) -> Any:
    """Return a sync function. It is called in sync and async calls alike, so it cannot be awaited."""
    if flavour(function(name, value)) != SYNC:
        raise TypeError(f"{name} must be a plain function, not an async one or a generator, got {value!r}")
    return value


def switch(name: str, value: Any) -> Any:
    """Return a bool or a sync function."""
    if isinstance(value, bool):
        return value
    if not callable(value):
        raise TypeError(f"{name} must be True, False or a function, got {value!r}")
    return sync_function(name, value)


def listeners(name: str, value: Any) -> tuple[Any, ...]:
    """Return a tuple of sync functions. A single function is an error, not a list of one."""
    if callable(value):
        raise TypeError(f"{name} must be a list of functions: write [{value!r}]")
    try:
        found = tuple(value)
    except TypeError:
        raise TypeError(f"{name} must be a list of functions, got {value!r}") from None
    return tuple(sync_function(name, listener) for listener in found)


def has_methods(value: Any, *names: str) -> bool:
    """Return whether an object has these methods. Of a class they would need an object first."""
    return not isinstance(value, type) and all(callable(getattr(value, name, None)) for name in names)


def generator(name: str, value: Any) -> Any:
    """Return a random source: an object with the methods ``uniform`` and ``random``."""
    if not has_methods(value, "uniform", "random"):
        raise TypeError(f"{name} must be a random.Random, got {value!r}")
    return value


def logger(name: str, value: Any) -> Any:
    """Return a logger, the name of one, or ``False``."""
    if value is False or isinstance(value, str):
        return value is not False and text(name, value)
    if not has_methods(value, "log", "isEnabledFor", "hasHandlers"):
        raise TypeError(f"{name} must be a logging.Logger, the name of one, or False, got {value!r}")
    return value
