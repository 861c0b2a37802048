"""Ready-made policies and circuit breakers.

Each returns a plain `Policy`; keywords change its fields. All but `llm` make a new retry budget: call a
preset once for each dependency and share the policy, or pass a budget that is shared already.
"""

from __future__ import annotations

import functools

from .backoff import proportional_jitter
from .breaker import CircuitBreaker
from .budget import RatioBudget
from .policy import Policy, made

__all__ = [
    "aggressive",
    "breaker",
    "conservative",
    "llm",
    "standard",
]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Literal

    from typing_extensions import Unpack

    from ._policy.typed import PolicyFields

    Dependency = Literal["payment_api", "internal_service", "primary_database", "cache", "email_provider"]


def conservative(**fields: Unpack[PolicyFields]) -> Policy:
    """Return a policy of few, slow retries: 3 attempts, waits of 1 s to 5 s, 10 % jitter, 5 % budget.

    >>> conservative().attempts
    3
    """
    return _preset("conservative", 0.10, 0.05, {"attempts": 3, "base": 1.0, "cap": 5.0}, fields)


def standard(**fields: Unpack[PolicyFields]) -> Policy:
    """Return a policy for most services: 4 attempts, waits of 0.5 s to 15 s, 25 % jitter, 10 % budget.

    >>> standard(deadline=20.0).deadline
    20.0
    """
    return _preset("standard", 0.25, 0.10, {"attempts": 4, "base": 0.5, "cap": 15.0}, fields)


def aggressive(**fields: Unpack[PolicyFields]) -> Policy:
    """Return a policy of many, fast retries: 5 attempts, waits of 0.1 s to 30 s, 50 % jitter, 20 % budget.

    >>> aggressive().base
    0.1
    """
    return _preset("aggressive", 0.50, 0.20, {"attempts": 5, "base": 0.1, "cap": 30.0}, fields)


def llm(**fields: Unpack[PolicyFields]) -> Policy:
    """Return a policy for inference: 6 attempts in 120 s, waits of up to 20 s, ``Retry-After`` up to 60 s.

    Calls that may have taken effect are repeated (``idempotent=True``): for inference and embeddings, not
    for fine-tuning jobs, batches and uploads. There is no budget, since rate limits are part of normal work.

    >>> llm().deadline
    120.0
    """
    preset = Policy(attempts=6, base=1.0, cap=20.0, deadline=120.0, max_retry_after=60.0, idempotent=True)
    return made(preset, fields, "presets.llm") if fields else preset


def _preset(caller: str, spread: float, ratio: float, own: PolicyFields, fields: PolicyFields) -> Policy:
    jitter = functools.partial(proportional_jitter, spread=spread)
    if "budget" not in fields:
        own = {**own, "budget": RatioBudget(ratio)}
    preset = Policy(backoff=jitter).replace(**own)
    return made(preset, fields, f"presets.{caller}") if fields else preset


# Kind of dependency -> consecutive failures that open the circuit, and seconds for which it stays open.
_BREAKERS: Mapping[str, tuple[int, float]] = {
    "payment_api": (5, 60.0),
    "internal_service": (10, 30.0),
    "primary_database": (3, 10.0),
    "cache": (20, 5.0),
    "email_provider": (5, 120.0),
}


def breaker(kind: Dependency, **changes: Any) -> CircuitBreaker:
    """Return a new circuit breaker for a kind of dependency; keywords are those of `CircuitBreaker`.

    >>> breaker("payment_api", name="stripe")
    <stripe: closed>
    """
    if kind not in _BREAKERS:
        raise ValueError(f"kind must be one of {', '.join(_BREAKERS)}, got {kind!r}")
    failures, open_for = _BREAKERS[kind]
    figures: dict[str, Any] = {"failures": failures, "open_for": open_for, "name": kind}
    return CircuitBreaker(**{**figures, **changes})
