"""What tests switch on: in this context or, ``everywhere``, for the whole process.

Each switch may be entered within itself, shared by threads and tasks, and used as a decorator.
"""

from __future__ import annotations

from _thread import get_ident
from types import CoroutineType

from redouble._callables import ASYNC, ASYNC_GENERATOR, GENERATOR, flavour, look_like, name_of
from redouble._numbers import whole
from redouble._time import fake_everywhere, fake_here, fakes
from redouble.context import (
    cap_here,
    caps,
    caps_everywhere,
    switched_off,
    switched_off_everywhere,
    switches_off,
)

from ._clock import FakeClock, Waits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from contextvars import ContextVar, Token
    from types import TracebackType
    from typing import Any, TypeVar

    from redouble._time import FakeTime

    F = TypeVar("F", bound=Callable[..., Any])

    # How it was entered: with what, by which thread, and what takes it back for the whole process.
    Entry = tuple[Token[Any] | None, int, Callable[[], object]]


class Switch:
    """A context manager, and decorator, that puts something in force and takes it back."""

    def __init__(self, *, everywhere: bool) -> None:
        self._everywhere = everywhere
        self._entries: list[Entry] = []

    def _enter(self, here: ContextVar[Any], value: object, undo: Callable[[], object]) -> None:
        token = None if self._everywhere else here.set(value)
        self._entries.append((token, get_ident(), undo))

    if TYPE_CHECKING:

        def __enter__(self) -> Any: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        entries = self._entries.copy()
        # Threads and tasks may share a switch. Where none fits it is left in another context than it was
        # entered in, as fixtures are, which is gone.
        entry = next(filter(_fits, reversed(entries)), entries[-1])
        self._entries.remove(entry)
        entry[2]()

    def __call__(self, function: F) -> F:
        """The function with this switched on in each call of it, async ones until they are done."""
        for special in (staticmethod, classmethod):
            if isinstance(function, special):
                raise TypeError(f"{type(self).__name__} must stand below @{special.__name__}, not above it")
        kind = flavour(function)
        if isinstance(function, type) or kind in (GENERATOR, ASYNC_GENERATOR):
            what = "class" if isinstance(function, type) else kind
            raise TypeError(
                f"{type(self).__name__} cannot decorate the {what} {name_of(function)}: "
                f"use 'with {type(self).__name__}(...):' inside"
            )
        wrap: Any = _around_async if kind == ASYNC else _around
        wrapper: F = look_like(wrap(self, function), function)
        return wrapper


def _fits(entry: Entry) -> bool:
    """Whether this context, or this thread, has entered so; what was set in the context is taken back."""
    token, thread, _ = entry
    if token is None:
        return thread == get_ident()
    try:
        token.var.reset(token)
    except ValueError:
        return False
    return True


def _around(switch: Switch, function: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with switch:
            result = function(*args, **kwargs)
            if result.__class__ is not CoroutineType:
                return result
        return _awaited(switch, result)

    return wrapper


def _around_async(switch: Switch, function: Callable[..., Any]) -> Callable[..., Any]:
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        with switch:
            return await function(*args, **kwargs)

    return wrapper


async def _awaited(switch: Switch, coroutine: Any) -> Any:
    with switch:
        return await coroutine


def put(value: object, *places: dict[object, Any]) -> Callable[[], None]:
    """Puts a value in those places under a key of its own; gives what takes it out again."""
    key = object()
    for place in places:
        place[key] = value

    def take_out() -> None:
        for place in places:
            place.pop(key, None)

    return take_out


class _TimeSwitch(Switch):
    """Something stands in for time, sync and async: for its clock and for every wait."""

    def _stand_in(self, fake: FakeTime) -> None:
        undo = put(fake, fakes, fake_everywhere) if self._everywhere else put(fake, fakes)
        self._enter(fake_here, fake, undo)


class no_waits(_TimeSwitch):  # noqa: N801 - used like a function
    """Skips every wait, sync and async, and gives the list of them.

    The clock goes on, and is ahead by what was skipped, so that deadlines hold.

    >>> from redouble import retry
    >>> from redouble.testing import scripted
    >>> with no_waits() as waits:
    ...     retry(scripted(TimeoutError(), "page"))()
    'page'
    >>> len(waits)
    1
    """

    def __init__(self, *, everywhere: bool = False) -> None:
        super().__init__(everywhere=everywhere)

    def __enter__(self) -> Waits:
        waits = Waits()
        self._stand_in(waits)
        return waits


class fake_time(_TimeSwitch):  # noqa: N801 - used like a function
    """Puts a `FakeClock` in the place of time, for every policy and guard, and gives it.

    A new one, which begins at 0, unless you give one. An attempt takes no time unless it advances the clock,
    or is a script with `after`.

    >>> from redouble import retry
    >>> from redouble.testing import after, scripted
    >>> with fake_time() as clock:
    ...     retry(deadline=60.0)(scripted(after(0.5, TimeoutError()), "page"))()
    'page'
    >>> clock.now == 0.5 + sum(clock.waits)
    True
    """

    def __init__(self, clock: FakeClock | None = None, *, everywhere: bool = False) -> None:
        super().__init__(everywhere=everywhere)
        self._clock = clock

    def __enter__(self) -> FakeClock:
        clock = FakeClock() if self._clock is None else self._clock
        self._stand_in(clock)
        return clock


class retries_disabled(Switch):  # noqa: N801 - used like a function
    """Switches retries off: the first failure passes through, and a refused result is given as it is.

    >>> from redouble import retry
    >>> from redouble.testing import scripted
    >>> with retries_disabled():
    ...     retry(scripted(TimeoutError("slow"), "page"))()
    Traceback (most recent call last):
    TimeoutError: slow
    """

    def __init__(self, *, everywhere: bool = False) -> None:
        super().__init__(everywhere=everywhere)

    def __enter__(self) -> None:
        mark = object()
        undo = put(mark, switched_off_everywhere) if self._everywhere else put(mark, switches_off)
        self._enter(switched_off, mark, undo)


class capped(Switch):  # noqa: N801 - used like a function
    """Lets no call make more than so many attempts, whatever its policy says; the first call counts.

    Of several that are in force the lowest holds.

    >>> from redouble import retry
    >>> from redouble.testing import no_waits, scripted
    >>> with no_waits() as waits, capped(2):
    ...     retry(attempts=None, deadline=60.0)(scripted(then=TimeoutError("slow")))()
    Traceback (most recent call last):
    TimeoutError: slow
    ...
    >>> len(waits)
    1
    """

    def __init__(self, attempts: int, *, everywhere: bool = False) -> None:
        super().__init__(everywhere=everywhere)
        self._attempts = whole("attempts", attempts, at_least=1)

    def __enter__(self) -> None:
        undo = put(self._attempts, caps, caps_everywhere) if self._everywhere else put(self._attempts, caps)
        around = cap_here.get()
        self._enter(cap_here, self._attempts if around is None else min(around, self._attempts), undo)
