"""The cases of clients: a success through each, above a transport that answers at once.

No case uses a network, so a figure above that of the bare transport is what the retries cost. A client that is not
installed only loses its own rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

# The path, the call that is timed, the variant.
Timed = tuple[str, Callable[[int], Any], str]

HTTPX = "success, transport of httpx"
ASYNC_HTTPX = "success, async transport of httpx"
AIOHTTP = "success, middleware of aiohttp"
URLLIB3 = "success, pool manager of urllib3"
URLLIB3_POOL = "success, pool manager and pool of urllib3"
REQUESTS = "success, adapter of requests"
CLIENT_PATHS = (HTTPX, ASYNC_HTTPX, AIOHTTP, URLLIB3, URLLIB3_POOL, REQUESTS)

URL = "http://example.org/"
WITH_DEADLINE = "with a deadline"
DEADLINE = 20.0


def bare() -> Iterator[Timed]:
    """Each transport alone."""
    with suppress(ImportError):
        inner, through, through_async = httpx_transport()
        yield HTTPX, through(inner), ""
        yield ASYNC_HTTPX, through_async(inner), ""
    yield AIOHTTP, handled(answer), ""
    with suppress(ImportError):
        manager, through = urllib3_manager()
        yield URLLIB3, through(manager), ""
        manager, through = urllib3_pool()
        yield URLLIB3_POOL, through(manager), ""
    with suppress(ImportError):
        adapter, through = requests_adapter()
        yield REQUESTS, through(adapter), ""


def redouble() -> Iterator[Timed]:
    for variant, fields in (("", {}), (WITH_DEADLINE, {"deadline": DEADLINE})):
        yield from under_redouble(variant, fields)


def under_redouble(variant: str, fields: Any) -> Iterator[Timed]:
    with suppress(ImportError):
        from redouble.clients.httpx import AsyncRetryTransport, RetryTransport

        inner, through, through_async = httpx_transport()
        yield HTTPX, through(RetryTransport(transport=inner, **fields)), variant
        yield ASYNC_HTTPX, through_async(AsyncRetryTransport(transport=inner, **fields)), variant
    with suppress(ImportError):
        from redouble.clients.aiohttp import retry_middleware

        middleware: Any = retry_middleware(**fields)

        async def call(x: int) -> int:
            await middleware(Request, answer)
            return x

        yield AIOHTTP, call, variant
    with suppress(ImportError):
        from redouble.clients.urllib3 import RetryPoolManager

        manager, through = urllib3_manager()
        yield URLLIB3, through(RetryPoolManager(manager=manager, **fields)), variant
        manager, through = urllib3_pool()
        yield URLLIB3_POOL, through(RetryPoolManager(manager=manager, **fields)), variant
    with suppress(ImportError):
        from redouble.clients.requests import RetryAdapter

        adapter, through = requests_adapter()
        yield REQUESTS, through(RetryAdapter(adapter=adapter, **fields)), variant


def httpx_retries(attempts: int) -> Iterator[Timed]:
    from httpx_retries import Retry, RetryTransport

    inner, through, through_async = httpx_transport()
    transport = RetryTransport(transport=inner, retry=Retry(total=attempts - 1))
    yield HTTPX, through(transport), ""
    yield ASYNC_HTTPX, through_async(transport), ""


def aiohttp_retry(attempts: int) -> Iterator[Timed]:
    from aiohttp_retry import ExponentialRetry, RetryClient

    class Session:
        async def request(self, *args: Any, **kwargs: Any) -> Any:
            return Response

    session: Any = Session()
    client = RetryClient(client_session=session, retry_options=ExponentialRetry(attempts=attempts))

    async def call(x: int) -> int:
        await client.get(URL)
        return x

    yield AIOHTTP, call, ""


def urllib3(attempts: int) -> Iterator[Timed]:
    """Its own retries, which are made by a pool."""
    from urllib3.util import Retry

    retries = Retry(attempts - 1, backoff_factor=0.5, status_forcelist=[429, 500, 502, 503, 504])
    manager, through = urllib3_pool(retries=retries)
    yield URLLIB3_POOL, through(manager), ""


class Request:
    """A request of aiohttp. A real one needs a loop, and a success does not read it."""

    method = "GET"


class Response:
    """A response of aiohttp."""

    status, method = 200, "GET"


async def answer(request: Any) -> Any:
    return Response


def handled(handler: Any) -> Callable[[int], Any]:
    async def call(x: int) -> int:
        await handler(Request)
        return x

    return call


def httpx_transport() -> tuple[Any, Callable[[Any], Any], Callable[[Any], Any]]:
    """Return a transport, and functions that make a call of any transport, sync and async."""
    import httpx

    request, response = httpx.Request("GET", URL), httpx.Response(200)

    class Answering(httpx.BaseTransport, httpx.AsyncBaseTransport):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            return response

        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            return response

    def through(transport: Any) -> Any:
        def call(x: int) -> int:
            transport.handle_request(request)
            return x

        return call

    def through_async(transport: Any) -> Any:
        async def call(x: int) -> int:
            await transport.handle_async_request(request)
            return x

        return call

    return Answering(), through, through_async


def urllib3_manager() -> tuple[Any, Callable[[Any], Any]]:
    """Return a pool manager that answers at once, and a function that makes a call of any manager."""
    import urllib3

    response = urllib3.HTTPResponse(b"", status=200)

    class Answering(urllib3.PoolManager):
        def urlopen(self, method: str, url: str, redirect: bool = True, **options: Any) -> Any:
            return response

    return Answering(), through_manager


def urllib3_pool(**settings: Any) -> tuple[Any, Callable[[Any], Any]]:
    """Return a pool manager whose connections answer at once, and a function that makes a call of any manager."""
    import urllib3

    class Connection:
        timeout = None

    connection: Any = Connection()
    response = urllib3.HTTPResponse(b"", status=200)

    class Pool(urllib3.HTTPConnectionPool):
        def _get_conn(self, timeout: Any = None) -> Any:
            return connection

        def _put_conn(self, conn: Any) -> None:
            pass

        def _make_request(self, conn: Any, method: str, url: str, **options: Any) -> Any:
            return response

    manager = urllib3.PoolManager(**settings)
    manager.pool_classes_by_scheme = {"http": Pool}
    return manager, through_manager


def through_manager(manager: Any) -> Any:
    def call(x: int) -> int:
        manager.urlopen("GET", URL)
        return x

    return call


def requests_adapter() -> tuple[Any, Callable[[Any], Any]]:
    """Return an adapter, and a function that makes a call of any adapter."""
    import requests
    from requests.adapters import BaseAdapter

    request, response = requests.Request("GET", URL).prepare(), requests.Response()
    response.status_code = 200

    class Answering(BaseAdapter):
        def send(self, request: Any, **options: Any) -> Any:
            return response

    options: dict[str, Any] = {"stream": False, "timeout": 5.0, "verify": True, "cert": None, "proxies": {}}

    def through(adapter: Any) -> Any:
        def call(x: int) -> int:
            adapter.send(request, **options)
            return x

        return call

    return Answering(), through
