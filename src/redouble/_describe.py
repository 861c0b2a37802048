"""A policy in words: what it does, the longest it can take, and what there is to object to."""

from __future__ import annotations

import functools
from types import FunctionType

from . import backoff as _backoff
from ._numbers import INF
from ._record import Record, assign
from .backoff import delays, shown_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .backoff import Backoff
    from .budget import RatioBudget
    from .policy import Policy


# How many waits are counted one by one.
_COUNTED = 1000


class Objection(Record):
    """What an expert would object to in a policy: one entry of ``policy.warnings()``.

    >>> print(Objection("no_cap", "cap", "cap=inf has no end", "a wait may last for hours", "write cap=30"))
    cap=inf has no end: a wait may last for hours; write cap=30
    """

    __slots__ = ("name", "field", "what", "why", "remedy")  # noqa: RUF023 - in reading order
    name: str
    """Of the check: constant, for filters."""
    field: str
    """The field of the policy that it is about."""
    what: str
    """What is objected to, with the value."""
    why: str
    """What follows from it for your system."""
    remedy: str
    """What to write instead."""

    def __init__(self, name: str, field: str, what: str, why: str, remedy: str) -> None:
        for slot, text in zip(self._fields, (name, field, what, why, remedy), strict=True):
            assign(self, slot, text)

    def __str__(self) -> str:
        return f"{self.what}: {self.why}; {self.remedy}"


class Drawn:
    """A random source that always draws the same: 0.0 the lower end, 0.5 the middle, 1.0 the upper end."""

    def __init__(self, share: float) -> None:
        self.share = share

    def uniform(self, low: float, high: float) -> float:
        return low * (1.0 - self.share) + high * self.share


def describe(policy: Policy) -> str:
    """One sentence a line: attempts, waits, failures, limits, what it adds up to, and the objections."""
    retries = [] if once(policy) else [_waits(policy), _failures(policy), _hints(policy)]
    limits = [_deadline(policy), _timeout(policy), "" if once(policy) else _nested(policy), *_guards(policy)]
    minded = [f"Mind: {objection}" for objection in policy.warnings()]
    lines = (_attempts(policy), *retries, *limits, _longest(policy), *minded)
    return "\n".join(line for line in lines if line)


def once(policy: Policy) -> bool:
    """Whether it never retries."""
    return policy.attempts == 1 or policy.enabled is False


def _attempts(policy: Policy) -> str:
    if policy.enabled is False:
        return "Calls once: retries are switched off."
    if policy.attempts == 1:
        return "Calls once, never again."
    if policy.attempts is None:
        return "Calls as often as the deadline allows."
    return f"Calls up to {policy.attempts} times."


def _waits(policy: Policy) -> str:
    cap = "with no upper limit" if policy.cap == INF else f"never longer than {policy.cap:g} s"
    return f"Waits by {shown_name(policy.backoff)} from {policy.base:g} s, {cap}."


def _failures(policy: Policy) -> str:
    on: Any = policy.on
    if on is None:
        what = "failures known to be transient"
    elif hasattr(on, "verdict"):
        what = "what its classifier says"
    elif on.__class__ is tuple:
        what = _names(on) or "nothing"
    else:
        what = f"what {shown_name(on)} says"
    repeat = {
        True: "also of requests that may act twice",
        False: "but only of calls that certainly had no effect",
        "by_method": "but not of a POST or PATCH that may have acted, unless it has an Idempotency-Key"
        " or only reads",
    }
    refused = " and results that until refuses" if policy.until is not None else ""
    rules = "".join(f", {getattr(key, '__name__', key)} by a rule of its own" for key in policy.rules)
    return f"Retries {what}{refused}, {repeat[policy.idempotent]}{rules}."


def _names(kinds: tuple[type[Exception], ...]) -> str:
    return ", ".join(kind.__name__ for kind in kinds)


def _hints(policy: Policy) -> str:
    return (
        f"Waits as long as a server asks, up to {policy.patience:g} s; gives up at once if it asks for more."
    )


def _deadline(policy: Policy) -> str:
    return (
        "" if policy.deadline is None else f"Ends {policy.deadline:g} s after the call began, waits included."
    )


def _timeout(policy: Policy) -> str:
    if policy.timeout is None:
        return ""
    return f"Cuts an async attempt off after {policy.timeout:g} s."


def _nested(policy: Policy) -> str:
    return (
        "" if policy.nested == "independent" else "Tries once while a call further out is already retrying."
    )


def _guards(policy: Policy) -> list[str]:
    lines: list[str] = []
    if policy.budget is not None and not once(policy):
        lines.append(f"Retries only while {policy.budget.name} has something left{_load(policy)}.")
    if policy.breaker is not None:
        lines.append(
            f"Calls only while the circuit of {policy.breaker.name} is not open, and ends when it opens."
        )
    if policy.throttle is not None:
        lines.append(f"Sends no faster than {policy.throttle.name} allows.")
    if policy.bulkhead is not None:
        lines.append(f"Runs at most {policy.bulkhead.limit} calls at once in {policy.bulkhead.name}.")
    if policy.dead_letters is not None and policy.enabled is not False:
        lines.append("Keeps a dead letter of what it gives up on though it may be retried.")
    if policy._falls_back and policy.enabled is not False:
        lines.append("Gives a fallback where it would give up on what may be retried.")
    return lines


def _load(policy: Policy) -> str:
    budget: Any = policy.budget
    if not hasattr(budget, "load"):
        return ""
    return f": {loads(policy, budget)} when everything fails"


def loads(policy: Policy, budget: RatioBudget) -> str:
    """Return the load that a budget allows a process, at three rates of calls."""
    most = INF if policy.attempts is None else policy.attempts
    found = [(rate, min(budget.load(rate), most)) for rate in (1, 10, 100)]
    return ", ".join(
        f"{load:.3g} x the load at {rate} call{'s' if rate > 1 else ''}/s" for rate, load in found
    )


def _longest(policy: Policy) -> str:
    waits = _longest_waits(policy)
    guards = policy.throttle is not None or policy.bulkhead is not None
    if policy.deadline is not None and (waits is None or waits > policy.deadline):
        return f"Takes at most {policy.deadline:g} s, and a sync attempt that is running then."
    besides = "server hints and guards" if guards else "server hints"
    return f"Takes at most {waits:g} s of waiting without {besides}, plus the attempts themselves."


def _longest_waits(policy: Policy) -> float | None:
    """All waits at their longest, whichever rule makes them so."""
    if once(policy):
        return 0.0
    if policy.attempts is None:
        return None
    ways = [_upper_ends(policy.attempts, policy.backoff, policy.base, policy.cap)]
    for rule in policy.rules.values():
        base = policy.base if rule.base is None else rule.base
        cap = policy.cap if rule.cap is None else rule.cap
        ways.append(_upper_ends(policy.attempts, rule.backoff or policy.backoff, base, cap))
    longest: list[float] = [max(waits) for waits in zip(*ways, strict=True)]
    uncounted = policy.attempts - 1 - len(longest)
    # Waits that were not counted one by one may each last as long as the widest cap allows.
    caps = [policy.cap, *(rule.cap for rule in policy.rules.values() if rule.cap is not None)]
    return sum(longest) + (uncounted * min(max(caps), _backoff.LONGEST) if uncounted else 0.0)


def _upper_ends(attempts: int, backoff: Backoff, base: float, cap: float) -> list[float]:
    counted = min(attempts, _COUNTED)
    if not is_ours(backoff):
        # Only its cap is known of a function that is not ours.
        return [min(cap, _backoff.LONGEST)] * (counted - 1)
    return drawn(1.0, counted, backoff, base, cap)


def drawn(share: float, attempts: int, backoff: Backoff, base: float, cap: float) -> list[float]:
    """The waits of a backoff of ours if every draw falls at this share of its range."""
    source: Any = Drawn(share)
    return list(delays(backoff, attempts=attempts, base=base, cap=cap, rng=source))


def is_ours(backoff: Backoff) -> bool:
    """Whether it is a delay function of this library: of a user's own nothing can be known."""
    function: Any = backoff
    while isinstance(function, (functools.partial, _backoff.immediately_once)):
        function = function.func if isinstance(function, functools.partial) else function.backoff
    # By identity: what functools.wraps made looks like the function that it wraps.
    return isinstance(function, FunctionType) and getattr(_backoff, function.__name__, None) is function
