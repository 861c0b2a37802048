"""Counters in memory, and exporters for Prometheus and OpenTelemetry.

::

    counters = Counters(successes=True)
    policy = Policy(listeners=[counters])
    print(counters.table())

All three are listeners: put them into ``Policy(listeners=[...])``, or give them to ``events.subscribe``,
which sends them the events of every policy of the process, but no successes. All three count the same, by the
name of the policy.
"""

from __future__ import annotations

from collections import deque

from ..events import Discarded
from ._counts import OTHER, BudgetLevel, Counts, Distribution, Snapshot, Tally
from ._gauges import Counting
from ._opentelemetry import OpenTelemetry
from ._prometheus import Prometheus

__all__ = [
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
    from ..events import Event


class Counters(Counting):
    """Counters in memory, by the name of the policy. A listener, safe to share between threads.

    With ``successes`` it also counts calls that succeed at the first try, which success rates need: it must
    then be in the ``listeners`` of the policies themselves. At most ``max_names`` policies are counted apart;
    the rest are counted together, as ``(other)``.

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

    def __init__(self, *, successes: bool = False, max_names: int = 200) -> None:
        super().__init__(successes, max_names)
        self._new_numbers = lambda policy: Tally()
        self._discarded: dict[str, int] = {}
        self._pending: deque[Event] = deque()
        self._counting = False

    def __call__(self, event: Event) -> None:
        """Count an event."""
        with self._lock:
            # The lock is reentrant. A signal handler, or a finalizer, that runs in the middle of this in the
            # same thread leaves its event for later.
            if self._counting:
                self._pending.append(event)
                return
            try:
                self._counting = True
                self._count(event)
                while self._pending:
                    self._count(self._pending.popleft())
            finally:
                self._counting = False

    def _learn(self, event: Event) -> None:
        """Count discarded dead letters by queue, and learn the state of guards."""
        super()._learn(event)
        if isinstance(event, Discarded):
            queue = event.queue if self._has_room(self._discarded, event.queue) else OTHER
            self._discarded[queue] = self._discarded.get(queue, 0) + event.count

    def snapshot(self) -> Snapshot:
        """Return all numbers as of now."""
        with self._lock:
            outer = self._counting
            try:
                self._counting = True  # the events of a signal handler are counted in the next snapshot
                while self._pending and not outer:
                    self._count(self._pending.popleft())
                policies = {
                    name: tally.counts(successes=self.wants_successes)
                    for name, tally in self._numbers.items()
                }
                discarded = dict(self._discarded)
            finally:
                self._counting = outer
        # Without the lock: the guards that it reads may be the user's own.
        return Snapshot(policies, *self._guard_states(), discarded)

    def table(self) -> str:
        """Return all numbers as of now, as text for people."""
        return self.snapshot().table()

    def reset(self) -> None:
        """Begin again at 0. Guards stay watched."""
        with self._lock:
            self._pending.clear()
            self._numbers = {}
            self._discarded = {}

    def _after_fork(self) -> None:
        super()._after_fork()
        self._counting = False  # the thread that was counting is in the parent

    def __repr__(self) -> str:
        return f"<Counters of {len(self._numbers)} policies>"
