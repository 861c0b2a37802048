"""Reading headers, whatever a client library keeps them in: names in, texts out.

The rules of this file:

- Nothing found is trusted, and nothing but ``get`` and ``items`` is ever called. Neither is called on a mock.
- At most 200 headers are passed over; of what has more, headers are asked for by name.
- Most answers carry no header that matters. The names are passed over once, which the interpreter does
  without a call into Python code for the usual mappings, and nothing else is asked where none is of interest.
"""

from __future__ import annotations

from itertools import islice

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    Ask = Callable[[str], str | None]

_MOST_HEADERS = 200
_MANY: tuple[type[Any], ...] = (list, tuple)


def silent(name: str) -> None:
    """What headers answer in which nothing is of interest."""


def reader(headers: object, interesting: frozenset[str]) -> Ask:
    """Looks up headers by lower-case name; ``silent`` if none of the interesting ones is there."""
    if headers is None:
        return silent
    try:
        kind = type(headers)
        if kind is dict or (hasattr(kind, "items") and not hasattr(kind, "__next__")):
            walk: Any = headers
            # Through str itself: a name of another type, or of a class of its own, is left to the slow way.
            names = list(map(str.lower, islice(walk, _MOST_HEADERS)))
            if interesting.isdisjoint(names) and 0 < len(names) < _MOST_HEADERS:
                return silent
            found = [name for name in names if name in interesting]
            if len(names) < _MOST_HEADERS and 0 < len(found) == len(set(found)):
                return lambda name: header(headers, name) if name in names else None
    except Exception:  # noqa: BLE001, S110 - walking is anybody's code; there are other ways in
        pass
    return _passed_over(headers)


def _passed_over(headers: object) -> Ask:
    """Looks up headers after one pass over names and values, where ``header`` would make one per name."""
    items = _items(headers)
    pairs = [pair for pair in map(_pair, items) if pair]
    if not pairs or len(items) == _MOST_HEADERS:  # cannot be passed over, or not to the end: ask by name
        return lambda name: header(headers, name)
    folded: dict[str, str] = {}
    for name, value in pairs:
        before = folded.setdefault(name, value)
        if before != value:
            folded[name] = f"{before}, {value}"
    return folded.get


def header(headers: object, name: str, /) -> str | None:
    """The value of one header, from anything that looks like headers; None if it is not there.

    Takes mappings with ``get`` or ``items`` and iterables of pairs (not iterators, which would be used up),
    with names in any case. Of a list of values the first counts. Never raises, never calls a mock.

    >>> header({"RETRY-AFTER": b"7"}, "Retry-After"), header([("retry-after", 7)], "Retry-After")
    ('7', '7')
    """
    if headers is None:
        return None
    lower = name.lower()
    for spelling in (lower, name.title(), name):
        value = plain_text(_call(headers, "get", spelling))
        if value is not None:
            return value
    for pair in map(_pair, _items(headers)):
        if pair and pair[0] == lower:
            return pair[1]
    return None


def plain_text(value: Any) -> str | None:
    """A header's value or name as plain text; None for what no HTTP client would put there."""
    if type(value) is str:
        return value
    try:
        if isinstance(value, _MANY):
            value = value[0]
        # Through the base types: a subclass may print itself in any way (numpy: np.float64(1.5)).
        if isinstance(value, str):
            return str.__str__(value)
        if isinstance(value, bytes):
            return bytes.decode(value, "latin-1")
        if isinstance(value, float):
            text = float.__repr__(value)
            return float.__format__(value, "f") if "e" in text else text
        if isinstance(value, int) and not isinstance(value, bool):
            return int.__repr__(value)
    except Exception:  # noqa: BLE001 - __class__, [0] and the rest may be anybody's code
        return None
    return None


def _call(headers: object, method: str, *args: str) -> Any:
    try:
        # Asked of the class: a mock has every attribute, its class has not, so no mock is ever called.
        return getattr(headers, method)(*args) if hasattr(type(headers), method) else None
    except Exception:  # noqa: BLE001 - as above
        return None


def _items(headers: Any) -> list[Any]:
    """The first 200 headers as they are kept; nothing if reading them raises."""
    try:
        items = _call(headers, "items")
        source: Iterator[Any] = iter(headers if items is None else items)
        # Reading an iterator would use up what belongs to the caller.
        return [] if source is headers else list(islice(source, _MOST_HEADERS))
    except Exception:  # noqa: BLE001 - as above
        return []


def _pair(item: Any) -> tuple[str, str] | None:
    """Name, in lower case, and value of one header."""
    try:
        name, value = [plain_text(part) for part in item] if isinstance(item, _MANY) else (None, None)
    except Exception:  # noqa: BLE001 - as above
        return None
    return None if name is None or value is None else (name.lower(), value)
