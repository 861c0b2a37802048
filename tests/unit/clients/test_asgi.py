"""`redouble.clients.asgi`, without a server."""

from __future__ import annotations

import asyncio
import sys

import pytest

from redouble import current_attempt, retry
from redouble.clients.asgi import DeadlineMiddleware
from redouble.context import outgoing_headers
from redouble.errors import DeadlineExceeded

LONG = {"x-request-timeout-ms": "100000", "x-retry-attempt": "3", "idempotency-key": "abc"}
SHORT = {"x-request-timeout-ms": "20"}

START = {"type": "http.response.start", "status": 200, "headers": []}
PART = {"type": "http.response.body", "body": b"part", "more_body": True}
END = {"type": "http.response.body", "body": b"end"}


@pytest.fixture(params=["asyncio", "trio"])
def loop(request):
    """Run the test on asyncio and on trio."""
    return pytest.importorskip(request.param, reason="the extra 'loops' is not installed")


def request(loop, app, headers=None, kind="http"):
    """Send one request to the app; return the messages that it has sent."""
    sent = []

    async def send(message):
        sent.append(message)

    async def main():
        pairs = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
        await DeadlineMiddleware(app)({"type": kind, "method": "GET", "headers": pairs}, None, send)

    try:
        loop.run(main()) if loop is asyncio else loop.run(main)
    except DeadlineExceeded as error:
        sent.append(error)
    return sent


def answering(*messages, then=None):
    async def app(scope, receive, send):
        for message in messages:
            await send(message)
        if then is not None:
            await then()

    return app


async def forever():
    on_trio = asyncio._get_running_loop() is None
    await (sys.modules["trio"].sleep_forever() if on_trio else asyncio.Event().wait())


async def out_of_time():
    raise DeadlineExceeded("no time", attempts=1, elapsed=1.0)


def status(sent):
    return [message["status"] for message in sent if message["type"] == "http.response.start"]


def test_the_app_knows_the_deadline_and_the_attempt_of_the_client_and_not_its_key(loop):
    seen = []

    async def app(scope, receive, send):
        seen.append(outgoing_headers())
        await send(START)
        await send(END)

    assert request(loop, app, LONG) == [START, END]
    assert seen[0].keys() == {"X-Retry-Attempt", "X-Request-Timeout-Ms"}
    assert seen[0]["X-Retry-Attempt"] == "3"
    assert 0 < int(seen[0]["X-Request-Timeout-Ms"]) <= 100_000


def test_a_request_without_our_headers_has_no_limit(loop):
    assert request(loop, answering(START, PART, END)) == [START, PART, END]


def test_an_app_that_takes_too_long_is_cancelled_and_the_client_receives_504(loop):
    sent = request(loop, answering(then=forever), SHORT)
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    assert status(sent) == [504]
    assert dict(sent[0]["headers"])[b"content-length"] == b"%d" % len(sent[1]["body"])
    assert sent[1]["body"] == b"The time that the client gave this request is up.\n"


def test_an_app_is_not_called_when_no_time_is_left(loop):
    called = []

    async def app(scope, receive, send):
        called.append(scope)

    assert status(request(loop, app, {"x-request-timeout-ms": "0"})) == [504]
    assert called == []


def test_deadline_exceeded_in_an_app_whose_request_has_a_deadline_is_504(loop):
    assert status(request(loop, answering(then=out_of_time), LONG)) == [504]


def test_deadline_exceeded_in_an_app_whose_request_has_none_is_raised(loop):
    [error] = request(loop, answering(then=out_of_time))
    assert str(error) == "no time"


def test_deadline_exceeded_after_the_response_began_is_raised(loop):
    start, error = request(loop, answering(START, then=out_of_time), LONG)
    assert (start, str(error)) == (START, "no time")


def test_a_response_that_has_begun_is_cut_off_and_deadline_exceeded_is_raised(loop):
    start, part, error = request(loop, answering(START, PART, then=forever), SHORT)
    assert (start, part) == (START, PART)
    assert str(error) == (
        f"the {error.elapsed:g} s of the request were up after its response had begun: it is cut off"
    )
    assert 0 < error.elapsed <= 0.02
    assert error.__cause__ is not None


def test_tasks_after_the_response_are_not_cut_off_and_have_no_deadline(loop):
    seen = []

    async def background():
        await loop.sleep(0.05)
        seen.append(outgoing_headers())

    assert request(loop, answering(START, END, then=background), SHORT) == [START, END]
    assert seen == [{}]


def test_an_app_that_answers_while_it_is_cancelled_is_heard():
    async def app(scope, receive, send):
        try:
            await forever()
        except asyncio.CancelledError:
            await send(START)
            await send(END)

    assert request(asyncio, app, SHORT) == [START, END]


def test_a_call_inside_is_bound_by_the_time_of_the_client(loop):
    seen = []

    @retry(deadline=1_000_000.0)
    async def downstream():
        seen.append(current_attempt().remaining)

    assert request(loop, answering(START, END, then=None), LONG) == [START, END]

    async def app(scope, receive, send):
        await downstream()

    assert request(loop, app, LONG) == []
    assert seen[0] <= 100.0


@pytest.mark.parametrize("kind", ["websocket", "lifespan"])
def test_other_scopes_pass_unchanged(loop, kind):
    scopes = []

    async def app(scope, receive, send):
        scopes.append((scope["type"], outgoing_headers()))

    assert request(loop, app, {"x-request-timeout-ms": "0"}, kind) == []
    assert scopes == [(kind, {})]


def test_other_errors_pass(loop):
    async def broken():
        raise LookupError("broken")

    with pytest.raises(LookupError, match="broken"):
        request(loop, answering(then=broken), LONG)
