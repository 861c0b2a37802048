"""The figures of one moment: records of what was counted, and a table of them."""

from __future__ import annotations

from types import MappingProxyType

from ._record import Record, assign
from ._tables import aligned, duration, share

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from ._gauges import Reading
    from ._tally import Distribution, Tally


class Counts(Record):
    """The figures of one policy.

    ``calls`` are those that have ended: without ``successes`` only those that failed at least once or were
    refused. ``gave_up`` and ``refused`` are counted by reason.
    """

    __slots__ = (  # noqa: RUF023 - in the order in which it reads
        "attempts", "retries", "succeeded", "recovered", "gave_up", "refused", "hedged", "dead_lettered",
        "call_seconds", "wait_seconds",
    )  # fmt: skip
    attempts: int
    retries: int
    succeeded: int | None
    recovered: int
    gave_up: Mapping[str, int]
    refused: Mapping[str, int]
    hedged: int
    dead_lettered: int
    call_seconds: Distribution
    wait_seconds: Distribution

    def __init__(self, tally: Tally, *, successes: bool) -> None:
        for what in ("attempts", "retries", "recovered", "hedged", "dead_lettered"):
            assign(self, what, tally.numbers[what])
        assign(self, "succeeded", tally.numbers["succeeded"] if successes else None)
        for what, by_reason in tally.reasons.items():
            assign(self, what, MappingProxyType(dict(by_reason)))
        for what, times in tally.times.items():
            assign(self, what, times.record())

    @property
    def failed(self) -> int:
        """Calls that were given up on or refused."""
        return sum(self.gave_up.values()) + sum(self.refused.values())

    @property
    def calls(self) -> int:
        """Calls that have ended, as far as they are counted."""
        return (self.succeeded or 0) + self.recovered + self.failed

    @property
    def success_rate(self) -> float | None:
        """The share of calls that succeeded, retried or not; ``None`` where successes are not counted."""
        return 1 - self.failed / self.calls if self.calls and self.succeeded is not None else None

    @property
    def retries_per_call(self) -> float | None:
        """Retries for each call: what they add to the load. ``None`` where successes are not counted."""
        return self.retries / self.calls if self.calls and self.succeeded is not None else None

    def as_dict(self) -> dict[str, Any]:
        """The same as plain data."""
        said = {"calls": self.calls, "success_rate": self.success_rate}
        return {**said, **{field: _plain(getattr(self, field)) for field in self._fields}}


class BudgetLevel(Record):
    """What is left of a budget, and what it holds at most, where it has such a limit."""

    __slots__ = ("tokens", "capacity")  # noqa: RUF023 - in the order in which it reads
    tokens: float | None
    capacity: float | None

    def __init__(self, tokens: float | None, capacity: float | None) -> None:
        assign(self, "tokens", tokens)
        assign(self, "capacity", capacity)

    def as_dict(self) -> dict[str, Any]:
        """The same as plain data."""
        return {"tokens": self.tokens, "capacity": self.capacity}


class Snapshot(Record):
    """All figures of one moment: plain data, which changes no more.

    ``policies`` has `Counts` by policy, ``budgets`` the `BudgetLevel` of each that is watched, ``breakers``
    the state of each as text, ``stores`` whether the store behind a shared guard answers, ``discarded`` how
    many dead letters of a queue were thrown away.
    """

    __slots__ = ("policies", "budgets", "breakers", "stores", "discarded")  # noqa: RUF023
    policies: Mapping[str, Counts]
    budgets: Mapping[str, BudgetLevel]
    breakers: Mapping[str, str]
    stores: Mapping[str, bool]
    discarded: Mapping[str, int]

    def __init__(
        self,
        policies: Mapping[str, Counts],
        budgets: Mapping[str, BudgetLevel],
        breakers: Mapping[str, str],
        stores: Mapping[str, bool],
        discarded: Mapping[str, int],
    ) -> None:
        assign(self, "policies", MappingProxyType(dict(policies)))
        assign(self, "budgets", MappingProxyType(dict(budgets)))
        assign(self, "breakers", MappingProxyType(dict(breakers)))
        assign(self, "stores", MappingProxyType(dict(stores)))
        assign(self, "discarded", MappingProxyType(dict(discarded)))

    def as_dict(self) -> dict[str, Any]:
        """The same as plain data, which ``json`` can write."""
        return {field: _plain(getattr(self, field)) for field in self._fields}

    def table(self) -> str:
        """The same as text, for people."""
        rows = [(name, *_row(counts)) for name, counts in self.policies.items()]
        budgets: list[tuple[str, ...]] = [(name, _level(level)) for name, level in self.budgets.items()]
        stores: list[tuple[str, ...]] = [
            (name, "there" if here else "away") for name, here in self.stores.items()
        ]
        parts: list[tuple[tuple[str, ...], list[tuple[str, ...]]]] = [
            (("policy", *_HEAD), rows),
            (("budget", "tokens"), budgets),
            (("breaker", "state"), [*self.breakers.items()]),
            (("store", "is"), stores),
        ]
        shown = [_without_empty(head, lines) for head, lines in parts if lines]
        return "\n\n".join(shown) or "nothing counted yet"


_HEAD = (
    "calls", "first try", "recovered", "gave up", "refused", "success", "retries/call", "p50", "p99",
    "waited",
)  # fmt: skip


def _row(counts: Counts) -> tuple[str, ...]:
    took, per_call = counts.call_seconds, counts.retries_per_call
    return (
        str(counts.calls),
        "" if counts.succeeded is None else str(counts.succeeded),
        str(counts.recovered),
        str(sum(counts.gave_up.values())),
        str(sum(counts.refused.values())),
        "" if counts.succeeded is None else share(counts.success_rate),
        "" if per_call is None else f"{per_call:.2f}",
        duration(took.quantile(0.5)),
        duration(took.quantile(0.99)),
        duration(counts.wait_seconds.total or None),
    )


def _without_empty(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """A table without the columns that have nothing to say."""
    filled = [place for place in range(len(head)) if any(row[place] for row in rows)]
    return aligned([head[place] for place in filled], [[row[place] for place in filled] for row in rows])


def _level(level: BudgetLevel) -> str:
    left = "?" if level.tokens is None else f"{level.tokens:.4g}"
    return left if level.capacity is None else f"{left} of {level.capacity:.4g}"


def _plain(value: Any) -> Any:
    if hasattr(value, "items"):
        return {name: _plain(member) for name, member in value.items()}
    return value.as_dict() if hasattr(value, "as_dict") else value


def snapshot(
    policies: Mapping[str, Counts], discarded: Mapping[str, int], readings: Iterable[Reading]
) -> Snapshot:
    """Puts together what was counted and what was read of guards."""
    levels: dict[str, dict[str, float]] = {}
    breakers: dict[str, str] = {}
    stores: dict[str, bool] = {}
    for what, labels, value in readings:
        if "budget" in labels:
            levels.setdefault(labels["budget"], {})[what] = value
        elif "store" in labels:
            stores[labels["store"]] = bool(value)
        elif value:
            breakers[labels["breaker"]] = labels["state"]
    budgets = {
        name: BudgetLevel(level.get("budget_tokens"), level.get("budget_capacity"))
        for name, level in levels.items()
    }
    return Snapshot(policies, budgets, breakers, stores, discarded)


# Pickles and tracebacks name the module that users import from.
for _public in (Counts, BudgetLevel, Snapshot):
    _public.__module__ = "redouble.metrics"
