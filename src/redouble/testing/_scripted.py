"""`scripted`: functions that return or raise the outcomes of a script. `response`: HTTP responses for them.

Responses and their errors have the shape that ``redouble.classify`` looks for, which is that of most HTTP
clients; no HTTP library is needed.
"""

from __future__ import annotations

from itertools import count

from .._base.checks import seconds as checked_seconds
from .._base.checks import whole
from .._base.clock import fake_in_force, real_sleep
from .._base.loops import sleep as loop_sleep
from .._base.record import Record
from .._engine.drivers import timed_out
from ..context import here, running_in, time_limit_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import timedelta
    from typing import Any, Literal, overload

else:

    def overload(function):
        """Stand in for typing's, which is slow to import and does nothing at run time."""
        return function


# Scripts


class ScriptEnded(AssertionError):  # noqa: N818 - says what happened, not what is wrong
    """Raised when a scripted function is called more often than its script has outcomes."""


class After(Record):
    """An outcome that takes time. Made by `after`."""

    seconds: float
    outcome: Any


def after(seconds: float | timedelta, outcome: Any = None) -> After:
    """Return an outcome for a script: an attempt that takes ``seconds`` and then ends with ``outcome``.

    Where fake time is in force (`fake_time`, `no_waits`) it is advanced by that time, and an async attempt
    is cancelled where its ``timeout`` or the deadline would have done so. Otherwise it is a real sleep, in
    async code one of the event loop.

    >>> from redouble.testing import fake_time, scripted
    >>> with fake_time() as clock:
    ...     scripted(after(0.5, "page"))(), clock.now
    ('page', 0.5)
    """
    return After(checked_seconds("seconds", seconds), outcome)


# The default of ``then``: None is an outcome, too.
_NOTHING: Any = object()


class Scripted:
    """A function that returns or raises the outcomes of a script, in order. Made by `scripted`."""

    def __init__(self, outcomes: tuple[Any, ...], then: Any = _NOTHING) -> None:
        self._outcomes = outcomes
        self._then = then
        self._numbers = count(1)
        self.calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        """The arguments of each call so far."""

    def _next(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record a call and return its outcome. Raise `ScriptEnded` past the end of the script."""
        self.calls.append((args, kwargs))
        number = next(self._numbers)
        if number <= len(self._outcomes):
            return self._outcomes[number - 1]
        if self._then is _NOTHING:
            outcomes = len(self._outcomes)
            raise ScriptEnded(f"call {number} of a script of {outcomes}: add outcomes, or then=")
        return self._then

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        outcome = self._next(args, kwargs)
        while type(outcome) is After:  # isinstance would ask it for attributes, which may raise
            fake = fake_in_force()
            (real_sleep if fake is None else fake.advance)(outcome.seconds)
            outcome = outcome.outcome
        return _finish(outcome)


class AsyncScripted(Scripted):
    """As `Scripted`, for ``await``."""

    async def __call__(self, *args: Any, **kwargs: Any) -> Any:
        outcome = self._next(args, kwargs)
        while type(outcome) is After:
            await _async_wait(outcome.seconds)
            outcome = outcome.outcome
        return _finish(outcome)


def _finish(outcome: Any) -> Any:
    """Raise an outcome that is an exception or a type of exception; return any other."""
    found = outcome
    if isinstance(found, BaseException) or (isinstance(found, type) and issubclass(found, BaseException)):
        raise found
    return outcome


async def _async_wait(seconds: float) -> None:
    """Let time pass in an async attempt."""
    fake = fake_in_force()
    if fake is None:
        await loop_sleep(seconds)
        return
    # The time of the event loop does not pass meanwhile, so the loop cannot cancel the attempt.
    attempt = running_in(here())
    limit = None if attempt is None else time_limit_of(attempt)
    if attempt is None or limit is None or seconds < limit:
        fake.advance(seconds)
        return
    fake.advance(limit)
    raise timed_out(attempt, limit)


# ruff: noqa: F811 - it knows typing's overload only
@overload
def scripted(*outcomes: Any, then: Any = ..., asynchronous: Literal[True]) -> AsyncScripted: ...
@overload
def scripted(*outcomes: Any, then: Any = ..., asynchronous: bool = False) -> Scripted: ...
def scripted(*outcomes: Any, then: Any = _NOTHING, asynchronous: bool = False) -> Scripted:
    """Return a function that raises the exceptions and returns the values of a script, one a call.

    An outcome may be an exception, a type of exception, any other value, or `after` some time one of these.
    ``then`` is the outcome of every call past the end of the script; without it `ScriptEnded` is raised.
    ``.calls`` holds the arguments of each call. Threads may share the function.

    >>> fetch = scripted(TimeoutError("slow"), "page")
    >>> fetch("/")
    Traceback (most recent call last):
    TimeoutError: slow
    >>> fetch("/"), fetch.calls
    ('page', [(('/',), {}), (('/',), {})])
    >>> fetch = scripted("page", then=None)
    >>> fetch(), fetch(), fetch()
    ('page', None, None)
    """
    return AsyncScripted(outcomes, then) if asynchronous else Scripted(outcomes, then)


# HTTP responses


class Request(Record):
    """An HTTP request."""

    method: str
    url: str


class Response(Record):
    """An HTTP response. Made by `response`."""

    status_code: int
    headers: Mapping[str, str]
    body: bytes
    request: Request

    def error(self) -> HTTPError:
        """Return a new exception for this response, like those of HTTP libraries."""
        return HTTPError(self)

    def raise_for_status(self) -> None:
        """Raise `error` if the status is 400 or higher."""
        if self.status_code >= 400:
            raise self.error()


class HTTPError(Exception):
    """An exception like those of HTTP libraries, with ``response`` and ``request``."""

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
    """Return an HTTP response for a script; its ``.error()`` is the exception to raise.

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
