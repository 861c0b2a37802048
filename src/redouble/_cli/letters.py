"""Select, find and print dead letters, for the subcommands of ``redouble dead-letters``.

The options of `add_filters` are the same for all subcommands that take several letters. Stored text came from
outside: `print_letters` cuts and escapes it.
"""

from __future__ import annotations

import time
from argparse import ArgumentTypeError
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from heapq import merge
from shutil import get_terminal_size

from .._base.table import fit, safe, table
from .._base.text import one_line
from .output import INCOMPLETE, CommandError, Parser, print_text, seconds, text_width, to_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

    from ..dead_letters import DeadLetter, DeadLetters

# A table needs this many columns. On a narrower terminal each letter has lines of its own.
_TABLE = 110

# Selecting letters


# What --id takes, in words.
SOME_ID = "an id, or the beginning of one, if no other id begins with it"


def add_filters(
    parser: Parser, *, queue: str | None = "default", older_than: str | None = None, by_id: bool = False
) -> Any:
    """Add the options that select letters, with the defaults of the command, and return their group.

    With ``by_id`` there is ``--id``, which selects one letter of any queue.
    """
    group: Any = parser.add_argument_group("which letters", "Only letters that match all of these options.")
    add, which = group.add_argument, group.add_mutually_exclusive_group().add_argument
    which("--queue", type=some_text, default=queue, metavar="Q", help=f"of this queue ({queue or 'all'})")
    if by_id:
        which("--id", type=letter_id, metavar="ID", help=f"one letter, of any queue: {SOME_ID}")
    add("--function", type=some_text, metavar="NAME",
        help="of this function: its name, or the end of it after a dot; * stands for any text")  # fmt: skip
    add("--error", type=some_text, metavar="TEXT",
        help="whose error contains this text (case is ignored), or whose failure code it is")  # fmt: skip
    default = f" ({older_than})" if older_than else ""
    add("--older-than", type=age, default=older_than, metavar="AGE",
        help=f"put longer ago than this, such as 14d, 36h, 90m or 30s{default}")  # fmt: skip
    add("--newer-than", type=age, metavar="AGE", help="put less long ago than this")
    return group


def selector(options: Any) -> Callable[[DeadLetter], bool]:
    """Return a predicate: whether a letter is of the function, the error and the age that the options name.

    Ages count from now, whenever it is called.
    """
    error = options.error and options.error.lower()
    ending = options.function and f"*.{options.function}"  # matches the name after any of its dots
    ages = options.older_than, options.newer_than
    newest, oldest = [None if age is None else _ago(age) for age in ages]

    def is_selected(letter: DeadLetter) -> bool:
        shown = f"{letter.error_type or ''}: {letter.error_message or ''}".lower()
        put = letter.dead_lettered_at  # ISO times compare as texts
        return (
            (ending is None or (letter.function is not None and fnmatchcase(f".{letter.function}", ending)))
            and (error is None or error in shown or error == (letter.failure_code or "").lower())
            and (newest is None or put < newest)
            and (oldest is None or put >= oldest)
        )

    return is_selected


def _ago(age: float) -> str:
    """Return the moment that many seconds ago, in the form in which letters have their times."""
    return datetime.fromtimestamp(time.time() - age, UTC).isoformat(timespec="microseconds")


def is_given(options: Any, *names: str) -> bool:
    """Return whether at least one of these options was given or has a default. An age of 0 s was given."""
    return any(getattr(options, name) is not None for name in names)


def selected(letters: DeadLetters, options: Any) -> Iterator[DeadLetter]:
    """Yield the letters of one queue or of all that the options select, the oldest first.

    Letters in any state are selected. They are read a few at a time.
    """
    queues = list(letters.depths()) if options.queue is None else [options.queue]
    # Ids sort by time, so the queues together are in order too.
    every: Iterator[DeadLetter] = merge(*map(letters.queue, queues), key=lambda letter: letter.id)
    return filter(selector(options), every)


def find(letters: DeadLetters, beginning: str) -> DeadLetter:
    """Return the letter with this id, or the only one whose id begins with it.

    Raise `CommandError` with status 1 if there is none, or more than one.
    """
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
    if found:
        text = f"more than one letter has an id that begins with {beginning}: give more of it"
    else:
        text = f"there is no letter with the id {beginning}"
    raise CommandError(text, INCOMPLETE)


# Printing


def print_letters(letters: Sequence[DeadLetter]) -> None:
    """Print a table of letters, or a few lines for each on a narrow terminal, and an empty line.

    A terminal cuts the text of long errors. Without one, as in a pipe, each letter is one line and nothing is
    cut, so that ``grep`` finds it.
    """
    if not letters:
        return
    rows = [_row(letter) for letter in letters]
    columns = get_terminal_size((0, 24)).columns
    if 0 < columns < _TABLE:
        for row in rows:
            _print_narrow(row, text_width(_TABLE))
    else:
        head = ("id", "age", "attempts", "state", "queue", "function", "error")
        # Of a function's name the end says most, after its modules and classes.
        print_text(table(head, rows, left=7, width=columns or None, shrink=(4, 5, 6), keep_end={5}))
    print_text("")


def _print_narrow(row: Sequence[str], width: int) -> None:
    """Print the row of a letter as lines: id and state, function, error; each cut to the width.

    Below about 60 columns the state has a line of its own. Lines for a function or an error that is not known
    are left out.
    """
    identity, since, attempts, state, queue, function, error = row
    about = f"{state}, {attempts} attempt{'' if attempts == '1' else 's'}, {since} old, {queue}"
    first = f"{identity}  {about}"
    head, *more = [first] if len(first) <= width else [identity, about]
    print_text(head, "bold")
    for line in (*more, function, error):
        if line != "-":
            print_text("  " + fit(safe(line), width - 2, keep_end=line is function).rstrip())


def _row(letter: DeadLetter) -> tuple[str, ...]:
    """Return the cells of a letter: id, age, attempts, state, queue, function, error; ``-`` for none."""
    return (
        letter.id,
        since(letter.dead_lettered_at),
        str(letter.attempts),
        letter.state,
        letter.queue,
        letter.function or "-",
        one_line(letter.error_type or "", letter.error_message or "") or "-",
    )


def field_text(name: str, value: Any) -> str:
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
    """Return how long ago that was: ``"45s"``, ``"12m"``, ``"5h"``, ``"13d"``; ``"?"`` if it is no time."""
    try:
        seconds = max(0.0, time.time() - datetime.fromisoformat(moment).timestamp())
    except ValueError:  # another program wrote it
        return "?"
    for unit, size, until in (("s", 1, 120), ("m", 60, 7200), ("h", 3600, 172800)):
        if seconds < until:
            return f"{seconds // size:.0f}{unit}"
    return f"{seconds // 86400:.0f}d"


# Argument types


def some_text(text: str) -> str:
    """Read a text that is not empty; an argparse type. A variable that a script has not set is empty."""
    if not text:
        raise ArgumentTypeError("must not be empty")
    return text


def letter_id(text: str) -> str:
    """Read an id, or the beginning of one, in any case; an argparse type.

    >>> letter_id("01m7ev")
    '01M7EV'
    """
    if not (text.isascii() and text.isalnum()):
        raise ArgumentTypeError(f"must be letters and digits, got {text!r}")
    return text.upper()


def age(text: str) -> float:
    """Read a duration that has a unit; an argparse type. Without one, ``14`` might mean days or seconds.

    >>> age("36h"), age("14d")
    (129600.0, 1209600.0)
    """
    if not text[-1:].isalpha():
        raise ArgumentTypeError(f"must be a figure and one of d, h, m, s, such as 14d, got {text!r}")
    return seconds(0, 10**9)(text)
