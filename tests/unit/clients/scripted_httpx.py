"""A transport of httpx that gives one answer after the other, and clients of it, sync and async."""

from __future__ import annotations

import asyncio
import contextvars

import pytest

httpx = pytest.importorskip("httpx")
from redouble.clients.httpx import AsyncRetryTransport, RetryTransport  # noqa: E402

URL = "https://example.org/orders"


class Server(httpx.BaseTransport, httpx.AsyncBaseTransport):
    """Gives one answer after the other, and keeps the requests with their bodies and timeouts."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.requests, self.bodies, self.timeouts, self.given = [], [], [], []

    def _answer(self, request, body):
        # A copy: the same request is sent again, with other headers.
        self.requests.append(httpx.Request(request.method, request.url, headers=request.headers))
        self.bodies.append(body)
        self.timeouts.append(request.extensions.get("timeout"))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, int):
            answer = httpx.Response(answer, text=f"answer {len(self.requests)}")
        self.given.append(answer)
        return answer

    def handle_request(self, request):
        return self._answer(request, b"".join(request.stream))

    async def handle_async_request(self, request):
        return self._answer(request, b"".join([part async for part in request.stream]))


class Sync:
    def send(self, transport, method="GET", url=URL, **kwargs):
        with httpx.Client(transport=transport) as client:
            return client.request(method, url, **kwargs)

    def transport(self, server, *args, **fields):
        return RetryTransport(*args, transport=server, **fields)

    def check_sdk(self, transport, check):
        """Call ``check(send)`` in one context, as an SDK has it that sends a request again."""
        with httpx.Client(transport=transport) as client:

            def send(retries, url=URL):
                return client.get(url, headers={"x-stainless-retry-count": retries})

            contextvars.copy_context().run(check, send)


class Async:
    def send(self, transport, method="GET", url=URL, **kwargs):
        async def send():
            async with httpx.AsyncClient(transport=transport) as client:
                return await client.request(method, url, **kwargs)

        return asyncio.run(send())

    def transport(self, server, *args, **fields):
        return AsyncRetryTransport(*args, transport=server, **fields)

    def check_sdk(self, transport, check):
        context = contextvars.copy_context()
        with asyncio.Runner() as runner:
            client = httpx.AsyncClient(transport=transport)

            def send(retries, url=URL):
                headers = {"x-stainless-retry-count": retries}
                return runner.run(client.get(url, headers=headers), context=context)

            check(send)
            runner.run(client.aclose())
