"""What failures mean: the tables of the catalogue, held against real objects of the standard library."""

from __future__ import annotations

import asyncio
import builtins
import concurrent.futures
import copy
import datetime
import email.utils
import errno
import ftplib
import gc
import http
import http.client
import imaplib
import io
import json
import multiprocessing
import os
import pickle
import poplib
import smtplib
import socket
import sqlite3
import ssl
import subprocess
import sys
import time
import urllib.error
import xmlrpc.client
from email.message import Message
from types import SimpleNamespace as Thing
from typing import Any

import pytest

from redouble import _catalogue, _classes
from redouble.classify import (
    RETRYABLE_STATUSES,
    Cause,
    Classifier,
    Verdict,
    accepted,
    explain,
    is_retryable,
    parse_retry_after,
    repeatable,
    request_method,
    retry_after,
    transient,
    verdict,
)
from redouble.errors import DeadlineExceeded, RedoubleError, ResultRejected

C = Cause


class Failure(Exception):
    """An error of a library that nobody has heard of, with the attributes it is given."""

    def __init__(self, *args, **attributes):
        super().__init__(*args)
        self.__dict__.update(attributes)


def answered(status, headers=None, **attributes):
    return Failure(response=Thing(status_code=status, headers=headers or {}), **attributes)


def brief(failure):
    found = verdict(failure)
    return found.retryable, found.unprocessed, found.cause


def caused(error, cause):
    error.__cause__ = cause
    return error


# HTTP statuses

NO, YES, SAFE = (False, False), (True, False), (True, True)
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


# Where a status is found


def headers_message():
    message = Message()
    message["Retry-After"] = "5"
    return message


H = {"Retry-After": "5"}
SHAPES = [
    Failure(response=Thing(status_code=503, headers=H)),
    Failure(response=Thing(status=503, headers=H)),
    Failure(response=Thing(code=503, headers=H)),
    Failure(response=Thing(status_code="503", headers=H)),
    Failure(response=Thing(status_code=http.HTTPStatus.SERVICE_UNAVAILABLE, headers=H)),
    Failure(response=Thing(status_code=503), headers=H),
    Failure(response={"ResponseMetadata": {"HTTPStatusCode": 503, "HTTPHeaders": {"retry-after": "5"}}}),
    Failure(response={"status": 503, "headers": H, "body": ""}),
    Failure(response={"Error": "text"}, status=503, headers=H),
    Failure(response=None, resp=Thing(status=503, headers=H)),
    Failure(raw_response=Thing(status_code=503, headers=H)),
    Failure(http_response=Thing(status_code=503, headers=H)),
    Failure(response=Thing(status_code=0, headers=H), status_code=503),
    Failure(status_code=503, headers=H),
    Failure(status=503, headers=H),
    Failure(http_status=503, headers=H),
    Failure(response_code=503, headers=H),
    Failure(meta=Thing(status=503, headers=H)),
    Failure(code=503, headers=H),
    Failure(code=503, response=Thing(headers=H)),
    Failure(code=http.HTTPStatus.SERVICE_UNAVAILABLE, retry_after=5),
    Failure(status_code=503, headers=[("retry-after", "5")]),
    urllib.error.HTTPError("u", 503, "m", headers_message(), None),
    xmlrpc.client.ProtocolError("u", 503, "m", H),
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


# What an exception says of itself


@pytest.mark.parametrize("name", ["retry_after", "retry_after_s", "backoff"])
@pytest.mark.parametrize(
    ("value", "delay"), [(3, 3), (2.5, 2.5), ("4", 4), (datetime.timedelta(minutes=1), 60)]
)
def test_an_error_that_carries_its_own_delay_is_a_rate_limit(name, value, delay):
    found = verdict(Failure(**{name: value}))
    assert (found.retryable, found.unprocessed, found.cause) == (True, True, C.rate_limited)
    assert found.retry_after == delay


@pytest.mark.parametrize("value", [True, -1, float("nan"), float("inf"), "soon", "", None, object(), {}])
def test_a_delay_that_is_no_number_of_seconds_is_no_evidence(value):
    assert brief(Failure(retry_after=value)) == (False, False, C.unknown)


def test_the_headers_delay_comes_before_the_errors_own():
    assert verdict(answered(429, {"Retry-After": "7"}, retry_after=3)).retry_after == 7
    assert verdict(answered(429, retry_after=3)).retry_after == 3


def test_the_errors_own_delay_is_evidence_of_a_rate_limit_on_a_403():
    assert brief(answered(403, retry_after=3)) == (True, True, C.rate_limited)


@pytest.mark.parametrize("name", ["retryable", "retriable", "should_retry"])
def test_an_error_that_calls_itself_retryable_is_but_false_and_other_values_say_nothing(name):
    assert brief(Failure(**{name: True})) == (True, False, C.unknown)
    for weak in (False, 1, "yes", lambda: True):
        assert brief(Failure(**{name: weak})) == (False, False, C.unknown)
        assert verdict(caused(Failure(**{name: weak}), TimeoutError())).retryable


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


# Classes and codes of the standard library


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (http.client.RemoteDisconnected("x"), (True, False, C.disconnected)),
        (http.client.BadStatusLine("x"), (True, False, C.disconnected)),
        (http.client.IncompleteRead(b""), (True, False, C.disconnected)),
        (http.client.LineTooLong("x"), (False, False, C.permanent)),
        (http.client.CannotSendRequest(), (False, False, C.permanent)),
        (urllib.error.URLError("unknown url type"), (False, False, C.permanent)),
        (urllib.error.URLError(ConnectionRefusedError()), (True, True, C.connection)),
        (urllib.error.URLError(FileNotFoundError()), (False, False, C.permanent)),
        (urllib.error.URLError(TimeoutError()), (True, False, C.timeout)),
        (urllib.error.ContentTooShortError("x", b""), (True, False, C.disconnected)),
        (asyncio.IncompleteReadError(b"", 5), (True, False, C.disconnected)),
        (asyncio.LimitOverrunError("x", 0), (False, False, C.permanent)),
        (concurrent.futures.TimeoutError(), (True, False, C.timeout)),
        (multiprocessing.TimeoutError(), (True, False, C.timeout)),
        (multiprocessing.ProcessError(), (False, False, C.permanent)),
        (subprocess.TimeoutExpired("x", 1), (True, False, C.timeout)),
        (subprocess.CalledProcessError(1, "x"), (False, False, C.permanent)),
        (ftplib.error_temp("421"), (True, False, C.unavailable)),
        (ftplib.error_perm("550"), (False, False, C.permanent)),
        (imaplib.IMAP4.abort(), (True, False, C.disconnected)),
        (imaplib.IMAP4.error(), (False, False, C.permanent)),
        (poplib.error_proto(), (False, False, C.permanent)),
        (json.JSONDecodeError("x", "", 0), (False, False, C.permanent)),
        (xmlrpc.client.Fault(1, "x"), (False, False, C.permanent)),
        (smtplib.SMTPServerDisconnected("x"), (True, False, C.disconnected)),
        (smtplib.SMTPConnectError(421, b"x"), (True, True, C.unavailable)),
        (smtplib.SMTPDataError(550, b"x"), (False, False, C.permanent)),
        (smtplib.SMTPAuthenticationError(535, b"x"), (False, False, C.unauthorized)),
        (smtplib.SMTPRecipientsRefused({"a@x": (450, b"x")}), (True, True, C.unavailable)),
        (
            smtplib.SMTPRecipientsRefused({"a@x": (450, b"x"), "b@x": (550, b"x")}),
            (False, False, C.permanent),
        ),
        (smtplib.SMTPRecipientsRefused({"a@x": None, "b@x": ()}), (False, False, C.unknown)),
        (smtplib.SMTPResponseException(-1, b"x"), (False, False, C.unknown)),
        # The answer to QUIT, which comes after the mail was accepted.
        (smtplib.SMTPResponseException(421, b"x"), (True, False, C.unavailable)),
        (sqlite3.OperationalError("database is locked"), (True, True, C.conflict)),
        (sqlite3.OperationalError("no such table"), (False, False, C.unknown)),
        (sqlite3.OperationalError(), (False, False, C.unknown)),
    ],
    ids=lambda value: type(value).__qualname__,
)
def test_classes_of_the_standard_library_are_known(error, expected):
    assert brief(error) == expected


def test_a_locked_sqlite_database_is_a_conflict_and_a_syntax_error_of_the_same_class_is_permanent(tmp_path):
    path = tmp_path / "db"
    with sqlite3.connect(path) as first, sqlite3.connect(path, timeout=0) as second:
        first.execute("begin exclusive")
        with pytest.raises(sqlite3.OperationalError) as locked:
            second.execute("begin exclusive")
        first.rollback()
        with pytest.raises(sqlite3.OperationalError) as wrong:
            second.execute("selec")
    first.close()
    second.close()
    assert brief(locked.value) == (True, True, C.conflict)
    assert brief(wrong.value) == (False, False, C.permanent)


def test_an_asyncio_timeout_is_a_timeout_though_a_cancellation_caused_it():
    async def slow():
        async with asyncio.timeout(0):
            await asyncio.sleep(9)

    with pytest.raises(TimeoutError) as caught:
        asyncio.run(slow())
    assert isinstance(caught.value.__cause__, asyncio.CancelledError)
    assert brief(caught.value) == (True, False, C.timeout)


def test_every_class_in_the_table_is_keyed_by_package_and_qualified_name():
    for key in _classes.CLASSES:
        package, _, name = key.partition(".")
        assert package.isidentifier()
        assert name
        assert _classes.ALIASES.get(package, package) == package, "an alias can never be found"


# redouble's own errors, interrupts, groups


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
    row = _catalogue.Row(True, C.connection, unprocessed=True, inside=True)
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


# Results


@pytest.mark.parametrize(
    "result",
    [
        Thing(status_code=503, headers=H),
        Thing(status=503, headers=H),
        Thing(code=503, headers=H),
        {"ResponseMetadata": {"HTTPStatusCode": 503, "HTTPHeaders": H}, "Error": {"Code": "SlowDown"}},
        {"statusCode": 503, "headers": H, "body": ""},
        {"status": 503, "headers": H},
        (503, H, b""),
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
        Thing(retry_after=3), (503, H), (503, H, b"", 1), (503, "text", b""), ("503", H, b""), (True, H, b""),
        (503, [1, 2], b""), (503, None, b""), (20429, H, b""), {503: H},
    ],
    ids=str,
)  # fmt: skip
def test_a_result_that_is_no_failed_response_is_accepted(result):
    assert verdict(result) == Verdict(False)
    assert accepted(result)


@pytest.mark.parametrize(("status", "cause"), [(200, C.unknown), (302, C.unknown), (404, C.permanent)])
def test_a_response_that_will_not_change_is_accepted_but_keeps_its_hint(status, cause):
    found = verdict((status, H, b""))
    assert (found.retryable, found.cause, found.status, found.retry_after) == (False, cause, status, 5.0)
    assert accepted((status, H, b""))


# The other functions


def test_what_is_not_idempotent_is_retried_only_if_it_had_no_effect():
    assert is_retryable(ConnectionResetError())
    assert not is_retryable(ConnectionResetError(), idempotent=False)
    assert is_retryable(ConnectionRefusedError(), idempotent=False)
    assert not is_retryable(ValueError())


NEWYEAR = 946684799.0  # one second before 2000
SPENT = {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "45"}


@pytest.mark.parametrize(
    ("source", "hint"),
    [
        ({"Retry-After": "120"}, 120.0),
        ({"Retry-After": "Fri, 31 Dec 1999 23:59:59 GMT"}, 30.0),
        ([("retry-after", "3")], 3.0),
        (headers_message(), 5.0),
        (Thing(headers=H), 5.0),
        (Thing(status_code=404, headers=H), 5.0),
        (answered(404, H), 5.0),
        (answered(429, {"Retry-After": "Fri, 31 Dec 1999 23:59:59 GMT"}), 30.0),
        (Failure(headers=H), 5.0),
        (Failure(retry_after="Fri, 31 Dec 1999 23:59:59 GMT"), 30.0),
        (ExceptionGroup("g", [answered(429, H), Failure(retry_after=8)]), 8.0),
        (caused(RuntimeError(), answered(429, H)), 5.0),
        ({"ResponseMetadata": {"HTTPStatusCode": 503, "HTTPHeaders": H}}, 5.0),
        ({"Retry-After": "soon"}, None),
        (TimeoutError(), None),
        (None, None),
        ("120", None),
        (iter([("retry-after", "3")]), None),
        ((429, SPENT, b""), 45.0),
        ((500, SPENT, b""), None),
    ],
    ids=str,
)
def test_the_hint_is_read_from_errors_responses_and_headers(source, hint):
    assert retry_after(source, now=NEWYEAR - 30) == hint


def test_what_does_not_look_like_headers_is_not_asked_for_them():
    class Client:
        def get(self, url):
            raise AssertionError("this would be a request")

    assert retry_after(Client()) is None
    assert retry_after([["retry-after", "3"]]) is None


def test_a_date_is_measured_from_the_present_unless_said_otherwise():
    date = email.utils.formatdate(time.time() + 100.0, usegmt=True)
    assert 50.0 < retry_after({"Retry-After": date}) <= 100.0


def test_parse_retry_after_is_at_hand():
    assert parse_retry_after("1.5") == 1.5


# Requests


class Unset:
    """As in httpx: reading a request that was never set raises."""

    @property
    def request(self):
        raise RuntimeError("The request instance has not been set on this response.")


def sent(method, **headers):
    return Thing(method=method, headers={name.replace("_", "-"): value for name, value in headers.items()})


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


# Classifiers


class Flaky(Exception):
    pass


class VeryFlaky(Flaky):
    class Inner(Exception):
        pass


HERE = Flaky.__module__


@pytest.mark.parametrize("entry", [Flaky, f"{HERE}.Flaky"])
def test_a_classifier_takes_more_types_or_their_names(entry):
    assert brief_by(Classifier(transient=[entry]), VeryFlaky()) == (True, False, C.unknown)
    assert brief_by(Classifier(unprocessed=(entry,)), Flaky()) == (True, True, C.unknown)
    assert brief_by(Classifier(permanent=entry), VeryFlaky()) == (False, False, C.permanent)
    assert brief_by(Classifier(transient=entry), RuntimeError()) == (False, False, C.unknown)


@pytest.mark.parametrize("field", ["transient", "permanent", "unprocessed"])
def test_an_entry_is_the_reason_and_leaves_it_known_that_nothing_was_sent(field):
    found = Classifier(**{field: ConnectionError}).verdict(ConnectionRefusedError())
    assert (found.reason, found.unprocessed) == (f"ConnectionRefusedError is listed as {field}", True)


@pytest.mark.parametrize("field", ["statuses", "transient"])
def test_an_error_of_what_is_to_be_iterated_comes_out_as_it_is(field):
    with pytest.raises(ZeroDivisionError):
        Classifier(**{field: (1 / 0 for _ in "x")})


@pytest.mark.parametrize("trouble", [RuntimeError, KeyboardInterrupt])
def test_what_cannot_be_explained_is_said_and_an_interrupt_passes_through(trouble, monkeypatch):
    def raises(*_):
        raise trouble

    monkeypatch.setattr("redouble.classify.Told.failure", raises)
    if trouble is KeyboardInterrupt:
        with pytest.raises(KeyboardInterrupt):
            explain(TimeoutError())
    else:
        assert explain(TimeoutError()).splitlines()[1:] == ["could not be looked at: RuntimeError"]


def brief_by(classifier, failure):
    found = classifier.verdict(failure)
    return found.retryable, found.unprocessed, found.cause


def test_a_name_may_give_the_package_alone_since_modules_move():
    moved = type("ApiError", (Exception,), {"__module__": "somelib._impl.errors"})()
    assert Classifier(transient="somelib.ApiError").verdict(moved).retryable
    assert Classifier(transient="somelib._impl.errors.ApiError").verdict(moved).retryable
    assert not Classifier(transient="somelib.errors.ApiError").verdict(moved).retryable


def test_a_nested_class_is_named_by_its_qualified_name():
    assert Classifier(transient=f"{HERE}.VeryFlaky.Inner").verdict(VeryFlaky.Inner()).retryable


def test_of_two_entries_that_fit_the_more_derived_counts():
    classifier = Classifier(transient=[Flaky], permanent=[VeryFlaky])
    assert classifier.verdict(Flaky()).retryable
    assert not classifier.verdict(VeryFlaky()).retryable


def test_entries_overrule_the_catalogue_and_keep_what_else_is_known():
    found = Classifier(permanent=[Failure]).verdict(answered(429, H))
    assert (found.retryable, found.cause, found.status) == (False, C.permanent, 429)
    found = Classifier(transient=[Failure]).verdict(answered(404, H))
    assert (found.retryable, found.cause, found.status, found.retry_after) == (True, C.unavailable, 404, 5.0)
    assert Classifier(permanent=[ConnectionError]).verdict(ConnectionResetError()).retryable is False
    assert (
        Classifier(transient=[DeadlineExceeded])
        .verdict(DeadlineExceeded("x", attempts=1, elapsed=0))
        .retryable
    )


@pytest.mark.parametrize(
    ("field", "kind"), [("transient", ValueError), ("unprocessed", ValueError), ("permanent", TimeoutError)]
)
def test_entries_hold_for_builtin_errors_and_for_nobody_else(field, kind):
    before = verdict(kind())
    assert Classifier(**{field: [kind]}).verdict(kind()).retryable is not before.retryable
    assert verdict(kind()) == before


def test_entries_hold_for_errors_inside_errors_and_groups():
    classifier = Classifier(transient=[Flaky])
    assert classifier.verdict(caused(RuntimeError(), Flaky())).retryable
    assert classifier.verdict(ExceptionGroup("g", [Flaky(), TimeoutError()])).retryable


def test_a_classifier_may_have_other_statuses():
    classifier = Classifier(statuses={404, 202, http.HTTPStatus.BAD_GATEWAY})
    assert brief_by(classifier, answered(404)) == (True, False, C.unavailable)
    assert brief_by(classifier, (202, {}, b"")) == (True, False, C.unknown)
    assert brief_by(classifier, answered(202)) == (True, False, C.unknown)
    assert brief_by(classifier, answered(502)) == (True, False, C.server_error)
    assert brief_by(classifier, answered(503)) == (False, False, C.unavailable)
    assert brief_by(classifier, answered(555)) == (False, False, C.server_error)


def test_a_classifier_that_knows_only_other_statuses_judges_builtin_errors_as_the_default_does():
    assert Classifier(statuses=[404]).verdict(TimeoutError()) == verdict(TimeoutError())


def test_a_classifier_is_a_value():
    classifier = Classifier([503], transient=[Flaky, "a.B"], permanent="c.D", unprocessed=(OSError,))
    for same in (pickle.loads(pickle.dumps(classifier)), copy.deepcopy(classifier)):
        assert same == classifier
        assert hash(same) == hash(classifier)
        assert same.verdict(Flaky()).retryable
    assert Classifier() == Classifier()
    assert Classifier(transient=[Flaky, OSError]) == Classifier(transient=[OSError, Flaky])
    assert Classifier(statuses=[500]) != Classifier()
    assert Classifier(sorted(RETRYABLE_STATUSES)).statuses is RETRYABLE_STATUSES
    with pytest.raises(AttributeError):
        classifier.statuses = frozenset()


@pytest.mark.parametrize("field", ["transient", "permanent", "unprocessed"])
@pytest.mark.parametrize(
    "wrong",
    [KeyboardInterrupt, BaseException, int, "NoDot", "a.", "a b.C", [object()], 5, [[]], [None], Flaky()],
)
def test_a_classifier_refuses_what_is_no_failure_and_names_the_field(field, wrong):
    for make in (Classifier, Classifier().extend):
        with pytest.raises(TypeError, match=f"^{field} takes types of Exception, or their names"):
            make(**{field: wrong})


@pytest.mark.parametrize("wrong", [99, 600, 0, True, "503", None, 503.0])
def test_a_classifier_refuses_what_is_no_status_and_names_the_value(wrong):
    with pytest.raises(ValueError, match=r"^statuses must be HTTP statuses \(100 to 599\), got "):
        Classifier(statuses=[500, wrong])


@pytest.mark.parametrize("wrong", [503, None, [[503]]])
def test_a_classifier_refuses_what_are_no_statuses(wrong):
    with pytest.raises(TypeError, match=r"^statuses takes several HTTP statuses, got "):
        Classifier(statuses=wrong)


@pytest.mark.parametrize("field", ["transient", "unprocessed"])
def test_a_classifier_refuses_a_class_that_is_both_transient_and_permanent(field):
    rule = "permanent must not name what is transient or unprocessed too"
    with pytest.raises(ValueError, match=f"^{rule}, got 'a.B'$"):
        Classifier(**{field: ["a.B"]}, permanent=["a.B"])


# Values and costs


def test_a_verdict_is_a_value_with_defaults():
    found = Verdict(False)
    assert found == Verdict(False, C.unknown, None, None, "", False)
    assert pickle.loads(pickle.dumps(verdict(TimeoutError()))) == verdict(TimeoutError())
    assert b"redouble._" not in pickle.dumps(verdict(TimeoutError()), 4).replace(b"redouble._record", b"")
    with pytest.raises(AttributeError):
        found.retryable = True


def test_causes_are_words():
    assert list(Cause) == [
        "connection", "disconnected", "timeout", "rate_limited", "unavailable",
        "server_error", "conflict", "unauthorized", "permanent", "unknown",
    ]  # fmt: skip


CERTIFICATE = "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed"


@pytest.mark.parametrize("texts", [(CERTIFICATE, "lost"), ("lost", CERTIFICATE)])
def test_a_bad_certificate_leaves_the_verdict_on_the_next_lost_connection_alone(texts, monkeypatch):
    monkeypatch.setattr("redouble.classify._judged", {})
    for text in (*texts, *texts):
        assert verdict(ConnectionError(text)).retryable is (text == "lost")


@pytest.mark.parametrize("first", [0, 1, 2, 3])
def test_what_is_remembered_of_a_builtin_error_holds_for_every_other_of_its_kind(first, monkeypatch):
    monkeypatch.setattr("redouble.classify._judged", {})
    arguments = [(), ("lost",), (CERTIFICATE,), (errno.ECONNRESET, CERTIFICATE)]
    kinds = [
        kind for kind in vars(builtins).values() if isinstance(kind, type) and issubclass(kind, Exception)
    ]
    for args in arguments[first:] + arguments[:first]:
        for kind in kinds:
            if not issubclass(kind, (SyntaxError, UnicodeError, BaseExceptionGroup)):
                failure = kind(*args)
                assert verdict(failure) == Classifier()._examined(failure, None)


@pytest.mark.parametrize(
    "plain", [TimeoutError, ValueError, lambda: OSError(errno.ECONNRESET, "gone"), lambda: OSError()]
)
def test_a_builtin_error_that_carries_nothing_else_is_judged_once(plain, monkeypatch):
    monkeypatch.setattr("redouble.classify._judged", {})
    assert verdict(plain()) is verdict(plain())
    assert Classifier(permanent="a.B").verdict(plain()) is not verdict(plain())


@pytest.mark.parametrize(
    "error",
    [
        Failure(),
        OSError(54321, "nobody knows this number"),
        OSError([], "no number"),
        OSError(True, "no number"),
        OSError(104.0, "no number"),
        ExceptionGroup("both", [TimeoutError(), ValueError()]),
    ],
    ids=repr,
)
def test_what_comes_in_endless_variety_is_not_remembered(error, monkeypatch):
    monkeypatch.setattr("redouble.classify._judged", remembered := {})
    verdict(error)
    verdict((503, {}, b""))
    assert remembered == {}


def test_a_builtin_error_with_attributes_of_its_own_is_looked_at_anew():
    error = TimeoutError()
    assert verdict(error).cause is C.timeout
    error.response = Thing(status_code=404, headers={})
    assert verdict(error).cause is C.permanent
    assert verdict(TimeoutError()).cause is C.timeout


def test_a_thousand_verdicts_leave_nothing_to_the_garbage_collector():
    def judge():
        verdict(answered(503, H))
        verdict(
            ExceptionGroup("g", [urllib.error.URLError(OSError(113, "x")), caused(Flaky(), TimeoutError())])
        )
        repeatable(caused(Flaky(), Failure(request=sent("POST"))))

    judge()
    gc.collect()
    gc.disable()
    try:
        for _ in range(1000):
            judge()
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_classify_imports_nothing_that_costs():
    script = (
        "import sys; before = set(sys.modules); import redouble.classify; print(*set(sys.modules) - before)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    run = subprocess.run(
        [sys.executable, "-S", "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    dear = (
        "typing re dataclasses inspect logging datetime ssl socket asyncio http email sqlite3 smtplib urllib"
    )
    assert not set(dear.split()) & set(run.stdout.split())


def test_the_method_of_a_urllib_request_that_was_answered_is_known() -> None:
    import threading
    import urllib.error
    import urllib.request
    from http.server import BaseHTTPRequestHandler, HTTPServer

    class Broken(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(500)
            self.end_headers()

        do_GET = do_POST  # noqa: N815 - the name http.server asks for

        def log_message(self, *args: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Broken) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            for method, may_repeat in (("POST", False), ("GET", True)):
                request = urllib.request.Request(f"http://127.0.0.1:{server.server_port}/", method=method)
                with pytest.raises(urllib.error.HTTPError) as caught:
                    urllib.request.urlopen(request, timeout=5)
                caught.value.close()
                assert (request_method(caught.value), repeatable(caught.value)) == (method, may_repeat)
        finally:
            server.shutdown()
            thread.join()


def test_a_class_of_ones_own_is_taught_by_a_decorator() -> None:
    @transient
    class Busy(Exception):
        pass

    class VeryBusy(Busy):
        pass

    assert verdict(Busy()).retryable
    assert verdict(VeryBusy()).retryable
    assert not verdict(Exception()).retryable


@pytest.mark.parametrize("kind", [int, KeyboardInterrupt, "Busy", None])
def test_only_classes_of_exceptions_can_be_taught(kind: Any) -> None:
    with pytest.raises(TypeError) as caught:
        transient(kind)
    assert str(caught.value) == f"transient marks classes of Exception, got {kind!r}"


def test_a_builtin_class_cannot_be_taught_and_says_what_to_do() -> None:
    with pytest.raises(TypeError) as caught:
        transient(KeyError)
    assert str(caught.value) == (
        "KeyError cannot be marked, it is built in: policies take on=Classifier(transient=[KeyError])"
    )


def test_an_error_of_the_class_that_is_taught_comes_out_as_it_is() -> None:
    class Sealed(type):
        def __setattr__(cls, name: str, value: object) -> None:
            raise LookupError(name)

    class Busy(Exception, metaclass=Sealed):
        pass

    with pytest.raises(LookupError, match="retryable"):
        transient(Busy)
