"""A middleware for aiohttp that retries every request of a session.

>>> import aiohttp
>>> async def main():
...     async with aiohttp.ClientSession(middlewares=(retry_middleware(attempts=6, deadline=20.0),)):
...         pass
"""

from __future__ import annotations

from contextvars import ContextVar

import aiohttp
from aiohttp.payload import AsyncIterablePayload, IOBasePayload

from .._base.loops import time_limit
from .._engine.note import history
from ..context import POLICY, here, shorter
from ..errors import BulkheadFull as _BulkheadFull
from ..errors import CircuitOpen as _CircuitOpen
from ..errors import DeadlineExceeded as _DeadlineExceeded
from ..errors import RedoubleError
from ..errors import ResultRejected as _ResultRejected
from ._http import DRAIN_TIME, NO_REWIND, USED_UP, ClientPolicy, HttpClient, as_type, is_short
from ._override import override

__all__ = ["override", "retry_middleware"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable
    from typing import Any

    from typing_extensions import Unpack

    from .._policy.typed import PolicyFields
    from ..policy import Policy


class DeadlineExceeded(_DeadlineExceeded, aiohttp.ServerTimeoutError):
    """`redouble.DeadlineExceeded` that callers of aiohttp catch as ``aiohttp.ServerTimeoutError``."""


class ResultRejected(_ResultRejected, aiohttp.ClientConnectionError):
    """`redouble.ResultRejected` that callers of aiohttp catch as ``aiohttp.ClientConnectionError``."""


class CircuitOpen(_CircuitOpen, aiohttp.ClientConnectionError):
    """`redouble.CircuitOpen` that callers of aiohttp catch as ``aiohttp.ClientConnectionError``."""


class BulkheadFull(_BulkheadFull, aiohttp.ClientConnectionError):
    """`redouble.BulkheadFull` that callers of aiohttp catch as ``aiohttp.ClientConnectionError``."""


# The errors after which a session sends an idempotent request again by itself, through its middlewares.
_SENT_AGAIN = (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError)
# The timer of the request that was given up on last, and its error: a session has one timer for each request.
_given_up: ContextVar[tuple[object, Exception] | None] = ContextVar("redouble given up", default=None)


class AttemptTimeout(aiohttp.ServerTimeoutError):
    """An attempt took longer than the ``timeout`` of the policy, or than an enclosing call has left."""


class _Aiohttp(HttpClient):
    """Requests and responses of aiohttp."""

    library = "aiohttp"
    errors = {  # noqa: RUF012 - of the class, and never changed
        _DeadlineExceeded: DeadlineExceeded,
        _ResultRejected: ResultRejected,
        _CircuitOpen: CircuitOpen,
        _BulkheadFull: BulkheadFull,
        TimeoutError: AttemptTimeout,
    }

    def method_of(self, *args: Any) -> str:
        method: str = args[0].method
        return method

    def host_of(self, *args: Any) -> str | None:
        host: str | None = args[0].url.host
        return host

    def status_of(self, response: Any) -> int:
        status: int = response.status
        return status

    def unrepeatable(self, *args: Any) -> str:
        request = args[0]
        body = request.body
        if not body:
            return ""
        # Before aiohttp 3.14 an iterator that was read in part does not count as consumed.
        if body.consumed or (isinstance(body, AsyncIterablePayload) and request.response is not None):
            return NO_REWIND if isinstance(body, IOBasePayload) else USED_UP
        return ""

    def rewind(self, *args: Any) -> None:
        pass  # aiohttp does, when it sends a body again

    def set_header(self, name: str, value: str, *args: Any, keep: bool = False) -> None:
        headers = args[0].headers
        if not (keep and name in headers):
            headers[name] = value

    def limit(self, seconds: float, args: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return the keywords with the seconds after which to cancel the attempt: it shows no timeouts."""
        attempt: Any = here()
        policy: Any = attempt[POLICY]
        if isinstance(policy, ClientPolicy) and policy._client is self:
            return kwargs  # the engine cancels an attempt of ours
        return {**kwargs, "seconds": seconds}

    async def discard(self, result: Any, left: float | None) -> None:
        try:
            if is_short(result.headers):
                with time_limit(shorter(DRAIN_TIME, left)):
                    async for _ in result.content.iter_any():
                        pass
        finally:
            result.release()

    def is_usable(self, response: Any) -> bool:
        return response.content.exception() is None

    def mark(self, response: Any, error: RedoubleError, *args: Any) -> None:
        super().mark(response, error, *args)
        own = response.raise_for_status

        def raise_for_status() -> None:
            try:
                own()
            except aiohttp.ClientResponseError as raised:
                raised.__notes__ = response.__notes__
                raise

        # The error of aiohttp does not have the response.
        response.raise_for_status = raise_for_status

    def complete(self, error: RedoubleError, *args: Any) -> None:
        pass

    def raise_status(self, response: Any, error: RedoubleError, *args: Any) -> None:
        raised = aiohttp.ClientResponseError(
            response.request_info,
            response.history,
            status=response.status,
            message=response.reason or "",
            headers=response.headers,
        )
        raised.__notes__ = response.__notes__
        raise raised


def _send(
    request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType, seconds: float | None = None
) -> Awaitable[aiohttp.ClientResponse]:
    return handler(request) if seconds is None else _send_in_time(request, handler, seconds)


async def _send_in_time(
    request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType, seconds: float
) -> aiohttp.ClientResponse:
    with time_limit(seconds) as limit:
        return await handler(request)
    raise AttemptTimeout(f"the attempt was cut off after {seconds:.3g} s") from limit.cut_off()


def retry_middleware(
    policy: Policy | None = None,
    /,
    *,
    raise_status: bool = False,
    propagate_to: Iterable[str] = (),
    **fields: Unpack[PolicyFields],
) -> aiohttp.ClientMiddlewareType:
    """Return a middleware that retries the requests of an ``aiohttp.ClientSession``.

    Takes a `Policy`, or its fields as keywords. When no attempt is left the last response is returned;
    ``raise_status=True`` raises ``aiohttp.ClientResponseError`` instead. ``propagate_to`` are the hosts, or
    ``["*"]``, that receive ``X-Retry-Attempt`` and ``X-Request-Timeout-Ms``. A `Registry` as a guard has
    one guard for each host. `override` sets another policy for the requests of a block.
    """
    client = _Aiohttp(
        "retry_middleware",
        policy,
        fields,
        send=_send,
        awaits=True,
        raise_status=raise_status,
        propagate_to=propagate_to,
    )

    async def retrying(
        request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        before = _given_up.get()
        if before is not None:
            _given_up.set(None)
            if before[0] is _timer(request):
                raise before[1]
        try:
            response: aiohttp.ClientResponse = await client.sender()(request, handler)
            return response
        except (RedoubleError, TimeoutError) as error:
            given_up: RedoubleError | TimeoutError = error
        except _SENT_AGAIN as error:
            tried = history(error)
            if tried is not None and tried.attempts > 1:
                # Without its traceback, whose frames must not live on in the context.
                _given_up.set((_timer(request), as_type(type(error), error).with_traceback(None)))
            raise
        last: aiohttp.ClientResponse = await client.conclude_async(given_up, request)
        return last

    return retrying


def _timer(request: Any) -> object:
    """Return the timer of a request. A session that sends a request again makes a new one with that timer."""
    return getattr(request, "_timer", request)
