"""``redouble demo``: call a flaky server on loopback, and draw the retries of many clients.

The code that is printed is the code that runs: the source of `fetch`, and decorators made of the very fields
that are passed to `retry`. Only the listener that prints the attempts is left out.
"""

from __future__ import annotations

import asyncio
import re
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from inspect import getsource
from itertools import accumulate, chain, repeat
from random import Random
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from .._base.callables import name_of
from .._engine.decorate import retry
from ..backoff import delays, exponential, full_jitter
from ..events import Event, Recovered, Retrying
from .charts import sparkline
from .output import command_parser, print_text, text_width, wrap_text

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

# The sync calls: title, method, path, fields of the policy. And the fields of the async calls.
_CALLS: list[tuple[str, str, str, dict[str, Any]]] = [
    ("1. A GET gets a 503, then a dropped connection, then an answer:", "GET", "/flaky", {"base": 0.4}),
    ("2. The server asks for a wait of 0.7 s (Retry-After):", "GET", "/busy", {"base": 0.4}),
    ("3. A POST that gets a 500 may have acted, so it is not retried:", "POST", "/orders", {"base": 0.4}),
    (
        "4. The server stays down; the call has 1 s in all:",
        "GET",
        "/down",
        {"base": 0.4, "attempts": None, "deadline": 1.0},
    ),
]
_ASYNC: dict[str, Any] = {"base": 0.4, "timeout": 0.3}

_EPILOG = """exit status:
  0    success
  130  interrupted (Ctrl-C)"""

# The simulated clients, attempts, seed; and the seconds that the chart shows.
_CLIENTS, _ATTEMPTS, _SEED, _SECONDS = 300, 4, 1, 7.5


def demo(arguments: Sequence[str]) -> None:
    """Start the server, call it, and print the code, each attempt when it happens, and two charts.

    It takes a few seconds. The server runs in a thread, and is stopped at the end, after an interrupt too.
    """
    text = "Call a flaky server on loopback and show the code, the attempts and the waits."
    parser = command_parser("demo", text, _EPILOG)
    parser.parse_args(arguments)
    source = _source(fetch)  # read first: an interrupt would leave the file open
    steps = {path: chain(steps, repeat(steps[-1])) for path, steps in _SCRIPT.items()}
    handler = type("Handler", (_Handler,), {"steps": steps})
    with _Server(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            _print("A small server on loopback fails on purpose. This function calls it, with @retry:\n")
            _print_code(source)
            _print("")
            _sync_calls(f"http://127.0.0.1:{server.server_port}")
            _print("5. Two async calls at once: one hangs and times out, one is dropped:", "bold")
            _print_code(_decorator(_ASYNC) + "\nasync def fetch(path): ...")
            for answer in asyncio.run(_async_calls(server.server_port)):
                _print(f"   answer: {answer}", "green")
            _print("\n6. Why jitter: 300 clients fail at the same instant, and retry three times:", "bold")
            _print(_chart("without jitter", exponential))
            _print("\n" + _chart("with jitter", full_jitter) + "\n")
        finally:
            server.shutdown()
            thread.join()
    program = parser.prog.removesuffix(" demo")
    _print(f"Next: {program} explain 503, or in Python: help(redouble.retry)")
    print_text("\n".join(_documentation()))


def _documentation() -> list[str]:
    """Return lines with the address of the documentation, from the metadata of the installed package.

    Without metadata, as in a checkout that is not installed, name the help of Python instead.
    """
    from importlib.metadata import PackageNotFoundError, metadata

    try:
        urls = dict([line.split(", ", 1) for line in metadata("redouble").get_all("Project-URL") or []])
        return ["Documentation:", urls["Documentation"]]
    except (PackageNotFoundError, KeyError):
        return ["Documentation: help(redouble)"]


# The server


class _Handler(BaseHTTPRequestHandler):
    """Answer as `_SCRIPT` says. A connection that hangs is closed after the timeout of the client.

    ``steps`` has the answers that are left, by path; it is shared by all connections of one demo.
    """

    steps: dict[str, Iterator[Any]]

    def do_GET(self) -> None:
        """Take the next step of the path: answer, hang, or close the connection without an answer."""
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


def fetch(url: str, method: str) -> Any:
    request = Request(url, method=method)  # noqa: S310 - loopback
    with urlopen(request, timeout=2) as response:  # noqa: S310
        return response.read().decode().strip()


def _sync_calls(base: str) -> None:
    """Make the sync calls, one after the other: one recovers, one must wait, two are given up.

    Print title, decorator, attempts, and the answer, or the error with the note that redouble has added.
    """
    for title, method, path, fields in _CALLS:
        _print(title, "bold")
        _print_code(_decorator(fields))
        try:
            answer = retry(listeners=[_reporter()], **fields)(fetch)(base + path, method)
        except OSError as error:
            _close(error)
            _print(f"   {type(error).__name__}: {error}", "red")
            for note in getattr(error, "__notes__", ()):
                _print("   " + note.replace("\n", "\n   "))
            _print("")
        else:
            _print(f"   answer: {answer}\n", "green")


async def _async_fetch(port: int, path: str) -> str:
    """Return the body of a response, over a plain socket: the standard library has no async client.

    Raise ``ConnectionResetError`` if the server closes the connection without a response.
    """
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
    """Make two async calls at once and return their answers; the first is slower than its timeout."""

    async def call(path: str) -> str:
        return await retry(listeners=[_reporter(path)], **_ASYNC)(_async_fetch)(port, path)

    return list(await asyncio.gather(call("/slow"), call("/shaky")))


# The output


def _reporter(name: str = "") -> Callable[[Event], None]:
    """Return a listener that prints the events of a call, with the seconds since it began.

    ``name`` tells the lines of calls apart that run at once. A failure has two lines: the error, and the
    cause with the wait. A call that is given up prints nothing here: its error is printed with its note.
    """
    began = time.monotonic()
    name = name and name + ", "

    def report(event: Event) -> None:
        at = f"   {time.monotonic() - began:4.2f} s  {name}attempt {event.attempt}"
        try:
            if isinstance(event, Retrying):
                _close(event.error)
                _print(f"{at} failed: {event.error_type}: {event.error_message}", "red")
                _print(f"           {event.cause}; next attempt in {event.delay or 0.0:.2f} s", "yellow")
            elif isinstance(event, Recovered):
                _print(f"{at} succeeded", "green")
        except OSError:
            pass  # the reader closed the pipe: the next print outside of a listener ends the demo

    return report


def _close(error: object) -> None:
    """Close an error that is also a response: Python 3.14 warns if it is left open."""
    if isinstance(error, HTTPError):
        error.close()


def _print(text: str, style: str | None = None) -> None:
    """Print at once, into a pipe too: the reader is to see the waits."""
    print_text(wrap_text(text, text_width() - 1), style, flush=True)


def _source(function: Callable[..., Any]) -> str:
    """Return the source of a function, without comments for linters; its name alone if it is missing."""
    try:
        return re.sub(" +# noqa.*", "", getsource(function))
    except OSError:
        return f"def {name_of(function)}(...): ..."


def _decorator(fields: dict[str, Any]) -> str:
    """Return the decorator with these fields, as code.

    >>> _decorator({"base": 0.4, "attempts": None})
    '@retry(base=0.4, attempts=None)'
    """
    return f"@retry({', '.join([f'{name}={value!r}' for name, value in fields.items()])})"


def _print_code(code: str) -> None:
    """Print code, indented and not wrapped."""
    print_text("   " + code.strip().replace("\n", "\n   "), "dim", flush=True)


def _chart(title: str, backoff: Backoff) -> str:
    """Return a chart of the retries over time, if all clients fail at 0 s and no retry succeeds.

    A column is an eighth of a second, or a quarter on a narrow terminal.
    """
    per_second = 8 if text_width() > 66 else 4
    counts = _arrivals(backoff, per_second)
    line = sparkline(counts, encoding=getattr(sys.stdout, "encoding", None))
    axis = "".join([f"{second:<{per_second}}" for second in range(int(_SECONDS) + 1)]).rstrip()
    head = f"{title}, delays({name_of(backoff)}, attempts={_ATTEMPTS}): at most {max(counts)} at once"
    return f"   {head}\n   {line.rstrip()}\n   {axis} s"


def _arrivals(backoff: Backoff, per_second: int = 8) -> list[int]:
    """Count the retries that arrive within each column of the chart. The same seed gives the same counts."""
    rng, counts = Random(_SEED), [0] * int(_SECONDS * per_second)
    for _ in range(_CLIENTS):
        for moment in accumulate(delays(backoff, attempts=_ATTEMPTS, rng=rng)):
            counts[int(moment * per_second)] += 1
    return counts
