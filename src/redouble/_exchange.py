"""The HTTP response behind a failure: where status and headers sit, found by shape.

By the rules of ``_shapes``: nothing is called, tested for truth or iterated, and bodies are not read. A
status counts only where it can be nothing else; ``code`` alone is an SMTP, AMQP or exit code as often.
"""

from __future__ import annotations

import sys

from ._catalogue import (
    ERROR_STATUSES,
    HEADER_ATTRIBUTES,
    OWN_EXCHANGE,
    RESPONSE_ATTRIBUTES,
    RESPONSE_KEYS,
    RESPONSE_STATUSES,
    STATUS_CAUSES,
)
from ._shapes import DICT, LIST, TUPLE, entry, lacks, probe, real, status_code, whole

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Server errors that no list of statuses has; and the names under which a number can be nothing but a status.
_NOBODYS = frozenset(range(500, 600)).difference(STATUS_CAUSES)
_SAID_OF_HTTP = tuple([name for name in ERROR_STATUSES if name not in ("status", "errcode")])


def result_exchange(result: object) -> tuple[int | None, Any]:
    """Status and headers of what a call returned; no status unless it looks like a response.

    A job, a process or a row may well have a status, so that name counts only beside headers.
    """
    if real(result, TUPLE):
        return _triple(tuple(TUPLE.__iter__(result)))
    status, headers = _exchange(result)
    if status is None:
        return None, None
    if headers is None and status_code(probe(result, "status_code")) is None:
        return None, None
    return status, headers


def _triple(parts: tuple[object, ...]) -> tuple[int | None, Any]:
    """(status, headers, body)"""
    if len(parts) != 3 or whole(parts[0]) is None or not looks_like_headers(parts[1]):
        return None, None
    return status_code(parts[0]), parts[1]


def looks_like_headers(thing: object) -> bool:
    """Whether headers may be looked up in a thing: a mapping, or a list of pairs."""
    if real(thing, LIST):
        first = LIST.__getitem__(thing, 0) if LIST.__len__(thing) else ("", "")
        return real(first, TUPLE) and TUPLE.__len__(first) == 2
    return real(thing, DICT) or probe(type(thing), "items") is not None


def _exchange(response: object) -> tuple[int | None, Any]:
    if real(response, DICT):
        return _mapped_exchange(response)
    status = _first_status(response, RESPONSE_STATUSES)
    return status, probe(response, "headers")


def _mapped_exchange(response: dict[Any, Any]) -> tuple[int | None, Any]:
    metadata = entry(response, "ResponseMetadata")
    if real(metadata, DICT):  # botocore
        headers = entry(metadata, "HTTPHeaders")
        return status_code(entry(metadata, "HTTPStatusCode")), {} if headers is None else headers
    status = _first_status(response, RESPONSE_STATUSES)
    if status is not None:  # httplib2: the response is the mapping of its headers
        headers = probe(response, "headers")
        return status, response if headers is None else headers
    keyed = (status_code(entry(response, key)) for key in RESPONSE_KEYS)
    return next((status for status in keyed if status is not None), None), entry(response, "headers")


def _first_status(thing: object, names: tuple[str, ...]) -> int | None:
    for name in names:
        value = probe(thing, name)
        status = None if value is None else status_code(value)
        if status is not None:
            return status
    return None


def error_exchange(exc: BaseException) -> tuple[int | None, Any]:
    """Status and headers of the answer that an exception reports; each None where there is none."""
    try:
        # What most clients do comes first, without the ado that the others need.
        response = getattr(exc, "response", None)
        status = None if response is None else getattr(response, "status_code", None)
        if type(status) is int and 100 <= status <= 599:
            headers = getattr(response, "headers", None)
            if headers is not None:
                return status, headers
    except Exception:  # noqa: BLE001, S110 - as in probe
        pass
    return _searched_exchange(exc)


def _searched_exchange(exc: BaseException) -> tuple[int | None, Any]:
    answered, headers = False, None
    for name in () if lacks(exc, RESPONSE_ATTRIBUTES) else RESPONSE_ATTRIBUTES:
        response = probe(exc, name)
        if response is None:
            continue
        answered = True
        status, found = _exchange(response)
        headers = found if headers is None else headers
        if status is not None:
            return status, _own_headers(exc) if headers is None else headers if found is None else found
    own = _own_headers(exc)
    return _own_exchange(exc, answered, headers if own is None else own)


def _own_headers(exc: BaseException) -> Any:
    return next((found for name in HEADER_ATTRIBUTES if (found := probe(exc, name)) is not None), None)


def _own_exchange(exc: BaseException, answered: bool, headers: Any) -> tuple[int | None, Any]:
    """The same where no response has a status: on the exception itself."""
    if headers is None and not answered and lacks(exc, OWN_EXCHANGE):
        return None, None
    meta = probe(exc, "meta")
    if headers is None and meta is not None:
        headers = probe(meta, "headers")
    status = _first_status(exc, ERROR_STATUSES)
    if headers is None and not answered and status in _NOBODYS and _first_status(exc, _SAID_OF_HTTP) is None:
        return None, None  # a job's or a device's own: nothing else here is HTTP's
    if status is None and meta is not None:
        status = status_code(probe(meta, "status"))
    if status is None:
        status = _code(exc, beside=answered or headers is not None)
    return status, headers


def _code(exc: BaseException, beside: bool) -> int | None:
    """``.code``, where it can only be a status: of the type that says so, or beside a response or headers."""
    if whole(probe(exc, "status")) is not None:
        return None  # aiohttp's other name for the same thing, which warns when it is read
    code = probe(exc, "code")
    if beside or (code is not None and type(code) is probe(sys.modules.get("http"), "HTTPStatus")):
        return status_code(code)
    return None
