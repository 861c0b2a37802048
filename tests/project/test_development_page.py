"""The page for developers names paths that exist, every package, and the import rule as the test has it."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "redouble"
PAGE = (ROOT / "docs" / "development" / "index.md").read_text("utf-8")


def test_every_path_on_the_page_exists() -> None:
    named = set(re.findall(r"`(?:python )?((?:[\w.]+/)+[\w.-]*|\w+\.py)`", PAGE))
    assert named >= {"policy.py", "_engine/flow.py", "tests/unit/", "tests/tools/benchmarks/bench.py"}
    homes = (ROOT, PACKAGE, ROOT / "tests")
    assert [path for path in sorted(named) if not any((home / path).exists() for home in homes)] == []


def test_every_package_and_module_at_the_root_is_on_the_map() -> None:
    table = PAGE.partition("## The tree")[2].partition("\n## ")[0]
    here = {path.name + "/" * path.is_dir() for path in PACKAGE.iterdir()}
    here -= {"__init__.py", "__main__.py", "__pycache__/", "py.typed"}
    assert {name for name in here if f"`{name}`" not in table} == set()


def test_the_import_rule_on_the_page_is_the_rule_of_the_test() -> None:
    rule = (ROOT / "tests" / "project" / "test_layers.py").read_text("utf-8")
    layers = rule.partition('LAYERS = """')[2].partition('"""')[0]
    assert f"```text{layers}```" in PAGE
