"""Transports for httpx that retry every request of a client.

>>> import httpx
>>> client = httpx.Client(transport=RetryTransport(attempts=6, deadline=20.0))
>>> client.close()
"""

from __future__ import annotations

import httpx

from .. import errors
from ._httpx import AsyncHttpx, AsyncTransport, Httpx, SyncTransport
from ._override import override

__all__ = ["AsyncRetryTransport", "RetryTransport", "override"]


class DeadlineExceeded(errors.DeadlineExceeded, httpx.TimeoutException):
    """`redouble.DeadlineExceeded` that callers of httpx catch as ``httpx.TimeoutException``."""


class ResultRejected(errors.ResultRejected, httpx.TransportError):
    """`redouble.ResultRejected` that callers of httpx catch as ``httpx.TransportError``."""


class CircuitOpen(errors.CircuitOpen, httpx.ConnectError):
    """`redouble.CircuitOpen` that callers of httpx catch as ``httpx.ConnectError``."""


class BulkheadFull(errors.BulkheadFull, httpx.PoolTimeout):
    """`redouble.BulkheadFull` that callers of httpx catch as ``httpx.PoolTimeout``."""


class AttemptTimeout(TimeoutError, httpx.TimeoutException):  # noqa: N818 - says what happened
    """An async attempt took longer than the ``timeout`` of the policy; a ``TimeoutError``, too."""


class _Client(Httpx):
    library, api = "httpx", httpx
    joined = (DeadlineExceeded, ResultRejected, CircuitOpen, BulkheadFull)
    timed_out = AttemptTimeout


class _AsyncClient(AsyncHttpx, _Client):
    pass


class RetryTransport(SyncTransport[httpx.BaseTransport, httpx.Request, httpx.Response], httpx.BaseTransport):
    """A transport that retries the requests of an ``httpx.Client``.

    Takes a `Policy`, or its fields as keywords, and:

    - ``transport`` sends the requests: ``httpx.HTTPTransport()`` by default, or one with other settings.
    - ``raise_status=True`` raises ``httpx.HTTPStatusError`` when no attempt is left. By default the last
      response is returned as it is, with its history in ``response.extensions["redouble"]``.
    - ``propagate_to`` are the hosts, or ``["*"]``, that receive ``X-Retry-Attempt`` and
      ``X-Request-Timeout-Ms``.

    A request may have its own policy: ``extensions={"retry": policy}``, or ``False`` to send it once. A
    `Registry` as a guard has one guard for each host. A response that is retried is read if it is short,
    otherwise closed, before the wait. ``timeout`` and ``deadline`` limit the timeouts of the request.

    Safe to share between threads, as the client is. Raises errors of httpx, and errors of redouble that are
    also errors of httpx: `DeadlineExceeded` is a ``TimeoutException``, the others are ``TransportError``.

    >>> transport = RetryTransport(transport=httpx.MockTransport(lambda request: httpx.Response(200)))
    >>> with httpx.Client(transport=transport) as client:
    ...     client.get("https://example.org")
    <Response [200 OK]>
    """

    _kind = _Client


class AsyncRetryTransport(
    AsyncTransport[httpx.AsyncBaseTransport, httpx.Request, httpx.Response], httpx.AsyncBaseTransport
):
    """A transport that retries the requests of an ``httpx.AsyncClient``, as `RetryTransport` does.

    ``timeout`` and ``deadline`` cancel an attempt, in addition to limiting the timeouts of httpx. Works on
    asyncio and trio.

    >>> import asyncio
    >>> async def fetch():
    ...     inner = httpx.MockTransport(lambda request: httpx.Response(200))
    ...     async with httpx.AsyncClient(transport=AsyncRetryTransport(transport=inner)) as client:
    ...         return await client.get("https://example.org")
    >>> asyncio.run(fetch())
    <Response [200 OK]>
    """

    _kind = _AsyncClient
