"""Every link in the documentation has a target, as code hosts resolve it.

Text in code is not a link. Anchors of headings are made as by code hosts: lower case, hyphens for blanks, no punctuation,
and a number after a name that the page has already.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

FENCED = re.compile(r"^ *(```+|~~~+).*?^ *\1 *$", re.DOTALL | re.MULTILINE)
INLINE_CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^()\s]*(?:\([^()\s]*\)[^()\s]*)*)\)")
NOT_UNDERSTOOD = re.compile(r"\]\[|^ *\[[^\]]+\]: |<(?:a|img)\b|\]\([^)]*\s", re.MULTILINE)
HEADING = re.compile(r"^#{1,6} +(.+?)(?: +#+)?$", re.MULTILINE)
MACHINE_PATH = re.compile(r"file://|(?<![\w/.:-])(?:/(?:home|root|tmp|Users|work|mnt|opt)\b|[A-Z]:\\\\?\w)")

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def without_fences(text: str) -> str:
    return FENCED.sub("", text)


def prose(text: str) -> str:
    """Return the text without code; code in the text of a link is replaced by a word, so that the link still has a text."""
    return INLINE_CODE.sub("code", without_fences(text))


def anchors(page: Path) -> set[str]:
    """Return the anchors of the headings of a page."""
    seen: Counter[str] = Counter()
    found = set()
    for heading in HEADING.findall(without_fences(page.read_text("utf-8"))):
        shown = LINK.sub(r"\2", heading)
        name = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        found.add(f"{name}-{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return found


def is_elsewhere(target: str) -> bool:
    return target.startswith(("https://", "http://", "mailto:"))


def trouble_with(link: tuple[str, str, str], page: Path, root: Path = ROOT) -> str | None:
    """Return what is wrong with a link, or ``None``."""
    image, text, target = link
    if not text.strip():
        return "has no text" if not image else "has no text for those who cannot see it"
    if is_elsewhere(target):
        return "is not encrypted" if target.startswith("http://") else None
    path, _, anchor = target.partition("#")
    found = (page.parent / path).resolve() if path else page
    if not target or not found.exists():
        return "leads nowhere"
    if not found.is_relative_to(root) or path.startswith("/"):
        return "leads out of the project"
    if anchor and (found.suffix != ".md" or anchor not in anchors(found)):
        return "leads to a heading that is not there"
    return None


def troubles(page: Path, root: Path = ROOT) -> list[str]:
    text = prose(page.read_text("utf-8"))
    found = [
        f"{link[2] or link[1]} {trouble}"
        for link in LINK.findall(text)
        if (trouble := trouble_with(link, page, root)) is not None
    ]
    return found + [
        f"{match.strip()} is a link of a kind that is not checked" for match in NOT_UNDERSTOOD.findall(text)
    ]


@every_page
def test_every_link_leads_somewhere(page: Path) -> None:
    assert troubles(page) == []


@every_page
def test_no_page_names_a_path_of_some_machine(page: Path) -> None:
    assert MACHINE_PATH.findall(page.read_text("utf-8")) == []


@pytest.mark.parametrize(
    ("heading", "name"),
    [
        ("on: what is retried", "on-what-is-retried"),
        ("Why waits are outside of `except`", "why-waits-are-outside-of-except"),
        ("idempotent: may it act twice?", "idempotent-may-it-act-twice"),
        ("current_attempt", "current_attempt"),
        ("at-least-once & co.", "at-least-once--co"),
        ("The [budget](budget.md) page", "the-budget-page"),
        ("Closed ##", "closed"),
    ],
)
def test_headings_are_named_as_on_code_hosts(tmp_path: Path, heading: str, name: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"## {heading}\n", "utf-8")
    assert anchors(page) == {name}


def test_a_heading_that_comes_twice_has_a_number_the_second_time(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Alike\n\n## Alike\n\n```sh\n# Alike, but a comment\n```\n", "utf-8")
    assert anchors(page) == {"alike", "alike-1"}


@pytest.mark.parametrize(
    ("text", "trouble"),
    [
        ("[gone](gone.md)", "gone.md leads nowhere"),
        ("[gone](other.md#gone)", "other.md#gone leads to a heading that is not there"),
        ("[gone](#gone)", "#gone leads to a heading that is not there"),
        ("[out](../)", "../ leads out of the project"),
        ("[](other.md)", "other.md has no text"),
        ("[plain](http://example.com)", "http://example.com is not encrypted"),
        ("[empty]()", "empty leads nowhere"),
        ("![](picture.svg)", "picture.svg has no text for those who cannot see it"),
        ("![a herd](gone.svg)", "gone.svg leads nowhere"),
        ("two\n[lines\nof text](gone.md)", "gone.md leads nowhere"),
        ("[`code`](gone.md)", "gone.md leads nowhere"),
        ('<img src="picture.svg">', "<img is a link of a kind that is not checked"),
        ("[text][reference]", "][ is a link of a kind that is not checked"),
        ('[titled](other.md "Title")', "](other.md is a link of a kind that is not checked"),
    ],
)
def test_a_bad_link_is_found(tmp_path: Path, text: str, trouble: str) -> None:
    assert troubles(a_page_with(tmp_path, text), tmp_path) == [trouble]


@pytest.mark.parametrize(
    "text",
    [
        "[other](other.md), [its heading](other.md#the-other), [this one](#this) and [a folder](.)",
        "![a herd](picture.svg) and [![a herd](picture.svg)](other.md)",
        "[elsewhere](https://example.com/a_(b)#c)",
        "`[no link](gone.md)`, ``[no `link`](gone.md)`` and `list[int](3)`",
        "```text\n[no link](gone.md)\n```",
    ],
)
def test_a_good_link_is_left_alone(tmp_path: Path, text: str) -> None:
    assert troubles(a_page_with(tmp_path, text), tmp_path) == []


def a_page_with(folder: Path, text: str) -> Path:
    (folder / "other.md").write_text("# The other\n", "utf-8")
    (folder / "picture.svg").touch()
    page = folder / "page.md"
    page.write_text(f"# This\n\n{text}\n", "utf-8")
    return page


@pytest.mark.parametrize("text", ["see /home/ada/notes", "file:///etc/motd", "C:\\Users\\ada", "in `/tmp/x`"])
def test_a_path_of_some_machine_is_found(text: str) -> None:
    assert MACHINE_PATH.search(text)


@pytest.mark.parametrize("text", ["GET /news", "https://example.com/home/x", "and/or", "../tmp/x"])
def test_a_path_of_no_machine_is_left_alone(text: str) -> None:
    assert not MACHINE_PATH.search(text)
