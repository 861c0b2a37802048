"""The account of a call: its times, its failures in text, and who is told of them.

Kept as text and numbers; no exception or frame outlives its attempt here.
"""

from __future__ import annotations

from ._decide import Progress, Refused
from ._guarding import Passage
from ._happenings import NOTHING, happening
from ._story import Story, put_note
from ._text import cut, kind_of, masked_line, shown
from ._time import clock_of
from .context import (
    CLOCK,
    ENDS,
    KEY,
    OUTER,
    STARTED,
    earliest_end,
    here,
    living,
    retried_in,
    running_in,
    shorter,
)
from .errors import DeadlineExceeded, ResultRejected
from .events import Refused as NotLetThrough
from .events import Retrying, Succeeded, emit, tell, wanted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ._plain import Masking
    from ._story import Note
    from .classify import Verdict
    from .context import Key, Surroundings
    from .events import Event, Reason
    from .policy import Policy

    Arguments = tuple[tuple[Any, ...], dict[str, Any]]

# How much of a failure's message is kept.
_LONGEST = 1000


class Account(Passage):
    """What is known of a call, and told."""

    started: float | None = None
    """When the call began; when it first failed, where nothing had to read the clock before."""
    at = 0.0
    """What the clock showed when it was last read."""
    waited = 0.0
    """The sum of the waits that were made."""
    failure: tuple[str, str] | None = None
    """The last failure: its type and its message."""
    verdict: Verdict | None = None
    """What was made of it."""
    why = ""
    """Why it was given up on, once its story is told."""
    key: Key | None = None
    outer: Surroundings | None = None
    """The surroundings of the call."""
    _own_end: float | None = None
    _from_start = _told_of = False

    def __init__(
        self,
        policy: Policy,
        name: str,
        given: Arguments,
        first: Surroundings | None = None,
        ticket: Any = None,
    ) -> None:
        self.policy = policy
        self.ticket = ticket
        self.given = given
        """The arguments of the call, for those who keep them."""
        self.name = policy.name or name
        self.clock: Callable[[], float] = clock_of(policy.clock) if first is None else first[CLOCK]
        self.story = Story()
        if first is None:
            self._look_around()
        else:
            self._take_over(first)
        if policy._successes and self.started is None:
            self._from_start = True
            self.read_clock()

    def _look_around(self) -> None:
        """What a bare first attempt did not read: the limits set further out."""
        outer = here()
        if outer is None:
            return
        self.outer = outer
        # The first attempt, which set no context, sent the key of the call around it; so do the others.
        running = running_in(outer)
        self.key = None if running is None else running[KEY]
        self._bind(self.clock())

    def _take_over(self, first: Surroundings) -> None:
        self.mark = first
        self.started, self.ends, self.key, self.outer = first[STARTED], first[ENDS], first[KEY], first[OUTER]
        self._own_end = self.ends
        self._from_start = self.started is not None
        own = self.policy.deadline
        if own is not None:
            self.limit = f"the deadline of {own:g} s"
        if self.outer is not None:
            self._bind(self.clock())

    def _bind(self, now: float) -> None:
        """Reads what the calls around this one ask for, of those that still run."""
        outer = self.outer = living(self.outer)
        self.outer_retrying = retried_in(outer) > 1
        theirs = earliest_end(outer, self.clock, now)
        self.ends = shorter(self._own_end, theirs)
        if self.ends is not None:
            own = self.ends == self._own_end
            self.limit = f"the deadline of {self.policy.deadline:g} s" if own else Progress.limit

    def read_clock(self) -> float:
        """What the clock shows, but never less time since the start than the waits add up to.

        A clock may stand still (freezegun) or go back, and a call without a limit to its attempts must end.
        """
        now = self.clock()
        if self.started is None:
            self.started = now
        elif now < (least := self.started + self.waited):
            now = least
        self.at = now
        if self.outer is not None:
            self._bind(now)
        return now

    def was(self, failure: Any) -> tuple[str, str]:
        """Keeps the last failure as text: its type, none of a refused result, and its message."""
        if type(failure) is Refused:
            self.failure = "", failure.reason
        else:
            message = shown(failure)
            self.failure = kind_of(failure), message if len(message) <= _LONGEST else cut(message, _LONGEST)
        return self.failure

    def write_down(self, failure: Any, delay: float | None) -> None:
        """One more attempt for the story, with the wait that follows it."""
        kind, message = self.was(failure)
        self.story.add(kind, message, delay)

    def announce(
        self, kind: type[Event], *, delay: float | None = None, reason: Reason | None = None
    ) -> None:
        listeners = self.policy.listeners
        if not (listeners or wanted(listeners)):
            return
        error_type, message = self.failure or (None, None)
        verdict = self.verdict
        fields = {
            "name": self.name,
            "attempt": self.attempt,
            "delay": delay,
            "elapsed": self.elapsed(),
            "cause": None if verdict is None else verdict.cause,
            "status": None if verdict is None else verdict.status,
            "error_type": error_type or None,
            "error_message": message,
            "reason": reason,
            "correlation": NOTHING,
        }
        event = happening(kind, fields)
        # Logged only where something was retried or refused: a failure that just passes is the caller's.
        self._told_of = self._told_of or kind is Retrying or kind is NotLetThrough
        masking = None if self.policy.dead_letters is None else self.masking
        emit(event, listeners, logged=self._told_of, masking=masking)

    def announce_success(self) -> None:
        """Tells of a success at the first try, if somebody asks for it."""
        if self.policy._successes:
            self.read_clock()
            tell(Succeeded(self.name, attempt=1, elapsed=self.elapsed()), self.policy._successes)

    def elapsed(self) -> float:
        # A clock may go back.
        return 0.0 if self.started is None else max(0.0, self.at - self.started)

    def summary(self, why: str) -> str:
        if not self.attempt:
            return f"{self.name} before its first attempt: {why}"
        count = f"{self.attempt} attempt{'s' if self.attempt > 1 else ''}"
        if self._from_start:
            count += f" in {self.elapsed():.1f} s"
        elif self.attempt > 1:
            count += f", {self.elapsed():.1f} s after the first failure"
        return f"{self.name} after {count}: {why}"

    def expired(self, why: str) -> DeadlineExceeded:
        message = f"gave up on {self.summary(why)}"
        error = DeadlineExceeded(message, attempts=self.attempt, elapsed=self.elapsed())
        put_note(error, self._told(f"{self.name}, attempt by attempt:", why))
        return error

    def rejected(self, refused: Refused, why: str) -> ResultRejected:
        message = f"gave up on {self.summary(f'{why}; {self.line(refused.reason)}')}"
        error = ResultRejected(message, result=refused.result, attempts=self.attempt)
        put_note(error, self._told(f"{self.name}, attempt by attempt:", why))
        return error

    def tell_story(self, error: Exception, why: str) -> Exception:
        self.why = why
        put_note(error, self._told(self.summary(self.line(why)), why))
        return error

    def _told(self, headline: str, why: str) -> Note:
        return self.story.told(
            headline, name=self.name, elapsed=self.elapsed(), why=self.line(why), masking=self.masking
        )

    @property
    def masking(self) -> Masking | None:
        """What the user masks in dead letters, which holds for the call's note and log as well."""
        return getattr(self.policy.dead_letters, "_masking", None)

    def line(self, message: str) -> str:
        """A message as one line of the note, without its secrets."""
        return masked_line(message, masking=self.masking)
