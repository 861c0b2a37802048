"""Draw the pictures of the documentation: `python tests/tools/pictures/draw.py` writes docs/images.

Charts show results of `redouble.simulate` with fixed seeds, so they cannot differ from the code; a test fails when one
is stale. The dashboard shows what the code on its page counts. Diagrams are in `diagrams.py`.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pictures.diagrams import breaker, guards, sequence
from pictures.line_chart import LogScale, dotted_line, line_chart, name_ends, scales_of
from pictures.page import PhonePage

from redouble._base.table import duration, share
from redouble._cli.charts import Scale
from redouble._cli.svg import LIGHT, Area, Page, at, steps
from redouble.simulate import CONTENTION_STRATEGIES, contention, layers, outage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from pictures.line_chart import Lines

    from redouble.metrics import Counts, Snapshot

DOCS = Path(__file__).resolve().parents[3] / "docs"
FOLDER = DOCS / "images"
DASHBOARD_PAGE = DOCS / "how-to" / "observe-retries.md"
SEED = 1


def herd() -> str:
    """When clients come back that have failed in the same instant."""
    before, shown, away = 20.0, 2.0, 5.0
    panels = {}
    for strategy, name in (("no_jitter", "without jitter"), ("full_jitter", "with jitter")):
        found = outage(strategy, before=before, away=away, after=9.0, hangs=False, seed=SEED)
        arrivals = found.arrivals[round((before - shown) / found.bin_seconds) :]
        title = f"{strategy.replace('_', ' ')}: up to {found.peak:,} of 1,000 clients at once"
        panels[title] = {name: [(x - shown, y) for x, y in steps(arrivals, found.bin_seconds)]}
    return stacked(
        "When clients come back after 5 s of outage",
        panels,
        colours={"without jitter": 1, "with jitter": 0},
        x_label="seconds since the service went down",
        y_label="requests in each tenth of a second",
        caption="Without jitter all clients come back in the same instants, after 1, 3 and 7 s. With jitter each comes "
        "at its own moment. 1,000 clients, four attempts, base 1 s, cap 30 s. "
        f"outage(away=5, after=9, hangs=False), seed {SEED}.",
        band=(0.0, away, "down"),
    )


def metastable() -> str:
    """What a service does before, during and after an outage, with guards and without."""
    panels = {}
    served, wasted = "answers in time", "answers that nobody waits for"
    for strategy, title in (
        ("full_jitter", "retries, no guard"),
        ("full_jitter+budget", "with a budget"),
        ("full_jitter+breaker", "with a breaker"),
    ):
        found = outage(strategy, bin_seconds=1.0, seed=SEED)
        panels[title] = {served: steps(found.served, 1.0), wasted: steps(found.wasted, 1.0)}
    return stacked(
        "The outage is over, the failure is not",
        panels,
        colours={served: 0, wasted: 1},
        x_label="seconds",
        y_label="requests handled, in each second",
        caption="Without a guard the service stays fully busy after the outage, but for clients that have timed out: "
        "retries keep its queue long. A budget or a breaker takes that load away. 1,000 clients, full jitter, "
        f"four attempts, timeout 1 s, capacity 120 a second. outage(), seed {SEED}.",
        band=(20.0, 50.0, "down"),
    )


def stacked(
    title: str,
    panels: Mapping[str, Lines],
    *,
    colours: Mapping[str, int],
    x_label: str,
    y_label: str,
    caption: str,
    band: tuple[float, float, str],
) -> str:
    """Return panels one below the other, with the same axes. Each series has a colour."""
    every = [point for lines in panels.values() for points in lines.values() for point in points]
    x_scale, y_scale = Scale([x for x, _ in every], fit=True), Scale([y for _, y in every], count=4)
    step, height = 168, 118
    together = max([len(lines) for lines in panels.values()])
    page = PhonePage(title, y_label, caption, step * len(panels) + 20 + 24 * (together > 1))
    if together > 1:
        page.legend(list(colours))
    left, top, right, _ = page.inside(left=58, right=20, bottom=0)
    for number, (name, lines) in enumerate(panels.items()):
        y = top + step * number + 18
        area = Area(page, (left, y, right, y + height), x_scale, y_scale)
        page.write(left, y - 8, name, "panel")
        area.frame(x_label if number + 1 == len(panels) else "", band)
        for label, points in lines.items():
            area.line(points, colours[label])
    return page.text()


def contended() -> str:
    """Calls and time that many writers of one row need, by how they wait."""
    found = {
        strategy.replace("_", " "): [
            contention(strategy, clients=clients, runs=5, seed=SEED) for clients in (10, 20, 40, 60, 80, 100)
        ]
        for strategy in CONTENTION_STRATEGIES
    }
    return two_charts(
        "Many clients write one row at once",
        "by how they wait before they try again",
        {
            "writes tried, by all together": (curves(found, "clients", "calls"), False),
            "seconds until all are done (log scale)": (curves(found, "clients", "seconds"), True),
        },
        x_label="clients that begin at once",
        caption="Without backoff it is fast and costs the most writes; without jitter it takes a minute and saves "
        "little; with jitter it is cheap and fast (writes of equal and full jitter are alike). Waits begin at 10 ms, "
        f"decorrelated at 5 ms, and end at 2 s; a message takes 10 ms. Mean of contention(runs=5), seed {SEED}.",
    )


def layered() -> str:
    """Calls that reach what is below all layers, for one call above them."""
    found = {
        name: [
            (depth, layers(strategy, depth=depth, calls=calls, seed=SEED).amplification)
            for depth in range(1, 6)
        ]
        for name, strategy, calls in (
            ("each retries", "independent", 1),
            ('nested="defer"', "defer", 1),
            ('nested="stop"', "stop", 1),
            ("budget of a tenth", "budget", 200),
        )
    }
    return line_chart(
        "Retries of layers multiply",
        found,
        x_label="layers that retry, one above the other",
        y_label="calls that reach the last service, for one call of the user (log scale)",
        caption="Each layer has four attempts, and the last service always fails. Alone they multiply: 4, 16, 64, 256, "
        "1,024. If calls within a retried call defer to it they add up: 4, 7, 10, 13, 16. In one process, calls stop at "
        "what an inner call has retried: 4. With budgets hardly anything is added. "
        f"layers(), budgets over 200 calls, seed {SEED}.",
        log_y=True,
    )


def budget_load() -> str:
    """Load of a server after a short outage, and what it gets done, by its capacity."""
    demand = 100
    found = {
        name: [
            outage(strategy, away=0.1, after=40.0, capacity=demand * tenths / 10, bin_seconds=1.0, seed=SEED)
            for tenths in (8, 9, 10, 11, 12, 14, 17, 20)
        ]
        for name, strategy in (
            ("no retries", "no_retries"),
            ("three retries", "full_jitter"),
            ("RatioBudget", "full_jitter+budget"),
        )
    }

    def mean(of: str) -> Lines:
        """Return the mean of a count over the last 30 seconds, by the capacity."""
        return {
            name: [(one.capacity / demand, sum(getattr(one, of)[-30:]) / 30) for one in line]
            for name, line in found.items()
        }

    return two_charts(
        "Retries after an interruption of 0.1 s",
        "by the capacity of the server",
        {
            "requests a second that arrive": (mean("arrivals"), False),
            "calls a second that succeed": (mean("served"), False),
        },
        x_label="capacity, as a multiple of the demand without retries",
        caption="With three retries and no budget the server never recovers, even with twice the capacity that it needs. "
        "With a budget it recovers if its capacity covers the demand. 1,000 clients, 100 calls a second, timeout 1 s. "
        f"Mean of 30 s, from 10 s after the interruption: outage(away=0.1, after=40), seed {SEED}.",
    )


def curves(found: Mapping[str, Sequence[object]], x: str, y: str) -> Lines:
    """Two fields of results, as points."""
    return {name: [(getattr(one, x), getattr(one, y)) for one in line] for name, line in found.items()}


def two_charts(
    title: str, what: str, charts: Mapping[str, tuple[Lines, bool]], *, x_label: str, caption: str
) -> str:
    """Two charts one below the other, over the same x; lines of one name have one colour, and their name at the end."""
    step, height = 240, 180
    page = PhonePage(title, what, caption, step * len(charts) + 28)
    names = max([len(name) for lines, _ in charts.values() for name in lines])
    left, top, right, _ = page.inside(left=58, right=24 + 7.6 * names, bottom=0)
    for number, (name, (lines, log)) in enumerate(charts.items()):
        y = top + step * number + 22
        area = Area(page, (left, y, right, y + height), *scales_of(lines, log=log, count=5))
        page.write(left, y - 12, name, "panel")
        area.frame(x_label if number + 1 == len(charts) else "")
        for colour, points in enumerate(lines.values()):
            dotted_line(area, points, colour)
        name_ends(area, lines)
    return page.text()


# The dashboard

# Where columns begin; the last one ends there.
LEFT, TIMES, RIGHT = 20, 150, 500
ROW, GUARDS, BAR = 134, 78, 12
COLOURS = {"first try": 0, "recovered": 2, "gave up": 1, "refused": 3}


def dashboard() -> str:
    """What the code on the page about observing has counted."""
    found = counted()
    calls = sum(counts.calls for counts in found.policies.values())
    page = PhonePage(
        "Retries at a glance",
        "",
        "Retries save all calls of orders that fail at first. At the end the payments service breaks down: its "
        "circuit opens, and calls are refused at once. The figures are those of the table on the page: "
        f"Counters.snapshot() after {calls:,} calls on fake time, seed 7.",
        ROW * len(found.policies) + GUARDS + 40,
    )
    for number, (outcome, colour) in enumerate(COLOURS.items()):
        page.shape("rect", colour, x=LEFT + 122 * number, y=50, width=14, height=4, rx=2)
        page.write(LEFT + 20 + 122 * number, 56, outcome, "label")
    times = LogScale([time for counts in found.policies.values() for time in took(counts)])
    for number, (name, counts) in enumerate(found.policies.items()):
        draw_policy(page, 70.0 + ROW * number, name, counts, times)
    draw_guards(page, 70.0 + ROW * len(found.policies), found)
    return page.text()


def counted() -> Snapshot:
    """What is counted by the block of the page that prints the table."""
    page = DASHBOARD_PAGE.read_text("utf-8")
    blocks = re.findall(r"^```python[^\n]*\n(.*?)^```$", page, flags=re.DOTALL | re.MULTILINE)
    (block,) = [block for block in blocks if "print(counters.table())" in block]
    namespace: dict[str, Any] = {}
    with contextlib.redirect_stdout(io.StringIO()):
        exec(block, namespace)
    return namespace["counters"].snapshot()


def took(counts: Counts) -> list[float]:
    """p50 and p99 of the calls of a policy."""
    return [counts.call_seconds.quantile(part) or 0.0 for part in (0.5, 0.99)]


def draw_policy(page: Page, top: float, name: str, counts: Counts, times: Scale) -> None:
    rule(page, top)
    page.write(LEFT, top + 24, name, "panel")
    page.write(RIGHT, top + 24, f"{counts.calls:,} calls", "figure end")
    outcomes = dict(zip(COLOURS, outcomes_of(counts), strict=True))
    x, width = float(LEFT), 340 / counts.calls
    for outcome, count in outcomes.items():
        page.shape("rect", COLOURS[outcome], x=x, y=top + 36, width=width * count, height=BAR)
        x += width * count
    page.write(RIGHT, top + 47, f"{share(counts.success_rate)} success", "figure end")
    told = ", ".join([f"{count:,} {outcome}" for outcome, count in outcomes.items() if count])
    page.write(LEFT, top + 68, told, "axis")
    page.write(LEFT, top + 96, "retries/call", "axis")
    page.write(LEFT, top + 118, f"{counts.retries_per_call or 0.0:.2f}", "figure")
    page.write(TIMES, top + 96, "p50 to p99 (log scale)", "axis")
    draw_times(page, top + 118, took(counts), times)
    page.write(RIGHT, top + 96, "waited", "axis end")
    page.write(RIGHT, top + 118, duration(counts.wait_seconds.total), "figure end")


def outcomes_of(counts: Counts) -> list[int]:
    failed = [sum(by_reason.values()) for by_reason in (counts.gave_up, counts.refused)]
    return [counts.succeeded or 0, counts.recovered, *failed]


def draw_times(page: Page, line: float, found: list[float], times: Scale) -> None:
    low, high = (TIMES + 5 + 120 * times.place(time) for time in found)
    page.shape("rect", 6, x=low, y=line - 7, width=high - low, height=4)
    for x in (low, high):
        page.shape("circle", 6, cx=x, cy=line - 5, r=5)
    page.write(TIMES + 145, line, " to ".join([duration(time) for time in found]), "figure")


def draw_guards(page: Page, top: float, found: Snapshot) -> None:
    rule(page, top)
    ((budget, level),), ((breaker, state),) = found.budgets.items(), found.breakers.items()
    tokens, capacity, line = level.tokens or 0.0, level.capacity or 1.0, top + 28
    page.write(LEFT, line, f"budget {budget}", "panel")
    track = f'x="{TIMES + 40}" y="{at(line - 11)}" width="140" height="{BAR}"'
    page.add(f'<rect {track} class="f6" fill="{LIGHT[6]}" fill-opacity="0.25"/>')
    page.shape("rect", 0, x=TIMES + 40, y=line - 11, width=140 * tokens / capacity, height=BAR)
    page.write(RIGHT, line, f"{tokens:.4g} of {capacity:.4g} tokens", "figure end")
    page.write(LEFT, line + 30, f"breaker {breaker}", "panel")
    page.shape("circle", 2 if state == "closed" else 1, cx=TIMES + 46, cy=line + 25, r=6)
    page.write(TIMES + 60, line + 30, state, "figure")


def rule(page: Page, y: float) -> None:
    page.add(f'<line x1="{LEFT}" y1="{at(y)}" x2="{RIGHT}" y2="{at(y)}" class="grid" stroke="#e3e6ea"/>')


PICTURES = {
    "herd.svg": herd, "metastable.svg": metastable, "contention.svg": contended,
    "layers.svg": layered, "budget-load.svg": budget_load, "dashboard.svg": dashboard,
    "breaker.svg": breaker, "sequence.svg": sequence, "guards.svg": guards,
}  # fmt: skip


def pictures() -> dict[str, str]:
    """The text of each picture, by the name of its file."""
    return {name: draw() for name, draw in PICTURES.items()}


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in pictures().items():
        (FOLDER / name).write_text(text, encoding="utf-8", newline="\n")
        print(f"wrote {FOLDER / name}", file=sys.stderr)
