"""How a dead letter is made of what somebody knows of a failed call: bounded, and without secrets."""

from __future__ import annotations

from ._callables import name_of
from ._letters import DeadLetter, iso, new_id
from ._numbers import number, whole
from ._plain import Plain, safe
from ._text import kind_of, shown
from ._traces import traced
from .classify import verdict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime
    from typing import Any, TypedDict

    from ._plain import Masking

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


# In characters: of a message and instructions, of a traceback, of a name, of an identifier.
_MESSAGE, _TRACEBACK, _NAME, _IDENTIFIER = 4000, 16_000, 300, 500


def composed(fields: Fields, *, queue: str, now: float, payload_limit: int, masking: Masking) -> DeadLetter:
    """A new letter for a queue."""
    error, payload = fields.get("error"), fields.get("payload")
    plain = Plain(limit=payload_limit, masking=masking)
    last = _moment("last_attempt_at", fields.get("last_attempt_at"))
    return DeadLetter(
        id=new_id(now),
        queue=queue,
        idempotency_key=_identifier(fields.get("idempotency_key")),
        first_attempt_at=_moment("first_attempt_at", fields.get("first_attempt_at")),
        enqueued_at=iso(now),
        payload=None if payload is None else plain.value(payload),
        payload_masked=plain.masked,
        function=_function(fields.get("function")),
        error_type=kind_of(error) if isinstance(error, BaseException) else None,
        error_message=None if error is None else masking.whole("error_message", shown(error), _MESSAGE),
        traceback=_traceback(error, masking),
        failure_code=_failure_code(fields.get("failure_code"), error),
        attempts=whole("the attempts of a dead letter", fields.get("attempts", 1), at_least=0),
        last_attempt_at=last or iso(now),
        dead_lettered_at=iso(now),
        message_id=_identifier(fields.get("message_id")),
        correlation_id=_identifier(fields.get("correlation_id")),
        replayable=bool(fields.get("replayable", True)),
        replay_instructions=_instructions(fields.get("replay_instructions"), masking),
    )


def _function(function: Any) -> str | None:
    if function is None:
        return None
    return safe((function if isinstance(function, str) else name_of(function))[:_NAME])


def _traceback(error: Any, masking: Masking) -> str | None:
    if not isinstance(error, BaseException):
        return None
    text = traced(error, masking.text)
    return None if text is None else masking.whole("traceback", text, _TRACEBACK)


def _failure_code(code: object, error: Any) -> str | None:
    """What was given, or the status or the cause by which the failure is judged."""
    if code is None and isinstance(error, Exception):
        found = verdict(error)
        code = found.cause if found.status is None else found.status
    return None if code is None else safe(shown(code)[:_NAME])


def _instructions(text: Any, masking: Masking) -> str | None:
    return None if text is None else masking.whole("replay_instructions", shown(text), _MESSAGE)


def _identifier(value: Any) -> str | None:
    """As text. A long one is cut, with a digest of the whole, so that two that differ stay two."""
    if value is None:
        return None
    text = safe(shown(value))
    if len(text) <= _IDENTIFIER:
        return text
    from hashlib import sha256

    return f"{text[:_IDENTIFIER]}#{sha256(text.encode()).hexdigest()}"


def _moment(name: str, value: Any) -> str | None:
    """A time as ISO 8601 in UTC: from seconds since 1970, a ``datetime``, or such a text as it is."""
    if value is None:
        return None
    if isinstance(value, str):
        return safe(value[:_NAME])
    if hasattr(value, "astimezone"):
        from datetime import UTC

        moment: str = value.astimezone(UTC).isoformat(timespec="microseconds")
        return moment
    return iso(number(name, value))
