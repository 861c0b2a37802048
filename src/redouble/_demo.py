"""``python -m redouble demo``: a flaky server on loopback, called before the reader's eyes; then a herd.

Takes a few seconds.
"""

from __future__ import annotations

import asyncio
import threading
import time
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from ._decorate import retry
from ._herd import herd
from ._terminal import DONE, Parser, say, speak_as, wrapped
from .errors import DeadlineExceeded
from .events import Event, Recovered, Retrying

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

# What the server does with the requests to a path, one after the other; the last goes on for ever.
# A status and the header it comes with, a connection that is closed without an answer, or one that hangs.
_DROP, _HANG = "drop", "hang"
_SCRIPT: dict[str, list[tuple[int, dict[str, str]] | str]] = {
    "/flaky": [(503, {}), _DROP, (200, {})],
    "/busy": [(429, {"Retry-After": "0.7"}), (200, {})],
    "/orders": [(500, {})],
    "/down": [(503, {})],
    "/slow": [_HANG, (200, {})],
    "/shaky": [_DROP, (200, {})],
}

_EPILOG = """exit status:
  0    all done
  130  interrupted (Ctrl-C)"""


class _Flaky(BaseHTTPRequestHandler):
    """Answers by the script above."""

    pending: dict[str, Iterator[Any]]
    over: threading.Event

    def do_GET(self) -> None:
        step = next(self.pending[self.path])
        if isinstance(step, str):
            if step is _HANG:
                self.over.wait()
            self.close_connection = True
            return
        status, headers = step
        body = b"hello\n"
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET  # noqa: N815 - http.server's name

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is http.server's
        """Says nothing: the client's side is what is shown."""


def _endless(steps: list[Any]) -> Iterator[Any]:
    yield from steps
    while True:
        yield steps[-1]


def demo(arguments: Sequence[str]) -> int:
    """Starts the server, makes its calls, shows the story of each, and a herd; gives the exit status."""
    text = "Calls a flaky server on loopback before your eyes, then draws a herd."
    Parser(prog=speak_as("demo"), description=text, epilog=_EPILOG).parse_args(arguments)
    over = threading.Event()
    pending = {path: _endless(steps) for path, steps in _SCRIPT.items()}
    handler = type("Handler", (_Flaky,), {"pending": pending, "over": over})
    with _Server(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            _calls(server.server_port)
        finally:
            over.set()
            server.shutdown()
            thread.join()
    _tell("Next: the README, docs/tutorial.md, or: python -m redouble preview")
    return DONE


class _Server(ThreadingHTTPServer):
    """Says nothing of clients that hang up, as one does that was interrupted."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass


def _calls(port: int) -> None:
    base = f"http://127.0.0.1:{port}"
    _tell("A small server on loopback fails on purpose. redouble calls it.\n")
    _sync_calls(base)
    _head("5. Two async calls at once: one hangs and is cut off, one is dropped:")
    for answer in asyncio.run(_async_calls(port)):
        _tell(f"   answer: {answer}", "green")
    _head("\n6. Why jitter: 300 clients fail at the same instant, and try three times more:")
    _tell(herd())


# Sync


def _fetch(url: str, method: str = "GET") -> str:
    request = urllib.request.Request(url, method=method)  # noqa: S310 - loopback
    try:
        with urllib.request.urlopen(request, timeout=2) as response:  # noqa: S310
            return str(response.read().decode().strip())
    except urllib.error.HTTPError as error:
        error.close()  # it is the response as well, and Python 3.14 warns of one that is left open
        raise


def _sync_calls(base: str) -> None:
    _head("1. A GET that gets a 503, then a dropped connection, then an answer:")
    get = retry(listeners=[_story()], base=0.4, name="GET")(_fetch)
    _tell(f"   answer: {get(base + '/flaky')}\n", "green")

    _head("2. A GET told to come back in 0.7 s (Retry-After); never earlier, a bit later:")
    get = retry(listeners=[_story()], base=0.4, name="GET")(_fetch)
    _tell(f"   answer: {get(base + '/busy')}\n", "green")

    _head("3. A POST that gets a 500 may have acted, so it is not sent twice:")
    try:
        retry(listeners=[_story()], name="POST")(_fetch)(base + "/orders", "POST")
    except OSError as error:
        _tell_error(error)

    _head("4. A server that stays down, and a deadline of 1 s that is kept:")
    get = retry(listeners=[_story()], attempts=None, deadline=1.0, base=0.4, name="GET")(_fetch)
    try:
        get(base + "/down")
    except DeadlineExceeded as error:
        _tell_error(error)


# Async


async def _async_fetch(port: int, path: str) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(f"GET {path} HTTP/1.0\r\n\r\n".encode())
        answer = await reader.read()
    finally:
        writer.close()
    if not answer:
        raise ConnectionResetError("the server hung up")
    return answer.decode().rpartition("\n\r\n")[2].strip()


async def _async_calls(port: int) -> list[str]:
    async def call(path: str) -> str:
        fetch = retry(listeners=[_story(path)], base=0.4, timeout=0.3, name=path)(_async_fetch)
        return await fetch(port, path)

    return list(await asyncio.gather(call("/slow"), call("/shaky")))


# What is shown, as it happens


def _story(name: str = "") -> Callable[[Event], None]:
    """A listener that shows what becomes of a call, with the seconds since it began."""
    began = time.monotonic()
    name = name and name + ", "

    def show(event: Event) -> None:
        try:
            line_by_line(event)
        except OSError:
            pass  # the reader has gone: the next line that is not a listener's meets that, too, and ends it

    def line_by_line(event: Event) -> None:
        at = f"   {time.monotonic() - began:4.2f} s  {name}attempt {event.attempt}"
        if isinstance(event, Retrying):
            _tell(f"{at} failed: {event.error_type}: {event.error_message}", "red")
            _tell(f"           {event.cause}; next attempt in {event.delay or 0.0:.2f} s", "yellow")
        elif isinstance(event, Recovered):
            _tell(f"{at} succeeded", "green")

    return show


def _tell_error(error: BaseException) -> None:
    _tell(f"   {type(error).__name__}: {error}", "red")
    for note in getattr(error, "__notes__", ()):
        _tell("   " + note.replace("\n", "\n   "))
    _tell("")


def _head(text: str) -> None:
    _tell(text, "bold")


def _tell(text: str, style: str | None = None) -> None:
    # At once, also into a pipe: it is the waits that are to be seen.
    say(wrapped(text), style, flush=True)
