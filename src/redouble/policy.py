"""`Policy`, the settings of a retried call, and `Rule`, other settings for some failures."""

# `_GROUPS` declares every field of a policy with its type, default, check and a sentence. After a change
# there run `python tests/tools/write_policy_fields.py`, which writes them for type checkers and into the
# docstring.

from __future__ import annotations

import os
from enum import Enum
from functools import cache, partial
from itertools import repeat
from operator import attrgetter
from types import FunctionType, MappingProxyType

from ._base import checks as check
from ._base.callables import is_plain, name_of, takes_second
from ._base.record import Record, assign
from .backoff import delays, full_jitter
from .classify import retryable, rule_key
from .events import wanting_successes

__all__ = [
    "UNSET",
    "LintWarning",
    "Policy",
    "RetriedCall",
    "Rule",
]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from datetime import timedelta
    from typing import Any, ClassVar, Literal, ParamSpec, TypeVar

    from typing_extensions import Unpack

    from ._policy.lint import LintWarning
    from ._policy.typed import PolicyFields
    from ._policy.typed import StoredFields as Base
    from .backoff import Backoff
    from .classify import Classifier, Verdict
    from .events import Event

    P = ParamSpec("P")
    R = TypeVar("R")
    F = TypeVar("F")
    Seconds = float | timedelta
    Answer = bool | float | timedelta | Verdict | None
    Recover = Callable[[Exception], object] | Callable[[Exception, "RetriedCall"], object]
    Retryable = (
        type[Exception] | Iterable[type[Exception]] | Classifier | Callable[[Exception], Answer | object]
    )
else:
    Base = Record


class Unset(Enum):
    """The type of `UNSET`, which means that there is no fallback: ``None`` is one."""

    unset = "unset"

    def __repr__(self) -> str:
        return "unset"


UNSET = Unset.unset
_GUARDS = ("budget", "breaker", "throttle", "bulkhead")
# Fields with functions that the driver calls and that may be async.
_MAY_BE_ASYNC = ("rules", "recover", "fallback", "sleep")


class RetriedCall(Record):
    """The call that is about to be retried: the second argument of ``recover``.

    >>> def smaller(error, call):
    ...     call.kwargs["batch"] = call.kwargs.get("batch", 100) // 2
    >>> Policy(recover=smaller).recover is smaller
    True
    """

    function: Callable[..., Any] | None
    """The function as it was before it was decorated; ``None`` in a block."""
    args: tuple[Any, ...]
    """The positional arguments; the first is ``self`` in a method."""
    kwargs: dict[str, Any]
    """The keyword arguments of the attempts to come: change the dict to change them."""
    attempt: int
    """The number of the attempt that failed, from 1."""


class Rule(Record):
    """Other settings for failures of one kind. Fields that are left out are the policy's.

    ``attempts`` counts the failures of this rule plus one, never above the policy's. ``base``, ``cap``,
    ``floor`` and ``backoff`` set the waits after such failures. ``recover`` runs before the next attempt,
    instead of the policy's.

    >>> Rule(attempts=2, base=5.0)
    Rule(attempts=2, base=5.0)
    """

    attempts: float | None
    base: float | None
    cap: float | None
    floor: float | None
    backoff: Backoff | None
    recover: Recover | None
    _recover_takes_call: bool

    def __init__(
        self,
        *,
        attempts: float | None = None,
        base: Seconds | None = None,
        cap: Seconds | None = None,
        floor: Seconds | None = None,
        backoff: Backoff | None = None,
        recover: Recover | None = None,
    ) -> None:
        assign(self, "attempts", check.optional(check.attempts_or_inf)("attempts", attempts))
        assign(self, "base", check.optional(check.seconds)("base", base))
        assign(self, "cap", check.optional(check.seconds_or_inf)("cap", cap))
        assign(self, "floor", check.optional(check.seconds)("floor", floor))
        if self.floor is not None and self.cap is not None:
            check.floor_below_cap(self.floor, self.cap)
        assign(self, "backoff", check.optional(_backoff)("backoff", backoff))
        assign(self, "recover", check.optional(check.function)("recover", recover))
        assign(self, "_recover_takes_call", recover is not None and takes_second("recover", recover, "call"))

    def __repr__(self) -> str:
        given = [(field, getattr(self, field)) for field in self._fields if field[0] != "_"]
        return f"Rule({', '.join(f'{field}={value!r}' for field, value in given if value is not None)})"


def _rules(name: str, value: Any) -> Mapping[Any, Rule]:
    """Check a mapping of causes, statuses or exception types to rules."""
    if not hasattr(value, "items"):
        raise TypeError(
            f"{name} must map causes, statuses or exception types to rules, such as "
            f"{{503: Rule(attempts=2)}}, got {value!r}"
        )
    built: dict[Any, Rule] = {}
    for key, rule in value.items():
        if not isinstance(rule, Rule):
            raise TypeError(f"{name}[{key!r}] must be a Rule, such as Rule(attempts=2), got {rule!r}")
        built[rule_key(name, key)] = rule
    return MappingProxyType(built)


def _fallback(name: str, value: Any) -> Any:
    """Check that a fallback is not an exception: a class would be called, and an error be the result."""
    kind: type = value if isinstance(value, type) else type(value)
    if issubclass(kind, BaseException):
        raise TypeError(
            f"{name} must not be an exception, got {value!r}: to raise another error, write a function of "
            "the last error that raises it"
        )
    return value


def _dead_letters(name: str, value: Any) -> Any:
    """Check a store of dead letters by its methods: a view of a queue is one, too."""
    if isinstance(value, type) or not (hasattr(value, "put") and hasattr(value, "aput")):
        raise TypeError(f"{name} must be a DeadLetters (from redouble.dead_letters), got {value!r}")
    return value


def _on(name: str, value: Any) -> Any:
    """Check which failures are retried."""
    given: Any = value
    if type(given) is type and issubclass(given, Exception):
        return (given,)
    try:
        return retryable(name, value)
    except TypeError as error:
        from ._policy.other_names import about_on

        raise TypeError(f"{error}{about_on(value)}") from None


def _backoff(name: str, value: Any) -> Any:
    """Check a delay function."""
    if not callable(value):
        from ._policy.other_names import about_backoff

        raise TypeError(f"{name} must be a function, got {value!r}{about_backoff(value)}")
    return check.sync_function(name, value)


class _Field(Record):
    """One field of a policy: a row of the table below.

    ``type`` and ``stored`` are annotations as text, for signatures and type checkers; ``stored`` is the type
    of the attribute where it is not that of the argument. ``check`` takes the name of the field and a value,
    and returns the value to store, or raises.
    """

    type: str
    default: Any
    check: Callable[[str, Any], Any]
    text: str
    stored: str = ""


_GROUPS: dict[str, dict[str, _Field]] = {
    "When to retry": {
        "attempts": _Field(
            "float | None",
            4,
            check.optional(check.attempts_or_inf),
            "Calls in total, the first included; ``None`` for as many as ``deadline`` or ``give_up_after`` "
            "allow, ``math.inf`` for ever.",
        ),
        "on": _Field(
            "Retryable | None",
            None,
            check.optional(_on),
            "Failures to retry: exception types, a `Classifier`, or a function of the error. ``None`` for "
            "those known to be transient.",
            "tuple[type[Exception], ...] | Classifier | Callable[[Exception], object] | None",
        ),
        "until": _Field(
            "Callable[[Any], object] | None",
            None,
            check.optional(check.sync_function),
            "Function of the result; a result for which it returns false is retried.",
        ),
        "idempotent": _Field(
            "bool | Literal['by_method']",
            "by_method",
            check.one_of(True, False, "by_method"),
            "Whether a call that may have taken effect may be repeated. ``'by_method'`` decides by the HTTP "
            "method and the ``Idempotency-Key`` header.",
        ),
        "rules": _Field(
            "Mapping[Cause | int | type[Exception] | str, Rule]",
            MappingProxyType({}),
            _rules,
            "Other settings by cause, status or exception type: see `Rule`.",
            "Mapping[Cause | int | type[Exception], Rule]",
        ),
        "nested": _Field(
            "Literal['stop', 'independent', 'defer']",
            "stop",
            check.one_of("stop", "independent", "defer"),
            "Errors that an inner call has retried: ``'stop'`` does not retry them, ``'independent'`` does. "
            "``'defer'``: one attempt while an enclosing call retries.",
        ),
        "enabled": _Field(
            "bool | Callable[[], object]",
            True,
            check.switch,
            "``False``, or a function that returns false, switches retries off.",
        ),
    },
    "How long to wait": {
        "base": _Field("Seconds", 1.0, check.seconds, "The size of the first wait.", "float"),
        "cap": _Field(
            "Seconds",
            30.0,
            check.seconds_or_inf,
            "The longest wait of the backoff; ``inf`` for no limit.",
            "float",
        ),
        "floor": _Field(
            "Seconds", 0.0, check.seconds, "The shortest wait of the backoff, at most ``cap``.", "float"
        ),
        "backoff": _Field(
            "Backoff",
            full_jitter,
            _backoff,
            "Delay function: one of `redouble.backoff`, or your own.",
        ),
        "deadline": _Field(
            "Seconds | None",
            None,
            check.optional(check.limit),
            "Hard limit for the whole call, waits and nested calls included: `DeadlineExceeded` is raised.",
            "float | None",
        ),
        "give_up_after": _Field(
            "Seconds | None",
            None,
            check.optional(check.limit),
            "Soft limit: no attempt starts that long after the call began. A running one is not cut off, and "
            "its own error is raised.",
            "float | None",
        ),
        "timeout": _Field(
            "Seconds | None",
            None,
            check.optional(check.limit),
            "Limit for each attempt. Async attempts are cut off; sync ones must pass "
            "``current_attempt().timeout`` to their client.",
            "float | None",
        ),
        "max_retry_after": _Field(
            "Seconds",
            120.0,
            check.seconds_or_inf,
            "The longest wait that a server may ask for; the call fails at once if it asks for more.",
            "float",
        ),
    },
    "Guards, shared by all callers, or functions of a call's arguments that return one": {
        "budget": _Field(
            "Budget | Callable[..., Budget | None] | None",
            None,
            check.optional(check.guard_or_function),
            "Limits the retries of all calls together.",
        ),
        "priority": _Field(
            "int",
            0,
            check.integer,
            "Passed to the budget, which refuses a retry below 0 while less than half of it is left.",
        ),
        "breaker": _Field(
            "Breaker | Callable[..., Breaker | None] | None",
            None,
            check.optional(check.guard_or_function),
            "Rejects calls to a dependency that keeps failing.",
        ),
        "throttle": _Field(
            "AdaptiveThrottle | Callable[..., AdaptiveThrottle | None] | None",
            None,
            check.optional(check.guard_or_function),
            "Limits the rate of attempts.",
        ),
        "bulkhead": _Field(
            "Bulkhead | Callable[..., Bulkhead | None] | None",
            None,
            check.optional(check.guard_or_function),
            "Limits the calls in flight.",
        ),
    },
    "Hooks": {
        "recover": _Field(
            "Recover | None",
            None,
            check.optional(check.function),
            "Function of the error, or of the error and the `RetriedCall`, that runs before each retry: "
            "reconnect, roll back, change an argument.",
        ),
        "fallback": _Field(
            "object",
            UNSET,
            _fallback,
            "Value, or function of the last error, to return instead of raising a retryable error. A "
            "function may raise another error.",
        ),
        "dead_letters": _Field(
            "DeadLetters | None",
            None,
            check.optional(_dead_letters),
            "Stores calls that failed for good though their error was retryable.",
        ),
        "payload": _Field(
            "Callable[..., object] | None",
            None,
            check.optional(check.sync_function),
            "Function of the call's arguments; a dead letter stores its result.",
        ),
        "listeners": _Field(
            "Iterable[Callable[[Event], object]]",
            (),
            check.listeners,
            "Functions that receive each event of the policy.",
            "tuple[Callable[[Event], object], ...]",
        ),
        "logger": _Field(
            "Logger | LoggerAdapter[Any] | str | Literal[False] | None",
            None,
            check.optional(check.logger),
            "Logger, or the name of one, for the events of the policy; ``None`` for ``redouble``, ``False`` "
            "for none.",
        ),
        "name": _Field(
            "str | None",
            None,
            check.optional(check.text),
            "Name in notes, logs and events; the function's qualified name by default.",
        ),
        "idempotency_key": _Field(
            "bool | Callable[..., object]",
            False,
            check.switch,
            "``True``, or a function of the call's arguments: one key for all attempts of a call.",
        ),
        "rng": _Field(
            "Random | None",
            None,
            check.optional(check.generator),
            "A ``random.Random`` for reproducible waits.",
        ),
        "clock": _Field(
            "Callable[[], float] | None",
            None,
            check.optional(check.sync_function),
            "Function that returns monotonic seconds.",
        ),
        "sleep": _Field(
            "Callable[[float], Any] | None",
            None,
            check.optional(check.function),
            "Function that waits; it may be async for async calls.",
        ),
    },
}
_FIELDS: dict[str, _Field] = {name: field for group in _GROUPS.values() for name, field in group.items()}


class Policy(Base):
    """How a call is retried: an immutable value, shared by any number of threads and tasks.

    All fields are optional and given by keyword. Durations are seconds or ``timedelta``.

    When to retry:

    - ``attempts=4``: Calls in total, the first included; ``None`` for as many as ``deadline`` or
      ``give_up_after`` allow, ``math.inf`` for ever.
    - ``on=None``: Failures to retry: exception types, a `Classifier`, or a function of the error.
      ``None`` for those known to be transient.
    - ``until=None``: Function of the result; a result for which it returns false is retried.
    - ``idempotent='by_method'``: Whether a call that may have taken effect may be repeated.
      ``'by_method'`` decides by the HTTP method and the ``Idempotency-Key`` header.
    - ``rules={}``: Other settings by cause, status or exception type: see `Rule`.
    - ``nested='stop'``: Errors that an inner call has retried: ``'stop'`` does not retry them,
      ``'independent'`` does. ``'defer'``: one attempt while an enclosing call retries.
    - ``enabled=True``: ``False``, or a function that returns false, switches retries off.

    How long to wait:

    - ``base=1.0``: The size of the first wait.
    - ``cap=30.0``: The longest wait of the backoff; ``inf`` for no limit.
    - ``floor=0.0``: The shortest wait of the backoff, at most ``cap``.
    - ``backoff=full_jitter``: Delay function: one of `redouble.backoff`, or your own.
    - ``deadline=None``: Hard limit for the whole call, waits and nested calls included:
      `DeadlineExceeded` is raised.
    - ``give_up_after=None``: Soft limit: no attempt starts that long after the call began. A running one
      is not cut off, and its own error is raised.
    - ``timeout=None``: Limit for each attempt. Async attempts are cut off; sync ones must pass
      ``current_attempt().timeout`` to their client.
    - ``max_retry_after=120.0``: The longest wait that a server may ask for; the call fails at once if it
      asks for more.

    Guards, shared by all callers, or functions of a call's arguments that return one:

    - ``budget=None``: Limits the retries of all calls together.
    - ``priority=0``: Passed to the budget, which refuses a retry below 0 while less than half of it is
      left.
    - ``breaker=None``: Rejects calls to a dependency that keeps failing.
    - ``throttle=None``: Limits the rate of attempts.
    - ``bulkhead=None``: Limits the calls in flight.

    Hooks:

    - ``recover=None``: Function of the error, or of the error and the `RetriedCall`, that runs before
      each retry: reconnect, roll back, change an argument.
    - ``fallback=unset``: Value, or function of the last error, to return instead of raising a retryable
      error. A function may raise another error.
    - ``dead_letters=None``: Stores calls that failed for good though their error was retryable.
    - ``payload=None``: Function of the call's arguments; a dead letter stores its result.
    - ``listeners=()``: Functions that receive each event of the policy.
    - ``logger=None``: Logger, or the name of one, for the events of the policy; ``None`` for
      ``redouble``, ``False`` for none.
    - ``name=None``: Name in notes, logs and events; the function's qualified name by default.
    - ``idempotency_key=False``: ``True``, or a function of the call's arguments: one key for all
      attempts of a call.
    - ``rng=None``: A ``random.Random`` for reproducible waits.
    - ``clock=None``: Function that returns monotonic seconds.
    - ``sleep=None``: Function that waits; it may be async for async calls.

    >>> policy = Policy(attempts=6, base=0.2, cap=5.0, deadline=20.0)
    >>> policy.replace(attempts=2)
    Policy(attempts=2, base=0.2, cap=5.0, deadline=20.0)
    >>> policy.call(int, "42")
    42
    """

    __slots__ = (
        *_FIELDS,
        "_in_context",
        "_guarded",
        "_keyed",
        "_falls_back",
        "_recover_takes_call",
        "_successes",
        "_variant",
        "_simple",
    )
    # The client library that calls are made with, in the policies of `redouble.clients`.
    _client: ClassVar[Any] = None
    # Computed from the fields once, for the engine.
    _in_context: bool  # whether a first attempt has a limit in time or an idempotency key
    _guarded: bool  # whether there is a guard
    _keyed: tuple[str, ...]  # the guards that a function chooses for each call
    _falls_back: bool  # whether there is a fallback
    _recover_takes_call: bool  # whether recover takes a second argument
    _successes: tuple[Callable[[Event], object], ...]  # listeners that receive first successes
    _variant: Literal["plain", "guarded", "timed", "full"]  # of the first attempt: see `_engine.first`
    _simple: bool  # whether it is plain, and every function that a driver calls is sync at first sight

    def __init__(self, **fields: Unpack[PolicyFields]) -> None:
        _fill(self, _DEFAULTS, fields, type(self).__name__)

    def _check_floors(self) -> None:
        """Raise `ValueError` for a floor above the cap, of the policy or of a rule."""
        check.floor_below_cap(self.floor, self.cap)
        for key, rule in self.rules.items():
            floor = self.floor if rule.floor is None else rule.floor
            check.floor_below_cap(
                floor,
                self.cap if rule.cap is None else rule.cap,
                f"in rules[{getattr(key, '__name__', key)}], ",
            )

    def _first_attempt(self) -> str:
        """Return the cheapest variant of the first attempt that does all that the fields ask for."""
        waits = self.throttle is not None or self.bulkhead is not None
        if self._successes or (self._guarded and (waits or self._keyed or self._awaited())):
            return "full"
        if self._in_context:
            return "timed"
        return "guarded" if self._guarded or self.until is not None else "plain"

    def _awaited(self) -> list[str]:
        """Return the names of the guards whose answers must be awaited."""
        known = [field for field in _GUARDS if field not in self._keyed]
        return [field for field in known if getattr(getattr(self, field), "is_async", False)]

    def _hooks(self) -> list[tuple[str, Any]]:
        """Return the functions that a driver calls, which must be sync for a sync function."""
        found: list[tuple[str, Any]] = [
            ("recover", self.recover),
            *[("recover", rule.recover) for rule in self.rules.values()],
            ("sleep", self.sleep),
            ("fallback", self.fallback),
        ]
        # No generator: Python 3.13 crashes where it has no memory for one.
        return [(field, hook) for field, hook in found if callable(hook)]

    def replace(self, **fields: Unpack[PolicyFields]) -> Policy:
        """Return a policy with these fields changed. ``fallback=UNSET`` removes a fallback.

        >>> Policy(base=0.5).replace(attempts=2)
        Policy(attempts=2, base=0.5)
        """
        return made(self, fields, "policy.replace") if fields else self

    def call(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call ``function`` and retry it under this policy; return an awaitable if it is async.

        >>> Policy(attempts=2).call(int, "42")
        42
        """
        engine = _engine()
        done: Any = engine.once(self, function, args, kwargs)
        result: R = done() if type(done) is engine.Rest else done
        return result

    def __call__(self, function: F, /) -> F:
        """Decorate ``function``, as ``@retry(policy)`` does.

        >>> @Policy(attempts=2)
        ... def fetch():
        ...     return "page"
        >>> fetch()
        'page'
        """
        decorated: F = _engine().decorate(self, function)
        return decorated

    def delays(self) -> Iterator[float]:
        """Iterate over random waits as one call might make them, without waiting.

        >>> from redouble.backoff import exponential
        >>> list(Policy(backoff=exponential).delays())
        [1.0, 2.0, 4.0]
        """
        return delays(
            self.backoff,
            attempts=self.attempts,
            base=self.base,
            cap=self.cap,
            floor=self.floor,
            rng=self.rng,
        )

    def describe(self) -> str:
        """Return sentences about what this policy does, the longest it can take, and its lint warnings.

        >>> print(Policy().describe())
        Calls up to 4 times.
        Waits by full_jitter from 1 s, never longer than 30 s.
        ...
        """
        from ._policy.describe import describe

        return describe(self)

    def lint(self) -> tuple[LintWarning, ...]:
        """Return the probable mistakes in this policy, each with the reason and a remedy.

        Nothing else calls it: do so in a test, and filter out by ``name`` the warnings that you accept.

        >>> from redouble.backoff import exponential
        >>> [warning] = Policy(backoff=exponential).lint()
        >>> warning.name, warning.field, warning.remedy
        ('no_jitter', 'backoff', 'write backoff=full_jitter')
        """
        from ._policy.lint import lint

        return lint(self)

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> Policy:
        """Make a policy from plain data, such as parsed TOML, YAML or JSON.

        Understands the fields' own names and ``max_attempts``, ``base_delay``, ``max_delay``, ``min_delay``,
        ``base_delay_ms``, ``max_delay_ms``, ``min_delay_ms``, ``jitter`` (``full``, ``equal``,
        ``decorrelated``, ``none``) and ``jitter_factor``; durations may be texts such as ``"100ms"`` or
        ``"20s"``.

        >>> Policy.from_mapping({"max_attempts": 6, "base_delay": "200ms", "deadline": "20s"})
        Policy(attempts=6, base=0.2, deadline=20.0)
        """
        from ._policy.config import read_mapping

        fields = read_mapping(mapping, _FIELDS)
        if "rules" in fields:
            rules = fields["rules"].items()
            fields["rules"] = {key: Rule(**rule) if hasattr(rule, "items") else rule for key, rule in rules}
        return cls(**fields)

    @classmethod
    def from_env(cls, prefix: str, environ: Mapping[str, str] | None = None) -> Policy:
        """Make a policy from environment variables that begin with ``prefix``; without any, the default one.

        >>> Policy.from_env("PAYMENTS_RETRY", {"PAYMENTS_RETRY_ATTEMPTS": "6"})
        Policy(attempts=6)
        """
        from ._policy.config import read_environment

        return cls(**read_environment(prefix, os.environ if environ is None else environ, _FIELDS))

    def _given(self) -> dict[str, Any]:
        """Return the fields that differ from their defaults."""
        return {
            name: value
            for name, field in _FIELDS.items()
            if (value := getattr(self, name)) is not field.default
            and (name == "fallback" or value != field.default)
        }

    def __repr__(self) -> str:
        shown = {field: repr(value) for field, value in self._given().items()}
        if "backoff" in shown:
            function: Any = self.backoff
            shown["backoff"] = name_of(function, short=True)
            if isinstance(function, partial):
                keywords = "".join(f", {key}={value!r}" for key, value in function.keywords.items())
                shown["backoff"] = f"partial({shown['backoff']}{keywords})"
        if "rules" in shown:
            shown["rules"] = repr(dict(self.rules))
        return f"Policy({', '.join(f'{field}={text}' for field, text in shown.items())})"

    def __copy__(self) -> Policy:
        return self

    def __deepcopy__(self, memo: object) -> Policy:
        return self

    def __hash__(self) -> int:
        # By the plain fields only: equal policies hash alike, and callables need not be hashable.
        return hash((self.attempts, self.base, self.cap, self.deadline, self.timeout, self.name))

    def __reduce__(self) -> tuple[Any, ...]:
        given = self._given()
        for field in (*_GUARDS, "dead_letters"):
            if type(given.get(field)) is FunctionType:  # which a pickle names, or cloudpickle sends
                continue
            try:
                given.get(field).__reduce_ex__(2)
            except TypeError:
                raise TypeError(
                    f"cannot pickle a policy whose {field} exists only in this process: "
                    f"send policy.replace({field}=None), or make the policy in the process that uses it"
                ) from None
        if "rules" in given:
            given["rules"] = dict(self.rules)
        return partial(type(self), **given), ()


@cache
def _engine() -> Any:
    """Return the module that runs calls. It imports this one, so it is loaded when a policy is first used."""
    from ._engine import decorate

    return decorate


class _Open(Policy):
    """The class of a policy while its fields are set: going around a `__setattr__` that refuses is slower."""

    __slots__ = ()
    __setattr__: Any = object.__setattr__
    __delattr__: Any = object.__delattr__


_DEFAULTS = (
    *(field.default for field in _FIELDS.values()),
    *(False, False, (), False, False, (), "plain", True),
)
_CHECKS = {name: field.check for name, field in _FIELDS.items()}
_values_of = attrgetter(*Policy.__slots__)
_LIMITING = frozenset({"deadline", "give_up_after", "timeout", "idempotency_key"})
_UNLIMITED = (None, None, None)
_GUARDING = frozenset(_GUARDS)
_COMPUTED_FROM = frozenset({*_LIMITING, *_GUARDING, *_MAY_BE_ASYNC, "listeners", "until"})


def _about(name: str, value: Any) -> str:
    """Return the number to write instead of a text, as the end of a message."""
    if type(value) is not str:
        return ""
    from ._policy.other_names import about_text

    return about_text(name, value)


def _fill(policy: Policy, values: tuple[Any, ...], fields: Mapping[str, Any], caller: str) -> None:
    """Store all values in a new policy, and over them the ``fields``, which are checked.

    ``caller`` is the name of the function that the fields were given to, for an error.
    """
    put: Callable[[Any, str, Any], None] = assign
    if type(policy) is Policy:  # a subclass may have another layout
        assign(policy, "__class__", _Open)
        put = setattr
    any(map(put, repeat(policy), Policy.__slots__, values))
    for name, value in fields.items():
        checked = _CHECKS.get(name)
        if checked is None:
            from ._policy.other_names import advice

            raise TypeError(f"{caller}() has no {name!r}; {advice(name, value, _FIELDS)}")
        try:
            put(policy, name, checked(name, value))
        except TypeError as error:
            raise TypeError(f"{error}{_about(name, value)}") from None
    if policy.payload is not None and policy.dead_letters is None:
        raise ValueError("payload needs dead_letters: without it no call is stored")
    soft = policy.give_up_after is not None
    if policy.attempts is None and policy.deadline is None and not soft:
        raise ValueError(
            "attempts must not be None without a deadline or give_up_after: such a call may never end; "
            "write math.inf to retry for ever"
        )
    if policy.floor or policy.rules:
        policy._check_floors()
    if not _COMPUTED_FROM.isdisjoint(fields):
        _compute(policy, fields, put)
    if put is setattr:
        policy.__class__ = Policy


def _compute(policy: Policy, fields: Mapping[str, Any], put: Callable[[Any, str, Any], None]) -> None:
    """Store the attributes that are computed from these fields; the others are stored already."""
    if not _LIMITING.isdisjoint(fields):
        limits = (policy.deadline, policy.timeout, policy.give_up_after)
        put(policy, "_in_context", limits != _UNLIMITED or policy.idempotency_key is not False)
    if not _GUARDING.isdisjoint(fields):
        guards = [(field, guard) for field in _GUARDS if (guard := getattr(policy, field)) is not None]
        put(policy, "_guarded", bool(guards))
        put(policy, "_keyed", tuple([field for field, guard in guards if not check.is_guard(guard)]))
    if "fallback" in fields:
        put(policy, "_falls_back", policy.fallback is not UNSET)
    if "listeners" in fields:
        put(policy, "_successes", wanting_successes(policy.listeners))
    if "recover" in fields:
        recover = policy.recover
        takes_call = recover is not None and takes_second("recover", recover, "call")
        put(policy, "_recover_takes_call", takes_call)
    variant = policy._first_attempt()
    put(policy, "_variant", variant)
    unclear = variant != "plain" or [field for field, hook in policy._hooks() if not is_plain(hook)]
    put(policy, "_simple", not unclear)


def made(policy: Policy | None, fields: Mapping[str, Any], caller: str) -> Policy:
    """Return a new policy of these fields and, for the others, those of ``policy`` or the defaults."""
    if policy is None or type(policy) is Policy:
        new = Policy.__new__(Policy)
        _fill(new, _DEFAULTS if policy is None else _values_of(policy), fields, caller)
        return new
    given: Any = {**policy._given(), **fields}  # by its own `__init__`, which may have other arguments
    return type(policy)(**given)


class _FieldsSignature:
    """A signature with all fields of a policy, made when it is read: for ``__signature__``.

    It stands in for an `inspect.Signature` and says so, because importing `inspect` would take a third of the
    time of ``import redouble``.
    """

    def __init__(self, **first: Any) -> None:
        self._first = first  # parameters before the fields, by position, with their defaults

    def __getattribute__(self, name: str) -> Any:
        from inspect import Parameter, Signature

        if name == "__class__":
            return Signature
        first = object.__getattribute__(self, "_first")
        parameters = [Parameter(one, Parameter.POSITIONAL_ONLY, default=first[one]) for one in first]
        parameters += [
            Parameter(field, Parameter.KEYWORD_ONLY, default=row.default, annotation=row.type)
            for field, row in _FIELDS.items()
        ]
        return getattr(Signature(parameters), name)

    def __str__(self) -> str:
        return self.__str__()


Policy._signature = _FieldsSignature()


def show_fields(function: F) -> F:
    """Decorate a function, or a class, of ``(policy=None, /, **fields)`` with a signature of all fields."""
    named: Any = function
    named.__signature__ = _FieldsSignature(policy=None)
    return function


def __getattr__(name: str) -> Any:
    # Few programs lint a policy, so the module is loaded on first use.
    if name == "LintWarning":
        from ._policy.lint import LintWarning

        return LintWarning
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
