"""Charts as SVG text: lines, bars, histograms, small multiples. No dependency, the same bytes every time.

A chart brings its own background and colours, for light and for dark surroundings; where a viewer knows no
style sheets, the light ones hold. Colours are apart for all kinds of eyes; lines are named where they end.
"""

from __future__ import annotations

import math

from ._scale import Scale, short
from ._svg_page import Area, Page, spread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Points = Sequence[tuple[float, float]]
    Band = tuple[float, float, str]


def line_chart(
    title: str,
    series: Mapping[str, Points],
    *,
    x_label: str,
    y_label: str,
    caption: str = "",
    log_x: bool = False,
    log_y: bool = False,
    band: Band | None = None,
    width: int = 760,
    height: int = 420,
) -> str:
    """Lines over a common axis, each named at its end; ``band`` shades a span of x and names it.

    >>> line_chart("Load", {"plain": [(0, 1), (1, 2)]}, x_label="p", y_label="load")[:4]
    '<svg'
    """
    page = Page(title, y_label, caption, width, height)
    names = max([len(name) for name in series], default=0)
    area = Area(
        page,
        page.inside(left=58, right=26 + 7 * names, bottom=50),
        Scale([x for points in series.values() for x, _ in points], log=log_x, fit=True, count=7),
        Scale([y for points in series.values() for _, y in points], log=log_y),
    )
    area.frame(x_label, band)
    for colour, points in enumerate(series.values()):
        area.line(points, colour, dots=len(points) <= 24)
    _name_ends(page, area, series)
    return page.text()


def _name_ends(page: Page, area: Area, series: Mapping[str, Points]) -> None:
    ends = [
        (area.y(points[-1][1]), colour, name)
        for colour, (name, points) in enumerate(series.items())
        if points
    ]
    ends.sort()
    for place, (_, colour, name) in zip(
        spread([end[0] for end in ends], 16.0, area.top, area.bottom), ends, strict=True
    ):
        page.write(area.right + 9, place + 4, name, f"label c{colour % 7}")


def histogram(
    title: str,
    counts: Sequence[float],
    *,
    bin_width: float,
    start: float = 0.0,
    x_label: str,
    y_label: str,
    caption: str = "",
    log_y: bool = False,
    band: Band | None = None,
    width: int = 760,
    height: int = 360,
) -> str:
    """Counts in bins of one width, side by side.

    >>> "</svg>" in histogram("Arrivals", [3, 1], bin_width=0.1, x_label="seconds", y_label="requests")
    True
    """
    page = Page(title, y_label, caption, width, height)
    area = Area(
        page,
        page.inside(left=58, right=26, bottom=50),
        Scale([start, start + bin_width * len(counts)], fit=True, count=8),
        Scale(counts, log=log_y),
    )
    area.frame(x_label, band)
    area.steps(steps(counts, bin_width, start), 0)
    return page.text()


def steps(counts: Sequence[float], bin_width: float, start: float = 0.0) -> list[tuple[float, float]]:
    """Counts in bins as the points of a line with steps."""
    return [
        (start + bin_width * edge, count)
        for number, count in enumerate(counts)
        for edge in (number, number + 1)
    ]


def bar_chart(
    title: str,
    bars: Mapping[str, float],
    *,
    x_label: str,
    caption: str = "",
    log_x: bool = False,
    width: int = 760,
) -> str:
    """Bars that lie, one below the other, each with its name before and its figure behind it.

    >>> "64" in bar_chart("Calls that reach C", {"alone": 64, "deferring": 10}, x_label="calls")
    True
    """
    row = 30
    page = Page(title, "", caption, width)
    page.grow(row * len(bars) + 56)
    left = 32 + 7.6 * max([len(name) for name in bars], default=0)
    area = Area(
        page,
        page.inside(left=left, right=64, bottom=50),
        Scale(bars.values(), log=log_x),
        Scale([0.0, 1.0]),
    )
    area.below(x_label)
    for number, (name, value) in enumerate(bars.items()):
        top = area.top + row * number + 5
        page.write(left - 10, top + 14.5, name, "label end")
        page.shape(
            "rect", 0, x=area.left, y=top, width=max(area.x(value) - area.left, 1), height=row - 10, rx=2
        )
        page.write(max(area.x(value), area.left) + 7, top + 14.5, short(value), "figure")
    return page.text()


def small_multiples(
    title: str,
    panels: Mapping[str, Mapping[str, Points]],
    *,
    x_label: str,
    y_label: str,
    caption: str = "",
    columns: int = 2,
    log_y: bool = False,
    filled: bool = False,
    band: Band | None = None,
    width: int = 860,
    panel_height: int = 190,
) -> str:
    """The same axes over and over, one panel for each case; series of one name have one colour.

    ``filled``: each series as a surface, for counts in bins (`steps`).

    >>> panels = {"no jitter": {"arrivals": [(0, 9), (1, 0)]}, "full jitter": {"arrivals": [(0, 4), (1, 5)]}}
    >>> small_multiples("Herd", panels, x_label="s", y_label="requests").count("jitter")
    2
    """
    names = list(dict.fromkeys([name for series in panels.values() for name in series]))
    every = [point for series in panels.values() for points in series.values() for point in points]
    x_scale = Scale([x for x, _ in every], fit=True, count=5)
    y_scale = Scale([y for _, y in every], log=log_y, count=4)
    page = Page(title, y_label, caption, width)
    rows = math.ceil(len(panels) / columns)
    page.grow(rows * (panel_height + 34) + (24 if len(names) > 1 else 0) + 10)
    if len(names) > 1:
        page.legend(names)
    left, top, right, _ = page.inside(left=54, right=22, bottom=0)
    step = (right - left + 56) / columns
    for number, (name, series) in enumerate(panels.items()):
        x, y = left + step * (number % columns), top + (panel_height + 34) * (number // columns) + 16
        area = Area(page, (x, y, x + step - 56, y + panel_height - 20), x_scale, y_scale)
        page.write(x, y - 8, name, "panel")
        last = number + columns >= len(panels)
        area.frame(x_label if last else "", band)
        for label, points in series.items():
            (area.steps if filled else area.line)(points, names.index(label))
    return page.text()
