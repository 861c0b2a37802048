"""`redouble.clients.botocore` with real clients of AWS services, against the HTTP server of ``server.py``."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from interop.server import hang_up, kept, reset, stall, status
from interop.support import in_long_mode
from redouble import history
from redouble.testing import no_waits

pytest.importorskip("botocore", reason="botocore is not installed: the extra 'clients' is needed")
import botocore.session
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from redouble.clients.botocore import retry_client

ITEM = {"id": {"S": "1"}}


@pytest.fixture(scope="module")
def session():
    """A session that ignores the configuration of the machine."""
    session = botocore.session.Session()
    session.set_config_variable("config_file", "/nonexistent/config")
    session.set_config_variable("credentials_file", "/nonexistent/credentials")
    return session


@pytest.fixture(params=["legacy", "standard", "adaptive"])
def mode(request):
    """The mode of botocore's own retries, which must not be made."""
    return request.param


@pytest.fixture
def connect(session):
    """Return a function that makes a client with retries of redouble."""
    made = []

    def connect(name, url, mode="standard", config=None, **fields):
        options = {"s3": {"addressing_style": "path"}, "retries": {"mode": mode, "max_attempts": 5}}
        client = session.create_client(
            name,
            "us-east-1",
            endpoint_url=url,
            config=Config(**options, **(config or {})),
            aws_access_key_id="none",
            aws_secret_access_key="none",
        )
        made.append(client)
        return retry_client(client, **{"base": 0.01, **fields})

    yield connect
    for client in made:
        client.close()


def error(code, answered=400, *headers):
    """Answer with an error of DynamoDB."""
    body = {"__type": f"com.amazonaws.dynamodb.v20120810#{code}", "message": "by order"}
    return status(answered, *headers, body=json.dumps(body).encode())


def get(client):
    return client.get_item(TableName="t", Key=ITEM)


def put(client):
    return client.put_item(TableName="t", Item=ITEM)


def test_a_read_is_retried_by_redouble_alone_and_a_write_only_after_throttling(connect, web):
    page = web.page(error("ThrottlingException"), reset, error("InternalServerError", 500), kept(200))
    write = web.page(error("ProvisionedThroughputExceededException"), error("InternalServerError", 500))
    with no_waits() as waits:
        get(connect("dynamodb", page.url))
        with pytest.raises(ClientError):
            put(connect("dynamodb", write.url))
    assert (len(page.seen), len(write.seen), len(waits)) == (4, 2, 4)


@in_long_mode
def test_attempts_are_those_of_the_policy_in_each_mode_of_botocore(connect, web, mode):
    page = web.page(error("ThrottlingException"))
    with no_waits(), pytest.raises(ClientError) as caught:
        get(connect("dynamodb", page.url, mode, attempts=3))
    assert (len(page.seen), history(caught.value).attempts) == (3, 3)


@in_long_mode
@pytest.mark.parametrize(
    "code", ["ProvisionedThroughputExceededException", "ThrottlingException", "RequestLimitExceeded"]
)
def test_a_write_that_was_throttled_is_sent_again(connect, web, code):
    page = web.page(error(code), kept(200))
    with no_waits():
        put(connect("dynamodb", page.url))
    assert len(page.seen) == 2


@in_long_mode
def test_the_wait_is_the_one_that_aws_asks_for(connect, web):
    page = web.page(error("ThrottlingException", 400, ("x-amz-retry-after", "1500")), kept(200))
    with no_waits() as waits:
        put(connect("dynamodb", page.url))
    assert 1.5 <= waits[0] <= 1.52


@in_long_mode
@pytest.mark.parametrize("failure", [reset, hang_up])
def test_a_connection_that_was_lost_is_retried_for_reads_only(connect, web, failure):
    page = web.page(failure, kept(200))
    with no_waits():
        get(connect("dynamodb", page.url))
    write = web.page(failure, kept(200))
    with no_waits(), pytest.raises(BotoCoreError):
        put(connect("dynamodb", write.url))
    assert (len(page.seen), len(write.seen)) == (2, 1)


@in_long_mode
@pytest.mark.parametrize(
    "code", ["ConditionalCheckFailedException", "ValidationException", "AccessDeniedException"]
)
def test_another_error_is_raised_at_once(connect, web, code):
    page = web.page(error(code))
    with no_waits() as waits, pytest.raises(ClientError):
        get(connect("dynamodb", page.url))
    assert (len(page.seen), waits) == (1, [])


@in_long_mode
def test_a_response_that_does_not_come_is_retried_after_the_timeout_of_the_client(connect, web):
    page, began = web.page(stall, kept(200)), time.monotonic()
    get(connect("dynamodb", page.url, config={"read_timeout": 0.2}))
    assert (len(page.seen), time.monotonic() - began < 5) == (2, True)


@in_long_mode
def test_retried_calls_give_their_connection_back_to_a_pool_of_one(connect, web):
    busy = {"__type": "com.amazonaws.dynamodb.v20120810#ThrottlingException"}
    page = web.page(*[kept(400, body=json.dumps(busy).encode())] * 2, kept(200))
    client = connect("dynamodb", page.url, config={"max_pool_connections": 1})
    with no_waits():
        get(client)
        get(client)
    assert page.connections == [0, 0, 0, 0]


@in_long_mode
def test_an_object_is_sent_and_received_again(connect, web):
    page = web.page(status(503, body=b""), reset, status(200, body=b"content"))
    with no_waits():
        client = connect("s3", page.url)
        assert client.get_object(Bucket="bucket", Key="key")["Body"].read() == b"content"
    page = web.page(status(503, body=b""), status(200, body=b""))
    with no_waits():
        connect("s3", page.url).put_object(Bucket="bucket", Key="key", Body=b"content")
    assert [b"content" in request.body for request in page.seen] == [True, True]


@in_long_mode
def test_of_many_calls_no_write_is_sent_twice(connect, web):
    count, writes, reads = [0], [0], [0]

    def every_third(request):
        count[0] += 1
        kind = writes if "PutItem" in request.headers["X-Amz-Target"] else reads
        kind[0] += 1
        return error("InternalServerError", 500) if count[0] % 3 == 0 else kept(200)

    page = web.page_by(every_third)
    client = connect("dynamodb", page.url, attempts=20, logger=False)

    def call(number):
        try:
            (put if number % 2 else get)(client)
        except ClientError:
            return False
        return True

    with no_waits(everywhere=True), ThreadPoolExecutor(20) as threads:
        done = list(threads.map(call, range(200)))
    assert done[::2] == [True] * 100
    assert writes == [100]
    assert reads[0] > 100
    assert False in done[1::2]
