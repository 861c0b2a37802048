"""Where status and headers are found, on exceptions and on results."""

from __future__ import annotations

import http
import http.client
import urllib.error
import xmlrpc.client
from types import SimpleNamespace as Thing

import pytest

from redouble.classify import (
    Cause,
    Verdict,
    accepted,
    retry_after,
    verdict,
)
from support.failures import HINT, Failure, boto, brief, headers_message

C = Cause


# Where a status is found


SHAPES = [
    Failure(response=Thing(status_code=503, headers=HINT)),
    Failure(response=Thing(status=503, headers=HINT)),
    Failure(response=Thing(code=503, headers=HINT)),
    Failure(response=Thing(status_code="503", headers=HINT)),
    Failure(response=Thing(status_code=http.HTTPStatus.SERVICE_UNAVAILABLE, headers=HINT)),
    Failure(response=Thing(status_code=503), headers=HINT),
    Failure(response={"ResponseMetadata": {"HTTPStatusCode": 503, "HTTPHeaders": {"retry-after": "5"}}}),
    Failure(response={"status": 503, "headers": HINT, "body": ""}),
    Failure(response={"Error": "text"}, status=503, headers=HINT),
    Failure(response=None, resp=Thing(status=503, headers=HINT)),
    Failure(raw_response=Thing(status_code=503, headers=HINT)),
    Failure(http_response=Thing(status_code=503, headers=HINT)),
    Failure(response=Thing(status_code=0, headers=HINT), status_code=503),
    Failure(status_code=503, headers=HINT),
    Failure(status=503, headers=HINT),
    Failure(http_status=503, headers=HINT),
    Failure(response_code=503, headers=HINT),
    Failure(meta=Thing(status=503, headers=HINT)),
    Failure(code=503, headers=HINT),
    Failure(code=503, response=Thing(headers=HINT)),
    Failure(code=http.HTTPStatus.SERVICE_UNAVAILABLE, retry_after=5),
    Failure(status_code=503, headers=[("retry-after", "5")]),
    urllib.error.HTTPError("u", 503, "m", headers_message(), None),
    xmlrpc.client.ProtocolError("u", 503, "m", HINT),
]


@pytest.mark.parametrize("failure", SHAPES, ids=range(len(SHAPES)))
def test_status_and_headers_are_found_wherever_a_library_puts_them(failure):
    found = verdict(failure)
    assert (found.retryable, found.status, found.retry_after, found.unprocessed) == (True, 503, 5.0, True)


class HttpLib2Response(dict):
    status = 503


def test_a_response_that_is_itself_the_mapping_of_its_headers_is_read():
    found = verdict(Failure(resp=HttpLib2Response({"retry-after": "5"})))
    assert (found.status, found.retry_after) == (503, 5.0)


@pytest.mark.parametrize(
    "status",
    [0, 99, 600, 20429, True, "N/A", "TIMEOUT", "50", "5030", "٥٠٣", b"503", 503.0, None, [503], "5e2"],
)
def test_what_is_no_http_status_is_not_taken_for_one(status):
    assert verdict(Failure(status_code=status, headers={})) == verdict(Failure(headers={}))


def test_a_code_alone_is_not_a_status():
    assert brief(Failure(code=503)) == (False, False, C.unknown)
    assert verdict(Failure(code=503)).status is None


def test_a_code_is_not_read_where_status_says_that_there_was_no_answer():
    class Deprecated(Failure):
        @property
        def code(self):
            raise AssertionError("was read")

    assert verdict(Deprecated(status=0, headers={})).status is None


def test_a_response_that_counts_as_false_is_still_a_response():
    class Falsy(Thing):
        def __bool__(self):
            return False

    assert verdict(Failure(response=Falsy(status_code=503))).status == 503


def test_a_status_made_up_by_the_client_is_no_answer():
    made_up = type("ClientResponseError", (Exception,), {"__module__": "aiohttp.client_exceptions"})()
    made_up.status, made_up.headers = 400, None
    assert verdict(made_up).status is None
    made_up.headers = {}
    assert verdict(made_up).status == 400


# Results


@pytest.mark.parametrize(
    "result",
    [
        Thing(status_code=503, headers=HINT),
        Thing(status=503, headers=HINT),
        Thing(code=503, headers=HINT),
        {"ResponseMetadata": {"HTTPStatusCode": 503, "HTTPHeaders": HINT}, "Error": {"Code": "SlowDown"}},
        {"statusCode": 503, "headers": HINT, "body": ""},
        {"status": 503, "headers": HINT},
        (503, HINT, b""),
        (503, headers_message(), b""),
        (503, [("Retry-After", "5")], b""),
    ],
    ids=str,
)
def test_a_response_that_came_back_as_a_result_is_judged_by_its_status(result):
    found = verdict(result)
    assert (found.retryable, found.status, found.retry_after) == (True, 503, 5.0)
    assert not accepted(result)
    assert retry_after(result) == 5.0


@pytest.mark.parametrize(
    "result",
    [
        Thing(status_code=503),
        {"ResponseMetadata": {"HTTPStatusCode": 503}},
        (503, [], b""),
    ],
    ids=str,
)
def test_a_response_needs_no_headers_if_its_shape_is_plain(result):
    assert verdict(result) == Verdict(True, C.unavailable, 503, None, "HTTP 503")


@pytest.mark.parametrize(
    "result",
    [
        None, 0, "", "503", 503, b"", [], {}, (), object(), True, 1.5, Failure,
        {"Error": "text"}, {"ResponseMetadata": "text"}, {"ResponseMetadata": {}}, {"status": 503},
        {"status": "ok", "headers": {}}, Thing(status=503), Thing(code=503), Thing(status="open", headers={}),
        Thing(retry_after=3), (503, HINT), (503, HINT, b"", 1), (503, "text", b""), ("503", HINT, b""), (True, HINT, b""),
        (503, [1, 2], b""), (503, None, b""), (20429, HINT, b""), {503: HINT},
    ],
    ids=str,
)  # fmt: skip
def test_a_result_that_is_no_failed_response_is_accepted(result):
    assert verdict(result) == Verdict(False)
    assert accepted(result)


@pytest.mark.parametrize(("status", "cause"), [(200, C.unknown), (302, C.unknown), (404, C.permanent)])
def test_a_response_that_will_not_change_is_accepted_but_keeps_its_hint(status, cause):
    found = verdict((status, HINT, b""))
    assert (found.retryable, found.cause, found.status, found.retry_after) == (False, cause, status, 5.0)
    assert accepted((status, HINT, b""))


# Responses of many kinds as results


class Falsy(Thing):
    def __bool__(self):
        return False


@pytest.mark.parametrize(
    "response",
    [
        Falsy(status_code=503, headers={"Retry-After": "7"}),
        Thing(status_code=503, headers=Thing(raw=[(b"Retry-After", b"7")])),
        Thing(status=503, headers={"retry-after": "7"}, method="GET"),
        boto("ServiceUnavailable", 503, **{"retry-after": "7"}),
        (503, {"Retry-After": "7"}, b""),
    ],
    ids=["requests", "httpx", "aiohttp, urllib3", "botocore", "tuple"],
)
def test_a_failed_response_is_not_accepted_whatever_library_it_comes_from(response):
    assert not accepted(response)
    assert verdict(response).retry_after == 7
