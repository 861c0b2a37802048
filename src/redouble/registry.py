"""One guard for each key: a breaker per host, a budget per tenant.

    breakers = Registry(lambda host: CircuitBreaker(name=host))
    policy.replace(breaker=breakers[host]).call(fetch, url)

Keys may come from outside, so there are never more than ``limit``. What is forgotten is at rest: a new
guard would do the same in its place.
"""

from __future__ import annotations

from collections import deque
from itertools import count
from types import GenericAlias

from ._checks import sync_function
from ._guard import Guard
from ._numbers import whole
from ._trouble import report

__all__ = [
    "Registry",
]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Hashable, Iterable, Iterator
    from typing import Any, Generic, TypeVar

    K = TypeVar("K", bound=Hashable)
    G = TypeVar("G")
    T = TypeVar("T")

    class _Typed(Generic[K, G]): ...
else:
    K = G = None

    class _Typed:
        """Takes its types in square brackets without the import of ``typing``."""

        __slots__ = ()
        __class_getitem__ = classmethod(GenericAlias)


# A new key takes no longer in a large registry: so many busy guards in a row, and it shares one. The next
# looks at those after them.
LOOKS = 64


class _Entry(_Typed[K, G]):
    __slots__ = ("guard", "key", "leaving", "used")

    def __init__(self, key: K, guard: G) -> None:
        self.key = key
        self.guard = guard
        self.used = 0
        self.leaving = False


class Registry(Guard, _Typed[K, G]):
    """A guard for each key, made by ``make(key)`` when the key is first asked for.

    Everybody who asks for a key gets the same guard. Beyond ``limit`` keys, the one used longest ago is
    forgotten, but only while its guard is at rest: an open breaker or a budget in debt is kept, whoever asks
    for how many other keys. While none is at rest, new keys share one guard, that of the key ``others``.

    A guard is at rest if its ``at_rest`` is true or if it has none. ``make`` is a plain function; it may be
    called twice for a key that two threads ask for at once, and one of the two guards is thrown away.

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
        self, make: Callable[[K], G], limit: int = 1000, *, others: Any = "others", name: str | None = None
    ) -> None:
        super().__init__(name)
        self.limit = whole("limit", limit, at_least=1)
        """How many keys have a guard of their own at most."""
        self.others = others
        """The key that ``make`` is given for the guard which new keys share while all are busy."""
        self._make: Callable[[Any], G] = sync_function("make", make)
        self._shared: _Entry[K, G] | None = None
        self._entries: dict[K, _Entry[K, G]] = {}
        self._ticks = count()
        # By age, as it was when somebody last looked around: (when it was used last, entry).
        self._oldest: deque[tuple[int, _Entry[K, G]]] = deque()

    def get(self, key: K) -> G:
        """The guard of this key."""
        entry = self._entries.get(key)
        if entry is not None:
            # First marked as used, then asked: whoever forgets it does the two the other way round, so one
            # of both sees the other.
            entry.used = next(self._ticks)
            if not entry.leaving:
                return entry.guard
        return self._find(key)

    __getitem__ = get

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[K]:
        """The keys, as of now."""
        return iter([key for key, _ in self.items()])

    def items(self) -> list[tuple[K, G]]:
        """Keys and guards, as of now; without the guard that keys may share."""
        return [(entry.key, entry.guard) for entry in self._all()]

    def __bool__(self) -> bool:
        return True

    def _all(self) -> list[_Entry[K, G]]:
        with self._lock:
            return list(self._entries.values())

    def _find(self, key: K) -> G:
        if key == self.others:
            return self._overflow()
        entry: _Entry[K, G] | None = None
        while (found := self._kept(key, entry)) is None:
            if len(self._entries) >= self.limit and not self._forget_one():
                return self._overflow()
            if entry is None:
                entry = _Entry(key, self._make(key))
        return found.guard

    def _kept(self, key: K, entry: _Entry[K, G] | None) -> _Entry[K, G] | None:
        """The entry of the key: the one it has, or this one, if there is room. It counts as used now."""
        with self._lock:
            found = self._entries.get(key)
            if found is None and entry is not None and len(self._entries) < self.limit:
                found = self._entries[key] = entry
            if found is not None:
                found.used, found.leaving = next(self._ticks), False
            return found

    def _overflow(self) -> G:
        shared = self._shared
        if shared is None:
            entry: _Entry[K, G] = _Entry(self.others, self._make(self.others))
            with self._lock:
                shared = self._shared = self._shared or entry
        return shared.guard

    def _forget_one(self) -> bool:
        """Makes room. False if those used longest ago are all busy."""
        line = self._by_age()
        try:
            return self._forget_one_of(line)
        finally:
            line.close()  # at once, on PyPy too: what is left of it is where the next one goes on

    def _forget_one_of(self, line: Iterable[_Entry[K, G]]) -> bool:
        busy: set[_Entry[K, G]] = set()
        for entry in line:
            used = entry.used
            # Asked without the lock: a guard has one of its own.
            if not self._at_rest(entry.guard):
                busy.add(entry)
                if len(busy) == LOOKS:
                    break
            elif self._forgotten(entry, used):
                return True
        # If that was not all, others have made room meanwhile, or one was used in the last moment.
        return len(busy) < min(LOOKS, self.limit)

    def _by_age(self) -> Generator[_Entry[K, G], None, None]:
        """Those used longest ago first: what is left of the last look around, then all."""
        for used, entry in _emptied(self._oldest):
            if entry.used == used:  # else it is younger than those after it
                yield entry
        entries = [(entry.used, entry) for entry in self._all()]
        entries.sort(key=_age)
        left = deque(entries)
        try:
            for _, entry in _emptied(left):
                yield entry
        finally:
            self._oldest = left

    def _at_rest(self, guard: G) -> bool:
        try:
            return bool(getattr(guard, "at_rest", True))
        except Exception as error:  # noqa: BLE001 - somebody else's guard; the one who asks has another
            report(self, f"{self.name} keeps a guard that cannot say whether it is at rest", error)
            return False

    def _forgotten(self, entry: _Entry[K, G], used: int) -> bool:
        """Forgets an entry, unless it was used after all."""
        with self._lock:
            if self._entries.get(entry.key) is not entry:
                return False
            entry.leaving = True
            if entry.used != used:
                return False  # whoever asks for it next finds it here, and unmarks it
            del self._entries[entry.key]
            return True

    def __repr__(self) -> str:
        return f"<{self.name}: {len(self)} of at most {self.limit} keys>"


def _age(pair: tuple[int, object]) -> int:
    return pair[0]


def _emptied(line: deque[T]) -> Iterator[T]:
    """Takes out one after the other; any number of threads may."""
    while True:
        try:
            item = line.popleft()
        except IndexError:
            return
        yield item
