"""A circuit that is in a store, as an answer of the store describes it."""

from __future__ import annotations

from ._circuit import Phase, State
from ._redis import unpacked
from ._tripping import Consecutive

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ._circuit import Change, Circuit


class Probe(int):
    """The ticket of a call that was let through half-open: a generation, and a place of its own."""

    place: str

    @classmethod
    def of(cls, generation: int, place: str) -> Probe:
        ticket = cls(generation)
        ticket.place = place
        return ticket


class Copy:
    """What the store said of its circuit. Times are counted from the moment of the answer."""

    def __init__(self, answer: Any) -> None:
        admitted, before, state, *numbers, ends_in, age, last = answer
        self.admitted = int(admitted) == 1
        self.before = State(unpacked(before))
        self.state = State(unpacked(state))
        self.generation, self.oldest, self.failures, self.successes, self.probes = [
            int(float(number)) for number in numbers
        ]
        self.ends_in = float(ends_in) / 1000 if ends_in else None
        self.age = float(age) / 1000
        self.last = unpacked(last) or None

    def change(self, open_for: float) -> Change | None:
        """From where to where it went when it was asked."""
        if self.before is self.state:
            return None
        return self.before, self.state, None if self.ends_in is None else open_for, self.last

    def ticket(self, place: str) -> int:
        """What a call gets that was let through."""
        return self.generation if self.state is State.closed else Probe.of(self.generation, place)

    def put_into(self, circuit: Circuit, limit: int, now: float) -> None:
        """Makes a local circuit what this one is. The caller holds a lock."""
        count = Consecutive(limit)
        count.failures = self.failures
        circuit.count, circuit.last_failure = count, self.last
        circuit.phase = Phase(
            self.state,
            self.generation,
            until=None if self.ends_in is None else now + self.ends_in,
            probes=self.probes,
            successes=self.successes,
            since=now - self.age,
            oldest=self.oldest,
        )
