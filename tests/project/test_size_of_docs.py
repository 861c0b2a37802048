"""The documentation stays short: its pages, its words, and the columns of its code."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from support.pages import DOCS, PAGES, ROOT, blocks

if TYPE_CHECKING:
    from pathlib import Path

# For users; the pages about development and about single clients are not counted.
COUNTED = [page for page in DOCS.rglob("*.md") if not {"development", "clients"} & set(page.parts)]
NAMES = {page.relative_to(ROOT).as_posix(): page for page in PAGES}
COLUMNS = 88


def words(text: str) -> int:
    """Return the number of words outside of code blocks."""
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    return len(re.findall(r"[A-Za-z][\w'-]*", prose))


def too_wide(page: Path) -> list[str]:
    """Return the lines of code that scroll sideways on a screen of 1280 pixels."""
    return [line for block in blocks(page) for line in block.text.splitlines() if len(line) > COLUMNS]


def test_there_are_at_most_sixty_thousand_words() -> None:
    assert sum(words(page.read_text("utf-8")) for page in COUNTED) <= 60_000


def test_there_are_at_most_sixty_pages() -> None:
    assert len(COUNTED) <= 60


def test_words_of_code_blocks_and_marks_of_tables_are_not_counted() -> None:
    assert words("| two words |\n|---|\n\n```python\nprint(1)\n```\n\nIt's `one` 3\n") == 4


@pytest.mark.parametrize("page", sorted(NAMES))
def test_code_on_a_page_has_at_most_88_columns(page: str) -> None:
    assert too_wide(NAMES[page]) == []
