"""`Record`: the base class of immutable values, without the import cost of dataclasses.

A subclass declares its fields as annotations, and gets ``__init__``, ``__eq__``, ``__hash__``, ``__repr__``
and pickling. Fields may hold what dataclasses have trouble with: a ``functools.partial`` compares by its
parts, a read-only mapping pickles, and a value that cannot be compared makes two records different, not an
error.
"""

from __future__ import annotations

from functools import partial
from types import MappingProxyType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, ClassVar, NoReturn, dataclass_transform
else:

    def dataclass_transform(**options):
        return lambda cls: cls


# Set a field of a record, whose own `__setattr__` refuses: for `__init__` and `_check` only.
assign = object.__setattr__


class _RecordType(type):
    """Make the annotations of a class body its slots, its fields and the parameters of its `__init__`."""

    # All fields, those of base classes first; those that may be given by position; and the defaults.
    _fields: tuple[str, ...] = ()
    _positional: tuple[str, ...] = ()
    _defaults: dict[str, Any] = {}  # noqa: RUF012 - never changed
    # What ``inspect`` shows of a class with an ``__init__`` of its own; ``None`` for that.
    _signature: Any = None

    def __new__(mcs, name: str, bases: tuple[_RecordType, ...], body: dict[str, Any]) -> _RecordType:
        base = bases[0] if bases else mcs
        annotated = [] if "__slots__" in body else [*body.get("__annotations__", ())]
        by_position = annotated[: annotated.index("_")] if "_" in annotated else annotated
        fields = [field for field in annotated if field != "_"]
        # A slot cannot have the name of a class attribute.
        defaults = {field: body.pop(field) for field in fields if field in body}
        slots = body.setdefault("__slots__", tuple(fields))
        body["_fields"] = (*base._fields, *slots)
        body["_positional"] = (*base._positional, *by_position)
        body["_defaults"] = {**base._defaults, **defaults}
        return super().__new__(mcs, name, bases, body)

    @property
    def __signature__(cls) -> Any:
        """Return the signature for ``inspect`` and ``help``, made when they ask for it."""
        if getattr(cls, "__init__", None) is not Record.__init__:
            return cls._signature
        from inspect import Parameter, Signature

        annotations: dict[str, str] = {}
        for base in reversed(cls.__mro__):
            annotations |= vars(base).get("__annotations__", {})

        def parameter(field: str) -> Parameter:
            by_position = field in cls._positional
            kind = Parameter.POSITIONAL_OR_KEYWORD if by_position else Parameter.KEYWORD_ONLY
            default = cls._defaults.get(field, Parameter.empty)
            return Parameter(field, kind, default=default, annotation=annotations[field])

        # A signature has the parameters that may be given by position first.
        return Signature([parameter(field) for field in dict.fromkeys((*cls._positional, *cls._fields))])


@dataclass_transform(frozen_default=True)
class Record(metaclass=_RecordType):
    """Base of redouble's immutable values, which are declared as dataclasses are.

    Each annotation in the class body is a field, in that order; a value makes it optional::

        class Failure(Record):
            attempt: int
            error: str
            _: KW_ONLY  # from dataclasses, under TYPE_CHECKING: the fields below are keyword-only
            delay: float | None = None

            def _check(self) -> None:
                if self.attempt < 1:
                    raise ValueError(f"attempt must be at least 1, got {self.attempt}")

    ``_check`` runs at the end of ``__init__``; it may raise, or replace a field with ``assign``. Defaults are
    shared, so they must be immutable. A class whose arguments are not its fields, or that is made on every
    failure, writes an ``__init__`` of its own. A class that names its ``__slots__`` has these as its fields,
    no default and no parameters, and needs an ``__init__``.

    Two records are equal if they are of one class and their fields are equal. They hash, print, pickle and
    copy by their fields, and refuse to be changed. Unpickling does not run ``__init__``.
    """

    __slots__ = ()

    if TYPE_CHECKING:  # checkers know the parameters of each class
        _fields: ClassVar[tuple[str, ...]]
    else:

        def __init__(self, *args, **fields):
            cls = type(self)
            given = dict(zip(cls._positional, args, strict=False))
            if len(args) > len(given):
                raise TypeError(f"{cls.__name__} takes {len(given)} arguments by position, got {len(args)}")
            for name in fields:
                if name in given:
                    raise TypeError(f"{cls.__name__}: {name!r} was given twice")
                if name not in cls._fields:
                    raise TypeError(f"{cls.__name__} has no field {name!r}")
            given = {**cls._defaults, **given, **fields}
            for name in cls._fields:
                if name not in given:
                    raise TypeError(f"{cls.__name__}: {name!r} is missing")
                assign(self, name, given[name])
            self._check()

    def _check(self) -> None:
        """Raise if the fields do not fit. For subclasses."""

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
    """Compare two values; ``functools.partial`` objects are equal if their parts are, as after unpickling."""
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


class Data(Record):
    """Base class of the records that can be turned into plain data."""

    __slots__ = ()

    def as_dict(self) -> dict[str, Any]:
        """Return all fields as plain data, ready for JSON."""
        return {field: _as_data(getattr(self, field)) for field in self._fields}


def _as_data(value: Any) -> Any:
    """Return a mapping, a tuple or a record as plain data; other values unchanged."""
    if hasattr(value, "items"):
        return {name: _as_data(member) for name, member in value.items()}
    return value.as_dict() if hasattr(value, "as_dict") else [*value] if type(value) is tuple else value


def _hash(value: Any) -> int:
    """Hash a value so that equal ones hash alike: a partial by its function, a mapping by its keys.

    Both hold values that may not hash, such as lists.
    """
    if type(value) is partial:
        return hash(value.func)
    return hash(frozenset(plain) if type(plain := _plain(value)) is _Shut else value)


class _Shut(dict[str, object]):
    """A read-only mapping while it is pickled, which `MappingProxyType` cannot be."""


def _plain(value: Any) -> Any:
    """Return a read-only mapping as one that pickles and prints; other values as they are."""
    mapping: Any = value
    return _Shut(mapping) if type(value) is MappingProxyType else value


def _rebuild(cls: type[Record], values: tuple[Any, ...]) -> Record:
    """Make a record from its pickled values. Its checks ran when it was first made, and do not run again."""
    record = cls.__new__(cls)
    for field, value in zip(cls._fields, values, strict=True):
        assign(record, field, MappingProxyType(dict(value)) if type(value) is _Shut else value)
    return record
