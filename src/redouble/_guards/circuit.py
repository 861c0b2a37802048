"""State machine of a circuit breaker, and the rules by which a closed circuit counts failures.

Without lock and clock: time is an argument. `TRANSITIONS` lists every transition, and `Circuit.go` makes
them. A method changes the state by replacing one immutable `Phase` by another, so no reader sees half of a
change. It starts over if the phase was replaced meanwhile: a signal handler in the same thread may have
used the circuit.
"""

from __future__ import annotations

import sys
from enum import StrEnum
from functools import partial

from .._base.checks import above_zero, some_seconds, whole
from .._base.record import Record
from .window import LastCalls, Window

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta
    from typing import Any

    # Before, after, seconds to be open, the text of the failure that caused it.
    Change = tuple["State", "State", float | None, str | None]


class State(StrEnum):
    """State of a breaker: it admits calls, rejects them, or admits a few probes.

    A state is also its text, as in logs and metrics:

    >>> State.half_open == "half-open"
    True
    """

    closed = "closed"
    open = "open"
    half_open = "half-open"


class Trigger(StrEnum):
    """Cause of a transition, as the diagram in the documentation names it."""

    tripped = "too many failures"
    waited = "open_for has passed"
    recovered = "enough probes succeeded"
    relapsed = "a probe failed"
    opened = "open() was called"
    reset = "close() was called"


# A test compares the diagram in the documentation with this table.
TRANSITIONS: dict[tuple[State, Trigger], State] = {
    (State.closed, Trigger.tripped): State.open,
    (State.open, Trigger.waited): State.half_open,
    (State.half_open, Trigger.recovered): State.closed,
    (State.half_open, Trigger.relapsed): State.open,
    **{(state, Trigger.opened): State.open for state in State},
    **{(state, Trigger.reset): State.closed for state in State},
}


class Phase(Record):
    """One state of a circuit, from one transition to the next. The ticket of a call is its generation."""

    state: State
    generation: int
    oldest: int  # results count from this generation on: an older one if slots of probes were freed
    until: float | None = None  # open: when probes are admitted; None if opened by hand
    probes: int = 0  # half-open: probes in flight
    successes: int = 0  # half-open: probes that have succeeded
    since: float = 0.0  # half-open: when the last probe was admitted

    def is_due(self, now: float) -> bool:
        """Return whether an open circuit admits probes by now."""
        return self.until is not None and now >= self.until

    def counts(self, ticket: int | None) -> bool:
        """Return whether a result counts. Results of calls from before the last transition do not."""
        if self.state is State.open:
            return False
        return ticket is None or self.oldest <= ticket <= self.generation

    def with_probe(self, now: float) -> Phase:
        """Return the phase with one more probe in flight."""
        return Phase(self.state, self.generation, self.oldest, None, self.probes + 1, self.successes, now)

    def without_probe(self, ticket: int | None, successes: int) -> Phase:
        """Return the phase after a probe has ended. A probe whose slot was freed has none to release."""
        probes = max(0, self.probes - 1) if ticket in (None, self.generation) else self.probes
        return Phase(self.state, self.generation, self.oldest, None, probes, successes, self.since)

    def with_free_slots(self) -> Phase:
        """Return the phase with the slots of all probes freed. Their results still count."""
        return Phase(self.state, self.generation + 1, self.oldest, successes=self.successes)


# Rules of a closed circuit. ``success`` and ``failure`` count a call; ``failure`` returns whether to open
# the circuit. Failures are counted under the breaker's lock, successes under a rate without one.


class Consecutive:
    """Opens after ``limit`` failures in a row.

    >>> count = Consecutive(2)
    >>> count.failure(0.0), count.success(0.0), count.failure(0.0), count.failure(0.0)
    (False, None, False, True)
    """

    __slots__ = ("_limit", "failures")
    window: Any = None  # not used: only failures count

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.failures = 0

    def success(self, now: float) -> None:
        """Count a call that succeeded."""
        self.failures = 0

    def failure(self, now: float) -> bool:
        """Count a call that failed, and return whether to open the circuit."""
        self.failures += 1
        return self.failures >= self._limit

    def counted(self, now: float) -> tuple[int, int]:
        """Return the calls and the failures counted."""
        return self.failures, self.failures


class Rate:
    """Opens at a share of failures, once there were ``minimum`` calls.

    >>> count = Rate(LastCalls(10), rate=0.5, minimum=3)
    >>> count.failure(0.0), count.success(0.0), count.failure(0.0), count.counted(0.0)
    (False, None, True, (3, 2))
    """

    __slots__ = ("_minimum", "_rate", "window")
    failures: Any = None  # not used: every success counts

    def __init__(self, window: Window | LastCalls, rate: float, minimum: int) -> None:
        self.window = window
        self._rate = rate
        self._minimum = minimum

    def success(self, now: float) -> None:
        """Count a call that succeeded."""
        self.window.add(now)

    def failure(self, now: float) -> bool:
        """Count a call that failed, and return whether to open the circuit."""
        self.window.add_marked(now)
        calls, failures = self.window.read(now)
        # Not by division, after which 3 of 10 would be a little more or less than 0.3.
        return calls >= self._minimum and failures >= self._rate * calls - 1e-9

    def counted(self, now: float) -> tuple[int, int]:
        """Return the calls and the failures counted."""
        return self.window.read(now)


def counting(
    failures: int | None,
    failure_rate: float | None,
    window: float | timedelta | None,
    minimum_calls: int,
    last_calls: int | None,
) -> Callable[[], Consecutive | Rate]:
    """Check the arguments of a breaker, and return a function that makes an empty count.

    >>> counting(None, 0.5, None, 20, 10)
    Traceback (most recent call last):
    ValueError: last_calls must be at least minimum_calls, which is 20, got 10
    """
    minimum = whole("minimum_calls", minimum_calls, at_least=1)
    if failure_rate is None:
        if window is not None or last_calls is not None:
            raise ValueError("window and last_calls need a failure_rate: failures in a row have no window")
        return partial(Consecutive, 5 if failures is None else whole("failures", failures, at_least=1))
    rate = above_zero("failure_rate", failure_rate)
    if rate > 1:
        raise ValueError(f"failure_rate must be a share above 0, at most 1, got {failure_rate!r}")
    if failures is not None:
        raise ValueError(f"give failures or failure_rate, not both, got {failures!r} and {failure_rate!r}")
    if last_calls is None:
        seconds = some_seconds("window", 30.0 if window is None else window)
        return lambda: Rate(Window(seconds), rate, minimum)
    if window is not None:
        raise ValueError(f"give window or last_calls, not both, got {window!r} and {last_calls!r}")
    calls = whole("last_calls", last_calls, at_least=1)
    if calls < minimum:
        raise ValueError(f"last_calls must be at least minimum_calls, which is {minimum}, got {last_calls!r}")
    return lambda: Rate(LastCalls(calls), rate, minimum)


class Circuit:
    """A circuit and its rules. Methods that may change the state return the change, or ``None``.

    >>> circuit = Circuit(partial(Consecutive, 1), successes=1, open_for=30.0, probes=1)
    >>> change = circuit.fail(circuit.admit(0.0), 0.0, "TimeoutError")
    >>> circuit.admit(10.0), circuit.wait(10.0)
    (None, 20.0)
    >>> change = circuit.pass_time(30.0)
    >>> probe = circuit.admit(30.0)
    >>> change = circuit.succeed(probe, 31.0)
    >>> circuit.phase.state
    <State.closed: 'closed'>
    """

    def __init__(
        self, counting: Callable[[], Consecutive | Rate], successes: int, open_for: float, probes: int
    ) -> None:
        self._counting = counting
        self.successes = successes
        self.open_for = open_for
        self.probes = probes
        self.count = counting()
        self.last_failure: str | None = None
        self.phase = Phase(State.closed, 1, 1)

    def pass_time(self, now: float) -> Change | None:
        """Make an open circuit half-open when its time is over."""
        phase = self.phase
        if phase.is_due(now):
            return self.go(Trigger.waited, now)
        if now - phase.since >= self.open_for:
            self.free_slots()  # the probes, if any, have had no result for as long as a circuit stays open
        return None

    def admit(self, now: float) -> int | None:
        """Admit a call and return its ticket; return ``None`` if it is rejected."""
        while True:
            phase = self.phase
            if phase.state is State.closed:
                return phase.generation
            if phase.state is State.open or not self._has_room(phase):
                return None
            if self._replace(phase, phase.with_probe(now)):
                return phase.generation

    def succeed(self, ticket: int | None, now: float) -> Change | None:
        """Count a success."""
        while True:
            phase = self.phase
            if not phase.counts(ticket):
                return None
            if phase.state is State.closed:
                self.count.success(now)
                return None
            if phase.successes + 1 >= self.successes:
                return self.go(Trigger.recovered, now)
            if self._replace(phase, phase.without_probe(ticket, phase.successes + 1)):
                return None

    def fail(self, ticket: int | None, now: float, text: str | None) -> Change | None:
        """Count a failure."""
        phase = self.phase
        if not phase.counts(ticket):
            return None
        self.last_failure = text
        if phase.state is State.half_open:
            return self.go(Trigger.relapsed, now)
        return self.go(Trigger.tripped, now) if self.count.failure(now) else None

    def release(self, ticket: int | None) -> None:
        """Free the slot of a probe that ended without a result."""
        while (phase := self.phase).probes:
            if self._replace(phase, phase.without_probe(ticket, phase.successes)):
                return

    def free_slots(self) -> None:
        """Free the slots of all probes in flight. A late result is still counted."""
        while (phase := self.phase).probes:
            self._replace(phase, phase.with_free_slots())

    def go(self, trigger: Trigger, now: float | None) -> Change | None:
        """Make the transition in the table. An open circuit without a time stays open until `close`.

        There is no transition if a signal handler made one since the caller looked.
        """
        while True:
            before = self.phase
            state = TRANSITIONS.get((before.state, trigger))
            if state is None:
                return None
            until = None
            if state is State.open and now is not None:
                until = min(now + self.open_for, sys.float_info.max)
            count = self._counting() if state is State.closed else self.count
            generation = before.generation + 1
            if self._replace(before, Phase(state, generation, generation, until), count):
                break
        if state is State.closed or trigger is Trigger.opened:
            self.last_failure = None
        if state is before.state:
            return None
        return before.state, state, None if until is None else self.open_for, self.last_failure

    def _replace(self, before: Phase, after: Phase, count: Consecutive | Rate | None = None) -> bool:
        """Replace a phase and return true, or return false if it is no longer current.

        The lock is reentrant, so a signal handler of the same thread may use the circuit between any two
        calls. Nothing is called between the comparison and the change.
        """
        if self.phase is not before:
            return False
        self.phase = after
        if count is not None:
            self.count = count
        return True

    def wait(self, now: float, phase: Phase | None = None) -> float | None:
        """Return the seconds until a call may be admitted, 0.0 if one may now, ``None`` if opened by hand."""
        phase = phase or self.phase
        if phase.state is State.open:
            return None if phase.until is None else max(0.0, phase.until - now)
        if self._has_room(phase):  # as a closed circuit has, which has no probes
            return 0.0
        return max(0.0, phase.since + self.open_for - now)

    def _has_room(self, phase: Phase) -> bool:
        """Return whether another probe may be admitted."""
        # No more probes than are needed: those in flight may be enough to close the circuit.
        needed = max(self.probes, self.successes)
        return phase.probes < self.probes and phase.probes + phase.successes < needed
