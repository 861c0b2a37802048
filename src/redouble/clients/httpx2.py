"""Transports for httpx2 that retry every request of a client.

>>> import httpx2
>>> client = httpx2.Client(transport=RetryTransport(attempts=6, deadline=20.0))
>>> client.close()
"""

from __future__ import annotations

import httpx2

from .. import errors
from ._httpx import AsyncHttpx, AsyncTransport, Httpx, SyncTransport
from ._override import override

__all__ = ["AsyncRetryTransport", "RetryTransport", "override"]


class DeadlineExceeded(errors.DeadlineExceeded, httpx2.TimeoutException):
    """`redouble.DeadlineExceeded` that callers of httpx2 catch as ``httpx2.TimeoutException``."""


class ResultRejected(errors.ResultRejected, httpx2.TransportError):
    """`redouble.ResultRejected` that callers of httpx2 catch as ``httpx2.TransportError``."""


class CircuitOpen(errors.CircuitOpen, httpx2.ConnectError):
    """`redouble.CircuitOpen` that callers of httpx2 catch as ``httpx2.ConnectError``."""


class BulkheadFull(errors.BulkheadFull, httpx2.PoolTimeout):
    """`redouble.BulkheadFull` that callers of httpx2 catch as ``httpx2.PoolTimeout``."""


class AttemptTimeout(TimeoutError, httpx2.TimeoutException):  # noqa: N818 - says what happened
    """An async attempt took longer than the ``timeout`` of the policy; a ``TimeoutError``, too."""


class _Client(Httpx):
    library, api = "httpx2", httpx2
    joined = (DeadlineExceeded, ResultRejected, CircuitOpen, BulkheadFull)
    timed_out = AttemptTimeout


class _AsyncClient(AsyncHttpx, _Client):
    pass


class RetryTransport(
    SyncTransport[httpx2.BaseTransport, httpx2.Request, httpx2.Response], httpx2.BaseTransport
):
    """A transport that retries the requests of an ``httpx2.Client``.

    Takes a `Policy`, or its fields as keywords, and:

    - ``transport`` sends the requests: ``httpx2.HTTPTransport()`` by default, or one with other settings.
    - ``raise_status=True`` raises ``httpx2.HTTPStatusError`` when no attempt is left. By default the last
      response is returned as it is, with its history in ``response.extensions["redouble"]``.
    - ``propagate_to`` are the hosts, or ``["*"]``, that receive ``X-Retry-Attempt`` and
      ``X-Request-Timeout-Ms``.

    A request may have its own policy: ``extensions={"retry": policy}``, or ``False`` to send it once. A
    `Registry` as a guard has one guard for each host. A response that is retried is read if it is short,
    otherwise closed, before the wait. ``timeout`` and ``deadline`` limit the timeouts of the request.

    Safe to share between threads, as the client is. Raises errors of httpx2, and errors of redouble that are
    also errors of httpx2: `DeadlineExceeded` is a ``TimeoutException``, the others are ``TransportError``.

    >>> transport = RetryTransport(transport=httpx2.MockTransport(lambda request: httpx2.Response(200)))
    >>> with httpx2.Client(transport=transport) as client:
    ...     client.get("https://example.org")
    <Response [200 OK]>
    """

    _kind = _Client


class AsyncRetryTransport(
    AsyncTransport[httpx2.AsyncBaseTransport, httpx2.Request, httpx2.Response], httpx2.AsyncBaseTransport
):
    """A transport that retries the requests of an ``httpx2.AsyncClient``, as `RetryTransport` does.

    ``timeout`` and ``deadline`` cancel an attempt, in addition to limiting the timeouts of httpx2. Works on
    asyncio and trio.

    >>> import asyncio
    >>> async def fetch():
    ...     inner = httpx2.MockTransport(lambda request: httpx2.Response(200))
    ...     async with httpx2.AsyncClient(transport=AsyncRetryTransport(transport=inner)) as client:
    ...         return await client.get("https://example.org")
    >>> asyncio.run(fetch())
    <Response [200 OK]>
    """

    _kind = _AsyncClient
