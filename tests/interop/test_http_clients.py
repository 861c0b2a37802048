"""requests, httpx, aiohttp, urllib3 and urllib against the HTTP server of ``server.py``.

Each test runs with each client. A client is a function that sends one request and reads the response. The failure is what
it raises, or the response if the library does not raise for a status.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
import time
import urllib.error
import urllib.request
from email.utils import formatdate
from typing import TYPE_CHECKING, Any

import pytest

from interop.processes import until
from interop.server import Web, garbage, hang_up, reset, stall, stalled_body, status, truncated
from interop.support import (
    each,
    error_in,
    error_of,
    installed,
    judged,
    left_out,
    permanent,
    transient,
    unprocessed,
)
from redouble import ResultRejected, retry
from redouble.classify import accepted, verdict
from redouble.testing import no_waits

if TYPE_CHECKING:
    from collections.abc import Callable

    Client = Callable[..., Any]

PATIENT = 10.0


def with_requests(method: str, url: str, timeout: float = PATIENT, **options: Any) -> Any:
    import requests

    response = requests.request(method, url, timeout=timeout, **options)
    response.raise_for_status()
    return response


def with_httpx(method: str, url: str, timeout: float = PATIENT, **options: Any) -> Any:
    import httpx

    return httpx.request(method, url, timeout=timeout, **options).raise_for_status()


async def async_httpx(method: str, url: str, timeout: float = PATIENT, **options: Any) -> Any:
    import httpx

    async with httpx.AsyncClient(timeout=timeout) as client:
        return (await client.request(method, url, **options)).raise_for_status()


async def async_aiohttp(method: str, url: str, timeout: float = PATIENT, **options: Any) -> Any:
    import aiohttp

    # Not total=, which ends in a bare TimeoutError that no longer knows what it was waiting for.
    limits = aiohttp.ClientTimeout(sock_connect=timeout, sock_read=timeout)
    async with aiohttp.ClientSession(timeout=limits, raise_for_status=True) as session:
        async with session.request(method, url, **options) as response:
            await response.read()
            return response


def with_urllib3(method: str, url: str, timeout: float = PATIENT, **options: Any) -> Any:
    import urllib3

    with urllib3.PoolManager(retries=False, cert_reqs="CERT_REQUIRED") as pool:
        return pool.request(method, url, timeout=timeout, **options)


def with_urllib(
    method: str, url: str, timeout: float = PATIENT, headers: Any = None, data: bytes | None = None
) -> Any:
    request = urllib.request.Request(url, data, headers or {}, method=method)
    with urllib.request.urlopen(request, timeout=timeout) as response:
        response.read()
        return response


def waiting(function: Callable[..., Any]) -> Client:
    """Wrap an async function as a sync one."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return asyncio.run(function(*args, **kwargs))

    return call


CLIENTS: dict[str, Client] = {
    "requests": with_requests,
    "httpx": with_httpx,
    "httpx-async": waiting(async_httpx),
    "aiohttp": waiting(async_aiohttp),
    "urllib3": with_urllib3,
    "urllib": with_urllib,
}


@pytest.fixture(params=installed(CLIENTS))
def client(request: pytest.FixtureRequest) -> Client:
    """Run the test with every client that is installed."""
    return CLIENTS[request.param]


@pytest.mark.parametrize("name", ["requests", "httpx", "aiohttp", "urllib3"])
def test_every_client_is_tried(name: str) -> None:
    left_out(name)


def failure(client: Client, method: str, url: str, **options: Any) -> Any:
    """Return the exception or the response of a failed request."""
    if client is with_urllib3:
        return client(method, url, **options)
    error = error_of(client, method, url, **options)
    if isinstance(error, urllib.error.HTTPError):
        error.close()
    return error


# Failures below HTTP.


def test_a_refused_connection_is_unprocessed(client: Client, web: Web) -> None:
    assert judged(error_of(client, "GET", web.refused_url)) == unprocessed("connection")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ignores connections to a full queue")
@each("client", "requests", "httpx", "httpx-async", "aiohttp", "urllib3")
def test_a_connection_that_is_never_made_is_unprocessed(client: Client, web: Web) -> None:
    found = judged(error_of(client, "POST", web.full_url(), timeout=0.1))
    assert found == unprocessed(found.cause)
    assert found.cause in {"connection", "timeout"}


def test_an_answer_that_does_not_come_is_a_timeout_with_unknown_effect(client: Client, web: Web) -> None:
    error = error_of(client, "GET", web.page(stall).url, timeout=0.1)
    assert judged(error) == transient("timeout")


def test_a_body_that_stalls_is_a_timeout_with_unknown_effect(client: Client, web: Web) -> None:
    error = error_of(client, "GET", web.page(stalled_body).url, timeout=0.1)
    assert judged(error) == transient("timeout")


@each("client", "aiohttp")
def test_a_total_timeout_is_a_timeout_with_unknown_effect(client: Client, web: Web) -> None:
    import aiohttp

    async def fetch() -> None:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=0.1)) as session:
            await session.get(web.page(stall).url)

    assert judged(error_in(fetch())) == transient("timeout")


@each("client", "httpx")
def test_a_full_pool_means_that_nothing_was_sent(client: Client, web: Web) -> None:
    import httpx

    page = web.page(stalled_body)
    with httpx.Client(limits=httpx.Limits(max_connections=1), timeout=httpx.Timeout(5, pool=0.05)) as pool:
        with pool.stream("GET", page.url):
            found = judged(error_of(pool.get, page.url))
    assert found == unprocessed(found.cause)


@pytest.mark.parametrize("end", [reset, hang_up, truncated])
def test_a_connection_lost_after_the_request_leaves_the_effect_unknown(
    client: Client, web: Web, end: Any
) -> None:
    assert judged(error_of(client, "GET", web.page(end).url)) == transient("disconnected")


@each("client", "requests", "httpx", "httpx-async", "urllib3", "urllib")
def test_an_answer_that_is_no_http_leaves_the_effect_unknown(client: Client, web: Web) -> None:
    assert judged(error_of(client, "GET", web.page(garbage).url)) == transient("disconnected")


@each("client", "aiohttp")
def test_a_status_that_the_client_made_up_is_not_taken_for_the_servers(client: Client, web: Web) -> None:
    error: Any = error_of(client, "GET", web.page(garbage).url)
    assert (error.status, error.headers) == (400, None)
    assert verdict(error).status is None


def test_a_certificate_that_nobody_trusts_is_permanent(client: Client, secure_web: Web) -> None:
    error = error_of(client, "GET", secure_web.secure_page(status(200)).url)
    assert judged(error) == permanent()


def test_a_server_that_speaks_no_tls_is_permanent(client: Client, web: Web) -> None:
    error = error_of(client, "GET", web.page(garbage).url.replace("http:", "https:"))
    assert judged(error) == permanent()


@each("client", "requests", "httpx", "httpx-async", "aiohttp")
def test_an_address_without_a_scheme_is_permanent(client: Client) -> None:
    assert not judged(error_of(client, "GET", "127.0.0.1/page")).retryable


@each("client", "requests", "httpx", "httpx-async", "aiohttp")
def test_a_redirect_that_leads_to_itself_is_permanent(client: Client, web: Web) -> None:
    options = {"follow_redirects": True} if client in (CLIENTS["httpx"], CLIENTS["httpx-async"]) else {}
    page = web.page(status(302, ("Location", "again")))
    assert not judged(error_of(client, "GET", page.url + "/", **options)).retryable


# Statuses and headers.

STATUSES = [
    permanent(status=400),
    permanent("unauthorized", 401),
    permanent(status=403),
    permanent(status=404),
    permanent("conflict", 409),
    permanent(status=413),
    permanent(status=422),
    permanent(status=501),
    permanent(status=507),
    transient("timeout", 408),
    transient("server_error", 500),
    transient("server_error", 502),
    transient("unavailable", 503),
    transient("timeout", 504),
    transient("unavailable", 520),
    unprocessed("unavailable", 425),
    unprocessed("rate_limited", 429),
    unprocessed("unavailable", 521),
]


@pytest.mark.parametrize("expected", STATUSES, ids=lambda expected: expected.status)
def test_a_status_tells_what_may_be_repeated(client: Client, web: Web, expected: Any) -> None:
    page = web.page(status(expected.status))
    assert judged(failure(client, "GET", page.url)) == expected


@pytest.mark.parametrize(
    ("code", "cause"), [(403, "rate_limited"), (413, None), (429, "rate_limited"), (503, "unavailable")]
)
def test_a_status_with_a_delay_is_unprocessed(client: Client, web: Web, code: int, cause: str | None) -> None:
    found = judged(failure(client, "GET", web.page(status(code, ("Retry-After", "7"))).url))
    assert found == unprocessed(cause or found.cause, code, 7.0)


def test_a_forbidden_page_with_the_limit_used_up_is_rate_limited(client: Client, web: Web) -> None:
    headers = ("X-RateLimit-Remaining", "0"), ("X-RateLimit-Reset", str(int(time.time()) + 40))
    expected = unprocessed("rate_limited", 403, pytest.approx(40, abs=3))
    assert judged(failure(client, "GET", web.page(status(403, *headers)).url)) == expected


def in_half_a_minute(form: str) -> str:
    return time.strftime(form, time.gmtime(time.time() + 30))


DELAYS: dict[str, tuple[Callable[[], str | bytes], float | None]] = {
    "seconds": (lambda: "120", 120),
    "zero": (lambda: "0", 0),
    "blanks": (lambda: "  5 \t", 5),
    "fraction": (lambda: "1.5", 1.5),
    "date": (lambda: formatdate(time.time() + 30, usegmt=True), 30),
    "date in the past": (lambda: "Sun, 06 Nov 1994 08:49:37 GMT", 0),
    "date of RFC 850": (lambda: in_half_a_minute("%A, %d-%b-%y %H:%M:%S GMT"), 30),
    "date of asctime": (lambda: in_half_a_minute("%a %b %d %H:%M:%S %Y"), 30),
    "negative": (lambda: "-5", None),
    "exponent": (lambda: "1e3", None),
    "words": (lambda: "soon", None),
    "infinite": (lambda: "Infinity", None),
    "nothing": (lambda: "", None),
    "Arabic digit": (lambda: "٣", None),
    "no text": (lambda: b"\xe4", None),
}


@pytest.mark.parametrize("form", DELAYS)
def test_a_delay_is_read_in_every_form_that_is_valid_and_in_no_other(
    client: Client, web: Web, form: str
) -> None:
    value, seconds = DELAYS[form]
    error = failure(client, "GET", web.page(status(429, ("Retry-After", value()))).url)
    expected = None if seconds is None else pytest.approx(seconds, abs=3 if "date" in form else 0)
    assert judged(error) == unprocessed("rate_limited", 429, expected)


def test_of_two_delays_the_longer_or_the_first_counts(client: Client, web: Web) -> None:
    # Some clients join the lines and some give the first, so the longer one stands first.
    page = web.page(status(429, ("Retry-After", "120"), ("Retry-After", "60")))
    assert judged(failure(client, "GET", page.url)).retry_after == 120


@pytest.mark.parametrize(
    ("header", "value", "seconds"),
    [
        ("retry-after-ms", "250", 0.25),
        ("x-ms-retry-after-ms", "2500", 2.5),
        ("X-RateLimit-Reset-After", "4.25", 4.25),
        ("RateLimit", '"api";r=0;t=30', 30),
        ("RateLimit-Reset", "17", 17),
    ],
)
def test_the_relatives_of_retry_after_are_read_too(
    client: Client, web: Web, header: str, value: str, seconds: float
) -> None:
    error = failure(client, "GET", web.page(status(429, (header, value))).url)
    assert judged(error) == unprocessed("rate_limited", 429, seconds)


@pytest.mark.parametrize("header", ["x-should-retry", "Stripe-Should-Retry"])
def test_the_word_of_the_server_overrules_the_status(client: Client, web: Web, header: str) -> None:
    assert not verdict(failure(client, "GET", web.page(status(503, (header, "false"))).url)).retryable
    assert verdict(failure(client, "GET", web.page(status(409, (header, "true"))).url)).retryable


# From end to end.


@each("client", "requests", "httpx", "httpx-async", "aiohttp", "urllib")
def test_a_call_waits_as_long_as_the_server_asks_and_recovers(client: Client, web: Web) -> None:
    page = web.page(status(503, ("Retry-After", "2")), status(429, ("Retry-After", "5")), status(200))
    with no_waits() as waits:
        retry(base=0.5)(client)("GET", page.url)
    assert len(page.seen) == 3
    # Never before the server said, and up to one base later.
    assert [2 <= waits[0] <= 2.5, 5 <= waits[1] <= 5.5] == [True, True]


@pytest.fixture
def function(request: pytest.FixtureRequest) -> Any:
    """Return an async client as an async function."""
    return {"httpx": async_httpx, "aiohttp": async_aiohttp}[request.param]


@each("function", "httpx", "aiohttp")
def test_an_async_call_recovers_on_its_own_event_loop(function: Any, web: Web) -> None:
    page = web.page(status(503, ("Retry-After", "2")), truncated, status(200))
    with no_waits() as waits:
        asyncio.run(retry(base=0.5)(function)("GET", page.url))
    assert (len(page.seen), len(waits)) == (3, 2)


def test_a_certificate_is_not_asked_for_twice(client: Client, secure_web: Web) -> None:
    with no_waits() as waits, pytest.raises(Exception, match=r"(?i)certificate"):
        retry(client)("GET", secure_web.secure_page(status(200)).url)
    assert waits == []


def plain_requests(url: str) -> Any:
    import requests

    return requests.get(url, timeout=PATIENT)


def plain_httpx(url: str) -> Any:
    import httpx

    return httpx.get(url, timeout=PATIENT)


async def plain_async_httpx(url: str) -> Any:
    import httpx

    async with httpx.AsyncClient() as client:
        return await client.get(url)


async def plain_aiohttp(url: str) -> Any:
    import aiohttp

    async with aiohttp.ClientSession() as session, session.get(url) as response:
        await response.read()
        return response


def plain_urllib3(url: str) -> Any:
    return with_urllib3("GET", url)


PLAIN = {
    "requests": plain_requests,
    "httpx": plain_httpx,
    "httpx-async": plain_async_httpx,
    "aiohttp": plain_aiohttp,
    "urllib3": plain_urllib3,
}


@pytest.fixture
def get(request: pytest.FixtureRequest) -> Any:
    """Return a decorated function that returns the response, whatever its status."""
    function = retry(until=accepted, base=0.5)(PLAIN[request.param])
    return waiting(function) if inspect.iscoroutinefunction(PLAIN[request.param]) else function


def code(response: Any) -> int:
    found: int = response.status_code if hasattr(response, "status_code") else response.status
    return found


@each("get", *PLAIN)
def test_until_accepted_repeats_a_refused_response_and_waits_as_asked(get: Any, web: Web) -> None:
    page = web.page(status(503, ("Retry-After", "3")), status(500), status(200))
    with no_waits() as waits:
        assert code(get(page.url)) == 200
    assert (len(page.seen), len(waits)) == (3, 2)
    assert 3 <= waits[0] <= 3.5


@each("get", *PLAIN)
def test_until_accepted_takes_a_404_for_an_answer(get: Any, web: Web) -> None:
    page = web.page(status(404))
    with no_waits() as waits:
        assert code(get(page.url)) == 404
    assert (len(page.seen), waits) == (1, [])


@each("get", *PLAIN)
def test_until_accepted_gives_up_with_the_last_response(get: Any, web: Web) -> None:
    page = web.page(status(503))
    with no_waits(), pytest.raises(ResultRejected) as caught:
        get(page.url)
    assert (len(page.seen), code(caught.value.result)) == (4, 503)


@each("get", *PLAIN)
def test_until_accepted_recovers_from_exceptions_too(get: Any, web: Web) -> None:
    # Not by hanging up, since aiohttp itself sends a GET once more if there is no answer at all.
    page = web.page(truncated, status(502), status(200))
    with no_waits() as waits:
        assert code(get(page.url)) == 200
    assert len(waits) == 2


# What may be sent twice.

# These put the request on their errors; the others' transport errors do not say what was sent.
TELLING = each("client", "requests", "httpx", "httpx-async")


@TELLING
@pytest.mark.parametrize("end", [reset, hang_up, stall])
def test_a_post_that_failed_after_sending_is_not_repeated(client: Client, web: Web, end: Any) -> None:
    page = web.page(end, status(200))
    with no_waits() as waits, pytest.raises(Exception) as caught:
        retry(client)("POST", page.url, timeout=0.2 if end is stall else PATIENT)
    until(lambda: page.seen, "the request")
    assert (len(page.seen), waits) == (1, [])
    assert any("Idempotency-Key" in note for note in caught.value.__notes__)


@TELLING
@pytest.mark.parametrize("end", [reset, hang_up])
def test_a_post_with_an_idempotency_key_is_repeated(client: Client, web: Web, end: Any) -> None:
    page = web.page(end, status(200))
    with no_waits() as waits:
        retry(client)("POST", page.url, headers={"Idempotency-Key": "order-7"})
    assert len(waits) == 1
    assert [request.headers["Idempotency-Key"] for request in page.seen] == ["order-7", "order-7"]


@each("client", "requests", "httpx", "httpx-async", "aiohttp")
def test_a_post_answered_with_500_is_repeated_only_with_an_idempotency_key(client: Client, web: Web) -> None:
    page = web.page(status(500), status(200))
    with no_waits(), pytest.raises(Exception, match="500"):
        retry(client)("POST", page.url)
    assert len(page.seen) == 1

    page = web.page(status(500), status(200))
    with no_waits():
        retry(client)("POST", page.url, headers={"idempotency-key": "order-7"})
    assert len(page.seen) == 2


@each("client", "requests", "httpx", "httpx-async", "aiohttp", "urllib")
def test_a_post_that_was_turned_away_unprocessed_is_repeated(client: Client, web: Web) -> None:
    page = web.page(status(429), status(503, ("Retry-After", "1")), status(200))
    with no_waits() as waits:
        retry(idempotent=False)(client)("POST", page.url)
    assert (len(page.seen), len(waits)) == (3, 2)


def test_a_refused_connection_is_tried_again_even_for_a_post(client: Client, web: Web) -> None:
    with no_waits() as waits, pytest.raises(Exception) as caught:
        retry(idempotent=False, attempts=3)(client)("POST", web.refused_url)
    assert len(waits) == 2
    assert "3 attempts" in caught.value.__notes__[-1]
