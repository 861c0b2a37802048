"""Print the results of each model of ``simulate``: table, terminal chart, summary; and the SVG chart.

`CONTENTION`, `BUDGETS`, `LAYERS` and `OUTAGE` say how the results of one model are shown. Their texts are
format strings; the fields are those of a result, and those that ``derive`` adds.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from operator import attrgetter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from .._base.table import table
from .charts import bars, short, sparkline
from .output import print_text, wrap_text
from .svg import bar_chart, small_multiples, steps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    # The fields of a result and the derived ones, one object for each strategy.
    Figures = Sequence[Any]

# The most bins that can be told apart in a panel of the SVG chart; the width of a label in the terminal.
_CELLS, _LABEL = 220, 10


class View(NamedTuple):
    """How the results of a model are shown, one for each strategy, all with the same parameters.

    To add a column, add its head and a format string to ``columns``; a figure that a result does not have
    comes from ``derive``.
    """

    title: str
    # The cells of the table after the strategy, by the heads of their columns.
    columns: Mapping[str, str]
    legend: str
    # Return further fields for the texts.
    derive: Callable[[Any], dict[str, Any]]
    # Print the chart for the terminal: in a width, for an encoding.
    chart: Callable[[Figures, int, str | None], None]
    # Return what the figures show, in sentences.
    summary: Callable[[Figures], Iterator[str]]
    # Return the SVG chart, with a caption.
    draw: Callable[[Figures, str], str]

    def print(self, results: Sequence[Any], width: int, encoding: str | None) -> None:
        """Print title, table, legend, chart and summary, in lines of at most ``width`` columns.

        ``encoding`` is that of the output; without block characters in it the chart is in ASCII.
        """
        figures = self._figures(results)
        _paragraph(_filled(self.title, figures[0]), width, "bold")
        print_text("")
        self._print_table(figures, width)
        _paragraph(_filled(self.legend, figures[0]), width, "dim")
        print_text("")
        self.chart(figures, width, encoding)
        print_text("")
        for sentences in self.summary(figures):
            _paragraph(sentences, width)

    def svg(self, results: Sequence[Any]) -> str:
        """Return the SVG chart."""
        figures = self._figures(results)
        return self.draw(figures, _filled(self.title, figures[0]))

    def _figures(self, results: Sequence[Any]) -> Figures:
        """Return the fields of each result and the derived ones as attributes of one object."""
        return [SimpleNamespace(**result.as_dict(), **self.derive(result)) for result in results]

    def _print_table(self, figures: Figures, width: int) -> None:
        """Print the figures as a table, or as a list if the table is too wide.

        Strategies with which the service does not recover are red.
        """
        rows = [(one.strategy, *[_filled(text, one) for text in self.columns.values()]) for one in figures]
        head, *lines = table(("strategy", *self.columns), rows).split("\n")
        fits = max(map(len, (head, *lines))) <= width
        if fits:
            print_text(head, "bold")
        for one, line, (name, *cells) in zip(figures, lines, rows, strict=True):
            if fits:
                print_text(line, _style(one))
                continue
            print_text(name, "bold")
            for label, cell in zip(self.columns, cells, strict=True):
                print_text(f"  {label}: {cell}", _style(one))


def _filled(text: str, figures: Any) -> str:
    """Return a format string with the figures of one strategy put in."""
    return text.format_map(figures.__dict__)


def _paragraph(text: str, width: int, style: str | None = None) -> None:
    """Print text, wrapped to the width."""
    print_text(wrap_text(text, width, hanging=0), style)


def _style(one: Any) -> str | None:
    """Return the style of the row of a strategy: red if the service does not recover with it."""
    return "red" if getattr(one, "recovered", None) == "never" else None


def _percent(share: float) -> str:
    """Return a share in percent, without trailing zeros.

    >>> _percent(0.5), _percent(0.0125)
    ('50%', '1.25%')
    """
    return f"{100 * share:.4g}%"


def _extremes(figures: Figures, field: str) -> tuple[Any, Any]:
    """Return the strategies with the least and with the greatest value of a field."""
    return min(figures, key=attrgetter(field)), max(figures, key=attrgetter(field))


# Models whose results are a few figures for each strategy


def _print_bars(
    charts: Mapping[str, tuple[str, str]], figures: Figures, width: int, encoding: str | None
) -> None:
    """Print bar charts; ``charts`` has the field and its unit by the heading."""
    for number, (heading, (field, unit)) in enumerate(charts.items()):
        if number:
            print_text("")
        _paragraph(heading, width, "bold")
        values = {one.strategy: getattr(one, field) for one in figures}
        print_text(bars(values, width=width, unit=unit, encoding=encoding))


def _draw_bars(title: str, label: str, field: str, x_label: str, figures: Figures, caption: str) -> str:
    """Return an SVG bar chart of a field; ``label`` is the text beside each bar."""
    values = {_filled(label, one): getattr(one, field) for one in figures}
    return bar_chart(_filled(title, figures[0]), values, x_label=x_label, caption=caption)


def _contention(result: Any) -> dict[str, Any]:
    """Return the writes per client, and how many runs the figures are the mean of."""
    how_often = f"mean of {result.runs} runs" if result.runs > 1 else "one run"
    return {"each": result.calls / result.clients, "how_often": how_often}


def _contention_summary(figures: Figures) -> Iterator[str]:
    """Yield which strategy needs the fewest writes and which the most, the fastest and the slowest."""
    (few, many), (soon, late) = _extremes(figures, "calls"), _extremes(figures, "seconds")
    least = f"The minimum is one write per client. {few.strategy} needs {few.each:.1f}"
    if few is many:
        yield least + "."
        return
    yield (
        f"{least}, the fewest here; {many.strategy} needs {many.each:.1f}. The fastest is {soon.strategy} "
        f"with {soon.seconds:.1f} s; the slowest is {late.strategy} with {late.seconds:.1f} s."
    )


CONTENTION = View(
    title="{clients} clients write one versioned row at once: {how_often}, seed {seed}.",
    columns={"writes": "{calls:.0f}", "per client": "{each:.1f}", "seconds": "{seconds:.1f}"},
    legend="writes: attempts of all clients together; seconds: until the last client has succeeded",
    derive=_contention,
    chart=partial(_print_bars, {"Writes": ("calls", ""), "Seconds": ("seconds", " s")}),
    summary=_contention_summary,
    draw=partial(
        _draw_bars,
        "{clients} clients write one row at once",
        "{strategy} ({seconds:.1f} s)",
        "calls",
        "writes until all clients have succeeded; in brackets: seconds until then",
    ),
)


def _budgets(result: Any) -> dict[str, Any]:
    """Return the shares of requests that fail and of calls that succeed, in percent."""
    return {"failing": _percent(result.failure_rate), "succeeding": 100 * result.success_rate}


def _budgets_summary(figures: Figures) -> Iterator[str]:
    """Yield with which strategy most calls succeed, and with which the load is least."""
    light, good = _extremes(figures, "load")[0], _extremes(figures, "success_rate")[1]
    yield (
        f"Without retries {_percent(1 - good.failure_rate)} of calls would succeed. Most succeed with "
        f"{good.strategy}: {good.success_rate:.1%}, at {good.load:.2f} times the load."
    )
    if light is not good:
        yield (
            f"The least load has {light.strategy}: {light.load:.2f} times, and {light.success_rate:.1%} "
            "succeed. A budget limits the load when many requests fail, and hardly any retry when few fail: "
            "compare with --failure-rate 0.05."
        )


BUDGETS = View(
    title="{clients} clients make {rate:g} calls a second each, for {seconds:g} s; the server fails "
    "{failing} of all requests. Seed {seed}.",
    columns={
        "succeed": "{success_rate:.1%}",
        "load": "{load:.2f}",
        "requests": "{requests}",
        "refused": "{refused}",
    },
    legend="succeed: calls that succeed in the end; load: requests per call; refused: calls that a breaker "
    "rejected before their first attempt",
    derive=_budgets,
    chart=partial(
        _print_bars, {"Calls that succeed": ("succeeding", "%"), "Load: requests per call": ("load", "")}
    ),
    summary=_budgets_summary,
    draw=partial(
        _draw_bars,
        "Load on a server that fails {failing} of all requests",
        "{strategy} ({success_rate:.0%} succeed)",
        "load",
        "requests per call",
    ),
)


def _layers(result: Any) -> dict[str, Any]:
    """Return the calls at each layer per call of the user, and the share of calls that succeed."""
    per_call = " ".join([f"{count / result.calls:.4g}" for count in result.reached])
    share = result.succeeded / result.calls
    return {"failing": _percent(result.failure_rate), "per_call": per_call, "share": share}


def _layers_summary(figures: Figures) -> Iterator[str]:
    """Yield how many calls one call of the user becomes, at most and at least."""
    low, high = _extremes(figures, "amplification")
    yield (
        f"With {high.strategy} one call of the user becomes {high.amplification:.4g} at the bottom"
        + (f"; with {low.strategy}, {low.amplification:.4g}." if low is not high else ".")
    )


LAYERS = View(
    title="{depth} layers of services, each with retries, above a service that fails {failing} of all "
    "requests; {calls} calls of a user, seed {seed}.",
    columns={
        "reach each layer": "{per_call}",
        "at the bottom": "{amplification:.4g}",
        "succeed": "{share:.1%}",
        "seconds": "{seconds:.1f}",
    },
    legend="reach each layer, at the bottom: calls per call of the user, from the first layer to the failing "
    "service; seconds: duration of a call of the user",
    derive=_layers,
    chart=partial(_print_bars, {"Calls at the bottom per call of the user": ("amplification", "")}),
    summary=_layers_summary,
    draw=partial(
        _draw_bars,
        "One call through {depth} layers of retries",
        "{strategy}",
        "amplification",
        "calls at the bottom per call of the user",
    ),
)


# An outage: arrivals and answers over time


def _outage(result: Any) -> dict[str, Any]:
    """Return in words how the service fails, and when it recovered."""
    after = result.recovered_after
    recovered = "never" if after is None else f"after {after:.1f} s" if after else "at once"
    return {"how": "does not answer" if result.hangs else "refuses", "recovered": recovered}


def _outage_chart(figures: Figures, width: int, encoding: str | None) -> None:
    """Print two lines for each strategy: requests that arrived, and those that were answered in time.

    All lines have one scale, so that strategies can be compared; the maximum of each is behind it.
    """
    room = max(10, width - _LABEL - 10)
    lines = [
        [_rates(counts, room, one.bin_seconds) for counts in (one.arrivals, one.served)] for one in figures
    ]
    most = max([max(rates) for pair in lines for rates in pair])
    heading = f"Requests, and answers in time, over time (full height: {short(round(most))}/s)"
    _paragraph(heading, width, "bold")
    print_text(" " * _LABEL + _axis(figures[0], room), "dim")
    for one, pair in zip(figures, lines, strict=True):
        print_text(one.strategy, _style(one) or "bold")
        for name, rates in zip(("arrived", "served"), pair, strict=True):
            line = sparkline(rates, most=most, encoding=encoding)
            print_text(f"  {name:{_LABEL - 2}}{line:{room}} {short(round(max(rates))) + '/s':>8}")


def _outage_summary(figures: Figures) -> Iterator[str]:
    """Yield the highest and lowest peak, and the strategies under which the service recovers or does not.

    A service that does not recover is busy with requests whose clients have given up.
    """
    low, high = _extremes(figures, "peak")
    if high is not low:
        yield (
            f"Thundering herd: with {high.strategy} up to {high.peak} requests arrive within "
            f"{high.bin_seconds:g} s, with {low.strategy} {low.peak}."
        )
    down = [one.strategy for one in figures if one.recovered == "never"]
    if down:
        yield (
            f"Not recovered {figures[0].after:g} s after the outage: {', '.join(down)}. Clients time out "
            "while their requests are queued, and retry; the service is busy with requests that nobody "
            "waits for. The failure outlasts its cause."
        )
    well = [f"{one.strategy} ({one.recovered})" for one in figures if one.recovered != "never"]
    if well:
        yield f"Recovered: {', '.join(well)}."


def _outage_svg(figures: Figures, caption: str) -> str:
    """Return a panel for each strategy, with the time of the outage shaded; bins are joined to `_CELLS`."""
    first = figures[0]
    cells = min(_CELLS, len(first.arrivals))
    bin_width = len(first.arrivals) * first.bin_seconds / cells
    panels = {
        f"{one.strategy}: recovered {one.recovered}": {
            name: steps(_rates(counts, cells, first.bin_seconds), bin_width)
            for name, counts in (("requests", one.arrivals), ("answers in time", one.served))
        }
        for one in figures
    }
    return small_multiples(
        f"A service is away for {first.away:g} s and comes back",
        panels,
        x_label="seconds",
        y_label="per second",
        band=(first.before, first.before + first.away, "away"),
        caption=caption,
    )


def _rates(counts: Sequence[int], cells: int, bin_seconds: float) -> list[float]:
    """Return counts in bins as rates per second, in at most ``cells`` wider bins.

    >>> _rates([1, 1, 3, 3], 2, 0.5)
    [2.0, 6.0]
    """
    cells = min(cells, len(counts))
    edges = [len(counts) * number // cells for number in range(cells + 1)]
    return [sum(counts[start:end]) / ((end - start) * bin_seconds) for start, end in pairwise(edges)]


def _axis(one: Any, room: int) -> str:
    """Return the line above a chart that marks when the service was away; without its text if too short.

    >>> _axis(SimpleNamespace(before=10, away=20, after=10, arrivals=range(60)), 60)
    '               |-------- away 20 s ---------|'
    """
    total = one.before + one.away + one.after
    room = min(room, len(one.arrivals))
    gone, back = (round(room * moment / total) for moment in (one.before, one.before + one.away))
    span: int = max(back - gone - 2, 0)
    name = f" away {one.away:g} s "
    shown = name if len(name) <= span else ""
    return f"{'':{gone}}|{shown.center(span, '-')}|"


OUTAGE = View(
    title="{clients} clients, a service with a capacity of {capacity:.4g} requests a second. It {how} for "
    "{away:g} s, then it is back with the same capacity. Seed {seed}.",
    columns={
        "peak": "{peak}",
        "recovered": "{recovered}",
        "goodput": "{goodput_after:.1f}/s",
        "wasted": "{wasted_after:.0%}",
    },
    legend="peak: most requests within {bin_seconds:g} s since the outage began; recovered: when it again "
    "serves 80% of the earlier {goodput_before:.1f}/s, and keeps doing so; goodput: answers in time since it "
    "is back; wasted: share of its work for clients that had given up",
    derive=_outage,
    chart=_outage_chart,
    summary=_outage_summary,
    draw=_outage_svg,
)
