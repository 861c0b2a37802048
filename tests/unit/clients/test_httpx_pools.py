"""The pool of httpx after requests that were cancelled or timed out: no place in it is lost."""

from __future__ import annotations

import asyncio
from unittest import mock

import pytest

httpx = pytest.importorskip("httpx")
httpcore = pytest.importorskip("httpcore")
from redouble.clients.httpx import AsyncRetryTransport, RetryTransport  # noqa: E402

from .every_client import NO_CERTIFICATES  # noqa: E402

ANSWER = [b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"]
URL = "http://example.org/"


def one_connection(awaits):
    """Make a transport with a pool of one connection, on a network that answers at once."""
    transport = httpx.AsyncHTTPTransport if awaits else httpx.HTTPTransport
    inner = transport(limits=httpx.Limits(max_connections=1), verify=NO_CERTIFICATES)
    inner._pool._network_backend = (httpcore.AsyncMockBackend if awaits else httpcore.MockBackend)(ANSWER)
    return inner


def leave_one_behind(pool):
    """Put a connection into a pool that no request uses, as a request does that is interrupted."""
    pool._connections.append(pool.create_connection(httpcore.Origin(b"http", b"example.org", 80)))


def test_a_connection_that_no_request_uses_leaves_the_pool_after_a_timeout():
    inner = one_connection(awaits=False)
    leave_one_behind(inner._pool)
    transport = RetryTransport(attempts=2, base=0.0, timeout=0.01, transport=inner)
    with httpx.Client(transport=transport) as client:
        assert client.get(URL).status_code == 200
    assert not inner._pool.connections


def test_a_connection_that_no_request_uses_leaves_the_pool_after_an_async_timeout():
    inner = one_connection(awaits=True)
    leave_one_behind(inner._pool)
    transport = AsyncRetryTransport(attempts=2, base=0.0, timeout=0.01, transport=inner)

    async def main():
        async with httpx.AsyncClient(transport=transport) as client:
            return await client.get(URL)

    assert asyncio.run(main()).status_code == 200
    assert not inner._pool.connections


def test_a_request_that_is_cancelled_at_any_step_before_its_headers_leaves_no_connection_behind():
    async def get(client):
        """Send a request. Its response is closed also if the task is cancelled: closing is not an attempt."""
        response = await client.send(client.build_request("GET", URL), stream=True)
        await asyncio.shield(response.aclose())
        return response.status_code

    async def main(steps):
        """Cancel the second of three requests after some steps of the loop. Return whether it still ran."""
        inner = one_connection(awaits=True)
        async with httpx.AsyncClient(transport=AsyncRetryTransport(transport=inner)) as client:
            first, second, third = (asyncio.create_task(get(client)) for _ in range(3))
            for _ in range(steps):
                await asyncio.sleep(0)
            running = second.cancel()
            async with asyncio.timeout(10):
                found = await asyncio.gather(first, second, third, return_exceptions=True)
            assert not inner._pool.connections, f"after {steps} steps"
            assert (found[0], found[2]) == (200, 200)
        return running

    steps = 0
    while asyncio.run(main(steps)):
        steps += 1
    assert steps > 5


class UnknownPool:
    """A pool of a version that has other attributes."""

    __module__ = "httpcore"


def test_a_pool_that_cannot_be_cleaned_up_leaves_the_error_of_the_attempt_alone(monkeypatch, caplog):
    inner = one_connection(awaits=False)
    timeout = httpx.ReadTimeout("slow")
    monkeypatch.setattr(inner, "handle_request", mock.Mock(side_effect=timeout))
    monkeypatch.setattr(inner, "_pool", UnknownPool())
    request = httpx.Request("GET", URL)
    with pytest.raises(httpx.ReadTimeout) as raised:
        RetryTransport(attempts=2, base=0.0, transport=inner).handle_request(request)
    assert raised.value is timeout
    assert caplog.text.count("unused connections of the pool of httpx could not be removed") == 1


def test_a_connection_that_cannot_be_closed_leaves_the_error_of_the_attempt_alone(monkeypatch, caplog):
    inner = one_connection(awaits=True)
    leave_one_behind(inner._pool)
    timeout = httpx.ReadTimeout("slow")
    monkeypatch.setattr(inner, "handle_async_request", mock.AsyncMock(side_effect=timeout))
    monkeypatch.setattr(inner._pool, "_close_connections", mock.AsyncMock(side_effect=OSError("gone")))
    request = httpx.Request("GET", URL)
    with pytest.raises(httpx.ReadTimeout) as raised:
        asyncio.run(AsyncRetryTransport(attempts=1, transport=inner).handle_async_request(request))
    assert raised.value is timeout
    assert "unused connections of the pool of httpx could not be removed" in caplog.text
