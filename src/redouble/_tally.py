"""What an event adds to which number, said once for the counters in memory and for the adapters.

A number has a name: those that are counted are in `COUNTERS`, the times in `TIMES`. Whatever has ``add`` and
``observe`` can be counted into: a `Tally` here, the instruments of Prometheus and OpenTelemetry elsewhere.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from itertools import pairwise

from ._numbers import above_zero
from ._record import Record, assign
from .events import (
    DeadLettered,
    Expired,
    GaveUp,
    Hedged,
    Reason,
    Recovered,
    Refused,
    Retrying,
    Succeeded,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, Generic, Protocol, TypeVar

    from .events import Event

    T = TypeVar("T")

    class Numbers(Protocol):
        """Where an event is counted."""

        def add(self, what: str, amount: int = 1, reason: Reason | None = None) -> None:
            """Adds to one of the `COUNTERS`."""

        def observe(self, what: str, seconds: float) -> None:
            """Adds to one of the `TIMES`."""

    class _Typed(Generic[T]): ...
else:
    from types import GenericAlias

    T = None

    class _Typed:
        """Takes its type in square brackets without the import of ``typing``."""

        __slots__ = ()
        __class_getitem__ = classmethod(GenericAlias)


# Seconds. A call with retries takes longer than a request: hence those above 10.
BUCKETS: tuple[float, ...] = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0,
)  # fmt: skip

# name -> (what is counted, what it says)
COUNTERS: dict[str, tuple[str, str]] = {
    "attempts": ("attempt", "Attempts of the calls that have ended."),
    "retries": ("retry", "Attempts that failed and were followed by another."),
    "succeeded": ("call", "Calls that succeeded at the first try."),
    "recovered": ("call", "Calls that succeeded after retries."),
    "gave_up": ("call", "Calls that were given up on, by reason."),
    "refused": ("call", "Calls that a guard did not let through, by reason."),
    "hedged": ("attempt", "Attempts that were started beside a slow one."),
    "dead_lettered": ("call", "Calls that were kept as dead letters."),
}
# Those that are counted by reason, and the reasons there may be.
REASONED: dict[str, tuple[Reason, ...]] = {
    "gave_up": tuple(Reason),
    "refused": (Reason.circuit, Reason.bulkhead),
}
TIMES: dict[str, str] = {
    "call_seconds": "Seconds that calls took, waits included.",
    "wait_seconds": "Seconds of the waits before retries.",
}

# An Expired is a call that was given up on, and says so in its reason.
ENDS: dict[type[Event], str] = {
    Succeeded: "succeeded",
    Recovered: "recovered",
    GaveUp: "gave_up",
    Expired: "gave_up",
    Refused: "refused",
}
BESIDE: dict[type[Event], str] = {Hedged: "hedged", DeadLettered: "dead_lettered"}
COUNTED: frozenset[type[Event]] = frozenset({Retrying, *ENDS, *BESIDE})

# Under which names beyond the limit are counted together.
OTHER = "(other)"


def count(event: Event, into: Numbers) -> None:
    """Counts an event of a call."""
    kind = type(event)
    if kind is Retrying:
        into.add("retries")
        into.observe("wait_seconds", event.delay or 0.0)
    elif kind in ENDS:
        into.add("attempts", event.attempt)
        into.add(ENDS[kind], 1, event.reason)
        # A call that was not let through took no time worth knowing. And where nobody read the clock before
        # the first failure, a call that is given up on there shows 0 s, which it did not take.
        if kind is Succeeded or (event.elapsed > 0.0 and kind is not Refused):
            into.observe("call_seconds", event.elapsed)
    else:
        into.add(BESIDE[kind])


def bucket_bounds(value: Iterable[Any], name: str = "buckets") -> tuple[float, ...]:
    """Upper bounds in seconds, each above the one before it."""
    try:
        bounds = tuple([above_zero(name, bound) for bound in value])
    except TypeError:
        raise TypeError(
            f"{name} must be bounds in seconds, such as (0.1, 1.0, 10.0), got {value!r}"
        ) from None
    if not bounds or any(low >= high for low, high in pairwise(bounds)):
        raise ValueError(f"{name} must be at least one bound, each above the one before it, got {value!r}")
    return bounds


class Bounded(_Typed[T]):
    """One thing for each name, and one for all names beyond ``limit`` together. Takes no lock."""

    def __init__(self, limit: int, make: Callable[[str], T]) -> None:
        self._make = make
        # Taking out of a deque is one step: no two threads get the same place.
        self._places: deque[None] = deque([None] * limit)
        self.kept: dict[str, T] = {}

    def get(self, name: str) -> T:
        """The thing for this name."""
        found = self.kept.get(name)
        return self._new(name) if found is None else found

    def _new(self, name: str) -> T:
        try:
            self._places.popleft()
        except IndexError:
            name = OTHER
        found = self.kept.get(name)
        return self.kept.setdefault(name, self._make(name)) if found is None else found


class Distribution(Record):
    """How long something took: counts by bucket, with their sum and the largest. Times are in seconds.

    ``counts`` has one entry for each of ``bounds``, of what took at most that long and longer than the bound
    before, and one more for what took longer than all.

    >>> took = Distribution((0.1, 1.0), (3, 1, 0), total=0.9, largest=0.6)
    >>> took.count, took.mean, took.quantile(0.5)
    (4, 0.225, 0.0666...)
    """

    __slots__ = ("bounds", "counts", "total", "largest")  # noqa: RUF023 - in the order in which it reads
    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float
    largest: float

    def __init__(
        self, bounds: tuple[float, ...], counts: tuple[int, ...], *, total: float, largest: float
    ) -> None:
        assign(self, "bounds", bounds)
        assign(self, "counts", counts)
        assign(self, "total", total)
        assign(self, "largest", largest)

    @property
    def count(self) -> int:
        """How many there were."""
        return sum(self.counts)

    @property
    def mean(self) -> float | None:
        """The sum divided by the count; ``None`` where there were none."""
        return self.total / self.count if self.count else None

    def quantile(self, q: float) -> float | None:
        """About how long the share ``q`` of them took at most; ``None`` where there were none.

        Within a bucket they are taken to be spread evenly, so it is as exact as the buckets are narrow.
        """
        share = above_zero("q", q)
        if share > 1.0:
            raise ValueError(f"q must be above 0 and at most 1, got {q!r}")
        rank, low = share * self.count, 0.0
        for number, high in zip(self.counts, (*self.bounds, self.largest), strict=True):
            if number and rank <= number:
                return low + (min(high, self.largest) - low) * rank / number
            rank, low = rank - number, high
        # Nothing at all, or a float that fell short by its last bit.
        return self.largest if self.count else None

    def as_dict(self) -> dict[str, Any]:
        """The same as plain data, with three quantiles."""
        quantiles = {f"p{share:g}": self.quantile(share / 100) for share in (50, 95, 99)}
        summed = {"count": self.count, "sum": self.total, "max": self.largest}
        return {**summed, **quantiles, "bounds": [*self.bounds], "counts": [*self.counts]}


# Pickles and tracebacks name the module that users import from.
Distribution.__module__ = "redouble.metrics"


class _Times:
    """A distribution in the making."""

    __slots__ = ("counts", "largest", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS) + 1)
        self.total = self.largest = 0.0

    def record(self) -> Distribution:
        return Distribution(BUCKETS, tuple(self.counts), total=self.total, largest=self.largest)


class Tally:
    """The numbers of one policy, in the making. Belongs to whoever holds the lock."""

    __slots__ = ("numbers", "reasons", "times")

    def __init__(self, name: str) -> None:
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
