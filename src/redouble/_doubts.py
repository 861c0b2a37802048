"""Reasons to doubt weak evidence, and codes that are words.

The name of a class, a claim, a code in words, and a status without an answer are what a library made of a
failure, and libraries call a bad certificate a lost connection or an HTTP 500. So the errors around such an
error, and its own text, may rule it out.
"""

from __future__ import annotations

from ._catalogue import PERMANENT, UNAUTHORIZED, Row
from ._codebook import DOUBTS, HOPELESS, HOPELESS_TEXTS, WORDED
from ._kinds import kind_of
from ._shapes import around, entry, lacks, probe, text, texts, whole

_CERTIFICATE = "ssl", "SSLCertVerificationError"
_CERTIFICATE_TEXT = "certificate verify failed"
UNTRUSTED = f"{_CERTIFICATE_TEXT} inside"
_DENIED = "access denied"  # "denied" alone is also what is done to a request that is throttled
_TEXTS = ("message", "msg", "reason", "detail")
_LONGEST = 2000  # characters of one text that are searched
_LONGEST_CODE = 60
_SPACED = str.maketrans(dict.fromkeys("\"'`()[]{}<>,;:=!?|", " "))  # not "/" and ".": a path says nothing
_CODES = ("code", "error_code", "error")
_LIMITS = ("error_type", "name", "type", "error_code")
# The names of all attributes that may hold the code of a limit.
LIMITS = frozenset({"code", "body", *_LIMITS})


def doubt(exc: BaseException) -> tuple[str, Row] | None:
    """Return what rules weak evidence out, in words that a class name follows, and its row; or None."""
    limit = hopeless(exc)
    if limit is not None:
        return f"{limit} in", PERMANENT
    for said in _said(exc):
        if _CERTIFICATE_TEXT in said.replace("_", " "):
            return UNTRUSTED, PERMANENT
        if _DENIED in said:
            return f'"{_DENIED}" in the text of', UNAUTHORIZED
        for word in said.translate(_SPACED).split():
            row = DOUBTS.get(word.strip("."))
            if row is not None:
                return f'"{word.strip(".")}" in the text of', row
    return untrusted(exc)


def untrusted(exc: BaseException) -> tuple[str, Row] | None:
    """Return the words for a bad certificate among the errors that led to an error, and its row; or None."""
    for error in around(exc):
        said = texts(error).lower().replace("_", " ")
        if _CERTIFICATE_TEXT in said or _CERTIFICATE in kind_of(type(error)).names:
            return UNTRUSTED, PERMANENT
    return None


def _said(exc: BaseException) -> list[str]:
    found = [texts(exc)]
    found += [said[:_LONGEST] for name in _TEXTS if (said := text(probe(exc, name))) is not None]
    return [said.lower() for said in found]


def worded_code(exc: BaseException) -> tuple[str, Row] | None:
    """Return the code in words that an error or its body carries and its row, if it means that it passes."""
    body = probe(exc, "body")
    parts = [probe(exc, name) for name in _CODES]
    for part in (*parts, *(entry(body, name) for name in _CODES)):
        for found in (part, entry(part, "code")):
            code = text(found) or ""
            row = WORDED.get(_squeezed(code))
            if row is not None:
                return code, row
    return None


def hopeless(exc: BaseException) -> str | None:
    """Return the vendor's code for a limit that no wait cures, if the error carries one."""
    body = probe(exc, "body")
    error = entry(body, "error")
    # Where there is a status, as with aiohttp, .code warns when it is read.
    own = _LIMITS if whole(probe(exc, "status")) is not None else ("code", *_LIMITS)
    found = [] if lacks(exc, own) else [probe(exc, name) for name in own]
    found += [entry(part, name) for part in (body, error) for name in ("code", *_LIMITS)]
    for part in found:
        code = text(part)
        if code is not None and _squeezed(code) in HOPELESS:
            return code
    said = (text(body) or "")[:_LONGEST].lower()
    return next((words for words in HOPELESS_TEXTS if words in said), None)


def _squeezed(code: str) -> str:
    """A code without what languages put between its words: rate_limited and Rate-Limited are one."""
    return code[:_LONGEST_CODE].lower().replace("_", "").replace("-", "").replace(" ", "")
