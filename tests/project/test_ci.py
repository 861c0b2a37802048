"""Paths of tests that the scripts in `.ci` and the tables of `tests/environments` name exist."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from environments.left_out_tables import LEFT_OUT

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted((ROOT / ".ci").glob("*"))

pytestmark = pytest.mark.skipif(not SCRIPTS, reason="the scripts are not in the source archive")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_names_paths_that_exist(script: Path) -> None:
    words = re.findall(r"(?<![\w/])(?:tests|docs|examples)/[\w./*{},-]+", script.read_text("utf-8"))
    paths = {path for word in words for path in braces_expanded(word.rstrip(".,"))}
    assert sorted(path for path in paths if not any(ROOT.glob(path))) == []


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_bash_can_parse_a_script(script: Path) -> None:
    done = subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def braces_expanded(word: str) -> list[str]:
    """Expand braces as bash does: ``a{b,c}`` is ``ab`` and ``ac``."""
    found = re.search(r"\{([^{}]*)\}", word)
    if found is None:
        return [word]
    parts = (word[: found.start()] + part + word[found.end() :] for part in found[1].split(","))
    return [path for part in parts for path in braces_expanded(part)]


def test_braces_are_expanded_as_by_bash() -> None:
    assert braces_expanded("a{b,c}d/{e,f}") == ["abd/e", "abd/f", "acd/e", "acd/f"]


NAMES = sorted({name for table in LEFT_OUT.values() for name in table})


@pytest.mark.parametrize("name", NAMES)
def test_a_test_that_is_left_out_somewhere_exists(name: str) -> None:
    file, _, test = name.partition("::")
    tree = ast.parse((ROOT / "tests" / file).read_text("utf-8"))
    functions = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    assert not test or test.partition("[")[0] in functions
