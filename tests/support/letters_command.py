"""The command ``redouble dead-letters`` in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import redouble

SOURCE = str(Path(redouble.__file__).parent.parent)


PREFIX = "python -m redouble dead-letters: "


def started(*arguments, cwd, **streams):
    """The command in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "redouble", "dead-letters", *arguments],
        env={**os.environ, "PYTHONPATH": SOURCE},
        cwd=cwd,
        text=True,
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams},
    )


def finished(*arguments, cwd):
    with started(*arguments, cwd=cwd) as process:
        out, err = process.communicate(timeout=30)
    return process.returncode, out, err


def records(text):
    return [json.loads(line) for line in text.splitlines()]


SUCCEEDS = "def handle(letter): print('handling', letter.payload)\n"


FAILS = "def handle(letter): raise TimeoutError('still slow')\n"
