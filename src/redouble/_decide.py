"""After a failure: wait how long, or stop and why. No clock, no sleep, no I/O.

`decide` asks in this order, free questions first:

    enabled, verdict, idempotency, attempts, hint against patience, delay against deadline, nesting,
    breaker, budget

The budget is last because it is the only one that spends; one that must be awaited is asked by the driver.
What it knows of the call is a `Progress`, in numbers; what it is asked about is an exception, or a
`Refused` result.
"""

from __future__ import annotations

from ._callables import plain, truth
from ._kinds import kind_of
from ._numbers import INF
from ._record import Record, assign
from ._requests import search, shows_nothing
from ._shapes import leaves
from ._text import brief
from ._trouble import report
from .backoff import LONGEST, full_jitter, next_delay, shown_name
from .classify import DEFAULT, Cause, Classifier, Verdict, retry_after, verdict
from .context import capped_at, caps, disabled_here, in_time, switched_off_everywhere, switches_off
from .events import Reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .breaker import Breaker
    from .errors import RedoubleError
    from .policy import Policy, Rule


class Refused(Record):
    """A result that ``until`` did not accept, or a block that asked to be run again."""

    __slots__ = ("after", "reason", "result")
    result: Any
    reason: str
    after: float | None

    def __init__(
        self, result: Any, reason: str = "the result was refused", after: float | None = None
    ) -> None:
        assign(self, "result", result)
        assign(self, "reason", reason)
        assign(self, "after", after)


class Progress:
    """What a call has been through, in numbers. Text and limits only: never an exception.

    Most calls keep most of the defaults, which are the class's own: making one is part of every failure.
    """

    attempt = 1
    """The number, from 1, of the attempt that has just failed."""
    previous: float | None = None
    """The backoff's own last delay, at least ``base``; ``None`` before the first wait."""
    ends: float | None = None
    """When the deadline is, by the policy's clock."""
    limit = "the deadline set further out"
    """What to call that deadline: it may be this policy's own, or one set further out."""
    outer_retrying = False
    """Whether a call further out is already retrying."""
    outside: int | None = None
    """Of a block: the id of the exception that was being handled when it was entered."""
    rule_failures: dict[Any, int] | None = None
    """How many earlier failures each rule has answered for."""

    def __init__(self, attempt: int = 1, **others: Any) -> None:
        self.attempt = attempt
        self.__dict__.update(others)


class Wait:
    """There will be another attempt after ``delay`` seconds."""

    __slots__ = ("cost", "delay", "previous", "rule", "rule_key", "verdict")

    def __init__(
        self, delay: float, previous: float, verdict: Verdict, rule: Rule | None, rule_key: Any
    ) -> None:
        self.cost = 0.0
        """What the budget has taken for it."""
        self.delay = delay
        self.previous = previous
        """For the next decision: the backoff's own answer, whatever a server asked for, at least ``base``."""
        self.verdict = verdict
        self.rule = rule
        self.rule_key = rule_key


class Stop:
    """There will be no other attempt: ``reason`` for machines, ``why`` for people."""

    __slots__ = ("reason", "verdict", "why")

    def __init__(self, reason: Reason, why: str, verdict: Verdict | None) -> None:
        self.reason = reason
        self.why = why
        self.verdict = verdict


def decide(policy: Policy, progress: Progress, failure: Exception | Refused, now: float) -> Wait | Stop:
    """The one decision of this library, for both drivers and for every way in. Never raises."""
    try:
        return _decide(policy, progress, failure, now)
    except Exception as error:  # noqa: BLE001 - a predicate is the user's code; the call's error comes out
        return Stop(Reason.callback, f"deciding failed with {brief(error)}", None)


def _decide(policy: Policy, progress: Progress, failure: Exception | Refused, now: float) -> Wait | Stop:
    plainly = policy.enabled is True and not (switches_off or switched_off_everywhere)
    if not (plainly or _enabled(policy)):
        return Stop(Reason.disabled, "retries are switched off", None)
    found, exact, key, rule = _judge(policy, failure)
    if not found.retryable:
        return Stop(Reason.not_retryable, f"not retryable ({found.reason or found.cause})", found)
    if unsafe := _unsafe_to_repeat(policy, progress, failure, found, rule):
        return Stop(Reason.not_idempotent, unsafe, found)
    if used_up := _used_up(policy, progress, rule, key):
        return Stop(Reason.attempts, used_up, found)
    hint = found.retry_after if exact is None else None
    if hint is not None and hint > policy.patience:
        asked = f"the server asked for a wait of {hint:.1f} s, above the patience of {policy.patience:g} s"
        return Stop(Reason.patience, asked, found)
    delay, previous = _delay(policy, rule, key, progress, hint, exact, now)
    if progress.ends is not None and now + delay >= progress.ends:
        return Stop(Reason.deadline, _too_late(progress.limit, delay, hint, now >= progress.ends), found)
    if progress.outer_retrying and policy.nested == "defer":
        return Stop(Reason.nested, "left to the call further out, which is already retrying", found)
    wait = Wait(delay, previous, found, rule, key)
    if not policy._guarded:
        return wait
    return _past_guards(policy, wait, None if progress.ends is None else progress.ends - now)


def _past_guards(policy: Policy, wait: Wait, left: float | None) -> Wait | Stop:
    if policy.breaker is not None and (refusal := refused_by(policy.breaker)) is not None:
        return Stop(Reason.circuit, str(refusal), wait.verdict)
    if policy.budget is None or policy.budget.is_async:
        return wait
    try:
        return afford(policy, wait, in_time(left, ask, policy, wait))
    except Exception as error:  # noqa: BLE001 - a budget may be the user's own
        return broke(error, wait)


def refused_by(breaker: Breaker) -> RedoubleError | None:
    """With what a breaker would refuse a call now; ``None`` if it would not, or cannot say."""
    try:
        return breaker.refusal() if breaker.refuses() else None
    except Exception as error:  # noqa: BLE001 - a breaker may be the user's own; the call goes on
        report(breaker, f"guard {breaker.name} failed", error)
        return None


def broke(error: Exception, wait: Wait) -> Stop:
    """The end, because the budget itself has failed."""
    return Stop(Reason.budget, f"the retry budget failed with {brief(error)}", wait.verdict)


def ask(policy: Policy, wait: Wait) -> Any:
    """Asks the policy's budget for a retry: gives what it costs, or something to await for that."""
    budget: Any = policy.budget
    return budget.acquire(timeout=wait.verdict.cause is Cause.timeout, priority=policy.priority)


def afford(policy: Policy, wait: Wait, cost: float) -> Wait | Stop:
    """The wait, paid for; or the end, if the budget has refused."""
    if cost:
        wait.cost = cost
        return wait
    budget: Any = policy.budget
    return Stop(Reason.budget, f"the retry budget is spent ({budget.name})", wait.verdict)


def _enabled(policy: Policy) -> bool:
    if disabled_here():
        return False
    enabled = policy.enabled
    return enabled is True or (enabled is not False and truth("enabled", enabled()))


def _judge(policy: Policy, failure: Exception | Refused) -> tuple[Verdict, float | None, Any, Rule | None]:
    """The verdict under this policy, a delay that ``on`` itself has set, and the rule that applies."""
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


def _steers(policy: Policy, failure: Exception | Refused) -> bool:
    """Whether a failure is control flow, such as `unittest.SkipTest`, which the policy does not name."""
    kind, error = kind_of(type(failure)), _evidence(failure)
    if type(failure) is Refused or not (kind.control or kind.group):
        return False
    flow = [leaf for leaf in leaves(error) if kind_of(type(leaf)).control]
    on: Any = policy.on
    types: list[Any] = [*(on if isinstance(on, tuple) else ()), *policy.rules]
    named = tuple([key for key in types if isinstance(key, type) and kind_of(key).control])
    return not all(isinstance(leaf, named) for leaf in flow)


def _verdict(policy: Policy, failure: Exception | Refused) -> tuple[Verdict, float | None]:
    if type(failure) is Refused:
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
    return _by_answer(plain("on", on(error)), error)


def _is_a(error: Exception, kinds: Any) -> bool:
    """Whether an error is of one of these kinds; of a group, itself or all that is in it."""
    return isinstance(error, kinds) or all(isinstance(leaf, kinds) for leaf in leaves(error))


def _by_answer(answer: Any, failure: Any) -> tuple[Verdict, float | None]:
    """What a predicate's answer means: a bool, a delay, a verdict, or anything by its truth."""
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
    """The same facts, but for whether it is retryable: that was said by somebody who knows better."""
    if facts.retryable is retryable:
        return facts
    # A verdict tells no hint where nothing is to be retried.
    hint = retry_after(failure) if retryable else None
    return Verdict(retryable, facts.cause, facts.status, hint, facts.reason, facts.unprocessed)


def _rule_for(policy: Policy, failure: Exception | Refused, found: Verdict) -> tuple[Any, Rule | None]:
    """The rule that answers for this failure: by its type, nearest first, its status, its cause."""
    rules: Any = policy.rules
    for key in (_type_key(rules, failure), found.status, found.cause):
        if key in rules:
            return key, rules[key]
    return None, None


def _type_key(rules: Any, failure: Any) -> Any:
    """The type whose rule answers for a failure; for a group, one of groups or one that all in it share."""
    own = _nearest(rules, failure)
    groups: Any = BaseExceptionGroup
    if not issubclass(type(failure), groups) or (own is not None and issubclass(own, groups)):
        return own
    first, *others = {_nearest(rules, leaf) for leaf in leaves(failure)}
    return own if others else first


def _nearest(rules: Any, failure: object) -> Any:
    for kind in type(failure).__mro__:
        if kind in rules:
            return kind
    for key in rules:  # abstract base classes, which are in no method resolution order
        if isinstance(key, type) and isinstance(failure, key):
            return key
    return None


def _used_up(policy: Policy, progress: Progress, rule: Rule | None, key: Any) -> str | None:
    """Whether the attempts of the policy, of a test or of the rule are used up by this failure."""
    if policy.attempts is not None and progress.attempt >= policy.attempts:
        return "no attempts left"
    capped = capped_at() if caps else None
    if capped is not None and progress.attempt >= capped:
        return f"capped at {capped} attempt{'s' if capped > 1 else ''} by testing.capped"
    if rule is None or rule.attempts is None:
        return None
    if _failures(progress, key) < rule.attempts:
        return None
    return f"no attempts left for {_shown_key(key)}: its rule allows {rule.attempts}"


def _failures(progress: Progress, key: Any) -> int:
    """How many failures a rule has answered for, this one included."""
    return 1 + (progress.rule_failures or {}).get(key, 0)


# 4xx that tell nothing of the effect, or are retried by default.
_UNANSWERED = frozenset({408, 425, 429})


def _unsafe_to_repeat(
    policy: Policy, progress: Progress, failure: Exception | Refused, found: Verdict, rule: Rule | None
) -> str | None:
    """Return why another attempt might act twice; ``None`` if it may be made."""
    if policy.idempotent is True:
        return None
    # A rule for a 4xx implies that the request was rejected: the server has answered.
    if rule is not None and 400 <= (found.status or 0) < 500 and found.status not in _UNANSWERED:
        return None
    if policy.idempotent is False and not found.unprocessed:
        return "the call may have had an effect, and the policy says idempotent=False"
    evidence = _evidence(failure)
    if shows_nothing(evidence):
        return None
    sent = search(evidence, found.unprocessed, progress.outside).culprit
    if sent is None:
        return None
    how = "say idempotent=True" if sent.name else "say idempotent=True or send an Idempotency-Key"
    return f"repeating this {sent.name or sent.method} might act twice; if it may be repeated, {how}"


def _evidence(failure: Any) -> Any:
    """What to look at: the exception, or the result."""
    # By its class: isinstance would ask the exception for attributes, which may raise.
    return failure.result if type(failure) is Refused else failure


def _delay(
    policy: Policy,
    rule: Rule | None,
    key: Any,
    progress: Progress,
    hint: float | None,
    exact: float | None,
    now: float,
) -> tuple[float, float]:
    """The wait, with what the server or ``on`` has said; and the backoff's own, for the one after it."""
    base, cap, backoff, index = policy.base, policy.cap, policy.backoff, progress.attempt - 1
    if rule is not None and (rule.base, rule.cap, rule.backoff) != (None, None, None):
        base = base if rule.base is None else rule.base
        cap = cap if rule.cap is None else rule.cap
        backoff = rule.backoff or backoff
        # Waits of its own begin at their beginning, however many failures of other kinds came before.
        index = _failures(progress, key) - 1
    own = next_delay(backoff, index, base, cap, progress.previous, policy.rng)
    previous = max(own, base)
    if exact is not None:
        return min(exact, LONGEST), previous
    if hint is not None and hint > 0.0:  # 0 or a date in the past is no minimum: the backoff applies
        return min(_after_hint(policy, progress, hint, base, own, now), LONGEST), previous
    return own, previous


def _after_hint(
    policy: Policy, progress: Progress, hint: float, base: float, own: float, now: float
) -> float:
    """The longer of the backoff's own wait, and the server's with up to a ``base`` of jitter.

    Never before the server said, and not the whole fleet at that instant.
    """
    left = INF if progress.ends is None else progress.ends - now
    jitter = next_delay(full_jitter, 0, min(base, max(0.0, left - hint)), INF, None, policy.rng)
    delay = hint + jitter
    # Neither may push a hint that fits past the deadline, also not by the last bit of a float.
    if delay >= left:
        return hint
    return own if delay < own < left else delay


def _too_late(limit: str, delay: float, hint: float | None, passed: bool) -> str:
    if passed:
        return f"{limit} has passed"
    if hint:
        return f"the server asked for a wait of {hint:.1f} s, which would pass {limit}"
    return f"the next wait ({delay:.1f} s) would pass {limit}"


def _shown_key(key: Any) -> str:
    return shown_name(key) if isinstance(key, type) else str(key)
