"""The story of a call: what was tried, attempt by attempt, as a note on the error that comes out.

Kept as text and numbers. A long story keeps its beginning and its end.
"""

from __future__ import annotations

from ._text import one_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# How many attempts a note tells of: the first ones, which show how it began, and the last.
_FIRST, _LAST = 3, 7

_NOTE, _STORY = "redouble: ", "redouble: gave up on "


class Story:
    """The attempts of one call so far, each with its failure and the wait that followed."""

    __slots__ = ("_attempts", "_count")

    def __init__(self) -> None:
        self._attempts: list[tuple[int, str, str, float | None]] = []
        self._count = 0

    def add(self, kind: str, message: str, delay: float | None) -> None:
        """One more attempt: what it failed with, and how long was waited, ``None`` after the last."""
        self._count += 1
        self._attempts.append((self._count, kind, message, delay))
        if len(self._attempts) > _FIRST + _LAST:
            del self._attempts[_FIRST]

    def waited_longer(self, seconds: float) -> None:
        """The wait after the last attempt was longer than the backoff's: a guard made it so."""
        if self._attempts:
            number, kind, message, delay = self._attempts[-1]
            self._attempts[-1] = number, kind, message, (delay or 0.0) + seconds

    def without_the_wait(self) -> None:
        """The wait after the last attempt was not made after all."""
        number, kind, message, _ = self._attempts[-1]
        self._attempts[-1] = number, kind, message, None

    def told(self, headline: str) -> str:
        """The whole story under a headline, for a note."""
        lines = [_line(*attempt) for attempt in self._attempts]
        between = self._count - len(lines)
        if between:
            lines.insert(_FIRST, f"  ({between} more)")
        return "\n".join([_STORY + headline, *lines])


def _line(attempt: int, kind: str, message: str, delay: float | None) -> str:
    waited = "" if delay is None else f"; waited {delay:.2f} s"
    return f"  attempt {attempt}: {one_line(kind, message)}{waited}"


def tell(error: BaseException, text: str) -> None:
    """Puts a note of ours on an error, in the place of one that is there already."""
    try:
        notes = _notes(error)
        for place, note in enumerate(notes):
            if isinstance(note, str) and note.startswith(_NOTE):
                notes[place] = text
                return
        error.add_note(text)
    except Exception:  # noqa: BLE001, S110 - an error that takes no note comes out without one
        pass


def is_told(error: BaseException) -> bool:
    """Whether an error carries the story of a call already."""
    return any(isinstance(note, str) and note.startswith(_STORY) for note in _notes(error))


def _notes(error: BaseException) -> list[object]:
    try:
        notes: Any = getattr(error, "__notes__", None)
    except Exception:  # noqa: BLE001 - attributes are the user's code
        notes = None
    return notes if notes.__class__ is list else []
