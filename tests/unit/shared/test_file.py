"""A budget in a file, between processes."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import redouble
from redouble.budget import TokenBudget
from redouble.shared import FileBudget
from redouble.shared._budget import APPLICATION
from support.stores import changes, raw

ROOT = str(Path(redouble.__file__).parent.parent)


def test_the_file_is_made_when_it_is_first_needed(tmp_path):
    path = tmp_path / "retries"
    budget = FileBudget(path)
    assert not path.exists()
    assert budget.acquire() == 5.0
    assert raw(path) == [(495.0,)]
    assert list(tmp_path.iterdir()) == [path]  # nothing is left lying beside it


def test_budgets_of_one_file_share_what_is_left(tmp_path):
    one, other = (FileBudget(tmp_path / "retries", capacity=20) for _ in range(2))
    assert [one.acquire(), other.acquire(timeout=True), one.acquire(), other.acquire()] == [5, 10, 5, 0]
    other.success(5.0)
    assert one.refresh() == 5.0
    assert one.tokens == 5.0


def test_low_priorities_leave_their_reserve(tmp_path):
    budget = FileBudget(tmp_path / "retries", capacity=20, reserves={-1: 0.5})
    assert [budget.acquire(priority=-1) for _ in range(4)] == [5, 5, 5, 0]
    assert budget.acquire() == 5.0


operations = st.lists(
    st.one_of(
        st.tuples(st.just("acquire"), st.booleans(), st.integers(-1, 0)),
        st.tuples(st.just("success"), st.sampled_from([0.0, 5.0, 10.0])),
    ),
    max_size=30,
)


@pytest.mark.slow
@given(operations, st.integers(0, 40), st.sampled_from([None, 0, 7]), st.integers(0, 3))
def test_it_does_what_a_token_budget_does(tmp_path_factory, steps, capacity, refund, earn):
    path = tmp_path_factory.mktemp("budget") / "retries"
    model = TokenBudget(capacity, refund=refund, earn=earn)
    budgets = [FileBudget(path, capacity, refund=refund, earn=earn) for _ in range(2)]
    for number, (what, *rest) in enumerate(steps):
        budget = budgets[number % 2]
        if what == "acquire":
            timeout, priority = rest
            assert budget.acquire(timeout=timeout, priority=priority) == model.acquire(
                timeout=timeout, priority=priority
            )
        else:
            model.success(*rest)
            budget.refresh()  # or it may believe that it is full,
            budget.success(*rest)
            budget.refresh()  # and what was earned is sent a while later
        assert budget.tokens == model.tokens
        assert 0 <= budget.tokens <= capacity
    assert budgets[0].refresh() == model.tokens


def test_a_success_touches_no_file_while_the_budget_is_believed_full(tmp_path, clock):
    path = tmp_path / "retries"
    budget = FileBudget(path, clock=clock)
    budget.success()
    assert budget._full
    path.unlink()
    for _ in range(10):
        budget.success()
    assert not path.exists()
    clock.advance(1.0)
    budget.success()
    assert path.exists()


def test_a_budget_that_nobody_used_for_long_is_full_again(tmp_path, monkeypatch):
    now = [1e9]
    monkeypatch.setattr(time, "time", lambda: now[0])
    budget = FileBudget(tmp_path / "retries", capacity=20, ttl=60.0)
    budget.acquire()
    now[0] += 59.0
    assert budget.acquire() == 5.0
    now[0] += 59.0
    assert budget.refresh() == 10.0
    now[0] += 60.0
    assert budget.refresh() == 20.0
    budget.acquire()
    now[0] -= 1e6  # somebody set the clock
    assert budget.refresh() == 15.0


@pytest.mark.parametrize("held", ["NULL", "'many'", "-1", "9e999", "-9e999"])
def test_what_is_no_amount_counts_as_nothing(tmp_path, held):
    path = tmp_path / "retries"
    budget = FileBudget(path)
    budget.acquire()
    raw(path, f"UPDATE budget SET tokens = {held}")
    assert (budget.acquire(), budget.refresh(), budget.available) == (0.0, 0.0, True)
    budget.success(5.0)
    assert budget.refresh() == 5.0


@pytest.mark.parametrize("held", ["NULL", "'long ago'"])
def test_a_time_that_is_none_is_not_long_ago(tmp_path, held):
    path = tmp_path / "retries"
    budget = FileBudget(path)
    budget.acquire()
    raw(path, f"UPDATE budget SET used = {held}")
    assert budget.refresh() == 495.0


def foreign(path):
    raw(path, "CREATE TABLE people (name TEXT)")
    return "is a database, but not a budget"


def numbered(path):
    raw(path, "PRAGMA user_version = 3")
    return "is a database, but not a budget"


def newer(path):
    FileBudget(path).acquire()
    raw(path, "PRAGMA user_version = 2")
    return "layout 2, this one knows 1"


def of_another_program(path):
    raw(path, f"PRAGMA application_id = {APPLICATION + 1}")
    return "is a database, but not a budget"


def garbage(path):
    path.write_bytes(b"not a database, but long enough to be taken for one" * 100)
    return "file is not a database"


def torn(path):
    FileBudget(path).acquire()
    content = bytearray(path.read_bytes())
    content[100:] = b"\xff" * (len(content) - 100)
    path.write_bytes(content)
    return "malformed"


def folder(path):
    path.mkdir()
    return "unable to open database file"


@pytest.mark.parametrize("spoil", [foreign, numbered, newer, of_another_program, garbage, torn, folder])
def test_a_file_that_is_not_a_budget_is_left_as_it_is_and_the_local_guard_takes_over(tmp_path, spoil):
    path = tmp_path / "retries"
    message = spoil(path)
    before = path.read_bytes() if path.is_file() else None
    events = []
    budget = FileBudget(path, capacity=10, listeners=[events.append])
    assert [budget.acquire() for _ in range(3)] == [5.0, 5.0, 0.0]
    assert message in events[0].error_message
    assert changes(events) == [False]
    assert before == (path.read_bytes() if path.is_file() else None)


def test_a_folder_that_is_not_there_yet_is_waited_for(tmp_path, clock):
    budget = FileBudget(tmp_path / "later" / "retries", clock=clock)
    assert (budget.acquire(), budget.available) == (5.0, False)
    (tmp_path / "later").mkdir()
    clock.advance(1.0)
    assert (budget.acquire(), budget.available) == (5.0, True)


@pytest.mark.slow
def test_a_file_that_somebody_holds_locked_is_not_waited_for_long(tmp_path):
    path = tmp_path / "retries"
    budget = FileBudget(path, timeout=0.05)
    budget.acquire()
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    try:
        began = time.monotonic()
        assert budget.acquire() == 5.0
        assert time.monotonic() - began < 2.0
        assert not budget.available
    finally:
        holder.close()
    assert raw(path) == [(495.0,)]


def run(code, *args):
    """Starts a program that finds this redouble; whatever it writes to stderr is shown."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, args)],
        env={**os.environ, "PYTHONPATH": ROOT},
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no limits on files there")
def test_on_a_full_disk_the_local_guard_takes_over(tmp_path):
    code = """
        import resource, sys
        from redouble.shared import FileBudget
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        budget = FileBudget(sys.argv[1], capacity=10)
        print([budget.acquire() for _ in range(3)], budget.available)
    """
    assert run(code, tmp_path / "retries").communicate(timeout=60)[0] == "[5.0, 5.0, 0.0] False\n"


SPEND = """
    import sys
    from redouble.shared import FileBudget
    budget = FileBudget(sys.argv[1], capacity=2000, timeout=10.0)
    sys.stdin.readline()
    granted = 0
    while budget.acquire():
        granted += 1
    assert budget.available
    print(granted)
"""


@pytest.mark.slow
def test_processes_that_share_a_file_never_overspend(tmp_path):
    path = tmp_path / "retries"
    processes = []
    for _ in range(4):
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(SPEND), str(path)],
            env={**os.environ, "PYTHONPATH": ROOT},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    granted = [int(process.communicate(timeout=60)[0]) for process in processes]
    assert sum(granted) == 400
    assert raw(path) == [(0.0,)]


@pytest.mark.slow
def test_a_process_that_is_killed_in_the_middle_leaves_the_file_whole_and_nothing_unspent(tmp_path):
    code = """
        import os, sys
        from redouble.shared import FileBudget
        budget = FileBudget(sys.argv[1], capacity=1e6, timeout=10.0)
        while budget.acquire():
            os.write(1, b".")  # at once: what was said was granted
    """
    path = tmp_path / "retries"
    granted = 0
    for _ in range(5):
        process = run(code, path)
        process.stdout.read(20)
        process.kill()
        granted += 20 + len(process.stdout.read())
        process.stdout.close()
        process.wait()
    spent = 1e6 - FileBudget(path, capacity=1e6).refresh()
    assert granted * 5 <= spent <= (granted + 5) * 5
    assert raw(path, "PRAGMA integrity_check") == [("ok",)]


def test_threads_that_share_a_budget_never_overspend(tmp_path):
    budget = FileBudget(tmp_path / "retries", capacity=500, timeout=10.0)
    granted = []

    def work():
        while taken := budget.acquire():
            granted.append(taken)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(granted) == 500.0


@pytest.mark.slow
def test_it_travels_to_processes_that_are_spawned(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
        import multiprocessing, sys
        from redouble.shared import FileBudget

        def work(budget):
            return budget.acquire()

        if __name__ == "__main__":
            budget = FileBudget(sys.argv[1], capacity=10)
            with multiprocessing.get_context("spawn").Pool(2) as pool:
                print(sorted(pool.map(work, [budget] * 3)), budget.refresh())
                pool.close()
                pool.join()
        """)
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", script, tmp_path / "retries"],
        env={**os.environ, "PYTHONPATH": ROOT},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("[0.0, 5.0, 5.0] 0.0\n", "")


def test_a_file_that_is_no_database_leaves_no_connection_open(tmp_path, monkeypatch):
    path, opened, real = tmp_path / "retries", [], sqlite3.connect
    path.write_bytes(b"not a database " * 1000)

    def connect(*args, **settings):
        opened.append(real(*args, **settings))
        return opened[-1]

    monkeypatch.setattr(sqlite3, "connect", connect)
    FileBudget(path).acquire()
    for connection in opened:
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            connection.execute("SELECT 1")
    assert opened
