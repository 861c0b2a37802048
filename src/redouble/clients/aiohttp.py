"""A middleware for aiohttp that retries every request of a session.

>>> import aiohttp
>>> async def main():
...     async with aiohttp.ClientSession(middlewares=(retry_middleware(attempts=6, deadline=20.0),)):
...         pass
"""

from __future__ import annotations

from operator import attrgetter
from weakref import ref

import aiohttp
from aiohttp.payload import AsyncIterablePayload, IOBasePayload

from .. import errors
from .._base.loops import time_limit
from ..context import POLICY, here, shorter
from ._http import DRAIN_TIME, NO_REWIND, USED_UP, HttpClient, is_short
from ._override import override

__all__ = ["override", "retry_middleware"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from typing_extensions import Unpack

    from .._policy.typed import PolicyFields
    from ..policy import Policy
    from ._http import Kwargs


class DeadlineExceeded(errors.DeadlineExceeded, aiohttp.ServerTimeoutError):
    """`redouble.DeadlineExceeded` that callers of aiohttp catch as ``aiohttp.ServerTimeoutError``."""


class ResultRejected(errors.ResultRejected, aiohttp.ClientConnectionError):
    """`redouble.ResultRejected` that callers of aiohttp catch as ``aiohttp.ClientConnectionError``."""


class CircuitOpen(errors.CircuitOpen, aiohttp.ClientConnectionError):
    """`redouble.CircuitOpen` that callers of aiohttp catch as ``aiohttp.ClientConnectionError``."""


class BulkheadFull(errors.BulkheadFull, aiohttp.ClientConnectionError):
    """`redouble.BulkheadFull` that callers of aiohttp catch as ``aiohttp.ClientConnectionError``."""


# The errors after which a session sends an idempotent request again by itself, through its middlewares.
_SENT_AGAIN = (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError)


class AttemptTimeout(aiohttp.ServerTimeoutError):
    """An attempt took longer than the ``timeout`` of the policy, or than an enclosing call has left."""


class _Aiohttp(HttpClient):
    """Requests and responses of aiohttp: the arguments of a call are a request and the handler that sends it.

    A session sends the requests of a redirect, and its own repetition of a request, through the middleware:
    each is a call of its own.
    """

    library = "aiohttp"
    joined = (DeadlineExceeded, ResultRejected, CircuitOpen, BulkheadFull)
    timed_out = AttemptTimeout
    awaits = True
    status_of = attrgetter("status")

    def bare(self, *args: Any, **kwargs: Any) -> Any:
        request, handler = args
        return _send_in_time(request, handler, **kwargs) if kwargs else handler(request)

    def unrepeatable(self, *args: Any) -> str:
        """Return why a body cannot be sent again: aiohttp knows whether it was consumed."""
        request = args[0]
        body = request.body
        if not body:
            return ""
        # Before aiohttp 3.14 an iterator that was read in part does not count as consumed.
        if body.consumed or (isinstance(body, AsyncIterablePayload) and request.response is not None):
            return NO_REWIND if isinstance(body, IOBasePayload) else USED_UP
        return ""

    def limit(self, seconds: float, args: Any, kwargs: Kwargs) -> Kwargs:
        """Return the seconds after which to cancel the attempt: a request does not show its timeouts."""
        attempt: Any = here()
        # The engine cancels an attempt of ours.
        return kwargs if attempt[POLICY] and attempt[POLICY]._client is self else {"seconds": seconds}

    async def discard(self, result: Any, left: float | None) -> None:
        """Read a short body for at most `DRAIN_TIME`; release the connection, or close it if more comes."""
        try:
            if is_short(result.headers):
                with time_limit(shorter(DRAIN_TIME, left)):
                    async for _ in result.content.iter_any():
                        pass
        finally:
            result.release()

    def is_usable(self, response: Any) -> bool:
        """Return whether the body can still be read: reading it has not failed."""
        return response.content.exception() is None

    def mark(self, response: Any, error: errors.RedoubleError, *args: Any) -> None:
        """Put the note on the response, and on the error that its ``raise_for_status`` raises."""
        super().mark(response, error, *args)
        # Without holding the response: it would be left to the garbage collector.
        weak: Any = ref(response)
        own, notes = response.__class__.raise_for_status, response.__notes__

        def raise_for_status() -> None:
            try:
                own(weak())
            except aiohttp.ClientResponseError as raised:
                raised.__notes__ = notes
                raise

        # The error of aiohttp does not have the response.
        response.raise_for_status = raise_for_status

    def resend_key(self, error: BaseException | None, *args: Any) -> object:
        """Return the timer of a request: a session makes one for all requests that it sends for a call."""
        if error is None or isinstance(error, _SENT_AGAIN):
            return getattr(args[0], "_timer", None)
        return None

    def status_error(self, response: Any, *args: Any) -> Exception:
        """Return a ``ClientResponseError``, as ``raise_for_status`` raises it."""
        return aiohttp.ClientResponseError(
            response.request_info,
            response.history,
            status=response.status,
            message=response.reason or "",
            headers=response.headers,
        )


async def _send_in_time(
    request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType, seconds: float
) -> aiohttp.ClientResponse:
    """Send a request, and cancel it after these seconds."""
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

    Takes a `Policy`, or its fields as keywords, and:

    - ``raise_status=True`` raises ``aiohttp.ClientResponseError`` when no attempt is left. By default the
      last response is returned as it is, with a note that `history` reads.
    - ``propagate_to`` are the hosts, or ``["*"]``, that receive ``X-Retry-Attempt`` and
      ``X-Request-Timeout-Ms``.

    A `Registry` as a guard has one guard for each host. `override` sets another policy for the requests of a
    block. A response that is retried is read if it is short, otherwise closed, before the wait. ``timeout``
    and ``deadline`` cancel an attempt. One middleware may be used by any number of sessions.

    `DeadlineExceeded` is also an ``aiohttp.ServerTimeoutError``; other errors of redouble are also
    ``aiohttp.ClientConnectionError``.

    >>> retrying = retry_middleware(attempts=6)  # for aiohttp.ClientSession(middlewares=(retrying,))
    """
    client = _Aiohttp("retry_middleware", policy, fields, None, raise_status, propagate_to)

    async def retrying(
        request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        response: aiohttp.ClientResponse = await client.run_async(None, request, handler)
        return response

    return retrying
