"""Choose the tests for a mutant, and their order."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from mutation.planting import module_of

if TYPE_CHECKING:
    from pathlib import Path

    from mutation.measure import Coverage
    from mutation.mutants import Mutant

SLOW = 1.0
"""Tests that take at least this many seconds run last."""
LATE = ("test_memory.py", "test_memory_of_calls.py")
"""Files that run last: they collect garbage in every test, which is slow in a process with all tests imported."""


class Plan:
    """Choose tests for mutants."""

    def __init__(
        self, coverage: Coverage, uses: Uses, *, at_most: float = 10.0, most_cold: int = 400
    ) -> None:
        self._coverage = coverage
        self._uses = uses
        self._at_most = at_most
        self._most_cold = most_cold

    def is_cold(self, mutant: Mutant) -> bool:
        """Return whether importing the package runs the mutated line, so that only a new import shows the mutant."""
        return not mutant.inside or self._coverage.imported(mutant.module, mutant.span)

    def is_doubtful(self, mutant: Mutant) -> bool:
        """Return whether collecting the tests runs the mutated line, so that survival in a warm trial proves nothing."""
        return self._coverage.collected(mutant.module, mutant.span)

    def tests(self, mutant: Mutant) -> set[str]:
        """Return all tests that might notice the mutant."""
        found = self._direct(mutant)
        if not self.is_cold(mutant):
            return found
        used: set[str] = set()
        for module, span in self._uses.of(mutant.module, mutant.target):
            used |= self._coverage.tests(module, span)
        # A test that runs the line of a definition may only have imported the module, without checking anything.
        return found | used | (set() if found and used else self._coverage.tests(mutant.module))

    def _direct(self, mutant: Mutant) -> set[str]:
        """Return the tests that run the mutated line, or the function whose signature is mutated."""
        body = self._uses.body(mutant.module, mutant.qualname)
        return self._coverage.tests(mutant.module, mutant.span if mutant.inside else body or mutant.span)

    def warm(self, mutant: Mutant) -> list[str]:
        """Return the tests for a warm trial: those of the module first, then the fast ones; none that take long."""
        return self._within(self._sorted(mutant))

    def cold(self, mutant: Mutant) -> list[str]:
        """Return the tests for a cold trial, by file: collecting a file takes longer than running a test."""
        tests = self._within(self._sorted(mutant))[: self._most_cold]
        files: dict[str, list[str]] = {}
        for test in tests:
            files.setdefault(test.partition("::")[0], []).append(test)
        direct = self._direct(mutant)
        ranked = sorted(
            files.values(), key=lambda each: (direct.isdisjoint(each), not _own(mutant, each[0]), -len(each))
        )
        return [test for each in ranked for test in each]

    def _sorted(self, mutant: Mutant) -> list[str]:
        """Sort tests: those that run the mutated line, those of the module, one case of each test, then further cases."""
        seconds, direct = self._coverage.seconds, self._direct(mutant)
        cases: dict[str, int] = {}
        keys = {}
        for test in sorted(self.tests(mutant) & seconds.keys(), key=lambda test: (seconds[test], test)):
            function = test.partition("[")[0]
            cases[function] = case = cases.get(function, 0) + 1
            late = seconds[test] > SLOW or any(name in test for name in LATE)
            keys[test] = late, test not in direct, not _own(mutant, test), min(case, 5)
        return sorted(keys, key=keys.__getitem__)

    def _within(self, tests: list[str]) -> list[str]:
        total, chosen = 0.0, []
        for test in tests:
            total += self._coverage.seconds[test]
            if chosen and total > self._at_most:
                break
            chosen.append(test)
        return chosen


def _own(mutant: Mutant, test: str) -> bool:
    """Return whether a test is in a file that is named after the module: test_x.py or test_x_y.py for the module x."""
    name = "test_" + mutant.module.rpartition(".")[2].strip("_")
    file = test.partition("::")[0].rpartition("/")[2].removesuffix(".py")
    return file == name or file.startswith(f"{name}_")


class Uses:
    """The functions that use a name which is defined outside of functions, directly or by way of other such names."""

    def __init__(self, package: Path) -> None:
        self._functions: dict[str, list[tuple[str, tuple[int, int]]]] = {}
        self._definitions: dict[str, set[str]] = {}
        self._modules: dict[str, set[str]] = {}
        self._bodies: dict[tuple[str, str], tuple[int, int]] = {}
        for path in sorted(package.rglob("*.py")):
            self._read(module_of(package, path), ast.parse(path.read_bytes()))

    def of(self, module: str, name: str) -> list[tuple[str, tuple[int, int]]]:
        """Return the modules and lines of all functions that use a name of a module, direct users first."""
        found, seen, waiting = [], {name}, [name]
        while waiting:
            each = waiting.pop(0)
            users = self._functions.get(each, [])
            found += [user for user in users if user[0] == module or user[0] in self._modules.get(each, ())]
            waiting += sorted(self._definitions.get(each, set()) - seen)
            seen.update(waiting)
        return found

    def body(self, module: str, qualname: str) -> tuple[int, int] | None:
        """Return the lines of a function without its signature; ``None`` if there is no such function."""
        return self._bodies.get((module, qualname))

    def _read(self, module: str, tree: ast.Module) -> None:
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    self._modules.setdefault(alias.name, set()).add(module)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                for name in _names(node):
                    span = (node.body[0].lineno, node.end_lineno or node.lineno)
                    self._functions.setdefault(name, []).append((module, span))
        self._read_definitions(tree.body)
        self._read_bodies(module, "", tree)

    def _read_bodies(self, module: str, within: str, node: ast.AST) -> None:
        for inner in ast.iter_child_nodes(node):
            if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
                span = (inner.body[0].lineno, inner.end_lineno or inner.lineno)
                self._bodies[module, within + inner.name] = span
            if isinstance(inner, ast.ClassDef):
                self._read_bodies(module, f"{within}{inner.name}.", inner)

    def _read_definitions(self, statements: list[ast.stmt]) -> None:
        for node in statements:
            if isinstance(node, ast.ClassDef):
                self._read_definitions(node.body)
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            for target in targets:
                if isinstance(target, ast.Name):
                    for name in _names(node) - {target.id}:
                        self._definitions.setdefault(name, set()).add(target.id)


def _names(node: ast.AST) -> set[str]:
    """Return the names and attributes that a node uses."""
    found = set()
    for each in ast.walk(node):
        if isinstance(each, ast.Name):
            found.add(each.id)
        elif isinstance(each, ast.Attribute):
            found.add(each.attr)
    return found
