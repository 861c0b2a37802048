"""Groups of errors, and errors inside errors."""

from __future__ import annotations

import asyncio
import ssl
import urllib.error
from types import SimpleNamespace as Thing

import pytest

from redouble.classify import (
    Cause,
    Classifier,
    explain,
    repeatable,
    verdict,
)
from redouble.classify import _table_classes as _classes
from redouble.classify import _table_statuses as _catalogue
from redouble.errors import DeadlineExceeded, RedoubleError, ResultRejected
from support.failures import NO, SAFE, YES, answered, brief, caused, failure, hidden, safety

C = Cause


# Errors of redouble, interrupts, groups


@pytest.mark.parametrize(
    "error",
    [
        RedoubleError(),
        DeadlineExceeded("x", attempts=1, elapsed=1.0),
        ResultRejected("x", result=answered(503), attempts=2),
        caused(DeadlineExceeded("x", attempts=1, elapsed=1.0), ConnectionResetError()),
    ],
)
def test_redoubles_own_errors_are_permanent_whatever_they_carry(error):
    error.retry_after = 3
    assert brief(error) == (False, False, C.permanent)
    assert verdict(caused(RuntimeError(), error)).cause is C.permanent


@pytest.mark.parametrize(
    "interrupt",
    [KeyboardInterrupt(), SystemExit(503), GeneratorExit(), asyncio.CancelledError(), BaseException()],
)
def test_an_interrupt_is_never_a_failure_to_retry(interrupt):
    interrupt.retry_after = 1
    found = verdict(interrupt)
    assert (found.retryable, found.cause, found.status) == (False, C.permanent, None)
    group = BaseExceptionGroup("g", [TimeoutError(), BaseExceptionGroup("h", [interrupt])])
    assert verdict(group).retryable is False
    assert Classifier(transient=["builtins.BaseException"]).verdict(interrupt).retryable is False
    assert Classifier(transient=["builtins.BaseException"]).verdict(group).retryable is False


def test_a_group_is_retryable_if_all_of_its_leaves_are_and_waits_for_the_largest_hint():
    inner = ExceptionGroup("inner", [answered(503, {"Retry-After": "9"}), TimeoutError()])
    found = verdict(ExceptionGroup("outer", [answered(429, {"Retry-After": "2"}), inner]))
    assert (found.retryable, found.unprocessed, found.retry_after, found.status) == (True, False, 9.0, None)
    assert found.cause is C.rate_limited


def test_one_permanent_leaf_makes_a_group_permanent():
    found = verdict(ExceptionGroup("g", [TimeoutError(), ExceptionGroup("h", [FileNotFoundError()])]))
    assert (found.retryable, found.cause) == (False, C.permanent)


def test_a_group_is_unprocessed_if_all_of_its_leaves_are():
    refused = ConnectionRefusedError()
    assert brief(ExceptionGroup("g", [refused, refused])) == (True, True, C.connection)


def test_a_group_that_is_in_its_group_twice_is_opened_once():
    group = TimeoutError()
    for _ in range(60):  # opened each time, that would be more leaves than there are seconds in a century
        group = ExceptionGroup("g", [group, group])
    assert brief(group) == (True, False, C.timeout)
    assert "a group of 2" in explain(group)
    assert repeatable(group) is None


def test_a_group_reports_the_status_its_leaves_agree_on():
    assert verdict(ExceptionGroup("g", [answered(503), answered(503)])).status == 503


@pytest.mark.slow
def test_a_group_of_thousands_of_errors_nested_thousands_deep_is_judged():
    group = ExceptionGroup("wide", [caused(RuntimeError(), TimeoutError()) for _ in range(3000)])
    for _ in range(3000):
        group = ExceptionGroup("deep", [group])
    assert brief(group) == (True, False, C.timeout)


# Errors inside errors


def test_an_unknown_error_is_judged_by_its_cause():
    found = verdict(caused(RuntimeError("x"), answered(503, {"Retry-After": "7"})))
    assert (found.retryable, found.status, found.retry_after, found.unprocessed) == (True, 503, 7.0, True)
    assert found.reason == "HTTP 503 with Retry-After: 7 inside RuntimeError"


@pytest.mark.parametrize("suppressed", [False, True])
def test_the_context_of_an_unknown_error_is_no_evidence(suppressed):
    error = ValueError("a bug in the handler")
    error.__context__, error.__suppress_context__ = ConnectionResetError(), suppressed
    assert brief(error) == (False, False, C.unknown)


def test_an_oserror_without_a_number_is_judged_by_its_cause():
    refused = ExceptionGroup("all addresses", [ConnectionRefusedError(), ConnectionRefusedError()])
    assert brief(caused(OSError("all attempts to connect failed"), refused)) == (True, True, C.connection)


def test_a_vague_connection_error_is_judged_by_its_cause_and_is_transient_without_one():
    assert brief(caused(ConnectionError(), ssl.SSLCertVerificationError())) == (False, False, C.permanent)
    assert brief(caused(ConnectionError(), ConnectionRefusedError())) == (True, True, C.connection)
    assert brief(caused(ConnectionError(), ValueError())) == (True, False, C.disconnected)


def test_a_timeout_is_a_timeout_whatever_it_waited_for():
    assert brief(caused(TimeoutError("lock"), FileExistsError())) == (True, False, C.timeout)


def wrapper(**attributes):
    error = urllib.error.URLError("text")
    error.__dict__.update(attributes)
    return error


def test_the_real_cause_is_found_in_every_place_where_a_wrapper_may_hide_it():
    reset = ConnectionResetError()
    with_context = wrapper()
    with_context.__context__, with_context.__suppress_context__ = reset, True
    hidden = [wrapper(**{name: reset}) for name in _catalogue.INNER_ATTRIBUTES]
    hidden += [wrapper(errors={("h", 1): reset}), wrapper(kwargs={"error": reset}), with_context]
    hidden += [caused(wrapper(), reset), urllib.error.URLError(reset)]
    for error in hidden:
        assert brief(error) == (True, False, C.disconnected), vars(error)


def test_a_wrapper_that_wraps_only_the_unknown_keeps_its_own_row():
    assert brief(urllib.error.URLError(ValueError())) == (False, False, C.permanent)
    assert brief(urllib.error.URLError(KeyboardInterrupt())) == (False, False, C.permanent)


def test_unlisted_classes_of_a_wrapping_package_are_searched_too():
    unlisted = type("NewError", (Exception,), {"__module__": "urllib.new"})("x", TimeoutError())
    assert brief(unlisted) == (True, False, C.timeout)


@pytest.fixture
def connect_error(monkeypatch):
    """A class that the catalogue knows to wrap failures to connect."""
    row = _catalogue.Meaning(True, C.connection, unprocessed=True, inside=True)
    monkeypatch.setitem(_classes.CLASSES, "somelib.ConnectError", row)
    return type("ConnectError", (Exception,), {"__module__": "somelib.errors"})


def test_a_reset_inside_a_failure_to_connect_was_never_sent(connect_error):
    assert brief(caused(connect_error(), ConnectionResetError())) == (True, True, C.connection)
    assert brief(caused(connect_error(), ConnectionRefusedError())) == (True, True, C.connection)
    assert brief(caused(connect_error(), ssl.SSLCertVerificationError())) == (False, False, C.permanent)
    assert brief(connect_error()) == (True, True, C.connection)
    assert brief(caused(connect_error(), DeadlineExceeded("x", attempts=1, elapsed=0))) == (
        False,
        False,
        C.permanent,
    )


def test_wrapping_is_followed_eight_layers_deep_and_no_further():
    error = TimeoutError()
    for _ in range(8):
        error = caused(RuntimeError(), error)
    assert verdict(error).retryable
    assert not verdict(caused(RuntimeError(), error)).retryable


# Looking inside

CERTIFICATE = ssl.SSLCertVerificationError(1, "self-signed")


def test_a_known_wrapper_is_searched_even_where_the_context_is_suppressed():
    connect = hidden(failure("httpcore.ConnectError"), CERTIFICATE)
    outer = caused(failure("httpx.ConnectError"), connect)
    found = verdict(caused(failure("openai.APIConnectionError"), outer))
    assert not found.retryable
    assert (
        found.reason
        == "certificate verify failed inside ConnectError inside ConnectError inside APIConnectionError"
    )


def test_requests_over_urllib3_over_the_operating_system_is_as_safe_as_its_safest_layer():
    refused = caused(failure("urllib3.NewConnectionError"), ConnectionRefusedError())
    spent = failure("urllib3.MaxRetryError", "text", reason=refused)
    assert safety(failure("requests.ConnectionError", spent)) == SAFE
    lost = failure("urllib3.ProtocolError", "Connection aborted.", ConnectionResetError())
    assert safety(failure("requests.ConnectionError", lost)) == YES
    broken = failure("urllib3.SSLError", CERTIFICATE)
    assert safety(failure("requests.SSLError", failure("urllib3.MaxRetryError", reason=broken))) == NO


def test_a_handshake_that_was_reset_was_never_sent():
    found = verdict(failure("aiohttp.ClientConnectorError", os_error=ConnectionResetError()))
    assert (found.retryable, found.unprocessed, found.cause) == (True, True, C.connection)


def test_a_missing_socket_deep_inside_a_connection_error_is_permanent():
    missing = failure("urllib3.ProtocolError", "Connection aborted.", FileNotFoundError(2, "no socket"))
    assert safety(failure("requests.ConnectionError", missing)) == NO


def test_what_a_pickle_leaves_of_a_certificate_error_is_recognized_by_its_text():
    found = verdict(
        failure("httpx.ConnectError", "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed")
    )
    assert (found.retryable, found.reason) == (False, "certificate verify failed inside ConnectError")


def test_a_wrapper_is_searched_for_better_evidence_though_it_says_itself_that_it_may_be_retried():
    inner = caused(failure("requests.ConnectionError"), ConnectionRefusedError())
    assert safety(caused(failure("stripe.APIConnectionError", should_retry=True), inner)) == SAFE


def test_stripe_alone_is_believed_that_an_error_is_not_to_be_retried():
    assert safety(failure("stripe.APIConnectionError", should_retry=False)) == NO
    refused = caused(
        failure("google.auth.exceptions.TransportError", retryable=False), ConnectionRefusedError()
    )
    assert safety(refused) == SAFE


@pytest.mark.parametrize(
    "wrapper",
    [
        failure("sqlalchemy.exc.OperationalError", code="e3q8", orig=ConnectionRefusedError()),
        failure("azure.core.exceptions.ServiceRequestError", inner_exception=ConnectionResetError()),
        failure("botocore.exceptions.EndpointConnectionError", kwargs={"error": ConnectionResetError()}),
        failure("paramiko.NoValidConnectionsError", errors={("h", 22): ConnectionRefusedError()}, bases=(OSError,)),
        failure("google.api_core.RetryError", cause=failure("google.api_core.X", orig=ConnectionRefusedError())),
        failure("pika.AMQPConnectionError", failure("pika.AMQPConnectorSocketConnectError", exception=TimeoutError())),
        caused(failure("django.db.utils.OperationalError"), ConnectionRefusedError()),
        caused(failure("oracledb.OperationalError", Thing(isrecoverable=False)), ConnectionRefusedError()),
    ],
    ids=lambda error: type(error).__module__,
)  # fmt: skip
def test_a_library_that_hides_the_cause_in_its_own_place_is_understood(wrapper):
    assert safety(wrapper) == SAFE
