"""Tables of HTTP statuses, error numbers of the operating system, and attribute names.

A `Meaning` says what one kind of failure means. To teach redouble one more failure, add it to a line: a
status (in `STATUS_CAUSES`, and in `RETRYABLE_STATUSES` if it is retried), a number or an attribute here, a
code of a database or a protocol in ``_table_codes``, the name of a class in ``_table_classes``. A failure
that is in no table is not retried.
"""

from __future__ import annotations

import errno
from enum import StrEnum

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


class Cause(StrEnum):
    """Why a call failed, as far as the failure shows.

    >>> Cause.timeout == "timeout", f"{Cause.rate_limited}"
    (True, 'rate_limited')
    """

    connection = "connection"
    """The other side was never reached."""
    disconnected = "disconnected"
    """The connection was lost on the way."""
    timeout = "timeout"
    rate_limited = "rate_limited"
    unavailable = "unavailable"
    server_error = "server_error"
    conflict = "conflict"
    """A deadlock, a failed serialization, a lock held by someone else."""
    unauthorized = "unauthorized"
    permanent = "permanent"
    unknown = "unknown"


class Meaning:
    """What one kind of failure means.

    ``unprocessed``: the attempt certainly had no effect. ``inside``: a wrapper, whose meaning counts only if
    the error that it wraps says nothing. Each is made once, below or in a table, and compared by identity: a
    record would make the import of the tables, which have hundreds of them as keys, twice as slow.
    """

    __slots__ = ("cause", "inside", "retryable", "unprocessed")

    def __init__(
        self, retryable: bool, cause: Cause, unprocessed: bool = False, inside: bool = False
    ) -> None:
        self.retryable = retryable
        self.cause = cause
        self.unprocessed = unprocessed
        self.inside = inside


PERMANENT = Meaning(False, Cause.permanent)
UNAUTHORIZED = Meaning(False, Cause.unauthorized)
NO_SUCH_NAME = Meaning(False, Cause.connection, unprocessed=True)
CONNECTION = Meaning(True, Cause.connection, unprocessed=True)
DISCONNECTED = Meaning(True, Cause.disconnected)
TIMEOUT = Meaning(True, Cause.timeout)
SERVER_ERROR = Meaning(True, Cause.server_error)
UNAVAILABLE = Meaning(True, Cause.unavailable)
UNAVAILABLE_NOT_SENT = Meaning(True, Cause.unavailable, unprocessed=True)
CONFLICT = Meaning(True, Cause.conflict)
CONFLICT_NOT_SENT = Meaning(True, Cause.conflict, unprocessed=True)
RATE_LIMITED_NOT_SENT = Meaning(True, Cause.rate_limited, unprocessed=True)
RETRYABLE = Meaning(True, Cause.unknown)


def wrapping(meaning: Meaning) -> Meaning:
    """Return the same meaning for a wrapper, which counts if the wrapped error says nothing."""
    return Meaning(meaning.retryable, meaning.cause, meaning.unprocessed, inside=True)


def spelled(lines: Mapping[Meaning, str]) -> dict[str, Meaning]:
    """Return each name of each line with the meaning of the line."""
    return {name: meaning for meaning, names in lines.items() for name in names.split()}


# HTTP. A 5xx that has no line here counts as 500, a 4xx as 400 (RFC 9110 15).

RETRYABLE_STATUSES = frozenset(
    {408, 421, 425, 429, 500, 502, 503, 504, 520, 521, 522, 523, 524, 525, 527, 529, 530, 598, 599}
)
"""The statuses that are retried without further evidence."""

STATUS_CAUSES: Mapping[int, Cause] = {
    **dict.fromkeys((401, 407), Cause.unauthorized),
    **dict.fromkeys((408, 504, 522, 524, 598, 599), Cause.timeout),
    429: Cause.rate_limited,
    **dict.fromkeys((409, 423), Cause.conflict),
    **dict.fromkeys((421, 425, 503, 520, 521, 523, 525, 527, 529, 530), Cause.unavailable),
    **dict.fromkeys((500, 502), Cause.server_error),
    **dict.fromkeys((501, 505, 506, 507, 508, 509, 510, 511, 526), Cause.permanent),
}
# Refused before any work was done; 521, 523 and 525 say that no connection to the origin came about.
UNPROCESSED_STATUSES = frozenset({421, 425, 429, 521, 523, 525})
# The same, but only if the server also asks for a wait, which shows that nothing was done.
UNPROCESSED_WHEN_HINTED = frozenset({403, 413, 423, 503, 529})
# Permanent, unless the server says when to come back.
RETRYABLE_WHEN_HINTED = frozenset({403, 409, 413, 423})
# Statuses that a client library makes up, without headers, for an answer it could not read.
MADE_UP_STATUSES: Mapping[int, str] = {400: "aiohttp"}
# Statuses by which some services say that they were asked too often, and their words for it.
MAYBE_THROTTLED = frozenset({400, 403})
RATE_LIMITED = Meaning(True, Cause.rate_limited)
THROTTLING_TEXTS = (
    "throttling",
    "throttled",
    "too many requests",
    "rate exceeded",
    "rate limit exceeded",
    "ratelimitexceeded",
    "rate limit reached",
    "request limit exceeded",
    "request limit reached",
)
# What stands before a status in the text of an error that has it nowhere else.
STATUS_TEXTS = (
    "status code: ",
    "status code ",
    "response code: ",
    "http status ",
    "http error ",
    "http ",
    "error ",
)
# What operating systems and HTTP servers call a transient failure, for errors that have nothing but a text.
TRANSIENT_TEXTS: tuple[tuple[str, Cause], ...] = (
    ("connection refused", Cause.connection),
    ("network is unreachable", Cause.connection),
    ("no route to host", Cause.connection),
    ("connection reset by peer", Cause.disconnected),
    ("broken pipe", Cause.disconnected),
    ("connection timed out", Cause.timeout),
    ("connection timeout", Cause.timeout),
    ("read timed out", Cause.timeout),
    ("request timed out", Cause.timeout),
    ("operation timed out", Cause.timeout),
    ("too many requests", Cause.rate_limited),
    ("service unavailable", Cause.unavailable),
)
# What makes a class speak HTTP, so that its .code from 400 to 599 is a status, and what makes it speak
# something else.
HTTP_NAMES = ("HTTP", "Http", "Response", "Status", "Api", "API")
OTHER_CODES = ("exit", "command", "process", "smtp", "grpc", "ftp", "nntp", "amqp")


# Methods that may be sent twice by definition (RFC 9110 9.2.2), and those that may not.
REPEATABLE_METHODS = frozenset({"GET", "HEAD", "PUT", "DELETE", "OPTIONS", "TRACE"})
UNREPEATABLE_METHODS = frozenset({"POST", "PATCH", "CONNECT"})


# The operating system. Numbers differ by platform and not every platform has every name.

ERRNO_NAMES: Mapping[Meaning, str] = {
    CONNECTION: "ECONNREFUSED EHOSTUNREACH ENETUNREACH EHOSTDOWN ENETDOWN EADDRNOTAVAIL",
    DISCONNECTED: "ECONNRESET ECONNABORTED EPIPE ESHUTDOWN ENETRESET ENOTCONN",
    TIMEOUT: "ETIMEDOUT",
    UNAVAILABLE: "EAGAIN EWOULDBLOCK EINTR ENOBUFS ENOMEM EMFILE ENFILE EBUSY ETXTBSY ESTALE",
    CONFLICT: "ENOLCK EDEADLK",
}
# Windows numbers of the same failures, which Python hands on as errno or as winerror.
WINERRORS: Mapping[int, Meaning] = {
    **dict.fromkeys((10061, 10065, 10064, 10051, 10050, 10049, 1225, 1231, 1232), CONNECTION),
    **dict.fromkeys((10054, 10053, 10052, 1236), DISCONNECTED),
    10060: TIMEOUT,
    **dict.fromkeys((10035, 10055, 10024), UNAVAILABLE),
}
# Every number that the platform names is known: what is not transient is permanent.
ERRNOS: Mapping[int, Meaning] = {
    **dict.fromkeys(errno.errorcode, PERMANENT),
    **WINERRORS,
    **{
        getattr(errno, name): meaning
        for name, meaning in spelled(ERRNO_NAMES).items()
        if hasattr(errno, name)
    },
}
# Numbers that mean the network, also on errors that are not an OSError. Small numbers are as often codes of a
# library.
_NETWORK = (CONNECTION, DISCONNECTED, TIMEOUT)
NETWORK_ERRNOS: Mapping[int, Meaning] = {
    number: meaning for number, meaning in ERRNOS.items() if number > 90 and meaning in _NETWORK
}
# What asyncio and uvloop say where every address of a host failed; each number behind it is one address.
ALL_ADDRESSES_FAILED = "Multiple exceptions: "
# An `OSError` of http.client (urllib3, requests): a proxy refused CONNECT with the status that follows.
TUNNEL_REFUSED = "Tunnel connection failed: "
TELLING_TEXTS = (ALL_ADDRESSES_FAILED, TUNNEL_REFUSED)
# Asked in this order, before the number: these classes often come without one.
BUILTINS: tuple[tuple[type[OSError], Meaning], ...] = (
    (ConnectionRefusedError, CONNECTION),
    (TimeoutError, TIMEOUT),
    (ConnectionResetError, DISCONNECTED),
    (ConnectionAbortedError, DISCONNECTED),
    (BrokenPipeError, DISCONNECTED),
    (BlockingIOError, UNAVAILABLE),
    (InterruptedError, UNAVAILABLE),
    (FileNotFoundError, PERMANENT),
    (PermissionError, PERMANENT),
    (FileExistsError, PERMANENT),
    (IsADirectoryError, PERMANENT),
    (NotADirectoryError, PERMANENT),
    (ProcessLookupError, PERMANENT),
    (ChildProcessError, PERMANENT),
)

# Name resolution, in numbers that socket knows; gaierror has a number space of its own.
DNS_NAMES: Mapping[Meaning, str] = {
    CONNECTION: "EAI_AGAIN EAI_MEMORY EAI_SYSTEM",
    NO_SUCH_NAME: "EAI_NONAME EAI_NODATA EAI_FAIL EAI_FAMILY EAI_ADDRFAMILY EAI_SERVICE",
}
DNS_TRY_AGAIN = 2  # h_errno of socket.herror, the same everywhere
# Handshakes that broke rather than failed.
TLS_TRANSIENT = frozenset(
    {
        "UNEXPECTED_EOF_WHILE_READING",
        "TLSV1_ALERT_INTERNAL_ERROR",
        "BAD_RECORD_MAC",
        "DECRYPTION_FAILED_OR_BAD_RECORD_MAC",
        "SSLV3_ALERT_BAD_RECORD_MAC",
    }
)

# Attribute names, in the order in which they are read.

RESPONSE_ATTRIBUTES = ("response", "resp", "raw_response", "http_response", "response_info")
RESPONSE_STATUSES = ("status_code", "status", "code")
RESPONSE_KEYS = ("status", "status_code", "statusCode")
# "code" is not here: it is an SMTP, AMQP, libcurl, MongoDB, WebSocket or exit code as often as a status.
# It counts beside headers, and in classes whose name says HTTP.
ERROR_STATUSES = ("status_code", "status", "http_status", "response_code", "errcode")
HEADER_ATTRIBUTES = ("headers", "resp_headers", "response_headers")
OWN_RESPONSE = (*ERROR_STATUSES, "meta", "code")
# The first is python-telegram-bot's, whose retry_after warns when it is read.
DELAY_ATTRIBUTES = (
    "_retry_after",
    "retry_after",
    "retry_after_s",
    "retry_after_secs",
    "retry_after_seconds",
    "backoff",
)
# True is a strong word. False is weak: several libraries say it of a refused connection.
CLAIM_ATTRIBUTES = ("retryable", "retriable", "should_retry")
# Where the code or the message of an error may be, on the exception or in its body.
MESSAGE_ATTRIBUTES = ("code", "error_code", "__type", "type", "error", "body", "message", "msg", "detail")
SQLSTATE_ATTRIBUTES = ("sqlstate", "pgcode")
INNER_ATTRIBUTES = (
    "orig",
    "inner",
    "inner_exception",
    "reason",
    "os_error",
    "real_error",
    "original_exc",
    "original_error",
    "original_exception",
    "cause",
    "error",
    "exception",
    "source",
)
# All of these at once: most errors have none, and need not be asked one by one. In this order, since reading
# "code" warns on some that have a "status".
EVIDENCE = (
    *RESPONSE_ATTRIBUTES,
    *HEADER_ATTRIBUTES,
    *DELAY_ATTRIBUTES,
    *CLAIM_ATTRIBUTES,
    *SQLSTATE_ATTRIBUTES,
    *OWN_RESPONSE,
)
# The same as names in an instance's own __dict__. Every OSError has its "errno" on the class instead.
EVIDENCE_NAMES = frozenset(EVIDENCE) | {"errno", "body"}
# Those that authors and users set on a class, also after it was looked up.
SAID_BY_CLASS = (*CLAIM_ATTRIBUTES, "retry_after")
