"""What the tables know, held against stand-ins: classes with the names, attributes and methods of real ones.

No library is needed for it: names are looked up by ``__module__`` and ``__qualname__``, which anyone may set.
"""

from __future__ import annotations

import enum
import pickle
import ssl
import warnings
from datetime import timedelta
from types import SimpleNamespace as Thing

import pytest

from redouble import _catalogue, _classes, _codebook, _kinds
from redouble.classify import RETRYABLE_STATUSES, Cause, Classifier, accepted, explain, retry_after, verdict

C = Cause
NO, YES, SAFE = (False, False), (True, False), (True, True)


def stand_in(name, *bases, **attributes):
    """A class that calls itself ``package.module.Qualname``; with ``package:Nested.Name`` for nested ones."""
    module, _, qualname = name.rpartition(":") if ":" in name else name.rpartition(".")
    body = {"__module__": module, "__qualname__": qualname, **attributes}
    return type(qualname.rpartition(".")[2], bases or (Exception,), body)


def failure(name, *args, bases=(), **attributes):
    error = stand_in(name, *bases)(*args)
    error.__dict__.update(attributes)
    return error


def caused(error, cause):
    error.__cause__ = cause
    return error


def hidden(error, context):
    """As ``raise error from None`` inside ``except context``."""
    error.__context__, error.__suppress_context__ = context, True
    return error


def brief(error):
    found = verdict(error)
    return found.retryable, found.retryable and found.unprocessed


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
        T: "ServiceResponseError IncompleteReadError",
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
        T: "AutoReconnect ConnectionFailure",
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
    assert brief(failure(f"{package}.some.module:{name}")) == expected


def test_every_line_of_the_table_of_classes_is_written_down_twice():
    seldom = {"ssl": P, "urllib": T, "azure": T, "pymongo": T}
    listed = {f"{package}.{name}" for package, name, _ in ROWS}
    missing = {key.partition(".")[0] for key in set(_classes.CLASSES) - listed}
    assert missing <= set(seldom), "tested elsewhere: tls, ContentTooShortError and the timeouts below"
    assert brief(failure("azure.core.exceptions.ServiceResponseTimeoutError")) == T
    assert brief(failure("pymongo.errors.NetworkTimeout")) == T


def test_no_two_lines_of_a_package_name_the_same_class():
    for package, lines in _classes.PACKAGES.items():
        names = " ".join(lines.values()).split()
        assert sorted(names) == sorted(set(names)), package


def test_a_subclass_is_judged_as_its_nearest_base_in_the_table():
    authentication = stand_in(
        "redis.exceptions.AuthenticationError", stand_in("redis.exceptions.ConnectionError")
    )
    assert brief(authentication("WRONGPASS")) == NO
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
    assert brief(failure(f"{fork}.errors.{name}")) == expected


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
    assert brief(failure("requests.ConnectionError", spent)) == SAFE
    lost = failure("urllib3.ProtocolError", "Connection aborted.", ConnectionResetError())
    assert brief(failure("requests.ConnectionError", lost)) == YES
    broken = failure("urllib3.SSLError", CERTIFICATE)
    assert brief(failure("requests.SSLError", failure("urllib3.MaxRetryError", reason=broken))) == NO


def test_a_handshake_that_was_reset_was_never_sent():
    found = verdict(failure("aiohttp.ClientConnectorError", os_error=ConnectionResetError()))
    assert (found.retryable, found.unprocessed, found.cause) == (True, True, C.connection)


def test_a_missing_socket_deep_inside_a_connection_error_is_permanent():
    missing = failure("urllib3.ProtocolError", "Connection aborted.", FileNotFoundError(2, "no socket"))
    assert brief(failure("requests.ConnectionError", missing)) == NO


def test_what_a_pickle_leaves_of_a_certificate_error_is_recognized_by_its_text():
    found = verdict(
        failure("httpx.ConnectError", "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed")
    )
    assert (found.retryable, found.reason) == (False, "certificate verify failed inside ConnectError")


def test_a_wrapper_is_searched_for_better_evidence_though_it_says_itself_that_it_may_be_retried():
    inner = caused(failure("requests.ConnectionError"), ConnectionRefusedError())
    assert brief(caused(failure("stripe.APIConnectionError", should_retry=True), inner)) == SAFE


def test_stripe_alone_is_believed_that_an_error_is_not_to_be_retried():
    assert brief(failure("stripe.APIConnectionError", should_retry=False)) == NO
    refused = caused(
        failure("google.auth.exceptions.TransportError", retryable=False), ConnectionRefusedError()
    )
    assert brief(refused) == SAFE


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
    assert brief(wrapper) == SAFE


# SQL


def sql(code, name="somedriver.Error"):
    return failure(name, sqlstate=code)


SQLSTATES = {
    SAFE: "40001 40P01 40000 08001 08004 53000 53200 53300 55P03 55006 57P03 57P05 25P03 72000 HYT01",
    YES: "40003 08000 08003 08006 08007 08S01 57P01 57P02 HYT00",
    NO: "40002 08P01 53100 53400 57014 57P04 25P02 25006 22P02 23505 23P01 28P01 3D000 42P01 0A000 54000 58030 XX000",
}


@pytest.mark.parametrize(
    ("code", "expected"), [(code, row) for row, codes in SQLSTATES.items() for code in codes.split()]
)
def test_an_sqlstate_is_known_by_its_shape_whatever_package_it_comes_from(code, expected):
    assert brief(sql(code)) == expected
    assert brief(failure("another.Error", pgcode=code)) == expected
    assert verdict(sql(code)).reason.startswith(f"SQLSTATE {code}")


def test_every_sqlstate_of_the_table_is_tested():
    assert set(_codebook.SQLSTATES) <= set(" ".join(SQLSTATES.values()).split())


def test_the_reason_names_a_well_known_sqlstate():
    assert verdict(sql("40P01")).reason == "SQLSTATE 40P01 deadlock"
    assert verdict(sql("28P01")).cause is C.unauthorized


@pytest.mark.parametrize("code", ["HY000", "4000", "40p01", "40-01", "٤٠٠٠١", 40001, None, "", b"4000"])
def test_what_is_no_sqlstate_says_nothing(code):
    assert verdict(sql(code)).cause is C.unknown


def test_an_engines_number_comes_before_the_sqlstate():
    assert brief(failure("pymysql.err.OperationalError", 1203, "too many", sqlstate="42000")) == SAFE
    assert brief(failure("pymysql.err.OperationalError", 9999, "new", sqlstate="40001")) == SAFE


MYSQL = {
    SAFE: "1213 1205 3572 1206 1614 1637 3058 3101 1040 1203 2002 2003 2012 4031",
    YES: "2006 2013 2055 1053 1079 1080 1152 1158 1159 1160 1161 1184 1927 3168",
    NO: "1045 1044 1049 1062 1064 1129 1146 1317 3024 1290 1792 1836 2005 31337",
}


@pytest.mark.parametrize(
    ("number", "expected"), [(int(number), row) for row, codes in MYSQL.items() for number in codes.split()]
)
@pytest.mark.parametrize("package", ["pymysql", "aiomysql", "MySQLdb", "asyncmy", "mysql", "mariadb"])
def test_mysql_numbers(package, number, expected):
    args, attributes = ((), {"errno": number}) if package in ("mysql", "mariadb") else ((number, "text"), {})
    assert brief(failure(f"{package}.Error", *args, **attributes)) == expected


@pytest.mark.parametrize("args", [(1205, b"deadlock"), ((20009, b"cannot connect"),)])
def test_sql_server_numbers_come_plain_or_in_a_tuple(args):
    assert brief(failure("pymssql.OperationalError", *args)) == SAFE
    assert brief(failure("pymssql.OperationalError", 102, b"syntax")) == NO
    assert brief(failure("pymssql.OperationalError", ())) == NO


def test_other_clients_of_sql_server_and_odbc():
    assert brief(failure("pytds.OperationalError", "text", msg_no=40613)) == YES
    assert brief(failure("pyodbc.OperationalError", "08001", "[08001] no connection")) == SAFE
    assert brief(failure("pg8000.exceptions.DatabaseError", {"S": "ERROR", "C": "40001"})) == SAFE
    for number in _codebook.SQLSERVER:
        assert verdict(failure("pymssql.OperationalError", number)).retryable


@pytest.mark.parametrize(
    ("code", "expected"),
    [(code, SAFE) for code in ["ORA-00060", "ORA-08177", "ORA-12541", "ORA-12514", "ORA-12170"]]
    + [(code, YES) for code in ["ORA-03113", "ORA-03114", "ORA-03135", "DPY-4011"]]
    + [("ORA-00942", NO)],
)
def test_oracle_codes(code, expected):
    assert brief(failure("oracledb.DatabaseError", Thing(full_code=code, isrecoverable=False))) == expected


def test_oracle_is_believed_that_an_error_is_recoverable_but_not_that_it_is_not():
    assert brief(failure("cx_Oracle.DatabaseError", Thing(full_code="ORA-99999", isrecoverable=True))) == YES


LIBPQ = [
    ('connection to server at "h" failed: FATAL:  password authentication failed for user "u"', NO),
    ('connection to server at "h" failed: FATAL:  database "x" does not exist', NO),
    ("connection failed: no pg_hba.conf entry", NO),
    ("SSL error: certificate verify failed", NO),
    ('could not translate host name "h"', NO),
    ("failed to resolve host 'h'", NO),
    ("connection is bad: Name or service not known", NO),
    ('connection to server at "h" failed: FATAL:  sorry, too many clients already', SAFE),
    ('connection to server at "h" failed: FATAL:  the database system is starting up', SAFE),
    ("could not connect to server: Connection refused", SAFE),
    ("connection failed: server closed the connection unexpectedly", SAFE),
    ("timeout expired", SAFE),
    ("server closed the connection unexpectedly", YES),
    ("consuming input failed: EOF", YES),
    ("the connection is lost", YES),
    ("connection is bad: no error details available", YES),
    ("SSL connection has been closed unexpectedly", YES),
    ("terminating connection due to administrator command", YES),
    ("could not receive data from server", YES),
    ("something in another language", NO),
]


@pytest.mark.parametrize(("text", "expected"), LIBPQ)
@pytest.mark.parametrize("package", ["psycopg", "psycopg2"])
def test_postgresql_without_sqlstate_is_judged_by_its_text(package, text, expected):
    assert brief(failure(f"{package}.OperationalError", text)) == expected
    assert brief(failure(f"{package}.ProgrammingError", text)) == NO


def test_an_sqlstate_beats_the_text():
    assert brief(failure("psycopg.OperationalError", "server closed the connection", sqlstate="28P01")) == NO


# Other databases


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"{word} text", SAFE)
        for word in ["LOADING", "BUSY", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN", "NOREPLICAS", "READONLY"]
    ]
    + [
        (f"{word} text", NO)
        for word in ["WRONGTYPE", "NOAUTH", "WRONGPASS", "NOPERM", "NOSCRIPT", "MISCONF", "OOM", "EXECABORT"]
    ],
)
def test_an_error_reply_of_redis_is_judged_by_its_first_word(text, expected):
    reply = stand_in("redis.exceptions.ResponseError", stand_in("redis.exceptions.RedisError"))
    assert brief(reply(text)) == expected
    assert verdict(reply(text)).status is None


def test_redis_says_in_words_that_it_never_connected():
    assert brief(failure("redis.TimeoutError", "Timeout connecting to server")) == SAFE
    assert brief(failure("redis.TimeoutError", "Timeout reading from socket")) == YES
    assert brief(failure("redis.ConnectionError", "max number of clients reached")) == SAFE
    refused = failure("redis.ConnectionError", "Error 111 connecting to h:6379.")
    assert brief(hidden(refused, ConnectionRefusedError())) == SAFE
    unknown_name = failure("redis.ConnectionError", "Error -2 connecting to h:6379.")
    assert brief(hidden(unknown_name, FileNotFoundError())) == NO


def mongo(*labels, code=None):
    kind = stand_in("pymongo.errors.OperationFailure", stand_in("pymongo.errors.PyMongoError"))
    error = kind("text")
    error.code, error.has_error_label = code, labels.__contains__
    return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (mongo("TransientTransactionError"), SAFE),
        (mongo("RetryableWriteError", code=189), YES),
        (mongo("UnknownTransactionCommitResult"), YES),
        (mongo("SystemOverloadedError", "RetryableError"), SAFE),
        (mongo("SystemOverloadedError"), NO),
        (mongo(code=112), SAFE),
        *[
            (mongo(code=code), YES)
            for code in (6, 7, 89, 91, 134, 189, 262, 9001, 10058, 10107, 11600, 11602)
        ],
        *[(mongo(code=code), YES) for code in (13435, 13436)],
        *[(mongo(code=code), NO) for code in (18, 462, 503, 11000)],
    ],
    ids=range(24),
)
def test_mongodb_is_judged_by_labels_and_codes_and_never_by_http(error, expected):
    assert brief(error) == expected
    assert verdict(error).status is None


def test_a_write_that_was_applied_is_not_repeated_whatever_its_labels():
    applied = type(mongo())
    late = stand_in("pymongo.errors.WTimeoutError", applied)("text")
    late.has_error_label = lambda _: True
    assert brief(late) == NO


# The network


@pytest.mark.parametrize(
    ("code", "expected"),
    [(code, SAFE) for code in (5, 6, 7)]
    + [(code, YES) for code in (16, 18, 28, 52, 55, 56, 92)]
    + [(code, NO) for code in (1, 3, 35, 47, 60, 61, 77)],
)
def test_curl_codes(code, expected):
    assert brief(failure("pycurl.error", code, "text")) == expected
    empty = Thing(status_code=0, headers={})
    assert brief(failure("curl_cffi.requests.exceptions.X", "text", code=code, response=empty)) == expected


def test_a_curl_timeout_on_connecting_was_never_sent_and_a_code_of_zero_is_an_answer():
    assert brief(failure("pycurl.error", 28, "Connection timed out after 1 ms")) == SAFE
    assert brief(failure("pycurl.error", 28, "Operation timed out after 1 ms")) == YES
    answer = Thing(status_code=503, headers={})
    assert verdict(failure("curl_cffi.requests.HTTPError", code=0, response=answer)).status == 503


@pytest.mark.parametrize(
    ("code", "expected"),
    [(code, YES) for code in (1001, 1005, 1006, 1011, 1012, 1013, 1014)]
    + [(code, NO) for code in (1000, 1002, 1003, 1007, 1008, 1009, 1010, 1015)],
)
def test_websocket_close_codes(code, expected):
    assert brief(failure("websockets.exceptions.ConnectionClosed", rcvd=Thing(code=code))) == expected


def test_a_websocket_that_closed_without_a_word_was_lost():
    assert (
        verdict(failure("websockets.exceptions.ConnectionClosed", rcvd=None)).reason == "WebSocket close 1006"
    )


@pytest.mark.parametrize(
    ("code", "expected"), [(320, YES), (541, YES), *[(c, NO) for c in (403, 404, 405, 406, 530)]]
)
@pytest.mark.parametrize("name", ["pika.exceptions.ConnectionClosedByBroker", "amqp.exceptions.X"])
def test_amqp_reply_codes_are_no_http_statuses(name, code, expected):
    error = failure(name, reply_code=code)
    assert brief(error) == expected
    assert verdict(error).status is None


def test_ldap_results():
    assert brief(failure("ldap3.core.exceptions.X", result=51)) == SAFE
    assert brief(failure("ldap3.core.exceptions.X", result=52)) == SAFE
    assert verdict(failure("ldap3.core.exceptions.X", result=49)).cause is C.unauthorized


def test_http2_says_in_its_text_alone_that_a_stream_was_refused():
    reset = "<StreamReset stream_id:1, error_code:{}, remote_reset:True>"
    kind = stand_in("httpx.RemoteProtocolError", stand_in("httpx.ProtocolError"))
    assert brief(kind(reset.format(7))) == SAFE
    assert brief(kind(reset.format(11))) == YES
    assert brief(stand_in("httpcore.RemoteProtocolError", stand_in("httpcore.ProtocolError"))()) == YES


def test_retries_that_urllib3_gave_up_are_judged_by_what_it_says_of_them():
    def spent(text):
        return failure("urllib3.MaxRetryError", reason=failure("urllib3.ResponseError", text))

    assert brief(spent("too many 503 error responses")) == YES
    assert brief(spent("too many 404 error responses")) == NO
    assert brief(spent("too many redirects")) == NO
    assert brief(spent("unexpected")) == YES
    assert brief(spent("too many")) == YES


def test_ssh_is_judged_by_its_text():
    assert brief(failure("paramiko.SSHException", "Error reading SSH protocol banner")) == SAFE
    assert brief(failure("paramiko.SSHException", "SSH session not active")) == YES
    assert brief(failure("paramiko.SSHException", "Key cannot be used")) == NO


# Services

Code = enum.Enum("StatusCode", {name: (number, name.lower()) for number, name in enumerate(_codebook.GRPC)})


def grpc(name, details="", metadata=()):
    body = {
        "code": lambda _: Code[name],
        "details": lambda _: details,
        "trailing_metadata": lambda _: metadata,
    }
    return stand_in("grpc._channel._InactiveRpcError", **body)()


GRPC = {
    SAFE: "RESOURCE_EXHAUSTED ABORTED",
    YES: "UNAVAILABLE DEADLINE_EXCEEDED INTERNAL",
    NO: "UNKNOWN CANCELLED DATA_LOSS INVALID_ARGUMENT NOT_FOUND ALREADY_EXISTS PERMISSION_DENIED UNAUTHENTICATED"
    " FAILED_PRECONDITION OUT_OF_RANGE UNIMPLEMENTED",
}


@pytest.mark.parametrize(
    ("name", "expected"), [(name, row) for row, names in GRPC.items() for name in names.split()]
)
def test_grpc_codes(name, expected):
    assert brief(grpc(name)) == expected
    assert verdict(grpc(name)).reason == f"gRPC {name}"
    assert brief(failure("grpclib.exceptions.GRPCError", status=Code[name], message=None)) == expected
    assert brief(failure("google.api_core.exceptions.X", grpc_status_code=Code[name])) == expected


@pytest.mark.parametrize(
    ("name", "details", "expected"),
    [
        ("UNAVAILABLE", "failed to connect to all addresses; last error: refused", SAFE),
        ("UNAVAILABLE", "errors resolving x", SAFE),
        ("UNAVAILABLE", "DNS resolution failed for x", SAFE),
        ("UNAVAILABLE", "empty address list: ", SAFE),
        ("UNAVAILABLE", "Received RST_STREAM with error code 7", SAFE),
        ("UNAVAILABLE", "failed to connect to all addresses: CERTIFICATE_VERIFY_FAILED", NO),
        ("UNAVAILABLE", "Socket closed", YES),
        ("RESOURCE_EXHAUSTED", "Received message larger than max (9 vs. 4)", NO),
    ],
)
def test_grpc_details_tell_whether_anything_was_sent(name, details, expected):
    assert brief(grpc(name, details)) == expected


@pytest.mark.parametrize(
    ("value", "expected", "delay"),
    [("250", YES, 0.25), ("0", YES, 0), (b"1500", YES, 1.5), ("-1", NO, None), ("soon", NO, None), ("", NO, None),
     ("9" * 30, NO, None), ("2147483648", NO, None), (7, NO, None)],
)  # fmt: skip
def test_grpc_pushback_is_a_delay_or_the_word_not_to_retry(value, expected, delay):
    found = verdict(grpc("UNAVAILABLE", metadata=(("grpc-retry-pushback-ms", value),)))
    assert ((found.retryable, found.unprocessed), found.retry_after) == (expected, delay)


def field(number, value):
    """One field in the wire format of protocol buffers."""
    if isinstance(value, int):
        digits = []
        while value > 0x7F:
            digits.append(value & 0x7F | 0x80)
            value >>= 7
        return bytes([number << 3, *digits, value])
    return bytes([number << 3 | 2, len(value)]) + value


def status(*details, code=14):
    return field(1, code) + field(2, b"message") + b"".join(field(3, detail) for detail in details)


def retry_info(seconds, nanos=0):
    duration = (field(1, seconds) if seconds else b"") + (field(2, nanos) if nanos else b"")
    return field(1, b"type.googleapis.com/google.rpc.RetryInfo") + field(2, field(1, duration))


OTHER = field(1, b"type.googleapis.com/google.rpc.ErrorInfo") + field(2, b"\x0a\x01x")
FIXED = bytes([9 << 3 | 1, *range(8)]) + bytes([10 << 3 | 5, *range(4)])


@pytest.mark.parametrize(
    ("value", "delay"),
    [
        (status(retry_info(34)), 34),
        (status(OTHER, retry_info(1, 500_000_000)), 1.5),
        (FIXED + status(retry_info(300)), 300),
        (status(retry_info(0)), 0),
        (status(OTHER), None),
        (status(retry_info(34))[:-1], None),
        (status(retry_info(2**63)), None),
        (status(field(1, b"google.rpc.RetryInfo") + field(2, field(1, 7))), None),
        (status(field(1, b"google.rpc.RetryInfo") + field(2, b"")), None),
        (field(3, 7), None),
        (b"", None),
        (b"\xff" * 20, None),
        (b"\x0f", None),
        (b"\x08" * 4000, None),
        (status(retry_info(34)) + bytes(10_000), None),
        ("text", None),
    ],
    ids=range(16),
)
def test_retry_info_is_read_from_the_details_of_a_grpc_status(value, delay):
    found = verdict(grpc("UNAVAILABLE", metadata=[("x", "y"), ("grpc-status-details-bin", value)]))
    assert (found.retryable, found.retry_after) == (True, delay)


@pytest.mark.parametrize("metadata", [None, 7, [1, (2,), ("a", "b", "c")], "text", [(None, None)]])
def test_metadata_of_another_shape_says_nothing(metadata):
    assert brief(grpc("UNAVAILABLE", metadata=metadata)) == YES


def test_a_grpc_error_without_a_code_is_unknown():
    for error in (failure("grpc.RpcError"), failure("grpclib.X"), failure("google.X", grpc_status_code=7)):
        assert verdict(error).cause is C.unknown
    raising = stand_in("grpc.RpcError", code=lambda _: 1 / 0)()
    assert verdict(raising).cause is C.unknown


def test_google_hands_retry_info_on_decoded_and_keeps_its_http_status():
    wait = stand_in("google.rpc.error_details_pb2.RetryInfo", object)()
    wait.retry_delay = Thing(seconds=2, nanos=500_000_000)
    bad = stand_in("google.rpc.error_details_pb2.RetryInfo", object)()
    error = failure("google.api_core.exceptions.Aborted", grpc_status_code=Code.ABORTED, code=409, headers={})
    error.details = [object(), bad, wait]
    found = verdict(error)
    assert (found.retryable, found.status, found.retry_after) == (True, 409, 2.5)
    assert found.reason == "gRPC ABORTED with RetryInfo of 2.5"


def test_google_limits_with_a_403_and_a_reason():
    def answered(*reasons):
        resp = {"status": "403", "retry-after": "9"}
        details = [{"reason": reason} for reason in reasons]
        return failure("googleapiclient.errors.HttpError", resp=resp, status_code=403, error_details=details)

    assert verdict(answered("userRateLimitExceeded")).cause is C.rate_limited
    assert brief(answered("forbidden")) == NO
    assert brief(answered()) == NO
    assert brief(failure("googleapiclient.errors.HttpError", status_code=403, error_details="text")) == NO


def boto(code, http_status=400, **headers):
    metadata = {"HTTPStatusCode": http_status, "HTTPHeaders": headers}
    return {"Error": {"Code": code, "Message": "m"}, "ResponseMetadata": metadata}


AWS = {
    SAFE: "Throttling ThrottlingException ThrottledException RequestThrottledException TooManyRequestsException"
    " ProvisionedThroughputExceededException TransactionInProgressException RequestLimitExceeded SlowDown"
    " BandwidthLimitExceeded LimitExceededException RequestThrottled PriorRequestNotComplete EC2ThrottledException",
    YES: "RequestTimeout RequestTimeoutException InternalError InternalFailure InternalServerError ServiceUnavailable",
    NO: "AccessDenied ValidationException 404",
}


@pytest.mark.parametrize(
    ("code", "expected"), [(code, row) for row, codes in AWS.items() for code in codes.split()]
)
def test_an_aws_code_beats_its_http_status(code, expected):
    error = failure("botocore.errorfactory.Made", response=boto(code))
    assert brief(error) == expected
    assert verdict(error).status == 400
    assert accepted(boto(code)) is not expected[0]


def test_an_aws_answer_keeps_its_delay_and_one_without_a_known_code_is_judged_by_its_status():
    found = verdict(
        failure(
            "botocore.exceptions.ClientError", response=boto("SlowDown", 503, **{"x-amz-retry-after": "250"})
        )
    )
    assert (found.status, found.retry_after, found.reason) == (503, 0.25, "AWS SlowDown")
    assert brief(failure("botocore.exceptions.ClientError", response=boto("502", 502))) == YES
    assert brief(failure("botocore.exceptions.ClientError", response={})) == NO


@pytest.mark.parametrize(
    ("attributes", "retryable"),
    [
        ({"code": "insufficient_quota"}, False),
        ({"body": {"code": "insufficient_quota"}}, False),
        ({"body": {"error": {"code": "billing_hard_limit_reached"}}}, False),
        ({"code": "rate_limit_exceeded", "body": {"code": None}}, True),
        ({"code": None, "body": "text"}, True),
        ({}, True),
    ],
)
def test_a_limit_that_no_wait_cures_is_not_retried(attributes, retryable):
    answer = Thing(status_code=429, headers={"Retry-After": "7"})
    found = verdict(failure("openai.RateLimitError", response=answer, status_code=429, **attributes))
    assert (found.retryable, found.status, found.cause) == (retryable, 429, C.rate_limited)
    assert found.retry_after == (7 if retryable else None)


def test_the_code_of_aiohttp_which_warns_is_not_read():
    def warns(_):
        raise AssertionError("was read")

    kind = stand_in("aiohttp.ClientResponseError", code=property(warns))
    error = kind()
    error.status, error.headers = 429, {}
    assert verdict(error).status == 429


# Kafka


def test_kafka_says_itself_what_is_retriable():
    assert brief(failure("kafka.errors.NodeNotReadyError", retriable=True, errno=5)) == YES
    assert brief(failure("kafka.errors.MessageSizeTooLargeError", retriable=False, errno=10)) == NO
    assert brief(failure("aiokafka.errors.KafkaTimeoutError", retriable=False)) == YES


def librdkafka(name, fatal=False, retriable=False):
    error = Thing(name=lambda: name, fatal=lambda: fatal, retriable=lambda: retriable)
    return failure("cimpl.KafkaException", error)


def test_librdkafka_is_judged_by_the_name_of_its_error():
    for name, row in _codebook.KAFKA.items():
        assert brief(librdkafka(name)) == (True, row.unprocessed)
        assert brief(librdkafka(name, fatal=True)) == NO
    assert brief(librdkafka("_AUTHENTICATION")) == NO
    assert brief(librdkafka("NEW_ERROR", retriable=True)) == YES
    assert verdict(failure("confluent_kafka.KafkaException")).cause is C.unknown


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


# Classifiers made of others, and the protocol for libraries


class Busy(Exception):
    pass


def test_a_classifier_is_extended_without_changing_the_first():
    first = Classifier(transient=["company.Busy"])
    second = first.extend(statuses=[404], transient=[Busy], unprocessed=[KeyError], permanent=[TimeoutError])
    assert first == Classifier(transient=["company.Busy"])
    assert second.statuses == RETRYABLE_STATUSES | {404}
    assert second.transient == {"company.Busy", Busy}
    assert second.verdict(KeyError()).unprocessed
    assert not second.verdict(TimeoutError()).retryable
    assert pickle.loads(pickle.dumps(second)) == second


def test_what_is_named_anew_counts():
    patient = Classifier(permanent=[Busy]).extend(transient=[Busy])
    assert (patient.transient, patient.permanent) == ({Busy}, frozenset())
    assert patient.extend() == patient
    with pytest.raises(ValueError, match="permanent must not name"):
        patient.extend(transient=[KeyError], permanent=[KeyError])
    with pytest.raises(TypeError, match="transient takes types of Exception"):
        patient.extend(transient=[7])


def test_an_error_may_say_that_it_is_retryable_and_when():
    class Ours(Exception):
        retryable = True

    assert verdict(Ours()).retryable
    error = Ours()
    error.retry_after = 2.5
    assert (verdict(error).retry_after, verdict(error).unprocessed) == (2.5, True)
    error = caused(failure("library.Error", retryable=False), ConnectionResetError())
    assert verdict(error).retryable, (
        "a refusal is weak evidence: several libraries say it of any lost connection"
    )


# Why


def test_the_explanation_names_the_rule_and_what_was_looked_at():
    refused = caused(failure("httpx.ConnectError"), ConnectionRefusedError())
    assert explain(caused(failure("openai.APIConnectionError"), refused)).splitlines() == [
        "retryable, cause connection, unprocessed: ConnectionRefusedError inside ConnectError inside APIConnectionError",
        "APIConnectionError: nothing decides; openai.APIConnectionError is a wrapper; looked inside",
        "  ConnectError: nothing decides; httpx.ConnectError is a wrapper; looked inside",
        "    ConnectionRefusedError: operating system decides; no own error, code, HTTP status, class, own word",
    ]


@pytest.mark.parametrize(
    ("thing", "lines"),
    [
        ((503, {"Retry-After": "7"}, b""), [
            "retryable, cause unavailable, unprocessed, retry after 7 s: HTTP 503 with Retry-After: 7",
            "tuple: HTTP status 503 decides",
        ]),
        ("page", ["not retryable, cause unknown: no failed response", "str: no response"]),
        (failure("json.decoder.JSONDecodeError"), [
            "not retryable, cause permanent: JSONDecodeError",
            "JSONDecodeError: class decides (json.JSONDecodeError); no own error, code, HTTP status",
        ]),
        (ExceptionGroup("g", [ValueError()]), [
            "not retryable, cause unknown: ValueError: nothing is known about it in a group of 1",
            "ExceptionGroup: a group of 1, retryable if all of them are",
            "  ValueError: nothing decides; looked inside",
        ]),
        (KeyboardInterrupt(), ["not retryable, cause permanent: KeyboardInterrupt is not a failure"]),
    ],
)  # fmt: skip
def test_every_kind_of_failure_can_be_explained(thing, lines):
    assert explain(thing).splitlines() == lines


def test_a_classifier_explains_its_own_verdicts():
    assert Classifier(transient=[Busy]).explain(Busy()).startswith("retryable, cause unknown: Busy is listed")


def test_an_explanation_that_fails_is_no_error(monkeypatch):
    monkeypatch.setattr("redouble._explain.Told._tell", lambda *_: 1 / 0)
    assert explain(Busy()).endswith("could not be looked at: ZeroDivisionError")


# What is remembered about classes


def test_a_class_that_is_gone_is_not_mistaken_for_another_at_its_place(monkeypatch):
    monkeypatch.setattr(_kinds, "_known", {})
    kind = stand_in("httpx.ReadTimeout")
    _kinds._known[id(kind)] = (lambda: None), _kinds.Kind(ValueError)
    assert verdict(kind()).retryable


def test_classes_made_at_run_time_are_not_kept_alive_nor_remembered_without_end(monkeypatch):
    monkeypatch.setattr(_kinds, "_MOST_KINDS", 10)
    monkeypatch.setattr(_kinds, "_known", {})
    for _ in range(35):
        verdict(stand_in("botocore.errorfactory.Made")())
        assert len(_kinds._known) <= 10


def test_the_tables_hold_rows_of_every_kind_apart():
    rows = [value for value in vars(_catalogue).values() if isinstance(value, _catalogue.Row)]
    assert len(rows) == len(set(rows)), "two names for one row would overwrite each other's lines"


def test_the_text_of_an_error_is_its_first_argument_that_is_a_text():
    assert brief(failure("httpx.ConnectError", object(), "CERTIFICATE_VERIFY_FAILED")) == NO
    assert brief(failure("httpx.ConnectError", object())) == SAFE


class RetryAfter(Exception):
    """As that of python-telegram-bot, whose attribute warns when it is read."""

    __slots__ = ("_retry_after",)

    @property
    def retry_after(self):
        warnings.warn("retry_after will be a timedelta", DeprecationWarning, stacklevel=2)
        return 7


@pytest.mark.parametrize("action", ["error", "always"])
def test_the_delay_of_an_attribute_that_warns_is_read_without_the_warning(action):
    error = RetryAfter()
    error._retry_after = timedelta(seconds=7)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter(action)
        for found in (error, ExceptionGroup("g", [error])):
            assert verdict(found).retry_after == retry_after(found) == 7
            assert "retry after 7 s" in explain(found)
    assert caught == []


def test_attributes_of_a_closed_websocket_that_warn_are_not_read():
    read = []
    kind = stand_in("websockets.exceptions.ConnectionClosed", code=property(read.append))
    closed = stand_in("websockets.exceptions.ConnectionClosedError", kind)()
    closed.rcvd = Thing(code=1013)
    assert verdict(closed).retryable
    assert read == []
