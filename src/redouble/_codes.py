"""Codes of the network and of services, where the same number means another thing to every package.

One short function per package: it takes the exception, and gives the row of the catalogue with a few words
for the reason (and a delay, if it found one), or None where the exception carries no code. ``READERS`` says
who is asked about what, by package or by class. Codes are asked for before the HTTP status, since they
borrow its names and numbers. Methods are called only here, and only those of the package that was named.
"""

from __future__ import annotations

import sys
from enum import Enum

from ._catalogue import (
    ASKED_TO_WAIT,
    BUSY,
    DNS_NAMES,
    DNS_TRY_AGAIN,
    LOST,
    NO_SUCH_NAME,
    PERMANENT,
    RETRYABLE_STATUSES,
    TLS_TRANSIENT,
    TURNED_AWAY,
    UNAUTHORIZED,
    UNREACHED,
    Row,
    wrapping,
)
from ._codebook import (
    AMQP,
    AWS,
    CURL,
    CURL_NEVER_SENT,
    GOOGLE_RATE_LIMITS,
    GRPC,
    GRPC_DETAILS,
    GRPC_TELLING,
    HTTP2_REFUSED,
    KAFKA,
    LDAP,
    MQTT,
    SMTP_UNAUTHORIZED,
    SSH,
    TORNADO,
    TORNADO_NO_RESPONSE,
    WEBSOCKET_CLOSES,
    WEBSOCKET_NO_CLOSE,
)
from ._grpc import pushback, retry_info, seconds
from ._shapes import (
    DICT,
    LIST,
    TUPLE,
    arguments,
    class_name,
    entry,
    lineage,
    message,
    obtained,
    pairs,
    probe,
    real,
    text,
    whole,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    Answer = tuple[Row, str] | tuple[Row, str, float] | None
    Reader = Callable[[BaseException], Answer]

_MOST_RECIPIENTS = 200


def said(texts: tuple[tuple[str, Row], ...], found: str) -> tuple[str, Row] | None:
    """The first of these texts that occurs in what was found, and its row."""
    lower = found.lower()
    return next((line for line in texts if line[0] in lower), None)


def looked_up(table: Mapping[Any, Row], code: int | str | None, what: str) -> Answer:
    """The row of a code that a table knows, with a name for the kind of code."""
    row = None if code is None else table.get(code)
    return None if row is None else (row, f"{what} {code}")


# The standard library


def _tls(exc: BaseException) -> Answer:
    if ("ssl", "SSLCertVerificationError") in lineage(type(exc)):
        return PERMANENT, "certificate verify failed"
    reason = text(probe(exc, "reason"))
    if reason is None:
        return None
    return LOST if reason in TLS_TRANSIENT else PERMANENT, f"TLS {reason}"


def _name_resolution(exc: BaseException) -> Answer:
    number = whole(probe(exc, "errno"))
    if ("socket", "herror") in lineage(type(exc)):
        return UNREACHED if number == DNS_TRY_AGAIN else NO_SUCH_NAME, f"name resolution (h_errno {number})"
    if number is None:
        return UNREACHED, "name resolution"
    socket = sys.modules.get("socket", sys.modules.get("_socket"))
    for row, names in DNS_NAMES.items():
        for name in names.split():
            if whole(probe(socket, name)) == number:
                return row, f"name resolution ({name})"
    return NO_SUCH_NAME, f"name resolution (error {number})"


def _smtp(exc: BaseException) -> Answer:
    recipients = probe(exc, "recipients")
    if real(recipients, DICT):  # address: (code, text), one for each that was refused
        replies = list(DICT.values(recipients))[:_MOST_RECIPIENTS]
        codes = [whole(reply[0]) for reply in replies if real(reply, TUPLE) and TUPLE.__len__(reply)]
    else:
        codes = [whole(probe(exc, "smtp_code"))]
    return _smtp_replies(exc, codes)


def _aiosmtplib(exc: BaseException) -> Answer:
    refused = _listed(probe(exc, "recipients"))  # one error for each
    return _smtp_replies(exc, [whole(probe(error, "code")) for error in refused or [exc]])


def _smtp_replies(exc: BaseException, codes: list[int | None]) -> Answer:
    worst = max([code for code in codes if code is not None and 400 <= code <= 599], default=None)
    if worst is None:
        return None
    if worst in SMTP_UNAUTHORIZED:
        return UNAUTHORIZED, f"SMTP {worst}"
    # The base class itself answers to QUIT as well, when the mail was accepted already.
    row = BUSY if class_name(exc) == "SMTPResponseException" else TURNED_AWAY
    return row if worst < 500 else PERMANENT, f"SMTP {worst}"


# HTTP clients, SSH, WebSockets, LDAP, AMQP


def _curl(exc: BaseException) -> Answer:
    code = whole(probe(exc, "code"))
    if code is None:  # pycurl
        code = whole(next(iter(arguments(exc)), None))
    if not code:  # an answer came, and its status tells
        return None
    row = CURL.get(code, PERMANENT)
    texts = " ".join(filter(None, map(text, arguments(exc)[:2]))).lower()
    if code == 28 and any(never_sent in texts for never_sent in CURL_NEVER_SENT):
        return UNREACHED, "curl 28 before anything was sent"
    return row, f"curl {code}"


def _mqtt(exc: BaseException) -> Answer:
    given = probe(exc, "rc")  # a number, or one of MQTT 5 with its value
    code = whole(given) if whole(given) is not None else whole(probe(given, "value"))
    return None if code is None else (MQTT.get(code, PERMANENT), f"MQTT {code}")


def _http2(exc: BaseException) -> Answer:
    return (TURNED_AWAY, "HTTP/2 REFUSED_STREAM") if HTTP2_REFUSED in message(exc) else None


def _too_many(exc: BaseException) -> Answer:
    """urllib3's last word after retries of its own: "too many 503 error responses", or redirects."""
    words = message(exc).split(" ", 3)
    if words[:2] != ["too", "many"] or len(words) < 3:
        return None
    again = words[2] in map(str, RETRYABLE_STATUSES)
    return BUSY if again else PERMANENT, f"too many {words[2]}"


def _tornado(exc: BaseException) -> Answer:
    """599 is what tornado says where no response was received; with libcurl, the errno is libcurl's code."""
    if whole(probe(exc, "code")) != TORNADO_NO_RESPONSE:
        return None
    curl = whole(probe(exc, "errno"))
    if curl is not None:
        return CURL.get(curl, PERMANENT), f"curl {curl}"
    words, row = said(TORNADO, message(exc)) or ("no response", wrapping(LOST))
    return row, f"tornado 599: {words}"


def _ssh(exc: BaseException) -> Answer:
    found = said(SSH, message(exc))
    return None if found is None else (found[1], f"SSH: {found[0]}")


def _websocket(exc: BaseException) -> Answer:
    code = whole(probe(probe(exc, "rcvd"), "code"))  # not .code, which warns
    if code is None:
        code = WEBSOCKET_NO_CLOSE
    return WEBSOCKET_CLOSES.get(code, PERMANENT), f"WebSocket close {code}"


def _amqp(exc: BaseException) -> Answer:
    code = whole(probe(exc, "reply_code"))
    return (AMQP.get(code, PERMANENT), f"AMQP {code}") if code else None


def _ldap(exc: BaseException) -> Answer:
    return looked_up(LDAP, whole(probe(exc, "result")), "LDAP result")


# Kafka


def _kafka(exc: BaseException) -> Answer:
    return (BUSY, f"{class_name(exc)} with retriable=True") if probe(exc, "retriable") is True else None


def _librdkafka(exc: BaseException) -> Answer:
    error = next(iter(arguments(exc)), None)
    name = text(obtained(error, "name"))
    if name is None:
        return None
    if obtained(error, "fatal") is True:
        return PERMANENT, f"Kafka {name} (fatal)"
    row = KAFKA.get(name, BUSY if obtained(error, "retriable") is True else PERMANENT)
    return row, f"Kafka {name}"


# gRPC, Google, AWS, Stripe


def _grpc(exc: BaseException) -> Answer:
    name = text(probe(obtained(exc, "code"), "name"))
    if name is None or name not in GRPC:
        return None
    row, reason = _grpc_row(name, text(obtained(exc, "details")) or "")
    delay, status = None, b""
    for key, value in pairs(obtained(exc, "trailing_metadata")):
        if key == "grpc-retry-pushback-ms":
            delay = pushback(text(value) or "")
            if delay is None:
                return PERMANENT, f"{reason}, which the server says not to retry"
            break
        if key == "grpc-status-details-bin" and real(value, bytes):
            status = bytes(value)
    if delay is None:
        delay = retry_info(status)
    return (row, reason) if delay is None else (row, f"{reason} with a delay of {delay:g}", delay)


def _grpc_row(name: str, details: str) -> tuple[Row, str]:
    found = said(GRPC_DETAILS.get(name, ()), details)
    return (GRPC[name], f"gRPC {name}") if found is None else (found[1], f"gRPC {name}: {found[0]}")


def _grpclib(exc: BaseException) -> Answer:
    name = text(probe(probe(exc, "status"), "name"))
    if name is None or name not in GRPC:
        return None
    return _grpc_row(name, text(probe(exc, "message")) or "")


def grpc_enum(exc: BaseException) -> Answer:
    """A status of gRPC on an exception of any package: a member of an enumeration that has gRPC's names."""
    for attribute in ("code", "status", "status_code"):
        found = probe(exc, attribute)
        members = probe(type(found), "_member_map_") if real(found, Enum) else None
        if real(members, DICT) and GRPC_TELLING.issubset(members):
            name = text(probe(found, "name")) or ""
            if name in GRPC:
                return _grpc_row(name, text(probe(exc, "message")) or message(exc))
    return None


def _google(exc: BaseException) -> Answer:
    name = text(probe(probe(exc, "grpc_status_code"), "name"))
    if name is None or name not in GRPC:
        return None
    row, reason = _grpc_row(name, text(probe(exc, "message")) or "")
    for detail in _listed(probe(exc, "details")):
        if class_name(detail) == "RetryInfo":
            wait = probe(detail, "retry_delay")
            delay = seconds(whole(probe(wait, "seconds")), whole(probe(wait, "nanos")))
            if delay is not None:
                return row, f"{reason} with RetryInfo of {delay:g}", delay
    return row, reason


def _google_reason(exc: BaseException) -> Answer:
    """Google's REST services say with a 403 that they were asked too often."""
    reasons = [text(entry(detail, "reason")) for detail in _listed(probe(exc, "error_details"))]
    limit = next((reason for reason in reasons if reason in GOOGLE_RATE_LIMITS), None)
    return None if limit is None else (ASKED_TO_WAIT, f"Google {limit}")


def _listed(found: object) -> list[object]:
    return LIST.__getitem__(found, slice(_MOST_RECIPIENTS)) if real(found, LIST) else []


def aws(response: object) -> Answer:
    """The code in a response of botocore, which has throttling arrive as HTTP 400."""
    return looked_up(AWS, text(entry(entry(response, "Error"), "Code")), "AWS")


def _aws(exc: BaseException) -> Answer:
    return aws(probe(exc, "response"))


def _stripe(exc: BaseException) -> Answer:
    """Of all who say that an error is not to be retried, Stripe is right."""
    return (PERMANENT, "Stripe says not to retry") if probe(exc, "should_retry") is False else None


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
    "httpcore.RemoteProtocolError": _http2,
    "httpx.RemoteProtocolError": _http2,
    "kafka": _kafka,
    "ldap3": _ldap,
    "paramiko.SSHException": _ssh,
    "pika": _amqp,
    "pycurl": _curl,
    "smtplib": _smtp,
    "socket": _name_resolution,
    "ssl": _tls,
    "stripe": _stripe,
    "tornado.HTTPClientError": _tornado,
    "urllib3.ResponseError": _too_many,
    "websockets.ConnectionClosed": _websocket,
}
