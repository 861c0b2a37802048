"""The story of a call: what was tried, attempt by attempt, as a note on the error that comes out.

Kept as text and numbers, and told without secrets. A long story keeps its beginning and its end. The note
knows the story as data, too: `history` reads it back.
"""

from __future__ import annotations

from ._text import masked_line
from .errors import Failure, History

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ._plain import Masking

# How many attempts a note tells of: the first ones, which show how it began, and the last.
_FIRST, _LAST = 3, 7

_NOTE, _STORY = "redouble: ", "redouble: gave up on "


def history(error: BaseException, /) -> History | None:
    """What was tried before this error came out of a call; ``None`` if it was not retried.

    The same as its note says, as data: text and numbers, without secrets. It does not survive pickling, which
    keeps the note alone.

    >>> from redouble import retry
    >>> from redouble.testing import no_waits, scripted
    >>> with no_waits():
    ...     try:
    ...         retry(scripted(TimeoutError("slow"), KeyError("stock")))()
    ...     except KeyError as error:
    ...         told = history(error)
    >>> told.attempts, [failure.error_type for failure in told.failures]
    (2, ['TimeoutError', 'KeyError'])
    """
    for note in _notes(error):
        if isinstance(note, Note):
            return note.history
    return None


class Note(str):
    """A note that knows its story as data. Pickled it is plain text, also for processes without redouble."""

    __slots__ = ("history",)
    history: History

    def __reduce_ex__(self, protocol: object) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)


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

    def told(
        self, headline: str, *, name: str, elapsed: float, why: str, masking: Masking | None = None
    ) -> Note:
        """The whole story under a headline, for a note."""
        failures = tuple(
            [
                Failure(number, kind, masked_line(text, masking=masking), delay)
                for number, kind, text, delay in self._attempts
            ]
        )
        between = self._count - len(failures)
        lines = [f"  {failure}" for failure in failures]
        if between:
            lines.insert(_FIRST, f"  ({between} more)")
        note = Note("\n".join([_STORY + headline, *lines]))
        note.history = History(
            name, attempts=self._count, elapsed=elapsed, why=why, failures=failures, left_out=between
        )
        return note


def put_note(error: BaseException, text: str) -> None:
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
        return notes if issubclass(type(notes), list) else []
    except Exception:  # noqa: BLE001 - attributes are the user's code
        return []
