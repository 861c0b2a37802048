"""The counter that each event adds to, and the records of a snapshot.

Counters are named in `COUNTERS`, times in `TIMES`. Events are counted into any object with ``add`` and
``observe``: a `Tally` in memory, or the instruments of Prometheus and OpenTelemetry.
"""

from __future__ import annotations

from bisect import bisect_left
from types import MappingProxyType

from .._base.checks import above_zero
from .._base.record import Data, Record, assign
from .._base.table import duration, share, table
from ..events import DeadLettered, Expired, GaveUp, Hedged, Reason, Recovered, Refused, Retrying, Succeeded

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from dataclasses import KW_ONLY
    from typing import Any, Protocol

    from ..events import Event

    class Numbers(Protocol):
        """An object that events are counted into."""

        def add(self, what: str, amount: int = 1, reason: Reason | None = None) -> None:
            """Add to one of the `COUNTERS`."""

        def observe(self, what: str, seconds: float) -> None:
            """Add to one of the `TIMES`."""


# What each event adds

# Upper bounds in seconds. A call with retries takes longer than a request: hence those above 10.
BUCKETS: tuple[float, ...] = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0,
)  # fmt: skip

# name -> (unit, description)
COUNTERS: dict[str, tuple[str, str]] = {
    "attempts": ("attempt", "Attempts of the calls that have ended."),
    "retries": ("retry", "Attempts that failed and were followed by another."),
    "succeeded": ("call", "Calls that succeeded at the first try."),
    "recovered": ("call", "Calls that succeeded after retries."),
    "gave_up": ("call", "Calls that failed for good, by reason."),
    "refused": ("call", "Calls that a guard rejected, by reason."),
    "hedged": ("attempt", "Attempts that were started beside a slow one."),
    "dead_lettered": ("call", "Calls that were stored as dead letters."),
}
# The counters that are counted by reason, with the reasons there may be.
REASONED = {"gave_up": tuple(Reason), "refused": (Reason.breaker, Reason.bulkhead)}
TIMES: dict[str, str] = {
    "call_seconds": "Seconds that calls took, waits included.",
    "wait_seconds": "Seconds of the waits before retries.",
}

# The events that end a call. An Expired counts as one that gave up, with its reason.
ENDS: dict[type[Event], str] = {
    Succeeded: "succeeded",
    Recovered: "recovered",
    GaveUp: "gave_up",
    Expired: "gave_up",
    Refused: "refused",
}
_BESIDE: dict[type[Event], str] = {Hedged: "hedged", DeadLettered: "dead_lettered"}
COUNTED: frozenset[type[Event]] = frozenset({Retrying, *ENDS, *_BESIDE})

# The name under which policies beyond the limit are counted together.
OTHER = "(other)"


def count(event: Event, into: Numbers) -> None:
    """Count an event that is in `COUNTED`.

    A call is counted once, by the event that ends it, and with all its attempts.
    """
    kind = type(event)
    if kind is Retrying:
        into.add("retries")
        into.observe("wait_seconds", event.delay or 0.0)
    elif kind in ENDS:
        into.add("attempts", event.attempt)
        into.add(ENDS[kind], 1, event.reason)
        # A refused call took no time worth knowing. And if the clock was not read before the first failure,
        # a call that gives up there shows 0 s, which is not what it took.
        if kind is Succeeded or (event.elapsed > 0.0 and kind is not Refused):
            into.observe("call_seconds", event.elapsed)
    else:
        into.add(_BESIDE[kind])


class _Times:
    """Times by bucket, being counted."""

    __slots__ = ("counts", "largest", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS) + 1)
        self.total = self.largest = 0.0


class Tally:
    """The numbers of one policy, being counted. Changed and read only under the lock of its `Counters`.

    ``numbers`` has all counters by name, ``reasons`` some of them by reason, ``times`` the buckets.
    """

    __slots__ = ("numbers", "reasons", "times")

    def __init__(self) -> None:
        self.numbers = dict.fromkeys(COUNTERS, 0)
        self.reasons: dict[str, dict[str, int]] = {what: {} for what in REASONED}
        self.times = {what: _Times() for what in TIMES}

    def add(self, what: str, amount: int = 1, reason: Reason | None = None) -> None:
        self.numbers[what] += amount
        if reason is not None:
            # By its text: the hash of an enum is slow.
            found, text = self.reasons[what], reason._value_
            found[text] = found.get(text, 0) + amount

    def observe(self, what: str, seconds: float) -> None:
        times = self.times[what]
        times.counts[bisect_left(BUCKETS, seconds)] += 1
        times.total += seconds
        if seconds > times.largest:
            times.largest = seconds

    def counts(self, *, successes: bool) -> Counts:
        """Return the numbers as of now."""
        fields: dict[str, Any] = dict(self.numbers)
        if not successes:
            fields["succeeded"] = None
        for what, by_reason in self.reasons.items():
            fields[what] = MappingProxyType(dict(by_reason))
        for what, times in self.times.items():
            counts, total = tuple(times.counts), times.total
            fields[what] = Distribution(BUCKETS, counts, total=total, largest=times.largest)
        return Counts(**fields)


# Records of a snapshot


class Distribution(Record):
    """Counts of times by bucket, with their sum and the largest. Times are in seconds.

    ``counts`` has one entry for each of ``bounds``, of times up to that bound and above the bound before, and
    one more for times above all bounds.

    >>> took = Distribution((0.1, 1.0), (3, 1, 0), total=0.9, largest=0.6)
    >>> took.count, took.mean, took.quantile(0.5)
    (4, 0.225, 0.0666...)
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    _: KW_ONLY
    total: float
    largest: float

    @property
    def count(self) -> int:
        """How many times were observed."""
        return sum(self.counts)

    @property
    def mean(self) -> float | None:
        """The sum divided by the count; ``None`` if there were none."""
        return self.total / self.count if self.count else None

    def quantile(self, q: float) -> float | None:
        """Return about how long the share ``q`` of them took at most; ``None`` if there were none.

        Times are assumed to be spread evenly within a bucket, so it is as exact as the buckets are narrow.
        """
        rank, low = above_zero("q", q) * self.count, 0.0
        if q > 1.0:
            raise ValueError(f"q must be above 0 and at most 1, got {q!r}")
        for number, high in zip(self.counts, (*self.bounds, self.largest), strict=True):
            if number and rank <= number:
                return low + (min(high, self.largest) - low) * rank / number
            rank, low = rank - number, high
        # Nothing at all, or a float that fell short by its last bit.
        return self.largest if self.count else None

    def as_dict(self) -> dict[str, Any]:
        """Return the same as plain data, with three quantiles."""
        quantiles = {f"p{share:g}": self.quantile(share / 100) for share in (50, 95, 99)}
        summed = {"count": self.count, "sum": self.total, "max": self.largest}
        return {**summed, **quantiles, "bounds": [*self.bounds], "counts": [*self.counts]}


class Counts(Data):
    """The numbers of one policy.

    ``calls`` are those that have ended: without ``successes`` only those that failed at least once or were
    rejected. ``gave_up`` and ``refused`` are counted by reason.

    >>> from redouble.events import GaveUp, Reason, Succeeded
    >>> counters = Counters(successes=True)
    >>> counters(Succeeded("fetch", attempt=1, elapsed=0.2))
    >>> counters(GaveUp("fetch", attempt=4, elapsed=7.0, reason=Reason.attempts))
    >>> counts = counters.snapshot().policies["fetch"]
    >>> counts.calls, counts.attempts, dict(counts.gave_up), counts.success_rate
    (2, 5, {'attempts': 1}, 0.5)
    """

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

    @property
    def failed(self) -> int:
        """Calls that failed for good or were rejected."""
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
        """Return the same as plain data."""
        return {"calls": self.calls, "success_rate": self.success_rate, **super().as_dict()}


class BudgetLevel(Data):
    """The tokens left in a budget, and its capacity if it has one.

    >>> BudgetLevel(tokens=5.0, capacity=500.0).as_dict()
    {'tokens': 5.0, 'capacity': 500.0}
    """

    tokens: float | None
    capacity: float | None


class Snapshot(Data):
    """All numbers of one moment, as plain data that does not change.

    ``policies`` has `Counts` by policy, ``budgets`` the `BudgetLevel` of each that is watched, ``breakers``
    the state of each as text, ``stores`` whether the store behind a shared guard answers, ``discarded`` how
    many dead letters of a queue were discarded.

    >>> snapshot = Snapshot({}, {"payments": BudgetLevel(5.0, 500.0)}, {"search": "open"}, {}, {})
    >>> print(snapshot.table())
    budget    tokens
    payments  5 of 500
    <BLANKLINE>
    breaker  state
    search   open
    """

    policies: Mapping[str, Counts]
    budgets: Mapping[str, BudgetLevel]
    breakers: Mapping[str, str]
    stores: Mapping[str, bool]
    discarded: Mapping[str, int]

    def _check(self) -> None:
        """Make the mappings read-only copies."""
        for field in self._fields:
            assign(self, field, MappingProxyType(dict(getattr(self, field))))

    def table(self) -> str:
        """Return the same as text, for people."""
        tables: dict[tuple[str, ...], list[tuple[str, ...]]] = {
            ("policy", *_HEAD): [(name, *_row(counts)) for name, counts in self.policies.items()],
            ("budget", "tokens"): [(name, _level(level)) for name, level in self.budgets.items()],
            ("breaker", "state"): [*self.breakers.items()],
            ("store", "is"): [(name, "up" if is_up else "down") for name, is_up in self.stores.items()],
        }
        shown = [_without_empty(head, rows) for head, rows in tables.items() if rows]
        return "\n\n".join(shown) or "nothing counted yet"


# Pickles and tracebacks name the module that users import from.
for _public in (Distribution, Counts, BudgetLevel, Snapshot):
    _public.__module__ = "redouble.metrics"


_HEAD = (
    "calls", "first try", "recovered", "gave up", "refused", "success", "retries/call", "p50", "p99",
    "waited",
)  # fmt: skip


def _row(counts: Counts) -> tuple[str, ...]:
    """Return the cells of a policy, in the order of `_HEAD`."""
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


def _level(level: BudgetLevel) -> str:
    """Return the tokens that are left, and the capacity if there is one."""
    left = "?" if level.tokens is None else f"{level.tokens:.4g}"
    return left if level.capacity is None else f"{left} of {level.capacity:.4g}"


def _without_empty(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Return a table without its empty columns."""
    filled = [column for column in range(len(head)) if any(row[column] for row in rows)]
    return table([head[column] for column in filled], [[row[column] for column in filled] for row in rows])
