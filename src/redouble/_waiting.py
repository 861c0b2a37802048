"""Objections to the waits of a policy and to the time and the attempts that they add up to. Pure.

The rules of ``_objections`` hold here, too.
"""

from __future__ import annotations

from ._describe import Objection, drawn, is_ours, once
from ._numbers import INF
from .backoff import shown_name
from .classify import Cause, accepted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from .backoff import Backoff
    from .policy import Policy, Rule

    Found = Iterator[Objection]

# More attempts load a dependency that is down, rather than give it time.
_MANY = 10
# Seconds that one wait may take; and where nobody thought of a cap; and all waits, without a deadline.
_LONG_WAIT, _UNCAPPED_WAIT, _LONG_CALL = 300.0, 60.0, 600.0
# All waits together, below which it is as if there were none.
_NO_WAIT = 0.01
# How many attempts are looked at.
_COUNTED = 1000


class Waits:
    """One kind of waits: the policy's, or those of a rule."""

    __slots__ = ("attempts", "backoff", "base", "cap", "key", "rule")

    def __init__(self, policy: Policy, key: Any = None, rule: Rule | None = None) -> None:
        own: Any = policy if rule is None else rule
        self.key = key
        self.rule = rule
        self.base: float = policy.base if own.base is None else own.base
        self.cap: float = policy.cap if own.cap is None else own.cap
        self.backoff: Backoff = policy.backoff if own.backoff is None else own.backoff
        limits = [limit for limit in (policy.attempts, own.attempts) if limit is not None]
        self.attempts: int = min([*limits, _COUNTED])

    def all(self, share: float) -> list[float]:
        """All waits if every draw falls at this share of its range; the upper end is 1."""
        return drawn(share, self.attempts, self.backoff, self.base, self.cap)

    def first(self, share: float, base: float) -> float:
        """The first wait, from this base."""
        return drawn(share, 2, self.backoff, base, self.cap)[0]

    def about(self, field: str) -> str:
        """The field of the policy in which a setting of these waits stands."""
        return field if self.rule is None else "rules"

    def told(self, text: str) -> str:
        """A sentence about these waits, which says where to find them."""
        return text if self.rule is None else f"in {place(self.key)}, {text}"

    def instead(self, settings: str) -> str:
        """What to write, and where."""
        return f"write {settings}" if self.rule is None else f"give the rule {settings}"


def kinds(policy: Policy) -> Iterator[Waits]:
    """Those of which something is known: of a backoff of the user's own it is not."""
    if once(policy):
        return
    if is_ours(policy.backoff):
        yield Waits(policy)
    for key, rule in policy.rules.items():
        waits = Waits(policy, key, rule)
        own = (rule.base, rule.cap, rule.backoff) != (None, None, None)
        if own and waits.attempts > 1 and is_ours(waits.backoff):
            yield waits


def place(key: Any) -> str:
    """Where a rule stands, as the user wrote it."""
    if isinstance(key, type):
        return f"rules[{key.__name__}]"
    return f"rules[Cause.{key}]" if isinstance(key, Cause) else f"rules[{key}]"


def polls(policy: Policy) -> bool:
    """Whether it asks again until something is done: that takes as long, and as often, as it takes."""
    return policy.until is not None and policy.until is not accepted


# The waits


def no_jitter(policy: Policy) -> Found:
    if polls(policy):
        return
    bare = [waits for waits in kinds(policy) if any(waits.all(1.0)) and waits.all(0.0) == waits.all(1.0)]
    for waits in bare:
        inherited = waits.rule is not None and waits.rule.backoff is None
        if inherited and bare[0].rule is None:
            continue
        yield Objection(
            "no_jitter",
            waits.about("backoff"),
            waits.told(f"backoff={shown_name(waits.backoff)} waits the same for every client"),
            "all that fail together come back together, so the dependency is hit by one peak after the other",
            waits.instead("backoff=full_jitter"),
        )


def no_wait(policy: Policy) -> Found:
    for waits in kinds(policy):
        if waits.attempts < 3 or sum(waits.all(1.0)) >= _NO_WAIT:
            continue
        zero, some = ("cap", 1) if waits.cap < waits.base else ("base", 0.1)
        value = waits.cap if zero == "cap" else waits.base
        yield Objection(
            "no_wait",
            waits.about(zero),
            waits.told(f"{zero}={value:g} makes more than one retry without a wait worth the name"),
            "a dependency that fails is hammered, and the attempts are used up before it can recover",
            waits.instead(f"{zero}={some}, or attempts=2 for a single retry at once"),
        )


def no_cap(policy: Policy) -> Found:
    for waits in kinds(policy) if policy.deadline is None else ():
        allowed = _UNCAPPED_WAIT if waits.cap == INF else max(_LONG_WAIT, policy.patience)
        longest = max(waits.all(1.0))
        if longest > allowed:
            yield Objection(
                "no_cap",
                waits.about("cap"),
                waits.told(f"cap={waits.cap:g} allows a single wait of {longest:g} s without a deadline"),
                "the caller sleeps on, with all that it holds, long after the dependency has recovered",
                waits.instead(f"cap={min(max(30.0, waits.base), allowed):g}"),
            )


def cap_below_base(policy: Policy) -> Found:
    for waits in kinds(policy):
        # Who gives no base, only a cap below the usual one, wants short waits and gets them.
        said = policy.base != 1.0 if waits.rule is None else waits.rule.base is not None
        if said and 0.0 < waits.cap < waits.base:
            wider = max(waits.base, min(4 * waits.base, _LONG_WAIT))
            yield Objection(
                "cap_below_base",
                waits.about("base"),
                waits.told(f"base={waits.base:g} is above the cap of {waits.cap:g} s"),
                "every wait is cut down to the cap, so they are shorter than was said and never grow",
                waits.instead(f"cap={wider:g}, or base={waits.cap / 10:g}"),
            )


# Attempts and time


def many_attempts(policy: Policy) -> Found:
    few = policy.attempts is not None and policy.attempts <= _MANY
    if few or once(policy) or polls(policy) or policy.budget is not None or policy.breaker is not None:
        return
    if policy.deadline is not None and not _fit(policy, policy.deadline):
        return
    if policy.deadline is not None and max(Waits(policy).all(1.0)) >= _UNCAPPED_WAIT:
        return  # one attempt a minute is no load
    within = "" if policy.deadline is None else f" with a deadline of {policy.deadline:g} s"
    yield Objection(
        "many_attempts",
        "attempts",
        f"attempts={policy.attempts}{within} allows more than {_MANY}, and there is no budget",
        "in an outage the dependency gets that many times its usual load, which keeps it down",
        "write attempts=5, or budget=RatioBudget()",
    )


def _fit(policy: Policy, deadline: float) -> bool:
    """Whether the deadline has room for many attempts, even if each wait is as long as it can be."""
    return is_ours(policy.backoff) and sum(Waits(policy).all(1.0)[:_MANY]) < deadline


def long_without_deadline(policy: Policy) -> Found:
    if policy.deadline is not None or polls(policy):
        return
    longest = max([sum(waits.all(1.0)) for waits in kinds(policy)], default=0.0)
    if longest > _LONG_CALL:
        yield Objection(
            "long_without_deadline",
            "deadline",
            f"deadline=None, and the waits may add up to {longest:g} s",
            "a caller is held for that long, and whoever asked has left before the answer comes",
            "write deadline=60, or as many seconds as the caller can use the answer",
        )


def deadline_before_first_wait(policy: Policy) -> Found:
    for waits in kinds(policy):
        low, mean, high = (waits.first(share, waits.base) for share in (0.0, 0.5, 1.0))
        deadline = INF if policy.deadline is None else policy.deadline
        if deadline >= high and deadline > mean:
            continue
        figures = f"{low:g} s" if low == high else f"{low:g} to {high:g} s, {mean:g} s on average"
        several = "most" if deadline <= mean else "some"
        ended = "every failure ends" if deadline <= low else f"{several} failures end"
        verb, whose = ("write", "") if waits.rule is None else ("give", "the policy ")
        longer = f"{whose}deadline={4 * high:g}"
        # An additive jitter stays as long as it is, however small the base.
        fits = waits.first(1.0, deadline / 10) < deadline
        yield Objection(
            "deadline_before_first_wait",
            waits.about("deadline"),
            waits.told(f"deadline={deadline:g} is shorter than the first wait can be ({figures})"),
            f"{ended} the call without a retry, even if the attempt took no time",
            f"{waits.instead(f'base={deadline / 10:g}')}, or {longer}" if fits else f"{verb} {longer}",
        )
