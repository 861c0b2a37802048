"""Verdicts on the codes of databases, protocols and services."""

from __future__ import annotations

import enum
from types import SimpleNamespace as Thing

import pytest

from redouble.classify import (
    Cause,
    accepted,
    verdict,
)
from redouble.classify import _table_codes as _codebook
from support.failures import NO, SAFE, YES, boto, failure, hidden, safety, stand_in

C = Cause


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
    assert safety(sql(code)) == expected
    assert safety(failure("another.Error", pgcode=code)) == expected
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
    assert safety(failure("pymysql.err.OperationalError", 1203, "too many", sqlstate="42000")) == SAFE
    assert safety(failure("pymysql.err.OperationalError", 9999, "new", sqlstate="40001")) == SAFE


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
    assert safety(failure(f"{package}.Error", *args, **attributes)) == expected


@pytest.mark.parametrize("args", [(1205, b"deadlock"), ((20009, b"cannot connect"),)])
def test_sql_server_numbers_come_plain_or_in_a_tuple(args):
    assert safety(failure("pymssql.OperationalError", *args)) == SAFE
    assert safety(failure("pymssql.OperationalError", 102, b"syntax")) == NO
    assert safety(failure("pymssql.OperationalError", ())) == NO


def test_other_clients_of_sql_server_and_odbc():
    assert safety(failure("pytds.OperationalError", "text", msg_no=40613)) == YES
    assert safety(failure("pyodbc.OperationalError", "08001", "[08001] no connection")) == SAFE
    assert safety(failure("pg8000.exceptions.DatabaseError", {"S": "ERROR", "C": "40001"})) == SAFE
    for number in _codebook.SQLSERVER:
        assert verdict(failure("pymssql.OperationalError", number)).retryable


@pytest.mark.parametrize(
    ("code", "expected"),
    [(code, SAFE) for code in ["ORA-00060", "ORA-08177", "ORA-12541", "ORA-12514", "ORA-12170"]]
    + [(code, YES) for code in ["ORA-03113", "ORA-03114", "ORA-03135", "DPY-4011"]]
    + [("ORA-00942", NO)],
)
def test_oracle_codes(code, expected):
    assert safety(failure("oracledb.DatabaseError", Thing(full_code=code, isrecoverable=False))) == expected


def test_oracle_is_believed_that_an_error_is_recoverable_but_not_that_it_is_not():
    assert safety(failure("cx_Oracle.DatabaseError", Thing(full_code="ORA-99999", isrecoverable=True))) == YES


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
    assert safety(failure(f"{package}.OperationalError", text)) == expected
    assert safety(failure(f"{package}.ProgrammingError", text)) == NO


def test_an_sqlstate_beats_the_text():
    assert safety(failure("psycopg.OperationalError", "server closed the connection", sqlstate="28P01")) == NO


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
    assert safety(reply(text)) == expected
    assert verdict(reply(text)).status is None


def test_redis_says_in_words_that_it_never_connected():
    assert safety(failure("redis.TimeoutError", "Timeout connecting to server")) == SAFE
    assert safety(failure("redis.TimeoutError", "Timeout reading from socket")) == YES
    assert safety(failure("redis.ConnectionError", "max number of clients reached")) == SAFE
    refused = failure("redis.ConnectionError", "Error 111 connecting to h:6379.")
    assert safety(hidden(refused, ConnectionRefusedError())) == SAFE
    unknown_name = failure("redis.ConnectionError", "Error -2 connecting to h:6379.")
    assert safety(hidden(unknown_name, FileNotFoundError())) == NO


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
    assert safety(error) == expected
    assert verdict(error).status is None


def test_a_write_that_was_applied_is_not_repeated_whatever_its_labels():
    applied = type(mongo())
    late = stand_in("pymongo.errors.WTimeoutError", applied)("text")
    late.has_error_label = lambda _: True
    assert safety(late) == NO


# The network


@pytest.mark.parametrize(
    ("code", "expected"),
    [(code, SAFE) for code in (5, 6, 7)]
    + [(code, YES) for code in (16, 18, 28, 52, 55, 56, 92)]
    + [(code, NO) for code in (1, 3, 35, 47, 60, 61, 77)],
)
def test_curl_codes(code, expected):
    assert safety(failure("pycurl.error", code, "text")) == expected
    empty = Thing(status_code=0, headers={})
    assert safety(failure("curl_cffi.requests.exceptions.X", "text", code=code, response=empty)) == expected


def test_a_curl_timeout_on_connecting_was_never_sent_and_a_code_of_zero_is_an_answer():
    assert safety(failure("pycurl.error", 28, "Connection timed out after 1 ms")) == SAFE
    assert safety(failure("pycurl.error", 28, "Operation timed out after 1 ms")) == YES
    answer = Thing(status_code=503, headers={})
    assert verdict(failure("curl_cffi.requests.HTTPError", code=0, response=answer)).status == 503


@pytest.mark.parametrize(
    ("code", "expected"),
    [(code, YES) for code in (1001, 1005, 1006, 1011, 1012, 1013, 1014)]
    + [(code, NO) for code in (1000, 1002, 1003, 1007, 1008, 1009, 1010, 1015)],
)
def test_websocket_close_codes(code, expected):
    assert safety(failure("websockets.exceptions.ConnectionClosed", rcvd=Thing(code=code))) == expected


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
    assert safety(error) == expected
    assert verdict(error).status is None


def test_ldap_results():
    assert safety(failure("ldap3.core.exceptions.X", result=51)) == SAFE
    assert safety(failure("ldap3.core.exceptions.X", result=52)) == SAFE
    assert verdict(failure("ldap3.core.exceptions.X", result=49)).cause is C.unauthorized


def test_http2_says_in_its_text_alone_that_a_stream_was_refused():
    reset = "<StreamReset stream_id:1, error_code:{}, remote_reset:True>"
    kind = stand_in("httpx.RemoteProtocolError", stand_in("httpx.ProtocolError"))
    assert safety(kind(reset.format(7))) == SAFE
    assert safety(kind(reset.format(11))) == YES
    assert safety(stand_in("httpcore.RemoteProtocolError", stand_in("httpcore.ProtocolError"))()) == YES


def test_retries_that_urllib3_gave_up_are_judged_by_what_it_says_of_them():
    def spent(text):
        return failure("urllib3.MaxRetryError", reason=failure("urllib3.ResponseError", text))

    assert safety(spent("too many 503 error responses")) == YES
    assert safety(spent("too many 404 error responses")) == NO
    assert safety(spent("too many redirects")) == NO
    assert safety(spent("unexpected")) == YES
    assert safety(spent("too many")) == YES


def test_ssh_is_judged_by_its_text():
    assert safety(failure("paramiko.SSHException", "Error reading SSH protocol banner")) == SAFE
    assert safety(failure("paramiko.SSHException", "SSH session not active")) == YES
    assert safety(failure("paramiko.SSHException", "Key cannot be used")) == NO


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
    assert safety(grpc(name)) == expected
    assert verdict(grpc(name)).reason == f"gRPC {name}"
    assert safety(failure("grpclib.exceptions.GRPCError", status=Code[name], message=None)) == expected
    assert safety(failure("google.api_core.exceptions.X", grpc_status_code=Code[name])) == expected


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
    assert safety(grpc(name, details)) == expected


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
    assert safety(grpc("UNAVAILABLE", metadata=metadata)) == YES


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
    assert safety(answered("forbidden")) == NO
    assert safety(answered()) == NO
    assert safety(failure("googleapiclient.errors.HttpError", status_code=403, error_details="text")) == NO


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
    assert safety(error) == expected
    assert verdict(error).status == 400
    assert accepted(boto(code)) is not expected[0]


def test_an_aws_answer_keeps_its_delay_and_one_without_a_known_code_is_judged_by_its_status():
    found = verdict(
        failure(
            "botocore.exceptions.ClientError", response=boto("SlowDown", 503, **{"x-amz-retry-after": "250"})
        )
    )
    assert (found.status, found.retry_after, found.reason) == (503, 0.25, "AWS SlowDown")
    assert safety(failure("botocore.exceptions.ClientError", response=boto("502", 502))) == YES
    assert safety(failure("botocore.exceptions.ClientError", response={})) == NO


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
    assert safety(failure("kafka.errors.NodeNotReadyError", retriable=True, errno=5)) == YES
    assert safety(failure("kafka.errors.MessageSizeTooLargeError", retriable=False, errno=10)) == NO
    assert safety(failure("aiokafka.errors.KafkaTimeoutError", retriable=False)) == YES


def librdkafka(name, fatal=False, retriable=False):
    error = Thing(name=lambda: name, fatal=lambda: fatal, retriable=lambda: retriable)
    return failure("cimpl.KafkaException", error)


def test_librdkafka_is_judged_by_the_name_of_its_error():
    for name, row in _codebook.KAFKA.items():
        assert safety(librdkafka(name)) == (True, row.unprocessed)
        assert safety(librdkafka(name, fatal=True)) == NO
    assert safety(librdkafka("_AUTHENTICATION")) == NO
    assert safety(librdkafka("NEW_ERROR", retriable=True)) == YES
    assert verdict(failure("confluent_kafka.KafkaException")).cause is C.unknown


# Proxies

TUNNELS = [
    ("407 Proxy Authentication Required", NO, C.unauthorized),
    ("403 Forbidden", NO, C.permanent),
    ("503 Service Unavailable", SAFE, C.unavailable),
    ("502", SAFE, C.unavailable),
]


@pytest.mark.parametrize(("said", "expected", "cause"), TUNNELS)
def test_a_tunnel_that_a_proxy_refused_is_judged_by_the_status_in_its_text(said, expected, cause):
    tunnel = f"Tunnel connection failed: {said}"
    wrapped = failure("urllib3.exceptions.ProxyError", "Unable to connect to proxy", OSError(tunnel))
    refused = [
        failure("httpx.ProxyError", said),
        failure("httpcore2.ProxyError", said),
        OSError(tunnel),
        failure("requests.exceptions.ProxyError", wrapped),
    ]
    for error in refused:
        assert (safety(error), verdict(error).cause) == (expected, cause), error


@pytest.mark.parametrize("said", ["", "connection lost", "4o7 what", "٤٠٧ what", "4070"])
def test_a_proxy_that_names_no_status_was_not_reached(said):
    assert safety(failure("httpx.ProxyError", said)) == SAFE
    assert safety(OSError(f"Tunnel connection failed: {said}")) == safety(OSError("who knows"))
