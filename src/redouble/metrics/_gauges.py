"""Base class of the listeners that count: limited names, and the state of guards.

A budget or a breaker that is watched is read when a snapshot is taken or a gauge collected, and is not kept
alive. Changes of breakers, and of the store behind a shared guard, are also learned from events.
"""

from __future__ import annotations

from _weakref import ref

from .._base.checks import INF, one_of, whole
from .._base.log_once import shielded, warn_once
from .._guards.base import Guard
from ..breaker import Breaker, State
from ..budget import Budget
from ..events import BackendChanged, CircuitChanged, Succeeded
from ..policy import Policy
from ._counts import COUNTED, OTHER, BudgetLevel, count

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Container
    from typing import Any, NoReturn

    from ..events import Event
    from ._counts import Numbers

    Reading = tuple[str, tuple[str, ...], float]

# name -> (labels, description)
GAUGES: dict[str, tuple[tuple[str, ...], str]] = {
    "budget_tokens": (("budget",), "Tokens left in a retry budget."),
    "budget_capacity": (("budget",), "Capacity of a retry budget."),
    "breaker_state": (
        ("breaker", "state"),
        "1 for the state that a circuit breaker is in, 0 for the others.",
    ),
    "store_available": (("store",), "Whether the store behind a shared guard answers."),
}
_STATES = frozenset(State)


class Counting(Guard):
    """A listener that counts. Safe to share between threads and tasks, and between policies.

    A subclass sets ``_new_numbers``. Names beyond ``max_names`` are
    counted together, so that names which are made without end do not fill the memory.
    """

    wants_successes: bool
    """Whether it receives an event for every call that succeeds at the first try."""
    reentrant = True
    """It calls no retried function, so an event from a signal handler while it counts is not recursion."""

    def __init__(self, successes: bool, max_names: int) -> None:
        super().__init__(None)
        self.wants_successes = one_of(True, False)("successes", successes)
        self.max_names = whole("max_names", max_names, at_least=1)
        """How many policies are counted apart at most."""
        self._numbers: dict[str, Any] = {}
        # By kind and name, so that a budget and a breaker may have the same name.
        self._watched: dict[tuple[str, str], ref[Guard]] = {}
        self._states: dict[str, str] = {}
        self._stores: dict[str, bool] = {}

    # Counting

    def __call__(self, event: Event) -> None:
        """Count an event."""
        self._count(event)

    # Makes the object that the events of a policy are counted into, by the name of the policy.
    _new_numbers: Callable[[str], Numbers]

    def _count(self, event: Event) -> None:
        """Count an event, or learn the state of a guard from it."""
        kind = type(event)
        if kind not in COUNTED:
            self._learn(event)
        elif self.wants_successes or kind is not Succeeded:
            count(event, self._numbers.get(event.name) or self._numbers_of(event.name))

    def _numbers_of(self, name: str) -> Any:
        """Return the numbers for a name; those of ``(other)`` if there are ``max_names`` already."""
        with self._lock:  # or threads that bring a new name at once would each make numbers for it
            name = name if self._has_room(self._numbers, name) else OTHER
            return self._numbers.get(name) or self._numbers.setdefault(name, self._new_numbers(name))

    # The state of guards

    def watch(self, *what: Policy | Budget | Breaker) -> None:
        """Read the state of these guards from now on; of a policy, that of its budget and its breaker.

        They are identified by name; the second of two with the same name is called ``name-2``.
        """
        for guard in [guard for one in what for guard in _guards_of(one)]:
            with self._lock:
                alive = {key: found for key, found in self._watched.items() if found() is not None}
                if any(found() is guard for found in alive.values()):
                    continue
                full = len(alive) >= self.max_names
                if not full:
                    alive[_free_key(guard, alive)] = ref(guard)
                self._watched = alive
            if full:
                text = f"{self.name} watches {self.max_names} guards already, which is its limit: no more"
                warn_once(self, text)

    def _learn(self, event: Event) -> None:
        """Learn the state of a guard from an event."""
        with self._lock:
            if isinstance(event, CircuitChanged) and self._has_room(self._states, event.name):
                self._states[event.name] = str(event.after)
            elif isinstance(event, BackendChanged) and self._has_room(self._stores, event.name):
                self._stores[event.name] = event.available

    def _has_room(self, known: dict[str, Any], name: str) -> bool:
        """Return whether a name is known or may be added."""
        return name in known or len(known) < self.max_names

    def _guard_states(self) -> tuple[dict[str, BudgetLevel], dict[str, str], dict[str, bool]]:
        """Return the levels of budgets, the states of breakers, and whether stores answer, by name.

        A guard that cannot be read is left out.
        """
        budgets: dict[str, BudgetLevel] = {}
        breakers, stores = dict(self._states), dict(self._stores)
        watched = [(key[1], guard) for key, found in self._watched.items() if (guard := found()) is not None]
        for name, guard in watched:
            if isinstance(guard, Budget):
                tokens, capacity = _read_number(guard, "tokens"), _read_number(guard, "capacity")
                if tokens is not None or capacity is not None:
                    budgets[name] = BudgetLevel(tokens, capacity)
            elif (state := _read_state(guard)) is not None:
                breakers[name] = state
            available = _read(guard, "available")
            if isinstance(available, bool):
                stores[name] = available
        return budgets, breakers, stores

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__} counts within one process and cannot be pickled: "
            "send policy.replace(listeners=()), or make both where they are used"
        )


def _guards_of(what: Any) -> list[Guard]:
    """Return the budget and the breaker of a policy, or the guard itself."""
    if isinstance(what, Policy):
        return [guard for guard in (what.budget, what.breaker) if isinstance(guard, Guard)]
    if isinstance(what, (Budget, Breaker)):
        return [what]
    raise TypeError(f"watch takes policies, budgets and breakers, got {what!r}")


def _free_key(guard: Guard, taken: Container[tuple[str, str]]) -> tuple[str, str]:
    """Return a key that is not taken: the name of the guard, or ``name-2`` and so on."""
    kind, name, number = "budget" if isinstance(guard, Budget) else "breaker", guard.name, 1
    while (kind, name) in taken:
        number += 1
        name = f"{guard.name}-{number}"
    return kind, name


def _read_number(budget: Budget, field: str) -> float | None:
    """Return a finite number that a budget reports, or ``None``."""
    value = _read(budget, field)
    return float(value) if isinstance(value, (int, float)) and -INF < value < INF else None


def _read_state(breaker: Guard) -> str | None:
    """Return the state of a breaker; one of the user's own may know only whether it refuses."""
    state = _read(breaker, "state")
    if isinstance(state, str) and state in _STATES:
        return str(state)
    refuses = _read(breaker, "refuses")
    return str(State.open if refuses else State.closed) if isinstance(refuses, bool) else None


def _read(guard: Guard, field: str) -> Any:
    """Return a field of a guard, called if it is a method; ``None`` if it is missing or fails."""
    return shielded(guard, f"{guard.name} cannot say its {field}", _value, guard, field)


def _value(guard: Guard, field: str) -> Any:
    """Return a field of a guard. An awaitable is closed: it cannot be awaited here."""
    value: Any = getattr(guard, field, None)
    value = value() if callable(value) else value
    if hasattr(value, "__await__"):
        getattr(value, "close", bool)()  # or Python would warn that it was never awaited
    return value


# Instruments of other packages


def missing(exporter: str, package: str, project: str) -> ImportError:
    """Return the error for a package that is not installed, which names the project to install."""
    need, remedy = f"metrics.{exporter} needs the package {package}", f"python -m pip install {project}"
    return ImportError(f"{need}: install it with '{remedy}'", name=package)


# Held while instruments are made: two threads would make the same twice.
MAKING = Guard("making of instruments")


class Instruments:
    """The instruments that several exporters share: one object for each registry or meter provider.

    ``made`` has the counters and histograms by name. The gauges are read from the exporters when they are
    collected. It keeps no exporter alive.
    """

    def __init__(self) -> None:
        self.made: dict[str, Any] = {}
        # Adding, removing and copying are each atomic: an exporter may be made while others are read.
        self._exporters: list[ref[Counting]] = []

    def add(self, exporter: Counting) -> None:
        """Read the guards of this exporter, too."""
        self._exporters.append(ref(exporter, self._exporters.remove))

    def readings(self) -> list[Reading]:
        """Return the gauges of all exporters, as (name, labels, value): once, if two watch a guard."""
        found: dict[tuple[str, tuple[str, ...]], float | None] = {}
        for exporter in filter(None, [one() for one in tuple(self._exporters)]):
            budgets, breakers, stores = exporter._guard_states()
            for name, level in budgets.items():
                found["budget_tokens", (name,)] = level.tokens
                found["budget_capacity", (name,)] = level.capacity
            for name, now in breakers.items():
                found |= {("breaker_state", (name, str(state))): float(now == state) for state in State}
            for name, there in stores.items():
                found["store_available", (name,)] = float(there)
        return [(what, labels, value) for (what, labels), value in found.items() if value is not None]
