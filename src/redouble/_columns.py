"""Text in the columns of a terminal: what it may show, and how wide that is."""

from __future__ import annotations

import sys

from ._text import printable


def safe(text: str) -> str:
    """The text with whatever is not printable, or not in the encoding of the output, written as an escape.

    >>> print(safe("red: \\x1b[31m"))
    red: \\x1b[31m
    """
    text = printable(text)
    encoding: str = getattr(sys.stdout, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def width_of(text: str) -> int:
    """How many columns of a terminal a text takes: letters of the Far East take two, accents none."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum([0 if combining(char) else 2 if east_asian_width(char) in "WF" else 1 for char in text])
