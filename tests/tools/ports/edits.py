"""Replace statements in a file of another project, and count the lines of code that go and come.

A statement is found by the words it starts with, so that a port names as little as possible of the other project's code.
"""

from __future__ import annotations

import ast
import re
import textwrap
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from structure import lines_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class NotFound(Exception):
    """The words of an edit are not in the file, or not as often as the edit says."""


@dataclass(frozen=True)
class Edit:
    """Put `new` in place of the statements that start with `find`; an empty `new` removes them.

    `inside` is the qualified name of the function or class to look in. With `body=True` the statement is a function: its
    signature, decorators and docstring stay. `times` says how many statements there must be.
    """

    file: str
    find: str
    new: str = ""
    inside: str = ""
    body: bool = False
    times: int = 1

    def apply(self, text: str) -> tuple[str, int, int]:
        """Return the new text, and the lines of code that went and that came."""
        found = [
            node for node in statements(text, self.inside) if source_of(text, node).startswith(self.find)
        ]
        if len(found) != self.times:
            raise NotFound(f"{self.file}: {self.find!r} was found {len(found)} times, not {self.times}")
        lines = text.splitlines(keepends=True)
        gone = come = 0
        for node in reversed(found):
            first, last = body_lines(node) if self.body else node_lines(node)
            old = "".join(lines[first - 1 : last])
            indent = re.match(r"\s*", lines[first - 1])[0]  # type: ignore[index]
            new = textwrap.indent(textwrap.dedent(self.new).strip("\n"), indent)
            lines[first - 1 : last] = [new + "\n"] if new else []
            gone += code_lines(old)
            come += code_lines(new)
        return "".join(lines), gone, come


@dataclass(frozen=True)
class Words:
    """Replace words inside statements that stay; each line with such words counts as one that goes and one that comes."""

    file: str
    find: str
    new: str
    times: int

    def apply(self, text: str) -> tuple[str, int, int]:
        lines = text.splitlines(keepends=True)
        touched = [number for number, line in enumerate(lines) if re.search(self.find, line)]
        if len(touched) != self.times:
            raise NotFound(f"{self.file}: {self.find!r} is in {len(touched)} lines, not {self.times}")
        for number in touched:
            lines[number] = re.sub(self.find, self.new, lines[number])
        return "".join(lines), len(touched), len(touched)


@dataclass(frozen=True)
class Port:
    """How a project is moved to redouble, and which of its tests show that it still works."""

    name: str
    version: str
    sha256: str
    """Of the source archive."""
    edits: tuple[Edit | Words, ...]
    tests: tuple[str, ...]
    """Arguments of pytest: the tests about retries, and their neighbours."""
    source: str = "."
    """The folder of the archive that holds the package."""
    others: dict[str, str] = field(default_factory=dict)
    """Tests of the replaced code itself, each with the reason why the move cannot keep it."""
    extra_files: dict[str, str] = field(default_factory=dict)
    """Files that the tests need and the archive lacks, written by us."""

    def apply(self, tree: Path) -> tuple[int, int]:
        """Edit the files below `tree`. Return the lines of code that went and that came."""
        gone = come = 0
        for edit in self.edits:
            path = tree / edit.file
            text, went, came = edit.apply(path.read_text("utf-8"))
            ast.parse(text)
            path.write_text(text, "utf-8")
            gone, come = gone + went, come + came
        return gone, come


def statements(text: str, inside: str = "") -> Iterator[ast.stmt]:
    """Yield the statements of a text, or those inside a function or class, in their order."""
    home: ast.AST = ast.parse(text)
    for name in filter(None, inside.split(".")):
        home = next(node for node in ast.walk(home) if getattr(node, "name", None) == name)
    nodes = (node for node in ast.walk(home) if isinstance(node, ast.stmt) and node is not home)
    yield from sorted(nodes, key=lambda node: node.lineno)


def source_of(text: str, node: ast.stmt) -> str:
    return ast.get_source_segment(text, node) or ""


def node_lines(node: ast.stmt) -> tuple[int, int]:
    """Return the first and the last line, decorators included."""
    decorators = getattr(node, "decorator_list", [])
    return min([node.lineno, *(each.lineno for each in decorators)]), node.end_lineno or node.lineno


def body_lines(node: ast.stmt) -> tuple[int, int]:
    """Return the first and the last line of the body of a function, without its docstring."""
    assert isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    body = node.body[ast.get_docstring(node) is not None :]
    return node_lines(body[0])[0], node_lines(body[-1])[1]


def code_lines(text: str) -> int:
    """Count lines without blank ones, comments and docstrings."""
    # Below another statement, because long assignments at the top count as tables.
    return (
        lines_of("if True:\n" + textwrap.indent(textwrap.dedent(text), "    ") + "\n").code - 1 if text else 0
    )
