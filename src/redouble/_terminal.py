"""What the commands share: what they say to people, and what people write to them.

What is stored came from outside, and may be made to play tricks on a terminal. So all text for people goes
through `say`, where whatever is not printable becomes visible; JSON is ASCII. Complaints are one line each.
"""

from __future__ import annotations

import os
import sys
import time
from argparse import ArgumentParser, ArgumentTypeError, RawDescriptionHelpFormatter

from ._columns import safe, width_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, NoReturn

DONE, NOT_ALL, USAGE, TROUBLE, INTERRUPTED = 0, 1, 2, 3, 130

STATUSES = """exit status:
  0    all done
  1    letters failed or were parked in a replay, or there is no such letter
  2    wrong usage, or the handler cannot be imported
  3    the file is not there, or cannot be used
  130  interrupted (Ctrl-C); the letter in hand was given back"""


class Unable(Exception):  # noqa: N818 - says what happened
    """What was asked cannot be done; the message is for the user."""

    def __init__(self, message: str, status: int = NOT_ALL) -> None:
        super().__init__(message)
        self.status = status


# Who speaks: the words before a complaint.
_speaker: list[str] = []


def speak_as(command: str) -> str:
    """How this program was called, with the command: what its help and its complaints begin with."""
    stem = os.path.basename(sys.argv[0]).partition(".")[0]  # noqa: PTH119 - pathlib is slow to import
    program = "redouble" if stem == "redouble" else "python -m redouble"
    _speaker[:] = [f"{program} {command}".rstrip()]
    return _speaker[0]


class Parser(ArgumentParser):
    """Options of a command: never abbreviated, and what is wrong with them is told in one line."""

    status_of_wrong_use = USAGE

    def __init__(self, **fields: Any) -> None:
        fields = {"allow_abbrev": False, "formatter_class": RawDescriptionHelpFormatter, **fields}
        super().__init__(**fields)

    def error(self, message: str) -> NoReturn:
        _speaker[:] = [self.prog]
        complain(f"{message} (see --help)")
        sys.exit(self.status_of_wrong_use)


# What is said

_STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33"}


def say(text: str, style: str | None = None, **how: Any) -> None:
    """Prints text for people; in a style, where the stream is a terminal that shows it."""
    before, after = ("", "")
    if style is not None and _in_colour(how.get("file") or sys.stdout):
        before, after = f"\x1b[{_STYLES[style]}m", "\x1b[0m"
    print("\n".join([before + safe(line) + after for line in text.split("\n")]), **how)  # noqa: T201


def _in_colour(stream: Any) -> bool:
    if stream is None or not stream.isatty():
        return False
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    # Older consoles of Windows show the codes themselves.
    return not plain and (os.name != "nt" or "WT_SESSION" in os.environ)


def complain(text: str, style: str | None = None) -> None:
    """Says one line on stderr, with who says it; if nobody is there to read it, that is no trouble."""
    if sys.stderr is None:  # closed; print would turn to stdout
        return
    try:
        say(f"{_speaker[0]}: {' '.join(text.split())}", style, file=sys.stderr, flush=True)
    except OSError:
        silence(sys.stderr)


def silence(stream: Any) -> None:
    """What is still in the buffer would fail again when Python ends: let it go nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def wrapped(text: str) -> str:
    """The text with no line longer than 79 columns; what goes on in the next line stands further in.

    >>> print(wrapped("  one two " + "three " * 14))
      one two three three three three three three three three three three three
        three three three
    """
    from textwrap import wrap

    return "\n".join([_broken(line, wrap) if len(line) > 79 else line for line in text.split("\n")])


def _broken(line: str, wrap: Any) -> str:
    indent = " " * (len(line) - len(line.lstrip()))
    lines = wrap(
        line.strip(), 79, initial_indent=indent, subsequent_indent=indent + "  ", break_on_hyphens=False
    )
    return "\n".join(lines)


def to_json(value: Any, **how: Any) -> str:
    import json

    return json.dumps(value, **how)


def since(moment: str) -> str:
    """How long ago that was: ``"45s"``, ``"12m"``, ``"5h"``, ``"13d"``."""
    from datetime import datetime

    try:
        seconds = max(0.0, time.time() - datetime.fromisoformat(moment).timestamp())
    except ValueError:  # somebody else wrote that
        return "?"
    for unit, size, until in (("s", 1, 120), ("m", 60, 7200), ("h", 3600, 172800)):
        if seconds < until:
            return f"{seconds // size:.0f}{unit}"
    return f"{seconds // 86400:.0f}d"


def field(name: str, value: Any) -> str:
    if name == "payload":
        text = to_json(value, ensure_ascii=False, indent=2)
    elif name == "traceback" and value is not None:
        text = value.rstrip("\n").expandtabs()
    else:
        return f"{name + ':':21}{'-' if value is None else safe(str(value))}"
    # Indented, so that no line of it looks like another field.
    return f"{name}:\n{text}".replace("\n", "\n    ")


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Columns as wide as need be; where that is too much for the terminal, the widest is cut first."""
    from shutil import get_terminal_size

    room = max(80, min(get_terminal_size((120, 24)).columns, 120)) - 2 * (len(head) - 1)
    widths = [max(map(width_of, column)) for column in zip(head, *rows, strict=True)]
    while sum(widths) > room:
        # Of queue, function and error: the others are short, and must be whole.
        widest = max((1, 2, 3), key=lambda column: widths[column])
        widths[widest] -= 1
    lines = [map(_fitted, row, widths, _CUT_IN_FRONT) for row in (head, *rows)]
    return "\n".join(["  ".join(line).rstrip() for line in lines])


# Of a function with its modules and classes the end says most.
_CUT_IN_FRONT = (False, False, True, False, False, False, False)


def _fitted(text: str, width: int, cut_in_front: bool) -> str:
    if width_of(text) > width:
        text = text[-width:] if cut_in_front else text[:width]
        while width_of(text) > width - 2:
            text = text[1:] if cut_in_front else text[:-1]
        text = ".." + text if cut_in_front else text + ".."
    return text + " " * (width - width_of(text))


# What is written: arguments


def number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 15 and int(text)):
        raise ArgumentTypeError(f"must be a whole number of at least 1, got {text!r}")
    return int(text)


def some_text(text: str) -> str:
    if not text:
        raise ArgumentTypeError("must not be empty")
    return text


def letter_id(text: str) -> str:
    if not (text.isascii() and text.isalnum()):
        raise ArgumentTypeError(f"must be letters and digits, got {text!r}")
    return text.upper()


def handler_name(text: str) -> str:
    module, _, name = text.partition(":")
    if not (module and name):
        raise ArgumentTypeError(f"must be written as module:function, got {text!r}")
    return text


def age(text: str) -> float:
    """Seconds out of ``"14d"``, ``"36h"``, ``"90m"`` or ``"30s"``."""
    figure, unit = text[:-1], {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}.get(text[-1:])
    if unit is None or not figure.isascii() or not figure.replace(".", "", 1).isdigit() or len(figure) > 9:
        raise ArgumentTypeError(f"must be a figure and one of d, h, m, s, such as 14d, got {text!r}")
    return float(figure) * unit


def lease(text: str) -> float:
    seconds = age(text if text[-1:].isalpha() else text + "s")
    if not 0.0 < seconds <= 86400.0:
        raise ArgumentTypeError(f"must be above 0 seconds and at most a day, got {text!r}")
    return seconds
