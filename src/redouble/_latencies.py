"""How long attempts took lately, and which share of them took less than how long."""

from __future__ import annotations

import math
from itertools import count

from ._checks import seconds
from ._numbers import number, whole
from ._record import Record, assign

TYPE_CHECKING = False
if TYPE_CHECKING:
    from datetime import timedelta

# A clock that ticks in hundredths shows fast attempts as 0 s. Below this, waiting costs less than hedging.
_SHORTEST = 0.001
_FEWEST = 10


class quantile(Record):  # noqa: N801 - used like a function
    """For ``hedge(after=...)``: as long as the share ``q`` of the last attempts took.

    ``initial`` seconds hold until 1 / (1 - ``q``) latencies are known (20 for 0.95, and 10 at least, but
    no more than ``of_last``). The delay is never below a millisecond. A value: every function that is
    decorated with it has a window of its own, which all calls of that function share.

    >>> quantile(0.95, initial=0.5)
    quantile(q=0.95, initial=0.5, of_last=100)
    """

    __slots__ = ("q", "initial", "of_last")  # noqa: RUF023 - in the order in which it reads
    q: float
    initial: float
    of_last: int

    def __init__(self, q: float, *, initial: float | timedelta, of_last: int = 100) -> None:
        share = number("q", q)
        if not 0.0 < share < 1.0:
            raise ValueError(f"q must be above 0 and below 1, got {q!r}")
        assign(self, "q", share)
        assign(self, "initial", seconds("initial", initial))
        assign(self, "of_last", whole("of_last", of_last, at_least=1))


# Pickles and tracebacks name the module that users import from.
quantile.__module__ = "redouble.hedging"


class Latencies:
    """The last latencies of one function. Safe to share between threads and tasks: it takes no lock."""

    __slots__ = ("_last", "_needed", "_place", "_sought")

    def __init__(self, sought: quantile) -> None:
        self._sought = sought
        self._needed = min(sought.of_last, max(_FEWEST, _up(1 / (1 - sought.q))))
        # Writing in a place of it and copying it are each one step, which no other thread can come between.
        # That is not so of a deque, where there is no lock around the interpreter.
        self._last: list[float] = []
        self._place = count().__next__

    def add(self, latency: float) -> None:
        """One more; the oldest is forgotten."""
        place = self._place() % self._sought.of_last
        self._last[place : place + 1] = [latency]

    def delay(self) -> float:
        """The quantile, in seconds; the initial delay while too few are known."""
        known = self._last.copy()
        if len(known) < self._needed:
            return self._sought.initial
        return max(_SHORTEST, sorted(known)[_up(self._sought.q * len(known)) - 1])


def _up(value: float) -> int:
    """Rounded up, with a little air: 1 / (1 - 0.9) is not quite 10."""
    return max(1, math.ceil(value - 1e-9))
