"""Other treatment for failures of one kind: the rules of a policy."""

from __future__ import annotations

from types import MappingProxyType

from . import _checks as check
from ._record import Record, assign

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import timedelta
    from typing import Any

    from .backoff import Backoff

    Seconds = float | timedelta


class Rule(Record):
    """How failures of one kind are treated otherwise; what is left out is the policy's.

    ``attempts`` counts the failures of this rule plus one, never above the policy's. ``recover(error)``,
    sync or async, runs after the wait and before the next attempt: refresh a token, reconnect.

    >>> Rule(attempts=2, base=5.0)
    Rule(attempts=2, base=5.0)
    """

    __slots__ = ("attempts", "base", "cap", "backoff", "recover")  # noqa: RUF023 - in reading order
    attempts: int | None
    base: float | None
    cap: float | None
    backoff: Backoff | None
    recover: Callable[[Exception], object] | None

    def __init__(
        self,
        *,
        attempts: int | None = None,
        base: Seconds | None = None,
        cap: Seconds | None = None,
        backoff: Backoff | None = None,
        recover: Callable[[Exception], object] | None = None,
    ) -> None:
        assign(self, "attempts", check.optional(check.attempts)("attempts", attempts))
        assign(self, "base", check.optional(check.seconds)("base", base))
        assign(self, "cap", check.optional(check.seconds_or_inf)("cap", cap))
        assign(self, "backoff", check.optional(check.sync_function)("backoff", backoff))
        assign(self, "recover", check.optional(check.function)("recover", recover))

    def __repr__(self) -> str:
        said = [(field, getattr(self, field)) for field in self._fields]
        return f"Rule({', '.join(f'{field}={value!r}' for field, value in said if value is not None)})"


def as_rule(value: Any) -> Rule:
    """A rule out of plain data; what is one already, or is none, is left to the field's check."""
    fields: dict[str, Any] = value
    return Rule(**fields) if isinstance(value, dict) else value


def rules(name: str, value: Any) -> Mapping[Any, Rule]:
    if not hasattr(value, "items"):
        raise TypeError(f"{name} must map causes, statuses or exception types to rules, got {value!r}")
    built: dict[Any, Rule] = {}
    for key, rule in value.items():
        if not isinstance(rule, Rule):
            raise TypeError(f"{name}[{key!r}] must be a Rule, got {rule!r}")
        built[check.rule_key(name, key)] = rule
    return MappingProxyType(built)
