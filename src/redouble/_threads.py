"""Hedging among threads, for sync functions.

The caller's thread waits and decides; each attempt runs in a daemon thread of its own. A thread cannot be
cancelled: a loser runs to its end, and nobody waits for it.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
from contextvars import copy_context

from . import _tasks
from ._async import awaiting
from ._awaitables import is_awaited
from ._call import CutOff
from ._race import Race
from ._time import DAY
from ._trouble import report
from .context import disabled_here, shorter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from ._race import Plan

    Function = Callable[..., Any]
    Args = tuple[Any, ...]
    Kwargs = dict[str, Any]
    Outcome = tuple[Callable[..., None], int, tuple[Any, ...]]
    Outcomes = queue.SimpleQueue[Outcome]
    Threads = dict[int, threading.Thread]


def wrap(plan: Plan, function: Function) -> Function:
    """The function, hedged by threads."""

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if disabled_here():
            return function(*args, **kwargs)
        race = Race(plan, time.monotonic())
        try:
            _run(race, function, args, kwargs)
            if is_awaited(race.result):
                # A plain function that turns out to be async: the call goes on from here, to be awaited.
                return _tasks.hedged(plan, awaiting(function, [race.result]), args, kwargs)
            _at_once(race.settle(), plan)
            return race.outcome()
        finally:
            race.forget()

    return wrapper


def _run(race: Race, function: Function, args: Args, kwargs: Kwargs) -> None:
    outcomes: Outcomes = queue.SimpleQueue()
    threads: Threads = {}
    while True:
        seconds = race.wait(time.monotonic())
        if race.over:
            return
        if seconds == 0.0:
            _start(race, outcomes, threads, function, args, kwargs)
        else:
            _hear(race, outcomes, threads, seconds)


def _start(
    race: Race, outcomes: Outcomes, threads: Threads, function: Function, args: Args, kwargs: Kwargs
) -> None:
    """Starts the attempt that is due, if the budget and the system allow it."""
    race.take(time.monotonic())
    first = not race.begun
    cost = 0.0 if first else _at_once(race.afford(), race.plan)
    if not first and not cost:
        race.refused()
        return
    work = outcomes, race.begun + 1, copy_context(), function, args, kwargs
    thread = _thread(race.plan.name, work)
    if thread is not None:
        number = race.begin(time.monotonic(), cost)
        threads[number] = thread
        if not first:
            race.announce(number, time.monotonic())
    elif first:
        # No thread to be had: the caller's own does it, and nothing can overtake it.
        race.begin(time.monotonic())
        _attempt(*work)
        _hear(race, outcomes, threads, 0.0)
    else:
        race.refused(cost, for_good=True)


def _thread(name: str, work: tuple[Any, ...]) -> threading.Thread | None:
    """A thread that was started; ``None`` where there can be no more of them."""
    # While the interpreter goes down, a new thread is not refused everywhere: it may just never run.
    if sys.is_finalizing():
        return None
    try:
        thread = threading.Thread(
            target=_attempt, args=work, name=f"redouble {name} attempt {work[1]}", daemon=True
        )
        thread.start()
    except RuntimeError:
        return None
    return thread


def _attempt(
    outcomes: Outcomes, number: int, context: Any, function: Function, args: Args, kwargs: Kwargs
) -> None:
    """One attempt. What comes of it is put in the queue; of a loser, nobody reads it."""
    try:
        try:
            result = context.run(function, *args, **kwargs)
        except Exception as error:  # noqa: BLE001 - raised where the call was made
            outcomes.put((Race.failed, number, (number, error, time.monotonic())))
        except BaseException as error:  # noqa: BLE001 - the same
            outcomes.put((Race.interrupted, number, (error,)))
        else:
            outcomes.put((Race.succeeded, number, (number, result, time.monotonic())))
    finally:
        # The error holds this frame, and the queue holds the error.
        del outcomes


def _hear(race: Race, outcomes: Outcomes, threads: Threads, seconds: float | None) -> None:
    """Waits until an attempt has come to its end, or the next is due, or the deadline is there."""
    limit = shorter(seconds, race.time_left())
    try:
        tell, number, details = outcomes.get(
            timeout=None if limit is None else min(limit, threading.TIMEOUT_MAX)
        )
    except queue.Empty:
        if race.time_left() == 0.0:
            race.interrupted(CutOff(f"{race.plan.name} was cut off by the deadline that is set further out"))
        return
    if number in threads:
        # It is at its end: with this the thread is gone when the call returns, and what it held, too.
        threads.pop(number).join(min(race.plan.grace, DAY))
    tell(race, *details)


def _at_once(coroutine: Coroutine[Any, Any, Any], plan: Plan) -> Any:
    """Runs a coroutine that does not suspend, since the budget is sync; 0.0 if it does all the same."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    coroutine.close()
    report(plan, f"the budget of {plan.name} must be awaited, which a sync call cannot do")
    return 0.0
