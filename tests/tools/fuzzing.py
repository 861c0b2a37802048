"""Random policies against random faults, sync and async, and what must hold for every call.

    python tests/tools/fuzzing.py 1234            the scenario of seed 1234 once more, told step by step
    python tests/tools/fuzzing.py 1234 50000      so many steps from that seed on, and what they reached

A scenario is a policy with its guards, drawn from a seed, and some calls under it. What an attempt does, how
long it takes and which callback misbehaves is drawn on the way, from the same generator, so the seed tells it
all. It runs three times: sync on a clock of its own; async on an event loop with virtual time, which must
leave the same trace; and, if the policy has guards, with a crowd of tasks that call at once.

A step is one attempt or one wait. What does not hold is `Found`, with the way to see it again.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections import Counter
from contextlib import ExitStack, contextmanager, suppress
from types import CoroutineType
from typing import TYPE_CHECKING, Any

from fuzzing_checks import check, check_guards, is_cancelled
from fuzzing_faults import Found, Loop, who
from fuzzing_world import Caller, World

from redouble import Policy, retrying
from redouble.breaker import CircuitBreaker, State
from redouble.context import incoming
from redouble.events import Retrying
from redouble.testing import capped, retries_disabled

if TYPE_CHECKING:
    from collections.abc import Iterator


# The forms of a call


def call_sync(caller: Caller) -> Any:
    world, policy = caller.world, caller.policy
    if world.form == "generator":
        return list(caller.decorated())[-1]
    if world.form == "called":
        return policy.call(caller.attempt)
    if world.form == "block":
        return block_sync(caller, retrying(policy))
    if world.form == "decorated":
        return caller.decorated()
    with retrying(policy) as scope:
        open_scope(caller)
        return scope(caller.attempt) if world.form == "scope" else block_sync(caller, scope)


def block_sync(caller: Caller, blocks: Any) -> Any:
    result = None
    for attempt in blocks:
        with attempt:
            result = caller.attempt()
            if ask_again(caller, attempt):
                break
        if leave_early(caller):
            break
    return result


async def call_async(caller: Caller) -> Any:
    world, policy = caller.world, caller.policy
    if world.form == "generator":
        return [item async for item in caller.decorated()][-1]
    if world.form == "called":
        return await policy.call(caller.attempt_async)
    if world.form == "block":
        return await block_async(caller, retrying(policy))
    if world.form == "decorated":
        given = caller.decorated()  # of a plain function that was never called, a fallback is no coroutine
        return await given if type(given) is CoroutineType else given
    async with retrying(policy) as scope:
        open_scope(caller)
        return await (scope(caller.attempt_async) if world.form == "scope" else block_async(caller, scope))


async def block_async(caller: Caller, blocks: Any) -> Any:
    result = None
    async for attempt in blocks:
        if caller.world.own() < 0.5:
            async with attempt:
                result = await caller.attempt_async()
                if ask_again(caller, attempt):
                    break
        else:
            with attempt:
                result = await caller.attempt_async()
                if ask_again(caller, attempt):
                    break
        if leave_early(caller):
            break
    return result


def open_scope(caller: Caller) -> None:
    """Time passes between the opening of a scope, when its deadline begins, and the call in it."""
    if caller.world.maybe(0.3):
        caller.spend(caller.world.seconds())


def ask_again(caller: Caller, attempt: Any) -> bool:
    """Asks for another run, where that was drawn; whether the loop is to be left from within."""
    kind, after, _ = caller.last
    if kind == "again":
        attempt.again("not yet", after)
        return False
    return caller.world.maybe(0.05)


def leave_early(caller: Caller) -> bool:
    """Whether the loop is left before another attempt, though one would come."""
    caller.left = bool(caller.events) and isinstance(caller.events[-1], Retrying) and caller.world.maybe(0.02)
    return caller.left


# What is around a call


def outer(world: World) -> Policy:
    """A policy around the one that is looked at."""
    deadline, clock = world.pick([None, None, 1.0, 20.0]), world.clock

    def sleep(seconds: float) -> None:
        clock.now += seconds

    world.outer_ends = None if deadline is None else clock.now + deadline
    world.outer_number = 0
    limits = {"attempts": world.pick([1, 2, 3]), "deadline": deadline, "base": 0.3}
    return Policy(on=Exception, clock=clock, sleep=sleep, rng=world.rng, **limits)


def sent(world: World) -> incoming:
    """What a client further out has sent along."""
    milliseconds, number = world.pick([(0, 1), (700, 1), (9000, 2), (None, 3)])
    headers = {"X-Retry-Attempt": str(number)}
    if milliseconds is not None:
        headers["x-request-timeout-ms"] = f" {milliseconds}\t"
        world.outer_ends = world.clock.now + milliseconds / 1000
    world.outer_number = number
    return incoming(headers, clock=world.clock)


def around_sync(caller: Caller) -> None:
    world = caller.world

    def call() -> Any:
        world.outer_number += 1
        return once_sync(caller)

    with suppress(BaseException):
        if world.around == "nested":
            outer(world).call(call)
        elif world.around == "incoming":
            with sent(world):
                once_sync(caller)
        else:
            once_sync(caller)
    world.outer_ends, world.outer_number, world.over = None, 1, False


async def around_async(caller: Caller) -> None:
    world = caller.world

    async def call() -> Any:
        world.outer_number += 1
        return await once_async(caller)

    with suppress(BaseException):
        if world.around == "nested":
            await outer(world).call(call)
        elif world.around == "incoming":
            with sent(world):
                await once_async(caller)
        else:
            await once_async(caller)
    if not world.crowd:
        world.outer_ends, world.outer_number, world.over = None, 1, False


def once_sync(caller: Caller) -> Any:
    begin(caller)
    try:
        kind, value = "value", call_sync(caller)
    except BaseException as error:
        kind, value = "error", error
    return end(caller, kind, value)


async def once_async(caller: Caller) -> Any:
    begin(caller)
    world, task = caller.world, asyncio.current_task()
    often = 0.2 if world.crowd else 0.03
    timer = world.clock.call_later(world.own() * 9, cancel, caller, task) if world.own() < often else None
    try:
        kind, value = "value", await call_async(caller)
    except BaseException as error:
        kind, value = "error", error
    if timer is not None:
        timer.cancel()
    if caller.cancelled:
        task.uncancel()
    return end(caller, kind, value)


def cancel(caller: Caller, task: Any) -> None:
    caller.cancelled = True
    caller.world.cuts += 1
    caller.world.tally["cancelled from outside"] += 1
    task.cancel()


def begin(caller: Caller) -> None:
    if caller.world.over:
        caller.world.fault("a call further out went on after an interrupt")
    caller.fresh()
    who.set(caller)
    caller.world.tally[f"as {caller.world.form}"] += 1
    caller.world.tally[f"way {caller.policy._variant}"] += 1


def end(caller: Caller, kind: str, value: Any) -> Any:
    """Checks the call, and hands on to the one around it what came out."""
    world = caller.world
    try:
        check(caller, kind, value)
    except Exception as trouble:  # which would be lost here
        world.fault(f"what came out cannot be checked: {trouble!r}")
    if caller.interrupted is not None or caller.cancelled:
        world.over = not world.crowd
    elif is_cancelled(value):
        world.cuts += 1
    if kind == "error" and world.around == "nested":
        raise value
    return value


# Running


@contextmanager
def settings(world: World) -> Iterator[None]:
    """Wall time as the scenario has it, which jumps; and what tests may switch on."""
    real, time.time = time.time, world.wall
    try:
        with ExitStack() as stack:
            if world.cap is not None:
                stack.enter_context(capped(world.cap))
            if world.off:
                stack.enter_context(retries_disabled())
            yield
    finally:
        time.time = real


def between(world: World) -> None:
    """Between two calls time passes, and hands are laid on guards."""
    breaker, bulkhead = world.guards.get("breaker"), world.guards.get("bulkhead")
    for _ in range(world.held):
        bulkhead.release()
    world.held = 0
    if world.maybe(0.4):
        world.clock.now += world.seconds()
    if isinstance(breaker, CircuitBreaker):
        if world.circuit is State.open and world.maybe(0.6):
            world.clock.now += breaker._circuit.open_for
        by_hand = breaker.retry_after is None
        if by_hand or world.maybe(0.02):
            world.circuit = State.closed if by_hand else State.open
            (breaker.close if by_hand else breaker.open)()
    while bulkhead is not None and (world.held or world.maybe(0.2)) and bulkhead.acquire():
        world.held += 1


def run_sync(seed: int, tally: Counter[str]) -> World:
    world = World(seed, None, tally)
    caller = Caller(world)
    with settings(world):
        for _ in range(world.pick([1, 10, 25, 40])):
            between(world)
            around_sync(caller)
            world.settle()
    return world


async def run_async(seed: int, loop: Loop, tally: Counter[str]) -> World:
    world = World(seed, loop, tally)
    caller = Caller(world)
    with settings(world):
        for _ in range(world.pick([1, 10, 25, 40])):
            between(world)
            await around_async(caller)
            world.settle()
    return world


def run_crowd(seed: int, loop: Loop, tally: Counter[str]) -> World:
    world = World(seed, loop, tally, crowd=True)
    crowd = loop.create_task(gathered(world))
    try:
        loop.run_until_complete(crowd)
    except Found as found:
        world.fault(str(found))
        crowd.cancel()
        with suppress(asyncio.CancelledError):
            loop.run_until_complete(crowd)
    world.settle()
    return world


async def gathered(world: World) -> None:
    callers = [Caller(world) for _ in range(world.pick([2, 3, 7]))]

    async def calls(caller: Caller) -> None:
        for _ in range(world.pick([2, 6, 10])):
            if not world.wrong:
                await asyncio.sleep(world.pick([0.0, 0.0, 0.1, 2.0]))
                await around_async(caller)

    with settings(world):
        await asyncio.gather(*[calls(caller) for caller in callers])
    check_guards(world, callers[0].policy)


def run(seed: int, loop: Loop, tally: Counter[str]) -> list[World]:
    """One scenario in all flavours."""
    sync = run_sync(seed, tally)
    twin = loop.run_until_complete(run_async(seed, loop, tally))
    worlds = [sync, twin]
    if not (sync.cuts or twin.cuts):
        tally["compared"] += 1
        if sync.trace != twin.trace:
            pairs = zip([*sync.trace, None], [*twin.trace, None], strict=False)
            twin.fault(
                "sync went {}, and async {}".format(*next(pair for pair in pairs if pair[0] != pair[1]))
            )
        twin.settle()
    if sync.guards:
        tally["crowds"] += 1
        worlds.append(run_crowd(seed, loop, tally))
    return worlds


@contextmanager
def quiet() -> Iterator[None]:
    """Without logging, which has tests of its own, and would take most of the time."""
    logger = logging.getLogger("redouble")
    before = logger.propagate, logger.disabled
    logger.propagate, logger.disabled = False, True
    try:
        yield
    finally:
        logger.propagate, logger.disabled = before


def fuzz(first: int, count: int) -> Counter[str]:
    """So many steps, from a seed on; what was reached, and how often."""
    tally: Counter[str] = Counter()
    seed, loop = first, Loop()
    try:
        with quiet():
            while tally["steps"] < count:
                tally["steps"] += sum([world.steps for world in run(seed, loop, tally)])
                seed += 1
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()
    tally["scenarios"] = seed - first
    return tally


def main(seed: int, count: int | None = None) -> None:
    if count is None:
        loop = Loop()
        with quiet():
            for world in run(seed, loop, Counter()):
                print(world.form, world.around or "alone", world.fields, *world.trace, "", sep="\n  ")
        loop.close()
        return
    began = time.process_time()
    tally = fuzz(seed, count)
    for what, often in sorted(tally.items()):
        print(f"{often:11,}  {what}")
    print(f"{tally['steps'] / (time.process_time() - began):,.0f} steps per second of CPU time")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
