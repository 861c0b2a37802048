"""The comparison page says what the other libraries do; checked for those that are installed.

The figures of the page are not checked: they are those of one machine.
"""

from __future__ import annotations

import re

import pytest
from benchmarks.compare import BEGIN, END, LIBRARIES, PAGE, replaced, told
from benchmarks.comparison.base import Cell, Library
from benchmarks.comparison.behaviour import PROBES
from benchmarks.comparison.features import FEATURES
from benchmarks.comparison.figures import version

TEXT = PAGE.read_text("utf-8")
TOLD = told(TEXT)

every_library = pytest.mark.parametrize("kind", LIBRARIES, ids=lambda kind: kind.name)
every_probe = pytest.mark.parametrize("probe", PROBES)


def made(kind: type[Library]) -> Library:
    pytest.importorskip(kind.name, reason=f"{kind.name} is not installed, so it cannot be asked")
    return kind()


def versions() -> dict[str, str]:
    names, _, numbers = (
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in TEXT.partition("## What they weigh")[2].partition("| depends on")[0].splitlines()
        if line.startswith("|")
    )
    return dict(zip(names[1:], numbers[1:], strict=True))


@every_probe
@every_library
def test_a_library_does_what_the_page_says(kind: type[Library], probe: str) -> None:
    library = made(kind)
    if probe == "trio":
        pytest.importorskip("trio")
    seen = PROBES[probe](library)
    assert seen == TOLD[probe, library.name], (
        f"the page is about {library.name} {versions()[library.name]}, here is {version(library)}; "
        "run: python tests/tools/benchmarks/compare.py"
    )


@every_library
def test_what_the_page_says_a_library_does_well_is_so(kind: type[Library]) -> None:
    library = made(kind)
    for sentence, check in library.strengths().items():
        assert f"- {sentence}\n" in TEXT
        assert check(), sentence


@pytest.mark.parametrize("kind", LIBRARIES[1:], ids=lambda kind: kind.name)
def test_every_other_library_has_strengths_on_the_page(kind: type[Library]) -> None:
    assert f"### {kind.name}\n" in TEXT


def test_the_page_has_a_cell_for_every_probe_and_library() -> None:
    assert set(TOLD) == {(probe, kind.name) for probe in PROBES for kind in LIBRARIES}


def test_redouble_is_not_the_best_in_everything() -> None:
    assert {name for name in FEATURES if TOLD[name, "redouble"].text != "yes"} != set()


def test_the_figures_name_no_machine_and_no_path() -> None:
    figures = TEXT.partition("## What they weigh")[2].partition("\n## ")[0]
    assert re.search(r"\d\.\d+\.\d+, one machine; the best of \d+ short rounds", figures)
    assert not re.search(r"/\w+/|x86|aarch|arm64|\d{4}-\d{2}", figures)


def test_only_what_stands_between_the_markers_is_replaced() -> None:
    page = f"# Title\n\nprose\n\n{BEGIN}\nold\n{END}\n\nmore prose\n"
    assert replaced(page, "new") == f"# Title\n\nprose\n\n{BEGIN}\n\nnew\n\n{END}\n\nmore prose\n"


def test_a_page_without_markers_is_left_alone() -> None:
    with pytest.raises(SystemExit, match="no markers for the tables"):
        replaced("# Title\n", "new")


def test_a_cell_is_read_back_with_its_note() -> None:
    page = f"{BEGIN}\n## A\n\n| | one | two |\n|---|---|---|\n| `x` | no \\* | yes |\n\n- `x`:\n  - one: Nearest: y.\n{END}"
    assert told(page) == {("`x`", "one"): Cell("no", "Nearest: y."), ("`x`", "two"): Cell("yes")}


def test_the_probes_can_see_a_difference() -> None:
    """A probe that gives the same answer for every library shows nothing."""
    for probe in PROBES:
        if probe != "sync and async by one decorator":
            assert len({TOLD[probe, kind.name].text for kind in LIBRARIES}) > 1, probe
