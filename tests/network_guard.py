"""Tests talk to this machine only: sockets to anybody else are refused, and the test that asked for one fails.

It fails even where the refusal was caught, as a library for retries well may. What counts is where a socket leads:
Unix sockets and loopback are free, numbers may be looked up, of names only ``localhost``. Programs that a test
starts, and libraries that have sockets of their own in C, are not seen. Functions are replaced rather than an audit
hook installed: that costs nothing while nobody connects, and a hook would be called for everything that happens.
"""

from __future__ import annotations

import functools
import ipaddress
import os
import socket
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

_FAMILIES = (socket.AF_INET, socket.AF_INET6)

# What was refused since the last test has ended.
refused: list[str] = []


def number_of(host: Any) -> Any:
    """The address that a host is given as; ``None`` for a name."""
    text = host.decode() if isinstance(host, (bytes, bytearray)) else host
    try:
        number = ipaddress.ip_address(text)
    except ValueError:
        return None
    return getattr(number, "ipv4_mapped", None) or number


def is_here(host: Any) -> bool:
    """Whether this machine answers for a host. Nobody is asked."""
    number = number_of(host)
    if number is None:
        return host in (None, "", b"", "localhost", b"localhost")
    return bool(number.is_loopback or number.is_unspecified)


def insist(allowed: bool, what: str) -> None:
    if not allowed:
        refused.append(what)
        # Not an Exception, so that nobody retries it.
        pytest.fail(f"tests talk to this machine only, not to {what}")


def only_here(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of sockets whose last argument is where it leads, if it has one of that kind."""

    @functools.wraps(method)
    def guarded(self: socket.socket, *args: Any) -> Any:
        last = args[-1] if args else None
        if (
            self.family in _FAMILIES
            and isinstance(last, tuple)
            and len(last) > 1
            and isinstance(last[1], int)
        ):
            insist(is_here(last[0]), repr(last[0]))
        return method(self, *args)

    return guarded


def only_local_names(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that looks up what its first argument is; the address of a number is known without asking."""

    @functools.wraps(function)
    def guarded(host: Any, *args: Any, **kwargs: Any) -> Any:
        is_known = number_of(host) is not None and function.__name__ != "gethostbyaddr"
        insist(is_here(host) or is_known, f"the servers of names about {host!r}")
        return function(host, *args, **kwargs)

    return guarded


def install() -> None:
    # Or a client of boto3, made without credentials, looks for some at an address of the network.
    os.environ["AWS_EC2_METADATA_DISABLED"] = "true"
    for name in ("connect", "connect_ex", "sendto", "sendmsg"):
        if hasattr(socket.socket, name):  # sendmsg is not there on Windows
            setattr(socket.socket, name, only_here(getattr(socket.socket, name)))
    for name in ("getaddrinfo", "gethostbyaddr", "gethostbyname", "gethostbyname_ex"):
        setattr(socket, name, only_local_names(getattr(socket, name)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """Fails a test that has caught the refusal."""
    try:
        result = yield
    finally:
        tried = ", ".join(refused)
        refused.clear()
    if tried:
        pytest.fail(f"tests talk to this machine only, and this one has tried {tried}", pytrace=False)
    return result
