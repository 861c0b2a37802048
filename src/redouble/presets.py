"""Policies to start from: three tempers, each a plain `Policy` that may be changed with ``replace``."""

from __future__ import annotations

import functools

from .backoff import proportional_jitter
from .policy import Policy

__all__ = [
    "aggressive",
    "conservative",
    "standard",
]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .policy import PolicyFields


def conservative(**fields: Unpack[PolicyFields]) -> Policy:
    """Few and slow retries, for what must not be loaded: 3 attempts, 1 s up to 5 s, 10 % jitter.

    >>> conservative().attempts
    3
    """
    return _preset(0.10, {"attempts": 3, "base": 1.0, "cap": 5.0}, fields)


def standard(**fields: Unpack[PolicyFields]) -> Policy:
    """For most services: 4 attempts, 0.5 s up to 15 s, 25 % jitter.

    >>> standard(deadline=20.0).deadline
    20.0
    """
    return _preset(0.25, {"attempts": 4, "base": 0.5, "cap": 15.0}, fields)


def aggressive(**fields: Unpack[PolicyFields]) -> Policy:
    """Fast and many, for what must get through: 5 attempts, 0.1 s up to 30 s, 50 % jitter.

    >>> aggressive().base
    0.1
    """
    return _preset(0.50, {"attempts": 5, "base": 0.1, "cap": 30.0}, fields)


def _preset(spread: float, own: PolicyFields, fields: PolicyFields) -> Policy:
    jitter = functools.partial(proportional_jitter, spread=spread)
    return Policy(backoff=jitter).replace(**own).replace(**fields)
