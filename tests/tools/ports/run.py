"""Move other projects to redouble and run their own tests before and after.

    python tests/tools/ports/run.py                  all projects
    python tests/tools/ports/run.py kombu gql        these
    python tests/tools/ports/run.py --work DIR ...   keep environments and sources in DIR, and use those that are there
    python tests/tools/ports/run.py --jobs 2         two projects at a time

Each project has a file in `projects`: the pinned source archive, the statements that are replaced, the tests that are run;
and one in `requirements`: every package of its environment, pinned. The archive comes from the package index. The tests
stay as they are, may talk to this machine only, and use redouble from this checkout. A test that fails is run once more,
since some of them measure real time. A last run with retries switched off shows how many of the tests need them.

Exits with 1 if a test fails before the move, or passes before and not after it. Tests that a project's table names as
tests of the replaced code are not run after the move.
"""

from __future__ import annotations

import argparse
import importlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path.insert(0, str(HERE.parent))

from ports.edits import Port  # noqa: E402

PROJECTS = sorted(path.stem for path in (HERE / "projects").glob("[!_]*.py"))
PLUGIN, NO_RETRIES = "loopback_only", "no_retries"
DISABLE = "from redouble.testing import retries_disabled\n\nretries_disabled(everywhere=True).__enter__()\n"
# Seconds for the tests of one project: a move that goes wrong may retry for ever.
LONGEST = 240


def port_of(name: str) -> Port:
    port = importlib.import_module(f"ports.projects.{name}").PORT
    assert isinstance(port, Port)
    return port


@dataclass
class Result:
    """Outcomes of one run of a project's tests, by test."""

    outcomes: dict[str, str]
    seconds: float

    def those(self, outcome: str) -> set[str]:
        return {test for test, its in self.outcomes.items() if its == outcome}


def run(*command: str | Path, cwd: Path | None = None) -> None:
    """Run a command; print its output only if it fails."""
    done = subprocess.run([*map(str, command)], cwd=cwd, text=True, capture_output=True, check=False)
    if done.returncode != 0:
        print(done.stdout, done.stderr, sep="\n")
        raise SystemExit(f"{' '.join(map(str, command))}: exit status {done.returncode}")


def environment(port: Port, work: Path) -> Path:
    """Make the environment of a project. Return its interpreter."""
    home = work / port.name / "environment"
    python = home / "bin" / "python"
    if not python.exists():
        run(sys.executable, "-m", "venv", "--without-pip", home)
        pinned = HERE / "requirements" / f"{port.name}.txt"
        pip = (sys.executable, "-m", "pip", "--python", python)
        run(*pip, "install", "--no-deps", "--no-compile", "-r", pinned)
    return python


def source(port: Port, work: Path) -> Path:
    """Download the source archive and unpack it. Return its folder."""
    home = work / port.name / "before"
    if not home.exists():
        pinned = work / port.name / "archive.txt"
        pinned.write_text(f"{port.name}=={port.version} --hash=sha256:{port.sha256}\n")
        archives = work / port.name / "archives"
        only_source = ("--no-deps", "--no-binary", port.name, "-d", archives)
        run(sys.executable, "-m", "pip", "download", *only_source, "-r", pinned)
        [archive] = archives.iterdir()
        with tarfile.open(archive) as opened:
            opened.extractall(work / port.name / "unpacked", filter="data")
        [unpacked] = (work / port.name / "unpacked").iterdir()
        for name, text in port.extra_files.items():
            (unpacked / name).write_text(text, "utf-8")
        unpacked.rename(home)
    return home


def run_tests(port: Port, python: Path, tree: Path, *, retries: bool = True) -> Result:
    """Run the tests of a project with its package from `tree` and redouble from the checkout."""
    plugins = tree.parent / "plugins"
    plugins.mkdir(exist_ok=True)
    guard = (ROOT / "tests" / "support" / "network_guard.py").read_text("utf-8")
    (plugins / f"{PLUGIN}.py").write_text(guard + "\ninstall()\n", "utf-8")
    (plugins / f"{NO_RETRIES}.py").write_text(DISABLE, "utf-8")
    report = tree.parent / "report.xml"
    report.unlink(missing_ok=True)
    path = os.pathsep.join(map(str, (tree / port.source, ROOT / "src", plugins)))
    programs = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
    options = ["-q", "-p", PLUGIN, "-p", "no:cacheprovider", f"--junitxml={report}", *port.tests]
    if not retries:
        options += ["-p", NO_RETRIES]
    if tree.name == "after":
        options += [f"--deselect={test}" for test in port.others]
    began = time.monotonic()
    done = subprocess.run(
        [python, "-m", "pytest", *options],
        cwd=tree,
        env={
            **os.environ,
            "PATH": programs,
            "PYTHONPATH": path,
            "PYTHONPYCACHEPREFIX": str(tree.parent / "byte-code"),
        },
        text=True,
        capture_output=True,
        check=False,
        timeout=LONGEST,
    )
    if done.returncode not in (0, 1) or not report.exists():
        raise SystemExit(f"{port.name}: pytest ended with {done.returncode}\n{done.stdout}\n{done.stderr}")
    (tree.parent / f"{tree.name}.log").write_text(done.stdout, "utf-8")
    cases = ElementTree.parse(report).iter("testcase")
    return Result({name_of(case): outcome_of(case) for case in cases}, time.monotonic() - began)


def name_of(case: ElementTree.Element) -> str:
    return f"{case.get('classname')}::{case.get('name')}"


def outcome_of(case: ElementTree.Element) -> str:
    found = {child.tag for child in case}
    return "failed" if found & {"failure", "error"} else "skipped" if "skipped" in found else "passed"


def tested(port: Port, python: Path, tree: Path) -> Result:
    """Run the tests; those that fail once more, since some measure real time."""
    result = run_tests(port, python, tree)
    if result.those("failed"):
        again = run_tests(port, python, tree)
        for test in result.those("failed"):
            result.outcomes[test] = again.outcomes.get(test, "failed")
    return result


def moved(name: str, work: Path) -> list[str]:
    """Move one project, print what was measured, and return what is wrong."""
    port = port_of(name)
    (work / name).mkdir(exist_ok=True)
    began = time.monotonic()
    python, before = environment(port, work), source(port, work)
    ready = time.monotonic() - began
    after = work / name / "after"
    shutil.rmtree(after, ignore_errors=True)
    shutil.copytree(before, after)
    gone, come = port.apply(after)
    first, second = tested(port, python, before), tested(port, python, after)
    third = run_tests(port, python, after, retries=False)
    text = [f"{port.name} {port.version}: {gone} lines of retry code before, {come} after"]
    for when, result in ("before", first), ("after", second):
        counts = ", ".join(f"{len(result.those(its))} {its}" for its in ("passed", "failed", "skipped"))
        text.append(f"  {when:6} {counts} in {result.seconds:.1f} s")
    text.append(f"  {len(third.those('failed'))} of them fail with retries switched off")
    text.append(f"  environment and source in {ready:.0f} s")
    text += [f"  not run after the move: {test}: {reason}" for test, reason in port.others.items()]
    # At once: two projects may be under way.
    print("\n".join(text), flush=True)
    return wrong(port, first, second)


def wrong(port: Port, before: Result, after: Result) -> list[str]:
    """Return one line for each test that is not as it must be."""
    lost = before.those("passed") - after.those("passed") - {junit_name(test) for test in port.others}
    return [
        *(f"{port.name}: {test} fails before the move" for test in sorted(before.those("failed"))),
        *(f"{port.name}: {test} passes before the move, but not after it" for test in sorted(lost)),
    ]


def junit_name(test: str) -> str:
    """Return the name that a report has for a test: ``a/b.py::C::d`` is ``a.b.C::d``."""
    *home, name = test.replace(".py::", "::").replace("/", ".").split("::")
    return f"{'.'.join(home)}::{name}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("projects", nargs="*", metavar="PROJECT", help=", ".join(PROJECTS))
    parser.add_argument("--work", type=Path, help="keep environments and sources here")
    parser.add_argument(
        "--jobs", type=int, default=1, help="projects at a time; much of their time is waiting"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        work = (options.work or Path(temporary)).resolve()
        work.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(options.jobs) as pool:
            found = list(pool.map(partial(moved, work=work), options.projects or PROJECTS))
    troubles = [line for lines in found for line in lines]
    print(*troubles, sep="\n")
    return 1 if troubles else 0


if __name__ == "__main__":
    sys.exit(main())
