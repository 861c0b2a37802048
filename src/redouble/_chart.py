"""Charts for the terminal: bars, sparklines, columns. Plain text; whoever prints it may add colour.

Where the encoding of the output has no block letters, ASCII stands in for them.
"""

from __future__ import annotations

from ._columns import width_of
from ._numbers import whole
from ._scale import short

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_EIGHTHS = " ▁▂▃▄▅▆▇█"
_PARTS = " ▏▎▍▌▋▊▉█"
_ASCII_EIGHTHS = " ..::--=#"
_ASCII_PARTS = " ....:::#"


def can_draw(encoding: str | None) -> bool:
    """Whether an encoding has the letters that charts are made of; ``None`` is one of those that have.

    >>> can_draw("utf-8"), can_draw("ascii"), can_draw("cp1252")
    (True, False, False)
    """
    try:
        (_EIGHTHS + _PARTS + "│└─…").encode(encoding or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def bars(values: Mapping[str, float], *, width: int = 80, unit: str = "", encoding: str | None = None) -> str:
    """One line for each value: its name, a bar, its figure.

    >>> print(bars({"alone": 64, "defer": 10}, width=30, unit=" calls"))
    alone ██████████████  64 calls
    defer ██▎             10 calls
    """
    unicode = can_draw(encoding)
    figures = {name: short(value) + unit for name, value in values.items()}
    after = max([width_of(figure) for figure in figures.values()], default=0)
    room = max(4, width - after - 2)
    before = min(max([width_of(name) for name in values], default=0), max(4, room // 2))
    length = max(1, room - before - 1)
    most = max([0.0, *values.values()]) or 1.0
    lines: list[str] = []
    for name, value in values.items():
        bar = _bar(max(value, 0.0) / most, length, _PARTS if unicode else _ASCII_PARTS)
        lines.append(f"{_fitted(name, before, unicode)} {bar}  {figures[name]:>{after}}")
    return "\n".join(lines)


def _bar(share: float, length: int, parts: str) -> str:
    eighths = round(share * length * 8)
    if share > 0 and not eighths:
        eighths = 1
    whole_ones, rest = divmod(eighths, 8)
    return (parts[8] * whole_ones + (parts[rest] if rest else "")).ljust(length)


def _fitted(text: str, width: int, unicode: bool) -> str:
    if width_of(text) > width:
        mark = "…" if unicode else "."
        while width_of(text) > width - 1:
            text = text[:-1]
        text += mark
    return text + " " * (width - width_of(text))


def sparkline(values: Sequence[float], *, width: int = 60, encoding: str | None = None) -> str:
    """Values in one line; where there are more than fit, the greatest of neighbours is shown.

    >>> sparkline([0, 1, 2, 4, 8, 4, 2, 1, 0])
    ' ▁▂▄█▄▂▁ '
    """
    letters = _EIGHTHS if can_draw(encoding) else _ASCII_EIGHTHS
    shown = in_cells(values, whole("width", width, at_least=1))
    most = max([0.0, *shown]) or 1.0
    return "".join([letters[_eighths(value / most, 8)] for value in shown])


def _eighths(share: float, most: int) -> int:
    """How many eighths of a letter stand for a share of the height; something is never nothing."""
    return min(max(round(share * most), 1), most) if share > 0 else 0


def in_cells(values: Sequence[float], count: int) -> list[float]:
    """As many values as there are cells: the greatest of each group of neighbours, since peaks matter."""
    if len(values) <= count:
        return list(values)
    edges = [len(values) * number // count for number in range(count + 1)]
    return [max(values[edges[number] : edges[number + 1]]) for number in range(count)]


def columns(
    values: Sequence[float],
    *,
    start: float = 0.0,
    end: float | None = None,
    width: int = 80,
    height: int = 8,
    unit: str = "",
    encoding: str | None = None,
) -> str:
    """Values as columns over an axis that goes from ``start`` to ``end``, with figures at the side.

    >>> print(columns([1, 2, 3, 4], end=4, width=14, height=2, unit=" s"))
    4 │  ▄█
      │▄███
    0 └────
       0 4 s
    """
    unicode = can_draw(encoding)
    height = whole("height", height, at_least=1)
    top = max([0.0, *values]) or 1.0
    side = len(short(top))
    cells = in_cells(values, max(1, width - side - 2))
    letters, post, corner, floor = (_EIGHTHS, "│", "└", "─") if unicode else (_ASCII_EIGHTHS, "|", "+", "-")
    found = [_eighths(value / top, 8 * height) for value in cells]
    lines: list[str] = []
    for row in reversed(range(height)):
        name = short(top) if row == height - 1 else ""
        line = "".join([letters[min(max(eighths - 8 * row, 0), 8)] for eighths in found])
        lines.append(f"{name:>{side}} {post}{line}".rstrip())
    lines.append(f"{'0':>{side}} {corner}{floor * len(cells)}")
    last = short(len(values) if end is None else end) + unit
    gap = " " * max(1, len(cells) - len(short(start)) - len(last))
    return "\n".join([*lines, f"{'':{side}}  {short(start)}{gap}{last}"])
