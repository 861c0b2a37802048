"""The tables behind classify, third part: classes that neither number nor shape tells apart.

The key is the package (the first part of the module, since modules move), then qualified names; a class is
looked up along its MRO, most derived first. Of two lines that seem to contradict each other, the more derived
class is the exception to the rule. To teach redouble one more class, add its name to a line.
"""

from __future__ import annotations

from ._catalogue import (
    ASKED_TO_WAIT,
    BROKEN,
    BUSY,
    CONTENDED,
    LOCKED_OUT,
    LOST,
    PERMANENT,
    TIMED_OUT,
    TURNED_AWAY,
    UNAUTHORIZED,
    UNREACHED,
    Cause,
    Row,
    wrapping,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

# Wrappers, by what they mean where nothing is found inside.
_WRAPS_PERMANENT = wrapping(PERMANENT)
_WRAPS_LOST = wrapping(LOST)
_WRAPS_TIMEOUT = wrapping(TIMED_OUT)
_WRAPS_BUSY = wrapping(BUSY)
_WRAPS_UNREACHED = wrapping(UNREACHED)
_CONNECT_TIMEOUT = Row(True, Cause.timeout, unprocessed=True)
_WRAPS_CONNECT_TIMEOUT = wrapping(_CONNECT_TIMEOUT)
CERTIFICATE_TEXT = "CERTIFICATE_VERIFY_FAILED"  # all that a pickle leaves of a certificate error inside

_STANDARD_LIBRARY: Mapping[str, Mapping[Row, str]] = {
    "asyncio": {PERMANENT: "LimitOverrunError", LOST: "IncompleteReadError", TIMED_OUT: "TimeoutError"},
    "concurrent": {TIMED_OUT: "TimeoutError"},
    "ftplib": {PERMANENT: "Error", BUSY: "error_temp"},
    "http": {PERMANENT: "LineTooLong HTTPException", LOST: "RemoteDisconnected BadStatusLine IncompleteRead"},
    "imaplib": {PERMANENT: "IMAP4.error", LOST: "IMAP4.abort"},
    "json": {PERMANENT: "JSONDecodeError"},
    "multiprocessing": {PERMANENT: "ProcessError", TIMED_OUT: "TimeoutError"},
    "poplib": {PERMANENT: "error_proto"},
    "smtplib": {LOST: "SMTPServerDisconnected"},
    "ssl": {
        PERMANENT: "SSLCertVerificationError SSLError",
        LOST: "SSLEOFError SSLZeroReturnError SSLSyscallError",
    },
    "subprocess": {PERMANENT: "CalledProcessError", TIMED_OUT: "TimeoutExpired"},
    "urllib": {_WRAPS_PERMANENT: "URLError", LOST: "ContentTooShortError"},
    "xmlrpc": {PERMANENT: "Fault"},
}
_HTTP_CLIENTS: Mapping[str, Mapping[Row, str]] = {
    "aiohttp": {
        PERMANENT: "ClientConnectorCertificateError ServerFingerprintMismatch ContentTypeError"
        " TooManyRedirects InvalidURL NonHttpUrlClientError ContentEncodingError",
        TIMED_OUT: "SocketTimeoutError ServerTimeoutError",
        LOST: "ServerDisconnectedError ClientOSError PayloadEncodingError ClientConnectionError",
        _CONNECT_TIMEOUT: "ConnectionTimeoutError",
        _WRAPS_LOST: "ClientPayloadError",
        _WRAPS_UNREACHED: "ClientConnectorError",
    },
    "anyio": {LOST: "BrokenResourceError EndOfStream"},
    "httpcore": {
        PERMANENT: "LocalProtocolError UnsupportedProtocol",
        TIMED_OUT: "ReadTimeout WriteTimeout TimeoutException",
        LOST: "NetworkError ProtocolError",
        TURNED_AWAY: "PoolTimeout ConnectionNotAvailable",
        _WRAPS_CONNECT_TIMEOUT: "ConnectTimeout",
        _WRAPS_UNREACHED: "ConnectError ProxyError",
    },
    "httplib2": {_WRAPS_UNREACHED: "ServerNotFoundError"},
    "httpx": {
        PERMANENT: "LocalProtocolError UnsupportedProtocol DecodingError TooManyRedirects InvalidURL",
        TIMED_OUT: "ReadTimeout WriteTimeout TimeoutException",
        LOST: "NetworkError ProtocolError TransportError",
        TURNED_AWAY: "PoolTimeout",
        _WRAPS_CONNECT_TIMEOUT: "ConnectTimeout",
        _WRAPS_UNREACHED: "ConnectError ProxyError",
    },
    "requests": {
        PERMANENT: "ContentDecodingError TooManyRedirects InvalidURL MissingSchema InvalidSchema"
        " InvalidHeader JSONDecodeError InvalidJSONError StreamConsumedError UnrewindableBodyError"
        " RequestException",
        TIMED_OUT: "ReadTimeout Timeout",
        LOST: "ChunkedEncodingError",
        _WRAPS_LOST: "ConnectionError ProxyError",
        _WRAPS_BUSY: "RetryError",
        _WRAPS_CONNECT_TIMEOUT: "ConnectTimeout",
        _WRAPS_PERMANENT: "SSLError",
    },
    "tornado": {_WRAPS_LOST: "StreamClosedError", LOST: "WebSocketClosedError"},
    "trio": {TIMED_OUT: "TooSlowError", LOST: "BrokenResourceError"},
    "urllib3": {
        PERMANENT: "ClosedPoolError LocationValueError DecodeError HTTPError",
        TIMED_OUT: "ReadTimeoutError TimeoutError",
        LOST: "IncompleteRead",
        TURNED_AWAY: "EmptyPoolError",
        _WRAPS_LOST: "ProtocolError ProxyError MaxRetryError",
        _WRAPS_UNREACHED: "NameResolutionError NewConnectionError",
        _WRAPS_CONNECT_TIMEOUT: "ConnectTimeoutError",
        _WRAPS_PERMANENT: "SSLError",
    },
    "websocket": {LOST: "WebSocketConnectionClosedException", TIMED_OUT: "WebSocketTimeoutException"},
    "websockets": {PERMANENT: "InvalidURI", _WRAPS_LOST: "InvalidMessage"},
}
_SERVICES: Mapping[str, Mapping[Row, str]] = {
    "azure": {
        LOST: "ServiceResponseError IncompleteReadError",
        TIMED_OUT: "ServiceResponseTimeoutError",
        TURNED_AWAY: "ServiceBusServerBusyError",
        _WRAPS_UNREACHED: "ServiceRequestError",
    },
    "botocore": {
        PERMANENT: "BotoCoreError",
        TIMED_OUT: "ReadTimeoutError",
        LOST: "ConnectionClosedError ResponseStreamingError IncompleteReadError",
        _WRAPS_LOST: "HTTPClientError",
        _WRAPS_CONNECT_TIMEOUT: "ConnectTimeoutError",
        _WRAPS_UNREACHED: "EndpointConnectionError ProxyConnectionError",
        _WRAPS_PERMANENT: "SSLError",
    },
    "databricks": {
        PERMANENT: "DataLoss",
        ASKED_TO_WAIT: "TooManyRequests",
        BUSY: "TemporarilyUnavailable",
        BROKEN: "InternalError",
        TIMED_OUT: "DeadlineExceeded",
        CONTENDED: "Aborted",
    },
    "discord": {ASKED_TO_WAIT: "RateLimited"},
    "elastic_transport": {
        _WRAPS_TIMEOUT: "ConnectionTimeout",
        _WRAPS_LOST: "ConnectionError",
        _WRAPS_PERMANENT: "TlsError",
    },
    "google": {UNAUTHORIZED: "RefreshError", _WRAPS_LOST: "TransportError", _WRAPS_BUSY: "RetryError"},
    "grpc": {TIMED_OUT: "FutureTimeoutError"},
    "hvac": {BUSY: "VaultDown", BROKEN: "InternalServerError", ASKED_TO_WAIT: "RateLimitExceeded"},
    "openai": {_WRAPS_TIMEOUT: "APITimeoutError", _WRAPS_LOST: "APIConnectionError"},
    "opensearchpy": {
        _WRAPS_TIMEOUT: "ConnectionTimeout",
        _WRAPS_LOST: "ConnectionError",
        _WRAPS_PERMANENT: "SSLError",
    },
    "qdrant_client": {ASKED_TO_WAIT: "ResourceExhaustedResponse"},
    "stripe": {_WRAPS_LOST: "APIConnectionError"},
    "telegram": {
        PERMANENT: "BadRequest",
        TIMED_OUT: "TimedOut",
        _WRAPS_LOST: "NetworkError",
        ASKED_TO_WAIT: "RetryAfter",
    },
}
_DATABASES: Mapping[str, Mapping[Row, str]] = {
    "asyncpg": {PERMANENT: "InterfaceError"},
    "cassandra": {
        TIMED_OUT: "OperationTimedOut ReadTimeout WriteTimeout",
        TURNED_AWAY: "Unavailable",
        _WRAPS_UNREACHED: "NoHostAvailable",
    },
    "neo4j": {LOCKED_OUT: "TransientError", LOST: "SessionExpired", _WRAPS_LOST: "ServiceUnavailable"},
    "psycopg": {_CONNECT_TIMEOUT: "ConnectionTimeout", TURNED_AWAY: "PoolTimeout"},
    "psycopg_pool": {TURNED_AWAY: "PoolTimeout TooManyRequests"},
    "pymongo": {
        PERMANENT: "WTimeoutError DuplicateKeyError BulkWriteError ExecutionTimeout PyMongoError",
        TIMED_OUT: "NetworkTimeout",
        LOST: "AutoReconnect ConnectionFailure",
        UNREACHED: "ServerSelectionTimeoutError",
        TURNED_AWAY: "WaitQueueTimeoutError",
    },
    "redis": {
        UNAUTHORIZED: "AuthenticationError AuthorizationError",
        PERMANENT: "RedisError",
        TURNED_AWAY: "MaxConnectionsError BusyLoadingError TryAgainError ClusterDownError"
        " AskError ReadOnlyError",
        LOCKED_OUT: "WatchError",
        _WRAPS_LOST: "ConnectionError",
        TIMED_OUT: "TimeoutError",
    },
    "snowflake": {
        BUSY: "ServiceUnavailableError",
        TIMED_OUT: "GatewayTimeoutError RequestTimeoutError",
        BROKEN: "BadGatewayError InternalServerError",
        ASKED_TO_WAIT: "TooManyRequests",
    },
    "sqlalchemy": {TURNED_AWAY: "TimeoutError"},
    "trino": {
        BROKEN: "Http502Error",
        BUSY: "Http503Error",
        TIMED_OUT: "Http504Error",
        LOST: "TrinoConnectionError",
    },
}
_MESSAGING_AND_SHELLS: Mapping[str, Mapping[Row, str]] = {
    "amqp": {BUSY: "RecoverableConnectionError RecoverableChannelError"},
    "asyncssh": {UNAUTHORIZED: "PermissionDenied", PERMANENT: "HostKeyNotVerifiable", LOST: "ConnectionLost"},
    "billiard": {PERMANENT: "SoftTimeLimitExceeded TimeLimitExceeded", LOST: "WorkerLostError"},
    "celery": {PERMANENT: "TaskPredicate CeleryError", TIMED_OUT: "TimeoutError"},
    "kafka": {TIMED_OUT: "KafkaTimeoutError", LOST: "KafkaConnectionError"},
    "kombu": {_WRAPS_LOST: "OperationalError"},
    "ldap": {LOST: "SERVER_DOWN", TURNED_AWAY: "BUSY UNAVAILABLE", TIMED_OUT: "TIMEOUT"},
    "ldap3": {
        PERMANENT: "LDAPException",
        LOST: "LDAPSessionTerminatedByServerError LDAPSocketReceiveError LDAPSocketSendError",
        TURNED_AWAY: "LDAPBusyResult LDAPUnavailableResult",
        _WRAPS_UNREACHED: "LDAPSocketOpenError",
    },
    "nats": {
        TIMED_OUT: "TimeoutError",
        LOST: "ConnectionClosedError StaleConnectionError",
        UNREACHED: "NoServersError",
    },
    "paramiko": {
        UNAUTHORIZED: "AuthenticationException",
        PERMANENT: "BadHostKeyException ChannelException",
        _WRAPS_UNREACHED: "NoValidConnectionsError",
    },
    "pika": {
        UNAUTHORIZED: "ProbableAuthenticationError ProbableAccessDeniedError",
        PERMANENT: "AMQPError",
        LOST: "IncompatibleProtocolError StreamLostError",
        _CONNECT_TIMEOUT: "AMQPConnectorStackTimeout",
        _WRAPS_LOST: "AMQPConnectionError",
        _WRAPS_UNREACHED: "AMQPConnectorSocketConnectError",
    },
}
_THIRD_PARTY = {**_HTTP_CLIENTS, **_SERVICES, **_DATABASES, **_MESSAGING_AND_SHELLS}
PACKAGES: Mapping[str, Mapping[Row, str]] = {**_STANDARD_LIBRARY, **_THIRD_PARTY}
CLASSES: Mapping[str, Row] = {
    f"{package}.{name}": row
    for package, lines in PACKAGES.items()
    for row, names in lines.items()
    for name in names.split()
}

# Raised to steer a framework, not because something failed, as StopIteration is. Never retried, unless a
# policy names the class.
_CONTROL_FLOW: Mapping[str, str] = {
    "airflow": "AirflowFailException AirflowRescheduleException AirflowSkipException",
    "arq": "Retry RetryJob",
    "bdb": "BdbQuit",
    "celery": "TaskPredicate",
    "click": "Abort Exit",
    "concurrent": "CancelledError",
    "dramatiq": "Retry",
    "huey": "CancelExecution RetryTask",
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
