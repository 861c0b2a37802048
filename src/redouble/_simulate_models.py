"""What ``simulate`` can be asked: the models, their strategies, and the options of each."""

from __future__ import annotations

from argparse import ArgumentTypeError
from difflib import get_close_matches
from math import nan
from typing import TYPE_CHECKING, Any, NamedTuple

from . import simulate
from ._config import duration
from ._simulate_outage import OutageView
from ._simulate_views import BudgetsView, ContentionView, LayersView

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ._simulate_views import View
    from ._terminal import Parser
    from .simulate import Strategy


# What is written: numbers. The limits keep a slip of the finger from taking all memory, or all day.


class Number(NamedTuple):
    """Reads a number within limits."""

    what: str
    metavar: str
    read: Callable[[str], Any]
    least: float
    most: float

    def parse(self, text: str) -> Any:
        try:
            value = self.read(text)
        except ValueError:
            value = nan
        if not self.least <= value <= self.most:
            limits = f"from {self.least:,} to {self.most:,}"
            raise ArgumentTypeError(f"must be {self.what} {limits}, got {text!r}")
        return value


def _count(most: int, least: int = 1) -> Number:
    return Number("a whole number", "N", int, least, most)


def _figure(least: float, most: float) -> Number:
    return Number("a number", "N", float, least, most)


def _seconds(text: str) -> Any:
    return duration("", text)


def _span(least: float, most: float = 3600) -> Number:
    return Number("seconds (or such as 200ms, 1.5m)", "S", _seconds, least, most)


# What a model is


class Term(NamedTuple):
    """A parameter of a model; ``default`` is that of the command line, ``None`` that of the model."""

    name: str
    reader: Number | None
    default: Any
    help: str


class Model(NamedTuple):
    """A model, and what is shown of it."""

    name: str
    run: Callable[..., Any]
    view: Callable[[Sequence[Any]], View]
    about: str
    strategies: Mapping[str, Strategy]
    selection: tuple[str, ...]
    known: str
    terms: tuple[Term, ...]

    def add_to(self, parser: Parser) -> None:
        """Adds its options to those that all models have."""
        parser.set_defaults(model=self)
        rest = f"; there are {self.known}" if len(self.selection) < len(self.strategies) else ""
        parser.add_argument(
            "--strategy",
            nargs="+",
            action="extend",
            type=self._strategy,
            metavar="NAME",
            help=f"compare these ({', '.join(self.selection)}){rest}",
        )
        for name, reader, default, text in self.terms:
            flag = "--" + name.replace("_", "-")
            if reader is None:
                flag = flag.replace("--", "--no-")
                parser.add_argument(flag, action="store_false", default=None, dest=name, help=text)
            else:
                parser.add_argument(
                    flag, type=reader.parse, default=default, metavar=reader.metavar, help=text
                )

    def _strategy(self, name: str) -> str:
        if name in self.strategies:
            return name
        near = get_close_matches(name, self.strategies, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]}?" if near else f"there are {self.known}"
        raise ArgumentTypeError(f"there is no strategy {name!r}: {hint}")


SEED = _count(10**15, least=0)
_CLIENTS = _count(10**6)
_SHARE = _figure(0, 1)


# The models

_CONTENTION = Model(
    "contention",
    simulate.contention,
    ContentionView,
    "many clients write one versioned row: how many writes, how long?",
    simulate.CONTENTION_STRATEGIES,
    tuple(simulate.CONTENTION_STRATEGIES),
    ", ".join(simulate.CONTENTION_STRATEGIES),
    (
        Term("clients", _CLIENTS, None, "how many begin at once (100)"),
        Term("runs", _count(10**5), 10, "how often; the figures are the mean (10)"),
    ),
)

_BUDGETS = Model(
    "budgets",
    simulate.budgets,
    BudgetsView,
    "clients call at their own pace, the server fails: who succeeds, at what load?",
    simulate.BUDGET_STRATEGIES,
    ("no_retries", "three_retries", "token_budget", "ratio_budget"),
    ", ".join(simulate.BUDGET_STRATEGIES),
    (
        Term("clients", _CLIENTS, None, "how many (100)"),
        Term("failure_rate", _SHARE, None, "the share of requests that fails (0.5)"),
        Term("rate", _figure(0.01, 1000), None, "calls a second of each client (10)"),
        Term("seconds", _span(0.1), None, "for how long calls are started (20s)"),
    ),
)

_OUTAGE = Model(
    "outage",
    simulate.outage,
    OutageView,
    "a service goes away and comes back: who comes when, and when is it well again?",
    simulate.OUTAGE_STRATEGIES,
    ("no_jitter", "full_jitter", "full_jitter+budget", "full_jitter+budget+breaker"),
    "no_retries, fixed, no_jitter, full_jitter, equal_jitter, decorrelated_jitter and proportional_jitter, "
    "each also with +budget, +breaker or +budget+breaker",
    (
        Term("clients", _CLIENTS, None, "how many (1000)"),
        Term(
            "processes", _CLIENTS, None, "in how many processes, each with its own guards (1 for 100 clients)"
        ),
        Term("think", _span(0.01), None, "from the end of a call to the next one, on average (10s)"),
        Term(
            "capacity", _figure(0.01, 10**9), None, "requests a second that it can do (1.2 times what comes)"
        ),
        Term("queue", _count(10**9), None, "how many requests may wait (10 s of work)"),
        Term("timeout", _span(0.01), None, "how long a client waits for an answer (1s)"),
        Term("before", _span(1), None, "it is there for so long (20s)"),
        Term("away", _span(1), None, "then away for so long (30s)"),
        Term("after", _span(1), None, "then back for so long (60s)"),
        Term("bin_seconds", _span(0.01, 1), None, "arrivals are counted within so long (100ms)"),
        Term("hangs", None, None, "while away it refuses at once, and does not leave clients waiting"),
        Term("together", None, None, "each client notices at its next call, not all when it goes away"),
    ),
)

_LAYERS = Model(
    "layers",
    simulate.layers,
    LayersView,
    "services call services, each with retries: how many calls reach the bottom?",
    simulate.LAYER_STRATEGIES,
    tuple(simulate.LAYER_STRATEGIES),
    ", ".join(simulate.LAYER_STRATEGIES),
    (
        # Each layer makes four calls of one: there is no use in more than a million.
        Term("depth", _count(10), None, "how many layers retry (3)"),
        Term("calls", _count(10**6), 100, "of the user, a second apart (100)"),
        Term("failure_rate", _SHARE, None, "the share of requests to the bottom that fails (1.0)"),
    ),
)

MODELS = (_CONTENTION, _BUDGETS, _OUTAGE, _LAYERS)
