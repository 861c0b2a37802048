"""Retry many async calls at once, interrupt an attempt at the deadline, and cancel a call."""

import asyncio

from redouble import DeadlineExceeded, Policy, current_attempt

policy = Policy(attempts=5, base=0.05, cap=0.2, deadline=5.0)
calls: dict[str, int] = {}


@policy
async def fetch(city):
    """Fail twice for each city, then return."""
    calls[city] = calls.get(city, 0) + 1
    await asyncio.sleep(0.01)
    if calls[city] < 3:
        raise ConnectionResetError(f"{city} hung up")
    return f"{city} on attempt {current_attempt().number}"


@policy.replace(deadline=0.3)
async def slow():
    """Take a minute; the deadline ends the attempt earlier."""
    await asyncio.sleep(60)


async def main():
    for line in await asyncio.gather(*(fetch(city) for city in ("Oslo", "Lima", "Pune"))):
        print(line)

    try:
        await slow()
    except DeadlineExceeded as error:
        print("slow:", error)

    # Cancellation is not a failure: it is raised at once and never retried.
    task = asyncio.create_task(slow())
    await asyncio.sleep(0.02)
    task.cancel()
    [outcome] = await asyncio.gather(task, return_exceptions=True)
    print("cancelled:", type(outcome).__name__)


asyncio.run(main())
