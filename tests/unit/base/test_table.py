"""Plain-text tables: alignment, width, and text that could harm a terminal."""

from __future__ import annotations

import pytest

from redouble._base.table import display_width, duration, fit, safe, share, table


def test_the_first_column_is_flush_left_and_figures_are_flush_right():
    assert table(("name", "n"), [("a", "100"), ("longer", "7")]).split("\n") == [
        "name      n",
        "a       100",
        "longer    7",
    ]


def test_more_columns_may_be_flush_left():
    assert table(("a", "b", "c"), [("1", "22", "333")], left=3).split("\n") == ["a  b   c", "1  22  333"]


def test_a_table_without_rows_is_its_head():
    assert table(("name", "calls"), []) == "name  calls"


def test_the_widest_of_the_columns_that_may_shrink_is_cut_first():
    lines = table(
        ("id", "path", "error"), [("x" * 10, "p" * 20, "e" * 30)], left=3, width=44, shrink=(1, 2)
    ).split("\n")
    assert lines[1] == "x" * 10 + "  " + "p" * 13 + "..  " + "e" * 13 + ".."
    assert max(map(len, lines)) == 44


def test_of_some_columns_the_end_is_kept():
    line = table(("a", "b"), [("module.function", "1")], width=12, shrink=(0,), keep_end={0}).split("\n")[1]
    assert line == "..unction  1"


def test_wide_letters_take_two_columns_and_accents_none():
    assert [display_width(text) for text in ("abc", "日本", "e\u0301")] == [3, 4, 1]
    assert table(("ja", "n"), [("日本", "1"), ("ab", "2")]).split("\n")[1:] == ["日本  1", "ab    2"]


@pytest.mark.parametrize("width", range(2, 9))
def test_a_cut_text_is_as_wide_as_asked_for(width):
    for text in ("abcdefghij", "日本語日本語", "a日b本c語d"):
        for keep_end in (False, True):
            assert display_width(fit(text, width, keep_end=keep_end)) == width


def test_escape_sequences_are_shown_and_not_sent_to_the_terminal():
    assert safe("\x1b[31mred\u202e") == "\\x1b[31mred\\u202e"
    assert "\x1b" not in table(("name", "n"), [("\x1b[2J", "1")])


def test_seconds_have_three_digits_and_a_unit():
    assert [duration(value) for value in (0.0042, 0.9996, 99.96, None)] == ["4.2 ms", "1 s", "100 s", "-"]


def test_a_share_is_in_percent():
    assert [share(value) for value in (0.5, 1.0, None)] == ["50.0 %", "100.0 %", "-"]
