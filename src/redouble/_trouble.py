"""Trouble with code that is not ours and not the call's: said once, never raised.

A listener, a backoff or a clock of the user's that misbehaves must not hide the result or the error
of the call it was attached to. It must not pass unseen either.
"""

from __future__ import annotations

from ._sanitize import masked_text
from ._text import masked_line, printable

# What was said already: (what, of whom). Emptied when full, so that a program which makes
# listeners without end hears of them again rather than growing without end.
_told: set[tuple[str, int]] = set()
_TOLD_AT_MOST = 1000


def report(culprit: object, text: str, error: BaseException | None = None) -> None:
    """Logs a warning about ``culprit``, once for each."""
    key = (text, id(culprit))
    if key in _told:
        return
    if len(_told) >= _TOLD_AT_MOST:
        _told.clear()
    _told.add(key)
    say(f"{text} (said once)", error)


def say(text: str, error: BaseException | None = None) -> None:
    """Logs a warning; whatever logging does about it is ignored.

    The traceback is masked text, not ``exc_info``: handlers would print the messages of all errors in the
    chain as they are.
    """
    try:
        import logging

        logger = logging.getLogger("redouble")
        if logger.isEnabledFor(logging.WARNING):
            place = logger.findCaller()
            record = logger.makeRecord(
                logger.name, logging.WARNING, *place[:2], "%s", (printable(text),), None, place[2]
            )
            record.exc_text = None if error is None else _traceback(error)
            logger.handle(record)
    except Exception:  # noqa: BLE001, S110 - a full disk under the log is not the caller's failure
        pass


def _traceback(error: BaseException) -> str | None:
    """The traceback without secrets; a message cannot begin a line of its own in the log."""
    from ._traces import traced

    text = traced(error, lambda message: masked_line(message, 1000))
    return None if text is None else masked_text(text.rstrip("\n"))
