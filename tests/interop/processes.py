"""Run real servers as child processes, each on a free loopback port, with a temporary folder."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

STARTS_WITHIN = 60.0  # seconds; a loaded machine is slow
STOPS_WITHIN = 10.0
INSTALL = "run tests/interop/install.sh"
PASSWORD = "correct horse"


@dataclass
class Server:
    """A running server."""

    port: int
    pid: int


def program(name: str, product: str, *folders: str) -> str:
    """Return the path of a server's program; skip the test if it is not installed."""
    # Debian keeps servers where only root's PATH looks, and PostgreSQL by version: the newest one counts.
    places = [str(place) for folder in folders for place in sorted(Path("/").glob(folder), reverse=True)]
    path = shutil.which(
        name, path=os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", *places])
    )
    if path is None:
        pytest.skip(f"{product} is not installed: no {name!r} found, so no test ran against it ({INSTALL})")
    return path


def until(ready: Callable[[], Any], what: str, within: float = STARTS_WITHIN) -> Any:
    """Poll until the result is true, and return it; fail if that takes too long."""
    end = time.monotonic() + within
    while not (answer := ready()):
        if time.monotonic() > end:
            pytest.fail(f"{what} did not happen within {within:g} s")
        time.sleep(0.01)
    return answer


@contextmanager
def home(*owners: str) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Make a temporary folder; yield it and the arguments to run a process that owns it.

    Database servers refuse to run as root: root gives the folder to the first of the owners that exists.
    """
    folder = Path(tempfile.mkdtemp(prefix="redouble-"))
    account: dict[str, Any] = {"cwd": folder, "stdin": subprocess.DEVNULL}
    if owners and os.getuid() == 0:
        import pwd  # not on every platform

        known = {entry.pw_name: entry for entry in pwd.getpwall()}
        owner = next(known[name] for name in (*owners, "nobody") if name in known)
        os.chown(folder, owner.pw_uid, owner.pw_gid)
        account |= {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []}
    try:
        yield folder, account
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def prepare(command: list[str], account: dict[str, Any]) -> None:
    """Run a set-up command."""
    done = subprocess.run(command, check=False, capture_output=True, text=True, **account)
    if done.returncode:
        pytest.fail(f"{command[0]} failed:\n{done.stdout}{done.stderr}")


@contextmanager
def serving(
    command: Callable[[int], list[str]],
    account: dict[str, Any],
    answers: Callable[[int], bool],
    stop: signal.Signals = signal.SIGTERM,
) -> Iterator[Server]:
    """Run a server until the block ends. ``command`` and ``answers`` are called with the port."""
    log = Path(account["cwd"]) / "server.log"
    port = free_port()
    with log.open("wb") as output:
        process = subprocess.Popen(command(port), stdout=output, stderr=output, **account)
    try:

        def started() -> bool:
            if process.poll() is not None:
                pytest.fail(f"{process.args!r} ended at once:\n{log.read_text(errors='replace')}")
            return answers(port)

        until(started, f"start of {Path(command(port)[0]).name}")
        yield Server(port, process.pid)
    finally:
        process.send_signal(stop)
        try:
            process.wait(STOPS_WITHIN)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def listening(port: int) -> bool:
    """Return whether a port accepts connections."""
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0
