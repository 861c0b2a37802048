"""redis-py against a real Redis."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from interop.processes import Server, until
from interop.support import error_of, judged, permanent, transient, unprocessed
from redouble import retry
from redouble.testing import no_waits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

redis = pytest.importorskip("redis", reason="redis-py is not installed: the extra 'interop' is needed")


@pytest.fixture
def connect(redis_server: Server) -> Iterator[Callable[..., Any]]:
    """Return a function that makes clients without their own retries."""
    clients: list[Any] = []

    def client(**options: Any) -> Any:
        options = {"port": redis_server.port, "socket_timeout": 5, **options}
        once = redis.retry.Retry(redis.backoff.NoBackoff(), 0)
        clients.append(redis.Redis(host="127.0.0.1", retry=once, **options))
        return clients[-1]

    yield client
    for made in clients:
        made.close()


@pytest.fixture
def client(connect: Callable[..., Any]) -> Any:
    """A client of an empty Redis."""
    client = connect()
    client.flushall()
    return client


def test_a_refused_connection_is_unprocessed(connect: Callable[..., Any], web: Any) -> None:
    error = error_of(connect(port=web.closed_port).ping)
    assert isinstance(error, redis.ConnectionError)
    assert judged(error) == unprocessed("connection")


def test_a_wrong_password_is_permanent(connect: Callable[..., Any]) -> None:
    error = error_of(connect(username="nobody", password="wrong").ping)
    assert isinstance(error, redis.AuthenticationError)
    assert judged(error) == permanent("unauthorized")


def test_a_password_that_was_left_out_is_permanent(connect: Callable[..., Any], client: Any) -> None:
    client.config_set("requirepass", "secret")
    try:
        error = error_of(connect().ping)
    finally:
        client.config_set("requirepass", "")
    assert isinstance(error, redis.AuthenticationError)
    assert judged(error) == permanent("unauthorized")


def test_a_command_that_is_not_allowed_is_permanent(connect: Callable[..., Any], client: Any) -> None:
    client.acl_setuser("guest", enabled=True, nopass=True, commands=["+get"], keys=["*"])
    error = error_of(connect(username="guest", password="any").set, "key", 1)
    assert isinstance(error, redis.exceptions.NoPermissionError)
    assert not judged(error).retryable


def test_a_wrong_type_is_permanent(client: Any) -> None:
    client.set("key", "text")
    error = error_of(client.lpush, "key", 1)
    assert str(error).startswith("WRONGTYPE")
    assert judged(error) == permanent()


def test_an_answer_that_does_not_come_is_a_timeout_with_unknown_effect(connect: Callable[..., Any]) -> None:
    error = error_of(connect(socket_timeout=0.1).blpop, "nothing-comes-here", 2)
    assert isinstance(error, redis.TimeoutError)
    assert judged(error) == transient("timeout")


def test_a_connection_killed_during_a_command_was_lost_with_unknown_effect(
    connect: Callable[..., Any], client: Any
) -> None:
    error = killed_during_a_command(connect(), client)
    assert isinstance(error, redis.ConnectionError)
    assert judged(error) == transient("disconnected")


def test_a_replica_does_not_write_so_the_write_is_unprocessed(client: Any, web: Any) -> None:
    client.replicaof("127.0.0.1", web.closed_port)
    try:
        error = error_of(client.set, "key", 1)
    finally:
        client.replicaof("NO", "ONE")
    assert isinstance(error, redis.ReadOnlyError)
    assert judged(error) == unprocessed("unavailable")


def test_a_replica_without_its_master_turns_commands_away(client: Any, web: Any) -> None:
    client.config_set("replica-serve-stale-data", "no")
    client.replicaof("127.0.0.1", web.closed_port)
    try:
        error = error_of(client.get, "key")
    finally:
        client.replicaof("NO", "ONE")
        client.config_set("replica-serve-stale-data", "yes")
    assert "MASTERDOWN" in str(error) or type(error).__name__ == "MasterDownError"
    assert judged(error) == unprocessed("unavailable")


def test_a_server_busy_with_a_script_turns_commands_away(connect: Callable[..., Any], client: Any) -> None:
    with Script(connect()):
        error = until(lambda: busy(client), "BUSY")
        assert judged(error) == unprocessed("unavailable")


def test_a_full_server_turns_clients_away(connect: Callable[..., Any], client: Any) -> None:
    client.config_set("maxclients", 1)
    try:
        error = error_of(connect().ping)
    finally:
        client.config_set("maxclients", 1000)
    assert "max number of clients" in str(error)
    assert judged(error) == unprocessed("unavailable")


def test_an_exhausted_pool_means_that_nothing_was_sent(connect: Callable[..., Any]) -> None:
    client = connect(max_connections=1)
    held = client.connection_pool.get_connection()
    try:
        error = error_of(client.ping)
    finally:
        client.connection_pool.release(held)
    assert isinstance(error, redis.exceptions.MaxConnectionsError)
    assert judged(error) == unprocessed("unavailable")


def test_a_lost_optimistic_lock_is_a_conflict_that_had_no_effect(
    connect: Callable[..., Any], client: Any
) -> None:
    with connect().pipeline() as pipe:
        pipe.watch("key")
        client.set("key", "changed")
        pipe.multi()
        pipe.set("key", "mine")
        error = error_of(pipe.execute)
    assert isinstance(error, redis.WatchError)
    assert judged(error) == unprocessed("conflict")


def test_an_optimistic_update_is_run_again_until_nobody_interferes(client: Any) -> None:
    client.set("count", 1)
    interference = iter([10, 20])

    @retry
    def add_one() -> None:
        with client.pipeline() as pipe:
            pipe.watch("count")
            count = int(pipe.get("count"))
            other = next(interference, None)
            if other is not None:
                client.set("count", other)
            pipe.multi()
            pipe.set("count", count + 1)
            pipe.execute()

    with no_waits() as waits:
        add_one()
    assert (client.get("count"), len(waits)) == (b"21", 2)


def test_a_killed_connection_is_replaced_and_the_call_recovers(
    connect: Callable[..., Any], client: Any
) -> None:
    victim = connect(single_connection_client=True)
    client.set("key", "value")
    client.client_kill_filter(_id=victim.client_id())
    get = retry(victim.get)
    with no_waits() as waits:
        assert get("key") == b"value"
    assert len(waits) == 1


def test_a_write_with_unknown_effect_is_not_repeated_if_declared_not_idempotent(
    connect: Callable[..., Any], client: Any
) -> None:
    calls: list[int] = []
    victim = connect()

    @retry(idempotent=False)
    def increment() -> None:
        calls.append(1)
        raise killed_during_a_command(victim, client)

    with no_waits() as waits, pytest.raises(redis.ConnectionError) as caught:
        increment()
    assert (len(calls), waits) == (1, [])
    assert "idempotent=False" in caught.value.__notes__[0]


def killed_during_a_command(victim: Any, killer: Any) -> Exception:
    """Return the error of a client whose connection is killed while it waits for a response."""
    number = victim.client_id()  # the pool has one connection, which the next command uses too

    def kill() -> None:
        until(
            lambda: any(c["id"] == str(number) and "b" in c["flags"] for c in killer.client_list()), "BLPOP"
        )
        killer.client_kill_filter(_id=number)

    thread = threading.Thread(target=kill)
    thread.start()
    error = error_of(victim.blpop, "nothing-comes-here", 5)
    thread.join()
    return error


def busy(client: Any) -> Exception | None:
    """Return the error while the server is busy, or ``None`` if the script has not begun."""
    try:
        client.get("key")
    except redis.ResponseError as error:
        assert str(error).startswith("BUSY")
        return error
    return None


class Script:
    """An endless script, which is killed when the block ends."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        with pytest.raises(redis.ResponseError):
            self._client.eval("while true do end", 0)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        # On a connection of its own: while the server is busy no other command is taken.
        with redis.Redis(host="127.0.0.1", port=self._client.get_connection_kwargs()["port"]) as killer:
            until(lambda: killed(killer), "SCRIPT KILL")
        self._thread.join()


def killed(client: Any) -> bool:
    """Return whether the running script could be killed."""
    try:
        client.script_kill()
    except redis.ResponseError:
        return False
    return True
