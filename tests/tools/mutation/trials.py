"""Try a mutant: run tests against it in a new process.

There are two kinds.

- Warm: one process imports the package and the tests; every trial is a fork of it, in which the code of the mutated
  functions is exchanged. That takes milliseconds, and is correct for code that only tests run.
- Cold: every trial is a fork of a process that has imported neither; an import hook gives it the mutated module. That is
  correct for all code, and needed for code that runs at import: tables, defaults, decorators.

A trial runs one test after the other, and ends at the first that fails. A test must end within a multiple of the time
that it was measured to take. A test that fails is run again without the mutant, once per session: if it fails then, too,
it is not used any more.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import sys
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from mutation import planting
from mutation.processes import pool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import CodeType

    from mutation.mutants import Mutant
    from mutation.processes import Outcome, Tell

    Choose = Callable[[Mutant], list[str]]

TIMES, ON_TOP = 10.0, 3.0
"""The time limit of a test: TIMES its measured time plus ON_TOP seconds."""
BEFORE = 10
"""How many of the tests before it are run, too, when a failed test is run without the mutant."""
PLUGINS = ("cacheprovider", "faulthandler", "doctest", "junitxml", "pastebin", "stepwise", "setuponly")
CHUNKS = (1, 2, 4)
"""How many test files a cold trial collects at once, at the beginning."""


def prepare(root: Path, kept: Path) -> None:
    """Prepare this process for forking: import what every trial needs, and write nothing into the tree."""
    import asyncio  # noqa: F401 - imported once here instead of once in each trial
    import doctest  # noqa: F401
    import unittest.mock  # noqa: F401

    source = str(root / "src")
    os.chdir(root)
    sys.path.insert(0, source)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = str(kept / "hypothesis")
    sys.pycache_prefix = str(kept / "pycache")
    with contextlib.suppress(ImportError):
        from hypothesis import HealthCheck, Phase, settings

        checks = list(HealthCheck)
        settings.register_profile(
            "mutation",
            derandomize=True,
            database=None,
            deadline=None,
            max_examples=50,
            phases=[Phase.explicit, Phase.generate],  # one example will do, however long
            suppress_health_check=checks,
        )


def run_pytest(arguments: list[str], plugins: list[Any]) -> int:
    """Run pytest in this process, without output and without plugins that write files."""
    without = [part for name in PLUGINS for part in ("-p", f"no:{name}")]
    quiet = ["-q", "--tb=no", "--no-header", "--capture=sys", f"--rootdir={Path.cwd()}"]
    return int(pytest.main([*without, *quiet, *arguments], plugins=[_Profile(), *plugins]))


class _Profile:
    """Load the hypothesis profile of the trials, after conftest.py has loaded its own: the same examples every time."""

    def pytest_configure(self) -> None:
        if "hypothesis" in sys.modules:
            sys.modules["hypothesis"].settings.load_profile("mutation")


class Result(NamedTuple):
    """The result of trying a mutant."""

    mutant: Mutant
    status: str
    """``killed``, ``timeout`` or ``survived``; ``cold`` if only a cold trial can decide; ``broken``."""
    test: str
    """The test that failed."""
    detail: str = ""


class Task(NamedTuple):
    """A mutant to try; or tests to run without it."""

    mutant: Mutant
    check: list[str] | None = None


class Judge:
    """Try mutants, and check each failing test without the mutant."""

    def __init__(self, choose: Choose, jobs: int) -> None:
        self._choose = choose
        self._jobs = jobs
        self._trusted: set[str] = set()
        self._distrusted: set[str] = set()
        self._kills: dict[str, int] = {}
        self._suspects: dict[str, tuple[str, str]] = {}

    def results(
        self, mutants: Iterable[Mutant], work: Callable[[Mutant | None, list[str], Tell], None]
    ) -> Iterator[Result]:
        """Try all of them. ``work(mutant, tests, tell)`` is called in a new process."""
        waiting = deque(Task(mutant) for mutant in mutants)

        def start(task: Task, tell: Tell) -> None:
            if task.check is None:
                work(task.mutant, self._tests(task.mutant), tell)
            else:
                work(None, task.check, tell)

        for task, outcome in pool(waiting, self._jobs, start):
            judged = self._tried(task, outcome) if task.check is None else self._checked(task, outcome)
            if isinstance(judged, Result):
                yield judged
            else:
                waiting.appendleft(judged)

    def _tests(self, mutant: Mutant) -> list[str]:
        # A test that killed other mutants is likely to kill this one.
        tests = [test for test in self._choose(mutant) if test not in self._distrusted]
        return sorted(tests, key=lambda test: -min(self._kills.get(test, 0), 3))

    def _tried(self, task: Task, outcome: Outcome) -> Result | Task:
        mutant, told = task.mutant, outcome.told
        if "error" in told:
            return Result(mutant, "broken", "", told["error"])
        if "cold" in told:
            return Result(mutant, "cold", "")
        if outcome.ended == "done" and "failed" not in told:
            return Result(mutant, "survived", "")
        test = told.get("test", "")
        status = "timeout" if outcome.ended == "timeout" else "killed"
        if test in self._trusted:
            return self._killed(mutant, status, test)
        self._suspects[mutant.name] = status, test
        first = [test] if test else self._choose(mutant)[:1]
        return Task(mutant, told.get("ran", first))

    def _checked(self, task: Task, outcome: Outcome) -> Result | Task:
        mutant = task.mutant
        status, suspect = self._suspects.pop(mutant.name)
        if outcome.ended == "done" and "failed" not in outcome.told:
            self._trusted.add(suspect)
            return self._killed(mutant, status, suspect)
        test = outcome.told.get("test", "")
        if not test:
            error = outcome.told.get("error", "the tests cannot be run, even without a mutant")
            return Result(mutant, "broken", "", error)
        why = outcome.told.get("why", outcome.ended)
        print(f"not trusted, because it fails without a mutant: {test}: {why}", file=sys.__stderr__)
        self._distrusted.add(test)
        return Task(mutant)

    def _killed(self, mutant: Mutant, status: str, test: str) -> Result:
        self._kills[test] = self._kills.get(test, 0) + 1
        return Result(mutant, status, test)


class Bench:
    """The package, its sources and the times of the tests."""

    def __init__(self, package: Path, sources: dict[str, bytes], seconds: dict[str, float]) -> None:
        self.package = package
        self.sources = sources
        self.seconds = seconds

    def limit(self, test: str) -> float:
        """Return the time limit of a test."""
        return ON_TOP + TIMES * self.seconds.get(test, 1.0)

    def plant(self, mutant: Mutant) -> str:
        """Make importing the module import the mutant; return the full name of the module."""
        name = f"{self.package.name}.{mutant.module}"
        source = mutant.applied(self.sources[mutant.module])
        planting.hook(name, self._path(mutant.module), source)
        return name

    def compiled(self, module: str, mutant: Mutant | None = None) -> CodeType:
        """Return the code of a module, or of a mutant of it."""
        source = self.sources[module]
        return planting.compiled(source if mutant is None else mutant.applied(source), self._path(module))

    def _path(self, module: str) -> Path:
        return planting.file_of(self.package, module)


def cold(bench: Bench, mutant: Mutant | None, tests: list[str], tell: Tell) -> None:
    """Run the tests in a process that has imported nothing, some files at a time."""
    if mutant is not None:
        bench.plant(mutant)
    left = list(dict.fromkeys(_file(test) for test in tests))
    sizes = iter(CHUNKS)
    while left:
        size = next(sizes, 8)
        files, left = left[:size], left[size:]
        chosen = [test for test in tests if _file(test) in files]
        watch = _Watch(bench, chosen, tell)
        code = run_pytest(_arguments(chosen), [watch])
        if watch.failed or code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            tell({"failed": True})
            return


def _file(test: str) -> str:
    return test.partition("::")[0]


def _arguments(tests: list[str]) -> list[str]:
    """Return arguments of pytest: the functions of the tests, or whole files if they are many."""
    functions: dict[str, dict[str, None]] = {}
    for test in tests:
        functions.setdefault(_file(test), {})[test.partition("[")[0]] = None
    return [
        argument
        for file, chosen in functions.items()
        for argument in (chosen if len(chosen) < 20 else [file])
    ]


class _Watch:
    """A pytest plugin that runs the chosen tests in order, reports each name, and stops at the first failure."""

    def __init__(self, bench: Bench, tests: list[str], tell: Tell) -> None:
        self.failed = False
        self._bench = bench
        self._tests = tests
        self._tell = tell

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        known = {item.nodeid: item for item in items}
        items[:] = [known[test] for test in self._tests if test in known]

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if not session.testsfailed:
            self.run(session.items)
        return True

    def run(self, items: list[pytest.Item]) -> None:
        """Run the tests until one fails."""
        ran = []
        for item, following in zip(items, [*items[1:], None], strict=True):
            self._tell({"within": self._bench.limit(item.nodeid), "test": item.nodeid})
            ran.append(item.nodeid)
            try:
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            except BaseException:  # whatever a mutant does to the test run, it has been noticed
                self.failed = True
            if self.failed:
                self._tell({"failed": True, "ran": ran[-BEFORE:]})
                return

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed = True
            self._tell({"why": str(getattr(report.longrepr, "reprcrash", report.longrepr))[-500:]})


class Warm:
    """A pytest plugin that tries mutants with the collected tests, each in a fork, instead of running the tests."""

    def __init__(self, bench: Bench, judge: Judge, mutants: list[Mutant], tell: Callable[[Result], None]):
        self._bench = bench
        self._judge = judge
        self._mutants = mutants
        self._tell = tell
        self._items: dict[str, pytest.Item] = {}

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self._items = {item.nodeid: item for item in session.items}
        self._functions = planting.live_functions(self._bench.package)
        modules = {mutant.module for mutant in self._mutants}
        self._codes = {module: self._bench.compiled(module) for module in modules}
        self._plugins = session.config.pluginmanager
        gc.collect()
        gc.freeze()
        for result in self._judge.results(self._mutants, self._work):
            self._tell(result)
        return True

    def _work(self, mutant: Mutant | None, tests: list[str], tell: Tell) -> None:
        if mutant is not None and not self._planted(mutant):
            tell({"cold": True})
            return
        watch = _Watch(self._bench, tests, tell)
        self._plugins.register(watch)
        watch.run([self._items[test] for test in tests if test in self._items])

    def _planted(self, mutant: Mutant) -> bool:
        imported = self._bench.plant(mutant) in sys.modules
        if not imported:
            return True
        mutated = self._bench.compiled(mutant.module, mutant)
        return planting.exchange(self._functions, self._codes[mutant.module], mutated)


def run_warm(bench: Bench, judge: Judge, mutants: list[Mutant], files: list[str]) -> Iterator[Result]:
    """Try mutants in forks of a process that has collected the tests."""
    by_name = {mutant.name: mutant for mutant in mutants}
    here, there = os.pipe()
    pid = os.fork()
    if not pid:
        _be_warm(Warm(bench, judge, mutants, _writer(there)), files)
    os.close(there)
    try:
        with os.fdopen(here, encoding="utf-8") as lines:
            for line in lines:
                name, *rest = json.loads(line)
                yield Result(by_name.pop(name), *rest)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        os.waitpid(pid, 0)
    for mutant in by_name.values():
        yield Result(mutant, "cold", "")


def _writer(pipe: int) -> Callable[[Result], None]:
    def write(result: Result) -> None:
        line = json.dumps([result.mutant.name, *result[1:]])
        os.write(pipe, line.encode() + b"\n")

    return write


def _be_warm(warm: Warm, files: list[str]) -> None:
    """Collect the tests, try the mutants, and exit."""
    try:
        os.dup2(os.open(os.devnull, os.O_RDWR), 1)
        run_pytest(files, [warm])
    finally:
        os._exit(0)
