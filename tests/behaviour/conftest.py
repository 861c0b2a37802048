"""Fixtures of these tests."""

from __future__ import annotations

import pytest

from redouble import (
    Policy,
)
from redouble.backoff import exponential


@pytest.fixture
def heard():
    return []


@pytest.fixture
def policy(clock, heard):
    """A policy on fake time with waits of 1, 2, 4 seconds; guards are added to it."""
    return Policy(clock=clock, sleep=clock.sleep, backoff=exponential, listeners=[heard.append], name="fetch")


@pytest.fixture
def quick(clock):
    """A policy on fake time with waits of 1, 2, 4 seconds, and nothing else."""
    return Policy(backoff=exponential, clock=clock, sleep=clock.sleep)
