"""`redouble.clients.urllib3`, against a server on loopback."""

from __future__ import annotations

import io
import logging
import pickle

import pytest

from redouble import Policy, Rule, history, retry
from redouble.breaker import CircuitBreaker
from redouble.bulkhead import Bulkhead
from redouble.classify import accepted
from redouble.errors import BulkheadFull, CircuitOpen, DeadlineExceeded, ResultRejected, StoreError
from redouble.registry import Registry

from .conftest import CUT, Answer, Server

urllib3 = pytest.importorskip("urllib3", minversion="2")
from urllib3.exceptions import (  # noqa: E402
    HTTPError,
    MaxRetryError,
    NewConnectionError,
    ProtocolError,
)
from urllib3.util import Retry, Timeout  # noqa: E402

from redouble.clients.urllib3 import RetryPoolManager, override  # noqa: E402


@pytest.fixture
def pool_of():
    """Make managers with one connection for each host, which are closed at the end."""
    made = []

    def make(*args, manager=None, **fields):
        inner = manager or urllib3.PoolManager(maxsize=1, block=True, timeout=30.0)
        made.append(RetryPoolManager(*args, manager=inner, **fields))
        return made[-1]

    yield make
    for pool in made:
        pool.clear()


@pytest.fixture
def other():
    server = Server()
    yield server
    server.close()


def test_a_transient_response_and_a_lost_connection_are_retried(server, pool_of):
    server.answers = [503, CUT, 200]
    assert pool_of().request("GET", server.url).data == b"body"
    assert len(server.received) == 3


@pytest.mark.parametrize("preload", [True, False])
def test_a_retried_response_gives_its_connection_back_to_a_pool_of_one(server, pool_of, preload):
    server.answers = [503, Answer(503, b""), 200]
    response = pool_of().request("GET", server.url, preload_content=preload, pool_timeout=30)
    assert response.data == b"body"
    assert server.connections == 1


def test_a_long_response_that_is_retried_is_closed_unread(server, pool_of):
    server.answers = [Answer(503, b"x" * 1_000_000), Answer(503, b"short", chunked=True), 200]
    response = pool_of().request("GET", server.url, preload_content=False, pool_timeout=30)
    assert response.data == b"body"
    assert server.connections == 3


@pytest.mark.parametrize("preload", [True, False])
@pytest.mark.parametrize("body", [b"last", b""], ids=["body", "empty"])
def test_the_last_response_is_returned_with_its_body_and_its_history(server, pool_of, preload, body):
    server.answers = [503, Answer(503, body)]
    response = pool_of(attempts=2).request("GET", server.url, preload_content=preload)
    assert (response.status, response.data, history(response).attempts) == (503, body, 2)
    assert "gave up on GET 127.0.0.1 after 2 attempts" in response.__notes__[0]


@pytest.mark.parametrize("preload", [True, False])
def test_raise_status_raises_the_error_of_urllib3_with_the_note(server, pool_of, preload):
    server.answers = [503, 503]
    pool = pool_of(attempts=2, raise_status=True)
    with pytest.raises(MaxRetryError, match="too many 503 error responses") as caught:
        pool.request("GET", server.url, preload_content=preload)
    assert caught.value.response.status == 503
    assert history(caught.value).attempts == 2
    assert pool.request("GET", server.url, pool_timeout=30).status == 200


def test_a_post_is_sent_once(server, pool_of):
    server.answers = [503]
    response = pool_of().request("POST", server.url, json={"order": 1})
    assert "repeating this POST might act twice" in response.__notes__[0]
    assert [request.body for request in server.received] == [b'{"order":1}']


def test_a_post_that_only_reads_is_retried(server, pool_of):
    server.answers = [503, 200]
    url = server.url.replace("/orders", "/graphql")
    assert pool_of().request("POST", url, json={"query": "{ orders { id } }"}).status == 200


def test_a_post_with_a_key_is_retried_with_the_same_key(server, pool_of):
    server.answers = [503, 201]
    pool = pool_of(idempotency_key=lambda request: request.body.decode(), name="pay")
    given = {"accept": "text/plain"}
    assert pool.request("POST", server.url, body=b"17", headers=given).status == 201
    assert [request.headers["idempotency-key"] for request in server.received] == ["pay:17", "pay:17"]
    assert given == {"accept": "text/plain"}
    pool.request("POST", server.url, body=b"17", headers={"idempotency-key": "mine"})
    assert server.received[-1].headers["idempotency-key"] == "mine"


def test_headers_of_the_manager_are_sent(server, pool_of):
    manager = urllib3.PoolManager(headers={"X-Team": "a"})
    pool = pool_of(manager=manager)
    pool.request("GET", server.url)
    pool.urlopen("get", server.url)
    assert [(each.method, each.headers["x-team"]) for each in server.received] == [("GET", "a")] * 2


def test_a_file_is_sent_again_from_where_it_began(server, pool_of):
    server.answers = [503, 200]
    file = io.BytesIO(b"head body")
    file.seek(5)
    pool_of().request("PUT", server.url, body=file)
    assert [request.body for request in server.received] == [b"body", b"body"]


class Pipe(io.BytesIO):
    def tell(self):
        raise OSError("a pipe")


def generated():
    yield b"one"


@pytest.mark.parametrize(
    ("body", "why"),
    [(generated, "its body was a generator"), (lambda: Pipe(b"data"), "a file that cannot be rewound")],
    ids=["generator", "pipe"],
)
def test_a_body_that_cannot_be_sent_again_is_not(server, pool_of, body, why):
    server.answers = [503]
    assert why in pool_of().request("PUT", server.url, body=body()).__notes__[0]
    assert len(server.received) == 1


class Recording(urllib3.PoolManager):
    """Keeps the options that it is given, and raises the errors it was made with, then answers 200."""

    def __init__(self, *errors, **options):
        super().__init__(**options)
        self.given, self.errors = [], list(errors)

    def urlopen(self, method, url, **kw):
        self.given.append(kw)
        if self.errors:
            raise self.errors.pop(0)
        return urllib3.HTTPResponse(status=200)


def limits(options):
    timeout = options["timeout"]
    return timeout.connect_timeout, timeout.total, options["pool_timeout"]


@pytest.mark.parametrize(
    ("manager", "options", "expected"),
    [
        ({}, {}, (3.0, 3.0, 3.0)),
        ({"timeout": 2.0}, {}, (2.0, 3.0, 3.0)),
        ({"timeout": 2.0}, {"timeout": None}, (3.0, 3.0, 3.0)),
        ({}, {"timeout": 9.0, "pool_timeout": 1.0}, (3.0, 3.0, 1.0)),
        ({}, {"timeout": Timeout(connect=1.0, total=2.5)}, (1.0, 2.5, 3.0)),
    ],
)
def test_timeouts_are_never_longer_than_what_is_left(pool_of, manager, options, expected):
    recording = Recording(**manager)
    pool_of(manager=recording, timeout=3.0).request("GET", "http://127.0.0.1:1/", **options)
    assert limits(recording.given[0]) == expected


def test_an_attempt_without_time_left_has_the_shortest_timeout(pool_of):
    recording = Recording()
    pool_of(manager=recording, timeout=1e-6).request("GET", "http://127.0.0.1:1/")
    assert limits(recording.given[0]) == (0.001, 0.001, 0.001)


def test_timeouts_of_the_caller_are_left_alone_without_a_limit(pool_of):
    recording = Recording()
    pool_of(manager=recording).request("GET", "http://127.0.0.1:1/", timeout=9.0)
    assert recording.given[0]["timeout"] == 9.0


def test_errors_of_a_connection_are_raised_as_they_are(pool_of, server):
    with pytest.raises(NewConnectionError) as caught:
        pool_of(attempts=2).request("GET", "http://127.0.0.1:1/")
    assert history(caught.value).attempts == 2
    server.answers = [CUT, CUT]
    with pytest.raises(ProtocolError) as caught:
        pool_of(attempts=2).request("GET", server.url)
    assert history(caught.value).attempts == 2


def test_a_wait_that_passes_the_deadline_is_a_timeout_of_urllib3(server, pool_of):
    server.answers = [Answer(503, headers={"Retry-After": "90"})]
    pool = pool_of(deadline=60.0)
    with pytest.raises(urllib3.exceptions.TimeoutError) as caught:
        pool.request("GET", server.url, preload_content=False)
    assert isinstance(caught.value, DeadlineExceeded)
    assert pool.request("GET", server.url, pool_timeout=30).status == 200  # the pool of one is free
    assert isinstance(pickle.loads(pickle.dumps(caught.value)), urllib3.exceptions.TimeoutError)


def test_a_response_that_was_closed_for_a_retry_is_not_returned(server, pool_of):
    server.answers = [503, 503]

    def fail(error):
        raise RuntimeError("no token")

    pool = pool_of(recover=fail)
    with pytest.raises(ProtocolError) as caught:
        pool.request("GET", server.url, preload_content=False)
    assert isinstance(caught.value, ResultRejected)
    assert pool.request("GET", server.url).data == b"body"  # it was read when it arrived


def test_guards_are_errors_of_urllib3_and_a_registry_is_by_host(server, pool_of):
    server.answers = [503]
    pool = pool_of(attempts=1, breaker=Registry(lambda host: CircuitBreaker(failures=1, name=host)))
    pool.request("GET", server.url)
    with pytest.raises(HTTPError, match=r"the circuit of 127\.0\.0\.1 is open") as caught:
        pool.request("GET", server.url)
    assert isinstance(caught.value, CircuitOpen)
    bulkhead = Bulkhead(1)
    with bulkhead, pytest.raises(HTTPError) as caught:
        pool_of(bulkhead=bulkhead).request("GET", server.url)
    assert isinstance(caught.value, BulkheadFull)


def test_a_rule_refreshes_a_token_before_the_retry(server, pool_of):
    server.answers = [401, 200]

    def refresh(error, call):
        assert repr(call.args[0]) == "<Request POST 127.0.0.1>"
        call.args[0].headers["Authorization"] = "new"

    pool = pool_of(rules={401: Rule(attempts=2, recover=refresh)})
    assert pool.request("POST", server.url).status == 200
    assert server.received[1].headers["authorization"] == "new"


def test_override_changes_the_policy_inside_a_block(server, pool_of):
    server.answers = [503, 503]
    with override(False):
        assert history(pool_of().request("GET", server.url)) is None
    with override(attempts=1):
        assert history(pool_of().request("GET", server.url)).attempts == 1


def test_a_pool_takes_a_policy_or_fields():
    with RetryPoolManager(Policy(attempts=2), base=0.5) as pool:
        assert pool.policy == Policy(attempts=2, base=0.5)
    with pytest.raises(TypeError, match=r"RetryPoolManager\(\) takes a Policy or fields, got 3"):
        RetryPoolManager(3)


def test_our_headers_go_to_hosts_that_are_named_and_not_where_a_redirect_leads(server, other, pool_of):
    server.answers = [503, Answer(302, headers={"Location": other.url})]
    pool = pool_of(deadline=60.0, propagate_to=["127.0.0.1"])
    assert pool.request("GET", server.url).status == 200
    assert [request.headers["x-retry-attempt"] for request in server.received] == ["1", "2"]
    assert "x-retry-attempt" not in other.received[0].headers


def test_a_redirect_is_followed_and_retried_from_its_beginning(server, pool_of):
    moved = Answer(302, headers={"Location": "/other"})
    server.answers = [moved, 503, moved, 200]
    assert pool_of().request("GET", server.url).status == 200
    assert [request.path for request in server.received] == ["/orders", "/other"] * 2


def test_a_redirect_is_returned_on_request(server, pool_of):
    server.answers = [Answer(302, headers={"Location": "/other"})] * 2
    assert pool_of().request("GET", server.url, redirect=False).status == 302
    assert pool_of().request("GET", server.url, retries=False).status == 302


@pytest.mark.parametrize(
    ("retries", "requests"),
    [
        (None, 11),
        (2, 3),
        (Retry(5), 6),
        (Retry(5, redirect=1), 2),
        (Retry(None), 11),
        (Retry(None, redirect=0), 1),
    ],
    ids=repr,
)
@pytest.mark.parametrize("of_manager", [False, True])
def test_redirects_are_counted_as_urllib3_counts_them(server, pool_of, retries, requests, of_manager):
    server.answers = [Answer(302, headers={"Location": "/orders"})] * 30
    if of_manager and isinstance(retries, Retry):
        pool, options = pool_of(manager=urllib3.PoolManager(retries=retries)), {}
    else:
        pool, options = pool_of(), {"retries": retries}
    with pytest.raises(MaxRetryError, match="too many redirects"):
        pool.request("GET", server.url, **options)
    assert len(server.received) == requests


def test_retries_of_urllib3_are_not_made_and_said_once(server, pool_of, caplog):
    server.answers = [503] * 9
    pool = pool_of(attempts=2)
    for _ in range(2):
        retries = Retry(3, status_forcelist=[503])
        assert history(pool.request("GET", server.url, retries=retries)).attempts == 2
    assert len(server.received) == 4
    said = [record for record in caplog.records if "set attempts= instead" in record.getMessage()]
    assert [record.levelno for record in said] == [logging.WARNING]


def test_a_retry_for_redirects_alone_is_not_warned_about(server, pool_of, caplog):
    retries = Retry(total=None, connect=False, read=False, status=0, other=0, redirect=5)
    pool_of(manager=urllib3.PoolManager(retries=retries)).request("GET", server.url)
    assert "retries=" not in caplog.text


def test_an_enclosing_call_does_not_retry_what_the_pool_has_retried(server, pool_of):
    server.answers = [503] * 8
    pool = pool_of(attempts=2, raise_status=True)

    @retry
    def fetch():
        pool.request("GET", server.url)

    with pytest.raises(MaxRetryError):
        fetch()
    assert len(server.received) == 2


def test_an_enclosing_call_that_judges_responses_does_not_retry_either(server, pool_of):
    server.answers = [503] * 8
    pool = pool_of(attempts=2)

    @retry(until=accepted)
    def fetch():
        return pool.request("GET", server.url)

    with pytest.raises(ResultRejected):
        fetch()
    assert len(server.received) == 2


def test_another_error_of_ours_passes_as_it_is(pool_of):
    error = StoreError("locked", location="letters.db")
    with pytest.raises(StoreError) as caught:
        pool_of(manager=Recording(error)).request("GET", "http://127.0.0.1:1/")
    assert caught.value is error


def test_a_manager_is_made_where_none_is_given():
    with RetryPoolManager() as pool:
        assert isinstance(pool._manager, urllib3.PoolManager)
