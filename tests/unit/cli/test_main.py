"""The command line: what all commands share."""

from __future__ import annotations

import io
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import redouble
from redouble import __main__ as module
from redouble import _cli
from redouble._cli import COMMANDS, main, output
from redouble._cli.simulate import MODELS

ROOT = Path(__file__).resolve().parents[3]
SOURCE = str(Path(redouble.__file__).parent.parent)
ENVIRONMENT = {**os.environ, "PYTHONPATH": SOURCE}
ENVIRONMENT.pop("PYTHONUNBUFFERED", None)
PROGRAM = [sys.executable, "-W", "error", "-m", "redouble"]

posix = pytest.mark.skipif(os.name != "posix", reason="there is no such device")


def finished(*arguments: str, **how):
    """The command in a process of its own."""
    how = {"env": ENVIRONMENT, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "timeout": 60, **how}
    return subprocess.run([*PROGRAM, *arguments], text=True, **how)


def test_the_version_is_told(capsys):
    with pytest.raises(SystemExit) as left:
        main(["--version"])
    assert left.value.code == 0
    assert capsys.readouterr().out == f"redouble {redouble.__version__}\n"


@pytest.mark.parametrize("arguments", [[], ["--"]])
def test_without_a_command_the_help_lists_the_commands(capsys, arguments):
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == 0
    shown = capsys.readouterr().out
    assert all(f"\n    {name}" in shown for name in COMMANDS)


@pytest.mark.slow
def test_wrong_use_is_told_in_one_line_without_a_traceback():
    done = finished("dmeo")
    assert (done.returncode, done.stdout) == (2, "")
    assert "invalid choice: 'dmeo'" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--quiet", "demo"], "unrecognized arguments: --quiet"),
        (["exlpain"], "did you mean explain?"),
        (["--verison"], "did you mean --version?"),
        (["explain", "503", "--heeder=x"], "unrecognized arguments: --heeder=x: did you mean --header?"),
        (["simulate", "outge"], "did you mean outage?"),
        (["--", "demo", "--fast"], "unrecognized arguments: --fast"),
        (["demo", "--fast"], "unrecognized arguments: --fast"),
    ],
)
def test_what_is_wrong_is_said_with_the_way_to_the_help(capsys, arguments, complaint):
    with pytest.raises(SystemExit) as left:
        main(arguments)
    shown = capsys.readouterr()
    assert left.value.code == 2
    assert complaint in shown.err
    assert shown.err.endswith("(see --help)\n")
    assert shown.err.count("\n") == 1


EVERY = [
    [],
    *([name] for name in COMMANDS),
    *(["simulate", name] for name in MODELS),
    *(["dead-letters", name] for name in ("list", "show", "replay", "unpark", "discard", "purge")),
]


@pytest.mark.parametrize("columns", [40, 80, 200])
@pytest.mark.parametrize("command", EVERY, ids="-".join)
def test_every_help_teaches_and_fits_the_terminal_up_to_80_columns(capsys, command, columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    with pytest.raises(SystemExit) as left:
        main([*command, "--help"])
    shown = capsys.readouterr().out
    assert left.value.code == 0
    assert "exit status:\n" in shown or "examples:\n" in shown
    assert max(map(len, shown.splitlines())) <= min(columns, 80)


def test_the_help_of_all_names_every_command(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = capsys.readouterr().out
    assert [name for name in COMMANDS if not re.search(rf"^    {name}\b", shown, re.MULTILINE)] == []


def test_the_page_tells_every_option_of_every_command(capsys):
    page = (ROOT / "docs" / "reference" / "command-line.md").read_text("utf-8")
    for name in COMMANDS.keys() - {"simulate", "dead-letters"}:  # whose subcommands have tests of their own
        with pytest.raises(SystemExit):
            main([name, "--help"])
        section = page.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
        options = set(re.findall(r"--[a-z][a-z-]+", capsys.readouterr().out)) - {"--help"}
        told = set(re.findall(r"`(--[a-z][a-z-]+)", section))
        assert options - told == set(), name


@pytest.mark.parametrize("name", ["explain", "preview"])
def test_the_page_shows_what_a_command_prints(capsys, monkeypatch, name):
    monkeypatch.setenv("COLUMNS", "80")
    page = (ROOT / "docs" / "reference" / "command-line.md").read_text("utf-8")
    section = page.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
    command, shown = re.findall(r"```(?:sh|text)\n(.*?)```", section, re.DOTALL)[:2]
    main(shlex.split(command)[1:])
    assert capsys.readouterr().out.startswith(shown.removesuffix("...\n"))


@pytest.mark.parametrize(
    ("called", "name"),
    [
        ("/usr/local/bin/redouble", "redouble"),
        ("redouble.exe", "redouble"),
        ("/somewhere/redouble/__main__.py", "python -m redouble"),
    ],
)
def test_the_program_calls_itself_as_it_was_called(capsys, monkeypatch, called, name):
    monkeypatch.setattr(sys, "argv", [called, "demo", "-x"])
    with pytest.raises(SystemExit):
        main()
    assert capsys.readouterr().err == f"{name} demo: unrecognized arguments: -x (see --help)\n"


def test_the_script_that_is_installed_leads_to_the_same_function():
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"redouble": f"{main.__module__}:{main.__name__}"}


@pytest.mark.slow
def test_a_command_is_loaded_only_when_it_is_asked_for():
    code = "import sys, redouble.__main__; print(*[name for name in sys.modules if name.startswith('redouble._')])"
    done = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True)
    loaded = set(done.stdout.split())
    assert "redouble._cli.output" in loaded
    assert loaded.isdisjoint(
        {f"redouble._cli.{name}" for name in ("demo", "preview", "run", "simulate", "dead_letters")}
    )


# Readers that go away, and other trouble with the output


class GoneReader(io.StringIO):
    """A stream whose reader has gone."""

    def __init__(self, error: OSError) -> None:
        super().__init__()
        self.error = error

    def write(self, text: str) -> int:
        raise self.error


@pytest.fixture
def discarded(monkeypatch):
    streams: list[object] = []
    monkeypatch.setattr(_cli, "discard_output", streams.append)
    monkeypatch.setattr(output, "discard_output", streams.append)
    return streams


def test_a_reader_that_has_gone_is_no_trouble(monkeypatch, discarded, capsys):
    stream = GoneReader(BrokenPipeError(32, "Broken pipe"))
    monkeypatch.setattr(sys, "stdout", stream)
    assert main(["preview"]) == 0
    assert discarded == [stream]
    assert capsys.readouterr().err == ""


def test_output_that_cannot_be_written_is_told_in_one_line(monkeypatch, discarded, capsys):
    monkeypatch.setattr(sys, "stdout", GoneReader(OSError(28, "No space left on device")))
    assert main(["preview"]) == 3
    assert capsys.readouterr().err == "python -m redouble preview: [Errno 28] No space left on device\n"


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["--help"], ["demo"], ["preview"], ["run", "--help"]], ids=" ".join)
def test_no_command_leaves_a_traceback_when_its_reader_goes_away(arguments):
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as stream:
        done = finished(*arguments, stdout=stream)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
@posix
def test_a_full_disk_is_told_in_one_line():
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full")
    with Path("/dev/full").open("w") as stream:
        done = finished("preview", stdout=stream)
    assert done.returncode == 3
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_a_closed_output_is_no_trouble(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    assert main(["preview"]) == 0


def test_a_complaint_that_nobody_can_read_is_dropped_and_never_goes_to_the_output(
    monkeypatch, discarded, capsys
):
    monkeypatch.setattr(sys, "stderr", None)
    assert main(["preview", "--attempts", "0"]) == 2
    stream = GoneReader(BrokenPipeError(32, "Broken pipe"))
    monkeypatch.setattr(sys, "stderr", stream)
    assert main(["preview", "--attempts", "0"]) == 2
    assert discarded == [stream]
    assert capsys.readouterr().out == ""


def test_an_interrupt_is_status_130_and_one_line(monkeypatch, capsys):
    def interrupted(arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(_cli, "_load", lambda command: interrupted)
    assert main(["demo"]) == 130
    assert capsys.readouterr().err == "python -m redouble: interrupted\n"


def test_the_module_that_python_runs_has_the_main_of_the_command_line():
    assert module.main is main


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_a_function_of_its_name(name):
    assert _cli._load(name).__name__ == name.replace("-", "_")
