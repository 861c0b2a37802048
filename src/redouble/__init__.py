"""Retries that are right by default.

>>> from redouble import retry
>>> @retry
... def fetch():
...     return "page"
>>> fetch()
'page'
"""

from ._blocks import retrying
from ._decorate import retry
from ._story import history
from .classify import Cause, Verdict
from .context import current_attempt
from .errors import BulkheadFull, CircuitOpen, DeadlineExceeded, RedoubleError, ResultRejected, StoreTrouble
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
    "StoreTrouble",
    "Verdict",
    "current_attempt",
    "history",
    "retry",
    "retrying",
]

__version__ = "0.1.0"
