"""``redouble dead-letters``: discard and unpark, wrong usage, unusable files, exit statuses."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from redouble._cli import main
from support.letters_command import FAILS, PREFIX, SOURCE, finished, records
from support.pages import DOCS

# unpark, discard


def test_a_parked_letter_that_is_unparked_waits_again(command, letters, handler):
    letter = letters.put()
    assert command("replay", handler(FAILS), "--park-after", 1)[0] == 1
    assert command("unpark", letter.id[:20]) == (0, f"unparked {letter.id}\n", "")
    assert letters.get(letter.id).state == "waiting"
    assert command("unpark", letter.id) == (1, "", f"{PREFIX}{letter.id} is not parked: it is waiting\n")


def test_discard_throws_away_what_is_named_and_says_what_is_not_there(command, letters):
    put = [letters.put().id for _ in range(3)]
    status, out, err = command("discard", put[0], "7ZZZ", put[2].lower())
    assert (status, out) == (1, f"discarded {put[0]}\ndiscarded {put[2]}\n")
    assert err == f"{PREFIX}there is no letter with the id 7ZZZ; to discard, give the whole id\n"
    assert [letter.id for letter in letters.list()] == [put[1]]


def test_the_beginning_of_an_id_is_not_enough_to_discard_a_letter(command, letters):
    letter = letters.put()
    assert command("discard", letter.id[:-1])[0] == 1
    assert command("discard", letter.id) == (0, f"discarded {letter.id}\n", "")


# Usage and trouble


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["list", "f", "--limit", "0"], "must be a whole number from 1 to 1,000,000,000,000,000, got '0'"),
        (["list", "f", "--limit", "-1"], "must be a whole number from 1 to 1,000,000,000,000,000, got '-1'"),
        (["list", "f", "--limit", "many"], "must be a whole number from 1 to 1,000,000,000,000,000, got 'many'"),
        (["list", "f", "--limit", "9" * 5000], "must be a whole number from 1 to"),
        (["list", "f", "--queue", ""], "must not be empty"),
        (["list", "f", "--state", "lost"], "invalid choice: 'lost'"),
        (["list", "f", "--quue", "q"], "unrecognized arguments: --quue q"),
        (["list", "f", "--js"], "unrecognized arguments: --js"),
        (["show", "f"], "the following arguments are required: ID"),
        (["show", "f", ""], "must be letters and digits, got ''"),
        (["show", "f", "01%"], "must be letters and digits, got '01%'"),
        (["replay", "f", "module"], "must be written as module:function, got 'module'"),
        (["replay", "f", "module:"], "must be written as module:function, got 'module:'"),
        (["replay", "f", "m:f", "--id", "1", "--queue", "q"], "not allowed with argument"),
        (["replay", "f", "m:f", "--lease", "0"], "must be seconds (or such as 200ms, 1.5m) from 0.001 to 86,400, got '0'"),
        (["replay", "f", "m:f", "--lease", "25h"], "must be seconds (or such as 200ms, 1.5m) from 0.001 to 86,400, got '25h'"),
        (["replay", "f", "m:f", "--lease", ""], "must be seconds (or such as 200ms, 1.5m)"),
        (["purge", "f", "--older-than", "14"], "must be a figure and one of d, h, m, s, such as 14d, got '14'"),
        (["purge", "f", "--older-than=-1d"], "must be seconds (or such as 200ms, 1.5m) from 0 to 1,000,000,000, got '-1d'"),
        (["purge", "f", "--older-than", "nand"], "must be seconds (or such as 200ms, 1.5m) from 0 to 1,000,000,000, got 'nand'"),
        (["purge", "f", "--older-than", "1" * 400 + "d"], "must be seconds (or such as 200ms, 1.5m)"),
        (["discard", "f"], "the following arguments are required: ID"),
        (["eat", "f"], "invalid choice: 'eat'"),
        ([], "the following arguments are required: COMMAND"),
    ],
)  # fmt: skip
def test_wrong_usage_is_status_2_and_says_what_would_be_right(capsys, arguments, complaint):
    with pytest.raises(SystemExit) as left:
        main(["dead-letters", *[str(argument) for argument in arguments]])
    assert left.value.code == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize("name", ["list", "show", "replay", "unpark", "discard", "purge"])
def test_the_help_of_each_command_tells_the_statuses(capsys, name):
    with pytest.raises(SystemExit) as left:
        main(["dead-letters", name, "--help"])
    shown = capsys.readouterr().out
    assert left.value.code == 0
    assert re.findall(r"^  (\d+) ", shown.partition("exit status:\n")[2], re.MULTILINE) == [
        "0",
        "1",
        "2",
        "3",
        "130",
    ]


def test_the_page_about_it_tells_the_statuses_and_every_option(capsys):
    page = (DOCS / "reference" / "command-line.md").read_text("utf-8")
    statuses = page.partition("## Exit status\n")[2].partition("\n## ")[0]
    assert re.findall(r"^\| (\d+) \|", statuses, re.MULTILINE) == ["0", "1", "2", "3", "130"]

    def told(section):
        return set(re.findall(r"--[a-z][a-z-]+", page.partition(f"### {section}\n")[2].partition("\n##")[0]))

    shared = told("Store and selection")
    own = {name: told(name) for name in ("list", "show", "replay", "unpark", "discard", "purge")}
    for name in own:
        with pytest.raises(SystemExit):
            main(["dead-letters", name, "--help"])
        options = set(re.findall(r"^  (--[a-z][a-z-]+)", capsys.readouterr().out, re.MULTILINE))
        assert options - shared == own[name] - shared, name
    assert shared == {
        "--redis", "--redis-key", "--queue", "--function", "--error", "--older-than", "--newer-than"
    }  # fmt: skip


def test_the_help_of_all_names_this_command(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "dead-letters" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [["list"], ["show", "1"], ["replay", "m:f"], ["unpark", "1"], ["discard", "1"], ["purge", "--yes"]],
    ids=lambda arguments: arguments[0],
)
def test_a_file_that_is_not_there_is_status_3_and_is_not_made(command, path, arguments):
    assert command(*arguments) == (3, "", f"{PREFIX}there is no file {path}\n")
    assert not Path(path).exists()


@pytest.mark.slow
def test_a_file_of_something_else_is_status_3_and_one_line_and_stays_as_it_is(path, tmp_path):
    Path(path).write_text("notes of somebody, long enough not to be mistaken\n" * 100)
    before = Path(path).read_bytes()
    status, out, err = finished("list", path, cwd=tmp_path)
    assert (status, out) == (3, "")
    assert err.startswith(f"{PREFIX}dead letters in {path} cannot be used (DatabaseError: ")
    assert err.count("\n") == 1
    assert Path(path).read_bytes() == before


def test_a_directory_is_no_file_of_letters(tmp_path, capsys):
    assert main(["dead-letters", "list", str(tmp_path)]) == 3
    assert "Traceback" not in capsys.readouterr().err


def test_a_letter_written_by_somebody_else_without_its_times_is_listed(command, letters, path):
    import sqlite3

    letters.put(error="lost")
    letters.close()
    connection = sqlite3.connect(path)
    connection.execute("UPDATE letters SET content = '{}'")
    connection.commit()
    connection.close()
    assert " ?    1         waiting  default " in command("list")[1]


@pytest.mark.slow
def test_the_command_runs_in_a_process_of_its_own_and_finds_handlers_where_it_is_called(
    letters, path, tmp_path
):
    letters.put(payload=7)
    (tmp_path / "handlers.py").write_text(
        "class Shop:\n    @staticmethod\n    def ship(letter): print(letter.payload)\n"
    )
    status, out, err = finished("list", path, "--json", cwd=tmp_path)
    assert (status, err) == (0, "")
    assert records(out)[0]["payload"] == 7
    status, out, err = finished("replay", path, "handlers:Shop.ship", cwd=tmp_path)
    assert (status, out, err) == (0, "7\n1 replayed, 0 failed, 0 parked, 0 skipped\n", "")
    assert finished("show", path, "01", cwd=tmp_path)[0] == 1


# What is loaded


@pytest.mark.slow
def test_the_demo_loads_nothing_of_this_and_this_loads_only_what_it_needs(letters, path, tmp_path):
    letters.put()
    code = f"""
        import sys
        from redouble._cli import _parse, main
        _parse(["demo"])
        assert not {{"redouble.dead_letters", "redouble._cli.dead_letters", "sqlite3"}} & set(sys.modules)
        import redouble._cli.dead_letters
        assert not {{"asyncio", "pkgutil"}} & set(sys.modules)
        main(["dead-letters", "list", {path!r}, "--json"])
        assert not {{"redouble._cli.demo", "asyncio", "pkgutil"}} & set(sys.modules)
    """
    done = subprocess.run(
        [sys.executable, "-S", "-c", textwrap.dedent(code)],
        env={**os.environ, "PYTHONPATH": SOURCE},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
