"""``redouble dead-letters``: list, show, replay and discard dead letters in a file."""

from __future__ import annotations

import os
import sys
import time
from argparse import ArgumentTypeError
from heapq import merge
from itertools import islice
from shutil import get_terminal_size

from .._base.callables import ASYNC, SYNC, claims_async, flavour
from .._base.table import safe, table
from .._base.text import brief, one_line
from ..dead_letters import DeadLetters, StoreError
from ..policy import Policy
from .output import (
    FAILURE,
    INCOMPLETE,
    USAGE,
    CommandError,
    Parser,
    StatusLine,
    command_parser,
    discard_output,
    print_error,
    print_text,
    seconds,
    to_json,
    whole_number,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import Any

    from ..dead_letters import DeadLetter

# How many letters that failed are named after a replay.
_NAMED = 20

# Seconds between two reports of progress: on a terminal, and elsewhere.
_ON_TERMINAL, _ELSEWHERE = 0.1, 10.0

STATUSES = """exit status:
  0    all done
  1    letters failed or were parked in a replay, or there is no such letter
  2    wrong usage, or the handler cannot be imported
  3    the file is not there, or cannot be used
  130  interrupted (Ctrl-C); the letter in hand was released"""


def dead_letters(arguments: Sequence[str]) -> int | None:
    """Run one command and return the exit status."""
    options: Any = _parser().parse_args(arguments)
    path: str = options.path
    if not os.path.exists(path):  # noqa: PTH110 - pathlib is slow to import
        raise CommandError(f"there is no file {path}", FAILURE)
    try:
        with DeadLetters(os.path.abspath(path)) as letters:  # noqa: PTH100
            status: int | None = options.run(letters, options)
    except StoreError as error:
        raise CommandError(str(error), FAILURE) from error
    return status


def _parser() -> Parser:
    """Return the parser of all commands. Each sets ``run`` to the function that carries it out."""
    about = "List, show, replay and discard dead letters in a file."
    parser = command_parser("dead-letters", about, STATUSES)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: Callable[[DeadLetters, Any], int | None], text: str) -> Parser:
        """Add a command with the argument that all of them have."""
        made = commands.add_parser(name, help=text, description=text.capitalize() + ".", epilog=STATUSES)
        made.add_argument("path", metavar="PATH", help="the file that holds the letters")
        made.set_defaults(run=run)
        return made

    some_id = "an id, or a beginning that no other has"
    option = command("list", _list, "list letters, the oldest first").add_argument
    option("--queue", type=some_text, metavar="Q", help="only those of this queue")
    option("--state", choices=("waiting", "leased", "parked"), help="only those in this state")
    option("--limit", type=whole_number(), default=100, metavar="N", help="at most N (100)")
    option("--json", action="store_true", help="one JSON object per line")

    option = command("show", _show, "show everything about one letter").add_argument
    option("id", type=letter_id, metavar="ID", help=some_id)
    option("--json", action="store_true", help="as a JSON object on one line")

    replay = command("replay", _replay, "pass letters to your function; delete those for which it returns")
    option, which = replay.add_argument, replay.add_mutually_exclusive_group().add_argument
    option("handler", type=handler_name, metavar="MODULE:FUNCTION", help="sync or async")
    which("--queue", type=some_text, default="default", metavar="Q", help="(default)")
    which("--id", type=letter_id, metavar="ID", help="only this letter, of any queue")
    option("--limit", type=whole_number(), metavar="N", help="replay at most N letters (all)")
    option("--attempts", type=whole_number(), default=1, metavar="N", help="for each letter (1)")
    option("--park-after", type=whole_number(), default=5, metavar="N",
           help="park after N replays without success (5)")  # fmt: skip
    option("--lease", type=seconds(0.001, 86400), default=60.0, metavar="S",
           help="seconds, or such as 5m (60); renewed meanwhile")  # fmt: skip
    option("--include-unreplayable", action="store_true", help="also those put with replayable=False")
    option("--json", action="store_true", help="a JSON object for each letter, and one for all")

    command("unpark", _unpark, "let parked letters be replayed again").add_argument(
        "ids", type=letter_id, nargs="+", metavar="ID", help=some_id
    )
    command("discard", _discard, "delete letters").add_argument(
        "ids", type=letter_id, nargs="+", metavar="ID", help="a whole id"
    )
    option = command("purge", _purge, "delete the old letters of a queue").add_argument
    option("--older-than", type=age, metavar="AGE", help="such as 14d, 36h, 90m, 30s (14d)")
    option("--queue", type=some_text, default="default", metavar="Q", help="(default)")
    return parser


# Reading


def _list(letters: DeadLetters, options: Any) -> None:
    """Print the letters of one queue or of all, in order, and how many each queue has.

    The table is as wide as the terminal, from 80 to 120 columns; queue, function and error are cut to fit.
    """
    queues = list(letters.depths()) if options.queue is None else [options.queue]
    # Ids sort by time, so the queues together are in order too.
    every: Iterator[DeadLetter] = merge(*map(letters.queue, queues), key=lambda letter: letter.id)
    if options.state is not None:
        every = (letter for letter in every if letter.state == options.state)
    if options.json:
        for letter in islice(every, options.limit):
            print_text(to_json(letter.as_dict()))
        return
    rows = [_row(letter) for letter in islice(every, options.limit)]
    if rows:
        head = ("id", "queue", "function", "error", "tries", "age", "state")
        width = max(80, min(get_terminal_size((120, 24)).columns, 120))
        # Of a function's name the end says most, after its modules and classes.
        print_text(table(head, rows, left=7, width=width, shrink=(1, 2, 3), keep_end={2}) + "\n")
    if next(every, None) is not None:
        print_text(f"There are more than these {options.limit}; --limit shows them.")
    depths = letters.store.depths()
    for queue, (depth, parked) in depths.items():
        print_text(f"{queue}: {depth} waiting or leased, {parked} parked")
    if not depths:
        print_text("There are no letters.")


def _row(letter: DeadLetter) -> tuple[str, ...]:
    """Return what the table shows of a letter."""
    return (
        letter.id,
        letter.queue,
        letter.function or "-",
        one_line(letter.error_type or "", letter.error_message or "") or "-",
        str(letter.attempts),
        since(letter.dead_lettered_at),
        letter.state,
    )


def _show(letters: DeadLetters, options: Any) -> None:
    """Print all fields of a letter."""
    fields = find(letters, options.id).as_dict()
    print_text(to_json(fields) if options.json else "\n".join([_field(*field) for field in fields.items()]))


def _field(name: str, value: Any) -> str:
    """Return a field as text: the payload as JSON, the traceback as it is, others on one line."""
    if name == "payload":
        text = to_json(value, ensure_ascii=False, indent=2)
    elif name == "traceback" and value is not None:
        text = value.rstrip("\n").expandtabs()
    else:
        return f"{name + ':':21}{'-' if value is None else safe(str(value))}"
    # Indented, so that no line of it looks like another field.
    return f"{name}:\n{text}".replace("\n", "\n    ")


def since(moment: str) -> str:
    """Return how long ago that was: ``"45s"``, ``"12m"``, ``"5h"``, ``"13d"``."""
    from datetime import datetime

    try:
        seconds = max(0.0, time.time() - datetime.fromisoformat(moment).timestamp())
    except ValueError:  # another program wrote it
        return "?"
    for unit, size, until in (("s", 1, 120), ("m", 60, 7200), ("h", 3600, 172800)):
        if seconds < until:
            return f"{seconds // size:.0f}{unit}"
    return f"{seconds // 86400:.0f}d"


def find(letters: DeadLetters, beginning: str) -> DeadLetter:
    """Return the letter with this id, or the only one whose id begins with it."""
    letter = letters.get(beginning)
    if letter is not None:
        return letter
    found = [
        letter
        for queue in letters.depths()
        for letter in letters.list(queue=queue, after=beginning, limit=2)
        if letter.id.startswith(beginning)
    ]
    if len(found) == 1:
        return found[0]
    raise CommandError(
        f"more than one letter has an id that begins with {beginning}: give more of it"
        if found
        else f"there is no letter with the id {beginning}"
    )


# Replaying


def _replay(letters: DeadLetters, options: Any) -> int | None:
    """Pass the letters of a queue, or one letter, to the user's function, and report the outcomes."""
    handler = _imported(options.handler)
    # A letter of any age may be replayed by hand: the ttl of the program is not known here.
    letters = DeadLetters(letters.store, ttl=None, queue=options.queue)
    only = None if options.id is None else find(letters, options.id).id
    depth = letters.depth() if only is None else 1
    if not depth:
        print_error(f"no letter waits in the queue {options.queue}")
    report = Report(min(depth, options.limit or depth), as_json=options.json)
    fields: Any = {
        "id": only, "limit": options.limit, "lease": options.lease, "park_after": options.park_after,
        "include_unreplayable": options.include_unreplayable, "progress": report.add,
    }  # fmt: skip
    try:
        with report:
            if flavour(handler) == ASYNC or claims_async(handler):
                import asyncio

                asyncio.run(letters.areplay(handler, Policy(attempts=options.attempts), **fields))
            else:
                letters.replay(handler, Policy(attempts=options.attempts), **fields)
    except TypeError as error:  # not of the handler: its errors are stored
        raise CommandError(f"{options.handler} returns an awaitable: use async def", USAGE) from error
    report.name_failures(letters)
    failed = report.counts["failed"] or report.counts["parked"]
    return INCOMPLETE if failed or (only is not None and not report.counts["replayed"]) else None


def _imported(name: str) -> Any:
    """Import the user's function, also from the current directory, as ``python -m`` does."""
    from pkgutil import resolve_name

    try:
        # The script that pip installs has its own directory in sys.path instead.
        if not sys.flags.safe_path and (here := os.getcwd()) not in sys.path:  # noqa: PTH109 - slow to import
            sys.path.insert(0, here)
        handler = resolve_name(name)
    except Exception as error:
        raise CommandError(f"cannot import {name}: {brief(error)}", USAGE) from error
    if not callable(handler):
        raise CommandError(f"{name} is not a function", USAGE)
    if flavour(handler) not in (SYNC, ASYNC):
        raise CommandError(f"{name} is a generator: calling it would do nothing", USAGE)
    return handler


class Report:
    """Counts the outcomes of a replay, and prints progress meanwhile and a summary at the end.

    With JSON, the output of the handler goes to stderr, so that it does not come between the lines.
    """

    def __init__(self, total: int, *, as_json: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self.counts = {"replayed": 0, "failed": 0, "parked": 0, "skipped": 0}
        self._total, self._json, self._clock = total, as_json, clock
        self._failed: list[str] = []
        self._out: Any = sys.stdout
        self._line = StatusLine(None if as_json and self._out.isatty() else sys.stderr)
        self._pause = _ON_TERMINAL if self._line.visible else _ELSEWHERE
        self._due = clock() + (0.0 if self._line.visible else _ELSEWHERE)

    def __enter__(self) -> None:
        """Send the output of the handler to stderr, if there is JSON on stdout."""
        if self._json:
            sys.stdout = sys.stderr

    def __exit__(self, *error: object) -> None:
        """Erase the progress, and print the counts."""
        sys.stdout = self._out
        self._line.__exit__(*error)
        self._print(to_json(self.counts) if self._json else self._summary())

    def add(self, letter: DeadLetter, outcome: str) -> None:
        """Count an outcome."""
        self.counts[outcome] += 1
        if outcome in ("failed", "parked"):
            self._failed.append(letter.id)
        if self._json:
            self._print(to_json({"id": letter.id, "queue": letter.queue, "outcome": outcome}))
        if self._clock() >= self._due:
            self._due = self._clock() + self._pause
            text = f"{sum(self.counts.values())} of {self._total}: {self._summary()}"
            if self._line.visible:
                self._line.show(text)
            else:
                self._print(text, sys.stderr)

    def _summary(self) -> str:
        """Return the counts in words."""
        return ", ".join([f"{count} {outcome}" for outcome, count in self.counts.items()])

    def name_failures(self, letters: DeadLetters) -> None:
        """Print which letters failed, and why."""
        if self._json:
            return
        for failed in self._failed[:_NAMED]:
            letter = letters.get(failed)
            if letter is not None:
                self._print(safe(f"{failed}: {letter.last_replay_error}"))
        if len(self._failed) > _NAMED:
            self._print(f"and {len(self._failed) - _NAMED} more")

    def _print(self, line: str, stream: Any = None) -> None:
        """Print a line. A reader that closed the pipe is no reason to stop the replay."""
        stream = stream or self._out
        try:
            print(line, file=stream, flush=True)
        except BrokenPipeError:
            discard_output(stream)


# Discarding


def _each(ids: Iterable[str], act: Callable[[str], str]) -> int | None:
    """Do something to each letter and print what was done. An error does not keep it from the others."""
    status = None
    for one in ids:
        try:
            print_text(act(one))
        except CommandError as error:
            print_error(str(error))
            status = INCOMPLETE
    return status


def _discard(letters: DeadLetters, options: Any) -> int | None:
    """Delete letters by their whole ids: a wrong beginning must not delete another letter."""

    def act(whole: str) -> str:
        if not letters.discard(whole):
            raise CommandError(f"there is no letter with the id {whole}; to discard, give the whole id")
        return f"discarded {whole}"

    return _each(options.ids, act)


def _unpark(letters: DeadLetters, options: Any) -> int | None:
    """Let parked letters be replayed again."""

    def act(beginning: str) -> str:
        letter = find(letters, beginning)
        if not letters.unpark(letter.id):
            raise CommandError(f"{letter.id} is not parked: it is {letter.state}")
        return f"unparked {letter.id}"

    return _each(options.ids, act)


def _purge(letters: DeadLetters, options: Any) -> None:
    """Delete the old letters of a queue, and print how many."""
    count = letters.purge(options.older_than, queue=options.queue)
    print_text(f"purged {count} {'letter' if count == 1 else 'letters'} of the queue {safe(options.queue)}")


# Argument types


def some_text(text: str) -> str:
    """Read a text that is not empty."""
    if not text:
        raise ArgumentTypeError("must not be empty")
    return text


def letter_id(text: str) -> str:
    """Read an id, or the beginning of one, in any case."""
    if not (text.isascii() and text.isalnum()):
        raise ArgumentTypeError(f"must be letters and digits, got {text!r}")
    return text.upper()


def handler_name(text: str) -> str:
    """Read the name of a module and of a function in it."""
    module, _, name = text.partition(":")
    if not (module and name):
        raise ArgumentTypeError(f"must be written as module:function, got {text!r}")
    return text


def age(text: str) -> float:
    """Read a duration that has a unit: ``"14d"``, ``"36h"``, ``"90m"`` or ``"30s"``."""
    if not text[-1:].isalpha():
        raise ArgumentTypeError(f"must be a figure and one of d, h, m, s, such as 14d, got {text!r}")
    return seconds(0, 10**9)(text)
