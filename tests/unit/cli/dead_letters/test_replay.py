"""``redouble dead-letters replay``: outcomes, progress, interrupts and exit statuses."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys

import pytest

import redouble
from redouble._cli import main
from redouble._cli import replay as _replay
from redouble.dead_letters import DeadLetters
from support.letters_command import FAILS, PREFIX, SOURCE, SUCCEEDS, records, started

# The script that pip installs


@pytest.mark.parametrize(("switches", "status"), [([], 0), (["-P"], 2)])
def test_the_installed_script_imports_a_handler_from_the_current_directory_unless_told_not_to(
    switches, status, letters, path, tmp_path
):
    letters.put(payload=7)
    (tmp_path / "handlers.py").write_text(SUCCEEDS, "utf-8")
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin" / "redouble"
    script.write_text("import sys\nfrom redouble.__main__ import main\nsys.exit(main())\n", "utf-8")
    done = subprocess.run(
        [sys.executable, *switches, str(script), "dead-letters", "replay", path, "handlers:handle"],
        env={**os.environ, "PYTHONPATH": SOURCE},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, "handling 7" in done.stdout) == (status, not status), done.stderr


def test_a_handler_is_imported_from_the_current_directory(command, letters, tmp_path, monkeypatch):
    letters.put(payload=7)
    name = "handlers_of_the_current_directory"
    (tmp_path / f"{name}.py").write_text(SUCCEEDS, "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", str(tmp_path))])
    assert command("replay", f"{name}:handle")[0] == 0
    letters.put(payload=8)
    assert command("replay", f"{name}:handle")[0] == 0
    assert sys.path.count(str(tmp_path)) == 1
    del sys.modules[name]


# replay


@pytest.mark.parametrize("by_id", [False, True])
def test_a_letter_of_any_age_can_be_replayed_by_hand(command, path, handler, by_id):
    with DeadLetters(path, ttl=None, clock=lambda: 1.0e9) as box:
        old = box.put()
    which = ["--id", old.id] if by_id else []
    status, out, _ = command("replay", handler("def handle(letter): pass"), *which)
    assert (status, out) == (0, "1 replayed, 0 failed, 0 parked, 0 skipped\n")


def test_a_replay_hands_out_the_letters_and_sums_up(command, letters, handler):
    letters.put(payload=1)
    letters.put(payload=2)
    letters.put(payload=3, replayable=False)
    letters.put(payload=4, queue="bulk")
    status, out, err = command("replay", handler(SUCCEEDS))
    assert (status, err) == (0, "")
    assert out == "handling 1\nhandling 2\n2 replayed, 0 failed, 0 parked, 1 skipped\n"
    assert letters.depths() == {"bulk": 1, "default": 1}
    assert command("replay", handler(SUCCEEDS), "--include-unreplayable")[0] == 0
    assert command("replay", handler(SUCCEEDS), "--queue", "bulk")[0] == 0
    assert letters.depths() == {}


def test_letters_that_fail_are_named_with_their_errors_and_make_the_status_1(command, letters, handler):
    letter = letters.put()
    status, out, _ = command("replay", handler(FAILS))
    assert status == 1
    assert out == f"0 replayed, 1 failed, 0 parked, 0 skipped\n{letter.id}: TimeoutError: still slow\n"
    status, out, _ = command("replay", handler(FAILS), "--park-after", 2)
    assert status == 1
    assert out == f"0 replayed, 0 failed, 1 parked, 0 skipped\n{letter.id}: TimeoutError: still slow\n"
    assert letters.get(letter.id).state == "parked"


def test_of_many_letters_that_fail_only_some_are_named(command, letters, handler, monkeypatch):
    monkeypatch.setattr(_replay, "_NAMED", 2)
    put = [letters.put().id for _ in range(5)]
    lines = command("replay", handler(FAILS))[1].splitlines()
    assert [line.partition(":")[0] for line in lines[1:]] == [*put[:2], "and 3 more"]


def test_a_letter_that_has_gone_since_it_failed_is_not_named(command, path, handler):
    with DeadLetters(path) as box:
        box.put()
    source = f"""
        from redouble.dead_letters import DeadLetters
        def handle(letter):
            with DeadLetters({path!r}) as box:
                box.discard(letter.id)
            raise TimeoutError
    """
    status, out, _ = command("replay", handler(source))
    assert (status, out) == (1, "0 replayed, 1 failed, 0 parked, 0 skipped\n")


def test_a_replay_in_json_is_a_line_for_each_letter_and_one_for_all(command, letters, handler):
    bad, good = letters.put(payload="bad"), letters.put(payload="good")
    source = """
        def handle(letter):
            print("handling", letter.payload)
            if letter.payload == "bad":
                raise ValueError
    """
    status, out, err = command("replay", handler(source), "--json")
    assert (status, err) == (1, "handling bad\nhandling good\n")
    assert records(out) == [
        {"id": bad.id, "queue": "default", "outcome": "failed"},
        {"id": good.id, "queue": "default", "outcome": "replayed"},
        {"replayed": 1, "failed": 1, "parked": 0, "skipped": 0},
    ]


@pytest.mark.parametrize(
    "source",
    [
        "import asyncio\nasync def handle(letter):\n    await asyncio.sleep(0)\n    print('handling', letter.payload)\n",
        """
        import functools
        async def inner(letter):
            print('handling', letter.payload)
        @functools.wraps(inner)
        def handle(letter):
            return inner(letter)
        """,
    ],
    ids=["async", "wrapped"],
)
def test_an_async_handler_is_awaited(command, letters, handler, source):
    letters.put(payload=1)
    status, out, _ = command("replay", handler(source))
    assert (status, out) == (0, "handling 1\n1 replayed, 0 failed, 0 parked, 0 skipped\n")


def test_a_handler_that_is_async_in_secret_is_told_to_say_so(command, letters, handler):
    letters.put(payload=1)
    name = handler("async def inner(letter): pass\ndef handle(letter): return inner(letter)\n")
    status, _, err = command("replay", name)
    assert (status, err) == (2, f"{PREFIX}{name} returns an awaitable: use async def\n")
    assert letters.list()[0].state == "waiting"
    assert letters.list()[0].replays == 0


def test_a_replay_stops_at_its_limit(command, letters, handler):
    for number in range(3):
        letters.put(payload=number)
    assert command("replay", handler(SUCCEEDS), "--limit", 2)[1].startswith(
        "handling 0\nhandling 1\n2 replayed"
    )
    assert letters.depth() == 1


def test_each_letter_has_the_attempts_it_is_given(command, letters, handler):
    letters.put()
    name = handler("""
        from redouble import current_attempt
        def handle(letter):
            print(current_attempt().number)
            error = TimeoutError("slow")
            error.headers = {"retry-after-ms": "1"}
            raise error
    """)
    with redouble.testing.no_waits():
        assert command("replay", name)[1].startswith("1\n0 replayed")
        assert command("replay", name, "--attempts", 3)[1].startswith("1\n2\n3\n0 replayed")


def test_the_lease_is_what_was_asked_for(command, letters, handler):
    letters.put()
    name = handler("""
        from datetime import datetime, UTC
        def handle(letter):
            left = datetime.fromisoformat(letter.leased_until) - datetime.now(UTC)
            print(round(left.total_seconds(), -1))
            raise ValueError
    """)
    assert command("replay", name)[1].startswith("60.0\n")
    assert command("replay", name, "--lease", "100")[1].startswith("100.0\n")
    assert command("replay", name, "--lease", "5m")[1].startswith("300.0\n")


def test_one_letter_of_any_queue_is_replayed_by_its_id(command, letters, handler):
    letters.put(payload=1)
    letters.put(payload=2, queue="bulk")
    letter = letters.put(payload=3, queue="bulk")
    status, out, _ = command("replay", handler(SUCCEEDS), "--id", letter.id[:24])
    assert (status, out) == (0, "handling 3\n1 replayed, 0 failed, 0 parked, 0 skipped\n")
    assert letters.depths() == {"bulk": 1, "default": 1}
    assert letters.get(letter.id) is None


def test_a_letter_asked_for_by_its_id_that_is_not_replayed_is_status_1(command, letters, handler):
    letter = letters.put(replayable=False)
    status, out, _ = command("replay", handler(SUCCEEDS), "--id", letter.id)
    assert (status, out) == (1, "0 replayed, 0 failed, 0 parked, 1 skipped\n")
    status, out, _ = command("replay", handler(FAILS), "--id", letter.id, "--include-unreplayable")
    assert (status, out.splitlines()[1]) == (1, f"{letter.id}: TimeoutError: still slow")
    assert letters.get(letter.id).replays == 1
    assert command("replay", handler(FAILS), "--id", "7ZZZ")[0] == 1


def test_a_queue_in_which_nothing_waits_is_no_failure_but_is_told(command, letters, handler):
    letters.put()
    status, out, err = command("replay", handler(SUCCEEDS), "--queue", "defualt")
    assert (status, out) == (0, "0 replayed, 0 failed, 0 parked, 0 skipped\n")
    assert err == f"{PREFIX}no letter waits in the queue defualt\n"


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("", "cannot import NAME: AttributeError: module 'MODULE' has no attribute 'handle'"),
        (
            "import no_such_module",
            "cannot import NAME: ModuleNotFoundError: No module named 'no_such_module'",
        ),
        ("1 / 0", "cannot import NAME: ZeroDivisionError: division by zero"),
        ("handle = 7", "NAME is not a function"),
        ("def handle(letter): yield", "NAME is a generator: calling it would do nothing"),
        ("async def handle(letter): yield", "NAME is a generator: calling it would do nothing"),
    ],
)
def test_a_handler_that_cannot_be_used_is_status_2_and_one_line(command, letters, handler, source, complaint):
    letters.put()
    name = handler(source)
    expected = complaint.replace("NAME", name).replace("MODULE", name.partition(":")[0])
    assert command("replay", name) == (2, "", f"{PREFIX}{expected}\n")
    assert letters.list()[0].replays == 0


INTERRUPTED = """
import {imports}, signal, sys
# Where the tests run in the background it may be ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
{kind} handle(letter):
    if letter.payload == "long":
        print("here", flush=True)
        {sleep}(60)
"""


SYNC = INTERRUPTED.format(imports="time", kind="def", sleep="time.sleep")


ASYNC = INTERRUPTED.format(imports="asyncio", kind="async def", sleep="await asyncio.sleep")


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="signals are sent")
@pytest.mark.parametrize("source", [SYNC, ASYNC], ids=["sync", "async"])
def test_an_interrupt_gives_the_letter_back_and_is_status_130(letters, path, tmp_path, source):
    letters.put(payload="short")
    letter = letters.put(payload="long")
    (tmp_path / "handlers.py").write_text(source)
    with started("replay", path, "handlers:handle", cwd=tmp_path) as process:
        assert process.stdout.readline() == "here\n"
        assert letters.get(letter.id).state == "leased"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, "1 replayed, 0 failed, 0 parked, 0 skipped\n")
    assert err == f"{PREFIX}interrupted\n"
    assert letters.get(letter.id) == letter


def test_an_interrupt_in_this_process_is_status_130_too(command, letters, handler):
    letter = letters.put()
    status, out, err = command("replay", handler("def handle(letter): raise KeyboardInterrupt"), "--json")
    assert (status, err) == (130, f"{PREFIX}interrupted\n")
    assert records(out) == [{"replayed": 0, "failed": 0, "parked": 0, "skipped": 0}]
    assert letters.get(letter.id) == letter


# Progress


class Stream(io.StringIO):
    def __init__(self, terminal):
        super().__init__()
        self.isatty = lambda: terminal


def report(monkeypatch, clock, *, out=False, err=False, as_json=False):
    """The report of a replay of four letters, one each four seconds; gives what came out and what went wrong."""
    streams = Stream(out), Stream(err)
    monkeypatch.setattr(sys, "stdout", streams[0])
    monkeypatch.setattr(sys, "stderr", streams[1])
    made = _replay.Report(4, as_json=as_json, clock=clock.now)
    with made:
        for outcome in ("replayed", "failed", "replayed", "skipped"):
            clock.sleep(4.0)
            made.add(redouble.dead_letters.DeadLetter(id="01"), outcome)
    return [stream.getvalue() for stream in streams]


SUMMARY = "2 replayed, 1 failed, 0 parked, 1 skipped\n"


class Time:
    def __init__(self):
        self.seconds = 0.0

    def now(self):
        return self.seconds

    def sleep(self, seconds):
        self.seconds += seconds


def test_progress_on_a_terminal_is_one_line_that_is_written_again_and_goes_at_the_end(monkeypatch):
    out, err = report(monkeypatch, Time(), out=True, err=True)
    lines = err.split("\r")
    assert out == SUMMARY
    assert lines[1] == "1 of 4: 1 replayed, 0 failed, 0 parked, 0 skipped"
    assert lines[4] == "4 of 4: 2 replayed, 1 failed, 0 parked, 1 skipped"
    assert lines[5:] == [" " * len(lines[4]), ""]
    assert "\n" not in err


def test_progress_elsewhere_is_a_line_every_ten_seconds(monkeypatch):
    out, err = report(monkeypatch, Time(), out=True)
    assert (out, err) == (SUMMARY, "3 of 4: 2 replayed, 1 failed, 0 parked, 0 skipped\n")


def test_a_terminal_is_not_written_to_more_often_than_somebody_can_read(monkeypatch):
    clock = Time()
    monkeypatch.setattr(clock, "sleep", lambda _: Time.sleep(clock, 0.04))
    assert report(monkeypatch, clock, err=True)[1].count(" of 4: ") == 2


def test_progress_does_not_come_between_json_on_one_terminal(monkeypatch):
    out, err = report(monkeypatch, Time(), out=True, err=True, as_json=True)
    assert len(records(out)) == 5
    assert "\r" not in err
    assert "\r" in report(monkeypatch, Time(), err=True, as_json=True)[1]


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="there are no pseudo-terminals")
def test_progress_is_seen_on_a_real_terminal(letters, path, tmp_path):
    letters.put()
    letters.put()
    (tmp_path / "handlers.py").write_text("def handle(letter): pass\n")
    terminal, end = os.openpty()
    with started("replay", path, "handlers:handle", "--limit", "1", cwd=tmp_path, stderr=end) as process:
        os.close(end)
        assert process.communicate(timeout=30)[0] == "1 replayed, 0 failed, 0 parked, 0 skipped\n"
    shown = os.read(terminal, 10_000).decode()
    os.close(terminal)
    assert shown.startswith("\r1 of 1: 1 replayed, 0 failed, 0 parked, 0 skipped\r   ")
    assert shown.endswith(" \r")


# Readers that go away


@pytest.mark.slow
def test_a_list_whose_reader_goes_away_ends_quietly(letters, path, tmp_path):
    for _ in range(40):
        letters.put(payload="x" * 5000)
    with started("list", path, "--json", cwd=tmp_path) as process:
        assert json.loads(process.stdout.readline())["payload"] == "x" * 5000
        process.stdout.close()
        assert process.wait(timeout=30) == 0
        assert process.stderr.read() == ""


@pytest.mark.slow
def test_a_replay_whose_reader_goes_away_is_brought_to_its_end(letters, path, tmp_path):
    letters.put(payload="bad")
    letters.put(payload="good")
    (tmp_path / "handlers.py").write_text("def handle(letter): assert letter.payload == 'good'\n")
    read, write = os.pipe()
    os.close(read)
    with started("replay", path, "handlers:handle", "--json", cwd=tmp_path, stdout=write) as process:
        os.close(write)
        assert process.stderr.read() == ""
    assert process.returncode == 1
    assert [letter.payload for letter in letters.list()] == ["bad"]


def test_what_could_not_be_written_is_not_tried_again_at_the_end(letters, path, handler):
    letters.put()
    for arguments, status in ((["list", path], 0), (["replay", path, handler(FAILS)], 1)):
        read, write = os.pipe()
        os.close(read)
        # When the stream is closed it writes what it has left.
        with os.fdopen(write, "w") as stream, contextlib.redirect_stdout(stream):
            assert main(["dead-letters", *arguments]) == status
