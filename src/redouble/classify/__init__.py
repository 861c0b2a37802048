"""Classify failures: whether a call may be repeated, and why it failed.

`verdict` takes an exception or a response and returns a `Verdict`. A `Classifier` has other rules.
"""

# The modules `_table_*` hold what is known; `_judge` decides by the evidence that `_evidence` reads.

from __future__ import annotations

import builtins

from .._base.checks import sync_function
from .._base.headers import read_headers
from .._base.record import Record, assign
from . import _table_statuses as t
from ._evidence import Verdict, cause_of
from ._judge import Judge
from ._judge import class_info as class_info
from ._probe import get, is_a, looks_like_headers, result_response, status_code, whole
from ._probe import handed as handed
from ._probe import leaves as leaves
from ._requests import Sent, by_aws, may_repeat_request, method_of
from ._requests import find_requests as find_requests
from ._retry_after import INTERESTING, hint, parse_retry_after
from ._table_classes import CERTIFICATE_TEXT
from ._table_requests import FRAMES
from ._table_statuses import RETRYABLE_STATUSES, Cause

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import CodeType
    from typing import Any, TypeVar

    Names = type[Exception] | str | Iterable[type[Exception] | str]
    E = TypeVar("E", bound=Exception)

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

# Pickles and tracebacks name the module that users import from.
Cause.__module__ = Verdict.__module__ = __name__

# Builtin errors; True for those with an errno. One that carries nothing else is judged by class and errno
# alone, so each is judged only once.
_BUILTIN_ERRORS: dict[type, bool] = {
    cls: issubclass(cls, OSError)
    for cls in vars(builtins).values()
    if isinstance(cls, type) and issubclass(cls, Exception) and not issubclass(cls, BaseExceptionGroup)
}
_judged: dict[tuple[type, int | None], Verdict] = {
    (cls, None): Verdict(meaning.retryable, meaning.cause, None, None, cls.__name__, meaning.unprocessed)
    for cls, meaning in t.BUILTINS
}
_UNEXAMINED = "could not be examined: "
_DECISIVE = frozenset([cls for cls, _ in t.BUILTINS])  # their class decides, whatever they hold


class Classifier(Record):
    """Rules by which failures are judged: the default ones, with other statuses or more classes.

    ``transient``, ``permanent`` and ``unprocessed`` (transient, and certainly without effect) take exception
    types, or their names as ``"module.Qualname"`` so that nothing has to be imported. If two of them fit, the
    more derived one counts. They overrule all other evidence. Interrupts are never retried.

    There is no global registry of classes: a class that one module registers would change the retries of
    another. Pass a classifier to a policy, as ``on=``. A library can mark its own errors, with
    ``retryable = True`` or ``retry_after`` in seconds.

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
            raise ValueError(f"permanent must not list classes of transient or unprocessed, got {name!r}")

    def verdict(self, failure: object, /) -> Verdict:
        """Return what an exception or a response-like result means; never raises.

        >>> Classifier(permanent=[TimeoutError]).verdict(TimeoutError()).retryable
        False
        """
        try:
            listed = self.transient or self.permanent or self.unprocessed
            found = Judge(self.statuses, self._corrected if listed else None).failure(failure)
        except Exception as error:  # noqa: BLE001 - an object that lies about itself; its own error must not be lost
            return Verdict(False, reason=f"{_UNEXAMINED}{type(error).__name__}")
        if found.retry_after is not None and not found.retryable and is_a(failure, BaseException):
            # A delay beside a refusal is not a hint. A result may still be rejected by until=, and wait.
            found = Verdict(False, found.cause, found.status, None, found.reason, found.unprocessed)
        return found

    def extend(
        self,
        *,
        statuses: Iterable[int] = (),
        transient: Names = (),
        permanent: Names = (),
        unprocessed: Names = (),
    ) -> Classifier:
        """Return a classifier with more statuses, types or names; a new entry for a type replaces the old.

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
        new = frozenset[type[Exception] | str]().union(*given.values())
        merged = {field: (getattr(self, field) - new) | names for field, names in given.items()}
        return Classifier(self.statuses | _statuses(statuses), **merged)

    def explain(self, failure: object, /) -> str:
        """Return why this classifier's verdict is what it is, in a few lines.

        >>> print(Classifier(permanent=[TimeoutError]).explain(TimeoutError()).splitlines()[0])
        not retryable, cause permanent: TimeoutError is listed as permanent
        """
        trace: list[str] = []
        try:
            Judge(self.statuses, self._corrected, trace=trace).failure(failure)
        except Exception as error:  # noqa: BLE001 - as above
            trace = [f"could not be examined: {type(error).__name__}"]
        found = self.verdict(failure)
        words = ["retryable" if found.retryable else "not retryable", f"cause {found.cause}"]
        words += ["unprocessed"] if found.unprocessed else []
        words += [f"retry after {found.retry_after:g} s"] if found.retry_after is not None else []
        return "\n".join([f"{', '.join(words)}: {found.reason or 'no failed response'}", *trace])

    def _corrected(self, exc: BaseException, found: Verdict) -> Verdict:
        """Return the verdict as this classifier's lists of classes change it."""
        for cls in type(exc).__mro__:
            package = str(cls.__module__).partition(".")[0]
            known = {cls, f"{cls.__module__}.{cls.__qualname__}", f"{package}.{cls.__qualname__}"}
            for field in ("permanent", "unprocessed", "transient"):
                if known.isdisjoint(getattr(self, field)):
                    continue
                again = field != "permanent"
                cause = found.cause if again else Cause.permanent
                if again and cause is Cause.permanent:
                    cause = Cause.unavailable
                reason = f"{type(exc).__name__} is listed as {field}"
                unprocessed = field == "unprocessed" or found.unprocessed
                return Verdict(again, cause, found.status, found.retry_after, reason, unprocessed)
        return found


def _statuses(statuses: Iterable[int]) -> frozenset[int]:
    """Return HTTP statuses as a frozenset; raise if one of them is not a status."""
    try:
        known = {given: status_code(whole(given)) for given in statuses}
    except TypeError:
        raise TypeError(
            f"statuses must be several HTTP statuses, such as {{503}}, got {statuses!r}"
        ) from None
    for given, status in known.items():
        if status is None:
            raise ValueError(f"statuses must be HTTP statuses (100 to 599), got {given!r}")
    return frozenset([status for status in known.values() if status is not None])


def _names(field: str, names: Names) -> frozenset[type[Exception] | str]:
    """Return exception types and dotted names as a frozenset; raise if one of them is neither."""
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
    """Return whether a text may be the name of a class behind its module, as in ``"module.Qualname"``."""
    return "." in name and all(part.isidentifier() for part in name.split("."))


def _is_failure(cls: object) -> bool:
    """Return whether a thing is a class of exceptions that may be retried."""
    return isinstance(cls, type) and issubclass(cls, Exception)


DEFAULT = Classifier()


def verdict(failure: object, /) -> Verdict:
    """Return what an exception or a response-like result means for the call; never raises.

    Unknown failures are not retryable, and neither is a result that is not a failed response.

    >>> verdict(ConnectionResetError()).cause, verdict(FileNotFoundError()).retryable
    (<Cause.disconnected: 'disconnected'>, False)
    >>> verdict((503, {"Retry-After": "7"}, b"")).reason
    'HTTP 503 with Retry-After: 7'
    """
    key = _builtin_key(failure)
    if key is None:
        return DEFAULT.verdict(failure)
    found = _judged.get(key)
    if found is None:
        found = DEFAULT.verdict(failure)
        if not found.reason.startswith(_UNEXAMINED):  # no stack was left, or no memory
            _judged[key] = found
    return found


def _builtin_key(failure: object) -> tuple[type, int | None] | None:
    """Return class and errno of a builtin error that carries no other evidence; None for other failures."""
    cls = type(failure)
    error: Any = failure
    # A metaclass of somebody else might raise when the class is hashed.
    numbered = _BUILTIN_ERRORS.get(cls) if type(cls) is type else None
    if numbered is None or error.__dict__ or error.__cause__ is not None:
        return None
    number = error.errno if numbered else None
    if number is not None:
        # Windows has numbers of its own beside the errno.
        known = type(number) is int and number in t.ERRNOS and getattr(error, "winerror", None) is None
        return (cls, number) if known else None
    if cls not in _DECISIVE:
        if error.__context__ is not None:
            return None
        for arg in error.args:  # only plain text that is not about certificates and addresses
            if type(arg) is not str or CERTIFICATE_TEXT in arg or arg.startswith(t.TELLING_TEXTS):
                return None
    return cls, None


def transient(kind: type[E]) -> type[E]:
    """Mark an exception class as transient, so that its errors are retried; a class decorator.

    It sets ``retryable = True`` on the class, which its subclasses inherit. For classes of other packages,
    pass a `Classifier` to the policy.

    >>> @transient
    ... class WarmingUp(Exception):
    ...     pass
    >>> verdict(WarmingUp()).retryable
    True
    """
    if not _is_failure(kind):
        raise TypeError(f"transient() takes a subclass of Exception, got {kind!r}")
    try:
        kind.retryable = True  # type: ignore[attr-defined]
    except TypeError:
        advice = f"write on=Classifier(transient=[{kind.__name__}]) in the policy"
        raise TypeError(f"cannot mark {kind.__name__}, a built-in class: {advice}") from None
    return kind


def explain(failure: object, /) -> str:
    """Return why a verdict is what it is: the verdict, then a line for each error that was examined.

    >>> from urllib.error import URLError
    >>> print(explain(URLError(ConnectionRefusedError())))
    retryable, cause connection, unprocessed: ConnectionRefusedError inside URLError
    URLError: nothing decides; urllib.URLError is a wrapper; looked inside
      ConnectionRefusedError: operating system decides; no own error, code, HTTP status, class, own claim
    """
    return DEFAULT.explain(failure)


def is_retryable(failure: object, /, *, idempotent: bool = True) -> bool:
    """Return whether a call that failed may be repeated; if not ``idempotent``, only if it had no effect.

    >>> is_retryable(TimeoutError()), is_retryable(TimeoutError(), idempotent=False)
    (True, False)
    """
    found = verdict(failure)
    return found.retryable and (idempotent or found.unprocessed)


def accepted(response: object, /) -> bool:
    """Return False for a response that is retryable, for ``until=``; so a 404 is accepted.

    >>> accepted((200, {}, b"")), accepted((404, {}, b"")), accepted((503, {}, b""))
    (True, True, False)
    """
    return not verdict(response).retryable


def retry_after(source: object, /, *, now: float | None = None) -> float | None:
    """Return the seconds that the server asks to wait, from an exception, a response or its headers; or None.

    Dates are measured from ``now`` in seconds since 1970, or from the response's own ``Date``. Unlike
    ``verdict(error).retry_after``, this is also returned for failures that are not retryable.

    >>> retry_after({"Retry-After": "120"}), retry_after((429, {"retry-after-ms": "250"}, b""))
    (120.0, 0.25)
    """
    try:
        if is_a(source, BaseException):
            return Judge(now=now).failure(source).retry_after
        status, headers = result_response(source)
        if status is None:
            headers = get(source, "headers")
        if headers is None and looks_like_headers(source):
            headers = source
        return hint(read_headers(headers, INTERESTING), status, now)
    except Exception:  # noqa: BLE001 - an object that lies about itself
        return None


def repeatable(failure: object, /) -> bool | None:
    """Return whether the failed request may be sent twice; None if no request is visible.

    A request may be repeated by its method (GET, HEAD, PUT, DELETE, OPTIONS, TRACE), by an
    ``Idempotency-Key``, or as a read that is sent as POST. Takes an exception or a response. All requests
    count that are found on it, on its causes and contexts, and in the frames of its traceback: one that may
    not be repeated decides.

    >>> from urllib.request import Request
    >>> error = TimeoutError()
    >>> error.request = Request("https://example.org/orders", method="POST")
    >>> repeatable(error), repeatable(TimeoutError())
    (False, None)
    """
    found = find_requests(failure)
    return found.unrepeatable is None if found.sent else None


def request_method(failure: object, /) -> str | None:
    """Return the method of the failed request in capitals; None if no request is visible.

    Of several, that of the first that may not be sent twice.

    >>> request_method(TimeoutError()) is None
    True
    """
    found = find_requests(failure)
    return next((sent.method for sent in (found.unrepeatable, *found.sent) if sent and sent.method), None)


# For policies, breakers and clients


def may_repeat(method: object, request: object, headers: object) -> bool:
    """Return whether a request may be sent twice: by its method, its key, or as a read.

    ``request`` has the URL and the body, by the names that client libraries give them.
    """
    return may_repeat_request(Sent(method_of(method), request, headers), (), [])


def may_repeat_aws(model: Any, params: object) -> bool:
    """Return whether an operation of AWS may be sent twice, by botocore's model of it and its parameters."""
    variables = {"operation_name": model.name, "operation_model": model, "api_params": params}
    return bool(by_aws(variables, "")[0].repeatable)


_MOST_SILENT = 1_000


def plain_verdict(failure: Any) -> Verdict | None:
    """Return the verdict on a builtin error that came through no client, and so shows no request.

    Returns None for all other failures: judge those with `verdict`, and search them with `find_requests`.
    """
    key = _builtin_key(failure)
    if key is None or failure.__context__ is not None:
        return None
    trace, known = failure.__traceback__, _silent.get
    while trace is not None:
        code = trace.tb_frame.f_code
        if known(id(code)) is not code and not _shows_nothing(code):
            return None
        trace = trace.tb_next
    return _judged.get(key) or verdict(failure)


# Functions that show no request, by id: hashing code takes longer. Held, so that no other gets the id.
_silent: dict[int, CodeType] = {}


def _shows_nothing(code: CodeType) -> bool:
    """Return whether the frames of a function show no request, and remember it."""
    if code.co_name in FRAMES or "method" in code.co_varnames:
        return False
    if len(_silent) >= _MOST_SILENT:
        _silent.clear()
    _silent[id(code)] = code
    return True


def status_cause(status: int) -> Cause | None:
    """Return why an HTTP status is sent; None if it is not an error, or if headers may change its meaning."""
    return None if status < 400 or status in t.RETRYABLE_WHEN_HINTED else cause_of(status)


def retryable(name: str, value: Any) -> Any:
    """Check a field such as ``on=``: return types as a flat tuple, a classifier or a predicate as it is."""
    if isinstance(value, Classifier):
        return value
    if isinstance(value, (type, tuple, list, set, frozenset)):
        return tuple(_types(name, value))
    if isinstance(value, (str, BaseException)) or not callable(value):
        raise TypeError(f"{name} must be exception types, a Classifier or a predicate, got {value!r}")
    return sync_function(name, value)


def _types(name: str, value: Any) -> list[type[Exception]]:
    """Return the exception types in a type or in a nested collection of types."""
    if hasattr(value, "__iter__") and not isinstance(value, (type, str)):
        return [found for member in value for found in _types(name, member)]
    return [_exception_type(name, value)]


def _exception_type(name: str, value: Any) -> type[Exception]:
    """Return an exception class; raise if it is anything else, or an interrupt."""
    if isinstance(value, type) and issubclass(value, Exception):
        return value
    if isinstance(value, type) and issubclass(value, BaseException):
        raise TypeError(
            f"{name} must not name {value.__name__}: interrupts and cancellation are never retried; "
            "Exception is the widest type"
        )
    raise TypeError(f"{name} must name exception types, got {value!r}")


def rule_key(name: str, key: Any) -> Any:
    """Check a key of ``rules=``: a cause, an HTTP status or an exception type."""
    if isinstance(key, type):
        return _exception_type(name, key)
    if isinstance(key, str):
        try:
            return Cause(key)
        except ValueError:
            known = ", ".join(Cause)
            raise ValueError(f"{name} must name causes, one of {known}, got {key!r}") from None
    if isinstance(key, int) and 100 <= key <= 599:
        return int(key)
    raise ValueError(f"{name} must be keyed by a Cause, a status from 100 to 599 or a type, got {key!r}")
