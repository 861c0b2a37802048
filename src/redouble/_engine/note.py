"""The note on the error of a call that gave up: one line for each attempt. `history` reads it as data.

Failures are kept as text and numbers, so that no exception or frame outlives its attempt. Secrets are masked
when the note is written. An enclosing call reads the note, too: with ``nested="stop"`` it does not retry an
error that an inner call has retried already.
"""

from __future__ import annotations

import os
from _thread import RLock
from sys import intern

from .._base.text import cut, mask_line, safe_str, type_name
from ..classify import class_info, handed, leaves
from ..errors import Failure, History

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .._base.json_safe import Masking

    # Number, type, message, wait; and how an inner call ended, if there was one.
    Entry = tuple[Any, ...]

# Attempts in a note: the first ones, which show how it began, and the last.
_FIRST, _LAST = 3, 7

# Characters of a message that are kept of each failure, and that are written in a line.
_LONGEST, _LINE = 1000, 200

# Errors inside errors that are searched for the note of an inner call.
_DEEPEST = 8

_NOTE, _HEAD = "redouble: ", "redouble: gave up on "


class Written:
    """The number of the last note.

    An attempt remembers it when it begins, to tell the notes of calls that ended during the attempt from
    older ones. Every first attempt reads it: a slot takes less time than a global of a module.
    """

    __slots__ = ("latest",)

    def __init__(self) -> None:
        self.latest = 0

    def __reduce__(self) -> str:
        return "written"  # by name: a wrapper that is sent to another process reads the number of that one


written = Written()
_lock = RLock()


def _number() -> int:
    """Return the number of a new note."""
    with _lock:
        written.latest = number = written.latest + 1
    return number


def _after_fork() -> None:
    """Replace the lock in a forked child: the thread that held it is not there to release it."""
    global _lock
    _lock = RLock()


_at_fork: Any = getattr(os, "register_at_fork", dict)  # some platforms cannot fork
_at_fork(after_in_child=_after_fork)


def history(error: object, /) -> History | None:
    """Return the attempts that were made before a call raised this error; ``None`` if it has no note of ours.

    A response that a client of `redouble.clients` has returned after the last attempt has a history, too.

    It holds what the note says, as data: text and numbers, without secrets. Where an enclosing call did not
    retry what an inner call had retried already, it is the history of the inner call, unless the enclosing
    one had made retries before. Pickling an error keeps the text of its note, and drops the history.

    >>> from redouble import retry
    >>> from redouble.testing import no_waits, scripted
    >>> with no_waits():
    ...     try:
    ...         retry(scripted(TimeoutError("slow"), KeyError("stock")))()
    ...     except KeyError as error:
    ...         tried = history(error)
    >>> tried.attempts, [failure.error_type for failure in tried.failures]
    (2, ['TimeoutError', 'KeyError'])
    """
    note = _note_of(error)
    return None if note is None else note.history


class Note(str):
    """A note with its history as data. Pickled it is plain text, also for processes without redouble."""

    __slots__ = ("_data", "final", "number")
    _data: tuple[str, float, str, int, list[Entry]]
    # Whether the call has retried, or was refused a retry: an enclosing call is not to retry its error.
    final: bool
    # The place of the note among all notes of the process.
    number: int

    @property
    def history(self) -> History:
        """The same as records, made when they are asked for."""
        name, elapsed, why, count, log = self._data
        failures = tuple([Failure(*entry[:4]) for entry in log])
        left_out = count - len(failures)
        return History(name, attempts=count, elapsed=elapsed, why=why, failures=failures, left_out=left_out)

    def __reduce_ex__(self, protocol: object) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)


def record(
    log: tuple[Entry, ...], number: int, failure: Any, delay: float | None, last_note: float
) -> tuple[Entry, ...]:
    """Return the log with one more failed attempt: its number, type, message, and the wait after it.

    ``last_note`` is what ``written.latest`` was when the attempt began.
    """
    if not issubclass(type(failure), Exception):  # a result that was rejected
        entry: Entry = number, "", failure.reason, delay
    else:
        try:
            # Interned: Python makes a new text for the name of a builtin class each time.
            entry = number, intern(type(failure).__name__), str(failure), delay
            if hasattr(failure, "__notes__"):
                note = _note_of(failure)
                if note is not None and note.number > last_note:  # an inner call has raised it
                    entry = *entry, f" ({note._data[0]} gave up after {_attempts(note)})"
        except Exception:  # noqa: BLE001 - __str__, attributes and metaclasses are the user's code
            entry = number, type_name(failure), safe_str(failure), delay
        if len(entry[2]) > _LONGEST:
            entry = (*entry[:2], cut(entry[2], _LONGEST), *entry[3:])
    return (*log, entry) if len(log) < _FIRST + _LAST else (*log[:_FIRST], *log[_FIRST + 1 :], entry)


def write_note(
    error: BaseException,
    headline: str,
    log: tuple[Entry, ...],
    name: str,
    elapsed: float,
    why: str,
    masking: Masking | None,
    *,
    final: bool = False,
    inner: Note | None = None,
) -> None:
    """Put a note on an error: the headline, and a line for each attempt.

    ``final`` is whether the call has retried, or was refused a retry. ``inner`` is the note of the inner call
    that has raised the error: its lines are kept, and they are the note if this call has made one attempt.
    """
    if inner is not None and len(log) == 1:
        put_note(error, _passed_on(inner, f"  not retried by {name}: {why}", masking))
        return
    lines = [_HEAD + headline]
    masked: list[Entry] = []
    for number, kind, text, delay, *ended in log:
        after = ended[0] if ended else ""
        text = mask_line(text, _LINE - len(after), masking) + after
        masked.append((number, kind, text, delay))
        waited = "" if delay is None else f"; waited {delay:.2f} s"
        lines.append(f"  attempt {number}: {kind}{': ' if kind and text else ''}{text}{waited}")
    count = log[-1][0] if log else 0
    if count > len(log):
        lines.insert(1 + _FIRST, f"  ({count - len(log)} more)")
    if inner is not None:
        lines += [f"  {line}" for line in _lines(inner, masking)[1:]]
    put_note(error, _new("\n".join(lines), (name, elapsed, why, count, masked), final))


def _new(text: str, data: Any, final: bool) -> Note:
    """Return a note with its data and the next number."""
    note = Note(text)
    note._data, note.final, note.number = data, final, _number()
    return note


def _passed_on(inner: Note, line: str, masking: Masking | None) -> Note:
    """Return the note of an inner call with one more line."""
    name, elapsed, why, count, log = inner._data
    if masking is not None:
        log = [(*entry[:2], mask_line(entry[2], _LINE, masking), *entry[3:]) for entry in log]
    return _new("\n".join([*_lines(inner, masking), line]), (name, elapsed, why, count, log), inner.final)


def _lines(note: Note, masking: Masking | None) -> list[str]:
    """Return the lines of a note, under the masks of an enclosing call, too."""
    lines = note.split("\n")
    if masking is None:
        return lines
    return [line[: -len(line.lstrip())] + mask_line(line, 2 * _LINE, masking) for line in lines]


def already_retried(failure: object, last_note: float) -> str:
    """Return which inner call has already retried this failure during the attempt, or was refused a retry.

    ``last_note`` is what ``written.latest`` was when the attempt began. Empty if there was none: the same
    error object may be kept, and raised again later.
    """
    try:
        notes = _final_notes(failure, last_note, {}, _DEEPEST)
    except Exception:  # noqa: BLE001 - attributes are the user's code
        return ""
    if not notes:
        return ""
    note, others = notes[0], len({(note._data[0], note._data[3]) for note in notes}) - 1
    name, _, why, count, _ = note._data
    more = f" and {others} other call{'s' if others > 1 else ''}" if others else ""
    if count > 1:
        return f"already retried by {name} ({_attempts(note)}){more}"
    return f"{name} was refused a retry ({why}){more}"


def _final_notes(failure: Any, last_note: float, seen: dict[int, list[Note]], depth: int) -> list[Note]:
    """Return a note for the failure, or for each leaf of a group, of a call that ended since; or none."""
    found: list[Note] = []
    for leaf in leaves(failure):
        if id(leaf) not in seen:
            seen[id(leaf)] = []
            seen[id(leaf)] = _final_note(leaf, last_note, seen, depth)
        if not seen[id(leaf)]:
            return []
        found += seen[id(leaf)]
    return found


def _final_note(failure: Any, last_note: float, seen: dict[int, list[Note]], depth: int) -> list[Note]:
    """Return the final note on an error or on one that it carries, as deep as ``depth`` allows."""
    note = given_up_note(failure, last_note)
    if note is not None:
        return [note]
    if depth and isinstance(failure, Exception):
        for error in handed(failure, class_info(type(failure)).deep):
            if notes := _final_notes(error, last_note, seen, depth - 1):
                return notes
    return []


def given_up_note(failure: object, last_note: float) -> Note | None:
    """Return the final note that an inner call has left on a failure or on its response, since ``last_note``.

    Errors have notes; a response has one if it is in a list of its attribute ``__notes__``.
    """
    for place in (failure, _read(failure, "response")):
        note = _note_of(place)
        if note is not None and note.final and note.number > last_note:
            return note
    return None


def _attempts(note: Note) -> str:
    """Return the number of attempts in a note, in words."""
    count = note._data[3]
    return f"{count} attempt{'s' if count != 1 else ''}"


def passed_to(thing: Any, error: BaseException) -> None:
    """Put the note of an error of ours on another object: with the message, which its summary is in."""
    note: Any = _note_of(error)
    _, *lines = note.split("\n")
    thing.__notes__ = [_new("\n".join([f"{_NOTE}{error}", *lines]), note._data, note.final)]


def put_lines(error: BaseException, headline: str, lines: list[str], last_note: float) -> None:
    """Put lines about the attempts beside this one on an error, below the note of a call that ended since."""
    inner = given_up_note(error, last_note)
    if inner is None:
        put_note(error, "\n".join([_NOTE + headline, *lines]))
    else:
        below = [f"  {headline}", *[f"  {line}" for line in lines]]
        put_note(error, _new("\n".join([inner, *below]), inner._data, inner.final))


def put_note(error: BaseException, text: str) -> None:
    """Add a note to an error; a note of ours that it has already is replaced.

    An error that takes no note is raised without one.
    """
    notes = _notes(error)
    try:
        for index, note in enumerate(notes):
            if isinstance(note, str) and note.startswith(_NOTE):
                notes[index] = text
                return
        error.add_note(text)
    except Exception:  # noqa: BLE001, S110 - an error that takes no note is raised without one
        pass


def has_note(error: BaseException) -> bool:
    """Return whether an error has the note of a call that gave up."""
    return any(isinstance(note, str) and note.startswith(_HEAD) for note in _notes(error))


def _note_of(thing: object) -> Note | None:
    """Return our note on an error or a response; ``None`` if there is none."""
    for note in _notes(thing):
        if type(note) is Note:
            return note
    return None


def _notes(thing: object) -> list[object]:
    """Return the list of notes of an error; an empty one if it has none, or something else there."""
    notes = _read(thing, "__notes__")
    return notes if issubclass(type(notes), list) else []


def _read(thing: object, name: str) -> Any:
    """Return an attribute of a foreign object; ``None`` if it is missing or cannot be read."""
    try:
        return getattr(thing, name, None)
    except Exception:  # noqa: BLE001 - attributes are the user's code
        return None
