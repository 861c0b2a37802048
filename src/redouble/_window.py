"""Counts of the last seconds, kept in ten slots. Counting takes no lock; reading does.

What was counted falls out slot by slot: it is seen for at least nine tenths of the window and at most
for the whole of it.
"""

from __future__ import annotations

from itertools import count

from ._numbers import INF

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

SLOTS = 10


class Tally:
    """Counts from any number of threads without a lock: a step of ``itertools.count`` cannot be torn."""

    __slots__ = ("_looks", "add")

    def __init__(self) -> None:
        self.add: Callable[[], int] = count().__next__
        self._looks = 0

    def read(self) -> int:
        """How often ``add`` was called. Looking is a step, too, so only one thread may look at a time."""
        value = self.add() - self._looks
        self._looks += 1
        return value


class _Slot:
    __slots__ = ("all", "marked")

    def __init__(self) -> None:
        self.all = Tally()
        self.marked = 0


class Window:
    """Two counts over the last ``seconds``: ``add`` counts all without a lock, ``mark`` some, under one."""

    __slots__ = ("_slots", "_width", "current")

    def __init__(self, seconds: float) -> None:
        # No clock tells finer than this, and a width of next to nothing is no divisor.
        self._width = max(seconds / SLOTS, 1e-6)
        self._slots: dict[float, _Slot] = {}
        self.current: tuple[float, Callable[[], int]] = (-INF, Tally().add)
        """When the running slot ends, and how to count in it. Replaced as one, so never torn."""

    def add(self, now: float) -> None:
        """Counts one, at this time. Takes no lock."""
        ends, step = self.current
        if now >= ends:
            step = self._turn(now).all.add
        step()

    def mark(self, now: float) -> None:
        """Counts one of the others. The caller holds a lock."""
        self._turn(now).marked += 1

    def unmark(self) -> None:
        """Take back the last one that was marked, if it is still in the window. The caller holds a lock."""
        slots = list(self._slots.items())  # at once: others count meanwhile
        for _, slot in sorted(slots, reverse=True):
            if slot.marked:
                slot.marked -= 1
                return

    def read(self, now: float) -> tuple[int, int]:
        """Both counts of the last ``seconds``. The caller holds a lock."""
        self._turn(now)
        slots = list(self._slots.values())
        return sum([slot.all.read() for slot in slots]), sum([slot.marked for slot in slots])

    def _turn(self, now: float) -> _Slot:
        """The slot of this time; what is not of this window is dropped. Any thread may do this."""
        # Not now // width, by which 1.0 is in the ninth slot of a tenth.
        place = now / self._width // 1.0
        slot = self._slots.get(place) or self._slots.setdefault(place, _Slot())
        for old in list(self._slots):
            # In the future, too: a clock of tests may have been taken away. A little ahead is another thread.
            if not -SLOTS < old - place < SLOTS:
                self._slots.pop(old, None)
        self.current = (place + 1) * self._width, slot.all.add
        return slot
