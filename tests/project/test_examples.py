"""Run every example as a script, in a new process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))

# A line, or a part of one, that shows that the example made its point.
POINTS = {
    "async_calls.py": "the deadline of 0.3 s came during the attempt",
    "block_and_scope.py": "block: 3 rows, written by run 2",
    "config_from_toml.py": "Ends 10 s after the call began, waits included, with DeadlineExceeded.",
    "http_client.py": "POST with a key: 201 after 2 requests",
    "outage.py": "with a budget: 50 calls, 60 connections, 0 refused at once",
    "payments.py": "1 charge, 2 requests: the second got the stored answer",
    "testing_your_code.py": "all tests pass without waiting",
}


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_runs_by_itself_in_silence_and_makes_its_point(example: Path) -> None:
    # In front, so that it is found whether installed or not.
    path = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-W", "error", str(example)],
        capture_output=True,
        text=True,
        timeout=10,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.stderr == ""
    assert done.returncode == 0
    assert POINTS[example.name] in done.stdout


def test_every_point_to_be_made_has_its_example() -> None:
    assert {example.name for example in EXAMPLES} == set(POINTS)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_fits_on_one_screen(example: Path) -> None:
    assert len(example.read_text("utf-8").splitlines()) <= 60
