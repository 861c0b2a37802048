"""Weak evidence about libraries that no table knows, and what rules it out."""

from __future__ import annotations

import ssl
import time
from types import SimpleNamespace as Thing

import pytest

from redouble.classify import Cause, Classifier, explain, verdict
from redouble.classify import _table_codes as _codebook
from redouble.errors import CircuitOpen

C = Cause
NOTHING = (False, False, C.unknown)
PERMANENT = (False, False, C.permanent)
BAD_CERTIFICATE = "certificate verify failed inside"


def brief(failure: object) -> tuple[bool, bool, Cause]:
    found = verdict(failure)
    return found.retryable, found.unprocessed, found.cause


def given(error: Exception, /, **attributes: object) -> Exception:
    error.__dict__.update(attributes)
    return error


def after(error: Exception, *handled: BaseException, suppressed: bool = False) -> Exception:
    """The error as it is when it is raised in an ``except`` block; the last that is handled was the first."""
    outer: BaseException = error
    for before in handled:
        outer.__context__ = before
        outer = before
    error.__suppress_context__ = suppressed
    return error


def bad_certificate() -> Exception:
    return ssl.SSLCertVerificationError(1, "self-signed")


# A bad certificate around it


@pytest.mark.parametrize(
    ("name", "attributes", "cause"),
    [
        ("NoConnection", {}, C.connection),
        ("RequestTimeout", {}, C.timeout),
        ("Odd", {"retryable": True}, C.unknown),
        ("Odd", {"code": "timeout"}, C.timeout),
        ("Odd", {"status": 500}, C.server_error),
        ("Odd", {"status_code": 503, "headers": {}}, C.unavailable),
        ("ApiError", {"code": 500}, C.server_error),
    ],
)
def test_a_bad_certificate_among_the_errors_before_rules_weak_evidence_out(library, name, attributes, cause):
    def error() -> Exception:
        return given(library(name)("cannot fetch"), **attributes)

    assert brief(error()) == (True, False, cause)
    assert brief(after(error(), OSError("x"), ValueError("y"))) == (True, False, cause)
    for suppressed in (False, True):
        for certificate in (bad_certificate(), OSError("[SSL: CERTIFICATE_VERIFY_FAILED] x")):
            failure = after(error(), OSError("x"), ValueError("y"), certificate, suppressed=suppressed)
            assert brief(failure) == PERMANENT
            assert verdict(failure).reason.startswith(f"{BAD_CERTIFICATE} {name}")


def test_the_error_that_is_inside_a_wrapper_is_doubted_too(library):
    inner = after(library("ApiException", library("RetryableException"))(), bad_certificate())
    outer = library("RetryError")("gave up")
    outer.__cause__ = inner
    assert brief(outer) == PERMANENT
    inner.__context__ = None
    assert brief(outer) == (True, False, C.unavailable)


def test_only_a_few_errors_before_are_looked_at(library):
    error = after(library("NoConnection")(), *[OSError("x") for _ in range(20)], bad_certificate())
    assert verdict(error).retryable
    circle = library("NoConnection")()
    circle.__context__ = before = ValueError()
    before.__context__ = before.__cause__ = circle
    assert verdict(circle).retryable


@pytest.mark.parametrize(
    "answer",
    [
        {"response": Thing(status_code=503)},
        {"response": Thing(status_code=500, headers={})},
        {"status": 500, "headers": {"Server": "x"}},
        {"status": 500, "headers": {"Retry-After": "2"}},
    ],
)
def test_a_status_beside_an_answer_is_not_doubted(library, answer):
    assert verdict(given(after(library("Odd")("password"), bad_certificate()), **answer)).retryable


# Its own text


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("Authentication failed.", C.unauthorized),
        ("FATAL 3781: Invalid username or password", C.unauthorized),
        ('{"error":"unauthorized"}', C.unauthorized),
        ("bad credentials", C.unauthorized),
        ("Access denied for user 'x'", C.unauthorized),
        ("Permission denied", C.permanent),
        ("the certificate has expired", C.permanent),
        ("[SSL: CERTIFICATE_VERIFY_FAILED]", C.permanent),
    ],
)
def test_the_words_of_its_own_text_rule_weak_evidence_out(library, text, cause):
    for error in (
        library("ConnectionError")(text),
        library("ConnectionError")(7, text),
        given(library("ConnectionError")(), message=text),
        given(library("ConnectionError")("x"), reason=text),
        library("LoginError", ConnectionError)(text),
        given(library("Odd")(text), retryable=True),
        given(library("Odd")(text), code="server_error"),
        given(library("Odd")(text), status=500),
    ):
        assert brief(error) == (False, False, cause)
    assert brief(library("Odd")(f"connection refused: {text}")) == NOTHING


@pytest.mark.parametrize(
    "text",
    [
        "cannot reach https://example.org/v1/authentication/password",
        "passwords.example.org is gone",
        "Request was denied due to request throttling",
        "x" * 2000 + " password",
    ],
)
def test_other_words_and_the_words_of_an_address_rule_nothing_out(library, text):
    assert brief(library("ConnectionError")(text)) == (True, False, C.connection)
    assert brief(given(library("Odd")(text), status=500)) == (True, False, C.server_error)


def test_a_text_does_not_rule_out_what_is_no_weak_evidence(library):
    text = "authentication backend"
    assert brief(given(library("Odd")(text), status=503)) == (True, False, C.unavailable)
    assert brief(library("AuthTimeout", TimeoutError)(text)) == (True, False, C.timeout)
    assert brief(ConnectionError("password")) == (True, False, C.disconnected)
    assert brief(given(library("Odd")(text), retry_after=3)) == (True, True, C.rate_limited)
    assert brief(given(library("Odd")("password"), status=501)) == PERMANENT


# A delay of zero


@pytest.mark.parametrize("name", ["retry_after", "retry_after_s", "retry_after_seconds", "backoff"])
@pytest.mark.parametrize("zero", [0, 0.0, "0"])
def test_a_delay_of_zero_on_an_exception_is_no_invitation(library, name, zero):
    def error(**attributes: object) -> Exception:
        return given(library("Odd")("x"), **{name: zero}, **attributes)

    assert brief(error()) == NOTHING
    assert brief(error(status=403)) == PERMANENT
    assert brief(error(status=409)) == (False, False, C.conflict)
    assert brief(error(status=503)) == (True, False, C.unavailable)
    assert verdict(error(status=503)).retry_after is None
    assert brief(given(library("Odd")("x"), **{name: 1, "status": 403})) == (True, True, C.rate_limited)


def test_a_header_of_zero_stays_an_invitation(library):
    found = verdict(given(library("Odd")(), status=503, retry_after=0, headers={"Retry-After": "0"}))
    assert (found.retryable, found.unprocessed, found.retry_after) == (True, True, 0.0)


def test_the_zero_of_a_circuit_that_lets_calls_through_is_kept():
    patient = Classifier(transient=[CircuitOpen])
    for wait in (0.0, None, 2.0):
        assert patient.verdict(CircuitOpen("x", name="y", retry_after=wait)).retry_after == wait


# Codes in words


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        ("rate_limit_exceeded", C.rate_limited),
        ("RateLimited", C.rate_limited),
        ("TOO-MANY-REQUESTS", C.rate_limited),
        ("throttling", C.rate_limited),
        ("unavailable", C.unavailable),
        ("temporarily unavailable", C.unavailable),
        ("server_error", C.server_error),
        ("INTERNAL_ERROR", C.server_error),
        ("gateway_timeout", C.timeout),
    ],
)
def test_a_code_in_words_is_evidence_but_shows_no_lack_of_effect(library, code, cause):
    for attributes in (
        {"code": code},
        {"error_code": code},
        {"error": code},
        {"error": {"code": code}},
        {"body": {"code": code}},
        {"body": {"error": code}},
        {"body": {"error": {"code": code}}},
    ):
        error = given(library("Odd")("x"), **attributes)
        assert brief(error) == (True, False, cause)
        assert verdict(error).reason == f"Odd, whose code says {code}"


@pytest.mark.parametrize(
    "attributes",
    [
        {"code": "invalid_input"},
        {"code": "timeout_too_long"},
        {"code": "not_found", "message": "rate_limit_exceeded"},
        {"code": "timeout", "retryable": False},
        {"code": ["timeout"]},
        {"code": "timeout", "status": 200},
        {"title": "timeout"},
    ],
)
def test_other_codes_and_other_places_say_nothing(library, attributes):
    assert brief(given(library("Odd")("x"), **attributes)) == NOTHING


def test_a_code_in_words_is_asked_only_where_nothing_better_tells(library):
    assert brief(given(library("Odd")("x"), code="timeout", status=404)) == PERMANENT
    error = given(library("Odd")("x"), code="timeout")
    error.__cause__ = FileNotFoundError()
    assert brief(error) == PERMANENT

    class Own(Exception):
        code = "timeout"

    assert brief(Own()) == NOTHING


@pytest.mark.parametrize("name", ["code", "error_code", "error_type", "name", "type"])
@pytest.mark.parametrize("code", ["monthly_quota_exceeded", "daily-quota-exceeded", "insufficient_quota"])
def test_a_limit_of_money_is_hopeless_wherever_its_code_is(library, name, code):
    for attributes in ({name: code}, {"body": {name: code}}, {"body": {"error": {name: code}}}):
        answered = given(library("RateLimitError")("x"), status_code=429, **attributes)
        assert brief(answered) == (False, True, C.rate_limited)
        assert verdict(answered).reason == f"HTTP 429, {code}"
        assert brief(given(library("RateLimitError")("x"), **attributes)) == PERMANENT
    assert not verdict(given(library("Odd")("x"), status=429, **{name: code})).retryable
    assert verdict(given(library("Odd")("x"), status_code=429, **{name: "rate_limited"})).retryable


def test_a_limit_of_money_is_hopeless_if_only_the_text_of_a_429_says_so(library):
    said = '{"message": "You have reached your Monthly Limit."}'
    assert brief(given(library("ApiException")("x"), status=429, body=said)) == (False, True, C.rate_limited)
    assert verdict(given(library("ApiException")("x"), status=429, body='{"message": "slow down"}')).retryable


# A status as .code


@pytest.mark.parametrize(
    "name", ["HTTPFailure", "HttpError", "ResponseErrorCode", "BadStatus", "ApiException", "APIError"]
)
def test_the_code_of_a_class_that_says_http_is_a_status(library, name):
    error = library(name)
    assert brief(given(error("x"), code=503)) == (True, False, C.unavailable)
    assert brief(given(error("x"), code=429)) == (True, True, C.rate_limited)
    assert brief(given(error("x"), code=404)) == PERMANENT
    assert verdict(given(error("x"), code=404)).status == 404
    for other in (399, 600, 0, -4, 1006, True, "503", None, 503.0):
        assert brief(given(error("x"), code=other)) == NOTHING
    assert verdict(given(error("x"), code=503, status_code=404)).status == 404


@pytest.mark.parametrize(
    "name",
    [
        *("Odd", "DeviceError", "ExitStatus", "CommandStatusError", "ProcessStatus", "SMTPResponseError"),
        *("SmtpResponse", "GrpcStatusError", "FTPStatusError", "AMQPStatusError", "Therapist"),
    ],
)
def test_the_code_of_another_class_is_no_status(library, name):
    assert brief(given(library(name)("x"), code=503)) == NOTHING


def test_the_code_of_an_application_s_own_class_is_no_status(library):
    class ApiError(Exception):
        code = 503

    assert brief(ApiError()) == NOTHING
    assert brief(library("ApiError", directory="src", code=503)()) == NOTHING


# More words in names


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("ConnectionLoss", C.disconnected),
        ("ClientOfflineError", C.connection),
        ("ThrottledOpError", C.rate_limited),
        ("ThrottlingByServerException", C.rate_limited),
        ("InternalServerError", C.server_error),
        ("ServiceUnavailable", C.unavailable),
        ("BadGatewayError", C.server_error),
        ("GatewayTimeout", C.timeout),
    ],
)
def test_more_words_in_the_name_of_an_installed_class_decide(library, name, cause):
    assert brief(library(name)("x")) == (True, False, cause)


@pytest.mark.parametrize(
    "name",
    [
        "OfflineModeUnsupported",
        "OfflineAccess",
        "ThrottleOp",
        "UnthrottledOp",
        "InvalidThrottlingRule",
        "Loss",
    ],
)
def test_names_that_only_look_alike_are_no_evidence(library, name):
    assert brief(library(name)("x")) == NOTHING


# Explaining


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (
            lambda new: new("NoConnection")("bad password"),
            'NoConnection: nothing inside; name is ruled out ("password" in the text of it)',
        ),
        (
            lambda new: after(new("NoConnection")(), bad_certificate()),
            "NoConnection: nothing inside; name is ruled out (certificate verify failed inside it)",
        ),
        (
            lambda new: new("Odd", ConnectionError)("bad password"),
            'Odd: nothing inside; class is ruled out ("password" in the text of it)',
        ),
        (
            lambda new: given(new("Odd")(), code="server_error"),
            "Odd: nothing inside; code decides (server_error)",
        ),
        (
            lambda new: after(given(new("Odd")(), status=500), bad_certificate()),
            "Odd: HTTP status decides (certificate verify failed inside Odd with HTTP 500)",
        ),
        (lambda new: given(new("ApiError")(), code=503), "ApiError: HTTP status decides (HTTP 503)"),
        (
            lambda new: given(new("Odd")("password"), retryable=True),
            'Odd: own claim decides ("password" in the text of Odd with retryable=True)',
        ),
    ],
)
def test_explain_names_what_rules_weak_evidence_out(library, make, line):
    assert line in explain(make(library))


# Costs


def test_texts_of_megabytes_are_not_searched_to_their_end(library):
    long = "x " * 5_000_000
    error = after(
        given(library("NoConnection")(long), message=long, code=long), OSError(long), ValueError(long)
    )
    began = time.process_time()
    assert brief(error) == (True, False, C.connection)
    assert time.process_time() - began < 1.0


def test_a_builtin_is_not_searched_for_weak_evidence(monkeypatch):
    def asked(*_):
        raise AssertionError

    for name in (
        "classify._judge.doubt",
        "classify._judge.worded_code",
        "classify._judge.doubt",
        "classify._evidence.untrusted",
    ):
        monkeypatch.setattr(f"redouble.{name}", asked)
    for error in (ConnectionResetError(), TimeoutError(), ValueError("x"), ConnectionError("x")):
        found = verdict(given(error, note="so that no remembered verdict is given"))
        assert not found.reason.startswith("could not be examined")


def test_every_code_in_words_is_spelled_as_it_is_looked_up():
    for word in (*_codebook.WORDED, *_codebook.HOPELESS):
        assert word.isalpha()
        assert word == word.lower()
