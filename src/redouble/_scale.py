"""Scales of charts: which figures stand at an axis, how they are written, and where a value lies."""

from __future__ import annotations

import math

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


def short(value: float) -> str:
    """A figure as people write it at an axis.

    >>> [short(value) for value in (0, 0.25, 1200, 64_000, 2_500_000)]
    ['0', '0.25', '1,200', '64k', '2.5M']
    """
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= max(size, 1e4):
            return f"{value / size:.3g}{unit}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


class Scale:
    """From values to places between 0.0 and 1.0.

    Its limits are round figures, 0 among them; with ``fit`` they are the first and the last of the values,
    as suits an axis of time.

    >>> scale = Scale([0.0, 87.0])
    >>> scale.ticks, scale.place(50.0)
    ([0.0, 20.0, 40.0, 60.0, 80.0, 100.0], 0.5)
    """

    def __init__(
        self, values: Iterable[float], *, log: bool = False, fit: bool = False, count: int = 5
    ) -> None:
        found = [value for value in values if math.isfinite(value) and (value > 0 or not log)]
        self.log = log
        around = found if fit and found else [*found, 0.0]
        ticks = _decades(found or [1.0]) if log else _steps(around, count)
        self.low, self.high = ticks[0], ticks[-1]
        if fit and len(set(found)) > 1:
            self.low, self.high = min(found), max(found)
        self.ticks = [tick for tick in ticks if self.low <= tick <= self.high]

    def place(self, value: float) -> float:
        """Where a value lies; what is beyond a limit lies on it."""
        if self.log:
            share = math.log10(max(value, self.low) / self.low) / math.log10(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return min(max(share, 0.0), 1.0)


def _steps(values: list[float], count: int) -> list[float]:
    """Round figures at even distances, from at or below the least value to at or above the greatest."""
    low, high = min(values), max(values)
    if low == high:
        high = low + 1.0
    rough = (high - low) / count
    size = 10.0 ** math.floor(math.log10(rough))
    # Ten of a size is always enough, but for what rounding makes of it.
    step = next((size * factor for factor in (1, 2, 5) if size * factor >= rough * 0.999), size * 10)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(number * step, 12) for number in range(first, last + 1)]


def _decades(values: list[float]) -> list[float]:
    """Powers of ten around the values; some are left out where there would be too many."""
    first = math.floor(math.log10(min(values)) + 1e-9)
    last = max(math.ceil(math.log10(max(values)) - 1e-9), first + 1)
    every = -(-(last - first) // 6)
    last += -(last - first) % every
    return [10.0**power for power in range(first, last + 1, every)]
