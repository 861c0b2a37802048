"""Fixtures of these tests."""

from __future__ import annotations

import pytest

from support.stores import Store


@pytest.fixture
def store(flavour, clock):
    return lambda *answers: Store(flavour, clock, *answers)
