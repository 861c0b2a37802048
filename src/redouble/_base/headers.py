"""Read HTTP headers from the mapping or list that a client library keeps them in.

`read_headers` returns the headers of interest, for classification: most responses carry none of them.
`header` returns one header by its name, for requests and for headers that travel between services.

The rules of this file:

- Headers may be anybody's object. Only ``get`` and ``items`` are called, and never on a mock. Errors that
  reading raises are dropped, and the header counts as absent.
- At most 200 headers are read in one pass. In longer ones a header is looked up by its name.
- Names are compared in lower case. Of a list of values the first counts.
"""

from __future__ import annotations

from itertools import islice

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_MOST_HEADERS = 200
_DATE = frozenset({"date"})
_LIST: type[Any] = list
_SEVERAL: tuple[type[Any], ...] = (list, tuple)


def read_headers(given: object, names: frozenset[str]) -> dict[str, str]:
    """Return the headers with these lower-case names; empty if there are none, or nothing but a ``date``.

    Several lines of one header are joined with commas. Never raises, never calls a mock.

    >>> interesting = frozenset({"retry-after", "date"})
    >>> read_headers({"Retry-After": "7", "Server": "nginx"}, interesting)
    {'retry-after': '7'}
    >>> read_headers({"Date": "Mon, 03 Jun 2019 11:00:00 GMT"}, interesting)
    {}
    """
    if given is None:
        return {}
    headers: Any = given
    try:
        raw: Any = None if type(given) is dict else getattr(headers, "raw", None)
        if type(raw) is _LIST:  # httpx: pairs of bytes, which it would decode anew for each name
            pairs = [(bytes.lower(name).decode("latin-1"), value) for name, value in raw[:_MOST_HEADERS]]
            return _joined([(name, bytes.decode(value, "latin-1")) for name, value in pairs if name in names])
        walk: Any = iter(headers)
        # Through str itself: names of any other type raise, and are left to the slow way.
        lower: Any = str.lower
        listed: list[str] = [] if walk is headers else [*map(lower, islice(walk, _MOST_HEADERS))]
        if len(listed) < _MOST_HEADERS and walk is not headers:  # an iterator would be used up
            # One pass over the names is cheap, and all that is needed for most responses.
            found = names.intersection(listed)
            if found <= _DATE:
                return {}
            values: dict[str, str] = {}
            for name in found:
                value = headers.get(name)
                if value is None:
                    value = headers.get(name.title())  # a plain dict, spelled as usual
                if type(value) is not str or listed.count(name) > 1:
                    break
                values[name] = value
            else:
                return values
    except Exception:  # noqa: BLE001, S110 - iterating runs foreign code; there are other ways to read
        pass
    return _read_pairs(headers, names)


def _read_pairs(headers: object, names: frozenset[str]) -> dict[str, str]:
    """Read all headers in one pass, of whatever has items; by name if there are too many, or none."""
    items = _items(headers)
    pairs = [pair for pair in map(_pair, items) if pair and pair[0] in names]
    for name in names if not 0 < len(items) < _MOST_HEADERS else ():
        # Not by `header`, which would pass over all of them again for each name.
        value = _get(headers, name) or _get(headers, name.title())
        if value is not None:
            pairs.append((name, value))
    return _joined(pairs)


def _joined(pairs: list[tuple[str, str]]) -> dict[str, str]:
    """Return pairs as a dict, with different values of one name joined; empty if there is only a date."""
    values: dict[str, str] = {}
    for name, value in pairs:
        before = values.setdefault(name, value)
        if before != value:
            values[name] = f"{before}, {value}"
    return {} if values.keys() <= _DATE else values


def header(headers: object, name: str, /) -> str | None:
    """Return the value of one header, from anything that looks like headers; None if it is not there.

    Takes mappings with ``get`` or ``items`` and iterables of pairs (not iterators, which would be used up),
    with names in any case. Never raises, never calls a mock.

    >>> header({"RETRY-AFTER": b"7"}, "Retry-After"), header([("retry-after", 7)], "Retry-After")
    ('7', '7')
    """
    lower = name.lower()
    for spelling in (lower, name.title(), name):
        value = _get(headers, spelling)
        if value is not None:
            return value
    return next((pair[1] for pair in map(_pair, _items(headers)) if pair and pair[0] == lower), None)


def plain_text(value: Any) -> str | None:
    """Return the name or the value of a header as plain text; None for types that no HTTP client uses.

    >>> plain_text(b"7"), plain_text(7), plain_text(["7", "9"]), plain_text(True)
    ('7', '7', '7', None)
    """
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
    except Exception:  # noqa: BLE001, S110 - __class__, [0] and the rest may be foreign code
        pass
    return None


def _get(headers: object, name: str) -> str | None:
    """Return what ``get`` returns for a name, as text; None if there is no such method or it raises."""
    return plain_text(_call(headers, "get", name))


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
    """Return the name, in lower case, and the value of one header; None for anything but a pair of these."""
    try:
        name, value = [plain_text(part) for part in item] if isinstance(item, _SEVERAL) else (None, None)
    except Exception:  # noqa: BLE001 - as above
        return None
    return None if name is None or value is None else (name.lower(), value)
