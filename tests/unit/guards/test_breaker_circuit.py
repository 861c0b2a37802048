"""The table of transitions."""

from __future__ import annotations

from pathlib import Path

from redouble.breaker import TRANSITIONS, Phase, State, _Trigger
from support.breakers import CLOSED, HALF_OPEN, OPEN, make, walk


def test_the_table_has_the_ways_of_a_circuit_and_no_others():
    by_itself = {
        (before, after)
        for (before, happening), after in TRANSITIONS.items()
        if happening not in (_Trigger.opened, _Trigger.reset)
    }
    assert by_itself == {(CLOSED, OPEN), (OPEN, HALF_OPEN), (HALF_OPEN, CLOSED), (HALF_OPEN, OPEN)}
    for state in State:
        assert TRANSITIONS[state, _Trigger.opened] is OPEN
        assert TRANSITIONS[state, _Trigger.reset] is CLOSED
    assert (CLOSED, HALF_OPEN) not in {(before, after) for (before, _), after in TRANSITIONS.items()}


def drawn_from_the_table():
    """The diagram of the documentation."""
    ways = [
        f"    {before.name} --> {after.name}: {happening}"
        for (before, happening), after in TRANSITIONS.items()
    ]
    return "\n".join(["stateDiagram-v2", "    half_open: half-open", "    [*] --> closed", *ways, ""])


def test_the_diagram_in_the_documentation_is_the_table_and_shows_the_ways_that_a_breaker_takes(clock, heard):
    page = Path(__file__).resolve().parents[3] / "docs" / "reference" / "breaker.md"
    diagrams = page.read_text("utf-8").split("```mermaid\n")[1:]
    assert [diagram.partition("```")[0] for diagram in diagrams] == [drawn_from_the_table()]
    walk(make(clock, failures=1, listeners=[heard.append]), clock)
    for event in heard:
        assert f"    {State(event.before).name} --> {State(event.after).name}: " in diagrams[0]


def test_no_result_counts_while_a_circuit_is_open():
    assert [Phase(OPEN, 2, 2).counts(ticket) for ticket in (None, 1, 2)] == [False, False, False]
    assert [Phase(CLOSED, 2, 2).counts(ticket) for ticket in (None, 1, 2)] == [True, False, True]


def test_a_probe_that_has_ended_frees_its_slot_and_changes_nothing_else():
    phase = Phase(HALF_OPEN, 3, 2, probes=2, successes=1, since=5.0)
    assert phase.without_probe(3, 2) == Phase(HALF_OPEN, 3, 2, probes=1, successes=2, since=5.0)
    assert phase.without_probe(2, 2) == Phase(HALF_OPEN, 3, 2, probes=2, successes=2, since=5.0)
