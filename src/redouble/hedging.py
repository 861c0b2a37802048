"""A second try before the first has failed: against the slow few, not against failures.

    @hedge(after=0.2)
    async def fetch(url): ...

Only for calls that may be made twice at once. It is asked for by name, and no policy does it.
"""

from __future__ import annotations

from functools import partial, partialmethod

from . import _tasks, _threads
from ._async import awaiting
from ._callables import ASYNC, SYNC, claims_async, flavour, look_like, name_of, refuse
from ._checks import attempts as checked_attempts
from ._checks import listeners as checked_listeners
from ._checks import optional, seconds, text
from ._latencies import quantile
from ._numbers import whole
from ._race import Plan
from .budget import Budget

__all__ = [
    "hedge",
    "quantile",
]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import timedelta
    from typing import Any, TypeVar

    from ._decorate import Decorator
    from .events import Listener

    F = TypeVar("F")


def hedge(
    *,
    after: float | timedelta | quantile,
    attempts: int = 2,
    budget: Budget | None = None,
    priority: int = 0,
    listeners: Iterable[Listener] = (),
    name: str | None = None,
    patience: float | timedelta = 120.0,
    grace: float | timedelta = 1.0,
) -> Decorator:
    """Decorates a function that must be idempotent: it may run twice at once.

    When an attempt has not answered ``after`` seconds (or a `quantile` of recent latencies), another is
    started beside it, up to ``attempts`` in all. The first success is the result; the others are cancelled
    and awaited. A failure that may pass starts the next attempt at once; one that will not is the result.
    If all fail, the first attempt's exception comes out, with a note about the others.

    A sync function runs in daemon threads, its first attempt too. A thread cannot be cancelled: a loser
    runs to its end, and nobody waits for it.

    Each hedge is paid for by the ``budget``, at this ``priority``; first attempts are not. ``patience`` is
    the longest wait that a failing server may ask for, ``grace`` how long asyncio tasks that ignore their
    cancellation are waited for.

    >>> @hedge(after=0.5)
    ... def read(key):
    ...     return f"value of {key}"
    >>> read("a")
    'value of a'
    """
    make = partial(
        Plan,
        after=after if isinstance(after, quantile) else seconds("after", after),
        attempts=checked_attempts("attempts", attempts),
        budget=optional(_budget)("budget", budget),
        priority=whole("priority", priority, at_least=None),
        listeners=checked_listeners("listeners", listeners),
        patience=seconds("patience", patience),
        grace=seconds("grace", grace),
    )
    checked_name: str | None = optional(text)("name", name)

    def decorator(function: F, /) -> F:
        decorated: F = _decorate(make, checked_name, function)
        return decorated

    return decorator


def _budget(name: str, value: Any) -> Budget:
    if not isinstance(value, Budget):
        raise TypeError(f"{name} must be a budget such as TokenBudget(), got {value!r}")
    return value


def _decorate(make: Callable[[str], Plan], name: str | None, function: Any) -> Any:
    if isinstance(function, (staticmethod, classmethod, partialmethod)):
        return _descriptor(make, name, function)
    return look_like(_hedged(make(name or name_of(function)), function), function)


def _descriptor(make: Callable[[str], Plan], name: str | None, made: Any) -> Any:
    """A method of another kind, around the hedged function."""
    if hasattr(made, "__func__"):
        return made.__class__(_decorate(make, name, made.__func__))
    return partialmethod(_decorate(make, name, made.func), *made.args, **made.keywords)


def _hedged(plan: Plan, function: Any) -> Any:
    if isinstance(function, type):
        raise TypeError(
            f"cannot hedge the class {function.__name__}: decorate the method that is slow, "
            "or a function that makes the object"
        )
    if isinstance(function, property):
        raise TypeError("cannot hedge a property: put @hedge below @property, on the function")
    if not callable(function):
        refuse("hedge", function)
    kind = flavour(function)
    if kind not in (SYNC, ASYNC):
        raise TypeError(
            f"cannot hedge {plan.name}: a {kind} is not over when it is called; "
            "hedge a function that returns all at once"
        )
    if kind == ASYNC:
        return _tasks.wrap(plan, function)
    if claims_async(function):
        return _tasks.wrap(plan, awaiting(function))
    if plan.budget is not None and plan.budget.is_async:
        raise TypeError(f"the budget {plan.budget.name} must be awaited, and {plan.name} is sync")
    return _threads.wrap(plan, function)
