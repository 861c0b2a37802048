"""Read the error codes of each client library: network, services and databases.

One short function per package. It takes the exception and returns the meaning of its code with a few words
for the reason (and a delay, if there is one), or None where the exception carries no code. ``READERS`` maps
packages and classes to these functions. Codes are read before the HTTP status, since many have the same names
and numbers. An engine's own number comes before the SQLSTATE, which is coarser and sometimes wrong. Methods
are called only here, and only those of the package in question.
"""

from __future__ import annotations

import sys
from enum import Enum
from itertools import islice

from . import _table_codes as table
from . import _table_statuses as t
from ._probe import DICT, TUPLE, call, get, has_none_of, is_a, item, items, message, text, texts, whole

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

    from ._table_statuses import Meaning

    Answer = tuple[Meaning, str] | tuple[Meaning, str, float] | None
    Reader = Callable[[BaseException], Answer]

_MOST_METADATA = 200


def _said(texts: tuple[tuple[str, Meaning], ...], found: str, what: str) -> tuple[Meaning, str] | None:
    """Return the meaning of the first of these texts that occurs in a message, and the text in words."""
    lower = found.lower()
    return next(((meaning, f"{what}: {words}") for words, meaning in texts if words in lower), None)


def _looked_up(known: Mapping[Any, Meaning], code: int | str | None, what: str) -> Answer:
    """Return the meaning of a code that a table has, and the code in words; None for other codes.

    >>> _looked_up(table.MYSQL, 1213, "MySQL error")[1]
    'MySQL error 1213'
    """
    meaning = None if code is None else known.get(code)
    return None if meaning is None else (meaning, f"{what} {code}")


def is_named(exc: BaseException, name: str) -> bool:
    """Return whether an exception is of a class of this name, or of one that derives from it."""
    return name in [base.__name__ for base in type(exc).__mro__]


def _first(exc: BaseException) -> Any:
    """Return the first argument that an exception was made with."""
    return next(iter(exc.args), None)


# The standard library


def _tls(exc: BaseException) -> Answer:
    """Read OpenSSL's ``reason``, and recognise a certificate that was not accepted."""
    if is_named(exc, "SSLCertVerificationError"):
        return t.PERMANENT, "certificate verify failed"
    reason = text(get(exc, "reason"))
    if reason is None:
        return None
    return t.DISCONNECTED if reason in t.TLS_TRANSIENT else t.PERMANENT, f"TLS {reason}"


def _name_resolution(exc: BaseException) -> Answer:
    """Read the number of ``gaierror`` or ``herror``, which have number spaces of their own.

    The numbers of ``EAI_AGAIN`` and its neighbours differ by platform, so they are looked up in ``socket``.
    """
    number = whole(get(exc, "errno"))
    if is_named(exc, "herror"):
        meaning = t.CONNECTION if number == t.DNS_TRY_AGAIN else t.NO_SUCH_NAME
        return meaning, f"name resolution (h_errno {number})"
    if number is None:
        return t.CONNECTION, "name resolution"
    socket = sys.modules.get("socket", sys.modules.get("_socket"))
    for name, meaning in t.spelled(t.DNS_NAMES).items():
        if whole(get(socket, name)) == number:
            return meaning, f"name resolution ({name})"
    return t.NO_SUCH_NAME, f"name resolution (error {number})"


def _smtp(exc: BaseException) -> Answer:
    """Read the reply code of smtplib: of the error, or the worst of all refused recipients."""
    recipients = get(exc, "recipients")
    if is_a(recipients, DICT):  # address: (code, text), one for each that was refused
        codes = [whole(reply[0]) for reply in items(recipients) if is_a(reply, TUPLE) and reply]
    else:
        codes = [whole(get(exc, "smtp_code"))]
    return _smtp_replies(exc, codes)


def _aiosmtplib(exc: BaseException) -> Answer:
    """Read the reply code of aiosmtplib, which has one error for each refused recipient."""
    refused = items(get(exc, "recipients"))  # one error for each
    return _smtp_replies(exc, [whole(get(error, "code")) for error in refused or [exc]])


def _smtp_replies(exc: BaseException, codes: list[int | None]) -> Answer:
    """Return the meaning of the worst reply: 5yz is permanent, 4yz is transient (RFC 5321 4.2.1).

    None if no reply is an error. A mail to several recipients is repeated as a whole, so the worst decides.
    """
    worst = max([code for code in codes if code is not None and 400 <= code <= 599], default=None)
    if worst is None:
        return None
    if worst in table.SMTP_UNAUTHORIZED:
        return t.UNAUTHORIZED, f"SMTP {worst}"
    # The base class itself answers to QUIT as well, when the mail was accepted already.
    meaning = t.UNAVAILABLE if type(exc).__name__ == "SMTPResponseException" else t.UNAVAILABLE_NOT_SENT
    return meaning if worst < 500 else t.PERMANENT, f"SMTP {worst}"


# HTTP clients, SSH, WebSockets, LDAP, AMQP


def _curl(exc: BaseException) -> Answer:
    """Read libcurl's code: an attribute of curl_cffi, the first argument of pycurl.

    Code 28 is any timeout; the text tells whether the connection had come about.
    """
    code = whole(get(exc, "code"))
    if code is None:  # pycurl
        code = whole(_first(exc))
    if not code:  # a response was received, and its status decides
        return None
    said_so = " ".join(texts(exc)).lower()
    if code == 28 and any(never_sent in said_so for never_sent in table.CURL_NEVER_SENT):
        return t.CONNECTION, "curl 28 before anything was sent"
    return table.CURL.get(code, t.PERMANENT), f"curl {code}"


def _mqtt(exc: BaseException) -> Answer:
    """Read why a broker refused the connection: a return code, or a reason code of MQTT 5."""
    given = get(exc, "rc")  # a number, or one of MQTT 5 with its value
    code = whole(given) if whole(given) is not None else whole(get(given, "value"))
    return None if code is None else (table.MQTT.get(code, t.PERMANENT), f"MQTT {code}")


def _http2(exc: BaseException) -> Answer:
    """Recognise a stream that the server refused before any processing, by its text."""
    return (t.UNAVAILABLE_NOT_SENT, "HTTP/2 REFUSED_STREAM") if table.HTTP2_REFUSED in message(exc) else None


def refused_tunnel(exc: BaseException) -> Answer:
    """Read the status with which a proxy refused a tunnel. Nothing was sent through it.

    >>> refused_tunnel(OSError("Tunnel connection failed: 407 Proxy Authentication Required"))[1]
    'the proxy answered 407'
    """
    status, _, _ = message(exc).removeprefix(t.TUNNEL_REFUSED).partition(" ")
    if len(status) != 3 or not (status.isascii() and status.isdigit()):
        return None
    meaning = t.UNAVAILABLE_NOT_SENT if int(status) in t.RETRYABLE_STATUSES else t.PERMANENT
    return t.UNAUTHORIZED if status in ("401", "407") else meaning, f"the proxy answered {status}"


def _too_many(exc: BaseException) -> Answer:
    """Read what urllib3 says after its own retries: "too many 503 error responses", or redirects."""
    words = message(exc).split(" ", 3)
    if words[:2] != ["too", "many"] or len(words) < 3:
        return None
    again = words[2] in map(str, t.RETRYABLE_STATUSES)
    return t.UNAVAILABLE if again else t.PERMANENT, f"too many {words[2]}"


def _tornado(exc: BaseException) -> Answer:
    """Read tornado's 599: no response was received. With libcurl, the errno is libcurl's code."""
    if whole(get(exc, "code")) != table.TORNADO_NO_RESPONSE:
        return None
    curl = whole(get(exc, "errno"))
    if curl is not None:
        return table.CURL.get(curl, t.PERMANENT), f"curl {curl}"
    nothing = t.wrapping(t.DISCONNECTED), "tornado 599: no response"
    return _said(table.TORNADO, message(exc), "tornado 599") or nothing


def _ssh(exc: BaseException) -> Answer:
    """Read the text of paramiko, whose SSHException stands for everything."""
    return _said(table.SSH, message(exc), "SSH")


def _websocket(exc: BaseException) -> Answer:
    """Read the close code that was received; none at all counts as a lost connection."""
    code = whole(get(get(exc, "rcvd"), "code"))  # not .code, which warns
    if code is None:
        code = table.WEBSOCKET_NO_CLOSE
    return table.WEBSOCKET_CLOSES.get(code, t.PERMANENT), f"WebSocket close {code}"


def _amqp(exc: BaseException) -> Answer:
    """Read the reply code of a broker that closed the channel or the connection."""
    code = whole(get(exc, "reply_code"))
    return (table.AMQP.get(code, t.PERMANENT), f"AMQP {code}") if code else None


def _ldap(exc: BaseException) -> Answer:
    """Read the result code of the directory."""
    return _looked_up(table.LDAP, whole(get(exc, "result")), "LDAP result")


# Kafka


def _kafka(exc: BaseException) -> Answer:
    """Read ``retriable`` of kafka-python and aiokafka: a True is reliable.

    A False is the default of their base class, and says nothing.
    """
    if get(exc, "retriable") is not True:
        return None
    return t.UNAVAILABLE, f"{type(exc).__name__} with retriable=True"


def _librdkafka(exc: BaseException) -> Answer:
    """Read the name of librdkafka's error; a fatal one is permanent."""
    error = _first(exc)
    name = text(call(error, "name"))
    if name is None:
        return None
    if call(error, "fatal") is True:
        return t.PERMANENT, f"Kafka {name} (fatal)"
    meaning = table.KAFKA.get(name, t.UNAVAILABLE if call(error, "retriable") is True else t.PERMANENT)
    return meaning, f"Kafka {name}"


# gRPC, Google, AWS, Stripe


def _grpc(exc: BaseException) -> Answer:
    """Read the status of grpcio, and a delay or a refusal in its trailing metadata.

    Pushback (gRFC A6) comes before RetryInfo. Pushback that is negative or unreadable says not to retry.
    """
    found = _grpc_meaning(get(call(exc, "code"), "name"), call(exc, "details"))
    if found is None:
        return None
    meaning, reason = found
    delay, status = None, b""
    for key, value in _metadata(exc):
        if key == "grpc-retry-pushback-ms":
            delay = pushback(text(value) or "")
            if delay is None:
                return t.PERMANENT, f"{reason}, which the server says not to retry"
            break
        if key == "grpc-status-details-bin" and isinstance(value, bytes):
            status = bytes(value)
    if delay is None:
        delay = retry_info(status)
    return (meaning, reason) if delay is None else (meaning, f"{reason} with a delay of {delay:g}", delay)


def _metadata(exc: BaseException) -> list[tuple[str | None, Any]]:
    """Return names and values of the trailing metadata; none where there are none, or reading them raises."""
    try:
        return [(text(key), value) for key, value in islice(call(exc, "trailing_metadata"), _MOST_METADATA)]
    except Exception:  # noqa: BLE001 - None, or foreign code
        return []


def _grpc_meaning(status: object, details: object) -> tuple[Meaning, str] | None:
    """Return the meaning of the name of a gRPC status; its details may show that nothing was sent.

    >>> _grpc_meaning("UNAVAILABLE", "failed to connect to all addresses")[1]
    'gRPC UNAVAILABLE: failed to connect to all addresses'
    """
    name = text(status) or ""
    if name not in table.GRPC:
        return None
    found = _said(table.GRPC_DETAILS.get(name, ()), text(details) or "", f"gRPC {name}")
    return found or (table.GRPC[name], f"gRPC {name}")


def _grpclib(exc: BaseException) -> Answer:
    """Read the status of grpclib."""
    return _grpc_meaning(get(get(exc, "status"), "name"), get(exc, "message"))


def grpc_enum(exc: BaseException) -> Answer:
    """Read a gRPC status on an exception of any package: a member of an enumeration with gRPC's names.

    Clients that are generated or written by hand keep ``grpc.StatusCode``, or a copy of it, on their errors.
    """
    for attribute in ("code", "status", "status_code"):
        found = get(exc, attribute)
        members = get(type(found), "_member_map_") if isinstance(found, Enum) else None
        if is_a(members, DICT) and table.GRPC_TELLING.issubset(members):
            return _grpc_meaning(get(found, "name"), text(get(exc, "message")) or message(exc))
    return None


def _google(exc: BaseException) -> Answer:
    """Read the gRPC status of Google's clients, and the RetryInfo that they have decoded.

    Without a gRPC status, as for services that speak REST, the HTTP status decides.
    """
    found = _grpc_meaning(get(get(exc, "grpc_status_code"), "name"), get(exc, "message"))
    if found is None:
        return None
    meaning, reason = found
    for detail in items(get(exc, "details")):
        if type(detail).__name__ == "RetryInfo":
            wait = get(detail, "retry_delay")
            delay = seconds(whole(get(wait, "seconds")), whole(get(wait, "nanos")))
            if delay is not None:
                return meaning, f"{reason} with RetryInfo of {delay:g}", delay
    return meaning, reason


def _google_reason(exc: BaseException) -> Answer:
    """Read the reason of a 403, by which Google's REST services mean a rate limit."""
    reasons = [text(item(detail, "reason")) for detail in items(get(exc, "error_details"))]
    limit = next((reason for reason in reasons if reason in table.GOOGLE_RATE_LIMITS), None)
    return None if limit is None else (t.RATE_LIMITED_NOT_SENT, f"Google {limit}")


def aws(response: object) -> Answer:
    """Read the code in a response of botocore: AWS sends throttling as HTTP 400.

    >>> aws({"Error": {"Code": "SlowDown"}})[1]
    'AWS SlowDown'
    """
    return _looked_up(table.AWS, text(item(item(response, "Error"), "Code")), "AWS")


def _aws(exc: BaseException) -> Answer:
    """Read the code in the response of a ClientError."""
    return aws(get(exc, "response"))


def _stripe(exc: BaseException) -> Answer:
    """Read ``should_retry``: a False of Stripe is reliable, unlike that of other libraries."""
    return (t.PERMANENT, "Stripe says not to retry") if get(exc, "should_retry") is False else None


# What a gRPC server says about retrying: pushback, and RetryInfo in a ``google.rpc.Status``. Only the few
# fields needed are parsed, without protobuf. A message is a sequence of fields: a varint of number and type,
# then a value that is a varint, eight or four bytes, or a length and that many bytes.

_MOST_BYTES = 8192  # gRPC itself refuses longer metadata
_MOST_FIELDS = 16  # of each message, and of each message in it
_VARINT, _EIGHT_BYTES, _LENGTH, _FOUR_BYTES = 0, 1, 2, 5
_STATUS_DETAILS = 3  # of google.rpc.Status, each an Any
_ANY_TYPE, _ANY_VALUE = 1, 2
_RETRY_DELAY = 1  # of google.rpc.RetryInfo, a Duration
_SECONDS, _NANOS = 1, 2
_RETRY_INFO = b"google.rpc.RetryInfo"


def pushback(text: str) -> float | None:
    """Return the seconds of ``grpc-retry-pushback-ms``; None, if negative or unreadable: do not retry (A6).

    >>> pushback("250"), pushback("-1"), pushback("soon")
    (0.25, None, None)
    """
    digits = text.strip(" \t")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 10):
        return None
    milliseconds = int(digits)
    return milliseconds / 1000 if milliseconds < 2**31 else None


def retry_info(status: bytes) -> float | None:
    """Return the seconds of the RetryInfo in a serialized ``google.rpc.Status``; None if there is none.

    >>> retry_info(b"\\x1a\\x22\\x0a\\x1cx.com/" + _RETRY_INFO + b"\\x00\\x00") is None
    True
    """
    try:
        for number, detail in _fields(status) if len(status) <= _MOST_BYTES else ():
            held: Any = dict(_fields(detail)) if number == _STATUS_DETAILS else {}
            if held.get(_ANY_TYPE, b"").endswith(_RETRY_INFO):
                wait = dict(_fields(dict(_fields(held[_ANY_VALUE]))[_RETRY_DELAY]))
                return seconds(wait.get(_SECONDS, 0), wait.get(_NANOS, 0))
    except (AttributeError, LookupError, TypeError, ValueError):  # cut short, or a field of another type
        pass
    return None


def seconds(whole: object, nanos: object) -> float | None:
    """Return a Duration as seconds; None if it is negative, absurd or not a Duration.

    >>> seconds(1, 500_000_000), seconds(-1, 0), seconds("1", 0)
    (1.5, None, None)
    """
    if type(whole) is not int or type(nanos) is not int or not (0 <= whole < 2**40 and 0 <= nanos < 10**9):
        return None
    return whole + nanos / 1e9


def _fields(message: Any) -> Iterator[tuple[int, Any]]:
    """Yield number and value of the fields of a message; raise ValueError if it is cut short.

    Varints are yielded as numbers, all other types as bytes. At most 16 fields are read.
    """
    position = 0
    for _ in range(_MOST_FIELDS):
        if position >= len(message):
            return
        key, position = _varint(message, position)
        kind = key & 7
        if kind == _VARINT:
            value, position = _varint(message, position)
        else:
            if kind == _LENGTH:
                length, position = _varint(message, position)
            else:
                length = {_EIGHT_BYTES: 8, _FOUR_BYTES: 4}.get(kind, len(message) + 1)
            value = message[position : position + length]
            position += length
            if position > len(message):
                raise ValueError("cut short")
        yield key >> 3, value


def _varint(message: bytes, position: int) -> tuple[int, int]:
    """Return a number of variable length, and the position behind it."""
    value = shift = 0
    while shift < 70:
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise ValueError("a varint without end")


# Databases

_NEVER_REACHED = t.wrapping(t.CONNECTION)


def sqlstate(exc: BaseException) -> Answer:
    """Read the SQLSTATE that an exception of any package carries, as ``sqlstate`` or ``pgcode``.

    psycopg and asyncpg have the first, psycopg2 the second.
    """
    if has_none_of(exc, t.SQLSTATE_ATTRIBUTES):
        return None
    return _sqlstate(get(exc, "sqlstate")) or _sqlstate(get(exc, "pgcode"))


def _sqlstate(value: object) -> Answer:
    """Return the meaning of a value if it is an SQLSTATE: five digits and capitals.

    >>> _sqlstate("40P01")[1], _sqlstate("HY000"), _sqlstate("busy")
    ('SQLSTATE 40P01 deadlock', None, None)
    """
    code = text(value) or ""
    plain = len(code) == 5 and code.isascii() and code.isalnum() and code == code.upper()
    if not plain or code == table.SQLSTATE_SAYS_NOTHING:
        return None
    meaning = table.SQLSTATES.get(code, t.PERMANENT)
    if code.startswith(table.SQLSTATE_UNAUTHORIZED):
        meaning = t.UNAUTHORIZED
    return meaning, f"SQLSTATE {code} {table.SQLSTATE_NAMES.get(code, '')}".rstrip()


def _mysql(exc: BaseException) -> Answer:
    """Read the number of PyMySQL, aiomysql, asyncmy and mysqlclient: the first argument."""
    return _looked_up(table.MYSQL, whole(_first(exc)), "MySQL error")


def _mysql_connector(exc: BaseException) -> Answer:
    """Read the number of MySQL Connector and MariaDB: an attribute."""
    if type(exc).__name__.endswith("TimeoutError"):  # of the client; it has the number of a slow query
        return t.TIMEOUT, type(exc).__name__
    return _looked_up(table.MYSQL, whole(get(exc, "errno")), "MySQL error")


def _sql_server(exc: BaseException) -> Answer:
    """Read the number of pymssql or pytds."""
    first = _first(exc)
    if is_a(first, TUPLE):  # pymssql: (number, text)
        first = next(iter(first), None)
    number = whole(first)
    if number is None:
        number = whole(get(exc, "msg_no"))
    return _looked_up(table.SQLSERVER, number, "SQL Server error")


def _odbc(exc: BaseException) -> Answer:
    """Read the SQLSTATE of pyodbc: the first argument."""
    return _sqlstate(_first(exc))


def _pg8000(exc: BaseException) -> Answer:
    """Read the SQLSTATE of pg8000: an entry of the first argument."""
    return _sqlstate(item(_first(exc), "C"))


def _libpq(exc: BaseException) -> Answer:
    """Read the text of libpq where there is no SQLSTATE, as for every failure to connect."""
    return None if sqlstate(exc) is not None else _said(table.LIBPQ, message(exc), "PostgreSQL")


def _sqlite(exc: BaseException) -> Answer:
    """Recognise a lock by SQLite's code; other codes are permanent."""
    code = whole(get(exc, "sqlite_errorcode"))
    if code is not None:
        locked = code & 0xFF in table.SQLITE_LOCKED  # the other bits tell kinds of locks apart
        return t.CONFLICT_NOT_SENT if locked else t.PERMANENT, f"SQLite error {code}"
    # Raised by hand, or unpickled: only the text is left.
    return (t.CONFLICT_NOT_SENT, "SQLite says locked") if "is locked" in message(exc) else None


def _oracle(exc: BaseException) -> Answer:
    """Read Oracle's code, and ``isrecoverable`` where the table does not have it."""
    error = _first(exc)
    code = text(get(error, "full_code"))
    known = _looked_up(table.ORACLE, code, "Oracle")
    if known is not None or get(error, "isrecoverable") is not True:
        return known  # False says nothing: a refused connection has it, too
    return t.DISCONNECTED, f"Oracle {code}, recoverable"


def _redis_reply(exc: BaseException) -> Answer:
    """Read the first word of an error reply, as in ``LOADING Redis is loading the dataset in memory``."""
    return _looked_up(table.REDIS, message(exc).split(" ", 1)[0], "Redis")


def _redis_connection(exc: BaseException) -> Answer:
    """Recognise by its text a connection that never came about."""
    said_so = message(exc)
    if "max number of clients" in said_so:
        return t.UNAVAILABLE_NOT_SENT, "Redis: max number of clients"
    return (_NEVER_REACHED, "Redis, on connecting") if "connecting to" in said_so else None


def _mongodb(exc: BaseException) -> Answer:
    """Read the labels of MongoDB, then its code: the server itself labels what may be retried."""
    for labels, meaning in table.MONGODB_LABELS:
        if all(call(exc, "has_error_label", label) is True for label in labels.split()):
            return meaning, f"MongoDB {labels}"
    return _looked_up(table.MONGODB, whole(get(exc, "code")), "MongoDB error")


READERS: Mapping[str, Reader] = {
    "aiomqtt.MqttConnectError": _mqtt,
    "aiosmtplib": _aiosmtplib,
    "amqp": _amqp,
    "botocore": _aws,
    "confluent_kafka": _librdkafka,
    "curl_cffi": _curl,
    "google": _google,
    "googleapiclient": _google_reason,
    "grpc": _grpc,
    "grpclib": _grpclib,
    "httpcore.ProxyError": refused_tunnel,
    "httpcore.RemoteProtocolError": _http2,
    "httpx.ProxyError": refused_tunnel,
    "httpx.RemoteProtocolError": _http2,
    "kafka": _kafka,
    "ldap3": _ldap,
    "mariadb": _mysql_connector,
    "mysql": _mysql_connector,
    "oracledb": _oracle,
    "paramiko.SSHException": _ssh,
    "pg8000": _pg8000,
    "pika": _amqp,
    "psycopg.OperationalError": _libpq,
    "psycopg2.OperationalError": _libpq,
    "pycurl": _curl,
    "pymongo.AutoReconnect": _mongodb,
    "pymongo.OperationFailure": _mongodb,
    "pymssql": _sql_server,
    "pymysql": _mysql,
    "pyodbc": _odbc,
    "pytds": _sql_server,
    "redis.ConnectionError": _redis_connection,
    "redis.ResponseError": _redis_reply,
    "redis.TimeoutError": _redis_connection,
    "smtplib": _smtp,
    "socket": _name_resolution,
    "sqlite3": _sqlite,
    "ssl": _tls,
    "stripe": _stripe,
    "tornado.HTTPClientError": _tornado,
    "urllib3.ResponseError": _too_many,
    "websockets.ConnectionClosed": _websocket,
}
