"""Fixtures for pytest, to be asked for by name; nothing is switched on by itself.

In the ``conftest.py`` at the root of your tests:

    pytest_plugins = ["redouble.testing.plugin"]

``redouble_clock`` and ``no_waits`` hold for the whole process, so for code in other threads too. A test asks
for one of them, not for both.
"""

from __future__ import annotations

import pytest

from . import _switches

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ._clock import FakeClock, Waits


@pytest.fixture
def redouble_clock() -> Iterator[FakeClock]:
    """Time that stands still but for what is waited: every policy and guard in the process goes by it."""
    with _switches.fake_time(everywhere=True) as clock:
        yield clock


@pytest.fixture
def no_waits() -> Iterator[Waits]:
    """Every wait in the process is skipped; the list of them."""
    with _switches.no_waits(everywhere=True) as waits:
        yield waits
