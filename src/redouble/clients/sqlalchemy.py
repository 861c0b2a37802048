"""Run a transaction of SQLAlchemy, and run it again after a deadlock or a lost connection.

>>> import sqlalchemy
>>> engine = sqlalchemy.create_engine("sqlite://")
>>> run_transaction(engine, lambda connection: connection.scalar(sqlalchemy.text("SELECT 1")))
1
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from contextvars import ContextVar

import sqlalchemy
from sqlalchemy import orm
from sqlalchemy.exc import DBAPIError, InvalidRequestError
from sqlalchemy.ext import asyncio as aio

from .._base.callables import name_of, reject_coroutine
from .._engine.decorate import chosen
from ..classify import find_requests, verdict
from ..context import leave
from ..policy import Policy

__all__ = ["run_transaction", "run_transaction_async"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator
    from typing import Any, TypeVar

    from typing_extensions import Unpack

    from .._policy.typed import PolicyFields

    R = TypeVar("R")

_AMBIGUOUS = (
    "the connection was lost during COMMIT, so the transaction may be committed; if it may run twice, "
    "say idempotent=True"
)
_COMMITTED = "the transaction is committed; if it may run twice, say idempotent=True"

# The transactions that run here, the outermost first.
_running: ContextVar[tuple[_Transaction, ...]] = ContextVar("redouble transactions", default=())


class _Transaction:
    """One call: the transaction that its attempts run, and why it must not be run again."""

    def __init__(self, target: Any, function: Any, idempotent: object) -> None:
        self.open = target.connect if hasattr(target, "connect") else target
        self.function = function
        self.pool = _pool(target)
        self.idempotent = idempotent is True
        self.over = False
        self.why = ""

    def enter(self) -> Any:
        """Note that the transaction runs here; raise `InvalidRequestError` inside one of the same engine."""
        running = _running.get()
        for other in running:
            if other.pool is self.pool and not other.over:
                raise InvalidRequestError(
                    f"{name_of(self.function)} would run inside a transaction of the same engine, and commit "
                    "apart from it; pass it the connection or session instead"
                )
        return _running.set((*running, self))

    def fail(self, error: BaseException, *, committing: bool) -> None:
        """Note why the transaction must not be run again after this error."""
        found = verdict(error)
        if self.idempotent or found.unprocessed:
            self.why = ""
        elif committing:
            self.why = _AMBIGUOUS
        elif not isinstance(error, DBAPIError):
            # The database has rolled back; a request that the function sent has not.
            sent = find_requests(error).unrepeatable
            self.why = "" if sent is None else f"repeating this {sent.name or sent.method} might act twice"


def _pool(target: Any) -> object:
    """Return the pool of connections of an engine, or of a sessionmaker's engine."""
    bind = target if hasattr(target, "connect") else target.kw.get("bind")
    return getattr(bind, "pool", target)


class _Client:
    """What the engine asks about a transaction: it is rolled back, so it may be run again, unless noted."""

    def name_of(self, transaction: _Transaction) -> str:
        return name_of(transaction.function)

    def reason(self, result: object) -> str:
        return "the result was refused"

    def discard(self, result: object, left: float | None) -> None:
        """Do nothing: a result holds nothing open."""

    def unrepeatable(self, transaction: _Transaction) -> str:
        """Return why the transaction must not be run again: it is committed, or may be."""
        return transaction.why

    def may_repeat(self, transaction: _Transaction) -> bool:
        """Return that a transaction that was rolled back may be run again."""
        return True


class _TransactionPolicy(Policy):
    """A policy whose calls are transactions."""

    __slots__ = ()
    _client = _Client()


@contextmanager
def _begun(
    target: Any, kinds: Any, function: Any, policy: Any, fields: Any, caller: str
) -> Generator[Any, None, None]:
    """Check the target, and note that a transaction of it runs here. Yield its policy and its state."""
    if not isinstance(target, kinds):
        raise TypeError(f"{caller}() takes {kinds[0].__name__} or {kinds[1].__name__}, got {target!r}")
    given: Any = chosen(policy, fields, caller)._given()
    transaction = _Transaction(target, function, given.get("idempotent"))
    token = transaction.enter()
    try:
        yield _TransactionPolicy(**given), transaction
    finally:
        transaction.over = True
        leave(token)


def run_transaction(
    target: sqlalchemy.Engine | orm.sessionmaker[Any],
    function: Callable[[Any], R],
    policy: Policy | None = None,
    /,
    **fields: Unpack[PolicyFields],
) -> R:
    """Begin a transaction, call ``function`` with its connection or session, commit, and return the result.

    After a deadlock, a serialization failure or a lost connection the transaction is rolled back and
    ``function`` is called again, with a new one. ``target`` is an engine or a ``sessionmaker``. A connection
    that is lost during COMMIT leaves open whether the transaction is committed: it is run again only with
    ``idempotent=True``. Raises `InvalidRequestError` inside another transaction of the same engine.

    Errors of the database are raised as they are, with a note. Safe to call from many threads.

    >>> engine = sqlalchemy.create_engine("sqlite://")
    >>> run_transaction(engine, lambda connection: connection.in_transaction(), attempts=5, deadline=10.0)
    True
    """
    kinds = (sqlalchemy.Engine, orm.sessionmaker)
    with _begun(target, kinds, function, policy, fields, "run_transaction") as (under, transaction):
        result: R = under.call(_attempt, transaction)
        return result


def _attempt(transaction: _Transaction) -> Any:
    """Begin, call the function, and commit; roll back after any error."""
    committing = False
    with transaction.open() as connection:
        begun = connection.begin()
        try:
            result = transaction.function(connection)
            reject_coroutine(result)
            committing = True
            begun.commit()
        except BaseException as error:
            transaction.fail(error, committing=committing)
            with suppress(Exception):  # the connection may be gone; the first error is raised
                begun.rollback()
            raise
    transaction.why = "" if transaction.idempotent else _COMMITTED
    return result


async def run_transaction_async(
    target: aio.AsyncEngine | aio.async_sessionmaker[Any],
    function: Callable[[Any], Awaitable[R]],
    policy: Policy | None = None,
    /,
    **fields: Unpack[PolicyFields],
) -> R:
    """Do the same as `run_transaction` with an async engine or ``async_sessionmaker``.

    A COMMIT that ``timeout`` or ``deadline`` cuts off counts as a connection that was lost.
    """
    kinds = (aio.AsyncEngine, aio.async_sessionmaker)
    with _begun(target, kinds, function, policy, fields, "run_transaction_async") as (under, transaction):
        result: R = await under.call(_attempt_async, transaction)
        return result


async def _attempt_async(transaction: _Transaction) -> Any:
    """As `_attempt`, with awaits."""
    committing = False
    async with transaction.open() as connection:
        begun = await connection.begin()
        try:
            result = await transaction.function(connection)
            committing = True
            await begun.commit()
        except BaseException as error:
            transaction.fail(error, committing=committing)
            with suppress(Exception):  # the connection may be gone; the first error is raised
                await begun.rollback()
            raise
    transaction.why = "" if transaction.idempotent else _COMMITTED
    return result
