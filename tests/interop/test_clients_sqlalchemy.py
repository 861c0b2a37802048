"""`redouble.clients.sqlalchemy` against a real PostgreSQL."""

from __future__ import annotations

import asyncio
import threading

import pytest

from interop.processes import PASSWORD
from interop.proxy import Proxy
from interop.support import in_long_mode
from redouble import DeadlineExceeded
from redouble.testing import no_waits

sqlalchemy = pytest.importorskip("sqlalchemy", reason="SQLAlchemy is not installed")
pytest.importorskip("psycopg", reason="psycopg is not installed")
from sqlalchemy import text  # noqa: E402
from sqlalchemy.exc import DBAPIError, OperationalError  # noqa: E402
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine  # noqa: E402
from sqlalchemy.pool import NullPool  # noqa: E402

from redouble.clients.sqlalchemy import run_transaction, run_transaction_async  # noqa: E402


def engine_at(port, driver="psycopg", make=sqlalchemy.create_engine, **options):
    url = sqlalchemy.URL.create(f"postgresql+{driver}", "redouble", PASSWORD, "127.0.0.1", port, "postgres")
    return make(url, poolclass=NullPool, **options)


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


# Async


@pytest.fixture(params=["asyncpg", "psycopg"])
def async_engine_at(request):
    """Run the test with each async driver. Return a function that makes an engine for a port."""
    pytest.importorskip(request.param, reason=f"{request.param} is not installed")
    return lambda port, **options: engine_at(port, request.param, create_async_engine, **options)


def async_moving(first, second, both, calls):
    """As `moving`, for tasks."""
    calls[first] = 0

    async def function(connection):
        calls[first] += 1
        add = text("UPDATE accounts SET balance = balance + 1 WHERE id = :id")
        await connection.execute(add, {"id": first})
        if calls[first] == 1:
            await both.wait()
        await connection.execute(add, {"id": second})

    return function


def test_a_deadlock_of_async_transactions_ends_with_both_done_once(engine, postgresql, async_engine_at):
    calls = {}

    async def main():
        target, both = async_engine_at(postgresql.port), asyncio.Barrier(2)
        async with asyncio.timeout(60):
            await asyncio.gather(
                run_transaction_async(target, async_moving(1, 2, both, calls)),
                run_transaction_async(target, async_moving(2, 1, both, calls)),
            )

    with no_waits(everywhere=True):
        asyncio.run(main())
    assert balances(engine) == [102, 102]
    assert sum(calls.values()) > 2


@in_long_mode
def test_a_serialization_failure_of_async_sessions_ends_with_both_done_once(
    engine, postgresql, async_engine_at
):
    runs = []

    def adding(both):
        calls = []

        async def function(session):
            calls.append(1)
            runs.append(1)
            balance = await session.scalar(text("SELECT balance FROM accounts WHERE id = 1"))
            if len(calls) == 1:
                await both.wait()
            await session.execute(
                text("UPDATE accounts SET balance = :new WHERE id = 1"), {"new": balance + 1}
            )

        return function

    async def main():
        target, both = async_engine_at(postgresql.port, isolation_level="SERIALIZABLE"), asyncio.Barrier(2)
        sessions = async_sessionmaker(target)
        async with asyncio.timeout(60):
            await asyncio.gather(*[run_transaction_async(sessions, adding(both)) for _ in range(2)])

    with no_waits(everywhere=True):
        asyncio.run(main())
    assert (balances(engine), len(runs)) == ([102, 100], 3)


@in_long_mode
def test_an_async_transaction_whose_backend_is_killed_runs_again(engine, postgresql, async_engine_at):
    calls = []

    async def function(connection):
        calls.append(1)
        await connection.execute(text("UPDATE accounts SET balance = balance + 1 WHERE id = 1"))
        if len(calls) == 1:
            pid = await connection.scalar(text("SELECT pg_backend_pid()"))
            with engine.connect() as other:
                other.scalar(text("SELECT pg_terminate_backend(:pid)"), {"pid": pid})
        await connection.execute(text("SELECT 1"))

    with no_waits():
        asyncio.run(run_transaction_async(async_engine_at(postgresql.port), function))
    assert (len(calls), balances(engine)) == (2, [101, 100])


@in_long_mode
@pytest.mark.parametrize(("fields", "expected"), [({}, 101), ({"idempotent": True}, 102)])
def test_a_connection_lost_at_an_async_commit_is_run_again_only_if_allowed(
    engine, postgresql, async_engine_at, fields, expected
):
    async def function(connection):
        await connection.execute(text("UPDATE accounts SET balance = balance + 1 WHERE id = 1"))

    with Proxy(postgresql.port, b"COMMIT") as proxy, no_waits():
        transaction = run_transaction_async(async_engine_at(proxy.port), function, **fields)
        if fields:
            asyncio.run(transaction)
        else:
            with pytest.raises(DBAPIError) as caught:
                asyncio.run(transaction)
            assert "the connection was lost during COMMIT" in caught.value.__notes__[0]
    assert balances(engine)[0] == expected


@in_long_mode
@pytest.mark.parametrize("field", ["timeout", "deadline"])
def test_an_async_transaction_that_a_time_limit_cuts_off_is_rolled_back(
    engine, postgresql, async_engine_at, field
):
    calls = []

    async def function(connection):
        calls.append(1)
        await connection.execute(text("UPDATE accounts SET balance = balance + 1 WHERE id = 1"))
        if len(calls) == 1:
            await connection.execute(text("SELECT pg_sleep(60)"))

    with no_waits():
        transaction = run_transaction_async(async_engine_at(postgresql.port), function, **{field: 0.5})
        if field == "timeout":
            asyncio.run(transaction)
        else:
            with pytest.raises(DeadlineExceeded):
                asyncio.run(transaction)
    # A row that is still locked would let this wait.
    with engine.begin() as connection:
        connection.execute(text("SET lock_timeout = '10s'"))
        connection.execute(text("UPDATE accounts SET balance = balance + 10 WHERE id = 1"))
    assert (len(calls), balances(engine)[0]) == ((2, 111) if field == "timeout" else (1, 110))
