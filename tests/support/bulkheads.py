"""Bulkheads without a free slot, and checks that no slot was lost."""

from __future__ import annotations

import os
import threading
import time

import pytest

from redouble.bulkhead import Bulkhead
from support.programs import run_program


def eventually(condition):
    """Waits until something is so that another thread brings about."""
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until, "it never came about"
        time.sleep(0.0005)


def started(function, *args):
    thread = threading.Thread(target=function, args=args)
    thread.start()
    return thread


def taken(limit=1, queue=1):
    """A bulkhead whose places are all taken."""
    bulkhead = Bulkhead(limit, queue, name="reports")
    assert all(bulkhead.acquire() for _ in range(limit))
    return bulkhead


def assert_sound(bulkhead):
    """All places are free, and there are neither more nor fewer than the limit says."""
    assert bulkhead.snapshot() == (0, 0)
    assert [bulkhead.acquire(0) for _ in range(bulkhead.limit + 1)] == [True] * bulkhead.limit + [False]
    for _ in range(bulkhead.limit):
        bulkhead.release()
    assert bulkhead.snapshot() == (0, 0)


def interrupt():
    raise KeyboardInterrupt


class Meter:
    """Counts those inside, by itself."""

    def __init__(self):
        self.lock, self.inside, self.most, self.entered = threading.Lock(), 0, 0, 0

    def __enter__(self):
        with self.lock:
            self.inside += 1
            self.entered += 1
            self.most = max(self.most, self.inside)

    def __exit__(self, *_):
        with self.lock:
            self.inside -= 1


def run(code, *args):
    """Run a program in a new interpreter; return the words that it prints."""
    return run_program(code, "-W", "ignore::DeprecationWarning", arguments=args, timeout=25).split()


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
