"""Rules that hold for every HTTP client of `redouble.clients`, against a server on loopback."""

from __future__ import annotations

import gc
import io

import pytest

from redouble import DeadlineExceeded, Policy, Rule, history, retry
from redouble.breaker import CircuitBreaker
from redouble.bulkhead import Bulkhead
from redouble.dead_letters import DeadLetters
from redouble.errors import BulkheadFull, CircuitOpen, RedoubleError, ResultRejected
from redouble.registry import Registry

from .conftest import Answer
from .every_client import CLIENTS


@pytest.fixture(params=CLIENTS)
def client(request):
    pytest.importorskip(CLIENTS[request.param].library)
    return CLIENTS[request.param]()


def get(server):
    return lambda fetch: fetch("GET", server.url)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (("Retry-After", "7"), 7.0),
        (("Retry-After-Ms", "1500"), 1.5),
        (("X-RateLimit-Reset-After", "3"), 3.0),
        (("x-ratelimit-reset-requests", "6s"), 6.0),
    ],
)
def test_the_wait_that_a_server_asks_for_is_made(client, server, waits, header, seconds):
    server.answers = [Answer(429, headers=dict([header])), 200]
    assert client.run(get(server)).status == 200
    assert seconds <= waits[0] <= seconds + 1.0  # with jitter


def test_a_wait_above_max_retry_after_is_not_made(client, server, waits):
    server.answers = [Answer(503, b"closed", {"Retry-After": "500"})]
    seen = client.run(get(server))
    assert (seen.status, seen.body, list(waits)) == (503, b"closed", [])
    assert "above the max_retry_after of 120 s" in history(seen.response).why


def test_until_judges_responses_that_the_status_accepts(client, server):
    server.answers = [Answer(200, headers={"X-State": "pending"}), Answer(200, b"done")]
    seen = client.run(get(server), until=lambda response: response.headers.get("X-State") != "pending")
    assert (seen.body, len(server.received)) == (b"done", 2)


def test_a_rule_for_401_sends_a_new_token(client, server):
    server.answers = [401, 200]

    def refresh(error, call):
        assert isinstance(error, ResultRejected)
        call.args[0].headers["Authorization"] = "Bearer new"

    seen = client.run(
        lambda fetch: fetch("POST", server.url, body=b"order", headers={"Authorization": "Bearer old"}),
        rules={401: Rule(attempts=2, recover=refresh)},
    )
    assert seen.status == 200
    assert [each.headers["authorization"] for each in server.received] == ["Bearer old", "Bearer new"]
    assert [each.body for each in server.received] == [b"order"] * 2


def test_a_second_401_is_returned(client, server):
    server.answers = [401, 401]
    seen = client.run(get(server), rules={401: Rule(attempts=2, recover=lambda error: None)})
    assert (seen.status, history(seen.response).attempts) == (401, 2)


@pytest.mark.parametrize("fields", [{"timeout": 0.2, "attempts": 1}, {"deadline": 0.2}])
def test_an_attempt_takes_no_longer_than_its_timeout_or_the_deadline(client, server, fields):
    server.answers = [Answer(delay=5.0)]
    with pytest.raises(client.timeout_error) as caught:
        client.run(get(server), **fields)
    assert isinstance(caught.value, DeadlineExceeded) == ("deadline" in fields)
    assert server.seconds_since_first() < 3.0


def test_the_deadline_of_an_enclosing_call_limits_a_request(client, server):
    server.answers = [Answer(delay=5.0)]
    with pytest.raises(DeadlineExceeded):
        client.run(lambda fetch: fetch("GET", server.url, around=retry(deadline=0.2)))
    assert server.seconds_since_first() < 3.0


def test_a_request_that_is_sent_once_is_limited_by_an_enclosing_call_too(client, server):
    server.answers = [Answer(delay=5.0)]
    with pytest.raises(DeadlineExceeded):
        client.run(lambda fetch: fetch("GET", server.url, policy=False, around=retry(deadline=0.2)))
    assert server.seconds_since_first() < 3.0


def test_a_request_that_was_given_up_on_is_a_dead_letter(client, server, tmp_path):
    server.answers = [503, 503]
    with DeadLetters(tmp_path / "letters.db") as letters:
        client.run(
            lambda fetch: fetch("PUT", server.url, body=b"1"),
            attempts=2,
            dead_letters=letters,
            payload=lambda request: {"url": str(request.url)},
        )
        (letter,) = letters.list()
    assert (letter.failure_code, letter.attempts, letter.payload) == ("503", 2, {"url": server.url})


def test_a_guard_is_shared_by_all_hosts_and_a_registry_has_one_for_each(client, server):
    server.answers = [503]
    elsewhere = server.url.replace("127.0.0.1", "localhost")

    def both(fetch):
        fetch("GET", server.url)
        return fetch("GET", elsewhere)

    with pytest.raises(client.connection_error) as caught:
        client.run(both, attempts=1, breaker=CircuitBreaker(failures=1))
    assert isinstance(caught.value, CircuitOpen)
    server.answers = [503]
    breakers = Registry(lambda host: CircuitBreaker(failures=1, name=host))
    assert client.run(both, attempts=1, breaker=breakers).status == 200
    assert set(breakers) == {"127.0.0.1", "localhost"}


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("size", [0, 10, 300_000])
def test_a_retried_response_frees_the_only_connection_of_a_pool(client, server, size, chunked):
    server.answers = [Answer(503, b"x" * size, chunked=chunked)] * 3 + [Answer(200, b"done")]
    assert client.run(get(server)).body == b"done"
    if size <= 10 and not chunked:
        assert server.connections == 1


def test_a_response_that_is_not_returned_frees_the_only_connection_of_a_pool(client, server):
    server.answers = [Answer(503, b"x" * 300_000, {"Retry-After": "60"}), Answer(200, b"done")]

    def both(fetch):
        with pytest.raises(client.timeout_error) as caught:
            fetch("GET", server.url)
        assert isinstance(caught.value, DeadlineExceeded)
        return fetch("GET", server.url)

    assert client.run(both, deadline=30.0).body == b"done"


def errors_alive():
    """Return the errors of ours that exist, also those that only the garbage collector would find."""
    return [type(each) for each in gc.get_objects() if issubclass(type(each), RedoubleError)]


@pytest.fixture
def no_collector():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
def test_a_response_that_is_returned_leaves_no_error_and_no_frame_behind(client, server):
    server.answers = [503, 503]
    assert client.run(get(server), attempts=2).status == 503
    assert errors_alive() == []


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("fields", [{"raise_status": True, "attempts": 1}, {"deadline": 30.0}])
def test_an_error_that_was_caught_leaves_no_frame_behind(client, server, fields):
    if hasattr(client, "_fetch"):  # an async one
        pytest.skip("the task in which an error is raised holds it, and its frames hold the task")
    server.answers = [Answer(503, headers={"Retry-After": "60"})]
    try:
        client.run(get(server), **fields)
    except Exception as error:
        assert history(error).attempts == 1
    else:
        pytest.fail("no error was raised")
    assert errors_alive() == []


def test_the_last_response_is_returned_as_it_is(client, server):
    server.answers = [503, Answer(503, b"last", {"X-Server": "b"})]
    seen = client.run(get(server), attempts=2)
    assert (seen.status, seen.body, seen.response.headers["X-Server"]) == (503, b"last", "b")
    assert history(seen.response).attempts == 2
    assert "gave up on GET 127.0.0.1 after 2 attempts" in seen.response.__notes__[0]


def test_a_status_that_is_not_retried_has_no_history(client, server):
    server.answers = [404]
    seen = client.run(get(server))
    assert (seen.status, history(seen.response)) == (404, None)


def test_raise_status_raises_the_error_of_the_client(client, server):
    server.answers = [503, Answer(503, b"x" * 300_000), Answer(200, b"done")]

    def both(fetch):
        with pytest.raises(client.status_error) as caught:
            fetch("GET", server.url)
        assert history(caught.value).attempts == 2
        return fetch("GET", server.url)

    assert client.run(both, attempts=2, raise_status=True).body == b"done"


def test_an_enclosing_call_does_not_retry_the_error_of_a_status(client, server):
    server.answers = [503] * 20

    def fetch_within(fetch):
        @retry
        def checked():
            fetch("GET", server.url, checked=True)

        checked()

    with pytest.raises(client.status_error) as caught:
        client.run(fetch_within, attempts=3)
    assert len(server.received) == 3
    assert "already retried by GET 127.0.0.1 (3 attempts)" in caught.value.__notes__[0]


def test_an_enclosing_call_retries_the_error_of_a_status_that_was_sent_once(client, server):
    server.answers = [503, 503, 200]

    def fetch_within(fetch):
        @retry
        def checked():
            return fetch("GET", server.url, checked=True, policy=False)

        return checked()

    assert client.run(fetch_within).status == 200


def test_a_full_bulkhead_is_an_error_of_the_client(client, server):
    bulkhead = Bulkhead(1)
    with bulkhead, pytest.raises(client.connection_error) as caught:
        client.run(get(server), bulkhead=bulkhead)
    assert isinstance(caught.value, BulkheadFull)


def test_a_response_that_was_closed_for_a_retry_that_is_not_made_is_an_error_of_the_client(client, server):
    server.answers = [Answer(503, b"x" * 300_000)]

    def fail(error):
        raise RuntimeError("no token")

    def streamed():
        return client.stream(server.url, recover=fail)

    with pytest.raises(client.connection_error) as caught:
        streamed()
    assert isinstance(caught.value, ResultRejected)
    assert "recover raised RuntimeError: no token" in caught.value.__notes__[0]


def test_bytes_and_files_are_sent_again(client, server):
    file = io.BytesIO(b"body")
    server.answers = [503, 200, 503, 200]

    def both(fetch):
        fetch("PUT", server.url, body=b"bytes")
        fetch("PUT", server.url, body=file if client.sends_files else b"body")

    client.run(both)
    assert [each.body for each in server.received] == [b"bytes", b"bytes", b"body", b"body"]


def test_a_generator_that_was_read_is_not_sent_again_and_the_note_says_so(client, server):
    server.answers = [503]
    seen = client.run(lambda fetch: fetch("PUT", server.url, body=(part for part in (b"one", b"two"))))
    assert (seen.status, len(server.received)) == (503, 1)
    assert "its body was a generator, which is used up" in seen.response.__notes__[0]


def test_a_streamed_response_is_retried_until_its_headers_and_not_after(client, server):
    server.answers = [503, Answer(200, b"half", lost=100), Answer(200, b"whole")]
    with pytest.raises(Exception) as caught:
        client.stream(server.url)
    assert history(caught.value) is None
    assert len(server.received) == 2


@pytest.mark.parametrize("method", ["POST", "PATCH"])
def test_a_key_is_the_same_on_each_attempt_and_new_for_each_request(client, server, method):
    server.answers = [503, 503, 200]

    def both(fetch):
        fetch(method, server.url, body=b"1")
        fetch(method, server.url, body=b"1")

    client.run(both, idempotency_key=True)
    keys = [each.headers["idempotency-key"] for each in server.received]
    assert keys[0] == keys[1] == keys[2] != keys[3]


def test_a_key_of_the_caller_is_kept_and_other_methods_have_none(client, server):
    def all_of(fetch):
        fetch("POST", server.url, body=b"1", headers={"Idempotency-Key": "mine"})
        fetch("GET", server.url)
        fetch("PUT", server.url, body=b"1")

    client.run(all_of, idempotency_key=True)
    assert [each.headers.get("idempotency-key") for each in server.received] == ["mine", None, None]


def test_a_post_without_a_key_is_sent_once(client, server):
    server.answers = [500]
    seen = client.run(lambda fetch: fetch("POST", server.url, body=b"1"))
    assert (seen.status, len(server.received)) == (500, 1)
    assert "repeating this POST might act twice" in seen.response.__notes__[0]


@pytest.mark.parametrize(
    ("hosts", "told"), [([], False), (["127.0.0.1"], True), (["elsewhere"], False), (["*"], True)]
)
def test_attempt_and_time_left_go_to_hosts_that_are_named(client, server, hosts, told):
    server.answers = [503, 200]
    client.run(get(server), propagate_to=hosts, deadline=20.0)
    attempts = [each.headers.get("x-retry-attempt") for each in server.received]
    assert attempts == (["1", "2"] if told else [None, None])
    assert all(("x-request-timeout-ms" in each.headers) == told for each in server.received)


def test_a_redirect_to_another_host_does_not_carry_our_headers(client, server):
    elsewhere = server.url.replace("127.0.0.1", "localhost")
    server.answers = [Answer(302, headers={"Location": elsewhere}), 200]
    client.run(get(server), propagate_to=["127.0.0.1"], deadline=20.0)
    assert [each.headers.get("x-retry-attempt") for each in server.received] == ["1", None]


def test_one_request_has_another_policy_or_none(client, server):
    server.answers = [503] * 9

    def all_of(fetch):
        return [
            history(fetch("GET", server.url, policy=Policy(attempts=2)).response).attempts,
            history(fetch("GET", server.url, policy=False).response),
            history(fetch("GET", server.url).response).attempts,
        ]

    assert client.run(all_of, attempts=3) == [2, None, 3]


def test_a_lost_connection_is_an_error_of_the_client_with_its_history(client, server):
    server.answers = [Answer(cut=True)] * 3
    with pytest.raises(client.connection_error) as caught:
        client.run(get(server), attempts=3)
    assert history(caught.value).attempts == 3
    assert len(server.received) == 3


def test_a_name_of_a_call_is_its_method_and_host_without_the_path(client, server):
    server.answers = [503, 503]
    seen = client.run(get(server), attempts=2)
    assert history(seen.response).name == "GET 127.0.0.1"
