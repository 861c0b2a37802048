"""One failure as a whole: groups, and the errors inside errors.

A group is retryable if all of its errors are. A wrapper is judged by what it wraps: what is permanent inside
is permanent, and a layer that shows that nothing was sent makes the whole unprocessed.
"""

from __future__ import annotations

from ._catalogue import (
    CLAIM_ATTRIBUTES,
    PERMANENT,
    RETRYABLE_STATUSES,
    STATUS_CAUSES,
    STATUS_TEXTS,
    TRANSIENT_TEXTS,
    Cause,
)
from ._classes import CERTIFICATE_TEXT
from ._codes import aws
from ._doubts import UNTRUSTED, doubt, worded_code
from ._exchange import result_exchange
from ._headers import reader
from ._hints import INTERESTING, hint
from ._kinds import kind_of
from ._questions import NOTHING, Case, Verdict, first_answer, http_reason, http_verdict
from ._shapes import cause, class_name, inner, leaves, message, probe, real, status_code, texts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ._catalogue import Row
    from ._kinds import Kind

_NO_RESPONSE = Verdict(False)  # without a reason: of an ordinary result there is nothing to say
_DEEPEST = 8  # layers of wrapping
_WIDEST = 64  # errors looked at inside one


def examined(failure: object, statuses: frozenset[int], now: float | None) -> Verdict:
    """The verdict on one failure. What answers for itself, as nearly all do, needs no inquiry."""
    case = None
    if real(failure, BaseException):
        kind = kind_of(type(failure))
        if kind.failure and not kind.group:
            case = Case(failure, kind, statuses, now)
            found = first_answer(case)
            if found is not None:
                return found
    inquiry = Inquiry(statuses, None, now)
    return inquiry.failure(failure) if case is None else inquiry.opened(case, 0)


class Inquiry:
    """The work on one failure: what was looked at is remembered, so that every cycle ends."""

    __slots__ = ("corrected", "left", "now", "seen", "statuses")

    def __init__(
        self,
        statuses: frozenset[int],
        corrected: Callable[[BaseException, Verdict], Verdict] | None,
        now: float | None,
    ) -> None:
        self.statuses = statuses
        self.corrected = corrected
        self.now = now
        # With the exception itself, since the id of one that is gone may be given to another.
        self.seen: dict[int, tuple[BaseException, Verdict]] = {}
        self.left = _WIDEST

    def failure(self, failure: object) -> Verdict:
        if not real(failure, BaseException):
            return self.result(failure)
        return self.error(failure, 0)

    def result(self, result: object) -> Verdict:
        status, headers = result_exchange(result)
        if status is None:
            return _NO_RESPONSE
        ask = reader(headers, INTERESTING)
        wait = hint(ask, status, self.now)
        if status < 400 and status not in self.statuses:
            return Verdict(False, Cause.unknown, status, wait, http_reason(status, ask, wait, None))
        answer = aws(result)
        if answer is not None:
            row, reason = answer[:2]
            return Verdict(row.retryable, row.cause, status, wait, reason, row.unprocessed)
        return http_verdict(status, ask, wait, None, self.statuses)

    def error(self, exc: BaseException, depth: int) -> Verdict:
        kind = kind_of(type(exc))
        if not kind.failure:
            return Verdict(False, Cause.permanent, reason=f"{class_name(exc)} is not a failure")
        if depth:
            known = self.seen.get(id(exc))
            if known is not None:
                return known[1]
        found = self.group(exc, depth) if kind.group else self.single(exc, kind, depth)
        if self.corrected is not None:
            found = self.corrected(exc, found)
        if depth:
            self.seen[id(exc)] = exc, found
        return found

    def group(self, exc: BaseException, depth: int) -> Verdict:
        self.seen[id(exc)] = exc, NOTHING
        verdicts: list[Verdict] = []
        for leaf in leaves(exc):
            self.left = _WIDEST
            verdicts.append(self.error(leaf, depth + 1))
        hints = [found.retry_after for found in verdicts if found.retry_after is not None]
        decisive = next((found for found in verdicts if not found.retryable), verdicts[0])
        status = decisive.status if len({found.status for found in verdicts}) == 1 else None
        unprocessed = all(found.unprocessed for found in verdicts)
        reason = f"{decisive.reason} in a group of {len(verdicts)}"
        wait = max(hints, default=None)
        return Verdict(decisive.retryable, decisive.cause, status, wait, reason, unprocessed)

    def single(self, exc: BaseException, kind: Kind, depth: int) -> Verdict:
        case = Case(exc, kind, self.statuses, self.now)
        return first_answer(case) or self.opened(case, depth)

    def opened(self, case: Case, depth: int) -> Verdict:
        return self.inside(case, depth) or self.outside(case)

    def inside(self, case: Case, depth: int) -> Verdict | None:
        if depth >= _DEEPEST:
            return None
        self.seen[id(case.exc)] = case.exc, NOTHING
        for wrapped in inner(case.exc, case.deep):
            self.left -= 1
            if self.left < 0:
                return None
            found = self.error(wrapped, depth + 1)
            if found.retryable or found.cause is not Cause.unknown:
                return _combined(case, found, case.deep or wrapped is cause(case.exc))
        return None

    def outside(self, case: Case) -> Verdict:
        row, reason = case.row, class_name(case.exc)
        weak = by_word(case)
        if weak is not None:
            where, word, row = weak
            reason += f", whose {where} says {word}"
        ruled_out = doubted(case, row)
        if ruled_out is not None:
            words, row = ruled_out
            return case.verdict(row, f"{words} {class_name(case.exc)}")
        if row is not None:
            return case.verdict(row, reason)
        told = by_text(case)
        if told is not None:
            words, cause = told
            return Verdict(True, cause, case.status, case.hint, f"{reason}, whose text says {words}")
        reason = f"{class_name(case.exc)}: {NOTHING.reason}"
        return Verdict(False, Cause.unknown, case.status, case.hint, reason)


def by_word(case: Case) -> tuple[str, str, Row] | None:
    """The code in words or the last word of the class name, with its row, where nothing else has told."""
    kind = case.kind
    if case.row not in (None, PERMANENT) or not (kind.installed or kind.word):
        return None
    if any(probe(case.exc, name) is False for name in CLAIM_ATTRIBUTES):
        return None
    coded = worded_code(case.exc) if kind.installed and case.status is None and not kind.warns else None
    if coded is not None:
        return "code", *coded
    return None if kind.word is None else ("name", *kind.word)


def doubted(case: Case, row: Row | None) -> tuple[str, Row] | None:
    """What rules out a row that would be retried, in words, and the row that counts instead."""
    if row is None or not row.retryable:
        return None
    if row is not case.row or (row is case.kind.vague and case.kind.installed):
        return doubt(case.exc)
    return (UNTRUSTED, PERMANENT) if CERTIFICATE_TEXT in message(case.exc) else None


def by_text(case: Case) -> tuple[str, Cause] | None:
    """The words in the text of an installed package's error that name a transient failure, and its cause."""
    if not case.kind.installed or case.status is not None:
        return None
    text = texts(case.exc)
    lower = text.lower()
    for words in STATUS_TEXTS:
        number = lower.partition(words)[2][:4]
        status = status_code(number[:3]) if not number[3:].isalnum() else None
        if status is not None:
            return (f"HTTP {status}", STATUS_CAUSES[status]) if status in RETRYABLE_STATUSES else None
    found = next(((words, cause) for words, cause in TRANSIENT_TEXTS if words in lower), None)
    if found is None or case.kind.veto is not None or doubt(case.exc) is not None:
        return None
    return found


def _combined(case: Case, found: Verdict, stated: bool) -> Verdict:
    """The verdict on what was found inside. It shows that nothing was sent only where it is ``stated``."""
    row = case.row
    never_sent = row is not None and row.unprocessed and found.retryable and not found.unprocessed
    return Verdict(
        found.retryable,
        row.cause if row is not None and never_sent else found.cause,
        case.status if found.status is None else found.status,
        case.hint if found.retry_after is None else found.retry_after,
        f"{found.reason} inside {class_name(case.exc)}",
        (found.unprocessed and (stated or not found.retryable)) or never_sent,
    )
