"""The errors redouble itself raises.

    RedoubleError
    ├── DeadlineExceeded   also a TimeoutError: there was no time for another attempt
    ├── ResultRejected     ``until`` (or ``attempt.again``) refused the last result
    ├── CircuitOpen        a circuit breaker let no call through
    ├── BulkheadFull       as many calls as allowed are under way
    └── StoreTrouble       dead letters could not be stored or read

Most calls that are given up on raise none of them: the function's own last exception comes out.
All of them pickle, notes included; what cannot be pickled along the way is left out or shown as text.
What was tried before is a `History`, with a `Failure` for each attempt.
"""

from __future__ import annotations

from ._record import Record, assign
from ._text import one_line, shown

__all__ = [
    "BulkheadFull",
    "CircuitOpen",
    "DeadlineExceeded",
    "Failure",
    "History",
    "RedoubleError",
    "ResultRejected",
    "StoreTrouble",
]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class RedoubleError(Exception):
    """Base of everything redouble raises on its own account."""

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        state = {
            name: value if _survives(value, protocol) else self._stand_in(name, value)
            for name, value in self.__dict__.items()
        }
        return _rebuild, (type(self), self.args, state)

    def _stand_in(self, name: str, value: object) -> str | None:
        """What travels in the place of an attribute that does not pickle."""
        return None


class DeadlineExceeded(RedoubleError, TimeoutError):  # noqa: N818 - says what happened
    """There was no time left for another attempt, or the running one was cut off.

    >>> raise DeadlineExceeded("gave up on fetch after 2 attempts", attempts=2, elapsed=4.9)
    Traceback (most recent call last):
    redouble.errors.DeadlineExceeded: gave up on fetch after 2 attempts
    """

    attempts: int
    elapsed: float

    def __init__(self, message: str, *, attempts: int, elapsed: float) -> None:
        super().__init__(message)
        self.attempts = attempts
        """How many attempts were started, 0 if time was up before the first."""
        self.elapsed = elapsed
        """Seconds since the call began, or since its first failure where the deadline was set further out."""

    @property
    def last_error(self) -> BaseException | None:
        """The failure of the last attempt, which is also ``__cause__``; ``None`` after unpickling."""
        return self.__cause__


class ResultRejected(RedoubleError):  # noqa: N818 - says what happened
    """The last result was refused, and there may be no further attempt.

    >>> raise ResultRejected("gave up on poll after 4 attempts", result=None, attempts=4)
    Traceback (most recent call last):
    redouble.errors.ResultRejected: gave up on poll after 4 attempts
    """

    result: Any
    attempts: int

    def __init__(self, message: str, *, result: Any, attempts: int) -> None:
        super().__init__(message)
        self.result = result
        """What the last attempt returned; its ``repr`` if it does not survive pickling."""
        self.attempts = attempts

    def _stand_in(self, name: str, value: object) -> str | None:
        return shown(value, repr) if name == "result" else None


class CircuitOpen(RedoubleError):  # noqa: N818 - says what happened
    """A circuit breaker let no call through: the function was not called at all.

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
        """What the breaker is called."""
        self.retry_after = retry_after
        """Seconds until it lets a call through again; ``None`` where it was opened by hand."""
        self.last_failure = last_failure
        """The failure that opened it, as text."""


class BulkheadFull(RedoubleError):  # noqa: N818 - says what happened
    """As many calls as allowed are under way, and as many are waiting: the function was not called.

    >>> raise BulkheadFull("the bulkhead of reports is full", name="reports", limit=10)
    Traceback (most recent call last):
    redouble.errors.BulkheadFull: the bulkhead of reports is full
    """

    name: str
    limit: int

    def __init__(self, message: str, *, name: str, limit: int) -> None:
        super().__init__(message)
        self.name = name
        """What the bulkhead is called."""
        self.limit = limit
        """How many calls may be under way at once."""


class StoreTrouble(RedoubleError):  # noqa: N818 - says what happened
    """The store of dead letters cannot do what it was asked: nothing was stored, or is known to be.

    >>> raise StoreTrouble("/var/lib/letters.db is not a database: move it away", where="/var/lib/letters.db")
    Traceback (most recent call last):
    redouble.errors.StoreTrouble: /var/lib/letters.db is not a database: move it away
    """

    where: str

    def __init__(self, message: str, *, where: str) -> None:
        super().__init__(message)
        self.where = where
        """The file, or what stands for the store."""


def _survives(value: object, protocol: int) -> bool:
    import pickle

    try:
        pickle.loads(pickle.dumps(value, protocol))  # noqa: S301 - what was pickled a moment ago
    except Exception:  # noqa: BLE001 - whatever a stranger's __reduce__ raises
        return False
    return True


def _rebuild(cls: type[RedoubleError], args: tuple[Any, ...], state: dict[str, Any]) -> RedoubleError:
    # Around __init__, whose keyword-only arguments Exception's own unpickling does not know.
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class Failure(Record):
    """One attempt that failed: its number, from 1, what it failed with, and how long was waited after it.

    ``error_type`` is empty where a result was refused; ``delay`` is ``None`` after the last attempt.
    """

    __slots__ = ("attempt", "error_type", "error_message", "delay")  # noqa: RUF023 - in the order in which it reads
    attempt: int
    error_type: str
    error_message: str
    delay: float | None

    def __init__(self, attempt: int, error_type: str, error_message: str, delay: float | None) -> None:
        assign(self, "attempt", attempt)
        assign(self, "error_type", error_type)
        assign(self, "error_message", error_message)
        assign(self, "delay", delay)

    def __str__(self) -> str:
        waited = "" if self.delay is None else f"; waited {self.delay:.2f} s"
        return f"attempt {self.attempt}: {one_line(self.error_type, self.error_message)}{waited}"


class History(Record):
    """What was tried before a call was given up on.

    ``name`` is the policy's or the function's; ``attempts`` how many there were; ``elapsed`` the seconds
    since the call began, or since its first failure where nothing had to read the clock before; ``why`` says
    why it was given up on. ``failures`` are the first 3 attempts and the last 7, ``left_out`` between them.
    """

    __slots__ = ("name", "attempts", "elapsed", "why", "failures", "left_out")  # noqa: RUF023 - as above
    name: str
    attempts: int
    elapsed: float
    why: str
    failures: tuple[Failure, ...]
    left_out: int

    def __init__(
        self,
        name: str,
        *,
        attempts: int,
        elapsed: float,
        why: str,
        failures: tuple[Failure, ...],
        left_out: int,
    ) -> None:
        assign(self, "name", name)
        assign(self, "attempts", attempts)
        assign(self, "elapsed", elapsed)
        assign(self, "why", why)
        assign(self, "failures", failures)
        assign(self, "left_out", left_out)
