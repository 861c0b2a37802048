"""Failures that every client has, and how a library is registered with its failures and the right verdicts."""

from __future__ import annotations

import json
import shutil
import socket
import threading
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from interop.server import Web, hang_up, reset, stall, status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Lot = dict[str, tuple[str, Callable[[Web], Iterator["Failure"]]]]  # by name: the module, the failures

SHORT = 0.25  # seconds that a client waits for a server that says nothing
LONG = 10.0
WAIT = ("Retry-After", "2")
HTML = ("Content-Type", "text/html")


class Right(NamedTuple):
    """The right verdict. ``unprocessed`` may be claimed only if the request certainly had no effect.

    A failure before the login is such a one: the request was never sent.
    """

    retryable: bool
    may_be_unprocessed: bool


NO = Right(False, False)
YES = Right(True, False)
SAFE = Right(True, True)


class Failure(NamedTuple):
    """One failure: what happens, the right verdict, why it is right, and a function that raises or returns it."""

    title: str
    right: Right
    why: str
    cause: Callable[[], object]

    def happen(self) -> Exception:
        """Return the exception."""
        try:
            outcome = self.cause()
        except Exception as error:
            return error
        assert isinstance(outcome, Exception), f"{self.title}: nothing failed, the outcome is {outcome!r}"
        return outcome


LIBRARIES: Lot = {}


def library(name: str, module: str, *, lot: Lot = LIBRARIES) -> Callable[[Any], Any]:
    """Register a function that yields the failures of a library; ``module`` is the name to import."""

    def register(function: Callable[[Web], Iterator[Failure]]) -> Callable[[Web], Iterator[Failure]]:
        lot[name] = module, function
        return function

    return register


# The failures that every client over HTTP has. ``call(url, timeout)`` sends one request.


def refused(web: Web, call: Callable[..., object]) -> Failure:
    return Failure("refused port", SAFE, "nothing was sent", lambda: call(web.refused_url, LONG))


def silent(web: Web, call: Callable[..., object]) -> Failure:
    page = web.page(stall)
    return Failure("no response in time", YES, "a read timeout", lambda: call(page.url, SHORT))


def dropped(web: Web, call: Callable[..., object]) -> Failure:
    page = web.page(hang_up)
    return Failure("dropped without a response", YES, "a lost connection", lambda: call(page.url, LONG))


def broken_off(web: Web, call: Callable[..., object]) -> Failure:
    page = web.page(reset)
    return Failure("TCP reset after the request", YES, "a lost connection", lambda: call(page.url, LONG))


def untrusted(web: Web, call: Callable[..., object]) -> Iterator[Failure]:
    if shutil.which("openssl") is not None:
        why = "a certificate stays untrusted"
        yield Failure(
            "self-signed certificate", NO, why, lambda: call(web.secure_page(status(200)).url, LONG)
        )


WHY = {
    400: "a wrong request stays wrong",
    401: "wrong credentials stay wrong",
    402: "a bill to be paid",
    403: "a missing permission",
    404: "it does not exist",
    405: "the method is not offered",
    408: "RFC 9110: the client may repeat",
    409: "it exists already",
    413: "too large stays too large",
    422: "a wrong request stays wrong",
    425: "RFC 8470: not processed, retry",
    429: "RFC 6585: rejected, come back later",
    500: "a server error without an outcome",
    502: "a gateway without an upstream",
    503: "the server is overloaded for now",
    504: "a gateway timeout",
    507: "RFC 4918: not without a user action",
}


def answered(
    web: Web,
    call: Callable[..., object],
    code: int,
    right: Right,
    body: object,
    *headers: Any,
    why: str = "",
) -> Failure:
    """Return the failure of a request that gets a response with this status and body."""
    raw = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    page = web.page(status(code, *headers, body=raw))
    title = f"HTTP {code} {body if isinstance(body, str) else json.dumps(body)}"
    return Failure(title[:90], right, why or WHY[code], lambda: call(page.url, LONG))


@contextmanager
def listening(answer: Callable[[socket.socket], object]) -> Iterator[int]:
    """Listen on a port of loopback; each connection is given to ``answer`` and then closed."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                threading.Thread(target=talk, args=(connection,), daemon=True).start()

        def talk(connection: socket.socket) -> None:
            with connection:
                try:
                    answer(connection)
                except OSError:  # the client left
                    pass

        threading.Thread(target=serve, daemon=True).start()
        try:
            yield server.getsockname()[1]
        finally:
            try:
                server.shutdown(socket.SHUT_RDWR)  # wakes the thread
            except OSError:  # where only connected sockets are shut down
                pass


def silence(connection: socket.socket) -> None:
    while connection.recv(65536):
        pass


def chained(error: Exception, cause: Exception) -> Exception:
    """Return ``error`` as ``raise error from cause`` leaves it."""
    try:
        try:
            raise cause
        except Exception as inner:
            raise error from inner
    except Exception as outer:
        return outer


def failures_of(library: Callable[[Web], Iterator[Failure]], web: Web) -> list[tuple[Failure, Exception]]:
    """Return the failures of an installed library, with the exceptions."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecations inside the libraries
        return [(failure, failure.happen()) for failure in library(web)]
