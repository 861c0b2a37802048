"""What happened, told to listeners and to ``logging``.

Every call that fails at least once ends with exactly one of `Recovered`, `GaveUp` or `Expired`, and has
one `Retrying` before each further attempt. A call that was not let through has one `Refused` and nothing
else. What becomes of a guard (`CircuitChanged`, `StoreChanged`) is told as well. A success at the first try
is told only to those who ask for it. Nothing is built while nobody listens.
"""

from __future__ import annotations

import os
import sys
from _thread import get_ident
from functools import partial
from types import MappingProxyType

from ._callables import plain, told
from ._checks import sync_function
from ._happenings import (
    CircuitChanged,
    DeadLettered,
    Discarded,
    Event,
    Expired,
    GaveUp,
    Hedged,
    Reason,
    Recovered,
    Refused,
    Retrying,
    StoreChanged,
    Succeeded,
)
from ._record import same
from ._text import masked_line, printable
from ._trouble import report
from .backoff import shown_name

__all__ = [
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
    "StoreChanged",
    "Succeeded",
    "correlate",
    "subscribe",
    "with_successes",
]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from ._plain import Masking

    Listener = Callable[[Event], object]


# Constant texts, so that logs can be grouped by them; what varies is in the record's extra fields.
_MESSAGES: dict[type[Event], tuple[str, str]] = {
    Retrying: ("WARNING", "retrying after a failed attempt"),
    Recovered: ("INFO", "recovered after retries"),
    GaveUp: ("ERROR", "gave up after retries"),
    Expired: ("ERROR", "gave up because of the deadline"),
    Refused: ("WARNING", "not let through by a guard"),
    Hedged: ("INFO", "started another attempt beside a slow one"),
    CircuitChanged: ("WARNING", "circuit breaker changed"),
    StoreChanged: ("WARNING", "store of a shared guard changed"),
    DeadLettered: ("ERROR", "kept as a dead letter"),
    Discarded: ("WARNING", "dead letters discarded"),
}


# How much of an error's message a log record has.
_LONGEST = 1000


class with_successes:  # noqa: N801 - used like a function
    """A listener that also hears of every call that succeeds at the first try, as `Succeeded`.

    So does anything whose attribute ``wants_successes`` is true. It must stand in the ``listeners`` of a
    policy: only calls under that policy pay for it.

    >>> from redouble import Policy
    >>> heard = []
    >>> Policy(listeners=[with_successes(heard.append)], name="fetch").call(str.upper, "page")
    'PAGE'
    >>> [(type(event).__name__, event.name) for event in heard]
    [('Succeeded', 'fetch')]
    """

    wants_successes = True

    def __init__(self, listener: Listener) -> None:
        self._listener: Listener = sync_function("listener", listener)

    def __call__(self, event: Event) -> object:
        return self._listener(event)

    def __eq__(self, other: object) -> bool:
        return self._listener == other._listener if isinstance(other, with_successes) else NotImplemented

    def __hash__(self) -> int:
        return hash((with_successes, self._listener))

    def __repr__(self) -> str:
        return f"with_successes({shown_name(self._listener)})"


def wanting_successes(listeners: tuple[Listener, ...]) -> tuple[Listener, ...]:
    """Those of them that ask for successes."""
    return tuple([one for one in listeners if getattr(one, "wants_successes", False) is True])


# Who hears of the events of every policy. The keys are unique objects: one listener may be there twice, and
# threads that come and go need no lock.
_subscribers: dict[object, Listener] = {}


def subscribe(listener: Listener) -> Callable[[], None]:
    """Lets a listener hear the events of every policy and guard in the process; gives what ends that.

    It hears of no success at the first try, so that nothing is added to a call that goes well: for those, put
    it in the ``listeners`` of a policy. A listener that stands there as well is told once.

    >>> heard = []
    >>> unsubscribe = subscribe(heard.append)
    >>> unsubscribe()
    """
    key = object()
    _subscribers[key] = sync_function("listener", listener)
    if wanting_successes((listener,)):
        report(
            listener,
            f"{shown_name(listener)} asks for successes, which subscribers do not hear of: "
            "rates are true only of policies that have it in their listeners",
        )

    def unsubscribe() -> None:
        _subscribers.pop(key, None)

    return unsubscribe


# What the user adds to what is kept and told, for the whole process.
_correlators: list[Callable[[], Mapping[str, object]]] = []


def correlate(hook: Callable[[], Mapping[str, object]] | None) -> Callable[[], Mapping[str, object]] | None:
    """Sets the function that says what belongs together: ``trace_id``, ``correlation_id``, ``service``.

    It is asked when there is something to keep or to tell, in the thread or task of the call; ``None`` takes
    it away. May be used as a decorator. Every event carries what it says, as ``correlation``, and every log
    record, as fields of its own; a dead letter keeps ``correlation_id``, or ``trace_id``.

    >>> @correlate
    ... def trace():
    ...     return {"trace_id": "4bf92f35"}
    >>> correlated(), correlate(None)
    ({'trace_id': '4bf92f35'}, None)
    """
    _correlators[:] = [] if hook is None else [sync_function("hook", hook)]
    return hook


def correlated() -> dict[str, Any]:
    """What the user's function says now; nothing, if it fails."""
    said: dict[str, Any] = {}
    for hook in tuple(_correlators):
        _alone(hook, partial(_ask, hook), said, "correlate")
    return said


def _ask(hook: Callable[[], Mapping[str, object]], said: dict[str, Any]) -> None:
    said.update(plain("it", hook()))


def wanted(listeners: tuple[Listener, ...]) -> bool:
    """Whether anybody would hear of an event: otherwise it need not be made."""
    return bool(listeners) or bool(_subscribers) or _logger() is not None


def emit(
    event: Event, listeners: tuple[Listener, ...], *, logged: bool, masking: Masking | None = None
) -> None:
    """Tells those listeners, in order, then all subscribers, then ``logging``.

    What they raise is reported once and swallowed. ``masking`` is what the user adds to what logs mask.
    """
    if _subscribers:
        listeners = (*listeners, *without(subscribed(), listeners))
    logger = _logger() if logged else None
    if listeners or logger is not None:
        tell(event, listeners)
    if logger is not None:
        _alone(logger, partial(_log, logger, masking), event, "")


def subscribed() -> tuple[Listener, ...]:
    """All that hear of the events of every policy."""
    return tuple(_subscribers.values())


def without(these: tuple[Listener, ...], those: tuple[Listener, ...]) -> tuple[Listener, ...]:
    """These listeners, but for those: who stands in two places is told once."""
    known = [_itself(one) for one in those]
    return tuple([one for one in these if not any(same(_itself(one), other) for other in known)])


def _itself(listener: Listener) -> Listener:
    return listener._listener if isinstance(listener, with_successes) else listener


def tell(event: Event, listeners: tuple[Listener, ...]) -> None:
    """Tells those listeners, and nobody else."""
    if _correlators:
        # Before anybody has seen the event.
        vars(event)["correlation"] = MappingProxyType(correlated())
    for listener in listeners:
        _alone(listener, listener, event, "listener")


# What is being told something, and in which thread. A forked child has other threads under the same numbers.
_telling: set[tuple[int, int]] = set()
# Where there is no fork, there is nothing to be told of one.
_at_fork: Any = getattr(os, "register_at_fork", dict)
_at_fork(after_in_child=_telling.clear)


def _alone(whom: object, call: Callable[[Any], object], about: object, what: str) -> None:
    """Lets the user's code hear of something, unless it is at it already.

    A listener that calls what it listens to would otherwise be told of its own calls, without end.
    """
    key = (id(whom), get_ident())
    if key in _telling and not getattr(whom, "reentrant", False):
        return
    try:
        # Within, so that no interrupt comes between the mark and what takes it away.
        _telling.add(key)
        told(call(about))
    except Exception as error:  # noqa: BLE001 - a listener's failure, or a handler's full disk, is not the call's
        if what:
            report(whom, f"{what} {shown_name(whom)} failed", error)
    finally:
        _telling.discard(key)


def _log(logger: Any, masking: Masking | None, event: Event) -> None:
    logging: Any = sys.modules["logging"]
    level_name, message = _MESSAGES[type(event)]
    level = getattr(logging, level_name)
    if not logger.isEnabledFor(level):
        return
    message_of_error = event.error_message
    fields = {
        "policy": event.name,
        "attempt": event.attempt,
        "delay_ms": None if event.delay is None else round(event.delay * 1000),
        "elapsed_ms": round(event.elapsed * 1000),
        "error_type": event.error_type,
        "error_message": None
        if message_of_error is None
        else masked_line(message_of_error, _LONGEST, masking),
        "cause": None if event.cause is None else str(event.cause),
        "status": event.status,
        "reason": None if event.reason is None else str(event.reason),
        **{field: getattr(event, field) for field in event._fields[len(Event._fields) :]},
    }
    extra = _beside(fields, event.correlation, logging)
    # Nothing that a stranger has written begins a line of the log, or speaks to the terminal that shows it.
    logger.log(level, message, extra={name: _shown(value) for name, value in extra.items()})


def _shown(value: Any) -> Any:
    return printable(value) if isinstance(value, str) else value


def _beside(fields: dict[str, Any], more: Mapping[str, object], logging: Any) -> dict[str, Any]:
    """All fields for a log record; one whose name is taken there gets a longer name, and is not lost."""
    factory = logging.getLogRecordFactory()
    if not more and factory is logging.LogRecord:
        return fields
    taken: set[str] = {"message", "asctime", *vars(factory("redouble", 0, "", 0, "", (), None))}
    extra = {f"redouble_{name}" if name in taken else name: value for name, value in fields.items()}
    for name, value in more.items():
        extra[f"correlation_{name}" if name in taken or name in extra else str(name)] = value
    return extra


# The logger, once there is one: asking logging for it takes a lock.
_loggers: list[Any] = []


def _logger() -> Any:
    """The ``redouble`` logger, if it leads to a handler.

    In a process that never imported logging, or set up no handler, there is nobody to write to:
    the import, and the record, are saved.
    """
    if not _loggers:
        logging = sys.modules.get("logging")
        if logging is None:
            return None
        _loggers.append(logging.getLogger("redouble"))
    logger = _loggers[0]
    return logger if logger.hasHandlers() else None
