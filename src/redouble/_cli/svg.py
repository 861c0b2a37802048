"""SVG charts as text: bars, and lines in small multiples. The same input gives the same bytes.

A chart has its own background, and colours for light and dark pages (`prefers-color-scheme`); viewers
without style sheets show the light ones. The palette is safe for people with colour vision deficiencies.
"""

from __future__ import annotations

import math
import re
from html import escape
from textwrap import wrap

from .charts import Scale, short

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Points = Sequence[tuple[float, float]]
    Band = tuple[float, float, str]
    Box = tuple[float, float, float, float]

# The height of a panel.
_PANEL = 190

# Charts


def bar_chart(title: str, bars: Mapping[str, float], *, x_label: str, caption: str = "") -> str:
    """Return horizontal bars, one below the other, each with its name and its figure.

    >>> "64" in bar_chart("Calls that reach C", {"alone": 64, "deferring": 10}, x_label="calls")
    True
    """
    row = 30
    page = Page(title, "", caption, 760, row * len(bars) + 56)
    left = 32 + 7.6 * max([len(name) for name in bars], default=0)
    box = page.inside(left=left, right=64, bottom=50)
    area = Area(page, box, Scale(bars.values()), Scale([0.0, 1.0]))
    area.frame(x_label, bars=True)
    for number, (name, value) in enumerate(bars.items()):
        top, end = area.top + row * number + 5, area.x(value)
        page.write(left - 10, top + 14.5, name, "label end")
        page.shape("rect", 0, x=area.left, y=top, width=max(end - area.left, 1), height=row - 10, rx=2)
        page.write(end + 7, top + 14.5, short(value), "figure")
    return page.text()


def small_multiples(
    title: str,
    panels: Mapping[str, Mapping[str, Points]],
    *,
    x_label: str,
    y_label: str,
    caption: str = "",
    columns: int = 2,
    band: Band | None = None,
) -> str:
    """Return panels with the same axes; series of one name have one colour.

    ``band`` shades and names a span of x.

    >>> panels = {"no jitter": {"arrivals": [(0, 9), (1, 0)]}, "full jitter": {"arrivals": [(0, 4), (1, 5)]}}
    >>> small_multiples("Herd", panels, x_label="s", y_label="requests").count("jitter")
    2
    """
    names = list(dict.fromkeys([name for series in panels.values() for name in series]))
    every = [point for series in panels.values() for points in series.values() for point in points]
    x_scale = Scale([x for x, _ in every], fit=True)
    y_scale = Scale([y for _, y in every], count=4)
    rows = math.ceil(len(panels) / columns)
    room = rows * (_PANEL + 34) + (24 if len(names) > 1 else 0) + 10
    page = Page(title, y_label, caption, 860, room)
    if len(names) > 1:
        page.legend(names)
    left, top, right, _ = page.inside(left=54, right=22, bottom=0)
    step = (right - left + 56) / columns
    for number, (name, series) in enumerate(panels.items()):
        x, y = left + step * (number % columns), top + (_PANEL + 34) * (number // columns) + 16
        area = Area(page, (x, y, x + step - 56, y + _PANEL - 20), x_scale, y_scale)
        page.write(x, y - 8, name, "panel")
        area.frame(x_label if number + columns >= len(panels) else "", band)
        for label, points in series.items():
            area.line(points, names.index(label))
    return page.text()


def steps(counts: Sequence[float], bin_width: float) -> list[tuple[float, float]]:
    """Return counts in bins as the points of a stepped line: two for each bin, at its edges.

    >>> steps([3, 1], 0.5)
    [(0.0, 3), (0.5, 3), (0.5, 1), (1.0, 1)]
    """
    return [(bin_width * edge, count) for number, count in enumerate(counts) for edge in (number, number + 1)]


# The page: style, texts and shapes

# Seven colours after Okabe and Ito, for light and for dark pages.
LIGHT = ("#0072b2", "#d55e00", "#00845f", "#b0528a", "#a06a00", "#2a8fc9", "#666666")
DARK = ("#5ab4ea", "#f58f5b", "#3fc9a0", "#e3a0c8", "#ecc04f", "#a5dcff", "#b3b3b3")
_INK = {
    "paper": ("#ffffff", "#14181d"),
    "text": ("#1f2328", "#e8eaed"),
    "faint": ("#59636e", "#a3acb6"),
    "grid": ("#e3e6ea", "#2b3138"),
    "band": ("#f0e9dc", "#2e2a22"),
}
_STYLE = """
text{font-family:system-ui,-apple-system,'Segoe UI',Roboto,Helvetica,Arial,sans-serif;font-size:12px}
.title{font-size:16px;font-weight:600}.panel{font-size:13px;font-weight:600}.label,.figure{font-size:13px}
.middle{text-anchor:middle}.end{text-anchor:end}.s{fill:none;stroke-width:2;stroke-linejoin:round}
"""
_ANCHORS = {"middle": ' text-anchor="middle"', "end": ' text-anchor="end"'}


def _rules(which: int, colours: Sequence[str]) -> str:
    """Return the colour rules of the style sheet: 0 for light pages, 1 for dark ones."""
    ink = {name: pair[which] for name, pair in _INK.items()}
    rules = [
        f".paper{{fill:{ink['paper']}}}.title,.panel,.figure{{fill:{ink['text']}}}",
        f".tick,.axis,.caption,.label{{fill:{ink['faint']}}}",
        f".grid{{stroke:{ink['grid']}}}.band{{fill:{ink['band']}}}",
    ]
    rules += [f".f{n}{{fill:{c}}}.s{n}{{stroke:{c}}}.c{n}{{fill:{c}}}" for n, c in enumerate(colours)]
    return "".join(rules)


def at(value: float) -> str:
    """Return a coordinate with at most one decimal, so that a chart has few bytes.

    >>> at(12.04), at(-0.01)
    ('12', '0')
    """
    return f"{round(value, 1) + 0.0:g}"  # the sum turns -0.0 into 0.0


def escaped(text: str) -> str:
    """Escape text for XML, without the characters that XML cannot hold.

    >>> escaped("a < b" + chr(0))
    'a &lt; b'
    """
    return escape(re.sub("[^ -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "", text))


class Page:
    """The parts of a chart: a title with a subtitle above, a caption below, and space of some height between.

    All coordinates are pixels from the top left corner.
    """

    def __init__(self, title: str, subtitle: str, caption: str, width: int, space: float) -> None:
        self._title = escaped(title)
        self._caption = wrap(caption, int((width - 40) / 6.2), break_long_words=False, break_on_hyphens=False)
        self._parts: list[str] = []
        self._top = 48.0
        if subtitle:
            self.write(20, self._top + 2, subtitle, "axis")
            self._top += 20
        self.width, self.height = width, int(self._top + space + 18 * len(self._caption) + 14)

    def inside(self, left: float, right: float, bottom: float) -> Box:
        """Return left, top, right and bottom of the free space."""
        return left, self._top, self.width - right, self.height - bottom - 18 * len(self._caption) - 10

    def add(self, part: str) -> None:
        """Add an SVG element."""
        self._parts.append(part)

    def write(self, x: float, y: float, text: str, kind: str) -> None:
        """Add a text of some style classes, with colour and anchor for viewers without style sheets."""
        first, *more = kind.split()
        faint = first in ("tick", "axis", "caption", "label")
        style = "".join([_ANCHORS.get(word, "") for word in more])
        style += f' fill="{_INK["faint" if faint else "text"][0]}" font-size="12"'
        self.add(f'<text x="{at(x)}" y="{at(y)}" class="{kind}"{style}>{escaped(text)}</text>')

    def shape(self, tag: str, colour: int, **places: float) -> None:
        """Add a filled shape of a colour."""
        where = " ".join([f'{name}="{at(value)}"' for name, value in places.items()])
        number = colour % len(LIGHT)
        self.add(f'<{tag} {where} class="f{number}" fill="{LIGHT[number]}"/>')

    def legend(self, names: Sequence[str]) -> None:
        """Add names with their colours in a row below the title; the free space begins below it."""
        x = 20.0
        for colour, name in enumerate(names):
            self.shape("rect", colour, x=x, y=self._top - 6, width=14, height=4, rx=2)
            self.write(x + 20, self._top, name, "label")
            x += 20 + 7.4 * len(name) + 18
        self._top += 24

    def text(self) -> str:
        """Return the SVG document: head, parts in the order in which they were added, caption."""
        size = f'viewBox="0 0 {self.width} {self.height}" width="{self.width}" height="{self.height}"'
        paper, ink = _INK["paper"][0], _INK["text"][0]
        style = f"{_STYLE}{_rules(0, LIGHT)}\n@media (prefers-color-scheme:dark){{{_rules(1, DARK)}}}"
        head = [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{self._title}">',
            f"<title>{self._title}</title>",
            f"<style>{style}</style>",
            f'<rect class="paper" width="{self.width}" height="{self.height}" rx="6" fill="{paper}"/>',
            f'<text x="20" y="30" class="title" fill="{ink}" font-size="16">{self._title}</text>',
        ]
        first = self.height - 18 * len(self._caption) + 1
        for number, line in enumerate(self._caption):
            self.write(20, first + 18 * number, line, "caption")
        return "\n".join([*head, *self._parts, "</svg>", ""])


class Area:
    """A rectangle of the page with two axes. Values become coordinates by its two scales."""

    def __init__(self, page: Page, box: Box, x_scale: Scale, y_scale: Scale) -> None:
        self.page, (self.left, self.top, self.right, self.bottom) = page, box
        self.x_scale, self.y_scale = x_scale, y_scale

    def x(self, value: float) -> float:
        """Return the horizontal coordinate of a value."""
        return self.left + self.x_scale.place(value) * (self.right - self.left)

    def y(self, value: float) -> float:
        """Return the vertical coordinate of a value."""
        return self.bottom - self.y_scale.place(value) * (self.bottom - self.top)

    def frame(self, x_label: str, band: Band | None = None, *, bars: bool = False) -> None:
        """Draw both axes with their ticks, on top of the band; for bars only the horizontal axis."""
        if band is not None:
            self._shade(*band)
        for tick in () if bars else self.y_scale.ticks:
            self._rule(self.left, self.y(tick), self.right, self.y(tick))
            self.page.write(self.left - 8, self.y(tick) + 4, short(tick), "tick end")
        for tick in self.x_scale.ticks:
            if bars:
                self._rule(self.x(tick), self.top, self.x(tick), self.bottom)
            self.page.write(self.x(tick), self.bottom + 18, short(tick), "tick middle")
        if x_label:
            self.page.write((self.left + self.right) / 2, self.bottom + 37, x_label, "axis middle")

    def line(self, points: Points, colour: int) -> None:
        """Draw a line through the points."""
        number = colour % len(LIGHT)
        path = "M" + "L".join([f"{at(self.x(x))} {at(self.y(y))}" for x, y in points])
        style = f'class="s s{number}" fill="none" stroke="{LIGHT[number]}" stroke-width="2"'
        self.page.add(f'<path d="{path}" {style}/>')

    def _shade(self, start: float, end: float, name: str) -> None:
        """Fill the band from one value of x to another, with its name in the upper right corner."""
        left, right = self.x(start), self.x(end)
        size = f'width="{at(right - left)}" height="{at(self.bottom - self.top)}"'
        where = f'x="{at(left)}" y="{at(self.top)}" {size}'
        self.page.add(f'<rect {where} class="band" fill="{_INK["band"][0]}"/>')
        self.page.write(right - 6, self.top + 14, name, "axis end")

    def _rule(self, x1: float, y1: float, x2: float, y2: float) -> None:
        """Draw a grid line."""
        where = f'x1="{at(x1)}" y1="{at(y1)}" x2="{at(x2)}" y2="{at(y2)}"'
        self.page.add(f'<line {where} class="grid" stroke="{_INK["grid"][0]}"/>')
