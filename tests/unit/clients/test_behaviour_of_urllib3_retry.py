"""What each parameter of urllib3's `Retry` becomes in `redouble.clients.urllib3` and `redouble.clients.requests`.

The fields are those of `docs/coming-from/urllib3.md`.
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import pytest

from redouble import Cause, Rule
from redouble.backoff import additive_jitter, exponential, immediately_once
from redouble.classify import RETRYABLE_STATUSES, Classifier, accepted, is_retryable

from .conftest import CUT, Answer

BUSY = Answer(503, headers={"Retry-After": "50"})
REDIRECT = Answer(302, headers={"Location": "/orders"})


def of_urllib3(**fields):
    urllib3 = pytest.importorskip("urllib3")
    from redouble.clients.urllib3 import RetryPoolManager

    pool = RetryPoolManager(manager=urllib3.PoolManager(timeout=5.0), **fields)
    return SimpleNamespace(
        send=lambda method, url: pool.request(method, url).status,
        close=pool.clear,
        status_error=urllib3.exceptions.MaxRetryError,
        refused=urllib3.exceptions.NewConnectionError,
        cut=urllib3.exceptions.ProtocolError,
    )


def of_requests(**fields):
    requests = pytest.importorskip("requests")
    from redouble.clients.requests import retrying_session

    session = retrying_session(**fields)
    return SimpleNamespace(
        send=lambda method, url: session.request(method, url, timeout=5.0).status_code,
        close=session.close,
        status_error=requests.HTTPError,
        refused=requests.ConnectionError,
        cut=requests.ConnectionError,
    )


@pytest.fixture(params=[of_urllib3, of_requests])
def client_of(request):
    """Make clients that are closed at the end."""
    made = []

    def make(**fields):
        made.append(request.param(**fields))
        return made[-1]

    yield make
    for client in made:
        client.close()


@pytest.fixture
def sent(client_of, server):
    """Send a request that always has the same answer. Return the number of requests that the server received."""

    def sent(answer, method="GET", **fields):
        server.answers, server.received[:] = [answer] * 20, []
        client = client_of(**fields)
        try:
            client.send(method, server.url)
        except client.cut:
            assert answer is CUT
        return len(server.received)

    return sent


@pytest.fixture
def refused(client_of, waits):
    """Send a request to a port that refuses it. Return the number of attempts."""

    def refused(**fields):
        client = client_of(**fields)
        del waits[:]
        with pytest.raises(client.refused):
            client.send("GET", "http://127.0.0.1:9/")
        return len(waits) + 1

    return refused


def test_total(sent):
    assert sent(503, attempts=4) == 4
    assert sent(CUT, attempts=4) == 4


def test_connect_and_read(sent, refused):
    fields = {
        "attempts": 6,
        "rules": {Cause.timeout: Rule(attempts=3), Cause.disconnected: Rule(attempts=3)},
    }
    assert refused(**fields) == 6
    assert sent(CUT, **fields) == 3


def test_no_connect(sent, refused):
    fields = {"rules": {Cause.connection: Rule(attempts=1)}}
    assert refused(**fields) == 1
    assert sent(503, **fields) == 4


def test_no_read(sent, refused):
    assert sent(CUT, idempotent=False) == 1
    assert sent(429, idempotent=False) == 4
    assert refused(idempotent=False) == 4


@pytest.mark.parametrize("rules", [{503: Rule(attempts=3)}, {Cause.unavailable: Rule(attempts=3)}])
def test_status(sent, rules):
    assert sent(503, attempts=6, rules=rules) == 3
    assert sent(500, attempts=6, rules=rules) == 6


def test_other(client_of, monkeypatch):
    pool = pytest.importorskip("urllib3.connectionpool")
    calls = []

    def fail(*args, **kwargs):
        calls.append(args)
        raise RuntimeError("unknown")

    monkeypatch.setattr(pool.HTTPConnectionPool, "urlopen", fail)
    with pytest.raises(RuntimeError, match="unknown"):
        client_of().send("GET", "http://127.0.0.1:9/")
    assert len(calls) == 1


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_the_usual_status_forcelist(sent, status):
    assert sent(status) == 4


def test_another_status_forcelist(sent):
    one, more = Classifier(statuses=[503]), Classifier(statuses=RETRYABLE_STATUSES | {404})
    assert [sent(answer, on=one) for answer in (503, 500, CUT)] == [4, 1, 4]
    assert [sent(answer, on=more) for answer in (404, 503, 403)] == [4, 4, 1]


def test_allowed_methods(sent):
    methods = ("GET", "HEAD", "PUT", "DELETE", "OPTIONS", "POST", "PATCH")
    assert [sent(503, method) for method in methods] == [4, 4, 4, 4, 4, 1, 1]
    assert [sent(503, method, idempotent=True) for method in methods] == [4] * 7


def test_respect_retry_after_header(sent, waits):
    sent(BUSY, attempts=2, base=0.0)
    assert waits == [50.0]


def test_retry_after_is_always_respected(sent, waits):
    sent(BUSY, attempts=2, base=0.0, on=lambda error: 0 if is_retryable(error) else False, until=accepted)
    assert waits == [50.0]


def test_retry_after_max(sent, waits):
    assert sent(BUSY, max_retry_after=49.0) == 1
    assert waits == []


def test_raise_on_status(client_of, server):
    server.answers = [503] * 4
    assert client_of(attempts=2).send("GET", server.url) == 503
    client = client_of(attempts=2, raise_status=True)
    with pytest.raises(client.status_error):
        client.send("GET", server.url)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"base": 0.0}, [0.0] * 4),
        ({"backoff": immediately_once(exponential), "base": 1.0, "cap": 120.0}, [0.0, 1.0, 2.0, 4.0]),
        ({"backoff": immediately_once(exponential), "base": 1.0, "cap": 3.0}, [0.0, 1.0, 2.0, 3.0]),
    ],
)
def test_backoff_factor_and_backoff_max(sent, waits, fields, expected):
    sent(503, attempts=5, **fields)
    assert waits == expected


def test_backoff_jitter(sent, waits):
    backoff = immediately_once(partial(additive_jitter, spread=2.0))
    sent(503, attempts=4, backoff=backoff, base=2.0, cap=120.0)
    assert waits[0] == 0.0
    assert all(low <= wait <= low + 2 for low, wait in zip((2.0, 4.0), waits[1:], strict=True))


def test_redirects_of_urllib3(server):
    urllib3 = pytest.importorskip("urllib3")
    from redouble.clients.urllib3 import RetryPoolManager

    def sent(**settings):
        server.answers, server.received[:] = [REDIRECT] * 20, []
        with RetryPoolManager() as pool:
            try:
                status = pool.request("GET", server.url, retries=urllib3.Retry(total=None, **settings)).status
            except urllib3.exceptions.MaxRetryError:
                status = None
        return status, len(server.received)

    assert sent() == (None, 11)
    assert sent(redirect=5) == (None, 6)
    assert sent(redirect=5, raise_on_redirect=False) == (302, 6)


def test_headers_that_urllib3_removes_on_a_redirect(server):
    urllib3 = pytest.importorskip("urllib3")
    from redouble.clients.urllib3 import RetryPoolManager

    elsewhere = server.url.replace("127.0.0.1", "localhost")
    server.answers = [Answer(302, headers={"Location": elsewhere}), 200]
    with RetryPoolManager() as pool:
        retries = urllib3.Retry(total=None, redirect=5, remove_headers_on_redirect=["X-Tenant"])
        pool.request("GET", server.url, headers={"X-Tenant": "7", "X-Page": "2"}, retries=retries)
    assert ["x-tenant" in request.headers for request in server.received] == [True, False]
    assert ["x-page" in request.headers for request in server.received] == [True, True]


def test_redirects_of_requests(server):
    requests = pytest.importorskip("requests")
    from redouble.clients.requests import retrying_session

    server.answers = [REDIRECT] * 20
    with retrying_session() as session:
        session.max_redirects = 5
        with pytest.raises(requests.TooManyRedirects):
            session.get(server.url, timeout=5.0)
    assert len(server.received) == 6
