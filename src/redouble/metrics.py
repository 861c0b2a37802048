"""Retries in figures: counters in memory, and adapters for Prometheus and OpenTelemetry.

    counters = Counters(successes=True)
    policy = Policy(listeners=[counters])
    print(counters.table())

All three are listeners: they go into ``Policy(listeners=[...])``, or to ``events.subscribe``, which lets them
hear of every policy of the process, but not of successes. All three count the same, by name of the policy.
"""

from __future__ import annotations

from collections import deque

from ._figures import BudgetLevel, Counts, Snapshot, snapshot
from ._gauges import Counting
from ._opentelemetry import OpenTelemetry
from ._prometheus import Prometheus
from ._tally import BUCKETS, OTHER, Bounded, Distribution, Tally
from .events import Discarded

__all__ = [
    "BUCKETS",
    "OTHER",
    "BudgetLevel",
    "Counters",
    "Counts",
    "Distribution",
    "OpenTelemetry",
    "Prometheus",
    "Snapshot",
]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .events import Event

# So many events wait to be counted, before somebody counts them; and so many at most, before those who
# bring more wait for that.
_SOME, _MANY = 256, 4096


class Counters(Counting):
    """Counts in memory what becomes of calls, by name of the policy. A listener, safe to share.

    With ``successes`` it also hears of calls that succeed at the first try, so that there are success rates:
    it must then be in the ``listeners`` of the policies themselves. At most ``names`` policies are counted
    apart; the rest is counted together, as ``(other)``.

    >>> from redouble import Policy, testing
    >>> counters = Counters(successes=True)
    >>> policy = Policy(name="fetch", listeners=[counters])
    >>> with testing.no_waits():
    ...     for outcome in ("page", TimeoutError("slow")):
    ...         page = policy.call(testing.scripted(outcome, "page"))
    >>> counts = counters.snapshot().policies["fetch"]
    >>> counts.calls, counts.succeeded, counts.recovered, counts.retries, counts.success_rate
    (2, 1, 1, 1, 1.0)
    """

    def __init__(self, *, successes: bool = False, names: int = 200) -> None:
        super().__init__(Tally, successes, names)
        # Events that are not counted yet. Adding to it is one step, and needs no lock.
        self._new: deque[Event] = deque()
        self._discarded: dict[str, int] = {}
        self._busy = False

    def __call__(self, event: Event) -> None:
        """Takes note of an event."""
        new = self._new
        new.append(event)
        # Whoever finds many of them counts them, unless somebody is at it. Only if that one cannot keep up,
        # the others wait for him: what is not counted yet must not grow without end.
        if len(new) > _SOME and (not self._busy or len(new) > _MANY):
            with self._lock:  # which no interrupt can leave locked
                self._fold()

    def _fold(self) -> None:
        """Counts what is new. Under the lock."""
        # A signal handler, or a finalizer, may come here in the middle of it, in the same thread. What it
        # brings is counted next time.
        if self._busy:
            return
        try:
            self._busy = True
            # Not until there are none: others may add to them as fast as this goes.
            for _ in range(len(self._new)):
                self._hear(self._new.popleft())
        finally:
            self._busy = False

    def _learn(self, event: Event) -> None:
        super()._learn(event)
        if isinstance(event, Discarded):
            known = event.queue in self._discarded or len(self._discarded) < self.names
            queue = event.queue if known else OTHER
            self._discarded[queue] = self._discarded.get(queue, 0) + event.count

    def snapshot(self) -> Snapshot:
        """All figures as of now."""
        with self._lock:
            self._fold()
            outer = self._busy
            try:
                self._busy = True
                successes, counted = self.wants_successes, self._counted.kept
                policies = {name: Counts(tally, successes=successes) for name, tally in counted.items()}
                discarded = dict(self._discarded)
            finally:
                self._busy = outer
        # Without the lock: the guards that it reads may be the user's own.
        return snapshot(policies, discarded, self._readings())

    def table(self) -> str:
        """All figures as of now, as text for people."""
        return self.snapshot().table()

    def reset(self) -> None:
        """Begins again at 0. What is watched stays so."""
        with self._lock:
            self._new.clear()
            self._counted = Bounded(self.names, Tally)
            self._discarded = {}

    def _after_fork(self) -> None:
        super()._after_fork()
        self._busy = False  # whoever was at it is in the parent

    def __repr__(self) -> str:
        return f"<Counters of {len(self._counted.kept)} policies>"
