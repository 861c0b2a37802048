"""Hedging among the tasks of an event loop: asyncio or trio, found at run time."""

from __future__ import annotations

import sys

from ._loops import in_trio
from ._numbers import INF
from ._race import Race
from ._trouble import report
from .context import disabled_here

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from typing import Any

    from ._race import Plan

    Function = Callable[..., Any]
    Args = tuple[Any, ...]
    Kwargs = dict[str, Any]
    Clock = Callable[[], float]
    Tasks = list[asyncio.Task[None]]

# Attempts that ignore their cancellation. asyncio itself holds tasks weakly, and one that is collected
# while it runs is noise.
_stragglers: set[asyncio.Task[None]] = set()


def wrap(plan: Plan, function: Function) -> Function:
    """The function, hedged by tasks."""

    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        return await hedged(plan, function, args, kwargs)

    return wrapper


async def hedged(plan: Plan, function: Function, args: Args, kwargs: Kwargs) -> Any:
    """One hedged call."""
    if disabled_here():
        return await function(*args, **kwargs)
    clock, run = _library()
    race = Race(plan, clock())
    try:
        await run(race, clock, lambda: _attempt(race, clock, function, args, kwargs))
        await race.settle()
        return race.outcome()
    finally:
        race.forget()


def _library() -> tuple[Clock, Function]:
    """The clock and the driver of whichever library runs this task."""
    if in_trio():
        trio: Any = sys.modules["trio"]
        return trio.current_time, _on_trio
    import asyncio

    return asyncio.get_running_loop().time, _on_asyncio


async def _attempt(race: Race, clock: Clock, function: Function, args: Args, kwargs: Kwargs) -> None:
    """One attempt in a task of its own. Whatever comes of it is told to the race, and nothing raised."""
    number = 0
    try:
        # In this task, so that a slow budget does not keep a result from coming out.
        cost = (await race.afford()) if race.begun else 0.0
        if race.begun and (race.over or not cost):
            race.refused(cost)
            return
        number = race.begin(clock(), cost)
        if number > 1:
            race.announce(number, clock())
        result = await function(*args, **kwargs)
    except Exception as error:  # noqa: BLE001 - raised where the call was made
        race.failed(number, error, clock())
    except BaseException as error:  # noqa: BLE001 - the same; of a loser that was cancelled, nothing
        race.interrupted(error)
    else:
        race.succeeded(number, result, clock())


# asyncio


async def _on_asyncio(race: Race, clock: Clock, attempt: Function) -> None:
    import asyncio

    loop = asyncio.get_running_loop()
    tasks: Tasks = []
    try:
        while True:
            seconds = race.wait(clock())
            if race.over:
                return
            if seconds == 0.0:
                race.take(clock())
                # Every task has a copy of the context.
                tasks.append(loop.create_task(attempt()))
            else:
                await _first_of(tasks, seconds)
                _drop_the_done(race, tasks)
    except GeneratorExit:
        # Closed, and not cancelled: nothing can be awaited any more.
        race.over = True
        _cancel(tasks)
        tasks.clear()
        raise
    finally:
        race.over = True
        await _dismiss(race, tasks)


async def _first_of(tasks: Tasks, seconds: float | None) -> None:
    """Until one of the tasks is done, or so many seconds have passed."""
    import asyncio

    if tasks:
        await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    else:
        await asyncio.sleep(seconds or 0.0)


def _drop_the_done(race: Race, tasks: Tasks) -> None:
    import asyncio

    if any(task.cancelled() for task in tasks):
        # By somebody else, before its first step: it could not tell the race.
        race.interrupted(asyncio.CancelledError())
    tasks[:] = [task for task in tasks if not task.done()]


def _cancel(tasks: Tasks) -> None:
    for task in tasks:
        try:
            task.cancel()
        except RuntimeError:  # its loop is closed
            pass


async def _dismiss(race: Race, tasks: Tasks) -> None:
    """Cancels what still runs and awaits its end, for as long as ``grace`` allows."""
    import asyncio

    _cancel(tasks)
    losers: set[asyncio.Task[None]] = {task for task in tasks if not task.done()}
    if not losers:
        return
    clock = asyncio.get_running_loop().time
    ends = clock() + race.plan.grace
    cancelled: tuple[Any, ...] | None = None
    while losers:
        try:
            _, losers = await asyncio.wait(losers, timeout=max(0.0, ends - clock()))
            break
        except asyncio.CancelledError as again:
            # anyio repeats a cancellation until it is heeded; the losers are to be awaited all the same.
            cancelled = again.args
            losers = {task for task in losers if not task.done()}
            if clock() >= ends:
                break
    _leave_behind(race, losers)
    if cancelled is not None:
        raise asyncio.CancelledError(*cancelled)


def _leave_behind(race: Race, losers: set[asyncio.Task[None]]) -> None:
    for task in losers:
        _stragglers.add(task)
        task.add_done_callback(_stragglers.discard)
    if losers:
        text = f"a cancelled attempt of {race.plan.name} still runs after {race.plan.grace:g} s"
        report(race.plan, f"{text}; it is left behind")


# trio


async def _on_trio(race: Race, clock: Clock, attempt: Function) -> None:
    trio: Any = sys.modules["trio"]
    finished = trio.Event()
    trouble: BaseException | None = None

    async def run() -> None:
        await attempt()
        finished.set()

    try:
        async with trio.open_nursery() as nursery:
            while True:
                seconds = race.wait(clock())
                if race.over:
                    break
                if seconds == 0.0:
                    race.take(clock())
                    nursery.start_soon(run)
                else:
                    with trio.move_on_after(INF if seconds is None else seconds):
                        await finished.wait()
                    finished = trio.Event()
            nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        trouble = _only(group, trio.Cancelled)
    if trouble is not None:
        try:
            raise trouble
        finally:
            del trouble


def _only(group: BaseExceptionGroup[BaseException], cancelled: type[BaseException]) -> BaseException:
    """What a nursery has wrapped: attempts raise nothing, so it is the cancellation or the interrupt."""
    interrupts = [error for error in group.exceptions if not isinstance(error, cancelled)]
    return (interrupts or group.exceptions)[0]
