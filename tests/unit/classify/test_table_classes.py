"""Verdicts on classes, of the standard library and by the names of those of client libraries."""

from __future__ import annotations

import asyncio
import concurrent.futures
import ftplib
import http
import http.client
import imaplib
import json
import multiprocessing
import poplib
import smtplib
import sqlite3
import subprocess
import urllib.error
import xmlrpc.client

import pytest

from redouble.classify import (
    Cause,
    verdict,
)
from redouble.classify import _table_classes as _classes
from support.failures import NO, SAFE, YES, brief, failure, safety, stand_in

C = Cause


# Classes: the appendix of names, written down a second time.

P, T, S = NO, YES, SAFE
NAMES = {
    "requests": {
        P: "ContentDecodingError TooManyRedirects InvalidURL MissingSchema InvalidSchema InvalidHeader"
        " JSONDecodeError InvalidJSONError StreamConsumedError UnrewindableBodyError RequestException SSLError",
        T: "ReadTimeout Timeout ChunkedEncodingError ProxyError ConnectionError RetryError",
        S: "ConnectTimeout",
    },
    "urllib3": {
        P: "ClosedPoolError LocationValueError DecodeError HTTPError SSLError",
        T: "ReadTimeoutError IncompleteRead TimeoutError ProtocolError ProxyError MaxRetryError",
        S: "EmptyPoolError NameResolutionError NewConnectionError ConnectTimeoutError",
    },
    "httpx": {
        P: "LocalProtocolError UnsupportedProtocol DecodingError TooManyRedirects InvalidURL",
        T: "ReadTimeout WriteTimeout TimeoutException NetworkError ProtocolError TransportError",
        S: "PoolTimeout ConnectTimeout ConnectError ProxyError",
    },
    "httpcore": {
        P: "LocalProtocolError UnsupportedProtocol",
        T: "ReadTimeout WriteTimeout TimeoutException NetworkError ProtocolError",
        S: "PoolTimeout ConnectionNotAvailable ConnectTimeout ConnectError ProxyError",
    },
    "aiohttp": {
        P: "ClientConnectorCertificateError ServerFingerprintMismatch ContentTypeError TooManyRedirects InvalidURL"
        " NonHttpUrlClientError ContentEncodingError",
        T: "SocketTimeoutError ServerTimeoutError ServerDisconnectedError ClientOSError PayloadEncodingError"
        " ClientConnectionError ClientPayloadError",
        S: "ConnectionTimeoutError ClientConnectorError",
    },
    "http": {P: "LineTooLong HTTPException", T: "RemoteDisconnected BadStatusLine IncompleteRead"},
    "urllib": {P: "URLError"},
    "asyncio": {P: "LimitOverrunError", T: "IncompleteReadError TimeoutError"},
    "subprocess": {P: "CalledProcessError", T: "TimeoutExpired"},
    "multiprocessing": {P: "ProcessError", T: "TimeoutError"},
    "smtplib": {T: "SMTPServerDisconnected"},
    "ftplib": {P: "Error", T: "error_temp"},
    "imaplib": {P: "IMAP4.error", T: "IMAP4.abort"},
    "poplib": {P: "error_proto"},
    "json": {P: "JSONDecodeError"},
    "concurrent": {T: "TimeoutError"},
    "xmlrpc": {P: "Fault"},
    "botocore": {
        P: "BotoCoreError SSLError",
        T: "ReadTimeoutError ConnectionClosedError ResponseStreamingError IncompleteReadError HTTPClientError",
        S: "ConnectTimeoutError EndpointConnectionError ProxyConnectionError",
    },
    "openai": {T: "APITimeoutError APIConnectionError"},
    "stripe": {T: "APIConnectionError"},
    "azure": {
        T: "ServiceResponseError ServiceResponseTimeoutError IncompleteReadError",
        S: "ServiceBusServerBusyError ServiceRequestError",
    },
    "elastic_transport": {P: "TlsError", T: "ConnectionTimeout ConnectionError"},
    "opensearchpy": {P: "SSLError", T: "ConnectionTimeout ConnectionError"},
    "google": {P: "RefreshError", T: "TransportError RetryError"},
    "httplib2": {S: "ServerNotFoundError"},
    "sqlalchemy": {S: "TimeoutError"},
    "psycopg": {S: "ConnectionTimeout PoolTimeout"},
    "psycopg_pool": {S: "PoolTimeout TooManyRequests"},
    "asyncpg": {P: "InterfaceError"},
    "redis": {
        P: "AuthenticationError AuthorizationError RedisError ResponseError",
        T: "TimeoutError ConnectionError",
        S: "MaxConnectionsError BusyLoadingError TryAgainError ClusterDownError AskError ReadOnlyError WatchError",
    },
    "pymongo": {
        P: "WTimeoutError DuplicateKeyError BulkWriteError ExecutionTimeout PyMongoError OperationFailure",
        T: "AutoReconnect ConnectionFailure NetworkTimeout",
        S: "ServerSelectionTimeoutError WaitQueueTimeoutError",
    },
    "pika": {
        P: "ProbableAuthenticationError ProbableAccessDeniedError AMQPError",
        T: "IncompatibleProtocolError StreamLostError AMQPConnectionError",
        S: "AMQPConnectorStackTimeout AMQPConnectorSocketConnectError",
    },
    "paramiko": {
        P: "AuthenticationException BadHostKeyException ChannelException SSHException",
        S: "NoValidConnectionsError",
    },
    "ldap3": {
        P: "LDAPException",
        T: "LDAPSessionTerminatedByServerError LDAPSocketReceiveError LDAPSocketSendError",
        S: "LDAPBusyResult LDAPUnavailableResult LDAPSocketOpenError",
    },
    "discord": {S: "RateLimited"},
    "qdrant_client": {S: "ResourceExhaustedResponse"},
    "websockets": {P: "InvalidURI", T: "InvalidMessage"},
    "kombu": {T: "OperationalError"},
    "celery": {P: "TaskPredicate CeleryError", T: "TimeoutError"},
    "billiard": {P: "SoftTimeLimitExceeded TimeLimitExceeded", T: "WorkerLostError"},
    "snowflake": {
        T: "ServiceUnavailableError GatewayTimeoutError BadGatewayError InternalServerError RequestTimeoutError",
        S: "TooManyRequests",
    },
    "trino": {T: "Http502Error Http503Error Http504Error TrinoConnectionError"},
    "grpc": {T: "FutureTimeoutError"},
    "trio": {T: "TooSlowError BrokenResourceError"},
    "anyio": {T: "BrokenResourceError EndOfStream"},
    "asyncssh": {P: "PermissionDenied HostKeyNotVerifiable", T: "ConnectionLost"},
    # More of the kind
    "amqp": {T: "RecoverableConnectionError RecoverableChannelError"},
    "cassandra": {T: "OperationTimedOut ReadTimeout WriteTimeout", S: "Unavailable NoHostAvailable"},
    "databricks": {
        P: "DataLoss",
        T: "TemporarilyUnavailable InternalError DeadlineExceeded Aborted",
        S: "TooManyRequests",
    },
    "hvac": {T: "VaultDown InternalServerError", S: "RateLimitExceeded"},
    "kafka": {T: "KafkaTimeoutError KafkaConnectionError"},
    "ldap": {T: "SERVER_DOWN TIMEOUT", S: "BUSY UNAVAILABLE"},
    "nats": {T: "TimeoutError ConnectionClosedError StaleConnectionError", S: "NoServersError"},
    "neo4j": {T: "SessionExpired ServiceUnavailable", S: "TransientError"},
    "tornado": {T: "StreamClosedError WebSocketClosedError"},
    "telegram": {P: "BadRequest", T: "TimedOut NetworkError", S: "RetryAfter"},
    "websocket": {T: "WebSocketConnectionClosedException WebSocketTimeoutException"},
}
ROWS = [
    (package, name, expected)
    for package, lines in NAMES.items()
    for expected, names in lines.items()
    for name in names.split()
]


@pytest.mark.parametrize(("package", "name", "expected"), ROWS)
def test_a_class_that_carries_nothing_else_is_judged_by_its_name(package, name, expected):
    assert safety(failure(f"{package}.some.module:{name}")) == expected


def test_every_line_of_the_table_of_classes_is_written_down_twice():
    listed = {f"{package}.{name}" for package, name, _ in ROWS}
    # Those of TLS and ContentTooShortError are tested elsewhere.
    listed |= {key for key in _classes.CLASSES if key.startswith("ssl.")} | {"urllib.ContentTooShortError"}
    assert set(_classes.CLASSES) - listed == set(), "add them to NAMES above"


def test_no_package_is_in_two_of_the_dicts():
    dicts = {
        name: getattr(_classes, name)
        for name in ("_STANDARD_LIBRARY", "_HTTP_CLIENTS", "_SERVICES", "_DATABASES", "_MESSAGING_AND_SHELLS")
    }
    homes = {package: [name for name in dicts if package in dicts[name]] for package in _classes.PACKAGES}
    trouble = {package: names for package, names in homes.items() if len(names) != 1}
    assert trouble == {}, "the last of the dicts counts: put all lines of a package into one"


def test_no_two_lines_of_a_package_name_the_same_class():
    for package, lines in _classes.PACKAGES.items():
        names = " ".join(lines.values()).split()
        assert sorted(names) == sorted(set(names)), package


def test_a_subclass_is_judged_as_its_nearest_base_in_the_table():
    authentication = stand_in(
        "redis.exceptions.AuthenticationError", stand_in("redis.exceptions.ConnectionError")
    )
    assert safety(authentication("WRONGPASS")) == NO
    assert verdict(type("Own", (authentication,), {})()).cause is C.unauthorized


@pytest.mark.parametrize(
    ("fork", "name", "expected"),
    [
        ("httpx2", "ConnectError", SAFE), ("httpcore2", "ReadTimeout", YES), ("niquests", "ConnectTimeout", SAFE),
        ("urllib3_future", "NewConnectionError", SAFE), ("valkey", "BusyLoadingError", SAFE),
        ("anthropic", "APIConnectionError", YES), ("groq", "APITimeoutError", YES), ("aioredis", "WatchError", SAFE),
        ("aiokafka", "KafkaTimeoutError", YES),
    ],
)  # fmt: skip
def test_a_fork_means_what_the_original_means(fork, name, expected):
    assert safety(failure(f"{fork}.errors.{name}")) == expected


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
