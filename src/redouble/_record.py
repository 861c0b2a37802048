"""Frozen values without the import cost of dataclasses.

A record's fields are its slots. Two records are equal when they are of one class and their fields
are equal; they hash, print, pickle and copy by their fields, and refuse to be changed.
"""

from __future__ import annotations

from functools import partial
from types import MappingProxyType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, ClassVar, NoReturn

# Frozen means frozen for everybody else: a record's own __init__ goes around its __setattr__.
assign = object.__setattr__


class Record:
    """Base of redouble's immutable values: subclasses name their fields in ``__slots__``."""

    __slots__ = ()
    _fields: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        cls._fields = cls._fields + tuple(cls.__dict__.get("__slots__", ()))

    def _values(self) -> tuple[Any, ...]:
        return tuple([getattr(self, field) for field in self._fields])

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is immutable: cannot set {name!r}")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is immutable: cannot delete {name!r}")

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(map(same, self._values(), other._values()))

    def __hash__(self) -> int:
        return hash((type(self), *map(_hash, self._values())))

    def __repr__(self) -> str:
        shown = ", ".join(f"{field}={_plain(getattr(self, field))!r}" for field in self._fields)
        return f"{type(self).__qualname__}({shown})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), tuple([_plain(value) for value in self._values()]))


def same(one: Any, other: Any) -> bool:
    """Equality that also holds for ``functools.partial`` objects made apart, as after unpickling."""
    if one is other:
        return True
    if type(one) is type(other) is partial:
        return (one.func, one.args, one.keywords) == (other.func, other.args, other.keywords)
    if type(one) is type(other) is tuple:
        return len(one) == len(other) and all(map(same, one, other))
    try:
        return bool(one == other)
    except Exception:  # noqa: BLE001 - a value of the user's that cannot be compared, such as an array
        return False


def _hash(value: Any) -> int:
    """Alike for what is the same: a partial by its function, a mapping by its keys."""
    if type(value) is partial:
        return hash(value.func)
    return hash(frozenset(plain) if type(plain := _plain(value)) is _Shut else value)


class _Shut(dict[str, object]):
    """A read-only mapping on its way through pickle, which knows no such thing."""


def _plain(value: Any) -> Any:
    mapping: Any = value
    return _Shut(mapping) if type(value) is MappingProxyType else value


def _rebuild(cls: type[Record], values: tuple[Any, ...]) -> Record:
    record = cls.__new__(cls)
    for field, value in zip(cls._fields, values, strict=True):
        assign(record, field, MappingProxyType(dict(value)) if type(value) is _Shut else value)
    return record
