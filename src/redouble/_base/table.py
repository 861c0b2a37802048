"""Plain-text tables for terminals: escaping, display width, alignment, and figures with units."""

from __future__ import annotations

import sys

from .text import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Sequence


def safe(text: str) -> str:
    """Escape characters that are not printable or not in the encoding of stdout.

    >>> print(safe("red: \\x1b[31m"))
    red: \\x1b[31m
    """
    text = printable(text)
    encoding: str = getattr(sys.stdout, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def display_width(text: str) -> int:
    """Return the columns that a text takes: 2 for each wide East Asian letter, 0 for combining accents."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum([0 if combining(char) else 2 if east_asian_width(char) in "WF" else 1 for char in text])


def fit(text: str, width: int, *, mark: str = "..", keep_end: bool = False, right: bool = False) -> str:
    """Pad a text to ``width`` columns, or cut it; ``mark`` stands for the part that was cut.

    It is flush left, or with ``right`` flush right.

    >>> fit("shop.client.ship", 8), fit("shop.client.ship", 8, keep_end=True), fit("pay", 8)
    ('shop.c..', '..t.ship', 'pay     ')
    """
    if display_width(text) > width:
        text = text[-width:] if keep_end else text[:width]
        while display_width(text) > width - len(mark):
            text = text[1:] if keep_end else text[:-1]
        text = mark + text if keep_end else text + mark
    space = " " * (width - display_width(text))
    return space + text if right else text + space


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    left: int = 1,
    width: int | None = None,
    shrink: Sequence[int] = (),
    keep_end: Collection[int] = (),
) -> str:
    """Return a table: the first ``left`` columns are flush left, the others flush right.

    A table that is wider than ``width`` has the columns in ``shrink`` cut, the widest first. Those that are
    also in ``keep_end`` lose their beginning instead of their end.

    >>> print(table(("policy", "calls"), [("fetch", "12"), ("store", "3")]))
    policy  calls
    fetch      12
    store       3
    """
    lines = [[safe(cell) for cell in line] for line in (head, *rows)]
    widths = [max(map(display_width, column)) for column in zip(*lines, strict=True)]
    while width is not None and sum(widths) + 2 * (len(widths) - 1) > width:
        widths[max(shrink, key=widths.__getitem__)] -= 1
    cells = [
        [fit(cell, widths[nth], keep_end=nth in keep_end, right=nth >= left) for nth, cell in enumerate(line)]
        for line in lines
    ]
    return "\n".join(["  ".join(row).rstrip() for row in cells])


def duration(seconds: float | None) -> str:
    """Return seconds with three significant digits and a unit, or a dash for ``None``.

    >>> duration(0.0042), duration(0.25), duration(1.5), duration(250.0), duration(None)
    ('4.2 ms', '250 ms', '1.5 s', '250 s', '-')
    """
    if seconds is None:
        return "-"
    if seconds >= 99.95:
        return f"{seconds:.0f} s"
    return f"{seconds:.3g} s" if seconds >= 0.9995 else f"{seconds * 1000:.3g} ms"


def share(part: float | None) -> str:
    """Return a share in percent with one decimal, or a dash for ``None``.

    >>> share(0.98765), share(1.0), share(None)
    ('98.8 %', '100.0 %', '-')
    """
    return "-" if part is None else f"{part:.1%}".replace("%", " %")
