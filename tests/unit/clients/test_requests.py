"""`redouble.clients.requests`, against a server on loopback."""

from __future__ import annotations

import io
import pickle

import pytest

from redouble import Policy, Rule, history, retry
from redouble.breaker import CircuitBreaker
from redouble.bulkhead import Bulkhead
from redouble.errors import BulkheadFull, CircuitOpen, DeadlineExceeded, ResultRejected, StoreError
from redouble.registry import Registry

from .conftest import CUT, Answer

requests = pytest.importorskip("requests")
from requests.adapters import BaseAdapter, HTTPAdapter  # noqa: E402
from urllib3.util import Timeout  # noqa: E402

from redouble.clients.requests import RetryAdapter, override, retrying_session  # noqa: E402


@pytest.fixture
def session_of():
    """Make sessions with a pool of one connection, which are closed at the end."""
    sessions = []

    def make(*args, adapter=None, **fields):
        session = requests.Session()
        inner = adapter or HTTPAdapter(pool_connections=1, pool_maxsize=1, pool_block=True)
        session.mount("http://", RetryAdapter(*args, adapter=inner, **fields))
        sessions.append(session)
        return session

    yield make
    for session in sessions:
        session.close()


def test_a_transient_response_and_a_lost_connection_are_retried(server, session_of):
    server.answers = [503, CUT, 200]
    assert session_of().get(server.url, timeout=30).status_code == 200
    assert len(server.received) == 3


def test_a_retried_response_gives_its_connection_back_to_a_pool_of_one(server, session_of):
    server.answers = [503, 503, 200]
    assert session_of().get(server.url, timeout=30).text == "body"
    assert server.connections == 1


def test_a_long_response_that_is_retried_is_closed_unread(server, session_of):
    server.answers = [Answer(503, b"x" * 100_000), Answer(503, b"short", chunked=True), 200]
    assert session_of().get(server.url, timeout=30, stream=True).text == "body"


def test_the_last_response_is_returned_with_its_body_and_its_history(server, session_of):
    server.answers = [503, Answer(503, b"last")]
    response = session_of(attempts=2).get(server.url, timeout=30)
    assert (response.status_code, response.text, history(response).attempts) == (503, "last", 2)


def test_raise_status_raises_the_error_of_requests_with_the_note(server, session_of):
    server.answers = [503, 503]
    with pytest.raises(requests.HTTPError) as caught:
        session_of(attempts=2, raise_status=True).get(server.url, timeout=30)
    assert caught.value.response.status_code == 503
    assert history(caught.value).attempts == 2


def test_a_post_is_sent_once(server, session_of):
    server.answers = [503]
    response = session_of().post(server.url, data=b"1", timeout=30)
    assert "repeating this POST might act twice" in response.__notes__[0]
    assert len(server.received) == 1


def test_a_post_with_a_key_is_retried_with_the_same_key(server, session_of):
    server.answers = [503, 201]
    session = session_of(idempotency_key=lambda request: request.body.decode(), name="pay")
    assert session.post(server.url, data=b"17", timeout=30).status_code == 201
    assert [request.headers["idempotency-key"] for request in server.received] == ["pay:17", "pay:17"]
    session.post(server.url, data=b"17", timeout=30, headers={"Idempotency-Key": "mine"})
    assert server.received[-1].headers["idempotency-key"] == "mine"


def test_a_file_is_sent_again_from_where_it_began(server, session_of):
    server.answers = [503, 200]
    file = io.BytesIO(b"head body")
    file.seek(5)
    session_of().put(server.url, data=file, timeout=30)
    assert [request.body for request in server.received] == [b"body", b"body"]


def test_a_body_that_cannot_be_sent_again_is_not(server, session_of):
    class Pipe(io.BytesIO):
        def tell(self):
            raise OSError("a pipe")

    def generated():
        yield b"one"

    for body, why in [
        (generated(), "its body was a generator"),
        (Pipe(b"data"), "a file that cannot be rewound"),
    ]:
        server.answers = [503]
        response = session_of().put(server.url, data=body, timeout=30)
        assert why in response.__notes__[0]


def test_a_generator_that_was_not_begun_is_sent_after_all(session_of, server):
    def generated():
        yield b"one"

    class Refusing(HTTPAdapter):
        refused = 0

        def send(self, request, **kwargs):
            if not self.refused:
                self.refused = 1
                raise requests.ConnectTimeout("no connection")
            return super().send(request, **kwargs)

    session = session_of(adapter=Refusing())
    assert session.put(server.url, data=generated(), timeout=30).status_code == 200
    assert server.received[0].body == b"one"


class Recording(BaseAdapter):
    """Keeps the timeouts that it is given, and answers 503 once, with a response that was never read."""

    def __init__(self, *statuses):
        super().__init__()
        self.timeouts, self.statuses, self.closed = [], list(statuses), False

    def send(self, request, stream=False, timeout=None, verify=True, cert=None, proxies=None):
        self.timeouts.append(timeout)
        response = requests.Response()
        response.status_code, response.url = self.statuses.pop(0), request.url
        response.raw = io.BytesIO(b"x")
        return response

    def close(self):
        self.closed = True


def test_timeouts_are_never_longer_than_what_is_left(session_of):
    adapter = Recording(200, 200, 200)
    session = session_of(adapter=adapter, timeout=3.0)
    for timeout in (10, (1.0, 10), None):
        session.get("http://127.0.0.1:1/", timeout=timeout)
    assert adapter.timeouts == [3.0, (1.0, 3.0), 3.0]


def test_a_timeout_of_urllib3_stays_shorter_than_what_is_left(session_of):
    adapter = Recording(200, 200)
    session = session_of(adapter=adapter, timeout=3.0)
    for timeout in (Timeout(connect=1.0, read=9.0), Timeout(total=2.0)):
        session.get("http://127.0.0.1:1/", timeout=timeout)
        assert timeout.total in (None, 2.0)  # the caller's own is not changed
    assert [(each.total, each.connect_timeout) for each in adapter.timeouts] == [(3.0, 1.0), (2.0, 2.0)]


def test_options_may_be_given_by_position(session_of):
    adapter = Recording(200)
    prepared = requests.Request("GET", "http://127.0.0.1:1/").prepare()
    RetryAdapter(adapter=adapter).send(prepared, False, 7.0)
    assert adapter.timeouts == [7.0]


def test_a_wait_that_passes_the_deadline_is_a_timeout_of_requests(server, session_of):
    server.answers = [Answer(503, headers={"Retry-After": "90"})]
    session = session_of(deadline=60.0)
    with pytest.raises(requests.Timeout) as caught:
        session.get(server.url, timeout=30)
    assert isinstance(caught.value, DeadlineExceeded)
    assert caught.value.request.method == "GET"
    assert session.get(server.url, timeout=30).status_code == 200  # the pool of one is free
    assert isinstance(pickle.loads(pickle.dumps(caught.value)), requests.Timeout)


def test_a_response_that_was_closed_for_a_retry_is_not_returned(server, session_of):
    server.answers = [Answer(503, b"x" * 100_000)]

    def fail(error):
        raise RuntimeError("no token")

    with pytest.raises(requests.ConnectionError) as caught:
        session_of(recover=fail).get(server.url, timeout=30, stream=True)
    assert isinstance(caught.value, ResultRejected)


def test_guards_are_errors_of_requests_and_a_registry_is_by_host(server, session_of):
    server.answers = [503]
    session = session_of(attempts=1, breaker=Registry(lambda host: CircuitBreaker(failures=1, name=host)))
    session.get(server.url, timeout=30)
    with pytest.raises(requests.ConnectionError, match=r"the circuit of 127\.0\.0\.1 is open") as caught:
        session.get(server.url, timeout=30)
    assert isinstance(caught.value, CircuitOpen)
    bulkhead = Bulkhead(1)
    with bulkhead, pytest.raises(requests.ConnectionError) as caught:
        session_of(bulkhead=bulkhead).get(server.url, timeout=30)
    assert isinstance(caught.value, BulkheadFull)


def test_a_guard_may_be_chosen_by_a_function_of_the_request(server, session_of):
    breaker = CircuitBreaker(failures=1)
    server.answers = [503]
    session_of(attempts=1, breaker=lambda request: breaker if request.method == "GET" else None).get(
        server.url, timeout=30
    )
    assert breaker.state == "open"


def test_a_rule_refreshes_a_token_before_the_retry(server, session_of):
    server.answers = [401, 200]

    def refresh(error, call):
        call.args[0].headers["Authorization"] = "new"

    session = session_of(rules={401: Rule(attempts=2, recover=refresh)})
    assert session.post(server.url, timeout=30).status_code == 200
    assert server.received[1].headers["authorization"] == "new"


def test_override_changes_the_policy_inside_a_block(server, session_of):
    server.answers = [503, 503]
    with override(False):
        assert history(session_of().get(server.url, timeout=30)) is None
    with override(attempts=1):
        assert history(session_of().get(server.url, timeout=30)).attempts == 1


def test_headers_go_to_hosts_that_are_named(server, session_of):
    session_of(deadline=60.0, propagate_to=["127.0.0.1"]).get(server.url, timeout=30)
    assert server.received[0].headers["x-retry-attempt"] == "1"


def test_an_enclosing_call_does_not_retry_what_the_adapter_has_retried(server, session_of):
    server.answers = [503] * 8
    session = session_of(attempts=2)

    @retry
    def fetch():
        session.get(server.url, timeout=30).raise_for_status()

    with pytest.raises(requests.HTTPError):
        fetch()
    assert len(server.received) == 2


def test_an_adapter_inside_that_retries_by_itself_is_logged_once(caplog):
    for _ in range(2):
        adapter = RetryAdapter(adapter=HTTPAdapter(max_retries=3))
        del adapter
    assert (
        "the adapter inside this one retries by itself, so requests multiply: set max_retries=0"
        in caplog.text
    )


def test_a_session_retries_http_and_https():
    with retrying_session(attempts=6) as session:
        for scheme in ("http", "https"):
            assert session.get_adapter(f"{scheme}://example.org").policy == Policy(attempts=6)


def test_closing_a_session_closes_the_adapter_inside():
    adapter = Recording()
    RetryAdapter(adapter=adapter).close()
    assert adapter.closed


def test_another_error_of_ours_passes_as_it_is(session_of):
    class Failing(BaseAdapter):
        def send(self, request, **kwargs):
            raise error

        def close(self):
            pass

    error = StoreError("locked", location="letters.db")
    with pytest.raises(StoreError) as caught:
        session_of(adapter=Failing()).get("http://127.0.0.1:1/")
    assert caught.value is error


def test_a_streamed_response_is_not_retried_after_its_headers(server, session_of):
    response = session_of().get(server.url, timeout=30, stream=True)
    assert len(server.received) == 1
    assert response.raw.read() == b"body"


def test_a_redirect_to_another_host_does_not_receive_our_headers(server, session_of):
    port = server.host.rpartition(":")[2]
    server.answers = [Answer(302, headers={"Location": f"http://localhost:{port}/"})]
    session_of(deadline=60.0, propagate_to=["127.0.0.1"]).get(server.url, timeout=30)
    assert [request.headers.get("x-retry-attempt") for request in server.received] == ["1", None]


def test_a_method_of_the_inner_adapter_that_a_test_replaces_later_is_called(session_of, monkeypatch):
    answer = requests.Response()
    answer.status_code = 204
    session = session_of()
    monkeypatch.setattr(HTTPAdapter, "send", lambda self, request, **options: answer)
    assert session.get("http://127.0.0.1:9/").status_code == 204
