"""A policy in words: what it does, and the longest it can take."""

from __future__ import annotations

import functools

from . import backoff as _backoff
from ._numbers import INF
from .backoff import delays, shown_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .backoff import Backoff
    from .policy import Policy


# How many waits are counted one by one.
_COUNTED = 1000


class _Longest:
    """A random source that always draws the upper end."""

    def uniform(self, low: float, high: float) -> float:
        return max(low, high)


def describe(policy: Policy) -> str:
    """One sentence a line: attempts, waits, failures, limits, and what it adds up to."""
    retries = [] if _once(policy) else [_waits(policy), _failures(policy), _hints(policy)]
    limits = [_deadline(policy), _timeout(policy), "" if _once(policy) else _nested(policy), *_guards(policy)]
    return "\n".join(line for line in (_attempts(policy), *retries, *limits, _longest(policy)) if line)


def _once(policy: Policy) -> bool:
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
        "by_method": "but not of a POST or PATCH that may have acted, unless it has an Idempotency-Key",
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
    return (
        f"Cuts an async attempt off after {policy.timeout:g} s; "
        "a sync one is not cut off, it finds the figure in current_attempt().timeout."
    )


def _nested(policy: Policy) -> str:
    return (
        "" if policy.nested == "independent" else "Tries once while a call further out is already retrying."
    )


def _guards(policy: Policy) -> list[str]:
    lines: list[str] = []
    if policy.budget is not None and not _once(policy):
        lines.append(f"Retries only while {policy.budget.name} has something left.")
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


def _longest(policy: Policy) -> str:
    waits = _longest_waits(policy)
    guards = policy.throttle is not None or policy.bulkhead is not None
    if policy.deadline is not None and (waits is None or waits > policy.deadline):
        return f"Takes at most {policy.deadline:g} s, and a sync attempt that is running then."
    besides = "server hints and guards" if guards else "server hints"
    return f"Takes at most {waits:g} s of waiting without {besides}, plus the attempts themselves."


def _longest_waits(policy: Policy) -> float | None:
    """All waits at their longest, whichever rule makes them so."""
    if _once(policy):
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
    function: Any = backoff
    while isinstance(function, (functools.partial, _backoff.immediately_once)):
        function = function.func if isinstance(function, functools.partial) else function.backoff
    counted = min(attempts, _COUNTED)
    if getattr(function, "__module__", None) != _backoff.__name__:
        # Only its cap is known of a function that is not ours.
        return [min(cap, _backoff.LONGEST)] * (counted - 1)
    source: Any = _Longest()
    return list(delays(backoff, attempts=counted, base=base, cap=cap, rng=source))
