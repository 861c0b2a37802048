"""Transports for httpx that retry every request of a client.

>>> import httpx
>>> client = httpx.Client(transport=RetryTransport(attempts=6, deadline=20.0))
>>> client.close()
"""

from __future__ import annotations

import httpx

from .._base.loops import time_limit
from .._engine.note import history
from ..context import shorter
from ..errors import BulkheadFull as _BulkheadFull
from ..errors import CircuitOpen as _CircuitOpen
from ..errors import DeadlineExceeded as _DeadlineExceeded
from ..errors import RedoubleError
from ..errors import ResultRejected as _ResultRejected
from ._http import DRAIN_TIME, NO_REWIND, HttpClient, is_short, used_up
from ._override import override

__all__ = ["AsyncRetryTransport", "RetryTransport", "override"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable
    from types import TracebackType
    from typing import Any, Self

    from typing_extensions import Unpack

    from .._policy.typed import PolicyFields
    from ..policy import Policy

# The number of a retry, from SDKs that retry by themselves (openai, anthropic and others).
_SDK_RETRIES = "x-stainless-retry-count"
_SDK_RETRIES_TOO = "the SDK above this transport retries by itself; make its client with max_retries=0"


class DeadlineExceeded(_DeadlineExceeded, httpx.TimeoutException):
    """`redouble.DeadlineExceeded` that callers of httpx catch as ``httpx.TimeoutException``."""


class ResultRejected(_ResultRejected, httpx.TransportError):
    """`redouble.ResultRejected` that callers of httpx catch as ``httpx.TransportError``."""


class CircuitOpen(_CircuitOpen, httpx.ConnectError):
    """`redouble.CircuitOpen` that callers of httpx catch as ``httpx.ConnectError``."""


class BulkheadFull(_BulkheadFull, httpx.PoolTimeout):
    """`redouble.BulkheadFull` that callers of httpx catch as ``httpx.PoolTimeout``."""


class AttemptTimeout(TimeoutError, httpx.TimeoutException):  # noqa: N818 - says what happened
    """An attempt took longer than the ``timeout`` of the policy; a ``TimeoutError``, too."""


class _Httpx(HttpClient):
    """Requests and responses of httpx."""

    library = "httpx"
    errors = {  # noqa: RUF012 - of the class, and never changed
        _DeadlineExceeded: DeadlineExceeded,
        _ResultRejected: ResultRejected,
        _CircuitOpen: CircuitOpen,
        _BulkheadFull: BulkheadFull,
        TimeoutError: AttemptTimeout,
    }

    def of_request(self, request: httpx.Request) -> Any:
        """Return the function that sends this request: under its own policy, if it has one."""
        if type(request.stream) is not httpx.ByteStream:
            _remember_position(request)
        return self.sender(request.extensions.get("retry"))

    def method_of(self, *args: Any) -> str:
        method: str = args[0].method
        return method

    def host_of(self, *args: Any) -> str | None:
        host: str = args[0].url.host
        return host

    def status_of(self, response: Any) -> int:
        status: int = response.status_code
        return status

    def unrepeatable(self, *args: Any) -> str:
        if args[0].headers.get(_SDK_RETRIES, "0") != "0":
            self.say_once(self, f"requests multiply: {_SDK_RETRIES_TOO}")
            return _SDK_RETRIES_TOO
        stream = args[0].stream
        if isinstance(stream, httpx.ByteStream):
            return ""
        if not getattr(stream, "_is_stream_consumed", False):
            return ""
        body = getattr(stream, "_stream", None)
        if hasattr(body, "read"):
            return "" if "redouble.position" in args[0].extensions else NO_REWIND
        return used_up(body)

    def rewind(self, *args: Any) -> None:
        position = args[0].extensions.get("redouble.position")
        if position is not None:
            args[0].stream._stream.seek(position)

    def set_header(self, name: str, value: str, *args: Any, keep: bool = False) -> None:
        headers = args[0].headers
        if not (keep and name in headers):
            headers[name] = value

    def limit(self, seconds: float, args: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
        request: httpx.Request = args[0]
        own = request.extensions.get("redouble.timeout")
        if own is None:
            own = dict(request.extensions.get("timeout") or {})
            request.extensions["redouble.timeout"] = own
        request.extensions["timeout"] = {
            name: seconds if (given := own.get(name)) is None else min(given, seconds)
            for name in ("connect", "read", "write", "pool")
        }
        return kwargs

    def is_usable(self, response: Any) -> bool:
        return not response.is_closed or hasattr(response, "_content")

    def mark(self, response: Any, error: RedoubleError, *args: Any) -> None:
        super().mark(response, error, *args)
        response.extensions["redouble"] = history(response)
        if _SDK_RETRIES in args[0].headers:
            response.headers["x-should-retry"] = "false"  # which these SDKs obey

    def complete(self, error: RedoubleError, *args: Any) -> None:
        request: Any = error
        request._request = args[0]

    def raise_status(self, response: Any, error: RedoubleError, *args: Any) -> None:
        request = args[0]
        message = f"{self.reason(response)} for url {request.url}"
        raised = httpx.HTTPStatusError(message, request=request, response=response)
        response.request = request
        raised.__notes__ = response.__notes__
        raise raised


def _remember_position(request: httpx.Request) -> None:
    """Remember where a file begins that is the body of a request, to send it again from there."""
    body: Any = getattr(request.stream, "_stream", None)
    if hasattr(body, "seek") and "redouble.position" not in request.extensions:
        try:
            request.extensions["redouble.position"] = body.tell()
        except (OSError, ValueError):
            pass  # a pipe, or a file that is closed


def _check_sends(transport: object, method: str, caller: str, other: str) -> None:
    """Refuse a transport of the other kind of client."""
    if not hasattr(transport, method):
        raise TypeError(f"{caller}() takes a transport that has {method}(), got {transport!r}; use {other}")


class _SyncHttpx(_Httpx):
    def discard(self, result: Any, left: float | None) -> Any:
        try:
            if is_short(result.headers):
                result.read()
        finally:
            result.close()


class _AsyncHttpx(_Httpx):
    async def discard(self, result: Any, left: float | None) -> Any:
        try:
            if is_short(result.headers):
                with time_limit(shorter(DRAIN_TIME, left)):
                    await result.aread()
        finally:
            await result.aclose()


class RetryTransport(httpx.BaseTransport):
    """A transport that retries the requests of an ``httpx.Client``.

    Takes a `Policy`, or its fields as keywords. ``transport`` is the one that sends the requests:
    ``httpx.HTTPTransport()`` by default. When no attempt is left the last response is returned;
    ``raise_status=True`` raises ``httpx.HTTPStatusError`` instead. ``propagate_to`` are the hosts, or
    ``["*"]``, that receive ``X-Retry-Attempt`` and ``X-Request-Timeout-Ms``. A `Registry` as a guard has
    one guard for each host. A request may have its own policy: ``extensions={"retry": policy}``, or
    ``False`` to send it once.

    >>> transport = RetryTransport(transport=httpx.MockTransport(lambda request: httpx.Response(200)))
    >>> with httpx.Client(transport=transport) as client:
    ...     client.get("https://example.org")
    <Response [200 OK]>
    """

    def __init__(
        self,
        policy: Policy | None = None,
        /,
        *,
        transport: httpx.BaseTransport | None = None,
        raise_status: bool = False,
        propagate_to: Iterable[str] = (),
        **fields: Unpack[PolicyFields],
    ) -> None:
        self._transport = inner = httpx.HTTPTransport() if transport is None else transport
        _check_sends(inner, "handle_request", "RetryTransport", "AsyncRetryTransport")

        def send(request: httpx.Request) -> httpx.Response:
            return inner.handle_request(request)  # looked up here: tests replace the method of the class

        self._client = _SyncHttpx(
            type(self).__name__,
            policy,
            fields,
            send=send,
            raise_status=raise_status,
            propagate_to=propagate_to,
        )

    @property
    def policy(self) -> Policy:
        """The policy of requests that have none of their own."""
        return self._client.policy

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request, and again after a transient failure."""
        client = self._client
        try:
            response: httpx.Response = client.of_request(request)(request)
            return response
        except RedoubleError as error:
            given_up = error
        last: httpx.Response = client.conclude(given_up, request)
        return last

    def close(self) -> None:
        """Close the transport inside."""
        self._transport.close()

    def __enter__(self) -> Self:
        self._transport.__enter__()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        self._transport.__exit__(exc_type, exc_value, traceback)


class AsyncRetryTransport(httpx.AsyncBaseTransport):
    """A transport that retries the requests of an ``httpx.AsyncClient``, as `RetryTransport` does.

    ``timeout`` and ``deadline`` cancel an attempt, in addition to limiting the timeouts of httpx.
    """

    def __init__(
        self,
        policy: Policy | None = None,
        /,
        *,
        transport: httpx.AsyncBaseTransport | None = None,
        raise_status: bool = False,
        propagate_to: Iterable[str] = (),
        **fields: Unpack[PolicyFields],
    ) -> None:
        self._transport = inner = httpx.AsyncHTTPTransport() if transport is None else transport
        _check_sends(inner, "handle_async_request", "AsyncRetryTransport", "RetryTransport")

        def send(request: httpx.Request) -> Awaitable[httpx.Response]:
            return inner.handle_async_request(request)

        self._client = _AsyncHttpx(
            type(self).__name__,
            policy,
            fields,
            send=send,
            awaits=True,
            raise_status=raise_status,
            propagate_to=propagate_to,
        )

    @property
    def policy(self) -> Policy:
        """The policy of requests that have none of their own."""
        return self._client.policy

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request, and again after a transient failure."""
        client = self._client
        try:
            response: httpx.Response = await client.of_request(request)(request)
            return response
        except (RedoubleError, TimeoutError) as error:
            given_up: RedoubleError | TimeoutError = error
        last: httpx.Response = await client.conclude_async(given_up, request)
        return last

    async def aclose(self) -> None:
        """Close the transport inside."""
        await self._transport.aclose()

    async def __aenter__(self) -> Self:
        await self._transport.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        await self._transport.__aexit__(exc_type, exc_value, traceback)
