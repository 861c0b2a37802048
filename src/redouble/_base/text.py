"""Text of exceptions and values: safe `str()`, masked one-line summaries, truncation, tracebacks.

Every failing call runs through here, so one call of `mask_line`, which calls nothing else, checks a message
that holds nothing suspicious.
"""

from __future__ import annotations

from .masking import masked_text
from .table_secrets import TRACES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from .json_safe import Masking

# Characters of a message that are masked at most; far fewer are printed in the end.
MASKED_AT_MOST = 4000

# No token is longer than this without being recognised by its beginning.
_LONGEST_TOKEN = 300


def safe_str(value: object, convert: Callable[[object], str] = str) -> str:
    """Return ``str(value)``, or a placeholder if the object cannot be printed."""
    try:
        return str(convert(value))
    except Exception:  # noqa: BLE001 - __str__ is the user's code
        return f"<unprintable {type_name(value)}>"


def type_name(value: object) -> str:
    """Return the name of the class of a value, also if a metaclass refuses to give it."""
    try:
        return str(type(value).__name__)
    except Exception:  # noqa: BLE001 - a metaclass is the user's code
        return "<unnamed>"


def mask_line(message: str, limit: int = 200, masking: Masking | None = None) -> str:
    """Return the beginning of a message as one printable line without secrets.

    Masks before it truncates: a secret cut in half would not be recognised. ``masking`` adds the rules of a
    `DeadLetters`.
    """
    if masking is None and len(message) <= MASKED_AT_MOST:
        lower = message.casefold()
        words = message.split()
        # Loops, no generators: Python 3.13 crashes where it has no memory for a closure.
        for trace in TRACES:
            if trace in lower:
                break
        else:
            for word in words:
                if len(word) >= 12 and not word.isalpha():  # may be a token
                    break
            else:
                line = " ".join(words)
                if len(line) <= limit and line.isprintable():
                    return line
    try:
        if masking is not None:
            return masking.mask_line(message, limit)
        return one_line("", masked_text(cut(message, MASKED_AT_MOST)), limit)
    except ImportError:  # at the end of an interpreter nothing can be imported: better no text than a secret
        return ""


def brief(error: BaseException) -> str:
    """Return one line that names an exception: its type and the beginning of its message, without secrets.

    >>> brief(ValueError("first line\\nsecond line, password=hunter2"))
    'ValueError: first line second line, password=***'
    """
    return one_line(type_name(error), mask_line(safe_str(error)))


def one_line(kind: str, message: str, limit: int = 200) -> str:
    """Join a type and a message, either of which may be empty, to one printable line of bounded length."""
    text = printable(" ".join(message[: 2 * limit].split()))
    if len(text) > limit:
        text = text[: limit - 1] + "…"
    return f"{kind}: {text}" if kind and text else kind or text


def printable(text: str) -> str:
    """Escape control characters, which could change what a terminal or a log shows.

    >>> print(printable("red: \\x1b[31m"))
    red: \\x1b[31m
    """
    if text.isprintable():
        return text
    return "".join([c if c.isprintable() else c.encode("unicode_escape").decode() for c in text])


def cut(text: str, limit: int) -> str:
    """Return the beginning of a text that is still to be masked: whole words, so that no secret is cut.

    >>> cut("one two three", 9), cut("one", 9)
    ('one two', 'one')
    """
    if len(text) <= limit:
        return text
    limit = max(limit, 0)
    for separators in (" \t\r\n", "\"'&;,"):
        for end in range(limit, max(limit - _LONGEST_TOKEN, 0), -1):
            if text[end] in separators:
                return text[:end]
    return text[:limit]


# Tracebacks

# Limits: exceptions of a chain, frames of each, characters of a message, members of a group.
_CHAIN, _FRAMES, _MESSAGE, _MEMBERS = 5, 25, 1000, 5

_CAUSED = "\nThe above exception was the direct cause of the following exception:\n\n"
_DURING = "\nDuring handling of the above exception, another exception occurred:\n\n"


def format_traceback(error: BaseException, mask: Callable[[str], str]) -> str | None:
    """Return the traceback of an exception and of its causes, without the values of variables.

    ``mask`` is called with each message before that is truncated. Returns ``None`` if the exception cannot be
    read.
    """
    try:
        return "".join([text for link in reversed(list(_chain(error, mask))) for text in link])
    except Exception:  # noqa: BLE001 - attributes are the user's code
        return None


def _chain(error: BaseException, mask: Callable[[str], str]) -> Iterator[tuple[str, str]]:
    """Yield the exceptions that led to this one, the last first, each with what connects it to the next."""
    seen: set[int] = set()
    link: BaseException | None = error
    connection = ""
    while link is not None and id(link) not in seen and len(seen) < _CHAIN:
        seen.add(id(link))
        yield _format_alone(link, mask), connection
        caused = link.__cause__ is not None
        connection = _CAUSED if caused else _DURING
        link = link.__cause__ if caused or link.__suppress_context__ else link.__context__


def _format_alone(error: BaseException, mask: Callable[[str], str]) -> str:
    """Return the traceback of one exception, its notes and the members of a group."""
    import traceback

    def short(value: object) -> str:
        return mask(cut(safe_str(value), MASKED_AT_MOST))[:_MESSAGE]

    frames = traceback.extract_tb(error.__traceback__, limit=-_FRAMES).format()
    head = ["Traceback (most recent call last):\n", *frames] if frames else []
    notes = [f"{short(note)}\n" for note in getattr(error, "__notes__", ())]
    group: Any = getattr(error, "exceptions", ()) if issubclass(type(error), BaseExceptionGroup) else ()
    members = [f"  member: {one_line(type_name(member), short(member))}\n" for member in group[:_MEMBERS]]
    return "".join([*head, f"{type_name(error)}: {short(error)}\n", *notes, *members])
