"""The transactions of docs/how-to/django.md against a real PostgreSQL, in a process of their own: settings are global."""

from __future__ import annotations

import subprocess
import sys

import pytest

from interop.processes import PASSWORD

pytest.importorskip("django", reason="Django is not installed")
pytest.importorskip("psycopg", reason="psycopg is not installed")

PREPARE = """
import sys, threading
import django
from django.conf import settings

server = {"NAME": "postgres", "USER": "redouble", "PASSWORD": sys.argv[1], "HOST": "127.0.0.1", "PORT": sys.argv[2]}
settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", **server}})
django.setup()
from django.db import connection, transaction
from redouble import retrying
from redouble.testing import no_waits

def run(statement, *values):
    with connection.cursor() as cursor:
        cursor.execute(statement, values)
        return cursor.fetchall() if cursor.description else None

run("DROP TABLE IF EXISTS books")
run("CREATE TABLE books (id INTEGER PRIMARY KEY, copies INTEGER)")
run("INSERT INTO books VALUES (1, 0), (2, 0)")
add = "UPDATE books SET copies = copies + 1 WHERE id = %s"
"""

LOST = """
import psycopg

killer = psycopg.connect(host="127.0.0.1", port=sys.argv[2], user="redouble", password=sys.argv[1],
                         dbname="postgres", autocommit=True)
runs = 0
with no_waits():
    for attempt in retrying(attempts=3):
        with attempt, transaction.atomic(durable=True):
            runs += 1
            run(add, 1)
            if runs == 1:
                killer.execute("SELECT pg_terminate_backend(%s)", [connection.connection.info.backend_pid])
            run(add, 2)
killer.close()
print(runs, run("SELECT copies FROM books ORDER BY id"))
"""

DEADLOCK = """
both = threading.Barrier(2)
runs = []

def both_rows(first, second):
    for attempt in retrying(attempts=20, idempotent=False):
        with attempt, transaction.atomic(durable=True):
            runs.append(attempt.number)
            run(add, first)
            if attempt.number == 1:
                both.wait(60)
            run(add, second)
    connection.close()

threads = [threading.Thread(target=both_rows, args=rows) for rows in ((1, 2), (2, 1))]
with no_waits(everywhere=True):
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
print(max(runs) > 1, run("SELECT copies FROM books ORDER BY id"))
"""


def output_of(program: str, port: int) -> str:
    command = [sys.executable, "-c", PREPARE + program, PASSWORD, str(port)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_block_with_atomic_runs_again_on_a_new_connection_after_the_first_was_lost(postgresql):
    assert output_of(LOST, postgresql.port) == "2 [(1,), (1,)]"


def test_a_deadlock_ends_with_both_blocks_done_once(postgresql):
    assert output_of(DEADLOCK, postgresql.port) == "True [(2,), (2,)]"
