"""The traceback of an exception as text: bounded, masked, without the values of variables."""

from __future__ import annotations

from ._text import cut, kind_of, one_line, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

# How many exceptions of a chain, frames of each, characters of a message, and members of a group are told.
_CHAIN, _FRAMES, _MESSAGE, _MEMBERS = 5, 25, 1000, 5
# How much of a message is looked at before it is masked.
_KEPT = 4000

_CAUSED = "\nThe above exception was the direct cause of the following exception:\n\n"
_DURING = "\nDuring handling of the above exception, another exception occurred:\n\n"


def traced(error: BaseException, mask: Callable[[str], str]) -> str | None:
    """The traceback of an exception and of what led to it; ``None`` if it cannot be told.

    ``mask`` is given each message before it is cut.
    """
    try:
        return "".join([text for link in reversed(list(_chain(error, mask))) for text in link])
    except Exception:  # noqa: BLE001 - attributes are the user's code
        return None


def _chain(error: BaseException, mask: Callable[[str], str]) -> Iterator[tuple[str, str]]:
    """The exceptions that led to this one, the last first: each with what connects it to the next."""
    seen: set[int] = set()
    link: BaseException | None = error
    connection = ""
    while link is not None and id(link) not in seen and len(seen) < _CHAIN:
        seen.add(id(link))
        yield _alone(link, mask), connection
        caused = link.__cause__ is not None
        connection = _CAUSED if caused else _DURING
        link = link.__cause__ if caused or link.__suppress_context__ else link.__context__


def _alone(error: BaseException, mask: Callable[[str], str]) -> str:
    import traceback

    frames = traceback.extract_tb(error.__traceback__, limit=-_FRAMES).format()
    head = ["Traceback (most recent call last):\n", *frames] if frames else []
    notes = [f"{_short(note, mask)}\n" for note in getattr(error, "__notes__", ())]
    members: Any = getattr(error, "exceptions", ()) if issubclass(type(error), BaseExceptionGroup) else ()
    told = [f"  member: {one_line(kind_of(member), _short(member, mask))}\n" for member in members[:_MEMBERS]]
    return "".join([*head, f"{kind_of(error)}: {_short(error, mask)}\n", *notes, *told])


def _short(value: object, mask: Callable[[str], str]) -> str:
    return mask(cut(shown(value), _KEPT))[:_MESSAGE]
