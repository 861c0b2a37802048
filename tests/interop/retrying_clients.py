"""HTTP clients that `redouble.clients` retries for, behind one interface, so that a rule is tested with each of them.

with open_client("httpx", attempts=3) as client:
    client.send("GET", page.url)        # Response(status=200, body=b"...", raw=...)

Async clients run on an event loop of their own, so a test is the same function for all.
"""

from __future__ import annotations

import asyncio
import ssl
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from interop.support import installed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterator
    from pathlib import Path

PATIENT = 30.0  # seconds; the client's own timeout, which no test waits for


class Response(NamedTuple):
    """A response whose body was read."""

    status: int
    body: bytes
    raw: Any


class Client:
    """A client with retries. ``options`` go to the transport, adapter, middleware or pool manager of redouble."""

    is_async = False
    reads_body_in_attempt = False
    follows_redirects_in_attempt = False
    errors: type[Exception]
    """The base of the errors that the client raises."""
    timeouts: type[Exception]
    """The base of its timeouts."""

    def __init__(self, connections: int, certificate: Path | None, **options: Any) -> None:
        raise NotImplementedError

    def send(self, method: str, url: str, body: bytes | None = None, headers: Any = None) -> Response:
        """Send a request, follow redirects and read the response."""
        raise NotImplementedError

    def stream(self, method: str, url: str) -> tuple[int, bytes]:
        """Send a request and read the response as a stream. Return the status and the body."""
        raise NotImplementedError

    def send_all(self, requests: list[dict[str, Any]]) -> list[int | None]:
        """Send all requests at the same time. Return their statuses, and ``None`` for an error of the client."""

        def status(request: dict[str, Any]) -> int | None:
            try:
                return self.send(**request).status
            except self.errors:
                return None

        with ThreadPoolExecutor(len(requests)) as pool:
            return list(pool.map(status, requests))

    def settle(self) -> None:
        """Let the client see that connections were closed: an async one when its loop runs."""

    def close(self) -> None:
        """Close all connections. May be called twice."""
        raise NotImplementedError


class AsyncClient(Client):
    """A client whose methods are run on a loop."""

    is_async = True

    def __init__(self, connections: int, certificate: Path | None, **options: Any) -> None:
        self._runner: asyncio.Runner | None = asyncio.Runner()
        self.run(self.open(connections, certificate, **options))

    def run(self, coroutine: Any) -> Any:
        """Run a coroutine on the loop of this client, in the context of the caller."""
        assert self._runner is not None
        return self._runner.run(coroutine, context=copy_context())

    def send(self, *args: Any, **kwargs: Any) -> Response:
        found: Response = self.run(self.send_async(*args, **kwargs))
        return found

    def stream(self, method: str, url: str) -> tuple[int, bytes]:
        found: tuple[int, bytes] = self.run(self.stream_async(method, url))
        return found

    def send_all(self, requests: list[dict[str, Any]]) -> list[int | None]:
        async def status(request: dict[str, Any]) -> int | None:
            try:
                return (await self.send_async(**request)).status
            except self.errors:
                return None

        async def main() -> list[int | None]:
            return await asyncio.gather(*map(status, requests))

        found: list[int | None] = self.run(main())
        return found

    def settle(self) -> None:
        self.run(asyncio.sleep(0.02))

    def close(self) -> None:
        if self._runner is not None:
            self.run(self.close_async())
            self._runner.close()
            self._runner = None

    async def open(self, connections: int, certificate: Path | None, **options: Any) -> None:
        raise NotImplementedError

    async def send_async(
        self, method: str, url: str, body: bytes | None = None, headers: Any = None
    ) -> Response:
        raise NotImplementedError

    async def stream_async(self, method: str, url: str) -> tuple[int, bytes]:
        raise NotImplementedError

    def close_async(self) -> Awaitable[None]:
        raise NotImplementedError


def _trusting(certificate: Path | None) -> ssl.SSLContext:
    """Return a context that trusts one certificate, or none: those of the machine take long to load."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if certificate is not None:
        context.load_verify_locations(certificate)
    return context


def _httpx_client(library: str, prefix: str, connections: int, certificate: Path | None, options: Any) -> Any:
    """Return a client of httpx or httpx2 that retries, and the module; ``prefix`` is "Async" or nothing."""
    httpx, retrying = import_module(library), import_module(f"redouble.clients.{library}")
    limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections)
    inner = getattr(httpx, f"{prefix}HTTPTransport")(limits=limits, verify=_trusting(certificate))
    transport = getattr(retrying, f"{prefix}RetryTransport")(transport=inner, **options)
    client = getattr(httpx, f"{prefix}Client")(transport=transport, timeout=PATIENT, follow_redirects=True)
    return client, httpx


class Httpx(Client):
    """``httpx.Client`` with `RetryTransport`."""

    library = "httpx"

    def __init__(self, connections: int, certificate: Path | None, **options: Any) -> None:
        self._client, httpx = _httpx_client(self.library, "", connections, certificate, options)
        self.errors, self.timeouts = httpx.HTTPError, httpx.TimeoutException

    def send(self, method: str, url: str, body: bytes | None = None, headers: Any = None) -> Response:
        raw = self._client.request(method, url, content=body, headers=headers)
        return Response(raw.status_code, raw.content, raw)

    def stream(self, method: str, url: str) -> tuple[int, bytes]:
        with self._client.stream(method, url) as raw:
            return raw.status_code, b"".join(raw.iter_raw())

    def close(self) -> None:
        self._client.close()


class AsyncHttpx(AsyncClient):
    """``httpx.AsyncClient`` with `AsyncRetryTransport`."""

    library = "httpx"

    async def open(self, connections: int, certificate: Path | None, **options: Any) -> None:
        self._client, httpx = _httpx_client(self.library, "Async", connections, certificate, options)
        self.errors, self.timeouts = httpx.HTTPError, httpx.TimeoutException

    async def send_async(
        self, method: str, url: str, body: bytes | None = None, headers: Any = None
    ) -> Response:
        raw = await self._client.request(method, url, content=body, headers=headers)
        return Response(raw.status_code, raw.content, raw)

    async def stream_async(self, method: str, url: str) -> tuple[int, bytes]:
        async with self._client.stream(method, url) as raw:
            return raw.status_code, b"".join([part async for part in raw.aiter_raw()])

    async def close_async(self) -> None:
        await self._client.aclose()


class Httpx2(Httpx):
    library = "httpx2"


class AsyncHttpx2(AsyncHttpx):
    library = "httpx2"


class Aiohttp(AsyncClient):
    """``aiohttp.ClientSession`` with `retry_middleware`."""

    async def open(self, connections: int, certificate: Path | None, **options: Any) -> None:
        import aiohttp

        from redouble.clients.aiohttp import retry_middleware

        # Its timeouts of a whole request are a bare TimeoutError, which is no ClientError.
        self.errors, self.timeouts = aiohttp.ClientError, TimeoutError
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=connections, ssl=_trusting(certificate)),
            timeout=aiohttp.ClientTimeout(total=None, connect=PATIENT, sock_read=PATIENT),
            middlewares=(retry_middleware(**options),),
        )

    async def send_async(
        self, method: str, url: str, body: bytes | None = None, headers: Any = None
    ) -> Response:
        async with self._session.request(method, url, data=body, headers=headers) as raw:
            return Response(raw.status, await raw.read(), raw)

    async def stream_async(self, method: str, url: str) -> tuple[int, bytes]:
        async with self._session.request(method, url) as raw:
            return raw.status, b"".join([part async for part in raw.content.iter_any()])

    async def close_async(self) -> None:
        await self._session.close()


class Requests(Client):
    """``requests.Session`` with `RetryAdapter`."""

    def __init__(self, connections: int, certificate: Path | None, **options: Any) -> None:
        import requests
        from requests.adapters import HTTPAdapter

        from redouble.clients.requests import RetryAdapter

        self.errors, self.timeouts = requests.RequestException, requests.Timeout
        inner = HTTPAdapter(pool_maxsize=connections, pool_block=True)
        self._session = requests.Session()
        self._session.trust_env = False
        if certificate is not None:
            self._session.verify = str(certificate)
        adapter = RetryAdapter(adapter=inner, **options)
        self._session.mount("http://", adapter)
        self._session.mount("https://", adapter)

    def send(self, method: str, url: str, body: bytes | None = None, headers: Any = None) -> Response:
        raw = self._session.request(method, url, data=body, headers=headers, timeout=PATIENT)
        return Response(raw.status_code, raw.content, raw)

    def stream(self, method: str, url: str) -> tuple[int, bytes]:
        with self._session.request(method, url, stream=True, timeout=PATIENT) as raw:
            return raw.status_code, b"".join(raw.iter_content(1024))

    def close(self) -> None:
        self._session.close()


class Urllib3(Client):
    """`RetryPoolManager`."""

    reads_body_in_attempt = True
    follows_redirects_in_attempt = True

    def __init__(self, connections: int, certificate: Path | None, **options: Any) -> None:
        import urllib3

        from redouble.clients.urllib3 import RetryPoolManager

        self.errors, self.timeouts = urllib3.exceptions.HTTPError, urllib3.exceptions.TimeoutError
        self._limits: dict[str, Any] = {"timeout": PATIENT, "pool_timeout": PATIENT}
        trusted = {} if certificate is None else {"ca_certs": str(certificate)}
        inner = urllib3.PoolManager(maxsize=connections, block=True, **trusted)
        self._pool = RetryPoolManager(manager=inner, **options)

    def send(self, method: str, url: str, body: bytes | None = None, headers: Any = None) -> Response:
        raw = self._pool.request(method, url, body=body, headers=headers, **self._limits)
        return Response(raw.status, raw.data, raw)

    def stream(self, method: str, url: str) -> tuple[int, bytes]:
        raw = self._pool.request(method, url, preload_content=False, **self._limits)
        try:
            return raw.status, b"".join(raw.stream(1024))
        finally:
            raw.release_conn()

    def close(self) -> None:
        self._pool.clear()


CLIENTS: dict[str, type[Client]] = {
    "httpx": Httpx,
    "httpx-async": AsyncHttpx,
    "httpx2": Httpx2,
    "httpx2-async": AsyncHttpx2,
    "requests": Requests,
    "aiohttp": Aiohttp,
    "urllib3": Urllib3,
}
NAMES = installed(CLIENTS)
ASYNC_NAMES = [name for name in NAMES if CLIENTS[name].is_async]


@contextmanager
def open_client(
    name: str, *, connections: int = 10, certificate: Path | None = None, **options: Any
) -> Iterator[Any]:
    """Open a client by its name, and close it at the end of the block."""
    client = CLIENTS[name](connections, certificate, **options)
    try:
        yield client
    finally:
        client.close()
