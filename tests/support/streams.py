"""Generators of both flavours, with one interface for tests."""

from __future__ import annotations

import asyncio


class Stream:
    """A generator of either flavour, with one face for the tests."""

    def __init__(self, runner, generator, is_async):
        self._runner = runner
        self._generator = generator
        self._is_async = is_async

    def _do(self, sync, asynchronous, *args):
        method = getattr(self._generator, asynchronous if self._is_async else sync)
        if not self._is_async:
            return method(*args)

        async def step():
            return await method(*args)

        return self._runner.run(step())

    def next(self):
        return self._do("__next__", "__anext__")

    def send(self, value):
        return self._do("send", "asend", value)

    def throw(self, error):
        return self._do("throw", "athrow", error)

    def close(self):
        return self._do("close", "aclose")

    def rest(self):
        items = []
        while True:
            try:
                items.append(self.next())
            except self.end:
                return items

    @property
    def end(self):
        return StopAsyncIteration if self._is_async else StopIteration


class Streams:
    """Writes and opens generators of one flavour; their body is given as a sync generator."""

    def __init__(self, is_async, runner):
        self.is_async = is_async
        self._runner = runner

    def function(self, body):
        """A generator function, made async in the async flavour."""
        if not self.is_async:
            return body

        async def items(*args, **kwargs):
            inner = body(*args, **kwargs)
            send, value = inner.send, None
            while True:
                await asyncio.sleep(0)
                try:
                    item = send(value)
                except StopIteration:
                    return
                try:
                    send, value = inner.send, (yield item)
                except BaseException as error:
                    send, value = inner.throw, error

        return items

    def open(self, policy, body, *args, **kwargs):
        return Stream(self._runner, policy(self.function(body))(*args, **kwargs), self.is_async)
