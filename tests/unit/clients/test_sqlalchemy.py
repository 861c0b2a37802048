"""`redouble.clients.sqlalchemy`, on SQLite files. Real PostgreSQL is in `tests/interop`."""

from __future__ import annotations

import asyncio
import contextvars

import pytest

from redouble import Policy, ResultRejected, history, retry

sqlalchemy = pytest.importorskip("sqlalchemy")
pytest.importorskip("aiosqlite")
from sqlalchemy import text  # noqa: E402
from sqlalchemy.exc import InvalidRequestError, OperationalError  # noqa: E402
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine  # noqa: E402
from sqlalchemy.orm import sessionmaker  # noqa: E402
from sqlalchemy.pool import NullPool  # noqa: E402

from redouble.clients.sqlalchemy import run_transaction, run_transaction_async  # noqa: E402


class Failed(Exception):
    """An error of a driver, with the code of PostgreSQL."""

    def __init__(self, sqlstate):
        super().__init__(f"SQLSTATE {sqlstate}")
        self.sqlstate = sqlstate


def failed(sqlstate="40P01"):
    return OperationalError("UPDATE orders", {}, Failed(sqlstate))


DEADLOCK, SERIALIZATION, LOST = "40P01", "40001", "08006"


class Sync:
    def __init__(self, path):
        self.engine = sqlalchemy.create_engine(f"sqlite:///{path}", poolclass=NullPool)
        self.sessions = sessionmaker(self.engine)

    def run(self, function, *args, target=None, **fields):
        return run_transaction(target or self.engine, function, *args, **fields)

    @staticmethod
    def of(statements):
        """Make a function that runs these statements, or raises those that are errors; one list for each call."""
        calls = iter(statements)

        def function(connection):
            result = None
            for statement in next(calls):
                if isinstance(statement, Exception):
                    raise statement
                result = connection.execute(text(statement))
            return result.rowcount

        return function

    def failing(self, monkeypatch, error):
        """Make the first COMMIT fail."""
        kind = type(self.engine.connect().begin())
        real, errors = kind.commit, [error]

        def commit(transaction):
            if errors:
                raise errors.pop()
            real(transaction)

        monkeypatch.setattr(kind, "commit", commit)


class Async(Sync):
    def __init__(self, path):
        super().__init__(path)
        self.async_engine = create_async_engine(f"sqlite+aiosqlite:///{path}", poolclass=NullPool)
        self.sessions = async_sessionmaker(self.async_engine)

    def run(self, function, *args, target=None, **fields):
        return asyncio.run(run_transaction_async(target or self.async_engine, function, *args, **fields))

    @staticmethod
    def of(statements):
        calls = iter(statements)

        async def function(connection):
            result = None
            for statement in next(calls):
                if isinstance(statement, Exception):
                    raise statement
                result = await connection.execute(text(statement))
            return result.rowcount

        return function

    def failing(self, monkeypatch, error):
        from sqlalchemy.ext.asyncio import AsyncTransaction

        real, errors = AsyncTransaction.commit, [error]

        async def commit(transaction):
            if errors:
                raise errors.pop()
            await real(transaction)

        monkeypatch.setattr(AsyncTransaction, "commit", commit)


@pytest.fixture(params=[Sync, Async])
def database(request, tmp_path):
    database = request.param(tmp_path / "orders.db")
    with database.engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (id INTEGER)"))
    return database


def count(database):
    with database.engine.connect() as connection:
        return connection.scalar(text("SELECT count(*) FROM orders"))


INSERT = "INSERT INTO orders VALUES (1)"


@pytest.mark.parametrize("sqlstate", [DEADLOCK, SERIALIZATION, LOST])
def test_a_transaction_that_failed_is_rolled_back_and_run_again(database, sqlstate):
    function = database.of([[INSERT, failed(sqlstate)], [INSERT]])
    assert database.run(function) == 1
    assert count(database) == 1


def test_a_session_is_given_for_a_sessionmaker(database):
    function = database.of([[INSERT, failed()], [INSERT]])
    database.run(function, target=database.sessions)
    assert count(database) == 1


def test_another_error_is_raised_at_once_and_rolled_back(database):
    error = ValueError("no such order")
    with pytest.raises(ValueError, match="no such order") as caught:
        database.run(database.of([[INSERT, error]]))
    assert caught.value is error
    assert count(database) == 0


def test_the_last_error_is_raised_with_a_note(database):
    function = database.of([[failed()], [failed()]])
    with pytest.raises(OperationalError) as caught:
        database.run(function, Policy(attempts=2))
    assert history(caught.value).attempts == 2
    assert history(caught.value).name.endswith("function")


def test_a_connection_lost_during_commit_is_not_run_again(database, monkeypatch):
    database.failing(monkeypatch, failed(LOST))
    with pytest.raises(OperationalError) as caught:
        database.run(database.of([[INSERT], [INSERT]]))
    assert "the connection was lost during COMMIT" in caught.value.__notes__[0]


def test_a_lost_commit_is_run_again_if_that_is_safe(database, monkeypatch):
    database.failing(monkeypatch, failed(LOST))
    database.run(database.of([[INSERT], [INSERT]]), idempotent=True)
    assert count(database) == 1


def test_a_serialization_failure_at_commit_is_run_again(database, monkeypatch):
    database.failing(monkeypatch, failed(SERIALIZATION))
    database.run(database.of([[INSERT], [INSERT]]))
    assert count(database) == 1


def test_a_request_that_the_function_sent_is_not_repeated(database):
    error = TimeoutError("slow")
    error.request = type("Request", (), {"method": "POST", "url": "https://example.org/", "headers": {}})()
    with pytest.raises(type(error)) as caught:
        database.run(database.of([[error], [INSERT]]))
    assert "repeating this POST might act twice" in caught.value.__notes__[0]


def test_a_failure_without_a_request_is_run_again(database):
    database.run(database.of([[INSERT, TimeoutError("slow")], [INSERT]]))
    assert count(database) == 1


def test_a_committed_transaction_is_not_run_again_by_until(database):
    with pytest.raises(ResultRejected) as caught:
        database.run(database.of([[INSERT], [INSERT]]), until=lambda rows: rows == 2)
    assert "the transaction is committed" in str(caught.value)
    assert count(database) == 1


def test_until_runs_a_transaction_again_that_may_run_twice(database):
    with pytest.raises(ResultRejected):
        database.run(
            database.of([[INSERT], [INSERT]]), until=lambda rows: rows == 2, idempotent=True, attempts=2
        )
    assert count(database) == 2


def test_a_rollback_that_fails_does_not_hide_the_error(database, monkeypatch):
    from sqlalchemy.engine import RootTransaction
    from sqlalchemy.ext.asyncio import AsyncTransaction

    def lost(*_):
        raise failed(LOST)

    monkeypatch.setattr(RootTransaction, "rollback", lost)
    monkeypatch.setattr(AsyncTransaction, "rollback", lost)
    with pytest.raises(ValueError, match="first"):
        database.run(database.of([[ValueError("first")]]))


def test_a_transaction_inside_one_of_the_same_engine_is_refused(tmp_path):
    database = Sync(tmp_path / "orders.db")

    def outer(connection):
        return run_transaction(database.sessions, len)

    with pytest.raises(InvalidRequestError, match="would run inside a transaction of the same engine"):
        run_transaction(database.engine, outer)
    other = Sync(tmp_path / "other.db")
    assert run_transaction(database.engine, lambda _: run_transaction(other.engine, lambda _: 1)) == 1


def test_a_context_that_outlives_its_transaction_is_free(tmp_path):
    database, left = Sync(tmp_path / "orders.db"), []
    run_transaction(database.engine, lambda _: left.append(contextvars.copy_context()))
    assert left[0].run(run_transaction, database.engine, lambda _: "free") == "free"


def test_a_sessionmaker_without_an_engine_is_known_by_itself(tmp_path):
    database = Sync(tmp_path / "orders.db")

    class Bound(sqlalchemy.orm.Session):
        def get_bind(self, *args, **kwargs):
            return database.engine

    sessions = sessionmaker(class_=Bound)
    assert run_transaction(sessions, lambda session: session.scalar(text("SELECT 1"))) == 1


def test_other_targets_are_refused(tmp_path):
    database = Async(tmp_path / "orders.db")
    with pytest.raises(TypeError, match=r"run_transaction\(\) takes Engine or sessionmaker"):
        run_transaction(database.async_engine, len)
    with pytest.raises(TypeError, match=r"run_transaction_async\(\) takes AsyncEngine"):
        asyncio.run(run_transaction_async(database.engine, len))


def test_an_async_function_is_refused_by_the_sync_form(tmp_path):
    database = Sync(tmp_path / "orders.db")

    async def function(connection):
        raise AssertionError

    with pytest.raises(TypeError):
        run_transaction(database.engine, function)


def test_a_commit_that_is_cut_off_is_ambiguous(tmp_path, monkeypatch):
    from sqlalchemy.ext.asyncio import AsyncTransaction

    database = Async(tmp_path / "orders.db")

    async def commit(transaction):
        await asyncio.sleep(3600)

    monkeypatch.setattr(AsyncTransaction, "commit", commit)

    async def function(connection):
        return 1

    with pytest.raises(TimeoutError) as caught:
        database.run(function, timeout=0.05)
    assert "the connection was lost during COMMIT" in caught.value.__notes__[0]


def test_an_enclosing_call_does_not_multiply_the_attempts(tmp_path):
    database, calls = Sync(tmp_path / "orders.db"), []

    def function(connection):
        calls.append(1)
        raise failed()

    with pytest.raises(OperationalError):
        retry(run_transaction)(database.engine, function)
    assert len(calls) == 4
