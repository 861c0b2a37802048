"""Decide after a failure: wait how long, or stop and why. No clock and no sleep.

`decide` asks in this order, free questions first:

    enabled, verdict, nesting (stop), idempotency, attempts, hint against max_retry_after, delay against
    deadline and give_up_after, nesting (defer), breaker, budget

The budget is last because it is the only one that spends; it may be in a file or on a server, and one that
must be awaited is asked by the driver. `Progress` is what `decide` knows of the call, in numbers; a failure
is an exception, or a `RejectedResult`.
"""

from __future__ import annotations

from .._base.callables import name_of, sync_result, truth
from .._base.checks import INF
from .._base.log_once import warn_once
from .._base.record import Record
from .._base.text import brief
from ..backoff import LONGEST, full_jitter, next_delay
from ..classify import (
    DEFAULT,
    Cause,
    Classifier,
    Verdict,
    class_info,
    find_requests,
    leaves,
    plain_verdict,
    retry_after,
    verdict,
)
from ..context import capped_at, caps, disabled_here, in_time, switched_off_everywhere, switches_off
from ..events import Reason
from .note import already_retried, written

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Protocol, TypeAlias

    from ..breaker import Breaker
    from ..errors import RedoubleError
    from ..policy import Policy, Rule
    from .call import Call
    from .guarding import GuardPass

    State: TypeAlias = "Call | Progress"
    Failure: TypeAlias = "Exception | RejectedResult"

    class Client(Protocol):
        """A client library, as a call of `redouble.clients` sees it. ``args`` are those of the call."""

        #: How to allow a request to be sent twice.
        remedy: str

        def name_of(self, *args: Any) -> str:
            """Return the name of a call whose policy has none."""
            ...

        def reason(self, result: Any) -> str:
            """Return in a few words why a result was rejected."""
            ...

        def discard(self, result: Any, left: float | None) -> Any:
            """Close a result that was rejected, before the wait; return an awaitable if that awaits."""
            ...

        def unrepeatable(self, *args: Any) -> str:
            """Return why the request must not be sent again, such as a body that was read; or nothing."""
            ...

        def may_repeat(self, *args: Any) -> bool:
            """Return whether the request may be sent twice: by its method, its key, or as a read."""
            ...

        def method_of(self, *args: Any) -> str:
            """Return the method of the request, or what stands for it in a sentence."""
            ...


class RejectedResult(Record):
    """A result that ``until`` rejected, or a block that asked to be run again, after a wait perhaps."""

    result: Any
    reason: str = "the result was refused"
    after: float | None = None


class CutOff(TimeoutError):  # noqa: N818 - says what happened
    """The deadline cancelled an async attempt. It becomes the cause of `DeadlineExceeded`."""


class Progress:
    """The state of a call that `decide` reads: numbers, text and limits, never an exception.

    Most calls keep most of the defaults, which are the class's own: making one is part of every failure.
    """

    # The number, from 1, of the attempt that has just failed.
    attempt = 1
    # The backoff's own last delay, at least ``base``; ``None`` before the first wait.
    previous: float | None = None
    # When the deadline is, by the policy's clock.
    ends: float | None = None
    # What to call that deadline: it may be this policy's own, or that of an enclosing call.
    limit = "the deadline of the enclosing call"
    # From when on no attempt may start, by ``give_up_after`` and the policy's clock.
    give_up_at: float | None = None
    # Whether an enclosing call is already retrying.
    outer_retrying = False
    # What `written.latest` was when the attempt began: notes of calls that ended during it are later ones.
    last_note = INF
    # Of a block: the id of the exception that was being handled when it was entered.
    outside: int | None = None
    # How many earlier failures each rule has answered for.
    rule_failures: dict[Any, int] | None = None
    # The guards to ask.
    guards: GuardPass | None = None
    # The arguments of the call.
    args: tuple[Any, ...] = ()

    def __init__(self, attempt: int = 1, **others: Any) -> None:
        """Take the number of the failed attempt, and whatever differs from the defaults."""
        self.attempt = attempt
        self.__dict__.update(others)


class Wait:
    """Make another attempt after ``delay`` seconds."""

    __slots__ = ("cost", "delay", "previous", "rule", "rule_key", "verdict")

    # Without an __init__: one is made after every failure, by `decide`.
    delay: float
    # For the next decision: the backoff's own delay, whatever a server asked for, at least ``base``.
    previous: float
    verdict: Verdict
    # What the budget has taken for it.
    cost: float
    rule: Rule | None
    rule_key: Any


class Stop:
    """Make no other attempt: ``reason`` for machines, ``why`` for people."""

    __slots__ = ("reason", "verdict", "why")

    def __init__(self, reason: Reason, why: str, verdict: Verdict | None) -> None:
        """Take the reason, its text, and the verdict; ``None`` if the failure was not judged."""
        self.reason = reason
        self.why = why
        self.verdict = verdict


def decide(policy: Policy, progress: State, failure: Any, now: float) -> Wait | Stop:  # noqa: C901 - one frame
    """Return what follows a failure. Never raises: an error of a predicate ends the call.

    This runs after every failure. So the cheap questions come first, and the usual answers call no function:
    seldom has an inner call given up during the attempt, and most failures show no request.
    """
    try:
        if type(failure) is CutOff:
            return Stop(Reason.deadline, f"{progress.limit} came during the attempt", None)
        if (policy.enabled is not True or switches_off or switched_off_everywhere) and not _enabled(policy):
            return Stop(Reason.disabled, "retries are switched off", None)
        exact = key = rule = plain = None
        if policy.on is not None or policy.rules or type(failure) is RejectedResult:
            found, exact, key, rule = _judge(policy, failure)
        else:
            plain = plain_verdict(failure)
            found = verdict(failure) if plain is None else plain
        if not found.retryable:
            return Stop(Reason.not_retryable, f"not retryable ({found.reason or found.cause})", found)
        if progress.last_note < written.latest and (inner := _stopped(policy, progress, failure, rule)):
            return Stop(Reason.already_retried, inner, found)
        if (plain is None or not policy.idempotent or policy._client is not None) and (
            unsafe := _unsafe_to_repeat(policy, progress, failure, found, rule)
        ):
            return Stop(Reason.not_idempotent, unsafe, found)
        if policy.attempts is not None and progress.attempt >= policy.attempts:
            return Stop(Reason.attempts, "no attempts left", found)
        if (caps or rule is not None) and (used_up := _used_up(progress, rule, key)):
            return Stop(Reason.attempts, used_up, found)
        hint = found.retry_after if exact is None else None
        if hint is not None and hint > policy.max_retry_after:
            limit = f"max_retry_after of {policy.max_retry_after:g} s"
            asked = f"the server asked for a wait of {hint:.1f} s, above the {limit}"
            return Stop(Reason.retry_after, asked, found)
        wait = Wait()
        wait.verdict, wait.cost, wait.rule, wait.rule_key = found, 0.0, rule, key
        if rule is None and exact is None and hint is None:
            wait.delay = own = next_delay(
                policy.backoff,
                progress.attempt - 1,
                policy.base,
                policy.cap,
                progress.previous,
                policy.rng,
                policy.floor,
            )
            wait.previous = max(own, policy.base)
        else:
            wait.delay, wait.previous = _delay(policy, rule, key, progress, hint, exact, now)
        if progress.ends is not None or policy.give_up_after is not None:
            end, reason, limit = first_limit(policy, progress)
            if now + wait.delay >= end:
                return Stop(reason, _too_late(limit, wait.delay, hint, now >= end), found)
        if policy.nested == "defer" and progress.outer_retrying:
            return Stop(Reason.nested, "left to the enclosing call, which is already retrying", found)
        if progress.guards is None:
            return wait
        return _past_guards(progress.guards, wait, None if progress.ends is None else progress.ends - now)
    except Exception as error:  # noqa: BLE001 - a predicate is the user's code; the call's error is raised
        return Stop(Reason.callback, f"deciding failed with {brief(error)}", None)


def first_limit(policy: Policy, progress: State) -> tuple[float, Reason, str]:
    """Return the limit that comes first, ``give_up_after`` or the deadline: when, the reason, its name."""
    soft, hard = progress.give_up_at, progress.ends
    if soft is not None and (hard is None or soft <= hard):
        return soft, Reason.give_up_after, f"give_up_after of {policy.give_up_after:g} s"
    return INF if hard is None else hard, Reason.deadline, progress.limit


def _stopped(policy: Policy, progress: State, failure: Failure, rule: Rule | None) -> str:
    """Return why an inner call's retries were enough; empty if the policy retries by its own rules."""
    if policy.nested != "stop" or policy.on is not None or rule is not None or policy.attempts == INF:
        return ""
    inner = already_retried(_evidence(failure), progress.last_note)
    return f'{inner}; say nested="independent" to retry it here as well' if inner else ""


def _past_guards(guards: GuardPass, wait: Wait, left: float | None) -> Wait | Stop:
    """Ask breaker and budget for a retry; return the wait, or a stop if one of them refuses.

    A budget that must be awaited is asked by the flow.
    """
    if guards.breaker is not None and (refusal := refused_by(guards.breaker)) is not None:
        return Stop(Reason.breaker, str(refusal), wait.verdict)
    if guards.budget is None or guards.budget.is_async:
        return wait
    try:
        return afford(guards, wait, in_time(left, ask, guards, wait))
    except Exception as error:  # noqa: BLE001 - a budget may be the user's own
        return broke(error, wait)


def refused_by(breaker: Breaker) -> RedoubleError | None:
    """Return the error with which a breaker refuses calls now; ``None`` if it does not, or cannot say."""
    try:
        return breaker.refusal() if breaker._ticket is None and breaker.refuses() else None
    except Exception as error:  # noqa: BLE001 - a breaker may be the user's own; the call goes on
        warn_once(breaker, f"guard {breaker.name} failed", error)
        return None


def broke(error: Exception, wait: Wait) -> Stop:
    """Return the stop for a budget that has failed itself."""
    return Stop(Reason.budget, f"the retry budget failed with {brief(error)}", wait.verdict)


def ask(guards: GuardPass, wait: Wait) -> Any:
    """Ask the budget for a retry. Return its cost, or an awaitable of that."""
    timeout = wait.verdict.cause is Cause.timeout
    return guards.budget.acquire(timeout=timeout, priority=guards.policy.priority)


def afford(guards: GuardPass, wait: Wait, cost: float) -> Wait | Stop:
    """Return the wait, paid for; or a stop, if the budget has refused."""
    if cost:
        wait.cost = cost
        return wait
    return Stop(Reason.budget, f"the retry budget is spent ({guards.budget.name})", wait.verdict)


def _enabled(policy: Policy) -> bool:
    """Return whether retries are on: by ``enabled``, and by the switches of tests."""
    if disabled_here():
        return False
    enabled = policy.enabled
    return enabled is True or (enabled is not False and truth("enabled", enabled()))


def _judge(policy: Policy, failure: Failure) -> tuple[Verdict, float | None, Any, Rule | None]:
    """Return the verdict under this policy, a delay that ``on`` has set, and the key and rule that apply."""
    if (policy.on is not None or policy.rules) and _steers(policy, failure):
        classifier = policy.on if isinstance(policy.on, Classifier) else DEFAULT
        return classifier.verdict(failure), None, None, None
    found, exact = _verdict(policy, failure)
    if not policy.rules:
        return found, exact, None, None
    key, rule = _rule_for(policy, failure, found)
    if rule is not None:
        found = _with_retryable(found, True, _evidence(failure))
    return found, exact, key, rule


def _steers(policy: Policy, failure: Failure) -> bool:
    """Return whether a failure is control flow (`unittest.SkipTest`) that the policy does not name."""
    kind, error = class_info(type(failure)), _evidence(failure)
    if type(failure) is RejectedResult or not (kind.control or kind.group):
        return False
    flow = [leaf for leaf in leaves(error) if class_info(type(leaf)).control]
    on: Any = policy.on
    types: list[Any] = [*(on if isinstance(on, tuple) else ()), *policy.rules]
    named = tuple([key for key in types if isinstance(key, type) and class_info(key).control])
    return not all(isinstance(leaf, named) for leaf in flow)


def _verdict(policy: Policy, failure: Failure) -> tuple[Verdict, float | None]:
    """Return the verdict by ``on``, and a delay that it has set. A rejected result is always retryable."""
    if type(failure) is RejectedResult:
        facts = verdict(failure.result)
        if not facts.reason:
            facts = Verdict(False, reason=failure.reason)
        return _with_retryable(facts, True, failure.result), failure.after
    on: Any = policy.on
    error = _evidence(failure)
    if on is None:
        return verdict(error), None
    if isinstance(on, Classifier):
        return on.verdict(error), None
    if isinstance(on, tuple):
        return _with_retryable(verdict(error), _is_a(error, on), error), None
    return _by_answer(sync_result("on", on(error)), error)


def _is_a(error: Exception, kinds: Any) -> bool:
    """Return whether an error is of one of these types; of a group, itself or all its members."""
    return isinstance(error, kinds) or all(isinstance(leaf, kinds) for leaf in leaves(error))


def _by_answer(answer: Any, failure: Any) -> tuple[Verdict, float | None]:
    """Interpret a predicate's answer: a bool, a delay, a verdict, or anything by its truth."""
    if isinstance(answer, Verdict):
        return answer, None
    facts = verdict(failure)
    if not isinstance(answer, bool):
        if hasattr(answer, "total_seconds"):
            answer = answer.total_seconds()
        if isinstance(answer, (int, float)):
            found = _with_retryable(facts, True, failure)
            if 0 < answer < INF:
                return found, float(answer)
            # A delay of 0, or one that cannot be waited for, leaves the wait to the backoff, hint or not.
            return Verdict(True, found.cause, found.status, None, found.reason, found.unprocessed), None
    return _with_retryable(facts, bool(answer), failure), None


def _with_retryable(facts: Verdict, retryable: bool, failure: object) -> Verdict:
    """Return the same verdict with another ``retryable``, which the policy has decided."""
    if facts.retryable is retryable:
        return facts
    # A verdict tells no hint where nothing is to be retried.
    hint = retry_after(failure) if retryable else None
    return Verdict(retryable, facts.cause, facts.status, hint, facts.reason, facts.unprocessed)


def _rule_for(policy: Policy, failure: Failure, found: Verdict) -> tuple[Any, Rule | None]:
    """Return the key and the rule for this failure: by its type, nearest first, its status, its cause."""
    rules: Any = policy.rules
    for key in (_type_key(rules, failure), found.status, found.cause):
        if key in rules:
            return key, rules[key]
    return None, None


def _type_key(rules: Any, failure: Any) -> Any:
    """Return the type whose rule applies; for a group, one of groups or one that all members share."""
    own = _nearest(rules, failure)
    groups: Any = BaseExceptionGroup
    if not issubclass(type(failure), groups) or (own is not None and issubclass(own, groups)):
        return own
    first, *others = {_nearest(rules, leaf) for leaf in leaves(failure)}
    return own if others else first


def _nearest(rules: Any, failure: object) -> Any:
    """Return the type among the keys of rules that is nearest to the class of a failure."""
    for kind in type(failure).__mro__:
        if kind in rules:
            return kind
    for key in rules:  # abstract base classes, which are in no method resolution order
        if isinstance(key, type) and isinstance(failure, key):
            return key
    return None


def _used_up(progress: State, rule: Rule | None, key: Any) -> str | None:
    """Return which limit is used up by this failure, that of a test or of the rule; ``None`` for none."""
    capped = capped_at() if caps else None
    if capped is not None and progress.attempt >= capped:
        return f"capped at {capped} attempt{'s' if capped > 1 else ''} by testing.capped"
    if rule is None or rule.attempts is None or _failures(progress, key) < rule.attempts:
        return None
    return f"no attempts left for {_shown_key(key)}: its rule allows {rule.attempts}"


def _failures(progress: State, key: Any) -> int:
    """Return how many failures the rule has applied to, this one included."""
    return 1 + (progress.rule_failures or {}).get(key, 0)


# 4xx that tell nothing of the effect, or are retried by default.
_UNANSWERED = frozenset({408, 425, 429})
_MIGHT_ACT_TWICE = "might act twice; if it may be repeated, say"


def _unsafe_to_repeat(
    policy: Policy, progress: State, failure: Failure, found: Verdict, rule: Rule | None
) -> str | None:
    """Return why another attempt cannot be made, or might act twice; ``None`` if it may be made."""
    client: Client | None = policy._client
    args = progress.args
    if client is not None and (why := client.unrepeatable(*args)):
        return why
    if policy.idempotent is True:
        return None
    # A rule for a 4xx implies that the request was rejected: the server has answered.
    if rule is not None and 400 <= (found.status or 0) < 500 and found.status not in _UNANSWERED:
        return None
    if policy.idempotent is False and not found.unprocessed:
        return "the call may have had an effect, and the policy says idempotent=False"
    if client is not None:
        if found.unprocessed or client.may_repeat(*args):
            return None
        return f"repeating this {client.method_of(*args)} {_MIGHT_ACT_TWICE} {client.remedy}"
    evidence = _evidence(failure)
    if plain_verdict(evidence) is not None:
        return None
    sent = find_requests(evidence, found.unprocessed, progress.outside).unrepeatable
    if sent is None:
        return None
    how = "idempotent=True" if sent.name else "idempotent=True or send an Idempotency-Key"
    return f"repeating this {sent.name or sent.method} {_MIGHT_ACT_TWICE} {how}"


def _evidence(failure: Any) -> Any:
    """Return what to examine: the exception, or the result."""
    # By its class: isinstance would ask the exception for attributes, which may raise.
    return failure.result if type(failure) is RejectedResult else failure


def _delay(
    policy: Policy,
    rule: Rule | None,
    key: Any,
    progress: State,
    hint: float | None,
    exact: float | None,
    now: float,
) -> tuple[float, float]:
    """Return the wait, by the server or ``on`` if they say one, and the backoff's own for the next.

    A rule with a base, cap, floor or backoff of its own counts the attempts of its own failures only.
    """
    base, cap, backoff, index = policy.base, policy.cap, policy.backoff, progress.attempt - 1
    floor = policy.floor
    if rule is not None and (rule.base, rule.cap, rule.floor, rule.backoff) != (None,) * 4:
        base = base if rule.base is None else rule.base
        cap = cap if rule.cap is None else rule.cap
        floor = floor if rule.floor is None else rule.floor
        backoff = rule.backoff or backoff
        # Waits of its own begin at their beginning, however many failures of other kinds came before.
        index = _failures(progress, key) - 1
    own = next_delay(backoff, index, base, cap, progress.previous, policy.rng, floor)
    previous = max(own, base)
    if exact is not None:
        return min(exact, LONGEST), previous
    if hint is not None and hint > 0.0:  # 0 or a date in the past is no minimum: the backoff applies
        return min(_after_hint(policy, progress, hint, base, own, now), LONGEST), previous
    return own, previous


def _after_hint(policy: Policy, progress: State, hint: float, base: float, own: float, now: float) -> float:
    """Return the longer of the backoff's own wait and the server's with up to a ``base`` of jitter.

    Never before the server said, and not the whole fleet at that instant.
    """
    left = first_limit(policy, progress)[0] - now
    jitter = next_delay(full_jitter, 0, min(base, max(0.0, left - hint)), INF, None, policy.rng)
    delay = hint + jitter
    # Neither may push a hint that fits past the first limit, also not by the last bit of a float.
    if delay >= left:
        return hint
    return own if delay < own < left else delay


def _too_late(limit: str, delay: float, hint: float | None, passed: bool) -> str:
    """Return why a wait that would end after a limit is not made."""
    if passed:
        return f"{limit} has passed"
    if hint:
        return f"the server asked for a wait of {hint:.1f} s, which would pass {limit}"
    return f"the next wait ({delay:.1f} s) would pass {limit}"


def _shown_key(key: Any) -> str:
    """Return the key of a rule as a text shows it."""
    return name_of(key, short=True) if isinstance(key, type) else str(key)
