"""The badges of the README say what pyproject.toml says, and the README shows all of them."""

from __future__ import annotations

import re

import pytest
from pictures.badges import FOLDER, ROOT, badges, facts


@pytest.mark.parametrize("name", sorted(badges()))
def test_a_badge_is_not_stale(name: str) -> None:
    assert (FOLDER / name).read_bytes() == badges()[name].encode(), (
        "run: python tests/tools/pictures/badges.py"
    )


def test_the_readme_shows_every_badge_with_its_words() -> None:
    shown = re.findall(r"!\[([^\]]+)\]\(docs/badges/([^)]+)\)", (ROOT / "README.md").read_text("utf-8"))
    assert shown == [(f"{name}: {value}", f"{file}.svg") for file, (name, value) in facts().items()]


def test_there_is_no_badge_that_is_not_drawn() -> None:
    assert {path.name for path in FOLDER.iterdir()} == set(badges())


def test_ci_fails_below_the_coverage_that_the_badge_names() -> None:
    assert "coverage report" in (ROOT / ".ci" / "run").read_text("utf-8")
    assert facts()["coverage"][1] == "100 % of branches"
