"""The request that an exception or response shows, and whether it may be sent twice."""

from __future__ import annotations

import urllib.error
from types import SimpleNamespace as Thing

import pytest

from redouble.classify import (
    repeatable,
    request_method,
)
from support.failures import Failure, caused, sent

# Requests


class Unset:
    """As in httpx: reading a request that was never set raises."""

    @property
    def request(self):
        raise RuntimeError("The request instance has not been set on this response.")


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "OPTIONS", "TRACE", "get", b"GET"])
def test_a_request_with_an_idempotent_method_may_be_sent_twice(method):
    assert repeatable(Failure(request=sent(method))) is True


@pytest.mark.parametrize("method", ["POST", "PATCH", "CONNECT", "post", "PROPFIND", "VERSION-CONTROL"])
def test_a_request_with_another_method_may_not_unless_it_has_a_key(method):
    assert repeatable(Failure(request=sent(method))) is False
    assert request_method(Failure(request=sent(method))) == method.upper()
    assert repeatable(Failure(request=sent(method, Idempotency_Key="k1"))) is True
    assert repeatable(Failure(request=sent(method, idempotency_key=" "))) is False


@pytest.mark.parametrize(
    "failure",
    [
        Failure(request=sent("POST")),
        Failure(response=Thing(status_code=503, request=sent("POST"))),
        Failure(request=None, response=Thing(request=sent("POST"))),
        Failure(request_info=sent("POST")),
        Failure(method="POST"),
        Failure(response=Thing(http_verb="POST")),
        Thing(status_code=503, request=sent("POST")),
        Thing(status=503, method="POST", request_info=sent("POST")),
        caused(RuntimeError(), Failure(request=sent("POST"))),
        urllib.error.URLError(Failure(request=sent("POST"))),
        ExceptionGroup("g", [Failure(request=sent("GET")), TimeoutError(), Failure(request=sent("POST"))]),
        caused(OSError(), ExceptionGroup("g", [Failure(request=sent("POST"))])),
    ],
    ids=range(12),
)
def test_the_request_is_found_wherever_a_library_puts_it(failure):
    assert repeatable(failure) is False
    assert request_method(failure) in ("POST", "GET")


@pytest.mark.parametrize(
    "failure",
    [
        TimeoutError(), Failure(), Failure(request=None), Failure(request=sent(None)),
        Failure(request=sent("")), Failure(request=sent("é")), Failure(request=sent("x" * 21)),
        Failure(request=sent("G T")), Failure(method="eth_call"), Failure(method="transfer"),
        Failure(response=Unset()), Unset(), None, "GET", 5, Thing(status_code=503),
    ],
    ids=str,
)  # fmt: skip
def test_nothing_is_said_where_no_request_is_to_be_seen(failure):
    assert repeatable(failure) is None
    assert request_method(failure) is None


def test_a_key_alone_makes_a_request_repeatable():
    failure = Failure(request=Thing(headers={"Idempotency-Key": "k1"}))
    assert repeatable(failure) is True
    assert request_method(failure) is None


def test_of_several_requests_the_first_that_may_not_be_sent_twice_is_named():
    def group(*requests):
        return ExceptionGroup("several", [Failure(request=request) for request in requests])

    keyed, nameless = sent("POST", idempotency_key="k1"), Thing(headers={"Idempotency-Key": "k1"})
    assert request_method(group(sent("GET"), keyed, sent("PATCH"), sent("POST"))) == "PATCH"
    assert request_method(group(keyed, sent("GET"))) == "POST"
    assert request_method(group(nameless, sent("GET"))) == "GET"


def test_a_request_is_looked_for_eight_layers_deep_and_no_further():
    error = Failure(request=sent("POST"))
    for _ in range(8):
        error = caused(RuntimeError(), error)
    assert (repeatable(error), request_method(error)) == (False, "POST")
    error = caused(RuntimeError(), error)
    assert (repeatable(error), request_method(error)) == (None, None)


def test_the_context_of_an_unknown_error_shows_its_request():
    error = ValueError()
    error.__context__ = Failure(request=sent("POST"))
    assert repeatable(error) is False
