"""What a gRPC server says about retrying: pushback, and RetryInfo in a ``google.rpc.Status``.

Only the few fields needed are read from the wire format, without protobuf. A message is a row of fields:
a varint of number and type, then a value that is a varint, eight or four bytes, or a length and as many
bytes. Whatever is cut short or of another type is garbage, and garbage is no hint.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_MOST_BYTES = 8192  # gRPC itself refuses longer metadata
_MOST_FIELDS = 16  # of each message, and of each message in it
_VARINT, _EIGHT_BYTES, _LENGTH, _FOUR_BYTES = 0, 1, 2, 5
_STATUS_DETAILS = 3  # of google.rpc.Status, each an Any
_ANY_TYPE, _ANY_VALUE = 1, 2
_RETRY_DELAY = 1  # of google.rpc.RetryInfo, a Duration
_SECONDS, _NANOS = 1, 2
_RETRY_INFO = b"google.rpc.RetryInfo"


def pushback(text: str) -> float | None:
    """Seconds of ``grpc-retry-pushback-ms``; None, if negative or unreadable, means not to retry (gRFC A6).

    >>> pushback("250"), pushback("-1"), pushback("soon")
    (0.25, None, None)
    """
    digits = text.strip(" \t")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 10):
        return None
    milliseconds = int(digits)
    return milliseconds / 1000 if milliseconds < 2**31 else None


def retry_info(status: bytes) -> float | None:
    """Seconds of the RetryInfo in a serialized ``google.rpc.Status``; None if there is none.

    >>> retry_info(b"\\x1a\\x22\\x0a\\x1cx.com/" + _RETRY_INFO + b"\\x00\\x00") is None
    True
    """
    try:
        return _retry_info(status)
    except (IndexError, ValueError):
        return None


def _retry_info(status: bytes) -> float | None:
    if len(status) > _MOST_BYTES:
        return None
    for number, detail in _fields(status):
        if number != _STATUS_DETAILS or not isinstance(detail, bytes):
            continue
        held = dict(_fields(detail))
        kind, value = held.get(_ANY_TYPE), held.get(_ANY_VALUE)
        if isinstance(kind, bytes) and kind.endswith(_RETRY_INFO) and isinstance(value, bytes):
            return _duration(dict(_fields(value)).get(_RETRY_DELAY))
    return None


def _duration(message: int | bytes | None) -> float | None:
    if not isinstance(message, bytes):
        return None
    held = dict(_fields(message))
    return seconds(held.get(_SECONDS, 0), held.get(_NANOS, 0))


def seconds(whole: object, nanos: object) -> float | None:
    """A Duration as seconds; None if it is negative, absurd or no Duration."""
    if type(whole) is not int or type(nanos) is not int or not (0 <= whole < 2**40 and 0 <= nanos < 10**9):
        return None
    return whole + nanos / 1e9


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    position = 0
    for _ in range(_MOST_FIELDS):
        if position >= len(message):
            return
        key, position = _varint(message, position)
        kind = key & 7
        if kind == _VARINT:
            value: int | bytes
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
    value = shift = 0
    while shift < 70:
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise ValueError("a number without end")
