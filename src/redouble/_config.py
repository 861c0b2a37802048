"""Plain data (TOML, YAML, JSON, the environment) to the fields of a policy. Pure.

Own field names and the common ones of other systems are understood; two names for one field at once,
and names nobody knows, are errors, since a misspelt limit that is silently ignored is no limit.
"""

from __future__ import annotations

import functools

from . import backoff as _backoff
from ._numbers import number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    Reader = tuple[str, Callable[[str, Any], Any]]

_UNITS = {"ms": 0.001, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}

_JITTERS = {
    "full": _backoff.full_jitter,
    "equal": _backoff.equal_jitter,
    "decorrelated": _backoff.decorrelated_jitter,
    "none": _backoff.exponential,
}
_BACKOFFS = {
    name: getattr(_backoff, name)
    for name in (
        "fixed", "linear", "exponential", "full_jitter", "equal_jitter", "decorrelated_jitter",
        "proportional_jitter", "additive_jitter",
    )
}  # fmt: skip


def read_mapping(data: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a policy out of a mapping; ``TypeError`` for an unknown name, with the nearest one.

    >>> read_mapping({"max_attempts": 5, "base_delay_ms": 100, "deadline": "20s"})
    {'attempts': 5, 'base': 0.1, 'deadline': 20.0}
    """
    if not hasattr(data, "items"):
        raise TypeError(f"a policy is read from a mapping of names to values, got {data!r}")
    return _read(data, READERS)


def _read(data: Any, readers: Mapping[str, Reader], where: str = "") -> dict[str, Any]:
    fields: dict[str, Any] = {}
    said: dict[str, str] = {}
    for key, value in data.items():
        if key not in readers:
            raise TypeError(where + unknown(key, readers))
        field, read = readers[key]
        if field in said:
            raise ValueError(f"{where}{key} and {said[field]} both set {field}: keep one of them")
        said[field] = key
        fields[field] = read(key, value)
    return fields


def read_environment(prefix: str, environ: Mapping[str, str]) -> dict[str, Any]:
    """Fields of a policy out of ``PREFIX_ATTEMPTS``, ``PREFIX_BASE`` and so on; empty ones are unset."""
    if not prefix:
        raise ValueError("prefix must not be empty: it tells this policy's variables from all others")
    prefix = prefix if prefix.endswith("_") else prefix + "_"
    found = {
        key.removeprefix(prefix).lower(): value.strip()
        for key, value in environ.items()
        if key.startswith(prefix) and value.strip()
    }
    return _read(found, READERS, f"in the environment under {prefix}: ")


def unknown(name: object, known: Iterable[str]) -> str:
    """The message about a name that is not known, with the nearest that is."""
    import difflib

    near = difflib.get_close_matches(str(name), list(known), n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(sorted(known))}"
    return f"unknown policy field {name!r}: {hint}"


def duration(name: str, value: Any) -> Any:
    """Seconds out of ``"100ms"``, ``"20s"``, ``"1.5m"`` or a bare number; what is no text is left as it is.

    >>> duration("base", "250ms")
    0.25
    """
    if not isinstance(value, str):
        return value
    text = value.strip().lower()
    figure = text.rstrip("abcdefghijklmnopqrstuvwxyz ")
    unit = text[len(figure) :].strip() or "s"
    if unit not in _UNITS or not _is_decimal(figure):
        raise ValueError(f"{name} must be a duration such as '100ms', '20s' or '1.5m', got {value!r}")
    # Divided, where that is exact and a product is not: 100ms is 0.1, 9 x 0.001 is not 0.009.
    return float(figure) / 1000 if unit == "ms" else float(figure) * _UNITS[unit]


def _is_decimal(text: str) -> bool:
    return text.isascii() and text.replace(".", "", 1).isdigit()


def _optional_duration(name: str, value: Any) -> Any:
    return None if _says_none(value) else duration(name, value)


def _cap(name: str, value: Any) -> Any:
    return (
        float("inf") if isinstance(value, str) and value.strip().lower() == "inf" else duration(name, value)
    )


def _milliseconds(name: str, value: Any) -> Any:
    if isinstance(value, str):
        if not _is_decimal(value.strip()):
            raise ValueError(f"{name} must be a number of milliseconds, got {value!r}")
        return float(value) / 1000
    return number(name, value) / 1000


def _count(name: str, value: Any) -> Any:
    if _says_none(value):
        return None
    if isinstance(value, str):
        # Eighteen digits are more calls than anybody makes, and few enough to convert.
        if not (value.strip().isascii() and value.strip().isdigit() and len(value) <= 18):
            raise ValueError(f"{name} must be a whole number, got {value!r}")
        return int(value)
    return value


def _whole(name: str, value: Any) -> Any:
    """A whole number, which may be below 0."""
    if isinstance(value, str):
        text = value.strip()
        digits = text.removeprefix("-")
        if _says_none(digits):
            raise ValueError(f"{name} must be a whole number, got {value!r}")
        return -_count(name, digits) if text.startswith("-") else _count(name, digits)
    return value


def _switch(name: str, value: Any) -> Any:
    if isinstance(value, str):
        word = value.strip().lower()
        if word in ("true", "yes", "on", "1"):
            return True
        if word in ("false", "no", "off", "0"):
            return False
        raise ValueError(f"{name} must be true or false, got {value!r}")
    return value


def _idempotent(name: str, value: Any) -> Any:
    return "by_method" if value == "by_method" else _switch(name, value)


def _named_backoff(name: str, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if value not in _BACKOFFS:
        raise ValueError(f"{name} must be one of {', '.join(_BACKOFFS)}, got {value!r}")
    return _BACKOFFS[value]


def _jitter(name: str, value: Any) -> Any:
    word = ("full" if value else "none") if isinstance(value, bool) else value
    if not isinstance(word, str) or word not in _JITTERS:
        raise ValueError(f"{name} must be one of {', '.join(_JITTERS)}, got {value!r}")
    return _JITTERS[word]


def _jitter_factor(name: str, value: Any) -> Any:
    if isinstance(value, str):
        if not _is_decimal(value.strip()):
            raise ValueError(f"{name} must be a number from 0 to 1, got {value!r}")
        value = float(value)
    if number(name, value) > 1:
        raise ValueError(f"{name} must be at most 1, got {value!r}")
    return functools.partial(_backoff.proportional_jitter, spread=float(value))


def _retry_budget(name: str, value: Any) -> Any:
    """A budget of its own for the policy: the share of calls that may be retries, ``0.1`` or ``"10%"``."""
    if _says_none(value):
        return None
    share = value
    if isinstance(value, str):
        text = value.strip().removesuffix("%").strip()
        if not _is_decimal(text):
            raise ValueError(f"{name} must be a share such as 0.1 or '10%', got {value!r}")
        share = float(text) / 100 if value.strip().endswith("%") else float(text)
    if number(name, share) > 1:
        raise ValueError(f"{name} must be a share from 0 to 1, or a percentage such as '10%', got {value!r}")
    from .budget import RatioBudget

    return RatioBudget(float(share))


def _rules(name: str, value: Any) -> Any:
    """Rules as plain data: causes or statuses as text, the fields of each rule as a mapping."""
    if not hasattr(value, "items"):
        raise TypeError(f"{name} must be a mapping of causes or statuses to rules, got {value!r}")
    return {
        int(key) if isinstance(key, str) and key.isascii() and key.isdigit() else key: _rule(name, rule)
        for key, rule in value.items()
    }


def _rule(name: str, value: Any) -> Any:
    if not hasattr(value, "items"):
        return value
    of_rules = {key: row for key, row in READERS.items() if row[0] in ("attempts", "base", "cap", "backoff")}
    return _read(value, of_rules, f"in {name}: ")


def _as_it_is(name: str, value: Any) -> Any:
    return value


def _says_none(value: Any) -> bool:
    return value is None or (isinstance(value, str) and value.strip().lower() == "none")


# The name somebody wrote -> the policy's field, and how its value is read. One line each.
READERS: dict[str, Reader] = {
    "attempts": ("attempts", _count),
    "max_attempts": ("attempts", _count),
    "base": ("base", duration),
    "base_delay": ("base", duration),
    "base_delay_ms": ("base", _milliseconds),
    "cap": ("cap", _cap),
    "max_delay": ("cap", _cap),
    "max_delay_ms": ("cap", _milliseconds),
    "backoff": ("backoff", _named_backoff),
    "jitter": ("backoff", _jitter),
    "jitter_factor": ("backoff", _jitter_factor),
    "deadline": ("deadline", _optional_duration),
    "timeout": ("timeout", _optional_duration),
    "patience": ("patience", duration),
    "idempotent": ("idempotent", _idempotent),
    "nested": ("nested", _as_it_is),
    "enabled": ("enabled", _switch),
    "name": ("name", _as_it_is),
    "rules": ("rules", _rules),
    "retry_budget": ("budget", _retry_budget),
    "priority": ("priority", _whole),
    # These hold code, not data; a mapping made in Python may still carry them.
    "on": ("on", _as_it_is),
    "until": ("until", _as_it_is),
    "budget": ("budget", _as_it_is),
    "breaker": ("breaker", _as_it_is),
    "throttle": ("throttle", _as_it_is),
    "bulkhead": ("bulkhead", _as_it_is),
    "fallback": ("fallback", _as_it_is),
    "dead_letters": ("dead_letters", _as_it_is),
    "payload": ("payload", _as_it_is),
    "listeners": ("listeners", _as_it_is),
    "rng": ("rng", _as_it_is),
    "clock": ("clock", _as_it_is),
    "sleep": ("sleep", _as_it_is),
    "idempotency_key": ("idempotency_key", _switch),
}
