"""Messages become bounded, printable, masked lines, and a harmless one costs one call."""

from __future__ import annotations

import sys

import pytest

from redouble._base import table_secrets
from redouble._base.masking import masked_text
from redouble._base.text import mask_line, one_line, type_name


def calls_of(function, *args):
    calls = []

    def note(frame, event, _):
        if event == "call":
            calls.append(frame.f_code.co_name)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        function(*args)
    finally:
        sys.setprofile(before)
    return calls


def test_a_harmless_message_is_checked_by_one_call():
    assert calls_of(mask_line, "[Errno 104] Connection reset by peer") == ["mask_line"]


@pytest.mark.parametrize(
    "message",
    ["", " two\n lines ", "x" * 200, "y" * 201, "word " * 1000, "bell \a", "Überraschung", "a.b " * 60],
)
def test_a_harmless_line_is_the_same_whether_it_was_masked_or_not(message):
    assert mask_line(message) == one_line("", masked_text(message))


def test_a_text_without_a_trace_is_looked_at_by_no_pattern():
    traces = table_secrets.TRACES
    assert [said for said in table_secrets.SAID if not any(trace in said for trace in traces)] == []
    assert {trace for trace, _ in table_secrets.SYNTAX} <= set(traces)


def test_a_class_that_refuses_to_give_its_name_has_a_placeholder():
    class Meta(type):
        @property
        def __name__(cls):
            raise RuntimeError("no")

    class Secretive(metaclass=Meta):
        pass

    assert type_name(Secretive()) == "<unnamed>"
