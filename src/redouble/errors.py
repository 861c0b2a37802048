"""The errors redouble itself raises.

    RedoubleError
    ├── DeadlineExceeded   also a TimeoutError: there was no time for another attempt
    └── ResultRejected     ``until`` (or ``attempt.again``) refused the last result

Most calls that are given up on raise neither: the function's own last exception comes out.
All of them pickle, notes included; what cannot be pickled along the way is left out or shown as text.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class RedoubleError(Exception):
    """Base of everything redouble raises on its own account."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, self._state())

    def _state(self) -> dict[str, Any]:
        return dict(self.__dict__)


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
        """Seconds since the call began."""

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

    def _state(self) -> dict[str, Any]:
        import pickle

        state = super()._state()
        try:
            pickle.dumps(self.result)
        except Exception:  # noqa: BLE001 - whatever a stranger's __reduce__ raises
            state["result"] = shown(self.result, repr)
        return state


def _rebuild(cls: type[RedoubleError], args: tuple[Any, ...], state: dict[str, Any]) -> RedoubleError:
    # Around __init__, whose keyword-only arguments Exception's own unpickling does not know.
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error


def shown(value: object, how: Any = str) -> str:
    """``str(value)``, or a placeholder when the object cannot even print itself."""
    try:
        return str(how(value))
    except Exception:  # noqa: BLE001 - __str__ is the user's code
        return f"<unprintable {type(value).__name__}>"


def brief(error: BaseException, limit: int = 200) -> str:
    """One line that names an exception: its type and the beginning of its message.

    >>> brief(ValueError("first line\\nsecond line"))
    'ValueError: first line second line'
    """
    message = " ".join(shown(error)[: 2 * limit].split())
    if len(message) > limit:
        message = message[: limit - 1] + "…"
    name = type(error).__name__
    return f"{name}: {message}" if message else name
