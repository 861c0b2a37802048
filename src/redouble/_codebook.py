"""The tables behind classify, second part: the codes of protocols, databases and services.

Each table maps the codes of one number space to rows of the catalogue; ``spelled`` turns a line of names into
entries. To teach redouble one more code, add it to a line. How a code is found on an exception is told in
``_codes``. Texts are a last resort, for failures that carry nothing else; they are compared in lower case,
and the first that occurs counts.
"""

from __future__ import annotations

from ._catalogue import (
    ASKED_TO_WAIT,
    BROKEN,
    BUSY,
    CONTENDED,
    LOCKED_OUT,
    LOST,
    NO_SUCH_NAME,
    PERMANENT,
    THROTTLED,
    TIMED_OUT,
    TURNED_AWAY,
    UNAUTHORIZED,
    UNREACHED,
    Row,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


def spelled(lines: Mapping[Row, str]) -> Iterator[tuple[str, Row]]:
    """Each name of each line with the row of the line."""
    return ((name, row) for row, names in lines.items() for name in names.split())


def numbered(lines: Mapping[Row, str]) -> dict[int, Row]:
    """The same for numbers; ``1158-1161`` is all from the first to the last."""
    found: dict[int, Row] = {}
    for name, row in spelled(lines):
        first, _, last = name.partition("-")
        found.update(dict.fromkeys(range(int(first), int(last or first) + 1), row))
    return found


# SQL. Retrying means running the whole transaction again. What has no line is permanent.

SQLSTATES: Mapping[str, Row] = dict(
    spelled(
        {
            LOCKED_OUT: "40001 40P01 40000 55P03 55006 72000",
            CONTENDED: "40003",
            UNREACHED: "08001 08004",
            LOST: "08000 08003 08006 08007 08S01",
            TURNED_AWAY: "53000 53200 53300 57P03 57P05 25P03 HYT01",
            BUSY: "57P01 57P02",
            TIMED_OUT: "HYT00",
        }
    )
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
MYSQL: Mapping[int, Row] = numbered(
    {
        LOCKED_OUT: "1205 1206 1213 1614 1637 3058 3101 3572",
        TURNED_AWAY: "1040 1203 4031",
        UNREACHED: "2002 2003 2012",
        LOST: "2006 2013 2055 1053 1079 1080 1152 1158-1161 1184 1927 3168",
        UNAUTHORIZED: "1044 1045 1698",
        NO_SUCH_NAME: "2005",
        PERMANENT: "1049 1062 1064 1129 1146 1290 1317 1792 1836 3024",
    }
)
SQLSERVER: Mapping[int, Row] = numbered(
    {
        LOCKED_OUT: "1205",
        CONTENDED: "1222",
        BUSY: "4060 10928 10929 40197 40501 40613 49918-49920",
        LOST: "10053 10054",
        TIMED_OUT: "10060",
        UNREACHED: "20009",
    }
)
ORACLE: Mapping[str, Row] = dict(
    spelled(
        {
            LOCKED_OUT: "ORA-00060 ORA-08177",
            UNREACHED: "ORA-12541 ORA-12514 ORA-12170",
            LOST: "ORA-03113 ORA-03114 ORA-03135 DPY-4011",
        }
    )
)
SQLITE_LOCKED = frozenset({5, 6})  # SQLITE_BUSY, SQLITE_LOCKED
MONGODB: Mapping[int, Row] = numbered(
    {
        LOCKED_OUT: "112",
        BUSY: "6 7 89 91 134 189 262 9001 10058 10107 11600 11602 13435 13436",
    }
)
# Asked in this order; where a line names two, both must be there.
MONGODB_LABELS: tuple[tuple[str, Row], ...] = (
    ("TransientTransactionError", LOCKED_OUT),
    ("SystemOverloadedError RetryableError", TURNED_AWAY),
    ("RetryableWriteError", BUSY),
    ("UnknownTransactionCommitResult", CONTENDED),
)
# The first word of an error reply.
REDIS: Mapping[str, Row] = dict(
    spelled(
        {
            TURNED_AWAY: "LOADING BUSY TRYAGAIN CLUSTERDOWN MASTERDOWN NOREPLICAS READONLY",
            UNAUTHORIZED: "NOAUTH WRONGPASS NOPERM",
        }
    )
)
# What libpq says where there is no SQLSTATE, as for every failure to start a session.
LIBPQ: tuple[tuple[str, Row], ...] = (
    ("authentication failed", UNAUTHORIZED),
    ("no pg_hba", UNAUTHORIZED),
    ("does not exist", PERMANENT),
    ("certificate", PERMANENT),
    ("could not translate host name", NO_SUCH_NAME),
    ("failed to resolve host", NO_SUCH_NAME),
    ("name or service not known", NO_SUCH_NAME),
    ("too many connections", TURNED_AWAY),
    ("too many clients", TURNED_AWAY),
    ("database system is", TURNED_AWAY),  # starting up, shutting down, in recovery
    ("connection to server", UNREACHED),
    ("could not connect to server", UNREACHED),
    ("connection failed", UNREACHED),
    ("timeout expired", UNREACHED),
    ("server closed the connection", LOST),
    ("consuming input failed", LOST),
    ("connection is bad", LOST),
    ("connection is lost", LOST),
    ("terminating connection", LOST),
    ("connection has been closed unexpectedly", LOST),
    ("could not receive data", LOST),
)


# The network

CURL: Mapping[int, Row] = numbered({UNREACHED: "5-7", LOST: "16 18 52 55 56 92", TIMED_OUT: "28"})
CURL_NEVER_SENT = ("connection timed out", "resolving timed out")  # 28 is any timeout
WEBSOCKET_CLOSES: Mapping[int, Row] = numbered({LOST: "1001 1005 1006", BUSY: "1012-1014", BROKEN: "1011"})
WEBSOCKET_NO_CLOSE = 1006
SMTP_UNAUTHORIZED = frozenset({530, 534, 535, 538})
AMQP: Mapping[int, Row] = numbered({BUSY: "320", BROKEN: "541", UNAUTHORIZED: "403"})
# Refused connections: return codes of MQTT 3.1.1, reason codes of MQTT 5. All others are permanent.
MQTT: Mapping[int, Row] = numbered({TURNED_AWAY: "3 136 137 159", UNAUTHORIZED: "4 5 134 135"})
LDAP: Mapping[int, Row] = numbered({TURNED_AWAY: "51 52", UNAUTHORIZED: "49"})
HTTP2_REFUSED = "error_code:7,"  # REFUSED_STREAM: never seen by the application (RFC 9113 8.7)
SSH: tuple[tuple[str, Row], ...] = (
    ("protocol banner", UNREACHED),
    ("timeout opening channel", TIMED_OUT),
    ("session not active", LOST),
    ("connection dropped", LOST),
    ("connection lost", LOST),
)
TORNADO_NO_RESPONSE = 599
TORNADO: tuple[tuple[str, Row], ...] = (
    ("timeout while connecting", UNREACHED),
    ("timeout in request queue", TURNED_AWAY),
    ("timeout", TIMED_OUT),
    ("closed", LOST),
)


# Services

GRPC: Mapping[str, Row] = dict(
    spelled(
        {
            BUSY: "UNAVAILABLE",
            ASKED_TO_WAIT: "RESOURCE_EXHAUSTED",
            LOCKED_OUT: "ABORTED",
            TIMED_OUT: "DEADLINE_EXCEEDED",
            BROKEN: "INTERNAL",
            UNAUTHORIZED: "UNAUTHENTICATED",
            PERMANENT: "PERMISSION_DENIED UNKNOWN CANCELLED DATA_LOSS INVALID_ARGUMENT NOT_FOUND"
            " ALREADY_EXISTS FAILED_PRECONDITION OUT_OF_RANGE UNIMPLEMENTED",
        }
    )
)
# No other enumeration has these names.
GRPC_TELLING = frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED"})
# Beside the code, what the details say.
GRPC_DETAILS: Mapping[str, tuple[tuple[str, Row], ...]] = {
    "UNAVAILABLE": (
        ("certificate_verify_failed", PERMANENT),
        ("failed to connect to all addresses", UNREACHED),
        ("errors resolving", UNREACHED),
        ("dns resolution failed", UNREACHED),
        ("empty address list", UNREACHED),
        ("rst_stream with error code 7", TURNED_AWAY),
    ),
    "RESOURCE_EXHAUSTED": (("larger than max", PERMANENT),),  # a message, which stays as large as it is
}
AWS: Mapping[str, Row] = dict(
    spelled(
        {
            ASKED_TO_WAIT: "Throttling ThrottlingException ThrottledException RequestThrottledException"
            " TooManyRequestsException ProvisionedThroughputExceededException RequestLimitExceeded"
            " BandwidthLimitExceeded LimitExceededException RequestThrottled SlowDown EC2ThrottledException",
            LOCKED_OUT: "TransactionInProgressException PriorRequestNotComplete",
            TIMED_OUT: "RequestTimeout RequestTimeoutException",
            BROKEN: "InternalError InternalFailure InternalServerError",
            BUSY: "ServiceUnavailable",
        }
    )
)
GOOGLE_RATE_LIMITS = frozenset({"rateLimitExceeded", "userRateLimitExceeded"})  # reasons of a 403
# Names of librdkafka's errors. Its own retriable() speaks of transactions only.
KAFKA: Mapping[str, Row] = dict(
    spelled(
        {
            LOST: "_TRANSPORT _ALL_BROKERS_DOWN NETWORK_EXCEPTION",
            TIMED_OUT: "_TIMED_OUT _MSG_TIMED_OUT _TIMED_OUT_QUEUE REQUEST_TIMED_OUT",
            TURNED_AWAY: "_QUEUE_FULL THROTTLING_QUOTA_EXCEEDED",
            BUSY: "_WAIT_COORD BROKER_NOT_AVAILABLE LEADER_NOT_AVAILABLE NOT_LEADER_FOR_PARTITION"
            " REPLICA_NOT_AVAILABLE COORDINATOR_NOT_AVAILABLE COORDINATOR_LOAD_IN_PROGRESS NOT_COORDINATOR"
            " NOT_ENOUGH_REPLICAS NOT_ENOUGH_REPLICAS_AFTER_APPEND REBALANCE_IN_PROGRESS KAFKA_STORAGE_ERROR",
        }
    )
)

# Codes in words, of services that no table knows; in lower case and without what is put between the words.

WORDED: Mapping[str, Row] = dict(
    spelled(
        {
            THROTTLED: "ratelimit ratelimited ratelimitexceeded ratelimitreached ratelimiterror"
            " toomanyrequests throttled throttling throttlingexception throttlingerror requestthrottled"
            " slowdown",
            BUSY: "unavailable serviceunavailable temporarilyunavailable serverunavailable overloaded"
            " overloadederror",
            BROKEN: "servererror internalservererror internalerror badgateway",
            TIMED_OUT: "timeout requesttimeout gatewaytimeout timedout",
        }
    )
)
# Limits that no wait cures.
HOPELESS: Mapping[str, Row] = dict(
    spelled(
        {
            PERMANENT: "insufficientquota insufficientfunds insufficientcredits insufficientbalance"
            " billinghardlimitreached billingnotactive monthlyquotaexceeded dailyquotaexceeded"
            " monthlylimitexceeded paymentrequired"
        }
    )
)
HOPELESS_TEXTS = ("monthly limit", "monthly quota", "spending limit", "billing limit")
# Words in the text of an error that rule weak evidence out.
DOUBTS: Mapping[str, Row] = dict(
    spelled(
        {
            UNAUTHORIZED: "authentication authenticate unauthenticated unauthorized password credential"
            " credentials",
            PERMANENT: "permission permissions forbidden certificate certificates",
        }
    )
)
