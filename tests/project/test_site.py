"""The built site: search finds the terms that people search for, code has readable colours, the API is complete.

``.ci/run`` builds the site and passes its folder as ``REDOUBLE_SITE``; without it only the colours are tested.
"""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = runpy.run_path(str(ROOT / "docs" / "_site" / "build.py"))
SITE = os.environ.get("REDOUBLE_SITE")
needs_site = pytest.mark.skipif(SITE is None, reason="no site to look at: .ci/run builds it")


def page(name: str) -> str:
    return Path(SITE or "", name).read_text("utf-8")


# Search

# What people type, and the page or section that must be ranked first.
FIRST = {
    "429": "reference/what-is-retried",
    "503": "reference/what-is-retried",
    "POST": "explanation/idempotency",
    "timeout": "reference/policy",
    "breaker": "reference/breaker",
    "circuit breaker": "reference/breaker",
    "deadline": "explanation/hints-and-deadlines",
    "retry-after": "explanation/hints-and-deadlines",
    "jitter": "explanation/why-jitter",
    "rate limit": "reference/throttle",
    "idempotency key": "explanation/idempotency",
    "budget": "reference/budget",
    "bulkhead": "reference/bulkhead",
    "hedging": "reference/hedging",
    "fallback": "reference/policy#fallback-something-instead-of-an-error",
    "dead letters": "how-to/keep-what-failed",
    "async": "how-to/async",
    "cancel": "how-to/async",
    "KeyboardInterrupt": "reference/retry",
    "generator": "faq#is-a-generator-retried",
    "pytest": "how-to/test-code-that-retries",
    "test": "how-to/test-code-that-retries",
    "mock sleep": "how-to/test-code-that-retries",
    "logging": "how-to/observe-retries",
    "prometheus": "how-to/observe-retries",
    "opentelemetry": "how-to/observe-retries",
    "redis": "how-to/databases",
    "psycopg": "how-to/databases",
    "deadlock": "how-to/databases",
    "sqlalchemy": "how-to/sqlalchemy",
    "celery": "how-to/celery",
    "django": "how-to/django",
    "fastapi": "how-to/fastapi",
    "kafka": "how-to/messaging",
    "websocket": "how-to/reconnect-for-ever",
    "llm": "how-to/llm-apis",
    "openai": "how-to/llm-apis",
    "anthropic": "how-to/llm-apis",
    "httpx": "how-to/http",
    "requests": "how-to/http",
    "aiohttp": "how-to/http",
    "grpc": "how-to/http",
    "boto3": "reference/clients/botocore",
    "tenacity": "coming-from/tenacity",
    "stamina": "coming-from/stamina",
    "max attempts": "reference/policy",
    "exponential backoff": "reference/backoff",
    "backoff": "reference/backoff",
    "decorator": "reference/retry",
    "install": "installation",
    "version": "reference/api-stability",
    "deprecation": "reference/api-stability",
    "cli": "reference/command-line",
    "command line": "reference/command-line",
    "faq": "faq",
    "not retried": "faq",
    "turn off": "faq",
    "disable": "faq",
    "why is my error not retried": "faq#why-is-my-error-not-retried",
    "how many requests": "faq#how-many-requests-did-it-send",
    "how many requests did it send": "faq#how-many-requests-did-it-send",
    "sync in async": "faq#can-i-use-a-sync-function-in-async-code",
    "which limit do I need": "faq#which-limit-do-i-need",
    "how do I turn it off": "faq#how-do-i-turn-it-off",
    "why did it wait": "faq#why-did-it-wait-so-long",
    "why did it wait so long": "faq#why-did-it-wait-so-long",
}

# The scripts of the site rank pages; this asks them in Node, with as much of a browser as they need for that.
ASK = """
const { readFileSync } = require("node:fs");
const [site, ...queries] = process.argv.slice(1);
Object.assign(globalThis, {
  SPHINX_HIGHLIGHT_ENABLED: false, _: (text) => text, _ready: () => {}, location: {}, window: globalThis,
  document: { getElementById: () => ({ lastChild: null }) },
});
const names = ["_static/language_data.js", "_static/searchtools.js", "searchindex.js"];
const scripts = names.map((name) => readFileSync(`${site}/${name}`, "utf-8")).join(";\\n");
const ask = new Function("query", `${scripts}; return Search._performSearch(...Search._parseQuery(query));`);
const found = queries.map((query) => {
  location.search = "?" + new URLSearchParams({ q: query });
  const best = ask(query).pop();
  return best ? best[0] + best[2] : null;
});
console.log(JSON.stringify(found));
"""


@pytest.fixture(scope="module")
def first_results() -> dict[str, str | None]:
    node = shutil.which("node")
    if node is None:
        pytest.skip("no Node to run the search of the site")
    command = [node, "--eval", ASK, "--", SITE or "", *FIRST]
    done = subprocess.run(command, capture_output=True, check=True, text=True, timeout=60)
    return dict(zip(FIRST, json.loads(done.stdout), strict=True))


@needs_site
@pytest.mark.parametrize("query", FIRST)
def test_search_ranks_what_answers_first(query: str, first_results: dict[str, str | None]) -> None:
    assert first_results[query] == FIRST[query]


@pytest.fixture(scope="module")
def index() -> dict[str, Any]:
    text = page("searchindex.js")
    return json.loads(text[text.index("(") + 1 : text.rindex(")")])


@needs_site
@pytest.mark.parametrize("place", BUILD["SEARCH_TERMS"])
def test_search_has_the_terms_of_a_page_in_its_index(place: str, index: dict[str, Any]) -> None:
    for term in BUILD["SEARCH_TERMS"][place]:
        entries = index["indexentries"].get(term.lower(), [])
        pages = {index["docnames"][file] for file, _, is_main in entries if is_main}
        assert place.removesuffix(".md") in pages, term


def test_search_takes_terms_from_the_map_of_the_documentation() -> None:
    terms = BUILD["terms_of_the_map"]()
    assert {"OpenAI", "Anthropic", "LLM APIs"} <= set(terms["how-to/llm-apis.md"])
    assert terms["reference/budget.md"] == ["budget"]


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


@needs_site
@pytest.mark.parametrize("module", BUILD["MODULES"])
def test_the_api_shows_every_name_that_a_module_exports(module: str) -> None:
    shown = set(re.findall(r'id="([\w.]+)"', page(f"api/{module}.html")))
    exported = getattr(import_module(module), "__all__", [])
    assert [name for name in exported if f"{module}.{name}" not in shown] == []
    assert [name for name in shown if name.startswith(f"{module}._")] == []


@needs_site
def test_the_api_shows_the_members_of_enumerations() -> None:
    assert 'id="redouble.classify.Cause.rate_limited"' in page("api/redouble.classify.html")


@needs_site
def test_the_api_shows_the_fixtures_for_pytest() -> None:
    assert "redouble_clock" in page("api/redouble.testing.plugin.html")


@needs_site
@pytest.mark.parametrize(
    "name",
    ["index.html", "faq.html", "reference/policy.html", "api/redouble.html", "api/redouble.breaker.html",
     "api/redouble.testing.plugin.html", "examples/index.html", "examples/payments.html"],
)  # fmt: skip
def test_a_page_has_a_description_an_icon_and_a_copy_button(name: str) -> None:
    text = page(name)
    [description] = re.findall(r'<meta content="([^"]*)" name="description"', text)
    assert 40 < len(description) <= 160
    assert "favicon.svg" in text
    assert "copy.js" in text


def test_the_words_for_a_picture_stay_words_where_a_line_ends() -> None:
    link = BUILD["LINK"].search("![three\npanels](images/herd.svg)")
    assert BUILD["one_line"](link)["text"] == "three panels"


@needs_site
def test_brackets_in_code_are_no_links_and_pages_are_whole() -> None:
    """Nothing after an unmatched bracket in code is lost, such as ``[2J`` in what a terminal gets."""
    for source in (ROOT / "docs").rglob("*.md"):
        text = re.sub(r"^(`{3,}).*?^\1$", "", source.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
        sections = page(source.relative_to(ROOT / "docs").with_suffix(".html").as_posix()).count(
            "<section id="
        )
        assert sections >= len(re.findall(r"^#{1,6} ", text, re.MULTILINE)), source


def test_links_of_the_readme_become_absolute_but_not_brackets_in_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    builder = ModuleType("hatchling.metadata.plugin.interface")  # installed only where the package is built
    monkeypatch.setattr(builder, "MetadataHookInterface", object, raising=False)
    monkeypatch.setitem(sys.modules, builder.__name__, builder)
    absolute = runpy.run_path(str(ROOT / "docs" / "_site" / "readme.py"))["with_absolute_links"]
    code = "```python\nhandlers[name](request)\n```\n"
    text = code + "[all\npages](docs/index.md), ![a picture](docs/images/herd.svg), [below](#licence)"
    assert absolute(text, "https://host/us") == code + (
        "[all\npages](https://host/us/blob/main/docs/index.md), "
        "![a picture](https://host/us/raw/main/docs/images/herd.svg), [below](#licence)"
    )
