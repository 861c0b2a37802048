"""Simulate fleets of clients on virtual time, to compare retry strategies.

::

    contention(...)     many clients write one versioned row
    budgets(...)        clients that call at their own pace, and a server that fails
    outage(...)         a service is down for a while: thundering herd, metastable failure
    layers(...)         services that call services, each with retries

The clients use the library itself: its backoffs, budgets and breakers, and the decision that a real call
makes after each failure. Nothing sleeps. The same seed gives the same figures.
Each model returns a frozen record of plain data; ``as_dict()`` is ready for JSON. ``progress`` is called with
the fraction that is done, at most about 20 times a second.
"""

from __future__ import annotations

from ._budgets import BUDGET_STRATEGIES, Budgets, budgets
from ._contention import CONTENTION_STRATEGIES, Contention, contention
from ._fleet import Strategy
from ._layers import LAYER_STRATEGIES, Layers, layers
from ._outage import OUTAGE_STRATEGIES, Outage, outage

__all__ = [
    "BUDGET_STRATEGIES",
    "CONTENTION_STRATEGIES",
    "LAYER_STRATEGIES",
    "OUTAGE_STRATEGIES",
    "Budgets",
    "Contention",
    "Layers",
    "Outage",
    "Strategy",
    "budgets",
    "contention",
    "layers",
    "outage",
]
