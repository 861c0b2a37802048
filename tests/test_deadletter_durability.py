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


def start(code, *args, **pipes):
    """A program in a process of its own, with this redouble."""
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code), *map(str, args)],
        env={**os.environ, "PYTHONPATH": ROOT},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **pipes,
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


DEADLY = """
    import asyncio, os, signal, sys, time
    from redouble.deadletter import DeadLetters

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
    from redouble.deadletter import DeadLetters

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


FORK_IN_IMPORT = """
    import os, sys, threading, time, warnings
    from redouble.deadletter import DeadLetters

    warnings.simplefilter("ignore", DeprecationWarning)
    letters = DeadLetters(sys.argv[1])
    importing = threading.Event()

    class Slow:
        def find_spec(self, name, path=None, target=None):
            if name == sys.argv[2]:
                importing.set()
                time.sleep(0.1)

    def put(payload):
        letters.put(payload=payload, error=ValueError("x"))
        letters.replay(lambda letter: 1 / 0, limit=1)

    sys.meta_path.insert(0, Slow())
    thread = threading.Thread(target=put, args=("thread",))
    thread.start()
    assert importing.wait(5)
    child = os.fork()
    if not child:
        put("child")
        os._exit(0)
    end = time.monotonic() + 20
    while not os.waitpid(child, os.WNOHANG)[0]:
        if time.monotonic() > end:
            os.kill(child, 9)
            sys.exit("the child hangs")
        time.sleep(0.01)
    thread.join()
    print(letters.depth())
    letters.close()
"""


@pytest.mark.slow
@pytest.mark.parametrize("module", ["sqlite3", "json", "datetime", "traceback", "tokenize", "socket"])
def test_a_fork_during_the_first_put_leaves_the_child_waiting_for_nothing(tmp_path, module):
    """The child waited for a thread of the parent to end its import."""
    assert run(FORK_IN_IMPORT, tmp_path / "letters.db", module) == ["2"]


IMPORTS = """
    import asyncio, sys
    from redouble import Policy
    from redouble.deadletter import DeadLetters
    from redouble._letters import prepare

    def fail():
        raise TimeoutError("slow")

    prepare()
    before = set(sys.modules)
    letters = DeadLetters(sys.argv[1])
    try:
        Policy(attempts=1, dead_letters=letters, payload=lambda: {"a": [b"x", "y" * 9999]}).call(fail)
    except TimeoutError as error:
        letters.put(error=error, idempotency_key="k" * 1000, first_attempt_at=1.0)
    letters.list()
    letters.close()
    print(*sorted(set(sys.modules) - before))
"""


def test_a_put_imports_nothing_that_was_not_imported_under_the_lock_that_forks_wait_for(tmp_path):
    assert run(IMPORTS, tmp_path / "letters.db") == []


KILLED_WITH_A_LOG = """
    import os, signal, sys
    from redouble.deadletter import DeadLetters
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
    from redouble.deadletter import DeadLetters

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


PURGED = """
    import os, resource, signal, sys
    from redouble.deadletter import DeadLetters, StoreTrouble

    letters, how = DeadLetters(sys.argv[1]), sys.argv[2]
    letters.put()
    if how == "limit":
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
    count = 1
    try:
        while True:
            letters.put(payload=f"{count:09}" * int(sys.argv[3]))
            count += 1
    except StoreTrouble as trouble:
        assert "disk" in str(trouble), trouble
    if how == "reopened":
        letters.close()
        with open(os.path.dirname(sys.argv[1]) + "/last", "wb", 0) as last:
            try:
                while last.write(b"x"):
                    pass
            except OSError:
                pass
    assert letters.depth() == count
    assert letters.replay(lambda letter: None, limit=2).replayed == 2
    print(letters.purge(older_than=0) == count - 2)
    letters.put(payload="x" * 9000)
    letters.close()
"""


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 16 MB, where this may be mounted."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("no file system can be mounted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("size", [100, 2000, 6000])
@pytest.mark.parametrize("how", ["open", "reopened"])
def test_letters_can_be_replayed_and_purged_on_a_disk_without_a_byte_left(small_disk, how, size):
    assert run(PURGED, small_disk / "letters.db", how, size) == ["True"]
    check_file(small_disk / "letters.db")


@pytest.mark.slow
def test_letters_can_be_purged_where_no_file_may_grow(tmp_path):
    assert run(PURGED, tmp_path / "letters.db", "limit", 100) == ["True"]
    check_file(tmp_path / "letters.db")


STALLED = """
    import asyncio, logging, os, sys, threading, time
    from redouble import Policy
    from redouble.deadletter import DeadLetters

    logging.disable(logging.CRITICAL)
    letters, healthy = DeadLetters(sys.argv[1]), DeadLetters(sys.argv[1] + ".healthy")
    policy = Policy(attempts=1, deadline=1.0, dead_letters=letters)
    took = []

    def fail():
        raise TimeoutError("slow")

    async def fail_async():
        raise TimeoutError("slow")

    def work():
        began = time.monotonic()
        try:
            policy.call(fail)
        except TimeoutError:
            took.append(time.monotonic() - began)

    async def work_async():
        began = time.monotonic()
        try:
            await policy.call(fail_async)
        except TimeoutError:
            return time.monotonic() - began

    async def main():
        return await asyncio.gather(*[work_async() for _ in range(int(sys.argv[2]))])

    healthy.put()
    threads = [threading.Thread(target=work) for _ in range(int(sys.argv[2]))]
    for thread in threads:
        thread.start()
    began = time.monotonic()
    healthy.put()
    other = time.monotonic() - began
    for thread in threads:
        thread.join()
    print(max(took), max(asyncio.run(main())), other)
"""


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 4, 64])
def test_a_locked_file_costs_failing_calls_one_second_beyond_their_deadline(tmp_path, count):
    path = tmp_path / "letters.db"
    with DeadLetters(path) as letters:
        letters.put()
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    in_threads, in_tasks, healthy = map(float, run(STALLED, path, count))
    other.close()
    print(
        f"longest stall of {count} calls: threads {in_threads:.2f} s, tasks {in_tasks:.2f} s, other file {healthy:.3f} s"
    )
    assert max(in_threads, in_tasks) < 2.0 + 1.0  # a loaded machine is slow
    assert healthy < 1.0


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
