"""Which tests execute which line, and how long each takes: measured once per test file, and remembered.

What is remembered is told by the contents of the test file and of the module: a change anywhere else does
not throw it away, and seldom changes which lines a test executes. It is kept in a temporary directory, never in the tree.
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
from mutation.processes import pool

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from mutation.processes import Tell

# They start processes, take long, look at files rather than code, or would test the tester.
LEFT_OUT = {
    "test_charts",
    "test_coming_from",
    "test_comparison",
    "test_deadletter_durability",
    "test_deadletters_cli",
    "test_demo",
    "test_docs",
    "test_environment",
    "test_examples",
    "test_faults_page",
    "test_fuzz",
    "test_links",
    "test_main",
    "test_mutation",
    "test_network_guard",
    "test_package",
    "test_pictures",
    "test_public_api",
    "test_run_command",
    "test_simulate",
    "test_simulate_command",
    "test_soak",
    "test_what_is_retried",
}
FORMAT = 1
LONGEST_FILE = 120.0
"""Seconds after which a test file is given up."""


class Project(NamedTuple):
    """Where things are."""

    root: Path

    @property
    def package(self) -> Path:
        return self.root / "src" / "redouble"

    @property
    def tests(self) -> Path:
        return self.root / "tests"

    def test_files(self) -> list[Path]:
        """The files whose tests are used."""
        return [path for path in sorted(self.tests.glob("test_*.py")) if path.stem not in LEFT_OUT]

    def source(self, module: str) -> bytes:
        """The source of a module of the package."""
        return (self.package / f"{module}.py").read_bytes()


def temporary() -> Path:
    """Where everything is kept that is kept."""
    user = getattr(os, "getuid", lambda: "user")()
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    path = Path(tempfile.gettempdir()) / f"redouble-mutation-{user}-{version}"
    path.mkdir(mode=0o700, exist_ok=True)
    return path


class Coverage:
    """Who executes what: tests by module and line."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        """How long each test takes; only tests that pass are here."""
        self._lines: dict[str, dict[str, int]] = {}
        self._imported: dict[str, int] = {}
        self._collected: dict[str, int] = {}

    def add(self, measured: dict[str, Any]) -> None:
        """Takes over what was measured in one test file."""
        names = list(measured["tests"])
        self.seconds.update(measured["tests"])
        for module, found in measured["modules"].items():
            lines = self._lines.setdefault(module, {})
            lines.update({names[int(index)]: int(bits, 16) for index, bits in found["lines"].items()})
            imported, collected = int(found["imported"], 16), int(found["collected"], 16)
            self._imported[module] = self._imported.get(module, imported) & imported
            self._collected[module] = self._collected.get(module, 0) | collected

    def tests(self, module: str, span: tuple[int, int] | None = None) -> set[str]:
        """The tests that execute any line of a span, or of the module."""
        wanted = -1 if span is None else _bits(range(span[0], span[1] + 1))
        return {test for test, bits in self._lines.get(module, {}).items() if bits & wanted}

    def imported(self, module: str, span: tuple[int, int]) -> bool:
        """Whether importing the package executes any line of a span."""
        return bool(self._imported.get(module, 0) & _bits(range(span[0], span[1] + 1)))

    def collected(self, module: str, span: tuple[int, int]) -> bool:
        """Whether importing the package or a test file executes any line of a span."""
        return bool(self._collected.get(module, 0) & _bits(range(span[0], span[1] + 1)))


def coverage_of(project: Project, modules: Iterable[str], files: list[Path], jobs: int) -> Coverage:
    """Measures what is not yet known of these modules."""
    wanted = {module: _digest(project.package / f"{module}.py") for module in modules}
    places = {file: temporary() / f"{file.stem}-{_digest(file)[:12]}-{FORMAT}.json" for file in files}
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
    """In a process of its own: runs one test file under coverage and writes down what it saw."""
    from coverage import Coverage as Tracer

    tell({"within": LONGEST_FILE})
    digests = {path.stem: _digest(path) for path in package.glob("*.py")}
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
    """Tells the tracer which test is running, and takes the time."""

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
        if path.parent != package:
            continue
        by_test, outside = dict[int, int](), {"": 0, "collecting": 0}
        for line, contexts in data.contexts_by_lineno(str(path)).items():
            for context in contexts:
                if context in numbers:
                    number = numbers[context]
                    by_test[number] = by_test.get(number, 0) | 1 << line
                elif context in outside:
                    outside[context] |= 1 << line
        found[path.stem] = {
            "lines": {number: f"{bits:x}" for number, bits in by_test.items()},
            "imported": f"{outside['']:x}",
            "collected": f"{outside[''] | outside['collecting']:x}",
        }
    return found
