"""A pytest plugin that makes asyncio use uvloop."""

from __future__ import annotations

import asyncio

import uvloop

asyncio.events.new_event_loop = asyncio.new_event_loop = uvloop.new_event_loop


def pytest_report_header() -> str:
    """Name the class of the event loops."""

    async def loop() -> str:
        return type(asyncio.get_running_loop()).__module__

    return f"event loops: {asyncio.run(loop())} {uvloop.__version__}"
