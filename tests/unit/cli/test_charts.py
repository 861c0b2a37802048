"""Terminal charts, and the scale of an axis."""

from __future__ import annotations

import pytest

from redouble._cli.charts import Scale, bars, can_draw, short, sparkline


def test_bars_take_the_width_they_are_given():
    for width in (20, 40, 80):
        lines = bars({"independent": 64, "defer": 10, "none": 0}, width=width).split("\n")
        assert all(len(line) <= width for line in lines)
        assert len({len(line) for line in lines}) == 1


def test_the_longest_bar_is_full_and_what_is_not_nothing_is_seen():
    first, second, third = bars({"a": 1000, "b": 1, "c": 0}, width=30).split("\n")
    assert first.count("█") == 30 - 2 - 2 - 5
    assert "▏" in second
    assert third == "c" + " " * 28 + "0"


def test_names_that_are_too_long_are_cut_and_wide_letters_count_twice():
    assert "…" in bars({"a name that is far too long": 1}, width=20)
    assert "…" not in bars({"a name that is far too long": 1}, width=20, encoding="ascii")
    wide, narrow = bars({"日本": 1, "ja": 1}, width=30).split("\n")
    assert wide.index("█") == 3
    assert narrow.index("█") == 5


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "latin-1", "no such encoding"])
def test_where_the_encoding_has_no_blocks_ascii_stands_in(encoding):
    assert not can_draw(encoding)
    assert bars({"a": 9, "b": 1}, encoding=encoding).isascii()
    assert sparkline([0, 1, 5, 9], encoding=encoding).isascii()
    assert can_draw("utf-8")
    assert can_draw(None)


def test_a_sparkline_has_a_letter_for_each_value_and_only_zero_is_blank():
    assert sparkline([0, 0.001, 9]) == " ▁█"
    assert sparkline([]) == ""
    assert sparkline([0, 0]) == "  "


# Scales


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (0, "0"),
        (0.1, "0.1"),
        (1.25, "1.25"),
        (999, "999"),
        (1500, "1,500"),
        (10_000, "10k"),
        (1.5e7, "15M"),
        (2e9, "2G"),
    ],
)
def test_figures_at_an_axis_are_short(value, written):
    assert short(value) == written


@pytest.mark.parametrize("values", [[0, 1], [3, 97], [0.001, 0.0042], [1e-9, 1e9], [5, 5], []])
def test_a_scale_has_round_figures_around_all_values(values):
    scale = Scale(values)
    assert scale.low <= min([0.0, *values])
    assert scale.high >= max([0.0, *values])
    assert 2 <= len(scale.ticks) <= 8
    assert [scale.place(tick) for tick in (scale.low, scale.high)] == [0.0, 1.0]


def test_a_scale_that_fits_ends_with_the_values():
    scale = Scale([0.0, 110.0], fit=True)
    assert (scale.high, scale.ticks) == (110.0, [0.0, 50.0, 100.0])
    assert Scale([7.0, 7.0], fit=True).high > 7.0
    assert Scale([], fit=True).ticks


def test_sparklines_can_share_a_scale():
    assert sparkline([4], most=8) == "▄"
