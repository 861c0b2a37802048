"""A flaky server on loopback, called before the reader's eyes. Takes a few seconds."""

from __future__ import annotations

import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from ._decorate import retry
from .errors import DeadlineExceeded
from .events import Event, Recovered, Retrying

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

# What the server does with the requests to a path, one after the other; the last goes on for ever.
# A status, the header it comes with, or a connection that is closed without an answer.
_SCRIPT: dict[str, list[tuple[int, dict[str, str]] | None]] = {
    "/flaky": [(503, {}), None, (200, {})],
    "/busy": [(429, {"Retry-After": "0.7"}), (200, {})],
    "/orders": [(500, {})],
    "/down": [(503, {})],
}


class _Flaky(BaseHTTPRequestHandler):
    """Answers by the script above."""

    pending: dict[str, Iterator[Any]]

    def do_GET(self) -> None:
        step = next(self.pending[self.path])
        if step is None:
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


def _show(event: Event) -> None:
    if isinstance(event, Retrying):
        print(f"   attempt {event.attempt} failed: {event.error_type}: {event.error_message}")
        print(f"      {event.cause}; next attempt in {event.delay or 0.0:.2f} s")
    elif isinstance(event, Recovered):
        print(f"   attempt {event.attempt} succeeded, {event.elapsed:.2f} s after the first failure")


def _fetch(url: str, method: str = "GET") -> bytes:
    with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=2) as response:  # noqa: S310
        return bytes(response.read())


def demo() -> int:
    """Starts the server, makes four calls, shows the story of each; gives the exit status."""
    handler = type(
        "Handler", (_Flaky,), {"pending": {path: _endless(steps) for path, steps in _SCRIPT.items()}}
    )
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            _calls(f"http://127.0.0.1:{server.server_port}")
        finally:
            server.shutdown()
            thread.join()
    return 0


def _calls(base: str) -> None:
    print("A small server on loopback fails on purpose. redouble calls it.\n")
    get = retry(listeners=[_show], base=0.4, name="GET")(_fetch)

    print("1. A GET that gets a 503, then a dropped connection, then an answer:")
    print(f"   answer: {get(base + '/flaky').decode().strip()}\n")

    print("2. A GET told to come back in 0.7 s (Retry-After): never earlier, a little later at random:")
    print(f"   answer: {get(base + '/busy').decode().strip()}\n")

    print("3. A POST that gets a 500 may have acted, so it is not sent twice:")
    try:
        retry(listeners=[_show], name="POST")(_fetch)(base + "/orders", "POST")
    except OSError as error:
        _print_error(error)

    print("4. A server that stays down, and a deadline of 1 s that is kept:")
    try:
        retry(listeners=[_show], attempts=None, deadline=1.0, base=0.4, name="GET")(_fetch)(base + "/down")
    except DeadlineExceeded as error:
        _print_error(error)
    print("Next: the README, or docs/tutorial.md.")


def _print_error(error: BaseException) -> None:
    print(f"   {type(error).__name__}: {error}")
    for note in getattr(error, "__notes__", ()):
        print("   " + note.replace("\n", "\n   "))
    print()
