"""What is shown of a simulation: a table, a chart for the terminal, what one sees in words, a chart as SVG.

A view holds the results of one model under some strategies, all with the same parameters.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from textwrap import wrap

from ._chart import bars
from ._svg import bar_chart

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

    Lines = Iterator[tuple[str, str | None]]
    Figure = Callable[[Any], float]


class View(ABC):
    """What all models have in common: lines of text, each with the style it is said in."""

    head: tuple[str, ...]
    legend: str

    def __init__(self, results: Sequence[Any]) -> None:
        self.results = results
        self.first = results[0]

    def lines(self, width: int, encoding: str | None) -> Lines:
        """All that is shown, in so many columns."""
        yield from paragraph(self.title(), width, "bold")
        yield "", None
        yield from self._table(width)
        yield from paragraph(self.legend, width, "dim")
        yield "", None
        yield from self.chart(width, encoding)
        yield "", None
        for sentences in self.words():
            yield from paragraph(sentences, width)

    def _table(self, width: int) -> Lines:
        """Figures side by side; where they do not fit, one below the other."""
        rows = [(result.strategy, *self.row(result)) for result in self.results]
        head = ("strategy", *self.head)
        widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
        if sum(widths) + 2 * (len(widths) - 1) > width:
            for result, row in zip(self.results, rows, strict=True):
                yield row[0], "bold"
                for label, figure in zip(self.head, row[1:], strict=True):
                    yield f"  {label}: {figure}", self.style(result)
            return
        yield _row(head, widths), "bold"
        for result, row in zip(self.results, rows, strict=True):
            yield _row(row, widths), self.style(result)

    def least(self, figure: Figure) -> Any:
        return min(self.results, key=figure)

    def most(self, figure: Figure) -> Any:
        return max(self.results, key=figure)

    def bars(self, what: str, figure: Figure, unit: str, width: int, encoding: str | None) -> Lines:
        yield from paragraph(what, width, "bold")
        found = {result.strategy: figure(result) for result in self.results}
        for line in bars(found, width=width, unit=unit, encoding=encoding).split("\n"):
            yield line, None

    def style(self, result: Any) -> str | None:
        """How the row of a result is said."""
        return None

    @abstractmethod
    def title(self) -> str:
        """What was simulated, in one sentence."""

    @abstractmethod
    def row(self, result: Any) -> tuple[str, ...]:
        """The figures of one strategy, for the table."""

    @abstractmethod
    def chart(self, width: int, encoding: str | None) -> Lines:
        """What can be drawn with letters."""

    @abstractmethod
    def words(self) -> Iterator[str]:
        """What one sees, out of these very figures."""

    @abstractmethod
    def svg(self) -> str:
        """The chart as a file."""


def paragraph(text: str, width: int, style: str | None = None) -> Lines:
    for line in wrap(text, width, break_on_hyphens=False):
        yield line, style


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    """The name to the left, figures to the right."""
    figures = [cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True)]
    return "  ".join([cells[0].ljust(widths[0]), *figures])


def percent(share: float) -> str:
    return f"{100 * share:.4g}%"


class ContentionView(View):
    head = ("writes", "for each client", "seconds")
    legend = "writes: tried by all clients together; seconds: until the last client is done"

    def title(self) -> str:
        first = self.first
        runs = f"the mean of {first.runs} runs" if first.runs > 1 else "one run"
        return f"{first.clients} clients write one versioned row at once: {runs}, seed {first.seed}."

    def row(self, result: Any) -> tuple[str, ...]:
        return f"{result.calls:.0f}", f"{result.calls / result.clients:.1f}", f"{result.seconds:.1f}"

    def chart(self, width: int, encoding: str | None) -> Lines:
        yield from self.bars("Writes", _calls, "", width, encoding)
        yield "", None
        yield from self.bars("Seconds", _seconds, " s", width, encoding)

    def words(self) -> Iterator[str]:
        few, many, soon, late = (
            self.least(_calls),
            self.most(_calls),
            self.least(_seconds),
            self.most(_seconds),
        )
        each = f"{few.calls / few.clients:.1f} writes"
        if few is many:
            yield f"At best each client writes once. With {few.strategy} it takes {each}."
            return
        yield (
            f"At best each client writes once. With {few.strategy} it takes {each}, the fewest here; with "
            f"{many.strategy}, {many.calls / many.clients:.1f}. Soonest done is {soon.strategy}, after "
            f"{soon.seconds:.1f} s; last is {late.strategy}, after {late.seconds:.1f} s."
        )

    def svg(self) -> str:
        return bar_chart(
            f"{self.first.clients} clients write one row at once",
            {f"{result.strategy} ({result.seconds:.1f} s)": result.calls for result in self.results},
            x_label="writes tried until all clients are done",
            caption=f"In brackets: until the last client is done. {self.title()}",
        )


def _calls(result: Any) -> float:
    return float(result.calls)


def _seconds(result: Any) -> float:
    return float(result.seconds)


class BudgetsView(View):
    head = ("succeed", "load", "requests", "refused")
    legend = (
        "succeed: calls that do so in the end; load: requests for each call; "
        "refused: calls that a breaker turned away"
    )

    def title(self) -> str:
        first = self.first
        return (
            f"{first.clients} clients call {first.rate:g} times a second each, for {first.seconds:g} s; "
            f"the server fails {percent(first.failure_rate)} of all requests. Seed {first.seed}."
        )

    def row(self, result: Any) -> tuple[str, ...]:
        return f"{result.success_rate:.1%}", f"{result.load:.2f}", str(result.requests), str(result.refused)

    def chart(self, width: int, encoding: str | None) -> Lines:
        yield from self.bars(
            "Calls that succeed", lambda found: 100 * found.success_rate, "%", width, encoding
        )
        yield "", None
        yield from self.bars("Load: requests for each call", _load, "", width, encoding)

    def words(self) -> Iterator[str]:
        alone, good, light = 1 - self.first.failure_rate, self.most(_success), self.least(_load)
        yield (
            f"Without retries {percent(alone)} of calls would succeed. Retries pay with load for more: "
            f"most succeed with {good.strategy}, {good.success_rate:.1%} at {good.load:.2f} times the load."
        )
        if light is not good:
            yield (
                f"The least load is that of {light.strategy}: {light.load:.2f} times, and "
                f"{light.success_rate:.1%} succeed. A budget bounds the load when much fails, and is hardly "
                "felt when little does: compare with --failure-rate 0.05."
            )

    def svg(self) -> str:
        return bar_chart(
            f"Load on a server that fails {percent(self.first.failure_rate)} of all requests",
            {
                f"{result.strategy} ({result.success_rate:.0%} succeed)": result.load
                for result in self.results
            },
            x_label="requests for each call",
            caption=self.title(),
        )


def _load(result: Any) -> float:
    return float(result.load)


def _success(result: Any) -> float:
    return float(result.success_rate)


class LayersView(View):
    head = ("reach each layer", "at the bottom", "succeed", "seconds")
    legend = (
        "reach each layer, at the bottom: for each call of the user, from the first layer to the one that "
        "fails; seconds: that a call of the user takes"
    )

    def title(self) -> str:
        first = self.first
        return (
            f"{first.depth} layers of services, each with retries, on one that fails "
            f"{percent(first.failure_rate)} of all requests; {first.calls} calls of a user, "
            f"seed {first.seed}."
        )

    def row(self, result: Any) -> tuple[str, ...]:
        reached = " ".join([f"{count / result.calls:.4g}" for count in result.reached])
        share = f"{result.succeeded / result.calls:.1%}"
        return reached, f"{result.amplification:.4g}", share, f"{result.seconds:.1f}"

    def chart(self, width: int, encoding: str | None) -> Lines:
        yield from self.bars(
            "Calls at the bottom for each call of the user", _amplification, "", width, encoding
        )

    def words(self) -> Iterator[str]:
        high, low = self.most(_amplification), self.least(_amplification)
        yield (
            f"With {high.strategy} one call of the user becomes {high.amplification:.4g} at the bottom"
            + (f"; with {low.strategy}, {low.amplification:.4g}." if low is not high else ".")
        )

    def svg(self) -> str:
        return bar_chart(
            f"What {self.first.depth} layers of retries make of one call",
            {result.strategy: result.amplification for result in self.results},
            x_label="calls at the bottom for each call of the user",
            caption=self.title(),
        )


def _amplification(result: Any) -> float:
    return float(result.amplification)
