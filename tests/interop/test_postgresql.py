"""psycopg and asyncpg against a real PostgreSQL."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from typing import TYPE_CHECKING, Any

import pytest

from interop.processes import PASSWORD, STARTS_WITHIN, Server, until
from interop.server import Web
from interop.support import error_of, judged, permanent, running, transient, unprocessed
from redouble import retry
from redouble.testing import no_waits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed: the extra 'interop' is needed")
asyncpg = pytest.importorskip("asyncpg", reason="asyncpg is not installed: the extra 'interop' is needed")

# How both drivers are told where to go.
HERE = {"host": "127.0.0.1", "user": "redouble", "password": PASSWORD}


class Psycopg:
    """A connection of psycopg."""

    refused = psycopg.OperationalError

    def __init__(self, port: int, database: str = "postgres", **options: Any) -> None:
        self._connection = psycopg.connect(
            **(HERE | {"port": port, "dbname": database} | options), autocommit=True
        )

    def run(self, query: str) -> list[tuple[Any, ...]]:
        """Run one statement and return the rows."""
        cursor = self._connection.execute(query)
        return list(cursor.fetchall()) if cursor.description else []

    def close(self) -> None:
        self._connection.close()


class Asyncpg:
    """A connection of asyncpg, with its own event loop."""

    refused = ConnectionRefusedError

    def __init__(self, port: int, database: str = "postgres", **options: Any) -> None:
        self._runner = asyncio.Runner()
        try:
            self._connection = self._wait(
                self._connect(HERE | {"port": port, "database": database} | options)
            )
        except BaseException:
            self._runner.close()
            raise

    @staticmethod
    async def _connect(options: dict[str, Any]) -> Any:
        return await asyncpg.connect(**options)

    def _wait(self, awaitable: Any) -> Any:
        return self._runner.run(awaitable)

    def run(self, query: str) -> list[tuple[Any, ...]]:
        """Run one statement and return the rows."""
        return [tuple(row) for row in self._wait(self._connection.fetch(query))]

    def close(self) -> None:
        if self._runner.get_loop().is_closed():
            return
        self._wait(self._terminate())
        self._runner.close()

    async def _terminate(self) -> None:
        self._connection.terminate()


@pytest.fixture(params=[Psycopg, Asyncpg])
def driver(request: pytest.FixtureRequest) -> Any:
    """Run the test with each driver."""
    return request.param


@pytest.fixture
def connect(driver: Any, postgresql: Server) -> Iterator[Callable[..., Any]]:
    """Return a function that opens connections, which are closed after the test."""
    opened: list[Any] = []

    def connection(**options: Any) -> Any:
        opened.append(driver(**{"port": postgresql.port, **options}))
        return opened[-1]

    yield connection
    for made in opened:
        made.close()


@pytest.fixture
def admin(connect: Callable[..., Any]) -> Any:
    """A connection, and a table with two accounts."""
    admin = connect()
    admin.run("DROP TABLE IF EXISTS account")
    admin.run("CREATE TABLE account (id int PRIMARY KEY, balance int NOT NULL)")
    admin.run("INSERT INTO account VALUES (1, 100), (2, 100)")
    return admin


def spend(connection: Any, account: int) -> None:
    connection.run(f"UPDATE account SET balance = balance - 1 WHERE id = {account}")


def balances(connection: Any) -> list[int]:
    return [balance for (balance,) in connection.run("SELECT balance FROM account ORDER BY id")]


def backend(connection: Any) -> int:
    """Return the process id of the server process of a connection."""
    [(number,)] = connection.run("SELECT pg_backend_pid()")
    return int(number)


def waits_for_a_lock(admin: Any, number: int) -> bool:
    [(waiting,)] = admin.run(f"SELECT cardinality(pg_blocking_pids({number})) > 0")
    return bool(waiting)


def terminate(admin: Any, number: int) -> None:
    """End a server process, and wait until it is gone."""
    admin.run(f"SELECT pg_terminate_backend({number})")
    alive = f"SELECT 1 FROM pg_stat_activity WHERE pid = {number}"
    until(lambda: not admin.run(alive), "the end of the backend")


def alive(number: int) -> bool:
    """Return whether a server process still runs, without a connection."""
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    return True


def deadlock(mine: Any, theirs: Any, admin: Any) -> list[Exception]:
    """Run two transactions into a deadlock; return the errors of the one that is rolled back."""
    for connection in (mine, theirs):
        connection.run("BEGIN")
    number = backend(theirs)
    spend(mine, 1)
    spend(theirs, 2)
    errors: list[Exception] = []
    with running(lambda: spend(theirs, 1)) as others:
        until(lambda: waits_for_a_lock(admin, number), "the wait for a lock")
        try:
            spend(mine, 2)
        except Exception as error:
            errors.append(error)
        mine.run("ROLLBACK")
    theirs.run("ROLLBACK")
    return errors + others


def test_a_refused_connection_is_unprocessed(driver: Any, web: Web) -> None:
    error = error_of(driver, web.closed_port)
    assert isinstance(error, driver.refused)
    assert judged(error) == unprocessed("connection")


def test_a_wrong_password_is_permanent(connect: Callable[..., Any]) -> None:
    error = error_of(connect, password="wrong")
    assert "password authentication failed" in str(error)
    assert judged(error) == permanent("unauthorized")


def test_a_missing_database_is_permanent(connect: Callable[..., Any]) -> None:
    error = error_of(connect, database="nowhere")
    assert "does not exist" in str(error)
    assert judged(error) == permanent()


def test_too_many_connections_are_turned_away_unprocessed(connect: Callable[..., Any], admin: Any) -> None:
    admin.run("DROP ROLE IF EXISTS lonely")
    admin.run(f"CREATE ROLE lonely LOGIN CONNECTION LIMIT 1 PASSWORD '{PASSWORD}'")
    connect(user="lonely")
    error = error_of(connect, user="lonely")
    assert "too many connections" in str(error)
    assert judged(error) == unprocessed("unavailable")


def test_a_deadlock_is_a_conflict_that_was_rolled_back(connect: Callable[..., Any], admin: Any) -> None:
    [error] = deadlock(connect(), connect(), admin)
    assert type(error).__name__.startswith("DeadlockDetected")
    assert judged(error) == unprocessed("conflict")


def test_a_failed_serialization_is_a_conflict_that_was_rolled_back(
    connect: Callable[..., Any], admin: Any
) -> None:
    mine = connect()
    mine.run("BEGIN ISOLATION LEVEL SERIALIZABLE")
    balances(mine)
    spend(admin, 1)
    error = error_of(spend, mine, 1)
    assert type(error).__name__.startswith("Serialization")
    assert judged(error) == unprocessed("conflict")


def test_a_lock_that_someone_else_holds_is_a_conflict_that_had_no_effect(
    connect: Callable[..., Any], admin: Any
) -> None:
    other = connect()
    other.run("BEGIN")
    spend(other, 1)
    error = error_of(admin.run, "SELECT * FROM account FOR UPDATE NOWAIT")
    assert type(error).__name__.startswith("LockNotAvailable")
    assert judged(error) == unprocessed("conflict")


def test_a_statement_that_took_too_long_is_not_repeated(admin: Any) -> None:
    admin.run("SET statement_timeout = '20ms'")
    error = error_of(admin.run, "SELECT pg_sleep(5)")
    assert type(error).__name__.startswith("QueryCancel")
    assert not judged(error).retryable


@pytest.mark.parametrize(
    "query",
    [
        "INSERT INTO account VALUES (1, 100)",
        "INSERT INTO account VALUES (3, NULL)",
        "SELECT * FROM nowhere",
        "SELEKT",
        "SELECT 1/0",
        "SELECT 'x'::int",
    ],
)
def test_a_statement_that_is_wrong_is_permanent(admin: Any, query: str) -> None:
    assert judged(error_of(admin.run, query)) == permanent()


def test_a_statement_after_a_failed_one_is_permanent_in_the_same_transaction(admin: Any) -> None:
    admin.run("BEGIN")
    error_of(admin.run, "SELECT 1/0")
    assert not judged(error_of(admin.run, "SELECT 1")).retryable


def test_a_backend_terminated_during_a_statement_leaves_the_effect_unknown(
    connect: Callable[..., Any], admin: Any
) -> None:
    victim = connect()
    number = backend(victim)
    with running(lambda: victim.run("SELECT pg_sleep(20)")) as errors:
        asleep = f"SELECT 1 FROM pg_stat_activity WHERE pid = {number} AND wait_event = 'PgSleep'"
        until(lambda: admin.run(asleep), "the statement")
        terminate(admin, number)
    [error] = errors
    found = judged(error)
    assert found == transient(found.cause)
    assert found.cause in {"disconnected", "unavailable"}


def test_a_connection_that_was_terminated_while_idle_is_worth_another(
    connect: Callable[..., Any], admin: Any
) -> None:
    victim = connect()
    terminate(admin, backend(victim))
    assert judged(error_of(victim.run, "SELECT 1")).retryable


def test_a_transaction_left_idle_for_too_long_was_rolled_back(
    connect: Callable[..., Any], admin: Any
) -> None:
    idle = connect()
    number = backend(idle)
    idle.run("BEGIN")
    spend(idle, 1)
    idle.run("SET LOCAL idle_in_transaction_session_timeout = '20ms'")
    until(
        lambda: not admin.run(f"SELECT 1 FROM pg_stat_activity WHERE pid = {number}"),
        "the end of the session",
    )
    error = error_of(idle.run, "COMMIT")
    assert judged(error).retryable
    assert balances(admin) == [100, 100]


# From end to end.


def test_a_transaction_recovers_from_a_deadlock(connect: Callable[..., Any], admin: Any) -> None:
    mine, theirs, ready = connect(), connect(), threading.Event()
    number, attempts = backend(theirs), 0
    theirs.run("SET deadlock_timeout = '60s'")  # so that mine finds the deadlock, and is the one to fail
    theirs.run("BEGIN")
    spend(theirs, 2)

    @retry(idempotent=False)
    def transfer() -> None:
        nonlocal attempts
        attempts += 1
        mine.run("BEGIN")
        try:
            spend(mine, 1)
            if attempts == 1:
                ready.set()
                until(lambda: waits_for_a_lock(admin, number), "the wait for a lock")
            spend(mine, 2)
        except BaseException:
            mine.run("ROLLBACK")
            raise
        mine.run("COMMIT")

    def interfere() -> None:
        assert ready.wait(60)
        spend(theirs, 1)
        theirs.run("COMMIT")

    with running(interfere) as errors, no_waits() as waits:
        transfer()
    assert (attempts, len(waits), errors) == (2, 1, [])
    assert balances(admin) == [98, 98]


def test_a_transaction_recovers_from_a_failed_serialization(connect: Callable[..., Any], admin: Any) -> None:
    mine, interference = connect(), iter([1, 1])

    @retry(idempotent=False)
    def transfer() -> None:
        mine.run("BEGIN ISOLATION LEVEL SERIALIZABLE")
        try:
            [balance, _] = balances(mine)
            if next(interference, None):
                spend(admin, 1)
            mine.run(f"UPDATE account SET balance = {balance - 10} WHERE id = 1")
        except BaseException:
            mine.run("ROLLBACK")
            raise
        mine.run("COMMIT")

    with no_waits() as waits:
        transfer()
    assert len(waits) == 2
    assert balances(admin) == [88, 100]


def test_a_call_that_connects_anew_recovers_from_a_terminated_backend(
    connect: Callable[..., Any], admin: Any
) -> None:
    victims: list[Any] = []

    @retry
    def count() -> int:
        connection = connect()
        if not victims:
            victims.append(connection)
            terminate(admin, backend(connection))
        return len(balances(connection))

    with no_waits() as waits:
        assert count() == 2
    assert len(waits) == 1


def test_a_wrong_password_is_tried_once(connect: Callable[..., Any]) -> None:
    with no_waits() as waits, pytest.raises(Exception, match="password authentication failed"):
        retry(connect)(password="wrong")
    assert waits == []


def test_calls_recover_when_the_whole_server_has_crashed(connect: Callable[..., Any], admin: Any) -> None:
    victim, bystander = connect(), connect()
    number = backend(bystander)
    os.kill(backend(victim), signal.SIGKILL)  # upon which PostgreSQL ends all others too, and starts anew
    assert judged(error_of(victim.run, "SELECT 1")) == transient("disconnected")
    until(lambda: not alive(number), "the end of the other backends")
    found = judged(error_of(bystander.run, "SELECT 1"))
    assert (found.retryable, found.unprocessed) == (True, False)

    # With real waits: it takes a moment, in which it turns connections away.
    @retry(attempts=None, deadline=STARTS_WITHIN, base=0.02, cap=0.1)
    def count() -> int:
        return len(balances(connect()))

    assert count() == 2
