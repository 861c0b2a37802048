"""`redouble.clients.sqlalchemy` against a real PostgreSQL."""

from __future__ import annotations

import threading

import pytest

from interop.processes import PASSWORD
from interop.proxy import Proxy
from interop.support import in_long_mode
from redouble.testing import no_waits

sqlalchemy = pytest.importorskip("sqlalchemy", reason="SQLAlchemy is not installed")
pytest.importorskip("psycopg", reason="psycopg is not installed")
from sqlalchemy import text  # noqa: E402
from sqlalchemy.exc import OperationalError  # noqa: E402
from sqlalchemy.pool import NullPool  # noqa: E402

from redouble.clients.sqlalchemy import run_transaction  # noqa: E402


def engine_at(port, **options):
    url = sqlalchemy.URL.create("postgresql+psycopg", "redouble", PASSWORD, "127.0.0.1", port, "postgres")
    return sqlalchemy.create_engine(url, poolclass=NullPool, **options)


@pytest.fixture
def engine(postgresql):
    engine = engine_at(postgresql.port)
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE IF EXISTS accounts"))
        connection.execute(text("CREATE TABLE accounts (id INTEGER PRIMARY KEY, balance INTEGER)"))
        connection.execute(text("INSERT INTO accounts VALUES (1, 100), (2, 100)"))
    return engine


def balances(engine):
    with engine.connect() as connection:
        return list(connection.scalars(text("SELECT balance FROM accounts ORDER BY id")))


def beside_each_other(engine, *functions):
    """Run each function in a transaction of its own thread. Return the errors."""
    errors = []

    def work(function):
        try:
            run_transaction(engine, function, attempts=20)
        except Exception as error:
            errors.append(error)

    with no_waits(everywhere=True):
        threads = [threading.Thread(target=work, args=(function,)) for function in functions]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
    return errors


def moving(first, second, both):
    """Make a function that locks two rows in this order; in the first run it waits until the other has one as well."""
    calls = []

    def function(connection):
        calls.append(1)
        add = text("UPDATE accounts SET balance = balance + 1 WHERE id = :id")
        connection.execute(add, {"id": first})
        if len(calls) == 1:
            both.wait(60)
        connection.execute(add, {"id": second})

    return function


def test_a_deadlock_ends_with_both_transactions_done_once(engine):
    both = threading.Barrier(2)
    assert beside_each_other(engine, moving(1, 2, both), moving(2, 1, both)) == []
    assert balances(engine) == [102, 102]


@in_long_mode
def test_a_serialization_failure_ends_with_both_transactions_done_once(engine, postgresql):
    serializable = engine_at(postgresql.port, isolation_level="SERIALIZABLE")
    both = threading.Barrier(2)

    def adding():
        calls = []

        def function(connection):
            calls.append(1)
            balance = connection.scalar(text("SELECT balance FROM accounts WHERE id = 1"))
            if len(calls) == 1:
                both.wait(60)
            connection.execute(text("UPDATE accounts SET balance = :new WHERE id = 1"), {"new": balance + 1})

        return function

    assert beside_each_other(serializable, adding(), adding()) == []
    assert balances(engine) == [102, 100]


@in_long_mode
def test_a_transaction_whose_backend_is_killed_runs_again(engine):
    calls = []

    def function(connection):
        calls.append(1)
        connection.execute(text("UPDATE accounts SET balance = balance + 1 WHERE id = 1"))
        if len(calls) == 1:
            pid = connection.scalar(text("SELECT pg_backend_pid()"))
            with engine.connect() as other:
                other.scalar(text("SELECT pg_terminate_backend(:pid)"), {"pid": pid})
        connection.execute(text("SELECT 1"))

    with no_waits():
        run_transaction(engine, function)
    assert (len(calls), balances(engine)) == (2, [101, 100])


@in_long_mode
@pytest.mark.parametrize(("fields", "expected"), [({}, 101), ({"idempotent": True}, 102)])
def test_a_connection_lost_at_commit_is_run_again_only_if_allowed(engine, postgresql, fields, expected):
    def function(connection):
        connection.execute(text("UPDATE accounts SET balance = balance + 1 WHERE id = 1"))

    with Proxy(postgresql.port, b"COMMIT") as proxy, no_waits():
        through = engine_at(proxy.port)
        if fields:
            run_transaction(through, function, **fields)
        else:
            with pytest.raises(OperationalError) as caught:
                run_transaction(through, function)
            assert "the connection was lost during COMMIT" in caught.value.__notes__[0]
    assert balances(engine)[0] == expected
