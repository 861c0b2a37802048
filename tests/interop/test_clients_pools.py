"""Connections of the HTTP clients of `redouble.clients`: a pool of one, keep-alive, cancellation, a thousand at once."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, defaultdict

import pytest

from interop.processes import until
from interop.retrying_clients import ASYNC_NAMES, open_client
from interop.server import half, hang_up, kept, reset, stall, stalled_body, truncated
from interop.support import in_long_mode
from redouble.events import Retrying
from redouble.testing import no_waits

pytestmark = in_long_mode

LONG_BODY = b"x" * 300_000


def closed(page):
    """Wait until the server has seen the end of every connection that requests of a page came through."""
    until(lambda: not page.open, "the end of the connections", within=5.0)


# A pool of one


def test_a_retried_response_is_read_and_its_connection_used_again(connect, web):
    page = web.page(kept(503, body=b"busy"), kept(429, body=b""), kept(200, body=b"done"))
    with no_waits():
        assert connect(connections=1).send("GET", page.url).body == b"done"
    assert page.connections == [0, 0, 0]


@pytest.mark.parametrize(
    "answer",
    [kept(503, body=LONG_BODY), kept(503, body=b"busy", chunked=True), half(503, then=stall)],
    ids=["long", "without length", "stalled"],
)
def test_a_retried_response_that_is_not_read_frees_its_place_in_the_pool(connect, web, answer):
    page = web.page(answer, answer, kept(200, body=b"done"))
    assert connect(connections=1, timeout=1.0).send("GET", page.url).body == b"done"
    until(lambda: len(page.open) <= 1, "the end of the connections of retried responses", within=5.0)


@pytest.mark.parametrize("failure", [reset, hang_up, stall], ids=["reset", "closed", "stalled"])
def test_an_attempt_that_failed_frees_its_place_in_the_pool(connect, web, failure):
    page = web.page(failure, failure, kept(200, body=b"done"))
    assert connect(connections=1, timeout=0.5).send("GET", page.url).body == b"done"
    until(lambda: len(page.open) <= 1, "the end of the connections of failed attempts", within=5.0)


@pytest.mark.parametrize("body", [b"busy", LONG_BODY], ids=["short", "long"])
@pytest.mark.parametrize("raise_status", [False, True])
def test_a_call_that_gave_up_frees_its_place_in_the_pool(connect, web, body, raise_status):
    client = connect(connections=1, attempts=2, raise_status=raise_status)
    page, next_page = web.page(kept(503, body=body)), web.page(kept(200))
    with no_waits():
        if raise_status:
            with pytest.raises(client.errors):
                client.send("GET", page.url)
        else:
            assert client.send("GET", page.url).body == body
        assert client.send("GET", next_page.url).status == 200


@pytest.mark.parametrize("answer", [stall, half(503, then=stall), stalled_body])
def test_a_call_whose_time_was_up_frees_its_place_in_the_pool(connect, web, answer):
    client = connect(connections=1, deadline=0.3)
    if client.is_async and answer is stalled_body:
        pytest.skip("the attempt of an async client is over with the headers, and its own timeouts apply")
    page, next_page = web.page(answer), web.page(kept(200))
    with pytest.raises(client.errors):
        client.send("GET", page.url)
    assert client.send("GET", next_page.url).status == 200
    closed(page)


@pytest.mark.parametrize("answer", [truncated, half(then=reset)], ids=["closed", "reset"])
def test_a_body_that_breaks_off_frees_its_place_in_the_pool(connect, web, answer):
    client = connect(connections=1)
    page, next_page = web.page(answer), web.page(kept(200))
    with no_waits(), pytest.raises(client.errors):
        client.stream("GET", page.url)
    assert client.send("GET", next_page.url).status == 200


# Connections that the server closes while they are idle


def test_a_post_after_an_idle_connection_was_closed_is_sent_once(connect, web):
    """The client opens another connection, so that there is no failure."""

    def then_close(conn):
        kept(200)(conn)  # and returns None: the connection is closed without a word

    client, page = connect(connections=1), web.page(then_close, kept(200))
    assert client.send("GET", page.url).status == 200
    closed(page)
    client.settle()
    assert client.send("POST", page.url, b"order").status == 200
    assert page.connections == [0, 1]


@pytest.mark.parametrize("failure", [reset, hang_up])
def test_a_get_on_a_connection_that_is_closed_as_it_arrives_is_sent_again(connect, web, failure):
    client, page = connect(connections=1), web.page(kept(200), failure, kept(200))
    assert client.send("GET", page.url).status == 200
    with no_waits():
        assert client.send("GET", page.url).status == 200
    assert page.connections == [0, 0, 1]


@pytest.mark.parametrize("failure", [reset, hang_up])
def test_a_post_on_a_connection_that_is_closed_as_it_arrives_is_not_sent_again(connect, web, failure):
    client, page = connect(connections=1), web.page(kept(200), failure, kept(200))
    assert client.send("GET", page.url).status == 200
    with no_waits(), pytest.raises(client.errors):
        client.send("POST", page.url, b"order")
    assert [request.method for request in page.seen] == ["GET", "POST"]


@pytest.mark.parametrize("failure", [reset, hang_up])
def test_attempts_are_not_multiplied_by_a_client_that_resends_by_itself(connect, web, failure):
    """aiohttp sends a request again by itself if a connection that was used before is lost."""
    client, page = connect(connections=1, attempts=3), web.page(kept(200), failure)
    assert client.send("GET", page.url).status == 200
    with no_waits(), pytest.raises(client.errors):
        client.send("GET", page.url)
    assert len(page.seen) == 1 + 3


# Cancellation


@pytest.fixture(params=ASYNC_NAMES)
def async_client(request):
    """An async client with a pool of one."""
    with open_client(request.param, connections=1, base=0.01) as client:
        yield client


async def cancelled(client, url, ready):
    """Send a request, cancel it when it is ready for that, and wait for its end."""
    task = asyncio.create_task(client.send_async("GET", url))
    while not ready():
        await asyncio.sleep(0.005)
    await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize(
    "answer", [stall, stalled_body, half(503, then=stall)], ids=["headers", "body", "retried body"]
)
def test_cancelling_a_request_leaves_no_connection_behind(async_client, web, answer):
    page, next_page = web.page(answer), web.page(kept(200))

    async def main():
        await cancelled(async_client, page.url, lambda: page.seen)
        return await async_client.send_async("GET", next_page.url)

    assert async_client.run(main()).status == 200
    closed(page)
    assert len(page.seen) == 1


def test_cancelling_a_request_during_a_wait_leaves_its_connection_free(async_client, web):
    page = web.page(kept(503, ("Retry-After", "60")), kept(200))

    async def main():
        await cancelled(async_client, page.url, lambda: page.seen)
        return await async_client.send_async("GET", page.url)

    assert async_client.run(main()).status == 200
    assert page.connections == [0, 0]


def test_cancelling_many_requests_leaves_no_connection_behind(async_client, web):
    page, next_page = web.page(stall), web.page(kept(200))

    async def main():
        tasks = [asyncio.create_task(async_client.send_async("GET", page.url)) for _ in range(20)]
        while not page.seen:
            await asyncio.sleep(0.005)
        for task in tasks:
            task.cancel()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(error) for error in found} == {asyncio.CancelledError}
        return await async_client.send_async("GET", next_page.url)

    assert async_client.run(main()).status == 200
    closed(page)
    assert len(page.seen) == 1  # the others waited for the only connection


# Many requests


class Thirds:
    """Answers every third request with a 503. Counts the requests by their number, and keeps their keys."""

    def __init__(self):
        self.count = 0
        self.seen = Counter()
        self.keys = defaultdict(list)

    def __call__(self, request):
        number = int(request.path.rpartition("/")[2])
        self.count += 1
        self.seen[number] += 1
        self.keys[number].append(request.headers["Idempotency-Key"])
        return kept(503 if self.count % 3 == 0 else 200, body=b"body")


def send_many(client, page, methods, **options):
    """Send requests with these methods at the same time; the path of each ends in its number."""
    requests = [
        {"method": method, "url": f"{page.url}/{number}", "body": b"x", **options}
        for number, method in enumerate(methods)
    ]
    with no_waits(everywhere=True):
        return client.send_all(requests)


@pytest.fixture
def quiet(caplog):
    """Log no retries: thousands of records would be printed if the test fails."""
    caplog.set_level("CRITICAL", "redouble")


@pytest.mark.usefixtures("quiet")
def test_a_thousand_requests_with_every_third_answer_a_503_leak_nothing_and_act_once(connect, web):
    thirds, threads, events = Thirds(), threading.active_count(), []
    page, client = web.page_by(thirds), connect(connections=4, attempts=20, listeners=[events.append])
    statuses = send_many(client, page, ["GET", "POST"] * 500)

    # Each connection is in the pool, and is closed with it. The server may see the end of others later.
    until(lambda: len(page.open) <= 4, "the end of the connections that left the pool", within=5.0)
    client.close()
    closed(page)
    until(lambda: threading.active_count() <= threads, "the end of the threads", within=5.0)

    assert statuses[::2] == [200] * 500
    assert max(thirds.seen[number] for number in range(1, 1000, 2)) == 1
    # No attempt without a decision, and each 503 was retried, or returned for a POST. In a few of a thousand
    # threads httpx reads from a connection that another thread has closed, also without redouble.
    retries = [event.status for event in events if type(event) is Retrying]
    returned = statuses[1::2].count(503)
    lost = len(retries) - retries.count(503) + statuses.count(None)
    assert returned > 100
    assert thirds.count <= 1000 + len(retries)
    assert 0 <= thirds.count // 3 - returned - retries.count(503) <= lost < 20


@pytest.mark.usefixtures("quiet")
def test_of_many_requests_with_keys_each_has_its_own_in_all_attempts(connect, web):
    thirds = Thirds()
    client = connect(connections=8, attempts=20, idempotency_key=True)
    assert send_many(client, web.page_by(thirds), ["POST", "PATCH"] * 100) == [200] * 200
    assert max(thirds.seen.values()) > 1
    assert all(len(set(keys)) == 1 for keys in thirds.keys.values())
    assert len({keys[0] for keys in thirds.keys.values()} - {None}) == 200
