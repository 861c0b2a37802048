"""A plugin of pytest: tests that make no sense in an environment are skipped there, and the run says why.

The environment is named by the variable ``REDOUBLE_ENVIRONMENT``. A name that no test has is an error, so that the
tables stay true: ``test_x.py`` is a whole file, which is not even imported; ``test_x.py::test_y`` a test.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from left_out_tables import LEFT_OUT

if TYPE_CHECKING:
    from pathlib import Path

ENVIRONMENT = os.environ["REDOUBLE_ENVIRONMENT"]
HERE = LEFT_OUT[ENVIRONMENT]


def pytest_report_header() -> list[str]:
    files = [f"{name} is left out: {why}" for name, why in HERE.items() if "::" not in name]
    return [f"environment: {ENVIRONMENT}", *files]


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    return True if collection_path.name in HERE else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missed = {name for name in HERE if "::" in name}
    seen = set()
    for item in items:
        file, _, test = item.nodeid.removeprefix("tests/").partition("::")
        seen.add(file)
        for name in (f"{file}::{test}", f"{file}::{test.partition('[')[0]}"):
            if name in HERE:
                missed.discard(name)
                item.add_marker(pytest.mark.skip(reason=HERE[name]))
    if gone := sorted(name for name in missed if name.partition("::")[0] in seen):
        raise pytest.UsageError(f"left_out_tables.py names tests that are not there: {', '.join(gone)}")
