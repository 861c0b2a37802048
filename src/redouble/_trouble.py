"""Trouble with code that is not ours and not the call's: said once, never raised.

A listener, a backoff or a clock of the user's that misbehaves must not hide the result or the error
of the call it was attached to. It must not pass unseen either.
"""

from __future__ import annotations

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
    """Logs a warning; whatever logging does about it is ignored."""
    try:
        import logging

        logging.getLogger("redouble").warning("%s", text, exc_info=error)
    except Exception:  # noqa: BLE001, S110 - a full disk under the log is not the caller's failure
        pass
