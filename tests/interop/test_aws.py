"""botocore, with made-up credentials and its own retries off, against the HTTP server of ``server.py``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from interop.server import Web, hang_up, reset, stall, status, truncated
from interop.support import error_of, judged, permanent, transient, unprocessed
from redouble import retry
from redouble.testing import no_waits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytest.importorskip("botocore", reason="botocore is not installed: the extra 'interop' is needed")

import botocore.session
from botocore.config import Config
from botocore.exceptions import (
    ClientError,
    ConnectionClosedError,
    EndpointConnectionError,
    ReadTimeoutError,
    ResponseStreamingError,
    SSLError,
)


@pytest.fixture(scope="module")
def session() -> Any:
    """A session that ignores the configuration of the machine."""
    session = botocore.session.Session(include_builtin_handlers=True)
    session.set_config_variable("config_file", "/nonexistent/config")
    session.set_config_variable("credentials_file", "/nonexistent/credentials")
    return session


@pytest.fixture
def service(session: Any) -> Iterator[Callable[..., Any]]:
    """Return a function that makes clients of AWS services at another address."""
    made: list[Any] = []

    def client(name: str, url: str, **options: Any) -> Any:
        once = Config(retries={"total_max_attempts": 1}, s3={"addressing_style": "path"}, **options)
        made.append(
            session.create_client(
                name,
                "us-east-1",
                endpoint_url=url,
                config=once,
                aws_access_key_id="none",
                aws_secret_access_key="none",
            )
        )
        return made[-1]

    yield client
    for client_ in made:
        client_.close()


@pytest.fixture
def get_item(service: Callable[..., Any]) -> Callable[..., Any]:
    """Call DynamoDB."""

    def get(url: str, **options: Any) -> Any:
        return service("dynamodb", url, **options).get_item(TableName="t", Key={"id": {"S": "1"}})

    return get


@pytest.fixture
def get_object(service: Callable[..., Any]) -> Callable[..., Any]:
    """Get an object from S3 and read it."""

    def get(url: str) -> Any:
        return service("s3", url).get_object(Bucket="bucket", Key="key")["Body"].read()

    return get


def in_json(code: str) -> bytes:
    return json.dumps({"__type": f"com.amazonaws.dynamodb.v20120810#{code}", "message": "by order"}).encode()


def in_xml(code: str) -> bytes:
    return f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>by order</Message></Error>".encode()


@pytest.mark.parametrize(
    "code", ["ProvisionedThroughputExceededException", "ThrottlingException", "RequestLimitExceeded"]
)
def test_a_throttled_call_is_rate_limited_although_its_status_is_400(
    get_item: Any, web: Web, code: str
) -> None:
    error: Any = error_of(get_item, web.page(status(400, body=in_json(code))).url)
    assert isinstance(error, ClientError)
    assert error.response["Error"]["Code"] == code
    assert judged(error) == unprocessed("rate_limited", 400)


def test_the_delay_that_aws_gives_is_in_milliseconds(get_item: Any, web: Web) -> None:
    answer = status(400, ("x-amz-retry-after", "700"), body=in_json("ThrottlingException"))
    assert judged(error_of(get_item, web.page(answer).url)) == unprocessed("rate_limited", 400, 0.7)


@pytest.mark.parametrize(
    ("code", "answered"),
    [
        ("ResourceNotFoundException", 400),
        ("ConditionalCheckFailedException", 400),
        ("ValidationException", 400),
        ("AccessDeniedException", 400),
    ],
)
def test_any_other_400_is_permanent(get_item: Any, web: Web, code: str, answered: int) -> None:
    found = judged(error_of(get_item, web.page(status(answered, body=in_json(code))).url))
    assert (found.retryable, found.unprocessed, found.status) == (False, False, answered)


def test_an_internal_error_leaves_the_effect_unknown(get_item: Any, web: Web) -> None:
    page = web.page(status(500, body=in_json("InternalServerError")))
    assert judged(error_of(get_item, page.url)) == transient("server_error", 500)


def test_a_request_to_slow_down_is_rate_limited(get_object: Any, web: Web) -> None:
    page = web.page(status(503, ("Content-Type", "application/xml"), body=in_xml("SlowDown")))
    assert judged(error_of(get_object, page.url)) == unprocessed("rate_limited", 503)


def test_a_request_that_took_too_long_to_arrive_is_transient_although_its_status_is_400(
    get_object: Any, web: Web
) -> None:
    page = web.page(status(400, ("Content-Type", "application/xml"), body=in_xml("RequestTimeout")))
    assert judged(error_of(get_object, page.url)) == transient("timeout", 400)


def test_a_missing_object_is_permanent(get_object: Any, web: Web) -> None:
    page = web.page(status(404, ("Content-Type", "application/xml"), body=in_xml("NoSuchKey")))
    error = error_of(get_object, page.url)
    assert type(error).__name__ == "NoSuchKey"  # a class that botocore makes at run time
    assert judged(error) == permanent(status=404)


@pytest.mark.parametrize(
    ("answered", "expected"), [(404, permanent(status=404)), (503, transient("unavailable", 503))]
)
def test_without_a_body_the_status_decides(service: Any, web: Web, answered: int, expected: Any) -> None:
    client = service("s3", web.page(status(answered, body=b"")).url)
    error: Any = error_of(client.head_object, Bucket="bucket", Key="key")
    assert error.response["Error"]["Code"] == str(answered)
    assert judged(error) == expected


def test_a_refused_connection_is_unprocessed(get_item: Any, web: Web) -> None:
    error = error_of(get_item, web.refused_url)
    assert isinstance(error, EndpointConnectionError)
    assert judged(error) == unprocessed("connection")


@pytest.mark.parametrize("end", [reset, hang_up])
def test_a_connection_lost_after_the_request_leaves_the_effect_unknown(
    get_item: Any, web: Web, end: Any
) -> None:
    error = error_of(get_item, web.page(end).url)
    assert isinstance(error, ConnectionClosedError)
    assert judged(error) == transient("disconnected")


def test_an_object_that_breaks_off_is_worth_another_read(get_object: Any, web: Web) -> None:
    error = error_of(get_object, web.page(truncated).url)
    assert isinstance(error, ResponseStreamingError)
    assert judged(error) == transient("disconnected")


def test_an_answer_that_does_not_come_is_a_timeout_with_unknown_effect(get_item: Any, web: Web) -> None:
    error = error_of(get_item, web.page(stall).url, read_timeout=0.1)
    assert isinstance(error, ReadTimeoutError)
    assert judged(error) == transient("timeout")


def test_a_certificate_that_nobody_trusts_is_permanent(get_item: Any, secure_web: Web) -> None:
    error = error_of(get_item, secure_web.secure_page(status(200)).url)
    assert isinstance(error, SSLError)
    assert judged(error) == permanent()


def test_a_throttled_write_is_repeated_and_recovers(get_item: Any, web: Web) -> None:
    page = web.page(
        status(400, ("x-amz-retry-after", "1500"), body=in_json("ThrottlingException")),
        status(400, body=in_json("ProvisionedThroughputExceededException")),
        status(200, body=b'{"Item": {"id": {"S": "1"}}}'),
    )
    with no_waits() as waits:
        answer = retry(base=0.5, idempotent=False)(get_item)(page.url)
    assert answer["Item"] == {"id": {"S": "1"}}
    assert len(page.seen) == 3
    assert 1.5 <= waits[0] <= 2.0
