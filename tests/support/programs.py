"""Run Python code in a new interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import redouble

if TYPE_CHECKING:
    from collections.abc import Sequence

# The folder that holds the package, installed or not.
ROOT = str(Path(redouble.__file__).parents[1])


def run_program(
    code: str,
    *switches: str,
    arguments: Sequence[object] = (),
    cwd: Any = None,
    timeout: float = 60.0,
    **environment: str,
) -> str:
    """Run a program with this redouble on its path; return its output, stripped.

    `switches` are those of the interpreter, such as ``"-O"``; `arguments` are those of the program. The test fails if the program fails or writes to stderr:
    errors at shutdown show only there.
    """
    done = subprocess.run(
        [sys.executable, *switches, "-c", textwrap.dedent(code), *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": ROOT, **environment},
        capture_output=True,
        cwd=cwd,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.stderr == ""
    assert done.returncode == 0
    return done.stdout.strip()
