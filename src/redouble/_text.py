"""Exceptions and values as text, whatever they do when asked to print themselves."""

from __future__ import annotations

from ._sanitize import masked_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ._plain import Masking

# How much of a message is looked at before it is masked, where far less is shown in the end.
_KEPT = 4000


def shown(value: object, how: Callable[[object], str] = str) -> str:
    """``str(value)``, or a placeholder when the object cannot even print itself."""
    try:
        return str(how(value))
    except Exception:  # noqa: BLE001 - __str__ is the user's code
        return f"<unprintable {kind_of(value)}>"


# No token is longer than this without being known for one by its beginning.
_LONGEST_TOKEN = 300


def cut(text: str, limit: int) -> str:
    """Return the beginning of a text that is still to be masked: whole words, no half of a secret.

    >>> cut("one two three", 9), cut("one", 9)
    ('one two', 'one')
    """
    if len(text) <= limit:
        return text
    limit = max(limit, 0)
    for between in (" \t\r\n", "\"'&;,"):
        for end in range(limit, max(limit - _LONGEST_TOKEN, 0), -1):
            if text[end] in between:
                return text[:end]
    return text[:limit]


def kind_of(value: object) -> str:
    """The name of its class, also where a metaclass refuses to tell."""
    try:
        return str(type(value).__name__)
    except Exception:  # noqa: BLE001 - a metaclass is the user's code
        return "<unnamed>"


def brief(error: BaseException) -> str:
    """One line that names an exception: its type and the beginning of its message, without secrets.

    >>> brief(ValueError("first line\\nsecond line, password=hunter2"))
    'ValueError: first line second line, password=***'
    """
    return one_line(kind_of(error), masked_line(shown(error)))


def masked_line(message: str, limit: int = 200, masking: Masking | None = None) -> str:
    """Return the beginning of a message, in one line and without its secrets.

    Masked before it is cut: half a secret would not be recognised.
    """
    try:
        if masking is not None:
            return masking.line(message, limit)
        return one_line("", masked_text(cut(message, _KEPT)), limit)
    except ImportError:  # at the end of an interpreter nothing can be imported: better no text than a secret
        return ""


def printable(text: str) -> str:
    """Write control characters, escape sequences and the like as escapes: they are a stranger's.

    >>> print(printable("red: \\x1b[31m"))
    red: \\x1b[31m
    """
    if text.isprintable():
        return text
    return "".join([c if c.isprintable() else c.encode("unicode_escape").decode() for c in text])


def one_line(kind: str, message: str, limit: int = 200) -> str:
    """A type and a message as one printable line of bounded length; either may be empty."""
    text = printable(" ".join(message[: 2 * limit].split()))
    if len(text) > limit:
        text = text[: limit - 1] + "…"
    return f"{kind}: {text}" if kind and text else kind or text
