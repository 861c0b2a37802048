"""Read HTTP headers from the mapping or list that a client library keeps them in.

The rules of this file:

- Headers may be anybody's object. Only ``get`` and ``items`` are called, and never on a mock. Errors that
  reading raises are dropped, and the header counts as absent.
- At most 200 headers are read in one pass. In longer ones a header is looked up by its name.
- Most responses carry no header that matters. One pass over the names finds that out, which is cheap for the
  usual mappings; values are read only where a name is of interest.
"""

from __future__ import annotations

from functools import partial
from itertools import islice

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    Reader = Callable[[str], str | None]
    Names = tuple[frozenset[str], frozenset[bytes]]

_MOST_HEADERS = 200
_LIST: type[Any] = list
_SEVERAL: tuple[type[Any], ...] = (list, tuple)


def no_headers(name: str) -> None:
    """Return None: the reader of headers in which nothing is of interest."""


def reader(headers: object, interesting: Names) -> Reader:
    """Return a function that looks up a header by its lower-case name; ``no_headers`` if none is of interest.

    The interesting names are given twice, as texts and as bytes: comparing the two is an error under
    ``python -bb``.
    """
    if headers is None:
        return no_headers
    kind = type(headers)
    try:
        if kind is not dict:
            raw: Any = getattr(headers, "raw", None)
            if type(raw) is _LIST:  # httpx: pairs of bytes, which it would decode anew for each name
                return _from_pairs(raw, interesting[1])
        if hasattr(kind, "items"):
            return _from_mapping(headers, interesting[0])
    except Exception:  # noqa: BLE001, S110 - iterating runs foreign code; there are other ways to read
        pass
    return _from_items(headers)


def _from_pairs(pairs: Any, interesting: frozenset[bytes]) -> Reader:
    """Read the interesting headers in a list of pairs of bytes."""
    values: dict[str, str] = {}
    date = None
    for name, value in pairs[:_MOST_HEADERS]:
        # Through bytes itself: any other type raises, and is left to the slow way.
        lower = bytes.lower(name)
        if lower in interesting:
            _add(values, lower.decode("latin-1"), bytes.decode(value, "latin-1"))
        elif lower == b"date":
            date = value
    if values and date is not None:
        values["date"] = bytes.decode(date, "latin-1")
    return values.get if values else no_headers


def _from_mapping(headers: Any, interesting: frozenset[str]) -> Reader:
    """Read the interesting headers in a mapping: the names first, values only of those."""
    walk: Iterator[Any] = iter(headers)
    if walk is headers:  # would be used up
        return _from_items(headers)
    # Through str itself, as above.
    names = list(map(str.lower, islice(walk, _MOST_HEADERS)))
    if len(names) == _MOST_HEADERS:
        return _from_items(headers)
    if interesting.isdisjoint(names):
        return no_headers
    values: dict[str, str | None] = {}
    moment = False
    for name in names:
        if name not in interesting:
            continue
        if name in values:  # several lines of one header
            return _from_items(headers)
        value = headers.get(name)
        if value is None:
            value = headers.get(name.title())  # a plain dict, spelled as usual
        if type(value) is not str:
            value = header(headers, name)
        values[name] = value
        moment = moment or value is None or len(value) > 9 or not value.isdigit()
    # A date is measured from the response's own; for a number of seconds that need not be looked up.
    if moment and "date" in names:
        values["date"] = header(headers, "date")
    return values.get


def _from_items(headers: object) -> Reader:
    """Read all headers in one pass, of whatever has items; by name if there are too many."""
    items = _items(headers)
    values: dict[str, str] = {}
    for pair in map(_pair, items):
        if pair:
            _add(values, *pair)
    return values.get if values and len(items) < _MOST_HEADERS else partial(_by_name, headers, values)


def _by_name(headers: object, read: dict[str, str], name: str) -> str | None:
    """Look one header up; ``read`` are those that were read before it was clear that there are more.

    Not by `header`, which would pass over all of them again for each name.
    """
    values = [plain_text(_call(headers, "get", spelling)) for spelling in (name, name.title())]
    return values[0] or values[1] or read.get(name)


def _add(values: dict[str, str], name: str, value: str) -> None:
    """Add a header; several lines of one header are joined with commas."""
    before = values.setdefault(name, value)
    if before != value:
        values[name] = f"{before}, {value}"


def header(headers: object, name: str, /) -> str | None:
    """Return the value of one header, from anything that looks like headers; None if it is not there.

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
    """Return the name or the value of a header as plain text; None for types that no HTTP client uses."""
    if type(value) is str:
        return value
    try:
        if isinstance(value, _SEVERAL):
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
    except Exception:  # noqa: BLE001 - __class__, [0] and the rest may be foreign code
        return None
    return None


def _call(headers: object, method: str, *args: str) -> Any:
    """Call a method of headers; None if they have none or it raises."""
    try:
        # Looked up on the class: a mock has every attribute, its class has not, so no mock is ever called.
        return getattr(headers, method)(*args) if hasattr(type(headers), method) else None
    except Exception:  # noqa: BLE001 - as above
        return None


def _items(headers: Any) -> list[Any]:
    """Return the first 200 headers as they are kept; none if reading them raises."""
    try:
        items = _call(headers, "items")
        source = iter(headers if items is None else items)
        return [] if source is headers else list(islice(source, _MOST_HEADERS))
    except Exception:  # noqa: BLE001 - as above
        return []


def _pair(item: Any) -> tuple[str, str] | None:
    """Return the name, in lower case, and the value of one header."""
    try:
        name, value = [plain_text(part) for part in item] if isinstance(item, _SEVERAL) else (None, None)
    except Exception:  # noqa: BLE001 - as above
        return None
    return None if name is None or value is None else (name.lower(), value)
