"""Read a failure from a text, for ``redouble explain``: a status, an exception class, or a traceback.

The result is an exception that looks to the classifier as the real one would. No code of its class runs: only
the builtin base class makes the object. Importing the module of a class does run code, so a text that was not
written by the user must not cause it.
"""

from __future__ import annotations

import builtins
import re
from contextlib import suppress
from difflib import get_close_matches
from types import SimpleNamespace

from ..classify import class_info
from .output import CommandError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

_METHODS = ("GET", "HEAD", "PUT", "DELETE", "OPTIONS", "TRACE", "POST", "PATCH")
# "503", "HTTP/1.1 503 Service Unavailable"
_RESPONSE = re.compile(r"(?:HTTP(?:/[\d.]+)? +)?([1-5]\d\d)(?: [^:]*)?$")
# "TimeoutError", "httpx.ReadTimeout: text"
_ERROR = re.compile(r"([^\W\d]\w*(?:\.[^\W\d]\w*)*)(?::(?: +(.*))?)?$", re.DOTALL)
_ERRNO = re.compile(r"\[Errno (-?\d{1,9})\] *(.*)", re.DOTALL)
# A status or a code in the text of an error, as client libraries write them.
_STATUS_IN_TEXT = re.compile(
    r"(?:^|HTTP Error |Error code: |(?:Client|Server) error '|status(?: code)?:? )([45]\d\d)\b", re.IGNORECASE
)
_CODE_IN_TEXT = re.compile(r"An error occurred \((\w+)\)")

# Modules of Python whose errors are judged better by their classes than by their names. A text of unknown
# origin may name them: importing them runs nothing that it could choose.
_STDLIB = {
    "asyncio", "concurrent", "ftplib", "http", "imaplib", "multiprocessing", "poplib", "queue", "smtplib",
    "socket", "sqlite3", "ssl", "subprocess", "urllib", "xmlrpc",
}  # fmt: skip

_BEGIN = "Traceback (most recent call last):"
_CAUSE = "The above exception was the direct cause of the following exception:"
_CONTEXT = "During handling of the above exception, another exception occurred:"
NOTE = "redouble: "


class Failed:
    """A failure that was read: the error, and what is printed about it.

    - ``title``: the failure in one line, as it was given.
    - ``method``: the HTTP method, if one was given.
    - ``remark``: a sentence about how it was read, such as that its class is not installed.
    - ``by_name``: only the name of its class is known.
    - ``note``: the first line of the note that redouble has added to it, if it was retried already.
    """

    def __init__(self, title: str, error: BaseException, method: str = "", remark: str = "") -> None:
        self.title, self.error = f"{method} {title}".strip(), error
        self.method, self.remark, self.by_name, self.note = method, remark, bool(remark), ""


class HTTPResponse(Exception):  # noqa: N818 - stands for a response
    """A response with a status that was given as a number."""


class Reader:
    """Reads failures.

    ``headers`` are those of the response and of the request. ``imports`` is whether classes are imported;
    ``None`` is for texts of unknown origin: only classes of `_STDLIB` are, and a remark names the others.

    >>> read = Reader({"Retry-After": "7"}, imports=False).read
    >>> read("POST 503").error.response.headers
    {'Retry-After': '7'}
    >>> read("ConnectionResetError: [Errno 104] reset by peer").error.errno
    104
    >>> read("12:00 INFO started\\nTimeoutError: slow").error
    TimeoutError('slow')
    """

    def __init__(self, headers: dict[str, str], imports: bool | None) -> None:
        self._headers, self._imports = headers, imports

    def read(self, text: str) -> Failed:
        """Return the failure that a text describes; raise `CommandError` with status 2 if there is none."""
        first, _, rest = text.strip().partition(" ")
        method, said = (first.upper(), rest.strip()) if first.upper() in _METHODS else ("", text.strip())
        status = _RESPONSE.match(said)
        if status is not None:
            error = HTTPResponse(f"{method} {status[1]}".strip())
            _respond(error, int(status[1]), self._headers, method)
            return Failed(status[1], error, method)
        if "\n" not in said and _ERROR.match(said):
            return self._error(said, self._headers, method)
        chain = _chain(text)
        if not chain:
            raise CommandError(
                f"no failure recognised in {said[:60]!r}: give a status, a class such as TimeoutError or "
                "httpx.ReadTimeout, or a Python traceback"
            )
        return self._last_of(chain)

    def _last_of(self, chain: Sequence[tuple[str, str, str]]) -> Failed:
        """Return the last error of a chain, with the earlier ones as its cause or context.

        Only the last one has the headers.
        """
        found: Any = None
        for nth, (how, line, _) in enumerate(chain, 1):
            before = None if found is None else found.error
            found = self._error(line, self._headers if nth == len(chain) else {})
            _set(found.error, "__cause__" if how == _CAUSE else "__context__", before)
        last: Failed = found
        last.note = next((note for note in chain[-1][2].split("\n") if note.startswith(NOTE)), "")
        return last

    def _error(self, line: str, headers: dict[str, str], method: str = "") -> Failed:
        """Return the error that a line such as ``"httpx.ReadTimeout: text"`` names.

        A status or a code in the text of an error that is not builtin becomes that of a response.
        """
        named: Any = _ERROR.match(line)
        name, text = named[1], named[2] or ""
        cls, remark = self._class(name)
        error = _blank(cls, text)
        searched = "" if cls.__module__ == "builtins" else text
        code, status = _CODE_IN_TEXT.search(searched), _STATUS_IN_TEXT.search(searched)
        if code is not None:
            _set(error, "response", {"Error": {"Code": code[1]}, "ResponseMetadata": {}})
        else:
            _respond(error, None if status is None else int(status[1]), headers, method)
        return Failed(f"{name}: {text}" if text else name, error, method, remark)

    def _class(self, name: str) -> tuple[type[BaseException], str]:
        """Return the class of a name, imported or made up by that name, and a remark on a made-up one.

        Raise `CommandError` with status 2 if the name is that of something else, such as a function.
        """
        module, _, last = name.rpartition(".")
        known = getattr(builtins, name.removeprefix("builtins."), None)
        remark, imports = "", self._imports
        if imports is None:
            imports = module.partition(".")[0] in _STDLIB
        if known is None and module and module != "__main__" and imports:
            known, remark = _import(name)
        elif known is None and not module:
            near = get_close_matches(name, [known for known in dir(builtins) if known.endswith("Error")], n=1)
            meant = f": did you mean {near[0]}?" if near else "."
            remark = f"{name} is not a builtin class{meant} Write others with their module: package.{name}."
        if isinstance(known, type) and issubclass(known, BaseException):
            return known, ""
        if known is not None:
            raise CommandError(f"{name} is not an exception class")
        made: Any = type(last, (Exception,), {"__module__": module or "__main__"})
        if self._imports is None and not remark and class_info(made).open:
            remark = (
                f"{name} was judged by its name: classes in a text are not imported. Use --import for that."
            )
        return made, remark


def _import(name: str) -> tuple[Any, str]:
    """Import an object by its dotted name; return it and "", or ``None`` and why it cannot be imported."""
    from pkgutil import resolve_name

    try:
        return resolve_name(name), ""
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the module may raise anything
        return None, (
            f"{name} cannot be imported here ({type(error).__name__}: {error}), so only its name was "
            "judged. Run this in the environment of your program."
        )


def _set(error: BaseException, name: str, value: object) -> None:
    """Set an attribute of an error, also of a frozen class; do nothing if it cannot be set."""
    with suppress(Exception):
        BaseException.__setattr__(error, name, value)


def _respond(error: Any, status: int | None, headers: dict[str, str], method: str) -> None:
    """Attach a response and a request, as client libraries do. Each header may belong to either."""
    if status is not None or headers:
        _set(error, "response", SimpleNamespace(status_code=status, headers=headers))
    if method:
        _set(error, "request", SimpleNamespace(method=method, url="http://localhost/", headers=headers))


def _blank(cls: type[BaseException], text: str) -> Any:
    """Return an instance with this text as its argument; only the builtin base class makes it.

    ``[Errno 104] text`` of an `OSError` becomes its errno. Raise `CommandError` with status 2 for a group,
    whose errors are not in its text.
    """
    base: Any = next(base for base in cls.__mro__ if base.__module__ == "builtins")
    if issubclass(base, BaseExceptionGroup):
        raise CommandError(
            f"{cls.__name__} is a group: it is retried if every error in it is. Explain those errors"
        )
    number = _ERRNO.match(text)
    words: tuple[Any, ...] = (text,) if text else ()
    if number is not None and issubclass(base, OSError):
        words = int(number[1]), number[2]
        if cls is OSError:  # the errno selects the class, as in the operating system's own errors
            return OSError(*words)
    error: Any = base.__new__(cls, *words)
    if issubclass(base, OSError):
        OSError.__init__(error, *words)  # a subclass with an __init__ has its errno set here
    else:
        _set(error, "args", words)
    return error


def _chain(text: str) -> list[tuple[str, str, str]]:
    """Return the errors of the last chain of tracebacks in a text, the first cause first.

    Each is how it follows the error before it (`_CAUSE`, `_CONTEXT` or ""), its line, and the text after the
    line, with its notes. Of a text without a traceback the last line that may name an error is taken.
    """
    chain: list[tuple[str, str, str]] = []
    between = ""
    before, *blocks = text.replace("\r\n", "\n").split(_BEGIN)
    if not blocks:
        lines = [line.strip() for line in before.split("\n") if _ERROR.match(line.strip())]
        return [("", lines[-1], "")] if lines else []
    for block in blocks:
        lines = block.strip("\n").split("\n")
        at = next((nth for nth, line in enumerate(lines) if line and not line[0].isspace()), None)
        if at is None or not _ERROR.match(lines[at]):
            between = ""
            continue
        rest = "\n".join(lines[at + 1 :])
        if not between:
            chain.clear()
        chain.append((between, lines[at], rest))
        between = next((words for words in (_CAUSE, _CONTEXT) if words in rest), "")
    return chain
