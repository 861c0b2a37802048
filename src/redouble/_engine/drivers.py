"""Carry out a flow: without awaits, and with them.

A driver knows nothing about retries. It runs what the flow yields, and sends what came of it. It calls the
user's function itself, so that a traceback shows the wrapper, the driver, and then the user's code.

- `drive` and `drive_async` carry out a whole call, for decorated functions and ``policy.call``.
- `advance` and `advance_async` go on until a step that only the caller can take: the body of a block, the
  first item of a generator.
- `take` and `take_async` make a wait, or call a function such as ``sleep`` or a remote guard.

A frame must not outlive its attempt: an error holds the frames that it came through, and those hold the
arguments. So each name that has held an error or a result is cleared before the wait.
"""

from __future__ import annotations

import time
from contextvars import Token
from types import CoroutineType

from .._base.clock import DAY, real_sleep
from .._base.loops import drop, is_awaited, time_limit
from .._base.loops import sleep as loop_sleep
from ..context import NUMBER, POLICY, current, time_limit_of
from .decide import CutOff
from .flow import AWAITED, NOTHING, GivenUp

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..context import AttemptContext
    from .flow import Flow

    Function = Callable[..., Any]
    Args = tuple[Any, ...]
    Kwargs = dict[str, Any]

# What `advance` says of a flow that has returned a result.
DONE = "done"

# As Python itself keeps them, whatever an exception's own attributes do.
_trace: Any = BaseException.__dict__["__traceback__"]
_context: Any = BaseException.__dict__["__context__"]

_PACKAGE = __name__.rpartition(".")[0]


def drive(flow: Flow, function: Function, args: Args, kwargs: Kwargs) -> Any:  # noqa: C901 - one frame
    """Carry out a flow without awaits. Return a coroutine if the function turns out to be async.

    The flow is closed in any case, unless an async driver takes it over. The error of a call that failed is
    raised from here, with the traceback of its own attempt.
    """
    step: Any = None
    sent: Any = None
    handed_over = False
    try:
        while True:
            try:
                step = flow.send(sent)
            except StopIteration as end:
                step = end.value
                break
            if type(step) is list or step is None:
                outer, token = current.get(), None
                try:
                    # Inside the try: an interrupt between `set` and the assignment would leave it set.
                    if step is not None:
                        token = current.set(step)  # pyright: ignore[reportUnknownArgumentType]
                    sent = None, function(*args, **kwargs)
                except Exception as error:  # noqa: BLE001 - the flow decides about it
                    sent = error, None
                finally:
                    if token is not None:
                        current.reset(token)
                    elif step is not None:
                        current.set(outer)
                if sent[1] is not None and is_awaited(sent[1]):
                    flow.send((AWAITED, None))
                    handed_over = True
                    return drive_async(flow, function, args, kwargs, [sent[1]])
            elif type(step) is dict:
                sent, kwargs = function, step  # pyright: ignore[reportUnknownVariableType]
            else:
                sent = None  # a frame must not outlive its attempt
                sent = take(step)
        if type(step) is not GivenUp:
            return step
        with unchanged(step):
            raise step.error
    finally:
        if not handed_over:
            flow.close()
        del step, sent  # a traceback holds this frame, which must not hold the error


async def drive_async(  # noqa: C901 - one frame
    flow: Flow, function: Function, args: Args, kwargs: Kwargs, pending: list[Any] | None = None
) -> Any:
    """Carry out a flow with awaits.

    ``pending`` is given for a plain function that returns awaitables, and holds one that is there already.
    """
    step: Any = None
    sent: Any = None
    try:
        while True:
            try:
                step = flow.send(sent)
            except StopIteration as error:  # few names: there may be a hundred thousand calls in backoff
                step = error.value
                break
            sent = None
            if type(step) is float:
                await loop_sleep(step)
            elif type(step) is tuple:
                sent = await take_async(step)
            elif type(step) is dict:
                sent, kwargs = function, step  # pyright: ignore[reportUnknownVariableType]
            else:
                before: Any = current.get()  # the enclosing context, then the token that restores it
                try:
                    if step is not None:
                        before = current.set(step)
                    with time_limit(None if step is None else time_limit_of(step)) as limit:
                        sent = pending.pop() if pending else function(*args, **kwargs)
                        sent = None, (await sent) if pending is None or is_awaited(sent) else sent
                    if limit.struck:
                        sent = late_error(step, limit), None
                except Exception as error:  # noqa: BLE001 - the flow decides about it
                    sent = error, None
                finally:
                    if type(before) is Token:
                        current.reset(before)  # pyright: ignore[reportUnknownArgumentType]
                    elif step is not None:
                        current.set(before)
        if type(step) is not GivenUp:
            return step
        with unchanged(step):
            raise step.error
    finally:
        flow.close()
        if pending:
            drop(pending)
        del step, sent


def timed_out(attempt: AttemptContext, seconds: float) -> TimeoutError:
    """Return the error of an attempt that was cancelled after that time, by timeout or deadline.

    An attempt that its own timeout has ended is a failure like any other. One that the deadline has ended
    is the last: `CutOff` says so to `decide`.
    """
    own = attempt[POLICY].timeout
    if own is None or seconds < own:
        return CutOff(f"attempt {attempt[NUMBER]} was cut off by the deadline after {seconds:.3g} s")
    return TimeoutError(f"attempt {attempt[NUMBER]} took longer than its timeout of {own:g} s")


def late_error(attempt: Any, limit: Any) -> TimeoutError:
    """Return the error of an attempt that its time limit has cancelled.

    The cancellation is its cause: those frames show where the attempt was, and which request it had sent.
    """
    error = timed_out(attempt, limit.seconds)
    error.__cause__ = limit.cut_off()
    return error


def take(step: Any) -> Any:
    """Take a step that is not an attempt: wait, or call a function. Return what to send to the flow."""
    if type(step) is float:
        return time.sleep(step) if step <= DAY else real_sleep(step)
    try:
        answer = step[0](*step[1:])
        return NOTHING if answer is None else (None, answer)
    except Exception as error:  # noqa: BLE001 - the flow decides about it
        return error, None


async def take_async(step: Any) -> Any:
    """As `take`, with awaits."""
    if type(step) is float:
        return await loop_sleep(step)
    try:
        answer: Any = step[0](*step[1:])
        # By its type: what comes between a coroutine and its await might raise, and leave it unawaited.
        if type(answer) is CoroutineType or hasattr(answer, "__await__"):
            return None, await answer
        return None, answer
    except Exception as error:  # noqa: BLE001 - the flow decides about it
        return error, None


def advance(flow: Flow, sent: Any = None) -> Any:
    """Carry out a flow without awaits until a step that only the caller can take, and return that step.

    Returns ``DONE`` at the end of a call that succeeded, and `GivenUp` at the end of one that failed.
    """
    while True:
        try:
            step = flow.send(sent)
        except StopIteration as end:
            return end.value if type(end.value) is GivenUp else DONE
        finally:
            sent = None  # a frame must not outlive its attempt
        if type(step) is not tuple and type(step) is not float:
            return step
        sent = take(step)


async def advance_async(flow: Flow, sent: Any = None) -> Any:
    """As `advance`, with awaits."""
    while True:
        try:
            step = flow.send(sent)
        except StopIteration as end:
            return end.value if type(end.value) is GivenUp else DONE
        finally:
            sent = None  # a frame must not outlive its attempt
        if type(step) is not tuple and type(step) is not float:
            return step
        sent = await take_async(step)


class unchanged:  # noqa: N801 - used like a function
    """Drop our frames from the traceback of an error that is raised inside, and keep its ``__context__``.

    An error that was raised in an attempt is raised again here. Python would add the frames of the driver
    for a second time, and set whatever is being handled now as its context.
    """

    __slots__ = ("_context", "_ended", "_raised")

    def __init__(self, ended: GivenUp) -> None:
        """Cut off the frames at the head of the traceback that are ours."""
        self._ended = ended
        self._context = _context.__get__(ended.error)
        trace = _trace.__get__(ended.error)
        self._raised = trace is not None
        while trace is not None and str(trace.tb_frame.f_globals.get("__name__")).startswith(_PACKAGE):
            trace = trace.tb_next
        _trace.__set__(ended.error, trace)

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Restore the context, and let go of the error: its frames would hold themselves."""
        if self._raised:  # in its own attempt, and in the context that it had there
            _context.__set__(self._ended.error, self._context)
        self._ended.error = self._context = None  # which would hold itself in the frames that it goes through
