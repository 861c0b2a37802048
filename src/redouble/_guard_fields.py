"""The guards of a policy: checked when it is built, loaded when there is one and not before."""

from __future__ import annotations

from ._numbers import whole

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

FIELDS = ("budget", "breaker", "throttle", "bulkhead")


def budget(name: str, value: Any) -> Any:
    from .budget import Budget

    return _of_kind(name, value, Budget)


def breaker(name: str, value: Any) -> Any:
    from .breaker import Breaker

    return _of_kind(name, value, Breaker)


def throttle(name: str, value: Any) -> Any:
    from .throttle import AdaptiveThrottle

    return _of_kind(name, value, AdaptiveThrottle)


def bulkhead(name: str, value: Any) -> Any:
    from .bulkhead import Bulkhead

    return _of_kind(name, value, Bulkhead)


def dead_letters(name: str, value: Any) -> Any:
    # By what it can do: the module stands above policies, which it runs replays under.
    if isinstance(value, type) or not (hasattr(value, "put") and hasattr(value, "aput")):
        raise TypeError(f"{name} must be a DeadLetters (from redouble.deadletter), got {value!r}")
    return value


def priority(name: str, value: Any) -> int:
    return whole(name, value, at_least=None)


def _of_kind(name: str, value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be a {kind.__name__} (from {kind.__module__}), got {value!r}")
    return value


def insist_on_pickling(fields: dict[str, Any]) -> None:
    """Refuses, naming the field, what a guard would refuse without knowing where it is."""
    for field in (*FIELDS, "dead_letters"):
        try:
            fields.get(field).__reduce_ex__(2)
        except TypeError:
            raise TypeError(
                f"a policy whose {field} is of this process cannot be pickled: "
                f"send policy.replace({field}=None), or make the policy where it is used"
            ) from None
