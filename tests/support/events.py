"""Make events for tests, and read the counters of the only policy."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from redouble.events import Event, Recovered

if TYPE_CHECKING:
    from redouble.metrics import Counters, Counts


def ended(name: str = "fetch", kind: type[Event] = Recovered, **fields: Any) -> Event:
    """Return an event that ends a call: by default, one that recovered at its second attempt."""
    return kind(name, **{"attempt": 2, "elapsed": 1.0, **fields})


def letter(function: str = "fetch") -> Any:
    """Return what `DeadLettered` reads of a dead letter."""
    return SimpleNamespace(
        function=function,
        queue="q",
        attempts=4,
        error_type="E",
        error_message="m",
        id="1",
        correlation_id=None,
    )


def only(counters: Counters) -> Counts:
    """Return the counts of the only policy."""
    (counts,) = counters.snapshot().policies.values()
    return counts
