"""Terminal charts (bars, sparklines), and the scale of an axis. All return plain text.

Where the encoding of the output has no block characters, the charts use ASCII.
"""

from __future__ import annotations

import math

from .._base.table import display_width, fit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_EIGHTHS, _ASCII_EIGHTHS = " ▁▂▃▄▅▆▇█", " ..::--=#"
_PARTS, _ASCII_PARTS = " ▏▎▍▌▋▊▉█", " ....:::#"


def can_draw(encoding: str | None) -> bool:
    """Return whether an encoding has the characters of charts; ``None`` means UTF-8.

    >>> can_draw("utf-8"), can_draw("ascii"), can_draw("cp1252")
    (True, False, False)
    """
    try:
        (_EIGHTHS + _PARTS + "…").encode(encoding or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def bars(values: Mapping[str, float], *, width: int = 80, unit: str = "", encoding: str | None = None) -> str:
    """Return a horizontal bar chart: a line with name, bar and figure for each value.

    >>> print(bars({"alone": 64, "defer": 10}, width=30, unit=" calls"))
    alone ██████████████  64 calls
    defer ██▎             10 calls
    """
    parts, mark = (_PARTS, "…") if can_draw(encoding) else (_ASCII_PARTS, ".")
    figures = [short(value) + unit for value in values.values()]
    after = max(map(len, figures))
    room = max(4, width - after - 2)
    before = min(max(map(display_width, values)), max(4, room // 2))
    length = max(1, room - before - 1)
    most = max(values.values()) or 1.0
    lines: list[str] = []
    for (name, value), figure in zip(values.items(), figures, strict=True):
        # A value above zero has at least the thinnest bar.
        full, rest = divmod(max(round(value / most * length * 8), value > 0), 8)
        bar = parts[8] * full + (parts[rest] if rest else "")
        lines.append(f"{fit(name, before, mark=mark)} {bar:{length}}  {figure:>{after}}")
    return "\n".join(lines)


def sparkline(values: Sequence[float], *, most: float | None = None, encoding: str | None = None) -> str:
    """Return one line with a character for each value; only zero is blank.

    ``most`` is the value of a full character, the greatest of the values if it is not given.

    >>> sparkline([0, 1, 2, 4, 8, 4, 2, 1, 0])
    ' ▁▂▄█▄▂▁ '
    """
    letters = _EIGHTHS if can_draw(encoding) else _ASCII_EIGHTHS
    most = most or max([0.0, *values]) or 1.0
    return "".join([letters[max(round(8 * value / most), value > 0)] for value in values])


def short(value: float) -> str:
    """Return a figure with three or four digits, as at an axis.

    >>> [short(value) for value in (0, 0.25, 1200, 64_000, 2_500_000)]
    ['0', '0.25', '1,200', '64k', '2.5M']
    """
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= max(size, 1e4):
            return f"{value / size:.3g}{unit}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


class Scale:
    """Map values to positions from 0.0 to 1.0 on an axis with round ticks, zero among them.

    With ``fit`` the axis begins and ends with the values instead, as suits an axis of time.

    >>> scale = Scale([0.0, 87.0])
    >>> scale.ticks, scale.place(50.0)
    ([0.0, 20.0, 40.0, 60.0, 80.0, 100.0], 0.5)
    """

    def __init__(self, values: Iterable[float], *, fit: bool = False, count: int = 5) -> None:
        found = list(values)
        ticks = _steps(found if fit and found else [*found, 0.0], count)
        self.low, self.high = ticks[0], ticks[-1]
        if fit and len(set(found)) > 1:
            self.low, self.high = min(found), max(found)
        self.ticks = [tick for tick in ticks if self.low <= tick <= self.high]

    def place(self, value: float) -> float:
        """Return the position of a value; values beyond a limit are placed on it."""
        return min(max((value - self.low) / (self.high - self.low), 0.0), 1.0)


def _steps(values: list[float], count: int) -> list[float]:
    """Return round figures at even distances that enclose the values."""
    low, high = min(values), max(values)
    if low == high:
        high = low + 1.0
    rough = (high - low) / count
    size = 10.0 ** math.floor(math.log10(rough))
    # Ten of a size is always enough, except for rounding errors.
    step = next((size * factor for factor in (1, 2, 5) if size * factor >= rough * 0.999), size * 10)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(number * step, 12) for number in range(first, last + 1)]
