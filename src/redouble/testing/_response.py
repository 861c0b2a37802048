"""Answers of an HTTP server, and the errors they are raised as, without an HTTP library.

They have the shape that ``redouble.classify`` looks for, which is that of most clients.
"""

from __future__ import annotations

from redouble._numbers import whole
from redouble._record import Record, assign

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


class Request(Record):
    """What was asked."""

    __slots__ = ("method", "url")
    method: str
    url: str

    def __init__(self, method: str, url: str) -> None:
        assign(self, "method", method)
        assign(self, "url", url)


class Response(Record):
    """What was answered. Made by `response`."""

    __slots__ = ("status_code", "headers", "body", "request")  # noqa: RUF023 - in the order in which it reads
    status_code: int
    headers: Mapping[str, str]
    body: bytes
    request: Request

    def __init__(self, status_code: int, headers: Mapping[str, str], body: bytes, request: Request) -> None:
        assign(self, "status_code", status_code)
        assign(self, "headers", headers)
        assign(self, "body", body)
        assign(self, "request", request)

    def error(self) -> HTTPError:
        """A new exception that reports this answer, as those of HTTP libraries do."""
        return HTTPError(self)

    def raise_for_status(self) -> None:
        """Raises `error` if the status is one of an error."""
        if self.status_code >= 400:
            raise self.error()


class HTTPError(Exception):
    """The error of an HTTP library that is not there, with the ``response`` and the ``request``."""

    def __init__(self, response: Response) -> None:
        super().__init__(response)
        self.response = response
        self.request = response.request

    def __str__(self) -> str:
        return f"{self.response.status_code} for {self.request.method} {self.request.url}"


def response(
    status: int,
    headers: Mapping[str, str] | None = None,
    body: bytes = b"",
    *,
    method: str = "GET",
    url: str = "https://test.example/",
) -> Response:
    """An answer of an HTTP server, to be returned by a script; ``.error()`` is the exception to be raised.

    >>> from redouble.classify import verdict
    >>> verdict(response(503, {"Retry-After": "2"}).error()).retry_after
    2.0
    >>> print(response(500, method="POST", url="https://api.example/orders").error())
    500 for POST https://api.example/orders
    """
    code = whole("status", status, at_least=100)
    if code > 599:
        raise ValueError(f"status must be at most 599, got {status!r}")
    return Response(code, dict(headers or {}), body, Request(method, url))
