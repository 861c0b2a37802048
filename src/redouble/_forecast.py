"""What a policy may make a call wait: every wait with its ends, and the total of calls that never succeed."""

from __future__ import annotations

from itertools import accumulate, islice
from random import Random

from ._numbers import INF
from .backoff import delays, shown_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from .policy import Policy

# How many waits of a call are followed, how many are drawn in all, and of how many calls (least, most).
FOLLOWED, _DRAWN, _CALLS_AT_LEAST, _CALLS_AT_MOST = 1000, 200_000, 200, 5000

PERCENTILES = (50, 90, 99)


class _End:
    """A random source that always draws one end of what it may."""

    def __init__(self, draw: Any) -> None:
        self._draw = draw

    def uniform(self, low: float, high: float) -> float:
        end: float = self._draw(low, high)
        return end


class Forecast:
    """What a policy may do: every wait with its ends, and what calls that never succeed wait in all."""

    def __init__(self, policy: Policy, seed: int) -> None:
        self.policy = policy
        self.seed = seed
        self.shortest, self.longest = self._ends(min), self._ends(max)
        calls = self._drawn()
        self.calls = len(calls)
        self.typical = _medians(calls)
        self.typical_so_far = _medians([list(accumulate(call)) for call in calls])
        waited = [[so_far for so_far in accumulate(call) if so_far < self.limit] for call in calls]
        self.reached = [sum(len(call) > nth for call in waited) / self.calls for nth in range(self.followed)]
        """The share of calls that come to each of the retries before the deadline."""
        self.totals = sorted([call[-1] if call else 0.0 for call in waited])

    @property
    def limit(self) -> float:
        return INF if self.policy.deadline is None else self.policy.deadline

    @property
    def followed(self) -> int:
        """How many waits are looked at."""
        if self.policy.enabled is False:
            return 0
        attempts = self.policy.attempts
        return FOLLOWED if attempts is None else min(attempts - 1, FOLLOWED)

    @property
    def is_cut(self) -> bool:
        """Whether a call may wait more often than is looked at."""
        return self.followed == FOLLOWED and (self.policy.attempts or INF) - 1 > FOLLOWED

    @property
    def worst(self) -> float:
        """The most that can be waited, as far as is looked at: the deadline leaves out what does not fit."""
        return min(sum(self.longest), self.limit)

    def percentile(self, percent: int) -> float:
        """The total that so many of a hundred calls stay within."""
        return self.totals[percent * len(self.totals) // 100]

    def rows(self) -> list[dict[str, Any]]:
        """One for each retry that any call may come to."""
        so_far = zip(accumulate(self.shortest), self.typical_so_far, accumulate(self.longest), strict=True)
        waits = zip(self.shortest, self.typical, self.longest, so_far, self.reached, strict=True)
        names = ("shortest", "typical", "longest")
        return [
            {
                "attempt": number,
                "wait": dict(zip(names, wait, strict=True)),
                "waited": {name: min(so_far, self.limit) for name, so_far in zip(names, sums, strict=True)},
                "reached": share,
            }
            for number, (*wait, sums, share) in enumerate(waits, 2)
            if sums[0] < self.limit
        ]

    def as_dict(self) -> dict[str, Any]:
        policy = self.policy
        return {
            "policy": {
                "attempts": policy.attempts,
                "base": policy.base,
                "cap": None if policy.cap == INF else policy.cap,
                "deadline": policy.deadline,
                "backoff": shown_name(policy.backoff),
            },
            "retries": self.rows(),
            "worst_case": self.worst,
            "total": {f"p{percent}": self.percentile(percent) for percent in PERCENTILES},
            "calls_drawn": self.calls,
            "seed": self.seed,
            "complete": not self.is_cut,
            "description": policy.describe().split("\n"),
        }

    def _ends(self, end: Any) -> list[float]:
        source: Any = _End(end)
        policy, waits = self.policy, self.followed
        return list(delays(policy.backoff, attempts=waits + 1, base=policy.base, cap=policy.cap, rng=source))

    def _drawn(self) -> list[list[float]]:
        drawn = self.policy.replace(rng=Random(self.seed))
        calls = min(_CALLS_AT_MOST, max(_CALLS_AT_LEAST, _DRAWN // max(1, self.followed)))
        return [list(islice(drawn.delays(), self.followed)) for _ in range(calls)]


def _medians(calls: Sequence[Sequence[float]]) -> list[float]:
    return [sorted(column)[len(calls) // 2] for column in zip(*calls, strict=True)]
