"""`log_to`: a listener that logs with custom levels and texts."""

from __future__ import annotations

from types import MappingProxyType

from .._base.checks import logger as checked_logger
from .._base.checks import whole
from .._base.record import Record, assign
from . import OWN_FIELDS, Event, Expired, GaveUp, log, logger_for, record_fields, template_words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from logging import Logger, LoggerAdapter
    from typing import Any


class log_to(Record):  # noqa: N801 - used like a function
    """A listener that logs events to a logger, with custom levels and texts.

    redouble still logs the events itself: also write ``Policy(logger=False)``. ``level`` is one level for all
    events, or a mapping of event classes to levels: events of other classes are not logged. Without it each
    class has its usual level. ``template`` is a %-style text with names, of the fields of events and of
    ``error`` (type and message), ``why`` (the reason in words), ``attempt_of`` (such as ``1 of 4``) and
    ``attempts`` (such as ``4 attempts in 7.3 s``). Secrets are masked.

    >>> import logging
    >>> from redouble import Policy
    >>> from redouble.events import Retrying
    >>> to_app = log_to("app", level={Retrying: logging.INFO}, template="%(name)s again: %(error)s")
    >>> policy = Policy(logger=False, listeners=[to_app])
    """

    logger: Logger | LoggerAdapter[Any] | str
    level: int | Mapping[type[Event], int] | None = None
    template: str | None = None

    def _check(self) -> None:
        if checked_logger("logger", self.logger) is False:
            raise TypeError(
                "logger must be a logging.Logger or the name of one, got False: "
                "leave log_to() out to log nothing"
            )
        assign(self, "level", _levels(self.level))
        if self.template is not None:
            _check_template(self.template)

    def __call__(self, event: Event) -> None:
        level: Any = self.level
        if level.__class__ is MappingProxyType:
            level = level.get(type(event))
            if level is None:
                return
        call = event._during[1]
        if call and not call.logged and isinstance(event, (GaveUp, Expired)):
            return  # raised at its first failure: the caller has the error
        logger = logger_for(self.logger, event._level if level is None else level)
        if logger is not None:
            log(logger, event, level, self.template)


def _levels(value: Any) -> Any:
    """Check a level, or a mapping of event classes to levels.

    Return ``None``, an int, or a read-only copy of the mapping.
    """
    if value is None or not hasattr(value, "items"):
        return None if value is None else whole("level", value, at_least=0)
    for kind, level in value.items():
        if not (isinstance(kind, type) and issubclass(kind, Event)):
            raise TypeError(f"level must map classes of redouble.events to levels, got {kind!r}")
        whole(f"level of {kind.__name__}", level, at_least=0)
    return MappingProxyType(dict(value))


class _Sample(dict[str, object]):
    """Arguments to try a template with; they cannot be printed as a whole, by ``%s``."""

    __repr__ = __str__ = None  # type: ignore[assignment]


def _check_template(template: Any) -> None:
    """Try a template with the names of an event without values.

    Raise `ValueError` for a name that events do not have, and for a format that does not fit a text.
    """
    if not isinstance(template, str) or "%(" not in template:
        raise TypeError(f"template must be a text that names fields, such as '%(name)s', got {template!r}")
    unknown = Event("", attempt=1, elapsed=0.0)
    sample = _Sample({**OWN_FIELDS, **template_words(unknown, record_fields(unknown))})
    try:
        _ = template % sample
    except KeyError as error:
        raise ValueError(
            f"template has %({error.args[0]})s, which events do not have; known are {', '.join(sample)}"
        ) from None
    except (TypeError, ValueError):
        raise ValueError(
            "template must be a %-style text such as '%(name)s failed, again in %(delay).1f s: %(error)s' "
            f"(only delay, elapsed and attempt are always numbers), got {template!r}"
        ) from None
