"""Why a verdict is what it is: the same inquiry, written down.

Kept apart from the inquiry itself, so that nobody pays for what is asked only when something surprises.
"""

from __future__ import annotations

from ._inquiry import Inquiry, by_text, by_word, doubted
from ._questions import QUESTIONS, Case, Verdict
from ._shapes import class_name, leaves

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ._kinds import Kind


class Told(Inquiry):
    """An inquiry that keeps a line for each error it looks at."""

    __slots__ = ("lines",)

    lines: list[str]

    def failure(self, failure: object) -> Verdict:
        self.lines = []
        return super().failure(failure)

    def result(self, result: object) -> Verdict:
        found = super().result(result)
        answer = "no response" if found.status is None else f"HTTP status {found.status} decides"
        self.lines.append(f"{class_name(result)}: {answer}")
        return found

    def group(self, exc: BaseException, depth: int) -> Verdict:
        self._tell(exc, depth, f"a group of {len(leaves(exc))}, retryable if all of them are")
        return super().group(exc, depth)

    def single(self, exc: BaseException, kind: Kind, depth: int) -> Verdict:
        case = Case(exc, kind, self.statuses, self.now)
        silent: list[str] = []
        for name, question in QUESTIONS:
            found = question(case)
            if found is not None:
                rule = kind.rule if name == "class" else found.reason
                named = f" ({rule})" if rule != class_name(exc) else ""
                self._tell(exc, depth, f"{name} decides{named}{_asked_before(silent)}")
                return found
            silent.append(name)
        kept = "is a wrapper" if kind.row is not None and kind.row.inside else "is a base class"
        rule = f"; {kind.rule} {kept}" if kind.row is not None else ""
        self._tell(exc, depth, f"nothing decides{rule}; looked inside")
        return self.opened(case, depth)

    def opened(self, case: Case, depth: int) -> Verdict:
        found = self.inside(case, depth)
        if found is None:
            found = self.outside(case)
            rule = _last_resort(case)
            if rule:
                self._tell(case.exc, depth, f"nothing inside; {rule}")
        return found

    def _tell(self, exc: BaseException, depth: int, line: str) -> None:
        self.lines.append(f"{'  ' * depth}{class_name(exc)}: {line}")


def _last_resort(case: Case) -> str:
    weak = by_word(case)
    where, word, row = weak if weak is not None else ("class", "", case.row)
    ruled_out = doubted(case, row)
    if ruled_out is not None:
        return f"{where} is ruled out ({ruled_out[0]} it)"
    if weak is not None:
        return f"{where} decides ({'last word: ' if where == 'name' else ''}{word})"
    told = by_text(case) if case.row is None else None
    if told is not None:
        return f"text decides ({told[0]})"
    if case.kind.veto is not None:
        return f"name is no evidence ({case.kind.veto[0]} in it)"
    if case.row is not None:
        return f"class decides ({case.kind.rule or 'ConnectionError'})"
    return ""


def _asked_before(questions: list[str]) -> str:
    return f"; no {', '.join(questions)}" if questions else ""


def story(found: Verdict, lines: list[str]) -> str:
    """The verdict in a line, and below it what was looked at."""
    words = ["retryable" if found.retryable else "not retryable", f"cause {found.cause}"]
    if found.unprocessed:
        words.append("unprocessed")
    if found.retry_after is not None:
        words.append(f"retry after {found.retry_after:g} s")
    reason = found.reason or "no failed response"
    return "\n".join([f"{', '.join(words)}: {reason}", *lines])
