"""Figures as a table for people."""

from __future__ import annotations

from ._columns import safe, width_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def aligned(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as need be: the first one flush left, figures flush right.

    >>> print(aligned(("policy", "calls"), [("fetch", "12"), ("store", "3")]))
    policy  calls
    fetch      12
    store       3
    """
    lines = [[safe(cell) for cell in line] for line in (head, *rows)]
    widths = [max(map(width_of, column)) for column in zip(*lines, strict=True)]
    return "\n".join([_line(line, widths) for line in lines])


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    blanks = [" " * (width - width_of(cell)) for cell, width in zip(cells, widths, strict=True)]
    first, *others = zip(cells, blanks, strict=True)
    return "  ".join(["".join(first), *(blank + cell for cell, blank in others)]).rstrip()


def duration(seconds: float | None) -> str:
    """Seconds with the three figures that matter; a dash where there are none.

    >>> duration(0.0042), duration(0.25), duration(1.5), duration(250.0), duration(None)
    ('4.2 ms', '250 ms', '1.5 s', '250 s', '-')
    """
    if seconds is None:
        return "-"
    if seconds >= 99.95:
        return f"{seconds:.0f} s"
    return f"{seconds:.3g} s" if seconds >= 0.9995 else f"{seconds * 1000:.3g} ms"


def share(part: float | None) -> str:
    """A share in percent, with a figure after the point.

    >>> share(0.98765), share(1.0), share(None)
    ('98.8 %', '100.0 %', '-')
    """
    return "-" if part is None else f"{part:.1%}".replace("%", " %")
