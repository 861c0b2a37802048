"""Switches for tests: in this context or, with ``everywhere=True``, for the whole process.

Each switch may be entered within itself, shared by threads and tasks, and used as a decorator.
"""

from __future__ import annotations

from _thread import get_ident
from types import CoroutineType

from .._base.callables import ASYNC, SYNC, decorate, flavour, name_of
from .._base.checks import whole
from .._base.clock import SeededTime, fake_everywhere, fake_here, fakes, seeded_rng
from ..context import cap_here, caps, caps_everywhere, switched_off, switched_off_everywhere, switches_off
from ._clock import FakeClock, Waits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from contextvars import ContextVar, Token
    from typing import Any, TypeVar

    from .._base.clock import FakeTime

    F = TypeVar("F", bound=Callable[..., Any])

    # How a switch was entered: the token of the context, the thread, and what to call at the exit.
    Entry = tuple[Token[Any] | None, int, Callable[[], object]]


class Switch:
    """Base class of the switches: a context manager, and a decorator."""

    def __init__(self, *, everywhere: bool = False) -> None:
        self._everywhere = everywhere
        self._entries: list[Entry] = []

    def _enter(self, here: ContextVar[Any], value: object, undo: Callable[[], object]) -> None:
        """Set a value in this context, unless it holds everywhere; ``undo`` is called at the exit."""
        token = None if self._everywhere else here.set(value)
        self._entries.append((token, get_ident(), undo))

    def _switch_on(self, value: object, here: ContextVar[Any], *mappings: dict[object, Any]) -> None:
        """Put a value in force until the exit, in this context or everywhere.

        The first of the ``mappings`` holds all values in force, the second those that hold everywhere. The
        key in them is new, so threads that come and go need no lock.
        """
        key = object()
        mappings = mappings if self._everywhere else mappings[:1]
        for mapping in mappings:
            mapping[key] = value

        def remove() -> None:
            for mapping in mappings:
                mapping.pop(key, None)

        self._enter(here, value, remove)

    if TYPE_CHECKING:

        def __enter__(self) -> Any: ...

    def __exit__(self, *_: object) -> None:
        entries = self._entries.copy()
        # Threads and tasks may share a switch. If no entry fits, it is left in another context than it was
        # entered in, as fixtures are; that context is gone.
        entry = next(filter(_fits, reversed(entries)), entries[-1])
        self._entries.remove(entry)
        entry[2]()

    def __call__(self, function: F) -> F:
        """Return the function with this switched on in each call of it, async ones until they are done."""
        wrapper: F = decorate("decorate", self._wrap, function)
        return wrapper

    def _wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a wrapper of the same kind, sync or async. Raise `TypeError` for a generator."""
        own, kind = type(self).__name__, flavour(function)
        if kind not in (SYNC, ASYNC):
            function_name = f"the {kind} {name_of(function)}"
            raise TypeError(f"{own} cannot decorate {function_name}: use 'with {own}(...):' inside")
        return (_around_async if kind == ASYNC else _around)(self, function)


def _fits(entry: Entry) -> bool:
    """Return whether this context, or this thread, made the entry; if so, reset the context."""
    token, thread, _ = entry
    if token is None:
        return thread == get_ident()
    try:
        token.var.reset(token)
    except ValueError:
        return False
    return True


def _around(switch: Switch, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a plain function. If it returns a coroutine, the switch stays on until that has ended."""

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with switch:
            result = function(*args, **kwargs)
            if result.__class__ is not CoroutineType:
                return result
        return _awaited(switch, result)

    return wrapper


def _around_async(switch: Switch, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap an async function."""

    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        with switch:
            return await function(*args, **kwargs)

    return wrapper


async def _awaited(switch: Switch, coroutine: Any) -> Any:
    """Await a coroutine with the switch on."""
    with switch:
        return await coroutine


class _Time(Switch):
    """A switch that replaces time."""

    def __init__(self, *, seed: int | None = None, everywhere: bool = False) -> None:
        super().__init__(everywhere=everywhere)
        self._seed = None if seed is None else whole("seed", seed, at_least=None)

    def _replace_time(self, fake: FakeTime) -> None:
        """Put fake time in force, with a random source of this seed or else that of the switch around it."""
        rng = seeded_rng()
        if self._seed is not None:
            from random import Random

            rng = Random(self._seed)
        self._switch_on(fake if rng is None else SeededTime(fake, rng), fake_here, fakes, fake_everywhere)


class no_waits(_Time):  # noqa: N801 - used like a function
    """Skip every wait, sync and async, and return the list of them.

    The clock is ahead by the time that was skipped, so that deadlines hold. With a ``seed`` the waits of
    policies without an ``rng`` are the same each time.

    >>> from redouble import retry
    >>> from redouble.testing import scripted
    >>> with no_waits() as waits:
    ...     retry(scripted(TimeoutError(), "page"))()
    'page'
    >>> len(waits)
    1
    >>> with no_waits(seed=7) as waits:
    ...     retry(scripted(TimeoutError(), "page"))()
    'page'
    >>> waits
    [0.32383276483316237]
    """

    def __enter__(self) -> Waits:
        waits = Waits()
        self._replace_time(waits)
        return waits


class fake_time(_Time):  # noqa: N801 - used like a function
    """Replace time by a `FakeClock`, for every policy and guard, and return it.

    Without ``clock`` it is a new one, which begins at 0. An attempt takes no time unless it advances the
    clock, or is a script with `after`. ``seed`` is that of `no_waits`.

    >>> from redouble import retry
    >>> from redouble.testing import after, scripted
    >>> with fake_time() as clock:
    ...     retry(deadline=60.0)(scripted(after(0.5, TimeoutError()), "page"))()
    'page'
    >>> clock.now == 0.5 + sum(clock.waits)
    True
    """

    def __init__(
        self, clock: FakeClock | None = None, *, seed: int | None = None, everywhere: bool = False
    ) -> None:
        super().__init__(seed=seed, everywhere=everywhere)
        self._clock = clock

    def __enter__(self) -> FakeClock:
        clock = FakeClock() if self._clock is None else self._clock
        self._replace_time(clock)
        return clock


class retries_disabled(Switch):  # noqa: N801 - used like a function
    """Switch retries off: the first failure is raised, and a rejected result is returned.

    >>> from redouble import retry
    >>> from redouble.testing import scripted
    >>> with retries_disabled():
    ...     retry(scripted(TimeoutError("slow"), "page"))()
    Traceback (most recent call last):
    TimeoutError: slow
    """

    def __enter__(self) -> None:
        self._switch_on(object(), switched_off, switches_off, switched_off_everywhere)


class capped(Switch):  # noqa: N801 - used like a function
    """Limit every call to ``attempts`` attempts, whatever its policy says; the first call counts.

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
        around = None if self._everywhere else cap_here.get()
        lowest = self._attempts if around is None else min(around, self._attempts)
        self._switch_on(lowest, cap_here, caps, caps_everywhere)
