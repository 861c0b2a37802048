"""The generated page of tables is what the tables say."""

from __future__ import annotations

from generate_what_is_retried import PAGE, page
from redouble import _catalogue, _classes, _codebook


def test_the_page_of_tables_is_not_stale():
    assert PAGE.read_text("utf-8") == page(), "run: python tests/generate_what_is_retried.py"


def test_every_table_of_codes_and_every_package_is_on_the_page():
    text = page()
    tables = (value for value in vars(_codebook).values() if isinstance(value, dict))
    rows = [table for table in tables if any(isinstance(row, _catalogue.Row) for row in table.values())]
    for table in [*rows, _classes.PACKAGES, _classes.ALIASES]:
        assert [code for code in table if f"`{code}`" not in text] == []
