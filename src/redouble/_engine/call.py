"""The state of one call: its limits, what it has been through, its events, how it ends.

A `Call` is made when the first attempt has failed, or before it, if a guard may refuse or delay the
attempt, or a listener wants to know of successes. It never waits and never runs an attempt: the flow says
when, and a driver does it.

How a call ends, by the method that the flow calls:

- `succeed`: an attempt returned.
- `settle` with a `Stop`: the last failure is raised, or `DeadlineExceeded` or `ResultRejected` made of it.
- `expire`: the deadline passed before the first attempt, or during a wait.
- `refuse`: a guard refused an attempt; before the first one the error of the guard is raised.
- `fail_callback`: ``sleep`` or ``recover`` failed; the last failure is raised, and its note says why.
- `end_if_cancelled`: the task was cancelled during an attempt that hid it.

All failures go through `give_up`, which writes the note and says whether a dead letter is stored and a
fallback answers. `release` gives back all that the call holds of guards; it runs in every case, interrupts
included.
"""

from __future__ import annotations

import sys
import time

from .._base import clock as _clock
from .._base.callables import sync_result
from .._base.checks import INF
from .._base.log_once import warn
from .._base.loops import cancel_requests, requests_before, requests_of_groups
from .._base.text import mask_line, one_line, safe_str, type_name
from ..context import (
    BEYOND,
    CLOCK,
    ENDS,
    KEY,
    OUTER,
    RUNNING,
    STARTED,
    current,
    earliest_end,
    living,
    replay_here,
    retried_in,
    running_in,
    shorter,
    storing,
)
from ..errors import DeadlineExceeded, RedoubleError, ResultRejected
from ..events import (
    DeadLettered,
    Expired,
    GaveUp,
    Reason,
    Recovered,
    Refused,
    Retrying,
    Succeeded,
    correlated,
    emit,
    logger_for,
    subscribed,
    subscribers,
    tell,
    without,
)
from .decide import Progress, RejectedResult, Stop, Wait, first_limit, refused_by
from .guarding import GuardPass
from .note import given_up_note, record, write_note, written

TYPE_CHECKING = False
if TYPE_CHECKING:
    from contextvars import Token
    from types import TracebackType
    from typing import Any

    from .._base.json_safe import Masking
    from ..classify import Verdict
    from ..context import AttemptContext, Key
    from ..events import Event
    from ..policy import Policy, Rule
    from .guarding import Report
    from .note import Entry, Note

# Attempts above which a call is long, so that exception objects that are raised again matter.
_SHORT = 10

# Exception objects that are remembered, to recognise one that is raised again.
_SEEN = 16

# Seconds that a call waits at most until its dead letter is stored, with a deadline or without.
_STORE_AT_MOST = 5.0

# Why a first failure may not be retried here nor by an enclosing call.
_REFUSALS = frozenset({Reason.budget, Reason.breaker, Reason.retry_after})

# The traceback as Python keeps it, whatever an exception's own attributes do.
_trace: Any = BaseException.__dict__["__traceback__"]


class Call:
    """The state of one call. Belongs to one thread or task.

    Making a call is a part of every failure, and there may be a hundred thousand calls in backoff. So what
    every failure reads or sets is in slots, and the rest keeps the defaults of the class until it differs.
    Exceptions are kept over a wait only if something may need them (`held`).
    """

    __slots__ = (
        "__dict__",
        "args",
        "at",
        "attempt",
        "clock",
        "ends",
        "guards",
        "held",
        "in_task",
        "kwargs",
        "last_note",
        "log",
        "mark",
        "name",
        "outer",
        "policy",
        "previous",
        "started",
        "stepwise",
        "verdict",
        "waited",
    )

    # What `decide` reads; see `Progress`.
    attempt: int
    previous: float | None
    ends: float | None
    limit = Progress.limit
    give_up_at: float | None = None
    outer_retrying = False
    last_note: float
    outside: int | None = None
    rule_failures: dict[Any, int] | None = None
    guards: GuardPass | None

    # Whether it runs on an async driver.
    in_task: bool
    # Whether that cannot await now: while a plain ``with`` in an ``async for`` is left.
    blocked = False
    # Whether the flow yields SETTLED before a wait, as the drivers of blocks and generators need.
    stepwise: bool
    # Of a block whose running attempt was reset: reports of its success that must still be awaited.
    owed: list[Report] | None = None
    # Whether a block was reset, as it may be for ever.
    was_reset = False
    # When the call began; when it first failed, if nothing had to read the clock before.
    started: float | None
    # The last reading of the clock.
    at: float
    # The sum of the waits that were made.
    waited: float
    # The failed attempts, as text and numbers; see `note`.
    log: tuple[Entry, ...]
    # The verdict on the last failure.
    verdict: Verdict | None
    # The rule, or the policy, whose ``recover`` is called before the next attempt.
    recover: Rule | Policy | None = None
    # The keywords of the attempts to come, once a ``recover`` could have changed them.
    keywords: dict[str, Any] | None = None
    # The failure itself, kept over a wait that may end the call: recover, a limit, breaker or sleep.
    held: Exception | None
    # The error that the call ends with.
    ending: Exception | None = None
    # Whether the fallback replaces that error.
    answered = False
    # `ending`, until its dead letter is stored.
    lost: Exception | None = None
    # Why it gave up, once its note is written.
    why = ""
    # Whether a guard, or the server's wait, was in the way of a retry.
    refused = False
    # The note of the inner call that has raised the error, to be kept: this call has nothing else to tell.
    inner: Note | None = None
    key: Key | None = None
    # The context by which all its attempts know whether it still runs.
    mark: AttemptContext | None
    # The context of the enclosing call.
    outer: AttemptContext | None
    # Its own deadline; `ends` is the first of this one and those of enclosing calls.
    _own_end: float | None = None
    # Requests to cancel its task that it has seen.
    cancels = 0
    _from_start = _repeated = False
    # Whether its events are logged: once something was retried or refused. A failure that is raised at once
    # is the caller's.
    logged = False
    _seen: dict[int, int] | None = None
    _code = _instructions = ""

    def __init__(
        self,
        policy: Policy,
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        first: AttemptContext | None = None,
        ticket: Any = None,
        last_note: float = INF,
        *,
        awaits: bool = False,
        stepwise: bool = False,
    ) -> None:
        """Take what the first attempt had: its arguments, its context and the ticket of its breaker.

        ``last_note`` is what ``written.latest`` was when it began. Without a context the limits of enclosing
        calls are read here: the first attempt has not asked for them.
        """
        self.policy = policy
        self.last_note = last_note
        self.in_task, self.stepwise = awaits, stepwise
        self.name = policy.name or name
        self.args, self.kwargs = args, kwargs
        self.attempt, self.at, self.waited, self.log = 1, 0.0, 0.0, ()
        self.previous = self.ends = self.started = self.verdict = self.held = None
        self.mark = self.outer = self.guards = None
        if policy._client is not None:
            self.name = policy.name or policy._client.name_of(*args)
        if first is None:
            plain_clock = policy.clock is None and not _clock.fakes
            self.clock = time.monotonic if plain_clock else _clock.clock_of(policy.clock)
            outer = current.get()
            if outer is not None:
                self._read_context(outer)
        else:
            self.clock = first[CLOCK]
            self._take_context(first)
        if policy._successes and self.started is None:
            self._from_start = True
            self.read_clock()
        if policy._guarded:
            self.guards = GuardPass(policy, ticket)
            if policy._keyed:
                self.guards.choose(self.name, args, kwargs, awaits=awaits)

    def _read_context(self, outer: AttemptContext) -> None:
        """Take the limits of the enclosing call, which a first attempt without a context has not read."""
        self.outer = living(outer)
        # The first attempt sent the idempotency key of the enclosing call; so do the others.
        running = running_in(self.outer)
        if running is not None:
            self.key = running[KEY]
        self._bind(self.clock())

    def _take_context(self, first: AttemptContext) -> None:
        """Take start, deadline and key from the context of the first attempt."""
        self.mark = first
        self.started, self.outer = first[STARTED], first[OUTER]
        if first[KEY] is not None:
            self.key = first[KEY]
        self.ends = self._own_end = first[ENDS]
        self._from_start = self.started is not None
        self._limit_softly()
        if self.policy.deadline is not None:
            self.limit = f"the deadline of {self.policy.deadline:g} s"
        if self.outer is not None:
            self._bind(self.clock())

    def _limit_softly(self) -> None:
        """Set from when on no attempt may start, by ``give_up_after``."""
        after = self.policy.give_up_after
        if after is not None and self.started is not None:
            self.give_up_at = self.started + after

    def _bind(self, now: float) -> None:
        """Read the deadlines and attempts of the enclosing calls that still run."""
        outer = self.outer = living(self.outer)
        self.outer_retrying = retried_in(outer) > 1
        self.ends = shorter(self._own_end, earliest_end(outer, self.clock, now))
        if self.ends is not None:
            own = self.ends == self._own_end
            self.limit = f"the deadline of {self.policy.deadline:g} s" if own else Progress.limit

    # Time

    def read_clock(self) -> float:
        """Return the time, but never less since the start than the waits add up to.

        A clock may stand still (freezegun) or go back, and a call without a limit to its attempts must end.
        """
        now = self.clock()
        if self.started is None:
            self.started = now
        elif now < self.started + self.waited:
            now = self.started + self.waited
        self.at = now
        if self.outer is not None:
            self._bind(now)
        return now

    def elapsed(self) -> float:
        """Return the seconds since the start, as the clock was last read. A clock may go back."""
        return 0.0 if self.started is None else max(0.0, self.at - self.started)

    def time_left(self) -> float | None:
        """Return the seconds until the deadline, never below 0; ``None`` without one."""
        return None if self.ends is None else max(0.0, self.ends - self.clock())

    def end_if_late(self, ahead: float = 0.0, *, of_backoff: bool = False) -> bool:
        """End the call if a limit has passed, or will have after a wait ahead. Return whether it has ended.

        Asked before the wait, since listeners take time, and after it: no attempt starts after a limit.
        """
        if self.ends is None and self.policy.give_up_after is None:
            return False
        now = self.read_clock()
        end, reason, limit = self.ends, Reason.deadline, self.limit
        if self.give_up_at is not None and self.log:  # the first attempt is always made
            end, reason, limit = first_limit(self.policy, self)
        if end is None or now + ahead < end:  # without one: the enclosing call has ended
            return False
        why = f"{limit} {'would pass during the wait' if ahead and now < end else 'has passed'}"
        if of_backoff:
            self.log_delay(None)
        if reason is Reason.deadline:
            self.expire(why)
        else:
            held: Any = self.held
            self.announce(GaveUp, reason=reason, error=held, why=why)
            self.give_up(held, reason, note=why, verdict=self.verdict)
        return True

    def log_delay(self, delay: float | None, *, more: bool = False) -> None:
        """Correct the wait after the last attempt: a guard made it longer, or it was not made at all."""
        if self.log:
            *others, last = self.log
            self.log = (*others, (*last[:3], (last[3] or 0.0) + (delay or 0.0) if more else delay, *last[4:]))

    # Attempts

    @property
    def last_failure(self) -> tuple[str, str] | None:
        """The type and the message of the last failure."""
        return self.log[-1][1:3] if self.log else None

    def next_attempt(self) -> AttemptContext:
        """Count on to the next attempt, and return its context.

        All attempts of a call share the mark that says whether the call still runs: tasks and threads that
        outlive it see no context then.
        """
        if self.stepwise:
            self.owed = None
        number = self.attempt = self.attempt + 1
        policy, mark, log = self.policy, self.mark, self.log
        own_end = None if policy.deadline is None else self._own_end
        attempt = [
            policy, self.clock, self.started, own_end, number, number, self.key,
            log[-1][1:3] if log else None, self.outer, True if mark is None else mark,
        ]  # fmt: skip
        if mark is None:
            self.mark = attempt
        self.last_note = written.latest
        return attempt

    @property
    def awaits(self) -> bool:
        """Return whether its driver may await now."""
        return self.in_task and not self.blocked

    def settle(self, outcome: Wait | Stop, failure: Any) -> float | None:
        """Record what was decided, and announce it. Return the wait before the next attempt, or ``None``.

        The failure becomes a line of text in the log. The exception itself is kept over the wait only where
        it may still be needed: as the cause of `DeadlineExceeded`, as the argument of ``recover``, or to be
        raised if a breaker or ``sleep`` ends the call.
        """
        policy = self.policy
        self.verdict = outcome.verdict
        heard = policy.listeners or subscribers or logger_for(policy.logger) is not None
        if isinstance(outcome, Stop):
            self.log = record(self.log, self.attempt, failure, None, self.last_note)
            if heard:
                expired = outcome.reason is Reason.deadline
                kind = Expired if expired else GaveUp
                self.announce(kind, reason=outcome.reason, error=failure, why=outcome.why)
            self._stop(outcome, failure)
            return None
        self.previous = outcome.previous
        self.log = record(self.log, self.attempt, failure, outcome.delay, self.last_note)
        # A rule's `recover` is for its own failures only.
        if policy.recover is not None or outcome.rule is not None or self.rule_failures is not None:
            self.recover = None if policy.recover is None else policy
            if outcome.rule is not None:
                self._apply(outcome.rule, outcome.rule_key)
        if heard:
            self.announce(Retrying, delay=outcome.delay, error=failure)
        guards = self.guards
        if guards is not None:
            guards.cost = guards.unspent = outcome.cost
        # Kept over the wait if something may need it.
        if (
            policy.sleep is not None
            or self.ends is not None
            or policy.give_up_after is not None
            or self.recover is not None
            or (guards is not None and guards.breaker is not None)
            or (self.stepwise and self.owed is not None)
        ):
            if type(failure) is RejectedResult:
                message = f"a result of {self.name} was refused: {self.line(failure.reason)}"
                failure = ResultRejected(message, result=failure.result, attempts=self.attempt)
            self.held = failure
        long = self.attempt > _SHORT or (self.stepwise and self.was_reset)
        if long and type(failure) is not RejectedResult:
            self._forget_frames(failure)
        return outcome.delay

    def _apply(self, rule: Rule, key: Any) -> None:
        """Count a failure for its rule, whose ``recover`` replaces the policy's."""
        if rule.recover is not None:
            self.recover = rule
        counts = self.rule_failures = self.rule_failures or {}
        counts[key] = counts.get(key, 0) + 1

    def _forget_frames(self, error: Exception) -> None:
        """Drop the traceback of an exception object that is raised again and again.

        It collects the frames of every attempt, so that a long call would grow with each. It is recognised by
        its id, and by a traceback that has grown.
        """
        length, seen = _depth(_trace.__get__(error)), self._seen or {}
        self._repeated = length > seen.setdefault(id(error), length)
        self._seen = seen if len(seen) <= _SEEN else None
        if self._repeated and self.held is None:
            _trace.__set__(error, None)

    def let_go(self) -> None:
        """Forget the failure that was held over the wait: a frame must not outlive its attempt."""
        if self.guards is not None:
            self.guards.unspent = 0.0
        if self.held is not None and self._repeated:
            _trace.__set__(self.held, None)
        self.held = None

    def succeed(self) -> None:
        """Announce a success; at the first attempt only to listeners that ask for that."""
        if self.attempt > 1:
            self.read_clock()
            self.announce(Recovered)
        elif self.policy._successes:
            self.read_clock()
            event = Succeeded(self.name, attempt=1, elapsed=self.elapsed())
            tell(event, self.policy._successes, (None, self, ""))

    def reset(self) -> None:
        """End the call as a success, and begin it anew with the running attempt. Its deadline stays."""
        if self.owed is None:
            self.owed = [] if self.guards is None else self.guards.give_back(self.time_left)
            self.succeed()
        self.attempt, self.waited, self.log = 1, 0.0, ()
        self.previous = self.rule_failures = self.recover = self.verdict = self.started = None
        self.logged = False
        self._from_start = True
        self.was_reset = True
        self.read_clock()
        self._limit_softly()

    # Ends

    def give_up(
        self,
        error: Exception,
        reason: Reason,
        *,
        note: str = "",
        cause: BaseException | None = None,
        verdict: Verdict | None = None,
        lost: bool = True,
    ) -> None:
        """End the call with this error, with a note that says why.

        ``cause`` becomes its ``__cause__``, ``verdict`` the failure code of the dead letter. If the call is
        ``lost``, a dead letter is stored, and the fallback answers; not after an error of a callback, and
        not where an enclosing call goes on retrying.
        """
        if note:
            self.add_note(error, note)
        if cause is not None:
            error.__cause__ = cause
        self.ending = error
        self.answered = lost and self.policy._falls_back and reason is not Reason.callback
        if lost and self.policy.dead_letters is not None:
            self._lose(error, verdict, reason)

    def _stop(self, stop: Stop, failure: Any) -> None:
        """End the call after a failure that is not retried."""
        reason, why = stop.reason, stop.why
        if reason is Reason.disabled:
            return
        rejected = type(failure) is RejectedResult
        self.refused = reason in _REFUSALS
        if not rejected and (self.attempt == 1 or reason is Reason.already_retried):
            self.inner = given_up_note(failure, self.last_note)
        error: Exception = self._rejected(failure, why) if rejected else failure
        lost = reason is not Reason.nested and reason is not Reason.callback
        # By its class: isinstance would ask the exception for attributes, which may raise.
        if reason is Reason.not_retryable and not issubclass(type(failure), RedoubleError):
            lost = False
        if reason is Reason.deadline:
            self.give_up(self._expired(why), reason, cause=error, verdict=stop.verdict)
        else:
            # A failure that was never retryable needs no note, unless others came before it.
            noted = not rejected and (reason is not Reason.not_retryable or self.attempt > 1)
            self.give_up(error, reason, note=why if noted else "", verdict=stop.verdict, lost=lost)

    def expire(self, why: str = "") -> None:
        """End the call because its deadline has passed, or would pass during a wait."""
        why = why or f"{self.limit} has passed"
        if not self.log:  # of an enclosing call, or spent with a guard, before there was an attempt
            self.attempt = 0
            self.read_clock()
        self.announce(Expired, reason=Reason.deadline, error=self.held, why=why)
        self.give_up(self._expired(why), Reason.deadline, cause=self.held)

    def refuse(self, refusal: RedoubleError, reason: Reason) -> None:
        """End the call because a guard refuses the attempt.

        Before the first attempt the guard's own error is raised, later the last failure.
        """
        now = self.read_clock()
        if reason is Reason.bulkhead and self.ends is not None and now >= self.ends:
            self.expire()
        elif not self.log:
            self.attempt = 0
            failure = type_name(refusal), safe_str(refusal)
            self.announce(Refused, reason=reason, error=refusal, failure=failure)
            self.give_up(refusal, reason)
        else:
            self.refused = True
            self.announce(GaveUp, reason=reason, error=self.held, why=str(refusal))
            self.give_up(refusal if self.held is None else self.held, reason, note=str(refusal))

    def fail_callback(self, error: Any, trouble: str) -> None:
        """End the call because ``sleep`` or ``recover`` failed: the last failure is raised, and noted why."""
        if not self.log:  # a throttle made the call wait: there is no failure that this could replace
            self.ending = error
            return
        self.read_clock()
        self.announce(GaveUp, reason=Reason.callback, error=self.held, why=trouble)
        held = RedoubleError(trouble) if self.held is None else self.held
        self.give_up(held, Reason.callback, note=trouble)

    def end_if_refused(self) -> bool:
        """End the call if the breaker is open now. Return whether it has ended."""
        guards: Any = self.guards
        refusal = None if guards.breaker is None else refused_by(guards.breaker)
        if refusal is not None:
            self.refuse(refusal, Reason.breaker)
        return refusal is not None

    def release(self) -> None:
        """Give back what the call holds. Calling it again does what an interrupt has prevented."""
        if self.mark is not None:
            self.mark[RUNNING] = False
        self.held = None
        guards = self.guards
        if guards is not None:
            if guards.slot is not None:
                # Not deeper: a call on a nearly full stack must be able to give back the slot that it could
                # take.
                bulkhead, permit = guards.slot
                bulkhead._release(permit)
                guards.slot = None
            if guards.unspent:
                guards.refund(self.time_left())
            if guards.ticket is not None:
                guards.release_ticket(self.time_left())

    # Cancellation of asyncio tasks. ``except CancelledError: raise ConnectionResetError`` hides it;
    # so does a cleanup that fails. A task counts the requests to cancel it; if there are more than when the
    # attempt began, the call is not retried. On trio nothing is needed: a wait in a cancelled scope raises
    # `Cancelled`.

    def end_if_cancelled(self, failure: Any) -> bool:
        """End the call with its error if the task was cancelled during the attempt. Return whether it was.

        A result that was rejected must not be returned: the cancellation is raised in its place.
        """
        now, before = cancel_requests(), self.cancels
        rejected = type(failure) is RejectedResult
        if self.attempt == 1 and before == 0:
            before = requests_before(sys.exception() if rejected else failure)
        self.cancels = now
        if now <= before or (not rejected and now - requests_of_groups(failure) <= before):
            return False
        if rejected:
            _raise_cancelled()
        error: Any = failure
        self.ending = error
        self.add_note(error, "its task was cancelled during the attempt")
        return True

    def heed_cancellation(self) -> None:
        """Raise a cancellation that came during the wait, and that ``sleep`` or ``recover`` has caught."""
        now = cancel_requests()
        if now > self.cancels:
            _raise_cancelled()
        self.cancels = now

    # Events and texts

    def announce(
        self,
        kind: type[Event],
        *,
        delay: float | None = None,
        reason: Reason | None = None,
        error: Any = None,
        why: str = "",
        failure: tuple[str, str] | None = None,
    ) -> None:
        """Emit an event, if anybody would receive it.

        ``error`` is the failure that it is about, and ``failure`` its texts, if it is not in the log.
        """
        policy = self.policy
        if not (policy.listeners or subscribers or logger_for(policy.logger) is not None):
            return
        error_type, message = failure or self.last_failure or (None, None)
        verdict = self.verdict
        event = kind(
            self.name,
            attempt=self.attempt,
            delay=delay,
            elapsed=self.elapsed(),
            cause=None if verdict is None else verdict.cause,
            status=None if verdict is None else verdict.status,
            error_type=error_type or None,
            error_message=message,
            reason=reason,
        )
        self.logged = self.logged or kind is Retrying or kind is Refused
        # A result that was rejected has no type, and is no exception.
        during = (error if error_type else None, self, why)
        emit(event, policy.listeners, logged=self.logged, logger=policy.logger, during=during)

    def add_note(self, error: Any, why: str) -> None:
        """Write the note of the call on an error."""
        self.why = why
        summary, elapsed, masking = self._summary(), self.elapsed(), self.masking
        why = mask_line(why, masking=masking)
        final = self.attempt > 1 or self.refused
        write_note(
            error, summary + why, self.log, self.name, elapsed, why, masking, final=final, inner=self.inner
        )

    def _summary(self) -> str:
        """Return the beginning of a sentence that says why the call gave up."""
        if not self.attempt:
            return f"{self.name} before its first attempt: "
        return f"{self.name} after {self.counted()}: "

    def counted(self) -> str:
        """Return how many attempts were made, and in which time, in words."""
        count = f"{self.attempt} attempt{'' if self.attempt == 1 else 's'}"
        if self._from_start:
            count += f" in {self.elapsed():.1f} s"
        elif self.attempt > 1:
            count += f", {self.elapsed():.1f} s after the first failure"
        return count

    @property
    def most(self) -> float | None:
        """The most attempts that the policy allows."""
        return self.policy.attempts

    def _expired(self, why: str) -> DeadlineExceeded:
        """Return `DeadlineExceeded` with a line for each attempt; with none if there was no attempt."""
        message = f"gave up on {self._summary()}{why}"
        error = DeadlineExceeded(message, attempts=self.attempt, elapsed=self.elapsed())
        if self.attempt:
            self._list(error, why)
        return error

    def _rejected(self, rejected: RejectedResult, why: str) -> ResultRejected:
        """Return `ResultRejected` for a result that ``until`` has refused at the last attempt."""
        message = f"gave up on {self._summary()}{why}; {self.line(rejected.reason)}"
        error = ResultRejected(message, result=rejected.result, attempts=self.attempt)
        self._list(error, why)
        return error

    def _list(self, error: RedoubleError, why: str) -> None:
        """Add the note to an error of ours, whose message has the summary already."""
        headline = f"{self.name}, attempt by attempt:"
        final = self.attempt > 1 or self.refused
        write_note(
            error, headline, self.log, self.name, self.elapsed(), self.line(why), self.masking, final=final
        )

    @property
    def masking(self) -> Masking | None:
        """The user's masks for dead letters, which apply to the note and the log of the call as well."""
        return getattr(self.policy.dead_letters, "_masking", None)

    def line(self, message: str) -> str:
        """Return a message as one line without secrets."""
        return mask_line(message, masking=self.masking)

    def brief(self, error: Exception) -> str:
        """Return the type and the message of an error as one line without secrets."""
        return one_line(type_name(error), self.line(safe_str(error)))

    # The dead letter

    def _lose(self, error: Exception, verdict: Verdict | None, reason: Reason) -> None:
        """Note that a dead letter is to be stored; none, if the call is the replay of one."""
        replay = replay_here()
        if replay is not None and replay.is_of(self.policy.dead_letters, self.name):
            replay.again = self.brief(error)
            return
        self.lost = error
        self._code = str(reason if verdict is None else verdict.status or verdict.cause)
        self._instructions = self.why if reason is Reason.not_idempotent else ""

    def limit_storing(self) -> Token[tuple[float, Any] | None]:
        """Set how long storing may take: what the call has left, and a little more."""
        left = self.time_left()
        seconds = min((INF if left is None else left) + BEYOND, _STORE_AT_MOST)
        return storing.set((_clock.real_now() + seconds, self))

    def store(self) -> Any:
        """Store the dead letter; returns it, or something to await for it."""
        letters: Any = self.policy.dead_letters
        put = letters.aput if self.awaits else letters.put
        wall, about = time.time(), correlated()
        return put(
            **self._payload(),
            function=self.name,
            error=self.lost,
            failure_code=self._code,
            attempts=self.attempt,
            first_attempt_at=wall - self.elapsed(),
            last_attempt_at=wall,
            # Not the key of an enclosing call, which may make several calls.
            idempotency_key=self.key.value() if self.key and self.policy.idempotency_key else None,
            correlation_id=about.get("correlation_id") or about.get("trace_id"),
        )

    def _payload(self) -> dict[str, Any]:
        """Return what the dead letter stores of the arguments, and whether it may be replayed."""
        payload, instructions = self.policy.payload, self._instructions
        try:
            made = None if payload is None else sync_result("it", payload(*self.args, **self.kwargs))
        except Exception as error:  # noqa: BLE001 - the user's code; the rest is stored all the same
            instructions = f"its payload could not be made: {self.brief(error)}"
            warn(f"{self.name} failed for good, and {instructions}", error)
            made = None
        if not instructions:
            return {"payload": made}
        return {"payload": made, "replayable": False, "replay_instructions": instructions}

    def stored(self, letter: Any) -> None:
        """Announce the dead letter to the policy's own listeners; the store has told all others."""
        theirs = getattr(self.policy.dead_letters, "listeners", ())
        listeners = without(self.policy.listeners, (*theirs, *subscribed()))
        if listeners:
            tell(DeadLettered(letter), listeners, (self.lost, self, ""))

    def store_failed(self, error: Exception) -> None:
        """Write on the error, and log every time, that its dead letter could not be stored."""
        text = f"its dead letter could not be stored: {self.brief(error)}"
        lost: Any = self.lost
        self.add_note(lost, f"{self.why}; {text}" if self.why else text)
        warn(f"{self.name} failed for good, and {text}", error)


def _raise_cancelled() -> None:
    """Raise the cancellation that the attempt, ``sleep`` or ``recover`` has hidden."""
    import asyncio

    raise asyncio.CancelledError


def _depth(trace: TracebackType | None) -> int:
    """Return how many frames a traceback has."""
    depth = 0
    while trace is not None:
        depth, trace = depth + 1, trace.tb_next
    return depth
