"""Callables of many kinds for the tests of the decorator."""

from __future__ import annotations

import asyncio


def await_all(awaitable):
    async def main():
        return await awaitable

    return asyncio.run(main())


class Failing:
    """Counts its calls and fails the first two of them: what stands behind everything decorated here."""

    def __init__(self):
        self.calls = []

    def __call__(self, *seen):
        self.calls.append(seen)
        if len(self.calls) < 3:
            raise TimeoutError(f"failure {len(self.calls)}")
        return seen


class Fetch:
    """A class, for the tests below."""
