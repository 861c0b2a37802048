"""What is known about a class, looked up once: its names, its row in the table, and who reads its codes.

Looking a class up walks its MRO, which takes longer than all questions about an exception together, so the
answer is kept. Classes made at run time come and go: what is kept holds none of them alive, and is emptied
when it grows beyond what a program can need.
"""

from __future__ import annotations

from _weakref import ref

from . import _codes, _database_codes
from ._catalogue import BUILTINS, EVIDENCE, INNER_ATTRIBUTES, LOST, PERMANENT, Row, wrapping
from ._classes import CLASSES, CONTROL_FLOW, WARNING_CLASSES, WRAPPING_PACKAGES
from ._shapes import ancestry, computes, lineage
from .errors import RedoubleError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ._codes import Reader

READERS: Mapping[str, Reader] = {**_codes.READERS, **_database_codes.READERS}
_LOST_OR_WRAPPER = wrapping(LOST)
_MOST_KINDS = 2000


class Kind:
    """One class of exceptions."""

    __slots__ = (
        "builtin",
        "computes",
        "control",
        "deep",
        "failure",
        "group",
        "names",
        "own",
        "readers",
        "row",
        "rule",
        "system",
        "vague",
        "warns",
    )

    def __init__(self, cls: type) -> None:
        self.names = lineage(cls)
        self.rule, self.row, self.readers = _tables(self.names)
        iteration = any(base is StopIteration or base is StopAsyncIteration for base in ancestry(cls))
        self.control = iteration or not CONTROL_FLOW.isdisjoint(self.names)
        if self.control:
            self.rule, self.row = "control flow", PERMANENT
        # A wrapper: any place where the real failure may hide is searched.
        packages = {package for package, _ in self.names}
        self.deep = self.row.inside if self.row is not None else not WRAPPING_PACKAGES.isdisjoint(packages)
        self.failure = issubclass(cls, Exception)
        self.group = issubclass(cls, ExceptionGroup)
        self.own = issubclass(cls, RedoubleError)
        self.computes = computes(cls, (*EVIDENCE, *INNER_ATTRIBUTES))
        self.warns = not WARNING_CLASSES.isdisjoint(self.names)
        self.system = issubclass(cls, OSError)
        self.builtin = next((row for kind, row in BUILTINS if issubclass(cls, kind)), None)
        # Where nothing else tells, a lost connection that may wrap a better reason.
        self.vague = _LOST_OR_WRAPPER if issubclass(cls, ConnectionError) else None


def _tables(names: list[tuple[str, str]]) -> tuple[str, Row | None, tuple[Reader, ...]]:
    """The line of a class or its nearest base, and the readers of codes down to there."""
    packages = dict.fromkeys([package for package, _ in names])
    readers = [READERS[package] for package in packages if package in READERS]
    for package, name in names:
        key = f"{package}.{name}"
        if key in READERS:
            readers.append(READERS[key])
        if key in CLASSES:
            return key, CLASSES[key], tuple(readers)
    return "", None, tuple(readers)


# By id: hashing a class asks its metaclass. With the class, as the id of one that is gone may be given anew.
_known: dict[int, tuple[ref[type], Kind]] = {}


def kind_of(cls: type) -> Kind:
    """What is known about a class."""
    known = _known.get(id(cls))
    if known is not None and known[0]() is cls:
        return known[1]
    if len(_known) >= _MOST_KINDS:
        _known.clear()
    found = Kind(cls)
    _known[id(cls)] = ref(cls), found
    return found
