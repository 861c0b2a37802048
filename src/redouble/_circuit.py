"""The state machine of a circuit breaker. No lock, no clock: time is an argument.

The transitions are one table, `TRANSITIONS`; nothing else changes the state. What a method changes it
changes by putting one new `Phase` in place of another, so that nobody ever sees half of a change. It looks
again where that other is gone: a signal handler has used the circuit in the meantime.
"""

from __future__ import annotations

import sys
from enum import StrEnum

from ._record import Record, assign

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ._tripping import Count

    # From, to, seconds to be open, the failure that did it.
    Change = tuple["State", "State", float | None, str | None]


class State(StrEnum):
    """What a breaker does with calls: lets them through, refuses them, or tries a few."""

    closed = "closed"
    open = "open"
    half_open = "half-open"


class Happening(StrEnum):
    """What can change the state of a breaker."""

    tripped = "too many failures"
    waited = "open_for has passed"
    recovered = "enough probes succeeded"
    relapsed = "a probe failed"
    opened = "open() was called"
    reset = "close() was called"


# All that can happen to a breaker, and where it leads. The diagram in the documentation is drawn from this.
TRANSITIONS: dict[tuple[State, Happening], State] = {
    (State.closed, Happening.tripped): State.open,
    (State.open, Happening.waited): State.half_open,
    (State.half_open, Happening.recovered): State.closed,
    (State.half_open, Happening.relapsed): State.open,
    **{(state, Happening.opened): State.open for state in State},
    **{(state, Happening.reset): State.closed for state in State},
}


class Phase(Record):
    """Where a circuit is. A ticket is the generation in which a call was let through."""

    __slots__ = ("generation", "oldest", "probes", "since", "state", "successes", "until")
    state: State
    generation: int
    until: float | None  # open: when probes are let through; None until somebody closes it by hand
    probes: int  # half-open: how many are under way,
    successes: int  # how many have succeeded,
    since: float  # and when the last one set out
    oldest: int  # results count from this generation on: an older one where probes were replaced

    def __init__(
        self,
        state: State,
        generation: int,
        until: float | None = None,
        probes: int = 0,
        successes: int = 0,
        since: float = 0.0,
        oldest: int | None = None,
    ) -> None:
        assign(self, "state", state)
        assign(self, "generation", generation)
        assign(self, "until", until)
        assign(self, "probes", probes)
        assign(self, "successes", successes)
        assign(self, "since", since)
        assign(self, "oldest", generation if oldest is None else oldest)

    def is_due(self, now: float) -> bool:
        """Whether an open circuit lets probes through by now."""
        return self.until is not None and now >= self.until

    def counts(self, ticket: int | None) -> bool:
        """Whether a result counts: that of a call from before the last change says nothing any more."""
        if self.state is State.open:
            return False
        return ticket is None or self.oldest <= ticket <= self.generation

    def with_one_more(self, now: float) -> Phase:
        """The same, when a probe has set out."""
        return Phase(
            self.state, self.generation, None, self.probes + 1, self.successes, since=now, oldest=self.oldest
        )

    def with_one_less(self, ticket: int | None, successes: int) -> Phase:
        """The same, when a probe has ended; one that was replaced has no place to give back."""
        probes = max(0, self.probes - 1) if ticket in (None, self.generation) else self.probes
        return Phase(self.state, self.generation, None, probes, successes, self.since, self.oldest)

    def with_others(self) -> Phase:
        """The same, with the places of all probes free for others."""
        return Phase(self.state, self.generation + 1, successes=self.successes, oldest=self.oldest)


class Circuit:
    """A circuit and its rules. Each method that may change the state gives the change, if there was one."""

    def __init__(self, counting: Callable[[], Count], successes: int, open_for: float, probes: int) -> None:
        self._counting = counting
        self.successes = successes
        self.open_for = open_for
        self.probes = probes
        self.count = counting()
        self.last_failure: str | None = None
        self.phase = Phase(State.closed, 1)

    def pass_time(self, now: float) -> Change | None:
        """An open circuit whose time is over becomes half-open."""
        phase = self.phase
        if phase.is_due(now):
            return self.go(Happening.waited, now)
        if now - phase.since >= self.open_for:
            # If there are probes, nobody has heard of them for as long as a circuit is open: others may try.
            self.forget_probes()
        return None

    def admit(self, now: float) -> int | None:
        """Lets a call through and gives its ticket; ``None`` if it is refused."""
        while True:
            phase = self.phase
            if phase.state is State.closed:
                return phase.generation
            if phase.state is State.open or not self._has_room(phase):
                return None
            if self._replace(phase, phase.with_one_more(now)):
                return phase.generation

    def succeed(self, ticket: int | None, now: float) -> Change | None:
        """A call has gone well."""
        while True:
            phase = self.phase
            if not phase.counts(ticket):
                return None
            if phase.state is State.closed:
                self.count.success(now)
                return None
            if phase.successes + 1 >= self.successes:
                return self.go(Happening.recovered, now)
            if self._replace(phase, phase.with_one_less(ticket, phase.successes + 1)):
                return None

    def fail(self, ticket: int | None, now: float, text: str | None) -> Change | None:
        """A call has failed."""
        phase = self.phase
        if not phase.counts(ticket):
            return None
        self.last_failure = text
        if phase.state is State.half_open:
            return self.go(Happening.relapsed, now)
        return self.go(Happening.tripped, now) if self.count.failure(now) else None

    def release(self, ticket: int | None) -> None:
        """A call has ended and says nothing: a probe gives its place to another."""
        while (phase := self.phase).probes:
            if self._replace(phase, phase.with_one_less(ticket, phase.successes)):
                return

    def forget_probes(self) -> None:
        """Those that are under way may never be heard of here; if one comes back after all, it counts."""
        while (phase := self.phase).probes:
            self._replace(phase, phase.with_others())

    def go(self, happening: Happening, now: float | None) -> Change | None:
        """Takes the one way that the table allows; without a time, an open circuit stays open.

        No way at all, if a signal handler has been here since the caller looked, and was faster.
        """
        while True:
            before = self.phase
            state = TRANSITIONS.get((before.state, happening))
            if state is None:
                return None
            until = None
            if state is State.open and now is not None:
                until = min(now + self.open_for, sys.float_info.max)
            count = self._counting() if state is State.closed else self.count
            if self._replace(before, Phase(state, before.generation + 1, until), count):
                break
        if state is State.closed or happening is Happening.opened:
            self.last_failure = None
        if state is before.state:
            return None
        return before.state, state, None if until is None else self.open_for, self.last_failure

    def _replace(self, before: Phase, after: Phase, count: Count | None = None) -> bool:
        """Put one phase in the place of another, if that is still there.

        The lock is reentrant, so a signal handler of the same thread may use the circuit between any two
        calls. Nothing is called between the look and the change.
        """
        if self.phase is not before:
            return False
        self.phase = after
        if count is not None:
            self.count = count
        return True

    def wait(self, now: float, phase: Phase | None = None) -> float | None:
        """Seconds until a call may be let through, 0.0 if one may now; ``None`` if nobody knows."""
        phase = phase or self.phase
        if phase.state is State.open:
            return None if phase.until is None else max(0.0, phase.until - now)
        if self._has_room(phase):  # as a closed circuit has, of which there are no probes
            return 0.0
        return max(0.0, phase.since + self.open_for - now)

    def _has_room(self, phase: Phase) -> bool:
        # Those under way may be enough to close it: no more than could be needed set out.
        needed = max(self.probes, self.successes)
        return phase.probes < self.probes and phase.probes + phase.successes < needed
