"""``python -m redouble preview``: the waits of a policy, as people and scripts see them."""

from __future__ import annotations

import json
import os
from itertools import accumulate

import pytest

from redouble import Policy
from redouble._cli import main
from redouble._cli import preview as _preview
from redouble.backoff import decorrelated_jitter, equal_jitter, exponential, fixed

PREFIX = "python -m redouble preview: "


@pytest.fixture
def preview(capsys):
    """Runs the command in this process; gives status, output and errors."""

    def run(*arguments):
        capsys.readouterr()
        try:
            status = main(["preview", *map(str, arguments)])
        except SystemExit as left:
            status = left.code
        shown = capsys.readouterr()
        return status, shown.out, shown.err

    return run


@pytest.fixture
def as_json(preview):
    def run(*arguments):
        status, out, err = preview("--json", *arguments)
        assert (status, err, out.count("\n")) == (0, "", 1)
        return json.loads(out)

    return run


# The figures


@pytest.mark.slow
def test_a_wait_without_jitter_is_one_figure_and_the_sums_add_up(as_json):
    shown = as_json("--backoff", "exponential", "--attempts", 6, "--base", 0.5, "--cap", 3)
    waits = [0.5, 1.0, 2.0, 3.0, 3.0]
    assert [row["attempt"] for row in shown["retries"]] == [2, 3, 4, 5, 6]
    for name in ("shortest", "typical", "longest"):
        assert [row["wait"][name] for row in shown["retries"]] == waits
        assert [row["waited"][name] for row in shown["retries"]] == list(accumulate(waits))
    assert shown["worst_case"] == 9.5
    assert shown["total"] == {"p50": 9.5, "p90": 9.5, "p99": 9.5}
    assert shown["complete"] is True


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backoff", "shortest", "longest"),
    [
        ("full", [0.0, 0.0, 0.0], [1.0, 2.0, 4.0]),
        ("equal", [0.5, 1.0, 2.0], [1.0, 2.0, 4.0]),
        ("decorrelated", [1.0, 1.0, 1.0], [3.0, 9.0, 27.0]),
        ("proportional", [0.75, 1.5, 3.0], [1.25, 2.5, 5.0]),
        ("additive", [1.0, 2.0, 4.0], [2.0, 3.0, 5.0]),
        ("linear", [1.0, 2.0, 3.0], [1.0, 2.0, 3.0]),
        ("full_jitter", [0.0, 0.0, 0.0], [1.0, 2.0, 4.0]),
    ],
)
def test_the_ends_of_each_wait_are_exact(as_json, backoff, shortest, longest):
    rows = as_json("--backoff", backoff)["retries"]
    assert [row["wait"]["shortest"] for row in rows] == shortest
    assert [row["wait"]["longest"] for row in rows] == longest
    for row in rows:
        assert row["wait"]["shortest"] <= row["wait"]["typical"] <= row["wait"]["longest"]


@pytest.mark.slow
def test_percentiles_are_those_of_the_policys_own_waits(as_json):
    shown = as_json("--seed", 3)
    assert shown["total"]["p50"] == pytest.approx(3.5, abs=0.15)  # the mean of three uniform waits up to 7 s
    assert shown["total"]["p50"] < shown["total"]["p90"] < shown["total"]["p99"] < 7.0
    assert shown["calls_drawn"] == 5000


@pytest.mark.slow
def test_the_same_seed_gives_the_same_figures_and_another_gives_others(as_json):
    assert as_json("--seed", 7) == as_json("--seed", 7)
    assert as_json("--seed", 7)["total"] != as_json("--seed", 8)["total"]


def test_a_percentile_is_the_total_that_so_many_calls_stay_within():
    totals = [float(total) for total in range(100)]
    assert _preview._percentiles(totals) == {"p50": 50.0, "p90": 90.0, "p99": 99.0}


@pytest.mark.slow
def test_a_wait_that_does_not_fit_the_deadline_is_not_made(as_json):
    shown = as_json("--backoff", "exponential", "--attempts", 9, "--deadline", 7)
    # 1 + 2 fit below 7 s, and 4 more would end just at the deadline, which is too late.
    assert [row["attempt"] for row in shown["retries"]] == [2, 3]
    assert shown["total"]["p99"] == 3.0
    assert shown["worst_case"] == 7.0


@pytest.mark.slow
def test_with_a_deadline_the_share_of_calls_that_reach_an_attempt_is_told(as_json, preview):
    rows = as_json("--attempts", 4, "--deadline", 2)["retries"]
    assert rows[0]["reached"] == 1.0
    assert 1.0 > rows[1]["reached"] > rows[2]["reached"] > 0.0
    assert rows[1]["reached"] == pytest.approx(0.75, abs=0.03)  # of a sum of waits up to 1 s and up to 2 s
    assert "reached\n" in preview("--deadline", 2)[1]
    assert "reached" not in preview()[1]


@pytest.mark.slow
def test_attempts_without_a_limit_are_followed_so_far_and_that_is_told(preview, as_json, monkeypatch):
    monkeypatch.setattr(_preview, "_COUNTED", 20)
    arguments = ("--attempts", "none", "--deadline", 10, "--base", 0)
    assert as_json(*arguments)["complete"] is False
    assert "Only the first 20 waits are counted." in preview(*arguments)[1]
    assert as_json("--attempts", 21)["complete"] is True
    assert as_json("--attempts", 22)["complete"] is False


@pytest.mark.slow
def test_a_cap_without_limit_is_null_in_json(as_json):
    assert as_json("--cap", "inf")["policy"] == {
        "attempts": 4,
        "base": 1.0,
        "cap": None,
        "floor": 0.0,
        "deadline": None,
        "give_up_after": None,
        "backoff": "full_jitter",
    }


@pytest.mark.parametrize("arguments", [["--attempts", 1], ["--file", "off.json"]])
def test_a_policy_that_never_waits_has_no_table(preview, arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "off.json").write_text('{"enabled": false}')
    status, out, _ = preview(*arguments)
    assert status == 0
    assert out.startswith("Worst case:     0.000 s of waiting\n")


# What is shown


@pytest.mark.slow
def test_the_table_is_readable_and_the_description_comes_last(preview):
    status, out, err = preview("--backoff", "exponential", "--base", "200ms", "--cap", "5s")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[:8] == [
        "         wait before it, in seconds    waited so far, in seconds",
        "attempt  shortest   typical   longest  shortest   typical   longest",
        "      2     0.200     0.200     0.200     0.200     0.200     0.200",
        "      3     0.400     0.400     0.400     0.600     0.600     0.600",
        "      4     0.800     0.800     0.800      1.40      1.40      1.40",
        "",
        "Worst case:     1.40 s of waiting",
        "Total waiting:  p50 1.40 s, p90 1.40 s, p99 1.40 s, of 5000 calls that never",
    ]
    described = Policy(base=0.2, cap=5.0, backoff=exponential).describe()
    assert " ".join(out.partition("seed 1)\n")[2].split()) == " ".join(described.split())


@pytest.mark.slow
@pytest.mark.parametrize("attempts", [3, 200])
def test_everything_fits_80_columns(preview, attempts):
    _, out, _ = preview("--attempts", attempts, "--cap", "inf", "--deadline", "100000000")
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.slow
def test_of_many_attempts_the_first_and_the_last_are_shown(preview):
    _, out, _ = preview("--attempts", 30, "--backoff", "fixed")
    table = out.partition("\n\n")[0].splitlines()[2:]
    assert [line.split()[0] for line in table] == [*map(str, range(2, 13)), "...", "30"]
    assert table[-2] == "    ...  17 more"
    for attempts, last in ((12, "12"), (13, "13"), (14, "14")):
        table = preview("--attempts", attempts, "--backoff", "fixed")[1].partition("\n\n")[0].splitlines()
        assert table[-1].split()[0] == last
        assert any("more" in line for line in table) == (attempts == 14)


# Where a policy is written


@pytest.fixture
def file(tmp_path):
    def write(text, name="retry.toml"):
        path = tmp_path / name
        path.write_text(text)
        return str(path)

    return write


@pytest.mark.slow
def test_a_policy_is_read_from_a_table_of_a_toml_file(as_json, file):
    path = file('[payments]\nmax_attempts = 3\nbase_delay_ms = 100\n[tool.retry]\njitter = "equal"\n')
    shown = as_json("--file", path, "--table", "payments")["policy"]
    assert (shown["attempts"], shown["base"]) == (3, 0.1)
    assert as_json("--file", path, "--table", "tool.retry")["policy"]["backoff"] == equal_jitter.__name__


def test_a_policy_is_read_from_a_json_file(as_json, file):
    path = file('{"attempts": 2, "rules": {"timeout": {"attempts": 2}}}', "retry.JSON")
    assert as_json("--file", path)["policy"]["attempts"] == 2


@pytest.mark.slow
def test_a_policy_is_read_from_the_environment(as_json, monkeypatch):
    monkeypatch.setenv("PAYMENTS_RETRY_ATTEMPTS", "3")
    monkeypatch.setenv("PAYMENTS_RETRY_BACKOFF", "fixed")
    for prefix in ("PAYMENTS_RETRY", "PAYMENTS_RETRY_"):
        shown = as_json("--env", prefix)["policy"]
        assert (shown["attempts"], shown["backoff"]) == (3, fixed.__name__)


@pytest.mark.slow
def test_an_environment_without_such_variables_is_told(preview):
    status, out, err = preview("--env", "NOBODY_SET_THIS")
    assert (status, out[:6]) == (0, "      ")
    assert err == f"{PREFIX}no environment variable begins with NOBODY_SET_THIS_, so these are the defaults\n"


@pytest.mark.slow
def test_options_are_laid_over_what_is_written(as_json, file):
    path = file("attempts = 3\nbase = 0.5\n")
    shown = as_json("--file", path, "--attempts", 5, "--backoff", "decorrelated")["policy"]
    assert (shown["attempts"], shown["base"], shown["backoff"]) == (5, 0.5, decorrelated_jitter.__name__)


# What is wrong


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--attempts", "0"], "attempts must be at least 1 (the first call counts), got 0"),
        (["--attempts", "many"], "attempts must be a whole number, 'none' or 'inf', got 'many'"),
        (["--attempts", "none"], "attempts must not be None without a deadline or give_up_after: such a call may never end"),
        (["--base", "nan"], "base must be a duration such as '100ms', '20s' or '1.5m', got 'nan'"),
        (["--base=-1"], "base must be a duration such as '100ms', '20s' or '1.5m', got '-1'"),
        (["--deadline", "0"], "deadline must be above 0 seconds (None for no limit), got 0.0"),
        (["--backoff", "ful"], "backoff must be one of additive_jitter, "),
        (["--seed", "x"], "argument --seed: invalid int value: 'x'"),
        (["--table", "payments"], "--table names a table in a file: --file is missing"),
        (["--file", "a", "--env", "B"], "not allowed with argument"),
        (["--env", ""], "prefix must not be empty"),
        (["--file", "nowhere.toml"], "cannot read nowhere.toml: No such file or directory"),
        (["--file", "."], "cannot read .: Is a directory"),
        (["--file", "bad.toml"], "bad.toml: Expected '=' after a key in a key/value pair"),
        (["--file", "bad.json"], "bad.json: Expecting value: line 1 column 1 (char 0)"),
        (["--file", "deep.json"], "deep.json is nested too deeply to be read"),
        (["--file", "binary.toml"], "binary.toml: 'utf-8' codec can't decode"),
        (["--file", "list.json"], "list.json: a policy needs a mapping of field names to values, got [1]"),
        (["--file", "list.json", "--table", "a"], "there is no table a in list.json: there are none"),
        (["--file", "typo.toml", "--table", "a"], "typo.toml: unknown policy field 'atempts': did you mean 'attempts'?"),
        (["--file", "typo.toml", "--table", "c"], "there is no table c in typo.toml: there are a, b"),
        (["--file", "typo.toml"], "typo.toml has tables: name one of them with --table (a, b)"),
        (["--file", "typo.toml", "--table", "b"], "typo.toml: base must be finite and not negative, got nan"),
        (["--att", "3"], "unrecognized arguments: --att 3"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_in_one_line_and_is_status_2(
    preview, arguments, complaint, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.toml").write_text("attempts 3")
    (tmp_path / "bad.json").write_text("attempts 3")
    (tmp_path / "deep.json").write_text("[" * 100_000)
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "typo.toml").write_text("[a]\natempts = 3\n[b]\nbase = nan\n")
    if os.name == "nt" and arguments[-1] == ".":
        pytest.skip("a directory is a refused permission there")
    status, out, err = preview(*arguments)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(PREFIX + complaint) or complaint in err


# A floor, give_up_after, and attempts for ever


def test_a_floor_bounds_the_waits_from_below(as_json):
    shown = as_json("--floor", "1500ms", "--attempts", 4)
    assert [row["wait"]["shortest"] for row in shown["retries"]] == [1.5, 1.5, 1.5]
    assert [row["wait"]["longest"] for row in shown["retries"]] == [1.5, 2.0, 4.0]
    assert shown["policy"]["floor"] == 1.5


def test_give_up_after_ends_calls_as_a_deadline_does(as_json, preview):
    shown = as_json("--backoff", "exponential", "--attempts", "none", "--give-up-after", "8s")
    assert [row["wait"]["longest"] for row in shown["retries"]] == [1.0, 2.0, 4.0]
    assert shown["worst_case"] == 8.0
    assert (shown["policy"]["deadline"], shown["policy"]["give_up_after"]) == (None, 8.0)
    assert "reached" in preview("--give-up-after", 8)[1]


def test_attempts_for_ever_are_shown_as_far_as_they_are_counted(as_json, preview):
    shown = as_json("--attempts", "inf", "--backoff", "fixed")
    assert shown["policy"]["attempts"] is None
    assert (len(shown["retries"]), shown["complete"]) == (1000, False)
    out = preview("--attempts", "inf")[1]
    assert "Only the first 1000 waits are counted." in out
    assert "Calls for ever" in out


@pytest.mark.parametrize(
    "options",
    [[], ["--attempts", "40", "--deadline", "1h"], ["--base", "9999s", "--cap", "inf"]],
    ids=" ".join,
)
@pytest.mark.parametrize("columns", [40, 77, 78])
def test_every_line_fits_the_terminal(capsys, monkeypatch, options, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(["preview", *options]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= columns
    assert len([line for line in lines if line.startswith("attempt")]) == (1 if columns == 78 else 2)
