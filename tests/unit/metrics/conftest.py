"""Fixtures for tests of metrics."""

from __future__ import annotations

import pytest

from redouble import Policy
from redouble.backoff import exponential
from redouble.metrics import Counters


@pytest.fixture
def counters():
    return Counters()


@pytest.fixture
def policy(clock, counters):
    return Policy(backoff=exponential, name="fetch", listeners=[counters], clock=clock, sleep=clock.sleep)
