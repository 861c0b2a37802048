"""Helpers for tests of guards."""

from __future__ import annotations

from redouble._guards.base import Gate
from redouble.errors import CircuitOpen


class Door(Gate):
    """A gate that writes down who came and how they left."""

    def __init__(self, *, shut=False):
        super().__init__("door")
        self.log, self.shut, self.count = [], shut, 0

    def _enter(self):
        if self.shut:
            raise CircuitOpen("shut", name="door", retry_after=None)
        self.count += 1
        self.log.append(f"in {self.count}")
        return self.count

    def _leave(self, ticket, error, result=None):
        self.log.append(f"out {ticket} {type(error).__name__}")
