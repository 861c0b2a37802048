"""``python -m redouble demo``: what is seen of it."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import redouble
from redouble import testing
from redouble._cli import demo as _demo
from redouble._cli import main
from redouble.backoff import exponential, full_jitter

SOURCE = str(Path(redouble.__file__).parent.parent)
ENVIRONMENT = {**os.environ, "PYTHONPATH": SOURCE, "TERM": "xterm"}
for unwanted in ("NO_COLOR", "PYTHONUNBUFFERED"):
    ENVIRONMENT.pop(unwanted, None)
PROGRAM = [sys.executable, "-W", "error", "-m", "redouble", "demo"]


@pytest.fixture
def shown(capsys):
    with testing.no_waits():
        assert main(["demo"]) == 0
    return capsys.readouterr().out


def test_the_demo_shows_the_story_of_each_call(shown):
    shown = " ".join(shown.split())  # long lines are broken
    assert "attempt 1 failed: HTTPError: HTTP Error 503: Service Unavailable" in shown
    assert "attempt 2 failed: RemoteDisconnected" in shown
    assert "attempt 3 succeeded" in shown
    assert "rate_limited; next attempt in" in shown
    assert "gave up on fetch after 1 attempt: repeating this POST might act twice" in shown
    assert "DeadlineExceeded: gave up on fetch after" in shown
    assert "/slow, attempt 1 failed: TimeoutError: attempt 1 took longer than its timeout of 0.3 s" in shown
    assert "/shaky, attempt 1 failed: ConnectionResetError: the server hung up" in shown
    assert shown.count("answer: hello") == 4


@pytest.mark.slow
def test_the_demo_fits_80_columns(shown):
    assert max(map(len, shown.splitlines())) <= 80


def test_the_demo_shows_the_code_that_it_runs(shown):
    assert (
        "   def fetch(url: str, method: str) -> Any:\n       request = Request(url, method=method)\n" in shown
    )
    assert "noqa" not in shown
    for _, _, _, fields in _demo._CALLS:
        assert f"   {_demo._decorator(fields)}\n" in shown
    assert eval(_demo._decorator(_demo._CALLS[-1][3])[1:], {"retry": dict}) == _demo._CALLS[-1][3]


def test_a_package_without_its_source_shows_the_name_of_the_function(monkeypatch):
    def missing(function):
        raise OSError("could not get source code")

    monkeypatch.setattr(_demo, "getsource", missing)
    assert _demo._source(_demo.fetch) == "def fetch(...): ..."


def test_the_demo_ends_with_a_command_and_the_address_of_the_documentation(shown):
    address = importlib.metadata.metadata("redouble").get_all("Project-URL")[1].partition(", ")[2]
    assert shown.endswith(
        "Next: python -m redouble explain 503, or in Python: help(redouble.retry)\n"
        f"Documentation:\n{address}\n"
    )


def test_without_metadata_the_demo_names_the_help_of_python(monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "metadata", missing)
    assert _demo._documentation() == ["Documentation: help(redouble)"]


def test_on_a_narrow_terminal_the_chart_has_fewer_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    lines = _demo._chart("with", full_jitter).split("\n")
    assert max(map(len, lines[1:])) <= 40


@pytest.mark.slow
def test_the_demo_leaves_no_thread_behind(capsys):
    import threading

    before = set(threading.enumerate())  # servers of other tests may be up
    with testing.no_waits():
        main(["demo"])
    # Those of the server's connections end a moment after their sockets.
    ends = time.monotonic() + 60.0
    while (left := set(threading.enumerate()) - before) and time.monotonic() < ends:
        time.sleep(0.01)
    assert left == set()


def test_without_jitter_the_herd_comes_back_as_one_and_with_it_spread_out():
    together, spread = _demo._arrivals(exponential), _demo._arrivals(full_jitter)
    assert [(place, count) for place, count in enumerate(together) if count] == [
        (8, 300),
        (24, 300),
        (56, 300),
    ]
    assert sum(together) == sum(spread) == 900
    assert max(spread) < 75
    head = f"with jitter, delays(full_jitter, attempts=4): at most {max(spread)} at once"
    assert head in _demo._chart("with jitter", full_jitter)


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="there are no pseudo-terminals")
def test_the_demo_on_a_terminal_is_live_coloured_and_over_in_a_few_seconds():
    terminal, end = os.openpty()
    began, seen = time.monotonic(), []
    with subprocess.Popen(PROGRAM, env=ENVIRONMENT, stdout=end, stderr=end) as process:
        os.close(end)
        with contextlib.suppress(OSError):  # the end of a terminal
            while part := os.read(terminal, 10_000):
                seen.append((time.monotonic() - began, part))
    os.close(terminal)
    shown = b"".join(part for _, part in seen).decode()
    assert process.returncode == 0
    assert time.monotonic() - began < 20
    assert len(seen) > 5
    assert seen[-1][0] - seen[0][0] > 0.5
    assert "\x1b[32m   answer: hello\x1b[0m" in shown
    assert re.search(r"\x1b\[1m1\. A GET", shown)


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="there is no such signal")
def test_ctrl_c_during_the_demo_is_status_130_without_a_traceback():
    with subprocess.Popen(
        PROGRAM, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert b"on purpose" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        shown, complaint = process.communicate(timeout=30)
    assert process.returncode == 130
    assert b"Why jitter" not in shown  # what is shown is shown at once, also into a pipe
    # Python may add a warning about the socket that the interrupt found in the hands of urllib.
    assert complaint.startswith(b"python -m redouble demo: interrupted\n")
    assert b"Traceback" not in complaint


def test_the_server_of_the_demo_says_nothing_of_a_client_that_hangs_up(capsys):
    with _demo._Server(("127.0.0.1", 0), _demo._Handler) as server:
        server.handle_error(None, ("127.0.0.1", 1))
    assert capsys.readouterr() == ("", "")


def test_a_reader_that_goes_away_in_the_middle_of_the_demo_leaves_no_traceback(monkeypatch, caplog):
    lines = []

    def print_text(text, *_, **__):
        lines.append(text)
        if "attempt 1 failed" in text:
            raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(_demo, "print_text", print_text)
    with testing.no_waits():
        listener = _demo._reporter()

        @redouble.retry(attempts=2, listeners=[listener])
        def fails():
            raise ConnectionResetError

        with pytest.raises(ConnectionResetError):
            fails()
    assert len(lines) == 1
    assert "said once" not in caplog.text
