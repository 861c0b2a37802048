"""Event classes, listeners and logging.

A call that fails at least once ends with exactly one of `Recovered`, `GaveUp` or `Expired`, and has one
`Retrying` before each further attempt. A call that a guard does not admit has one `Refused` and no other
event. Guards send `CircuitChanged` and `BackendChanged`. A success at the first attempt is sent only to
listeners that ask for it. Without a listener and a logger no event is made.
"""

# To add an event, follow "Where do I add" in docs/development/index.md.

from __future__ import annotations

import os
import sys
from _thread import get_ident
from enum import StrEnum
from types import MappingProxyType

from .._base.callables import name_of, reject_coroutine, sync_result
from .._base.checks import INF, sync_function
from .._base.log_once import level_of_caller, warn_once
from .._base.record import Record, assign, same
from .._base.text import mask_line, one_line, printable

__all__ = [
    "BackendChanged",
    "CircuitChanged",
    "DeadLettered",
    "Discarded",
    "Event",
    "Expired",
    "GaveUp",
    "Hedged",
    "Reason",
    "Recovered",
    "Refused",
    "Retrying",
    "Succeeded",
    "correlate",
    "log_to",
    "subscribe",
    "with_successes",
]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from dataclasses import KW_ONLY
    from typing import Any, ClassVar, Literal, Protocol

    from .._base.json_safe import Masking
    from ..classify import Cause
    from ..dead_letters import DeadLetter
    from ._log_to import log_to

    Listener = Callable[["Event"], object]

    class CallState(Protocol):
        """The attributes of a call that events and log records read."""

        args: tuple[Any, ...]
        kwargs: dict[str, Any]
        logged: bool

        @property
        def masking(self) -> Masking | None: ...
        @property
        def most(self) -> float | None: ...
        def counted(self) -> str: ...

    # Carried by an event while listeners run: the exception, the call, and why it failed for good, in words.
    During = tuple[BaseException | None, CallState | None, str]


# Reasons


class Reason(StrEnum):
    """Why a call failed for good or was refused: a small fixed set, for metric labels.

    >>> Reason.attempts == "attempts"
    True
    """

    disabled = "disabled"
    not_retryable = "not_retryable"
    not_idempotent = "not_idempotent"
    attempts = "attempts"
    retry_after = "retry_after"
    deadline = "deadline"
    give_up_after = "give_up_after"
    nested = "nested"
    already_retried = "already_retried"
    breaker = "breaker"
    budget = "budget"
    bulkhead = "bulkhead"
    callback = "callback"


# Event classes

# The levels of logging, which is not imported for them.
_INFO, _WARNING, _ERROR = 20, 30, 40
# The correlation of an event while no hook is set.
_NOTHING: Mapping[str, object] = MappingProxyType({})
# For an event that carries no exception and no call.
_UNKNOWN: During = (None, None, "")


class Event(Record):
    """Base class of all events: a frozen record of text and numbers, which you may keep.

    While listeners run, ``error`` is the exception and ``args`` and ``kwargs`` are the arguments of the call.
    Afterwards they are ``None``, also for another thread. They are not fields: not in `as_dict`, ``repr``,
    comparisons and pickles.

    ``name`` is the policy's name or the function's. ``attempt`` is the number, from 1, of the attempt that
    failed; in `Succeeded` and `Recovered`, of the one that succeeded; in `Hedged`, of the new one; in
    `DeadLettered`, of the last one; 0 if there was none, as in `Refused`. ``delay`` is the next wait in
    seconds. ``elapsed`` is the seconds since the call began, or since its first failure if the policy has no
    deadline, no ``give_up_after`` and no listener for successes. ``reason`` says why the call failed for
    good. ``correlation`` is the mapping that the function set with `correlate` returned.

    >>> Retrying("fetch", attempt=1, delay=0.5, elapsed=0.0, error_type="TimeoutError").delay
    0.5
    """

    __slots__ = ("__dict__", "__weakref__")
    name: str
    _: KW_ONLY
    attempt: int
    delay: float | None = None
    elapsed: float
    cause: Cause | None = None
    status: int | None = None
    error_type: str | None = None
    error_message: str | None = None
    reason: Reason | None = None
    correlation: Mapping[str, object] = _NOTHING

    # The level and the template of the log record, with the names of `template_words`. Templates are
    # constant, so that logs can be grouped by them.
    _level = _INFO
    _text = ""
    # Set while listeners run: see `emit`.
    _during: ClassVar[During] = _UNKNOWN

    def __init__(
        self,
        name: str,
        *,
        attempt: int,
        elapsed: float,
        delay: float | None = None,
        cause: Cause | None = None,
        status: int | None = None,
        error_type: str | None = None,
        error_message: str | None = None,
        reason: Reason | None = None,
        correlation: Mapping[str, object] = _NOTHING,
    ) -> None:
        # All at once, which is faster than a record's own: with a listener every retry makes an event.
        fields = {
            "name": name,
            "attempt": attempt,
            "delay": delay,
            "elapsed": elapsed,
            "cause": cause,
            "status": status,
            "error_type": error_type,
            "error_message": error_message,
            "reason": reason,
            "correlation": correlation if correlation is _NOTHING else MappingProxyType(dict(correlation)),
        }
        assign(self, "__dict__", fields)

    @property
    def error(self) -> BaseException | None:
        """The exception that ``error_type`` names, while listeners run; ``None`` for a rejected result."""
        return self._during[0]

    @property
    def args(self) -> tuple[Any, ...] | None:
        """The positional arguments of the call, while listeners run; empty in a block."""
        call = self._during[1]
        return None if call is None else call.args

    @property
    def kwargs(self) -> Mapping[str, Any] | None:
        """The keyword arguments of the call, read-only, while listeners run; empty in a block."""
        call = self._during[1]
        return None if call is None else MappingProxyType(call.kwargs)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as a plain dict.

        >>> Retrying("fetch", attempt=1, delay=0.5, elapsed=0.0).as_dict()["delay"]
        0.5
        """
        return {**dict(zip(self._fields, self._values(), strict=True)), "correlation": dict(self.correlation)}


# The fields of every event, in the order in which they are shown; subclasses add their annotations.
Event._fields = tuple([field for field in Event.__annotations__ if field[0] != "_"])


class Succeeded(Event):
    """The first attempt succeeded. Sent only to listeners that ask for it: see `with_successes`.

    >>> Succeeded("fetch", attempt=1, elapsed=0.2).elapsed
    0.2
    """

    _text = "%(name)s succeeded at its first attempt"


class Retrying(Event):
    """An attempt failed, and the next one follows after ``delay`` seconds.

    >>> Retrying("fetch", attempt=1, delay=0.5, elapsed=0.0, status=503).status
    503
    """

    _level, _text = _WARNING, "retrying %(name)s in %(delay).2f s%(because)s (attempt %(attempt_of)s)"


class Recovered(Event):
    """An attempt succeeded after others had failed. The error is that of the last failure.

    >>> Recovered("fetch", attempt=2, elapsed=0.5, error_type="TimeoutError").attempt
    2
    """

    _level, _text = _INFO, "recovered %(name)s at attempt %(attempt_of)s after %(error)s"


class GaveUp(Event):
    """An attempt failed and none follows; ``reason`` says why. The last error is raised.

    >>> str(GaveUp("fetch", attempt=4, elapsed=7.3, reason=Reason.attempts).reason)
    'attempts'
    """

    _level, _text = _ERROR, "gave up on %(name)s after %(attempts)s: %(why)s; %(error)s"


class Expired(Event):
    """As `GaveUp`, because of the deadline: `DeadlineExceeded` is raised.

    >>> str(Expired("fetch", attempt=3, elapsed=20.0, reason=Reason.deadline).reason)
    'deadline'
    """

    _level, _text = GaveUp._level, GaveUp._text


class Refused(Event):
    """A guard did not admit the call. `CircuitOpen` or `BulkheadFull` is raised; nothing was called.

    >>> str(Refused("fetch", attempt=0, elapsed=0.0, reason=Reason.breaker).reason)
    'breaker'
    """

    _level, _text = _WARNING, "refused %(name)s%(because)s"


class Hedged(Event):
    """An attempt was slow, so another was started beside it; ``attempt`` is the number of the new one.

    >>> Hedged("fetch", attempt=2, elapsed=0.3).attempt
    2
    """

    _level, _text = _INFO, "hedging %(name)s with attempt %(attempt)s after %(elapsed).2f s%(because)s"


class CircuitChanged(Event):
    """A circuit breaker changed its state. ``name`` is the breaker's.

    ``delay`` is how long it stays open; ``error_message`` is the failure that opened it, as text.

    >>> CircuitChanged("payments", before="closed", after="open", delay=30.0).after
    'open'
    """

    before: str
    after: str
    _level, _text = _WARNING, "circuit %(name)s went from %(before)s to %(after)s%(because)s"

    def __init__(
        self,
        name: str,
        *,
        before: str,
        after: str,
        delay: float | None = None,
        error_message: str | None = None,
    ) -> None:
        super().__init__(name, attempt=0, elapsed=0.0, delay=delay, error_message=error_message)
        assign(self, "before", before)
        assign(self, "after", after)


class BackendChanged(Event):
    """The store behind a shared guard stopped answering, or answers again. ``name`` is the guard's.

    While it does not, the guard decides locally; ``error_type`` and ``error_message`` are the store's error.

    >>> BackendChanged("payments", available=False, error_type="ConnectionError").available
    False
    """

    available: bool
    _level, _text = _WARNING, "store of %(name)s %(state)s%(because)s"

    def __init__(
        self, name: str, *, available: bool, error_type: str | None = None, error_message: str | None = None
    ) -> None:
        super().__init__(name, attempt=0, elapsed=0.0, error_type=error_type, error_message=error_message)
        assign(self, "available", available)


class DeadLettered(Event):
    """A call that failed for good was stored. ``name`` is the function's, ``letter`` the id of the record.

    >>> from redouble.dead_letters import DeadLetter
    >>> DeadLettered(DeadLetter(id="01J8ZQ4T3M", queue="bulk", function="fetch")).letter
    '01J8ZQ4T3M'
    """

    queue: str
    letter: str
    _level, _text = _ERROR, "stored dead letter %(letter)s of %(name)s in %(queue)s%(because)s"

    def __init__(self, letter: DeadLetter) -> None:
        super().__init__(
            letter.function or letter.queue,
            attempt=letter.attempts,
            elapsed=0.0,
            error_type=letter.error_type,
            error_message=letter.error_message,
        )
        assign(self, "queue", letter.queue)
        assign(self, "letter", letter.id)


class Discarded(Event):
    """Dead letters of a queue were discarded. ``name`` is the queue's too.

    ``why`` is ``"purged"`` (too old), ``"limit"`` (too many, or too large) or ``"discarded"`` (on request).

    >>> Discarded("default", count=3, why="purged").count
    3
    """

    queue: str
    count: int
    why: str
    _level, _text = _WARNING, "discarded dead letters of %(queue)s: %(count)s (%(why)s)"

    def __init__(self, queue: str, *, count: int, why: Literal["purged", "limit", "discarded"]) -> None:
        super().__init__(queue, attempt=0, elapsed=0.0)
        assign(self, "queue", queue)
        assign(self, "count", count)
        assign(self, "why", why)


# The fields that only some events have.
OWN_FIELDS = dict.fromkeys(
    [field for kind in Event.__subclasses__() for field in kind._fields[len(Event._fields) :]]
)


# Listeners


class with_successes(Record):  # noqa: N801 - used like a function
    """A listener that also receives a `Succeeded` for every call that succeeds at the first attempt.

    So does any listener whose attribute ``wants_successes`` is true. It must be in the ``listeners`` of a
    policy: only calls under that policy pay for it.

    >>> from redouble import Policy
    >>> heard = []
    >>> Policy(listeners=[with_successes(heard.append)], name="fetch").call(str.upper, "page")
    'PAGE'
    >>> [(type(event).__name__, event.name) for event in heard]
    [('Succeeded', 'fetch')]
    """

    listener: Listener
    wants_successes = True

    def _check(self) -> None:
        sync_function("listener", self.listener)

    def __call__(self, event: Event) -> object:
        return self.listener(event)

    def __repr__(self) -> str:
        return f"with_successes({name_of(self.listener, short=True)})"


def wanting_successes(listeners: tuple[Listener, ...]) -> tuple[Listener, ...]:
    """Return the listeners that ask for successes."""
    return tuple([one for one in listeners if getattr(one, "wants_successes", False) is True])


# The listeners of all policies. The keys are unique objects: one listener may be subscribed twice, and
# threads that add and remove listeners need no lock.
subscribers: dict[object, Listener] = {}


def subscribe(listener: Listener) -> Callable[[], None]:
    """Send the events of every policy and guard in the process to a listener; return a function to end that.

    It receives no `Succeeded`, so that successful calls cost nothing more: for those, put it in the
    ``listeners`` of a policy. A listener that is there as well receives each event once.

    >>> heard = []
    >>> unsubscribe = subscribe(heard.append)
    >>> unsubscribe()
    """
    key = object()
    subscribers[key] = sync_function("listener", listener)
    if wanting_successes((listener,)):
        warn_once(
            listener,
            f"{name_of(listener, short=True)} asks for successes, which subscribers do not receive: "
            "put it in the listeners of each policy, or its success rates are wrong",
        )

    def unsubscribe() -> None:
        subscribers.pop(key, None)

    return unsubscribe


def subscribed() -> tuple[Listener, ...]:
    """Return the listeners of all policies."""
    return tuple(subscribers.values())


# The function that `correlate` has set for the whole process: at most one.
_correlators: list[Callable[[], Mapping[str, object]]] = []


def correlate(hook: Callable[[], Mapping[str, object]] | None) -> Callable[[], Mapping[str, object]] | None:
    """Set the function that returns the correlation: ``trace_id``, ``correlation_id``, ``service``.

    It is called for each event and dead letter, in the thread or task of the call; ``None`` removes it. May
    be used as a decorator. Events carry its mapping as ``correlation``, log records as separate fields; a
    dead letter keeps ``correlation_id``, or ``trace_id``.

    >>> @correlate
    ... def trace():
    ...     return {"trace_id": "4bf92f35"}
    >>> correlated(), correlate(None)
    ({'trace_id': '4bf92f35'}, None)
    """
    _correlators[:] = [] if hook is None else [sync_function("hook", hook)]
    return hook


def correlated() -> dict[str, Any]:
    """Return the mapping of the function set with `correlate`; an empty one if there is none or it fails."""
    found: dict[str, Any] = {}
    for hook in tuple(_correlators):
        _notify(hook, "correlate", _add_correlation, hook, found)
    return found


def _add_correlation(hook: Callable[[], Mapping[str, object]], found: dict[str, Any]) -> None:
    """Add the mapping of the hook to ``found``. Raise `TypeError` if the hook is async."""
    found.update(sync_result("it", hook()))


def wanted(listeners: tuple[Listener, ...], logger: Any = None) -> bool:
    """Return whether an event would be received or logged: otherwise it need not be made.

    ``logger`` is that of the policy: see `emit`.
    """
    return bool(listeners or subscribers) or logger_for(logger) is not None


def emit(
    event: Event,
    listeners: tuple[Listener, ...],
    *,
    logged: bool = True,
    logger: Any = None,
    during: During = _UNKNOWN,
) -> None:
    """Call those listeners in order, then all subscribers, then log the event.

    Their errors are logged once and swallowed. ``logger`` is a logger, the name of one, or ``None`` for
    ``redouble``. ``during`` is carried by the event meanwhile: the exception, the call, why it ended.
    """
    if subscribers:
        listeners = (*listeners, *without(subscribed(), listeners))
    found = logger_for(logger) if logged else None
    if listeners or found is not None:
        tell(event, listeners, during, found)


def tell(
    event: Event, listeners: tuple[Listener, ...], during: During = _UNKNOWN, logger: Any = None
) -> None:
    """Call these listeners in order, without subscribers; then log the event, if there is a logger."""
    carried = vars(event)
    try:
        carried["_during"] = during
        if _correlators:
            # Before a listener has seen the event.
            carried["correlation"] = MappingProxyType(correlated())
        for listener in listeners:
            _notify(listener, "listener", listener, event)
        if logger is not None:
            _notify(logger, "", log, logger, event)
    finally:
        # A listener may keep the event, but must not keep the exception and the call alive.
        carried.pop("_during", None)


def without(these: tuple[Listener, ...], those: tuple[Listener, ...]) -> tuple[Listener, ...]:
    """Return these listeners except those: a listener in both places is called once."""
    known = [_itself(one) for one in those]
    return tuple([one for one in these if not any(same(_itself(one), other) for other in known)])


def _itself(listener: Listener) -> Listener:
    """Return the listener inside `with_successes`."""
    return listener.listener if isinstance(listener, with_successes) else listener


# (listener, thread) pairs that are being called, to stop recursion. Cleared in a forked child, which has
# other threads under the same numbers.
_running: set[tuple[int, int]] = set()
# Some platforms cannot fork.
_at_fork: Any = getattr(os, "register_at_fork", dict)
_at_fork(after_in_child=_running.clear)


def _notify(source: object, what: str, function: Callable[..., object], *args: Any) -> None:
    """Call a listener, a hook or a logger, unless this thread is inside a call of it already.

    A listener that calls the function it listens to would otherwise receive its own events without end.
    Errors are logged once, with ``what`` in front of the name; those of the logger, without one, are not.
    """
    key = (id(source), get_ident())
    if key in _running and not getattr(source, "reentrant", False):
        return
    try:
        # Inside the try, so that no interrupt comes between adding the key and removing it.
        _running.add(key)
        answer = function(*args)
        if answer is not None:
            reject_coroutine(answer)
    except Exception as error:  # noqa: BLE001 - a listener's failure, or a handler's full disk, is not the call's
        if what:
            warn_once(source, f"{what} {name_of(source, short=True)} failed", error)
    finally:
        _running.discard(key)


# Logging

# Characters of an error's message in a log record.
_LONGEST = 1000
# Loggers by name: asking logging for one takes a lock.
_loggers: dict[str, Any] = {}


def logger_for(chosen: Any = None, level: int = _ERROR) -> Any:
    """Return a logger, or ``None`` if it has no handler or is switched off: then no event need be made.

    ``chosen`` is a logger, the name of one, ``None`` for ``redouble``, or ``False`` for none. ``logging`` is
    never imported here: a process without it logs nothing.
    """
    if chosen is None:  # the usual case
        chosen = "redouble"
    elif chosen is False:
        return None
    elif not isinstance(chosen, str):
        try:
            return chosen if chosen.hasHandlers() and chosen.isEnabledFor(level) else None
        except Exception:  # noqa: BLE001 - a logger of the user may raise anything
            return None
    logger = handling = _loggers.get(chosen) or _named(chosen)
    # `hasHandlers` inlined: every failure comes here.
    while handling is not None and not handling.handlers:
        handling = handling.parent if handling.propagate else None
    return logger if handling is not None and logger.isEnabledFor(level) else None


def _named(name: str) -> Any:
    """Return a logger by its name, and remember it; ``None`` in a process without ``logging``."""
    logging = sys.modules.get("logging")
    if logging is not None:
        _loggers[name] = logging.getLogger(name)
    return _loggers.get(name)


def log(logger: Any, event: Event, level: int | None = None, template: str | None = None) -> None:
    """Write one record: a constant template with named arguments, and the fields of the event as ``extra``.

    Without a level and a template they are those of the class of the event.
    """
    level = event._level if level is None else level
    if logger.isEnabledFor(level):
        fields = record_fields(event)
        words = template_words(event, fields)
        if template is None:
            template = event._text
        else:
            words = {**OWN_FIELDS, **words}
        extra = _unclashing(fields, event.correlation)
        logger.log(level, template, words, extra=extra, stacklevel=level_of_caller())


def record_fields(event: Event) -> dict[str, Any]:
    """Return the fields of an event for a log record: plain values, without secrets."""
    call = event._during[1]
    message, masking = event.error_message, None if call is None else call.masking
    fields = {
        "policy": event.name,
        "attempt": event.attempt,
        "delay_ms": None if event.delay is None else round(event.delay * 1000),
        "elapsed_ms": round(event.elapsed * 1000),
        "error_type": event.error_type,
        "error_message": None if message is None else mask_line(message, _LONGEST, masking),
        "cause": None if event.cause is None else str(event.cause),
        "status": event.status,
        "reason": None if event.reason is None else str(event.reason),
        **{field: getattr(event, field) for field in event._fields[len(Event._fields) :]},
    }
    # Control characters are escaped: a message must not begin a line of the log, or control a terminal.
    return {name: printable(value) if isinstance(value, str) else value for name, value in fields.items()}


def template_words(event: Event, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of the template of an event: the fields of its record, and texts made of them."""
    _, call, why = event._during
    error = one_line(fields["error_type"] or "", fields["error_message"] or "")
    number = event.attempt
    if call is None:
        counted, most = f"{number} attempt{'' if number == 1 else 's'} in {event.elapsed:.1f} s", None
    else:
        counted, most = call.counted(), call.most
        why = why and mask_line(why, masking=call.masking)
    return {
        "why": why or fields["reason"],
        **fields,
        "name": fields["policy"],
        "delay": event.delay or 0.0,
        "elapsed": event.elapsed,
        "error": error,
        "because": error and f": {error}",
        "attempt_of": str(number) if most is None or most == INF else f"{number} of {most}",
        "attempts": counted,
        "state": "answers again" if fields.get("available") else "does not answer",
    }


def _unclashing(fields: dict[str, Any], correlation: Mapping[str, object]) -> dict[str, Any]:
    """Return fields and correlation for a log record; names that records have already get a prefix."""
    logging: Any = sys.modules["logging"]
    factory = logging.getLogRecordFactory()
    if not correlation and factory is logging.LogRecord:
        return fields
    taken: set[str] = {"message", "asctime", *vars(factory("redouble", 0, "", 0, "", (), None))}
    extra = {f"redouble_{name}" if name in taken else name: value for name, value in fields.items()}
    for name, value in correlation.items():
        shown = printable(value) if isinstance(value, str) else value
        extra[f"correlation_{name}" if name in taken or name in extra else str(name)] = shown
    return extra


def __getattr__(name: str) -> Any:
    # Few programs need it, so the module is loaded on first use.
    if name == "log_to":
        from ._log_to import log_to

        return log_to
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
