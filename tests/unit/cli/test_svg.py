"""SVG charts: what is in them, what is never in them, and that the same input gives the same bytes."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from redouble._cli.svg import DARK, LIGHT, at, bar_chart, escaped, small_multiples, steps

SVG = "{http://www.w3.org/2000/svg}"
LINES = {"plain": [(0.0, 1.0), (0.5, 1.9), (1.0, 4.0)], "budget": [(0.0, 1.0), (0.5, 1.1), (1.0, 1.1)]}
PANELS = {f"case {number}": {"served": LINES["plain"], "wasted": LINES["budget"]} for number in range(3)}
AXES = {"x_label": "share that fails", "y_label": "requests per call"}

CHARTS = {
    "bars": lambda **more: bar_chart("Calls", {"alone": 64, "defer": 10}, **{"x_label": "calls", **more}),
    "multiples": lambda **more: small_multiples(
        "Cases", PANELS, **{**AXES, "band": (0.2, 0.4, "away"), **more}
    ),
    "one series": lambda **more: small_multiples(
        "Cases", {"one": {"served": steps([1, 2], 0.5)}}, **{**AXES, **more}
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
    svg = bar_chart('<b> & "c"', {"<i>": 2}, x_label="calls")
    assert parsed(svg).get("aria-label") == '<b> & "c"'
    assert "<i>" in texts(svg)


def test_a_band_is_shaded_and_named():
    svg = small_multiples(
        "Cases", {"one": {"served": steps([1] * 40, 1.0)}}, columns=1, band=(10, 20, "away"), **AXES
    )
    band = next(rect for rect in parsed(svg).iter(f"{SVG}rect") if rect.get("class") == "band")
    assert float(band.get("width")) == pytest.approx((860 - 54 - 22) / 4, abs=0.1)
    name = next(text for text in parsed(svg).iter(f"{SVG}text") if text.text == "away")
    right = float(band.get("x")) + float(band.get("width"))
    assert (name.get("text-anchor"), float(name.get("x"))) == ("end", pytest.approx(right - 6, abs=0.2))


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
    assert "served" not in texts(CHARTS["one series"]())


def test_a_coordinate_has_one_decimal_at_most_and_no_negative_nothing():
    assert [at(value) for value in (1.0, 1.25, 1.26, -0.01, 100)] == ["1", "1.2", "1.3", "0", "100"]


def test_what_xml_cannot_hold_is_left_out():
    assert escaped('a\x00b<\ud800>\ufffe&"') == "ab&lt;&gt;&amp;&quot;"
