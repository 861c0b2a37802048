"""Fixtures for tests of ``redouble dead-letters``: a file, the command on it, modules with handlers."""

from __future__ import annotations

import itertools
import sys
import textwrap

import pytest

from redouble._cli import main
from redouble.dead_letters import DeadLetters


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "letters.db")


@pytest.fixture
def letters(path):
    with DeadLetters(path) as box:
        yield box


@pytest.fixture
def command(capsys, path):
    """Runs a command in this process on the file of the test; gives status, output and errors."""

    def run(name, *arguments):
        capsys.readouterr()
        status = main(["dead-letters", name, path, *map(str, arguments)])
        shown = capsys.readouterr()
        return status, shown.out, shown.err

    return run


numbers = itertools.count()


@pytest.fixture
def handler(tmp_path, monkeypatch):
    """Writes a module that has a function ``handle``; gives its name as the command line wants it."""
    monkeypatch.syspath_prepend(str(tmp_path))
    made = []

    def write(source):
        made.append(f"handlers_of_test_{next(numbers)}")
        (tmp_path / f"{made[-1]}.py").write_text(textwrap.dedent(source), "utf-8")
        return f"{made[-1]}:handle"

    yield write
    for name in made:
        sys.modules.pop(name, None)
