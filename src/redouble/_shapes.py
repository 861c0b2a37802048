"""Reading strangers' objects: attributes, classes and inner errors. Responses are for ``_exchange``.

The rules of this file:

- Any attribute may raise, and a mock has every attribute. Attributes are read through ``probe`` alone;
  what is found is believed only if it is of a plain type.
- ``isinstance`` asks the object for its ``__class__``, and class attributes ask the metaclass. ``real`` and
  the descriptors of ``type`` and ``BaseException`` ask nobody.
- Nothing found is called, converted, compared, tested for truth, measured or iterated. Bodies are not read.
  The exceptions are ``obtained`` and ``pairs``, for methods and metadata of packages known by name.
"""

from __future__ import annotations

import sys
from itertools import islice

from ._catalogue import DELAY_ATTRIBUTES, INNER_ATTRIBUTES
from ._classes import ALIASES
from ._hints import parse_retry_after

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any, TypeGuard, TypeVar

    T = TypeVar("T")

_mro: Callable[[type], tuple[type, ...]] = type.__dict__["__mro__"].__get__
module_of: Callable[[type], object] = type.__dict__["__module__"].__get__
_qualname: Callable[[type], str] = type.__dict__["__qualname__"].__get__
_name: Callable[[type], str] = type.__dict__["__name__"].__get__
cause: Callable[[BaseException], BaseException | None] = BaseException.__dict__["__cause__"].__get__
_context: Callable[[BaseException], BaseException | None] = BaseException.__dict__["__context__"].__get__
_args: Callable[[BaseException], tuple[object, ...]] = BaseException.__dict__["args"].__get__
_attributes: Callable[[BaseException], dict[str, object]] = BaseException.__dict__["__dict__"].__get__
body: Callable[[type], Mapping[str, object]] = type.__dict__["__dict__"].__get__  # of a class
_members: Callable[[BaseException], tuple[BaseException, ...]]
_members = BaseExceptionGroup.__dict__["exceptions"].__get__

DICT: type[dict[Any, Any]] = dict
LIST: type[list[Any]] = list
TUPLE: type[tuple[Any, ...]] = tuple

_FIRST = 4  # of an exception's args
_MOST = 200  # of a dict's values, of metadata
_LONGEST_MESSAGE = 2000  # characters that are searched
_HANDED = frozenset({*INNER_ATTRIBUTES, "errors", "kwargs"})
_AROUND = 8  # errors before an error
_SHORTEST_QUOTE = 6  # characters; fewer occur in any text


# One attribute, one value


def probe(thing: object, name: str) -> Any:
    """The attribute, or None where there is none or reading it raises."""
    try:
        return getattr(thing, name, None)
    except Exception:  # noqa: BLE001 - a property may raise anything; httpx's .request raises RuntimeError
        return None


def real(thing: object, kind: type[T]) -> TypeGuard[T]:
    """Whether a thing is of a kind by its type, whatever it says of itself."""
    return issubclass(type(thing), kind)


def entry(mapping: object, key: str) -> Any:
    """The value of a key in a real dict, or None."""
    try:
        return DICT.get(mapping, key) if real(mapping, DICT) else None
    except Exception:  # noqa: BLE001 - another key of the dict may refuse to be compared
        return None


def whole(value: object) -> int | None:
    """A plain int from an int of any class but bool."""
    # By adding, since PyPy's own __index__ and __int__ ask the class of the number.
    return int.__add__(value, 0) if real(value, int) and not real(value, bool) else None


def text(value: object) -> str | None:
    """A plain str from a str of any class, or from the bytes of a header."""
    if real(value, bytes):
        return bytes.decode(value, "latin-1")
    return str.__str__(value) if real(value, str) else None


def obtained(thing: object, method: str, *given: str) -> Any:
    """What a method of a known package gives; None where there is none or it raises."""
    found = probe(thing, method)
    try:
        return found(*given) if callable(found) else None
    except Exception:  # noqa: BLE001 - a stranger's code
        return None


def pairs(found: Any) -> list[tuple[str | None, object]]:
    """The first pairs of a key and a value in the metadata of a known package."""
    try:
        items: list[Any] = list(islice(found, _MOST))
    except Exception:  # noqa: BLE001 - None, or a stranger's code
        return []
    tuples = [tuple(TUPLE.__iter__(item)) for item in items if real(item, TUPLE)]
    return [(text(pair[0]), pair[1]) for pair in tuples if len(pair) == 2]


def status_code(value: object) -> int | None:
    """An HTTP status: an int from 100 to 599, or three ASCII digits."""
    if type(value) is int:  # as nearly always
        return value if 100 <= value <= 599 else None
    number = whole(value)
    if number is None:
        digits = str.__str__(value) if real(value, str) else ""
        if len(digits) != 3 or not (digits.isascii() and digits.isdigit()):
            return None
        number = int(digits)
    return number if 100 <= number <= 599 else None


def lacks(thing: object, names: tuple[str, ...]) -> bool:
    """Whether a thing certainly has nothing under any of these names, which is the usual case."""
    try:
        for name in names:
            if getattr(thing, name, None) is not None:
                return False
    except Exception:  # noqa: BLE001 - as in probe
        return False
    return True


def carries(exc: BaseException, names: frozenset[str]) -> bool:
    """Whether an exception may have any of these among its own attributes, its class apart."""
    own = _attributes(exc)
    try:
        return type(own) is not dict or not names.isdisjoint(own)
    except Exception:  # noqa: BLE001 - a key of the dict may refuse to be hashed or compared
        return True


def delay(exc: BaseException, now: float | None) -> float | None:
    """The seconds that a library has already read from the answer and hands on as an attribute."""
    if lacks(exc, DELAY_ATTRIBUTES):
        return None
    for name in DELAY_ATTRIBUTES:
        value = probe(exc, name)
        # A timedelta can only come from where it was imported.
        if value is not None and type(value) is probe(sys.modules.get("datetime"), "timedelta"):
            value = value.total_seconds()
        found = None if value is None else parse_retry_after(value, now=now)
        if found is not None:
            return found
    return None


# Classes


def class_name(thing: object) -> str:
    """The name of a thing's class, for messages."""
    return _name(type(thing))


def arguments(exc: BaseException) -> tuple[object, ...]:
    """What an exception was made with, whatever its class does to ``args``."""
    return _args(exc)


def message(exc: BaseException) -> str:
    """The text that an exception was made with; ``str`` might run anything."""
    for found in _args(exc)[:_FIRST]:
        said = text(found)
        if said is not None:
            return said[:_LONGEST_MESSAGE]
    return ""


def texts(exc: BaseException) -> str:
    """All texts that an exception was made with."""
    found = [said[:_LONGEST_MESSAGE] for given in _args(exc)[:_FIRST] if (said := text(given)) is not None]
    return "\n".join(found)


def ancestry(kind: type) -> tuple[type, ...]:
    """A class and its bases, most derived first."""
    return _mro(kind)


def place(cls: type) -> tuple[str, str, str] | None:
    """Module, package and qualified name of a class; None for builtins."""
    module = module_of(cls)
    if type(module) is not str or module == "builtins":
        return None
    package = module.partition(".")[0]
    return module, ALIASES.get(package, package), _qualname(cls)


def lineage(kind: type) -> list[tuple[str, str]]:
    """Package and qualified name of a class and its bases, most derived first; builtins are left out."""
    return [found[1:] for cls in _mro(kind) if (found := place(cls)) is not None]


def listed(cls: type, names: frozenset[type[Exception] | str]) -> bool:
    """Whether a class is among these, itself or by name: behind its module, or behind its package alone."""
    module = text(module_of(cls)) or ""
    qualname = _qualname(cls)
    known = (f"{module}.{qualname}", f"{module.partition('.')[0]}.{qualname}")
    return any(name is cls or (type(name) is str and name in known) for name in names)


# Inner errors


def leaves(group: BaseException) -> list[BaseException]:
    """The errors in a group that are not groups themselves, in order, at any depth; else the error itself."""
    found: list[BaseException] = []
    seen: set[int] = set()
    stack = [group]
    while stack:
        member = stack.pop()
        if not real(member, BaseExceptionGroup):
            found.append(member)
        elif id(member) not in seen:  # one group may be in many: each is opened once
            seen.add(id(member))
            stack.extend(reversed(_members(member)))
    return found


def inner(exc: BaseException, everything: bool) -> Iterator[Exception]:
    """The errors that an error wraps, best evidence first.

    ``__cause__`` is a statement, and so is an error that was handed to the exception. A ``__context__``, even
    if suppressed, counts for ``everything``, which is for classes known to be wrappers; of other classes only
    if their text quotes it: a bug in an ``except`` block has a ``__context__`` too. Interrupts are left out,
    as there is a CancelledError under every timeout of asyncio.
    """
    found: object = cause(exc)
    if real(found, Exception):
        yield found
    if everything or carries(exc, _HANDED):
        for found in _handed(exc):
            if real(found, Exception):
                yield found
    for found in _args(exc)[:_FIRST]:
        if real(found, Exception):
            yield found
    found = _context(exc)
    if real(found, Exception) and (everything or _quotes(exc, found)):
        yield found


def around(exc: BaseException) -> list[BaseException]:
    """The nearest errors that were handled when an error was raised, stated, suppressed or neither."""
    found: list[BaseException] = []
    nearest = [exc]
    for error in nearest:
        for before in (cause(error), _context(error)):
            if before is not None and len(found) < _AROUND and not any(before is known for known in nearest):
                nearest.append(before)
                found.append(before)
    return found


def _handed(exc: BaseException) -> Iterator[object]:
    if not lacks(exc, INNER_ATTRIBUTES):
        for name in INNER_ATTRIBUTES:
            yield probe(exc, name)
    errors = probe(exc, "errors")
    if real(errors, DICT):
        yield from list(DICT.values(errors))[:_MOST]
    yield entry(probe(exc, "kwargs"), "error")


def _quotes(exc: BaseException, context: BaseException) -> bool:
    """Whether the text of an exception contains that of another, as in ``f"cannot fetch: {error}"``."""
    said = texts(exc)
    for _ in range(_FIRST):
        quote = message(context)
        if quote:
            return len(quote) >= _SHORTEST_QUOTE and quote in said
        held = next((found for found in _args(context)[:_FIRST] if real(found, Exception)), None)
        if held is None:
            break
        context = held  # requests' errors are made with those of urllib3, and read like them
    return False
