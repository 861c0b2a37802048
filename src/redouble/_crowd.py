"""The crowd before a service that goes away and comes back: events on virtual time.

One event is under way for each client at any moment, a tuple: when, in which order, who, and what happens.
They lie in drawers of a few milliseconds each; only the drawer that is open is a heap, and so a small one,
however many clients there are. The service needs no events of its own: it works off its queue at a fixed
rate, so that the moment at which it is done with a request is known when the request comes in.
"""

from __future__ import annotations

import errno
import heapq
import math

from ._guarding import Passage
from ._record import Record, assign
from ._virtual import admitted, succeeded, wait_after

TYPE_CHECKING = False
if TYPE_CHECKING:
    from random import Random

    from ._virtual import Progress, Strategy
    from .testing import FakeClock

    Happening = tuple[float, int, int, Exception | bool | None]


REFUSED = ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
RESET = ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
FULL = ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused: the queue is full")
SLOW = TimeoutError("no answer in time")

# What a client does next, where it does not hear of one of these errors.
_CALLS, _TRIES, _IS_SERVED = None, False, True

# The client of what happens to all of them.
_EVERYBODY = -1

# Drawers in a second of virtual time.
_DRAWERS = 200

# One way of a message, in seconds: the same for all, so that the crowd is no more spread than its waits are.
_HOP = 0.005


class Terms(Record):
    """The figures of an outage, checked."""

    __slots__ = (
        "after",
        "away",
        "before",
        "bin_seconds",
        "capacity",
        "clients",
        "hangs",
        "processes",
        "queue",
        "think",
        "timeout",
        "together",
    )
    clients: int
    processes: int
    think: float
    capacity: float
    queue: int
    timeout: float
    before: float
    away: float
    after: float
    hangs: bool
    together: bool
    bin_seconds: float

    def __init__(self, **values: float | None) -> None:
        for field, value in values.items():
            assign(self, field, value)

    @property
    def back(self) -> float:
        """When the service is back."""
        return self.before + self.away

    @property
    def end(self) -> float:
        """When nobody looks any more."""
        return self.back + self.after


class Crowd:
    """All clients, and the one service that they call."""

    def __init__(self, terms: Terms, strategy: Strategy, clock: FakeClock, rng: Random) -> None:
        self.terms, self.clock, self.rng = terms, clock, rng
        bins = math.ceil(terms.end / terms.bin_seconds - 1e-9)
        self.arrivals = [0] * bins
        """Requests that came to the service's door, away or not."""
        self.served = [0] * bins
        """Answers that their clients had waited for."""
        self.wasted = [0] * bins
        """Requests that were worked off for clients who had given up on them."""
        self.calls = self.retries = self.gave_up = self.barred = 0
        self.errors: dict[Exception, int] = dict.fromkeys((REFUSED, RESET, FULL, SLOW), 0)
        self._guarded = strategy.policies(terms.processes, clock, rng)
        self._deadline, self._timeout = strategy.policy.deadline, strategy.policy.timeout or terms.timeout
        self._underway: list[Passage | None] = [None] * terms.clients
        self._due = [0] * terms.clients
        self._numbered, self._open, self._end = 0, -1, terms.end
        self._drawers: list[list[Happening]] = [[] for _ in range(int(terms.end * _DRAWERS) + 1)]
        self._free_at, self._per_request = [0.0, 0.0], 1.0 / terms.capacity

    def run(self, tell: Progress) -> None:
        """Lets time pass until the end."""
        for client in range(self.terms.clients):
            self._think(client, 0.0)
        if self.terms.together:
            before = self.terms.before
            self._drawers[int(before * _DRAWERS)].append((before, 0, _EVERYBODY, RESET))
        for number, drawer in enumerate(self._drawers):
            self._open = number
            heapq.heapify(drawer)
            self._empty(drawer)
            tell(number / len(self._drawers))
        tell(1.0)

    def _empty(self, drawer: list[Happening]) -> None:
        due, clock, pop = self._due, self.clock, heapq.heappop
        while drawer:
            now, number, client, what = pop(drawer)
            clock.now = now
            if client == _EVERYBODY:
                self._break(now)
            elif due[client] == number:
                self._happens(client, now, what)

    def _happens(self, client: int, now: float, what: Exception | bool | None) -> None:
        call = self._underway[client]
        if call is None:
            call = self._begin(client, now)
        if what is _IS_SERVED:
            self._count(self.served, now)
            succeeded(call)
            self._think(client, now)
        elif isinstance(what, Exception):
            self._fail(client, call, now, what)
        elif admitted(call):
            self._send(client, call, now)
        else:
            self.barred += call.attempt == 1
            self.gave_up += call.attempt > 1
            self._think(client, now)

    def _push(self, client: int, moment: float, what: Exception | bool | None) -> None:
        self._numbered = self._due[client] = number = self._numbered + 1
        if moment >= self._end:  # nobody looks any more
            return
        drawer = int(moment * _DRAWERS)
        if drawer == self._open:
            heapq.heappush(self._drawers[drawer], (moment, number, client, what))
        else:
            self._drawers[drawer].append((moment, number, client, what))

    # Clients

    def _think(self, client: int, now: float) -> None:
        self._underway[client] = None
        self._push(client, now + self.rng.expovariate(1.0 / self.terms.think), _CALLS)

    def _begin(self, client: int, now: float) -> Passage:
        self.calls += 1
        call = self._underway[client] = Passage(policy=self._guarded[client % self.terms.processes])
        if self._deadline is not None:
            call.ends = now + self._deadline
        return call

    def _fail(self, client: int, call: Passage, now: float, error: Exception) -> None:
        self.errors[error] += 1
        wait = wait_after(call, error, now)
        if wait is None:
            self.gave_up += 1
            self._think(client, now)
        else:
            self._push(client, now + wait, _TRIES)

    def _break(self, now: float) -> None:
        """The connections of all clients break: who was at rest has a call to make, which has just failed."""
        for client, call in enumerate(self._underway):
            if call is None:
                self._fail(client, self._begin(client, now), now, RESET)

    def _count(self, bins: list[int], moment: float) -> None:
        if moment < self._end:
            bins[min(int(moment / self.terms.bin_seconds), len(bins) - 1)] += 1

    # The service

    def _send(self, client: int, call: Passage, now: float) -> None:
        """A request on its way, and what the client is going to hear of it."""
        there = now + _HOP
        self._count(self.arrivals, there)
        self.retries += call.attempt > 1
        done, what = self._served(there)
        answered, patience = done + _HOP, now + self._timeout
        if what is _IS_SERVED and answered > patience:
            self._count(self.wasted, done)
        if answered > patience:
            answered, what = patience, SLOW
        self._push(client, answered, what)

    def _served(self, there: float) -> tuple[float, Exception | bool]:
        """When the service is done with a request that comes in now, and how."""
        terms = self.terms
        if terms.before <= there < terms.back:
            return (terms.end if terms.hangs else there), REFUSED
        # Two queues, since the one from before is lost while the service is away.
        back = there >= terms.back
        begins = max(self._free_at[back], there)
        if (begins - there) * terms.capacity >= terms.queue:
            return there, FULL
        self._free_at[back] = done = begins + self._per_request
        return (terms.before, RESET) if there < terms.before < done else (done, _IS_SERVED)
