"""``redouble dead-letters list`` and ``show``: what people and scripts see."""

from __future__ import annotations

import io
import json
import sys
import time

import pytest

from redouble._base.table import display_width
from redouble._cli import main
from redouble.dead_letters import DeadLetters
from support.letters_command import PREFIX, records

# list


def test_a_list_has_one_line_for_each_letter_of_all_queues_the_oldest_first(command, path):
    now = [time.time() - 3 * 86400]
    box = DeadLetters(path, clock=lambda: now[0])
    box.put(function="shop.ship", error=TimeoutError("slow"), attempts=4)
    now[0] = time.time() - 5 * 3600
    box.put(queue="critical", function="pay", error="no funds")
    now[0] = time.time() - 700
    box.put()
    now[0] = time.time() + 9
    box.put()
    box.close()
    status, out, err = command("list")
    ids = [letter["id"] for letter in records(command("list", "--json")[1])]
    assert (status, err) == (0, "")
    assert out.splitlines() == [
        "id                          age  attempts  state    queue     function   error",
        f"{ids[0]}  3d   4         waiting  default   shop.ship  TimeoutError: slow",
        f"{ids[1]}  5h   1         waiting  critical  pay        no funds",
        f"{ids[2]}  11m  1         waiting  default   -          -",
        f"{ids[3]}  0s   1         waiting  default   -          -",
        "",
        "critical: 1 waiting or leased, 0 parked",
        "default: 3 waiting or leased, 0 parked",
    ]


def test_a_list_in_json_is_all_fields_of_each_letter_on_a_line(command, letters):
    first = letters.put(payload={"order": 7}, error=TimeoutError("slow\nline two ☃"))
    second = letters.put(payload="\x1b[31m", queue="bulk")
    status, out, _ = command("list", "--json")
    assert status == 0
    assert out.isascii()
    assert records(out) == [first.as_dict(), second.as_dict()]


def test_a_list_can_be_of_one_queue_and_of_one_state(command, letters):
    parked, waiting, other = letters.put(), letters.put(), letters.put(queue="bulk")

    def fail(letter):
        raise TimeoutError

    letters.replay(fail, limit=1, park_after=1)

    def ids(*arguments):
        return [letter["id"] for letter in records(command("list", "--json", *arguments)[1])]

    assert ids("--queue", "bulk") == [other.id]
    assert ids("--queue", "default") == [parked.id, waiting.id]
    assert ids("--state", "parked") == [parked.id]
    assert ids("--state", "leased") == []
    assert ids("--queue", "default", "--state", "waiting") == [waiting.id]
    assert "default: 1 waiting or leased, 1 parked" in command("list")[1]


def test_a_list_goes_to_its_limit_and_says_that_there_is_more(command, letters, monkeypatch):
    put = [letters.put().id for _ in range(5)]
    assert [letter["id"] for letter in records(command("list", "--json")[1])] == put
    assert [letter["id"] for letter in records(command("list", "--json", "--limit", 3)[1])] == put[:3]
    assert "There are more than these 3; --limit shows them." in command("list", "--limit", 3)[1]
    assert "There are more" not in command("list", "--limit", 5)[1]


def test_a_list_of_nothing_says_so(command, letters, path):
    letters.depth()
    assert command("list") == (0, f"There are no letters in {path}.\n", "")
    assert command("list", "--json") == (0, "", "")


@pytest.mark.parametrize("columns", [110, 120, 300])
def test_a_table_fits_a_wide_terminal_with_ids_and_figures_whole(command, letters, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    for name in ("x", "warehouse.orders.Client.ship_again" * 3, "海" * 60):
        letters.put(function=name, queue=name, error=TimeoutError(name * 3), attempts=123)
    rows = command("list")[1].splitlines()[:4]
    assert max(map(display_width, rows)) == columns
    for letter, row in zip(records(command("list", "--json")[1]), rows[1:], strict=True):
        assert row.split()[:4] == [letter["id"], "0s", "123", "waiting"]


@pytest.mark.parametrize(("terminal", "columns"), [(20, 40), (40, 40), (80, 80), (109, 109)])
def test_on_a_narrow_terminal_a_letter_has_lines_of_its_own_with_its_id_whole(
    command, letters, monkeypatch, terminal, columns
):
    monkeypatch.setenv("COLUMNS", str(terminal))
    for name in ("x", "warehouse.orders.Client.ship_again" * 3, "海" * 60):
        letters.put(function=name, queue=name, error=TimeoutError(name * 3), attempts=123)
    lines = command("list")[1].partition("\n\n")[0].splitlines()
    assert max(map(display_width, lines)) == columns
    for letter in records(command("list", "--json")[1]):
        assert [line for line in lines if line.startswith(letter["id"])]


def test_on_a_terminal_of_80_columns_function_and_error_are_readable(command, letters, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    put = [
        letters.put(
            function="shop.warehouse.Client.ship", error=TimeoutError("no answer within 30 s"), attempts=4
        ),
        letters.put(queue="bulk"),
    ]
    assert command("list")[1].splitlines() == [
        f"{put[0].id}  waiting, 4 attempts, 0s old, default",
        "  shop.warehouse.Client.ship",
        "  TimeoutError: no answer within 30 s",
        f"{put[1].id}  waiting, 1 attempt, 0s old, bulk",
        "",
        "bulk: 1 waiting or leased, 0 parked",
        "default: 1 waiting or leased, 0 parked",
    ]


def test_in_a_pipe_each_letter_is_one_line_and_nothing_is_cut(command, letters, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr(sys, "__stdout__", None)
    letters.put(function="f" * 90, error="x" * 190)
    assert "f" * 90 + "  " + "x" * 190 + "\n" in command("list")[1]


@pytest.mark.parametrize("columns", ["40", "120"])
def test_of_a_long_function_name_the_end_is_shown_and_of_others_the_beginning(
    command, letters, monkeypatch, columns
):
    monkeypatch.setenv("COLUMNS", columns)
    letters.put(function="warehouse.orders.Client." * 3 + "ship", error="refused: " + "x" * 90)
    shown = command("list")[1]
    assert "Client.ship" in shown
    assert "refused: xxx" in shown
    assert "xxx.." in shown
    assert "warehouse.orders.Client.warehouse" not in shown


HOSTILE = "a\x1b[31mb\x07c\x9b2Jd\u202ee\rf\x00g\u2028h\ue000i"


def test_no_control_character_of_a_letter_reaches_the_terminal(command, letters, handler):
    letter = letters.put(
        payload={HOSTILE: HOSTILE},
        function=HOSTILE,
        error=ValueError(HOSTILE),
        message_id=HOSTILE,
        idempotency_key=HOSTILE,
        replay_instructions=HOSTILE + "\nstate:               leased",
        queue=HOSTILE,
    )
    name = handler(f"def handle(letter): raise ValueError({HOSTILE!r})")
    shown = [
        *command("list"),
        *command("show", letter.id),
        *command("replay", name, "--id", letter.id),
        *command("replay", name, "--queue", "\x1b[31m"),
        *command("purge", "--queue", HOSTILE, "--dry-run"),
        *command("purge", "--queue", HOSTILE, "--yes"),
    ]
    text = "".join(map(str, shown))
    assert "\\x1b[31m" in text
    assert [char for char in text if not char.isprintable() and char != "\n"] == []
    assert "\nstate:               leased" not in text


def test_what_the_encoding_of_the_output_cannot_say_is_escaped(letters, path, monkeypatch):
    letters.put(error="海")
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, "ascii", write_through=True))
    assert main(["dead-letters", "list", path]) == 0
    assert b"  \\u6d77\n" in raw.getvalue()


# show


def test_show_tells_everything_about_a_letter(command, letters):
    letter = letters.put(
        payload={"order": 7, "name": "Åse"},
        function="ship",
        error=TimeoutError("slow"),
        failure_code="504",
        attempts=4,
        message_id="m1",
        replay_instructions="ask Bob",
    )
    status, out, _ = command("show", letter.id)
    assert status == 0
    for name, value in letter.as_dict().items():
        assert f"{name}:" in out
        if isinstance(value, (str, int)) and name != "traceback":
            assert f"{name + ':':21}{value}\n" in out
    assert 'payload:\n    {\n      "order": 7,\n      "name": "Åse"\n    }\n' in out
    assert "traceback:\n    TimeoutError: slow\n" in out
    assert "leased_by:           -\n" in out
    assert records(command("show", letter.id, "--json")[1]) == [letter.as_dict()]


def test_a_traceback_is_shown_line_by_line(command, letters):
    letter = letters.put(error=ValueError("first\n\tsecond"))
    assert (
        "traceback:\n    ValueError: first\n            second\nfailure_code:"
        in command("show", letter.id)[1]
    )


def test_a_letter_without_an_error_is_shown_too(command, letters):
    assert "traceback:           -\n" in command("show", letters.put().id)[1]


def test_the_beginning_of_an_id_is_enough_if_no_other_begins_so(command, path):
    now = [1.7e9]
    box = DeadLetters(path, clock=lambda: now[0])
    first = box.put()
    second = box.put(queue="bulk")
    now[0] += 86400
    third = box.put()
    box.close()
    assert json.loads(command("show", third.id[:8], "--json")[1])["id"] == third.id
    assert json.loads(command("show", second.id[:25].lower(), "--json")[1])["id"] == second.id
    assert json.loads(command("show", first.id, "--json")[1])["id"] == first.id
    status, out, err = command("show", first.id[:8])
    assert (status, out) == (1, "")
    assert err == f"{PREFIX}more than one letter has an id that begins with {first.id[:8]}: give more of it\n"


def test_an_id_that_is_not_there_is_status_1(command, letters):
    letters.put()
    assert command("show", "7ZZZ") == (1, "", f"{PREFIX}there is no letter with the id 7ZZZ\n")
