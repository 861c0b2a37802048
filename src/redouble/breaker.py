"""Circuit breakers: stop calls to a dependency that keeps failing.

While calls succeed the circuit is closed and every call is admitted. When too many fail it opens, and calls
are rejected at once with `CircuitOpen`. After a while it is half-open and admits a few probes: if they
succeed it closes, if one fails it opens again.
"""

# - `TRANSITIONS` lists every transition between the states.
# - `Circuit` is the state machine, `Consecutive` and `_Rate` are the rules by which it counts failures. They
#   have no lock and no clock: time is an argument.
# - `Breaker` is the base class of breakers, also of custom ones.
# - `CircuitBreaker` adds the lock, the clock and the events to a circuit.

from __future__ import annotations

import sys
import time
from enum import StrEnum
from functools import partial

from ._base import checks as check
from ._base.callables import name_of, truth
from ._base.checks import above_zero, some_seconds, whole
from ._base.clock import fakes
from ._base.log_once import warn_once
from ._base.record import Record
from ._base.text import brief
from ._guards.base import Gate
from ._guards.window import LastCalls, Window
from .classify import Cause, Classifier, retryable, verdict
from .errors import CircuitOpen, DeadlineExceeded
from .events import CircuitChanged, emit, wanted

__all__ = [
    "Breaker",
    "CircuitBreaker",
    "State",
]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import timedelta
    from typing import Any

    from .events import Listener

    Listeners = tuple[Listener, ...]
    Ignored = type[Exception] | Iterable[type[Exception]] | Callable[[Exception], object]
    # Before, after, seconds to be open, the text of the failure that caused it.
    Change = tuple["State", "State", float | None, str | None]


# The state machine


class State(StrEnum):
    """State of a breaker: it admits calls, rejects them, or admits a few probes.

    A state is also its text, as in logs and metrics:

    >>> State.half_open == "half-open"
    True
    """

    closed = "closed"
    open = "open"
    half_open = "half-open"


class _Trigger(StrEnum):
    """Cause of a transition, as the diagram in the documentation names it."""

    tripped = "too many failures"
    waited = "open_for has passed"
    recovered = "enough probes succeeded"
    relapsed = "a probe failed"
    opened = "open() was called"
    reset = "close() was called"


# A test compares the diagram in the documentation with this table.
TRANSITIONS: dict[tuple[State, _Trigger], State] = {
    (State.closed, _Trigger.tripped): State.open,
    (State.open, _Trigger.waited): State.half_open,
    (State.half_open, _Trigger.recovered): State.closed,
    (State.half_open, _Trigger.relapsed): State.open,
    **{(state, _Trigger.opened): State.open for state in State},
    **{(state, _Trigger.reset): State.closed for state in State},
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


class _Rate:
    """Opens at a share of failures, once there were ``minimum`` calls.

    >>> count = _Rate(LastCalls(10), rate=0.5, minimum=3)
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


def _counting(
    failures: int | None,
    failure_rate: float | None,
    window: float | timedelta | None,
    minimum_calls: int,
    last_calls: int | None,
) -> Callable[[], Consecutive | _Rate]:
    """Check the arguments of a breaker, and return a function that makes an empty count.

    >>> _counting(None, 0.5, None, 20, 10)
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
        return lambda: _Rate(Window(seconds), rate, minimum)
    if window is not None:
        raise ValueError(f"give window or last_calls, not both, got {window!r} and {last_calls!r}")
    calls = whole("last_calls", last_calls, at_least=1)
    if calls < minimum:
        raise ValueError(f"last_calls must be at least minimum_calls, which is {minimum}, got {last_calls!r}")
    return lambda: _Rate(LastCalls(calls), rate, minimum)


class Circuit:
    """A circuit and its rules. Methods that may change the state return the change, or ``None``.

    A method changes the state by replacing one immutable `Phase` by another, so no reader sees half of a
    change. It starts over if the phase was replaced meanwhile: a signal handler in the same thread may have
    used the circuit.

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
        self, counting: Callable[[], Consecutive | _Rate], successes: int, open_for: float, probes: int
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
            return self.go(_Trigger.waited, now)
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
                return self.go(_Trigger.recovered, now)
            if self._replace(phase, phase.without_probe(ticket, phase.successes + 1)):
                return None

    def fail(self, ticket: int | None, now: float, text: str | None) -> Change | None:
        """Count a failure."""
        phase = self.phase
        if not phase.counts(ticket):
            return None
        self.last_failure = text
        if phase.state is State.half_open:
            return self.go(_Trigger.relapsed, now)
        return self.go(_Trigger.tripped, now) if self.count.failure(now) else None

    def release(self, ticket: int | None) -> None:
        """Free the slot of a probe that ended without a result."""
        while (phase := self.phase).probes:
            if self._replace(phase, phase.without_probe(ticket, phase.successes)):
                return

    def free_slots(self) -> None:
        """Free the slots of all probes in flight. A late result is still counted."""
        while (phase := self.phase).probes:
            self._replace(phase, phase.with_free_slots())

    def go(self, trigger: _Trigger, now: float | None) -> Change | None:
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
        if state is State.closed or trigger is _Trigger.opened:
            self.last_failure = None
        if state is before.state:
            return None
        return before.state, state, None if until is None else self.open_for, self.last_failure

    def _replace(self, before: Phase, after: Phase, count: Consecutive | _Rate | None = None) -> bool:
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


# Breakers

# Causes of failures that are about the request, and say nothing about the health of the server.
_SAYS_NOTHING = frozenset({Cause.permanent, Cause.unauthorized, Cause.conflict})


def _says_nothing(error: object) -> bool:
    """Return whether a failure says nothing about the health of the dependency: a 400, a 404, a conflict.

    >>> _says_nothing(FileNotFoundError(2, "no such file")), _says_nothing(TimeoutError())
    (True, False)
    """
    # Too slow is a failure, although the classifier finds our own errors permanent. By class: isinstance
    # would read attributes of the error, which may raise.
    return not issubclass(type(error), DeadlineExceeded) and verdict(error).cause in _SAYS_NOTHING


class Breaker(Gate):
    """Base class of breakers. Subclass it for a custom breaker.

    If ``is_async`` is true, `enter`, `success`, `failure` and `release` return awaitables. Give a subclass
    the attribute ``at_rest``, false while a registry must keep it.
    """

    # Read by the engine on every call. The ticket for calls while the circuit is closed; None if they must
    # `enter`.
    _ticket: int | None = None
    # Whether a success would change nothing, so that `success` need not be called.
    _clean: bool = False

    def enter(self, listeners: Listeners = ()) -> Any:
        """Admit a call and return its ticket, or raise `CircuitOpen`.

        The caller passes the ticket to exactly one of `success`, `failure` and `release`. ``listeners``
        receive a change of state in addition to the breaker's own.
        """
        raise NotImplementedError

    def success(self, ticket: Any = None, listeners: Listeners = ()) -> Any:
        """Record that an admitted call succeeded."""
        raise NotImplementedError

    def failure(self, ticket: Any = None, error: Exception | None = None, listeners: Listeners = ()) -> Any:
        """Record that an admitted call failed. Errors that say nothing about health are not counted."""
        raise NotImplementedError

    def release(self, ticket: Any = None) -> Any:
        """Record that an admitted call ended with nothing to learn from it: interrupted, or ignored."""
        raise NotImplementedError

    def refuses(self) -> bool:
        """Return whether a call would be rejected now, as far as is known here. Changes nothing."""
        raise NotImplementedError

    def refusal(self) -> CircuitOpen:
        """Return the error with which a call is rejected."""
        raise NotImplementedError

    def _enter(self) -> Any:
        return self.enter()

    def _leave(self, ticket: Any, error: BaseException | None, result: Any = None) -> Any:
        if error is None:
            return None if self._clean else self.success(ticket)
        return self.failure(ticket, error) if isinstance(error, Exception) else self.release(ticket)


class CircuitBreaker(Breaker):
    """Rejects calls to a dependency that keeps failing, and admits probes to see whether it has recovered.

    Opens after ``failures`` in a row (5); or, with ``failure_rate``, when that share of the calls of the
    last ``window`` seconds (30), or of the ``last_calls``, has failed, and there were at least
    ``minimum_calls``. After ``open_for`` seconds it admits ``probes`` at a time, and closes when
    ``successes`` of them have succeeded. Errors that say nothing about health, such as a 400, are not
    counted; ``ignore`` names more.

    In a policy, as decorator or as context manager, sync and async. Safe to share.

    >>> breaker = CircuitBreaker(failures=2, open_for=30.0, name="payments")
    >>> @breaker
    ... def pay():
    ...     raise TimeoutError("slow")
    >>> for _ in range(2):
    ...     try: pay()
    ...     except TimeoutError: pass
    >>> breaker.state
    <State.open: 'open'>
    >>> pay()
    Traceback (most recent call last):
    redouble.errors.CircuitOpen: the circuit of payments is open for another 30.0 s (TimeoutError: slow)
    """

    def __init__(
        self,
        failures: int | None = None,
        successes: int = 1,
        open_for: float | timedelta = 30.0,
        probes: int = 1,
        failure_rate: float | None = None,
        window: float | timedelta | None = None,
        minimum_calls: int = 20,
        *,
        last_calls: int | None = None,
        ignore: Ignored | None = None,
        name: str | None = None,
        listeners: Iterable[Listener] = (),
        clock: Callable[[], float] | None = None,
    ) -> None:
        super().__init__(name, check.optional(check.sync_function)("clock", clock))
        self.listeners: Listeners = check.listeners("listeners", listeners)
        if isinstance(ignore, Classifier):
            raise TypeError(f"ignore must be exception types or a predicate, got {ignore!r}")
        self._ignore: Any = check.optional(retryable)("ignore", ignore)
        self._circuit = Circuit(
            _counting(failures, failure_rate, window, minimum_calls, last_calls),
            whole("successes", successes, at_least=1),
            check.some_seconds("open_for", open_for),
            whole("probes", probes, at_least=1),
        )
        self._show()

    @property
    def state(self) -> State:
        """Closed, open or half-open, as the next call would find it."""
        phase = self._circuit.phase
        return State.half_open if phase.is_due(self._now()) else phase.state

    @property
    def retry_after(self) -> float | None:
        """Seconds until a call may be admitted, 0.0 if one may now; ``None`` if opened by hand."""
        return self._circuit.wait(self._now())

    @property
    def counted(self) -> tuple[int, int]:
        """Calls and failures counted towards opening; without a rate, both are the failures in a row."""
        now = self._now()
        with self._lock:
            return self._circuit.count.counted(now)

    @property
    def at_rest(self) -> bool:
        """Whether it is closed and has no failure to remember, so that a registry may evict it."""
        return self._ticket is not None and self.counted[1] == 0

    def refuses(self) -> bool:
        """Return whether a call would be rejected now. Changes nothing."""
        return self._ticket is None and self.retry_after != 0.0

    def enter(self, listeners: Listeners = ()) -> int:
        """Admit a call and return its ticket, or raise `CircuitOpen`."""
        ticket = self._ticket
        if ticket is not None:
            return ticket
        now = self._now()
        with self._lock:
            change = self._circuit.pass_time(now)
            ticket = self._circuit.admit(now)
            self._show()
        if change is not None:
            try:
                self._tell(change, listeners)
            except BaseException:  # an interrupt in a listener: the call is not made
                self.release(ticket)
                raise
        if ticket is None:
            raise self.refusal()
        return ticket

    def refusal(self) -> CircuitOpen:
        """Return the error with which a call is rejected."""
        phase, last = self._circuit.phase, self._circuit.last_failure
        wait = self._circuit.wait(self._now(), phase)
        if phase.state is State.half_open:
            how = f"half-open and admits at most {self._circuit.probes} at a time"
        elif wait is None:
            how = "held open by hand, until close() is called"
        else:
            how = f"open for another {wait:.1f} s"
        text = f"the circuit of {self.name} is {how}" + (f" ({last})" if last else "")
        return CircuitOpen(text, name=self.name, retry_after=wait, last_failure=last)

    def success(self, ticket: int | None = None, listeners: Listeners = ()) -> None:
        """Record that an admitted call succeeded."""
        if self._window is not None and (at_present := self._ticket) is not None:
            if ticket == at_present or ticket is None:
                # `_now` and `Window.add` inlined, without a lock: every successful call comes here.
                now = time.monotonic() if self._clock is None and not fakes else self._now()
                ends, step = self._window.current
                if now < ends:
                    step()
                else:
                    self._window.add(now)
            return
        now = self._now()
        with self._lock:
            change = self._circuit.succeed(ticket, now)
            self._show()
        self._tell(change, listeners)

    def failure(
        self, ticket: int | None = None, error: Exception | None = None, listeners: Listeners = ()
    ) -> None:
        """Record that an admitted call failed. Errors that say nothing about health are not counted."""
        try:
            ignored, text = self._examine(error)
        except BaseException:  # an interrupt in the user's code: how the call ended stays unknown
            self.release(ticket)
            raise
        if ignored:
            self.release(ticket)
        else:
            self._fail(ticket, text, listeners)

    def _examine(self, error: Exception | None) -> tuple[bool, str | None]:
        """Return whether to ignore a failure, and its text."""
        return (False, None) if error is None else (self._ignores(error), brief(error))

    def _fail(self, ticket: int | None, text: str | None, listeners: Listeners) -> None:
        """Count a failure that is not ignored."""
        now = time.monotonic() if self._clock is None and not fakes else self._now()
        self._change(listeners, self._circuit.fail, ticket, now, text)

    def release(self, ticket: int | None = None) -> None:
        """Record that an admitted call ended with nothing to learn from it: interrupted, or ignored."""
        if self._ticket is None:
            with self._lock:
                self._circuit.release(ticket)

    def open(self) -> None:
        """Open the circuit by hand; it stays open until `close` is called."""
        self._change((), self._circuit.go, _Trigger.opened, None)

    def close(self) -> None:
        """Close the circuit by hand, and forget all failures."""
        self._change((), self._circuit.go, _Trigger.reset, None)

    def _change(self, listeners: Listeners, step: Callable[..., Change | None], *args: object) -> None:
        """Run a step of the circuit that may open or close it, and emit the change."""
        with self._lock:
            self._hide()
            change = step(*args)
            self._show()
        self._tell(change, listeners)

    # A thread that is killed between these two leaves a breaker that every call enters and reports to,
    # never one that admits calls to an open circuit.

    def _hide(self) -> None:
        """Make every call use `enter` and `success`. Under the lock, before a change."""
        self._ticket, self._clean = None, False

    def _show(self) -> None:
        """Set what calls read without the lock. Under the lock, after a change."""
        circuit = self._circuit
        phase, count = circuit.phase, circuit.count
        window = count.window
        # Nothing is called from here on: a signal handler that changes the circuit runs before, or after.
        if circuit.phase is phase and phase.state is State.closed:
            self._clean = count.failures == 0
            self._window = window
            self._ticket = phase.generation

    def _ignores(self, error: Exception) -> bool:
        """Return whether a failure says nothing about health, by the rule and ``ignore``."""
        ignore = self._ignore
        try:
            if ignore is None or ignore.__class__ is tuple:
                return _says_nothing(error) or (ignore is not None and isinstance(error, ignore))
            return truth("it", ignore(error))
        except Exception as failed:  # noqa: BLE001 - the error of a callback is not the call's
            warn_once(ignore, f"ignore {name_of(ignore, short=True)} of {self.name} failed", failed)
            return False

    def _tell(self, change: Change | None, listeners: Listeners) -> None:
        """Emit a change of state. Without the lock: listeners may use the breaker."""
        if change is None:
            return
        heard = (*self.listeners, *[other for other in listeners if other not in self.listeners])
        if wanted(heard):
            before, after, delay, last = change
            event = CircuitChanged(self.name, before=before, after=after, delay=delay, error_message=last)
            emit(event, heard)

    def _after_fork(self) -> None:
        """Free the slots of probes in a forked child: the probes are in the parent."""
        super()._after_fork()
        self._circuit.free_slots()  # the probes in flight are in the parent

    def __repr__(self) -> str:
        return f"<{self.name}: {self.state}>"
