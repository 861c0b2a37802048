"""The figures of `tests/tools/structure.py` are within their gates."""

from __future__ import annotations

import sys

import pytest
import structure

FIGURES: dict[str, float] = {}


@pytest.fixture
def figures() -> dict[str, float]:
    if not FIGURES:
        FIGURES.update(structure.measured())
    return FIGURES


@pytest.mark.skipif(not structure.SOURCE.is_dir(), reason="the source is not here")
@pytest.mark.skipif(sys.version_info >= (3, 14), reason="the figures are those of CPython 3.11 to 3.13")
@pytest.mark.parametrize("gate", structure.GATES, ids=lambda gate: gate.measure)
def test_a_figure_is_within_its_gate(gate: structure.Gate, figures: dict[str, float]) -> None:
    assert not gate.missed(figures[gate.measure]), (
        f"{figures[gate.measure]:g}; tests/tools/structure.py --lines"
    )


def test_a_gate_is_never_stricter_than_its_goal() -> None:
    for gate in structure.GATES:
        assert gate.gate <= gate.goal if gate.least else gate.gate >= gate.goal, gate.measure


SOURCE = '''"""A module
of two lines."""

TABLE = {
    "a": 1,
    "b": 2,
}

# A comment.
def f(x):  # not on a line of its own
    """Return."""
    return x
'''


def test_blank_lines_and_tables_are_not_code() -> None:
    assert structure.lines_of(SOURCE) == structure.Lines(code=2, docstrings=3, comments=1)


def test_a_table_with_code_in_it_is_code() -> None:
    assert structure.lines_of("T = [\n    x\n    for x in y\n]\n").code == 4
