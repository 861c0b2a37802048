"""`Registry`: one guard for each key, such as a breaker per host or a budget per tenant.

::

    breakers = Registry(lambda host: CircuitBreaker(name=host))

    @retry(breaker=breakers.by(lambda url: urlsplit(url).hostname))
    def fetch(url): ...

Keys may come from outside, so a registry has a limit. It evicts only guards at rest, which a new guard can
replace without a difference.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

from ._base.callables import name_of
from ._base.checks import sync_function, whole
from ._base.log_once import shielded
from ._base.record import Record
from ._guards.base import Guard

__all__ = ["Registry"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, ParamSpec

    P = ParamSpec("P")

K = TypeVar("K", bound=Hashable)
G = TypeVar("G")

# How many busy guards a new key examines before it shares the overflow guard, so that its time does not
# grow with the registry. Examined guards move to the end, so the next new key examines others.
LOOKS = 64


class _Entry:
    """A guard, and how often it was asked for."""

    __slots__ = ("guard", "uses")

    def __init__(self, guard: Any) -> None:
        self.guard = guard
        self.uses = 0


class Registry(Guard, Generic[K, G]):
    """Guards by key, each made by ``make(key)`` when its key is first asked for.

    Everyone who asks for a key gets the same guard. Beyond ``limit`` keys the least recently used guard is
    evicted, but only if it is at rest: an open breaker or a spent budget is kept. While none is at rest,
    new keys share one guard, made by ``make(overflow_key)``.

    A guard is at rest if its ``at_rest`` is true or if it has none. ``make`` is a sync function; if two
    threads ask for a new key at once it may be called twice, and one of the two guards is dropped.

    >>> from redouble.budget import TokenBudget
    >>> budgets = Registry(lambda tenant: TokenBudget(name=tenant), limit=2)
    >>> budgets["a"] is budgets.get("a")
    True
    >>> cost = budgets["a"].acquire()
    >>> [budgets[tenant].name for tenant in ("b", "c", "d")]
    ['b', 'c', 'd']
    >>> list(budgets)
    ['a', 'd']
    """

    def __init__(
        self,
        make: Callable[[K], G],
        limit: int = 1000,
        *,
        overflow_key: Any = "others",
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        self.limit = whole("limit", limit, at_least=1)
        """The largest number of keys with a guard of their own."""
        self.overflow_key = overflow_key
        """The key for which ``make`` creates the guard that new keys share while all guards are busy."""
        self._make: Callable[[Any], G] = sync_function("make", make)
        self._overflow_guards: list[G] = []  # at most one
        # The least recently used first.
        self._entries: OrderedDict[K, _Entry] = OrderedDict()

    def get(self, key: K) -> G:
        """Return the guard of this key."""
        with self._lock:
            try:
                # In this order: a signal handler in between may evict the oldest, which this one no longer
                # is.
                self._entries.move_to_end(key)
                entry = self._entries[key]
                entry.uses += 1
                found: G = entry.guard
                return found
            except KeyError:
                pass
        return self._overflow() if key == self.overflow_key else self._add(key)

    __getitem__ = get

    def by(self, key: Callable[P, K | None]) -> Callable[P, G | None]:
        """Return a function of a call's arguments that returns the guard of their key, for a `Policy`.

        ``key`` is a sync function of the arguments; ``None`` is no key, and that call has no guard.

        >>> from redouble.budget import TokenBudget
        >>> budgets = Registry(lambda tenant: TokenBudget(name=tenant), name="budgets")
        >>> budgets.by(str.lower)
        budgets.by(lower)
        >>> budgets.by(str.lower)("ACME")
        <acme: 500 of 500 tokens>
        """
        return _ByKey(self, sync_function("key", key))

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[K]:
        """Iterate over the keys as they are now."""
        return iter([key for key, _ in self.items()])

    def items(self) -> list[tuple[K, G]]:
        """Return keys and guards as they are now, without the overflow guard."""
        with self._lock:
            entries = list(self._entries.items())  # in one step, for signal handlers
        return [(key, entry.guard) for key, entry in entries]

    def __bool__(self) -> bool:
        return True

    def _add(self, key: K) -> G:
        """Return a guard for a new key: its own, or the overflow guard if there is no room."""
        entry: _Entry | None = None
        while True:
            with self._lock:
                if entry is not None and len(self._entries) < self.limit:
                    self._entries.setdefault(key, entry)
                if key in self._entries:  # perhaps added by another thread
                    break
            if not self._make_room():
                return self._overflow()
            entry = entry or _Entry(self._make(key))
        return self.get(key)

    def _overflow(self) -> G:
        """Return the guard that new keys share while all others are busy."""
        if not self._overflow_guards:
            guard = self._make(self.overflow_key)
            with self._lock:
                if not self._overflow_guards:
                    self._overflow_guards.append(guard)
        return self._overflow_guards[0]

    def _make_room(self) -> bool:
        """Evict a guard unless there is room. Return false if all guards examined were busy."""
        busy = 0
        while busy < min(LOOKS, self.limit):
            with self._lock:
                if len(self._entries) < self.limit:
                    return True
                try:
                    key, entry = next(iter(self._entries.items()))
                except RuntimeError:  # changed by a signal handler in between
                    continue
                uses = entry.uses
            # Asked without the lock: guards have locks of their own.
            text = f"{self.name} keeps a guard that cannot say whether it is at rest"
            at_rest = bool(shielded(self, text, getattr, entry.guard, "at_rest", True))
            busy += not at_rest
            with self._lock:
                if self._entries.get(key) is entry and entry.uses == uses:  # not used meanwhile
                    if at_rest:
                        self._entries.pop(key, None)
                    elif key in self._entries:
                        self._entries.move_to_end(key)
        return False

    def __repr__(self) -> str:
        return f"<{self.name}: {len(self)} of at most {self.limit} keys>"


class _ByKey(Record):
    """What `Registry.by` returns: equal if registry and function are, and shared as a registry is."""

    registry: Registry[Any, Any]
    key: Callable[..., Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        key = self.key(*args, **kwargs)
        return None if key is None else self.registry.get(key)

    def __repr__(self) -> str:
        return f"{self.registry.name}.by({name_of(self.key, short=True)})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.registry.__reduce_ex__(protocol)

    def __copy__(self, memo: object = None) -> _ByKey:
        return self

    __deepcopy__ = __copy__
