"""``redouble simulate``: compare retry strategies in a fleet of clients on virtual time.

`MODELS` has a subcommand for each model of `redouble.simulate`, with its options. `simulate_views` prints the
results and draws the charts.
"""

from __future__ import annotations

import sys
from argparse import SUPPRESS, ArgumentTypeError
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import simulate as models
from .output import (
    FAILURE,
    CommandError,
    Parser,
    StatusLine,
    command_parser,
    decimal,
    print_text,
    seconds,
    set_program,
    text_width,
    to_json,
    whole_number,
)
from .simulate_views import BUDGETS, CONTENTION, LAYERS, OUTAGE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .simulate_views import View

_STATUSES = """exit status:
  0    success
  2    wrong usage
  3    the chart cannot be written
  130  interrupted (Ctrl-C)"""

_EPILOG = f"""examples:
  redouble simulate outage
  redouble simulate outage --strategy fixed full_jitter --away 1m --no-hangs
  redouble simulate contention --clients 50 --svg contention.svg
  redouble simulate budgets --failure-rate 0.1
  redouble simulate layers --depth 4 --json

"redouble simulate MODEL --help" shows the options of a model. No request is sent and nothing sleeps. The \
same seed gives the same figures.

{_STATUSES}"""


class Model(NamedTuple):
    """A model of `redouble.simulate` as a subcommand.

    To add an option to a model, add its flag to ``options``, with the arguments of ``add_argument``. The name
    of the option must be that of a parameter of ``run``. An option that is not given is left to the default
    of ``run``.
    """

    run: Callable[..., Any]
    view: View
    about: str
    strategies: Mapping[str, models.Strategy]
    # Compared if --strategy is not given.
    selection: tuple[str, ...]
    options: Mapping[str, Mapping[str, Any]]
    # Stands for a list of all strategies, if that is too long.
    summary: str = ""

    @property
    def names(self) -> str:
        """The names of the strategies, in words."""
        return self.summary or ", ".join(self.strategies)

    def strategy(self, name: str) -> str:
        """Return the name of a strategy if the model has it; an argparse type.

        The error for an unknown one suggests the nearest name, or lists all of them.
        """
        if name in self.strategies:
            return name
        near = get_close_matches(name, self.strategies, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]}?" if near else f"there are {self.names}"
        raise ArgumentTypeError(f"there is no strategy {name!r}: {hint}")


def _value(read: Callable[[str], Any], text: str, metavar: str = "N", **how: Any) -> dict[str, Any]:
    """Return the arguments of ``add_argument`` for an option that has a value."""
    return {"type": read, "metavar": metavar, "help": text, **how}


def _switch(parameter: str, text: str) -> dict[str, Any]:
    """Return the arguments of ``add_argument`` for an option that switches a parameter off."""
    return {"action": "store_false", "dest": parameter, "help": text}


# The limits stop a typing error from taking all memory or all day.
_CLIENTS, _SHARE = whole_number(1, 10**6), decimal(0, 1)
_SPAN, _SHORT_SPAN = seconds(1), seconds(0.01)

_OF_ALL: dict[str, dict[str, Any]] = {
    "--seed": _value(whole_number(0), "seed of the random numbers (1)", default=1),
    "--svg": _value(str, "write a chart; -: to stdout, and nothing else", "FILE", default=None),
    "--json": {"action": "store_true", "default": False, "help": "as a JSON object on one line"},
}

MODELS = {
    "contention": Model(
        models.contention,
        CONTENTION,
        "many clients write one versioned row: how many writes, how long?",
        models.CONTENTION_STRATEGIES,
        tuple(models.CONTENTION_STRATEGIES),
        {
            "--clients": _value(_CLIENTS, "clients that begin at once (100)"),
            "--runs": _value(whole_number(1, 10**5), "runs; the figures are the mean (10)", default=10),
        },
    ),
    "budgets": Model(
        models.budgets,
        BUDGETS,
        "clients call at their own pace, the server fails: success rate and load?",
        models.BUDGET_STRATEGIES,
        ("no_retries", "three_retries", "token_budget", "ratio_budget"),
        {
            "--clients": _value(_CLIENTS, "number of clients (100)"),
            "--failure-rate": _value(_SHARE, "share of requests that fail (0.5)"),
            "--rate": _value(decimal(0.01, 1000), "calls a second of each client (10)"),
            "--seconds": _value(seconds(0.1), "how long clients start calls (20s)", "S"),
        },
    ),
    "outage": Model(
        models.outage,
        OUTAGE,
        "a service goes away and comes back: how many requests, does it recover?",
        models.OUTAGE_STRATEGIES,
        ("no_jitter", "full_jitter", "full_jitter+budget", "full_jitter+budget+breaker"),
        {
            "--clients": _value(_CLIENTS, "number of clients (1000)"),
            "--processes": _value(
                _CLIENTS, "processes of the clients, each with its own guards (1 per 100 clients)"
            ),
            "--think": _value(_SHORT_SPAN, "mean time from the end of a call to the next (10s)", "S"),
            "--capacity": _value(
                decimal(0.01, 10**9), "requests a second that the service can handle (1.2 x demand)"
            ),
            "--queue": _value(whole_number(1, 10**9), "requests that may wait (10 s of work)"),
            "--timeout": _value(_SHORT_SPAN, "how long a client waits for a response (1s)", "S"),
            "--before": _value(_SPAN, "time before the outage (20s)", "S"),
            "--away": _value(_SPAN, "duration of the outage (30s)", "S"),
            "--after": _value(_SPAN, "time after the outage (60s)", "S"),
            "--bin-seconds": _value(
                seconds(0.01, 1), "width of the bins that requests are counted in (100ms)", "S"
            ),
            "--no-hangs": _switch(
                "hangs", "during the outage refuse connections at once instead of not answering"
            ),
            "--no-together": _switch(
                "together", "clients notice the outage at their next call, not all when it begins"
            ),
        },
        "no_retries, fixed, no_jitter, full_jitter, equal_jitter, decorrelated_jitter and "
        "proportional_jitter, each also with +budget, +breaker or +budget+breaker",
    ),
    "layers": Model(
        models.layers,
        LAYERS,
        "services call services, each with retries: how many calls reach the bottom?",
        models.LAYER_STRATEGIES,
        tuple(models.LAYER_STRATEGIES),
        {
            # Each layer turns one call into four: ten layers are a million calls.
            "--depth": _value(whole_number(1, 10), "layers that retry (3)"),
            "--calls": _value(whole_number(1, 10**6), "calls of the user, a second apart (100)", default=100),
            "--failure-rate": _value(_SHARE, "share of requests to the bottom that fail (1.0)"),
        },
    ),
}


def simulate(arguments: Sequence[str]) -> None:
    """Run a model under each strategy, and print the results.

    Results go to stdout as text, as JSON or as SVG; a chart may go to a file as well. Progress goes to
    stderr, if that is a terminal and the output is text. Raise `CommandError` with status 3 if the chart
    cannot be written, before the simulation starts if that is known by then.
    """
    options: dict[str, Any] = vars(_parser().parse_args(arguments))
    name, json, svg = options.pop("model"), options.pop("json"), options.pop("svg")
    set_program(f"simulate {name}")
    if json and svg == "-":
        raise CommandError("--json and --svg - cannot both go to stdout: name a file for the chart")
    for_people = not json and svg != "-"
    path = None if svg == "-" else svg
    # Fail before the simulation, but keep an older chart until there is a new one. A named pipe is opened
    # only once: its reader would take the first close for the end.
    if path is not None and not Path(path).is_fifo():
        _write_chart(path, "", "a")
    with StatusLine(sys.stderr if for_people else None) as line:
        results = _results(MODELS[name], line, **options)
    view = MODELS[name].view
    if json:
        print_text(to_json({"model": name, "results": [result.as_dict() for result in results]}))
    elif for_people:
        view.print(results, text_width(120), getattr(sys.stdout, "encoding", None))
    else:
        print_text(view.svg(results).rstrip("\n"))
    if path is not None:
        _write_chart(path, view.svg(results), "w")
        if for_people:
            print_text(f"\nThe chart is in {path}.")


def _parser() -> Parser:
    """Return a parser with a subcommand for each model.

    Options that are not given are missing in the namespace, so that the rest can be passed to the model.
    """
    about = "Compare retry strategies in a fleet of clients on virtual time."
    parser = command_parser("simulate", about, _EPILOG)
    parsers = parser.add_subparsers(dest="model", required=True, metavar="MODEL")
    for name, model in MODELS.items():
        made = parsers.add_parser(
            name,
            help=model.about,
            description=model.about.capitalize(),
            epilog=f"strategies:\n  {model.names}\n\ndefault:\n  {', '.join(model.selection)}\n\n{_STATUSES}",
            argument_default=SUPPRESS,
        )
        text = "strategies to compare (see below)"
        strategies = _value(model.strategy, text, "NAME", nargs="+", action="extend")
        for flag, how in {"--strategy": strategies, **model.options, **_OF_ALL}.items():
            made.add_argument(flag, **how)
    return parser


def _results(model: Model, line: StatusLine, strategy: Sequence[str] = (), **options: Any) -> list[Any]:
    """Run the model under each strategy, and show the progress on the status line.

    ``strategy`` has names, none for the selection of the model; one that was named twice is run once.
    ``options`` are parameters of the model.
    """
    names = list(dict.fromkeys(strategy or model.selection))
    found: list[Any] = []

    def show(fraction: float) -> None:
        done = (len(found) + fraction) / len(names)
        line.show(f"[{'#' * round(20 * done):20}] {done:4.0%} {names[len(found)]}")

    for name in names:
        found += [model.run(name, progress=show if line.visible else None, **options)]
    return found


def _write_chart(path: str, text: str, mode: str) -> None:
    """Write the file of the chart in a mode of ``open``; raise `CommandError` if that is not possible."""
    try:
        with Path(path).open(mode, encoding="utf-8", newline="\n") as file:
            file.write(text)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise CommandError(f"cannot write {path}: {reason}", FAILURE) from error
