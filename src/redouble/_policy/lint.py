"""Lint a policy: find probable mistakes, each with the reason and a remedy.

Rules of this module:

- A false alarm is worse than no warning: settings that are a matter of taste, or plainly meant, pass.
- Custom backoffs, predicates and guards are not checked: their behaviour is not known.
- A check is a function of a policy. It yields the values for its texts in `TEXTS`, once for each warning, and
  has the name of these warnings. Only checks in `WITHOUT_RETRIES` run on a policy that never retries.
- Each ``field=value`` that a remedy names makes the warning go away by itself.
"""

from __future__ import annotations

from .._base.callables import is_async, name_of
from .._base.checks import INF
from .._base.record import Record
from ..budget import RatioBudget
from ..classify import Cause, Classifier, accepted, status_cause
from .describe import Waits, loads, retries

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from ..policy import Policy

    Found = Iterator[dict[str, Any]]

# More attempts only add load to a dependency that is down.
_MANY = 10
# Seconds: the longest single wait, the same with no cap, and the longest sum of waits without a deadline.
_LONG_WAIT, _UNCAPPED_WAIT, _LONG_CALL = 300.0, 60.0, 600.0
# Seconds: a sum of waits below this is as good as none.
_NO_WAIT = 0.01
# The default of ``attempts``.
_DEFAULT_ATTEMPTS = 4
# Retries a second in each process: a higher floor matters more than the ratio in a process with few calls.
_HIGH_FLOOR = 1.0

# name of the check -> (field, what, why, remedy). The checks on waits are also about the waits of rules: for
# those `_about` sets {field}, {within} and {write}.
TEXTS: dict[str, tuple[str, str, str, str]] = {
    "no_jitter": (
        "{field}",
        "{within}backoff={backoff} waits the same for every client",
        "clients that fail together come back together, so the dependency gets one peak after the other",
        "{write} backoff=full_jitter",
    ),
    "no_wait": (
        "{field}",
        "{within}{zero}={value:g} makes more than one retry with hardly a wait",
        "a failing dependency gets retries without a pause, and the attempts are used up before it recovers",
        "{write} {zero}={some}, or attempts=2 for a single retry at once",
    ),
    "no_cap": (
        "{field}",
        "{within}cap={cap:g} allows a single wait of {longest:g} s without a deadline",
        "the caller still sleeps, and holds its resources, after the dependency has recovered",
        "{write} cap={lower:g}",
    ),
    "cap_below_base": (
        "{field}",
        "{within}base={base:g} is above the cap of {cap:g} s",
        "the cap cuts every wait, so waits are shorter than base and never grow",
        "{write} cap={higher:g}, or base={lower:g}",
    ),
    "milliseconds": (
        "{field}",
        "{within}base={base:g} with a cap of {cap:g} is in seconds, and looks like milliseconds",
        "the first wait alone may take {minutes:.0f} minutes",
        "{write} base={seconds:g} for {base:g} ms, and the cap in seconds, too",
    ),
    "floor_without_spread": (
        "{field}",
        "{within}floor={floor:g} leaves {backoff} no spread: without it the wait is {longest:g} s at most",
        "clients that fail together come back together, exactly after the floor",
        "{write} {remedy}",
    ),
    "many_attempts": (
        "attempts",
        "attempts={attempts}{limit} allows more than {many}, and there is no budget",
        "in an outage the dependency gets that many times its usual load, which keeps it down",
        "write attempts=5, or budget=RatioBudget()",
    ),
    "long_without_deadline": (
        "deadline",
        "deadline=None, and the waits may add up to {longest:g} s",
        "the caller is blocked for that long, and gets the result when it is of no use any more",
        "write deadline=60, or the number of seconds for which the caller can use the result",
    ),
    "attempts_before_give_up_after": (
        "attempts",
        "give_up_after={seconds:g} with the default of {attempts} attempts",
        "the attempts are probably used up first, and most of the time is not used",
        "write attempts=None for as many attempts as that time allows",
    ),
    "deadline_before_first_wait": (
        "{field}",
        "{within}{name}={limit:g} is shorter than the first wait can be ({wait})",
        "{ended} the call without a retry, even if the attempt took no time",
        "{write} {remedy}",
    ),
    "timeout_not_below_deadline": (
        "timeout",
        "timeout={timeout:g} is not shorter than the deadline of {deadline:g} s",
        "one attempt that hangs uses up the whole call, and is never retried",
        "write timeout={third:.2g}",
    ),
    "timeout_in_sync_code": (
        "timeout",
        "timeout={timeout:g} is enforced in async code only",
        "a sync attempt that hangs blocks the call until its client times out",
        "in sync code pass current_attempt().timeout to the client; in async code there is nothing to do",
    ),
    "retries_everything": (
        "{field}",
        "{what}",
        "bugs and refusals, such as a KeyError or a 400, are retried too, and raised late",
        "{remedy}",
    ),
    "repeats_everything": (
        "idempotent",
        "idempotent=True on a policy that retries every failure",
        "a call that acted and then failed acts again on each attempt",
        'write idempotent="by_method", or idempotent=False, unless acting twice never does harm',
    ),
    "timeouts_not_repeated": (
        "idempotent",
        "idempotent=False together with {setting}",
        "an attempt that timed out may have acted, so the first timeout ends the call",
        "write idempotent=True if acting twice does no harm, as with an Idempotency-Key",
    ),
    "rule_attempts_unreachable": (
        "rules",
        "in {rule}, attempts={attempts} is above the {most} of the policy",
        "the policy's attempts count for every failure, so those of the rule are never reached",
        "give the policy attempts={attempts}, or the rule attempts={most}",
    ),
    "permanent_retried": (
        "rules",
        "{rule} retries permanent failures",
        "the same request gets the same response, only later, after all attempts and waits",
        "drop the rule, or give the rule attempts=2, or a recover that changes something",
    ),
    "credentials_not_renewed": (
        "rules",
        "{rule} retries without a recover",
        "the same credentials are refused again, and some servers lock an account for that",
        "give the rule a recover that renews them, or the rule attempts=2 for a single retry",
    ),
    "budget_too_small": (
        "budget",
        "budget has a capacity of {capacity:g}, and a retry costs {cost:g}",
        "the budget cannot pay for the first retry, so nothing is ever retried",
        "give the budget a capacity of {enough:g}, which pays for 100 retries",
    ),
    "budget_floor_high": (
        "budget",
        "budget allows {floor:g} retries a second in addition to {ratio:.0%} of calls",
        "in a process with few calls the share has no effect: {loads} when everything fails",
        "write budget=RatioBudget(), whose floor is 0.3 a second",
    ),
}


class LintWarning(Record):
    """A probable mistake in a policy: one entry of ``policy.lint()``.

    >>> print(LintWarning("no_cap", "cap", "cap=inf has no end", "a wait may last for hours", "write cap=30"))
    cap=inf has no end: a wait may last for hours; write cap=30
    """

    name: str
    """The name of the check: constant, for filters."""
    field: str
    """The field of the policy that it is about."""
    what: str
    """The setting, with its value."""
    why: str
    """The effect on your system."""
    remedy: str
    """What to write instead."""

    def __str__(self) -> str:
        return f"{self.what}: {self.why}; {self.remedy}"


def lint(policy: Policy) -> tuple[LintWarning, ...]:
    """Return the warnings of all checks that apply, in the order of `CHECKS`.

    >>> from redouble import Policy
    >>> lint(Policy()), [warning.name for warning in lint(Policy(attempts=50))]
    ((), ['many_attempts', 'long_without_deadline'])
    """
    return tuple(
        LintWarning(check.__name__, *[text.format_map(values) for text in TEXTS[check.__name__]])
        for check in (CHECKS if retries(policy) else WITHOUT_RETRIES)
        for values in check(policy)
    )


# The waits


def no_jitter(policy: Policy) -> Found:
    """Warn if the waits are the same for every client.

    Not for a policy that polls. A rule that inherits its backoff is not reported again.
    """
    if _polls(policy):
        return
    bare = [waits for waits in _known_waits(policy) if any(waits.at(1.0)) and not _spread(waits)]
    for waits in bare:
        inherited = waits.rule is not None and waits.rule.backoff is None
        if not inherited or bare[0].rule is not None:
            yield _about(waits, "backoff", backoff=name_of(waits.backoff, short=True))


def no_wait(policy: Policy) -> Found:
    """Warn if there are several retries and hardly a wait between them."""
    for waits in _known_waits(policy):
        if waits.attempts >= 3 and sum(waits.at(1.0)) < _NO_WAIT:
            if waits.cap < waits.base:
                yield _about(waits, "cap", zero="cap", value=waits.cap, some=1)
            else:
                yield _about(waits, "base", zero="base", value=waits.base, some=0.1)


def no_cap(policy: Policy) -> Found:
    """Warn if a single wait may take minutes and there is no deadline.

    A finite cap may be as long as ``max_retry_after``: the policy accepts such waits from a server, too.
    """
    for waits in _known_waits(policy) if _time_limit(policy) == INF else ():
        allowed = _UNCAPPED_WAIT if waits.cap == INF else max(_LONG_WAIT, policy.max_retry_after)
        longest = max(waits.at(1.0))
        if longest > allowed:
            lower = min(max(30.0, waits.base), allowed)
            yield _about(waits, "cap", cap=waits.cap, longest=longest, lower=lower)


def cap_below_base(policy: Policy) -> Found:
    """Warn if the cap cuts every wait, so that waits never grow.

    Only if ``base`` was set: a small cap with the default base asks for short waits.
    """
    for waits in _known_waits(policy):
        said = policy.base != 1.0 if waits.rule is None else waits.rule.base is not None
        if said and 0.0 < waits.cap < waits.base:
            higher = max(waits.base, min(4 * waits.base, _LONG_WAIT))
            yield _about(waits, "base", base=waits.base, cap=waits.cap, higher=higher, lower=waits.cap / 10)


def milliseconds(policy: Policy) -> Found:
    """Warn if base and cap are as large and as round as milliseconds.

    >>> from redouble import Policy
    >>> [found["seconds"] for found in milliseconds(Policy(base=200, cap=5000))]
    [0.2]
    """
    for waits in _known_waits(policy):
        said = waits.rule is None or waits.rule.base is not None
        # A cap of 5000 or 30000 is in milliseconds, one of 3600 is an hour.
        if said and waits.base >= 100.0 and waits.cap >= 1000.0 and waits.cap % 500.0 == 0.0:
            base, cap = waits.base, waits.cap
            yield _about(waits, "base", base=base, cap=cap, minutes=base / 60, seconds=base / 1000)


def floor_without_spread(policy: Policy) -> Found:
    """Warn if the first wait that has jitter is not longer than the floor, and so has none left."""
    for waits in () if _polls(policy) else _known_waits(policy):
        spread = _spread(waits)
        if not waits.floor or not spread or waits.at(1.0)[spread[0]] > waits.floor:
            continue
        longest, backoff = waits.at(1.0, floor=0.0)[spread[0]], name_of(waits.backoff, short=True)
        wider = f"base={2 * waits.floor:g}" if waits.floor < waits.cap else f"floor={longest / 2:g}"
        yield _about(waits, "floor", floor=waits.floor, backoff=backoff, longest=longest, remedy=wider)


def _spread(waits: Waits) -> list[int]:
    """Return which of the waits would differ between clients if there were a base and no floor."""
    base = waits.base or min(1.0, waits.cap / 4)
    low, high = (waits.at(share, base=base, floor=0.0) for share in (0.0, 1.0))
    return [index for index, shortest in enumerate(low) if shortest != high[index]]


# Attempts and time


def many_attempts(policy: Policy) -> Found:
    """Warn if a call may make many attempts and neither a budget nor a breaker limits the load.

    Not for ``math.inf``, which is set on purpose, for polling, and for one attempt a minute or fewer.
    """
    few = policy.attempts is not None and (policy.attempts <= _MANY or policy.attempts == INF)
    guarded = policy.budget is not None or policy.breaker is not None
    if few or guarded or _polls(policy):
        return
    limit, seconds = "", _time_limit(policy)
    if seconds < INF:
        waits = Waits(policy)
        longest = waits.at(1.0)
        rare = max(longest) >= _UNCAPPED_WAIT
        if not waits.is_ours() or rare or sum(longest[:_MANY]) >= seconds:
            return
        limit = f" with a {'deadline' if seconds == policy.deadline else 'give_up_after'} of {seconds:g} s"
    yield {"attempts": policy.attempts, "limit": limit, "many": _MANY}


def long_without_deadline(policy: Policy) -> Found:
    """Warn if the waits may add up to many minutes and there is no deadline."""
    if _time_limit(policy) == INF and policy.attempts != INF and not _polls(policy):
        longest = max([sum(waits.at(1.0)) for waits in _known_waits(policy)], default=0.0)
        if longest > _LONG_CALL:
            yield {"longest": longest}


def attempts_before_give_up_after(policy: Policy) -> Found:
    """Warn if there is a soft limit in time and the default number of attempts."""
    if policy.give_up_after is not None and policy.attempts == _DEFAULT_ATTEMPTS:
        yield {"seconds": policy.give_up_after, "attempts": _DEFAULT_ATTEMPTS}


def deadline_before_first_wait(policy: Policy) -> Found:
    """Warn if a call can reach its deadline, or ``give_up_after``, before the first retry.

    The remedy is a smaller base, unless a floor or an additive jitter keeps the wait as long as it is.
    """
    limit = _time_limit(policy)
    name = "deadline" if limit == policy.deadline else "give_up_after"
    for waits in _known_waits(policy):
        low, mean, high = (waits.at(share, 2)[0] for share in (0.0, 0.5, 1.0))
        if limit >= high and limit > mean:
            continue
        wait = f"{low:g} s" if low == high else f"{low:g} to {high:g} s, {mean:g} s on average"
        several = "most" if limit <= mean else "some"
        ended = "every failure ends" if limit <= low else f"{several} failures end"
        found = _about(waits, name, name=name, limit=limit, wait=wait, ended=ended)
        longer = f"{name}={4 * high:g}" if waits.rule is None else f"the policy {name}={4 * high:g}"
        if waits.at(1.0, 2, base=limit / 10)[0] < limit:
            yield {**found, "remedy": f"base={limit / 10:g}, or {longer}"}
        else:
            yield {**found, "remedy": longer, "write": "write" if waits.rule is None else "give"}


# Timeouts


def timeout_not_below_deadline(policy: Policy) -> Found:
    """Warn if one attempt may use up the whole call."""
    timeout, deadline = policy.timeout, policy.deadline
    if timeout is not None and deadline is not None and timeout >= deadline:
        yield {"timeout": timeout, "deadline": deadline, "third": deadline / 3}


def timeout_in_sync_code(policy: Policy) -> Found:
    """Warn that a timeout is not enforced in sync code.

    Not if an async ``sleep`` or guard shows that the policy is for async code only.
    """
    if policy.timeout is not None and not is_async(policy.sleep) and not policy._awaited():
        yield {"timeout": policy.timeout}


# What is retried


def retries_everything(policy: Policy) -> Found:
    """Warn if bugs are retried too: `on`, or a rule, for every exception."""
    if _at_large(policy):
        remedy = "write on=None for failures known to be transient, or on=(ConnectionError, TimeoutError)"
        yield {"field": "on", "what": "on=Exception retries every failure", "remedy": remedy}
    for key in _bold(policy, Exception, Cause.unknown):
        what = f"{_place(key)} retries every failure that no other rule names"
        remedy = "name transient errors instead, or give the rule attempts=2 for a single retry"
        yield {"field": "rules", "what": what, "remedy": remedy}


def repeats_everything(policy: Policy) -> Found:
    """Warn if calls that may have taken effect are repeated after any error at all."""
    if policy.idempotent is True and (_at_large(policy) or Exception in _bold(policy, Exception)):
        yield {}


def timeouts_not_repeated(policy: Policy) -> Found:
    """Warn if timeouts are to be retried, but `idempotent=False` forbids it."""
    settings = _timeouts(policy)
    if policy.idempotent is False and settings:
        yield {"setting": settings[0]}


def _timeouts(policy: Policy) -> list[str]:
    """Return the settings of a policy that are about timeouts."""
    found = [] if policy.timeout is None else [f"timeout={policy.timeout:g}"]
    found += [f"on={kind.__name__}" for kind in _named(policy) if issubclass(kind, TimeoutError)]
    for key in policy.rules:
        timeout = issubclass(key, TimeoutError) if isinstance(key, type) else _cause(key) is Cause.timeout
        found += [_place(key)] if timeout else []
    return found


# Rules


def rule_attempts_unreachable(policy: Policy) -> Found:
    """Warn if a rule has more attempts than the policy."""
    most = INF if policy.attempts is None or policy.enabled is False else policy.attempts
    for key, rule in policy.rules.items():
        if rule.attempts is not None and rule.attempts > most:
            yield {"rule": _place(key), "attempts": rule.attempts, "most": most}


def permanent_retried(policy: Policy) -> Found:
    """Warn if a rule retries permanent failures with nothing changed in between."""
    return _retried_unchanged(policy, Cause.permanent)


def credentials_not_renewed(policy: Policy) -> Found:
    """Warn if a rule retries failed authentication with the same credentials."""
    return _retried_unchanged(policy, Cause.unauthorized)


def _retried_unchanged(policy: Policy, cause: Cause) -> Found:
    """Find the rules for this cause that retry more than once, and with nothing changed by `recover`."""
    for key in _bold(policy, *policy.rules):
        recover = policy.rules[key].recover or policy.recover
        if recover is None and _cause(key) is cause:
            yield {"rule": _place(key)}


# Guards


def budget_too_small(policy: Policy) -> Found:
    """Warn if a budget cannot pay for a single retry.

    A capacity of 0 switches retries off on purpose.
    """
    budget: Any = policy.budget
    try:
        capacity, cost = budget.capacity, budget.cost
    except Exception:  # noqa: BLE001 - the user's own budget may have neither, or raise anything
        return
    if capacity.__class__ is cost.__class__ is float and 0.0 < capacity < cost:
        yield {"capacity": capacity, "cost": cost, "enough": 100 * cost}


def budget_floor_high(policy: Policy) -> Found:
    """Warn if the floor of a budget allows more retries than its ratio, in processes with few calls."""
    budget = policy.budget
    if isinstance(budget, RatioBudget) and budget.floor_per_second > _HIGH_FLOOR:
        yield {"floor": budget.floor_per_second, "ratio": budget.ratio, "loads": loads(policy, budget)}


CHECKS: tuple[Callable[[Policy], Found], ...] = (
    no_jitter,
    no_wait,
    no_cap,
    cap_below_base,
    milliseconds,
    floor_without_spread,
    many_attempts,
    long_without_deadline,
    attempts_before_give_up_after,
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
WITHOUT_RETRIES = (timeout_in_sync_code, rule_attempts_unreachable)


def _named(policy: Policy) -> tuple[type[Exception], ...]:
    """Return the exception types that ``on`` names."""
    on: Any = policy.on
    return on if on.__class__ is tuple else ()


def _at_large(policy: Policy) -> bool:
    """Return whether ``on`` accepts every failure."""
    if isinstance(policy.on, Classifier):
        # With some classes listed as permanent, the rest may be meant.
        return Exception in policy.on.transient and not policy.on.permanent
    return any(kind is Exception for kind in _named(policy))


def _bold(policy: Policy, *keys: Any) -> list[Any]:
    """Return the keys whose rule allows more than one retry; a single one may be meant."""
    rules: Any = policy.rules
    return [key for key in keys if key in rules and Waits(policy, key, rules[key]).attempts > 2]


def _cause(key: Any) -> Cause | None:
    """Return the cause of the failures that a rule is for; ``None`` if that depends on the failure."""
    if isinstance(key, Cause):
        return key
    return None if isinstance(key, type) else status_cause(key)


def _known_waits(policy: Policy) -> list[Waits]:
    """Return the waits of the policy, and of rules with waits of their own, that can be computed."""
    rules = {
        key: rule
        for key, rule in policy.rules.items()
        if (rule.base, rule.cap, rule.floor, rule.backoff) != (None,) * 4
    }
    found = [Waits(policy), *(Waits(policy, key, rule) for key, rule in rules.items())]
    return [waits for waits in found if waits.attempts > 1 and waits.is_ours()]


def _time_limit(policy: Policy) -> float:
    """Return the first of the deadline and ``give_up_after``; ``inf`` without them."""
    return min([limit for limit in (policy.deadline, policy.give_up_after) if limit is not None], default=INF)


def _about(waits: Waits, field: str, **values: Any) -> dict[str, Any]:
    """Return the values for a text about these waits, with the name of the rule if they are of one."""
    if waits.rule is None:
        return {"field": field, "within": "", "write": "write", **values}
    return {"field": "rules", "within": f"in {_place(waits.key)}, ", "write": "give the rule", **values}


def _place(key: Any) -> str:
    """Return a rule as the user wrote it."""
    if isinstance(key, type):
        return f"rules[{key.__name__}]"
    return f"rules[Cause.{key}]" if isinstance(key, Cause) else f"rules[{key}]"


def _polls(policy: Policy) -> bool:
    """Return whether a policy polls until something is done, as often and as long as that takes."""
    return policy.until is not None and policy.until is not accepted
