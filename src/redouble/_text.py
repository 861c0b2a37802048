"""Exceptions and values as text, whatever they do when asked to print themselves."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


def shown(value: object, how: Callable[[object], str] = str) -> str:
    """``str(value)``, or a placeholder when the object cannot even print itself."""
    try:
        return str(how(value))
    except Exception:  # noqa: BLE001 - __str__ is the user's code
        return f"<unprintable {kind_of(value)}>"


def cut(text: str, limit: int) -> str:
    """The beginning of a text: whole words, since half a secret is not known for one.

    >>> cut("one two three", 9), cut("one", 9)
    ('one two', 'one')
    """
    if len(text) <= limit:
        return text
    words = text[:limit].rsplit(None, 1)
    return words[0] if len(words) == 2 else text[:limit]


def kind_of(value: object) -> str:
    """The name of its class, also where a metaclass refuses to tell."""
    try:
        return str(type(value).__name__)
    except Exception:  # noqa: BLE001 - a metaclass is the user's code
        return "<unnamed>"


def brief(error: BaseException) -> str:
    """One line that names an exception: its type and the beginning of its message.

    >>> brief(ValueError("first line\\nsecond line"))
    'ValueError: first line second line'
    """
    return one_line(kind_of(error), shown(error))


def one_line(kind: str, message: str, limit: int = 200) -> str:
    """A type and a message as one line of bounded length; either may be empty."""
    text = " ".join(message[: 2 * limit].split())
    if len(text) > limit:
        text = text[: limit - 1] + "…"
    return f"{kind}: {text}" if kind and text else kind or text
