"""What is shown of an outage: who came and who was served, over time."""

from __future__ import annotations

from itertools import pairwise

from ._chart import sparkline
from ._scale import short
from ._simulate_views import View, paragraph
from ._svg import small_multiples, steps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from ._simulate_views import Lines

# As many as are seen in a panel of the SVG chart.
_CELLS = 220
_LABEL = 9


class OutageView(View):
    """Lines of arrivals and answers, each on its own scale, which is written behind it."""

    head = ("peak", "well again", "goodput", "wasted")

    def __init__(self, results: Sequence[Any]) -> None:
        super().__init__(results)
        first = self.first
        self.legend = (
            f"peak: the most requests within {first.bin_seconds:g} s since it went away; well again: "
            f"when it serves four fifths of what it did ({first.goodput_before:.1f}/s), for good; goodput: "
            "answers in time since it is back; wasted: the share of its work for clients that had given up"
        )

    def title(self) -> str:
        first = self.first
        how = "does not answer" if first.hangs else "refuses"
        return (
            f"{first.clients} clients, a service that can do {first.capacity:.4g} requests a second. "
            f"It {how} for {first.away:g} s, then it is back, as strong as before. Seed {first.seed}."
        )

    def row(self, result: Any) -> tuple[str, ...]:
        goodput, wasted = f"{result.goodput_after:.1f}/s", f"{result.wasted_after:.0%}"
        return str(result.peak), _when(result), goodput, wasted

    def style(self, result: Any) -> str | None:
        return "red" if result.metastable else None

    def chart(self, width: int, encoding: str | None) -> Lines:
        room = max(10, width - _LABEL - 10)
        yield from paragraph("Requests that came, and answers in time, over time", width, "bold")
        yield " " * _LABEL + _axis(self.first, room), "dim"
        for result in self.results:
            yield result.strategy, self.style(result) or "bold"
            for name, counts in (("came", result.arrivals), ("served", result.served)):
                rates = _rates(counts, room, result.bin_seconds)
                line = sparkline(rates, width=room, encoding=encoding)
                yield f"  {name:{_LABEL - 2}}{line:{room}} {short(round(max(rates))) + '/s':>8}", None

    def words(self) -> Iterator[str]:
        high, low = self.most(_peak), self.least(_peak)
        if high is not low:
            yield (
                f"The herd: with {high.strategy} up to {high.peak} requests come within "
                f"{high.bin_seconds:g} s, with {low.strategy} {low.peak}."
            )
        down = [result.strategy for result in self.results if result.metastable]
        if down:
            yield (
                f"Still down {self.first.after:g} s after its return: {', '.join(down)}. Clients give up "
                "before their turn, and come again, so that the work is done for nobody: the failure has "
                "outlived its cause."
            )
        well = [f"{result.strategy} ({_when(result)})" for result in self.results if not result.metastable]
        if well:
            yield f"Well again: {', '.join(well)}."

    def svg(self) -> str:
        first = self.first
        cells = min(_CELLS, len(first.arrivals))
        wide = len(first.arrivals) * first.bin_seconds / cells
        panels = {
            f"{result.strategy}: well again {_when(result)}": {
                name: steps(_rates(counts, cells, first.bin_seconds), wide)
                for name, counts in (
                    ("requests that came", result.arrivals),
                    ("answers in time", result.served),
                )
            }
            for result in self.results
        }
        return small_multiples(
            f"A service is away for {first.away:g} s, and comes back",
            panels,
            x_label="seconds",
            y_label="a second",
            band=(first.before, first.before + first.away, "away"),
            caption=self.title(),
        )


def _when(result: Any) -> str:
    if result.metastable:
        return "never"
    return f"after {result.recovered_after:.1f} s" if result.recovered_after else "at once"


def _peak(result: Any) -> int:
    return int(result.peak)


def _rates(counts: Sequence[int], cells: int, bin_seconds: float) -> list[float]:
    """Counts in bins as rates a second, in so many cells, or one for each bin where there are fewer."""
    cells = min(cells, len(counts))
    edges = [len(counts) * number // cells for number in range(cells + 1)]
    return [sum(counts[start:end]) / ((end - start) * bin_seconds) for start, end in pairwise(edges)]


def _axis(result: Any, room: int) -> str:
    """When the service was away, above the lines."""
    total = result.before + result.away + result.after
    room = min(room, len(result.arrivals))
    gone, back = (round(room * moment / total) for moment in (result.before, result.before + result.away))
    span: int = max(back - gone - 2, 0)
    name = f" away {result.away:g} s "
    shown = name if len(name) <= span else ""
    return f"{'':{gone}}|{shown.center(span, '-')}|"
