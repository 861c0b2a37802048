"""Output and arguments that all commands share: printing, styles, progress, exit statuses, argument types.

Text for people goes through `print_text`, which escapes unprintable characters: stored text came from outside
and could contain terminal escape sequences. JSON is ASCII. An error is one line on stderr.
"""

from __future__ import annotations

import os
import re
import sys
from argparse import ArgumentParser, ArgumentTypeError, HelpFormatter
from math import nan
from shutil import get_terminal_size
from textwrap import indent as prefix
from textwrap import wrap

from .._base.masking import masked_text
from .._base.table import safe
from .._policy.config import duration

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn, TextIO

DONE, INCOMPLETE, USAGE, FAILURE, INTERRUPTED = 0, 1, 2, 3, 130


class CommandError(Exception):
    """The command cannot do what was asked; `main` prints the message and exits with ``status``.

    The message is for the user: one line that says what is wrong and what to do. Most errors are wrong usage.
    """

    def __init__(self, message: str, status: int = USAGE) -> None:
        super().__init__(message)
        self.status = status


# The prefix of error messages: how this program was called, and the command.
_program: list[str] = []


def set_program(command: str) -> str:
    """Set and return the program name that help and error messages begin with."""
    stem = os.path.basename(sys.argv[0]).partition(".")[0]  # noqa: PTH119 - pathlib is slow to import
    program = "redouble" if stem == "redouble" else "python -m redouble"
    _program[:] = [f"{program} {command}".rstrip()]
    return _program[0]


class _Formatter(HelpFormatter):
    """Wrap help to the width of the terminal, at most 80 columns.

    Each line of a description or an epilog is a paragraph of its own: write it without a line break.
    """

    def __init__(self, prog: str, **how: Any) -> None:
        super().__init__(prog, **{**how, "width": text_width() - 2})

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return prefix(wrap_text(text, width, hanging=0), indent)

    def _format_usage(self, *args: Any, **named: Any) -> str:
        # argparse does not wrap a usage that was given, nor a long name of the program. With colours, which
        # it uses from Python 3.14 on, the length of a line is not its width.
        text = super()._format_usage(*args, **named)
        return text if "\x1b" in text else wrap_text(text, self._width + 2)


class Parser(ArgumentParser):
    """An argument parser that accepts no abbreviations and prints an error as one line on stderr.

    Help goes to stdout, with exit status 0. Wrong usage names the nearest option or command, and exits with
    ``usage_status``.
    """

    usage_status = USAGE

    def __init__(self, **fields: Any) -> None:
        fields = {"allow_abbrev": False, "formatter_class": _Formatter, **fields}
        super().__init__(**fields)

    def error(self, message: str) -> NoReturn:
        """Print what is wrong with the arguments, and exit with ``usage_status``.

        Secrets are masked: argparse repeats arguments that it does not know, such as a URL with a password.
        """
        _program[:] = [self.prog]
        near = _suggestion(message, self)
        print_error(f"{masked_text(message)}{f': did you mean {near}?' if near else ''} (see --help)")
        sys.exit(self.usage_status)


def _suggestion(message: str, parser: ArgumentParser) -> str:
    """Return the command or option that is nearest to the one that argparse complains about; or nothing."""
    from difflib import get_close_matches

    found = re.search(r"(unrecognized arguments|invalid choice): '?([^\s=']+)", message)
    if found is None:
        return ""
    # Another subcommand may have the very option: it is no suggestion.
    names = _names(parser, options=found[1] == "unrecognized arguments")
    return next(iter(get_close_matches(found[2], [name for name in names if name != found[2]], n=1)), "")


def _names(parser: ArgumentParser, *, options: bool) -> list[str]:
    """Return the options of a parser and its subcommands, or else the names of subcommands and choices."""
    names: list[str] = []
    for action in parser._actions:
        choices: Any = action.choices or ()
        names += action.option_strings if options else map(str, choices)
        commands: Any = choices.values() if hasattr(choices, "values") else ()
        names += [name for command in commands for name in _names(command, options=options)]
    return names


def command_parser(command: str, about: str, epilog: str, **fields: Any) -> Parser:
    """Return the parser of a command; from now on messages begin with its name."""
    return Parser(prog=set_program(command), description=about, epilog=epilog, **fields)


# Printing

_STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33"}


def print_text(text: str, style: str | None = None, **how: Any) -> None:
    """Print text with unprintable characters escaped.

    ``style`` is ``"bold"``, ``"dim"`` or a colour; it is used only on a terminal with colours. ``how`` are
    arguments of ``print``.
    """
    before, after = ("", "")
    if style is not None and _has_colours(how.get("file") or sys.stdout):
        before, after = f"\x1b[{_STYLES[style]}m", "\x1b[0m"
    print("\n".join([before + safe(line) + after for line in text.split("\n")]), **how)  # noqa: T201


def _has_colours(stream: Any) -> bool:
    """Return whether a stream is a terminal with colours, and the user has not switched them off."""
    if stream is None or not stream.isatty():
        return False
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    # Older Windows consoles print the escape sequences as text.
    return not plain and (os.name != "nt" or "WT_SESSION" in os.environ)


def print_error(text: str, style: str | None = None) -> None:
    """Print one line on stderr, with the program name in front. Ignore that stderr is closed."""
    if sys.stderr is None:  # print() would use stdout
        return
    try:
        print_text(f"{_program[0]}: {' '.join(text.split())}", style, file=sys.stderr, flush=True)
    except OSError:
        discard_output(sys.stderr)


def discard_output(stream: Any) -> None:
    """Redirect a broken stream to the null device, so that Python can flush its buffer at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def text_width(most: int = 80, least: int = 40) -> int:
    """Return the columns for text: those of the terminal within limits, and 80 if there is no terminal.

    The environment variable ``COLUMNS`` replaces the width of the terminal.
    """
    return min(max(get_terminal_size((80, 24)).columns, least), most)


# What a line begins with: its indentation, and a first column of one or two words if two spaces follow it.
_BEFORE_TEXT = re.compile(r" *(?:\S+(?: \S+)? {2,}(?=\S))?")


def wrap_text(text: str, width: int = 79, *, hanging: int = 2) -> str:
    """Wrap the lines of a text that are too long.

    Continuation lines are indented by ``hanging`` more columns, or as far as the second column of a table.
    A shell command in a help text is continued with backslashes, so that it can be copied.

    >>> print(wrap_text("  3    the store is missing, or cannot be used", 30))
      3    the store is missing,
           or cannot be used
    >>> print(wrap_text("  redouble preview --attempts 6 --base 200ms", 35))
      redouble preview --attempts 6 \\
        --base 200ms
    """
    lines: list[str] = []
    for line in text.split("\n"):
        indent = len(line) - len(line.lstrip())
        found: Any = _BEFORE_TEXT.match(line)
        end = " \\" if line.startswith("  redouble ") else ""
        more = found.end() if found.end() > indent else indent + (2 if end else hanging)
        how: Any = {"subsequent_indent": " " * more, "break_on_hyphens": False}
        parts = wrap(line.rstrip(), width - len(end), **how) if len(line) > width else [line]
        lines += [part + end for part in parts[:-1]] + parts[-1:]
    return "\n".join(lines)


def to_json(value: Any, **how: Any) -> str:
    """Return JSON in ASCII on one line; ``json`` is imported only by commands that need it."""
    import json

    return json.dumps(value, **how)


class StatusLine:
    """A line on a terminal that is overwritten, and erased at the end, for progress.

    A context manager. It shows nothing if the stream is not a terminal, and ignores that one is closed.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream if stream is not None and stream.isatty() else None
        self._width = 0

    def __enter__(self) -> StatusLine:
        return self

    def __exit__(self, *_: object) -> None:
        if self._width:
            self._write("\r" + " " * self._width + "\r")

    @property
    def visible(self) -> bool:
        """True if the stream is a terminal that still accepts output."""
        return self._stream is not None

    def show(self, text: str) -> None:
        """Replace the line by this text, cut to the width of the terminal."""
        text = text[: max(get_terminal_size((80, 24)).columns - 1, 0)]
        # The width is set first: an interrupt may arrive during the write.
        before, self._width = self._width, len(text)
        self._write("\r" + text.ljust(before))

    def _write(self, text: str) -> None:
        """Write at once, or do nothing any more if the terminal is gone."""
        if self._stream is not None:
            try:
                self._stream.write(text)
                self._stream.flush()
            except OSError:  # the terminal was closed; the command itself goes on
                self._stream = None


# Argument types


def whole_number(least: int = 1, most: int = 10**15) -> Callable[[str], int]:
    """Return an argparse type that reads a whole number within limits."""
    return _within("a whole number", int, least, most)


def decimal(least: float, most: float) -> Callable[[str], float]:
    """Return an argparse type that reads a decimal number within limits."""
    return _within("a number", float, least, most)


def seconds(least: float = 0, most: float = 3600) -> Callable[[str], float]:
    """Return an argparse type that reads a duration within limits.

    A duration is a number of seconds, or a number with one of the units ms, s, m, h and d.
    """
    return _within("seconds (or such as 200ms, 1.5m)", _read_seconds, least, most)


def _read_seconds(text: str) -> Any:
    """Return the seconds of a duration; raise ``ValueError`` if it is not valid."""
    # A policy takes no days: nobody retries that long. An age does.
    return 24 * duration("", text[:-1] + "h") if text.endswith("d") else duration("", text)


def _within(what: str, read: Callable[[str], Any], least: float, most: float) -> Callable[[str], Any]:
    """Return an argparse type from a function that reads a text or raises ``ValueError``."""

    def parse(text: str) -> Any:
        try:
            value = read(text)
        except ValueError:
            value = nan
        if not least <= value <= most:
            raise ArgumentTypeError(f"must be {what} from {least:,} to {most:,}, got {text!r}")
        return value

    return parse
