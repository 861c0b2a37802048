"""Verdicts on HTTP statuses, error numbers and name resolution."""

from __future__ import annotations

import errno
import io
import os
import smtplib
import socket
import ssl
import sys
import urllib.error
from email.message import Message
from types import SimpleNamespace as Thing

import pytest

from redouble.classify import (
    RETRYABLE_STATUSES,
    Cause,
    _table_statuses,
    status_cause,
    verdict,
)
from support.failures import NO, SAFE, YES, Failure, answered, brief, caused

C = Cause


# HTTP statuses

STATUSES = [
    *[(status, NO, C.permanent) for status in (400, 402, 403, 404, 405, 406, 410, 411, 412, 413, 414, 415)],
    *[(status, NO, C.permanent) for status in (416, 417, 418, 422, 424, 426, 428, 431, 451, 499, 444, 460)],
    *[(status, NO, C.unauthorized) for status in (401, 407)],
    *[(status, NO, C.conflict) for status in (409, 423)],
    (408, YES, C.timeout),
    *[(status, SAFE, C.unavailable) for status in (421, 425, 521, 523, 525)],
    (429, SAFE, C.rate_limited),
    *[(status, YES, C.server_error) for status in (500, 502)],
    *[(status, YES, C.timeout) for status in (504, 522, 524, 598, 599)],
    *[(status, YES, C.unavailable) for status in (503, 520, 527, 529, 530)],
    *[(status, NO, C.permanent) for status in (501, 505, 506, 507, 508, 509, 510, 511, 526)],
    *[(status, YES, C.server_error) for status in (512, 528, 555)],  # unlisted: as good as 500
]


@pytest.mark.parametrize(("status", "expected", "cause"), STATUSES)
def test_a_status_alone_decides_as_the_table_says(status, expected, cause):
    found = verdict(answered(status))
    assert (found.retryable, found.unprocessed) == expected
    assert (found.cause, found.status, found.retry_after) == (cause, status, None)
    assert found.reason.startswith(f"HTTP {status}")


def test_the_retryable_statuses_are_those_the_table_retries_without_headers():
    listed = {status for status, (retryable, _), _ in STATUSES if retryable and status not in (512, 528, 555)}
    assert listed == RETRYABLE_STATUSES


@pytest.mark.parametrize(
    ("status", "headers", "expected", "cause", "hint"),
    [
        (403, {"Retry-After": "60"}, SAFE, C.rate_limited, 60),
        (403, {"x-ratelimit-remaining": "0"}, SAFE, C.rate_limited, None),
        (403, {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "40"}, SAFE, C.rate_limited, 40),
        (403, {"x-ratelimit-remaining": "7", "x-ratelimit-reset": "40"}, NO, C.permanent, None),
        (403, {"x-ratelimit-reset": "40"}, NO, C.permanent, None),
        (409, {"Retry-After": "1"}, YES, C.conflict, 1),
        (409, {"x-should-retry": "true"}, YES, C.conflict, None),
        (413, {"Retry-After": "8"}, SAFE, C.unavailable, 8),
        (423, {"Retry-After": "8"}, SAFE, C.conflict, 8),
        (503, {"Retry-After": "7"}, SAFE, C.unavailable, 7),
        (503, {"Retry-After": "soon"}, YES, C.unavailable, None),
        (529, {"Retry-After": "7"}, SAFE, C.unavailable, 7),
        (500, {"Retry-After": "7"}, YES, C.server_error, 7),
        (429, {"retry-after-ms": "250"}, SAFE, C.rate_limited, 0.25),
        (429, {"Retry-After": "0"}, SAFE, C.rate_limited, 0),
        (429, {"Retry-After": "Fri, 31 Dec 1999 23:59:59 GMT"}, SAFE, C.rate_limited, 0),
        (429, {"Retry-After": "999999999"}, SAFE, C.rate_limited, 999999999),
        (429, {"x-should-retry": "false", "Retry-After": "3"}, (False, True), C.rate_limited, None),
        (404, {"Retry-After": "7"}, NO, C.permanent, None),
        (400, {"x-should-retry": "true"}, YES, C.unavailable, None),
        (401, {"Stripe-Should-Retry": "true"}, YES, C.unauthorized, None),
    ],
)
def test_headers_refine_what_the_status_says(status, headers, expected, cause, hint):
    found = verdict(answered(status, headers))
    assert (found.retryable, found.unprocessed) == expected
    assert (found.cause, found.retry_after) == (cause, hint)


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (answered(503, {"Retry-After": "7"}), "HTTP 503 with Retry-After: 7"),
        (answered(429, {"retry-after-ms": "250"}), "HTTP 429 with a delay of 0.25"),
        (answered(403, {"x-ratelimit-remaining": "0"}), "HTTP 403 (rate limited)"),
        (answered(409, {"x-should-retry": "true"}), "HTTP 409, which the server says to retry"),
        (answered(500, {"x-should-retry": "false"}), "HTTP 500, which the server says not to retry"),
        (ConnectionRefusedError(errno.ECONNREFUSED, "x"), "ConnectionRefusedError (ECONNREFUSED)"),
        (ConnectionRefusedError(), "ConnectionRefusedError"),
        (OSError(10061, "x"), "OSError (10061)"),
        (
            urllib.error.URLError(ssl.SSLCertVerificationError(1, "x")),
            "certificate verify failed inside URLError",
        ),
        (socket.gaierror(socket.EAI_AGAIN, "x"), "name resolution (EAI_AGAIN)"),
        (smtplib.SMTPDataError(451, b"x"), "SMTP 451"),
        (Failure(retry_after=2.5), "Failure that asks to wait 2.5 s"),
        (Failure(should_retry=True), "Failure with should_retry=True"),
        (KeyboardInterrupt(), "KeyboardInterrupt is not a failure"),
        (Failure(), "Failure: nothing is known about it"),
        (
            ExceptionGroup("g", [TimeoutError(), ValueError()]),
            "ValueError: nothing is known about it in a group of 2",
        ),
    ],
)
def test_the_reason_names_the_evidence(failure, reason):
    assert verdict(failure).reason == reason


def test_a_success_status_on_an_exception_is_reported_but_proves_nothing():
    found = verdict(answered(200, {"Retry-After": "7"}))
    assert (found.retryable, found.cause, found.status, found.retry_after) == (False, C.unknown, 200, None)


def test_a_redirect_loop_of_urllib_is_permanent_and_keeps_its_status():
    with urllib.error.HTTPError("u", 302, "loop", Message(), io.BytesIO()) as error:
        found = verdict(error)
    assert (found.retryable, found.cause, found.status) == (False, C.permanent, 302)


# The operating system

ERRNOS = [
    ("ECONNREFUSED EHOSTUNREACH ENETUNREACH EHOSTDOWN ENETDOWN EADDRNOTAVAIL", SAFE, C.connection),
    ("ECONNRESET ECONNABORTED EPIPE ESHUTDOWN ENETRESET ENOTCONN", YES, C.disconnected),
    ("ETIMEDOUT", YES, C.timeout),
    ("EAGAIN EWOULDBLOCK EINTR ENOBUFS ENOMEM EMFILE ENFILE EBUSY ETXTBSY ESTALE", YES, C.unavailable),
    ("ENOLCK EDEADLK", YES, C.conflict),
    ("ENOENT EACCES EPERM EISDIR ENOTDIR EEXIST ESRCH ECHILD", NO, C.permanent),
    ("ENOSPC EDQUOT EROFS EFBIG ENAMETOOLONG ELOOP EIO ENXIO ENODEV", NO, C.permanent),
    ("EINVAL EBADF ENOTSOCK EAFNOSUPPORT EPROTONOSUPPORT EISCONN EADDRINUSE", NO, C.permanent),
]


@pytest.mark.parametrize(
    ("name", "expected", "cause"),
    [(name, *rest) for names, *rest in ERRNOS for name in names.split() if hasattr(errno, name)],
)
def test_errno_decides_and_not_the_class_alone(name, expected, cause):
    error = OSError(getattr(errno, name), os.strerror(getattr(errno, name)))
    for failure in (error, OSError(*error.args), caused(OSError(*error.args), ValueError())):
        assert brief(failure) == (*expected, cause)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ConnectionRefusedError(), (True, True, C.connection)),
        (ConnectionResetError(), (True, False, C.disconnected)),
        (ConnectionAbortedError(), (True, False, C.disconnected)),
        (BrokenPipeError(), (True, False, C.disconnected)),
        (ConnectionError(), (True, False, C.disconnected)),
        (TimeoutError(), (True, False, C.timeout)),
        (BlockingIOError(), (True, False, C.unavailable)),
        (InterruptedError(), (True, False, C.unavailable)),
        (FileNotFoundError(), (False, False, C.permanent)),
        (PermissionError(), (False, False, C.permanent)),
        (FileExistsError(), (False, False, C.permanent)),
        (IsADirectoryError(), (False, False, C.permanent)),
        (NotADirectoryError(), (False, False, C.permanent)),
        (ProcessLookupError(), (False, False, C.permanent)),
        (ChildProcessError(), (False, False, C.permanent)),
        (OSError(), (False, False, C.unknown)),
        (OSError("text"), (False, False, C.unknown)),
        (OSError(99999, "no such number"), (False, False, C.unknown)),
        (ConnectionError(errno.ECONNREFUSED, "x"), (True, True, C.connection)),
        (ConnectionError(errno.ENOENT, "x"), (False, False, C.permanent)),
    ],
)
def test_the_builtin_class_decides_where_there_is_no_number(error, expected):
    assert brief(error) == expected
    assert brief(error) == expected, "the second answer comes from memory"


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        *[(number, (True, True, C.connection)) for number in (10061, 10065, 10064, 10051, 10050, 10049)],
        *[(number, (True, False, C.disconnected)) for number in (10054, 10053, 10052)],
        (10060, (True, False, C.timeout)),
        *[(number, (True, False, C.unavailable)) for number in (10035, 10055, 10024)],
    ],
)
def test_windows_numbers_mean_the_same_as_errno_or_as_winerror(number, expected):
    untranslated = OSError(errno.EINVAL, "x")
    untranslated.winerror = number
    assert brief(untranslated) == expected
    assert brief(OSError(number, "x")) == expected


@pytest.mark.parametrize("status", [512, 550, 599 - 2])
def test_a_status_that_is_not_https_is_not_taken_for_it(status):
    assert brief(Failure(status=status)) == (False, False, C.unknown)
    assert verdict(Failure(status=status)).status is None
    assert brief(Failure(errcode=status)) == (False, False, C.unknown)


def test_a_status_that_no_list_has_counts_where_the_rest_is_https():
    for found in (
        Failure(status=512, headers={}),
        Failure(status_code=512),
        Failure(status=512, http_status=512),
        Failure(response=Thing(status=512)),
    ):
        assert brief(found) == (True, False, C.server_error)
    assert brief(Failure(status=503)) == (True, False, C.unavailable)


def test_errno_of_what_is_no_oserror_counts_if_it_means_the_network():
    assert brief(Failure(errno=errno.ECONNRESET)) == (True, False, C.disconnected)
    assert brief(Failure(errno=errno.ECONNREFUSED)) == (True, False, C.connection)
    for other in (errno.EAGAIN, errno.EBUSY, errno.ENOENT, 250001, "111", True, None):
        assert brief(Failure(errno=other)) == (False, False, C.unknown)


@pytest.mark.parametrize(
    "error",
    [kind("x") for kind in (ValueError, TypeError, KeyError, RuntimeError, MemoryError, EOFError)],
)
def test_programming_errors_are_unknown_and_not_retried(error):
    assert brief(error) == (False, False, C.unknown)


def known(names):
    """The names that this platform has."""
    return [name for name in names.split() if hasattr(socket, name)]


@pytest.mark.parametrize("name", known("EAI_AGAIN EAI_MEMORY EAI_SYSTEM"))
def test_name_resolution_that_may_work_later_is_retried_and_was_never_sent(name):
    assert brief(socket.gaierror(getattr(socket, name), "x")) == (True, True, C.connection)


@pytest.mark.parametrize("name", known("EAI_NONAME EAI_NODATA EAI_FAIL EAI_FAMILY EAI_SERVICE"))
def test_a_name_that_does_not_exist_is_not_retried(name):
    found = verdict(socket.gaierror(getattr(socket, name), "x"))
    assert (found.retryable, found.cause, found.reason) == (False, C.connection, f"name resolution ({name})")


def test_name_resolution_without_a_known_number_is_judged_by_its_class():
    assert brief(socket.gaierror()) == (True, True, C.connection)
    assert verdict(socket.gaierror(12345, "x")).retryable is False
    assert verdict(socket.herror(2, "try again")).retryable is True
    assert verdict(socket.herror(1, "host not found")).retryable is False


def test_name_resolution_is_read_though_only_the_c_module_of_socket_is_there(monkeypatch):
    error = socket.gaierror(socket.EAI_AGAIN, "x")
    monkeypatch.delitem(sys.modules, "socket")
    assert verdict(error).retryable


def tls(reason, kind=ssl.SSLError):
    error = kind(1, f"[SSL: {reason}]")
    error.reason = reason
    return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ssl.SSLCertVerificationError(1, "self-signed"), (False, False, C.permanent)),
        (tls("CERTIFICATE_VERIFY_FAILED", ssl.SSLCertVerificationError), (False, False, C.permanent)),
        (tls("WRONG_VERSION_NUMBER"), (False, False, C.permanent)),
        (ssl.SSLError(1, "by hand"), (False, False, C.permanent)),
        (ssl.SSLEOFError(8, "EOF"), (True, False, C.disconnected)),
        (ssl.SSLZeroReturnError(6, "closed"), (True, False, C.disconnected)),
        (ssl.SSLSyscallError(5, "x"), (True, False, C.disconnected)),
        (tls("UNEXPECTED_EOF_WHILE_READING"), (True, False, C.disconnected)),
        (tls("TLSV1_ALERT_INTERNAL_ERROR"), (True, False, C.disconnected)),
        (tls("DECRYPTION_FAILED_OR_BAD_RECORD_MAC"), (True, False, C.disconnected)),
    ],
)
def test_tls_numbers_are_not_taken_for_errno(error, expected):
    assert brief(error) == expected


def test_a_status_is_retryable_or_permanent_and_not_both():
    causes = _table_statuses.STATUS_CAUSES
    assert {status for status in RETRYABLE_STATUSES if causes.get(status) in (None, Cause.permanent)} == set()


def test_the_cause_of_a_status_is_none_without_an_error_and_where_headers_may_change_it():
    assert [status_cause(status) for status in (200, 399, 403, 409)] == [None] * 4
    assert (status_cause(400), status_cause(503)) == (Cause.permanent, Cause.unavailable)
