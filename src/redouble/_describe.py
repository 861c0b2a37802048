"""A policy in words: what it does, and the longest it can take."""

from __future__ import annotations

from . import backoff as _backoff
from .backoff import delays, shown_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .policy import Policy


class _Longest:
    """A random source that always draws the upper end."""

    def uniform(self, low: float, high: float) -> float:
        return max(low, high)


def describe(policy: Policy) -> str:
    """One sentence a line: attempts, waits, failures, limits, and what it adds up to."""
    lines = [_attempts(policy), _waits(policy), _failures(policy), _hints(policy)]
    lines += [line for line in (_deadline(policy), _timeout(policy), _nested(policy)) if line]
    return "\n".join([*lines, _longest(policy)])


def _attempts(policy: Policy) -> str:
    if policy.attempts is None:
        return "Calls as often as the deadline allows."
    return "Calls once, never again." if policy.attempts == 1 else f"Calls up to {policy.attempts} times."


def _waits(policy: Policy) -> str:
    cap = "with no upper limit" if policy.cap == _backoff.INF else f"never longer than {policy.cap:g} s"
    return f"Waits by {shown_name(policy.backoff)} from {policy.base:g} s, {cap}."


def _failures(policy: Policy) -> str:
    on: Any = policy.on
    if on is None:
        what = "failures known to be transient"
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


def _longest(policy: Policy) -> str:
    waits = _longest_waits(policy)
    if policy.deadline is not None and (waits is None or waits > policy.deadline):
        return f"Takes at most {policy.deadline:g} s, and a sync attempt that is running then."
    return f"Takes at most {waits:g} s of waiting without server hints, plus the attempts themselves."


def _longest_waits(policy: Policy) -> float | None:
    if policy.attempts is None:
        return None
    function: Any = policy.backoff
    while hasattr(function, "func"):
        function = function.func
    if getattr(function, "__module__", None) != _backoff.__name__:
        # Only its cap is known of a function that is not ours.
        return policy.cap * (policy.attempts - 1)
    source: Any = _Longest()
    return sum(delays(policy.backoff, attempts=policy.attempts, base=policy.base, cap=policy.cap, rng=source))
