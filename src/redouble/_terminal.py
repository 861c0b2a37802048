"""What the command line says to people, and what they write to it.

What is stored came from outside, and may be made to play tricks on a terminal. So all text for people goes
through `say`, where whatever is not printable becomes visible; JSON is ASCII.
"""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

DONE, NOT_ALL, USAGE, TROUBLE, INTERRUPTED = 0, 1, 2, 3, 130

STATUSES = """exit status:
  0    all done
  1    some letters failed or were parked in a replay, or there is no such letter
  2    wrong usage, or the handler cannot be imported
  3    the file is not there, or cannot be used
  130  interrupted (Ctrl-C); the letter in hand was given back"""


class Unable(Exception):  # noqa: N818 - says what happened
    """What was asked cannot be done; the message is for the user."""

    def __init__(self, message: str, status: int = NOT_ALL) -> None:
        super().__init__(message)
        self.status = status


# What is said


def say(text: str, **how: Any) -> None:
    print("\n".join([safe(line) for line in text.split("\n")]), **how)  # noqa: T201


def complain(text: str) -> None:
    say(f"python -m redouble deadletters: {' '.join(text.split())}", file=sys.stderr)


def silence(stream: Any) -> None:
    """What is still in the buffer would fail again when Python ends: let it go nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def safe(text: str) -> str:
    """The text with whatever is not printable, or not in the encoding of the output, written as an escape.

    >>> print(safe("red: \\x1b[31m"))
    red: \\x1b[31m
    """
    if not text.isprintable():
        text = "".join(
            [char if char.isprintable() else char.encode("unicode_escape").decode() for char in text]
        )
    encoding: str = getattr(sys.stdout, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


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
    widths = [max(map(_width, column)) for column in zip(head, *rows, strict=True)]
    while sum(widths) > room:
        # Of queue, function and error: the others are short, and must be whole.
        widest = max((1, 2, 3), key=lambda column: widths[column])
        widths[widest] -= 1
    lines = [map(_fitted, row, widths, _CUT_IN_FRONT) for row in (head, *rows)]
    return "\n".join(["  ".join(line).rstrip() for line in lines])


# Of a function with its modules and classes the end says most.
_CUT_IN_FRONT = (False, False, True, False, False, False, False)


def _fitted(text: str, width: int, cut_in_front: bool) -> str:
    if _width(text) > width:
        text = text[-width:] if cut_in_front else text[:width]
        while _width(text) > width - 2:
            text = text[1:] if cut_in_front else text[:-1]
        text = ".." + text if cut_in_front else text + ".."
    return text + " " * (width - _width(text))


def _width(text: str) -> int:
    """How many columns of a terminal a text takes: letters of the Far East take two, accents none."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum([0 if combining(char) else 2 if east_asian_width(char) in "WF" else 1 for char in text])


# What is written: arguments


def _wrong(message: str) -> Exception:
    from argparse import ArgumentTypeError

    return ArgumentTypeError(message)


def number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 15 and int(text)):
        raise _wrong(f"must be a whole number of at least 1, got {text!r}")
    return int(text)


def some_text(text: str) -> str:
    if not text:
        raise _wrong("must not be empty")
    return text


def letter_id(text: str) -> str:
    if not (text.isascii() and text.isalnum()):
        raise _wrong(f"must be letters and digits, got {text!r}")
    return text.upper()


def handler_name(text: str) -> str:
    module, _, name = text.partition(":")
    if not (module and name):
        raise _wrong(f"must be written as module:function, got {text!r}")
    return text


def age(text: str) -> float:
    """Seconds out of ``"14d"``, ``"36h"``, ``"90m"`` or ``"30s"``."""
    figure, unit = text[:-1], {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}.get(text[-1:])
    if unit is None or not figure.isascii() or not figure.replace(".", "", 1).isdigit() or len(figure) > 9:
        raise _wrong(f"must be a figure and one of d, h, m, s, such as 14d, got {text!r}")
    return float(figure) * unit


def lease(text: str) -> float:
    seconds = age(text if text[-1:].isalpha() else text + "s")
    if not 0.0 < seconds <= 86400.0:
        raise _wrong(f"must be above 0 seconds and at most a day, got {text!r}")
    return seconds
