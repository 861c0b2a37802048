"""``redouble explain``: print whether a failure is retried, why, after which waits, and how to change that.

A failure is given as an HTTP status, as an exception class by its name, or as a traceback on stdin. An
exception is made of it without running its ``__init__``, and the engine's ``decide`` is asked about it.
"""

from __future__ import annotations

import builtins
import re
import sys
from argparse import BooleanOptionalAction
from math import ceil
from textwrap import wrap
from types import SimpleNamespace

from .._base.checks import INF
from .._engine.decide import Progress, Stop, decide
from .._policy.describe import waits_at
from ..classify import Cause, class_info, verdict
from ..classify import explain as evidence_of
from ..events import Reason
from .options import add_policy_flags, policy_of
from .output import (
    DONE,
    INCOMPLETE,
    USAGE,
    CommandError,
    command_parser,
    print_text,
    text_width,
    to_json,
    wrap_text,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from ..classify import Verdict
    from ..policy import Policy

_EPILOG = """examples:
  redouble explain 503
  redouble explain "POST 503" --header "Retry-After: 7"
  redouble explain POST httpx.ReadTimeout
  redouble explain psycopg.errors.DeadlockDetected
  redouble explain "ConnectionResetError: [Errno 104] reset by peer"
  redouble explain < traceback.txt

A class that is named on the command line is imported to judge it, so run this in the environment of your \
program. Nothing is called. A class in a text on stdin is judged by its name, unless it is one of Python's \
own or --import is given: a text must not choose the code that runs.

exit status:
  0    the failure is retried
  1    the failure is not retried
  2    wrong usage, or no failure was recognised
  130  interrupted (Ctrl-C)"""

_METHODS = ("GET", "HEAD", "PUT", "DELETE", "OPTIONS", "TRACE", "POST", "PATCH")
_REQUEST = re.compile(r"(?:HTTP(?:/[\d.]+)? +)?([1-5]\d\d)(?: [^:]*)?$")
_ERROR = re.compile(r"([^\W\d]\w*(?:\.[^\W\d]\w*)*)(?::(?: +(.*))?)?$", re.DOTALL)
_ERRNO = re.compile(r"\[Errno (-?\d+)\] *(.*)", re.DOTALL)
# A status in the text of an error, as client libraries write it.
_STATUS_IN_TEXT = re.compile(
    r"(?:^|HTTP Error |Error code: |(?:Client|Server) error '|status(?: code)?:? )([45]\d\d)\b", re.IGNORECASE
)
_CODE_IN_TEXT = re.compile(r"An error occurred \((\w+)\)")

# Modules of Python whose errors are judged better by their classes than by their names. A text on stdin may
# name them: importing them runs nothing that it could choose.
_STDLIB = {
    "asyncio", "concurrent", "ftplib", "http", "imaplib", "multiprocessing", "poplib", "queue", "smtplib",
    "socket", "sqlite3", "ssl", "subprocess", "urllib", "xmlrpc",
}  # fmt: skip

_BEGIN = "Traceback (most recent call last):"
_CAUSE = "The above exception was the direct cause of the following exception:"
_CONTEXT = "During handling of the above exception, another exception occurred:"
_NOTE = "redouble: "

# Waits that are listed at most, and the columns of the labels.
_LISTED, _LABEL = 6, 10

_MEANINGS = {
    Cause.connection: "no connection, so nothing was sent",
    Cause.disconnected: "the connection was lost",
    Cause.timeout: "no response in time",
    Cause.rate_limited: "too many requests",
    Cause.unavailable: "the service is unavailable for now",
    Cause.server_error: "the server failed",
    Cause.conflict: "a conflict with another transaction",
    Cause.unauthorized: "the credentials were rejected",
    Cause.permanent: "a permanent failure",
    Cause.unknown: "nothing is known about it",
}


class Failed:
    """A failure to explain: its title, the error, and remarks on how it was read."""

    def __init__(self, title: str, error: BaseException, method: str = "") -> None:
        self.title, self.error, self.method = title, error, method
        self.remarks: list[str] = []
        self.note = ""


class HTTPResponse(Exception):  # noqa: N818 - stands for a response
    """A response with a status that was given as a number."""


def explain(arguments: Sequence[str]) -> int:
    """Print whether the failure is retried; return 0 if it is, and 1 if it is not."""
    parser = command_parser("explain", "Show whether a failure is retried, why, and what to change.", _EPILOG)
    parser.add_argument("failure", nargs="*", metavar="FAILURE",
                        help='a status, "POST 503", or an error class and text; none: stdin')  # fmt: skip
    parser.add_argument("--header", action="append", default=[], metavar="H",
                        help='of response or request, such as "Retry-After: 7"; may be repeated')  # fmt: skip
    parser.add_argument("--import", dest="imports", action=BooleanOptionalAction,
                        help="import a class, or judge it by its name alone")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="as a JSON object on one line")
    add_policy_flags(parser)
    options: Any = parser.parse_args(arguments)
    policy = policy_of(options, status=USAGE)
    headers = dict(_header(text) for text in options.header)
    text = " ".join(options.failure).strip()
    imports: bool | None = options.imports
    if text in ("", "-"):
        text = _stdin()
    elif imports is None:
        imports = True  # the user has named the class, not somebody who wrote a text
    found = _read(text, headers, imports)
    answer = _answer(policy, found)
    if options.json:
        print_text(to_json(answer))
    else:
        _print(answer)
    return DONE if answer["retried"] else INCOMPLETE


# Reading the failure


def _header(text: str) -> tuple[str, str]:
    """Return name and value of a header."""
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise CommandError(f'--header must be written as "Name: value", got {text!r}', USAGE)
    return name.strip(), value.strip()


def _stdin() -> str:
    """Return the text on stdin; refuse to wait for somebody to type a traceback."""
    text = "" if sys.stdin is None or sys.stdin.isatty() else sys.stdin.read()
    if not text.strip():
        raise CommandError(
            'no failure was given: name one, such as "explain 503", or send a traceback on stdin', USAGE
        )
    return text


def _read(text: str, headers: dict[str, str], imports: bool | None) -> Failed:
    """Return the failure that a text describes: a status, a class, or a traceback.

    ``imports`` is whether classes are imported; ``None``: only those of `_STDLIB`, and a remark says so.
    """
    first, _, rest = text.strip().partition(" ")
    method, said = (first.upper(), rest.strip()) if first.upper() in _METHODS else ("", text.strip())
    status = _REQUEST.match(said)
    if status is not None:
        number, title = int(status[1]), f"{method} {status[1]}".strip()
        found = Failed(title, HTTPResponse(title), method)
        _respond(found.error, number, headers, method)
        return found
    named = _ERROR.match(said) if "\n" not in said else None
    if named is not None:
        found = _made(named[1], named[2] or "", headers, method, imports)
        found.title = f"{method} {found.title}".strip()
        return found
    chain = _chain(text)
    if not chain:
        raise CommandError(
            f"no failure recognised in {said[:60]!r}: give a status, a class such as TimeoutError or "
            "httpx.ReadTimeout, or a Python traceback",
            USAGE,
        )
    return _from_traceback(chain, headers, imports)


def _respond(error: Any, status: int | None, headers: dict[str, str], method: str) -> None:
    """Attach a response and a request, as client libraries do. Each header may belong to either."""
    if status is not None or headers:
        error.response = SimpleNamespace(status_code=status, headers=headers)
    if method:
        error.request = SimpleNamespace(method=method, url="http://localhost/", headers=headers)


def _made(name: str, text: str, headers: dict[str, str], method: str, imports: bool | None) -> Failed:
    """Return an error of a class with this name, made without running code of the class.

    A status in the text, as client libraries write it, becomes the status of a response.
    """
    cls, remark = _class(name, imports)
    error = _blank(cls, text)
    found = Failed(name if not text else f"{name}: {text}", error, method)
    if remark:
        found.remarks.append(remark)
    status: int | None = None
    if cls.__module__ != "builtins":
        in_text = _STATUS_IN_TEXT.search(text)
        status = int(in_text[1]) if in_text is not None else None
        coded = _CODE_IN_TEXT.search(text)
        if coded is not None:
            error.response = {"Error": {"Code": coded[1]}, "ResponseMetadata": {}}
            return found
    _respond(error, status, headers, method)
    return found


def _class(name: str, imports: bool | None) -> tuple[type[BaseException], str]:
    """Return the class of a name, imported or made up by that name, and a remark on a made-up one.

    Raise `CommandError` if the name is that of something else, such as a function.
    """
    module, _, last = name.rpartition(".")
    known = getattr(builtins, name.removeprefix("builtins."), None)
    remark = ""
    may_import = module.partition(".")[0] in _STDLIB if imports is None else imports
    if known is None and module and module != "__main__" and may_import:
        from pkgutil import resolve_name

        try:
            known = resolve_name(name)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the module may raise anything
            remark = (
                f"{name} cannot be imported here ({type(error).__name__}: {error}), so only its name was "
                "judged. Run this in the environment of your program."
            )
    elif known is None and not module:
        remark = f"{name} is not a builtin class. Write it with its module, such as package.{name}."
    if isinstance(known, type) and issubclass(known, BaseException):
        return known, ""
    if known is not None:
        raise CommandError(f"{name} is not an exception class", USAGE)
    made: Any = type(last, (Exception,), {"__module__": module or "__main__"})
    if imports is None and not remark and class_info(made).open:
        remark = f"{name} was judged by its name: classes in a text are not imported. Use --import for that."
    return made, remark


def _blank(cls: type[BaseException], text: str) -> Any:
    """Return an instance with this text as its argument; only the builtin base class makes it."""
    base: Any = next(base for base in cls.__mro__ if base.__module__ == "builtins")
    if issubclass(base, BaseExceptionGroup):
        raise CommandError(
            f"{cls.__name__} is a group: it is retried if every error in it is. Explain those errors", USAGE
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
        error.args = words
    return error


# Tracebacks


def _chain(text: str) -> list[tuple[str, str, str]]:
    """Return the errors of the last chain in a text: how each follows the one before, its line, the rest."""
    chain: list[tuple[str, str, str]] = []
    between = ""
    before, *blocks = text.replace("\r\n", "\n").split(_BEGIN)
    if not blocks:  # the end of a traceback, or a line of a log
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


def _from_traceback(
    chain: Sequence[tuple[str, str, str]], headers: dict[str, str], imports: bool | None
) -> Failed:
    """Return the last error of a chain, with the earlier ones as its cause or context."""
    *earlier, (how, line, rest) = chain
    named: Any = _ERROR.match(line)
    found = _made(named[1], named[2] or "", headers, "", imports)
    if earlier:
        before = _from_traceback(earlier, {}, imports).error
        if how == _CAUSE:
            found.error.__cause__ = before
        else:
            found.error.__context__ = before
    found.note = next((note for note in rest.split("\n") if note.startswith(_NOTE)), "")
    return found


# The answer


def _answer(policy: Policy, found: Failed) -> dict[str, Any]:
    """Return what the policy does about a failure, ready for JSON."""
    error: Any = found.error
    judged = verdict(error)
    decision = _decide(policy, error)
    stopped = isinstance(decision, Stop)
    final = (decision.verdict if stopped else None) or judged
    remarks = list(found.remarks)
    if found.note:
        remarks.append(f"redouble has retried it already: {found.note.removeprefix(_NOTE)}.")
    if not stopped and not found.method and not final.unprocessed and _is_http(error):
        remarks.append("A POST or PATCH without an Idempotency-Key is not retried: it might act twice.")
    return {
        "failure": found.title,
        "retried": not stopped,
        "why": _why(decision, final),
        "cause": str(final.cause),
        "meaning": _MEANINGS[final.cause],
        "evidence": [] if type(error) is HTTPResponse else evidence_of(error).split("\n")[1:],
        "retry_after": final.retry_after,
        "waits": [] if isinstance(decision, Stop) else _waits(policy, final.retry_after),
        "remarks": remarks,
        "change": [{"to": to, "write": code} for to, code in _changes(policy, found, decision)],
    }


def _decide(policy: Policy, error: Any) -> Any:
    """Return the decision after a first attempt that failed with this error."""
    if not isinstance(error, Exception):  # an interrupt, which no policy retries
        return Stop(Reason.not_retryable, "", None)
    progress = Progress(1, ends=policy.deadline, give_up_at=policy.give_up_after)
    progress.limit = f"the deadline of {policy.deadline:g} s" if policy.deadline is not None else ""
    return decide(policy, progress, error, 0.0)


def _why(decision: Any, judged: Verdict) -> str:
    """Return the reason of a decision, without the advice that `_changes` gives."""
    if isinstance(decision, Stop) and decision.reason is not Reason.not_retryable:
        return decision.why.partition(";")[0]
    return judged.reason


def _is_http(error: BaseException) -> bool:
    """Return whether a failure may be that of an HTTP request."""
    return hasattr(error, "response") or class_info(type(error)).installed


def _waits(policy: Policy, hint: float | None) -> list[dict[str, float]]:
    """Return the shortest and the longest wait before each attempt, if it always fails in this way."""
    attempts = INF if policy.attempts is None else policy.attempts
    count = int(min(attempts, _LISTED + 1))
    schedule: Any = (policy.backoff, count, policy.base, policy.cap, policy.floor)
    limit = min([end for end in (policy.deadline, policy.give_up_after) if end is not None], default=INF)
    found: list[dict[str, float]] = []
    total = 0.0
    for nth, (low, high) in enumerate(zip(waits_at(0.0, *schedule), waits_at(1.0, *schedule), strict=True)):
        if hint:
            low, high = max(low, hint), max(high, hint + policy.base)
        total += low
        if total >= limit:
            break
        found.append({"attempt": nth + 2, "shortest": low, "longest": high})
    return found


def _changes(policy: Policy, found: Failed, decision: Any) -> Iterator[tuple[str, str]]:
    """Yield how to change the answer: the aim, and the code to write."""
    error = found.error
    judged = verdict(error)
    cls: type[Any] = type(error)
    status = judged.status
    name = cls.__qualname__
    listed = name if cls.__module__ == "builtins" else f'"{cls.__module__}.{name}"'
    key = name if status is None else str(status)
    reason = decision.reason if isinstance(decision, Stop) else None
    if not isinstance(error, Exception):
        return
    if reason is Reason.not_idempotent:
        yield "retry a call that may be repeated", "@retry(idempotent=True)"
        how = "send an Idempotency-Key with headers=outgoing_headers(), if the server supports it"
        yield how, "@retry(idempotency_key=True)"
    elif reason is Reason.retry_after:
        yield "wait that long", f"@retry(max_retry_after={ceil(judged.retry_after or 0.0)})"
    elif reason in (Reason.deadline, Reason.give_up_after):
        field = "deadline" if reason is Reason.deadline else "give_up_after"
        yield (
            "allow more time",
            f"@retry({field}={ceil(2 * (getattr(policy, field) + (judged.retry_after or 0)))})",
        )
    elif reason is Reason.attempts:
        yield "allow retries", "@retry(attempts=4)"
    elif reason is not None and judged.cause is Cause.unauthorized:
        yield (
            "refresh the credentials and retry",
            f"@retry(rules={{{key}: Rule(attempts=2, recover=refresh)}})",
        )
    elif reason is not None:
        yield "retry it as well", f"@retry(rules={{{key}: Rule(attempts=3)}})"
        if status is not None:
            yield (
                "retry it like other statuses",
                f"@retry(on=Classifier(statuses=RETRYABLE_STATUSES | {{{status}}}))",
            )
        else:
            yield "retry it and nothing else", f"@retry(on={name})"
            yield "retry it like other transient errors", f"@retry(on=Classifier(transient=[{listed}]))"
    else:
        yield "change its waits", f"@retry(rules={{{key}: Rule(attempts=2, base=5)}})"
        if status is not None:
            yield "stop retrying it", f"@retry(on=Classifier(statuses=RETRYABLE_STATUSES - {{{status}}}))"
        else:
            yield "stop retrying it", f"@retry(on=Classifier(permanent=[{listed}]))"


# Printing


def _print(answer: dict[str, Any]) -> None:
    """Print the answer, in lines that fit the terminal from 40 to 80 columns."""
    width = text_width() - 1
    print_text(wrap_text(answer["failure"], width), "bold")
    if answer["retried"]:
        print_text("Retried.", "green")
    else:
        print_text("Not retried.", "red")
    print_text("")
    _labelled("Why", [answer["why"]], width)
    _labelled("Cause", [f"{answer['cause']} ({answer['meaning']})"], width)
    _labelled("Evidence", answer["evidence"], width)
    lines = [f"before attempt {wait['attempt']}: {_range(wait)}" for wait in answer["waits"][:_LISTED]]
    if answer["waits"] and answer["retry_after"]:
        lines.append(f"never less than the server asks for: {answer['retry_after']:g} s")
    _labelled("Waits", lines, width)
    for nth, remark in enumerate(answer["remarks"]):
        _labelled("" if nth else "Note", [remark], width)
    for change in answer["change"]:
        print_text(wrap_text(f"\nTo {change['to']}:", width))
        print_text(_code(change["write"], width), "bold")
    if answer["change"]:
        print_text("\n" + wrap_text(_imports(answer["change"]), width), "dim")


def _labelled(label: str, lines: Sequence[str], width: int) -> None:
    """Print lines beside a label."""
    for nth, line in enumerate(lines):
        head = "" if nth else label
        deeper = " " * (len(line) - len(line.lstrip()))
        shown = wrap(line, width - _LABEL, subsequent_indent=deeper, break_on_hyphens=False)
        print_text(f"{head:{_LABEL}}" + f"\n{'':{_LABEL}}".join(shown))


def _range(wait: dict[str, float]) -> str:
    """Return a wait in words."""
    low, high = wait["shortest"], wait["longest"]
    return f"{low:.3g} s" if low == high else f"{low:.3g} to {high:.3g} s"


def _code(code: str, width: int) -> str:
    """Return a line of code, broken after its brackets if it is too long."""
    if len(code) + 2 <= width:
        return f"  {code}"
    *opened, last = code.split("(")
    lines = [f"{part}(" for part in opened] + [last]
    return "\n".join([f"{'':{nth + 1}}{line}" for nth, line in enumerate(lines)])


# The names in the code of `_changes`, by the module that has them.
_NAMES = {
    "redouble": ("Rule", "retry"),
    "redouble.classify": ("RETRYABLE_STATUSES", "Classifier"),
    "redouble.context": ("outgoing_headers",),
}


def _imports(changes: Sequence[dict[str, str]]) -> str:
    """Return where the names in the code are imported from."""
    code = " ".join([text for change in changes for text in change.values()])
    used = {module: [name for name in names if name in code] for module, names in _NAMES.items()}
    return "\n".join([f"from {module} import {', '.join(names)}" for module, names in used.items() if names])
