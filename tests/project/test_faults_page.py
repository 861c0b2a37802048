"""The page of faults names a test for each fault; the tests must exist and be able to fail.

Tests are looked up in their files without importing them, so that it does not matter what is installed.
"""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "development" / "faults.md"

# So many faults were written down before there was code to have them. Those that reviews have found since come on
# top. A fault may be added; one that is left out, or merged with another, is not checked any more.
KNOWN = 135
SUBJECTS = 15

HEADER = ("situation", "what happens", "test")
DEFINITION = re.compile(r"^(?:(?:async )?def (test_\w+)\(|(test_\w+) = )", re.MULTILINE)
TEST = re.compile(r"`(test_\w+)`")


def sections() -> dict[str, list[tuple[str, ...]]]:
    """Return the rows of each subject, without the head of the table."""
    found: dict[str, list[tuple[str, ...]]] = {}
    for part in PAGE.read_text("utf-8").split("\n## ")[1:]:
        title, _, text = part.partition("\n")
        lines = [line for line in text.splitlines() if line.startswith("|")]
        cells = [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in lines]
        assert cells[:1] == [HEADER], f"{title} has no table of faults"
        found[title] = cells[2:]
    return found


ROWS = [row for rows in sections().values() for row in rows]
NAMED = sorted({name for row in ROWS for name in TEST.findall(row[-1])})


@functools.cache
def definitions() -> dict[str, list[ast.stmt]]:
    """Return the statements that define tests, by name: functions, or state machines of Hypothesis."""
    found: dict[str, list[ast.stmt]] = {}
    for file in (ROOT / "tests").rglob("test_*.py"):
        # Two empty lines stand between definitions: parsing only those in question is ten times as fast.
        for part in file.read_text("utf-8").split("\n\n\n"):
            for names in DEFINITION.findall(part):
                if (name := "".join(names)) in NAMED:
                    node = next(node for node in ast.parse(part).body if name_of(node) == name)
                    found.setdefault(name, []).append(node)
    return found


def name_of(node: ast.stmt) -> str | None:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return node.name
    return ast.unparse(node.targets[0]) if isinstance(node, ast.Assign) else None


def is_bare_skip(test: ast.stmt) -> bool:
    """Return whether a test is always skipped, or has nothing that can fail."""
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
    assert len({row[0] for row in ROWS}) == len(ROWS), "a situation is there twice"


def test_every_fault_is_told_in_three_cells_and_held_by_a_test() -> None:
    # Nothing but tests stands in the last cell, so that none is misspelt and passed over.
    tests = re.compile(rf"{TEST.pattern}(, {TEST.pattern})*")
    assert [row for row in ROWS if len(row) != len(HEADER) or not all(row)] == []
    assert [row for row in ROWS if not tests.fullmatch(row[-1])] == []


def test_every_test_that_is_named_exists_and_can_fail() -> None:
    assert [name for name in NAMED if name not in definitions()] == []
    assert [name for name, nodes in definitions().items() if any(map(is_bare_skip, nodes))] == []


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


def test_every_test_of_the_file_of_faults_is_on_the_page() -> None:
    own = "".join(file.read_text("utf-8") for file in (ROOT / "tests" / "behaviour").glob("test_faults*.py"))
    tests = set(re.findall(r"^def (test_\w+)", own, flags=re.MULTILINE))
    assert tests - set(NAMED) == {"test_the_numbers_that_are_checked_are_all_there_are"}


def test_the_page_is_on_the_map() -> None:
    index = (ROOT / "docs" / "index.md").read_text("utf-8")
    assert re.search(r"^- \[Faults\]\(development/faults\.md\): \w", index, flags=re.MULTILINE)
