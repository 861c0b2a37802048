"""``python -m redouble deadletters``: what people and scripts see of it."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

import redouble
from redouble import _columns, _letters_cli, _letters_replaying
from redouble.__main__ import main
from redouble.deadletter import DeadLetters

SOURCE = str(Path(redouble.__file__).parent.parent)
PREFIX = "python -m redouble deadletters: "


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "letters.db")


@pytest.fixture
def letters(path):
    with DeadLetters(path) as box:
        yield box


@pytest.fixture
def command(capsys, path):
    """Runs a command in this process on the file of the test; gives status, output and errors."""

    def run(name, *arguments):
        capsys.readouterr()
        status = main(["deadletters", name, path, *map(str, arguments)])
        shown = capsys.readouterr()
        return status, shown.out, shown.err

    return run


numbers = itertools.count()


@pytest.fixture
def handler(tmp_path, monkeypatch):
    """Writes a module that has a function ``handle``; gives its name as the command line wants it."""
    monkeypatch.syspath_prepend(str(tmp_path))
    made = []

    def write(source):
        made.append(f"handlers_of_test_{next(numbers)}")
        (tmp_path / f"{made[-1]}.py").write_text(textwrap.dedent(source), "utf-8")
        return f"{made[-1]}:handle"

    yield write
    for name in made:
        sys.modules.pop(name, None)


def started(*arguments, cwd, **streams):
    """The command in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "redouble", "deadletters", *arguments],
        env={**os.environ, "PYTHONPATH": SOURCE},
        cwd=cwd,
        text=True,
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams},
    )


def finished(*arguments, cwd):
    with started(*arguments, cwd=cwd) as process:
        out, err = process.communicate(timeout=30)
    return process.returncode, out, err


def records(text):
    return [json.loads(line) for line in text.splitlines()]


SUCCEEDS = "def handle(letter): print('handling', letter.payload)\n"
FAILS = "def handle(letter): raise TimeoutError('still slow')\n"


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
        [sys.executable, *switches, str(script), "deadletters", "replay", path, "handlers:handle"],
        env={**os.environ, "PYTHONPATH": SOURCE},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, "handling 7" in done.stdout) == (status, not status), done.stderr


def test_a_handler_is_imported_from_the_current_directory(command, letters, tmp_path, monkeypatch):
    letters.put(payload=7)
    name = f"handlers_of_test_{next(numbers)}"
    (tmp_path / f"{name}.py").write_text(SUCCEEDS, "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", str(tmp_path))])
    assert command("replay", f"{name}:handle")[0] == 0
    letters.put(payload=8)
    assert command("replay", f"{name}:handle")[0] == 0
    assert sys.path.count(str(tmp_path)) == 1
    del sys.modules[name]


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
        "id                          queue     function   error               tries  age  state",
        f"{ids[0]}  default   shop.ship  TimeoutError: slow  4      3d   waiting",
        f"{ids[1]}  critical  pay        no funds            1      5h   waiting",
        f"{ids[2]}  default   -          -                   1      11m  waiting",
        f"{ids[3]}  default   -          -                   1      0s   waiting",
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
    monkeypatch.setattr(_letters_cli, "_PAGE", 2)
    put = [letters.put().id for _ in range(5)]
    assert [letter["id"] for letter in records(command("list", "--json")[1])] == put
    assert [letter["id"] for letter in records(command("list", "--json", "--limit", 3)[1])] == put[:3]
    assert "There are more than these 3; --limit shows them." in command("list", "--limit", 3)[1]
    assert "There are more" not in command("list", "--limit", 5)[1]


def test_a_list_of_nothing_says_so(command, letters):
    letters.depth()
    assert command("list") == (0, "There are no letters.\n", "")
    assert command("list", "--json") == (0, "", "")


@pytest.mark.parametrize(("terminal", "columns"), [("20", 80), ("80", 80), ("100", 100), ("300", 120)])
def test_a_table_fits_its_terminal_with_ids_and_figures_whole(
    command, letters, monkeypatch, terminal, columns
):
    monkeypatch.setenv("COLUMNS", terminal)
    for name in ("x", "warehouse.orders.Client.ship_again" * 3, "海" * 60):
        letters.put(function=name, queue=name, error=TimeoutError(name * 3), attempts=123)
    rows = command("list")[1].splitlines()[:4]
    assert max(map(_columns.width_of, rows)) == columns
    for letter, row in zip(records(command("list", "--json")[1]), rows[1:], strict=True):
        assert row.startswith(letter["id"] + "  ")
        assert row.split()[-3:] == ["123", "0s", "waiting"]


def test_of_a_long_function_name_the_end_is_shown_and_of_others_the_beginning(command, letters, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    letters.put(function="warehouse.orders.Client.ship", error="ConnectionRefusedError: no")
    assert "default  ..ent.ship  Connecti..  1 " in command("list")[1]


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
        *command("purge", "--queue", HOSTILE),
    ]
    text = "".join(map(str, shown))
    assert "\\x1b[31m" in text
    assert [char for char in text if not char.isprintable() and char != "\n"] == []
    assert "\nstate:               leased" not in text


def test_what_the_encoding_of_the_output_cannot_say_is_escaped(letters, path, monkeypatch):
    letters.put(error="海")
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, "ascii", write_through=True))
    assert main(["deadletters", "list", path]) == 0
    assert b"  \\u6d77  " in raw.getvalue()


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
    monkeypatch.setattr(_letters_replaying, "_NAMED", 2)
    put = [letters.put().id for _ in range(5)]
    lines = command("replay", handler(FAILS))[1].splitlines()
    assert [line.partition(":")[0] for line in lines[1:]] == [*put[:2], "and 3 more"]


def test_a_letter_that_has_gone_since_it_failed_is_not_named(command, path, handler):
    with DeadLetters(path) as box:
        box.put()
    source = f"""
        from redouble.deadletter import DeadLetters
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
    assert (status, err) == (2, f"{PREFIX}{name} gives something to be awaited: use async def\n")
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
    made = _letters_replaying.Report(4, as_json=as_json, clock=clock.now)
    with made:
        for outcome in ("replayed", "failed", "replayed", "skipped"):
            clock.sleep(4.0)
            made.tell(redouble.deadletter.DeadLetter(id="01"), outcome)
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


# unpark, discard, purge


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
    assert err == f"{PREFIX}there is no letter with the id 7ZZZ; only a whole id is enough to discard it\n"
    assert [letter.id for letter in letters.list()] == [put[1]]


def test_the_beginning_of_an_id_is_not_enough_to_discard_a_letter(command, letters):
    letter = letters.put()
    assert command("discard", letter.id[:-1])[0] == 1
    assert command("discard", letter.id) == (0, f"discarded {letter.id}\n", "")


def test_purge_throws_away_the_old_letters_of_one_queue(command, path):
    now = [0.0]
    box = DeadLetters(path, ttl=None, clock=lambda: now[0])
    for days, queue in [(20, "default"), (20, "bulk"), (5, "default"), (0.1, "default")]:
        now[0] = time.time() - days * 86400
        box.put(queue=queue)
    assert command("purge") == (0, "purged 1 letter of the queue default\n", "")
    assert box.depths() == {"bulk": 1, "default": 2}
    assert command("purge", "--older-than", "121h")[1] == "purged 0 letters of the queue default\n"
    assert command("purge", "--older-than", "4.5d")[1] == "purged 1 letter of the queue default\n"
    assert command("purge", "--older-than", "150m")[1] == "purged 0 letters of the queue default\n"
    assert command("purge", "--older-than", "30s")[1] == "purged 1 letter of the queue default\n"
    assert command("purge", "--queue", "bulk")[1] == "purged 1 letter of the queue bulk\n"
    box.close()


# Usage and trouble


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["list", "f", "--limit", "0"], "must be a whole number of at least 1, got '0'"),
        (["list", "f", "--limit", "-1"], "must be a whole number of at least 1, got '-1'"),
        (["list", "f", "--limit", "many"], "must be a whole number of at least 1, got 'many'"),
        (["list", "f", "--limit", "9" * 5000], "must be a whole number of at least 1"),
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
        (["replay", "f", "m:f", "--lease", "0"], "must be above 0 seconds and at most a day, got '0'"),
        (["replay", "f", "m:f", "--lease", "25h"], "must be above 0 seconds and at most a day, got '25h'"),
        (["replay", "f", "m:f", "--lease", ""], "must be a figure and one of d, h, m, s, such as 14d"),
        (["purge", "f", "--older-than", "14"], "must be a figure and one of d, h, m, s, such as 14d, got '14'"),
        (["purge", "f", "--older-than=-1d"], "must be a figure and one of d, h, m, s, such as 14d, got '-1d'"),
        (["purge", "f", "--older-than", "nand"], "must be a figure and one of d, h, m, s, such as 14d, got 'nand'"),
        (["purge", "f", "--older-than", "1" * 400 + "d"], "must be a figure and one of d, h, m, s, such as 14d"),
        (["discard", "f"], "the following arguments are required: ID"),
        (["eat", "f"], "invalid choice: 'eat'"),
        ([], "the following arguments are required: COMMAND"),
    ],
)  # fmt: skip
def test_wrong_usage_is_status_2_and_says_what_would_be_right(capsys, arguments, complaint):
    with pytest.raises(SystemExit) as left:
        main(["deadletters", *[str(argument) for argument in arguments]])
    assert left.value.code == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize("name", ["list", "show", "replay", "unpark", "discard", "purge"])
def test_the_help_of_each_command_tells_the_statuses(capsys, name):
    with pytest.raises(SystemExit) as left:
        main(["deadletters", name, "--help"])
    shown = capsys.readouterr().out
    assert left.value.code == 0
    assert [line.split()[0] for line in shown.partition("exit status:\n")[2].splitlines()] == [
        "0",
        "1",
        "2",
        "3",
        "130",
    ]


def test_the_page_about_it_tells_the_statuses_and_every_option(capsys):
    page = (Path(__file__).parent.parent / "docs" / "reference" / "command-line.md").read_text("utf-8")
    statuses = page.partition("## Exit status")[2].partition("\n## ")[0]
    assert re.findall(r"^\| (\d+) \|", statuses, re.MULTILINE) == ["0", "1", "2", "3", "130"]
    for name in ("list", "show", "replay", "unpark", "discard", "purge"):
        with pytest.raises(SystemExit):
            main(["deadletters", name, "--help"])
        section = page.partition(f"### {name}\n")[2].partition("\n### ")[0].partition("\n## ")[0]
        options = set(re.findall(r"--[a-z][a-z-]+", capsys.readouterr().out)) - {"--help"}
        assert options == set(re.findall(r"--[a-z][a-z-]+", section)) - {"--help"}, name


def test_the_help_of_all_names_this_command(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "deadletters" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [["list"], ["show", "1"], ["replay", "m:f"], ["unpark", "1"], ["discard", "1"], ["purge"]],
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
    assert main(["deadletters", "list", str(tmp_path)]) == 3
    assert "Traceback" not in capsys.readouterr().err


def test_a_letter_written_by_somebody_else_without_its_times_is_listed(command, letters, path):
    import sqlite3

    letters.put(error="lost")
    letters.close()
    connection = sqlite3.connect(path)
    connection.execute("UPDATE letters SET content = '{}'")
    connection.commit()
    connection.close()
    assert " ?    waiting\n" in command("list")[1]


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
            assert main(["deadletters", *arguments]) == status


# What is loaded


@pytest.mark.slow
def test_the_demo_loads_nothing_of_this_and_this_loads_only_what_it_needs(letters, path, tmp_path):
    letters.put()
    code = f"""
        import sys
        from redouble.__main__ import _parse, main
        _parse(["demo"])
        assert not {{"redouble.deadletter", "redouble._letters_cli", "sqlite3"}} & set(sys.modules)
        import redouble._letters_cli
        assert not {{"json", "asyncio", "sqlite3", "pkgutil"}} & set(sys.modules)
        main(["deadletters", "list", {path!r}, "--json"])
        assert not {{"redouble._demo", "asyncio", "pkgutil"}} & set(sys.modules)
    """
    done = subprocess.run(
        [sys.executable, "-S", "-c", textwrap.dedent(code)],
        env={**os.environ, "PYTHONPATH": SOURCE},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
