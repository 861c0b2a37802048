"""Run the code of the documentation and compare its output; compare its tables with the library.

How a page is read:

- Blocks fenced as ``python`` are run in order, in one namespace per page, without waiting.
- ``python own-time``: the same, but time is not faked, because the block has its own clock.
- ``python needs NAME``: run if the package is installed, otherwise skipped, and the skip names the package.
- ``python had`` or ``python had NAME``: code that a reader comes from, plain or for another library.
  ``test_coming_from.py`` runs it, and the tables of those pages.
- A block with ``>>>`` is a doctest. For any other block, a ``text`` block that follows it is its output; times such
  as ``0.63 s`` are random or measured and are not compared.
- No other fence may hold code.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import re
import sys
import types
import warnings
from typing import TYPE_CHECKING, Any

import pytest

import redouble
from redouble import (
    backoff,
    breaker,
    budget,
    bulkhead,
    classify,
    dead_letters,
    errors,
    events,
    hedging,
    metrics,
    presets,
    registry,
    shared,
    simulate,
    testing,
    throttle,
)
from redouble.classify._table_statuses import STATUS_CAUSES
from support.pages import DOCS, NEEDS, PAGES, README, ROOT, Block, blocks, pairs, without_figures

if TYPE_CHECKING:
    from pathlib import Path

REFERENCE = "\n".join(page.read_text("utf-8") for page in PAGES if page.parent.name == "reference")

DEMO = "python -m pip install . && python -m redouble demo"
TESTS = "python -m pip install -e '.[test]' && python -m pytest"

FENCES = {"python", "python own-time", "text", "sh", "toml", "mermaid"}
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def time_for(block: Block) -> contextlib.AbstractContextManager[Any]:
    return contextlib.nullcontext() if block.fence == "python own-time" else testing.no_waits()


def run_doctest(page: Path, block: Block, namespace: dict[str, Any]) -> None:
    parsed = doctest.DocTestParser().get_doctest(block.text, namespace, page.name, str(page), block.line)
    report = io.StringIO()
    # The parser copies the namespace; what a block defines must reach those after it.
    parsed.globs = namespace
    outcome = doctest.DocTestRunner(optionflags=FLAGS).run(parsed, out=report.write, clear_globs=False)
    assert not outcome.failed, report.getvalue()


def run_script(page: Path, block: Block, namespace: dict[str, Any]) -> str:
    # As many empty lines before it as there are on the page, so that a traceback names the right line.
    source = "\n" * block.line + block.text
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), warnings.catch_warnings():
        if block.fence.startswith(NEEDS):
            warnings.simplefilter("ignore")  # what other packages say while they are imported
        exec(compile(source, str(page), "exec"), namespace)
    return printed.getvalue()


# Pages that simulate whole outages, which takes seconds.
OUTAGES = {"docs/reference/simulate.md"}


def timed(page: Path) -> Any:
    name = page.relative_to(ROOT).as_posix()
    return pytest.param(page, id=name, marks=pytest.mark.slow if name in OUTAGES else ())


@pytest.mark.parametrize("page", [timed(page) for page in PAGES])
def test_the_code_on_a_page_runs_and_prints_what_the_page_shows(
    page: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A module of its own, as for a reader's script: pickle and the like look their classes up there.
    module = types.ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module)
    missing: list[str] = []
    for block, following in pairs(blocks(page)):
        if not block.is_code:
            continue
        if block.needs is not None:
            missing.append(block.needs)
            continue
        with time_for(block):
            if ">>> " in block.text:
                run_doctest(page, block, module.__dict__)
                continue
            printed = run_script(page, block, module.__dict__)
        shown = following.text if following is not None and following.fence == "text" else ""
        assert without_figures(printed) == without_figures(shown), f"{page.name}, line {block.line}"
    if missing:
        pytest.skip(f"the rest ran; not installed: {', '.join(missing)}")


@every_page
def test_no_code_on_a_page_escapes_the_tests(page: Path) -> None:
    fences = {block.fence for block in blocks(page) if not (block.fence.startswith(NEEDS) or block.was_had)}
    assert fences <= FENCES
    had = any(block.was_had for block in blocks(page))
    assert not had or page.parent.name == "coming-from", (
        "only pages in coming-from may have code of another library"
    )


def prose(page: Path) -> str:
    return re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)


def test_every_page_of_the_documentation_is_on_its_map() -> None:
    index = DOCS / "index.md"
    linked = {
        (DOCS / target.partition("#")[0]).resolve() for target in re.findall(r"\]\(([^)]+)\)", prose(index))
    }
    assert set(DOCS.rglob("*.md")) - {index} <= linked


def test_the_readme_gives_the_two_commands_each_in_a_block_of_its_own() -> None:
    commands = [block.text for block in blocks(README) if block.fence == "sh"]
    assert f"{DEMO}\n" in commands
    assert f"{TESTS}\n" in commands


def test_the_readme_is_short_enough_to_be_read_whole() -> None:
    assert len(README.read_text("utf-8").splitlines()) <= 130


def defined(module: types.ModuleType, *, classes_only: bool = False) -> set[str]:
    """Return the public names that a module defines itself."""
    return {
        name
        for name, thing in vars(module).items()
        if not name.startswith("_") and getattr(thing, "__module__", None) == module.__name__
        if isinstance(thing, type) or not classes_only
    }


# Of modules without __all__, which also hold what other modules of the package share.
PUBLIC = {
    "backoff": defined(backoff)
    - {"attempts_or_inf", "floor_below_cap", "is_ours", "next_delay", "number", "whole"},
    "context": {"Attempt", "current_attempt", "incoming", "outgoing_headers"},
    "errors": defined(errors, classes_only=True),
    "presets": defined(presets),
}


def mentioned(name: str) -> bool:
    return re.search(rf"`[^`\n]*\b{name}\b[^`\n]*`", REFERENCE) is not None


EXPORTING = [
    redouble,
    events,
    metrics,
    classify,
    budget,
    breaker,
    throttle,
    bulkhead,
    registry,
    hedging,
    shared,
    dead_letters,
    simulate,
    testing,
]


@pytest.mark.parametrize("module", EXPORTING, ids=lambda module: module.__name__)
def test_every_name_a_module_exports_is_in_the_reference(module: types.ModuleType) -> None:
    assert [name for name in module.__all__ if not mentioned(name)] == []


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_thing_of_a_module_is_in_the_reference(module: str) -> None:
    assert sorted(name for name in PUBLIC[module] if not mentioned(name)) == []


def table(page: str, first: str) -> dict[str, str]:
    """Return the first two columns of the rows below a heading that begin with a name in backticks."""
    text = (DOCS / "reference" / page).read_text("utf-8").partition(f"## {first}")[2].partition("\n## ")[0]
    return dict(re.findall(r"^\| `(\w+)` \| ([^|]+?) \|", text, flags=re.MULTILINE))


def test_the_table_of_fields_names_every_field_of_a_policy_with_its_true_default() -> None:
    policy = redouble.Policy()
    shown = {
        field: (value.__name__ if callable(value) else repr(value))
        for field in redouble.Policy._fields
        if not field.startswith("_")
        for value in [getattr(policy, field)]
    }
    shown["rules"] = "{}"
    assert {name: default.strip("`") for name, default in table("policy.md", "Fields").items()} == shown


PLAIN_AND_HINTED = {"yes": (True, True), "no": (False, False), "with a hint": (False, True)}


def test_the_table_of_statuses_says_what_classify_says() -> None:
    text = (DOCS / "reference" / "what-is-retried.md").read_text("utf-8")
    word = "(yes|no|with a hint)"
    rows = re.findall(rf"^\| ([\d, ]+) \| {word} \| {word} \| `(\w+)`", text, re.MULTILINE)
    told = {int(status): row[1:] for row in rows for status in row[0].split(",")}
    assert set(STATUS_CAUSES) <= set(told)
    assert {status for status, row in told.items() if row[0] == "yes"} == classify.RETRYABLE_STATUSES
    for status, (retried, safe, cause) in told.items():
        plain = classify.verdict((status, {}, b""))
        hinted = classify.verdict((status, {"Retry-After": "5"}, b""))
        assert (plain.retryable, hinted.retryable) == PLAIN_AND_HINTED[retried], status
        assert (plain.unprocessed, hinted.unprocessed) == PLAIN_AND_HINTED[safe], status
        assert cause == (hinted if retried == "with a hint" else plain).cause, status


def test_the_changelog_begins_with_the_version_of_the_package() -> None:
    text = (DOCS / "changelog.md").read_text("utf-8")
    assert re.findall(r"^## (\S+)", text, flags=re.MULTILINE)[0].strip("[]") == redouble.__version__


@every_page
def test_a_page_says_at_its_top_what_the_reader_gets(page: Path) -> None:
    title, _, rest = page.read_text("utf-8").partition("\n\n")
    assert title.startswith("# ")
    opening = rest.partition("\n\n")[0]
    assert opening
    assert not opening.startswith(("#", "|", "```", "-"))
