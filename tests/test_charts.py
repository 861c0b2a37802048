"""Charts as SVG and as text: what is in them, what is never in them, and that they are always the same."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import pytest

from redouble._chart import bars, can_draw, columns, in_cells, sparkline
from redouble._scale import Scale, short
from redouble._svg import bar_chart, histogram, line_chart, small_multiples, steps
from redouble._svg_page import DARK, LIGHT, at, escaped, spread, wrapped

SVG = "{http://www.w3.org/2000/svg}"
LINES = {"plain": [(0.0, 1.0), (0.5, 1.9), (1.0, 4.0)], "budget": [(0.0, 1.0), (0.5, 1.1), (1.0, 1.1)]}
PANELS = {f"case {number}": {"served": LINES["plain"], "wasted": LINES["budget"]} for number in range(3)}
AXES = {"x_label": "share that fails", "y_label": "requests per call"}

CHARTS = {
    "lines": lambda **more: line_chart("Load", LINES, **{**AXES, "caption": "Why.", **more}),
    "many lines": lambda **more: line_chart(
        "Load", {str(n): [(x, n + x) for x in range(40)] for n in range(9)}, **{**AXES, **more}
    ),
    "logarithmic": lambda **more: line_chart("Load", LINES, log_x=True, log_y=True, **{**AXES, **more}),
    "histogram": lambda **more: histogram(
        "Arrivals", [3, 0, 9], bin_width=0.1, **{**AXES, "caption": "Why.", **more}
    ),
    "bars": lambda **more: bar_chart("Calls", {"alone": 64, "defer": 10}, **{"x_label": "calls", **more}),
    "multiples": lambda **more: small_multiples(
        "Cases", PANELS, **{**AXES, "band": (0.2, 0.4, "away"), **more}
    ),
    "filled": lambda **more: small_multiples(
        "Cases", {"one": {"served": steps([1, 2], 0.5)}}, filled=True, log_y=True, **{**AXES, **more}
    ),
}
every_chart = pytest.mark.parametrize("chart", CHARTS.values(), ids=CHARTS)


def parsed(svg):
    return ElementTree.fromstring(svg)


def texts(svg):
    return ["".join(text.itertext()) for text in parsed(svg).iter(f"{SVG}text")]


def numbers(element):
    """Every coordinate of an element."""
    values = [element.get(name, "") for name in ("x", "y", "x1", "x2", "y1", "y2", "cx", "cy", "d")]
    return [float(found) for value in values for found in re.findall(r"-?\d+(?:\.\d+)?", value)]


@every_chart
def test_a_chart_is_one_xml_document_with_title_style_and_background(chart):
    root = parsed(chart())
    assert root.tag == f"{SVG}svg"
    assert root.find(f"{SVG}title").text == root.get("aria-label")
    style = root.find(f"{SVG}style").text
    assert "prefers-color-scheme:dark" in style
    assert all(colour in style for colour in (*LIGHT, *DARK))
    assert root.find(f"{SVG}rect").get("class") == "paper"


@every_chart
def test_what_is_drawn_has_a_colour_also_where_there_are_no_style_sheets(chart):
    for element in parsed(chart()).iter():
        if element.tag in (f"{SVG}{name}" for name in ("text", "path", "rect", "circle", "line")):
            assert (element.get("fill") or element.get("stroke", "")).startswith(("#", "none"))


@every_chart
def test_the_same_chart_is_the_same_bytes(chart):
    assert chart() == chart()
    assert chart().endswith("</svg>\n")


@every_chart
def test_nothing_is_drawn_outside_of_the_page(chart):
    root = parsed(chart())
    width, height = float(root.get("width")), float(root.get("height"))
    for element in root.iter():
        assert all(0 <= value <= max(width, height) for value in numbers(element))
        assert float(element.get("y", 0)) <= height
        assert "nan" not in str(element.attrib)


@every_chart
def test_texts_of_one_chart_do_not_lie_on_each_other(chart):
    boxes = []
    for text in parsed(chart(caption="A caption that is long enough to be told. " * 5)).iter(f"{SVG}text"):
        size = 16 if text.get("class") == "title" else 13 if "label" in text.get("class") else 12
        x, y, width = float(text.get("x")), float(text.get("y")), 0.52 * size * len(text.text or "")
        anchor = text.get("text-anchor")
        left = x - width if anchor == "end" else x - width / 2 if anchor == "middle" else x
        boxes.append((left, y - 0.7 * size, left + width, y, text.text))
    for number, one in enumerate(boxes):
        for other in boxes[number + 1 :]:
            apart = one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]
            assert apart, (one, other)


@every_chart
def test_a_text_cannot_break_out_of_a_chart(chart):
    evil = '</text><script>alert("1")</script>&\x00\x1b\ud800\uffff'
    svg = chart(x_label=evil, caption=evil)
    assert "<script" not in svg
    assert any("<script>" in text for text in texts(svg))
    svg.encode("utf-8")


def test_a_title_and_names_are_escaped_too():
    svg = line_chart('<b> & "c"', {"<i>": [(0, 1), (1, 2)]}, **AXES)
    assert parsed(svg).get("aria-label") == '<b> & "c"'
    assert "<i>" in texts(svg)


def test_a_line_chart_names_each_line_at_its_end_and_its_axes():
    found = texts(CHARTS["lines"]())
    assert {"Load", "plain", "budget", "share that fails", "requests per call", "Why."} <= set(found)
    assert {"0", "1", "2", "3", "4"} <= set(found)


def test_a_line_without_points_is_left_out_of_the_names():
    svg = line_chart("Load", {"here": [(0, 1), (1, 2)], "gone": []}, **AXES)
    assert "here" in texts(svg)
    assert "gone" not in texts(svg)


def test_lines_with_few_points_have_dots_and_those_with_many_have_none():
    assert len(list(parsed(CHARTS["lines"]()).iter(f"{SVG}circle"))) == 6
    assert not list(parsed(CHARTS["many lines"]()).iter(f"{SVG}circle"))


def test_a_band_is_shaded_and_named():
    svg = histogram("Arrivals", [1] * 40, bin_width=1.0, band=(10, 20, "away"), **AXES)
    band = next(rect for rect in parsed(svg).iter(f"{SVG}rect") if rect.get("class") == "band")
    assert float(band.get("width")) == pytest.approx((760 - 58 - 26) / 4, abs=0.1)
    name = next(text for text in parsed(svg).iter(f"{SVG}text") if text.text == "away")
    right = float(band.get("x")) + float(band.get("width"))
    assert (name.get("text-anchor"), float(name.get("x"))) == ("end", pytest.approx(right - 6, abs=0.2))
    assert "away" not in texts(histogram("Arrivals", [1] * 40, bin_width=1.0, band=(10, 20, ""), **AXES))


def test_bars_are_as_long_as_their_values_and_say_them():
    svg = CHARTS["bars"]()
    long, short_one = (
        float(rect.get("width")) for rect in parsed(svg).iter(f"{SVG}rect") if rect.get("rx") == "2"
    )
    assert long / short_one == pytest.approx(6.4, rel=0.01)
    assert {"64", "10", "alone", "defer"} <= set(texts(svg))


def test_panels_share_their_axes_and_have_one_legend():
    found = texts(CHARTS["multiples"]())
    assert [found.count(name) for name in ("served", "wasted", "case 0", "case 2")] == [1, 1, 1, 1]
    assert found.count("4") == 3  # the same limit at each
    assert found.count("share that fails") == 2  # at the lowest of each column
    assert "served" not in texts(CHARTS["filled"]())


def test_a_surface_without_points_is_not_drawn():
    svg = small_multiples("Cases", {"one": {"served": []}}, filled=True, **AXES)
    assert not list(parsed(svg).iter(f"{SVG}path"))


def test_charts_of_nothing_are_charts():
    for svg in (
        line_chart("", {}, **AXES),
        bar_chart("", {}, x_label=""),
        histogram("", [], bin_width=1, **AXES),
    ):
        parsed(svg)


# The parts


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


def test_a_coordinate_has_one_decimal_at_most_and_no_negative_nothing():
    assert [at(value) for value in (1.0, 1.25, 1.26, -0.01, 100)] == ["1", "1.2", "1.3", "0", "100"]


@pytest.mark.parametrize("values", [[0, 1], [3, 97], [0.001, 0.0042], [1e-9, 1e9], [5, 5], [], [math.inf, 2]])
def test_a_scale_has_round_figures_around_all_values(values):
    scale = Scale(values)
    finite = [value for value in values if math.isfinite(value)]
    assert scale.low <= min([0.0, *finite])
    assert scale.high >= max([0.0, *finite])
    assert 2 <= len(scale.ticks) <= 8
    assert [scale.place(tick) for tick in (scale.low, scale.high)] == [0.0, 1.0]


def test_a_scale_that_fits_ends_with_the_values():
    scale = Scale([0.0, 110.0], fit=True)
    assert (scale.high, scale.ticks) == (110.0, [0.0, 50.0, 100.0])
    assert Scale([7.0, 7.0], fit=True).high > 7.0
    assert Scale([], fit=True).ticks


def test_a_logarithmic_scale_stands_on_powers_of_ten():
    scale = Scale([0, 3, 1200], log=True)
    assert scale.ticks == [1, 10, 100, 1000, 10000]
    assert scale.place(100) == 0.5
    assert scale.place(0) == 0.0
    assert len(Scale([1e-9, 1e9], log=True).ticks) <= 7
    assert Scale([], log=True).ticks == [1, 10]


def test_labels_are_moved_apart_and_stay_within_their_limits():
    assert spread([10, 11, 50], 16, 0, 100) == [10, 26, 50]
    assert spread([90, 95, 99], 16, 0, 100) == [68, 84, 100]
    assert spread([], 16, 0, 100) == []


def test_a_caption_is_wrapped_where_words_allow():
    assert wrapped("one two three", 7) == ["one two", "three"]
    assert wrapped("immeasurable", 3) == ["immeasurable"]
    assert wrapped("", 3) == []


def test_what_xml_cannot_hold_is_left_out():
    assert escaped('a\x00b<\ud800>\ufffe&"') == "ab&lt;&gt;&amp;&quot;"


# For terminals


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
    values = [0, 1, 5, 9]
    for text in (
        bars({"a": 9, "b": 1}, encoding=encoding),
        sparkline(values, encoding=encoding),
        columns(values, encoding=encoding),
    ):
        assert text.isascii()
    assert can_draw("utf-8")
    assert can_draw(None)


def test_a_sparkline_shows_the_peaks_of_more_values_than_fit():
    values = [0.0] * 1000
    values[537] = 9.0
    line = sparkline(values, width=20)
    assert len(line) == 20
    assert line.count("█") == 1
    assert line.strip() == "█"
    assert sparkline([]) == ""
    assert sparkline([0, 0]) == "  "


def test_cells_take_each_value_once():
    assert in_cells([1, 2, 3], 5) == [1, 2, 3]
    assert in_cells([1, 5, 2, 2, 9], 2) == [5, 9]


def test_columns_have_an_axis_and_stand_on_it():
    lines = columns([0, 2, 4], end=3, width=20, height=2, unit=" s").split("\n")
    assert lines == ["4 │  █", "  │ ██", "0 └───", "   0 3 s"]
    assert columns([1] * 500, width=40).split("\n")[-1].endswith("500")
    assert all(len(line) <= 40 for line in columns([1] * 500, width=40).split("\n"))


def test_columns_of_nothing_are_an_empty_axis():
    assert columns([], height=1).split("\n")[0] == "1 │"


@pytest.mark.parametrize("wrong", [0, -1, True])
def test_a_size_that_is_none_is_refused_by_name(wrong):
    with pytest.raises(ValueError, match=r"^width must be"):
        sparkline([1], width=wrong)
    with pytest.raises(ValueError, match=r"^height must be"):
        columns([1], height=wrong)
