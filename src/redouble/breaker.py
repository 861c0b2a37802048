"""Circuit breakers: stop calls to a dependency that keeps failing.

While calls succeed the circuit is closed and every call is admitted. When too many fail it opens, and calls
are rejected at once with `CircuitOpen`. After a while it is half-open and admits a few probes: if they
succeed it closes, if one fails it opens again.

The rules are in ``_guards.circuit``. This module adds the lock, the clock and the events.
"""

from __future__ import annotations

import time

from ._base import checks as check
from ._base.callables import name_of, truth
from ._base.checks import whole
from ._base.clock import fakes
from ._base.log_once import warn_once
from ._base.text import brief
from ._guards.base import Gate
from ._guards.circuit import Circuit, State, Trigger, counting
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

    from ._guards.circuit import Change
    from .events import Listener

    Listeners = tuple[Listener, ...]
    Ignored = type[Exception] | Iterable[type[Exception]] | Callable[[Exception], object]

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
            counting(failures, failure_rate, window, minimum_calls, last_calls),
            whole("successes", successes, at_least=1),
            check.some_seconds("open_for", open_for),
            whole("probes", probes, at_least=1),
        )
        self._counts_successes = self._circuit.count.window is not None
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
        if self._counts_successes and (at_present := self._ticket) is not None:
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
        self._change((), self._circuit.go, Trigger.opened, None)

    def close(self) -> None:
        """Close the circuit by hand, and forget all failures."""
        self._change((), self._circuit.go, Trigger.reset, None)

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
