"""`redouble.clients.botocore`, against a server on loopback."""

from __future__ import annotations

import io
import json
import pickle

import pytest

from redouble import Policy, history, retry
from redouble.breaker import CircuitBreaker
from redouble.bulkhead import Bulkhead
from redouble.errors import BulkheadFull, CircuitOpen, DeadlineExceeded, ResultRejected, StoreError
from redouble.registry import Registry

from .conftest import CUT, Answer

pytest.importorskip("botocore")
import botocore.session
from botocore.client import BaseClient
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from redouble.clients.botocore import override, retry_client

SESSION = botocore.session.Session()
ITEM = {"Delete": {"TableName": "orders", "Key": {"id": {"S": "17"}}}}
QUEUE = "https://example.org/queue"


@pytest.fixture
def client_of(server):
    """Make clients of a service whose own retries are on, as they are by default."""

    def make(service, *args, mode="legacy", **fields):
        client = SESSION.create_client(
            service,
            region_name="eu-central-1",
            endpoint_url=f"http://{server.host}",
            aws_access_key_id="id",
            aws_secret_access_key="secret",
            config=Config(retries={"mode": mode, "total_max_attempts": 3}, proxies={}),
        )
        return retry_client(client, *args, **fields)

    return make


def refused(code, status=400):
    """Return an answer of AWS that has an error code."""
    return Answer(status, json.dumps({"__type": code, "message": "by order"}).encode())


def done(**fields):
    return Answer(200, json.dumps(fields).encode())


@pytest.mark.parametrize("mode", ["legacy", "standard", "adaptive"])
def test_a_read_is_retried_and_the_client_makes_no_retries_of_its_own(server, client_of, waits, mode):
    server.answers = [500, CUT, 503, done(QueueUrls=[QUEUE])]
    assert client_of("sqs", mode=mode).list_queues()["QueueUrls"] == [QUEUE]
    assert (len(server.received), len(waits)) == (4, 3)


def test_an_error_has_a_note_that_names_the_service_and_the_operation(server, client_of):
    server.answers = [503, 503]
    with pytest.raises(ClientError) as caught:
        client_of("sqs", attempts=2).list_queues()
    assert "gave up on sqs ListQueues after 2 attempts" in caught.value.__notes__[0]
    assert (history(caught.value).attempts, len(server.received)) == (2, 2)


def test_an_operation_that_acts_is_sent_once(server, client_of):
    server.answers = [500]
    with pytest.raises(ClientError) as caught:
        client_of("sqs").send_message(QueueUrl=QUEUE, MessageBody="17")
    assert len(server.received) == 1
    (note,) = caught.value.__notes__
    assert "repeating this SendMessage might act twice; if it may be repeated, say idempotent=True" in note
    assert "Idempotency-Key" not in note


@pytest.mark.parametrize(
    ("fields", "params"),
    [({"idempotent": True}, {}), ({}, {"MessageDeduplicationId": "17", "MessageGroupId": "1"})],
    ids=["idempotent=True", "a token"],
)
def test_an_operation_that_acts_is_repeated_if_the_policy_or_a_token_allows_it(
    server, client_of, fields, params
):
    server.answers = [500, done(MessageId="1")]
    client = client_of("sqs", **fields)
    assert client.send_message(QueueUrl=QUEUE, MessageBody="17", **params)["MessageId"] == "1"


def test_throttling_is_retried_for_operations_that_act(server, client_of):
    server.answers = [refused("ThrottlingException"), done(MessageId="1")]
    client_of("sqs").send_message(QueueUrl=QUEUE, MessageBody="17")
    assert len(server.received) == 2


def test_a_token_that_is_not_given_is_the_same_in_every_attempt(server, client_of):
    server.answers = [500, 500, done()]
    client_of("dynamodb").transact_write_items(TransactItems=[ITEM])
    tokens = [json.loads(request.body)["ClientRequestToken"] for request in server.received]
    assert len(tokens) == 3
    assert len(set(tokens)) == 1


def test_a_token_that_is_given_is_sent(server, client_of):
    client_of("dynamodb").transact_write_items(TransactItems=[ITEM], ClientRequestToken="mine")
    assert json.loads(server.received[0].body)["ClientRequestToken"] == "mine"


def test_parameters_that_botocore_encodes_in_place_are_encoded_once(server, client_of):
    server.answers = [503, Answer(200, b"")]

    def encode(params, **_):
        params["Tagging"]["TagSet"][0]["Value"] += "="

    client = client_of("s3")
    client.meta.events.register("before-parameter-build.s3.PutObjectTagging", encode)
    client.put_object_tagging(Bucket="b", Key="k", Tagging={"TagSet": [{"Key": "a", "Value": "b"}]})
    assert [b"<Value>b=</Value>" in request.body for request in server.received] == [True, True]


def test_a_file_is_sent_again_from_where_it_was(server, client_of):
    server.answers = [503, Answer(200, b"")]
    file = io.BytesIO(b"head body")
    file.seek(5)
    client_of("s3").put_object(Bucket="b", Key="k", Body=file)
    bodies = [request.body for request in server.received]
    assert len(bodies) == 2
    assert bodies[0] == bodies[1]
    assert b"body" in bodies[0]
    assert b"head" not in bodies[0]


def test_a_file_that_cannot_be_rewound_is_sent_once(server, client_of):
    class Pipe(io.BytesIO):
        def seek(self, *args):
            if self.rewindable:
                return super().seek(*args)
            raise OSError("a pipe")

    Pipe.rewindable = False
    pipe = Pipe(b"body")
    server.answers = [503]
    client = client_of("s3")

    def sent(**_):
        Pipe.rewindable = True  # for botocore, which seeks to find the length

    client.meta.events.register("provide-client-params.s3.PutObject", sent)
    with pytest.raises(ClientError) as caught:
        client.put_object(Bucket="b", Key="k", Body=pipe)
    assert "a file that cannot be rewound" in caught.value.__notes__[0]
    assert len(server.received) == 1


def test_until_rejects_a_response_and_the_error_is_one_of_botocore(server, client_of):
    server.answers = [done(QueueUrls=[]), done(QueueUrls=[])]
    client = client_of("sqs", attempts=2, until=lambda response: bool(response.get("QueueUrls")))
    with pytest.raises(BotoCoreError) as caught:
        client.list_queues()
    assert isinstance(caught.value, ResultRejected)
    assert caught.value.result["QueueUrls"] == []


def test_a_deadline_is_an_error_of_botocore_and_can_be_pickled(server, client_of):
    server.answers = [Answer(503, b"{}", {"Retry-After": "30"})]
    with pytest.raises(BotoCoreError) as caught:
        client_of("sqs", deadline=5.0).list_queues()
    assert isinstance(caught.value, DeadlineExceeded)
    assert isinstance(caught.value.__cause__, ClientError)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (type(copy), str(copy)) == (type(caught.value), str(caught.value))
    assert "deadline of 5 s" in str(copy)


def test_a_refusal_by_a_guard_is_an_error_of_botocore(server, client_of):
    breaker = CircuitBreaker(failures=1)
    server.answers = [503]
    client = client_of("sqs", attempts=1, breaker=breaker)
    with pytest.raises(ClientError):
        client.list_queues()
    with pytest.raises(BotoCoreError) as caught:
        client.list_queues()
    assert isinstance(caught.value, CircuitOpen)
    bulkhead = Bulkhead(1, queue=0)
    with bulkhead, pytest.raises(BotoCoreError) as caught:
        client_of("sqs", bulkhead=bulkhead).list_queues()
    assert isinstance(caught.value, BulkheadFull)


def test_another_error_of_redouble_is_raised_as_it_is(client_of):
    def broken(operation):
        raise StoreError("locked", location="letters.db")

    with pytest.raises(StoreError):
        client_of("sqs", until=broken, attempts=1).list_queues()


def test_a_registry_has_one_guard_for_each_service(server, client_of):
    breakers = Registry(lambda service: CircuitBreaker(failures=1, name=service))
    server.answers = [503]
    client = client_of("sqs", attempts=1, breaker=breakers)
    with pytest.raises(ClientError):
        client.list_queues()
    with pytest.raises(CircuitOpen):
        client.list_queues()
    client_of("dynamodb", breaker=breakers).list_tables()
    assert sorted(breakers) == ["dynamodb", "sqs"]


def test_functions_of_a_call_receive_the_operation(server, client_of):
    seen = []
    letters = client_of("sqs", name="queues", idempotency_key=lambda call: seen.append(call) or call.name)
    server.answers = [503, done()]
    letters.list_queues(QueueNamePrefix="a", MaxResults=1)
    assert seen == []  # no attempt asks for the key: AWS has tokens
    by_call = client_of("sqs", attempts=1, breaker=lambda call: seen.append(call))
    by_call.list_queues(QueueNamePrefix="a")
    assert [(call.service, call.name, call.params["QueueNamePrefix"]) for call in seen] == [
        ("sqs", "ListQueues", "a")
    ]
    assert repr(seen[0]) == "<sqs ListQueues>"


def test_a_paginator_retries_each_page(server, client_of):
    server.answers = [
        503,
        done(TableNames=["one"], LastEvaluatedTableName="one"),
        503,
        done(TableNames=["two"]),
    ]
    pages = client_of("dynamodb").get_paginator("list_tables").paginate()
    assert [page["TableNames"] for page in pages] == [["one"], ["two"]]


def test_an_enclosing_call_does_not_multiply_the_attempts(server, client_of):
    server.answers = [503] * 20
    client = client_of("sqs", attempts=2)
    with pytest.raises(ClientError):
        retry(client.list_queues)()
    assert len(server.received) == 2


def test_a_second_call_replaces_the_policy(server, client_of):
    server.answers = [503] * 20
    client = retry_client(client_of("sqs", attempts=4), attempts=2)
    with pytest.raises(ClientError):
        client.list_queues()
    assert len(server.received) == 2


def test_override_sets_the_policy_of_a_block(server, client_of):
    client = client_of("sqs", Policy(attempts=4))
    server.answers = [503] * 3
    with override(attempts=2), pytest.raises(ClientError):
        client.list_queues()
    assert len(server.received) == 2
    with override(False), pytest.raises(ClientError):
        client.list_queues()
    assert len(server.received) == 3


def test_a_call_inside_of_a_deadline_is_made(server, client_of):
    client = client_of("sqs")
    assert retry(deadline=5.0)(client.list_queues)()["ResponseMetadata"]["HTTPStatusCode"] == 200


def test_only_a_client_is_accepted():
    with pytest.raises(TypeError, match=r"takes a client of boto3 or botocore, got 's3'"):
        retry_client("s3")
    with pytest.raises(TypeError, match=r"retry_client\(\) takes a Policy or fields, got 3"):
        retry_client(SESSION.create_client("s3", region_name="eu-central-1"), 3)


def test_a_method_of_the_client_that_a_test_replaces_later_is_called(client_of, monkeypatch):
    client = retry_client(client_of("sqs"), attempts=2)
    monkeypatch.setattr(BaseClient, "_make_api_call", lambda self, name, params: {"called": name})
    assert client.list_queues() == {"called": "ListQueues"}


def test_a_method_that_was_set_on_the_client_is_called(client_of):
    client = client_of("sqs")
    del client._make_api_call
    client._make_api_call = lambda name, params: {"called": name}
    assert retry_client(retry_client(client), attempts=2).list_queues() == {"called": "ListQueues"}
