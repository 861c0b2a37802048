"""What the tests of httpx-retries ask for, held by `redouble.clients.httpx`; and what differs on purpose.

The differences are those of `docs/coming-from/httpx-retries.md`.
"""

from __future__ import annotations

import asyncio
import contextvars
import email.utils
import itertools
import logging
import time
from functools import partial
from http import HTTPStatus

import pytest

from redouble import Policy, history
from redouble.backoff import exponential, proportional_jitter
from redouble.classify import Classifier, accepted, parse_retry_after

from .every_client import NO_CERTIFICATES

httpx = pytest.importorskip("httpx")
from redouble.clients.httpx import AsyncRetryTransport, RetryTransport  # noqa: E402

URL = "https://example.org/orders"
# The settings that httpx-retries has by default.
THEIR_STATUSES = Classifier(statuses=[429, 502, 503, 504])
THEIRS = Policy(attempts=11, base=0.0, on=THEIR_STATUSES)


class Answering(httpx.BaseTransport, httpx.AsyncBaseTransport):
    """Gives one answer after the other, the last one for ever; or what a function of the request returns."""

    def __init__(self, *answers):
        self.answers = itertools.chain(answers[:-1], itertools.repeat(answers[-1]))
        self.given = []

    def handle_request(self, request):
        answer = next(self.answers)
        answer = answer(request) if callable(answer) else answer
        answer = httpx.Response(answer, text="body") if isinstance(answer, int) else answer
        self.given.append(answer)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def handle_async_request(self, request):
        return self.handle_request(request)


class Sync:
    transport = RetryTransport

    def send(self, transport, method="GET", url=URL, *, policy=None, **options):
        with httpx.Client(transport=transport) as client:
            return (policy.call if policy else call)(client.request, method, url, **options)


class Async:
    transport = AsyncRetryTransport

    def send(self, transport, method="GET", url=URL, *, policy=None, **options):
        async def send():
            async with httpx.AsyncClient(transport=transport) as client:
                return await (policy.call if policy else call)(client.request, method, url, **options)

        return asyncio.run(send())


def call(function, *args, **options):
    return function(*args, **options)


@pytest.fixture(params=[Sync, Async])
def flavour(request):
    return request.param()


@pytest.fixture
def send(flavour):
    """Send a request; return its response, or the error that was raised, and the answers that were given."""

    def send(*answers, policy=THEIRS, method="GET", options=None, **fields):
        inner = Answering(*answers)
        transport = flavour.transport(policy, transport=inner, **fields)
        try:
            return flavour.send(transport, method, **(options or {})), inner.given
        except Exception as error:
            return error, inner.given

    return send


def busy(status=429, **headers):
    """Return a function that makes a new response each time."""
    return lambda request: httpx.Response(
        status, headers={name.replace("_", "-"): each for name, each in headers.items()}
    )


# Which requests are retried


def test_a_success_is_sent_once_without_a_wait(send, waits):
    response, given = send(200)
    assert (response.status_code, len(given), waits) == (200, 1, [])


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_ten_retries_are_made_and_the_last_response_is_returned(send, status):
    response, given = send(status)
    assert (response.status_code, len(given), response.text) == (status, 11, "body")


@pytest.mark.parametrize("status", [403, 404, 500])
def test_a_status_that_is_not_listed_is_returned_at_once(send, status):
    response, given = send(status, 200)
    assert (response.status_code, len(given)) == (status, 1)


@pytest.mark.parametrize("status", [500, HTTPStatus.INTERNAL_SERVER_ERROR, 523, 599])
def test_statuses_are_numbers_members_of_an_enum_or_not_standard(send, status):
    policy = Policy(on=Classifier(statuses=[status]))
    assert send(int(status), 200, policy=policy)[0].status_code == 200
    assert send(502, 200, policy=policy)[0].status_code == 502


@pytest.mark.parametrize("method", ["HEAD", "GET", "PUT", "DELETE", "OPTIONS", "TRACE", "get"])
def test_idempotent_methods_are_retried_in_capitals_or_not(send, method):
    assert send(503, 200, method=method)[0].status_code == 200


@pytest.mark.parametrize("method", ["POST", "PATCH", "PROPFIND", "propfind"])
def test_other_methods_are_sent_once(send, method):
    response, given = send(503, 200, method=method)
    assert (response.status_code, len(given)) == (503, 1)
    assert send(207, method=method)[0].status_code == 207


@pytest.mark.parametrize("method", ["POST", "PROPFIND"])
def test_other_methods_are_retried_where_the_caller_says_that_it_is_safe(send, method):
    assert send(503, 200, method=method, idempotent=True)[0].status_code == 200


@pytest.mark.parametrize(
    "error",
    [
        httpx.ReadTimeout("slow"),
        httpx.ConnectTimeout("slow"),
        httpx.PoolTimeout("full"),
        httpx.TimeoutException("slow"),
        httpx.ConnectError("refused"),
        httpx.ReadError("cut"),
        httpx.WriteError("cut"),
        httpx.CloseError("cut"),
        httpx.NetworkError("cut"),
        httpx.RemoteProtocolError("garbage"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_timeouts_and_lost_connections_are_retried_and_then_raised_as_they_are(send, error):
    raised, given = send(error)
    assert (raised, len(given)) == (error, 11)


@pytest.mark.parametrize(
    "error",
    [httpx.LocalProtocolError("mine"), httpx.UnsupportedProtocol("gopher"), ValueError("oops")],
    ids=lambda error: type(error).__name__,
)
def test_other_errors_are_raised_at_once(send, error):
    raised, given = send(error, 200)
    assert (raised, len(given)) == (error, 1)


@pytest.mark.parametrize("error", [ValueError("oops"), httpx.ProxyError("no")], ids=["any", "of httpx"])
def test_errors_that_are_named_are_retried_and_no_others(send, error):
    policy = Policy(attempts=11, base=0.0, on=type(error), until=accepted)
    assert len(send(error, policy=policy)[1]) == 11
    assert len(send(httpx.ReadTimeout("slow"), policy=policy)[1]) == 1
    assert len(send(503, policy=policy)[1]) == 11  # until=accepted: statuses are retried all the same


def test_each_request_has_its_own_attempts(flavour):
    transport = flavour.transport(THEIRS, transport=(inner := Answering(429)))
    for count in (11, 22):
        assert flavour.send(transport).status_code == 429
        assert len(inner.given) == count


def test_responses_that_are_retried_are_closed_and_the_last_one_is_not():
    inner = Answering(*(httpx.Response(503, stream=Unread()) for _ in range(4)))
    with httpx.Client(transport=RetryTransport(transport=inner)) as client:
        with client.stream("GET", URL) as response:
            assert [each.is_closed for each in inner.given] == [True, True, True, False]
    assert response.is_closed


class Unread(httpx.SyncByteStream):
    def __iter__(self):
        raise AssertionError("a body without a length is read")


# Waits


def test_without_a_base_retries_do_not_wait(send, waits):
    send(503)
    assert set(waits) <= {0.0}


def test_the_wait_doubles_from_twice_the_backoff_factor(send, waits):
    send(503, attempts=5, base=2 * 0.5, backoff=exponential)
    assert waits == [1.0, 2.0, 4.0, 8.0]
    pytest.importorskip("httpx_retries")
    from httpx_retries import Retry

    theirs = [Retry(backoff_factor=0.5, backoff_jitter=0, attempts_made=made) for made in (1, 2, 3, 4)]
    assert waits == [retry.backoff_strategy() for retry in theirs]


def test_full_jitter_draws_a_wait_from_zero_to_the_same_bound(send, waits):
    send(503, attempts=6, base=2 * 0.5)
    assert all(0 <= wait <= bound for wait, bound in zip(waits, (1, 2, 4, 8, 16), strict=True))


def test_part_of_a_wait_may_be_random(send, waits):
    # backoff_jitter=0.5 draws from half of the bound to the bound: three quarters of it, plus or minus a third.
    send(503, attempts=5, base=0.75, backoff=partial(proportional_jitter, spread=1 / 3))
    assert all(bound / 2 <= wait <= bound for wait, bound in zip(waits, (1, 2, 4, 8), strict=True))


def test_no_wait_is_longer_than_the_cap(send, waits):
    send(503, base=2.0, backoff=exponential, cap=5.0)
    assert max(waits) == 5.0


def test_a_wait_is_as_long_as_the_server_asks(send, waits):
    send(busy(retry_after="5"))
    assert waits == [5.0] * 10  # without a base there is no jitter on top


@pytest.mark.parametrize("value", ["0", "invalid date", "\u0665", "Mon, 03 Jun 2019 11:00:00 GMT"])
def test_an_invalid_or_past_retry_after_leaves_the_wait_to_the_backoff(send, waits, value):
    send(
        lambda request: httpx.Response(429, headers=[(b"retry-after", value.encode())]), attempts=2, base=2.0
    )
    assert len(waits) == 1
    assert 0 < waits[0] <= 2.0


def test_retry_after_is_a_number_or_a_date():
    now = time.time()
    assert parse_retry_after("5") == 5.0
    assert parse_retry_after(email.utils.formatdate(now + 5, usegmt=True), now=now) == pytest.approx(5, abs=1)
    assert parse_retry_after(email.utils.formatdate(now - 5, usegmt=True), now=now) == 0.0
    assert [parse_retry_after(value) for value in ("invalid", "\u0665", "\u00b2")] == [None] * 3


@pytest.mark.parametrize("seconds", ["3", "120"])
def test_all_waits_together_have_a_limit(send, waits, seconds):
    response, given = send(busy(retry_after=seconds), give_up_after=10.0)
    assert response.status_code == 429
    assert sum(waits) <= 10
    assert len(given) < 10


# Settings


@pytest.mark.parametrize(
    "wrong", [{"attempts": 0}, {"base": -0.5}, {"cap": -1}, {"give_up_after": -1}, {"deadline": 0}]
)
def test_a_setting_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        RetryTransport(transport=Answering(200), **wrong)


def test_a_policy_is_not_changed_by_requests_and_replace_makes_another(flavour):
    policy = Policy(attempts=3, base=0.0)
    transport = flavour.transport(policy, transport=Answering(503))
    flavour.send(transport)
    assert transport.policy == policy == Policy(attempts=3, base=0.0)
    assert policy.replace(base=1.0) == Policy(attempts=3, base=1.0)


def test_a_request_has_its_own_policy(send):
    response, given = send(429, options={"extensions": {"retry": THEIRS.replace(attempts=3)}})
    assert (len(given), response.extensions["redouble"].attempts) == (3, 3)


def test_any_transport_is_inside(flavour):
    mock = httpx.MockTransport(lambda request: httpx.Response(200))
    assert flavour.send(flavour.transport(transport=mock)).status_code == 200


# Responses that are checked


def test_a_check_is_made_until_it_accepts_the_response(send):
    seen = []

    def ready(response):
        seen.append(response.status_code)
        return len(seen) == 3

    response, given = send(200, until=ready)
    assert (response.status_code, len(given), seen) == (200, 3, [200] * 3)


def test_a_check_that_raises_ends_the_call(send):
    def check(response):
        raise ValueError("bad response")

    raised, given = send(200, until=check)
    assert (str(raised), len(given)) == ("bad response", 1)


def test_a_response_that_no_check_accepted_is_returned(send):
    response, given = send(200, until=lambda response: False, attempts=4)
    assert (response.status_code, len(given)) == (200, 4)


def test_a_check_does_not_see_a_response_that_is_retried_for_its_status(send):
    seen = []
    send(503, 200, until=lambda response: seen.append(response.status_code) or True)
    assert seen == [200]


# Tasks side by side


def in_tasks(answer, use, sleep):
    """Run ``use`` with a client whose waits are those of ``sleep``."""

    async def run():
        transport = AsyncRetryTransport(transport=Answering(answer), sleep=sleep)
        async with httpx.AsyncClient(transport=transport) as client:
            await asyncio.wait_for(use(client), 30)
        assert transport.policy == Policy(sleep=sleep)

    contextvars.Context().run(asyncio.run, run())  # where waits are not skipped


def first_fails():
    seen = set()

    def answer(request):
        status = 200 if request.url.path == "/fast" or request.url.path in seen else 503
        seen.add(request.url.path)
        return httpx.Response(status)

    return answer


def test_a_request_that_waits_blocks_no_other():
    waiting, over = asyncio.Event(), asyncio.Event()

    async def sleep(seconds):
        waiting.set()
        await over.wait()

    async def use(client):
        slow = asyncio.create_task(client.get("https://example.org/slow"))
        await waiting.wait()
        assert (await client.get("https://example.org/fast")).status_code == 200
        assert not slow.done()
        over.set()
        assert (await slow).status_code == 200

    in_tasks(first_fails(), use, sleep)


def test_requests_wait_at_the_same_time():
    all_wait = asyncio.Barrier(3)

    async def sleep(seconds):
        await all_wait.wait()  # for ever, if one of them waited before the others

    async def use(client):
        urls = [f"https://example.org/{name}" for name in "abc"]
        responses = await asyncio.gather(*map(client.get, urls))
        assert [response.status_code for response in responses] == [200] * 3

    in_tasks(first_fails(), use, sleep)


# Bodies that break off: httpx reads them above its transports, so a policy goes around the client


class Broken(httpx.SyncByteStream, httpx.AsyncByteStream):
    def __init__(self, error):
        self.error = error

    def __iter__(self):
        raise self.error
        yield

    async def __aiter__(self):
        raise self.error
        yield


BODY_ERRORS = [httpx.ReadTimeout("slow"), httpx.RemoteProtocolError("peer closed connection")]


@pytest.mark.parametrize("error", BODY_ERRORS, ids=["stalls", "breaks off"])
def test_a_policy_around_the_client_retries_a_body_that_breaks_off(flavour, error):
    inner = Answering(*[lambda request: httpx.Response(200, stream=Broken(error))] * 2, 200)
    assert flavour.send(inner, policy=Policy()).text == "body"
    assert len(inner.given) == 3


def test_a_body_that_always_breaks_off_raises_the_last_error(flavour):
    inner = Answering(lambda request: httpx.Response(200, stream=Broken(httpx.ReadTimeout("slow"))))
    with pytest.raises(httpx.ReadTimeout, match="slow"):
        flavour.send(inner, policy=Policy(attempts=4))
    assert len(inner.given) == 4


def test_a_post_whose_body_breaks_off_is_sent_once(flavour):
    inner = Answering(httpx.Response(200, stream=Broken(httpx.ReadTimeout("slow"))), 200)
    with pytest.raises(httpx.ReadTimeout):
        flavour.send(inner, "POST", policy=Policy())
    assert len(inner.given) == 1


def test_a_policy_around_the_client_keeps_its_options(flavour):
    inner = Answering(
        503,
        lambda request: httpx.Response(302, headers={"location": URL + "/2"}),
        lambda request: httpx.Response(200, text=request.headers["authorization"]),
    )
    response = flavour.send(
        inner, policy=Policy(until=accepted), auth=("name", "password"), follow_redirects=True
    )
    assert response.text.startswith("Basic ")
    assert response.url.path == "/orders/2"


def test_a_policy_around_a_client_that_retries_does_not_multiply(flavour):
    inner = Answering(lambda request: httpx.ReadTimeout("slow"))
    with pytest.raises(httpx.ReadTimeout) as caught:
        flavour.send(flavour.transport(transport=inner, attempts=3), policy=Policy(attempts=3))
    assert len(inner.given) == 3
    assert history(caught.value).attempts == 3


# Differences, as the page describes them


def test_differs_a_post_is_retried_after_an_answer_that_says_it_had_no_effect(send):
    assert send(429, 201, method="POST")[0].status_code == 201
    assert send(busy(503, retry_after="1"), 201, method="POST")[0].status_code == 201


def test_differs_a_proxy_that_fails_is_retried(send):
    assert send(httpx.ProxyError("502 Bad Gateway"), 200)[0].status_code == 200


def test_differs_a_wait_is_never_shorter_than_the_backoff(send, waits):
    send(busy(retry_after="1"), attempts=4, base=4.0, backoff=exponential)
    # The server's second, with up to one base of jitter on top, is longer than the first wait at most.
    assert 4.0 <= waits[0] <= 5.0
    assert waits[1:] == [8.0, 16.0]


def test_differs_a_wait_that_is_too_long_is_not_cut_but_ends_the_call(send, waits):
    response, given = send(busy(retry_after="10"), max_retry_after=5.0)
    assert (response.status_code, len(given), waits) == (429, 1, [])


def test_differs_a_date_without_a_time_zone_is_not_a_hint():
    assert parse_retry_after("Mon, 03 Jun 2199 11:00:00") is None


def test_differs_a_generator_is_not_sent_again_and_the_response_is_returned():
    def answer(request):
        b"".join(request.stream)
        return httpx.Response(503)

    response = Sync().send(RetryTransport(transport=Answering(answer)), "PUT", content=iter([b"half"]))
    assert response.status_code == 503
    assert "its body was a generator, which is used up" in response.__notes__[0]


def test_differs_a_check_returns_a_bool_and_its_error_is_not_retried(send):
    def check(response):
        raise httpx.TimeoutException("not ready yet")

    assert len(send(200, until=check)[1]) == 1


def test_differs_a_check_is_not_async(flavour):
    async def check(response):
        return True

    with pytest.raises(TypeError, match="until must be a plain function"):
        flavour.transport(transport=Answering(200), until=check)


def test_differs_a_sync_client_and_an_async_client_need_a_transport_each():
    with pytest.raises(TypeError, match="use AsyncRetryTransport"):
        RetryTransport(transport=httpx.AsyncHTTPTransport(verify=NO_CERTIFICATES))
    with pytest.raises(TypeError, match="use RetryTransport"):
        AsyncRetryTransport(transport=httpx.HTTPTransport(verify=NO_CERTIFICATES))


def test_differs_only_the_last_response_of_a_call_that_gave_up_has_a_history(send):
    response, _ = send(503, 200)
    assert not {"retry", "redouble"} & set(response.extensions)
    assert send(503)[0].extensions["redouble"].attempts == 11


def test_differs_each_retry_is_logged_once_and_a_success_is_not(send, caplog):
    caplog.set_level(logging.DEBUG, "redouble")
    send(200)
    assert caplog.records == []
    send(503, attempts=3)
    assert [record.message.partition(" ")[0] for record in caplog.records] == ["retrying", "retrying", "gave"]
