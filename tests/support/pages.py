"""Read the pages of the documentation: their fenced blocks and what each is for."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
DOCS = ROOT / "docs"
PAGES = [README, *sorted(DOCS.rglob("*.md"))]

NEEDS = "python needs "
HAD = "python had"


@dataclass
class Block:
    """One fenced block of a page: what follows the fence, its text, and the line of the fence."""

    fence: str
    text: str
    line: int

    @property
    def is_code(self) -> bool:
        """True if the block is code that uses redouble."""
        return self.fence.startswith("python") and not self.was_had

    @property
    def was_had(self) -> bool:
        """True if the block is code for another library, which the reader comes from."""
        return self.fence == HAD or self.fence.startswith(f"{HAD} ")

    @property
    def needs(self) -> str | None:
        """The package that the block needs, if it is not installed."""
        package = self.fence.removeprefix(NEEDS)
        if package == self.fence:
            return None
        try:
            found = importlib.util.find_spec(package)
        except ModuleNotFoundError:  # its parent package is not installed
            found = None
        return package if found is None else None


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page, in order."""
    found: list[Block] = []
    inside: Block | None = None
    for number, line in enumerate(page.read_text("utf-8").splitlines(), start=1):
        if not line.startswith("```"):
            if inside is not None:
                inside.text += line + "\n"
        elif inside is None:
            inside = Block(line[3:], "", number)
        else:
            found.append(inside)
            inside = None
    assert inside is None, f"{page.name}: the block of line {inside and inside.line} never ends"
    return found


def pairs(found: list[Block]) -> Iterator[tuple[Block, Block | None]]:
    """Yield each block with the one that follows it."""
    yield from zip(found, [*found[1:], None], strict=False)


def without_figures(text: str) -> str:
    """Replace times such as ``0.63 s``, which are random or measured, by ``0.0 s``; pages may wrap long lines."""
    return " ".join(re.sub(r"\d+\.\d+ s\b", "0.0 s", text).split())
