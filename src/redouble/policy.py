"""The frozen value that says how a call is retried.

One table, `_FIELDS`, holds every field with its default and its check; a policy is built from keywords,
derived with `Policy.replace`, compared, hashed, pickled and shared freely. It holds no state of any call.
"""

from __future__ import annotations

import os
from enum import Enum
from functools import partial
from types import MappingProxyType

from . import _checks as check
from . import _guard_fields as guards
from ._config import read_environment, read_mapping, unknown
from ._describe import Objection, describe
from ._record import Record, assign
from ._rule import Rule, as_rule, rules
from .backoff import delays, full_jitter, shown_name
from .events import wanting_successes

__all__ = [
    "UNSET",
    "Objection",
    "Policy",
    "Rule",
]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from datetime import timedelta
    from random import Random
    from typing import Any, Literal, ParamSpec, TypedDict, TypeVar

    from typing_extensions import Unpack

    from .backoff import Backoff
    from .breaker import Breaker
    from .budget import Budget
    from .bulkhead import Bulkhead
    from .classify import Cause, Classifier, Verdict
    from .deadletter import DeadLetters
    from .events import Event
    from .throttle import AdaptiveThrottle

    P = ParamSpec("P")
    R = TypeVar("R")
    F = TypeVar("F")
    Seconds = float | timedelta
    Answer = bool | float | timedelta | Verdict | None
    Retryable = (
        type[Exception] | Iterable[type[Exception]] | Classifier | Callable[[Exception], Answer | object]
    )

    class PolicyFields(TypedDict, total=False):
        """The keywords of `Policy`, `retry` and `retrying`, with what each accepts."""

        attempts: int | None
        base: Seconds
        cap: Seconds
        backoff: Backoff
        on: Retryable | None
        until: Callable[[Any], object] | None
        deadline: Seconds | None
        timeout: Seconds | None
        patience: Seconds
        idempotent: bool | Literal["by_method"]
        rules: Mapping[Cause | int | type[Exception] | str, Rule]
        budget: Budget | None
        breaker: Breaker | None
        throttle: AdaptiveThrottle | None
        bulkhead: Bulkhead | None
        fallback: object
        priority: int
        dead_letters: DeadLetters | None
        payload: Callable[..., object] | None
        nested: Literal["independent", "defer"]
        enabled: bool | Callable[[], object]
        listeners: Iterable[Callable[[Event], object]]
        name: str | None
        idempotency_key: bool | Callable[..., object]
        rng: Random | None
        clock: Callable[[], float] | None
        sleep: Callable[[float], Any] | None


class Unset(Enum):
    """That no fallback was given: ``None`` is one."""

    unset = "unset"

    def __repr__(self) -> str:
        return "unset"


UNSET = Unset.unset


# field -> (default, check). A check takes the field's name and a value and gives what is stored.
_FIELDS: dict[str, tuple[Any, Callable[[str, Any], Any]]] = {
    "attempts": (4, check.optional(check.attempts)),
    "base": (1.0, check.seconds),
    "cap": (30.0, check.seconds_or_inf),
    "backoff": (full_jitter, check.sync_function),
    "on": (None, check.optional(check.retryable)),
    "until": (None, check.optional(check.sync_function)),
    "deadline": (None, check.optional(check.some_seconds)),
    "timeout": (None, check.optional(check.some_seconds)),
    "patience": (120.0, check.seconds),
    "idempotent": ("by_method", check.one_of(True, False, "by_method")),
    "rules": (MappingProxyType({}), rules),
    "budget": (None, check.optional(guards.budget)),
    "breaker": (None, check.optional(guards.breaker)),
    "throttle": (None, check.optional(guards.throttle)),
    "bulkhead": (None, check.optional(guards.bulkhead)),
    "fallback": (UNSET, check.anything),
    "priority": (0, guards.priority),
    "dead_letters": (None, check.optional(guards.dead_letters)),
    "payload": (None, check.optional(check.sync_function)),
    "nested": ("independent", check.one_of("independent", "defer")),
    "enabled": (True, check.switch),
    "listeners": ((), check.listeners),
    "name": (None, check.optional(check.text)),
    "idempotency_key": (False, check.switch),
    "rng": (None, check.optional(check.generator)),
    "clock": (None, check.optional(check.sync_function)),
    "sleep": (None, check.optional(check.function)),
}


class Policy(Record):
    """How a call is retried: an immutable value, shared by any number of threads and tasks.

    With no arguments: 4 attempts, full jitter from 1 s up to 30 s, only failures known to be transient,
    server hints honoured. The fields and their meaning are in the reference; in short: ``attempts``,
    ``base``, ``cap``, ``backoff``, ``on``, ``until``, ``deadline``, ``timeout``, ``patience``,
    ``idempotent``, ``rules``, ``budget``, ``breaker``, ``throttle``, ``bulkhead``, ``fallback``,
    ``priority``, ``dead_letters``, ``payload``, ``nested``, ``enabled``, ``listeners``, ``name``,
    ``idempotency_key``, ``rng``, ``clock``, ``sleep``. Durations are seconds or ``timedelta``.

    >>> policy = Policy(attempts=6, base=0.2, cap=5.0, deadline=20.0)
    >>> policy.replace(attempts=2)
    Policy(attempts=2, base=0.2, cap=5.0, deadline=20.0)
    >>> policy.call(int, "42")
    42
    """

    __slots__ = (*_FIELDS, "_in_context", "_guarded", "_falls_back", "_successes", "_way")
    attempts: int | None
    base: float
    cap: float
    backoff: Backoff
    on: tuple[type[Exception], ...] | Classifier | Callable[[Exception], object] | None
    until: Callable[[Any], object] | None
    deadline: float | None
    timeout: float | None
    patience: float
    idempotent: bool | Literal["by_method"]
    rules: Mapping[Cause | int | type[Exception], Rule]
    budget: Budget | None
    breaker: Breaker | None
    throttle: AdaptiveThrottle | None
    bulkhead: Bulkhead | None
    fallback: object
    priority: int
    dead_letters: DeadLetters | None
    payload: Callable[..., object] | None
    nested: Literal["independent", "defer"]
    enabled: bool | Callable[[], object]
    listeners: tuple[Callable[[Event], object], ...]
    name: str | None
    idempotency_key: bool | Callable[..., object]
    rng: Random | None
    clock: Callable[[], float] | None
    sleep: Callable[[float], Any] | None
    # Whether a first attempt has to know of itself, or of the time.
    _in_context: bool
    # Whether it has guards, which must be asked and told.
    _guarded: bool
    # Whether something stands in where a call was given up on.
    _falls_back: bool
    # The listeners that hear of a success at the first try.
    _successes: tuple[Callable[[Event], object], ...]
    # Which way a first attempt goes, by how much it needs: see the drivers.
    _way: Literal["bare", "judged", "guarded", "watched", "known", "full"]

    def __init__(self, **fields: Unpack[PolicyFields]) -> None:
        given: dict[str, Any] = dict(fields)
        for field, (default, checked) in _FIELDS.items():
            assign(self, field, checked(field, given.pop(field)) if field in given else default)
        if given:
            raise TypeError(unknown(next(iter(given)), _FIELDS))
        if self.payload is not None and self.dead_letters is None:
            raise ValueError("payload must come with dead_letters: nothing is kept of a call otherwise")
        if self.attempts is None and self.deadline is None:
            raise ValueError("attempts must not be None without a deadline: such a call may never end")
        known = self.deadline is not None or self.timeout is not None or self.idempotency_key is not False
        assign(self, "_in_context", known)
        assign(self, "_guarded", any(getattr(self, guard) is not None for guard in guards.FIELDS))
        assign(self, "_falls_back", self.fallback is not UNSET)
        assign(self, "_successes", wanting_successes(self.listeners))
        assign(self, "_way", self._first_way())

    def _first_way(self) -> str:
        asked = self._in_context or self.until is not None
        waits = self.throttle is not None or self.bulkhead is not None or bool(self._awaited())
        if self._successes:
            return "full"
        if self._guarded:
            return "full" if waits else "watched" if asked else "guarded"
        return "bare" if not asked else "known" if self._in_context else "judged"

    def _awaited(self) -> list[str]:
        """The guards whose answers must be awaited."""
        if not self._guarded:
            return []
        return [field for field in guards.FIELDS if getattr(getattr(self, field), "is_async", False)]

    def replace(self, **fields: Unpack[PolicyFields]) -> Policy:
        """Another policy with these fields changed.

        >>> Policy(base=0.5).replace(attempts=2)
        Policy(attempts=2, base=0.5)
        """
        changed: Any = {**self._said(), **fields}
        return type(self)(**changed) if fields else self

    def call(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Calls ``function`` under this policy; gives an awaitable if it is async."""
        from ._decorate import driven

        under_policy: Callable[P, R] = driven(self, function)
        return under_policy(*args, **kwargs)

    def __call__(self, function: F, /) -> F:
        """Decorates ``function``, as ``@retry(policy)`` does."""
        from ._decorate import decorate

        decorated: F = decorate(self, function)
        return decorated

    def delays(self) -> Iterator[float]:
        """A preview of the waits of one call, drawn at random as in earnest.

        >>> from redouble.backoff import exponential
        >>> list(Policy(backoff=exponential).delays())
        [1.0, 2.0, 4.0]
        """
        return delays(self.backoff, attempts=self.attempts, base=self.base, cap=self.cap, rng=self.rng)

    def describe(self) -> str:
        """Says in words what this policy does, the longest it can take, and what `warnings` object to.

        >>> print(Policy().describe())
        Calls up to 4 times.
        Waits by full_jitter from 1 s, never longer than 30 s.
        ...
        """
        return describe(self)

    def warnings(self) -> tuple[Objection, ...]:
        """What an expert would object to, each with the reason and a remedy; empty if there is nothing.

        Nobody asks at construction: ask in a test of your own, and leave out by ``name`` what you mean to do.

        >>> from redouble.backoff import exponential
        >>> [objection] = Policy(backoff=exponential).warnings()
        >>> objection.name, objection.field, objection.remedy
        ('no_jitter', 'backoff', 'write backoff=full_jitter')
        """
        from ._objections import objections

        return objections(self)

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> Policy:
        """A policy from plain data, such as parsed TOML, YAML or JSON.

        Understands the fields' own names and ``max_attempts``, ``base_delay``, ``max_delay``,
        ``base_delay_ms``, ``max_delay_ms``, ``jitter`` (``full``, ``equal``, ``decorrelated``, ``none``)
        and ``jitter_factor``; durations may be texts such as ``"100ms"`` or ``"20s"``.

        >>> Policy.from_mapping({"max_attempts": 6, "base_delay": "200ms", "deadline": "20s"})
        Policy(attempts=6, base=0.2, deadline=20.0)
        """
        fields = read_mapping(mapping)
        if "rules" in fields:
            fields["rules"] = {key: as_rule(rule) for key, rule in fields["rules"].items()}
        return cls(**fields)

    @classmethod
    def from_env(cls, prefix: str, environ: Mapping[str, str] | None = None) -> Policy:
        """A policy from environment variables that begin with ``prefix``; without any, the defaults.

        >>> Policy.from_env("PAYMENTS_RETRY", {"PAYMENTS_RETRY_ATTEMPTS": "6"})
        Policy(attempts=6)
        """
        return cls(**read_environment(prefix, os.environ if environ is None else environ))

    def _said(self) -> dict[str, Any]:
        """The fields that differ from their defaults."""
        return {
            field: value
            for field, (default, _) in _FIELDS.items()
            if (value := getattr(self, field)) is not default and (field == "fallback" or value != default)
        }

    def __repr__(self) -> str:
        shown = {**self._said()}
        if "backoff" in shown:
            shown["backoff"] = _Unquoted(_shown_backoff(self.backoff))
        if "rules" in shown:
            shown["rules"] = dict(self.rules)
        return f"Policy({', '.join(f'{field}={value!r}' for field, value in shown.items())})"

    def __copy__(self) -> Policy:
        return self

    def __deepcopy__(self, memo: object) -> Policy:
        return self

    def __hash__(self) -> int:
        # Of the plain fields only: equal policies hash alike, and unhashable callables do no harm.
        return hash((self.attempts, self.base, self.cap, self.deadline, self.timeout, self.name))

    def __reduce__(self) -> tuple[Any, ...]:
        said = self._said()
        guards.insist_on_pickling(said)
        if "rules" in said:
            said["rules"] = dict(self.rules)
        return _rebuild, (type(self), said)


def _shown_backoff(backoff: Backoff) -> str:
    name = shown_name(backoff)
    if not isinstance(backoff, partial):
        return name
    return f"partial({', '.join([name, *(f'{key}={value!r}' for key, value in backoff.keywords.items())])})"


class _Unquoted(str):
    """Text that prints itself without quotes: a function's name within a repr."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _rebuild(cls: type[Policy], fields: dict[str, Any]) -> Policy:
    return cls(**fields)
