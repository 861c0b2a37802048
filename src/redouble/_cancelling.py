"""Tell whether an asyncio task was cancelled during an attempt that has failed with something else.

``except CancelledError: raise ConnectionResetError`` hides a cancellation, as a cleanup does that fails. A
task counts the requests to cancel it (`asyncio.Task.cancelling`). If there are more than when the attempt
began, the call is not retried. On trio nothing is needed: a wait in a cancelled scope raises `Cancelled`.
"""

from __future__ import annotations

import sys

from ._decide import Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

    from ._call import Call

# The requests that a task had when it was last looked at in doubt. A WeakKeyDictionary, once it is needed.
_seen: Any = None

# As Python itself keeps them, whatever an exception's own attributes do.
_trace: Any = BaseException.__dict__["__traceback__"]
_context: Any = BaseException.__dict__["__context__"]


def cancelled(call: Call, failure: Exception | Refused) -> bool:
    """Whether the task was cancelled during the attempt: then its error passes, as an interrupt does.

    A result that was refused must not pass: the cancellation is raised in its place.
    """
    now, before = _requests(), call.cancels
    if not (now or before):
        return False
    if call.attempt == 1 and before == 0:
        # By its class, here and below: isinstance would ask an exception for attributes, which may raise.
        evidence: Any = sys.exception() if type(failure) is Refused else failure
        before = _requests_before(evidence)
    call.cancels = now
    if now <= before or now - _left_by_groups(failure) <= before:
        return False
    call.abandon()
    if type(failure) is Refused:
        _raise_it()
    error: Any = failure
    call.tell_story(error, "its task was cancelled during the attempt")
    return True


def heed(call: Call) -> None:
    """Raises a cancellation that came during the wait, if the user's ``sleep`` or ``recover`` caught it."""
    now = _requests()
    if now > call.cancels:
        _raise_it()
    call.cancels = now


def _raise_it() -> NoReturn:
    import asyncio

    raise asyncio.CancelledError


def _requests() -> int:
    """How many requests to cancel it the running asyncio task has; 0 elsewhere."""
    asyncio: Any = sys.modules.get("asyncio")
    try:
        requests: int = asyncio.current_task().cancelling()
    except (AttributeError, RuntimeError):
        return 0  # no asyncio, no loop, no task, or a task of another library's making that does not count
    return requests


def _requests_before(error: BaseException | None) -> int:
    """How many there were before a first attempt that has failed with this error, as far as can be told.

    A first attempt does not look, so that a success costs nothing. A cancellation that a caller is handling
    was there before: cleanups are retried. One that was handled within the attempt was not. If there is no
    sign of either, somebody has swallowed one: it was there before if an earlier call has met it.
    """
    import asyncio
    from weakref import WeakKeyDictionary

    callers, cancellation = _frames(), asyncio.CancelledError
    signs = [_trace.__get__(each) for each in _chain(error) if issubclass(type(each), cancellation)]
    if signs:
        # The first frame of a traceback is the one in which the exception is being handled.
        return int(any(trace is not None and trace.tb_frame in callers for trace in signs))
    global _seen
    seen: WeakKeyDictionary[Any, int] = WeakKeyDictionary() if _seen is None else _seen
    _seen, task = seen, asyncio.current_task()
    before = seen.get(task, 0)
    seen[task] = _requests()
    return before


def _left_by_groups(failure: Exception | Refused) -> int:
    """How many requests task groups have made and not taken back, in which the attempt failed.

    Before Python 3.13 a group that is already waiting for its tasks, when one of them fails, cancels the task
    it is in and never calls ``uncancel``.
    """
    if type(failure) is Refused or sys.version_info >= (3, 13):
        return 0
    left = 0
    error: Any = failure
    for each in _chain(error):
        trace = _trace.__get__(each)
        while trace is not None:
            frame = trace.tb_frame
            if (
                frame.f_code.co_name == "__aexit__"
                and frame.f_globals.get("__name__") == "asyncio.taskgroups"
            ):
                left += bool(frame.f_locals["self"]._parent_cancel_requested)
            trace = trace.tb_next
    return left


def _chain(error: BaseException | None) -> list[BaseException]:
    """The error, and those in whose course it was raised."""
    chain: dict[int, BaseException] = {}
    while error is not None and id(error) not in chain:
        chain[id(error)] = error
        error = _context.__get__(error)
    return list(chain.values())


def _frames() -> set[Any]:
    """The frames that are running, from here outwards."""
    frames: set[Any] = set()
    frame: Any = sys._getframe()
    while frame is not None:
        frames.add(frame)
        frame = frame.f_back
    return frames
