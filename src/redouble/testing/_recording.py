"""What happened to the calls of a test, to be looked at afterwards."""

from __future__ import annotations

from contextvars import ContextVar

from redouble._text import one_line
from redouble.events import Expired, GaveUp, Hedged, Recovered, Refused, Retrying, subscribe

from ._switches import Switch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from redouble.events import Event

# What a call ends with, if it has failed at least once or was not let through.
_ENDINGS = (Recovered, GaveUp, Expired, Refused)


class Recording:
    """The events of the calls in a `recorded` block so far. ``str()`` tells them in words.

    >>> Recording([Retrying("fetch", attempt=1, elapsed=0.0, delay=0.5)]).waits
    (0.5,)
    """

    __slots__ = ("_events",)

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self._events = list(events)

    @property
    def events(self) -> tuple[Event, ...]:
        """All of them, in the order in which they came."""
        return tuple(self._events)

    @property
    def retries(self) -> int:
        """How often an attempt was followed by another."""
        return len(self.waits)

    @property
    def waits(self) -> tuple[float, ...]:
        """The wait before each retry, in seconds."""
        return tuple([event.delay or 0.0 for event in self.events if isinstance(event, Retrying)])

    @property
    def endings(self) -> tuple[Event, ...]:
        """How each call ended that had failed at least once or was not let through."""
        return tuple([event for event in self.events if isinstance(event, _ENDINGS)])

    @property
    def outcome(self) -> Event | None:
        """The last of the endings; ``None`` if every call succeeded at its first attempt."""
        endings = self.endings
        return endings[-1] if endings else None

    def of(self, name: str) -> Recording:
        """The part of it that is about one name: a policy's, a function's or a guard's."""
        return Recording([event for event in self.events if event.name == name])

    def __str__(self) -> str:
        return "\n".join([in_words(event) for event in self.events])

    def __repr__(self) -> str:
        return f"<recording of {len(self._events)} events>"


def in_words(event: Event) -> str:
    """One event as one line.

    >>> in_words(Retrying("fetch", attempt=1, elapsed=0.0, delay=0.5, error_type="TimeoutError"))
    'fetch, attempt 1: TimeoutError; retried after 0.50 s'
    """
    where = f"{event.name}, attempt {event.attempt}" if event.attempt else event.name
    what = one_line(event.error_type or "", event.error_message or "")
    if isinstance(event, Recovered):
        return f"{where}: succeeded"
    if isinstance(event, Hedged):
        return f"{where}: started beside a slow one"
    if isinstance(event, Retrying):
        return f"{where}: {what}; retried after {event.delay or 0.0:.2f} s"
    if isinstance(event, (GaveUp, Expired, Refused)):
        ending = f"{'not let through' if isinstance(event, Refused) else 'given up on'} ({event.reason})"
        return f"{where}: {what}; {ending}" if what else f"{where}: {ending}"
    own = [f"{field}={getattr(event, field)}" for field in type(event).__dict__.get("__slots__", ())]
    return f"{where}: {type(event).__name__} {' '.join(own)}"


_recordings: ContextVar[tuple[Recording, ...]] = ContextVar("redouble recordings", default=())


class recorded(Switch):  # noqa: N801 - used like a function
    """Records what happens to every call under a policy, and gives that as a `Recording`.

    A call that succeeds at its first attempt leaves no trace. Blocks within each other all hear of what
    happens inside.

    >>> from redouble import retry
    >>> from redouble.testing import no_waits, scripted
    >>> with no_waits(), recorded() as story:
    ...     retry(scripted(TimeoutError("slow"), "page"))()
    'page'
    >>> story.retries, type(story.outcome).__name__
    (1, 'Recovered')
    """

    def __init__(self, *, everywhere: bool = False) -> None:
        super().__init__(everywhere=everywhere)

    def __enter__(self) -> Recording:
        recording = Recording()
        everywhere, keep = self._everywhere, recording._events.append

        def hear(event: Event) -> None:
            # Whoever tells of an event does so in the context of its call.
            if everywhere or any(one is recording for one in _recordings.get()):
                keep(event)

        self._enter(_recordings, (*_recordings.get(), recording), subscribe(hear))
        return recording
