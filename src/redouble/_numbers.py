"""Numbers that users give: checked, and named in the error if they will not do."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

INF = float("inf")


def number(name: str, value: Any) -> float:
    """A finite, non-negative float, or an error that names the argument, the rule and the value."""
    if value.__class__ is float and 0.0 <= value < INF:
        return value
    if isinstance(value, bool):
        raise ValueError(f"{name} must be a number, not a bool, got {value!r}")
    if not (_has(value, "__float__") or _has(value, "__index__")):
        raise TypeError(f"{name} must be a number, got {value!r}")
    try:
        result = float(value)
    except (OverflowError, ValueError):  # an int beyond all floats, a Decimal that is a signalling NaN
        result = INF
    if not 0.0 <= result < INF:
        raise ValueError(f"{name} must be finite and not negative, got {value!r}")
    return result


def above_zero(name: str, value: Any) -> float:
    """A finite float above 0."""
    result = number(name, value)
    if result == 0.0:
        raise ValueError(f"{name} must be above 0, got {value!r}")
    return result


def whole(name: str, value: Any, *, at_least: int | None) -> int:
    """An int of at least that much, from anything with ``__index__`` but a bool."""
    if isinstance(value, bool):
        raise ValueError(f"{name} must be a whole number, not a bool, got {value!r}")
    if _has(value, "__index__"):
        result: int = value.__index__()
    elif _has(value, "__float__"):
        raise ValueError(f"{name} must be a whole number, got {value!r}")
    else:
        raise TypeError(f"{name} must be a whole number, got {value!r}")
    if at_least is not None and result < at_least:
        hint = " (the first call counts)" if name == "attempts" else ""
        raise ValueError(f"{name} must be at least {at_least}{hint}, got {value!r}")
    return result


def _has(value: object, method: str) -> bool:
    """Whether it has a special method: its class, since the class ``float`` has them and is no number."""
    return hasattr(type(value), method)
