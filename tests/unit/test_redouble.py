"""The names that users import from the package itself."""

import subprocess
import sys
from pathlib import Path

import pytest

import redouble

SOURCE = str(Path(redouble.__file__).parents[1])


def test_every_name_can_be_imported_and_is_listed():
    assert [name for name in redouble.__all__ if getattr(redouble, name).__name__ != name] == []
    assert set(redouble.__all__) <= set(dir(redouble))


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'redouble' has no attribute 'retryng'"):
        redouble.retryng  # noqa: B018


def test_blocks_and_generators_are_loaded_when_they_are_first_used():
    program = """
import sys, redouble
def loaded():
    return [name for name in ("blocks", "generators") if f"redouble._engine.{name}" in sys.modules]
assert loaded() == [], loaded()
assert "retrying" in dir(redouble)
from redouble import retrying
assert loaded() == ["blocks"], loaded()
@redouble.retry
def pages():
    yield "page"
assert loaded() == ["blocks", "generators"], loaded()
assert list(pages()) == ["page"] and redouble.retrying is retrying
"""
    subprocess.run([sys.executable, "-c", program], check=True, env={"PYTHONPATH": SOURCE}, timeout=60)
