"""A herd of clients that fail together, drawn: when their retries arrive, without jitter and with it."""

from __future__ import annotations

from itertools import accumulate
from random import Random

from .backoff import delays, exponential, full_jitter, shown_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .backoff import Backoff

_CLIENTS, _ATTEMPTS, _SEED = 300, 4, 1
# The waits add up to 7 s at most: columns of 0.125 s each, and rows of 50 arrivals each.
_COLUMNS, _WIDTH, _HEIGHT, _ROW = 60, 0.125, 6, 50


def herd() -> str:
    """Both charts, drawn from the library's own delay functions.

    >>> print(herd())
       without jitter (exponential): 300 at once, when it is worst
       300 |        #               #...
    """
    return "\n".join([_chart("without jitter", exponential), "", _chart("with jitter", full_jitter), ""])


def _chart(title: str, backoff: Backoff) -> str:
    arrivals = _arrivals(backoff)
    lines = [f"   {title} ({shown_name(backoff)}): {max(arrivals)} at once, when it is worst"]
    for row in range(_HEIGHT, 0, -1):
        label = f"{row * _ROW:6} |" if row in (1, _HEIGHT) else "       |"
        lines.append((label + "".join([_mark(count, row) for count in arrivals])).rstrip())
    marks = "".join([f"{second:<8}" for second in range(_COLUMNS // 8 + 1)])
    return "\n".join([*lines, "       +" + "-" * _COLUMNS, f"        {marks.rstrip()} s"])


def _arrivals(backoff: Backoff) -> list[int]:
    """How many retries arrive in each eighth of a second, if all clients fail at 0 and nobody answers."""
    rng, counts = Random(_SEED), [0] * _COLUMNS
    for _ in range(_CLIENTS):
        for moment in accumulate(delays(backoff, attempts=_ATTEMPTS, rng=rng)):
            counts[int(moment / _WIDTH)] += 1
    return counts


def _mark(count: int, row: int) -> str:
    """A whole row of arrivals, more than half a row, some, none."""
    above = count - (row - 1) * _ROW
    return "#" if above >= _ROW else ":" if above > _ROW / 2 else "." if above > 0 else " "
