"""The fixtures for pytest, and the package as a whole."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from redouble import (
    Policy,
    testing,
)
from redouble.backoff import exponential
from redouble.testing import (
    FakeClock,
    scripted,
)
from support.threads import in_a_thread

# As users do it; here it is in reach of the measurement of coverage.
pytest_plugins = ["redouble.testing.plugin"]


def test_the_clock_of_the_plugin_is_that_of_the_whole_process(redouble_clock, flavour):
    policy = Policy(backoff=exponential)
    assert isinstance(redouble_clock, FakeClock)
    flavour.call(policy, flavour.scripted(TimeoutError(), "page"))
    in_a_thread(lambda: policy.call(scripted(TimeoutError(), "page")))
    assert (redouble_clock.waits, redouble_clock.now) == ([1.0, 1.0], 2.0)


def test_the_waits_of_the_plugin_are_those_of_the_whole_process(request, flavour):
    waits = request.getfixturevalue("no_waits")
    policy = Policy(backoff=exponential)
    flavour.call(policy, flavour.scripted(TimeoutError(), "page"))
    in_a_thread(lambda: policy.call(scripted(TimeoutError(), "page")))
    assert waits == [1.0, 1.0]


TESTS = """
import time
import pytest
from redouble import retry
from redouble.testing import scripted

def test_the_clock(redouble_clock):
    before = time.monotonic()
    assert retry(base=60.0, floor=60.0, cap=60.0)(scripted(TimeoutError(), TimeoutError(), "page"))() == "page"
    assert len(redouble_clock.waits) == 2
    assert time.monotonic() - before < 60.0

def test_the_waits(no_waits):
    assert retry(scripted(TimeoutError(), "page"))() == "page"
    assert len(no_waits) == 1

def test_neither(monkeypatch):
    slept = []
    monkeypatch.setattr(time, "sleep", slept.append)
    assert retry(scripted(TimeoutError(), "page"))() == "page"
    assert len(slept) == 1
"""


@pytest.mark.slow
@pytest.mark.parametrize("asked_for", [True, False])
def test_the_plugin_is_there_where_it_is_asked_for_and_nowhere_else(asked_for, tmp_path, monkeypatch):
    monkeypatch.undo()  # waiting for a process is a sleep
    plugins = ["redouble.testing.plugin"] if asked_for else []
    (tmp_path / "conftest.py").write_text(f"pytest_plugins = {plugins!r}\n")
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": str(Path(testing.__file__).parents[2]),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ("3 passed" if asked_for else "1 passed, 2 errors") in done.stdout, done.stdout + done.stderr


@pytest.mark.slow
def test_the_kit_itself_needs_no_test_framework(monkeypatch):
    monkeypatch.undo()
    code = (
        "import sys, redouble.testing; print({'pytest', 'typing', 'asyncio', 'unittest'} & set(sys.modules))"
    )
    path = str(Path(testing.__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {path!r}); {code}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.strip() == "set()"


def test_every_name_that_is_exported_is_there():
    assert testing.__all__ == sorted(testing.__all__)
    assert all(hasattr(testing, name) for name in testing.__all__)
