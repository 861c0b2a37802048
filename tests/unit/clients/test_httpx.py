"""`redouble.clients.httpx`, on transports without a network. Real servers are in `tests/interop`."""

from __future__ import annotations

import asyncio
import contextvars
import io
import pickle
import time

import pytest

import redouble
from redouble import Policy, Rule, history, retry
from redouble.breaker import CircuitBreaker
from redouble.bulkhead import Bulkhead
from redouble.classify import Classifier
from redouble.errors import BulkheadFull, CircuitOpen, DeadlineExceeded, ResultRejected, StoreError
from redouble.registry import Registry

from .every_client import NO_CERTIFICATES

httpx = pytest.importorskip("httpx")
anyio = pytest.importorskip("anyio")
from redouble.clients.httpx import AsyncRetryTransport, RetryTransport, override  # noqa: E402

from .scripted_httpx import Async, Server, Sync  # noqa: E402


@pytest.fixture(params=[Sync, Async])
def flavour(request):
    return request.param()


def test_a_transient_response_and_a_lost_connection_are_retried(flavour):
    server = Server(503, httpx.ConnectError("no route"), 200)
    assert flavour.send(flavour.transport(server)).text == "answer 3"


def test_a_permanent_response_is_returned_at_once(flavour):
    server = Server(404)
    response = flavour.send(flavour.transport(server))
    assert (response.status_code, history(response)) == (404, None)


def test_the_last_response_is_returned_with_its_body_and_its_history(flavour):
    server = Server(503, 503, 503)
    response = flavour.send(flavour.transport(server, attempts=3))
    assert (response.status_code, response.text) == (503, "answer 3")
    assert response.extensions["redouble"] == history(response)
    assert history(response).attempts == 3
    assert "gave up on GET example.org after 3 attempts" in response.__notes__[0]


def test_raise_status_raises_the_error_of_httpx_with_the_note(flavour):
    server = Server(503, 503)
    with pytest.raises(httpx.HTTPStatusError) as caught:
        flavour.send(flavour.transport(server, attempts=2, raise_status=True))
    assert caught.value.response.status_code == 503
    assert caught.value.request.method == "GET"
    assert history(caught.value).attempts == 2


def test_responses_that_are_retried_are_closed_before_the_wait(flavour):
    short = httpx.Response(503, text="busy")
    endless = httpx.Response(503, headers={"content-length": "1000000"}, stream=Forever())
    flavour.send(flavour.transport(Server(short, endless, 200)))
    assert short.is_closed
    assert endless.is_closed


class Forever(httpx.SyncByteStream, httpx.AsyncByteStream):
    def __iter__(self):
        raise AssertionError("a long body is read")

    def __aiter__(self):
        raise AssertionError("a long body is read")


class Broken(httpx.SyncByteStream, httpx.AsyncByteStream):
    def __iter__(self):
        raise httpx.ReadError("cut")
        yield

    async def __aiter__(self):
        raise httpx.ReadError("cut")
        yield


def test_a_response_that_cannot_be_closed_is_logged_and_retried_all_the_same(flavour, caplog):
    broken = httpx.Response(503, headers={"content-length": "4"}, stream=Broken())
    assert flavour.send(flavour.transport(Server(broken, 200))).status_code == 200
    assert "closing a response of GET example.org failed (said once)" in caplog.messages


@pytest.mark.parametrize("wait", ["60", "0"])
def test_a_response_that_cannot_be_closed_does_not_replace_the_deadline(flavour, caplog, wait):
    """With a wait of 0 the deadline passes while the response is read before the retry."""

    class Slow(Broken):
        def __iter__(self):
            time.sleep(0.06)
            return super().__iter__()

        def __aiter__(self):
            time.sleep(0.06)
            return super().__aiter__()

    headers = {"content-length": "4", "retry-after": wait}
    server = Server(httpx.Response(503, headers=headers, stream=Slow()))
    with pytest.raises(httpx.TimeoutException) as caught:
        flavour.send(flavour.transport(server, deadline=0.05, base=0.0))
    assert isinstance(caught.value, DeadlineExceeded)
    assert caplog.text.count("closing a response of GET example.org failed") == 1


class Stalled(httpx.AsyncByteStream):
    async def __aiter__(self):
        await asyncio.sleep(60)
        yield b""


@pytest.mark.parametrize("wait", ["60", "0"])
def test_a_short_body_that_stalls_does_not_hold_up_the_deadline(wait):
    headers = {"content-length": "4", "retry-after": wait}
    response = httpx.Response(503, headers=headers, stream=Stalled())
    began = time.monotonic()
    with pytest.raises(DeadlineExceeded):
        Async().send(AsyncRetryTransport(transport=Server(response), deadline=0.1))
    assert time.monotonic() - began < 0.4
    assert response.is_closed


def test_a_short_body_that_stalls_is_closed_and_retried():
    response = httpx.Response(503, headers={"content-length": "4"}, stream=Stalled())
    assert Async().send(AsyncRetryTransport(transport=Server(response, 200))).status_code == 200
    assert response.is_closed


def test_a_body_that_is_cut_off_while_its_connection_is_given_back_leaves_nothing_busy():
    released = []

    class Releasing(httpx.AsyncByteStream):
        """Gives its connection back as httpcore does: shielded by a scope of anyio, with an await in between."""

        async def __aiter__(self):
            yield b"body"

        async def aclose(self):
            with anyio.CancelScope(shield=True):
                await asyncio.sleep(0.05)
                released.append(True)

    response = httpx.Response(503, headers={"content-length": "4", "retry-after": "60"}, stream=Releasing())
    with pytest.raises(DeadlineExceeded):
        Async().send(AsyncRetryTransport(transport=Server(response), deadline=5.0))
    assert released == [True]


def test_an_async_attempt_that_takes_too_long_is_a_timeout_of_httpx():
    class Silent(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request):
            await asyncio.sleep(60)

    with pytest.raises(httpx.TimeoutException, match=r"attempt 2 took longer than its timeout") as caught:
        Async().send(AsyncRetryTransport(transport=Silent(), timeout=0.01, attempts=2))
    assert isinstance(caught.value, TimeoutError)
    assert history(caught.value).attempts == 2
    assert caught.value.request.method == "GET"


def test_a_post_is_sent_once_unless_it_had_no_effect(flavour):
    server = Server(503)
    response = flavour.send(flavour.transport(server), "POST")
    assert response.status_code == 503
    said = "repeating this POST might act twice; if it may be repeated, say idempotent=True or send an"
    assert f": {said} Idempotency-Key; HTTP 503" in response.__notes__[0]
    with pytest.raises(ConnectionResetError, match="lost"):  # an error of Python itself
        flavour.send(flavour.transport(Server(ConnectionResetError("lost"), 201)), "POST")
    assert (
        flavour.send(flavour.transport(Server(httpx.ConnectError("refused"), 201)), "POST").status_code == 201
    )
    busy = httpx.Response(503, headers={"retry-after": "1"})
    assert flavour.send(flavour.transport(Server(busy, 201)), "POST").status_code == 201


def test_a_post_with_a_key_is_retried_with_the_same_key(flavour):
    server = Server(503, 201)
    response = flavour.send(flavour.transport(server, idempotency_key=True, name="pay"), "POST", content=b"1")
    assert response.status_code == 201
    first, second = (request.headers["Idempotency-Key"] for request in server.requests)
    assert first == second
    assert first.startswith("pay:")
    assert server.bodies == [b"1", b"1"]


def test_a_key_of_the_caller_is_kept_and_a_get_has_none(flavour):
    server = Server(201, 200)
    transport = flavour.transport(server, idempotency_key=True)
    flavour.send(transport, "POST", headers={"Idempotency-Key": "mine"})
    flavour.send(transport, "GET")
    assert server.requests[0].headers["Idempotency-Key"] == "mine"
    assert "Idempotency-Key" not in server.requests[1].headers


def test_a_body_that_was_a_generator_is_not_sent_again():
    def body():
        yield b"one"

    response = Sync().send(Sync().transport(Server(503)), "PUT", content=body())
    assert "its body was a generator, which is used up; send bytes or a file" in response.__notes__[0]


def test_a_file_is_sent_again_from_where_it_began():
    file = io.BytesIO(b"head body")
    file.seek(5)
    server = Server(503, 200)
    Sync().send(Sync().transport(server), "PUT", content=file)
    assert server.bodies == [b"body", b"body"]


def test_a_file_is_sent_again_if_the_transport_has_read_the_request():
    bodies, statuses = [], iter([503, 200])

    def answer(request):
        bodies.append(request.read())
        return httpx.Response(next(statuses))

    transport = Sync().transport(httpx.MockTransport(answer))
    Sync().send(transport, "PUT", content=io.BytesIO(b"body"), headers={"content-length": "4"})
    assert bodies == [b"body", b"body"]


def test_a_file_that_cannot_be_rewound_is_not_sent_again():
    class Pipe(io.BytesIO):
        def tell(self):
            raise OSError("a pipe")

    response = Sync().send(Sync().transport(Server(503)), "PUT", content=Pipe(b"data"))
    assert "its body was a file that cannot be rewound" in response.__notes__[0]


def test_an_iterable_that_can_be_read_again_is_sent_again():
    server = Server(503, 200)
    Sync().send(Sync().transport(server), "PUT", content=[b"a", b"b"], headers={"content-length": "2"})
    assert server.bodies == [b"ab", b"ab"]


def test_the_server_asks_for_a_wait_that_passes_the_deadline(flavour):
    busy = httpx.Response(503, headers={"retry-after": "9"}, text="later")
    with pytest.raises(httpx.TimeoutException, match="which would pass the deadline of 5 s") as caught:
        flavour.send(flavour.transport(Server(busy), deadline=5.0))
    assert isinstance(caught.value, DeadlineExceeded)
    assert caught.value.request.method == "GET"
    assert busy.is_closed
    assert isinstance(pickle.loads(pickle.dumps(caught.value)), httpx.TimeoutException)


def test_timeouts_of_the_client_are_never_longer_than_what_is_left(flavour):
    server = Server(503, 200)
    transport = flavour.transport(server, timeout=3.0, deadline=60.0)
    flavour.send(transport, timeout=httpx.Timeout(10.0, connect=1.0))
    assert server.timeouts == [{"connect": 1.0, "read": 3.0, "write": 3.0, "pool": 3.0}] * 2
    server = Server(200)
    flavour.send(flavour.transport(server, deadline=60.0), timeout=10.0)
    assert server.timeouts == [dict.fromkeys(("connect", "read", "write", "pool"), 10.0)]
    server = Server(200)
    flavour.send(flavour.transport(server, timeout=3.0), timeout=None)
    assert server.timeouts == [dict.fromkeys(("connect", "read", "write", "pool"), 3.0)]


def test_the_deadline_of_an_enclosing_call_limits_the_timeouts():
    server = Server(200, 200)
    transport = Sync().transport(server)

    @retry(deadline=2.0)
    def fetch():
        return Sync().send(transport, timeout=30.0)

    fetch()
    assert server.timeouts[0]["read"] <= 2.0
    assert Sync().send(transport).status_code == 200


def test_attempt_and_time_left_go_only_to_hosts_that_are_named(flavour):
    server = Server(503, 200, 200)
    transport = flavour.transport(server, deadline=5.0, propagate_to=["Example.org"])
    flavour.send(transport)
    flavour.send(transport, url="https://other.example/")
    assert [request.headers.get("x-retry-attempt") for request in server.requests] == ["1", "2", None]
    assert 0 < int(server.requests[1].headers["x-request-timeout-ms"]) <= 5000


def test_a_star_names_all_hosts(flavour):
    server = Server(200)
    flavour.send(flavour.transport(server, deadline=5.0, propagate_to=["*"]))
    assert server.requests[0].headers["x-retry-attempt"] == "1"


def test_hosts_are_given_as_a_list():
    with pytest.raises(TypeError, match=r"propagate_to must be a list of host names, got 'a'; write \['a'\]"):
        RetryTransport(propagate_to="a", transport=Server())


def test_until_rejects_a_response_that_the_status_accepts(flavour):
    server = Server(200, 200)
    transport = flavour.transport(server, until=lambda response: len(server.requests) == 2)
    assert flavour.send(transport).status_code == 200
    assert len(server.requests) == 2


def test_a_rule_makes_its_status_retryable_and_recovers_first(flavour):
    tokens = []
    server = Server(401, 200)
    rules = {401: Rule(attempts=2, recover=lambda error, call: tokens.append(call.args[0].method))}
    assert flavour.send(flavour.transport(server, rules=rules), "POST").status_code == 200
    assert tokens == ["POST"]


def test_a_rule_for_a_cause_counts_too(flavour):
    server = Server(409, 200)
    rules = {redouble.Cause.conflict: Rule()}
    assert flavour.send(flavour.transport(server, rules=rules)).status_code == 200


def test_a_classifier_judges_responses(flavour):
    assert flavour.send(flavour.transport(Server(202, 200), on=Classifier(statuses={202}))).status_code == 200
    assert flavour.send(flavour.transport(Server(503), on=Classifier(statuses={202}))).status_code == 503


def test_types_are_about_errors_and_leave_responses_alone(flavour):
    assert flavour.send(flavour.transport(Server(503), on=httpx.ConnectError)).status_code == 503
    server = Server(httpx.ConnectError("no"), 200)
    assert flavour.send(flavour.transport(server, on=httpx.ConnectError)).status_code == 200


def test_a_request_has_its_own_policy_in_its_extensions(flavour):
    server = Server(503, 503)
    transport = flavour.transport(server, attempts=5)
    response = flavour.send(transport, extensions={"retry": Policy(attempts=2)})
    assert history(response).attempts == 2
    server.answers = [503]
    assert history(flavour.send(transport, extensions={"retry": False})) is None


def test_policies_of_single_requests_are_kept_up_to_a_limit(flavour):
    server = Server(*[503] * 140)
    transport = flavour.transport(server)
    for number in range(70):
        policy = Policy(attempts=1, base=1.0 + number)
        for _ in range(2):
            assert history(flavour.send(transport, extensions={"retry": policy})).attempts == 1
    assert len(transport._client._others) == 6


def test_a_policy_of_a_request_that_is_no_policy_is_refused(flavour):
    with pytest.raises(TypeError, match="the policy of a request must be a Policy or False, got 3"):
        flavour.send(flavour.transport(Server()), extensions={"retry": 3})


def test_override_changes_the_policy_inside_a_block(flavour):
    server = Server(503, 503, 503, 503, 200)
    transport = flavour.transport(server)
    with override(attempts=2):
        assert history(flavour.send(transport)).attempts == 2
        with override(False):
            assert history(flavour.send(transport)) is None
    assert flavour.send(transport).status_code == 200


def test_override_refuses_what_is_no_policy():
    with pytest.raises(TypeError, match="takes a Policy, False or fields, got 3"):
        override(3)
    with pytest.raises(TypeError, match="takes no attempts"):
        override(False, attempts=2)
    with pytest.raises(TypeError, match=r"override\(\) has no 'retries'"):
        override(retries=2)


def test_a_transport_takes_a_policy_or_fields():
    assert RetryTransport(Policy(attempts=2), base=0.5, transport=Server()).policy == Policy(
        attempts=2, base=0.5
    )
    assert AsyncRetryTransport(attempts=6, transport=Server()).policy == Policy(attempts=6)
    with pytest.raises(TypeError, match=r"RetryTransport\(\) takes a Policy or fields, got 3"):
        RetryTransport(3, transport=Server())
    with pytest.raises(ValueError, match="raise_status"):
        RetryTransport(raise_status="yes", transport=Server())


def test_an_open_circuit_is_an_error_of_httpx(flavour):
    breaker = CircuitBreaker(failures=1)
    transport = flavour.transport(Server(503, 503), breaker=breaker, attempts=1)
    assert flavour.send(transport).status_code == 503
    with pytest.raises(httpx.ConnectError) as caught:
        flavour.send(transport)
    assert isinstance(caught.value, CircuitOpen)


def test_a_full_bulkhead_is_an_error_of_httpx():
    bulkhead = Bulkhead(1)
    with bulkhead, pytest.raises(httpx.PoolTimeout) as caught:
        Sync().send(Sync().transport(Server(), bulkhead=bulkhead))
    assert isinstance(caught.value, BulkheadFull)


def test_a_registry_has_a_guard_for_each_host(flavour):
    breakers = Registry(lambda host: CircuitBreaker(failures=1, name=host))
    transport = flavour.transport(Server(503, 200), breaker=breakers, attempts=1)
    flavour.send(transport)
    assert flavour.send(transport, url="https://other.example/").status_code == 200
    assert set(breakers) == {"example.org", "other.example"}


def test_a_response_that_was_closed_for_a_retry_is_not_returned(flavour):
    endless = httpx.Response(503, headers={"content-length": "1000000"}, stream=Forever())

    def fail(error):
        raise RuntimeError("no token")

    with pytest.raises(httpx.TransportError) as caught:
        flavour.send(flavour.transport(Server(endless), recover=fail))
    assert isinstance(caught.value, ResultRejected)


def test_an_enclosing_call_does_not_retry_what_the_transport_has_retried():
    server = Server(*[503] * 20)
    transport = Sync().transport(server)

    @retry
    def fetch():
        Sync().send(transport).raise_for_status()

    with pytest.raises(httpx.HTTPStatusError) as caught:
        fetch()
    assert len(server.requests) == 4
    assert "already retried by GET example.org (4 attempts)" in caught.value.__notes__[0]


def test_a_transport_inside_that_retries_by_itself_is_logged_once(caplog):
    RetryTransport(transport=httpx.HTTPTransport(retries=2, verify=NO_CERTIFICATES)).close()
    RetryTransport(transport=Server()).close()
    assert [record.getMessage() for record in caplog.records] == [
        "the transport inside this one retries by itself: make it with retries=0 (said once)"
    ]


def test_a_transport_is_made_where_none_is_given():
    with RetryTransport() as sync:
        assert isinstance(sync._transport, httpx.HTTPTransport)

    async def enter():
        async with AsyncRetryTransport() as transport:
            return transport

    assert isinstance(asyncio.run(enter())._transport, httpx.AsyncHTTPTransport)


def test_a_status_without_a_name_is_a_number_in_the_note(flavour):
    response = flavour.send(flavour.transport(Server(599), attempts=1))
    assert "attempt 1: HTTP 599" in response.__notes__[0]


def test_a_request_after_its_enclosing_call_has_ended_is_not_limited():
    server = Server(200)
    transport = Sync().transport(server)

    @retry(deadline=2.0)
    def start():
        return contextvars.copy_context()

    left_behind = start()
    left_behind.run(Sync().send, transport, timeout=30.0)
    assert server.timeouts[0]["read"] == 30.0


def test_a_key_is_not_sent_to_hosts_by_propagation():
    server = Server(200)
    transport = Sync().transport(server, propagate_to=["*"], idempotency_key=True)
    Sync().send(transport)
    assert "idempotency-key" not in server.requests[0].headers
    assert server.requests[0].headers["x-retry-attempt"] == "1"


def test_another_error_of_ours_passes_as_it_is():
    error = StoreError("letters.db is locked", location="letters.db")
    with pytest.raises(StoreError) as caught:
        Sync().send(Sync().transport(Server(error)))
    assert caught.value is error


def test_closing_a_client_closes_the_transport_inside():
    closed = []

    class Closing(Server):
        def close(self):
            closed.append("sync")

        async def aclose(self):
            closed.append("async")

    Sync().transport(Closing()).close()
    asyncio.run(Async().transport(Closing()).aclose())
    assert closed == ["sync", "async"]


def test_a_multipart_body_is_sent_again():
    server = Server(503, 200)
    Sync().send(Sync().transport(server), "PUT", files={"file": io.BytesIO(b"data")})
    assert server.bodies[0] == server.bodies[1]
    assert b"data" in server.bodies[1]


def test_a_redirect_to_another_host_does_not_receive_our_headers(flavour):
    elsewhere = httpx.Response(302, headers={"location": "https://other.example/"})
    server = Server(503, elsewhere, 200)
    transport = flavour.transport(server, deadline=5.0, propagate_to=["example.org"])
    flavour.send(transport, follow_redirects=True)
    assert [request.headers.get("x-retry-attempt") for request in server.requests] == ["1", "2", None]
    assert "x-request-timeout-ms" not in server.requests[2].headers


def test_a_method_of_the_inner_transport_that_a_test_replaces_later_is_called(flavour, monkeypatch):
    async def answered(self, request):
        return httpx.Response(200)

    transport = flavour.transport(Server())
    monkeypatch.setattr(Server, "handle_request", lambda self, request: httpx.Response(200))
    monkeypatch.setattr(Server, "handle_async_request", answered)
    assert flavour.send(transport).status_code == 200
