"""Retries that are right by default.

>>> from redouble import retry
>>> @retry
... def fetch():
...     return "page"
>>> fetch()
'page'
"""

from ._engine.decorate import retry
from ._engine.note import history
from .classify import Cause, Verdict
from .context import current_attempt
from .errors import BulkheadFull, CircuitOpen, DeadlineExceeded, RedoubleError, ResultRejected, StoreError
from .policy import Policy, Rule

__all__ = [
    "BulkheadFull",
    "Cause",
    "CircuitOpen",
    "DeadlineExceeded",
    "Policy",
    "RedoubleError",
    "ResultRejected",
    "Rule",
    "StoreError",
    "Verdict",
    "current_attempt",
    "history",
    "retry",
    "retrying",
]

__version__ = "0.1.0"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ._engine.blocks import retrying


def __getattr__(name: str) -> object:
    """Load `retrying` when it is first imported: programs that only decorate do without it."""
    if name != "retrying":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ._engine import blocks

    globals()["retrying"] = blocks.retrying
    return blocks.retrying


def __dir__() -> list[str]:
    """Return all names, `retrying` too."""
    return sorted({*globals(), *__all__})
