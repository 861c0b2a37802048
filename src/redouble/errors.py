"""Exceptions that redouble raises, and the history of a call that failed for good.

::

    RedoubleError
    ├── DeadlineExceeded   also a TimeoutError: there was no time for another attempt
    ├── ResultRejected     ``until`` (or ``attempt.again``) rejected the last result
    ├── CircuitOpen        a circuit breaker is open
    ├── BulkheadFull       as many calls as allowed are in flight
    └── StoreError         dead letters could not be stored or read

Most failed calls raise none of them, but the last exception of the function. All of them pickle, notes
included; attributes that cannot be pickled are left out or replaced by their text.
"""

from __future__ import annotations

from ._base.record import Record
from ._base.text import one_line, safe_str

__all__ = [
    "BulkheadFull",
    "CircuitOpen",
    "DeadlineExceeded",
    "Failure",
    "History",
    "RedoubleError",
    "ResultRejected",
    "StoreError",
]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dataclasses import KW_ONLY
    from typing import Any


class RedoubleError(Exception):
    """Base class of the exceptions of redouble.

    >>> issubclass(DeadlineExceeded, RedoubleError), issubclass(DeadlineExceeded, TimeoutError)
    (True, True)
    """

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        state = {
            name: value if _survives(value, protocol) else self._stand_in(name, value)
            for name, value in self.__dict__.items()
        }
        return _rebuild, (type(self), self.args, state)

    def _stand_in(self, name: str, value: object) -> str | None:
        """Return what replaces an attribute that does not pickle."""
        return None


class DeadlineExceeded(RedoubleError, TimeoutError):  # noqa: N818 - says what happened
    """Raised when no time is left for another attempt, or when the deadline cancels the running one.

    >>> raise DeadlineExceeded("gave up on fetch after 2 attempts", attempts=2, elapsed=4.9)
    Traceback (most recent call last):
    redouble.errors.DeadlineExceeded: gave up on fetch after 2 attempts
    """

    attempts: int
    elapsed: float

    def __init__(self, message: str, *, attempts: int, elapsed: float) -> None:
        super().__init__(message)
        self.attempts = attempts
        """Number of attempts that were started; 0 if the deadline passed before the first."""
        self.elapsed = elapsed
        """Seconds since the call began, or since its first failure under an outer deadline."""

    @property
    def last_error(self) -> BaseException | None:
        """The failure of the last attempt, which is also ``__cause__``; ``None`` after unpickling."""
        return self.__cause__


class ResultRejected(RedoubleError):  # noqa: N818 - says what happened
    """Raised when the last result was rejected, and no attempt is left.

    >>> raise ResultRejected("gave up on poll after 4 attempts", result=None, attempts=4)
    Traceback (most recent call last):
    redouble.errors.ResultRejected: gave up on poll after 4 attempts
    """

    result: Any
    attempts: int

    def __init__(self, message: str, *, result: Any, attempts: int) -> None:
        super().__init__(message)
        self.result = result
        """The result of the last attempt; after unpickling its ``repr``, if it does not pickle."""
        self.attempts = attempts
        """Number of attempts."""

    def _stand_in(self, name: str, value: object) -> str | None:
        return safe_str(value, repr) if name == "result" else None


class CircuitOpen(RedoubleError):  # noqa: N818 - says what happened
    """Raised when a circuit breaker is open: the function was not called.

    >>> raise CircuitOpen("the circuit of payments is open", name="payments", retry_after=12.5)
    Traceback (most recent call last):
    redouble.errors.CircuitOpen: the circuit of payments is open
    """

    name: str
    retry_after: float | None
    last_failure: str | None

    def __init__(
        self, message: str, *, name: str, retry_after: float | None, last_failure: str | None = None
    ) -> None:
        super().__init__(message)
        self.name = name
        """The name of the breaker."""
        self.retry_after = retry_after
        """Seconds until it lets a call through again; ``None`` if it was opened by hand."""
        self.last_failure = last_failure
        """The failure that opened it, as text."""


class BulkheadFull(RedoubleError):  # noqa: N818 - says what happened
    """Raised when as many calls as allowed are in flight and waiting: the function was not called.

    >>> raise BulkheadFull("the bulkhead of reports is full", name="reports", limit=10)
    Traceback (most recent call last):
    redouble.errors.BulkheadFull: the bulkhead of reports is full
    """

    name: str
    limit: int

    def __init__(self, message: str, *, name: str, limit: int) -> None:
        super().__init__(message)
        self.name = name
        """The name of the bulkhead."""
        self.limit = limit
        """Number of calls that may be in flight at once."""


class StoreError(RedoubleError):
    """Raised when dead letters cannot be stored or read.

    >>> raise StoreError("letters.db is not a database: move it away", location="letters.db")
    Traceback (most recent call last):
    redouble.errors.StoreError: letters.db is not a database: move it away
    """

    location: str

    def __init__(self, message: str, *, location: str) -> None:
        super().__init__(message)
        self.location = location
        """The file, or the key of the store."""


def _survives(value: object, protocol: int) -> bool:
    import pickle

    try:
        pickle.loads(pickle.dumps(value, protocol))  # noqa: S301 - what was pickled a moment ago
    except Exception:  # noqa: BLE001 - a __reduce__ of the user may raise anything
        return False
    return True


def _rebuild(cls: type[RedoubleError], args: tuple[Any, ...], state: dict[str, Any]) -> RedoubleError:
    # Around __init__, whose keyword-only arguments Exception's own unpickling does not know.
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class Failure(Record):
    """One attempt that failed: its number, from 1, its error, and the wait that followed.

    ``error_type`` is empty if a result was rejected; ``delay`` is ``None`` after the last attempt.

    >>> print(Failure(1, "TimeoutError", "slow", 0.5))
    attempt 1: TimeoutError: slow; waited 0.50 s
    """

    attempt: int
    error_type: str
    error_message: str
    delay: float | None

    def __str__(self) -> str:
        waited = "" if self.delay is None else f"; waited {self.delay:.2f} s"
        return f"attempt {self.attempt}: {one_line(self.error_type, self.error_message)}{waited}"


class History(Record):
    """The attempts of a call that failed for good, as `redouble.history` returns them.

    ``name`` is that of the policy or the function; ``attempts`` their number; ``elapsed`` the seconds since
    the call began, or since its first failure if nothing read the clock before; ``why`` says why it gave up.
    ``failures`` are the first 3 attempts and the last 7, ``left_out`` the number between them.

    >>> failed = (Failure(1, "TimeoutError", "slow", None),)
    >>> History("fetch", attempts=1, elapsed=0.0, why="no attempts left", failures=failed, left_out=0).why
    'no attempts left'
    """

    name: str
    _: KW_ONLY
    attempts: int
    elapsed: float
    why: str
    failures: tuple[Failure, ...]
    left_out: int
