"""`redouble.clients.asgi` below uvicorn and `redouble.clients.wsgi` below wsgiref: services that hand their deadline on."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import contextmanager
from wsgiref.simple_server import WSGIRequestHandler, make_server

import pytest

from interop.processes import until
from interop.server import stall, status
from interop.support import in_long_mode
from redouble.clients import asgi, wsgi
from redouble.context import outgoing_headers

httpx = pytest.importorskip("httpx")
from redouble.clients.httpx import AsyncRetryTransport, RetryTransport  # noqa: E402

HERE = ["127.0.0.1"]
LEFT = "X-Request-Timeout-Ms"


def time_left():
    """Return the milliseconds that the running request has left; ``None`` without a deadline."""
    left = outgoing_headers().get(LEFT)
    return None if left is None else int(left)


def get(url, **options):
    """Send a request without retries."""
    return httpx.get(url, timeout=30, **options)


# ASGI


class Service:
    """An ASGI app that asks the next service, or answers with the statuses of its script, after a delay."""

    def __init__(self, next_url=None, *, script=(), delay=0.0):
        self.next_url, self.script, self.delay = next_url, list(script), delay
        self.left, self.attempts, self.cancelled = [], [], 0

    async def __call__(self, scope, receive, send):
        headers = dict(scope["headers"])
        self.left.append(time_left())
        self.attempts.append(headers.get(b"x-retry-attempt"))
        try:
            code = await self.answer()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        length = [(b"content-length", b"0")]
        await send({"type": "http.response.start", "status": code, "headers": length})
        await send({"type": "http.response.body", "body": b""})

    async def answer(self):
        await asyncio.sleep(self.delay)
        if self.next_url is None:
            return self.script.pop(0) if self.script else 200
        # Certificates are not used here, and take a tenth of a second to load.
        inner = httpx.AsyncHTTPTransport(verify=False)
        transport = AsyncRetryTransport(transport=inner, propagate_to=HERE, base=0.01)
        async with httpx.AsyncClient(transport=transport, timeout=30) as client:
            return (await client.get(self.next_url)).status_code


@contextmanager
def served(app):
    """Serve an app with uvicorn in a thread. Yield its address."""
    uvicorn = pytest.importorskip("uvicorn", reason="uvicorn is not installed: the extra 'interop' is needed")
    config = uvicorn.Config(
        asgi.DeadlineMiddleware(app), host="127.0.0.1", port=0, lifespan="off", log_level="critical"
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        until(lambda: server.started, "the start of uvicorn")
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/"
    finally:
        server.should_exit = True
        thread.join(30)


@contextmanager
def chain(**options):
    """Serve three services, of which each asks the next one. Yield the address of the first, and all of them."""
    third = Service(**options)
    with served(third) as third_url:
        second = Service(third_url, delay=0.01)
        with served(second) as second_url:
            first = Service(second_url, delay=0.01)
            with served(first) as url:
                yield url, (first, second, third)


def test_each_service_of_a_chain_has_less_time_than_the_one_before():
    with chain() as (url, services):
        transport = RetryTransport(deadline=1.0, propagate_to=HERE)
        with httpx.Client(transport=transport) as client:
            assert client.get(url).status_code == 200
    first, second, third = (service.left for service in services)
    assert [len(each) for each in (first, second, third)] == [1, 1, 1]
    assert 1000 >= first[0] > second[0] > third[0] > 0


@in_long_mode
def test_a_chain_whose_time_is_up_answers_504_and_its_services_are_cancelled():
    with chain(delay=30.0) as (url, services):
        began = time.monotonic()
        response = get(url, headers={LEFT: "1000"})
        assert (response.status_code, time.monotonic() - began < 5) == (504, True)
        until(lambda: services[2].cancelled == 1, "the end of the last service", within=5.0)
    assert [len(service.left) for service in services] == [1, 1, 1]


@in_long_mode
def test_a_failure_of_the_last_service_is_retried_by_the_one_before_it():
    with chain(script=[503, 503]) as (url, services):
        assert get(url, headers={LEFT: "5000"}).status_code == 200
    assert [len(service.left) for service in services] == [1, 1, 3]
    assert services[2].attempts == [None, b"2", b"3"]
    assert services[2].left == sorted(services[2].left, reverse=True)


@in_long_mode
def test_a_service_is_not_called_when_no_time_is_left():
    service = Service()
    with served(service) as url:
        assert get(url, headers={LEFT: "0"}).status_code == 504
        assert get(url).status_code == 200
    assert service.left == [None]


@in_long_mode
def test_a_response_that_has_begun_is_cut_off():
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"100")]})
        await send({"type": "http.response.body", "body": b"x", "more_body": True})
        await asyncio.sleep(30)

    with served(app) as url:
        began = time.monotonic()
        with pytest.raises(httpx.RemoteProtocolError):
            get(url, headers={LEFT: "200"})
        assert time.monotonic() - began < 5


@in_long_mode
def test_many_requests_at_once_have_their_own_deadlines():
    seen = {}

    async def app(scope, receive, send):
        await asyncio.sleep(0.05)
        seen[scope["path"]] = time_left()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    async def main(url):
        async with httpx.AsyncClient(timeout=30) as client:
            return await asyncio.gather(
                *[
                    client.get(f"{url}{seconds}", headers={LEFT: str(seconds * 1000)})
                    for seconds in range(5, 105)
                ]
            )

    with served(app) as url:
        responses = asyncio.run(main(url))
    assert {response.status_code for response in responses} == {200}
    assert all((seconds - 5) * 1000 < seen[f"/{seconds}"] < seconds * 1000 for seconds in range(5, 105))


# WSGI


class Quiet(WSGIRequestHandler):
    """Logs no requests."""

    def log_message(self, *args):
        pass


@contextmanager
def served_by_wsgiref(app):
    """Serve an app with wsgiref in a thread. Yield its address."""
    server = make_server("127.0.0.1", 0, wsgi.DeadlineMiddleware(app), handler_class=Quiet)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join(30)
        server.server_close()


def asking(url, seen):
    """Make an app that asks another service and answers with the status of that."""

    def app(environ, start_response):
        seen.append(time_left())
        with httpx.Client(transport=RetryTransport(base=0.01, propagate_to=HERE), timeout=30) as client:
            code = client.get(url).status_code
        start_response(f"{code} As Below", [("Content-Length", "0")])
        return [b""]

    return app


def test_a_wsgi_service_hands_its_deadline_on_and_answers_504_when_it_is_up(web):
    page, silent, seen = web.page(status(503), status(200)), web.page(stall), []
    with served_by_wsgiref(asking(page.url, seen)) as url:
        assert get(url, headers={LEFT: "5000"}).status_code == 200
    assert 0 < int(page.seen[1].headers[LEFT]) <= int(page.seen[0].headers[LEFT]) <= seen[0] <= 5000
    began = time.monotonic()
    with served_by_wsgiref(asking(silent.url, seen)) as url:
        assert get(url, headers={LEFT: "300"}).status_code == 504
    assert time.monotonic() - began < 5


@in_long_mode
def test_a_chain_of_wsgi_services_has_less_and_less_time(web):
    page, lefts = web.page(status(200)), ([], [])
    with served_by_wsgiref(asking(page.url, lefts[1])) as second:
        with served_by_wsgiref(asking(second, lefts[0])) as url:
            assert get(url, headers={LEFT: "5000"}).status_code == 200
            assert get(url).status_code == 200
            assert get(url, headers={LEFT: "0"}).status_code == 504
    assert 5000 >= lefts[0][0] >= lefts[1][0] >= int(page.seen[0].headers[LEFT]) > 0
    assert (lefts[0][1:], lefts[1][1:], page.seen[1].headers[LEFT]) == ([None], [None], None)
