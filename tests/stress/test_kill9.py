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
import time

import pytest

from redouble.dead_letters import DeadLetters, Replayed
from support.letter_programs import check_file, finish, run, start

ROUNDS = 100 if os.environ.get("REDOUBLE_LONG") else 5


pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the programs of these tests need POSIX")


WRITER = """
    import itertools, os, sys
    from redouble.dead_letters import DeadLetters

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
    from redouble.dead_letters import DeadLetters

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
    from redouble.dead_letters import DeadLetters

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
    from redouble.dead_letters import DeadLetters

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


DEADLY = """
    import asyncio, os, signal, sys, time
    from redouble.dead_letters import DeadLetters

    def handler(letter):
        if letter.payload == "deadly":
            {"kill": lambda: os.kill(os.getpid(), signal.SIGKILL), "_exit": lambda: os._exit(3), "exit": sys.exit}[sys.argv[2]]()
        print(letter.payload, flush=True)

    letters = DeadLetters(sys.argv[1])
    while letters.list(state="leased"):
        time.sleep(0.005)
    if sys.argv[3] == "sync":
        print(letters.replay(handler, lease=0.05, park_after=3).parked)
    else:
        print(asyncio.run(letters.areplay(handler, lease=0.05, park_after=3)).parked)
"""


@pytest.mark.slow
@pytest.mark.parametrize("flavour", ["sync", "async"])
@pytest.mark.parametrize("way", ["kill", "_exit", "exit"])
def test_a_letter_that_kills_its_process_is_parked_and_blocks_no_other(tmp_path, way, flavour):
    """It was never counted: every worker died of it, and nothing behind it was replayed."""
    path = tmp_path / "letters.db"
    with DeadLetters(path) as letters:
        for payload in ("deadly", "behind"):
            letters.put(payload=payload)
    seen = []
    for _ in range(3):
        process = start(DEADLY, path, way, flavour)
        output, _ = process.communicate(timeout=60)
        assert process.returncode == {"kill": -signal.SIGKILL, "_exit": 3, "exit": 0}[way]
        seen += output.split()
    parked = 0 if way == "exit" else 1  # by the process that has ended itself for the third time
    assert (seen, run(DEADLY, path, way, flavour)) == ([], sorted([str(parked), "behind"], reverse=True))
    with DeadLetters(path) as letters:
        (letter,) = letters
        assert (letter.payload, letter.state, letter.replays) == ("deadly", "parked", 3)
    check_file(path)


STOPPED = """
    import sys
    from redouble.dead_letters import DeadLetters

    def handler(letter):
        print("in", flush=True)
        sys.stdin.readline()

    print(DeadLetters(sys.argv[1]).replay(handler, lease=0.3), flush=True)
"""


@pytest.mark.slow
def test_of_a_stopped_replayer_and_the_one_that_took_over_only_the_holder_of_the_claim_counts(tmp_path):
    path = tmp_path / "letters.db"
    with DeadLetters(path) as letters:
        letters.put(payload=1)
        process = start(STOPPED, path, stdin=subprocess.PIPE)
        assert process.stdout.readline() == "in\n"
        process.send_signal(signal.SIGSTOP)
        while letters.list(state="leased"):
            time.sleep(0.01)
        seen = []
        assert letters.replay(lambda letter: seen.append(letter.replays)) == Replayed(replayed=1)
        assert seen == [2]
        process.send_signal(signal.SIGCONT)
        output, _ = process.communicate("go\n", timeout=60)
        assert output == "Replayed(replayed=0, failed=0, parked=0, skipped=1)\n"


INTERRUPTED = """
    import os, signal, sys, time
    from redouble.dead_letters import DeadLetters

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


KILLED_WITH_A_LOG = """
    import os, signal, sys
    from redouble.dead_letters import DeadLetters
    letters = DeadLetters(sys.argv[1])
    letters.put(payload="in the log")
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_a_file_that_is_moved_after_a_kill_leaves_its_log_where_it_can_be_found(tmp_path):
    path, moved = tmp_path / "letters.db", tmp_path / "moved.db"
    process = start(KILLED_WITH_A_LOG, path)
    process.communicate(timeout=60)
    path.rename(moved)
    with DeadLetters(path) as letters:
        letters.put(payload="new")
        assert letters.depth() == 1
    (log,) = [file for file in tmp_path.iterdir() if file.name.startswith("letters.db-wal-")]
    log.rename(tmp_path / "moved.db-wal")
    with DeadLetters(moved) as letters:
        assert [letter.payload for letter in letters] == ["in the log"]
    check_file(moved)


MOVER = """
    import itertools, os, sys, time
    from redouble.dead_letters import DeadLetters

    letters = DeadLetters(sys.argv[1])
    end = time.monotonic() + float(sys.argv[2])
    ids = []
    while time.monotonic() < end:
        ids.append(letters.put(payload="x" * 3000).id)
    letters.close()
    print(*ids)
"""


@pytest.mark.slow
def test_a_file_that_is_moved_again_and_again_under_four_writers_loses_no_letter(tmp_path):
    path = tmp_path / "letters.db"
    writers = [start(MOVER, path, 2.0) for _ in range(4)]
    moved = []
    while any(writer.poll() is None for writer in writers) and len(moved) < 12:
        time.sleep(0.15)
        if path.exists():
            moved.append(tmp_path / f"moved-{len(moved)}.db")
            path.rename(moved[-1])
    put, there = set(), set()
    for writer in writers:
        output, noise = writer.communicate(timeout=120)
        assert writer.returncode == 0, noise
        # Where one was about to write.
        assert all("Its log is kept as" in line for line in noise.splitlines())
        put |= set(output.split())
    for file in [path, *moved]:
        if file.exists():
            with DeadLetters(file) as letters:
                there |= {letter.id for letter in letters}
            check_file(file)
    assert len(put) > 20
    assert put <= there
