"""May this dependency be called at all?

A circuit breaker watches how calls end. While they go well it is closed and lets everything through. When
too many fail it opens, and refuses calls at once instead of letting each find out for itself. After a
while it lets a few probes through: half-open. If they succeed it closes, if one fails it opens again.

The rules are in ``_circuit``, without lock or clock. Here they are shared, timed and told.
"""

from __future__ import annotations

import time

from . import _checks as check
from ._callables import truth
from ._circuit import TRANSITIONS, Circuit, Happening, State
from ._guard import Gate
from ._numbers import whole
from ._text import brief
from ._time import fakes
from ._tripping import counting
from ._trouble import report
from .backoff import shown_name
from .classify import Cause, Classifier, verdict
from .errors import CircuitOpen, DeadlineExceeded
from .events import CircuitChanged, emit, wanted

__all__ = [
    "TRANSITIONS",
    "Breaker",
    "CircuitBreaker",
    "Happening",
    "State",
    "says_nothing",
]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import timedelta
    from typing import Any

    from ._circuit import Change
    from .events import Event

    Listener = Callable[[Event], object]
    Ignored = type[Exception] | Iterable[type[Exception]] | Callable[[Exception], object]

# The server answered, and what it said is about the request: nothing is wrong with its health.
_SAYS_NOTHING = frozenset({Cause.permanent, Cause.unauthorized, Cause.conflict})


def says_nothing(error: object) -> bool:
    """Whether a failure says nothing about the health of what was called: a 400, a 404, a conflict.

    >>> says_nothing(FileNotFoundError(2, "no such file")), says_nothing(TimeoutError())
    (True, False)
    """
    # Too slow is a failure, although our own errors are permanent to the classifier. By its class, since
    # isinstance would ask the error for attributes, which may raise.
    return not issubclass(type(error), DeadlineExceeded) and verdict(error).cause in _SAYS_NOTHING


def _ignored(name: str, value: Any) -> Any:
    if isinstance(value, Classifier):
        raise TypeError(f"{name} must be exception types or a predicate, got {value!r}")
    return check.retryable(name, value)


class Breaker(Gate):
    """What every breaker can be asked and told. A breaker of your own is a subclass of this.

    Where ``is_async`` is true, `enter`, `success`, `failure` and `release` give something to await.
    """

    ticket: int | None = None
    """What a call needs to get in while the circuit is closed; ``None`` while it must ask with `enter`."""
    clean: bool = False
    """Whether a success would change nothing, and so need not be told."""

    def enter(self, listeners: tuple[Listener, ...] = ()) -> Any:
        """Lets a call through and gives its ticket, or raises `CircuitOpen`.

        What becomes of the call is told, with the ticket, to exactly one of `success`, `failure` and
        `release`. ``listeners`` hear of a change as well as the breaker's own.
        """
        raise NotImplementedError

    def success(self, ticket: Any = None, listeners: tuple[Listener, ...] = ()) -> Any:
        """A call that was let through went well."""
        raise NotImplementedError

    def failure(
        self, ticket: Any = None, error: Exception | None = None, listeners: tuple[Listener, ...] = ()
    ) -> Any:
        """A call that was let through has failed; an error that says nothing about health is not counted."""
        raise NotImplementedError

    def release(self, ticket: Any = None) -> Any:
        """A call that was let through ended with nothing to learn from it: interrupted, or ignored."""
        raise NotImplementedError

    def refuses(self) -> bool:
        """Whether a call would be refused now, as far as is known here. Changes nothing, asks nobody."""
        raise NotImplementedError

    def refusal(self) -> CircuitOpen:
        """The error with which a call is refused."""
        raise NotImplementedError

    def _enter(self) -> Any:
        return self.enter()

    def _leave(self, ticket: Any, error: BaseException | None) -> Any:
        if error is None:
            return None if self.clean else self.success(ticket)
        return self.failure(ticket, error) if isinstance(error, Exception) else self.release(ticket)

    async def _aenter(self) -> Any:
        ticket = self.enter()
        return (await ticket) if self.is_async else ticket

    async def _aleave(self, ticket: Any, error: BaseException | None) -> None:
        told = self._leave(ticket, error)
        if told is not None and self.is_async:
            await told


class CircuitBreaker(Breaker):
    """Refuses calls to a dependency that keeps failing, and tries a few to see whether it is back.

    Opens after ``failures`` in a row (5); or, with ``failure_rate``, when that share of the calls of the
    last ``window`` seconds (30), or of the ``last_calls``, has failed, once there were ``minimum_calls``.
    Stays open for ``open_for`` seconds, then lets ``probes`` through at once, and closes when ``successes``
    of them went well. What says nothing about health, such as a 400, is not counted; ``ignore`` names more.

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
        self.listeners: tuple[Listener, ...] = check.listeners("listeners", listeners)
        self._ignore: Any = check.optional(_ignored)("ignore", ignore)
        self._circuit = Circuit(
            counting(failures, failure_rate, window, minimum_calls, last_calls),
            whole("successes", successes, at_least=1),
            check.some_seconds("open_for", open_for),
            whole("probes", probes, at_least=1),
        )
        self._counts_successes = self._circuit.count.counts_successes
        self._show()

    # Asking

    @property
    def state(self) -> State:
        """Closed, open or half-open, as the next call would find it."""
        phase = self._circuit.phase
        return State.half_open if phase.is_due(self._now()) else phase.state

    @property
    def retry_after(self) -> float | None:
        """Seconds until a call may be let through, 0.0 if one may now; ``None`` if opened by hand."""
        return self._circuit.wait(self._now())

    @property
    def counted(self) -> tuple[int, int]:
        """Calls and failures counted towards opening; without a rate, both are the failures in a row."""
        now = self._now()
        with self._lock:
            return self._circuit.count.counted(now)

    @property
    def at_rest(self) -> bool:
        """Whether it is closed and has no failure to remember."""
        return self.ticket is not None and self.counted[1] == 0

    def refuses(self) -> bool:
        """Whether a call would be refused now. Changes nothing."""
        return self.ticket is None and self.retry_after != 0.0

    def enter(self, listeners: tuple[Listener, ...] = ()) -> int:
        """Lets a call through and gives its ticket, or raises `CircuitOpen`."""
        ticket = self.ticket
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
            except BaseException:  # an interrupt in a listener: this call is never made
                self.release(ticket)
                raise
        if ticket is None:
            raise self.refusal()
        return ticket

    def refusal(self) -> CircuitOpen:
        """The error with which a call is refused."""
        phase, last = self._circuit.phase, self._circuit.last_failure
        wait = self._circuit.wait(self._now(), phase)
        if phase.state is State.half_open:
            how = f"half-open, and no more than {self._circuit.probes} at once may try"
        elif wait is None:
            how = "held open by hand, until close() is called"
        else:
            how = f"open for another {wait:.1f} s"
        text = f"the circuit of {self.name} is {how}" + (f" ({last})" if last else "")
        return CircuitOpen(text, name=self.name, retry_after=wait, last_failure=last)

    # Telling

    def success(self, ticket: int | None = None, listeners: tuple[Listener, ...] = ()) -> None:
        """A call that was let through went well."""
        if self._counts_successes and (at_present := self.ticket) is not None:
            if ticket == at_present or ticket is None:
                # `_now` and the counting, in place and without a lock: every call that goes well passes here.
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
        self,
        ticket: int | None = None,
        error: Exception | None = None,
        listeners: tuple[Listener, ...] = (),
    ) -> None:
        """A call that was let through has failed; an error that says nothing about health is not counted."""
        try:
            ignored = error is not None and self._ignores(error)
            text = None if error is None else brief(error)
        except BaseException:  # an interrupt in code of the user: what the call ended with stays unknown
            self.release(ticket)
            raise
        if ignored:
            self.release(ticket)
            return
        now = self._now()
        with self._lock:
            self._hide()
            change = self._circuit.fail(ticket, now, text)
            self._show()
        self._tell(change, listeners)

    def release(self, ticket: int | None = None) -> None:
        """A call that was let through ended with nothing to learn from it: interrupted, or ignored."""
        if self.ticket is None:
            with self._lock:
                self._circuit.release(ticket)

    def open(self) -> None:
        """Opens the circuit by hand; it stays so until `close` is called."""
        self._by_hand(Happening.opened)

    def close(self) -> None:
        """Closes the circuit by hand, and forgets all failures."""
        self._by_hand(Happening.reset)

    def _by_hand(self, happening: Happening) -> None:
        with self._lock:
            self._hide()
            change = self._circuit.go(happening, None)
            self._show()
        self._tell(change, ())

    # A thread that is ended between these two leaves a breaker that is asked and told too much, never one
    # that lets calls through an open circuit.

    def _hide(self) -> None:
        """Makes every call ask and tell. Under the lock, before what may open the circuit."""
        self.ticket, self.clean = None, False

    def _show(self) -> None:
        """What a call looks at before it asks or tells anything. Under the lock, after a change."""
        circuit = self._circuit
        phase, count = circuit.phase, circuit.count
        window = count.window
        # From here on nothing is called: a signal handler that changes the circuit comes before, or after.
        if circuit.phase is phase and phase.state is State.closed:
            self.clean = count.failures == 0
            self._window = window
            self.ticket = phase.generation

    def _ignores(self, error: Exception) -> bool:
        ignore = self._ignore
        try:
            if ignore is None or ignore.__class__ is tuple:
                return says_nothing(error) or (ignore is not None and isinstance(error, ignore))
            return truth("it", ignore(error))
        except Exception as trouble:  # noqa: BLE001 - ignore is the user's code; the failure is counted
            report(ignore, f"ignore {shown_name(ignore)} of {self.name} failed", trouble)
            return False

    def _tell(self, change: Change | None, listeners: tuple[Listener, ...]) -> None:
        """Tells of a change, when it is made and the lock is free."""
        if change is None:
            return
        heard = (*self.listeners, *[other for other in listeners if other not in self.listeners])
        if wanted(heard):
            before, after, delay, last = change
            event = CircuitChanged(self.name, before=before, after=after, delay=delay, error_message=last)
            emit(event, heard, logged=True)

    def _after_fork(self) -> None:
        super()._after_fork()
        self._circuit.forget_probes()  # those under way are in the parent

    def __repr__(self) -> str:
        return f"<{self.name}: {self.state}>"
