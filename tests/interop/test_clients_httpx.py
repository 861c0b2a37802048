"""`redouble.clients.httpx` with real connections: pools, HTTP/2, cancellation, many requests, SDKs above it."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import ssl
import subprocess
import sys
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from interop.processes import free_port, listening, until
from interop.server import garbage, hang_up, reset, self_signed, stall, status, truncated
from redouble import DeadlineExceeded, history
from redouble.testing import no_waits

httpx = pytest.importorskip("httpx")
from redouble.clients.httpx import AsyncRetryTransport, RetryTransport  # noqa: E402

ONE = httpx.Limits(max_connections=1, max_keepalive_connections=1)


@pytest.mark.parametrize("failure", [status(503), status(429, ("Retry-After", "0")), reset, hang_up, garbage])
def test_a_failed_request_is_sent_again(web, failure):
    page = web.page(failure, status(200))
    with no_waits(), httpx.Client(transport=RetryTransport()) as client:
        assert client.get(page.url).status_code == 200
    assert len(page.seen) == 2


def test_a_body_that_ends_early_is_not_retried_after_the_headers(web):
    page = web.page(truncated, status(200))
    with (
        no_waits(),
        httpx.Client(transport=RetryTransport()) as client,
        pytest.raises(httpx.RemoteProtocolError),
    ):
        client.get(page.url)
    assert len(page.seen) == 1


def test_an_answer_that_never_comes_ends_with_the_deadline(web):
    page = web.page(stall)
    transport = RetryTransport(deadline=0.5, transport=httpx.HTTPTransport(limits=ONE))
    with httpx.Client(transport=transport, timeout=60) as client:
        with pytest.raises(httpx.TimeoutException) as caught:
            client.get(page.url)
        assert isinstance(caught.value, DeadlineExceeded)
        page = web.page(status(200))
        assert client.get(page.url, timeout=60, extensions={"retry": False}).status_code == 200


def test_a_request_over_tls_is_retried(secure_web, tmp_path):
    page = secure_web.secure_page(status(503), status(200))
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    transport = RetryTransport(transport=httpx.HTTPTransport(verify=context))
    with no_waits(), httpx.Client(transport=transport) as client:
        assert client.get(page.url).status_code == 200


class Third(BaseHTTPRequestHandler):
    """Answers every third request with a 503, and counts the requests by their number."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.rfile.read(int(self.headers.get("content-length") or 0))
        server = self.server
        with server.lock:
            server.seen[self.path, self.command] += 1
            code = 503 if next(server.count) % 3 == 2 else 200
        self.send_response(code)
        self.send_header("Content-Length", "4")
        self.end_headers()
        self.wfile.write(b"body")

    do_POST = do_GET  # noqa: N815 - a name of http.server

    def log_message(self, *args):
        pass


class Many(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256


@pytest.fixture
def thirds():
    server = Many(("127.0.0.1", 0), Third)
    server.lock, server.seen, server.count = threading.Lock(), Counter(), itertools.count()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join(60)


def test_a_thousand_requests_with_every_third_answer_a_503_leak_nothing_and_act_once(thirds):
    inner = httpx.AsyncHTTPTransport(limits=httpx.Limits(max_connections=20, max_keepalive_connections=20))

    async def main():
        url = f"http://127.0.0.1:{thirds.server_port}"
        async with httpx.AsyncClient(
            transport=AsyncRetryTransport(attempts=20, transport=inner), timeout=600
        ) as client:
            requests = [
                client.request(
                    "POST" if number % 2 else "GET", f"{url}/{number}", content=b"x" if number % 2 else None
                )
                for number in range(1000)
            ]
            responses = await asyncio.gather(*requests)
            idle = [connection.is_idle() for connection in inner._pool.connections]
            return responses, idle

    with no_waits():
        responses, idle = asyncio.run(main())
    assert all(idle)
    assert len(idle) <= 20
    gets = [response.status_code for response in responses[::2]]
    assert gets == [200] * 500
    posts = {path: count for (path, method), count in thirds.seen.items() if method == "POST"}
    assert len(posts) == 500
    assert set(posts.values()) == {1}


def test_cancelling_a_request_leaves_no_connection_behind(web):
    page = web.page(stall)
    inner = httpx.AsyncHTTPTransport(limits=ONE)

    async def main():
        async with httpx.AsyncClient(transport=AsyncRetryTransport(transport=inner), timeout=600) as client:
            task = asyncio.create_task(client.get(page.url))
            while not page.seen:
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert inner._pool.connections == []
            other = web.page(status(200))
            return (await client.get(other.url)).status_code

    assert asyncio.run(main()) == 200


@pytest.mark.parametrize("retries", [0, 2])
def test_an_sdk_above_the_transport_does_not_multiply_its_attempts(web, retries):
    openai = pytest.importorskip("openai")
    page = web.page(*[status(503)] * 50)
    http_client = httpx.Client(transport=RetryTransport(attempts=3))
    client = openai.OpenAI(api_key="none", base_url=page.url, http_client=http_client, max_retries=retries)
    with no_waits(), http_client, pytest.raises(openai.InternalServerError) as caught:
        client.chat.completions.create(model="m", messages=[])
    assert len(page.seen) == 3
    assert history(caught.value.response).attempts == 3


@pytest.fixture
def over_http2(tmp_path):
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
    yield f"https://127.0.0.1:{port}"
    server.terminate()
    server.wait(60)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no certificate without openssl")
def test_requests_over_http2_share_a_connection_and_are_retried(over_http2):
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    inner = httpx.AsyncHTTPTransport(http2=True, http1=False, verify=context, limits=ONE)

    async def main():
        async with httpx.AsyncClient(transport=AsyncRetryTransport(transport=inner), timeout=60) as client:
            return await asyncio.gather(*[client.get(f"{over_http2}/{number}") for number in range(20)])

    with no_waits():
        responses = asyncio.run(main())
    assert [response.status_code for response in responses] == [200] * 20
    assert {response.http_version for response in responses} == {"HTTP/2"}
