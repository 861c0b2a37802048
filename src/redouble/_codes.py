"""Error codes of protocols and databases, where the same number means another thing to every package.

One short function per package: it takes the exception, and gives the row of the catalogue with a few words
for the reason, or None where the exception carries no code. ``PACKAGES`` says who is asked about what.
Codes are asked for before the HTTP status, since they borrow its names and numbers.
"""

from __future__ import annotations

import sys

from ._catalogue import (
    DNS_NAMES,
    DNS_TRY_AGAIN,
    LOCKED_OUT,
    LOST,
    NO_SUCH_NAME,
    PERMANENT,
    SMTP_UNAUTHORIZED,
    SQLITE_LOCKED,
    TLS_TRANSIENT,
    TURNED_AWAY,
    UNAUTHORIZED,
    UNREACHED,
    Row,
)
from ._shapes import DICT, TUPLE, arguments, lineage, probe, real, text, whole

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Answer = tuple[Row, str] | None

_MOST_RECIPIENTS = 200


def coded(exc: BaseException, names: list[tuple[str, str]]) -> Answer:
    """What the code of an exception means, if it comes from a package that has codes."""
    for package, _ in names:
        question = PACKAGES.get(package)
        if question is not None:
            return question(exc)
    return None


def _tls(exc: BaseException) -> Answer:
    if ("ssl", "SSLCertVerificationError") in lineage(type(exc)):
        return PERMANENT, "certificate verify failed"
    reason = text(probe(exc, "reason"))
    if reason is None:
        return None
    return LOST if reason in TLS_TRANSIENT else PERMANENT, f"TLS {reason}"


def _name_resolution(exc: BaseException) -> Answer:
    number = whole(probe(exc, "errno"))
    if ("socket", "herror") in lineage(type(exc)):
        return UNREACHED if number == DNS_TRY_AGAIN else NO_SUCH_NAME, f"name resolution (h_errno {number})"
    if number is None:
        return UNREACHED, "name resolution"
    socket = sys.modules.get("socket", sys.modules.get("_socket"))
    for row, names in DNS_NAMES.items():
        for name in names.split():
            if whole(probe(socket, name)) == number:
                return row, f"name resolution ({name})"
    return NO_SUCH_NAME, f"name resolution (error {number})"


def _smtp(exc: BaseException) -> Answer:
    recipients = probe(exc, "recipients")
    if real(recipients, DICT):  # address: (code, text), one for each that was refused
        replies = list(DICT.values(recipients))[:_MOST_RECIPIENTS]
        codes = [whole(reply[0]) for reply in replies if real(reply, TUPLE) and TUPLE.__len__(reply)]
    else:
        codes = [whole(probe(exc, "smtp_code"))]
    worst = max([code for code in codes if code is not None and 400 <= code <= 599], default=None)
    if worst is None:
        return None
    if worst in SMTP_UNAUTHORIZED:
        return UNAUTHORIZED, f"SMTP {worst}"
    return TURNED_AWAY if worst < 500 else PERMANENT, f"SMTP {worst}"


def _sqlite(exc: BaseException) -> Answer:
    code = whole(probe(exc, "sqlite_errorcode"))
    if code is not None:
        locked = code & 0xFF in SQLITE_LOCKED  # the rest of the number tells kinds of locks apart
        return LOCKED_OUT if locked else PERMANENT, f"SQLite error {code}"
    # Raised by hand, or carried over from another process: only the text is left.
    said = next(iter(arguments(exc)), None)
    return (LOCKED_OUT, "SQLite says locked") if "is locked" in (text(said) or "") else None


PACKAGES: Mapping[str, Callable[[BaseException], Answer]] = {
    "smtplib": _smtp,
    "socket": _name_resolution,
    "sqlite3": _sqlite,
    "ssl": _tls,
}
