"""Hedging with the tasks of an event loop: asyncio or trio, found at run time.

Each attempt is a task. When the race is over the others are cancelled and awaited before the call returns. An
asyncio task that ignores its cancellation is left behind after ``grace`` seconds; trio waits for it.
"""

from __future__ import annotations

from functools import partial

from .._base.checks import INF
from .._base.log_once import warn_once
from .._base.loops import in_trio
from ..context import disabled_here
from ._race import Race

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from typing import Any

    from ._race import Plan

    Function = Callable[..., Any]
    Clock = Callable[[], float]
    Tasks = list[asyncio.Task[None]]

# Attempts that ignore their cancellation. asyncio holds tasks weakly, and logs an error when one is collected
# while it runs.
_stragglers: set[asyncio.Task[None]] = set()


def wrap(plan: Plan, function: Function) -> Function:
    """Return the function, hedged by tasks."""

    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        return await hedged(plan, function, args, kwargs)

    return wrapper


async def hedged(plan: Plan, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Make one hedged call. In `testing.retries_disabled` the function is called once, directly."""
    if disabled_here():
        return await function(*args, **kwargs)
    clock, run = _library()
    race = Race(plan, clock(), args, kwargs, sync=False)
    try:
        await run(race, clock, partial(_attempt, race, clock, partial(function, *args, **kwargs)))
        await race.settle()
        return race.outcome()
    finally:
        race.forget()


def _library() -> tuple[Clock, Function]:
    """Return the clock and the driver of the library that runs this task."""
    if trio := in_trio():
        return trio.current_time, _on_trio
    import asyncio

    return asyncio.get_running_loop().time, _on_asyncio


async def _attempt(race: Race, clock: Clock, call: Function) -> None:
    """Run one attempt, as a task, and pass its outcome to the race. Nothing is raised.

    All but the first ask the budget before they begin; one that is refused, or comes too late, calls nothing.
    """
    number = 0
    try:
        # In this task, so that a slow budget does not delay the result of another attempt.
        cost = (await race.afford()) if race.begun else 0.0
        if race.begun and (race.over or not cost):
            race.refused(cost)
            return
        number = race.begin(clock(), cost)
        if number > 1:
            race.announce(number, clock())
        result = await call()
    except Exception as error:  # noqa: BLE001 - raised where the call was made
        race.failed(number, error, clock())
    except BaseException as error:  # noqa: BLE001 - the same; of a loser that was cancelled, nothing
        race.interrupted(error)
    else:
        race.succeeded(number, result, clock())


# asyncio


async def _on_asyncio(race: Race, clock: Clock, attempt: Function) -> None:
    """Run a race with asyncio tasks.

    At the end, also by a cancellation, the attempts that still run are cancelled and awaited.
    """
    import asyncio

    loop = asyncio.get_running_loop()
    tasks: Tasks = []
    try:
        # Every task has a copy of the context.
        for seconds in race.waits(clock, lambda: tasks.append(loop.create_task(attempt()))):
            if tasks:
                await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            else:
                await asyncio.sleep(seconds or 0.0)
            if any(task.cancelled() for task in tasks):
                # By other code, before its first step: it could not tell the race.
                race.interrupted(asyncio.CancelledError())
            tasks[:] = [task for task in tasks if not task.done()]
    except GeneratorExit:
        # Closed, and not cancelled: nothing can be awaited any more.
        _cancel(tasks)
        tasks.clear()
        raise
    finally:
        race.over = True
        await _dismiss(race, clock, tasks)


def _cancel(tasks: Tasks) -> None:
    """Cancel tasks, also those whose event loop is closed."""
    for task in tasks:
        try:
            task.cancel()
        except RuntimeError:  # its loop is closed
            pass


async def _dismiss(race: Race, clock: Clock, tasks: Tasks) -> None:
    """Cancel the running attempts and wait for their end, for ``grace`` seconds at most.

    Those that still run then are left behind, with a warning. A cancellation that comes meanwhile is raised
    at the end.
    """
    import asyncio

    _cancel(tasks)
    losers: set[asyncio.Task[None]] = {task for task in tasks if not task.done()}
    ends = clock() + race.plan.grace
    cancelled: tuple[Any, ...] | None = None
    while losers:
        try:
            _, losers = await asyncio.wait(losers, timeout=max(0.0, ends - clock()))
            break
        except asyncio.CancelledError as again:
            # anyio repeats a cancellation until the task ends; the losers are awaited all the same.
            cancelled = again.args
            losers = {task for task in losers if not task.done()}
            if clock() >= ends:
                break
    if losers:
        text = f"a cancelled attempt of {race.plan.name} still runs after {race.plan.grace:g} s"
        warn_once(race.plan, f"{text}; it is left behind")
    for task in losers:
        _stragglers.add(task)
        task.add_done_callback(_stragglers.discard)
    if cancelled is not None:
        raise asyncio.CancelledError(*cancelled)


# trio


async def _on_trio(race: Race, clock: Clock, attempt: Function) -> None:
    """Run a race with trio tasks, in a nursery that cancels and awaits the losers.

    An error is raised without the group that the nursery puts around it.
    """
    trio = in_trio()
    finished = trio.Event()
    wrapped: BaseException | None = None

    async def run() -> None:
        await attempt()
        finished.set()

    try:
        async with trio.open_nursery() as nursery:
            for seconds in race.waits(clock, partial(nursery.start_soon, run)):
                with trio.move_on_after(INF if seconds is None else seconds):
                    await finished.wait()
                finished = trio.Event()
            nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        # Attempts raise nothing, so it holds the cancellation, or the interrupt.
        interrupts = [error for error in group.exceptions if not isinstance(error, trio.Cancelled)]
        wrapped = (interrupts or group.exceptions)[0]
        del interrupts
    if wrapped is not None:
        try:
            raise wrapped
        finally:
            del wrapped
