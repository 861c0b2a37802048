"""One interface for all HTTP clients, so that a rule is tested once for each of them.

A session has a pool of one connection. ``fetch`` sends a request, reads the response and returns it as `Seen`.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import ssl
from dataclasses import dataclass
from types import GeneratorType
from typing import Any

# Reading the certificates of all authorities takes longer than a test, and no test here uses TLS.
NO_CERTIFICATES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


@dataclass
class Seen:
    """What a caller sees of a response."""

    status: int
    body: bytes
    response: Any


def _as_it_is(function):
    return function


class HttpxSync:
    """httpx, and httpx2, which has the same interface."""

    library = "httpx"
    #: Whether files can be sent, and from where they are.
    sends_files = True

    def __init__(self):
        self.api = importlib.import_module(self.library)
        self.module = importlib.import_module(f"redouble.clients.{self.library}")
        api = self.api
        self.timeout_error, self.connection_error = api.TimeoutException, api.TransportError
        self.status_error = api.HTTPStatusError
        self.one = api.Limits(max_connections=1, max_keepalive_connections=1)

    def session(self, *args, **options):
        inner = self.api.HTTPTransport(limits=self.one, verify=NO_CERTIFICATES)
        transport = self.module.RetryTransport(*args, transport=inner, **options)
        return self.api.Client(transport=transport, timeout=30, follow_redirects=True)

    def fetch(self, session, method, url, *, body=None, headers=None, policy=None, checked=False):
        extensions = None if policy is None else {"retry": policy}
        response = session.request(method, url, content=body, headers=headers, extensions=extensions)
        if checked:
            response.raise_for_status()
        return Seen(response.status_code, response.content, response)

    def streamed(self, session, url):
        with session.stream("GET", url) as response:
            status = response.status_code
            return status, response.read()

    def run(self, use, *args, **options):
        """Call ``use(fetch)`` with a session that is closed afterwards."""
        with self.session(*args, **options) as session:
            return use(lambda *given, around=_as_it_is, **named: around(self.fetch)(session, *given, **named))

    def stream(self, url, **options):
        with self.session(**options) as session:
            return self.streamed(session, url)


class HttpxAsync(HttpxSync):
    sends_files = False

    def run(self, use, *args, **options):
        with asyncio.Runner() as runner:
            session = runner.run(self._session(*args, **options))
            try:
                return use(
                    lambda *given, around=_as_it_is, **named: runner.run(
                        around(self._fetch)(session, *given, **named)
                    )
                )
            finally:
                runner.run(self._close(session))

    async def _session(self, *args, **options):
        inner = self.api.AsyncHTTPTransport(limits=self.one, verify=NO_CERTIFICATES)
        transport = self.module.AsyncRetryTransport(*args, transport=inner, **options)
        return self.api.AsyncClient(transport=transport, timeout=30, follow_redirects=True)

    async def _close(self, session):
        await session.aclose()

    async def _fetch(self, session, method, url, *, body=None, headers=None, policy=None, checked=False):
        extensions = None if policy is None else {"retry": policy}
        body = _awaited(body) if type(body) is GeneratorType else body
        response = await session.request(method, url, content=body, headers=headers, extensions=extensions)
        if checked:
            response.raise_for_status()
        return Seen(response.status_code, response.content, response)

    def stream(self, url, **options):
        async def main():
            session = await self._session(**options)
            async with session, session.stream("GET", url) as response:
                return response.status_code, await response.aread()

        return asyncio.run(main())


async def _awaited(parts):
    for part in parts:
        yield part


class Httpx2Sync(HttpxSync):
    library = "httpx2"


class Httpx2Async(HttpxAsync):
    library = "httpx2"


class Requests(HttpxSync):
    library = "requests"

    def __init__(self):
        import requests

        self.module = importlib.import_module("redouble.clients.requests")
        self.timeout_error, self.connection_error = requests.Timeout, requests.ConnectionError
        self.status_error = requests.HTTPError

    def session(self, *args, **options):
        import requests
        from requests.adapters import HTTPAdapter

        inner = HTTPAdapter(pool_connections=1, pool_maxsize=1, pool_block=True)
        session = requests.Session()
        session.mount("http://", self.module.RetryAdapter(*args, adapter=inner, **options))
        return session

    def fetch(self, session, method, url, *, body=None, headers=None, policy=None, checked=False):
        with contextlib.nullcontext() if policy is None else self.module.override(policy):
            response = session.request(method, url, data=body, headers=headers, timeout=30)
        if checked:
            response.raise_for_status()
        return Seen(response.status_code, response.content, response)

    def streamed(self, session, url):
        with session.get(url, stream=True, timeout=30) as response:
            return response.status_code, response.content


class Urllib3(HttpxSync):
    library = "urllib3"

    def __init__(self):
        import urllib3

        self.module = importlib.import_module("redouble.clients.urllib3")
        errors = urllib3.exceptions
        self.timeout_error, self.connection_error = errors.TimeoutError, errors.ProtocolError
        self.status_error = errors.MaxRetryError

    def session(self, *args, **options):
        import urllib3

        manager = urllib3.PoolManager(1, maxsize=1, block=True, timeout=30)
        return self.module.RetryPoolManager(*args, manager=manager, **options)

    def fetch(self, session, method, url, *, body=None, headers=None, policy=None, checked=False):
        with contextlib.nullcontext() if policy is None else self.module.override(policy):
            response = session.request(method, url, body=body, headers=headers)
        if checked and response.status >= 400:
            error = self.status_error(None, url)
            error.response = response
            raise error
        return Seen(response.status, response.data, response)

    def streamed(self, session, url):
        response = session.request("GET", url, preload_content=False)
        return response.status, response.read()


class Aiohttp(HttpxAsync):
    library = "aiohttp"
    sends_files = True

    def __init__(self):
        import aiohttp

        self.api = aiohttp
        self.module = importlib.import_module("redouble.clients.aiohttp")
        self.timeout_error, self.connection_error = aiohttp.ServerTimeoutError, aiohttp.ClientConnectionError
        self.status_error = aiohttp.ClientResponseError

    async def _session(self, *args, **options):
        return self.api.ClientSession(
            connector=self.api.TCPConnector(limit=1),
            middlewares=(self.module.retry_middleware(*args, **options),),
            timeout=self.api.ClientTimeout(30),
        )

    async def _close(self, session):
        await session.close()

    async def _fetch(self, session, method, url, *, body=None, headers=None, policy=None, checked=False):
        body = _awaited(body) if type(body) is GeneratorType else body
        with contextlib.nullcontext() if policy is None else self.module.override(policy):
            async with session.request(method, url, data=body, headers=headers) as response:
                if checked:
                    response.raise_for_status()
                return Seen(response.status, await response.read(), response)

    def stream(self, url, **options):
        async def main():
            async with await self._session(**options) as session, session.get(url) as response:
                return response.status, await response.read()

        return asyncio.run(main())


CLIENTS = {
    "httpx": HttpxSync,
    "httpx async": HttpxAsync,
    "httpx2": Httpx2Sync,
    "httpx2 async": Httpx2Async,
    "requests": Requests,
    "urllib3": Urllib3,
    "aiohttp": Aiohttp,
}
