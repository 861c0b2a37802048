"""Decorators of tenacity, moved by the rows of the page, behave as before."""

import ast
import subprocess
import sys

import from_tenacity
import pytest

from support.pages import DOCS

COMBINATIONS = from_tenacity.combinations()


def test_there_are_at_least_forty_combinations():
    assert len(set(COMBINATIONS)) >= 40


@pytest.mark.parametrize("keywords", COMBINATIONS)
def test_a_decorator_that_is_moved_makes_the_same_attempts_and_waits_and_ends_alike(keywords):
    pytest.importorskip("tenacity")
    assert from_tenacity.compare(keywords) == ""


def test_a_difference_is_found(monkeypatch):
    pytest.importorskip("tenacity")
    monkeypatch.setitem(
        from_tenacity.ROWS, "wait_fixed", lambda seconds: {"backoff": "fixed", "base": seconds + 1}
    )
    assert "redouble: ([3.0" in from_tenacity.compare(
        "stop=stop_after_attempt(3), wait=wait_fixed(2), retry=retry_if_exception_type(OSError)"
    )


@pytest.mark.parametrize(
    "keywords",
    [
        "stop=stop_after_attempt(5)",
        "stop=stop_before_delay(30)",
        "wait=wait_exponential(multiplier=1, min=4, max=10)",
    ],
)
def test_the_rows_of_the_script_are_those_of_the_page(keywords):
    page = (DOCS / "coming-from" / "tenacity.md").read_text("utf-8")
    [row] = [line for line in page.splitlines() if line.startswith(f"| `{keywords}`")]
    written = row.split("|")[2].strip(" `")
    moved = from_tenacity.moved(keywords)

    def fields(text):
        call = ast.parse(f"f({text})", mode="eval").body
        return {keyword.arg: ast.unparse(keyword.value).removesuffix(".0") for keyword in call.keywords}

    assert fields(written).items() <= fields(moved).items()


def test_what_no_row_is_for_is_refused():
    with pytest.raises(ValueError, match="no row for wait_chain"):
        from_tenacity.moved("wait=wait_chain(wait_fixed(1))")


def test_the_script_prints_what_the_decorators_of_a_file_become(tmp_path):
    file = tmp_path / "app.py"
    file.write_text("@retry(stop=stop_after_attempt(3), reraise=True)\ndef fetch(): ...\n")
    printed = subprocess.run(
        [sys.executable, from_tenacity.__file__, str(file)], capture_output=True, text=True, check=True
    )
    assert printed.stdout == "1: @retry(attempts=3)\n"
