"""Read foreign objects: attributes, the HTTP response behind an exception or result, and inner errors.

The rules of this file:

- Any attribute may raise, and a mock has every attribute. Attributes are read with ``get`` only, and a value
  counts only if it is of a plain type.
- Nothing found is called, converted, compared, tested for truth or iterated, and bodies are not read. The
  exception is ``call``, for methods of packages that are known by name.
- Objects that lie about their own class are not expected: whatever they raise is caught by `Classifier`.
"""

from __future__ import annotations

from . import _table_statuses as t
from ._retry_after import parse_retry_after

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeGuard, TypeVar

    T = TypeVar("T")

# The builtin classes, with the types of their members left open.
DICT: type[dict[Any, Any]] = dict
LIST: type[list[Any]] = list
TUPLE: type[tuple[Any, ...]] = tuple
GROUP: type[BaseExceptionGroup[BaseException]] = BaseExceptionGroup

_MOST_ARGS = 4  # of an exception
_MOST_VALUES = 200  # of a dict
_LONGEST_TEXT = 2000  # characters that are searched
_HANDED_OVER = frozenset({*t.INNER_ATTRIBUTES, "errors", "kwargs"})
_MOST_AROUND = 8  # errors that were handled before an error
_SHORTEST_QUOTE = 6  # characters; fewer occur in any text
# 5xx that no table knows, and the attributes whose number can be nothing but a status.
_UNASSIGNED = frozenset(range(500, 600)).difference(t.STATUS_CAUSES)
_SURELY_HTTP = tuple([name for name in t.ERROR_STATUSES if name not in ("status", "errcode")])


# One attribute, one value


def get(thing: object, name: str) -> Any:
    """Return the attribute, or None where there is none or reading it raises."""
    try:
        return getattr(thing, name, None)
    except Exception:  # noqa: BLE001 - a property may raise anything; httpx's .request raises RuntimeError
        return None


def has_none_of(thing: object, names: tuple[str, ...]) -> bool:
    """Return whether all of these attributes are absent or None, which is the usual case.

    An attribute that raises counts as there, so that each is then read by itself.
    """
    try:
        for name in names:
            if getattr(thing, name, None) is not None:
                return False
    except Exception:  # noqa: BLE001 - as in get
        return False
    return True


def call(thing: object, method: str, *args: str) -> Any:
    """Return what a method of a known package returns; None where there is none or it raises.

    Only for packages that are recognised by name: on anything else a call could do anything.
    """
    found = get(thing, method)
    try:
        return found(*args) if callable(found) else None
    except Exception:  # noqa: BLE001 - foreign code
        return None


def is_a(thing: object, cls: type[T]) -> TypeGuard[T]:
    """Return whether a thing is of a class. Not ``isinstance``: a mock with a spec passes for any class."""
    return issubclass(type(thing), cls)


def item(mapping: object, key: str) -> Any:
    """Return the value of a key in a dict; None where there is none."""
    return mapping.get(key) if is_a(mapping, DICT) else None


def items(found: object) -> list[Any]:
    """Return the first members of a list, or values of a dict; none of anything else.

    >>> items({"a": 1, "b": 2}), items([1, 2]), items("ab")
    ([1, 2], [1, 2], [])
    """
    if is_a(found, DICT):
        found = list(found.values())
    return found[:_MOST_VALUES] if is_a(found, LIST) else []


def whole(value: object) -> int | None:
    """Return an int of any class but bool as a plain int; None for other types.

    >>> whole(503), whole(True), whole("503")
    (503, None, None)
    """
    return int(value) if is_a(value, int) and not is_a(value, bool) else None


def text(value: object) -> str | None:
    """Return a str of any class, or the bytes of a header, as a plain str; None for other types."""
    if is_a(value, bytes):
        return value.decode("latin-1")
    return str.__str__(value) if is_a(value, str) else None


def status_code(value: object) -> int | None:
    """Return an HTTP status: an int from 100 to 599, or three ASCII digits; None for anything else.

    >>> status_code(503), status_code("503"), status_code(5), status_code("OK")
    (503, 503, None, None)
    """
    if is_a(value, str) and len(value) == 3 and value.isascii() and value.isdigit():
        value = int(value)
    return int(value) if is_a(value, int) and 100 <= value <= 599 else None


# The HTTP response behind an exception or result. A status counts only where it can be nothing else; ``code``
# alone is an SMTP, AMQP or exit code as often.


def result_response(result: object) -> tuple[int | None, Any]:
    """Return status and headers of a result; no status unless it looks like a response.

    A job, a process or a database row may have a ``status`` too, so that name counts only beside headers.
    """
    if is_a(result, TUPLE):  # (status, headers, body)
        if len(result) != 3 or whole(result[0]) is None or not looks_like_headers(result[1]):
            return None, None
        return status_code(result[0]), result[1]
    status, headers = _response(result)
    if headers is None and status_code(get(result, "status_code")) is None:
        return None, None
    return status, None if status is None else headers


def looks_like_headers(thing: object) -> bool:
    """Return whether a thing is a mapping or a list of pairs, so that headers may be looked up in it."""
    if is_a(thing, LIST):
        return not thing or (is_a(thing[0], TUPLE) and len(thing[0]) == 2)
    return get(type(thing), "items") is not None


def _response(response: Any) -> tuple[int | None, Any]:
    """Return status and headers of a response object, or of a dict that describes a response.

    Dicts are those of botocore, of httplib2 (whose response is the mapping of its headers), and of event
    sources that describe an answer as ``{"statusCode": 503, "headers": {...}}``.
    """
    metadata = item(response, "ResponseMetadata")
    if is_a(metadata, DICT):  # botocore
        return status_code(item(metadata, "HTTPStatusCode")), item(metadata, "HTTPHeaders") or {}
    status, headers = _first_status(response, t.RESPONSE_STATUSES), get(response, "headers")
    if not is_a(response, DICT):
        return status, headers
    if status is not None:  # httplib2: the response is the mapping of its headers
        return status, response if headers is None else headers
    statuses = [status_code(item(response, key)) for key in t.RESPONSE_KEYS]
    return next((found for found in statuses if found is not None), None), item(response, "headers")


def _first_status(thing: object, names: tuple[str, ...]) -> int | None:
    """Return the first of these attributes that is an HTTP status."""
    for name in names:
        status = status_code(get(thing, name))
        if status is not None:
            return status
    return None


def error_response(exc: BaseException) -> tuple[int | None, Any]:
    """Return status and headers of the response that an exception reports; each None where there is none.

    The response may be an attribute (``response``, ``resp``, ...), or the exception may have status and
    headers itself. A response with a status counts before the exception's own.
    """
    try:
        # The usual shape comes first, for speed.
        response: Any = getattr(exc, "response", None)
        status = None if response is None else getattr(response, "status_code", None)
        if type(status) is int and 100 <= status <= 599:
            headers = getattr(response, "headers", None)
            if headers is not None:
                return status, headers
    except Exception:  # noqa: BLE001, S110 - as in get
        pass
    answered, headers = False, None
    for name in () if has_none_of(exc, t.RESPONSE_ATTRIBUTES) else t.RESPONSE_ATTRIBUTES:
        response = get(exc, name)
        if response is None:
            continue
        answered = True
        status, found = _response(response)
        headers = found if headers is None else headers
        if status is not None:
            return status, _own_headers(exc) if headers is None else headers if found is None else found
    own = _own_headers(exc)
    return _own_response(exc, answered, headers if own is None else own)


def _own_headers(exc: BaseException) -> Any:
    """Return the headers that an exception itself has."""
    return next((found for name in t.HEADER_ATTRIBUTES if (found := get(exc, name)) is not None), None)


def _own_response(exc: BaseException, answered: bool, headers: Any) -> tuple[int | None, Any]:
    """Return status and headers that the exception itself has, where no response has a status.

    ``answered`` says that there was a response, ``headers`` are those that were found on one.
    """
    if headers is None and not answered and has_none_of(exc, t.OWN_RESPONSE):
        return None, None
    meta = get(exc, "meta")
    if headers is None and meta is not None:
        headers = get(meta, "headers")
    status = _first_status(exc, t.ERROR_STATUSES)
    beside = answered or headers is not None
    if not beside and status in _UNASSIGNED and _first_status(exc, _SURELY_HTTP) is None:
        return None, None  # of a job or a device: nothing else here is HTTP
    if status is None and meta is not None:
        status = status_code(get(meta, "status"))
    if status is None:
        status = _code(exc, beside)
    return status, headers


def _code(exc: BaseException, beside: bool) -> int | None:
    """Return ``.code`` where it can only be a status: an ``HTTPStatus``, or beside a response or headers."""
    if whole(get(exc, "status")) is not None:
        return None  # aiohttp's other name for the same thing, which warns when it is read
    code = get(exc, "code")
    return status_code(code) if beside or type(code).__name__ == "HTTPStatus" else None


def delay(exc: BaseException, now: float | None) -> float | None:
    """Return the seconds that a library has read from the response and keeps in an attribute."""
    for name in () if has_none_of(exc, t.DELAY_ATTRIBUTES) else t.DELAY_ATTRIBUTES:
        value = get(exc, name)
        if type(value).__name__ == "timedelta":
            value = call(value, "total_seconds")
        found = None if value is None else parse_retry_after(value, now=now)
        if found is not None:
            return found
    return None


# Texts and inner errors of an exception


def texts(exc: BaseException) -> list[str]:
    """Return the texts that an exception was made with; ``str(exc)`` might run anything."""
    return [said[:_LONGEST_TEXT] for arg in exc.args[:_MOST_ARGS] if (said := text(arg)) is not None]


def message(exc: BaseException) -> str:
    """Return the first text that an exception was made with."""
    return next(iter(texts(exc)), "")


def leaves(group: BaseException) -> list[BaseException]:
    """Return the errors in a group, at any depth, that are not groups; of another error, the error itself."""
    found: list[BaseException] = []
    seen: set[int] = set()
    stack = [group]
    while stack:
        member = stack.pop()
        if not is_a(member, GROUP):
            found.append(member)
        elif id(member) not in seen:  # one group may be in many: each is opened once
            seen.add(id(member))
            stack.extend(reversed(member.exceptions))
    return found


def inner(exc: BaseException, everything: bool) -> list[Exception]:
    """Return the errors that an error wraps, best evidence first.

    Beside those that were `handed` to it, a ``__context__``, even if suppressed, counts for ``everything``,
    which is for classes known to be wrappers; for other classes only if their text quotes it: a bug in an
    ``except`` block has a ``__context__`` too.
    """
    found, context = handed(exc, everything), exc.__context__
    if is_a(context, Exception) and (everything or _quotes(exc, context)):
        found.append(context)
    return found


def handed(exc: BaseException, everything: bool) -> list[Exception]:
    """Return the ``__cause__`` of an error, and the errors that it was given as attributes or arguments.

    Interrupts are left out: there is a CancelledError under every timeout of asyncio.
    """
    found: list[object] = [exc.__cause__]
    if everything or not _HANDED_OVER.isdisjoint(exc.__dict__):
        if not has_none_of(exc, t.INNER_ATTRIBUTES):
            found += [get(exc, name) for name in t.INNER_ATTRIBUTES]
        errors = get(exc, "errors")
        found += items(errors) if is_a(errors, DICT) else []
        found.append(item(get(exc, "kwargs"), "error"))
    found += exc.args[:_MOST_ARGS]
    return [error for error in found if is_a(error, Exception)]


def around(exc: BaseException) -> list[BaseException]:
    """Return the nearest errors that were handled when an error was raised, whether suppressed or not."""
    found = [exc]
    for error in found:
        for before in (error.__cause__, error.__context__):
            if before is not None and len(found) <= _MOST_AROUND and id(before) not in map(id, found):
                found.append(before)
    return found[1:]


def _quotes(exc: BaseException, context: BaseException) -> bool:
    """Return whether the text of an exception contains that of another, as ``f"cannot fetch: {error}"``."""
    said = "\n".join(texts(exc))
    for _ in range(_MOST_ARGS):
        quote = message(context)
        if quote:
            return len(quote) >= _SHORTEST_QUOTE and quote in said
        held = next((arg for arg in context.args[:_MOST_ARGS] if is_a(arg, Exception)), None)
        if held is None:
            break
        context = held  # errors of requests are made with those of urllib3, and have their text
    return False
