"""Codes of databases: SQLSTATE, which is known by its shape, and the numbers and texts of each engine.

Written as ``_codes`` is: one short function per package, and ``READERS`` to say who is asked about what. An
engine's own number comes before the SQLSTATE, which is coarser and sometimes wrong.
"""

from __future__ import annotations

from ._catalogue import (
    LOCKED_OUT,
    LOST,
    PERMANENT,
    SQLSTATE_ATTRIBUTES,
    TIMED_OUT,
    TURNED_AWAY,
    UNAUTHORIZED,
    UNREACHED,
    wrapping,
)
from ._codebook import (
    LIBPQ,
    MONGODB,
    MONGODB_LABELS,
    MYSQL,
    ORACLE,
    REDIS,
    SQLITE_LOCKED,
    SQLSERVER,
    SQLSTATE_NAMES,
    SQLSTATE_SAYS_NOTHING,
    SQLSTATE_UNAUTHORIZED,
    SQLSTATES,
)
from ._codes import looked_up, said
from ._shapes import TUPLE, arguments, class_name, entry, lacks, message, obtained, probe, real, text, whole

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ._codes import Answer, Reader

_NEVER_REACHED = wrapping(UNREACHED)


def sqlstate(exc: BaseException) -> Answer:
    """The SQLSTATE that an exception of any package carries."""
    if lacks(exc, SQLSTATE_ATTRIBUTES):
        return None
    answers = (_sqlstate(probe(exc, name)) for name in SQLSTATE_ATTRIBUTES)
    return next((answer for answer in answers if answer is not None), None)


def _sqlstate(value: object) -> Answer:
    code = text(value) or ""
    plain = len(code) == 5 and code.isascii() and code.isalnum() and code == code.upper()
    if not plain or code == SQLSTATE_SAYS_NOTHING:
        return None
    row = UNAUTHORIZED if code.startswith(SQLSTATE_UNAUTHORIZED) else SQLSTATES.get(code, PERMANENT)
    return row, f"SQLSTATE {code} {SQLSTATE_NAMES.get(code, '')}".rstrip()


def _first(exc: BaseException) -> object:
    return next(iter(arguments(exc)), None)


def _mysql(exc: BaseException) -> Answer:
    return looked_up(MYSQL, whole(_first(exc)), "MySQL error")


def _mysql_connector(exc: BaseException) -> Answer:
    if class_name(exc).endswith("TimeoutError"):  # the client's own; it borrows the number of a slow query
        return TIMED_OUT, class_name(exc)
    return looked_up(MYSQL, whole(probe(exc, "errno")), "MySQL error")


def _sql_server(exc: BaseException) -> Answer:
    first = _first(exc)
    if real(first, TUPLE):  # pymssql: (number, text)
        first = next(iter(TUPLE.__iter__(first)), None)
    number = whole(first)
    if number is None:
        number = whole(probe(exc, "msg_no"))
    return looked_up(SQLSERVER, number, "SQL Server error")


def _odbc(exc: BaseException) -> Answer:
    return _sqlstate(_first(exc))


def _pg8000(exc: BaseException) -> Answer:
    return _sqlstate(entry(_first(exc), "C"))


def _libpq(exc: BaseException) -> Answer:
    if sqlstate(exc) is not None:
        return None
    found = said(LIBPQ, message(exc))
    return None if found is None else (found[1], f"PostgreSQL: {found[0]}")


def _sqlite(exc: BaseException) -> Answer:
    code = whole(probe(exc, "sqlite_errorcode"))
    if code is not None:
        locked = code & 0xFF in SQLITE_LOCKED  # the rest of the number tells kinds of locks apart
        return LOCKED_OUT if locked else PERMANENT, f"SQLite error {code}"
    # Raised by hand, or carried over from another process: only the text is left.
    return (LOCKED_OUT, "SQLite says locked") if "is locked" in message(exc) else None


def _oracle(exc: BaseException) -> Answer:
    error = _first(exc)
    code = text(probe(error, "full_code"))
    known = looked_up(ORACLE, code, "Oracle")
    if known is not None or probe(error, "isrecoverable") is not True:
        return known  # a recoverable that is False says nothing: it is said of a refused connection, too
    return LOST, f"Oracle {code}, recoverable"


def _redis_reply(exc: BaseException) -> Answer:
    return looked_up(REDIS, message(exc).split(" ", 1)[0], "Redis")


def _redis_connection(exc: BaseException) -> Answer:
    said_so = message(exc)
    if "max number of clients" in said_so:
        return TURNED_AWAY, "Redis: max number of clients"
    return (_NEVER_REACHED, "Redis, on connecting") if "connecting to" in said_so else None


def _mongodb(exc: BaseException) -> Answer:
    for labels, row in MONGODB_LABELS:
        if all(obtained(exc, "has_error_label", label) is True for label in labels.split()):
            return row, f"MongoDB {labels}"
    return looked_up(MONGODB, whole(probe(exc, "code")), "MongoDB error")


READERS: Mapping[str, Reader] = {
    "mariadb": _mysql_connector,
    "mysql": _mysql_connector,
    "oracledb": _oracle,
    "pg8000": _pg8000,
    "psycopg.OperationalError": _libpq,
    "psycopg2.OperationalError": _libpq,
    "pymongo.AutoReconnect": _mongodb,
    "pymongo.OperationFailure": _mongodb,
    "pymssql": _sql_server,
    "pymysql": _mysql,
    "pyodbc": _odbc,
    "pytds": _sql_server,
    "redis.ConnectionError": _redis_connection,
    "redis.ResponseError": _redis_reply,
    "redis.TimeoutError": _redis_connection,
    "sqlite3": _sqlite,
}
