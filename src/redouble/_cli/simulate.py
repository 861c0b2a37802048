"""``redouble simulate``: compare retry strategies in a fleet of clients on virtual time."""

from __future__ import annotations

import sys
from argparse import SUPPRESS, ArgumentTypeError
from difflib import get_close_matches
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import simulate as models
from .output import (
    FAILURE,
    USAGE,
    CommandError,
    Parser,
    StatusLine,
    command_parser,
    decimal,
    print_text,
    seconds,
    set_program,
    to_json,
    whole_number,
)
from .simulate_views import BUDGETS, CONTENTION, LAYERS, OUTAGE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .simulate_views import View

# Text is as wide as the terminal, within these limits.
_NARROW, _WIDE = 40, 120

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

"redouble simulate MODEL --help" shows the options of a model. No request is
sent and nothing sleeps. The same seed gives the same figures.

{_STATUSES}"""


class Model(NamedTuple):
    """A model of `redouble.simulate` as a subcommand.

    To add an option to a model, add the arguments of ``add_argument`` to ``options``; the name of the option
    must be that of a parameter of ``run``.
    """

    run: Callable[..., Any]
    view: View
    about: str
    strategies: Mapping[str, models.Strategy]
    # Compared if --strategy is not given.
    selection: tuple[str, ...]
    # Arguments of `add_argument` by flag. An option that is not given is left to the model's own default.
    options: Mapping[str, Mapping[str, Any]]
    # The names of the strategies in words, if there are many.
    names: str = ""

    def strategy(self, name: str) -> str:
        """Return the name of a strategy if the model has it; an argparse type."""
        if name in self.strategies:
            return name
        near = get_close_matches(name, self.strategies, n=1, cutoff=0.4)
        names = self.names or ", ".join(self.strategies)
        hint = f"did you mean {near[0]}?" if near else f"there are {names}"
        raise ArgumentTypeError(f"there is no strategy {name!r}: {hint}")


# The limits stop a typing error from taking all memory or all day.
_CLIENTS: dict[str, Any] = {"type": whole_number(1, 10**6), "metavar": "N"}
_SHARE: dict[str, Any] = {"type": decimal(0, 1), "metavar": "N"}
_SPAN: dict[str, Any] = {"type": seconds(1), "metavar": "S"}
_SHORT_SPAN: dict[str, Any] = {"type": seconds(0.01), "metavar": "S"}
_SWITCH: dict[str, Any] = {"action": "store_false"}

_OF_ALL: dict[str, dict[str, Any]] = {
    "--seed": {
        "type": whole_number(0),
        "default": 1,
        "metavar": "N",
        "help": "seed of the random numbers (1)",
    },
    "--svg": {
        "default": None,
        "metavar": "FILE",
        "help": "write a chart; -: to stdout, and nothing else",
    },
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
            "--clients": {**_CLIENTS, "help": "clients that begin at once (100)"},
            "--runs": {
                "type": whole_number(1, 10**5),
                "default": 10,
                "metavar": "N",
                "help": "runs; the figures are the mean (10)",
            },
        },
    ),
    "budgets": Model(
        models.budgets,
        BUDGETS,
        "clients call at their own pace, the server fails: success rate and load?",
        models.BUDGET_STRATEGIES,
        ("no_retries", "three_retries", "token_budget", "ratio_budget"),
        {
            "--clients": {**_CLIENTS, "help": "number of clients (100)"},
            "--failure-rate": {**_SHARE, "help": "share of requests that fail (0.5)"},
            "--rate": {
                "type": decimal(0.01, 1000),
                "metavar": "N",
                "help": "calls a second of each client (10)",
            },
            "--seconds": {
                "type": seconds(0.1),
                "metavar": "S",
                "help": "how long clients start calls (20s)",
            },
        },
        ", ".join(models.BUDGET_STRATEGIES),
    ),
    "outage": Model(
        models.outage,
        OUTAGE,
        "a service goes away and comes back: how many requests, does it recover?",
        models.OUTAGE_STRATEGIES,
        ("no_jitter", "full_jitter", "full_jitter+budget", "full_jitter+budget+breaker"),
        {
            "--clients": {**_CLIENTS, "help": "number of clients (1000)"},
            "--processes": {
                **_CLIENTS,
                "help": "processes of the clients, each with its own guards (1 per 100 clients)",
            },
            "--think": {
                **_SHORT_SPAN,
                "help": "mean time from the end of a call to the next (10s)",
            },
            "--capacity": {
                "type": decimal(0.01, 10**9),
                "metavar": "N",
                "help": "requests a second that the service can handle (1.2 x demand)",
            },
            "--queue": {
                "type": whole_number(1, 10**9),
                "metavar": "N",
                "help": "requests that may wait (10 s of work)",
            },
            "--timeout": {**_SHORT_SPAN, "help": "how long a client waits for a response (1s)"},
            "--before": {**_SPAN, "help": "time before the outage (20s)"},
            "--away": {**_SPAN, "help": "duration of the outage (30s)"},
            "--after": {**_SPAN, "help": "time after the outage (60s)"},
            "--bin-seconds": {
                "type": seconds(0.01, 1),
                "metavar": "S",
                "help": "width of the bins that requests are counted in (100ms)",
            },
            "--no-hangs": {
                **_SWITCH,
                "dest": "hangs",
                "help": "during the outage refuse connections at once instead of not answering",
            },
            "--no-together": {
                **_SWITCH,
                "dest": "together",
                "help": "clients notice the outage at their next call, not all when it begins",
            },
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
            "--depth": {"type": whole_number(1, 10), "metavar": "N", "help": "layers that retry (3)"},
            "--calls": {
                "type": whole_number(1, 10**6),
                "default": 100,
                "metavar": "N",
                "help": "calls of the user, a second apart (100)",
            },
            "--failure-rate": {**_SHARE, "help": "share of requests to the bottom that fail (1.0)"},
        },
    ),
}


def simulate(arguments: Sequence[str]) -> None:
    """Run a model under each strategy, and print the results.

    Results go to stdout as text, as JSON or as SVG; a chart may go to a file as well. Progress goes to
    stderr, if that is a terminal and the output is text.
    """
    options: dict[str, Any] = vars(_parser().parse_args(arguments))
    name, json, svg = options.pop("model"), options.pop("json"), options.pop("svg")
    set_program(f"simulate {name}")
    if json and svg == "-":
        raise CommandError("--json and --svg - cannot both go to stdout: name a file for the chart", USAGE)
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
        width = min(max(get_terminal_size((80, 24)).columns, _NARROW), _WIDE)
        view.print(results, width, getattr(sys.stdout, "encoding", None))
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
        text = model.about.capitalize()
        made = parsers.add_parser(
            name, help=model.about, description=text, epilog=_STATUSES, argument_default=SUPPRESS
        )
        others = f"; there are {model.names}" if model.names else ""
        made.add_argument(
            "--strategy",
            nargs="+",
            action="extend",
            type=model.strategy,
            metavar="NAME",
            help=f"strategies to compare ({', '.join(model.selection)}){others}",
        )
        for flag, how in (*model.options.items(), *_OF_ALL.items()):
            made.add_argument(flag, **how)
    return parser


def _results(model: Model, line: StatusLine, strategy: Sequence[str] = (), **options: Any) -> list[Any]:
    """Run the model under each strategy, and show the progress on the status line.

    ``options`` are parameters of the model. A strategy that was named twice is run once.
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
        raise CommandError(
            f"cannot write {path}: {getattr(error, 'strerror', None) or error}", FAILURE
        ) from error
