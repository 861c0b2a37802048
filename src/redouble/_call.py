"""One call on its way, from its first failure to its end: what both drivers and the blocks share.

A `Call` is made when the first attempt has failed, or before it where a policy has guards that may be in
the way. It asks `decide`, and says what comes next or what comes out at the end. It never waits.
"""

from __future__ import annotations

from . import events
from ._callables import truth
from ._decide import Refused, Stop, decide, refused_by
from ._keeping import Keeping
from ._text import brief
from .errors import DeadlineExceeded, RedoubleError, ResultRejected
from .events import Expired, GaveUp, Reason, Recovered, Retrying

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Any, NoReturn

    from ._account import Arguments
    from ._decide import Wait
    from .context import Surroundings

# How many exception objects of a call are remembered, to know one that comes again; and how many
# attempts make a call so long that it matters.
_SEEN, _SHORT = 16, 10


# Of a block.
NO_ARGUMENTS: Arguments = (), {}

# The traceback as Python itself keeps it, whatever an exception's own attributes do.
_trace: Any = BaseException.__dict__["__traceback__"]
_context: Any = BaseException.__dict__["__context__"]


class CutOff(TimeoutError):  # noqa: N818 - says what happened
    """An async attempt that the deadline ended; the cause of the `DeadlineExceeded` that comes out."""


class Call(Keeping):
    """The state of one call that has failed at least once. Belongs to one thread or task."""

    delay = 0.0
    recover: Callable[[Any], Any] | None = None
    held: Exception | None = None
    """The failure itself, kept over a wait that may end the call: recover, deadline, breaker or sleep."""
    ending: Exception | None = None
    """What the call has come to, if it is over and its own error does not just pass."""
    cancels = 0
    """How many requests to be cancelled the task had when it was last looked at."""
    answered = False
    """Whether its fallback is to answer for that."""
    _seen: dict[int, int] | None = None
    _worn = False

    # An attempt has ended

    def decide(self, failure: Exception | Refused) -> Wait | Stop:
        """What comes after this failure. Nothing is written down yet."""
        self.read_clock()
        return self._cut() if type(failure) is CutOff else decide(self.policy, self, failure, self.at)

    def settle(self, outcome: Wait | Stop, failure: Any) -> bool:
        """Writes down what was decided; ``False`` if the driver is to raise the failure itself.

        (Or, where retries are switched off, to let the refused result pass.) Otherwise the call goes on, with
        a wait or, where it has come to an `ending`, to its conclusion.
        """
        self._take(outcome, failure)
        if isinstance(outcome, Stop):
            return self._finish(outcome, failure)
        self.cost = self.unspent = outcome.cost
        if type(failure) is not Refused:
            self._hold(failure)
        elif self._must_hold():
            message = f"a result of {self.name} was refused: {self.line(failure.reason)}"
            self.held = ResultRejected(message, result=failure.result, attempts=self.attempt)
        return True

    def _finish(self, outcome: Stop, failure: Any) -> bool:
        if outcome.reason is Reason.disabled:
            return False
        lost = outcome.reason not in (Reason.nested, Reason.callback) and (
            outcome.reason is not Reason.not_retryable or issubclass(type(failure), RedoubleError)
        )
        self.answered = lost and self.policy._falls_back
        error: Exception = self.rejected(failure, outcome.why) if type(failure) is Refused else failure
        if outcome.reason is Reason.deadline:
            self._end_with(self.expired(outcome.why), error)
        elif error is not failure or self.answered:
            self._end_with(error)
        # A failure that was never retryable needs no story; what came before it does.
        untold = outcome.reason is not Reason.not_retryable or self.attempt > 1
        if untold and error is failure and outcome.reason is not Reason.deadline:
            self.tell_story(error, outcome.why)
        if lost:
            self.lose(error if self.ending is None else self.ending, outcome.verdict, outcome.reason)
        return self.ending is not None

    def _end_with(self, error: Exception, cause: BaseException | None = None) -> None:
        if cause is not None:
            error.__cause__ = cause
        self.ending = error

    def _give_up(self, error: Exception, reason: Reason, cause: BaseException | None = None) -> None:
        """Ends the call outside of an attempt, with what its fallback may answer for."""
        self.answered = self.policy._falls_back
        self._end_with(error, cause)
        self.lose(error, None, reason)

    def conclude(self) -> Exception:
        """What the call ends with, which it forgets."""
        error, self.ending = self.ending, None
        return RedoubleError(f"{self.name} has no ending") if error is None else error

    def come_out(self) -> NoReturn:
        """Raises what the call ends with."""
        error = self.conclude()
        context, raised = _context.__get__(error), _trace.__get__(error) is not None
        try:
            raise error
        finally:
            if raised:  # in its own attempt, and in the context that it had there
                _context.__set__(error, context)
            del error, context

    def accepts(self, result: Any) -> bool:
        """Whether ``until`` is content with a later result; an error in it propagates, as the end."""
        until = self.policy.until
        try:
            return until is None or truth("until", until(result))
        except BaseException as error:
            self.abandon()
            if (self.attempt > 1 or self.policy._successes) and isinstance(error, Exception):
                self.read_clock()
                self.announce(GaveUp, reason=Reason.callback)
            raise

    def succeeded(self) -> None:
        """Tells that an attempt succeeded; if none had failed before it, only those who ask for that."""
        if self.attempt > 1:
            self.read_clock()
            self.announce(Recovered)
        else:
            self.announce_success()

    def next_attempt(self) -> Surroundings:
        """Counts on to the next attempt, and gives what the code in it may know."""
        self.recover = None
        self.attempt += 1
        policy, clock, started, ends, number = (
            self.policy, self.clock, self.started, self._own_end, self.attempt,
        )  # fmt: skip
        running = True if self.mark is None else self.mark
        attempt = [policy, clock, started, ends, number, number, self.key, self.failure, self.outer, running]
        self.mark = self.mark or attempt
        return attempt

    def in_time(self, ahead: float = 0.0, *, of_backoff: bool = False) -> bool:
        """Whether the deadline has not come and will not come within a wait ahead; if it has, the call ends.

        Asked before the wait, since the listeners have taken time, and after it: no attempt starts late.
        """
        if self.ends is None or (now := self.read_clock()) + ahead < self.ends:
            return True
        why = f"{self.limit} {'would pass during the wait' if ahead and now < self.ends else 'has passed'}"
        if self.failure is None:  # a guard made it wait before there was an attempt
            self.never_began(why)
            return False
        if of_backoff:
            self.story.without_the_wait()
        self.announce(Expired, reason=Reason.deadline)
        self._give_up(self.expired(why), Reason.deadline, self.held)
        return False

    def unslept(self, trouble: Exception) -> None:
        """Ends the call because the policy's ``sleep`` raised: the failure is raised, with that noted."""
        if self.failure is None:  # a throttle made it wait, and there is no error yet that this could hide
            self._end_with(trouble)
        else:
            self.story.without_the_wait()
            self.unrecovered(f"sleep raised {brief(trouble)}")

    def unrecovered(self, trouble: str) -> None:
        """Ends the call because ``recover`` failed: the failure comes out, with that noted."""
        self.read_clock()
        self.announce(GaveUp, reason=Reason.callback)
        error = RedoubleError(trouble) if self.held is None else self.held
        self._end_with(self.tell_story(error, trouble))
        self.lose(error, None, Reason.callback)

    def unanswered(self, trouble: str, error: Exception) -> None:
        """The fallback has failed: the error that it was to answer for comes out, with that noted."""
        self.tell_story(error, f"{self.why}; {trouble}" if self.why else trouble)
        self.ending, self.answered = error, False

    def circuit_is_open(self) -> bool:
        """Whether the breaker lets nothing through at present; if so, the call ends."""
        breaker = self.policy.breaker
        refusal = None if breaker is None else refused_by(breaker)
        if refusal is not None:
            self.barred(refusal, Reason.circuit)
        return refusal is not None

    def never_began(self, why: str | None = None) -> None:
        """Ends a call whose time, set further out or spent with a guard, was up before its first attempt."""
        self.attempt = 0
        self.read_clock()
        self.announce(Expired, reason=Reason.deadline)
        message = f"gave up on {self.summary(why or f'{self.limit} has passed')}"
        self._give_up(DeadlineExceeded(message, attempts=0, elapsed=self.elapsed()), Reason.deadline)

    def turned_away(self, refusal: RedoubleError) -> None:
        """Ends the call because there was no place for it, or none in time."""
        if self.ends is not None and self.read_clock() >= self.ends:
            self.never_began()
        else:
            self.barred(refusal, Reason.bulkhead)

    def barred(self, refusal: RedoubleError, reason: Reason) -> None:
        """Ends the call because a guard lets no attempt through.

        Before the first attempt the guard's own error comes out, later the function's last one.
        """
        self.read_clock()
        if self.failure is None:
            self.attempt = 0
            self.was(refusal)
            self.announce(events.Refused, reason=reason)
            self._give_up(refusal, reason)
        else:
            self.announce(GaveUp, reason=reason)
            error = refusal if self.held is None else self.held
            self._give_up(self.tell_story(error, str(refusal)), reason)

    def _cut(self) -> Stop:
        return Stop(Reason.deadline, f"{self.limit} came during the attempt", None)

    def _take(self, outcome: Wait | Stop, failure: Exception | Refused) -> None:
        """Commits what was decided before anybody is told of it."""
        self.write_down(failure, None if isinstance(outcome, Stop) else outcome.delay)
        self.verdict = outcome.verdict
        if isinstance(outcome, Stop):
            self.announce(Expired if outcome.reason is Reason.deadline else GaveUp, reason=outcome.reason)
            return
        self.previous, self.delay = outcome.previous, outcome.delay
        if outcome.rule is not None:
            self.recover = outcome.rule.recover
            counts = self.rule_failures = self.rule_failures or {}
            counts[outcome.rule_key] = counts.get(outcome.rule_key, 0) + 1
        self.announce(Retrying, delay=outcome.delay)

    def _must_hold(self) -> bool:
        policy = self.policy
        if self.recover is not None or self.ends is not None:
            return True
        return policy.breaker is not None or policy.sleep is not None

    def _hold(self, error: Exception) -> None:
        """Keeps the failure where somebody is going to need it, and no more of it than its own attempt.

        An exception object that is raised again and again gathers the frames of every attempt, so that
        a long call would grow with each. It is known by having been seen before, and grown since.
        """
        if self.attempt > _SHORT:
            length, seen = _depth(_trace.__get__(error)), self._seen or {}
            self._worn = length > seen.setdefault(id(error), length)
            self._seen = seen if len(seen) <= _SEEN else None
        if self._must_hold():
            self.held = error
        elif self._worn:
            _trace.__set__(error, None)

    def let_go(self) -> None:
        """Forgets the failure that was held over the wait: a frame must not outlive its attempt."""
        self.unspent = 0.0
        if self.held is not None and self._worn:
            _trace.__set__(self.held, None)
        self.held = None


def _depth(trace: TracebackType | None) -> int:
    depth = 0
    while trace is not None:
        depth, trace = depth + 1, trace.tb_next
    return depth
