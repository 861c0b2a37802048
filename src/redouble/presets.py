"""To start from: three tempers of a policy, and breakers by kind of dependency.

Each policy is a plain `Policy` that may be changed with ``replace``, and brings a retry budget of its own:
call a preset once for each dependency and share what it gives, or hand it a budget that is shared already.
"""

from __future__ import annotations

import functools

from .backoff import proportional_jitter
from .breaker import CircuitBreaker
from .budget import RatioBudget
from .policy import Policy

__all__ = [
    "BREAKERS",
    "aggressive",
    "breaker",
    "conservative",
    "standard",
]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Literal

    from typing_extensions import Unpack

    from .policy import PolicyFields

    Dependency = Literal["payment_api", "internal_service", "primary_database", "cache", "email_provider"]


def conservative(**fields: Unpack[PolicyFields]) -> Policy:
    """Few and slow retries, for what must not be loaded: 3 attempts, 1 s up to 5 s, 10 % jitter, 5 % budget.

    >>> conservative().attempts
    3
    """
    return _preset(0.10, 0.05, {"attempts": 3, "base": 1.0, "cap": 5.0}, fields)


def standard(**fields: Unpack[PolicyFields]) -> Policy:
    """For most services: 4 attempts, 0.5 s up to 15 s, 25 % jitter, 10 % budget.

    >>> standard(deadline=20.0).deadline
    20.0
    """
    return _preset(0.25, 0.10, {"attempts": 4, "base": 0.5, "cap": 15.0}, fields)


def aggressive(**fields: Unpack[PolicyFields]) -> Policy:
    """Fast and many, for what must get through: 5 attempts, 0.1 s up to 30 s, 50 % jitter, 20 % budget.

    >>> aggressive().base
    0.1
    """
    return _preset(0.50, 0.20, {"attempts": 5, "base": 0.1, "cap": 30.0}, fields)


def _preset(spread: float, ratio: float, own: PolicyFields, fields: PolicyFields) -> Policy:
    jitter = functools.partial(proportional_jitter, spread=spread)
    if "budget" not in fields:
        own = {**own, "budget": RatioBudget(ratio)}
    return Policy(backoff=jitter).replace(**own).replace(**fields)


# Kind of dependency -> failures in a row that open the circuit, and seconds for which it stays open.
BREAKERS: Mapping[str, tuple[int, float]] = {
    "payment_api": (5, 60.0),
    "internal_service": (10, 30.0),
    "primary_database": (3, 10.0),
    "cache": (20, 5.0),
    "email_provider": (5, 120.0),
}


def breaker(kind: Dependency, **changes: Any) -> CircuitBreaker:
    """A new circuit breaker with figures that suit a kind of dependency; keywords change others.

    >>> breaker("payment_api", name="stripe")
    <stripe: closed>
    """
    if kind not in BREAKERS:
        raise ValueError(f"kind must be one of {', '.join(BREAKERS)}, got {kind!r}")
    failures, open_for = BREAKERS[kind]
    figures: dict[str, Any] = {"failures": failures, "open_for": open_for, "name": kind}
    return CircuitBreaker(**{**figures, **changes})
