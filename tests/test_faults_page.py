"""The page of faults says of each which test holds it: here it is seen that these tests are there and do something.

Tests are looked up in their files without importing them, so that it does not matter what is installed.
"""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "explanation" / "faults.md"

# So many faults were written down before there was code to have them. Those that reviews have found since come on
# top. A fault may be added; one that is left out, or merged with another, is a rule that nobody looks after.
KNOWN = 135
SUBJECTS = 15

HEADER = ("situation", "what happens", "held by")
TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def sections() -> dict[str, list[tuple[str, ...]]]:
    """The rows of each subject, cell by cell, without the head of the table."""
    found: dict[str, list[tuple[str, ...]]] = {}
    for part in PAGE.read_text("utf-8").split("\n## ")[1:]:
        title, _, text = part.partition("\n")
        lines = [line for line in text.splitlines() if line.startswith("|")]
        cells = [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in lines]
        assert cells[:1] == [HEADER], f"{title} has no table of faults"
        found[title] = cells[2:]
    return found


ROWS = [row for rows in sections().values() for row in rows]
NAMED = sorted({(path, name) for row in ROWS for path, name in TEST.findall(row[-1])})


def definition(path: str, name: str) -> ast.stmt | None:
    """The statement of a file that defines a test: a function, or the name of a state machine of Hypothesis."""
    # Two empty lines stand between definitions: to read only the one in question is ten times as quick.
    wanted = re.compile(rf"^(?:(?:async )?def {name}\(|{name} = )", re.MULTILINE)
    for part in source(path).split("\n\n\n"):
        if wanted.search(part):
            return next(node for node in ast.parse(part).body if name_of(node) == name)
    return None


@functools.cache
def source(path: str) -> str:
    file = ROOT / path
    return file.read_text("utf-8") if file.is_file() else ""


def name_of(node: ast.stmt) -> str | None:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return node.name
    return ast.unparse(node.targets[0]) if isinstance(node, ast.Assign) else None


def is_bare_skip(test: ast.stmt) -> bool:
    """Whether it is skipped whatever the circumstances, or has nothing to fail with."""
    if isinstance(test, ast.Assign):
        return not ast.unparse(test.value).endswith(".TestCase")
    assert isinstance(test, (ast.FunctionDef, ast.AsyncFunctionDef))
    marks = [ast.unparse(mark) for mark in test.decorator_list]
    if any(re.fullmatch(r"pytest\.mark\.(skip|xfail)(\(.*\))?", mark, re.DOTALL) for mark in marks):
        return True
    body = [part for part in test.body if not is_text(part)]
    return not body or isinstance(body[0], ast.Pass) or ast.unparse(body[0]).startswith("pytest.skip(")


def is_text(part: ast.stmt) -> bool:
    return isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant)


def test_the_page_has_a_table_for_each_subject_and_none_is_empty() -> None:
    assert len(sections()) == SUBJECTS
    assert [title for title, rows in sections().items() if not rows] == []


def test_no_fault_that_was_known_is_left_out() -> None:
    assert len(ROWS) >= KNOWN
    assert len({row[0] for row in ROWS}) == len(ROWS), "a situation is told twice"


def test_every_fault_is_told_in_three_cells_and_held_by_a_test() -> None:
    # Nothing but tests stands in the last cell, so that none is misspelt and passed over.
    tests = re.compile(rf"{TEST.pattern}(, {TEST.pattern})*")
    assert [row for row in ROWS if len(row) != len(HEADER) or not all(row)] == []
    assert [row for row in ROWS if not tests.fullmatch(row[-1])] == []


def test_every_test_that_is_named_is_there_and_is_no_bare_skip() -> None:
    found = {f"{path}::{name}": definition(path, name) for path, name in NAMED}
    assert [test for test, node in found.items() if node is None] == []
    assert [test for test, node in found.items() if node is not None and is_bare_skip(node)] == []


def test_a_test_that_is_not_there_is_missed() -> None:
    here = "tests/test_faults_page.py"
    assert definition(here, "test_a_test_that_is_not_there_is_missed") is not None
    assert definition(here, "test_a_test") is None
    assert definition("tests/test_nowhere.py", "test_a_test") is None


@pytest.mark.parametrize(
    ("text", "bare"),
    [
        ("def test_a():\n    assert f() == 1", False),
        ("@pytest.mark.slow\ndef test_a():\n    assert f() == 1", False),
        ("@pytest.mark.skipif(windows, reason='none there')\ndef test_a():\n    assert f() == 1", False),
        ("def test_a():\n    if missing:\n        pytest.skip('not here')\n    assert f() == 1", False),
        ("test_a = Machine.TestCase", False),
        ("test_a = None", True),
        ("def test_a():\n    '''Later.'''", True),
        ("def test_a():\n    '''Later.'''\n    pass", True),
        ("def test_a():\n    pytest.skip('later')\n    assert f() == 1", True),
        ("@pytest.mark.skip\ndef test_a():\n    assert f() == 1", True),
        ("@pytest.mark.skip(reason='later')\ndef test_a():\n    assert f() == 1", True),
        ("@pytest.mark.xfail(reason='later')\nasync def test_a():\n    assert f() == 1", True),
    ],
)
def test_a_bare_skip_is_told_from_a_test(text: str, bare: bool) -> None:
    assert is_bare_skip(ast.parse(text).body[0]) is bare


def test_every_test_of_faults_that_is_held_nowhere_else_is_on_the_page() -> None:
    own = "tests/test_faults.py"
    tests = set(re.findall(r"^def (test_\w+)", source(own), flags=re.MULTILINE))
    helpers = {"test_the_numbers_that_are_checked_are_all_there_are"}
    assert tests - {name for path, name in NAMED if path == own} == helpers


def test_the_page_is_on_the_map() -> None:
    index = (ROOT / "docs" / "index.md").read_text("utf-8")
    assert re.search(r"^- \[Faults\]\(explanation/faults\.md\): \w", index, flags=re.MULTILINE)
