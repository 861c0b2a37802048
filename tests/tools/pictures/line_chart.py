"""Line charts with names at the line ends, and logarithmic scales, for the pictures of the documentation."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pictures.page import PhonePage

from redouble._cli.charts import Scale
from redouble._cli.svg import Area

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    Lines = Mapping[str, Sequence[tuple[float, float]]]


class LogScale(Scale):
    """A logarithmic scale between powers of ten. Values that are not above zero lie at its lower end."""

    def __init__(self, values: Iterable[float]) -> None:
        found = [value for value in values if value > 0]
        first = math.floor(math.log10(min(found)) + 1e-9)
        last = max(math.ceil(math.log10(max(found)) - 1e-9), first + 1)
        every = -(-(last - first) // 6)
        last += -(last - first) % every
        self.ticks = [10.0**power for power in range(first, last + 1, every)]
        self.low, self.high = self.ticks[0], self.ticks[-1]

    def place(self, value: float) -> float:
        share = math.log10(max(value, self.low) / self.low) / math.log10(self.high / self.low)
        return min(share, 1.0)


def scales_of(lines: Lines, *, log: bool, count: int) -> tuple[Scale, Scale]:
    """Return the scales of both axes; with ``log`` the vertical one is logarithmic."""
    every = [point for points in lines.values() for point in points]
    values = [y for _, y in every]
    return Scale([x for x, _ in every], fit=True, count=count), LogScale(values) if log else Scale(values)


def line_chart(
    title: str, lines: Lines, *, x_label: str, y_label: str, caption: str, log_y: bool = False
) -> str:
    """Return lines over a common axis, each named at its end."""
    page = PhonePage(title, y_label, caption, 300)
    names = max([len(name) for name in lines])
    x_scale, y_scale = scales_of(lines, log=log_y, count=7)
    area = Area(page, page.inside(left=58, right=26 + 7.6 * names, bottom=50), x_scale, y_scale)
    area.frame(x_label)
    for colour, points in enumerate(lines.values()):
        dotted_line(area, points, colour)
    name_ends(area, lines)
    return page.text()


def name_ends(area: Area, lines: Lines) -> None:
    """Write the name of each line at its end, in its colour."""
    ends = sorted(
        (area.y(points[-1][1]), colour, name) for colour, (name, points) in enumerate(lines.items())
    )
    for place, (_, colour, name) in zip(
        spread([end[0] for end in ends], 17.0, area.bottom), ends, strict=True
    ):
        area.page.write(area.right + 9, place + 4, name, f"label c{colour % 7}")


def dotted_line(area: Area, points: Sequence[tuple[float, float]], colour: int) -> None:
    """Draw a line through the points, and a dot at each."""
    area.line(points, colour)
    for x, y in points:
        area.page.shape("circle", colour, cx=area.x(x), cy=area.y(y), r=3)


def spread(places: Sequence[float], gap: float, high: float) -> list[float]:
    """Return sorted places, moved apart so that no two are nearer than ``gap`` and none is above ``high``."""
    found: list[float] = []
    for place in places:
        found.append(max(place, found[-1] + gap) if found else place)
    limit = high
    for index in reversed(range(len(found))):
        found[index] = min(found[index], limit)
        limit = found[index] - gap
    return found
