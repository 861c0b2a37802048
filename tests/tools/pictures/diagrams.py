"""Diagrams of the documentation: boxes, arrows and words, in the style of the charts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pictures.page import PhonePage

from redouble._cli.svg import LIGHT, at

if TYPE_CHECKING:
    from collections.abc import Sequence

    Point = tuple[float, float]

# Colours, by their number in the palette.
BLUE, ORANGE, GREEN, GREY = 0, 1, 2, 6


class Diagram(PhonePage):
    """A page with boxes and arrows."""

    def box(self, x: float, y: float, width: float, height: float, colour: int, *lines: str) -> None:
        """Draw a box with its name, and lines below the name."""
        where = f'x="{at(x)}" y="{at(y)}" width="{at(width)}" height="{at(height)}" rx="8"'
        paint = f'class="s s{colour} f{colour}" fill="{LIGHT[colour]}" stroke="{LIGHT[colour]}"'
        self.add(f'<rect {where} {paint} style="fill-opacity:0.12" fill-opacity="0.12" stroke-width="2"/>')
        first = y + height / 2 - 9.5 * (len(lines) - 1) + 5
        for number, line in enumerate(lines):
            kind = "panel middle" if number == 0 else "tick middle"
            self.write(x + width / 2, first + 19 * number, line, kind)

    def arrow(self, colour: int, points: Sequence[Point], *, dashed: bool = False) -> None:
        """Draw a line through the points, with a head at the last."""
        path = "M" + "L".join([f"{at(x)} {at(y)}" for x, y in points])
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        paint = f'class="s s{colour}" fill="none" stroke="{LIGHT[colour]}" stroke-width="2"{dash}'
        self.add(f'<path d="{path}" {paint}/>')
        (x0, y0), (x1, y1) = points[-2:]
        length = ((x1 - x0) ** 2 + (y1 - y0) ** 2) ** 0.5
        dx, dy = (x1 - x0) / length * 9, (y1 - y0) / length * 9
        corners = [(x1, y1), (x1 - dx - dy / 2, y1 - dy + dx / 2), (x1 - dx + dy / 2, y1 - dy - dx / 2)]
        places = " ".join([f"{at(x)},{at(y)}" for x, y in corners])
        self.add(f'<polygon points="{places}" class="f{colour}" fill="{LIGHT[colour]}"/>')

    def line(self, x: float, top: float, bottom: float) -> None:
        """Draw a vertical line."""
        where = f'x1="{at(x)}" y1="{at(top)}" x2="{at(x)}" y2="{at(bottom)}"'
        self.add(f'<line {where} class="grid" stroke="#e3e6ea" stroke-width="2"/>')


def breaker() -> str:
    """Draw the states of a circuit breaker."""
    page = Diagram(
        "States of a circuit breaker",
        "",
        "close() closes the circuit and open() opens it, from every state. A circuit that was opened by open() stays open "
        "until close().",
        276,
    )
    page.box(30, 62, 170, 70, GREEN, "closed", "calls are made")
    page.box(320, 62, 170, 70, ORANGE, "open", "calls are refused")
    page.box(175, 238, 170, 70, BLUE, "half-open", "probes are made")
    page.arrow(ORANGE, [(200, 82), (320, 82)])
    page.write(260, 72, "too many", "label middle")
    page.write(260, 100, "failures", "label middle")
    page.arrow(BLUE, [(450, 132), (450, 273), (345, 273)])
    page.write(442, 196, "open_for", "label end")
    page.write(442, 215, "has passed", "label end")
    page.arrow(ORANGE, [(300, 238), (300, 190), (345, 132)])
    page.write(292, 160, "a probe", "label end")
    page.write(292, 179, "failed", "label end")
    page.arrow(GREEN, [(175, 273), (75, 273), (75, 132)])
    page.write(83, 196, "enough probes", "label")
    page.write(83, 215, "succeeded", "label")
    return page.text()


def sequence() -> str:
    """Draw a call that succeeds at its third attempt."""
    page = Diagram(
        "A call that succeeds at its third attempt",
        "",
        "redouble classifies each failure, decides, waits, and makes the next attempt. The wait after a Retry-After is "
        "at least as long as the server asks. The caller sees one result, or at the end your exception with a note.",
        420,
    )
    caller, policy, server = 80.0, 250.0, 440.0
    for x, colour, name in (
        (caller, GREEN, "your code"),
        (policy, BLUE, "redouble"),
        (server, GREY, "server"),
    ):
        page.line(x, 84, 452)
        page.box(x - 62, 50, 124, 34, colour, name)
    page.arrow(GREEN, [(caller, 110), (policy, 110)])
    page.write((caller + policy) / 2, 104, "fetch(url)", "label middle")
    attempts = (
        (130, "attempt 1", "connection reset", ("transient: retry", "wait 0.63 s")),
        (236, "attempt 2", "503, Retry-After: 2", ("transient: retry", "wait 2.4 s")),
        (342, "attempt 3", "200", ()),
    )
    for y, name, answer, notes in attempts:
        page.arrow(BLUE, [(policy, y), (server, y)])
        page.write((policy + server) / 2, y - 6, name, "label middle")
        page.arrow(ORANGE if notes else GREEN, [(server, y + 32), (policy, y + 32)], dashed=True)
        page.write((policy + server) / 2, y + 26, answer, "label middle")
        for number, note in enumerate(notes):
            page.write(policy - 12, y + 50 + 19 * number, note, "label end")
    page.arrow(GREEN, [(policy, 408), (caller, 408)], dashed=True)
    page.write((caller + policy) / 2, 402, "the page", "label middle")
    return page.text()


def guards() -> str:
    """Draw where the guards of a policy are asked."""
    page = Diagram(
        "Where guards are asked",
        "",
        "The bulkhead is asked once for each call; its slot is held to the end. Throttle and breaker are asked before every "
        "attempt. The breaker and then the budget are asked before a wait: a retry that is not allowed is not waited for.",
        396,
    )
    left, width, middle = 145.0, 200.0, 245.0
    rows = (
        (50, GREEN, ("call",)),
        (106, BLUE, ("bulkhead", "is a slot free?")),
        (178, BLUE, ("throttle, breaker", "may it be sent now?")),
        (250, GREY, ("attempt",)),
        (306, BLUE, ("breaker, budget", "may it be retried?")),
        (378, GREY, ("wait",)),
    )
    heights = [34 if len(lines) == 1 else 50 for _, _, lines in rows]
    for (y, colour, lines), height in zip(rows, heights, strict=True):
        page.box(left, y, width, height, colour, *lines)
    for (y, _, _), height, (below, _, _) in zip(rows, heights, rows[1:], strict=False):
        page.arrow(GREY, [(middle, y + height), (middle, below)])
    page.arrow(GREY, [(left, 395), (45, 395), (45, 203), (left, 203)])
    page.write(53, 305, "next", "label")
    page.write(53, 324, "attempt", "label")
    page.write(middle + 10, 299, "failed", "label")
    for y, name in ((131, "BulkheadFull"), (203, "CircuitOpen"), (331, "your exception")):
        page.arrow(ORANGE, [(left + width, y), (385, y)])
        page.write(393, y + 5, name, "label")
    page.arrow(GREEN, [(left + width, 267), (385, 267)])
    page.write(393, 272, "result", "label")
    return page.text()
