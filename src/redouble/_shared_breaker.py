"""A `CircuitBreaker` whose circuit is in a store.

The local twin is a `CircuitBreaker` whose circuit is a copy of the one in the store, as old as the last
answer. What is asked without changing anything is asked of the twin; what changes something is told to
the store. While the circuit is closed, or refuses, the twin is believed for ``refresh`` seconds.
"""

from __future__ import annotations

import os
import sys

from . import _checks as check
from ._circuit_copy import Copy, Probe
from ._numbers import INF
from ._redis import milliseconds, packed
from ._store import Shared, nothing
from ._text import brief
from .breaker import Breaker, CircuitBreaker

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta
    from typing import Any

    from ._circuit import State
    from ._store import Link, Listener, Words
    from .errors import CircuitOpen

# Places of probes that are to be given back. Not all of them for ever: the store itself gives back what
# it has not heard of for as long as a circuit is open.
_REMEMBERED = 64


class SharedBreaker(Shared, Breaker):
    """What a shared breaker does: all but the way to the store."""

    def __init__(
        self,
        twin: CircuitBreaker,
        link: Link,
        failures: int,
        *,
        ttl: float | timedelta,
        refresh: float | timedelta,
        slow: float | timedelta,
        retry_in: float | timedelta,
    ) -> None:
        super().__init__(twin.name, twin._clock)
        self._use(link, Copy, slow, retry_in, twin.listeners)
        self._twin = twin
        self.failures = failures
        self.successes = twin._circuit.successes
        self.open_for = twin._circuit.open_for
        self.probes = twin._circuit.probes
        self.ttl = check.some_seconds("ttl", ttl)
        self.refresh = check.some_seconds("refresh", refresh)
        self._ask_at = self._heard_at = -INF
        # The numbers of the last question, of the one whose answer is known here, and of the last that was
        # asked before the generation was known that is known here.
        self._asked = self._heard = self._settled = 0
        self._to_give_back: tuple[str, ...] = ()

    # What is known here

    @property
    def ticket(self) -> int | None:  # type: ignore[override]
        """What a call needs to get in while the circuit is closed, for all that was heard lately."""
        return self._twin.ticket if self._now() < self._ask_at else None

    @property
    def clean(self) -> bool:  # type: ignore[override]
        """Whether a success would change nothing, for all that was heard."""
        return self._twin.clean

    @property
    def state(self) -> State:
        """Closed, open or half-open, as the store last said; `look` asks it."""
        return self._twin.state

    @property
    def retry_after(self) -> float | None:
        """Seconds until a call may be let through, 0.0 if one may now; ``None`` if opened by hand."""
        return self._twin.retry_after

    @property
    def counted(self) -> tuple[int, int]:
        """The failures in a row, twice, as the store last said."""
        return self._twin.counted

    @property
    def at_rest(self) -> bool:
        """Whether there is nothing to remember here: the rest is in the store."""
        return self.available and not self._to_give_back

    def refuses(self) -> bool:
        """Whether a call would be refused now, as far as is known here. Asks nobody.

        False where what is known is older than ``refresh``: others may have closed the circuit, and `enter`
        asks the store.
        """
        return self._now() < self._ask_at and self._twin.refuses()

    def refusal(self) -> CircuitOpen:
        """The error with which a call is refused."""
        return self._twin.refusal()

    # What the store is asked and told

    def look(self) -> Any:
        """Asks the store for the state, and gives it."""
        return self._tell("look", None, "", (), nothing, lambda: self._twin.state)

    def enter(self, listeners: tuple[Listener, ...] = ()) -> Any:
        """Lets a call through and gives its ticket, or raises `CircuitOpen`."""
        if not self._must_ask():
            return self._at_once(self._by_what_is_known)
        place = os.urandom(8).hex()
        words, learn = self._question("enter", None, place, "", listeners)

        def answered(copy: Copy) -> int:
            try:
                learn(copy)
            except BaseException:  # an interrupt in a listener: this call is never made
                self._give_back(place)
                raise
            if not copy.admitted:
                raise self._twin.refusal()
            return copy.ticket(place)

        def otherwise() -> int:
            self._go_on_here()
            return self._twin.enter(listeners)

        return self._ask(words, answered, otherwise, lambda: self._give_back(place))

    def success(self, ticket: int | None = None, listeners: tuple[Listener, ...] = ()) -> Any:
        """A call that was let through went well."""
        if self._twin.clean:
            return self._at_once(nothing)
        return self._tell("success", ticket, "", listeners, lambda: self._twin.success(ticket, listeners))

    def failure(
        self,
        ticket: int | None = None,
        error: Exception | None = None,
        listeners: tuple[Listener, ...] = (),
    ) -> Any:
        """A call that was let through has failed; an error that says nothing about health is not counted."""
        try:
            ignored = error is not None and self._twin._ignores(error)
            text = None if error is None else brief(error)
        except BaseException:  # an interrupt in code of the user: what the call ended with stays unknown
            self._let_go(ticket)
            raise
        if ignored:
            return self.release(ticket)
        return self._tell(
            "failure", ticket, text or "", listeners, lambda: self._fail_here(ticket, text, listeners)
        )

    def release(self, ticket: int | None = None) -> Any:
        """A call that was let through ended with nothing to learn from it: interrupted, or ignored.

        The place of a probe is given back when this is awaited, or else with the next question.
        """
        self._let_go(ticket)
        if self.is_async and isinstance(sys.exception(), GeneratorExit):
            return self._at_once(nothing)  # a coroutine that is being closed must not wait for anything
        if isinstance(ticket, Probe):
            return self._tell("look", None, "", (), nothing)
        if ticket is None and self._twin.ticket is None:
            return self._tell("release", None, "", (), nothing)
        return self._at_once(nothing)

    def open(self) -> Any:
        """Opens the circuit by hand, for all; it stays so until `close` is called."""
        return self._tell("open", None, "", (), self._twin.open)

    def close(self) -> Any:
        """Closes the circuit by hand, for all, and forgets all failures."""
        return self._tell("close", None, "", (), self._twin.close)

    # How

    def _must_ask(self) -> bool:
        """Whether what is known here is too old, or says that a probe may be let through."""
        twin, now = self._twin, self._now()
        with twin._lock:
            settled = twin.ticket is not None or twin._circuit.wait(now) != 0.0
            if settled and now < self._ask_at:
                return False
            too_old = self._heard_at + self.refresh + self.slow
            if settled and now < too_old:
                # One asks; for as long as an answer may take, the others go by what is known.
                self._ask_at = too_old
        return True

    def _by_what_is_known(self) -> int:
        ticket = self._twin.ticket
        if ticket is None:
            raise self._twin.refusal()
        return ticket

    def _tell(
        self,
        happening: str,
        ticket: int | None,
        text: str,
        listeners: tuple[Listener, ...],
        here: Callable[[], object],
        result: Callable[[], Any] = nothing,
    ) -> Any:
        """Tells the store; if it is away, does the same ``here``. Gives the ``result`` either way."""
        place = ticket.place if isinstance(ticket, Probe) else ""
        words, learn = self._question(happening, ticket, place, text, listeners)

        def answered(copy: Copy) -> Any:
            learn(copy)
            return result()

        def otherwise() -> Any:
            self._go_on_here()
            here()
            return result()

        return self._ask(words, answered, otherwise, lambda: self._give_back(place))

    def _question(
        self, happening: str, ticket: int | None, place: str, text: str, listeners: tuple[Listener, ...]
    ) -> tuple[Words, Callable[[Copy], None]]:
        """The words for the store, and how to learn from its answer."""
        twin = self._twin
        with twin._lock:
            self._asked = number = self._asked + 1
            places = self._to_give_back

        def learn(copy: Copy) -> None:
            self._learn(copy, number, places)
            twin._tell(copy.change(self.open_for), listeners)

        rules = self.failures, self.successes, milliseconds(self.open_for), self.probes
        words = "" if ticket is None else int(ticket), place, packed(text), *rules, milliseconds(self.ttl)
        return (happening, *words, " ".join(places)), learn

    def _learn(self, copy: Copy, number: int, given_back: tuple[str, ...]) -> None:
        """Make the twin what the store has said, unless something later is known already.

        Of two generations the higher is the later one, whichever question was asked first: the store may
        have carried them out in the other order. It begins at zero where the store has lost its key, which
        is believed if it was asked when the higher one was known.
        """
        twin, now = self._twin, self._now()
        with twin._lock:
            self._to_give_back = tuple([p for p in self._to_give_back if p not in given_back])
            known = twin._circuit.phase.generation
            before = self._heard if copy.generation == known else self._settled
            if copy.generation > known or number > before:
                self._heard = number
                if copy.generation != known:
                    self._settled = self._asked
                self._heard_at, self._ask_at = now, now + self.refresh
                twin._hide()
                copy.put_into(twin._circuit, self.failures, now)
                twin._show()

    def _go_on_here(self) -> None:
        """The twin decides: answers to earlier questions do not undo that."""
        now = self._now()
        with self._twin._lock:
            self._heard = self._settled = self._asked
            self._ask_at = now + self.refresh

    def _fail_here(self, ticket: int | None, text: str | None, listeners: tuple[Listener, ...]) -> None:
        # Not by the twin's own method, which would ask ``ignore`` a second time.
        twin, now = self._twin, self._now()
        with twin._lock:
            twin._hide()
            change = twin._circuit.fail(ticket, now, text)
            twin._show()
        twin._tell(change, listeners)

    def _let_go(self, ticket: int | None) -> None:
        """All of `release` that needs no store."""
        self._twin.release(ticket)
        if isinstance(ticket, Probe):
            self._give_back(ticket.place)

    def _give_back(self, place: str) -> None:
        """The store may hold this place for nobody: the next question gives it back, and comes soon."""
        with self._twin._lock:
            self._ask_at = -INF
            if place:
                self._to_give_back = (*self._to_give_back, place)[-_REMEMBERED:]

    def _after_fork(self) -> None:
        super()._after_fork()
        self._ask_at = self._heard_at = -INF
        self._to_give_back = ()  # the parent gives them back

    def __repr__(self) -> str:
        return f"<{self.name}: {self.state}>"
