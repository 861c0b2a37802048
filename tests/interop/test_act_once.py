"""A POST is not sent twice: real clients and a server that hangs, drops the connection, or responds with 500.

Each test counts the requests that reach the server. A client sends one request; redouble classifies what it raises or
returns.
"""

from __future__ import annotations

import asyncio
import http.client
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from interop.server import Web, hang_up, reset, stall, stalled_body, status
from interop.support import each, left_out
from interop.test_http_clients import (
    async_aiohttp,
    async_httpx,
    with_httpx,
    with_requests,
    with_urllib,
    with_urllib3,
)
from redouble import DeadlineExceeded, ResultRejected, Rule, retry, retrying
from redouble.classify import accepted, repeatable
from redouble.testing import no_waits

if TYPE_CHECKING:
    from collections.abc import Callable

SHORT = 0.2
LONGER = 0.5  # where a client has to be made in that time, too
KEY = {"Idempotency-Key": "order-1"}


def with_http_client(
    method: str, url: str, timeout: float = 10.0, headers: Any = None, data: Any = None
) -> None:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=timeout)
    try:
        connection.request(method, parts.path, body=data, headers=headers or {})
        response = connection.getresponse()
        response.read()
        if response.status >= 400:
            raise ConnectionError(f"HTTP {response.status}")
    finally:
        connection.close()


def with_httplib2(method: str, url: str, timeout: float = 10.0, headers: Any = None) -> Any:
    import httplib2

    return httplib2.Http(timeout=timeout).request(url, method, headers=headers)


def with_tornado(method: str, url: str, timeout: float = 10.0, headers: Any = None) -> Any:
    from tornado.httpclient import HTTPClient

    client = HTTPClient()
    try:
        body = b"x" if method == "POST" else None
        return client.fetch(url, method=method, headers=headers, body=body, request_timeout=timeout)
    finally:
        client.close()


SYNC: dict[str, Callable[..., Any]] = {
    "requests": with_requests,
    "httpx": with_httpx,
    "urllib3": with_urllib3,
    "urllib": with_urllib,
    "http.client": with_http_client,
    "httplib2": with_httplib2,
    "tornado": with_tornado,
}
ASYNC: dict[str, Callable[..., Any]] = {"httpx": async_httpx, "aiohttp": async_aiohttp}


@pytest.fixture
def client(request: pytest.FixtureRequest) -> Callable[..., Any]:
    return SYNC[request.param]


@pytest.fixture
def async_client(request: pytest.FixtureRequest) -> Callable[..., Any]:
    return ASYNC[request.param]


# Without httplib2, which repeats every request by itself when the connection is lost.
every_client = each("client", *[name for name in SYNC if name != "httplib2"])
every_async_client = each("async_client", *ASYNC)
DROPS = [stall, hang_up, reset]


def calls(web: Web, function: Callable[..., Any], method: str, answer: Any, **options: Any) -> int:
    """Return how many requests a retried call sends to a page with these answers."""
    page = web.page(answer)
    policy = {"attempts": 2, **options.pop("policy", {})}
    options.setdefault("timeout", SHORT)
    with no_waits():
        if asyncio.iscoroutinefunction(function):

            @retry(**policy)
            async def send_async() -> Any:
                return await function(method, page.url, **options)

            with pytest.raises(Exception):
                asyncio.run(send_async())
        else:

            @retry(**policy)
            def send() -> Any:
                return function(method, page.url, **options)

            with pytest.raises(Exception):
                send()
    return len(page.seen)


@pytest.mark.parametrize("name", ["requests", "httpx", "aiohttp", "urllib3", "httplib2", "tornado"])
def test_every_client_is_tried(name: str) -> None:
    left_out(name)


@every_client
@pytest.mark.parametrize("answer", DROPS)
def test_a_post_whose_answer_is_lost_is_sent_once(client: Callable[..., Any], answer: Any, web: Web) -> None:
    assert calls(web, client, "POST", answer) == 1


@every_async_client
@pytest.mark.parametrize("answer", DROPS)
def test_an_async_post_whose_answer_is_lost_is_sent_once(
    async_client: Callable[..., Any], answer: Any, web: Web
) -> None:
    assert calls(web, async_client, "POST", answer) == 1


@each("client", "requests", "httpx", "urllib", "urllib3", "http.client")
def test_a_post_whose_answer_stops_halfway_is_sent_once(client: Callable[..., Any], web: Web) -> None:
    assert calls(web, client, "POST", stalled_body) == 1


@every_async_client
def test_an_async_post_whose_answer_stops_halfway_is_sent_once(
    async_client: Callable[..., Any], web: Web
) -> None:
    assert calls(web, async_client, "POST", stalled_body) == 1


@each("client", "httplib2")
def test_a_post_that_times_out_is_sent_once(client: Callable[..., Any], web: Web) -> None:
    assert calls(web, client, "POST", stall) == 1
    assert calls(web, client, "GET", stall) == 2


@every_client
@pytest.mark.parametrize("answer", DROPS)
def test_a_get_whose_answer_is_lost_is_retried(client: Callable[..., Any], answer: Any, web: Web) -> None:
    assert calls(web, client, "GET", answer) == 2


@every_async_client
@pytest.mark.parametrize("answer", DROPS)
def test_an_async_get_whose_answer_is_lost_is_retried(
    async_client: Callable[..., Any], answer: Any, web: Web
) -> None:
    # aiohttp repeats a GET by itself when the connection is lost.
    assert calls(web, async_client, "GET", answer) in (2, 4)


@each("client", "requests", "httpx", "urllib", "urllib3", "httplib2")
def test_a_post_with_a_key_is_retried(client: Callable[..., Any], web: Web) -> None:
    assert calls(web, client, "POST", stall, headers=KEY) == 2


@every_async_client
def test_an_async_post_with_a_key_is_retried(async_client: Callable[..., Any], web: Web) -> None:
    assert calls(web, async_client, "POST", hang_up, headers=KEY) == 2


@every_client
def test_a_post_is_retried_on_the_users_word(client: Callable[..., Any], web: Web) -> None:
    assert calls(web, client, "POST", hang_up, policy={"idempotent": True}) == 2


@every_async_client
def test_a_post_cut_off_by_the_policys_own_timeout_is_sent_once(
    async_client: Callable[..., Any], web: Web
) -> None:
    policy = {"timeout": LONGER}
    assert calls(web, async_client, "POST", stall, timeout=10.0, policy=policy) == 1
    assert calls(web, async_client, "GET", stall, timeout=10.0, policy=policy) == 2
    assert calls(web, async_client, "POST", stall, timeout=10.0, headers=KEY, policy=policy) == 2


@every_async_client
def test_a_post_cut_off_in_a_block_is_sent_once(async_client: Callable[..., Any], web: Web) -> None:
    page = web.page(stall)

    async def main() -> None:
        async for attempt in retrying(timeout=LONGER):
            with attempt:
                await async_client("POST", page.url)

    with no_waits(), pytest.raises(TimeoutError):
        asyncio.run(main())
    assert len(page.seen) == 1


@every_async_client
def test_a_post_cut_off_by_asyncio_is_sent_once(async_client: Callable[..., Any], web: Web) -> None:
    async def by_timeout(method: str, url: str, timeout: float) -> None:
        async with asyncio.timeout(timeout):
            await async_client(method, url)

    async def by_wait_for(method: str, url: str, timeout: float) -> None:
        await asyncio.wait_for(async_client(method, url), timeout)

    async def in_a_group(method: str, url: str, timeout: float) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(async_client(method, url, timeout=timeout))

    for function in (by_timeout, by_wait_for, in_a_group):
        assert calls(web, function, "POST", stall, timeout=LONGER) == 1
        assert calls(web, function, "GET", stall, timeout=LONGER) == 2


@every_async_client
def test_an_attempt_that_the_deadline_cuts_off_says_where_it_was(
    async_client: Callable[..., Any], web: Web
) -> None:
    page = web.page(stall)

    @retry(deadline=LONGER)
    async def pay() -> None:
        await async_client("POST", page.url)

    with pytest.raises(DeadlineExceeded) as caught:
        asyncio.run(pay())
    cause = caught.value.__cause__
    assert cause is not None
    assert repeatable(cause) is False
    assert len(page.seen) == 1


# Errors of one's own


@each("client", "requests", "httpx", "urllib3", "urllib")
def test_a_post_is_sent_once_if_its_error_is_translated(client: Callable[..., Any], web: Web) -> None:
    def translated(*args: Any, **kwargs: Any) -> None:
        try:
            client(*args, **kwargs)
        except Exception:
            raise TimeoutError("pay")  # noqa: B904 - as people write it

    def chained(*args: Any, **kwargs: Any) -> None:
        try:
            client(*args, **kwargs)
        except Exception as error:
            raise TimeoutError("pay") from error

    def unchained(*args: Any, **kwargs: Any) -> None:
        try:
            client(*args, **kwargs)
        except Exception:
            raise TimeoutError("pay") from None

    for function in (translated, chained, unchained):
        assert calls(web, function, "POST", stall) == 1
        assert calls(web, function, "GET", stall) == 2


@each("client", "requests", "httpx", "urllib3", "urllib")
def test_a_post_in_a_block_is_sent_once_if_its_error_is_translated(
    client: Callable[..., Any], web: Web
) -> None:
    page = web.page(stall)
    with no_waits(), pytest.raises(TimeoutError):
        for attempt in retrying():
            with attempt:
                try:
                    client("POST", page.url, timeout=SHORT)
                except Exception:
                    raise TimeoutError("pay")  # noqa: B904 - as people write it
    assert len(page.seen) == 1


@each("client", "requests", "httpx", "urllib3", "urllib")
def test_a_get_after_a_failed_post_does_not_excuse_the_post(client: Callable[..., Any], web: Web) -> None:
    page = web.page(hang_up)

    @retry
    def post_or_look() -> None:
        try:
            client("POST", page.url, timeout=SHORT)
        except Exception:
            client("GET", page.url, timeout=SHORT)

    with no_waits(), pytest.raises(Exception):
        post_or_look()
    assert [request.method for request in page.seen] == ["POST", "GET"]


@each("client", "requests", "httpx", "urllib3", "urllib")
def test_a_refused_post_does_not_excuse_the_one_before_it(client: Callable[..., Any], web: Web) -> None:
    page = web.page(hang_up)

    @retry
    def first_or_second() -> None:
        try:
            client("POST", page.url, timeout=SHORT)
        except Exception:
            client("POST", web.refused_url, timeout=SHORT)

    with no_waits(), pytest.raises(Exception):
        first_or_second()
    assert len(page.seen) == 1


@each("client", "requests", "httpx", "urllib3", "urllib")
def test_a_post_that_was_refused_is_retried_with_what_comes_after_it(
    client: Callable[..., Any], web: Web
) -> None:
    page = web.page(hang_up)

    @retry
    def refused_or_look() -> None:
        try:
            client("POST", web.refused_url, timeout=SHORT)
        except Exception:
            client("GET", page.url, timeout=SHORT)

    with no_waits(), pytest.raises(Exception):
        refused_or_look()
    assert len(page.seen) == 4


@each("client", "requests", "httpx", "urllib3", "urllib")
def test_a_call_in_the_handling_of_a_failed_post_is_retried(client: Callable[..., Any], web: Web) -> None:
    lost, page, block = web.page(hang_up), web.page(hang_up), web.page(hang_up)

    @retry
    def look() -> None:
        client("GET", page.url, timeout=SHORT)

    with no_waits():
        try:
            client("POST", lost.url, timeout=SHORT)
        except Exception:
            with pytest.raises(Exception):
                look()
            with pytest.raises(Exception):
                for attempt in retrying():
                    with attempt:
                        client("GET", block.url, timeout=SHORT)
    assert (len(lost.seen), len(page.seen), len(block.seen)) == (1, 4, 4)


# Responses


@each("client", "requests", "httpx", "urllib")
def test_a_500_to_a_post_is_not_retried(client: Callable[..., Any], web: Web) -> None:
    assert calls(web, client, "POST", status(500)) == 1
    assert calls(web, client, "GET", status(500)) == 2


@every_async_client
def test_a_500_to_an_async_post_is_not_retried(async_client: Callable[..., Any], web: Web) -> None:
    assert calls(web, async_client, "POST", status(500)) == 1
    assert calls(web, async_client, "GET", status(500)) == 2


@each("client", "urllib3")
def test_a_500_that_is_returned_to_a_post_is_not_retried(client: Callable[..., Any], web: Web) -> None:
    for method, expected in ("POST", 1), ("GET", 4):
        page = web.page(status(500))
        send = retry(until=accepted)(client)
        with no_waits(), pytest.raises(ResultRejected):
            send(method, page.url)
        assert len(page.seen) == expected


def redirect(code: int) -> Any:
    return status(code, ("Location", "elsewhere"))


@each("client", "requests", "httpx", "urllib3", "urllib")
@pytest.mark.parametrize("end", [stall, status(503), status(429)])
def test_a_post_that_was_redirected_to_a_failing_get_is_sent_once(
    client: Callable[..., Any], end: Any, web: Web
) -> None:
    page = web.page(redirect(303), end)

    options: Any = {with_httpx: {"follow_redirects": True}, with_urllib3: {"retries": 1}}.get(client, {})

    @retry(until=accepted)
    def send() -> Any:
        return client("POST", page.url + "/", timeout=SHORT, **options)

    with no_waits(), pytest.raises(Exception):
        send()
    assert [request.method for request in page.seen] == ["POST", "GET"]


@each("async_client", "aiohttp")
@pytest.mark.parametrize("end", [stall, status(503), status(429)])
def test_an_async_post_that_was_redirected_to_a_failing_get_is_sent_once(
    async_client: Callable[..., Any], end: Any, web: Web
) -> None:
    page = web.page(redirect(303), end)
    with no_waits(), pytest.raises(Exception):
        asyncio.run(retry(async_client)("POST", page.url + "/", timeout=SHORT))
    assert [request.method for request in page.seen] == ["POST", "GET"]


@each("client", "requests", "httpx", "urllib")
@pytest.mark.parametrize("code", [403, 404, 409, 419])
def test_a_rule_for_a_status_that_refuses_a_post_sends_it_again(
    client: Callable[..., Any], code: int, web: Web
) -> None:
    assert calls(web, client, "POST", status(code), policy={"rules": {code: Rule()}}) == 2


# Reads that are sent as POST, and writes that are not


def chat(url: str, timeout: float = SHORT) -> Any:
    from openai import OpenAI

    with OpenAI(base_url=url, api_key="none", max_retries=0, timeout=timeout) as openai:
        return openai.chat.completions.create(model="m", messages=[])


def responses(url: str) -> Any:
    from openai import OpenAI

    with OpenAI(base_url=url, api_key="none", max_retries=0, timeout=SHORT) as openai:
        return openai.responses.create(model="m", input="Hello?")


def fine_tune(url: str) -> Any:
    from openai import OpenAI

    with OpenAI(base_url=url, api_key="none", max_retries=0, timeout=SHORT) as openai:
        return openai.fine_tuning.jobs.create(model="m", training_file="f")


def messages(url: str) -> Any:
    from anthropic import Anthropic

    with Anthropic(base_url=url, api_key="none", max_retries=0, timeout=SHORT) as anthropic:
        return anthropic.messages.create(model="m", max_tokens=9, messages=[])


def batches(url: str) -> Any:
    from anthropic import Anthropic

    with Anthropic(base_url=url, api_key="none", max_retries=0, timeout=SHORT) as anthropic:
        return anthropic.messages.batches.create(requests=[])


@pytest.mark.parametrize("answer", [stall, hang_up, status(500)])
@pytest.mark.parametrize(
    ("package", "function", "expected"),
    [
        ("openai", chat, 2),
        ("openai", responses, 2),
        ("openai", fine_tune, 1),
        ("anthropic", messages, 2),
        ("anthropic", batches, 1),
    ],
)
def test_inference_is_retried_and_what_creates_a_job_is_not(
    package: str, function: Callable[[str], Any], expected: int, answer: Any, web: Web
) -> None:
    left_out(package)
    page = web.page(answer)
    with no_waits(), pytest.raises(Exception):
        retry(attempts=2)(function)(page.url)
    assert len(page.seen) == expected


def test_inference_is_retried_under_types_as_with_tenacity(web: Web) -> None:
    left_out("openai")
    from openai import APITimeoutError, RateLimitError

    page = web.page(stall)
    with no_waits(), pytest.raises(APITimeoutError):
        retry(on=(RateLimitError, APITimeoutError))(chat)(page.url)
    assert len(page.seen) == 4


def test_inference_that_the_policys_own_timeout_cuts_off_is_retried(web: Web) -> None:
    left_out("openai")
    from openai import AsyncOpenAI

    page = web.page(stall)

    @retry(timeout=SHORT)
    async def ask() -> Any:
        async with AsyncOpenAI(base_url=page.url, api_key="none", max_retries=0) as openai:
            return await openai.responses.create(model="m", input="Hello?")

    with no_waits(), pytest.raises(TimeoutError):
        asyncio.run(ask())
    # A busy machine may cut an attempt off before its request is out.
    assert 1 < len(page.seen) <= 4


@pytest.mark.parametrize("answer", [stall, hang_up, status(500, body=b"")])
@pytest.mark.parametrize(
    ("service", "operation", "given", "expected"),
    [
        ("dynamodb", "get_item", {"TableName": "t", "Key": {"id": {"S": "1"}}}, 4),
        ("dynamodb", "put_item", {"TableName": "t", "Item": {"id": {"S": "1"}}}, 1),
        ("sqs", "send_message", {"QueueUrl": "q", "MessageBody": "b"}, 1),
        ("sqs", "send_message", {"QueueUrl": "q", "MessageBody": "b", "MessageDeduplicationId": "m"}, 4),
        ("ec2", "describe_instances", {}, 4),
        ("ec2", "run_instances", {"MinCount": 1, "MaxCount": 1}, 1),
        ("s3", "put_object", {"Bucket": "b", "Key": "k", "Body": b"x"}, 4),
    ],
    ids=str,
)
def test_aws_operations_are_judged_by_their_name(
    service: str, operation: str, given: Any, expected: int, answer: Any, web: Web
) -> None:
    left_out("boto3")
    import boto3
    from botocore.config import Config

    page = web.page(answer)
    session = boto3.Session("none", "none", region_name="eu-west-1")
    settings = Config(retries={"total_max_attempts": 1}, read_timeout=SHORT, s3={"addressing_style": "path"})
    client = session.client(service, endpoint_url=page.url, config=settings)
    if "QueueUrl" in given:
        given = {**given, "QueueUrl": page.url}
    with no_waits(), pytest.raises(Exception):
        retry(getattr(client, operation))(**given)
    assert len(page.seen) == expected


@each("client", "requests", "httpx", "urllib3")
@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        ("/products/_search", b"{}", 4),
        ("/products/_doc", b"{}", 1),
        ("/products/_search/scroll", b"{}", 1),
        ("/oauth/token", b"grant_type=client_credentials", 4),
        ("/oauth/tokens", b"", 1),
        ("/v1beta/models/gemini:generateContent", b"{}", 4),
        ("/graphql", b'{"query": "query Q { me { name } }"}', 4),
        ("/graphql", b'{"query": "{ me { name } } # mutation"}', 4),
        ("/graphql", b'{"query": "mutation { pay }"}', 1),
        ("/graphql", b'{"query": "query Q { a } mutation M { pay }", "operationName": "Q"}', 1),
        ("/graphql", b'[{"query": "{ a }"}, {"query": "{ b }"}]', 4),
        ("/graphql", b'[{"query": "{ a }"}, {"query": "mutation { b }"}]', 1),
        ("/graphql", b'{"extensions": {"persistedQuery": {}}}', 1),
        ("/graphql", b"not json", 1),
        ("/v1/messages", b"{}", 1),
    ],
)
def test_reads_that_are_sent_as_post_are_known_by_their_path(
    client: Callable[..., Any], path: str, body: bytes, expected: int, web: Web
) -> None:
    page = web.page(hang_up)
    given = {with_requests: "data", with_httpx: "content", with_urllib3: "body"}[client]
    with no_waits(), pytest.raises(Exception):
        retry(client)("POST", page.url + path, **{given: body})
    assert len(page.seen) == expected


def test_the_key_that_stripe_makes_up_for_each_call_excuses_nothing(web: Web) -> None:
    left_out("stripe")
    import stripe

    for options, expected in ({}, 1), ({"idempotency_key": "order-1"}, 4):
        page = web.page(hang_up)
        client = stripe.StripeClient(
            "sk_test_none",
            base_addresses={"api": page.url},
            max_network_retries=0,
            http_client=stripe.RequestsClient(timeout=10),
        )
        with no_waits(), pytest.raises(stripe.APIConnectionError):
            retry(client.v1.customers.create)(params={"name": "A"}, options=options)
        assert len(page.seen) == expected
