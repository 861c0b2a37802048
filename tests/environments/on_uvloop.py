"""A plugin of pytest: every loop that asyncio makes by itself is one of uvloop's."""

from __future__ import annotations

import asyncio

import uvloop

asyncio.events.new_event_loop = asyncio.new_event_loop = uvloop.new_event_loop


def pytest_report_header() -> str:
    """Seen at the head of the run: whose loops they are."""

    async def loop() -> str:
        return type(asyncio.get_running_loop()).__module__

    return f"event loops: {asyncio.run(loop())} {uvloop.__version__}"
