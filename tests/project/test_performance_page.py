"""The page on performance has the limits that the benchmark checks. Its times are those of one machine."""

from __future__ import annotations

import re

from benchmarks.bench import TOLERANCE, allowed
from benchmarks.cases import GOALS

import redouble
from support.pages import DOCS

PAGE = (DOCS / "explanation" / "performance.md").read_text("utf-8")


def test_the_page_has_every_limit_of_the_benchmark_and_no_other() -> None:
    limits = PAGE.partition("## Limits")[2].replace("µs", "us")
    rows = re.findall(
        r"^\| ([^|]+) \| ([\d.]+ x|1/\d+|\+[\d.]+ us) \| ([^|]+) \|$", limits, flags=re.MULTILINE
    )
    assert rows == [(goal.path, allowed(goal), goal.against) for goal in GOALS]


def test_the_page_names_the_tolerance_of_the_benchmark() -> None:
    assert f"a tolerance of {round((TOLERANCE - 1) * 100)} %" in PAGE


def test_the_page_names_the_version_that_was_measured() -> None:
    assert f"redouble {redouble.__version__}" in PAGE
