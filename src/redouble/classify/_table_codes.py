"""Tables of the codes of protocols, databases and services.

Each table maps the codes of one client library, server or protocol to their meaning. To teach redouble one
more code, add it to a line. ``_codes`` finds the code on an exception. Texts are the last resort, for
failures that carry nothing else; they are compared in lower case, and the first that occurs counts.
"""

from __future__ import annotations

from . import _table_statuses as t
from ._table_statuses import Meaning, spelled

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


def numbered(lines: Mapping[Meaning, str]) -> dict[int, Meaning]:
    """Return each number of each line with its meaning; ``1158-1161`` is all from the first to the last."""
    found: dict[int, Meaning] = {}
    for name, meaning in spelled(lines).items():
        first, _, last = name.partition("-")
        found.update(dict.fromkeys(range(int(first), int(last or first) + 1), meaning))
    return found


# SQL. Retrying means running the whole transaction again. What has no line is permanent.

SQLSTATES: Mapping[str, Meaning] = spelled(
    {
        t.CONFLICT_NOT_SENT: "40001 40P01 40000 55P03 55006 72000",
        t.CONFLICT: "40003",
        t.CONNECTION: "08001 08004",
        t.DISCONNECTED: "08000 08003 08006 08007 08S01",
        t.UNAVAILABLE_NOT_SENT: "53000 53200 53300 57P03 57P05 25P03 HYT01",
        t.UNAVAILABLE: "57P01 57P02",
        t.TIMEOUT: "HYT00",
    }
)
SQLSTATE_NAMES: Mapping[str, str] = {
    "40001": "serialization failure",
    "40P01": "deadlock",
    "40003": "statement completion unknown",
    "53300": "too many connections",
    "55P03": "lock not available",
    "57P01": "administrator shutdown",
    "57P03": "cannot connect now",
}
SQLSTATE_SAYS_NOTHING = "HY000"
SQLSTATE_UNAUTHORIZED = "28"  # the class, its first two characters
MYSQL: Mapping[int, Meaning] = numbered(
    {
        t.CONFLICT_NOT_SENT: "1205 1206 1213 1614 1637 3058 3101 3572",
        t.UNAVAILABLE_NOT_SENT: "1040 1203 4031",
        t.CONNECTION: "2002 2003 2012",
        t.DISCONNECTED: "2006 2013 2055 1053 1079 1080 1152 1158-1161 1184 1927 3168",
        t.UNAUTHORIZED: "1044 1045 1698",
        t.NO_SUCH_NAME: "2005",
        t.PERMANENT: "1049 1062 1064 1129 1146 1290 1317 1792 1836 3024",
    }
)
SQLSERVER: Mapping[int, Meaning] = numbered(
    {
        t.CONFLICT_NOT_SENT: "1205",
        t.CONFLICT: "1222",
        t.UNAVAILABLE: "4060 10928 10929 40197 40501 40613 49918-49920",
        t.DISCONNECTED: "10053 10054",
        t.TIMEOUT: "10060",
        t.CONNECTION: "20009",
    }
)
ORACLE: Mapping[str, Meaning] = spelled(
    {
        t.CONFLICT_NOT_SENT: "ORA-00060 ORA-08177",
        t.CONNECTION: "ORA-12541 ORA-12514 ORA-12170",
        t.DISCONNECTED: "ORA-03113 ORA-03114 ORA-03135 DPY-4011",
    }
)
SQLITE_LOCKED = frozenset({5, 6})  # SQLITE_BUSY, SQLITE_LOCKED
MONGODB: Mapping[int, Meaning] = numbered(
    {
        t.CONFLICT_NOT_SENT: "112",
        t.UNAVAILABLE: "6 7 89 91 134 189 262 9001 10058 10107 11600 11602 13435 13436",
    }
)
# Asked in this order; where a line names two, both must be there.
MONGODB_LABELS: tuple[tuple[str, Meaning], ...] = (
    ("TransientTransactionError", t.CONFLICT_NOT_SENT),
    ("SystemOverloadedError RetryableError", t.UNAVAILABLE_NOT_SENT),
    ("RetryableWriteError", t.UNAVAILABLE),
    ("UnknownTransactionCommitResult", t.CONFLICT),
)
# The first word of an error reply.
REDIS: Mapping[str, Meaning] = spelled(
    {
        t.UNAVAILABLE_NOT_SENT: "LOADING BUSY TRYAGAIN CLUSTERDOWN MASTERDOWN NOREPLICAS READONLY",
        t.UNAUTHORIZED: "NOAUTH WRONGPASS NOPERM",
    }
)
# What libpq says where there is no SQLSTATE, as for every failure to start a session.
LIBPQ: tuple[tuple[str, Meaning], ...] = (
    ("authentication failed", t.UNAUTHORIZED),
    ("no pg_hba", t.UNAUTHORIZED),
    ("does not exist", t.PERMANENT),
    ("certificate", t.PERMANENT),
    ("could not translate host name", t.NO_SUCH_NAME),
    ("failed to resolve host", t.NO_SUCH_NAME),
    ("name or service not known", t.NO_SUCH_NAME),
    ("too many connections", t.UNAVAILABLE_NOT_SENT),
    ("too many clients", t.UNAVAILABLE_NOT_SENT),
    ("database system is", t.UNAVAILABLE_NOT_SENT),  # starting up, shutting down, in recovery
    ("connection to server", t.CONNECTION),
    ("could not connect to server", t.CONNECTION),
    ("connection failed", t.CONNECTION),
    ("timeout expired", t.CONNECTION),
    ("server closed the connection", t.DISCONNECTED),
    ("consuming input failed", t.DISCONNECTED),
    ("connection is bad", t.DISCONNECTED),
    ("connection is lost", t.DISCONNECTED),
    ("terminating connection", t.DISCONNECTED),
    ("connection has been closed unexpectedly", t.DISCONNECTED),
    ("could not receive data", t.DISCONNECTED),
)


# The network

CURL: Mapping[int, Meaning] = numbered(
    {t.CONNECTION: "5-7", t.DISCONNECTED: "16 18 52 55 56 92", t.TIMEOUT: "28"}
)
CURL_NEVER_SENT = ("connection timed out", "resolving timed out")  # 28 is any timeout
WEBSOCKET_CLOSES: Mapping[int, Meaning] = numbered(
    {t.DISCONNECTED: "1001 1005 1006", t.UNAVAILABLE: "1012-1014", t.SERVER_ERROR: "1011"}
)
WEBSOCKET_NO_CLOSE = 1006
SMTP_UNAUTHORIZED = frozenset({530, 534, 535, 538})
AMQP: Mapping[int, Meaning] = numbered({t.UNAVAILABLE: "320", t.SERVER_ERROR: "541", t.UNAUTHORIZED: "403"})
# Refused connections: return codes of MQTT 3.1.1, reason codes of MQTT 5. All others are permanent.
MQTT: Mapping[int, Meaning] = numbered(
    {t.UNAVAILABLE_NOT_SENT: "3 136 137 159", t.UNAUTHORIZED: "4 5 134 135"}
)
LDAP: Mapping[int, Meaning] = numbered({t.UNAVAILABLE_NOT_SENT: "51 52", t.UNAUTHORIZED: "49"})
HTTP2_REFUSED = "error_code:7,"  # REFUSED_STREAM: never seen by the application (RFC 9113 8.7)
SSH: tuple[tuple[str, Meaning], ...] = (
    ("protocol banner", t.CONNECTION),
    ("timeout opening channel", t.TIMEOUT),
    ("session not active", t.DISCONNECTED),
    ("connection dropped", t.DISCONNECTED),
    ("connection lost", t.DISCONNECTED),
)
TORNADO_NO_RESPONSE = 599
TORNADO: tuple[tuple[str, Meaning], ...] = (
    ("timeout while connecting", t.CONNECTION),
    ("timeout in request queue", t.UNAVAILABLE_NOT_SENT),
    ("timeout", t.TIMEOUT),
    ("closed", t.DISCONNECTED),
)


# Services

GRPC: Mapping[str, Meaning] = spelled(
    {
        t.UNAVAILABLE: "UNAVAILABLE",
        t.RATE_LIMITED_NOT_SENT: "RESOURCE_EXHAUSTED",
        t.CONFLICT_NOT_SENT: "ABORTED",
        t.TIMEOUT: "DEADLINE_EXCEEDED",
        t.SERVER_ERROR: "INTERNAL",
        t.UNAUTHORIZED: "UNAUTHENTICATED",
        t.PERMANENT: "PERMISSION_DENIED UNKNOWN CANCELLED DATA_LOSS INVALID_ARGUMENT NOT_FOUND"
        " ALREADY_EXISTS FAILED_PRECONDITION OUT_OF_RANGE UNIMPLEMENTED",
    }
)
# No other enumeration has these names.
GRPC_TELLING = frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED"})
# Beside the code, what the details say.
GRPC_DETAILS: Mapping[str, tuple[tuple[str, Meaning], ...]] = {
    "UNAVAILABLE": (
        ("certificate_verify_failed", t.PERMANENT),
        ("failed to connect to all addresses", t.CONNECTION),
        ("errors resolving", t.CONNECTION),
        ("dns resolution failed", t.CONNECTION),
        ("empty address list", t.CONNECTION),
        ("rst_stream with error code 7", t.UNAVAILABLE_NOT_SENT),
    ),
    "RESOURCE_EXHAUSTED": (("larger than max", t.PERMANENT),),  # a message, which stays as large as it is
}
AWS: Mapping[str, Meaning] = spelled(
    {
        t.RATE_LIMITED_NOT_SENT: "Throttling ThrottlingException ThrottledException RequestThrottledException"
        " TooManyRequestsException ProvisionedThroughputExceededException RequestLimitExceeded"
        " BandwidthLimitExceeded LimitExceededException RequestThrottled SlowDown EC2ThrottledException",
        t.CONFLICT_NOT_SENT: "TransactionInProgressException PriorRequestNotComplete",
        t.TIMEOUT: "RequestTimeout RequestTimeoutException",
        t.SERVER_ERROR: "InternalError InternalFailure InternalServerError",
        t.UNAVAILABLE: "ServiceUnavailable",
    }
)
GOOGLE_RATE_LIMITS = frozenset({"rateLimitExceeded", "userRateLimitExceeded"})  # reasons of a 403
# Names of librdkafka's errors. Its own retriable() speaks of transactions only.
KAFKA: Mapping[str, Meaning] = spelled(
    {
        t.DISCONNECTED: "_TRANSPORT _ALL_BROKERS_DOWN NETWORK_EXCEPTION",
        t.TIMEOUT: "_TIMED_OUT _MSG_TIMED_OUT _TIMED_OUT_QUEUE REQUEST_TIMED_OUT",
        t.UNAVAILABLE_NOT_SENT: "_QUEUE_FULL THROTTLING_QUOTA_EXCEEDED",
        t.UNAVAILABLE: "_WAIT_COORD BROKER_NOT_AVAILABLE LEADER_NOT_AVAILABLE NOT_LEADER_FOR_PARTITION"
        " REPLICA_NOT_AVAILABLE COORDINATOR_NOT_AVAILABLE COORDINATOR_LOAD_IN_PROGRESS NOT_COORDINATOR"
        " NOT_ENOUGH_REPLICAS NOT_ENOUGH_REPLICAS_AFTER_APPEND REBALANCE_IN_PROGRESS KAFKA_STORAGE_ERROR",
    }
)

# Codes in words, of services that no table knows; in lower case and without what is put between the words.

WORDED: Mapping[str, Meaning] = spelled(
    {
        t.RATE_LIMITED: "ratelimit ratelimited ratelimitexceeded ratelimitreached ratelimiterror"
        " toomanyrequests throttled throttling throttlingexception throttlingerror requestthrottled"
        " slowdown",
        t.UNAVAILABLE: "unavailable serviceunavailable temporarilyunavailable serverunavailable overloaded"
        " overloadederror",
        t.SERVER_ERROR: "servererror internalservererror internalerror badgateway",
        t.TIMEOUT: "timeout requesttimeout gatewaytimeout timedout",
    }
)
# Limits that no wait cures.
HOPELESS: Mapping[str, Meaning] = spelled(
    {
        t.PERMANENT: "insufficientquota insufficientfunds insufficientcredits insufficientbalance"
        " billinghardlimitreached billingnotactive monthlyquotaexceeded dailyquotaexceeded"
        " monthlylimitexceeded paymentrequired"
    }
)
HOPELESS_TEXTS = ("monthly limit", "monthly quota", "spending limit", "billing limit")
# Words in the text of an error that rule weak evidence out.
DOUBTS: Mapping[str, Meaning] = spelled(
    {
        t.UNAUTHORIZED: "authentication authenticate unauthenticated unauthorized password credential"
        " credentials",
        t.PERMANENT: "permission permissions forbidden certificate certificates",
    }
)
