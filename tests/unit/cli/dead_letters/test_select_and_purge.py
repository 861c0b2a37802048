"""``redouble dead-letters``: options that select letters, and ``purge``, which asks before it deletes."""

from __future__ import annotations

import io
import sys
import time

import pytest

from redouble.dead_letters import DeadLetters
from support.letters_command import PREFIX, SUCCEEDS, records

# Options that select


@pytest.fixture
def put(path):
    """Puts letters, each as old as it says; gives the ids by their payloads."""
    now = [0.0]
    ids: dict[str, str] = {}
    with DeadLetters(path, ttl=None, clock=lambda: now[0]) as box:

        def run(payload: str, hours: float = 0.0, **fields):
            now[0] = time.time() - 3600 * hours
            ids[payload] = box.put(payload=payload, **fields).id
            return ids

        yield run


@pytest.fixture
def some(put):
    put("ship 30", 30, function="shop.Client.ship", error=TimeoutError("no answer"))
    put("ship 3", 3, function="shop.Client.ship", error=ConnectionResetError("reset by peer"))
    put("relationship", 2, function="shop.relationship", error="HTTP 503", failure_code="503")
    return put("pay", 1, queue="bulk", function="pay.send", error=ValueError("Timeout is not a number"))


SELECTED = [
    ([], ["ship 30", "ship 3", "relationship", "pay"]),
    (["--function", "ship"], ["ship 30", "ship 3"]),
    (["--function", "Client.ship"], ["ship 30", "ship 3"]),
    (["--function", "shop.Client.ship"], ["ship 30", "ship 3"]),
    (["--function", "*ship"], ["ship 30", "ship 3", "relationship"]),
    (["--function", "shop.*"], ["ship 30", "ship 3", "relationship"]),
    (["--function", "SHIP"], []),
    (["--error", "timeout"], ["ship 30", "pay"]),
    (["--error", "TimeoutError: no"], ["ship 30"]),
    (["--error", "503"], ["relationship"]),
    (["--error", "server_error"], []),
    (["--older-than", "150m"], ["ship 30", "ship 3"]),
    (["--newer-than", "1d"], ["ship 3", "relationship", "pay"]),
    (["--older-than", "150m", "--newer-than", "1d"], ["ship 3"]),
    (["--newer-than", "0s"], []),
    (["--queue", "bulk", "--error", "timeout"], ["pay"]),
]


@pytest.mark.parametrize(("options", "payloads"), SELECTED, ids=lambda value: " ".join(value))
def test_a_list_has_the_letters_that_match_all_options(command, some, options, payloads):
    assert [letter["payload"] for letter in records(command("list", "--json", *options)[1])] == payloads


@pytest.mark.parametrize(("options", "payloads"), SELECTED, ids=lambda value: " ".join(value))
def test_a_replay_and_a_purge_are_of_the_letters_that_the_list_has(
    command, some, handler, options, payloads, letters
):
    queue = [] if "--queue" in options else ["--queue", "default"]
    in_queue = [payload for payload in payloads if queue == [] or payload != "pay"]
    dry = command("purge", "--older-than", "0s", "--dry-run", *queue, *options)[1]
    assert [payload for payload, id in some.items() if id in dry] == in_queue
    status, out, _ = command("replay", handler(SUCCEEDS), *queue, *options)
    assert status == 0
    assert [line.removeprefix("handling ") for line in out.splitlines()[:-1]] == in_queue


@pytest.mark.parametrize(("options", "payloads"), SELECTED, ids=lambda value: " ".join(value))
def test_a_purge_deletes_what_its_dry_run_lists(command, some, options, payloads, letters):
    if "--queue" not in options:
        options = ["--queue", "default", *options]
        payloads = [payload for payload in payloads if payload != "pay"]
    if "--older-than" not in options:
        options = ["--older-than", "0s", *options]
    status, out, err = command("purge", "--yes", *options)
    assert (status, err) == (0, "")
    assert out.startswith(f"purged {len(payloads)} letter")
    assert [payload for payload, id in some.items() if letters.get(id) is None] == payloads


def test_a_list_that_matches_nothing_says_so(command, some):
    assert command("list", "--error", "disk") == (
        0,
        "No letter matches the options.\n\nbulk: 1 waiting or leased, 0 parked\n"
        "default: 3 waiting or leased, 0 parked\n",
        "",
    )


def test_a_replay_that_matches_nothing_says_so(command, some, handler):
    status, out, err = command("replay", handler(SUCCEEDS), "--error", "disk")
    assert (status, out) == (0, "0 replayed, 0 failed, 0 parked, 0 skipped\n")
    assert err == f"{PREFIX}no waiting letter of the queue default matches the options\n"


def test_one_letter_is_replayed_only_if_it_matches(command, some, handler):
    name = handler(SUCCEEDS)
    assert command("replay", name, "--id", some["pay"], "--error", "disk")[0] == 1
    assert command("replay", name, "--id", some["pay"], "--error", "timeout")[0] == 0


def test_a_letter_without_a_function_or_an_error_matches_no_name(command, put):
    put("bare")
    assert command("list", "--json", "--function", "*")[1] == ""
    assert command("list", "--json", "--error", "None")[1] == ""


# purge


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def answer(monkeypatch):
    """Puts somebody in front of a terminal who answers with this text."""
    return lambda text: monkeypatch.setattr(sys, "stdin", Terminal(text))


@pytest.fixture(autouse=True)
def nobody(monkeypatch):
    """Tests run without a terminal."""
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))


def test_purge_throws_away_the_old_letters_of_one_queue(command, put, letters):
    for days, queue in [(20, "default"), (20, "bulk"), (5, "default"), (0.1, "default")]:
        put(f"{days} {queue}", 24 * days, queue=queue)
    assert command("purge", "--yes") == (0, "purged 1 letter of the queue default\n", "")
    assert letters.depths() == {"bulk": 1, "default": 2}

    def purged(*options):
        return command("purge", "--yes", *options)[1].removeprefix("purged ").partition(" of")[0]

    assert purged("--older-than", "121h") == "0 letters"
    assert purged("--older-than", "4.5d") == "1 letter"
    assert purged("--older-than", "150m") == "0 letters"
    assert purged("--older-than", "30s") == "1 letter"
    assert purged("--queue", "bulk") == "1 letter"


@pytest.mark.parametrize("stdin", [io.StringIO("y\n"), None], ids=["a pipe", "closed"])
def test_without_a_terminal_to_ask_purge_deletes_nothing_unless_told_to(
    command, put, letters, monkeypatch, stdin
):
    monkeypatch.setattr(sys, "stdin", stdin)
    put("old", 999)
    assert command("purge") == (
        2,
        "",
        f"{PREFIX}purge deletes letters, and there is no terminal to ask: "
        "add --yes to delete them, or --dry-run to list them\n",
    )
    assert letters.depth() == 1


@pytest.mark.parametrize("text", ["y\n", "YES\n", " yes \n"])
def test_purge_deletes_if_the_answer_is_yes(command, put, letters, answer, text):
    put("old", 999)
    answer(text)
    assert command("purge") == (
        0,
        "purged 1 letter of the queue default\n",
        "Delete 1 letter of the queue default? [y/N] ",
    )
    assert letters.depth() == 0


@pytest.mark.parametrize("text", ["n\n", "\n", "", "yesterday\n"])
def test_purge_deletes_nothing_if_the_answer_is_anything_else(command, put, letters, answer, text):
    put("old", 999)
    put("older", 9999)
    answer(text)
    status, out, err = command("purge")
    assert (status, out) == (1, "nothing was deleted\n")
    assert err == "Delete 2 letters of the queue default? [y/N] "
    assert letters.depth() == 2


@pytest.mark.parametrize("options", [[], ["--function", "ship"]], ids=["by age", "by function"])
def test_a_letter_that_is_put_before_the_answer_stays(command, put, letters, monkeypatch, options):
    put("old", 1, function="ship")

    class Slow(Terminal):
        def readline(self):
            put("new", function="ship")
            return "y\n"

    monkeypatch.setattr(sys, "stdin", Slow())
    assert command("purge", "--older-than", "0s", *options)[1] == "purged 1 letter of the queue default\n"
    assert [letter.payload for letter in letters.list()] == ["new"]


def test_purge_does_not_ask_if_there_is_nothing_to_delete(command, put, answer):
    put("new")
    answer("n\n")
    assert command("purge") == (0, "purged 0 letters of the queue default\n", "")


def test_a_dry_run_lists_the_letters_and_deletes_nothing_also_with_yes(command, put, letters):
    old = put("old", 999, error="lost")["old"]
    new = put("new")["new"]
    status, out, err = command("purge", "--dry-run", "--yes")
    assert (status, err) == (0, "")
    assert old in out
    assert new not in out
    assert out.endswith("\n\n1 letter of the queue default would be deleted\n")
    assert letters.depth() == 2


@pytest.mark.parametrize("options", [[], ["--error", "lost"]], ids=["by age", "by error"])
def test_a_letter_that_is_being_replayed_is_neither_listed_nor_deleted(command, put, letters, options):
    put("old", 999, error="lost")
    shown = []

    def handler(letter):
        shown.append(command("purge", "--dry-run", *options)[1])
        shown.append(command("purge", "--yes", *options)[1])

    DeadLetters(letters.store, ttl=None).replay(handler)
    assert shown == [
        "0 letters of the queue default would be deleted\n",
        "purged 0 letters of the queue default\n",
    ]
