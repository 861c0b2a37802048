"""``python -m redouble simulate``: what people and scripts see of fleets on virtual time."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

import redouble
from redouble import simulate
from redouble._cli import main
from redouble._cli import simulate as _simulate_cli
from redouble._cli.simulate import MODELS

ROOT = Path(__file__).resolve().parents[3]
SOURCE = str(Path(redouble.__file__).parent.parent)
ENVIRONMENT = {**os.environ, "PYTHONPATH": SOURCE, "COLUMNS": "80"}
PROGRAM = [sys.executable, "-W", "error", "-m", "redouble", "simulate"]

posix = pytest.mark.skipif(os.name != "posix", reason="there are no pseudo-terminals")

# Small, so that all of it takes a moment.
SMALL = {
    "contention": ["--clients", "10", "--runs", "2"],
    "budgets": ["--clients", "5", "--seconds", "2"],
    "outage": ["--clients", "40", "--think", "2", "--before", "5", "--away", "5s", "--after", "10"],
    "layers": ["--calls", "5"],
}
every_model = pytest.mark.parametrize("model", SMALL)


@pytest.fixture
def shown(capsys, monkeypatch):
    """Runs the command in this process; gives status, output and errors."""
    monkeypatch.setenv("COLUMNS", "80")

    def run(*arguments):
        capsys.readouterr()
        try:
            status = main(["simulate", *map(str, arguments)])
        except SystemExit as left:
            status = left.code
        found = capsys.readouterr()
        return status, found.out, found.err

    return run


@pytest.fixture
def small(shown):
    """The same with small parameters, for what goes well."""

    def run(model, *arguments):
        status, out, err = shown(model, *SMALL[model], *arguments)
        assert (status, err) == (0, "")
        return out

    return run


# What is shown


@pytest.mark.slow
@every_model
@pytest.mark.parametrize("width", [40, 80, 120, 300])
def test_no_line_is_wider_than_the_terminal_or_than_120_columns(small, monkeypatch, model, width):
    monkeypatch.setenv("COLUMNS", str(width))
    assert max(map(len, small(model).splitlines())) <= min(width, 120)


@pytest.mark.slow
def test_a_terminal_narrower_than_40_columns_gets_what_40_columns_hold(small, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    least = small("layers")
    monkeypatch.setenv("COLUMNS", "9")
    assert small("layers") == least


@pytest.mark.slow
@every_model
def test_a_telling_selection_is_compared_if_none_is_named(small, model):
    selection = MODELS[model].selection
    table = small(model).partition("strategy ")[2].splitlines()[1 : 1 + len(selection)]
    assert tuple(line.split()[0] for line in table) == selection
    assert len(selection) >= 4


@pytest.mark.slow
@every_model
def test_the_defaults_that_the_help_tells_are_the_defaults(shown, monkeypatch, model):
    asked = {}
    few = {} if model == "layers" else {"clients": 20}
    found = getattr(simulate, model)(**few)
    told = MODELS[model]._replace(run=lambda name, **terms: asked.update(terms) or found, selection=("x",))
    monkeypatch.setitem(MODELS, model, told)
    assert shown(model)[0] == 0
    del asked["progress"]
    assert asked == {"seed": 1, **{"contention": {"runs": 10}, "layers": {"calls": 100}}.get(model, {})}


def test_strategies_may_be_named_together_or_one_by_one_and_each_is_shown_once(small):
    out = small("budgets", "--strategy", "three_retries", "no_retries", "--strategy", "three_retries")
    rows = re.findall(r"^(\w+_retries) +[\d.]+%", out, re.MULTILINE)
    assert rows == ["three_retries", "no_retries"]


def test_contention_shows_writes_and_seconds_and_who_is_best(small):
    found = {name: simulate.contention(name, clients=10, runs=2) for name in ("no_jitter", "full_jitter")}
    out = small("contention", "--strategy", *found)
    for name, result in found.items():
        row = rf"^{name} +{result.calls:.0f} +{result.calls / 10:.1f} +{result.seconds:.1f}$"
        assert re.search(row, out, re.MULTILINE)
    assert "10 clients write one versioned row at once: mean of 2 runs, seed 1." in out
    words = " ".join(out.split("\n\n")[-1].split())
    fewest = min(found.values(), key=lambda result: result.calls)
    assert f"{fewest.strategy} needs {fewest.calls / 10:.1f}, the fewest here" in words
    assert f"the slowest is no_jitter with {found['no_jitter'].seconds:.1f} s." in words


def test_budgets_show_success_and_load(small):
    found = simulate.budgets("three_retries", clients=5, seconds=2, failure_rate=0.25)
    out = small("budgets", "--failure-rate", 0.25)
    row = rf"^three_retries +{found.success_rate:.1%} +{found.load:.2f} +{found.requests} +0$"
    assert re.search(row, out, re.MULTILINE)
    words = " ".join(out.split("\n\n")[-1].split())
    assert words.startswith("Without retries 75% of calls would succeed.")
    assert "The least load has no_retries: 1.00 times" in words


def test_layers_show_what_reaches_each_of_them(small):
    out = small("layers", "--depth", 2)
    assert re.search(r"^independent +4 16 +16 +0\.0% +\d", out, re.MULTILINE)
    assert re.search(r"^stop +1 4 +4 +0\.0% +\d", out, re.MULTILINE)
    assert re.search(r"^defer +4 7 +7 +0\.0% +\d", out, re.MULTILINE)
    assert "With independent one call of the user becomes 16 at the bottom; with" in out


@pytest.mark.slow
def test_an_outage_shows_who_recovers_and_who_does_not(shown):
    terms = ["--clients", 300, "--before", 10, "--away", 20, "--after", 20]
    names = ("full_jitter", "full_jitter+budget", "full_jitter+breaker")
    status, out, _ = shown("outage", *terms, "--strategy", *names)
    found = {name: simulate.outage(name, clients=300, before=10, away=20, after=20) for name in names}
    assert status == 0
    assert found["full_jitter"].metastable
    for name, when in zip(names, ("never", "at once", r"after \d+\.\d s"), strict=True):
        result = found[name]
        figures = rf"{result.goodput_after:.1f}/s +{result.wasted_after:.0%}"
        assert re.search(rf"^{re.escape(name)} +{result.peak} +{when} +{figures}$", out, re.MULTILINE)
    words = " ".join(out.split("\n\n")[-1].split())
    assert "Not recovered 20 s after the outage: full_jitter. Clients time out" in words
    assert "Recovered: full_jitter+budget (at once), full_jitter+breaker (after" in words
    assert words.startswith(f"Thundering herd: with full_jitter up to {found['full_jitter'].peak} requests")


def test_the_line_of_answers_is_empty_while_the_service_is_away(small):
    out = small("outage", "--strategy", "no_retries")
    axis, served = (
        next(line for line in out.splitlines() if sign in line) for sign in (" away 5 s ", "served ")
    )
    away = range(axis.index("|") + 2, axis.rindex("|") - 1)
    assert len(away) > 5
    assert {served[column] for column in away} == {" "}
    assert " " not in served[axis.rindex("|") + 1 : -9].strip()


def test_where_nothing_recovers_nothing_is_said_to_be_well(small):
    out = small("outage", "--strategy", "no_jitter", "--clients", 200, "--think", 10, "--away", 20)
    assert "Thundering herd" not in out
    assert "Not recovered" in out
    assert "Recovered:" not in out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("contention", "The minimum is one write per client. full_jitter needs 3.9."),
        ("budgets", "times the load."),
        ("outage", "Recovered: full_jitter"),
        ("layers", "becomes"),
    ],
)
def test_one_strategy_alone_is_compared_with_nothing(small, model, words):
    name = {"layers": "independent", "budgets": "three_retries", "outage": "full_jitter+budget"}
    out = small(model, "--strategy", name.get(model, "full_jitter"))
    assert words in out.split("\n\n")[-1]
    for comparison in ("fewest here", "The least load", "Thundering herd", "; with"):
        assert comparison not in out


def test_one_run_is_not_called_a_mean(small):
    assert "at once: one run, seed 3." in small("contention", "--runs", 1, "--seed", 3)


@pytest.mark.slow
def test_how_the_service_is_away_is_said(small):
    assert "It does not answer for 5 s" in " ".join(small("outage").split())
    assert "It refuses for 5 s" in " ".join(small("outage", "--no-hangs").split())


@pytest.mark.slow
@every_model
def test_the_same_seed_gives_the_same_text_and_another_seed_another(small, model):
    seeds = [1, 1, 2]
    one, same, other = (small(model, "--seed", seed) for seed in seeds)
    assert one == same
    assert one.replace("eed 1", "") != other.replace("eed 2", "")


def test_a_table_that_does_not_fit_becomes_a_list(small, monkeypatch):
    monkeypatch.setenv("COLUMNS", "50")
    out = small("outage", "--strategy", "full_jitter+budget")
    assert re.search(
        r"^full_jitter\+budget\n  peak: \d+\n  recovered: .+\n  goodput: [\d.]+/s\n", out, re.MULTILINE
    )


# For scripts


@pytest.mark.slow
@every_model
def test_json_is_one_object_on_one_line_with_every_field_of_every_result(small, model):
    out = small(model, "--json", "--seed", 7)
    assert out.count("\n") == 1
    found = json.loads(out)
    assert found["model"] == model
    assert [result["strategy"] for result in found["results"]] == list(MODELS[model].selection)
    assert {result["seed"] for result in found["results"]} == {7}


def test_json_is_what_the_model_gives(small):
    terms = {"clients": 40, "before": 5.0, "away": 5.0, "after": 10.0, "bin_seconds": 0.2, "hangs": False}
    result = simulate.outage(
        "fixed", **terms, think=2, capacity=30.5, queue=9, timeout=0.5, processes=3, together=False
    )
    given = ["--think", "2s", "--capacity", "30.5", "--queue", 9, "--timeout", "500ms", "--processes", 3]
    switches = ["--bin-seconds", 0.2, "--no-hangs", "--no-together", "--strategy", "fixed", "--json"]
    assert json.loads(small("outage", *given, *switches))["results"] == [result.as_dict()]


@pytest.mark.slow
@every_model
def test_the_chart_is_svg_in_ascii_and_names_every_strategy(small, model):
    out = small(model, "--svg", "-")
    assert out.isascii()
    text = " ".join(part for part in ET.fromstring(out).itertext())
    for name in MODELS[model].selection:
        assert name in text


@pytest.mark.slow
def test_a_chart_in_a_file_is_the_one_on_stdout_and_the_rest_is_shown_as_ever(small, tmp_path):
    path = tmp_path / "chart.svg"
    path.write_text("something longer " * 10_000)
    out = small("layers", "--svg", path)
    assert out == small("layers") + f"\nThe chart is in {path}.\n"
    assert path.read_bytes().decode() == small("layers", "--svg", "-")


@pytest.mark.slow
def test_json_and_a_chart_in_a_file_go_together(small, tmp_path):
    path = tmp_path / "chart.svg"
    assert json.loads(small("layers", "--json", "--svg", path))["model"] == "layers"
    assert path.read_text().startswith("<svg")


@pytest.mark.slow
@posix
def test_a_chart_may_go_to_what_is_no_file(small):
    assert "The chart is in /dev/null." in small("layers", "--svg", "/dev/null")


@pytest.mark.slow
@posix
def test_a_named_pipe_is_opened_once_so_that_its_reader_gets_the_whole_chart(small, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE) as reader:
        small("layers", "--svg", pipe)
        assert reader.communicate(timeout=30)[0].endswith(b"</svg>\n")


def test_an_older_chart_survives_an_interrupt(shown, tmp_path, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    path = tmp_path / "chart.svg"
    path.write_text("older")
    monkeypatch.setattr(_simulate_cli, "_results", interrupted)
    assert shown("layers", "--svg", path) == (130, "", "python -m redouble simulate layers: interrupted\n")
    assert path.read_text() == "older"


# What is wrong


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "the following arguments are required: MODEL"),
        (["outrage"], "invalid choice: 'outrage'"),
        (
            ["outage", "--strategy", "ful_jiter"],
            "there is no strategy 'ful_jiter': did you mean full_jitter?",
        ),
        (["outage", "--strategy", "full"], "did you mean full_jitter?"),
        (["outage", "--strategy", "full_jitter+breaker+budget"], "did you mean full_jitter+b"),
        (["layers", "--strategy", "zzz"], "there are independent, stop, defer, budget, defer+budget"),
        (["outage", "--strategy", "zzz"], "each also with +budget"),
        (["layers", "--strategy"], "expected at least one argument"),
        (["outage", "--clients", "0"], "--clients: must be a whole number from 1 to 1,000,000, got '0'"),
        (["outage", "--clients", "1.5"], "must be a whole number"),
        (["outage", "--clients", "9" * 5000], "must be a whole number"),
        (["outage", "--away", "nan"], "--away: must be seconds (or such as 200ms, 1.5m) from 1 to 3,600"),
        (["outage", "--away", "soon"], "got 'soon'"),
        (["outage", "--away", "0.5"], "got '0.5'"),
        (["outage", "--capacity", "nan"], "must be a number from 0.01 to"),
        (["outage", "--capacity", "inf"], "got 'inf'"),
        (["budgets", "--failure-rate", "1.1"], "must be a number from 0 to 1, got '1.1'"),
        (["budgets", "--failure-rate", "-0.1"], "must be a number from 0 to 1, got '-0.1'"),
        (["layers", "--depth", "11"], "must be a whole number from 1 to 10, got '11'"),
        (["layers", "--seed", "-1"], "must be a whole number from 0 to"),
        (["layers", "--clients", "3"], "unrecognized arguments: --clients"),
        (["outage", "--clie", "3"], "unrecognized arguments: --clie"),
    ],
)
def test_what_is_wrong_is_told_in_one_line_with_status_2(shown, arguments, complaint):
    status, out, err = shown(*arguments)
    assert (status, out) == (2, "")
    assert complaint in err
    assert err.endswith("(see --help)\n")
    assert err.count("\n") == 1
    assert err.startswith("python -m redouble simulate")


def test_json_and_a_chart_cannot_both_go_to_stdout(shown):
    complaint = "--json and --svg - cannot both go to stdout: name a file for the chart"
    expected = (2, "", f"python -m redouble simulate layers: {complaint}\n")
    assert shown("layers", "--json", "--svg", "-") == expected


@pytest.mark.parametrize("name", ["missing/chart.svg", ".", "nul\0.svg"])
def test_a_chart_that_cannot_be_written_is_status_3_before_anything_is_run(
    shown, tmp_path, monkeypatch, name
):
    monkeypatch.setattr(_simulate_cli, "_results", None)
    status, out, err = shown("layers", "--svg", f"{tmp_path}/{name}")
    assert (status, out, err.count("\n")) == (3, "", 1)
    assert err.startswith("python -m redouble simulate layers: cannot write ")
    assert "Errno" not in err


@pytest.mark.slow
@posix
@pytest.mark.parametrize("model", ["layers", "outage"], ids=["less than a buffer", "more than a buffer"])
def test_a_full_disk_below_the_chart_is_status_3(shown, model):
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full")
    status, out, err = shown(model, *SMALL[model], "--svg", "/dev/full")
    complaint = "cannot write /dev/full: No space left on device"
    assert (status, err) == (3, f"python -m redouble simulate {model}: {complaint}\n")
    assert "The chart is in" not in out


# Help


@pytest.mark.parametrize("arguments", [[], *([name] for name in SMALL)], ids="-".join)
def test_every_help_fits_80_columns_and_tells_the_exit_statuses(shown, arguments):
    status, out, _ = shown(*arguments, "--help")
    assert status == 0
    assert max(map(len, out.splitlines())) <= 80
    assert "exit status:\n" in out


@pytest.mark.slow
def test_the_examples_of_the_help_are_run(shown, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ran = []

    def run(name, **terms):
        ran.append(name)
        return simulate.layers()

    for name, model in MODELS.items():
        monkeypatch.setitem(MODELS, name, model._replace(run=run, view=MODELS["layers"].view))
    examples = re.findall(r"^  redouble simulate (.+)$", shown("--help")[1], re.MULTILINE)
    assert {example.split()[0] for example in examples} == set(SMALL)
    for example in examples:
        assert shown(*example.split())[0] == 0, example
    assert ran


def test_the_page_tells_every_option_of_every_model(shown):
    page = (ROOT / "docs" / "reference" / "command-line.md").read_text("utf-8")
    section = page.partition("\n## simulate\n")[2].partition("\n## ")[0]
    told = set(re.findall(r"`(--[a-z][a-z-]+)", section))
    for model in SMALL:
        assert set(re.findall(r"--[a-z][a-z-]+", shown(model, "--help")[1])) - {"--help"} - told == set()


@pytest.mark.slow
def test_the_page_shows_what_the_command_prints(shown):
    page = (ROOT / "docs" / "reference" / "command-line.md").read_text("utf-8")
    section = page.partition("\n## simulate\n")[2].partition("\n## ")[0]
    command, printed = re.findall(r"```(?:sh|text)\n(.*?)```", section, re.DOTALL)[:2]
    status, out, _ = shown(*command.split()[4:])
    assert (status, out) == (0, printed)


# Terminals


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.slow
@pytest.mark.parametrize(("arguments", "has_bar"), [([], True), (["--json"], False), (["--svg", "-"], False)])
def test_only_people_see_a_bar(shown, monkeypatch, arguments, has_bar):
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    assert shown("layers", *SMALL["layers"], *arguments)[0] == 0
    assert ("100%" in stream.getvalue()) is has_bar


def on_a_terminal(*arguments, interrupt=False, **environment):
    """The command with a pseudo-terminal for output and errors; gives the exit status and what was seen."""
    import pty

    ours, theirs = pty.openpty()
    how = {"env": {**ENVIRONMENT, "TERM": "xterm", **environment}, "start_new_session": True}
    child = subprocess.Popen([*PROGRAM, *arguments], stdin=theirs, stdout=theirs, stderr=theirs, **how)
    os.close(theirs)
    seen = b""
    while True:
        try:
            seen += os.read(ours, 65536)
        except OSError:  # all has been read
            break
        if interrupt and b"%" in seen:
            interrupt = False
            child.send_signal(signal.SIGINT)
    os.close(ours)
    return child.wait(timeout=30), seen.decode()


@pytest.mark.slow
@posix
def test_on_a_terminal_a_bar_comes_first_and_is_gone_before_the_text():
    status, seen = on_a_terminal("layers", *SMALL["layers"])
    assert status == 0
    bar, _, text = seen.rpartition("\r" + " " * len("[####################] 100% defer+budget") + "\r")
    assert "100% defer+budget" in bar
    assert text.startswith("\x1b[1m3 layers of services")
    assert "%" not in re.sub(r"\d+(\.\d+)?%", "", text)


@pytest.mark.slow
@posix
def test_there_is_no_colour_if_none_is_wanted_and_no_json_is_coloured():
    assert "\x1b" not in on_a_terminal("layers", *SMALL["layers"], NO_COLOR="1")[1]
    status, seen = on_a_terminal("layers", *SMALL["layers"], "--json")
    assert status == 0
    assert json.loads(seen)["model"] == "layers"


@pytest.mark.slow
@posix
def test_what_stays_down_is_red():
    _, seen = on_a_terminal("outage", "--clients", "200", "--away", "20", "--strategy", "no_jitter")
    assert re.search(r"\x1b\[31mno_jitter +\d+ +never .*\x1b\[0m", seen)


@pytest.mark.slow
@posix
def test_an_interrupt_erases_the_bar_and_is_status_130():
    started = time.monotonic()
    status, seen = on_a_terminal("contention", "--runs", "100000", interrupt=True)
    assert status == 130
    assert seen.endswith("\rpython -m redouble simulate contention: interrupted\r\n")
    assert time.monotonic() - started < 30


@pytest.mark.slow
def test_where_there_are_no_block_letters_ascii_stands_in():
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    for model in ("layers", "outage"):
        done = subprocess.run(
            [*PROGRAM, model, *SMALL[model]], env={**ENVIRONMENT, **plain}, capture_output=True, timeout=60
        )
        assert (done.returncode, done.stderr) == (0, b"")
        assert done.stdout.isascii()
        assert b"\\u" not in done.stdout
        assert b"#" in done.stdout
