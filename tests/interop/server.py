"""An HTTP(S) server on loopback that fails as a test asks for.

    with Web(folder) as web:
        page = web.page(status(503, ("Retry-After", "2")), status(200))
        requests.get(page.url)      # 503
        requests.get(page.url)      # 200, and so on: the last answer is repeated
        page.seen                   # the requests that came

An answer is a function of the connection, called when the whole request has been read. Afterwards the connection is
closed, unless the answer returns true, as those of `kept` do. The rest of the path after the page is ignored, so
``page.url`` is also a base URL.
"""

from __future__ import annotations

import itertools
import socket
import ssl
import struct
import subprocess
import threading
from dataclasses import dataclass, field
from email.message import Message
from email.parser import Parser
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    Answer = Callable[[socket.socket], object]
    Header = tuple[str, str | bytes]


# Answers.


def status(code: int, *headers: Header, body: bytes = b'{"error": {"message": "by order"}}') -> Answer:
    """Answer with a whole response; header values that are bytes are sent as they are."""
    return lambda conn: conn.sendall(_head(code, *headers, length=len(body)) + body)


def kept(code: int, *headers: Header, body: bytes = b"{}", chunked: bool = False) -> Answer:
    """Answer with a whole response and keep the connection open for the next request."""

    def answer(conn: socket.socket) -> bool:
        if chunked:
            framing, data = ("Transfer-Encoding", "chunked"), b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
        else:
            framing, data = ("Content-Length", str(len(body))), body
        conn.sendall(_lines(code, framing, *headers) + data)
        return True

    return answer


def half(code: int = 200, then: Answer | None = None) -> Answer:
    """Send the headers and a part of the body, then close the connection or do something else."""

    def answer(conn: socket.socket) -> None:
        conn.sendall(_head(code, length=100) + b'{"half":')
        if then is not None:
            then(conn)

    return answer


truncated = half()
"""Send a shorter body than Content-Length says."""


def stalled_body(conn: socket.socket) -> None:
    """Send half a body, then nothing until the client closes the connection."""
    half(then=stall)(conn)


def stall(conn: socket.socket) -> None:
    """Send nothing until the client closes the connection."""
    while conn.recv(65536):
        pass


def reset(conn: socket.socket) -> None:
    """End the connection with a TCP reset."""
    conn.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def hang_up(conn: socket.socket) -> None:
    """Close the connection without a response."""


def garbage(conn: socket.socket) -> None:
    """Send bytes that are not HTTP."""
    conn.sendall(b"ceci n'est pas une response\r\n\r\n")


def _head(code: int, *headers: Header, length: int) -> bytes:
    return _lines(code, ("Content-Length", str(length)), ("Connection", "close"), *headers)


def _lines(code: int, *headers: Header) -> bytes:
    phrase = next((known.phrase for known in HTTPStatus if known == code), "Unheard Of")
    lines = list(headers)
    if not any(name.lower() == "content-type" for name, _ in headers):
        lines.append(("Content-Type", "application/json"))
    coded = [
        name.encode() + b": " + (value if isinstance(value, bytes) else value.encode())
        for name, value in lines
    ]
    return b"\r\n".join([f"HTTP/1.1 {code} {phrase}".encode(), *coded, b"", b""])


# The server.


@dataclass
class Request:
    """One received request."""

    method: str
    path: str
    headers: Message
    body: bytes
    connection: int = 0


@dataclass
class Page:
    """One address with its answers, in order."""

    url: str
    answers: tuple[Answer, ...]
    choose: Callable[[Request], Answer] | None = None
    seen: list[Request] = field(default_factory=list)
    open: set[int] = field(default_factory=set)
    """The connections that requests came through and that are not closed."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, request: Request) -> Answer:
        with self._lock:
            self.open.add(request.connection)
            self.seen.append(request)
            if self.choose is not None:
                return self.choose(request)
            return self.answers[min(len(self.seen), len(self.answers)) - 1]

    @property
    def connections(self) -> list[int]:
        """The connection of each request, numbered from 0 in the order in which this page saw them."""
        numbers = list(dict.fromkeys(request.connection for request in self.seen))
        return [numbers.index(request.connection) for request in self.seen]


class Web:
    """The server: a plain port, a TLS port with an untrusted certificate, a refused port and a port that never accepts."""

    def __init__(self, folder: Path) -> None:
        self._pages: dict[str, Page] = {}
        self._numbers = itertools.count(1)
        self._connections = itertools.count(1)
        self._folder = folder
        self._sockets: list[socket.socket] = []
        self._lock = threading.Lock()
        self._plain = self._listen(None)
        self._secure: int | None = None
        # Bound, so that nobody else gets the port, but not listening: a connection is refused.
        self.closed_port = self._bound().getsockname()[1]

    def __enter__(self) -> Web:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            sockets, self._sockets = self._sockets, []
        for sock in sockets:
            _close(sock)

    def page(self, *answers: Answer) -> Page:
        """Return a new address with these answers; the last one is repeated."""
        return self._page("http", self._plain, answers)

    def page_by(self, choose: Callable[[Request], Answer]) -> Page:
        """Return a new address whose answers a function of the request chooses, one call at a time."""
        page = self.page()
        page.choose = choose
        return page

    def secure_page(self, *answers: Answer) -> Page:
        """Return a new address on the TLS port, whose certificate is made on first use."""
        return self._page("https", self.secure_port, answers)

    @property
    def secure_port(self) -> int:
        if self._secure is None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*self_signed(self._folder))
            self._secure = self._listen(context)
        return self._secure

    @property
    def certificate(self) -> Path:
        """The certificate of the TLS port, for clients that trust it."""
        return self._folder / "certificate.pem"

    @property
    def refused_url(self) -> str:
        return f"http://127.0.0.1:{self.closed_port}"

    def full_url(self) -> str:
        """An address where connecting times out: the queue of the listener is full (on Linux)."""
        listener = self._bound()
        listener.listen(0)
        for _ in range(4):
            client = socket.socket()
            client.setblocking(False)
            client.connect_ex(listener.getsockname())
            self._keep(client)
        return f"http://127.0.0.1:{listener.getsockname()[1]}"

    def _page(self, scheme: str, port: int, answers: tuple[Answer, ...]) -> Page:
        name = str(next(self._numbers))
        page = self._pages[name] = Page(f"{scheme}://127.0.0.1:{port}/{name}", answers)
        return page

    def _keep(self, sock: socket.socket) -> None:
        with self._lock:
            self._sockets.append(sock)

    def _bound(self) -> socket.socket:
        sock = socket.socket()
        sock.bind(("127.0.0.1", 0))
        self._keep(sock)
        return sock

    def _listen(self, context: ssl.SSLContext | None) -> int:
        listener = self._bound()
        listener.listen(256)
        threading.Thread(target=self._accept, args=(listener, context), daemon=True).start()
        port: int = listener.getsockname()[1]
        return port

    def _accept(self, listener: socket.socket, context: ssl.SSLContext | None) -> None:
        while True:
            try:
                conn, _ = listener.accept()
            except OSError:  # the server was stopped
                return
            threading.Thread(target=self._serve, args=(conn, context), daemon=True).start()

    def _serve(self, conn: socket.socket, context: ssl.SSLContext | None) -> None:
        self._keep(conn)
        number = next(self._connections)
        pages: list[Page] = []
        try:
            if context is not None:
                # Detaches the plain socket, so the wrapped one is the one to close.
                conn = context.wrap_socket(conn, server_side=True)
                self._keep(conn)
            while (request := _read(conn)) is not None:
                request.connection = number
                pages.append(self._pages[request.path.split("/")[1]])
                if not pages[-1].answer(request)(conn):
                    break
        except OSError:  # the client left, or did not trust the certificate
            pass
        finally:
            conn.close()
            for page in pages:
                page.open.discard(number)


def _read(conn: socket.socket) -> Request | None:
    data = b""
    while b"\r\n\r\n" not in data:
        more = conn.recv(65536)
        if not more:
            return None
        data += more
        if data.startswith(b"\x16"):  # a TLS hello; answered as real servers do, in plain HTTP
            conn.sendall(_head(400, length=0))
            return None
    head, body = data.split(b"\r\n\r\n", 1)
    first, _, fields = head.decode("latin-1").partition("\r\n")
    method, path, _ = first.split(" ")
    headers = Parser().parsestr(fields, headersonly=True)
    if headers.get("Expect", "").lower() == "100-continue":
        conn.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
    chunked = "chunked" in headers.get("Transfer-Encoding", "").lower()
    while not body.endswith(b"0\r\n\r\n") if chunked else len(body) < int(headers.get("Content-Length", "0")):
        more = conn.recv(65536)
        if not more:
            return None
        body += more
    return Request(method, path, headers, body)


def _close(sock: socket.socket) -> None:
    try:
        sock.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits on it
    except OSError:
        pass
    sock.close()


def self_signed(folder: Path) -> tuple[Path, Path]:
    """Make a certificate for loopback and its key with the ``openssl`` command."""
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost",
         "-addext", "keyUsage=critical,digitalSignature,keyCertSign",
         "-keyout", str(key), "-out", str(certificate)],
        check=True, capture_output=True,
    )  # fmt: skip
    return certificate, key
