"""The parts of an SVG chart: a page with its style, and areas with axes on it."""

from __future__ import annotations

from ._scale import short

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ._scale import Scale

    Box = tuple[float, float, float, float]

# Seven colours that are apart for all kinds of eyes, after Okabe and Ito: for light and for dark pages.
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


def _style() -> str:
    def rules(which: int, colours: Sequence[str]) -> str:
        ink = {name: pair[which] for name, pair in _INK.items()}
        found = [
            f".paper{{fill:{ink['paper']}}}.title,.panel,.figure{{fill:{ink['text']}}}",
            f".tick,.axis,.caption,.label{{fill:{ink['faint']}}}",
            f".grid{{stroke:{ink['grid']}}}.band{{fill:{ink['band']}}}",
        ]
        for number, colour in enumerate(colours):
            found.append(
                f".f{number}{{fill:{colour}}}.s{number}{{stroke:{colour}}}.c{number}{{fill:{colour}}}"
            )
        return "".join(found)

    return f"{_STYLE}{rules(0, LIGHT)}\n@media (prefers-color-scheme:dark){{{rules(1, DARK)}}}"


def at(value: float) -> str:
    """A coordinate: one decimal at most, the same everywhere."""
    text = f"{value:.1f}"
    return text[:-2].replace("-0", "0") if text.endswith(".0") else text


def escaped(text: str) -> str:
    """Text that may stand in SVG: what XML cannot hold is left out."""
    kept = "".join(
        [char for char in text if char >= " " and not "\ud800" <= char <= "\udfff" and char < "\ufffe"]
    )
    return kept.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")


def spread(places: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Places in order, moved apart so that no two are nearer than a gap, between two limits if they fit."""
    found: list[float] = []
    for place in places:
        found.append(max(place, found[-1] + gap) if found else place)
    over = found[-1] - high if found else 0.0
    if over > 0:
        limit = high
        for index in range(len(found) - 1, -1, -1):
            found[index] = limit = min(found[index], limit)
            limit -= gap
    return found


class Page:
    """What is drawn so far: a title above, with what the figures are; a caption below; room in between."""

    def __init__(self, title: str, what: str, caption: str, width: int, height: int = 0) -> None:
        self.width, self.height = width, height
        self._title, self._caption = title, wrapped(caption, int((width - 40) / 6.2))
        self._parts: list[str] = []
        self._top = 48.0
        if what:
            self.write(20, self._top + 2, what, "axis")
            self._top += 20

    def grow(self, room: float) -> None:
        """Makes the page as high as its contents need."""
        self.height = int(self._top + room + 18 * len(self._caption) + 14)

    def inside(self, left: float, right: float, bottom: float) -> Box:
        """Left, top, right and bottom of what is free for drawing."""
        return left, self._top, self.width - right, self.height - bottom - 18 * len(self._caption) - 10

    def add(self, part: str) -> None:
        self._parts.append(part)

    def write(self, x: float, y: float, text: str, kind: str) -> None:
        self.add(f'<text x="{at(x)}" y="{at(y)}" class="{kind}"{_fallback(kind)}>{escaped(text)}</text>')

    def shape(self, tag: str, colour: int, **places: float) -> None:
        """A filled shape of a colour."""
        where = " ".join(f'{name}="{at(value)}"' for name, value in places.items())
        number = colour % len(LIGHT)
        self.add(f'<{tag} {where} class="f{number}" fill="{LIGHT[number]}"/>')

    def legend(self, names: Sequence[str]) -> None:
        """Names with their colours, in a row below the title."""
        x = 20.0
        for colour, name in enumerate(names):
            self.shape("rect", colour, x=x, y=self._top - 6, width=14, height=4, rx=2)
            self.write(x + 20, self._top, name, "label")
            x += 20 + 7.4 * len(name) + 18
        self._top += 24

    def text(self) -> str:
        """The whole file."""
        size = f'viewBox="0 0 {self.width} {self.height}" width="{self.width}" height="{self.height}"'
        paper, ink = _INK["paper"][0], _INK["text"][0]
        head = [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{escaped(self._title)}">',
            f"<title>{escaped(self._title)}</title>",
            f"<style>{_style()}</style>",
            f'<rect class="paper" width="{self.width}" height="{self.height}" rx="6" fill="{paper}"/>',
            f'<text x="20" y="30" class="title" fill="{ink}" font-size="16">{escaped(self._title)}</text>',
        ]
        first = self.height - 18 * len(self._caption) + 1
        for number, line in enumerate(self._caption):
            self.write(20, first + 18 * number, line, "caption")
        return "\n".join([*head, *self._parts, "</svg>", ""])


def _fallback(kind: str) -> str:
    """For viewers without style sheets: a colour, and where the text is anchored."""
    anchor = {"middle": ' text-anchor="middle"', "end": ' text-anchor="end"'}
    found = "".join([anchor[word] for word in kind.split() if word in anchor])
    faint = kind.split()[0] in ("tick", "axis", "caption", "label")
    return f'{found} fill="{_INK["faint" if faint else "text"][0]}" font-size="12"'


def wrapped(text: str, width: int) -> list[str]:
    """Lines of so many letters at most, where words allow."""
    lines: list[str] = []
    for word in text.split():
        if lines and len(lines[-1]) + 1 + len(word) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


class Area:
    """A rectangle with two axes, in which values have places."""

    def __init__(self, page: Page, box: Box, x_scale: Scale, y_scale: Scale) -> None:
        self.page, (self.left, self.top, self.right, self.bottom) = page, box
        self.x_scale, self.y_scale = x_scale, y_scale

    def x(self, value: float) -> float:
        return self.left + self.x_scale.place(value) * (self.right - self.left)

    def y(self, value: float) -> float:
        return self.bottom - self.y_scale.place(value) * (self.bottom - self.top)

    def frame(self, x_label: str, band: tuple[float, float, str] | None = None) -> None:
        """Both axes with their figures; and a span of x that is shaded and named."""
        if band is not None:
            self._shade(*band)
        for tick in self.y_scale.ticks:
            self._rule(self.left, self.y(tick), self.right, self.y(tick))
            self.page.write(self.left - 8, self.y(tick) + 4, short(tick), "tick end")
        for tick in self.x_scale.ticks:
            self.page.write(self.x(tick), self.bottom + 18, short(tick), "tick middle")
        if x_label:
            self.page.write((self.left + self.right) / 2, self.bottom + 37, x_label, "axis middle")

    def below(self, x_label: str) -> None:
        """Only the axis below, with lines upwards."""
        for tick in self.x_scale.ticks:
            self._rule(self.x(tick), self.top, self.x(tick), self.bottom)
            self.page.write(self.x(tick), self.bottom + 18, short(tick), "tick middle")
        self.page.write((self.left + self.right) / 2, self.bottom + 37, x_label, "axis middle")

    def line(self, points: Sequence[tuple[float, float]], colour: int, *, dots: bool = False) -> None:
        number = colour % len(LIGHT)
        path = f'd="{self._path(points)}" class="s s{number}" fill="none" stroke="{LIGHT[number]}"'
        self.page.add(f'<path {path} stroke-width="2"/>')
        for x, y in points if dots else ():
            self.page.shape("circle", colour, cx=self.x(x), cy=self.y(y), r=3)

    def steps(self, points: Sequence[tuple[float, float]], colour: int) -> None:
        """The surface below a line."""
        if not points:
            return
        number, floor = colour % len(LIGHT), at(self.bottom)
        path = f"M{at(self.x(points[0][0]))} {floor}L{self._path(points)[1:]}V{floor}Z"
        self.page.add(f'<path d="{path}" class="f{number}" fill="{LIGHT[number]}"/>')

    def _path(self, points: Sequence[tuple[float, float]]) -> str:
        return "M" + "L".join([f"{at(self.x(x))} {at(self.y(y))}" for x, y in points])

    def _shade(self, start: float, end: float, name: str) -> None:
        left, right = self.x(start), self.x(end)
        size = f'width="{at(right - left)}" height="{at(self.bottom - self.top)}"'
        where = f'x="{at(left)}" y="{at(self.top)}" {size}'
        self.page.add(f'<rect {where} class="band" fill="{_INK["band"][0]}"/>')
        if name:
            self.page.write(right - 6, self.top + 14, name, "axis end")

    def _rule(self, x1: float, y1: float, x2: float, y2: float) -> None:
        where = f'x1="{at(x1)}" y1="{at(y1)}" x2="{at(x2)}" y2="{at(y2)}"'
        self.page.add(f'<line {where} class="grid" stroke="{_INK["grid"][0]}"/>')
