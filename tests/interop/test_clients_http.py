"""Rules that hold for every HTTP client of `redouble.clients`, against a server that fails as a test asks for.

`retrying_clients` has an adapter for each client. Pools, connections and concurrency are in ``test_clients_pools.py``.
"""

from __future__ import annotations

import time
from email.utils import formatdate

import pytest

from interop.server import garbage, half, hang_up, kept, reset, stall, stalled_body, status, truncated
from interop.support import in_long_mode, left_out
from redouble import DeadlineExceeded, history, retry
from redouble.context import incoming
from redouble.testing import no_waits

pytestmark = in_long_mode

KEY = {"Idempotency-Key": "order-1"}


@pytest.mark.parametrize("name", ["httpx", "httpx2", "requests", "aiohttp", "urllib3"])
def test_every_client_is_tried(name):
    left_out(name)


# Statuses


@pytest.mark.parametrize("code", [408, 425, 429, 500, 502, 503, 504, 520, 521, 529])
def test_a_get_is_sent_again_after_a_transient_status(connect, web, code):
    page = web.page(status(code), status(200, body=b"done"))
    with no_waits():
        response = connect().send("GET", page.url)
    assert (response.status, response.body, len(page.seen)) == (200, b"done", 2)


@pytest.mark.parametrize("code", [200, 201, 304, 400, 401, 403, 404, 409, 410, 422, 501, 505])
def test_another_status_is_returned_at_once_without_a_history(connect, web, code):
    page = web.page(status(code, body=b""))
    response = connect().send("GET", page.url)
    assert (response.status, len(page.seen), history(response.raw)) == (code, 1, None)


@pytest.mark.parametrize("method", ["POST", "PATCH"])
@pytest.mark.parametrize("code", [408, 500, 502, 503, 504])
def test_a_request_that_may_have_acted_is_sent_once(connect, web, method, code):
    page = web.page(status(code))
    with no_waits() as waits:
        response = connect().send(method, page.url, b"{}")
    assert (response.status, len(page.seen), waits) == (code, 1, [])


@pytest.mark.parametrize(
    "answer", [status(425), status(429), status(503, ("Retry-After", "1"))], ids=["425", "429", "hint"]
)
def test_a_post_without_effect_is_sent_again_with_its_body(connect, web, answer):
    page = web.page(answer, status(200))
    with no_waits():
        assert connect().send("POST", page.url, b"order").status == 200
    assert [request.body for request in page.seen] == [b"order", b"order"]


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "PUT", "DELETE"])
def test_an_idempotent_method_is_sent_again(connect, web, method):
    page = web.page(status(503, body=b""), status(200, body=b""))
    with no_waits():
        assert connect().send(method, page.url).status == 200
    assert [request.method for request in page.seen] == [method] * 2


def test_the_last_response_is_returned_with_its_body_and_its_history(connect, web):
    page = web.page(status(503, body=b"busy"))
    with no_waits():
        response = connect(attempts=3).send("GET", page.url)
    assert (response.status, response.body, len(page.seen)) == (503, b"busy", 3)
    assert history(response.raw).attempts == 3


def test_raise_status_raises_an_error_of_the_client(connect, web):
    page, client = web.page(status(503)), connect(attempts=3, raise_status=True)
    with no_waits(), pytest.raises(client.errors) as caught:
        client.send("GET", page.url)
    assert (len(page.seen), history(caught.value).attempts) == (3, 3)


# Keys


def test_a_post_with_a_key_of_the_policy_is_sent_again_with_the_same_key(connect, web):
    page = web.page(status(500), reset, status(200))
    with no_waits():
        assert connect(idempotency_key=True).send("POST", page.url, b"order").status == 200
    keys = [request.headers["Idempotency-Key"] for request in page.seen]
    assert (len(keys), len(set(keys))) == (3, 1)


def test_two_posts_have_different_keys(connect, web):
    page, client = web.page(status(200)), connect(idempotency_key=True)
    for _ in range(2):
        client.send("POST", page.url, b"order")
    assert len({request.headers["Idempotency-Key"] for request in page.seen}) == 2


# Hints

HINTS = {
    "seconds": ("Retry-After", lambda: "7", 7.0),
    "fraction": ("Retry-After", lambda: "1.5", 1.5),
    "date": ("Retry-After", lambda: formatdate(time.time() + 30, usegmt=True), 30.0),
    "past date": ("Retry-After", lambda: "Sun, 06 Nov 1994 08:49:37 GMT", 0.0),
    "milliseconds": ("retry-after-ms", lambda: "2500", 2.5),
    "rate limit": ("RateLimit-Reset", lambda: "17", 17.0),
    "epoch": ("X-RateLimit-Reset", lambda: str(int(time.time()) + 40), 40.0),
}


@pytest.mark.parametrize("form", HINTS)
def test_a_wait_is_as_long_as_the_server_asks_for(connect, web, form):
    header, value, seconds = HINTS[form]
    page = web.page(status(429, (header, value())), status(200))
    with no_waits() as waits:
        assert connect(base=0.25).send("GET", page.url).status == 200
    # A date has whole seconds, and time passes until it is read.
    early = 2.0 if form in ("date", "epoch") else 0.0
    assert len(waits) == 1
    assert seconds - early <= waits[0] <= seconds + 0.25


def test_the_wait_is_made(connect, web):
    page, began = web.page(status(503, ("retry-after-ms", "200")), status(200)), time.monotonic()
    assert connect().send("GET", page.url).status == 200
    assert time.monotonic() - began >= 0.2


def test_a_hint_above_max_retry_after_is_not_waited_for(connect, web):
    page = web.page(status(503, ("Retry-After", "500")))
    with no_waits() as waits:
        response = connect().send("GET", page.url)
    assert (response.status, len(page.seen), waits) == (503, 1, [])


def test_a_hint_beyond_the_deadline_is_a_timeout_of_the_client_at_once(connect, web):
    page, client, began = (
        web.page(status(503, ("Retry-After", "60"))),
        connect(deadline=5.0),
        time.monotonic(),
    )
    with pytest.raises(client.timeouts) as caught:
        client.send("GET", page.url)
    assert isinstance(caught.value, DeadlineExceeded)
    assert (len(page.seen), time.monotonic() - began < 4) == (1, True)


# Connections that are lost


@pytest.mark.parametrize("failure", [reset, hang_up])
def test_a_get_is_sent_again_after_its_connection_was_lost(connect, web, failure):
    page = web.page(failure, status(503), failure, status(200))
    with no_waits():
        assert connect().send("GET", page.url).status == 200
    assert len(page.seen) == 4


@pytest.mark.parametrize("failure", [reset, hang_up, garbage])
def test_a_post_is_not_sent_again_after_its_connection_was_lost(connect, web, failure):
    page, client = web.page(failure, status(200)), connect()
    with no_waits(), pytest.raises(client.errors):
        client.send("POST", page.url, b"order")
    assert len(page.seen) == 1


@pytest.mark.parametrize("failure", [reset, hang_up])
def test_a_post_with_a_key_of_the_caller_is_sent_again_after_its_connection_was_lost(connect, web, failure):
    page = web.page(failure, status(200))
    with no_waits():
        assert connect().send("POST", page.url, b"order", KEY).status == 200
    assert [request.headers["Idempotency-Key"] for request in page.seen] == ["order-1"] * 2


@pytest.mark.parametrize("failure", [reset, hang_up])
def test_attempts_are_counted_and_the_error_is_that_of_the_client(connect, web, failure):
    page, client = web.page(failure), connect(attempts=3)
    with no_waits() as waits, pytest.raises(client.errors) as caught:
        client.send("GET", page.url)
    assert (len(page.seen), len(waits), history(caught.value).attempts) == (3, 2, 3)


def test_a_post_is_sent_again_to_a_server_that_refused_the_connection(connect, web):
    client = connect(attempts=3)
    with no_waits() as waits, pytest.raises(client.errors) as caught:
        client.send("POST", web.refused_url, b"order")
    assert (len(waits), history(caught.value).attempts) == (2, 3)


# Bodies that break off


@pytest.mark.parametrize("answer", [truncated, half(then=reset)], ids=["closed", "reset"])
def test_a_body_that_breaks_off_is_retried_only_where_the_client_reads_it_in_the_attempt(
    connect, web, answer
):
    page, client = web.page(answer, status(200)), connect()
    with no_waits():
        if client.reads_body_in_attempt:
            assert client.send("GET", page.url).status == 200
        else:
            with pytest.raises(client.errors):
                client.send("GET", page.url)
    assert len(page.seen) == 1 + client.reads_body_in_attempt


@pytest.mark.parametrize("answer", [truncated, half(then=reset)], ids=["closed", "reset"])
def test_a_streamed_body_that_breaks_off_is_not_retried(connect, web, answer):
    page, client = web.page(answer, status(200)), connect()
    with no_waits(), pytest.raises(client.errors):
        client.stream("GET", page.url)
    assert len(page.seen) == 1


def test_a_stream_is_retried_until_its_headers(connect, web):
    page = web.page(status(503), hang_up, status(200, body=b"x" * 100_000))
    with no_waits():
        assert connect().stream("GET", page.url) == (200, b"x" * 100_000)
    assert len(page.seen) == 3


def test_an_enclosing_call_retries_a_body_that_broke_off(connect, web):
    page, client = web.page(truncated, status(200)), connect()
    with no_waits():
        assert retry(client.send)("GET", page.url).status == 200
    assert len(page.seen) == 2


@pytest.mark.parametrize("answer", [half(503), half(503, then=reset)], ids=["closed", "reset"])
def test_a_response_that_breaks_off_and_is_thrown_away_is_retried(connect, web, answer, caplog):
    page = web.page(answer, status(200))
    with no_waits():
        assert connect().send("GET", page.url).status == 200
    assert len(page.seen) == 2


# Stalls


def took(function, *args):
    """Return the error of a call and how long it took."""
    began = time.monotonic()
    with pytest.raises(Exception) as caught:
        function(*args)
    return caught.value, time.monotonic() - began


def test_an_answer_that_never_comes_ends_with_the_deadline_as_a_timeout_of_the_client(connect, web):
    page, client = web.page(stall), connect(deadline=0.3)
    error, seconds = took(client.send, "GET", page.url)
    assert isinstance(error, client.timeouts)
    assert isinstance(error, DeadlineExceeded)
    assert 0.2 < seconds < 3
    assert len(page.seen) == 1


def test_each_attempt_ends_with_its_timeout_and_the_error_is_a_timeout_of_the_client(connect, web):
    page, client = web.page(stall), connect(timeout=0.15, attempts=2)
    error, seconds = took(client.send, "GET", page.url)
    assert isinstance(error, client.timeouts)
    assert 0.28 < seconds < 3
    assert (len(page.seen), history(error).attempts) == (2, 2)


def test_an_attempt_after_one_that_stalled_succeeds(connect, web):
    page, client = web.page(stall, status(200)), connect(timeout=0.15)
    assert client.send("GET", page.url).status == 200
    assert len(page.seen) == 2


def test_a_post_that_stalled_is_not_sent_again(connect, web):
    page, client = web.page(stall, status(200)), connect(timeout=0.15)
    error, _ = took(client.send, "POST", page.url, b"order")
    assert isinstance(error, client.timeouts)
    assert len(page.seen) == 1


def test_the_time_of_an_enclosing_call_limits_an_attempt(connect, web):
    page, client = web.page(stall), connect()
    with incoming({"X-Request-Timeout-Ms": "300"}):
        error, seconds = took(client.send, "GET", page.url)
    assert isinstance(error, client.timeouts)
    assert isinstance(error, DeadlineExceeded)
    assert 0.2 < seconds < 3


def test_a_body_that_stalls_ends_with_the_time_that_was_left_for_it(connect, web):
    page, client = web.page(stalled_body), connect(deadline=0.3)
    if client.is_async:
        pytest.skip("the attempt of an async client is over with the headers, and its own timeouts apply")
    error, seconds = took(client.send, "GET", page.url)
    assert isinstance(error, client.errors)
    assert seconds < 3


@pytest.mark.parametrize("options", [{"deadline": 0.4}, {"timeout": 0.4, "attempts": 2}])
def test_a_response_that_stalls_while_it_is_thrown_away_does_not_hold_up_the_call(connect, web, options):
    page, client = web.page(half(503, then=stall), status(200)), connect(**options)
    began = time.monotonic()
    if "deadline" in options:
        with pytest.raises(client.timeouts) as caught:
            client.send("GET", page.url)
        assert isinstance(caught.value, DeadlineExceeded)
    else:
        assert client.send("GET", page.url).status == 200
    assert time.monotonic() - began < 3


# Redirects


def elsewhere(page):
    """Return the address of a page under another name of the same machine."""
    return page.url.replace("127.0.0.1", "localhost")


def test_the_target_of_a_redirect_is_retried(connect, web):
    target = web.page(status(503), status(200, body=b"done"))
    page, client = web.page(status(302, ("Location", target.url))), connect()
    with no_waits():
        assert client.send("GET", page.url).body == b"done"
    assert (len(page.seen), len(target.seen)) == (1 + client.follows_redirects_in_attempt, 2)


def test_headers_for_one_host_do_not_go_where_a_redirect_leads(connect, web):
    target = web.page(status(200))
    page = web.page(status(503), status(302, ("Location", elsewhere(target))))
    client = connect(propagate_to=["127.0.0.1"], deadline=20.0)
    with no_waits():
        assert client.send("GET", page.url).status == 200
    sent = [request.headers["X-Retry-Attempt"] for request in page.seen]
    assert sent == ["1", "2"]
    assert all(0 < int(request.headers["X-Request-Timeout-Ms"]) <= 20_000 for request in page.seen)
    assert target.seen[0].headers["X-Retry-Attempt"] is None
    assert target.seen[0].headers["X-Request-Timeout-Ms"] is None


def test_a_redirect_back_to_the_host_has_its_headers_again(connect, web):
    client = connect(propagate_to=["127.0.0.1"], deadline=20.0)
    if client.follows_redirects_in_attempt:
        pytest.skip("the client follows redirects by itself, without the headers of an attempt")
    last = web.page(status(200))
    between = web.page(status(302, ("Location", last.url)))
    page = web.page(status(302, ("Location", elsewhere(between))))
    assert client.send("GET", page.url).status == 200
    assert between.seen[0].headers["X-Retry-Attempt"] is None
    assert last.seen[0].headers["X-Retry-Attempt"] == "1"


def test_a_post_that_is_redirected_has_one_key_at_its_target(connect, web):
    target = web.page(status(500), status(200))
    page = web.page(status(307, ("Location", target.url)))
    with no_waits():
        assert connect(idempotency_key=True).send("POST", page.url, b"order").status == 200
    keys = [request.headers["Idempotency-Key"] for request in target.seen]
    assert (len(keys), len(set(keys))) == (2, 1)
    assert [request.body for request in target.seen] == [b"order"] * 2


def test_a_redirect_that_leads_to_itself_is_not_retried(connect, web):
    page = web.page_by(lambda request: status(302, ("Location", request.path)))
    client = connect(attempts=3)
    with no_waits() as waits, pytest.raises(client.errors):
        client.send("GET", page.url)
    assert waits == []


# TLS


@pytest.fixture
def certificate(secure_web):
    """The certificate of the TLS port."""
    return secure_web.secure_page() and secure_web.certificate


def test_a_request_over_tls_is_retried(connect, secure_web, certificate):
    page = secure_web.secure_page(status(503), reset, hang_up, status(200))
    with no_waits():
        assert connect(certificate=certificate).send("GET", page.url).status == 200
    assert len(page.seen) == 4


def test_a_connection_over_tls_is_used_again(connect, secure_web, certificate):
    page = secure_web.secure_page(kept(503), kept(200))
    with no_waits():
        assert connect(certificate=certificate, connections=1).send("GET", page.url).status == 200
    assert page.connections == [0, 0]


def test_a_certificate_that_nobody_trusts_is_not_asked_for_twice(connect, secure_web):
    page, client = secure_web.secure_page(status(200)), connect()
    with no_waits() as waits, pytest.raises(client.errors, match=r"(?i)certificate"):
        client.send("GET", page.url)
    assert (waits, page.seen) == ([], [])


# Results


def code(response):
    """Return the status of a response of any client."""
    return response.status_code if hasattr(response, "status_code") else response.status


def test_until_rejects_a_response_that_the_status_accepts(connect, web):
    page = web.page(status(202), status(200))
    client = connect(until=lambda response: code(response) != 202)
    with no_waits():
        assert client.send("GET", page.url).status == 200
    assert len(page.seen) == 2
