"""The built site: search finds the terms that people search for, code has readable colours, the API is complete.

``.ci/run`` builds the site and passes its folder as ``REDOUBLE_SITE``; without it only the colours are tested.
"""

from __future__ import annotations

import json
import os
import re
import runpy
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SITE = os.environ.get("REDOUBLE_SITE")
needs_site = pytest.mark.skipif(SITE is None, reason="no site to look at: .ci/run builds it")


def page(name: str) -> str:
    return Path(SITE or "", name).read_text("utf-8")


# Search

# The page that must be ranked first, for each term.
FIRST = {
    "429": "reference/what-is-retried",
    "timeout": "reference/policy",
    "post": "explanation/idempotency",
    "breaker": "reference/breaker",
    "circuit breaker": "reference/breaker",
    "deadline": "explanation/hints-and-deadlines",
    "faq": "faq",
}


@pytest.fixture(scope="module")
def index() -> dict[str, Any]:
    text = page("searchindex.js")
    return json.loads(text[text.index("(") + 1 : text.rindex(")")])


@needs_site
@pytest.mark.parametrize("term", FIRST)
def test_search_ranks_the_page_that_answers_first(term: str, index: dict[str, Any]) -> None:
    # A main entry of the index that is the whole query scores 100, more than titles (15) and words (5).
    pages = [index["docnames"][file] for file, _, is_main in index["indexentries"].get(term, []) if is_main]
    assert pages == [FIRST[term]]


@needs_site
@pytest.mark.parametrize("number", ["429", "503", "404"])
def test_search_finds_numbers_among_other_words(number: str, index: dict[str, Any]) -> None:
    assert f"no{number}" in index["terms"]
    assert '"no" + term' in page("_static/language_data.js")


# Colours

CONF = (ROOT / "docs" / "_site" / "conf.py").read_text("utf-8")


def luminance(colour: str) -> float:
    """Return the relative luminance of ``rrggbb``, as WCAG 2 defines it."""
    parts = [int(colour[start : start + 2], 16) / 255 for start in (0, 2, 4)]
    red, green, blue = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted([luminance(one), luminance(other)])
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("setting", ["pygments_style", "pygments_dark_style"])
def test_every_colour_of_code_has_a_contrast_of_four_and_a_half(setting: str) -> None:
    pytest.importorskip("a11y_pygments")
    from pygments.styles import get_style_by_name

    [name] = re.findall(rf'^{setting} = "([^"]+)"', CONF, re.MULTILINE)
    style = get_style_by_name(name)
    paper = style.background_color.removeprefix("#")
    bad = {
        str(token): round(contrast(look["color"], look["bgcolor"] or paper), 2)
        for token, look in style
        if look["color"] and contrast(look["color"], look["bgcolor"] or paper) < 4.5
    }
    assert bad == {}


def test_contrast_is_that_of_the_guidelines() -> None:
    assert contrast("000000", "ffffff") == pytest.approx(21.0)
    assert contrast("777777", "ffffff") == pytest.approx(4.48, abs=0.01)


# Pages

BUILD = runpy.run_path(str(ROOT / "docs" / "_site" / "build.py"))


@needs_site
@pytest.mark.parametrize("module", BUILD["MODULES"])
def test_the_api_shows_every_name_that_a_module_exports(module: str) -> None:
    shown = set(re.findall(r'id="([\w.]+)"', page(f"api/{module}.html")))
    exported = getattr(import_module(module), "__all__", [])
    assert [name for name in exported if f"{module}.{name}" not in shown] == []
    assert [name for name in shown if name.startswith(f"{module}._")] == []


@needs_site
def test_the_api_shows_the_fixtures_for_pytest() -> None:
    assert "redouble_clock" in page("api/redouble.testing.plugin.html")


@needs_site
@pytest.mark.parametrize("name", ["index.html", "faq.html", "reference/policy.html"])
def test_a_page_has_a_description_an_icon_and_a_copy_button(name: str) -> None:
    text = page(name)
    [description] = re.findall(r'<meta content="([^"]*)" name="description"', text)
    assert 40 < len(description) <= 160
    assert "favicon.svg" in text
    assert "copy.js" in text


def test_the_words_for_a_picture_stay_words_where_a_line_ends() -> None:
    link = BUILD["LINK"].search("![three\npanels](images/herd.svg)")
    assert BUILD["one_line"](link)["text"] == "three panels"
