"""Judge an exception or result: what is known about its class, groups of errors, and errors inside errors.

``_evidence`` reads the evidence on one exception. A group is retryable if all of its errors are. A wrapper is
judged by the error that it wraps: if that is permanent, so is the wrapper. One layer that shows that nothing
was sent makes the whole unprocessed. A class that no table knows is judged by the last word of its name, as
in ``BrokerTimeoutError``; a name is weak evidence, which counts for classes of installed packages only, after
everything else, and never shows that a request had no effect.
"""

from __future__ import annotations

import sys
from _weakref import ref

from .._base.headers import read_headers
from ..errors import RedoubleError
from . import _table_classes as tables
from . import _table_statuses as t
from ._codes import READERS, aws
from ._evidence import (
    QUESTIONS,
    UNTRUSTED,
    Evidence,
    Verdict,
    doubt,
    first_answer,
    http_reason,
    http_verdict,
    worded_code,
)
from ._probe import get, inner, leaves, message, result_response, status_code, texts
from ._retry_after import INTERESTING, hint
from ._table_statuses import PERMANENT, RETRYABLE_STATUSES, Cause

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ._codes import Reader
    from ._table_statuses import Meaning

    Named = tuple[str, Meaning]

_DEEPEST = 8  # layers of wrapping
_WIDEST = 64  # errors inside one error
_NOTHING = Verdict(False, reason="nothing is known about it")
_NO_RESPONSE = Verdict(False)  # without a reason: there is nothing to say about an ordinary result
_DISCONNECTED_OR_WRAPPER = t.wrapping(t.DISCONNECTED)
_MOST_CLASSES = 2000
_ITERATION: frozenset[type] = frozenset({StopIteration, StopAsyncIteration})
_READ = t.EVIDENCE_NAMES | {"__getattr__", "__getattribute__"}
_DIRECTORIES = frozenset({"site-packages", "dist-packages"})
_LONGEST_FIRST = sorted(tables.LAST_WORDS, key=len, reverse=True)


class Judge:
    """The judgement of one failure. Judged errors are remembered, so that every cycle ends.

    ``corrected`` changes the verdict on an exception by the lists of a `Classifier`. ``now`` is the time that
    dates in headers are measured from. With a ``trace``, a line is added to it for each error that is judged.
    """

    __slots__ = ("corrected", "left", "now", "seen", "statuses", "trace")

    def __init__(
        self,
        statuses: frozenset[int] = RETRYABLE_STATUSES,
        corrected: Callable[[BaseException, Verdict], Verdict] | None = None,
        now: float | None = None,
        trace: list[str] | None = None,
    ) -> None:
        self.statuses = statuses
        self.corrected = corrected
        self.now = now
        self.trace = trace
        # With the exception itself, since the id of one that is gone may be given to another.
        self.seen: dict[int, tuple[BaseException, Verdict]] = {}
        self.left = _WIDEST

    def failure(self, failure: object) -> Verdict:
        """Return the verdict on an exception or a result."""
        known: Any = failure
        return self._error(known, 0) if issubclass(type(known), BaseException) else self._result(known)

    def _result(self, result: object) -> Verdict:
        """Judge a result: a failed response by its status, anything else as no failure."""
        status, headers = result_response(result)
        if status is None:
            self._tell(type(result).__name__, 0, "no response")
            return _NO_RESPONSE
        self._tell(type(result).__name__, 0, "HTTP status {} decides", status)
        told = read_headers(headers, INTERESTING)
        wait = hint(told, status, self.now)
        if status < 400 and status not in self.statuses:
            return Verdict(False, Cause.unknown, status, wait, http_reason(status, told, wait, None))
        answer = aws(result)
        if answer is not None:
            meaning, reason = answer[:2]
            return Verdict(meaning.retryable, meaning.cause, status, wait, reason, meaning.unprocessed)
        return http_verdict(status, told, wait, None, self.statuses)

    def _error(self, exc: BaseException, depth: int) -> Verdict:
        """Judge an exception once: by its own evidence, else by an inner error, else by weak evidence.

        Last comes the classifier, which may say something else about the class.
        """
        info = class_info(type(exc))
        if not info.failure:
            return Verdict(False, Cause.permanent, reason=f"{type(exc).__name__} is not a failure")
        if depth and id(exc) in self.seen:
            return self.seen[id(exc)][1]
        found = None
        evidence: Any = None
        if not info.group:
            evidence = Evidence(exc, info, self.statuses, self.now)
            found = first_answer(evidence)
            if self.trace is not None:
                self._tell(evidence.name, depth, "{}", _answered(evidence, found))
        if found is None:
            self.seen[id(exc)] = exc, _NOTHING  # until the errors inside are judged, which may hold this one
            if info.group:
                found = self._group(exc, depth)
            else:
                found = self._inside(evidence, depth) or self._outside(evidence, depth)
        if self.corrected is not None:
            found = self.corrected(exc, found)
        if depth:
            self.seen[id(exc)] = exc, found
        return found

    def _group(self, exc: BaseException, depth: int) -> Verdict:
        """Judge all errors of a group; the first that is not retryable decides.

        The hint is the largest of all, and the group is unprocessed only if all of its errors are.
        """
        members = leaves(exc)
        self._tell(type(exc).__name__, depth, "a group of {}, retryable if all of them are", len(members))
        verdicts: list[Verdict] = []
        for leaf in members:
            self.left = _WIDEST
            verdicts.append(self._error(leaf, depth + 1))
        hints = [found.retry_after for found in verdicts if found.retry_after is not None]
        decisive = next((found for found in verdicts if not found.retryable), verdicts[0])
        status = decisive.status if len({found.status for found in verdicts}) == 1 else None
        reason = f"{decisive.reason} in a group of {len(verdicts)}"
        unprocessed = False not in [found.unprocessed for found in verdicts]
        wait = max(hints, default=None)
        return Verdict(decisive.retryable, decisive.cause, status, wait, reason, unprocessed)

    def _inside(self, evidence: Evidence, depth: int) -> Verdict | None:
        """Return the verdict on an error that this one wraps; None if none of them says anything.

        Status and hint come from the wrapper where the inner error has none. The search ends after 8 layers,
        and after 64 errors in all, so that a hostile chain costs a bounded time.
        """
        if depth >= _DEEPEST:
            return None
        exc, meaning = evidence.exc, evidence.meaning
        for wrapped in inner(exc, evidence.deep):
            self.left -= 1
            if self.left < 0:
                return None
            found = self._error(wrapped, depth + 1)
            if not found.retryable and found.cause is Cause.unknown:
                continue
            # The wrapper may show that nothing was sent. The inner error does only if it is the stated cause.
            stated = evidence.deep or wrapped is exc.__cause__ or not found.retryable
            cause, unprocessed = found.cause, found.unprocessed and stated
            if meaning is not None and meaning.unprocessed and found.retryable and not found.unprocessed:
                cause, unprocessed = meaning.cause, True
            status = evidence.status if found.status is None else found.status
            wait = evidence.hint if found.retry_after is None else found.retry_after
            reason = f"{found.reason} inside {evidence.name}"
            return Verdict(found.retryable, cause, status, wait, reason, unprocessed)
        return None

    def _outside(self, evidence: Evidence, depth: int) -> Verdict:
        """Return the verdict by weak evidence: a base class, a code in words, a class name, a text.

        Comes last, when neither the exception nor an error inside it has decided. Each kind of weak evidence
        may be ruled out by `doubt`, and then the reason for that is the verdict.
        """
        name, info = evidence.name, evidence.info
        weak = _weak_evidence(evidence)
        where, word, meaning = weak or ("class", "", evidence.meaning)
        ruled_out = _doubted(evidence, meaning)
        if ruled_out is not None:
            words, meaning = ruled_out
            self._tell(name, depth, "nothing inside; {} is ruled out ({} it)", where, words)
            return evidence.verdict(meaning, f"{words} {name}")
        if weak is not None and meaning is not None:
            self._tell(name, depth, "nothing inside; {} decides ({}{})", where, _PREFIX[where], word)
            return evidence.verdict(meaning, f"{name}, whose {where} says {word}")
        said = _transient_text(evidence) if meaning is None else None
        if said is not None:
            words, cause = said
            self._tell(name, depth, "nothing inside; text decides ({})", words)
            return Verdict(True, cause, evidence.status, evidence.hint, f"{name}, whose text says {words}")
        if info.veto is not None:
            self._tell(name, depth, "nothing inside; name is no evidence ({} in it)", info.veto[0])
        elif meaning is not None:
            self._tell(name, depth, "nothing inside; class decides ({})", info.rule or "ConnectionError")
        if meaning is not None:
            return evidence.verdict(meaning, name)
        return Verdict(False, Cause.unknown, evidence.status, evidence.hint, f"{name}: {_NOTHING.reason}")

    def _tell(self, name: str, depth: int, line: str, *values: object) -> None:
        """Add a line to the trace, if there is one: indented by depth, with the values in ``{}``."""
        if self.trace is not None:
            self.trace.append(f"{'  ' * depth}{name}: {line.format(*values)}")


_PREFIX = {"name": "last word: ", "code": ""}


def _answered(evidence: Evidence, found: Verdict | None) -> str:
    """Return which question decided, and which had no answer before it, for ``explain``.

    As in ``class decides (httpx.ReadTimeout); no own error, code, HTTP status``.
    """
    info = evidence.info
    if found is None:
        kept = "is a wrapper" if info.meaning is not None and info.meaning.inside else "is a base class"
        rule = f"; {info.rule} {kept}" if info.meaning is not None else ""
        return f"nothing decides{rule}; looked inside"
    rule = info.rule if evidence.question == "class" else found.reason
    before = ", ".join([name for name, _ in QUESTIONS]).partition(evidence.question)[0].rstrip(", ")
    shown = f" ({rule})" if rule != evidence.name else ""
    return f"{evidence.question} decides{shown}{f'; no {before}' if before else ''}"


def _weak_evidence(evidence: Evidence) -> tuple[str, str, Meaning] | None:
    """Return the code in words or the last word of the class name, with its meaning; or None.

    The first item says which: "code" or "name". An exception that says ``retryable = False`` has neither.
    """
    info = evidence.info
    if evidence.meaning not in (None, PERMANENT) or not (info.installed or info.word):
        return None
    for name in t.CLAIM_ATTRIBUTES:
        if get(evidence.exc, name) is False:
            return None
    if info.installed and evidence.status is None and not info.warns:
        coded = worded_code(evidence.exc)
        if coded is not None:
            return "code", *coded
    return None if info.word is None else ("name", *info.word)


def _doubted(evidence: Evidence, meaning: Meaning | None) -> tuple[str, Meaning] | None:
    """Return what rules out a meaning that would be retried, in words, and the meaning to use instead.

    None if nothing does. A meaning from the table of classes is ruled out only by a bad certificate.
    """
    if meaning is None or not meaning.retryable:
        return None
    if meaning is not evidence.meaning or (meaning is evidence.info.vague and evidence.info.installed):
        return doubt(evidence.exc)
    return (UNTRUSTED, PERMANENT) if tables.CERTIFICATE_TEXT in message(evidence.exc) else None


def _transient_text(evidence: Evidence) -> tuple[str, Cause] | None:
    """Return the words in the text of an installed package's error that name a transient failure; or None.

    A status in the text, as in "HTTP error 503", comes before words such as "connection refused".
    """
    if not evidence.info.installed or evidence.status is not None:
        return None
    lower = "\n".join(texts(evidence.exc)).lower()
    for words in t.STATUS_TEXTS:
        number = lower.partition(words)[2][:4]
        status = status_code(number[:3]) if not number[3:].isalnum() else None
        if status is not None:
            return (f"HTTP {status}", t.STATUS_CAUSES[status]) if status in RETRYABLE_STATUSES else None
    found = next(((words, cause) for words, cause in t.TRANSIENT_TEXTS if words in lower), None)
    if found is None or evidence.info.veto is not None or doubt(evidence.exc) is not None:
        return None
    return found


# Classes


class ClassInfo:
    """One class of exceptions. Made once, since walking its MRO takes longer than judging an exception.

    - ``names``: package and qualified name of the class and its bases, without builtins.
    - ``rule``, ``meaning``: its line in the table of classes, or that of its nearest base, and the meaning.
    - ``readers``: the functions that read codes of its packages.
    - ``control``: it steers a framework, as StopIteration does, and is not a failure.
    - ``deep``: it is a wrapper, whose attributes are searched for the real failure.
    - ``installed``: it is of an installed package, so that its name and its text are weak evidence.
    - ``coded``: its ``code`` is an HTTP status, by its name.
    - ``open``: no table has the class itself, so an explicit cause or its name counts before a base class.
    - ``word``, ``veto``: the last word of its name, if that is transient, and a word that rules it out.
    - ``blank``: the class has no attribute that is evidence. ``mute``: nothing on the class decides.
    - ``failure``, ``group``, ``own``, ``system``: an Exception, a group, an error of redouble, an OSError.
    - ``builtin``, ``vague``: the meaning of a builtin base class, and of a ConnectionError without errno.
    - ``warns``: reading its attributes warns.
    """

    def __init__(self, cls: type) -> None:
        self.names = [found[1:] for base in cls.__mro__ if (found := place(base)) is not None]
        self.rule, self.meaning, self.readers = _looked_up(self.names)
        loop = not _ITERATION.isdisjoint(cls.__mro__)
        self.control = loop or not tables.CONTROL_FLOW.isdisjoint(self.names)
        if self.control:
            self.rule, self.meaning = "control flow", PERMANENT
        # A wrapper: every attribute that may hold the real failure is searched.
        packages = {package for package, _ in self.names}
        self.deep = not tables.WRAPPING_PACKAGES.isdisjoint(packages)
        if self.meaning is not None:
            self.deep = self.meaning.inside
        self.installed = is_installed(cls.__module__)
        self.coded = self.installed and not self.readers and _speaks_http(cls)
        # Not in the tables itself: an explicit cause or its name outranks the meaning of a base class.
        own_line = bool(self.names) and self.rule == ".".join(self.names[0])
        self.open = self.meaning is None or (self.meaning is PERMANENT and not own_line and not self.control)
        self.word, self.veto = _named(cls, self.rule) if self.open else (None, None)
        if self.meaning is not None and self.veto is not None:
            self.open = False
        # Evidence is in the __dict__ of the instance, or on the class if it was set there since.
        bases = [base for base in cls.__mro__ if base.__module__ != "builtins"]
        self.blank = all(_READ.isdisjoint(base.__dict__) for base in bases)
        self.failure = issubclass(cls, Exception)
        self.group = issubclass(cls, ExceptionGroup)
        self.own = issubclass(cls, RedoubleError)
        self.warns = not tables.WARNING_CLASSES.isdisjoint(self.names)
        self.system = issubclass(cls, OSError)
        self.builtin = next((meaning for base, meaning in t.BUILTINS if issubclass(cls, base)), None)
        # Where nothing else decides, a lost connection that may wrap a better reason.
        self.vague = _DISCONNECTED_OR_WRAPPER if issubclass(cls, ConnectionError) else None
        # Nothing decides unless the instance carries evidence.
        self.mute = self.blank and not (self.own or self.readers or self.meaning or self.system)


# By id: a weak key would be hashed, which asks the metaclass. With the class, since ids are reused.
_known: dict[int, tuple[ref[type], ClassInfo]] = {}


def class_info(cls: type) -> ClassInfo:
    """Return what is known about a class, made when it is first asked for. Holds no class alive.

    >>> class_info(TimeoutError).builtin.cause, class_info(StopIteration).control
    (<Cause.timeout: 'timeout'>, True)
    """
    known = _known.get(id(cls))
    if known is not None and known[0]() is cls:
        return known[1]
    if len(_known) >= _MOST_CLASSES:
        _known.clear()
    found = ClassInfo(cls)
    _known[id(cls)] = ref(cls), found
    return found


def place(cls: type) -> tuple[str, str, str] | None:
    """Return module, package and qualified name of a class; None for builtins.

    The package of a fork or of a C module is that of the original, as in ``ALIASES``.

    >>> import socket
    >>> place(socket.gaierror), place(OSError)
    (('socket', 'socket', 'gaierror'), None)
    """
    module: object = cls.__module__
    if type(module) is not str or module == "builtins":
        return None
    package = module.partition(".")[0]
    return module, tables.ALIASES.get(package, package), cls.__qualname__


def _looked_up(names: list[tuple[str, str]]) -> tuple[str, Meaning | None, tuple[Reader, ...]]:
    """Return the line and the meaning of a class or its nearest base, and the code readers down to there.

    ``names`` are packages and names of the class and its bases, most derived first. A reader that belongs to
    a class behind the one that has a line is not asked: that line is more exact.
    """
    packages = dict.fromkeys([package for package, _ in names])
    readers = [READERS[package] for package in packages if package in READERS]
    for package, name in names:
        key = f"{package}.{name}"
        if key in READERS:
            readers.append(READERS[key])
        if key in tables.CLASSES:
            return key, tables.CLASSES[key], tuple(readers)
    return "", None, tuple(readers)


def _named(cls: type, rule: str) -> tuple[Named | None, Named | None]:
    """Return the last word in the name of a class or its nearest base, and the word that rules it out.

    Classes of installed packages only, up to the base class that the tables have. A base class about
    connections does not count: a clean end and a bad address derive from it, too.
    """
    for base in cls.__mro__:
        module, package, qualname = place(base) or ("", "", "")
        if rule and f"{package}.{qualname}" == rule:
            break
        if not is_installed(module):
            continue
        name = qualname.rpartition(".")[2]
        ruled_out = veto(name)
        if ruled_out is not None:
            return None, ruled_out
        word = last_word(name)
        if word is not None and (base is cls or word[1].cause not in tables.ABOUT_CONNECTIONS):
            return word, None
    return None, None


def _speaks_http(cls: type) -> bool:
    """Return whether a number from 400 to 599 in ``code`` is a status, by the name of the class.

    ``ApiError`` and ``HTTPException`` speak HTTP. ``SmtpResponseError`` and ``ExitStatusError`` have codes of
    another kind.
    """
    module, package, qualname = place(cls) or ("", "", "")
    other = f"{module} {package} {qualname}".lower()
    return any(word in qualname for word in t.HTTP_NAMES) and not any(word in other for word in t.OTHER_CODES)


def last_word(name: str) -> Named | None:
    """Return the last word of a class name and its meaning; None where the tables do not have it.

    >>> last_word("BrokerTimeoutError")[0], last_word("ThrottledOperation")[0], last_word("ParseError")
    ('timeout', 'throttled', None)
    """
    word = name.lower().replace("_", "")
    while ending := next((ending for ending in tables.ENDINGS if word.endswith(ending)), ""):
        word = word.removesuffix(ending)
    found = next((found for found in _LONGEST_FIRST if word.endswith(found)), None)
    if found is None:
        words = f" {_words(name)}"
        found = next((found for found in tables.ANYWHERE if f" {found}" in words), None)
    return None if found is None else (found, tables.LAST_WORDS[found])


def veto(name: str) -> Named | None:
    """Return the first word in a class name that means a permanent failure, and its meaning; or None.

    >>> veto("InvalidTokenError")[0], veto("ReadTimeout")
    ('invalid', None)
    """
    words = f" {_words(name)}"
    for meaning, vetoes in tables.VETOES.items():
        for word in vetoes:
            if f" {word}" in words:
                return word.strip(), meaning
    return None


def _words(name: str) -> str:
    """Return the words of a name in lower case.

    >>> _words("HTTPNotFound"), _words("read_timeout")
    ('http not found', 'read timeout')
    """
    spaced = ""
    for before, letter, after in zip(f" {name}", name, f"{name[1:]} ", strict=False):
        starts = letter.isupper() and (not before.isupper() or after.islower())
        spaced += f" {letter.lower()}" if starts else letter.lower()
    return spaced.replace("_", " ").lstrip()


def is_installed(module: str) -> bool:
    """Return whether the file of a module is below a directory that packages are installed into.

    Names of classes in the user's own code say too little: their author can mark them with ``retryable``.
    """
    try:
        file = getattr(sys.modules.get(module), "__file__", None)
    except Exception:  # noqa: BLE001 - anything may stand in sys.modules, and a module name may be anything
        return False
    return type(file) is str and not _DIRECTORIES.isdisjoint(file.replace("\\", "/").split("/"))
