"""Measure which tests execute which lines, and how long each takes; once per test file, with a cache.

The key of the cache is the contents of the test file and of the module: a change anywhere else does not invalidate it,
and seldom changes which lines a test executes. The cache is in a temporary directory, never in the tree.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from mutation import trials
from mutation.planting import file_of, module_of
from mutation.processes import pool

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from mutation.processes import Tell

# Folders and files of tests that start processes, take long, read files rather than run code, or test this tool.
LEFT_OUT = {
    "cli",
    "environments",
    "interop",
    "project",
    "simulate",
    "test_fuzz",
    "test_kill9",
    "test_letter_files",
    "test_processes",
    "test_soak",
}
FORMAT = 2
LONGEST_FILE = 120.0
"""Seconds after which a test file is left out."""


class Project(NamedTuple):
    """The folders of the project."""

    root: Path

    @property
    def package(self) -> Path:
        return self.root / "src" / "redouble"

    @property
    def tests(self) -> Path:
        return self.root / "tests"

    def test_files(self) -> list[Path]:
        """Return the test files that are used."""
        return [
            path
            for path in sorted(self.tests.rglob("test_*.py"))
            if not LEFT_OUT.intersection(path.relative_to(self.tests).with_suffix("").parts)
        ]

    def source(self, module: str) -> bytes:
        """Return the source of a module."""
        return file_of(self.package, module).read_bytes()


def temporary() -> Path:
    """Return the folder of the cache."""
    user = getattr(os, "getuid", lambda: "user")()
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    path = Path(tempfile.gettempdir()) / f"redouble-mutation-{user}-{version}"
    path.mkdir(mode=0o700, exist_ok=True)
    return path


class Coverage:
    """The tests that execute a line, by module and line."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        """Seconds by test; only tests that pass are in it."""
        self._lines: dict[str, dict[str, int]] = {}
        self._imported: dict[str, int] = {}
        self._collected: dict[str, int] = {}

    def add(self, measured: dict[str, Any]) -> None:
        """Add the result of one test file."""
        names = list(measured["tests"])
        self.seconds.update(measured["tests"])
        for module, found in measured["modules"].items():
            lines = self._lines.setdefault(module, {})
            lines.update({names[int(index)]: int(bits, 16) for index, bits in found["lines"].items()})
            imported, collected = int(found["imported"], 16), int(found["collected"], 16)
            self._imported[module] = self._imported.get(module, imported) & imported
            self._collected[module] = self._collected.get(module, 0) | collected

    def tests(self, module: str, span: tuple[int, int] | None = None) -> set[str]:
        """Return the tests that execute any line of a span, or of the module."""
        wanted = -1 if span is None else _bits(range(span[0], span[1] + 1))
        return {test for test, bits in self._lines.get(module, {}).items() if bits & wanted}

    def imported(self, module: str, span: tuple[int, int]) -> bool:
        """Return whether importing the package executes any line of a span."""
        return bool(self._imported.get(module, 0) & _bits(range(span[0], span[1] + 1)))

    def collected(self, module: str, span: tuple[int, int]) -> bool:
        """Return whether importing the package or a test file executes any line of a span."""
        return bool(self._collected.get(module, 0) & _bits(range(span[0], span[1] + 1)))


def _place(tests: Path, file: Path) -> str:
    """Return the path of a test file as one word: a moved file has other test ids."""
    return (
        "-".join(file.relative_to(tests).with_suffix("").parts) if file.is_relative_to(tests) else file.stem
    )


def coverage_of(project: Project, modules: Iterable[str], files: list[Path], jobs: int) -> Coverage:
    """Return the coverage of these modules; measure what is not in the cache."""
    wanted = {module: _digest(file_of(project.package, module)) for module in modules}
    places = {
        file: temporary() / f"{_place(project.tests, file)}-{_digest(file)[:12]}-{FORMAT}.json"
        for file in files
    }
    unknown = [file for file in files if not _knows(places[file], wanted)]
    if unknown:
        began = time.monotonic()
        print(f"measuring {len(unknown)} of {len(files)} test files ...", file=sys.stderr, flush=True)

        def work(file: Path, tell: Tell) -> None:
            _measured(project.package, file, places[file], tell)

        for file, outcome in pool(unknown, jobs, work):
            if outcome.ended != "done":
                print(
                    f"  {file.name} is left out: {outcome.ended} {outcome.told.get('error', '')}",
                    file=sys.stderr,
                )
                nothing = {"digests": wanted, "tests": {}, "modules": {}}
                places[file].write_text(json.dumps(nothing), "utf-8")
        print(f"measured in {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    coverage = Coverage()
    for place in places.values():
        if place.exists():
            coverage.add(json.loads(place.read_text("utf-8")))
    return coverage


def _digest(*paths: Path) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.read_bytes() if path.exists() else b"")
    return digest.hexdigest()


def _knows(place: Path, wanted: dict[str, str]) -> bool:
    try:
        digests = json.loads(place.read_text("utf-8"))["digests"]
    except (OSError, ValueError, KeyError):
        return False
    return all(digests.get(module) == digest for module, digest in wanted.items())


def _bits(lines: Iterable[int]) -> int:
    bits = 0
    for line in lines:
        bits |= 1 << line
    return bits


def _measured(package: Path, file: Path, place: Path, tell: Tell) -> None:
    """Run one test file under coverage in a new process and write the result to the cache."""
    from coverage import Coverage as Tracer

    tell({"within": LONGEST_FILE})
    digests = {module_of(package, path): _digest(path) for path in package.rglob("*.py")}
    os.environ["COVERAGE_CORE"] = "ctrace"
    tracer = Tracer(data_file=None, config_file=False, include=[f"{package}/*"], messages=False)
    watch = _Watch(tracer)
    tracer.start()
    import redouble  # noqa: F401

    tracer.switch_context("collecting")
    trials.run_pytest([str(file)], [watch])
    tracer.stop()
    found = {
        "digests": digests,
        "tests": watch.seconds,
        "modules": _found(tracer, package, list(watch.seconds)),
    }
    written = place.with_suffix(f".{os.getpid()}")
    written.write_text(json.dumps(found), "utf-8")
    written.replace(place)


class _Watch:
    """A pytest plugin that gives the tracer the name of the running test, and times it."""

    def __init__(self, tracer: Any) -> None:
        self.seconds: dict[str, float] = {}
        self._tracer = tracer
        self._good = False

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[Any]:
        # Some tests set a trace function of their own, and leave none.
        if sys.gettrace() is None:
            self._tracer.stop()
            self._tracer.start()
        self._tracer.switch_context(item.nodeid)
        self._good, began, worked = True, time.perf_counter(), time.process_time()
        result = yield
        if self._good:
            # On a busy machine most of what a clock on the wall shows is waiting for others.
            waited = min(time.perf_counter() - began, 0.25)
            self.seconds[item.nodeid] = round(max(waited, time.process_time() - worked), 5)
        self._tracer.switch_context("between")
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._good = self._good and report.passed


def _found(tracer: Any, package: Path, tests: list[str]) -> dict[str, Any]:
    numbers = {test: number for number, test in enumerate(tests)}
    data, found = tracer.get_data(), {}
    for path in map(Path, data.measured_files()):
        if not path.is_relative_to(package):
            continue
        by_test, outside = dict[int, int](), {"": 0, "collecting": 0}
        for line, contexts in data.contexts_by_lineno(str(path)).items():
            for context in contexts:
                if context in numbers:
                    number = numbers[context]
                    by_test[number] = by_test.get(number, 0) | 1 << line
                elif context in outside:
                    outside[context] |= 1 << line
        found[module_of(package, path)] = {
            "lines": {number: f"{bits:x}" for number, bits in by_test.items()},
            "imported": f"{outside['']:x}",
            "collected": f"{outside[''] | outside['collecting']:x}",
        }
    return found
