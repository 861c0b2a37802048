"""Requests that are sent as POST and only read, and Redis commands."""

from __future__ import annotations

import time
from types import SimpleNamespace as Thing

import pytest

from redouble import retry
from redouble.classify import repeatable, request_method
from redouble.classify._requests import is_aws_read
from redouble.classify._table_requests import REDIS_REPEATABLE, VENDOR_HOSTS, VENDOR_READS
from redouble.testing import no_waits
from support.clients import client, failure_of, judged, redis, request, send

# Reads that are sent as POST


def posted(url, headers=None, **others):
    return failure_of(send, request("POST", url, headers, **others))


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://api.example.org/v1/chat/completions", True),
        ("https://api.example.org/v1/chat/completions?stream=1#a", True),
        ("https://api.example.org/v1/embeddings/", True),
        ("https://api.example.org/v1/fine_tuning/jobs", False),
        ("https://api.openai.com/v1/responses", True),
        ("https://user:pw@API.openai.com:443/v1/responses", True),
        ("https://shop.openai.azure.com/openai/deployments/d/completions", True),
        ("https://notapi.openai.com.example.org/v1/responses", False),
        ("https://example.org/v1/responses", False),
        ("https://api.openai.com/v1/threads/t/messages", False),
        ("https://api.anthropic.com/v1/messages", True),
        ("https://api.anthropic.com/v1/messages/batches", False),
        ("https://api.mailgun.net/v3/example.org/messages", False),
        ("https://api.cohere.com/v2/chat", True),
        ("https://example.org/v2/chat", False),
        ("https://generativelanguage.googleapis.com/v1beta/models/m:generateContent", True),
        ("https://generativelanguage.googleapis.com/v1beta/models/m:batchGenerateContent", False),
        ("/products/_search", True),
        ("/products/_doc/1", False),
        ("/_search/scroll", False),
        ("https://id.example.org/oauth2/v2.0/token", True),
        ("https://id.example.org/realms/a/protocol/openid-connect/token", True),
        ("https://oauth2.googleapis.com/token", True),
        ("https://example.org/token", False),
        ("https://example.org/oauth/revoke", False),
        ("https://bedrock-runtime.eu-west-1.amazonaws.com/model/m/converse", True),
        ("https://example.org/device/m/converse", False),
        ("", False),
        (b"/products/_search", True),
        (5, False),
    ],
)
def test_a_read_that_is_sent_as_post_is_known_by_its_address(url, expected):
    assert repeatable(posted(url)) is expected


def test_only_a_post_is_looked_at_for_a_read():
    assert repeatable(failure_of(send, request("PATCH", "/products/_search"))) is False


def test_a_post_on_an_error_whose_class_has_no_module_name_is_not_repeated():
    error = type("Odd", (Exception,), {"__module__": None})()
    error.request = request("POST", "https://api.example.org/v1/messages")
    assert repeatable(error) is False


@pytest.mark.parametrize("vendor", VENDOR_READS)
def test_the_client_of_a_vendor_tells_whose_operation_it_is(vendor):
    path = VENDOR_READS[vendor][0]
    sent = request("POST", "http://127.0.0.1:8080" + path)
    assert repeatable(failure_of(send, sent)) is False
    inside = client(f"{vendor}._base_client", "def request_it(sent): below(sent)", below=send)
    assert repeatable(failure_of(inside, sent)) is True
    error = type("APITimeoutError", (Exception,), {"__module__": vendor, "request": sent})()
    assert repeatable(error) is True
    assert vendor in VENDOR_HOSTS.values()


def test_a_url_may_be_an_object_of_its_client():
    kind = type("URL", (), {"__module__": "yarl._url", "__str__": lambda self: "https://a.org/x/_search"})
    assert repeatable(posted(kind())) is True
    other = type("URL", (), {"__module__": "shop", "__str__": lambda self: "https://a.org/x/_search"})
    assert repeatable(posted(other())) is False


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        ("GetItem", True), ("ListTables", True), ("DescribeInstances", True), ("Query", True), ("Scan", True),
        ("BatchGetItem", True), ("SelectObjectContent", True), ("AssumeRole", True), ("PutItem", False),
        ("SendMessage", False), ("CheckoutLicense", False), ("GetActivityTask", False), ("RunInstances", False), ("", False),
    ],
)  # fmt: skip
def test_an_operation_of_aws_is_judged_by_its_verb(operation, expected):
    assert is_aws_read(operation) is expected
    target = {"X-Amz-Target": f"DynamoDB_20120810.{operation}"}
    assert repeatable(posted("https://dynamodb.amazonaws.com/", target)) is expected
    form = f"Action={operation}&Version=1"
    assert repeatable(posted("https://ec2.amazonaws.com/", body=form)) is expected
    assert repeatable(posted("https://ec2.example.org/", body=form)) is False


def test_botocore_shows_its_operation():
    call = client(
        "botocore.client",
        "def _make_api_call(operation_name, api_params, operation_model, service_name='sqs'): fail()",
    )
    model = Thing(http={"method": "POST"}, idempotent_members=["ClientToken"])
    assert judged(failure_of(call, "SendMessage", {}, model)) == (True, "sqs SendMessage")
    assert judged(failure_of(call, "DescribeInstances", {}, model)) == (True, None)
    assert judged(failure_of(call, "SendMessage", {"MessageDeduplicationId": "m"}, model)) == (True, None)
    # Filled in by botocore, it is another one for each call.
    assert judged(failure_of(call, "RunInstances", {"ClientToken": "t"}, model)) == (True, "sqs RunInstances")
    assert judged(failure_of(call, "PutObject", {}, Thing(http={"method": "PUT"}))) == (True, None)
    assert judged(failure_of(call, None, {}, None, None)) == (True, "AWS ")


def test_a_key_that_a_client_makes_up_for_each_call_excuses_nothing():
    made_up = {"Idempotency-Key": "stainless-python-retry-b0b"}
    assert repeatable(posted("https://example.org/jobs", made_up)) is False
    call = client("stripe._api_requestor", "def request(method, url, options=None): fail()")
    assert repeatable(failure_of(call, "post", "/v1/charges")) is False
    assert repeatable(failure_of(call, "post", "/v1/charges", {"idempotency_key": "order-1"})) is True
    assert repeatable(failure_of(call, "get", "/v1/charges")) is True
    assert repeatable(failure_of(call, None, "/v1/charges")) is None


def test_a_fetch_of_tornado_takes_a_url_or_a_request():
    call = client("tornado.httpclient", "def fetch(request, **kwargs): fail()")
    assert repeatable(failure_of(call, "https://example.org/", method="POST")) is False
    assert repeatable(failure_of(call, "https://example.org/")) is True
    assert repeatable(failure_of(call, request("POST"))) is False


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ('{"query": "query Q($a: [ID!] = [1]) { me(id: $a) { name } }"}', True),
        ('{"query": "{ me }"}', True),
        ('{"query": "fragment F on Me { name } { ...F }"}', True),
        ('{"query": "query { a(text: \\"mutation {\\") }"}', True),
        ('{"query": "query { a(text: \\"\\"\\"x \\"mutation\\" {\\"\\"\\") } "}', True),
        ('{"query": "{ a } # mutation { pay }"}', True),
        ('{"query": "mutation { pay }"}', False),
        ('{"query": "subscription { paid }"}', False),
        ('{"query": "query Q { a } mutation M { pay }"}', False),
        ('{"query": "no document"}', False),
        ('{"query": 5}', False),
        ('[{"query": "{ a }"}, {"query": "{ b }"}]', True),
        ('[{"query": "{ a }"}, {"query": "mutation { b }"}]', False),
        ("[]", False),
        ("no json", False),
        ("[" * 100_000, False),
        ('{"query": "{ a ' + " " * 300_000 + '}"}', False),
        (None, False),
        ({"query": "{ a " + " " * 300_000 + "}"}, False),
        ({"query": "{ a }"}, True),
        ([{"query": "{ a }"}], True),
    ],
)  # fmt: skip
def test_a_query_of_graphql_is_a_read_and_a_mutation_is_not(body, expected):
    assert repeatable(posted("https://example.org/graphql", json=body)) is expected
    if isinstance(body, str):
        assert repeatable(posted("https://example.org/graphql", body=body.encode())) is expected


@pytest.mark.parametrize(
    "text", ['"""' + '\\"""' * 60_000, '"' * 200_000, "{" * 200_000, '"""' * 60_000 + "\\"]
)
def test_a_hostile_document_of_graphql_takes_no_time(text):
    began = time.process_time()
    repeatable(posted("https://example.org/graphql", json={"query": text}))
    assert time.process_time() - began < 1.0


# Redis


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (("GET", "a"), True),
        (("get", "a"), True),
        (("SET", "a", 1), True),
        (("SET", "a", 1, "EX", 60), True),
        (("SET", "a", 1, "NX"), False),
        (("SET", "a", 1, b"nx"), False),
        (("SET", "a", 1, "XX"), False),
        (("SET", "a", 1, "GET"), False),
        (("HSET", "a", "f", 1), True),
        (("DEL", "a"), True),
        (("EXPIRE", "a", 60), True),
        (("EXPIRE", "a", 60, "GT"), False),
        (("OBJECT ENCODING", "a"), True),
        (("INCR", "a"), False),
        (("INCRBY", "a", 1), False),
        (("LPUSH", "a", 1), False),
        (("SADD", "a", 1), False),
        (("ZADD", "a", 1, "m"), False),
        (("BLPOP", "a", 1), False),
        (("GETDEL", "a"), False),
        (("EVALSHA", "s", 0), False),
        (("XADD", "a", "*", "f", 1), False),
        (("PUBLISH", "a", "m"), False),
        (("NEW.COMMAND", "a"), False),
        ((None,), False),
    ],
    ids=str,
)
def test_a_redis_command_is_repeated_only_if_the_table_allows_it(command, expected):
    assert repeatable(failure_of(redis, *command)) is expected


def test_no_command_that_adds_or_takes_is_in_the_table():
    acts = (
        "INCR DECR APPEND PUSH POP ADD STORE MOVE RENAME COPY EVAL FCALL PUBLISH CLAIM ACK FLUSH SHUTDOWN NX"
    )
    assert not [
        name for name in REDIS_REPEATABLE for act in acts.split() if act in name and not name.endswith("_RO")
    ]


def test_a_pipeline_is_repeated_only_if_each_of_its_commands_is():
    execute = client("redis.client", "def execute(self): stack = self.command_stack; fail()")
    safe, unsafe = (("SET", "a", 1), {}), (("INCR", "a"), {})
    assert judged(failure_of(execute, Thing(command_stack=[safe, safe]))) == (True, None)
    assert judged(failure_of(execute, Thing(command_stack=[safe, unsafe]))) == (True, "Redis INCR")
    cluster = client("redis.cluster", "def execute(self): fail()")
    commands = [Thing(args=("GET", "a")), Thing(args=("INCR", "a"))]
    assert judged(failure_of(cluster, Thing(command_stack=commands))) == (True, "Redis INCR")


def test_a_note_about_a_command_does_not_speak_of_a_header():
    with no_waits(), pytest.raises(ConnectionResetError) as caught:
        retry(redis)("INCR", "a")
    assert (
        caught.value.__notes__[0]
        .splitlines()[0]
        .endswith("repeating this Redis INCR might act twice; if it may be repeated, say idempotent=True")
    )


def test_the_method_of_a_command_is_not_one_of_http():
    assert request_method(failure_of(redis, "INCR", "a")) is None
