"""What an expert would object to in a policy, each with the reason and a remedy. Pure.

Rules of this file:

- A false alarm is worse than silence: what is taste, or was plainly meant, is left alone.
- What cannot be known is not objected to: a backoff, a predicate or a guard of the user's own.
- One check is one function of a policy that yields its objections; `CHECKS` is the table of them.
- What a remedy writes as ``field=value`` makes the objection go away, each such change by itself.

Loaded when a policy is asked for its warnings, and not before.
"""

from __future__ import annotations

from ._callables import is_async
from ._catalogue import RETRYABLE_WHEN_HINTED, STATUS_CAUSES
from ._describe import Objection, loads, once
from ._numbers import INF
from ._shapes import probe
from ._waiting import (
    Waits,
    cap_below_base,
    deadline_before_first_wait,
    long_without_deadline,
    many_attempts,
    no_cap,
    no_jitter,
    no_wait,
    place,
)
from .budget import RatioBudget
from .classify import Cause, Classifier

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from .policy import Policy

    Found = Iterator[Objection]


# Retries a second in each process, above which a floor is more than a start for quiet hours.
_HIGH_FLOOR = 1.0


def objections(policy: Policy) -> tuple[Objection, ...]:
    """All of them, in the order of the table."""
    return tuple(found for check in CHECKS for found in check(policy))


# Timeouts


def timeout_not_below_deadline(policy: Policy) -> Found:
    if policy.timeout is None or policy.deadline is None or once(policy):
        return
    if policy.timeout >= policy.deadline:
        yield Objection(
            "timeout_not_below_deadline",
            "timeout",
            f"timeout={policy.timeout:g} is not shorter than the deadline of {policy.deadline:g} s",
            "one attempt that hangs uses up the whole call, and is never retried",
            f"write timeout={policy.deadline / 3:.2g}",
        )


def timeout_in_sync_code(policy: Policy) -> Found:
    # Whoever sleeps or asks a guard with await has no sync code.
    if policy.timeout is None or is_async(policy.sleep) or policy._awaited():
        return
    yield Objection(
        "timeout_in_sync_code",
        "timeout",
        f"timeout={policy.timeout:g} is enforced in async code only",
        "a sync attempt that hangs holds the call for as long as its client lets it",
        "in sync code hand current_attempt().timeout to the client; in async code there is nothing to do",
    )


# What is retried


def retries_everything(policy: Policy) -> Found:
    why = "bugs and refusals, such as a KeyError or a 400, are repeated too, and come out late"
    if _at_large(policy):
        remedy = "write on=None for what is known to be transient, or on=(ConnectionError, TimeoutError)"
        yield Objection("retries_everything", "on", "on=Exception retries every failure", why, remedy)
    for key in _bold(policy, Exception, Cause.unknown):
        what = f"{place(key)} retries whatever no other rule is for"
        remedy = "name what may pass instead, or give the rule attempts=2 for a single retry"
        yield Objection("retries_everything", "rules", what, why, remedy)


def repeats_everything(policy: Policy) -> Found:
    if policy.idempotent is True and (_at_large(policy) or Exception in _bold(policy, Exception)):
        yield Objection(
            "repeats_everything",
            "idempotent",
            "idempotent=True on a policy that retries every failure there is",
            "a call that acted and failed afterwards, in whatever way, acts once more for each attempt",
            'write idempotent="by_method", or idempotent=False, unless acting twice never does harm',
        )


def timeouts_not_repeated(policy: Policy) -> Found:
    named = _timeouts(policy)
    if policy.idempotent is False and named and not once(policy):
        yield Objection(
            "timeouts_not_repeated",
            "idempotent",
            f"idempotent=False together with {named[0]}",
            "an attempt that timed out may have acted, so the first timeout ends the call",
            "write idempotent=True if acting twice does no harm, as with an Idempotency-Key",
        )


def _timeouts(policy: Policy) -> list[str]:
    """Where a policy speaks of timeouts."""
    found = [] if policy.timeout is None else [f"timeout={policy.timeout:g}"]
    found += [f"on={kind.__name__}" for kind in _named(policy) if issubclass(kind, TimeoutError)]
    for key in policy.rules:
        timeout = issubclass(key, TimeoutError) if isinstance(key, type) else _cause(key) is Cause.timeout
        found += [place(key)] if timeout else []
    return found


# Rules


def rule_attempts_unreachable(policy: Policy) -> Found:
    most = INF if policy.attempts is None or policy.enabled is False else policy.attempts
    for key, rule in policy.rules.items():
        if rule.attempts is not None and rule.attempts > most:
            yield Objection(
                "rule_attempts_unreachable",
                "rules",
                f"in {place(key)}, attempts={rule.attempts} is above the {most} of the policy",
                "the policy's attempts count for every failure, so those of the rule are never reached",
                f"give the policy attempts={rule.attempts}, or the rule attempts={most}",
            )


def permanent_retried(policy: Policy) -> Found:
    for key in _bold(policy, *policy.rules):
        if policy.rules[key].recover is None and _cause(key) is Cause.permanent:
            yield Objection(
                "permanent_retried",
                "rules",
                f"{place(key)} retries what is permanent",
                "the same request gets the same answer, only later, after all attempts and waits",
                "drop the rule, or give the rule attempts=2, or a recover that changes something",
            )


def credentials_not_renewed(policy: Policy) -> Found:
    for key in _bold(policy, *policy.rules):
        if policy.rules[key].recover is None and _cause(key) is Cause.unauthorized:
            yield Objection(
                "credentials_not_renewed",
                "rules",
                f"{place(key)} retries without a recover",
                "the same credentials are refused again, and some servers lock an account for that",
                "give the rule a recover that renews them, or the rule attempts=2 for a single retry",
            )


# Guards


def budget_too_small(policy: Policy) -> Found:
    capacity, cost = probe(policy.budget, "capacity"), probe(policy.budget, "cost")
    # None at all is a switch; less than one retry costs is a slip.
    if capacity.__class__ is cost.__class__ is float and 0.0 < capacity < cost and not once(policy):
        yield Objection(
            "budget_too_small",
            "budget",
            f"budget has a capacity of {capacity:g}, and a retry costs {cost:g}",
            "not even the first retry can be paid for, so nothing is ever retried",
            f"give the budget a capacity of {100 * cost:g}, which pays for 100 retries",
        )


def budget_floor_high(policy: Policy) -> Found:
    budget = policy.budget
    if isinstance(budget, RatioBudget) and budget.floor_per_second > _HIGH_FLOOR and not once(policy):
        yield Objection(
            "budget_floor_high",
            "budget",
            f"budget allows {budget.floor_per_second:g} retries a second besides {budget.ratio:.0%} of calls",
            f"in each process that has few calls the share means nothing: {loads(policy, budget)} when "
            "everything fails",
            "write budget=RatioBudget(), whose floor is 0.3 a second",
        )


CHECKS: tuple[Callable[[Policy], Found], ...] = (
    no_jitter,
    no_wait,
    no_cap,
    cap_below_base,
    many_attempts,
    long_without_deadline,
    deadline_before_first_wait,
    timeout_not_below_deadline,
    timeout_in_sync_code,
    retries_everything,
    repeats_everything,
    timeouts_not_repeated,
    rule_attempts_unreachable,
    permanent_retried,
    credentials_not_renewed,
    budget_too_small,
    budget_floor_high,
)


def _named(policy: Policy) -> tuple[type[Exception], ...]:
    """The types that ``on`` lists."""
    on: Any = policy.on
    return on if on.__class__ is tuple else ()


def _at_large(policy: Policy) -> bool:
    """Whether ``on`` lets everything through."""
    if once(policy):
        return False
    if isinstance(policy.on, Classifier):
        # Beside what is permanent, the rest may well be meant.
        return Exception in policy.on.transient and not policy.on.permanent
    return any(kind is Exception for kind in _named(policy))


def _bold(policy: Policy, *keys: Any) -> list[Any]:
    """Those of the keys whose rule allows more than a single retry, which may be a bet that was meant."""
    if once(policy):
        return []
    rules: Any = policy.rules
    return [key for key in keys if key in rules and Waits(policy, key, rules[key]).attempts > 2]


def _cause(key: Any) -> Cause | None:
    """Why what a rule is for has failed: of a status that no evidence could make retryable."""
    if isinstance(key, Cause):
        return key
    if isinstance(key, type) or key < 400 or key in RETRYABLE_WHEN_HINTED:
        return None
    return STATUS_CAUSES.get(key, Cause.permanent if key < 500 else Cause.server_error)
