"""A pytest plugin that skips tests which make no sense in an environment, with the reason.

The variable ``REDOUBLE_ENVIRONMENT`` names the environment. In the tables, ``unit/test_x.py`` is a whole file, which is
not imported, and ``unit/test_x.py::test_y`` is one test. A name without a test is an error.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from left_out_tables import LEFT_OUT

ENVIRONMENT = os.environ["REDOUBLE_ENVIRONMENT"]
HERE = LEFT_OUT[ENVIRONMENT]
TESTS = Path(__file__).resolve().parents[1]


def pytest_report_header() -> list[str]:
    files = [f"{name} is left out: {why}" for name, why in HERE.items() if "::" not in name]
    return [f"environment: {ENVIRONMENT}", *files]


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    files = [name for name in HERE if "::" not in name]
    return True if any(collection_path == TESTS / name for name in files) else None


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
    gone = sorted(name for name in missed if name.partition("::")[0] in seen)
    gone += [name for name in HERE if not (TESTS / name.partition("::")[0]).is_file()]
    if gone:
        raise pytest.UsageError(f"left_out_tables.py names tests that do not exist: {', '.join(gone)}")
