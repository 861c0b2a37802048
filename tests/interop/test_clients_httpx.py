"""`redouble.clients.httpx` over HTTP/2, and on trio. The rules of all HTTP clients are in ``test_clients_http.py``."""

from __future__ import annotations

import asyncio
import random
import ssl
import subprocess
import sys
import time
from importlib import import_module
from typing import NamedTuple

import pytest

from interop.processes import free_port, listening, until
from interop.server import kept, self_signed, stall
from interop.support import in_long_mode, left_out
from redouble import Policy
from redouble.testing import no_waits

httpx = pytest.importorskip("httpx")
from redouble.clients.httpx import AsyncRetryTransport  # noqa: E402

pytestmark = in_long_mode

ONE = httpx.Limits(max_connections=1, max_keepalive_connections=1)


class Http2(NamedTuple):
    """The address of a server and its certificate."""

    url: str
    certificate: str


@pytest.fixture
def over_http2(secure_web, tmp_path):
    """A server that speaks HTTP/2, and answers 503 to the first request of each path."""
    pytest.importorskip("hypercorn", reason="no server of HTTP/2 is installed")
    certificate, key = self_signed(tmp_path)
    (tmp_path / "app.py").write_text(
        "seen = set()\n"
        "async def app(scope, receive, send):\n"
        "    if scope['type'] != 'http':\n"
        "        return\n"
        "    status = 200 if scope['path'] in seen else 503\n"
        "    seen.add(scope['path'])\n"
        "    headers = [(b'http-version', scope['http_version'].encode())]\n"
        "    await send({'type': 'http.response.start', 'status': status, 'headers': headers})\n"
        "    await send({'type': 'http.response.body', 'body': b'body'})\n"
    )
    port = free_port()
    command = [
        "-m",
        "hypercorn",
        "--bind",
        f"127.0.0.1:{port}",
        "--certfile",
        certificate,
        "--keyfile",
        key,
        "app:app",
    ]
    server = subprocess.Popen([sys.executable, *map(str, command)], cwd=tmp_path, stderr=subprocess.DEVNULL)
    until(lambda: listening(port), "the start of the server")
    yield Http2(f"https://127.0.0.1:{port}", str(certificate))
    server.terminate()
    server.wait(60)


def test_requests_over_http2_share_a_connection_and_are_retried(over_http2):
    context = ssl.create_default_context(cafile=over_http2.certificate)
    inner = httpx.AsyncHTTPTransport(http2=True, http1=False, verify=context, limits=ONE)

    async def main():
        async with httpx.AsyncClient(transport=AsyncRetryTransport(transport=inner), timeout=60) as client:
            return await asyncio.gather(*[client.get(f"{over_http2.url}/{number}") for number in range(20)])

    with no_waits():
        responses = asyncio.run(main())
    assert [response.status_code for response in responses] == [200] * 20
    assert {response.http_version for response in responses} == {"HTTP/2"}


def test_a_cancelled_request_on_trio_leaves_no_connection_behind(web):
    trio = pytest.importorskip("trio")
    page, next_page = web.page(stall), web.page(kept(503), kept(200))

    async def main():
        inner = httpx.AsyncHTTPTransport(limits=ONE)
        async with httpx.AsyncClient(
            transport=AsyncRetryTransport(transport=inner, base=0.01), timeout=30
        ) as client:
            with trio.move_on_after(0.2) as scope:
                await client.get(page.url)
            assert scope.cancelled_caught
            return await client.get(next_page.url)

    assert trio.run(main).status_code == 200
    assert next_page.connections == [0, 0]
    until(lambda: not page.open, "the end of the connection", within=5.0)


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
@pytest.mark.parametrize("library", ["httpx", "httpx2"])
def test_time_limits_that_strike_in_the_middle_of_requests_leave_no_connection_behind(library, loop, web):
    for name in (library, loop):
        left_out(name)
    anyio, api = import_module("anyio"), import_module(library)
    chance, outcomes = random.Random(7), set()

    def late(conn):
        time.sleep(chance.choice([0, 0, 0.001, 0.003, 0.01]))
        return kept(200)(conn)

    page = web.page(late)
    limits = api.Limits(max_connections=5, max_keepalive_connections=5)
    inner = api.AsyncHTTPTransport(limits=limits, verify=False)
    transport = import_module(f"redouble.clients.{library}").AsyncRetryTransport(transport=inner)

    async def send(client, number):
        field = "timeout" if number % 2 else "deadline"
        policy = Policy(attempts=2, base=0.001, logger=False, **{field: chance.uniform(0.0001, 0.012)})
        try:
            outcomes.add((await client.get(page.url, extensions={"retry": policy})).status_code)
        except api.TimeoutException as error:
            outcomes.add(type(error).__name__)

    async def main():
        async with api.AsyncClient(transport=transport, timeout=30) as client:
            for _ in range(60):
                async with anyio.create_task_group() as group:
                    for number in range(12):
                        group.start_soon(send, client, number)
                pool = inner._pool
                assert [
                    each for each in pool.connections if not each.is_idle() and not each.is_closed()
                ] == []
                assert pool._requests == []
            return [(await client.get(page.url)).status_code for _ in range(10)]

    assert anyio.run(main, backend=loop) == [200] * 10
    assert {200, "DeadlineExceeded", "AttemptTimeout"} <= outcomes
