"""Describe a policy in sentences, and compute its longest waits."""

from __future__ import annotations

from .. import backoff as backoffs
from .._base.callables import name_of
from .._base.checks import INF
from ..backoff import is_ours

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..backoff import Backoff
    from ..budget import RatioBudget
    from ..policy import Policy, Rule


# The sentences about limits and guards, by the field of the policy that must be set.
_LIMITS = {
    "deadline": "Ends {0.deadline:g} s after the call began, waits included, with DeadlineExceeded.",
    "give_up_after": "From {0.give_up_after:g} s after the call began, starts no attempt; a running one "
    "finishes, and its error is raised.",
    "timeout": "Cuts an async attempt off after {0.timeout:g} s.",
    "breaker": "Calls only while the circuit of {0.breaker.name} is not open, and ends when it opens.",
    "throttle": "Sends no faster than {0.throttle.name} allows.",
    "bulkhead": "Runs at most {0.bulkhead.limit} calls at once in {0.bulkhead.name}.",
}
# The same for calls that failed for good, unless retries are switched off.
_ENDINGS = {
    "dead_letters": "Stores a dead letter if a call fails for good with a retryable error.",
    "_falls_back": "Returns a fallback instead of raising a retryable error.",
}
# The sentence about repeated effects, by ``idempotent``.
_REPEATS = {
    True: "also of requests that may act twice",
    False: "but only of calls that certainly had no effect",
    "by_method": "but not of a POST or PATCH that may have acted, unless it has an Idempotency-Key"
    " or only reads",
}
# The number of waits that are added one by one.
_COUNTED = 1000


def describe(policy: Policy) -> str:
    """Return one sentence a line: attempts, waits, failures, limits, the longest time, and lint warnings.

    >>> from redouble import Policy
    >>> describe(Policy(attempts=1)).splitlines()[0]
    'Calls once, never again.'
    """
    texts = _LIMITS if policy.enabled is False else {**_LIMITS, **_ENDINGS}
    limits = [
        _chosen(policy, field) if field in policy._keyed else text.format(policy)
        for field, text in texts.items()
        if getattr(policy, field) not in (None, False)
    ]
    lines = [*_retries(policy), *limits, _longest(policy)]
    if policy.logger is not None:
        name: Any = getattr(policy.logger, "name", policy.logger)
        lines.append("Logs nothing." if name is False else f"Logs under {name}.")
    return "\n".join([*lines, *(f"Warning: {found}" for found in policy.lint())])


def retries(policy: Policy) -> bool:
    """Return whether a policy ever retries.

    >>> from redouble import Policy
    >>> retries(Policy()), retries(Policy(attempts=1)), retries(Policy(enabled=False))
    (True, False, False)
    """
    return policy.attempts != 1 and policy.enabled is not False


def _retries(policy: Policy) -> list[str]:
    """Describe the attempts; if there may be several, also the waits, the failures and the budget.

    The first line says how often the policy calls. A policy that never retries has no other line.
    """
    if policy.enabled is False:
        return ["Calls once: retries are switched off."]
    if policy.attempts == 1:
        return ["Calls once, never again."]
    floor = f"never shorter than {policy.floor:g} s, " if policy.floor else ""
    cap = "with no upper limit" if policy.cap == INF else f"never longer than {policy.cap:g} s"
    longest = policy.max_retry_after
    hint = f", up to {longest:g} s; gives up at once if it asks for more" if longest < INF else ""
    lines = [
        f"Calls {_often(policy)}.",
        f"Waits by {name_of(policy.backoff, short=True)} from {policy.base:g} s, {floor}{cap}.",
        _failures(policy),
        f"Waits as long as a server asks{hint}.",
    ]
    if policy.recover is not None:
        lines.append(f"Runs {name_of(policy.recover, short=True)} before each retry.")
    if policy.nested == "defer":
        lines.append("Tries once while an enclosing call is already retrying.")
    elif policy.nested == "stop" and policy.on is None and policy.attempts != INF:
        lines.append("Does not retry again an error that an inner call has already retried.")
    budget: Any = policy.budget
    if "budget" in policy._keyed:
        lines.append(_chosen(policy, "budget"))
    elif budget is not None:
        load = f": {loads(policy, budget)} when everything fails" if hasattr(budget, "load") else ""
        lines.append(f"Retries only while the budget {budget.name} is not spent{load}.")
    return lines


def _often(policy: Policy) -> str:
    """Describe how many attempts there may be.

    >>> from redouble import Policy
    >>> _often(Policy()), _often(Policy(attempts=None, deadline=5.0))
    ('up to 4 times', 'as often as the deadline allows')
    """
    if policy.attempts is not None and policy.attempts < INF:
        return f"up to {policy.attempts} times"
    limits = {"the deadline": policy.deadline, "give_up_after": policy.give_up_after}
    given = [name for name, limit in limits.items() if limit is not None]
    if not given:
        return "for ever, until an attempt succeeds or fails for good"
    return f"as often as {' and '.join(given)} allow{'s' if len(given) == 1 else ''}"


def _chosen(policy: Policy, field: str) -> str:
    """Describe a guard that a function chooses."""
    return f"Asks {name_of(getattr(policy, field), short=True)} for the {field} of each call."


def _failures(policy: Policy) -> str:
    """Describe which failures and results are retried.

    >>> from redouble import Policy
    >>> _failures(Policy(on=OSError, idempotent=True))
    'Retries OSError, also of requests that may act twice.'
    """
    on: Any = policy.on
    if on is None:
        what = "failures known to be transient"
    elif hasattr(on, "verdict"):
        what = "failures that its classifier selects"
    elif on.__class__ is tuple:
        what = ", ".join(kind.__name__ for kind in on) or "nothing"
    else:
        what = f"failures that {name_of(on, short=True)} selects"
    rejected = " and results that until rejects" if policy.until is not None else ""
    keys = ", ".join(str(getattr(key, "__name__", key)) for key in policy.rules)
    rules = f"; has rules for {keys}" if keys else ""
    return f"Retries {what}{rejected}, {_REPEATS[policy.idempotent]}{rules}."


def loads(policy: Policy, budget: RatioBudget) -> str:
    """Return the load that a budget allows a process, at three rates of calls.

    1.0 is the load without retries. No call makes more attempts than its policy allows.
    """
    most = INF if policy.attempts is None else policy.attempts
    found = [(rate, min(budget.load(rate), most)) for rate in (1, 10, 100)]
    return ", ".join(
        f"{load:.3g} x the load at {rate} call{'s' if rate > 1 else ''}/s" for rate, load in found
    )


def _longest(policy: Policy) -> str:
    """Describe the longest time that a call can take.

    Server hints are not in it: they are known only during a call. A deadline limits them, too.

    >>> from redouble import Policy
    >>> _longest(Policy())
    'Takes at most 7 s of waiting without server hints, plus the attempts themselves.'
    """
    waits, soft = _longest_waits(policy), INF if policy.give_up_after is None else policy.give_up_after
    if policy.deadline is not None and min(waits, soft) > policy.deadline:
        return f"Takes at most {policy.deadline:g} s, plus a sync attempt that is still running."
    if soft < waits:
        return f"Takes at most {soft:g} s until its last attempt starts, plus that attempt."
    if waits == INF:
        return "Has no limit in time."
    guards = policy.throttle is not None or policy.bulkhead is not None
    others = "server hints and guards" if guards else "server hints"
    return f"Takes at most {waits:g} s of waiting without {others}, plus the attempts themselves."


def _longest_waits(policy: Policy) -> float:
    """Return the sum of the longest waits; ``inf`` if the number of attempts does not limit them.

    The rule of a failure is not known beforehand, so each wait is the longest of all rules.
    """
    if not retries(policy):
        return 0.0
    if policy.attempts is None or policy.attempts == INF:
        return INF
    ways = [Waits(policy), *(Waits(policy, key, rule) for key, rule in policy.rules.items())]
    counted = int(min(policy.attempts, _COUNTED))
    longest: list[float] = [max(waits) for waits in zip(*(way.at(1.0, counted) for way in ways), strict=True)]
    # Waits that were not counted one by one may each last as long as the widest cap allows.
    widest = min(max(way.cap for way in ways), backoffs.LONGEST)
    return sum(longest) + (policy.attempts - counted) * widest


class Waits:
    """The settings of the waits of a policy, or of one of its rules.

    Fields that a rule leaves out are the policy's. ``attempts`` is the lower limit of the two.
    """

    __slots__ = ("attempts", "backoff", "base", "cap", "floor", "key", "rule")

    def __init__(self, policy: Policy, key: Any = None, rule: Rule | None = None) -> None:
        own: Any = policy if rule is None else rule
        self.key = key
        self.rule = rule
        self.base: float = policy.base if own.base is None else own.base
        self.cap: float = policy.cap if own.cap is None else own.cap
        self.floor: float = policy.floor if own.floor is None else own.floor
        self.backoff: Backoff = policy.backoff if own.backoff is None else own.backoff
        limits = [limit for limit in (policy.attempts, own.attempts) if limit is not None]
        self.attempts: int = int(min([*limits, _COUNTED]))

    def at(self, share: float, attempts: int | None = None, **changes: float) -> list[float]:
        """Return the waits if every random draw is at this share of its range: 0 to 1.

        ``changes`` are another base or floor than these.
        """
        count = self.attempts if attempts is None else attempts
        if not self.is_ours():
            return [min(self.cap, backoffs.LONGEST)] * (count - 1)
        limits = {"base": self.base, "cap": self.cap, "floor": self.floor, **changes}
        return waits_at(share, self.backoff, count, **limits)

    def is_ours(self) -> bool:
        """Return whether the backoff is one of `redouble.backoff`; of others only floor and cap are known."""
        return is_ours(self.backoff)


def waits_at(
    share: float, backoff: Backoff, attempts: int, base: float, cap: float, floor: float = 0.0
) -> list[float]:
    """Return the waits of a backoff if every random draw is at this share of its range: 0 to 1.

    >>> waits_at(1.0, backoffs.full_jitter, 4, base=1.0, cap=30.0)
    [1.0, 2.0, 4.0]
    """
    source: Any = _Constant(share)
    return list(backoffs.delays(backoff, attempts=attempts, base=base, cap=cap, floor=floor, rng=source))


class _Constant:
    """A random source that always draws the same share of a range."""

    def __init__(self, share: float) -> None:
        self._share = share

    def uniform(self, low: float, high: float) -> float:
        return low * (1.0 - self._share) + high * self._share
