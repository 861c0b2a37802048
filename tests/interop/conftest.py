"""Servers for the clients. Each is started when a test first uses it; if it is not installed, the test is skipped."""

from __future__ import annotations

import shutil
import signal
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from conftest import LONG, watchdog
from interop.processes import (
    INSTALL,
    PASSWORD,
    Server,
    free_port,
    home,
    listening,
    prepare,
    program,
    serving,
)
from interop.retrying_clients import NAMES, open_client
from interop.server import Web

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests of the long mode. Not by skipping them: there are many."""
    if not LONG:
        left_out = [item for item in items if item.get_closest_marker("long")]
        items[:] = [item for item in items if not item.get_closest_marker("long")]
        config.hook.pytest_deselected(items=left_out)


@pytest.fixture(scope="session")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    """The HTTP server, in a thread of this process."""
    with Web(tmp_path_factory.mktemp("web")) as web:
        yield web


@pytest.fixture(scope="session")
def secure_web(web: Web) -> Web:
    """The HTTP server, if its TLS port can be used."""
    if shutil.which("openssl") is None:
        pytest.skip(f"openssl is not installed: no certificate, so no test of TLS ran ({INSTALL})")
    return web


@pytest.fixture(params=NAMES)
def connect(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """Run the test with each HTTP client. Return a function that opens one with options of a policy."""
    with watchdog(60), ExitStack() as clients:
        yield lambda **options: clients.enter_context(open_client(request.param, **{"base": 0.01, **options}))


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Server]:
    """PostgreSQL; user and database ``redouble``."""
    folders = "usr/lib/postgresql/*/bin", "usr/pgsql-*/bin", "opt/homebrew/opt/postgresql*/bin"
    initdb, postgres, isready = (
        program(name, "PostgreSQL", *folders) for name in ("initdb", "postgres", "pg_isready")
    )
    with home("postgres") as (folder, account):
        (folder / "password").write_text(PASSWORD)
        (folder / "password").chmod(0o644)
        prepare(
            [initdb, "-D", "data", "-U", "redouble", "-A", "scram-sha-256", "--pwfile=password", "--no-sync",
             "--locale=C", "-E", "UTF8"],
            account,
        )  # fmt: skip
        settings = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "fsync": "off",
            "max_connections": "30",
            "deadlock_timeout": "20ms",  # a deadlock is looked for after a second otherwise
            "lc_messages": "C",
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]

        def answers(port: int) -> bool:
            question = [isready, "-q", "-h", "127.0.0.1", "-p", str(port), "-d", "postgres"]
            return subprocess.run(question, check=False).returncode == 0

        with serving(
            lambda port: [postgres, "-D", "data", "-p", str(port), *options],
            account,
            answers,
            stop=signal.SIGINT,  # does not wait for clients to leave
        ) as server:
            yield server


@pytest.fixture(scope="session")
def mariadb() -> Iterator[Server]:
    """MariaDB; user ``redouble`` may do anything with the database ``redouble``."""
    install, mariadbd = (program(name, "MariaDB") for name in ("mariadb-install-db", "mariadbd"))
    with home("mysql") as (folder, account):
        common = ["--no-defaults", f"--datadir={folder / 'data'}"]
        prepare([install, *common, "--auth-root-authentication-method=normal", "--skip-test-db"], account)
        (folder / "init.sql").write_text(
            "CREATE DATABASE redouble;\n"
            f"CREATE USER redouble@'127.0.0.1' IDENTIFIED BY '{PASSWORD}';\n"
            "GRANT ALL ON redouble.* TO redouble@'127.0.0.1';\n"
        )

        def command(port: int) -> list[str]:
            return [
                mariadbd, *common, "--bind-address=127.0.0.1", f"--port={port}", "--socket=mariadb.sock",
                f"--init-file={folder / 'init.sql'}", "--skip-name-resolve", "--max-connections=10",
                "--innodb-flush-log-at-trx-commit=0", "--innodb-buffer-pool-size=16M",
            ]  # fmt: skip

        with serving(command, account, listening) as server:
            yield server


@pytest.fixture(scope="session")
def redis_server() -> Iterator[Server]:
    """Redis, without persistence."""
    redis = program("redis-server", "Redis")
    with home() as (_, account):

        def command(port: int) -> list[str]:
            options = f"--bind 127.0.0.1 --port {port} --save --appendonly no --lua-time-limit 20"
            return [redis, *options.split()]

        with serving(command, account, listening) as server:
            yield server


@pytest.fixture(scope="session")
def rabbitmq() -> Iterator[Server]:
    """RabbitMQ; user ``guest`` with the same password."""
    # Debian's own rabbitmq-server in the PATH insists on its account and folders; the one beside rabbitmq-env does not.
    scripts = Path(
        program("rabbitmq-env", "RabbitMQ", "usr/lib/rabbitmq/bin", "opt/homebrew/opt/rabbitmq/sbin")
    )
    epmd = program("epmd", "Erlang")
    # Erlang's name server, which RabbitMQ would start as a daemon and leave behind.
    with (
        home("rabbitmq") as (_, names_account),
        serving(
            lambda port: [epmd, "-address", "127.0.0.1", "-port", str(port)], names_account, listening
        ) as names,
        home("rabbitmq") as (folder, account),
    ):
        settings = {
            "HOME": folder,
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": names.port,
            "RABBITMQ_NODENAME": "redouble@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_DIST_PORT": free_port(),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            "RABBITMQ_CONFIG_FILE": folder / "none",
            "RABBITMQ_ENABLED_PLUGINS_FILE": folder / "plugins",
            "RABBITMQ_MNESIA_BASE": folder / "data",
            "RABBITMQ_LOG_BASE": folder / "log",
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_PID_FILE": folder / "pid",
        }
        variables = [f"{name}={value}" for name, value in settings.items()]

        def command(port: int) -> list[str]:
            server = str(scripts.parent / "rabbitmq-server")
            return ["/usr/bin/env", *variables, f"RABBITMQ_NODE_PORT={port}", server]

        with serving(command, account, listening) as server:
            yield server


_STALLS = pytest.StashKey[dict[str, float]]()


@pytest.fixture(scope="session")
def stalls(request: pytest.FixtureRequest) -> dict[str, float]:
    """The longest stall of a call by injected fault; printed at the end."""
    return request.config.stash.setdefault(_STALLS, {})


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the longest stall of each fault."""
    found = config.stash.get(_STALLS, {})
    if found:
        terminalreporter.section("longest stall of a call by the fault of a store")
        for fault, seconds in found.items():
            terminalreporter.write_line(f"{seconds:7.3f} s  {fault}")
