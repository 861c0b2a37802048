"""Any value as plain data for JSON: without secrets, of bounded length, whatever it is made of.

What JSON cannot say becomes text, cut where it is long; nothing is pickled. Nothing that a stranger's object
does when it is looked at comes out of here.
"""

from __future__ import annotations

from collections.abc import Mapping

from ._numbers import INF
from ._sanitize import MASK, _is_secret, folded_names, masked_text
from ._text import kind_of, shown
from ._trouble import report

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

    Hook = Callable[[str, Any], Any]
    Items = tuple[int, Iterator[tuple[Any, Any]]]

# How deep values may be nested, how long a key and how long a number may be.
_DEEPEST, _KEY, _BITS = 32, 200, 1024

# What stands where something was left out; as a key, what is left out of a mapping.
CUT = "…"

# Of these, str() says all, and says it better than repr().
_SPEAKING = frozenset({"datetime", "decimal", "fractions", "ipaddress", "pathlib", "pathlib._local", "uuid"})


def masked(value: object, more: Iterable[str] = ()) -> Any:
    """A copy of the value as plain data, with everything masked that stands under a telling name.

    ``more`` are further words to look for in names. Texts are masked as by `masked_text`.

    >>> masked({"user": "bob", "password": "hunter2", "headers": [("Cookie", "id=7")]})
    {'user': 'bob', 'password': '***', 'headers': [['Cookie', '***']]}
    """
    return Plain(more).value(value)


class Masking:
    """What is masked: nothing, or what our names and these say; and what a function of the user's says."""

    __slots__ = ("hook", "more", "off")

    def __init__(self, more: Iterable[str] = (), hook: Hook | None = None, *, off: bool = False) -> None:
        self.more = tuple(more)
        self.hook = hook
        self.off = off

    def text(self, text: str) -> str:
        return text if self.off else masked_text(text, self.more)

    def named(self, name: str, value: Any) -> Any:
        """What the user's function makes of a value; the mask, if it fails."""
        if self.hook is None:
            return value
        try:
            return self.hook(name, value)
        except Exception as error:  # noqa: BLE001 - rather too little stored than a secret
            report(self.hook, "the function given as mask= failed, so values were masked", error)
            return MASK

    def whole(self, name: str, text: str, limit: int) -> str:
        """A text that is a field of its own: bounded, masked, and shown to the user's function."""
        return shown(self.named(name, bounded(text, limit, self)))[: 2 * limit]


class Plain:
    """One value on its way to plain data: how much room is left for it, and which containers it is in."""

    def __init__(
        self, more: Iterable[str] = (), *, limit: float = INF, masking: Masking | None = None
    ) -> None:
        self._masking = masking or Masking(more)
        self._names = folded_names(self._masking.more)
        self._left = limit
        self._inside: set[int] = set()

    def value(self, value: Any) -> Any:
        """The value as plain data. Costs about as much room as its JSON has bytes."""
        try:
            return self._plain(value)
        except Exception as error:  # noqa: BLE001 - attributes and iterators are the user's code
            return self._text(f"<{kind_of(value)} that cannot be stored: {kind_of(error)}>")

    def _plain(self, value: Any) -> Any:
        if value is None or value is True or value is False:
            self._left -= 5
            return value
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, (int, float)):
            return self._number(value)
        if isinstance(value, (bytes, bytearray, memoryview)):
            return self._bytes(value)
        items = _items(value)
        if items is not None or isinstance(value, (list, tuple, set, frozenset)):
            return self._container(value, items)
        how = str if _module_of(value) in _SPEAKING else repr
        return self._text(shown(value, how))

    def _number(self, value: Any) -> Any:
        if isinstance(value, float):
            number: Any = float.__float__(value)
            plain = number if -INF < number < INF else repr(number)
        else:
            number = int.__index__(value)
            # Longer ones cannot even be printed unless the process allows it.
            plain = number if number.bit_length() <= _BITS else f"<int of {number.bit_length()} bits>"
        self._left -= len(repr(plain))
        return plain

    def _bytes(self, value: Any) -> str:
        view = memoryview(value)
        # Twice the room, as in `_text`; a view of something that is not bytes is taken whole.
        piece = view[: int(2 * self._left) + 400] if self._left < INF and view.format == "B" else view
        text = piece.tobytes().decode("utf-8", "backslashreplace")
        return self._text(text, view.nbytes - piece.nbytes)

    def _text(self, value: str, left_out: int = 0) -> str:
        whole = len(value) + left_out
        if self._left < INF:
            # More than fits, so that a secret at the seam is seen whole.
            value = value[: int(2 * max(self._left, 0)) + 400]
        text = self._masking.text(safe(value))
        room = max(self._left, 0)
        if left_out or len(value) < whole or _cost(text) > room:
            text = f"{_fitting(text, room)}{CUT} (cut, of {whole} characters)"
        self._left -= _cost(text)
        return text

    def _container(self, value: Any, items: Items | None) -> Any:
        if id(value) in self._inside:
            return self._text(f"{CUT} (circular)")
        if len(self._inside) >= _DEEPEST:
            return self._text(f"{CUT} (nested deeper than {_DEEPEST})")
        self._left -= 2
        self._inside.add(id(value))
        try:
            return self._sequence(value) if items is None else self._mapping(value, *items)
        finally:
            self._inside.discard(id(value))

    def _mapping(self, value: Any, count: int, items: Iterator[tuple[Any, Any]]) -> dict[str, Any]:
        plain: dict[str, Any] = {}
        inner_name = _inner_name(value)
        try:
            for key, inner in items:
                if self._left <= 0:
                    plain[CUT] = f"cut, of {count} items"
                    break
                name = self._name(key, plain)
                self._left -= 2
                plain[name] = self._named(inner_name if name == "value" else name, inner)
        except Exception as error:  # noqa: BLE001 - a mapping that changes meanwhile, or cannot be read
            plain[CUT] = f"cut: {kind_of(error)}"
        return plain

    def _sequence(self, value: Any) -> list[Any]:
        plain: list[Any] = []
        pair = tuple(value) if len(value) == 2 else ()
        if pair and isinstance(pair[0], str):
            # As headers are given, and the items of a mapping.
            return [self._plain(pair[0]), self._named(pair[0][: 2 * _KEY], pair[1])]
        for inner in value:
            if self._left <= 0:
                plain.append(f"{CUT} (cut, of {len(value)} items)")
                break
            self._left -= 2
            plain.append(self.value(inner))
        return plain

    def _name(self, key: Any, taken: dict[str, Any]) -> str:
        text = key if isinstance(key, str) else shown(key, repr if isinstance(key, tuple) else str)
        name = self._masking.text(safe(text[: 2 * _KEY]))
        if len(name) > _KEY:
            name = name[:_KEY] + CUT
        if name in taken:
            name = f"{name} #{len(taken)}"
        self._left -= _cost(name)
        return name

    def _named(self, name: str, value: Any) -> Any:
        hidden = not self._masking.off and value is not None and _is_secret(name, self._names)
        if hidden and not _is_count(name, value):
            self._left -= 5
            return MASK
        return self.value(self._masking.named(name, value))


def _is_count(name: str, value: Any) -> bool:
    """``max_tokens=1024`` is no secret, and a request to a language model is worth nothing without it."""
    return type(value) is int and name.lower().endswith("tokens")


def _items(value: Any) -> Items | None:
    """How many items, and which, of what has names: a mapping, a named tuple, a dataclass; or ``None``."""
    if issubclass(type(value), dict):
        return len(value), iter(value.items())
    if issubclass(type(value), Mapping):
        return len(value), ((key, value[key]) for key in value)
    fields = _field_names(value)
    return None if fields is None else (len(fields), ((name, getattr(value, name, None)) for name in fields))


def _field_names(value: object) -> Any:
    fields: Any = getattr(type(value), "__dataclass_fields__", None)
    named_tuple = fields is None and issubclass(type(value), tuple)
    return getattr(type(value), "_fields", None) if named_tuple else fields


def _inner_name(value: Any) -> str:
    """What ``{"name": "password", "value": "..."}`` calls its value."""
    if issubclass(type(value), dict):
        for key in ("name", "key", "header"):
            if isinstance(name := value.get(key), str):
                return name[: 2 * _KEY]
    return "value"


def _module_of(value: object) -> str:
    return str(getattr(type(value), "__module__", ""))


def safe(text: str) -> str:
    """The text as a plain ``str`` that can be written as UTF-8: lone surrogates are spelled out."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _cost(text: str) -> int:
    """The bytes that JSON needs for it."""
    import json

    return len(json.dumps(text, ensure_ascii=False).encode())


def _fitting(text: str, room: float) -> str:
    """As much of the beginning as fits."""
    text = text[: int(room)]
    while text and (cost := _cost(text)) > room:
        text = text[: min(len(text) - 1, int(len(text) * room / cost))]
    return text


def bounded(text: str, limit: int, masking: Masking) -> str:
    """A text without its secrets, and of at most so many characters; what was cut off is said."""
    if len(text) <= limit:
        return masking.text(safe(text))
    # Twice as much as is kept, so that a secret at the seam is seen whole.
    kept = masking.text(safe(text[: 2 * limit]))[:limit]
    return f"{kept}{CUT} (cut, of {len(text)} characters)"
