"""Hedging with threads, for sync functions.

The caller's thread waits and decides; each attempt runs in its own daemon thread. A thread cannot be
cancelled: a loser runs to its end, and the call does not wait for it.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
from contextvars import copy_context
from functools import partial

from .._base.clock import DAY
from .._base.loops import awaiting, is_awaited, run_now
from .._engine.decide import CutOff
from ..context import disabled_here, shorter
from . import _tasks
from ._race import Race

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ._race import Plan

    Function = Callable[..., Any]
    Outcome = tuple[Callable[..., None], int, tuple[Any, ...]]


def wrap(plan: Plan, function: Function) -> Function:
    """Return the function, hedged by threads."""

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if disabled_here():
            return function(*args, **kwargs)
        race = Race(plan, time.monotonic(), args, kwargs, sync=True)
        threads = _Threads(race, partial(function, *args, **kwargs))
        try:
            for seconds in race.waits(time.monotonic, threads.start):
                threads.take_outcome(seconds)
            if is_awaited(race.result):
                # A plain function that turns out to be async: the call goes on from here, to be awaited.
                return _tasks.hedged(plan, awaiting(function, [race.result]), args, kwargs)
            run_now(race.settle())
            return race.outcome()
        finally:
            race.forget()

    return wrapper


class _Threads:
    """The threads of one hedged call, and the queue of their outcomes."""

    def __init__(self, race: Race, call: Function) -> None:
        self.race = race
        self.call = call
        self.outcomes: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
        self.threads: dict[int, threading.Thread] = {}

    def start(self) -> None:
        """Start the attempt that is due, if the budget and the system allow it.

        If no thread can be started, the first attempt runs in the caller's, and there are no hedges.
        """
        race = self.race
        first = not race.begun
        cost = 0.0 if first else run_now(race.afford())
        if not first and not cost:
            race.refused()
            return
        work = self.outcomes, race.begun + 1, copy_context(), self.call
        thread = _started(race.plan.name, work)
        if thread is not None:
            number = race.begin(time.monotonic(), cost)
            self.threads[number] = thread
            if not first:
                race.announce(number, time.monotonic())
        elif first:
            # There can be no thread: the caller's own runs the attempt, and no hedge can overtake it.
            race.begin(time.monotonic())
            _attempt(*work)
            self.take_outcome(0.0)
        else:
            race.refused(cost, for_good=True)

    def take_outcome(self, seconds: float | None) -> None:
        """Wait for the outcome of an attempt, until the next is due or the deadline has passed."""
        race = self.race
        limit = shorter(shorter(seconds, race.time_left()), threading.TIMEOUT_MAX)
        try:
            report, number, details = self.outcomes.get(timeout=limit)
        except queue.Empty:
            if race.time_left() == 0.0:
                text = f"{race.plan.name} was cut off by the deadline of the enclosing call"
                race.interrupted(CutOff(text))
            return
        if number in self.threads:
            # It is at its end. Joined, the thread and its arguments are gone when the call returns.
            self.threads.pop(number).join(min(race.plan.grace, DAY))
        report(race, *details)


def _started(name: str, work: tuple[Any, ...]) -> threading.Thread | None:
    """Return a thread that was started; ``None`` if there can be no more of them."""
    # While the interpreter shuts down, some systems accept a new thread that never runs.
    if sys.is_finalizing():
        return None
    try:
        name = f"redouble {name} attempt {work[1]}"
        thread = threading.Thread(target=_attempt, args=work, name=name, daemon=True)
        thread.start()
    except RuntimeError:
        return None
    return thread


def _attempt(outcomes: queue.SimpleQueue[Outcome], number: int, context: Any, call: Function) -> None:
    """Run one attempt and put its outcome in the queue; that of a loser is not read."""
    try:
        try:
            result = context.run(call)
        except Exception as error:  # noqa: BLE001 - raised where the call was made
            outcomes.put((Race.failed, number, (number, error, time.monotonic())))
        except BaseException as error:  # noqa: BLE001 - the same
            outcomes.put((Race.interrupted, number, (error,)))
        else:
            outcomes.put((Race.succeeded, number, (number, result, time.monotonic())))
    finally:
        # The error holds this frame, and the queue holds the error.
        del outcomes
