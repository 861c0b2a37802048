"""Compose a dead letter from the fields of `DeadLetters.put`: bounded, and with secrets masked."""

from __future__ import annotations

# `format_traceback` needs the first two: a child forked in the middle of an import would wait for it for
# ever.
import tokenize  # noqa: F401  # pyright: ignore[reportUnusedImport]
import traceback  # noqa: F401  # pyright: ignore[reportUnusedImport]
from datetime import UTC
from hashlib import sha256

from .._base.callables import name_of
from .._base.checks import number, whole
from .._base.json_safe import JSONCopy, escape_surrogates
from .._base.text import format_traceback, safe_str, type_name
from ..classify import verdict
from ._letter import DeadLetter, iso, new_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime
    from typing import Any, TypedDict

    from .._base.json_safe import Masking

    Moment = float | datetime | str

    class Fields(TypedDict, total=False):
        """The keywords of ``DeadLetters.put``."""

        payload: object
        function: Callable[..., Any] | str | None
        error: BaseException | str | None
        failure_code: object
        attempts: int
        first_attempt_at: Moment | None
        last_attempt_at: Moment | None
        message_id: object
        correlation_id: object
        idempotency_key: object
        replayable: bool
        replay_instructions: str | None
        queue: str | None


# Limits in characters: of a message and instructions, of a traceback, of a name, of an identifier.
_MESSAGE, _TRACEBACK, _NAME, _IDENTIFIER = 4000, 16_000, 300, 500


def compose(fields: dict[str, Any], queue: str, now: float, limit: int, masking: Masking) -> DeadLetter:
    """Return a new letter for a queue, with a payload of at most ``limit`` bytes.

    ``fields`` has all the keywords of `DeadLetters.put`.
    """
    error, function, code = fields["error"], fields["function"], fields["failure_code"]
    is_error = isinstance(error, BaseException)
    copy = JSONCopy(limit=limit, masking=masking)
    trace = format_traceback(error, masking.mask_text) if is_error else None
    if code is None and isinstance(error, Exception):
        found = verdict(error)
        code = found.cause if found.status is None else found.status
    if function is not None and not isinstance(function, str):
        function = name_of(function)
    return DeadLetter(
        id=new_id(now),
        queue=queue,
        idempotency_key=_identifier(fields["idempotency_key"]),
        first_attempt_at=_moment("first_attempt_at", fields["first_attempt_at"]),
        enqueued_at=iso(now),
        payload=copy.copy(fields["payload"]),
        payload_masked=copy.masked,
        function=None if function is None else escape_surrogates(function[:_NAME]),
        error_type=type_name(error) if is_error else None,
        error_message=_field(masking, "error_message", error, _MESSAGE),
        traceback=_field(masking, "traceback", trace, _TRACEBACK),
        failure_code=None if code is None else escape_surrogates(safe_str(code)[:_NAME]),
        attempts=whole("the attempts of a dead letter", fields["attempts"], at_least=0),
        last_attempt_at=_moment("last_attempt_at", fields["last_attempt_at"]) or iso(now),
        dead_lettered_at=iso(now),
        message_id=_identifier(fields["message_id"]),
        correlation_id=_identifier(fields["correlation_id"]),
        replayable=bool(fields["replayable"]),
        replay_instructions=_field(masking, "replay_instructions", fields["replay_instructions"], _MESSAGE),
    )


def _field(masking: Masking, name: str, value: object, limit: int) -> str | None:
    """Return a text field, masked and bounded."""
    return None if value is None else masking.mask_field(name, safe_str(value), limit)


def _identifier(value: Any) -> str | None:
    """Return an identifier as text. A long one is cut, with a digest of the whole: it stays unique.

    >>> _identifier(7), len(_identifier("x" * 10_000))
    ('7', 565)
    """
    if value is None:
        return None
    text = escape_surrogates(safe_str(value))
    if len(text) <= _IDENTIFIER:
        return text
    return f"{text[:_IDENTIFIER]}#{sha256(text.encode()).hexdigest()}"


def _moment(name: str, value: Any) -> str | None:
    """Return a time as ISO 8601 in UTC: from seconds since 1970, a ``datetime``, or a text, as it is.

    >>> _moment("at", 0.5)
    '1970-01-01T00:00:00.500000+00:00'
    """
    if value is None:
        return None
    if isinstance(value, str):
        return escape_surrogates(value[:_NAME])
    if hasattr(value, "astimezone"):
        return str(value.astimezone(UTC).isoformat(timespec="microseconds"))
    return iso(number(name, value))
