"""The first lot: clients of databases, queues, files and other systems, many with their own protocol."""

from __future__ import annotations

import asyncio
import functools
import socket
from typing import TYPE_CHECKING, Any

from interop.server import hang_up
from interop.unseen.failures import (
    HTML,
    LONG,
    NO,
    SAFE,
    SHORT,
    WAIT,
    WHY,
    YES,
    Failure,
    answered,
    chained,
    dropped,
    library,
    listening,
    refused,
    silence,
    silent,
    untrusted,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from interop.server import Web


@library("webdavclient3", "webdav3")
def webdavclient3(web: Web) -> Iterator[Failure]:
    from webdav3.client import Client

    def client(url: str, timeout: float = LONG) -> Any:
        return Client(
            {
                "webdav_hostname": url,
                "webdav_login": "me",
                "webdav_password": "secret",
                "webdav_timeout": timeout,
                "disable_check": True,
            }
        )

    def call(url: str, timeout: float) -> object:
        return client(url, timeout).list("/documents")

    yield refused(web, call)
    yield silent(web, call)
    yield dropped(web, call)
    yield from untrusted(web, call)
    yield answered(web, call, 500, YES, "Internal Server Error")
    yield answered(web, call, 503, SAFE, "Service Unavailable", WAIT)
    yield answered(web, call, 429, SAFE, "Too Many Requests", WAIT)
    yield answered(web, call, 401, NO, "Unauthorized")
    yield answered(web, call, 403, NO, "Forbidden")
    yield answered(web, call, 404, NO, "Not Found")
    yield answered(web, call, 507, NO, "Insufficient Storage")
    missing = "/nonexistent/report.pdf"
    yield Failure(
        "upload of a missing file",
        NO,
        "a local mistake",
        lambda: client(web.refused_url).upload_file("/report.pdf", missing),
    )


@library("fabric", "fabric")
def fabric(web: Web) -> Iterator[Failure]:
    import paramiko
    from fabric import Connection, ThreadingGroup
    from fabric.exceptions import NothingToDo
    from invoke.exceptions import AuthFailure, CommandTimedOut, UnexpectedExit
    from invoke.runners import Result

    key = paramiko.ECDSAKey.generate()
    options = {"password": "secret", "look_for_keys": False, "allow_agent": False, "banner_timeout": SHORT}

    def run(port: int) -> object:
        with Connection("127.0.0.1", user="me", port=port, connect_timeout=2, connect_kwargs=options) as host:
            return host.run("true", hide=True)

    def run_on_all(port: int) -> object:
        hosts = ThreadingGroup(
            "127.0.0.1", "localhost", user="me", port=port, connect_timeout=2, connect_kwargs=options
        )
        with hosts:
            return hosts.run("true", hide=True)

    def against(answer: Callable[[socket.socket], object], run: Callable[[int], object]) -> object:
        with listening(answer) as port:
            return run(port)

    def ssh(connection: socket.socket) -> None:
        """A server that accepts no password."""
        transport = paramiko.Transport(connection)
        transport.add_server_key(key)
        transport.start_server(server=paramiko.ServerInterface())
        transport.join(60)

    def failed(**fields: Any) -> Any:
        return Result(command="deploy", **fields)

    port = web.closed_port
    yield Failure("refused port", SAFE, "nothing was sent", lambda: run(port))
    yield Failure("no banner", SAFE, "a timeout before the login", lambda: against(silence, run))
    yield Failure("dropped before the banner", SAFE, "lost before the login", lambda: against(hang_up, run))
    yield Failure("wrong password", NO, WHY[401], lambda: against(ssh, run))
    yield Failure("a group of hosts, all refused", SAFE, "nothing was sent", lambda: run_on_all(port))
    yield Failure("a group of hosts, wrong password", NO, WHY[401], lambda: against(ssh, run_on_all))
    yield Failure(
        "the command exits with 1",
        NO,
        "the command ran and failed",
        lambda: UnexpectedExit(failed(exited=1, stderr="no such branch")),
    )
    yield Failure(
        "the command takes too long", YES, "a timeout", lambda: CommandTimedOut(failed(exited=-1), timeout=5)
    )
    yield Failure(
        "wrong sudo password",
        NO,
        WHY[401],
        lambda: AuthFailure(result=failed(exited=1), prompt="[sudo] password: "),
    )
    yield Failure("nothing to do", NO, "a local mistake", lambda: NothingToDo("no command was given"))
    yield Failure(
        "user given twice", NO, "a local mistake", lambda: Connection("me@127.0.0.1", user="somebody")
    )


@library("influxdb-client", "influxdb_client")
def influxdb_client(web: Web) -> Iterator[Failure]:
    from influxdb_client import InfluxDBClient, WritePrecision
    from influxdb_client.client.write_api import SYNCHRONOUS

    def call(url: str, timeout: float) -> object:
        with InfluxDBClient(url=url, token="none", org="me", timeout=int(timeout * 1000)) as client:
            return client.query_api().query('from(bucket: "b") |> range(start: -1h)')

    def write(url: str, timeout: float, record: object = "weather temperature=20") -> object:
        with InfluxDBClient(url=url, token="none", org="me", timeout=int(timeout * 1000)) as client:
            with client.write_api(write_options=SYNCHRONOUS) as api:
                return api.write(bucket="b", record=record, write_precision=WritePrecision.S)

    def says(code: str, message: str) -> object:
        return {"code": code, "message": message}

    yield refused(web, call)
    yield silent(web, call)
    yield dropped(web, write)
    yield from untrusted(web, call)
    yield answered(web, write, 429, SAFE, says("too many requests", "org has exceeded write limit"), WAIT)
    yield answered(web, write, 503, SAFE, says("unavailable", "server is temporarily unavailable"), WAIT)
    yield answered(web, call, 500, YES, says("internal error", "panic: runtime error"))
    yield answered(web, call, 504, YES, "upstream timed out", HTML)
    yield answered(web, call, 401, NO, says("unauthorized", "unauthorized access"))
    yield answered(web, write, 404, NO, says("not found", 'bucket "b" not found'))
    yield answered(web, call, 400, NO, says("invalid", "compilation failed: loc 1:1: invalid statement"))
    yield answered(web, write, 422, NO, says("unprocessable entity", "field type conflict"))
    yield answered(web, write, 413, NO, says("request too large", "cannot read data: body too large"))
    yield Failure(
        "no configuration file",
        NO,
        "missing configuration",
        lambda: InfluxDBClient.from_config_file("/nonexistent/influx.ini"),
    )


@library("vertica-python", "vertica_python")
def vertica_python(web: Web) -> Iterator[Failure]:
    import vertica_python
    from vertica_python import errors
    from vertica_python.vertica.messages import ErrorResponse

    def connect(port: object, timeout: float = LONG, **options: object) -> object:
        return vertica_python.connect(
            host="127.0.0.1",
            port=port,
            password="secret",
            database="d",
            connection_timeout=timeout,
            **{"user": "me", "tlsmode": "disable", **options},
        )

    def fields(state: str, message: str) -> bytes:
        parts = {"S": "FATAL", "C": state, "M": message}
        return b"".join(name.encode() + text.encode() + b"\0" for name, text in parts.items()) + b"\0"

    def says(state: str, message: str) -> object:
        """A server that answers the login with an error."""
        body = fields(state, message)

        def answer(connection: socket.socket) -> None:
            connection.recv(65536)
            connection.sendall(b"E" + (len(body) + 4).to_bytes(4, "big") + body)

        with listening(answer) as port:
            return connect(port)

    def against(answer: Callable[[socket.socket], object], timeout: float, **options: object) -> object:
        with listening(answer) as port:
            return connect(port, timeout, **options)

    def drop(connection: socket.socket) -> None:
        connection.recv(65536)

    def no_tls(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(b"N")
        silence(connection)

    def query(state: str, message: str) -> Exception:
        return errors.QueryError.from_error_response(ErrorResponse(fields(state, message)), "SELECT 1")

    yield Failure("refused port", SAFE, "nothing was sent", lambda: connect(web.closed_port))
    yield Failure(
        "no response to the login", SAFE, "a timeout before the login", lambda: against(silence, SHORT)
    )
    yield Failure("dropped at the login", SAFE, "lost before the login", lambda: against(drop, LONG))
    yield Failure(
        "wrong password", NO, WHY[401], lambda: says("28000", 'Authentication failed for username "me"')
    )
    yield Failure(
        "too many sessions",
        SAFE,
        "SQLSTATE 53300: rejected for now",
        lambda: says("53300", "New session rejected due to limit, already 50 sessions active"),
    )
    yield Failure(
        "TLS is required but not offered",
        NO,
        "configuration",
        lambda: against(no_tls, LONG, tlsmode="require"),
    )
    yield Failure("a port that is none", NO, "a local mistake", lambda: connect("vertica"))
    yield Failure(
        "lock timeout",
        SAFE,
        "SQLSTATE 55V03: the statement was rolled back",
        lambda: query("55V03", "Unavailable: Locking failure: Timed out X locking Table:public.t"),
    )
    yield Failure(
        "resources used up",
        SAFE,
        "SQLSTATE 53000: rejected for now",
        lambda: query("53000", "Insufficient resources to execute plan on pool general"),
    )
    yield Failure(
        "a node is lost", YES, "SQLSTATE 08006", lambda: query("08006", "Connection to node v1 was lost")
    )
    yield Failure(
        "syntax error", NO, "SQLSTATE 42601", lambda: query("42601", 'Syntax error at or near "SELEC"')
    )
    yield Failure(
        "no such table", NO, "SQLSTATE 42V01", lambda: query("42V01", 'Relation "t" does not exist')
    )
    yield Failure(
        "no permission", NO, "SQLSTATE 42501", lambda: query("42501", "Permission denied for relation t")
    )
    yield Failure(
        "duplicate key", NO, "SQLSTATE 23505", lambda: query("23505", "Duplicate key values: 'id=1'")
    )


@library("kazoo", "kazoo")
def kazoo(web: Web) -> Iterator[Failure]:
    from kazoo.client import KazooClient
    from kazoo.exceptions import EXCEPTIONS, LockTimeout

    def start(port: int) -> object:
        return KazooClient(hosts=f"127.0.0.1:{port}", timeout=SHORT).start(timeout=SHORT)

    def against_silence() -> object:
        with listening(silence) as port:
            return start(port)

    def code(number: int) -> Callable[[], Exception]:
        """Return the exception that the client makes of an error code in a reply."""
        return lambda: EXCEPTIONS[number]()

    yield Failure("refused port", SAFE, "nothing was sent", lambda: start(web.closed_port))
    yield Failure("no session in time", SAFE, "a timeout before the session", against_silence)
    yield Failure("connection loss (-4)", YES, "the server is gone, the outcome unknown", code(-4))
    yield Failure("operation timeout (-7)", YES, "a timeout", code(-7))
    yield Failure("session expired (-112)", YES, "the client opens a new session", code(-112))
    yield Failure("request timeout (-122)", YES, "a timeout", code(-122))
    yield Failure("throttled (-127)", SAFE, "not executed at all, says the server", code(-127))
    yield Failure(
        "a lock is held by others",
        SAFE,
        "the lock was not taken",
        lambda: LockTimeout("Failed to acquire lock on /lock after 5 seconds"),
    )
    yield Failure("no node (-101)", NO, WHY[404], code(-101))
    yield Failure("no permission (-102)", NO, WHY[403], code(-102))
    yield Failure("another version (-103)", NO, "a condition of the call is not met", code(-103))
    yield Failure("node exists (-110)", NO, WHY[409], code(-110))
    yield Failure("invalid ACL (-114)", NO, WHY[400], code(-114))
    yield Failure("authentication failed (-115)", NO, WHY[401], code(-115))
    yield Failure("quota of the path exceeded (-125)", NO, "no wait cures it", code(-125))
    yield Failure("an unknown option", NO, "a local mistake", lambda: KazooClient(host="127.0.0.1"))


@library("aiochclient", "aiochclient")
def aiochclient(web: Web) -> Iterator[Failure]:
    from aiochclient import ChClient
    from aiohttp import ClientSession, ClientTimeout

    async def execute(url: str, timeout: float, *args: object) -> object:
        async with ClientSession(timeout=ClientTimeout(total=timeout)) as session:
            return await ChClient(session, url=f"{url}/").execute("SELECT 1", *args)

    def call(url: str, timeout: float, *args: object) -> object:
        return asyncio.run(execute(url, timeout, *args))

    says = functools.partial(answered, web, call)
    yield refused(web, call)
    yield silent(web, call)
    yield dropped(web, call)
    many = "Code: 202. DB::Exception: Too many simultaneous queries. (TOO_MANY_SIMULTANEOUS_QUERIES)"
    yield says(500, SAFE, many, HTML, why="rejected before it ran")
    yield says(502, YES, "", HTML)
    yield says(503, YES, "", HTML)
    yield says(504, YES, "", HTML)
    table = "Code: 60. DB::Exception: Table default.t does not exist. (UNKNOWN_TABLE)"
    yield says(404, NO, table, HTML)
    yield says(400, NO, "Code: 62. DB::Exception: Syntax error: failed at position 1. (SYNTAX_ERROR)", HTML)
    password = "Code: 516. DB::Exception: default: Authentication failed. (AUTHENTICATION_FAILED)"
    yield says(403, NO, password, HTML, why=WHY[401])
    rights = "Code: 497. DB::Exception: me: Not enough privileges. (ACCESS_DENIED)"
    yield says(500, NO, rights, HTML, why=WHY[403])
    kinds = "Code: 53. DB::Exception: Type mismatch in IN or VALUES section. (TYPE_MISMATCH)"
    yield says(500, NO, kinds, HTML, why=WHY[400])
    yield Failure(
        "arguments without INSERT", NO, "a local mistake", lambda: call(web.refused_url, LONG, (1, 2))
    )


@library("keystoneauth1", "keystoneauth1")
def keystoneauth1(web: Web) -> Iterator[Failure]:
    from keystoneauth1.exceptions import EndpointNotFound, MissingRequiredOptions
    from keystoneauth1.loading import Opt
    from keystoneauth1.session import Session

    def call(url: str, timeout: float) -> object:
        return Session(timeout=timeout).get(url, authenticated=False)

    def says(code: int, message: str) -> object:
        return {"error": {"code": code, "message": message, "title": "Error"}}

    yield refused(web, call)
    yield silent(web, call)
    yield dropped(web, call)
    yield from untrusted(web, call)
    yield answered(web, call, 429, SAFE, says(429, "This request was rate-limited."), WAIT)
    yield answered(web, call, 413, SAFE, {"overLimit": {"code": 413}}, WAIT, why="Retry-After is given")
    yield answered(web, call, 500, YES, says(500, "An unexpected error prevented the server"))
    yield answered(web, call, 503, SAFE, says(503, "The server is currently unavailable"), WAIT)
    yield answered(web, call, 504, YES, "<html>Gateway Timeout</html>", HTML)
    yield answered(web, call, 401, NO, says(401, "The request you have made requires authentication."))
    yield answered(web, call, 403, NO, says(403, "Policy doesn't allow this action"))
    yield answered(web, call, 404, NO, says(404, "Could not find project"))
    yield answered(web, call, 409, NO, says(409, "Conflict occurred attempting to store project"))
    yield Failure(
        "no endpoint in the catalogue",
        NO,
        "configuration",
        lambda: EndpointNotFound("public endpoint for compute service not found"),
    )
    yield Failure(
        "no URL to log in at",
        NO,
        "missing configuration",
        lambda: MissingRequiredOptions([Opt("auth-url")]),
    )


@library("hazelcast-python-client", "hazelcast")
def hazelcast(web: Web) -> Iterator[Failure]:
    import hazelcast
    from hazelcast import errors

    def connect(port: int) -> object:
        return hazelcast.HazelcastClient(
            cluster_members=[f"127.0.0.1:{port}"],
            cluster_connect_timeout=SHORT,
            connection_timeout=SHORT,
            heartbeat_interval=SHORT,
        )

    def from_server(error: Any, name: str, message: str) -> Callable[[], Exception]:
        """Return the exception that the client makes of an error in a reply."""
        text = f"Exception from server: com.hazelcast.{name}: {message}\n \tat com.hazelcast.A.b(A.java:1)"
        return lambda: error(text, None)

    yield Failure("refused port", SAFE, "nothing was sent", lambda: connect(web.closed_port))
    yield Failure(
        "not connected at the moment", SAFE, "nothing was sent", lambda: errors.ClientOfflineError()
    )
    yield Failure(
        "the member is gone",
        YES,
        "a lost connection",
        lambda: errors.TargetDisconnectedError("<Connection id=1> was closed"),
    )
    yield Failure(
        "the operation takes too long",
        YES,
        "a timeout",
        from_server(errors.OperationTimeoutError, "core.OperationTimeoutException", "GetOperation"),
    )
    yield Failure(
        "the invocation takes too long",
        YES,
        "a timeout",
        lambda: chained(
            errors.OperationTimeoutError(
                "Request timed out because an error occurred after invocation timeout."
            ),
            OSError("No connection found to cluster"),
        ),
    )
    yield Failure(
        "a partition is moved",
        YES,
        "the library calls it retryable",
        from_server(errors.PartitionMigratingError, "spi.PartitionMigratingException", "is migrating"),
    )
    yield Failure(
        "the member left",
        YES,
        "the library retries it",
        from_server(errors.MemberLeftError, "core.MemberLeftException", "Member [10.0.0.1]:5701 has left"),
    )
    yield Failure(
        "a transaction ran out of time",
        YES,
        "it was rolled back",
        from_server(errors.TransactionTimedOutError, "transaction.TransactionTimedOutException", "timeout"),
    )
    yield Failure(
        "wrong credentials",
        NO,
        WHY[401],
        lambda: errors.AuthenticationError("Authentication failed. Check cluster name and credentials."),
    )
    yield Failure(
        "no permission",
        NO,
        WHY[403],
        from_server(errors.AccessControlError, "AccessControlException", "Permission denied"),
    )
    yield Failure(
        "a value that cannot be serialized",
        NO,
        "a local mistake",
        lambda: errors.HazelcastSerializationError("There is no suitable serializer for: <class 'object'>"),
    )
    yield Failure(
        "a null key", NO, WHY[400], from_server(errors.NullPointerError, "NullPointerException", "Null key")
    )
    yield Failure(
        "an argument out of range",
        NO,
        WHY[400],
        from_server(errors.IllegalArgumentError, "IllegalArgumentException", "timeout must be positive"),
    )
    yield Failure(
        "the client was shut down", NO, "this client is dead", lambda: errors.HazelcastClientNotActiveError()
    )
    yield Failure(
        "an unknown option", NO, "a local mistake", lambda: hazelcast.HazelcastClient(cluster_nam="dev")
    )
