"""`SharedBreaker`: a `CircuitBreaker` whose circuit is in a store.

The local guard is a `CircuitBreaker` whose circuit is a copy of the one in the store, as old as the last
answer. Questions that change nothing are answered from the copy; everything else is a request to the store.
While the circuit is closed, or rejects calls, the copy is used for ``refresh_interval`` seconds.
"""

from __future__ import annotations

import os
import sys
from functools import partial

from .._base.checks import INF
from .._base.log_once import warn_once
from .._base.redis import milliseconds, packed, unpacked
from ..breaker import Breaker, CircuitBreaker, Consecutive, Phase, State
from ._failover import Shared, nothing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..breaker import Change, Circuit, Listeners
    from ..errors import CircuitOpen

# How many probe slots to remember for release. The store frees a slot by itself after ``open_for``.
_REMEMBERED = 64


class Probe(int):
    """The ticket of a probe: the generation, and the id of its slot in the store."""

    slot: str


class RemoteState:
    """The circuit in the store, as an answer describes it. Times count from the moment of the answer.

    >>> answer = [0, "open", "open", "7", "7", 5, 0, 0, "30000", "0", "TimeoutError"]
    >>> remote = RemoteState(answer)
    >>> remote.admitted, remote.state, remote.generation, remote.ends_in, remote.last
    (False, <State.open: 'open'>, 7, 30.0, 'TimeoutError')
    """

    def __init__(self, answer: Any) -> None:
        admitted, before, state, *numbers, ends_in, age, last = answer
        self.admitted = int(admitted) == 1
        self.before = State(unpacked(before))
        self.state = State(unpacked(state))
        counts = [int(float(number)) for number in numbers]
        self.generation, self.oldest, self.failures, self.successes, self.probes = counts
        self.ends_in = float(ends_in) / 1000 if ends_in else None
        self.age = float(age) / 1000
        self.last = unpacked(last) or None

    def change(self, open_for: float) -> Change | None:
        """Return the transition that the request has caused, ``None`` if there was none."""
        if self.before is self.state:
            return None
        return self.before, self.state, None if self.ends_in is None else open_for, self.last

    def ticket(self, slot: str) -> int:
        """Return the ticket of a call that was admitted."""
        if self.state is State.closed:
            return self.generation
        probe = Probe(self.generation)
        probe.slot = slot
        return probe

    def copy_to(self, circuit: Circuit, limit: int, now: float) -> None:
        """Give a local circuit this state. The caller holds its lock."""
        count = Consecutive(limit)
        count.failures = self.failures
        circuit.count, circuit.last_failure = count, self.last
        until, since = None if self.ends_in is None else now + self.ends_in, now - self.age
        numbers = self.generation, self.oldest, until, self.probes, self.successes, since
        circuit.phase = Phase(self.state, *numbers)


class SharedBreaker(Shared, Breaker):
    """A breaker in any store. Subclasses add the link to it."""

    _read = RemoteState

    def __init__(self, local: CircuitBreaker, failures: int) -> None:
        super().__init__(local.name, local._clock)
        self._local = local
        self.failures = failures
        self.successes = local._circuit.successes
        self.open_for = local._circuit.open_for
        self.probes = local._circuit.probes
        self._heard_at = -INF
        # The number of the last request that was sent before the generation was known that is known here.
        self._settled = 0
        self._pending_releases: tuple[str, ...] = ()

    # What is known here

    @property
    def _ticket(self) -> int | None:  # type: ignore[override]
        """The ticket of the local circuit, if the last answer is recent. Never raises: calls read it."""
        try:
            return self._local._ticket if self._now() < self._ask_at else None
        except Exception as error:  # noqa: BLE001 - the clock may be the user's own
            warn_once(self, f"the clock of {self.name} failed", error)
            return None

    @property
    def _clean(self) -> bool:  # type: ignore[override]
        """Whether no failure is known here."""
        return self._local._clean

    @property
    def state(self) -> State:
        """Closed, open or half-open, as of the last answer of the store; `refresh` asks it."""
        return self._local.state

    @property
    def retry_after(self) -> float | None:
        """Seconds until a call may be admitted, 0.0 if one may now; ``None`` if opened by hand."""
        return self._local.retry_after

    @property
    def counted(self) -> tuple[int, int]:
        """The failures in a row, twice, as of the last answer of the store."""
        return self._local.counted

    @property
    def at_rest(self) -> bool:
        """Whether there is nothing to remember here: the rest is in the store."""
        return self.available and not self._pending_releases

    def refuses(self) -> bool:
        """Return whether a call would be rejected now, as far as is known here. Sends no request.

        False if the last answer is older than ``refresh_interval``: others may have closed the circuit, and
        `enter` asks the store.
        """
        return self._now() < self._ask_at and self._local.refuses()

    def refusal(self) -> CircuitOpen:
        """Return the error with which a call is rejected."""
        return self._local.refusal()

    # Requests

    def refresh(self) -> Any:
        """Ask the store for the state and return it."""
        return self._send("refresh", done=lambda _: self._local.state, locally=lambda: self._local.state)

    def enter(self, listeners: Listeners = ()) -> Any:
        """Admit a call and return its ticket, or raise `CircuitOpen`."""
        if not self._must_ask():
            return self._at_once(self._enter_locally)
        slot = os.urandom(8).hex()

        def done(remote: RemoteState) -> int:
            if not remote.admitted:
                raise self._local.refusal()
            return remote.ticket(slot)

        locally = partial(self._local.enter, listeners)
        return self._send("enter", slot=slot, listeners=listeners, done=done, locally=locally)

    def success(self, ticket: int | None = None, listeners: Listeners = ()) -> Any:
        """Record that an admitted call succeeded."""
        if self._local._clean:
            return self._at_once(nothing)
        locally = partial(self._local.success, ticket, listeners)
        return self._send("success", ticket, listeners=listeners, locally=locally)

    def failure(
        self, ticket: int | None = None, error: Exception | None = None, listeners: Listeners = ()
    ) -> Any:
        """Record that an admitted call failed. Errors that say nothing about health are not counted."""
        try:
            ignored, text = self._local._examine(error)
        except BaseException:  # an interrupt in the user's code: how the call ended stays unknown
            self._release_locally(ticket)
            raise
        if ignored:
            return self.release(ticket)
        locally = partial(self._local._fail, ticket, text, listeners)
        return self._send("failure", ticket, text=text or "", listeners=listeners, locally=locally)

    def release(self, ticket: int | None = None) -> Any:
        """Record that an admitted call ended with nothing to learn from it: interrupted, or ignored.

        The slot of a probe is released when this is awaited, or else with the next request.
        """
        self._release_locally(ticket)
        if self.is_async and isinstance(sys.exception(), GeneratorExit):
            return self._at_once(nothing)  # a coroutine that is being closed must not await
        if isinstance(ticket, Probe):
            return self._send("refresh")
        if ticket is None and self._local._ticket is None:
            return self._send("release")
        return self._at_once(nothing)

    def open(self) -> Any:
        """Open the circuit by hand, for all; it stays open until `close` is called."""
        return self._send("open", locally=self._local.open)

    def close(self) -> Any:
        """Close the circuit by hand, for all, and forget all failures."""
        return self._send("close", locally=self._local.close)

    def _must_ask(self) -> bool:
        """Return whether the copy is too old, or says that a probe may be admitted."""
        local, now = self._local, self._now()
        with local._lock:
            settled = local._ticket is not None or local._circuit.wait(now) != 0.0
            if settled and now < self._ask_at:
                return False
            too_old = self._heard_at + self.refresh_interval + self.timeout
            if settled and now < too_old:
                # One caller asks; for as long as its answer may take, the others use the copy.
                self._ask_at = too_old
        return True

    def _enter_locally(self) -> int:
        """Return the ticket of the local circuit, or raise `CircuitOpen`."""
        ticket = self._local._ticket
        if ticket is None:
            raise self._local.refusal()
        return ticket

    def _send(
        self,
        action: str,
        ticket: int | None = None,
        *,
        slot: str = "",
        text: str = "",
        listeners: Listeners = (),
        done: Callable[[RemoteState], Any] = nothing,
        locally: Callable[[], Any] = nothing,
    ) -> Any:
        """Send an action and return ``done(state)`` of the answer; while the store is down, ``locally()``."""
        local = self._local
        slot = ticket.slot if isinstance(ticket, Probe) else slot
        with local._lock:
            self._asked = number = self._asked + 1
            releases = self._pending_releases

        def answered(remote: RemoteState) -> Any:
            """Copy the answer to the local circuit, and emit the change that it shows."""
            try:
                self._learn(remote, number, releases)
                local._tell(remote.change(self.open_for), listeners)
            except BaseException:  # an interrupt in a listener: a call that was admitted is never made
                self._release(slot)
                raise
            return done(remote)

        def otherwise() -> Any:
            """Let the local circuit decide."""
            now = self._now()
            with local._lock:
                # The local breaker decides: answers to earlier requests do not undo that.
                self._heard = self._settled = self._asked
                self._ask_at = now + self.refresh_interval
            return locally()

        rules = self.failures, self.successes, milliseconds(self.open_for), self.probes
        about = "" if ticket is None else int(ticket), slot, packed(text), *rules, milliseconds(self.ttl)
        request = action, *about, " ".join(releases)
        lost = partial(self._release, slot)
        return self._result_of(self._ask(request, self._patience(), answered, otherwise, lost))

    def _learn(self, remote: RemoteState, number: int, released: tuple[str, ...]) -> None:
        """Copy an answer to the local circuit, unless something later is known already.

        Of two generations the higher one is later, in whichever order the requests were sent: the store may
        have run them in the other order. The generation starts again where the store has lost the key; that
        is believed if the request was sent when the higher one was known.
        """
        local, now = self._local, self._now()
        with local._lock:
            self._pending_releases = tuple([slot for slot in self._pending_releases if slot not in released])
            known = local._circuit.phase.generation
            before = self._heard if remote.generation == known else self._settled
            if remote.generation > known or number > before:
                self._heard = number
                if remote.generation != known:
                    self._settled = self._asked
                self._heard_at, self._ask_at = now, now + self.refresh_interval
                local._hide()
                remote.copy_to(local._circuit, self.failures, now)
                local._show()

    def _release_locally(self, ticket: int | None) -> None:
        """Do the part of `release` that needs no store."""
        self._local.release(ticket)
        if isinstance(ticket, Probe):
            self._release(ticket.slot)

    def _release(self, slot: str) -> None:
        """Note a slot that the store may hold for no call: the next request releases it, and is sent soon."""
        with self._local._lock:
            self._ask_at = -INF
            if slot:
                self._pending_releases = (*self._pending_releases, slot)[-_REMEMBERED:]

    def _after_fork(self) -> None:
        """Ask the store again in a forked child, and leave releases to the parent."""
        super()._after_fork()
        self._ask_at = self._heard_at = -INF
        self._pending_releases = ()  # the parent releases them

    def __repr__(self) -> str:
        return f"<{self.name}: {self.state}>"
