"""Assertions about a `Recording`, whose errors tell what happened instead."""

from __future__ import annotations

from redouble._numbers import whole
from redouble.events import Reason, Recovered

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ._recording import Recording


def assert_retried(story: Recording, times: int | None = None) -> None:
    """Fails unless there were so many retries; without a number, at least one.

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
        times = whole("times", times, at_least=0)
    if story.retries != times if times is not None else not story.retries:
        expected = "at least 1 retry" if times is None else _retries(times)
        raise _instead(f"expected {expected}, there {_was(story.retries)}", story)


def assert_not_retried(story: Recording) -> None:
    """Fails if anything was retried.

    >>> from redouble.testing import recorded
    >>> with recorded() as story:
    ...     pass
    >>> assert_not_retried(story)
    """
    __tracebackhide__ = True
    if story.retries:
        raise _instead(f"expected no retry, there {_was(story.retries)}", story)


def assert_gave_up(story: Recording, reason: Reason | str | None = None) -> None:
    """Fails unless a call was given up on: for this reason, if you name one.

    That is every ending but a success: after retries, without any, because of the deadline, or because a
    guard did not let the call through. The reasons are those of `events.Reason`.

    >>> from redouble import retry
    >>> from redouble.testing import recorded, scripted
    >>> with recorded() as story:
    ...     retry(name="fetch")(scripted(KeyError("id")))()
    Traceback (most recent call last):
    KeyError: 'id'
    >>> assert_gave_up(story, reason="attempts")
    Traceback (most recent call last):
    AssertionError: expected a call to be given up on (attempts), none was:
      fetch, attempt 1: KeyError: 'id'; given up on (not_retryable)
    """
    __tracebackhide__ = True
    wanted = None if reason is None else _known(reason)
    lost = [event for event in story.endings if not isinstance(event, Recovered)]
    if not any(wanted is None or event.reason is wanted for event in lost):
        why = "" if wanted is None else f" ({wanted})"
        raise _instead(f"expected a call to be given up on{why}, none was", story)


def _known(reason: Reason | str) -> Reason:
    try:
        return Reason(reason)
    except ValueError:
        raise ValueError(f"reason must be one of {', '.join(Reason)}, got {reason!r}") from None


def _instead(expected: str, story: Recording) -> AssertionError:
    lines = str(story).splitlines() or [
        "no call failed here (calls in other threads are heard with recorded(everywhere=True))"
    ]
    return AssertionError("\n  ".join([f"{expected}:", *lines]))


def _retries(count: int) -> str:
    return f"{count} {'retry' if count == 1 else 'retries'}"


def _was(count: int) -> str:
    return "was 1" if count == 1 else f"were {count or 'none'}"
