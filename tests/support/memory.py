"""Measure what calls leave behind in memory."""

from __future__ import annotations

import gc
import weakref
from contextlib import contextmanager


class Payload:
    """An argument that can be watched."""


class Failure(TimeoutError):
    """An exception that can be watched."""


def stepped(coroutine):
    """Runs a coroutine that never suspends: asyncio keeps things alive that are not ours."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("it waits for something")


@contextmanager
def no_collector():
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def fails(error):
    raise LookupError("no token either")


class Watch:
    """Weak references to everything a call has touched."""

    def __init__(self):
        self.references = []

    def __call__(self, thing):
        self.references.append(weakref.ref(thing))
        return thing

    def alive(self):
        return [type(thing()).__name__ for thing in self.references if thing() is not None]


def watch_raised(watch):
    error = Failure("slow")
    watch(error)
    return error
