"""PyMySQL against a real MariaDB."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from interop.processes import PASSWORD, Server, until
from interop.server import Web
from interop.support import error_of, judged, permanent, running, transient, unprocessed
from redouble import retry
from redouble.testing import no_waits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pymysql = pytest.importorskip("pymysql", reason="PyMySQL is not installed: the extra 'interop' is needed")


@pytest.fixture
def connect(mariadb: Server) -> Iterator[Callable[..., Any]]:
    """Return a function that opens connections, which are closed after the test."""
    opened: list[Any] = []

    def connection(**options: Any) -> Any:
        account = {"user": "redouble", "password": PASSWORD, "database": "redouble", "port": mariadb.port}
        made = pymysql.connect(host="127.0.0.1", autocommit=True, **(account | options))
        opened.append(made)
        return made

    yield connection
    for made in opened:
        if made.open:
            made.close()


@pytest.fixture
def admin(connect: Callable[..., Any]) -> Any:
    """A connection, and a table with two accounts."""
    admin = connect()
    run(admin, "DROP TABLE IF EXISTS account")
    run(admin, "CREATE TABLE account (id int PRIMARY KEY, balance int NOT NULL) ENGINE=InnoDB")
    run(admin, "INSERT INTO account VALUES (1, 100), (2, 100)")
    return admin


def run(connection: Any, query: str) -> list[tuple[Any, ...]]:
    """Run one statement and return the rows."""
    with connection.cursor() as cursor:
        cursor.execute(query)
        return list(cursor.fetchall())


def spend(connection: Any, account: int) -> None:
    run(connection, f"UPDATE account SET balance = balance - 1 WHERE id = {account}")


def balances(connection: Any) -> list[int]:
    return [balance for (balance,) in run(connection, "SELECT balance FROM account ORDER BY id")]


def busy(admin: Any, connection: Any) -> bool:
    """Return whether a connection is running a statement."""
    found = run(
        admin, f"SELECT command FROM information_schema.processlist WHERE id = {connection.thread_id()}"
    )
    return found == [("Query",)]


def kill(admin: Any, connection: Any) -> None:
    """End a connection on the server, and wait until it is gone."""
    number = connection.thread_id()
    run(admin, f"KILL {number}")
    gone = f"SELECT 1 FROM information_schema.processlist WHERE id = {number}"
    until(lambda: not run(admin, gone), "the end of the connection")


def test_a_refused_connection_is_unprocessed(connect: Callable[..., Any], web: Web) -> None:
    error = error_of(connect, port=web.closed_port)
    assert error.args[0] == 2003
    assert judged(error) == unprocessed("connection")


def test_a_wrong_password_is_permanent(connect: Callable[..., Any]) -> None:
    error = error_of(connect, password="wrong")
    assert error.args[0] == 1045
    assert judged(error) == permanent("unauthorized")


def test_a_missing_database_is_permanent(connect: Callable[..., Any]) -> None:
    assert not judged(error_of(connect, database="nowhere")).retryable


def test_too_many_connections_are_turned_away_unprocessed(connect: Callable[..., Any]) -> None:
    def crowd() -> None:
        for _ in range(12):
            connect()

    error = error_of(crowd)
    assert error.args[0] == 1040
    assert judged(error) == unprocessed("unavailable")


def test_a_deadlock_is_a_conflict_that_was_rolled_back(connect: Callable[..., Any], admin: Any) -> None:
    mine, theirs = connect(), connect()
    for connection, account in ((mine, 1), (theirs, 2)):
        run(connection, "BEGIN")
        spend(connection, account)
    errors: list[Exception] = []
    with running(lambda: spend(theirs, 1)) as others:
        until(lambda: busy(admin, theirs), "the wait for a lock")
        try:
            spend(mine, 2)
        except Exception as error:
            errors.append(error)
        mine.rollback()
    theirs.rollback()
    [error] = errors + others
    assert error.args[0] == 1213
    assert judged(error) == unprocessed("conflict")


@pytest.mark.parametrize("seconds", [0, 1])
def test_a_lock_that_someone_else_holds_for_too_long_is_a_conflict_that_had_no_effect(
    connect: Callable[..., Any], admin: Any, seconds: int
) -> None:
    other = connect()
    run(other, "BEGIN")
    spend(other, 1)
    run(admin, f"SET innodb_lock_wait_timeout = {seconds}")
    error = error_of(spend, admin, 1)
    assert error.args[0] == 1205
    assert judged(error) == unprocessed("conflict")


@pytest.mark.parametrize(
    "query",
    [
        "INSERT INTO account VALUES (1, 100)",
        "SELECT * FROM nowhere",
        "SELEKT",
        "INSERT INTO account VALUES (3, NULL)",
        "USE mysql",
    ],
)
def test_a_statement_that_is_wrong_is_permanent(admin: Any, query: str) -> None:
    found = judged(error_of(run, admin, query))
    assert (found.retryable, found.unprocessed) == (False, False)


def test_a_connection_killed_during_a_statement_leaves_the_effect_unknown(
    connect: Callable[..., Any], admin: Any
) -> None:
    victim = connect()
    with running(lambda: run(victim, "SELECT SLEEP(20)")) as errors:
        until(lambda: busy(admin, victim), "the statement")
        kill(admin, victim)
    [error] = errors
    assert error.args[0] in {1927, 2006, 2013}
    found = judged(error)
    assert found == transient(found.cause)
    assert found.cause in {"disconnected", "unavailable"}


def test_a_connection_killed_while_idle_is_worth_another(connect: Callable[..., Any], admin: Any) -> None:
    victim = connect()
    kill(admin, victim)
    assert judged(error_of(run, victim, "SELECT 1")).retryable


def test_an_answer_that_does_not_come_leaves_the_effect_unknown(
    connect: Callable[..., Any], admin: Any
) -> None:
    impatient = connect(read_timeout=1)
    error = error_of(run, impatient, "SELECT SLEEP(20)")
    run(admin, f"KILL {impatient.thread_id()}")
    assert error.args[0] == 2013
    found = judged(error)
    assert found == transient(found.cause)


# From end to end.


def test_a_transaction_recovers_from_a_deadlock(connect: Callable[..., Any], admin: Any) -> None:
    mine, theirs, ready = connect(), connect(), threading.Event()
    attempts = 0
    # The transaction that has changed more rows is not the one that is rolled back.
    run(admin, "INSERT INTO account SELECT seq, 0 FROM seq_3_to_50")
    run(theirs, "BEGIN")
    run(theirs, "UPDATE account SET balance = 1 WHERE id > 2")
    spend(theirs, 2)

    @retry(idempotent=False)
    def transfer() -> None:
        nonlocal attempts
        attempts += 1
        run(mine, "BEGIN")
        try:
            spend(mine, 1)
            ready.set()
            spend(mine, 2)
        except BaseException:
            mine.rollback()
            raise
        mine.commit()

    def interfere() -> None:
        assert ready.wait(60)
        until(lambda: busy(admin, mine), "the wait for a lock")
        spend(theirs, 1)
        theirs.commit()

    with running(interfere) as errors, no_waits() as waits:
        transfer()
    assert (attempts, len(waits), errors) == (2, 1, [])
    assert balances(admin)[:2] == [98, 98]


def test_a_call_that_connects_anew_recovers_from_a_killed_connection(
    connect: Callable[..., Any], admin: Any
) -> None:
    victims: list[Any] = []

    @retry
    def count() -> int:
        connection = connect()
        if not victims:
            victims.append(connection)
            kill(admin, connection)
        return len(balances(connection))

    with no_waits() as waits:
        assert count() == 2
    assert len(waits) == 1


def test_a_wrong_password_is_tried_once(connect: Callable[..., Any]) -> None:
    with no_waits() as waits, pytest.raises(pymysql.OperationalError, match="1045"):
        retry(connect)(password="wrong")
    assert waits == []
