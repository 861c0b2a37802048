"""Judge a class that no table knows by the last word of its name, as in ``BrokerTimeoutError``.

A name is weak evidence. It counts for classes of installed packages only, after everything else, and it
never shows that a request had no effect. One word of ``VETOES`` anywhere in the name rules it out.
"""

from __future__ import annotations

import sys

from ._catalogue import BROKEN, BUSY, LOST, PERMANENT, TIMED_OUT, UNAUTHORIZED, Cause, Row
from ._codebook import spelled

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_UNREACHED = Row(True, Cause.connection)
_LIMITED = Row(True, Cause.rate_limited)

# Last words in lower case, without underscores and without the endings below. Not "unavailable": a feature, a
# model or a page may be so for good.
LAST_WORDS: Mapping[str, Row] = dict(
    spelled(
        {
            TIMED_OUT: "timeout timedout timeoutexceeded timeoutexpired timeoutreached deadlineexceeded",
            LOST: "connectionlost connectionloss connectionclosed connectionreset connectionaborted"
            " connectiondropped connectionbroken connectionterminated connectioninterrupted lostconnection"
            " disconnected disconnect disconnection reconnect network communication brokenpipe"
            " incompleteread",
            _UNREACHED: "connect connection connectionrefused unreachable notreachable serverdown hostdown"
            " offline",
            _LIMITED: "toomanyrequests ratelimit ratelimited ratelimitexceeded ratelimitreached ratelimiting"
            " throttled throttling throttle floodwait slowdown",
            BUSY: "serviceunavailable serverunavailable temporarilyunavailable temporaryunavailable"
            " overloaded overload serverbusy servicebusy again tryagainlater temporary transient retryable"
            " retriable",
            BROKEN: "internalserver badgateway",
        }
    )
)
ANYWHERE = ("throttled", "throttling")  # which count also if another word follows, as in ThrottledOp
_LONGEST_FIRST = sorted(LAST_WORDS, key=len, reverse=True)
ENDINGS = ("error", "exception", "failure", "failed", "fault", "exc", "err")
# Words, or beginnings of words, anywhere in the name.
VETOES: Mapping[Row, tuple[str, ...]] = {
    UNAUTHORIZED: ("auth", "unauth", "credential", "password"),
    PERMANENT: (
        *(
            "permission",
            "forbidden",
            "denied",
            "invalid",
            "not found",
            "validat",
            "quota",
            "cert",
            "ssl",
            "tls",
        ),
        *(
            "unsupported",
            "not supported",
            "not allowed",
            "not implemented",
            "unknown",
            "unexpected",
            "missing",
        ),
        *(
            "duplicate",
            "already",
            "config",
            "argument",
            "parameter",
            "syntax",
            "wrong",
            "illegal",
            "malformed",
        ),
        *("incompatible", "mismatch", "fatal", "non ", "nonre", "not re", "unrecover", "irrecover", "cancel"),
        "i pv",  # IPv4Network: an address that cannot be parsed
    ),
}
_DIRECTORIES = frozenset({"site-packages", "dist-packages"})


def last_word(name: str) -> tuple[str, Row] | None:
    """Return the last word of a class name and its row, or None where it is not in the table."""
    word = _stripped(name)
    found = next((found for found in _LONGEST_FIRST if word.endswith(found)), None)
    if found is None:
        words = f" {_words(name)}"
        found = next((found for found in ANYWHERE if f" {found}" in words), None)
    return None if found is None else (found, LAST_WORDS[found])


def veto(name: str) -> tuple[str, Row] | None:
    """Return the first word in a class name that speaks of a permanent failure, and its row; or None."""
    words = f" {_words(name)}"
    for row, vetoes in VETOES.items():
        for word in vetoes:
            if f" {word}" in words:
                return word.strip(), row
    return None


def _words(name: str) -> str:
    """The words of a name in lower case, as in "http not found" for HTTPNotFound."""
    spaced = ""
    for before, letter, after in zip(f" {name}", name, f"{name[1:]} ", strict=False):
        starts = letter.isupper() and (not before.isupper() or after.islower())
        spaced += f" {letter.lower()}" if starts else letter.lower()
    return spaced.replace("_", " ").lstrip()


def _stripped(name: str) -> str:
    word = name.lower().replace("_", "")
    while True:
        ending = next((ending for ending in ENDINGS if word.endswith(ending)), "")
        if not ending:
            return word
        word = word.removesuffix(ending)


def installed(module: object) -> bool:
    """Return whether the file of a module is below a directory that packages are installed into."""
    loaded = sys.modules.get(module) if type(module) is str else None
    try:
        file = getattr(loaded, "__file__", None)
    except Exception:  # noqa: BLE001 - whatever stands in sys.modules may be anybody's object
        return False
    return type(file) is str and not _DIRECTORIES.isdisjoint(file.replace("\\", "/").split("/"))
