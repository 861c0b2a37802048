"""Fixtures for tests of hedging."""

from __future__ import annotations

import logging

import pytest


@pytest.fixture
def nobody_logs(monkeypatch):
    """Switch the logger off: handlers of the test runner would keep the records."""
    monkeypatch.setattr(logging.getLogger("redouble"), "disabled", True)
