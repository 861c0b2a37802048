"""Fixtures for pytest. Tests request them by name; nothing is switched on by default.

In the ``conftest.py`` at the root of your tests:

    pytest_plugins = ["redouble.testing.plugin"]

``redouble_clock`` and ``no_waits`` hold for the whole process, so for code in other threads too. A test uses
one of them, not both. With ``@pytest.mark.parametrize("redouble_seed", [7])``, or your own fixture
``redouble_seed`` that returns a number, the waits are the same each time.
"""

from __future__ import annotations

import pytest

from . import _switches

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ._clock import FakeClock, Waits


@pytest.fixture
def redouble_seed() -> int | None:
    """The seed of the waits; ``None`` for random ones."""
    return None


@pytest.fixture
def redouble_clock(redouble_seed: int | None) -> Iterator[FakeClock]:
    """A `FakeClock` for every policy and guard in the process; waits advance it."""
    with _switches.fake_time(seed=redouble_seed, everywhere=True) as clock:
        yield clock


@pytest.fixture
def no_waits(redouble_seed: int | None) -> Iterator[Waits]:
    """Every wait in the process is skipped; the fixture is the list of them."""
    with _switches.no_waits(seed=redouble_seed, everywhere=True) as waits:
        yield waits
