"""Many async calls at once, each retried by itself; a deadline that holds in mid-attempt; cancellation."""

import asyncio

from redouble import DeadlineExceeded, Policy, current_attempt

policy = Policy(attempts=5, base=0.05, cap=0.2, deadline=5.0)
calls: dict[str, int] = {}


@policy
async def fetch(city):
    """Fails twice for each city, then answers."""
    calls[city] = calls.get(city, 0) + 1
    await asyncio.sleep(0.01)
    if calls[city] < 3:
        raise ConnectionResetError(f"{city} hung up")
    return f"{city} on attempt {current_attempt().number}"


@policy.replace(deadline=0.3)
async def slow():
    """Would take a minute; the deadline cuts it off."""
    await asyncio.sleep(60)


async def main():
    for line in await asyncio.gather(*(fetch(city) for city in ("Oslo", "Lima", "Pune"))):
        print(line)

    try:
        await slow()
    except DeadlineExceeded as error:
        print("slow:", error)

    # Cancellation is not a failure. It is never retried and passes straight through.
    task = asyncio.create_task(slow())
    await asyncio.sleep(0.02)
    task.cancel()
    [outcome] = await asyncio.gather(task, return_exceptions=True)
    print("cancelled:", type(outcome).__name__)


asyncio.run(main())
