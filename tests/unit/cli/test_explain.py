"""``redouble explain``: is a failure retried, why, after which waits, and what to write to change it."""

from __future__ import annotations

import io
import json
import sys

import pytest

from redouble import Policy, Rule
from redouble._cli import explain as module
from redouble._cli import main
from redouble.classify import RETRYABLE_STATUSES, Classifier

CHAINED = """\
Traceback (most recent call last):
  File "x.py", line 1, in <module>
    connect()
ConnectionRefusedError: [Errno 111] Connection refused

{how}

Traceback (most recent call last):
  File "x.py", line 2, in <module>
    fetch()
{last}
"""
CAUSE = "The above exception was the direct cause of the following exception:"
CONTEXT = "During handling of the above exception, another exception occurred:"


@pytest.fixture
def explain(capsys, monkeypatch):
    """Runs the command; gives its status, output and errors."""

    def run(*arguments, stdin=None):
        monkeypatch.setattr(sys, "stdin", None if stdin is None else io.StringIO(stdin))
        capsys.readouterr()
        status = main(["explain", *arguments])
        shown = capsys.readouterr()
        return status, shown.out, shown.err

    return run


@pytest.fixture
def answer(explain):
    """Gives the answer as data."""

    def run(*arguments, **how):
        status, out, err = explain(*arguments, "--json", **how)
        found = json.loads(out)
        assert (status, err) == (0 if found["retried"] else 1, "")
        return found

    return run


def codes(found):
    return [change["write"] for change in found["change"]]


def test_a_retried_status_is_shown_with_its_waits_and_the_code_that_changes_it(explain):
    status, out, err = explain("503")
    assert (status, err) == (0, "")
    assert (
        out
        == """\
503
Retried.

Why       HTTP 503
Cause     unavailable (the service is unavailable for now)
Waits     before attempt 2: 0 to 1 s
          before attempt 3: 0 to 2 s
          before attempt 4: 0 to 4 s
Note      A POST or PATCH without an Idempotency-Key is not retried: it might
          act twice.

To change its waits:
  @retry(rules={503: Rule(attempts=2, base=5)})

To stop retrying it:
  @retry(on=Classifier(statuses=RETRYABLE_STATUSES - {503}))

from redouble import Rule, retry
from redouble.classify import RETRYABLE_STATUSES, Classifier
"""
    )


@pytest.mark.parametrize(
    "failure", ["503", "POST 503", "404", "TimeoutError", "POST httpx.ReadTimeout", "nope.Foo"]
)
def test_every_line_fits_a_terminal_of_40_columns(explain, monkeypatch, failure):
    monkeypatch.setenv("COLUMNS", "40")
    assert max(map(len, explain(failure)[1].split("\n"))) <= 40


def test_a_post_is_not_retried_and_two_ways_to_allow_it_are_shown(answer):
    found = answer("post", "503")
    assert not found["retried"]
    assert found["why"] == "repeating this POST might act twice"
    assert codes(found)[0] == "@retry(idempotent=True)"
    assert codes(found)[1] == "@retry(idempotency_key=True)"


def test_an_idempotency_key_makes_a_post_repeatable(answer):
    assert answer("POST 503", "--header", "Idempotency-Key: 7")["retried"]


def test_a_retry_after_header_sets_the_shortest_wait(answer, explain):
    found = answer("GET 503", "--header", "Retry-After: 7")
    assert found["waits"][0] == {"attempt": 2, "shortest": 7.0, "longest": 8.0}
    out = explain("GET 503", "--header", "Retry-After: 7", "--backoff", "fixed", "--base", "0")[1]
    assert "before attempt 2: 7 s\n" in out
    assert "never less than the server asks for: 7 s\n" in out


def test_a_retry_after_above_the_limit_is_not_waited_for(answer):
    found = answer("429", "--header", "Retry-After: 500")
    assert "max_retry_after of 120 s" in found["why"]
    assert codes(found) == ["@retry(max_retry_after=500)"]


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["--deadline", "5s"], "@retry(deadline=24)"),
        (["--give-up-after", "5s"], "@retry(give_up_after=24)"),
        (["--attempts", "1"], "@retry(attempts=4)"),
    ],
)
def test_the_limit_that_ends_the_call_is_named(answer, options, code):
    assert codes(answer("503", "--header", "Retry-After: 7", *options)) == [code]


def test_waits_beyond_the_deadline_are_not_listed(answer):
    found = answer("503", "--attempts", "none", "--backoff", "fixed", "--deadline", "2.5s")
    assert [wait["attempt"] for wait in found["waits"]] == [2, 3]
    assert len(answer("503", "--attempts", "none", "--deadline", "1h")["waits"]) == 6


def test_a_permanent_status_can_be_made_retryable_with_the_code_that_is_shown(answer):
    found = answer("HTTP/1.1 404 Not Found")
    names = {"retry": lambda **fields: Policy(**fields), "Rule": Rule, "Classifier": Classifier}
    names["RETRYABLE_STATUSES"] = RETRYABLE_STATUSES
    by_rule, by_classifier = [eval(code.removeprefix("@"), names) for code in codes(found)]
    assert 404 in by_rule.rules
    assert by_classifier.on.verdict((404, {}, b"")).retryable


def test_rejected_credentials_are_refreshed(answer):
    assert codes(answer("401")) == ["@retry(rules={401: Rule(attempts=2, recover=refresh)})"]


@pytest.mark.parametrize(
    ("failure", "retried", "why"),
    [
        ("ConnectionResetError", True, "ConnectionResetError"),
        ("builtins.TimeoutError", True, "TimeoutError"),
        ("ConnectionResetError: [Errno 104] reset by peer", True, "ConnectionResetError (ECONNRESET)"),
        ("OSError: [Errno 2] no such file", False, "FileNotFoundError (ENOENT)"),
        ("ValueError: bad", False, "ValueError: nothing is known about it"),
        ("KeyboardInterrupt", False, "KeyboardInterrupt is not a failure"),
        ("socket.gaierror: [Errno -3] Temporary failure in name resolution", True, "name resolution"),
        ("urllib.error.HTTPError: HTTP Error 503: Service Unavailable", True, "HTTP 503"),
        (
            "botocore.exceptions.ClientError: An error occurred (ThrottlingException) when",
            True,
            "ThrottlingException",
        ),
    ],
)
def test_a_class_is_judged_with_the_text_that_follows_it(answer, failure, retried, why):
    found = answer("--no-import", failure) if failure.startswith("botocore") else answer(failure)
    assert found["retried"] is retried
    assert why in found["why"]


def test_interrupts_cannot_be_made_retryable(explain):
    status, out, _ = explain("KeyboardInterrupt")
    assert status == 1
    assert "@retry" not in out


def test_a_class_is_imported_but_none_of_its_code_runs(answer, tmp_path, monkeypatch):
    (tmp_path / "shop_errors.py").write_text(
        "class Busy(ConnectionError):\n    def __init__(self, *args): raise SystemExit('ran')\n"
        "class Odd(Exception):\n    def __init__(self, a, b): raise SystemExit('ran')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert answer("shop_errors.Busy: [Errno 104] reset")["retried"]
    assert codes(answer("shop_errors.Odd"))[2] == '@retry(on=Classifier(transient=["shop_errors.Odd"]))'
    sys.modules.pop("shop_errors")


@pytest.fixture
def telltale(tmp_path, monkeypatch):
    """A module with an error class; ``ran()`` tells whether it was imported."""
    (tmp_path / "telltale.py").write_text("class Busy(ConnectionResetError): pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield lambda: sys.modules.pop("telltale", None) is not None
    sys.modules.pop("telltale", None)


@pytest.mark.parametrize("stdin", ["telltale.Busy: x\n", CHAINED.format(how=CAUSE, last="telltale.Busy: x")])
@pytest.mark.parametrize(
    ("options", "imported"), [([], False), (["--import"], True), (["--no-import"], False), (["-"], False)]
)
def test_a_text_on_stdin_does_not_choose_which_code_is_imported(answer, telltale, stdin, options, imported):
    found = answer(*options, stdin=stdin)
    assert telltale() is imported
    remark = (
        "telltale.Busy was judged by its name: classes in a text are not imported. Use --import for that."
    )
    assert found["remarks"] == ([] if options and options != ["-"] else [remark])


def test_an_earlier_error_of_a_traceback_is_not_imported_either(answer, telltale):
    text = CHAINED.format(how=CAUSE, last="TimeoutError").replace("ConnectionRefusedError", "telltale.Busy")
    answer(stdin=text)
    assert not telltale()


def test_a_class_on_the_command_line_is_imported(answer, telltale):
    assert answer("telltale.Busy")["retried"]
    assert telltale()
    assert not answer("--no-import", "telltale.Busy")["retried"]


def test_a_class_on_stdin_that_the_tables_know_needs_no_remark(answer):
    assert answer(stdin="httpx.ConnectTimeout: slow")["remarks"] == []


def test_a_class_of_python_itself_is_imported_from_a_text_too(answer):
    found = answer(stdin="http.client.RemoteDisconnected: Remote end closed connection without response")
    assert (found["retried"], found["remarks"]) == (True, [])


def test_a_module_that_exits_on_import_is_reported(answer, tmp_path, monkeypatch):
    (tmp_path / "shop_exits.py").write_text("raise SystemExit('no')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "cannot be imported here (SystemExit: no)" in answer("shop_exits.Busy")["remarks"][0]


def test_a_class_that_is_not_installed_is_judged_by_the_tables(answer):
    found = answer("--no-import", "httpx.ConnectTimeout")
    assert found["retried"]
    assert found["remarks"] == []


@pytest.mark.parametrize(
    ("failure", "code", "imports"),
    [
        ("nope.errors.Foo", "@retry(on=nope.errors.Foo)", ["import nope.errors"]),
        ("Foo", "@retry(on=Foo)", []),
        ("ValueError", "@retry(on=ValueError)", []),
    ],
)
def test_the_code_names_a_class_with_the_module_that_is_imported(answer, failure, code, imports):
    found = answer("--no-import", failure)
    assert codes(found)[1] == code
    assert found["imports"] == [
        *imports,
        "from redouble import Rule, retry",
        "from redouble.classify import Classifier",
    ]


def test_code_without_the_class_does_not_import_it(answer):
    found = answer("--no-import", "httpx.ReadTimeout", "--attempts", "1")
    assert found["imports"] == ["from redouble import retry"]


@pytest.mark.parametrize("failure", ["404", "httpx.ReadTimeout", "Foo"])
def test_the_imports_are_valid_code_at_40_columns(explain, monkeypatch, failure):
    monkeypatch.setenv("COLUMNS", "40")
    shown = explain("--no-import", failure)[1].rpartition("\n\n")[2]
    assert "import" in shown
    compile(shown, "shown", "exec")


def test_a_misspelt_builtin_class_is_named(answer):
    assert (
        "TimeoutEror is not a builtin class: did you mean TimeoutError?"
        in answer("TimeoutEror")["remarks"][0]
    )


@pytest.mark.parametrize(
    ("failure", "line"),
    [
        ("TimeoutError", "Retried."),
        ("KeyError", "Not retried."),
        ("no_such_package.Busy", "Not retried, judged by its name alone."),
        ("no_such_package.BusyTimeout", "Not retried, judged by its name alone."),
    ],
)
def test_the_answer_says_if_only_the_name_was_judged(explain, failure, line):
    assert explain(failure)[1].split("\n")[1] == line


def test_a_name_without_its_module_is_reported(answer):
    assert answer("Busy")["remarks"] == [
        "Busy is not a builtin class. Write others with their module: package.Busy."
    ]


@pytest.mark.parametrize("how", [CAUSE, CONTEXT])
def test_the_last_error_of_a_traceback_is_judged_with_those_before_it(answer, how):
    found = answer(stdin=CHAINED.format(how=how, last="urllib.error.URLError: <urlopen error refused>"))
    assert found["failure"].startswith("urllib.error.URLError")
    assert found["retried"]
    assert "ECONNREFUSED" in found["why"]


def test_unrelated_tracebacks_are_not_a_chain(answer):
    found = answer(stdin=CHAINED.format(how="", last="urllib.error.URLError: x"))
    assert not found["retried"]


def test_the_note_of_redouble_is_shown(answer):
    note = "redouble: gave up on fetch after 4 attempts in 7.3 s: no attempts left\n  attempt 1: ..."
    found = answer(stdin=CHAINED.format(how=CAUSE, last=f"TimeoutError: slow\n{note}"))
    assert found["remarks"] == [
        "redouble has retried it already: gave up on fetch after 4 attempts in 7.3 s: no attempts left."
    ]


def test_the_last_line_of_a_log_is_enough(answer):
    assert answer("-", stdin="12:00 failed\nTimeoutError: slow\n\n")["failure"] == "TimeoutError: slow"


def test_all_remarks_are_printed_beside_one_label(explain):
    note = "redouble: gave up on fetch after 2 attempts: no attempts left"
    out = explain("--no-import", stdin=CHAINED.format(how=CAUSE, last=f"Busy\n{note}"))[1]
    assert out.count("Note") == 1
    assert "Busy is not a builtin class." in out
    assert "redouble has retried it already" in out


@pytest.mark.parametrize(
    ("arguments", "stdin", "complaint"),
    [
        ([], None, "no failure was given"),
        ([], "", "no failure was given"),
        (["not a failure!"], None, "no failure recognised"),
        ([], "not a failure!\nat all", "no failure recognised"),
        ([], "Traceback (most recent call last):\n  File x", "no failure recognised"),
        (["503", "--header", "Retry-After"], None, '--header must be written as "Name: value"'),
        (["503", "--header", ": 7"], None, '--header must be written as "Name: value"'),
        (["print"], None, "print is not an exception class"),
        (["ExceptionGroup: two"], None, "is a group"),
        (["503", "--attempts", "0"], None, "attempts"),
    ],
)
def test_wrong_usage_has_status_2_and_says_what_to_do(explain, arguments, stdin, complaint):
    status, out, err = explain(*arguments, stdin=stdin)
    assert (status, out) == (2, "")
    assert complaint in err
    assert err.count("\n") == 1


def test_a_terminal_is_not_read_from(explain, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(module.sys, "stdin", Terminal("503"))
    with pytest.raises(module.CommandError, match="no failure was given"):
        module._stdin()


def test_a_chain_of_thousands_of_errors_in_a_text_is_read(answer):
    block = CHAINED.format(how=CAUSE, last=f"TimeoutError: slow\n\n{CAUSE}\n\n")
    assert answer(stdin=block * 2000 + CHAINED.format(how=CAUSE, last="TimeoutError: last"))["failure"] == (
        "TimeoutError: last"
    )


def test_an_errno_of_thousands_of_digits_in_a_text_is_text(answer):
    assert answer(stdin=f"ConnectionResetError: [Errno {'1' * 5000}] reset")["retried"]


class Frozen(Exception):
    """An error whose attributes cannot be set."""

    @property
    def response(self):
        return None

    def __setattr__(self, name, value):
        raise AttributeError(f"{name} is read-only")


def test_an_error_class_whose_attributes_cannot_be_set_is_explained(answer):
    found = answer("POST", f"{__name__}.Frozen: status code 503")
    assert (found["retried"], found["failure"]) == (False, f"POST {__name__}.Frozen: status code 503")
    assert answer("--import", stdin=CHAINED.format(how=CAUSE, last=f"{__name__}.Frozen"))["retried"]
