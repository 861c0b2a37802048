"""Convert any value to bounded, masked, JSON-safe data. Never raises, and never pickles.

Dead letters store payloads, results and errors this way. `masked` copies one value with the usual rules;
`JSONCopy` is the copy itself, with a limit on its size; `Masking` holds the rules of one `DeadLetters`.

- Values that JSON does not have become text, truncated where it is long. Mappings, named tuples and
  dataclasses become objects, other containers lists.
- Values under the name of a secret are masked, and secrets in texts are, too (`masking` has the rules).
- What is circular, nested too deep or too large is cut, and the copy says so where it was cut.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from .checks import INF
from .log_once import warn_once
from .masking import MASK, NOTHING, STRONG, fold, folded_names, hides, masked_text, pattern, strength
from .table_secrets import JWK, NAMING, VALUES
from .text import MASKED_AT_MOST, cut, one_line, safe_str, type_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

    Hook = Callable[[str, Any], Any]
    Items = tuple[int, Iterator[tuple[Any, Any]]]

# Limits: how deep values are nested, characters of a key, bits of a number.
_DEEPEST, _KEY, _BITS = 32, 200, 1024

# Stands where something was left out; as a key, for items that were left out of a mapping.
CUT = "…"

# For values of these modules str() is complete, and reads better than repr().
_USE_STR = frozenset({"datetime", "decimal", "fractions", "ipaddress", "pathlib", "pathlib._local", "uuid"})


def masked(value: object, more: Iterable[str] = ()) -> Any:
    """Return a JSON-safe copy of a value, with values under the name of a secret masked.

    ``more`` are further words to look for in names. Texts are masked as by `masked_text`.

    >>> masked({"user": "bob", "password": "hunter2", "headers": [("Cookie", "id=7")]})
    {'user': 'bob', 'password': '***', 'headers': [['Cookie', '***']]}
    """
    return JSONCopy(masking=Masking(more)).copy(value)


class Masking:
    """The masking rules of a `DeadLetters`: the usual ones or none, more names, a function of the user."""

    __slots__ = ("hook", "more", "off")

    def __init__(self, more: Iterable[str] = (), hook: Hook | None = None, *, off: bool = False) -> None:
        self.more = tuple(more)
        self.hook = hook
        self.off = off

    def mask_text(self, text: str) -> str:
        """Return the text with its secrets masked, unless masking is off."""
        return text if self.off else masked_text(text, self.more)

    def call_hook(self, name: str, value: Any) -> Any:
        """Return what the user's function returns for a value; the mask, if it raises.

        Without such a function it is the value itself.
        """
        if self.hook is None:
            return value
        try:
            return self.hook(name, value)
        except Exception as error:  # noqa: BLE001 - rather too little stored than a secret
            warn_once(self.hook, "the function given as mask= failed, so values were masked", error)
            return MASK

    def mask_line(self, message: str, limit: int) -> str:
        """Return one line for a note or a log, which are masked even if stored text is not."""
        masked = masked_text(cut(message, MASKED_AT_MOST), self.more)
        return one_line("", safe_str(self.call_hook("error_message", masked)), limit)

    def mask_field(self, name: str, text: str, limit: int) -> str:
        """Return a text field of a letter: bounded, masked, and passed through the user's function."""
        # Masked before it is cut. Of a very long text, twice as much as is kept: masking makes it shorter.
        masked = self.mask_text(escape_surrogates(cut(text, max(2 * limit, MASKED_AT_MOST))))
        if len(masked) > limit or len(text) > limit:
            masked = f"{masked[:limit]}{CUT} (cut, of {len(text)} characters)"
        return safe_str(self.call_hook(name, masked))[: 2 * limit]


class JSONCopy:
    """One JSON-safe copy: the room that is left for it, and the containers around the current value.

    ``limit`` is about as many bytes as the JSON of the copy may have.

    >>> JSONCopy(limit=40).copy(["x" * 100])
    ['xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx… (cut, of 100 characters)']
    """

    def __init__(self, *, limit: float = INF, masking: Masking | None = None) -> None:
        self._masking = masking or Masking()
        self._names = folded_names(self._masking.more)
        self._left = limit
        self._inside: set[int] = set()
        self.masked = False
        """Whether anything was masked."""

    def copy(self, value: Any) -> Any:
        """Return the copy of a value. It takes about as much room as its JSON has bytes."""
        try:
            return self._copy(value)
        except Exception as error:  # noqa: BLE001 - attributes and iterators are the user's code
            return self._text(f"<{type_name(value)} that cannot be stored: {type_name(error)}>")

    def _copy(self, value: Any) -> Any:
        """Return the copy of a value, by its type. May raise what the value raises."""
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
        return self._text(safe_str(value, str if type(value).__module__ in _USE_STR else repr))

    def _number(self, value: Any) -> Any:
        """Return an int or a float as JSON has it: infinite and very long ones become text."""
        # By the methods of the base class: a subclass may have its own.
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
        """Return bytes as text; those that are not UTF-8 are escaped."""
        view = memoryview(value)
        # Twice the room, as in `_text`. A view of something else than bytes is taken whole.
        piece = view[: int(2 * self._left) + 400] if self._left < INF and view.format == "B" else view
        text = piece.tobytes().decode("utf-8", "backslashreplace")
        if piece.nbytes < view.nbytes:
            return self._text(cut(text, len(text) - 1), view.nbytes)
        return self._text(text)

    def _text(self, value: str, whole: int = 0) -> str:
        """Return a text without secrets, cut to the room that is left; ``whole`` is its length before."""
        whole, room = whole or len(value), max(self._left, 0)
        if self._left < INF:
            # More than fits: masking makes it shorter.
            value = cut(value, int(2 * room) + 400)
        text = self._without_secrets(escape_surrogates(value))
        if len(value) < whole or _cost(text) > room:
            text = f"{_fitting(text, room)}{CUT} (cut, of {whole} characters)"
        self._left -= _cost(text)
        return text

    def _without_secrets(self, text: str) -> str:
        """Return a text with its secrets masked, and note whether there were any."""
        masked = self._masking.mask_text(text)
        if not self._masking.off and (found := pattern("netloc").fullmatch(masked)):
            masked = f"{MASK}@{found[1]}"  # of a URL that was split
        self.masked = self.masked or masked != text
        return masked

    def _container(self, value: Any, items: Items | None) -> Any:
        """Return the copy of a container, unless it is within itself or nested too deep."""
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
        """Return the copy of a mapping of ``count`` items, as long as there is room.

        Names of secrets are found in three places: as the key of the value, as a value of its own beside it
        (``{"Key": "DB_PASSWORD", "Value": ...}``), and as the private members of a JSON web key.
        """
        copy: dict[str, Any] = {}
        named = _name_in(value) if isinstance(value, dict) else None
        is_web_key = isinstance(value, dict) and "kty" in value
        try:
            for key, inner in items:
                if self._left <= 0:
                    copy[CUT] = f"cut, of {count} items"
                    break
                name = called = self._key(key, copy)
                self._left -= 2
                if named is not None and fold(name) in VALUES:
                    called = named
                elif is_web_key and name in JWK:
                    called = "private_key"
                copy[name] = self._named(called, inner)
        except Exception as error:  # noqa: BLE001 - a mapping that changes meanwhile, or cannot be read
            copy[CUT] = f"cut: {type_name(error)}"
        return copy

    def _sequence(self, value: Any) -> list[Any]:
        """Return the copy of a list, tuple or set, as long as there is room."""
        copy: list[Any] = []
        pair = tuple(value) if len(value) == 2 else ()
        if pair and isinstance(pair[0], (str, bytes)):
            # As headers are given, and the items of a mapping. Cut first: bytes may be long.
            name = str(_as_text(pair[0][: 2 * _KEY]))
            return [self._copy(pair[0]), self._named(name[: 2 * _KEY], pair[1])]
        before: Any = None
        for place, inner in enumerate(value):
            if self._left <= 0:
                copy.append(f"{CUT} (cut, of {len(value)} items)")
                break
            self._left -= 2
            copy.append(self._following(before, inner, is_odd=place % 2 == 1))
            before = inner
        return copy

    def _following(self, before: Any, value: Any, *, is_odd: bool) -> Any:
        """Copy an item of a list: ``--password`` and the names of headers tell what the next item is.

        ``before`` is the item before it. Of ``-u user:password`` only the password is masked.
        """
        # Asked first: bytes may be long, and decoding them takes time and memory.
        if self._masking.off or not isinstance(before, (str, bytes)) or len(before) > _KEY:
            return self.copy(value)
        name, text = _as_text(before), _as_text(value)
        if name is None or text is None:
            return self.copy(value)
        if name in ("-u", "--user", "--proxy-user"):
            user, colon, password = text.partition(":")
            if colon and password and not password.startswith("//"):
                return self._hidden(f"{user}:{MASK}")
        if name.startswith("-"):
            is_name = not text.startswith("-")
        else:
            is_name = is_odd and ("-" in name or fold(name) in ("authorization", "cookie"))
        return self._hidden() if is_name and self._is_hidden(name, value) else self.copy(value)

    def _key(self, key: Any, taken: dict[str, Any]) -> str:
        """Return a key as text: masked, bounded, and different from those that are taken."""
        text = _as_text(key)
        if text is None:
            text = safe_str(key, repr if isinstance(key, tuple) else str)
        name = self._without_secrets(escape_surrogates(cut(text, 2 * _KEY)))
        if len(name) > _KEY:
            name = name[:_KEY] + CUT
        if name in taken:
            name = f"{name} #{len(taken)}"
        self._left -= _cost(name)
        return name

    def _named(self, name: str, value: Any) -> Any:
        """Return the copy of a value under a name; the mask, if the name is that of a secret."""
        if not self._masking.off and self._is_hidden(name, value):
            return self._hidden()
        theirs = self._masking.call_hook(name, value)
        self.masked = self.masked or theirs is not value
        return self.copy(theirs)

    def _hidden(self, text: str = MASK) -> str:
        """Return a masked text, and note that something was masked."""
        self.masked = True
        self._left -= _cost(text)
        return text

    def _is_hidden(self, name: str, value: Any) -> bool:
        """Return whether a value is masked under this name.

        Names that tell little (`WEAK`) mask only texts that look random; `STRONG` ones mask numbers and
        containers, too.
        """
        tells = NOTHING if value is None or value is True or value is False else strength(name, self._names)
        if tells == NOTHING:
            return False
        text = _as_text(value)
        if text is not None:
            return hides(name, text, tells)
        # Not `max_tokens=1024`: a request to a language model is worth nothing without it.
        is_count = type(value) in (int, float) and name.lower().endswith("tokens")
        return tells == STRONG and not is_count


def _as_text(value: Any) -> str | None:
    """Return text or bytes as text, and ``None`` for other values."""
    if isinstance(value, str):
        return value
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else None


def _items(thing: object) -> Items | None:
    """Return the number and the items of a mapping, a named tuple or a dataclass; ``None`` for others."""
    value: Any = thing
    kind: Any = type(thing)
    if issubclass(kind, dict):
        return len(value), iter(value.items())
    if issubclass(kind, Mapping):
        return len(value), ((key, value[key]) for key in value)
    fields: Any = getattr(kind, "__dataclass_fields__", None)
    if fields is None and issubclass(kind, tuple):
        fields = getattr(kind, "_fields", None)  # pyright: ignore[reportUnknownArgumentType]
    return None if fields is None else (len(fields), ((name, getattr(value, name, None)) for name in fields))


def _name_in(mapping: Any) -> str | None:
    """Return the name that ``{"Key": "DB_PASSWORD", "Value": ...}`` has in another item."""
    for key in list(mapping)[:20]:
        if fold(_as_text(key) or "") in NAMING and (name := _as_text(mapping[key])):
            return name[: 2 * _KEY]
    return None


def escape_surrogates(text: str) -> str:
    """Return a plain ``str`` that can be written as UTF-8: lone surrogates are escaped.

    >>> print(escape_surrogates("name \\udce4"))
    name \\udce4
    """
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _cost(text: str) -> int:
    """Return the bytes of a text in JSON."""
    return len(json.dumps(text, ensure_ascii=False).encode())


def _fitting(text: str, room: float) -> str:
    """Return as much of the beginning as fits into that many bytes of JSON.

    >>> _fitting("abcdef", 6), _fitting("\\n\\n\\n", 6)
    ('abcd', '\\n\\n')
    """
    text = text[: int(room)]
    while text and (cost := _cost(text)) > room:
        text = text[: min(len(text) - 1, int(len(text) * room / cost))]
    return text
