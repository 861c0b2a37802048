"""Random histories of a breaker, compared with a model."""

from __future__ import annotations

import itertools
from fractions import Fraction

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from redouble.breaker import TRANSITIONS
from redouble.testing import FakeClock
from support.breakers import Excluded, make, refused


class Model:
    """A breaker as one would write it who has all the time in the world: it keeps every result."""

    def __init__(self, kind, limit, probes, successes, open_for):
        self.kind, self.limit, self.probes, self.successes = kind, limit, probes, successes
        self.open_for, self.now = Fraction(open_for), Fraction(0)
        self.changes = []
        self.state, self.until = "closed", None
        self.begin()

    def begin(self):
        """A new stay in a state: results of calls from before it mean nothing."""
        self.stay, self.results, self.under_way, self.good, self.set_out = object(), [], set(), 0, None

    def go(self, state, until=None):
        if state != self.state:
            self.changes.append((self.state, state))
        self.state, self.until = state, until
        self.begin()

    def is_due(self):
        return self.state == "open" and self.until is not None and self.now >= self.until

    def enter(self, number):
        """Whether the call is let through; its ticket is the stay in which that was."""
        if self.is_due():
            self.go("half-open")
        if self.state == "half-open":
            if self.under_way and self.now - self.set_out >= self.open_for:
                self.under_way = set()
            if not self.has_room():
                return None
            self.under_way.add(number)
            self.set_out = self.now
        return None if self.state == "open" else self.stay

    def has_room(self):
        needed = max(self.probes, self.successes)
        return len(self.under_way) < min(self.probes, needed - self.good)

    def end(self, number, stay, how):
        if stay is not self.stay or self.state == "open":
            return
        self.under_way.discard(number)
        if how == "nothing":
            return
        if self.state == "closed":
            self.results.append((self.now, how))
            if how == "failure" and self.too_many():
                self.go("open", self.now + self.open_for)
        elif how == "failure":
            self.go("open", self.now + self.open_for)
        else:
            self.good += 1
            if self.good == self.successes:
                self.go("closed")

    def counted(self):
        if self.kind == "row":
            row = list(itertools.takewhile(lambda result: result[1] == "failure", reversed(self.results)))
            return len(row), len(row)
        kept = self.results[-8:] if self.kind == "count" else [
            result for result in self.results if result[0] // 1 > self.now // 1 - 10
        ]  # fmt: skip
        return len(kept), sum(how == "failure" for _, how in kept)

    def too_many(self):
        calls, failures = self.counted()
        if self.kind == "row":
            return failures >= self.limit
        return calls >= self.limit and Fraction(failures, calls) >= Fraction(1, 2)

    def retry_after(self):
        if self.state == "open":
            return None if self.until is None else max(0, self.until - self.now)
        if self.state == "closed" or self.has_room():
            return 0
        return max(0, self.set_out + self.open_for - self.now)


FIELDS = {
    "row": lambda limit: {"failures": limit},
    "count": lambda limit: {"failure_rate": 0.5, "minimum_calls": limit, "last_calls": 8},
    "time": lambda limit: {"failure_rate": 0.5, "minimum_calls": limit, "window": 10},
}


class Histories(RuleBasedStateMachine):
    """Calls that begin, end in every way or never, time that passes, hands that open and close."""

    @initialize(
        kind=st.sampled_from(sorted(FIELDS)),
        limit=st.integers(1, 4),
        probes=st.integers(1, 3),
        successes=st.integers(1, 3),
        open_for=st.sampled_from([0.5, 3.0, 8.0]),
    )
    def begin(self, kind, limit, probes, successes, open_for):
        self.clock, self.heard, self.calls, self.number = FakeClock(), [], {}, 0
        self.model = Model(kind, limit, probes, successes, open_for)
        self.breaker = make(
            self.clock,
            probes=probes,
            successes=successes,
            open_for=open_for,
            listeners=[lambda event: self.heard.append((event.before, event.after))],
            **FIELDS[kind](limit),
        )

    @rule()
    def a_call_begins(self):
        self.number += 1
        stay = self.model.enter(self.number)
        if stay is None:
            error = refused(self.breaker)
            assert error.retry_after == self.model.retry_after()
        else:
            self.calls[self.number] = self.breaker.enter(), stay

    def some_call_ends(self, data, how):
        number = data.draw(st.sampled_from(sorted(self.calls)), "of call")
        ticket, stay = self.calls.pop(number)
        self.model.end(number, stay, how)
        return ticket

    @precondition(lambda self: self.calls)
    @rule(data=st.data())
    def a_call_succeeds(self, data):
        self.breaker.success(self.some_call_ends(data, "success"))

    @precondition(lambda self: self.calls)
    @rule(data=st.data())
    def a_call_fails(self, data):
        self.breaker.failure(self.some_call_ends(data, "failure"), TimeoutError("slow"))

    @precondition(lambda self: self.calls)
    @rule(data=st.data())
    def a_call_fails_in_a_way_that_is_ignored(self, data):
        self.breaker.failure(self.some_call_ends(data, "nothing"), Excluded())

    @precondition(lambda self: self.calls)
    @rule(data=st.data())
    def a_call_is_interrupted(self, data):
        self.breaker.release(self.some_call_ends(data, "nothing"))

    @rule(seconds=st.sampled_from([0.25, 0.5, 1.0, 2.5, 8.0, 10.0]))
    def time_passes(self, seconds):
        self.clock.advance(seconds)
        self.model.now += Fraction(seconds)

    @rule(times=st.integers(1, 4), how=st.sampled_from(["success", "failure"]))
    def several_calls_are_made(self, times, how):
        for _ in range(times):
            self.number += 1
            stay = self.model.enter(self.number)
            assert self.breaker.refuses() == (stay is None)
            if stay is not None:
                self.model.end(self.number, stay, how)
                getattr(self.breaker, how)(self.breaker.enter())

    @precondition(lambda self: self.number % 3 == 0)
    @rule(by_hand=st.sampled_from(["open", "closed", "closed"]))
    def a_hand_moves_it(self, by_hand):
        getattr(self.breaker, by_hand.removesuffix("d"))()
        self.model.go(by_hand)

    @invariant()
    def it_is_as_the_model_says(self):
        expected = "half-open" if self.model.is_due() else self.model.state
        assert self.breaker.state == expected
        assert self.breaker.retry_after == self.model.retry_after()
        if expected == "closed":
            assert self.breaker.counted == self.model.counted()
            assert self.breaker.at_rest == (self.model.counted()[1] == 0)

    @invariant()
    def all_changes_were_told_and_all_were_legal(self):
        assert self.heard == self.model.changes
        legal = {(before, after) for (before, _), after in TRANSITIONS.items()}
        assert set(self.heard) <= legal


Histories.TestCase.settings = settings(stateful_step_count=50)


test_every_history_of_calls_goes_as_a_simple_model_says = Histories.TestCase
