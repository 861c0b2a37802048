"""``redouble explain``: print whether a failure is retried, why, after which waits, and how to change that.

`failures` makes an exception of a status, a class name or a traceback. The engine's own ``decide`` is asked
about it, under the default policy or the one that the options describe, so the answer is that of a real call
after its first attempt. `_answer` collects it as data, which is printed as text or as JSON.
"""

from __future__ import annotations

import sys
from argparse import BooleanOptionalAction
from math import ceil

from .._base.checks import INF
from .._engine.decide import Progress, Stop, decide
from .._policy.describe import waits_at
from ..classify import Cause, class_info, verdict
from ..classify import explain as evidence_of
from ..events import Reason
from .failures import NOTE, HTTPResponse, Reader
from .options import add_policy_flags, policy_of
from .output import DONE, INCOMPLETE, CommandError, command_parser, print_text, text_width, to_json, wrap_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from ..classify import Verdict
    from ..policy import Policy
    from .failures import Failed

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


def explain(arguments: Sequence[str]) -> int:
    """Print whether the failure is retried; return 0 if it is, and 1 if it is not.

    Raise `CommandError` with status 2 if no failure is given or recognised. A class is imported if the user
    has named it, not if it stands in a text on stdin: that may be a log that anybody could write to.
    """
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
    policy = policy_of(options)
    headers = dict(_header(text) for text in options.header)
    text = " ".join(options.failure).strip()
    imports: bool | None = options.imports
    if text in ("", "-"):
        text = _stdin()
    elif imports is None:
        imports = True
    answer = _answer(policy, Reader(headers, imports).read(text))
    if options.json:
        print_text(to_json(answer))
    else:
        _print(answer)
    return DONE if answer["retried"] else INCOMPLETE


def _header(text: str) -> tuple[str, str]:
    """Return name and value of a header; raise `CommandError` with status 2 if it has no name."""
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise CommandError(f'--header must be written as "Name: value", got {text!r}')
    return name.strip(), value.strip()


def _stdin() -> str:
    """Return the text on stdin. Raise `CommandError` with status 2 if it is empty or a terminal: nobody
    types a traceback.
    """
    text = "" if sys.stdin is None or sys.stdin.isatty() else sys.stdin.read()
    if not text.strip():
        raise CommandError(
            'no failure was given: name one, such as "explain 503", or send a traceback on stdin'
        )
    return text


# The answer


def _answer(policy: Policy, found: Failed) -> dict[str, Any]:
    """Return what the policy does about a failure, ready for JSON.

    ``evidence`` has the lines of `classify.explain`, ``waits`` the range of each wait, ``change`` pairs of an
    aim and the code to write for it. A status that was given as a number is its own evidence.
    """
    error: Any = found.error
    decision = _decide(policy, error)
    reason = decision.reason if isinstance(decision, Stop) else None
    changes = [{"to": to, "write": f"@retry({how})"} for to, how in _changes(policy, found, reason)]
    judged: Verdict = decision.verdict or verdict(error)
    why = judged.reason
    if reason is not None and reason is not Reason.not_retryable:
        why = decision.why.partition(";")[0]  # without the advice: `_changes` gives that
    remarks = [found.remark] if found.remark else []
    if found.note:
        remarks.append(f"redouble has retried it already: {found.note.removeprefix(NOTE)}.")
    if reason is None and not found.method and not judged.unprocessed and _is_http(error):
        remarks.append("A POST or PATCH without an Idempotency-Key is not retried: it might act twice.")
    return {
        "failure": found.title,
        "retried": reason is None,
        "by_name": found.by_name,
        "why": why,
        "cause": str(judged.cause),
        "meaning": _MEANINGS[judged.cause],
        "evidence": [] if type(error) is HTTPResponse else evidence_of(error).split("\n")[1:],
        "retry_after": judged.retry_after,
        "waits": _waits(policy, judged.retry_after) if reason is None else [],
        "remarks": remarks,
        "change": changes,
        "imports": _imports(type(found.error), changes),
    }


def _decide(policy: Policy, error: Any) -> Any:
    """Return the decision of the engine after a first attempt that failed with this error.

    The attempt takes no time. Guards are not asked: the policies of the command line have none.
    """
    if not isinstance(error, Exception):  # an interrupt, which no policy retries
        return Stop(Reason.not_retryable, "", None)
    progress = Progress(1, ends=policy.deadline, give_up_at=policy.give_up_after)
    progress.limit = f"the deadline of {policy.deadline:g} s" if policy.deadline is not None else ""
    return decide(policy, progress, error, 0.0)


def _is_http(error: BaseException) -> bool:
    """Return whether a failure may be that of an HTTP request: it has a response, or a package raised it.

    If so, the answer for a POST may be another one, and a remark says so.
    """
    return hasattr(error, "response") or class_info(type(error)).installed


def _waits(policy: Policy, hint: float | None) -> list[dict[str, float]]:
    """Return the shortest and the longest wait before each attempt, if it always fails in this way.

    ``hint`` is the wait that the server asks for. At most ``_LISTED`` waits are returned, and none that would
    begin after a deadline or ``give_up_after``. Attempts are taken to last no time.
    """
    count = int(min(policy.attempts or INF, _LISTED + 1))
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


def _changes(policy: Policy, found: Failed, reason: Reason | None) -> Iterator[tuple[str, str]]:
    """Yield how to change the answer: the aim, and the arguments of ``@retry`` for it.

    They depend on the ``reason`` why the failure is not retried: another limit, a promise that the call may
    be repeated, or a rule for its status or class. A retried failure, without a reason, can be given other
    waits, or none. An interrupt cannot be changed.
    """
    error = found.error
    judged = verdict(error)
    cls: type[Any] = type(error)
    status = judged.status
    name = _name_in_code(cls)
    listed = name if cls.__module__ == "builtins" else f'"{cls.__module__}.{cls.__qualname__}"'
    key = name if status is None else str(status)
    if not isinstance(error, Exception):
        return
    if reason is Reason.not_idempotent:
        yield "retry a call that may be repeated", "idempotent=True"
        how = "send an Idempotency-Key with headers=outgoing_headers(), if the server supports it"
        yield how, "idempotency_key=True"
    elif reason is Reason.retry_after:
        yield "wait that long", f"max_retry_after={ceil(judged.retry_after or 0.0)}"
    elif reason in (Reason.deadline, Reason.give_up_after):
        needed = getattr(policy, str(reason)) + (judged.retry_after or 0)
        yield "allow more time", f"{reason}={ceil(2 * needed)}"
    elif reason is Reason.attempts:
        yield "allow retries", "attempts=4"
    elif reason is not None and judged.cause is Cause.unauthorized:
        yield "refresh the credentials and retry", f"rules={{{key}: Rule(attempts=2, recover=refresh)}}"
    elif reason is not None:
        yield "retry it as well", f"rules={{{key}: Rule(attempts=3)}}"
        if status is not None:
            yield "retry it like other statuses", f"on=Classifier(statuses=RETRYABLE_STATUSES | {{{status}}})"
        else:
            yield "retry it and nothing else", f"on={name}"
            yield "retry it like other transient errors", f"on=Classifier(transient=[{listed}])"
    else:
        yield "change its waits", f"rules={{{key}: Rule(attempts=2, base=5)}}"
        if status is not None:
            yield "stop retrying it", f"on=Classifier(statuses=RETRYABLE_STATUSES - {{{status}}})"
        else:
            yield "stop retrying it", f"on=Classifier(permanent=[{listed}])"


# Modules whose names are not written before their classes.
_UNNAMED = ("builtins", "__main__")

# The names of redouble in the code of `_changes`, by the module that has them.
_NAMES = {
    "redouble": ("Rule", "retry"),
    "redouble.classify": ("RETRYABLE_STATUSES", "Classifier"),
    "redouble.context": ("outgoing_headers",),
}


def _imports(cls: type, changes: Sequence[dict[str, str]]) -> list[str]:
    """Return the import statements for the class and the names of redouble that the code uses.

    The class comes first, if it is written as code and not only as a text.

    >>> _imports(TimeoutError, [{"to": "allow retries", "write": "@retry(attempts=4)"}])
    ['from redouble import retry']
    """
    code = " ".join([text for change in changes for text in change.values()])
    used = {module: [name for name in names if name in code] for module, names in _NAMES.items()}
    found = [f"from {module} import {', '.join(names)}" for module, names in used.items() if names]
    is_used = cls.__module__ not in _UNNAMED and _name_in_code(cls) in code
    return [f"import {cls.__module__}"] * is_used + found


def _name_in_code(cls: type) -> str:
    """Return the name of a class as code: with its module, unless it is builtin or of the program itself."""
    module = cls.__module__
    return cls.__qualname__ if module in _UNNAMED else f"{module}.{cls.__qualname__}"


# Printing


def _print(answer: dict[str, Any]) -> None:
    """Print the answer, in lines that fit the terminal from 40 to 80 columns.

    First whether it is retried, then the reasons beside labels, then the code, and the imports for it.
    """
    width = text_width() - 1
    print_text(wrap_text(answer["failure"], width), "bold")
    by_name = ", judged by its name alone" if answer["by_name"] else ""
    if answer["retried"]:
        print_text(f"Retried{by_name}.", "green")
    else:
        print_text(f"Not retried{by_name}.", "red")
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
    if answer["imports"]:
        print_text("\n" + "\n".join([_statement(line, width) for line in answer["imports"]]), "dim")


def _labelled(label: str, lines: Sequence[str], width: int) -> None:
    """Print lines beside a label, which is printed once; continuations keep the indentation of their line."""
    for nth, line in enumerate(lines):
        print_text(wrap_text(f"{'' if nth else label:{_LABEL}}{line}", width, hanging=0))


def _range(wait: dict[str, float]) -> str:
    """Return a wait in words: ``"7 s"``, or ``"0 to 2 s"`` if it is random."""
    low, high = wait["shortest"], wait["longest"]
    return f"{low:.3g} s" if low == high else f"{low:.3g} to {high:.3g} s"


def _code(code: str, width: int) -> str:
    """Return a line of code, indented by two; broken after its opening brackets if it is too long.

    >>> print(_code("@retry(on=Classifier(permanent=[TimeoutError]))", 40))
     @retry(
      on=Classifier(
       permanent=[TimeoutError]))
    """
    if len(code) + 2 <= width:
        return f"  {code}"
    *opened, last = code.split("(")
    lines = [f"{part}(" for part in opened] + [last]
    return "\n".join([f"{'':{nth + 1}}{line}" for nth, line in enumerate(lines)])


def _statement(line: str, width: int) -> str:
    """Return an import statement, continued on a second line if it is too long.

    >>> print(_statement("from redouble.classify import RETRYABLE_STATUSES, Classifier", 40))
    from redouble.classify import \\
      RETRYABLE_STATUSES, Classifier
    """
    return line if len(line) <= width else line.replace(" import ", " import \\\n  ")
