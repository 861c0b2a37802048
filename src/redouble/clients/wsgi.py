"""A middleware for WSGI servers: a request ends when the time that its client gave it is up.

>>> def app(environ, start_response): ...
>>> app = DeadlineMiddleware(app)
"""

from __future__ import annotations

from ..context import IDEMPOTENCY_KEY, REQUEST_TIMEOUT, RETRY_ATTEMPT, current, incoming, time_left
from ..errors import DeadlineExceeded

__all__ = ["DeadlineMiddleware"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

    Environ = dict[str, Any]
    StartResponse = Callable[..., Callable[[bytes], object]]
    App = Callable[[Environ, StartResponse], Iterable[bytes]]

_BODY = b"The time that the client gave this request is up.\n"
_NAMES = {
    "HTTP_" + name.upper().replace("-", "_"): name
    for name in (IDEMPOTENCY_KEY, RETRY_ATTEMPT, REQUEST_TIMEOUT)
}


class DeadlineMiddleware:
    """Take up the headers of `outgoing_headers` for each request, and answer 504 when its time is up.

    The client receives 504 if no time is left when the request arrives, or if the app raises
    `DeadlineExceeded` before its response begins, while the request has a deadline. The deadline holds until
    the server closes the response. A thread cannot be cut off: calls that redouble retries inside see the
    deadline, other code does not.
    """

    def __init__(self, app: App) -> None:
        self._app = app

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """Handle one request of the server."""
        request = _Request(environ, start_response)
        body: Iterable[bytes] = ()
        try:
            if request.left == 0.0:
                body = request.timed_out()
            else:
                body = request.run(self._app, environ, request.start)
        except DeadlineExceeded:
            if not request.can_time_out():
                raise
            body = request.timed_out()
        finally:
            # Nothing of the app runs while the server sends these, and it sends them faster as they are.
            done = isinstance(body, (list, tuple, environ.get("wsgi.file_wrapper", list)))
            if done:
                request.end()
        return body if done else _Body(request, body)


class _Request:
    """One request: its context, and whether the response has begun."""

    def __init__(self, environ: Environ, start_response: StartResponse) -> None:
        self._start_response, self._head = start_response, environ.get("REQUEST_METHOD") == "HEAD"
        self._began = False
        self._ended = False
        outer = current.get()
        self._incoming = incoming({name: environ.get(key) for key, name in _NAMES.items()})
        self._incoming.__enter__()
        self._context = current.get()
        self.left = time_left(self._context) if self._context else None
        current.set(outer)

    def start(self, *args: Any) -> Any:
        """Begin the response, as the server does."""
        self._began = True
        return self._start_response(*args)

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a part of the app with the deadline in force."""
        token = current.set(self._context)
        try:
            return function(*args)
        finally:
            current.reset(token)

    def can_time_out(self) -> bool:
        """Return whether the response can still be 504."""
        return self.left is not None and not self._began

    def timed_out(self) -> list[bytes]:
        """Begin a response of 504 and return its body."""
        self._start_response(
            "504 Gateway Timeout",
            [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(_BODY)))],
        )
        return [b"" if self._head else _BODY]

    def end(self) -> None:
        """End the deadline of the request."""
        if not self._ended:
            self._ended = True
            self._incoming.__exit__(None, None, None)


class _Body:
    """The body of a response, made by the app with the deadline in force."""

    def __init__(self, request: _Request, body: Iterable[bytes]) -> None:
        self._request, self._body = request, body
        self._parts: Iterator[bytes] | None = None

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        """Return the next part, or the body of a 504 if the time was up before the response began."""
        try:
            if self._parts is None:
                self._parts = self._request.run(iter, self._body)
            part: bytes = self._request.run(next, self._parts)
            return part
        except DeadlineExceeded:
            if not self._request.can_time_out():
                raise
        self._parts = iter(())
        return self._request.timed_out()[0]

    def close(self) -> None:
        """Close the body of the app and end the deadline."""
        try:
            close = getattr(self._body, "close", None)
            if close is not None:
                self._request.run(close)
        finally:
            self._request.end()
