"""``redouble demo``: call a flaky server on loopback, and draw the retries of many clients."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import accumulate, chain, repeat
from random import Random

from .._base.callables import name_of
from .._engine.decorate import retry
from ..backoff import delays, exponential, full_jitter
from ..events import Event, Recovered, Retrying
from .charts import sparkline
from .output import command_parser, print_text, wrap_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

    from ..backoff import Backoff

# How the server answers the requests to a path, in order; the last step is repeated. A step is a status with
# headers, a connection that is closed without a response, or one that hangs.
_DROP, _HANG, _HANGS_FOR = "drop", "hang", 0.5
_SCRIPT: dict[str, list[tuple[int, dict[str, str]] | str]] = {
    "/flaky": [(503, {}), _DROP, (200, {})],
    "/busy": [(429, {"Retry-After": "0.7"}), (200, {})],
    "/orders": [(500, {})],
    "/down": [(503, {})],
    "/slow": [_HANG, (200, {})],
    "/shaky": [_DROP, (200, {})],
}

# The sync calls: title, method, path, fields of the policy.
_CALLS: list[tuple[str, str, str, dict[str, Any]]] = [
    ("1. A GET that gets a 503, then a dropped connection, then an answer:", "GET", "/flaky", {}),
    ("2. A GET that must wait 0.7 s (Retry-After); never less, a bit more:", "GET", "/busy", {}),
    ("3. A POST that gets a 500 may have acted, so it is not retried:", "POST", "/orders", {}),
    (
        "4. A server that stays down, and a deadline of 1 s:",
        "GET",
        "/down",
        {"attempts": None, "deadline": 1.0},
    ),
]

_EPILOG = """exit status:
  0    success
  130  interrupted (Ctrl-C)"""

# The simulated clients, attempts, seed; the chart: columns, and seconds of each.
_CLIENTS, _ATTEMPTS, _SEED = 300, 4, 1
_COLUMNS, _WIDTH = 60, 0.125


def demo(arguments: Sequence[str]) -> None:
    """Start the server, call it, and print what happens.

    The server runs in a thread, and is stopped at the end, after an interrupt too.
    """
    text = "Call a flaky server on loopback, then draw the retries of many clients."
    command_parser("demo", text, _EPILOG).parse_args(arguments)
    steps = {path: chain(steps, repeat(steps[-1])) for path, steps in _SCRIPT.items()}
    handler = type("Handler", (_Handler,), {"steps": steps})
    with _Server(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            _print("A small server on loopback fails on purpose. redouble calls it.\n")
            _sync_calls(f"http://127.0.0.1:{server.server_port}")
            _print("5. Two async calls at once: one hangs and times out, one is dropped:", "bold")
            for answer in asyncio.run(_async_calls(server.server_port)):
                _print(f"   answer: {answer}", "green")
            _print("\n6. Why jitter: 300 clients fail at the same instant, and retry three times:", "bold")
            _print(_chart("without jitter", exponential))
            _print("\n" + _chart("with jitter", full_jitter) + "\n")
        finally:
            server.shutdown()
            thread.join()
    _print("Next: python -m redouble explain 503, or in Python: help(redouble.retry)")


# The server


class _Handler(BaseHTTPRequestHandler):
    """Answer as the script says. A connection that hangs is closed after the timeout of the client."""

    steps: dict[str, Iterator[Any]]

    def do_GET(self) -> None:
        """Take the next step of the path: answer, hang or close the connection."""
        step = next(self.steps[self.path])
        if isinstance(step, str):
            time.sleep(_HANGS_FOR if step is _HANG else 0.0)
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
        """Log nothing: the demo prints the client's side."""


class _Server(ThreadingHTTPServer):
    """A server that ignores clients that disconnect, as they do after an interrupt."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print no traceback."""


# The calls


def _fetch(url: str, method: str) -> str:
    """Return the body of a response; raise what ``urllib`` raises."""
    request = urllib.request.Request(url, method=method)  # noqa: S310 - loopback
    try:
        with urllib.request.urlopen(request, timeout=2) as response:  # noqa: S310
            return str(response.read().decode().strip())
    except urllib.error.HTTPError as error:
        error.close()  # it is also the response, and Python 3.14 warns if it is left open
        raise


def _sync_calls(base: str) -> None:
    """Make the sync calls, one after the other: one recovers, one must wait, two are given up."""
    for title, method, path, fields in _CALLS:
        _print(title, "bold")
        fetch = retry(listeners=[_reporter()], base=0.4, name=method, **fields)(_fetch)
        try:
            answer = fetch(base + path, method)
        except OSError as error:
            _print(f"   {type(error).__name__}: {error}", "red")
            for note in getattr(error, "__notes__", ()):
                _print("   " + note.replace("\n", "\n   "))
            _print("")
        else:
            _print(f"   answer: {answer}\n", "green")


async def _async_fetch(port: int, path: str) -> str:
    """Return the body of a response, over a plain socket: the standard library has no async client."""
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
    """Make two async calls at once and return their answers."""

    async def call(path: str) -> str:
        fetch = retry(listeners=[_reporter(path)], base=0.4, timeout=0.3, name=path)(_async_fetch)
        return await fetch(port, path)

    return list(await asyncio.gather(call("/slow"), call("/shaky")))


# The output


def _reporter(name: str = "") -> Callable[[Event], None]:
    """Return a listener that prints the events of a call, with the seconds since it began.

    ``name`` tells the lines of calls apart that run at once.
    """
    began = time.monotonic()
    name = name and name + ", "

    def report(event: Event) -> None:
        at = f"   {time.monotonic() - began:4.2f} s  {name}attempt {event.attempt}"
        try:
            if isinstance(event, Retrying):
                _print(f"{at} failed: {event.error_type}: {event.error_message}", "red")
                _print(f"           {event.cause}; next attempt in {event.delay or 0.0:.2f} s", "yellow")
            elif isinstance(event, Recovered):
                _print(f"{at} succeeded", "green")
        except OSError:
            pass  # the reader closed the pipe: the next print outside of a listener ends the demo

    return report


def _print(text: str, style: str | None = None) -> None:
    """Print at once, into a pipe too: the reader is to see the waits."""
    print_text(wrap_text(text), style, flush=True)


def _chart(title: str, backoff: Backoff) -> str:
    """Return a chart of the retries over time, if all clients fail at 0 s and no retry succeeds."""
    counts = _arrivals(backoff)
    line = sparkline(counts, encoding=getattr(sys.stdout, "encoding", None))
    axis = "".join([f"{second:<8}" for second in range(_COLUMNS // 8 + 1)]).rstrip()
    head = f"{title} ({name_of(backoff)}): at most {max(counts)} at once"
    return f"   {head}\n   {line.rstrip()}\n   {axis} s"


def _arrivals(backoff: Backoff) -> list[int]:
    """Count the retries that arrive within each column of the chart."""
    rng, counts = Random(_SEED), [0] * _COLUMNS
    for _ in range(_CLIENTS):
        for moment in accumulate(delays(backoff, attempts=_ATTEMPTS, rng=rng)):
            counts[int(moment / _WIDTH)] += 1
    return counts
