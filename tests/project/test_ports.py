"""The ports of other projects are pinned, documented, and applied as they say; `.ci/run long` runs the projects' tests."""

from __future__ import annotations

import ast
import re
import textwrap
from pathlib import Path

import pytest
from ports.edits import Edit, NotFound, Port, Words
from ports.run import HERE, PROJECTS, Result, junit_name, port_of, wrong

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "development" / "ports.md").read_text("utf-8")

SOURCE = '''\
import time


class Client:
    """Ask a server."""

    def ask(self, url):
        """Return the page."""
        # Three times.
        for _ in range(3):
            try:
                return self.get(url)
            except OSError:
                time.sleep(1)

    def tell(self, url):
        time.sleep(1)
'''


def test_a_statement_is_replaced_with_the_indentation_it_had() -> None:
    text, gone, come = Edit("a.py", "for _ in", "return ask_often(url)\n", inside="Client.ask").apply(SOURCE)
    assert "        # Three times.\n        return ask_often(url)\n" in text
    assert (gone, come) == (5, 1)


def test_the_body_of_a_function_is_replaced_below_its_docstring() -> None:
    text, _, come = Edit("a.py", "def ask", "\nfirst()\n\n# second\nsecond()\n", body=True).apply(SOURCE)
    assert text.count('"""Return the page."""') == 1
    assert "for _ in" not in text
    assert come == 2


def test_a_statement_is_removed_with_its_decorators() -> None:
    text, gone, come = Edit("a.py", "def b").apply("def a(): ...\n\n@cache\ndef b():\n    return 1\n")
    assert text == "def a(): ...\n\n"
    assert (gone, come) == (3, 0)


def test_a_body_begins_with_the_decorators_of_its_first_statement() -> None:
    edit = Edit("a.py", "def a", "return 1", body=True)
    assert edit.apply("def a():\n    @cache\n    def b(): ...\n    return b\n") == (
        "def a():\n    return 1\n",
        3,
        1,
    )


def test_words_are_replaced_and_their_lines_counted() -> None:
    text, gone, come = Words("a.py", r"time\.sleep\(1\)", "wait()", times=2).apply(SOURCE)
    assert text.count("wait()") == 2
    assert (gone, come) == (2, 2)


@pytest.mark.parametrize(
    "edit", [Edit("a.py", "time.sleep", "wait()"), Words("a.py", "sleep", "wait", times=1)]
)
def test_an_edit_that_does_not_fit_exactly_is_refused(edit: Edit | Words) -> None:
    with pytest.raises(NotFound, match=r"a\.py: .* 2 "):
        edit.apply(SOURCE)


def test_a_test_that_no_longer_passes_is_reported_unless_the_table_names_it() -> None:
    port = Port("p", "1", "", (), (), others={"t/a.py::C::tests_the_loop": "it patches the loop"})
    before = Result(
        {"t.a.C::tests_the_loop": "passed", "t.a::b": "passed", "t.a::c": "passed", "t.a::d": "failed"}, 0
    )
    after = Result({"t.a::b": "passed", "t.a::c": "failed"}, 0)
    assert wrong(port, before, after) == [
        "p: t.a::d fails before the move",
        "p: t.a::c passes before the move, but not after it",
    ]


def test_a_test_has_the_name_of_the_report() -> None:
    assert junit_name("a/b.py::C::d[1]") == "a.b.C::d[1]"
    assert junit_name("a/b.py::d") == "a.b::d"


@pytest.mark.parametrize("name", PROJECTS)
def test_a_port_is_pinned_and_parses(name: str) -> None:
    port = port_of(name)
    assert port.name == name
    assert re.fullmatch("[0-9a-f]{64}", port.sha256)
    for edit in port.edits:
        if isinstance(edit, Edit):
            ast.parse(textwrap.dedent(edit.new))
    requirements = (HERE / "requirements" / f"{name}.txt").read_text("utf-8").split()
    assert [line for line in requirements if not re.fullmatch(r"[\w.-]+==[\w.]+", line)] == []
    assert f"{name}=={port.version}" in [line.replace("-", "_") for line in requirements]


@pytest.mark.parametrize("name", PROJECTS)
def test_the_page_names_each_project_and_the_tests_that_are_not_kept(name: str) -> None:
    port = port_of(name)
    assert f"{name.replace('_', '-')} {port.version}" in PAGE.replace("_", "-")
    assert [test for test in port.others if test.rpartition("::")[2] not in PAGE] == []
