"""Every event class has an example, a line in a recording, and a row in docs/reference/events.md that is true."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

from redouble import events
from redouble.dead_letters import DeadLetter
from redouble.events import (
    OWN_FIELDS,
    BackendChanged,
    CircuitChanged,
    DeadLettered,
    Discarded,
    Event,
    Expired,
    GaveUp,
    Hedged,
    Reason,
    Recovered,
    Refused,
    Retrying,
    Succeeded,
)
from redouble.testing import Recording

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "reference" / "events.md").read_text("utf-8")
KINDS = {
    name: kind
    for name in events.__all__
    if isinstance(kind := getattr(events, name), type) and issubclass(kind, Event) and kind is not Event
}
every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())

SLOW = {"attempt": 2, "elapsed": 1.5, "error_type": "TimeoutError", "error_message": "slow"}
LETTER = DeadLetter(id="01J8", queue="bulk", function="fetch", attempts=4)
# One event of each class, and its line in a recording.
LINES: list[tuple[Event, str]] = [
    (Succeeded("fetch", attempt=1, elapsed=0.2), "fetch, attempt 1: succeeded"),
    (Retrying("fetch", **SLOW, delay=0.5), "fetch, attempt 2: TimeoutError: slow; retried after 0.50 s"),
    (Recovered("fetch", **SLOW), "fetch, attempt 2: succeeded"),
    (GaveUp("fetch", **SLOW, reason=Reason.attempts), "fetch, attempt 2: TimeoutError: slow; gave up (attempts)"),
    (Expired("fetch", **SLOW, reason=Reason.deadline), "fetch, attempt 2: TimeoutError: slow; gave up (deadline)"),
    (Refused("fetch", attempt=0, elapsed=0.0, reason=Reason.bulkhead), "fetch: rejected (bulkhead)"),
    (Hedged("fetch", attempt=2, elapsed=0.3), "fetch, attempt 2: started beside a slow one"),
    (CircuitChanged("stock", before="closed", after="open"), "stock: CircuitChanged before=closed after=open"),
    (BackendChanged("stock", available=False), "stock: BackendChanged available=False"),
    (DeadLettered(LETTER), "fetch, attempt 4: DeadLettered queue=bulk letter=01J8"),
    (Discarded("bulk", count=3, why="purged"), "bulk: Discarded queue=bulk count=3 why=purged"),
]  # fmt: skip


def own_fields(kind: type[Event]) -> tuple[str, ...]:
    return kind._fields[len(Event._fields) :]


# Examples and recordings


@every_kind
def test_the_docstring_of_every_event_has_an_example(kind):
    assert f">>> {kind.__name__}(" in kind.__doc__.replace(f"str({kind.__name__}", kind.__name__)


def test_the_line_of_every_event_in_a_recording_is_written_down():
    missing = set(KINDS) - {type(event).__name__ for event, _ in LINES}
    assert not missing, "add them to LINES, and to describe() of testing/_recording.py"


@pytest.mark.parametrize(("event", "line"), LINES, ids=[type(event).__name__ for event, _ in LINES])
def test_a_recording_describes_an_event_in_words_or_by_the_fields_that_only_it_has(event, line):
    assert str(Recording([event])) == line
    assert (type(event).__name__ in line) == bool(own_fields(type(event)))


# The page

TABLE = PAGE.partition("## Logging")[2].partition("\n- ")[0]
# name -> (when, line, level)
ROWS = {
    name: cells
    for name, *cells in re.findall(r"^\| `(\w+)` \| (.+) \| (.+) \| (.*) ?\|$", TABLE, re.MULTILINE)
}


every_row = pytest.mark.parametrize("kind", [KINDS[name] for name in ROWS if name in KINDS])


def test_the_page_has_a_row_for_every_event():
    assert set(ROWS) == set(KINDS), "the first table of docs/reference/events.md differs from the code"


@every_row
def test_the_page_gives_the_level_at_which_an_event_is_logged(kind):
    _, line, level = ROWS[kind.__name__]
    if kind is Succeeded:
        assert (line, level.strip()) == ("not logged", "")
    else:
        assert level.strip() == f"`{logging.getLevelName(kind._level)}`"


@every_row
def test_the_page_shows_a_line_that_the_template_of_an_event_makes(kind):
    _, line, _ = ROWS[kind.__name__]
    if kind is Succeeded:
        return
    if shared := re.fullmatch("as `(\\w+)`", line):
        assert kind._text == KINDS[shared[1]]._text
        return
    parts = re.split(r"%\(\w+\)[.\d]*[sf]", kind._text)
    assert re.fullmatch(".*".join(map(re.escape, parts)), line.strip("`")), (
        f"{kind._text!r} makes no such line"
    )


@every_row
def test_the_page_names_the_fields_that_only_some_events_have(kind):
    when = ROWS[kind.__name__][0]
    assert [field for field in own_fields(kind) if f"`{field}`" not in when] == []
    [fields] = re.findall(r"^\| (.+) \| of the events that have them \|$", PAGE, re.MULTILINE)
    assert {*re.findall(r"\w+", fields)} == {*OWN_FIELDS}


def test_the_page_and_the_docstring_say_the_same_of_the_number_of_the_attempt():
    [cell] = re.findall(r"^\| `attempt` \| (.+) \|$", PAGE, re.MULTILINE)
    said = " ".join((Event.__doc__ or "").replace("``", "`").split())
    assert f"`attempt` is {cell}." in said
