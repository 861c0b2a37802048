"""Any value as plain data for JSON: without secrets, of bounded length, whatever it is made of.

What JSON cannot say becomes text, cut where it is long; nothing is pickled. Nothing that a stranger's object
does when it is looked at comes out of here.
"""

from __future__ import annotations

from collections.abc import Mapping

from ._numbers import INF
from ._sanitize import MASK, STRONG, fold, folded_names, hides, masked_text, pattern, strength
from ._secret_table import JWK, NAMING, VALUES
from ._text import cut, kind_of, one_line, shown
from ._trouble import report

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

    Hook = Callable[[str, Any], Any]
    Items = tuple[int, Iterator[tuple[Any, Any]]]

# How deep values may be nested, how long a key and how long a number may be.
_DEEPEST, _KEY, _BITS = 32, 200, 1024
# How much of a message is looked at before it is masked.
_MESSAGE = 4000

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

    def line(self, message: str, limit: int) -> str:
        """A message for a note or a log, which are masked even if what is stored is not."""
        masked = masked_text(cut(message, _MESSAGE), self.more)
        return one_line("", shown(self.named("error_message", masked)), limit)

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
        self.masked = False
        """Whether anything was masked."""

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
        if piece.nbytes < view.nbytes:
            return self._text(cut(text, len(text) - 1), view.nbytes)
        return self._text(text)

    def _text(self, value: str, whole: int = 0) -> str:
        whole = whole or len(value)
        if self._left < INF:
            # More than fits: what is masked becomes shorter.
            value = cut(value, int(2 * max(self._left, 0)) + 400)
        text = self._without_secrets(safe(value))
        room = max(self._left, 0)
        if len(value) < whole or _cost(text) > room:
            text = f"{_fitting(text, room)}{CUT} (cut, of {whole} characters)"
        self._left -= _cost(text)
        return text

    def _without_secrets(self, text: str) -> str:
        masked = self._masking.text(text)
        if not self._masking.off and (found := pattern("netloc").fullmatch(masked)):
            masked = f"{MASK}@{found[1]}"  # of a URL that was split
        self.masked = self.masked or masked != text
        return masked

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
        names = _Names(value)
        try:
            for key, inner in items:
                if self._left <= 0:
                    plain[CUT] = f"cut, of {count} items"
                    break
                name = self._name(key, plain)
                self._left -= 2
                plain[name] = self._named(names.of(name), inner)
        except Exception as error:  # noqa: BLE001 - a mapping that changes meanwhile, or cannot be read
            plain[CUT] = f"cut: {kind_of(error)}"
        return plain

    def _sequence(self, value: Any) -> list[Any]:
        plain: list[Any] = []
        pair = tuple(value) if len(value) == 2 else ()
        if pair and (name := _as_text(pair[0])) is not None:
            # As headers are given, and the items of a mapping.
            return [self._plain(pair[0]), self._named(name[: 2 * _KEY], pair[1])]
        before: Any = None
        for place, inner in enumerate(value):
            if self._left <= 0:
                plain.append(f"{CUT} (cut, of {len(value)} items)")
                break
            self._left -= 2
            plain.append(self._following(before, inner, is_odd=place % 2 == 1))
            before = inner
        return plain

    def _following(self, before: Any, value: Any, *, is_odd: bool) -> Any:
        """An item of a list: ``--password`` and the names of headers say what the next one is."""
        name, text = _as_text(before), _as_text(value)
        if name is None or text is None or self._masking.off or len(name) > _KEY:
            return self.value(value)
        if name in ("-u", "--user", "--proxy-user"):
            user, colon, password = text.partition(":")
            if colon and password and not password.startswith("//"):
                return self._hidden(f"{user}:{MASK}")
        if name.startswith("-"):
            names = not text.startswith("-")
        else:
            names = is_odd and ("-" in name or fold(name) in ("authorization", "cookie"))
        if names and self._is_hidden(name, value):
            return self._hidden()
        return self.value(value)

    def _name(self, key: Any, taken: dict[str, Any]) -> str:
        text = _as_text(key)
        if text is None:
            text = shown(key, repr if isinstance(key, tuple) else str)
        name = self._without_secrets(safe(cut(text, 2 * _KEY)))
        if len(name) > _KEY:
            name = name[:_KEY] + CUT
        if name in taken:
            name = f"{name} #{len(taken)}"
        self._left -= _cost(name)
        return name

    def _named(self, name: str, value: Any) -> Any:
        if not self._masking.off and self._is_hidden(name, value):
            return self._hidden()
        theirs = self._masking.named(name, value)
        self.masked = self.masked or theirs is not value
        return self.value(theirs)

    def _hidden(self, text: str = MASK) -> str:
        self.masked = True
        self._left -= _cost(text)
        return text

    def _is_hidden(self, name: str, value: Any) -> bool:
        tells = 0 if value is None or value is True or value is False else strength(name, self._names)
        if not tells:
            return False
        text = _as_text(value)
        if text is not None:
            return hides(name, text, tells)
        return tells == STRONG and not _is_count(name, value)


def _is_count(name: str, value: Any) -> bool:
    """``max_tokens=1024`` is no secret, and a request to a language model is worth nothing without it."""
    return type(value) in (int, float) and name.lower().endswith("tokens")


def _as_text(value: Any) -> str | None:
    """What is given as a name, or may be a secret: text or bytes."""
    if isinstance(value, str):
        return value
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else None


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


class _Names:
    """What the values of a mapping are called: by their keys, but for two kinds of mapping.

    ``{"Key": "DB_PASSWORD", "Value": "..."}`` has the name in another entry, and the private members of a
    JSON web key have names of one letter.
    """

    def __init__(self, mapping: Any) -> None:
        self._inner: str | None = None
        self._is_key = False
        if not issubclass(type(mapping), dict):
            return
        self._is_key = "kty" in mapping
        for key in list(mapping)[:20]:
            if fold(_as_text(key) or "") in NAMING and (name := _as_text(mapping[key])):
                self._inner = name[: 2 * _KEY]
                return

    def of(self, key: str) -> str:
        if self._inner is not None and fold(key) in VALUES:
            return self._inner
        return "private_key" if self._is_key and key in JWK else key


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
    # Masked before it is cut. Of a very long text twice as much as is kept, since masking makes it shorter.
    masked = masking.text(safe(cut(text, max(2 * limit, _MESSAGE))))
    if len(masked) <= limit and len(text) <= limit:
        return masked
    return f"{masked[:limit]}{CUT} (cut, of {len(text)} characters)"
