"""The generated page of tables is what the tables say."""

from __future__ import annotations

import socket

from generate_what_is_retried import PAGE, page, yes

from redouble.classify import _table_classes as _classes
from redouble.classify import _table_codes as _codebook
from redouble.classify import _table_statuses as _catalogue
from redouble.classify import verdict


def test_the_page_of_tables_is_not_stale():
    assert PAGE.read_text("utf-8") == page(), "run: python tests/tools/generate_what_is_retried.py"


def test_every_table_of_codes_and_every_package_is_on_the_page():
    text = page()
    tables = (value for value in vars(_codebook).values() if isinstance(value, dict))
    rows = [table for table in tables if any(isinstance(row, _catalogue.Meaning) for row in table.values())]
    for table in [*rows, _classes.PACKAGES, _classes.ALIASES]:
        assert [code for code in table if f"`{code}`" not in text] == []


def test_the_rows_of_name_resolution_are_what_verdict_says():
    lines = PAGE.read_text("utf-8").splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| `EAI_")]
    named = {name.strip("`"): told for names, *told in rows for name in names.split(", ")}
    assert len(named) == 9
    for name, (retried, unprocessed, cause) in named.items():
        if hasattr(socket, name):
            found = verdict(socket.gaierror(getattr(socket, name), "x"))
            assert (retried, unprocessed) == (yes(found.retryable), yes(found.unprocessed)), name
            assert cause == f"`{found.cause}`"


def test_every_last_word_and_every_veto_is_on_the_page():
    page = PAGE.read_text("utf-8")
    vetoes = [word.strip() for words in _classes.VETOES.values() for word in words]
    assert [word for word in (*_classes.LAST_WORDS, *vetoes) if f"`{word}`" not in page] == []
