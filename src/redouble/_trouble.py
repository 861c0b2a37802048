"""Trouble with code that is not ours and not the call's: said once, never raised.

A listener, a backoff or a clock of the user's that misbehaves must not hide the result or the error
of the call it was attached to. It must not pass unseen either.
"""

from __future__ import annotations

from .errors import brief

# What was said already: (name, id) of each culprit. Emptied when full, so that a program which makes
# listeners without end hears of them again rather than growing without end.
_told: set[tuple[str, int]] = set()
_TOLD_AT_MOST = 1000


def report(culprit: object, text: str, error: BaseException | None = None) -> None:
    """Logs a warning about ``culprit``, once for each; whatever logging does about it is ignored."""
    name = getattr(culprit, "__qualname__", None) or type(culprit).__qualname__
    key = (str(name), id(culprit))
    if key in _told:
        return
    if len(_told) >= _TOLD_AT_MOST:
        _told.clear()
    _told.add(key)
    try:
        import logging

        logger = logging.getLogger("redouble")
        logger.warning("%s (said once): %s", text, brief(error) if error else name, exc_info=error)
    except Exception:  # noqa: BLE001, S110 - a full disk under the log is not the caller's failure
        pass
