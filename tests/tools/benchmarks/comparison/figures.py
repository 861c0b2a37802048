"""Figures of the libraries: version, dependencies, size, times."""

from __future__ import annotations

import contextlib
import re
from importlib.metadata import requires
from pathlib import Path

from .. import bench, cases
from ..timing import best_of, coldest_of
from .base import Library


def package(library: Library) -> Path:
    return Path(library.it.__file__).parent


def source(library: Library) -> str:
    return "\n".join(path.read_text("utf-8") for path in sorted(package(library).rglob("*.py")))


def lines_of(library: Library) -> int:
    return sum(len(path.read_text("utf-8").splitlines()) for path in package(library).rglob("*.py"))


def dependencies(library: Library) -> list[str]:
    if library.name == "redouble":  # may run from a checkout, which has no metadata
        return []
    return [
        re.split(r"[^\w.-]", entry)[0] for entry in requires(library.name) or [] if "extra ==" not in entry
    ]


def version(library: Library) -> str:
    return library.it.__version__ if library.name == "redouble" else bench.version_of(library.name)


def timings(libraries: list[Library], rounds: int, import_rounds: int) -> dict[str, dict[str, str]]:
    contest = bench.assemble()
    names = [library.name for library in libraries]
    rows: dict[str, dict[str, str]] = {}
    imports = coldest_of({name: f"import {name}" for name in names}, import_rounds)
    rows["import, ms"] = {name: rounded(ns / 1e6) for name, ns in imports.items()}
    shown = {
        "a sync success, ns": (cases.SYNC, 1),
        "an async success, ns": (cases.ASYNC, 1),
        "three failures, then a success, µs": (cases.FAILING, 1000),
    }
    for row, (path, unit) in shown.items():
        here = {name: case for name, case in contest.on(path).items() if name in names}
        with contextlib.ExitStack() as stack:
            if path == cases.FAILING:
                stack.enter_context(cases.time_sleep_skipped())
            found = best_of(bench.samplers_for(path, here, stack), rounds)
        rows[row] = {name: rounded(ns / unit) for name, ns in found.items()}
    return rows


def rounded(number: float) -> str:
    """Round to two significant digits: the third is noise."""
    return f"{float(f'{number:.2g}'):,.0f}"


def sizes(libraries: list[Library]) -> dict[str, dict[str, str]]:
    return {
        "version": {library.name: version(library) for library in libraries},
        "depends on": {library.name: ", ".join(dependencies(library)) or "nothing" for library in libraries},
        "lines of Python": {library.name: rounded(lines_of(library)) for library in libraries},
    }
