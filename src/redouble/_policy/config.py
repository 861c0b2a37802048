"""Read policy fields from plain data: mappings (TOML, YAML, JSON) and environment variables.

Own field names and common names of other systems are understood. An unknown name, or two names for one field,
is an error: a misspelt limit that is silently ignored is not a limit.
"""

from __future__ import annotations

from functools import partial

from .. import backoff
from .._base.checks import INF, anything, number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from typing import Any

    Reader = Callable[[str, Any], Any]

_UNITS = {"ms": 0.001, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_SWITCHES = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}
_JITTERS = {
    "full": backoff.full_jitter,
    "equal": backoff.equal_jitter,
    "decorrelated": backoff.decorrelated_jitter,
    "none": backoff.exponential,
}
_BACKOFFS = {
    name: getattr(backoff, name) for name in backoff.__all__ if name not in ("delays", "immediately_once")
}


def read_mapping(data: Mapping[str, Any], fields: Collection[str] = ()) -> dict[str, Any]:
    """Return policy fields from a mapping. ``fields`` are names whose values are used unchanged.

    >>> read_mapping({"max_attempts": 5, "base_delay_ms": 100, "deadline": "20s"})
    {'attempts': 5, 'base': 0.1, 'deadline': 20.0}
    """
    if not hasattr(data, "items"):
        raise TypeError(f"a policy needs a mapping of field names to values, got {data!r}")
    return _read(data, _readers(fields))


def read_environment(prefix: str, environ: Mapping[str, str], fields: Collection[str]) -> dict[str, Any]:
    """Return policy fields from ``PREFIX_ATTEMPTS``, ``PREFIX_BASE`` and so on; empty variables are unset.

    >>> read_environment("P", {"P_ATTEMPTS": "6", "P_BASE": "", "PATH": "/bin"}, ())
    {'attempts': 6}
    """
    if not prefix:
        raise ValueError("prefix must not be empty: without it every environment variable would be read")
    prefix = prefix if prefix.endswith("_") else prefix + "_"
    found = {
        key.removeprefix(prefix).lower(): value.strip()
        for key, value in environ.items()
        if key.startswith(prefix) and value.strip()
    }
    return _read(found, _readers(fields), f"in the environment under {prefix}: ")


def _readers(fields: Collection[str]) -> dict[str, tuple[str, Reader]]:
    """Return all readers; the values of fields without one are left to the checks of the policy."""
    return {**{field: (field, anything) for field in fields}, **READERS}


def _read(data: Any, readers: Mapping[str, tuple[str, Reader]], where: str = "") -> dict[str, Any]:
    """Return fields by their own names; ``where`` begins the message of an error.

    Raise `TypeError` for a name without a reader, and `ValueError` for two names of one field.
    """
    fields: dict[str, Any] = {}
    names: dict[str, str] = {}
    for key, value in data.items():
        if key not in readers:
            from .other_names import advice

            hint = advice(key, value, readers, {row[0] for row in readers.values()})
            raise TypeError(f"{where}unknown policy field {key!r}: {hint}")
        field, read = readers[key]
        if field in fields:
            raise ValueError(f"{where}{key} and {names[field]} both set {field}: keep one of them")
        names[field] = key
        fields[field] = read(key, value)
    return fields


def _text(parse: Callable[[str], Any], expected: str) -> Reader:
    """Return a reader of texts, trimmed and in lower case. Other values are left to the check of the field.

    ``parse`` raises `KeyError` or `ValueError` for a text that it does not know; ``expected`` says in the
    error what it does.
    """

    def read(name: str, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return parse(value.strip().lower())
        except (KeyError, ValueError):
            raise ValueError(f"{name} must be {expected}, got {value!r}") from None

    return read


def _decimal(text: str) -> float:
    """Parse plain decimals only: no sign, exponent, underscore, ``inf`` or ``nan``."""
    if not (text.isascii() and text.replace(".", "", 1).isdigit()):
        raise ValueError
    return float(text)


def _seconds(text: str) -> float:
    """Parse a duration with a unit, such as ``100ms``; seconds without one.

    >>> _seconds("100ms"), _seconds("1.5m"), _seconds("20")
    (0.1, 90.0, 20.0)
    """
    figure = text.rstrip("abcdefghijklmnopqrstuvwxyz ")
    unit = text[len(figure) :].strip() or "s"
    # Divided, where that is exact and a product is not: 100ms is 0.1, 9 x 0.001 is not 0.009.
    return _decimal(figure) / 1000 if unit == "ms" else _decimal(figure) * _UNITS[unit]


def _integer(text: str) -> int:
    """Parse digits, perhaps with a minus: no underscores or digits of other scripts."""
    digits = text.removeprefix("-")
    # No limit needs more than eighteen digits, and long numbers are slow to convert.
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 18):
        raise ValueError
    return int(text)


def _or(parse: Callable[[str], Any], **words: Any) -> Callable[[str], Any]:
    """Return a parser that also accepts these words, each with its value."""
    return lambda text: words[text] if text in words else parse(text)


def _milliseconds(name: str, value: Any) -> float:
    """Read a number of milliseconds, as seconds."""
    return number(name, _text(_decimal, "a number of milliseconds")(name, value)) / 1000


def _jitter(name: str, value: Any) -> Any:
    """Read the common name of a jitter; ``True`` is ``full`` and ``False`` is ``none``."""
    word = ("full" if value else "none") if isinstance(value, bool) else value
    if not isinstance(word, str) or word not in _JITTERS:
        raise ValueError(f"{name} must be one of {', '.join(_JITTERS)}, got {value!r}")
    return _JITTERS[word]


def _share(name: str, value: Any) -> float:
    """Read a share from 0 to 1, such as ``0.1`` or ``"10%"``.

    >>> _share("retry_budget", "10%")
    0.1
    """
    expected = "a share from 0 to 1 such as 0.1 or '10%'"

    def parse(text: str) -> float:
        return _decimal(text[:-1].strip()) / 100 if text.endswith("%") else _decimal(text)

    share = number(name, _text(parse, expected)(name, value))
    if share > 1:
        raise ValueError(f"{name} must be {expected}, got {value!r}")
    return share


def _jitter_factor(name: str, value: Any) -> Any:
    """Read the spread of `proportional_jitter`."""
    return partial(backoff.proportional_jitter, spread=_share(name, value))


def _logger(name: str, value: Any) -> Any:
    """Read the name of a logger; ``false`` for none."""
    if not isinstance(value, str):
        return value
    return {**_SWITCHES, "none": None}.get(value.strip().lower(), value.strip())


def _retry_budget(name: str, value: Any) -> Any:
    """Make a budget for this policy alone, from the share of calls that may be retries."""
    if value is None or (isinstance(value, str) and value.strip().lower() == "none"):
        return None
    from ..budget import RatioBudget

    return RatioBudget(_share(name, value))


def _rules(name: str, value: Any) -> Any:
    """Read rules: causes or statuses as text, the fields of each rule as a mapping."""
    if not hasattr(value, "items"):
        raise TypeError(f"{name} must be a mapping of causes or statuses to rules, got {value!r}")
    of_rules = {key: row for key, row in READERS.items() if row[0] in _OF_RULES}
    return {
        int(key) if isinstance(key, str) and key.isascii() and key.isdigit() else key: (
            _read(rule, of_rules, f"in {name}: ") if hasattr(rule, "items") else rule
        )
        for key, rule in value.items()
    }


_OF_RULES = ("attempts", "base", "cap", "floor", "backoff")
_DURATION = "a duration such as '100ms', '20s' or '1.5m'"
duration = _text(_seconds, _DURATION)
_cap = _text(_or(_seconds, inf=INF), _DURATION)
_limit = _text(_or(_seconds, none=None, inf=INF), _DURATION)
_count = _text(_or(_integer, none=None, inf=INF), "a whole number, 'none' or 'inf'")
_switch = _text(_SWITCHES.__getitem__, "true or false")

# The name in the data -> the field of the policy, and the reader of its value.
READERS: dict[str, tuple[str, Reader]] = {
    "attempts": ("attempts", _count),
    "max_attempts": ("attempts", _count),
    "base": ("base", duration),
    "base_delay": ("base", duration),
    "base_delay_ms": ("base", _milliseconds),
    "cap": ("cap", _cap),
    "max_delay": ("cap", _cap),
    "max_delay_ms": ("cap", _milliseconds),
    "floor": ("floor", duration),
    "min_delay": ("floor", duration),
    "min_delay_ms": ("floor", _milliseconds),
    "backoff": ("backoff", _text(_BACKOFFS.__getitem__, f"one of {', '.join(_BACKOFFS)}")),
    "jitter": ("backoff", _jitter),
    "jitter_factor": ("backoff", _jitter_factor),
    "deadline": ("deadline", _limit),
    "give_up_after": ("give_up_after", _limit),
    "timeout": ("timeout", _limit),
    "max_retry_after": ("max_retry_after", _cap),
    "idempotent": (
        "idempotent",
        _text({**_SWITCHES, "by_method": "by_method"}.__getitem__, "true, false or by_method"),
    ),
    "enabled": ("enabled", _switch),
    "logger": ("logger", _logger),
    "rules": ("rules", _rules),
    "retry_budget": ("budget", _retry_budget),
    "priority": ("priority", _text(_integer, "a whole number")),
    "idempotency_key": ("idempotency_key", _switch),
}
