"""What is known about a class, looked up once: its names, its row in the table, and who reads its codes.

Looking a class up walks its MRO, which takes longer than all questions about an exception together, so the
answer is kept. Classes made at run time come and go: what is kept holds none of them alive, and is emptied
when it grows beyond what a program can need.
"""

from __future__ import annotations

import builtins
from _weakref import ref

from . import _codes, _database_codes
from ._catalogue import (
    BUILTINS,
    EVIDENCE_NAMES,
    HTTP_NAMES,
    LOST,
    OTHER_CODES,
    PERMANENT,
    Cause,
    Row,
    wrapping,
)
from ._classes import CLASSES, CONTROL_FLOW, WARNING_CLASSES, WRAPPING_PACKAGES
from ._names import installed, last_word, veto
from ._shapes import ancestry, body, lineage, module_of, place
from .errors import RedoubleError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ._codes import Reader

READERS: Mapping[str, Reader] = {**_codes.READERS, **_database_codes.READERS}
_LOST_OR_WRAPPER = wrapping(LOST)
_MOST_KINDS = 2000
_OF_CONNECTIONS = (Cause.connection, Cause.disconnected)
_BUILTIN = {id(cls) for cls in vars(builtins).values() if isinstance(cls, type)}  # hashing asks the metaclass
_READ = EVIDENCE_NAMES | {"__getattr__", "__getattribute__"}


class Kind:
    """One class of exceptions."""

    __slots__ = (
        "blank",
        "builtin",
        "coded",
        "control",
        "deep",
        "failure",
        "foreign",
        "group",
        "installed",
        "mute",
        "names",
        "open",
        "own",
        "readers",
        "row",
        "rule",
        "system",
        "vague",
        "veto",
        "warns",
        "word",
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
        self.installed = installed(module_of(cls))
        self.coded = self.installed and not self.readers and _speaks_http(cls)
        # No row of its own: an explicit cause or its name outranks the row of a base class.
        own_row = bool(self.names) and self.rule == ".".join(self.names[0])
        self.open = self.row is None or (self.row is PERMANENT and not own_row and not self.control)
        self.word, self.veto = _named(cls, self.rule) if self.open else (None, None)
        if self.row is not None and self.veto is not None:
            self.open = False
        # Evidence is in the __dict__ of the instance, or on the class if it was set there since.
        bodies = [body(base) for base in ancestry(cls) if id(base) not in _BUILTIN]
        self.blank = all(_READ.isdisjoint(found) for found in bodies)
        self.failure = issubclass(cls, Exception)
        self.group = issubclass(cls, ExceptionGroup)
        self.own = issubclass(cls, RedoubleError)
        self.warns = not WARNING_CLASSES.isdisjoint(self.names)
        self.system = issubclass(cls, OSError)
        self.builtin = next((row for kind, row in BUILTINS if issubclass(cls, kind)), None)
        # Where nothing else tells, a lost connection that may wrap a better reason.
        self.vague = _LOST_OR_WRAPPER if issubclass(cls, ConnectionError) else None
        # Its errno may be the operating system's: it has no codes of its own.
        self.foreign = not (self.system or self.readers or self.deep)
        # No question has an answer unless the instance carries something.
        self.mute = self.blank and not (self.own or self.readers or self.row or self.system)


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


def _named(cls: type, rule: str) -> tuple[tuple[str, Row] | None, tuple[str, Row] | None]:
    """The last word in the name of a class, or of its nearest base that has one, and what rules the name out.

    Asked of installed packages alone, up to the base class that the table has a line for. A base class about
    connections does not count: a clean end and a bad address derive from it, too.
    """
    for base in ancestry(cls):
        found = place(base)
        if found is None:
            continue
        module, package, qualname = found
        if f"{package}.{qualname}" == rule:
            break
        if installed(module):
            name = qualname.rpartition(".")[2]
            ruled_out = veto(name)
            if ruled_out is not None:
                return None, ruled_out
            word = last_word(name)
            if word is not None and (base is cls or word[1].cause not in _OF_CONNECTIONS):
                return word, None
    return None, None


def _speaks_http(cls: type) -> bool:
    """Whether a number from 400 to 599 in ``code`` is an HTTP status, as far as the name of a class tells."""
    module, package, qualname = place(cls) or ("", "", "")
    other = f"{module} {package} {qualname}".lower()
    return any(word in qualname for word in HTTP_NAMES) and not any(word in other for word in OTHER_CODES)


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
