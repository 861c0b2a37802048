"""What was put is there after the worst: killed processes, many writers at once, forks, full disks.

The rounds of killing are few by default; with ``REDOUBLE_LONG=1`` in the environment there are a hundred.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

import redouble
from redouble.deadletter import DeadLetters, Replayed

ROOT = str(Path(redouble.__file__).parent.parent)
ROUNDS = 100 if os.environ.get("REDOUBLE_LONG") else 5

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the programs of these tests need POSIX")


def start(code, *args):
    """A program in a process of its own, with this redouble."""
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code), *map(str, args)],
        env={**os.environ, "PYTHONPATH": ROOT},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process):
    """What it printed; noise or a failure is a failure here."""
    output, noise = process.communicate(timeout=120)
    assert (process.returncode, noise) == (0, "")
    return output.split()


def run(code, *args):
    return finish(start(code, *args))


def check_file(path):
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    tallies = connection.execute(
        "SELECT queue, depth, parked FROM tallies WHERE depth + parked > 0"
    ).fetchall()
    counted = "SELECT queue, sum(1 - parked), sum(parked) FROM letters GROUP BY queue"
    assert sorted(tallies) == sorted(connection.execute(counted).fetchall())
    keys = "SELECT count(*), count(DISTINCT idempotency_key) FROM letters WHERE idempotency_key IS NOT NULL"
    rows, distinct = connection.execute(keys).fetchone()
    assert rows == distinct
    connection.close()


WRITER = """
    import itertools, os, sys
    from redouble.deadletter import DeadLetters

    letters = DeadLetters(sys.argv[1])
    said = os.open(sys.argv[3], os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    for number in itertools.count():
        key = f"{sys.argv[2]}-{number % 7}" if number % 2 else None
        letter = letters.put(payload={"number": number, "text": "x" * (number % 5000)}, idempotency_key=key)
        os.write(said, (letter.id + "\\n").encode())
"""


@pytest.mark.slow
def test_what_was_put_before_a_kill_is_there_after_it(tmp_path):
    path = tmp_path / "letters.db"
    rng = random.Random(20240701)
    said = tmp_path / "said"
    for number in range(ROUNDS):
        already = said.stat().st_size if number else 0
        writer = start(WRITER, path, number, said)
        while not said.exists() or said.stat().st_size == already:
            assert writer.poll() is None, writer.communicate()
            time.sleep(0.001)
        time.sleep(rng.uniform(0.0, 0.05))
        writer.send_signal(signal.SIGKILL)
        writer.communicate(timeout=60)
        assert writer.returncode == -signal.SIGKILL
        acknowledged = set(said.read_text().split())
        with DeadLetters(path) as letters:
            there = {letter.id for letter in letters}
            assert acknowledged <= there
            # What was written but not said, by a writer that was killed in between: one at most.
            assert len(there - acknowledged) <= number + 1
        check_file(path)


WRITE_MANY = """
    import sys
    from redouble.deadletter import DeadLetters

    letters = DeadLetters(sys.argv[1])
    for number in range(int(sys.argv[3])):
        letters.put(payload=number, idempotency_key=f"{sys.argv[2]}-{number}")
    letters.close()
"""


@pytest.mark.slow
def test_eight_processes_write_at_once_and_nothing_is_lost(tmp_path):
    path = tmp_path / "letters.db"
    writers = [start(WRITE_MANY, path, number, 200) for number in range(8)]
    for writer in writers:
        assert finish(writer) == []
    with DeadLetters(path) as letters:
        assert letters.depth() == 1600
    check_file(path)


@pytest.mark.slow
def test_a_file_that_another_process_makes_while_this_one_looks_is_not_taken_for_a_foreign_one(
    tmp_path, monkeypatch
):
    path = str(tmp_path / "letters.db")
    others = []

    class Interrupted(sqlite3.Connection):
        def execute(self, statement, *args):
            cursor = super().execute(statement, *args)
            if statement == "PRAGMA application_id" and not others:
                others.append(start(WRITE_MANY, path, 0, 3))
                with contextlib.suppress(subprocess.TimeoutExpired):
                    others[0].wait(timeout=0.6)
            return cursor

    connect = sqlite3.connect
    monkeypatch.setattr(
        sqlite3, "connect", lambda *args, **options: connect(*args, **options, factory=Interrupted)
    )
    with DeadLetters(path) as letters:
        letters.put(payload="mine")
        assert finish(others[0]) == []
        assert letters.depth() == 4


REPLAY = """
    import os, sys, time
    from redouble.deadletter import DeadLetters

    def handler(letter):
        # A file that only one at a time can make: two at once would be seen.
        mark = os.path.join(sys.argv[2], str(letter.payload))
        os.close(os.open(mark, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        time.sleep(0.001)
        os.unlink(mark)
        print(letter.payload)

    outcome = DeadLetters(sys.argv[1]).replay(handler)
    assert outcome.failed == outcome.parked == 0, outcome
"""


@pytest.mark.slow
def test_eight_replayers_never_run_one_letter_at_once_and_none_twice(tmp_path):
    path, marks = tmp_path / "letters.db", tmp_path / "marks"
    marks.mkdir()
    with DeadLetters(path) as letters:
        for number in range(100):
            letters.put(payload=number)
    replayers = [start(REPLAY, path, marks) for _ in range(8)]
    handled = [number for replayer in replayers for number in finish(replayer)]
    assert sorted(map(int, handled)) == list(range(100))
    with DeadLetters(path) as letters:
        assert letters.depth() == 0
    check_file(path)


DIE_IN_HANDLER = """
    import os, signal, sys
    from redouble.deadletter import DeadLetters

    def handler(letter):
        if letter.payload == "deadly":
            os.kill(os.getpid(), signal.SIGKILL)

    DeadLetters(sys.argv[1]).replay(handler, lease=60)
"""


@pytest.mark.slow
def test_a_replayer_that_is_killed_in_its_handler_leaves_the_letter_to_be_replayed(tmp_path):
    path = tmp_path / "letters.db"
    with DeadLetters(path) as letters:
        for payload in ("first", "deadly", "last"):
            letters.put(payload=payload)
    process = start(DIE_IN_HANDLER, path)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    seen = []
    with DeadLetters(path) as letters:
        assert [letter.payload for letter in letters.list(state="leased")] == ["deadly"]
        assert letters.replay(lambda letter: seen.append(letter.payload)) == Replayed(replayed=1)
    with DeadLetters(path, clock=lambda: time.time() + 61) as letters:
        assert letters.replay(lambda letter: seen.append(letter.payload)) == Replayed(replayed=1)
    assert seen == ["last", "deadly"]
    check_file(path)


INTERRUPTED = """
    import os, signal, sys, time
    from redouble.deadletter import DeadLetters

    def handler(letter):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(10)

    try:
        DeadLetters(sys.argv[1]).replay(handler)
    except KeyboardInterrupt:
        print("interrupted")
"""


@pytest.mark.slow
def test_control_c_in_a_handler_gives_the_letter_back_at_once(tmp_path):
    path = tmp_path / "letters.db"
    with DeadLetters(path) as letters:
        letters.put()
    assert run(INTERRUPTED, path) == ["interrupted"]
    with DeadLetters(path) as letters:
        assert [(letter.state, letter.replays) for letter in letters] == [("waiting", 0)]


FORK = """
    import os, sys, threading, time
    from redouble.deadletter import DeadLetters

    letters = DeadLetters(sys.argv[1])
    letters.put(payload="before")
    over = threading.Event()

    def busy():
        while not over.is_set():
            letters.put(payload="thread")

    threads = [threading.Thread(target=busy) for _ in range(4)]
    for thread in threads:
        thread.start()
    children = []
    for number in range(10):
        child = os.fork()
        if child == 0:
            for turn in range(5):
                letters.put(payload="child", idempotency_key=f"{number}-{turn}")
            letters.close()
            os._exit(0)
        children.append(child)
        letters.put(payload="parent")
    codes = [os.waitpid(child, 0)[1] for child in children]
    over.set()
    for thread in threads:
        thread.join()
    letters.close()
    print(codes == [0] * 10)
"""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_in_the_middle_of_puts_harms_neither_side(tmp_path):
    path = tmp_path / "letters.db"
    # Python itself warns of forks in processes with threads; that is what is tested here.
    code = "import warnings; warnings.simplefilter('ignore', DeprecationWarning)\n" + textwrap.dedent(FORK)
    assert run(code, path) == ["True"]
    with DeadLetters(path) as letters:
        payloads = [letter.payload for letter in letters]
    assert payloads.count("child") == 50
    assert payloads.count("parent") == 10
    check_file(path)


FULL = """
    import resource, signal, sys
    from redouble.deadletter import DeadLetters, StoreTrouble

    letters = DeadLetters(sys.argv[1])
    letters.put()
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
    count = 1
    try:
        while count < 1000:
            letters.put(payload="x" * 5000)
            count += 1
    except StoreTrouble as trouble:
        assert sys.argv[1] in str(trouble) and "disk" in str(trouble), trouble
        print("trouble")
    print(count)
"""


@pytest.mark.slow
def test_a_disk_that_fills_up_is_told_and_what_was_put_stays(tmp_path):
    path = tmp_path / "letters.db"
    told, count = run(FULL, path)
    assert told == "trouble"
    with DeadLetters(path) as letters:
        assert letters.depth() == int(count) > 1
        letters.put()
    check_file(path)


SLOW = """
    import sys
    import redouble.deadletter
    slow = {"asyncio", "dataclasses", "inspect", "logging", "random", "sqlite3", "ssl", "traceback", "typing"}
    print(*sorted(slow & set(sys.modules)))
"""


def test_importing_the_module_imports_nothing_that_is_slow():
    assert run(SLOW) == []


PICKLED = """
    import multiprocessing, sys
    from redouble.deadletter import DeadLetters

    def work(letters, number):
        letters.put(payload=number)
        letters.close()

    def main():
        letters = DeadLetters(sys.argv[1], queue="bulk")
        letters.put(payload="parent")
        for method in ("fork", "spawn"):
            context = multiprocessing.get_context(method)
            processes = [context.Process(target=work, args=(letters, number)) for number in range(2)]
            for process in processes:
                process.start()
            for process in processes:
                process.join()
        letters.close()
        print(letters.depth())
        letters.close()

    if __name__ == "__main__":
        main()
"""


@pytest.mark.slow
def test_letters_go_to_other_processes_by_fork_and_by_pickle(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(PICKLED))
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script), str(tmp_path / "x.db")],
        env={**os.environ, "PYTHONPATH": ROOT},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout.strip(), done.stderr) == ("5", "")
