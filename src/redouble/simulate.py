"""Fleets of clients on virtual time: contention, budgets, outage and recovery, layers of services.

    contention(...)     many clients write one versioned row
    budgets(...)        clients that call at their own pace, and a server that fails
    outage(...)         a service goes away and comes back: the herd, the failure that outlives its cause
    layers(...)         services that call services, each with retries

The clients decide by the library's own means, not by copies of them: its backoffs, budgets, breakers, and the
decision that its drivers make after each failure. Nothing sleeps. The same seed gives the same figures.
Each model gives a frozen record of plain data; ``as_dict()`` is ready for JSON. ``progress`` is called with
the fraction that is done, at most some 20 times a second.
"""

from __future__ import annotations

from ._contention import CONTENTION_STRATEGIES, Contention, contention
from ._layers import LAYER_STRATEGIES, Layers, layers
from ._open_loop import BUDGET_STRATEGIES, Budgets, budgets
from ._outage import OUTAGE_STRATEGIES, Outage, outage
from ._virtual import Strategy

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
