"""Exception or response in, verdict out: may the call be repeated, and what does the failure say?

Unknown is not retryable: only evidence makes a failure transient. Evidence is found by shape, and the first
question of ``_questions`` that has an answer decides; ``_inquiry`` looks into groups and wrappers. Nothing is
imported for it, nothing is raised over the failure, and nothing of it is kept.
"""

from __future__ import annotations

import builtins

from ._catalogue import ALL_ADDRESSES_FAILED, BUILTINS, ERRNOS, RETRYABLE_STATUSES, Cause
from ._classes import CERTIFICATE_TEXT
from ._exchange import looks_like_headers, result_exchange
from ._explain import Told, story
from ._hints import headers_hint, parse_retry_after
from ._inquiry import Inquiry, examined
from ._questions import Verdict
from ._record import Record, assign
from ._shapes import (
    ancestry,
    class_name,
    listed,
    probe,
    real,
    status_code,
    whole,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, TypeVar

    from ._requests import Search

    E = TypeVar("E", bound=Exception)
    Names = type[Exception] | str | Iterable[type[Exception] | str]

__all__ = [
    "RETRYABLE_STATUSES",
    "Cause",
    "Classifier",
    "Verdict",
    "accepted",
    "explain",
    "is_retryable",
    "parse_retry_after",
    "repeatable",
    "request_method",
    "retry_after",
    "transient",
    "verdict",
]

# Pickles and tracebacks name the module that users import from, wherever the code may move.
Cause.__module__ = Verdict.__module__ = __name__

# Builtin errors decide by class and errno alone if they carry nothing else, so each is judged only once.
# By id: hashing a class asks its metaclass. True for those that have an errno.
_BUILTIN = {
    id(kind): issubclass(kind, OSError)
    for kind in vars(builtins).values()
    if isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, BaseExceptionGroup)
}
_TELLING = {id(kind) for kind, _ in BUILTINS}  # whose class decides, whatever they hold
_judged: dict[tuple[int, int | None], Verdict] = {}


def _plain(failure: object) -> tuple[int, int | None] | None:
    """The class and errno of a builtin error whose verdict nothing else decides."""
    kind = id(type(failure))
    numbered = _BUILTIN.get(kind)
    if numbered is None:
        return None
    error: Any = failure
    if error.__cause__ is not None or error.__dict__:
        return None
    number = error.errno if numbered else None
    if number is None:
        if kind not in _TELLING and (error.__context__ is not None or _says_more(error.args)):
            return None
        return kind, None
    # Windows has numbers of its own beside the errno.
    known = type(number) is int and number in ERRNOS and getattr(error, "winerror", None) is None
    return (kind, number) if known else None


def _says_more(args: tuple[Any, ...]) -> bool:
    """Return whether an error was given more than plain text: other errors, or a bad certificate."""
    # A loop, since this is asked of every such failure.
    for given in args:
        if type(given) is not str or CERTIFICATE_TEXT in given or given.startswith(ALL_ADDRESSES_FAILED):
            return True
    return False


class Classifier(Record):
    """The rules by which failures are judged: the default ones, with other statuses or more classes.

    ``transient``, ``permanent`` and ``unprocessed`` (transient, and certainly without effect) take exception
    types, or their names as ``"module.Qualname"`` so that nothing need be imported; of two that fit, the more
    derived one counts. They overrule all other evidence, but no interrupt becomes a failure.

    There is no registry to enter a class into: what one module registered would change the retries of
    another. A classifier is a value that is handed to a policy. A library whose errors everybody should
    judge alike lets them say so themselves, with ``retryable = True`` or ``retry_after`` in seconds.

    >>> patient = Classifier(statuses=RETRYABLE_STATUSES | {404}, transient=[LookupError])
    >>> patient.verdict(KeyError("not yet there")).retryable
    True
    """

    __slots__ = ("statuses", "transient", "permanent", "unprocessed")  # noqa: RUF023

    statuses: frozenset[int]
    transient: frozenset[type[Exception] | str]
    permanent: frozenset[type[Exception] | str]
    unprocessed: frozenset[type[Exception] | str]

    def __init__(
        self,
        statuses: Iterable[int] = RETRYABLE_STATUSES,
        transient: Names = (),
        permanent: Names = (),
        unprocessed: Names = (),
    ) -> None:
        assign(self, "statuses", _statuses(statuses))
        assign(self, "transient", _names("transient", transient))
        assign(self, "permanent", _names("permanent", permanent))
        assign(self, "unprocessed", _names("unprocessed", unprocessed))
        for name in self.permanent & (self.transient | self.unprocessed):
            raise ValueError(f"permanent must not name what is transient or unprocessed too, got {name!r}")

    def verdict(self, failure: object, /) -> Verdict:
        """What an exception or a response-like result means; never raises.

        >>> Classifier(permanent=[TimeoutError]).verdict(TimeoutError()).retryable
        False
        """
        plain = None if self.transient or self.permanent or self.unprocessed else _plain(failure)
        if plain in _judged:
            return _judged[plain]
        found = self._examined(failure, None)
        if found.retry_after is not None and not found.retryable and real(failure, BaseException):
            # A delay beside a refusal is not an invitation. A result may yet be refused by until=, and wait.
            found = Verdict(False, found.cause, found.status, None, found.reason, found.unprocessed)
        if plain is not None:
            _judged[plain] = found
        return found

    def extend(
        self,
        *,
        statuses: Iterable[int] = (),
        transient: Names = (),
        permanent: Names = (),
        unprocessed: Names = (),
    ) -> Classifier:
        """Another classifier with more statuses, types or names; what is named anew counts, not the old.

        >>> company = Classifier(transient=["company.Busy"])
        >>> ours = company.extend(statuses=[404], permanent=["company.Busy"], transient=[LookupError])
        >>> ours.permanent, 404 in ours.statuses, company.permanent
        (frozenset({'company.Busy'}), True, frozenset())
        """
        given = {
            "transient": _names("transient", transient),
            "permanent": _names("permanent", permanent),
            "unprocessed": _names("unprocessed", unprocessed),
        }
        anew = frozenset[type[Exception] | str]().union(*given.values())
        merged = {field: (getattr(self, field) - anew) | names for field, names in given.items()}
        return Classifier(self.statuses | _statuses(statuses), **merged)

    def explain(self, failure: object, /) -> str:
        """Why this classifier's verdict is what it is, in a few lines."""
        return _explained(self, failure)

    def _examined(self, failure: object, now: float | None) -> Verdict:
        try:
            if not (self.transient or self.permanent or self.unprocessed):
                return examined(failure, self.statuses, now)
            return Inquiry(self.statuses, self._corrected, now).failure(failure)
        except Exception as trouble:  # noqa: BLE001 - a last resort: the user's error must not be lost to ours
            return Verdict(False, reason=f"could not be examined: {class_name(trouble)}")

    def _corrected(self, exc: BaseException, found: Verdict) -> Verdict:
        """The verdict with what this classifier was told about the class."""
        for cls in ancestry(type(exc)):
            if listed(cls, self.permanent):
                return _overruled(found, False, Cause.permanent, f"{class_name(exc)} is listed as permanent")
            safe = listed(cls, self.unprocessed)
            if safe or listed(cls, self.transient):
                cause = Cause.unavailable if found.cause is Cause.permanent else found.cause
                reason = f"{class_name(exc)} is listed as {'unprocessed' if safe else 'transient'}"
                return _overruled(found, True, cause, reason, safe)
        return found


def _explained(classifier: Classifier, failure: object) -> str:
    inquiry = Told(classifier.statuses, classifier._corrected, None)
    found = classifier.verdict(failure)
    try:
        inquiry.failure(failure)
    except Exception as trouble:  # noqa: BLE001 - as above
        return story(found, [f"could not be looked at: {class_name(trouble)}"])
    return story(found, inquiry.lines)


def _overruled(found: Verdict, retryable: bool, cause: Cause, reason: str, safe: bool = False) -> Verdict:
    return Verdict(retryable, cause, found.status, found.retry_after, reason, safe or found.unprocessed)


def _statuses(statuses: Iterable[int]) -> frozenset[int]:
    try:
        known = {given: status_code(whole(given)) for given in statuses}
    except TypeError:
        raise TypeError(f"statuses takes several HTTP statuses, got {statuses!r}") from None
    for given, status in known.items():
        if status is None:
            raise ValueError(f"statuses must be HTTP statuses (100 to 599), got {given!r}")
    found = frozenset([status for status in known.values() if status is not None])
    # The default ones by identity: what a bare status means to them is remembered.
    return RETRYABLE_STATUSES if found == RETRYABLE_STATUSES else found


def _names(field: str, names: Names) -> frozenset[type[Exception] | str]:
    rule = f"{field} takes types of Exception, or their names as 'module.Qualname'"
    try:
        given = frozenset([names] if isinstance(names, (type, str)) else names)
    except TypeError:
        raise TypeError(f"{rule}, got {names!r}") from None
    for name in given:
        if not (_is_dotted(name) if isinstance(name, str) else _is_failure(name)):
            raise TypeError(f"{rule}, got {name!r}")
    return given


def _is_dotted(name: str) -> bool:
    return "." in name and all(part.isidentifier() for part in name.split("."))


def _is_failure(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, Exception)


DEFAULT = Classifier()


def verdict(failure: object, /) -> Verdict:
    """What an exception or a response-like result means for the call; never raises.

    Unknown failures are not retryable, and neither is a result that is no failed response.

    >>> verdict(ConnectionResetError()).cause, verdict(FileNotFoundError()).retryable
    (<Cause.disconnected: 'disconnected'>, False)
    >>> verdict((503, {"Retry-After": "7"}, b"")).reason
    'HTTP 503 with Retry-After: 7'
    """
    return DEFAULT.verdict(failure)


def transient(kind: type[E]) -> type[E]:
    """Class decorator for errors of one's own: they may pass, so they are retried wherever they come out.

    It says ``retryable = True`` on the class, and so of its subclasses. For classes of others, hand a
    `Classifier` to the policy.

    >>> @transient
    ... class WarmingUp(Exception):
    ...     pass
    >>> verdict(WarmingUp()).retryable
    True
    """
    if not _is_failure(kind):
        raise TypeError(f"transient marks classes of Exception, got {kind!r}")
    try:
        kind.retryable = True  # type: ignore[attr-defined]
    except TypeError:
        advice = f"policies take on=Classifier(transient=[{kind.__name__}])"
        raise TypeError(f"{kind.__name__} cannot be marked, it is built in: {advice}") from None
    return kind


def explain(failure: object, /) -> str:
    """Why a verdict is what it is, for people: the verdict, then a line for each error that was looked at.

    >>> from urllib.error import URLError
    >>> print(explain(URLError(ConnectionRefusedError())))
    retryable, cause connection, unprocessed: ConnectionRefusedError inside URLError
    URLError: nothing decides; urllib.URLError is a wrapper; looked inside
      ConnectionRefusedError: operating system decides; no own error, code, HTTP status, class, own word
    """
    return DEFAULT.explain(failure)


def is_retryable(failure: object, /, *, idempotent: bool = True) -> bool:
    """Whether a call that failed so may be repeated; if not ``idempotent``, only if it had no effect.

    >>> is_retryable(TimeoutError()), is_retryable(TimeoutError(), idempotent=False)
    (True, False)
    """
    found = verdict(failure)
    return found.retryable and (idempotent or found.unprocessed)


def accepted(response: object, /) -> bool:
    """For ``until=``: False only for a response that says to try again, so a 404 is accepted.

    >>> accepted((200, {}, b"")), accepted((404, {}, b"")), accepted((503, {}, b""))
    (True, True, False)
    """
    return not verdict(response).retryable


def retry_after(source: object, /, *, now: float | None = None) -> float | None:
    """Seconds that the server asks to wait, from an exception, a response or its headers; or None.

    Dates are measured from ``now`` in seconds since 1970, or from the answer's own ``Date``. Unlike
    ``verdict(error).retry_after`` this is told for failures too that are not retryable.

    >>> retry_after({"Retry-After": "120"}), retry_after((429, {"retry-after-ms": "250"}, b""))
    (120.0, 0.25)
    """
    if real(source, BaseException):
        return DEFAULT._examined(source, now).retry_after
    status, headers = result_exchange(source)
    if status is None:
        headers = probe(source, "headers")
    if headers is None and looks_like_headers(source):
        headers = source
    return headers_hint(headers, status=status, now=now)


def repeatable(failure: object, /) -> bool | None:
    """Return whether the failed request may be sent twice; None where no request is visible.

    It may by its method (GET, HEAD, PUT, DELETE, OPTIONS, TRACE), by an ``Idempotency-Key``, or as a read
    that is sent as POST. Takes an exception or a response. All requests count that are found on it, on the
    errors that it wraps or was raised in the handling of, and in the frames that it came through: one that
    may not be repeated decides.

    >>> from urllib.request import Request
    >>> error = TimeoutError()
    >>> error.request = Request("https://example.org/orders", method="POST")
    >>> repeatable(error), repeatable(TimeoutError())
    (False, None)
    """
    found = _requests_behind(failure)
    return found.culprit is None if found.sent else None


def request_method(failure: object, /) -> str | None:
    """Return the method of the failed request in capitals; None where no request is visible.

    Of several, that of the first that may not be sent twice.

    >>> request_method(TimeoutError()) is None
    True
    """
    found = _requests_behind(failure)
    return next((sent.method for sent in (found.culprit, *found.sent) if sent and sent.method), None)


def _requests_behind(failure: object) -> Search:
    # Late: only calls that have failed need it, and its tables.
    from ._requests import search

    return search(failure)
