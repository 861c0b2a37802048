"""What all listeners that count have in common: bounded names, and guards whose state they read.

A budget or a breaker is read when somebody looks, never before. It is not kept alive for that. What becomes
of a breaker, and of the store behind a shared guard, is also learned from events.
"""

from __future__ import annotations

from _weakref import ref
from itertools import count as count_from

from ._checks import one_of
from ._guard import Guard
from ._numbers import INF, whole
from ._tally import COUNTED, Bounded, count
from ._trouble import report
from .breaker import Breaker, State
from .budget import Budget
from .events import CircuitChanged, StoreChanged, Succeeded
from .policy import Policy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator
    from typing import Any, NoReturn

    from .events import Event

    Reading = tuple[str, dict[str, str], float]

# name -> (labels, what it says)
GAUGES: dict[str, tuple[tuple[str, ...], str]] = {
    "budget_tokens": (("budget",), "What is left of a retry budget."),
    "budget_capacity": (("budget",), "What a retry budget holds at most."),
    "breaker_state": (
        ("breaker", "state"),
        "1 for the state that a circuit breaker is in, 0 for the others.",
    ),
    "store_available": (("store",), "Whether the store behind a shared guard answers."),
}
_STATES = frozenset(State)


class Counting(Guard):
    """A listener that counts. Safe to share between threads and tasks, and between policies."""

    wants_successes: bool
    """Whether it hears of every call that succeeds at the first try."""
    reentrant = True
    """It calls nothing that is retried, so what a signal handler brings while it counts is no recursion."""

    def __init__(self, make: Callable[[str], Any], successes: bool, names: int) -> None:
        super().__init__(None)
        self.wants_successes = one_of(True, False)("successes", successes)
        self.names = whole("names", names, at_least=1)
        """How many policies are counted apart at most."""
        self._counted: Bounded[Any] = Bounded(self.names, make)
        # By kind and name: a budget and a breaker of one name do not get mixed up.
        self._watched: dict[tuple[str, str], ref[Guard]] = {}
        self._states: dict[str, str] = {}
        self._stores: dict[str, bool] = {}

    def watch(self, *what: Policy | Budget | Breaker) -> None:
        """From now on reads the state of these guards, too; of a policy, that of its budget and breaker.

        They are told apart by name; of two with one name the second is called ``name-2``.
        """
        guards = [guard for one in what for guard in _guards_of(one)]
        for guard in guards:
            self._watch(guard)

    def _watch(self, guard: Guard) -> None:
        with self._lock:
            alive = {key: found for key, found in self._watched.items() if found() is not None}
            if any(found() is guard for found in alive.values()):
                return
            full = len(alive) >= self.names
            if not full:
                alive[_free_key(guard, alive)] = ref(guard)
            self._watched = alive
        if full:
            report(self, f"{self.name} watches {self.names} guards already, which is its limit: no more")

    def _hear(self, event: Event) -> None:
        """Counts an event, or learns from it."""
        kind = type(event)
        if kind not in COUNTED:
            self._learn(event)
        elif self.wants_successes or kind is not Succeeded:
            found = self._counted.kept.get(event.name)
            if found is None:
                with self._lock:  # or threads that meet a new name at once would each take a place for it
                    found = self._counted.get(event.name)
            count(event, found)

    def _learn(self, event: Event) -> None:
        if isinstance(event, CircuitChanged):
            self._keep(self._states, event.name, str(event.after))
        elif isinstance(event, StoreChanged):
            self._keep(self._stores, event.name, event.available)

    def _keep(self, known: dict[str, Any], name: str, now: str | bool) -> None:
        with self._lock:
            if name in known or len(known) < self.names:
                known[name] = now

    def _readings(self) -> Iterator[Reading]:
        """The gauges of now: which, its labels, its value. What cannot be read is left out."""
        watched = [(key[1], guard) for key, found in self._watched.items() if (guard := found()) is not None]
        states, stores = dict(self._states), dict(self._stores)
        for name, guard in watched:
            if isinstance(guard, Budget):
                yield from _of_budget(name, guard)
            state = _state(guard) if isinstance(guard, Breaker) else None
            if state is not None:
                states[name] = state
            available = _read(guard, "available")
            if isinstance(available, bool):
                stores[name] = available
        for name, now in states.items():
            for state in State:
                yield "breaker_state", {"breaker": name, "state": str(state)}, float(now == state)
        for name, there in stores.items():
            yield "store_available", {"store": name}, float(there)

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__} counts within one process and cannot be pickled: "
            "send policy.replace(listeners=()), or make both where they are used"
        )


# Instruments are made by one thread at a time, or two would make the same.
MAKING = Guard("making of instruments")


class Sources:
    """The adapters that share instruments, which ask them for their gauges. It keeps none of them alive."""

    def __init__(self) -> None:
        # Adding, removing and copying are each one step: an adapter may be made while others are read.
        self._refs: list[ref[Counting]] = []

    def add(self, one: Counting) -> None:
        self._refs.append(ref(one, self._refs.remove))

    def readings(self) -> list[Reading]:
        """The gauges of all of them; what two of them watch is there once."""
        found: dict[tuple[str, ...], Reading] = {}
        for source in [one() for one in tuple(self._refs)]:
            for what, labels, value in () if source is None else source._readings():
                found[what, *labels.values()] = what, labels, value
        return list(found.values())


def _guards_of(what: Any) -> list[Guard]:
    if isinstance(what, Policy):
        return [guard for guard in (what.budget, what.breaker) if guard is not None]
    if isinstance(what, (Budget, Breaker)):
        return [what]
    raise TypeError(f"watch takes policies, budgets and breakers, got {what!r}")


def _free_key(guard: Guard, taken: Container[tuple[str, str]]) -> tuple[str, str]:
    kind = "budget" if isinstance(guard, Budget) else "breaker"
    names = (guard.name if number == 1 else f"{guard.name}-{number}" for number in count_from(1))
    return next((kind, name) for name in names if (kind, name) not in taken)


def _of_budget(name: str, budget: Budget) -> Iterator[Reading]:
    for what, field in (("budget_tokens", "tokens"), ("budget_capacity", "capacity")):
        value = _read(budget, field)
        if isinstance(value, (int, float)) and -INF < value < INF:
            yield what, {"budget": name}, float(value)


def _state(breaker: Breaker) -> str | None:
    """A breaker of the user's own may know only whether it refuses."""
    state = _read(breaker, "state")
    if isinstance(state, str) and state in _STATES:
        return str(state)
    refuses = _read(breaker, "refuses")
    return str(State.open if refuses else State.closed) if isinstance(refuses, bool) else None


def _read(guard: Guard, field: str) -> Any:
    """What a guard says of itself; ``None`` if it does not know, or fails."""
    try:
        value: Any = getattr(guard, field, None)
        value = value() if callable(value) else value
        if hasattr(value, "__await__"):
            getattr(value, "close", bool)()  # or Python would warn that nobody awaited it
    except Exception as error:  # noqa: BLE001 - somebody else's guard; the rest is read all the same
        report(guard, f"{guard.name} cannot say its {field}", error)
        return None
    return value
