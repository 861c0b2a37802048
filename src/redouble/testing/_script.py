"""Functions that give or raise what they are told to, one outcome a call."""

from __future__ import annotations

from itertools import count

from redouble._async import time_limit_of, timed_out
from redouble._checks import seconds as checked_seconds
from redouble._loops import sleep as loop_sleep
from redouble._record import Record, assign
from redouble._time import fake_in_force, real_sleep
from redouble.context import here, running_in

TYPE_CHECKING = False
if TYPE_CHECKING:
    from datetime import timedelta
    from typing import Any, Literal, overload

else:

    def overload(function):
        """Stands in for typing's, which is slow to import and says nothing at run time."""
        return function


# What stands for the end of a script: None is an outcome as good as any.
_NOTHING: Any = object()


class ScriptEnded(AssertionError):  # noqa: N818 - says what happened, not what is wrong
    """A scripted function was called more often than its script has lines."""


class After(Record):
    """An outcome that takes time. Made by `after`."""

    __slots__ = ("seconds", "outcome")  # noqa: RUF023 - in the order in which it reads
    seconds: float
    outcome: Any

    def __init__(self, seconds: float | timedelta, outcome: Any) -> None:
        assign(self, "seconds", checked_seconds("seconds", seconds))
        assign(self, "outcome", outcome)


def after(seconds: float | timedelta, outcome: Any = None) -> After:
    """For a script: an attempt that takes so many seconds and then ends as ``outcome`` says.

    Where fake time is in force (`fake_time`, `no_waits`) it is advanced by as much, and an async attempt
    is cut off where its ``timeout`` or the deadline would have done so. Elsewhere it is a real sleep, of the
    running event loop in async code.

    >>> from redouble.testing import fake_time, scripted
    >>> with fake_time() as clock:
    ...     scripted(after(0.5, "page"))(), clock.now
    ('page', 0.5)
    """
    return After(seconds, outcome)


class Scripted:
    """A function that gives or raises what it was told to, in that order. Threads may share it."""

    def __init__(self, outcomes: tuple[Any, ...], then: Any = _NOTHING) -> None:
        self._outcomes = outcomes
        self._then = then
        self._numbers = count(1)
        self.calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        """The arguments of each call so far."""

    def _next(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.calls.append((args, kwargs))
        number = next(self._numbers)
        if number <= len(self._outcomes):
            return self._outcomes[number - 1]
        if self._then is _NOTHING:
            raise ScriptEnded(f"call {number} of a script of {len(self._outcomes)}")
        return self._then

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        outcome = self._next(args, kwargs)
        while type(outcome) is After:  # isinstance would ask it for attributes, which may raise
            fake = fake_in_force()
            (real_sleep if fake is None else fake.advance)(outcome.seconds)
            outcome = outcome.outcome
        return _come_to(outcome)


class AsyncScripted(Scripted):
    """As `Scripted`, to be awaited."""

    async def __call__(self, *args: Any, **kwargs: Any) -> Any:
        outcome = self._next(args, kwargs)
        while type(outcome) is After:
            await _pass(outcome.seconds)
            outcome = outcome.outcome
        return _come_to(outcome)


def _come_to(outcome: Any) -> Any:
    if isinstance(outcome, BaseException) or _is_exception_type(outcome):
        raise outcome
    return outcome


def _is_exception_type(outcome: object) -> bool:
    return isinstance(outcome, type) and issubclass(outcome, BaseException)


async def _pass(seconds: float) -> None:
    """Lets time pass in an async attempt."""
    fake = fake_in_force()
    if fake is None:
        await loop_sleep(seconds)
        return
    # The event loop's own time stands still meanwhile, so that it cannot be the one to cut the attempt off.
    attempt = running_in(here())
    limit = None if attempt is None else time_limit_of(attempt)
    if attempt is None or limit is None or seconds < limit:
        fake.advance(seconds)
        return
    fake.advance(limit)
    raise timed_out(attempt, limit)


# ruff: noqa: F811 - it knows typing's overload only
@overload
def scripted(*outcomes: Any, then: Any = ..., asynchronous: Literal[True]) -> AsyncScripted: ...
@overload
def scripted(*outcomes: Any, then: Any = ..., asynchronous: bool = False) -> Scripted: ...
def scripted(*outcomes: Any, then: Any = _NOTHING, asynchronous: bool = False) -> Scripted:
    """A function that raises the exceptions and returns the values of its script, one a call.

    An outcome may be an exception, a type of exception, any other value, or `after` some time one of these.
    ``then`` is the outcome of every call past the end of the script; without it that is a `ScriptEnded`.
    ``.calls`` holds the arguments of each call.

    >>> fetch = scripted(TimeoutError("slow"), "page")
    >>> fetch("/")
    Traceback (most recent call last):
    TimeoutError: slow
    >>> fetch("/"), fetch.calls
    ('page', [(('/',), {}), (('/',), {})])
    >>> fetch = scripted("page", then=None)
    >>> fetch(), fetch(), fetch()
    ('page', None, None)
    """
    return AsyncScripted(outcomes, then) if asynchronous else Scripted(outcomes, then)
