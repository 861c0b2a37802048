"""Log errors of user code (listeners, backoffs, clocks, guards) once; never raise them.

An error in a callback must not replace the result or the error of the call that it belongs to, and must not
pass unseen either.
"""

from __future__ import annotations

import sys

from .callables import reject_coroutine
from .masking import masked_text
from .text import format_traceback, mask_line, printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

# The warnings logged so far, as (text, id of the source). Cleared when full: a program that makes callbacks
# without end sees a warning again, and the set stays small.
_warned: set[tuple[str, int]] = set()
_MOST_WARNED = 1000

# Packages whose frames are not the caller of a function.
_NOT_CALLERS = frozenset(
    {__name__.partition(".")[0], "anyio", "asyncio", "concurrent", "threading", "trio", "uvloop"}
)


def warn_once(source: object, text: str, error: BaseException | None = None) -> None:
    """Log a warning about ``source``; later ones with the same text and source are dropped."""
    key = (text, id(source))
    if key in _warned:
        return
    if len(_warned) >= _MOST_WARNED:
        _warned.clear()
    _warned.add(key)
    warn(f"{text} (said once)", error)


def warn(text: str, error: BaseException | None = None) -> None:
    """Log a warning, with the traceback of ``error``. Errors of ``logging`` itself are ignored.

    The traceback is passed as masked text, not as ``exc_info``: handlers would print the messages of the
    whole chain unmasked.
    """
    try:
        import logging

        logger = logging.getLogger("redouble")
        if logger.isEnabledFor(logging.WARNING):
            path, line, function, _ = logger.findCaller()
            record = logger.makeRecord(
                logger.name, logging.WARNING, path, line, "%s", (printable(text),), None, function
            )
            record.exc_text = None if error is None else _traceback(error)
            logger.handle(record)
    except Exception:  # noqa: BLE001, S110 - a full disk under the log is not the caller's failure
        pass


def level_of_caller() -> int:
    """Return how far up the stack the code is that called into this package: for ``stacklevel``.

    The function that calls this one is at level 1, as ``logging`` and ``warnings`` count. Event loops and
    threads are passed over: what they run has no other caller.
    """
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in _NOT_CALLERS:
        level, frame = level + 1, frame.f_back
    return level


def shielded(source: object, text: str, function: Callable[..., Any], *args: Any) -> Any:
    """Return ``function(*args)``; if it raises, log the error once with ``text`` and return ``None``.

    For calls into user code whose result does not matter to the call. Interrupts pass through.
    """
    try:
        return function(*args)
    except Exception as error:  # noqa: BLE001 - the error of a callback is not the call's
        warn_once(source, text, error)
        return None


def call_back(text: str, function: Callable[..., object], *args: Any) -> None:
    """Call a function of the user that is notified of something; log its error once, with ``text``."""
    shielded(function, text, lambda: reject_coroutine(function(*args)))


def _traceback(error: BaseException) -> str | None:
    """Return the masked traceback as text. A message stays on one line, so it cannot forge a log line."""
    text = format_traceback(error, lambda message: mask_line(message, 1000))
    return None if text is None else masked_text(text.rstrip("\n"))
