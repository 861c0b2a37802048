"""Programs that use dead letters, in processes of their own."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import textwrap

from support.programs import ROOT


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
