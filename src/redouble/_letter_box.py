"""Where dead letters go: which store, which queue, what is kept and what is masked.

A box on a file is a value: it compares by its path and settings, and pickles, so a policy that has one does.
"""

from __future__ import annotations

import os
import time

from . import _checks as check
from ._letters import Store
from ._letters_sqlite import SqliteStore
from ._numbers import whole
from ._plain import Masking, safe

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import timedelta
    from typing import Any, Literal, Self

    from .events import Event

    Seconds = float | timedelta
    Mask = Literal[False] | Iterable[str] | Callable[[str, Any], Any] | None

_DAY = 86400.0


class LetterBox:
    """The settings of `DeadLetters`, and its life as a value."""

    def __init__(
        self,
        path_or_store: str | os.PathLike[str] | Store,
        *,
        queue: str = "default",
        ttl: Seconds | None = 14 * _DAY,
        max_rows: int | None = 100_000,
        max_bytes: int | None = 1 << 30,
        payload_limit: int = 1 << 16,
        mask: Mask = None,
        owner: str | None = None,
        clock: Callable[[], float] | None = None,
        listeners: Iterable[Callable[[Event], object]] = (),
    ) -> None:
        self.name = _queue_name("queue", queue)
        """The queue that is meant where none is named."""
        self.ttl: float | None = check.optional(check.some_seconds)("ttl", ttl)
        self.max_rows = None if max_rows is None else whole("max_rows", max_rows, at_least=1)
        self.max_bytes = None if max_bytes is None else whole("max_bytes", max_bytes, at_least=1)
        self.payload_limit = whole("payload_limit", payload_limit, at_least=0)
        self.owner: str | None = check.optional(check.text)("owner", owner)
        self.listeners = check.listeners("listeners", listeners)
        self._mask = mask
        self._masking = _masking(mask)
        self._clock: Callable[[], float] | None = check.optional(check.sync_function)("clock", clock)
        self._path = None if isinstance(path_or_store, Store) else _path(path_or_store)
        self.store: Store = (
            path_or_store if isinstance(path_or_store, Store) else SqliteStore(_path(path_or_store))
        )
        """Where the letters are."""
        self._watchers: list[tuple[str, int, Callable[[int, str], object]]] = []

    def queue(self, name: str) -> Self:
        """A view on another queue of the same store, with the same settings."""
        view = object.__new__(type(self))
        view.__dict__.update(self.__dict__, name=_queue_name("name", name))
        return view

    # As a value

    def _settings(self) -> dict[str, Any]:
        return {
            "queue": self.name, "ttl": self.ttl, "max_rows": self.max_rows, "max_bytes": self.max_bytes,
            "payload_limit": self.payload_limit, "mask": self._mask, "owner": self.owner,
            "clock": self._clock, "listeners": self.listeners,
        }  # fmt: skip

    def __reduce__(self) -> tuple[Any, ...]:
        if self._path is None:
            raise TypeError(
                f"dead letters in {self.store.name} cannot be pickled: give a path instead of a store"
            )
        return _rebuild, (type(self), self._path, self._settings())

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LetterBox):
            return NotImplemented
        same_place = self.store is other.store or (self._path is not None and self._path == other._path)
        return same_place and self._settings() == other._settings()

    def __hash__(self) -> int:
        return hash((self._path or id(self.store), self.name))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} in {self.store.name}>"

    def _queue(self, name: str | None) -> str:
        return self.name if name is None else _queue_name("queue", name)

    def _now(self) -> float:
        return time.time() if self._clock is None else self._clock()


def _rebuild(cls: type[LetterBox], path: str, settings: dict[str, Any]) -> LetterBox:
    return cls(path, **settings)


def _queue_name(field: str, value: Any) -> str:
    return safe(check.text(field, value))


def _path(given: Any) -> str:
    """An absolute path: the process may change its directory before the file is made."""
    try:
        path = os.fsdecode(given)
    except TypeError:
        raise TypeError(
            f"path_or_store must be a path or a redouble.deadletter.Store, got {given!r}"
        ) from None
    if path in ("", ":memory:"):
        raise ValueError(
            f"path_or_store must be the path of a file, since letters are to last, got {given!r}"
        )
    return os.path.abspath(path)  # noqa: PTH100 - pathlib is slow to import


def _masking(mask: Any) -> Masking:
    if mask is None or mask is False:
        return Masking(off=mask is False)
    if type(mask) in (list, tuple, set, frozenset):
        return Masking([check.text("a name in mask", name) for name in mask])
    if not callable(mask):
        raise TypeError(f"mask must be a list of names, a function of name and value, or False, got {mask!r}")
    return Masking(hook=check.sync_function("mask", mask))
