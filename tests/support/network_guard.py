"""Fail tests that connect to another machine.

A test fails even if it catches the refusal, as a retry library may. Allowed are Unix sockets, loopback, looking up
numeric addresses, and the name ``localhost``. Programs that a test starts, and libraries that open sockets in C, are not
checked. Functions of `socket` are replaced: an audit hook would be called for every event and slow down the tests.
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

# Refused since the last test ended.
refused: list[str] = []


def number_of(host: Any) -> Any:
    """Return the address of a host that is given as a number; ``None`` for a name."""
    text = host.decode() if isinstance(host, (bytes, bytearray)) else host
    try:
        number = ipaddress.ip_address(text)
    except ValueError:
        return None
    return getattr(number, "ipv4_mapped", None) or number


def is_here(host: Any) -> bool:
    """Return whether a host is this machine, without a lookup."""
    number = number_of(host)
    if number is None:
        return host in (None, "", b"", "localhost", b"localhost")
    return bool(number.is_loopback or number.is_unspecified)


def insist(allowed: bool, what: str) -> None:
    """Record a refusal and fail, unless the connection is allowed."""
    if not allowed:
        refused.append(what)
        # Not an Exception, so that it is not retried.
        pytest.fail(f"tests talk to this machine only, not to {what}")


def only_here(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a socket method whose last argument may be an address."""

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
    """Wrap a function that looks up its first argument; numeric addresses need no lookup."""

    @functools.wraps(function)
    def guarded(host: Any, *args: Any, **kwargs: Any) -> Any:
        is_known = number_of(host) is not None and function.__name__ != "gethostbyaddr"
        insist(is_here(host) or is_known, f"the servers of names about {host!r}")
        return function(host, *args, **kwargs)

    return guarded


def install() -> None:
    """Replace the functions of `socket` for the rest of the process."""
    # Otherwise a boto3 client without credentials looks for them on the network.
    os.environ["AWS_EC2_METADATA_DISABLED"] = "true"
    for name in ("connect", "connect_ex", "sendto", "sendmsg"):
        if hasattr(socket.socket, name):  # Windows has no sendmsg
            setattr(socket.socket, name, only_here(getattr(socket.socket, name)))
    for name in ("getaddrinfo", "gethostbyaddr", "gethostbyname", "gethostbyname_ex"):
        setattr(socket, name, only_local_names(getattr(socket, name)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """Fail a test that has caught the refusal."""
    try:
        result = yield
    finally:
        tried = ", ".join(refused)
        refused.clear()
    if tried:
        pytest.fail(f"tests talk to this machine only, and this one has tried {tried}", pytrace=False)
    return result
