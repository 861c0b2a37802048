"""Tables of exception classes by package, and of words in the names of classes that have no line.

The key is the package (the first part of the module, since modules move), then qualified names. A class is
looked up along its MRO, most derived first: of two lines that seem to contradict each other, the more derived
class counts. To teach redouble one more class, add its name to a line.
"""

from __future__ import annotations

from . import _table_statuses as t
from ._table_statuses import Cause, Meaning, spelled, wrapping

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

# Wrappers, by what they mean where nothing is found inside.
_WRAPS_PERMANENT = wrapping(t.PERMANENT)
_WRAPS_DISCONNECTED = wrapping(t.DISCONNECTED)
_WRAPS_TIMEOUT = wrapping(t.TIMEOUT)
_WRAPS_UNAVAILABLE = wrapping(t.UNAVAILABLE)
_WRAPS_CONNECTION = wrapping(t.CONNECTION)
_CONNECT_TIMEOUT = Meaning(True, Cause.timeout, unprocessed=True)
_WRAPS_CONNECT_TIMEOUT = wrapping(_CONNECT_TIMEOUT)
CERTIFICATE_TEXT = "CERTIFICATE_VERIFY_FAILED"  # all that a pickle leaves of a certificate error inside

_STANDARD_LIBRARY: Mapping[str, Mapping[Meaning, str]] = {
    "asyncio": {
        t.PERMANENT: "LimitOverrunError",
        t.DISCONNECTED: "IncompleteReadError",
        t.TIMEOUT: "TimeoutError",
    },
    "concurrent": {t.TIMEOUT: "TimeoutError"},
    "ftplib": {t.PERMANENT: "Error", t.UNAVAILABLE: "error_temp"},
    "http": {
        t.PERMANENT: "LineTooLong HTTPException",
        t.DISCONNECTED: "RemoteDisconnected BadStatusLine IncompleteRead",
    },
    "imaplib": {t.PERMANENT: "IMAP4.error", t.DISCONNECTED: "IMAP4.abort"},
    "json": {t.PERMANENT: "JSONDecodeError"},
    "multiprocessing": {t.PERMANENT: "ProcessError", t.TIMEOUT: "TimeoutError"},
    "poplib": {t.PERMANENT: "error_proto"},
    "smtplib": {t.DISCONNECTED: "SMTPServerDisconnected"},
    "ssl": {
        t.PERMANENT: "SSLCertVerificationError SSLError",
        t.DISCONNECTED: "SSLEOFError SSLZeroReturnError SSLSyscallError",
    },
    "subprocess": {t.PERMANENT: "CalledProcessError", t.TIMEOUT: "TimeoutExpired"},
    "urllib": {_WRAPS_PERMANENT: "URLError", t.DISCONNECTED: "ContentTooShortError"},
    "xmlrpc": {t.PERMANENT: "Fault"},
}
_HTTP_CLIENTS: Mapping[str, Mapping[Meaning, str]] = {
    "aiohttp": {
        t.PERMANENT: "ClientConnectorCertificateError ServerFingerprintMismatch ContentTypeError"
        " TooManyRedirects InvalidURL NonHttpUrlClientError ContentEncodingError",
        t.TIMEOUT: "SocketTimeoutError ServerTimeoutError",
        t.DISCONNECTED: "ServerDisconnectedError ClientOSError PayloadEncodingError ClientConnectionError",
        _CONNECT_TIMEOUT: "ConnectionTimeoutError",
        _WRAPS_DISCONNECTED: "ClientPayloadError",
        _WRAPS_CONNECTION: "ClientConnectorError",
    },
    "anyio": {t.DISCONNECTED: "BrokenResourceError EndOfStream"},
    "httpcore": {
        t.PERMANENT: "LocalProtocolError UnsupportedProtocol",
        t.TIMEOUT: "ReadTimeout WriteTimeout TimeoutException",
        t.DISCONNECTED: "NetworkError ProtocolError",
        t.UNAVAILABLE_NOT_SENT: "PoolTimeout ConnectionNotAvailable",
        _WRAPS_CONNECT_TIMEOUT: "ConnectTimeout",
        _WRAPS_CONNECTION: "ConnectError ProxyError",
    },
    "httplib2": {_WRAPS_CONNECTION: "ServerNotFoundError"},
    "httpx": {
        t.PERMANENT: "LocalProtocolError UnsupportedProtocol DecodingError TooManyRedirects InvalidURL",
        t.TIMEOUT: "ReadTimeout WriteTimeout TimeoutException",
        t.DISCONNECTED: "NetworkError ProtocolError TransportError",
        t.UNAVAILABLE_NOT_SENT: "PoolTimeout",
        _WRAPS_CONNECT_TIMEOUT: "ConnectTimeout",
        _WRAPS_CONNECTION: "ConnectError ProxyError",
    },
    "requests": {
        t.PERMANENT: "ContentDecodingError TooManyRedirects InvalidURL MissingSchema InvalidSchema"
        " InvalidHeader JSONDecodeError InvalidJSONError StreamConsumedError UnrewindableBodyError"
        " RequestException",
        t.TIMEOUT: "ReadTimeout Timeout",
        t.DISCONNECTED: "ChunkedEncodingError",
        _WRAPS_DISCONNECTED: "ConnectionError ProxyError",
        _WRAPS_UNAVAILABLE: "RetryError",
        _WRAPS_CONNECT_TIMEOUT: "ConnectTimeout",
        _WRAPS_PERMANENT: "SSLError",
    },
    "tornado": {_WRAPS_DISCONNECTED: "StreamClosedError", t.DISCONNECTED: "WebSocketClosedError"},
    "trio": {t.TIMEOUT: "TooSlowError", t.DISCONNECTED: "BrokenResourceError"},
    "urllib3": {
        t.PERMANENT: "ClosedPoolError LocationValueError DecodeError HTTPError",
        t.TIMEOUT: "ReadTimeoutError TimeoutError",
        t.DISCONNECTED: "IncompleteRead",
        t.UNAVAILABLE_NOT_SENT: "EmptyPoolError",
        _WRAPS_DISCONNECTED: "ProtocolError ProxyError MaxRetryError",
        _WRAPS_CONNECTION: "NameResolutionError NewConnectionError",
        _WRAPS_CONNECT_TIMEOUT: "ConnectTimeoutError",
        _WRAPS_PERMANENT: "SSLError",
    },
    "websocket": {
        t.DISCONNECTED: "WebSocketConnectionClosedException",
        t.TIMEOUT: "WebSocketTimeoutException",
    },
    "websockets": {t.PERMANENT: "InvalidURI", _WRAPS_DISCONNECTED: "InvalidMessage"},
}
_SERVICES: Mapping[str, Mapping[Meaning, str]] = {
    "azure": {
        t.DISCONNECTED: "ServiceResponseError IncompleteReadError",
        t.TIMEOUT: "ServiceResponseTimeoutError",
        t.UNAVAILABLE_NOT_SENT: "ServiceBusServerBusyError",
        _WRAPS_CONNECTION: "ServiceRequestError",
    },
    "botocore": {
        t.PERMANENT: "BotoCoreError",
        t.TIMEOUT: "ReadTimeoutError",
        t.DISCONNECTED: "ConnectionClosedError ResponseStreamingError IncompleteReadError",
        _WRAPS_DISCONNECTED: "HTTPClientError",
        _WRAPS_CONNECT_TIMEOUT: "ConnectTimeoutError",
        _WRAPS_CONNECTION: "EndpointConnectionError ProxyConnectionError",
        _WRAPS_PERMANENT: "SSLError",
    },
    "databricks": {
        t.PERMANENT: "DataLoss",
        t.RATE_LIMITED_NOT_SENT: "TooManyRequests",
        t.UNAVAILABLE: "TemporarilyUnavailable",
        t.SERVER_ERROR: "InternalError",
        t.TIMEOUT: "DeadlineExceeded",
        t.CONFLICT: "Aborted",
    },
    "discord": {t.RATE_LIMITED_NOT_SENT: "RateLimited"},
    "elastic_transport": {
        _WRAPS_TIMEOUT: "ConnectionTimeout",
        _WRAPS_DISCONNECTED: "ConnectionError",
        _WRAPS_PERMANENT: "TlsError",
    },
    "google": {
        t.UNAUTHORIZED: "RefreshError",
        _WRAPS_DISCONNECTED: "TransportError",
        _WRAPS_UNAVAILABLE: "RetryError",
    },
    "grpc": {t.TIMEOUT: "FutureTimeoutError"},
    "hvac": {
        t.UNAVAILABLE: "VaultDown",
        t.SERVER_ERROR: "InternalServerError",
        t.RATE_LIMITED_NOT_SENT: "RateLimitExceeded",
    },
    "openai": {_WRAPS_TIMEOUT: "APITimeoutError", _WRAPS_DISCONNECTED: "APIConnectionError"},
    "opensearchpy": {
        _WRAPS_TIMEOUT: "ConnectionTimeout",
        _WRAPS_DISCONNECTED: "ConnectionError",
        _WRAPS_PERMANENT: "SSLError",
    },
    "qdrant_client": {t.RATE_LIMITED_NOT_SENT: "ResourceExhaustedResponse"},
    "stripe": {_WRAPS_DISCONNECTED: "APIConnectionError"},
    "telegram": {
        t.PERMANENT: "BadRequest",
        t.TIMEOUT: "TimedOut",
        _WRAPS_DISCONNECTED: "NetworkError",
        t.RATE_LIMITED_NOT_SENT: "RetryAfter",
    },
}
_DATABASES: Mapping[str, Mapping[Meaning, str]] = {
    "asyncpg": {t.PERMANENT: "InterfaceError"},
    "cassandra": {
        t.TIMEOUT: "OperationTimedOut ReadTimeout WriteTimeout",
        t.UNAVAILABLE_NOT_SENT: "Unavailable",
        _WRAPS_CONNECTION: "NoHostAvailable",
    },
    "neo4j": {
        t.CONFLICT_NOT_SENT: "TransientError",
        t.DISCONNECTED: "SessionExpired",
        _WRAPS_DISCONNECTED: "ServiceUnavailable",
    },
    "psycopg": {_CONNECT_TIMEOUT: "ConnectionTimeout", t.UNAVAILABLE_NOT_SENT: "PoolTimeout"},
    "psycopg_pool": {t.UNAVAILABLE_NOT_SENT: "PoolTimeout TooManyRequests"},
    "pymongo": {
        t.PERMANENT: "WTimeoutError DuplicateKeyError BulkWriteError ExecutionTimeout PyMongoError",
        t.TIMEOUT: "NetworkTimeout",
        t.DISCONNECTED: "AutoReconnect ConnectionFailure",
        t.CONNECTION: "ServerSelectionTimeoutError",
        t.UNAVAILABLE_NOT_SENT: "WaitQueueTimeoutError",
    },
    "redis": {
        t.UNAUTHORIZED: "AuthenticationError AuthorizationError",
        t.PERMANENT: "RedisError",
        t.UNAVAILABLE_NOT_SENT: "MaxConnectionsError BusyLoadingError TryAgainError ClusterDownError"
        " AskError ReadOnlyError",
        t.CONFLICT_NOT_SENT: "WatchError",
        _WRAPS_DISCONNECTED: "ConnectionError",
        t.TIMEOUT: "TimeoutError",
    },
    "snowflake": {
        t.UNAVAILABLE: "ServiceUnavailableError",
        t.TIMEOUT: "GatewayTimeoutError RequestTimeoutError",
        t.SERVER_ERROR: "BadGatewayError InternalServerError",
        t.RATE_LIMITED_NOT_SENT: "TooManyRequests",
    },
    "sqlalchemy": {t.UNAVAILABLE_NOT_SENT: "TimeoutError"},
    "trino": {
        t.SERVER_ERROR: "Http502Error",
        t.UNAVAILABLE: "Http503Error",
        t.TIMEOUT: "Http504Error",
        t.DISCONNECTED: "TrinoConnectionError",
    },
}
_MESSAGING_AND_SHELLS: Mapping[str, Mapping[Meaning, str]] = {
    "amqp": {t.UNAVAILABLE: "RecoverableConnectionError RecoverableChannelError"},
    "asyncssh": {
        t.UNAUTHORIZED: "PermissionDenied",
        t.PERMANENT: "HostKeyNotVerifiable",
        t.DISCONNECTED: "ConnectionLost",
    },
    "billiard": {t.PERMANENT: "SoftTimeLimitExceeded TimeLimitExceeded", t.DISCONNECTED: "WorkerLostError"},
    "celery": {t.PERMANENT: "TaskPredicate CeleryError", t.TIMEOUT: "TimeoutError"},
    "kafka": {t.TIMEOUT: "KafkaTimeoutError", t.DISCONNECTED: "KafkaConnectionError"},
    "kombu": {_WRAPS_DISCONNECTED: "OperationalError"},
    "ldap": {t.DISCONNECTED: "SERVER_DOWN", t.UNAVAILABLE_NOT_SENT: "BUSY UNAVAILABLE", t.TIMEOUT: "TIMEOUT"},
    "ldap3": {
        t.PERMANENT: "LDAPException",
        t.DISCONNECTED: "LDAPSessionTerminatedByServerError LDAPSocketReceiveError LDAPSocketSendError",
        t.UNAVAILABLE_NOT_SENT: "LDAPBusyResult LDAPUnavailableResult",
        _WRAPS_CONNECTION: "LDAPSocketOpenError",
    },
    "nats": {
        t.TIMEOUT: "TimeoutError",
        t.DISCONNECTED: "ConnectionClosedError StaleConnectionError",
        t.CONNECTION: "NoServersError",
    },
    "paramiko": {
        t.UNAUTHORIZED: "AuthenticationException",
        t.PERMANENT: "BadHostKeyException ChannelException",
        _WRAPS_CONNECTION: "NoValidConnectionsError",
    },
    "pika": {
        t.UNAUTHORIZED: "ProbableAuthenticationError ProbableAccessDeniedError",
        t.PERMANENT: "AMQPError",
        t.DISCONNECTED: "IncompatibleProtocolError StreamLostError",
        _CONNECT_TIMEOUT: "AMQPConnectorStackTimeout",
        _WRAPS_DISCONNECTED: "AMQPConnectionError",
        _WRAPS_CONNECTION: "AMQPConnectorSocketConnectError",
    },
}
_THIRD_PARTY = {**_HTTP_CLIENTS, **_SERVICES, **_DATABASES, **_MESSAGING_AND_SHELLS}
PACKAGES: Mapping[str, Mapping[Meaning, str]] = {**_STANDARD_LIBRARY, **_THIRD_PARTY}
CLASSES: Mapping[str, Meaning] = {
    f"{package}.{name}": meaning
    for package, lines in PACKAGES.items()
    for meaning, names in lines.items()
    for name in names.split()
}

# Raised to steer a framework, not because something failed, as StopIteration is. Never retried, unless a
# policy names the class.
_CONTROL_FLOW: Mapping[str, str] = {
    "airflow": "AirflowFailException AirflowRescheduleException AirflowSkipException",
    "arq": "Retry RetryJob",
    "bdb": "BdbQuit",
    "billiard": "SoftTimeLimitExceeded",
    "celery": "TaskPredicate",
    "click": "Abort Exit",
    "concurrent": "CancelledError",
    "dramatiq": "Retry",
    "huey": "CancelExecution RetryTask",
    "rq": "BaseTimeoutException",
    "scrapy": "CloseSpider DontCloseSpider DropItem IgnoreRequest StopDownload",
    "taskiq": "NoResultError",
    "tornado": "Return",
    "unittest": "SkipTest",
}
CONTROL_FLOW = frozenset(
    [(package, name) for package in _CONTROL_FLOW for name in _CONTROL_FLOW[package].split()]
)

# Forks, successors and C modules whose classes mean what those of the original mean.
ALIASES: Mapping[str, str] = {
    "_cffi_ssl": "ssl",
    "_socket": "socket",
    "_ssl": "ssl",
    "aiokafka": "kafka",
    "aiomysql": "pymysql",
    "aioredis": "redis",
    "anthropic": "openai",
    "asyncmy": "pymysql",
    "cimpl": "confluent_kafka",
    "cx_Oracle": "oracledb",
    "groq": "openai",
    "httpcore2": "httpcore",
    "httpx2": "httpx",
    "MySQLdb": "pymysql",
    "niquests": "requests",
    "pysqlite3": "sqlite3",
    "_mysql_connector": "mysql",
    "urllib3_future": "urllib3",
    "valkey": "redis",
}
# Packages whose classes wrap the real failure even where the table has no line for the class.
_WRAP_ONLY = (
    "urllib clickhouse_connect confluent_kafka curl_cffi django docker elasticsearch googleapiclient"
    " huggingface_hub kubernetes mysql oracledb peewee psycopg2 pymysql"
)
WRAPPING_PACKAGES = frozenset([*_THIRD_PARTY, *_WRAP_ONLY.split()])
# Classes whose attributes warn when they are read; a reader of codes knows which may be.
WARNING_CLASSES = frozenset({("websockets", "ConnectionClosed")})

# Judging a class that is in no table by its name.

_MAYBE_SENT = Meaning(True, Cause.connection)

# Last words in lower case, without underscores and without the endings below. Not "unavailable": a feature, a
# model or a page may be so for good.
LAST_WORDS: Mapping[str, Meaning] = spelled(
    {
        t.TIMEOUT: "timeout timedout timeoutexceeded timeoutexpired timeoutreached deadlineexceeded",
        t.DISCONNECTED: "connectionlost connectionloss connectionclosed connectionreset connectionaborted"
        " connectiondropped connectionbroken connectionterminated connectioninterrupted lostconnection"
        " disconnected disconnect disconnection reconnect network communication brokenpipe"
        " incompleteread",
        _MAYBE_SENT: "connect connection connectionrefused unreachable notreachable serverdown hostdown"
        " offline",
        t.RATE_LIMITED: "toomanyrequests ratelimit ratelimited ratelimitexceeded ratelimitreached"
        " ratelimiting throttled throttling throttle floodwait slowdown",
        t.UNAVAILABLE: "serviceunavailable serverunavailable temporarilyunavailable temporaryunavailable"
        " overloaded overload serverbusy servicebusy again tryagainlater temporary transient retryable"
        " retriable",
        t.SERVER_ERROR: "internalserver badgateway",
    }
)
ANYWHERE = ("throttled", "throttling")  # which count also if another word follows, as in ThrottledOp
ENDINGS = ("error", "exception", "failure", "failed", "fault", "exc", "err")
# Words, or beginnings of words, anywhere in the name.
VETOES: Mapping[Meaning, tuple[str, ...]] = {
    t.UNAUTHORIZED: ("auth", "unauth", "credential", "password"),
    t.PERMANENT: (
        *("permission", "forbidden", "denied", "invalid", "not found", "validat", "quota", "cert", "ssl"),
        *("tls", "unsupported", "not supported", "not allowed", "not implemented", "unknown", "unexpected"),
        *("missing", "duplicate", "already", "config", "argument", "parameter", "syntax", "wrong", "illegal"),
        *("malformed", "incompatible", "mismatch", "fatal", "non ", "nonre", "not re", "unrecover"),
        *("irrecover", "cancel"),
        "i pv",  # IPv4Network: an address that cannot be parsed
    ),
}
# Causes of words that do not count in the name of a base class.
ABOUT_CONNECTIONS = (Cause.connection, Cause.disconnected)
