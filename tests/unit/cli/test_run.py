"""``python -m redouble run``: real processes and real signals, with waits of milliseconds."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import redouble
from conftest import heed_signals, watchdog
from redouble._cli import main
from redouble._cli import process as process_module
from redouble._cli import run as run_module

if os.name != "posix":
    pytest.skip("there are no such signals", allow_module_level=True)

SOURCE = str(Path(redouble.__file__).parent.parent)
ENVIRONMENT = {**os.environ, "PYTHONPATH": SOURCE, "TERM": "xterm"}
for unwanted in ("NO_COLOR", "PYTHONUNBUFFERED"):
    ENVIRONMENT.pop(unwanted, None)
PREFIX = "python -m redouble run: "
PROGRAM = [sys.executable, "-W", "error", "-m", "redouble", "run", "--base", "1ms"]


@pytest.fixture(autouse=True)
def _not_in_the_foreground(monkeypatch):
    """Wherever the tests are run from."""
    monkeypatch.setattr(process_module, "in_foreground", lambda: False)


@pytest.fixture
def run(capfd, monkeypatch):
    """Runs the command in this process; gives status, output and errors."""
    monkeypatch.setattr(run_module, "die_by", lambda number: ("dies by", number))

    def call(*arguments):
        capfd.readouterr()
        try:
            with watchdog():
                status = main(["run", "--base", "1ms", *map(str, arguments)])
        except SystemExit as left:
            status = left.code
        shown = capfd.readouterr()
        return status, shown.out, shown.err

    return call


def sh(script):
    return "--", "sh", "-c", script


# What comes of it


def test_a_command_that_succeeds_is_run_once_and_nothing_is_said(run):
    assert run(*sh("echo out; echo err >&2")) == (0, "out\n", "err\n")


def test_a_command_that_fails_is_run_again_until_it_succeeds(run):
    status, out, err = run(*sh("echo $REDOUBLE_ATTEMPT; [ $REDOUBLE_ATTEMPT = 3 ]"))
    assert (status, out) == (0, "1\n2\n3\n")
    lines = err.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith(f"{PREFIX}attempt 1 of 4: exit status 1; next attempt in 0.0")


def test_the_status_of_the_last_attempt_comes_out(run):
    status, out, err = run("--attempts", 2, *sh("echo try; exit 7$REDOUBLE_ATTEMPT"))
    assert (status, out) == (72, "try\ntry\n")
    assert err.splitlines()[1] == f"{PREFIX}attempt 2 of 2: exit status 72; no attempts left"


@pytest.mark.parametrize(
    ("arguments", "status", "attempts"),
    [
        ([], 1, 2),
        ([], 2, 2),
        ([], 255, 2),
        ([], 126, 1),
        ([], 127, 1),
        (["--on-exit", "7,28"], 7, 2),
        (["--on-exit", "7,28"], 28, 2),
        (["--on-exit", "7,28"], 1, 1),
        (["--on-exit", "127"], 127, 2),
    ],
)
def test_which_statuses_are_retried(run, arguments, status, attempts):
    assert run("--attempts", 2, *arguments, *sh(f"echo .; exit {status}"))[:2] == (status, ".\n" * attempts)


def test_death_by_a_signal_is_128_and_its_number_and_is_not_retried(run):
    assert run(*sh("echo .; kill -KILL $$")) == (137, ".\n", "")


def test_death_by_a_signal_is_retried_if_that_is_asked_for(run):
    status, out, err = run("--on-exit", 137, "--attempts", 2, *sh("echo .; kill -KILL $$"))
    assert (status, out) == (137, ".\n.\n")
    assert "attempt 1 of 2: killed by SIGKILL; next attempt in" in err


def test_a_signal_without_a_name_is_told_by_its_number():
    assert run_module._signal_name(signal.SIGTERM) == "SIGTERM"
    assert run_module._signal_name(signal.SIGRTMAX - 1) == f"signal {signal.SIGRTMAX - 1}"


def test_a_command_that_is_not_there_is_127_and_one_line(run):
    assert run("--", "no-such-command") == (
        127,
        "",
        f"{PREFIX}cannot run no-such-command: No such file or directory\n",
    )


def test_a_command_that_cannot_be_run_is_126_and_one_line(run, tmp_path):
    (tmp_path / "text").write_text("no program")
    for path, why in ((tmp_path, "Permission denied"), (tmp_path / "text", "Permission denied")):
        assert run("--quiet", "--", path) == (126, "", f"{PREFIX}cannot run {path}: {why}\n")
    (tmp_path / "text").chmod(0o755)
    assert run("--", tmp_path / "text") == (
        126,
        "",
        f"{PREFIX}cannot run {tmp_path / 'text'}: Exec format error\n",
    )


def test_a_command_that_no_system_can_have_is_126(run):
    assert run("--", "a\0b") == (126, "", f"{PREFIX}cannot run a\\x00b: embedded null byte\n")


def test_no_room_for_a_process_is_trouble_of_its_own_and_may_pass(run, monkeypatch):
    tries = []

    def no_room(*_, **__):
        tries.append(1)
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(process_module, "Popen", no_room)
    assert run("--attempts", 3, "--", "true")[0] == 125
    assert len(tries) == 3


def test_the_arguments_of_the_command_are_its_own(run):
    assert run("sh", "-c", 'echo "$@"', "x", "--attempts", "--", "a b")[:2] == (0, "--attempts -- a b\n")
    assert run("--", "echo", "--", "--quiet")[:2] == (0, "-- --quiet\n")


def test_a_system_without_such_signals_is_told(run, monkeypatch):
    monkeypatch.setattr(run_module.os, "name", "nt")
    status, _, err = run("--", "true")
    monkeypatch.undo()
    assert (status, err) == (125, f"{PREFIX}run needs the signals of a POSIX system\n")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "there is no command: write it after --"),
        (["--"], "there is no command: write it after --"),
        (["--attempts", "0", "true"], "attempts must be at least 1 (the first call counts), got 0"),
        (["--attempts", "none", "true"], "attempts must not be None without a deadline"),
        (["--timeout", "0", "true"], "timeout must be above 0 seconds"),
        (["--grace", "-1s", "true"], "argument --grace: "),
        (
            ["--grace", "long", "true"],
            "argument --grace: must be seconds (or such as 200ms, 1.5m) from 0 to 86,400, got 'long'",
        ),
        (["--on-exit", "0", "true"], "must be a whole number from 1 to 255, got '0'"),
        (["--on-exit", "7,", "true"], "must be a whole number from 1 to 255, got ''"),
        (["--on-exit", "256", "true"], "must be a whole number from 1 to 255, got '256'"),
        (["--on-exit", "9" * 5000, "true"], "must be a whole number from 1 to 255"),
        (["--quiet", "--verbose", "true"], "not allowed with argument"),
        (["--tries", "3", "true"], "unrecognized arguments: --tries"),
    ],
)
def test_wrong_use_is_status_125_and_one_line(run, arguments, complaint):
    status, out, err = run(*arguments)
    assert (status, out, err.count("\n")) == (125, "", 1)
    assert complaint in err


# What is said


def test_quiet_says_nothing(run):
    assert run("--quiet", *sh("exit 3")) == (3, "", "")
    assert run("--quiet", "--deadline", "1ms", "--attempts", "none", "--", "false") == (124, "", "")


def test_verbose_tells_no_secret_of_the_command(run):
    secrets = "--password=hunter2", "--api-key", "hunter2", "https://ann:hunter2@example.com"
    _, _, told = run("--verbose", "--", "sh", "-c", "true", *secrets)
    assert (
        f"{PREFIX}attempt 1 of 4: sh -c true '--password=***' --api-key '***' 'https://***@example.com'"
        in told
    )
    assert "hunter2" not in told


def test_verbose_tells_of_every_attempt_and_of_the_end(run):
    script = "[ $REDOUBLE_ATTEMPT = 2 ]"
    lines = run("--verbose", *sh(script))[2].splitlines()
    assert [line.partition("; next attempt")[0] for line in lines] == [
        f"{PREFIX}attempt 1 of 4: sh -c '{script}'",
        f"{PREFIX}attempt 1 of 4: exit status 1",
        f"{PREFIX}attempt 2 of 4: sh -c '{script}'",
        f"{PREFIX}attempt 2 of 4: succeeded",
    ]
    lines = run("--verbose", "--on-exit", 3, *sh("exit 4"))[2].splitlines()
    assert lines[1:] == [f"{PREFIX}attempt 1 of 4: exit status 4; not retried"]


# Time


@pytest.mark.slow
def test_an_attempt_whose_time_is_up_is_ended_and_retried_and_124_in_the_end(run):
    began = time.monotonic()
    status, out, err = run(
        "--timeout", "50ms", "--attempts", 2, "--on-exit", 3, *sh("echo .; sleep 30; echo no")
    )
    assert (status, out) == (124, ".\n.\n")
    assert time.monotonic() - began < 10
    assert f"{PREFIX}attempt 2 of 2: timed out after 0.05 s; no attempts left\n" in err


def test_an_attempt_in_time_is_left_alone(run):
    assert run("--timeout", "30s", *sh("exit 0"))[0] == 0


@pytest.mark.slow
def test_a_command_that_does_not_heed_term_is_killed_after_the_grace(run):
    began = time.monotonic()
    script = "trap '' TERM; echo .; while :; do sleep 0.05; done"
    assert run("--timeout", "50ms", "--grace", "100ms", "--attempts", 1, *sh(script))[0] == 124
    assert 0.15 <= time.monotonic() - began < 10


@pytest.mark.slow
def test_a_command_may_clean_up_when_its_time_is_up(run):
    script = "trap 'echo cleaned; exit 0' TERM; while :; do sleep 0.02; done"
    assert run("--timeout", "200ms", "--attempts", 1, *sh(script))[:2] == (124, "cleaned\n")


@pytest.mark.slow
def test_the_deadline_ends_the_running_attempt_and_is_124(run):
    began = time.monotonic()
    status, out, err = run("--deadline", "100ms", "--attempts", "none", *sh("echo .; sleep 30"))
    assert (status, out) == (124, ".\n")
    assert time.monotonic() - began < 10
    assert err.startswith(f"{PREFIX}gave up on sh after 1 attempt in ")


@pytest.mark.slow
def test_attempts_may_go_on_until_the_deadline(run):
    status, _, err = run("--deadline", "150ms", "--attempts", "none", "--backoff", "fixed", "--", "false")
    assert status == 124
    assert f"{PREFIX}attempt 2: exit status 1; next attempt in " in err


def gone(pid):
    """Whether a process is there no more, or only as a zombie."""
    ends = time.monotonic() + 60
    while time.monotonic() < ends:
        try:
            os.kill(pid, 0)
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (ProcessLookupError, FileNotFoundError):
            return True
        time.sleep(0.01)
    return False


@pytest.mark.slow
def test_what_the_command_has_started_is_ended_with_it(run):
    _, out, _ = run("--timeout", "100ms", "--attempts", 1, *sh("sleep 30 & echo $!; wait"))
    assert gone(int(out))


@pytest.mark.slow
def test_what_outlives_the_command_and_does_not_heed_term_is_killed(run):
    script = "sh -c 'trap \"\" TERM; echo $$; sleep 30; sleep 30' & wait"
    status, out, _ = run("--timeout", "200ms", "--grace", "100ms", "--attempts", 1, *sh(script))
    assert status == 124
    assert gone(int(out))


AS_PROCESS_1 = """
import ctypes, sys
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: orphans become children of this process
from redouble._cli import main
sys.exit(main(["run", *sys.argv[1:]]))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="prctl is of Linux")
def test_orphans_that_it_inherits_as_process_1_of_a_container_are_reaped():
    began = time.monotonic()
    arguments = ["--timeout", "100ms", "--grace", "20s", "--attempts", "1", *sh("sleep 30 & sleep 30 & wait")]
    done = subprocess.run(
        [sys.executable, "-c", AS_PROCESS_1, *arguments], env=ENVIRONMENT, start_new_session=True, timeout=60
    )
    assert done.returncode == 124
    assert time.monotonic() - began < 15


def test_what_a_command_leaves_running_when_it_ends_by_itself_is_left_alone(run):
    _, out, _ = run(*sh("sleep 30 >/dev/null 2>&1 & echo $!"))
    os.kill(int(out), signal.SIGKILL)  # it is there


# Signals


@pytest.mark.parametrize("name", ["INT", "TERM", "HUP", "QUIT"])
def test_a_signal_is_passed_on_to_the_command_and_then_died_by(run, name):
    script = f"trap 'echo got it; exit 0' {name}; kill -{name} $PPID; while :; do sleep 0.01; done"
    assert run(*sh(script))[:2] == (("dies by", getattr(signal, f"SIG{name}")), "got it\n")


@pytest.mark.slow
def test_a_signal_during_a_wait_ends_it_at_once(run):
    began = time.monotonic()
    script = f"(sleep 0.1; kill -TERM {os.getpid()}) >/dev/null 2>&1 & exit 1"
    assert run("--base", "20s", "--backoff", "fixed", *sh(script))[0] == ("dies by", signal.SIGTERM)
    assert time.monotonic() - began < 10


def test_a_signal_to_all_that_ends_the_command_first_is_seen(run):
    # The command ends itself and signals its parent before: both are there when its end is noticed.
    for _ in range(5):
        assert run("--attempts", 1, *sh("kill -INT $PPID; kill -INT $$"))[0] == ("dies by", signal.SIGINT)


@pytest.mark.slow
def test_in_the_foreground_a_ctrl_c_is_left_to_the_terminal_at_first(run, monkeypatch):
    monkeypatch.setattr(process_module, "in_foreground", lambda: True)
    monkeypatch.setattr(process_module, "_RESEND_AFTER", 0.2)
    script = "trap 'echo got it' INT; kill -INT $PPID; for i in 1 2 3 4 5 6 7 8; do sleep 0.01; done; exit 0"
    assert run(*sh(script))[:2] == (("dies by", signal.SIGINT), "")
    script = "trap 'echo got it; exit 1' INT; kill -INT $PPID; while :; do sleep 0.01; done"
    assert run(*sh(script))[:2] == (("dies by", signal.SIGINT), "got it\n")


@pytest.mark.slow
def test_in_the_foreground_other_signals_are_passed_on_at_once(run, monkeypatch):
    monkeypatch.setattr(process_module, "in_foreground", lambda: True)
    monkeypatch.setattr(process_module, "_RESEND_AFTER", 600.0)
    script = "trap 'echo got it; exit 1' TERM; kill -TERM $PPID; while :; do sleep 0.01; done"
    assert run(*sh(script))[:2] == (("dies by", signal.SIGTERM), "got it\n")
    script = "trap 'echo got it; exit 1' INT; kill -INT $PPID; sleep 0.1; kill -INT $PPID; while :; do sleep 0.01; done"
    assert run(*sh(script))[:2] == (("dies by", signal.SIGINT), "got it\n")


@pytest.mark.slow
def test_in_the_foreground_only_the_command_itself_is_ended(run, monkeypatch):
    monkeypatch.setattr(process_module, "in_foreground", lambda: True)
    _, out, _ = run("--timeout", "100ms", "--attempts", 1, *sh("sleep 30 >/dev/null 2>&1 & echo $!; wait"))
    os.kill(int(out), signal.SIGKILL)  # it is there


def test_signals_are_as_before_when_it_is_over(run):
    before = [signal.getsignal(number) for number in (*process_module.TERMINATING, signal.SIGCHLD)]
    run("--", "true")
    assert [signal.getsignal(number) for number in (*process_module.TERMINATING, signal.SIGCHLD)] == before
    assert signal.set_wakeup_fd(-1) == -1


# In a process of its own


@contextlib.contextmanager
def started(*arguments, **how):
    """The command in a session of its own, and so in the foreground of nothing."""
    how = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL, **how}
    with subprocess.Popen(
        [*PROGRAM, *arguments], env=ENVIRONMENT, start_new_session=True, text=True, **how
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT"])
def test_whoever_started_it_sees_by_which_signal_it_died_and_nothing_is_left(name):
    # A shell without job control lets its background commands ignore what comes from the keyboard.
    with started("--grace", "100ms", *sh("sleep 30 & echo $! $$; wait")) as process:
        children = [int(pid) for pid in process.stdout.readline().split()]
        process.send_signal(getattr(signal, name))
        assert process.wait(timeout=30) == -getattr(signal, name)
        assert process.stderr.read() == ""
    assert all(map(gone, children))


@pytest.mark.slow
def test_a_signal_that_was_ignored_from_the_start_stays_so():
    def ignore_hup():
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    with started(*sh("echo ready; sleep 0.2; echo done"), preexec_fn=ignore_hup) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGHUP)
        assert process.communicate(timeout=30) == ("done\n", "")
        assert process.returncode == 0


@pytest.mark.slow
def test_input_goes_to_the_command_untouched_and_the_next_attempt_reads_on():
    with started(*sh("read line; echo got $line; [ $line = b ]"), stdin=subprocess.PIPE) as process:
        out, _ = process.communicate("a\nb\n", timeout=30)
    assert (process.returncode, out) == (0, "got a\ngot b\n")


@pytest.mark.slow
def test_descriptors_beyond_the_first_three_are_passed_on():
    reading, writing = os.pipe()
    writes = [sys.executable, "-c", f"import os; os.write({writing}, b'through')"]
    with started("--", *writes, pass_fds=[writing]) as process:
        os.close(writing)
        assert process.wait(timeout=30) == 0
        assert os.read(reading, 100) == b"through"
    os.close(reading)


@pytest.mark.slow
def test_errors_that_nobody_reads_do_not_stop_it():
    reading, writing = os.pipe()
    os.close(reading)
    with started(*sh("[ $REDOUBLE_ATTEMPT = 3 ]"), stderr=writing) as process:
        os.close(writing)
        assert process.wait(timeout=30) == 0


ON_TERMINAL = """
import fcntl, os, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, "-m", "redouble", "run", "--base", "1ms", *sys.argv[1:]])
"""


@contextlib.contextmanager
def on_terminal(*arguments):
    """The command in the foreground of a terminal of its own."""
    terminal, end = os.openpty()
    program = [sys.executable, "-c", ON_TERMINAL, *arguments]
    with subprocess.Popen(program, env=ENVIRONMENT, stdin=end, stdout=end, stderr=end) as process:
        os.close(end)
        try:
            yield process, terminal
        finally:
            process.kill()
            os.close(terminal)


def read_until(terminal, text):
    shown = b""
    with contextlib.suppress(OSError):  # the end of a terminal
        while text not in shown.decode() and (part := os.read(terminal, 1000)):
            shown += part
    return shown.decode()


@pytest.mark.slow
def test_on_a_terminal_the_command_can_be_talked_to_and_waits_are_told_in_colour():
    with on_terminal(*sh('printf "name? "; read name; echo "hello $name"; [ $name = b ]')) as (
        process,
        terminal,
    ):
        read_until(terminal, "name? ")
        os.write(terminal, b"a\n")
        shown = read_until(terminal, "name? ")
        os.write(terminal, b"b\n")
        shown += read_until(terminal, "hello b")
        assert process.wait(timeout=30) == 0
    assert "hello a" in shown
    assert f"\x1b[33m{PREFIX}attempt 1 of 4: exit status 1; next attempt in " in shown


def test_on_a_terminal_ctrl_c_reaches_the_command_once_and_ends_everything():
    script = "trap 'echo got it; sleep 0.2; exit 3' INT; echo ready; while :; do sleep 0.02; done"
    with on_terminal(*sh(script)) as (process, terminal):
        read_until(terminal, "ready")
        os.write(terminal, b"\x03")
        shown = read_until(terminal, "never said")
        assert process.wait(timeout=30) == -signal.SIGINT
    assert shown.count("got it") == 1


@pytest.mark.slow
def test_on_a_terminal_ctrl_c_during_a_wait_ends_it():
    with on_terminal("--base", "20s", "--backoff", "fixed", "--", "false") as (process, terminal):
        read_until(terminal, "next attempt in")
        os.write(terminal, b"\x03")
        assert process.wait(timeout=30) == -signal.SIGINT


def test_what_is_started_by_tests_in_the_background_of_a_script_heeds_interrupts_all_the_same():
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)}
    try:
        for number in before:
            signal.signal(number, signal.SIG_IGN)
        heed_signals()
        assert signal.SIG_IGN not in map(signal.getsignal, before)
    finally:
        for number, action in before.items():
            signal.signal(number, action)


def test_give_up_after_ends_with_the_status_of_the_last_attempt(run):
    status, out, err = run(
        "--attempts", "inf", "--base", "9s", "--backoff", "fixed", "--give-up-after", "2s", *sh("exit 3")
    )
    assert (status, out) == (3, "")
    assert err == f"{PREFIX}attempt 1: exit status 3; no time left: give_up_after is 2 s\n"
