"""Fixtures for stress tests."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def no_callbacks_of_the_garbage_collector() -> Iterator[None]:
    """Remove the callbacks that other packages, such as Hypothesis, have added to the garbage collector.

    Python ignores an exception in such a callback. A test that throws an exception into a thread would throw it into the
    callback now and then, and the thread would run for ever.
    """
    removed = gc.callbacks[:]
    gc.callbacks.clear()
    yield
    gc.callbacks.extend(removed)
