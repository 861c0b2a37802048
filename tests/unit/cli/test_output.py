"""What the commands share: styles, wrapped text, the status line, argument types."""

from __future__ import annotations

import io
import os
import sys
from argparse import ArgumentTypeError, HelpFormatter

import pytest

from redouble._cli import output
from redouble._cli.output import StatusLine, decimal, seconds, whole_number, wrap_text


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("terminal", "environment", "coloured"),
    [
        (True, {}, True),
        (True, {"NO_COLOR": ""}, True),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"TERM": "dumb"}, False),
        (False, {}, False),
    ],
)
def test_there_is_colour_only_on_a_terminal_that_shows_it(monkeypatch, terminal, environment, coloured):
    stream = Terminal() if terminal else io.StringIO()
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    output.print_text("one\ntwo", "red")
    assert stream.getvalue() == ("\x1b[31mone\x1b[0m\n\x1b[31mtwo\x1b[0m\n" if coloured else "one\ntwo\n")


def test_a_console_that_would_show_the_codes_gets_none(monkeypatch):
    stream = Terminal()
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("WT_SESSION", raising=False)
    monkeypatch.setattr(os, "name", "nt")
    assert not output._has_colours(stream)
    monkeypatch.setenv("WT_SESSION", "1")
    assert output._has_colours(stream)


def test_text_from_outside_cannot_bring_colours_of_its_own(monkeypatch):
    stream = Terminal()
    monkeypatch.setattr(sys, "stdout", stream)
    output.print_text("\x1b[31mred")
    assert stream.getvalue() == "\\x1b[31mred\n"


def test_only_lines_that_are_too_long_are_wrapped():
    text = "short\n  - " + "word " * 20
    assert wrap_text(text, 30).split("\n")[:3] == [
        "short",
        "  - word word word word word",
        "    word word word word word",
    ]


def test_a_usage_with_colours_is_left_to_argparse(monkeypatch):
    monkeypatch.setattr(HelpFormatter, "_format_usage", lambda *_: "\x1b[1m" + "x " * 60)
    monkeypatch.setenv("COLUMNS", "40")
    assert output.Parser(prog="redouble").format_usage().count("\n") == 1


# The status line


def test_a_status_line_is_overwritten_and_erased_at_the_end():
    stream = Terminal()
    with StatusLine(stream) as line:
        assert line.visible
        line.show("longer")
        line.show("one")
    assert stream.getvalue().split("\r") == ["", "longer", "one   ", "   ", ""]


def test_a_status_line_never_wraps(monkeypatch):
    monkeypatch.setenv("COLUMNS", "12")
    stream = Terminal()
    with StatusLine(stream) as line:
        line.show("x" * 40)
    assert max(map(len, stream.getvalue().split("\r"))) == 11


@pytest.mark.parametrize("stream", [None, io.StringIO()], ids=["closed", "a file"])
def test_there_is_no_status_line_where_there_is_no_terminal(stream):
    with StatusLine(stream) as line:
        assert not line.visible
        line.show("one")
    assert stream is None or stream.getvalue() == ""


def test_a_terminal_that_goes_away_is_ignored():
    class Gone(Terminal):
        def write(self, text):
            raise OSError(5, "Input/output error")

    with StatusLine(Gone()) as line:
        line.show("one")
        assert not line.visible
        line.show("two")


# Argument types


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        (whole_number(), "12", 12),
        (decimal(0, 1), "0.25", 0.25),
        (seconds(), "200ms", 0.2),
        (seconds(), "20", 20.0),
        (seconds(0, 10**7), "14d", 14 * 86400.0),
    ],
)
def test_an_argument_is_read(read, text, value):
    assert read(text) == value


@pytest.mark.parametrize(
    ("read", "text", "message"),
    [
        (whole_number(1, 9), "10", "must be a whole number from 1 to 9, got '10'"),
        (whole_number(), "1.5", "must be a whole number from 1 to 1,000,000,000,000,000, got '1.5'"),
        (decimal(0, 1), "nan", "must be a number from 0 to 1, got 'nan'"),
        (seconds(1), "0.5", r"must be seconds \(or such as 200ms, 1.5m\) from 1 to 3,600, got '0.5'"),
        (seconds(), "soon", "got 'soon'"),
    ],
)
def test_an_argument_outside_of_its_limits_is_refused_with_them(read, text, message):
    with pytest.raises(ArgumentTypeError, match=message):
        read(text)
