"""For tests of code that retries: time that does not pass, functions that fail by script.

    with testing.no_waits() as waits: ...       every wait is skipped and written down
    with testing.retries_disabled(): ...        every failure passes through at once
    clock = testing.FakeClock()                 for Policy(clock=clock, sleep=clock.sleep)
    fetch = testing.scripted(TimeoutError(), "page")

The switches hold for the current context, which is that of this thread or task and of the tasks it starts;
with ``everywhere=True`` they hold for the whole process, other threads included. They win over a policy's
own ``clock`` and ``sleep``.
"""

from __future__ import annotations

import time

from ._numbers import number
from ._time import fake_everywhere, fake_here, fakes
from .context import leave, switched_off, switched_off_everywhere

__all__ = [
    "AsyncScripted",
    "FakeClock",
    "ScriptEnded",
    "Scripted",
    "Waits",
    "no_waits",
    "retries_disabled",
    "scripted",
]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from contextvars import Token
    from types import TracebackType
    from typing import Any

    from ._time import FakeTime


class FakeClock:
    """A clock that stands still until somebody sleeps or advances it.

    >>> from redouble import Policy
    >>> from redouble.backoff import exponential
    >>> clock = FakeClock()
    >>> policy = Policy(backoff=exponential, clock=clock, sleep=clock.sleep)
    >>> policy.call(scripted(TimeoutError(), TimeoutError(), "page"))
    'page'
    >>> clock.waits, clock.now
    ([1.0, 2.0], 3.0)
    """

    def __init__(self, start: float = 0.0) -> None:
        self.now = start
        """The time it shows, in seconds."""
        self.waits: list[float] = []
        """Every wait so far."""

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        """Writes the wait down and moves on by as much."""
        self.advance(seconds)
        self.waits.append(seconds)

    def advance(self, seconds: float) -> None:
        """Lets time pass without a wait: what an attempt costs."""
        self.now += number("seconds", seconds)


class Waits(list[float]):
    """The waits that were skipped; also the clock that they have moved on."""

    _skipped = 0.0

    def __call__(self) -> float:
        # A deadline must see the time that was skipped, or a call bound by nothing else would spin.
        return time.monotonic() + self._skipped

    def sleep(self, seconds: float) -> None:
        self.append(seconds)
        self._skipped += seconds


class no_waits:  # noqa: N801 - used like a function
    """Skips every wait, sync and async, and gives the list of them.

    >>> from redouble import retry
    >>> with no_waits() as waits:
    ...     retry(scripted(TimeoutError(), "page"))()
    'page'
    >>> len(waits)
    1
    """

    def __init__(self, *, everywhere: bool = False) -> None:
        self._everywhere = everywhere
        self._entered: list[tuple[Waits, Token[FakeTime | None] | None]] = []

    def __enter__(self) -> Waits:
        waits, token = Waits(), None
        if self._everywhere:
            fake_everywhere.append(waits)
        else:
            token = fake_here.set(waits)
        fakes.append(waits)
        self._entered.append((waits, token))
        return waits

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        waits, token = self._entered.pop()
        _take_out(fakes, waits)
        if token is None:
            _take_out(fake_everywhere, waits)
        else:
            leave(token)


def _take_out(these: list[FakeTime], waits: Waits) -> None:
    # By identity: lists of waits that are alike are not the same.
    these[:] = [fake for fake in these if fake is not waits]


class retries_disabled:  # noqa: N801 - used like a function
    """Switches retries off: the first failure passes through, and a refused result is given as it is.

    >>> from redouble import retry
    >>> with retries_disabled():
    ...     retry(scripted(TimeoutError("slow"), "page"))()
    Traceback (most recent call last):
    TimeoutError: slow
    """

    def __init__(self, *, everywhere: bool = False) -> None:
        self._everywhere = everywhere
        self._tokens: list[Token[bool]] = []

    def __enter__(self) -> None:
        if self._everywhere:
            switched_off_everywhere.append(self)
        else:
            self._tokens.append(switched_off.set(True))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._everywhere:
            switched_off_everywhere.remove(self)
        else:
            leave(self._tokens.pop())


class ScriptEnded(AssertionError):  # noqa: N818 - says what happened, not what is wrong
    """A scripted function was called more often than its script has lines."""


class Scripted:
    """A function that gives or raises what it was told to, in that order."""

    def __init__(self, outcomes: tuple[Any, ...]) -> None:
        self._outcomes = outcomes
        self.calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        """The arguments of each call so far."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls.append((args, kwargs))
        if len(self.calls) > len(self._outcomes):
            raise ScriptEnded(f"call {len(self.calls)} of a script of {len(self._outcomes)}")
        outcome = self._outcomes[len(self.calls) - 1]
        if isinstance(outcome, BaseException) or _is_exception_type(outcome):
            raise outcome
        return outcome


def _is_exception_type(outcome: object) -> bool:
    return isinstance(outcome, type) and issubclass(outcome, BaseException)


class AsyncScripted(Scripted):
    """As `Scripted`, to be awaited."""

    async def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(*args, **kwargs)


def scripted(*outcomes: Any, asynchronous: bool = False) -> Scripted:
    """A function that raises the exceptions and returns the values of its script, one a call.

    ``.calls`` holds the arguments of each call. A call past the end of the script is a `ScriptEnded`.

    >>> fetch = scripted(TimeoutError("slow"), "page")
    >>> fetch("/")
    Traceback (most recent call last):
    TimeoutError: slow
    >>> fetch("/"), fetch.calls
    ('page', [(('/',), {}), (('/',), {})])
    """
    return AsyncScripted(outcomes) if asynchronous else Scripted(outcomes)
