"""`recorded`: the events of the calls in a test, and assertions about them."""

from __future__ import annotations

from contextvars import ContextVar

from .._base.checks import whole
from .._base.text import one_line
from ..events import (
    Event,
    Expired,
    GaveUp,
    Hedged,
    Reason,
    Recovered,
    Refused,
    Retrying,
    Succeeded,
    subscribe,
)
from ._switches import Switch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

# The events that end a call which failed at least once or was not admitted.
_ENDINGS = (Recovered, GaveUp, Expired, Refused)


class Recording:
    """The events of the calls in a `recorded` block so far. ``str()`` lists them, one a line.

    >>> Recording([Retrying("fetch", attempt=1, elapsed=0.0, delay=0.5)]).waits
    (0.5,)
    """

    __slots__ = ("_events",)

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self._events = list(events)

    @property
    def events(self) -> tuple[Event, ...]:
        """All events, in order."""
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
        """The last event of each call that failed at least once or was not admitted."""
        return tuple([event for event in self.events if isinstance(event, _ENDINGS)])

    @property
    def outcome(self) -> Event | None:
        """The last of the endings; ``None`` if every call succeeded at its first attempt."""
        endings = self.endings
        return endings[-1] if endings else None

    def of(self, name: str) -> Recording:
        """Return the events of one name only: a policy's, a function's or a guard's."""
        return Recording([event for event in self.events if event.name == name])

    def __str__(self) -> str:
        return "\n".join([describe(event) for event in self.events])

    def __repr__(self) -> str:
        return f"<recording of {len(self._events)} events>"


def describe(event: Event) -> str:
    """Return one event as one line: its outcome in words, or its name and the fields that only it has.

    >>> describe(Retrying("fetch", attempt=1, elapsed=0.0, delay=0.5, error_type="TimeoutError"))
    'fetch, attempt 1: TimeoutError; retried after 0.50 s'
    """
    where = f"{event.name}, attempt {event.attempt}" if event.attempt else event.name
    error = one_line(event.error_type or "", event.error_message or "")
    if isinstance(event, (Succeeded, Recovered)):
        return f"{where}: succeeded"
    if isinstance(event, Hedged):
        return f"{where}: started beside a slow one"
    if isinstance(event, Retrying):
        return f"{where}: {error}; retried after {event.delay or 0.0:.2f} s"
    if isinstance(event, _ENDINGS):
        ending = f"{'rejected' if isinstance(event, Refused) else 'gave up'} ({event.reason})"
        return f"{where}: {error}; {ending}" if error else f"{where}: {ending}"
    own = [f"{field}={getattr(event, field)}" for field in event._fields[len(Event._fields) :]]
    return f"{where}: {' '.join([type(event).__name__, *own])}"


_recordings: ContextVar[tuple[Recording, ...]] = ContextVar("redouble recordings", default=())


class recorded(Switch):  # noqa: N801 - used like a function
    """Record the events of every call under a policy, as a `Recording`.

    A call that succeeds at its first attempt has no event. Nested blocks each record everything that happens
    inside them.

    >>> from redouble import retry
    >>> from redouble.testing import no_waits, scripted
    >>> with no_waits(), recorded() as story:
    ...     retry(scripted(TimeoutError("slow"), "page"))()
    'page'
    >>> story.retries, type(story.outcome).__name__
    (1, 'Recovered')
    """

    def __enter__(self) -> Recording:
        recording = Recording()
        everywhere, keep = self._everywhere, recording._events.append

        def hear(event: Event) -> None:
            # Listeners are called in the context of the call.
            if everywhere or any(one is recording for one in _recordings.get()):
                keep(event)

        self._enter(_recordings, (*_recordings.get(), recording), subscribe(hear))
        return recording


def assert_retried(story: Recording, times: int | None = None) -> None:
    """Fail unless there were ``times`` retries; without a number, at least one.

    >>> from redouble import retry
    >>> from redouble.testing import no_waits, recorded, scripted
    >>> with no_waits(), recorded() as story:
    ...     retry(name="fetch")(scripted(TimeoutError("slow"), "page"))()
    'page'
    >>> assert_retried(story, times=2)
    Traceback (most recent call last):
    AssertionError: expected 2 retries, there was 1:
      fetch, attempt 1: TimeoutError: slow; retried after ... s
      fetch, attempt 2: succeeded
    """
    __tracebackhide__ = True
    if times is not None:
        whole("times", times, at_least=0)
    if (story.retries != times) if times is not None else not story.retries:
        number = "at least 1" if times is None else times or "no"
        expected = f"{number} {'retry' if times in (None, 1) else 'retries'}"
        found = "was 1" if story.retries == 1 else f"were {story.retries or 'none'}"
        raise _instead(f"expected {expected}, there {found}", story)


def assert_not_retried(story: Recording) -> None:
    """Fail if anything was retried.

    >>> from redouble.testing import recorded
    >>> with recorded() as story:
    ...     pass
    >>> assert_not_retried(story)
    """
    __tracebackhide__ = True
    assert_retried(story, times=0)


def assert_gave_up(story: Recording, reason: Reason | str | None = None) -> None:
    """Fail unless a call gave up, for this reason if one is named.

    That is every ending but a success: after retries, without any, because of the deadline, or because a
    guard did not admit the call. The reasons are those of `events.Reason`.

    >>> from redouble import retry
    >>> from redouble.testing import recorded, scripted
    >>> with recorded() as story:
    ...     retry(name="fetch")(scripted(KeyError("id")))()
    Traceback (most recent call last):
    KeyError: 'id'
    >>> assert_gave_up(story, reason="attempts")
    Traceback (most recent call last):
    AssertionError: expected a call to give up (attempts), none did:
      fetch, attempt 1: KeyError: 'id'; gave up (not_retryable)
    """
    __tracebackhide__ = True
    try:
        wanted = None if reason is None else Reason(reason)
    except ValueError:
        raise ValueError(f"reason must be one of {', '.join(Reason)}, got {reason!r}") from None
    lost = [event for event in story.endings if not isinstance(event, Recovered)]
    if not any(wanted is None or event.reason is wanted for event in lost):
        why = "" if wanted is None else f" ({wanted})"
        raise _instead(f"expected a call to give up{why}, none did", story)


def _instead(expected: str, story: Recording) -> AssertionError:
    """Return the error of an assertion, with a list of what happened instead."""
    lines = str(story).splitlines() or [
        "no call failed here (calls in other threads are heard with recorded(everywhere=True))"
    ]
    return AssertionError("\n  ".join([f"{expected}:", *lines]))
