"""A server on loopback that gives one answer after the other."""

from __future__ import annotations

import socketserver
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler

import pytest

from redouble.testing import no_waits


@dataclass
class Answer:
    """A response: its status, body and headers.

    ``cut`` closes the connection instead, ``chunked`` hides the length, ``delay`` is waited first, and ``lost`` is the
    number of bytes that are announced and not sent.
    """

    status: int = 200
    body: bytes = b"body"
    headers: dict[str, str] = field(default_factory=dict)
    cut: bool = False
    chunked: bool = False
    delay: float = 0.0
    lost: int = 0


CUT = Answer(cut=True)


@dataclass
class Received:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    connection: tuple[str, int]
    at: float = field(default_factory=time.monotonic)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # or a body waits 40 ms for the ACK of its headers

    def handle_one_request(self):
        try:
            super().handle_one_request()
        except OSError:
            self.close_connection = True

    def answer(self):
        if self.headers.get("transfer-encoding") == "chunked":
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
        headers = {name.lower(): value for name, value in self.headers.items()}
        server = self.server.owner
        server.received.append(Received(self.command, self.path, headers, body, self.client_address))
        found = server.answers.pop(0) if server.answers else Answer()
        found = Answer(found) if isinstance(found, int) else found
        server.closing.wait(found.delay)
        if found.cut:
            self.close_connection = True
            return
        self.send_response(found.status)
        for name, value in found.headers.items():
            self.send_header(name, value)
        if found.chunked:
            self.send_header("Transfer-Encoding", "chunked")
        else:
            self.send_header("Content-Length", str(len(found.body) + found.lost))
            self.close_connection = bool(found.lost)
        self.end_headers()
        if found.chunked:
            chunk = b"%x\r\n%s\r\n" % (len(found.body), found.body) if found.body else b""
            self.wfile.write(chunk + b"0\r\n\r\n")
        elif self.command != "HEAD":
            self.wfile.write(found.body)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = answer  # noqa: N815 - names of http.server

    def log_message(self, *args):
        pass


class Server:
    """``answers`` are given in order, then 200; ``received`` are the requests."""

    def __init__(self):
        self.answers: list[Answer | int] = []
        self.received: list[Received] = []
        self.closing = threading.Event()
        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.owner = self
        self.host = f"127.0.0.1:{self._server.server_address[1]}"
        self.url = f"http://{self.host}/orders"
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        )
        self._thread.start()

    @property
    def connections(self) -> int:
        return len({request.connection for request in self.received})

    def seconds_since_first(self) -> float:
        return time.monotonic() - self.received[0].at

    def close(self):
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(60)


@pytest.fixture
def server():
    server = Server()
    yield server
    server.close()


@pytest.fixture(autouse=True)
def waits():
    """Make no wait of a policy for real."""
    with no_waits() as made:
        yield made
