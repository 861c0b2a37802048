"""Fixtures for tests of the kit: no switch stays on, and no test sleeps."""

from __future__ import annotations

import time

import pytest

from redouble import context, events
from redouble._base import clock as _time


@pytest.fixture(autouse=True)
def nothing_left_on():
    """Whatever a test has switched on is off after it."""
    yield
    assert (_time.fakes, _time.fake_everywhere, _time.fake_here.get()) == ({}, {}, None)
    assert (context.caps, context.caps_everywhere, context.cap_here.get()) == ({}, {}, None)
    assert (context.switched_off_everywhere, context.switches_off, context.switched_off.get()) == (
        {},
        {},
        None,
    )
    assert events.subscribers == {}


@pytest.fixture(autouse=True)
def no_real_sleep(monkeypatch):
    """A wait that is not skipped is a failure here, not a delay."""

    def refused(seconds):
        raise AssertionError(f"slept {seconds} s for real")

    monkeypatch.setattr(time, "sleep", refused)
