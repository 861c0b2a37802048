"""The page of faults names a test for each fault; the tests must exist and be able to fail.

Tests are looked up in their files without importing them, so that it does not matter what is installed.
"""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "development" / "faults.md"

# The faults that were written down before the code. Faults found by reviews come on top. A fault may be added; one that
# is removed, or joined with another, is not checked any more.
KNOWN = 135
SUBJECTS = 15

DEFINITION = re.compile(r"^(?:(?:async )?def (test_\w+)\(|(test_\w+) = )", re.MULTILINE)
FAULT = re.compile(r"^- \*\*(.+?)\.\*\* (.+\.)$")
TEST = re.compile(r"^  - \*([\w ]+)\*$")


class Fault(NamedTuple):
    """One entry: the situation, the behaviour, and the names of its tests."""

    situation: str
    behaviour: str
    tests: list[str]


def sections() -> dict[str, list[Fault]]:
    """Return the faults of each subject. A line of a list that is neither a fault nor a test is an error."""
    found: dict[str, list[Fault]] = {}
    for part in PAGE.read_text("utf-8").split("\n## ")[1:]:
        title, _, text = part.partition("\n")
        faults = found[title] = []
        for line in text.splitlines():
            if fault := FAULT.match(line):
                faults.append(Fault(fault[1], fault[2], []))
            elif test := TEST.match(line):
                faults[-1].tests.append("test_" + test[1].replace(" ", "_"))
            else:
                assert not line.lstrip().startswith(("-", "*", "|")), f"neither a fault nor a test: {line}"
    return found


FAULTS = [fault for faults in sections().values() for fault in faults]
NAMED = sorted({name for fault in FAULTS for name in fault.tests})


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


def test_the_page_has_faults_for_each_subject() -> None:
    assert len(sections()) == SUBJECTS
    assert [title for title, faults in sections().items() if not faults] == []


def test_no_fault_that_was_known_is_left_out() -> None:
    assert len(FAULTS) >= KNOWN
    assert len({fault.situation for fault in FAULTS}) == len(FAULTS), "a situation is there twice"


def test_every_fault_has_a_test() -> None:
    assert [fault.situation for fault in FAULTS if not fault.tests] == []


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
