"""A file of dead letters under forks, on full disks, locked, pickled and moved to other processes."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import textwrap

import pytest

from redouble.dead_letters import DeadLetters
from support.letter_programs import check_file, run
from support.programs import ROOT

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the programs of these tests need POSIX")


FORK = """
    import os, sys, threading, time
    from redouble.dead_letters import DeadLetters

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


IMPORTS = """
    import asyncio, sys
    from redouble import Policy
    from redouble.dead_letters import DeadLetters

    def fail():
        raise TimeoutError("slow")

    before = set(sys.modules)
    letters = DeadLetters(sys.argv[1])
    try:
        Policy(attempts=1, dead_letters=letters, payload=lambda: {"a": [b"x", "y" * 9999]}).call(fail)
    except TimeoutError as error:
        letters.put(error=error, idempotency_key="k" * 1000, first_attempt_at=1.0)
    letters.list()
    letters.replay(lambda letter: 1 / 0)
    letters.close()
    print(*sorted(set(sys.modules) - before))
"""


def test_a_put_and_a_replay_import_nothing_so_that_no_fork_comes_in_the_middle_of_an_import(tmp_path):
    """A forked child waited for ever for a thread of its parent to end an import."""
    assert run(IMPORTS, tmp_path / "letters.db") == []


FULL = """
    import resource, signal, sys
    from redouble.dead_letters import DeadLetters, StoreError

    letters = DeadLetters(sys.argv[1])
    letters.put()
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
    count = 1
    try:
        while count < 1000:
            letters.put(payload="x" * 5000)
            count += 1
    except StoreError as trouble:
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
    from redouble.dead_letters import DeadLetters, StoreError

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
    except StoreError as trouble:
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
    from redouble.dead_letters import DeadLetters

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
    import redouble.dead_letters
    slow = {"asyncio", "dataclasses", "inspect", "logging", "random", "ssl", "typing"}
    print(*sorted(slow & set(sys.modules)))
"""


def test_importing_the_module_imports_nothing_that_is_slow():
    assert run(SLOW) == []


PICKLED = """
    import multiprocessing, sys
    from redouble.dead_letters import DeadLetters

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
