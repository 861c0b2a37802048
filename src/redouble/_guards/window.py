"""`Window`: counts over the last seconds; `LastCalls`: over the last calls. Counting takes no lock.

A window has ten slots, which are dropped as a whole: what was counted is seen for at least nine tenths of
the window, at most for all of it.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from itertools import count

from .._base.checks import INF

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

SLOTS = 10


class Tally:
    """A counter for any number of threads without a lock: a step of ``itertools.count`` is atomic.

    >>> tally = Tally()
    >>> tally.add(), tally.add(), tally.read(), tally.read()
    (0, 1, 2, 2)
    """

    __slots__ = ("_reads", "add")

    def __init__(self) -> None:
        self.add: Callable[[], int] = count().__next__
        self._reads = 0

    def read(self) -> int:
        """Return how often ``add`` was called. Reading is a step, too, so read under a lock."""
        value = self.add() - self._reads
        self._reads += 1
        return value


class _Slot:
    """The counts of a tenth of the window."""

    __slots__ = ("all", "marked")

    def __init__(self) -> None:
        self.all = Tally()
        self.marked = 0


class Window:
    """Two counts over the last ``seconds``: of all calls, and of those that were marked.

    A breaker marks failures, a budget retries. ``add`` takes no lock; the caller of ``mark`` holds one.

    >>> window = Window(10.0)
    >>> window.add(0.0), window.add_marked(5.0), window.read(9.9)
    (None, None, (2, 1))
    >>> window.read(10.0)
    (1, 1)
    """

    __slots__ = ("_slots", "_width", "current")

    def __init__(self, seconds: float) -> None:
        # Clocks are not finer than this, and dividing by less would overflow.
        self._width = max(seconds / SLOTS, 1e-6)
        self._slots: dict[float, _Slot] = {}
        self.current: tuple[float, Callable[[], int]] = (-INF, Tally().add)
        """When the current slot ends, and the function that counts in it. Replaced together."""

    def add(self, now: float) -> None:
        """Count one call at this time, without a lock."""
        ends, step = self.current
        if now >= ends:
            step = self._slot(now).all.add
        step()

    def mark(self, now: float) -> None:
        """Count one marked call. The caller holds a lock."""
        self._slot(now).marked += 1

    def add_marked(self, now: float) -> None:
        """Count one call, and mark it. The caller holds a lock."""
        self.add(now)
        self.mark(now)

    def unmark(self) -> None:
        """Uncount the last marked call, if it is still in the window. The caller holds a lock."""
        slots = list(self._slots.items())  # in one step: other threads count meanwhile
        for _, slot in sorted(slots, reverse=True):
            if slot.marked:
                slot.marked -= 1
                return

    def read(self, now: float) -> tuple[int, int]:
        """Return both counts of the last ``seconds``. The caller holds a lock."""
        self._slot(now)
        slots = list(self._slots.values())
        return sum([slot.all.read() for slot in slots]), sum([slot.marked for slot in slots])

    def _slot(self, now: float) -> _Slot:
        """Return the slot of this time, and drop slots outside of the window. Takes no lock."""
        # Not now // width, which puts 1.0 into the ninth slot of a width of 0.1.
        index = now / self._width // 1.0
        slot = self._slots.get(index) or self._slots.setdefault(index, _Slot())
        for old in list(self._slots):
            # Future slots, too: a fake clock may have been removed. A little ahead is another thread.
            if not -SLOTS < old - index < SLOTS:
                self._slots.pop(old, None)
        self.current = (index + 1) * self._width, slot.all.add
        return slot


class LastCalls:
    """The last ``calls`` calls, with the methods of a `Window` that has one slot without end.

    >>> last = LastCalls(2)
    >>> last.add_marked(0.0), last.add(0.0), last.add(0.0), last.read(0.0)
    (None, None, None, (2, 0))
    """

    __slots__ = ("_outcomes", "current")

    def __init__(self, calls: int) -> None:
        self._outcomes: deque[bool] = deque(maxlen=calls)
        self.current = INF, partial(self._outcomes.append, True)

    def add(self, now: float) -> None:
        """Count one call, without a lock."""
        self._outcomes.append(True)

    def add_marked(self, now: float) -> None:
        """Count one call, and mark it."""
        self._outcomes.append(False)

    def read(self, now: float) -> tuple[int, int]:
        """Return the number of calls, and of those that are marked."""
        # In this order, since other threads count meanwhile. Without a copy: on free-threaded Python a
        # deque cannot be copied while it is appended to.
        marked = self._outcomes.count(False)
        return len(self._outcomes), marked
