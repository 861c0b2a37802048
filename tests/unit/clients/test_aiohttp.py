"""`redouble.clients.aiohttp`, against a server on loopback."""

from __future__ import annotations

import asyncio
import io
import pickle

import pytest

from redouble import Policy, Rule, history, retry
from redouble.breaker import CircuitBreaker
from redouble.bulkhead import Bulkhead
from redouble.context import incoming
from redouble.errors import BulkheadFull, CircuitOpen, DeadlineExceeded, ResultRejected, StoreError
from redouble.registry import Registry

from .conftest import CUT, Answer

aiohttp = pytest.importorskip("aiohttp", minversion="3.12.6")
from redouble.clients.aiohttp import override, retry_middleware  # noqa: E402


def in_session(use, *args, session=None, **fields):
    """Run ``use`` with a session that has one connection and the middleware."""

    async def run():
        made = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=1),
            middlewares=(retry_middleware(*args, **fields),),
            **(session or {}),
        )
        async with made:
            return await use(made)

    return asyncio.run(run())


def send(url, *args, method="GET", options=None, **fields):
    """Send one request. Return its response and its body."""

    async def use(session):
        async with session.request(method, url, **(options or {})) as response:
            return response, await response.text()

    return in_session(use, *args, **fields)


def test_a_transient_response_and_a_lost_connection_are_retried(server):
    server.answers = [503, CUT, 200]
    response, text = send(server.url)
    assert (response.status, text, len(server.received)) == (200, "body", 3)


def test_a_retried_response_gives_its_connection_back_to_a_pool_of_one(server):
    server.answers = [503, Answer(503, b"x" * 5_000), Answer(503, b""), 200]
    assert send(server.url)[1] == "body"
    assert server.connections == 1


def test_a_long_response_that_is_retried_is_closed_unread(server):
    server.answers = [Answer(503, b"x" * 1_000_000), Answer(503, b"short", chunked=True), 200]
    assert send(server.url)[1] == "body"


def test_the_last_response_is_returned_with_its_body_and_its_history(server):
    server.answers = [503, Answer(503, b"last")]
    response, text = send(server.url, attempts=2)
    assert (response.status, text, history(response).attempts) == (503, "last", 2)
    assert "gave up on GET 127.0.0.1 after 2 attempts" in response.__notes__[0]


def test_a_permanent_response_is_returned_at_once(server):
    server.answers = [404]
    response, _ = send(server.url)
    assert (response.status, history(response)) == (404, None)


@pytest.mark.parametrize("body", [b"busy", b"x" * 1_000_000], ids=["short", "long"])
def test_raise_status_raises_the_error_of_aiohttp_with_the_note(server, body):
    server.answers = [503, Answer(503, body)]
    with pytest.raises(aiohttp.ClientResponseError) as caught:
        send(server.url, attempts=2, raise_status=True)
    assert (caught.value.status, caught.value.message) == (503, "Service Unavailable")
    assert history(caught.value).attempts == 2


def test_the_error_of_raise_for_status_has_the_note(server):
    server.answers = [503, 503]
    with pytest.raises(aiohttp.ClientResponseError) as caught:
        send(server.url, attempts=2, options={"raise_for_status": True})
    assert history(caught.value).attempts == 2
    response, _ = send(server.url, until=lambda response: False, attempts=1)
    assert response.raise_for_status() is None


@pytest.mark.parametrize("raised_by", ["session", "caller"])
def test_an_enclosing_call_does_not_retry_what_the_middleware_has_retried(server, raised_by):
    server.answers = [503] * 8

    async def use(session):
        @retry
        async def fetch():
            async with session.get(server.url) as response:
                response.raise_for_status()

        await fetch()

    with pytest.raises(aiohttp.ClientResponseError) as caught:
        in_session(use, attempts=2, session={"raise_for_status": raised_by == "session"})
    assert len(server.received) == 2
    assert "already retried by GET 127.0.0.1 (2 attempts)" in caught.value.__notes__[0]


def test_a_session_does_not_send_again_by_itself_what_was_retried(server):
    server.answers = [CUT] * 8 + [200]
    with pytest.raises(aiohttp.ServerDisconnectedError) as caught:
        send(server.url, attempts=3)
    assert len(server.received) == 3
    assert history(caught.value).attempts == 3


def test_the_request_after_one_that_was_given_up_on_is_sent(server):
    server.answers = [CUT, CUT]

    async def use(session):
        with pytest.raises(aiohttp.ServerDisconnectedError):
            await session.post(server.url, headers={"Idempotency-Key": "1"})
        async with session.get(server.url) as response:
            return response.status

    assert in_session(use, attempts=2) == 200
    assert len(server.received) == 3


def test_a_session_sends_again_what_was_not_retried(server):
    server.answers = [CUT, 200]
    assert send(server.url, attempts=1)[0].status == 200


def test_a_post_is_sent_once(server):
    server.answers = [503]
    response, _ = send(server.url, method="POST", options={"data": b"1"})
    assert "repeating this POST might act twice" in response.__notes__[0]
    assert len(server.received) == 1


def test_a_post_with_a_key_is_retried_with_the_same_key(server):
    server.answers = [503, 201]

    async def use(session):
        async with session.post(server.url, data=b"17") as response:
            assert response.status == 201
        async with session.post(server.url, data=b"17", headers={"Idempotency-Key": "mine"}):
            pass

    in_session(use, idempotency_key=lambda request: request.url.path, name="pay")
    keys = [request.headers["idempotency-key"] for request in server.received]
    assert keys == ["pay:/orders", "pay:/orders", "mine"]
    assert [request.body for request in server.received] == [b"17"] * 3


def test_a_file_is_sent_again_from_where_it_began(server):
    server.answers = [503, 200]
    file = io.BytesIO(b"head body")
    file.seek(5)
    send(server.url, method="PUT", options={"data": file})
    assert [request.body for request in server.received] == [b"body", b"body"]


class Pipe(io.RawIOBase):
    """A file that cannot be rewound."""

    def __init__(self):
        self.parts = [b"data", b""]

    def readable(self):
        return True

    def read(self, size=-1):
        return self.parts.pop(0) if self.parts else b""

    def tell(self):
        raise OSError("a pipe")

    def fileno(self):
        raise OSError("a pipe")


async def generated():
    yield b"one"


@pytest.mark.parametrize(
    ("body", "why"),
    [(generated, "its body was a generator"), (Pipe, "a file that cannot be rewound")],
    ids=["generator", "pipe"],
)
def test_a_body_that_cannot_be_sent_again_is_not(server, body, why):
    server.answers = [503]
    response, _ = send(server.url, method="PUT", options={"data": body()})
    assert why in response.__notes__[0]
    assert len(server.received) == 1


def test_a_generator_that_was_not_begun_is_sent_after_all(server):
    async def use(session):
        connect, failed = session.connector.connect, []

        async def refuse(*args, **kwargs):
            if not failed:
                failed.append(True)
                raise aiohttp.ClientOSError(111, "refused")
            return await connect(*args, **kwargs)

        session.connector.connect = refuse
        async with session.put(server.url, data=generated()) as response:
            return response.status

    assert in_session(use) == 200
    assert server.received[0].body == b"one"


def test_a_wait_that_passes_the_deadline_is_a_timeout_of_aiohttp(server):
    server.answers = [Answer(503, headers={"Retry-After": "90"})]

    async def use(session):
        with pytest.raises(aiohttp.ServerTimeoutError) as caught:
            await session.get(server.url)
        async with session.get(server.url) as response:  # the only connection is free
            assert response.status == 200
        return caught.value

    error = in_session(use, deadline=60.0)
    assert isinstance(error, DeadlineExceeded)
    assert isinstance(error, asyncio.TimeoutError)
    assert isinstance(pickle.loads(pickle.dumps(error)), aiohttp.ServerTimeoutError)


def test_an_attempt_is_cancelled_at_its_timeout():
    cancelled = []

    async def stall(request):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(request.method)
            raise

    async def use(session):
        async def stalling(request, handler):
            return await retry_middleware(attempts=2, timeout=0.01)(request, stall)

        with pytest.raises(aiohttp.ServerTimeoutError):
            await session.get("http://127.0.0.1:1/", middlewares=(stalling,))

    in_session(use)
    assert cancelled == ["GET", "GET"]


def test_an_attempt_is_cancelled_when_the_client_of_a_service_has_no_time_left(server):
    server.answers = [Answer(delay=5.0)]

    async def use(session):
        with incoming({"X-Request-Timeout-Ms": "100"}), pytest.raises(aiohttp.ServerTimeoutError) as caught:
            await session.get(server.url)
        return caught.value

    error = in_session(use)
    assert isinstance(error, DeadlineExceeded)
    assert "the attempt was cut off after" in str(error.__cause__)
    assert server.seconds_since_first() < 3.0


def test_an_attempt_that_needs_no_more_than_an_enclosing_call_has_left_succeeds(server):
    with incoming({"X-Request-Timeout-Ms": "60000"}):
        assert send(server.url)[0].status == 200


def test_a_response_that_was_closed_for_a_retry_is_not_returned(server):
    server.answers = [503]

    def fail(error):
        raise RuntimeError("no token")

    with pytest.raises(aiohttp.ClientConnectionError) as caught:
        send(server.url, recover=fail)
    assert isinstance(caught.value, ResultRejected)


def test_guards_are_errors_of_aiohttp_and_a_registry_is_by_host(server):
    server.answers = [503]

    async def use(session):
        async with session.get(server.url):
            pass
        with pytest.raises(aiohttp.ClientConnectionError, match=r"circuit of 127\.0\.0\.1 is open") as caught:
            await session.get(server.url)
        assert isinstance(caught.value, CircuitOpen)

    in_session(use, attempts=1, breaker=Registry(lambda host: CircuitBreaker(failures=1, name=host)))
    bulkhead = Bulkhead(1)
    with bulkhead, pytest.raises(aiohttp.ClientConnectionError) as caught:
        send(server.url, bulkhead=bulkhead)
    assert isinstance(caught.value, BulkheadFull)


def test_a_rule_refreshes_a_token_before_the_retry(server):
    server.answers = [401, 200]

    def refresh(error, call):
        call.args[0].headers["Authorization"] = "new"

    rules = {401: Rule(attempts=2, recover=refresh)}
    assert send(server.url, method="POST", rules=rules)[0].status == 200
    assert server.received[1].headers["authorization"] == "new"


def test_override_changes_the_policy_inside_a_block(server):
    server.answers = [503, 503]
    with override(False):
        assert history(send(server.url)[0]) is None
    with override(attempts=1):
        assert history(send(server.url)[0]).attempts == 1


def test_a_middleware_takes_a_policy_or_fields(server):
    server.answers = [503, 503]
    assert history(send(server.url, Policy(attempts=2))[0]).attempts == 2
    with pytest.raises(TypeError, match=r"retry_middleware\(\) takes a Policy or fields, got 3"):
        retry_middleware(3)


def test_headers_go_to_hosts_that_are_named(server):
    server.answers = [503, 200]
    send(server.url, deadline=60.0, propagate_to=["127.0.0.1"])
    assert [request.headers["x-retry-attempt"] for request in server.received] == ["1", "2"]


def test_each_request_of_a_redirect_is_retried_by_itself(server):
    server.answers = [503, Answer(302, headers={"Location": "/other"}), 503, 200]
    assert send(server.url, attempts=2)[0].status == 200
    assert [request.path for request in server.received] == ["/orders", "/orders", "/other", "/other"]


def test_another_error_of_ours_passes_as_it_is():
    error = StoreError("locked", location="letters.db")

    async def fail(request, handler):
        raise error

    async def use(session):
        middlewares = (retry_middleware(), fail)
        with pytest.raises(StoreError) as caught:
            await session.get("http://127.0.0.1:1/", middlewares=middlewares)
        assert caught.value is error

    in_session(use)


def test_requests_at_once_leave_no_connection_behind(server):
    server.answers = [503, 200, 200] * 20

    async def use(session):
        async def fetch(number):
            async with session.get(server.url) as response:
                return response.status

        statuses = await asyncio.gather(*map(fetch, range(20)))
        return statuses, len(session.connector._acquired)

    assert in_session(use, attempts=10) == ([200] * 20, 0)
