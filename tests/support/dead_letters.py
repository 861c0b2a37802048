"""Helpers for tests of dead letters."""

from __future__ import annotations

from redouble.dead_letters import DeadLetter
from redouble.dead_letters._letter import Limits, new_id
from redouble.dead_letters._replay import Replay

NOW = 1_700_000_000.0  # 2023-11-14T22:13:20+00:00


def fail(message="no"):
    def handler(letter):
        raise TimeoutError(message)

    return handler


def raised(error):
    try:
        raise error
    except type(error) as caught:
        return caught


def print_nothing(letter):
    pass


def claim_and_die(letters, clock, **fields):
    """What is left by a process that was killed in its handler, when the lease is over."""
    run = Replay(letters, **fields)
    claimed = run.next()
    run._renewal.stop()
    clock.advance(61)
    return claimed


def interrupting(letter):
    raise KeyboardInterrupt


def add(store, now=NOW, limits=None, **fields):
    return store.add(DeadLetter(id=new_id(now), **fields), now=now, limits=limits or Limits())


def raises(error):
    raise error
