"""The command line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import redouble
from redouble.__main__ import main


def test_the_demo_shows_the_story_of_each_call(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo"]) == 0
    shown = capsys.readouterr().out
    assert "attempt 1 failed: HTTPError: HTTP Error 503: Service Unavailable" in shown
    assert "attempt 2 failed: RemoteDisconnected" in shown
    assert "rate_limited; next attempt in" in shown
    assert "gave up on POST after 1 attempt: repeating this POST might act twice" in shown
    assert "DeadlineExceeded: gave up on GET after" in shown
    assert shown.count("answer: hello") == 2


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--version"])
    assert left.value.code == 0
    assert capsys.readouterr().out == f"redouble {redouble.__version__}\n"


def test_wrong_use_is_told_in_a_line_without_a_traceback() -> None:
    source = str(Path(redouble.__file__).parent.parent)
    command = [sys.executable, "-m", "redouble", "dmeo"]
    done = subprocess.run(command, env={"PYTHONPATH": source}, capture_output=True, text=True)
    assert done.returncode == 2
    assert "invalid choice: 'dmeo'" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_package_tells_the_version_of_its_distribution() -> None:
    import tomllib

    pyproject = Path(__file__).parent.parent / "pyproject.toml"
    assert tomllib.loads(pyproject.read_text())["project"]["version"] == redouble.__version__
