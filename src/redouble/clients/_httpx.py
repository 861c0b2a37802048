"""The part that httpx and httpx2 share: the second has the interface of the first."""

from __future__ import annotations

from operator import attrgetter
from typing import Generic, TypeVar

import anyio

from .._base.log_once import shielded, warn_once
from .._engine.note import history
from ..context import shorter
from ._http import DRAIN_TIME, NO_REWIND, HttpClient, is_short, position_of, shielded_async, used_up

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, ClassVar, Self

    from typing_extensions import Unpack

    from .._policy.typed import PolicyFields
    from ..errors import RedoubleError
    from ..policy import Policy
    from ._http import Kwargs

Inner = TypeVar("Inner")
Request = TypeVar("Request")
Response = TypeVar("Response")

# The number of a retry, from SDKs that retry by themselves: openai, anthropic and others, also with the first
# request; supabase (PostgREST) and others, with retries only.
_SDK_RETRIES, _RETRY_COUNT = "x-stainless-retry-count", "x-retry-count"
_SDK_RETRIES_TOO = "the SDK above this transport retries by itself; make its client with max_retries=0"
_RETRIES_ABOVE = (
    "the SDK above this transport retries by itself, and sends X-Retry-Count; switch its retries off, for "
    "supabase with postgrest_client_retry=False"
)
_NOT_CLEANED = "unused connections of the pool of httpx could not be removed"
_TIMEOUTS = ("connect", "read", "write", "pool")


class Httpx(HttpClient):
    """Requests and responses of httpx. What a call has to remember of a request is in its extensions."""

    #: The module: httpx or httpx2.
    api: Any
    #: The class of the transport that is made where none is given, and the method that sends.
    makes, sends, other = "HTTPTransport", "handle_request", "AsyncRetryTransport"
    status_of = attrgetter("status_code")

    def begin(self, request: Any) -> Any:
        """Remember where a file begins that is the body of a request. Return the request's own policy."""
        extensions = request.extensions
        if type(request.stream) is not self.api.ByteStream and "redouble.position" not in extensions:
            position = position_of(getattr(request.stream, "_stream", None))
            if position is not None:
                extensions["redouble.position"] = position
        return extensions.get("retry")

    def bare(self, *args: Any, **kwargs: Any) -> Any:
        return self.inner.handle_request(args[0])  # looked up here: tests replace the method of the class

    def unrepeatable(self, *args: Any) -> str:
        """Return why a request is sent once: an SDK has sent it before, or its body cannot be read again.

        A stream that was not read yet can be sent. One of bytes always can.
        """
        for name, why in ((_SDK_RETRIES, _SDK_RETRIES_TOO), (_RETRY_COUNT, _RETRIES_ABOVE)):
            if args[0].headers.get(name, "0") != "0":
                warn_once(self, f"requests multiply: {why}")
                return why
        stream = args[0].stream
        if isinstance(stream, self.api.ByteStream) or not getattr(stream, "_is_stream_consumed", False):
            return ""
        body = getattr(stream, "_stream", None)
        if hasattr(body, "read"):
            return "" if "redouble.position" in args[0].extensions else NO_REWIND
        return used_up(body)

    def rewind(self, *args: Any) -> None:
        """Set a file back to where it was when the client passed the request on.

        A transport that has read the request, as `httpx.MockTransport` does, has left bytes in its place.
        """
        request = args[0]
        position = request.extensions.get("redouble.position")
        if position is not None and type(request.stream) is not self.api.ByteStream:
            request.stream._stream.seek(position)

    def limit(self, seconds: float, args: Any, kwargs: Kwargs) -> Kwargs:
        """Limit connect, read, write and pool of the request; leave them alone if they are short enough.

        httpx reads them from the extensions of the request.
        """
        extensions: dict[str, Any] = args[0].extensions
        own: Any = extensions.get("redouble.timeout")
        if own is None:
            own = extensions.get("timeout") or {}
            given = own.values()
            if len(given) == len(_TIMEOUTS) and None not in given and max(given) <= seconds:
                return kwargs
            # Each attempt is limited from these: a request may be sent again later, with more time.
            extensions["redouble.timeout"] = own
        extensions["timeout"] = {name: shorter(own.get(name), seconds) for name in _TIMEOUTS}
        return kwargs

    def drain(self, response: Any) -> None:
        """Read the body: its connection goes back to the pool."""
        response.read()

    def clean_up(self, error: BaseException) -> Any:
        """Take connections out of the pool that are neither idle nor closed, and that no request uses.

        A request that is cancelled or timed out as it gets a connection leaves one behind in httpcore 1: the
        pool has one place less from then on. httpcore2 removes them by itself.
        """
        interrupted = not isinstance(error, Exception) or isinstance(error, self.api.TimeoutException)
        pool: Any = getattr(self.inner, "_pool", None)
        if not interrupted or type(pool).__module__ != "httpcore":
            return None
        # Shielded, since another version may have no such attributes.
        return shielded(self, _NOT_CLEANED, self._remove_unused, pool)

    def _remove_unused(self, pool: Any) -> Any:
        """Remove the unused connections from a pool, and close them; return a coroutine if that awaits."""
        with pool._optional_thread_lock:
            used = {request.connection for request in pool._requests}
            left = [
                each
                for each in pool._connections
                if each not in used and not each.is_idle() and not each.is_closed()
            ]
            if not left:
                return None
            for connection in left:
                pool._connections.remove(connection)
            left += pool._assign_requests_to_connections()  # to requests that wait for a place
        return pool._close_connections(left)

    def is_usable(self, response: Any) -> bool:
        """Return whether the response is open, or closed with its body in memory."""
        return not response.is_closed or hasattr(response, "_content")

    def mark(self, response: Any, error: RedoubleError, *args: Any) -> None:
        """Put the note on the response and the history in its extensions; tell an SDK not to retry it."""
        super().mark(response, error, *args)
        response.extensions["redouble"] = history(response)
        if _SDK_RETRIES in args[0].headers:
            response.headers["x-should-retry"] = "false"  # which these SDKs obey

    def resend_key(self, error: BaseException | None, *args: Any) -> object:
        """Return method and URL of a request of an SDK that counts its retries in a header."""
        count = args[0].headers.get(_SDK_RETRIES)
        if count is None or (error is None and count == "0"):
            return None
        if error is None:
            warn_once(self, f"requests are refused: {_SDK_RETRIES_TOO}")
        return args[0].method, str(args[0].url)

    def complete(self, error: Any, *args: Any) -> None:
        """Set the request, which errors of httpx have."""
        error._request = args[0]

    def status_error(self, response: Any, *args: Any) -> Any:
        """Return an ``HTTPStatusError`` with request and response."""
        request = response.request = args[0]
        message = f"{self.reason(response)} for url {request.url}"
        return self.api.HTTPStatusError(message, request=request, response=response)


class AsyncHttpx(Httpx):
    """The same for an async client."""

    awaits = True
    makes, sends, other = "AsyncHTTPTransport", "handle_async_request", "RetryTransport"

    def bare(self, *args: Any, **kwargs: Any) -> Any:
        return self.inner.handle_async_request(args[0])

    def clean_up(self, error: BaseException) -> Any:
        """As for a client that is not async; closing the connections is to be awaited."""
        closing = super().clean_up(error)
        return None if closing is None else shielded_async(self, _NOT_CLEANED, closing)

    async def discard(self, result: Any, left: float | None) -> Any:
        """Read a short body for at most `DRAIN_TIME`, and close the response."""
        try:
            if is_short(result.headers):
                # A scope of anyio, from which httpx shields its cleanup: cancelling the task may leave a
                # connection behind that its pool takes for a busy one.
                with anyio.move_on_after(shorter(DRAIN_TIME, left)):
                    await result.aread()
        finally:
            await result.aclose()


class Transport(Generic[Inner]):
    """What both transports have in common: the policy, and the transport that sends."""

    _kind: ClassVar[type[Httpx]]

    def __init__(
        self,
        policy: Policy | None = None,
        /,
        *,
        transport: Inner | None = None,
        raise_status: bool = False,
        propagate_to: Iterable[str] = (),
        **fields: Unpack[PolicyFields],
    ) -> None:
        kind, caller = self._kind, type(self).__name__
        self._transport: Any = getattr(kind.api, kind.makes)() if transport is None else transport
        if not hasattr(self._transport, kind.sends):
            raise TypeError(
                f"{caller}() takes a transport that has {kind.sends}(), got {transport!r}; use {kind.other}"
            )
        self._client = kind(caller, policy, fields, self._transport, raise_status, propagate_to)
        if getattr(getattr(self._transport, "_pool", None), "_retries", 0):
            warn_once(self, "the transport inside this one retries by itself: make it with retries=0")

    @property
    def policy(self) -> Policy:
        """The policy of requests that have none of their own."""
        return self._client.policy


class SyncTransport(Transport[Inner], Generic[Inner, Request, Response]):
    """The methods of a transport of a ``Client``."""

    def handle_request(self, request: Request) -> Response:
        """Send a request, and again after a transient failure."""
        client = self._client
        response: Response = client.run(client.begin(request), request)
        return response

    def close(self) -> None:
        """Close the transport inside."""
        self._transport.close()

    def __enter__(self) -> Self:
        self._transport.__enter__()
        return self

    def __exit__(self, *error: Any, **named: Any) -> None:
        self._transport.__exit__(*error, **named)


class AsyncTransport(Transport[Inner], Generic[Inner, Request, Response]):
    """The methods of a transport of an ``AsyncClient``."""

    async def handle_async_request(self, request: Request) -> Response:
        """Send a request, and again after a transient failure."""
        client = self._client
        response: Response = await client.run_async(client.begin(request), request)
        return response

    async def aclose(self) -> None:
        """Close the transport inside."""
        await self._transport.aclose()

    async def __aenter__(self) -> Self:
        await self._transport.__aenter__()
        return self

    async def __aexit__(self, *error: Any, **named: Any) -> None:
        await self._transport.__aexit__(*error, **named)
