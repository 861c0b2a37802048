"""`redouble.clients.httpx` below SDKs that retry by themselves."""

from __future__ import annotations

import logging

import pytest

from redouble import history
from redouble.errors import DeadlineExceeded

httpx = pytest.importorskip("httpx")
from .scripted_httpx import URL, Async, Server, Sync  # noqa: E402


@pytest.fixture(params=[Sync, Async])
def flavour(request):
    return request.param()


def test_retries_of_an_sdk_are_sent_once_and_said_once(caplog):
    server = Server(503, 503)
    transport = Sync().transport(server)
    for _ in range(2):
        response = Sync().send(transport, headers={"x-stainless-retry-count": "1"})
        assert response.headers["x-should-retry"] == "false"
    assert [record.levelno for record in caplog.records if "max_retries=0" in record.getMessage()] == [
        logging.WARNING
    ]


def test_a_request_that_counts_its_retries_from_above_is_not_multiplied(caplog):
    server = Server(*[503] * 9)
    transport = Sync().transport(server, attempts=3)
    for headers in ({}, {"X-Retry-Count": "1"}, {"X-Retry-Count": "2"}):
        assert Sync().send(transport, headers=headers).status_code == 503
    assert len(server.requests) == 3 + 1 + 1
    assert sum("postgrest_client_retry=False" in record.getMessage() for record in caplog.records) == 1


def test_the_first_request_of_an_sdk_is_retried_and_then_not_again():
    server = Server(503, 503)
    response = Sync().send(Sync().transport(server, attempts=2), headers={"x-stainless-retry-count": "0"})
    assert response.headers["x-should-retry"] == "false"


@pytest.mark.parametrize("failure", [httpx.ConnectError("refused"), 503])
def test_an_sdk_that_retries_after_an_error_does_not_send_the_request_again(flavour, failure, caplog):
    server = Server(*[failure] * 9)
    transport = flavour.transport(server, attempts=2, raise_status=True)

    def check(send):
        errors = []
        for retries in ("0", "1", "2"):
            with pytest.raises(httpx.HTTPError) as caught:
                send(retries)
            errors.append(caught.value)
        assert len(server.requests) == 2
        assert [type(error) for error in errors] == [type(errors[0])] * 3
        assert [history(error).attempts for error in errors] == [2, 2, 2]
        with pytest.raises(httpx.HTTPError):
            send("0")  # another call
        assert len(server.requests) == 4
        with pytest.raises(httpx.HTTPError):
            send("1", url=f"{URL}/other")  # one that was not given up on here
        assert len(server.requests) == 5

    flavour.check_sdk(transport, check)
    assert sum("requests are refused: the SDK above" in record.getMessage() for record in caplog.records) == 1


def test_a_deadline_holds_although_an_sdk_retries(flavour):
    busy = httpx.Response(503, headers={"retry-after": "9"})
    server = Server(busy, 200)
    transport = flavour.transport(server, deadline=5.0)

    def check(send):
        for retries in ("0", "1"):
            with pytest.raises(DeadlineExceeded):
                send(retries)

    flavour.check_sdk(transport, check)
    assert len(server.requests) == 1


@pytest.mark.slow  # importing them takes seconds
@pytest.mark.parametrize(
    ("sdk", "library"), [("openai", "httpx"), ("openai", "httpx2"), ("anthropic", "httpx2")]
)
def test_sdks_do_not_retry_what_the_transport_has_retried(sdk, library):
    api, module = pytest.importorskip(library), pytest.importorskip(sdk)
    client_of = pytest.importorskip(f"redouble.clients.{library}").RetryTransport
    sent = []

    def refuse(request):
        sent.append(request)
        raise api.ConnectError("refused")

    http_client = api.Client(transport=client_of(attempts=3, transport=api.MockTransport(refuse)))
    options = {"api_key": "none", "base_url": "http://127.0.0.1:1/", "http_client": http_client}
    with pytest.raises(module.APIConnectionError) as caught:
        if sdk == "openai":
            client = module.OpenAI(max_retries=1, **options)
            client.chat.completions.create(model="m", messages=[])
        else:
            client = module.Anthropic(max_retries=1, **options)
            client.messages.create(model="m", max_tokens=1, messages=[])
    assert len(sent) == 3
    assert history(caught.value.__cause__).attempts == 3
