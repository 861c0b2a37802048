"""Failures of libraries that no table knows: inner errors, names of classes, and what else tells by its shape."""

from __future__ import annotations

import asyncio
import enum
import errno
import socket
import ssl
import sys
import time
from datetime import timedelta
from types import SimpleNamespace as Thing

import pytest

from redouble.classify import Cause, Classifier, explain, transient, verdict
from redouble.classify import _table_classes as _classes
from redouble.classify import _table_statuses as _catalogue

C = Cause
REFUSED = "[Errno 111] Connect call failed ('::1', 1, 0, 0)"


def brief(failure: object) -> tuple[bool, bool, Cause]:
    found = verdict(failure)
    return found.retryable, found.unprocessed, found.cause


NOTHING = (False, False, C.unknown)


class Failure(Exception):
    """An error of an application, with the attributes it is given."""

    def __init__(self, *args: object, **attributes: object) -> None:
        super().__init__(*args)
        self.__dict__.update(attributes)


def raised_from_handler(error: BaseException, handled: BaseException) -> BaseException:
    """The error as it is when it is raised in an ``except`` block, without ``from``."""
    error.__context__ = handled
    return error


def caused(error, cause):
    error.__cause__ = cause
    return error


# A host with several addresses


def all_failed(*numbers: int, name: str = "Errno") -> OSError:
    texts = [f"[{name} {number}] Connect call failed ('::{n}', 1)" for n, number in enumerate(numbers)]
    return OSError(f"Multiple exceptions: {', '.join(texts)}")


def test_asyncio_to_a_host_of_which_no_address_answers_is_a_refused_connection(monkeypatch):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    two = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port)) for host in ("127.0.0.1", "127.0.0.2")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: two)

    async def connect():
        await asyncio.open_connection("both.example", port)

    with pytest.raises(OSError, match="Multiple exceptions") as caught:
        asyncio.run(connect())
    assert caught.value.errno is None
    assert brief(caught.value) == (True, True, C.connection)
    assert brief(OSError()) == NOTHING  # which is remembered, and must not speak for the other


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ((errno.ECONNREFUSED, errno.ENETUNREACH), (True, True, C.connection)),
        ((errno.EAFNOSUPPORT, errno.ECONNREFUSED), (True, True, C.connection)),
        ((errno.ETIMEDOUT, errno.ECONNREFUSED), (True, False, C.timeout)),
        ((errno.EACCES, errno.EINVAL), NOTHING),
        ((10**9,), NOTHING),
    ],
)
def test_one_address_that_may_answer_later_is_enough(numbers, expected):
    assert brief(all_failed(*numbers)) == expected


def test_the_addresses_of_windows_are_read_too():
    assert brief(all_failed(1225, 10061, name="WinError")) == (True, True, C.connection)


@pytest.mark.parametrize(
    "text", ["Multiple exceptions: ", f"2 errors: {REFUSED}", "Multiple exceptions: [Errno x]"]
)
def test_other_texts_of_an_oserror_without_a_number_say_nothing(text):
    assert brief(OSError(text)) == NOTHING


# Errors inside errors


@pytest.mark.parametrize("name", _catalogue.INNER_ATTRIBUTES)
def test_an_unknown_class_is_judged_by_the_error_it_was_handed(name):
    assert brief(Failure("x", **{name: ConnectionResetError()})) == (True, False, C.disconnected)
    assert brief(Failure("x", **{name: "Connection reset"})) == NOTHING


def test_an_error_among_the_arguments_counts():
    assert brief(Failure("x", TimeoutError())) == (True, False, C.timeout)
    assert brief(RuntimeError(TimeoutError())) == (True, False, C.timeout)
    assert brief(Failure("x", ssl.SSLCertVerificationError())) == (False, False, C.permanent)
    assert brief(Failure("x", KeyboardInterrupt())) == NOTHING


def test_what_is_found_in_an_unknown_class_is_unprocessed_only_as_its_cause():
    refused = ConnectionRefusedError()
    assert brief(caused(Failure("x"), refused)) == (True, True, C.connection)
    assert brief(Failure("x", error=refused)) == (True, False, C.connection)
    assert brief(Failure(refused)) == (True, False, C.connection)


@pytest.mark.parametrize(
    ("text", "handled", "expected"),
    [
        ("cannot fetch: Connection refused", ConnectionRefusedError(111, "Connection refused"), True),
        (
            "cannot fetch: [Errno 111] Connection refused",
            ConnectionRefusedError(111, "Connection refused"),
            True,
        ),
        ("cannot fetch: read timed out", RuntimeError(TimeoutError("read timed out")), True),
        ("cannot fetch", ConnectionRefusedError(111, "Connection refused"), False),
        ("cannot fetch: timed", TimeoutError("timed"), False),  # too short to be a quotation
        ("cannot fetch: ", TimeoutError(), False),
        ("'TimeoutError' object has no attribute 'x'", TimeoutError("the server is slow"), False),
        ("the server is slow", KeyboardInterrupt("the server is slow"), False),
    ],
)
def test_the_context_of_an_unknown_class_counts_if_its_text_quotes_it(text, handled, expected):
    for error in (Failure(text), ValueError(text)):
        found = verdict(raised_from_handler(error, handled))
        assert (found.retryable, found.unprocessed) == (expected, False)


def test_a_quotation_is_looked_for_a_few_layers_deep():
    handled: Exception = TimeoutError("the server is slow")
    for _ in range(9):
        handled = RuntimeError(handled)
    assert brief(raised_from_handler(Failure("the server is slow"), handled)) == NOTHING


def test_an_explicit_transient_cause_outranks_the_row_of_a_base_class(library, monkeypatch):
    monkeypatch.setitem(_classes.CLASSES, "somelib.SomeError", _catalogue.PERMANENT)
    base = type("SomeError", (Exception,), {"__module__": "somelib"})
    derived = type("Derived", (base,), {"__module__": "application"})
    assert brief(caused(derived(), TimeoutError())) == (True, False, C.timeout)
    assert brief(caused(derived(), FileNotFoundError())) == (False, False, C.permanent)
    assert brief(caused(derived(), ValueError())) == (False, False, C.permanent)
    assert brief(derived()) == (False, False, C.permanent)
    assert brief(caused(base(), TimeoutError())) == (False, False, C.permanent)  # it has a row of its own
    assert brief(library("SomeTimeout", base)()) == (True, False, C.timeout)
    assert brief(caused(library("InvalidThing", base)(), TimeoutError())) == (False, False, C.permanent)


# Names of classes


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("BrokerTimeoutError", C.timeout),
        ("CommandTimedOut", C.timeout),
        ("TIMEOUT", C.timeout),
        ("read_timeout", C.timeout),
        ("ConnectionLost", C.disconnected),
        ("ServerDisconnectedError", C.disconnected),
        ("FooNetworkException", C.disconnected),
        ("ConnectError", C.connection),
        ("FooConnectionFailedError", C.connection),
        ("HostUnreachable", C.connection),
        ("TooManyRequestsError", C.rate_limited),
        ("RateLimitExceededException", C.rate_limited),
        ("Throttled", C.rate_limited),
        ("ServiceUnavailableError", C.unavailable),
        ("TryAgain", C.unavailable),
        ("InternalServerError", C.server_error),
    ],
)
def test_the_last_word_of_an_installed_class_decides_where_nothing_else_does(library, name, cause):
    for directory in ("site-packages", "dist-packages"):
        assert brief(library(name, directory=directory)("x")) == (True, False, cause)


@pytest.mark.parametrize(
    "name",
    [
        *("AuthenticationTimeout", "AuthError", "UnauthorizedConnection", "PermissionConnectionError"),
        *("ForbiddenConnection", "InvalidConnectionError", "InvalidTimeoutError", "ConnectionNotFound"),
        *(
            "NotFoundTimeout",
            "TimeoutValidationError",
            "ValidationTimeout",
            "QuotaExceeded",
            "QuotaRateLimit",
        ),
        *(
            "CertificateTimeout",
            "SSLConnectionError",
            "UnknownConnection",
            "NonRetryable",
            "NonRecoverableNetworkError",
        ),
        *("FatalConnectionError", "IPv4NetworkError", "DuplicateConnectionError", "UnsupportedNetworkError"),
        *(
            "Unavailable",
            "FeatureUnavailableError",
            "TimeoutValueError",
            "WebSocketError",
            "Error",
            "Exception",
        ),
        *("ConnectionPool", "PoolClosed", "NotConnected", "ServerError", "Conflict", "CheckoutTimeouts"),
    ],
)
def test_names_that_may_speak_of_a_permanent_failure_are_no_evidence(library, name):
    assert brief(library(name)("x")) == NOTHING


def test_words_are_told_apart_in_a_name(library):
    assert brief(library("ProcessLineTimedOut")()) == (True, False, C.timeout)  # not SSL
    assert brief(library("HTTPAuthTimeout")()) == NOTHING


def test_an_applications_own_class_is_its_own_business(library):
    class CheckoutTimeout(Exception):
        pass

    assert brief(CheckoutTimeout()) == NOTHING
    assert brief(library("CheckoutTimeout", directory="src")()) == NOTHING


def test_a_class_whose_module_is_gone_or_odd_is_not_installed(monkeypatch):
    class Raising:
        @property
        def __file__(self):
            raise RuntimeError("leave me alone")

    for odd in (Raising(), Thing(__file__=None), Thing(__file__=7), None):
        monkeypatch.setitem(sys.modules, "odd_module", odd)
        assert brief(type("SomeTimeout", (Exception,), {"__module__": "odd_module"})()) == NOTHING
    assert brief(type("SomeTimeout", (Exception,), {"__module__": 7})()) == NOTHING


def test_windows_paths_are_read_too(monkeypatch):
    monkeypatch.setitem(sys.modules, "windows_module", Thing(__file__="C:\\env\\Lib\\site-packages\\m.py"))
    assert brief(type("SomeTimeout", (Exception,), {"__module__": "windows_module"})()) == (
        True,
        False,
        C.timeout,
    )


def test_a_name_is_inherited_unless_it_is_about_connections(library):
    slow = library("SlowError", library("RequestTimeout"))
    assert brief(slow()) == (True, False, C.timeout)
    ended = library("ConnectionDone", library("ConnectionClosed"))
    assert brief(ended()) == NOTHING

    class Own(slow):
        pass

    assert brief(Own()) == (True, False, C.timeout)


def test_a_name_is_asked_last(library):
    timeout = library("RequestTimeout")
    assert brief(caused(timeout(), ssl.SSLCertVerificationError())) == (False, False, C.permanent)
    assert brief(timeout("[SSL: CERTIFICATE_VERIFY_FAILED]")) == (False, False, C.permanent)
    found = library("RequestTimeout", status_code=404)()
    assert brief(found) == (False, False, C.permanent)
    assert brief(library("RequestTimeout", retryable=False)()) == NOTHING


def test_the_veto_comes_before_the_builtin_connectionerror(library):
    refused = library("ProbableAuthenticationError", ConnectionError)
    assert brief(refused("x")) == (False, False, C.unauthorized)
    assert verdict(refused("x")).reason == "ProbableAuthenticationError, whose name says auth"
    assert brief(library("InvalidConnection", ConnectionError)()) == (False, False, C.permanent)
    # A number, or a class that the operating system raises, is better evidence than a name.
    assert brief(refused(errno.ECONNRESET, "reset")) == (True, False, C.disconnected)
    assert brief(library("AuthTimeout", TimeoutError)()) == (True, False, C.timeout)

    class AuthenticationError(ConnectionError):
        pass

    assert brief(AuthenticationError()) == (True, False, C.disconnected)


def test_what_was_looked_up_for_a_class_does_not_outlive_a_word_of_its_own(library):
    broken = library("Broken")
    assert not verdict(broken()).retryable
    broken.retryable = True
    assert verdict(broken()).retryable
    broken = library("Broken")
    assert not verdict(broken()).retryable
    assert verdict(transient(broken)()).retryable
    limited = library("Limited")
    assert not verdict(limited()).retryable
    limited.retry_after = 3
    assert verdict(limited()).retry_after == 3.0


# Numbers, statuses and texts


GRPC = enum.Enum("Status", "OK UNAVAILABLE DEADLINE_EXCEEDED RESOURCE_EXHAUSTED NOT_FOUND")
LIGHTS = enum.Enum("Lights", "UNAVAILABLE ABORTED")


@pytest.mark.parametrize("attribute", ["code", "status", "status_code"])
def test_an_enumeration_with_grpcs_names_is_read_as_grpcs(attribute):
    assert brief(Failure("x", **{attribute: GRPC.UNAVAILABLE})) == (True, False, C.unavailable)
    assert brief(Failure("x", **{attribute: GRPC.NOT_FOUND})) == (False, False, C.permanent)
    assert verdict(Failure("x", **{attribute: GRPC.UNAVAILABLE})).reason == "gRPC UNAVAILABLE"
    for other in (GRPC.OK, LIGHTS.UNAVAILABLE, "UNAVAILABLE", GRPC, Thing(name="UNAVAILABLE")):
        assert brief(Failure("x", **{attribute: other})) == NOTHING


@pytest.mark.parametrize("name", ["headers", "resp_headers", "response_headers"])
def test_headers_are_found_under_other_names(name):
    found = verdict(Failure("x", status=429, **{name: {"Retry-After": "7"}}))
    assert (found.retryable, found.retry_after, found.status) == (True, 7.0, 429)


@pytest.mark.parametrize(
    "info",
    [Thing(status=503, headers={"Retry-After": "7"}), {"status": 503, "headers": {"Retry-After": "7"}}],
)
def test_a_response_is_found_as_response_info(info):
    found = verdict(Failure("x", response_info=info))
    assert (found.retryable, found.retry_after, found.status) == (True, 7.0, 503)


@pytest.mark.parametrize("name", ["retry_after_secs", "retry_after_seconds"])
def test_a_delay_is_found_under_other_names(name):
    found = verdict(Failure("x", **{name: 7}))
    assert (found.retryable, found.retry_after, found.cause) == (True, 7.0, C.rate_limited)


@pytest.mark.parametrize(
    "error",
    [
        Failure("ThrottlingException: Rate exceeded", status_code=400),
        Failure("x", status_code=400, code="Throttling"),
        Failure("x", status_code=400, error_code="RequestLimitExceeded"),
        Failure("x", status_code=400, body={"__type": "com.amazonaws.dynamodb#ThrottlingException"}),
        Failure("x", status_code=400, body={"error": {"message": "Rate limit exceeded"}}),
        Failure("x", status_code=400, body='{"message": "Too Many Requests"}'),
        Failure("x", status_code=400, body=b"Request limit reached"),
        Failure("x", status_code=403, message="API rate limit exceeded"),
    ],
    ids=str,
)
def test_a_400_or_403_that_says_throttling_is_retried(error):
    assert brief(error) == (True, False, C.rate_limited)
    assert verdict(error).status == error.status_code


@pytest.mark.parametrize(
    "error",
    [
        Failure("invalid rate limit", status_code=400),
        Failure("throttling", status_code=404),
        Failure("x", status_code=400, body={"error": "rate"}),
        Failure("x", status_code=403, body=["throttling"]),
    ],
    ids=str,
)
def test_other_statuses_and_texts_are_not_taken_for_throttling(error):
    assert brief(error) == (False, False, C.permanent)


def test_a_400_of_a_class_named_after_throttling_is_retried(library):
    assert brief(library("RateLimitError", status_code=400)()) == (True, False, C.rate_limited)
    assert brief(library("ConnectionError", status_code=400)()) == (False, False, C.permanent)


def test_an_installed_oserror_with_a_status_for_a_number_is_judged_by_it(library):
    http_error = library("ApiError", OSError)
    assert brief(http_error(503, "Service Unavailable")) == (True, False, C.unavailable)
    assert brief(http_error(404, "Not Found")) == (False, False, C.permanent)
    assert verdict(http_error(404, "Not Found")).status == 404
    assert brief(OSError(503, "x")) == NOTHING


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("HTTP 503 from server", C.unavailable),
        ("failed: status code: 500", C.server_error),
        ("Response code: 429, body ...", C.rate_limited),
        ("HTTP 404 from server", None),
        ("status code 5031", None),
        ("status code: 200, but HTTP 503", None),
        ("error 429: too often", C.rate_limited),
        ("error 1045", None),
    ],
)
def test_a_status_in_the_text_of_an_installed_class_is_the_last_resort(library, text, cause):
    expected = NOTHING if cause is None else (True, False, cause)
    assert brief(library("ApiError")(text)) == expected
    assert brief(library("ApiError")(7, text)) == expected
    assert brief(Failure(text)) == NOTHING


@pytest.mark.parametrize(("words", "cause"), _catalogue.TRANSIENT_TEXTS)
def test_words_of_the_operating_system_in_a_text_are_the_last_resort_too(library, words, cause):
    text = f"cannot fetch: {words.capitalize()}"
    assert brief(library("ApiError")(text)) == (True, False, cause)
    assert brief(library("InvalidThing")(text)) == NOTHING
    assert brief(library("ApiError")(f"{text} CERTIFICATE_VERIFY_FAILED")) == NOTHING
    assert brief(library("ApiError", status=200)(text)) == NOTHING
    assert brief(Failure(text)) == NOTHING


# Libraries that only their names tell apart


def of(package: str, name: str, *args: object, **attributes: object) -> Exception:
    error = type(name, (Exception,), {"__module__": f"{package}.errors"})(*args)
    error.__dict__.update(attributes)
    return error


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Timeout while connecting", (True, True, C.connection)),
        ("Timeout in request queue", (True, True, C.unavailable)),
        ("Timeout during request", (True, False, C.timeout)),
        ("Stream closed", (True, False, C.disconnected)),
        ("anything else", (True, False, C.disconnected)),
    ],
)
def test_tornados_599_means_that_no_response_was_received(text, expected):
    error = of("tornado", "HTTPClientError", 599, text, code=599, response=None)
    assert brief(error) == expected
    assert verdict(error).status is None


def test_tornado_with_libcurl_and_with_a_response():
    assert brief(of("tornado", "HTTPClientError", 599, "x", code=599, errno=7)) == (True, True, C.connection)
    assert brief(of("tornado", "HTTPClientError", 599, "x", code=599, errno=60)) == (
        False,
        False,
        C.permanent,
    )
    answered = Thing(code=503, headers={"Retry-After": "7"})
    found = verdict(of("tornado", "HTTPClientError", 503, "x", code=503, response=answered))
    assert (found.retryable, found.status, found.retry_after) == (True, 503, 7.0)
    closed = of("tornado", "StreamClosedError", real_error=ssl.SSLCertVerificationError())
    assert brief(closed) == (False, False, C.permanent)


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ([451], (True, True, C.unavailable)),
        ([554], (False, False, C.permanent)),
        ([535], (False, False, C.unauthorized)),
        ([450, 451], (True, True, C.unavailable)),
        ([450, 550], (False, False, C.permanent)),
        ([-1], NOTHING),
    ],
)
def test_a_code_of_aiosmtplib_is_an_smtp_reply(codes, expected):
    refused = [of("aiosmtplib", "SMTPRecipientRefused", code=code) for code in codes]
    assert brief(of("aiosmtplib", "SMTPRecipientsRefused", recipients=refused)) == expected
    if len(codes) == 1:
        assert brief(refused[0]) == expected


def test_a_delay_of_databricks_is_kept_by_the_row_of_its_class():
    found = verdict(of("databricks", "TemporarilyUnavailable", "x", retry_after_secs=3))
    assert (found.retryable, found.unprocessed, found.retry_after) == (True, False, 3.0)
    found = verdict(of("databricks", "TooManyRequests", "x", retry_after_secs=3))
    assert (found.cause, found.unprocessed, found.retry_after) == (C.rate_limited, True, 3.0)


def test_a_timeout_of_mysql_connector_is_not_the_slow_query_whose_number_it_borrows():
    assert brief(of("mysql", "ReadTimeoutError", errno=3024)) == (True, False, C.timeout)
    assert brief(of("mysql", "DatabaseError", errno=3024)) == (False, False, C.permanent)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (3, (True, True, C.unavailable)),
        (4, (False, False, C.unauthorized)),
        (2, (False, False, C.permanent)),
        (Thing(value=137), (True, True, C.unavailable)),
        (Thing(value=135), (False, False, C.unauthorized)),
        (None, (False, False, C.unknown)),
    ],
    ids=str,
)
def test_a_connection_that_a_broker_of_mqtt_refuses_is_judged_by_its_code(code, expected):
    assert brief(of("aiomqtt", "MqttConnectError", "x", rc=code)) == expected


def test_a_delay_of_telegram_may_be_a_timedelta():
    found = verdict(of("telegram", "RetryAfter", "x", retry_after=timedelta(seconds=7)))
    assert (found.cause, found.unprocessed, found.retry_after) == (C.rate_limited, True, 7.0)


# Explaining


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda new: new("SomeTimeout")(), "SomeTimeout: nothing inside; name decides (last word: timeout)"),
        (lambda new: new("AuthTimeout")(), "AuthTimeout: nothing inside; name is no evidence (auth in it)"),
        (lambda new: new("Odd")("HTTP 503"), "Odd: nothing inside; text decides (HTTP 503)"),
        (lambda new: new("Odd")("x"), "Odd: nothing decides; looked inside"),
        (
            lambda new: new("Odd", ConnectionError)("x"),
            "Odd: nothing inside; class decides (ConnectionError)",
        ),
        (
            lambda new: caused(new("Odd")(), TimeoutError()),
            "  TimeoutError: operating system decides; no own error",
        ),
        (lambda _: Failure(code=GRPC.UNAVAILABLE), "Failure: code decides (gRPC UNAVAILABLE)"),
        (
            lambda _: all_failed(errno.ECONNREFUSED),
            "OSError: operating system decides (OSError: every address failed",
        ),
    ],
)
def test_explain_names_the_rule_that_decided(library, make, line):
    error = make(library)
    assert line in explain(error)
    assert explain(error).startswith("retryable" if verdict(error).retryable else "not retryable")


def test_a_classifiers_own_entries_come_before_a_name(library):
    timeout = library("SomeTimeout")
    assert not Classifier(permanent=[timeout]).verdict(timeout()).retryable


# Costs


def test_the_file_of_a_module_is_looked_up_once_for_each_class(library, monkeypatch):
    timeout = library("SomeTimeout")
    asked = []
    monkeypatch.setattr("redouble.classify._judge.is_installed", lambda module: asked.append(module) or True)
    for _ in range(3):
        verdict(timeout())
    count = len(asked)
    assert count <= 2
    verdict(timeout())
    assert len(asked) == count


def test_a_text_of_megabytes_is_not_searched_to_its_end(library):
    error = library("ApiError")("x" * 10_000_000 + "HTTP 503")
    error.__context__ = TimeoutError("y" * 10_000_000)
    began = time.process_time()
    assert brief(error) == NOTHING
    assert time.process_time() - began < 1.0
