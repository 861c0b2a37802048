"""Read the evidence on one exception or HTTP status, in the order in which it counts.

Each question is a function that takes the `Evidence` and returns a verdict, or None to pass on to the next
one. ``QUESTIONS`` is the order, and `first_answer` asks them:

1. Is it an error of redouble? Then there was a decision already.
2. Does it carry a code: of its package, an SQLSTATE, a gRPC status? Codes are more exact than statuses.
3. Does it report an HTTP status that is a failure? Headers may change what the status means.
4. Is its class in the table?
5. Does it say itself that it may be retried?
6. Does the operating system's class or number decide?

`Judge` looks into groups and wrappers where no question has an answer. The end of this file has the doubts:
what rules out weak evidence, which is what a library made of a failure rather than the failure itself.
"""

from __future__ import annotations

import errno
from functools import lru_cache

from .._base.headers import read_headers
from .._base.record import Record
from ..errors import BulkheadFull, CircuitOpen
from . import _table_codes as codes
from . import _table_statuses as t
from ._codes import grpc_enum, is_named, refused_tunnel, sqlstate
from ._probe import around, delay, error_response, get, has_none_of, item, status_code, text, texts, whole
from ._retry_after import INTERESTING, hint, should_retry, shows_limit
from ._table_statuses import EVIDENCE, EVIDENCE_NAMES, SAID_BY_CLASS, Cause

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from ._judge import ClassInfo
    from ._table_statuses import Meaning

_LONGEST_TEXT = 2000  # characters that are searched
_LONGEST_CODE = 60
_DELAYS = frozenset(t.DELAY_ATTRIBUTES)
# The attributes of an error as Python keeps them, whatever its class says.
_attributes: Any = BaseException.__dict__["__dict__"].__get__
_NO_HEADERS: Mapping[str, str] = {}


class Verdict(Record):
    """What a failure means for the call that failed.

    ``unprocessed`` says that the request certainly had no effect, so that even a call that is not idempotent
    may be repeated. ``retry_after`` is the wait in seconds that the server asks for. ``reason`` names the
    evidence.

    >>> Verdict(True, Cause.timeout, reason="TimeoutError")
    Verdict(retryable=True, cause=<Cause.timeout: 'timeout'>, status=None, retry_after=None,
            reason='TimeoutError', unprocessed=False)
    """

    __slots__ = ("retryable", "cause", "status", "retry_after", "reason", "unprocessed")  # noqa: RUF023

    retryable: bool
    cause: Cause
    status: int | None
    retry_after: float | None
    reason: str
    unprocessed: bool

    def __init__(
        self,
        retryable: bool,
        cause: Cause = Cause.unknown,
        status: int | None = None,
        retry_after: float | None = None,
        reason: str = "",
        unprocessed: bool = False,
    ) -> None:
        # By the slots themselves, for speed: there is one verdict for each failure.
        _set_retryable(self, retryable)
        _set_cause(self, cause)
        _set_status(self, status)
        _set_retry_after(self, retry_after)
        _set_reason(self, reason)
        _set_unprocessed(self, unprocessed)


_set_retryable, _set_cause, _set_status, _set_retry_after, _set_reason, _set_unprocessed = [
    Verdict.__dict__[field].__set__ for field in Verdict._fields
]


class Evidence:
    """What the questions share about one exception: its class, and the response that it reports.

    A question may change ``meaning``, ``deep``, ``status`` and ``hint`` for those that come after it.
    """

    __slots__ = (
        *("exc", "info", "name", "statuses", "meaning", "deep", "empty", "bare", "status", "headers"),
        *("told", "delay", "hint", "question"),
    )
    question: str
    """The question that decided; set by ``first_answer``."""
    meaning: Meaning | None
    """That of its class, or of a code that counts if nothing better is found inside."""
    deep: bool
    """It is a wrapper, whose attributes are searched for the real failure."""
    empty: bool
    """Neither the exception nor its class has an attribute that counts as evidence."""
    bare: bool
    """None of these attributes has a value."""
    status: int | None
    headers: object
    told: Mapping[str, str]
    """The headers of interest."""
    delay: float | None
    """The wait that the exception itself asks for, in seconds."""
    hint: float | None
    """The wait that counts: that of the headers, else the exception's own."""

    def __init__(
        self, exc: BaseException, info: ClassInfo, statuses: frozenset[int], now: float | None
    ) -> None:
        self.exc = exc
        self.info = info
        self.name = type(exc).__name__
        self.statuses = statuses
        self.meaning = info.meaning
        self.deep = info.deep
        self.status = self.headers = self.delay = self.hint = None
        self.told = _NO_HEADERS
        self.empty = info.blank and EVIDENCE_NAMES.isdisjoint(exc.__dict__)
        self.bare = (
            has_none_of(exc, SAID_BY_CLASS) if self.empty else info.warns or has_none_of(exc, EVIDENCE)
        )
        if self.bare:
            return
        self.status, self.headers = error_response(exc)
        if self.status is None and info.coded:
            code = whole(get(exc, "code"))
            self.status = code if code is not None and 400 <= code <= 599 else None
        if self.empty or not info.blank or not _DELAYS.isdisjoint(exc.__dict__):
            wait = delay(exc, now)
            if wait or info.own:  # some libraries set zero where the server said nothing
                self.delay = self.hint = wait
        if self.headers is not None:
            self.told = read_headers(self.headers, INTERESTING)
            found = hint(self.told, self.status, now) if self.told else None
            self.hint = self.delay if found is None else found

    def verdict(self, meaning: Meaning, reason: str) -> Verdict:
        """Return the verdict of a meaning, with the status and the hint of this exception.

        ``reason`` names the evidence in a few words; `explain` and events show it.
        """
        return Verdict(meaning.retryable, meaning.cause, self.status, self.hint, reason, meaning.unprocessed)


# The questions


def _own(evidence: Evidence) -> Verdict | None:
    """Is it an error of redouble? Then there was a decision already."""
    if not evidence.info.own:
        return None
    # For those who retry it all the same: when the circuit lets calls through, and that nothing was called.
    rejected = isinstance(evidence.exc, (BulkheadFull, CircuitOpen))
    return Verdict(False, Cause.permanent, None, evidence.delay, f"redouble's own {evidence.name}", rejected)


def _code(evidence: Evidence) -> Verdict | None:
    """Does it carry a code of its package, or an SQLSTATE?

    A code of a wrapper is not an answer yet: it becomes the meaning that counts if nothing is found inside.
    """
    answer = None
    for read in evidence.info.readers:
        answer = read(evidence.exc)
        if answer is not None:
            break
    else:
        # Of any package; but an exception with the headers of an HTTP response comes from no database.
        if not evidence.bare and evidence.headers is None:
            answer = sqlstate(evidence.exc) or grpc_enum(evidence.exc)
    if answer is None:
        return None
    meaning, reason, *waits = answer
    if waits and evidence.hint is None:
        evidence.hint = waits[0]
    if meaning.inside:  # not an answer yet: it counts if nothing better is found inside
        evidence.meaning, evidence.deep = meaning, True
        return None
    return evidence.verdict(meaning, reason)


def _status(evidence: Evidence) -> Verdict | None:
    """Does it report an HTTP status that is a failure?

    - A status that a client library made up, for an answer it could not read, does not count.
    - A 429 for a limit that no wait lifts, such as an unpaid bill, is not retried.
    - A 400 or 403 counts as a rate limit if its text or code says so.
    - A 5xx without headers is doubted: some libraries report a 500 for any error that they caught.
    """
    status, headers, exc = evidence.status, evidence.headers, evidence.exc
    if status is None or (status < 400 and status not in evidence.statuses):
        return None
    if headers is None and t.MADE_UP_STATUSES.get(status) in [package for package, _ in evidence.info.names]:
        evidence.status = None
        return None
    if status == 429 and (not evidence.info.blank or not LIMITS.isdisjoint(exc.__dict__)):
        limit = hopeless(exc)
        if limit is not None:
            return Verdict(False, Cause.rate_limited, status, None, f"HTTP 429, {limit}", True)
    if evidence.hint is None and not evidence.told:
        found = _bare_verdict(status, evidence.statuses)
    else:
        found = http_verdict(status, evidence.told, evidence.hint, evidence.delay, evidence.statuses)
    if status in t.MAYBE_THROTTLED and not found.retryable:
        words = _throttled(evidence)
        if words is not None:
            return evidence.verdict(t.RATE_LIMITED, f"HTTP {status}, which says {words}")
    without_headers = headers is None or (type(headers) is dict and not headers)
    if status < 500 or not found.retryable or not without_headers:
        return found
    # Some libraries report a 500 for any error that they caught.
    ruled_out = doubt(exc) if status == 500 else untrusted(exc)
    if ruled_out is None or not has_none_of(exc, t.RESPONSE_ATTRIBUTES):
        return found
    words, meaning = ruled_out
    return evidence.verdict(meaning, f"{words} {evidence.name} with HTTP {status}")


def _throttled(evidence: Evidence) -> str | None:
    """Return the words by which a response with an ambiguous status means a rate limit; or None.

    They are looked for in the name of the class, in the attributes that usually hold a code or a message, in
    the same entries of the body and of the error in it, and in the arguments of the exception.
    """
    name = evidence.info.word
    if name is not None and name[1].cause in (Cause.rate_limited, Cause.unavailable):
        return name[0]
    body = get(evidence.exc, "body")
    found = [get(evidence.exc, field) for field in t.MESSAGE_ATTRIBUTES]
    found += [item(part, field) for part in (body, item(body, "error")) for field in t.MESSAGE_ATTRIBUTES]
    for part in (*found, *evidence.exc.args[:2]):
        said = (text(part) or "")[:_LONGEST_TEXT]
        if codes.AWS.get(said.rpartition("#")[2]) is t.RATE_LIMITED_NOT_SENT:
            return said
        lower = said.lower()
        for words in t.THROTTLING_TEXTS:
            if words in lower:
                return f'"{words}"'
    return None


def _class(evidence: Evidence) -> Verdict | None:
    """Is its class in the table?

    A line for a base class is weaker than the explicit cause of the exception, and than its own name.
    """
    meaning, info = evidence.meaning, evidence.info
    if meaning is None or meaning.inside:
        return None
    if info.open and (info.word is not None or isinstance(evidence.exc.__cause__, Exception)):
        return None  # of a base class, which its own cause or name outranks
    return evidence.verdict(meaning, evidence.name)


def _claim(evidence: Evidence) -> Verdict | None:
    """Does it say itself that it may be retried: with a delay, or with ``retryable = True`` and the like?

    A claim is ruled out by a text about credentials, permissions or certificates.
    """
    if evidence.delay is not None:
        reason = f"{evidence.name} that asks to wait {evidence.delay:g} s"
        return evidence.verdict(t.RATE_LIMITED_NOT_SENT, reason)
    if evidence.bare or (evidence.meaning is not None and evidence.meaning.retryable):
        return None  # the latter is a wrapper that is retried anyway, but may hold better evidence
    for name in t.CLAIM_ATTRIBUTES:
        if get(evidence.exc, name) is True:
            ruled_out = doubt(evidence.exc)
            words, meaning = ruled_out or ("", t.RETRYABLE)
            return evidence.verdict(meaning, f"{words} {evidence.name} with {name}=True".lstrip())
    return None


def _system(evidence: Evidence) -> Verdict | None:
    """Does the operating system's class or number decide?

    The class comes first, since Python chooses it by the number and it often comes without one. Some clients
    raise an ``OSError(404, "Not Found")``: there the number is a status.
    """
    exc, info = evidence.exc, evidence.info
    if evidence.meaning is not None:
        return None
    if not info.system:
        return _errno_of_others(evidence)
    number = whole(get(exc, "errno"))
    meaning = info.builtin or t.WINERRORS.get(whole(get(exc, "winerror")) or 0) or t.ERRNOS.get(number or 0)
    if meaning is not None:
        shown = "" if number is None else f" ({errno.errorcode.get(number, number)})"
        return evidence.verdict(meaning, evidence.name + shown)
    status = status_code(number) if info.installed else None
    if status is not None:  # some clients raise an OSError(404, "Not Found")
        evidence.status = status
        return http_verdict(status, _NO_HEADERS, None, None, evidence.statuses)
    if info.vague is not None and info.veto is not None:
        word, meaning = info.veto
        return evidence.verdict(meaning, f"{evidence.name}, whose name says {word}")
    evidence.meaning = info.vague
    return _by_text(evidence) if number is None else None


def _errno_of_others(evidence: Evidence) -> Verdict | None:
    """Judge an errno on an error that is not an OSError: it counts if it means the network."""
    info = evidence.info
    if info.readers or info.deep or evidence.empty:  # its numbers may be codes of its package
        return None
    number = whole(get(evidence.exc, "errno")) or 0
    meaning = t.NETWORK_ERRNOS.get(number)
    if meaning is None:
        return None
    reason = f"{evidence.name} with errno {errno.errorcode.get(number, number)}"
    return Verdict(True, meaning.cause, evidence.status, evidence.hint, reason)


def _by_text(evidence: Evidence) -> Verdict | None:
    """Judge an `OSError` without errno by its text: of http.client for a refused tunnel, or of asyncio.

    asyncio's is for a host all of whose addresses failed; one transient errno of those is enough:
    ``Multiple exceptions: [Errno 111] ..., [Errno 101] ...``.
    """
    said = (*texts(evidence.exc), "")[0]
    if said.startswith(t.TUNNEL_REFUSED) and (refused := refused_tunnel(evidence.exc)) is not None:
        return evidence.verdict(*refused[:2])
    if not said.startswith(t.ALL_ADDRESSES_FAILED):
        return None
    numbers = [part.partition("]")[0] for part in said.replace("[WinError ", "[Errno ").split("[Errno ")[1:]]
    known = [number for number in numbers if number.isdecimal() and len(number) < 6]
    meanings = [t.ERRNOS.get(int(number), t.PERMANENT) for number in known]
    transient = [meaning for meaning in meanings if meaning.retryable]
    if not transient:
        return None
    meaning = transient[0] if False in [meaning.unprocessed for meaning in transient] else t.CONNECTION
    return evidence.verdict(meaning, f"{evidence.name}: every address failed, errno {', '.join(numbers)}")


# With the names that ``explain`` prints.
QUESTIONS: tuple[tuple[str, Callable[[Evidence], Verdict | None]], ...] = (
    ("own error", _own),
    ("code", _code),
    ("HTTP status", _status),
    ("class", _class),
    ("own claim", _claim),
    ("operating system", _system),
)


def first_answer(evidence: Evidence) -> Verdict | None:
    """Return the verdict of the first question that has one, and note which; None if none of them has.

    Most exceptions carry nothing at all, which `ClassInfo` knows of the class: no question is asked then.
    """
    if evidence.info.mute and evidence.empty and evidence.bare:
        return None
    for name, question in QUESTIONS:
        found = question(evidence)
        if found is not None:
            evidence.question = name
            return found
    return None


# HTTP


def http_verdict(
    status: int, told: Mapping[str, str], hint: float | None, own: float | None, statuses: frozenset[int]
) -> Verdict:
    """Judge a status with its headers of interest, ``told``.

    ``hint`` is the wait that the response asks for, ``own`` a delay that the exception itself has. The
    server's own answer (``x-should-retry``) outranks the table of statuses.

    >>> http_verdict(503, {"retry-after": "7"}, 7.0, None, t.RETRYABLE_STATUSES).reason
    'HTTP 503 with Retry-After: 7'
    """
    # A 403 needs more than a reset header, which is sent with every response.
    hinted = hint is not None if status != 403 else own is not None or shows_limit(told)
    said = should_retry(told) if told else None
    retryable, cause, unprocessed = _meaning_of(status, hinted, said, statuses)
    reason = http_reason(status, told, hint, said)
    if hint is None and cause is Cause.rate_limited:
        reason += " (rate limited)"
    return Verdict(retryable, cause, status, hint, reason, unprocessed)


@lru_cache(500)
def _bare_verdict(status: int, statuses: frozenset[int]) -> Verdict:
    """Judge a status for which neither headers nor a delay count; made once."""
    return http_verdict(status, _NO_HEADERS, None, None, statuses)


@lru_cache(3000)
def _meaning_of(
    status: int, hinted: bool, said: bool | None, statuses: frozenset[int]
) -> tuple[bool, Cause, bool]:
    """Return whether a status is retryable, its cause, and whether it is unprocessed; computed once.

    ``hinted``: the server asks for a wait. ``said``: its own answer whether to retry, None if it gave none.
    A 5xx that no table has counts as 500, as RFC 9110 (15) says.
    """
    retryable = said
    if retryable is None:
        as_500 = status >= 500 and status not in t.STATUS_CAUSES and 500 in statuses
        retryable = status in statuses or as_500 or (hinted and status in t.RETRYABLE_WHEN_HINTED)
    unprocessed = status in t.UNPROCESSED_STATUSES or (hinted and status in t.UNPROCESSED_WHEN_HINTED)
    cause = Cause.rate_limited if status == 403 and hinted else cause_of(status)
    if retryable and cause is Cause.permanent:
        cause = Cause.unavailable  # the server or the classifier says that it is transient
    return retryable, cause, unprocessed


def cause_of(status: int) -> Cause:
    """Return why a server sends an HTTP status.

    >>> cause_of(503), cause_of(499), cause_of(599)
    (<Cause.unavailable: 'unavailable'>, <Cause.permanent: 'permanent'>, <Cause.timeout: 'timeout'>)
    """
    found = t.STATUS_CAUSES.get(status)
    if found is not None:
        return found
    return Cause.unknown if status < 400 else Cause.permanent if status < 500 else Cause.server_error


def http_reason(status: int, told: Mapping[str, str], hint: float | None, said: bool | None) -> str:
    """Return the evidence in words: the status, the delay, and the server's own answer.

    >>> http_reason(429, {"x-ratelimit-reset-after": "3"}, 3.0, False)
    'HTTP 429 with a delay of 3, which the server says not to retry'
    """
    reason = f"HTTP {status}"
    if hint is not None:
        given = "Retry-After:" if "retry-after" in told else "a delay of"
        reason += f" with {given} {hint:g}"
    if said is not None:
        reason += ", which the server says to retry" if said else ", which the server says not to retry"
    return reason


# Reasons to doubt weak evidence. The name of a class, a claim, a code in words, and a status without a
# response are what a library made of a failure, and libraries call a bad certificate a lost connection or a
# status of 500.

_CERTIFICATE_TEXT = "certificate verify failed"
UNTRUSTED = f"{_CERTIFICATE_TEXT} inside"
_DENIED = "access denied"  # not "denied" alone, which a throttled request may be, too
_TEXTS = ("message", "msg", "reason", "detail")
_SPACED = str.maketrans(dict.fromkeys("\"'`()[]{}<>,;:=!?|", " "))  # not "/" and ".": a path is no evidence
_CODES = ("code", "error_code", "error")
_LIMITS = ("error_type", "name", "type", "error_code")
# The names of all attributes that may hold the code of a limit.
LIMITS = frozenset({"code", "body", *_LIMITS})


def doubt(exc: BaseException) -> tuple[str, Meaning] | None:
    """Return what rules weak evidence out, in words that a class name follows, and its meaning; or None.

    Reasons are a limit that no wait lifts, a bad certificate, and words about credentials or permissions in a
    text of the error. Only whole words count: a path such as ``/auth/token`` is not a reason.

    >>> doubt(Exception("wrong password"))[0]
    '"password" in the text of'
    """
    limit = hopeless(exc)
    if limit is not None:
        return f"{limit} in", t.PERMANENT
    attributes = [(text(get(exc, name)) or "")[:_LONGEST_TEXT] for name in _TEXTS]
    for said in ("\n".join(texts(exc)), *attributes):
        lower = said.lower()
        if _CERTIFICATE_TEXT in lower.replace("_", " "):
            return UNTRUSTED, t.PERMANENT
        if _DENIED in lower:
            return f'"{_DENIED}" in the text of', t.UNAUTHORIZED
        for word in lower.translate(_SPACED).split():
            meaning = codes.DOUBTS.get(word.strip("."))
            if meaning is not None:
                return f'"{word.strip(".")}" in the text of', meaning
    return untrusted(exc)


def untrusted(exc: BaseException) -> tuple[str, Meaning] | None:
    """Return the words for a bad certificate among the errors before an error, and its meaning; or None."""
    for error in around(exc):
        said = "\n".join(texts(error)).lower().replace("_", " ")
        if _CERTIFICATE_TEXT in said or is_named(error, "SSLCertVerificationError"):
            return UNTRUSTED, t.PERMANENT
    return None


def worded_code(exc: BaseException) -> tuple[str, Meaning] | None:
    """Return the code in words that an error or its body carries, and its meaning, if it is transient.

    >>> error = Exception()
    >>> error.body = {"error": {"code": "rate_limit_exceeded"}}
    >>> worded_code(error)[0]
    'rate_limit_exceeded'
    """
    body = get(exc, "body")
    for part in [*[get(exc, name) for name in _CODES], *[item(body, name) for name in _CODES]]:
        for found in (part, item(part, "code")):
            code = text(found) or ""
            meaning = codes.WORDED.get(_squeezed(code))
            if meaning is not None:
                return code, meaning
    return None


def hopeless(exc: BaseException) -> str | None:
    """Return the vendor's code for a limit that no wait lifts, if the error carries one.

    >>> error = Exception()
    >>> error.code = "insufficient_quota"
    >>> hopeless(error)
    'insufficient_quota'
    """
    body = get(exc, "body")
    # A .code of the class beside a status, as aiohttp has it, warns when it is read.
    plain = whole(get(exc, "status")) is None or "code" in _attributes(exc)
    own = ("code", *_LIMITS) if plain else _LIMITS
    found = [] if has_none_of(exc, own) else [get(exc, name) for name in own]
    found += [item(part, name) for part in (body, item(body, "error")) for name in ("code", *_LIMITS)]
    for part in found:
        code = text(part)
        if code is not None and _squeezed(code) in codes.HOPELESS:
            return code
    said = (text(body) or "")[:_LONGEST_TEXT].lower()
    return next((words for words in codes.HOPELESS_TEXTS if words in said), None)


def _squeezed(code: str) -> str:
    """Return a code without separators: rate_limited and Rate-Limited are the same.

    >>> _squeezed("Rate-Limit_Exceeded")
    'ratelimitexceeded'
    """
    return code[:_LONGEST_CODE].lower().replace("_", "").replace("-", "").replace(" ", "")
