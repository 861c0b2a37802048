"""``python -m redouble simulate``: fleets of clients on virtual time, strategies side by side."""

from __future__ import annotations

import os
import stat
import sys
from contextlib import nullcontext
from shutil import get_terminal_size

from ._simulate_models import MODELS, SEED
from ._terminal import DONE, TROUBLE, USAGE, Parser, Unable, say, speak_as, to_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager
    from typing import Any, TextIO

    from ._simulate_models import Model
    from ._simulate_views import View

# Text is as wide as the terminal, within these limits.
_NARROW, _WIDE = 40, 120

_STATUSES = """exit status:
  0    all done
  2    wrong usage
  3    the chart cannot be written
  130  interrupted (Ctrl-C)"""

_EPILOG = f"""examples:
  redouble simulate outage
  redouble simulate outage --strategy fixed full_jitter --away 1m --no-hangs
  redouble simulate contention --clients 50 --svg contention.svg
  redouble simulate budgets --failure-rate 0.1
  redouble simulate layers --depth 4 --json

"redouble simulate MODEL --help" tells what a model can be told. Nothing is
sent and nobody sleeps. The same seed gives the same figures.

{_STATUSES}"""


def simulate(arguments: Sequence[str]) -> int:
    """Runs a model under each strategy, and shows what came of it; gives the exit status."""
    options: Any = _parser().parse_args(arguments)
    model: Model = options.model
    speak_as(f"simulate {model.name}")
    if options.json and options.svg == "-":
        raise Unable("--json and --svg - cannot both go to stdout: name a file for the chart", USAGE)
    for_people = not options.json and options.svg != "-"
    with _chart_file(options.svg) as file:
        with Progress(sys.stderr if for_people else None) as progress:
            view = model.view(_results(model, options, progress))
        if options.json:
            say(to_json({"model": model.name, "results": [result.as_dict() for result in view.results]}))
        elif for_people:
            _show(view)
        else:
            say(view.svg().rstrip("\n"))
        if file is not None:
            _write(view.svg(), file, options.svg)
    if for_people and options.svg is not None:
        say(f"\nThe chart is in {options.svg}.")
    return DONE


def _parser() -> Parser:
    program = speak_as("simulate")
    parser = Parser(
        prog=program,
        description="Fleets of clients on virtual time: strategies of retrying, side by side.",
        epilog=_EPILOG,
    )
    models = parser.add_subparsers(required=True, metavar="MODEL")
    for model in MODELS:
        about = model.about[0].upper() + model.about[1:]
        made = models.add_parser(model.name, help=model.about, description=about, epilog=_STATUSES)
        model.add_to(made)
        made.add_argument("--seed", type=SEED.parse, default=1, metavar="N", help="for the draws (1)")
        made.add_argument("--svg", metavar="FILE", help="write a chart; -: to stdout, and nothing else")
        made.add_argument("--json", action="store_true", help="as a JSON object on one line")
    return parser


def _results(model: Model, options: Any, progress: Progress) -> list[Any]:
    names = list(dict.fromkeys(options.strategy or model.selection))
    given = {term.name: getattr(options, term.name) for term in model.terms}
    terms = {name: value for name, value in given.items() if value is not None}
    found: list[Any] = []
    for name in names:
        told = progress.part(name, len(found), len(names))
        found.append(model.run(name, seed=options.seed, progress=told, **terms))
    return found


def _show(view: View) -> None:
    width = min(max(get_terminal_size((80, 24)).columns, _NARROW), _WIDE)
    for line, style in view.lines(width, getattr(sys.stdout, "encoding", None)):
        say(line.rstrip(), style)


# Charts in files


def _chart_file(path: str | None) -> AbstractContextManager[TextIO | None]:
    """Opened before anything is run, so that nobody waits for nothing; emptied only when there is a chart."""
    if path is None or path == "-":
        return nullcontext()
    try:
        return open(path, "w", encoding="utf-8", newline="\n", opener=_without_truncating)
    except (OSError, ValueError) as error:
        raise _unwritable(path, error) from error


def _without_truncating(path: str, flags: int) -> int:
    return os.open(path, flags & ~os.O_TRUNC, 0o666)


def _write(text: str, file: TextIO, path: str) -> None:
    try:
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            file.truncate(0)
        file.write(text)
        file.close()  # which writes what is left: here its failure can be told
    except OSError as error:
        raise _unwritable(path, error) from error


def _unwritable(path: str, error: OSError | ValueError) -> Unable:
    return Unable(f"cannot write {path}: {getattr(error, 'strerror', None) or error}", TROUBLE)


# How far it is


class Progress:
    """A bar on a terminal, in one line that is written again and erased at the end; elsewhere nothing."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream if stream is not None and stream.isatty() else None
        self._width = 0

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._width:
            self._write("\r" + " " * self._width + "\r")

    def part(self, name: str, number: int, count: int) -> Callable[[float], None] | None:
        """What is told of one strategy out of some."""
        if self._stream is None:
            return None
        return lambda fraction: self._tell(name, (number + fraction) / count)

    def _tell(self, name: str, fraction: float) -> None:
        room = get_terminal_size((80, 24)).columns - 1
        bar = f"[{'#' * round(20 * fraction):20}] {fraction:4.0%} {name}"[: max(room, 0)]
        before, self._width = self._width, len(bar)  # first, since an interrupt may come while it is written
        self._write("\r" + bar.ljust(before))

    def _write(self, text: str) -> None:
        if self._stream is not None:
            try:
                self._stream.write(text)
                self._stream.flush()
            except OSError:  # the terminal is gone; what is to be shown may go elsewhere
                self._stream = None
