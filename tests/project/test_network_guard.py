"""Tests of the network guard: a test that connects to another machine fails."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from redouble import retry
from support import network_guard

# For documentation: these addresses belong to nobody.
NOBODY = "192.0.2.1"

Refusal = pytest.fail.Exception


@pytest.fixture
def tried():
    """The refused connections of a test that expects them, so that the test does not fail for them."""
    yield network_guard.refused
    network_guard.refused.clear()


def refused_once(tried):
    """Forget the refusal, so that this test passes."""
    assert len(tried) == 1
    return tried.pop()


@pytest.mark.parametrize("host", [NOBODY, "203.0.113.7", "8.8.8.8", "10.0.0.1"])
@pytest.mark.parametrize("how", ["connect", "connect_ex"])
def test_a_connection_to_another_machine_is_refused(host, how, tried):
    with socket.socket() as made, pytest.raises(Refusal, match=host):
        getattr(made, how)((host, 80))
    assert host in refused_once(tried)


def test_a_connection_by_another_protocol_is_refused_too(tried):
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    with socket.socket(socket.AF_INET6) as made, pytest.raises(Refusal, match="2001:db8"):
        made.connect(("2001:db8::1", 80))
    refused_once(tried)


def test_a_datagram_to_another_machine_is_refused(tried):
    with socket.socket(type=socket.SOCK_DGRAM) as made:
        with pytest.raises(Refusal):
            made.sendto(b"?", (NOBODY, 53))
        refused_once(tried)
        with pytest.raises(Refusal):
            made.sendto(b"?", 0, (NOBODY, 53))
        refused_once(tried)


@pytest.mark.skipif(not hasattr(socket.socket, "sendmsg"), reason="there is no sendmsg here")
def test_a_message_to_another_machine_is_refused(tried):
    with socket.socket(type=socket.SOCK_DGRAM) as made, pytest.raises(Refusal):
        made.sendmsg([b"?"], [], 0, (NOBODY, 53))
    refused_once(tried)


@pytest.mark.parametrize("ask", [socket.getaddrinfo, socket.gethostbyname, socket.gethostbyname_ex])
def test_the_name_of_another_machine_is_not_looked_up(ask, tried):
    with pytest.raises(Refusal, match="example"):
        ask(*(["example.org", 80] if ask is socket.getaddrinfo else ["example.org"]))
    refused_once(tried)


def test_the_address_of_another_machine_is_not_looked_up_for_its_name(tried):
    with pytest.raises(Refusal, match=NOBODY):
        socket.gethostbyaddr(NOBODY)
    refused_once(tried)


def test_an_event_loop_is_bound_by_it_too(tried):
    async def main():
        await asyncio.open_connection("example.org", 80)

    with pytest.raises(Refusal):
        asyncio.run(main())
    refused_once(tried)


def test_a_refusal_is_not_retried(tried):
    @retry(on=Exception)
    def fetch():
        with socket.socket() as made:
            made.connect((NOBODY, 80))

    with pytest.raises(Refusal):
        fetch()
    refused_once(tried)


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.8.9.10", "::1", "::ffff:127.0.0.1", "0.0.0.0", "localhost", None, b"::1"]
)
def test_this_machine_is_here(host):
    assert network_guard.is_here(host)


@pytest.mark.parametrize(
    "host", [NOBODY, "fe80::1", "::ffff:8.8.8.8", "localhost.example.org", "example.org", b"example.org"]
)
def test_others_are_not_here(host):
    assert not network_guard.is_here(host)


def test_loopback_and_unix_sockets_are_free(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("localhost", port), timeout=5) as client:
            client.sendall(b"hello")
            with server.accept()[0] as accepted:
                assert accepted.recv(5) == b"hello"
    if hasattr(socket, "AF_UNIX"):
        with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
            server.bind(str(tmp_path / "socket"))
            server.listen()
            client.connect(str(tmp_path / "socket"))
    assert network_guard.refused == []


SWALLOWED = """
import socket, threading

def test_that_swallows():
    try:
        socket.create_connection(("192.0.2.1", 80), timeout=1)
    except BaseException:
        pass

def test_that_comes_after():
    pass
"""


@pytest.mark.slow
def test_a_test_that_swallows_the_refusal_fails_and_no_other(tmp_path):
    (tmp_path / "test_it.py").write_text(SWALLOWED)
    (tmp_path / "conftest.py").write_text("from support import network_guard\nnetwork_guard.install()\n")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "support.network_guard",
            "-p",
            "no:cacheprovider",
            "--rootdir",
            ".",
            "test_it.py",
        ],
        env={
            **os.environ,
            "PYTHONPATH": str(Path(network_guard.__file__).parents[1]),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "this one has tried '192.0.2.1'" in done.stdout
    assert "1 failed, 1 passed" in done.stdout
