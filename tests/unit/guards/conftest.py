"""Fixtures of these tests."""

from __future__ import annotations

import pytest

from support.breakers import Way


@pytest.fixture
def heard():
    """Changes of state, as pairs, in the order in which a listener was told of them."""
    return []


@pytest.fixture(params=["decorator", "async decorator", "with", "async with"])
def way(request):
    return Way(request.param)
