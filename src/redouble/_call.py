"""One call on its way, from its first failure to its end: what both drivers and the blocks share.

A `Call` is made when the first attempt has failed. It asks `decide`, keeps the story in text and
numbers, tells the listeners, and builds what comes out at the end. It never waits.
"""

from __future__ import annotations

from ._decide import Progress, Refused, Stop, decide
from ._story import Story, tell
from ._text import kind_of, shown
from ._time import clock_of
from .context import ENDS, KEY, RETRIED, STARTED, current, time_left
from .errors import DeadlineExceeded, RedoubleError, ResultRejected
from .events import Expired, GaveUp, Reason, Recovered, Retrying, emit, wanted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Any

    from ._decide import Wait
    from .classify import Verdict
    from .context import Key, Surroundings
    from .events import Event
    from .policy import Policy

# How much of a failure's message is kept.
_LONGEST = 1000
# How many exception objects of a call are remembered, to know one that comes again; and how many
# attempts make a call so long that it matters.
_SEEN, _SHORT = 16, 10


# The traceback as Python itself keeps it, whatever an exception's own attributes do.
_trace: Any = BaseException.__dict__["__traceback__"]


class CutOff(TimeoutError):  # noqa: N818 - says what happened
    """An async attempt that the deadline ended; the cause of the `DeadlineExceeded` that comes out."""


class Call(Progress):
    """The state of one call that has failed at least once. Belongs to one thread or task."""

    __slots__ = (
        "_failure",
        "_from_start",
        "_key",
        "_retried",
        "_seen",
        "_story",
        "_told_of",
        "_worn",
        "clock",
        "delay",
        "held",
        "name",
        "policy",
        "recover",
        "started",
    )

    def __init__(self, policy: Policy, name: str, first: Surroundings | None = None) -> None:
        super().__init__()
        self.policy = policy
        self.name = policy.name or name
        self.clock: Callable[[], float] = clock_of(policy.clock)
        self.started: float | None = None
        """When the call began; when it first failed, where nothing had to read the clock before."""
        self.delay = 0.0
        self.recover: Callable[[Any], Any] | None = None
        self.held: Exception | None = None
        """The failure itself, kept over a wait only for ``recover`` and for a deadline's cause."""
        self._story = Story()
        self._failure: tuple[str, str] | None = None
        self._seen: dict[int, int] = {}
        self._worn = False
        self._from_start = False
        self._told_of = False
        self._key: Key | None = None
        self._retried = 1
        if first is None:
            self._look_around()
        else:
            self._take_over(first)

    def _look_around(self) -> None:
        """What a bare first attempt did not read: the limits set further out."""
        outer = current.get()
        if outer is None:
            return
        self._retried = outer[RETRIED]
        self.outer_retrying = self._retried > 1
        remaining = time_left(outer)
        if remaining is not None:
            self.ends = self.clock() + remaining

    def _take_over(self, first: Surroundings) -> None:
        self.started, self.ends = first[STARTED], first[ENDS]
        self._from_start = self.started is not None
        own = self.policy.deadline
        if own is not None and self.started is not None and self.ends == self.started + own:
            self.limit = f"the deadline of {own:g} s"
        self._key, self._retried = first[KEY], first[RETRIED]
        self.outer_retrying = self._retried > 1

    def failed(self, error: Exception) -> bool:
        """Whether there will be another attempt, after ``self.delay`` seconds; if not, raise the error.

        Raises `DeadlineExceeded` from the error where the deadline is what ends the call.
        """
        now = self._now()
        outcome = self._cut() if type(error) is CutOff else decide(self.policy, self, error, now)
        self._take(outcome, error, now)
        if not isinstance(outcome, Stop):
            self._hold(error)
            return True
        if outcome.reason is Reason.deadline:
            raise self._expired(outcome.why, now) from error
        if outcome.reason is not Reason.disabled and (
            # A failure that was never retryable needs no story; what came before it does.
            outcome.reason is not Reason.not_retryable or self.attempt > 1
        ):
            tell(error, self._story.told(self._summary(outcome.why, now)))
        return False

    def refused(self, refused: Refused) -> bool:
        """As `failed`, for a result: raises `ResultRejected` where there will be no other attempt.

        ``False`` only where retries are switched off: then the result passes as it is.
        """
        now = self._now()
        outcome = decide(self.policy, self, refused, now)
        self._take(outcome, refused, now)
        if not isinstance(outcome, Stop):
            if self._must_hold():
                message = f"a result of {self.name} was refused: {refused.reason}"
                self.held = ResultRejected(message, result=refused.result, attempts=self.attempt)
            return True
        if outcome.reason is Reason.disabled:
            return False
        # Raised where they are made: a name for one would hold it in its own traceback's frame.
        if outcome.reason is Reason.deadline:
            raise self._expired(outcome.why, now) from self._rejected(refused, outcome.why, now)
        raise self._rejected(refused, outcome.why, now)

    def accepts(self, result: Any) -> bool:
        """Whether ``until`` is content with a later result; an error in it propagates, as the end."""
        until = self.policy.until
        try:
            return until is None or bool(until(result))
        except Exception:
            self._announce(GaveUp, self.clock(), reason=Reason.callback)
            raise

    def succeeded(self) -> None:
        """Tells that an attempt succeeded after others had failed."""
        self._announce(Recovered, self.clock())

    def next_attempt(self) -> Surroundings:
        """Counts on to the next attempt, and gives what the code in it may know."""
        self.recover = None
        self.attempt += 1
        retried = max(self._retried, self.attempt)
        policy, clock, started, ends = self.policy, self.clock, self.started, self.ends
        return policy, clock, started, ends, self.attempt, retried, self._key, self._failure, None

    def time_left(self) -> float | None:
        """Seconds until the deadline, never below 0; ``None`` without one."""
        return None if self.ends is None else max(0.0, self.ends - self.clock())

    def check_time(self, ahead: float = 0.0) -> None:
        """Raises `DeadlineExceeded` if the deadline has come, or would come within a wait ahead.

        Asked before the wait, since the listeners have taken time, and after it: no attempt starts late.
        """
        if self.ends is None or (now := self.clock()) + ahead < self.ends:
            return
        if ahead:
            self._story.without_the_wait()
        self._announce(Expired, now, reason=Reason.deadline)
        why = "would pass during the wait" if ahead and now < self.ends else "has passed"
        raise self._expired(f"{self.limit} {why}", now) from self.held

    def unrecovered(self, trouble: str) -> Exception:
        """Ends the call because ``recover`` failed; gives the failure that comes out, with that noted."""
        now = self.clock()
        self._announce(GaveUp, now, reason=Reason.callback)
        error = RedoubleError(trouble) if self.held is None else self.held
        tell(error, self._story.told(self._summary(trouble, now)))
        return error

    def never_began(self) -> DeadlineExceeded:
        """Ends a call whose time, set further out, was up before its first attempt."""
        self.attempt = 0
        now = self._now()
        self._announce(Expired, now, reason=Reason.deadline)
        message = f"gave up on {self.name} before its first attempt: the deadline set further out has passed"
        return DeadlineExceeded(message, attempts=0, elapsed=self._elapsed(now))

    # Keeping the story

    def _now(self) -> float:
        now = self.clock()
        if self.started is None:
            self.started = now
        return now

    def _cut(self) -> Stop:
        return Stop(Reason.deadline, f"{self.limit} came during the attempt", None)

    def _take(self, outcome: Wait | Stop, failure: Exception | Refused, now: float) -> None:
        """Commits what was decided before anybody is told of it."""
        if type(failure) is Refused:
            self._failure = name, message = "", failure.reason
        else:
            self._failure = name, message = kind_of(failure), shown(failure)[:_LONGEST]
        if isinstance(outcome, Stop):
            self._story.add(name, message, None)
            kind = Expired if outcome.reason is Reason.deadline else GaveUp
            self._announce(kind, now, outcome.verdict, reason=outcome.reason)
            return
        self._story.add(name, message, outcome.delay)
        self.previous, self.delay = outcome.previous, outcome.delay
        if outcome.rule is not None:
            self.recover = outcome.rule.recover
            counts = self.rule_failures = self.rule_failures or {}
            counts[outcome.rule_key] = counts.get(outcome.rule_key, 0) + 1
        self._announce(Retrying, now, outcome.verdict, delay=outcome.delay)

    def _announce(
        self,
        kind: type[Event],
        now: float,
        verdict: Verdict | None = None,
        *,
        delay: float | None = None,
        reason: Reason | None = None,
    ) -> None:
        listeners = self.policy.listeners
        if not wanted(listeners):
            return
        error_type, message = self._failure or (None, None)
        event = kind(
            self.name,
            attempt=self.attempt,
            elapsed=self._elapsed(now),
            delay=delay,
            cause=None if verdict is None else verdict.cause,
            status=None if verdict is None else verdict.status,
            error_type=error_type or None,
            error_message=message,
            reason=reason,
        )
        # Logged only where something was retried: a failure that just passes is the caller's to log.
        self._told_of = self._told_of or kind is Retrying
        emit(event, listeners, logged=self._told_of)

    def _must_hold(self) -> bool:
        return self.recover is not None or self.ends is not None

    def _hold(self, error: Exception) -> None:
        """Keeps the failure where somebody is going to need it, and no more of it than its own attempt.

        An exception object that is raised again and again gathers the frames of every attempt, so that
        a long call would grow with each. It is known by having been seen before, and grown since.
        """
        if self.attempt > _SHORT:
            length = _depth(_trace.__get__(error))
            self._worn = length > self._seen.setdefault(id(error), length)
            if len(self._seen) > _SEEN:
                self._seen.clear()
        if self._must_hold():
            self.held = error
        elif self._worn:
            _trace.__set__(error, None)

    def let_go(self) -> None:
        """Forgets the failure that was held over the wait: a frame must not outlive its attempt."""
        if self.held is not None and self._worn:
            _trace.__set__(self.held, None)
        self.held = None

    def _elapsed(self, now: float) -> float:
        return 0.0 if self.started is None else now - self.started

    # Telling it

    def _summary(self, why: str, now: float) -> str:
        count = f"{self.attempt} attempt{'s' if self.attempt > 1 else ''}"
        if self._from_start:
            count += f" in {self._elapsed(now):.1f} s"
        elif self.attempt > 1:
            count += f", {self._elapsed(now):.1f} s after the first failure"
        return f"{self.name} after {count}: {why}"

    def _expired(self, why: str, now: float) -> DeadlineExceeded:
        message = f"gave up on {self._summary(why, now)}"
        error = DeadlineExceeded(message, attempts=self.attempt, elapsed=self._elapsed(now))
        tell(error, self._story.told(f"{self.name}, attempt by attempt:"))
        return error

    def _rejected(self, refused: Refused, why: str, now: float) -> ResultRejected:
        message = f"gave up on {self._summary(f'{why}; {refused.reason}', now)}"
        error = ResultRejected(message, result=refused.result, attempts=self.attempt)
        tell(error, self._story.told(f"{self.name}, attempt by attempt:"))
        return error


def _depth(trace: TracebackType | None) -> int:
    depth = 0
    while trace is not None:
        depth, trace = depth + 1, trace.tb_next
    return depth
