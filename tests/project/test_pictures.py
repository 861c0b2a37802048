"""The pictures of the documentation are what the code draws now, are on a page, and say what they show."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from pictures.draw import DASHBOARD_PAGE, DOCS, FOLDER, PICTURES, pictures

from conftest import not_under_coverage

SVG = "{http://www.w3.org/2000/svg}"
IMAGE = re.compile(r"!\[([^\]]+)\]\(([^)\s]+)\)")

# Diagrams show no measurement. A phone shows a picture about this many pixels wide.
DIAGRAMS = {"breaker.svg", "sequence.svg", "guards.svg"}
PHONE = 330

pytestmark = not_under_coverage
every_picture = pytest.mark.parametrize("name", PICTURES)


@pytest.fixture(scope="module")
def drawn() -> dict[str, str]:
    """All pictures as of now: drawn once, since some take a second."""
    return pictures()


def shown() -> dict[Path, list[str]]:
    """The words for those who cannot see them, by picture, of every page."""
    found: dict[Path, list[str]] = {}
    for page in (DOCS.parent / "README.md", *DOCS.rglob("*.md")):
        for words, target in IMAGE.findall(page.read_text("utf-8")):
            found.setdefault((page.parent / target).resolve(), []).append(" ".join(words.split()))
    return found


def texts(picture: ElementTree.Element) -> list[str]:
    return [text.text or "" for text in picture.iter(f"{SVG}text")]


@pytest.mark.slow
@every_picture
def test_a_picture_is_not_stale(name: str, drawn: dict[str, str]) -> None:
    assert (FOLDER / name).read_bytes() == drawn[name].encode(), "run: python tests/tools/pictures/draw.py"


def test_the_folder_has_the_pictures_that_are_drawn_and_no_others() -> None:
    assert {picture.name for picture in FOLDER.iterdir()} == set(PICTURES)


@every_picture
def test_a_picture_is_on_a_page_with_words_for_those_who_cannot_see_it(name: str) -> None:
    words = shown().get(FOLDER / name, [])
    assert words, f"no page shows {name}"
    assert all(len(said) > 60 for said in words)


def test_the_readme_shows_what_a_budget_is_for() -> None:
    readme = (DOCS.parent / "README.md").read_text("utf-8")
    shown = [target for _, target in IMAGE.findall(readme) if not target.startswith("docs/badges/")]
    assert shown == ["docs/images/metastable.svg"]


def test_the_words_for_the_herd_have_its_figures() -> None:
    said = " ".join(texts(ElementTree.fromstring((FOLDER / "herd.svg").read_bytes())))
    peaks = re.findall(r"jitter: up to (\d+) of 1,000", said)
    assert len(peaks) == 2
    for words in shown()[FOLDER / "herd.svg"]:
        assert set(re.findall(r"up to (\d+)", words)) == set(peaks)


@every_picture
def test_a_picture_has_a_title_and_a_caption_and_a_chart_names_its_seed(name: str) -> None:
    picture = ElementTree.fromstring((FOLDER / name).read_bytes())
    assert picture.tag == f"{SVG}svg"
    title = picture.find(f"{SVG}title")
    assert title is not None
    assert title.text
    caption = " ".join(
        text.text or "" for text in picture.iter(f"{SVG}text") if text.get("class") == "caption"
    )
    assert caption.endswith(".")
    assert name in DIAGRAMS or re.search(r"seed \d+\.$", caption)


@every_picture
def test_the_caption_of_a_picture_can_be_read_on_a_phone(name: str) -> None:
    text = (FOLDER / name).read_text("utf-8")
    width = int(ElementTree.fromstring(text).get("width", "0"))
    [size] = re.findall(r"\.caption{font-size:(\d+)px}", text)
    assert int(size) * PHONE / width >= 9


@every_picture
def test_no_text_of_a_picture_runs_out_of_it(name: str) -> None:
    picture = ElementTree.fromstring((FOLDER / name).read_bytes())
    width = float(picture.get("width", "0"))
    for text in picture.iter(f"{SVG}text"):
        x, room = float(text.get("x", "0")), 6.7 * len(text.text or "")
        left = x - room * {"end": 1.0, "middle": 0.5}.get(text.get("text-anchor", ""), 0.0)
        assert left >= 0, text.text
        assert left + room <= width, text.text


@every_picture
def test_a_picture_is_small_enough_for_a_page(name: str) -> None:
    assert (FOLDER / name).stat().st_size < 60_000


def test_the_dashboard_has_every_figure_of_the_table_on_its_page() -> None:
    page = DASHBOARD_PAGE.read_text("utf-8")
    code, _, rest = page.partition("print(counters.table())\n```\n\n```text\n")
    assert code.rpartition("```python")[2].count("Random(7)") == 1
    head, *rows = rest.partition("\n\n")[0].splitlines()
    assert head.split()[0] == "policy"
    said = " ".join(texts(ElementTree.fromstring((FOLDER / "dashboard.svg").read_bytes()))).replace(",", "")
    for row in rows:
        cells = re.split(r" {2,}", row)
        assert [cell for cell in cells if cell != "0" and cell not in said] == []
    assert "453 of 500" in rest
    assert "453 of 500 tokens" in said
    assert "breaker payments open" in said
