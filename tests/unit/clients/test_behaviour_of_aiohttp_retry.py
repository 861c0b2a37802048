"""What the tests of aiohttp-retry ask for, held by `redouble.clients.aiohttp`; and what differs on purpose.

The differences are those of `docs/coming-from/aiohttp-retry.md`.
"""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from redouble import Policy, Rule, current_attempt, retrying
from redouble.backoff import additive_jitter, exponential
from redouble.classify import Classifier

from .conftest import CUT, Answer

aiohttp = pytest.importorskip("aiohttp", minversion="3.12.6")
from redouble.clients.aiohttp import override, retry_middleware  # noqa: E402

# The settings that aiohttp-retry has by default: each status from 500 on, of each method, and no exception.
THEIRS = Policy(
    attempts=3,
    base=0.2,
    backoff=exponential,
    on=lambda error: False,
    rules={status: Rule() for status in range(500, 600)},
    idempotent=True,
)


def in_session(use, *middlewares, **options):
    """Run ``use`` with a session."""

    async def run():
        async with aiohttp.ClientSession(middlewares=middlewares, **options) as session:
            return await use(session)

    return asyncio.run(run())


def send(url, policy=THEIRS, *, method="GET", request=None, session=None, **fields):
    """Send one request. Return its response, or the error that was raised, and its body."""

    async def use(made):
        async with made.request(method, url, **(request or {})) as response:
            return response, await response.text()

    try:
        return in_session(use, retry_middleware(policy, **fields), **(session or {}))
    except aiohttp.ClientError as error:
        return error, None


def list_of(waits):
    """Return a backoff with the waits of a list, as `ListRetry` has them."""
    return lambda attempt, base, cap, **others: waits[attempt]


# Which requests are retried


def test_a_success_is_sent_once_without_a_wait(server, waits):
    response, text = send(server.url)
    assert (response.status, text, len(server.received), waits) == (200, "body", 1, [])


def test_a_response_may_be_awaited_and_the_url_may_be_an_object(server):
    from yarl import URL

    async def use(session):
        response = await session.get(URL(server.url))
        return response.status, await response.text()

    server.answers = [503, 200]
    assert in_session(use, retry_middleware(THEIRS)) == (200, "body")


@pytest.mark.parametrize("status", [500, 501, 502, 503, 504, 505, 599])
def test_a_server_error_is_retried_and_the_last_response_is_returned(server, status):
    server.answers = [status] * 5
    response, text = send(server.url, attempts=5)
    assert (response.status, text, len(server.received)) == (status, "body", 5)


def test_a_retry_that_succeeds_ends_the_call(server):
    server.answers = [500, 500, 200]
    assert send(server.url, attempts=5)[0].status == 200
    assert len(server.received) == 3


@pytest.mark.parametrize("status", [404, 403, 406])
def test_another_status_is_retried_where_it_is_named(server, status):
    server.answers = [status] * 6
    assert send(server.url)[0].status == status
    assert len(server.received) == 1
    assert send(server.url, attempts=5, rules={status: Rule()})[0].status == status
    assert len(server.received) == 6


def test_server_errors_are_not_retried_where_other_statuses_are_listed(server):
    server.answers = [500, 200]
    assert send(server.url, Policy(on=Classifier(statuses=[503])))[0].status == 500
    assert len(server.received) == 1


@pytest.mark.parametrize("method", ["OPTIONS", "HEAD", "POST", "PUT", "PATCH", "DELETE"])
def test_each_method_is_sent_and_retried_where_the_caller_says_that_it_is_safe(server, method):
    server.answers = [500, 200]
    response, _ = send(server.url, method=method)
    assert (response.status, response.method) == (200, method)
    assert [request.method for request in server.received] == [method] * 2


def test_an_exception_is_retried_where_it_is_named(server):
    server.answers = [CUT, CUT, 200]
    assert send(server.url, on=aiohttp.ClientError)[0].status == 200


def test_headers_and_credentials_are_sent_with_each_attempt(server):
    server.answers = [500, 200]
    send(server.url, request={"headers": {"Authorization": "Basic bmFtZTpwYXNz", "X-Tenant": "7"}})
    sent = [
        (request.headers["authorization"], request.headers["x-tenant"], "x-retry-attempt" in request.headers)
        for request in server.received
    ]
    assert sent == [("Basic bmFtZTpwYXNz", "7", False)] * 2


def test_headers_may_change_between_two_attempts(server):
    def other_headers(error, call):
        call.args[0].headers["X-Version"] = "2"

    server.answers = [406, 200]
    rule = Rule(recover=other_headers)
    assert send(server.url, rules={406: rule}, request={"headers": {"X-Version": "1"}})[0].status == 200
    assert [request.headers["x-version"] for request in server.received] == ["1", "2"]


# Errors for statuses


@pytest.mark.parametrize("raised_by", ["session", "request"])
def test_a_status_that_would_be_raised_is_retried_first(server, raised_by):
    server.answers = [500, 500, 200]
    given = {raised_by: {"raise_for_status": True}}
    assert send(server.url, attempts=5, **given)[0].status == 200


def test_the_last_status_is_raised(server):
    server.answers = [404] * 5
    given = {"rules": {404: Rule()}, "attempts": 5}
    raised, _ = send(server.url, session={"raise_for_status": True}, **given)
    assert (type(raised), raised.status, len(server.received)) == (aiohttp.ClientResponseError, 404, 5)
    server.answers = [404] * 5
    raised, _ = send(server.url, raise_status=True, **given)
    assert (type(raised), raised.status, len(server.received)) == (aiohttp.ClientResponseError, 404, 10)


def test_a_request_may_say_that_no_status_is_raised(server):
    server.answers = [404]
    given = {"session": {"raise_for_status": True}, "request": {"raise_for_status": False}}
    assert send(server.url, **given)[0].status == 404


# Settings


def test_one_request_has_other_settings(server):
    async def use(session):
        with override(THEIRS, attempts=5):
            async with session.get(server.url) as response:
                return response.status

    server.answers = [500, 500, 200]
    assert in_session(use, retry_middleware(THEIRS, attempts=1)) == 200


def test_responses_are_checked_by_a_function(server):
    json = Answer(200, b'{"status": "ok"}', headers={"Content-Type": "application/json"})
    server.answers = [200, 200, json]
    response, text = send(server.url, until=lambda response: response.content_type == "application/json")
    assert (response.status, text, len(server.received)) == (200, '{"status": "ok"}', 3)


def test_a_response_that_is_rejected_by_all_checks_is_returned(server):
    server.answers = [403] * 3
    rejected = {"rules": {403: Rule()}, "until": lambda response: False}
    assert send(server.url, backoff=list_of([1.0] * 3), **rejected)[0].status == 403
    assert len(server.received) == 3


# Waits


def test_the_wait_doubles_from_the_start_timeout_times_the_factor(server, waits):
    server.answers = [500] * 10
    send(server.url, attempts=10)
    assert waits == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0])


def test_a_random_wait_lies_between_two_bounds(server, waits):
    server.answers = [500] * 10
    send(server.url, Policy(attempts=10, floor=0.1, base=3.0, cap=3.0))
    assert len(waits) == 9
    assert all(0.1 <= wait <= 3.0 for wait in waits)
    assert len(set(waits)) == 9


def test_waits_are_those_of_a_list(server, waits):
    server.answers = [500] * 3
    send(server.url, backoff=list_of([1.2, 2.1]))
    assert waits == [1.2, 2.1]


def test_a_jitter_is_added_to_the_wait(server, waits):
    server.answers = [500] * 4
    # random_interval_size=2.0, factor=2.0: up to 4 seconds more.
    send(server.url, attempts=4, backoff=partial(additive_jitter, spread=2.0**2.0))
    assert all(low <= wait <= low + 4 for low, wait in zip((0.2, 0.4, 0.8), waits, strict=True))


@pytest.mark.parametrize(
    ("name", "settings", "backoff"),
    [
        ("ExponentialRetry", {}, partial(exponential, base=0.2, cap=30.0)),
        ("ExponentialRetry", {"factor": 3.0}, partial(exponential, base=0.1 * 3, cap=30.0, factor=3.0)),
        ("ListRetry", {"timeouts": [9.0, 1.0, 2.0, 3.0]}, lambda attempt: [1.0, 2.0, 3.0][attempt]),
    ],
)
def test_the_waits_are_those_of_aiohttp_retry(name, settings, backoff):
    library = pytest.importorskip("aiohttp_retry")
    theirs = getattr(library, name)(**settings)
    expected = [theirs.get_timeout(attempt) for attempt in (1, 2, 3)]
    assert [backoff(attempt) for attempt in range(3)] == pytest.approx(expected)


# Differences, as the page describes them


def test_differs_an_async_check_belongs_into_a_block(server):
    async def checked(response):
        return True

    with pytest.raises(TypeError, match="until must be a plain function"):
        retry_middleware(until=checked)

    async def use(session):
        async for attempt in retrying(attempts=5):
            async with attempt, session.get(server.url) as response:
                if await response.text() != "ready":
                    attempt.again("not ready")
        return attempt.number

    server.answers = [200, 200, Answer(200, b"ready")]
    assert in_session(use) == 3


def test_differs_other_urls_belong_into_a_block(server):
    async def use(session):
        urls = [f"http://{server.host}/first", f"http://{server.host}/second"]
        async for attempt in retrying(attempts=2):
            async with attempt, session.get(urls[attempt.number - 1], raise_for_status=True) as response:
                path = response.url.path
        return path

    server.answers = [500, 200]
    assert in_session(use) == "/second"


def test_differs_a_policy_does_not_change(server):
    middleware = retry_middleware(policy := Policy(attempts=2))
    with pytest.raises(AttributeError):
        policy.attempts = 5

    async def use(session):
        async with session.get(server.url) as response:
            return response.status

    server.answers = [500] * 3
    assert in_session(use, middleware) == 500
    assert len(server.received) == 2


def test_differs_methods_are_not_listed(server):
    with pytest.raises(TypeError, match="methods"):
        retry_middleware(methods={"POST"})
    server.answers = [500, 200, 500]
    assert send(server.url, idempotent=True)[0].status == 200
    assert send(server.url, idempotent=False)[0].status == 500


def test_differs_the_number_of_an_attempt_is_read_in_a_middleware_inside(server):
    numbers = []

    async def numbered(request, handler):
        attempt = current_attempt()
        numbers.append(attempt and attempt.number)
        return await handler(request)

    async def use(session):
        async with session.get(server.url):
            pass

    server.answers = [500, 500, 200]
    in_session(use, retry_middleware(), numbered)
    assert numbers == [None, 2, 3]
    server.answers = [500, 200]
    in_session(use, retry_middleware(deadline=60.0), numbered)
    assert numbers[3:] == [1, 2]


def test_differs_raise_status_leaves_statuses_alone_that_are_not_retried(server):
    server.answers = [404]
    assert send(server.url, raise_status=True)[0].status == 404
